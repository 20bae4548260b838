//! What is known of a device, in one record: everything that a plan, a schedule or a shader's text depends on beside the
//! graph. A device makes its own when it is opened; presets have a name and need no device, so that plans, schedules and
//! texts for any of them are tested anywhere. Knows no backend and no API.

mod amx;
#[cfg(feature = "gpu")]
pub mod attention_tiles;
#[cfg(feature = "gpu")]
mod gpu;
#[cfg(test)]
mod presets;
#[cfg(feature = "gpu")]
pub mod products;
mod properties;
#[cfg(feature = "gpu")]
mod quirks;
#[cfg(test)]
mod tests;
#[cfg(feature = "gpu")]
pub mod variants;

pub use amx::AmxUse;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
pub use amx::is_permitted as amx_is_permitted;
#[cfg(feature = "gpu")]
pub use gpu::{Folds, GpuTarget, MAX_ELEMS, Pace, Threads};
#[cfg(feature = "gpu")]
pub use quirks::quirks;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::log;
use crate::ops::{Isa, has_vnni};

/// What is known of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// What the planner keeps to.
    pub limits: Limits,
    /// What runs the plan.
    pub machine: Machine,
}

/// What runs a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    Cpu(CpuTarget),
    #[cfg(feature = "gpu")]
    Gpu(GpuTarget),
}

/// What is known of a processor.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuTarget {
    /// The instructions that kernels may use.
    pub isa: Isa,
    /// How many threads share a launch. It changes who does what, never in which order something is summed up.
    pub threads: usize,
    pub caches: Caches,
    /// Whether it has products of bytes that are summed up four at a time (VNNI), beside AVX-512.
    pub has_vnni: bool,
    /// Digits of eight bits as which floats are multiplied with blocks, one to three: three are as exact as f32.
    pub n_digits: usize,
    /// Which products of floats may go through AMX.
    pub amx: AmxUse,
}

/// Sizes of caches in bytes. They are not asked of the machine: tiles, and with them the order of sums, should not
/// depend on which machine of a kind it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Caches {
    /// Of one core, first level: what a tile's values stay in.
    pub l1_bytes: usize,
    /// What a result must exceed to be written past all of them.
    pub all_bytes: usize,
}

/// What a device can take, as the planner needs to know it. Everything about a device that changes a plan is here.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Inputs plus outputs that one kernel may bind.
    pub max_bindings: usize,
    /// Instructions that one kernel may have.
    pub max_insts: usize,
    /// A reduction longer than this is cut into pieces, if there are fewer than `min_rows` of them side by side.
    pub max_reduce: usize,
    /// How long such pieces are at most.
    pub max_piece: usize,
    /// Sums of columns and their like that are longer than this are cut into pieces as well, where nothing else goes
    /// with them: pages that few columns touch are forgotten before the next columns do.
    pub max_column: usize,
    /// How many outer indices keep the device busy.
    pub min_rows: usize,
    /// The panels in which the right operand of a product of floats may lie.
    pub panels: Option<PanelWidths>,
    /// An operand of a product with at most this many elements may be read by lists of axes: a reshape of windows or of a
    /// transpose is then not copied. Larger ones may have to be cut for bindings, which takes plain strides.
    pub max_list_elems: usize,
    /// Whether products of integers read bytes as they are stored: others read them as large integers.
    pub products_of_bytes: bool,
    /// The most elements of a made operand, which is a row or a column; 0: the device's kernels read only stored operands. Only for
    /// devices whose memory is never cut for bindings.
    pub max_made_elems: usize,
    /// How long the sums and the results of a chained product may be, so that what is packed of it stays in a second-level
    /// cache; 0: the device has no such kernel.
    pub max_chained_depth: usize,
    /// How many elements what a chained product reads may have: it is never cut for bindings.
    pub max_chained_elems: usize,
    /// Bytes that one binding may span. Memory that is larger is bound in windows of exactly this size, the last one shorter.
    pub max_binding_bytes: usize,
    /// Windows of all its memory that one launch may bind; words of checks count as one.
    pub max_windows: usize,
    /// Elements of an index space that one launch counts; of one piece of memory it tells twice as many apart.
    pub max_elems: usize,
    /// Loop iterations that one invocation may make, and how many invocations may share a row of a reduction.
    pub max_iterations: usize,
    pub max_lanes: usize,
    /// Whether a custom op may fail while it runs: on the CPU it is the user's code, which may panic.
    pub custom_may_fail: bool,
    /// Off: every op is a kernel of its own, for comparison.
    pub fuse: bool,
}

/// How many columns a panel may have: multiples of a unit, up to a size that is best.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PanelWidths {
    pub unit: usize,
    pub best: usize,
}

/// Loop iterations of one invocation from which on it can make a chained product.
#[cfg(feature = "gpu")]
const MIN_CHAINED_ITERATIONS: usize = 4096;

/// The most elements of a made operand on a processor: 256 KiB of f32, so that the product finds them in a second-level cache.
const MAX_MADE_ELEMS: usize = 1 << 16;

impl Target {
    /// A processor of which this is known.
    pub fn cpu(cpu: CpuTarget) -> Target {
        let limits = Limits {
            max_bindings: 65535,
            max_insts: 512,
            max_reduce: 65536,
            max_piece: 65536,
            max_column: usize::MAX,
            min_rows: 64,
            panels: Some(PanelWidths::of_isa(cpu.isa)),
            max_list_elems: usize::MAX,
            products_of_bytes: true,
            max_made_elems: MAX_MADE_ELEMS,
            max_chained_depth: 512,
            max_chained_elems: usize::MAX,
            max_binding_bytes: usize::MAX,
            max_windows: usize::MAX,
            max_elems: usize::MAX,
            max_iterations: usize::MAX,
            max_lanes: 1,
            custom_may_fail: true,
            fuse: true,
        };
        Target { limits, machine: Machine::Cpu(cpu) }
    }

    /// A GPU of which this is known.
    #[cfg(feature = "gpu")]
    pub fn gpu(gpu: GpuTarget) -> Target {
        // A chained product needs workgroup memory, which is slow in drivers that run on the CPU, or subgroups.
        // Without thousands of loop iterations, not even a block of it could be done.
        let has_chained = (gpu.style == Threads::Cooperative || gpu.subgroup.is_some())
            && gpu.max_iterations >= MIN_CHAINED_ITERATIONS;
        // Two bindings are left for scratch memory and checks.
        let shared = Limits {
            max_bindings: gpu.max_bindings.saturating_sub(2).max(4),
            max_insts: 512,
            max_reduce: 16384,
            max_piece: 16384,
            max_column: usize::MAX,
            min_rows: 1024,
            panels: None,
            // What fits into a binding is never cut.
            max_list_elems: gpu.max_binding_bytes / 4,
            products_of_bytes: false,
            max_made_elems: 0,
            max_chained_depth: if has_chained { 512 } else { 0 },
            // What fits into a binding is never cut.
            max_chained_elems: gpu.max_binding_bytes / 4,
            max_binding_bytes: usize::MAX,
            max_windows: usize::MAX,
            max_elems: usize::MAX,
            max_iterations: usize::MAX,
            max_lanes: 1,
            custom_may_fail: false,
            fuse: true,
        };
        let limits = match gpu.style {
            Threads::Independent => Limits { max_piece: 1024, max_column: 256, min_rows: 256, ..shared },
            Threads::Cooperative => shared,
        };
        Target { limits: limits.within(&gpu), machine: Machine::Gpu(gpu) }
    }
}

#[cfg(feature = "gpu")]
impl Limits {
    /// The same, with what one launch may take on a GPU.
    pub fn within(self, gpu: &GpuTarget) -> Limits {
        Limits {
            max_binding_bytes: gpu.max_binding_bytes,
            max_windows: gpu.max_bindings,
            max_elems: MAX_ELEMS,
            max_iterations: gpu.max_iterations,
            max_lanes: gpu.max_reduce_lanes(),
            ..self
        }
    }
}

/// The most digits that a float is taken apart into, as exact as f32.
const MAX_DIGITS: usize = 3;

/// How many they are unless the environment asks for another number.
static DIGITS: AtomicUsize = AtomicUsize::new(MAX_DIGITS);

/// Processors opened from now on take floats apart into this many digits, unless the environment asks for another number. False if
/// there is no such form.
pub fn limit_digits(n_digits: usize) -> bool {
    let is_known = (1..=MAX_DIGITS).contains(&n_digits);
    if is_known {
        DIGITS.store(n_digits, Ordering::Relaxed);
    }
    is_known
}

impl CpuTarget {
    /// A processor with these instructions, on which so many threads share the work.
    pub fn new(isa: Isa, threads: usize) -> CpuTarget {
        // A first-level cache of 32 KiB is the least to be expected. In tests small results are written past the caches, too,
        // so that they see it done.
        let all_bytes = if cfg!(test) { 1 << 14 } else { 12 << 20 };
        let has_vnni = isa == Isa::Avx512 && has_vnni();
        let n_digits = log::choice("LAZULI_DIGITS", &[("1", 1), ("2", 2), ("3", 3)]);
        let n_digits = n_digits.unwrap_or_else(|| DIGITS.load(Ordering::Relaxed));
        CpuTarget {
            isa,
            threads,
            caches: Caches { l1_bytes: 32 << 10, all_bytes },
            has_vnni,
            n_digits,
            amx: AmxUse::of_machine(isa),
        }
    }

    /// Lanes of a vector of floats.
    pub fn n_lanes(&self) -> usize {
        PanelWidths::of_isa(self.isa).unit
    }

    /// Rows and columns of the tile of a product's results that is summed up in registers, where the right operand is read in
    /// place or from packed panels.
    pub fn register_tile(&self, in_place: bool) -> [usize; 2] {
        let PanelWidths { unit, best } = PanelWidths::of_isa(self.isa);
        let rows = match (self.isa, in_place) {
            (Isa::Avx512, true) => 8,
            (Isa::Avx512, false) => 6,
            (Isa::Baseline, _) if cfg!(target_arch = "aarch64") => 8,
            _ => 4,
        };
        [rows, if in_place { 3 * unit } else { best }]
    }
}

impl PanelWidths {
    /// The panels that the micro-kernels of these instructions read: vectors, up to three or four of them.
    pub fn of_isa(isa: Isa) -> PanelWidths {
        match isa {
            Isa::Baseline => PanelWidths { unit: 4, best: 12 },
            Isa::Avx2 => PanelWidths { unit: 8, best: 24 },
            Isa::Avx512 => PanelWidths { unit: 16, best: 64 },
        }
    }

    /// Whether panels may be this wide.
    pub fn allow(&self, width: usize) -> bool {
        width > 0 && width <= self.best && width.is_multiple_of(self.unit)
    }

    /// How wide those of a matrix with `n` columns should be: as near to the best as can be while columns that only fill
    /// the last one up are an eighth at most. None if narrow panels would be needed, or one would hold all.
    pub fn of(&self, n: usize) -> Option<usize> {
        let max_units = self.best / self.unit;
        let widths = (max_units.div_ceil(2)..=max_units).rev().map(|n_units| n_units * self.unit);
        widths.filter(|_| n > self.best).find(|width| n.next_multiple_of(*width) - n <= n / 8)
    }
}
