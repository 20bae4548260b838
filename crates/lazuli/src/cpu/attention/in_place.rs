//! Products of few query rows with keys and values that are read where they are stored. Their cost is reading keys and values
//! once, so nothing is packed: the rows of all heads that share keys are multiplied while a key is in the first-level cache.
//! Knows pointers and instruction sets; which rows see which keys is decided elsewhere.

use half::{bf16, f16};

use crate::dtype::DType;
#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16, Floats, SumEach, Vector, prefetch};
use crate::ops::{Isa, isa};

/// Rows of floats or halves, each dense, `pitch` elements apart. Callers of functions that take such rows promise that they can be read
/// and are not written meanwhile.
#[derive(Clone, Copy)]
pub struct StoredRows {
    pub first: *const u8,
    pub dtype: DType,
    pub pitch: isize,
    pub n_rows: usize,
    /// Elements of a row.
    pub len: usize,
}

/// Whether rows of this type can be read in place by this instruction set.
pub fn reads(isa: Isa, dtype: DType) -> bool {
    isa > Isa::Baseline && matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Few rows of f32, `pitch` elements apart. Callers of functions that take such rows promise that they have as many elements as the
/// function says and are used by nobody else.
#[derive(Clone, Copy)]
pub struct FewRows {
    pub first: *mut f32,
    pub pitch: usize,
    pub n_rows: usize,
}

/// Calls a function for the element type of stored rows, compiled for the instruction set of this machine.
macro_rules! dispatch {
    ($avx512:ident, $avx2:ident, $dtype:expr, $args:tt) => {
        match (isa(), $dtype) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, DType::F32) => $avx512::<f32> $args,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, DType::F16) => $avx512::<f16> $args,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx512, DType::BF16) => $avx512::<bf16> $args,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, DType::F32) => $avx2::<f32> $args,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, DType::F16) => $avx2::<f16> $args,
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, DType::BF16) => $avx2::<bf16> $args,
            _ => unreachable!("only what can be read in place is"),
        }
    };
}

/// `out[i, j] = Σ a[i, …] · keys[j, …]`. Rows of `a` are padded with zeros to whole vectors.
///
/// # Safety
/// [`reads`] has allowed the instruction set of this machine and the type of the keys. Rows of `a` are as long as a key and padded to
/// whole vectors; `out` has as many rows, with an element for each key. No row that is written overlaps another row.
pub unsafe fn dot_products(a: FewRows, keys: StoredRows, out: FewRows) {
    // SAFETY: as promised by the caller.
    unsafe { dispatch!(dot_products_avx512, dot_products_avx2, keys.dtype, (a, keys, out)) }
}

/// `out[i, …] += Σ weights[i, j] · values[j, …]`.
///
/// # Safety
/// [`reads`] has allowed the instruction set of this machine and the type of the values. Rows of `weights` have an element for each
/// row of values; `out` has as many rows, initialised and as long as a row of values. No row that is written overlaps another row.
pub unsafe fn add_weighted(weights: FewRows, values: StoredRows, out: FewRows) {
    // SAFETY: as promised by the caller.
    unsafe { dispatch!(add_weighted_avx512, add_weighted_avx2, values.dtype, (weights, values, out)) }
}

/// An element that vectors of floats are loaded from.
#[cfg(target_arch = "x86_64")]
trait StoredFloat: Copy + Default {
    /// Loads one element for each lane, from `from` on, widened to f32.
    ///
    /// # Safety
    /// As many elements are there as `V` has lanes, of which [`Floats`] says the rest.
    unsafe fn load<V: Floats>(from: *const Self) -> V;

    /// Masked load: elements `0..n` from `from` on, widened to f32, and zeros in the other lanes. Memory behind them is not read.
    ///
    /// # Safety
    /// `n` elements are there, no more than `V` has lanes, of which [`Floats`] says the rest.
    #[inline(always)]
    unsafe fn load_first<V: Floats>(from: *const Self, n: usize) -> V {
        let mut lanes = [Self::default(); 16];
        // SAFETY: `n` elements are there, and no vector is longer than the array.
        unsafe {
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), n.min(16));
            Self::load(lanes.as_ptr())
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
#[allow(unsafe_op_in_unsafe_fn, reason = "memory and instruction set are the callers' promise")]
mod stored {
    use super::*;

    impl StoredFloat for f32 {
        #[inline(always)] unsafe fn load<V: Floats>(from: *const f32) -> V { V::load(from) }
        #[inline(always)] unsafe fn load_first<V: Floats>(from: *const f32, n: usize) -> V { V::load_first(from, n) }
    }
    impl StoredFloat for f16 {
        #[inline(always)] unsafe fn load<V: Floats>(from: *const f16) -> V { V::load_f16(from) }
    }
    impl StoredFloat for bf16 {
        #[inline(always)] unsafe fn load<V: Floats>(from: *const bf16) -> V { V::load_bf16(from) }
    }
}

/// How far ahead rows are prefetched. Hardware prefetchers do not follow loops that take sixteen rows side by side: on a Zen 5,
/// 2,000 keys and values of 64 for 3 rows took 3.5 ms without, 2.5 with 4 KiB, 2.4 with 8 to 16 and 2.6 with 32.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 16 << 10;
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Prefetches rows that will be read later, cache line by cache line.
#[cfg(target_arch = "x86_64")]
struct Prefetch {
    at: *const u8,
    line: usize,
    /// Cache lines of a row, and from behind the last to the next row.
    n_lines: usize,
    skip: isize,
}

#[cfg(target_arch = "x86_64")]
impl Prefetch {
    /// Of the rows that come [`AHEAD_BYTES`] after `row`.
    #[inline(always)]
    fn ahead_of(rows: &StoredRows, row: usize) -> Prefetch {
        let size = rows.dtype.size();
        let n_lines = (rows.len * size).div_ceil(LINE_BYTES).max(1);
        let (pitch, row) = (rows.pitch * size as isize, row + AHEAD_BYTES / (LINE_BYTES * n_lines));
        let at = rows.first.wrapping_offset(row as isize * pitch);
        Prefetch { at, line: 0, n_lines, skip: pitch - (n_lines * LINE_BYTES) as isize }
    }

    #[inline(always)]
    fn next(&mut self, n_lines: usize) {
        for _ in 0..n_lines {
            prefetch(self.at);
            self.at = self.at.wrapping_add(LINE_BYTES);
            self.line += 1;
            if self.line == self.n_lines {
                (self.line, self.at) = (0, self.at.wrapping_offset(self.skip));
            }
        }
    }
}

/// [`dot_products`], as many keys at a time as a vector has lanes: each has a vector of sums, and the vectors are then added up
/// lane by lane of one.
///
/// # Safety
/// As for [`dot_products`], with keys of type `S` and vectors of `N` lanes; the processor has the instructions of `V`,
/// for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dot_products_by<V: Vector + SumEach<N>, S: StoredFloat, const N: usize>(
    a: FewRows,
    keys: StoredRows,
    out: FewRows,
) {
    let first = keys.first.cast::<S>();
    let (n_whole, n_rest) = (keys.len / N * N, keys.len % N);
    let steps = [0, keys.pitch, 2 * keys.pitch, 3 * keys.pitch];
    let n_together = keys.n_rows / N * N;
    // SAFETY: keys and rows are within their memory, and rows of `a` are padded.
    unsafe {
        for j in (0..n_together).step_by(N) {
            // As many as are read, a few with every step of every row: many at once would wait for each other.
            let mut later = Prefetch::ahead_of(&keys, j);
            let per_step = (N * later.n_lines).div_ceil(a.n_rows * (n_whole / N).max(1));
            for i in 0..a.n_rows {
                let row = a.first.add(i * a.pitch).cast_const();
                let mut sums = [V::splat(0.0); N];
                // Every fourth key has a pointer of its own: with one each there would be more than registers.
                let fours: [*const S; 4] =
                    std::array::from_fn(|four| first.wrapping_offset((j + 4 * four) as isize * keys.pitch));
                for at in (0..n_whole).step_by(N) {
                    let x = V::load(row.add(at));
                    later.next(per_step);
                    for (key, sum) in sums.iter_mut().enumerate() {
                        let from = fours[key / 4].wrapping_offset(steps[key % 4]).wrapping_add(at);
                        *sum = x.fma(S::load(from), *sum);
                    }
                }
                if n_rest > 0 {
                    let x = V::load(row.add(n_whole));
                    for (key, sum) in sums.iter_mut().enumerate() {
                        let from = fours[key / 4].wrapping_offset(steps[key % 4]).wrapping_add(n_whole);
                        *sum = x.fma(S::load_first(from, n_rest), *sum);
                    }
                }
                V::sum_each(sums).store(out.first.add(i * out.pitch + j));
            }
        }
        for j in n_together..keys.n_rows {
            let key = first.wrapping_offset(j as isize * keys.pitch);
            for i in 0..a.n_rows {
                let row = a.first.add(i * a.pitch).cast_const();
                let mut sum = V::splat(0.0);
                for at in (0..n_whole).step_by(N) {
                    sum = V::load(row.add(at)).fma(S::load(key.add(at)), sum);
                }
                if n_rest > 0 {
                    sum = V::load(row.add(n_whole)).fma(S::load_first(key.add(n_whole), n_rest), sum);
                }
                *out.first.add(i * out.pitch + j) = sum.sum_lanes();
            }
        }
    }
}

/// [`add_weighted`], up to four rows at a time.
///
/// # Safety
/// As for [`add_weighted`], with values of type `S`; the processor has the instructions of `V`, for which the caller is
/// compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn add_weighted_by<V: Vector, S: StoredFloat, const W: usize>(
    weights: FewRows,
    values: StoredRows,
    out: FewRows,
) {
    for i in (0..out.n_rows).step_by(4) {
        let from = |rows: FewRows| FewRows {
            first: rows.first.wrapping_add(i * rows.pitch),
            n_rows: 4.min(out.n_rows - i),
            ..rows
        };
        let (weights, out) = (from(weights), from(out));
        // SAFETY: as promised by the caller.
        unsafe {
            match out.n_rows {
                1 => strips::<V, S, W, 1>(weights, values, out),
                2 => strips::<V, S, W, 2>(weights, values, out),
                3 => strips::<V, S, W, 3>(weights, values, out),
                _ => strips::<V, S, W, 4>(weights, values, out),
            }
        }
    }
}

/// `M` rows of [`add_weighted`]: strips of `W` vectors of values, then single ones, the last perhaps not whole.
///
/// # Safety
/// As for [`add_weighted_by`], with `M` rows.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn strips<V: Vector, S: StoredFloat, const W: usize, const M: usize>(
    weights: FewRows,
    values: StoredRows,
    out: FewRows,
) {
    let wide = W * V::LANES;
    let mut at = 0;
    // SAFETY: as promised by the caller.
    unsafe {
        while at + wide <= values.len {
            strip::<V, S, W, M>(weights, values, out, at, V::LANES);
            at += wide;
        }
        while at < values.len {
            let n_lanes = V::LANES.min(values.len - at);
            strip::<V, S, 1, M>(weights, values, out, at, n_lanes);
            at += n_lanes;
        }
    }
}

/// The sums of `M` rows in `W` vectors from element `at` of all values on, the last of which has so many lanes.
///
/// # Safety
/// As for [`strips`]: the vectors begin within the rows of values and end there, with a last one of `n_lanes`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn strip<V: Vector, S: StoredFloat, const W: usize, const M: usize>(
    weights: FewRows,
    values: StoredRows,
    out: FewRows,
    at: usize,
    n_lanes: usize,
) {
    let first = values.first.cast::<S>().wrapping_add(at);
    let is_whole = n_lanes == V::LANES;
    // SAFETY: as promised by the caller.
    unsafe {
        let place = |i: usize, w: usize| out.first.add(i * out.pitch + at + w * V::LANES);
        // The block has sums of its own, which are added to those before: one chain over all blocks would round more often.
        let mut sums = [[V::splat(0.0); W]; M];
        let mut later = Prefetch::ahead_of(&values, 0);
        for j in 0..values.n_rows {
            if at == 0 {
                later.next(later.n_lines);
            }
            let from = first.wrapping_offset(j as isize * values.pitch);
            let mut lanes = [V::splat(0.0); W];
            for (w, lanes) in lanes.iter_mut().enumerate() {
                let from = from.wrapping_add(w * V::LANES);
                *lanes = if is_whole { S::load(from) } else { S::load_first(from, n_lanes) };
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let weight = V::splat(*weights.first.add(i * weights.pitch + j));
                for (w, sum) in sums.iter_mut().enumerate() {
                    *sum = weight.fma(lanes[w], *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (w, sum) in sums.iter().enumerate() {
                let before = if is_whole { V::load(place(i, w)) } else { V::load_first(place(i, w), n_lanes) };
                let sum = sum.add(before);
                match is_whole {
                    true => sum.store(place(i, w)),
                    false => sum.store_first(place(i, w), n_lanes),
                }
            }
        }
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($dots:ident, $weighted:ident, $features:literal, $vector:ty, $lanes:literal, $wide:literal) => {
        /// # Safety
        /// As for [`dot_products`], with keys of type `S`; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $dots<S: StoredFloat>(a: FewRows, keys: StoredRows, out: FewRows) {
            // SAFETY: as promised by the caller.
            unsafe { dot_products_by::<$vector, S, $lanes>(a, keys, out) }
        }

        /// # Safety
        /// As for [`add_weighted`], with values of type `S`; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $weighted<S: StoredFloat>(weights: FewRows, values: StoredRows, out: FewRows) {
            // SAFETY: as promised by the caller.
            unsafe { add_weighted_by::<$vector, S, $wide>(weights, values, out) }
        }
    };
}

compiled!(dot_products_avx512, add_weighted_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c", F32x16, 16, 4);
compiled!(dot_products_avx2, add_weighted_avx2, "avx2,fma,f16c", F32x8, 8, 2);
