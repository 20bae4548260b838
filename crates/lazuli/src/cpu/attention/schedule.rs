//! How a chained product is cut: blocks, chunks, parts and tasks, the memory that a task needs, and the loop nests of its
//! maps. Plain data from a kernel, the numbers of a launch and what is known of the processor.

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::blocks::Storage;
use crate::cpu::gemm::{PackedMatrix, TASK, TASKS_PER_THREAD};
use crate::cpu::gemv;
use crate::cpu::program::{AttentionCode, Code};
use crate::cpu::schedule::Nest;
use crate::dtype::DType;
use crate::kernel::{AffineMask, Args, AttentionArgs, InstOp};
use crate::target::CpuTarget;

/// Rows of a block. With [`COLUMNS`], its scores and weights stay in the first- and second-level caches.
const ROWS: usize = 48;
/// Columns of a block: about so many, whole panels. With 128, a softmax's rows are so short that calls cost as much as an
/// eighth of all: 512 rows and columns of 12 heads took 4.5 instead of 3.9 ms on a Xeon with AVX-512.
const COLUMNS: usize = 256;
/// Blocks of columns whose operands are packed at a time, for all rows of a task.
const CHUNK_BLOCKS: usize = 4;
/// Rows of a task at most, and at least where there are so many: the operands that a task packs are used so often.
const MAX_TASK_ROWS: usize = 1008;
const MIN_TASK_ROWS: usize = 192;
/// With fewer rows than this, columns are shared out as well, in parts of this many: one row over a long cache.
const FEW_ROWS: usize = 16;
const PART_COLUMNS: usize = 4096;

/// How a chained product is cut. It depends on sizes, and on the number of threads only where that changes no bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSchedule {
    pub n_batch: usize,
    pub rows_per_task: usize,
    pub n_row_tasks: usize,
    /// Parts into which columns are cut, put together afterwards.
    pub n_parts: usize,
    pub part_columns: usize,
    /// Rows and columns of a block, whose scores are computed at a time.
    pub block_rows: usize,
    pub block_columns: usize,
    /// Operands are packed by panels of so many columns, so a block begins with one.
    pub panel_columns: usize,
    /// From row to row of the scores and weights of a block.
    pub block_pitch: usize,
    /// How many columns (keys) are packed at a time.
    pub chunk_columns: usize,
    /// Whether there is one row, and operands lie such that nothing is packed for it.
    pub reads_in_place: bool,
    /// Whether tasks are worth more than one thread.
    pub is_shared: bool,
}

impl AttentionSchedule {
    fn new(code: &AttentionCode, args: &AttentionArgs, target: &CpuTarget) -> AttentionSchedule {
        let n_batch: usize = args.batch.iter().product();
        let &AttentionArgs { n_rows, n_columns, .. } = args;
        let panel_columns = PackedMatrix::panel_columns(target.isa);
        let block_columns = COLUMNS / panel_columns * panel_columns;
        let n_parts = if n_rows < FEW_ROWS { n_columns.div_ceil(PART_COLUMNS).max(1) } else { 1 };
        let part_columns = n_columns.div_ceil(n_parts).next_multiple_of(block_columns);
        let wanted = (TASKS_PER_THREAD * target.threads).div_ceil(n_batch.max(1));
        let rows_per_task = n_rows.div_ceil(wanted).next_multiple_of(ROWS).clamp(MIN_TASK_ROWS, MAX_TASK_ROWS);
        let rows_per_task = rows_per_task.min(n_rows.max(1));
        let inner = || args.inner.iter().flat_map(|inner| [inner.a.along, inner.b.along]);
        let is_dense = inner().chain([args.values.along]).all(|along| along == 1);
        let is_float =
            code.kernel.inputs[..2 * args.inner.len() + 1].iter().all(|storage| *storage == Storage::Plain(DType::F32));
        let work = (n_batch * n_rows * n_columns).saturating_mul(args.depth());
        AttentionSchedule {
            n_batch,
            rows_per_task,
            n_row_tasks: n_rows.div_ceil(rows_per_task),
            n_parts: n_columns.div_ceil(part_columns),
            part_columns,
            block_rows: ROWS.min(n_rows),
            block_columns,
            panel_columns,
            block_pitch: block_columns.min(n_columns.next_multiple_of(16)),
            chunk_columns: CHUNK_BLOCKS * block_columns,
            reads_in_place: n_rows == 1 && is_dense && is_float && gemv::fits(target.isa, 1, (1, 1), (1, 1)),
            is_shared: work >= TASK,
        }
    }

    /// Tasks of all rows of a batch index.
    pub fn tasks_per_batch(&self) -> usize {
        self.n_row_tasks * self.n_parts
    }
}

impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionSchedule { n_batch, rows_per_task, n_row_tasks, n_parts, part_columns, .. } = self;
        let AttentionSchedule { block_rows, block_columns, chunk_columns, .. } = self;
        let threads = if self.is_shared { "" } else { " on one thread" };
        write!(f, "{n_batch} × {n_row_tasks} tasks of {rows_per_task} rows{threads}, ")?;
        write!(f, "{n_parts} parts of {part_columns} columns, blocks of {block_rows}×{block_columns}, ")?;
        match self.reads_in_place {
            true => write!(f, "operands read in place"),
            false => write!(f, "{chunk_columns} columns packed at a time"),
        }
    }
}

/// A launch of a chained product, ready for memory.
pub struct ChainedProductWork {
    pub(super) args: AttentionArgs,
    pub(super) storages: Vec<Storage>,
    pub(super) masks: Vec<AffineMask>,
    pub(super) is_softmax: bool,
    /// Without a softmax, the constant that scores are where they are masked, if they are at all.
    pub(super) masked_by: Option<u16>,
    pub(super) schedule: AttentionSchedule,
    pub(super) scores: Nest,
    pub(super) unmasked: Nest,
    pub(super) result: Nest,
    pub(super) rows: Nest,
    /// About how long it takes on one thread.
    pub nanos: f64,
}

impl ChainedProductWork {
    /// Binds a program to the numbers of a launch.
    pub fn new(code: &AttentionCode, args: &Args, target: &CpuTarget) -> ChainedProductWork {
        let args = *args.attention.clone().expect("a chained product's launch has its numbers");
        let schedule = AttentionSchedule::new(code, &args, target);
        // No store goes past the caches or straight to memory: scores have none, and results are few.
        let nest = |code: &Arc<Code>, args: &Args| {
            let aliased: SmallVec<[bool; 8]> = smallvec![true; code.body.outputs.len()];
            let mut nest = Nest::new(code.clone(), args, &aliased, target);
            // A tile has room for a row of a block.
            nest.scratch.tile = nest.scratch.tile.max(schedule.block_pitch);
            nest
        };
        let n_scores = args.scores.outer.iter().product::<usize>() as f64;
        let body = &code.kernel.scores;
        let masked_by = match body.insts[body.stores[0].value as usize].op {
            InstOp::Select(_, _, otherwise) => match body.insts[otherwise as usize].op {
                InstOp::Const(fill) => Some(fill),
                _ => None,
            },
            _ => None,
        };
        ChainedProductWork {
            storages: code.kernel.inputs.clone(),
            masks: code.kernel.masks.clone(),
            is_softmax: code.kernel.softmax.is_some(),
            masked_by,
            schedule,
            scores: nest(&code.scores, &args.scores),
            unmasked: nest(&code.unmasked, &args.scores),
            result: nest(&code.result, &args.result),
            rows: nest(&code.rows, &args.rows),
            nanos: n_scores * (args.depth() as f64 * 0.03 + 1.0),
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
        match self.schedule.n_parts {
            1 => 0,
            n_parts => self.schedule.n_batch * n_parts * self.args.n_rows * self.row_state() * 4,
        }
    }

    /// Values that are kept of a row: the product, the greatest score and the sum of weights.
    pub(super) fn row_state(&self) -> usize {
        self.args.n_values + 2
    }
}

/// How it is shared out, in one line.
impl fmt::Display for ChainedProductWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let softmax = if self.is_softmax { "online softmax, " } else { "" };
        write!(f, "{softmax}{}", self.schedule)
    }
}

/// Where in a thread's room a task keeps its operands, scores and sums.
#[derive(Clone, Copy)]
pub struct TaskRoom {
    /// Operands of inner products by columns, packed: one after another.
    pub columns: [*mut f32; 2],
    pub values: *mut f32,
    /// Operands by rows, of a block.
    pub rows: [*mut f32; 2],
    /// Inner products of a block.
    pub sums: [*mut f32; 2],
    pub weights: *mut f32,
    /// Of all rows of a task: products, greatest scores, sums; then what is subtracted.
    pub state: RowState,
    pub shifts: *mut f32,
    /// Narrow numbers, widened.
    pub wide: *mut f32,
    pub size: usize,
}

/// Products, greatest scores and sums of weights of some rows.
#[derive(Clone, Copy)]
pub struct RowState {
    pub product: *mut f32,
    pub max: *mut f32,
    pub sum: *mut f32,
}

impl TaskRoom {
    pub fn new(work: &ChainedProductWork, first: *mut f32) -> TaskRoom {
        let args = &work.args;
        let mut size = 0;
        let mut take = |n: usize| {
            let at = first.wrapping_add(size);
            size += n.next_multiple_of(16);
            at
        };
        let chunk = work.schedule.chunk_columns.min(args.n_columns);
        let (n_rows, n_columns) = (work.schedule.block_rows, work.schedule.block_pitch);
        let depth = |i: usize| args.inner.get(i).map_or(0, |inner| inner.depth);
        let task_rows = work.schedule.rows_per_task;
        let columns = [0, 1].map(|i| take(PackedMatrix::n_values(depth(i), chunk)));
        let values = take(PackedMatrix::n_values(chunk, args.n_values));
        let rows = [0, 1].map(|i| take(depth(i) * n_rows));
        let sums = [0, 1].map(|i| take(if depth(i) > 0 { n_rows * n_columns } else { 0 }));
        let weights = take(n_rows * n_columns);
        let state = RowState { product: take(task_rows * args.n_values), max: take(task_rows), sum: take(task_rows) };
        let shifts = take(task_rows);
        let wide = take(chunk.next_multiple_of(16).max(depth(0)).max(depth(1)).max(args.n_values) * 16);
        TaskRoom { columns, values, rows, sums, weights, state, shifts, wide, size }
    }
    /// The packed values of a chunk of so many columns.
    pub fn packed_values(&self, args: &AttentionArgs, n_columns: usize) -> PackedMatrix {
        PackedMatrix { first: self.values, depth: n_columns, n_columns: args.n_values }
    }
}

impl RowState {
    /// From this row on.
    pub fn at(&self, row: usize, n_values: usize) -> RowState {
        RowState {
            product: self.product.wrapping_add(row * n_values),
            max: self.max.wrapping_add(row),
            sum: self.sum.wrapping_add(row),
        }
    }
}
