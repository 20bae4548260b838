//! What a kernel does with the sums of a product: a map over them. The thread that has made a block of sums of an implicit GEMM
//! maps it at once, while it is in a near cache, so that there is no second pass over the results and no second fork-join.

use std::ops::Range;

use super::{Matmul, SharedPtr};
use crate::cpu::map;
use crate::cpu::runs::ElementRuns;
use crate::cpu::schedule::{Nest, Traversal};
use crate::cpu::tasks::TaskRow;
use crate::cpu::threads;
use crate::cpu::tile::{BoundNest, Tile, Val};

/// Sums that are worth a task where they are mapped apart from the product.
const PIECE: usize = 16 * 1024;

/// How blocks of sums are cut into tiles of the map.
#[derive(Clone, Copy)]
pub(super) struct EpilogueTiles {
    /// Columns of the product.
    n: usize,
    /// Lanes of a tile at most.
    n_lanes: usize,
    /// Positions in a row of a tile at most.
    max_len: usize,
    /// Whether a tile may have several rows that are as far apart as those of the product.
    takes_rows: bool,
    /// Rows to a task, where they are mapped apart from the product.
    rows_per_task: usize,
    /// There is nothing to do: the sums are the output.
    is_bare: bool,
}

impl EpilogueTiles {
    /// Those of a nest over `[batch…, m, n]`.
    pub fn new(nest: &Nest, n: usize, is_bare: bool) -> EpilogueTiles {
        let Traversal::Map(grid) = nest.form else { unreachable!("what follows a matmul is a map") };
        // Either the nest's own rows are those of the product, or all that it reads and writes lies as positions count.
        let is_flat = |walk: &ElementRuns| matches!(walk, ElementRuns::Flat(_) | ElementRuns::One(_));
        let takes_rows = grid.width == n || nest.walks.iter().all(is_flat);
        let rows_per_task = PIECE.div_ceil(n.max(1));
        EpilogueTiles { n, n_lanes: grid.rows * grid.len, max_len: grid.len, takes_rows, rows_per_task, is_bare }
    }
}

impl Matmul {
    /// Does to the sums of some rows from position `start` on what the kernel does with them, on all threads.
    ///
    /// # Safety
    /// As for [`Epilogue::block`].
    pub(super) unsafe fn follow(&self, bound: &BoundNest, sums: SharedPtr, start: usize, n_rows: usize) {
        // SAFETY: as promised by the caller.
        unsafe { Epilogue { tiles: self.epilogue, bound, sums }.rows(start, n_rows) }
    }
}

/// The map over the sums of a product, with the memory of one run.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a> {
    pub tiles: EpilogueTiles,
    pub bound: &'a BoundNest<'a>,
    /// Where the sum of position 0 is, or would be.
    pub sums: SharedPtr,
}

/// The sums of a block: the first, and from row to row.
#[derive(Clone, Copy)]
pub(super) struct BlockSums {
    pub first: *const u32,
    pub pitch: usize,
}

impl Epilogue<'_> {
    /// [`map_block`](Epilogue::map_block) of sums that lie as positions count.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn block(&self, start: usize, rows: Range<usize>, columns: Range<usize>) {
        let n = self.tiles.n;
        let first = self.sums.get().wrapping_add(start + rows.start * n + columns.start);
        // SAFETY: as promised by the caller.
        unsafe { self.map_block(start, rows, columns, BlockSums { first, pitch: n }) }
    }

    /// Maps some rows and columns of the matrix that begins at position `start`, on this thread. Whole rows of sums follow
    /// each other.
    ///
    /// # Safety
    /// Their sums are there, and nobody else maps them.
    pub unsafe fn map_block(&self, start: usize, rows: Range<usize>, columns: Range<usize>, sums: BlockSums) {
        let EpilogueTiles { n, n_lanes, max_len, takes_rows, is_bare, .. } = self.tiles;
        if is_bare || rows.is_empty() || columns.is_empty() {
            return;
        }
        self.bound.with_frame(|frame| {
            let mut run = |tile: Tile, at: usize| {
                frame.accs[0] = Val::full(sums.first.wrapping_add(at), sums.pitch);
                // SAFETY: as promised by the caller.
                unsafe { map::run_tile(frame, &tile) };
            };
            if !takes_rows && columns.len() == n {
                debug_assert_eq!(sums.pitch, n, "whole rows follow each other");
                let (first, len) = (start + rows.start * n, rows.len() * n);
                (0..len).step_by(max_len).for_each(|at| run(Tile::of(first + at, max_len.min(len - at)), at));
                return;
            }
            let n_across = columns.len().div_ceil(max_len);
            let len = columns.len().div_ceil(n_across);
            let shortest = columns.len() - (columns.len() - 1) / len * len;
            // No more rows than lanes: where rows are written in place, one lane for each fits in the first.
            let per_tile = if takes_rows { (n_lanes / len).clamp(1, shortest) } else { 1 };
            for row in rows.clone().step_by(per_tile) {
                let n_rows = per_tile.min(rows.end - row);
                for column in columns.clone().step_by(len) {
                    let (start, len) = (start + row * n + column, len.min(columns.end - column));
                    let at = (row - rows.start) * sums.pitch + column - columns.start;
                    run(Tile { start, rows: n_rows, len, pitch: n, ..Tile::default() }, at);
                }
            }
        });
    }

    /// Maps all columns of some rows, on all threads.
    ///
    /// # Safety
    /// As for [`block`](Epilogue::block).
    pub unsafe fn rows(&self, start: usize, n_rows: usize) {
        let n = self.tiles.n;
        if self.tiles.is_bare || n == 0 {
            return;
        }
        let tasks = TaskRow { n_items: n_rows, per_task: self.tiles.rows_per_task };
        threads::for_each(tasks.count(), &|task| {
            // SAFETY: as promised by the caller.
            unsafe { self.block(start, tasks.items(task), 0..n) }
        });
    }
}
