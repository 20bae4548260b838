//! Order along an axis: running sums, sorting, the largest few. Rows of routines, since each element depends on its
//! whole line.

use std::panic::Location;

use super::movement::narrowed;
use super::operand::{cast, or_error, taken};
use super::row::{RoutineRow, Takes};
use crate::dtype::DType;
use crate::error::{Error, Result, counted};
use crate::graph::Op;
use crate::tensor::Tensor;

impl Tensor {
    /// Running sums along an axis. Integers wrap; u8 sums as u32, bool as i32.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(1, 5, 1, &Device::cpu());
    /// assert_eq!(x.cumsum(0).to_vec::<i32>()?, [1, 3, 6, 10]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: i32) -> Tensor {
        or_error(running_sum(self, axis))
    }

    /// Sorted along an axis; equal elements keep their order, NaN comes last either way.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3, 1, 2], [3], &Device::cpu());
    /// assert_eq!(x.sort(0, false).to_vec::<i32>()?, [1, 2, 3]);
    /// assert_eq!(x.sort(0, true).to_vec::<i32>()?, [3, 2, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: i32, descending: bool) -> Tensor {
        or_error(ordered(&SORT, self, axis, descending))
    }

    /// The indices (i32) that would sort along an axis: `x.gather(axis, &x.argsort(axis, d))` is `x.sort(axis, d)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], [3], &Device::cpu());
    /// assert_eq!(x.argsort(0, false).to_vec::<i32>()?, [1, 2, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn argsort(&self, axis: i32, descending: bool) -> Tensor {
        or_error(ordered(&ARGSORT, self, axis, descending))
    }

    /// The `k` largest elements along an axis, largest first, and their indices (i32).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], [3], &Device::cpu());
    /// let (values, indices) = x.topk(2, 0);
    /// assert_eq!(values.to_vec::<f32>()?, [3.0, 2.0]);
    /// assert_eq!(indices.to_vec::<i32>()?, [0, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn topk(&self, k: usize, axis: i32) -> (Tensor, Tensor) {
        match largest(self, k, axis) {
            Ok(indices) => (self.gather(axis, &indices), indices),
            Err(error) => (Tensor::new(Err(error.clone())), Tensor::new(Err(error))),
        }
    }
}

/// Input `x`; parameters: the axis.
pub static CUMSUM: RoutineRow = RoutineRow {
    name: "cumsum",
    doc: "running sums along an axis",
    // dx[i] = Σ g[j] for j ≥ i: a running sum from the other end.
    grad: Some(|_, _, g, params| vec![Some(g.flip(params[0]).cumsum(params[0]).flip(params[0]))]),
    ulps: 1.0,
    indexes: false,
};

/// Input `x`; parameters: the axis, and 1 for descending.
pub static SORT: RoutineRow = RoutineRow {
    name: "sort",
    doc: "elements in order along an axis; stable, NaN last",
    // dx: each gradient goes back to where its element came from.
    grad: Some(|inputs, _, g, params| {
        let x = &inputs[0];
        vec![Some(g.zeros_like().scatter_add(params[0], &x.argsort(params[0], params[1] != 0), g))]
    }),
    ulps: 0.0,
    indexes: false,
};

/// Input `x`; parameters: the axis, and 1 for descending.
pub static ARGSORT: RoutineRow = RoutineRow {
    name: "argsort",
    doc: "the indices that would sort along an axis; stable, NaN last",
    grad: None,
    ulps: 0.0,
    indexes: false,
};

#[track_caller]
fn running_sum(x: &Tensor, axis: i32) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis("cumsum", axis)?;
    let at = Location::caller();
    // As wide as the sum of all would be.
    let dtype = match taken(Takes::Number, "cumsum", node.dtype)? {
        DType::U8 => DType::U32,
        dtype => dtype,
    };
    let x = cast(node, dtype, at);
    Ok(Tensor::record(Op::Routine(&CUMSUM, [axis as i32, 0]), &[&x], node.shape, dtype, at))
}

#[track_caller]
fn ordered(row: &'static RoutineRow, x: &Tensor, axis: i32, descending: bool) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis(row.name, axis)?;
    if node.shape[axis] > i32::MAX as usize {
        return Err(Error::shape(row.name, format!("axis {axis} of {} is longer than an i32 can count", node.shape)));
    }
    let dtype = if row == &ARGSORT { DType::I32 } else { node.dtype };
    let params = [axis as i32, descending as i32];
    Ok(Tensor::record(Op::Routine(row, params), &[node], node.shape, dtype, Location::caller()))
}

#[track_caller]
fn largest(x: &Tensor, k: usize, axis: i32) -> Result<Tensor> {
    let shape = &x.node()?.shape;
    let size = shape[shape.axis("topk", axis)?];
    if k > size {
        return Err(Error::shape("topk", format!("{} of an axis of size {size} of {shape}", counted(k, "element"))));
    }
    narrowed("topk", &ordered(&ARGSORT, x, axis, true)?, axis, 0, k)
}
