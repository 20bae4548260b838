//! A few rows times matrices of blocks: what it costs is reading the blocks once. Rows of blocks are shared out among
//! threads, 16 at a time; each result is made by one thread, in an order that depends on sizes alone.

use std::fmt;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::bytes::{self, ABREAST, ByteKernel, ByteTask};
use super::digits::{CHUNK, DigitChunk, DigitForm, MAX_DIGITS};
use super::widened::BlockMatrix;
use crate::blocks::{BlockStorage, ROWS};
use crate::cpu::threads;
use crate::ops::Isa;
use crate::target::CpuTarget;

/// More rows than this are worth widening panels for.
pub const MAX_ROWS: usize = 8;
/// Bytes of blocks that a thread takes at a time; fewer are not worth a second thread.
const TASK_BYTES: usize = 32 << 10;

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
///
/// The caller that computes the product promises that `m` rows of `k` floats and the blocks can be read and are not written meanwhile;
/// that there is room for `m` rows of `n` results and for [`BlockGemv::digits_bytes`] bytes of digits, used by nobody else; and that this
/// machine has the instruction set of the product.
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

    /// How the left operand is taken apart.
    fn form(&self) -> DigitForm {
        let format = self.blocks.format;
        let sub_len = (format.block_len() / format.n_subs()).min(CHUNK);
        DigitForm { n_digits: self.n_digits.clamp(1, MAX_DIGITS), bias: format.bias() as i32, sub_len }
    }

    /// The left operand as digits; None if some are not finite, or bytes have no products here.
    ///
    /// # Safety
    /// As for [`run_together`].
    unsafe fn digits(&self, memory: &GemvMemory) -> Option<Digits> {
        if self.digits_bytes() == 0 {
            return None;
        }
        let offset = memory.digits.align_offset(align_of::<DigitChunk>());
        let first: *mut DigitChunk = memory.digits.wrapping_add(offset).cast();
        let (pitch, form) = (self.k / CHUNK, self.form());
        for row in 0..self.digit_rows() {
            // Rows that only fill up are the last one again.
            let x = memory.a.wrapping_offset(row.min(self.m - 1) as isize * memory.a_pitch);
            // SAFETY: as promised by the caller.
            if !unsafe { form.row(self.isa, x, pitch, first.add(row * pitch)) } {
                return None;
            }
        }
        Some(Digits { first, pitch })
    }

    /// The results of some groups of 16 rows of blocks.
    ///
    /// # Safety
    /// The memory is as [`GemvMemory`] says; `digits` are those of its left operand; nobody else has these groups.
    unsafe fn groups(&self, memory: &GemvMemory, digits: &Option<Digits>, groups: Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        if let Some(digits) = digits {
            let kernel = bytes::kernel(self.blocks.format, self.form().n_digits, self.m, self.has_vnni);
            let Some(kernel) = kernel else { unreachable!("every format has a kernel") };
            // SAFETY: as promised by the caller.
            return groups.for_each(|group| unsafe { self.by_bytes(kernel, digits, memory, group) });
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = digits;
        // SAFETY: as promised by the caller.
        groups.for_each(|group| unsafe { self.widened(memory, group) });
    }

    /// # Safety
    /// As for [`BlockGemv::groups`], of this one; the kernel is that of the format, the digits and the rows.
    #[cfg(target_arch = "x86_64")]
    unsafe fn by_bytes(&self, kernel: ByteKernel, digits: &Digits, memory: &GemvMemory, group: usize) {
        let format = self.blocks.format;
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
    ///
    /// # Safety
    /// As for [`BlockGemv::groups`], of this one.
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
    ///
    /// # Safety
    /// The memory is as [`GemvMemory`] says; row and group are some of the product, and nobody else writes them.
    unsafe fn store(&self, memory: &GemvMemory, row: usize, group: usize, sums: &[f32; ROWS]) {
        let n = ROWS.min(self.n - group * ROWS);
        // SAFETY: as promised by the caller.
        unsafe { memory.out.add(row * self.n + group * ROWS).copy_from_nonoverlapping(sums.as_ptr(), n) };
    }
}

/// A product with its memory.
#[derive(Clone, Copy)]
pub struct BlockProduct<'a> {
    pub gemv: &'a BlockGemv,
    pub memory: GemvMemory,
}

impl BlockProduct<'_> {
    /// Whether both have the same left operand, and take it apart alike.
    pub fn shares_digits(&self, other: &BlockProduct) -> bool {
        let sizes = |product: &BlockProduct| (product.gemv.m, product.gemv.k, product.gemv.isa);
        let left = |product: &BlockProduct| (product.memory.a, product.memory.a_pitch, product.memory.digits);
        sizes(self) == sizes(other) && left(self) == left(other) && self.gemv.form() == other.gemv.form()
    }
}

/// Computes products that share their digits: these are made once, and the rows of all blocks are shared out as if they were of
/// one matrix.
///
/// # Safety
/// The memory of each is as [`GemvMemory`] says, and their results do not overlap.
pub unsafe fn run_together(products: &[BlockProduct]) {
    let Some(first) = products.first() else { return };
    debug_assert!(products.iter().all(|product| product.shares_digits(first)), "one left operand");
    // SAFETY: as promised by the caller.
    let digits = unsafe { first.gemv.digits(&first.memory) };
    let n_groups = |product: &BlockProduct| product.gemv.n.div_ceil(ROWS);
    let group_bytes = products.iter().map(|product| product.gemv.blocks.group_bytes()).max().unwrap_or(1);
    let grain = TASK_BYTES.div_ceil(group_bytes.max(1));
    threads::for_each_range(products.iter().map(n_groups).sum(), grain, &|groups| {
        let mut start = 0;
        for product in products {
            let end = start + n_groups(product);
            let own = groups.start.max(start)..groups.end.min(end);
            if !own.is_empty() {
                // SAFETY: groups have results of their own; the rest as promised by the caller.
                unsafe { product.gemv.groups(&product.memory, &digits, own.start - start..own.end - start) };
            }
            start = end;
        }
    });
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
