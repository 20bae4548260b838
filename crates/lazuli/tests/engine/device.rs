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

/// What a device says of itself under this name, as in [`Device::properties`].
fn property(name: &str) -> Option<String> {
    device().properties().into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// How many values one kernel of the device may read and write: two bindings are left for scratch memory and checks.
pub fn max_values() -> usize {
    let bindings = property("bindings").map(|text| text.split(' ').next().expect("is never empty").parse::<usize>());
    bindings.map_or(usize::MAX, |n| n.expect("is a number") - 2)
}

/// How many kernels attention is on the device: one, or two products and a softmax.
pub fn attention_kernels() -> usize {
    if property("attention").as_deref() == Some("one kernel") { 1 } else { 3 }
}
