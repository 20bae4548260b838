//! Nodes that are being computed: the wanted ones let go of their inputs when that is done, and an evaluation overwrites
//! the memory of inputs that only they hold. Until then nobody may take hold of those inputs through them. Why that is
//! enough is in docs/decisions/donation-is-safe.md; `model.rs` tries every order of a small case.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::MutexGuard;
use std::sync::atomic::{Ordering, fence};

use smallvec::SmallVec;

use super::capture::{Captured, GradientPath, Holder, NodeIdx};
use super::kin::{Kin, Kins, living};
use super::node::{Buffer, Buffers, NodeRef, NodeState, Recipe};
use crate::error::Error;

/// Wanted nodes that an evaluation is computing. However it ends, they are no longer in flight when this is dropped.
pub struct InFlight<'a> {
    wanted: &'a [&'a NodeRef],
    /// Whether memory of their inputs may have been overwritten.
    is_at_risk: bool,
}

/// Captures what is needed for the wanted nodes, and puts them in flight: until the result is dropped, no other thread can
/// take hold of what is donated. If something must be brought from another device first, nothing is donated.
/// `stages` says where in `wanted` each stage ends; it is empty if nothing is staged. The caller holds the device's lock.
pub fn take_off<'a>(wanted: &'a [&'a NodeRef], stages: &[usize]) -> (Box<Captured>, InFlight<'a>) {
    let mut walk = Captured::walk(wanted);
    let (mut held, mut donated) = walk.lists();
    if !walk.moves.is_empty() {
        donated.resize(walk.leaves.len(), false);
        walk.finish(stages, held, donated);
        return (walk, InFlight { wanted: &[], is_at_risk: false });
    }
    let any_notes = walk.outputs.iter().any(|idx| notes_ancestors(&walk, *idx));
    let twins = if any_notes { twins(&walk) } else { Twins::new() };
    // From here until they are in flight, whoever wants a recipe of theirs waits. Nobody holds two of these locks but
    // this, for nodes of one device, whose lock the caller has.
    let mut outputs: SmallVec<[NodeIdx; 4]> = SmallVec::from_slice(&walk.outputs);
    if outputs.len() > 1 {
        outputs.sort_unstable();
        outputs.dedup();
    }
    let mut locked: SmallVec<[MutexGuard<'_, NodeState>; 4]> = SmallVec::new();
    for node in outputs.iter().map(|idx| &walk.nodes[*idx as usize]).filter(|node| !node.tracked) {
        locked.push(node.body());
    }
    walk.count_holders(&mut held);
    walk.donate(&held, &mut donated);
    // A count that has fallen to ours was lowered by threads that read the memory before: their reads happened before
    // whatever follows.
    fence(Ordering::Acquire);
    note_ancestors(&walk, &mut held, &twins, &outputs);
    locked.iter_mut().for_each(|body| body.in_flight = true);
    drop(locked);
    walk.finish(stages, held, donated);
    (walk, InFlight { wanted, is_at_risk: false })
}

impl InFlight<'_> {
    /// Says that memory of the inputs may be overwritten from now on, or that it was not.
    pub fn put_at_risk(&mut self, is_at_risk: bool) {
        self.is_at_risk = is_at_risk;
    }

    /// Gives the nodes their memory.
    pub fn complete(mut self, buffers: Buffers) {
        let landed = std::mem::take(&mut self.wanted);
        landed.iter().zip(buffers).for_each(|(node, buffer)| node.complete(buffer));
    }

    /// Gives some of the nodes their memory while the others are still being computed.
    pub fn complete_some(&self, which: Range<usize>, buffers: &[Buffer]) {
        let done = self.wanted[which.clone()].iter().zip(&buffers[which]);
        done.for_each(|(node, buffer)| node.complete(buffer.clone()));
    }

    /// Ends an evaluation that failed. What it had completed stays. Of the rest, those of the nodes that are good all the same are given their memory. Of the others,
    /// those that replace a value are that value. The rest can never be computed if memory of their inputs was at risk.
    pub fn fail(self, error: &Error, good: Vec<Option<Buffer>>, was_at_risk: bool) {
        let good = good.into_iter().chain(std::iter::repeat(None));
        for (node, good) in self.wanted.iter().zip(good).filter(|(node, _)| !node.is_ready()) {
            match good {
                Some(buffer) => node.complete(buffer),
                None if node.revert() => {}
                None if was_at_risk => node.fail(error),
                None => {}
            }
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.is_at_risk {
            // Only a panic leads here: what the inputs hold now is anybody's guess.
            let error = Error::device("compute", "a panic ended it after it had reused the memory of its inputs");
            self.wanted.iter().filter(|node| !node.is_ready()).for_each(|node| node.fail(&error));
        }
        self.wanted.iter().for_each(|node| node.abandon());
    }
}

/// For each captured node that has a twin, the tokens of all that the twin is made of.
type Twins = Vec<(NodeIdx, Kins)>;

fn twins(walk: &Captured) -> Twins {
    let mut twins = Twins::new();
    for (i, node) in walk.nodes.iter().enumerate() {
        if walk.way(i as NodeIdx) != GradientPath::Twin || node.tracked {
            continue;
        }
        if let Recipe::Known { twin: Some(twin), .. } = node.recipe() {
            twins.push((i as NodeIdx, tokens_below(twin)));
        }
    }
    twins
}

/// The tokens of a node that may never be computed and of all that gradients reach through it.
fn tokens_below(node: NodeRef) -> Kins {
    let mut kins = Kins::new();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut stack = vec![node];
    while let Some(node) = stack.pop() {
        if node.tracked || !node.dtype.is_float() || !seen.insert(node.serial) {
            continue;
        }
        kins.push(node.kin());
        let is_detached = node.with_expr(|expr| expr.is_identity()).unwrap_or(false);
        match node.recipe() {
            Recipe::Known { twin: Some(twin), .. } => stack.push(twin),
            Recipe::Known { op, inputs, .. } if !is_detached && !op.is_flat() => stack.extend(inputs),
            _ => {}
        }
    }
    kins
}

/// Whether an output notes what it comes from: it lets go of its inputs, and gradients pass through it.
fn notes_ancestors(walk: &Captured, output: NodeIdx) -> bool {
    !walk.nodes[output as usize].tracked && walk.way(output) != GradientPath::Ends
}

/// Gives each output that will let go of its inputs the tokens of what it comes from and what will still be there: for each
/// way down, the first node that is kept. `outputs` are in order of their places, each once.
fn note_ancestors(walk: &Captured, held: &mut [Holder], twins: &Twins, outputs: &[NodeIdx]) {
    let mut heirs: SmallVec<[NodeIdx; 4]> = SmallVec::new();
    for idx in outputs.iter().rev().filter(|idx| notes_ancestors(walk, **idx)) {
        heirs.push(*idx);
    }
    // Sixty-four at a time, one bit each.
    for heirs in heirs.chunks(64) {
        let mut lists: SmallVec<[Kins; 1]> = SmallVec::new();
        lists.resize_with(heirs.len(), Kins::new);
        ancestors(walk, held, twins, heirs, &mut lists);
        for (heir, kins) in heirs.iter().zip(lists) {
            let node = &walk.nodes[*heir as usize];
            node.note_ancestors(kins);
        }
    }
}

/// Adds the tokens of what each of up to 64 outputs comes from to the list of each; the last made comes first. Linear in
/// what lies between. Nothing is marked as reached, before and after.
fn ancestors(walk: &Captured, held: &mut [Holder], twins: &Twins, heirs: &[NodeIdx], lists: &mut [Kins]) {
    let mut n_open = heirs.len();
    let mut next_heir = 0;
    let Some(first) = heirs.first() else { return };
    for i in (0..=*first).rev() {
        if n_open == 0 {
            break;
        }
        let is_heir = heirs.get(next_heir) == Some(&i);
        let mut through = if is_heir { 1u64 << next_heir } else { 0 };
        let from_above = std::mem::take(&mut held[i as usize].reached);
        if !is_heir && from_above == 0 {
            continue;
        }
        next_heir += is_heir as usize;
        n_open -= is_heir as usize + (from_above != 0) as usize;
        let add = |lists: &mut [Kins], mask: u64, kins: &[Arc<Kin>]| {
            let chosen = lists.iter_mut().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            chosen.for_each(|(_, list)| list.extend(kins.iter().cloned()));
        };
        let is_kept = held[i as usize].kept || held[i as usize].is_output;
        if from_above != 0 && is_kept {
            let token = token_of_kept(walk, held, twins, i);
            match lists {
                [only] => only.push(token),
                _ => add(lists, from_above, &[token]),
            }
        } else {
            through |= from_above;
        }
        if through == 0 {
            continue;
        }
        match walk.way(i) {
            GradientPath::Ends | GradientPath::Source => {}
            GradientPath::Leaf => {
                add(lists, through, &living(walk.nodes[i as usize].ancestors()));
            }
            GradientPath::Twin => add(lists, through, of_twin(twins, i)),
            GradientPath::Inputs | GradientPath::Shown => {
                for input in walk.inputs(i).iter().filter(|input| walk.nodes[**input as usize].dtype.is_float()) {
                    let reached = &mut held[*input as usize].reached;
                    n_open += (*reached == 0) as usize;
                    *reached |= through;
                }
            }
        }
    }
}

fn of_twin(twins: &Twins, idx: NodeIdx) -> &[Arc<Kin>] {
    twins.binary_search_by_key(&idx, |(i, _)| *i).map_or(&[], |at| &twins[at].1)
}

/// The token of a node that is kept, which leads to all it comes from. If the node is yet to be computed, so are its
/// inputs kept; an output among them notes its own ancestors.
fn token_of_kept(walk: &Captured, held: &[Holder], twins: &Twins, idx: NodeIdx) -> Arc<Kin> {
    if walk.way(idx) == GradientPath::Leaf {
        // By far the most frequent: memory.
        let kin = walk.nodes[idx as usize].kin();
        kin.tidy();
        return kin;
    }
    let token = walk.nodes[idx as usize].kin();
    let mut stack: SmallVec<[(NodeIdx, Arc<Kin>); 8]> = SmallVec::new();
    stack.push((idx, token.clone()));
    while let Some((idx, kin)) = stack.pop() {
        let way = walk.way(idx);
        if way == GradientPath::Leaf {
            kin.tidy();
        }
        if held[idx as usize].is_output || way == GradientPath::Leaf || kin.is_known() {
            continue;
        }
        let mut from = Kins::new();
        match way {
            GradientPath::Twin => from.extend(of_twin(twins, idx).iter().cloned()),
            GradientPath::Inputs | GradientPath::Shown => {
                for input in walk.inputs(idx) {
                    let node = &walk.nodes[*input as usize];
                    // Nobody can ask for a gradient by a constant that only the graph holds, unless a function is shown it.
                    let is_nameless = walk.way(*input) == GradientPath::Source
                        && !held[*input as usize].is_held
                        && way != GradientPath::Shown;
                    if node.dtype.is_float() && !is_nameless {
                        let kin = node.kin();
                        from.push(kin.clone());
                        stack.push((*input, kin));
                    }
                }
            }
            GradientPath::Ends | GradientPath::Leaf | GradientPath::Source => {}
        }
        kin.note(from);
    }
    token
}
