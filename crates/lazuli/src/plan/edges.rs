//! The questions about sizes that fusing may ask. [`AskedGraph`] is a graph as fusing sees it: its structure plainly, its
//! sizes only through a named question, an [`Edge`]. Each question is written down with its answer, so that groups made for
//! one graph serve every graph of the same structure for which all answers are the same: fusing would ask the same
//! questions, get the same answers and decide the same. What an edge says of a graph depends on nothing but that graph.
//!
//! Structure is what [`StructureKey`](super::structure) holds: ops, edges, dtypes, and of each axis whether its size is 0, 1
//! or more. What follows from that ([`AskedGraph::is_empty`], [`AskedGraph::n_axes`]) is no question.

use std::cell::RefCell;
use std::fmt;

use super::attention::{self, ChainedProduct, ChainedProducts};
use super::operand::{OperandForms, operand_args};
use crate::dtype::DType;
use crate::fast_hash::FastMap;
use crate::graph::{Graph, NodeIdx, Op};
use crate::shape::AxisSet;
use crate::target::Limits;
use crate::view::{IndexMap, View};

/// A question about the sizes of a graph. Where its answer changes from one size to the next, the plan may be another one:
/// `explain` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Edge {
    /// Whether two nodes have equally many elements.
    SameCount(NodeIdx, NodeIdx),
    /// Whether the first has no more elements than the second.
    NoMore(NodeIdx, NodeIdx),
    /// Whether the fill of a pad is thin: an eighth of what is inside at most.
    ThinFill(NodeIdx),
    /// Whether a view of a pad shows each element of the pad's input twice or more on average. The fill is not counted, so that the answer
    /// for windows of 3 × 3 with stride 2 is yes for small images, too.
    Repeats(NodeIdx),
    /// Whether a view shows all elements of its input in the same order.
    Reshape(NodeIdx),
    /// Whether a view spreads a reduction's results back over what was reduced.
    SpreadsRows { view: NodeIdx, reduce: NodeIdx },
    /// Whether two reductions go over the same axes of the same sizes.
    SameReduce(NodeIdx, NodeIdx),
    /// Whether a reduction is so long, and has so few results, that it is cut into pieces.
    LongReduce(NodeIdx),
    /// Whether a node, seen through views, is all of a source in the same order.
    Whole { node: NodeIdx, source: NodeIdx },
    /// Whether a node, seen through views, is a source by one set of strides.
    Strided { node: NodeIdx, source: NodeIdx },
    /// Whether a product can read an operand where its source lies.
    Operand { node: NodeIdx, source: NodeIdx, side: OperandOf },
    /// Whether a row or column has so few elements that the product that reads it may make it.
    FewToMake(NodeIdx),
    /// Whether what may be chained products in the graph has this fingerprint.
    Chained(u64),
}

/// Whose operand a value is: it says in which layouts it may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperandOf {
    /// A lookup, which goes by strides alone.
    Gather,
    /// Rows from a position on that is known when the kernel runs, by strides alone.
    RowsAt,
    /// The left side of a product of this type.
    Left(DType),
    /// The right side of a product of this type.
    Right(DType),
    /// A chained product, which goes by strides and widens small floats.
    Chained,
}

impl OperandOf {
    /// The ways in which it may lie.
    pub fn forms(self, limits: &Limits) -> OperandForms {
        match self {
            OperandOf::Gather | OperandOf::RowsAt | OperandOf::Chained => OperandForms::default(),
            OperandOf::Left(dtype) => limits.operand_forms(dtype)[0],
            OperandOf::Right(dtype) => limits.operand_forms(dtype)[1],
        }
    }
}

impl Edge {
    /// What it is for a graph.
    pub fn answer(&self, graph: &Graph, limits: &Limits, chained: &ChainedProducts) -> bool {
        let shape = |idx: NodeIdx| graph.nodes[idx as usize].shape;
        let n_elems = |idx: NodeIdx| shape(idx).n_elems();
        let input = |idx: NodeIdx| graph.nodes[idx as usize].inputs[0];
        match *self {
            Edge::SameCount(a, b) => n_elems(a) == n_elems(b),
            Edge::NoMore(a, b) => n_elems(a) <= n_elems(b),
            Edge::ThinFill(pad) => n_elems(pad) <= n_elems(input(pad)) + n_elems(input(pad)) / 8,
            Edge::Repeats(view) => n_elems(view) >= 2 * n_elems(input(input(view))),
            Edge::Reshape(view) => seen_as(graph, view).is_linear() && n_elems(view) == n_elems(input(view)),
            Edge::SpreadsRows { view, reduce } => {
                n_elems(input(view)) == n_elems(reduce) && spreads_rows(graph, view, reduce)
            }
            Edge::SameReduce(a, b) => {
                reduced_axes(graph, a) == reduced_axes(graph, b) && shape(input(a)) == shape(input(b))
            }
            Edge::LongReduce(reduce) => {
                let rows = n_elems(reduce);
                let length = n_elems(input(reduce)).checked_div(rows).unwrap_or(0);
                length > limits.max_reduce && rows < limits.min_rows
            }
            Edge::Whole { node, source } => {
                let map = seen_from(graph, node, source);
                map.strided().is_some_and(View::is_linear) && n_elems(node) == n_elems(source)
            }
            Edge::Strided { node, source } => seen_from(graph, node, source).strided().is_some(),
            Edge::Operand { node, source, side } => {
                let forms = side.forms(limits);
                let map = seen_from(graph, node, source);
                map.strided().is_some() || operand_args(&map, n_elems(source), forms).is_some()
            }
            Edge::FewToMake(node) => n_elems(node) <= limits.max_made_elems,
            Edge::Chained(known) => attention::fingerprint(chained.of(graph, limits)) == known,
        }
    }
}

/// How a view node sees its input.
fn seen_as(graph: &Graph, view: NodeIdx) -> &View {
    match &graph.nodes[view as usize].op {
        Op::View(view) => view,
        op => unreachable!("{} is no view", op.name()),
    }
}

fn reduced_axes(graph: &Graph, reduce: NodeIdx) -> AxisSet {
    match graph.nodes[reduce as usize].op {
        Op::Reduce(_, axes) => axes,
        ref op => unreachable!("{} is no reduction", op.name()),
    }
}

/// How a node sees a source that it is made of by views (and casts) alone.
fn seen_from(graph: &Graph, node: NodeIdx, source: NodeIdx) -> IndexMap {
    let mut map = IndexMap::identity(graph.nodes[node as usize].shape);
    let mut at = node;
    while at != source {
        let node = &graph.nodes[at as usize];
        if let Op::View(view) = &node.op {
            map = map.of(view);
        }
        at = node.inputs[0];
    }
    map
}

/// Whether a view repeats each result of a reduction along the axes that were reduced.
fn spreads_rows(graph: &Graph, view: NodeIdx, reduce: NodeIdx) -> bool {
    let (axes, view) = (reduced_axes(graph, reduce), seen_as(graph, view));
    let full = graph.nodes[graph.nodes[reduce as usize].inputs[0] as usize].shape;
    if view.shape.n_elems() != full.n_elems() {
        return false;
    }
    let from = full.reduced(&axes, false).strides();
    let mut row_axis = 0;
    let spread = View::from_axes(
        (0..full.rank()).map(|i| {
            let stride = if axes.contains(i) { 0 } else { from[row_axis] };
            row_axis += !axes.contains(i) as usize;
            (full[i], stride)
        }),
        0,
    );
    same_map(&spread, view)
}

/// Whether two views give every element the same source, axes of size 1 aside.
fn same_map(a: &View, b: &View) -> bool {
    fn axes(v: &View) -> impl Iterator<Item = (usize, isize)> + '_ {
        v.shape.iter().copied().zip(v.strides).filter(|a| a.0 != 1)
    }
    a.offset == b.offset && a.mask.is_none() && b.mask.is_none() && axes(a).eq(axes(b))
}

/// Questions with their answers, in the order in which they were first asked.
pub type Answers = Vec<(Edge, bool)>;

/// A graph whose sizes are told only by answering questions, which are written down. An op's view is not to be looked into
/// either: it is sizes.
pub struct AskedGraph<'a> {
    graph: &'a Graph,
    limits: &'a Limits,
    chained: &'a ChainedProducts,
    asked: RefCell<AskedEdges>,
}

#[derive(Default)]
struct AskedEdges {
    answers: Answers,
    known: FastMap<Edge, bool>,
}

impl<'a> AskedGraph<'a> {
    /// A graph of which nothing was asked yet.
    pub fn new(graph: &'a Graph, limits: &'a Limits, chained: &'a ChainedProducts) -> AskedGraph<'a> {
        AskedGraph { graph, limits, chained, asked: RefCell::default() }
    }

    /// Answers a question.
    pub fn ask(&self, edge: Edge) -> bool {
        let asked = &mut *self.asked.borrow_mut();
        *asked.known.entry(edge).or_insert_with(|| {
            let answer = edge.answer(self.graph, self.limits, self.chained);
            asked.answers.push((edge, answer));
            answer
        })
    }

    /// What may be a chained product; which of them are; and the order in which nodes are placed because of them. What is
    /// found depends on sizes; a graph that cannot have any is not asked.
    pub fn chained(&self) -> (&'a [ChainedProduct], Vec<bool>, Vec<NodeIdx>) {
        let found = self.chained.of(self.graph, self.limits);
        if attention::may_be_found(self.graph, self.limits) {
            self.ask(Edge::Chained(attention::fingerprint(found)));
        }
        let (stays, order) = attention::settle(self.graph, found);
        (found, stays, order)
    }

    /// All that was asked.
    pub fn into_answers(self) -> Answers {
        self.asked.into_inner().answers
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.graph.nodes.len()
    }

    /// What is wanted.
    pub fn outputs(&self) -> &'a [NodeIdx] {
        &self.graph.outputs
    }

    /// What a node computes.
    pub fn op(&self, idx: NodeIdx) -> &'a Op {
        &self.graph.nodes[idx as usize].op
    }

    /// What a node is computed from.
    pub fn inputs(&self, idx: NodeIdx) -> &'a [NodeIdx] {
        &self.graph.nodes[idx as usize].inputs
    }

    /// The type of a node.
    pub fn dtype(&self, idx: NodeIdx) -> DType {
        self.graph.nodes[idx as usize].dtype
    }

    /// Whether a node has no elements.
    pub fn is_empty(&self, idx: NodeIdx) -> bool {
        self.graph.nodes[idx as usize].shape.contains(&0)
    }

    /// How many axes a node has that are longer than 1, or empty.
    pub fn n_axes(&self, idx: NodeIdx) -> usize {
        self.graph.nodes[idx as usize].shape.iter().filter(|size| **size != 1).count()
    }

    /// Whether a node is only a small float as a large one, which loses nothing.
    pub fn widens(&self, idx: NodeIdx) -> bool {
        super::groups::widens(self.graph, idx)
    }

    /// Whether a node is only a byte as a large integer.
    pub fn widens_bytes(&self, idx: NodeIdx) -> bool {
        super::groups::widens_bytes(self.graph, idx)
    }
}

/// An edge and what it is, told with the ops and shapes of its graph.
pub struct ToldEdge<'a> {
    pub edge: Edge,
    pub answer: bool,
    pub graph: &'a Graph,
}

impl fmt::Display for ToldEdge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = |idx: NodeIdx| format!("{} #{idx}", self.graph.nodes[idx as usize].op.name());
        match self.edge {
            Edge::SameCount(a, b) => write!(f, "{} and {} have equally many elements", node(a), node(b)),
            Edge::NoMore(a, b) => write!(f, "{} has no more elements than {}", node(a), node(b)),
            Edge::ThinFill(a) => write!(f, "{} has little fill", node(a)),
            Edge::Repeats(a) => write!(f, "{} shows each element inside the fill twice or more", node(a)),
            Edge::Reshape(a) => write!(f, "{} shows all elements in the same order", node(a)),
            Edge::SpreadsRows { view, reduce } => {
                write!(f, "{} spreads {} over what was reduced", node(view), node(reduce))
            }
            Edge::SameReduce(a, b) => write!(f, "{} and {} reduce the same axes of the same sizes", node(a), node(b)),
            Edge::LongReduce(a) => write!(f, "{} is long and has few results", node(a)),
            Edge::Whole { node: a, source } => write!(f, "{} is all of {} in the same order", node(a), node(source)),
            Edge::Strided { node: a, source } => write!(f, "{} is {} by strides", node(a), node(source)),
            Edge::Operand { node: a, source, .. } => write!(f, "{} is read where {} lies", node(a), node(source)),
            Edge::FewToMake(a) => write!(f, "{} has few elements for a product to make", node(a)),
            Edge::Chained(_) => write!(f, "the chained products are the same"),
        }?;
        write!(f, ": {}", if self.answer { "yes" } else { "no" })
    }
}
