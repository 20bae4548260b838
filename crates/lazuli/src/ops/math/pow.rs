//! `pow`: xʸ = 2^(y·log₂ x) in double precision, with C99's special cases.

use super::Level;
use super::exp::exp2_64;
use super::log::{ln_parts64, nan64_unless};

/// Between 0 and the smallest `f32`, and between the largest and inf. Comparing with these instead of 0 and inf means
/// the same and keeps LLVM from comparing as `f32`: masks of two widths in one loop cost more than the logarithm.
const BELOW_ALL: f64 = 1.0e-50;
const ABOVE_ALL: f64 = 1.0e50;

/// xʸ. Special values ride through the arithmetic as far as they can: log₂ 0 = −inf, NaN·y = NaN.
#[inline(always)]
pub fn pow<L: Level>(x: f32, y: f32) -> f32 {
    let (x, y) = (x as f64, y as f64);
    let a = x.abs();

    let (e, ln_m) = ln_parts64::<L>(a);
    let log2_a = L::fma64(ln_m, core::f64::consts::LOG2_E, e);
    let log2_a = if a < ABOVE_ALL { log2_a } else { a };
    let log2_a = if a < BELOW_ALL { f64::NEG_INFINITY } else { log2_a };
    // A finite stand-in for y = ±inf: (±1)^±inf = 1, and 0·inf would be NaN.
    let t = clamp(y, 1.0e30) * log2_a;
    // Far past what an `f32` holds: the conversion at the end makes inf and 0 of it.
    let r = exp2_64::<L>(clamp(t, 300.0));

    // Adding 2⁵² leaves the integer nearest |y| in the low bits. From 2²⁴ on every `f32` is an even integer, inf
    // counting as such.
    let ay = clamp(y.abs(), 33_554_432.0);
    let nearest = ay + 4_503_599_627_370_496.0;
    let y_is_integer = nearest - 4_503_599_627_370_496.0 == ay;
    let odd = if y_is_integer { nearest.to_bits() << 63 } else { 0 };
    let r = f64::from_bits(r.to_bits() | (x.to_bits() & odd));

    // A negative finite base with a fractional exponent has no real power.
    let no_power = (x < -BELOW_ALL) & (x > -ABOVE_ALL) & !y_is_integer;
    let r = nan64_unless(!no_power, r);
    // Here the other argument may even be NaN.
    (if (x == 1.0) | (y == 0.0) { 1.0 } else { r }) as f32
}

/// v kept within ±limit; NaN stays.
#[inline(always)]
fn clamp(v: f64, limit: f64) -> f64 {
    let v = if v > limit { limit } else { v };
    if v < -limit { -limit } else { v }
}

#[cfg(test)]
mod tests {
    use super::super::sweep::check_pairs;
    use super::super::{Fused, MulThenAdd};
    use super::*;

    #[test]
    fn pow_holds_its_bound() {
        check_pairs("pow", pow::<Fused>, pow::<MulThenAdd>, f64::powf, 0.51);
    }

    #[test]
    fn pow_near_one_to_a_great_power() {
        // Where an error of the logarithm is magnified most.
        for (x, y) in [(1.000_000_1, 7.4e8), (0.999_999_94, 1.4e9), (1.000_000_1, -7.3e8), (1.01, 8900.0)] {
            let (got, want) = (pow::<Fused>(x, y), (x as f64).powf(y as f64));
            assert!(((got as f64 - want) / want).abs() < 1.0e-7, "pow({x}, {y}) = {got}, not {want}");
        }
    }
}
