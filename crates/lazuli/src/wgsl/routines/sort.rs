//! Sorting along an axis by a radix sort over scratch memory. Each element is a pair of words: an integer that orders as
//! it should, and its place in the line. Pairs start in the order of their places, and the sort is stable.

use super::grid::{GridAccess, GridAxis, is_served};
use super::{RoutineLaunch, RoutineLines, RoutineOf, element, radix, scratch};
use crate::dtype::{DType, Lane};
use crate::shape::Lines;
use crate::wgsl::launch_memory::{LaunchMemory, Use};
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderType, call, literal, word};
use crate::wgsl::{Pass, ShaderProgram};

/// Pairs that are sorted together; more lines than that are sorted in turn, in the same scratch memory.
const BATCH: usize = 1 << 23;

/// Nothing is added up.
pub fn schedule(of: &RoutineOf) -> RoutineLines {
    RoutineLines::Sorted(radix::schedule(of.target, 0))
}

/// Elements in order.
pub fn sort(job: &RoutineLaunch) -> ShaderProgram {
    put_in_order(job, |batch, side| {
        let y = batch.of_lines(job.output());
        batch.look_up(job, "results", side, job.input(0, "x"), y, |shader, memory, x| {
            let to = batch.element(shader, &word("at"));
            memory.store(shader, 1, to, x);
        })
    })
}

/// Where in its line each element of the order is found.
pub fn argsort(job: &RoutineLaunch) -> ShaderProgram {
    put_in_order(job, |batch, side| {
        let reaches = [batch.of_lines(job.output()), batch.one_pair(side, false)];
        job.passes("results", &batch.axes(batch.lines.n), &reaches, |shader, memory| {
            let (pair, to) = (batch.pair(shader, &word("at")), batch.element(shader, &word("at")));
            let place = memory.load(shader, 1, place_of(&pair));
            memory.store(shader, 0, to, ShaderType::One(Lane::I32).make([place]));
        })
    })
}

/// Sorts every line, then makes `results` of the places.
fn put_in_order(job: &RoutineLaunch, results: impl Fn(&SortBatch, PingPong) -> Vec<Pass>) -> ShaderProgram {
    let batches = SortBatch::all(Lines::new(&job.args.output_shape, job.axis()));
    let descending = job.args.params[1] != 0;
    let mut passes = Vec::new();
    for batch in &batches {
        passes.extend(
            batch.fill(job, job.input(0, "x"), |shader, x| order(shader, job.routine.inputs[0].dtype(), descending, x)),
        );
        let (sorted, side) = batch.radix_sort(job, 32);
        passes.extend(sorted);
        passes.extend(results(batch, side));
    }
    ShaderProgram { passes, scratch: SortBatch::scratch(&batches, job) }
}

/// The order of a lane, as a number: NaN above all, −0 as 0.
fn order(shader: &mut Shader, dtype: DType, descending: bool, x: ShaderExpr) -> ShaderExpr {
    let up = match dtype.lane() {
        Lane::U32 => x,
        Lane::I32 => x.reinterpreted(Lane::U32) ^ literal("0x80000000u", Lane::U32),
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
            let function = if descending { "order_down" } else { "order_up" };
            return call(function, [x], ShaderType::One(Lane::U32));
        }
    };
    if descending { up.inverted() } else { up }
}

/// Where the key of a pair lies, and its place.
pub fn key_of(pair: &ShaderExpr) -> ShaderExpr {
    ShaderExpr::from(2) * pair
}

pub fn place_of(pair: &ShaderExpr) -> ShaderExpr {
    key_of(pair) + 1
}

/// Pairs are moved to and fro between two pieces of scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PingPong {
    First,
    Second,
}

impl PingPong {
    pub fn other(self) -> PingPong {
        match self {
            PingPong::First => PingPong::Second,
            PingPong::Second => PingPong::First,
        }
    }

    /// The piece of scratch memory.
    pub fn piece(self) -> u32 {
        match self {
            PingPong::First => 0,
            PingPong::Second => 1,
        }
    }
}

/// Lines that are sorted together, as pairs in scratch memory. Some outer indices with all inner ones, or one with some.
pub struct SortBatch {
    pub lines: Lines,
    /// The first line's indices, and how many of either there are.
    pub outer: (usize, usize),
    pub inner: (usize, usize),
}

impl SortBatch {
    /// All lines, in turn. No batch is larger than the first.
    pub fn all(lines: Lines) -> Vec<SortBatch> {
        let n_lines = (BATCH / lines.n.max(1)).max(1);
        let n_inner = n_lines.min(lines.inner).max(1);
        let n_outer = (n_lines / n_inner).max(1);
        let mut batches = Vec::new();
        for outer in (0..lines.outer).step_by(n_outer) {
            for inner in (0..lines.inner).step_by(n_inner) {
                let (outer, inner) =
                    ((outer, n_outer.min(lines.outer - outer)), (inner, n_inner.min(lines.inner - inner)));
                batches.push(SortBatch { lines, outer, inner });
            }
        }
        batches
    }

    /// The sizes of the pieces of scratch memory.
    pub fn scratch(batches: &[SortBatch], job: &RoutineLaunch) -> Vec<usize> {
        let Some(first) = batches.first() else { return Vec::new() };
        let mut sizes = vec![first.n_pairs() * 8; 2];
        sizes.extend(first.radix_scratch(job));
        sizes
    }

    pub fn n_lines(&self) -> usize {
        self.outer.1 * self.inner.1
    }

    pub fn n_pairs(&self) -> usize {
        self.n_lines() * self.lines.n
    }

    /// Keys and places, in turns.
    pub fn pairs(&self, side: PingPong, writes: bool) -> Use {
        scratch(side.piece(), if writes { "pairs_to" } else { "pairs" }, 2 * self.n_pairs(), writes)
    }

    /// An invocation for each of so many places of each line.
    pub fn axes(&self, n: usize) -> [GridAxis; 3] {
        [("outer", self.outer.1), ("inner", self.inner.1), ("at", n)]
    }

    /// Memory in which lines lie as in the tensor, and the element `at` of the line.
    pub fn of_lines(&self, memory: Use) -> GridAccess<'static> {
        let Lines { n, inner, .. } = self.lines;
        GridAccess::at(memory, &[n * inner, 1, inner]).from(self.first() as isize)
    }

    pub fn element(&self, shader: &mut Shader, at: &ShaderExpr) -> ShaderExpr {
        let first = shader.param("first_element", self.first());
        first + element(self.lines, shader, at) + word("inner")
    }

    fn first(&self) -> usize {
        self.outer.0 * self.lines.n * self.lines.inner + self.inner.0
    }

    /// The pair `at` of the line, and its number.
    pub fn one_pair(&self, side: PingPong, writes: bool) -> GridAccess<'static> {
        let n = self.lines.n;
        GridAccess::at(self.pairs(side, writes), &[2 * self.inner.1 * n, 2 * n, 2]).run(2)
    }

    pub fn pair(&self, shader: &mut Shader, at: &ShaderExpr) -> ShaderExpr {
        let (beside, n) = (shader.param("beside", self.inner.1), shader.param("line_len", self.lines.n));
        (word("outer") * beside + word("inner")) * n + at
    }

    /// Pairs from the lines of `x`, whose orders `key` gives.
    pub fn fill(&self, job: &RoutineLaunch, x: Use, key: impl Fn(&mut Shader, ShaderExpr) -> ShaderExpr) -> Vec<Pass> {
        let reaches = [self.of_lines(x), self.one_pair(PingPong::First, true)];
        job.passes("keys", &self.axes(self.lines.n), &reaches, |shader, memory| {
            let at = word("at");
            let element = self.element(shader, &at);
            let x = memory.load(shader, 0, element);
            let key = key(shader, x);
            let pair = self.pair(shader, &at);
            let pair = shader.define("pair", pair);
            memory.store(shader, 1, key_of(&pair), key);
            memory.store(shader, 1, place_of(&pair), at);
        })
    }

    /// What lines of `x` hold at the places, in order; `store` says what becomes of it.
    pub fn look_up(
        &self,
        job: &RoutineLaunch,
        what: &str,
        side: PingPong,
        x: Use,
        to: GridAccess<'_>,
        store: impl Fn(&mut Shader, &LaunchMemory, ShaderExpr),
    ) -> Vec<Pass> {
        let Lines { n, inner, .. } = self.lines;
        let x = GridAccess::at(x, &[n * inner, 1, 0]).from(self.first() as isize).anywhere(n, inner);
        let reaches = [x, to, self.one_pair(side, false)];
        job.passes(what, &self.axes(self.lines.n), &reaches, |shader, memory| {
            let pair = self.pair(shader, &word("at"));
            let place = memory.load(shader, 2, place_of(&pair));
            let place = shader.define("place", place);
            shader.return_if(is_served(&place).negated());
            let from = self.element(shader, &place);
            let x = memory.load(shader, 0, from);
            store(shader, memory, x);
        })
    }
}
