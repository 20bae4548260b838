//! Lanes into sums, maxima and products: at the end of a chain, while they are in registers; several rows side by side;
//! or row after row into columns. Every order of combining depends on sizes alone.

use super::chain::{ChainOperand, Start};
#[cfg(target_arch = "x86_64")]
use super::chain::{plain, store, values};
#[cfg(target_arch = "x86_64")]
use crate::ops::math::{self, F32x8, F32x16, Vector};
use crate::ops::{CombineStep, Isa, ReduceLoops, isa, max_f32, min_f32};

/// All `len` results combined by a reduction of floats; also written to `out` unless that is null.
///
/// # Safety
/// [`folds`] is true. Every operand, and `start`, points to a single lane if it says so, else to `len`; `out` is null or has room for
/// `len` lanes, and overlaps no operand. The loops are those of this machine.
pub unsafe fn fold(
    start: Start,
    steps: &[ChainOperand],
    out: *mut u32,
    len: usize,
    by: (CombineStep, &ReduceLoops),
) -> u32 {
    // SAFETY: the instruction set is there; the rest as promised by the caller.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => fold_avx512(start, steps, out, len, by),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => fold_avx2(start, steps, out, len, by),
            _ => unreachable!("the baseline folds what chains have written"),
        }
    }
}

/// Rows that are folded side by side: memory is read in as many places at once.
pub const ABREAST: usize = 8;

/// Each of several rows combined by a reduction of floats, the first of them at an address and the others a step apart:
/// `out` has one lane for each. What a row gives depends on nothing but its lanes.
///
/// # Safety
/// [`folds`] is true; the rows are there, `len` lanes each; the loops are those of this machine.
pub unsafe fn fold_rows(rows: (*const u32, isize), len: usize, out: &mut [u32], by: (CombineStep, &ReduceLoops)) {
    let mut first = rows.0;
    for out in out.chunks_mut(ABREAST) {
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => fold_rows_avx512((first, rows.1), len, out, by),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => fold_rows_avx2((first, rows.1), len, out, by),
                _ => unreachable!("the baseline has a loop per row"),
            }
        }
        first = first.wrapping_offset(ABREAST as isize * rows.1);
    }
}

/// Rows of lanes, one after another, into `acc`: `n_rows` as long as that, from the first on a step apart.
///
/// # Safety
/// [`folds`] is true; the rows are there, and none overlaps `acc`.
pub unsafe fn accumulate(acc: &mut [u32], rows: (*const u32, isize), n_rows: usize, by: CombineStep) {
    // SAFETY: the instruction set is there; the rest as promised by the caller.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => accumulate_avx512(acc, rows, n_rows, by),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => accumulate_avx2(acc, rows, n_rows, by),
            _ => unreachable!("the baseline has a loop per row"),
        }
    }
}

/// Whether [`fold`], [`fold_rows`] and [`accumulate`] are there.
pub fn folds() -> bool {
    isa() > Isa::Baseline
}

/// Accumulators of a fold: enough that none waits for the one before it.
#[cfg(target_arch = "x86_64")]
const WAYS: usize = 8;

/// Vectors that one accumulator takes in a row: the error of a sum grows with this, and with how often it is emptied.
#[cfg(target_arch = "x86_64")]
const DEPTH: usize = 16;

/// Blocks one after another, none twice, into accumulators.
///
/// # Safety
/// As for [`fold`]; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn fold_vectors<V: Vector, const FLIGHT: usize>(
    start: Start,
    steps: &[ChainOperand],
    out: *mut u32,
    len: usize,
    (by, loops): (CombineStep, &ReduceLoops),
) -> u32 {
    let (short, long) = (2 * V::LANES, FLIGHT * V::LANES);
    // SAFETY: blocks lie within the lanes; the rest as promised by the caller.
    unsafe {
        let identity = V::splat(f32::from_bits(loops.identity));
        let (mut acc, mut all) = ([identity; WAYS], [identity; WAYS]);
        let (mut at, mut depth) = (0, 0);
        while at + long <= len {
            let block = values::<V, FLIGHT, true>(start, steps, at);
            if !out.is_null() {
                store(block, out.add(at).cast(), false);
            }
            combine(by, &mut acc, &block);
            depth += FLIGHT / WAYS;
            if depth == DEPTH {
                combine(by, &mut all, &acc);
                (acc, depth) = ([identity; WAYS], 0);
            }
            at += long;
        }
        while at + short <= len {
            let block = values::<V, 2, true>(start, steps, at);
            if !out.is_null() {
                store(block, out.add(at).cast(), false);
            }
            combine(by, &mut acc, &block);
            at += short;
        }
        combine(by, &mut all, &acc);
        let [mut low, high] = [[all[0], all[1], all[2], all[3]], [all[4], all[5], all[6], all[7]]];
        combine(by, &mut low, &high);
        let [mut low, high] = [[low[0], low[1]], [low[2], low[3]]];
        combine(by, &mut low, &high);
        let [mut sum, high] = [[low[0]], [low[1]]];
        combine(by, &mut sum, &high);
        let mut lanes = [0f32; 16];
        sum[0].store(lanes.as_mut_ptr());
        let sum = combine_lanes(by, lanes, V::LANES);
        if at == len {
            return sum.to_bits();
        }
        // What is left, lane by lane.
        let mut lanes = [0u32; 32];
        let rest = &mut lanes[..len - at];
        plain::<math::Fused>(start, steps, at, rest);
        if !out.is_null() {
            out.add(at).copy_from_nonoverlapping(rest.as_ptr(), rest.len());
        }
        combine_two(by, sum, f32::from_bits((loops.fold)(rest))).to_bits()
    }
}

/// An accumulator for each of `N` rows.
///
/// # Safety
/// As for [`fold_rows`], with `N` rows or more and as many lanes in `out`; the processor has the instructions of `V`,
/// for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn fold_rows_vectors<V: Vector, const N: usize>(
    (first, pitch): (*const u32, isize),
    len: usize,
    out: &mut [u32],
    (by, loops): (CombineStep, &ReduceLoops),
) {
    // SAFETY: all vectors lie within the rows; the rest as promised by the caller.
    unsafe {
        let identity = V::splat(f32::from_bits(loops.identity));
        let (mut acc, mut all) = ([identity; N], [identity; N]);
        let whole = len / V::LANES * V::LANES;
        for at in (0..whole).step_by(V::LANES) {
            let mut lanes = [identity; N];
            for i in 0..N {
                lanes[i] = V::load(first.wrapping_offset(i as isize * pitch).add(at).cast());
            }
            combine(by, &mut acc, &lanes);
            if (at / V::LANES + 1).is_multiple_of(DEPTH) {
                combine(by, &mut all, &acc);
                acc = [identity; N];
            }
        }
        combine(by, &mut all, &acc);
        for i in 0..N {
            let mut lanes = [0f32; 16];
            all[i].store(lanes.as_mut_ptr());
            let sum = combine_lanes(by, lanes, V::LANES);
            let rest = first.wrapping_offset(i as isize * pitch).wrapping_add(whole);
            let rest = std::slice::from_raw_parts(rest, len - whole);
            out[i] = combine_two(by, sum, f32::from_bits((loops.fold)(rest))).to_bits();
        }
    }
}

/// The first `n` lanes into one: the upper half onto the lower, again and again.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn combine_lanes(by: CombineStep, mut lanes: [f32; 16], mut n: usize) -> f32 {
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = combine_two(by, lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn combine_two(by: CombineStep, x: f32, y: f32) -> f32 {
    match by {
        CombineStep::Max => max_f32(x, y),
        CombineStep::Min => min_f32(x, y),
        CombineStep::Mul => x * y,
        CombineStep::Add => x + y,
    }
}

/// Columns by vectors; what is left, one by one.
///
/// # Safety
/// As for [`accumulate`]; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn accumulate_vectors<V: Vector>(acc: &mut [u32], rows: (*const u32, isize), n_rows: usize, by: CombineStep) {
    const WIDE: usize = 4;
    let (to, len): (*mut f32, usize) = (acc.as_mut_ptr().cast(), acc.len());
    let row = |r: usize| rows.0.wrapping_offset(r as isize * rows.1).cast::<f32>();
    let mut at = 0;
    // SAFETY: all vectors lie within the rows; the rest as promised by the caller.
    unsafe {
        while at + WIDE * V::LANES <= len {
            let mut sums = [V::splat(0.0); WIDE];
            for i in 0..WIDE {
                sums[i] = V::load(to.add(at + i * V::LANES));
            }
            for r in 0..n_rows {
                let mut lanes = sums;
                for i in 0..WIDE {
                    lanes[i] = V::load(row(r).add(at + i * V::LANES));
                }
                combine(by, &mut sums, &lanes);
            }
            store(sums, to.add(at), false);
            at += WIDE * V::LANES;
        }
        for i in at..len {
            for r in 0..n_rows {
                *to.add(i) = combine_two(by, *to.add(i), *row(r).add(i));
            }
        }
    }
}

/// Vectors into accumulators, in turn.
///
/// # Safety
/// As for the methods of [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn combine<V: Vector, const M: usize, const N: usize>(by: CombineStep, acc: &mut [V; M], v: &[V; N]) {
    // Loops, not closures, here and below: a closure is a function of its own, not compiled for the instruction set.
    macro_rules! each {
        (|$x:ident, $y:ident| $op:expr) => {
            for i in 0..N {
                let ($x, $y) = (acc[i % M], v[i]);
                // SAFETY: as promised by the caller.
                acc[i % M] = unsafe { $op };
            }
        };
    }
    match by {
        CombineStep::Max => each!(|x, y| x.above(y).or_nan(x)),
        CombineStep::Min => each!(|x, y| x.below(y).or_nan(x)),
        CombineStep::Mul => each!(|x, y| x.mul(y)),
        CombineStep::Add => each!(|x, y| x.add(y)),
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($fold:ident, $fold_rows:ident, $accumulate:ident, $features:literal, $vector:ty) => {
        /// # Safety
        /// As for [`fold`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $fold(
            start: Start,
            steps: &[ChainOperand],
            out: *mut u32,
            len: usize,
            by: (CombineStep, &ReduceLoops),
        ) -> u32 {
            // SAFETY: as promised by the caller.
            unsafe { fold_vectors::<$vector, 8>(start, steps, out, len, by) }
        }

        /// # Safety
        /// As for [`fold_rows`], with as many rows as `out` is long; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $fold_rows(rows: (*const u32, isize), len: usize, out: &mut [u32], by: (CombineStep, &ReduceLoops)) {
            // SAFETY: as promised by the caller.
            unsafe {
                match out.len() {
                    ABREAST => fold_rows_vectors::<$vector, ABREAST>(rows, len, out, by),
                    _ => {
                        for (i, out) in out.iter_mut().enumerate() {
                            let row = (rows.0.wrapping_offset(i as isize * rows.1), 0);
                            fold_rows_vectors::<$vector, 1>(row, len, std::slice::from_mut(out), by);
                        }
                    }
                }
            }
        }

        /// # Safety
        /// As for [`accumulate`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $accumulate(acc: &mut [u32], rows: (*const u32, isize), n_rows: usize, by: CombineStep) {
            // SAFETY: as promised by the caller.
            unsafe { accumulate_vectors::<$vector>(acc, rows, n_rows, by) }
        }
    };
}

compiled!(fold_avx512, fold_rows_avx512, accumulate_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16);
compiled!(fold_avx2, fold_rows_avx2, accumulate_avx2, "avx2,fma", F32x8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::chain::ChainOperand;
    use crate::cpu::tile::Val;
    use crate::ops::RegisterStep;

    #[test]
    fn folds_take_in_every_lane_once_and_write_what_they_saw() {
        if !folds() {
            return;
        }
        let isa = crate::ops::isa() as usize;
        let x: Vec<u32> = (0..9000).map(|i| ((i * 37 % 101) as f32 - 50.0).to_bits()).collect();
        let sum = crate::ops::SUM.cpu.f32.expect("it takes floats")[isa];
        let max = crate::ops::MAX.cpu.f32.expect("it takes floats")[isa];
        for n in [1, 2, 31, 32, 63, 100, 128, 255, 256, 257, 300, 1000, 1024, 4100, 9000] {
            let start = Start { lanes: x.as_ptr(), single: false, ahead: 64 };
            let two = 2f32.to_bits();
            let double = [ChainOperand::new(RegisterStep::Mul, false, Some(&Val::one(&two)))];
            let mut out = vec![0; n];
            let numbers = || x[..n].iter().map(|v| f32::from_bits(*v));
            // SAFETY: all lanes are there.
            let (got, greatest) = unsafe {
                (
                    fold(start, &double, out.as_mut_ptr(), n, (CombineStep::Add, &sum)),
                    fold(start, &[], std::ptr::null_mut(), n, (CombineStep::Max, &max)),
                )
            };
            // Small whole numbers: any order gives the same sum.
            assert_eq!(f32::from_bits(got), numbers().map(|v| 2.0 * v).sum::<f32>(), "{n} lanes");
            assert_eq!(f32::from_bits(greatest), numbers().fold(f32::MIN, f32::max), "{n} lanes");
            assert!(out.iter().zip(numbers()).all(|(out, v)| f32::from_bits(*out) == 2.0 * v));
            for at in [0, n / 2, n - 1] {
                let mut x = x[..n].to_vec();
                x[at] = f32::NAN.to_bits();
                let start = Start { lanes: x.as_ptr(), single: false, ahead: 0 };
                // SAFETY: as above.
                let greatest = unsafe { fold(start, &[], std::ptr::null_mut(), n, (CombineStep::Max, &max)) };
                assert!(f32::from_bits(greatest).is_nan(), "NaN at {at} of {n}");
            }
        }
    }

    #[test]
    fn rows_are_folded_side_by_side_as_they_are_alone() {
        if !folds() {
            return;
        }
        let sum = crate::ops::SUM.cpu.f32.expect("it takes floats")[crate::ops::isa() as usize];
        let x: Vec<u32> = (0..19 * 1003).map(|i| ((i * 7919) as f32 * 0.618).sin().to_bits()).collect();
        for (n_rows, len) in [(1, 1003), (8, 1003), (19, 1003), (9, 7), (8, 16), (3, 0)] {
            let (mut all, mut one) = (vec![0; n_rows], [0]);
            // SAFETY: all rows are there.
            unsafe { fold_rows((x.as_ptr(), 1003), len, &mut all, (CombineStep::Add, &sum)) };
            for (r, got) in all.iter().enumerate() {
                let row = &x[r * 1003..][..len];
                // SAFETY: as above.
                unsafe { fold_rows((row.as_ptr(), 0), len, &mut one, (CombineStep::Add, &sum)) };
                let want: f64 = row.iter().map(|v| f32::from_bits(*v) as f64).sum();
                assert_eq!(*got, one[0], "row {r} of {n_rows}");
                assert!((f32::from_bits(*got) as f64 - want).abs() < 1e-5 * (len + 1) as f64, "row {r} of {n_rows}");
            }
        }
    }

    #[test]
    fn rows_are_added_up_column_by_column() {
        if !folds() {
            return;
        }
        let x: Vec<u32> = (0..8 * 300).map(|i| ((i * 37 % 101) as f32 - 50.0).to_bits()).collect();
        for (len, n_rows) in [(1, 8), (63, 3), (64, 8), (65, 1), (300, 8), (257, 7)] {
            let mut acc = vec![1f32.to_bits(); len];
            // SAFETY: all rows are there.
            unsafe { accumulate(&mut acc, (x.as_ptr(), 300), n_rows, CombineStep::Add) };
            for (i, got) in acc.iter().enumerate() {
                let want = (0..n_rows).fold(1.0, |sum, r| sum + f32::from_bits(x[r * 300 + i]));
                assert_eq!(f32::from_bits(*got), want, "column {i} of {len}, {n_rows} rows");
            }
        }
    }
}
