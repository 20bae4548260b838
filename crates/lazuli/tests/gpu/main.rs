//! What GPUs promise beside what every device does, on every adapter found. A machine without one fails here: a test
//! that cannot run says so. `cargo xtask test` installs a driver.
#![cfg(feature = "gpu")]

mod batches;
mod bounds;
mod devices;
mod faults;
mod futures;
mod hops;
mod interop;
mod kernels;
mod limits;
mod matmuls;
mod roundings;
mod stages;
mod steady;
mod sweep;
mod threads;
mod training;
mod windows;

use lazuli::gpu::wgpu;
use lazuli::{Device, DeviceKind};
use lazuli_check::testing::{alone, block_on};

/// Every GPU found, drivers that run on the CPU included. Never none.
fn gpus() -> Vec<Device> {
    let n = Device::all().len();
    let gpus: Vec<Device> = (1..n).map(|i| Device::open(&i.to_string()).unwrap()).collect();
    assert!(!gpus.is_empty(), "no GPU adapter was found: {}", Device::gpu().unwrap_err());
    assert!(gpus.iter().all(|gpu| gpu.info().kind != DeviceKind::Cpu));
    gpus
}

/// The first adapter, as an application would find it.
fn adapter() -> wgpu::Adapter {
    let adapters = [wgpu::Backends::PRIMARY, wgpu::Backends::GL].into_iter().flat_map(|backends| {
        // Without debugging, as the engine does: validation layers older than WGSL do not know it as a source language.
        let flags = wgpu::InstanceFlags::empty();
        let desc =
            wgpu::InstanceDescriptor { backends, flags, ..wgpu::InstanceDescriptor::new_without_display_handle() };
        block_on(wgpu::Instance::new(desc).enumerate_adapters(backends))
    });
    adapters.into_iter().next().expect("a GPU adapter")
}

/// A device of the test's own, as an application would make it, with limits of its choice.
fn own(limits: impl Fn(&mut wgpu::Limits)) -> (wgpu::Device, wgpu::Queue, Device) {
    own_of(&adapter(), limits)
}

/// The same of an adapter that is known.
fn own_of(adapter: &wgpu::Adapter, limits: impl Fn(&mut wgpu::Limits)) -> (wgpu::Device, wgpu::Queue, Device) {
    let mut required_limits = adapter.limits();
    limits(&mut required_limits);
    let desc = wgpu::DeviceDescriptor { required_limits, ..Default::default() };
    let (device, queue) = block_on(adapter.request_device(&desc)).unwrap();
    let shared = lazuli::gpu::from_wgpu(device.clone(), queue.clone(), adapter.get_info()).unwrap();
    (device, queue, shared)
}
