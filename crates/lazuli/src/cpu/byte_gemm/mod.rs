//! Products of unsigned bytes, summed as 32-bit integers that wrap. The right operand is packed as a whole: panels of 16 columns,
//! of each of which four neighbouring rows are four neighbouring bytes (a quad). The left one is copied a block of rows at a time.
//!
//! Vector units multiply unsigned bytes with signed ones. So 128 is taken from each byte of the left operand, and a panel begins
//! with what that leaves out: `Σ a·b = Σ (a − 128)·b + 128 · Σ b`. Integers that wrap may be added in any order, so every
//! instruction set, cut and number of threads gives the same bits.

mod kernel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use self::kernel::{ByteTile, QuadKernel, kernel, panel_bytes};
use super::gemm::PackBuffers;
use super::tasks::TaskGrid;
use super::threads;
use crate::kernel::{AxisList, MatmulArgs, OperandArgs};
use crate::target::CpuTarget;

/// Columns of a panel.
const LANES: usize = 16;
/// Bytes that are multiplied and summed together.
const QUAD: usize = 4;
/// What is taken from each byte of the left operand.
const MIDDLE: u8 = 128;
/// Rows of a block: so many are copied, and their sums are handed over together.
const BLOCK_ROWS: usize = 32;
/// Panels of a block at most, and how many bytes they should have: few enough for a second-level cache.
const BLOCK_PANELS: usize = 32;
const BLOCK_BYTES: usize = 512 << 10;
/// Multiplications that are worth a task, and bytes of panels, which few rows do nothing but read.
const TASK: usize = 4 << 20;
const TASK_BYTES: usize = 256 << 10;
/// Tasks for each thread, so that one that is held up delays little.
const TASKS_PER_THREAD: usize = 4;

/// The sizes of such a product, still without its memory.
#[derive(Clone, Copy)]
pub struct ByteGemm {
    m: usize,
    k: usize,
    n: usize,
    kernel: &'static QuadKernel,
}

/// The memory of one matrix of a product.
#[derive(Clone, Copy)]
pub struct ByteMemory<'a> {
    /// The first byte of the left operand, and how it lies.
    pub a: *const u8,
    pub a_lies: &'a OperandArgs,
    /// The right operand, packed.
    pub packed: *const u8,
    pub rooms: PackBuffers,
}

// SAFETY: tasks read operands and write to rooms of their own.
unsafe impl Sync for ByteMemory<'_> {}

/// What becomes of sums.
#[derive(Clone, Copy)]
pub enum ByteOut<'a> {
    /// They are the result, dense rows from here on.
    Results(ByteResults),
    /// Each block is handed over: its rows, its columns and where its sums are, row after row.
    Blocks(&'a (dyn Fn(Range<usize>, Range<usize>, *const u32) + Sync)),
}

/// Where results begin.
#[derive(Clone, Copy)]
pub struct ByteResults(pub *mut i32);

// SAFETY: tasks write apart.
unsafe impl Sync for ByteResults {}

/// Where packed panels go.
#[derive(Clone, Copy)]
struct PanelsOut(*mut u8, *const u8);

// SAFETY: tasks write panels of their own and read the operand.
unsafe impl Sync for PanelsOut {}

impl PanelsOut {
    fn get(&self) -> (*mut u8, *const u8) {
        (self.0, self.1)
    }
}

impl ByteGemm {
    /// The product with these sizes.
    pub fn new(args: &MatmulArgs, target: &CpuTarget) -> ByteGemm {
        let MatmulArgs { m, k, n, .. } = *args;
        ByteGemm { m, k, n, kernel: kernel(target.isa, target.has_vnni, m) }
    }

    fn n_quads(&self) -> usize {
        self.k.div_ceil(QUAD)
    }

    fn n_panels(&self) -> usize {
        self.n.div_ceil(LANES)
    }

    /// Words of four bytes that the packed right operand has.
    pub fn packed_len(&self) -> usize {
        self.n_panels().saturating_mul(panel_bytes(self.n_quads()) / 4)
    }

    /// Panels of a block: whole tiles of them.
    fn block_panels(&self) -> usize {
        let n = (BLOCK_BYTES / panel_bytes(self.n_quads())).min(BLOCK_PANELS) / self.kernel.n_panels;
        n.max(1) * self.kernel.n_panels
    }

    /// Words that a thread needs room for: rows of the left operand, and sums.
    pub fn room(&self) -> usize {
        let rows = BLOCK_ROWS.min(self.m);
        rows * (self.n_quads() + (self.block_panels() * LANES).min(self.n))
    }

    /// Packs the right operand, whose first byte this is, on all threads.
    ///
    /// # Safety
    /// All elements that `lies` reaches are within the operand's memory, which nobody writes meanwhile; there is room for
    /// [`packed_len`](ByteGemm::packed_len) words, aligned for them, used by nobody else.
    pub unsafe fn pack(&self, b: *const u8, lies: &OperandArgs, to: *mut u8) {
        let shared = PanelsOut(to, b);
        let grain = TASK_BYTES.div_ceil(panel_bytes(self.n_quads()));
        threads::for_each_range(self.n_panels(), grain, &|panels| {
            let (to, b) = shared.get();
            for panel in panels {
                let columns = panel * LANES..self.n.min((panel + 1) * LANES);
                // SAFETY: as promised by the caller; panels do not overlap.
                unsafe {
                    self.pack_panel(b, (&lies.rows, &lies.cols), columns, to.add(panel * panel_bytes(self.n_quads())))
                };
            }
        });
    }

    /// # Safety
    /// As for [`ByteGemm::pack`]; the columns are some of the operand, and `to` has room for a panel.
    unsafe fn pack_panel(
        &self,
        b: *const u8,
        (rows, cols): (&AxisList, &AxisList),
        columns: Range<usize>,
        to: *mut u8,
    ) {
        let mut at = [0; LANES];
        at.iter_mut().zip(cols.offsets(columns.start)).take(columns.len()).for_each(|(at, offset)| *at = offset);
        let is_run = columns.len() == LANES && (1..LANES).all(|i| at[i] == at[0] + i as isize);
        let mut totals = [0i32; LANES];
        let mut rows = rows.offsets(0).take(self.k);
        // SAFETY: as promised by the caller.
        unsafe {
            for quad in 0..self.n_quads() {
                let mut lines = [[0u8; LANES]; QUAD];
                for (line, row) in lines.iter_mut().zip(&mut rows) {
                    let b = b.offset(row);
                    if is_run {
                        *line = b.offset(at[0]).cast::<[u8; LANES]>().read();
                    } else {
                        line.iter_mut().zip(at).take(columns.len()).for_each(|(byte, at)| *byte = *b.offset(at));
                    }
                }
                let mut codes = [[0u8; QUAD]; LANES];
                for i in 0..LANES {
                    codes[i] = lines.map(|line| line[i]);
                    totals[i] = codes[i].iter().fold(totals[i], |total, code| total.wrapping_add(*code as i32));
                }
                to.add(LANES * 4 + quad * LANES * QUAD).cast::<[[u8; QUAD]; LANES]>().write(codes);
            }
            to.cast::<[i32; LANES]>().write_unaligned(totals.map(|total| total.wrapping_mul(MIDDLE as i32)));
        }
    }

    /// The tasks of a matrix, for `n_threads` threads.
    pub fn tasks(&self, n_threads: usize) -> TaskGrid {
        let (n_blocks, n_panels) = (self.m.div_ceil(BLOCK_ROWS), self.n_panels());
        let work = self.m.saturating_mul(self.k).saturating_mul(self.n) / TASK;
        let n_tasks = work.max(self.packed_len() * 4 / TASK_BYTES).clamp(1, TASKS_PER_THREAD * n_threads);
        let n_tasks = if n_tasks == 1 { 1 } else { n_tasks.next_multiple_of(n_threads) };
        // Tasks below one another read the same panels, tasks side by side copy the same rows, which is more work.
        let n_tall = n_tasks.min(n_blocks).max(1);
        let n_wide = n_tasks.div_ceil(n_tall).min(n_panels.div_ceil(self.kernel.n_panels)).max(1);
        TaskGrid { n_wide, n_tall }
    }

    /// Computes the product on all threads, by these tasks.
    ///
    /// # Safety
    /// This machine has the instructions of the kernel. All elements that `a_lies` reaches are within the memory of `a`, `packed` is
    /// what [`pack`](ByteGemm::pack) has made, and nobody writes either meanwhile; there is a room of [`room`](ByteGemm::room) words
    /// for every worker, and `m` rows of `n` results if they are to be written. None of these overlap.
    pub unsafe fn run(&self, memory: ByteMemory, tasks: TaskGrid, out: ByteOut) {
        let (m, TaskGrid { n_wide, n_tall }) = (self.m, tasks);
        let (n_blocks, n_panels) = (m.div_ceil(BLOCK_ROWS), self.n_panels());
        let share = |n: usize, n_shares: usize, idx: usize| n * idx / n_shares..n * (idx + 1) / n_shares;
        threads::for_each_on(tasks.count(), &|worker, task| {
            let blocks = share(n_blocks, n_tall, task % n_tall);
            let tiles = share(n_panels.div_ceil(self.kernel.n_panels), n_wide, task / n_tall);
            let rows = blocks.start * BLOCK_ROWS..(blocks.end * BLOCK_ROWS).min(m);
            let panels = tiles.start * self.kernel.n_panels..(tiles.end * self.kernel.n_panels).min(n_panels);
            // SAFETY: as promised by the caller.
            unsafe { self.task(memory, rows, panels, memory.rooms.of(worker).first, out) };
        });
    }

    /// Some rows times some panels, block by block.
    ///
    /// # Safety
    /// As for [`ByteGemm::run`]; rows and panels are within the product, no other task has them, and the room is that
    /// of this thread.
    unsafe fn task(&self, memory: ByteMemory, rows: Range<usize>, panels: Range<usize>, room: *mut f32, out: ByteOut) {
        let pitch = self.n_quads() * QUAD;
        let left: *mut u8 = room.cast();
        // SAFETY: a room has memory for a block of rows and of sums; the rest as promised by the caller.
        unsafe {
            let sums: *mut i32 = left.add(BLOCK_ROWS.min(self.m) * pitch).cast();
            for first_panel in panels.clone().step_by(self.block_panels()) {
                let panels = first_panel..panels.end.min(first_panel + self.block_panels());
                let columns = panels.start * LANES..self.n.min(panels.end * LANES);
                for row in rows.clone().step_by(BLOCK_ROWS) {
                    let rows = row..rows.end.min(row + BLOCK_ROWS);
                    self.copy_rows(memory, rows.clone(), left);
                    let (to, to_pitch) = match out {
                        ByteOut::Results(results) => (results.0.add(row * self.n + columns.start), self.n),
                        ByteOut::Blocks(_) => (sums, columns.len()),
                    };
                    self.block(memory.packed, rows.len(), panels.clone(), left, (to, to_pitch));
                    if let ByteOut::Blocks(hand_over) = out {
                        hand_over(rows, columns.clone(), sums.cast_const().cast());
                    }
                }
            }
        }
    }

    /// Copies rows of the left operand as signed bytes, filled up to whole quads.
    ///
    /// # Safety
    /// As for [`ByteGemm::run`]; `to` has room for these rows in whole quads.
    unsafe fn copy_rows(&self, memory: ByteMemory, rows: Range<usize>, to: *mut u8) {
        let (k, pitch) = (self.k, self.n_quads() * QUAD);
        let OperandArgs { rows: row_list, cols, .. } = memory.a_lies;
        for (i, at) in row_list.offsets(rows.start).take(rows.len()).enumerate() {
            // SAFETY: as promised by the caller.
            unsafe {
                let from = memory.a.offset(at);
                let to = std::slice::from_raw_parts_mut(to.add(i * pitch), pitch);
                let (whole, rest) = to.split_at_mut(k);
                if cols.stride() == Some(1) {
                    let from = std::slice::from_raw_parts(from, k);
                    whole.iter_mut().zip(from).for_each(|(to, from)| *to = from ^ MIDDLE);
                } else {
                    whole.iter_mut().zip(cols.offsets(0)).for_each(|(to, at)| *to = *from.offset(at) ^ MIDDLE);
                }
                rest.fill(0);
            }
        }
    }

    /// The sums of copied rows and some panels.
    ///
    /// # Safety
    /// As for [`ByteGemm::run`]; `left` has these rows in whole quads, and `out` room for as many rows of the columns
    /// of these panels.
    unsafe fn block(
        &self,
        packed: *const u8,
        n_rows: usize,
        panels: Range<usize>,
        left: *const u8,
        (out, out_pitch): (*mut i32, usize),
    ) {
        let QuadKernel { n_panels, tiles, single, .. } = *self.kernel;
        let (n_quads, first) = (self.n_quads(), panels.start);
        let mut panel = first;
        while panel < panels.end {
            let (across, kernels) = if panels.end - panel >= n_panels { (n_panels, tiles) } else { (1, single) };
            let n_columns = (self.n - panel * LANES).min(across * LANES);
            for row in (0..n_rows).step_by(kernels.len()) {
                let tile = ByteTile {
                    a: left.wrapping_add(row * n_quads * QUAD),
                    a_pitch: n_quads * QUAD,
                    n_quads,
                    b: packed.wrapping_add(panel * panel_bytes(n_quads)),
                    out: out.wrapping_add(row * out_pitch + (panel - first) * LANES),
                    out_pitch,
                    n_columns,
                };
                // SAFETY: the instruction set is there; the rest as promised by the caller.
                unsafe { kernels[(n_rows - row).min(kernels.len()) - 1](&tile) };
            }
            panel += across;
        }
    }
}

/// How it is made, in one line.
impl fmt::Display for ByteGemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuadKernel { name, n_panels, tiles, .. } = self.kernel;
        write!(
            f,
            "GEMM of bytes by {name}, right operand packed first, register tiles of {}×{}",
            tiles.len(),
            n_panels * LANES
        )
    }
}
