//! Choosing between two values: `select` and `clamp`.

use smallvec::smallvec;

use super::binary::{AT_LEAST, AT_MOST};
use super::operand::{Meeting, Number, Operand, Side, binary, carried, cast};
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
        carried(try_select(self, &a.into(), &b.into()))
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
    let mut meeting = Meeting::of("select", &[Side::Node(&cond), a, b])?;
    if let (Side::Number(a), Side::Number(b)) = (a, b) {
        meeting.dtype = Number::common(a, b);
    }
    let dtype = meeting.dtype;
    let (a, b) = (meeting.fit(a)?, meeting.fit(b)?);
    meeting.dtype = DType::Bool;
    let cond = meeting.fit(Side::Node(&cond))?;
    Ok(meeting.record(Op::Select, smallvec![cond, a, b], dtype))
}
