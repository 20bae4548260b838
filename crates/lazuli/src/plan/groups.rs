//! Which nodes share a kernel, as `fuse` has decided and `lower` reads it. Plain data, and what follows from it.

use super::operand::{OperandForms, operand_args};
use crate::dtype::DType;
use crate::graph::{Graph, NodeIdx, Op};
use crate::kernel::{OperandArgs, Panels};
use crate::view::{IndexMap, View};

/// What a group's kernel is built around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements, each by itself.
    Map,
    /// Reductions over the same axes of the same sizes as `first`. Members have the size of what it reduces, or of its
    /// result.
    Reduce { first: NodeIdx, split: bool },
    /// A contraction and what follows, element by element.
    Matmul(NodeIdx),
    /// A chained product, by its number, and what follows, element by element or row by row.
    Attention(u32),
    /// A hand-written kernel by itself.
    Routine(NodeIdx),
}

/// Nodes that share a kernel.
#[derive(Clone, Debug)]
pub struct Group {
    pub form: Form,
    /// The node whose shape is the index space of a map, or of a matmul's result, as its members see it.
    pub domain: NodeIdx,
    pub level: u32,
    /// The stage of the evaluation that needs it first.
    pub stage: u32,
    /// What leaves the kernel.
    pub stores: Vec<StoredNode>,
    /// For a matmul, per operand (left, right): the node that the product's kernel computes itself before it multiplies, and that the
    /// operand is or is a view of. None for an operand that is read from memory.
    pub made: [Option<NodeIdx>; 2],
}

/// A value that leaves a kernel: as itself, or into its part of a concatenation or of what rows are written into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredNode {
    pub value: NodeIdx,
    pub part_of: Option<StoredPart>,
}

/// Where in a larger value a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// A concatenation, or rows that are written into something.
    pub whole: NodeIdx,
    /// Which of its inputs it is.
    pub part: u32,
}

/// What fusing decided. It names nodes, never sizes, so that it serves other sizes as well.
#[derive(Clone, Debug)]
pub struct Groups {
    pub groups: Vec<Group>,
    /// Per node, the group it is made in; None for what is free.
    pub group_of: Vec<Option<u32>>,
    /// Per node, whether it has memory of its own while the plan runs.
    pub stored: Vec<bool>,
    /// Per stored node, why its readers are not in its own group.
    pub reasons: Vec<Option<&'static str>>,
}

impl Groups {
    /// Whether a group finds a node in memory. What is not made on a lower level was free when the group was formed,
    /// and is simply made again, or seen through.
    pub fn is_memory_for(&self, group: u32, idx: NodeIdx) -> bool {
        let level = |group: u32| self.groups[group as usize].level;
        self.stored[idx as usize] && self.group_of[idx as usize].is_none_or(|g| level(g) < level(group))
    }
}

/// The memory a node is, seen through strides: an input or a stored node, and the view of it.
/// `is_stored` says which nodes count as memory besides inputs.
pub fn strided_source(graph: &Graph, is_stored: impl Fn(NodeIdx) -> bool, idx: NodeIdx) -> Option<(NodeIdx, View)> {
    let (source, map) = source(graph, is_stored, |_| false, idx)?;
    map.strided().map(|view| (source, *view))
}

/// The same for an operand of a product, which is widened while it is read, and may lie in other forms.
pub fn operand_source(
    graph: &Graph,
    is_stored: impl Fn(NodeIdx) -> bool,
    idx: NodeIdx,
    forms: OperandForms,
) -> Option<(NodeIdx, OperandArgs, Option<Panels>)> {
    let looks_through = |i| widens(graph, i) || forms.bytes && widens_bytes(graph, i);
    let (source, map) = source(graph, is_stored, looks_through, idx)?;
    let (lies, panels) = operand_args(&map, graph.nodes[source as usize].shape.n_elems(), forms)?;
    Some((source, lies, panels))
}

/// The same by strides alone.
pub fn widened_source(graph: &Graph, is_stored: impl Fn(NodeIdx) -> bool, idx: NodeIdx) -> Option<(NodeIdx, View)> {
    let (source, map) = source(graph, is_stored, |i| widens(graph, i), idx)?;
    map.strided().map(|view| (source, *view))
}

/// Whether a node is only a small float as a large one, which loses nothing.
pub fn widens(graph: &Graph, idx: NodeIdx) -> bool {
    let node = &graph.nodes[idx as usize];
    let is_small = |i: NodeIdx| matches!(graph.nodes[i as usize].dtype, DType::F16 | DType::BF16);
    matches!(node.op, Op::Cast) && node.dtype == DType::F32 && is_small(node.inputs[0])
}

/// Whether a node is only a byte as a large integer.
pub fn widens_bytes(graph: &Graph, idx: NodeIdx) -> bool {
    let node = &graph.nodes[idx as usize];
    let is_byte = |i: NodeIdx| graph.nodes[i as usize].dtype == DType::U8;
    matches!(node.op, Op::Cast) && matches!(node.dtype, DType::I32 | DType::U32) && is_byte(node.inputs[0])
}

fn source(
    graph: &Graph,
    is_stored: impl Fn(NodeIdx) -> bool,
    looks_through: impl Fn(NodeIdx) -> bool,
    mut idx: NodeIdx,
) -> Option<(NodeIdx, IndexMap)> {
    let mut map = IndexMap::identity(graph.nodes[idx as usize].shape);
    loop {
        let node = &graph.nodes[idx as usize];
        match &node.op {
            _ if is_stored(idx) => break,
            Op::Data | Op::Widen(_) => break,
            Op::Cast if looks_through(idx) => idx = node.inputs[0],
            Op::View(view) => {
                map = map.of(view);
                idx = node.inputs[0];
            }
            _ => return None,
        }
    }
    Some((idx, map))
}

/// The memory a node is as it stands, if it is some: itself, or what it is only a reshape of.
pub fn memory_of(graph: &Graph, stored: &[bool], idx: NodeIdx) -> Option<NodeIdx> {
    let (source, view) = strided_source(graph, |i| stored[i as usize], idx)?;
    let n_elems = |i: NodeIdx| graph.nodes[i as usize].shape.n_elems();
    // Blocks are not what they are widened to.
    let is_memory = stored[source as usize] || matches!(graph.nodes[source as usize].op, Op::Data);
    (is_memory && view.is_linear() && n_elems(source) == n_elems(idx)).then_some(source)
}
