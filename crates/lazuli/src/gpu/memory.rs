//! Device memory: blocks from a size-classed pool, because making buffers and touching fresh pages costs more than most
//! kernels. A block larger than one buffer may be lies in several. Knows bytes; nothing of what is stored.

use std::cmp::Ordering::{Greater, Less};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use wgpu::BufferUsages;

use super::fault::no_memory;
use super::open_device::OpenDevice;
use super::signal::Signal;
use crate::backend::Counters;
use crate::error::{Error, Result};
use crate::idle::{Excess, IdleBound};
use crate::target::GpuTarget;

/// The smallest block. Bindings of a few bytes are rounded up within it.
const MIN_CLASS: usize = 256;
/// Above this a look at what the system has left is worth its price, where memory is the system's.
const ASK_ABOVE: usize = 64 << 20;
/// Writes go through memory that is freed when the device has taken them over: no more than this at a time.
const WRITE_AT_ONCE: usize = 256 << 20;

/// Buffers that are not in use.
pub struct BufferPool {
    counters: Arc<Counters>,
    idle: Mutex<IdleBuffers>,
    usage: BufferUsages,
    /// What one buffer may hold at most, a multiple of what one binding may span.
    shard_bytes: usize,
}

struct IdleBuffers {
    /// By size, then by number: the same pieces of work get the same blocks again and again. With each the time of its
    /// last use.
    blocks: BTreeMap<(MemoryUse, usize, u64), (u64, Shards)>,
    size_bytes: usize,
    bound: IdleBound,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemoryUse {
    /// Tensors and temporaries.
    Block,
    /// What the host reads.
    Staging,
}

type Shards = SmallVec<[wgpu::Buffer; 1]>;

/// Memory in use by a tensor or a running plan. Gives itself back when dropped.
pub struct Block {
    /// Tells it from every other block there has been.
    pub id: u64,
    live: Arc<OpenDevice>,
    shards: Shards,
    shard_bytes: usize,
    /// What it was allocated as; 0 if it is not the pool's.
    class: usize,
    size_bytes: usize,
}

impl BufferPool {
    /// An empty pool.
    pub fn new(limits: &wgpu::Limits, target: &GpuTarget, counters: Arc<Counters>) -> BufferPool {
        let mut usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        if target.map_results {
            usage |= BufferUsages::MAP_READ;
        }
        let max_buffer = usize::try_from(limits.max_buffer_size).unwrap_or(usize::MAX).min(isize::MAX as usize);
        let shard_bytes = max_buffer / target.max_binding_bytes * target.max_binding_bytes;
        let idle = IdleBuffers { blocks: BTreeMap::new(), size_bytes: 0, bound: IdleBound::new(usize::MAX) };
        BufferPool { counters, idle: Mutex::new(idle), usage, shard_bytes: shard_bytes.max(target.max_binding_bytes) }
    }

    /// What one buffer may hold at most.
    pub fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }

    // Nothing panics while the lock is held, so a poisoned pool is still good.
    fn idle(&self) -> MutexGuard<'_, IdleBuffers> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of this class that is idle, and its number.
    fn reuse(&self, kind: MemoryUse, class: usize, size_bytes: usize) -> Option<(u64, Shards)> {
        let mut idle = self.idle();
        let live = self.counters.bytes_live.load(Ordering::Relaxed) as usize;
        idle.bound.note(class, live.saturating_add(size_bytes));
        let key = idle.blocks.range((kind, class, 0)..=(kind, class, u64::MAX)).next().map(|(key, _)| *key);
        let Some(key) = key else {
            idle.bound.missed(class);
            return None;
        };
        let (_, shards) = idle.blocks.remove(&key)?;
        idle.size_bytes -= class;
        self.gauge(class, Less);
        Some((key.2, shards))
    }

    /// Takes memory back.
    fn give(&self, kind: MemoryUse, class: usize, id: u64, shards: Shards) {
        let mut idle = self.idle();
        idle.size_bytes += class;
        let now = idle.bound.clock();
        idle.blocks.insert((kind, class, id), (now, shards));
        self.gauge(class, Greater);
        let size_bytes = idle.size_bytes;
        if let Some(Excess { before, keep, most }) = idle.bound.excess(size_bytes) {
            self.free_while(&mut idle, |idle, used_at| idle > keep && used_at < before || idle > most);
        }
    }

    /// Frees all idle buffers.
    pub fn trim(&self) {
        let mut idle = self.idle();
        self.free_while(&mut idle, |_, _| true);
        idle.bound.forget();
    }

    /// Frees buffers, the longest unused first, for as long as these idle bytes and this last use are too much.
    fn free_while(&self, idle: &mut IdleBuffers, too_much: impl Fn(usize, u64) -> bool) {
        let mut ages: Vec<_> = idle.blocks.iter().map(|(key, (used_at, _))| (*used_at, *key)).collect();
        ages.sort_unstable();
        for (used_at, key) in ages {
            if !too_much(idle.size_bytes, used_at) {
                return;
            }
            let Some((_, shards)) = idle.blocks.remove(&key) else { return };
            idle.size_bytes -= key.1;
            idle.bound.freed(key.1);
            self.gauge(key.1, Less);
            // Bind groups that are kept for later still name it.
            shards.iter().for_each(wgpu::Buffer::destroy);
        }
    }

    /// Says that more, or less, is idle. The counters are the device's, which may have been lost and opened again.
    fn gauge(&self, class: usize, by: std::cmp::Ordering) {
        let pooled = &self.counters.bytes_pooled;
        match by {
            Greater => pooled.fetch_add(class as u64, Ordering::Relaxed),
            _ => pooled.fetch_sub(class as u64, Ordering::Relaxed),
        };
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.counters.bytes_pooled.fetch_sub(idle.size_bytes as u64, Ordering::Relaxed);
    }
}

impl OpenDevice {
    /// Memory of at least this size, its contents unspecified.
    pub fn take(self: &Arc<OpenDevice>, size_bytes: usize) -> Result<Arc<Block>> {
        let class = class_of(size_bytes, self.pool.shard_bytes);
        let (id, shards) = match self.pool.reuse(MemoryUse::Block, class, size_bytes) {
            Some(found) => found,
            None => (next_id(), self.allocate(class, size_bytes)?),
        };
        self.counters.take_bytes(size_bytes);
        let shard_bytes = self.pool.shard_bytes;
        Ok(Arc::new(Block { id, live: self.clone(), shards, shard_bytes, class, size_bytes }))
    }

    /// An application's own buffer. It is neither pooled nor destroyed here.
    pub fn adopt(self: &Arc<OpenDevice>, buffer: wgpu::Buffer, size_bytes: usize) -> Arc<Block> {
        let shards = SmallVec::from_iter([buffer]);
        Arc::new(Block { id: next_id(), live: self.clone(), shards, shard_bytes: usize::MAX, class: 0, size_bytes })
    }

    /// Memory holding these bytes.
    pub fn take_with(self: &Arc<OpenDevice>, bytes: &[u8]) -> Result<Arc<Block>> {
        let block = self.take(bytes.len())?;
        self.checked("upload", || block.write(bytes))?;
        Counters::count(&self.counters.bytes_uploaded, bytes.len() as u64);
        Ok(block)
    }

    fn allocate(&self, class: usize, size_bytes: usize) -> Result<Shards> {
        match self.try_allocate(class) {
            Err(Error::OutOfMemory(_)) => {
                // What is idle may be what is missing; it is free once the work that used it is done.
                self.pool.trim();
                self.wait()?;
                self.try_allocate(class).map_err(|error| self.refusal(size_bytes, &error))
            }
            done => done,
        }
    }

    fn try_allocate(&self, class: usize) -> Result<Shards> {
        let enough = |left: usize| class <= left;
        if self.target.host_memory && class >= ASK_ABOVE && !crate::cpu::free_bytes().is_none_or(enough) {
            return Err(no_memory("compute", "the system has not that much memory"));
        }
        let mut shards = Shards::new();
        let mut left = class;
        while left > 0 {
            let size = left.min(self.pool.shard_bytes);
            match self.buffer("block", size, self.pool.usage) {
                Ok(buffer) => shards.push(buffer),
                Err(error) => {
                    shards.iter().for_each(wgpu::Buffer::destroy);
                    return Err(error);
                }
            }
            left -= size;
        }
        Ok(shards)
    }

    /// A new buffer.
    pub fn buffer(&self, label: &str, size_bytes: usize, usage: BufferUsages) -> Result<wgpu::Buffer> {
        let size = size_bytes as u64;
        let desc = wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        let buffer = self.checked("compute", || self.device.create_buffer(&desc))?;
        Counters::count(&self.counters.buffers_created, 1);
        Ok(buffer)
    }

    /// Memory that the host can read, for bytes that are copied there.
    pub fn staging(self: &Arc<OpenDevice>, size_bytes: usize) -> Result<Staging> {
        let class = class_of(size_bytes, self.pool.shard_bytes);
        let reused = self
            .pool
            .reuse(MemoryUse::Staging, class, size_bytes)
            .and_then(|(id, mut shards)| Some((id, shards.pop()?)));
        let (id, buffer) = match reused {
            Some(found) => found,
            None => (next_id(), self.buffer("staging", class, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?),
        };
        let (asked, copied_by, was_read) = (OnceLock::new(), OnceLock::new(), AtomicBool::new(false));
        Ok(Staging { live: self.clone(), id, buffer, class, asked, copied_by, was_read })
    }

    fn refusal(&self, size_bytes: usize, error: &Error) -> Error {
        let gib = size_bytes as f64 / (1u64 << 30) as f64;
        let why = &error.fault().message;
        no_memory("compute", format!("{gib:.1} GiB were wanted and could not be had: {why}"))
    }
}

impl Block {
    /// How many bytes were asked for.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The device it is memory of.
    pub fn live(&self) -> &Arc<OpenDevice> {
        &self.live
    }

    /// Whether it is an application's own.
    pub fn is_foreign(&self) -> bool {
        self.class == 0
    }

    /// The buffer that the byte at `start` is in, and where in it.
    pub fn at(&self, start: usize) -> (&wgpu::Buffer, usize) {
        (&self.shards[start / self.shard_bytes], start % self.shard_bytes)
    }

    /// Its buffers, in order.
    pub fn buffers(&self) -> &[wgpu::Buffer] {
        &self.shards
    }

    /// Pieces of the first `n_bytes` that lie in one buffer each: buffer, where in it, where in the whole, length.
    pub fn pieces(&self, n_bytes: usize) -> impl Iterator<Item = (&wgpu::Buffer, usize, usize, usize)> {
        let step = self.shard_bytes.min(WRITE_AT_ONCE);
        (0..n_bytes).step_by(step).map(move |start| {
            let (buffer, at) = self.at(start);
            (buffer, at, start, step.min(n_bytes - start))
        })
    }

    fn write(&self, bytes: &[u8]) {
        let queue = &self.live.queue;
        for (buffer, at, start, len) in self.pieces(bytes.len()) {
            let (whole, rest) = bytes[start..start + len].split_at(len / 4 * 4);
            queue.write_buffer(buffer, at as u64, whole);
            if !rest.is_empty() {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                queue.write_buffer(buffer, (at + whole.len()) as u64, &word);
            }
            if start + len < bytes.len() {
                queue.submit([]);
            }
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.class == 0 {
            return;
        }
        self.live.counters.release_bytes(self.size_bytes);
        if self.live.lost().is_some() {
            return;
        }
        let shards = std::mem::take(&mut self.shards);
        self.live.pool.give(MemoryUse::Block, self.class, self.id, shards);
    }
}

/// Memory that the host can read. Gives itself back when dropped.
pub struct Staging {
    live: Arc<OpenDevice>,
    id: u64,
    buffer: wgpu::Buffer,
    class: usize,
    /// What [`ask`](Staging::ask) is answered.
    asked: OnceLock<Arc<Signal<bool>>>,
    /// The submission that copies to it, if that is known.
    copied_by: OnceLock<wgpu::SubmissionIndex>,
    was_read: AtomicBool,
}

/// Who says whether memory can be read. A question that is dropped is answered too.
struct Answer(Arc<Signal<bool>>);

impl Drop for Answer {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Staging {
    /// The device it is memory of.
    pub fn live(&self) -> &Arc<OpenDevice> {
        &self.live
    }

    /// Notes the submission that copies to it: there may be later ones that nobody who reads it wants to wait for.
    pub fn copied_by(&self, submission: &wgpu::SubmissionIndex) {
        let _ = self.copied_by.set(submission.clone());
    }

    /// Waits until what is copied to it is there.
    pub fn wait(&self) -> Result<()> {
        match self.copied_by.get() {
            Some(submission) => self.live.wait_until(submission),
            None => self.live.wait(),
        }
    }

    /// Where to copy to.
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// Asks, once, for the first bytes, to be read when all that was submitted so far is done; says whether they can
    /// be. Whichever thread finds it done gives the answer, maybe later: who has waited looks with
    /// [`read`](Staging::read).
    pub fn ask(&self, n_bytes: usize) -> Arc<Signal<bool>> {
        let (asked, tell) = self.question();
        self.buffer.map_async(wgpu::MapMode::Read, words(n_bytes), tell);
        asked
    }

    /// The same once the encoder's commands, which somebody submits some day, are done. If they never are, the answer
    /// is no.
    pub fn ask_after(&self, encoder: &wgpu::CommandEncoder, n_bytes: usize) -> Arc<Signal<bool>> {
        let (asked, tell) = self.question();
        encoder.map_buffer_on_submit(&self.buffer, wgpu::MapMode::Read, words(n_bytes), tell);
        asked
    }

    fn question(&self) -> (Arc<Signal<bool>>, impl FnOnce(Result<(), wgpu::BufferAsyncError>) + Send + 'static) {
        let asked = self.asked.get_or_init(Arc::default).clone();
        let answer = Answer(asked.clone());
        (asked, move |mapped| answer.0.set(mapped.is_ok()))
    }

    /// The bytes that were asked for, if they can be read.
    pub fn read(&self, out: &mut [u8]) -> bool {
        match self.buffer.get_mapped_range(words(out.len())) {
            Ok(bytes) => {
                out.copy_from_slice(&bytes[..out.len()]);
                self.was_read.store(true, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.live.lost().is_some() {
            return;
        }
        let was_read = *self.was_read.get_mut();
        match self.asked.get().map(|asked| asked.get()) {
            None => {}
            Some(answer) if was_read || answer == Some(true) => self.buffer.unmap(),
            Some(Some(_)) => return,
            // wgpu keeps note of a question that is taken back, and would answer the next one about this memory with it:
            // too early, or never.
            Some(None) => return self.buffer.unmap(),
        }
        self.live.pool.give(MemoryUse::Staging, self.class, self.id, SmallVec::from_iter([self.buffer.clone()]));
    }
}

/// The first bytes, as mapping takes them.
fn words(n_bytes: usize) -> Range<u64> {
    0..n_bytes.next_multiple_of(4) as u64
}

fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// The size rounded up to one of eight steps between powers of two, so that at most an eighth is wasted; what does not
/// fit into one buffer is rounded less.
fn class_of(size_bytes: usize, shard_bytes: usize) -> usize {
    if size_bytes <= MIN_CLASS {
        return MIN_CLASS;
    }
    let step = (1usize << (size_bytes.ilog2() - 3)).max(MIN_CLASS);
    match size_bytes.checked_next_multiple_of(step) {
        Some(class) if class <= shard_bytes => class,
        _ => size_bytes.checked_next_multiple_of(MIN_CLASS).unwrap_or(usize::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_wastes_at_most_an_eighth() {
        for size in (0..5000).chain([1 << 20, (1 << 20) + 1, (3 << 30) - 7, (1 << 42) + 1]) {
            let class = class_of(size, 1 << 30);
            assert!(class >= size && class - size <= (size / 8).max(MIN_CLASS), "{size} in {class}");
            assert!(class.is_multiple_of(MIN_CLASS));
            assert_eq!(class_of(class, 1 << 30), class);
        }
        assert_eq!(class_of(usize::MAX, 1 << 30), usize::MAX);
    }
}
