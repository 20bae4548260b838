//! `rem`: the remainder of floored division, as NumPy's `remainder` and Python's `%`. Always exact up to the one
//! rounding of NumPy's own last addition.

/// x − y·⌊x/y⌋: has the sign of y; NaN for y = 0 and for infinite x.
#[inline(always)]
pub fn rem(x: f32, y: f32) -> f32 {
    if rem_needs_slow(x, y) { rem_slow(x, y) } else { rem_fast(x, y) }
}

/// Whether the quotient is too great for [`rem_fast`].
#[inline(always)]
pub fn rem_needs_slow(x: f32, y: f32) -> bool {
    // As doubles, 2²⁸·y neither overflows nor rounds. For y = 0 the fast path gives NaN by itself.
    (x as f64).abs() > (y as f64).abs() * 268_435_456.0
}

/// [`rem`] for |x/y| ≤ 2²⁸, without branches.
///
/// With n the integer nearest x/y, n·y has at most 53 bits and is exact; so is x − n·y, which is a multiple of the
/// finer of the two arguments' last places and no longer than either.
#[inline(always)]
pub fn rem_fast(x: f32, y: f32) -> f32 {
    const ROUND: f64 = super::ROUND64;
    let (xd, yd) = (x as f64, y as f64);
    let n = (xd / yd + ROUND) - ROUND;
    let r = xd - n * yd;
    // 0·inf above is NaN: a finite x is its own remainder by ±inf.
    let r = if y.abs() == f32::INFINITY && x.abs() < f32::INFINITY { xd } else { r };
    with_sign_of(r, yd)
}

/// [`rem`] for every pair, one at a time.
fn rem_slow(x: f32, y: f32) -> f32 {
    // `%` is C's fmod, exact, with the sign of x.
    with_sign_of((x % y) as f64, y as f64)
}

/// Moves a remainder of the other sign up or down by one y. Zero takes the sign of y.
#[inline(always)]
fn with_sign_of(r: f64, y: f64) -> f32 {
    let moved = if (r < 0.0) != (y < 0.0) { r + y } else { r };
    (if r == 0.0 { 0f64.copysign(y) } else { moved }) as f32
}

#[cfg(test)]
mod tests {
    use super::super::sweep::{INF, NAN, random_pairs, same};
    use super::*;

    /// What NumPy does, step by step.
    fn numpy(x: f32, y: f32) -> f32 {
        let r = x % y;
        if r == 0.0 {
            0f32.copysign(y)
        } else if (r < 0.0) != (y < 0.0) {
            r + y
        } else {
            r
        }
    }

    #[test]
    fn rem_is_numpys() {
        let known = [
            (-1.0, INF, INF),
            (1.0, INF, 1.0),
            (1.0, -INF, -INF),
            (-1.0, -INF, -1.0),
            (0.0, INF, 0.0),
            (-0.0, INF, 0.0),
            (0.0, -INF, -0.0),
            (1.0, 0.0, NAN),
            (0.0, 0.0, NAN),
            (INF, 2.0, NAN),
            (INF, INF, NAN),
            (-INF, INF, NAN),
            (-6.0, 3.0, 0.0),
            (6.0, -3.0, -0.0),
            (NAN, 1.0, NAN),
            (1.0, NAN, NAN),
            (-1e-10, 1.0, 1.0),
            (1e-45, -1e-45, -0.0),
            (3e38, 7e-3, 0.000_107_348_9),
            (-5.0, 3.0, 1.0),
            (5.0, -3.0, -1.0),
            (5.5, -2.0, -0.5),
        ];
        for (x, y, want) in known {
            assert!(same(rem(x, y), want), "rem({x}, {y}) = {}, not {want}", rem(x, y));
        }
        for (x, y) in random_pairs() {
            assert!(same(rem(x, y), numpy(x, y)), "rem({x}, {y}) = {}, not {}", rem(x, y), numpy(x, y));
        }
    }
}
