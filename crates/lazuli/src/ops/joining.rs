//! Cutting and joining: parts of a tensor, several in one, one several times. Parts and repetitions are views; only
//! joining is an op of its own.

use std::panic::Location;

use smallvec::SmallVec;

use super::movement::{narrowed, reshaped, unsqueezed};
use super::operand::or_error;
use crate::error::{Error, Result, counted};
use crate::graph::{NodeRef, Op};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// Tensors one after another along an axis. Sizes along the others must be equal; dtypes are promoted.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 3, 1, &Device::cpu());
    /// assert_eq!(Tensor::cat(&[&x, &x], 0).to_vec::<i32>()?, [0, 1, 2, 0, 1, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], axis: i32) -> Tensor {
        or_error(joined("cat", tensors, axis))
    }

    /// Tensors of one shape side by side along a new axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 3, 1, &Device::cpu());
    /// assert_eq!(Tensor::stack(&[&x, &x], 0).shape()?, [2, 3]);
    /// assert_eq!(Tensor::stack(&[&x, &x], -1).shape()?, [3, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: i32) -> Tensor {
        or_error(stacked(tensors, axis))
    }

    /// Cut along one axis into parts of these sizes, which must add up to the axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let parts = Tensor::arange(0, 5, 1, &Device::cpu()).split(0, &[2, 3]);
    /// assert_eq!(parts[1].to_vec::<i32>()?, [2, 3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn split(&self, axis: i32, sizes: &[usize]) -> Vec<Tensor> {
        match parts("split", self, axis, sizes) {
            Ok(parts) => parts,
            Err(error) => vec![Tensor::new(Err(error)); sizes.len().max(1)],
        }
    }

    /// Cut along one axis into at most `n` parts of one size; the last may be smaller.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let parts = Tensor::arange(0, 5, 1, &Device::cpu()).chunk(0, 2);
    /// assert_eq!(parts[0].to_vec::<i32>()?, [0, 1, 2]);
    /// assert_eq!(parts[1].to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn chunk(&self, axis: i32, n: usize) -> Vec<Tensor> {
        match chunks(self, axis, n) {
            Ok(parts) => parts,
            // As many as were asked for, so that destructuring code meets the error and not a missing part.
            Err(error) => vec![Tensor::new(Err(error)); n.clamp(1, 64)],
        }
    }

    /// Windows along one axis: `size` elements each, beginning every `step`. The axis holds the windows, a new last axis
    /// their elements. No bytes move, although windows may overlap.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let windows = Tensor::arange(0, 5, 1, &Device::cpu()).unfold(0, 3, 2);
    /// assert_eq!(windows.shape()?, [2, 3]);
    /// assert_eq!(windows.to_vec::<i32>()?, [0, 1, 2, 2, 3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, axis: i32, size: usize, step: usize) -> Tensor {
        or_error(windows(self, axis, size, step))
    }

    /// The whole tensor, repeated this often along each axis; more numbers than axes add leading ones.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 2, 1, &Device::cpu());
    /// assert_eq!(x.repeat([2, 2]).to_vec::<i32>()?, [0, 1, 0, 1, 0, 1, 0, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat(&self, reps: impl Into<Shape>) -> Tensor {
        or_error(repeated(self, reps.into()))
    }
}

/// Refuses tensors of different devices.
#[track_caller]
pub(super) fn same_device(op: &str, a: &NodeRef, b: &NodeRef) -> Result<()> {
    if a.device == b.device {
        return Ok(());
    }
    let devices = a.device.and(&b.device);
    Err(Error::device(
        op,
        format!("the tensors are on different devices, {devices}; bring them together with to_device"),
    ))
}

#[track_caller]
fn joined(op: &str, tensors: &[&Tensor], axis: i32) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return Err(Error::shape(op, "no tensors to join"));
    };
    let first = first.node()?;
    let at = first.shape.axis(op, axis)?;
    let (mut dtype, mut size) = (first.dtype, 0usize);
    for tensor in tensors {
        let node = tensor.node()?;
        same_device(op, first, node)?;
        if node.shape.rank() != first.shape.rank() || node.shape.with(at, 0) != first.shape.with(at, 0) {
            let message = format!("{} and {} differ in more than axis {at}", first.shape, node.shape);
            return Err(Error::shape(op, message));
        }
        dtype = dtype.promote(node.dtype);
        size = size.saturating_add(node.shape[at]);
    }
    let shape = first.shape.with(at, size);
    shape.check(op)?;
    // Empty parts add nothing.
    let mut cast: SmallVec<[Tensor; 4]> = SmallVec::new();
    for tensor in tensors {
        if tensor.node()?.shape[at] > 0 {
            cast.push(tensor.to_dtype(dtype));
        }
    }
    match &cast[..] {
        [] => Ok(tensors[0].to_dtype(dtype)),
        [one] => Ok(one.clone()),
        many => {
            let mut nodes: SmallVec<[&NodeRef; 4]> = SmallVec::new();
            for tensor in many {
                nodes.push(tensor.node()?);
            }
            Ok(Tensor::record(Op::Cat(at), &nodes, shape, dtype, Location::caller()))
        }
    }
}

#[track_caller]
fn stacked(tensors: &[&Tensor], axis: i32) -> Result<Tensor> {
    let mut each: SmallVec<[Tensor; 4]> = SmallVec::new();
    for tensor in tensors {
        let (first, node) = (&tensors[0].node()?.shape, tensor.node()?);
        if node.shape != *first {
            return Err(Error::shape("stack", format!("{first} and {} are not of one shape", node.shape)));
        }
        each.push(unsqueezed("stack", tensor, axis)?);
    }
    let refs: SmallVec<[&Tensor; 4]> = each.iter().collect();
    joined("stack", &refs, axis)
}

#[track_caller]
fn parts(op: &str, x: &Tensor, axis: i32, sizes: &[usize]) -> Result<Vec<Tensor>> {
    let shape = &x.node()?.shape;
    let at = shape.axis(op, axis)?;
    if sizes.iter().try_fold(0usize, |n, size| n.checked_add(*size)) != Some(shape[at]) {
        return Err(Error::shape(op, format!("parts of {sizes:?} do not add up to axis {at} of {shape}")));
    }
    let mut parts = Vec::with_capacity(sizes.len());
    let mut start = 0;
    for &size in sizes {
        parts.push(narrowed(op, x, axis, start, size)?);
        start += size;
    }
    Ok(parts)
}

#[track_caller]
fn chunks(x: &Tensor, axis: i32, n: usize) -> Result<Vec<Tensor>> {
    let shape = &x.node()?.shape;
    let at = shape.axis("chunk", axis)?;
    let size = shape[at];
    if n == 0 {
        let message = format!("axis {at} of {shape} cannot be cut into 0 parts; ask for 1 at least");
        return Err(Error::shape("chunk", message));
    }
    let part = size.div_ceil(n).max(1);
    let sizes: Vec<usize> = (0..size.max(1)).step_by(part).map(|start| part.min(size - start)).collect();
    parts("chunk", x, axis, &sizes)
}

#[track_caller]
fn windows(x: &Tensor, axis: i32, size: usize, step: usize) -> Result<Tensor> {
    let node = x.node()?;
    let at = node.shape.axis("unfold", axis)?;
    if size == 0 || size > node.shape[at] || step == 0 {
        let elements = counted(size, "element");
        let message = format!("no windows of {elements}, {step} apart, along axis {at} of {}", node.shape);
        return Err(Error::shape("unfold", message));
    }
    let from = node.shape.strides();
    let n_windows = (node.shape[at] - size) / step + 1;
    let axes = node.shape.iter().zip(from).enumerate().map(|(i, (&n, stride))| match i == at {
        // From one window to the next; with a single one that may be any step, and a huge one would overflow.
        true => (n_windows, stride * step.min(n) as isize),
        false => (n, stride),
    });
    let view = View::from_axes(axes.chain([(size, from[at])]), 0);
    view.shape.check("unfold")?;
    Ok(Tensor::viewed(node, view, Location::caller()))
}

#[track_caller]
fn repeated(x: &Tensor, reps: Shape) -> Result<Tensor> {
    let node = x.node()?;
    reps.check("repeat")?;
    let rank = node.shape.rank().max(reps.rank());
    let padded = |s: &Shape| -> Shape { std::iter::repeat_n(1, rank - s.rank()).chain(s.iter().copied()).collect() };
    let (mut shape, reps) = (padded(&node.shape), padded(&reps));
    let mut y = reshaped("repeat", x, shape)?;
    for (axis, &n) in reps.iter().enumerate().filter(|(_, n)| **n != 1) {
        // [outer, size, inner] is seen as [outer, n, size, inner], then put back into shape.
        let (outer, size) = (shape[..axis].iter().product(), shape[axis]);
        let inner: usize = shape[axis + 1..].iter().product();
        shape = shape.with(axis, size.saturating_mul(n));
        shape.check("repeat")?;
        let steps = [(outer, (size * inner) as isize), (n, 0), (size, inner as isize), (inner, 1)];
        y = Tensor::viewed(y.node()?, View::from_axes(steps.into_iter(), 0), Location::caller());
        y = reshaped("repeat", &y, shape)?;
    }
    Ok(y)
}
