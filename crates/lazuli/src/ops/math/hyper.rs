//! `tanh sinh cosh` and their inverses. `tanh` in `f32`, the others in double precision inside.

use super::exp::{exp_of_negative, expm1_parts64};
use super::log::{ln64, nan64_unless};
use super::{Level, poly};

/// (tanh x − x) / x³ in x², |x| ≤ 0.625, relative error below 2⁻²⁷·⁷.
const TANH_NEAR: [f32; 5] = [-0.333_332_8, 0.133_314_06, -0.053_736_515, 0.020_628_167, -0.005_692_296_7];

/// tanh x.
#[inline(always)]
pub fn tanh<L: Level>(x: f32) -> f32 {
    let a = x.abs();
    let z = a * a;
    let near = L::fma(a * z, poly::<L, 5>(z, TANH_NEAR), a);
    // 1 − 2·e / (1 + e) with e = e^(−2a): the quotient is small, and its error smaller. From 10 on it is lost.
    let e = exp_of_negative::<L>(-2.0 * if a > 10.0 { 10.0 } else { a });
    let far = L::fma(-2.0, e / (1.0 + e), 1.0);
    (if a < 0.625 { near } else { far }).copysign(x)
}

/// sinh x.
#[inline(always)]
pub fn sinh<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    // Far past the overflow of `f32`, far before that of `f64`.
    let a = if a > 100.0 { 100.0 } else { a };
    let (scale, p) = expm1_parts64::<L>(a);
    // sinh a = (m + m / (m + 1)) / 2 with m = eᵃ − 1
    let m = L::fma64(scale, p, scale - 1.0);
    let y = 0.5 * (m + m / (m + 1.0));
    (y as f32).copysign(x)
}

/// cosh x.
#[inline(always)]
pub fn cosh<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    let a = if a > 100.0 { 100.0 } else { a };
    let (scale, p) = expm1_parts64::<L>(a);
    let e = L::fma64(scale, p, scale);
    (0.5 * (e + 1.0 / e)) as f32
}

/// The inverse of sinh.
#[inline(always)]
pub fn asinh<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    let far = ln64::<L>(a + L::fma64(a, a, 1.0).sqrt());
    // Near 0 the sum above has too few digits of a left; two terms of the series have them all.
    let near = L::fma64(a * a, a * (-1.0 / 6.0), a);
    let y = if a < 0.001 { near } else { far };
    let y = if a < f64::INFINITY { y } else { a };
    (y as f32).copysign(x)
}

/// The inverse of cosh, NaN below 1.
#[inline(always)]
pub fn acosh<L: Level>(x: f32) -> f32 {
    let a = x as f64;
    // a² is exact in double precision, so nothing is lost near 1.
    let y = ln64::<L>(a + L::fma64(a, a, -1.0).sqrt());
    let y = if a < f64::INFINITY { y } else { a };
    nan64_unless(a >= 1.0, y) as f32
}

/// The inverse of tanh, ±inf at ±1 and NaN beyond.
#[inline(always)]
pub fn atanh<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    let far = 0.5 * ln64::<L>((1.0 + a) / (1.0 - a));
    let near = L::fma64(a * a, a * (1.0 / 3.0), a);
    let y = if a < 0.001 { near } else { far };
    let y = if a == 1.0 { f64::INFINITY } else { y };
    (nan64_unless(a <= 1.0, y) as f32).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check};
    use super::super::{Fused, MulThenAdd};
    use super::*;

    #[test]
    fn tanh_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (20.0, 1.0), (-1e-45, -1e-45)];
        check("tanh", tanh::<Fused>, tanh::<MulThenAdd>, f64::tanh, &known, 1.5);
    }

    #[test]
    fn sinh_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN), (90.0, INF), (-1e-45, -1e-45)];
        check("sinh", sinh::<Fused>, sinh::<MulThenAdd>, f64::sinh, &known, 0.51);
    }

    #[test]
    fn cosh_holds_its_bound() {
        let known = [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (NAN, NAN), (-90.0, INF)];
        check("cosh", cosh::<Fused>, cosh::<MulThenAdd>, f64::cosh, &known, 0.51);
    }

    #[test]
    fn asinh_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (NAN, NAN), (-1e-45, -1e-45)];
        check("asinh", asinh::<Fused>, asinh::<MulThenAdd>, f64::asinh, &known, 0.51);
    }

    #[test]
    fn acosh_holds_its_bound() {
        let known = [(1.0, 0.0), (0.5, NAN), (-1.0, NAN), (-INF, NAN), (INF, INF), (NAN, NAN)];
        check("acosh", acosh::<Fused>, acosh::<MulThenAdd>, f64::acosh, &known, 0.51);
    }

    #[test]
    fn atanh_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-INF, NAN), (NAN, NAN)];
        check("atanh", atanh::<Fused>, atanh::<MulThenAdd>, f64::atanh, &known, 0.51);
    }
}
