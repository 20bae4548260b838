//! The handle users hold: which device, what it is, what it has done. How it works is its backend's business.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, OnceLock};

use crate::awaited::CallThreads;
use crate::backend::{Backend, Stats};
use crate::error::{Error, Fault, Result};
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
    lane: CallThreads,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The name the system gives it.
    pub name: String,
    /// What sort of device it is.
    pub kind: DeviceKind,
    /// How it is reached: `cpu`, `vulkan`, `metal`, `dx12`, `opengl`.
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

/// The CPU, once it is used.
static CPU: OnceLock<Device> = OnceLock::new();

impl Device {
    /// The CPU. Always there.
    pub fn cpu() -> Device {
        CPU.get_or_init(|| Device::new(Box::new(crate::cpu::Cpu::new()))).clone()
    }

    /// Lets the CPU compute with at most this many threads: for processes that share a machine. `LAZULI_THREADS` has
    /// precedence. Once the CPU has been used its threads are there, and this is an error.
    ///
    /// ```
    /// use lazuli::Device;
    /// Device::limit_cpu_threads(1)?;
    /// println!("{}", Device::cpu().info());
    /// assert!(Device::limit_cpu_threads(2).is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn limit_cpu_threads(n_threads: usize) -> Result<()> {
        if CPU.get().is_some() {
            let message = "the CPU has been used, and its threads are there; limit them first";
            return Err(Error::Device(Arc::new(Fault::new("limit_cpu_threads", message))));
        }
        crate::cpu::limit_threads(n_threads);
        Ok(())
    }

    /// Lets the CPU take floats as this many digits of eight bits, 1 to 3, where it multiplies up to eight rows with blocks
    /// ([`Tensor::from_blocks`](crate::Tensor::from_blocks)). Each number is rounded by at most 1.2e-7 of the largest of 32 neighbours with
    /// three digits (the default), 3.1e-5 with two and 8e-3 with one: less work where products are not limited by memory, at the
    /// price of that error. `LAZULI_DIGITS` has precedence. Once the CPU has been used its kernels are chosen, and this is an error.
    ///
    /// ```
    /// use lazuli::{BlockFormat, Device, Tensor};
    /// Device::limit_cpu_digits(2)?;
    /// let (q4_0, cpu) = (BlockFormat::named("Q4_0")?, Device::cpu());
    /// // Weights of 1/4 are exact in blocks.
    /// let w = Tensor::from_blocks(q4_0, &q4_0.quantize(&[0.25; 16 * 32])?, [16, 32], &cpu);
    /// let x: Vec<f32> = (0..32).map(|i| (i as f32).sin()).collect();
    /// let y = w.matmul(&Tensor::from_slice(&x, [32], &cpu)).to_vec::<f32>()?;
    /// assert!((y[0] - 0.25 * x.iter().sum::<f32>()).abs() < 32.0 * 0.25 * 3.2e-5);
    /// assert!(Device::limit_cpu_digits(3).is_err());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn limit_cpu_digits(n_digits: usize) -> Result<()> {
        let message = match CPU.get() {
            Some(_) => "the CPU has been used, and its kernels are chosen; ask for digits first".to_string(),
            None if crate::target::limit_digits(n_digits) => return Ok(()),
            None => format!("{n_digits} digits: floats are taken as 1 to 3"),
        };
        Err(Error::Device(Arc::new(Fault::new("limit_cpu_digits", message))))
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

    /// A device by name: `"cpu"`, `"gpu"` (hardware), `"software"` (a GPU driver that runs on the CPU), `"opengl"`, an index
    /// of [`Device::all`], or part of a name or of the line that its [`DeviceInfo`] is printed as, which tells devices of one
    /// name apart.
    ///
    /// ```
    /// use lazuli::Device;
    /// assert_eq!(Device::open("cpu")?, Device::open("0")?);
    /// for (i, info) in Device::all().iter().enumerate() {
    ///     assert_eq!(Device::open(&info.to_string())?, Device::open(&i.to_string())?);
    /// }
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
            "opengl" | "gl" => return opengl(),
            _ => {}
        }
        let all = Device::all();
        let lines: Vec<String> = all.iter().enumerate().map(|(i, info)| format!("{i}: {info}")).collect();
        match position(&wanted, &all, &lines) {
            Some(0) => Ok(Device::cpu()),
            Some(at) => open_found(at - 1),
            None => {
                let known = lines.join("; ");
                let message = format!("no device is called {name:?}; there are cpu, gpu, software, opengl, or {known}");
                Err(Error::device("open", message))
            }
        }
    }

    /// Every device found, the CPU first, then hardware GPUs, then drivers that run on the CPU. What OpenGL reaches is among
    /// them only where nothing else is found; `Device::open("opengl")` takes it wherever it is.
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
        let cache = Mutex::new(Cache::new(max_cache_bytes()));
        Device(Arc::new(Inner { backend, cache, lane: CallThreads::default() }))
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

    /// What plans and kernels for this device go by, a name and a value each: for reports, in which order and words may
    /// change.
    ///
    /// ```
    /// let properties = lazuli::Device::cpu().properties();
    /// assert!(properties.iter().any(|(name, _)| *name == "threads"));
    /// ```
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        self.0.backend.target().properties()
    }

    /// What it has done since it was opened or reset.
    pub fn stats(&self) -> Stats {
        self.0.backend.counters().read()
    }

    /// Sets the counters back to zero; what is held stays counted.
    pub fn reset_stats(&self) {
        self.0.backend.counters().reset();
    }

    /// Two devices in words that tell them apart.
    pub(crate) fn and(&self, other: &Device) -> String {
        let (this, other) = (self.info().to_string(), other.info().to_string());
        // An application may open an adapter as often as it likes.
        if this == other { format!("{this} and the same opened once more") } else { format!("{this} and {other}") }
    }

    /// Gives back everything that nothing uses: pooled memory, plans, compiled kernels. What tensors and running
    /// evaluations hold stays. What comes next is planned, compiled and allocated anew. Called by the function of a
    /// custom op, it does nothing to the CPU, which is running it.
    ///
    /// ```
    /// use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// Tensor::arange(0.0, 1e4, 1.0, &cpu).exp().sum(..).item::<f32>()?;
    /// cpu.trim();
    /// let stats = cpu.stats();
    /// assert_eq!((stats.bytes_pooled, stats.bytes_plans, stats.bytes_programs), (0, 0, 0));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn trim(&self) {
        // The evaluation that calls the function holds the lock until it returns.
        if crate::user::called_by().is_some() && self.info().kind == DeviceKind::Cpu {
            return;
        }
        Cache::lock(self.cache()).clear(self.backend().counters());
        self.0.backend.trim();
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.0.backend
    }

    pub(crate) fn cache(&self) -> &Mutex<Cache> {
        &self.0.cache
    }

    /// The threads that make awaited calls.
    pub(crate) fn lane(&self) -> &CallThreads {
        &self.0.lane
    }
}

/// Which device is meant: an index first, then part of a name, then part of a line. Parts of names that are numbers, such
/// as a model's, are looked for where no index fits.
fn position(wanted: &str, all: &[DeviceInfo], lines: &[String]) -> Option<usize> {
    if wanted.is_empty() {
        return None;
    }
    let by_index = wanted.parse::<usize>().ok().filter(|at| *at < all.len());
    let by_name = || all.iter().position(|info| info.name.to_lowercase().contains(wanted));
    let by_line = || lines.iter().position(|line| line.to_lowercase().contains(wanted));
    by_index.or_else(by_name).or_else(by_line)
}

/// How many bytes of plans and compiled kernels a device keeps, unless `LAZULI_CACHE_BYTES` says another number.
const CACHE_BYTES: usize = 256 << 20;

/// Read once: the environment is the same for the whole run.
fn max_cache_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| match std::env::var("LAZULI_CACHE_BYTES") {
        Err(_) => CACHE_BYTES,
        Ok(text) => text.trim().parse().unwrap_or_else(|_| {
            crate::log::warn(
                "LAZULI_CACHE_BYTES",
                &format!("{text:?} is no number of bytes; {CACHE_BYTES} are kept at most"),
            );
            CACHE_BYTES
        }),
    })
}

/// What `gpu/` answers; without it, that there is none.
#[cfg(feature = "gpu")]
mod gpus {
    use super::{Device, DeviceInfo, Result};
    pub(super) use crate::gpu::{hardware, opengl, software};

    pub fn found_infos() -> Vec<DeviceInfo> {
        crate::gpu::found().iter().map(|f| f.info.clone()).collect()
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

    #[track_caller]
    pub fn opengl() -> Result<Device> {
        hardware()
    }

    pub fn found_infos() -> Vec<DeviceInfo> {
        Vec::new()
    }

    #[track_caller]
    pub fn open_found(_: usize) -> Result<Device> {
        hardware()
    }
}

use gpus::{found_infos, hardware, open_found, opengl, software};

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

#[cfg(test)]
mod tests {
    use super::*;

    fn llvmpipe(api: &str, driver: &str) -> DeviceInfo {
        let name = "llvmpipe (LLVM 15.0.6, 256 bits)".into();
        let kind = DeviceKind::Software;
        let (api, driver) = (api.into(), driver.into());
        DeviceInfo { name, kind, api, driver, parallelism: 1024, max_buffer_bytes: 1 << 31, max_binding_bytes: 1 << 30 }
    }

    #[test]
    fn devices_of_one_name_are_told_apart_by_what_is_printed_of_them() {
        let cpu = Device::cpu().info().clone();
        let mut card = llvmpipe("vulkan", "NVIDIA 550");
        (card.name, card.kind) = ("NVIDIA GeForce RTX 3060".into(), DeviceKind::Discrete);
        let all =
            [cpu, card, llvmpipe("vulkan", "Mesa 22.3.6"), llvmpipe("vulkan", "Mesa 24.1"), llvmpipe("opengl", "4.5")];
        let lines: Vec<String> = all.iter().enumerate().map(|(i, info)| format!("{i}: {info}")).collect();
        let open = |text: &str| position(&text.to_lowercase(), &all, &lines);
        for (i, info) in all.iter().enumerate() {
            assert_eq!(open(&lines[i]), Some(i), "{}", lines[i]);
            assert_eq!(open(&info.to_string()), Some(i), "{info}");
            assert_eq!(open(&i.to_string()), Some(i));
        }
        assert_eq!((open("llvmpipe"), open("software, opengl"), open("Mesa 24")), (Some(2), Some(4), Some(3)));
        assert_eq!((open("3060"), open("discrete"), open("rtx")), (Some(1), Some(1), Some(1)));
        assert_eq!((open(""), open("99"), open("abacus")), (None, None, None));
    }
}
