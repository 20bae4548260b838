//! f16 and bf16: every op rounds its result once. Each is computed of every finite half float there is, and compared with f64.

use lazuli::ops::{self, Takes};
use lazuli::{DType, Tensor};
use lazuli_check::methods;

use crate::device::{device, flushes_subnormals};
use crate::shared;

/// What a result may differ by, in units in the last place of the half float: half a unit is the rounding, the rest is what f32
/// was off by before it.
const ROUNDED_ONCE: f64 = 0.55;

/// The format of a half float.
#[derive(Clone, Copy)]
struct Half {
    dtype: DType,
    /// Digits after the first, the least exponent, and the one that is infinite.
    digits: i32,
    low: i32,
    high: i32,
}

const HALVES: [Half; 2] = [
    Half { dtype: DType::F16, digits: 10, low: -14, high: 16 },
    Half { dtype: DType::BF16, digits: 7, low: -126, high: 128 },
];

impl Half {
    /// Every finite number of the format, in order of their bits.
    fn all(self) -> Vec<f32> {
        let n_positive = ((self.high - self.low + 1) as u32) << self.digits;
        let number = |bits: u32| {
            let (exponent, rest) = ((bits >> self.digits) as i32, bits & ((1 << self.digits) - 1));
            let of_digits = |m: u32, e: i32| m as f64 * 2f64.powi(e - self.digits);
            match exponent {
                0 => of_digits(rest, self.low),
                e => of_digits(rest | 1 << self.digits, self.low + e - 1),
            }
        };
        let positive = (0..n_positive).map(number);
        positive.flat_map(|v| [v as f32, -v as f32]).collect()
    }

    /// How far a result is from the exact one, in units in the last place. What rounds to infinity must be infinite.
    fn ulps(self, got: f32, want: f64) -> f64 {
        if want.is_nan() || got.is_nan() {
            return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
        }
        let greatest = 2f64.powi(self.high) - 2f64.powi(self.high - 1 - self.digits);
        let beyond = 2f64.powi(self.high);
        let real = |v: f64| if v.abs() > greatest { beyond.copysign(v) } else { v };
        if got.is_infinite() && want.abs() > greatest {
            // Halfway between the greatest number and the next is where infinity begins.
            let edge = greatest + (beyond - greatest) * (1.0 - ROUNDED_ONCE);
            return if got as f64 * want > 0.0 && want.abs() >= edge { 0.0 } else { f64::INFINITY };
        }
        let exponent = if want == 0.0 { self.low } else { want.abs().log2().floor() as i32 };
        let unit = 2f64.powi(exponent.clamp(self.low, self.high - 1) - self.digits);
        (real(got as f64) - if got.is_infinite() { real(want) } else { want }).abs() / unit
    }
}

/// Asserts that every result is the exact one, rounded once.
#[track_caller]
fn check(half: Half, name: &str, x: &[f32], got: &[f32], want: impl Fn(usize) -> (f64, f64)) {
    let flushes = flushes_subnormals();
    let is_lost = |v: f64| flushes && v != 0.0 && v.abs() < f32::MIN_POSITIVE as f64;
    let mut worst = (0.0, 0);
    for (i, got) in got.iter().enumerate() {
        let (want, slack) = want(i);
        if is_lost(want) || is_lost(x[i] as f64) {
            continue;
        }
        let off = half.ulps(*got, want);
        let is_near = (*got as f64 - want).abs() <= slack;
        if off > worst.0 && !is_near {
            worst = (off, i);
        }
    }
    let (off, i) = worst;
    let (got, want) = (got[i], want(i).0);
    assert!(off <= ROUNDED_ONCE, "{name} of {} as {}: {got}, not {want}: {off:.2} ulp", x[i], half.dtype);
}

fn tensor(values: &[f32], shape: &[usize], half: Half) -> Tensor {
    Tensor::from_slice(values, shape, &device()).to_dtype(half.dtype)
}

fn values(y: &Tensor, half: Half) -> Vec<f32> {
    assert_eq!(y.dtype().ok(), Some(half.dtype));
    y.to_vec::<f32>().unwrap()
}

#[test]
fn functions_of_one_half_float_round_once() {
    let _device = shared();
    for half in HALVES {
        let all = half.all();
        let x = tensor(&all, &[all.len()], half);
        for row in ops::table().unary {
            if row.takes == Takes::Float && methods::UNARY.contains(&row.name) && row.gives != ops::Gives::Bool {
                let got = values(&methods::call_unary(row.name, &x), half);
                check(half, row.name, &all, &got, |i| ((row.oracle)(all[i] as f64), 0.0));
            }
        }
    }
}

fn erfc(x: f64) -> f64 {
    let row = ops::table().unary.into_iter().find(|row| row.name == "erfc").expect("is a row");
    (row.oracle)(x)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Activations and the same in f64.
const ACTIVATIONS: [(&str, fn(&Tensor) -> Tensor, fn(f64) -> f64); 11] = [
    ("relu", Tensor::relu, |x| x.max(0.0)),
    ("leaky_relu", |x| x.leaky_relu(0.1), |x| if x > 0.0 { x } else { x * 0.1f32 as f64 }),
    ("elu", |x| x.elu(0.7), |x| if x > 0.0 { x } else { x.exp_m1() * 0.7f32 as f64 }),
    ("softplus", Tensor::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
    ("sigmoid", Tensor::sigmoid, sigmoid),
    ("silu", Tensor::silu, |x| x * sigmoid(x)),
    ("gelu", Tensor::gelu, |x| 0.5 * x * erfc(-x * std::f64::consts::FRAC_1_SQRT_2)),
    ("gelu_tanh", Tensor::gelu_tanh, |x| {
        x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x))
    }),
    ("mish", Tensor::mish, |x| x * (x.max(0.0) + (-x.abs()).exp().ln_1p()).tanh()),
    ("hardswish", Tensor::hardswish, |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0),
    ("square", Tensor::square, |x| x * x),
];

#[test]
fn activations_of_half_floats_round_once() {
    let _device = shared();
    for half in HALVES {
        let all = half.all();
        let x = tensor(&all, &[all.len()], half);
        for (name, f, oracle) in ACTIVATIONS {
            // Of gelu one factor is subnormal, below −13, where the product is not: the device may take it for zero.
            let lost = |x: f32| if name == "gelu" && flushes_subnormals() { x.abs() * f32::MIN_POSITIVE } else { 0.0 };
            check(half, name, &all, &values(&f(&x), half), |i| (oracle(all[i] as f64), lost(all[i]) as f64));
        }
    }
}

#[test]
fn gradients_of_activations_of_half_floats_round_once() {
    let _device = shared();
    for half in HALVES {
        let all = half.all();
        let (x, wide) = (tensor(&all, &[all.len()], half), Tensor::from_slice(&all, [all.len()], &device()));
        for (name, f, _) in ACTIVATIONS {
            let exact = f(&wide).vjp(&[&wide], &wide.ones_like())[0].to_vec::<f64>().unwrap();
            let got = values(&f(&x).vjp(&[&x], &x.ones_like())[0], half);
            check(half, name, &all, &got, |i| (exact[i], 0.0));
        }
    }
}

/// Reductions of a row and the same in f64: what it gives for each element of the row, or once.
type Rows = (&'static str, fn(&Tensor) -> Tensor, fn(&[f64]) -> Vec<f64>);

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn var(x: &[f64]) -> f64 {
    let mean = mean(x);
    x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / x.len() as f64
}

fn logsumexp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
    max + x.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
}

const ROWS: [Rows; 9] = [
    ("mean", |x| x.mean(-1), |x| vec![mean(x)]),
    ("var", |x| x.var(-1, 0), |x| vec![var(x)]),
    ("std", |x| x.std(-1, 0), |x| vec![var(x).sqrt()]),
    ("norm", |x| x.norm(-1), |x| vec![x.iter().map(|v| v * v).sum::<f64>().sqrt()]),
    ("logsumexp", |x| x.logsumexp(-1), |x| vec![logsumexp(x)]),
    ("softmax", |x| x.softmax(-1), |x| x.iter().map(|v| (v - logsumexp(x)).exp()).collect()),
    ("log_softmax", |x| x.log_softmax(-1), |x| x.iter().map(|v| v - logsumexp(x)).collect()),
    (
        "layer_norm",
        |x| x.layer_norm(-1, None, None, 1e-5),
        |x| x.iter().map(|v| (v - mean(x)) / (var(x) + 1e-5f32 as f64).sqrt()).collect(),
    ),
    (
        "rms_norm",
        |x| x.rms_norm(-1, None, 1e-5),
        |x| {
            let square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
            x.iter().map(|v| v / (square + 1e-5f32 as f64).sqrt()).collect()
        },
    ),
];

#[test]
fn reductions_of_half_floats_round_once() {
    let _device = shared();
    const WIDTH: usize = 16;
    for half in HALVES {
        // What f32 can square: all of f16.
        let is_square = |v: &f32| *v == 0.0 || (1e-18..1e18).contains(&v.abs());
        let all: Vec<f32> = half.all().into_iter().filter(is_square).collect();
        let n = all.len() / WIDTH;
        // Rows of neighbours, and rows of all sizes.
        let near: Vec<f32> = all[..n * WIDTH].to_vec();
        let mixed: Vec<f32> = (0..n * WIDTH).map(|i| near[i % WIDTH * n + i / WIDTH]).collect();
        for x in [&near, &mixed] {
            let t = tensor(x, &[n, WIDTH], half);
            for (name, f, oracle) in ROWS {
                let got = values(&f(&t), half);
                let per_row = got.len() / n;
                let wants: Vec<(f64, f64)> = (x.chunks(WIDTH))
                    .flat_map(|row| {
                        let row: Vec<f64> = row.iter().map(|v| *v as f64).collect();
                        let wants = oracle(&row);
                        // Terms of both signs may cancel: the roundings of the largest of them are left.
                        let size = match name {
                            "mean" | "logsumexp" | "log_softmax" => row.iter().fold(0.0, |m: f64, v| m.max(v.abs())),
                            _ => wants.iter().fold(0.0, |m: f64, v| m.max(v.abs())),
                        };
                        wants.into_iter().map(move |want| (want, size * 4e-6)).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(wants.len(), got.len(), "{name}");
                let firsts: Vec<f32> = (0..got.len()).map(|i| x[i * WIDTH / per_row]).collect();
                check(half, name, &firsts, &got, |i| wants[i]);
            }
        }
    }
}

#[test]
fn a_spread_whose_square_is_too_large_for_f16_is_right() {
    let _device = shared();
    let x = Tensor::from_slice(&[0.0f32, 1000.0], [2], &device()).to_dtype(DType::F16);
    assert_eq!(x.std(.., 0).item::<f32>().unwrap(), 500.0);
    assert_eq!(x.var(.., 0).item::<f32>().unwrap(), f32::INFINITY);
    assert_eq!(x.norm(..).item::<f32>().unwrap(), 1000.0);
    assert_eq!(x.layer_norm(-1, None, None, 0.0).to_vec::<f32>().unwrap(), [-1.0, 1.0]);
}
