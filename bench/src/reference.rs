//! The right answers, computed in f64 by the plainest loops there are. Slow, and that is fine:
//! every contender, the hand-written one included, is compared with these once per run.

use crate::inputs::Input;
use crate::workload::{
    Attention, CHAIN_PAIRS, Conv, Encoder, HEAT_RATE, LAYER_NORM_EPS, Tolerance, Work, chain_scalar,
};

/// The result of `work` in f64, row-major.
pub fn reference(work: Work, inputs: &[Input]) -> Vec<f64> {
    let x = |idx: usize| inputs[idx].data.as_slice();
    match work {
        Work::Copy { .. } => x(0).iter().map(|&v| v as f64).collect(),
        Work::Peak { .. } => vec![0.0],
        Work::Read { .. } | Work::Sum { .. } => vec![sum(x(0))],
        Work::Chain3 { n } => (0..n).map(|i| (x(0)[i] as f64 + x(1)[i] as f64) * 5.0 - x(2)[i] as f64).collect(),
        Work::Chain100 { n } => (0..n).map(|i| chain100(x(0)[i], x(1)[i])).collect(),
        Work::Softmax { cols, .. } => wide(x(0)).chunks(cols).flat_map(softmax_row).collect(),
        Work::LayerNorm { cols, .. } => layer_norm(&wide(x(0)), x(1), x(2), cols),
        Work::SumAxis { axis: 0, rows, cols } => {
            (0..cols).map(|c| (0..rows).map(|r| x(0)[r * cols + c] as f64).sum()).collect()
        }
        Work::SumAxis { cols, .. } => x(0).chunks(cols).map(sum).collect(),
        Work::AddTransposed { n } => (0..n * n).map(|i| x(0)[i] as f64 + x(0)[i % n * n + i / n] as f64).collect(),
        Work::Matmul { m, k, n } => matmul(&wide(x(0)), &wide(x(1)), (m, k, n)),
        Work::Attention(sizes) => attention(&wide(x(0)), &wide(x(1)), &wide(x(2)), sizes),
        Work::Conv(sizes) => conv(x(0), x(1), x(2), sizes),
        Work::Encoder(sizes) => encoder(inputs, sizes),
        Work::Heat { side, n_steps } => heat(x(0), side, n_steps),
    }
}

/// How far a result is from the reference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Difference {
    pub max_abs: f64,
    pub max_rel: f64,
    pub is_right: bool,
}

/// Compares a result with the reference; a wrong length or a NaN is wrong.
pub fn compare(result: &[f32], reference: &[f64], tolerance: Tolerance) -> Difference {
    let mut difference = Difference { is_right: result.len() == reference.len(), ..Difference::default() };
    for (&y, &r) in result.iter().zip(reference) {
        let abs = (y as f64 - r).abs();
        difference.max_abs = difference.max_abs.max(abs);
        difference.max_rel = difference.max_rel.max(abs / r.abs().max(f64::MIN_POSITIVE));
        // Written so that NaN fails.
        difference.is_right &= abs <= tolerance.abs + tolerance.rel * r.abs();
    }
    difference
}

fn sum(x: &[f32]) -> f64 {
    x.iter().map(|&v| v as f64).sum()
}

fn chain100(x: f32, t: f32) -> f64 {
    (0..CHAIN_PAIRS).fold(x as f64, |y, pair_idx| y * chain_scalar(pair_idx) as f64 + t as f64)
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| v as f64).collect()
}

fn softmax_row(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = row.iter().map(|&v| (v - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / total).collect()
}

fn layer_norm(x: &[f64], weight: &[f32], bias: &[f32], cols: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let mean = row.iter().sum::<f64>() / cols as f64;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / cols as f64;
        let scale = 1.0 / (variance + LAYER_NORM_EPS as f64).sqrt();
        let affine = row.iter().zip(weight).zip(bias);
        affine.map(|((v, &w), &b)| (v - mean) * scale * w as f64 + b as f64).collect::<Vec<_>>()
    };
    x.chunks(cols).flat_map(row).collect()
}

fn matmul(a: &[f64], b: &[f64], (m, k, n): (usize, usize, usize)) -> Vec<f64> {
    let mut y = vec![0.0; m * n];
    for (row, a_row) in y.chunks_mut(n).zip(a.chunks(k)) {
        for (&a_value, b_row) in a_row.iter().zip(b.chunks(n)) {
            for (out, &b_value) in row.iter_mut().zip(b_row) {
                *out += a_value * b_value;
            }
        }
    }
    y
}

fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}

fn attention(q: &[f64], k: &[f64], v: &[f64], sizes: Attention) -> Vec<f64> {
    let Attention { queries, keys, width, causal, .. } = sizes;
    let head = |((q, k), v): ((&[f64], &[f64]), &[f64])| {
        let mut scores = matmul(q, &transposed(k, keys, width), (queries, width, keys));
        for (i, score) in scores.iter_mut().enumerate() {
            let is_seen = !causal || i % keys <= i / keys;
            *score = if is_seen { *score / (width as f64).sqrt() } else { f64::NEG_INFINITY };
        }
        let shares: Vec<f64> = scores.chunks(keys).flat_map(softmax_row).collect();
        matmul(&shares, v, (queries, keys, width))
    };
    let (n_queries, n_keys) = (queries * width, keys * width);
    q.chunks(n_queries).zip(k.chunks(n_keys)).zip(v.chunks(n_keys)).flat_map(head).collect()
}

fn conv(x: &[f32], weight: &[f32], bias: &[f32], sizes: Conv) -> Vec<f64> {
    let Conv { batch, channels, side, out, window, stride } = sizes;
    let (padding, out_side) = (window / 2, sizes.out_side());
    let mut y = Vec::with_capacity(batch * out * out_side * out_side);
    for image in x.chunks(channels * side * side) {
        // One window's values, then one sum for each output channel.
        let mut result = vec![0.0; out * out_side * out_side];
        for (place, (row, column)) in (0..out_side * out_side).map(|i| (i, (i / out_side, i % out_side))) {
            let inside = |at: usize, by: usize| (at * stride + by).checked_sub(padding).filter(|i| *i < side);
            let seen: Vec<f64> = (0..channels * window * window)
                .map(|i| {
                    let (channel, down, across) = (i / (window * window), i / window % window, i % window);
                    let at = inside(row, down).zip(inside(column, across));
                    at.map_or(0.0, |(r, c)| image[(channel * side + r) * side + c] as f64)
                })
                .collect();
            for (channel, (kernel, b)) in weight.chunks(seen.len()).zip(bias).enumerate() {
                let sum: f64 = kernel.iter().zip(&seen).map(|(&w, v)| w as f64 * v).sum();
                result[channel * out_side * out_side + place] = sum + *b as f64;
            }
        }
        y.extend(result);
    }
    y
}

fn encoder(inputs: &[Input], sizes: Encoder) -> Vec<f64> {
    let Encoder { length, width, heads, hidden, .. } = sizes;
    let mut x = wide(&inputs[0].data);
    for layer in inputs[1..].chunks(sizes.layer_shapes().len()) {
        let p = |i: usize| &layer[i].data[..];
        let linear = |x: &[f64], at: usize, k: usize, n: usize| {
            let mut y = matmul(x, &wide(p(at)), (length, k, n));
            y.iter_mut().enumerate().for_each(|(i, y)| *y += p(at + 1)[i % n] as f64);
            y
        };
        let by_head = |x: Vec<f64>| {
            let each = width / heads;
            let at = |i: usize| (i / each % length) * width + i / (each * length) * each + i % each;
            (0..x.len()).map(|i| x[at(i)]).collect::<Vec<f64>>()
        };
        let normal = layer_norm(&x, p(0), p(1), width);
        let [q, k, v] = [2, 4, 6].map(|at| by_head(linear(&normal, at, width, width)));
        let each = Attention { heads, queries: length, keys: length, width: width / heads, causal: false };
        let seen = attention(&q, &k, &v, each);
        let each = width / heads;
        let together: Vec<f64> =
            (0..length * width).map(|i| seen[(i % width / each * length + i / width) * each + i % each]).collect();
        let mixed = linear(&together, 8, width, width);
        x.iter_mut().zip(mixed).for_each(|(x, y)| *x += y);
        let mut up = linear(&layer_norm(&x, p(10), p(11), width), 12, width, hidden);
        up.iter_mut().for_each(|x| *x = 0.5 * *x * (1.0 + erf(*x / std::f64::consts::SQRT_2)));
        let down = linear(&up, 14, hidden, width);
        x.iter_mut().zip(down).for_each(|(x, y)| *x += y);
    }
    x
}

/// The error function: its series near zero, its continued fraction further out.
fn erf(x: f64) -> f64 {
    let square = x * x;
    if square < 9.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -square / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return sum * std::f64::consts::FRAC_2_SQRT_PI;
    }
    let fraction = (1..60).rev().fold(0.0, |rest, n| n as f64 / 2.0 / (x.abs() + rest));
    let beyond = (-square).exp() / (x.abs() + fraction) / std::f64::consts::PI.sqrt();
    (1.0 - beyond).copysign(x)
}

fn heat(x: &[f32], side: usize, n_steps: usize) -> Vec<f64> {
    let mut now = wide(x);
    for _ in 0..n_steps {
        let before = now.clone();
        let at = |row: Option<usize>, column: Option<usize>| match (row, column) {
            (Some(row), Some(column)) if row < side && column < side => before[row * side + column],
            _ => 0.0,
        };
        for (i, value) in now.iter_mut().enumerate() {
            let (row, column) = (i / side, i % side);
            let beside = at(row.checked_sub(1), Some(column)) + at(Some(row + 1), Some(column));
            let beside = beside + at(Some(row), column.checked_sub(1)) + at(Some(row), Some(column + 1));
            *value += HEAT_RATE as f64 * (beside - 4.0 * *value);
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_and_short_results_are_wrong() {
        let tolerance = Tolerance { abs: 1.0, rel: 1.0 };
        assert!(compare(&[1.0, 2.0], &[1.0, 2.5], tolerance).is_right);
        assert!(!compare(&[1.0, f32::NAN], &[1.0, 2.0], tolerance).is_right);
        assert!(!compare(&[1.0], &[1.0, 2.0], tolerance).is_right);
    }

    #[test]
    fn erf_has_its_known_values() {
        for (x, y) in [(0.0, 0.0), (0.5, 0.5204998778130465), (-2.0, -0.9953222650189527), (3.5, 0.9999992569016276)] {
            assert!((erf(x) - y).abs() < 1e-13, "erf({x}) = {}", erf(x));
        }
    }
}
