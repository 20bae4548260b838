//! `asin acos atan atan2`, in double precision inside.

use super::{Level, long_poly64};
use core::f64::consts::{FRAC_PI_2, PI};

/// (asin s − s) / s³ in s², 0 ≤ s ≤ ½, relative error below 2⁻³⁵.
const ASIN_P: [f64; 7] = [
    0.16666667180325564,
    0.07499948892174917,
    0.0446599735361524,
    0.030112509695977195,
    0.024604802030500823,
    0.007509219842976035,
    0.034646607890396496,
];

/// (atan t − t) / t³ in t², 0 ≤ t ≤ 1, relative error below 2⁻³³.
const ATAN_P: [f64; 11] = [
    -0.33333332133799964,
    0.1999992724345282,
    -0.14284167209184295,
    0.11094503402605131,
    -0.08985437606552861,
    0.0725943339713487,
    -0.05451587439709267,
    0.03447576183891479,
    -0.016299364419283886,
    0.004926319775869568,
    -0.0006979503869935182,
];

/// arcsin x.
#[inline(always)]
pub fn asin<L: Level>(x: f32) -> f32 {
    let (far, a) = asin_parts::<L>(x.abs() as f64);
    let y = if far { FRAC_PI_2 - 2.0 * a } else { a };
    (y as f32).copysign(x)
}

/// arccos x.
#[inline(always)]
pub fn acos<L: Level>(x: f32) -> f32 {
    let (far, a) = asin_parts::<L>(x.abs() as f64);
    // On |x|: 2·asin √((1−x)/2) beyond ½, π/2 − asin x below; acos(−x) = π − acos x.
    let y = if far { 2.0 * a } else { FRAC_PI_2 - a };
    (if x < 0.0 { PI - y } else { y }) as f32
}

/// arctan x.
#[inline(always)]
pub fn atan<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    let steep = a > 1.0;
    // atan x = π/2 − atan(1/x). The quotient is min(a, 1) / max(a, 1), and written as such: told that one of the
    // two is 1, LLVM would rather branch than divide by it.
    let y = atan_of_unit::<L>(if a > 1.0 { 1.0 } else { a } / if a < 1.0 { 1.0 } else { a });
    ((if steep { FRAC_PI_2 - y } else { y }) as f32).copysign(x)
}

/// The angle of the point (x, y), with C99's table for zeros and infinities.
#[inline(always)]
pub fn atan2<L: Level>(y: f32, x: f32) -> f32 {
    let (ay, ax) = (y.abs() as f64, x.abs() as f64);
    let steep = ay > ax;
    let num = if steep { ax } else { ay };
    let den = if steep { ay } else { ax };
    // 0/0 counts as 0 and inf/inf as 1: the axes and the diagonals. As doubles no other quotient over- or underflows.
    let q = num / if den == 0.0 { 1.0 } else { den };
    let q = if num == f64::INFINITY && den == f64::INFINITY { 1.0 } else { q };
    let a = atan_of_unit::<L>(q);
    let a = if steep { FRAC_PI_2 - a } else { a };
    // The sign bit, not a comparison: −0 lies on the left.
    let a = if (x.to_bits() as i32) < 0 { PI - a } else { a };
    (a as f32).copysign(y)
}

/// (whether a > ½, asin √((1−a)/2) if so and asin a if not), for 0 ≤ a. NaN for a > 1 and for NaN.
#[inline(always)]
fn asin_parts<L: Level>(a: f64) -> (bool, f64) {
    let far = a > 0.5;
    let z = if far { 0.5 - 0.5 * a } else { a * a };
    let root = z.sqrt();
    let s = if far { root } else { a };
    (far, L::fma64(s * z, long_poly64::<L, 7>(z, ASIN_P), s))
}

/// atan t for 0 ≤ t ≤ 1.
#[inline(always)]
fn atan_of_unit<L: Level>(t: f64) -> f64 {
    let z = t * t;
    L::fma64(t * z, long_poly64::<L, 11>(z, ATAN_P), t)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check, check_pairs};
    use super::super::{Fused, MulThenAdd};
    use super::*;
    use core::f32::consts::{FRAC_PI_2, FRAC_PI_4, PI};

    #[test]
    fn asin_holds_its_bound() {
        let known =
            [(0.0, 0.0), (-0.0, -0.0), (1.0, FRAC_PI_2), (-1.0, -FRAC_PI_2), (1.1, NAN), (-INF, NAN), (NAN, NAN)];
        check("asin", asin::<Fused>, asin::<MulThenAdd>, f64::asin, &known, 0.51);
    }

    #[test]
    fn acos_holds_its_bound() {
        let known = [(1.0, 0.0), (-1.0, PI), (0.0, FRAC_PI_2), (-0.0, FRAC_PI_2), (-1.1, NAN), (INF, NAN), (NAN, NAN)];
        check("acos", acos::<Fused>, acos::<MulThenAdd>, f64::acos, &known, 0.51);
    }

    #[test]
    fn atan_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (1.0, FRAC_PI_4), (INF, FRAC_PI_2), (-INF, -FRAC_PI_2), (NAN, NAN)];
        check("atan", atan::<Fused>, atan::<MulThenAdd>, f64::atan, &known, 0.51);
    }

    #[test]
    fn atan2_holds_its_bound() {
        check_pairs("atan2", atan2::<Fused>, atan2::<MulThenAdd>, f64::atan2, 0.51);
    }
}
