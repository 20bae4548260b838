//! A value that replaces another only if the evaluation that makes it goes well: what an update loop keeps.

use std::panic::Location;

use smallvec::smallvec;

use super::joining::same_device;
use super::operand::or_error;
use crate::error::{Error, Result};
use crate::graph::{Expr, Node, Op};
use crate::tensor::Tensor;

impl Tensor {
    /// This, unless the evaluation that computes it fails: then `old`, which has the same shape and dtype. So what one step
    /// of a loop makes of the last survives a step that cannot be made.
    ///
    /// An evaluation fails if an index is out of range in any lookup of all that is computed together, if a custom op
    /// panics on the CPU, or if there is no memory. The call that wanted it returns the error as ever (on a GPU the next
    /// call that reads something else of it); the result of `unless_failed` can be read and is used on. It costs no copy:
    /// where nobody else holds `old`, its memory is written over, but only after every lookup was checked. Lookups in
    /// what is itself computed from the result come too late to count. Gradients go to this, none to `old`.
    ///
    /// ```
    /// # use lazuli::{Device, Error, Tensor};
    /// let cpu = Device::cpu();
    /// let table = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1], &cpu);
    /// let mut total = Tensor::from_slice(&[0.0f32], [1], &cpu);
    /// for index in [[0, 2], [1, 7], [1, 1]] {
    ///     let rows = table.embedding(&Tensor::from_slice(&index, [2], &cpu));
    ///     total = total.add(rows.sum(0)).unless_failed(&total);
    ///     match total.compute() {
    ///         Ok(_) => {}
    ///         Err(Error::Index(_)) => assert_eq!(index, [1, 7]),
    ///         Err(other) => return Err(other),
    ///     }
    /// }
    /// // 1 + 3, nothing, 2 + 2
    /// assert_eq!(total.item::<f32>()?, 8.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn unless_failed(&self, old: &Tensor) -> Tensor {
        or_error(committed(self, old))
    }
}

#[track_caller]
fn committed(new: &Tensor, old: &Tensor) -> Result<Tensor> {
    let op = "unless_failed";
    let (new, old) = (new.node()?, old.node()?);
    same_device(op, new, old)?;
    if new.shape != old.shape {
        return Err(Error::shape(
            op,
            format!("{} cannot take the place of {}: shapes must be equal", new.shape, old.shape),
        ));
    }
    if new.dtype != old.dtype {
        let message = format!("{} cannot take the place of {}; cast it with to_dtype", new.dtype, old.dtype);
        return Err(Error::dtype(op, message));
    }
    let (shape, dtype, device, at) = (new.shape, new.dtype, new.device.clone(), Location::caller());
    let expr = Expr { op: Op::Commit, inputs: smallvec![old.clone(), new.clone()] };
    // No gradient asks for what `old` was computed from, so that alone keeps no history.
    Ok(Tensor::new(Ok(match new.tracked {
        true => Node::new(expr, shape, dtype, device, at, true),
        false => Node::detached(expr, shape, dtype, device, at),
    })))
}
