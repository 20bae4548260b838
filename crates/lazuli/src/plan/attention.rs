//! Finds chained products before anything is fused: a product whose left operand is a map over other products, perhaps
//! with a softmax along its rows. One kernel computes such a product block by block (online softmax), so that the left
//! operand, the largest value by far, is never stored. Goes by what rows say of themselves (a reduction is a maximum or a
//! sum, a function turns sums into products), not by what the user called; knows shapes and the limits handed to it.
//!
//! The softmax of a chained product is normalised after the sum: `Σ (eⱼ·r)·vⱼ = (Σ eⱼ·vⱼ)·r`. What lies between the inner
//! products and the outer one is computed by every kernel that needs it; if anything else needs it, it is stored and
//! there is no chained product.

use std::cell::OnceCell;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::Limits;
use crate::fast_hash::{FastHasher, FastMap};
use crate::graph::{Graph, GraphNode, NodeIdx, Op};
use crate::ops::{BinaryRow, CombineStep, RegisterStep, UnaryRow};
use crate::shape::Shape;
use crate::view::View;

/// A chained product, as nodes of the graph.
#[derive(Clone, Debug)]
pub struct ChainedProduct {
    /// The outer product.
    pub root: NodeIdx,
    /// The shape of scores, `[batch…, rows, columns]`, or `[batch…, columns, rows]` if they are turned.
    pub space: Shape,
    /// Whether the left operand is the scores with their last two axes exchanged.
    pub is_turned: bool,
    pub inner: Vec<InnerNode>,
    /// What a weight is, or with a softmax the exponent of.
    pub score: NodeIdx,
    /// What weights are multiplied with, beside that.
    pub factors: Vec<NodeIdx>,
    pub softmax: Option<SoftmaxNodes>,
    /// What is the same for all of a row: `product ∘ node`, innermost first.
    pub row_factors: Vec<(&'static BinaryRow, NodeIdx)>,
    /// Nodes of the size of scores that only chained products need.
    pub interior: Vec<NodeIdx>,
    /// Nodes with one element a row that depend on the scores: others may need them, too.
    pub row_nodes: Vec<NodeIdx>,
    /// What both are computed from, beside the inner products.
    pub leaves: Vec<NodeIdx>,
}

/// The nodes of `exp(score − shift)`.
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxNodes {
    pub exp: &'static UnaryRow,
    pub sub: &'static BinaryRow,
    /// What is subtracted, of the size of scores.
    pub shift: NodeIdx,
    pub max: NodeIdx,
    pub sum: Option<NodeIdx>,
}

/// An inner product as scores see it.
#[derive(Clone, Debug)]
pub struct InnerNode {
    /// The node of the size of scores: the product itself or a view of it.
    pub seen: NodeIdx,
    pub product: NodeIdx,
    /// Per axis of the space, along which axis of the product it goes, and how far at a step.
    pub axes: Vec<Option<(usize, isize)>>,
    /// Where it starts along each axis of the product.
    pub start: Vec<isize>,
    /// Whether the last axis but one of scores goes along the columns of the product.
    pub is_turned: bool,
}

/// What may be a chained product in one graph, searched for once, when somebody first asks.
#[derive(Default)]
pub struct ChainedProducts(OnceCell<Vec<ChainedProduct>>);

impl ChainedProducts {
    /// What the graph has that may be one, ordered by outer products: [`settle`] says which of them are. The search runs
    /// once; later calls return its result.
    pub fn of(&self, graph: &Graph, limits: &Limits) -> &[ChainedProduct] {
        self.0.get_or_init(|| search(graph, limits))
    }
}

/// The most nodes that the search below one outer product visits before it gives up: planning must stay linear in nodes.
const MAX_NODES: usize = 512;

/// Whether a graph of this structure may have chained products at all: it takes two products and an exponential.
pub fn may_be_found(graph: &Graph, limits: &Limits) -> bool {
    let n_products = graph.nodes.iter().filter(|node| matches!(node.op, Op::Matmul)).count();
    limits.fuse && limits.max_chained_depth > 0 && n_products > 1 && graph.nodes.iter().any(|node| is_exp(&node.op))
}

/// What tells chained products apart that are made of other nodes. Sizes have no part in it.
pub fn fingerprint(found: &[ChainedProduct]) -> u64 {
    let mut hasher = FastHasher::default();
    for chained in found {
        let ChainedProduct { root, is_turned, score, factors, interior, row_nodes, leaves, .. } = chained;
        (root, is_turned, score, factors, interior, row_nodes, leaves).hash(&mut hasher);
        let inner = chained.inner.iter().map(|inner| (inner.seen, inner.product, inner.is_turned));
        inner.for_each(|inner| inner.hash(&mut hasher));
        chained.row_factors.iter().for_each(|factor| factor.1.hash(&mut hasher));
        let softmax = chained.softmax.map(|softmax| (softmax.shift, softmax.max, softmax.sum));
        softmax.hash(&mut hasher);
    }
    hasher.finish()
}

/// All nodes of a graph that may be roots of chained products: all that sizes decide.
fn search(graph: &Graph, limits: &Limits) -> Vec<ChainedProduct> {
    if !may_be_found(graph, limits) {
        return Vec::new();
    }
    let mut seen = SeenNodes::of(graph);
    let mut found: Vec<ChainedProduct> = Vec::new();
    for (root, node) in graph.nodes.iter().enumerate() {
        if matches!(node.op, Op::Matmul) && seen.has_exp[node.inputs[0] as usize] {
            found.extend(Search::new(graph, limits, root as NodeIdx, &mut seen).and_then(Search::run));
        }
    }
    found
}

/// Which of those that were found are chained products, and the order in which nodes are placed because of them. It looks at
/// structure alone, so it is the same for all sizes at which the same ones are found.
pub fn settle(graph: &Graph, found: &[ChainedProduct]) -> (Vec<bool>, Vec<NodeIdx>) {
    // The outer product of one is stored, so it cannot be an inner product of another as well: the first to claim it stays.
    let mut claimed: Vec<NodeIdx> = Vec::new();
    let mut stays: Vec<bool> = Vec::with_capacity(found.len());
    for chained in found {
        let is_apart = !chained.interior.iter().any(|node| claimed.contains(node));
        claimed.extend(is_apart.then_some(chained.root));
        stays.push(is_apart);
    }
    // One that goes takes away a reason for others to stay.
    while stays.contains(&true) {
        // Per node, the chained products that it is inside of, and whether it must be seen by nobody else.
        let mut inside: Vec<SmallVec<[(usize, bool); 2]>> = vec![SmallVec::new(); graph.nodes.len()];
        for (i, chained) in found.iter().enumerate().filter(|(i, _)| stays[*i]) {
            chained.interior.iter().for_each(|node| inside[*node as usize].push((i, true)));
            chained.row_nodes.iter().for_each(|node| inside[*node as usize].push((i, false)));
        }
        let before = stays.clone();
        let mut seen_outside =
            |node: NodeIdx| inside[node as usize].iter().for_each(|(i, is_interior)| stays[*i] &= !is_interior);
        graph.outputs.iter().for_each(|output| seen_outside(*output));
        for (user, node) in graph.nodes.iter().enumerate() {
            for input in node.inputs.iter().filter(|input| !inside[**input as usize].is_empty()) {
                let is_within = |(i, _): &(usize, bool)| {
                    found[*i].root == user as NodeIdx || inside[user].iter().any(|(other, _)| other == i)
                };
                if !inside[*input as usize].iter().any(is_within) {
                    seen_outside(*input);
                }
            }
        }
        if stays == before {
            match order(graph, found, &stays) {
                Some(order) => return (stays, order),
                // Where values of rows go in a circle, there are none.
                None => break,
            }
        }
    }
    (vec![false; found.len()], (0..graph.nodes.len() as NodeIdx).collect())
}

/// The order in which nodes are placed: inputs first, and whatever needs a row's value of a chained product after its
/// root. None if there is no such order.
fn order(graph: &Graph, found: &[ChainedProduct], stays: &[bool]) -> Option<Vec<NodeIdx>> {
    let mut root_of: FastMap<NodeIdx, Vec<NodeIdx>> = FastMap::default();
    for (chained, _) in found.iter().zip(stays).filter(|(_, stays)| **stays) {
        let own = |idx: &NodeIdx| chained.interior.contains(idx) || chained.row_nodes.contains(idx);
        for (i, node) in graph.nodes.iter().enumerate() {
            let i = i as NodeIdx;
            let needs_row = node.inputs.iter().any(|input| chained.row_nodes.contains(input));
            if needs_row && i != chained.root && !own(&i) {
                root_of.entry(i).or_default().push(chained.root);
            }
        }
    }
    if root_of.is_empty() {
        return Some((0..graph.nodes.len() as NodeIdx).collect());
    }
    // 0: not seen, 1: open, 2: done.
    let mut state = vec![0u8; graph.nodes.len()];
    let mut order = Vec::with_capacity(graph.nodes.len());
    for start in 0..graph.nodes.len() as NodeIdx {
        let mut stack = vec![(start, false)];
        while let Some((idx, is_done)) = stack.pop() {
            if is_done {
                state[idx as usize] = 2;
                order.push(idx);
                continue;
            }
            match state[idx as usize] {
                2 => continue,
                1 => return None,
                _ => state[idx as usize] = 1,
            }
            stack.push((idx, true));
            let extra = root_of.get(&idx).map_or(&[][..], |roots| &roots[..]);
            let before = graph.nodes[idx as usize].inputs.iter().chain(extra);
            stack.extend(before.filter(|input| state[**input as usize] != 2).map(|input| (*input, false)));
        }
    }
    Some(order)
}

/// How the left operand of a product sees scores.
#[derive(Clone, Copy, PartialEq)]
enum SeenAs {
    /// As they are, perhaps with the batch in another shape.
    Same,
    /// With their last two axes exchanged.
    Turned,
}

/// The scores that a left operand is, and how it sees them.
fn scores_of(graph: &Graph, left: NodeIdx) -> (NodeIdx, SeenAs) {
    let Op::View(view) = &graph.nodes[left as usize].op else { return (left, SeenAs::Same) };
    let source = graph.nodes[left as usize].inputs[0];
    let shape = graph.nodes[source as usize].shape;
    let rank = shape.rank();
    if rank < 2 || view.mask.is_some() {
        return (left, SeenAs::Same);
    }
    let turned = View::permute(&shape, &(0..rank - 2).chain([rank - 1, rank - 2]).collect::<Vec<_>>());
    if turned == **view {
        return (source, SeenAs::Turned);
    }
    let matrix = |s: &Shape| (s.rank() >= 2).then(|| (s[s.rank() - 2], s[s.rank() - 1]));
    let is_same = view.is_linear() && view.shape.n_elems() == shape.n_elems();
    // One batch axis can be taken for several, which have strides then; several not always for others.
    match is_same && matrix(&view.shape) == matrix(&shape) && view.shape.rank() <= 3 {
        true => (source, SeenAs::Same),
        false => (left, SeenAs::Same),
    }
}

/// What searches from all roots of a graph share.
struct SeenNodes {
    /// Per node, whether it is a map of an exponential: a left operand that is not, is no weight.
    has_exp: Vec<bool>,
    /// Per node of the size of scores that was looked at: from which root, and whether it depends on an inner product.
    depends: Vec<Option<(NodeIdx, bool)>>,
    /// Per node on the way to a row's value: from which root it was looked at, and whether it depends on the scores.
    row_depends: Vec<Option<(NodeIdx, bool)>>,
}

impl SeenNodes {
    fn of(graph: &Graph) -> SeenNodes {
        let mut has_exp: Vec<bool> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let is_map = is_mapped(&node.op) || matches!(node.op, Op::View(_));
            has_exp.push(is_exp(&node.op) || is_map && node.inputs.iter().any(|input| has_exp[*input as usize]));
        }
        let (depends, row_depends) = (vec![None; graph.nodes.len()], vec![None; graph.nodes.len()]);
        SeenNodes { has_exp, depends, row_depends }
    }
}

fn is_exp(op: &Op) -> bool {
    matches!(op, Op::Unary(row) if row.step == Some(RegisterStep::Exp))
}

struct Search<'a> {
    graph: &'a Graph,
    limits: &'a Limits,
    seen: &'a mut SeenNodes,
    root: NodeIdx,
    space: Shape,
    found: ChainedProduct,
    has_exp: bool,
    n_seen: usize,
}

impl<'a> Search<'a> {
    fn new(graph: &'a Graph, limits: &'a Limits, root: NodeIdx, seen: &'a mut SeenNodes) -> Option<Search<'a>> {
        let node = &graph.nodes[root as usize];
        let (left, way) = scores_of(graph, node.inputs[0]);
        let space = graph.nodes[left as usize].shape;
        let n_values = node.shape[node.shape.rank() - 1];
        let is_right =
            node.dtype.is_float() && space.rank() >= 2 && space[space.rank() - 1] > 1 && space[space.rank() - 2] > 0;
        if !is_right || node.shape.n_elems() == 0 || n_values > limits.max_chained_depth {
            return None;
        }
        let (factors, inner, row_factors) = Default::default();
        let (row_nodes, leaves) = Default::default();
        let interior = if left == node.inputs[0] { Vec::new() } else { vec![node.inputs[0]] };
        let found = ChainedProduct {
            root,
            space,
            is_turned: way == SeenAs::Turned,
            inner,
            score: left,
            factors,
            softmax: None,
            row_factors,
            interior,
            row_nodes,
            leaves,
        };
        Some(Search { graph, limits, seen, root, space, found, has_exp: false, n_seen: 0 })
    }

    /// Whether a node depends on an inner product, if it was looked at.
    fn depends(&self, idx: NodeIdx) -> Option<bool> {
        self.seen.depends[idx as usize].filter(|known| known.0 == self.root).map(|known| known.1)
    }

    /// Whether a row's value depends on the scores, if it was looked at.
    fn row_depends(&self, idx: NodeIdx) -> Option<bool> {
        self.seen.row_depends[idx as usize].filter(|known| known.0 == self.root).map(|known| known.1)
    }

    fn node(&self, idx: NodeIdx) -> &'a GraphNode {
        &self.graph.nodes[idx as usize]
    }

    fn run(mut self) -> Option<ChainedProduct> {
        self.found.interior.reserve(16);
        // A softmax runs along the rows of scores; turned, it would run along their columns.
        if !self.found.is_turned {
            self.peel(self.found.score)?;
        }
        let roots: Vec<NodeIdx> = [self.found.score].into_iter().chain(self.found.factors.iter().copied()).collect();
        for root in roots {
            self.walk(root)?;
        }
        if let Some(softmax) = self.found.softmax {
            let rows: Vec<NodeIdx> =
                [softmax.shift].into_iter().chain(self.found.row_factors.iter().map(|f| f.1)).collect();
            for row in rows {
                self.walk_rows(row)?;
            }
            self.found.row_nodes.extend([softmax.max].into_iter().chain(self.found.softmax?.sum));
        }
        let depends_itself = self.depends(self.found.score).unwrap_or(true);
        let n_bindings = 2 * self.found.inner.len() + 1 + self.found.leaves.len() + 2;
        let is_one = !self.found.inner.is_empty()
            && (self.found.softmax.is_some() || self.has_exp)
            && depends_itself
            && n_bindings <= self.limits.max_bindings
            && self.found.interior.len() + 16 <= self.limits.max_insts;
        let values = self.node(self.root).inputs[1];
        let products = self.found.inner.iter().flat_map(|inner| self.node(inner.product).inputs.iter().copied());
        let read = products.chain([values]).chain(self.found.leaves.iter().copied());
        let is_one =
            is_one && read.chain([self.root]).all(|idx| self.memory_elems(idx) <= self.limits.max_chained_elems);
        let own = |idx: &NodeIdx| self.found.interior.contains(idx) || self.found.row_nodes.contains(idx);
        (is_one && !own(&values)).then_some(self.found)
    }

    /// Elements of the memory that a node is or is seen in.
    fn memory_elems(&self, mut idx: NodeIdx) -> usize {
        while let Op::View(_) | Op::Cast = &self.node(idx).op {
            idx = self.node(idx).inputs[0];
        }
        self.node(idx).shape.n_elems()
    }

    /// Takes apart a weight from the outside: what is the same along a row, other factors, and an exponential of scores less
    /// their maximum. If it is none of these, the weight is the score.
    fn peel(&mut self, left: NodeIdx) -> Option<()> {
        let (mut at, mut passed) = (left, Vec::new());
        let (mut factors, mut row_factors) = (Vec::new(), Vec::new());
        for _ in 0..MAX_NODES {
            let node = self.node(at);
            if node.shape != self.space || !node.dtype.is_float() {
                return Some(());
            }
            passed.push(at);
            match &node.op {
                Op::Cast if self.node(node.inputs[0]).dtype.is_float() => at = node.inputs[0],
                Op::Binary(row) if row.step == Some(RegisterStep::Mul) => {
                    let [x, y] = [node.inputs[0], node.inputs[1]];
                    let (is_row_x, is_row_y) = (self.is_row(x), self.is_row(y));
                    match (is_row_x, is_row_y) {
                        (_, true) => row_factors.push((*row, y)),
                        (true, _) => row_factors.push((*row, x)),
                        _ if !self.has_product(y) => factors.push(y),
                        _ if !self.has_product(x) => factors.push(x),
                        _ => return Some(()),
                    }
                    let is_left = is_row_y || (!is_row_x && factors.last() == Some(&y));
                    at = if is_left { x } else { y };
                }
                Op::Binary(row) if row.step == Some(RegisterStep::Div) && self.is_row(node.inputs[1]) => {
                    row_factors.push((*row, node.inputs[1]));
                    at = node.inputs[0];
                }
                Op::Unary(exp) if exp.step == Some(RegisterStep::Exp) => {
                    let less = self.node(node.inputs[0]);
                    let Op::Binary(sub) = &less.op else { return Some(()) };
                    if sub.step != Some(RegisterStep::Sub) || !self.is_row(less.inputs[1]) {
                        return Some(());
                    }
                    let (score, shift) = (less.inputs[0], less.inputs[1]);
                    let max = self.reduction(score, CombineStep::Max);
                    let Some(max) = max.filter(|max| self.is_made_of(shift, *max)) else { return Some(()) };
                    passed.push(node.inputs[0]);
                    let sum = self.reduction(at, CombineStep::Add);
                    self.found.softmax = Some(SoftmaxNodes { exp, sub, shift, max, sum });
                    row_factors.reverse();
                    (self.found.score, self.found.factors, self.found.row_factors) = (score, factors, row_factors);
                    self.found.interior.extend(passed);
                    return Some(());
                }
                _ => return Some(()),
            }
        }
        None
    }

    /// The reduction of a node along the columns that combines by this step, if there is one.
    fn reduction(&self, of: NodeIdx, step: CombineStep) -> Option<NodeIdx> {
        let last = self.space.rank() - 1;
        let is_it = |node: &GraphNode| match &node.op {
            Op::Reduce(row, axes) => {
                let is_last = (0..=last).all(|axis| axes.contains(axis) == (axis == last));
                row.step == Some(step) && is_last && node.inputs[0] == of
            }
            _ => false,
        };
        (of as usize + 1..self.graph.nodes.len()).find(|i| is_it(&self.graph.nodes[*i])).map(|i| i as NodeIdx)
    }

    /// Whether a row's value is made of a reduction and numbers alone.
    fn is_made_of(&self, idx: NodeIdx, max: NodeIdx) -> bool {
        let node = self.node(idx);
        let is_map = is_mapped(&node.op) || matches!(node.op, Op::View(_));
        idx == max
            || matches!(node.op, Op::Const(_))
            || is_map && node.inputs.iter().all(|input| self.is_made_of(*input, max))
    }

    /// Whether a node of the size of scores is the same along each row.
    fn is_row(&self, idx: NodeIdx) -> bool {
        let node = self.node(idx);
        match &node.op {
            Op::Const(_) => true,
            Op::View(view) => view.strides[view.shape.rank() - 1] == 0,
            Op::Unary(_) | Op::Binary(_) | Op::Cast => node.inputs.iter().all(|input| self.is_row(*input)),
            _ => false,
        }
    }

    /// Whether a node of the size of scores depends on a product of that size.
    fn has_product(&mut self, idx: NodeIdx) -> bool {
        if self.inner_product(idx).is_some() {
            return true;
        }
        let node = self.node(idx);
        self.n_seen += 1;
        is_mapped(&node.op) && self.n_seen < MAX_NODES && node.inputs.iter().any(|input| self.has_product(*input))
    }

    /// Goes through the map of a score, down to inner products and leaves. Gives whether it depends on an inner product.
    fn walk(&mut self, idx: NodeIdx) -> Option<bool> {
        if let Some(depends) = self.depends(idx) {
            return Some(depends);
        }
        self.n_seen += 1;
        if self.n_seen > MAX_NODES {
            return None;
        }
        let node = self.node(idx);
        let depends = if let Some(inner) = self.inner_product(idx) {
            self.found.interior.extend([idx, inner.product].into_iter().take(1 + (idx != inner.product) as usize));
            self.found.inner.push(inner);
            if self.found.inner.len() > 2 {
                return None;
            }
            true
        } else if is_mapped(&node.op) && node.shape == self.space {
            let mut depends = false;
            for input in &node.inputs {
                depends |= self.walk(*input)?;
            }
            if depends {
                self.found.interior.push(idx);
                self.has_exp |= is_exp(&node.op);
            }
            depends
        } else {
            false
        };
        self.seen.depends[idx as usize] = Some((self.root, depends));
        if depends {
            // Of what does not depend on scores, the topmost nodes are leaves.
            let leaves = node.inputs.iter().copied().filter(|input| self.depends(*input) == Some(false));
            let leaves: SmallVec<[NodeIdx; 4]> = leaves.collect();
            self.found.leaves.extend(leaves);
        } else if self.found.factors.contains(&idx) {
            self.found.leaves.push(idx);
        }
        Some(depends)
    }

    /// The same for what has one value a row, down to the softmax's reductions.
    fn walk_rows(&mut self, idx: NodeIdx) -> Option<bool> {
        if let Some(depends) = self.row_depends(idx) {
            return Some(depends);
        }
        let softmax = self.found.softmax?;
        self.n_seen += 1;
        if self.n_seen > MAX_NODES {
            return None;
        }
        let node = self.node(idx);
        let depends = if idx == softmax.max || Some(idx) == softmax.sum {
            true
        } else {
            let mut depends = false;
            if is_mapped(&node.op) || matches!(node.op, Op::View(_)) {
                for input in &node.inputs {
                    depends |= self.walk_rows(*input)?;
                }
            }
            if depends {
                let list = if node.shape == self.space { &mut self.found.interior } else { &mut self.found.row_nodes };
                list.push(idx);
                let leaves = node.inputs.iter().copied().filter(|input| self.row_depends(*input) == Some(false));
                let leaves: SmallVec<[NodeIdx; 4]> = leaves.collect();
                self.found.leaves.extend(leaves);
            }
            depends
        };
        self.seen.row_depends[idx as usize] = Some((self.root, depends));
        if !depends && self.found.row_factors.iter().any(|f| f.1 == idx) {
            self.found.leaves.push(idx);
        }
        Some(depends)
    }

    /// The inner product that a node of the size of scores is, if it is one.
    fn inner_product(&self, idx: NodeIdx) -> Option<InnerNode> {
        let node = self.node(idx);
        let (product, view) = match &node.op {
            Op::Matmul => (idx, View::contiguous(node.shape)),
            Op::View(view) => (node.inputs[0], **view),
            _ => return None,
        };
        let of = self.node(product);
        let depth = || self.node(of.inputs[0]).shape[of.shape.rank() - 1];
        if node.shape != self.space || !matches!(of.op, Op::Matmul) || !of.dtype.is_float() {
            return None;
        }
        if depth() > self.limits.max_chained_depth || view.mask.is_some() {
            return None;
        }
        let (axes, start) = coordinates(&view, &of.shape)?;
        let (rank, product_rank) = (self.space.rank(), of.shape.rank());
        let (m, n) = (product_rank - 2, product_rank - 1);
        let [row, column] = [axes[rank - 2], axes[rank - 1]].map(|axis| axis.map(|a| a.0));
        let is_in = |axis: Option<usize>, of: usize| axis.is_none_or(|axis| axis == of);
        let is_turned = match (is_in(row, m) && is_in(column, n), is_in(row, n) && is_in(column, m)) {
            (true, _) => false,
            (false, true) => true,
            _ => return None,
        };
        let is_batch = |axis: &Option<(usize, isize)>| axis.is_none_or(|axis| axis.0 < m);
        axes[..rank - 2].iter().all(is_batch).then_some(InnerNode { seen: idx, product, axes, start, is_turned })
    }
}

/// Whether an op is a function of the same element of its inputs that any kernel can compute.
fn is_mapped(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast)
}

/// Per axis of a view over elements of `shape`: along which axis of the shape it goes and how far, none if it stays; and
/// where along each it starts. None where it goes along several.
#[allow(clippy::type_complexity)]
fn coordinates(view: &View, shape: &Shape) -> Option<(Vec<Option<(usize, isize)>>, Vec<isize>)> {
    let strides = shape.strides();
    let mut start: Vec<isize> = Vec::with_capacity(shape.rank());
    let mut offset = view.offset;
    for axis in 0..shape.rank() {
        start.push(offset / strides[axis].max(1));
        offset %= strides[axis].max(1);
    }
    let mut end = start.clone();
    let mut axes = Vec::with_capacity(view.shape.rank());
    for (size, step) in view.shape.iter().copied().zip(view.strides) {
        if size <= 1 || step == 0 {
            axes.push(None);
            continue;
        }
        let fits = |axis: &usize| shape[*axis] > 1 && step > 0 && step % strides[*axis] == 0;
        let axis = (0..shape.rank()).find(fits)?;
        let by = step / strides[axis];
        end[axis] += by * (size as isize - 1);
        axes.push(Some((axis, by)));
    }
    let is_inside = (0..shape.rank()).all(|axis| end[axis] < shape[axis].max(1) as isize);
    is_inside.then_some((axes, start))
}
