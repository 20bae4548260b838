//! Activations: all of them are written with other ops, in a form that neither overflows nor loses digits.

use std::f32::consts::FRAC_1_SQRT_2;

use super::binary::AT_LEAST;
use super::create::coordinate;
use super::movement::narrowed;
use super::operand::{binary, or_error};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::shape::keep;
use crate::tensor::Tensor;

/// √(2/π), of the tanh form of gelu.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;

/// Beyond this on either side every gate below is 0 or 1 to the last bit of an f32.
const FAR: f32 = 110.0;

/// The part of `x` in which gates move; 0 elsewhere.
#[track_caller]
fn near(x: &Tensor) -> Tensor {
    x.abs().gt(FAR).select(0, x)
}

/// `x · gate`, which `product` is for what is [`near`]. Far out it is `x` or nothing without a product, which in the backward pass
/// would be of something huge and a slope of 0, and NaN where that overflows.
#[track_caller]
fn gated(x: &Tensor, product: Tensor) -> Tensor {
    x.abs().gt(FAR).select(x.gt(0).select(x, -0.0), product)
}

/// `eᶻ` of an f32 that is not positive, as two factors. GPUs may take subnormal numbers for zero, e^−88 among them, which would
/// lose x·e^−88 and its slope: of x times one factor, times the other, no part is subnormal where the product is not.
#[track_caller]
fn falling_exp(z: &Tensor) -> [Tensor; 2] {
    // eᶻ = e^(z + 32) · e^−32: z + 32 is exact, so that a rounding more is all that it costs.
    let is_far = z.lt(-64);
    [is_far.select(z.add(32), z).exp(), is_far.select(1.266_416_6e-14, 1.0)]
}

/// `x · σ(z)` of f32.
#[track_caller]
fn times_logistic(x: &Tensor, z: &Tensor) -> Tensor {
    // With e = e^−|z| it is x/(1 + e), and x·e/(1 + e) where z is negative.
    let is_negative = z.lt(0);
    let [e, scale] = falling_exp(&is_negative.select(z, z.neg()));
    is_negative.select(x.mul(&e).mul(&scale), x).div(e.mul(scale).add(1))
}

/// The logistic function of an f32.
#[track_caller]
fn logistic(x: &Tensor) -> Tensor {
    // With e = e^−|x| it is 1/(1 + e), and e/(1 + e) below zero: neither it nor its gradient can overflow.
    let is_negative = x.lt(0);
    let e = is_negative.select(x, x.neg()).exp();
    is_negative.select(&e, 1).div(e.add(1))
}

impl Tensor {
    /// Itself in f32: what is written with several ops or with numbers of many digits is computed so, and a half float is
    /// rounded once, at the end. In integers the steps would wrap.
    #[track_caller]
    fn widened(&self) -> Tensor {
        self.to_dtype(DType::F32)
    }

    /// Itself as the float that belongs to what it was made of.
    #[track_caller]
    fn narrowed(&self, from: &Tensor) -> Tensor {
        from.dtype().map_or_else(|_| self.clone(), |dtype| self.to_dtype(dtype.to_float()))
    }

    /// The number if it is positive, else 0. NaN stays NaN. At 0 the gradient is 0.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.relu().to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        binary(&AT_LEAST, self, 0.into())
    }

    /// The number if it is positive, else `slope` times it.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-2.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.leaky_relu(0.25).to_vec::<f32>()?, [-0.5, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn leaky_relu(&self, slope: f32) -> Tensor {
        let x = &self.widened();
        x.gt(0).select(x, x.mul(slope)).narrowed(self)
    }

    /// The number if it is positive, else `alpha · (eˣ − 1)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[f32::NEG_INFINITY, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.elu(1.5).to_vec::<f32>()?, [-1.5, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn elu(&self, alpha: f32) -> Tensor {
        // Below zero only: the branch not taken must not overflow, or its gradient would be 0·inf.
        let x = &self.widened();
        let is_positive = x.gt(0);
        is_positive.select(x, is_positive.select(0, x).expm1().mul(alpha)).narrowed(self)
    }

    /// A smooth relu, `ln(1 + eˣ)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1000.0f32, 1000.0], [2], &Device::cpu());
    /// assert_eq!(x.softplus().to_vec::<f32>()?, [0.0, 1000.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        // ln(1 + eˣ) = max(x, 0) + ln(1 + e^−|x|): the exponent is never positive. |x| by choice and not by `abs`,
        // whose gradient at 0 is 0.
        let x = &self.widened();
        let is_negative = x.lt(0);
        let falling = is_negative.select(x, x.neg());
        is_negative.select(0, x).add(falling.exp().log1p()).narrowed(self)
    }

    /// The logistic function, `1 / (1 + e⁻ˣ)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1000.0f32, 0.0, 1000.0], [3], &Device::cpu());
    /// assert_eq!(x.sigmoid().to_vec::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn sigmoid(&self) -> Tensor {
        logistic(&self.widened()).narrowed(self)
    }

    /// The sigmoid-weighted linear unit, `x · σ(x)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1000.0f32, 0.0, 1000.0], [3], &Device::cpu());
    /// assert_eq!(x.silu().to_vec::<f32>()?, [0.0, 0.0, 1000.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        let x = &self.widened();
        let near = near(x);
        gated(x, times_logistic(&near, &near)).narrowed(self)
    }

    /// The same as [`silu`](Tensor::silu).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[0.0f32, 1000.0], [2], &Device::cpu());
    /// assert_eq!(x.swish().to_vec::<f32>()?, [0.0, 1000.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn swish(&self) -> Tensor {
        self.silu()
    }

    /// The Gaussian error linear unit, `x · Φ(x)`, exact.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32], [1], &Device::cpu());
    /// assert!((x.gelu().item::<f32>()? - 0.8413447).abs() < 1e-6);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        // Φ(x) = ½·erfc(−x/√2), which keeps its digits where 1 + erf(x/√2) loses them: below 0.
        let x = &self.widened();
        let near = near(x);
        gated(x, near.mul(0.5).mul(near.mul(-FRAC_1_SQRT_2).erfc())).narrowed(self)
    }

    /// The tanh form of [`gelu`](Tensor::gelu): `½x · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32], [1], &Device::cpu());
    /// assert!((x.gelu_tanh().item::<f32>()? - 0.841192).abs() < 1e-6);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        // ½·(1 + tanh u) = σ(2u), which keeps its digits below 0.
        let x = &self.widened();
        let near = near(x);
        let twice = near.mul(&near).mul(2.0 * 0.044715 * SQRT_2_OVER_PI).add(2.0 * SQRT_2_OVER_PI).mul(&near);
        gated(x, times_logistic(&near, &twice)).narrowed(self)
    }

    /// A cheap [`silu`](Tensor::silu): `x · clamp(x + 3, 0, 6) / 6`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-4.0f32, 0.0, 3.0, 5.0], [4], &Device::cpu());
    /// assert_eq!(x.hardswish().to_vec::<f32>()?, [0.0, 0.0, 3.0, 5.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn hardswish(&self) -> Tensor {
        let x = &self.widened();
        x.mul(x.add(3).clamp(0, 6).div(6)).narrowed(self)
    }

    /// A scaled [`elu`](Tensor::elu) that keeps mean 0 and variance 1: `scale · elu(x, alpha)`, with the numbers of the paper.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[f32::NEG_INFINITY, 1.0], [2], &Device::cpu());
    /// assert_eq!(x.selu().to_vec::<f32>()?, [-1.7580993, 1.050701]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn selu(&self) -> Tensor {
        const ALPHA: f32 = 1.673_263_2;
        const SCALE: f32 = 1.050_701;
        self.widened().elu(ALPHA).mul(SCALE).narrowed(self)
    }

    /// The number if it is positive, else `alpha · (e^(x/alpha) − 1)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[f32::NEG_INFINITY, 1.0], [2], &Device::cpu());
    /// assert_eq!(x.celu(2.0).to_vec::<f32>()?, [-2.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn celu(&self, alpha: f32) -> Tensor {
        let x = &self.widened();
        let is_positive = x.gt(0);
        is_positive.select(x, is_positive.select(0, x).div(alpha).expm1().mul(alpha)).narrowed(self)
    }

    /// `x · tanh(softplus(x))`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1000.0f32, 0.0, 1000.0], [3], &Device::cpu());
    /// assert_eq!(x.mish().to_vec::<f32>()?, [0.0, 0.0, 1000.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn mish(&self) -> Tensor {
        // tanh(ln(1 + eˣ)) = w/(w + 2) with w = e·(e + 2), e = eˣ; for positive x (2e + 1)/(2e·(e + 1) + 1) with e = e⁻ˣ.
        let x = &self.widened();
        let near = near(x);
        let is_negative = near.lt(0);
        let [e, scale] = falling_exp(&is_negative.select(&near, near.neg()));
        let product = near.mul(&e).mul(&scale);
        let e = e.mul(scale);
        let falling = product.mul(e.add(2)).div(e.mul(e.add(2)).add(2));
        let twice = e.mul(2);
        let rising = near.mul(twice.add(1)).div(twice.mul(e.add(1)).add(1));
        gated(x, is_negative.select(falling, rising)).narrowed(self)
    }

    /// Half of an axis times the logistic function of its other half: `a · σ(b)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 0.0], [2], &Device::cpu());
    /// assert_eq!(x.glu(0).to_vec::<f32>()?, [1.5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn glu(&self, axis: i32) -> Tensor {
        or_error(gated_half(self, axis))
    }

    /// The number if it is positive, else `slope` times it; the slope is a tensor that broadcasts.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-2.0f32, -2.0, 2.0], [3], &Device::cpu());
    /// let slope = Tensor::from_slice(&[0.5f32, 0.25, 0.5], [3], &Device::cpu());
    /// assert_eq!(x.prelu(&slope).to_vec::<f32>()?, [-1.0, -0.5, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn prelu(&self, slope: &Tensor) -> Tensor {
        self.gt(0).select(self, self.mul(slope))
    }

    /// A straight line in place of the [`sigmoid`](Tensor::sigmoid): `clamp(alpha · x + beta, 0, 1)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-4.0f32, 0.0, 4.0], [3], &Device::cpu());
    /// assert_eq!(x.hardsigmoid(1.0 / 6.0, 0.5).to_vec::<f32>()?, [0.0, 0.5, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn hardsigmoid(&self, alpha: f32, beta: f32) -> Tensor {
        self.widened().mul(alpha).add(beta).clamp(0, 1).narrowed(self)
    }

    /// The number if it is above `threshold`, else `value`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.threshold(1.0, 0.0).to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn threshold(&self, threshold: f32, value: f32) -> Tensor {
        // Written so that NaN stays NaN.
        self.le(threshold).select(value, self).to_dtype(self.dtype().unwrap_or(DType::F32))
    }

    /// `x / (1 + |x|)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1.0f32, 3.0], [2], &Device::cpu());
    /// assert_eq!(x.softsign().to_vec::<f32>()?, [-0.5, 0.75]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn softsign(&self) -> Tensor {
        let x = &self.widened();
        x.div(x.abs().add(1)).narrowed(self)
    }

    /// Nothing between `−lambda` and `lambda`, beyond them the number moved towards 0 by `bias`. With `bias` 0 it is PyTorch's
    /// `hardshrink`, with `bias` equal to `lambda` its `softshrink`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-2.0f32, 0.25, 2.0], [3], &Device::cpu());
    /// assert_eq!(x.shrink(0.5, 0.5).to_vec::<f32>()?, [-1.5, 0.0, 1.5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn shrink(&self, lambda: f32, bias: f32) -> Tensor {
        let is_above = self.gt(lambda);
        let moved = is_above.select(self.sub(bias), self.add(bias));
        // Written so that NaN stays NaN.
        let is_inside = self.le(lambda).logical_and(self.ge(-lambda));
        is_inside.select(0, moved).to_dtype(self.dtype().unwrap_or(DType::F32))
    }

    /// The logarithm of the [`sigmoid`](Tensor::sigmoid), without losing digits: `−ln(1 + e⁻ˣ)`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1000.0f32, 0.0], [2], &Device::cpu());
    /// assert_eq!(x.log_sigmoid().to_vec::<f32>()?, [-1000.0, -(2f32.ln())]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn log_sigmoid(&self) -> Tensor {
        self.widened().neg().softplus().neg().narrowed(self)
    }

    /// One at the first of the greatest elements along an axis, zero at all others.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 3.0], [3], &Device::cpu());
    /// assert_eq!(x.hardmax(0).to_vec::<f32>()?, [0.0, 1.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn hardmax(&self, axis: i32) -> Tensor {
        or_error(first_greatest(self, axis))
    }
}

#[track_caller]
fn gated_half(x: &Tensor, axis: i32) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let size = shape[shape.axis("glu", axis)?];
    if !size.is_multiple_of(2) {
        return Err(Error::shape("glu", format!("axis {axis} of {shape} cannot be halved")));
    }
    let wide = x.widened();
    let (a, b) = (narrowed("glu", &wide, axis, 0, size / 2)?, narrowed("glu", &wide, axis, size / 2, size / 2)?);
    Ok(times_logistic(&a, &b).narrowed(x))
}

#[track_caller]
fn first_greatest(x: &Tensor, axis: i32) -> Result<Tensor> {
    let node = x.node()?;
    let at = node.shape.axis("hardmax", axis)?;
    let place = coordinate(&node.shape, at, &node.device, std::panic::Location::caller());
    Ok(place.eq(x.argmax(keep(axis))).to_dtype(node.dtype))
}
