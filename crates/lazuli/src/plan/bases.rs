//! What rows are written into. A kernel that writes some rows of a value writes them over its base, the value as it was
//! before, if nobody needs the base any more and its memory may be overwritten. Else the base is copied first, and the rows
//! are written over the copy. Knows launches in the order in which they run; where values are kept is `memory`'s to say.

use std::sync::Arc;

use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::order::Ordered;
use super::split::fitted;
use super::{Limits, ValueId};
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, Scope, Store};
use crate::shape::Shape;
use crate::view::View;

/// The same kernels, with a copy of every base that cannot be written over.
pub fn with_copies((lowered, mut stages): Ordered, limits: &Limits) -> Ordered {
    if lowered.steps.iter().all(|step| step.bases().next().is_none()) {
        return (lowered, stages);
    }
    let Lowered { steps, mut values, outputs, checks } = lowered;
    let mut last_needed = vec![0; values.len()];
    // Per base, the value that is written over it: all parts of one kernel together need it once, where the first part is.
    let mut replaced_by: Vec<Option<ValueId>> = vec![None; values.len()];
    for (i, step) in steps.iter().enumerate() {
        step.reads.iter().for_each(|value| last_needed[*value as usize] = i);
        for (output, base) in step.bases() {
            let written = step.writes[output as usize];
            if replaced_by[base as usize].replace(written) != Some(written) {
                last_needed[base as usize] = i;
            }
        }
    }
    outputs.iter().for_each(|output| last_needed[*output as usize] = usize::MAX);
    let mut placed = Vec::with_capacity(steps.len());
    // The copies that parts of a kernel share: what is written over each.
    let mut shared: Vec<(ValueId, ValueId)> = Vec::new();
    for (i, mut step) in steps.into_iter().enumerate() {
        let mut bases: Vec<(u16, ValueId)> = step.bases().collect();
        for at in 0..bases.len() {
            let (output, base) = bases[at];
            let written = step.writes[output as usize];
            let is_read = step.reads.contains(&base) || bases[..at].iter().any(|earlier| earlier.1 == base);
            if let Some((_, copy)) = shared.iter().find(|known| known.0 == written) {
                bases[at].1 = *copy;
                continue;
            }
            let is_kept = matches!(values[base as usize].input, Some((_, false)));
            if is_read || is_kept || last_needed[base as usize] > i {
                let reason = Some("others need what the rows are written into as it was");
                values.push(PlanValue { input: None, reason, ..values[base as usize].clone() });
                let copy = values.len() as ValueId - 1;
                let parts = fitted(copied(&values[copy as usize], base, copy), &mut values, limits);
                bases[at].1 = copy;
                shared.push((written, copy));
                // The copy is part of the stage whose rows are written into it.
                let (n_before, n_parts) = (placed.len(), parts.len());
                stages.iter_mut().filter(|end| end.launches > n_before).for_each(|end| end.launches += n_parts);
                placed.extend(parts);
            }
        }
        step.set_bases(&bases);
        placed.push(step);
    }
    (Lowered { steps: placed, values, outputs, checks }, stages)
}

/// A kernel that copies a value.
fn copied(value: &PlanValue, from: ValueId, to: ValueId) -> LaunchDraft {
    let all: Shape = [value.n_elems].into_iter().collect();
    let body = Body {
        outer_rank: 1,
        inputs: vec![value.dtype.into()],
        outputs: vec![value.dtype],
        accesses: vec![AccessForm::Linear],
        insts: vec![Inst { op: InstOp::Load { input: 0, access: 0 }, dtype: value.dtype, scope: Scope::Outer }],
        stores: vec![Store { value: 0, output: 0, access: 0 }],
        ..Body::default()
    };
    LaunchDraft {
        kernel: Kernel::Loop(Arc::new(body)),
        args: Args { outer: vec![value.n_elems], accesses: vec![View::contiguous(all).into()], ..Args::default() },
        reads: vec![from],
        writes: vec![to],
        ops: vec!["copy".into()],
        ..LaunchDraft::default()
    }
}
