//! A plan without its numbers: the kernels of a template, their order and their slots. Sizes decide these only where they cut
//! kernels, group them or compare memory, so that a fill evaluates numbers, asks those questions again, and copies nothing but
//! names. Where an answer is another one, the plan is made from the template's groups, and its outline is kept instead.

use super::grouped::may_share;
use super::lower::{self, GroupMemos, KnownKernels, LaunchDraft, Lowered, PlanValue, ToLower};
use super::memory::{Assignment, starts_at_zero};
use super::split::{split_sums_of, stays_whole};
use super::{Launch, Limits, Plan};
use crate::graph::NodeIdx;
use crate::kernel::Args;
use crate::target::Target;

/// All of a plan that other sizes may leave as it is.
pub struct PlanOutline {
    /// The kernels as they were lowered, without numbers.
    drafts: Vec<LaunchDraft>,
    /// Per value, its node.
    nodes: Vec<NodeIdx>,
    /// The values, with the sizes of the last fill.
    values: Vec<PlanValue>,
    facts: Vec<bool>,
    /// Per kernel, the launch that it is or is a part of, and which part.
    places: Vec<(usize, Option<usize>)>,
    assignment: Assignment,
    /// The launches without numbers, and the rest of the plan.
    launches: Vec<Launch>,
    plan: Plan,
}

/// The kernels that a plan is made from, before anything is cut or put in order.
pub struct LoweredKernels {
    drafts: Vec<LaunchDraft>,
    values: Vec<PlanValue>,
    nodes: Vec<NodeIdx>,
    facts: Vec<bool>,
}

/// The same kernels, and where each of them is in the plan.
pub struct PlacedKernels {
    lowered: LoweredKernels,
    places: Vec<(usize, Option<usize>)>,
}

/// What of the numbers of kernels decides more than numbers: which may share a launch, and which write in place.
fn facts<'a>(
    drafts: &'a [LaunchDraft],
    values: &'a [PlanValue],
    limits: &'a Limits,
) -> impl Iterator<Item = bool> + 'a {
    drafts.iter().flat_map(|draft| [may_share(draft, values, limits)].into_iter().chain(starts_at_zero(draft)))
}

impl LoweredKernels {
    /// Of kernels that are made of these values, each a node.
    pub fn new(lowered: &Lowered, nodes: Vec<NodeIdx>, limits: &Limits) -> LoweredKernels {
        let (drafts, values) = (lowered.steps.clone(), lowered.values.clone());
        let facts = facts(&drafts, &values, limits).collect();
        LoweredKernels { drafts, values, nodes, facts }
    }

    /// Where these kernels are among the launches of the plan. None if those are others than were lowered.
    pub fn placed(self, launches: &[LaunchDraft]) -> Option<PlacedKernels> {
        let mut places = vec![None; self.drafts.len()];
        let mut n_placed = 0;
        for (at, launch) in launches.iter().enumerate() {
            let is_group = !launch.parts.is_empty();
            let parts = if is_group { &launch.parts[..] } else { std::slice::from_ref(launch) };
            for (i, part) in parts.iter().enumerate() {
                let draft = self.drafts.get(part.number as usize)?;
                let is_same = part.part_of.is_none() && draft.is_but_for_numbers(part);
                *places.get_mut(part.number as usize).filter(|_| is_same)? = Some((at, is_group.then_some(i)));
                n_placed += 1;
            }
        }
        let places = places.into_iter().collect::<Option<Vec<_>>>().filter(|places| places.len() == n_placed)?;
        Some(PlacedKernels { lowered: self, places })
    }
}

impl PlacedKernels {
    /// The outline of the plan.
    pub fn outline(self, assignment: Assignment, plan: &Plan) -> PlanOutline {
        let PlacedKernels { lowered: LoweredKernels { mut drafts, values, nodes, facts }, places } = self;
        drafts.iter_mut().for_each(|draft| draft.args = Args::default());
        let launches = plan.launches.iter().map(Launch::without_numbers).collect();
        let plan = Plan { launches: Vec::new(), slots: Vec::new(), value_elems: Vec::new(), ..plan.clone() };
        PlanOutline { drafts, nodes, values, facts, places, assignment, launches, plan }
    }
}

impl PlanOutline {
    /// The same plan with the numbers of another graph. None if it is another plan.
    pub fn filled(&mut self, of: &ToLower, memos: &GroupMemos, target: &Target) -> Option<Plan> {
        for (value, node) in self.values.iter_mut().zip(&self.nodes) {
            let node = &of.graph.nodes[*node as usize];
            value.n_elems = node.shape.n_elems();
            if value.input.is_some_and(|input| input != (node.slot, node.donated)) {
                return None;
            }
        }
        let known = KnownKernels { drafts: &self.drafts, values: &self.values, nodes: &self.nodes };
        let (args, checks) = lower::numbers(of, memos, known).ok()?;
        if checks != self.plan.checks {
            return None;
        }
        self.drafts.iter_mut().zip(args).for_each(|(draft, args)| draft.args = args);
        self.is_whole(of.limits).then(|| self.with_numbers(target))
    }

    /// Whether nothing is cut, and grouping and memory are what they were.
    fn is_whole(&self, limits: &Limits) -> bool {
        self.drafts.iter().all(|draft| stays_whole(draft, &self.values, limits))
            && facts(&self.drafts, &self.values, limits).eq(self.facts.iter().copied())
            && self.assignment.serves(&self.values)
    }

    /// The plan, with the numbers that were filled in.
    fn with_numbers(&mut self, target: &Target) -> Plan {
        let mut launches: Vec<Launch> = self.launches.iter().map(Launch::without_numbers).collect();
        for (draft, (launch, part)) in self.drafts.iter_mut().zip(&self.places) {
            let launch = &mut launches[*launch];
            split_sums_of(draft, launch.parts.len().max(1), target);
            let launch = if let Some(part) = *part { &mut launch.parts[part] } else { launch };
            launch.args = std::mem::take(&mut draft.args);
        }
        Plan {
            launches,
            slots: self.assignment.slots(&self.values),
            value_elems: self.values.iter().map(|value| value.n_elems).collect(),
            temp_lower_bound: self.assignment.live_bytes(&self.values),
            ..self.plan.clone()
        }
    }
}
