//! Tests of a loss that the driver reports: Vulkan's own calls, behind ours that say so when they are told to.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ash::vk::{self, Handle};
use wgpu::hal::api::Vulkan;

use super::adapters::{FoundAdapter, found, quirks_of, take, wanted};
use super::signal::now;
use super::{Gpu, Origin};
use crate::device::Device;
use crate::error::Error;
use crate::tensor::Tensor;

/// The call that is the first to report the loss. After it all of them do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Submit = 1,
    Wait = 2,
    Look = 3,
}

/// 0: the device is well.
static FIRST: AtomicU8 = AtomicU8::new(0);
const GONE: u8 = 4;
/// By what the handles of a device and of its queues have in common: the table that they point to.
static DRIVERS: Mutex<BTreeMap<usize, Driver>> = Mutex::new(BTreeMap::new());

/// The driver's own functions.
#[derive(Clone, Copy)]
struct Driver {
    submit: vk::PFN_vkQueueSubmit,
    wait: vk::PFN_vkWaitSemaphores,
    look: vk::PFN_vkGetSemaphoreCounterValue,
}

fn drivers() -> MutexGuard<'static, BTreeMap<usize, Driver>> {
    DRIVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Safety
///
/// The handle is of a device or of a queue.
unsafe fn table(handle: u64) -> usize {
    // SAFETY: Vulkan's loader keeps such a table for each device, and its address first in these handles.
    unsafe { *(handle as *const usize) }
}

/// The functions behind ours.
///
/// # Safety
///
/// The handle is of a device that [`fragile`] made, or of its queue.
unsafe fn driver(handle: u64) -> Driver {
    // SAFETY: as promised.
    drivers()[&unsafe { table(handle) }]
}

/// What a call returns instead of what the driver did.
fn instead(call: Call, done: vk::Result) -> vk::Result {
    let lost = FIRST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |first| {
        (first == GONE || first == call as u8).then_some(GONE)
    });
    if lost.is_ok() { vk::Result::ERROR_DEVICE_LOST } else { done }
}

/// In the place of `vkQueueSubmit`.
///
/// # Safety
/// The arguments are such as Vulkan allows for that function, and their device is one that [`fragile`] made.
unsafe extern "system" fn submit(
    queue: vk::Queue,
    n_submits: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    match instead(Call::Submit, vk::Result::SUCCESS) {
        // SAFETY: wgpu's own arguments.
        vk::Result::SUCCESS => unsafe { (driver(queue.as_raw()).submit)(queue, n_submits, submits, fence) },
        lost => lost,
    }
}

/// In the place of `vkWaitSemaphores`.
///
/// # Safety
/// The arguments are such as Vulkan allows for that function, and their device is one that [`fragile`] made.
unsafe extern "system" fn wait(device: vk::Device, what: *const vk::SemaphoreWaitInfo<'_>, time: u64) -> vk::Result {
    // Waited for all the same: what runs on must not be freed.
    // SAFETY: wgpu's own arguments.
    instead(Call::Wait, unsafe { (driver(device.as_raw()).wait)(device, what, time) })
}

/// In the place of `vkGetSemaphoreCounterValue`.
///
/// # Safety
/// The arguments are such as Vulkan allows for that function, and their device is one that [`fragile`] made.
unsafe extern "system" fn look(device: vk::Device, semaphore: vk::Semaphore, value: *mut u64) -> vk::Result {
    // SAFETY: wgpu's own arguments.
    instead(Call::Look, unsafe { (driver(device.as_raw()).look)(device, semaphore, value) })
}

/// A device of ours whose driver can be told to report its loss; None if it is not Vulkan's. One at a time.
fn fragile(found: &'static FoundAdapter) -> Option<(Device, MutexGuard<'static, ()>)> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    FIRST.store(0, Ordering::SeqCst);
    let quirks = quirks_of(&found.info);
    let desc = wanted(&found.adapter, &quirks);
    let (features, limits) = (desc.required_features, &desc.required_limits);
    // SAFETY: the device is made as wgpu makes it, and handed over to it.
    let made = unsafe {
        let adapter = found.adapter.as_hal::<Vulkan>()?;
        let instance = adapter.shared_instance().raw_instance();
        let extensions = adapter.required_device_extensions(features);
        let mut physical = adapter.physical_device_features(&extensions, features);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let info = physical.add_to_device_create(info);
        let raw = instance.create_device(adapter.raw_physical_device(), &info, None).unwrap();
        let own = Driver {
            submit: raw.fp_v1_0().queue_submit,
            wait: raw.fp_v1_2().wait_semaphores,
            look: raw.fp_v1_2().get_semaphore_counter_value,
        };
        drivers().insert(table(raw.handle().as_raw()), own);
        let ours = |name: &CStr| -> *const c_void {
            match name.to_bytes() {
                b"vkQueueSubmit" => submit as *const c_void,
                b"vkWaitSemaphores" => wait as *const c_void,
                b"vkGetSemaphoreCounterValue" => look as *const c_void,
                _ => instance.get_device_proc_addr(raw.handle(), name.as_ptr()).map_or(std::ptr::null(), |f| f as _),
            }
        };
        let raw = ash::Device::load_with(ours, raw.handle());
        let opened =
            adapter.device_from_raw(raw, None, &extensions, features, limits, &desc.memory_hints, 0, 0).unwrap();
        found.adapter.create_device_from_hal::<Vulkan>(opened, &desc).unwrap()
    };
    let counters = Arc::default();
    let live = take(made, &quirks, &counters);
    let origin = Origin::Adapter(found.adapter.clone());
    Some((Device::new(Box::new(Gpu::new(found.info.clone(), counters, live, origin))), one))
}

fn lost<T: std::fmt::Debug>(result: Result<T, Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::DeviceLost(_)), "{error}");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        match now(future.as_mut()) {
            Some(value) => return value,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Has the device lost at each call in turn, while `leave` is about to; then host data must come back.
fn lost_while(leave: impl Fn(&Tensor) -> Result<Vec<f32>, Error>) {
    let mut n_devices = 0;
    for found in found() {
        for first in [Call::Submit, Call::Wait, Call::Look] {
            let Some((gpu, _one)) = fragile(found) else { continue };
            n_devices += 1;
            let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &gpu);
            let y = x.add(1.0).compute().unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0]);
            FIRST.store(first as u8, Ordering::SeqCst);
            lost(leave(&y.mul(2.0)));
            assert_eq!(FIRST.load(Ordering::SeqCst), GONE, "{first:?}");
            lost(y.to_vec::<f32>());
            // The device is opened again, by its own functions.
            assert_eq!(x.mul(2.0).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
            assert_eq!(Tensor::arange(0.0, 3.0, 1.0, &gpu).add(&x).to_vec::<f32>().unwrap(), [1.0, 3.0, 5.0]);
            gpu.sync().unwrap();
        }
    }
    assert!(n_devices > 0, "no Vulkan device was found");
}

#[test]
fn a_loss_that_the_driver_reports_is_an_error_of_the_call_and_the_device_is_opened_again() {
    lost_while(|y| y.to_vec());
}

#[test]
fn a_future_is_told_of_a_loss_that_the_driver_reports() {
    lost_while(|y| block_on(y.to_vec_async()));
}
