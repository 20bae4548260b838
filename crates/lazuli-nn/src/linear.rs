//! Layers that are one product or one table.

use lazuli::{Device, Tensor};

use crate::fault;
use crate::init;
use crate::module::Layer;

/// `y = x · Wᵀ + b`, over the last axis.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, Linear};
/// let layer = Linear::new(4, 2, 1, &Device::cpu());
/// assert_eq!(layer.forward(&Tensor::rand([3, 5, 4], 1, &Device::cpu())).shape()?, [3, 5, 2]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Linear {
    /// `[n_out, n_in]`.
    pub weight: Tensor,
    /// `[n_out]`.
    pub bias: Option<Tensor>,
}

crate::module!(Linear { weight, bias });

impl Linear {
    /// Uniform weights within `1/√n_in`, as is usual.
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, seed: u64, device: &Device) -> Linear {
        let _caller = fault::caller();
        let bound = 1.0 / (n_in.max(1) as f32).sqrt();
        let weight = init::uniform([n_out, n_in], bound, seed, device);
        Linear { weight, bias: Some(init::uniform([n_out], bound, seed.wrapping_add(1 << 32), device)) }
    }

    /// Without a bias.
    ///
    /// ```
    /// # use lazuli::Device;
    /// assert!(lazuli_nn::Linear::new(4, 2, 1, &Device::cpu()).without_bias().bias.is_none());
    /// ```
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }
}

impl Layer for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let (lead, n_in, n_out) = match (x.shape(), self.weight.shape()) {
            (Ok([lead @ .., n]), Ok(&[n_out, n_in])) if *n == n_in => (lead, n_in, n_out),
            (Ok(seen), Ok(shape)) => {
                let wanted = shape.last().copied().unwrap_or(0);
                let message = format!("wants {wanted} features on the last axis: input {seen:?}, weight {shape:?}");
                return fault::shape("linear", message).into();
            }
            (Err(error), _) | (_, Err(error)) => return error.into(),
        };
        // All leading axes as one: one large product, and one large product for the gradient of the weights.
        let rows = if lead.len() > 1 { x.reshape([lead.iter().product(), n_in]) } else { x.clone() };
        let mut y = rows.matmul(&self.weight.t());
        if let Some(bias) = &self.bias {
            y = y.add(bias);
        }
        if lead.len() > 1 { y.reshape(lead.iter().copied().chain([n_out]).collect::<Vec<_>>()) } else { y }
    }
}

/// A learned vector for each of `n` things, looked up by integers.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Embedding, Layer};
/// let cpu = Device::cpu();
/// let words = Tensor::from_slice(&[2, 0, 1], [3], &cpu);
/// assert_eq!(Embedding::new(10, 4, 1, &cpu).forward(&words).shape()?, [3, 4]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Embedding {
    /// `[n, features]`.
    pub weight: Tensor,
}

crate::module!(Embedding { weight });

impl Embedding {
    /// Normal vectors of variance 1.
    #[track_caller]
    pub fn new(n: usize, features: usize, seed: u64, device: &Device) -> Embedding {
        let _caller = fault::caller();
        Embedding { weight: init::normal([n, features], 1.0, seed, device) }
    }
}

impl Layer for Embedding {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        self.weight.embedding(x)
    }
}
