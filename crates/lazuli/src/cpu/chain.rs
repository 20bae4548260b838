//! Chains of arithmetic: `exp((x · a) + b) − c …` over many lanes, the value staying in vector registers from step to
//! step and, where a reduction follows, on into its sum. A loop per instruction would load and store it between any
//! two. Bit for bit the separate instructions.

use super::tile::Val;
use crate::ops::math::{self, Level};
use crate::ops::{Isa, RegisterStep, isa, max_f32, min_f32};

#[cfg(target_arch = "x86_64")]
use math::{F32x8, F32x16, Vector, prefetch};

/// One step, with its operand's lanes, if it has one.
#[derive(Clone, Copy)]
pub struct ChainOperand {
    kind: ChainStep,
    single: bool,
    lanes: *const u32,
    pitch: isize,
}

/// Steps told apart by side, so that the inner loop has one match.
#[derive(Clone, Copy)]
enum ChainStep {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    SubFrom,
    DivInto,
    MaxOf,
    MinOf,
    Square,
    Sqrt,
    Exp,
    Erf,
    Erfc,
}

impl ChainOperand {
    /// `value ∘ operand`, or reversed `operand ∘ value`; the operand is at its first row. Some steps have none.
    pub fn new(step: RegisterStep, reversed: bool, operand: Option<&Val>) -> ChainOperand {
        let kind = match (step, reversed) {
            (RegisterStep::Add, _) => ChainStep::Add,
            (RegisterStep::Mul, _) => ChainStep::Mul,
            (RegisterStep::Sub, false) => ChainStep::Sub,
            (RegisterStep::Sub, true) => ChainStep::SubFrom,
            (RegisterStep::Div, false) => ChainStep::Div,
            (RegisterStep::Div, true) => ChainStep::DivInto,
            (RegisterStep::Max, false) => ChainStep::Max,
            (RegisterStep::Max, true) => ChainStep::MaxOf,
            (RegisterStep::Min, false) => ChainStep::Min,
            (RegisterStep::Min, true) => ChainStep::MinOf,
            (RegisterStep::Square, _) => ChainStep::Square,
            (RegisterStep::Sqrt, _) => ChainStep::Sqrt,
            (RegisterStep::Exp, _) => ChainStep::Exp,
            (RegisterStep::Erf, _) => ChainStep::Erf,
            (RegisterStep::Erfc, _) => ChainStep::Erfc,
        };
        // What is not there is never looked at: a single lane may be any.
        static NONE: u32 = 0;
        match operand {
            Some(val) => ChainOperand { kind, single: !val.spread, lanes: val.ptr, pitch: val.pitch },
            None => ChainOperand { kind, single: true, lanes: &NONE, pitch: 0 },
        }
    }

    /// On to the next row.
    pub fn advance(&mut self) {
        self.lanes = self.lanes.wrapping_offset(self.pitch);
    }
}

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChainWrite {
    /// As usual: they are soon read again.
    Cached,
    /// Past the caches: there is more than they hold, and what is written need not be read first. Whoever asks for this
    /// calls [`super::nontemporal::finish`] in the end.
    Streamed,
}

/// The lanes a chain starts from: as many as it is run over, or a single one.
#[derive(Clone, Copy)]
pub struct Start {
    pub lanes: *const u32,
    pub single: bool,
    /// What will be read soon is asked for on the way: this many lanes on, if not 0.
    pub ahead: usize,
}

/// `out[i]` = all steps applied to `start[i]`.
///
/// # Safety
/// Every operand, and `start`, points to a single lane if it says so, else to as many as `out` has, and none overlaps `out`.
pub unsafe fn run(start: Start, steps: &[ChainOperand], out: &mut [u32], write: ChainWrite) {
    // SAFETY: the instruction set is there; the rest as promised by the caller.
    unsafe {
        match isa() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(start, steps, out, write),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(start, steps, out, write),
            _ => plain::<math::MulThenAdd>(start, steps, 0, out),
        }
    }
}

/// Steps over blocks of lanes, of which the first is `first` of the operands.
///
/// # Safety
/// Every operand, and `start`, points to a single lane if it says so, else to `first + out.len()`; none overlaps `out`.
#[inline(always)]
pub unsafe fn plain<L: Level>(start: Start, steps: &[ChainOperand], first: usize, out: &mut [u32]) {
    const BLOCK: usize = 32;
    let mut at = 0;
    while at < out.len() {
        let n = BLOCK.min(out.len() - at);
        let lanes = |lanes: *const u32, single: bool| {
            let mut block = [0f32; BLOCK];
            for (i, lane) in block[..n].iter_mut().enumerate() {
                // SAFETY: as promised by the caller of `run`.
                *lane = f32::from_bits(unsafe { *lanes.add(if single { 0 } else { first + at + i }) });
            }
            block
        };
        let mut value = lanes(start.lanes, start.single);
        for step in steps {
            let operand = lanes(step.lanes, step.single);
            for (x, y) in value.iter_mut().zip(operand) {
                *x = match step.kind {
                    ChainStep::Add => *x + y,
                    ChainStep::Sub => *x - y,
                    ChainStep::Mul => *x * y,
                    ChainStep::Div => *x / y,
                    ChainStep::Max => max_f32(*x, y),
                    ChainStep::Min => min_f32(*x, y),
                    ChainStep::SubFrom => y - *x,
                    ChainStep::DivInto => y / *x,
                    ChainStep::MaxOf => max_f32(y, *x),
                    ChainStep::MinOf => min_f32(y, *x),
                    ChainStep::Square => *x * *x,
                    ChainStep::Sqrt => x.sqrt(),
                    ChainStep::Exp => math::exp::<L>(*x),
                    ChainStep::Erf => math::erf::<L>(*x),
                    ChainStep::Erfc => math::erfc::<L>(*x),
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
#[cfg(target_arch = "x86_64")]
const MANY_STEPS: usize = 8;

/// How many lanes before `lanes` has a whole vector of `align` bytes at its boundary.
#[cfg(target_arch = "x86_64")]
fn misaligned(lanes: *const u32, align: usize) -> usize {
    (align - lanes as usize % align) % align / 4
}

/// Blocks of many vectors in flight. They may overlap: what is written twice is the same, since `out` is no operand.
///
/// # Safety
/// As for [`run`]; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn run_vectors<V: Vector, const FLIGHT: usize, const FUNCTIONS: bool>(
    start: Start,
    steps: &[ChainOperand],
    out: &mut [u32],
    write: ChainWrite,
) {
    let (short, long, len) = (2 * V::LANES, FLIGHT * V::LANES, out.len());
    let to: *mut f32 = out.as_mut_ptr().cast();
    // SAFETY: blocks lie within the lanes; the rest as promised by the caller.
    unsafe {
        if len < short {
            return plain::<math::Fused>(start, steps, 0, out);
        }
        if len < long {
            let mut at = 0;
            while at + 2 * short <= len {
                store(values::<V, 4, FUNCTIONS>(start, steps, at), to.add(at), false);
                at += 2 * short;
            }
            if at + short <= len {
                store(values::<V, 2, FUNCTIONS>(start, steps, at), to.add(at), false);
                at += short;
            }
            if at < len {
                store(values::<V, 2, FUNCTIONS>(start, steps, len - short), to.add(len - short), false);
            }
            return;
        }
        // Vectors that lie across two cache lines are read twice: where there are many steps, let the operand of most
        // of them lie well. What is streamed must lie well itself.
        let most = steps.iter().find(|s| !s.single).map_or(start.lanes, |s| s.lanes);
        let streams = write == ChainWrite::Streamed;
        let off = match write {
            ChainWrite::Streamed => misaligned(out.as_ptr(), V::LANES * 4),
            ChainWrite::Cached if steps.len() >= MANY_STEPS => misaligned(most, V::LANES * 4),
            ChainWrite::Cached => 0,
        };
        let mut at = 0;
        if off > 0 {
            store(values::<V, FLIGHT, FUNCTIONS>(start, steps, 0), to, false);
            at = long - V::LANES + off;
        }
        while at + long <= len {
            // While many steps are done, what comes next can arrive.
            if steps.len() >= MANY_STEPS {
                for i in (at + long..at + 2 * long).step_by(V::LANES) {
                    prefetch(start.lanes.wrapping_add(i));
                    prefetch(most.wrapping_add(i));
                    prefetch(to.wrapping_add(i));
                }
            }
            store(values::<V, FLIGHT, FUNCTIONS>(start, steps, at), to.add(at), streams);
            at += long;
        }
        if at < len {
            store(values::<V, FLIGHT, FUNCTIONS>(start, steps, len - long), to.add(len - long), false);
        }
    }
}

/// Vectors one after another; past the caches if they lie on a boundary and should.
///
/// # Safety
/// `to` is valid for writing `FLIGHT` vectors, and on a boundary of them if it `streams`; the processor has the
/// instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn store<V: Vector, const FLIGHT: usize>(v: [V; FLIGHT], to: *mut f32, streams: bool) {
    for i in 0..FLIGHT {
        // SAFETY: as promised by the caller.
        unsafe {
            match streams {
                true => v[i].stream(to.add(i * V::LANES)),
                false => v[i].store(to.add(i * V::LANES)),
            }
        }
    }
}

/// A function of several vectors, four of which are made side by side: more would lack registers.
#[cfg(target_arch = "x86_64")]
macro_rules! in_groups {
    ($v:ident, $function:path) => {
        if FLIGHT >= 4 {
            for i in (0..FLIGHT / 4 * 4).step_by(4) {
                let made = $function([$v[i], $v[i + 1], $v[i + 2], $v[i + 3]]);
                $v[i..i + 4].copy_from_slice(&made);
            }
        } else {
            $v = $function($v);
        }
    };
}

/// Every lane divided by the same number: the bits of a division, which takes as long as a dozen multiplications.
///
/// # Safety
/// As for the methods of [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn divided<V: Vector, const FLIGHT: usize>(mut v: [V; FLIGHT], by: f32) -> [V; FLIGHT] {
    // Quotient and remainder must be far from overflow and from subnormal numbers. Zero is not, for its sign would be lost.
    const NEAR_ONE: f32 = (1u64 << 40) as f32;
    let high = 1.0 / by;
    // SAFETY: the instruction set is there.
    unsafe {
        if !(1.0 / NEAR_ONE..=NEAR_ONE).contains(&by.abs()) {
            for i in 0..FLIGHT {
                v[i] = v[i].div(V::splat(by));
            }
            return v;
        }
        // 1/by = high + low, to twice the digits.
        let low = high.mul_add(-by, 1.0) * high;
        for i in 0..FLIGHT {
            let x = v[i];
            if !x.is_between(1.0 / NEAR_ONE, NEAR_ONE) {
                v[i] = x.div(V::splat(by));
                continue;
            }
            // Less than one unit in the last place off; then x − q·by is exact, and what corrects q by it rounds as a division does
            // (Markstein's theorem; Brisebarre, Muller and Raina, "Accelerating correctly rounded floating-point division when the
            // divisor is known in advance").
            let q = x.fma(V::splat(high), x.mul(V::splat(low)));
            v[i] = q.fma(V::splat(-by), x).fma(V::splat(high), q);
        }
    }
    v
}

/// All steps over `FLIGHT` vectors from lane `at` on.
///
/// # Safety
/// Every operand, and `start`, points to a single lane if it says so, else to `at` and `FLIGHT` vectors more; the
/// processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn values<V: Vector, const FLIGHT: usize, const FUNCTIONS: bool>(
    start: Start,
    steps: &[ChainOperand],
    at: usize,
) -> [V; FLIGHT] {
    // SAFETY: lanes `at..at + FLIGHT · LANES` are there, or a single one.
    unsafe {
        let mut v = [V::splat(0.0); FLIGHT];
        for i in 0..FLIGHT {
            v[i] = match start.single {
                true => V::splat(*start.lanes.cast()),
                false => V::load(start.lanes.add(at + i * V::LANES).cast()),
            };
        }
        if start.ahead > 0 {
            for i in 0..FLIGHT {
                prefetch(start.lanes.wrapping_add(start.ahead + at + i * V::LANES));
            }
        }
        for step in steps {
            macro_rules! each {
                (|$x:ident, $y:ident| $op:expr) => {
                    if step.single {
                        let $y = V::splat(*step.lanes.cast());
                        for i in 0..FLIGHT {
                            let $x = v[i];
                            v[i] = $op;
                        }
                    } else {
                        let lanes: *const f32 = step.lanes.add(at).cast();
                        if start.ahead > 0 {
                            for i in 0..FLIGHT {
                                prefetch(lanes.wrapping_add(start.ahead + i * V::LANES));
                            }
                        }
                        for i in 0..FLIGHT {
                            let ($x, $y) = (v[i], V::load(lanes.add(i * V::LANES)));
                            v[i] = $op;
                        }
                    }
                };
            }
            match step.kind {
                ChainStep::Add => each!(|x, y| x.add(y)),
                ChainStep::Sub => each!(|x, y| x.sub(y)),
                ChainStep::Mul => each!(|x, y| x.mul(y)),
                ChainStep::Div if step.single => v = divided(v, *step.lanes.cast()),
                ChainStep::Div => each!(|x, y| x.div(y)),
                ChainStep::Max => each!(|x, y| x.above(y).or_nan(x)),
                ChainStep::Min => each!(|x, y| x.below(y).or_nan(x)),
                ChainStep::SubFrom => each!(|x, y| y.sub(x)),
                ChainStep::DivInto => each!(|x, y| y.div(x)),
                ChainStep::MaxOf => each!(|x, y| y.above(x).or_nan(y)),
                ChainStep::MinOf => each!(|x, y| y.below(x).or_nan(y)),
                ChainStep::Square => {
                    for i in 0..FLIGHT {
                        v[i] = v[i].mul(v[i]);
                    }
                }
                ChainStep::Sqrt | ChainStep::Exp | ChainStep::Erf | ChainStep::Erfc if !FUNCTIONS => {
                    unreachable!("arithmetic only")
                }
                ChainStep::Sqrt => {
                    for i in 0..FLIGHT {
                        v[i] = v[i].sqrt();
                    }
                }
                ChainStep::Exp => in_groups!(v, math::exp_of_vectors),
                ChainStep::Erf => in_groups!(v, math::erf_of_vectors),
                ChainStep::Erfc => in_groups!(v, math::erfc_of_vectors),
            }
        }
        v
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($run:ident, $features:literal, $vector:ty, $flight:literal) => {
        /// # Safety
        /// As for [`run`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $run(start: Start, steps: &[ChainOperand], out: &mut [u32], write: ChainWrite) {
            // Functions need registers of their own.
            let is_function =
                |kind| matches!(kind, ChainStep::Sqrt | ChainStep::Exp | ChainStep::Erf | ChainStep::Erfc);
            let calls = steps.iter().any(|s| is_function(s.kind));
            // SAFETY: as promised by the caller.
            unsafe {
                match calls {
                    true => run_vectors::<$vector, 8, true>(start, steps, out, write),
                    false => run_vectors::<$vector, $flight, false>(start, steps, out, write),
                }
            }
        }
    };
}

compiled!(run_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16, 16);
compiled!(run_avx2, "avx2,fma", F32x8, 8);

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
            let (x_val, a_val, b_val) = (Val::full(x.as_ptr(), n), Val::full(a.as_ptr(), n), Val::one(&raw const b));
            let steps = [
                ChainOperand::new(RegisterStep::Mul, false, Some(&a_val)),
                ChainOperand::new(RegisterStep::Sub, true, Some(&b_val)),
                ChainOperand::new(RegisterStep::Add, false, Some(&x_val)),
                ChainOperand::new(RegisterStep::Div, true, Some(&a_val)),
                ChainOperand::new(RegisterStep::Div, false, Some(&b_val)),
                ChainOperand::new(RegisterStep::Sub, false, Some(&a_val)),
            ];
            for (write, n_steps) in [(ChainWrite::Cached, 6), (ChainWrite::Streamed, 6), (ChainWrite::Cached, 12)] {
                let mut out = vec![0; n + 3];
                let steps: Vec<ChainOperand> = steps.iter().cycle().take(n_steps).copied().collect();
                // SAFETY: all lanes are there.
                unsafe { run(Start { lanes: x.as_ptr(), single: false, ahead: 0 }, &steps, &mut out[3..], write) };
                super::super::nontemporal::finish();
                for i in 0..n {
                    let [mut y, x, a, b] = [x[i], x[i], a[i], b].map(f32::from_bits);
                    (0..n_steps / 6).for_each(|_| y = a / ((b - y * a) + x) / b - a);
                    assert_eq!(out[3 + i], y.to_bits(), "lane {i} of {n}, {write:?}");
                }
            }
        }
    }

    /// Numbers of all sizes and signs, zeros, infinities and NaN among them.
    fn any_floats(n: usize) -> Vec<u32> {
        let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 88.8, -103.5, 1.0];
        let number = |i: usize| match i % 11 {
            10 => special[i / 11 % special.len()],
            _ => ((i * 7919) as f32 * 0.618).sin() * 100.0,
        };
        (0..n).map(|i| number(i).to_bits()).collect()
    }

    #[test]
    fn steps_of_a_value_alone_give_the_bits_of_their_loops() {
        let x = any_floats(5000);
        let isa = crate::ops::isa() as usize;
        let steps = [
            (RegisterStep::Exp, &crate::ops::EXP),
            (RegisterStep::Sqrt, &crate::ops::SQRT),
            (RegisterStep::Erf, &crate::ops::ERF),
            (RegisterStep::Erfc, &crate::ops::ERFC),
        ];
        for (step, row) in steps {
            let apply = row.cpu.f32.expect("it takes floats")[isa];
            for n in [1, 7, 32, 129, 1000, 5000] {
                let (mut got, mut want) = (vec![0; n], vec![0; n]);
                let start = Start { lanes: x.as_ptr(), single: false, ahead: 0 };
                // SAFETY: all lanes are there, and the loops are those of this machine.
                unsafe {
                    run(start, &[ChainOperand::new(step, false, None)], &mut got, ChainWrite::Cached);
                    apply(&x[..n], &mut want);
                }
                let same = |a: u32, b: u32| a == b || f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan();
                let differs = (0..n).find(|i| !same(got[*i], want[*i]));
                assert!(differs.is_none(), "{step:?} of {:?}", differs.map(|i| f32::from_bits(x[i])));
            }
        }
    }

    #[test]
    fn dividing_by_a_number_gives_the_bits_of_a_division() {
        // Numbers whose reciprocals round badly, tiny and huge ones, and all mantissas of a sample.
        let mut divisors =
            vec![3.0f32, 7.0, std::f32::consts::SQRT_2, 6.0, 0.1, -255.0, 1e-30, 1e30, 0.0, f32::INFINITY];
        divisors.extend((0..200u32).map(|i| f32::from_bits(0x3f80_0000 + i.wrapping_mul(0x9e37_79b9) % 0x80_0000)));
        divisors.extend((1..40).map(|i| f32::from_bits(0x4000_0000 - i)));
        let mut x = any_floats(4096);
        x.extend((0..4096u32).map(|i| 0x3f80_0000 + i.wrapping_mul(0x85eb_ca6b) % 0x180_0000));
        let start = Start { lanes: x.as_ptr(), single: false, ahead: 0 };
        for by in divisors {
            let (by_bits, mut got) = (by.to_bits(), vec![0; x.len()]);
            let steps = [ChainOperand::new(RegisterStep::Div, false, Some(&Val::one(&raw const by_bits)))];
            // SAFETY: all lanes are there.
            unsafe { run(start, &steps, &mut got, ChainWrite::Cached) };
            for (x, got) in x.iter().map(|x| f32::from_bits(*x)).zip(got.into_iter().map(f32::from_bits)) {
                let want = x / by;
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{x:e} / {by:e} = {got:e}");
            }
        }
    }
}
