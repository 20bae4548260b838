//! The right answers, computed in f64 by the plainest loops there are. Slow, and that is fine:
//! every contender, the hand-written one included, is compared with these once per run.

use crate::inputs::Input;
use crate::workload::{CHAIN_PAIRS, LAYER_NORM_EPS, Tolerance, Work, chain_scalar};

/// The result of `work` in f64, row-major.
pub fn reference(work: Work, inputs: &[Input]) -> Vec<f64> {
    let x = |idx: usize| inputs[idx].data.as_slice();
    match work {
        Work::Copy { .. } => x(0).iter().map(|&v| v as f64).collect(),
        Work::Peak { .. } => vec![0.0],
        Work::Read { .. } | Work::Sum { .. } => vec![sum(x(0))],
        Work::Chain3 { n } => (0..n).map(|i| (x(0)[i] as f64 + x(1)[i] as f64) * 5.0 - x(2)[i] as f64).collect(),
        Work::Chain100 { n } => (0..n).map(|i| chain100(x(0)[i], x(1)[i])).collect(),
        Work::Softmax { cols, .. } => x(0).chunks(cols).flat_map(softmax_row).collect(),
        Work::LayerNorm { cols, .. } => x(0).chunks(cols).flat_map(|row| layer_norm_row(row, x(1), x(2))).collect(),
        Work::SumAxis { axis: 0, rows, cols } => {
            (0..cols).map(|c| (0..rows).map(|r| x(0)[r * cols + c] as f64).sum()).collect()
        }
        Work::SumAxis { cols, .. } => x(0).chunks(cols).map(sum).collect(),
        Work::AddTransposed { n } => (0..n * n).map(|i| x(0)[i] as f64 + x(0)[i % n * n + i / n] as f64).collect(),
        Work::Matmul { m, k, n } => matmul(x(0), x(1), (m, k, n)),
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

fn softmax_row(row: &[f32]) -> Vec<f64> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let exps: Vec<f64> = row.iter().map(|&v| (v as f64 - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    exps.into_iter().map(|e| e / total).collect()
}

fn layer_norm_row(row: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let mean = sum(row) / row.len() as f64;
    let variance = row.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (variance + LAYER_NORM_EPS as f64).sqrt();
    let affine = row.iter().zip(weight).zip(bias);
    affine.map(|((&v, &w), &b)| (v as f64 - mean) * scale * w as f64 + b as f64).collect()
}

fn matmul(a: &[f32], b: &[f32], (m, k, n): (usize, usize, usize)) -> Vec<f64> {
    let mut y = vec![0.0; m * n];
    for (row, a_row) in y.chunks_mut(n).zip(a.chunks(k)) {
        for (&a_value, b_row) in a_row.iter().zip(b.chunks(n)) {
            for (out, &b_value) in row.iter_mut().zip(b_row) {
                *out += a_value as f64 * b_value as f64;
            }
        }
    }
    y
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
}
