//! Rewrites a graph into an equal, smaller one: equal nodes are shared, views of views become one view, what does
//! nothing goes. Each rule says its equation. Knows ops by family; nothing about kernels.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Limits, checks};
use crate::fast_hash::{FastHasher, FastMap};
use crate::graph::{Graph, GraphNode, NodeIdx, Op};
use crate::shape::{MAX_RANK, Shape};
use crate::view::View;

/// The simplified graph. Nodes that are no longer reached are gone.
pub fn simplify(graph: Graph, limits: &Limits) -> Graph {
    let mut graph = with_blocks_on_the_right(without_short_reductions(graph));
    let may_fail = graph.nodes.iter().any(|node| checks::may_fail(&node.op, limits));
    let n_nodes = graph.nodes.len();
    let known = FastMap::with_capacity_and_hasher(n_nodes, Default::default());
    let mut simplifier = Simplifier { nodes: std::mem::take(&mut graph.nodes), known, may_fail };
    // Nodes stay where they are until all are looked at: each is as it stands, or comes down to an earlier one.
    let mut new_idx: Vec<NodeIdx> = Vec::with_capacity(n_nodes);
    for idx in 0..n_nodes {
        simplifier.nodes[idx].inputs.iter_mut().for_each(|i| *i = new_idx[*i as usize]);
        new_idx.push(simplifier.place(idx));
    }
    graph.outputs.iter_mut().for_each(|o| *o = new_idx[*o as usize]);
    reachable(Graph { nodes: simplifier.nodes, ..graph })
}

/// Over axes of size 1 there is nothing to combine: reduce(x) = cast(reshape(x)).
fn without_short_reductions(graph: Graph) -> Graph {
    let is_short = |node: &GraphNode| match &node.op {
        Op::Reduce(_, axes) => {
            let x = &graph.nodes[node.inputs[0] as usize];
            (0..x.shape.rank()).all(|i| !axes.contains(i) || x.shape[i] == 1)
        }
        _ => false,
    };
    let short = found(&graph, is_short);
    rebuilt(graph, &short, |nodes, node| {
        let view = Op::View(Arc::new(View::contiguous(node.shape)));
        let dtype = nodes[node.inputs[0] as usize].dtype;
        nodes.push(GraphNode { op: view, dtype, ..node.clone() });
        GraphNode { op: Op::Cast, inputs: smallvec![nodes.len() as NodeIdx - 1], ..node }
    })
}

/// Products read blocks where they are stored by their right operand, and would widen a left one as a whole:
/// blocks·x = (xᵀ·blocksᵀ)ᵀ.
fn with_blocks_on_the_right(graph: Graph) -> Graph {
    if !graph.nodes.iter().any(|node| matches!(node.op, Op::Widen(_))) {
        return graph;
    }
    let is_blocks = |mut idx: NodeIdx| loop {
        let node = &graph.nodes[idx as usize];
        match node.op {
            Op::View(_) => idx = node.inputs[0],
            _ => return matches!(node.op, Op::Widen(_)),
        }
    };
    let is_left =
        |node: &GraphNode| matches!(node.op, Op::Matmul) && is_blocks(node.inputs[0]) && !is_blocks(node.inputs[1]);
    let left = found(&graph, is_left);
    rebuilt(graph, &left, |nodes, node| {
        let [a, b] = [0, 1].map(|i| {
            let x =
                GraphNode { slot: 0, donated: false, origin: node.origin, ..nodes[node.inputs[i] as usize].clone() };
            nodes.push(transposed(x, node.inputs[i]));
            nodes.len() as NodeIdx - 1
        });
        let shape = swapped(&node.shape).shape;
        nodes.push(GraphNode { inputs: smallvec![b, a], shape, ..node });
        let product = nodes.len() as NodeIdx - 1;
        transposed(nodes[product as usize].clone(), product)
    })
}

/// A node `x`, which is the node `idx`, with its last two axes swapped.
fn transposed(x: GraphNode, idx: NodeIdx) -> GraphNode {
    let view = swapped(&x.shape);
    GraphNode { shape: view.shape, op: Op::View(Arc::new(view)), inputs: smallvec![idx], ..x }
}

/// The last two axes swapped.
fn swapped(shape: &Shape) -> View {
    let mut order: SmallVec<[usize; MAX_RANK]> = (0..shape.rank()).collect();
    let n_before = shape.rank() - 2;
    order[n_before..].reverse();
    View::permute(shape, &order)
}

/// Which nodes are like this, in order.
fn found(graph: &Graph, is_like: impl Fn(&GraphNode) -> bool) -> Vec<NodeIdx> {
    (0..).zip(&graph.nodes).filter(|(_, node)| is_like(node)).map(|(idx, _)| idx).collect()
}

/// The graph with other nodes instead of some: `instead` gets one of them, adds what nodes it wants before it, and gives what stands
/// for it.
fn rebuilt(
    graph: Graph,
    some: &[NodeIdx],
    mut instead: impl FnMut(&mut Vec<GraphNode>, GraphNode) -> GraphNode,
) -> Graph {
    if some.is_empty() {
        return graph;
    }
    let Graph { nodes: old, outputs, stages } = graph;
    let mut nodes: Vec<GraphNode> = Vec::with_capacity(old.len() + 3 * some.len());
    let mut new_idx: Vec<NodeIdx> = Vec::with_capacity(old.len());
    for (idx, mut node) in (0..).zip(old) {
        node.inputs.iter_mut().for_each(|i| *i = new_idx[*i as usize]);
        if some.binary_search(&idx).is_ok() {
            node = instead(&mut nodes, node);
        }
        new_idx.push(nodes.len() as NodeIdx);
        nodes.push(node);
    }
    Graph { nodes, outputs: outputs.iter().map(|o| new_idx[*o as usize]).collect(), stages }
}

struct Simplifier {
    nodes: Vec<GraphNode>,
    // By hash; where two differ that hash alike, the earlier is simply not found again.
    known: FastMap<u64, NodeIdx>,
    // Whether any op of the graph may fail while it runs.
    may_fail: bool,
}

impl Simplifier {
    fn node(&self, idx: NodeIdx) -> &GraphNode {
        &self.nodes[idx as usize]
    }

    /// The node that this one is, or comes down to. Its inputs are what they come down to already.
    fn place(&mut self, idx: usize) -> NodeIdx {
        let node = &self.nodes[idx];
        match &node.op {
            // cast(x) to its own dtype = x
            Op::Cast if self.node(node.inputs[0]).dtype == node.dtype => node.inputs[0],
            // Where nothing can fail, what is new is new: commit(old, new) = new
            Op::Commit if !self.may_fail || node.inputs[0] == node.inputs[1] => node.inputs[1],
            // A value is the same whatever gradient it has.
            Op::WithRule(..) => node.inputs[0],
            Op::View(view) => self.place_view(idx, view.clone()),
            _ => self.share(idx),
        }
    }

    fn place_view(&mut self, idx: usize, recorded: Arc<View>) -> NodeIdx {
        let mut source = self.nodes[idx].inputs[0];
        // Another view than the one that was recorded, if it is one.
        let mut merged: Option<View> = None;
        loop {
            let x = self.node(source);
            let view = merged.as_ref().unwrap_or(&recorded);
            // x seen as it is = x
            if view.is_linear() && view.shape == x.shape {
                return source;
            }
            let through = match &x.op {
                // A number is the same wherever it is seen from.
                Op::Const(_) => {
                    self.nodes[idx] = GraphNode { shape: view.shape, ..x.clone() };
                    return self.share(idx);
                }
                // A view of a view is one view, where strides can say it.
                Op::View(inner) => inner.then(view).map(|both| (x.inputs[0], both)),
                // A slice of a concatenation that is inside one part: slice(cat(a, b)) = slice(b)
                Op::Cat(axis) => self.part_seen(x, *axis, view),
                _ => None,
            };
            let Some((from, both)) = through else { break };
            (source, merged) = (from, Some(both));
        }
        let node = &mut self.nodes[idx];
        node.inputs = smallvec![source];
        // As it was recorded, it is shared with the node of the tensor.
        if let Some(view) = merged.filter(|view| *view != *recorded) {
            (node.shape, node.op) = (view.shape, Op::View(Arc::new(view)));
        }
        self.share(idx)
    }

    /// The one part of a concatenation that a slice of it looks at, and how it sees that part.
    fn part_seen(&self, cat: &GraphNode, axis: usize, view: &View) -> Option<(NodeIdx, View)> {
        let rank = cat.shape.rank();
        if view.mask.is_some() || view.shape.rank() != rank || view.shape.n_elems() == 0 {
            return None;
        }
        let strides = cat.shape.strides();
        let mut rest = view.offset;
        // Per axis the first coordinate and the step to the next.
        let mut ranges = [(0isize, 0isize); MAX_RANK];
        for (i, range) in ranges[..rank].iter_mut().enumerate() {
            let step = if view.shape[i] == 1 { 0 } else { view.strides[i] };
            if step % strides[i] != 0 {
                return None;
            }
            *range = (rest / strides[i], step / strides[i]);
            rest %= strides[i];
            let last = range.0 + range.1 * (view.shape[i] as isize - 1);
            if range.0.min(last) < 0 || range.0.max(last) >= cat.shape[i] as isize {
                return None;
            }
        }
        let (first, step) = ranges[axis];
        let last = first + step * (view.shape[axis] as isize - 1);
        let mut start = 0;
        for &part in &cat.inputs {
            let shape = self.node(part).shape;
            let end = start + shape[axis] as isize;
            if first.min(last) >= start && first.max(last) < end {
                let strides = shape.strides();
                ranges[axis].0 -= start;
                let offset = (0..rank).map(|i| ranges[i].0 * strides[i]).sum();
                let axes = (0..rank).map(|i| (view.shape[i], ranges[i].1 * strides[i]));
                return Some((part, View::from_axes(axes, offset)));
            }
            start = end;
        }
        None
    }

    /// The node itself, or an earlier one that is equal.
    fn share(&mut self, idx: usize) -> NodeIdx {
        let node = &self.nodes[idx];
        // A number stays a node of its own, and is compared where it is read (`InputKey`): numbers that happen to be equal at
        // some sizes, such as the counts of two means, must not make another structure.
        if !matches!(node.op, Op::Const(_)) {
            let known = self.known.entry(hash(&self.nodes, node)).or_insert(idx as NodeIdx);
            if *known as usize != idx && equal(&self.nodes, &self.nodes[*known as usize], node) {
                return *known;
            }
            *known = idx as NodeIdx;
        }
        idx as NodeIdx
    }
}

/// What a node reads, as equal nodes are found by it: a number by its parameter of the plan, anything else by its node.
type InputKey = u64;

fn input_key(nodes: &[GraphNode], input: NodeIdx) -> InputKey {
    let node = &nodes[input as usize];
    match node.op {
        Op::Const(_) => 1 << 32 | node.slot as u64,
        _ => input as u64,
    }
}

/// Inputs in an order that does not tell `a + b` from `b + a`.
fn operands<'a>(nodes: &'a [GraphNode], node: &'a GraphNode) -> impl Iterator<Item = (InputKey, &'a GraphNode)> {
    let key = move |i: usize| input_key(nodes, node.inputs[i]);
    let last = node.inputs.len().saturating_sub(1);
    let is_swapped = matches!(&node.op, Op::Binary(row) if row.commutes && key(0) > key(1));
    (0..node.inputs.len()).map(move |i| {
        let i = if is_swapped { last - i } else { i };
        (key(i), &nodes[node.inputs[i] as usize])
    })
}

/// The hash leaves out shapes that follow from those of the inputs.
fn hash(nodes: &[GraphNode], node: &GraphNode) -> u64 {
    let mut hasher = FastHasher::default();
    std::mem::discriminant(&node.op).hash(&mut hasher);
    hasher.write_u64((node.dtype as u64) << 32 | node.slot as u64);
    operands(nodes, node).for_each(|(key, _)| hasher.write_u64(key));
    match &node.op {
        Op::Unary(row) => row.hash(&mut hasher),
        Op::Binary(row) => row.hash(&mut hasher),
        Op::Widen(format) => format.hash(&mut hasher),
        Op::Custom(op) => op.hash(&mut hasher),
        Op::View(view) | Op::Pad(view) => view.hash(&mut hasher),
        Op::Reduce(row, axes) => (row, axes).hash(&mut hasher),
        Op::Gather(axis, _) | Op::Cat(axis) | Op::WriteRows(axis) => axis.hash(&mut hasher),
        Op::RowsAt(axis) => (axis, node.shape).hash(&mut hasher),
        Op::Routine(row, params) => (row, params, node.shape).hash(&mut hasher),
        Op::Index => node.shape.hash(&mut hasher),
        Op::Data | Op::Const(_) | Op::Select | Op::Cast | Op::Commit | Op::WithRule(..) | Op::Matmul => {}
    }
    hasher.finish()
}

fn equal(nodes: &[GraphNode], a: &GraphNode, b: &GraphNode) -> bool {
    let same_op = match (&a.op, &b.op) {
        // Inputs are told apart by their slot.
        (Op::Data, Op::Data) | (Op::Index, Op::Index) => true,
        (Op::Select, Op::Select) | (Op::Cast, Op::Cast) | (Op::Matmul, Op::Matmul) => true,
        (Op::Commit, Op::Commit) => true,
        (Op::Unary(a), Op::Unary(b)) => a == b,
        (Op::Binary(a), Op::Binary(b)) => a == b,
        (Op::Widen(a), Op::Widen(b)) => a == b,
        (Op::Custom(a), Op::Custom(b)) => a == b,
        (Op::View(a), Op::View(b)) | (Op::Pad(a), Op::Pad(b)) => a == b,
        (Op::Reduce(a, x), Op::Reduce(b, y)) => (a, x) == (b, y),
        (Op::Gather(a, _), Op::Gather(b, _)) | (Op::Cat(a), Op::Cat(b)) => a == b,
        (Op::RowsAt(a), Op::RowsAt(b)) | (Op::WriteRows(a), Op::WriteRows(b)) => a == b,
        (Op::Routine(a, x), Op::Routine(b, y)) => (a, x) == (b, y),
        _ => false,
    };
    let same_inputs = || {
        let seen = |(operand, input): (InputKey, &GraphNode)| (operand, input.shape, input.dtype);
        operands(nodes, a).map(seen).eq(operands(nodes, b).map(seen))
    };
    same_op && (a.shape, a.dtype, a.slot) == (b.shape, b.dtype, b.slot) && same_inputs()
}

/// Only the nodes that outputs depend on, in the same order.
fn reachable(mut graph: Graph) -> Graph {
    const GONE: NodeIdx = NodeIdx::MAX;
    let mut new_idx = vec![GONE; graph.nodes.len()];
    graph.outputs.iter().for_each(|o| new_idx[*o as usize] = 0);
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if new_idx[i] != GONE {
            node.inputs.iter().for_each(|i| new_idx[*i as usize] = 0);
        }
    }
    if !new_idx.contains(&GONE) {
        return graph;
    }
    let (mut old, mut n_kept) = (0, 0);
    graph.nodes.retain_mut(|node| {
        let is_live = new_idx[old] != GONE;
        if is_live {
            new_idx[old] = n_kept;
            n_kept += 1;
            node.inputs.iter_mut().for_each(|i| *i = new_idx[*i as usize]);
        }
        old += 1;
        is_live
    });
    graph.outputs.iter_mut().for_each(|o| *o = new_idx[*o as usize]);
    graph
}
