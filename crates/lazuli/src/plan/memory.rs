//! Gives every value a slot. First, values that can replace one another in place become one allocation; then
//! allocations share slots where their lifetimes allow, largest first, each where it fits best.

use smallvec::{SmallVec, smallvec};

use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::order::Makers;
use super::{Launch, Plan, Slot, SlotId, SlotKind, ValueId};
use crate::kernel::{AccessForm, InstOp, Kernel};

/// The finished plan.
pub fn assign(lowered: Lowered) -> Plan {
    let Lowered { steps, values, outputs, checks } = lowered;
    let lives = lifetimes(&steps, &values, &outputs);
    let allocations = in_place(&steps, &values, &lives, &outputs);
    let temp_lower_bound = live_bytes(&allocations, steps.len());
    let (slots, slot_of) = pack(&allocations, values.len());
    let launches = steps.into_iter().map(|step| placed(step, &slot_of)).collect();
    Plan {
        launches,
        slots,
        outputs: outputs.iter().map(|v| slot_of[*v as usize]).collect(),
        output_values: outputs,
        input_values: (0..values.len() as ValueId).filter(|v| values[*v as usize].input.is_some()).collect(),
        value_elems: values.iter().map(|v| v.n_elems).collect(),
        checks,
        temp_lower_bound,
        reasons: values.iter().map(|v| v.reason).collect(),
        ..Plan::default()
    }
}

/// A launch whose values have these slots.
fn placed(step: LaunchDraft, slot_of: &[SlotId]) -> Launch {
    Launch {
        bases: step.bases().collect(),
        reads: step.reads.iter().map(|v| slot_of[*v as usize]).collect(),
        writes: step.writes.iter().map(|v| slot_of[*v as usize]).collect(),
        read_values: step.reads,
        write_values: step.writes,
        kernel: step.kernel,
        args: step.args,
        may_fail: step.may_fail,
        ops: step.ops,
        part_of: step.part_of,
        parts: step.parts.into_iter().map(|part| placed(part, slot_of)).collect(),
    }
}

/// From which step to which a value must be kept: the first that writes it to the last that reads it.
#[derive(Clone, Copy, Debug)]
struct Life {
    start: usize,
    end: usize,
}

fn lifetimes(steps: &[LaunchDraft], values: &[PlanValue], outputs: &[ValueId]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = values.iter().map(|v| v.input.map(|_| Life { start: 0, end: 0 })).collect();
    for (i, step) in steps.iter().enumerate() {
        for value in step.needs().chain(step.writes.iter().copied()) {
            lives[value as usize].get_or_insert(Life { start: i, end: i }).end = i;
        }
    }
    for output in outputs {
        lives[*output as usize].get_or_insert(Life { start: 0, end: 0 }).end = usize::MAX;
    }
    lives
}

/// Values that share memory because each replaces the one before it, and how long that memory is needed.
struct Allocation {
    kind: SlotKind,
    size_bytes: usize,
    life: Life,
    values: SmallVec<[ValueId; 2]>,
}

/// One allocation per value, joined where a kernel can write its result over an input that nobody reads again.
fn in_place(
    steps: &[LaunchDraft],
    values: &[PlanValue],
    lives: &[Option<Life>],
    outputs: &[ValueId],
) -> Vec<Allocation> {
    let mut allocations: Vec<Allocation> = Vec::new();
    let mut allocation_of: Vec<Option<usize>> = vec![None; values.len()];
    let mut is_output = vec![false; values.len()];
    outputs.iter().for_each(|o| is_output[*o as usize] = true);
    let mut makers: Vec<Makers> = vec![Makers::new(); values.len()];
    for (i, step) in steps.iter().enumerate() {
        step.writes.iter().for_each(|v| makers[*v as usize].push(i));
    }
    let open = |value: ValueId, allocations: &mut Vec<Allocation>| {
        let v = &values[value as usize];
        let kind = match v.input {
            Some((idx, donated)) => SlotKind::Input { idx, donated },
            None if is_output[value as usize] => SlotKind::Output,
            None => SlotKind::Temp,
        };
        let life = lives[value as usize].unwrap_or(Life { start: 0, end: 0 });
        allocations.push(Allocation { kind, size_bytes: v.size_bytes(), life, values: smallvec![value] });
        allocations.len() - 1
    };
    for (value, v) in values.iter().enumerate() {
        if v.input.is_some() {
            allocation_of[value] = Some(open(value as ValueId, &mut allocations));
        }
    }
    for (i, step) in steps.iter().enumerate() {
        for (output, &written) in step.writes.iter().enumerate() {
            if allocation_of[written as usize].is_some() {
                continue;
            }
            // Rows are written over the value that they replace rows of: `bases` has seen to it that nobody needs it.
            let base = step.bases().find(|base| base.0 as usize == output).map(|base| base.1);
            // Only a value that one kernel writes, or the parts of one, can take over another's place.
            let makers = &makers[written as usize];
            let are_one =
                makers.len() == 1 || makers.iter().all(|m| steps[*m].part_of.is_some_and(|k| step.part_of == Some(k)));
            let replaced = step.reads.iter().enumerate().find(|(_, read)| {
                let Some(end) = lives[**read as usize].map(|life| life.end) else { return false };
                // Whoever reads what is replaced, from here on, reads each element only to write it.
                let reads_once = || {
                    let later = (i..=end).filter(|later| steps[*later].needs().any(|value| value == **read));
                    later
                        .into_iter()
                        .all(|later| makers.contains(&later) && reads_then_writes(&steps[later], **read, written))
                };
                let same_size = values[**read as usize].size_bytes() == values[written as usize].size_bytes()
                    && values[**read as usize].dtype.size() == values[written as usize].dtype.size();
                let Some(at) = allocation_of[**read as usize] else { return false };
                let a = &allocations[at];
                let free = match a.kind {
                    SlotKind::Input { donated, .. } => donated,
                    // An output's memory must not pass from one output to another.
                    SlotKind::Output => false,
                    SlotKind::Temp => true,
                };
                // The allocation may hold a later value already, if another output of this step took it.
                let latest = a.values.last() == Some(*read);
                are_one && makers.last().is_some_and(|last| end <= *last) && same_size && free && latest && reads_once()
            });
            let at = match base.or(replaced.map(|(_, read)| *read)) {
                Some(read) => {
                    let at = allocation_of[read as usize].expect("just found");
                    let a = &mut allocations[at];
                    a.values.push(written);
                    a.life.end = lives[written as usize].map_or(i, |l| l.end);
                    if a.kind == SlotKind::Temp && is_output[written as usize] {
                        a.kind = SlotKind::Output;
                    }
                    at
                }
                None => open(written, &mut allocations),
            };
            allocation_of[written as usize] = Some(at);
        }
    }
    // What is read or wanted without a kernel that writes it is empty.
    for value in steps.iter().flat_map(LaunchDraft::needs).chain(outputs.iter().copied()) {
        if allocation_of[value as usize].is_none() {
            allocation_of[value as usize] = Some(open(value, &mut allocations));
        }
    }
    allocations
}

/// Whether a kernel reads each element of a value only to write the same element of another.
fn reads_then_writes(step: &LaunchDraft, read: ValueId, written: ValueId) -> bool {
    let body = match &step.kernel {
        Kernel::Loop(body) => body,
        // Operands are read for many elements; what follows the product is a map.
        Kernel::Matmul(body) if !step.reads[..2].contains(&read) => body,
        // Parts run at once: what one of them overwrites, no other may read.
        Kernel::Grouped(_) => {
            let mut readers = step.parts.iter().filter(|part| part.reads.contains(&read));
            return readers.next().is_some_and(|part| reads_then_writes(part, read, written))
                && readers.next().is_none();
        }
        _ => return false,
    };
    let position = |ids: &[ValueId], id: ValueId| ids.iter().position(|v| *v == id);
    let (Some(input), Some(output)) = (position(&step.reads, read), position(&step.writes, written)) else {
        return false;
    };
    let store = &body.stores[output];
    let covers = match (step.part_of, body.accesses[store.access as usize]) {
        // All parts together write every element once.
        (Some(_), AccessForm::Linear | AccessForm::Strided) => {
            step.args.index_range.is_none() && body.offsets.is_empty()
        }
        (None, AccessForm::Linear) => {
            step.args.accesses[store.access as usize].strided().is_some_and(|view| view.offset == 0)
        }
        _ => false,
    };
    // A reduction may look at its rows several times, so what it writes must not lie over them.
    covers
        && body.inner_rank == 0
        && body.inputs[input].plain().is_some()
        && body.insts.iter().all(|inst| match inst.op {
            InstOp::Load { input: i, access } => i as usize != input || access == store.access,
            InstOp::Gather { input: i, .. } => i as usize != input,
            _ => true,
        })
}

/// The most bytes of temporaries that are needed at once.
fn live_bytes(allocations: &[Allocation], n_steps: usize) -> usize {
    let mut change = vec![0isize; n_steps + 1];
    for a in allocations.iter().filter(|a| a.kind == SlotKind::Temp) {
        change[a.life.start] += a.size_bytes as isize;
        change[(a.life.end + 1).min(n_steps)] -= a.size_bytes as isize;
    }
    let mut live = 0;
    change
        .iter()
        .map(|c| {
            live += c;
            live
        })
        .max()
        .unwrap_or(0) as usize
}

/// Slots for all allocations: one each, but temporaries share.
fn pack(allocations: &[Allocation], n_values: usize) -> (Vec<Slot>, Vec<SlotId>) {
    let mut slots: Vec<Slot> = Vec::new();
    // Per temporary slot, when it is taken, in order of time.
    let mut taken: Vec<(SlotId, SmallVec<[Life; 4]>)> = Vec::new();
    let mut slot_of = vec![SlotId(u32::MAX); n_values];
    let mut by_size: Vec<usize> = (0..allocations.len()).collect();
    by_size.sort_by_key(|i| (allocations[*i].kind == SlotKind::Temp, std::cmp::Reverse(allocations[*i].size_bytes)));
    for i in by_size {
        let a = &allocations[i];
        let shared = (a.kind == SlotKind::Temp)
            .then(|| taken.iter_mut().rev().find_map(|(slot, lives)| Some((slot, free_place(lives, a.life)?, lives))))
            .flatten();
        let slot = match shared {
            // Largest first, so every slot so far is large enough; the latest is the smallest.
            Some((slot, place, lives)) => {
                lives.insert(place, a.life);
                *slot
            }
            None => {
                slots.push(Slot { kind: a.kind, size_bytes: a.size_bytes });
                let slot = SlotId(slots.len() as u32 - 1);
                if a.kind == SlotKind::Temp {
                    taken.push((slot, smallvec![a.life]));
                }
                slot
            }
        };
        a.values.iter().for_each(|v| slot_of[*v as usize] = slot);
    }
    (slots, slot_of)
}

/// Where a life has its place between others in order of time, if it overlaps none of them.
fn free_place(lives: &[Life], life: Life) -> Option<usize> {
    // The last one that starts at or before our end must have ended before our start.
    let place = lives.partition_point(|other| other.start <= life.end);
    lives[..place].last().is_none_or(|other| other.end < life.start).then_some(place)
}
