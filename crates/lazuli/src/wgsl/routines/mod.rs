//! Hand-written kernels, one file per family, named as in `cpu/routines/`. Found by row. A routine is a few passes
//! over scratch memory, each of one invocation per element or line, written with the same loads and stores as fused
//! kernels.

mod scan;
mod scatter;
mod sort;
#[cfg(test)]
mod tests;

use super::memory::{Memory, Use};
use super::shader::Shader;
use super::{Caps, Pass, Place, Program};
use crate::dtype::{DType, Lane};
use crate::kernel::{RoutineArgs, RoutineKernel};
use crate::ops::{ARGSORT, CUMSUM, RoutineRow, SCATTER_ADD, SORT};
use crate::plan::Launch;
use crate::shape::Lines;

/// Writes the passes of one launch of a routine.
type Write = fn(&Job) -> Program;

/// Every routine there is.
static ROUTINES: [(&RoutineRow, Write); 4] =
    [(&CUMSUM, scan::cumsum), (&SORT, sort::sort), (&ARGSORT, sort::argsort), (&SCATTER_ADD, scatter::scatter_add)];

/// The passes of a routine's launch; None if there is no such routine.
pub fn program(launch: &Launch, routine: &RoutineKernel, caps: &Caps) -> Option<Program> {
    let (_, write) = ROUTINES.iter().find(|r| r.0 == routine.row)?;
    let args = launch.args.routine.as_ref()?;
    Some(write(&Job { launch, routine, args, caps }))
}

/// Invocations of a workgroup.
const GROUP: usize = 64;

/// A launch of a routine.
struct Job<'a> {
    launch: &'a Launch,
    routine: &'a RoutineKernel,
    args: &'a RoutineArgs,
    caps: &'a Caps,
}

/// The expression for the element `at` of line `line`.
fn element(lines: Lines, shader: &mut Shader, line: &str, at: &str) -> String {
    let (n, inner) = (shader.param("line_len", lines.n), shader.param("inner", lines.inner));
    format!("(({line} / {inner}) * {n} + {at}) * {inner} + {line} % {inner}")
}

impl Job<'_> {
    fn axis(&self) -> usize {
        self.args.params[0] as usize
    }

    /// An input, as the passes read it.
    fn input(&self, idx: usize, name: &str) -> Use {
        let place = Place::Slot(self.launch.reads[idx]);
        whole(place, name, self.routine.inputs[idx], self.args.input_shapes[idx].n_elems(), false)
    }

    /// The output, as the passes write it.
    fn output(&self) -> Use {
        let place = Place::Slot(self.launch.writes[0]);
        whole(place, "y", self.routine.outputs[0], self.args.output_shape.n_elems(), true)
    }

    /// One pass of `n` invocations; `write` says what number `i` does.
    fn pass(&self, what: &str, uses: &[Use], n: usize, write: impl FnOnce(&mut Shader, &Memory)) -> Pass {
        self.checked_pass(what, uses, n, false, write)
    }

    /// The same, for a pass that may note a failed check.
    fn checked_pass(
        &self,
        what: &str,
        uses: &[Use],
        n: usize,
        with_status: bool,
        write: impl FnOnce(&mut Shader, &Memory),
    ) -> Pass {
        let name = self.routine.row.name;
        let memory = Memory::new(uses, with_status, self.caps);
        let group = GROUP.min(self.caps.max_invocations);
        let mut shader = Shader::new(format!("{name}: {what}"), &[], group);
        let end = shader.param("n", n);
        shader.count_groups();
        shader.line(format!("let i = group_idx * {group}u + lane;"));
        shader.line(format!("if (i >= {end}) {{ return; }}"));
        write(&mut shader, &memory);
        shader.finish(format!("{name} {what}"), &memory, n.div_ceil(group))
    }
}

/// Scratch memory of `n` words.
fn scratch(idx: u32, name: &str, n: usize, writes: bool) -> Use {
    whole(Place::Scratch(idx), name, DType::U32, n, writes)
}

fn whole(place: Place, name: &str, dtype: DType, n: usize, writes: bool) -> Use {
    let size_bytes = n * dtype.size();
    Use {
        place,
        name: name.to_string(),
        dtype,
        by_one: true,
        by_four: false,
        writes,
        size_bytes,
        touched: (0, size_bytes.saturating_sub(1)),
    }
}

/// A running sum in a shader. Floats are summed in two parts, the second taking what the first rounds away, so that
/// the order and number of terms hardly matter; integers wrap.
#[derive(Clone, Copy)]
struct Sum {
    lane: Lane,
    /// Whether it is stored as a half float.
    half: bool,
}

impl Sum {
    fn of(dtype: DType, shader: &mut Shader) -> Sum {
        shader.functions(
            "\
fn sum_of(sum: vec2<f32>, x: f32) -> vec2<f32> {
    let total = kept_f32(sum.x + x);
    if ((bitcast<u32>(total) & 0x7f800000u) == 0x7f800000u) { return vec2<f32>(total, 0.0); }
    let added = kept_f32(total - sum.x);
    return vec2<f32>(total, sum.y + ((sum.x - (total - added)) + (x - added)));
}
fn to_be_rounded(sum: vec2<f32>) -> f32 {
    let total = kept_f32(sum.x + sum.y);
    let rest = sum.y - kept_f32(total - sum.x);
    let bits = bitcast<u32>(total);
    if (rest == 0.0 || (bits & 0x7f800000u) == 0x7f800000u) { return total; }
    // Not exact: the last bit says so, that rounding to fewer bits is not misled.
    return bitcast<f32>(select(bits - 1u, bits, (rest > 0.0) == (total > 0.0)) | 1u);
}
",
        );
        Sum { lane: dtype.lane(), half: dtype.size() == 2 }
    }

    /// Words that hold one.
    fn words(dtype: DType) -> usize {
        if dtype.lane() == Lane::F32 { 2 } else { 1 }
    }

    fn start(&self, shader: &mut Shader) {
        shader.line(match self.lane {
            Lane::F32 => "var sum = vec2<f32>(0.0, 0.0);",
            Lane::I32 => "var sum = 0i;",
            Lane::U32 => "var sum = 0u;",
        });
    }

    fn add(&self, shader: &mut Shader, x: &str) {
        shader.line(match self.lane {
            Lane::F32 => format!("sum = sum_of(sum, {x});"),
            _ => format!("sum += {x};"),
        });
    }

    fn value(&self) -> &'static str {
        match self.lane {
            Lane::F32 if self.half => "to_be_rounded(sum)",
            Lane::F32 => "(sum.x + sum.y)",
            _ => "sum",
        }
    }

    /// Writes it to scratch, and adds what scratch holds, at number `at`.
    fn save(&self, shader: &mut Shader, memory: &Memory, idx: usize, at: &str) {
        let parts: &[&str] = match self.lane {
            Lane::F32 => &["bitcast<u32>(sum.x)", "bitcast<u32>(sum.y)"],
            _ => &["bitcast<u32>(sum)"],
        };
        for (k, part) in parts.iter().enumerate() {
            let line = memory.store(shader, idx, &format!("({at}) * {}u + {k}u", parts.len()), part);
            shader.line(line);
        }
    }

    fn add_saved(&self, shader: &mut Shader, memory: &Memory, idx: usize, at: &str) {
        match self.lane {
            Lane::F32 => {
                for k in 0..2 {
                    let word = memory.load(shader, idx, &format!("({at}) * 2u + {k}u"));
                    self.add(shader, &format!("bitcast<f32>({word})"));
                }
            }
            Lane::I32 | Lane::U32 => {
                let word = memory.load(shader, idx, at);
                let lane = super::convert::lane_name(self.lane);
                self.add(shader, &format!("bitcast<{lane}>({word})"));
            }
        }
    }
}
