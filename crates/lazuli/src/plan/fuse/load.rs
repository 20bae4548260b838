//! What a group needs of others: made by them, and in memory.

use super::super::edges::{Edge, OperandOf};
use super::super::groups::{Form, StoredNode};
use super::{Availability, Fuser};
use crate::graph::{NodeIdx, Op};

/// Where a product's kernel finds an operand.
pub enum OperandSource {
    /// In blocks, which are widened while they are read.
    Blocks { level: u32 },
    /// In this node, seen through strides; it is to be stored, or made by the product.
    Whole(NodeIdx),
}

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
        let source = self.memory_of(idx).unwrap_or(idx);
        if let Availability::Inline { level, .. } = self.states[source as usize] {
            if self.stored[source as usize] || matches!(self.graph.op(source), Op::Data) {
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
        self.load_operand(idx, OperandOf::Gather)
    }

    /// The same for an operand of a product: small floats are read as they are stored, and so are panels and lists of axes.
    pub fn load_operand(&mut self, idx: NodeIdx, side: OperandOf) -> u32 {
        match self.operand_source(idx, side) {
            OperandSource::Blocks { level } => level,
            OperandSource::Whole(source) => self.load_whole(source),
        }
    }

    /// Where an operand is found.
    pub fn operand_source(&self, idx: NodeIdx, side: OperandOf) -> OperandSource {
        let (mut source, mut stored) = (idx, idx);
        while !self.stored[source as usize] {
            let is_free = matches!(self.states[source as usize], Availability::Inline { .. });
            match self.graph.op(source) {
                // What a group sees through a view it cannot store any more.
                Op::View(_) if is_free || self.graph.ask(Edge::Reshape(source)) => {}
                Op::Cast if is_free && goes_by_operand(side) && self.graph.widens(source) => {}
                // The bytes are stored, whoever makes them: a quarter of what is widened.
                Op::Cast if side.forms(self.limits).bytes && self.graph.widens_bytes(source) => {}
                _ => break,
            }
            source = self.graph.inputs(source)[0];
            let is_view = matches!(self.graph.op(source), Op::View(_));
            if self.graph.ask(Edge::Strided { node: idx, source })
                && (!is_view || self.graph.ask(Edge::NoMore(source, idx)))
            {
                stored = source;
            }
        }
        let in_place = source == stored || self.graph.ask(Edge::Operand { node: idx, source, side });
        // Lookups and products read blocks where they are.
        let reads_blocks = matches!(side, OperandOf::Gather | OperandOf::Left(_) | OperandOf::Right(_));
        let is_blocks = matches!(self.graph.op(source), Op::Widen(_)) && !self.stored[source as usize];
        if let Availability::Inline { level, .. } = self.states[source as usize]
            && in_place
            && is_blocks
            && reads_blocks
        {
            return OperandSource::Blocks { level };
        }
        OperandSource::Whole(if in_place { source } else { stored })
    }

    /// The memory a node is as it stands, if it is some: itself, or what it is only a reshape of.
    pub fn memory_of(&self, idx: NodeIdx) -> Option<NodeIdx> {
        let mut source = idx;
        while !self.stored[source as usize] && !matches!(self.graph.op(source), Op::Data) {
            match self.graph.op(source) {
                Op::View(_) => source = self.graph.inputs(source)[0],
                _ => return None,
            }
        }
        (source == idx || self.graph.ask(Edge::Whole { node: idx, source })).then_some(source)
    }
}

/// Whether small floats are widened by whoever reads them.
fn goes_by_operand(side: OperandOf) -> bool {
    !matches!(side, OperandOf::Gather | OperandOf::RowsAt)
}
