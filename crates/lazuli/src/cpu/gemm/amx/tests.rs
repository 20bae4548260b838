//! Tests: the emulator against bytes and numbers written by hand; the micro-kernel, on the processor or emulated, against sums in f64.

use std::ptr::{null, null_mut};

use super::emulator::{self, Address, Instruction, TileState, decode};
use super::split::split;
use super::*;
use crate::blocks::{BlockFormat, BlockStorage, Storage};
use crate::cpu::gemm::{F32, Gemm, GemmLists};
use crate::cpu::threads::Workers;
use crate::kernel::AxisParts;
use crate::ops::{Isa, isa};

/// General registers by the number that instructions give them.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBP: usize = 5;
const RSI: usize = 6;
const RDI: usize = 7;
const R8: usize = 8;
const R13: usize = 13;

fn at(base: usize, index: Option<usize>, scale: u32, displacement: i32) -> Address {
    Address { base, index, scale, displacement }
}

#[test]
fn instructions_are_decoded_from_their_bytes() {
    let cases: &[(&[u8], Instruction)] = &[
        (&[0xc4, 0xe2, 0x78, 0x49, 0xc0], Instruction::Release),
        (&[0xc4, 0xe2, 0x78, 0x49, 0x07], Instruction::LoadConfig(at(RDI, None, 0, 0))),
        (&[0xc4, 0xc2, 0x78, 0x49, 0x45, 0x10], Instruction::LoadConfig(at(R13, None, 0, 16))),
        (&[0xc4, 0xe2, 0x7b, 0x49, 0xe8], Instruction::Zero(5)),
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x24, 0x07], Instruction::Load(4, at(RDI, Some(RAX), 0, 0))),
        (
            &[0xc4, 0xe2, 0x7b, 0x4b, 0xbc, 0x06, 0x00, 0x0c, 0x00, 0x00],
            Instruction::Load(7, at(RSI, Some(RAX), 0, 0xc00)),
        ),
        (&[0xc4, 0x82, 0x7b, 0x4b, 0x4c, 0x68, 0xc0], Instruction::Load(1, at(R8, Some(R13), 1, -64))),
        (&[0xc4, 0xe2, 0x7b, 0x4b, 0x44, 0x65, 0x00], Instruction::Load(0, at(RBP, None, 1, 0))),
        (&[0xc4, 0xe2, 0x7a, 0x4b, 0x14, 0x0a], Instruction::Store(at(RDX, Some(RCX), 0, 0), 2)),
        (&[0xc4, 0xe2, 0x42, 0x5c, 0xcc], Instruction::DotBf16(1, 4, 7)),
    ];
    for (bytes, instruction) in cases {
        // SAFETY: the bytes are a whole instruction.
        assert_eq!(unsafe { decode(bytes.as_ptr()) }, Some((*instruction, bytes.len())), "{bytes:x?}");
    }
    // UD2, VPBROADCASTD, TDPBSSD, TDPFP16PS, TDPBF16PS with W = 1 and TILELOADDT1.
    let others: [&[u8]; 6] = [
        &[0x0f, 0x0b],
        &[0xc4, 0xe2, 0x7d, 0x58, 0xc0],
        &[0xc4, 0xe2, 0x43, 0x5e, 0xcc],
        &[0xc4, 0xe2, 0x43, 0x5c, 0xcc],
        &[0xc4, 0xe2, 0xc2, 0x5c, 0xcc],
        &[0xc4, 0xe2, 0x79, 0x4b, 0x24, 0x07],
    ];
    for bytes in others {
        // SAFETY: as above.
        assert_eq!(unsafe { decode(bytes.as_ptr()) }, None, "{bytes:x?}");
    }
}

/// The memory that configures these registers: rows, and bytes of a row.
fn config(shapes: &[(u8, u8)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    for (register, (n_rows, n_bytes)) in shapes.iter().enumerate() {
        (bytes[48 + register], bytes[16 + 2 * register]) = (*n_rows, *n_bytes);
    }
    bytes
}

/// Executes an instruction whose address is in RDI and whose pitch of rows is in RAX.
fn execute(state: &mut TileState, instruction: Instruction, memory: *const u8, pitch: usize) -> Option<()> {
    let registers = |number: usize| match number {
        RDI => memory as usize,
        RAX => pitch,
        _ => panic!("register {number} is not asked for"),
    };
    // SAFETY: callers pass memory that the instruction may address.
    unsafe { state.execute(instruction, &registers) }
}

const CONFIGURE: Instruction = Instruction::LoadConfig(Address { base: RDI, index: None, scale: 0, displacement: 0 });

fn load(tile: usize) -> Instruction {
    Instruction::Load(tile, at(RDI, Some(RAX), 0, 0))
}

/// The sums after `times` products of pairs, with sums in tile register 0, rows in 1 and columns in 2.
fn dot(left: &[&[[f32; 2]]], right: &[&[[f32; 2]]], before: f32, times: usize) -> Vec<Vec<f32>> {
    let (n_rows, n_pairs, n_columns) = (left.len(), right.len(), right[0].len());
    let mut state = TileState::new();
    let row_bytes = |n: usize| (4 * n) as u8;
    let shapes = [
        (n_rows as u8, row_bytes(n_columns)),
        (n_rows as u8, row_bytes(n_pairs)),
        (n_pairs as u8, row_bytes(n_columns)),
    ];
    execute(&mut state, CONFIGURE, config(&shapes).as_ptr(), 0).expect("a legal configuration");
    let sums = vec![before; n_rows * n_columns];
    execute(&mut state, load(0), sums.as_ptr().cast(), 4 * n_columns).expect("configured");
    for (tile, rows) in [(1, left), (2, right)] {
        let halves: Vec<u16> = rows.concat().concat().iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        execute(&mut state, load(tile), halves.as_ptr().cast(), 4 * rows[0].len()).expect("configured");
    }
    for _ in 0..times {
        execute(&mut state, Instruction::DotBf16(0, 1, 2), null(), 0).expect("tiles that fit");
    }
    let mut out = vec![0.0f32; n_rows * n_columns];
    let store = Instruction::Store(at(RDI, Some(RAX), 0, 0), 0);
    execute(&mut state, store, out.as_mut_ptr().cast(), 4 * n_columns).expect("configured");
    out.chunks(n_columns).map(<[f32]>::to_vec).collect()
}

#[test]
fn products_of_pairs_are_added_to_what_is_there() {
    let (left, right): ([&[[f32; 2]]; 2], [&[[f32; 2]]; 1]) =
        ([&[[1.0, 2.0]], &[[3.0, -4.0]]], [&[[5.0, 6.0], [7.0, 8.0], [0.5, -0.25]]]);
    assert_eq!(dot(&left, &right, 0.0, 1), [[17.0, 23.0, 0.0], [-9.0, -11.0, 2.5]]);
    assert_eq!(dot(&left, &right, 100.0, 2), [[134.0, 146.0, 100.0], [82.0, 78.0, 105.0]]);
}

#[test]
fn halves_of_pairs_are_summed_apart_and_rounded_to_even() {
    // 2²⁴ + 1 is a tie and rounds to 2²⁴, 1 + 1 is 2: together 2²⁴ + 2. In a single sum every 1 would be lost to rounding.
    let (left, right): ([&[[f32; 2]]; 1], [&[[f32; 2]]; 2]) =
        ([&[[4096.0, 1.0], [1.0, 1.0]]], [&[[4096.0, 1.0]], &[[1.0, 1.0]]]);
    assert_eq!(dot(&left, &right, 0.0, 1), [[16_777_218.0]]);
    // Both sums are added together before they are added to the result: 2²⁴ + (1 + 1).
    assert_eq!(dot(&[&[[1.0, 1.0]]], &[&[[1.0, 1.0]]], 16_777_216.0, 1), [[16_777_218.0]]);
}

#[test]
fn subnormal_numbers_are_read_and_written_as_zero() {
    let power = |e: i32| 2f32.powi(e);
    assert_eq!(dot(&[&[[power(-100), 0.0]]], &[&[[power(-26), 0.0]]], 0.0, 1), [[power(-126)]]);
    assert_eq!(dot(&[&[[power(-100), 0.0]]], &[&[[power(-27), 0.0]]], 0.0, 1), [[0.0]]);
    assert_eq!(dot(&[&[[power(-127), 0.0]]], &[&[[power(20), 0.0]]], 0.0, 1), [[0.0]]);
    assert_eq!(dot(&[&[[1.0, 0.0]]], &[&[[0.0, 0.0]]], power(-127), 1), [[0.0]]);
    // Two normal products that cancel to a subnormal sum.
    assert_eq!(dot(&[&[[power(-120), 1.5 * power(-120)]]], &[&[[-power(-6), power(-6)]]], 0.0, 1), [[0.0]]);
}

#[test]
fn infinities_and_nan_propagate() {
    assert!(dot(&[&[[f32::INFINITY, 0.0]]], &[&[[0.0, 1.0]]], 0.0, 1)[0][0].is_nan());
    assert_eq!(dot(&[&[[f32::INFINITY, 0.0]]], &[&[[-1.0, 1.0]]], 0.0, 1), [[f32::NEG_INFINITY]]);
}

#[test]
fn instructions_that_fault_on_a_processor_are_refused() {
    let mut state = TileState::new();
    let zero = Instruction::Zero(0);
    assert_eq!(execute(&mut state, zero, null(), 0), None, "not configured");
    let mut wrong = config(&[(2, 8)]);
    wrong[0] = 2;
    assert_eq!(execute(&mut state, CONFIGURE, wrong.as_ptr(), 0), None, "palette 2");
    for shapes in [[(17, 64)], [(16, 68)], [(0, 4)], [(4, 0)]] {
        assert_eq!(execute(&mut state, CONFIGURE, config(&shapes).as_ptr(), 0), None, "{shapes:?}");
    }
    let good = config(&[(2, 8), (2, 4), (1, 8), (2, 8)]);
    execute(&mut state, CONFIGURE, good.as_ptr(), 0).expect("a legal configuration");
    assert_eq!(execute(&mut state, zero, null(), 0), Some(()));
    assert_eq!(execute(&mut state, Instruction::Zero(4), null(), 0), None, "a register that has no shape");
    assert_eq!(execute(&mut state, Instruction::DotBf16(0, 1, 2), null(), 0), Some(()));
    assert_eq!(execute(&mut state, Instruction::DotBf16(0, 2, 1), null(), 0), None, "shapes that do not fit");
    assert_eq!(execute(&mut state, Instruction::DotBf16(0, 1, 1), null(), 0), None, "a register twice");
    execute(&mut state, Instruction::Release, null(), 0).expect("always");
    assert_eq!(execute(&mut state, zero, null(), 0), None, "released");
}

#[test]
fn registers_keep_what_is_beyond_their_rows_at_zero() {
    let mut state = TileState::new();
    execute(&mut state, CONFIGURE, config(&[(3, 12)]).as_ptr(), 0).expect("a legal configuration");
    let memory: Vec<u8> = (1..=255).collect();
    execute(&mut state, load(0), memory.as_ptr(), 20).expect("configured");
    let tile = state.tile(0);
    assert_eq!(tile[2][..12], memory[40..52]);
    assert!(tile[0][12..].iter().chain(&tile[3]).all(|byte| *byte == 0));
}

/// |x − hi − lo| is at most 2⁻¹⁷ of |x|, and |lo| at most 2⁻⁸ of |x|. So the part of a product x·y that three passes leave out (lo·lo, and
/// each number's rest times the other number) is at most 2⁻¹⁵ of |x·y|.
#[test]
fn a_float_is_within_the_proven_bound_of_its_two_bf16() {
    for mantissa in 0..1 << 23 {
        let x = f32::from_bits(127 << 23 | mantissa);
        let [hi, lo] = split(x).map(f32::from_bits);
        let rest = f64::from(x) - f64::from(hi) - f64::from(lo);
        assert!(f64::from(lo).abs() <= f64::from(x) * 2f64.powi(-8), "{x}");
        assert!(rest.abs() <= f64::from(x) * 2f64.powi(-17), "{x}");
        assert!(hi.to_bits() & 0xffff == 0 && lo.to_bits() & 0xffff == 0, "{x}");
    }
    assert_eq!(split(-0.0).map(f32::from_bits), [0.0, 0.0]);
    // A tie goes to the even neighbour, and lo holds the remainder exactly.
    assert_eq!(split(1.0 + 2f32.powi(-8)).map(f32::from_bits), [1.0, 2f32.powi(-8)]);
    assert_eq!(split(1.0 + 3.0 * 2f32.powi(-8)).map(f32::from_bits), [1.0 + 2f32.powi(-6), -2f32.powi(-8)]);
}

/// The proven bound of the error of a sum of `k` products, relative to the sum of their absolute values. Three passes leave out at most
/// 2⁻¹⁵; sums of 16 products, of both halves of pairs and of all steps and blocks are each rounded.
fn proven_bound(k: usize) -> f64 {
    2f64.powi(-15) + (16 + 2 + 3 * k.min(DEPTH).div_ceil(STEP) + k.div_ceil(DEPTH)) as f64 * 2f64.powi(-24)
}

/// The documented bound for sums whose terms have last bits of all kinds.
const USUAL_BOUND: f64 = 1e-5;

/// A product of dense matrices.
struct Product {
    m: usize,
    k: usize,
    n: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

fn random(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*seed >> 11) as f64 / (1u64 << 53) as f64
}

impl Product {
    fn new([m, k, n]: [usize; 3], mut value: impl FnMut(&mut u64) -> f32) -> Product {
        let mut seed = (m * 31 + k * 7 + n) as u64;
        let mut values = |n: usize| (0..n).map(|_| value(&mut seed)).collect();
        Product { m, k, n, a: values(m * k), b: values(k * n) }
    }

    /// Numbers between −1 and 1.
    fn even(shape: [usize; 3]) -> Product {
        Product::new(shape, |seed| random(seed) as f32 * 2.0 - 1.0)
    }

    /// The results of the product, by AMX or by AVX-512.
    fn run(&self, by_amx: bool, n_threads: usize) -> Vec<f32> {
        let Product { m, k, n, .. } = *self;
        let b_steps = Some((n as isize, 1));
        self.run_with(Gemm { b: self.b.as_ptr().cast(), b_steps, ..gemm([m, k, n], by_amx) }, n_threads)
    }

    fn run_with(&self, gemm: Gemm, n_threads: usize) -> Vec<f32> {
        emulator::install();
        let mut out = vec![f32::NAN; self.m * self.n];
        let gemm = Gemm { a: self.a.as_ptr(), out: out.as_mut_ptr(), ..gemm };
        let k_parts = AxisParts::whole(self.k);
        let mut split = vec![u32::MAX; gemm.split_words(k_parts)];
        let gemm = Gemm { split: split.as_mut_ptr(), ..gemm };
        let mut rooms = vec![f32::NAN; n_threads * gemm.room()];
        let rooms = PackBuffers { first: rooms.as_mut_ptr(), size: gemm.room() };
        Workers::with(n_threads).enter(|| {
            let [tasks, _] = gemm.tasks(gemm.m, k_parts, n_threads);
            // SAFETY: operands, results and rooms are there.
            unsafe { gemm.run(GemmLists::default(), rooms, (k_parts, tasks), null_mut()) }
        });
        out
    }

    /// A result in f64, and the sum of the absolute values of its terms.
    fn exact(&self, row: usize, column: usize) -> (f64, f64) {
        let term = |l: usize| f64::from(self.a[row * self.k + l]) * f64::from(self.b[l * self.n + column]);
        (0..self.k).map(term).fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    }

    /// The largest error of a result, relative to the sum of the absolute values of its terms.
    #[track_caller]
    fn check(&self, out: &[f32], bound: f64) -> f64 {
        let mut worst = 0f64;
        for row in 0..self.m {
            for column in 0..self.n {
                let ((exact, size), got) = (self.exact(row, column), f64::from(out[row * self.n + column]));
                let error = (got - exact).abs();
                let shape = [self.m, self.k, self.n];
                assert!(error <= bound * size, "{got} instead of {exact} at {row}, {column} of {shape:?}");
                worst = worst.max(if size > 0.0 { error / size } else { 0.0 });
            }
        }
        worst
    }
}

fn gemm([m, k, n]: [usize; 3], by_amx: bool) -> Gemm {
    Gemm {
        isa: Isa::Avx512,
        m,
        k,
        n,
        a: null(),
        a_steps: Some((k as isize, 1)),
        b: null(),
        b_storage: F32,
        b_first: 0,
        b_steps: None,
        panels: None,
        packed: null(),
        by_amx,
        split: null_mut(),
        out: null_mut(),
    }
}

/// Whether the processor has AVX-512, without which AMX is not used.
fn has_avx512() -> bool {
    isa() == Isa::Avx512
}

/// Tiles, steps, panels and blocks that are full, one element short and one element over.
const SHAPES: [[usize; 3]; 11] = [
    [16, 32, 16],
    [1, 1, 1],
    [17, 33, 31],
    [32, 64, 32],
    [33, 65, 33],
    [40, 100, 65],
    [65, 31, 96],
    [31, 513, 40],
    [70, 96, 129],
    [20, 1060, 20],
    [33, 40, 600],
];

#[test]
fn three_passes_are_within_the_documented_bound() {
    for shape in SHAPES.into_iter().filter(|_| has_avx512()) {
        let product = Product::even(shape);
        let out = product.run(true, 1);
        // A sum of one term may have the largest error of all.
        let worst = product.check(&out, if shape[1] > 1 { USUAL_BOUND } else { proven_bound(1) });
        assert!(shape[1] < 32 || worst > 1e-8, "{shape:?} did not go through bf16");
        assert_ne!(out, product.run(false, 1), "{shape:?} did not go through AMX");
    }
}

#[test]
fn sums_that_cancel_are_within_the_documented_bound() {
    if !has_avx512() {
        return;
    }
    // Each term nearly cancels another.
    let mut product = Product::even([35, 256, 37]);
    for l in 0..128 {
        for row in 0..35 {
            product.a[row * 256 + 128 + l] = product.a[row * 256 + l];
        }
        for column in 0..37 {
            product.b[(128 + l) * 37 + column] = -product.b[l * 37 + column] * (1.0 + 1e-6);
        }
    }
    product.check(&product.run(true, 1), USUAL_BOUND);
}

#[test]
fn numbers_of_all_sizes_are_within_the_bound_that_is_proven() {
    if !has_avx512() {
        return;
    }
    // Mostly a single term is as large as all the others together.
    let value = |seed: &mut u64| {
        let size = 2f32.powi((random(seed) * 40.0) as i32 - 20);
        (random(seed) as f32 * 2.0 - 1.0) * size
    };
    let product = Product::new([40, 200, 70], value);
    product.check(&product.run(true, 1), proven_bound(200));
}

#[test]
fn the_worst_of_numbers_are_within_the_bound_that_is_proven() {
    if !has_avx512() {
        return;
    }
    // lo·lo is nearly 2⁻¹⁶ of hi·hi; the second number also has a rest x − hi − lo of 2⁻¹⁷. All errors have the same sign.
    let (first, unit) = (1.0 + 2f32.powi(-8), 2f32.powi(-17));
    for (x, least) in [(first, 1.5e-5), (first - 3.0 * unit, 2.9e-5)] {
        let product = Product::new([32, 96, 32], |_| x);
        let worst = product.check(&product.run(true, 1), proven_bound(96));
        assert!(worst > least, "{worst} of {x}");
    }
}

#[test]
fn whole_numbers_are_exact() {
    for shape in SHAPES.into_iter().filter(|_| has_avx512()) {
        let product = Product::new(shape, |seed| (random(seed) * 200.0).floor() as f32 - 100.0);
        assert_eq!(product.run(true, 1), product.run(false, 1), "{shape:?}");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for shape in [[40, 100, 700], [600, 600, 40], [70, 1060, 300]].into_iter().filter(|_| has_avx512()) {
        let mut product = Product::even(shape);
        // Some blocks cannot go through AMX.
        product.a[shape[1] + 3] = 1e-40;
        let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        let one = bits(product.run(true, 1));
        assert!([2, 3].iter().all(|n_threads| bits(product.run(true, *n_threads)) == one), "{shape:?}");
    }
}

#[test]
fn infinities_nan_and_huge_numbers_give_the_results_of_avx512() {
    if !has_avx512() {
        return;
    }
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3.4e38, -1.8e38] {
        for in_a in [true, false] {
            let mut product = Product::even([70, 100, 80]);
            match in_a {
                true => product.a[40 * 100 + 50] = value,
                false => product.b[50 * 80 + 40] = value,
            }
            let (by_amx, without) = (product.run(true, 1), product.run(false, 1));
            for (i, (got, expect)) in by_amx.iter().zip(without).enumerate() {
                let is_reached = if in_a { i / 80 == 40 } else { i % 80 == 40 };
                let is_right = match is_reached {
                    true => *got == expect || got.is_nan() && expect.is_nan(),
                    false => (got - expect).abs() <= 100.0 * USUAL_BOUND as f32,
                };
                assert!(is_right, "{value} in a: {in_a}: {got} instead of {expect} at {i}");
            }
        }
    }
}

#[test]
fn sums_that_are_too_large_are_infinite_and_no_others() {
    if !has_avx512() {
        return;
    }
    // A product of 2¹²⁵ is finite, but a sum of 64 of them is not; sums of products of 2¹⁰¹ are finite at each step.
    for scale in [2f32.powi(62), 2f32.powi(50)] {
        let product = Product::new([32, 64, 32], |_| 1.5 * scale);
        let expect = 64.0 * 2.25 * scale * scale;
        assert!(product.run(true, 1).iter().all(|x| *x == expect), "{scale} for {expect}");
    }
}

#[test]
fn subnormal_numbers_products_and_sums_are_kept() {
    if !has_avx512() {
        return;
    }
    // Subnormal numbers, subnormal rests of numbers, and subnormal products and sums of numbers that are not.
    for (of_a, of_b) in [(-130, 10), (-110, 20), (-60, -70), (-80, -40), (-50, -50), (20, -149)] {
        let mut product = Product::even([35, 64, 33]);
        product.a.iter_mut().for_each(|x| *x = (f64::from(*x) * 2f64.powi(of_a)) as f32);
        product.b.iter_mut().for_each(|x| *x = (f64::from(*x) * 2f64.powi(of_b)) as f32);
        let out = product.run(true, 1);
        for (i, got) in out.iter().enumerate() {
            let (exact, size) = product.exact(i / 33, i % 33);
            // Each of the sums may be rounded to a multiple of the smallest subnormal number.
            let allowed = USUAL_BOUND * size + 64.0 * 2f64.powi(-149);
            let error = (f64::from(*got) - exact).abs();
            assert!(error <= allowed, "{got:e} instead of {exact:e} for 2^{of_a} and 2^{of_b}");
        }
    }
}

#[test]
fn every_format_of_blocks_is_within_the_documented_bound() {
    for format in BlockFormat::all().iter().filter(|_| has_avx512()) {
        for [m, k, n] in [[33, 512, 70], [16, 1024, 37]] {
            let mut seed = 3;
            let n_bytes = n * k / format.block_len() * format.block_bytes();
            let mut bytes: Vec<u8> = (0..n_bytes).map(|_| (random(&mut seed) * 256.0) as u8).collect();
            for block in bytes.chunks_mut(format.block_bytes()) {
                for at in [Some(format.scale_at()), format.offset_at()].into_iter().flatten() {
                    let scale = half::f16::from_f32(0.002 + random(&mut seed) as f32 * 0.01);
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
            let blocks = BlockStorage { format, row_len: k };
            let mut resident = vec![0; blocks.size_bytes(n)];
            blocks.interleave(&bytes, &mut resident);
            let plain = format.widen(&bytes).expect("whole blocks");
            let mut product = Product::even([m, k, n]);
            product.b = (0..k * n).map(|i| plain[i % n * k + i / n]).collect();
            let (b, b_storage) = (resident.as_ptr(), Storage::Blocks(blocks));
            let gemm = Gemm { b, b_storage, b_steps: Some((1, k as isize)), ..gemm([m, k, n], true) };
            let out = product.run_with(gemm, 1);
            product.check(&out, USUAL_BOUND);
            assert_eq!(out, product.run(true, 2), "{format} in place and widened before");
        }
    }
}
