//! The device that the tests run on: the CPU, or what `LAZULI_TEST_DEVICE` names. `cargo xtask test` names every one.

use std::sync::OnceLock;

use lazuli::{Device, Tensor};
pub use lazuli_check::testing::device;

/// The error that a row states for the device under test.
pub fn stated(ulps: f64, gpu_ulps: f64) -> f64 {
    if device() == Device::cpu() { ulps } else { gpu_ulps }
}

/// Whether the device takes subnormal numbers for zero, which WGSL allows. The CPU does not.
pub fn flushes_subnormals() -> bool {
    static FLUSHES: OnceLock<bool> = OnceLock::new();
    let halved = || Tensor::from_slice(&[f32::MIN_POSITIVE], [1], &device()).mul(0.5).to_vec::<f32>().unwrap()[0];
    *FLUSHES.get_or_init(|| device() != Device::cpu() && halved() == 0.0)
}
