//! Choosing between two values: `select` and `clamp`.

use smallvec::smallvec;

use super::binary::{AT_LEAST, AT_MOST};
use super::operand::{Number, Operand, OperandSide, Promoted, binary, cast, or_error};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Op;
use crate::tensor::Tensor;

impl Tensor {
    /// Where this is true (or not zero) `a`, elsewhere `b`: tensors, which broadcast, or numbers.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0], [3], &Device::cpu());
    /// assert_eq!(x.gt(0.0).select(&x, 0.0).to_vec::<f32>()?, [1.0, 0.0, 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn select(&self, a: impl Into<Operand>, b: impl Into<Operand>) -> Tensor {
        or_error(try_select(self, &a.into(), &b.into()))
    }

    /// The number, or the nearer of the bounds if it lies beyond them. NaN stays NaN. At a bound the gradient is 0, as it
    /// is beyond.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1.0f32, 0.5, 7.0], [3], &Device::cpu());
    /// assert_eq!(x.clamp(0.0, 1.0).to_vec::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn clamp(&self, low: impl Into<Operand>, high: impl Into<Operand>) -> Tensor {
        binary(&AT_MOST, &binary(&AT_LEAST, self, low.into()), high.into())
    }
}

#[track_caller]
fn try_select(cond: &Tensor, a: &Operand, b: &Operand) -> Result<Tensor> {
    let (a, b) = (a.side()?, b.side()?);
    let cond = cond.node()?;
    let at = std::panic::Location::caller();
    let cond = cast(cond, DType::Bool, at);
    // The condition has a say in the shape, not in the dtype: as a bool it promotes to anything.
    let mut promoted = Promoted::of("select", &[OperandSide::Node(&cond), a, b])?;
    if let (OperandSide::Number(a), OperandSide::Number(b)) = (a, b) {
        promoted.dtype = Number::common(a, b);
    }
    let dtype = promoted.dtype;
    let (a, b) = (promoted.coerce(a)?, promoted.coerce(b)?);
    promoted.dtype = DType::Bool;
    let cond = promoted.coerce(OperandSide::Node(&cond))?;
    Ok(promoted.record(Op::Select, smallvec![cond, a, b], dtype))
}
