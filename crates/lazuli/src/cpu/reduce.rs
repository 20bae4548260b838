//! Reductions: for a block of outer indices, stage after stage over the inner axes. What one stage needs of an
//! earlier one is kept in scratch where it fits. Sums are pairwise: over the blocks of a tile, over tiles, over rows.

use super::nest::{Cut, Form, Nest, SERIAL};
use super::pass::Pass;
use super::program::CodeInst;
use super::threads;
use super::tile::{Bound, Frame, Tile};
use crate::kernel::Reg;
use crate::ops::ReduceLoops;

/// Runs a reduction on the threads this is called in.
///
/// # Safety
/// The memory is as large as the plan says.
pub unsafe fn run(bound: &Bound) {
    let n_blocks = bound.nest.n_blocks();
    let per_task = bound.nest.per_task;
    threads::for_each(n_blocks.div_ceil(per_task), &|task| {
        bound.with_frame(|frame| {
            for block in task * per_task..((task + 1) * per_task).min(n_blocks) {
                // SAFETY: as promised by the caller.
                unsafe { run_block(frame, block) };
            }
        });
    });
}

unsafe fn run_block(frame: &mut Frame, block: usize) {
    let nest = frame.bound.nest;
    let (Form::Rows { blocks, .. } | Form::Columns { blocks, .. }) = nest.form else {
        unreachable!("called for reductions")
    };
    let (start, len) = blocks.at(block);
    let passes = &nest.passes;
    // SAFETY: blocks are within the index space; the rest as promised by the caller.
    unsafe {
        for (stage, lines) in passes.outer.iter().enumerate() {
            frame.run_outer(lines, start, len);
            let Some(pass) = passes.inner.get(stage) else { continue };
            match nest.form {
                _ if pass.lines.is_empty() && pass.folds.is_empty() && pass.stores.is_empty() => {}
                Form::Columns { rows_per_tile, run, .. } => columns(frame, pass, (rows_per_tile, run), start, len),
                Form::Rows { rows_per_tile, row, .. } => rows(frame, pass, row, rows_per_tile, start, len),
                Form::Map(_) => {}
            }
        }
        frame.store_outer(start, len);
    }
}

fn loops(nest: &Nest, reg: Reg) -> &ReduceLoops {
    match &nest.code.insts[reg as usize] {
        CodeInst::Reduce { apply, .. } => apply,
        _ => unreachable!("a fold is a reduction"),
    }
}

/// One pass over `n_rows` rows from `first` on: several at once, or each piece by piece.
unsafe fn rows(frame: &mut Frame, pass: &Pass, cut: Cut, rows_per_tile: usize, first: usize, n_rows: usize) {
    let nest = frame.bound.nest;
    let inner = nest.sizes.inner;
    for row in (0..n_rows).step_by(rows_per_tile) {
        let rows = rows_per_tile.min(n_rows - row);
        frame.show_rows(pass, row);
        let len = nest.inner_of(first + row);
        // SAFETY: tiles are within the index space; the rest as promised by the caller.
        unsafe {
            if len == 0 {
                for fold in &pass.folds {
                    let identity = loops(nest, fold.reg).identity;
                    std::slice::from_raw_parts_mut(frame.outer_lanes(fold.reg).add(row), rows).fill(identity);
                }
            } else if cut.count() == 1 {
                let start = (first + row) * inner;
                let tile = Tile { start, rows, len, pitch: inner, kept_at: row * inner, kept_pitch: inner };
                frame.run(pass, &tile);
                for fold in &pass.folds {
                    let lanes = frame.spread(fold.source, &tile);
                    let out = frame.outer_lanes(fold.reg).add(row);
                    for r in 0..rows {
                        *out.add(r) = (loops(nest, fold.reg).fold)(lanes.row(r, len));
                    }
                }
            } else {
                long_row(frame, pass, cut, first + row, row, len);
            }
        }
    }
}

/// One pass over a row of several tiles, whose results are combined pairwise.
unsafe fn long_row(frame: &mut Frame, pass: &Pass, cut: Cut, row: usize, row_of_block: usize, n: usize) {
    let nest = frame.bound.nest;
    let inner = nest.sizes.inner;
    let mut counters: smallvec::SmallVec<[Counter; 4]> = pass.folds.iter().map(|_| Counter::NEW).collect();
    for idx in 0..cut.count() {
        let (at, len) = cut.at(idx);
        if at >= n {
            break;
        }
        let mut tile = Tile::of(row * inner + at, len.min(n - at));
        (tile.kept_at, tile.kept_pitch) = (row_of_block * inner + at, tile.len);
        // SAFETY: the tile is within the row.
        unsafe {
            frame.run(pass, &tile);
            for (fold, counter) in pass.folds.iter().zip(&mut counters) {
                let loops = loops(nest, fold.reg);
                let sum = (loops.fold)(frame.spread(fold.source, &tile).row(0, tile.len));
                counter.push(sum, loops);
            }
        }
    }
    for (fold, counter) in pass.folds.iter().zip(&mut counters) {
        // SAFETY: the block's outer lanes include this row.
        unsafe { *frame.outer_lanes(fold.reg).add(row_of_block) = counter.finish(loops(nest, fold.reg)) };
    }
}

/// Results combined like the digits of a binary counter: equal numbers of tiles with each other.
struct Counter {
    sums: [u32; 48],
    n: usize,
    depth: usize,
}

impl Counter {
    const NEW: Counter = Counter { sums: [0; 48], n: 0, depth: 0 };

    fn push(&mut self, mut sum: u32, loops: &ReduceLoops) {
        let mut carries = self.n.trailing_ones();
        while carries > 0 {
            self.depth -= 1;
            sum = combine(self.sums[self.depth], sum, loops);
            carries -= 1;
        }
        self.sums[self.depth] = sum;
        self.depth += 1;
        self.n += 1;
    }

    fn finish(&mut self, loops: &ReduceLoops) -> u32 {
        let Some(top) = self.depth.checked_sub(1) else { return loops.identity };
        (0..top).rev().fold(self.sums[top], |sum, i| combine(self.sums[i], sum, loops))
    }
}

fn combine(a: u32, b: u32, loops: &ReduceLoops) -> u32 {
    let mut acc = [a];
    // SAFETY: the loops are those of this machine.
    unsafe { (loops.accumulate)(&mut acc, &[b]) };
    acc[0]
}

/// One pass over `len` columns from `start` on, a few rows at a time: rows are added up one after another into the
/// lowest level, and levels like the digits of a binary counter.
unsafe fn columns(frame: &mut Frame, pass: &Pass, (rows_per_tile, run): (usize, usize), start: usize, len: usize) {
    let nest = frame.bound.nest;
    let n = nest.inner_of(start);
    let pitch = nest.sizes.outer;
    frame.show_columns(pass);
    let (mut depth, mut blocks, mut row) = (0, 0usize, 0);
    // SAFETY: tiles are within the index space; accumulators have room for a tile each and are apart.
    unsafe {
        let lanes = |ptr: *mut u32| std::slice::from_raw_parts_mut(ptr, len);
        while row < n {
            let rows = rows_per_tile.min(n - row).min(run - row % run).min(SERIAL - row % SERIAL);
            let tile = Tile { start: row * pitch + start, rows, len, pitch, kept_at: row * len, kept_pitch: len };
            frame.run(pass, &tile);
            for (i, fold) in pass.folds.iter().enumerate() {
                let source = frame.spread(fold.source, &tile);
                let acc = lanes(frame.level(i, depth));
                let loops = loops(nest, fold.reg);
                if row % SERIAL == 0 {
                    acc.fill(loops.identity);
                }
                (0..rows).for_each(|r| (loops.accumulate)(acc, source.row(r, len)));
            }
            row += rows;
            if row % SERIAL == 0 {
                for _ in 0..blocks.trailing_ones() {
                    depth -= 1;
                    merge(frame, pass, depth, len);
                }
                depth += 1;
                blocks += 1;
            }
        }
        let mut depth = depth + !n.is_multiple_of(SERIAL) as usize;
        while depth > 1 {
            depth -= 1;
            merge(frame, pass, depth - 1, len);
        }
        for (i, fold) in pass.folds.iter().enumerate() {
            let out = lanes(frame.outer_lanes(fold.reg));
            match n {
                0 => out.fill(loops(nest, fold.reg).identity),
                _ => out.copy_from_slice(lanes(frame.level(i, 0))),
            }
        }
    }
}

/// Adds the accumulators of the level above to those of `level`.
unsafe fn merge(frame: &Frame, pass: &Pass, level: usize, len: usize) {
    for (i, fold) in pass.folds.iter().enumerate() {
        // SAFETY: levels are apart and have room for a tile each.
        unsafe {
            let acc = std::slice::from_raw_parts_mut(frame.level(i, level), len);
            let above = std::slice::from_raw_parts(frame.level(i, level + 1), len);
            (loops(frame.bound.nest, fold.reg).accumulate)(acc, above);
        }
    }
}
