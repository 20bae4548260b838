//! Activations: all of them are written with other ops, in a form that neither overflows nor loses digits.

use std::f32::consts::FRAC_1_SQRT_2;

use super::binary::AT_LEAST;
use super::operand::binary;
use crate::dtype::DType;
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

/// `x · gate`, which `product` is for what is [`near`]. Far out it is `x` or nothing without a product, which on the way back
/// would be of something huge and a slope of 0, and NaN where that overflows.
#[track_caller]
fn gated(x: &Tensor, product: Tensor) -> Tensor {
    x.abs().gt(FAR).select(x.gt(0).select(x, -0.0), product)
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
        gated(x, near.mul(logistic(&near))).narrowed(self)
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
        gated(x, near.mul(logistic(&twice))).narrowed(self)
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
}
