//! The tensor: a handle on a node of the graph, or on the error that making it met. Recording only: what may fail
//! is kept inside, nothing runs.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Constant, Expr, Node, NodeRef, Op};
use crate::shape::Shape;

/// An array of numbers that may not have been computed yet. Cheap to clone; may be shared between threads.
///
/// Methods record; nothing runs until a number is wanted ([`compute`](Tensor::compute), [`to_vec`](Tensor::to_vec),
/// printing). A mistake makes a tensor that carries the error, with the line it was made on, to that point.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let m1 = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &cpu);
/// let m2 = Tensor::ones([2, 2], lazuli::DType::F32, &cpu);
/// let y = m1.add(&m2).mul(5.0).sub(&m1);          // nothing has run yet
/// assert_eq!(y.to_vec::<f32>()?, [9.0, 13.0, 17.0, 21.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    node: Result<NodeRef>,
}

impl Tensor {
    /// A tensor of a node, or of the error that was met instead.
    pub(crate) fn new(node: Result<NodeRef>) -> Tensor {
        Tensor { node }
    }

    /// The node, or the error.
    pub(crate) fn node(&self) -> Result<&NodeRef> {
        self.node.as_ref().map_err(Error::clone)
    }

    /// Records `op` over nodes. Shapes and dtypes are the caller's to have checked.
    pub(crate) fn record(
        op: Op,
        inputs: &[&NodeRef],
        shape: Shape,
        dtype: DType,
        at: &'static Location<'static>,
    ) -> Tensor {
        let inputs: SmallVec<[NodeRef; 3]> = inputs.iter().map(|n| (*n).clone()).collect();
        let device = inputs[0].device.clone();
        Tensor::new(Ok(Node::new(Expr { op, inputs }, shape, dtype, device, at, false)))
    }

    /// Records an op without inputs.
    pub(crate) fn source(
        op: Op,
        shape: Shape,
        dtype: DType,
        device: &Device,
        at: &'static Location<'static>,
    ) -> Tensor {
        let expr = Expr { op, inputs: SmallVec::new() };
        Tensor::new(Ok(Node::new(expr, shape, dtype, device.clone(), at, false)))
    }

    /// Records a number, everywhere.
    pub(crate) fn constant(
        value: f64,
        shape: Shape,
        dtype: DType,
        device: &Device,
        at: &'static Location<'static>,
    ) -> Tensor {
        Tensor::source(Op::Const(Constant::new(value, at, "full")), shape, dtype, device, at)
    }

    /// Runs `f`, which records or refuses, and keeps whatever comes of it.
    pub(crate) fn attempt(f: impl FnOnce() -> Result<Tensor>) -> Tensor {
        f().unwrap_or_else(|error| Tensor::new(Err(error)))
    }

    /// Records a movement of one tensor.
    pub(crate) fn viewed(node: &NodeRef, view: crate::view::View, at: &'static Location<'static>) -> Tensor {
        // x seen as it is = x
        if view.is_linear() && view.shape == node.shape {
            return Tensor::new(Ok(node.clone()));
        }
        Tensor::record(Op::View(Arc::new(view)), &[node], view.shape, node.dtype, at)
    }

    /// The size of each axis.
    pub fn shape(&self) -> Result<&[usize]> {
        Ok(&self.node()?.shape)
    }

    /// The element type.
    pub fn dtype(&self) -> Result<DType> {
        Ok(self.node()?.dtype)
    }

    /// The device it lives on.
    pub fn device(&self) -> Result<&Device> {
        Ok(&self.node()?.device)
    }

    /// Whether both are handles on the same value, which is computed once: more than that their numbers are equal.
    ///
    /// ```
    /// use lazuli::{Device, Tensor};
    /// let x = Tensor::scalar(1.0f32, &Device::cpu());
    /// assert!(x.is_same(&x.clone()) && !x.is_same(&x.add(0.0)));
    /// ```
    pub fn is_same(&self, other: &Tensor) -> bool {
        matches!((&self.node, &other.node), (Ok(a), Ok(b)) if Arc::ptr_eq(a, b))
    }

    /// The error it carries, if it does.
    pub fn check(&self) -> Result<()> {
        self.node().map(|_| ())
    }
}

/// A tensor that carries this error, for layers of one's own: whatever is made of it carries it too.
///
/// ```
/// use lazuli::{Error, Fault, Tensor};
/// let error = Error::Shape(Fault::new("my_layer", "wants two axes").into());
/// assert!(Tensor::from(error).relu().compute().unwrap_err().to_string().starts_with("my_layer: wants two axes"));
/// ```
impl From<Error> for Tensor {
    fn from(error: Error) -> Tensor {
        Tensor::new(Err(error))
    }
}
