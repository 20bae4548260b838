//! One walk over what was asked for: it makes the key under which plans are cached, and gathers what a run needs
//! (memory, constants, who may be donated). Only when the key is new is the graph itself written out for the planner.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::{SmallVec, smallvec};

use super::node::{Expr, Node, NodeRef};
use super::op::{Constant, CustomRef, Op};
use crate::dtype::DType;
use crate::fast_hash::FastMap;
use crate::shape::Shape;

/// The index of a node in a [`Graph`].
pub type NodeIdx = u32;

/// The planner's input: nodes in an order in which inputs come first. Plain data, no memory attached.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub nodes: Vec<GraphNode>,
    /// What is wanted.
    pub outputs: Vec<NodeIdx>,
    /// Where in `outputs` each stage ends; empty if nothing is staged.
    pub stages: Vec<usize>,
}

/// A node of a [`Graph`].
#[derive(Clone, Debug)]
pub struct GraphNode {
    pub op: Op,
    pub inputs: SmallVec<[NodeIdx; 3]>,
    pub shape: Shape,
    pub dtype: DType,
    /// For [`Op::Data`], which input of the plan it is; for [`Op::Const`], which constant. Else 0.
    pub slot: u32,
    /// For [`Op::Data`]: whether the evaluation is its only holder, so that its memory may be reused.
    pub donated: bool,
    /// Which node of the capture it was, for errors.
    pub origin: NodeIdx,
}

/// What one walk over the wanted tensors found.
pub struct Captured {
    /// Every node not yet computed and the computed ones they read, inputs first.
    pub nodes: Vec<NodeRef>,
    pub outputs: Vec<NodeIdx>,
    /// The computed nodes among `nodes`, in order of first use: the plan's inputs.
    pub leaves: Vec<NodeIdx>,
    /// Per leaf, whether the evaluation is its only holder.
    pub donated: Vec<bool>,
    /// Leaves whose memory is still on another device.
    pub moves: Vec<NodeRef>,
    /// The distinct constants, as lane bits, in order of first use.
    pub constants: Vec<u32>,
    /// Where in `outputs` each stage ends; empty if nothing is staged.
    pub stages: Vec<usize>,
    pub key: Key,
}

/// The structure of a graph, to the bit: two with equal keys have the same plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    words: Vec<u64>,
    /// The user's own ops, in order. They are held, so that none that is made later can be where one of them was and be
    /// taken for it: not even where the plan has no use for it.
    customs: Vec<CustomRef>,
    hash: u64,
}

impl Key {
    /// A structure as words, and the user's own ops in it.
    pub fn new(words: Vec<u64>, customs: Vec<CustomRef>) -> Key {
        // One multiply per word: keys of large graphs are long, and equality is checked in full anyway.
        let hash = words.iter().fold(0u64, |h, w| (h.rotate_left(5) ^ w).wrapping_mul(0x517c_c1b7_2722_0a95));
        Key { words, customs, hash }
    }

    /// Bytes it occupies.
    pub fn size_bytes(&self) -> usize {
        self.words.len() * 8 + self.customs.len() * size_of::<CustomRef>()
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// What the wanted nodes are made of, for looking at. The caller holds the device's lock. Other threads may take hold of
/// inputs at any time, so nothing may be overwritten that this calls donated: an evaluation uses
/// [`take_off`](super::take_off). `stages` says where in `wanted` each stage ends; it is empty if nothing is staged.
pub fn capture(wanted: &[&NodeRef], stages: &[usize]) -> Captured {
    let walk = GraphWalk::new(wanted);
    let donated = walk.donated(&walk.holders());
    walk.captured(donated, stages)
}

/// One walk from wanted nodes to memory, with the edges it went along.
pub(super) struct GraphWalk {
    pub nodes: Vec<NodeRef>,
    pub outputs: Vec<NodeIdx>,
    pub leaves: Vec<NodeIdx>,
    pub moves: Vec<NodeRef>,
    edges: SmallVec<[NodeIdx; 32]>,
    links: SmallVec<[NodeLinks; 16]>,
    writer: KeyWriter,
}

/// How a captured node is connected.
#[derive(Clone, Copy)]
struct NodeLinks {
    /// Where its edges end: they start where those of the node before it end.
    end: u32,
    way: GradientPath,
}

/// Where a gradient goes from a captured node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GradientPath {
    /// Nowhere: it is no float, flat, or detached.
    Ends,
    /// It is memory.
    Leaf,
    /// Nowhere: it is made of nothing.
    Source,
    Inputs,
    /// To the inputs, which a function of the user's is shown on the way.
    Shown,
    /// Through its twin.
    Twin,
}

impl GradientPath {
    fn of(node: &Node, expr: &Expr, has_twin: bool) -> GradientPath {
        match node.dtype.is_float() {
            true if has_twin => GradientPath::Twin,
            true if expr.op.is_flat() || !node.tracked && expr.is_identity() => GradientPath::Ends,
            true if expr.inputs.is_empty() => GradientPath::Source,
            true if matches!(expr.op, Op::Custom(_)) => GradientPath::Shown,
            true => GradientPath::Inputs,
            false => GradientPath::Ends,
        }
    }
}

impl GraphWalk {
    /// Walks from `wanted` to memory. The caller holds the device's lock.
    pub fn new(wanted: &[&NodeRef]) -> GraphWalk {
        static CAPTURES: AtomicU64 = AtomicU64::new(1);
        let capture = CAPTURES.fetch_add(1, Ordering::Relaxed);
        // Room for a small graph from the start: growing is what capturing one would cost most.
        let mut walk = GraphWalk {
            nodes: Vec::with_capacity(16),
            outputs: Vec::with_capacity(wanted.len()),
            leaves: Vec::new(),
            moves: Vec::new(),
            edges: SmallVec::new(),
            links: SmallVec::new(),
            writer: KeyWriter { words: Vec::with_capacity(64), ..KeyWriter::default() },
        };
        // A node is pushed to be opened (its inputs pushed), then closed (its own entry written).
        let mut stack: SmallVec<[(NodeRef, bool); 16]> = SmallVec::new();
        for node in wanted {
            stack.push(((*node).clone(), false));
            while let Some((node, close)) = stack.pop() {
                if node.seen(capture).is_some() {
                    continue;
                }
                if !close {
                    let at = stack.len();
                    let is_move = node.with_pending(|expr, _| {
                        if !expr.is_move() {
                            // One by one: extending costs more than what it adds.
                            for input in expr.inputs.iter().rev().filter(|i| i.seen(capture).is_none()) {
                                stack.push((input.clone(), false));
                            }
                        }
                        expr.is_move()
                    });
                    if is_move == Some(true) {
                        walk.moves.push(node.clone());
                    }
                    if is_move == Some(false) {
                        stack.insert(at, (node, true));
                        continue;
                    }
                }
                walk.close(node, close, capture);
            }
            walk.outputs.push(node.seen(capture).expect("every wanted node was visited"));
        }
        walk.writer.words.push(u64::MAX);
        walk.writer.words.extend(walk.outputs.iter().map(|o| *o as u64));
        walk
    }

    fn close(&mut self, node: NodeRef, is_pending: bool, capture: u64) {
        let (edges, writer) = (&mut self.edges, &mut self.writer);
        let mut way = GradientPath::Leaf;
        if is_pending {
            node.with_pending(|expr, has_twin| {
                for input in &expr.inputs {
                    edges.push(input.seen(capture).expect("inputs come first"));
                }
                writer.node(&node, expr, &edges[edges.len() - expr.inputs.len()..]);
                way = GradientPath::of(&node, expr, has_twin);
            });
        } else {
            self.leaves.push(self.nodes.len() as NodeIdx);
            writer.leaf(&node);
        }
        self.links.push(NodeLinks { end: self.edges.len() as u32, way });
        node.see(capture, self.nodes.len() as NodeIdx);
        self.nodes.push(node);
    }

    /// The inputs of a node that is not computed yet.
    pub fn inputs(&self, idx: NodeIdx) -> &[NodeIdx] {
        let start = idx.checked_sub(1).map_or(0, |before| self.links[before as usize].end);
        &self.edges[start as usize..self.links[idx as usize].end as usize]
    }

    /// Where a gradient goes from a node.
    pub fn way(&self, idx: NodeIdx) -> GradientPath {
        self.links[idx as usize].way
    }

    /// Who is held by what. A node is kept if something beside this walk and the edges that it went along holds it, or if
    /// a node does that does not let go of its inputs when an evaluation ends. An output lets go when it is computed,
    /// unless it is tracked; any other node does by going away itself, if it is not kept.
    pub fn holders(&self) -> Holders {
        let mut held: Holders = smallvec![Holder::default(); self.nodes.len()];
        self.outputs.iter().for_each(|o| held[*o as usize].is_output = true);
        for (i, node) in self.nodes.iter().enumerate().rev() {
            // One strong reference is `nodes`' own.
            held[i].is_held = Arc::strong_count(node) != held[i].n_edges as usize + 1;
            held[i].kept |= held[i].is_held;
            let releases = if held[i].is_output { !node.tracked } else { !held[i].kept };
            for input in self.inputs(i as NodeIdx) {
                let input = &mut held[*input as usize];
                input.n_edges += 1;
                input.kept |= !releases;
            }
        }
        held
    }

    /// Per leaf, whether the evaluation is its only holder, and no other node has the same memory.
    pub fn donated(&self, held: &Holders) -> Vec<bool> {
        let is_alone = |leaf: usize| !held[leaf].kept && self.nodes[leaf].holds_alone();
        self.leaves.iter().map(|leaf| is_alone(*leaf as usize)).collect()
    }

    /// What was found, with the leaves that may be overwritten.
    pub fn captured(self, donated: Vec<bool>, stages: &[usize]) -> Captured {
        let GraphWalk { nodes, outputs, leaves, moves, mut writer, .. } = self;
        writer.words.extend(donated.iter().map(|d| *d as u64));
        if !stages.is_empty() {
            writer.words.push(u64::MAX);
            writer.words.extend(stages.iter().map(|end| *end as u64));
        }
        let key = Key::new(writer.words, writer.customs);
        let stages = stages.to_vec();
        Captured { nodes, outputs, leaves, donated, moves, constants: writer.constants, stages, key }
    }
}

/// Per captured node, who holds it.
pub(super) type Holders = SmallVec<[Holder; 16]>;

#[derive(Clone, Copy, Default)]
pub(super) struct Holder {
    n_edges: u32,
    /// Whether something that this walk has not met holds it.
    pub is_held: bool,
    pub kept: bool,
    pub is_output: bool,
    /// Which of some outputs come from it by ways on which nothing is kept, a bit each: see `flight::ancestors`.
    pub reached: u64,
}

/// Writes the structure as words, and numbers leaves and constants.
#[derive(Default)]
struct KeyWriter {
    words: Vec<u64>,
    customs: Vec<CustomRef>,
    constants: Vec<u32>,
    numbers: FastMap<(u64, u32, DType), usize>,
}

impl KeyWriter {
    fn shape(&mut self, shape: &Shape) {
        self.words.extend(shape.iter().map(|d| *d as u64));
    }

    fn head(&mut self, tag: u64, node: &Node) {
        self.words.push(tag | (node.dtype as u64) << 8 | (node.shape.rank() as u64) << 16);
    }

    fn leaf(&mut self, node: &Node) {
        self.head(0, node);
        self.shape(&node.shape);
    }

    fn node(&mut self, node: &Node, expr: &Expr, edges: &[NodeIdx]) {
        let inputs = |w: &mut KeyWriter| w.words.extend(edges.iter().map(|i| *i as u64));
        // Elementwise ops have the shape of their inputs; the others write theirs.
        match &expr.op {
            Op::Data => unreachable!("data is always ready"),
            Op::Const(constant) => {
                self.head(1, node);
                self.shape(&node.shape);
                // Which constant it is, never what its value is: no plan depends on that.
                let idx = self.constant(constant, node.dtype);
                self.words.push(idx as u64);
            }
            Op::Index => {
                self.head(2, node);
                self.shape(&node.shape);
            }
            Op::Unary(row) => {
                self.head(3, node);
                self.words.push(std::ptr::from_ref(*row) as u64);
                inputs(self);
            }
            Op::Binary(row) => {
                self.head(4, node);
                self.words.push(std::ptr::from_ref(*row) as u64);
                inputs(self);
            }
            Op::Select => {
                self.head(5, node);
                inputs(self);
            }
            Op::Cast => {
                self.head(6, node);
                inputs(self);
            }
            Op::Commit => {
                self.head(15, node);
                inputs(self);
            }
            // Rule and axes are for gradients; the planner sees the first input alone.
            Op::WithRule(..) => {
                self.head(16, node);
                self.words.push(edges[0] as u64);
            }
            Op::Custom(op) => {
                self.head(7, node);
                self.words.push(op.address() as u64);
                self.words.push(expr.inputs.len() as u64);
                inputs(self);
                self.customs.push(op.clone());
            }
            Op::View(view) | Op::Pad(view) => {
                self.head(if matches!(expr.op, Op::View(_)) { 8 } else { 9 }, node);
                self.shape(&node.shape);
                let rank = node.shape.rank();
                self.words.extend(view.strides[..rank].iter().map(|s| *s as u64));
                self.words.push(view.offset as u64);
                for (low, high) in view.mask.iter().flat_map(|m| &m[..rank]) {
                    self.words.extend([*low as u64, *high as u64]);
                }
                inputs(self);
            }
            Op::Reduce(row, axes) => {
                self.head(10, node);
                self.words.push(std::ptr::from_ref(*row) as u64);
                self.words.push(axes.bits() as u64);
                inputs(self);
            }
            Op::Matmul => {
                self.head(11, node);
                inputs(self);
            }
            Op::Gather(axis, _) => {
                self.head(12, node);
                self.words.push(*axis as u64);
                inputs(self);
            }
            Op::Cat(axis) => {
                self.head(13, node);
                self.words.push((*axis as u64) << 32 | expr.inputs.len() as u64);
                inputs(self);
            }
            Op::Routine(row, params) => {
                self.head(14, node);
                self.words.push(std::ptr::from_ref(*row) as u64);
                self.words.extend(params.iter().map(|p| *p as u64));
                self.words.push(expr.inputs.len() as u64);
                inputs(self);
                self.shape(&node.shape);
            }
        }
    }

    /// The number of a constant: equal ones of one place share a number.
    fn constant(&mut self, constant: &Constant, dtype: DType) -> usize {
        let identity = constant.identity(dtype);
        *self.numbers.entry(identity).or_insert_with(|| {
            self.constants.push(identity.1);
            self.constants.len() - 1
        })
    }
}

impl Captured {
    /// The graph, written out for the planner.
    pub fn graph(&self) -> Graph {
        let mut slots = KeyWriter::default();
        let mut n_leaves = 0;
        let mut nodes: Vec<GraphNode> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            // The device's lock is still held, so the marks are still those of this capture.
            let idx = |n: &NodeRef| n.seen_as.load(Ordering::Relaxed);
            let (op, inputs) = node
                .with_pending(|e, _| (!e.is_move()).then(|| (e.op.clone(), e.inputs.iter().map(idx).collect())))
                .flatten()
                .unwrap_or((Op::Data, SmallVec::new()));
            let (slot, donated) = match &op {
                Op::Data => {
                    n_leaves += 1;
                    (n_leaves - 1, self.donated[n_leaves as usize - 1])
                }
                Op::Const(constant) => (slots.constant(constant, node.dtype) as u32, false),
                _ => (0, false),
            };
            nodes.push(GraphNode {
                op,
                inputs,
                shape: node.shape,
                dtype: node.dtype,
                slot,
                donated,
                origin: nodes.len() as NodeIdx,
            });
        }
        Graph { nodes, outputs: self.outputs.clone(), stages: self.stages.clone() }
    }
}
