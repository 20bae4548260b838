//! What a group needs of others: made by them, and in memory.

use super::super::groups::{Form, StoredNode, memory_of, widens};
use super::super::operand::{OperandForms, operand_args};
use super::{Availability, Fuser};
use crate::graph::{Graph, NodeIdx, Op};
use crate::view::IndexMap;

impl Fuser<'_> {
    /// Gives a member memory of its own, for those outside its group. Returns the level from which it can be loaded.
    pub fn store(&mut self, idx: NodeIdx, why: &'static str) -> u32 {
        let draft = self.draft_of(idx).expect("only members are stored");
        let target = StoredNode { value: idx, part_of: None };
        if !self.stored[idx as usize] {
            self.stored[idx as usize] = true;
            self.drafts[draft as usize].stores.push(target);
            self.reasons[idx as usize] = Some(why);
        }
        self.drafts[draft as usize].level_is_fixed = true;
        self.drafts[draft as usize].level + 1
    }

    /// Makes sure a node can be loaded whole and row-major. Returns the level from which it can.
    pub fn load_whole(&mut self, idx: NodeIdx) -> u32 {
        let source = memory_of(self.graph, &self.stored, idx).unwrap_or(idx);
        if let Availability::Inline { level, .. } = self.states[source as usize] {
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
    pub fn load_strided(&mut self, idx: NodeIdx) -> u32 {
        self.load_through(idx, |_, _| false, OperandForms::default())
    }

    /// The same for an operand of a product: small floats are read as they are stored, and so are panels and lists of axes.
    pub fn load_operand(&mut self, idx: NodeIdx, forms: OperandForms) -> u32 {
        self.load_through(idx, widens, forms)
    }

    fn load_through(&mut self, idx: NodeIdx, looks_through: fn(&Graph, NodeIdx) -> bool, forms: OperandForms) -> u32 {
        let (mut source, mut stored) = (idx, idx);
        let mut map = IndexMap::identity(self.node(idx).shape);
        while !self.stored[source as usize] {
            let is_free = matches!(self.states[source as usize], Availability::Inline { .. });
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
        let in_place = map.strided().is_some() || operand_args(&map, self.n_elems(source), forms).is_some();
        self.load_whole(if in_place { source } else { stored })
    }
}
