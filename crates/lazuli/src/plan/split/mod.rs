//! Cuts kernels that are more than a device takes at once, after they are lowered and before they are ordered: the only place
//! where a kernel becomes several. Every part is a kernel of the plan, and what passes between parts is a value of the plan,
//! so that memory planning, the verifier and `explain` see all of it. Knows kernels, their numbers and the limits of a device;
//! writes no text, and asks nothing about the graph. Sums of products are split, too, but remain numbers of one kernel, whose
//! phases need no values of the plan between them.

mod slice;
mod reduce;
mod windows;
mod pieces;
mod split_k;
mod split_keys;
#[cfg(test)]
mod tests;

use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::{Limits, ValueId};
use crate::kernel::Kernel;
use crate::target::Target;
use reduce::LongReduce;
#[cfg(feature = "gpu")]
pub use split_k::k_parts;
use windows::Footprint;

/// Bindings that one result may fill: 8 TiB with bindings of 128 MiB.
const MAX_PARTS: usize = 1 << 16;

/// All kernels, none of them more than the limits allow.
pub fn split(lowered: Lowered, limits: &Limits) -> Lowered {
    let Lowered { steps, values, outputs, checks } = lowered;
    let mut split = SplitSteps { limits, steps: Vec::with_capacity(steps.len()), values, n_cut: 0 };
    for step in steps {
        match LongReduce::of(&step, limits) {
            Some(reduce) => {
                let pieces = split.value(reduce.value());
                split.fit(reduce.pieces(&step, pieces, limits));
                split.fit(reduce.combined(&step, pieces, limits));
            }
            None => split.fit(step),
        }
    }
    Lowered { steps: split.steps, values: split.values, outputs, checks }
}

/// Whether splitting leaves a kernel whole: the device takes it, or no number of parts would help.
pub fn stays_whole(step: &LaunchDraft, values: &[PlanValue], limits: &Limits) -> bool {
    LongReduce::of(step, limits).is_none() && fits(step, values, limits)
}

/// Whether a device takes a kernel whole. Chained products and routines cut their own work, and a device with made operands never
/// needs parts.
fn fits(step: &LaunchDraft, values: &[PlanValue], limits: &Limits) -> bool {
    match &step.kernel {
        Kernel::Attention(_) | Kernel::Routine(_) | Kernel::Grouped(_) => true,
        Kernel::Matmul(body) if body.makes_operands() => true,
        Kernel::Loop(_) | Kernel::Matmul(_) => {
            Footprint::new(step, values, limits).is_small() || is_hopeless(step, values, limits)
        }
    }
}

/// Whether a kernel writes more than any device holds. Millions of parts would not help: the kernel is left whole, and fails when
/// its memory is allocated.
fn is_hopeless(step: &LaunchDraft, values: &[PlanValue], limits: &Limits) -> bool {
    let size_bytes = |value: &ValueId| {
        let PlanValue { n_elems, dtype, .. } = &values[*value as usize];
        n_elems.saturating_mul(dtype.size())
    };
    let most = limits.max_binding_bytes.saturating_mul(MAX_PARTS);
    step.writes.iter().any(|value| size_bytes(value) > most)
}

/// All kernels, each with the parts in which its sums are made: of products, and of chained products.
pub fn split_sums(mut lowered: Lowered, target: &Target) -> Lowered {
    for step in &mut lowered.steps {
        let n_grouped = step.parts.len().max(1);
        let each = if step.parts.is_empty() { std::slice::from_mut(step) } else { &mut step.parts[..] };
        each.iter_mut().for_each(|step| split_sums_of(step, n_grouped, target));
    }
    lowered
}

/// One kernel, of so many in its launch, with the parts in which its sums are made.
pub fn split_sums_of(step: &mut LaunchDraft, n_grouped: usize, target: &Target) {
    split_k::split_k(step, n_grouped, &target.machine);
    split_keys::split_keys(step, &target.machine);
}

/// One kernel that is added after others were cut, in as many parts as it takes.
pub fn fitted(step: LaunchDraft, values: &mut Vec<PlanValue>, limits: &Limits) -> Vec<LaunchDraft> {
    // Parts are told from those of other kernels by the value that they write.
    let n_cut = u32::MAX - step.writes[0];
    let mut split = SplitSteps { limits, steps: Vec::new(), values: std::mem::take(values), n_cut };
    split.fit(step);
    *values = split.values;
    split.steps
}

/// The kernels so far, and all values.
struct SplitSteps<'a> {
    limits: &'a Limits,
    steps: Vec<LaunchDraft>,
    values: Vec<PlanValue>,
    /// How many kernels were cut: their parts are numbered by it.
    n_cut: u32,
}

impl SplitSteps<'_> {
    /// A new value, which passes from one part to another.
    fn value(&mut self, value: PlanValue) -> ValueId {
        self.values.push(value);
        self.values.len() as ValueId - 1
    }

    /// Adds a kernel, in as many parts as the device needs.
    fn fit(&mut self, step: LaunchDraft) {
        if fits(&step, &self.values, self.limits) {
            return self.steps.push(step);
        }
        let first = self.steps.len();
        pieces::cut(self, &step);
        if self.steps.len() > first + 1 {
            self.steps[first..].iter_mut().for_each(|part| part.part_of = Some(self.n_cut));
            self.n_cut = self.n_cut.wrapping_add(1);
        }
    }
}
