//! Launches as WGSL: text to compile, numbers to hand over, memory to bind. Prints what the planner has decided, for
//! the capabilities it is handed; names no device and no API. Whoever runs it sees passes only.

mod tree;
mod launch_memory;
mod shader;
mod convert;
mod butterfly;
mod memory;
mod blocks;
mod schedule;
mod keep;
mod index;
mod eval;
mod context;
mod map;
mod reduce;
mod matmul;
mod attention;
mod routines;
mod scheduled;
mod verify;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::kernel::Kernel;
use crate::plan::{Launch, Slot, SlotId};
use crate::target::GpuTarget;
use context::Context;
use scheduled::FormSchedule;
pub use scheduled::GpuSchedule;
#[cfg(test)]
pub use tests::validate;
pub use verify::verify;

/// A launch, ready to be compiled and bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShaderProgram {
    /// Run one after another; each sees what those before it wrote.
    pub passes: Vec<Pass>,
    /// Bytes of each piece of scratch memory that the passes need beside the plan's slots. Its contents are
    /// unspecified before the first pass.
    pub scratch: Vec<usize>,
}

/// One dispatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Pass {
    /// What a profiler shows.
    pub label: String,
    /// The shader, its entry point `main`. Holds no size, stride or scalar: pipelines are found by it.
    pub text: Arc<str>,
    /// The uniform block, binding 0: `array<vec4<u32>, n>`, `n` fixed by the text. First the plan's constants that
    /// `consts` lists, then `params`, then zeros up to whole vectors.
    pub consts: Vec<u32>,
    pub params: Vec<u32>,
    /// Storage bindings 1, 2, …, in order.
    pub binds: Vec<Bind>,
    /// Workgroups in all. They may be dispatched in any box that has at least as many: the text counts them row-major
    /// through `num_workgroups` and leaves out what is beyond.
    pub n_groups: usize,
    /// Loop iterations that one invocation makes in all, at most: counted as the text was written, loop by loop.
    pub iterations: usize,
}

/// What a storage binding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    pub place: PassMemory,
    /// The part that is bound: where it starts and how long it is, in bytes. Starts at a multiple of
    /// [`GpuTarget::max_binding_bytes`]; the length is a multiple of 4, at least 4. Of [`PassMemory::Status`] all is bound, and
    /// the length given is 0.
    pub start: usize,
    pub len: usize,
    /// Declared `read_write` rather than `read`.
    pub writes: bool,
}

/// Memory that a pass uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassMemory {
    Slot(SlotId),
    /// A piece of [`ShaderProgram::scratch`].
    Scratch(u32),
    /// Where failed checks are noted: `array<atomic<u32>>`. The first word is 0 until any check of the plan fails, then 1;
    /// the second is not used. Then there are two words per check: the first is 0 until it fails, then 1; the second
    /// is `0xffff_ffff` until then, then the least (as u32) of the indices that failed. Kernels that commit are bound it to be
    /// read.
    Status,
}

impl Pass {
    /// Whether it notes or asks for failed checks.
    pub fn has_status(&self) -> bool {
        self.binds.iter().any(|bind| bind.place == PassMemory::Status)
    }
}

/// How a launch is dispatched, in one line.
impl fmt::Display for ShaderProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pass) in self.passes.iter().enumerate() {
            let then = if i > 0 { "; then " } else { "" };
            write!(f, "{then}{} workgroups, {} iterations", pass.n_groups, pass.iterations)?;
        }
        self.scratch.iter().try_for_each(|bytes| write!(f, "; {bytes} B of scratch"))
    }
}

/// The passes of one launch, as it is scheduled on a device.
pub fn program(launch: &Launch, slots: &[Slot], target: &GpuTarget) -> ShaderProgram {
    print(launch, &GpuSchedule::new(launch, slots, target), slots, target)
}

/// The passes of one launch by a schedule.
pub fn print(launch: &Launch, schedule: &GpuSchedule, slots: &[Slot], target: &GpuTarget) -> ShaderProgram {
    let GpuSchedule { form, memory } = schedule;
    match &launch.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => {
            let (context, args) = (Context::new(launch, body, slots, target), &launch.args);
            let passes = match form {
                FormSchedule::Matmul(product) => return matmul::program(&context, args, product, memory),
                FormSchedule::Map(map) => map::passes(&context, args, map, memory),
                FormSchedule::Reduce(reduce) => vec![reduce::pass(&context, args, reduce, &memory[0])],
                FormSchedule::Attention(_) | FormSchedule::Grouped(_) | FormSchedule::Routine(_) => {
                    unreachable!("bug: the schedule of another launch")
                }
            };
            ShaderProgram { passes, ..ShaderProgram::default() }
        }
        Kernel::Grouped(_) => {
            let FormSchedule::Grouped(grouped) = form else { unreachable!("bug: the schedule of another launch") };
            matmul::grouped(launch, grouped, slots, target, memory)
        }
        Kernel::Attention(kernel) => {
            let FormSchedule::Attention(tiles) = form else { unreachable!("bug: the schedule of another launch") };
            attention::program(launch, kernel, *tiles, target, memory)
        }
        Kernel::Routine(routine) => {
            let FormSchedule::Routine(schedule) = form else { unreachable!("bug: the schedule of another launch") };
            routines::program(launch, routine, *schedule, target)
                .unwrap_or_else(|| unreachable!("bug: no WGSL for the routine {}", routine.row.name))
        }
    }
}
