//! Softmax and layer normalisation: a row is read from memory once and stays in the first-level
//! cache for its further passes.

use super::exp::exp;
use super::threads::{Shared, in_parallel, share_of};
use super::vector::{Loop, Vector, run};
use crate::workload::LAYER_NORM_EPS;

/// Vectors in flight per pass. Rows must be a multiple of this many vectors long.
const IN_FLIGHT: usize = 8;

/// Softmax of each row of `cols` values.
pub fn softmax(x: &[f32], y: &mut [f32], cols: usize, n_threads: usize) {
    let (n, y) = (x.len(), Shared::new(y));
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(n, cols, thread_idx, n_threads);
        // SAFETY: shares are disjoint.
        run(Softmax { x: &x[range.clone()], y: unsafe { y.part(range) }, cols });
    });
}

/// Layer normalisation of each row of `cols` values.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32], cols: usize, n_threads: usize) {
    let (n, y) = (x.len(), Shared::new(y));
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(n, cols, thread_idx, n_threads);
        // SAFETY: shares are disjoint.
        run(LayerNorm { x: &x[range.clone()], weight, bias, y: unsafe { y.part(range) }, cols });
    });
}

struct Softmax<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    cols: usize,
}

impl Loop for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        assert!(self.cols.is_multiple_of(IN_FLIGHT * V::LANES) && self.x.len() == self.y.len());
        for (x, y) in self.x.chunks_exact(self.cols).zip(self.y.chunks_exact_mut(self.cols)) {
            // SAFETY: the caller promises the instructions of V; rows are whole blocks.
            unsafe { softmax_row::<V>(x, y) };
        }
    }
}

/// # Safety
/// The processor has the instructions of `V`; both rows are one length, whole blocks of [`IN_FLIGHT`] vectors.
#[inline(always)]
unsafe fn softmax_row<V: Vector>(x: &[f32], y: &mut [f32]) {
    let (cols, step) = (x.len(), IN_FLIGHT * V::LANES);
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    // SAFETY: the caller promises the instructions of V and whole blocks.
    unsafe {
        let mut maxima = [V::splat(f32::NEG_INFINITY); IN_FLIGHT];
        for i in (0..cols).step_by(step) {
            for (j, max) in maxima.iter_mut().enumerate() {
                *max = max.max(V::load(x.add(i + j * V::LANES)));
            }
        }
        let mut max = maxima[0];
        for other in maxima {
            max = max.max(other);
        }
        let max = V::splat(max.max_lanes());

        let mut totals = [V::splat(0.0); IN_FLIGHT];
        for i in (0..cols).step_by(step) {
            for (j, total) in totals.iter_mut().enumerate() {
                let at = i + j * V::LANES;
                V::prefetch(x.wrapping_add(cols + at));
                let e = exp(V::load(x.add(at)).sub(max));
                e.store(y.add(at));
                *total = total.add(e);
            }
        }
        let scale = V::splat(1.0 / sum_all(totals));

        for i in (0..cols).step_by(step) {
            for j in 0..IN_FLIGHT {
                let at = y.add(i + j * V::LANES);
                V::load(at).mul(scale).store(at);
            }
        }
    }
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    y: &'a mut [f32],
    cols: usize,
}

impl Loop for LayerNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let cols = self.cols;
        assert!(cols.is_multiple_of(IN_FLIGHT * V::LANES) && self.x.len() == self.y.len());
        assert!(self.weight.len() == cols && self.bias.len() == cols);
        for (x, y) in self.x.chunks_exact(cols).zip(self.y.chunks_exact_mut(cols)) {
            // SAFETY: the caller promises the instructions of V; rows are whole blocks.
            unsafe { layer_norm_row::<V>(x, self.weight, self.bias, y) };
        }
    }
}

/// # Safety
/// The processor has the instructions of `V`; all rows are one length, whole blocks of [`IN_FLIGHT`] vectors.
#[inline(always)]
unsafe fn layer_norm_row<V: Vector>(x: &[f32], weight: &[f32], bias: &[f32], y: &mut [f32]) {
    let (cols, step) = (x.len(), IN_FLIGHT * V::LANES);
    let (x, weight, bias, y) = (x.as_ptr(), weight.as_ptr(), bias.as_ptr(), y.as_mut_ptr());
    // SAFETY: the caller promises the instructions of V and whole blocks.
    unsafe {
        let mut totals = [V::splat(0.0); IN_FLIGHT];
        for i in (0..cols).step_by(step) {
            for (j, total) in totals.iter_mut().enumerate() {
                *total = total.add(V::load(x.add(i + j * V::LANES)));
            }
        }
        let mean = V::splat(sum_all(totals) / cols as f32);

        // The variance in a second pass: taking the mean off first loses no digits.
        let mut squares = [V::splat(0.0); IN_FLIGHT];
        for i in (0..cols).step_by(step) {
            for (j, square) in squares.iter_mut().enumerate() {
                let at = x.add(i + j * V::LANES);
                V::prefetch(at.wrapping_add(cols));
                let centred = V::load(at).sub(mean);
                *square = centred.mul_add(centred, *square);
            }
        }
        let variance = sum_all(squares) / cols as f32;
        let scale = V::splat(1.0 / (variance + LAYER_NORM_EPS).sqrt());

        for i in (0..cols).step_by(step) {
            for j in 0..IN_FLIGHT {
                let at = i + j * V::LANES;
                let normal = V::load(x.add(at)).sub(mean).mul(scale);
                normal.mul_add(V::load(weight.add(at)), V::load(bias.add(at))).store(y.add(at));
            }
        }
    }
}

/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn sum_all<V: Vector>(parts: [V; IN_FLIGHT]) -> f32 {
    // SAFETY: the caller promises the instructions of V.
    unsafe {
        let mut total = parts[0];
        for &part in &parts[1..] {
            total = total.add(part);
        }
        total.sum_lanes()
    }
}
