//! How a chained product is shared out: blocks, chunks and tasks, the memory that a task needs, and the loop nests of its
//! maps. Plain data from a kernel, the numbers of a launch and what is known of the processor.

use std::fmt;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::in_place;
use crate::blocks::Storage;
use crate::cpu::gemm::{PackedMatrix, TASK, TASKS_PER_THREAD};
use crate::cpu::program::{AttentionCode, Code};
use crate::cpu::schedule::Nest;
use crate::kernel::{AffineMask, Args, AttentionArgs, AttentionOperand, InstOp};
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
/// With fewer rows than this, operands are read in place.
const FEW_ROWS: usize = 16;
/// Columns of a block whose operands are read in place: twice as many, for what a block costs beside its products is worth
/// more of them where rows are few.
const IN_PLACE_COLUMNS: usize = 512;
/// Rows at most, over all heads that share keys, that are multiplied with a key while it is in the first-level cache.
const MAX_JOINED_ROWS: usize = 32;
/// Bytes of keys and values from which on attention is shared by threads. A thread that waits for work joins in about 1 us; the attention
/// of a token to 75 keys and values of 64 elements, three heads of them in a cache for 256, takes 19 us on one thread of a Zen 5.
const SHARED_BYTES: usize = 128 << 10;
/// Values of all parts from which on combining the parts is shared by threads.
const COMBINED: usize = 1 << 15;

/// How a chained product is cut. It depends on sizes, and on the number of threads only where that changes no bit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSchedule {
    /// Groups of batch indices, and how many consecutive ones are in each: those that share columns and values are joined to
    /// one product with the rows of all, where operands are read in place.
    pub n_groups: usize,
    pub n_joined: usize,
    pub rows_per_task: usize,
    pub n_row_tasks: usize,
    /// Rows and columns of a block, whose scores are computed at a time.
    pub block_rows: usize,
    pub block_columns: usize,
    /// Operands are packed by panels of so many columns, so a block begins with one.
    pub panel_columns: usize,
    /// From row to row of the scores and weights of a block.
    pub block_pitch: usize,
    /// How many columns (keys) are packed at a time.
    pub chunk_columns: usize,
    /// Whether rows are few, and columns and values are read where they lie: nothing is packed.
    pub reads_in_place: bool,
    /// Whether tasks are worth more than one thread.
    pub is_shared: bool,
    /// Split-k over keys (columns): from this many partial results on, other threads help to combine them, a task for each group of
    /// heads that share keys. Parts that masks hide as a whole are not counted.
    pub shared_parts: usize,
}

impl AttentionSchedule {
    fn new(code: &AttentionCode, args: &AttentionArgs, target: &CpuTarget) -> AttentionSchedule {
        let n_batch: usize = args.batch.iter().product();
        let &AttentionArgs { n_rows, n_columns, .. } = args;
        let read = OperandByColumns::all(code, args);
        let is_readable = |x: &OperandByColumns| {
            x.lies.along == 1 && matches!(x.storage, Storage::Plain(dtype) if in_place::reads(target.isa, dtype))
        };
        let reads_in_place = n_rows < FEW_ROWS && read.iter().all(is_readable);
        let n_joined = if reads_in_place { joined(args, &read) } else { 1 };
        let n_groups = n_batch / n_joined.max(1);
        let panel_columns = if reads_in_place { 1 } else { PackedMatrix::panel_columns(target.isa) };
        let block_columns = match reads_in_place {
            true => IN_PLACE_COLUMNS,
            false => COLUMNS / panel_columns * panel_columns,
        };
        let wanted = (TASKS_PER_THREAD * target.threads).div_ceil(n_batch.max(1));
        let rows_per_task = n_rows.div_ceil(wanted).next_multiple_of(ROWS).clamp(MIN_TASK_ROWS, MAX_TASK_ROWS);
        let rows_per_task = rows_per_task.min(n_rows.max(1)) * n_joined;
        let work = (n_batch * n_rows * n_columns).saturating_mul(args.depth());
        let column_bytes: usize = read.iter().map(|x| x.len * x.storage.unit_bytes()).sum();
        let is_shared = work >= TASK || reads_in_place && n_groups * n_columns * column_bytes >= SHARED_BYTES;
        let part_values = n_batch * n_rows * args.n_values;
        AttentionSchedule {
            n_groups,
            n_joined,
            rows_per_task,
            n_row_tasks: (n_rows * n_joined).div_ceil(rows_per_task),
            block_rows: if reads_in_place { rows_per_task } else { ROWS.min(n_rows) },
            block_columns,
            panel_columns,
            block_pitch: block_columns.min(n_columns.next_multiple_of(16)),
            chunk_columns: CHUNK_BLOCKS * block_columns,
            reads_in_place,
            is_shared,
            shared_parts: if is_shared { COMBINED.div_ceil(part_values.max(1)) } else { usize::MAX },
        }
    }
}

/// An operand with a place for each column: keys or values.
struct OperandByColumns<'a> {
    storage: Storage,
    lies: &'a AttentionOperand,
    /// Elements of a place.
    len: usize,
}

impl OperandByColumns<'_> {
    fn all<'a>(code: &AttentionCode, args: &'a AttentionArgs) -> SmallVec<[OperandByColumns<'a>; 3]> {
        let inputs = &code.kernel.inputs;
        let keys = args.inner.iter().enumerate().map(|(i, inner)| (2 * i + 1, &inner.b, inner.depth));
        let values = (2 * args.inner.len(), &args.values, args.n_values);
        keys.chain([values]).map(|(i, lies, len)| OperandByColumns { storage: inputs[i], lies, len }).collect()
    }
}

/// How many consecutive batch indices are computed together because they read the same columns: as many as share them, or a
/// divisor of that number if those have too many rows.
fn joined(args: &AttentionArgs, read: &[OperandByColumns]) -> usize {
    let is_shared = |axis: &usize| args.batch[*axis] == 1 || read.iter().all(|x| x.lies.batch[*axis] == 0);
    let n_sharing: usize = (0..args.batch.len()).rev().take_while(is_shared).map(|axis| args.batch[axis]).product();
    let most = (MAX_JOINED_ROWS / args.n_rows.max(1)).clamp(1, n_sharing.max(1));
    (1..=most).rev().find(|n| n_sharing.is_multiple_of(*n)).unwrap_or(1)
}

impl fmt::Display for AttentionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionSchedule { n_groups, n_joined, rows_per_task, n_row_tasks, .. } = self;
        let AttentionSchedule { block_rows, block_columns, chunk_columns, .. } = self;
        let threads = if self.is_shared { "" } else { " on one thread" };
        write!(f, "{n_groups} × {n_row_tasks} tasks of {rows_per_task} rows{threads}, ")?;
        if *n_joined > 1 {
            write!(f, "{n_joined} heads that share keys joined, ")?;
        }
        write!(f, "blocks of {block_rows}×{block_columns}, ")?;
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
    /// The nest of the scores in blocks where all masks hold, if there are masks.
    pub(super) unmasked: Option<Nest>,
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
            unmasked: (!code.kernel.masks.is_empty()).then(|| nest(&code.unmasked, &args.scores)),
            result: nest(&code.result, &args.result),
            rows: nest(&code.rows, &args.rows),
            nanos: n_scores * (args.depth() as f64 * 0.03 + 1.0),
            args,
        }
    }

    /// About how many bytes it occupies, without its program.
    pub fn size_bytes(&self) -> usize {
        let nests = self.nests().map(Nest::size_bytes).sum::<usize>();
        size_of::<ChainedProductWork>() + nests + self.args.size_bytes()
    }

    /// Lanes of scratch tiles that each thread needs.
    pub fn frame(&self) -> usize {
        self.nests().map(|nest| nest.scratch.n_lanes()).max().unwrap_or(0)
    }

    fn nests(&self) -> impl Iterator<Item = &Nest> {
        [&self.scores, &self.result, &self.rows].into_iter().chain(&self.unmasked)
    }

    /// Values that each thread needs room for.
    pub fn room(&self) -> usize {
        TaskRoom::new(self, std::ptr::null_mut()).size
    }

    /// Bytes of partial results: those of all parts of all rows.
    pub fn parts_bytes(&self) -> usize {
        match self.args.column_parts.count() {
            1 => 0,
            n_parts => self.schedule.n_groups * n_parts * self.group_rows() * self.row_state() * 4,
        }
    }

    /// Rows of a group of batch indices.
    pub(super) fn group_rows(&self) -> usize {
        self.args.n_rows * self.schedule.n_joined
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
        write!(f, "{softmax}{}", self.schedule)?;
        match self.args.column_parts.count() {
            1 => Ok(()),
            n if n >= self.schedule.shared_parts => write!(f, "; {n} parts, put together group by group"),
            n => write!(f, "; {n} parts, put together on one thread"),
        }
    }
}

/// From row to row of packed rows: whole vectors, filled up with zeros.
pub fn row_pitch(depth: usize) -> usize {
    depth.next_multiple_of(16)
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
        let chunk = if work.schedule.reads_in_place { 0 } else { work.schedule.chunk_columns.min(args.n_columns) };
        let (n_rows, n_columns) = (work.schedule.block_rows, work.schedule.block_pitch);
        let depth = |i: usize| args.inner.get(i).map_or(0, |inner| inner.depth);
        let task_rows = work.schedule.rows_per_task;
        let columns = [0, 1].map(|i| take(PackedMatrix::n_values(depth(i), chunk)));
        let values = take(PackedMatrix::n_values(chunk, args.n_values));
        let rows = [0, 1].map(|i| take(row_pitch(depth(i)) * n_rows));
        let sums = [0, 1].map(|i| take(if depth(i) > 0 { n_rows * n_columns } else { 0 }));
        let weights = take(n_rows * n_columns);
        let state = RowState { product: take(task_rows * args.n_values), max: take(task_rows), sum: take(task_rows) };
        let shifts = take(task_rows);
        let wide = take(chunk.max(n_rows).next_multiple_of(16).max(depth(0)).max(depth(1)).max(args.n_values) * 16);
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
