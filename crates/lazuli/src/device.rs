//! The handle users hold: which device, what it is, what it has done. How it works is its backend's business.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::{Backend, Stats};
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::log;
use crate::place::Caller;
use crate::plan::Cache;

/// Where tensors live and are computed. Cheap to clone; opening the same one twice gives the same device.
///
/// ```
/// use lazuli::Device;
/// let cpu = Device::cpu();
/// assert_eq!(cpu, Device::open("cpu")?);
/// println!("{}", cpu.info());
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    backend: Box<dyn Backend>,
    // Held from the walk over a graph until its results are in place, so that of two threads that want the same
    // tensor one computes it and the other finds it done.
    cache: Mutex<Cache>,
    lane: Lane,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name the system gives it.
    pub name: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// How it is reached: `cpu`, `vulkan`, `metal`, …
    pub api: String,
    /// Driver or instruction set.
    pub driver: String,
    /// Threads or the like that it works with.
    pub parallelism: usize,
    /// The largest piece of memory that is in one; what is larger lies in several.
    pub max_buffer_bytes: usize,
    /// The largest part of it that a kernel sees at once; what is larger is seen through several windows.
    pub max_binding_bytes: usize,
}

/// What sort of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The processor this program runs on.
    Cpu,
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the CPU's memory.
    Integrated,
    /// A GPU handed through by a virtual machine.
    Virtual,
    /// A GPU driver that runs on the CPU.
    Software,
}

impl Device {
    /// The CPU. Always there.
    pub fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::new(Box::new(crate::cpu::Cpu::new()))).clone()
    }

    /// The best hardware GPU. The error lists what was found instead, and why it was not taken.
    ///
    /// ```
    /// use lazuli::Device;
    /// match Device::gpu() {
    ///     Ok(gpu) => println!("{}", gpu.info()),
    ///     Err(why) => println!("{why}"),
    /// }
    /// ```
    #[track_caller]
    pub fn gpu() -> Result<Device> {
        let _caller = Caller::of_engine(Location::caller());
        hardware()
    }

    /// The best device here: a hardware GPU, else the CPU. A driver that runs on the CPU is never picked silently.
    /// `LAZULI_DEVICE` names another, as in [`Device::open`]; one that is not there is reported and left.
    ///
    /// ```
    /// let best = lazuli::Device::best();
    /// println!("{}", best.info());
    /// ```
    #[track_caller]
    pub fn best() -> Device {
        let _caller = Caller::of_engine(Location::caller());
        let open = |name: String| Device::open(&name).map_err(|error| log::warn("LAZULI_DEVICE", &error)).ok();
        log::variable("LAZULI_DEVICE").and_then(open).or_else(|| hardware().ok()).unwrap_or_else(Device::cpu)
    }

    /// A device by name: `"cpu"`, `"gpu"` (hardware), `"software"` (a GPU driver that runs on the CPU), an index of
    /// [`Device::all`], or part of a name.
    ///
    /// ```
    /// use lazuli::Device;
    /// assert_eq!(Device::open("cpu")?, Device::open("0")?);
    /// assert!(Device::open("no such device").is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn open(name: &str) -> Result<Device> {
        let _caller = Caller::of_engine(Location::caller());
        let wanted = name.trim().to_lowercase();
        match &*wanted {
            "cpu" | "0" => return Ok(Device::cpu()),
            "gpu" => return hardware(),
            "software" => return software(),
            _ => {}
        }
        let by_index = wanted.parse::<usize>().ok().and_then(|i| i.checked_sub(1)?.lt(&n_found()).then(|| i - 1));
        let has_name = |info: &DeviceInfo| !wanted.is_empty() && info.name.to_lowercase().contains(&wanted);
        let all = Device::all();
        // Parts of names that are numbers, such as a model's, are looked for when no index fits.
        let by_name = || all.iter().skip(1).position(has_name);
        if by_index.is_none() && has_name(&all[0]) {
            return Ok(Device::cpu());
        }
        if let Some(at) = by_index.or_else(by_name) {
            return open_found(at);
        }
        let known: Vec<_> = all.iter().enumerate().map(|(i, d)| format!("{i}: {}", d.name)).collect();
        Err(Error::device(
            "open",
            format!("no device is called {name:?}; there are: cpu, gpu, software, or {}", known.join(", ")),
        ))
    }

    /// Every device found, the CPU first, then hardware GPUs, then drivers that run on the CPU.
    ///
    /// ```
    /// use lazuli::{Device, DeviceKind};
    /// assert_eq!(Device::all()[0].kind, DeviceKind::Cpu);
    /// ```
    pub fn all() -> Vec<DeviceInfo> {
        std::iter::once(Device::cpu().info().clone()).chain(found_infos()).collect()
    }

    /// Wraps a backend.
    pub(crate) fn new(backend: Box<dyn Backend>) -> Device {
        Device(Arc::new(Inner { backend, cache: Mutex::default(), lane: Lane::default() }))
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        self.0.backend.info()
    }

    /// Waits for all that was started here; reports what went wrong meanwhile.
    #[track_caller]
    pub fn sync(&self) -> Result<()> {
        let _caller = Caller::of_engine(Location::caller());
        self.0.backend.sync()
    }

    /// What it has done since it was opened or reset.
    pub fn stats(&self) -> Stats {
        self.0.backend.counters().read()
    }

    /// Sets the counters back to zero; what is held stays counted.
    pub fn reset_stats(&self) {
        self.0.backend.counters().reset();
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    pub(crate) fn cache(&self) -> &Mutex<Cache> {
        &self.0.cache
    }

    /// The threads that make awaited calls.
    pub(crate) fn lane(&self) -> &Lane {
        &self.0.lane
    }
}

/// What `gpu/` answers; without it, that there is none.
#[cfg(feature = "gpu")]
mod gpus {
    use super::{Device, DeviceInfo, Result};
    pub(super) use crate::gpu::{hardware, software};

    pub fn found_infos() -> Vec<DeviceInfo> {
        crate::gpu::found().iter().map(|f| f.info.clone()).collect()
    }

    pub fn n_found() -> usize {
        crate::gpu::found().len()
    }

    pub fn open_found(at: usize) -> Result<Device> {
        crate::gpu::found()[at].open()
    }
}

#[cfg(not(feature = "gpu"))]
mod gpus {
    use super::{Device, DeviceInfo, Result};
    use crate::error::Error;

    #[track_caller]
    pub fn hardware() -> Result<Device> {
        Err(Error::unsupported("gpu", "this build knows no GPUs: the feature `gpu` is off"))
    }

    #[track_caller]
    pub fn software() -> Result<Device> {
        hardware()
    }

    pub fn found_infos() -> Vec<DeviceInfo> {
        Vec::new()
    }

    pub fn n_found() -> usize {
        0
    }

    #[track_caller]
    pub fn open_found(_: usize) -> Result<Device> {
        hardware()
    }
}

use gpus::{found_infos, hardware, n_found, open_found, software};

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.info().name)
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = format!("{:?}", self.kind).to_lowercase();
        write!(f, "{} ({kind}, {}, {})", self.name, self.api, self.driver)?;
        match self.kind {
            DeviceKind::Cpu if self.parallelism == 1 => write!(f, ", 1 thread"),
            DeviceKind::Cpu => write!(f, ", {} threads", self.parallelism),
            _ => Ok(()),
        }
    }
}
