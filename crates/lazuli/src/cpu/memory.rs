//! Memory for tensors: aligned blocks from a size-classed pool, because fresh pages cost more than most kernels.
//! Knows bytes and counters; nothing of what is stored.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Counters, HostBytes};
use crate::error::{Error, Result};
use crate::pages;

/// Blocks start on a cache line, large ones on a huge page.
const ALIGN: usize = 64;
/// Above this a look at what the system has left is worth its price.
const ASK_ABOVE: usize = 64 << 20;
/// What the pool keeps at most, unless an eighth of the machine is less.
const MAX_IDLE: usize = 1 << 30;

/// Blocks that are not in use, by size class.
pub struct Pool {
    counters: Arc<Counters>,
    idle: Mutex<Idle>,
    max_idle: usize,
    total: usize,
}

#[derive(Default)]
struct Idle {
    classes: BTreeMap<usize, Class>,
    size_bytes: usize,
    clock: u64,
}

#[derive(Default)]
struct Class {
    blocks: Vec<Block>,
    used_at: u64,
}

/// A raw block; its size class says how it was allocated.
struct Block(NonNull<u8>);

// SAFETY: a block is plain memory that whoever holds it owns alone.
unsafe impl Send for Block {}

/// Bytes in use by a tensor or a running plan. Gives itself back when dropped.
pub struct Storage {
    ptr: NonNull<u8>,
    size_bytes: usize,
    owner: Owner,
}

enum Owner {
    Pool(Arc<Pool>),
    // Kept for its memory alone.
    Host(#[allow(dead_code)] HostBytes, Arc<Counters>),
}

// SAFETY: reads are shared; writes happen only while a run holds the storage alone (outputs, temporaries, donated
// inputs), and to disjoint elements.
unsafe impl Send for Storage {}
unsafe impl Sync for Storage {}

impl Storage {
    /// Where the bytes start, for kernels.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// How many bytes there are.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Uses a host vector where it lies, if kernels can (every element on its own boundary); else gives it back.
    pub fn of_host(mut bytes: HostBytes, counters: &Arc<Counters>) -> Result<Storage, HostBytes> {
        let slice = bytes.bytes_mut();
        let size_bytes = slice.len();
        let ptr = NonNull::from(slice).cast::<u8>();
        if !(ptr.as_ptr() as usize).is_multiple_of(4) {
            return Err(bytes);
        }
        counters.take_bytes(size_bytes);
        Ok(Storage { ptr, size_bytes, owner: Owner::Host(bytes, counters.clone()) })
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        match &self.owner {
            Owner::Pool(pool) => {
                pool.counters.release_bytes(self.size_bytes);
                pool.give(Block(self.ptr), class_of(self.size_bytes));
            }
            Owner::Host(_, counters) => counters.release_bytes(self.size_bytes),
        }
    }
}

impl Pool {
    /// An empty pool.
    pub fn new(counters: Arc<Counters>) -> Pool {
        let total = system_bytes("MemTotal:").unwrap_or(usize::MAX);
        Pool { counters, idle: Mutex::default(), max_idle: MAX_IDLE.min(total / 8), total }
    }

    /// Memory of at least this size, its contents unspecified.
    pub fn take(self: &Arc<Pool>, size_bytes: usize) -> Result<Storage> {
        let class = class_of(size_bytes);
        let ptr = match (class, self.reuse(class)) {
            (0, _) => NonNull::without_provenance(ALIGN.try_into().expect("not zero")),
            (_, Some(block)) => block.0,
            (_, None) => self.allocate(class).ok_or_else(|| self.refusal(size_bytes))?,
        };
        self.counters.take_bytes(size_bytes);
        Ok(Storage { ptr, size_bytes, owner: Owner::Pool(self.clone()) })
    }

    fn reuse(&self, class: usize) -> Option<Block> {
        let mut idle = self.idle();
        let block = idle.classes.get_mut(&class)?.blocks.pop()?;
        idle.size_bytes -= class;
        Some(block)
    }

    /// Linux hands out more than it has and kills the process later: this asks first, and lets go of what is idle.
    fn has(&self, size_bytes: usize) -> bool {
        let lacks = || system_bytes("MemAvailable:").is_some_and(|left| size_bytes > left);
        if size_bytes > self.total || isize::try_from(size_bytes).is_err() {
            return false;
        }
        if size_bytes >= ASK_ABOVE && lacks() {
            self.trim(0);
            return !lacks();
        }
        true
    }

    fn allocate(&self, class: usize) -> Option<NonNull<u8>> {
        if !self.has(class) {
            return None;
        }
        let layout = layout_of(class);
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc(layout) }).or_else(|| {
            self.trim(0);
            // SAFETY: as above.
            NonNull::new(unsafe { alloc(layout) })
        })?;
        pages::ask_for_large(block.as_ptr(), class);
        Counters::count(&self.counters.buffers_created, 1);
        Some(block)
    }

    fn refusal(&self, size_bytes: usize) -> Error {
        let gib = |n: usize| n as f64 / (1u64 << 30) as f64;
        let of = match self.total {
            usize::MAX => String::new(),
            total => format!(" of {:.1} GiB in this machine", gib(total)),
        };
        Error::out_of_memory("compute", format!("{:.1} GiB{of} were wanted and could not be had", gib(size_bytes)))
    }

    fn give(&self, block: Block, class: usize) {
        if class == 0 {
            return;
        }
        let mut idle = self.idle();
        idle.clock += 1;
        idle.size_bytes += class;
        let now = idle.clock;
        let entry = idle.classes.entry(class).or_default();
        entry.blocks.push(block);
        entry.used_at = now;
        if idle.size_bytes > self.max_idle {
            drop(idle);
            self.trim(self.max_idle);
        }
    }

    /// Frees idle blocks, those of the longest unused class first, until no more than this is idle.
    fn trim(&self, size_bytes: usize) {
        let mut idle = self.idle();
        while idle.size_bytes > size_bytes {
            let oldest = idle.classes.iter().filter(|c| !c.1.blocks.is_empty()).min_by_key(|c| c.1.used_at);
            let class = *oldest.expect("idle bytes are in some class").0;
            let block = idle.classes.get_mut(&class).and_then(|c| c.blocks.pop()).expect("not empty");
            idle.size_bytes -= class;
            // SAFETY: allocated with this layout, and in nobody's hands.
            unsafe { dealloc(block.0.as_ptr(), layout_of(class)) };
        }
    }

    // Nothing panics while the lock is held, so a poisoned pool is still good.
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim(0);
    }
}

/// The size rounded up to one of eight steps between powers of two, so that at most an eighth is wasted.
fn class_of(size_bytes: usize) -> usize {
    if size_bytes <= 8 * ALIGN {
        return size_bytes.next_multiple_of(ALIGN);
    }
    let step = 1usize << (size_bytes.ilog2() - 3);
    size_bytes.checked_next_multiple_of(step).unwrap_or(usize::MAX)
}

fn layout_of(class: usize) -> Layout {
    let align = if class >= pages::LARGE { pages::PAGE } else { ALIGN };
    Layout::from_size_align(class, align).expect("sizes were checked when the block was allocated")
}

/// Bytes that the system could still hand out, if it says.
#[cfg(feature = "gpu")]
pub fn free_bytes() -> Option<usize> {
    system_bytes("MemAvailable:")
}

/// A line of what the system says of its memory, in bytes.
fn system_bytes(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> Arc<Pool> {
        Arc::new(Pool::new(Arc::default()))
    }

    #[test]
    fn a_block_given_back_is_used_again() {
        let pool = pool();
        drop(pool.take(1000).unwrap());
        let again = pool.take(990).unwrap();
        assert_eq!(again.ptr() as usize % ALIGN, 0);
        let stats = pool.counters.read();
        assert_eq!((stats.buffers_created, stats.bytes_live, stats.bytes_peak), (1, 990, 1000));
    }

    #[test]
    fn a_class_wastes_at_most_an_eighth() {
        for size in (0..5000).chain([1 << 20, (1 << 20) + 1, (3 << 30) - 7]) {
            let class = class_of(size);
            assert!(class >= size && class - size <= (size / 8).max(ALIGN), "{size} in {class}");
            assert_eq!(class_of(class), class);
        }
    }

    #[test]
    fn more_than_the_machine_has_is_refused() {
        let pool = pool();
        for size in [1 << 42, isize::MAX as usize, usize::MAX] {
            let refused = pool.take(size).err().unwrap();
            assert!(matches!(refused, Error::OutOfMemory(_)), "{refused}");
        }
        assert_eq!(pool.counters.read().bytes_live, 0);
    }

    #[test]
    fn nothing_needs_no_memory() {
        let pool = pool();
        assert_eq!(pool.take(0).unwrap().size_bytes(), 0);
        assert_eq!(pool.counters.read().buffers_created, 0);
    }
}
