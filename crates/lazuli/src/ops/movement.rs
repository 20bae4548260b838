//! Movement: the same elements in another shape or order. Each op is one view; no bytes move.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::create::{coordinate, fits};
use super::operand::or_error;
use crate::dtype::Element;
use crate::error::{Error, Result, counted};
use crate::graph::Op;
use crate::shape::{Axes, Dims, MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// The same elements, row-major, in another shape. One size may be -1: it follows from the others.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu());
    /// assert_eq!(x.reshape([2, 3]).shape()?, [2, 3]);
    /// assert_eq!(x.reshape([-1, 2]).shape()?, [3, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Dims>) -> Tensor {
        or_error(reshaped_to(self, shape.into()))
    }

    /// All elements along one axis, row-major.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// assert_eq!(Tensor::zeros([2, 3], DType::F32, &Device::cpu()).flatten().shape()?, [6]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn flatten(&self) -> Tensor {
        or_error(flattened("flatten", self))
    }

    /// A new axis of size 1 before `axis`; -1 puts it last.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3], DType::F32, &Device::cpu());
    /// assert_eq!(x.unsqueeze(0).shape()?, [1, 2, 3]);
    /// assert_eq!(x.unsqueeze(-1).shape()?, [2, 3, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn unsqueeze(&self, axis: i32) -> Tensor {
        or_error(unsqueezed("unsqueeze", self, axis))
    }

    /// Without these axes, which must have size 1; `..` drops every axis of size 1.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([1, 3, 1], DType::F32, &Device::cpu());
    /// assert_eq!(x.squeeze(0).shape()?, [3, 1]);
    /// assert_eq!(x.squeeze(..).shape()?, [3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn squeeze(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(squeezed(self, axes.into()))
    }

    /// The axes in another order: axis `i` of the result is axis `order[i]` of this.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu());
    /// assert_eq!(x.permute(&[2, 0, 1]).shape()?, [4, 2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn permute(&self, order: &[i32]) -> Tensor {
        or_error(permuted(self, order))
    }

    /// The matrix transposed: the last two axes swapped. A vector or scalar is its own transpose.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 4, 1, &Device::cpu()).reshape([2, 2]);
    /// assert_eq!(x.t().to_vec::<i32>()?, [0, 2, 1, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn t(&self) -> Tensor {
        match self.shape() {
            Ok(shape) if shape.len() >= 2 => self.transpose(-2, -1),
            _ => self.clone(),
        }
    }

    /// Two axes swapped.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu());
    /// assert_eq!(x.transpose(0, -1).shape()?, [4, 3, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn transpose(&self, a: i32, b: i32) -> Tensor {
        or_error(transposed(self, a, b))
    }

    /// Repeated along new leading axes and along axes of size 1 to fill `shape`, as NumPy broadcasts.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 2, 1, &Device::cpu());
    /// assert_eq!(x.broadcast_to([2, 2]).to_vec::<i32>()?, [0, 1, 0, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Tensor {
        or_error(broadcast("broadcast_to", self, shape.into()))
    }

    /// These axes backwards.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 4, 1, &Device::cpu()).reshape([2, 2]);
    /// assert_eq!(x.flip(-1).to_vec::<i32>()?, [1, 0, 3, 2]);
    /// assert_eq!(x.flip(..).to_vec::<i32>()?, [3, 2, 1, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn flip(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(flipped(self, axes.into()))
    }

    /// With `value` around it: for each axis, how many before and after. Axes not named are left as they are.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(1, 3, 1, &Device::cpu());
    /// assert_eq!(x.pad(&[(1, 2)], 9).to_vec::<i32>()?, [9, 1, 2, 9, 9]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn pad<T: Element>(&self, pads: &[(usize, usize)], value: T) -> Tensor {
        or_error(padded(self, pads, value.to_f64()))
    }

    /// Elements `start .. start + len` of one axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu());
    /// assert_eq!(x.narrow(0, 2, 3).to_vec::<i32>()?, [2, 3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn narrow(&self, axis: i32, start: usize, len: usize) -> Tensor {
        or_error(narrowed("narrow", self, axis, start, len))
    }

    /// The lower triangle of the last two axes; zeros above the diagonal.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 2], DType::I32, &Device::cpu());
    /// assert_eq!(x.tril().to_vec::<i32>()?, [1, 0, 1, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn tril(&self) -> Tensor {
        self.tril_k(0)
    }

    /// The lower triangle up to the `k`-th diagonal above the main one (below it, if negative).
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 2], DType::I32, &Device::cpu());
    /// assert_eq!(x.tril_k(-1).to_vec::<i32>()?, [0, 0, 1, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn tril_k(&self, k: i32) -> Tensor {
        or_error(triangle("tril", self, |above| above.le(k)))
    }

    /// The upper triangle of the last two axes; zeros below the diagonal.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 2], DType::I32, &Device::cpu());
    /// assert_eq!(x.triu().to_vec::<i32>()?, [1, 1, 0, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn triu(&self) -> Tensor {
        self.triu_k(0)
    }

    /// The upper triangle from the `k`-th diagonal above the main one (below it, if negative).
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 2], DType::I32, &Device::cpu());
    /// assert_eq!(x.triu_k(1).to_vec::<i32>()?, [0, 1, 0, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn triu_k(&self, k: i32) -> Tensor {
        or_error(triangle("triu", self, |above| above.ge(k)))
    }

    /// The diagonal of the last two axes.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([2, 3]);
    /// assert_eq!(x.diagonal().to_vec::<i32>()?, [0, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn diagonal(&self) -> Tensor {
        or_error(diagonal_of("diagonal", self, 0))
    }
}

#[track_caller]
fn reshaped_to(x: &Tensor, dims: Dims) -> Result<Tensor> {
    reshaped("reshape", x, dims.resolve("reshape", &x.node()?.shape)?)
}

#[track_caller]
pub(super) fn reshaped(op: &str, x: &Tensor, shape: Shape) -> Result<Tensor> {
    let node = x.node()?;
    if node.shape == shape {
        return Ok(x.clone());
    }
    shape.check(op)?;
    let (have, want) = (node.shape.n_elems(), shape.n_elems());
    if have != want {
        let have = counted(have, "element");
        return Err(Error::shape(op, format!("{} has {have}, {shape} has {want}", node.shape)));
    }
    Ok(Tensor::viewed(node, View::contiguous(shape), Location::caller()))
}

#[track_caller]
pub(super) fn flattened(op: &str, x: &Tensor) -> Result<Tensor> {
    reshaped(op, x, Shape::from([x.node()?.shape.n_elems()]))
}

#[track_caller]
pub(super) fn unsqueezed(op: &str, x: &Tensor, axis: i32) -> Result<Tensor> {
    let shape = &x.node()?.shape;
    let rank = shape.rank() as i32 + 1;
    let at = if axis < 0 { axis + rank } else { axis };
    if !(0..rank).contains(&at) {
        let allowed = format!("a new axis may stand at {} to {}", -rank, rank - 1);
        return Err(Error::shape(op, format!("axis {axis} is out of range for {shape}: {allowed}")));
    }
    let (before, after) = shape.split_at(at as usize);
    reshaped(op, x, before.iter().chain(&[1]).chain(after).copied().collect())
}

#[track_caller]
fn squeezed(x: &Tensor, axes: Axes) -> Result<Tensor> {
    let shape = &x.node()?.shape;
    let (named, _) = axes.resolve("squeeze", shape)?;
    let wrong = (0..shape.rank()).find(|i| named.contains(*i) && shape[*i] != 1);
    if let (Some(axis), false) = (wrong, axes.is_all()) {
        return Err(Error::shape("squeeze", format!("axis {axis} of {shape} has size {}, not 1", shape[axis])));
    }
    let left = (0..shape.rank()).filter(|i| !named.contains(*i) || shape[*i] != 1);
    reshaped("squeeze", x, left.map(|i| shape[i]).collect())
}

#[track_caller]
fn permuted(x: &Tensor, order: &[i32]) -> Result<Tensor> {
    let node = x.node()?;
    let rank = node.shape.rank();
    let mut axes: SmallVec<[usize; MAX_RANK]> = SmallVec::new();
    for &axis in order {
        let axis = node.shape.axis("permute", axis)?;
        if axes.contains(&axis) {
            return Err(Error::shape("permute", format!("axis {axis} is named twice in {order:?}")));
        }
        axes.push(axis);
    }
    if axes.len() != rank {
        return Err(Error::shape(
            "permute",
            format!("{order:?} names {} of the {} of {}", axes.len(), counted(rank, "axis"), node.shape),
        ));
    }
    Ok(Tensor::viewed(node, View::permute(&node.shape, &axes), Location::caller()))
}

#[track_caller]
fn transposed(x: &Tensor, a: i32, b: i32) -> Result<Tensor> {
    let node = x.node()?;
    let (a, b) = (node.shape.axis("transpose", a)?, node.shape.axis("transpose", b)?);
    let mut order: SmallVec<[usize; MAX_RANK]> = (0..node.shape.rank()).collect();
    order.swap(a, b);
    Ok(Tensor::viewed(node, View::permute(&node.shape, &order), Location::caller()))
}

#[track_caller]
pub(super) fn broadcast(op: &str, x: &Tensor, shape: Shape) -> Result<Tensor> {
    let node = x.node()?;
    shape.check(op)?;
    if node.shape.broadcast(&shape) != Some(shape) {
        return Err(Error::shape(op, format!("{} does not broadcast to {shape}", node.shape)));
    }
    Ok(Tensor::viewed(node, View::broadcast(&node.shape, &shape), Location::caller()))
}

#[track_caller]
fn flipped(x: &Tensor, axes: Axes) -> Result<Tensor> {
    let node = x.node()?;
    let (named, _) = axes.resolve("flip", &node.shape)?;
    let backwards = |(i, &size): (usize, &usize)| match size {
        2.. if named.contains(i) => (size - 1, -1, size),
        _ => (0, 1, size),
    };
    let ranges: SmallVec<[_; MAX_RANK]> = node.shape.iter().enumerate().map(backwards).collect();
    Ok(Tensor::viewed(node, View::slice(&node.shape, &ranges), Location::caller()))
}

#[track_caller]
fn padded(x: &Tensor, pads: &[(usize, usize)], value: f64) -> Result<Tensor> {
    let node = x.node()?;
    let (shape, dtype) = (&node.shape, node.dtype);
    if pads.len() > shape.rank() {
        let (pairs, axes) = (counted(pads.len(), "pair"), counted(shape.rank(), "axis"));
        return Err(Error::shape("pad", format!("{pairs} for {shape}, which has {axes}")));
    }
    if !fits(value, dtype) {
        return Err(Error::dtype("pad", format!("{value} does not fit {dtype}")));
    }
    let mut all: SmallVec<[(usize, usize); MAX_RANK]> = pads.into();
    all.resize(shape.rank(), (0, 0));
    if all.iter().all(|p| *p == (0, 0)) {
        return Ok(x.clone());
    }
    let size = |(d, p): (&usize, &(usize, usize))| d.saturating_add(p.0).saturating_add(p.1);
    let out: Shape = shape.iter().zip(&all).map(size).collect();
    out.check("pad")?;
    let at = Location::caller();
    let fill = Tensor::constant(value, Shape::default(), dtype, &node.device, at);
    // Nothing inside: fill is all there is.
    if shape.n_elems() == 0 {
        return broadcast("pad", &fill, out);
    }
    let view = View::pad(shape, &all);
    Ok(Tensor::record(Op::Pad(Arc::new(view)), &[node, fill.node()?], out, dtype, at))
}

#[track_caller]
pub(super) fn narrowed(op: &str, x: &Tensor, axis: i32, start: usize, len: usize) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis(op, axis)?;
    if start.checked_add(len).is_none_or(|end| end > node.shape[axis]) {
        let (elements, verb) = (counted(len, "element"), if len == 1 { "does" } else { "do" });
        let message = format!("{elements} from {start} {verb} not fit axis {axis} of {}", node.shape);
        return Err(Error::shape(op, message));
    }
    let whole = |(i, &size): (usize, &usize)| match i == axis {
        // Of nothing, any start will do: this one is inside.
        true if len == 0 => (0, 1, 0),
        true => (start, 1, len),
        false => (0, 1, size),
    };
    let ranges: SmallVec<[_; MAX_RANK]> = node.shape.iter().enumerate().map(whole).collect();
    Ok(Tensor::viewed(node, View::slice(&node.shape, &ranges), Location::caller()))
}

#[track_caller]
fn triangle(op: &str, x: &Tensor, keeps: impl Fn(&Tensor) -> Tensor) -> Result<Tensor> {
    let node = x.node()?;
    let rank = node.shape.rank();
    if rank < 2 {
        return Err(Error::shape(op, format!("{} has no matrix: at least two axes are needed", node.shape)));
    }
    let (at, device) = (Location::caller(), &node.device);
    let matrix = Shape::from(&node.shape[rank - 2..]);
    let above = coordinate(&matrix, 1, device, at).sub(coordinate(&matrix, 0, device, at));
    Ok(keeps(&above).select(x, x.zeros_like()))
}

#[track_caller]
pub(super) fn diagonal_of(op: &str, x: &Tensor, k: i32) -> Result<Tensor> {
    let node = x.node()?;
    let rank = node.shape.rank();
    if rank < 2 {
        return Err(Error::shape(op, format!("{} has no matrix: at least two axes are needed", node.shape)));
    }
    let from = node.shape.strides();
    let (rows, columns) = (node.shape[rank - 2], node.shape[rank - 1]);
    // Where the k-th diagonal begins: k columns to the right, or as many rows down.
    let (row, column) = (k.min(0).unsigned_abs() as usize, k.max(0) as usize);
    let n = rows.saturating_sub(row).min(columns.saturating_sub(column));
    let mut axes: SmallVec<[(usize, isize); MAX_RANK]> = (0..rank - 2).map(|i| (node.shape[i], from[i])).collect();
    axes.push((n, from[rank - 2] + from[rank - 1]));
    let start = if n == 0 { 0 } else { row as isize * from[rank - 2] + column as isize * from[rank - 1] };
    Ok(Tensor::viewed(node, View::from_axes(axes.into_iter(), start), Location::caller()))
}
