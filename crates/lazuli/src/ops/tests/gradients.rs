//! The gradients of rows against central differences of their oracles.

use super::super::{PROD, SUM, table};
use super::random;
use crate::graph::Op;
use crate::ops::operand::{binary, unary};
use crate::shape::keep;
use crate::{Device, Tensor};

const STEP: f64 = 1e-5;

/// Numbers inside `(low, high)`, away from its ends and from whole numbers, where rounding and signs jump.
fn draws(range: (f64, f64), seed: u32) -> Vec<f32> {
    let (low, high) = (range.0.max(-3.0), range.1.min(3.0));
    random(seed)
        .map(|r| (low + (0.02 + 0.96 * (r as f64 / u32::MAX as f64)) * (high - low)) as f32)
        .filter(|x| (x - x.round()).abs() > 0.02)
        .take(100)
        .collect()
}

fn tensor(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, [data.len()], &Device::cpu())
}

#[track_caller]
fn check(name: &str, args: &[f32], got: f32, want: f64) {
    let err = (got as f64 - want).abs() / want.abs().max(1.0);
    assert!(err < 2e-4, "gradient of {name}{args:?} is {got}, not {want}");
}

#[test]
fn unary_gradients_are_the_slopes_of_the_oracles() {
    for row in table().unary {
        let Some(grad) = row.grad else { continue };
        let data = draws(row.range, 11);
        let x = tensor(&data);
        let y = unary(row, &x);
        let g = tensor(&vec![2.0; data.len()]);
        let got = grad(&x, &y, &g).to_vec::<f32>().expect("no mistake");
        for (x, got) in data.iter().zip(got) {
            let slope = ((row.oracle)(*x as f64 + STEP) - (row.oracle)(*x as f64 - STEP)) / (2.0 * STEP);
            // Beside a pole the difference is no measure.
            if slope.abs() < 1e3 {
                check(row.name, &[*x], got, 2.0 * slope);
            }
        }
    }
}

#[test]
fn binary_gradients_are_the_slopes_of_the_oracles() {
    for row in table().binary {
        let Some(grad) = row.grad else { continue };
        let (xs, ys) = (draws(row.range, 21), draws(row.range, 22));
        let (x, y) = (tensor(&xs), tensor(&ys));
        let out = binary(row, &x, (&y).into());
        let g = tensor(&vec![2.0; xs.len()]);
        let [gx, gy] = grad(&x, &y, &out, &g).map(|g| g.to_vec::<f32>().expect("no mistake"));
        for i in 0..xs.len() {
            let (x, y) = (xs[i] as f64, ys[i] as f64);
            // Where the quotient of a remainder jumps there is no slope.
            if row.name == "rem" && ((x / y) - (x / y).round()).abs() < 1e-3 {
                continue;
            }
            let slope_x = ((row.oracle)(x + STEP, y) - (row.oracle)(x - STEP, y)) / (2.0 * STEP);
            let slope_y = ((row.oracle)(x, y + STEP) - (row.oracle)(x, y - STEP)) / (2.0 * STEP);
            check(row.name, &[xs[i], ys[i]], gx[i], 2.0 * slope_x);
            check(row.name, &[xs[i], ys[i]], gy[i], 2.0 * slope_y);
        }
    }
}

#[test]
fn gradients_where_values_are_equal_or_zero() {
    let grad = |row: &'static super::super::BinaryRow, x: f32, y: f32| {
        let (x, y) = (tensor(&[x]), tensor(&[y]));
        let out = binary(row, &x, (&y).into());
        let gs = row.grad.expect("has one")(&x, &y, &out, &tensor(&[1.0]));
        gs.map(|g| g.item::<f32>().expect("no mistake"))
    };
    assert_eq!(grad(&super::super::MAXIMUM, 2.0, 2.0), [0.5, 0.5]);
    assert_eq!(grad(&super::super::MINIMUM, 2.0, 2.0), [0.5, 0.5]);
    assert_eq!(grad(&super::super::POW, 0.0, 2.0), [0.0, 0.0]);
    // x^0 has no slope in x, and ln x is not asked for where it is not finite.
    assert_eq!(grad(&super::super::POW, 3.0, 0.0)[0], 0.0);
}

#[test]
fn reduction_gradients_are_the_slopes_of_the_oracles() {
    let data = [[1.5f32, -2.0, 0.5], [3.0, 0.25, -1.0], [0.0, 2.0, -1.5]];
    let flat: Vec<f32> = data.concat();
    for row in table().reduce {
        let x = Tensor::from_slice(&flat, [3, 3], &Device::cpu());
        let y = match row {
            row if row == &SUM => x.sum(keep(1)),
            row if row == &PROD => x.prod(keep(1)),
            row if row == &super::super::MAX => x.max(keep(1)),
            _ => x.min(keep(1)),
        };
        let of_row = y.node().expect("no mistake").with_expr(|e| matches!(e.op, Op::View(_)));
        assert_eq!(of_row, Some(true), "kept axes are a view");
        let g = Tensor::full([3, 1], 2.0, &Device::cpu());
        let got = row.grad.expect("has one")(&x, &y, &g).to_vec::<f32>().expect("no mistake");
        for (i, xs) in data.iter().enumerate() {
            for j in 0..3 {
                let at = |h: f64| {
                    let moved = (0..3).map(|k| xs[k] as f64 + if k == j { h } else { 0.0 });
                    moved.fold(row.identity, row.oracle)
                };
                check(row.name, xs, got[3 * i + j], 2.0 * (at(STEP) - at(-STEP)) / (2.0 * STEP));
            }
        }
    }
}

#[test]
fn equal_extrema_share_the_gradient() {
    let x = Tensor::from_slice(&[2.0f32, 1.0, 2.0, 2.0], [4], &Device::cpu());
    let g = Tensor::full([1], 3.0, &Device::cpu());
    let got = super::super::MAX.grad.expect("has one")(&x, &x.max(keep(0)), &g);
    assert_eq!(got.to_vec::<f32>().expect("no mistake"), [1.0, 0.0, 1.0, 1.0]);
}
