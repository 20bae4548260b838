//! Chained products: for a block of rows, scores of one block of columns after another are made in cache, become weights
//! (an online softmax keeps the greatest score and the sum of a row, and rescales when the greatest grows), and are
//! multiplied with the values while they are there. No score reaches memory. Sums do not depend on the number of
//! threads: how columns are cut goes by sizes alone, and parts are put together in order.
//!
//! A score of −∞ takes nothing from its value, even if that is NaN. Products of whole blocks cannot leave values out, so a
//! row whose result is NaN is computed once more, by the runs of columns that it sees.

mod mask;
mod online_softmax;
mod pack;
mod schedule;

use std::ops::Range;

use super::gemm::{PackBuffers, PackedMatrix};
use super::gemv::Skinny;
use super::map;
use super::schedule::Nest;
use super::threads;
use super::tile::{BoundNest, Frame, Tile, Val};
use crate::kernel::{AttentionArgs, AttentionOperand, ROW_MAX, ROW_PRODUCT, ROW_SHIFT, ROW_SUM};
use crate::ops::max_f32;
use mask::BatchMasks;
use online_softmax::{copy_weights, exp, shift};
pub use schedule::ChainedProductWork;
use schedule::{AttentionSchedule, RowState, TaskRoom};

impl ChainedProductWork {
    /// Runs it on the threads this is called in.
    ///
    /// # Safety
    /// The memory is as large as the plan says, and `parts` and `rooms` as this says.
    pub unsafe fn run<'a>(
        &'a self,
        bind: impl Fn(&'a Nest) -> BoundNest<'a>,
        constants: &'a [u32],
        parts: *mut u8,
        rooms: PackBuffers,
    ) {
        let mut bound = [&self.scores, &self.unmasked, &self.result, &self.rows].map(bind);
        // SAFETY: as promised by the caller.
        bound.iter_mut().for_each(|nest| unsafe { nest.evaluate_uniforms() });
        let n_results = self.result.code.body.outputs.len();
        bound[3].outputs.drain(..n_results);
        let run = AttentionRun { work: self, bound: &bound, constants, parts: SharedParts(parts.cast()) };
        let schedule = &self.schedule;
        let per_batch = schedule.tasks_per_batch();
        let all = |worker: usize, task: usize| {
            let (batch, within) = (task / per_batch, task % per_batch);
            let (rows, part) = (within / schedule.n_parts, within % schedule.n_parts);
            // SAFETY: as promised by the caller; tasks write apart.
            unsafe { run.task(batch, rows, part, TaskRoom::new(self, rooms.of(worker).first)) };
        };
        let n_tasks = schedule.n_batch * per_batch;
        match schedule.is_shared {
            true => threads::for_each_on(n_tasks, &all),
            false => (0..n_tasks).for_each(|task| all(threads::worker(), task)),
        }
        if schedule.n_parts > 1 {
            threads::for_each_on(schedule.n_batch, &|worker, batch| {
                // SAFETY: as above; all parts are there.
                unsafe { run.combine(batch, TaskRoom::new(self, rooms.of(worker).first)) };
            });
        }
    }
}

/// A pointer that tasks share; they write apart.
#[derive(Clone, Copy)]
struct SharedParts(*mut f32);

// SAFETY: see above.
unsafe impl Send for SharedParts {}
unsafe impl Sync for SharedParts {}

/// One run: a launch with its memory.
struct AttentionRun<'a> {
    work: &'a ChainedProductWork,
    /// Scores, scores without masks, results, rows.
    bound: &'a [BoundNest<'a>; 4],
    constants: &'a [u32],
    parts: SharedParts,
}

/// A block of scores: rows and columns of one batch index.
#[derive(Clone, Copy)]
struct ScoreBlock {
    batch: usize,
    row: usize,
    n_rows: usize,
    column: usize,
    n_columns: usize,
}

/// What a task computes: rows and columns of one batch index, and where it keeps its state.
struct AttentionTask {
    batch: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    masks: BatchMasks,
    state: RowState,
    room: TaskRoom,
}

/// A block and where its operands, its scores and the state of its rows lie.
struct BlockPlace<'a> {
    block: ScoreBlock,
    /// The columns whose operands are packed.
    chunk: Range<usize>,
    state: RowState,
    room: TaskRoom,
    /// Per row, whether it takes values only where its scores are not masked; none does if there are none.
    spoilt: &'a [bool],
}

impl<'a> AttentionRun<'a> {
    fn args(&self) -> &AttentionArgs {
        &self.work.args
    }

    fn schedule(&self) -> &AttentionSchedule {
        &self.work.schedule
    }

    /// Some rows of a batch index over one part of the columns, and if there is but one, the maps over their results.
    unsafe fn task(&self, batch: usize, rows: usize, part: usize, room: TaskRoom) {
        let (args, schedule) = (self.args(), self.schedule());
        let first = rows * schedule.rows_per_task;
        let n_rows = schedule.rows_per_task.min(args.n_rows - first);
        let columns = part * schedule.part_columns..((part + 1) * schedule.part_columns).min(args.n_columns);
        let state = match schedule.n_parts {
            1 => room.state,
            _ => self.part_state(batch, part, first),
        };
        let task = AttentionTask { batch, rows: first..first + n_rows, columns, masks: self.masks(batch), state, room };
        // SAFETY: as promised by the caller.
        unsafe {
            self.attend(&task, &[]);
            let is_nan = |row: usize| {
                let product = state.product.wrapping_add(row * args.n_values);
                let product = std::slice::from_raw_parts(product, args.n_values);
                product.iter().fold(false, |is_nan, x| is_nan | x.is_nan())
            };
            if self.may_hide() && (0..n_rows).any(is_nan) {
                let spoilt: Vec<bool> = (0..n_rows).map(is_nan).collect();
                self.attend(&task, &spoilt);
            }
            if schedule.n_parts == 1 {
                self.finish(batch, first, n_rows, state, room);
            }
        }
    }

    /// Weights and sums of the rows of a task. Rows that are `spoilt` take values only where their scores are not masked.
    unsafe fn attend(&self, task: &AttentionTask, spoilt: &[bool]) {
        let (args, schedule) = (self.args(), self.schedule());
        let AttentionTask { batch, rows, columns, masks, state, room } = task;
        let [scores, unmasked, ..] = self.bound;
        let panel_columns = schedule.panel_columns;
        // SAFETY: as promised by the caller.
        unsafe {
            std::slice::from_raw_parts_mut(state.product, rows.len() * args.n_values).fill(0.0);
            std::slice::from_raw_parts_mut(state.max, rows.len()).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(state.sum, rows.len()).fill(0.0);
            scores.with_frame(|masked| {
                unmasked.with_frame(|free| {
                    for start in columns.clone().step_by(schedule.chunk_columns) {
                        let chunk = start..columns.end.min(start + schedule.chunk_columns);
                        let mut is_packed = schedule.reads_in_place;
                        for row in rows.clone().step_by(schedule.block_rows) {
                            let n_rows = schedule.block_rows.min(rows.end - row);
                            let mut has_rows = schedule.reads_in_place;
                            for column in chunk.clone().step_by(schedule.block_columns) {
                                let end = chunk.end.min(column + schedule.block_columns);
                                let seen = masks.seen(row..row + n_rows, column..end);
                                if seen.is_empty() {
                                    continue;
                                }
                                if !std::mem::replace(&mut is_packed, true) {
                                    self.pack_columns(*batch, chunk.clone(), *room);
                                }
                                let column = column + (seen.start - column) / panel_columns * panel_columns;
                                let n_columns = seen.end - column;
                                let block = ScoreBlock { batch: *batch, row, n_rows, column, n_columns };
                                if !std::mem::replace(&mut has_rows, true) {
                                    self.pack_rows(block, *room);
                                }
                                // Scores that masks hide are made as if seen, and hidden then; if that is not the
                                // same, by the instructions.
                                let hold = masks.hold(block);
                                let frame = if hold || masks.is_neutral { &mut *free } else { &mut *masked };
                                let hides = masks.is_neutral && !hold;
                                let task_row = row - rows.start;
                                let place = BlockPlace {
                                    block,
                                    chunk: chunk.clone(),
                                    state: state.at(task_row, args.n_values),
                                    room: *room,
                                    spoilt: spoilt.get(task_row..task_row + n_rows).unwrap_or(&[]),
                                };
                                self.inner_products(&place);
                                self.weigh(frame, &place, masks, hides);
                                self.take_all(&place);
                            }
                        }
                    }
                });
            });
        }
    }

    /// Where a part keeps the state of the rows from `first` on.
    fn part_state(&self, batch: usize, part: usize, first: usize) -> RowState {
        let (n_rows, n_values) = (self.args().n_rows, self.args().n_values);
        let at = (batch * self.schedule().n_parts + part) * n_rows * self.work.row_state();
        let product = self.parts.0.wrapping_add(at);
        let max = product.wrapping_add(n_rows * n_values);
        RowState { product, max, sum: max.wrapping_add(n_rows) }.at(first, n_values)
    }

    /// Puts the parts of all rows of a batch index together, from the first to the last, and maps their results.
    unsafe fn combine(&self, batch: usize, room: TaskRoom) {
        let args = self.args();
        let total = self.part_state(batch, 0, 0);
        for part in 1..self.schedule().n_parts {
            let other = self.part_state(batch, part, 0);
            for row in 0..args.n_rows {
                let (to, from) = (total.at(row, args.n_values), other.at(row, args.n_values));
                // SAFETY: both are rows of parts.
                unsafe {
                    let mut scales = [1.0, 1.0];
                    if self.work.is_softmax {
                        let max = max_f32(*to.max, *from.max);
                        scales = [*to.max, *from.max].map(|own| exp(shift(own) - shift(max)));
                        *to.max = max;
                    }
                    *to.sum = *to.sum * scales[0] + *from.sum * scales[1];
                    for i in 0..args.n_values {
                        *to.product.add(i) = *to.product.add(i) * scales[0] + *from.product.add(i) * scales[1];
                    }
                }
            }
        }
        // SAFETY: as promised by the caller.
        unsafe { self.finish(batch, 0, args.n_rows, total, room) };
    }

    /// An operand of a block, where it lies.
    fn operand(&self, i: usize, lies: &AttentionOperand, batch: usize, place: usize) -> *const f32 {
        self.bound[0].inputs[i].cast::<f32>().wrapping_offset(self.at(lies, batch, place))
    }

    /// The inner products of a block.
    unsafe fn inner_products(&self, place: &BlockPlace) {
        let &BlockPlace { block, room, .. } = place;
        let at = block.column - place.chunk.start;
        for (i, inner) in self.args().inner.iter().enumerate() {
            let (depth, out) = (inner.depth, room.sums[i]);
            // SAFETY: operands are within their memory, and the room holds all of a block.
            unsafe {
                if self.schedule().reads_in_place {
                    let a = self.operand(2 * i, &inner.a, block.batch, block.row);
                    let b = self.operand(2 * i + 1, &inner.b, block.batch, block.column);
                    let (k, n, b_pitch) = (depth, block.n_columns, inner.b.place);
                    Skinny { m: 1, k, n, a, a_pitch: 0, b, b_pitch, by_columns: true, out }.dot();
                    continue;
                }
                let matrix = PackedMatrix { first: room.columns[i], depth, n_columns: place.chunk.len() };
                let part = (0..depth, at..at + block.n_columns);
                let (rows, out) = (self.row_operand(i, block, room), (out, self.schedule().block_pitch));
                matrix.multiply(rows, block.n_rows, part, out, false);
            }
        }
    }

    /// Adds the weighted values of a block to the products of all rows but the spoilt ones, which have theirs.
    unsafe fn take_all(&self, place: &BlockPlace) {
        let is_spoilt = |row: usize| place.spoilt.get(row).copied().unwrap_or(false);
        let mut row = 0;
        while row < place.block.n_rows {
            let end = (row..place.block.n_rows).find(|r| is_spoilt(*r) != is_spoilt(row)).unwrap_or(place.block.n_rows);
            if !is_spoilt(row) {
                // SAFETY: as promised by the caller.
                unsafe { self.take(place, row..end, 0..place.block.n_columns) };
            }
            row = end;
        }
    }

    /// Adds the values of some columns of a block, weighted, to the products of some rows.
    unsafe fn take(&self, place: &BlockPlace, rows: Range<usize>, columns: Range<usize>) {
        let args = self.args();
        let &BlockPlace { block, room, .. } = place;
        let pitch = self.schedule().block_pitch;
        let weights = room.weights.wrapping_add(rows.start * pitch + columns.start).cast_const();
        let out = place.state.at(rows.start, args.n_values).product;
        // SAFETY: as promised by the caller.
        unsafe {
            if self.schedule().reads_in_place {
                let column = block.column + columns.start;
                let b = self.operand(2 * args.inner.len(), &args.values, block.batch, column);
                let (k, n, b_pitch) = (columns.len(), args.n_values, args.values.place);
                return Skinny { m: 1, k, n, a: weights, a_pitch: 0, b, b_pitch, by_columns: false, out }.add();
            }
            let at = block.column - place.chunk.start;
            let part = (at + columns.start..at + columns.end, 0..args.n_values);
            let values = room.packed_values(args, place.chunk.len());
            values.multiply((weights, pitch as isize), rows.len(), part, (out, args.n_values), true);
        }
    }

    /// Adds the weighted values of a block to the product of a row, but for the columns whose scores are masked.
    unsafe fn take_seen(&self, place: &BlockPlace, row: usize, scores: &[u32], hidden: f32) {
        let n = place.block.n_columns;
        let is_hidden = |column: usize| f32::from_bits(scores[if scores.len() == 1 { 0 } else { column }]) == hidden;
        let mut column = 0;
        while column < n {
            let end = (column..n).find(|c| is_hidden(*c) != is_hidden(column)).unwrap_or(n);
            if !is_hidden(column) {
                // SAFETY: as promised by the caller.
                unsafe { self.take(place, row..row + 1, column..end) };
            }
            column = end;
        }
    }

    /// Whether some scores may be masked, so that their values have no influence: with a softmax any score may be −∞.
    fn may_hide(&self) -> bool {
        let consts = &self.work.args.scores.consts;
        let is_zero = |fill: u16| f32::from_bits(self.constants[consts[fill as usize] as usize]) == 0.0;
        self.work.is_softmax || self.work.masked_by.is_some_and(is_zero)
    }

    /// The weights of a block, from its sums; with a softmax, rows whose greatest score grows are rescaled. Then spoilt rows
    /// take the values that they see.
    unsafe fn weigh(&self, frame: &mut Frame<'a>, place: &BlockPlace, masks: &BatchMasks, hides: bool) {
        let args = self.args();
        let &BlockPlace { block, state, room, .. } = place;
        let nest = frame.bound.nest;
        let pitch = self.schedule().block_pitch;
        let stores = &nest.code.body.stores;
        let register = |i: usize| stores.get(i).map(|store| nest.code.alias[store.value as usize]);
        let (score, factor) = (register(0).expect("a score is stored"), register(1));
        let len = block.n_columns;
        let per_tile = (nest.scratch.tile / len).clamp(1, block.n_rows);
        debug_assert!(per_tile * len <= nest.scratch.tile, "less scratch than a row of a block");
        for row in (0..block.n_rows).step_by(per_tile) {
            let rows = per_tile.min(block.n_rows - row);
            let start = (block.batch * args.n_rows + block.row + row) * args.n_columns + block.column;
            let tile = Tile { start, rows, len, pitch: args.n_columns, ..Tile::default() };
            for (i, _) in args.inner.iter().enumerate() {
                let sums = room.sums[i].wrapping_add(row * pitch);
                frame.accs[i] = Val::full(sums.cast_const().cast(), pitch);
            }
            // SAFETY: as promised by the caller.
            unsafe {
                nest.passes.inner.iter().for_each(|pass| frame.run_lines(pass, &tile));
                let (score, factor) = (frame.val(score), factor.map(|reg| frame.val(reg)));
                for i in (0..rows).filter(|_| hides) {
                    // A score depends on sums, so it lies in scratch memory: that of sums, or of tiles.
                    let lanes = score.ptr.cast_mut().cast::<f32>().offset(i as isize * score.pitch);
                    masks.hide(block.row + row + i, block.column, std::slice::from_raw_parts_mut(lanes, len));
                }
                let weights = (room.weights.wrapping_add(row * pitch), pitch);
                match self.work.is_softmax {
                    true => self.online_softmax(score, factor, weights, &tile, state.at(row, args.n_values)),
                    false => copy_weights(score, factor, weights, &tile),
                }
                for i in (0..rows).filter(|i| place.spoilt.get(row + i).copied().unwrap_or(false)) {
                    self.take_seen(place, row + i, score.row(i, len), masks.fill);
                }
            }
        }
    }

    /// The maps over results and rows.
    unsafe fn finish(&self, batch: usize, first: usize, n_rows: usize, state: RowState, room: TaskRoom) {
        let args = self.args();
        let [.., result, by_row] = self.bound;
        // SAFETY: as promised by the caller.
        unsafe {
            for row in 0..n_rows {
                *room.shifts.add(row) = shift(*state.max.add(row));
            }
            let row_vals = |row: usize| {
                let val = |first: *mut f32| Val { ptr: first.wrapping_add(row).cast(), pitch: 1, spread: false };
                [(ROW_SHIFT, val(room.shifts)), (ROW_MAX, val(state.max)), (ROW_SUM, val(state.sum))]
            };
            if !self.work.result.code.body.stores.is_empty() {
                result.with_frame(|frame| {
                    let n_lanes = self.work.result.scratch.tile.max(1);
                    let len = args.n_values.min(n_lanes);
                    for row in (0..n_rows).step_by((n_lanes / len).max(1)) {
                        for column in (0..args.n_values).step_by(len) {
                            let tile = Tile {
                                start: (batch * args.n_rows + first + row) * args.n_values + column,
                                rows: (n_lanes / len).max(1).min(n_rows - row),
                                len: len.min(args.n_values - column),
                                pitch: args.n_values,
                                ..Tile::default()
                            };
                            row_vals(row).iter().for_each(|(number, val)| frame.accs[*number as usize] = *val);
                            let product = state.product.wrapping_add(row * args.n_values + column);
                            frame.accs[ROW_PRODUCT as usize] = Val::full(product.cast_const().cast(), args.n_values);
                            map::run_tile(frame, &tile);
                        }
                    }
                });
            }
            if !self.work.rows.code.body.stores.is_empty() {
                by_row.with_frame(|frame| {
                    let len = self.work.rows.scratch.tile.max(1);
                    for row in (0..n_rows).step_by(len) {
                        let tile = Tile::of(batch * args.n_rows + first + row, len.min(n_rows - row));
                        for (number, val) in row_vals(row) {
                            frame.accs[number as usize] = Val::full(val.ptr, tile.len);
                        }
                        map::run_tile(frame, &tile);
                    }
                });
            }
        }
    }
}
