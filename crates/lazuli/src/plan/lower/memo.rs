//! What lowering made of each group of a template the last time. A group is lowered from its nodes' sizes and views, its
//! numbers: its instructions are mostly what they were (`body/recorded.rs`), and where all numbers are what they were, so is
//! all that is made of them: in a loop whose lengths grow, most groups of a plan do not see the length. A group whose checks
//! are numbered within its plan is lowered every time.

use std::cell::RefCell;

use super::{Finished, Lowering};
use crate::graph::{Graph, NodeIdx, Op};
use crate::kernel::Args;
use crate::plan::body::{Differs, GroupRecording, RecordedGroup};
use crate::plan::groups::Groups;

/// What is known of each group of a template.
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
    /// The numbers of its kernels, once the same numbers have come twice: most groups of a loop that see its length never do,
    /// and copies are not made for nothing.
    args: Option<Vec<Args>>,
    /// How its bodies were built; None if they have to be built every time.
    recorded: Option<RecordedGroup>,
}

/// How far a lowering has come.
pub(super) struct Progress {
    pub n_finished: usize,
    pub n_values: usize,
    pub n_checks: usize,
    pub n_evaluations: usize,
}

impl GroupMemos {
    /// Of groups that are yet to be lowered.
    pub fn new(graph: &Graph, groups: &Groups) -> GroupMemos {
        let nodes = (0..groups.groups.len() as u32).map(|number| nodes_of(graph, groups, number)).collect();
        let last = groups.groups.iter().map(|_| Memo::default()).collect();
        GroupMemos { nodes, last: RefCell::new(last), now: RefCell::default() }
    }

    /// Lowers a group: by what was recorded the last time, else afresh. An error only where kernels are known and one of them
    /// is another now.
    pub(super) fn lower(&self, number: u32, lowering: &mut Lowering) -> Result<(), Differs> {
        self.numbers(number, lowering.graph);
        let memo = &mut self.last.borrow_mut()[number as usize];
        let is_same = *self.now.borrow() == memo.numbers;
        if let (true, Some(known), Finished::Numbers { args, .. }) = (is_same, &memo.args, &mut lowering.finished) {
            args.extend_from_slice(known);
            return Ok(());
        }
        let before = Progress::of(lowering);
        self.build(number, memo, lowering, &before)?;
        memo.args = None;
        match &lowering.finished {
            _ if !is_same => memo.numbers.clone_from(&self.now.borrow()),
            Finished::Numbers { drafts, args } => {
                let own = before.n_finished..args.len();
                let checks = lowering.checks.len() > before.n_checks;
                if !checks && drafts[own.clone()].iter().all(|draft| draft.may_fail.is_empty()) {
                    memo.args = Some(args[own].to_vec());
                }
            }
            Finished::Drafts(_) => {}
        }
        Ok(())
    }

    fn build(&self, number: u32, memo: &mut Memo, lowering: &mut Lowering, before: &Progress) -> Result<(), Differs> {
        if let Some(recorded) = memo.recorded.clone() {
            lowering.recording = GroupRecording::Follows(recorded, 0);
            let followed = lowering.lower_group(number);
            lowering.recording = GroupRecording::Off;
            if followed.is_ok() || lowering.makes_numbers() {
                return followed;
            }
            lowering.rewind(before);
        }
        lowering.recording = GroupRecording::Writes(Some(Vec::new()));
        let built = lowering.lower_group(number);
        memo.recorded = std::mem::take(&mut lowering.recording).into_recorded();
        built
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
        let (n_values, n_checks) = (lowering.values.len(), lowering.checks.len());
        let n_evaluations = lowering.evaluations.as_ref().map_or(0, Vec::len);
        Progress { n_finished: lowering.n_finished(), n_values, n_checks, n_evaluations }
    }
}

/// All nodes whose sizes and views lowering a group may look at: from what leaves it back to memory, with the concatenations it
/// is part of. Those of elementwise ops are left out, for they have the sizes of their inputs.
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
    let mut is_implied = vec![false; graph.nodes.len()];
    while let Some(&idx) = nodes.get(next) {
        let is_memory = matches!(graph.nodes[idx as usize].op, Op::Data) || groups.is_memory_for(number, idx);
        if !is_memory || groups.group_of[idx as usize] == Some(number) {
            let node = &graph.nodes[idx as usize];
            node.inputs.iter().for_each(|input| add(*input, &mut nodes));
            is_implied[idx as usize] = node.op.is_elementwise() && !node.inputs.is_empty();
        }
        next += 1;
    }
    for whole in group.stores.iter().filter_map(|store| store.part_of).map(|part| part.whole) {
        add(whole, &mut nodes);
        graph.nodes[whole as usize].inputs.iter().for_each(|part| add(*part, &mut nodes));
    }
    nodes.retain(|idx| !is_implied[*idx as usize]);
    nodes
}
