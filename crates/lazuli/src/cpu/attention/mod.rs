//! Chained products: for a block of rows, scores of one block of columns after another are made in cache, become weights
//! (an online softmax keeps the greatest score and the sum of a row, and rescales when the greatest grows), and are
//! multiplied with the values while they are there. No score reaches memory. Sums do not depend on the number of
//! threads: how columns are cut goes by sizes alone, and parts are put together in order.
//!
//! Where rows are few (a token over a long cache), keys and values are read in place and once for all heads that share them:
//! consecutive batch indices are joined to a *group*, whose rows are those of all of them, one batch index after another.
//!
//! A score of −∞ takes nothing from its value, even if that is NaN. Products of whole blocks cannot leave values out, so a
//! row whose result is NaN is computed once more, by the runs of columns that it sees.

#[cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "its loops are there for x86 alone"))]
mod in_place;
mod mask;
mod online_softmax;
mod pack;
mod schedule;

use std::ops::Range;

use smallvec::SmallVec;

use super::gemm::{PackBuffers, PackedMatrix};
use super::map;
use super::schedule::Nest;
use super::threads;
use super::tile::{BoundNest, Frame, Tile, Val};
use crate::kernel::{AttentionArgs, ROW_MAX, ROW_PRODUCT, ROW_SHIFT, ROW_SUM};
use crate::ops::max_f32;
use in_place::{FewRows, StoredRows};
use mask::BatchMasks;
use online_softmax::{copy_weights, exp, shift};
pub use schedule::ChainedProductWork;
use schedule::{AttentionSchedule, RowState, TaskRoom};

impl ChainedProductWork {
    /// Runs it on the threads this is called in.
    ///
    /// # Safety
    /// What `bind` gives is as [`BoundNest`] says; `parts` is valid for [`parts_bytes`](ChainedProductWork::parts_bytes), and `rooms`
    /// has [`room`](ChainedProductWork::room) values for every worker, both used by nobody else.
    pub unsafe fn run<'a>(
        &'a self,
        bind: impl Fn(&'a Nest) -> BoundNest<'a>,
        constants: &'a [u32],
        parts: *mut u8,
        rooms: PackBuffers,
    ) {
        let unmasked = self.unmasked.as_ref().unwrap_or(&self.scores);
        let mut bound = [&self.scores, unmasked, &self.result, &self.rows].map(bind);
        // SAFETY: as promised by the caller.
        bound.iter_mut().for_each(|nest| unsafe { nest.evaluate_uniforms() });
        let n_results = self.result.code.body.outputs.len();
        bound[3].outputs.drain(..n_results);
        let (parts, masks) = (SharedParts(parts.cast()), SmallVec::new());
        let mut run = AttentionRun { work: self, bound: &bound, constants, parts, masks, seen_parts: 0..1 };
        run.masks = run.batch_masks();
        run.seen_parts = run.find_seen_parts();
        let schedule = &self.schedule;
        let n_parts = run.seen_parts.len();
        let each = |is_shared: bool, n_tasks: usize, f: &(dyn Fn(usize, usize) + Sync)| match is_shared {
            true => threads::for_each_on(n_tasks, f),
            false => (0..n_tasks).for_each(|task| f(threads::worker(), task)),
        };
        each(schedule.is_shared, schedule.n_groups * schedule.n_row_tasks * n_parts, &|worker, task| {
            let (rows, part) = (task / n_parts, run.seen_parts.start + task % n_parts);
            let (group, rows) = (rows / schedule.n_row_tasks, rows % schedule.n_row_tasks);
            // SAFETY: as promised by the caller; tasks write apart.
            unsafe { run.task(group, rows, part, TaskRoom::new(self, rooms.of(worker).first)) };
        });
        if n_parts > 1 {
            each(n_parts >= schedule.shared_parts, schedule.n_groups, &|worker, group| {
                // SAFETY: as above; all parts are there.
                unsafe { run.combine(group, TaskRoom::new(self, rooms.of(worker).first)) };
            });
        }
    }
}

/// A pointer that tasks share; they write apart.
#[derive(Clone, Copy)]
struct SharedParts(*mut f32);

// SAFETY: tasks read and write parts of their own, or parts that all other tasks have finished with.
unsafe impl Send for SharedParts {}
// SAFETY: as above.
unsafe impl Sync for SharedParts {}

/// A launch of attention and the memory it runs on.
///
/// Its unsafe functions have two preconditions in common. The memory is as the safety section of [`ChainedProductWork::run`] says.
/// And tasks that run at the same time write neither the same rows of a partial result nor the same scratch memory.
struct AttentionRun<'a> {
    work: &'a ChainedProductWork,
    /// Scores, scores without masks, results, rows.
    bound: &'a [BoundNest<'a>; 4],
    constants: &'a [u32],
    parts: SharedParts,
    /// Of each batch index, or one for all.
    masks: SmallVec<[BatchMasks; 1]>,
    /// The parts of columns that masks do not hide as a whole: at least one.
    seen_parts: Range<usize>,
}

/// A block of scores: rows and columns of one group.
#[derive(Clone, Copy)]
struct ScoreBlock {
    group: usize,
    row: usize,
    n_rows: usize,
    column: usize,
    n_columns: usize,
}

/// What a task computes: rows and columns of one group, and where it keeps its state.
struct AttentionTask {
    group: usize,
    rows: Range<usize>,
    columns: Range<usize>,
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

    /// The masks of a batch index.
    fn masks(&self, batch: usize) -> &BatchMasks {
        &self.masks[if self.masks.len() == 1 { 0 } else { batch }]
    }

    /// Rows of a group by batch index: for each, its number and which of these rows are its own.
    fn by_batch(&self, group: usize, rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (n_rows, n_joined) = (self.args().n_rows, self.schedule().n_joined);
        (rows.start / n_rows..rows.end.div_ceil(n_rows)).map(move |member| {
            let own = rows.start.max(member * n_rows)..rows.end.min((member + 1) * n_rows);
            (group * n_joined + member, own)
        })
    }

    /// Rows of a group that are all of one batch index, as that counts them.
    fn of_batch(&self, rows: &Range<usize>) -> Range<usize> {
        let first = rows.start % self.args().n_rows;
        first..first + rows.len()
    }

    /// The columns that some of the rows of a group may see, of some of them.
    fn seen(&self, group: usize, rows: Range<usize>, columns: Range<usize>) -> Range<usize> {
        let by_batch = self.by_batch(group, rows);
        let seen = by_batch.map(|(batch, rows)| self.masks(batch).seen(self.of_batch(&rows), columns.clone()));
        seen.reduce(|x, y| match (x.is_empty(), y.is_empty()) {
            (true, _) => y,
            (_, true) => x,
            _ => x.start.min(y.start)..x.end.max(y.end),
        })
        .unwrap_or(columns.start..columns.start)
    }

    /// Parts that all batch indices see nothing of need no task. Combining one would change no bit: its sums are 0.
    fn find_seen_parts(&self) -> Range<usize> {
        let args = self.args();
        if self.masks.len() > 1 || args.n_rows == 0 {
            return 0..args.column_parts.count();
        }
        let seen = self.masks[0].seen(0..args.n_rows, 0..args.n_columns);
        let part = args.column_parts.len().max(1);
        let first = seen.start / part;
        first..seen.end.div_ceil(part).max(first + 1)
    }

    /// Some rows of a group over one part of the columns, and if no other part is seen, the maps over their results.
    ///
    /// # Safety
    /// As for [`ChainedProductWork::run`]; the room is that of this thread, and no other task has these rows and this
    /// part.
    unsafe fn task(&self, group: usize, rows: usize, part: usize, room: TaskRoom) {
        let (args, schedule) = (self.args(), self.schedule());
        let first = rows * schedule.rows_per_task;
        let n_rows = schedule.rows_per_task.min(self.work.group_rows() - first);
        let rows = first..first + n_rows;
        let mut columns = args.column_parts.range(part, args.n_columns);
        if schedule.reads_in_place {
            columns = self.seen(group, rows.clone(), columns);
        }
        let is_whole = self.seen_parts.len() == 1;
        let state = if is_whole { room.state } else { self.part_state(group, part, first) };
        let task = AttentionTask { group, rows, columns, state, room };
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
            if is_whole {
                self.finish(group, task.rows, state, room);
            }
        }
    }

    /// Weights and sums of the rows of a task. Rows that are `spoilt` take values only where their scores are not masked.
    ///
    /// # Safety
    /// As for [`AttentionRun::task`]: state and room of the task are its own.
    unsafe fn attend(&self, task: &AttentionTask, spoilt: &[bool]) {
        let (args, schedule) = (self.args(), self.schedule());
        let AttentionTask { group, rows, columns, state, room } = task;
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
                            let mut has_rows = false;
                            for column in chunk.clone().step_by(schedule.block_columns) {
                                let end = chunk.end.min(column + schedule.block_columns);
                                let seen = self.seen(*group, row..row + n_rows, column..end);
                                if seen.is_empty() {
                                    continue;
                                }
                                if !std::mem::replace(&mut is_packed, true) {
                                    self.pack_columns(*group, chunk.clone(), *room);
                                }
                                let column = column + (seen.start - column) / panel_columns * panel_columns;
                                let n_columns = seen.end - column;
                                let block = ScoreBlock { group: *group, row, n_rows, column, n_columns };
                                if !std::mem::replace(&mut has_rows, true) {
                                    self.pack_rows(block, *room);
                                }
                                let task_row = row - rows.start;
                                let place = BlockPlace {
                                    block,
                                    chunk: chunk.clone(),
                                    state: state.at(task_row, args.n_values),
                                    room: *room,
                                    spoilt: spoilt.get(task_row..task_row + n_rows).unwrap_or(&[]),
                                };
                                self.inner_products(&place);
                                for (batch, rows) in self.by_batch(*group, row..row + n_rows) {
                                    // Scores that masks hide are made as if seen, and hidden then; if that is not the
                                    // same, by the instructions.
                                    let masks = self.masks(batch);
                                    let hold = masks.hold(self.of_batch(&rows), column..column + n_columns);
                                    let frame = if hold || masks.is_neutral { &mut *free } else { &mut *masked };
                                    let hides = (masks.is_neutral && !hold).then_some(masks);
                                    self.weigh(frame, &place, rows, hides);
                                }
                                self.take_all(&place);
                            }
                        }
                    }
                });
            });
        }
    }

    /// Where a part keeps the state of the rows from `first` on.
    fn part_state(&self, group: usize, part: usize, first: usize) -> RowState {
        let (n_rows, n_values) = (self.work.group_rows(), self.args().n_values);
        let at = (group * self.args().column_parts.count() + part) * n_rows * self.work.row_state();
        let product = self.parts.0.wrapping_add(at);
        let max = product.wrapping_add(n_rows * n_values);
        RowState { product, max, sum: max.wrapping_add(n_rows) }.at(first, n_values)
    }

    /// Puts the parts of all rows of a group together, from the first to the last, and maps their results.
    ///
    /// # Safety
    /// As for [`ChainedProductWork::run`]; all parts of the group are computed, and nobody else uses them; the room is
    /// that of this thread.
    unsafe fn combine(&self, group: usize, room: TaskRoom) {
        let args = self.args();
        let n_rows = self.work.group_rows();
        let total = self.part_state(group, self.seen_parts.start, 0);
        for part in self.seen_parts.clone().skip(1) {
            let other = self.part_state(group, part, 0);
            for row in 0..n_rows {
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
        unsafe { self.finish(group, 0..n_rows, total, room) };
    }

    /// Some columns of an operand that is read in place: the keys of an inner product, or the values.
    fn stored_rows(&self, input: usize, group: usize, columns: Range<usize>) -> StoredRows {
        let args = self.args();
        let (lies, len) = match args.inner.get(input / 2) {
            Some(inner) => (&inner.b, inner.depth),
            None => (&args.values, args.n_values),
        };
        let dtype = self.work.storages[input].dtype();
        let at = self.at(lies, group * self.schedule().n_joined, columns.start) * dtype.size() as isize;
        let first = self.bound[0].inputs[input].wrapping_offset(at);
        StoredRows { first, dtype, pitch: lies.place, n_rows: columns.len(), len }
    }

    /// The inner products of a block.
    ///
    /// # Safety
    /// As for [`AttentionRun::attend`]: rows and columns of the block are packed where they are not read in place.
    unsafe fn inner_products(&self, place: &BlockPlace) {
        let &BlockPlace { block, room, .. } = place;
        let columns = block.column..block.column + block.n_columns;
        let pitch = self.schedule().block_pitch;
        for (i, inner) in self.args().inner.iter().enumerate() {
            let rows = self.row_operand(i, block, room);
            // SAFETY: operands are within their memory, and the room holds all of a block.
            unsafe {
                if self.schedule().reads_in_place {
                    let few = |first: *mut f32, pitch: usize| FewRows { first, pitch, n_rows: block.n_rows };
                    let keys = self.stored_rows(2 * i + 1, block.group, columns.clone());
                    let (a, out) = (few(rows.0.cast_mut(), rows.1 as usize), few(room.sums[i], pitch));
                    in_place::dot_products(a, keys, out);
                    continue;
                }
                let (depth, at) = (inner.depth, place.chunk.start);
                let matrix = PackedMatrix { first: room.columns[i], depth, n_columns: place.chunk.len() };
                let part = (0..depth, columns.start - at..columns.end - at);
                matrix.multiply(rows, block.n_rows, part, (room.sums[i], pitch), false);
            }
        }
    }

    /// Adds the weighted values of a block to the products of all rows but the spoilt ones, which have theirs.
    ///
    /// # Safety
    /// As for [`AttentionRun::take`], with all rows and columns.
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
    ///
    /// # Safety
    /// The preconditions of [`AttentionRun`] hold. `place.room` holds the softmax weights of these rows and columns, and the packed
    /// values of the chunk unless the schedule reads values in place.
    unsafe fn take(&self, place: &BlockPlace, rows: Range<usize>, columns: Range<usize>) {
        let args = self.args();
        let &BlockPlace { block, room, .. } = place;
        let pitch = self.schedule().block_pitch;
        let weights = room.weights.wrapping_add(rows.start * pitch + columns.start).cast_const();
        let out = place.state.at(rows.start, args.n_values).product;
        // SAFETY: as promised by the caller.
        unsafe {
            if self.schedule().reads_in_place {
                let n_rows = rows.len();
                let weights = FewRows { first: weights.cast_mut(), pitch, n_rows };
                let out = FewRows { first: out, pitch: args.n_values, n_rows };
                let columns = block.column + columns.start..block.column + columns.end;
                let values = self.stored_rows(2 * args.inner.len(), block.group, columns);
                return in_place::add_weighted(weights, values, out);
            }
            let at = block.column - place.chunk.start;
            let part = (at + columns.start..at + columns.end, 0..args.n_values);
            let values = room.packed_values(args, place.chunk.len());
            values.multiply((weights, pitch as isize), rows.len(), part, (out, args.n_values), true);
        }
    }

    /// Adds the weighted values of a block to the product of a row, but for the columns whose scores are masked.
    ///
    /// # Safety
    /// As for [`AttentionRun::take`], with all columns of this row.
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

    /// The weights of some rows of a block, all of one batch index, from their sums; with a softmax, rows whose greatest score
    /// grows are rescaled. Then spoilt rows take the values that they see. `hides` are masks that are still to be applied.
    ///
    /// # Safety
    /// As for [`AttentionRun::attend`]: the room has the inner products of the block, of which the rows are some.
    unsafe fn weigh(
        &self,
        frame: &mut Frame<'a>,
        place: &BlockPlace,
        of_batch: Range<usize>,
        hides: Option<&BatchMasks>,
    ) {
        let args = self.args();
        let &BlockPlace { block, state, room, .. } = place;
        let nest = frame.bound.nest;
        let pitch = self.schedule().block_pitch;
        let stores = &nest.code.body.stores;
        let register = |i: usize| stores.get(i).map(|store| nest.code.alias[store.value as usize]);
        let (score, factor) = (register(0).expect("a score is stored"), register(1));
        let len = block.n_columns;
        let per_tile = (nest.scratch.tile / len).clamp(1, of_batch.len());
        debug_assert!(per_tile * len <= nest.scratch.tile, "less scratch than a row of a block");
        let hidden = if self.work.is_softmax { f32::NEG_INFINITY } else { 0.0 };
        for first in of_batch.clone().step_by(per_tile) {
            let (row, rows) = (first - block.row, per_tile.min(of_batch.end - first));
            let start = (block.group * self.work.group_rows() + first) * args.n_columns + block.column;
            let tile = Tile { start, rows, len, pitch: args.n_columns, ..Tile::default() };
            for (i, _) in args.inner.iter().enumerate() {
                let sums = room.sums[i].wrapping_add(row * pitch);
                frame.accs[i] = Val::full(sums.cast_const().cast(), pitch);
            }
            // SAFETY: as promised by the caller.
            unsafe {
                nest.passes.inner.iter().for_each(|pass| frame.run_lines(pass, &tile));
                let (score, factor) = (frame.val(score), factor.map(|reg| frame.val(reg)));
                for (i, masks) in (0..rows).filter_map(|i| Some((i, hides?))) {
                    // A score depends on sums, so it lies in scratch memory: that of sums, or of tiles.
                    let lanes = score.ptr.cast_mut().cast::<f32>().offset(i as isize * score.pitch);
                    let own = (first + i) % args.n_rows;
                    masks.hide(own, block.column, std::slice::from_raw_parts_mut(lanes, len));
                }
                let weights = (room.weights.wrapping_add(row * pitch), pitch);
                match self.work.is_softmax {
                    true => self.online_softmax(score, factor, weights, &tile, state.at(row, args.n_values)),
                    false => copy_weights(score, factor, weights, &tile),
                }
                for i in (0..rows).filter(|i| place.spoilt.get(row + i).copied().unwrap_or(false)) {
                    self.take_seen(place, row + i, score.row(i, len), hidden);
                }
            }
        }
    }

    /// The maps over results and rows, of some rows of a group.
    ///
    /// # Safety
    /// As for [`ChainedProductWork::run`]; the state is that of these rows, complete, and the room that of this thread;
    /// nobody else maps them.
    unsafe fn finish(&self, group: usize, rows: Range<usize>, state: RowState, room: TaskRoom) {
        let args = self.args();
        let [.., result, by_row] = self.bound;
        let first = rows.start;
        let start = group * self.work.group_rows();
        // SAFETY: as promised by the caller.
        unsafe {
            for row in 0..rows.len() {
                *room.shifts.add(row) = shift(*state.max.add(row));
            }
            let row_vals = |row: usize| {
                let val = |first: *mut f32| Val { ptr: first.wrapping_add(row).cast(), pitch: 1, spread: false };
                [(ROW_SHIFT, val(room.shifts)), (ROW_MAX, val(state.max)), (ROW_SUM, val(state.sum))]
            };
            // A tile has rows of one batch index alone: from there to the next, steps may differ.
            let tiles = |per_tile: usize, f: &mut dyn FnMut(usize, usize)| {
                for (_, own) in self.by_batch(group, rows.clone()) {
                    own.clone().step_by(per_tile).for_each(|row| f(row, per_tile.min(own.end - row)));
                }
            };
            if !self.work.result.code.body.stores.is_empty() {
                result.with_frame(|frame| {
                    let n_lanes = self.work.result.scratch.tile.max(1);
                    let len = args.n_values.min(n_lanes);
                    tiles((n_lanes / len).max(1), &mut |row, rows| {
                        for column in (0..args.n_values).step_by(len) {
                            let tile = Tile {
                                start: (start + row) * args.n_values + column,
                                rows,
                                len: len.min(args.n_values - column),
                                pitch: args.n_values,
                                ..Tile::default()
                            };
                            let row = row - first;
                            row_vals(row).iter().for_each(|(number, val)| frame.accs[*number as usize] = *val);
                            let product = state.product.wrapping_add(row * args.n_values + column);
                            frame.accs[ROW_PRODUCT as usize] = Val::full(product.cast_const().cast(), args.n_values);
                            map::run_tile(frame, &tile);
                        }
                    });
                });
            }
            if !self.work.rows.code.body.stores.is_empty() {
                by_row.with_frame(|frame| {
                    tiles(self.work.rows.scratch.tile.max(1), &mut |row, rows| {
                        let tile = Tile::of(start + row, rows);
                        for (number, val) in row_vals(row - first) {
                            frame.accs[number as usize] = Val::full(val.ptr, tile.len);
                        }
                        map::run_tile(frame, &tile);
                    });
                });
            }
        }
    }
}
