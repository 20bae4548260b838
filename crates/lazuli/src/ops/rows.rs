//! Rows at a position that is a number of the evaluation: reading some, and writing some into a tensor. A loop over
//! positions plans once, as it does over the numbers of its arithmetic.

use std::panic::Location;

use super::joining::same_device;
use super::movement::narrowed;
use super::operand::or_error;
use super::position::Position;
use crate::dtype::DType;
use crate::error::{Error, Result, counted};
use crate::graph::{Node, Op};
use crate::tensor::Tensor;

impl Tensor {
    /// This with `rows` in place of what is from `position` on along an axis. Along all other axes `rows` is as long as this,
    /// and it has the same dtype.
    ///
    /// The position is a number like any other: another one needs no new plan. Where nobody else holds this tensor, the rows
    /// are all that is written: `cache = cache.write_rows(..)` moves no more than the rows.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let cpu = Device::cpu();
    /// let mut cache = Tensor::zeros([4, 2], DType::F32, &cpu);
    /// for position in 0..3 {
    ///     let row = Tensor::full([1, 2], position as f32 + 1.0, &cpu);
    ///     cache = cache.write_rows(0, position, &row);
    ///     cache.compute()?;
    /// }
    /// assert_eq!(cache.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 0.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn write_rows(&self, axis: i32, position: impl Into<Position>, rows: &Tensor) -> Tensor {
        or_error(write(self, axis, position.into(), rows))
    }

    /// `len` elements of an axis from `position` on: [`narrow`](Tensor::narrow) whose start is a number of the evaluation, so
    /// that a loop over positions plans once. Elementwise ops read them where they lie; others are handed a copy.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let table = Tensor::arange(0, 8, 1, &Device::cpu()).reshape([4, 2]);
    /// assert_eq!(table.rows_at(0, 2, 1).to_vec::<i32>()?, [4, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn rows_at(&self, axis: i32, position: impl Into<Position>, len: usize) -> Tensor {
        or_error(rows_at(self, axis, position.into(), len))
    }
}

/// `x` with `rows` in place of what is at a position that was recorded before.
pub(crate) fn written(axis: usize, x: &Tensor, rows: &Tensor, position: &Tensor) -> Tensor {
    Tensor::attempt(|| {
        let x = x.node()?;
        let inputs = [x, rows.node()?, position.node()?];
        Ok(Tensor::record(Op::WriteRows(axis), &inputs, x.shape, x.dtype, Location::caller()))
    })
}

/// As many rows of `x` as `like` has, from a position on that was recorded before.
pub(crate) fn read(axis: usize, x: &Tensor, like: &Tensor, position: &Tensor) -> Tensor {
    Tensor::attempt(|| {
        let x = x.node()?;
        let inputs = [x, position.node()?];
        Ok(Tensor::record(Op::RowsAt(axis), &inputs, like.node()?.shape, x.dtype, Location::caller()))
    })
}

#[track_caller]
fn write(x: &Tensor, axis: i32, position: Position, rows: &Tensor) -> Result<Tensor> {
    let op = "write_rows";
    let (node, added) = (x.node()?, rows.node()?);
    let axis = node.shape.axis(op, axis)?;
    same_device(op, node, added)?;
    if added.dtype != node.dtype {
        let message = format!("the rows are {}, what they are written into is {}", added.dtype, node.dtype);
        return Err(Error::dtype(op, format!("{message}; cast one of them with to_dtype")));
    }
    let fits_beside = added.shape.rank() == node.shape.rank() && added.shape.with(axis, 0) == node.shape.with(axis, 0);
    if !fits_beside {
        let message = format!("rows {} and {} differ in more than axis {axis}", added.shape, node.shape);
        return Err(Error::shape(op, message));
    }
    let len = added.shape[axis];
    if ends_beyond(position, len, node.shape[axis]) {
        let position = position.value();
        let message = format!("rows {} from {position} on do not fit axis {axis} of {}", added.shape, node.shape);
        return Err(Error::shape(op, message));
    }
    if added.shape.n_elems() == 0 {
        return Ok(x.clone());
    }
    let position = at_position(op, node, position, node.shape[axis] - len)?;
    let inputs = [node, added, position.node()?];
    Ok(Tensor::record(Op::WriteRows(axis), &inputs, node.shape, node.dtype, Location::caller()))
}

#[track_caller]
fn rows_at(x: &Tensor, axis: i32, position: Position, len: usize) -> Result<Tensor> {
    let op = "rows_at";
    let node = x.node()?;
    let axis = node.shape.axis(op, axis)?;
    if ends_beyond(position, len, node.shape[axis]) {
        let position = position.value();
        let (elements, verb) = (counted(len, "element"), if len == 1 { "does" } else { "do" });
        let message = format!("{elements} from {position} on {verb} not fit axis {axis} of {}", node.shape);
        return Err(Error::shape(op, message));
    }
    let shape = node.shape.with(axis, len);
    if shape.n_elems() == 0 || shape == node.shape {
        return narrowed(op, x, axis as i32, 0, len);
    }
    let position = at_position(op, node, position, node.shape[axis] - len)?;
    Ok(Tensor::record(Op::RowsAt(axis), &[node, position.node()?], shape, node.dtype, Location::caller()))
}

/// Whether so many rows from a position on do not fit an axis.
fn ends_beyond(position: Position, len: usize, axis_len: usize) -> bool {
    position.value().checked_add(len).is_none_or(|end| end > axis_len)
}

/// A position as a number of the evaluation, which is never more than `most`.
#[track_caller]
fn at_position(op: &'static str, x: &Node, position: Position, most: usize) -> Result<Tensor> {
    let value = position.value();
    if u32::try_from(value).is_err() {
        return Err(Error::unsupported(op, format!("position {value} is beyond 32 bits")));
    }
    let at = Location::caller();
    let constant = Op::Const(position.constant(0, most.min(u32::MAX as usize) as i64, at, op));
    Ok(Tensor::source(constant, [].into_iter().collect(), DType::U32, &x.device, at))
}
