//! What the tests of this module share: a walk over all `f32`, and the error in units in the last place.

use std::hash::{DefaultHasher, Hash, Hasher};

pub const INF: f32 = f32::INFINITY;
pub const NAN: f32 = f32::NAN;

/// Steps through all bit patterns; a prime, so that every exponent is met with varying mantissas. Kept coarse
/// because tests run unoptimised.
const STRIDE: usize = 9_973;

/// Same bits, or both NaN.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// How far `got` is from `want`, in units in the last place of `want` as an `f32`.
pub fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if same(got, nearest) {
        // Also where `want` overflows; the true distance is at most one half.
        return if want.is_finite() && nearest.is_finite() {
            (got as f64 - want).abs() / spacing(nearest)
        } else {
            0.0
        };
    }
    // A zero of the wrong sign or a NaN is wrong, not close.
    if got.is_nan() || nearest.is_nan() || (got == 0.0 && nearest == 0.0) {
        return f64::INFINITY;
    }
    // Infinity counts as 2¹²⁸, the next value after the largest.
    let real = |v: f32| if v.is_infinite() { 2f64.powi(128).copysign(v as f64) } else { v as f64 };
    (real(got) - if nearest.is_infinite() { real(nearest) } else { want }).abs() / spacing(nearest)
}

fn spacing(v: f32) -> f64 {
    let a = v.abs().min(f32::MAX);
    f32::from_bits(a.to_bits() + 1) as f64 - a as f64 + if a == f32::MAX { 2f64.powi(104) } else { 0.0 }
}

/// Asserts that both levels give the known points exactly and stay within `bound` of the oracle everywhere.
#[track_caller]
pub fn check(
    name: &str,
    fused: impl Fn(f32) -> f32,
    plain: impl Fn(f32) -> f32,
    oracle: impl Fn(f64) -> f64,
    known: &[(f32, f32)],
    bound: f64,
) {
    for &(x, y) in known {
        assert!(same(fused(x), y), "{name}({x}) = {} fused, not {y}", fused(x));
        assert!(same(plain(x), y), "{name}({x}) = {} plain, not {y}", plain(x));
    }
    for bits in (0..=u32::MAX).step_by(STRIDE) {
        let x = f32::from_bits(bits);
        let want = oracle(x as f64);
        for got in [fused(x), plain(x)] {
            let err = ulps(got, want);
            assert!(err <= bound, "{name}({x:e}) = {got:e}, not {want:e}: {err:.2} ulp, bound {bound}");
        }
    }
}

/// The same for two arguments, over [`random_pairs`] and all pairs of special values.
#[track_caller]
pub fn check_pairs(
    name: &str,
    fused: impl Fn(f32, f32) -> f32,
    plain: impl Fn(f32, f32) -> f32,
    oracle: impl Fn(f64, f64) -> f64,
    bound: f64,
) {
    let special = [0.0, 1e-45, 1e-38, 0.5, 1.0, 1.5, 2.0, 3.0, 16_777_215.0, 16_777_216.0, f32::MAX, INF, NAN];
    let signed = special.iter().flat_map(|&v: &f32| [v, -v]);
    let edges = signed.clone().flat_map(|x| signed.clone().map(move |y| (x, y)));
    for (x, y) in edges.chain(random_pairs()) {
        let want = oracle(x as f64, y as f64);
        for got in [fused(x, y), plain(x, y)] {
            let err = ulps(got, want);
            assert!(err <= bound, "{name}({x:e}, {y:e}) = {got:e}, not {want:e}: {err:.2} ulp, bound {bound}");
        }
    }
}

/// Pairs of all magnitudes, and pairs of everyday ones; the same on every run.
pub fn random_pairs() -> impl Iterator<Item = (f32, f32)> {
    (0u32..40_000).map(|i| {
        let mut hasher = DefaultHasher::new();
        i.hash(&mut hasher);
        let h = hasher.finish();
        let (x, y) = (h as u32, (h >> 32) as u32);
        if i % 2 == 0 {
            (f32::from_bits(x), f32::from_bits(y))
        } else {
            // Exponents from 2⁻⁴ to 2⁴.
            let near_one = |bits: u32| f32::from_bits((bits & 0x807f_ffff) | (123 + (bits >> 23 & 7)) << 23);
            (near_one(x), near_one(y))
        }
    })
}
