//! Layers that bring their input to mean 0 and variance 1, along features or over the batch.

use lazuli::{DType, Device, Tensor, keep};

use crate::fault;
use crate::init;
use crate::module::{Buffer, Layer, Mode};

/// Mean 0 and variance 1 along the last axis, then scaled and shifted.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, LayerNorm};
/// let y = LayerNorm::new(8, &Device::cpu()).forward(&Tensor::rand([2, 8], 1, &Device::cpu()));
/// assert!(y.mean(-1).abs().max(..).item::<f32>()? < 1e-5);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct LayerNorm {
    /// One per feature.
    pub weight: Tensor,
    /// One per feature.
    pub bias: Tensor,
    /// Added to the variance.
    pub eps: f32,
}

crate::module!(LayerNorm { weight, bias });

impl LayerNorm {
    /// Changes nothing at first.
    #[track_caller]
    pub fn new(features: usize, device: &Device) -> LayerNorm {
        let _caller = fault::caller();
        LayerNorm { weight: init::ones([features], device), bias: init::zeros([features], device), eps: 1e-5 }
    }
}

impl Layer for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        x.layer_norm(-1, Some(&self.weight), Some(&self.bias), self.eps)
    }
}

/// Mean square 1 along the last axis, then scaled.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, RmsNorm};
/// let y = RmsNorm::new(8, &Device::cpu()).forward(&Tensor::rand([2, 8], 1, &Device::cpu()));
/// assert!(y.square().mean(-1).sub(1.0).abs().max(..).item::<f32>()? < 1e-3);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct RmsNorm {
    /// One per feature.
    pub weight: Tensor,
    /// Added to the mean square.
    pub eps: f32,
}

crate::module!(RmsNorm { weight });

impl RmsNorm {
    /// Scales by 1 at first.
    #[track_caller]
    pub fn new(features: usize, device: &Device) -> RmsNorm {
        let _caller = fault::caller();
        RmsNorm { weight: init::ones([features], device), eps: 1e-6 }
    }
}

impl Layer for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        x.rms_norm(-1, Some(&self.weight), self.eps)
    }
}

/// Mean 0 and variance 1 per channel (axis 1) over the batch and all other axes. In [`Mode::Eval`] it uses the running
/// means of what it saw in training.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{BatchNorm, Layer};
/// let norm = BatchNorm::new(3, &Device::cpu());
/// let y = norm.forward(&Tensor::rand([4, 3, 5, 5], 1, &Device::cpu()));
/// assert!(y.mean([0, 2, 3]).abs().max(..).item::<f32>()? < 1e-5);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct BatchNorm {
    /// One per channel.
    pub weight: Tensor,
    /// One per channel.
    pub bias: Tensor,
    /// The running mean.
    pub mean: Buffer,
    /// The running variance.
    pub var: Buffer,
    /// Whether it looks at the batch.
    pub mode: Mode,
    /// How much of each batch goes into the running means.
    pub momentum: f32,
    /// Added to the variance.
    pub eps: f32,
}

crate::module!(BatchNorm { weight, bias, mean, var, mode });

impl BatchNorm {
    /// Changes only mean and variance at first.
    #[track_caller]
    pub fn new(channels: usize, device: &Device) -> BatchNorm {
        let _caller = fault::caller();
        let full = |value: f32| {
            let value = Tensor::full([channels], value, device).to_dtype(DType::F32);
            Buffer::new(value.compute().unwrap_or(value))
        };
        BatchNorm {
            weight: init::ones([channels], device),
            bias: init::zeros([channels], device),
            mean: full(0.0),
            var: full(1.0),
            mode: Mode::Train,
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

impl Layer for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let channels = self.weight.shape().map_or(0, |shape| shape.iter().product());
        let rank = match x.shape() {
            Ok(shape) if shape.len() >= 2 && shape[1] == channels => shape.len(),
            Ok(seen) => {
                let message = format!("wants [batch, {channels} channels, …], not {seen:?}");
                return fault::shape("batch_norm", message).into();
            }
            Err(error) => return error.into(),
        };
        let lie = |v: &Tensor| (2..rank).fold(v.clone(), |v, _| v.unsqueeze(-1));
        // All in f32: the variance of half floats may be too large for one.
        let dtypes = (x.dtype(), self.weight.dtype(), self.bias.dtype());
        let dtype = match dtypes {
            (Ok(x), Ok(weight), Ok(bias)) => x.to_float().promote(weight).promote(bias),
            (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => return error.into(),
        };
        let x = &x.to_dtype(DType::F32);
        let (centred, var) = match self.mode {
            Mode::Train => {
                let axes: Vec<i32> = (0..rank as i32).filter(|a| *a != 1).collect();
                let mean = x.mean(keep(&axes[..]));
                let centred = x.sub(&mean);
                let var = centred.square().mean(keep(&axes[..]));
                let n: usize =
                    x.shape().map_or(1, |s| s.iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, n)| n).product());
                let unbiased = var.mul(n as f32 / n.saturating_sub(1).max(1) as f32);
                // A batch without examples has no mean, and nothing is learned from it.
                let seen = if n == 0 { &[][..] } else { &[(&self.mean, &mean), (&self.var, &unbiased)] };
                for (running, batch) in seen {
                    let (old, batch) = (running.get(), batch.detach());
                    let flat = old.shape().map(<[usize]>::to_vec).unwrap_or_default();
                    running.set(old.mul(1.0 - self.momentum).add(batch.reshape(flat).mul(self.momentum)));
                }
                (centred, var)
            }
            Mode::Eval => (x.sub(lie(&self.mean.get())), lie(&self.var.get())),
        };
        centred.mul(var.add(self.eps).rsqrt()).mul(lie(&self.weight)).add(lie(&self.bias)).to_dtype(dtype)
    }
}
