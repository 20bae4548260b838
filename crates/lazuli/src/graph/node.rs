//! One node: immutable in what it means, mutable only in whether it has been computed.
//! A computed node holds its buffer and lets go of its inputs, unless a gradient may still ask for them.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::{SmallVec, smallvec};

use super::kin::{Kin, Kins};
use super::op::Op;
use crate::blocks::BlockFormat;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Error;
use crate::place;
use crate::shape::Shape;
use crate::view::View;

/// Memory on some device. Cheap to clone; freed, or given back to its pool, with the last clone.
#[derive(Clone)]
pub struct Buffer(Arc<dyn Any + Send + Sync>);

/// The memory of some nodes.
pub type Buffers = SmallVec<[Buffer; 4]>;

impl Buffer {
    /// Wraps a backend's own kind of memory.
    pub fn new(storage: impl Any + Send + Sync) -> Buffer {
        Buffer(Arc::new(storage))
    }

    /// The backend's own kind of memory, if it is `T`.
    pub fn storage<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// A shared node.
pub type NodeRef = Arc<Node>;

/// How a node is computed.
pub struct Expr {
    pub op: Op,
    pub inputs: SmallVec<[NodeRef; 3]>,
}

impl Expr {
    /// Whether it is the same memory, brought from another device.
    pub fn is_move(&self) -> bool {
        matches!(self.op, Op::Data)
    }

    /// Whether it is its input, seen as it is. Movements never record this: an untracked node of it is a `detach`.
    pub fn is_identity(&self) -> bool {
        match (&self.op, &self.inputs[..]) {
            (Op::View(view), [input]) => view.is_linear() && view.shape == input.shape,
            _ => false,
        }
    }
}

/// What is known of how a node is computed, for whoever wants to follow it to its inputs.
pub enum Recipe {
    Known {
        op: Op,
        inputs: SmallVec<[NodeRef; 3]>,
        /// A node through which gradients go instead.
        twin: Option<NodeRef>,
    },
    /// Nothing: it is memory, or being computed and about to let go of its inputs. The token leads to what it was made of,
    /// as far as somebody holds that.
    Ended(Option<Arc<Kin>>),
    /// It can never be computed.
    Failed(Error),
}

/// A value of the graph: what it is, and either how to compute it or its memory.
pub struct Node {
    pub shape: Shape,
    pub dtype: DType,
    pub device: Device,
    /// Where the user wrote the op.
    pub at: &'static Location<'static>,
    /// Whether a gradient may be asked for through it: it then keeps `expr` after being computed.
    pub tracked: bool,
    /// Counts nodes as they are made: a node depends on earlier ones only.
    pub serial: u64,
    /// The serial of the first made of all it depends on, itself included, whether that is still known or not.
    pub oldest: u64,
    body: Mutex<NodeState>,
    lineage: Mutex<Lineage>,
    // What its device keeps of it beside its memory, such as a packed form; it goes with the node.
    kept: OnceLock<Box<dyn Any + Send + Sync>>,
    // The capture that last visited this node and the index it gave; both are only touched under the device's lock.
    pub(super) seen_by: AtomicU64,
    pub(super) seen_as: AtomicU32,
}

/// What a node comes from. Most are gone before anybody needs a token of them, so that it is made when it is first needed.
#[derive(Default)]
enum Lineage {
    /// Not known yet, or from nothing.
    #[default]
    None,
    From(Kins),
    Token(Arc<Kin>),
}

#[derive(Default)]
pub(super) struct NodeState {
    expr: Option<Expr>,
    buffer: Option<Buffer>,
    // A node of the same value through which gradients go instead of through `expr`.
    twin: Option<NodeRef>,
    // Whether an evaluation is computing it that counts on nobody getting at its inputs through it.
    pub(super) in_flight: bool,
    // Why it can never be computed: an evaluation failed half-way, after it had reused the memory of its inputs.
    failed: Option<Error>,
}

impl Node {
    /// A node to be computed. Tracked if asked for, or if an input is.
    pub fn new(
        expr: Expr,
        shape: Shape,
        dtype: DType,
        device: Device,
        at: &'static Location<'static>,
        tracked: bool,
    ) -> NodeRef {
        let tracked = tracked || expr.inputs.iter().any(|i| i.tracked);
        Node::with(NodeState { expr: Some(expr), ..NodeState::default() }, shape, dtype, device, at, tracked)
    }

    /// A node to be computed that is not tracked even if an input is: gradients stop here.
    pub fn detached(expr: Expr, shape: Shape, dtype: DType, device: Device, at: &'static Location<'static>) -> NodeRef {
        Node::with(NodeState { expr: Some(expr), ..NodeState::default() }, shape, dtype, device, at, false)
    }

    /// A node to be computed whose gradients go through `twin`, which has the same value.
    pub fn twinned(expr: Expr, twin: NodeRef, at: &'static Location<'static>) -> NodeRef {
        let (shape, dtype, device, tracked) = (twin.shape, twin.dtype, twin.device.clone(), twin.tracked);
        Node::with(
            NodeState { expr: Some(expr), twin: Some(twin), ..NodeState::default() },
            shape,
            dtype,
            device,
            at,
            tracked,
        )
    }

    /// A node that is memory.
    pub fn data(buffer: Buffer, shape: Shape, dtype: DType, device: Device, at: &'static Location<'static>) -> NodeRef {
        Node::with(NodeState { buffer: Some(buffer), ..NodeState::default() }, shape, dtype, device, at, false)
    }

    fn with(
        body: NodeState,
        shape: Shape,
        dtype: DType,
        device: Device,
        at: &'static Location<'static>,
        tracked: bool,
    ) -> NodeRef {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let mut oldest = body.twin.as_ref().map_or(serial, |twin| twin.oldest);
        for input in body.expr.as_ref().map_or(&[][..], |expr| &expr.inputs) {
            oldest = oldest.min(input.oldest);
        }
        Arc::new(Node {
            shape,
            dtype,
            device,
            at: place::reported_at(at),
            tracked,
            serial,
            oldest,
            body: Mutex::new(body),
            lineage: Mutex::new(Lineage::None),
            kept: OnceLock::new(),
            seen_by: AtomicU64::new(0),
            seen_as: AtomicU32::new(0),
        })
    }

    // A panic while the lock is held cannot leave a body half-changed, so a poisoned one is still good.
    pub(super) fn body(&self) -> MutexGuard<'_, NodeState> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its memory, once computed.
    pub fn buffer(&self) -> Option<Buffer> {
        self.body().buffer.clone()
    }

    /// Whether nobody else, such as a reshape of it, holds its memory.
    pub fn holds_alone(&self) -> bool {
        self.body().buffer.as_ref().is_some_and(|buffer| Arc::strong_count(&buffer.0) == 1)
    }

    /// Whether it has been computed. What blocks are widened to never is: having the blocks is all there is to do.
    pub fn is_ready(&self) -> bool {
        let body = self.body();
        let has_blocks = |expr: &Expr| matches!(expr.op, Op::Widen(_)) && expr.inputs[0].buffer().is_some();
        body.buffer.is_some() || body.expr.as_ref().is_some_and(has_blocks)
    }

    /// The format and the bytes of the blocks that it is widened from, if it is.
    pub fn blocks(&self) -> Option<(&'static BlockFormat, NodeRef)> {
        self.with_pending(|expr, _| match expr.op {
            Op::Widen(format) => Some((format, expr.inputs[0].clone())),
            _ => None,
        })
        .flatten()
    }

    /// What its device keeps of it: always of one type.
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> Option<&T> {
        self.kept.get_or_init(|| Box::new(T::default())).downcast_ref()
    }

    /// The data that the device keeps with this node, such as packed forms, if it keeps any.
    pub fn kept_so_far<T: Any>(&self) -> Option<&T> {
        self.kept.get()?.downcast_ref()
    }

    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn lineage(&self) -> MutexGuard<'_, Lineage> {
        self.lineage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its token.
    pub fn kin(&self) -> Arc<Kin> {
        let mut lineage = self.lineage();
        if let Lineage::Token(kin) = &*lineage {
            return kin.clone();
        }
        let from = match std::mem::take(&mut *lineage) {
            Lineage::From(kins) => Some(kins),
            _ => None,
        };
        let kin = Arc::new(Kin::new(self.serial, self.oldest, from));
        *lineage = Lineage::Token(kin.clone());
        kin
    }

    /// Its token, if anything is known of what it comes from.
    fn known_kin(&self) -> Option<Arc<Kin>> {
        let is_known = !matches!(&*self.lineage(), Lineage::None);
        is_known.then(|| self.kin())
    }

    /// Notes what it comes from.
    pub(super) fn note_ancestors(&self, kins: Kins) {
        let mut lineage = self.lineage();
        let old = match &*lineage {
            Lineage::Token(kin) => return kin.note(kins),
            _ if kins.is_empty() => std::mem::take(&mut *lineage),
            _ => std::mem::replace(&mut *lineage, Lineage::From(kins)),
        };
        drop(lineage);
        // Outside the lock: dropping tokens may drop many.
        drop(old);
    }

    /// The tokens of what it comes from, as far as they are known.
    pub(super) fn ancestors(&self) -> Kins {
        match &*self.lineage() {
            Lineage::None => Kins::new(),
            Lineage::From(kins) => kins.clone(),
            Lineage::Token(kin) => kin.from(),
        }
    }

    /// How it is computed, with its inputs to hold: the only way to them without the device's lock. While an evaluation
    /// is under way that may overwrite their memory, it gives nothing, as if that evaluation had already ended.
    pub fn recipe(&self) -> Recipe {
        let body = self.body();
        match (&body.expr, &body.failed) {
            (_, Some(error)) => Recipe::Failed(error.clone()),
            (Some(Expr { op, inputs }), _) if !body.in_flight => {
                Recipe::Known { op: op.clone(), inputs: inputs.clone(), twin: body.twin.clone() }
            }
            _ => Recipe::Ended(self.known_kin()),
        }
    }

    /// Calls `f` with how it is computed; None if that was let go or never known. For looking only: inputs that are to
    /// be held come from [`recipe`](Node::recipe).
    pub fn with_expr<R>(&self, f: impl FnOnce(&Expr) -> R) -> Option<R> {
        self.body().expr.as_ref().map(f)
    }

    /// Calls `f` with how it is computed and whether it has a twin, unless its memory is already there.
    pub(super) fn with_pending<R>(&self, f: impl FnOnce(&Expr, bool) -> R) -> Option<R> {
        let body = self.body();
        if body.buffer.is_some() { None } else { body.expr.as_ref().map(|expr| f(expr, body.twin.is_some())) }
    }

    /// The node on another device that it is to be brought from, if it is yet to be.
    pub fn source(&self) -> Option<NodeRef> {
        self.with_pending(|expr, _| expr.is_move().then(|| expr.inputs[0].clone())).flatten()
    }

    /// Gives it the memory that was brought from `source`.
    pub fn bring(&self, source: &Node, buffer: Buffer) {
        if !self.tracked && self.dtype.is_float() {
            self.note_ancestors([source.kin()].into_iter().collect());
        }
        self.complete(buffer);
    }

    /// Gives it its memory. Lets go of the inputs unless a gradient may still need them.
    pub(super) fn complete(&self, buffer: Buffer) {
        let mut body = self.body();
        body.buffer = Some(buffer);
        body.in_flight = false;
        let released = if self.tracked { (None, None) } else { (body.expr.take(), body.twin.take()) };
        drop(body);
        // Outside the lock: dropping the inputs may drop much else.
        drop(released);
    }

    /// Ends an evaluation that has not computed it: its inputs are as they were.
    pub(super) fn abandon(&self) {
        self.body().in_flight = false;
    }

    /// If it is a commit, or only another look at one, makes it what it was before, because it cannot be computed.
    pub fn revert(self: &NodeRef) -> bool {
        let (mut old, mut is_commit) = (self.clone(), false);
        // What came before may be a commit that was not computed either: then it is what came before that.
        let before = |expr: &Expr, _| match &expr.op {
            Op::Commit => Some((expr.inputs[0].clone(), true)),
            Op::View(view) if view.is_linear() && view.shape == expr.inputs[0].shape => {
                Some((expr.inputs[0].clone(), false))
            }
            _ => None,
        };
        while let Some((input, commits)) = old.with_pending(before).flatten() {
            (old, is_commit) = (input, is_commit || commits);
        }
        if !is_commit {
            return false;
        }
        let op = Op::View(Arc::new(View::contiguous(self.shape)));
        let before = self.body().expr.replace(Expr { op, inputs: smallvec![old.clone()] });
        drop(before);
        if let Some(buffer) = old.buffer() {
            self.complete(buffer);
        }
        true
    }

    /// Lets go of memory that was lost, if it can be computed again.
    pub fn forget(&self) -> bool {
        let mut body = self.body();
        let known = body.expr.is_some();
        let lost = if known { body.buffer.take() } else { None };
        drop(body);
        drop(lost);
        known
    }

    /// Notes that it can never be computed, and why. It lets go of its inputs, whose memory may hold anything now.
    pub(super) fn fail(&self, error: &Error) {
        let mut body = self.body();
        body.failed = Some(error.clone());
        body.in_flight = false;
        let released = (body.expr.take(), body.twin.take());
        drop(body);
        drop(released);
    }

    /// Why it can never be computed.
    pub fn failure(&self) -> Option<Error> {
        self.body().failed.clone()
    }

    pub(super) fn seen(&self, capture: u64) -> Option<u32> {
        (self.seen_by.load(Ordering::Relaxed) == capture).then(|| self.seen_as.load(Ordering::Relaxed))
    }

    pub(super) fn see(&self, capture: u64, as_idx: u32) {
        self.seen_by.store(capture, Ordering::Relaxed);
        self.seen_as.store(as_idx, Ordering::Relaxed);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut pending = SmallVec::new();
        self.release(&mut pending);
        while let Some(mut input) = pending.pop() {
            // If this is the last reference, dropping it below finds nothing to follow.
            if let Some(node) = Arc::get_mut(&mut input) {
                node.release(&mut pending);
            }
        }
        if let Lineage::Token(kin) = self.lineage.get_mut().unwrap_or_else(PoisonError::into_inner) {
            kin.die();
        }
    }
}

impl Node {
    /// Lets go of its inputs. A chain of a million nodes must not unwind a million stack frames, so inputs that nobody else
    /// holds are added to a list instead. (If another thread lets go of its reference meanwhile, such a list starts again
    /// one frame down.)
    fn release(&mut self, pending: &mut SmallVec<[NodeRef; 3]>) {
        let body = self.body.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(twin) = body.twin.take() {
            pending.push(twin);
        }
        if let Some(expr) = &mut body.expr {
            while let Some(input) = expr.inputs.pop() {
                if Arc::strong_count(&input) == 1 {
                    pending.push(input);
                }
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} at {}:{}", self.dtype, self.shape, self.at.file(), self.at.line())
    }
}
