//! Memory for tensors: aligned blocks from a size-classed pool, because fresh pages cost more than most kernels.
//! Knows bytes and counters; nothing of what is stored.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Counters, HostBytes};
use crate::error::{Error, Result};
use crate::huge_pages::{self, SlabPart, Slabs};
use crate::idle::{Excess, IdleBound};

/// Blocks start on a cache line, large ones on a large page.
const ALIGN: usize = 64;
/// From this size on blocks that are too small for large pages of their own share some: with the keys and values of a language
/// model's layers (60 tensors of 1.6 MB) on large pages, a token after 2,000 others took 6.2 to 6.4 instead of 6.7 to 7.6 ms on one
/// thread of a Zen 5, and 4.4 to 5.0 instead of 5.0 to 5.4 on two.
const SHARED: usize = 64 << 10;
/// Above this a look at what the system has left is worth its price.
const ASK_ABOVE: usize = 64 << 20;

/// Blocks that are not in use, by size class.
pub struct BlockPool {
    counters: Arc<Counters>,
    idle: Mutex<IdleBlocks>,
    slabs: Slabs,
    total: usize,
}

struct IdleBlocks {
    /// Blocks of each class with the time of their last use, the latest last.
    classes: BTreeMap<usize, VecDeque<(u64, RawBlock)>>,
    size_bytes: usize,
    bound: IdleBound,
}

/// A raw block: part of a slab, or else allocated as its size class says.
struct RawBlock {
    start: NonNull<u8>,
    part: Option<SlabPart>,
}

// SAFETY: a block is plain memory that whoever holds it owns alone.
unsafe impl Send for RawBlock {}

/// Bytes in use by a tensor or a running plan. Gives itself back when dropped.
pub struct CpuBuffer {
    ptr: NonNull<u8>,
    size_bytes: usize,
    /// The slab that it is part of, if it is.
    part: Option<SlabPart>,
    owner: BlockOwner,
}

enum BlockOwner {
    Pool(Arc<BlockPool>),
    /// The same, for what is not counted as in use.
    Uncounted(Arc<BlockPool>),
    // Kept for its memory alone.
    Host(#[allow(dead_code)] HostBytes, Arc<Counters>),
}

// SAFETY: the bytes are plain memory, and no reference to them is handed out. Whoever reads them holds the storage or a
// `Buffer` of it. Only a run writes: to storages that it has just taken from the pool and that nobody else knows yet (outputs,
// temporaries), and to inputs that are donated. Of a donated input no other thread has the node or the buffer, nor can it get
// either before the run is over, and what others have read of it happened before (docs/decisions/donation-is-safe.md).
// Threads of one run write to disjoint elements.
unsafe impl Send for CpuBuffer {}
// SAFETY: as above.
unsafe impl Sync for CpuBuffer {}

impl CpuBuffer {
    /// Where the bytes start, for kernels.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// How many bytes there are.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Uses a host vector where it lies, if kernels can (every element on its own boundary); else gives it back.
    pub fn of_host(mut bytes: HostBytes, counters: &Arc<Counters>) -> Result<CpuBuffer, HostBytes> {
        let slice = bytes.bytes_mut();
        let size_bytes = slice.len();
        let ptr = NonNull::from(slice).cast::<u8>();
        if !(ptr.as_ptr() as usize).is_multiple_of(4) {
            return Err(bytes);
        }
        counters.take_bytes(size_bytes);
        Ok(CpuBuffer { ptr, size_bytes, part: None, owner: BlockOwner::Host(bytes, counters.clone()) })
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        let block = RawBlock { start: self.ptr, part: self.part.take() };
        match &self.owner {
            BlockOwner::Pool(pool) => {
                pool.counters.release_bytes(self.size_bytes);
                pool.give(block, class_of(self.size_bytes));
            }
            BlockOwner::Uncounted(pool) => pool.give(block, class_of(self.size_bytes)),
            BlockOwner::Host(_, counters) => counters.release_bytes(self.size_bytes),
        }
    }
}

impl BlockPool {
    /// An empty pool.
    pub fn new(counters: Arc<Counters>) -> BlockPool {
        let total = system_bytes("MemTotal:").unwrap_or(usize::MAX);
        // An eighth of the machine at most.
        let idle = IdleBlocks { classes: BTreeMap::new(), size_bytes: 0, bound: IdleBound::new(total / 8) };
        BlockPool { counters, idle: Mutex::new(idle), slabs: Slabs::new(), total }
    }

    /// Bytes of memory that the machine has.
    pub fn total_bytes(&self) -> usize {
        self.total
    }

    /// Memory of at least this size, its contents unspecified.
    pub fn take(self: &Arc<BlockPool>, size_bytes: usize) -> Result<CpuBuffer> {
        let RawBlock { start: ptr, part } = self.block(size_bytes)?;
        self.counters.take_bytes(size_bytes);
        Ok(CpuBuffer { ptr, size_bytes, part, owner: BlockOwner::Pool(self.clone()) })
    }

    /// The same for threads to work in. It is not counted as in use: there is as much of it for large tensors as for
    /// small ones.
    pub fn take_uncounted(self: &Arc<BlockPool>, size_bytes: usize) -> Result<CpuBuffer> {
        let RawBlock { start: ptr, part } = self.block(size_bytes)?;
        Ok(CpuBuffer { ptr, size_bytes, part, owner: BlockOwner::Uncounted(self.clone()) })
    }

    fn block(&self, size_bytes: usize) -> Result<RawBlock> {
        let class = class_of(size_bytes);
        if class == 0 {
            let start = NonNull::without_provenance(ALIGN.try_into().expect("not zero"));
            return Ok(RawBlock { start, part: None });
        }
        match self.reuse(class, size_bytes) {
            Some(block) => Ok(block),
            None => self.allocate(class).ok_or_else(|| self.refusal(size_bytes)),
        }
    }

    fn reuse(&self, class: usize, size_bytes: usize) -> Option<RawBlock> {
        let mut idle = self.idle();
        let live = self.counters.bytes_live.load(Ordering::Relaxed) as usize;
        idle.bound.note(class, live.saturating_add(size_bytes));
        let Some((_, block)) = idle.classes.get_mut(&class).and_then(VecDeque::pop_back) else {
            idle.bound.missed(class);
            return None;
        };
        idle.size_bytes -= class;
        self.gauge(&idle);
        Some(block)
    }

    /// Says how much is idle.
    fn gauge(&self, idle: &IdleBlocks) {
        self.counters.bytes_pooled.store(idle.size_bytes as u64, Ordering::Relaxed);
    }

    /// Linux hands out more than it has and kills the process later: this asks first, and lets go of what is idle.
    fn has(&self, size_bytes: usize) -> bool {
        let lacks = || system_bytes("MemAvailable:").is_some_and(|left| size_bytes > left);
        if size_bytes > self.total || isize::try_from(size_bytes).is_err() {
            return false;
        }
        if size_bytes >= ASK_ABOVE && lacks() {
            self.trim();
            return !lacks();
        }
        true
    }

    fn allocate(&self, class: usize) -> Option<RawBlock> {
        if !self.has(class) {
            return None;
        }
        if class >= SHARED
            && let Some(part) = self.slabs.part(class)
        {
            Counters::count(&self.counters.buffers_created, 1);
            return Some(RawBlock { start: part.start(), part: Some(part) });
        }
        let layout = layout_of(class);
        // SAFETY: the layout is not empty.
        let block = NonNull::new(unsafe { alloc(layout) }).or_else(|| {
            self.trim();
            // SAFETY: as above.
            NonNull::new(unsafe { alloc(layout) })
        })?;
        huge_pages::ask_for_large(block.as_ptr(), class);
        Counters::count(&self.counters.buffers_created, 1);
        Some(RawBlock { start: block, part: None })
    }

    fn refusal(&self, size_bytes: usize) -> Error {
        let gib = |n: usize| n as f64 / (1u64 << 30) as f64;
        let of = match self.total {
            usize::MAX => String::new(),
            total => format!(" of {:.1} GiB in this machine", gib(total)),
        };
        Error::out_of_memory("compute", format!("{:.1} GiB{of} were wanted and could not be had", gib(size_bytes)))
    }

    fn give(&self, block: RawBlock, class: usize) {
        if class == 0 {
            return;
        }
        let mut idle = self.idle();
        idle.size_bytes += class;
        let now = idle.bound.clock();
        idle.classes.entry(class).or_default().push_back((now, block));
        let size_bytes = idle.size_bytes;
        if let Some(Excess { before, keep, most }) = idle.bound.excess(size_bytes) {
            idle.free_while(|idle, used_at| idle > keep && used_at < before || idle > most);
        }
        self.gauge(&idle);
    }

    /// Frees all idle blocks.
    pub fn trim(&self) {
        let mut idle = self.idle();
        idle.free_while(|_, _| true);
        idle.classes.clear();
        idle.bound.forget();
        self.gauge(&idle);
    }

    // Nothing panics while the lock is held, so a poisoned pool is still good.
    fn idle(&self) -> MutexGuard<'_, IdleBlocks> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IdleBlocks {
    /// Frees blocks, the longest unused first, for as long as these idle bytes and this last use are too much.
    fn free_while(&mut self, too_much: impl Fn(usize, u64) -> bool) {
        let oldest = |classes: &BTreeMap<usize, VecDeque<(u64, RawBlock)>>| {
            let first = |(class, blocks): (&usize, &VecDeque<(u64, RawBlock)>)| Some((blocks.front()?.0, *class));
            classes.iter().filter_map(first).min()
        };
        while let Some((used_at, class)) =
            oldest(&self.classes).filter(|(used_at, _)| too_much(self.size_bytes, *used_at))
        {
            let Some((_, block)) = self.classes.get_mut(&class).and_then(VecDeque::pop_front) else { return };
            debug_assert!(self.size_bytes >= class && used_at <= self.bound.clock());
            self.size_bytes -= class;
            self.bound.freed(class);
            if block.part.is_none() {
                // SAFETY: allocated with this layout, and in nobody's hands.
                unsafe { dealloc(block.start.as_ptr(), layout_of(class)) };
            }
        }
    }
}

impl Drop for BlockPool {
    fn drop(&mut self) {
        self.trim();
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
    let align = if class >= huge_pages::LARGE { huge_pages::PAGE } else { ALIGN };
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

    fn pool() -> Arc<BlockPool> {
        Arc::new(BlockPool::new(Arc::default()))
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
    #[cfg(target_os = "linux")]
    fn blocks_of_a_middling_size_are_side_by_side_on_large_pages() {
        let pool = pool();
        let blocks: Vec<CpuBuffer> = (0..6).map(|_| pool.take(1_572_864).unwrap()).collect();
        for pair in blocks.windows(2) {
            assert_eq!(pair[1].ptr() as usize - pair[0].ptr() as usize, 1_572_864);
        }
        assert_eq!(blocks[0].ptr() as usize % huge_pages::PAGE, 0);
        // A block that is given back serves again, and the others keep what they have.
        for (i, block) in blocks.iter().enumerate() {
            // SAFETY: the block has so many bytes.
            unsafe { block.ptr().write_bytes(i as u8, block.size_bytes()) };
        }
        let mut blocks = blocks;
        let place = blocks.remove(2).ptr();
        assert_eq!(pool.take(1_572_000).unwrap().ptr(), place);
        pool.trim();
        for (i, block) in [0u8, 1, 3, 4, 5].into_iter().zip(&blocks) {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(block.ptr(), block.size_bytes()) };
            assert!(bytes.iter().all(|byte| *byte == i));
        }
        assert_eq!(pool.counters.read().buffers_created, 6);
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
    fn a_tensor_that_grows_leaves_little_behind() {
        let pool = pool();
        // A tensor that grows: each step holds the old one and the new one.
        let mut held = pool.take(1 << 20).unwrap();
        for i in 2..=160usize {
            held = pool.take(i << 20).unwrap();
        }
        let stats = pool.counters.read();
        assert_eq!(stats.bytes_live, 160 << 20);
        assert!(stats.bytes_pooled <= 320 << 20, "{stats:?}");
        drop(held);
        pool.trim();
        assert_eq!(pool.counters.read().bytes_pooled, 0);
    }

    #[test]
    fn a_loop_of_several_phases_allocates_no_more_before_long() {
        let pool = pool();
        let mut n_created = Vec::new();
        for _ in 0..12 {
            for size in [30 << 20, 25 << 20, 17 << 20, 20 << 20, 3 << 20] {
                let taken: Vec<CpuBuffer> = (0..3).map(|_| pool.take(size).unwrap()).collect();
                drop(taken);
            }
            n_created.push(pool.counters.read().buffers_created);
        }
        assert_eq!(n_created[6], n_created[11], "{n_created:?}");
    }

    #[test]
    fn nothing_needs_no_memory() {
        let pool = pool();
        assert_eq!(pool.take(0).unwrap().size_bytes(), 0);
        assert_eq!(pool.counters.read().buffers_created, 0);
    }
}
