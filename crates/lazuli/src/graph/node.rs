//! One node: immutable in what it means, mutable only in whether it has been computed.
//! A computed node holds its buffer and lets go of its inputs, unless a gradient may still ask for them.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::op::Op;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Error;
use crate::place;
use crate::shape::Shape;

/// Memory on some device. Cheap to clone; freed, or given back to its pool, with the last clone.
#[derive(Clone)]
pub struct Buffer(Arc<dyn Any + Send + Sync>);

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
    body: Mutex<Body>,
    // The capture that last visited this node and the index it gave; both are only touched under the device's lock.
    pub(super) seen_by: AtomicU64,
    pub(super) seen_as: AtomicU32,
}

#[derive(Default)]
struct Body {
    expr: Option<Expr>,
    buffer: Option<Buffer>,
    // A node of the same value through which gradients go instead of through `expr`.
    twin: Option<NodeRef>,
    // Whether it was computed from other nodes and has let go of them.
    released: bool,
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
        Node::with(Body { expr: Some(expr), ..Body::default() }, shape, dtype, device, at, tracked)
    }

    /// A node to be computed that is not tracked even if an input is: gradients stop here.
    pub fn detached(expr: Expr, shape: Shape, dtype: DType, device: Device, at: &'static Location<'static>) -> NodeRef {
        Node::with(Body { expr: Some(expr), ..Body::default() }, shape, dtype, device, at, false)
    }

    /// A node to be computed whose gradients go through `twin`, which has the same value.
    pub fn twinned(expr: Expr, twin: NodeRef, at: &'static Location<'static>) -> NodeRef {
        let (shape, dtype, device, tracked) = (twin.shape, twin.dtype, twin.device.clone(), twin.tracked);
        Node::with(Body { expr: Some(expr), twin: Some(twin), ..Body::default() }, shape, dtype, device, at, tracked)
    }

    /// A node that is memory.
    pub fn data(buffer: Buffer, shape: Shape, dtype: DType, device: Device, at: &'static Location<'static>) -> NodeRef {
        Node::with(Body { buffer: Some(buffer), ..Body::default() }, shape, dtype, device, at, false)
    }

    fn with(
        body: Body,
        shape: Shape,
        dtype: DType,
        device: Device,
        at: &'static Location<'static>,
        tracked: bool,
    ) -> NodeRef {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let inputs = body.expr.iter().flat_map(|expr| &expr.inputs);
        let oldest = inputs.map(|input| input.oldest).fold(serial, u64::min);
        Arc::new(Node {
            shape,
            dtype,
            device,
            at: place::told(at),
            tracked,
            serial,
            oldest,
            body: Mutex::new(body),
            seen_by: AtomicU64::new(0),
            seen_as: AtomicU32::new(0),
        })
    }

    // A panic while the lock is held cannot leave a body half-changed, so a poisoned one is still good.
    fn body(&self) -> MutexGuard<'_, Body> {
        self.body.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its memory, once computed.
    pub fn buffer(&self) -> Option<Buffer> {
        self.body().buffer.clone()
    }

    /// Whether nobody else, such as a reshape of it, holds its memory.
    pub(super) fn holds_alone(&self) -> bool {
        self.body().buffer.as_ref().is_some_and(|buffer| Arc::strong_count(&buffer.0) == 1)
    }

    /// Whether it has been computed.
    pub fn is_ready(&self) -> bool {
        self.body().buffer.is_some()
    }

    /// Calls `f` with how it is computed; None if that was let go or never known.
    pub fn with_expr<R>(&self, f: impl FnOnce(&Expr) -> R) -> Option<R> {
        self.body().expr.as_ref().map(f)
    }

    /// The node through which gradients go instead, if there is one.
    pub fn twin(&self) -> Option<NodeRef> {
        self.body().twin.clone()
    }

    /// Calls `f` with how it is computed, unless its memory is already there.
    pub(super) fn with_pending<R>(&self, f: impl FnOnce(&Expr) -> R) -> Option<R> {
        let body = self.body();
        if body.buffer.is_some() { None } else { body.expr.as_ref().map(f) }
    }

    /// Gives it its memory. Lets go of the inputs unless a gradient may still need them.
    pub fn complete(&self, buffer: Buffer) {
        let mut body = self.body();
        body.buffer = Some(buffer);
        let released = if self.tracked { (None, None) } else { (body.expr.take(), body.twin.take()) };
        body.released = released.0.as_ref().is_some_and(|expr| !expr.inputs.is_empty());
        drop(body);
        // Outside the lock: dropping the inputs may drop much else.
        drop(released);
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

    /// Whether it was computed from other nodes and has let go of them: what they were is no longer known.
    pub fn is_released(&self) -> bool {
        self.body().released
    }

    /// Notes that it can never be computed, and why.
    pub fn fail(&self, error: &Error) {
        self.body().failed = Some(error.clone());
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

/// A chain of a million nodes must not unwind a million stack frames: inputs are dropped from a list instead.
impl Drop for Node {
    fn drop(&mut self) {
        let mut pending: SmallVec<[NodeRef; 3]> = SmallVec::new();
        let release = |node: &mut Node, pending: &mut SmallVec<[NodeRef; 3]>| {
            let body = node.body.get_mut().unwrap_or_else(PoisonError::into_inner);
            pending.extend(body.twin.take());
            if let Some(expr) = body.expr.take() {
                pending.extend(expr.inputs);
            }
        };
        release(self, &mut pending);
        while let Some(input) = pending.pop() {
            if let Some(mut node) = Arc::into_inner(input) {
                release(&mut node, &mut pending);
            }
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} at {}:{}", self.dtype, self.shape, self.at.file(), self.at.line())
    }
}
