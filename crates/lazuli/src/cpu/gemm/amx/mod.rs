//! Products by AMX, whose tile registers hold bf16 and whose sums are f32. A float x is split into two bf16: hi is x rounded to
//! bf16, lo is x − hi rounded to bf16. Three passes sum up hi·lo, hi·hi and lo·hi. The error of leaving out lo·lo and the bits
//! that rounding lo has cut off is at most 2⁻¹⁵ of |x·y|, and far less of a sum in which such errors have different signs. A block of
//! numbers for which this bound does not hold (not finite, huge or tiny) is multiplied by the AVX-512 micro-kernel instead.

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod emulator;
mod kernel;
mod split;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests;

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub use emulator::install as emulate;

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;

use self::kernel::{Sums, TileRegisters};
use self::split::{Magnitudes, split_panel, split_rows, store};
use super::{DEPTH, Gemm, GemmTask, GemmTiling, MAX_ROWS, PackBuffers, PackedMatrix};
use crate::cpu::threads;
use crate::kernel::AxisParts;

/// Rows of a tile register, and the f32 in each of its rows.
const SIDE: usize = 16;
/// The bf16 in a row of a tile register: one instruction adds this many products to each sum.
const STEP: usize = 32;
/// Rows and columns of the sums that four tile registers hold.
pub const TILE_ROWS: usize = 2 * SIDE;
pub const TILE_COLUMNS: usize = 2 * SIDE;
/// Panels of the right operand that are split at a time: a megabyte with `DEPTH` rows, half of the second-level cache of processors
/// that have AMX.
pub const MAX_PANELS: usize = 8;
/// Words that one step of k takes in a register tile's rows, or in its columns: two tile registers of hi and two of lo.
const STEP_WORDS: usize = 4 * SIDE * SIDE;

/// The split left operand: for each [`TILE_ROWS`] rows all steps of all parts of k, and after the words of all rows the magnitudes
/// of each block.
struct SplitLeft {
    words: *mut u32,
    magnitudes: *mut Magnitudes,
    /// Steps, and blocks, in a part of k.
    n_steps: usize,
    n_blocks: usize,
    n_parts: usize,
}

impl SplitLeft {
    fn new(x: &Gemm, k_parts: AxisParts) -> SplitLeft {
        let (n_steps, n_blocks, n_parts) =
            (k_parts.len().div_ceil(STEP), k_parts.len().div_ceil(DEPTH), k_parts.count());
        let words = x.split;
        let magnitudes = words.wrapping_add(x.m.div_ceil(TILE_ROWS) * n_parts * n_steps * STEP_WORDS).cast();
        SplitLeft { words, magnitudes, n_steps, n_blocks, n_parts }
    }

    /// Words that `n_rows` rows take, with their magnitudes.
    fn n_words(&self, n_rows: usize) -> usize {
        let of_magnitudes = self.n_blocks * size_of::<Magnitudes>().div_ceil(size_of::<u32>());
        n_rows.div_ceil(TILE_ROWS) * self.n_parts * (self.n_steps * STEP_WORDS + of_magnitudes)
    }

    /// Where the words and the magnitudes of a block of a part of k are, for a tile of rows.
    fn block(&self, tile: usize, part: usize, block: usize) -> (*mut u32, *mut Magnitudes) {
        let part = tile * self.n_parts + part;
        let step = part * self.n_steps + block * (DEPTH / STEP);
        (self.words.wrapping_add(step * STEP_WORDS), self.magnitudes.wrapping_add(part * self.n_blocks + block))
    }
}

impl Gemm {
    /// Words of scratch memory for the split left operand; 0 if the product does not go through AMX.
    pub fn split_words(&self, k_parts: AxisParts) -> usize {
        if self.by_amx { SplitLeft::new(self, k_parts).n_words(self.m) } else { 0 }
    }
}

/// Where a thread packs the right operand, in its scratch memory.
struct SplitRoom {
    /// Panels of the right operand, split.
    right: *mut u32,
    /// A panel as floats.
    floats: *mut f32,
}

impl GemmTiling<'_> {
    fn panel_columns(&self) -> usize {
        self.kernel.across * self.kernel.lanes
    }

    /// Words of split panels, and of a panel of floats.
    fn room_words(&self) -> [usize; 2] {
        let n_columns = self.x.n.next_multiple_of(TILE_COLUMNS).min(MAX_PANELS * self.panel_columns());
        [n_columns, self.panel_columns()].map(|n| n * self.x.k.min(DEPTH).next_multiple_of(STEP))
    }

    /// Words of scratch memory that a thread needs: for aligning to a cache line, and for what the thread packs.
    pub fn split_room(&self) -> usize {
        SIDE + self.room_words().iter().sum::<usize>()
    }

    fn split_memory(&self, room: PackBuffers) -> SplitRoom {
        // A row of a tile register is a cache line: aligned, its load touches one line and not two.
        let first = room.first.wrapping_add(room.first.align_offset(SIDE * size_of::<f32>()).min(SIDE));
        SplitRoom { right: first.cast(), floats: first.wrapping_add(self.room_words()[0]) }
    }

    /// How AMX computes the product, in one line.
    pub fn write_split(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GEMM by AMX in three bf16 passes, right operand packed first, tiles of {TILE_ROWS}×{TILE_COLUMNS}")
    }

    /// Splits the left operand on all threads.
    ///
    /// # Safety
    /// There is room for [`split_words`](Gemm::split_words) words; the rest as for [`Gemm::run`].
    pub unsafe fn split_left(&self, k_parts: AxisParts) {
        let (n_tiles, n_parts) = (self.n_tiles(), k_parts.count());
        threads::for_each(n_tiles * n_parts, &|task| {
            let (tile, part) = (task / n_parts, task % n_parts);
            let rows = tile * TILE_ROWS..self.x.m.min((tile + 1) * TILE_ROWS);
            for (block, depth) in blocks(k_parts.range(part, self.x.k)).enumerate() {
                let (to, magnitudes) = SplitLeft::new(self.x, k_parts).block(tile, part, block);
                let mut all = Magnitudes::default();
                // SAFETY: blocks do not overlap; the rest as promised by the caller.
                unsafe {
                    self.some_rows_of_a(rows.clone(), depth.clone(), |a, pitch, rows| {
                        all = all.with(split_rows((a, pitch), rows, depth.len(), to.cast()));
                    });
                    magnitudes.write(all);
                }
            }
        });
    }

    /// One block of the result, of a part of k, by AMX.
    ///
    /// # Safety
    /// AMX may be used, and the left operand is split; the rest as for [`GemmTiling::multiply`].
    pub unsafe fn multiply_split(
        &self,
        task: GemmTask,
        (k_parts, part): (AxisParts, usize),
        out: *mut f32,
        room: PackBuffers,
    ) {
        let (left, room) = (SplitLeft::new(self.x, k_parts), self.split_memory(room));
        // SAFETY: as promised by the caller.
        let registers = unsafe { TileRegisters::new() };
        for first in task.panels.clone().step_by(MAX_PANELS) {
            let panels = first..task.panels.end.min(first + MAX_PANELS);
            for (block, depth) in blocks(task.depth.clone()).enumerate() {
                let adds = block > 0;
                // SAFETY: AVX-512 is there where AMX is; the room holds these panels; the rest as promised by the caller.
                unsafe {
                    let of_panels = self.split_right(&room, depth.clone(), panels.clone());
                    for row in task.rows.clone().step_by(TILE_ROWS) {
                        let rows = row..task.rows.end.min(row + TILE_ROWS);
                        let (left, of_rows) = left.block(row / TILE_ROWS, part, block);
                        let block = GemmTask { rows, depth: depth.clone(), panels: panels.clone() };
                        let magnitudes = (*of_rows, &of_panels);
                        self.multiply_tile(&registers, (left, &room), block, magnitudes, (out, adds));
                    }
                }
            }
        }
    }

    /// Where the split values of a column of these panels are in the thread's scratch memory.
    fn right(&self, room: &SplitRoom, depth: usize, panels: &Range<usize>, column: usize) -> *mut u32 {
        let first = self.columns(panels.clone()).start;
        room.right.wrapping_add((column - first) * depth.next_multiple_of(STEP))
    }

    /// Packs and splits some rows of some panels of the right operand.
    ///
    /// # Safety
    /// The rows and the panels are of the right operand, and the room has [`split_room`](GemmTiling::split_room) for this thread alone.
    unsafe fn split_right(
        &self,
        room: &SplitRoom,
        depth: Range<usize>,
        panels: Range<usize>,
    ) -> [Magnitudes; MAX_PANELS] {
        let mut all = [Magnitudes::default(); MAX_PANELS];
        for (panel, magnitudes) in panels.clone().zip(&mut all) {
            let columns = self.columns(panel..panel + 1);
            let to = self.right(room, depth.len(), &panels, columns.start);
            // SAFETY: as promised by the caller.
            unsafe {
                self.lay_out(depth.clone(), panel, room.floats);
                *magnitudes = split_panel(room.floats, depth.len(), self.width(&columns), to);
            }
        }
        all
    }

    /// Multiplies a tile of rows by some panels.
    ///
    /// # Safety
    /// The tile and the panels are split, in `left` and the room; nobody else writes their results. The rest as for
    /// [`GemmTiling::multiply_split`].
    unsafe fn multiply_tile(
        &self,
        registers: &TileRegisters,
        (left, room): (*const u32, &SplitRoom),
        GemmTask { rows, depth, panels }: GemmTask,
        (of_rows, of_panels): (Magnitudes, &[Magnitudes; MAX_PANELS]),
        (out, adds): (*mut f32, bool),
    ) {
        let mut sums = Sums::default();
        for (panel, of_panel) in panels.clone().zip(of_panels) {
            let columns = self.columns(panel..panel + 1);
            // SAFETY: as promised by the caller.
            unsafe {
                let out = out.add(rows.start * self.x.n);
                if !of_rows.may_be_split_with(*of_panel) {
                    let out = (out.add(columns.start), adds);
                    self.multiply_floats(rows.clone(), depth.clone(), panel, room.floats, out);
                    continue;
                }
                for column in columns.clone().step_by(TILE_COLUMNS) {
                    let right = self.right(room, depth.len(), &panels, column);
                    registers.multiply(left.cast(), right, depth.len().div_ceil(STEP), &mut sums);
                    let shape = (rows.len(), TILE_COLUMNS.min(columns.end - column));
                    store(&sums, shape, out.add(column), self.x.n, adds);
                }
            }
        }
    }

    /// Multiplies some rows by a panel with the AVX-512 micro-kernel, for numbers that may not be split.
    ///
    /// # Safety
    /// There is room for a panel at `floats`, for this thread alone, and nobody else writes the results. The rest as for
    /// [`GemmTiling::multiply`].
    #[cold]
    unsafe fn multiply_floats(
        &self,
        rows: Range<usize>,
        depth: Range<usize>,
        panel: usize,
        floats: *mut f32,
        (out, adds): (*mut f32, bool),
    ) {
        let columns = self.columns(panel..panel + 1);
        // SAFETY: as promised by the caller.
        unsafe {
            self.lay_out(depth.clone(), panel, floats);
            let panel = PackedMatrix { first: floats, depth: depth.len(), n_columns: self.width(&columns) };
            self.some_rows_of_a(rows, depth.clone(), |a, pitch, rows| {
                let out = out.wrapping_add(rows.start * self.x.n);
                panel.multiply((a, pitch), rows.len(), (0..depth.len(), 0..columns.len()), (out, self.x.n), adds);
            });
        }
    }

    /// Calls `take` with a few dense rows of `a` at a time: where the first begins, the pitch of rows, and which of `rows` they are.
    ///
    /// # Safety
    /// The rows and the depth are within `a`.
    unsafe fn some_rows_of_a(
        &self,
        rows: Range<usize>,
        depth: Range<usize>,
        mut take: impl FnMut(*const f32, isize, Range<usize>),
    ) {
        let mut copied = [MaybeUninit::<f32>::uninit(); DEPTH * MAX_ROWS];
        for row in rows.clone().step_by(MAX_ROWS) {
            let part = row..rows.end.min(row + MAX_ROWS);
            // SAFETY: `copied` has room for `MAX_ROWS` rows; the rest as promised by the caller.
            let (a, pitch) = unsafe { self.rows_of_a(part.clone(), depth.clone(), copied.as_mut_ptr().cast()) };
            take(a, pitch, row - rows.start..part.end - rows.start);
        }
    }
}

/// The blocks of a part of k, in order.
fn blocks(depth: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    depth.clone().step_by(DEPTH).map(move |l| l..depth.end.min(l + DEPTH))
}
