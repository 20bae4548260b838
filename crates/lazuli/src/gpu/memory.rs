//! Device memory: blocks from a size-classed pool, because making buffers and touching fresh pages costs more than most
//! kernels. A block larger than one buffer may be lies in several. Knows bytes; nothing of what is stored.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use smallvec::SmallVec;
use wgpu::BufferUsages;

use super::fault::no_memory;
use super::live::Live;
use super::quirks::Quirks;
use super::signal::Signal;
use crate::backend::Counters;
use crate::error::{Error, Result};
use crate::wgsl::Caps;

/// The smallest block. Bindings of a few bytes are rounded up within it.
const MIN_CLASS: usize = 256;
/// Above this a look at what the system has left is worth its price, where memory is the system's.
const ASK_ABOVE: usize = 64 << 20;
/// What the pool keeps at most.
const MAX_IDLE: usize = 1 << 30;
/// Writes go through memory that is freed when the device has taken them over: no more than this at a time.
const WRITE_AT_ONCE: usize = 256 << 20;

/// Buffers that are not in use.
pub struct Pool {
    idle: Mutex<Idle>,
    usage: BufferUsages,
    /// What one buffer may hold at most, a multiple of what one binding may span.
    shard_bytes: usize,
}

#[derive(Default)]
struct Idle {
    /// By size, then by number: the same pieces of work get the same blocks again and again.
    blocks: BTreeMap<(usize, u64), (u64, Shards)>,
    staging: BTreeMap<usize, Vec<wgpu::Buffer>>,
    size_bytes: usize,
    clock: u64,
}

type Shards = SmallVec<[wgpu::Buffer; 1]>;

/// Memory in use by a tensor or a running plan. Gives itself back when dropped.
pub struct Block {
    /// Tells it from every other block there has been.
    pub id: u64,
    live: Arc<Live>,
    shards: Shards,
    shard_bytes: usize,
    /// What it was allocated as; 0 if it is not the pool's.
    class: usize,
    size_bytes: usize,
}

impl Pool {
    /// An empty pool.
    pub fn new(limits: &wgpu::Limits, caps: &Caps, quirks: &Quirks) -> Pool {
        let mut usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        if quirks.map_results {
            usage |= BufferUsages::MAP_READ;
        }
        let max_buffer = usize::try_from(limits.max_buffer_size).unwrap_or(usize::MAX).min(isize::MAX as usize);
        let shard_bytes = max_buffer / caps.max_binding_bytes * caps.max_binding_bytes;
        Pool { idle: Mutex::default(), usage, shard_bytes: shard_bytes.max(caps.max_binding_bytes) }
    }

    /// What one buffer may hold at most.
    pub fn shard_bytes(&self) -> usize {
        self.shard_bytes
    }

    // Nothing panics while the lock is held, so a poisoned pool is still good.
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees idle buffers, the longest unused first, until no more than this is idle.
    pub fn trim(&self, size_bytes: usize) {
        let mut idle = self.idle();
        if size_bytes == 0 {
            idle.staging.values_mut().flat_map(std::mem::take).for_each(|buffer| buffer.destroy());
        }
        while idle.size_bytes > size_bytes {
            let oldest = idle.blocks.iter().min_by_key(|(_, (used_at, _))| *used_at).map(|(key, _)| *key);
            let Some((_, shards)) = oldest.and_then(|key| idle.blocks.remove(&key)) else { return };
            idle.size_bytes -= oldest.map_or(0, |key| key.0);
            // Bind groups that are kept for later still name it.
            shards.iter().for_each(wgpu::Buffer::destroy);
        }
    }
}

impl Live {
    /// Memory of at least this size, its contents unspecified.
    pub fn take(self: &Arc<Live>, size_bytes: usize) -> Result<Arc<Block>> {
        let class = class_of(size_bytes, self.pool.shard_bytes);
        let reused = {
            let mut idle = self.pool.idle();
            let key = idle.blocks.range((class, 0)..=(class, u64::MAX)).next().map(|(key, _)| *key);
            key.and_then(|key| idle.blocks.remove(&key).map(|(_, shards)| (key.1, shards))).inspect(|_| {
                idle.size_bytes -= class;
            })
        };
        let (id, shards) = match reused {
            Some(found) => found,
            None => (next_id(), self.allocate(class, size_bytes)?),
        };
        self.counters.take_bytes(size_bytes);
        let shard_bytes = self.pool.shard_bytes;
        Ok(Arc::new(Block { id, live: self.clone(), shards, shard_bytes, class, size_bytes }))
    }

    /// An application's own buffer. It is neither pooled nor destroyed here.
    pub fn adopt(self: &Arc<Live>, buffer: wgpu::Buffer, size_bytes: usize) -> Arc<Block> {
        let shards = SmallVec::from_iter([buffer]);
        Arc::new(Block { id: next_id(), live: self.clone(), shards, shard_bytes: usize::MAX, class: 0, size_bytes })
    }

    /// Memory holding these bytes.
    pub fn take_with(self: &Arc<Live>, bytes: &[u8]) -> Result<Arc<Block>> {
        let block = self.take(bytes.len())?;
        self.checked("upload", || block.write(bytes))?;
        Counters::count(&self.counters.bytes_uploaded, bytes.len() as u64);
        Ok(block)
    }

    fn allocate(&self, class: usize, size_bytes: usize) -> Result<Shards> {
        match self.try_allocate(class) {
            Err(Error::OutOfMemory(_)) => {
                // What is idle may be what is missing; it is free once the work that used it is done.
                self.pool.trim(0);
                self.wait()?;
                self.try_allocate(class).map_err(|error| self.refusal(size_bytes, &error))
            }
            done => done,
        }
    }

    fn try_allocate(&self, class: usize) -> Result<Shards> {
        let enough = |left: usize| class <= left;
        if self.quirks.host_memory && class >= ASK_ABOVE && !crate::cpu::free_bytes().is_none_or(enough) {
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
    pub fn staging(self: &Arc<Live>, size_bytes: usize) -> Result<Staging> {
        let class = class_of(size_bytes, self.pool.shard_bytes);
        let reused = self.pool.idle().staging.get_mut(&class).and_then(Vec::pop);
        let buffer = match reused {
            Some(buffer) => buffer,
            None => self.buffer("staging", class, BufferUsages::MAP_READ | BufferUsages::COPY_DST)?,
        };
        Ok(Staging { live: self.clone(), buffer, class, asked: OnceLock::new(), was_read: AtomicBool::new(false) })
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
    pub fn live(&self) -> &Arc<Live> {
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
        let mut idle = self.live.pool.idle();
        idle.clock += 1;
        idle.size_bytes += self.class;
        let now = idle.clock;
        idle.blocks.insert((self.class, self.id), (now, shards));
        if idle.size_bytes > MAX_IDLE {
            drop(idle);
            self.live.pool.trim(MAX_IDLE);
        }
    }
}

/// Memory that the host can read. Gives itself back when dropped.
pub struct Staging {
    live: Arc<Live>,
    buffer: wgpu::Buffer,
    class: usize,
    /// What [`ask`](Staging::ask) is answered.
    asked: OnceLock<Arc<Signal<bool>>>,
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
    pub fn live(&self) -> &Arc<Live> {
        &self.live
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
        self.live.pool.idle().staging.entry(self.class).or_default().push(self.buffer.clone());
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
