//! Normalisations along an axis, written with reductions and maps: the planner makes one kernel of each.

use std::panic::Location;

use super::operand::or_error;
use super::reduce::KeepAxes;
use super::softmax::{Widened, log_softmax, softmax};
use super::statistics::mean_over;
use crate::error::{Error, Fault, Result};
use crate::shape::{Axes, AxisSet, Shape};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// `eˣ / Σ eˣ` along an axis, without overflow.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1000.0f32, 1000.0], [2], &Device::cpu());
    /// assert_eq!(x.softmax(-1).to_vec::<f32>()?, [0.5, 0.5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn softmax(&self, axis: i32) -> Tensor {
        or_error(one_axis("softmax", self, axis).and_then(|axes| softmax(self, axes)))
    }

    /// The logarithm of [`softmax`](Tensor::softmax), without losing digits.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[0.0f32, -1000.0], [2], &Device::cpu());
    /// assert_eq!(x.log_softmax(-1).to_vec::<f32>()?, [0.0, -1000.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn log_softmax(&self, axis: i32) -> Tensor {
        or_error(one_axis("log_softmax", self, axis).and_then(|axes| log_softmax(self, axes)))
    }

    /// Less the mean and divided by the standard deviation along an axis or several, then times `weight` plus `bias`, which have
    /// the sizes of those axes.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2], &Device::cpu());
    /// assert_eq!(x.layer_norm(-1, None, None, 0.0).to_vec::<f32>()?, [-1.0, 1.0]);
    /// assert_eq!(x.reshape([2, 1]).layer_norm([0, 1], None, None, 0.0).to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(
        &self,
        axes: impl Into<Axes>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f32,
    ) -> Tensor {
        or_error(try_layer_norm(self, axes.into(), weight, bias, eps))
    }

    /// Less the mean and divided by the standard deviation of groups of channels of `[batch, channels, …]`, then times `weight`
    /// plus `bias`, which have one number for each channel.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 0.0, 8.0], [1, 4], &Device::cpu());
    /// assert_eq!(x.group_norm(2, None, None, 0.0).to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn group_norm(&self, groups: usize, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Tensor {
        or_error(try_group_norm("group_norm", self, Some(groups), weight, bias, eps))
    }

    /// [`group_norm`](Tensor::group_norm) of every channel by itself.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 0.0, 8.0], [1, 2, 2], &Device::cpu());
    /// assert_eq!(x.instance_norm(None, None, 0.0).to_vec::<f32>()?, [-1.0, 1.0, -1.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn instance_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Tensor {
        or_error(try_group_norm("instance_norm", self, None, weight, bias, eps))
    }

    /// Divided by `(k + alpha/size · Σ x²)^beta`, summed over `size` channels around each of `[batch, channels, …]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [1, 3], &Device::cpu());
    /// assert_eq!(x.local_response_norm(1, 1.0, 1.0, 0.0).to_vec::<f32>()?, [1.0, 0.5, 1.0 / 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn local_response_norm(&self, size: usize, alpha: f32, beta: f32, k: f32) -> Tensor {
        or_error(try_local_response_norm(self, size, alpha, beta, k))
    }

    /// Divided by the root of the mean square along an axis, then times `weight`, which has the size of that axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2.0f32, -2.0], [2], &Device::cpu());
    /// assert_eq!(x.rms_norm(-1, None, 0.0).to_vec::<f32>()?, [1.0, -1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn rms_norm(&self, axis: i32, weight: Option<&Tensor>, eps: f32) -> Tensor {
        or_error(try_rms_norm(self, axis, weight, eps))
    }

    /// The same elements in another shape, of which it has as many.
    #[track_caller]
    pub(super) fn reshaped(&self, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::viewed(self.node()?, View::contiguous(shape), Location::caller()))
    }
}

#[track_caller]
fn try_layer_norm(x: &Tensor, axes: Axes, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let op = "layer_norm";
    let (axes, _) = axes.resolve(op, &x.node()?.shape)?;
    let wide = Widened::new(x)?;
    let mut y = standardized(op, &wide.x, axes, eps)?;
    if let Some(weight) = weight {
        y = y.mul(along(op, weight, x, axes)?);
    }
    if let Some(bias) = bias {
        y = y.add(along(op, bias, x, axes)?);
    }
    Ok(y.to_dtype(wide.result))
}

/// Mean 0 and variance 1 along the axes, of an f32 tensor.
#[track_caller]
fn standardized(op: &str, x: &Tensor, axes: AxisSet, eps: f32) -> Result<Tensor> {
    let centred = x.sub(mean_over(op, x, axes, KeepAxes(true), 0)?);
    let var = mean_over(op, &centred.square(), axes, KeepAxes(true), 0)?;
    Ok(centred.mul(var.add(eps).rsqrt()))
}

#[track_caller]
fn try_group_norm(
    op: &str,
    x: &Tensor,
    groups: Option<usize>,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f32,
) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let channels = shape.get(1).copied().unwrap_or(0);
    let groups = groups.unwrap_or(channels);
    if shape.rank() < 2 || channels.checked_rem(groups).is_none_or(|rest| rest != 0) {
        let message = format!("{groups} groups do not divide the channels of {shape}, which is [batch, channels, …]");
        return Err(Error::shape(op, message));
    }
    let wide = Widened::new(x)?;
    let per_group = Shape::from(&shape[2..]).n_elems() * (channels / groups);
    let grouped = wide.x.reshaped(Shape::from([shape[0], groups, per_group]))?;
    let mut y = standardized(op, &grouped, one_axis(op, &grouped, 2)?, eps)?.reshaped(shape)?;
    let channel = one_axis(op, x, 1)?;
    if let Some(weight) = weight {
        y = y.mul(along(op, weight, x, channel)?);
    }
    if let Some(bias) = bias {
        y = y.add(along(op, bias, x, channel)?);
    }
    Ok(y.to_dtype(wide.result))
}

#[track_caller]
fn try_local_response_norm(x: &Tensor, size: usize, alpha: f32, beta: f32, k: f32) -> Result<Tensor> {
    let shape = x.node()?.shape;
    if shape.rank() < 2 || size == 0 {
        let message =
            format!("wants [batch, channels, …] and at least one channel to sum over, not {shape} and {size}");
        return Err(Error::shape("local_response_norm", message));
    }
    let wide = Widened::new(x)?;
    // Of an even number of channels, one more lies after the one in the middle.
    let squares = wide.x.square().pad(&[(0, 0), ((size - 1) / 2, size / 2)], 0.0);
    let sum = squares.unfold(1, size, 1).sum(-1);
    Ok(wide.x.div(sum.mul(alpha / size as f32).add(k).pow(beta)).to_dtype(wide.result))
}

#[track_caller]
fn try_rms_norm(x: &Tensor, axis: i32, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let op = "rms_norm";
    let axes = one_axis(op, x, axis)?;
    let wide = Widened::new(x)?;
    let mean_square = mean_over(op, &wide.x.square(), axes, KeepAxes(true), 0)?;
    let mut y = wide.x.mul(mean_square.add(eps).rsqrt());
    if let Some(weight) = weight {
        y = y.mul(along(op, weight, x, axes)?);
    }
    Ok(y.to_dtype(wide.result))
}

#[track_caller]
fn one_axis(op: &str, x: &Tensor, axis: i32) -> Result<AxisSet> {
    let mut axes = AxisSet::default();
    axes.insert(x.node()?.shape.axis(op, axis)?);
    Ok(axes)
}

/// A weight with one per place along `axes` of `x`, with axes of size 1 between and behind them so that it lies along
/// those.
#[track_caller]
fn along(op: &str, weight: &Tensor, x: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let (w, x) = (weight.node()?.shape, x.node()?.shape);
    let sizes: Shape = (0..x.rank()).filter(|axis| axes.contains(*axis)).map(|axis| x[axis]).collect();
    if w != sizes {
        let named: Vec<String> =
            (0..x.rank()).filter(|axis| axes.contains(*axis)).map(|axis| axis.to_string()).collect();
        let what = if named.len() == 1 { "axis" } else { "axes" };
        let named = named.join(", ");
        let fault = Fault::new(
            op,
            format!("weight and bias must be {sizes}, one per place along {what} {named} of {x}, not {w}"),
        );
        return Err(Error::Shape(std::sync::Arc::new(fault.shapes(&[&x, &w]))));
    }
    weight.reshaped((0..x.rank()).map(|axis| if axes.contains(axis) { x[axis] } else { 1 }).collect())
}
