//! Which GPUs there are, which of them to take, and opening one. Asks the system once; an adapter is opened once.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::open_device::{DeviceOwner, OpenDevice};
use super::signal::now;
use super::{Gpu, Origin};
use crate::backend::Counters;
use crate::cpu::processor;
use crate::device::{Device, DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use crate::target::{GpuTarget, quirks};

/// Windows onto memory are multiples of this.
const WINDOW: usize = 1 << 20;
/// Features that are used where they are offered; none is needed.
const WELCOME: wgpu::Features =
    wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::PIPELINE_CACHE).union(wgpu::Features::SUBGROUP);

/// An adapter that was found, and the device once it is open.
pub struct FoundAdapter {
    pub info: DeviceInfo,
    pub adapter: wgpu::Adapter,
    device: Mutex<Option<Device>>,
}

/// Every adapter that can compute: hardware first, best first. OpenGL shows the same hardware again and does less with it,
/// so it is looked at only where there is nothing else.
pub fn found() -> &'static [FoundAdapter] {
    static FOUND: OnceLock<Vec<FoundAdapter>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let better = find(wgpu::Backends::PRIMARY);
        if better.is_empty() { find(wgpu::Backends::GL) } else { better }
    })
}

/// The best adapter that OpenGL reaches, for whoever asks for it by name.
#[track_caller]
pub fn opengl() -> Result<Device> {
    static ASKED_FOR: OnceLock<Vec<FoundAdapter>> = OnceLock::new();
    let is_opengl = |found: &&FoundAdapter| found.adapter.get_info().backend == wgpu::Backend::Gl;
    let among = found().iter().find(is_opengl);
    match among.or_else(|| ASKED_FOR.get_or_init(|| find(wgpu::Backends::GL)).first()) {
        Some(found) => found.open(),
        None => Err(Error::device("open", "OpenGL reaches no adapter that can compute")),
    }
}

/// The best hardware GPU. The error says what was found instead.
#[track_caller]
pub fn hardware() -> Result<Device> {
    let mut failed = Vec::new();
    for found in found().iter().filter(|f| f.info.kind != DeviceKind::Software) {
        match found.open() {
            Ok(device) => return Ok(device),
            Err(error) => failed.push(format!("{} cannot be opened: {}", found.info, error.fault().message)),
        }
    }
    let software = found().iter().filter(|f| f.info.kind == DeviceKind::Software);
    failed.extend(software.map(|f| format!("{} runs on the CPU: Device::open(\"software\") takes it", f.info)));
    let message = match failed.is_empty() {
        false => format!("no hardware GPU was found; {}", failed.join("; ")),
        true => format!("no GPU was found: {} reached no adapter; is a driver installed?", apis()),
    };
    Err(Error::device("gpu", message))
}

/// The first driver that runs on the CPU.
#[track_caller]
pub fn software() -> Result<Device> {
    match found().iter().find(|f| f.info.kind == DeviceKind::Software) {
        Some(found) => found.open(),
        None => {
            let message = "no driver that runs on the CPU is installed (Debian has one in mesa-vulkan-drivers)";
            Err(Error::device("open", message))
        }
    }
}

impl FoundAdapter {
    /// A wgpu device of a test's own.
    #[cfg(test)]
    pub fn live(&self) -> Result<Arc<OpenDevice>> {
        open(&self.adapter, &quirks_of(&self.info), &Arc::default())
    }

    /// The device; the same one every time.
    pub fn open(&self) -> Result<Device> {
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = &*device {
            return Ok(device.clone());
        }
        let counters: Arc<Counters> = Arc::default();
        let live = open(&self.adapter, &quirks_of(&self.info), &counters)?;
        let origin = Origin::Adapter(self.adapter.clone());
        let opened = Device::new(Box::new(Gpu::new(self.info.clone(), counters, live, origin)));
        *device = Some(opened.clone());
        Ok(opened)
    }
}

/// Opens a wgpu device with all that the adapter can do.
pub fn open(adapter: &wgpu::Adapter, known: &GpuTarget, counters: &Arc<Counters>) -> Result<Arc<OpenDevice>> {
    match now(adapter.request_device(&wanted(adapter, known))) {
        Some(Ok(made)) => Ok(take(made, known, counters)),
        Some(Err(error)) => Err(Error::device("open", error.to_string())),
        None => Err(Error::unsupported("open", "a browser opens devices later: hand one over with from_wgpu")),
    }
}

/// What a wgpu device should be able to do.
pub fn wanted(adapter: &wgpu::Adapter, known: &GpuTarget) -> wgpu::DeviceDescriptor<'static> {
    let mut welcome = WELCOME;
    if known.map_results {
        welcome |= wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
    }
    wgpu::DeviceDescriptor {
        label: Some("lazuli"),
        required_features: adapter.features() & welcome,
        required_limits: adapter.limits(),
        ..wgpu::DeviceDescriptor::default()
    }
}

/// Takes a wgpu device of our own into use.
pub fn take(made: (wgpu::Device, wgpu::Queue), known: &GpuTarget, counters: &Arc<Counters>) -> Arc<OpenDevice> {
    let target = target_of(&made.0, known);
    OpenDevice::new(made, target, counters.clone(), DeviceOwner::Lazuli)
}

/// What is known of the driver behind a device, before it is open.
pub fn quirks_of(info: &DeviceInfo) -> GpuTarget {
    quirks(info.kind, &info.name, &info.driver, processor())
}

/// What is known of a driver, with what its API says that it can take.
fn with_limits(limits: &wgpu::Limits, known: &GpuTarget) -> GpuTarget {
    let binding = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let binding = usize::try_from(binding).unwrap_or(usize::MAX) / WINDOW * WINDOW;
    GpuTarget {
        // Indices of elements within a window are 32 bits.
        max_binding_bytes: binding.clamp(WINDOW, 2 << 30),
        max_bindings: limits.max_storage_buffers_per_shader_stage as usize,
        max_invocations: limits.max_compute_invocations_per_workgroup as usize,
        max_shared_bytes: limits.max_compute_workgroup_storage_size as usize,
        ..known.clone()
    }
}

/// What is known of a device that is open.
pub fn target_of(device: &wgpu::Device, known: &GpuTarget) -> GpuTarget {
    let info = device.adapter_info();
    // Browsers want a text that asks for subgroups, and do not tell which of a workgroup's they are.
    let has_subgroups =
        device.features().contains(wgpu::Features::SUBGROUP) && info.backend != wgpu::Backend::BrowserWebGpu;
    let sizes = [info.subgroup_min_size as usize, info.subgroup_max_size as usize];
    let subgroup_sizes = has_subgroups.then_some(sizes);
    let subgroup = (has_subgroups && known.counts_lanes && sizes[0] == sizes[1]).then_some(sizes[0]);
    let map_results = known.map_results && device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS);
    GpuTarget { subgroup, subgroup_sizes, map_results, ..with_limits(&device.limits(), known) }
}

/// What a wgpu adapter is, in the words that users read.
pub fn describe(info: &wgpu::AdapterInfo, limits: &wgpu::Limits) -> DeviceInfo {
    let kind = match info.device_type {
        wgpu::DeviceType::DiscreteGpu => DeviceKind::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceKind::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceKind::Virtual,
        wgpu::DeviceType::Cpu => DeviceKind::Software,
        // OpenGL does not say: what is known to run on the CPU is named.
        wgpu::DeviceType::Other if info.name.to_lowercase().contains("llvmpipe") => DeviceKind::Software,
        wgpu::DeviceType::Other => DeviceKind::Integrated,
    };
    let target = with_limits(limits, &quirks(kind, &info.name, &info.driver, processor()));
    DeviceInfo {
        name: info.name.clone(),
        kind,
        api: match info.backend {
            wgpu::Backend::Gl => "opengl".into(),
            backend => format!("{backend:?}").to_lowercase(),
        },
        driver: [&*info.driver, &*info.driver_info].join(" ").trim().to_string(),
        parallelism: limits.max_compute_invocations_per_workgroup as usize,
        max_buffer_bytes: usize::try_from(limits.max_buffer_size).unwrap_or(usize::MAX),
        max_binding_bytes: target.max_binding_bytes,
    }
}

/// The adapters that these ways reach and that can compute, best first.
fn find(backends: wgpu::Backends) -> Vec<FoundAdapter> {
    let can_compute = |adapter: &wgpu::Adapter| {
        let flags = adapter.get_downlevel_capabilities().flags;
        let limits = adapter.limits();
        flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
            && limits.max_storage_buffers_per_shader_stage >= 4
            && limits.min_storage_buffer_offset_alignment.is_power_of_two()
    };
    let found = |adapter: wgpu::Adapter| {
        let info = describe(&adapter.get_info(), &adapter.limits());
        FoundAdapter { info, adapter, device: Mutex::default() }
    };
    let mut all: Vec<FoundAdapter> = reached(backends).into_iter().filter(can_compute).map(found).collect();
    all.sort_by_key(|f| match f.info.kind {
        DeviceKind::Discrete => 0,
        DeviceKind::Integrated => 1,
        DeviceKind::Virtual => 2,
        DeviceKind::Software | DeviceKind::Cpu => 3,
    });
    all
}

/// Every adapter that these ways reach.
fn reached(backends: wgpu::Backends) -> Vec<wgpu::Adapter> {
    let desc = wgpu::InstanceDescriptor {
        backends,
        // Unless the environment asks for it, drivers do not check once more what wgpu has checked.
        flags: wgpu::InstanceFlags::empty().with_env(),
        memory_budget_thresholds: wgpu::MemoryBudgetThresholds {
            for_resource_creation: Some(95),
            for_device_loss: None,
        },
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    };
    let adapters = || {
        #[cfg(target_os = "linux")]
        if backends.contains(wgpu::Backends::VULKAN) && desc.flags.is_empty() {
            return Some(super::headless::adapters(desc));
        }
        now(wgpu::Instance::new(desc).enumerate_adapters(backends))
    };
    // A loader that fails on this system is a system without GPUs.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(adapters)).ok().flatten().unwrap_or_default()
}

/// The ways that were tried, for people.
fn apis() -> String {
    let names = [
        (wgpu::Backends::VULKAN, "Vulkan"),
        (wgpu::Backends::METAL, "Metal"),
        (wgpu::Backends::DX12, "DX12"),
        (wgpu::Backends::GL, "OpenGL"),
    ];
    let built = wgpu::Instance::enabled_backend_features();
    let names: Vec<&str> = names.iter().filter(|(b, _)| built.contains(*b)).map(|(_, name)| *name).collect();
    names.join(", ")
}
