//! One wgpu device from when it was opened until it is lost, and how its faults become errors. After a loss another
//! `OpenDevice` takes its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::fault::{lost, no_memory, refused};
use super::memory::BufferPool;
use super::pipelines::Pipelines;
use super::signal::now;
use super::status::Status;
use super::tune::Tuning;
use super::wait::{Waiter, may_wait};
use crate::backend::Counters;
use crate::error::{Error, Result};
use crate::target::GpuTarget;

/// A device that has not answered for this long is taken to hang.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Callbacks that may panic during one poll before it is given up.
const MAX_PANICS: usize = 64;

/// A wgpu device in use.
pub struct OpenDevice {
    pub id: u64,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub target: GpuTarget,
    pub limits: wgpu::Limits,
    pub counters: Arc<Counters>,
    pub pool: BufferPool,
    pub pipelines: Pipelines,
    pub tuning: Tuning,
    /// Checks of runs that have not reported yet.
    pub unknown: Mutex<Vec<Arc<Status>>>,
    pub waiter: Waiter,
    /// Held while work is handed over and while memory is mapped: what is mapped must not be submitted.
    queue_lock: Mutex<()>,
    faults: Arc<DeviceFaults>,
}

/// What a device reports when nobody asks.
#[derive(Default)]
struct DeviceFaults {
    lost: OnceLock<String>,
    errors: Mutex<Vec<Error>>,
}

/// How a poll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    Done,
    /// The time was up first.
    Late,
}

/// Who made the device, and so whose callbacks it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOwner {
    Lazuli,
    Application,
}

impl OpenDevice {
    /// Takes a device into use.
    pub fn new(
        (device, queue): (wgpu::Device, wgpu::Queue),
        target: GpuTarget,
        counters: Arc<Counters>,
        owner: DeviceOwner,
    ) -> Arc<OpenDevice> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let faults: Arc<DeviceFaults> = Arc::default();
        if owner == DeviceOwner::Lazuli {
            let noted = faults.clone();
            device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| noted.errors().push(error_of("run", error))));
            let noted = faults.clone();
            device.set_device_lost_callback(move |reason, message| {
                let message = if message.is_empty() { format!("{reason:?}").to_lowercase() } else { message };
                // The first reason is the one that counts.
                let _ = noted.lost.set(message);
            });
        }
        let limits = device.limits();
        Arc::new(OpenDevice {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            pool: BufferPool::new(&limits, &target, counters.clone()),
            pipelines: Pipelines::new(&device, counters.clone()),
            tuning: Tuning::open(&device.adapter_info()),
            waiter: Waiter::new(device.clone()),
            device,
            queue,
            target,
            limits,
            counters,
            unknown: Mutex::default(),
            queue_lock: Mutex::default(),
            faults,
        })
    }

    /// The right to submit or to map.
    pub fn queue_lock(&self) -> MutexGuard<'_, ()> {
        self.queue_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks of runs that have not reported yet.
    pub fn unknown(&self) -> MutexGuard<'_, Vec<Arc<Status>>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is lost, if it is.
    pub fn lost(&self) -> Option<Error> {
        self.faults.lost.get().map(|message| lost_for(message))
    }

    /// Calls `f` and reports what the device finds wrong with it.
    pub fn checked<T>(&self, op: &str, f: impl FnOnce() -> T) -> Result<T> {
        let scopes = [wgpu::ErrorFilter::OutOfMemory, wgpu::ErrorFilter::Validation, wgpu::ErrorFilter::Internal]
            .map(|filter| self.device.push_error_scope(filter));
        let made = catch_unwind(AssertUnwindSafe(f));
        // In reverse, and all of them. What a browser says only later comes through the uncaptured errors.
        let errors = scopes.into_iter().rev().filter_map(|scope| now(scope.pop()).flatten());
        let first = errors.fold(None, |first, error| first.or(Some(error)));
        match (made, first) {
            (Ok(made), None) => match self.lost() {
                Some(error) => Err(error),
                None => Ok(made),
            },
            (made, error) => {
                // A device that is gone says so only when asked.
                self.poll(wgpu::PollType::Poll)?;
                Err(match (error, made) {
                    (Some(error), _) => error_of(op, error),
                    (None, Err(panic)) => refused(op, panic_text(&*panic)),
                    (None, Ok(_)) => refused(op, "the device refused"),
                })
            }
        }
    }

    /// Waits for all that was submitted, and calls back whoever waits.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(None, TIMEOUT)
    }

    /// The same for what was submitted up to here.
    pub fn wait_until(&self, submission: &wgpu::SubmissionIndex) -> Result<()> {
        self.wait_for(Some(submission), TIMEOUT)
    }

    /// The same, but no longer than this.
    fn wait_for(&self, submission: Option<&wgpu::SubmissionIndex>, time: Duration) -> Result<()> {
        may_wait()?;
        let start = Instant::now();
        loop {
            let timeout = Some(time.saturating_sub(start.elapsed()));
            match self.poll(wgpu::PollType::Wait { submission_index: submission.cloned(), timeout })? {
                Polled::Done => return Ok(()),
                // OpenGL waits for two seconds at most, however long it is told to.
                Polled::Late if start.elapsed() < time => {}
                Polled::Late => {
                    let seconds = time.as_secs_f64();
                    return Err(refused("wait", format!("the device has not answered for {seconds} s")));
                }
            }
        }
    }

    /// Calls back whoever waits for something that is done; waits if asked to.
    pub fn poll(&self, how: wgpu::PollType) -> Result<Polled> {
        // wgpu panics when the driver reports a loss while it waits, every time it is asked. So a device that is known to
        // be lost is not asked; the one wait that finds it out cannot be spared.
        self.look_for_loss();
        if let Some(error) = self.lost() {
            return Err(error);
        }
        for _ in 0..MAX_PANICS {
            match catch_unwind(AssertUnwindSafe(|| self.device.poll(how.clone()))) {
                Ok(polled) => {
                    return match (self.lost(), polled) {
                        (Some(error), _) => Err(error),
                        (None, Err(wgpu::PollError::Timeout)) => Ok(Polled::Late),
                        (None, _) => Ok(Polled::Done),
                    };
                }
                // Somebody else's callback panicked. It is not called again, and the device is well.
                Err(_) if !is_gone(&self.device) => {}
                Err(panic) => {
                    let text = self.faults.lost.get_or_init(|| panic_text(&*panic));
                    return Err(lost_for(text));
                }
            }
        }
        Err(refused("wait", "callbacks of the application panic whenever the device is polled"))
    }

    /// Hands over work. What is wrong with it goes to the caller's error scope: it is no fault of the device.
    pub fn submit(&self, commands: impl IntoIterator<Item = wgpu::CommandBuffer>) -> wgpu::SubmissionIndex {
        Counters::count(&self.counters.submits, 1);
        let turn = self.queue_lock();
        let submission = self.queue.submit(commands);
        drop(turn);
        // A device that is gone takes no work and does not say so.
        self.look_for_loss();
        submission
    }

    /// Notes that the device is lost, if it is. An application's device tells its owner alone, and one that was destroyed
    /// tells whoever polls once its work is done, so it is asked.
    fn look_for_loss(&self) {
        if self.lost().is_none() && is_gone(&self.device) {
            let _ = self.faults.lost.set("it takes no more work".into());
        }
    }

    /// What was reported when nobody asked; forgotten once told.
    pub fn take_fault(&self) -> Option<Error> {
        let mut errors = self.faults.errors();
        let first = errors.first().cloned();
        errors.clear();
        first
    }
}

/// Whether wgpu has given a device up. One that is well refuses a buffer that is of no use; one that is gone refuses
/// nothing, it only does nothing.
///
/// Nobody is waited for. To wait for a submission for no time at all would tell as much, but wgpu panics if another thread
/// finds the submission done at that moment.
pub fn is_gone(device: &wgpu::Device) -> bool {
    if cfg!(target_arch = "wasm32") {
        // A browser answers later, and reports a loss by itself.
        return false;
    }
    let of_no_use =
        wgpu::BufferDescriptor { label: None, size: 4, usage: wgpu::BufferUsages::empty(), mapped_at_creation: false };
    let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
    drop(device.create_buffer(&of_no_use));
    matches!(now(scope.pop()), Some(None))
}

impl DeviceFaults {
    fn errors(&self) -> MutexGuard<'_, Vec<Error>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// That a device is lost, and why.
fn lost_for(message: &str) -> Error {
    lost("device", format!("the device was lost: {message}"))
}

/// wgpu's error as ours.
fn error_of(op: &str, error: wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => no_memory(op, "the device has no more memory"),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            refused(op, one_line(&description))
        }
    }
}

/// Messages are one line; wgpu's are a paragraph.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    one_line(text.unwrap_or("the driver failed"))
}

#[cfg(test)]
impl OpenDevice {
    /// Submits a shader of a test's own; the block is its one binding.
    pub fn dispatch(&self, text: &str, block: &super::memory::Block, n_groups: u32) {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        });
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: block.at(0).0.as_entire_binding() }],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(n_groups, 1, 1);
        drop(pass);
        self.submit([encoder.finish()]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::adapters;
    use super::*;

    /// Work for a while: every invocation goes round a loop.
    fn work(live: &Arc<OpenDevice>) {
        const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                var y = id.x;
                for (var i = 0u; i < 60000u; i++) { y = y * 1664525u + x[1]; }
                if (y == 1u) { x[0] = y; }
            }";
        let block = live.take_with(&[0; 16]).unwrap();
        live.dispatch(TEXT, &block, 256);
    }

    #[test]
    fn a_device_that_does_not_answer_in_time_is_an_error_and_may_answer_later() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            work(&live);
            let error = live.wait_for(None, Duration::ZERO).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{error}");
            assert!(error.to_string().contains("has not answered"), "{error}");
            live.wait().unwrap();
            assert!(live.lost().is_none());
        }
    }

    #[test]
    fn a_thread_that_panics_with_a_lock_leaves_the_device_usable() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let other = live.clone();
            let panicked = std::thread::spawn(move || {
                let _held = (other.queue_lock(), other.unknown(), other.faults.errors());
                panic!("while it holds every lock");
            });
            assert!(panicked.join().is_err());
            assert!(live.queue_lock.is_poisoned());
            let block = live.take_with(&[1, 2, 3, 4]).unwrap();
            let mut bytes = [0; 4];
            let storage = super::super::storage::GpuBuffer::of_block(block, Vec::new(), None);
            super::super::read::read(&storage, &Counters::default(), &mut bytes).unwrap();
            assert_eq!(bytes, [1, 2, 3, 4]);
            assert!(live.unknown().is_empty() && live.take_fault().is_none());
        }
    }

    #[test]
    fn a_validation_error_is_an_error_of_the_call_and_nothing_else() {
        for found in adapters::found() {
            let live = found.live().unwrap();
            let source = wgpu::ShaderSource::Wgsl("fn main( {".into());
            let desc = wgpu::ShaderModuleDescriptor { label: None, source };
            let error = live.checked("test", || live.device.create_shader_module(desc)).map(drop).unwrap_err();
            assert!(matches!(error, Error::Device(_)), "{error}");
            live.wait().unwrap();
            assert!(live.take_fault().is_none() && live.lost().is_none());
        }
    }
}
