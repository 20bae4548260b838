//! Chained products: for a block of rows, scores of one block of columns after another are made in cache, become weights
//! (an online softmax keeps the greatest score and the sum of a row, and rescales when the greatest grows), and are
//! multiplied with the values while they are there. No score reaches memory. Sums do not depend on the number of
//! threads: how columns are cut goes by sizes alone, and parts are put together in order.

mod mask;
mod online_softmax;
mod pack;

use std::fmt;
use std::sync::Arc;

use super::gemm::{PackBuffers, PackedPanel, packed_width};
use super::gemv::{self, Skinny};
use super::map;
use super::program::AttentionCode;
use super::schedule::Nest;
use super::threads;
use super::tile::{BoundNest, Frame, Tile, Val};
use crate::dtype::DType;
use crate::kernel::{AffineMask, Args, AttentionArgs, AttentionOperand, ROW_MAX, ROW_PRODUCT, ROW_SHIFT, ROW_SUM};
use crate::ops::max_f32;
use crate::target::CpuTarget;
use mask::{BatchMasks, BlockMask};
use online_softmax::{copy_weights, shift};

/// Rows of a block. With [`COLUMNS`], its scores and weights stay in the first- and second-level caches.
const ROWS: usize = 48;
/// Columns of a block: about so many, whole panels. With 128, a softmax's rows are so short that calls cost as much as an
/// eighth of all: 512 rows and columns of 12 heads took 4.5 instead of 3.9 ms on a Xeon with AVX-512.
const COLUMNS: usize = 256;
/// Blocks of columns whose operands are packed at a time, for all rows of a task.
const CHUNK_BLOCKS: usize = 4;
/// Rows of a task at most, and at least where there are so many: what is packed is used so often.
const MAX_TASK_ROWS: usize = 1024;
const MIN_TASK_ROWS: usize = 192;
/// With fewer rows than this, columns are shared out as well, in parts of this many: one row over a long cache.
const FEW_ROWS: usize = 16;
const PART_COLUMNS: usize = 4096;
/// Multiplications for which a second thread is not worth waking.
const SMALL: usize = 1 << 18;

/// How a chained product is cut. It depends on sizes, and on the number of threads only where that changes no bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSchedule {
    pub n_batch: usize,
    pub rows_per_task: usize,
    pub n_row_tasks: usize,
    /// Parts into which columns are cut, put together afterwards.
    pub n_parts: usize,
    pub part_columns: usize,
}

/// Columns of a block, in whole panels.
fn block_columns() -> usize {
    let panel = packed_width(COLUMNS);
    COLUMNS / panel * panel
}

/// Columns that are packed at a time.
fn chunk_columns() -> usize {
    CHUNK_BLOCKS * block_columns()
}

/// From row to row of scores and weights in a block.
fn block_pitch(args: &AttentionArgs) -> usize {
    block_columns().min(args.n_columns.next_multiple_of(16))
}

impl AttentionSchedule {
    fn new(args: &AttentionArgs, n_threads: usize) -> AttentionSchedule {
        let n_batch: usize = args.batch.iter().product();
        let &AttentionArgs { n_rows, n_columns, .. } = args;
        let n_parts = if n_rows < FEW_ROWS { n_columns.div_ceil(PART_COLUMNS).max(1) } else { 1 };
        let part_columns = n_columns.div_ceil(n_parts).next_multiple_of(block_columns());
        let wanted = (4 * n_threads).div_ceil(n_batch.max(1));
        let rows_per_task = n_rows.div_ceil(wanted).clamp(MIN_TASK_ROWS, MAX_TASK_ROWS).next_multiple_of(ROWS);
        let rows_per_task = rows_per_task.min(n_rows.max(1));
        let n_row_tasks = n_rows.div_ceil(rows_per_task);
        let n_parts = n_columns.div_ceil(part_columns);
        AttentionSchedule { n_batch, rows_per_task, n_row_tasks, n_parts, part_columns }
    }
}

impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionSchedule { n_batch, rows_per_task, n_row_tasks, n_parts, part_columns } = self;
        write!(f, "{n_batch} × {n_row_tasks} tasks of {rows_per_task} rows, {n_parts} parts of {part_columns} columns")
    }
}

/// A launch of a chained product, ready for memory.
pub struct ChainedProductWork {
    args: AttentionArgs,
    dtypes: Vec<DType>,
    masks: Vec<AffineMask>,
    is_softmax: bool,
    /// Whether there is one row, and operands lie such that nothing is packed for it.
    is_direct: bool,
    scores: Nest,
    unmasked: Nest,
    result: Nest,
    rows: Nest,
    /// Threads that the device has.
    n_threads: usize,
    /// About how long it takes on one thread.
    pub nanos: f64,
}

impl ChainedProductWork {
    /// Binds a program to the numbers of a launch.
    pub fn new(code: &AttentionCode, args: &Args, target: &CpuTarget) -> ChainedProductWork {
        let args = *args.attention.clone().expect("a chained product's launch has its numbers");
        let pitch = block_pitch(&args);
        // No store goes past the caches or straight to memory: scores have none, and results are few.
        let nest = |code: &Arc<super::program::Code>, args: &Args| {
            let mut nest = Nest::new(code.clone(), args, &vec![true; code.body.outputs.len()], target);
            // A tile has room for a row of a block.
            nest.scratch.tile = nest.scratch.tile.max(pitch);
            nest
        };
        let n_scores = args.scores.outer.iter().product::<usize>() as f64;
        let depth = args.inner.iter().map(|inner| inner.depth).sum::<usize>() + args.n_values;
        let inner = || args.inner.iter().flat_map(|inner| [inner.a.along, inner.b.along]);
        let is_dense = inner().chain([args.values.along]).all(|along| along == 1);
        let n_operands = 2 * args.inner.len() + 1;
        let is_float = code.kernel.inputs[..n_operands].iter().all(|dtype| *dtype == DType::F32);
        ChainedProductWork {
            is_direct: args.n_rows == 1 && is_dense && is_float && gemv::fits(target.isa, 1, (1, 1), (1, 1)),
            dtypes: code.kernel.inputs.clone(),
            masks: code.kernel.masks.clone(),
            is_softmax: code.kernel.softmax.is_some(),
            scores: nest(&code.scores, &args.scores),
            unmasked: nest(&code.unmasked, &args.scores),
            result: nest(&code.result, &args.result),
            rows: nest(&code.rows, &args.rows),
            n_threads: target.threads,
            nanos: n_scores * (depth as f64 * 0.03 + 1.0),
            args,
        }
    }

    /// About how many bytes it occupies, without its program.
    pub fn size_bytes(&self) -> usize {
        let nests = [&self.scores, &self.unmasked, &self.result, &self.rows].map(Nest::size_bytes);
        size_of::<ChainedProductWork>() + nests.iter().sum::<usize>() + self.args.size_bytes()
    }

    /// Lanes of scratch tiles that each thread needs.
    pub fn frame(&self) -> usize {
        let nests = [&self.scores, &self.unmasked, &self.result, &self.rows];
        nests.map(|nest| nest.scratch.n_lanes()).into_iter().max().unwrap_or(0)
    }

    /// Values that each thread needs room for.
    pub fn room(&self) -> usize {
        TaskRoom::new(self, std::ptr::null_mut()).size
    }

    /// Bytes of partial results: those of all parts of all rows.
    pub fn parts_bytes(&self) -> usize {
        let schedule = AttentionSchedule::new(&self.args, 1);
        match schedule.n_parts {
            1 => 0,
            n_parts => schedule.n_batch * n_parts * self.args.n_rows * self.row_state() * 4,
        }
    }

    /// Values that are kept of a row: the product, the greatest score and the sum of weights.
    fn row_state(&self) -> usize {
        self.args.n_values + 2
    }

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
        let schedule = AttentionSchedule::new(&self.args, threads::count());
        let per_batch = schedule.n_row_tasks * schedule.n_parts;
        let all = |worker: usize, task: usize| {
            let (batch, within) = (task / per_batch, task % per_batch);
            let (rows, part) = (within / schedule.n_parts, within % schedule.n_parts);
            // SAFETY: as promised by the caller; tasks write apart.
            unsafe { run.task(&schedule, batch, rows, part, TaskRoom::new(self, rooms.of(worker).first)) };
        };
        let n_tasks = schedule.n_batch * per_batch;
        let depth = self.args.inner.iter().map(|inner| inner.depth).sum::<usize>() + self.args.n_values;
        let work = self.args.scores.outer.iter().product::<usize>().saturating_mul(depth);
        match work < SMALL {
            true => (0..n_tasks).for_each(|task| all(threads::worker(), task)),
            false => threads::for_each_on(n_tasks, &all),
        }
        if schedule.n_parts > 1 {
            threads::for_each_on(schedule.n_batch, &|worker, batch| {
                // SAFETY: as above; all parts are there.
                unsafe { run.combine(&schedule, batch, TaskRoom::new(self, rooms.of(worker).first)) };
            });
        }
    }
}

/// How it is shared out, in one line.
impl fmt::Display for ChainedProductWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let softmax = if self.is_softmax { "online softmax, " } else { "" };
        write!(f, "{softmax}{}", AttentionSchedule::new(&self.args, self.n_threads))
    }
}

/// Where in a thread's room a task keeps what.
#[derive(Clone, Copy)]
struct TaskRoom {
    /// Operands of inner products by columns, packed: one after another.
    columns: [*mut f32; 2],
    values: *mut f32,
    /// Operands by rows, of a block.
    rows: [*mut f32; 2],
    /// Inner products of a block.
    sums: [*mut f32; 2],
    weights: *mut f32,
    /// Of all rows of a task: products, greatest scores, sums; then what is subtracted.
    state: RowState,
    shifts: *mut f32,
    /// Narrow numbers, widened.
    wide: *mut f32,
    size: usize,
}

/// Products, greatest scores and sums of weights of some rows.
#[derive(Clone, Copy)]
struct RowState {
    product: *mut f32,
    max: *mut f32,
    sum: *mut f32,
}

impl TaskRoom {
    fn new(work: &ChainedProductWork, first: *mut f32) -> TaskRoom {
        let args = &work.args;
        let mut size = 0;
        let mut take = |n: usize| {
            let at = first.wrapping_add(size);
            size += n.next_multiple_of(16);
            at
        };
        let chunk = chunk_columns().min(args.n_columns).next_multiple_of(16);
        let n_rows = ROWS.min(args.n_rows);
        let n_columns = block_pitch(args);
        let depth = |i: usize| args.inner.get(i).map_or(0, |inner| inner.depth);
        let task_rows = args.n_rows.min(MAX_TASK_ROWS + ROWS);
        let columns = [0, 1].map(|i| take(depth(i) * chunk));
        let values = take(chunk * args.n_values.next_multiple_of(16));
        let rows = [0, 1].map(|i| take(depth(i) * n_rows));
        let sums = [0, 1].map(|i| take(if depth(i) > 0 { n_rows * n_columns } else { 0 }));
        let weights = take(n_rows * n_columns);
        let state = RowState { product: take(task_rows * args.n_values), max: take(task_rows), sum: take(task_rows) };
        let shifts = take(task_rows);
        let wide = take(chunk.max(depth(0)).max(depth(1)).max(args.n_values) * 16);
        TaskRoom { columns, values, rows, sums, weights, state, shifts, wide, size }
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

impl<'a> AttentionRun<'a> {
    fn args(&self) -> &AttentionArgs {
        &self.work.args
    }

    /// Some rows of a batch index over one part of the columns, and if there is but one, what follows.
    unsafe fn task(&self, schedule: &AttentionSchedule, batch: usize, rows: usize, part: usize, room: TaskRoom) {
        let args = self.args();
        let first = rows * schedule.rows_per_task;
        let n_rows = schedule.rows_per_task.min(args.n_rows - first);
        let columns = part * schedule.part_columns..((part + 1) * schedule.part_columns).min(args.n_columns);
        let state = match schedule.n_parts {
            1 => room.state,
            _ => self.part_state(schedule, batch, part, first),
        };
        let [scores, unmasked, ..] = self.bound;
        let mut is_finite = None;
        let masks = self.masks(batch);
        // SAFETY: as promised by the caller.
        unsafe {
            std::slice::from_raw_parts_mut(state.product, n_rows * args.n_values).fill(0.0);
            std::slice::from_raw_parts_mut(state.max, n_rows).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(state.sum, n_rows).fill(0.0);
            scores.with_frame(|masked| {
                unmasked.with_frame(|free| {
                    for start in columns.clone().step_by(chunk_columns()) {
                        let end = columns.end.min(start + chunk_columns());
                        let mut is_packed = false;
                        for row in (0..n_rows).step_by(ROWS) {
                            let mut has_rows = false;
                            for column in (start..end).step_by(block_columns()) {
                                let block = ScoreBlock {
                                    batch,
                                    row: first + row,
                                    n_rows: ROWS.min(n_rows - row),
                                    column,
                                    n_columns: block_columns().min(end - column),
                                };
                                let mask = masks.of_block(block);
                                // A weight of 0 times what is not finite is NaN, so then no block may be left out.
                                if mask == BlockMask::Nothing
                                    && *is_finite.get_or_insert_with(|| self.values_are_finite(batch, columns.clone()))
                                {
                                    continue;
                                }
                                // Scores that masks hide are made as if seen, and hidden then; if that is not the
                                // same, by the instructions.
                                let hides = (mask != BlockMask::All && masks.is_neutral).then_some(&masks);
                                let is_free = mask == BlockMask::All || hides.is_some();
                                let frame = if is_free { &mut *free } else { &mut *masked };
                                if self.work.is_direct {
                                    self.row_block(frame, block, hides, state, room);
                                    continue;
                                }
                                if !std::mem::replace(&mut is_packed, true) {
                                    self.pack_columns(batch, start..end, room);
                                }
                                if !std::mem::replace(&mut has_rows, true) {
                                    self.pack_rows(block, room);
                                }
                                let state = state.at(row, args.n_values);
                                self.block(frame, block, (column - start, end - start), hides, state, room);
                            }
                        }
                    }
                });
            });
            if schedule.n_parts == 1 {
                self.finish(batch, first, n_rows, state, room);
            }
        }
    }

    /// Where a part keeps the state of the rows from `first` on.
    fn part_state(&self, schedule: &AttentionSchedule, batch: usize, part: usize, first: usize) -> RowState {
        let (n_rows, n_values) = (self.args().n_rows, self.args().n_values);
        let at = (batch * schedule.n_parts + part) * n_rows * self.work.row_state();
        let product = self.parts.0.wrapping_add(at);
        let max = product.wrapping_add(n_rows * n_values);
        RowState { product, max, sum: max.wrapping_add(n_rows) }.at(first, n_values)
    }

    /// Puts the parts of all rows of a batch index together, from the first to the last, and does what follows.
    unsafe fn combine(&self, schedule: &AttentionSchedule, batch: usize, room: TaskRoom) {
        let args = self.args();
        let total = self.part_state(schedule, batch, 0, 0);
        for part in 1..schedule.n_parts {
            let other = self.part_state(schedule, batch, part, 0);
            for row in 0..args.n_rows {
                let (to, from) = (total.at(row, args.n_values), other.at(row, args.n_values));
                // SAFETY: both are rows of parts.
                unsafe {
                    let mut scales = [1.0, 1.0];
                    if self.work.is_softmax {
                        let max = max_f32(*to.max, *from.max);
                        scales = [*to.max, *from.max].map(|own| self.exp(shift(own) - shift(max)));
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

    /// Scores of a block, weights, and their product with the values.
    unsafe fn block(
        &self,
        frame: &mut Frame<'a>,
        block: ScoreBlock,
        (at, n_chunk): (usize, usize),
        hides: Option<&BatchMasks>,
        state: RowState,
        room: TaskRoom,
    ) {
        let args = self.args();
        let &ScoreBlock { n_rows, n_columns, .. } = &block;
        // SAFETY: the room holds all of a block; the rest as promised by the caller.
        unsafe {
            for (i, inner) in args.inner.iter().enumerate() {
                let mut column = 0;
                while column < n_columns {
                    // Panels of a chunk are packed one after another, all of one width but the last.
                    let width = packed_width(n_chunk - at - column);
                    let panel = PackedPanel {
                        first: room.columns[i].wrapping_add((at + column) * inner.depth),
                        depth: inner.depth,
                        n_columns: width.min(n_columns - column),
                    };
                    let out = (room.sums[i].wrapping_add(column), block_pitch(args));
                    let rows = self.row_operand(i, block, room);
                    panel.multiply(rows, n_rows, out, false);
                    column += width;
                }
            }
            self.weigh(frame, block, hides, state, room);
            let pitch = block_pitch(args) as isize;
            let mut value = 0;
            while value < args.n_values {
                let width = packed_width(args.n_values - value);
                let panel = PackedPanel {
                    first: room.values.wrapping_add(value * n_chunk + at * width),
                    depth: n_columns,
                    n_columns: width.min(args.n_values - value),
                };
                let out = (state.product.wrapping_add(value), args.n_values);
                panel.multiply((room.weights, pitch), n_rows, out, true);
                value += width;
            }
        }
    }

    /// The same for a single row, whose operands are read where they lie.
    unsafe fn row_block(
        &self,
        frame: &mut Frame<'a>,
        block: ScoreBlock,
        hides: Option<&BatchMasks>,
        state: RowState,
        room: TaskRoom,
    ) {
        let args = self.args();
        let operand = |i: usize, lies: &AttentionOperand, place: usize| {
            self.bound[0].inputs[i].cast::<f32>().wrapping_offset(self.at(lies, block.batch, place))
        };
        // SAFETY: operands are within their memory, and the room holds a block.
        unsafe {
            for (i, inner) in args.inner.iter().enumerate() {
                let (a, b) = (operand(2 * i, &inner.a, block.row), operand(2 * i + 1, &inner.b, block.column));
                let (k, n, out) = (inner.depth, block.n_columns, room.sums[i]);
                Skinny { m: 1, k, n, a, a_pitch: 0, b, b_pitch: inner.b.place, by_columns: true, out }.dot();
            }
            self.weigh(frame, block, hides, state, room);
            let (b, b_pitch) = (operand(2 * args.inner.len(), &args.values, block.column), args.values.place);
            let (k, n, out) = (block.n_columns, args.n_values, state.product);
            let a = room.weights.cast_const();
            Skinny { m: 1, k, n, a, a_pitch: 0, b, b_pitch, by_columns: false, out }.add();
        }
    }

    /// The weights of a block, from its sums; with a softmax, rows whose greatest score grows are rescaled.
    unsafe fn weigh(
        &self,
        frame: &mut Frame<'a>,
        block: ScoreBlock,
        hides: Option<&BatchMasks>,
        state: RowState,
        room: TaskRoom,
    ) {
        let args = self.args();
        let nest = frame.bound.nest;
        let pitch = block_pitch(args);
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
                if let Some(masks) = hides {
                    for i in 0..rows {
                        // A score depends on sums, so it lies in scratch memory: that of sums, or of tiles.
                        let lanes = score.ptr.cast_mut().cast::<f32>().offset(i as isize * score.pitch);
                        masks.hide(block.row + row + i, block.column, std::slice::from_raw_parts_mut(lanes, len));
                    }
                }
                let weights = (room.weights.wrapping_add(row * pitch), pitch);
                match self.work.is_softmax {
                    true => self.online_softmax(score, factor, weights, &tile, state.at(row, args.n_values)),
                    false => copy_weights(score, factor, weights, &tile),
                }
            }
        }
    }

    /// What follows: the maps over results and rows.
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

impl RowState {
    /// From this row on.
    fn at(&self, row: usize, n_values: usize) -> RowState {
        RowState {
            product: self.product.wrapping_add(row * n_values),
            max: self.max.wrapping_add(row),
            sum: self.sum.wrapping_add(row),
        }
    }
}
