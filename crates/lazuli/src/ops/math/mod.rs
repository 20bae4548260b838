//! Elementary functions on one `f32`, written so that a loop over them becomes vector code.
//!
//! The CPU backend calls them as `for i in 0..n { out[i] = f::<L>(x[i]) }` inside a function compiled for
//! AVX-512, AVX2 or the baseline. So that LLVM can vectorise that loop, nothing here branches on data, looks
//! anything up in a table or calls a C library: a choice is a select between two values that are both computed.
//! Special values are NumPy's. This module knows nothing of tensors, rows or threads.
//!
//! # How a function is built
//! - In `f32` where networks spend their time: `exp exp2 expm1 log log2 log10 log1p tanh erf erfc`. In `f64` inside for
//!   the others, where twice the digits make the last one right without further care.
//! - Each polynomial is a minimax fit of our own: Remez's exchange or a linear program minimises the largest weighted
//!   error on a Chebyshev grid in 50-digit arithmetic. For `f32` the coefficients are then rounded one by one from the lowest
//!   order up, the others fitted again after each. The comment at a table says what was fitted, where, and the
//!   error that remained.
//!
//! # Largest error measured
//! In units in the last place of the true result, against `f64`, over every 61st of all 2³² inputs, the neighbourhood
//! of the worst ones more densely, and for `pow` and `atan2` over 49 million pairs. One half is what rounding a
//! perfect result costs. AVX-512 and AVX2 share the level `Fused` and give the same bits.
//!
//! | function | `Fused` | `MulThenAdd` |
//! | --- | --- | --- |
//! | `exp` | 1.02 | 0.99 |
//! | `exp2` | 0.88 | 1.08 |
//! | `expm1` | 1.44 | 1.45 |
//! | `log` | 0.89 | 0.90 |
//! | `log2` | 1.35 | 1.51 |
//! | `log10` | 1.43 | 1.30 |
//! | `log1p` | 1.51 | 1.51 |
//! | `tanh` | 1.46 | 1.46 |
//! | `erf` | 1.07 | 1.42 |
//! | `erfc` (every 601st) | 3.51 | 3.51 |
//! | `sin cos tan` | 0.51 | 0.51 |
//! | `asin acos atan atan2` | 0.51 | 0.51 |
//! | `sinh cosh asinh acosh atanh` | 0.51 | 0.51 |
//! | `cbrt pow` | 0.51 | 0.51 |

/// An array of `$n` values, each made by an expression of its number: a closure would be a function of its own, which is not compiled
/// for the instruction set of the function around it.
#[cfg(target_arch = "x86_64")]
macro_rules! each {
    ($n:ident, |$i:ident| $value:expr) => {{
        let mut values = [V::splat(0.0); $n];
        for $i in 0..$n {
            values[$i] = $value;
        }
        values
    }};
}
mod exp;
mod log;
mod trig;
mod arc;
mod hyper;
mod special;
mod pow;
mod rem;
mod vector;

#[cfg(test)]
mod numpy;
#[cfg(test)]
mod sweep;

pub use arc::{acos, asin, atan, atan2};
pub use exp::{exp, exp2, expm1};
#[cfg(target_arch = "x86_64")]
pub use exp::{exp_of_vector, exp_of_vectors};
pub use hyper::{acosh, asinh, atanh, cosh, sinh, tanh};
pub use log::{log, log1p, log2, log10};
pub use pow::pow;
pub use rem::{rem, rem_fast, rem_needs_slow};
pub use special::{cbrt, erf, erfc};
#[cfg(target_arch = "x86_64")]
pub use special::{erf_of_vectors, erfc_of_vectors};
pub use trig::{cos, cos_slow, sin, sin_slow, tan, tan_slow, trig_needs_slow};
pub use vector::{F32x4, Floats, prefetch, prefetch_l2};
#[cfg(target_arch = "x86_64")]
pub use vector::{F32x8, F32x16, SumEach, Vector};

/// An instruction-set level: says how `a · b + c` is done, so that one source serves AVX-512, AVX2 and the baseline.
pub trait Level: Copy + 'static {
    /// Whether loops over long functions are worth vectorising. Not for a baseline that hardly any machine is left
    /// with: it would take a third of the time that the crate takes to build.
    const VECTORISE: bool;
    /// `a · b + c`.
    fn fma(a: f32, b: f32, c: f32) -> f32;
    /// `a · b + c` in double precision.
    fn fma64(a: f64, b: f64, c: f64) -> f64;
}

/// One rounding per multiply-add. Use it only inside `#[target_feature(enable = "fma")]` functions (or where the
/// target always has the instruction): elsewhere each multiply-add becomes a call of the C library.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other processors are not asked"))]
pub struct Fused;

/// A multiplication, then an addition: what every processor has.
#[derive(Clone, Copy, Debug)]
pub struct MulThenAdd;

impl Level for Fused {
    const VECTORISE: bool = true;
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a.mul_add(b, c)
    }
}

impl Level for MulThenAdd {
    const VECTORISE: bool = cfg!(not(target_arch = "x86_64"));
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn fma64(a: f64, b: f64, c: f64) -> f64 {
        a * b + c
    }
}

/// Adding 1.5 · 2²³ pushes the fraction of a small `f32` out of the mantissa: what is left is the nearest integer,
/// in the low bits. An `as` cast would not do, because saturation costs a chain of compares.
const ROUND: f32 = 12_582_912.0;

/// The bit of an `f32` that is its sign.
#[cfg(target_arch = "x86_64")]
const SIGN: u32 = 1 << 31;

/// The same as [`ROUND`] for `f64`: 1.5 · 2⁵².
const ROUND64: f64 = 6_755_399_441_055_744.0;

/// `c[0] + c[1]·x + c[2]·x² + …` by Horner's rule.
#[inline(always)]
fn poly<L: Level, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = L::fma(sum, x, c[i]);
    }
    sum
}

/// [`poly`] of several vectors.
///
/// # Safety
/// As for the methods of [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn poly_of_vectors<V: Vector, const N: usize, const C: usize>(x: [V; N], c: [f32; C]) -> [V; N] {
    // SAFETY: as promised by the caller.
    unsafe {
        let mut sum = [V::splat(c[C - 1]); N];
        let mut i = C - 1;
        while i > 0 {
            i -= 1;
            sum = each!(N, |j| sum[j].fma(x[j], V::splat(c[i])));
        }
        sum
    }
}

/// As [`poly`], in double precision.
#[inline(always)]
fn poly64<L: Level, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = L::fma64(sum, x, c[i]);
    }
    sum
}

/// As [`poly64`], for many terms: even and odd powers are summed apart, in x². One chain of dependent multiply-adds
/// would be longer than what the processor can overlap with its neighbours in a loop. The rounding is a little worse,
/// which double precision can afford.
#[inline(always)]
fn long_poly64<L: Level, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let z = x * x;
    let (mut above, mut sum) = (c[N - 1], c[N - 2]);
    let mut i = N - 2;
    while i > 0 {
        i -= 1;
        (above, sum) = (sum, L::fma64(above, z, c[i]));
    }
    L::fma64(above, x, sum)
}
