//! A launch that commits, after a check has failed: what it commits stays what it was. On the CPU that is a launch of its
//! own, so that a run in which nothing fails chooses nothing element by element.

use std::sync::Arc;

use crate::kernel::{Body, InstOp, Kernel, Store};
use crate::plan::{Launch, LaunchStructure};

/// Stores what was there before in place of all that a launch commits, and nothing else. None if it commits nothing.
pub fn reverted(launch: &Launch) -> Option<Launch> {
    let (Kernel::Loop(body) | Kernel::Matmul(body)) = &launch.kernel else { return None };
    if !body.commits() {
        return None;
    }
    let is_failed = |reg: u32| body.insts[reg as usize].op == InstOp::Failed;
    let old_of = |op: &InstOp| match op {
        InstOp::Select(failed, old, _) if is_failed(*failed) => Some((*failed, *old)),
        _ => None,
    };
    let mut insts = body.insts.clone();
    for inst in &mut insts {
        if let Some((failed, old)) = old_of(&inst.op) {
            inst.op = InstOp::Select(failed, old, old);
        }
    }
    let kept: Vec<&Store> = body.stores.iter().filter(|s| old_of(&body.insts[s.value as usize].op).is_some()).collect();
    let stores = kept.iter().enumerate().map(|(i, s)| Store { output: i as u16, ..Store::clone(s) }).collect();
    let outputs = kept.iter().map(|s| body.outputs[s.output as usize]).collect();
    let mut args = launch.args.clone();
    // The epilogue of a product is a map over its result: putting the old value back needs neither the sums nor the operands.
    args.matmul = None;
    let made = [None, None];
    let structure = LaunchStructure {
        kernel: Kernel::Loop(Arc::new(Body { insts, stores, outputs, made, ..Body::clone(body) })),
        writes: kept.iter().map(|s| launch.writes[s.output as usize]).collect(),
        write_values: kept.iter().filter_map(|s| launch.write_values.get(s.output as usize).copied()).collect(),
        ..LaunchStructure::clone(launch)
    };
    Some(Launch::new(structure, args))
}
