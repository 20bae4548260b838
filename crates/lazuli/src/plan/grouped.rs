//! Puts products that share their left operand into one launch, a grouped GEMM: queries, keys and values of one input, or the
//! gradients of several weights by it. Each product stays a kernel of its own, with its own right operand, epilogue and result,
//! so that nothing is concatenated or copied; one launch has enough work for all threads or workgroups where each alone has
//! too little, and is waited for once. Results are the same bits as those of separate launches, but on hardware GPUs where k is
//! cut into parts: a group needs fewer of them to fill the device. Knows kernels; asks nothing about the graph but on which level
//! of it a kernel is.

use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::{Limits, ValueId};
use crate::kernel::{GroupedKernel, InstOp, Kernel};

/// A product of more multiplications fills any device by itself, and several of them in one launch might outlive a watchdog.
const MAX_MULTIPLICATIONS: usize = 1 << 30;
/// Products in a launch at most: on GPUs the text of a shader is as long as all of them.
const MAX_PARTS: usize = 4;

/// All kernels, those grouped that may be.
pub fn grouped(mut lowered: Lowered, limits: &Limits) -> Lowered {
    let may_be = |step: &LaunchDraft| may_share(step, &lowered.values, limits);
    if lowered.steps.iter().filter(|step| may_be(step)).count() < 2 {
        return lowered;
    }
    let mut steps: Vec<LaunchDraft> = Vec::with_capacity(lowered.steps.len());
    // The places in `steps` of products that others may join.
    let mut open: Vec<usize> = Vec::new();
    for step in lowered.steps {
        if !may_be(&step) {
            steps.push(step);
            continue;
        }
        match open.iter().find(|at| goes_with(&steps[**at], &step, limits)) {
            Some(at) => join(&mut steps[*at], step),
            None => {
                open.push(steps.len());
                steps.push(step);
            }
        }
    }
    lowered.steps = steps;
    lowered
}

/// Whether a kernel may share a launch with others: all that its numbers decide.
pub fn may_share(step: &LaunchDraft, values: &[PlanValue], limits: &Limits) -> bool {
    let is_bound_once = |value: ValueId| values[value as usize].size_bytes() <= limits.max_binding_bytes;
    let mut bound = step.needs().chain(step.writes.iter().copied());
    limits.fuse && is_small_product(step) && bound.all(is_bound_once)
}

/// Whether a kernel is a product that may share a launch: whole, small, of operands that are stored, and neither checking nor
/// committing anything.
fn is_small_product(step: &LaunchDraft) -> bool {
    let (Kernel::Matmul(body), Some(matmul)) = (&step.kernel, &step.args.matmul) else { return false };
    let sizes = matmul.batch.iter().chain([&matmul.m, &matmul.k, &matmul.n]);
    let n_multiplications = sizes.fold(1, |all: usize, size| all.saturating_mul(*size));
    let is_placed = |op: &InstOp| matches!(op, InstOp::Gather { .. } | InstOp::Failed | InstOp::Custom(..));
    step.level.is_some()
        && !body.makes_operands()
        && step.part_of.is_none()
        && !step.first
        && n_multiplications <= MAX_MULTIPLICATIONS
        && !body.insts.iter().any(|inst| is_placed(&inst.op))
}

/// Whether a product may join another, or those that another has become: on one level nothing waits for anything else.
fn goes_with(launch: &LaunchDraft, step: &LaunchDraft, limits: &Limits) -> bool {
    let parts = if launch.parts.is_empty() { std::slice::from_ref(launch) } else { &launch.parts };
    let shares_left = parts[0].reads[0] == step.reads[0];
    // The same product twice is a recomputation, which saves memory only if it runs late, by itself. Parts of one value (a
    // concatenation) would bind its memory twice.
    let is_apart = |part: &LaunchDraft| {
        part.reads[..2] != step.reads[..2] && !step.writes.iter().any(|value| part.writes.contains(value))
    };
    let values = || parts.iter().chain([step]).flat_map(|part| part.needs().chain(part.writes.iter().copied()));
    let n_bound = || {
        let mut bound: Vec<ValueId> = values().collect();
        bound.sort_unstable();
        bound.dedup();
        bound.len()
    };
    launch.level == step.level
        && parts.len() < MAX_PARTS
        && shares_left
        && parts.iter().all(is_apart)
        && (values().count() <= limits.max_bindings || n_bound() <= limits.max_bindings)
}

/// Makes a product a part of a launch.
fn join(launch: &mut LaunchDraft, step: LaunchDraft) {
    if launch.parts.is_empty() {
        let level = launch.level;
        let first = std::mem::take(launch);
        let kernel = Kernel::Grouped(GroupedKernel { inputs: Vec::new(), outputs: Vec::new() });
        *launch = LaunchDraft { kernel, level, ..LaunchDraft::default() };
        add(launch, first);
    }
    add(launch, step);
}

fn add(launch: &mut LaunchDraft, step: LaunchDraft) {
    let Kernel::Grouped(grouped) = &mut launch.kernel else { unreachable!("only groups have parts") };
    let (inputs, outputs) = step.kernel.bindings();
    grouped.inputs.extend(inputs);
    grouped.outputs.extend(outputs);
    launch.reads.extend(&step.reads);
    launch.writes.extend(&step.writes);
    launch.ops.extend(step.ops.iter().cloned());
    launch.parts.push(step);
}
