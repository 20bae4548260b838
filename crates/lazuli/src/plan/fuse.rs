//! Decides which nodes share a kernel. Knows the graph and the limits; nothing about instructions or memory.
//!
//! Nodes are taken in order, and each joins the kernels that make its inputs where it can, so that values pass in
//! registers instead of memory. A group is a kernel in the making. What is not made in the group where it is wanted
//! is stored, or, if that is cheaper, made again ([`State::Free`]).
//!
//! Groups never wait for each other in a circle, because each has a level: it loads only what groups of lower levels
//! store. A group that nobody loads from yet may still move up; one that somebody does is fixed.

use super::groups::{Form, Group, Groups, Part, Target, memory_of, operand_view, widens};
use super::{Limits, PanelWidths};
use crate::graph::{Graph, GraphNode, NodeIdx, Op};
use crate::ops;
use crate::shape::{AxisSet, Shape};
use crate::view::{IndexMap, View};

/// How a node may be had by those that want it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Memory, or something cheap made of it wherever it is wanted: views, constants, a few operations on one load.
    Free { cost: u32, n_loads: u32, level: u32 },
    /// Made in this group (or in one it was merged into).
    Member(u32),
}

struct Draft {
    form: Form,
    domain: Shape,
    level: u32,
    /// Whether another group loads from it, so that its level is fixed.
    loaded: bool,
    n_insts: usize,
    loads: Vec<NodeIdx>,
    /// Edges from members to nodes that are not members (yet), outputs included.
    n_pending: usize,
    has_gather: bool,
    stores: Vec<Target>,
    /// Another draft this one became part of.
    merged_into: Option<u32>,
}

/// The most operations, in additions, worth doing again in another kernel rather than storing the result.
const CHEAP: u32 = 4;
/// The same, for single elements.
const CHEAP_SCALAR: u32 = 64;

/// Groups the nodes of a graph.
pub fn fuse(graph: &Graph, limits: &Limits) -> Groups {
    let mut uses = vec![0usize; graph.nodes.len()];
    let mut wanted = vec![false; graph.nodes.len()];
    for node in &graph.nodes {
        node.inputs.iter().for_each(|i| uses[*i as usize] += 1);
    }
    for output in &graph.outputs {
        uses[*output as usize] += 1;
        wanted[*output as usize] = true;
    }
    let mut fuser = Fuser {
        graph,
        limits,
        uses,
        wanted,
        states: Vec::with_capacity(graph.nodes.len()),
        stored: vec![false; graph.nodes.len()],
        reasons: vec![None; graph.nodes.len()],
        only_contracted: only_contracted(graph),
        drafts: Vec::new(),
    };
    for idx in 0..graph.nodes.len() as NodeIdx {
        let state = fuser.place(idx);
        fuser.states.push(state);
        if fuser.is_routine(idx) {
            fuser.store(idx, "a hand-written kernel is not fused with others");
        }
    }
    for &output in &graph.outputs {
        fuser.store_output(output);
    }
    fuser.finish()
}

struct Fuser<'a> {
    graph: &'a Graph,
    limits: &'a Limits,
    uses: Vec<usize>,
    wanted: Vec<bool>,
    states: Vec<State>,
    stored: Vec<bool>,
    reasons: Vec<Option<&'static str>>,
    /// Per node, whether only contractions read it.
    only_contracted: Vec<bool>,
    drafts: Vec<Draft>,
}

impl Fuser<'_> {
    fn node(&self, idx: NodeIdx) -> &GraphNode {
        &self.graph.nodes[idx as usize]
    }

    fn n_elems(&self, idx: NodeIdx) -> usize {
        self.node(idx).shape.n_elems()
    }

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
            State::Member(draft) => Some(self.find(draft)),
            State::Free { .. } => None,
        }
    }

    /// Where a node is made.
    fn place(&mut self, idx: NodeIdx) -> State {
        let node = &self.graph.nodes[idx as usize];
        match &node.op {
            Op::Data => State::Free { cost: 0, n_loads: (node.shape.n_elems() > 1) as u32, level: 0 },
            Op::View(view) => self.place_view(idx, view),
            Op::Reduce(_, axes) => self.place_reduce(idx, *axes),
            Op::Matmul => {
                let panels = self.limits.panels_of(node.dtype);
                let level = self.load_operand(node.inputs[0], None).max(self.load_operand(node.inputs[1], panels));
                self.open(idx, Form::Matmul(idx), level)
            }
            Op::Routine(..) => {
                let level = node.inputs.iter().map(|i| self.load_whole(*i)).max().unwrap_or(0);
                self.open(idx, Form::Routine(idx), level)
            }
            Op::Cat(axis) => self.place_cat(idx, *axis),
            _ => self.place_elementwise(idx),
        }
    }

    /// A new group with `idx` as its first member.
    fn open(&mut self, idx: NodeIdx, form: Form, level: u32) -> State {
        let node = &self.graph.nodes[idx as usize];
        let mut loads = Vec::new();
        node.inputs.iter().for_each(|i| self.free_loads(*i, &mut loads));
        self.drafts.push(Draft {
            form,
            domain: node.shape,
            level,
            loaded: false,
            n_insts: 1 + self.free_cost(idx) as usize,
            loads,
            n_pending: self.uses[idx as usize],
            has_gather: matches!(node.op, Op::Gather(..)),
            stores: Vec::new(),
            merged_into: None,
        });
        State::Member(self.drafts.len() as u32 - 1)
    }

    /// The free operations that come along with a node.
    fn free_cost(&self, idx: NodeIdx) -> u32 {
        let cost = |i: &NodeIdx| match self.states[*i as usize] {
            State::Free { cost, .. } => 1 + cost,
            State::Member(_) => 0,
        };
        self.node(idx).inputs.iter().map(cost).sum()
    }

    /// The stored nodes and inputs that a free node loads. Free nodes are small, so the walk is too.
    fn free_loads(&self, idx: NodeIdx, loads: &mut Vec<NodeIdx>) {
        let node = self.node(idx);
        let is_memory = matches!(node.op, Op::Data) || self.stored[idx as usize];
        match self.states[idx as usize] {
            _ if is_memory => {
                if !loads.contains(&idx) {
                    loads.push(idx);
                }
            }
            State::Free { .. } => node.inputs.iter().for_each(|i| self.free_loads(*i, loads)),
            State::Member(_) => {}
        }
    }

    /// Gives a member memory of its own, for those outside its group. Returns the level from which it can be loaded.
    fn store(&mut self, idx: NodeIdx, why: &'static str) -> u32 {
        let draft = self.draft_of(idx).expect("only members are stored");
        let target = Target { value: idx, part_of: None };
        if !self.stored[idx as usize] {
            self.stored[idx as usize] = true;
            self.drafts[draft as usize].stores.push(target);
            self.reasons[idx as usize] = Some(why);
        }
        self.drafts[draft as usize].loaded = true;
        self.drafts[draft as usize].level + 1
    }

    /// Makes sure a node can be loaded whole and row-major. Returns the level from which it can.
    fn load_whole(&mut self, idx: NodeIdx) -> u32 {
        let source = memory_of(self.graph, &self.stored, idx).unwrap_or(idx);
        if let State::Free { level, .. } = self.states[source as usize] {
            if self.stored[source as usize] || matches!(self.node(source).op, Op::Data) {
                return level;
            }
            self.states[source as usize] = self.open(source, Form::Map, level);
        }
        self.store(source, "its reader needs it whole, in row-major order")
    }

    /// Makes sure a node is memory seen through strides, as a gather takes it. Returns the level. If its source is seen in
    /// another way, what is stored is the last view on the way to it that strides can look at: others may share it, such
    /// as the transpose of the same matrix.
    fn load_strided(&mut self, idx: NodeIdx) -> u32 {
        self.load_through(idx, |_, _| false, None)
    }

    /// The same for an operand of a product: small floats are read as they are stored, and so are panels.
    fn load_operand(&mut self, idx: NodeIdx, panels: Option<PanelWidths>) -> u32 {
        self.load_through(idx, widens, panels)
    }

    fn load_through(
        &mut self,
        idx: NodeIdx,
        looks_through: fn(&Graph, NodeIdx) -> bool,
        panels: Option<PanelWidths>,
    ) -> u32 {
        let (mut source, mut stored) = (idx, idx);
        let mut map = IndexMap::identity(self.node(idx).shape);
        while !self.stored[source as usize] {
            let is_free = matches!(self.states[source as usize], State::Free { .. });
            match &self.node(source).op {
                // What a group sees through a view it cannot store any more.
                Op::View(view) if is_free || self.is_reshape(source, view) => map = map.of(view),
                Op::Cast if is_free && looks_through(self.graph, source) => {}
                _ => break,
            }
            source = self.node(source).inputs[0];
            let is_more = matches!(self.node(source).op, Op::View(_)) && self.n_elems(source) > self.n_elems(idx);
            if map.strided().is_some() && !is_more {
                stored = source;
            }
        }
        self.load_whole(if operand_view(&map, panels).is_some() { source } else { stored })
    }

    fn place_view(&mut self, idx: NodeIdx, view: &View) -> State {
        let source = self.node(idx).inputs[0];
        let Some(draft) = self.draft_of(source) else {
            let State::Free { cost, n_loads, level } = self.states[source as usize] else { unreachable!() };
            // Windows over a pad: to ask of each element of each window whether it is inside costs more than to store it.
            let repeats = self.n_elems(idx) >= 2 * self.n_elems(source) && !self.stored[source as usize];
            if repeats && matches!(self.node(source).op, Op::Pad(_)) && self.limits.fuse {
                self.states[source as usize] = self.open(source, Form::Map, level);
                let level = self.store(source, "it is read several times with fill around it");
                return State::Free { cost: 0, n_loads: 1, level };
            }
            return State::Free { cost, n_loads, level };
        };
        // The same elements in the same order: still the same values of the same kernel.
        let stays = self.is_reshape(idx, view) && self.limits.fuse && !self.is_routine(source);
        if stays || self.broadcasts_rows(draft, source, view) {
            return self.join(idx, draft, 1);
        }
        if !self.only_contracted[idx as usize] && self.can_look_through(draft, source, idx) {
            let state = self.join(idx, draft, 1);
            self.drafts[draft as usize].domain = view.shape;
            return state;
        }
        let level = self.store(source, "it is read in another order than it is made in");
        State::Free { cost: 0, n_loads: 1, level }
    }

    /// Whether a node is all the elements of its input in the same order.
    fn is_reshape(&self, idx: NodeIdx, view: &View) -> bool {
        view.is_linear() && self.n_elems(idx) == self.n_elems(self.node(idx).inputs[0])
    }

    /// Whether a view spreads a reduction's result back over what was reduced.
    fn broadcasts_rows(&self, draft: u32, source: NodeIdx, view: &View) -> bool {
        let Form::Reduce { full, axes, split: false } = self.drafts[draft as usize].form else { return false };
        let rows = full.reduced(&axes, false);
        if !self.limits.fuse || self.n_elems(source) != rows.n_elems() || view.shape.n_elems() != full.n_elems() {
            return false;
        }
        let from = rows.strides();
        let mut row_axis = 0;
        let spread = View::from_axes(
            (0..full.rank()).map(|i| {
                let stride = if axes.contains(i) { 0 } else { from[row_axis] };
                row_axis += !axes.contains(i) as usize;
                (full[i], stride)
            }),
            0,
        );
        same_map(&spread, view)
    }

    /// Whether all of a group may be seen through a view: nobody else wants any of it, and it is not made more often.
    fn can_look_through(&self, draft: u32, source: NodeIdx, idx: NodeIdx) -> bool {
        let draft = &self.drafts[draft as usize];
        let n_edges = self.node(idx).inputs.iter().filter(|i| **i == source).count();
        self.limits.fuse
            && draft.form == Form::Map
            && !draft.loaded
            && draft.n_pending == n_edges
            && (self.n_elems(idx) <= self.n_elems(source) || draft.n_insts <= CHEAP as usize)
            && (!draft.has_gather || !matches!(self.node(idx).op, Op::Pad(_)))
    }

    /// Adds a node to a group that makes some of its inputs.
    fn join(&mut self, idx: NodeIdx, draft: u32, n_insts: usize) -> State {
        let node = &self.graph.nodes[idx as usize];
        let mut n_edges = 0;
        for input in &node.inputs {
            n_edges += (self.draft_of(*input) == Some(draft)) as usize;
        }
        let mut loads = std::mem::take(&mut self.drafts[draft as usize].loads);
        for input in &node.inputs {
            self.free_loads(*input, &mut loads);
        }
        let n_insts = n_insts + self.free_cost(idx) as usize;
        let uses = self.uses[idx as usize];
        let draft_idx = draft;
        let draft = &mut self.drafts[draft as usize];
        draft.loads = loads;
        draft.n_insts += n_insts;
        draft.n_pending = draft.n_pending + uses - n_edges;
        draft.has_gather |= matches!(node.op, Op::Gather(..));
        // The shape with the most axes says most about how the elements lie.
        let axes = |s: &Shape| s.iter().filter(|d| **d != 1).count();
        if node.shape.n_elems() == draft.domain.n_elems() && axes(&node.shape) > axes(&draft.domain) {
            draft.domain = node.shape;
        }
        State::Member(draft_idx)
    }

    fn place_elementwise(&mut self, idx: NodeIdx) -> State {
        let node = &self.graph.nodes[idx as usize];
        let mut inputs = node.inputs.clone();
        let mut level = 0;
        if let Op::Gather(..) = node.op {
            level = self.load_strided(inputs.remove(0));
        }
        // What only free things go into may be free itself.
        let mut cost = ops::cost(&node.op) + matches!(node.op, Op::Gather(..)) as u32 * 2 * CHEAP;
        let mut n_loads = matches!(node.op, Op::Gather(..)) as u32;
        let mut drafts: Vec<u32> = Vec::new();
        for input in &inputs {
            match self.states[*input as usize] {
                State::Free { cost: c, n_loads: n, level: l } => {
                    cost += c;
                    n_loads += n;
                    level = level.max(l);
                }
                State::Member(draft) => {
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
        let constant = matches!(node.op, Op::Const(_) | Op::Index);
        if drafts.is_empty() {
            let free = constant || (self.limits.fuse && cost <= cheap && n_loads <= 1 && !self.wanted[idx as usize]);
            if free {
                return State::Free { cost, n_loads, level };
            }
            return self.open(idx, Form::Map, level);
        }
        // A pad sees its input through a view; everything else reads the element it writes.
        if let Op::Pad(_) = node.op {
            return self.place_pad(idx, drafts[0], level);
        }
        match self.home(idx, &inputs, &drafts, level) {
            Some(home) => self.join(idx, home, 1),
            None => {
                for input in &inputs {
                    if self.draft_of(*input).is_some() {
                        level = level.max(self.store(*input, "the kernel that makes it cannot take in what follows"));
                    }
                }
                self.open(idx, Form::Map, level)
            }
        }
    }

    fn place_pad(&mut self, idx: NodeIdx, draft: u32, level: u32) -> State {
        let source = self.node(idx).inputs[0];
        let can_rise = self.drafts[draft as usize].level >= level || !self.drafts[draft as usize].loaded;
        if self.draft_of(source) == Some(draft) && can_rise && self.can_look_through(draft, source, idx) {
            let state = self.join(idx, draft, 3);
            let draft = &mut self.drafts[draft as usize];
            draft.domain = self.graph.nodes[idx as usize].shape;
            draft.level = draft.level.max(level);
            return state;
        }
        let mut level = level;
        for input in self.node(idx).inputs.clone() {
            if self.draft_of(input).is_some() {
                level = level.max(self.store(input, "it is read with fill around it"));
            }
        }
        // Memory with fill around it is as cheap to have as memory.
        let fill = self.node(idx).inputs[1];
        match self.states[fill as usize] {
            State::Free { cost, n_loads: 0, .. } if self.limits.fuse && !self.wanted[idx as usize] => {
                State::Free { cost: cost + ops::cost(&self.node(idx).op), n_loads: 1, level }
            }
            _ => self.open(idx, Form::Map, level),
        }
    }

    /// The group that an elementwise node joins: those of its inputs, merged as far as they go together. Inputs whose
    /// groups stay apart are stored. None if it goes with none of them.
    fn home(&mut self, idx: NodeIdx, inputs: &[NodeIdx], drafts: &[u32], free_level: u32) -> Option<u32> {
        if !self.limits.fuse {
            return None;
        }
        let n_elems = self.n_elems(idx);
        // The group that fixes the most comes first: a fixed level, then a form.
        let mut by_weight = drafts.to_vec();
        by_weight.sort_by_key(|d| {
            let draft = &self.drafts[*d as usize];
            (!draft.loaded, std::cmp::Reverse(draft.level), draft.form == Form::Map)
        });
        by_weight.retain(|d| self.takes(*d, n_elems));
        let home = by_weight.iter().find_map(|home| self.try_home(*home, inputs, &by_weight, drafts, free_level));
        let (home, apart, level) = home?;
        for input in inputs {
            if let Some(draft) = self.draft_of(*input)
                && apart.contains(&draft)
            {
                self.store(*input, "its kernel and that of the other operand do not go together");
            }
        }
        for &draft in drafts {
            if draft != home && !apart.contains(&draft) {
                self.merge(home, draft);
            }
        }
        self.drafts[home as usize].level = level;
        Some(home)
    }

    /// What joining `home` would take: which of the other groups stay apart, and the level. None if it does not go.
    fn try_home(
        &self,
        home: u32,
        inputs: &[NodeIdx],
        takers: &[u32],
        drafts: &[u32],
        free_level: u32,
    ) -> Option<(u32, Vec<u32>, u32)> {
        // Two forms may each go with a map but not with each other, so the form grows as groups are taken in.
        let mut form = self.drafts[home as usize].form;
        let (mut merged, mut apart) = (vec![home], Vec::new());
        for &draft in drafts.iter().filter(|d| **d != home) {
            let other = self.drafts[draft as usize].form;
            if takers.contains(&draft) && self.levels_meet(home, draft) && go_together(form, other) {
                merged.push(draft);
                form = if form == Form::Map { other } else { form };
            } else {
                apart.push(draft);
            }
        }
        // What stays apart is stored, and loaded from the level above its own; a fixed group cannot rise to that.
        let level = loop {
            let draft = |d: &u32| &self.drafts[*d as usize];
            let from_merged = merged.iter().map(|d| draft(d).level).max().unwrap_or(0);
            let from_apart = apart.iter().map(|d| draft(d).level + 1).max().unwrap_or(0);
            let level = free_level.max(from_merged).max(from_apart);
            let Some(at) = merged.iter().position(|d| draft(d).loaded && draft(d).level < level) else { break level };
            if merged[at] == home {
                return None;
            }
            apart.push(merged.swap_remove(at));
        };
        let mut n_insts = 1;
        let mut n_loads = apart.len();
        for draft in &merged {
            n_insts += self.drafts[*draft as usize].n_insts;
            n_loads += self.drafts[*draft as usize].loads.len();
        }
        for input in inputs {
            if let State::Free { cost, n_loads: n, .. } = self.states[*input as usize] {
                n_insts += cost as usize;
                n_loads += n as usize;
            }
        }
        let fits = n_insts <= self.limits.max_insts && n_loads + 2 <= self.limits.max_bindings;
        fits.then_some((home, apart, level))
    }

    /// Whether a group's kernel can also make a value of this many elements.
    fn takes(&self, draft: u32, n_elems: usize) -> bool {
        let draft = &self.drafts[draft as usize];
        match draft.form {
            Form::Map | Form::Matmul(_) => draft.domain.n_elems() == n_elems,
            Form::Reduce { full, axes, split } => {
                let n_rows = full.reduced(&axes, false).n_elems();
                n_elems == n_rows || (n_elems == full.n_elems() && !split)
            }
            Form::Routine(_) => false,
        }
    }

    /// Whether two groups can be on one level: where both are fixed they must be already; where one is, the other must
    /// be able to rise to it.
    fn levels_meet(&self, home: u32, other: u32) -> bool {
        let (a, b) = (&self.drafts[home as usize], &self.drafts[other as usize]);
        match (a.loaded, b.loaded) {
            (true, true) => a.level == b.level,
            (true, false) => b.level <= a.level,
            (false, true) => a.level <= b.level,
            (false, false) => true,
        }
    }

    fn merge(&mut self, home: u32, other: u32) {
        let taken = &mut self.drafts[other as usize];
        taken.merged_into = Some(home);
        let (loads, stores) = (std::mem::take(&mut taken.loads), std::mem::take(&mut taken.stores));
        let (level, loaded, n_insts, n_pending) = (taken.level, taken.loaded, taken.n_insts, taken.n_pending);
        let (form, domain, has_gather) = (taken.form, taken.domain, taken.has_gather);
        let home = &mut self.drafts[home as usize];
        let (mut more, fewer) = if home.loads.len() < loads.len() {
            (loads, std::mem::take(&mut home.loads))
        } else {
            (std::mem::take(&mut home.loads), loads)
        };
        more.extend(fewer.into_iter().filter(|l| !more.contains(l)).collect::<Vec<_>>());
        home.loads = more;
        home.stores.extend(stores);
        home.level = home.level.max(level);
        home.loaded |= loaded;
        home.n_insts += n_insts;
        home.n_pending += n_pending;
        home.has_gather |= has_gather;
        if home.form == Form::Map && form != Form::Map {
            (home.form, home.domain) = (form, domain);
        }
    }

    fn place_reduce(&mut self, idx: NodeIdx, axes: AxisSet) -> State {
        let x = self.node(idx).inputs[0];
        let full = self.node(x).shape;
        let rows = full.reduced(&axes, false).n_elems();
        let length = full.n_elems().checked_div(rows).unwrap_or(0);
        let split = length > self.limits.max_reduce && rows < self.limits.min_rows;
        let form = Form::Reduce { full, axes, split };
        let Some(draft) = self.draft_of(x) else {
            let State::Free { level, .. } = self.states[x as usize] else { unreachable!() };
            return self.open(idx, form, level);
        };
        let d = &self.drafts[draft as usize];
        let fits = d.n_insts < self.limits.max_insts
            && match d.form {
                // A group whose values are wanted elsewhere too can store them on the way, unless it is cut in pieces.
                Form::Map => {
                    d.domain.n_elems() == full.n_elems() && (!split || (d.stores.is_empty() && d.n_pending == 1))
                }
                other => other == form && !split && self.n_elems(x) == full.n_elems(),
            };
        if self.limits.fuse && fits {
            let state = self.join(idx, draft, 1);
            let draft = &mut self.drafts[draft as usize];
            draft.form = form;
            draft.domain = full;
            return state;
        }
        let level = self.store(x, "a reduction over other axes needs all of it first");
        self.open(idx, form, level)
    }

    fn place_cat(&mut self, idx: NodeIdx, axis: usize) -> State {
        let mut start = 0;
        let mut level = 0;
        for input in self.node(idx).inputs.clone() {
            let part_of = Some(Part { cat: idx, start });
            start += self.node(input).shape[axis];
            if self.n_elems(input) == 0 {
                continue;
            }
            // A part that a kernel makes is stored by it where it belongs; for others there is a kernel that copies.
            let draft = match self.draft_of(input) {
                Some(draft) if self.limits.fuse && !self.is_routine(input) => draft,
                _ => self.open_copy(input),
            };
            let draft = &mut self.drafts[draft as usize];
            draft.stores.push(Target { value: input, part_of });
            draft.loaded = true;
            level = level.max(draft.level + 1);
        }
        self.stored[idx as usize] = true;
        State::Free { cost: 0, n_loads: 1, level }
    }

    /// A new group that reads one value and writes it elsewhere; the value stays made where it is.
    fn open_copy(&mut self, idx: NodeIdx) -> u32 {
        let level = match self.states[idx as usize] {
            State::Free { level, .. } => level,
            State::Member(_) => self.store(idx, "it is copied into a concatenation"),
        };
        let State::Member(draft) = self.open(idx, Form::Map, level) else { unreachable!("a group was opened") };
        let mut loads = Vec::new();
        self.free_loads(idx, &mut loads);
        self.drafts[draft as usize].loads = loads;
        draft
    }

    fn is_routine(&self, idx: NodeIdx) -> bool {
        matches!(self.node(idx).op, Op::Routine(..))
    }

    fn store_output(&mut self, idx: NodeIdx) {
        if self.stored[idx as usize] || memory_of(self.graph, &self.stored, idx).is_some() {
            return;
        }
        if let State::Free { level, .. } = self.states[idx as usize] {
            self.states[idx as usize] = self.open(idx, Form::Map, level);
        }
        self.stored[idx as usize] = true;
        let draft = self.draft_of(idx).expect("just made one");
        self.drafts[draft as usize].stores.push(Target { value: idx, part_of: None });
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
                    stores: std::mem::take(&mut draft.stores),
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

/// Whether two views give every element the same source, axes of size 1 aside.
fn same_map(a: &View, b: &View) -> bool {
    let axes =
        |v: &View| -> Vec<(usize, isize)> { v.shape.iter().copied().zip(v.strides).filter(|a| a.0 != 1).collect() };
    a.offset == b.offset && a.mask.is_none() && b.mask.is_none() && axes(a) == axes(b)
}

/// Whether one kernel can have both forms.
fn go_together(a: Form, b: Form) -> bool {
    match (a, b) {
        (Form::Map, _) | (_, Form::Map) => true,
        (Form::Reduce { split: false, .. }, Form::Reduce { split: false, .. }) => a == b,
        _ => false,
    }
}

/// Per node, whether all that read it are contractions, which see it through strides anyway.
fn only_contracted(graph: &Graph) -> Vec<bool> {
    let mut only = vec![true; graph.nodes.len()];
    for node in graph.nodes.iter().filter(|n| !matches!(n.op, Op::Matmul)) {
        node.inputs.iter().for_each(|i| only[*i as usize] = false);
    }
    graph.outputs.iter().for_each(|o| only[*o as usize] = false);
    only
}
