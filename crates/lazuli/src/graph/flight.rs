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
use super::kin::{FEW, Kin, Kins, living, look_at};
use super::node::{Buffer, Buffers, NodeRef, NodeState, Recipe};
use crate::error::Error;
use crate::fast_hash::FastMap;

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

/// What the twin of a captured node is made of: captured nodes before it, through which gradients pass as they do through its own
/// inputs, and the tokens of the nodes between them and the twin.
#[derive(Default)]
struct TwinPaths {
    captured: SmallVec<[NodeIdx; 4]>,
    tokens: Kins,
}

type Twins = Vec<(NodeIdx, TwinPaths)>;

fn twins(walk: &Captured) -> Twins {
    let mut twins = Twins::new();
    for (i, node) in walk.nodes.iter().enumerate() {
        if walk.way(i as NodeIdx) != GradientPath::Twin || node.tracked {
            continue;
        }
        if let Recipe::Known { twin: Some(twin), .. } = node.recipe() {
            twins.push((i as NodeIdx, paths_below(walk, i as NodeIdx, twin)));
        }
    }
    twins
}

/// The paths of gradients down from a node that may never be computed, the twin of captured node `of`. They stop at captured
/// nodes: walking on would visit all that is below once for every twin above.
fn paths_below(walk: &Captured, of: NodeIdx, twin: NodeRef) -> TwinPaths {
    let mut paths = TwinPaths::default();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut stack = vec![twin];
    while let Some(node) = stack.pop() {
        look_at(1);
        if node.tracked || !node.dtype.is_float() || !seen.insert(node.serial) {
            continue;
        }
        if let Some(place) = walk.place_of(&node).filter(|place| *place < of) {
            paths.captured.push(place);
            continue;
        }
        paths.tokens.push(node.kin());
        let is_detached = node.with_expr(|expr| expr.is_identity()).unwrap_or(false);
        match node.recipe() {
            Recipe::Known { twin: Some(twin), .. } => stack.push(twin),
            Recipe::Known { op, inputs, .. } if !is_detached && !op.is_flat() => stack.extend(inputs),
            _ => {}
        }
    }
    paths
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
        let mut found = FoundTokens::default();
        ancestors(walk, held, twins, heirs, &mut found);
        for (heir, kins) in heirs.iter().zip(found.lists(heirs.len())) {
            let node = &walk.nodes[*heir as usize];
            node.note_ancestors(kins);
        }
    }
}

/// Tokens that were found for up to 64 outputs, with a bit for each output that comes from them. Several outputs may reach a
/// token, each by many ways: it is here once.
#[derive(Default)]
struct FoundTokens {
    tokens: SmallVec<[(Arc<Kin>, u64); 4]>,
    places: FastMap<*const Kin, usize>,
}

impl FoundTokens {
    fn add(&mut self, mask: u64, kins: impl IntoIterator<Item = Arc<Kin>>) {
        for kin in kins {
            look_at(1);
            // Few are compared one by one.
            let place = match self.places.is_empty() {
                true => self.tokens.iter().position(|(known, _)| Arc::ptr_eq(known, &kin)),
                false => self.places.get(&Arc::as_ptr(&kin)).copied(),
            };
            if let Some(place) = place {
                self.tokens[place].1 |= mask;
                continue;
            }
            if self.tokens.len() == FEW {
                self.places.extend(self.tokens.iter().enumerate().map(|(i, (kin, _))| (Arc::as_ptr(kin), i)));
            }
            if self.tokens.len() >= FEW {
                self.places.insert(Arc::as_ptr(&kin), self.tokens.len());
            }
            self.tokens.push((kin, mask));
        }
    }

    /// The tokens of each of so many outputs.
    fn lists(self, n_outputs: usize) -> SmallVec<[Kins; 1]> {
        let mut lists: SmallVec<[Kins; 1]> = SmallVec::new();
        lists.resize_with(n_outputs, Kins::new);
        for (kin, mut mask) in self.tokens {
            while mask != 0 {
                look_at(1);
                lists[mask.trailing_zeros() as usize].push(kin.clone());
                mask &= mask - 1;
            }
        }
        lists
    }
}

/// Finds the tokens of the ancestors of up to 64 outputs, in one pass from the last node to the first: linear in the nodes between.
/// No node is marked as reached before and after.
fn ancestors(walk: &Captured, held: &mut [Holder], twins: &Twins, heirs: &[NodeIdx], found: &mut FoundTokens) {
    let (mut n_open, mut leaves) = (heirs.len(), LeafPlaces::default());
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
        let is_kept = held[i as usize].kept || held[i as usize].is_output;
        if from_above != 0 && is_kept {
            found.add(from_above, [token_of_kept(walk, held, twins, i)]);
        } else {
            through |= from_above;
        }
        if through == 0 {
            continue;
        }
        let inputs = match walk.way(i) {
            GradientPath::Ends | GradientPath::Source => &[],
            GradientPath::Leaf => {
                let kins = living(walk.nodes[i as usize].ancestors());
                // An ancestor that is itself a leaf of this walk is visited later and adds its own ancestors then. Caches of
                // several layers are ancestors of each other: otherwise each would add those of all.
                for kin in kins {
                    match leaves.place_of(walk, &kin).filter(|place| *place < i) {
                        Some(place) => reach(&mut held[place as usize], through, &mut n_open),
                        None => found.add(through, [kin]),
                    }
                }
                &[]
            }
            GradientPath::Twin => match of_twin(twins, i) {
                Some(paths) => {
                    found.add(through, paths.tokens.iter().cloned());
                    &paths.captured[..]
                }
                None => &[],
            },
            GradientPath::Inputs | GradientPath::Shown => walk.inputs(i),
        };
        for input in inputs.iter().filter(|input| walk.nodes[**input as usize].dtype.is_float()) {
            reach(&mut held[*input as usize], through, &mut n_open);
        }
    }
}

/// Marks a node as an ancestor of some outputs; if it was none before, one more node is to be visited.
fn reach(holder: &mut Holder, by: u64, n_open: &mut usize) {
    *n_open += (holder.reached == 0) as usize;
    holder.reached |= by;
}

/// The leaves of a walk, sorted by serial number when one is first searched for.
#[derive(Default)]
struct LeafPlaces(Option<Vec<(u64, NodeIdx)>>);

impl LeafPlaces {
    /// Which leaf a token stands for, if it is one.
    fn place_of(&mut self, walk: &Captured, kin: &Kin) -> Option<NodeIdx> {
        let places = self.0.get_or_insert_with(|| {
            let mut places: Vec<_> =
                walk.leaves.iter().map(|leaf| (walk.nodes[*leaf as usize].serial, *leaf)).collect();
            places.sort_unstable();
            places
        });
        places.binary_search_by_key(&kin.serial, |(serial, _)| *serial).ok().map(|at| places[at].1)
    }
}

fn of_twin(twins: &Twins, idx: NodeIdx) -> Option<&TwinPaths> {
    twins.binary_search_by_key(&idx, |(i, _)| *i).ok().map(|at| &twins[at].1)
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
        look_at(1);
        let mut from = Kins::new();
        let inputs = match way {
            GradientPath::Twin => match of_twin(twins, idx) {
                Some(paths) => {
                    from.extend(paths.tokens.iter().cloned());
                    &paths.captured[..]
                }
                None => &[],
            },
            GradientPath::Inputs | GradientPath::Shown => walk.inputs(idx),
            GradientPath::Ends | GradientPath::Leaf | GradientPath::Source => &[],
        };
        for input in inputs {
            let node = &walk.nodes[*input as usize];
            // Nobody can ask for a gradient by a constant that only the graph holds, unless a function is shown it.
            let is_nameless = walk.way(*input) == GradientPath::Source
                && !held[*input as usize].is_held
                && way == GradientPath::Inputs;
            if node.dtype.is_float() && !is_nameless {
                let kin = node.kin();
                from.push(kin.clone());
                stack.push((*input, kin));
            }
        }
        kin.note(from);
    }
    token
}
