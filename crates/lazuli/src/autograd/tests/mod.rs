//! Gradients against central differences. Both are evaluated in double precision by an interpreter of the graph
//! (`oracle`) that shares nothing with planner and backends, so that they must agree to many digits; then the engine's
//! own f32 result must agree with the same numbers, on the CPU or on what `LAZULI_TEST_DEVICE` names.

mod checkpoints;
mod history;
mod ops;
pub mod oracle;
mod random;
mod released;

use crate::{Device, Tensor};

/// How far the two halves of a central difference are apart. In f64 its error is about h² = 1e-10 of the function's size.
const H: f64 = 1e-5;

/// What a gradient in f64 may differ from the difference by, relative to the largest of them or 1.
const F64_TOLERANCE: f64 = 2e-6;

/// Which derivatives exist everywhere near the points drawn.
#[derive(Clone, Copy, PartialEq)]
enum Smooth {
    Once,
    Twice,
}

/// Reproducible numbers in `[low, high]` that stay away from whole numbers, where signs and roundings jump, and from
/// each other, so that no extremum is shared.
fn numbers(n: usize, (low, high): (f64, f64), seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut out: Vec<f32> = Vec::with_capacity(n);
    while out.len() < n {
        let x = low + (high - low) * draw();
        let is_apart = n > 64 || out.iter().all(|y| (*y as f64 - x).abs() > 1e-3);
        if (x - x.round()).abs() > 0.01 && is_apart {
            out.push(x as f32);
        }
    }
    out
}

/// The device that the tests run on.
fn device() -> Device {
    match std::env::var("LAZULI_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap_or_else(|error| panic!("LAZULI_TEST_DEVICE: {error}")),
        Err(_) => Device::cpu(),
    }
}

fn leaf(shape: &[usize], range: (f64, f64), seed: u64) -> Tensor {
    let n = shape.iter().product();
    Tensor::from_vec(numbers(n, range, seed), shape, &device())
}

/// `Σ y · r` with fixed numbers `r`: every element has a say, and a different one.
fn weighed(y: &Tensor, seed: u64) -> Tensor {
    let r = leaf(y.shape().expect("no mistake"), (-1.0, 1.0), seed);
    y.mul(&r).sum(..)
}

/// The slope of `loss` along each element of each leaf.
fn differences(loss: &Tensor, leaves: &[Tensor]) -> Vec<Vec<f64>> {
    let slope = |leaf: usize, i: usize| {
        let at = |h: f64| {
            let moved = |j: usize, values: &mut Vec<f64>| {
                if j == leaf {
                    values[i] += h;
                }
            };
            oracle::with_leaves(leaves, moved).value(loss)[0]
        };
        (at(H) - at(-H)) / (2.0 * H)
    };
    let n_elems = |leaf: &Tensor| leaf.shape().expect("is data").iter().product::<usize>();
    (0..leaves.len()).map(|l| (0..n_elems(&leaves[l])).map(|i| slope(l, i)).collect()).collect()
}

#[track_caller]
fn compare(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    let scale = want.iter().fold(1.0, |m: f64, w| m.max(w.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs() / scale;
        assert!(error <= tolerance, "{what}: element {i} is {got}, not {want} (off by {error:.1e} of {scale:.1e})");
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

/// Checks the gradients of `f` by leaves of these shapes, drawn from `range`. `tolerance` is that of the engine's f32.
#[track_caller]
fn check(
    name: &str,
    smooth: Smooth,
    shapes: &[&[usize]],
    range: (f64, f64),
    tolerance: f64,
    f: impl Fn(&[Tensor]) -> Tensor,
) {
    let leaves: Vec<Tensor> = shapes.iter().enumerate().map(|(i, s)| leaf(s, range, i as u64 + 7)).collect();
    let wrt: Vec<&Tensor> = leaves.iter().collect();
    let loss = weighed(&f(&leaves), 99);
    let grads = loss.grad(&wrt);
    let agree = |name: &str, loss: &Tensor, grads: &[Tensor]| {
        let slopes = differences(loss, &leaves);
        for (i, (grad, slopes)) in grads.iter().zip(&slopes).enumerate() {
            let shape = grad.shape().unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(shape, leaves[i].shape().expect("is data"), "{name}");
            let exact = oracle::with_leaves(&leaves, |_, _| {}).value(grad);
            compare(&format!("{name} by {i} in f64"), &exact, slopes, F64_TOLERANCE);
            let got = grad.to_vec::<f64>().unwrap_or_else(|e| panic!("{name}: {e}"));
            compare(&format!("{name} by {i} in f32"), &got, &exact, tolerance);
        }
    };
    if smooth == Smooth::Twice {
        let parts = grads.iter().enumerate().map(|(i, g)| weighed(g, 200 + i as u64));
        let sum = parts.reduce(|a, b| a.add(b)).expect("there are leaves");
        agree(&format!("{name}, twice"), &sum, &sum.grad(&wrt));
    }
    agree(name, &loss, &grads);
}
