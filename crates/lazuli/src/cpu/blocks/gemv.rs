//! A few rows times a matrix of blocks: what it costs is reading the blocks once. Rows of blocks are shared out among
//! threads, 16 at a time; each result is made by one thread, in an order that depends on sizes alone.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::bytes::{self, ABREAST, ByteKernel, ByteTask};
use super::digits::{CHUNK, DigitChunk, MAX_DIGITS};
use super::widened::BlockMatrix;
use crate::blocks::{BlockStorage, ROWS};
use crate::cpu::threads;
use crate::ops::Isa;
use crate::target::CpuTarget;

/// More rows than this are worth widening panels for.
pub const MAX_ROWS: usize = 8;
/// Bytes of blocks that are worth a task.
const TASK_BYTES: usize = 64 << 10;

/// A product of a few rows of floats with a matrix of blocks, ready for memory.
#[derive(Clone, Copy)]
pub struct BlockGemv {
    blocks: BlockStorage,
    m: usize,
    k: usize,
    n: usize,
    isa: Isa,
    has_vnni: bool,
    n_digits: usize,
}

/// The memory of a product.
#[derive(Clone, Copy)]
pub struct GemvMemory {
    /// Rows of floats, one after another with this step.
    pub a: *const f32,
    pub a_pitch: isize,
    pub b: BlockMatrix,
    /// Dense rows of results.
    pub out: *mut f32,
    /// Room for digits.
    pub digits: *mut u8,
}

// SAFETY: tasks read operands and write disjoint results.
unsafe impl Sync for GemvMemory {}

impl BlockGemv {
    /// A product of `m` rows of length `k` with `n` rows of blocks, from this element of them on; None if it is none of
    /// few rows, or does not begin with tiles.
    pub fn new(
        blocks: BlockStorage,
        (m, k, n): (usize, usize, usize),
        at: isize,
        target: &CpuTarget,
    ) -> Option<BlockGemv> {
        let matrix = BlockMatrix::new(blocks, std::ptr::null(), at as usize)?;
        let block_len = blocks.format.block_len();
        let is_whole = matrix.first.is_multiple_of(block_len) && k.is_multiple_of(block_len);
        let CpuTarget { isa, has_vnni, n_digits, .. } = *target;
        (is_whole && m <= MAX_ROWS && k > 0).then_some(BlockGemv { blocks, m, k, n, isa, has_vnni, n_digits })
    }

    /// Rows of digits: as many as kernels take at once.
    fn digit_rows(&self) -> usize {
        if self.m == 1 { 1 } else { self.m.next_multiple_of(4) }
    }

    /// Bytes of digits, where products of bytes are made.
    pub fn digits_bytes(&self) -> usize {
        match self.isa {
            Isa::Baseline => 0,
            // From wherever the room starts to the next cache line.
            _ => self.digit_rows() * self.k / CHUNK * size_of::<DigitChunk>() + align_of::<DigitChunk>(),
        }
    }

    /// Computes it.
    ///
    /// # Safety
    /// Operands and results are within their memory and do not overlap; there is room for
    /// [`digits_bytes`](BlockGemv::digits_bytes).
    pub unsafe fn run(&self, memory: GemvMemory) {
        let n_groups = self.n.div_ceil(ROWS);
        let per_task = TASK_BYTES.div_ceil(self.blocks.group_bytes().max(1));
        let digits = self.digits(&memory);
        threads::for_each(n_groups.div_ceil(per_task), &|task| {
            for group in task * per_task..((task + 1) * per_task).min(n_groups) {
                // SAFETY: groups have results of their own; the rest as promised by the caller.
                unsafe {
                    #[cfg(target_arch = "x86_64")]
                    if let Some(digits) = &digits {
                        self.by_bytes(digits, &memory, group);
                        continue;
                    }
                    self.widened(&memory, group);
                }
            }
        });
        #[cfg(not(target_arch = "x86_64"))]
        let _ = digits;
    }

    /// The left operand as digits; None if some are not finite, or bytes have no products here.
    fn digits(&self, memory: &GemvMemory) -> Option<Digits> {
        if self.digits_bytes() == 0 {
            return None;
        }
        let offset = memory.digits.align_offset(align_of::<DigitChunk>());
        let first: *mut DigitChunk = memory.digits.wrapping_add(offset).cast();
        let pitch = self.k / CHUNK;
        let format = self.blocks.format;
        let sub_len = (format.block_len() / format.n_subs()).min(CHUNK);
        for row in 0..self.digit_rows() {
            for chunk in 0..pitch {
                // Rows that only fill up are the last one again.
                let at = row.min(self.m - 1) as isize * memory.a_pitch + (chunk * CHUNK) as isize;
                // SAFETY: the chunk is within the operand's row.
                let x: [f32; CHUNK] = unsafe { memory.a.wrapping_offset(at).cast::<[f32; CHUNK]>().read_unaligned() };
                let made = DigitChunk::new(&x, self.n_digits.clamp(1, MAX_DIGITS), format.bias() as i32, sub_len)?;
                // SAFETY: there is room for the digits of all rows.
                unsafe { first.add(row * pitch + chunk).write(made) };
            }
        }
        Some(Digits { first, pitch })
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn by_bytes(&self, digits: &Digits, memory: &GemvMemory, group: usize) {
        let format = self.blocks.format;
        let kernel: Option<ByteKernel> =
            bytes::kernel(format, self.n_digits.clamp(1, MAX_DIGITS), self.m, self.has_vnni);
        let Some(kernel) = kernel else { unreachable!("every format has a kernel") };
        for row in (0..self.m).step_by(ABREAST) {
            let task = ByteTask {
                layout: format.layout(),
                tiles: memory.b.tile(0, group * ROWS),
                n_tiles: self.k / format.block_len(),
                x: digits.first.wrapping_add(row * digits.pitch),
                x_pitch: digits.pitch,
            };
            let mut sums = [[0.0; ROWS]; ABREAST];
            // SAFETY: the instruction set is there; tiles and digits are within their memory.
            unsafe {
                kernel(&task, &mut sums);
                for (i, sums) in sums.iter().enumerate().take(self.m - row) {
                    self.store(memory, row + i, group, sums);
                }
            }
        }
    }

    /// By widening tiles, where there is nothing better.
    unsafe fn widened(&self, memory: &GemvMemory, group: usize) {
        const LEN: usize = 256;
        let mut tile = [[0.0f32; ROWS]; LEN];
        let mut sums = [[0.0f32; ROWS]; MAX_ROWS];
        for first in (0..self.k).step_by(LEN) {
            let rows = first..self.k.min(first + LEN);
            // SAFETY: rows and columns are within the matrix, the last ones filled up with zeros.
            unsafe {
                memory.b.widen(self.isa, rows.clone(), group * ROWS..(group + 1) * ROWS, tile[0].as_mut_ptr(), ROWS);
                for (m, sums) in sums.iter_mut().enumerate().take(self.m) {
                    let x = memory.a.wrapping_offset(m as isize * memory.a_pitch).add(first);
                    for (i, values) in tile.iter().enumerate().take(rows.len()) {
                        let x = *x.add(i);
                        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += x * value);
                    }
                }
            }
        }
        for (m, sums) in sums.iter().enumerate().take(self.m) {
            // SAFETY: as promised by the caller.
            unsafe { self.store(memory, m, group, sums) };
        }
    }

    /// Writes the results of a row and a group; rows that only fill up the last tile have none.
    unsafe fn store(&self, memory: &GemvMemory, row: usize, group: usize, sums: &[f32; ROWS]) {
        let n = ROWS.min(self.n - group * ROWS);
        // SAFETY: as promised by the caller.
        unsafe { memory.out.add(row * self.n + group * ROWS).copy_from_nonoverlapping(sums.as_ptr(), n) };
    }
}

/// The base-256 digits of all rows of x, in scratch memory: where they begin, and how many chunks a row has.
struct Digits {
    first: *mut DigitChunk,
    pitch: usize,
}

// SAFETY: nobody writes to them while tasks read them.
unsafe impl Sync for Digits {}

/// How it is made, in one line.
impl fmt::Display for BlockGemv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = self.blocks.format;
        match self.digits_bytes() {
            0 => write!(f, "GEMV of {format} blocks, widened tile by tile"),
            _ => write!(f, "GEMV of {format} blocks, {} digits of eight bits", self.n_digits),
        }
    }
}
