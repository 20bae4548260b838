//! Normalisations along an axis, written with reductions and maps: the planner makes one kernel of each.

use std::panic::Location;

use super::operand::or_error;
use super::reduce::KeepAxes;
use super::softmax::{Widened, log_softmax, softmax};
use super::statistics::mean_over;
use crate::error::{Error, Fault, Result};
use crate::shape::{AxisSet, Shape};
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

    /// Less the mean and divided by the standard deviation along an axis, then times `weight` plus `bias`, which have
    /// the size of that axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0], [2], &Device::cpu());
    /// assert_eq!(x.layer_norm(-1, None, None, 0.0).to_vec::<f32>()?, [-1.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn layer_norm(&self, axis: i32, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Tensor {
        or_error(try_layer_norm(self, axis, weight, bias, eps))
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
fn try_layer_norm(x: &Tensor, axis: i32, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let op = "layer_norm";
    let axes = one_axis(op, x, axis)?;
    let wide = Widened::new(x)?;
    let centred = wide.x.sub(mean_over(op, &wide.x, axes, KeepAxes(true), 0)?);
    let var = mean_over(op, &centred.square(), axes, KeepAxes(true), 0)?;
    let mut y = centred.mul(var.add(eps).rsqrt());
    if let Some(weight) = weight {
        y = y.mul(along(op, weight, x, axis)?);
    }
    if let Some(bias) = bias {
        y = y.add(along(op, bias, x, axis)?);
    }
    Ok(y.to_dtype(wide.result))
}

#[track_caller]
fn try_rms_norm(x: &Tensor, axis: i32, weight: Option<&Tensor>, eps: f32) -> Result<Tensor> {
    let op = "rms_norm";
    let axes = one_axis(op, x, axis)?;
    let wide = Widened::new(x)?;
    let mean_square = mean_over(op, &wide.x.square(), axes, KeepAxes(true), 0)?;
    let mut y = wide.x.mul(mean_square.add(eps).rsqrt());
    if let Some(weight) = weight {
        y = y.mul(along(op, weight, x, axis)?);
    }
    Ok(y.to_dtype(wide.result))
}

#[track_caller]
fn one_axis(op: &str, x: &Tensor, axis: i32) -> Result<AxisSet> {
    let mut axes = AxisSet::default();
    axes.insert(x.node()?.shape.axis(op, axis)?);
    Ok(axes)
}

/// A weight with one number per place along `axis` of `x`, with axes of size 1 behind so that it lies along that one.
#[track_caller]
fn along(op: &str, weight: &Tensor, x: &Tensor, axis: i32) -> Result<Tensor> {
    let (w, x) = (weight.node()?.shape, x.node()?.shape);
    let axis = x.axis(op, axis)?;
    if w != [x[axis]] {
        let fault = Fault::new(
            op,
            format!("weight and bias must be [{}], one per place along axis {axis} of {x}, not {w}", x[axis]),
        );
        return Err(Error::Shape(std::sync::Arc::new(fault.shapes(&[&x, &w]))));
    }
    weight.reshaped(x[axis..axis + 1].iter().copied().chain(x[axis + 1..].iter().map(|_| 1)).collect())
}
