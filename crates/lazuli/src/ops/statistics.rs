//! Reductions written with the four that have rows: means, spreads, norms, truths and places.

use std::panic::Location;

use super::operand::{broadcast, or_error};
use super::reduce::{KeepAxes, n_reduced, reduce};
use super::softmax::{Widened, logsumexp};
use super::{MAX, MIN, ReduceRow, SUM};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{NodeRef, Op};
use crate::shape::{Axes, AxisSet};
use crate::tensor::Tensor;

impl Tensor {
    /// The mean along `axes`; of integers a float. Of nothing it is NaN.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1i32, 2, 3, 4], [2, 2], &Device::cpu());
    /// assert_eq!(x.mean(-1).to_vec::<f32>()?, [1.5, 3.5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_mean(self, &axes.into()))
    }

    /// The variance along `axes`: the mean squared distance from the mean, with `n − ddof` for `n`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4], &Device::cpu());
    /// assert_eq!(x.var(.., 0).item::<f32>()?, 1.25);
    /// assert_eq!(x.var(.., 1).item::<f32>()?, 5.0 / 3.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn var(&self, axes: impl Into<Axes>, ddof: usize) -> Tensor {
        or_error(try_var("var", self, &axes.into(), ddof))
    }

    /// The standard deviation along `axes`: the root of [`var`](Tensor::var). Where it is 0, so is its gradient.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2], &Device::cpu());
    /// assert_eq!(x.std(.., 0).item::<f32>()?, 1.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn std(&self, axes: impl Into<Axes>, ddof: usize) -> Tensor {
        or_error(try_std(self, &axes.into(), ddof))
    }

    /// The Euclidean norm along `axes`: the root of the sum of squares. Where it is 0, so is its gradient.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 4.0], [2], &Device::cpu());
    /// assert_eq!(x.norm(..).item::<f32>()?, 5.0);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn norm(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_norm(self, &axes.into()))
    }

    /// `ln Σ eˣ` along `axes`, without overflow.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2], &Device::cpu());
    /// assert_eq!(x.logsumexp(..).item::<f32>()?, 1000.0 + 2f32.ln());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_logsumexp(self, &axes.into()))
    }

    /// Whether any element along `axes` is true (or not zero).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[false, true, false, false], [2, 2], &Device::cpu());
    /// assert_eq!(x.any(-1).to_vec::<bool>()?, [true, false]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn any(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_truth("any", &MAX, self, &axes.into()))
    }

    /// Whether all elements along `axes` are true (or not zero).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[false, true, true, true], [2, 2], &Device::cpu());
    /// assert_eq!(x.all(-1).to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn all(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_truth("all", &MIN, self, &axes.into()))
    }

    /// Where the greatest element along `axes` is, as i32: the first of equal ones, or the first NaN. Over several
    /// axes, the place in them together, counted row-major.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 2.0, 7.0], [2, 2], &Device::cpu());
    /// assert_eq!(x.argmax(-1).to_vec::<i32>()?, [1, 1]);
    /// assert_eq!(x.argmax(..).item::<i32>()?, 3);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn argmax(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_place("argmax", &MAX, self, &axes.into()))
    }

    /// Where the least element along `axes` is, as [`argmax`](Tensor::argmax) says it.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 5.0, 2.0, 0.0], [2, 2], &Device::cpu());
    /// assert_eq!(x.argmin(-1).to_vec::<i32>()?, [0, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn argmin(&self, axes: impl Into<Axes>) -> Tensor {
        or_error(try_place("argmin", &MIN, self, &axes.into()))
    }
}

#[track_caller]
fn try_mean(x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let (axes, keep) = axes.resolve("mean", &x.node()?.shape)?;
    let wide = Widened::new(x)?;
    Ok(mean_over("mean", &wide.x, axes, KeepAxes(keep), 0)?.to_dtype(wide.result))
}

/// The sum over `axes` divided by how many there are, less `ddof`.
#[track_caller]
pub(super) fn mean_over(op: &str, x: &Tensor, axes: AxisSet, keep: KeepAxes, ddof: usize) -> Result<Tensor> {
    let x = x.node()?;
    let n = n_reduced(&x.shape, &axes).saturating_sub(ddof);
    Ok(reduce(&SUM, op, x, axes, keep)?.div(n))
}

#[track_caller]
fn try_var(op: &str, x: &Tensor, axes: &Axes, ddof: usize) -> Result<Tensor> {
    let wide = Widened::new(x)?;
    Ok(var_of(op, &wide.x, axes, ddof)?.to_dtype(wide.result))
}

#[track_caller]
fn try_std(x: &Tensor, axes: &Axes, ddof: usize) -> Result<Tensor> {
    // The root is taken before the result becomes a half float: the variance may be too large for one.
    let wide = Widened::new(x)?;
    Ok(root(&var_of("std", &wide.x, axes, ddof)?).to_dtype(wide.result))
}

/// The variance of an f32 tensor.
#[track_caller]
fn var_of(op: &str, x: &Tensor, axes: &Axes, ddof: usize) -> Result<Tensor> {
    let (axes, keep) = axes.resolve(op, &x.node()?.shape)?;
    let mean = mean_over(op, x, axes, KeepAxes(true), 0)?;
    mean_over(op, &x.sub(mean).square(), axes, KeepAxes(keep), ddof)
}

#[track_caller]
fn try_norm(x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let (axes, keep) = axes.resolve("norm", &x.node()?.shape)?;
    let wide = Widened::new(x)?;
    let sum = reduce(&SUM, "norm", wide.x.square().node()?, axes, KeepAxes(keep))?;
    Ok(root(&sum).to_dtype(wide.result))
}

/// The square root of what is never negative, flat at 0: its slope there is infinite, and what it is multiplied with is 0.
#[track_caller]
fn root(x: &Tensor) -> Tensor {
    let is_zero = x.eq(0);
    is_zero.select(0, is_zero.select(1, x).sqrt())
}

#[track_caller]
fn try_logsumexp(x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let (axes, keep) = axes.resolve("logsumexp", &shape)?;
    let out = logsumexp(x, axes)?;
    Ok(if keep { out } else { out.reshaped(shape.reduced(&axes, false))? })
}

#[track_caller]
fn try_truth(op: &str, row: &'static ReduceRow, x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let x = x.to_dtype(DType::Bool);
    let x = x.node()?;
    let (axes, keep) = axes.resolve(op, &x.shape)?;
    if n_reduced(&x.shape, &axes) == 0 {
        // Of nothing, none is true, and all are.
        let shape = x.shape.reduced(&axes, keep);
        let value = (row == &MIN) as u8 as f64;
        return Ok(Tensor::constant(value, shape, DType::Bool, &x.device, Location::caller()));
    }
    reduce(row, op, x, axes, KeepAxes(keep))
}

#[track_caller]
fn try_place(op: &str, row: &'static ReduceRow, x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let node = x.node()?;
    let (axes, keep) = axes.resolve(op, &node.shape)?;
    let n = n_reduced(&node.shape, &axes);
    if n > i32::MAX as usize {
        return Err(Error::unsupported(
            op,
            format!("{} has more places along these axes than i32 can count", node.shape),
        ));
    }
    let best = reduce(row, op, node, axes, KeepAxes(true))?;
    let mut is_best = x.eq(best);
    if node.dtype.is_float() {
        is_best = is_best.logical_or(x.is_nan());
    }
    // The least place of those that are best.
    let places = is_best.select(places(node, axes), n);
    reduce(&MIN, op, places.node()?, axes, KeepAxes(keep))
}

/// For each element of `x`, its place along `axes`, counted row-major in them together.
#[track_caller]
fn places(x: &NodeRef, axes: AxisSet) -> Tensor {
    let at = Location::caller();
    let shape = (0..x.shape.rank()).map(|axis| if axes.contains(axis) { x.shape[axis] } else { 1 }).collect();
    let index = Tensor::source(Op::Index, shape, DType::I32, &x.device, at);
    Tensor::new(index.node().map(|index| broadcast(index.clone(), &x.shape, at)))
}
