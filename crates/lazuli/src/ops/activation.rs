//! Activations: all of them are written with other ops, in a form that neither overflows nor loses digits.

use std::f32::consts::FRAC_1_SQRT_2;

use crate::tensor::Tensor;

/// √(2/π), of the tanh form of gelu.
const SQRT_2_OVER_PI: f32 = 0.797_884_6;

impl Tensor {
    /// Itself, as a float: in integers the steps below would wrap.
    #[track_caller]
    fn as_float(&self) -> Tensor {
        self.dtype().map_or_else(|_| self.clone(), |dtype| self.to_dtype(dtype.to_float()))
    }

    /// The number if it is positive, else 0. NaN stays NaN.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[-1.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.relu().to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        self.maximum(0)
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
        self.gt(0).select(self, self.mul(slope))
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
        self.gt(0).select(self, self.minimum(0).expm1().mul(alpha))
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
        let x = &self.as_float();
        let is_negative = x.lt(0);
        let falling = is_negative.select(x, x.neg());
        is_negative.select(0, x).add(falling.exp().log1p())
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
        // With e = e^−|x| it is 1/(1 + e), and e/(1 + e) below zero: neither it nor its gradient can overflow.
        let x = &self.as_float();
        let is_negative = x.lt(0);
        let e = is_negative.select(x, x.neg()).exp();
        is_negative.select(&e, 1).div(e.add(1))
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
        self.mul(self.sigmoid())
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
        self.mul(0.5).mul(self.mul(FRAC_1_SQRT_2).erf().add(1))
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
        let x = &self.as_float();
        let inner = x.mul(x).mul(0.044715 * SQRT_2_OVER_PI).add(SQRT_2_OVER_PI).mul(x);
        x.mul(0.5).mul(inner.tanh().add(1))
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
        let x = &self.as_float();
        x.mul(x.add(3).clamp(0, 6)).div(6)
    }
}
