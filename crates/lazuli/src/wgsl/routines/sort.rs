//! Sorting along an axis by a bitonic network over scratch memory. Each element is a pair of words: an integer that
//! orders as it should, and its place in the line. Places differ, so the order is the only one possible, and stable.
//! Lines are padded to a power of two with pairs that come last.

use super::grid::{Axis, Reach};
use super::{Job, element, scratch};
use crate::dtype::{DType, Lane};
use crate::shape::Lines;
use crate::wgsl::memory::Use;
use crate::wgsl::shader::Shader;
use crate::wgsl::{Pass, Program};

/// Pairs that are sorted together; more lines than that are sorted in turn, in the same scratch memory.
const BATCH: usize = 1 << 23;

/// Elements in order.
pub fn sort(job: &Job) -> Program {
    put_in_order(job, |batch| {
        let y = batch.of_lines(job.output());
        batch.look_up(job, "results", job.input(0, "x"), y, |shader| batch.element(shader, "at"))
    })
}

/// Where in its line each element of the order is found.
pub fn argsort(job: &Job) -> Program {
    put_in_order(job, |batch| {
        let reaches = [batch.of_lines(job.output()), batch.of_pairs(batch.places(false))];
        job.passes("results", &batch.axes(batch.lines.n), &reaches, |shader, memory| {
            let (pair, to) = (batch.pair(shader, "at"), batch.element(shader, "at"));
            let place = memory.load(shader, 1, &pair);
            let store = memory.store(shader, 0, &to, &format!("i32({place})"));
            shader.line(store);
        })
    })
}

/// Sorts every line, then makes `results` of the places.
fn put_in_order(job: &Job, results: impl Fn(&Batch) -> Vec<Pass>) -> Program {
    let batches = Batch::all(Lines::new(&job.args.output_shape, job.axis()));
    let descending = job.args.params[1] != 0;
    let mut passes = Vec::new();
    for batch in &batches {
        passes.extend(
            batch.fill(job, job.input(0, "x"), |shader, x| order(shader, job.routine.inputs[0], descending, x)),
        );
        passes.extend(batch.network(job));
        passes.extend(results(batch));
    }
    Program { passes, scratch: Batch::scratch(&batches), ..Program::default() }
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

/// Lines that are sorted together, as pairs in scratch memory: keys in piece 0 and places in piece 1. Some outer indices
/// with all inner ones, or one with some.
pub struct Batch {
    pub lines: Lines,
    /// Pairs per line: a power of two.
    pub width: usize,
    /// The first line's indices, and how many of either there are.
    pub outer: (usize, usize),
    pub inner: (usize, usize),
}

impl Batch {
    /// All lines, in turn. No batch is larger than the first.
    pub fn all(lines: Lines) -> Vec<Batch> {
        let width = lines.n.next_power_of_two();
        let n_lines = (BATCH / width).max(1);
        let n_inner = n_lines.min(lines.inner).max(1);
        let n_outer = (n_lines / n_inner).max(1);
        let mut batches = Vec::new();
        for outer in (0..lines.outer).step_by(n_outer) {
            for inner in (0..lines.inner).step_by(n_inner) {
                let (outer, inner) =
                    ((outer, n_outer.min(lines.outer - outer)), (inner, n_inner.min(lines.inner - inner)));
                batches.push(Batch { lines, width, outer, inner });
            }
        }
        batches
    }

    /// The sizes of the pieces of scratch memory.
    pub fn scratch(batches: &[Batch]) -> Vec<usize> {
        vec![batches.first().map_or(0, Batch::n_pairs) * 4; 2]
    }

    pub fn n_pairs(&self) -> usize {
        self.outer.1 * self.inner.1 * self.width
    }

    pub fn keys(&self, writes: bool) -> Use {
        scratch(0, "keys", self.n_pairs(), writes)
    }

    pub fn places(&self, writes: bool) -> Use {
        scratch(1, "places", self.n_pairs(), writes)
    }

    /// An invocation for each of so many places of each line.
    pub fn axes(&self, n: usize) -> [Axis; 3] {
        [("outer", self.outer.1), ("inner", self.inner.1), ("at", n)]
    }

    /// Memory in which lines lie as in the tensor, and the element `at` of the line.
    pub fn of_lines(&self, memory: Use) -> Reach<'static> {
        let Lines { n, inner, .. } = self.lines;
        Reach::at(memory, &[n * inner, 1, inner]).from(self.first() as isize)
    }

    pub fn element(&self, shader: &mut Shader, at: &str) -> String {
        let first = shader.param("first_element", self.first());
        format!("{first} + {}", element(self.lines, shader, at))
    }

    fn first(&self) -> usize {
        self.outer.0 * self.lines.n * self.lines.inner + self.inner.0
    }

    /// Memory in which they lie as pairs, and the pair `at` of the line.
    pub fn of_pairs(&self, memory: Use) -> Reach<'static> {
        Reach::at(memory, &[self.inner.1 * self.width, self.width, 1])
    }

    pub fn pair(&self, shader: &mut Shader, at: &str) -> String {
        let (n, width) = (shader.param("beside", self.inner.1), shader.param("width", self.width));
        format!("(outer * {n} + inner) * {width} + {at}")
    }

    /// Pairs from the lines of `x`, whose orders `key` gives.
    pub fn fill(&self, job: &Job, x: Use, key: impl Fn(&mut Shader, &str) -> String) -> Vec<Pass> {
        let reaches = [self.of_lines(x), self.of_pairs(self.keys(true)), self.of_pairs(self.places(true))];
        job.passes("keys", &self.axes(self.width), &reaches, |shader, memory| {
            let n = shader.param("line_len", self.lines.n);
            shader.line("var key = 0xffffffffu;");
            shader.line("var place = 0xffffffffu;");
            shader.open(format!("if (at < {n})"));
            let element = self.element(shader, "at");
            let x = memory.load(shader, 0, &element);
            let key = key(shader, &x);
            shader.line(format!("key = {key};"));
            shader.line("place = at;");
            shader.close();
            let pair = self.pair(shader, "at");
            shader.line(format!("let pair = {pair};"));
            for (idx, value) in [(1, "key"), (2, "place")] {
                let store = memory.store(shader, idx, "pair", value);
                shader.line(store);
            }
        })
    }

    /// The network: each step compares pairs a power of two apart.
    pub fn network(&self, job: &Job) -> Vec<Pass> {
        let mut passes = Vec::new();
        for run in (1..=self.width.ilog2()).map(|power| 1 << power) {
            for apart in (0..(run as u32).ilog2()).rev().map(|power| 1 << power) {
                passes.extend(self.step(job, run, apart));
            }
        }
        passes
    }

    fn step(&self, job: &Job, run: usize, apart: usize) -> Vec<Pass> {
        let reaches =
            [self.keys(true), self.places(true)].map(|memory| Reach::at(memory, &[2 * apart, 1]).and_from(apart));
        let axes = [("double", self.n_pairs() / (2 * apart)), ("at", apart)];
        job.passes("exchange", &axes, &reaches, |shader, memory| {
            let (run, apart) = (shader.param("run", run), shader.param("apart", apart));
            let width = shader.param("width", self.width);
            shader.line(format!("let low = double * 2u * {apart} + at;"));
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

    /// What lines of `x` hold at the places, in order, written to where `to_at` says.
    pub fn look_up(
        &self,
        job: &Job,
        what: &str,
        x: Use,
        to: Reach<'_>,
        to_at: impl Fn(&mut Shader) -> String,
    ) -> Vec<Pass> {
        let Lines { n, inner, .. } = self.lines;
        let x = Reach::at(x, &[n * inner, 1, 0]).from(self.first() as isize).anywhere(n, inner);
        let reaches = [x, to, self.of_pairs(self.places(false))];
        job.passes(what, &self.axes(self.lines.n), &reaches, |shader, memory| {
            let pair = self.pair(shader, "at");
            let place = memory.load(shader, 2, &pair);
            shader.line(format!("let place = {place};"));
            shader.line("if (!is_served(place)) { return; }");
            let from = self.element(shader, "place");
            let x = memory.load(shader, 0, &from);
            let to = to_at(shader);
            let store = memory.store(shader, 1, &to, &x);
            shader.line(store);
        })
    }
}
