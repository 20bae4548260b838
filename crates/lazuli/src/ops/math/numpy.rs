//! Runs NumPy's own validation rows (`tests/fixtures/numpy`) through both levels.

use super::*;

/// The distance in steps between neighbouring `f32`; NaN is next to NaN only.
fn steps(a: f32, b: f32) -> i64 {
    // Negative numbers count downwards from zero; both zeros are 0.
    let rank = |v: f32| if v.is_sign_negative() { -((v.to_bits() & 0x7fff_ffff) as i64) } else { v.to_bits() as i64 };
    if a.is_nan() || b.is_nan() {
        if a.is_nan() && b.is_nan() { 0 } else { i64::MAX }
    } else {
        (rank(a) - rank(b)).abs()
    }
}

fn no_slow(_: f32) -> bool {
    false
}

#[test]
fn every_numpy_row_is_within_its_tolerance() {
    let mut n_rows = 0;
    macro_rules! rows {
        ($($f:ident $(or $slow:ident when $needs:ident)?),*) => {$(
            #[allow(unused_mut, unused_assignments)]
            let (mut needs, mut slow): (fn(f32) -> bool, fn(f32) -> f32) = (no_slow, $f::<MulThenAdd>);
            $((needs, slow) = ($needs, $slow);)?
            for row in include_str!(concat!("../../../tests/fixtures/numpy/", stringify!($f), ".txt")).lines() {
                let cells: Vec<&str> = row.split(' ').collect();
                let float = |i: usize| f32::from_bits(u32::from_str_radix(cells[i], 16).unwrap());
                let (x, want, tolerance) = (float(0), float(1), cells[2].parse::<i64>().unwrap());
                let gots = if needs(x) { [slow(x); 2] } else { [$f::<Fused>(x), $f::<MulThenAdd>(x)] };
                for got in gots {
                    assert!(steps(got, want) <= tolerance, "{}({x:e}) = {got:e}, not {want:e}", stringify!($f));
                }
                n_rows += 1;
            }
        )*};
    }
    rows!(
        acos, acosh, asin, asinh, atan, atanh, cbrt, cosh, exp, exp2, expm1, log, log10, log1p, log2, sinh, tanh,
        sin or sin_slow when trig_needs_slow, cos or cos_slow when trig_needs_slow, tan or tan_slow when trig_needs_slow
    );
    assert_eq!(n_rows, 13_181);
}
