//! Reductions: for a block of outer indices, stage after stage over the inner axes. What one stage needs of an
//! earlier one is kept in scratch where it fits. Sums are pairwise: over the blocks of a tile, over tiles, over rows.

use super::chain;
use super::fold;
use super::program::CodeInst;
use super::raw::SharedLanes;
use super::schedule::{Nest, SERIAL, Tiling, Traversal};
use super::sweeps::{Fold, Sweep};
use super::threads;
use super::tile::{BoundNest, Frame, Tile};
use crate::kernel::Reg;
use crate::ops::{CombineStep, ReduceLoops};

/// Runs a reduction on the threads this is called in.
///
/// # Safety
/// The memory is as [`BoundNest`] says, and its uniforms are evaluated. `sums` has [`Nest::sums_bytes`] bytes, used by nobody else.
pub unsafe fn run(bound: &BoundNest, sums: SharedLanes) {
    if let Traversal::Columns { pieces, .. } = bound.nest.form
        && pieces.count() > 1
    {
        // SAFETY: as promised by the caller.
        return unsafe { run_pieces(bound, pieces, sums) };
    }
    let tasks = bound.nest.tasks;
    threads::for_each(tasks.count(), &|task| {
        bound.with_frame(|frame| {
            for block in tasks.items(task) {
                // SAFETY: as promised by the caller.
                unsafe { run_block(frame, block) };
            }
        });
    });
}

/// Runs all stages of one block of outer indices.
///
/// # Safety
/// As for [`run`]; the block is one of the nest, and no other thread runs it.
unsafe fn run_block(frame: &mut Frame, block: usize) {
    let nest = frame.bound.nest;
    let (Traversal::Rows { blocks, .. } | Traversal::Columns { blocks, .. }) = nest.form else {
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
                Traversal::Columns { .. } => {
                    let n = nest.inner_of(start);
                    columns(frame, pass, (start, len), (0, n));
                }
                Traversal::Rows { rows_per_tile, row, .. } => {
                    // The first pass waits for memory. If the second has much to compute, the next block's rows come
                    // near meanwhile.
                    frame.ahead = if stage == 1 { len * nest.sizes.inner } else { 0 };
                    rows(frame, pass, row, rows_per_tile, start, len);
                    frame.ahead = 0;
                }
                Traversal::Map(_) => {}
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

/// What combines the floats of a reduction, if it is one of floats.
fn step(nest: &Nest, reg: Reg) -> Option<CombineStep> {
    match nest.code.insts[reg as usize] {
        CodeInst::Reduce { step, .. } => step,
        _ => None,
    }
}

/// One pass over `n_rows` rows from `first` on: several at once, or each piece by piece.
///
/// # Safety
/// As for [`Frame::run`]; the rows are those of the block at hand, from its first on.
unsafe fn rows(frame: &mut Frame, pass: &Sweep, cut: Tiling, rows_per_tile: usize, first: usize, n_rows: usize) {
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
                for (i, fold) in pass.folds.iter().enumerate() {
                    let out = std::slice::from_raw_parts_mut(frame.outer_lanes(fold.reg).add(row), rows);
                    fold_tile(frame, (i, fold), &tile, out);
                }
            } else {
                long_row(frame, pass, cut, first + row, row, len);
            }
        }
    }
}

/// Lanes of a row from which on it is taken to come from memory.
const LONG_ROW: usize = 4096;

/// The rows of a tile, reduced: by the chain that made their lanes, or now.
///
/// # Safety
/// The pass was run over this tile by [`Frame::run`]; `out` has a lane for each row.
unsafe fn fold_tile(frame: &mut Frame, (i, fold): (usize, &Fold), tile: &Tile, out: &mut [u32]) {
    if !frame.folded[i].is_empty() {
        return out.copy_from_slice(&frame.folded[i][..out.len()]);
    }
    // SAFETY: as promised by the caller.
    unsafe {
        let (nest, source) = (frame.bound.nest, frame.spread(fold.source, tile));
        let loops = loops(nest, fold.reg);
        let step = step(nest, fold.reg).filter(|_| fold::folds());
        if let Some(step) = step
            && tile.len >= LONG_ROW
        {
            return fold::fold_rows((source.ptr, source.pitch), tile.len, out, (step, loops));
        }
        for (row, out) in out.iter_mut().enumerate() {
            let lanes = source.row(row, tile.len);
            *out = match step {
                Some(step) => {
                    let start = chain::Start { lanes: lanes.as_ptr(), single: false, ahead: 0 };
                    fold::fold(start, &[], std::ptr::null_mut(), tile.len, (step, loops))
                }
                None => (loops.fold)(lanes),
            };
        }
    }
}

/// A part of a row, reduced. What comes from memory is read as several shorter rows side by side.
///
/// # Safety
/// The pass was run over this part of a row by [`Frame::run`].
unsafe fn fold_part(frame: &mut Frame, (i, fold): (usize, &Fold), part: &Tile) -> u32 {
    const N: usize = fold::ABREAST;
    let (nest, len) = (frame.bound.nest, part.len / N);
    let mut sums = [0; N + 1];
    // SAFETY: the shorter rows are the part, but for a few lanes; the rest as promised by the caller.
    unsafe {
        match step(nest, fold.reg) {
            Some(step) if fold::folds() && len >= LONG_ROW / N && frame.folded[i].is_empty() => {
                let (lanes, loops) = (frame.spread(fold.source, part).ptr, loops(nest, fold.reg));
                fold::fold_rows((lanes, len as isize), len, &mut sums[..N], (step, loops));
                sums[N] = (loops.fold)(std::slice::from_raw_parts(lanes.add(N * len), part.len - N * len));
                (loops.fold)(&sums)
            }
            _ => {
                fold_tile(frame, (i, fold), part, &mut sums[..1]);
                sums[0]
            }
        }
    }
}

/// One pass over a row of several tiles, whose results are combined pairwise.
///
/// # Safety
/// As for [`Frame::run`]; the row is one of the block at hand, and `n` long at most.
unsafe fn long_row(frame: &mut Frame, pass: &Sweep, cut: Tiling, row: usize, row_of_block: usize, n: usize) {
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
            for (i, (fold, counter)) in pass.folds.iter().zip(&mut counters).enumerate() {
                counter.push(fold_part(frame, (i, fold), &tile), loops(nest, fold.reg));
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

/// Columns whose rows are shared out: each piece adds up its own, then the pieces are added up pairwise.
///
/// # Safety
/// As for [`run`]; the nest is one of columns whose rows are cut into these pieces.
unsafe fn run_pieces(bound: &BoundNest, pieces: Tiling, sums: SharedLanes) {
    let nest = bound.nest;
    let Traversal::Columns { blocks, .. } = nest.form else { unreachable!("called for columns") };
    let (passes, pass) = (&nest.passes, &nest.passes.inner[0]);
    let (n_pieces, n_folds) = (pieces.count(), pass.folds.len());
    // Where the sums of a piece are; pieces of one fold lie one after another.
    let at = |block: usize, fold: usize, piece: usize| ((block * n_folds + fold) * n_pieces + piece) * blocks.piece;
    threads::for_each(blocks.count() * n_pieces, &|task| {
        let (block, piece) = (task / n_pieces, task % n_pieces);
        let (start, len) = blocks.at(block);
        // SAFETY: pieces are within the index space, and each has sums of its own; the rest as promised by the caller.
        bound.with_frame(|frame| unsafe {
            frame.run_outer(&passes.outer[0], start, len);
            columns(frame, pass, (start, len), pieces.at(piece));
            for (i, fold) in pass.folds.iter().enumerate() {
                let own = std::slice::from_raw_parts(frame.outer_lanes(fold.reg), len);
                sums.part(at(block, i, piece), len).copy_from_slice(own);
            }
        });
    });
    threads::for_each(blocks.count(), &|block| {
        let (start, len) = blocks.at(block);
        // SAFETY: as above; every piece is done.
        bound.with_frame(|frame| unsafe {
            frame.run_outer(&passes.outer[0], start, len);
            for (i, fold) in pass.folds.iter().enumerate() {
                let lanes = |piece: usize| sums.part(at(block, i, piece), len);
                let mut step = 1;
                while step < n_pieces {
                    for piece in (0..n_pieces - step).step_by(2 * step) {
                        (loops(nest, fold.reg).accumulate)(lanes(piece), lanes(piece + step));
                    }
                    step *= 2;
                }
                std::slice::from_raw_parts_mut(frame.outer_lanes(fold.reg), len).copy_from_slice(lanes(0));
            }
            passes.outer[1..].iter().for_each(|lines| frame.run_outer(lines, start, len));
            frame.store_outer(start, len);
        });
    });
}

/// One pass over columns (the first, and how many) along some of their rows (likewise), a few rows at a time.
///
/// # Safety
/// As for [`Frame::run`]; the columns are those of the block at hand, and the rows are within the inner axes.
unsafe fn columns(frame: &mut Frame, pass: &Sweep, (start, len): (usize, usize), (first, n_rows): (usize, usize)) {
    let nest = frame.bound.nest;
    let Traversal::Columns { rows_per_tile, run, abreast, .. } = nest.form else { unreachable!("called for columns") };
    let pitch = nest.sizes.outer;
    frame.show_columns(pass);
    let mut levels = Levels { width: abreast * len, ..Levels::default() };
    let (mut row, end) = (first, first + n_rows);
    // SAFETY: tiles are within the index space; accumulators have room for a tile each and do not overlap.
    unsafe {
        while row < end {
            let rows = rows_per_tile.min(end - row).min(run - row % run);
            let tile = Tile { start: row * pitch + start, rows, len, pitch, kept_at: row * len, kept_pitch: len };
            frame.run(pass, &tile);
            let before = levels;
            for (i, fold) in pass.folds.iter().enumerate() {
                levels = before;
                let source = match abreast {
                    1 => frame.spread(fold.source, &tile),
                    _ => frame.dense(fold.source, &tile),
                };
                let (n_whole, part) = (rows / abreast, rows % abreast);
                let row = |r: usize| source.ptr.wrapping_offset((r * abreast) as isize * source.pitch);
                let whole =
                    Rows { first: row(0), pitch: abreast as isize * source.pitch, n: n_whole, len: abreast * len };
                let part = Rows { first: row(n_whole), pitch: 0, n: (part > 0) as usize, len: part * len };
                let by = (step(nest, fold.reg), loops(nest, fold.reg));
                levels.add(whole, |level| frame.level(i, level), by);
                levels.add(part, |level| frame.level(i, level), by);
            }
            row += rows;
        }
        for (i, fold) in pass.folds.iter().enumerate() {
            let loops = loops(nest, fold.reg);
            let out = std::slice::from_raw_parts_mut(frame.outer_lanes(fold.reg), len);
            match n_rows {
                0 => out.fill(loops.identity),
                _ => out.copy_from_slice(levels.finish(len, |level| frame.level(i, level), loops)),
            }
        }
    }
}

/// Rows of lanes, a step apart.
#[derive(Clone, Copy)]
struct Rows {
    first: *const u32,
    pitch: isize,
    n: usize,
    len: usize,
}

/// Rows that are added up together: memory is read in as many places at once, and sums are written once for all.
const TOGETHER: usize = 8;

/// Adds rows to accumulators, one after another.
///
/// # Safety
/// The rows are there, `acc` has a lane for each of theirs and overlaps none.
unsafe fn accumulate(acc: &mut [u32], rows: Rows, (step, loops): (Option<CombineStep>, &ReduceLoops)) {
    // SAFETY: as promised by the caller.
    unsafe {
        match step {
            Some(step) if fold::folds() => fold::accumulate(acc, (rows.first, rows.pitch), rows.n, step),
            _ => {
                for r in 0..rows.n {
                    let row = rows.first.offset(r as isize * rows.pitch);
                    (loops.accumulate)(acc, std::slice::from_raw_parts(row, rows.len));
                }
            }
        }
    }
}

/// Accumulators of rows of lanes: rows are added up one after another into the topmost level, and full levels with each
/// other like the digits of a binary counter.
#[derive(Clone, Copy, Default)]
struct Levels {
    /// Lanes of a level.
    width: usize,
    depth: usize,
    n_rows: usize,
}

impl Levels {
    /// Adds rows, or the first lanes of them.
    ///
    /// # Safety
    /// `at` gives levels that have room for `width` lanes and are disjoint from each other and from the rows.
    unsafe fn add(&mut self, mut rows: Rows, at: impl Fn(usize) -> *mut u32, by: (Option<CombineStep>, &ReduceLoops)) {
        while rows.n > 0 {
            let n = rows.n.min(SERIAL - self.n_rows % SERIAL).min(TOGETHER);
            // SAFETY: as promised by the caller.
            unsafe {
                let top = std::slice::from_raw_parts_mut(at(self.depth), self.width);
                if self.n_rows.is_multiple_of(SERIAL) {
                    top.fill(by.1.identity);
                }
                accumulate(&mut top[..rows.len], Rows { n, ..rows }, by);
                self.n_rows += n;
                if self.n_rows.is_multiple_of(SERIAL) {
                    for _ in 0..(self.n_rows / SERIAL - 1).trailing_ones() {
                        self.depth -= 1;
                        self.merge(self.depth, &at, by.1);
                    }
                    self.depth += 1;
                }
            }
            rows.first = rows.first.wrapping_offset(n as isize * rows.pitch);
            rows.n -= n;
        }
    }

    /// All levels into one, and that into `len` lanes.
    ///
    /// # Safety
    /// As for [`Levels::add`].
    unsafe fn finish<'s>(&self, len: usize, at: impl Fn(usize) -> *mut u32, loops: &ReduceLoops) -> &'s [u32] {
        let n_levels = self.depth + !self.n_rows.is_multiple_of(SERIAL) as usize;
        // SAFETY: as promised by the caller.
        unsafe {
            (1..n_levels).rev().for_each(|level| self.merge(level - 1, &at, loops));
            let sums = std::slice::from_raw_parts_mut(at(0), self.width);
            let mut width = self.width;
            while width > len {
                width /= 2;
                let (low, high) = sums.split_at_mut(width);
                (loops.accumulate)(low, &high[..width]);
            }
            &sums[..len]
        }
    }

    /// Adds the level above to `level`.
    ///
    /// # Safety
    /// As for [`Levels::add`]; both levels were filled.
    unsafe fn merge(&self, level: usize, at: impl Fn(usize) -> *mut u32, loops: &ReduceLoops) {
        // SAFETY: as promised by the caller.
        unsafe {
            let acc = std::slice::from_raw_parts_mut(at(level), self.width);
            (loops.accumulate)(acc, std::slice::from_raw_parts(at(level + 1), self.width));
        }
    }
}
