//! One wgpu device from when it was opened until it is lost, and how its faults become errors. After a loss another
//! `Live` takes its place.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::fault::{lost, no_memory, refused};
use super::memory::Pool;
use super::pipelines::Pipelines;
use super::quirks::Quirks;
use super::signal::now;
use super::status::Status;
use super::tune::Tuning;
use super::wait::Waiter;
use crate::backend::Counters;
use crate::error::{Error, Result};
use crate::wgsl::Caps;

/// A device that has not answered for this long is taken to hang.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A wgpu device in use.
pub struct Live {
    pub id: u64,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub caps: Caps,
    pub quirks: Quirks,
    pub limits: wgpu::Limits,
    pub counters: Arc<Counters>,
    pub pool: Pool,
    pub pipelines: Pipelines,
    pub tuning: Tuning,
    /// Checks of runs that have not reported yet.
    pub unknown: Mutex<Vec<Arc<Status>>>,
    pub waiter: Waiter,
    /// Held while work is handed over and while memory is mapped: what is mapped must not be submitted.
    turn: Mutex<()>,
    faults: Arc<Faults>,
}

/// What a device reports when nobody asks.
#[derive(Default)]
struct Faults {
    lost: OnceLock<String>,
    errors: Mutex<Vec<Error>>,
}

/// Who made the device, and so whose callbacks it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Lazuli,
    Application,
}

impl Live {
    /// Takes a device into use.
    pub fn new(
        (device, queue): (wgpu::Device, wgpu::Queue),
        caps: Caps,
        quirks: Quirks,
        counters: Arc<Counters>,
        owner: Owner,
    ) -> Arc<Live> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let faults: Arc<Faults> = Arc::default();
        if owner == Owner::Lazuli {
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
        Arc::new(Live {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            pool: Pool::new(&limits, &caps, &quirks),
            pipelines: Pipelines::new(&device),
            tuning: Tuning::open(&device.adapter_info()),
            waiter: Waiter::new(device.clone()),
            device,
            queue,
            caps,
            quirks,
            limits,
            counters,
            unknown: Mutex::default(),
            turn: Mutex::default(),
            faults,
        })
    }

    /// The right to submit or to map.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks of runs that have not reported yet.
    pub fn unknown(&self) -> MutexGuard<'_, Vec<Arc<Status>>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it is lost, if it is.
    pub fn lost(&self) -> Option<Error> {
        let message = self.faults.lost.get()?;
        Some(lost("device", format!("the device was lost: {message}")))
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
        self.poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(TIMEOUT) })
    }

    /// Calls back whoever waits for something that is done; waits if asked to.
    pub fn poll(&self, how: wgpu::PollType) -> Result<()> {
        // wgpu panics when the driver reports a loss while it waits.
        let polled = catch_unwind(AssertUnwindSafe(|| self.device.poll(how)));
        match polled {
            Ok(Err(wgpu::PollError::Timeout)) => {
                Err(refused("wait", format!("the device has not answered for {} s", TIMEOUT.as_secs())))
            }
            Ok(_) => self.lost().map_or(Ok(()), Err),
            Err(panic) => {
                let _ = self.faults.lost.set(panic_text(&*panic));
                self.lost().map_or(Ok(()), Err)
            }
        }
    }

    /// Hands over work.
    pub fn submit(&self, commands: impl IntoIterator<Item = wgpu::CommandBuffer>) {
        Counters::count(&self.counters.submits, 1);
        let turn = self.turn();
        let submission_index = Some(self.queue.submit(commands));
        drop(turn);
        // A device that is gone takes no work and does not say so; it knows of no such submission afterwards.
        let look = wgpu::PollType::Wait { submission_index, timeout: Some(Duration::ZERO) };
        if let Ok(Err(wgpu::PollError::WrongSubmissionIndex(..))) =
            catch_unwind(AssertUnwindSafe(|| self.device.poll(look)))
        {
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

impl Faults {
    fn errors(&self) -> MutexGuard<'_, Vec<Error>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
