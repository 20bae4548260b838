//! The group of a chained product: opened at its outer product, with all that lies between it and the inner ones.

use super::super::edges::OperandOf;
use super::super::groups::Form;
use super::{Availability, Draft, Fuser};
use crate::graph::NodeIdx;

impl Fuser<'_> {
    /// Opens the group of the chained product whose outer product is `root`. Its operands are memory; what else its maps
    /// read is made there, or loaded.
    pub fn place_chained(&mut self, root: NodeIdx, number: u32) -> Availability {
        let found = self.chained[number as usize].clone();
        let mut level = 0;
        let products = found.inner.iter().map(|inner| inner.product);
        let operands = products.flat_map(|product| self.graph.inputs(product).to_vec());
        let operands: Vec<NodeIdx> = operands.chain([self.graph.inputs(root)[1]]).collect();
        for operand in operands {
            level = level.max(self.load_operand(operand, OperandOf::Chained));
        }
        let mut loads = Vec::new();
        for leaf in &found.leaves {
            level = level.max(match self.states[*leaf as usize] {
                Availability::Inline { level, .. } => level,
                Availability::Member(_) => self.store(*leaf, "a chained product reads it for every score"),
            });
            self.free_loads(*leaf, &mut loads);
        }
        // Of values of rows, others may read; of scores, nobody.
        let n_outside: usize = found.row_nodes.iter().map(|idx| self.uses[*idx as usize]).sum();
        self.drafts.push(Draft {
            form: Form::Attention(number),
            domain: root,
            level,
            level_is_fixed: false,
            n_insts: found.interior.len() + found.leaves.len() + 8,
            loads,
            n_pending: self.uses[root as usize] + n_outside,
            may_fail: false,
            place: self.place_of(root),
            stores: Vec::new(),
            made: [None; 2],
            merged_into: None,
        });
        let state = Availability::Member(self.drafts.len() as u32 - 1);
        for idx in found.row_nodes.iter().chain(&found.interior) {
            self.states[*idx as usize] = state;
        }
        state
    }
}
