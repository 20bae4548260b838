//! One walk over what was asked for: it makes the key under which plans are cached, and gathers what a run needs
//! (memory, constants, who may be donated). Only when the key is new is the graph itself written out for the planner.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::node::{Expr, Node, NodeRef};
use super::op::{Constant, CustomRef, Op, OpenNumber};
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

/// What one walk over the wanted tensors found, with the edges it went along. Its lists are kept for the next walk of the
/// thread: allocating them would cost more than walking over a small graph.
#[derive(Default)]
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
    /// Where in `outputs` each stage ends; empty if nothing is staged.
    pub stages: Vec<usize>,
    writer: KeyWriter,
    edges: Vec<NodeIdx>,
    links: Vec<NodeLinks>,
    /// Nodes that the walk has yet to look at.
    open: Vec<NodeRef>,
    /// Nodes whose inputs are being walked over, and how long `open` is when that is done.
    closing: Vec<(NodeRef, usize)>,
    /// Per node, who holds it. In use only while that is counted.
    held: Vec<Holder>,
    /// The number of this capture, which every visited node stores.
    capture: u64,
}

/// The structure of a graph, to the bit: two with equal keys have the same plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
        let mut key = Key { words, customs, hash: 0 };
        key.finish();
        key
    }

    /// Hashes it, now that it is complete.
    fn finish(&mut self) {
        // One multiply per word: keys of large graphs are long, and equality is checked in full anyway.
        let word = |hash: u64, word: &u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.hash = self.words.iter().fold(0, word);
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
pub fn capture(wanted: &[&NodeRef], stages: &[usize]) -> Box<Captured> {
    let mut captured = Captured::walk(wanted);
    let (mut held, mut donated) = captured.lists();
    captured.count_holders(&mut held);
    captured.donate(&held, &mut donated);
    captured.finish(stages, held, donated);
    captured
}

/// What the wanted nodes are made of, for runs in which other tensors stand in for the given leaves and are handed over to be
/// overwritten; all other leaves stay. The caller holds the device's lock.
pub fn capture_given(wanted: &[&NodeRef], given: &[&NodeRef]) -> Box<Captured> {
    let mut captured = Captured::walk(wanted);
    let (held, mut donated) = captured.lists();
    let leaves = captured.leaves.iter().map(|leaf| &captured.nodes[*leaf as usize]);
    donated.extend(leaves.map(|leaf| given.iter().any(|node| Arc::ptr_eq(node, leaf))));
    captured.finish(&[], held, donated);
    captured
}

thread_local! {
    /// The lists of the thread's last walk, empty.
    static KEPT: Cell<Option<Box<Captured>>> = const { Cell::new(None) };
}

/// Lists of walks over more nodes than this are not kept: 64 KiB of words and links, about, for as long as the thread lives.
const MOST_KEPT: usize = 512;

/// How a captured node is connected.
#[derive(Clone, Copy)]
struct NodeLinks {
    /// Where its edges end: they start where those of the node before it end.
    end: u32,
    /// For a constant, which of them it is.
    constant: u32,
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

/// What became of a node that the walk looked at.
enum VisitedNode {
    /// It is memory on another device.
    Move,
    /// It has been written: all its inputs were.
    Written,
    /// Its inputs are `open`.
    Waits,
}

impl Captured {
    /// Walks from `wanted` to memory. The caller holds the device's lock.
    pub(super) fn walk(wanted: &[&NodeRef]) -> Box<Captured> {
        static CAPTURES: AtomicU64 = AtomicU64::new(1);
        let capture = CAPTURES.fetch_add(1, Ordering::Relaxed);
        // A thread that is ending may have none any more.
        let mut walk = KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default();
        walk.capture = capture;
        for node in wanted {
            if node.seen(capture).is_none() {
                walk.open.push((*node).clone());
                walk.visit_open(capture);
            }
            walk.outputs.push(node.seen(capture).expect("every wanted node was visited"));
        }
        let Captured { writer, outputs, .. } = &mut *walk;
        writer.key.words.push(u64::MAX);
        writer.key.words.extend(outputs.iter().map(|o| *o as u64));
        walk
    }

    /// Writes all nodes that are open and those they are made of, inputs first.
    fn visit_open(&mut self, capture: u64) {
        loop {
            if let Some((node, _)) = self.closing.pop_if(|(_, end)| *end == self.open.len()) {
                node.with_pending(|expr, has_twin| self.write(&node, expr, has_twin, capture));
                self.number(node, capture);
                continue;
            }
            let Some(node) = self.open.pop() else { return };
            if node.seen(capture).is_some() {
                continue;
            }
            let end = self.open.len();
            let opened = node.with_pending(|expr, has_twin| {
                if expr.is_move() {
                    return VisitedNode::Move;
                }
                for input in expr.inputs.iter().rev().filter(|input| input.seen(capture).is_none()) {
                    self.open.push(input.clone());
                }
                if self.open.len() > end {
                    return VisitedNode::Waits;
                }
                self.write(&node, expr, has_twin, capture);
                VisitedNode::Written
            });
            match opened {
                Some(VisitedNode::Waits) => {
                    self.closing.push((node, end));
                    continue;
                }
                Some(VisitedNode::Written) => {}
                is_move => {
                    self.moves.extend(is_move.map(|_| node.clone()));
                    self.leaves.push(self.nodes.len() as NodeIdx);
                    self.writer.leaf(&node);
                    let end = self.edges.len() as u32;
                    self.links.push(NodeLinks { end, constant: 0, way: GradientPath::Leaf });
                }
            }
            self.number(node, capture);
        }
    }

    /// Writes a node that is not computed yet, and its edges.
    fn write(&mut self, node: &Node, expr: &Expr, has_twin: bool, capture: u64) {
        let start = self.edges.len();
        for input in &expr.inputs {
            self.edges.push(input.seen(capture).expect("inputs come first"));
        }
        let constant = self.writer.node(node, expr, &self.edges[start..]);
        let way = GradientPath::of(node, expr, has_twin);
        self.links.push(NodeLinks { end: self.edges.len() as u32, constant, way });
    }

    /// Gives a node that was written its number.
    fn number(&mut self, node: NodeRef, capture: u64) {
        node.see(capture, self.nodes.len() as NodeIdx);
        self.nodes.push(node);
    }

    /// The inputs of a node that is not computed yet.
    pub(super) fn inputs(&self, idx: NodeIdx) -> &[NodeIdx] {
        let start = idx.checked_sub(1).map_or(0, |before| self.links[before as usize].end);
        &self.edges[start as usize..self.links[idx as usize].end as usize]
    }

    /// The index of `node` among the captured nodes, if it is one of them. The caller holds the device's lock.
    pub(super) fn place_of(&self, node: &Node) -> Option<NodeIdx> {
        node.seen(self.capture)
    }

    /// Where a gradient goes from a node.
    pub(super) fn way(&self, idx: NodeIdx) -> GradientPath {
        self.links[idx as usize].way
    }

    /// Empty lists for [`count_holders`](Captured::count_holders) and [`donate`](Captured::donate). They are apart, because
    /// nodes may be locked meanwhile.
    pub(super) fn lists(&mut self) -> (Vec<Holder>, Vec<bool>) {
        (std::mem::take(&mut self.held), std::mem::take(&mut self.donated))
    }

    /// Finds out who is held by what. A node is kept if something beside this walk and the edges that it went along holds
    /// it, or if a node does that does not let go of its inputs when an evaluation ends. An output lets go when it is
    /// computed, unless it is tracked; any other node does by going away itself, if it is not kept.
    pub(super) fn count_holders(&self, held: &mut Vec<Holder>) {
        let Captured { nodes, outputs, links, edges, .. } = self;
        held.resize(nodes.len(), Holder::default());
        outputs.iter().for_each(|o| held[*o as usize].is_output = true);
        let mut edges = &edges[..];
        for (i, node) in nodes.iter().enumerate().rev() {
            // One strong reference is `nodes`' own.
            let holder = &mut held[i];
            holder.is_held = Arc::strong_count(node) != holder.n_edges as usize + 1;
            holder.kept |= holder.is_held;
            let releases = if holder.is_output { !node.tracked } else { !holder.kept };
            let start = i.checked_sub(1).map_or(0, |before| links[before].end);
            let (before, inputs) = edges.split_at(start as usize);
            edges = before;
            for input in inputs {
                let input = &mut held[*input as usize];
                input.n_edges += 1;
                input.kept |= !releases;
            }
        }
    }

    /// Notes, per leaf, whether the evaluation is its only holder, and no other node has the same memory.
    pub(super) fn donate(&self, held: &[Holder], donated: &mut Vec<bool>) {
        let is_alone = |leaf: usize| !held[leaf].kept && self.nodes[leaf].holds_alone();
        donated.extend(self.leaves.iter().map(|leaf| is_alone(*leaf as usize)));
    }

    /// Completes the key, now that it is known what may be overwritten.
    pub(super) fn finish(&mut self, stages: &[usize], held: Vec<Holder>, donated: Vec<bool>) {
        (self.held, self.donated) = (held, donated);
        let key = &mut self.writer.key;
        key.words.extend(self.donated.iter().map(|donated| *donated as u64));
        if !stages.is_empty() {
            key.words.push(u64::MAX);
            key.words.extend(stages.iter().map(|end| *end as u64));
            self.stages.extend(stages);
        }
        key.finish();
    }

    /// The structure that was captured.
    pub fn key(&self) -> &Key {
        &self.writer.key
    }

    /// The distinct constants, as lane bits, in order of first use.
    pub fn constants(&self) -> &[u32] {
        &self.writer.constants
    }

    /// Those of the constants that follow a position.
    pub fn open_constants(&self) -> &[OpenConstant] {
        &self.writer.open
    }

    /// Lets go of the nodes, and keeps the lists for the thread's next walk.
    pub fn recycle(mut self: Box<Captured>) {
        let n_nodes = self.nodes.len();
        self.nodes.clear();
        self.outputs.clear();
        self.leaves.clear();
        self.donated.clear();
        self.moves.clear();
        self.stages.clear();
        self.writer.clear();
        self.edges.clear();
        self.links.clear();
        self.held.clear();
        if n_nodes <= MOST_KEPT {
            // A thread that is ending keeps nothing.
            KEPT.try_with(|kept| kept.set(Some(self))).unwrap_or_default();
        }
    }
}

/// Who holds a captured node.
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

/// A constant that follows a position.
#[derive(Clone, Copy)]
pub struct OpenConstant {
    /// Which of the constants.
    pub idx: usize,
    pub number: OpenNumber,
    pub dtype: DType,
}

/// Writes the structure as words, and numbers leaves and constants.
#[derive(Default)]
struct KeyWriter {
    key: Key,
    constants: Vec<u32>,
    open: Vec<OpenConstant>,
    numbers: FastMap<(u64, u32, DType), usize>,
}

impl KeyWriter {
    fn clear(&mut self) {
        self.key.words.clear();
        self.key.customs.clear();
        self.constants.clear();
        self.open.clear();
        self.numbers.clear();
    }

    fn shape(&mut self, shape: &Shape) {
        self.key.words.extend(shape.iter().map(|d| *d as u64));
    }

    fn head(&mut self, tag: u64, node: &Node) {
        self.key.words.push(tag | (node.dtype as u64) << 8 | (node.shape.rank() as u64) << 16);
    }

    fn leaf(&mut self, node: &Node) {
        self.head(0, node);
        self.shape(&node.shape);
    }

    /// Writes a node that is not computed yet. For a constant, which of them it is.
    fn node(&mut self, node: &Node, expr: &Expr, edges: &[NodeIdx]) -> u32 {
        let inputs = |w: &mut KeyWriter| w.key.words.extend(edges.iter().map(|i| *i as u64));
        // Elementwise ops have the shape of their inputs; the others write theirs.
        match &expr.op {
            Op::Data => unreachable!("data is always ready"),
            Op::Const(constant) => {
                self.head(1, node);
                self.shape(&node.shape);
                // Which constant it is, never what its value is: no plan depends on that.
                let idx = self.constant(constant, node.dtype);
                self.key.words.push(idx as u64);
                return idx as u32;
            }
            Op::Index => {
                self.head(2, node);
                self.shape(&node.shape);
            }
            Op::Unary(row) => {
                self.head(3, node);
                self.key.words.push(std::ptr::from_ref(*row) as u64);
                inputs(self);
            }
            Op::Binary(row) => {
                self.head(4, node);
                self.key.words.push(std::ptr::from_ref(*row) as u64);
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
            Op::Widen(format) => {
                self.head(19, node);
                self.shape(&node.shape);
                self.key.words.push(std::ptr::from_ref(*format) as u64);
                inputs(self);
            }
            Op::Commit => {
                self.head(15, node);
                inputs(self);
            }
            // Rule and axes are for gradients; the planner sees the first input alone.
            Op::WithRule(..) => {
                self.head(16, node);
                self.key.words.push(edges[0] as u64);
            }
            Op::Custom(op) => {
                self.head(7, node);
                self.key.words.push(op.address() as u64);
                self.key.words.push(expr.inputs.len() as u64);
                inputs(self);
                self.key.customs.push(op.clone());
            }
            Op::View(view) | Op::Pad(view) => {
                self.head(if matches!(expr.op, Op::View(_)) { 8 } else { 9 }, node);
                self.shape(&node.shape);
                let rank = node.shape.rank();
                self.key.words.extend(view.strides[..rank].iter().map(|s| *s as u64));
                self.key.words.push(view.offset as u64);
                for (low, high) in view.mask.iter().flat_map(|m| &m[..rank]) {
                    self.key.words.extend([*low as u64, *high as u64]);
                }
                inputs(self);
            }
            Op::Reduce(row, axes) => {
                self.head(10, node);
                self.key.words.push(std::ptr::from_ref(*row) as u64);
                self.key.words.push(axes.bits() as u64);
                inputs(self);
            }
            Op::Matmul => {
                self.head(11, node);
                inputs(self);
            }
            Op::Gather(axis, _) => {
                self.head(12, node);
                self.key.words.push(*axis as u64);
                inputs(self);
            }
            Op::Cat(axis) => {
                self.head(13, node);
                self.key.words.push((*axis as u64) << 32 | expr.inputs.len() as u64);
                inputs(self);
            }
            Op::RowsAt(axis) => {
                self.head(17, node);
                self.shape(&node.shape);
                self.key.words.push(*axis as u64);
                inputs(self);
            }
            Op::WriteRows(axis) => {
                self.head(18, node);
                self.key.words.push(*axis as u64);
                inputs(self);
            }
            Op::Routine(row, params) => {
                self.head(14, node);
                self.key.words.push(std::ptr::from_ref(*row) as u64);
                self.key.words.extend(params.iter().map(|p| *p as u64));
                self.key.words.push(expr.inputs.len() as u64);
                inputs(self);
                self.shape(&node.shape);
            }
        }
        0
    }

    /// The number of a constant: equal ones of one place share a number.
    fn constant(&mut self, constant: &Constant, dtype: DType) -> usize {
        let identity = constant.identity(dtype);
        *self.numbers.entry(identity).or_insert_with(|| {
            let open = |number| OpenConstant { idx: self.constants.len(), number, dtype };
            self.open.extend(constant.open.map(open));
            self.constants.push(identity.1);
            self.constants.len() - 1
        })
    }
}

impl Captured {
    /// The graph, written out for the planner.
    pub fn graph(&self) -> Graph {
        let mut n_leaves = 0;
        let node = |(idx, node): (NodeIdx, &NodeRef)| {
            let pending = node.with_pending(|e, _| if e.is_move() { Op::Data } else { e.op.clone() });
            let op = pending.unwrap_or(Op::Data);
            let (slot, donated) = match &op {
                Op::Data => {
                    n_leaves += 1;
                    (n_leaves - 1, self.donated[n_leaves as usize - 1])
                }
                Op::Const(_) => (self.links[idx as usize].constant, false),
                _ => (0, false),
            };
            let inputs = SmallVec::from_slice(self.inputs(idx));
            GraphNode { op, inputs, shape: node.shape, dtype: node.dtype, slot, donated, origin: idx }
        };
        let nodes = (0..).zip(&self.nodes).map(node).collect();
        Graph { nodes, outputs: self.outputs.clone(), stages: self.stages.clone() }
    }
}
