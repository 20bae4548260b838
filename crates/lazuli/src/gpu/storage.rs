//! What a tensor on a GPU holds: host bytes that are brought over when they are first used, or a block of device
//! memory, and the checks of the runs that made it. Host bytes are kept beside, up to a budget, for the day the device
//! is lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fault::lost;
use super::memory::{Block, Staging};
use super::open_device::OpenDevice;
use super::status::Status;
use crate::backend::HostBytes;
use crate::error::{Error, Result};

/// Host bytes that a device keeps of what was uploaded, at most.
const KEEP_BYTES: usize = 256 << 20;

/// The memory of a tensor. No byte of its block is written but by work on the device's queue, in the order of submission. A run
/// writes to a block that tensors held before it only if that is donated, which means that no other thread has the storage or
/// can get at it (docs/decisions/donation-is-safe.md), and then only if nobody still holds the block itself, as
/// a read under way or an application does; else it writes to a copy.
pub struct GpuBuffer {
    size_bytes: usize,
    home: Mutex<Home>,
    /// Checks of the runs that it comes from and that may still fail.
    pending: Vec<Arc<Status>>,
}

/// Where the bytes are: in one of these at least.
#[derive(Default)]
struct Home {
    block: Option<Arc<Block>>,
    host: Option<HostCopy>,
    /// A copy on its way to the host.
    staged: Option<Staging>,
}

/// Host bytes, and the budget they count against once they are a second copy.
struct HostCopy {
    bytes: HostBytes,
    budget: Budget,
    is_counted: bool,
}

/// Bytes that are kept as second copies on a device.
#[derive(Clone, Default)]
pub struct Budget(Arc<AtomicUsize>);

impl Budget {
    fn take(&self, n_bytes: usize) -> bool {
        let fits = |kept: usize| kept.checked_add(n_bytes).filter(|sum| *sum <= KEEP_BYTES);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        if self.is_counted {
            self.budget.0.fetch_sub(self.bytes.bytes().len(), Ordering::Relaxed);
        }
    }
}

impl GpuBuffer {
    /// Host bytes, to be brought over when they are needed.
    pub fn of_host(bytes: HostBytes, budget: Budget) -> GpuBuffer {
        let size_bytes = bytes.bytes().len();
        let host = HostCopy { bytes, budget, is_counted: false };
        let home = Home { host: Some(host), ..Home::default() };
        GpuBuffer { size_bytes, home: Mutex::new(home), pending: Vec::new() }
    }

    /// What a run leaves, maybe with a copy on its way to the host.
    pub fn of_block(block: Arc<Block>, pending: Vec<Arc<Status>>, staged: Option<Staging>) -> GpuBuffer {
        let size_bytes = block.size_bytes();
        GpuBuffer { size_bytes, home: Mutex::new(Home { block: Some(block), staged, host: None }), pending }
    }

    /// Checks that may still fail, or the error of one that has.
    pub fn unresolved(&self) -> Result<impl Iterator<Item = &Arc<Status>>> {
        for status in &self.pending {
            if let Some(Some(error)) = status.known() {
                return Err(error);
            }
        }
        Ok(self.pending.iter().filter(|s| s.known().is_none()))
    }

    /// All checks that it depends on.
    pub fn pending(&self) -> &[Arc<Status>] {
        &self.pending
    }

    /// How many bytes there are.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The block on this device; uploaded, or uploaded again, if it is not there.
    pub fn block(&self, live: &Arc<OpenDevice>) -> Result<Arc<Block>> {
        let mut home = self.home();
        if let Some(block) = home.block.as_ref().filter(|block| block.live().id == live.id) {
            return Ok(block.clone());
        }
        let Some(host) = &mut home.host else { return Err(gone(home.block.as_deref())) };
        let block = live.take_with(host.bytes.bytes())?;
        host.is_counted = host.is_counted || host.budget.take(host.bytes.bytes().len());
        if !host.is_counted {
            home.host = None;
        }
        home.block = Some(block.clone());
        Ok(block)
    }

    /// Where its bytes can be read from.
    pub fn source(&self, out: &mut [u8]) -> Result<Source> {
        let mut home = self.home();
        if let Some(host) = &home.host {
            out.copy_from_slice(&host.bytes.bytes()[..out.len()]);
            return Ok(Source::Host);
        }
        if self.lost_of(&home).is_some() {
            return Err(gone(home.block.as_deref()));
        }
        match (home.staged.take(), &home.block) {
            (Some(staged), _) => Ok(Source::Staged(staged)),
            (None, Some(block)) => Ok(Source::Block(block.clone())),
            (None, None) => Err(gone(None)),
        }
    }

    /// Why it is gone, if it is.
    pub fn lost(&self) -> Option<Error> {
        self.lost_of(&self.home())
    }

    fn lost_of(&self, home: &Home) -> Option<Error> {
        let block = home.block.as_ref().filter(|_| home.host.is_none())?;
        block.live().lost()
    }

    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where bytes can be read from.
pub enum Source {
    /// They were on the host and are read already.
    Host,
    /// They are on their way.
    Staged(Staging),
    Block(Arc<Block>),
}

fn gone(block: Option<&Block>) -> Error {
    let known = block.and_then(|block| block.live().lost());
    known.unwrap_or_else(|| lost("device", "the device was opened anew"))
}
