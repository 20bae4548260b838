//! What lowering made of each group of a template the last time. A group is lowered from its nodes' sizes and views, its
//! numbers; where those are what they were, so are its kernels: in a loop whose lengths grow, most groups of a plan do not
//! see the length. Of the others the instructions are mostly what they were (`body/recorded.rs`). A group whose checks are
//! numbered within its plan is lowered every time.

use std::cell::RefCell;

use super::{LaunchDraft, Lowering, PlanValue};
use crate::graph::{Graph, NodeIdx, Op};
use crate::plan::ValueId;
use crate::plan::body::{Differs, GroupRecording, RecordedGroup};
use crate::plan::groups::Groups;

/// The last kernels of each group of a template.
pub struct GroupMemos {
    /// Per group, the nodes whose numbers its kernels are made from.
    nodes: Vec<Vec<NodeIdx>>,
    last: RefCell<Vec<Memo>>,
    /// The numbers of the group that is being looked at, in memory that is kept.
    now: RefCell<Vec<u64>>,
}

/// What a group was the last time.
#[derive(Default)]
struct Memo {
    numbers: Vec<u64>,
    /// Its kernels, once the same numbers have come twice: most groups of a loop that see its length never do, and copies of
    /// kernels are not made for nothing.
    lowered: Option<LoweredGroup>,
    /// How its bodies were built; None if they have to be built every time.
    recorded: Option<RecordedGroup>,
}

/// The kernels of a group, over values that are numbered within it.
struct LoweredGroup {
    values: Vec<GroupValue>,
    steps: Vec<LaunchDraft>,
}

/// A value that a group reads or writes.
#[derive(Clone)]
enum GroupValue {
    Node(NodeIdx),
    /// Work in between.
    Made(PlanValue),
}

/// How far a lowering has come.
pub(super) struct Progress {
    pub n_steps: usize,
    pub n_values: usize,
    pub n_checks: usize,
}

impl GroupMemos {
    /// Of groups that are yet to be lowered.
    pub fn new(graph: &Graph, groups: &Groups) -> GroupMemos {
        let nodes = (0..groups.groups.len() as u32).map(|number| nodes_of(graph, groups, number)).collect();
        let last = groups.groups.iter().map(|_| Memo::default()).collect();
        GroupMemos { nodes, last: RefCell::new(last), now: RefCell::default() }
    }

    /// Adds the kernels of a group to a lowering, if its numbers are what they were and its kernels are known.
    pub(super) fn replay(&self, number: u32, lowering: &mut Lowering) -> bool {
        let last = self.last.borrow();
        let memo = &last[number as usize];
        self.numbers(number, lowering.graph);
        let Some(lowered) = memo.lowered.as_ref().filter(|_| *self.now.borrow() == memo.numbers) else {
            return false;
        };
        let value = |value: &GroupValue| match value {
            GroupValue::Node(idx) => lowering.value(*idx),
            GroupValue::Made(value) => lowering.add_value(value.clone()),
        };
        let values: Vec<ValueId> = lowered.values.iter().map(value).collect();
        let placed = |ids: &[ValueId]| ids.iter().map(|v| values[*v as usize]).collect();
        lowering.steps.extend(lowered.steps.iter().map(|step| LaunchDraft {
            reads: placed(&step.reads),
            writes: placed(&step.writes),
            own_bases: step.own_bases.iter().map(|(output, base)| (*output, values[*base as usize])).collect(),
            ..step.clone()
        }));
        true
    }

    /// Lowers a group that was looked for just now: by what was recorded the last time, else afresh.
    pub(super) fn lower(&self, number: u32, lowering: &mut Lowering) {
        let before = Progress::of(lowering);
        let recorded = self.last.borrow()[number as usize].recorded.clone();
        if let Some(recorded) = recorded {
            lowering.recording = GroupRecording::Follows(recorded, 0);
            let followed = lowering.group(number, &lowering.groups.groups[number as usize]);
            lowering.recording = GroupRecording::Off;
            match followed {
                Ok(()) => return self.remember(number, lowering, &before),
                Err(Differs) => lowering.rewind(&before),
            }
        }
        lowering.recording = GroupRecording::Writes(Some(Vec::new()));
        lowering.afresh(number);
        let recorded = std::mem::take(&mut lowering.recording).into_recorded();
        self.last.borrow_mut()[number as usize].recorded = recorded;
        self.remember(number, lowering, &before);
    }

    /// Remembers the numbers of a group that was looked for just now; if they are what they were, also what was made of it
    /// since `before`.
    fn remember(&self, number: u32, lowering: &Lowering, before: &Progress) {
        let memo = &mut self.last.borrow_mut()[number as usize];
        if memo.numbers != *self.now.borrow() {
            memo.lowered = None;
            memo.numbers.clone_from(&self.now.borrow());
            return;
        }
        let steps = &lowering.steps[before.n_steps..];
        if lowering.checks.len() > before.n_checks || steps.iter().any(|step| !step.may_fail.is_empty()) {
            return;
        }
        // Values that were there before in any order, then the new ones in that in which they were made.
        let mut ids: Vec<ValueId> = Vec::new();
        for id in steps.iter().flat_map(|step| step.needs().chain(step.writes.iter().copied())) {
            if (id as usize) < before.n_values && !ids.contains(&id) {
                ids.push(id);
            }
        }
        ids.extend(before.n_values as ValueId..lowering.values.len() as ValueId);
        let value = |id: &ValueId| match lowering.nodes_of_values[*id as usize] {
            Some(idx) => GroupValue::Node(idx),
            None => GroupValue::Made(lowering.values[*id as usize].clone()),
        };
        let place = |id: &ValueId| {
            let place = ids.iter().position(|known| known == id).expect("all of them are listed");
            place as ValueId
        };
        let inside = |step: &LaunchDraft| LaunchDraft {
            reads: step.reads.iter().map(place).collect(),
            writes: step.writes.iter().map(place).collect(),
            own_bases: step.own_bases.iter().map(|(output, base)| (*output, place(base))).collect(),
            ..step.clone()
        };
        let lowered =
            LoweredGroup { values: ids.iter().map(value).collect(), steps: steps.iter().map(inside).collect() };
        memo.lowered = Some(lowered);
    }

    /// Writes the numbers of a group into `now`. How many there are for a node is structure, but for the mask of a view.
    fn numbers(&self, number: u32, graph: &Graph) {
        let mut now = self.now.borrow_mut();
        now.clear();
        for idx in &self.nodes[number as usize] {
            let node = &graph.nodes[*idx as usize];
            now.extend(node.shape.iter().map(|size| *size as u64));
            if let Op::Const(_) = node.op {
                now.push(node.slot as u64);
            }
            if let Op::View(view) | Op::Pad(view) = &node.op {
                let rank = view.shape.rank();
                now.extend(view.strides[..rank].iter().map(|stride| *stride as u64));
                now.push(view.offset as u64);
                for (low, high) in view.mask.iter().flat_map(|mask| &mask[..rank]) {
                    now.extend([*low as u64, *high as u64]);
                }
            }
        }
    }
}

impl Progress {
    /// Of a lowering, now.
    pub(super) fn of(lowering: &Lowering) -> Progress {
        Progress { n_steps: lowering.steps.len(), n_values: lowering.values.len(), n_checks: lowering.checks.len() }
    }
}

/// All nodes that lowering a group may look at: from what leaves it back to memory, with the concatenations it is part of.
fn nodes_of(graph: &Graph, groups: &Groups, number: u32) -> Vec<NodeIdx> {
    let group = &groups.groups[number as usize];
    let mut nodes: Vec<NodeIdx> = Vec::new();
    let mut seen = vec![false; graph.nodes.len()];
    let mut add = |idx: NodeIdx, nodes: &mut Vec<NodeIdx>| {
        if !std::mem::replace(&mut seen[idx as usize], true) {
            nodes.push(idx);
        }
    };
    add(group.domain, &mut nodes);
    for store in &group.stores {
        add(store.value, &mut nodes);
    }
    // Each is opened once; memory is not opened.
    let mut next = 0;
    while let Some(&idx) = nodes.get(next) {
        let is_memory = matches!(graph.nodes[idx as usize].op, Op::Data) || groups.is_memory_for(number, idx);
        if !is_memory || groups.group_of[idx as usize] == Some(number) {
            graph.nodes[idx as usize].inputs.iter().for_each(|input| add(*input, &mut nodes));
        }
        next += 1;
    }
    for whole in group.stores.iter().filter_map(|store| store.part_of).map(|part| part.whole) {
        add(whole, &mut nodes);
        graph.nodes[whole as usize].inputs.iter().for_each(|part| add(*part, &mut nodes));
    }
    nodes
}
