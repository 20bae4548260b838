//! Decides which nodes share a kernel. Knows the graph, its sizes only as answers to named questions (`edges`), and the
//! limits; nothing about instructions or memory.
//!
//! Nodes are taken in order, and each joins the kernels that make its inputs where it can, so that values pass in
//! registers instead of memory. A group is a kernel in the making. What is not made in the group where it is wanted
//! is stored, or, if that is cheaper, made again ([`Availability::Inline`]).
//!
//! Groups never wait for each other in a circle, because each has a level: it loads only what groups of lower levels
//! store. A group that nobody loads from yet may still move up; one that somebody does is fixed.

mod choose_group;
mod load;
mod chained;
mod made;

use super::Limits;
use super::attention::ChainedProduct;
use super::checks::Checks;
use super::edges::{AskedGraph, Edge, OperandOf};
use super::groups::{Form, Group, Groups, StoredNode, StoredPart};
use super::stages::NodeStages;
use crate::graph::{NodeIdx, Op};
use crate::ops;

/// How a node may be had by those that want it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Availability {
    /// Memory, or something cheap made of it wherever it is wanted: views, constants, a few operations on one load.
    Inline { cost: u32, n_loads: u32, level: u32 },
    /// Made in this group (or in one it was merged into).
    Member(u32),
}

/// Whether a kernel that commits also makes what is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    /// Where it can.
    Join,
    /// Never: what comes before commits and what comes after them is made by different kernels.
    Apart,
}

/// What of a draft has its place in a stage, and before or after checks and commits.
#[derive(Clone, Copy, Debug, Default)]
struct DraftPlace {
    stage: u32,
    may_fail: bool,
    commits: bool,
    early: bool,
    late: bool,
}

impl DraftPlace {
    /// That of both together.
    fn and(self, other: DraftPlace) -> DraftPlace {
        DraftPlace {
            stage: self.stage,
            may_fail: self.may_fail || other.may_fail,
            commits: self.commits || other.commits,
            early: self.early || other.early,
            late: self.late || other.late,
        }
    }

    /// That of both together; None if one kernel cannot have both.
    fn with(self, other: DraftPlace, commits: Commits) -> Option<DraftPlace> {
        let both = self.and(other);
        let is_mixed = commits == Commits::Apart && both.early && both.late;
        // All of a check must have been made before any of what depends on it is stored.
        let checks_itself = both.may_fail && both.commits;
        (!checks_itself && !is_mixed && self.stage == other.stage).then_some(both)
    }
}

struct Draft {
    form: Form,
    domain: NodeIdx,
    level: u32,
    /// Whether another group loads from it, so that its level is fixed.
    level_is_fixed: bool,
    n_insts: usize,
    loads: Vec<NodeIdx>,
    /// Edges from members to nodes that are not members (yet), outputs included.
    n_pending: usize,
    /// Whether it looks something up, or calls a user's function: neither is made where there is no element.
    may_fail: bool,
    place: DraftPlace,
    stores: Vec<StoredNode>,
    /// The operands that the kernel of a product makes: see [`Group::made`].
    made: [Option<NodeIdx>; 2],
    /// Another draft this one became part of.
    merged_into: Option<u32>,
}

/// The most operations, in additions, worth doing again in another kernel rather than storing the result.
const CHEAP: u32 = 4;
/// The same, for single elements.
const CHEAP_SCALAR: u32 = 64;

/// Groups the nodes of a graph.
pub fn fuse(graph: &AskedGraph, limits: &Limits, checks: &Checks, stages: &NodeStages, commits: Commits) -> Groups {
    let n_nodes = graph.len();
    let mut uses = vec![0usize; n_nodes];
    let mut wanted = vec![false; n_nodes];
    for idx in 0..n_nodes as NodeIdx {
        graph.inputs(idx).iter().for_each(|i| uses[*i as usize] += 1);
    }
    for output in graph.outputs() {
        uses[*output as usize] += 1;
        wanted[*output as usize] = true;
    }
    let (chained, is_chained, order) = graph.chained();
    let mut part_of: Vec<Option<ChainedPart>> = vec![None; n_nodes];
    for (number, found) in chained.iter().enumerate().filter(|(number, _)| is_chained[*number]) {
        let inside = found.interior.iter().chain(&found.row_nodes);
        inside.for_each(|idx| part_of[*idx as usize] = Some(ChainedPart::Inside));
        part_of[found.root as usize] = Some(ChainedPart::Root(number as u32));
    }
    let nothing = Availability::Inline { cost: 0, n_loads: 0, level: 0 };
    let mut fuser = Fuser {
        chained,
        part_of,
        graph,
        limits,
        checks,
        stages,
        commits,
        only_reader: made::only_readers(graph, &uses),
        uses,
        wanted,
        states: vec![nothing; n_nodes],
        stored: vec![false; n_nodes],
        reasons: vec![None; n_nodes],
        only_contracted: only_contracted(graph),
        drafts: Vec::new(),
    };
    for idx in order {
        fuser.states[idx as usize] = fuser.place(idx);
        if fuser.is_routine(idx) {
            fuser.store(idx, "a hand-written kernel is not fused with others");
        }
    }
    for &output in graph.outputs() {
        fuser.store_output(output);
    }
    fuser.finish()
}

/// What a node is to the chained products of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ChainedPart {
    /// Computed by the kernel of one or several of them.
    Inside,
    /// The outer product of this one.
    Root(u32),
}

struct Fuser<'a> {
    chained: &'a [ChainedProduct],
    /// Per node.
    part_of: Vec<Option<ChainedPart>>,
    graph: &'a AskedGraph<'a>,
    limits: &'a Limits,
    checks: &'a Checks,
    stages: &'a NodeStages,
    commits: Commits,
    uses: Vec<usize>,
    /// For each node its reader, if it is read once and not wanted itself.
    only_reader: Vec<Option<NodeIdx>>,
    wanted: Vec<bool>,
    states: Vec<Availability>,
    stored: Vec<bool>,
    reasons: Vec<Option<&'static str>>,
    /// Per node, whether only contractions read it.
    only_contracted: Vec<bool>,
    drafts: Vec<Draft>,
}

impl Fuser<'_> {
    /// The draft a member belongs to now.
    fn find(&mut self, mut draft: u32) -> u32 {
        while let Some(next) = self.drafts[draft as usize].merged_into {
            // Halve the path for those who come later.
            if let Some(after) = self.drafts[next as usize].merged_into {
                self.drafts[draft as usize].merged_into = Some(after);
            }
            draft = next;
        }
        draft
    }

    /// The draft that makes a node, if it is made in one.
    fn draft_of(&mut self, idx: NodeIdx) -> Option<u32> {
        match self.states[idx as usize] {
            Availability::Member(draft) => Some(self.find(draft)),
            Availability::Inline { .. } => None,
        }
    }

    /// Where a node is made.
    fn place(&mut self, idx: NodeIdx) -> Availability {
        match self.part_of[idx as usize] {
            Some(ChainedPart::Root(number)) => return self.place_chained(idx, number),
            // Nobody asks for it before the root is placed.
            Some(ChainedPart::Inside) => return Availability::Inline { cost: 0, n_loads: 0, level: 0 },
            None => {}
        }
        let inputs = self.graph.inputs(idx);
        match self.graph.op(idx) {
            Op::Data => {
                let is_many = self.graph.n_axes(idx) > 0 && !self.graph.is_empty(idx);
                Availability::Inline { cost: 0, n_loads: is_many as u32, level: 0 }
            }
            // Blocks are widened while they are read.
            Op::Widen(_) => Availability::Inline { cost: 0, n_loads: 1, level: 0 },
            Op::View(_) => self.place_view(idx),
            Op::Reduce(..) => self.place_reduce(idx),
            Op::Matmul => self.place_matmul(idx),
            Op::Routine(..) => {
                let level = inputs.iter().map(|i| self.load_whole(*i)).max().unwrap_or(0);
                self.open(idx, Form::Routine(idx), level)
            }
            Op::Cat(_) => self.place_cat(idx),
            // Memory seen from another place on.
            Op::RowsAt(_) => {
                let level = self.load_operand(inputs[0], OperandOf::RowsAt);
                Availability::Inline { cost: 0, n_loads: 1, level }
            }
            Op::WriteRows(_) => self.place_write(idx),
            _ => self.place_elementwise(idx),
        }
    }

    /// A new group with `idx` as its first member.
    fn open(&mut self, idx: NodeIdx, form: Form, level: u32) -> Availability {
        let mut loads = Vec::new();
        self.graph.inputs(idx).iter().for_each(|i| self.free_loads(*i, &mut loads));
        self.drafts.push(Draft {
            form,
            domain: idx,
            level,
            level_is_fixed: false,
            n_insts: 1 + self.free_cost(idx) as usize,
            loads,
            n_pending: self.uses[idx as usize],
            may_fail: matches!(self.graph.op(idx), Op::Gather(..) | Op::Custom(_)),
            place: self.place_of(idx),
            stores: Vec::new(),
            made: [None; 2],
            merged_into: None,
        });
        Availability::Member(self.drafts.len() as u32 - 1)
    }

    /// Where a node has its place, stages, checks and commits considered.
    fn place_of(&self, idx: NodeIdx) -> DraftPlace {
        let stage = self.stages.stage(idx);
        if !self.checks.any_commits {
            return DraftPlace { stage, ..DraftPlace::default() };
        }
        let (may_fail, late) = (self.checks.may_fail[idx as usize], self.checks.late[idx as usize]);
        DraftPlace { stage, may_fail, commits: matches!(self.graph.op(idx), Op::Commit), early: !late, late }
    }

    /// Whether a node is of the stage that a group is made in.
    fn is_same_stage(&self, draft: u32, idx: NodeIdx) -> bool {
        self.drafts[draft as usize].place.stage == self.stages.stage(idx)
    }

    /// Why a member of a group is stored for a node that does not join it: if nothing else keeps them apart, this.
    fn why_apart(&self, member: NodeIdx, idx: NodeIdx, otherwise: &'static str) -> &'static str {
        if self.stages.stage(member) == self.stages.stage(idx) { otherwise } else { "a later stage needs it, too" }
    }

    /// The free operations that come along with a node.
    fn free_cost(&self, idx: NodeIdx) -> u32 {
        let cost = |i: &NodeIdx| match self.states[*i as usize] {
            Availability::Inline { cost, .. } => 1 + cost,
            Availability::Member(_) => 0,
        };
        self.graph.inputs(idx).iter().map(cost).sum()
    }

    /// The stored nodes and inputs that a free node loads. Free nodes are small, so the walk is too.
    fn free_loads(&self, idx: NodeIdx, loads: &mut Vec<NodeIdx>) {
        let is_memory = matches!(self.graph.op(idx), Op::Data) || self.stored[idx as usize];
        match self.states[idx as usize] {
            _ if is_memory => {
                if !loads.contains(&idx) {
                    loads.push(idx);
                }
            }
            Availability::Inline { .. } => self.graph.inputs(idx).iter().for_each(|i| self.free_loads(*i, loads)),
            Availability::Member(_) => {}
        }
    }

    fn place_view(&mut self, idx: NodeIdx) -> Availability {
        let source = self.graph.inputs(idx)[0];
        let Some(draft) = self.draft_of(source) else {
            let Availability::Inline { cost, n_loads, level } = self.states[source as usize] else { unreachable!() };
            // Windows over a pad: to ask of each element of each window whether it is inside costs more than to store it.
            let is_pad = matches!(self.graph.op(source), Op::Pad(_)) && !self.stored[source as usize];
            if is_pad && self.limits.fuse && self.graph.ask(Edge::Repeats(idx)) {
                self.states[source as usize] = self.open(source, Form::Map, level);
                let level = self.store(source, "it is read several times with fill around it");
                return Availability::Inline { cost: 0, n_loads: 1, level };
            }
            return Availability::Inline { cost, n_loads, level };
        };
        // The same elements in the same order: still the same values of the same kernel.
        let stays = self.limits.fuse && !self.is_routine(source) && self.graph.ask(Edge::Reshape(idx));
        let same_stage = self.is_same_stage(draft, idx);
        if same_stage && (stays || self.broadcasts_rows(draft, idx)) {
            return self.join(idx, draft, 1);
        }
        if same_stage && !self.only_contracted[idx as usize] && self.can_look_through(draft, source, idx) {
            let state = self.join(idx, draft, 1);
            self.drafts[draft as usize].domain = idx;
            return state;
        }
        let why = self.why_apart(source, idx, "it is read in another order than it is made in");
        let level = self.store(source, why);
        Availability::Inline { cost: 0, n_loads: 1, level }
    }

    /// Whether a view spreads a reduction's result back over what was reduced.
    fn broadcasts_rows(&self, draft: u32, view: NodeIdx) -> bool {
        let Form::Reduce { first, split: false } = self.drafts[draft as usize].form else { return false };
        self.limits.fuse && self.graph.ask(Edge::SpreadsRows { view, reduce: first })
    }

    /// Whether all of a group may be seen through a view: nobody else wants any of it, and it is not made more often.
    fn can_look_through(&self, draft: u32, source: NodeIdx, idx: NodeIdx) -> bool {
        let draft = &self.drafts[draft as usize];
        let n_edges = self.graph.inputs(idx).iter().filter(|i| **i == source).count();
        // What is made in vain under a thin fill costs less than to store what is inside and read it again.
        let is_pad = matches!(self.graph.op(idx), Op::Pad(_));
        self.limits.fuse
            && draft.form == Form::Map
            && !draft.level_is_fixed
            && draft.n_pending == n_edges
            && (!draft.may_fail || !is_pad)
            && (draft.n_insts <= CHEAP as usize
                || self.graph.ask(Edge::NoMore(idx, source))
                || is_pad && self.graph.ask(Edge::ThinFill(idx)))
    }

    fn place_elementwise(&mut self, idx: NodeIdx) -> Availability {
        let op = self.graph.op(idx);
        let mut inputs = self.graph.inputs(idx);
        let mut level = 0;
        if let Op::Gather(..) = op {
            level = self.load_strided(inputs[0]);
            inputs = &inputs[1..];
        }
        // What only free things go into may be free itself.
        let mut cost = ops::cost(op) + matches!(op, Op::Gather(..)) as u32 * 2 * CHEAP;
        let mut n_loads = matches!(op, Op::Gather(..)) as u32;
        let mut drafts: Vec<u32> = Vec::new();
        for input in inputs {
            match self.states[*input as usize] {
                Availability::Inline { cost: c, n_loads: n, level: l } => {
                    cost += c;
                    n_loads += n;
                    level = level.max(l);
                }
                Availability::Member(draft) => {
                    let draft = self.find(draft);
                    if !drafts.contains(&draft) {
                        drafts.push(draft);
                    }
                }
            }
        }
        if inputs.len() == 2 && inputs[0] == inputs[1] {
            n_loads /= 2; // x ∘ x loads x once
        }
        let cheap = if n_loads == 0 { CHEAP_SCALAR } else { CHEAP };
        let constant = matches!(op, Op::Const(_) | Op::Index);
        if drafts.is_empty() {
            // What is made again wherever it is wanted has no place before or after anything, and in no stage.
            let is_placed = matches!(op, Op::Commit) || self.checks.may_fail[idx as usize];
            // Small floats are widened while they are read, by products too: nobody stores them as large ones.
            let is_placed = is_placed || self.stages.is_shared(idx) && !self.graph.widens(idx);
            let is_cheap = cost <= cheap && n_loads <= 1 && !self.wanted[idx as usize] && !is_placed;
            let free = constant || (self.limits.fuse && is_cheap);
            if free {
                return Availability::Inline { cost, n_loads, level };
            }
            return self.open(idx, Form::Map, level);
        }
        // A pad sees its input through a view; everything else reads the element it writes.
        if let Op::Pad(_) = op {
            return self.place_pad(idx, drafts[0], level);
        }
        let is_left = self.is_left_to_product(idx, &drafts);
        let group = if is_left { None } else { self.choose_group(idx, inputs, &drafts, level) };
        match group {
            Some(group) => self.join(idx, group, 1),
            None => {
                let otherwise = match is_left {
                    true => "the product that reads what follows makes that itself",
                    false => "the kernel that makes it cannot take in what follows",
                };
                for input in inputs {
                    if self.draft_of(*input).is_some() {
                        let why = self.why_apart(*input, idx, otherwise);
                        level = level.max(self.store(*input, why));
                    }
                }
                self.open(idx, Form::Map, level)
            }
        }
    }

    fn place_pad(&mut self, idx: NodeIdx, draft: u32, level: u32) -> Availability {
        let source = self.graph.inputs(idx)[0];
        let can_rise = self.drafts[draft as usize].level >= level || !self.drafts[draft as usize].level_is_fixed;
        let goes_there = self.drafts[draft as usize].place.with(self.place_of(idx), self.commits).is_some();
        if self.draft_of(source) == Some(draft) && can_rise && goes_there && self.can_look_through(draft, source, idx) {
            let state = self.join(idx, draft, 3);
            let draft = &mut self.drafts[draft as usize];
            draft.domain = idx;
            draft.level = draft.level.max(level);
            return state;
        }
        let mut level = level;
        for &input in self.graph.inputs(idx) {
            if self.draft_of(input).is_some() {
                level = level.max(self.store(input, "it is read with fill around it"));
            }
        }
        // Memory with fill around it is as cheap to have as memory.
        let fill = self.graph.inputs(idx)[1];
        match self.states[fill as usize] {
            Availability::Inline { cost, n_loads: 0, .. } if self.limits.fuse && !self.wanted[idx as usize] => {
                Availability::Inline { cost: cost + ops::cost(self.graph.op(idx)), n_loads: 1, level }
            }
            _ => self.open(idx, Form::Map, level),
        }
    }

    fn place_reduce(&mut self, idx: NodeIdx) -> Availability {
        let x = self.graph.inputs(idx)[0];
        let split = self.graph.ask(Edge::LongReduce(idx));
        let form = Form::Reduce { first: idx, split };
        let Some(draft) = self.draft_of(x) else {
            let Availability::Inline { level, .. } = self.states[x as usize] else { unreachable!() };
            return self.open(idx, form, level);
        };
        let d = &self.drafts[draft as usize];
        let fits = d.n_insts < self.limits.max_insts
            && match d.form {
                // A group whose values are wanted elsewhere too can store them on the way, unless it is cut in pieces.
                Form::Map => {
                    (!split || (d.stores.is_empty() && d.n_pending == 1))
                        && (d.domain == x || self.graph.ask(Edge::SameCount(d.domain, x)))
                }
                Form::Reduce { first, split: false } => !split && self.same_reduce(first, idx),
                _ => false,
            };
        if self.limits.fuse && fits && self.is_same_stage(draft, idx) {
            let state = self.join(idx, draft, 1);
            let draft = &mut self.drafts[draft as usize];
            if draft.form == Form::Map {
                draft.form = form;
            }
            draft.domain = x;
            return state;
        }
        let why = self.why_apart(x, idx, "a reduction over other axes needs all of it first");
        let level = self.store(x, why);
        self.open(idx, form, level)
    }

    fn place_cat(&mut self, idx: NodeIdx) -> Availability {
        let mut level = 0;
        for (part, &input) in self.graph.inputs(idx).iter().enumerate() {
            let part_of = Some(StoredPart { whole: idx, part: part as u32 });
            if self.graph.is_empty(input) {
                continue;
            }
            // A part that a kernel makes is stored by it where it belongs; for others there is a kernel that copies.
            let draft = match self.draft_of(input) {
                Some(draft) if self.limits.fuse && !self.is_routine(input) => draft,
                _ => self.open_copy(input),
            };
            let draft = &mut self.drafts[draft as usize];
            draft.stores.push(StoredNode { value: input, part_of });
            draft.level_is_fixed = true;
            level = level.max(draft.level + 1);
        }
        self.stored[idx as usize] = true;
        Availability::Inline { cost: 0, n_loads: 1, level }
    }

    /// Rows are stored into what they are written into by the kernel that makes them, where it can come after all of that;
    /// else by a kernel that copies them.
    fn place_write(&mut self, idx: NodeIdx) -> Availability {
        let inputs = self.graph.inputs(idx);
        let (base, rows) = (inputs[0], inputs[1]);
        let level = self.load_whole(base);
        let draft = self.draft_of(rows).filter(|draft| {
            let d = &self.drafts[*draft as usize];
            let comes_after = d.level >= level || !d.level_is_fixed;
            let goes_there = d.place.with(self.place_of(idx), self.commits).is_some();
            self.limits.fuse && !self.is_routine(rows) && comes_after && goes_there
        });
        let (draft, place) = (draft.unwrap_or_else(|| self.open_copy(rows)), self.place_of(idx));
        let draft = &mut self.drafts[draft as usize];
        draft.stores.push(StoredNode { value: rows, part_of: Some(StoredPart { whole: idx, part: 1 }) });
        draft.level = draft.level.max(level);
        draft.level_is_fixed = true;
        draft.place = draft.place.and(place);
        let level = draft.level + 1;
        self.stored[idx as usize] = true;
        Availability::Inline { cost: 0, n_loads: 1, level }
    }

    /// A new group that reads one value and writes it elsewhere; the value stays made where it is.
    fn open_copy(&mut self, idx: NodeIdx) -> u32 {
        let level = match self.states[idx as usize] {
            Availability::Inline { level, .. } => level,
            Availability::Member(_) => self.store(idx, "it is copied into a larger value"),
        };
        let Availability::Member(draft) = self.open(idx, Form::Map, level) else { unreachable!("a group was opened") };
        let mut loads = Vec::new();
        self.free_loads(idx, &mut loads);
        self.drafts[draft as usize].loads = loads;
        draft
    }

    fn is_routine(&self, idx: NodeIdx) -> bool {
        matches!(self.graph.op(idx), Op::Routine(..))
    }

    fn store_output(&mut self, idx: NodeIdx) {
        if self.stored[idx as usize] || self.memory_of(idx).is_some() {
            return;
        }
        if let Availability::Inline { level, .. } = self.states[idx as usize] {
            self.states[idx as usize] = self.open(idx, Form::Map, level);
        }
        self.stored[idx as usize] = true;
        let draft = self.draft_of(idx).expect("just made one");
        self.drafts[draft as usize].stores.push(StoredNode { value: idx, part_of: None });
    }

    fn finish(mut self) -> Groups {
        let mut number = vec![None; self.drafts.len()];
        let mut groups = Vec::new();
        for (i, draft) in self.drafts.iter_mut().enumerate() {
            if draft.merged_into.is_none() && !draft.stores.is_empty() {
                number[i] = Some(groups.len() as u32);
                groups.push(Group {
                    form: draft.form,
                    domain: draft.domain,
                    level: draft.level,
                    stage: draft.place.stage,
                    stores: std::mem::take(&mut draft.stores),
                    made: draft.made,
                });
            }
        }
        let mut group_of = Vec::with_capacity(self.states.len());
        for idx in 0..self.states.len() as NodeIdx {
            group_of.push(self.draft_of(idx).and_then(|d| number[d as usize]));
        }
        Groups { groups, group_of, stored: self.stored, reasons: self.reasons }
    }
}

/// Per node, whether all that read it are contractions, which see it through strides anyway.
fn only_contracted(graph: &AskedGraph) -> Vec<bool> {
    let mut only = vec![true; graph.len()];
    for idx in (0..graph.len() as NodeIdx).filter(|idx| !matches!(graph.op(*idx), Op::Matmul)) {
        graph.inputs(idx).iter().for_each(|i| only[*i as usize] = false);
    }
    graph.outputs().iter().for_each(|o| only[*o as usize] = false);
    only
}
