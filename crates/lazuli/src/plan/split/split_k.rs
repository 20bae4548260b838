//! Split-k: a product with too few results to keep a device busy, or with sums longer than an invocation may count, is made in
//! parts of k. The sums of all parts are made side by side; then they are added up, always in the order of the parts, and what
//! follows the product is done to the whole sums. The parts are numbers of the launch ([`MatmulArgs::k_parts`]), which remains
//! one kernel: a processor adds the parts up while they are in its caches, a GPU in a second dispatch of the same launch. The
//! memory for sums of parts is scratch of the plan. How many parts there are depends on sizes, strides and the target, never
//! on the number of threads, so that results do not either. How the invocations of one workgroup share k is no cut but part
//! of a schedule.

use crate::blocks::Storage;
use crate::dtype::{DType, Lane};
use crate::kernel::{AxisParts, InstOp, Kernel, MatmulArgs};
use crate::ops::Isa;
use crate::plan::lower::LaunchDraft;
#[cfg(feature = "gpu")]
use crate::target::products::{b_read, runs_alone, variant_of};
#[cfg(feature = "gpu")]
use crate::target::variants::{K_BLOCK, K_PRODUCTS, K_RUN, R4X1, Share, Variant};
use crate::target::{CpuTarget, Machine};
#[cfg(feature = "gpu")]
use crate::target::{GpuTarget, Threads};

/// The most parts on a CPU: enough threads to saturate memory, few enough that adding them up costs little.
const MAX_PARTS: usize = 16;
/// The fewest steps of k in a part: the depth of a packed block.
const MIN_STEPS: usize = 512;
/// The fewest multiply-adds in a part.
const MIN_WORK: usize = 1 << 20;
/// A batch of products with fewer multiply-adds than this each is shared out among threads product by product, without split-k.
const SMALL_MATRIX: usize = 1 << 24;
/// The fewest values of the right operand (256 KiB of f32) in a part of a GEMV.
const MIN_VALUES: usize = 64 << 10;
/// The fewest register tiles along m that a thread computes, so that each panel it packs is used that often.
const TILES_DOWN: usize = 16;
/// With at least this many register tiles an implicit GEMM has work for all threads without split-k.
const MIN_WINDOW_TILES: usize = 16;
/// The most rows for which threads share out the columns of a dense right operand.
const FEW_ROWS: usize = 16;
/// The same limit where the right operand is in quantised blocks.
const FEW_ROWS_OF_BLOCKS: usize = 8;
/// The most rows for which the right operand is read in place instead of packed.
const ROWS_IN_PLACE: usize = 32;

/// The fewest steps of k in a part that a workgroup computes; and in the share of one invocation, where several invocations add up
/// the same tile.
#[cfg(feature = "gpu")]
const MIN_GROUP_STEPS: usize = 64;
#[cfg(feature = "gpu")]
const MIN_LANE_STEPS: usize = 32;
/// Parts are multiples of this many steps, so that every variant's vectors along k and workgroup tiles are whole in each part.
#[cfg(feature = "gpu")]
const WHOLE_STEPS: usize = 16;
/// With at most this many partial sums, every block of [`K_RUN`] steps is a part of its own and not an iteration of a loop.
#[cfg(feature = "gpu")]
const FEW_SUMS: usize = 1 << 18;

/// Splits a kernel that is a product, of so many in one launch.
pub fn split_k(step: &mut LaunchDraft, n_grouped: usize, machine: &Machine) {
    let (Kernel::Matmul(body), Some(matmul)) = (&step.kernel, &mut step.args.matmul) else { return };
    let sum = body.insts.iter().find(|inst| matches!(inst.op, InstOp::Acc(_)));
    let lane = sum.map_or(Lane::F32, |inst| inst.dtype.lane());
    matmul.k_parts = k_parts(matmul, [0, 1].map(|operand| body.operand_storage(operand)), (lane, n_grouped), machine);
}

/// The parts in which a machine makes the sums of a product: of operands that are stored so, in such a lane, one of so many
/// products of a launch.
pub fn k_parts(
    matmul: &MatmulArgs,
    stored: [Storage; 2],
    (lane, n_grouped): (Lane, usize),
    machine: &Machine,
) -> AxisParts {
    #[cfg(not(feature = "gpu"))]
    let _ = n_grouped;
    match machine {
        // Integers are added up at once.
        Machine::Cpu(_) if lane != Lane::F32 => AxisParts::whole(matmul.k),
        // Products of one launch run one after another.
        Machine::Cpu(cpu) => on_a_processor(matmul, stored[1], cpu),
        #[cfg(feature = "gpu")]
        Machine::Gpu(gpu) => on_a_gpu(matmul, stored, n_grouped, gpu),
    }
}

/// Parts where results are too few to be shared out among threads.
fn on_a_processor(matmul: &MatmulArgs, b_stored: Storage, cpu: &CpuTarget) -> AxisParts {
    let &MatmulArgs { ref batch, m, k, n, ref a, ref b, panels, .. } = matmul;
    let (n_batch, work) = (batch.iter().product::<usize>(), m.saturating_mul(k).saturating_mul(n));
    let is_plain = b_stored == Storage::Plain(DType::F32);
    let shares_rows_or_columns = match (a.steps(), b.steps()) {
        (Some(_), Some(_)) if b_stored.blocks().is_some() => m <= FEW_ROWS_OF_BLOCKS,
        (Some((_, 1)), Some((_, 1))) if m == 1 && panels.is_none() && is_plain && cpu.isa > Isa::Baseline => {
            // A single row costs what reading the right operand does, whose rows are shared out.
            let rows = MIN_VALUES.div_ceil(n.max(1)).max(k.div_ceil(MAX_PARTS)).next_multiple_of(8);
            return if n_batch > 1 && work < SMALL_MATRIX { AxisParts::whole(k) } else { AxisParts::of_len(k, rows) };
        }
        (Some((_, 1)), Some((1, _))) => cpu.isa > Isa::Baseline && (n == 1 || m <= FEW_ROWS && is_plain),
        (Some(_), Some(_)) => false,
        // Windows of images: a single row reads them in place (GEMV), more rows are an implicit GEMM.
        _ if m == 1 => true,
        _ => {
            let [rows, columns] = cpu.register_tile(false);
            let n_tiles = n_batch.saturating_mul(n.div_ceil(rows)).saturating_mul(m.div_ceil(columns));
            b.steps().is_none() && a.is_shared(batch) && m >= cpu.n_lanes() && n_tiles >= MIN_WINDOW_TILES
        }
    };
    if shares_rows_or_columns || n_batch > 1 && work < SMALL_MATRIX {
        return AxisParts::whole(k);
    }
    let in_place = m <= ROWS_IN_PLACE && is_plain && panels.is_none() && b.steps().is_some_and(|steps| steps.1 == 1);
    let [rows, columns] = cpu.register_tile(in_place);
    let across = n.div_ceil(panels.map_or(columns, |panels| panels.width));
    let n_shared = across * (m.div_ceil(rows) / TILES_DOWN).max(1);
    AxisParts::of_count(k, (k / MIN_STEPS).min(work / MIN_WORK).min(MAX_PARTS / n_shared.max(1)).max(1))
}

/// Parts for the shader variant that the product will have. Columns left over by vectors of four have as many parts as the rest.
#[cfg(feature = "gpu")]
fn on_a_gpu(matmul: &MatmulArgs, stored: [Storage; 2], n_grouped: usize, target: &GpuTarget) -> AxisParts {
    let &MatmulArgs { m, k, n, .. } = matmul;
    if m == 0 || k == 0 || n == 0 {
        return AxisParts::whole(k);
    }
    // All products of a launch fill the device together.
    let share =
        (n_grouped > 1).then(|| GpuTarget { full_groups: target.full_groups.div_ceil(n_grouped), ..target.clone() });
    let target = share.as_ref().unwrap_or(target);
    let by_four = if n < 4 { n } else { n / 4 * 4 };
    let longest = R4X1.max_part(target);
    let parts = |variant: &Variant| {
        let part = match target.style {
            Threads::Independent => part_of_few(variant, matmul, by_four, stored[1]),
            Threads::Cooperative => k.div_ceil(parts_to_fill(variant, matmul, by_four, target)),
        };
        let longest_run = match variant.team {
            Share::SplitK { lanes, .. } => lanes * K_PRODUCTS,
            _ => usize::MAX,
        };
        let most = variant.max_part(target).min(longest_run).min(longest);
        AxisParts::of_len(k, part.next_multiple_of(WHOLE_STEPS).min(most))
    };
    let (variant, _) = variant_of(matmul, by_four, stored, target, &parts);
    parts(variant)
}

/// How many parts fill hardware, while the sums of parts are at most half of what is read and no part is short.
#[cfg(feature = "gpu")]
fn parts_to_fill(variant: &Variant, matmul: &MatmulArgs, n: usize, target: &GpuTarget) -> usize {
    let &MatmulArgs { m, k, .. } = matmul;
    let wanted = target.full_groups / variant.n_groups(matmul, n, target);
    let shortest = match variant.team {
        Share::WorkgroupTile { .. } => MIN_GROUP_STEPS,
        Share::SplitK { lanes, .. } => MIN_LANE_STEPS * lanes / variant.cols.n_values(),
        Share::Alone | Share::SubgroupBroadcast(_) => K_BLOCK,
    };
    let worth = (m * k + k * n) / (2 * m * n).max(1);
    wanted.min(worth).min(k / shortest).max(1)
}

/// Steps of a part for a driver that runs on the CPU: parts keep all of its threads busy, and few sums are made in runs without
/// blocks.
#[cfg(feature = "gpu")]
fn part_of_few(variant: &Variant, matmul: &MatmulArgs, n: usize, b_stored: Storage) -> usize {
    let k = matmul.k;
    // Tiles that keep a device busy.
    let wanted = match variant.team {
        Share::WorkgroupTile { .. } | Share::Alone => 64,
        Share::SplitK { lanes, .. } => 4096 / lanes,
        Share::SubgroupBroadcast(n) => 64 / n,
    };
    let n_tiles = variant.n_tiles(matmul, n).max(1);
    let mut n_parts = if k >= 4 * K_BLOCK { wanted.div_ceil(n_tiles).min(k / K_BLOCK) } else { 1 };
    let runs = match variant.team {
        Share::SubgroupBroadcast(_) => true,
        Share::Alone => runs_alone(variant, b_read(matmul, n, b_stored)),
        Share::WorkgroupTile { .. } | Share::SplitK { .. } => false,
    };
    let n_sums = matmul.batch.iter().product::<usize>() * matmul.m * n * k.div_ceil(K_RUN);
    if runs && n_parts == 1 && n_sums <= FEW_SUMS {
        n_parts = k.div_ceil(K_RUN).max(1);
    }
    k.div_ceil(n_parts)
}
