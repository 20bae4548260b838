//! Scores into weights. An online softmax keeps the greatest score of a row so far and the sum of its exponentials, and
//! rescales both the sum and what was multiplied when a greater score comes.

use super::{AttentionRun, RowState};
use crate::cpu::tile::{Tile, Val};
use crate::ops::math::{self, Fused, MulThenAdd};
#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16, Vector};
use crate::ops::{Isa, SUM, isa, max_f32};

impl AttentionRun<'_> {
    /// Turns the scores of whole rows into weights.
    ///
    /// # Safety
    /// Scores and factors are lanes of the tile; `weights` has room for the tile's rows, `pitch` apart, and overlaps neither; the state is
    /// that of the tile's rows. Nobody else uses memory that is written.
    pub unsafe fn online_softmax(
        &self,
        score: Val,
        factor: Option<Val>,
        (weights, pitch): (*mut f32, usize),
        tile: &Tile,
        state: RowState,
    ) {
        let n_values = self.args().n_values;
        // SAFETY: rows of the tile, and what is kept of them.
        unsafe {
            for row in 0..tile.rows {
                let x = score.row(row, tile.len);
                let before = *state.max.add(row);
                let out = std::slice::from_raw_parts_mut(weights.add(row * pitch), tile.len);
                let (max, sum) = exponentials(x, before, out);
                let (old, new) = (shift(before), shift(max));
                *state.max.add(row) = max;
                if let Some(factor) = factor {
                    multiply(out, factor.row(row, tile.len));
                }
                let own = state.sum.add(row);
                // Before the first score that is not −∞ all weights were 0: there is nothing to rescale.
                if old == new || before == f32::NEG_INFINITY {
                    *own += sum;
                    continue;
                }
                let scale = exp(old - new);
                *own = *own * scale + sum;
                let product = std::slice::from_raw_parts_mut(state.product.add(row * n_values), n_values);
                product.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

/// What is subtracted from scores whose greatest this is: no less than the least number, so that −∞ less it is −∞.
pub fn shift(max: f32) -> f32 {
    max_f32(max, f32::MIN)
}

/// The softmax's own exponential, of one number.
pub fn exp(x: f32) -> f32 {
    if isa() > Isa::Baseline { math::exp::<Fused>(x) } else { math::exp::<MulThenAdd>(x) }
}

/// The greatest of `before` and the scores `x`, NaN if one is; `out[i] = exp(x[i] − shift(greatest))`, and their sum. A
/// single score stands for all.
fn exponentials(x: &[u32], before: f32, out: &mut [f32]) -> (f32, f32) {
    let greatest = || x.iter().fold(before, |max, x| max_f32(max, f32::from_bits(*x)));
    if x.len() == out.len() {
        let (max, sum) = match isa() {
            // SAFETY: the instruction set is there.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => unsafe { exponentials_avx512(x, before, out) },
            // SAFETY: the instruction set is there.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => unsafe { exponentials_avx2(x, before, out) },
            _ => exponentials_plain(x, greatest(), out),
        };
        // Vectors pass over NaN when they look for the greatest; sums do not, but are NaN for a score of ∞ as well.
        return (if sum.is_nan() { greatest() } else { max }, sum);
    }
    let max = greatest();
    let weight = exp(f32::from_bits(x[0]) - shift(max));
    out.fill(weight);
    (max, weight * out.len() as f32)
}

/// [`exponentials`] one by one, for scores of which the greatest is known.
fn exponentials_plain(x: &[u32], max: f32, out: &mut [f32]) -> (f32, f32) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = exp(f32::from_bits(*x) - shift(max)));
    let loops = &SUM.cpu.f32.as_ref().expect("sums of floats")[isa() as usize];
    // SAFETY: floats and lanes are of one size, and the loops are those of this machine.
    let sum = unsafe { (loops.fold)(std::slice::from_raw_parts(out.as_ptr().cast(), out.len())) };
    (max, f32::from_bits(sum))
}

/// Vectors that are computed side by side, with a maximum and a sum each.
#[cfg(target_arch = "x86_64")]
const FLIGHT: usize = 4;

/// [`exponentials`] with SIMD vectors. The last vector of a row is padded with −∞, whose exponential is 0.
///
/// # Safety
/// `x` is as long as `out`; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn exponentials_of_vectors<V: Vector>(x: &[u32], before: f32, out: &mut [f32]) -> (f32, f32) {
    let (from, to, len): (*const f32, *mut f32, usize) = (x.as_ptr().cast(), out.as_mut_ptr(), out.len());
    let (long, short) = (FLIGHT * V::LANES, V::LANES);
    let n_long = len / long * long;
    let n_short = len / short * short;
    let mut rest = [f32::NEG_INFINITY; 16];
    // SAFETY: all vectors lie within the row or within `rest`, which is as long as the longest.
    unsafe {
        from.add(n_short).copy_to_nonoverlapping(rest.as_mut_ptr(), len - n_short);
        let mut max = [V::splat(before); FLIGHT];
        for at in (0..n_long).step_by(long) {
            for i in 0..FLIGHT {
                max[i] = V::load(from.add(at + i * short)).above(max[i]);
            }
        }
        for at in (n_long..n_short).step_by(short) {
            max[0] = V::load(from.add(at)).above(max[0]);
        }
        max[1] = V::load(rest.as_ptr()).above(max[1]);
        let greatest = max[0].above(max[1]).above(max[2].above(max[3])).max_lane();

        let less = V::splat(shift(greatest));
        let mut sums = [V::splat(0.0); FLIGHT];
        for at in (0..n_long).step_by(long) {
            let mut weights = [less; FLIGHT];
            for i in 0..FLIGHT {
                weights[i] = V::load(from.add(at + i * short)).sub(less);
            }
            let weights = math::exp_of_vectors(weights);
            for i in 0..FLIGHT {
                weights[i].store(to.add(at + i * short));
                sums[i] = sums[i].add(weights[i]);
            }
        }
        for at in (n_long..n_short).step_by(short) {
            let weight = math::exp_of_vector(V::load(from.add(at)).sub(less));
            weight.store(to.add(at));
            sums[0] = sums[0].add(weight);
        }
        if n_short < len {
            let weight = math::exp_of_vector(V::load(rest.as_ptr()).sub(less));
            weight.store_first(to.add(n_short), len - n_short);
            sums[1] = sums[1].add(weight);
        }
        (greatest, sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum_lanes())
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($name:ident, $features:literal, $vector:ty) => {
        /// # Safety
        /// `x` is as long as `out`; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(x: &[u32], before: f32, out: &mut [f32]) -> (f32, f32) {
            // SAFETY: as promised by the caller.
            unsafe { exponentials_of_vectors::<$vector>(x, before, out) }
        }
    };
}

compiled!(exponentials_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16);
compiled!(exponentials_avx2, "avx2,fma", F32x8);

/// `x[i] · y[i]`, or of a single `y`.
fn multiply(x: &mut [f32], y: &[u32]) {
    match y {
        [y] => x.iter_mut().for_each(|x| *x *= f32::from_bits(*y)),
        _ => x.iter_mut().zip(y).for_each(|(x, y)| *x *= f32::from_bits(*y)),
    }
}

/// Scores as weights, times the factor.
///
/// # Safety
/// Scores and factors are lanes of the tile; `weights` has room for the tile's rows, `pitch` apart, overlaps neither, and is used by
/// nobody else.
pub unsafe fn copy_weights(score: Val, factor: Option<Val>, (weights, pitch): (*mut f32, usize), tile: &Tile) {
    for row in 0..tile.rows {
        // SAFETY: as promised by the caller.
        unsafe {
            let out = std::slice::from_raw_parts_mut(weights.add(row * pitch), tile.len);
            match score.row(row, tile.len) {
                [x] => out.fill(f32::from_bits(*x)),
                lanes => out.iter_mut().zip(lanes).for_each(|(out, x)| *out = f32::from_bits(*x)),
            }
            if let Some(factor) = factor {
                multiply(out, factor.row(row, tile.len));
            }
        }
    }
}
