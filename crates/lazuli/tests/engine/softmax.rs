//! Gradients of softmax, its logarithm and logsumexp keep their digits where one element has nearly everything: first,
//! second and mixed ones against formulas in f64 that subtract nothing that is nearly equal.

use lazuli::Tensor;

use crate::device::device;
use crate::shared;

/// Rows of `n` numbers each, and what each gradient of them is in f64.
struct Rows {
    n: usize,
    /// What the incoming gradients are around.
    level: f32,
    x: Vec<f32>,
    g: Vec<f32>,
    v: Vec<f32>,
}

/// Numbers between −1 and 1 that look random.
fn noise(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

impl Rows {
    /// Rows whose numbers are up to `spread` apart, with incoming gradients around `level`.
    fn new(n: usize, spread: f32, level: f32) -> Rows {
        let mut next = noise((n * 1000) as u64 + spread.to_bits() as u64 + level.to_bits() as u64);
        let mut of = |scale: f32, level: f32| (0..n * 64).map(|_| level + scale * next()).collect::<Vec<f32>>();
        let scale = if level == 0.0 { 1.0 } else { 1e-3 };
        Rows { n, level, x: of(spread / 2.0, 0.0), g: of(scale, level), v: of(scale, level) }
    }

    fn tensor(&self, values: &[f32]) -> Tensor {
        Tensor::from_slice(values, [values.len() / self.n, self.n], &device())
    }

    /// The largest error of `ours`, relative to what the terms of its row's gradients come to without their signs.
    fn error(&self, ours: &Tensor, exact: impl Fn(&[f64], &[f64], &[f64]) -> Vec<Sum>) -> f64 {
        let ours = ours.to_vec::<f32>().unwrap();
        let wide = |values: &[f32]| values.iter().map(|v| *v as f64).collect::<Vec<f64>>();
        let mut worst = 0.0f64;
        for (i, ours) in ours.chunks(self.n).enumerate() {
            let row = |values: &[f32]| wide(&values[i * self.n..(i + 1) * self.n]);
            let exact = exact(&softmax(&row(&self.x)), &row(&self.g), &row(&self.v));
            let largest = exact.iter().fold(0.0f64, |m, e| m.max(e.magnitude));
            // An incoming gradient that is nearly constant is less its mean, which has been rounded.
            let rounded = 4.0 * (self.level as f64) * (f32::EPSILON as f64).powi(2);
            // Below that f32 has fewer digits.
            if largest > 1e-30 {
                let off = ours.iter().zip(&exact).map(|(o, e)| (*o as f64 - e.value).abs() - rounded);
                worst = off.fold(worst, |m, e| m.max(e / largest));
            }
        }
        worst
    }
}

/// A sum, and the same sum of magnitudes.
#[derive(Clone, Copy)]
struct Sum {
    value: f64,
    magnitude: f64,
}

impl Sum {
    fn of(terms: impl Iterator<Item = f64>) -> Sum {
        terms.fold(Sum { value: 0.0, magnitude: 0.0 }, |sum, term| Sum {
            value: sum.value + term,
            magnitude: sum.magnitude + term.abs(),
        })
    }

    fn times(self, by: f64) -> Sum {
        Sum { value: self.value * by, magnitude: self.magnitude * by.abs() }
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
    let e: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

/// Each element less the mean under `y`.
fn centred(y: &[f64], g: &[f64]) -> Vec<f64> {
    g.iter().map(|a| y.iter().zip(g).map(|(y, b)| y * (a - b)).sum()).collect()
}

/// `y·(g − Σ g·y)`.
fn softmax_grad(y: &[f64], g: &[f64]) -> Vec<Sum> {
    let of = |i: usize| Sum::of(y.iter().zip(g).map(|(y, b)| y * (g[i] - b))).times(y[i]);
    (0..y.len()).map(of).collect()
}

/// The gradient of `Σ v·softmax_grad(g)`, which is the covariance of `v` and `g` under `y`.
fn softmax_twice(y: &[f64], g: &[f64], v: &[f64]) -> Vec<Sum> {
    let products: Vec<f64> = centred(y, g).iter().zip(centred(y, v)).map(|(a, b)| a * b).collect();
    let of = |i: usize| Sum::of(y.iter().zip(&products).flat_map(|(y, b)| [y * products[i], -y * b])).times(y[i]);
    (0..y.len()).map(of).collect()
}

/// `g − y·Σ g` as `Σ (g·yⱼ − y·gⱼ)` over the others.
fn log_softmax_grad(y: &[f64], g: &[f64]) -> Vec<Sum> {
    let of = |i: usize| Sum::of((0..y.len()).filter(|j| *j != i).flat_map(|j| [g[i] * y[j], -y[i] * g[j]]));
    (0..y.len()).map(of).collect()
}

/// What is within a few units of the exponent's own rounding: `x − max` is off by half a unit of the spread.
fn tolerance(spread: f32) -> f64 {
    (16.0 + spread as f64) * f32::EPSILON as f64
}

fn each(check: impl Fn(&Rows, &dyn Fn(&str, f64))) {
    let _turn = shared();
    for n in [2, 3, 8, 17, 64] {
        for spread in [0.1f32, 1.0, 3.0, 10.0, 20.0, 40.0, 100.0] {
            for level in [0.0, 1.0] {
                let rows = Rows::new(n, spread, level);
                check(&rows, &|what, error| {
                    assert!(
                        error <= tolerance(spread),
                        "{what}: n {n}, spread {spread}, around {level}: {error:.1e} off"
                    );
                });
            }
        }
    }
}

#[test]
fn gradients_of_softmax_keep_their_digits() {
    each(|rows, check| {
        let (x, g, v) = (rows.tensor(&rows.x).tracked(), rows.tensor(&rows.g).tracked(), rows.tensor(&rows.v));
        let first = x.softmax(-1).mul(&g).sum(..).grad(&[&x]).swap_remove(0);
        let second = first.mul(&v).sum(..).grad(&[&x, &g]);
        check("softmax", rows.error(&first, |y, g, _| softmax_grad(y, g)));
        check("softmax, twice", rows.error(&second[0], softmax_twice));
        check("softmax, mixed", rows.error(&second[1], |y, _, v| softmax_grad(y, v)));
        let columns = x.t().softmax(0).mul(g.t()).sum(..).grad(&[&x]).swap_remove(0);
        check("softmax of columns", rows.error(&columns, |y, g, _| softmax_grad(y, g)));
    });
}

#[test]
fn gradients_of_log_softmax_and_logsumexp_keep_their_digits() {
    each(|rows, check| {
        let (x, g, v) = (rows.tensor(&rows.x).tracked(), rows.tensor(&rows.g).tracked(), rows.tensor(&rows.v));
        let first = x.log_softmax(-1).mul(&g).sum(..).grad(&[&x]).swap_remove(0);
        check("log_softmax", rows.error(&first, |y, g, _| log_softmax_grad(y, g)));
        let sums = x.logsumexp(-1).sum(..).grad(&[&x]).swap_remove(0);
        check("logsumexp", rows.error(&sums, |y, _, _| y.iter().map(|y| Sum::of([*y].into_iter())).collect()));
        let twice = sums.mul(&v).sum(..).grad(&[&x]).swap_remove(0);
        check("logsumexp, twice", rows.error(&twice, |y, _, v| softmax_grad(y, v)));
        // Σ v·(g − y·Σ g): by x −Σ g times the gradient of softmax, by g v − Σ v·y.
        let twice = first.mul(&v).sum(..).grad(&[&x, &g]);
        let by_x = |y: &[f64], g: &[f64], v: &[f64]| {
            let sum = Sum::of(g.iter().copied());
            let of = |d: Sum| Sum { value: -d.value * sum.value, magnitude: d.magnitude * sum.magnitude };
            softmax_grad(y, v).into_iter().map(of).collect()
        };
        let by_g = |y: &[f64], _: &[f64], v: &[f64]| {
            (0..y.len()).map(|i| Sum::of((0..y.len()).map(|j| y[j] * (v[i] - v[j])))).collect()
        };
        check("log_softmax, twice", rows.error(&twice[0], by_x));
        check("log_softmax, mixed", rows.error(&twice[1], by_g));
    });
}

#[test]
fn the_gradient_of_a_sure_prediction_keeps_its_digits() {
    let _turn = shared();
    for gap in [1.0f32, 5.0, 10.0, 16.0, 20.0, 40.0, 80.0] {
        let x = Tensor::from_slice(&[gap, 0.0, 0.0], [3], &device());
        let g = x.log_softmax(-1).narrow(0, 0, 1).sum(..).grad(&[&x]).swap_remove(0).to_vec::<f32>().unwrap();
        let rest = 2.0 * (-gap as f64).exp() / (1.0 + 2.0 * (-gap as f64).exp());
        let exact = [rest, -rest / 2.0, -rest / 2.0];
        let off = g.iter().zip(exact).map(|(g, e)| ((*g as f64 - e) / e).abs()).fold(0.0, f64::max);
        assert!(off <= 4.0 * f32::EPSILON as f64, "gap {gap}: {g:?}, not {exact:?}");
    }
}
