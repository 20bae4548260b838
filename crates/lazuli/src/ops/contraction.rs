//! Contraction: products summed along a shared axis. Vectors and batches are brought into the one form that is recorded:
//! two tensors of equal rank with equal batch axes. How they lie in memory is left to views.

use std::panic::Location;
use std::sync::Arc;

use super::joining::same_device;
use super::movement::{flattened, reshaped};
use super::operand::{broadcast, cast, or_error};
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::graph::Op;
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Tensor {
    /// The matrix product, as NumPy's: the last two axes are matrices, the others broadcast; a vector is a row on the
    /// left and a column on the right, and its axis is gone from the result.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &cpu);
    /// let x = Tensor::from_slice(&[1.0f32, 10.0], [2], &cpu);
    /// assert_eq!(a.matmul(&a).to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
    /// assert_eq!(a.matmul(&x).to_vec::<f32>()?, [21.0, 43.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        or_error(product("matmul", self, other))
    }

    /// The dot product of two vectors. For matrices it is their product, as NumPy's.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::cpu());
    /// assert_eq!(x.dot(&x).item::<f32>()?, 14.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Tensor {
        or_error(product("dot", self, other))
    }

    /// Every element of one vector times every element of the other: `[m]` and `[n]` give `[m, n]`. What has more axes
    /// is flattened.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.outer(&x).to_vec::<f32>()?, [1.0, 2.0, 2.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Tensor {
        or_error(outer_product(self, other))
    }
}

#[track_caller]
pub(super) fn product(op: &str, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (x, y) = (a.node()?, b.node()?);
    same_device(op, x, y)?;
    let (rank_a, rank_b) = (x.shape.rank(), y.shape.rank());
    if rank_a == 0 || rank_b == 0 {
        return Err(misfit(op, "a scalar has no axis to contract", &x.shape, &y.shape, ""));
    }
    let k = x.shape[rank_a - 1];
    if k != y.shape[rank_b.saturating_sub(2)] {
        return Err(misfit(op, "inner sizes differ", &x.shape, &y.shape, hint(&x.shape, &y.shape)));
    }
    // Two vectors: one reduction, which is more accurate and fuses better than a product of thin matrices.
    if rank_a == 1 && rank_b == 1 {
        return summed_product(a, b, &[-1]);
    }
    // A vector is a row on the left, a column on the right.
    let left = if rank_a == 1 { Shape::from([1, k]) } else { x.shape };
    let right = if rank_b == 1 { Shape::from([k, 1]) } else { y.shape };
    let (batch_a, batch_b) = (Shape::from(&left[..left.rank() - 2]), Shape::from(&right[..right.rank() - 2]));
    let Some(batch) = batch_a.broadcast(&batch_b) else {
        return Err(misfit(op, "batch axes do not broadcast", &x.shape, &y.shape, ""));
    };
    let matrices = |shape: &Shape| -> Shape { batch.iter().chain(&shape[shape.rank() - 2..]).copied().collect() };
    let (m, n) = (left[left.rank() - 2], right[right.rank() - 1]);
    let out: Shape = batch.iter().copied().chain([m, n]).collect();
    out.check(op)?;
    matrices(&left).check(op)?;
    matrices(&right).check(op)?;

    let dtype = product_dtype(x.dtype, y.dtype);
    // Narrow integers are summed as wide ones and wrap at the end, which is the same. Halves stay: they are only read
    // as such, the sum is f32 anyway.
    let summed = if dtype == DType::U8 { DType::U32 } else { dtype };
    let at = Location::caller();
    let (a, b) = (reshaped(op, a, left)?, reshaped(op, b, right)?);
    let a = broadcast(cast(a.node()?, summed, at), &matrices(&left), at);
    let b = broadcast(cast(b.node()?, summed, at), &matrices(&right), at);
    let y = match k {
        // The sum of nothing is 0.
        0 => Tensor::constant(0.0, out, dtype, &x.device, at),
        _ => Tensor::record(Op::Matmul, &[&a, &b], out, summed, at).to_dtype(dtype),
    };
    match (rank_a, rank_b) {
        (1, _) => reshaped(op, &y, batch.iter().copied().chain([n]).collect()),
        (_, 1) => reshaped(op, &y, batch.iter().copied().chain([m]).collect()),
        _ => Ok(y),
    }
}

/// What a product of sums is: as multiplication promotes, and bools count.
fn product_dtype(a: DType, b: DType) -> DType {
    match a.promote(b) {
        DType::Bool => DType::I32,
        dtype => dtype,
    }
}

/// `Σ a·b` over these axes: a multiplication and a reduction, in a dtype in which the products are exact or nearly so.
#[track_caller]
pub(super) fn summed_product(a: &Tensor, b: &Tensor, axes: &[i32]) -> Result<Tensor> {
    let dtype = product_dtype(a.node()?.dtype, b.node()?.dtype);
    let wide = match dtype {
        DType::U8 => DType::U32,
        DType::F16 | DType::BF16 => DType::F32,
        dtype => dtype,
    };
    Ok(a.to_dtype(wide).mul(b.to_dtype(wide)).sum(axes).to_dtype(dtype))
}

#[track_caller]
#[cold]
fn misfit(op: &str, what: &str, a: &Shape, b: &Shape, hint: &str) -> Error {
    Error::Shape(Arc::new(Fault::new(op, format!("{what}: {a} × {b}{hint}")).shapes(&[a, b])))
}

/// The transpose that would make inner sizes agree, if there is one.
fn hint(a: &Shape, b: &Shape) -> &'static str {
    let batch = |s: &Shape| Shape::from(&s[..s.rank().saturating_sub(2)]);
    // Of a vector, which has no transpose, the only axis.
    let (rows, columns) = (|s: &Shape| s[s.rank().saturating_sub(2)], |s: &Shape| s[s.rank() - 1]);
    match batch(a).broadcast(&batch(b)) {
        Some(_) if b.rank() >= 2 && columns(a) == columns(b) => "; did you mean b.t()?",
        Some(_) if a.rank() >= 2 && rows(a) == rows(b) => "; did you mean a.t()?",
        _ => "",
    }
}

#[track_caller]
fn outer_product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (column, row) = (flattened("outer", a)?, flattened("outer", b)?);
    same_device("outer", column.node()?, row.node()?)?;
    let (m, n) = (column.node()?.shape[0], row.node()?.shape[0]);
    Ok(reshaped("outer", &column, Shape::from([m, 1]))?.mul(reshaped("outer", &row, Shape::from([1, n]))?))
}
