//! The text of a graph: one line a node, then what is wanted, stage by stage. The same graph gives the same bytes.

use std::fmt;

use super::capture::{Graph, GraphNode};
use super::op::Op;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, node) in self.nodes.iter().enumerate() {
            writeln!(f, "#{idx}: {}{} = {node}", node.dtype, node.shape)?;
        }
        write!(f, "outputs:")?;
        for (i, output) in self.outputs.iter().enumerate() {
            let is_next = i > 0 && self.stages.contains(&i);
            write!(f, "{} #{output}", if is_next { " |" } else { "" })?;
        }
        Ok(())
    }
}

/// `sum(#3) over axes [1]`: what it computes, from which nodes.
impl fmt::Display for GraphNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.op {
            Op::Data => return write!(f, "input {}{}", self.slot, if self.donated { ", donated" } else { "" }),
            Op::Const(_) => return write!(f, "c{}", self.slot),
            op => write!(f, "{}", op.name())?,
        }
        let inputs: Vec<String> = self.inputs.iter().map(|input| format!("#{input}")).collect();
        write!(f, "({})", inputs.join(", "))?;
        match &self.op {
            Op::View(view) | Op::Pad(view) => write!(f, " by {view}"),
            Op::Reduce(_, axes) => {
                write!(f, " over axes {:?}", (0..u8::BITS as usize).filter(|i| axes.contains(*i)).collect::<Vec<_>>())
            }
            Op::Gather(axis, _) | Op::Cat(axis) | Op::RowsAt(axis) | Op::WriteRows(axis) => {
                write!(f, " along axis {axis}")
            }
            Op::Widen(format) => write!(f, " from {}", format.label()),
            Op::Routine(_, params) => write!(f, " with {params:?}"),
            _ => Ok(()),
        }
    }
}
