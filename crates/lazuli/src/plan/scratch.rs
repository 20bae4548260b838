//! Scratch memory as slots: what a schedule needs for one launch beside the values of the plan (packed and widened
//! operands, sums of parts). A launch takes a temporary of the plan that holds nothing at that time, else a slot that
//! launches share. Knows plans and bytes; what the memory is for is the schedule's.

use smallvec::SmallVec;

use super::{Launch, Plan, SlotId, SlotKind, ValueId};

/// The scratch memory of a plan's launches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scratch {
    /// Bytes of slots beside the plan's, which are numbered on from those.
    pub extra: Vec<usize>,
    /// Per launch, a slot for each piece that it asked for, in that order.
    pub of: Vec<Vec<SlotId>>,
    /// The least temporary memory that any assignment of slots could use, scratch included.
    pub lower_bound: usize,
}

/// A value while it is in a slot: from which launch to which.
struct Stay {
    slot: SlotId,
    value: ValueId,
    first: usize,
    last: usize,
    size_bytes: usize,
}

impl Scratch {
    /// Bytes taken for it beside what the plan takes.
    pub fn size_bytes(&self) -> usize {
        self.extra.iter().sum()
    }
}

/// Finds a slot for everything that launches need: per launch, the bytes of each piece.
pub fn scratch(plan: &Plan, needs: &[Vec<usize>]) -> Scratch {
    let of = vec![Vec::new(); needs.len()];
    let mut scratch = Scratch { extra: Vec::new(), of, lower_bound: plan.temp_lower_bound };
    if needs.iter().all(Vec::is_empty) {
        return scratch;
    }
    let stays = stays(plan);
    let n_slots = plan.slots.len();
    let temps: SmallVec<[usize; 8]> = (0..n_slots).filter(|slot| plan.slots[*slot].kind == SlotKind::Temp).collect();
    for (at, pieces) in needs.iter().enumerate() {
        if pieces.is_empty() {
            continue;
        }
        let mut of = vec![SlotId(u32::MAX); pieces.len()];
        // Largest first, so that small pieces leave large slots to others.
        let mut by_size: SmallVec<[usize; 8]> = (0..pieces.len()).collect();
        by_size.sort_by_key(|piece| std::cmp::Reverse(pieces[*piece]));
        for piece in by_size {
            let size_bytes = pieces[piece];
            let is_taken = |slot: usize| of.contains(&SlotId(slot as u32));
            let is_idle = |slot: usize| !stays.iter().any(|stay| stay.slot.0 as usize == slot && stay.is_at(at));
            let fits = |slot: &usize| plan.slots[*slot].size_bytes >= size_bytes;
            let idle = temps.iter().copied().filter(|slot| fits(slot) && !is_taken(*slot) && is_idle(*slot));
            let idle = idle.min_by_key(|slot| plan.slots[*slot].size_bytes);
            let shared = || {
                let extra = (0..scratch.extra.len()).filter(|extra| !is_taken(n_slots + extra));
                // The smallest that is large enough, else the largest.
                let extra = extra.min_by_key(|extra| {
                    let has = scratch.extra[*extra];
                    (has < size_bytes, has.abs_diff(size_bytes))
                });
                extra.map(|extra| n_slots + extra)
            };
            let slot = idle.or_else(shared).unwrap_or(n_slots + scratch.extra.len());
            if let Some(extra) = slot.checked_sub(n_slots) {
                if extra == scratch.extra.len() {
                    scratch.extra.push(0);
                }
                scratch.extra[extra] = scratch.extra[extra].max(size_bytes);
            }
            of[piece] = SlotId(slot as u32);
        }
        scratch.of[at] = of;
        scratch.lower_bound = scratch.lower_bound.max(held_bytes(&stays, at) + pieces.iter().sum::<usize>());
    }
    scratch
}

impl Stay {
    fn is_at(&self, launch: usize) -> bool {
        (self.first..=self.last).contains(&launch)
    }
}

/// Bytes of the temporary slots that hold values while a launch runs.
fn held_bytes(stays: &[Stay], at: usize) -> usize {
    let mut held: SmallVec<[(SlotId, usize); 8]> = SmallVec::new();
    for stay in stays.iter().filter(|stay| stay.is_at(at)) {
        match held.iter_mut().find(|(slot, _)| *slot == stay.slot) {
            Some((_, size_bytes)) => *size_bytes = stay.size_bytes.max(*size_bytes),
            None => held.push((stay.slot, stay.size_bytes)),
        }
    }
    held.iter().map(|(_, size_bytes)| size_bytes).sum()
}

/// The values that are in temporary slots, and from when to when.
fn stays(plan: &Plan) -> Vec<Stay> {
    let mut stays: Vec<Stay> = Vec::with_capacity(plan.value_elems.len());
    for (at, launch) in plan.launches.iter().enumerate() {
        let (read, written) = launch.kernel.bindings();
        let reads = launch.reads.iter().zip(&launch.read_values).zip(read.iter().map(|storage| storage.unit_bytes()));
        let writes = launch.writes.iter().zip(&launch.write_values).zip(written.iter().map(|dtype| dtype.size()));
        let bases = launch.bases.iter().map(|(output, base)| (*output as usize, base));
        let bases = bases.map(|(output, base)| ((&launch.writes[output], base), written[output].size()));
        for ((slot, value), unit_bytes) in reads.chain(bases).chain(writes) {
            if plan.slots[slot.0 as usize].kind != SlotKind::Temp {
                continue;
            }
            match stays.iter_mut().find(|stay| (stay.slot, stay.value) == (*slot, *value)) {
                Some(stay) => stay.last = at,
                None => {
                    let size_bytes = plan.value_elems[*value as usize] * unit_bytes;
                    stays.push(Stay { slot: *slot, value: *value, first: at, last: at, size_bytes });
                }
            }
        }
    }
    stays
}

/// Says what is wrong with the scratch memory of a plan, if anything: every piece is as large as was asked for, pieces of
/// a launch are apart from each other and from what it reads and writes, and nothing is overwritten that is read later.
pub fn verify_scratch(plan: &Plan, needs: &[Vec<usize>], scratch: &Scratch) -> Result<(), String> {
    for (at, (pieces, of)) in needs.iter().zip(&scratch.of).enumerate() {
        if pieces.len() != of.len() {
            return Err(format!("launch {at} asked for {} pieces of scratch and has {}", pieces.len(), of.len()));
        }
        for (piece, slot) in of.iter().enumerate() {
            let number = slot.0 as usize;
            let has = match number.checked_sub(plan.slots.len()) {
                Some(extra) => scratch.extra.get(extra).copied(),
                None if plan.slots[number].kind != SlotKind::Temp => None,
                None => Some(plan.slots[number].size_bytes),
            };
            if has.is_none_or(|has| has < pieces[piece]) {
                return Err(format!("launch {at} needs {} B of scratch and has {has:?}", pieces[piece]));
            }
            let launch = &plan.launches[at];
            if of[..piece].contains(slot) || launch.reads.contains(slot) || launch.writes.contains(slot) {
                return Err(format!("launch {at} uses slot {number} twice"));
            }
            // What is read later must have been written later, too. An empty value has nothing to lose: no launch writes it,
            // and its slot may be any.
            let later = &plan.launches[at + 1..];
            let is_read = |launch: &Launch| {
                let reads = launch.reads.iter().zip(&launch.read_values);
                let bases = launch.bases.iter().map(|(output, base)| (&launch.writes[*output as usize], base));
                reads.chain(bases).any(|(read, value)| read == slot && plan.value_elems[*value as usize] > 0)
            };
            let mut after = later.iter().enumerate().filter(|(_, l)| is_read(l) || l.writes.contains(slot));
            if let Some((i, next)) = after.next()
                && is_read(next)
            {
                return Err(format!("launch {at} overwrites slot {number}, which launch {} reads", at + 1 + i));
            }
            // A value that several launches write, part by part, must not lose the parts written before.
            let made_before = plan.launches[..at].iter().flat_map(|l| l.writes.iter().zip(&l.write_values));
            let before: Vec<_> = made_before.filter(|(s, _)| *s == slot).map(|(_, v)| v).collect();
            let made_after = later.iter().flat_map(|l| l.writes.iter().zip(&l.write_values));
            if made_after.filter(|(s, _)| *s == slot).any(|(_, v)| before.contains(&v)) {
                return Err(format!("launch {at} overwrites a part of what is in slot {number}"));
            }
        }
    }
    Ok(())
}
