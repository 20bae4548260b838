//! Products of floats. Some columns of the right operand are laid out one after another, a block of rows at a time,
//! and stay near while the rows of the left one pass over them; a tile of results is summed up in registers. A constant
//! operand may lie so from the start. The order in which a result is added up depends on its sizes alone.

mod amx;
mod gather;
mod implicit;
mod kernel;
mod pack;
mod packed;
mod tasks;
mod winograd;

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub use amx::emulate as emulate_amx;
pub use gather::ListedMatrix;
pub use implicit::{ImplicitGemm, ImplicitMemory, ImplicitOut};
pub use winograd::{Winograd, WinogradMemory};

use std::fmt;
use std::mem::MaybeUninit;
use std::ops::Range;

use self::gather::Gather;
use self::kernel::{MicroKernel, RegisterTile, kernel, of};
pub use self::pack::turn;
pub use self::packed::PackedMatrix;
use super::split_k::Parts;
use super::tasks::TaskGrid;
use super::threads;
use crate::blocks::Storage;
use crate::dtype::DType;
use crate::kernel::{AxisParts, Panels};
use crate::ops::Isa;

/// Rows of `b` in a block. Results are added up block by block.
const DEPTH: usize = 512;
/// Up to so many rows of `a`, `b` is multiplied as it lies: laying it out would take longer than it saves.
const MAX_LYING: usize = 32;
/// Rows of such a block: what is used again must be found where it was.
const LYING_DEPTH: usize = 256;
/// Rows of a block that is laid out for a single tile: few enough for a first-level cache.
const ONCE_DEPTH: usize = 64;
/// Up to so many rows of `a`, panels are made one by one.
const FEW: usize = 128;
/// Vectors across a block: half a megabyte of the widest, for a second-level cache.
const MAX_ACROSS: usize = 16;
/// Rows of the tallest tile.
const MAX_ROWS: usize = 8;
/// Multiplications that are worth a task.
pub const TASK: usize = 1 << 20;
/// Tasks for each thread, so that one that is held up delays little.
pub const TASKS_PER_THREAD: usize = 4;
/// Tiles that a task has below one another at least: what it lays out is used so often.
const TILES: usize = 16;
/// An operand of which each value is used more often than this is not worth keeping packed: first where packing means to
/// transpose it, then where the first tile that reads it packs it, which costs as much as a row or two of results.
pub const MAX_USES_PACKED_FIRST: usize = 16384;
const MAX_USES_PACKED_BESIDE: usize = 512;

/// What is multiplied without being widened.
const F32: Storage = Storage::Plain(DType::F32);

/// A product `out[m, n] = a[m, k] · b[k, n]`; rows of `out` are dense.
///
/// The caller that runs the product promises that this machine has `isa`; that every element of `a` and `b` that sizes and steps (or
/// lists of axes, panels, blocks) reach is aligned, can be read, and is not written meanwhile; that `packed` is null or what
/// [`Gemm::pack`] has made of `b`; and that there is room for the results, which overlap nothing that is read and are used by nobody else.
#[derive(Clone, Copy)]
pub struct Gemm {
    /// The instructions that micro-kernels use.
    pub isa: Isa,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// Steps in `a`: from row to row, from column to column. None where it is read by lists of axes.
    pub a_steps: Option<(isize, isize)>,
    pub b: *const u8,
    /// `f32`, or narrower: small floats or blocks.
    pub b_storage: Storage,
    /// Which element of `b` is its first, where it is in blocks; else 0.
    pub b_first: isize,
    /// The same for `b`: within a panel, if it lies in some. What is read by lists is `f32`.
    pub b_steps: Option<(isize, isize)>,
    pub panels: Option<Panels>,
    /// All of `b` packed, if it is kept so; else null. Sums are the same either way.
    pub packed: *const f32,
    /// Whether AMX multiplies the blocks whose numbers may be split. Then `b` does not lie in panels and is never kept packed.
    pub by_amx: bool,
    /// Scratch memory of [`split_words`](Gemm::split_words) words for the left operand, split for AMX; null without AMX.
    pub split: *mut u32,
    pub out: *mut f32,
}

// SAFETY: tasks read `a` and `b` and write disjoint parts of the result.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// The operands of a product that are read by lists of axes.
#[derive(Clone, Copy, Default)]
pub struct GemmLists<'a> {
    pub a: Option<ListedMatrix<'a>>,
    pub b: Option<ListedMatrix<'a>>,
}

/// Memory in which threads lay out what they multiply, so many values for each.
#[derive(Clone, Copy)]
pub struct PackBuffers {
    pub first: *mut f32,
    pub size: usize,
}

// SAFETY: every worker has its own.
unsafe impl Sync for PackBuffers {}

impl PackBuffers {
    /// The room of one worker.
    pub fn of(&self, worker: usize) -> PackBuffers {
        PackBuffers { first: self.first.wrapping_add(worker * self.size), size: self.size }
    }
}

/// Panels in which `b` may lie from the start: those in which it would be laid out.
#[cfg(test)]
pub fn panel_widths() -> crate::target::PanelWidths {
    let MicroKernel { lanes, across, .. } = kernel(crate::ops::isa(), false);
    crate::target::PanelWidths { unit: *lanes, best: across * lanes }
}

/// Rows and columns of register tiles: of packed panels, and where `b` is read in place.
#[cfg(test)]
pub fn register_tiles() -> [[usize; 2]; 2] {
    [false, true].map(|in_place| {
        let MicroKernel { lanes, across, heights, .. } = kernel(crate::ops::isa(), in_place);
        [heights[2], across * lanes]
    })
}

/// How `b` comes to the tiles.
#[derive(Clone, Copy, PartialEq)]
enum BSource {
    /// As it lies.
    InPlace,
    /// As it lies to the first, which lays it out for the others, and widens the numbers of narrow panels.
    PackOnFirstUse,
    /// It is laid out before, because columns must be turned or numbers that lie in rows widened.
    PackFirst,
    /// It lies as if laid out.
    Prepacked,
    /// Panels are packed before they are multiplied, and each number is split into two bf16, for AMX.
    SplitFirst,
}

/// Memory that tasks read.
#[derive(Clone, Copy)]
struct SharedConst(*const f32);

// SAFETY: nobody writes to it while tasks read it.
unsafe impl Sync for SharedConst {}

impl SharedConst {
    fn get(self) -> *const f32 {
        self.0
    }
}

/// Memory that tasks write to, each to a part of its own.
#[derive(Clone, Copy)]
struct SharedMut(*mut f32);

// SAFETY: parts do not overlap.
unsafe impl Sync for SharedMut {}

impl SharedMut {
    fn get(self) -> *mut f32 {
        self.0
    }
}

/// Rows of the tallest tile that reads a packed operand.
fn max_height(isa: Isa) -> usize {
    kernel(isa, false).heights[2]
}

/// The `idx`th of `n_shares` shares of `0..n`, which differ by one at most.
fn share(n: usize, n_shares: usize, idx: usize) -> Range<usize> {
    n * idx / n_shares..n * (idx + 1) / n_shares
}

impl Gemm {
    /// Values that a thread needs room for.
    pub fn room(&self) -> usize {
        let cut = self.cut(GemmLists::default());
        let lanes = cut.kernel.lanes;
        match cut.way {
            BSource::SplitFirst => cut.split_room(),
            BSource::InPlace | BSource::Prepacked => 0,
            BSource::PackOnFirstUse | BSource::PackFirst => {
                let n_columns = self.n.next_multiple_of(self.panels.map_or(lanes, |panels| panels.width));
                self.k.min(DEPTH) * n_columns.min(MAX_ACROSS * lanes)
            }
        }
    }

    /// Whether `b` would be packed, so that it may as well be kept so: how often each value of it is used at most, for
    /// packing to be worth saving.
    pub fn max_uses_of_kept(&self) -> Option<usize> {
        let is_plain = self.panels.is_none() && self.b_storage == F32;
        match self.cut(GemmLists::default()).way {
            BSource::PackFirst if is_plain => Some(MAX_USES_PACKED_FIRST),
            BSource::PackOnFirstUse if is_plain => Some(MAX_USES_PACKED_BESIDE),
            _ => None,
        }
    }

    /// Values of `b` when it is packed.
    pub fn packed_len(&self) -> usize {
        self.k.saturating_mul(self.n.next_multiple_of(kernel(self.isa, false).lanes))
    }

    /// Multiplications.
    fn work(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n)
    }

    fn cut<'a>(&'a self, lists: GemmLists<'a>) -> GemmTiling<'a> {
        let is_narrow = self.b_storage != F32;
        let way = match self.panels {
            None if self.by_amx => BSource::SplitFirst,
            // A single row widens what it reads.
            Some(_) if !is_narrow || self.m == 1 => BSource::Prepacked,
            Some(_) => BSource::PackOnFirstUse,
            None if is_narrow || self.b_steps.is_none_or(|steps| steps.1 != 1) => BSource::PackFirst,
            None if self.m <= MAX_LYING => BSource::InPlace,
            None => BSource::PackOnFirstUse,
        };
        GemmTiling { x: self, lists, way, kernel: kernel(self.isa, way == BSource::InPlace) }
    }

    /// Packs all of `b` on all threads: panel after panel, each with all rows one after another and zeros up to whole vectors.
    ///
    /// # Safety
    /// `isa` and `b` are as [`Gemm`] says, with lists where there are no steps; `to` has room for [`packed_len`](Gemm::packed_len)
    /// values, used by nobody else.
    pub unsafe fn pack(&self, lists: GemmLists, to: *mut f32) {
        let cut = GemmTiling { x: self, lists, way: BSource::PackFirst, kernel: kernel(self.isa, false) };
        let (n_panels, n_blocks, to) = (cut.n_panels(), self.k.div_ceil(DEPTH), SharedMut(to));
        threads::for_each(n_panels * n_blocks, &|task| {
            let (panel, rows) = (task / n_blocks, share(self.k, n_blocks, task % n_blocks));
            let columns = cut.columns(panel..panel + 1);
            let at = self.k * columns.start + rows.start * cut.width(&columns);
            // SAFETY: parts do not overlap; the rest as promised by the caller.
            unsafe { cut.lay_out(rows, panel, to.get().wrapping_add(at)) };
        });
    }

    /// Computes the product on all threads, by these tasks for each part of k. The sums of all parts but the first go to `sums`.
    ///
    /// # Safety
    /// The memory is as [`Gemm`] says, with lists where there are no steps; there is a room of [`Gemm::room`] values for every
    /// worker, and `m · n` values at `sums` for every part of k but the first. None of these overlap.
    pub unsafe fn run(
        &self,
        lists: GemmLists,
        rooms: PackBuffers,
        (k_parts, tasks): (AxisParts, TaskGrid),
        sums: *mut f32,
    ) {
        if self.k == 0 {
            // SAFETY: as promised by the caller.
            return unsafe { self.out.write_bytes(0, self.m * self.n) };
        }
        let cut = self.cut(lists);
        let (n_panels, n_tiles, tile_rows) = (cut.n_panels(), cut.n_tiles(), cut.tile_rows());
        let (n_parts, TaskGrid { n_wide, n_tall }) = (k_parts.count(), tasks);
        let sums = Parts { first: self.out, rest: sums, len: self.m * self.n };
        if cut.way == BSource::SplitFirst {
            // SAFETY: as promised by the caller.
            unsafe { cut.split_left(k_parts) };
        }
        threads::for_each_on(n_parts * n_wide * n_tall, &|worker, task| {
            let (part, task) = (task / (n_wide * n_tall), task % (n_wide * n_tall));
            let panels = share(n_panels, n_wide, task / n_tall);
            let tiles = share(n_tiles, n_tall, task % n_tall);
            let rows = tiles.start * tile_rows..(tiles.end * tile_rows).min(self.m);
            let block = GemmTask { rows, depth: k_parts.range(part, self.k), panels };
            let (out, room) = (sums.at(part), rooms.of(worker));
            // SAFETY: as promised by the caller.
            unsafe {
                if cut.way == BSource::SplitFirst {
                    cut.multiply_split(block, (k_parts, part), out, room)
                } else {
                    cut.multiply(block, out, room)
                }
            };
        });
        // SAFETY: all were computed.
        unsafe { sums.add_up(n_parts) };
    }

    /// The element of `b` in this row and the first column of a panel, by its number; without panels, in this column.
    fn b(&self, l: usize, panel: usize, column: usize) -> isize {
        let (down, across) = self.b_steps.unwrap_or((0, 0));
        l as isize * down
            + match self.panels {
                Some(panels) => panel as isize * panels.stride,
                None => column as isize * across,
            }
    }
}

/// How it is cut, in one line.
impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.cut(GemmLists::default());
        let b = match cut.way {
            BSource::InPlace => "read in place",
            BSource::PackOnFirstUse => "packed on first use",
            BSource::PackFirst => "packed first",
            BSource::Prepacked => "packed already",
            BSource::SplitFirst => return cut.write_split(f),
        };
        let (rows, columns) = (cut.kernel.heights[2], cut.kernel.across * cut.kernel.lanes);
        write!(f, "GEMM, right operand {b}, register tiles of {rows}×{columns}")
    }
}

/// A product and how it is cut.
struct GemmTiling<'a> {
    x: &'a Gemm,
    lists: GemmLists<'a>,
    way: BSource,
    kernel: &'static MicroKernel,
}

/// What a task multiplies.
struct GemmTask {
    rows: Range<usize>,
    /// Rows of `b`.
    depth: Range<usize>,
    panels: Range<usize>,
}

impl GemmTiling<'_> {
    fn n_panels(&self) -> usize {
        self.x.n.div_ceil(self.x.panels.map_or(self.kernel.across * self.kernel.lanes, |panels| panels.width))
    }

    /// The packed form of `b`, where tiles that pack it for each other would read it.
    fn packed(&self) -> Option<*const f32> {
        let packs = matches!(self.way, BSource::PackFirst | BSource::PackOnFirstUse);
        (packs && !self.x.packed.is_null()).then_some(self.x.packed)
    }

    /// Rows of a register tile.
    fn tile_rows(&self) -> usize {
        if self.way == BSource::SplitFirst { amx::TILE_ROWS } else { self.kernel.heights[2] }
    }

    /// The width of a panel is a multiple of this number of columns.
    fn panel_unit(&self) -> usize {
        if self.way == BSource::SplitFirst { amx::TILE_COLUMNS } else { self.kernel.lanes }
    }

    fn n_tiles(&self) -> usize {
        self.x.m.div_ceil(self.tile_rows())
    }

    /// Tasks below one another at most.
    fn max_tall(&self) -> usize {
        (self.n_tiles() / TILES).max(1)
    }

    /// Panels in a block. Few rows of `a` stay near by themselves.
    fn max_panels(&self) -> usize {
        if self.way == BSource::SplitFirst {
            return amx::MAX_PANELS;
        }
        if self.x.m <= FEW { 1 } else { MAX_ACROSS / self.kernel.across }
    }

    /// The columns of panels: vectors are shared among all, so that none is much narrower than others.
    fn columns(&self, panels: Range<usize>) -> Range<usize> {
        let (n, unit, n_panels) = (self.x.n, self.panel_unit(), self.n_panels());
        let edge = |panel: usize| match self.x.panels {
            Some(panels) => (panel * panels.width).min(n),
            None => (n.div_ceil(unit) * panel / n_panels * unit).min(n),
        };
        edge(panels.start)..edge(panels.end)
    }

    /// Columns of a panel, with those that only fill it up.
    fn width(&self, columns: &Range<usize>) -> usize {
        self.x.panels.map_or(columns.len().next_multiple_of(self.panel_unit()), |panels| panels.width)
    }

    /// Rows of `a` as dense rows, and how far apart they are: in place where they are dense, else copied to `left`.
    ///
    /// # Safety
    /// `a` is as [`Gemm`] says, and these are rows and columns of it; `left` has room for as many values.
    #[inline(always)]
    unsafe fn rows_of_a(&self, rows: Range<usize>, depth: Range<usize>, left: *mut f32) -> (*const f32, isize) {
        let x = self.x;
        let copied = (left.cast_const(), depth.len() as isize);
        // SAFETY: as promised by the caller; `left` has room for the rows.
        unsafe {
            let (Some(steps), None) = (x.a_steps, self.lists.a) else {
                let Some(matrix) = self.lists.a else { unreachable!("without steps there are lists") };
                let (run, step) = matrix.cols.run(depth.start, depth.len());
                if let Some(down) = matrix.rows.stride().filter(|_| run == depth.len() && step == 1) {
                    let first = (matrix.first_row + rows.start) as isize * down;
                    return (x.a.wrapping_offset(first + matrix.cols.at(depth.start)), down);
                }
                let pitch = depth.len();
                (self.kernel.gather)(&Gather { from: x.a, matrix, rows, cols: depth, to: left, pitch });
                return copied;
            };
            let first = rows.start as isize * steps.0 + depth.start as isize * steps.1;
            let a = x.a.wrapping_offset(first);
            if steps.1 == 1 {
                return (a, steps.0);
            }
            turn(a, steps, (rows.len(), depth.len()), left, depth.len());
            copied
        }
    }

    /// One block of the result.
    ///
    /// # Safety
    /// As for [`Gemm::run`]; the block is within the product, `out` is where the results of all of it (or partial ones)
    /// begin, and no other thread writes those of the block.
    unsafe fn multiply(&self, block: GemmTask, out: *mut f32, room: PackBuffers) {
        let &GemmTiling { x, way, kernel, .. } = self;
        let mut left = [MaybeUninit::<f32>::uninit(); DEPTH * MAX_ROWS];
        let left: *mut f32 = left.as_mut_ptr().cast();
        let max_depth = match way {
            BSource::InPlace => LYING_DEPTH,
            // Read straight through; a row of `a` may be as long as there is room for.
            BSource::Prepacked if x.m == 1 => DEPTH * MAX_ROWS,
            BSource::PackFirst | BSource::PackOnFirstUse if x.m <= kernel.heights[2] => ONCE_DEPTH,
            _ => DEPTH,
        };
        let packed = self.packed();
        let n_together = self.max_panels();
        for first in block.panels.clone().step_by(n_together) {
            let panels = first..block.panels.end.min(first + n_together);
            let from = self.columns(panels.clone()).start;
            for l in block.depth.clone().step_by(max_depth) {
                let depth = max_depth.min(block.depth.end - l);
                let laid = |columns: &Range<usize>| room.first.wrapping_add(depth * (columns.start - from));
                // SAFETY: the instruction set is there; the room holds a block, and `left` a tile's rows; the rest as
                // promised by the caller.
                unsafe {
                    if way == BSource::PackFirst && packed.is_none() {
                        for panel in panels.clone() {
                            self.lay_out(l..l + depth, panel, laid(&self.columns(panel..panel + 1)));
                        }
                    }
                    for row in block.rows.clone().step_by(kernel.heights[2]) {
                        let n_rows = kernel.heights[2].min(block.rows.end - row);
                        let (a, a_pitch) = self.rows_of_a(row..row + n_rows, l..l + depth, left);
                        let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                        let is_first = row == block.rows.start;
                        let tiles = match way {
                            BSource::PackOnFirstUse if is_first && packed.is_none() => {
                                kernel.laying[of(x.b_storage.dtype())][height]
                            }
                            BSource::InPlace => kernel.tiles[height],
                            BSource::Prepacked if n_rows == 1 => kernel.rows[of(x.b_storage.dtype())],
                            _ if n_rows == 1 => kernel.rows[of(DType::F32)],
                            _ if is_first && (way == BSource::Prepacked || packed.is_some()) => kernel.fresh[height],
                            _ => kernel.tiles[height],
                        };
                        for panel in panels.clone() {
                            let columns = self.columns(panel..panel + 1);
                            let at = x.b(l, panel, columns.start) * x.b_storage.unit_bytes() as isize;
                            let lies = x.b.wrapping_offset(at).cast::<f32>();
                            let laid = laid(&columns);
                            let b = match (way, packed) {
                                (_, Some(packed)) => packed.add(x.k * columns.start + l * self.width(&columns)),
                                (BSource::InPlace | BSource::Prepacked, None) => lies,
                                (BSource::PackOnFirstUse, None) if is_first => lies,
                                (BSource::PackOnFirstUse | BSource::PackFirst, None) => laid.cast_const(),
                                (BSource::SplitFirst, None) => unreachable!("multiplied by AMX"),
                            };
                            let out = out.add(row * x.n + columns.start);
                            let adds = l > block.depth.start;
                            let (b_pitch, pitch, n_columns) =
                                (x.b_steps.map_or(0, |steps| steps.0), x.n, columns.len());
                            let tile = RegisterTile {
                                a,
                                a_pitch,
                                a_rows: std::ptr::null(),
                                a_columns: std::ptr::null(),
                                b,
                                b_pitch,
                                laid,
                                depth,
                                out,
                                pitch,
                                n_rows,
                                n_columns,
                                adds,
                                next: std::ptr::null(),
                            };
                            tiles[self.width(&columns) / kernel.lanes - 1](&tile);
                        }
                    }
                }
            }
        }
    }
}
