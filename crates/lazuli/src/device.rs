//! The handle users hold: which device, what it is, what it has done. How it works is its backend's business.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use crate::backend::{Backend, Stats};
use crate::error::{Error, Result};
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

    /// The best device here: a hardware GPU, else the CPU. `LAZULI_DEVICE` names another.
    pub fn best() -> Device {
        std::env::var("LAZULI_DEVICE").ok().and_then(|name| Device::open(&name).ok()).unwrap_or_else(Device::cpu)
    }

    /// A device by name: `"cpu"`, an index of [`Device::all`], or part of a name.
    #[track_caller]
    pub fn open(name: &str) -> Result<Device> {
        let wanted = name.trim().to_lowercase();
        let all = Device::all();
        let by_name = |info: &DeviceInfo| !wanted.is_empty() && info.name.to_lowercase().contains(&wanted);
        if wanted == "cpu" || wanted == "0" || all.iter().any(by_name) {
            return Ok(Device::cpu());
        }
        let known: Vec<_> = all.iter().enumerate().map(|(i, d)| format!("{i}: {}", d.name)).collect();
        Err(Error::device("open", format!("no device is called {name:?}; there are: cpu, {}", known.join(", "))))
    }

    /// Every device found, the CPU first.
    pub fn all() -> Vec<DeviceInfo> {
        vec![Device::cpu().info().clone()]
    }

    /// Wraps a backend.
    pub(crate) fn new(backend: Box<dyn Backend>) -> Device {
        Device(Arc::new(Inner { backend, cache: Mutex::default() }))
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        self.0.backend.info()
    }

    /// Waits for all that was started here; reports what went wrong meanwhile.
    pub fn sync(&self) -> Result<()> {
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
}

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
        write!(f, "{} ({kind}, {}, {})", self.name, self.api, self.driver)
    }
}
