//! The CPU backend: runs plans on the threads of this machine. Tiles of about a thousand lanes go through a kernel's
//! instructions while they are in the first-level cache. Knows plans, kernels and the loops of rows; no op by name.

mod memory;
mod packed;
mod placement;
mod pool;
mod raw;
mod threads;
mod tasks;
mod nontemporal;
mod convert;

// From a kernel to something that runs.
mod program;
mod runs;
mod interior;
mod split_k;
mod sweeps;
#[cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "its loops are there for x86 alone"))]
mod chain;
#[cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "its loops are there for x86 alone"))]
mod fold;
mod schedule;

// Lanes.
mod load;
mod transpose;
mod tile;
mod exec;

// Forms of kernels.
mod map;
#[cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "products of bytes are there for x86 alone"))]
mod blocks;
mod gemm;
mod byte_gemm;
#[cfg_attr(not(target_arch = "x86_64"), allow(unused, reason = "its loops are there for x86 alone"))]
mod gemv;
mod matmul;
mod attention;
mod reduce;
mod routines;

mod revert;
mod launches;
mod run;

#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use crate::backend::{About, Backend, Counters, HostBytes, Runnable};
use crate::device::{DeviceInfo, DeviceKind};
use crate::error::{Error, Result};
use crate::graph::Buffer;
use crate::interned::{Interned, InternedRef};
use crate::kernel::Kernel;
use crate::ops::{Isa, isa};
use crate::plan::{CompiledKernel, Explain, Plan};
use crate::target::{CpuTarget, Target};
#[cfg(feature = "gpu")]
pub use memory::free_bytes;
use memory::{BlockPool, CpuBuffer};
use packed::PackedOperands;
use program::CpuProgram;
use threads::Workers;
pub use threads::limit as limit_threads;

/// Downloads larger than this are copied by all threads.
const COPY_SHARED: usize = 4 << 20;

/// The processor this program runs on.
pub struct Cpu {
    about: About,
    target: CpuTarget,
    shared: Arc<CpuShared>,
}

/// What plans in flight need of the device.
struct CpuShared {
    counters: Arc<Counters>,
    pool: Arc<BlockPool>,
    packed: PackedOperands,
    threads: Workers,
    programs: Arc<Interned<Arc<Kernel>, CpuProgram>>,
}

/// A program that others may use as well.
type HeldProgram = Arc<InternedRef<Arc<Kernel>, CpuProgram>>;

impl Cpu {
    /// Opens it.
    pub fn new() -> Cpu {
        let threads = Workers::new();
        let target = CpuTarget::new(isa(), threads.count());
        Cpu::with(threads, target)
    }

    fn with(threads: Workers, target: CpuTarget) -> Cpu {
        let counters: Arc<Counters> = Arc::default();
        let driver = match isa() {
            Isa::Baseline => std::env::consts::ARCH,
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        };
        let info = DeviceInfo {
            name: processor().to_string(),
            kind: DeviceKind::Cpu,
            api: "cpu".into(),
            driver: driver.into(),
            parallelism: threads.count(),
            max_buffer_bytes: isize::MAX as usize,
            max_binding_bytes: isize::MAX as usize,
        };
        let pool = Arc::new(BlockPool::new(counters.clone()));
        let packed = PackedOperands::new(pool.clone(), counters.clone());
        let programs = Interned::new(counters.clone(), |counters| &counters.bytes_programs);
        let about = About { info, target: Target::cpu(target.clone()), counters: counters.clone() };
        Cpu { about, target, shared: Arc::new(CpuShared { packed, counters, pool, threads, programs }) }
    }
}

impl CpuShared {
    /// The program of a kernel, compiled if its structure is new. The launch keeps the program in `compiled`, if it is given.
    fn program(&self, kernel: &Kernel, compiled: Option<&CompiledKernel>) -> HeldProgram {
        if let Some(program) = compiled.and_then(CompiledKernel::get) {
            return program;
        }
        let program = self.programs.get(kernel).unwrap_or_else(|| self.compile(kernel));
        compiled.inspect(|compiled| compiled.set(&program));
        program
    }

    fn compile(&self, kernel: &Kernel) -> HeldProgram {
        Counters::count(&self.counters.pipelines_compiled, 1);
        let program = CpuProgram::new(kernel);
        let size_bytes = kernel.size_bytes() + program.size_bytes();
        self.programs.insert(Arc::new(kernel.clone()), program, size_bytes)
    }
}

impl Backend for Cpu {
    fn about(&self) -> &About {
        &self.about
    }

    fn upload(&self, bytes: HostBytes) -> Result<Buffer> {
        let counters = &self.shared.counters;
        Counters::count(&counters.bytes_uploaded, bytes.bytes().len() as u64);
        match CpuBuffer::of_host(bytes, counters) {
            Ok(storage) => Ok(Buffer::new(storage)),
            Err(bytes) => {
                let storage = self.shared.pool.take(bytes.bytes().len())?;
                // SAFETY: new memory of that size, held by nobody else.
                unsafe { storage.ptr().copy_from_nonoverlapping(bytes.bytes().as_ptr(), bytes.bytes().len()) };
                Ok(Buffer::new(storage))
            }
        }
    }

    fn download(&self, buffer: &Buffer, out: &mut [u8]) -> Result<()> {
        let Some(storage) = buffer.storage::<CpuBuffer>() else {
            return Err(Error::device("download", "the memory is another device's"));
        };
        assert!(out.len() <= storage.size_bytes(), "more bytes than the buffer has");
        Counters::count(&self.shared.counters.bytes_downloaded, out.len() as u64);
        // SAFETY: the buffer has that many bytes, and nobody writes them while it is held here.
        let bytes = unsafe { std::slice::from_raw_parts(storage.ptr(), out.len()) };
        if out.len() < COPY_SHARED {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        self.shared.threads.enter(|| {
            const PIECE: usize = COPY_SHARED / 4;
            threads::for_each_chunk(out, PIECE, PIECE, &|i, to| to.copy_from_slice(&bytes[i * PIECE..][..to.len()]));
        });
        Ok(())
    }

    fn prepare(&self, plan: Arc<Plan>) -> Result<Arc<dyn Runnable>> {
        Ok(Arc::new(run::CpuPlan::new(self.shared.clone(), plan, &self.target)?))
    }

    fn describe(&self, plan: &Plan, explain: &mut Explain) {
        // What cannot be scheduled is an error of the evaluation.
        let Ok(schedule) = launches::CpuSchedule::new(plan, &mut compiled, &self.target) else { return };
        explain.add_scratch(&schedule.scratch);
        explain.kept_bytes = schedule.packed_bytes(plan);
        for (kernel, launch) in explain.kernels.iter_mut().zip(&schedule.launches) {
            kernel.schedule = launch.to_string();
        }
    }

    // Every run is done when it returns.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn trim(&self) {
        self.shared.packed.trim();
        self.shared.pool.trim();
    }
}

/// Compiles a kernel for whoever asks, and forgets it.
fn compiled(kernel: &Kernel, _: Option<&CompiledKernel>, use_it: &mut dyn FnMut(&CpuProgram)) {
    use_it(&CpuProgram::new(kernel));
}

/// The schedule of each launch of a plan on some processor, as text.
#[cfg(test)]
pub fn schedule_texts(plan: &Plan, target: &CpuTarget) -> Vec<String> {
    let schedule = launches::CpuSchedule::new(plan, &mut compiled, target).expect("every routine is there");
    schedule.launches.iter().map(ToString::to_string).collect()
}

/// What the processor is called, as far as the system says.
pub fn processor() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("model name"));
        line.map_or("cpu", |line| line.trim_start_matches([' ', '\t', ':']).trim()).to_string()
    })
}
