//! The CPU's loops: one generic loop per family of op, compiled for each instruction set. A row says what is done to
//! one lane; here that becomes a function over slices, written so that LLVM makes vector code of it.
//! Knows lanes, not dtypes, tensors or tiles.

use std::sync::OnceLock;

use super::math::Level;
use super::row::{BinaryLoop, Isa, PerIsa, ReduceLoops, UnaryLoop};

/// What a 32-bit lane can be read as.
///
/// # Safety
/// The type must be 4 bytes, aligned to 4, and any bits must be a value of it.
pub unsafe trait Word: Copy + 'static {}
// SAFETY: plain 32-bit numbers.
unsafe impl Word for f32 {}
// SAFETY: as above.
unsafe impl Word for i32 {}
// SAFETY: as above.
unsafe impl Word for u32 {}

/// A function of one lane.
pub trait Unary<X, Y> {
    /// The function. Without branches, so that a loop over it vectorises.
    fn eval<L: Level>(x: X) -> Y;
    /// Whether there are arguments that `eval` cannot take; they are put right one at a time, afterwards.
    const HAS_SLOW: bool = false;
    /// Whether this is one.
    fn is_slow(_: X) -> bool {
        false
    }
    /// The function for those.
    fn slow(x: X) -> Y;
}

/// A function of two lanes.
pub trait Binary<X, Y> {
    /// The function. Without branches, so that a loop over it vectorises.
    fn eval<L: Level>(x: X, y: X) -> Y;
    /// As in [`Unary`].
    const HAS_SLOW: bool = false;
    /// As in [`Unary`].
    fn is_slow(_: X, _: X) -> bool {
        false
    }
    /// As in [`Unary`].
    fn slow(x: X, y: X) -> Y;
}

/// An associative combination of lanes.
pub trait Combine<X> {
    /// The value that changes nothing.
    const IDENTITY: X;
    /// Two into one.
    fn eval(x: X, y: X) -> X;
}

/// The loops of a unary op.
pub const fn unary<F: Unary<X, Y>, X: Word, Y: Word>() -> PerIsa<UnaryLoop> {
    [baseline::unary::<F, X, Y>, avx2::unary::<F, X, Y>, avx512::unary::<F, X, Y>]
}

/// The loops of a binary op.
pub const fn binary<F: Binary<X, Y>, X: Word, Y: Word>() -> PerIsa<BinaryLoop> {
    [baseline::binary::<F, X, Y>, avx2::binary::<F, X, Y>, avx512::binary::<F, X, Y>]
}

/// The loops of a reduction; `identity` is [`Combine::IDENTITY`] as bits.
pub const fn reduce<F: Combine<X>, X: Word>(identity: u32) -> PerIsa<ReduceLoops> {
    [
        ReduceLoops { fold: baseline::fold::<F, X>, accumulate: baseline::accumulate::<F, X>, identity },
        ReduceLoops { fold: avx2::fold::<F, X>, accumulate: avx2::accumulate::<F, X>, identity },
        ReduceLoops { fold: avx512::fold::<F, X>, accumulate: avx512::accumulate::<F, X>, identity },
    ]
}

/// The best instruction set of this machine, or a lesser one that `LAZULI_ISA` names.
pub fn isa() -> Isa {
    const NAMES: [(&str, Isa); 3] = [("baseline", Isa::Baseline), ("avx2", Isa::Avx2), ("avx512", Isa::Avx512)];
    static ISA: OnceLock<Isa> = OnceLock::new();
    *ISA.get_or_init(|| crate::log::choice("LAZULI_ISA", &NAMES).unwrap_or(Isa::Avx512).min(best()))
}

#[cfg(target_arch = "x86_64")]
fn best() -> Isa {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512bw");
    match (avx2, avx512) {
        (true, true) => Isa::Avx512,
        (true, false) => Isa::Avx2,
        _ => Isa::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Isa {
    Isa::Baseline
}

/// Whether this machine has AVX-512's products of bytes.
pub fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Every instruction set this machine has.
pub fn isas() -> impl Iterator<Item = Isa> {
    [Isa::Baseline, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= best())
}

/// One module per instruction set, each with the loops below compiled for it.
macro_rules! versions {
    ($($isa:ident $level:ident $($features:literal)?;)*) => {$(
        mod $isa {
            use super::*;
            use crate::ops::math::$level;

            $(#[target_feature(enable = $features)])?
            pub fn unary<F: Unary<X, Y>, X: Word, Y: Word>(x: &[u32], y: &mut [u32]) {
                unary_loop::<$level, F, X, Y>(words(x), words_mut(y));
            }
            $(#[target_feature(enable = $features)])?
            pub fn binary<F: Binary<X, Y>, X: Word, Y: Word>(x: &[u32], y: &[u32], out: &mut [u32]) {
                binary_loop::<$level, F, X, Y>(words(x), words(y), words_mut(out));
            }
            $(#[target_feature(enable = $features)])?
            pub fn accumulate<F: Combine<X>, X: Word>(acc: &mut [u32], x: &[u32]) {
                accumulate_loop::<F, X>(words_mut(acc), words(x));
            }
            $(#[target_feature(enable = $features)])?
            pub fn fold<F: Combine<X>, X: Word>(x: &[u32]) -> u32 {
                let (rows, rest) = words::<X>(x).as_chunks::<WIDTH>();
                let short = fold_short::<F, X>(rest);
                if rows.is_empty() {
                    return bits(short);
                }
                let lanes = tree::<F, X>(rows);
                bits(F::eval(fold_lanes::<F, X, WIDTH>(lanes), short))
            }
            /// Blocks combined as the leaves of a tree whose form depends on the length alone.
            $(#[target_feature(enable = $features)])?
            fn tree<F: Combine<X>, X: Word>(rows: &[[X; WIDTH]]) -> [X; WIDTH] {
                if rows.len() <= DEPTH {
                    return if $level::VECTORISE { fold_rows::<F, X, WIDTH>(rows) } else { fold_small::<F, X>(rows) };
                }
                if $level::VECTORISE && rows.len() == STREAMS * DEPTH {
                    return fold_streams::<F, X>(rows);
                }
                // The left half is the largest power of two of blocks that leaves something for the right.
                let (left, right) = rows.split_at(DEPTH * (rows.len().div_ceil(DEPTH).next_power_of_two() / 2));
                let (mut left, right) = (tree::<F, X>(left), tree::<F, X>(right));
                combine::<F, X, WIDTH>(&mut left, &right);
                left
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
versions! {
    baseline MulThenAdd;
    avx2 Fused "avx2,fma";
    avx512 Fused "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma";
}

#[cfg(not(target_arch = "x86_64"))]
versions! {
    baseline MulThenAdd;
}
#[cfg(not(target_arch = "x86_64"))]
use {baseline as avx2, baseline as avx512};

#[inline(always)]
fn words<X: Word>(lanes: &[u32]) -> &[X] {
    // SAFETY: a word has the size and alignment of u32, and any bits are one.
    unsafe { std::slice::from_raw_parts(lanes.as_ptr().cast(), lanes.len()) }
}

#[inline(always)]
fn words_mut<X: Word>(lanes: &mut [u32]) -> &mut [X] {
    // SAFETY: as in `words`; what is written back is 32 bits, which any u32 may be.
    unsafe { std::slice::from_raw_parts_mut(lanes.as_mut_ptr().cast(), lanes.len()) }
}

#[inline(always)]
fn bits<X: Word>(x: X) -> u32 {
    // SAFETY: a word is 32 bits, which any u32 may be.
    unsafe { std::mem::transmute_copy(&x) }
}

// The loops count by hand, without closures: a closure is a function of its own, which would not be compiled for the
// instruction set of the function around it.

#[inline(always)]
fn unary_loop<L: Level, F: Unary<X, Y>, X: Word, Y: Word>(x: &[X], y: &mut [Y]) {
    let n = x.len();
    let y = &mut y[..n];
    for i in 0..n {
        y[i] = if L::VECTORISE { F::eval::<L>(x[i]) } else { one::<L, F, X, Y>(x[i]) };
    }
    if F::HAS_SLOW {
        let mut any = false;
        for i in 0..n {
            any |= F::is_slow(x[i]);
        }
        if any {
            (0..n).filter(|&i| F::is_slow(x[i])).for_each(|i| y[i] = F::slow(x[i]));
        }
    }
}

/// A call, so that the loop around it stays small.
#[inline(never)]
fn one<L: Level, F: Unary<X, Y>, X, Y>(x: X) -> Y {
    F::eval::<L>(x)
}

/// As `one`.
#[inline(never)]
fn one_of_two<L: Level, F: Binary<X, Y>, X, Y>(x: X, y: X) -> Y {
    F::eval::<L>(x, y)
}

#[inline(always)]
fn binary_loop<L: Level, F: Binary<X, Y>, X: Word, Y: Word>(x: &[X], y: &[X], out: &mut [Y]) {
    let n = out.len();
    let (x, y) = (&x[..n], &y[..n]);
    for i in 0..n {
        out[i] = if L::VECTORISE { F::eval::<L>(x[i], y[i]) } else { one_of_two::<L, F, X, Y>(x[i], y[i]) };
    }
    if F::HAS_SLOW {
        let mut any = false;
        for i in 0..n {
            any |= F::is_slow(x[i], y[i]);
        }
        if any {
            (0..n).filter(|&i| F::is_slow(x[i], y[i])).for_each(|i| out[i] = F::slow(x[i], y[i]));
        }
    }
}

#[inline(always)]
fn accumulate_loop<F: Combine<X>, X: Word>(acc: &mut [X], x: &[X]) {
    let n = acc.len();
    let x = &x[..n];
    for i in 0..n {
        acc[i] = F::eval(acc[i], x[i]);
    }
}

/// How many lanes a single one is spread over: a short block, which stays in the nearest cache.
const SPREAD: usize = 256;

/// A binary loop over two operands, either of which may be a single lane. A loop for each form would be little faster,
/// and the crate slower to build.
///
/// # Safety
/// This machine has the instruction set of the loop.
pub unsafe fn apply(loops: BinaryLoop, x: &[u32], y: &[u32], out: &mut [u32]) {
    let n = out.len();
    // SAFETY: as promised by the caller.
    unsafe {
        if x.len() == n && y.len() == n {
            return loops(x, y, out);
        }
        let spread = [if x.len() == n { y[0] } else { x[0] }; SPREAD];
        for (i, out) in out.chunks_mut(SPREAD).enumerate() {
            let (from, spread) = (i * SPREAD, &spread[..out.len()]);
            match x.len() == n {
                true => loops(&x[from..][..out.len()], spread, out),
                // One lane each is a lane.
                false if y.len() < n => loops(spread, &[y[0]; SPREAD][..out.len()], out),
                false => loops(spread, &y[from..][..out.len()], out),
            }
        }
    }
}

/// How many accumulators a fold has: enough vectors that none waits for the one before it.
const WIDTH: usize = 64;
/// How many lanes one accumulator at most takes in a row: the error of a sum grows with this, then with the logarithm
/// of the length only.
const DEPTH: usize = 16;
/// How many blocks a fold reads side by side.
const STREAMS: usize = 4;
/// How many accumulators there are for what does not fill a row of [`WIDTH`].
const SHORT: usize = 8;

/// Row upon row. Each accumulator takes as many lanes as there are rows.
#[inline(always)]
fn fold_rows<F: Combine<X>, X: Word, const N: usize>(rows: &[[X; N]]) -> [X; N] {
    let mut acc = [F::IDENTITY; N];
    for row in rows {
        combine::<F, X, N>(&mut acc, row);
    }
    acc
}

/// The same in little code.
#[inline(never)]
fn fold_small<F: Combine<X>, X: Word>(rows: &[[X; WIDTH]]) -> [X; WIDTH] {
    let mut acc = [F::IDENTITY; WIDTH];
    rows.iter().for_each(|row| one_row::<F, X>(&mut acc, row));
    acc
}

#[inline(never)]
fn one_row<F: Combine<X>, X: Word>(acc: &mut [X], row: &[X]) {
    accumulate_loop::<F, X>(acc, row);
}

/// [`STREAMS`] blocks side by side, each a page of its own, so that memory is asked for several at a time. The result is
/// that of one block after another.
#[inline(always)]
fn fold_streams<F: Combine<X>, X: Word>(rows: &[[X; WIDTH]]) -> [X; WIDTH] {
    let mut acc = [[F::IDENTITY; WIDTH]; STREAMS];
    let (a, rest) = rows.split_at(DEPTH);
    let (b, rest) = rest.split_at(DEPTH);
    let (c, d) = rest.split_at(DEPTH);
    for i in 0..DEPTH {
        combine::<F, X, WIDTH>(&mut acc[0], &a[i]);
        combine::<F, X, WIDTH>(&mut acc[1], &b[i]);
        combine::<F, X, WIDTH>(&mut acc[2], &c[i]);
        combine::<F, X, WIDTH>(&mut acc[3], &d[i]);
    }
    let [mut left, b, mut right, d] = acc;
    combine::<F, X, WIDTH>(&mut left, &b);
    combine::<F, X, WIDTH>(&mut right, &d);
    combine::<F, X, WIDTH>(&mut left, &right);
    left
}

/// Fewer than [`WIDTH`] lanes into one.
#[inline(always)]
fn fold_short<F: Combine<X>, X: Word>(x: &[X]) -> X {
    let (rows, rest) = x.as_chunks::<SHORT>();
    let mut last = F::IDENTITY;
    for x in rest {
        last = F::eval(last, *x);
    }
    if rows.is_empty() {
        return last;
    }
    F::eval(fold_lanes::<F, X, SHORT>(fold_rows::<F, X, SHORT>(rows)), last)
}

#[inline(always)]
fn combine<F: Combine<X>, X: Word, const N: usize>(acc: &mut [X; N], x: &[X; N]) {
    for i in 0..N {
        acc[i] = F::eval(acc[i], x[i]);
    }
}

/// All lanes into one: the upper half onto the lower, again and again.
#[inline(always)]
fn fold_lanes<F: Combine<X>, X: Word, const N: usize>(mut lanes: [X; N]) -> X {
    let mut n = N / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] = F::eval(lanes[i], lanes[i + n]);
        }
        n /= 2;
    }
    lanes[0]
}
