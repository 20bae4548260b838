//! Chained products with few rows over many columns (one query over a long cache), and those whose rows go through more columns
//! than an invocation may count, are made in parts of the columns, the keys. Each part leaves its products, greatest scores and
//! sums of weights; they are put together in the order of the parts, and what follows is done to the whole. As with split-k the
//! parts are numbers of the launch ([`AttentionArgs::column_parts`]), which remains one kernel. How many there are depends on
//! sizes and the target, never on the number of threads. Blocks within a part are a schedule.

use std::ops::RangeInclusive;

use crate::kernel::{AttentionArgs, AttentionKernel, AxisParts, Kernel};
use crate::plan::lower::LaunchDraft;
#[cfg(feature = "gpu")]
use crate::target::GpuTarget;
use crate::target::Machine;
#[cfg(feature = "gpu")]
use crate::target::attention_tiles::AttentionTiles;

/// The most rows for which a CPU splits the keys.
const FEW_ROWS: usize = 15;
/// Keys in a part on a CPU.
const PART_COLUMNS: RangeInclusive<usize> = 512..=4096;
/// Tasks that the parts should leave for the threads of a CPU.
const TASKS: usize = 48;
/// The most rows for which a GPU splits the keys.
#[cfg(feature = "gpu")]
const FEW_ROWS_OF_GPU: usize = 8;
/// Keys in a part on a GPU.
#[cfg(feature = "gpu")]
const PART_COLUMNS_OF_GPU: usize = 1024;

/// Splits the columns of a kernel that is a chained product.
pub fn split_keys(step: &mut LaunchDraft, machine: &Machine) {
    let (Kernel::Attention(kernel), Some(args)) = (&step.kernel, &mut step.args.attention) else { return };
    args.column_parts = match machine {
        Machine::Cpu(_) => on_a_processor(args),
        #[cfg(feature = "gpu")]
        Machine::Gpu(gpu) => on_a_gpu(kernel, args, gpu),
    };
    #[cfg(not(feature = "gpu"))]
    let _: &AttentionKernel = kernel;
}

/// Parts where rows are few.
fn on_a_processor(args: &AttentionArgs) -> AxisParts {
    if args.n_rows > FEW_ROWS {
        return AxisParts::whole(args.n_columns);
    }
    // Heads that share their keys are computed together.
    let keys = || args.inner.iter().map(|inner| &inner.b).chain([&args.values]);
    let has_own = |axis: &usize| keys().any(|lies| lies.batch[*axis] != 0);
    let n_groups: usize = (0..args.batch.len()).filter(has_own).map(|axis| args.batch[axis]).product();
    let wanted = args.n_columns.div_ceil(TASKS.div_ceil(n_groups.max(1)));
    let part = wanted.clamp(*PART_COLUMNS.start(), *PART_COLUMNS.end()).next_multiple_of(*PART_COLUMNS.start());
    AxisParts::of_len(args.n_columns, part)
}

/// Parts where rows are few, or where one invocation would make too many loop iterations.
#[cfg(feature = "gpu")]
fn on_a_gpu(kernel: &AttentionKernel, args: &AttentionArgs, target: &GpuTarget) -> AxisParts {
    let tiles = AttentionTiles::choose(kernel, args, target);
    let block = tiles.block_columns();
    let few = if args.n_rows <= FEW_ROWS_OF_GPU { PART_COLUMNS_OF_GPU } else { args.n_columns };
    // Twice as many as one block takes: loops find their end once more than they run.
    let per_block = 2 * (8 + tiles.iterations_of_block(args));
    let most = target.max_iterations / per_block.max(1) * block;
    AxisParts::of_len(args.n_columns, few.min(most).max(block).next_multiple_of(block))
}
