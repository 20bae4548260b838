//! What must be rounded is, on every GPU, though to compilers floats are real numbers: sums, differences and products give
//! the CPU's bits, one by one and in chains.

use lazuli::{Device, Tensor};

use crate::{alone, gpus};

/// The bits of all elements; all NaNs are one.
fn bits(tensor: &Tensor) -> Vec<u32> {
    let one = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    tensor.to_vec::<f32>().unwrap().into_iter().map(one).collect()
}

/// Whether a device takes subnormal numbers for zero, which WGSL allows.
fn flushes_subnormals(gpu: &Device) -> bool {
    Tensor::from_slice(&[f32::MIN_POSITIVE], [1], gpu).mul(0.5).to_vec::<f32>().unwrap() == [0.0]
}

/// The same expression gives the same bits on a GPU and on the CPU.
#[track_caller]
fn check(what: &str, f: impl Fn(&Device) -> Tensor) {
    let right = bits(&f(&Device::cpu()));
    for gpu in gpus() {
        let got = bits(&f(&gpu));
        let wrong = got.iter().zip(&right).position(|(got, right)| got != right);
        let values = wrong.map(|i| (i, f32::from_bits(got[i]), f32::from_bits(right[i])));
        assert_eq!((got.len(), values), (right.len(), None), "{what} on {}", gpu.info());
    }
}

/// Numbers with all their digits, half of them of one size and half of many.
fn numbers(n: usize, seed: u32, device: &Device) -> Tensor {
    let mut dice = Dice(seed);
    let number = |i: usize| match i % 2 {
        0 => dice.number(),
        _ => (1.0 + dice.next() as f64 / u32::MAX as f64) as f32,
    };
    Tensor::from_vec((0..n).map(number).collect(), [n], device)
}

/// Numbers whose products are products of any size; only normal ones where a GPU takes others for zero.
fn factors(n: usize, seed: u32, device: &Device) -> Tensor {
    let numbers = numbers(n, seed, device);
    match gpus().iter().any(flushes_subnormals) {
        true => {
            let halved = |x: f32| x.abs().sqrt().copysign(x);
            Tensor::from_vec(numbers.to_vec::<f32>().unwrap().into_iter().map(halved).collect(), [n], device)
        }
        false => numbers,
    }
}

struct Dice(u32);

impl Dice {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let word = ((self.0 >> ((self.0 >> 28) + 4)) ^ self.0).wrapping_mul(277_803_737);
        (word >> 22) ^ word
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// A number between 1e-30 and 1e30, or below zero.
    fn number(&mut self) -> f32 {
        let digits = 1.0 + self.next() as f64 / u32::MAX as f64;
        let size = 10f64.powf(self.next() as f64 / u32::MAX as f64 * 60.0 - 30.0);
        let sign = if self.next() & 1 == 0 { 1.0 } else { -1.0 };
        (digits * size * sign).clamp(-1e30, 1e30) as f32
    }
}

#[test]
fn a_sum_is_rounded_before_what_was_added_is_taken_away() {
    let _turn = alone();
    let x = |d: &Device| Tensor::from_slice(&[1.0f32, 0.3, 5.7], [3], d);
    for gpu in gpus() {
        assert_eq!(x(&gpu).add(1e8).sub(1e8).to_vec::<f32>().unwrap(), [0.0, 0.0, 8.0]);
        let magic = 12_582_912.0;
        assert_eq!(x(&gpu).add(magic).sub(magic).to_vec::<f32>().unwrap(), [1.0, 0.0, 6.0]);
    }
    let (a, b) = (|d: &Device| numbers(100, 1, d), |d: &Device| numbers(100, 2, d));
    check("(a + b) - a", |d| a(d).add(b(d)).sub(a(d)));
    check("(a - b) + b", |d| a(d).sub(b(d)).add(b(d)));
    check("a - (a - b)", |d| a(d).sub(a(d).sub(b(d))));
    check("a + (b - a)", |d| a(d).add(b(d).sub(a(d))));
    check("(a + b) + (-a)", |d| a(d).add(b(d)).add(a(d).neg()));
    check("-(a + b) + a", |d| a(d).add(b(d)).neg().add(a(d)));
    check("what the rounding of a sum lost", |d| {
        let (a, b) = (a(d), b(d));
        let s = a.add(&b);
        let t = s.sub(&a);
        a.sub(s.sub(&t)).add(b.sub(t))
    });
    check("a sum by Kahan", |d| {
        let terms: Vec<Tensor> = (0..8).map(|i| numbers(100, 10 + i, d)).collect();
        let (mut sum, mut lost) = (terms[0].clone(), terms[0].mul(0.0));
        for term in &terms[1..] {
            let y = term.sub(&lost);
            let t = sum.add(&y);
            lost = t.sub(&sum).sub(y);
            sum = t;
        }
        sum.add(lost)
    });
}

#[test]
fn products_are_rounded_before_they_are_added() {
    let _turn = alone();
    let n = |i: u32| move |d: &Device| factors(200, i, d);
    let (a, b, c) = (n(1), n(2), n(3));
    check("a * b + c", |d| a(d).mul(b(d)).add(c(d)));
    check("c - a * b", |d| c(d).sub(a(d).mul(b(d))));
    check("a * b + a * c", |d| a(d).mul(b(d)).add(a(d).mul(c(d))));
    check("a * b - c * a", |d| a(d).mul(b(d)).sub(c(d).mul(a(d))));
    check("a * a - b * b", |d| a(d).square().sub(b(d).square()));
    check("a + c * (b - a)", |d| a(d).add(c(d).mul(b(d).sub(a(d)))));
    check("a * 3 * c / 3", |d| a(d).mul(3.0).mul(c(d)).div(3.0));
    check("what is too large on the way", |d| a(d).mul(1e30).mul(1e30).mul(1e-30).mul(1e-30));
    check("a * b / b", |d| a(d).mul(b(d)).div(b(d)));
}

#[test]
fn infinity_less_infinity_is_nan_however_it_is_written() {
    let _turn = alone();
    let inf = f32::INFINITY;
    for gpu in gpus() {
        let x = Tensor::from_slice(&[inf, -inf, 1.0], [3], &gpu);
        let right = [f32::NAN, f32::NAN, 0.0].map(|x: f32| x.to_bits() & 0x7fff_ffff);
        let all = [
            ("x - x", x.sub(&x)),
            ("x + (-x)", x.add(x.neg())),
            ("-x + x", x.neg().add(&x)),
            ("x - sum of one", x.sub(x.reshape([3, 1]).sum(-1))),
            ("x - largest of one", x.reshape([3, 1]).sub(x.reshape([3, 1]).max(lazuli::keep(-1))).reshape([3])),
            ("(x + 1) - x - 1", x.add(1.0).sub(&x).sub(1.0)),
        ];
        for (what, y) in all {
            let got: Vec<u32> = bits(&y).iter().map(|b| b & 0x7fff_ffff).collect();
            assert_eq!(got, right, "{what} on {}", gpu.info());
        }
        for n in [1, 3, 4, 64, 1000] {
            let none = Tensor::full([2, n], -inf, &gpu);
            assert!(none.softmax(-1).to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()), "softmax of {n}");
            assert!(none.softmax(0).to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()), "softmax of 2 columns");
            let stored = none.compute().unwrap();
            assert!(stored.softmax(-1).to_vec::<f32>().unwrap().iter().all(|x| x.is_nan()), "softmax of {n} stored");
        }
    }
}

/// One step of a chain: which op, and what it takes beside the value so far.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A constant, on the right or on the left.
    Const(usize, bool),
    /// One of the tensors.
    Input(usize),
    /// An earlier value of the chain.
    Earlier(usize),
    Neg,
}

/// The values of a chain of some steps over two tensors and some constants.
fn chain(steps: &[(usize, Step)], constants: &[f32], inputs: &[Tensor; 2]) -> Vec<Tensor> {
    let mut values = vec![inputs[0].clone()];
    for (op, step) in steps {
        let x = &values[values.len() - 1];
        let scalar = |i: usize| Tensor::scalar(constants[i], x.device().unwrap());
        let (x, y) = match *step {
            Step::Const(i, false) => (x.clone(), scalar(i)),
            Step::Const(i, true) => (scalar(i), x.clone()),
            Step::Input(i) => (x.clone(), inputs[i].clone()),
            Step::Earlier(i) => (x.clone(), values[i % values.len()].clone()),
            Step::Neg => (x.clone(), x.neg()),
        };
        values.push(match op {
            0 => x.add(y),
            1 => x.sub(y),
            _ => x.mul(y),
        });
    }
    values
}

/// Per element, whether any of these values is subnormal.
fn has_subnormals(values: &[Tensor]) -> Vec<bool> {
    let values: Vec<Vec<f32>> = values.iter().map(|value| value.to_vec::<f32>().unwrap()).collect();
    (0..values[0].len()).map(|i| values.iter().any(|value| value[i].is_subnormal())).collect()
}

fn steps(dice: &mut Dice) -> Vec<(usize, Step)> {
    let n = 2 + dice.below(10);
    let step = |dice: &mut Dice| match dice.below(10) {
        0..=4 => Step::Const(dice.below(3), dice.below(4) == 0),
        5 | 6 => Step::Input(dice.below(2)),
        7 | 8 => Step::Earlier(dice.below(12)),
        _ => Step::Neg,
    };
    (0..n).map(|_| (dice.below(3), step(dice))).collect()
}

#[test]
fn ten_thousand_random_chains_have_the_bits_of_the_cpu() {
    let _turn = alone();
    let (n_structures, n_constants, n) = (200, 50, 64);
    let cpu = Device::cpu();
    for gpu in gpus() {
        let mut dice = Dice(2024);
        let mut wrong = Vec::new();
        let flushes = flushes_subnormals(&gpu);
        for _ in 0..n_structures {
            let steps = steps(&mut dice);
            let seed = dice.next();
            let of = |device: &Device| {
                [numbers(n, seed, device), numbers(n, seed ^ 1, device)].map(|t| t.compute().unwrap())
            };
            let (here, there) = (of(&cpu), of(&gpu));
            // Values of the chain are 1e-30 to 1e30 at first: whole chains of products leave the range, which is right, too.
            for turn in 0..n_constants {
                let constant = |dice: &mut Dice| if turn % 4 == 0 { dice.next() as f32 / 1e9 } else { dice.number() };
                let constants = [(); 3].map(|()| constant(&mut dice));
                let values = chain(&steps, &constants, &here);
                let right = bits(&values[steps.len()]);
                let got = bits(&chain(&steps, &constants, &there)[steps.len()]);
                if got == right {
                    continue;
                }
                // What is computed from a subnormal number is what follows from zero on a device that takes it for that.
                let is_lost = if flushes { has_subnormals(&values) } else { vec![false; n] };
                if let Some(i) = (0..n).find(|i| got[*i] != right[*i] && !is_lost[*i]) {
                    let (got, right) = (f32::from_bits(got[i]), f32::from_bits(right[i]));
                    let inputs = here.each_ref().map(|x| x.to_vec::<f32>().unwrap()[i]);
                    wrong.push(format!("{got} for {right}: {steps:?} of {inputs:?} with {constants:?}"));
                    break;
                }
            }
        }
        assert!(wrong.is_empty(), "{} chains on {}:\n{}", wrong.len(), gpu.info(), wrong.join("\n"));
    }
}
