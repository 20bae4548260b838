//! `exp exp2 expm1`, and the double-precision exponentials under `sinh cosh pow`.
//!
//! All reduce in the same way: x = n·ln 2 + r with |r| ≤ ln 2 / 2, eˣ = 2ⁿ·eʳ, where eʳ is a polynomial and 2ⁿ is
//! written straight into the exponent bits.

#[cfg(target_arch = "x86_64")]
use super::poly_of_vectors;
use super::{Level, ROUND, ROUND64, long_poly64, poly};
use core::f32::consts::{LN_2, LOG2_E};

/// ln 2 cut to 15 bits: times an integer of up to 9 bits it is exact even without a fused multiply-add.
const LN2_HI: f32 = 0.693_145_75;
/// ln 2 − `LN2_HI`.
const LN2_LO: f32 = 1.428_606_8e-6;

/// (eʳ − 1 − r) / r² on |r| ≤ 0.3475, error relative to eʳ below 2⁻²⁸.
const EXP_Q: [f32; 5] = [0.5, 0.166_665_33, 0.041_667_245, 0.008_367_62, 0.001_386_348_6];

/// The same quotient fitted for the error relative to eʳ − 1, below 2⁻³¹: one degree more, as eʳ − 1 may be tiny.
const EXPM1_Q: [f32; 6] = [0.5, 0.166_666_66, 0.041_666_493, 0.008_333_543, 0.001_393_238, 0.000_197_643_87];

/// (2ʳ − 1) / r on |r| ≤ ½, error relative to 2ʳ below 2⁻²⁸. The first coefficient came out as ln 2 to the last bit.
const EXP2_Q: [f32; 6] = [LN_2, 0.240_226_48, 0.055_503_6, 0.009_618_506, 0.001_339_080_6, 0.000_153_264_71];

/// As `EXPM1_Q` in double precision, on |r| ≤ 0.3467, error below 2⁻³⁷.
const EXPM1_Q64: [f64; 7] = [
    0.5000000000105277,
    0.16666666754070364,
    0.04166666595320799,
    0.008333289076285676,
    0.0013888985245386367,
    0.00019904892946748484,
    2.4796376942161052e-05,
];

/// As `EXP2_Q` in double precision, error below 2⁻³⁴.
const EXP2_Q64: [f64; 7] = [
    0.6931471807044894,
    0.24022651066581815,
    0.05550410366079326,
    0.009618038129778456,
    0.0013333934997514303,
    0.00015466756914951274,
    1.5196168547654049e-05,
];

/// eˣ.
#[inline(always)]
pub fn exp<L: Level>(x: f32) -> f32 {
    // Past these the result is inf or 0 anyway; NaN fails both comparisons and goes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let (t, r) = reduce::<L>(x);
    let p = L::fma(r * r, poly::<L, 5>(r, EXP_Q), r) + 1.0;
    scale_wide(p, t)
}

/// [`exp`] of several vectors at once: the same steps, the same bits. Each step is taken of all vectors before the next, because one
/// vector's steps wait for each other.
///
/// # Safety
/// As for the methods of [`Vector`](super::Vector).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn exp_of_vectors<V: super::Vector, const N: usize>(x: [V; N]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let x = each!(N, |i| V::splat(-104.0).above(V::splat(89.0).below(x[i])));
        let (t, r) = reduce_vectors(x);
        let p = exp_of_reduced(r);
        each!(N, |i| p[i].scale(t[i]))
    }
}

/// [`exp_of_vectors`] of one vector.
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn exp_of_vector<V: super::Vector>(x: V) -> V {
    // SAFETY: as promised by the caller.
    unsafe { exp_of_vectors([x])[0] }
}

/// [`reduce`] of several vectors.
///
/// # Safety
/// As for the methods of [`Vector`](super::Vector).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn reduce_vectors<V: super::Vector, const N: usize>(x: [V; N]) -> ([V; N], [V; N]) {
    // SAFETY: as promised by the caller.
    unsafe {
        let t = each!(N, |i| x[i].fma(V::splat(LOG2_E), V::splat(ROUND)));
        let n = each!(N, |i| t[i].sub(V::splat(ROUND)));
        let r = each!(N, |i| n[i].fma(V::splat(-LN2_HI), x[i]));
        (t, each!(N, |i| n[i].fma(V::splat(-LN2_LO), r[i])))
    }
}

/// eʳ of what [`reduce`] leaves.
///
/// # Safety
/// As for the methods of [`Vector`](super::Vector).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn exp_of_reduced<V: super::Vector, const N: usize>(r: [V; N]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let q = poly_of_vectors(r, EXP_Q);
        let p = each!(N, |i| r[i].mul(r[i]).fma(q[i], r[i]));
        each!(N, |i| p[i].add(V::splat(1.0)))
    }
}

/// [`exp_of_negative`] of several vectors.
///
/// # Safety
/// As for the methods of [`Vector`](super::Vector).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn exp_of_negative_vectors<V: super::Vector, const N: usize>(x: [V; N]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let (t, r) = reduce_vectors(x);
        let p = exp_of_reduced(r);
        each!(N, |i| p[i].scale(t[i]))
    }
}

/// 2ˣ.
#[inline(always)]
pub fn exp2<L: Level>(x: f32) -> f32 {
    let x = if x > 128.0 { 128.0 } else { x };
    let x = if x < -150.0 { -150.0 } else { x };
    let t = x + ROUND;
    let r = x - (t - ROUND);
    let p = L::fma(r, poly::<L, 6>(r, EXP2_Q), 1.0);
    scale_wide(p, t)
}

/// eˣ − 1, without the cancellation near 0.
#[inline(always)]
pub fn expm1<L: Level>(x: f32) -> f32 {
    let c = if x > 89.0 { 89.0 } else { x };
    let c = if c < -18.0 { -18.0 } else { c };
    let (t, r) = reduce::<L>(c);
    let p = L::fma(r * r, poly::<L, 6>(r, EXPM1_Q), r);
    // 2ⁿ·eʳ − 1 = 2·(h·p + h − ½) with h = 2ⁿ⁻¹, which unlike 2ⁿ is finite for the largest n, 128.
    let h = f32::from_bits((t.to_bits() << 23).wrapping_add(126 << 23));
    let y = 2.0 * L::fma(h, p, h - 0.5);
    // Below 2⁻²⁵ the answer is x; halving a subnormal above would have lost its last bit, and −0 its sign.
    if x.abs() < 3.0e-8 { x } else { y }
}

/// x = n·ln 2 + r. Returns n with [`ROUND`] still added (its low bits are the integer) and r.
#[inline(always)]
fn reduce<L: Level>(x: f32) -> (f32, f32) {
    let t = L::fma(x, LOG2_E, ROUND);
    let n = t - ROUND;
    (t, L::fma(n, -LN2_LO, L::fma(n, -LN2_HI, x)))
}

/// eˣ for −87 ≤ x ≤ 0, where neither overflow nor a subnormal can occur.
#[inline(always)]
pub(super) fn exp_of_negative<L: Level>(x: f32) -> f32 {
    let (t, r) = reduce::<L>(x);
    let p = L::fma(r * r, poly::<L, 5>(r, EXP_Q), r) + 1.0;
    // The bits of `ROUND` itself leave at the top of the shift.
    p * f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23))
}

/// p · 2ⁿ from n + [`ROUND`], for −150 ≤ n ≤ 128, in two steps: 2ⁿ itself may be neither finite nor normal. The
/// first step is exact, so a subnormal result is rounded once.
#[inline(always)]
fn scale_wide(p: f32, t: f32) -> f32 {
    let n = (t.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let lo = f32::from_bits((half.wrapping_add(127) as u32) << 23);
    let hi = f32::from_bits((n.wrapping_sub(half).wrapping_add(127) as u32) << 23);
    p * lo * hi
}

/// (2ⁿ, eʳ − 1) with x = n·ln 2 + r, for |x| ≤ 700 in double precision. One constant for ln 2 is enough: n·ln 2
/// is off by 2⁻⁴⁷ at most, far below a bit of an `f32`.
#[inline(always)]
pub(super) fn expm1_parts64<L: Level>(x: f64) -> (f64, f64) {
    let t = L::fma64(x, core::f64::consts::LOG2_E, ROUND64);
    let n = t - ROUND64;
    let r = L::fma64(n, -core::f64::consts::LN_2, x);
    (pow2_64(t), L::fma64(r * r, long_poly64::<L, 7>(r, EXPM1_Q64), r))
}

/// 2ˣ for |x| ≤ 1000 in double precision.
#[inline(always)]
pub(super) fn exp2_64<L: Level>(x: f64) -> f64 {
    let t = x + ROUND64;
    let r = x - (t - ROUND64);
    let scale = pow2_64(t);
    L::fma64(scale * r, long_poly64::<L, 7>(r, EXP2_Q64), scale)
}

/// 2ⁿ from n + [`ROUND64`].
#[inline(always)]
fn pow2_64(t: f64) -> f64 {
    f64::from_bits((t.to_bits() << 52).wrapping_add(1023 << 52))
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check};
    use super::super::{Fused, MulThenAdd};
    use super::*;

    #[test]
    fn exp_holds_its_bound() {
        let known = [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (89.0, INF), (-104.0, 0.0)];
        check("exp", exp::<Fused>, exp::<MulThenAdd>, f64::exp, &known, 1.1);
    }

    #[test]
    fn exp_of_minus_103_is_a_subnormal() {
        assert_eq!(exp::<MulThenAdd>(-103.0).to_bits(), 1);
    }

    #[test]
    fn exp2_holds_its_bound() {
        let known = [(0.0, 1.0), (10.0, 1024.0), (-149.0, 1e-45), (-150.0, 0.0), (128.0, INF), (-INF, 0.0), (NAN, NAN)];
        check("exp2", exp2::<Fused>, exp2::<MulThenAdd>, f64::exp2, &known, 1.1);
    }

    #[test]
    fn expm1_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (-INF, -1.0), (INF, INF), (NAN, NAN), (1e-45, 1e-45), (-1e-45, -1e-45)];
        check("expm1", expm1::<Fused>, expm1::<MulThenAdd>, f64::exp_m1, &known, 1.5);
    }
}
