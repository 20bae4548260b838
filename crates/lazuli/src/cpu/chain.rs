//! Chains of arithmetic: `((x · a) + b) − c …` over many lanes, the value staying in vector registers from step to
//! step. A loop per instruction would load and store it between any two. Bit for bit the separate instructions.

use crate::ops::{Isa, Step, isa};

/// One step, with its operand's lanes.
#[derive(Clone, Copy)]
pub struct Operand {
    kind: Kind,
    lanes: *const u32,
    single: bool,
}

/// Steps told apart by side, so that the inner loop has one match.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Add,
    Sub,
    Mul,
    Div,
    SubFrom,
    DivInto,
}

impl Operand {
    /// `value ∘ operand`, or reversed `operand ∘ value`. The operand is a pointer and whether it is a single lane.
    pub fn new(step: Step, reversed: bool, (lanes, single): (*const u32, bool)) -> Operand {
        let kind = match (step, reversed) {
            (Step::Add, _) => Kind::Add,
            (Step::Mul, _) => Kind::Mul,
            (Step::Sub, false) => Kind::Sub,
            (Step::Sub, true) => Kind::SubFrom,
            (Step::Div, false) => Kind::Div,
            (Step::Div, true) => Kind::DivInto,
        };
        Operand { kind, lanes, single }
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Write {
    /// As usual: they are soon read again.
    Cached,
    /// Past the caches: there is more than they hold, and what is written need not be read first. Whoever asks for this
    /// calls [`super::stream::finish`] in the end.
    Streamed,
}

/// `out[i]` = all steps applied to `start[i]`.
///
/// # Safety
/// Every operand, and `start`, points to a single lane or to as many as `out` has, and none overlaps `out`.
pub unsafe fn run(start: (*const u32, bool), steps: &[Operand], out: &mut [u32], write: Write) {
    // SAFETY: the instruction set is there; the rest as promised by the caller.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512(start, steps, out, write),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2(start, steps, out, write),
            _ => plain(start, steps, out),
        }
    }
}

/// Steps over blocks of lanes.
#[inline(always)]
unsafe fn plain(start: (*const u32, bool), steps: &[Operand], out: &mut [u32]) {
    const BLOCK: usize = 32;
    let mut at = 0;
    while at < out.len() {
        let n = BLOCK.min(out.len() - at);
        let lanes = |(lanes, single): (*const u32, bool)| {
            let mut block = [0f32; BLOCK];
            for (i, lane) in block[..n].iter_mut().enumerate() {
                // SAFETY: as promised by the caller of `run`.
                *lane = f32::from_bits(unsafe { *lanes.add(if single { 0 } else { at + i }) });
            }
            block
        };
        let mut value = lanes(start);
        for step in steps {
            let operand = lanes((step.lanes, step.single));
            for (x, y) in value.iter_mut().zip(operand) {
                *x = match step.kind {
                    Kind::Add => *x + y,
                    Kind::Sub => *x - y,
                    Kind::Mul => *x * y,
                    Kind::Div => *x / y,
                    Kind::SubFrom => y - *x,
                    Kind::DivInto => y / *x,
                };
            }
        }
        for (out, x) in out[at..at + n].iter_mut().zip(value) {
            *out = x.to_bits();
        }
        at += n;
    }
}

/// Steps from which on it pays to do a block twice for better-lying operands.
const MANY_STEPS: usize = 8;

/// How many lanes before `lanes` has a whole vector of `align` bytes at its boundary.
fn misaligned(lanes: *const u32, align: usize) -> usize {
    (align - lanes as usize % align) % align / 4
}

/// The loop over blocks of many vectors in flight, for one instruction set. Blocks may overlap: what is written twice
/// is the same, since `out` is no operand.
macro_rules! vectors {
    ($name:ident, $block:ident, $features:literal, $lanes:literal, $flight:literal, $vec:ty,
     $load:ident, $splat:ident, $store:ident, $stream:ident, $add:ident, $sub:ident, $mul:ident, $div:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name(start: (*const u32, bool), steps: &[Operand], out: &mut [u32], write: Write) {
            const SHORT: usize = 2 * $lanes;
            const LONG: usize = $flight * $lanes;
            let len = out.len();
            // SAFETY: blocks lie within the lanes; the rest as promised by the caller.
            unsafe {
                if len < SHORT {
                    return plain(start, steps, out);
                }
                if len < LONG {
                    for at in (0..len - SHORT).step_by(SHORT) {
                        $block::<2, false>(start, steps, out, at);
                    }
                    return $block::<2, false>(start, steps, out, len - SHORT);
                }
                // Vectors that lie across two cache lines are read twice: where there are many steps, let the operand
                // of most of them lie well. What is streamed must lie well itself.
                let most = steps.iter().find(|s| !s.single).map_or(start.0, |s| s.lanes);
                let off = match write {
                    Write::Streamed => misaligned(out.as_ptr(), $lanes * 4),
                    Write::Cached if steps.len() >= MANY_STEPS => misaligned(most, $lanes * 4),
                    Write::Cached => 0,
                };
                let mut at = 0;
                if off > 0 {
                    $block::<$flight, false>(start, steps, out, 0);
                    at = LONG - $lanes + off;
                }
                while at + LONG <= len {
                    match write {
                        Write::Cached => $block::<$flight, false>(start, steps, out, at),
                        Write::Streamed => $block::<$flight, true>(start, steps, out, at),
                    }
                    at += LONG;
                }
                if at < len {
                    $block::<$flight, false>(start, steps, out, len - LONG);
                }
            }
        }

        /// All steps over `FLIGHT` vectors from lane `at` on; with `STREAM` that lane lies on a boundary.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn $block<const FLIGHT: usize, const STREAM: bool>(
            start: (*const u32, bool),
            steps: &[Operand],
            out: &mut [u32],
            at: usize,
        ) {
            use std::arch::x86_64::*;
            // SAFETY: lanes `at..at + FLIGHT · lanes` are there, or a single one.
            unsafe {
                let mut v: [$vec; FLIGHT] = [$splat(0.0); FLIGHT];
                for i in 0..FLIGHT {
                    v[i] = if start.1 { $splat(*start.0.cast()) } else { $load(start.0.add(at + i * $lanes).cast()) };
                }
                for step in steps {
                    macro_rules! each {
                        ($op:expr) => {
                            if step.single {
                                let y = $splat(*step.lanes.cast());
                                for i in 0..FLIGHT {
                                    v[i] = $op(v[i], y);
                                }
                            } else {
                                let y = step.lanes.add(at);
                                for i in 0..FLIGHT {
                                    v[i] = $op(v[i], $load(y.add(i * $lanes).cast()));
                                }
                            }
                        };
                    }
                    match step.kind {
                        Kind::Add => each!(|x, y| $add(x, y)),
                        Kind::Sub => each!(|x, y| $sub(x, y)),
                        Kind::Mul => each!(|x, y| $mul(x, y)),
                        Kind::Div => each!(|x, y| $div(x, y)),
                        Kind::SubFrom => each!(|x, y| $sub(y, x)),
                        Kind::DivInto => each!(|x, y| $div(y, x)),
                    }
                }
                for i in 0..FLIGHT {
                    let to = out.as_mut_ptr().add(at + i * $lanes).cast();
                    if STREAM { $stream(to, v[i]) } else { $store(to, v[i]) }
                }
            }
        }
    };
}

vectors! {
    avx512, avx512_block, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", 16, 16, __m512,
    _mm512_loadu_ps, _mm512_set1_ps, _mm512_storeu_ps, _mm512_stream_ps,
    _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps
}
vectors! {
    avx2, avx2_block, "avx2,fma", 8, 8, __m256,
    _mm256_loadu_ps, _mm256_set1_ps, _mm256_storeu_ps, _mm256_stream_ps,
    _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_its_steps_one_after_another() {
        let lanes = |seed: u32, n: usize| -> Vec<u32> {
            (0..n as u32).map(|i| (((i * 7 + seed * 13) % 97) as f32 * 0.37 - 11.0).to_bits()).collect()
        };
        for n in [1, 3, 31, 32, 33, 63, 64, 100, 128, 129, 255, 256, 257, 271, 272, 300, 511, 512, 1000] {
            let (x, a, b) = (lanes(1, n), lanes(2, n), 1.7f32.to_bits());
            let steps = [
                (Step::Mul, false, (a.as_ptr(), n == 1)),
                (Step::Sub, true, (&raw const b, true)),
                (Step::Add, false, (x.as_ptr(), n == 1)),
                (Step::Div, true, (a.as_ptr(), n == 1)),
                (Step::Div, false, (&raw const b, true)),
                (Step::Sub, false, (a.as_ptr(), n == 1)),
            ];
            let steps = steps.map(|(step, reversed, lanes)| Operand::new(step, reversed, lanes));
            for (write, n_steps) in [(Write::Cached, 6), (Write::Streamed, 6), (Write::Cached, 12)] {
                let mut out = vec![0; n + 3];
                let steps: Vec<Operand> = steps.iter().cycle().take(n_steps).copied().collect();
                // SAFETY: all lanes are there.
                unsafe { run((x.as_ptr(), n == 1), &steps, &mut out[3..], write) };
                super::super::stream::finish();
                for i in 0..n {
                    let [mut y, x, a, b] = [x[i], x[i], a[i], b].map(f32::from_bits);
                    (0..n_steps / 6).for_each(|_| y = a / ((b - y * a) + x) / b - a);
                    assert_eq!(out[3 + i], y.to_bits(), "lane {i} of {n}, {write:?}");
                }
            }
        }
    }
}
