//! How parameters start: from a seed, so that a model is the same on every run. Values are computed at once, since a
//! recipe that every use would follow anew is no starting point.

use lazuli::{DType, Device, Shape, Tensor};

use crate::fault;

/// Computed if possible (an error stays inside), and tracked.
fn parameter(value: Tensor) -> Tensor {
    value.compute().unwrap_or(value).tracked()
}

/// A parameter of zeros.
///
/// ```
/// # use lazuli::Device;
/// assert_eq!(lazuli_nn::init::zeros([2], &Device::cpu()).to_vec::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn zeros(shape: impl Into<Shape>, device: &Device) -> Tensor {
    let _caller = fault::caller();
    parameter(Tensor::zeros(shape, DType::F32, device))
}

/// A parameter of ones.
///
/// ```
/// # use lazuli::Device;
/// assert_eq!(lazuli_nn::init::ones([2], &Device::cpu()).to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn ones(shape: impl Into<Shape>, device: &Device) -> Tensor {
    let _caller = fault::caller();
    parameter(Tensor::ones(shape, DType::F32, device))
}

/// Uniform in `[-bound, bound)`.
///
/// ```
/// # use lazuli::Device;
/// let w = lazuli_nn::init::uniform([100], 0.5, 7, &Device::cpu());
/// assert!(w.abs().max(..).item::<f32>()? <= 0.5);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn uniform(shape: impl Into<Shape>, bound: f32, seed: u64, device: &Device) -> Tensor {
    let _caller = fault::caller();
    parameter(Tensor::rand(shape, seed, device).sub(0.5).mul(2.0 * bound))
}

/// Normal with mean 0 and this standard deviation.
///
/// ```
/// # use lazuli::Device;
/// let w = lazuli_nn::init::normal([1000], 0.02, 7, &Device::cpu());
/// assert!((w.std(.., 0).item::<f32>()? - 0.02).abs() < 0.002);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn normal(shape: impl Into<Shape>, std: f32, seed: u64, device: &Device) -> Tensor {
    let _caller = fault::caller();
    parameter(Tensor::randn(shape, seed, device).mul(std))
}

/// He's: normal, variance `2 / fan_in`, for layers that a relu follows.
///
/// ```
/// # use lazuli::Device;
/// let w = lazuli_nn::init::he([20, 50], 50, 7, &Device::cpu());
/// assert!((w.std(.., 0).item::<f32>()? - 0.2).abs() < 0.02);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn he(shape: impl Into<Shape>, fan_in: usize, seed: u64, device: &Device) -> Tensor {
    let _caller = fault::caller();
    normal(shape, (2.0 / fan_in.max(1) as f32).sqrt(), seed, device)
}

/// Glorot's: uniform, variance `2 / (fan_in + fan_out)`.
///
/// ```
/// # use lazuli::Device;
/// let w = lazuli_nn::init::glorot([20, 50], 50, 20, 7, &Device::cpu());
/// assert!(w.abs().max(..).item::<f32>()? <= (6.0f32 / 70.0).sqrt());
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn glorot(shape: impl Into<Shape>, fan_in: usize, fan_out: usize, seed: u64, device: &Device) -> Tensor {
    let _caller = fault::caller();
    uniform(shape, (6.0 / fan_in.saturating_add(fan_out).max(1) as f32).sqrt(), seed, device)
}
