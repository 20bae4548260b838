//! Vulkan without windows. wgpu asks Vulkan for every kind of window that the system knows, and a layer of Mesa's that sorts
//! devices (`VK_LAYER_MESA_device_select`) then asks the display server which one it draws with. Where there is no display,
//! its library complains to standard error, in every program that looks for a GPU. Who computes needs no windows.

use std::ffi::CStr;

use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::{CreateInstanceCallback, Instance};
use wgpu::hal::{self, Instance as _};

/// Every adapter that Vulkan reaches. The descriptor's backends are not looked at; its flags must be empty, because what
/// they ask of adapters wgpu does elsewhere.
pub fn adapters(desc: wgpu::InstanceDescriptor) -> Vec<wgpu::Adapter> {
    let wanted = hal::InstanceDescriptor {
        name: "lazuli",
        flags: desc.flags,
        memory_budget_thresholds: desc.memory_budget_thresholds,
        backend_options: desc.backend_options.clone(),
        telemetry: None,
        display: None,
    };
    let without_windows: Box<CreateInstanceCallback<'_>> =
        Box::new(|made_of| made_of.extensions.retain(|name| !is_for_windows(name)));
    // SAFETY: nothing is added to what wgpu asks for, and what is taken away is what wgpu itself does without where a
    // system does not have it: it looks for each kind of window before it makes one, and none is made here.
    let Ok(instance) = (unsafe { Instance::init_with_callback(&wanted, Some(without_windows)) }) else {
        return Vec::new();
    };
    // SAFETY: no surface is named that could be another instance's.
    let found = unsafe { instance.enumerate_adapters(None) };
    let keeper = wgpu::Instance::new(wgpu::InstanceDescriptor { backends: wgpu::Backends::empty(), ..desc });
    // SAFETY: each adapter holds the instance it is from, and `keeper` has none of its own that it could be mistaken for.
    found.into_iter().map(|adapter| unsafe { keeper.create_adapter_from_hal::<Vulkan>(adapter) }).collect()
}

/// Whether an extension is a kind of window. What they have in common, `VK_KHR_surface`, is none.
fn is_for_windows(extension: &CStr) -> bool {
    let name = extension.to_bytes();
    name.ends_with(b"_surface") && name != b"VK_KHR_surface"
}
