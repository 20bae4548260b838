//! `sin cos tan`.
//!
//! x = n·π/2 + r with |r| ≤ π/4; the two low bits of n say which of ±sin r, ±cos r it is. The reduction is done in
//! double precision, which serves both levels and keeps r right where x is close to a multiple of π/2; the rest
//! stays there, as converting costs as much as computing. It holds up to [`LIMIT`]; beyond, the caller replaces the result by a `_slow` one, which is right for every `f32`.

use super::{Level, ROUND64, poly64};

/// Up to here n has at most 20 bits, and n·`PIO2_HI` is exact without a fused multiply-add.
const LIMIT: f32 = 1_048_576.0;

/// π/2 cut to 33 bits, and what was cut.
const PIO2_HI: f64 = 1.5707963267341256;
const PIO2_LO: f64 = 6.077100506506192e-11;

/// (sin r − r) / r³ in r², |r| ≤ π/4, relative error below 2⁻³⁷.
const SIN_S: [f64; 4] = [-0.1666666664077203, 0.008333329301980342, -0.00019839311363168083, 2.718113097189416e-06];

/// (cos r − 1) / r² in r², |r| ≤ π/4, relative error below 2⁻³³.
const COS_C: [f64; 4] = [-0.4999999969423006, 0.04166662032906862, -0.001388668075771569, 2.438348330647646e-05];

/// Whether `sin`, `cos` and `tan` cannot take x and the caller must use `sin_slow`, `cos_slow`, `tan_slow`.
#[inline(always)]
pub fn trig_needs_slow(x: f32) -> bool {
    x.abs() > LIMIT
}

/// sin x for |x| ≤ 2²⁰; see [`trig_needs_slow`].
#[inline(always)]
pub fn sin<L: Level>(x: f32) -> f32 {
    // On |x|, with the sign put back last: r + r³·S would turn −0 into +0.
    flip_like(sin_from_quadrant::<L>(x.abs(), 0), x)
}

/// cos x for |x| ≤ 2²⁰; see [`trig_needs_slow`].
#[inline(always)]
pub fn cos<L: Level>(x: f32) -> f32 {
    // cos x = sin(x + π/2): one quadrant further.
    sin_from_quadrant::<L>(x.abs(), 1)
}

/// tan x for |x| ≤ 2²⁰; see [`trig_needs_slow`].
#[inline(always)]
pub fn tan<L: Level>(x: f32) -> f32 {
    let (n, r) = reduce::<L>(x.abs());
    let (s, c) = sin_cos::<L>(r);
    let odd = n & 1 != 0;
    flip_like((if odd { -c } else { s } / if odd { s } else { c }) as f32, x)
}

/// sin x for every x, one at a time.
#[inline(always)]
pub fn sin_slow(x: f32) -> f32 {
    libm::sin(x as f64) as f32
}

/// cos x for every x, one at a time.
#[inline(always)]
pub fn cos_slow(x: f32) -> f32 {
    libm::cos(x as f64) as f32
}

/// tan x for every x, one at a time.
#[inline(always)]
pub fn tan_slow(x: f32) -> f32 {
    libm::tan(x as f64) as f32
}

/// (n, r) with x = n·π/2 + r, for 0 ≤ x ≤ [`LIMIT`]; r is NaN when x is NaN or inf. Only the low bits of n are
/// meaningful; it is as wide as r, so that choices it makes between doubles need no conversion.
#[inline(always)]
fn reduce<L: Level>(x: f32) -> (u64, f64) {
    let x = x as f64;
    let t = L::fma64(x, core::f64::consts::FRAC_2_PI, ROUND64);
    let n = t - ROUND64;
    (t.to_bits(), L::fma64(n, -PIO2_LO, L::fma64(n, -PIO2_HI, x)))
}

/// (sin r, cos r) for |r| ≤ π/4.
#[inline(always)]
fn sin_cos<L: Level>(r: f64) -> (f64, f64) {
    let z = r * r;
    (L::fma64(r * z, poly64::<L, 4>(z, SIN_S), r), L::fma64(z, poly64::<L, 4>(z, COS_C), 1.0))
}

/// sin(x + quadrant·π/2): sin r, cos r, −sin r, −cos r for n = 0, 1, 2, 3 modulo 4.
#[inline(always)]
fn sin_from_quadrant<L: Level>(x: f32, quadrant: u64) -> f32 {
    let (n, r) = reduce::<L>(x);
    let n = n.wrapping_add(quadrant);
    let (s, c) = sin_cos::<L>(r);
    let y = if n & 1 != 0 { c } else { s };
    f64::from_bits(y.to_bits() ^ (n & 2) << 62) as f32
}

/// y, negated where x is negative.
#[inline(always)]
fn flip_like(y: f32, x: f32) -> f32 {
    f32::from_bits(y.to_bits() ^ (x.to_bits() & 0x8000_0000))
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check};
    use super::super::{Fused, MulThenAdd};
    use super::*;

    fn patched(fast: fn(f32) -> f32, slow: fn(f32) -> f32) -> impl Fn(f32) -> f32 {
        move |x| if trig_needs_slow(x) { slow(x) } else { fast(x) }
    }

    #[test]
    fn sin_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (-1e-45, -1e-45)];
        check("sin", patched(sin::<Fused>, sin_slow), patched(sin::<MulThenAdd>, sin_slow), f64::sin, &known, 0.51);
    }

    #[test]
    fn cos_holds_its_bound() {
        let known = [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)];
        check("cos", patched(cos::<Fused>, cos_slow), patched(cos::<MulThenAdd>, cos_slow), f64::cos, &known, 0.51);
    }

    #[test]
    fn tan_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN), (-1e-45, -1e-45)];
        check("tan", patched(tan::<Fused>, tan_slow), patched(tan::<MulThenAdd>, tan_slow), f64::tan, &known, 0.51);
    }
}
