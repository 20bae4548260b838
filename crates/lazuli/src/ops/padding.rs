//! Padding by what is inside: the edge repeated, the inside mirrored or repeated. Each axis is read through an index that is
//! computed, not stored, so nothing is copied before the result is.

use std::panic::Location;

use super::create::coordinate;
use super::operand::or_error;
use crate::error::{Error, Result, counted};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// What stands around a tensor that is padded by its own elements.
///
/// ```
/// # use lazuli::{Device, PadMode, Tensor};
/// let x = Tensor::arange(0, 4, 1, &Device::cpu());
/// assert_eq!(x.pad_with(&[(2, 2)], PadMode::Edge).to_vec::<i32>()?, [0, 0, 0, 1, 2, 3, 3, 3]);
/// assert_eq!(x.pad_with(&[(2, 2)], PadMode::Reflect).to_vec::<i32>()?, [2, 1, 0, 1, 2, 3, 2, 1]);
/// assert_eq!(x.pad_with(&[(2, 2)], PadMode::Symmetric).to_vec::<i32>()?, [1, 0, 0, 1, 2, 3, 3, 2]);
/// assert_eq!(x.pad_with(&[(2, 2)], PadMode::Wrap).to_vec::<i32>()?, [2, 3, 0, 1, 2, 3, 0, 1]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadMode {
    /// The first and the last element.
    Edge,
    /// The elements mirrored at the first and at the last, which are not repeated.
    Reflect,
    /// The elements mirrored at the edges, first and last included.
    Symmetric,
    /// The elements from the other end.
    Wrap,
}

impl Tensor {
    /// With its own elements around it: for each axis, how many before and after; any number, as in NumPy. Axes not named
    /// are left as they are. [`pad`](Tensor::pad) puts a number there.
    ///
    /// ```
    /// # use lazuli::{Device, PadMode, Tensor};
    /// let x = Tensor::arange(1, 4, 1, &Device::cpu());
    /// assert_eq!(x.pad_with(&[(3, 1)], PadMode::Reflect).to_vec::<i32>()?, [2, 3, 2, 1, 2, 3, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn pad_with(&self, pads: &[(usize, usize)], mode: PadMode) -> Tensor {
        or_error(padded(self, pads, mode))
    }
}

#[track_caller]
fn padded(x: &Tensor, pads: &[(usize, usize)], mode: PadMode) -> Result<Tensor> {
    let op = "pad_with";
    let node = x.node()?;
    if pads.len() > node.shape.rank() {
        let (pairs, axes) = (counted(pads.len(), "pair"), counted(node.shape.rank(), "axis"));
        return Err(Error::shape(op, format!("{pairs} for {}, which has {axes}", node.shape)));
    }
    let mut y = x.clone();
    for (axis, &(before, after)) in pads.iter().enumerate().filter(|(_, pads)| **pads != (0, 0)) {
        let n = node.shape[axis];
        let size = n.saturating_add(before).saturating_add(after);
        y.node()?.shape.with(axis, size).check(op)?;
        if n == 0 {
            return Err(Error::shape(op, format!("axis {axis} of {} has no elements to pad with", node.shape)));
        }
        if size > i32::MAX as usize {
            return Err(Error::unsupported(op, format!("axis {axis} would be longer than i32 can count")));
        }
        let place = coordinate(&Shape::from([size]), 0, &node.device, Location::caller()).sub(before);
        y = y.index_select(axis as i32, &inside(&place, n, mode));
    }
    Ok(y)
}

/// The index in `0..n` whose element is shown at an index outside, by the pad mode.
#[track_caller]
fn inside(place: &Tensor, n: usize, mode: PadMode) -> Tensor {
    match mode {
        PadMode::Edge => place.clamp(0, n - 1),
        PadMode::Wrap => place.rem(n),
        // There and back again takes 2·(n − 1) steps.
        PadMode::Reflect if n == 1 => place.mul(0),
        PadMode::Reflect => {
            let step = place.rem(2 * (n - 1));
            step.minimum(step.neg().add(2 * (n - 1)))
        }
        PadMode::Symmetric => {
            let step = place.rem(2 * n);
            step.minimum(step.neg().add(2 * n - 1))
        }
    }
}
