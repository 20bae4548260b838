//! Finds made operands: a map over a single row or column that only one product reads is evaluated by that product's kernel, before the
//! kernel multiplies, and has neither a kernel nor a slot of its own. Whether an operand is a row or a column is structure, so other
//! sizes of matrices do not lead to more plans. On devices that take made operands ([`Limits::max_made_elems`]) each element is computed
//! once; a made operand saves a launch, its fork-join, and a value of the plan.
//!
//! [`Limits::max_made_elems`]: crate::target::Limits::max_made_elems

use super::super::edges::{AskedGraph, Edge, OperandOf};
use super::super::groups::Form;
use super::load::OperandSource;
use super::{Availability, Fuser};
use crate::dtype::DType;
use crate::graph::{NodeIdx, Op};

/// The most nodes that the map of a made operand may have, so that searching it for loads stays cheap.
const MAX_NODES: usize = 64;

impl Fuser<'_> {
    /// Places a product. Each of its operands is memory, or a map that becomes part of the product's group.
    pub fn place_matmul(&mut self, idx: NodeIdx) -> Availability {
        let (inputs, dtype) = (self.graph.inputs(idx), self.graph.dtype(idx));
        let (mut level, mut made) = (0, [None; 2]);
        for (operand, side) in [OperandOf::Left(dtype), OperandOf::Right(dtype)].into_iter().enumerate() {
            level = level.max(match self.operand_source(inputs[operand], side) {
                OperandSource::Blocks { level } => level,
                OperandSource::Whole(source) => match self.level_to_make(idx, inputs[operand], source) {
                    Some(level) => {
                        made[operand] = Some(source);
                        level
                    }
                    None => self.load_whole(source),
                },
            });
        }
        let state = self.open(idx, Form::Matmul(idx), level);
        let Availability::Member(group) = state else { unreachable!("a group was opened") };
        for source in made.into_iter().flatten() {
            if let Some(draft) = self.draft_of(source) {
                self.merge(group, draft);
                // Of the pending edges that merging has added up, the one from the map to the product is inside the group now.
                self.drafts[group as usize].n_pending -= 1;
            }
        }
        self.drafts[group as usize].made = made;
        state
    }

    /// The level from which on a product can make `source`, of which its operand is a view; None if the product may not make it.
    fn level_to_make(&mut self, product: NodeIdx, operand: NodeIdx, source: NodeIdx) -> Option<u32> {
        // f16 and bf16 are rounded when they are stored; a made operand is not stored and would lose the rounding.
        let are_f32 = [product, source].iter().all(|idx| self.graph.dtype(*idx) == DType::F32);
        let may_be = self.makes_operands() && self.graph.n_axes(source) <= 1 && are_f32;
        if !may_be || !self.is_read_once(operand, source) || self.memory_of(source).is_some() {
            return None;
        }
        let level_of_loads = self.loads_of_map(source)?;
        let level = match self.states[source as usize] {
            Availability::Inline { level, .. } => level,
            Availability::Member(draft) => {
                let draft = self.find(draft);
                let d = &self.drafts[draft as usize];
                let is_all = d.form == Form::Map && d.stores.is_empty() && !d.level_is_fixed && d.n_pending == 1;
                (is_all && self.is_same_stage(draft, product)).then_some(d.level)?
            }
        };
        self.graph.ask(Edge::FewToMake(source)).then_some(level.max(level_of_loads))
    }

    /// Whether any product may make operands.
    fn makes_operands(&self) -> bool {
        self.limits.fuse && self.limits.max_made_elems > 0 && !self.checks.any_commits
    }

    /// Whether the operand is the only reader of `source`, through views, and is itself read once.
    fn is_read_once(&self, operand: NodeIdx, source: NodeIdx) -> bool {
        let mut at = operand;
        while at != source && self.uses[at as usize] == 1 {
            at = self.graph.inputs(at)[0];
        }
        at == source && self.uses[at as usize] == 1
    }

    /// If a node is an elementwise map of something in memory, with no op that can fail or that has a run-time offset: the level from
    /// which on all that it loads is memory. Below that level, a node that was stored after the map was placed would be computed again.
    fn loads_of_map(&mut self, goal: NodeIdx) -> Option<u32> {
        let (mut stack, mut seen, mut level) = (vec![goal], Vec::new(), None);
        while let Some(idx) = stack.pop() {
            if seen.contains(&idx) {
                continue;
            }
            seen.push(idx);
            let op = self.graph.op(idx);
            match op {
                _ if self.stored[idx as usize] || matches!(op, Op::Data | Op::Widen(_)) => {
                    level = level.max(Some(match self.states[idx as usize] {
                        Availability::Inline { level, .. } => level,
                        Availability::Member(draft) => {
                            let draft = self.find(draft);
                            self.drafts[draft as usize].level + 1
                        }
                    }));
                }
                Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast | Op::Const(_) | Op::Index => {
                    stack.extend(self.graph.inputs(idx));
                }
                Op::View(_) | Op::Pad(_) => stack.extend(self.graph.inputs(idx)),
                _ => return None,
            }
            if seen.len() > MAX_NODES {
                return None;
            }
        }
        level
    }

    /// Whether an elementwise node is better made by the product that reads it than fused into the kernel of one of its inputs.
    /// That is so if the inputs are two products that share their left operand: with the node as epilogue of one product, that product
    /// has to wait for the other; without it, both share a launch. The gate of a gated layer, `(silu(x·G) ∘ (x·U))·D`, is such a node.
    pub fn is_left_to_product(&self, idx: NodeIdx, drafts: &[u32]) -> bool {
        let [a, b] = drafts else { return false };
        let [a, b] = [a, b].map(|draft| &self.drafts[*draft as usize]);
        let (Form::Matmul(p), Form::Matmul(q)) = (a.form, b.form) else { return false };
        let share_a_launch = self.graph.inputs(p)[0] == self.graph.inputs(q)[0]
            && (a.level, a.place.stage) == (b.level, b.place.stage)
            && [a, b].iter().all(|draft| draft.made == [None; 2]);
        self.makes_operands()
            && self.graph.n_axes(idx) <= 1
            && share_a_launch
            && matches!(self.graph.op(idx), Op::Binary(_))
            && self.graph.dtype(idx) == DType::F32
            && self.is_only_for_a_product(idx)
            && self.graph.ask(Edge::FewToMake(idx))
    }

    /// Whether a single product is the only reader of a node, directly or through reshapes.
    fn is_only_for_a_product(&self, idx: NodeIdx) -> bool {
        let mut at = idx;
        while let Some(reader) = self.only_reader[at as usize] {
            match self.graph.op(reader) {
                Op::View(_) if self.graph.ask(Edge::Reshape(reader)) => at = reader,
                op => {
                    let is_product = matches!(op, Op::Matmul) && self.part_of[reader as usize].is_none();
                    let is_same_stage = self.stages.stage(reader) == self.stages.stage(idx);
                    return is_product && is_same_stage && self.graph.dtype(reader) == DType::F32;
                }
            }
        }
        false
    }
}

/// For each node its reader, if it is read once and not wanted itself.
pub fn only_readers(graph: &AskedGraph, uses: &[usize]) -> Vec<Option<NodeIdx>> {
    let mut readers = vec![None; uses.len()];
    for idx in 0..uses.len() as NodeIdx {
        let once = graph.inputs(idx).iter().filter(|input| uses[**input as usize] == 1);
        once.for_each(|input| readers[*input as usize] = Some(idx));
    }
    readers
}
