//! Which of the groups that make its inputs a node joins, and how groups become one.

use super::super::edges::Edge;
use super::super::groups::Form;
use super::{Availability, Fuser};
use crate::graph::{NodeIdx, Op};

impl Fuser<'_> {
    /// The group that an elementwise node joins: those of its inputs, merged as far as they go together. Inputs whose
    /// groups stay apart are stored. None if it goes with none of them.
    pub fn choose_group(&mut self, idx: NodeIdx, inputs: &[NodeIdx], drafts: &[u32], free_level: u32) -> Option<u32> {
        if !self.limits.fuse {
            return None;
        }
        // The group that fixes the most comes first: a fixed level, then a form.
        let mut by_weight = drafts.to_vec();
        by_weight.sort_by_key(|d| {
            let draft = &self.drafts[*d as usize];
            (!draft.level_is_fixed, std::cmp::Reverse(draft.level), draft.form == Form::Map)
        });
        // A chained product neither checks nor commits: it has several maps, and what is committed is one value.
        let is_placed = matches!(self.graph.op(idx), Op::Commit) || self.checks.may_fail[idx as usize];
        let is_chained = |draft: u32| matches!(self.drafts[draft as usize].form, Form::Attention(_));
        by_weight.retain(|d| self.takes(*d, idx) && !(is_placed && is_chained(*d)));
        let group =
            by_weight.iter().find_map(|group| self.try_group(*group, idx, inputs, &by_weight, drafts, free_level));
        let (group, apart, level) = group?;
        for input in inputs {
            if let Some(draft) = self.draft_of(*input)
                && apart.contains(&draft)
            {
                let why = self.why_apart(*input, idx, "its kernel and that of the other operand do not go together");
                self.store(*input, why);
            }
        }
        for &draft in drafts {
            if draft != group && !apart.contains(&draft) {
                self.merge(group, draft);
            }
        }
        self.drafts[group as usize].level = level;
        Some(group)
    }

    /// What joining `group` would take: which of the other groups stay apart, and the level. None if it does not go.
    fn try_group(
        &self,
        group: u32,
        idx: NodeIdx,
        inputs: &[NodeIdx],
        takers: &[u32],
        drafts: &[u32],
        free_level: u32,
    ) -> Option<(u32, Vec<u32>, u32)> {
        // Two forms may each go with a map but not with each other, so the form grows as groups are taken in.
        let mut form = self.drafts[group as usize].form;
        let mut place = self.drafts[group as usize].place.with(self.place_of(idx), self.commits)?;
        let (mut merged, mut apart) = (vec![group], Vec::new());
        for &draft in drafts.iter().filter(|d| **d != group) {
            let other = self.drafts[draft as usize].form;
            let both = place.with(self.drafts[draft as usize].place, self.commits);
            if let Some(both) = both
                && takers.contains(&draft)
                && self.levels_meet(group, draft)
                && self.go_together(form, other)
            {
                place = both;
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
            let Some(at) = merged.iter().position(|d| draft(d).level_is_fixed && draft(d).level < level) else {
                break level;
            };
            if merged[at] == group {
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
            if let Availability::Inline { cost, n_loads: n, .. } = self.states[*input as usize] {
                n_insts += cost as usize;
                n_loads += n as usize;
            }
        }
        let fits = n_insts <= self.limits.max_insts && n_loads + 2 <= self.limits.max_bindings;
        fits.then_some((group, apart, level))
    }

    /// Whether a group's kernel can also make a value with as many elements as a node.
    fn takes(&self, draft: u32, idx: NodeIdx) -> bool {
        let draft = &self.drafts[draft as usize];
        let is_as_many = |other: NodeIdx| idx == other || self.graph.ask(Edge::SameCount(idx, other));
        match draft.form {
            Form::Map | Form::Matmul(_) => is_as_many(draft.domain),
            Form::Reduce { first, split } => is_as_many(first) || (!split && is_as_many(self.graph.inputs(first)[0])),
            Form::Attention(number) => {
                let softmax = self.chained[number as usize].softmax;
                is_as_many(draft.domain) || softmax.is_some_and(|softmax| is_as_many(softmax.max))
            }
            Form::Routine(_) => false,
        }
    }

    /// Whether one kernel can have both forms.
    fn go_together(&self, a: Form, b: Form) -> bool {
        match (a, b) {
            (Form::Map, _) | (_, Form::Map) => true,
            (Form::Reduce { first, split: false }, Form::Reduce { first: other, split: false }) => {
                self.same_reduce(first, other)
            }
            _ => false,
        }
    }

    /// Whether two reductions go over the same index space.
    pub fn same_reduce(&self, a: NodeIdx, b: NodeIdx) -> bool {
        a == b || self.graph.ask(Edge::SameReduce(a, b))
    }

    /// Whether two groups can be on one level: where both are fixed they must be already; where one is, the other must
    /// be able to rise to it.
    fn levels_meet(&self, group: u32, other: u32) -> bool {
        let (a, b) = (&self.drafts[group as usize], &self.drafts[other as usize]);
        match (a.level_is_fixed, b.level_is_fixed) {
            (true, true) => a.level == b.level,
            (true, false) => b.level <= a.level,
            (false, true) => a.level <= b.level,
            (false, false) => true,
        }
    }

    /// Moves all members of the group `other` into `group`.
    pub fn merge(&mut self, group: u32, other: u32) {
        let taken = &mut self.drafts[other as usize];
        taken.merged_into = Some(group);
        let (loads, stores) = (std::mem::take(&mut taken.loads), std::mem::take(&mut taken.stores));
        let (level, level_is_fixed, n_insts, n_pending) =
            (taken.level, taken.level_is_fixed, taken.n_insts, taken.n_pending);
        let (form, domain, may_fail, place) = (taken.form, taken.domain, taken.may_fail, taken.place);
        let made = taken.made;
        let group = &mut self.drafts[group as usize];
        let (mut more, fewer) = if group.loads.len() < loads.len() {
            (loads, std::mem::take(&mut group.loads))
        } else {
            (std::mem::take(&mut group.loads), loads)
        };
        more.extend(fewer.into_iter().filter(|l| !more.contains(l)).collect::<Vec<_>>());
        group.loads = more;
        group.stores.extend(stores);
        group.level = group.level.max(level);
        group.level_is_fixed |= level_is_fixed;
        group.n_insts += n_insts;
        group.n_pending += n_pending;
        group.may_fail |= may_fail;
        group.place = group.place.and(place);
        if group.form == Form::Map && form != Form::Map {
            (group.form, group.domain, group.made) = (form, domain, made);
        }
    }

    /// Adds a node to a group that makes some of its inputs.
    pub fn join(&mut self, idx: NodeIdx, draft: u32, n_insts: usize) -> Availability {
        let mut n_edges = 0;
        for input in self.graph.inputs(idx) {
            n_edges += (self.draft_of(*input) == Some(draft)) as usize;
        }
        let mut loads = std::mem::take(&mut self.drafts[draft as usize].loads);
        for input in self.graph.inputs(idx) {
            self.free_loads(*input, &mut loads);
        }
        let n_insts = n_insts + self.free_cost(idx) as usize;
        let (uses, place) = (self.uses[idx as usize], self.place_of(idx));
        let graph = self.graph;
        let draft_idx = draft;
        let draft = &mut self.drafts[draft as usize];
        draft.loads = loads;
        draft.n_insts += n_insts;
        draft.n_pending = draft.n_pending + uses - n_edges;
        draft.may_fail |= matches!(graph.op(idx), Op::Gather(..) | Op::Custom(_));
        draft.place = draft.place.and(place);
        // The shape with the most axes says most about how the elements lie.
        if graph.n_axes(idx) > graph.n_axes(draft.domain) && graph.ask(Edge::SameCount(idx, draft.domain)) {
            draft.domain = idx;
        }
        Availability::Member(draft_idx)
    }
}
