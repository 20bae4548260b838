//! `erf`, `erfc` and `cbrt`.

use super::exp::{exp, exp_of_negative};
#[cfg(target_arch = "x86_64")]
use super::exp::{exp_of_negative_vectors, exp_of_vectors};
use super::{Level, ROUND64, poly};
#[cfg(target_arch = "x86_64")]
use super::{SIGN, Vector, poly_of_vectors};

/// erf x / x − 1 in x², 0 ≤ x ≤ 1, relative error below 2⁻²⁹.
const ERF_NEAR: [f32; 7] =
    [0.128_379_17, -0.376_126_26, 0.112_835_79, -0.026_853_347, 0.005_187_162, -0.000_799_785_3, 7.806_904_6e-5];

/// −ln(1 − erf x) on 1 ≤ x ≤ 3.93, error carried over to erf below 2⁻²⁹ of it.
const ERF_FAR: [f32; 7] =
    [0.000_341_533_4, 1.127_089_1, 0.638_144_9, 0.103_106_7, -0.021_838_05, 0.002_947_659_7, -0.000_186_380_04];

/// The error function, 2/√π · ∫₀ˣ e^(−t²) dt.
#[inline(always)]
pub fn erf<L: Level>(x: f32) -> f32 {
    // erf 3.93 is 1 to the last bit.
    let a = x.abs();
    let a = if a > 3.93 { 3.93 } else { a };
    let near = L::fma(a, poly::<L, 7>(a * a, ERF_NEAR), a);
    // 1 − erf falls off so fast that an error of its logarithm hardly shows.
    let far = 1.0 - exp_of_negative::<L>(-poly::<L, 7>(a, ERF_FAR));
    (if a < 1.0 { near } else { far }).copysign(x)
}

/// [`erf`] of several vectors at once: the same steps, the same bits. Each step is taken of all vectors before the next.
///
/// # Safety
/// As for the methods of [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn erf_of_vectors<V: Vector, const N: usize>(x: [V; N]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let a = each!(N, |i| V::splat(3.93).below(x[i].masked(!SIGN)));
        let near = poly_of_vectors(each!(N, |i| a[i].mul(a[i])), ERF_NEAR);
        let near = each!(N, |i| a[i].fma(near[i], a[i]));
        let far = poly_of_vectors(a, ERF_FAR);
        let far = exp_of_negative_vectors(each!(N, |i| V::splat(-0.0).sub(far[i])));
        let far = each!(N, |i| V::splat(1.0).sub(far[i]));
        each!(N, |i| a[i].if_below(V::splat(1.0), near[i], far[i]).masked(!SIGN).or(x[i].masked(SIGN)))
    }
}

/// (1 + 2x)·e^(x²)·erfc x − 1 in (x − 4) / (x + 4), 0 ≤ x ≤ 10.4, error of what it is added to below 2⁻²⁵.
const ERFC: [f32; 11] = [
    0.232_995_14,
    -0.139_621_03,
    0.015_377_333,
    0.068_091_99,
    -0.100_992_26,
    0.093_834_57,
    -0.066_604_76,
    0.036_394_857,
    -0.016_020_052,
    0.006_901_055,
    0.000_846_035_84,
];

/// 1 − erf x, with all its digits also where erf x is nearly 1.
#[inline(always)]
pub fn erfc<L: Level>(x: f32) -> f32 {
    // Beyond 10.06 it is 0.
    let a = x.abs();
    let a = if a > 10.4 { 10.4 } else { a };
    let scaled = (poly::<L, 11>((a - 4.0) / (a + 4.0), ERFC) + 1.0) / L::fma(2.0, a, 1.0);
    // e^(−a²): a² has twice the digits, and those that its rounding loses count. The products of halves are exact.
    let square = a * a;
    let upper = f32::from_bits(a.to_bits() & 0xffff_f000);
    let lower = a - upper;
    let lost = ((upper * upper - square) + 2.0 * upper * lower) + lower * lower;
    let y = scaled * exp::<L>(-square);
    let far = L::fma(-y, lost, y);
    // Near 0 the quotient's roundings are more than those of erf.
    let near = 1.0 - L::fma(a, poly::<L, 7>(square, ERF_NEAR), a);
    let y = if a < 0.5 { near } else { far };
    if x < 0.0 { 2.0 - y } else { y }
}

/// [`erfc`] of several vectors at once: the same steps, the same bits.
///
/// # Safety
/// As for the methods of [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn erfc_of_vectors<V: Vector, const N: usize>(x: [V; N]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let a = each!(N, |i| V::splat(10.4).below(x[i].masked(!SIGN)));
        let q = each!(N, |i| a[i].sub(V::splat(4.0)).div(a[i].add(V::splat(4.0))));
        let q = poly_of_vectors(q, ERFC);
        let scaled = each!(N, |i| q[i].add(V::splat(1.0)).div(V::splat(2.0).fma(a[i], V::splat(1.0))));
        let square = each!(N, |i| a[i].mul(a[i]));
        let e = exp_of_vectors(each!(N, |i| V::splat(-0.0).sub(square[i])));
        let y = each!(N, |i| scaled[i].mul(e[i]));
        let upper = each!(N, |i| a[i].masked(0xffff_f000));
        let lower = each!(N, |i| a[i].sub(upper[i]));
        let lost = each!(N, |i| upper[i].mul(upper[i]).sub(square[i]));
        let lost = each!(N, |i| lost[i].add(V::splat(2.0).mul(upper[i]).mul(lower[i])));
        let lost = each!(N, |i| lost[i].add(lower[i].mul(lower[i])));
        let far = each!(N, |i| V::splat(-0.0).sub(y[i]).fma(lost[i], y[i]));
        let near = poly_of_vectors(square, ERF_NEAR);
        let near = each!(N, |i| V::splat(1.0).sub(a[i].fma(near[i], a[i])));
        let y = each!(N, |i| a[i].if_below(V::splat(0.5), near[i], far[i]));
        each!(N, |i| x[i].if_below(V::splat(0.0), V::splat(2.0).sub(y[i]), y[i]))
    }
}

/// The cube root, of negative x as well.
#[inline(always)]
pub fn cbrt<L: Level>(x: f32) -> f32 {
    let a = x.abs() as f64;
    // Dividing the exponent by −3 in the upper half of the bits gives a^(−1/3) within 3.5 %; the constant spreads
    // the error evenly to both sides. Through `f64`, because vectors have no integer division.
    let upper = (a.to_bits() >> 32) as i32 as f64;
    let guess = L::fma64(upper, -1.0 / 3.0, CBRT_BIAS) + ROUND64;
    let y = f64::from_bits(guess.to_bits() << 32);
    let y = cbrt_step::<L>(a, y);
    let y = cbrt_step::<L>(a, y);
    // a^(1/3) = a · (a^(−1/3))²
    let root = a * y * y;
    // 0, inf and NaN are their own roots.
    let root = if a > 0.0 && a < f64::INFINITY { root } else { a };
    (root as f32).copysign(x)
}

/// 4/3 of the upper half of 1.0's bits, less what makes the largest error of the guess smallest (found by search).
const CBRT_BIAS: f64 = 1_430_188_164.0;

/// One step towards a^(−1/3): with h = 1 − a·y³, y·(1 − h)^(−1/3) up to h³, so an error e becomes about 5·e⁴.
#[inline(always)]
fn cbrt_step<L: Level>(a: f64, y: f64) -> f64 {
    let h = L::fma64(-(a * y), y * y, 1.0);
    let s = L::fma64(h, L::fma64(h, 14.0 / 81.0, 2.0 / 9.0), 1.0 / 3.0);
    L::fma64(y * h, s, y)
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, check};
    use super::super::{Fused, MulThenAdd};
    use super::*;

    #[test]
    fn erf_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (4.0, 1.0), (-1e-45, -1e-45)];
        check("erf", erf::<Fused>, erf::<MulThenAdd>, libm::erf, &known, 1.5);
    }

    #[test]
    fn erfc_holds_its_bound() {
        let known = [(INF, 0.0), (-INF, 2.0), (NAN, NAN), (11.0, 0.0), (-4.0, 2.0)];
        check("erfc", erfc::<Fused>, erfc::<MulThenAdd>, libm::erfc, &known, 4.0);
    }

    #[test]
    fn cbrt_holds_its_bound() {
        let known = [(0.0, 0.0), (-0.0, -0.0), (27.0, 3.0), (-8.0, -2.0), (INF, INF), (-INF, -INF), (NAN, NAN)];
        check("cbrt", cbrt::<Fused>, cbrt::<MulThenAdd>, f64::cbrt, &known, 0.51);
    }
}
