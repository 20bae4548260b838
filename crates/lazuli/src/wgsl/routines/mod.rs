//! Hand-written kernels, one file per family, named as in `cpu/routines/`. Found by row. A routine is a few passes
//! over scratch memory, each of one invocation per element or line, written with the same loads and stores as fused
//! kernels. `grid` cuts passes that touch more memory than a kernel may bind.

mod schedule;
mod grid;
mod radix;
mod sum;
mod scan;
mod scatter;
mod sort;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use super::launch_memory::Use;
use super::shader::Shader;
use super::tree::{ShaderExpr, word};
use super::{PassMemory, ShaderProgram};
use crate::dtype::DType;
use crate::kernel::{RoutineArgs, RoutineKernel};
use crate::ops::{ARGSORT, CUMSUM, RoutineRow, SCATTER_ADD, SORT};
use crate::plan::Launch;
use crate::shape::Lines;
use crate::target::GpuTarget;

pub use schedule::{RoutineLines, RoutineSchedule, SortSchedule};

/// Cuts the lines of one launch of a routine.
type RoutineScheduler = fn(&RoutineOf) -> RoutineLines;

/// Writes the passes of one launch of a routine.
type RoutineWriter = fn(&RoutineLaunch) -> ShaderProgram;

/// Every routine there is.
static ROUTINES: [(&RoutineRow, RoutineScheduler, RoutineWriter); 4] = [
    (&CUMSUM, scan::schedule, scan::cumsum),
    (&SORT, sort::schedule, sort::sort),
    (&ARGSORT, sort::schedule, sort::argsort),
    (&SCATTER_ADD, scatter::schedule, scatter::scatter_add),
];

/// The passes of a routine's launch by a schedule; None if there is no such routine.
pub fn program(
    launch: &Launch,
    routine: &RoutineKernel,
    schedule: RoutineSchedule,
    target: &GpuTarget,
) -> Option<ShaderProgram> {
    let (.., write) = ROUTINES.iter().find(|r| r.0 == routine.row)?;
    let args = launch.args.routine.as_ref()?;
    Some(write(&RoutineLaunch { of: RoutineOf { launch, routine, args, target }, schedule }))
}

/// A launch of a routine.
struct RoutineOf<'a> {
    launch: &'a Launch,
    routine: &'a RoutineKernel,
    args: &'a RoutineArgs,
    target: &'a GpuTarget,
}

/// The same with its schedule: what its passes are written from.
struct RoutineLaunch<'a> {
    of: RoutineOf<'a>,
    schedule: RoutineSchedule,
}

impl<'a> Deref for RoutineLaunch<'a> {
    type Target = RoutineOf<'a>;

    fn deref(&self) -> &RoutineOf<'a> {
        &self.of
    }
}

/// The element `at` of the line with this `outer` index and the first `inner` one.
fn element(lines: Lines, shader: &mut Shader, at: &ShaderExpr) -> ShaderExpr {
    let (n, step) = (shader.param("line_len", lines.n), shader.param("line_step", lines.inner));
    (word("outer") * n + at) * step
}

impl RoutineOf<'_> {
    fn axis(&self) -> usize {
        self.args.params[0] as usize
    }

    /// An input, as the passes read it.
    fn input(&self, idx: usize, name: &str) -> Use {
        let place = PassMemory::Slot(self.launch.reads[idx]);
        whole(place, name, self.routine.inputs[idx].dtype(), self.args.input_shapes[idx].n_elems(), false)
    }

    /// The output, as the passes write it.
    fn output(&self) -> Use {
        let place = PassMemory::Slot(self.launch.writes[0]);
        whole(place, "y", self.routine.outputs[0], self.args.output_shape.n_elems(), true)
    }
}

/// Scratch memory of `n` words.
fn scratch(idx: u32, name: &str, n: usize, writes: bool) -> Use {
    whole(PassMemory::Scratch(idx), name, DType::U32, n, writes)
}

fn whole(place: PassMemory, name: &str, dtype: DType, n: usize, writes: bool) -> Use {
    let size_bytes = n * dtype.size();
    Use {
        place,
        name: name.to_string(),
        storage: dtype.into(),
        by_one: true,
        by_four: false,
        by_vector: false,
        writes,
        size_bytes,
        touched: (0, size_bytes.saturating_sub(1)),
    }
}
