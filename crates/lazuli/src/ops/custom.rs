//! The user's own elementwise ops.

use std::sync::Arc;

use smallvec::SmallVec;

use super::operand::{OperandSide, Promoted, or_error};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{CustomOp, CustomRef, NodeRef, Op};
use crate::tensor::Tensor;

impl Tensor {
    /// Applies the user's own elementwise op. Inputs are cast to f32 and broadcast; it fuses like any other.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use lazuli::{CustomOp, Device, Tensor};
    /// let hypot = CustomOp {
    ///     name: "hypot".into(),
    ///     wgsl: "length(vec2($0, $1))".into(),
    ///     cpu: Arc::new(|x| x[0].hypot(x[1])),
    ///     grad: None,
    /// };
    /// let x = Tensor::from_slice(&[3.0f32, 5.0], [2], &Device::cpu());
    /// let y = Tensor::from_slice(&[4.0f32, 12.0], [2], &Device::cpu());
    /// assert_eq!(Tensor::map_custom(&hypot, &[&x, &y]).to_vec::<f32>()?, [5.0, 13.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn map_custom(op: &CustomOp, inputs: &[&Tensor]) -> Tensor {
        or_error(try_custom(op, inputs))
    }
}

#[track_caller]
fn try_custom(op: &CustomOp, inputs: &[&Tensor]) -> Result<Tensor> {
    let sides = inputs.iter().map(|t| t.node().map(OperandSide::Node)).collect::<Result<Vec<_>>>()?;
    if sides.is_empty() {
        return Err(Error::shape(&op.name, "a custom op takes at least one tensor"));
    }
    let mut promoted = Promoted::of(&op.name, &sides)?;
    promoted.dtype = DType::F32;
    let inputs = sides.into_iter().map(|side| promoted.coerce(side)).collect::<Result<SmallVec<[NodeRef; 3]>>>()?;
    Ok(promoted.record(Op::Custom(CustomRef(Arc::new(op.clone()))), inputs, DType::F32))
}
