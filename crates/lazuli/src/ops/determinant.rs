//! Determinants by Gaussian elimination with row exchanges, a step for each row, written with tensor ops: gradients come with
//! it, and many matrices are eliminated together.

use super::operand::or_error;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The largest matrix: every row is a step of its own.
const MAX_SIZE: usize = 128;

impl Tensor {
    /// The determinant of square matrices `[…, n, n]`, `n` at most 128; where it is 0 its gradient is of no use.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu());
    /// assert!((x.det().item::<f32>()? + 2.0).abs() < 1e-6);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn det(&self) -> Tensor {
        or_error(determinant(self))
    }
}

#[track_caller]
fn determinant(x: &Tensor) -> Result<Tensor> {
    let node = x.node()?;
    let (shape, dtype) = (node.shape, node.dtype);
    let [lead @ .., rows, columns] = &shape[..] else {
        return Err(Error::shape("det", format!("takes square matrices […, n, n], not {shape}")));
    };
    if rows != columns {
        return Err(Error::shape("det", format!("takes square matrices […, n, n], not {shape}")));
    }
    if !dtype.is_float() {
        return Err(Error::dtype("det", format!("takes floats, not {dtype}; cast with to_dtype")));
    }
    if *rows > MAX_SIZE {
        return Err(Error::unsupported("det", format!("matrices of {rows} rows; at most {MAX_SIZE}")));
    }
    let n_matrices: usize = lead.iter().product();
    let mut rest = x.to_dtype(DType::F32).reshape([n_matrices, *rows, *rows]);
    let mut product = Tensor::ones([n_matrices], DType::F32, &node.device);
    for n in (1..=*rows).rev() {
        let column = rest.select_index(2, 0);
        // The largest element of the first column is the pivot; its row takes the place of the first one.
        let pivot_row = column.abs().argmax(-1);
        let places = Tensor::arange(0, n as i32, 1, &node.device).reshape([1, n]);
        let wanted = pivot_row.reshape([n_matrices, 1]);
        let order = places.eq(0).select(&wanted, &places.eq(&wanted).select(0, &places));
        let order = order.reshape([n_matrices, n, 1]).broadcast_to([n_matrices, n, n]);
        let exchanged = rest.gather(1, &order);
        let pivot = exchanged.select_index(1, 0).select_index(1, 0);
        product = product.mul(&pivot_row.eq(0).select(1.0, -1.0)).mul(&pivot);
        // A column of zeros has made the product 0 already: what follows must only stay finite.
        let divisor = pivot.eq(0.0).select(1.0, &pivot).reshape([n_matrices, 1, 1]);
        let first = exchanged.narrow(1, 0, 1).narrow(2, 1, n - 1);
        let factors = exchanged.narrow(1, 1, n - 1).narrow(2, 0, 1).div(&divisor);
        rest = exchanged.narrow(1, 1, n - 1).narrow(2, 1, n - 1).sub(&factors.mul(&first));
    }
    Ok(product.reshape(Shape::from(lead)).to_dtype(dtype))
}
