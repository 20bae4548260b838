//! What is known of a GPU: what it can take, how it likes to work, and what tuning found. Everything that changes a
//! shader's text, and how its driver is best used.

use std::sync::Arc;

use super::variants::Tuned;
use crate::device::DeviceKind;

/// The most elements of an index space that one dispatch counts: some room below 2³².
pub const MAX_ELEMS: usize = 1 << 31;

/// What is known of a GPU, or of a driver that stands in for one.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuTarget {
    /// What sort of GPU it is.
    pub kind: DeviceKind,
    /// Bytes that one storage binding may span; a multiple of 1 MiB. What is larger is bound in several windows of
    /// exactly this size (the last one shorter), each a multiple of it into the slot.
    pub max_binding_bytes: usize,
    /// Storage bindings that one kernel may have.
    pub max_bindings: usize,
    /// Invocations of a workgroup, and bytes they may share.
    pub max_invocations: usize,
    pub max_shared_bytes: usize,
    /// Loop iterations that one invocation may make in all: some drivers end loops silently after that many.
    pub max_iterations: usize,
    /// Workgroups of 64 invocations that keep all of it busy: a product that starts fewer has its k cut into parts. Until
    /// tuning has measured it, what is expected of a device of its kind.
    pub full_groups: usize,
    /// Whether texts that keep much in registers are compiled in good time.
    pub large_shaders: bool,
    /// What its compiler does to sums and products.
    pub folds: Folds,
    /// How invocations should work together.
    pub style: Threads,
    /// Bytes of a row of a product's right matrix that eight invocations side by side should read at a time, where that
    /// is known.
    pub b_row_bytes: Option<usize>,
    /// Whether invocations are counted in a subgroup as in their workgroup, as far as both go.
    pub counts_lanes: bool,
    /// Invocations of a subgroup, if that is always the same number and they are counted as in their workgroup.
    pub subgroup: Option<usize>,
    /// The fewest and the most invocations that a subgroup may have; None: the device has no subgroups.
    pub subgroup_sizes: Option<[usize; 2]>,
    /// Whether results are mapped where they lie instead of being copied to memory for reading first.
    pub map_results: bool,
    /// Whether its memory is the machine's, handed out beyond what there is: ask the system before taking much.
    pub host_memory: bool,
    /// Bytes and operations per second that can be counted on, and how long a submit may take before a watchdog ends
    /// it, in seconds. Cautious figures: they only decide where a long plan is cut.
    pub pace: Option<Pace>,
    /// What tuning found on this device.
    pub tuned: Arc<Tuned>,
}

impl GpuTarget {
    /// The same device with what tuning found on it.
    pub fn tuned_by(&self, tuned: Arc<Tuned>) -> GpuTarget {
        GpuTarget { full_groups: tuned.full_groups.unwrap_or(self.full_groups), tuned, ..self.clone() }
    }

    /// How many invocations may share a row of a reduction.
    pub fn max_reduce_lanes(&self) -> usize {
        [1, 8, 64, 256].into_iter().rfind(|lanes| *lanes <= self.max_invocations).unwrap_or(1)
    }

    /// How many invocations that follow each other are in one subgroup, whatever its size, in a workgroup of so many; None if
    /// subgroups may not be full.
    pub fn shuffle_width(&self, n_invocations: usize) -> Option<usize> {
        let [fewest, most] = self.subgroup_sizes?;
        let is_full = fewest.is_power_of_two() && most.is_power_of_two() && n_invocations.is_multiple_of(most);
        (is_full && fewest > 1).then_some(fewest)
    }
}

/// How a device likes its work to be shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Threads {
    /// Many invocations that share a row through workgroup memory: hardware.
    Cooperative,
    /// Few invocations that do much each, all from registers: drivers that run on the CPU.
    Independent,
}

/// How far a driver's compiler takes floats for real numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folds {
    /// It cancels a term that a sum has twice, regroups x + x, and folds a sum of two products. It regroups nothing else,
    /// and one product and a sum stay two operations.
    Equal,
    /// It is not known to leave any chain of sums and products as it is.
    Any,
}

/// What a device can be counted on to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub bytes_per_second: f64,
    pub flops_per_second: f64,
    pub max_seconds: f64,
}
