//! Lanes from and to what is stored, and from one type to another. Every lane is 32 bits; f16, bf16, u8 and bool are
//! converted a tile at a time on the way in and out. Knows dtypes; nothing of accesses or instructions.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::nontemporal;
use crate::dtype::{DType, Lane};
use crate::ops::math::{F32x4, Floats};
#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16};
use crate::ops::{Isa, isa};

/// An element as it is stored.
pub trait StoredElem: Copy {
    /// As a lane.
    fn lane(self) -> u32;
    /// From a lane, rounding floats.
    fn from_lane(lane: u32) -> Self;
    /// Consecutive elements to lanes.
    fn to_lanes(from: &[Self], to: &mut [u32]);
    /// Every second element from an address on, to lanes.
    ///
    /// # Safety
    /// `2 · to.len() − 1` elements are there from `from` on, aligned, if `to` is not empty.
    unsafe fn every_second(from: *const Self, to: &mut [u32]) {
        // SAFETY: as promised by the caller.
        to.iter_mut().enumerate().for_each(|(i, lane)| *lane = unsafe { *from.add(2 * i) }.lane());
    }
    /// Lanes to consecutive elements.
    fn from_lanes(from: &[u32], to: &mut [Self]);
    /// The same, past the caches.
    fn stream_lanes(from: &[u32], to: &mut [Self]) {
        let mut part = [Self::from_lane(0); 512];
        for (from, to) in from.chunks(part.len()).zip(to.chunks_mut(part.len())) {
            let part = &mut part[..from.len()];
            Self::from_lanes(from, part);
            nontemporal::copy(part, to);
        }
    }
}

impl StoredElem for u32 {
    fn lane(self) -> u32 {
        self
    }
    fn from_lane(lane: u32) -> u32 {
        lane
    }
    fn to_lanes(from: &[u32], to: &mut [u32]) {
        to.copy_from_slice(from);
    }
    fn from_lanes(from: &[u32], to: &mut [u32]) {
        to.copy_from_slice(from);
    }
    unsafe fn every_second(from: *const u32, to: &mut [u32]) {
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => every_second_avx512(from.cast(), to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => every_second_avx2(from.cast(), to),
                _ => every_second::<F32x4>(from.cast(), to),
            }
        }
    }
    fn stream_lanes(from: &[u32], to: &mut [u32]) {
        nontemporal::copy(from, to);
    }
}

/// Every second of some 32-bit elements, moved as floats, which keeps their bits.
///
/// # Safety
/// The processor has the instructions of `V`, for which the caller is compiled; `2 · to.len() − 1` elements are there
/// from `from` on, if `to` is not empty.
#[inline(always)]
unsafe fn every_second<V: Floats>(from: *const f32, to: &mut [u32]) {
    let n_vectors = to.len() / V::LANES;
    // SAFETY: as promised by the caller; vectors end with the last element that is wanted of them.
    unsafe {
        for at in (0..n_vectors * V::LANES).step_by(V::LANES) {
            V::load_even(from.add(2 * at)).store(to.as_mut_ptr().add(at).cast());
        }
        for (at, lane) in to.iter_mut().enumerate().skip(n_vectors * V::LANES) {
            *lane = (*from.add(2 * at)).to_bits();
        }
    }
}

/// The loop above, compiled for one instruction set.
macro_rules! every_second_on {
    ($name:ident, $features:literal, $vector:ty) => {
        /// # Safety
        /// As for [`every_second`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(from: *const f32, to: &mut [u32]) {
            // SAFETY: as promised by the caller.
            unsafe { every_second::<$vector>(from, to) }
        }
    };
}

every_second_on!(every_second_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16);
every_second_on!(every_second_avx2, "avx2,fma", F32x8);

impl StoredElem for u8 {
    fn lane(self) -> u32 {
        self as u32
    }
    fn from_lane(lane: u32) -> u8 {
        lane as u8
    }
    fn to_lanes(from: &[u8], to: &mut [u32]) {
        bytes_to_lanes(from, to);
    }
    fn from_lanes(from: &[u32], to: &mut [u8]) {
        lanes_to_bytes(from, to);
    }
}

impl StoredElem for f16 {
    fn lane(self) -> u32 {
        self.to_f32().to_bits()
    }
    fn from_lane(lane: u32) -> f16 {
        f16::from_f32(f32::from_bits(lane))
    }
    fn to_lanes(from: &[f16], to: &mut [u32]) {
        #[cfg(target_arch = "x86_64")]
        if isa() == Isa::Avx512 {
            // SAFETY: `isa` has found it.
            return unsafe { f16_to_lanes(from, to) };
        }
        from.convert_to_f32_slice(as_floats_mut(to));
    }
    fn from_lanes(from: &[u32], to: &mut [f16]) {
        #[cfg(target_arch = "x86_64")]
        if isa() == Isa::Avx512 {
            // SAFETY: `isa` has found it.
            return unsafe { lanes_to_f16(from, to) };
        }
        to.convert_from_f32_slice(as_floats(from));
    }
}

impl StoredElem for bf16 {
    fn lane(self) -> u32 {
        (self.to_bits() as u32) << 16
    }
    fn from_lane(lane: u32) -> bf16 {
        bf16::from_bits(round_bf16(lane) as u16)
    }
    fn to_lanes(from: &[bf16], to: &mut [u32]) {
        bf16_to_lanes(from, to);
    }
    fn from_lanes(from: &[u32], to: &mut [bf16]) {
        lanes_to_bf16(from, to);
    }
}

/// Calls `$f` with the type that elements of a dtype are stored as.
macro_rules! with_stored {
    ($dtype:expr, $f:ident :: <_> ($($arg:expr),* $(,)?)) => {
        match $dtype {
            $crate::dtype::DType::F32 | $crate::dtype::DType::I32 | $crate::dtype::DType::U32 => $f::<u32>($($arg),*),
            $crate::dtype::DType::F16 => $f::<half::f16>($($arg),*),
            $crate::dtype::DType::BF16 => $f::<half::bf16>($($arg),*),
            $crate::dtype::DType::U8 | $crate::dtype::DType::Bool => $f::<u8>($($arg),*),
        }
    };
}
pub(super) use with_stored;

/// `y[i]` = `x[i]` as `to`; the lanes of `x` are of type `from`. See `InstOp::Cast` for what that means.
pub fn cast(from: DType, to: DType, x: &[u32], y: &mut [u32]) {
    match (from.lane(), to) {
        (Lane::F32, DType::F32) => y.copy_from_slice(x),
        (Lane::I32, DType::F32) => i32_to_f32(x, y),
        (Lane::U32, DType::F32) => u32_to_f32(x, y),
        (_, DType::F16) | (_, DType::BF16) => {
            cast(from, DType::F32, x, y);
            if to == DType::F16 { round_to_f16(y) } else { round_to_bf16(y) }
        }
        (Lane::F32, DType::I32) => f32_to_i32(x, y),
        (Lane::F32, DType::U32) => f32_to_u32(x, y),
        (Lane::F32, DType::U8) => f32_to_u8(x, y),
        (Lane::F32, DType::Bool) => f32_to_bool(x, y),
        (_, DType::I32 | DType::U32) => y.copy_from_slice(x),
        (_, DType::U8) => low_byte(x, y),
        (_, DType::Bool) => int_to_bool(x, y),
    }
}

/// Whether casting changes no bits of a lane.
pub fn cast_is_free(from: DType, to: DType) -> bool {
    let widens = matches!((from, to), (DType::U8 | DType::Bool, DType::U8) | (DType::Bool, DType::Bool));
    match to {
        DType::F32 => from.is_float(),
        DType::F16 | DType::BF16 => false,
        DType::I32 | DType::U32 => !from.is_float(),
        DType::U8 | DType::Bool => widens,
    }
}

fn round_to_f16(y: &mut [u32]) {
    let mut halves = [f16::ZERO; 256];
    for chunk in y.chunks_mut(halves.len()) {
        let halves = &mut halves[..chunk.len()];
        f16::from_lanes(chunk, halves);
        f16::to_lanes(halves, chunk);
    }
}

fn round_to_bf16(y: &mut [u32]) {
    round_bf16_in_place(y);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn f16_to_lanes(from: &[f16], to: &mut [u32]) {
    use std::arch::x86_64::*;
    let (from, from_rest) = from.as_chunks::<16>();
    let (to, to_rest) = to.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: both are sixteen elements long.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().cast(), _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast()))) };
    }
    from_rest.iter().zip(to_rest).for_each(|(x, y)| *y = x.lane());
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn lanes_to_f16(from: &[u32], to: &mut [f16]) {
    use std::arch::x86_64::*;
    let (from, from_rest) = from.as_chunks::<16>();
    let (to, to_rest) = to.as_chunks_mut::<16>();
    for (from, to) in from.iter().zip(to) {
        // SAFETY: both are sixteen elements long.
        unsafe {
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm512_loadu_ps(from.as_ptr().cast()));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), halves);
        }
    }
    from_rest.iter().zip(to_rest).for_each(|(x, y)| *y = f16::from_lane(*x));
}

/// The upper 16 bits of the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
fn round_bf16(bits: u32) -> u32 {
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }
}

fn as_floats(lanes: &[u32]) -> &[f32] {
    // SAFETY: any 32 bits are an f32.
    unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len()) }
}

fn as_floats_mut(lanes: &mut [u32]) -> &mut [f32] {
    // SAFETY: any 32 bits are an f32, and any f32 is 32 bits.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len()) }
}

/// Compiles each loop for every instruction set and calls the best.
macro_rules! loops {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $body:block)*) => {
        $(
            fn $name($($arg: $type),*) {
                match isa() {
                    Isa::Baseline => baseline::$name($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: `isa` has found it.
                    Isa::Avx2 => unsafe { avx2::$name($($arg),*) },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Isa::Avx512 => unsafe { avx512::$name($($arg),*) },
                    #[cfg(not(target_arch = "x86_64"))]
                    _ => baseline::$name($($arg),*),
                }
            }
        )*
        mod baseline {
            use super::*;
            $(#[inline(always)] pub fn $name($($arg: $type),*) $body)*
        }
        #[cfg(target_arch = "x86_64")]
        mod avx2 {
            use super::*;
            $(#[target_feature(enable = "avx2,fma")] pub fn $name($($arg: $type),*) { baseline::$name($($arg),*) })*
        }
        #[cfg(target_arch = "x86_64")]
        mod avx512 {
            use super::*;
            $(#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
            pub fn $name($($arg: $type),*) { baseline::$name($($arg),*) })*
        }
    };
}

// Each counts by hand: a closure would not be compiled for the instruction set of the function around it.
loops! {
    fn bytes_to_lanes(x: &[u8], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = x[i] as u32; }
    }
    fn lanes_to_bytes(x: &[u32], y: &mut [u8]) {
        for i in 0..x.len().min(y.len()) { y[i] = x[i] as u8; }
    }
    fn bf16_to_lanes(x: &[bf16], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = (x[i].to_bits() as u32) << 16; }
    }
    fn lanes_to_bf16(x: &[u32], y: &mut [bf16]) {
        for i in 0..x.len().min(y.len()) { y[i] = bf16::from_bits(round_bf16(x[i]) as u16); }
    }
    fn round_bf16_in_place(y: &mut [u32]) {
        for i in 0..y.len() { y[i] = round_bf16(y[i]) << 16; }
    }
    fn i32_to_f32(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = (x[i] as i32 as f32).to_bits(); }
    }
    fn u32_to_f32(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = (x[i] as f32).to_bits(); }
    }
    fn f32_to_i32(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = f32::from_bits(x[i]) as i32 as u32; }
    }
    fn f32_to_u32(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = f32::from_bits(x[i]) as u32; }
    }
    fn f32_to_u8(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = f32::from_bits(x[i]) as u8 as u32; }
    }
    fn f32_to_bool(x: &[u32], y: &mut [u32]) {
        // Both zeros are false; NaN is true.
        for i in 0..x.len().min(y.len()) { y[i] = (x[i] << 1 != 0) as u32; }
    }
    fn int_to_bool(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = (x[i] != 0) as u32; }
    }
    fn low_byte(x: &[u32], y: &mut [u32]) {
        for i in 0..x.len().min(y.len()) { y[i] = x[i] & 0xff; }
    }
    fn select_vv(cond: &[u32], a: &[u32], b: &[u32], y: &mut [u32]) {
        let n = cond.len();
        let (a, b, y) = (&a[..n], &b[..n], &mut y[..n]);
        for i in 0..n { y[i] = if cond[i] != 0 { a[i] } else { b[i] }; }
    }
    fn select_vs(cond: &[u32], a: &[u32], b: u32, y: &mut [u32]) {
        let n = cond.len();
        let (a, y) = (&a[..n], &mut y[..n]);
        for i in 0..n { y[i] = if cond[i] != 0 { a[i] } else { b }; }
    }
    fn select_sv(cond: &[u32], a: u32, b: &[u32], y: &mut [u32]) {
        let n = cond.len();
        let (b, y) = (&b[..n], &mut y[..n]);
        for i in 0..n { y[i] = if cond[i] != 0 { a } else { b[i] }; }
    }
    fn select_ss(cond: &[u32], a: u32, b: u32, y: &mut [u32]) {
        let n = cond.len();
        let y = &mut y[..n];
        for i in 0..n { y[i] = if cond[i] != 0 { a } else { b }; }
    }
}

/// `y[i] = if cond[i] != 0 { a[i] } else { b[i] }`; `a` and `b` may be a single lane each.
pub fn select(cond: &[u32], a: &[u32], b: &[u32], y: &mut [u32]) {
    match (a.len() == y.len(), b.len() == y.len()) {
        (true, true) => select_vv(cond, a, b, y),
        (true, false) => select_vs(cond, a, b[0], y),
        (false, true) => select_sv(cond, a[0], b, y),
        (false, false) => select_ss(cond, a[0], b[0], y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: DType, to: DType, pairs: &[(f64, f64)]) {
        // Long enough that vector code and its rest both run.
        let x: Vec<u32> = (0..37).map(|i| from.lane_bits(pairs[i % pairs.len()].0)).collect();
        let expect: Vec<u32> = (0..37).map(|i| to.lane_bits(pairs[i % pairs.len()].1)).collect();
        let mut y = vec![0; 37];
        cast(from, to, &x, &mut y);
        assert_eq!(y, expect, "{from} to {to}");
    }

    #[test]
    fn casts_saturate_wrap_and_round() {
        check(
            DType::F32,
            DType::I32,
            &[(1.9, 1.0), (-1.9, -1.0), (f64::NAN, 0.0), (1e20, i32::MAX as f64), (-1e20, i32::MIN as f64)],
        );
        check(DType::F32, DType::U32, &[(-3.0, 0.0), (4e9, 4e9), (f64::INFINITY, u32::MAX as f64)]);
        check(DType::F32, DType::U8, &[(300.0, 255.0), (-1.0, 0.0), (7.5, 7.0)]);
        check(DType::F32, DType::Bool, &[(0.0, 0.0), (-0.0, 0.0), (f64::NAN, 1.0), (1e-40, 1.0)]);
        check(DType::I32, DType::F32, &[(-5.0, -5.0), (16777217.0, 16777216.0)]);
        check(DType::U32, DType::F32, &[(4294967295.0, 4294967296.0)]);
        check(DType::I32, DType::U8, &[(257.0, 1.0), (-1.0, 255.0)]);
        check(DType::I32, DType::Bool, &[(-7.0, 1.0), (0.0, 0.0)]);
        check(DType::F32, DType::F16, &[(1.0004, 1.0), (70000.0, f64::INFINITY), (-2.5, -2.5)]);
        check(DType::F32, DType::BF16, &[(1.0 + 1.0 / 256.0, 1.0), (3.0, 3.0), (f64::NEG_INFINITY, f64::NEG_INFINITY)]);
    }

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1664525).wrapping_add(1013904223);
            let x = f32::from_bits(bits);
            let (ours, theirs) = (bf16::from_lane(bits), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x}");
        }
    }
}
