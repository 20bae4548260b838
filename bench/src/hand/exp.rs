//! The exponential function on vectors, for arguments that are not positive (softmax needs no others).

use super::vector::Vector;

/// Below this, eˣ is subnormal in f32.
const LOWEST: f32 = -87.3;
/// ln 2 in two parts: the first has few bits, so that whole multiples of it are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// eʳ - 1 - r over r² for |r| ≤ ½ ln 2, highest power first (Cephes).
const COEFFICIENTS: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];

/// eˣ = 2ⁿ · eʳ with x = n · ln 2 + r, to about one unit in the last place.
///
/// # Safety
/// The processor must have the instructions of `V`.
#[inline(always)]
pub unsafe fn exp<V: Vector>(x: V) -> V {
    // SAFETY: the caller promises the instructions of V.
    unsafe {
        let x = x.max(V::splat(LOWEST));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(V::splat(-LN_2_HIGH), x);
        let r = n.mul_add(V::splat(-LN_2_LOW), r);
        let mut p = V::splat(COEFFICIENTS[0]);
        for &coefficient in &COEFFICIENTS[1..] {
            p = p.mul_add(r, V::splat(coefficient));
        }
        let one_plus_r = r.add(V::splat(1.0));
        p.mul_add(r.mul(r), one_plus_r).mul(n.exp2_whole())
    }
}
