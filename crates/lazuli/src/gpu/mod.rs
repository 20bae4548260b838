//! Devices that wgpu reaches, and sharing them with an application that has wgpu devices, buffers and encoders of its
//! own. The only part of the engine that names wgpu: it submits what the planner has decided and `wgsl` has printed.
//!
//! ```no_run
//! use lazuli::{Device, Tensor};
//! let gpu = Device::gpu()?;
//! let x = Tensor::arange(0.0, 4.0, 1.0, &gpu);
//! let buffer = lazuli::gpu::buffer(&x)?; // a wgpu::Buffer, no copy
//! # Ok::<(), lazuli::Error>(())
//! ```

mod fault;
mod signal;
mod watchdog;
mod disk;
mod open_device;
mod wait;
mod memory;
mod status;
mod storage;
mod pipelines;
mod ready;
mod profile;
mod run;
mod read;
#[cfg(target_os = "linux")]
mod headless;
mod adapters;
mod interop;
mod tune;
#[cfg(all(test, target_os = "linux"))]
mod driver_loss;
#[cfg(test)]
mod short_loops;

use std::sync::{Arc, Mutex, PoisonError};

use crate::backend::{About, Backend, Counters, HostBytes, Pending, Runnable};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use crate::graph::Buffer;
use crate::plan::{Explain, Plan};
use crate::target::Target;
pub(crate) use adapters::{found, hardware, opengl, software};
pub use interop::{buffer, compiled_bytes, encode, from_buffer, from_wgpu, handles};
use open_device::OpenDevice;
use storage::{Budget, GpuBuffer};
pub use tune::{TuneStep, measure_full_groups, tune};
pub use wgpu;

/// A GPU, or what stands in for one.
pub(crate) struct Gpu {
    shared: Arc<GpuShared>,
}

/// What plans in flight need of the device.
struct GpuShared {
    about: About,
    live: Mutex<Arc<OpenDevice>>,
    origin: Origin,
    kept: Budget,
}

/// Where a device comes from, and so how it is opened again.
enum Origin {
    Adapter(wgpu::Adapter),
    /// The application's own: it is not ours to open.
    Application,
}

impl Gpu {
    fn new(info: DeviceInfo, counters: Arc<Counters>, live: Arc<OpenDevice>, origin: Origin) -> Gpu {
        // What tuning has found before decides in how many parts sums are made.
        let target = Target::gpu(live.target.tuned_by(live.tuning.tuned()));
        let about = About { info, target, counters };
        Gpu { shared: Arc::new(GpuShared { about, live: Mutex::new(live), origin, kept: Budget::default() }) }
    }
}

impl GpuShared {
    /// The device; opened anew if it was lost.
    fn live(&self) -> Result<Arc<OpenDevice>> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lost) = live.lost() else { return Ok(live.clone()) };
        let Origin::Adapter(adapter) = &self.origin else { return Err(lost) };
        *live = adapters::open(adapter, &live.target, &self.about.counters).map_err(|_| lost)?;
        Ok(live.clone())
    }
}

impl Backend for Gpu {
    fn about(&self) -> &About {
        &self.shared.about
    }

    fn upload(&self, bytes: HostBytes) -> Result<Buffer> {
        Ok(Buffer::new(GpuBuffer::of_host(bytes, self.shared.kept.clone())))
    }

    fn download(&self, buffer: &Buffer, out: &mut [u8]) -> Result<()> {
        let storage = run::storage(buffer)?;
        assert!(out.len() <= storage.size_bytes(), "more bytes than the buffer has");
        read::read(storage, &self.shared.about.counters, out)
    }

    fn download_async<'a>(&'a self, buffer: &'a Buffer, out: &'a mut [u8]) -> Pending<'a> {
        Box::pin(async move {
            let storage = run::storage(buffer)?;
            assert!(out.len() <= storage.size_bytes(), "more bytes than the buffer has");
            read::read_async(storage, &self.shared.about.counters, out).await
        })
    }

    fn prepare(&self, plan: Arc<Plan>) -> Result<Arc<dyn Runnable>> {
        Ok(Arc::new(run::GpuPlan::new(self.shared.clone(), plan)?))
    }

    fn describe(&self, plan: &Plan, explain: &mut Explain) {
        let Ok(live) = self.shared.live() else { return };
        let schedules = ready::schedules(plan, &live);
        let programs = ready::programs(plan, &schedules, &live);
        explain.add_scratch(&ready::slots_of_scratch(plan, &programs));
        if programs.iter().flat_map(|p| &p.passes).any(|pass| pass.has_status()) {
            let status_bytes = status::size_bytes(plan.checks.len());
            explain.peak_temp_bytes += status_bytes;
            explain.peak_temp_lower_bound += status_bytes;
        }
        explain.dispatches = programs.iter().map(|p| p.passes.len()).sum();
        // A cut at the end of a stage is that end.
        let is_inside = |cut: &usize| !plan.stages.iter().any(|end| end.launches == cut + 1);
        explain.submits =
            plan.n_submits() + watchdog::cuts(plan, live.target.pace).into_iter().filter(is_inside).count();
        let classes = schedules.iter().zip(&plan.launches).map(|(schedule, launch)| schedule.classes(launch));
        explain.edges.extend(classes.enumerate().map(|(i, classes)| format!("shaders of kernel {i}: {classes}")));
        for ((kernel, program), schedule) in explain.kernels.iter_mut().zip(programs).zip(schedules) {
            let texts: Vec<&str> = program.passes.iter().map(|pass| &*pass.text).collect();
            kernel.wgsl = Some(texts.join("\n"));
            kernel.schedule = schedule.to_string();
            kernel.variant = schedule.variant();
        }
    }

    fn lost(&self, buffer: &Buffer) -> Option<Error> {
        buffer.storage::<GpuBuffer>()?.lost()
    }

    fn sync(&self) -> Result<()> {
        let live = self.shared.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.wait()?;
        live.pipelines.save(None);
        let statuses = std::mem::take(&mut *live.unknown());
        for status in statuses.iter().filter(|s| !s.is_told()) {
            if let Some(Some(error)) = status.known() {
                status.reported();
                return Err(error);
            }
        }
        live.take_fault().map_or(Ok(()), Err)
    }

    fn trim(&self) {
        let live = self.shared.live.lock().unwrap_or_else(PoisonError::into_inner).clone();
        live.pool.trim();
        // The driver gets it back when the work that used it is done. If that cannot be waited for, or the device is lost,
        // whoever uses it next is told.
        let _ = live.wait();
    }
}
