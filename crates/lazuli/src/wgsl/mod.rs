//! Launches as WGSL: text to compile, numbers to hand over, memory to bind. Prints what the planner has decided, for
//! the capabilities it is handed; names no device and no API. Whoever runs it sees passes only.

mod tree;
mod shader;
mod convert;
mod memory;
mod schedule;
mod keep;
mod index;
mod eval;
mod cut;
mod spill;
mod map;
mod reduce;
mod matmul;
mod routines;
mod verify;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::kernel::{Args, Kernel};
use crate::plan::{Launch, Slot, SlotId};
use crate::target::GpuTarget;
use cut::Context;
pub use matmul::variants::{Class, OperandLayout, Tuned, VARIANTS, Variant, default_of, named};
use spill::Spilled;
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
    /// Which of several ways was chosen and why, for people; None where there is one.
    pub variant: Option<String>,
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

/// The passes of one launch.
pub fn program(launch: &Launch, slots: &[Slot], target: &GpuTarget) -> ShaderProgram {
    match &launch.kernel {
        Kernel::Loop(body) | Kernel::Matmul(body) => {
            let context = Context::new(launch, body, slots, target);
            let by_strides = context.by_strides();
            let context = Context { body: by_strides.as_ref().unwrap_or(body), ..context };
            match context.parts(&launch.args) {
                Some(parts) => {
                    let program = of_parts(&context, &parts);
                    if has_few_trips(&program, target) { program } else { spill::program(&context, Spilled::Long) }
                }
                None => spill::program(&context, Spilled::Wide),
            }
        }
        Kernel::Attention(_) => unreachable!("limits of GPUs allow no chained product"),
        Kernel::Routine(routine) => routines::program(launch, routine, target)
            .unwrap_or_else(|| unreachable!("bug: no WGSL for the routine {}", routine.row.name)),
    }
}

/// Whether no invocation makes more loop iterations than it may.
fn has_few_trips(program: &ShaderProgram, target: &GpuTarget) -> bool {
    program.passes.iter().all(|pass| pass.iterations <= target.max_iterations)
}

/// The passes of the parts of a loop or a matmul.
fn of_parts(context: &Context, parts: &[Args]) -> ShaderProgram {
    let passes = |args| match context.body.inner_rank {
        0 => map::passes(context, args),
        _ => vec![reduce::pass(context, args)],
    };
    match context.launch.kernel {
        Kernel::Matmul(_) => matmul::program(context, parts),
        _ => ShaderProgram { passes: parts.iter().flat_map(passes).collect(), ..ShaderProgram::default() },
    }
}
