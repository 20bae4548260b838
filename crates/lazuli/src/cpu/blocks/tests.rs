//! Every kernel of every format against f64: how exact each number of digits is, and that threads change nothing.

use super::digits::CHUNK;
use super::{BlockGemv, BlockMatrix, BlockProduct, GemvMemory, run_together};
use crate::blocks::{BlockFormat, BlockStorage, ROWS};
use crate::cpu::threads::Workers;
use crate::ops::{Isa, isas};
use crate::target::CpuTarget;

/// Blocks of ordinary numbers, and numbers to multiply them with.
struct Case {
    blocks: BlockStorage,
    resident: Vec<u8>,
    plain: Vec<f32>,
    x: Vec<f32>,
    dims: (usize, usize, usize),
}

fn noise(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *seed >> 33
}

fn case(format: &'static BlockFormat, (m, k, n): (usize, usize, usize)) -> Case {
    let mut seed = 5;
    let mut bytes: Vec<u8> =
        (0..n * k / format.block_len() * format.block_bytes()).map(|_| noise(&mut seed) as u8).collect();
    for block in bytes.chunks_mut(format.block_bytes()) {
        for at in [Some(format.scale_at()), format.offset_at()].into_iter().flatten() {
            let scale = half::f16::from_f32(0.002 + (noise(&mut seed) % 100) as f32 * 1e-4);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    let blocks = BlockStorage { format, row_len: k };
    let mut resident = vec![0; blocks.size_bytes(n)];
    blocks.interleave(&bytes, &mut resident);
    let x = (0..m * k).map(|_| (noise(&mut seed) % 2001) as f32 * 1e-3 - 1.0 + 1e-7).collect();
    Case { blocks, resident, plain: format.widen(&bytes).expect("whole blocks"), x, dims: (m, k, n) }
}

impl Case {
    fn run(&self, target: &CpuTarget, n_threads: usize) -> Vec<f32> {
        let (m, k, n) = self.dims;
        let gemv = BlockGemv::new(self.blocks, self.dims, 0, target).expect("few rows of whole blocks");
        let (mut out, mut digits) = (vec![f32::NAN; m * n], vec![0u8; gemv.digits_bytes()]);
        let b = BlockMatrix::new(self.blocks, self.resident.as_ptr(), 0).expect("from the first row on");
        let memory = GemvMemory {
            a: self.x.as_ptr(),
            a_pitch: k as isize,
            b,
            out: out.as_mut_ptr(),
            digits: digits.as_mut_ptr(),
        };
        // SAFETY: all of it is there.
        Workers::with(n_threads).enter(|| unsafe { run_together(&[BlockProduct { gemv: &gemv, memory }]) });
        out
    }

    /// Compares with f64, under the error that so many digits are said to have.
    fn check(&self, out: &[f32], n_digits: i32, what: &str) {
        let (m, k, n) = self.dims;
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let (x, w) = (&self.x[i * k..][..k], &self.plain[j * k..][..k]);
            let (mut sum, mut size, mut rounded) = (0.0, 0.0, 0.0);
            for (x, w) in x.chunks(CHUNK).zip(w.chunks(CHUNK)) {
                let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs())) as f64;
                for (x, w) in x.iter().zip(w) {
                    sum += *x as f64 * *w as f64;
                    size += (*x as f64 * *w as f64).abs();
                    // Half a unit, which is at most 1.01 · 2⁻⁽⁸ᵈ⁻²⁾ of the largest.
                    rounded += (*w as f64).abs() * largest * 0.505 * 2f64.powi(2 - 8 * n_digits);
                }
            }
            let error = (out[i * n + j] as f64 - sum).abs();
            assert!(error <= rounded + 2e-6 * size, "{what}: {} instead of {sum} at {i}, {j}", out[i * n + j]);
        }
    }
}

fn targets() -> Vec<CpuTarget> {
    let vnni = |target: CpuTarget| [CpuTarget { has_vnni: false, ..target.clone() }, target];
    let digits = |target: CpuTarget| [1, 2, 3].map(|n_digits| CpuTarget { n_digits, ..target.clone() });
    isas().map(|isa| CpuTarget::new(isa, 1)).flat_map(vnni).flat_map(digits).collect()
}

#[test]
fn digits_are_as_exact_as_they_are_said_to_be() {
    for format in BlockFormat::all() {
        for m in [1, 3, 8] {
            let case = case(format, (m, 512, 2 * ROWS + 5));
            for target in targets() {
                let n_digits = if target.isa == Isa::Baseline { 3 } else { target.n_digits as i32 };
                let out = case.run(&target, 1);
                case.check(&out, n_digits, &format!("{format}, {m} rows, {target:?}"));
            }
        }
    }
}

#[test]
fn three_digits_are_nearer_than_sums_of_f32() {
    for format in BlockFormat::all() {
        let case = case(format, (1, 1024, ROWS));
        let exact =
            |j: usize| -> f64 { case.x.iter().zip(&case.plain[j * 1024..]).map(|(x, w)| *x as f64 * *w as f64).sum() };
        let plain =
            |j: usize| case.x.iter().zip(&case.plain[j * 1024..][..1024]).fold(0.0f32, |sum, (x, w)| sum + x * w);
        let worst = |of: &dyn Fn(usize) -> f32| (0..ROWS).map(|j| (of(j) as f64 - exact(j)).abs()).fold(0.0, f64::max);
        for target in targets().into_iter().filter(|target| target.n_digits == 3) {
            let out = case.run(&target, 1);
            assert!(worst(&|j| out[j]) <= 1.01 * worst(&plain), "{format}, {target:?}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_are_multiplied_as_floats() {
    let format = BlockFormat::named("Q4_0").expect("a format");
    for (value, expect) in [(f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN), (3e38, f32::INFINITY)] {
        let mut case = case(format, (1, 64, 3));
        case.x[40] = value;
        case.x[41] = value;
        for target in targets() {
            let out = case.run(&target, 1);
            for (j, out) in out.iter().enumerate() {
                let (a, b) = (case.plain[j * 64 + 40] as f64, case.plain[j * 64 + 41] as f64);
                let exact = value as f64 * a + value as f64 * b;
                let is_right = match expect.is_nan() || exact.is_nan() {
                    true => out.is_nan(),
                    false if value.is_infinite() => *out as f64 == exact,
                    false => (*out as f64 - exact).abs() <= exact.abs() * 1e-5,
                };
                assert!(is_right, "{value}: {out} instead of {exact}, {target:?}");
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for format in BlockFormat::all() {
        let case = case(format, (2, 512, 40 * ROWS + 3));
        let target = CpuTarget::new(crate::ops::isa(), 2);
        let bits = |out: Vec<f32>| out.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        assert_eq!(bits(case.run(&target, 1)), bits(case.run(&target, 3)), "{format}");
    }
}
