//! What a task of a product does: block after block of panels and of k, in each of them a row of tiles after another. Rows of `a`
//! are read where they are if they can be; on the way tiles ask for the block after theirs; and results that are final are handed
//! over while they are near.

use std::mem::MaybeUninit;
use std::ops::Range;

use smallvec::SmallVec;

use super::gather::Gather;
use super::kernel::{RegisterTile, TileFn, of};
use super::pack::turn;
use super::{BSource, DEPTH, F32, FEW, GemmTiling, MAX_ROWS, PackBuffers};
use crate::cpu::split_k::HandOver;
use crate::dtype::DType;

/// Rows of a block of what is read in place: what is used again must be found where it was.
const LYING_DEPTH: usize = 256;
/// Rows of a block that is laid out for a single tile: few enough for a first-level cache.
const ONCE_DEPTH: usize = 64;
/// Results that are handed over at a time, or one register tile's rows: they stay in a near cache.
const HANDED_OVER: usize = 8 << 10;

/// What a task multiplies.
pub struct GemmTask<'a> {
    pub rows: Range<usize>,
    /// Rows of `b`.
    pub depth: Range<usize>,
    pub panels: Range<usize>,
    /// Who takes results, if the task's are final.
    pub finished: Option<HandOver<'a>>,
}

/// Panels of a block at most.
const MAX_PANELS: usize = 8;

/// Some panels of `b` and rows of them.
struct PanelBlock {
    depth: Range<usize>,
    panels: SmallVec<[BlockPanel; MAX_PANELS]>,
}

/// A panel of a block.
struct BlockPanel {
    columns: Range<usize>,
    /// Columns with those that only fill it up.
    width: usize,
    /// Where it lies, or will lie once a tile has laid it out.
    b: *const f32,
    /// As it lies, for tiles that lay it out.
    lies: *const f32,
    laid: *mut f32,
    /// What is read after it.
    next: Option<(*const f32, usize)>,
}

/// Memory for a tile's rows of `a`, and for where its columns are.
struct LeftRows {
    copied: [MaybeUninit<f32>; DEPTH * MAX_ROWS],
    columns: [isize; DEPTH],
}

/// A tile's rows of `a`.
struct TileRows {
    first: *const f32,
    pitch: isize,
    /// How far each row is from `first`, where they are read by tables.
    at: Option<[isize; MAX_ROWS]>,
}

impl GemmTiling<'_> {
    /// The results of a task.
    ///
    /// # Safety
    /// As for [`Gemm::run`](super::Gemm::run): the room holds a block, and nobody else writes to these results.
    pub unsafe fn multiply(&self, task: GemmTask, out: *mut f32, room: PackBuffers) {
        let mut left = LeftRows { copied: [const { MaybeUninit::uninit() }; DEPTH * MAX_ROWS], columns: [0; DEPTH] };
        let (max_depth, n_together, height) = (self.max_depth(), self.max_panels(), self.kernel.heights[2]);
        let mut waiting = self.columns(task.panels.start..task.panels.start);
        for first in task.panels.clone().step_by(n_together) {
            let panels = first..task.panels.end.min(first + n_together);
            waiting.end = self.columns(panels.clone()).end;
            // Few rows wait for more columns, since what follows goes along rows; many are handed over a few at a time.
            let n_at_once = (HANDED_OVER / waiting.len().max(1)).next_multiple_of(height).max(height);
            let is_enough = n_at_once <= task.rows.len() || panels.end == task.panels.end;
            for l in task.depth.clone().step_by(max_depth) {
                let depth = l..task.depth.end.min(l + max_depth);
                let is_final = depth.end == task.depth.end && is_enough;
                // SAFETY: the room holds a block; the rest as promised by the caller.
                let block = unsafe { self.prepare(&task, panels.clone(), depth, (room, &mut left)) };
                for first_row in task.rows.clone().step_by(n_at_once) {
                    let rows = first_row..task.rows.end.min(first_row + n_at_once);
                    for row in rows.clone().step_by(height) {
                        // SAFETY: as above.
                        unsafe { self.multiply_rows(&task, &block, row, &mut left, out) };
                    }
                    if let Some(finished) = task.finished.filter(|_| is_final) {
                        finished(rows, waiting.clone());
                    }
                }
            }
            if is_enough {
                waiting.start = waiting.end;
            }
        }
    }

    /// Rows of a block at most.
    fn max_depth(&self) -> usize {
        match self.way {
            BSource::InPlace => LYING_DEPTH,
            // Read straight through; a row of `a` may be as long as there is room for.
            BSource::Prepacked if self.x.m == 1 => DEPTH * MAX_ROWS,
            BSource::PackFirst | BSource::PackOnFirstUse if self.x.m <= self.kernel.heights[2] => ONCE_DEPTH,
            _ => DEPTH,
        }
    }

    /// A block, laid out unless a tile will do that, and where the columns of `a` are that are read by tables.
    unsafe fn prepare(
        &self,
        task: &GemmTask,
        panels: Range<usize>,
        depth: Range<usize>,
        (room, left): (PackBuffers, &mut LeftRows),
    ) -> PanelBlock {
        let (x, first_column) = (self.x, self.columns(panels.clone()).start);
        let panel = |panel: usize| {
            let columns = self.columns(panel..panel + 1);
            let width = self.width(&columns);
            let laid = room.first.wrapping_add(depth.len() * (columns.start - first_column));
            let at = x.b(depth.start, panel, columns.start) * x.b_storage.unit_bytes() as isize;
            let lies = x.b.wrapping_offset(at).cast::<f32>();
            let packed = self.packed_at(panel, depth.start);
            let b = match self.way {
                BSource::InPlace | BSource::Prepacked => lies,
                BSource::PackFirst | BSource::PackOnFirstUse => packed.unwrap_or(laid),
            };
            if self.way == BSource::PackFirst && packed.is_none() {
                // SAFETY: as promised by the caller.
                unsafe { self.lay_out(depth.clone(), panel, laid) };
            }
            let next = self.next_block(task, &depth, panel);
            BlockPanel { columns, width, b, lies, laid, next }
        };
        let panels = panels.map(panel).collect();
        if self.has_tables(&depth) {
            match (self.lists.a, x.a_steps) {
                (Some(matrix), _) => {
                    left.columns.iter_mut().zip(matrix.cols.offsets(depth.start)).for_each(|(to, at)| *to = at)
                }
                (None, steps) => {
                    let step = steps.map_or(0, |steps| steps.1);
                    left.columns.iter_mut().zip(depth.clone()).for_each(|(to, l)| *to = l as isize * step);
                }
            }
        }
        PanelBlock { depth, panels }
    }

    /// A row of a panel that lies packed already, as `f32`.
    fn packed_at(&self, panel: usize, l: usize) -> Option<*const f32> {
        let columns = self.columns(panel..panel + 1);
        if let Some(packed) = self.packed() {
            return Some(packed.wrapping_add(self.x.k * columns.start + l * self.width(&columns)));
        }
        let lies = self.way == BSource::Prepacked && self.x.b_storage == F32;
        lies.then(|| self.x.b.cast::<f32>().wrapping_offset(self.x.b(l, panel, columns.start)))
    }

    /// The tiles of some rows of `a` with all panels of a block.
    unsafe fn multiply_rows(
        &self,
        task: &GemmTask,
        block: &PanelBlock,
        row: usize,
        left: &mut LeftRows,
        out: *mut f32,
    ) {
        let &GemmTiling { x, kernel, .. } = self;
        let (depth, is_first) = (block.depth.len(), row == task.rows.start);
        let n_rows = kernel.heights[2].min(task.rows.end - row);
        let tile_idx = (row - task.rows.start) / kernel.heights[2];
        // SAFETY: the instruction set is there, and `left` has room for a tile's rows; the rest as promised by the caller.
        unsafe {
            let lays = is_first && self.way == BSource::PackOnFirstUse && self.packed().is_none();
            let rows = self.rows_of_a(row..row + n_rows, block.depth.clone(), (n_rows > 1 && !lays, left));
            let tiles = self.tiles(n_rows, (is_first, lays), rows.at.is_some());
            let next_rows = self.next_rows(task, &block.depth, row + n_rows);
            for (i, panel) in block.panels.iter().enumerate() {
                let b = if lays { panel.lies } else { panel.b };
                // Rows of `a` that are read for the first panel are near for the others.
                let next = match next_rows.filter(|_| i == 0) {
                    Some(rows) => rows,
                    None => RegisterTile::next_of(panel.next, b, depth, tile_idx),
                };
                let tile = RegisterTile {
                    a: rows.first,
                    a_pitch: rows.pitch,
                    a_rows: rows.at.as_ref().map_or(std::ptr::null(), |at| at.as_ptr()),
                    a_columns: left.columns.as_ptr(),
                    b,
                    b_pitch: x.b_steps.map_or(0, |steps| steps.0),
                    laid: panel.laid,
                    depth,
                    out: out.wrapping_add(row * x.n + panel.columns.start),
                    pitch: x.n,
                    n_rows,
                    n_columns: panel.columns.len(),
                    adds: block.depth.start > task.depth.start,
                    next,
                };
                tiles[panel.width / kernel.lanes - 1](&tile);
            }
        }
    }

    /// The functions for tiles of so many rows, by the vectors across them: of the first rows of a block, which may lay it out, or of
    /// others; of rows that are read by tables.
    fn tiles(&self, n_rows: usize, (is_first, lays): (bool, bool), by_tables: bool) -> &'static [TileFn] {
        let (kernel, dtype) = (self.kernel, self.x.b_storage.dtype());
        let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
        match self.way {
            BSource::PackOnFirstUse if lays => kernel.laying[of(dtype)][height],
            BSource::InPlace => kernel.tiles[height],
            BSource::Prepacked if n_rows == 1 => kernel.rows[of(dtype)],
            _ if n_rows == 1 => kernel.rows[of(DType::F32)],
            _ if by_tables => kernel.listed[height],
            _ if is_first && (self.way == BSource::Prepacked || self.packed().is_some()) => kernel.fresh[height],
            _ => kernel.tiles[height],
        }
    }

    /// The part of a panel that will be read after this one, where it lies packed already and comes from memory rather than from a
    /// cache: where it begins and how many values it has. With many rows, a block is used so often that waiting for it costs
    /// little, and several of them fill the cache.
    fn next_block(&self, task: &GemmTask, depth: &Range<usize>, panel: usize) -> Option<(*const f32, usize)> {
        if self.x.m > FEW {
            return None;
        }
        // The next panel is most often the same thread's, if not the same task's.
        let (panel, first) =
            if depth.end < task.depth.end { (panel, depth.end) } else { (panel + 1, task.depth.start) };
        let n_rows = self.max_depth().min(task.depth.end - first);
        let values = |at| (at, n_rows * self.width(&self.columns(panel..panel + 1)));
        if panel < self.n_panels() { self.packed_at(panel, first).map(values) } else { None }
    }

    /// The rows of `a` from this one on, where many follow each other in memory and each is read once.
    fn next_rows(&self, task: &GemmTask, depth: &Range<usize>, row: usize) -> Option<*const f32> {
        let is_dense = self.lists.a.is_none() && self.x.a_steps == Some((self.x.k as isize, 1));
        let follow = is_dense && depth.len() == self.x.k && self.x.m > FEW && row < task.rows.end;
        follow.then(|| self.x.a.wrapping_add(row * self.x.k))
    }

    /// Whether rows of `a` are best read by tables of where rows and columns are: they lie in runs, or few of them side by side, so
    /// that what tiles read together lies near together.
    fn has_tables(&self, depth: &Range<usize>) -> bool {
        if self.way == BSource::InPlace || depth.len() > DEPTH {
            return false;
        }
        match (self.lists.a, self.x.a_steps) {
            (Some(matrix), _) => {
                let (run, step) = matrix.cols.run(depth.start, depth.len());
                step == 1 && (run < depth.len() || matrix.rows.stride().is_none())
            }
            (None, Some((1, across))) => across != 1 && self.x.m <= FEW && across.unsigned_abs() <= FEW,
            (None, _) => false,
        }
    }

    /// Some rows of `a`: where they are, if they are dense or tables serve (which may be), else as a copy.
    #[inline(always)]
    unsafe fn rows_of_a(
        &self,
        rows: Range<usize>,
        depth: Range<usize>,
        (may_list, left): (bool, &mut LeftRows),
    ) -> TileRows {
        let x = self.x;
        let to: *mut f32 = left.copied.as_mut_ptr().cast();
        let copied = TileRows { first: to, pitch: depth.len() as isize, at: None };
        if may_list && self.has_tables(&depth) {
            let mut at = [0; MAX_ROWS];
            match (self.lists.a, x.a_steps) {
                (Some(matrix), _) => {
                    let offsets = matrix.rows.offsets(matrix.first_row + rows.start).take(rows.len());
                    at.iter_mut().zip(offsets).for_each(|(to, at)| *to = at);
                }
                (None, steps) => {
                    let step = steps.map_or(0, |steps| steps.0);
                    at.iter_mut().zip(rows).for_each(|(to, row)| *to = row as isize * step);
                }
            }
            return TileRows { first: x.a, pitch: 0, at: Some(at) };
        }
        let Some(matrix) = self.lists.a else {
            let Some(steps) = x.a_steps else { unreachable!("without steps there are lists") };
            let a = x.a.wrapping_offset(rows.start as isize * steps.0 + depth.start as isize * steps.1);
            if steps.1 == 1 {
                return TileRows { first: a, pitch: steps.0, at: None };
            }
            // SAFETY: as promised by the caller; there is room for the rows.
            unsafe { turn(a, steps, (rows.len(), depth.len()), to, depth.len()) };
            return copied;
        };
        let (run, step) = matrix.cols.run(depth.start, depth.len());
        if let Some(down) = matrix.rows.stride().filter(|_| run == depth.len() && step == 1) {
            let first = (matrix.first_row + rows.start) as isize * down + matrix.cols.at(depth.start);
            return TileRows { first: x.a.wrapping_offset(first), pitch: down, at: None };
        }
        let pitch = depth.len();
        // SAFETY: as above.
        unsafe { (self.kernel.gather)(&Gather { from: x.a, matrix, rows, cols: depth, to, pitch }) };
        copied
    }
}
