//! The device under test. Bounds depend on it (a GPU's stated errors are larger, and some take subnormal numbers for zero),
//! down to every single cell, so it is a fact of the thread instead of an argument of every function.

use std::cell::{Cell as Slot, RefCell};
use std::marker::PhantomData;
use std::sync::OnceLock;

use lazuli::{Device, Result, Tensor};

thread_local! {
    static DEVICE: RefCell<Option<Device>> = const { RefCell::new(None) };
    static FLUSHES: Slot<bool> = const { Slot::new(false) };
}

/// While it lives, programs of this thread run on its device, and bounds are those of that device.
#[must_use]
pub struct Subject {
    before: (Option<Device>, bool),
    // Belongs to its thread.
    _not_send: PhantomData<*const ()>,
}

/// Makes a device the one under test in this thread. An error if it cannot even halve a number.
///
/// ```
/// let cpu = lazuli::Device::cpu();
/// let _subject = lazuli_check::on(&cpu)?;
/// assert_eq!(lazuli_check::device(), cpu);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub fn on(device: &Device) -> Result<Subject> {
    let halved = Tensor::from_slice(&[f32::MIN_POSITIVE], [1], device).mul(0.5).to_vec::<f32>()?;
    // WGSL allows it; the CPU does not do it.
    let flushes = *device != Device::cpu() && halved == [0.0];
    let before = (DEVICE.replace(Some(device.clone())), FLUSHES.replace(flushes));
    Ok(Subject { before, _not_send: PhantomData })
}

impl Drop for Subject {
    fn drop(&mut self) {
        DEVICE.set(self.before.0.take());
        FLUSHES.set(self.before.1);
    }
}

/// The device under test in this thread: the CPU unless [`on`] names another.
///
/// ```
/// assert_eq!(lazuli_check::device(), lazuli::Device::cpu());
/// ```
pub fn device() -> Device {
    DEVICE.with_borrow(|device| device.clone()).unwrap_or_else(Device::cpu)
}

/// The error that a row states for the device under test.
pub fn stated(ulps: f64, gpu_ulps: f64) -> f64 {
    if device() == Device::cpu() { ulps } else { gpu_ulps }
}

/// The error that the device under test may have in a product of two numbers, relative to that product: AMX splits each float into two
/// bf16 and leaves out the product of the lower parts.
pub fn left_out_of_products() -> f64 {
    static OF_CPU: OnceLock<f64> = OnceLock::new();
    let by_amx = || Device::cpu().properties().iter().any(|(name, _)| *name == "AMX");
    match device() == Device::cpu() {
        true => *OF_CPU.get_or_init(|| if by_amx() { f64::powi(2.0, -15) } else { 0.0 }),
        false => 0.0,
    }
}

/// Whether the device under test takes subnormal numbers for zero.
pub fn flushes_subnormals() -> bool {
    FLUSHES.get()
}
