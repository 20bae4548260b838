//! `log log2 log10 log1p`, and the double-precision logarithm under `pow asinh acosh atanh`.
//!
//! All reduce in the same way: x = 2ᵉ·(1 + f) with 1 + f in [√½, √2), log x = e·log 2 + log(1 + f), where
//! ln(1 + f) = f + f²·Q(f). Keeping f apart keeps its bits: it is exact, and near x = 1 it is the result.

use super::{Level, long_poly64, poly};

/// √½, the lower end of the reduced mantissa, as bits.
const SQRT_HALF: u32 = 0x3f35_04f3;
const SQRT_HALF64: u64 = 0x3fe6_a09e_667f_3bcd;

/// ln 2 cut to 15 bits, so that e·`LN2_HI` is exact, and what was cut.
const LN2_HI: f32 = 0.693_145_75;
const LN2_LO: f32 = 1.428_606_8e-6;
/// The same for log₁₀ 2.
const LG2_HI: f32 = 0.301_025_4;
const LG2_LO: f32 = 4.605_039e-6;
/// log₂ e − 1 and log₁₀ e − ½: what is left of the factors once a product with f is exact.
const LOG2_E_REST: f32 = 0.442_695_05;
const LOG10_E_REST: f32 = -0.065_705_52;

/// (ln(1+f) − f) / f² on [√½ − 1, √2 − 1], error relative to ln(1+f) below 2⁻²⁷·⁸.
const LN_Q: [f32; 9] = [
    -0.499_999_88,
    0.333_333_25,
    -0.250_016_12,
    0.200_020_16,
    -0.166_083_22,
    0.141_804_4,
    -0.132_484_56,
    0.129_163_7,
    -0.076_226_52,
];

/// The same in double precision, error below 2⁻³⁸.
const LN_Q64: [f64; 13] = [
    -0.49999999993769445,
    0.33333333425238243,
    -0.2500000200632228,
    0.19999987380827805,
    -0.16666490497307032,
    0.1428620896768496,
    -0.12506611039089835,
    0.11105780021819767,
    -0.09880576163444887,
    0.09030001899293912,
    -0.09317661089803093,
    0.09174531459056763,
    -0.04841081825351686,
];

/// ln x.
#[inline(always)]
pub fn log<L: Level>(x: f32) -> f32 {
    let (e, f) = split(x);
    nan_unless(x >= 0.0, assemble_ln::<L>(e, f))
}

/// log₂ x.
#[inline(always)]
pub fn log2<L: Level>(x: f32) -> f32 {
    use core::f32::consts::LOG2_E;
    let (e, f) = split(x);
    let t = f * f * poly::<L, 9>(f, LN_Q);
    // (f + t)·log₂ e, with f·1 taken out and added last, so that near x = 1 only that step rounds visibly.
    let y = f + L::fma(f, LOG2_E_REST, t * LOG2_E);
    nan_unless(x >= 0.0, e + y)
}

/// log₁₀ x.
#[inline(always)]
pub fn log10<L: Level>(x: f32) -> f32 {
    use core::f32::consts::LOG10_E;
    let (e, f) = split(x);
    let t = f * f * poly::<L, 9>(f, LN_Q);
    // As in `log2`, with f·½ taken out.
    let small = L::fma(e, LG2_LO, L::fma(f, LOG10_E_REST, t * LOG10_E));
    nan_unless(x >= 0.0, L::fma(e, LG2_HI, L::fma(f, 0.5, small)))
}

/// ln(1 + x), without the loss of digits near 0.
#[inline(always)]
pub fn log1p<L: Level>(x: f32) -> f32 {
    let u = 1.0 + x;
    // What the addition rounded away; scaled like u's mantissa it is put back into f.
    let lost = x - (u - 1.0);
    let (e_int, f) = split_normal(u);
    // 2¹⁻ᵉ rather than 2⁻ᵉ, because for the largest e, 128, its bits are those of 0: nothing was lost there.
    let scale = f32::from_bits((128u32 << 23).wrapping_sub((e_int as u32) << 23));
    let f = f + lost * scale * 0.5;
    let y = nan_unless(x >= -1.0, assemble_ln::<L>(e_int as f32, f));
    let y = if x == -1.0 { f32::NEG_INFINITY } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    // ln(1 + x) = x to the last bit, −0 and subnormals included.
    if x.abs() < 3.0e-8 { x } else { y }
}

/// e·ln 2 + ln(1 + f).
#[inline(always)]
fn assemble_ln<L: Level>(e: f32, f: f32) -> f32 {
    let t = f * f * poly::<L, 9>(f, LN_Q);
    L::fma(e, LN2_HI, f + L::fma(e, LN2_LO, t))
}

/// x = 2ᵉ·(1 + f) for x ≥ 0. An e of ∓inf stands for 0 and inf: the sums it goes into are then right of themselves.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    // A subnormal is first made normal by 2²³.
    let tiny = x < f32::MIN_POSITIVE;
    let (e, f) = split_normal(x * if tiny { 8_388_608.0 } else { 1.0 });
    let e = e as f32 - if tiny { 23.0 } else { 0.0 };
    let e = if x == 0.0 { f32::NEG_INFINITY } else { e };
    (if x == f32::INFINITY { x } else { e }, f)
}

#[inline(always)]
fn split_normal(x: f32) -> (i32, f32) {
    let e = (x.to_bits().wrapping_sub(SQRT_HALF) as i32) >> 23;
    let m = f32::from_bits(x.to_bits().wrapping_sub((e as u32) << 23));
    (e, m - 1.0)
}

/// All bits set is a NaN. As a mask this is cheaper than a select, and LLVM leaves it alone, where it would join a
/// chain of selects on one x into a costly test for its class.
#[inline(always)]
fn nan_unless(valid: bool, y: f32) -> f32 {
    f32::from_bits(y.to_bits() | if valid { 0 } else { u32::MAX })
}

/// As [`nan_unless`], in double precision.
#[inline(always)]
pub(super) fn nan64_unless(valid: bool, y: f64) -> f64 {
    f64::from_bits(y.to_bits() | if valid { 0 } else { u64::MAX })
}

/// (e, ln(1 + f)) with x = 2ᵉ·(1 + f), for positive, normal and finite x.
#[inline(always)]
pub(super) fn ln_parts64<L: Level>(x: f64) -> (f64, f64) {
    // The exponent keeps its bias of 1023, so that the shift is logical (AVX2 has no arithmetic one for 64 bits),
    // and becomes an `f64` by being set into the mantissa of 2⁵² (nor can AVX2 convert 64-bit integers).
    let biased = x.to_bits().wrapping_sub(SQRT_HALF64).wrapping_add(1023 << 52) >> 52;
    let e = f64::from_bits(biased | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 1023.0);
    let m = f64::from_bits(x.to_bits().wrapping_sub(biased << 52).wrapping_add(1023 << 52));
    let f = m - 1.0;
    (e, L::fma64(f * f, long_poly64::<L, 13>(f, LN_Q64), f))
}

/// ln x for positive, normal and finite x, in double precision.
#[inline(always)]
pub(super) fn ln64<L: Level>(x: f64) -> f64 {
    let (e, ln_m) = ln_parts64::<L>(x);
    L::fma64(e, core::f64::consts::LN_2, ln_m)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check};
    use super::super::{Fused, MulThenAdd};
    use super::*;

    const EDGES: [(f32, f32); 7] =
        [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)];

    #[test]
    fn log_holds_its_bound() {
        check("log", log::<Fused>, log::<MulThenAdd>, f64::ln, &EDGES, 1.0);
    }

    #[test]
    fn log2_holds_its_bound() {
        check("log2", log2::<Fused>, log2::<MulThenAdd>, f64::log2, &EDGES, 1.6);
        for e in -149..128 {
            assert_eq!(log2::<MulThenAdd>(2f64.powi(e) as f32), e as f32, "powers of two are exact");
        }
    }

    #[test]
    fn log10_holds_its_bound() {
        check("log10", log10::<Fused>, log10::<MulThenAdd>, f64::log10, &EDGES, 1.5);
    }

    #[test]
    fn log1p_holds_its_bound() {
        let known = [
            (0.0, 0.0),
            (-0.0, -0.0),
            (-1.0, -INF),
            (-1.5, NAN),
            (INF, INF),
            (-INF, NAN),
            (NAN, NAN),
            (1e-45, 1e-45),
            (f32::MAX, 88.722_84),
        ];
        check("log1p", log1p::<Fused>, log1p::<MulThenAdd>, f64::ln_1p, &known, 1.6);
    }
}
