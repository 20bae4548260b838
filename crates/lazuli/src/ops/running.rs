//! Running products and extrema along an axis, by doubling: after steps of 1, 2, 4, … each element has combined all that stand
//! before it (Hillis and Steele's scan), in log₂ n maps over the whole tensor.

use std::panic::Location;

use super::create::coordinate;
use super::operand::{or_error, taken};
use super::row::Takes;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Tensor {
    /// Running products along an axis. Integers wrap; u8 multiplies as u32, bool as i32.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(1, 5, 1, &Device::cpu());
    /// assert_eq!(x.cumprod(0).to_vec::<i32>()?, [1, 2, 6, 24]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn cumprod(&self, axis: i32) -> Tensor {
        or_error(running_product(self, axis))
    }

    /// The greatest element so far along an axis, and where it is (i32): the last of equal ones. NaN stays.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 3.0], [4], &Device::cpu());
    /// let (values, indices) = x.cummax(0);
    /// assert_eq!(values.to_vec::<f32>()?, [1.0, 3.0, 3.0, 3.0]);
    /// assert_eq!(indices.to_vec::<i32>()?, [0, 1, 1, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn cummax(&self, axis: i32) -> (Tensor, Tensor) {
        let indices = or_error(running_best("cummax", self, axis, |before, x| before.gt(x)));
        (self.gather(axis, &indices), indices)
    }

    /// The least element so far along an axis, and where it is, as [`cummax`](Tensor::cummax) says it.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2, 3, 1], [3], &Device::cpu());
    /// assert_eq!(x.cummin(0).0.to_vec::<i32>()?, [2, 2, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn cummin(&self, axis: i32) -> (Tensor, Tensor) {
        let indices = or_error(running_best("cummin", self, axis, |before, x| before.lt(x)));
        (self.gather(axis, &indices), indices)
    }
}

/// 1, 2, 4, … below `n`.
fn doublings(n: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS).map(|bit| 1usize << bit).take_while(move |step| *step < n)
}

/// `x` moved `step` places along an axis of `n`, without what leaves it, after so many of `fill`.
#[track_caller]
fn delayed(x: &Tensor, axis: usize, n: usize, step: usize, fill: f64) -> Tensor {
    let mut pads = vec![(0, 0); axis + 1];
    pads[axis] = (step, 0);
    x.narrow(axis as i32, 0, n - step).pad(&pads, fill)
}

#[track_caller]
fn running_product(x: &Tensor, axis: i32) -> Result<Tensor> {
    let node = x.node()?;
    let at = node.shape.axis("cumprod", axis)?;
    // As wide as the product of all would be.
    let dtype = match taken(Takes::Number, "cumprod", node.dtype)? {
        DType::U8 => DType::U32,
        dtype => dtype,
    };
    let n = node.shape[at];
    // Half floats are rounded once.
    let wide = if dtype.is_float() { DType::F32 } else { dtype };
    let step = |y: Tensor, step: usize| y.mul(delayed(&y, at, n, step, 1.0));
    Ok(doublings(n).fold(x.to_dtype(wide), step).to_dtype(dtype))
}

/// Where the best so far is; `is_better` tells whether one before is better than a later one.
#[track_caller]
fn running_best(op: &str, x: &Tensor, axis: i32, is_better: fn(&Tensor, &Tensor) -> Tensor) -> Result<Tensor> {
    let node = x.node()?;
    let at = node.shape.axis(op, axis)?;
    let n = node.shape[at];
    if n > i32::MAX as usize {
        return Err(Error::shape(op, format!("axis {at} of {} is longer than an i32 can count", node.shape)));
    }
    let mut best = x.detach();
    let mut place = coordinate(&node.shape, at, &node.device, Location::caller());
    let own = place.clone();
    for step in doublings(n) {
        let (before, before_place) = (delayed(&best, at, n, step, 0.0), delayed(&place, at, n, step, 0.0));
        let mut is_before = is_better(&before, &best);
        if node.dtype.is_float() {
            is_before = is_before.logical_or(before.is_nan().logical_and(best.is_nan().logical_not()));
        }
        // There is nothing before the first ones.
        let is_before = is_before.logical_and(own.ge(step));
        best = is_before.select(before, &best);
        place = is_before.select(before_place, &place);
    }
    Ok(place)
}
