//! What a device must be able to do: hold memory and run plans. No op is named here, and none needs to be.

use std::any::Any;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::DeviceInfo;
use crate::error::{Error, Fault, Result};
use crate::graph::{Buffer, Buffers, Node, NodeIdx, NodeRef};
use crate::huge_pages;
use crate::plan::{Explain, Plan};
use crate::room::with_room;
use crate::shape::Shape;
use crate::target::Target;

/// A device's side of the engine.
pub trait Backend: Any + Send + Sync {
    /// What it is and what it has done so far.
    fn about(&self) -> &About;
    /// Memory holding these bytes; takes them over where it can.
    fn upload(&self, bytes: HostBytes) -> Result<Buffer>;
    /// The first `out.len()` bytes of a buffer. Says what went wrong with whatever made them.
    fn download(&self, buffer: &Buffer, out: &mut [u8]) -> Result<()>;
    /// The same without blocking, for where no thread can wait.
    fn download_async<'a>(&'a self, buffer: &'a Buffer, out: &'a mut [u8]) -> Pending<'a> {
        Box::pin(std::future::ready(self.download(buffer, out)))
    }
    /// Compiles what of a plan is not compiled yet.
    fn prepare(&self, plan: Arc<Plan>) -> Result<Arc<dyn Runnable>>;
    /// Adds to what is told of a plan what only this device knows: shaders, submits. Compiles nothing.
    fn describe(&self, _plan: &Plan, _explain: &mut Explain) {}
    /// Why this memory is gone, if it is: a device may be lost and opened again.
    fn lost(&self, _buffer: &Buffer) -> Option<Error> {
        None
    }
    /// Waits until all that was started is done, and reports what went wrong meanwhile.
    fn sync(&self) -> Result<()>;
    /// Gives back all memory that nothing uses.
    fn trim(&self);
}

/// What is known of a device.
pub struct About {
    /// What it is called and what it can do.
    pub info: DeviceInfo,
    /// What plans, schedules and shaders depend on.
    pub target: Target,
    /// What it has done so far.
    pub counters: Arc<Counters>,
}

impl dyn Backend + '_ {
    /// What it is called and what it can do.
    pub fn info(&self) -> &DeviceInfo {
        &self.about().info
    }

    /// What plans, schedules and shaders depend on.
    pub fn target(&self) -> &Target {
        &self.about().target
    }

    /// What it has done so far.
    pub fn counters(&self) -> &Counters {
        &self.about().counters
    }
}

/// Something under way on a device.
pub type Pending<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A plan made ready for one device.
pub trait Runnable: Any + Send + Sync {
    /// Runs it. Running out of memory must be found out before anything is written, so that it can be tried again.
    fn run(&self, run: Run<'_>) -> Result<Outcome>;
    /// About how many bytes it occupies, without its kernels, which it may share with others.
    fn size_bytes(&self) -> usize;
}

/// What one run of a plan is given.
#[derive(Clone, Copy)]
// The CPU knows at once and moves nothing.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub struct Run<'a> {
    /// One per input of the plan; donated ones may be overwritten.
    pub inputs: &'a [Buffer],
    /// The nodes that the inputs are.
    pub nodes: InputNodes<'a>,
    /// The plan's constants, as lane bits.
    pub constants: &'a [u32],
    /// For each check of the plan, where it was written: for a device that finds out after the run has returned.
    pub sites: &'a [Site],
    /// Whether the outputs will be read at once, so that a device may bring them along.
    pub read: bool,
    /// Called by a device that computes while it is called, after each stage but the last that has not failed: with the
    /// stage and all outputs of the plan, of which those of the stages so far can be read. A device that computes by itself
    /// is handed all stages at once, and calls nobody.
    pub stage_done: &'a dyn Fn(usize, &[Buffer]),
}

/// The nodes that the inputs of a run are: what a device keeps of a node lives as long as that. None where a plan is run by
/// itself.
#[derive(Clone, Copy, Default)]
pub struct InputNodes<'a> {
    pub nodes: &'a [NodeRef],
    /// For each input, which of the nodes it is.
    pub leaves: &'a [NodeIdx],
}

impl<'a> InputNodes<'a> {
    /// The node that an input is.
    pub fn get(&self, input: usize) -> Option<&'a Node> {
        self.leaves.get(input).map(|leaf| &*self.nodes[*leaf as usize])
    }
}

/// Where the user wrote an op that indexes.
#[derive(Clone, Debug)]
pub struct Site {
    pub op: String,
    pub shape: Shape,
    /// Whether the index is u32: a device may have compared it as i32.
    pub is_unsigned: bool,
    pub at: &'static Location<'static>,
}

impl Site {
    /// The error of an index out of range.
    pub fn error(&self, failed: FailedCheck) -> Error {
        let index = if self.is_unsigned { failed.index as u32 as i64 } else { failed.index };
        let message = format!("index {index} is out of range for an axis of size {}", failed.bound);
        Error::Index(Arc::new(Fault::new(&self.op, message).shapes(&[&self.shape]).at(self.at)))
    }
}

/// What a run leaves.
pub struct Outcome {
    /// One per output of the plan.
    pub outputs: Buffers,
    /// What went wrong, if the device knows already. Outputs that are settled ([`Plan::settled`]) are good all the same.
    pub failed: Option<Failure>,
}

/// What went wrong while kernels ran.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub enum Failure {
    /// The first check that failed.
    Index(FailedCheck),
    /// A custom op.
    Custom(Error),
}

/// An index out of range, found by a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCheck {
    pub check: u32,
    pub index: i64,
    pub bound: usize,
}

/// Bytes on their way to a device: owned, so that a device that can use host memory need not copy them.
pub struct HostBytes {
    owner: Box<dyn AsBytes>,
}

/// Something that owns plain bytes.
trait AsBytes: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: crate::dtype::Element> AsBytes for Vec<T> {
    fn bytes(&self) -> &[u8] {
        debug_assert!(T::SAME_BYTES);
        // SAFETY: elements whose bytes are the stored bytes are plain numbers without padding.
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), std::mem::size_of_val(self.as_slice())) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(T::SAME_BYTES);
        // SAFETY: as above; kernels write only bytes that are values of the stored type (bools are 0 or 1).
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), std::mem::size_of_val(self.as_slice())) }
    }
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct CacheLine(#[allow(dead_code, reason = "read as bytes")] [u8; 64]);

/// Bytes that start on one.
struct CacheLines {
    lines: Vec<CacheLine>,
    len: usize,
}

impl AsBytes for CacheLines {
    fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes, and there are enough of them.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

impl AsBytes for huge_pages::WrittenPart {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl HostBytes {
    /// Takes over a vector of numbers. Types that must be narrowed first are refused by the caller.
    pub fn new<T: crate::dtype::Element>(data: Vec<T>) -> HostBytes {
        HostBytes { owner: Box::new(data) }
    }

    /// A copy of numbers that starts on a cache line, so that no vector of them lies across two.
    #[track_caller]
    pub fn copied<T: crate::dtype::Element>(op: &str, data: &[T]) -> Result<HostBytes> {
        debug_assert!(T::SAME_BYTES);
        // SAFETY: elements whose bytes are the stored bytes are plain numbers without padding.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), std::mem::size_of_val(data)) };
        let (whole, rest) = bytes.as_chunks::<64>();
        let mut lines: Vec<CacheLine> = with_room(op, whole.len() + 1)?;
        huge_pages::ask_for_large(lines.as_ptr().cast(), bytes.len());
        lines.extend(whole.iter().map(|line| CacheLine(*line)));
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        lines.extend((!rest.is_empty()).then_some(CacheLine(last)));
        Ok(HostBytes { owner: Box::new(CacheLines { lines, len: bytes.len() }) })
    }

    /// Zeros to be overwritten, from a cache line on, for something that is kept for long.
    #[track_caller]
    pub fn zeroed(op: &str, n_bytes: usize) -> Result<HostBytes> {
        if let Some(part) = huge_pages::WrittenPart::zeroed(n_bytes) {
            return Ok(HostBytes { owner: Box::new(part) });
        }
        let n_lines = n_bytes.div_ceil(64);
        let mut lines: Vec<CacheLine> = with_room(op, n_lines)?;
        huge_pages::ask_for_large(lines.as_ptr().cast(), n_bytes);
        lines.resize(n_lines, CacheLine([0; 64]));
        Ok(HostBytes { owner: Box::new(CacheLines { lines, len: n_bytes }) })
    }

    /// Takes over bytes, moved if need be to where words may lie.
    #[track_caller]
    pub fn aligned(op: &str, bytes: Vec<u8>) -> Result<HostBytes> {
        if bytes.as_ptr().cast::<u32>().is_aligned() {
            return Ok(HostBytes::new(bytes));
        }
        let (words, rest) = bytes.as_chunks::<4>();
        let mut moved: Vec<u32> = with_room(op, words.len() + 1)?;
        moved.extend(words.iter().map(|word| u32::from_ne_bytes(*word)));
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        if !rest.is_empty() {
            moved.push(u32::from_ne_bytes(last));
        }
        Ok(HostBytes::new(moved))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.owner.bytes()
    }

    /// The bytes, for a device that goes on using them as its own memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.owner.bytes_mut()
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of a device since it was opened or last reset. What is held now, such as `bytes_live` and
        /// `bytes_pooled`, is not reset.
        ///
        /// ```
        /// use lazuli::{Device, Tensor};
        /// let cpu = Device::cpu();
        /// let before = cpu.stats();
        /// Tensor::ones([4], lazuli::DType::F32, &cpu).add(1.0).compute()?;
        /// assert!(cpu.stats().submits > before.submits);
        /// # Ok::<(), lazuli::Error>(())
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats { $($(#[$doc])* pub $name: u64,)* }

        /// The live form of [`Stats`].
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl Counters {
            /// The counters now.
            pub fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Sets all but what is held now back to zero.
            pub fn reset(&self) {
                let counted = [$((stringify!($name), &self.$name)),*];
                for (_, counter) in counted.iter().filter(|(name, _)| !HELD.contains(name)) {
                    counter.store(0, Ordering::Relaxed);
                }
                self.bytes_peak.store(self.bytes_live.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    };
}

/// What is held now; the rest counts what was done.
const HELD: [&str; 6] =
    ["bytes_live", "bytes_pooled", "bytes_plans", "bytes_programs", "bytes_pipelines", "bytes_packed"];

counters! {
    /// Evaluations handed to the device.
    submits,
    /// Kernels run.
    dispatches,
    /// Plans made because no cached one fitted, and none of another size could be filled.
    plans_compiled,
    /// Plans filled: another size of a structure that was planned already.
    plans_filled,
    /// Plans found in the cache.
    plan_hits,
    /// Kernels compiled.
    pipelines_compiled,
    /// Memory blocks allocated because the pool had none that fitted.
    buffers_created,
    /// Bytes held by tensors and running evaluations; what the pool keeps for later is not counted.
    bytes_live,
    /// The most that `bytes_live` has been.
    bytes_peak,
    /// Bytes asked of the pool for what evaluations hold only while they run: the sum of their `peak_temp_bytes`.
    bytes_temporary,
    /// Bytes of memory that the pool keeps for later.
    bytes_pooled,
    /// Bytes of plans that are kept, about, with the structures they are for and what is bound to their kernels.
    bytes_plans,
    /// Bytes of kernels compiled for the CPU, about.
    bytes_programs,
    /// Bytes of kernels compiled for a GPU: an estimate, since drivers do not tell.
    bytes_pipelines,
    /// Bytes of operands of products that are kept packed, because they were used again and again; part of `bytes_live`.
    bytes_packed,
    /// Bytes brought to the device.
    bytes_uploaded,
    /// Bytes read back.
    bytes_downloaded,
}

impl Counters {
    /// Adds one.
    pub fn count(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// What all compiled kernels take.
    pub fn compiled_bytes(&self) -> usize {
        (self.bytes_programs.load(Ordering::Relaxed) + self.bytes_pipelines.load(Ordering::Relaxed)) as usize
    }

    /// Notes that memory was taken into use.
    pub fn take_bytes(&self, n: usize) {
        let live = self.bytes_live.fetch_add(n as u64, Ordering::Relaxed) + n as u64;
        self.bytes_peak.fetch_max(live, Ordering::Relaxed);
    }

    /// Notes that memory was given back.
    pub fn release_bytes(&self, n: usize) {
        self.bytes_live.fetch_sub(n as u64, Ordering::Relaxed);
    }
}
