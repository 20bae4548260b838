//! The device that the tests run on: the CPU, or what `LAZULI_TEST_DEVICE` names. `cargo xtask test` names every one.

use lazuli::Device;

/// The device. One that cannot be opened is a failure, not a reason to take another.
pub fn device() -> Device {
    match std::env::var("LAZULI_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap_or_else(|error| panic!("LAZULI_TEST_DEVICE: {error}")),
        Err(_) => Device::cpu(),
    }
}

/// The error that a row states for the device under test.
pub fn stated(ulps: f64, gpu_ulps: f64) -> f64 {
    if device() == Device::cpu() { ulps } else { gpu_ulps }
}
