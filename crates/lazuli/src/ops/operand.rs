//! The two sides of an op: tensors or numbers, and how they meet in one dtype and one shape. Every elementwise op is
//! recorded through here. Recording allocates nothing but nodes, and formats nothing unless it fails.

use std::panic::Location;
use std::sync::Arc;

use half::{bf16, f16};
use smallvec::{SmallVec, smallvec};

use super::row::{BinaryRow, Gives, Takes, UnaryRow};
use crate::device::Device;
use crate::dtype::{DType, to_bf16, to_f16};
use crate::error::{Error, Fault, Result};
use crate::graph::{Constant, Expr, Node, NodeRef, Op};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::view::View;

/// A side of an op: a tensor or a number.
///
/// ```
/// # use lazuli::{Device, DType, Tensor};
/// let x = Tensor::from_slice(&[1i32, 2], [2], &Device::cpu());
/// assert_eq!(x.add(&x).to_vec::<i32>()?, [2, 4]);
/// assert_eq!(x.add(1).to_vec::<i32>()?, [2, 3]);
/// // A number takes the tensor's dtype, unless it is of a higher kind.
/// assert_eq!(x.add(0.5).to_vec::<f32>()?, [1.5, 2.5]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone)]
pub enum Operand {
    /// A tensor.
    Tensor(Tensor),
    /// A number, the same everywhere.
    Number(Number),
}

/// A number written into an op. Only its kind has a say in the dtype of the result, as in NumPy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    kind: OperandKind,
    value: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum OperandKind {
    Bool,
    Int,
    Float,
}

/// A side of an op, looked at.
#[derive(Clone, Copy)]
pub(crate) enum OperandSide<'a> {
    Node(&'a NodeRef),
    Number(Number),
}

impl Operand {
    pub(crate) fn side(&self) -> Result<OperandSide<'_>> {
        match self {
            Operand::Tensor(tensor) => tensor.node().map(OperandSide::Node),
            Operand::Number(number) => Ok(OperandSide::Number(*number)),
        }
    }
}

impl From<Tensor> for Operand {
    fn from(tensor: Tensor) -> Operand {
        Operand::Tensor(tensor)
    }
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Operand {
        Operand::Tensor(tensor.clone())
    }
}

impl From<Number> for Operand {
    fn from(number: Number) -> Operand {
        Operand::Number(number)
    }
}

macro_rules! numbers {
    ($($kind:ident [$($t:ty, $value:expr;)*])*) => {$($(
        impl From<$t> for Number {
            fn from(number: $t) -> Number {
                let value: fn($t) -> f64 = $value;
                Number { kind: OperandKind::$kind, value: value(number) }
            }
        }
        impl From<$t> for Operand {
            fn from(number: $t) -> Operand {
                Operand::Number(number.into())
            }
        }
    )*)*};
}

numbers! {
    Bool [bool, |v| v as u8 as f64;]
    // 64-bit integers that an f64 cannot hold fit no integer dtype either, and round as a float would.
    Int [
        i32, |v| v as f64;
        i64, |v| v as f64;
        u8, |v| v as f64;
        u32, |v| v as f64;
        u64, |v| v as f64;
        usize, |v| v as f64;
    ]
    Float [
        f32, |v| v as f64;
        f64, |v| v;
        f16, f16::to_f64;
        bf16, bf16::to_f64;
    ]
}

impl Number {
    /// The number itself.
    pub fn value(self) -> f64 {
        self.value
    }

    /// The dtype it has when there is no tensor beside it to take one from.
    pub(crate) fn dtype(self) -> DType {
        match self.kind {
            OperandKind::Bool => DType::Bool,
            OperandKind::Int => DType::I32,
            OperandKind::Float => DType::F32,
        }
    }

    /// The dtype two numbers meet in.
    pub(crate) fn common(a: Number, b: Number) -> DType {
        if a.kind > b.kind { a.dtype() } else { b.dtype() }
    }

    /// The dtype it meets a tensor's in: the tensor's, unless the number is of a higher kind.
    pub(crate) fn promote_with(self, dtype: DType) -> DType {
        let kind = match dtype {
            DType::Bool => OperandKind::Bool,
            _ if dtype.is_int() => OperandKind::Int,
            _ => OperandKind::Float,
        };
        if self.kind > kind { self.dtype() } else { dtype }
    }

    /// Its value as a `dtype`: floats round, integers must fit.
    #[track_caller]
    pub(crate) fn coerce(self, op: &str, dtype: DType) -> Result<f64> {
        Ok(match dtype {
            DType::F32 => self.value as f32 as f64,
            DType::F16 => to_f16(self.value).to_f64(),
            DType::BF16 => to_bf16(self.value).to_f64(),
            DType::Bool => (self.value != 0.0) as u8 as f64,
            DType::I32 | DType::U32 | DType::U8 if self.is_outside(dtype) => return Err(self.misfit(op, dtype)),
            DType::I32 | DType::U32 | DType::U8 => self.value.trunc(),
        })
    }

    fn is_outside(self, dtype: DType) -> bool {
        // Written so that NaN is outside.
        dtype.int_range().is_some_and(|(low, high)| !(self.value >= low && self.value <= high))
    }

    #[track_caller]
    #[cold]
    fn misfit(self, op: &str, dtype: DType) -> Error {
        let (low, high) = dtype.int_range().unwrap_or_default();
        let hint = "cast the tensor to a wider dtype first, with to_dtype";
        Error::dtype(op, format!("{} does not fit {dtype} ({low} to {high}); {hint}", self.value))
    }
}

/// Keeps what came of recording: a tensor, or the error in its place.
pub(crate) fn or_error(result: Result<Tensor>) -> Tensor {
    Tensor::attempt(|| result)
}

/// Records a unary op.
#[track_caller]
pub(crate) fn unary(row: &'static UnaryRow, x: &Tensor) -> Tensor {
    or_error(try_unary(row, x))
}

#[track_caller]
fn try_unary(row: &'static UnaryRow, x: &Tensor) -> Result<Tensor> {
    let x = x.node()?;
    let dtype = taken(row.takes, row.name, x.dtype)?;
    let at = Location::caller();
    let given = row.gives.dtype(dtype);
    Ok(recorded(Op::Unary(row), smallvec![cast(x, dtype, at)], x.shape, given, at))
}

/// Records a binary op.
#[track_caller]
pub(crate) fn binary(row: &'static BinaryRow, x: &Tensor, y: Operand) -> Tensor {
    or_error(try_binary(row, x.node().map(OperandSide::Node), y.side()))
}

/// Records a binary op whose left side is a number.
#[track_caller]
pub(crate) fn binary_from(row: &'static BinaryRow, x: Number, y: &Tensor) -> Tensor {
    or_error(try_binary(row, Ok(OperandSide::Number(x)), y.node().map(OperandSide::Node)))
}

#[track_caller]
fn try_binary(row: &'static BinaryRow, x: Result<OperandSide>, y: Result<OperandSide>) -> Result<Tensor> {
    let mut sides = [x?, y?];
    let mut promoted = Promoted::of(row.name, &sides)?;
    promoted.dtype = taken(row.takes, row.name, promoted.dtype)?;
    if row.gives == Gives::Bool && promoted.dtype != DType::Bool && sides.iter().any(|s| s.is_outside(promoted.dtype)) {
        // A number beyond all integers of a dtype compares with them as infinity does.
        sides = sides.map(OperandSide::to_infinity);
        promoted.dtype = DType::F32;
    }
    let inputs = smallvec![promoted.coerce(sides[0])?, promoted.coerce(sides[1])?];
    Ok(promoted.record(Op::Binary(row), inputs, row.gives.dtype(promoted.dtype)))
}

/// What the sides of an op have in common.
pub(crate) struct Promoted<'a> {
    op: &'a str,
    device: &'a Device,
    at: &'static Location<'static>,
    /// The shape all broadcast to.
    pub(crate) shape: Shape,
    /// The dtype all promote to.
    pub(crate) dtype: DType,
}

impl<'a> Promoted<'a> {
    /// What `sides` have in common; one of them at least is a tensor.
    #[track_caller]
    pub(crate) fn of(op: &'a str, sides: &[OperandSide<'a>]) -> Result<Promoted<'a>> {
        let mut nodes = sides.iter().filter_map(OperandSide::node);
        let Some(first) = nodes.next() else {
            return Err(Error::shape(op, "takes at least one tensor"));
        };
        let (mut shape, mut dtype) = (first.shape, first.dtype);
        for node in nodes {
            if node.device != first.device {
                let devices = first.device.and(&node.device);
                let message = format!("tensors on different devices: {devices}; use to_device");
                return Err(Error::device(op, message));
            }
            if node.shape != shape {
                shape = match shape.broadcast(&node.shape) {
                    Some(shape) => shape,
                    None => return Err(no_broadcast(op, &shape, &node.shape)),
                };
                shape.check(op)?;
            }
            dtype = dtype.promote(node.dtype);
        }
        for number in sides.iter().filter_map(OperandSide::number) {
            dtype = number.promote_with(dtype);
        }
        Ok(Promoted { op, device: &first.device, at: Location::caller(), shape, dtype })
    }

    /// A side in the common dtype and shape. Cast first: there are fewer elements before broadcasting than after.
    #[track_caller]
    pub(crate) fn coerce(&self, side: OperandSide) -> Result<NodeRef> {
        match side {
            OperandSide::Number(number) => {
                let value = number.coerce(self.op, self.dtype)?;
                let constant = Constant::new(value, self.at, self.op);
                let expr = Expr { op: Op::Const(constant), inputs: SmallVec::new() };
                Ok(Node::new(expr, self.shape, self.dtype, self.device.clone(), self.at, false))
            }
            OperandSide::Node(node) => Ok(broadcast(cast(node, self.dtype, self.at), &self.shape, self.at)),
        }
    }

    /// Records an op over fitted sides.
    pub(crate) fn record(&self, op: Op, inputs: SmallVec<[NodeRef; 3]>, dtype: DType) -> Tensor {
        recorded(op, inputs, self.shape, dtype, self.at)
    }
}

impl<'a> OperandSide<'a> {
    fn node(&self) -> Option<&'a NodeRef> {
        match self {
            OperandSide::Node(node) => Some(node),
            OperandSide::Number(_) => None,
        }
    }

    fn number(&self) -> Option<Number> {
        match self {
            OperandSide::Node(_) => None,
            OperandSide::Number(number) => Some(*number),
        }
    }

    fn is_outside(&self, dtype: DType) -> bool {
        self.number().is_some_and(|n| n.is_outside(dtype))
    }

    fn to_infinity(self) -> OperandSide<'a> {
        match self {
            OperandSide::Number(n) => {
                OperandSide::Number(Number { kind: OperandKind::Float, value: n.value * f64::INFINITY })
            }
            node => node,
        }
    }
}

/// What an op casts `dtype` to before it starts.
#[track_caller]
pub(crate) fn taken(takes: Takes, op: &str, dtype: DType) -> Result<DType> {
    match takes.cast(dtype) {
        Some(dtype) => Ok(dtype),
        None => Err(Error::dtype(op, format!("takes {}, not {dtype}; cast first with to_dtype", takes.what()))),
    }
}

/// Records `op` over nodes, which it takes over. Shapes and dtypes are the caller's to have checked.
fn recorded(
    op: Op,
    inputs: SmallVec<[NodeRef; 3]>,
    shape: Shape,
    dtype: DType,
    at: &'static Location<'static>,
) -> Tensor {
    let device = inputs[0].device.clone();
    Tensor::new(Ok(Node::new(Expr { op, inputs }, shape, dtype, device, at, false)))
}

/// `x` as a `dtype`: itself if it is one.
pub(crate) fn cast(x: &NodeRef, dtype: DType, at: &'static Location<'static>) -> NodeRef {
    if x.dtype == dtype {
        return x.clone();
    }
    let expr = Expr { op: Op::Cast, inputs: smallvec![x.clone()] };
    Node::new(expr, x.shape, dtype, x.device.clone(), at, false)
}

/// `x` repeated to fill `shape`, which it broadcasts to: itself if it does already.
pub(crate) fn broadcast(x: NodeRef, shape: &Shape, at: &'static Location<'static>) -> NodeRef {
    if x.shape == *shape {
        return x;
    }
    let view = View::broadcast(&x.shape, shape);
    let (dtype, device) = (x.dtype, x.device.clone());
    Node::new(Expr { op: Op::View(Arc::new(view)), inputs: smallvec![x] }, *shape, dtype, device, at, false)
}

#[track_caller]
#[cold]
fn no_broadcast(op: &str, x: &Shape, y: &Shape) -> Error {
    // One axis more at the end is what people most often forget.
    let with_axis = |s: &Shape| -> Shape { s.iter().copied().chain([1]).collect() };
    let hint = match () {
        _ if y.rank() < x.rank() && with_axis(y).broadcast(x).is_some() => {
            "; did you mean to unsqueeze(-1) the second?"
        }
        _ if x.rank() < y.rank() && with_axis(x).broadcast(y).is_some() => "; did you mean to unsqueeze(-1) the first?",
        _ => "",
    };
    let fault = Fault::new(op, format!("shapes do not broadcast: {x} and {y}{hint}"));
    Error::Shape(Arc::new(fault.shapes(&[x, y])))
}
