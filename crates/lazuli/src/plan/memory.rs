//! Gives every value a slot. First, values that can replace one another in place become one allocation; then
//! allocations share slots where their lifetimes allow, largest first, each where it fits best.

use smallvec::{SmallVec, smallvec};

use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::order::Makers;
use super::{CompiledKernel, Launch, LaunchStructure, Plan, Slot, SlotId, SlotKind, ValueId};
use crate::kernel::{AccessForm, Body, InstOp, Kernel};

/// Which values share memory. It depends on sizes only through which value is larger, so it mostly holds for other sizes, too.
#[derive(Debug)]
pub struct Assignment {
    allocations: Vec<Allocation>,
    n_steps: usize,
    /// The allocations in the order in which they were given slots: temporaries last, the largest of them first.
    by_size: Vec<usize>,
    /// Per slot, the allocation that it was made for: none in it is larger.
    made_for: Vec<usize>,
    slot_of: Vec<SlotId>,
    /// Pairs of values of which it was asked whether one may take the other's memory as far as sizes go, and the answers.
    compared: Vec<(ValueId, ValueId, bool)>,
}

impl Assignment {
    /// Of the memory of these kernels, which run in this order.
    pub fn of(Lowered { steps, values, outputs, .. }: &Lowered) -> Assignment {
        let lives = lifetimes(steps, values, outputs);
        let (allocations, compared) = in_place(steps, values, &lives, outputs);
        let mut by_size: Vec<usize> = (0..allocations.len()).collect();
        by_size.sort_by_key(|i| place_in_order(&allocations, values, *i));
        let (made_for, slot_of) = pack(&allocations, &by_size, values.len());
        Assignment { allocations, n_steps: steps.len(), by_size, made_for, slot_of, compared }
    }

    /// Whether it is the assignment of the same kernels over values of other sizes.
    pub fn serves(&self, values: &[PlanValue]) -> bool {
        let place = |i: usize| place_in_order(&self.allocations, values, i);
        self.compared.iter().all(|(a, b, answer)| are_alike(values, *a, *b) == *answer)
            && self.by_size.windows(2).all(|pair| place(pair[0]) < place(pair[1]))
    }

    /// The slots, for values of these sizes.
    pub fn slots(&self, values: &[PlanValue]) -> Vec<Slot> {
        let slot = |allocation: &usize| {
            let allocation = &self.allocations[*allocation];
            Slot { kind: allocation.kind, size_bytes: allocation.size_bytes(values) }
        };
        self.made_for.iter().map(slot).collect()
    }

    /// The most bytes of temporaries that are needed at once.
    pub fn live_bytes(&self, values: &[PlanValue]) -> usize {
        let mut change = vec![0isize; self.n_steps + 1];
        for a in self.allocations.iter().filter(|a| a.kind == SlotKind::Temp) {
            let size_bytes = a.size_bytes(values) as isize;
            change[a.life.start] += size_bytes;
            change[(a.life.end + 1).min(self.n_steps)] -= size_bytes;
        }
        let live = change.iter().scan(0, |live, change| {
            *live += change;
            Some(*live)
        });
        live.max().unwrap_or(0) as usize
    }

    /// The finished plan.
    pub fn plan(&self, lowered: Lowered) -> Plan {
        let Lowered { steps, values, outputs, checks } = lowered;
        let slot_of = &self.slot_of;
        Plan {
            launches: steps.into_iter().map(|step| placed(step, slot_of)).collect(),
            slots: self.slots(&values),
            outputs: outputs.iter().map(|v| slot_of[*v as usize]).collect(),
            output_values: outputs,
            input_values: (0..values.len() as ValueId).filter(|v| values[*v as usize].input.is_some()).collect(),
            value_elems: values.iter().map(|v| v.n_elems).collect(),
            checks,
            temp_lower_bound: self.live_bytes(&values),
            reasons: values.iter().map(|v| v.reason).collect(),
            ..Plan::default()
        }
    }
}

/// Where an allocation comes when slots are given: temporaries last, the largest of them first.
fn place_in_order(
    allocations: &[Allocation],
    values: &[PlanValue],
    i: usize,
) -> (bool, std::cmp::Reverse<usize>, usize) {
    let a = &allocations[i];
    (a.kind == SlotKind::Temp, std::cmp::Reverse(a.size_bytes(values)), i)
}

/// Whether a value may take another's memory as far as sizes go.
fn are_alike(values: &[PlanValue], a: ValueId, b: ValueId) -> bool {
    let (a, b) = (&values[a as usize], &values[b as usize]);
    a.size_bytes() == b.size_bytes() && a.dtype.size() == b.dtype.size()
}

/// A launch whose values have these slots.
fn placed(step: LaunchDraft, slot_of: &[SlotId]) -> Launch {
    let structure = LaunchStructure {
        bases: step.bases().collect(),
        reads: step.reads.iter().map(|v| slot_of[*v as usize]).collect(),
        writes: step.writes.iter().map(|v| slot_of[*v as usize]).collect(),
        read_values: step.reads,
        write_values: step.writes,
        kernel: step.kernel,
        may_fail: step.may_fail,
        ops: step.ops,
        part_of: step.part_of,
        compiled: CompiledKernel::default(),
    };
    let parts = step.parts.into_iter().map(|part| placed(part, slot_of)).collect();
    Launch { parts, ..Launch::new(structure, step.args) }
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
#[derive(Debug)]
struct Allocation {
    kind: SlotKind,
    life: Life,
    values: SmallVec<[ValueId; 2]>,
}

impl Allocation {
    fn size_bytes(&self, values: &[PlanValue]) -> usize {
        values[self.values[0] as usize].size_bytes()
    }
}

/// One allocation per value, joined where a kernel can write its result over an input that nobody reads again; and which
/// values were compared for it.
fn in_place(
    steps: &[LaunchDraft],
    values: &[PlanValue],
    lives: &[Option<Life>],
    outputs: &[ValueId],
) -> (Vec<Allocation>, Vec<(ValueId, ValueId, bool)>) {
    let mut compared: Vec<(ValueId, ValueId, bool)> = Vec::new();
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
        allocations.push(Allocation { kind, life, values: smallvec![value] });
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
                let mut are_alike = || {
                    let answer = are_alike(values, **read, written);
                    compared.push((**read, written, answer));
                    answer
                };
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
                let is_over = are_one && makers.last().is_some_and(|last| end <= *last);
                is_over && free && latest && are_alike() && reads_once()
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
    (allocations, compared)
}

/// What of a kernel's numbers decides whether it may write in place, per store: whether it writes from the first element on.
pub fn starts_at_zero(step: &LaunchDraft) -> impl Iterator<Item = bool> + '_ {
    let stores = match &step.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => &body.stores[..],
        Kernel::Attention(_) | Kernel::Routine(_) | Kernel::Grouped(_) => &[],
    };
    stores.iter().map(|store| {
        let map = &step.args.accesses[store.access as usize];
        map.strided().is_some_and(|view| view.offset == 0)
    })
}

/// Whether a product makes an operand from a value. Such a value is read like an operand, by many results, so that it may not be
/// overwritten in place.
fn makes_operands_of(body: &Body, reads: &[ValueId], read: ValueId) -> bool {
    (0..).zip(reads).any(|(input, value)| *value == read && body.makes_operands_of(input))
}

/// Whether a kernel reads each element of a value only to write the same element of another.
fn reads_then_writes(step: &LaunchDraft, read: ValueId, written: ValueId) -> bool {
    let body = match &step.kernel {
        Kernel::Loop(body) => body,
        // Operands are read for many elements; what follows the product is a map.
        Kernel::Matmul(body) if !step.reads[..2].contains(&read) && !makes_operands_of(body, &step.reads, read) => body,
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

/// Slots for all allocations, one each, but temporaries share: per slot, the allocation that it was made for, and per value
/// its slot.
fn pack(allocations: &[Allocation], by_size: &[usize], n_values: usize) -> (Vec<usize>, Vec<SlotId>) {
    let mut made_for: Vec<usize> = Vec::new();
    // Per temporary slot, when it is taken, in order of time.
    let mut taken: Vec<(SlotId, SmallVec<[Life; 4]>)> = Vec::new();
    let mut slot_of = vec![SlotId(u32::MAX); n_values];
    for &i in by_size {
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
                made_for.push(i);
                let slot = SlotId(made_for.len() as u32 - 1);
                if a.kind == SlotKind::Temp {
                    taken.push((slot, smallvec![a.life]));
                }
                slot
            }
        };
        a.values.iter().for_each(|v| slot_of[*v as usize] = slot);
    }
    (made_for, slot_of)
}

/// Where a life has its place between others in order of time, if it overlaps none of them.
fn free_place(lives: &[Life], life: Life) -> Option<usize> {
    // The last one that starts at or before our end must have ended before our start.
    let place = lives.partition_point(|other| other.start <= life.end);
    lives[..place].last().is_none_or(|other| other.end < life.start).then_some(place)
}
