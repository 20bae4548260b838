//! Sorting along an axis by a bitonic network over scratch memory. Each element is a pair of words: an integer that
//! orders as it should, and its place in the line. Places differ, so the order is the only one possible, and stable.
//! Lines are padded to a power of two with pairs that come last.

use super::{Job, element, scratch};
use crate::dtype::{DType, Lane};
use crate::shape::Lines;
use crate::wgsl::memory::{Memory, Use};
use crate::wgsl::shader::Shader;
use crate::wgsl::{Pass, Program};

/// Pairs that are sorted together; more lines than that are sorted in turn, in the same scratch memory.
const BATCH: usize = 1 << 23;

/// Elements in order.
pub fn sort(job: &Job) -> Program {
    put_in_order(job, |shader, memory, lines| {
        let from = element(lines, shader, "line", "place");
        memory.load(shader, 0, &from)
    })
}

/// Where in its line each element of the order is found.
pub fn argsort(job: &Job) -> Program {
    put_in_order(job, |_, _, _| "i32(place)".to_string())
}

/// Sorts every line, then writes what `made` makes of the places.
fn put_in_order(job: &Job, made: fn(&mut Shader, &Memory, Lines) -> String) -> Program {
    let lines = Lines::new(&job.args.output_shape, job.axis());
    let sorting = Sorting::new(lines);
    let mut passes = Vec::new();
    for first in (0..lines.count()).step_by(sorting.n_lines) {
        let n_lines = sorting.n_lines.min(lines.count() - first);
        let descending = job.args.params[1] != 0;
        passes.push(sorting.fill(job, (first, n_lines), job.input(0, "x"), |shader, x| {
            order(shader, job.routine.inputs[0], descending, x)
        }));
        passes.extend(sorting.passes(job, n_lines));
        let uses = [job.input(0, "x"), job.output(), scratch(1, "places", sorting.n_pairs(), false)];
        passes.push(job.pass("results", &uses, n_lines * lines.n, |shader, memory| {
            let (n, width) = (shader.param("line_len", lines.n), shader.param("width", sorting.width));
            let first = shader.param("first", first);
            shader.line(format!("let line = i / {n} + {first};"));
            let place = memory.load(shader, 2, &format!("i / {n} * {width} + i % {n}"));
            shader.line(format!("let place = {place};"));
            let value = made(shader, memory, lines);
            let to = element(lines, shader, "line", &format!("i % {n}"));
            let store = memory.store(shader, 1, &to, &value);
            shader.line(store);
        }));
    }
    Program { passes, scratch: sorting.scratch(), ..Program::default() }
}

/// The expression for the order of a lane: NaN above all, −0 as 0.
fn order(shader: &mut Shader, dtype: DType, descending: bool, x: &str) -> String {
    let up = match dtype.lane() {
        Lane::U32 => x.to_string(),
        Lane::I32 => format!("(bitcast<u32>({x}) ^ 0x80000000u)"),
        Lane::F32 => {
            shader.functions(
                "\
fn order_f32(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if ((bits & 0x7fffffffu) == 0u) { return 0x80000000u; }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) != 0u);
}
fn order_up(x: f32) -> u32 { return select(order_f32(x), 0xffffffffu, is_nan_f32(x)); }
fn order_down(x: f32) -> u32 { return select(~order_f32(x), 0xffffffffu, is_nan_f32(x)); }
",
            );
            return format!("order_{}({x})", if descending { "down" } else { "up" });
        }
    };
    if descending { format!("(~{up})") } else { up }
}

/// Lines of pairs in scratch memory, keys in piece 0 and places in piece 1.
pub struct Sorting {
    lines: Lines,
    /// Pairs per line: a power of two.
    pub width: usize,
    /// Lines that are sorted together.
    pub n_lines: usize,
}

impl Sorting {
    pub fn new(lines: Lines) -> Sorting {
        let width = lines.n.next_power_of_two();
        Sorting { lines, width, n_lines: (BATCH / width).clamp(1, lines.count().max(1)) }
    }

    /// Pairs in scratch memory.
    pub fn n_pairs(&self) -> usize {
        self.n_lines * self.width
    }

    /// The sizes of the pieces of scratch memory.
    pub fn scratch(&self) -> Vec<usize> {
        vec![self.n_pairs() * 4; 2]
    }

    fn uses(&self, writes: bool) -> [Use; 2] {
        [scratch(0, "keys", self.n_pairs(), writes), scratch(1, "places", self.n_pairs(), writes)]
    }

    /// Pairs from the lines of `x`, whose orders `key` gives.
    pub fn fill(
        &self,
        job: &Job,
        (first, n_lines): (usize, usize),
        x: Use,
        key: impl FnOnce(&mut Shader, &str) -> String,
    ) -> Pass {
        let lines = self.lines;
        let [keys, places] = self.uses(true);
        job.pass("keys", &[x, keys, places], n_lines * self.width, |shader, memory| {
            let (n, width) = (shader.param("line_len", lines.n), shader.param("width", self.width));
            let first = shader.param("first", first);
            shader.line(format!("let line = i / {width} + {first};"));
            shader.line(format!("let at = i % {width};"));
            shader.line("var key = 0xffffffffu;");
            shader.line("var place = 0xffffffffu;");
            shader.open(format!("if (at < {n})"));
            let element = element(lines, shader, "line", "at");
            let x = memory.load(shader, 0, &element);
            let key = key(shader, &x);
            shader.line(format!("key = {key};"));
            shader.line("place = at;");
            shader.close();
            for (idx, value) in [(1, "key"), (2, "place")] {
                let store = memory.store(shader, idx, "i", value);
                shader.line(store);
            }
        })
    }

    /// The network: each step compares pairs a power of two apart.
    pub fn passes(&self, job: &Job, n_lines: usize) -> Vec<Pass> {
        let mut passes = Vec::new();
        for run in (1..=self.width.ilog2()).map(|power| 1 << power) {
            for apart in (0..(run as u32).ilog2()).rev().map(|power| 1 << power) {
                passes.push(self.step(job, n_lines * self.width / 2, run, apart));
            }
        }
        passes
    }

    fn step(&self, job: &Job, n: usize, run: usize, apart: usize) -> Pass {
        job.pass("exchange", &self.uses(true), n, |shader, memory| {
            let (run, apart) = (shader.param("run", run), shader.param("apart", apart));
            let width = shader.param("width", self.width);
            // Pair number i of those `apart`: the lower one's bit is clear.
            shader.line(format!("let low = i / {apart} * 2u * {apart} + i % {apart};"));
            shader.line(format!("let high = low + {apart};"));
            for (idx, name) in [(0, "key"), (1, "place")] {
                for end in ["low", "high"] {
                    let word = memory.load(shader, idx, end);
                    shader.line(format!("let {end}_{name} = {word};"));
                }
            }
            shader.line("let swapped = low_key > high_key || (low_key == high_key && low_place > high_place);");
            shader.line(format!("let upwards = ((low % {width}) & {run}) == 0u;"));
            shader.open("if (swapped == upwards)");
            for (idx, name) in [(0, "key"), (1, "place")] {
                for (end, from) in [("low", "high"), ("high", "low")] {
                    let store = memory.store(shader, idx, end, &format!("{from}_{name}"));
                    shader.line(store);
                }
            }
            shader.close();
        })
    }
}
