//! How well a model does, in numbers for people.

use lazuli::{DType, Tensor};

use crate::fault;

/// The share of rows of `[…, classes]` whose largest logit is the label.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let logits = Tensor::from_slice(&[0.1f32, 0.9, 0.8, 0.2], [2, 2], &cpu);
/// let labels = Tensor::from_slice(&[1, 1], [2], &cpu);
/// assert_eq!(lazuli_nn::metrics::accuracy(&logits, &labels).item::<f32>()?, 0.5);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn accuracy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let _caller = fault::caller();
    logits.detach().argmax(-1).eq(labels).to_dtype(DType::F32).mean(..)
}

/// A running mean, weighted.
///
/// ```
/// let mut mean = lazuli_nn::metrics::Mean::default();
/// mean.add(1.0, 3);
/// mean.add(5.0, 1);
/// assert_eq!(mean.value(), 2.0);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    /// One more value, standing for `n`.
    pub fn add(&mut self, value: f32, n: usize) {
        self.sum += value as f64 * n as f64;
        self.weight += n as f64;
    }

    /// The mean; NaN of nothing.
    pub fn value(&self) -> f64 {
        self.sum / self.weight
    }
}
