//! Adding at named places. The index is sorted along its axis, so that what meets in one place lies side by side, in
//! order, and so is what is added; then runs of equal indices are summed up as a tree of blocks. No two invocations
//! write to one place, and the order of additions does not depend on who runs first.

use std::ops::Range;

use super::grid::{GridAccess, is_served};
use super::sort::{PingPong, SortBatch, key_of, place_of};
use super::sum::Sum;
use super::{RoutineLaunch, RoutineLines, RoutineOf, radix, scratch};
use crate::dtype::Lane;
use crate::shape::Lines;
use crate::wgsl::eval::FAIL;
use crate::wgsl::launch_memory::{LaunchMemory, Use};
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderFn, ShaderType, Statement, call, literal, min, named, select, word};
use crate::wgsl::{Pass, ShaderProgram};

/// Terms that an invocation adds up at most.
const BLOCK: usize = 64;

/// The key of what adds to nothing.
const NONE: u32 = u32::MAX;

/// As many terms to an invocation as it may go through.
pub fn schedule(of: &RoutineOf) -> RoutineLines {
    RoutineLines::Sorted(radix::schedule(of.target, BLOCK.min(of.target.max_iterations - 1).max(4)))
}

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(job: &RoutineLaunch) -> ShaderProgram {
    let from = Lines::new(&job.args.input_shapes[1], job.axis());
    let mut passes = copy(job);
    if from.n * from.count() == 0 {
        return ShaderProgram { passes, ..ShaderProgram::default() };
    }
    let batches = SortBatch::all(from);
    let bound = job.args.output_shape[job.axis()];
    passes.extend(check(job, from, bound));
    let mut scratch = SortBatch::scratch(&batches, job);
    let n_sorting = scratch.len() as u32;
    for batch in &batches {
        // An index out of range was noted; the bound stands for it, and is the largest key.
        passes.extend(batch.fill(job, job.input(1, "index"), |shader, index| {
            let bound = shader.param("bound", bound);
            min(index.reinterpreted(Lane::U32), bound)
        }));
        let n_bits = (usize::BITS - bound.leading_zeros()).max(1) as usize;
        let (sorted, side) = batch.radix_sort(job, n_bits);
        passes.extend(sorted);
        let sums = TreeSums { job, batch, terms: side.other(), block: job.schedule.sorted().n_terms, n_sorting };
        passes.extend(sums.look_up(side));
        passes.extend((0..sums.n_levels()).flat_map(|level| sums.add(level)));
    }
    let first =
        TreeSums { job, batch: &batches[0], terms: PingPong::First, block: job.schedule.sorted().n_terms, n_sorting };
    scratch.extend((1..first.n_levels()).map(|level| first.terms(level, true).size_bytes));
    ShaderProgram { passes, scratch }
}

/// `y = x`.
fn copy(job: &RoutineLaunch) -> Vec<Pass> {
    let reaches = [job.input(0, "x"), job.output()].map(|memory| GridAccess::at(memory, &[1]));
    job.passes("copy", &[("at", job.args.output_shape.n_elems())], &reaches, |shader, memory| {
        let x = memory.load(shader, 0, word("at"));
        memory.store(shader, 1, word("at"), x);
    })
}

/// Notes indices out of range.
fn check(job: &RoutineLaunch, from: Lines, bound: usize) -> Vec<Pass> {
    let check = job.args.check as usize;
    let reaches = [GridAccess::at(job.input(1, "index"), &[1])];
    job.checked_passes("check", &[("at", from.n * from.count())], &reaches, |shader, memory| {
        let (bound, check) = (shader.param("bound", bound), shader.param("check", check));
        let index = memory.load(shader, 0, word("at")).reinterpreted(Lane::U32);
        let index = shader.define("index", index);
        shader.open_if(index.at_least(bound));
        shader.functions(FAIL);
        shader.add(Statement::Do(call("fail", [check, index], ShaderType::Nothing)));
        shader.close();
    })
}

/// The sums of a batch, a tree of blocks. A term is a key and a number. At the lowest level there is one for each pair. An
/// invocation goes through a block of a line and adds up runs of equal keys. A run that lies inside the block is added to
/// the output. Of one that begins before the block, or goes on after it, the sum is a term of the next level: each block
/// has two there, since there can be one such run at either end.
struct TreeSums<'a> {
    job: &'a RoutineLaunch<'a>,
    batch: &'a SortBatch,
    /// Where the terms of the lowest level lie: beside the sorted pairs.
    terms: PingPong,
    block: usize,
    /// Pieces of scratch memory that sorting takes.
    n_sorting: u32,
}

impl TreeSums<'_> {
    /// Terms of a line at a level.
    fn n_terms(&self, level: usize) -> usize {
        (0..level).fold(self.batch.lines.n, |n, _| 2 * n.div_ceil(self.block))
    }

    fn n_levels(&self) -> usize {
        (0..).take_while(|level| *level == 0 || self.n_terms(level - 1) > self.block).count()
    }

    /// Words of a term: its key, and an element at the lowest level, a sum above.
    fn words(&self, level: usize) -> usize {
        1 + if level == 0 { 1 } else { Sum::words(self.job.routine.outputs[0]) }
    }

    fn terms(&self, level: usize, writes: bool) -> Use {
        if level == 0 {
            return self.batch.pairs(self.terms, writes);
        }
        let n = self.batch.n_lines() * self.n_terms(level) * self.words(level);
        scratch(self.n_sorting + level as u32 - 1, if writes { "terms_up" } else { "terms" }, n, writes)
    }

    /// The terms that an invocation reaches, so many for each.
    fn reach(&self, level: usize, len: usize, writes: bool) -> GridAccess<'static> {
        let line = self.n_terms(level) * self.words(level);
        let beside = self.batch.inner.1 * line;
        GridAccess::at(self.terms(level, writes), &[beside, line, len * self.words(level)])
    }

    /// The terms of the lowest level: what is added, in the order of the sorted pairs.
    fn look_up(&self, sorted: PingPong) -> Vec<Pass> {
        let (job, batch) = (self.job, self.batch);
        let to = self.reach(0, 1, true).run(2);
        batch.look_up(job, "terms", sorted, job.input(2, "src"), to, |shader, memory, src| {
            let pair = batch.pair(shader, &word("at"));
            let pair = shader.define("pair", pair);
            let key = memory.load(shader, 2, key_of(&pair));
            memory.store(shader, 1, key_of(&pair), key);
            memory.store(shader, 1, place_of(&pair), src.reinterpreted(Lane::U32));
        })
    }

    /// Adds up the blocks of a level.
    fn add(&self, level: usize) -> Vec<Pass> {
        let (job, batch, block) = (self.job, self.batch, self.block);
        let (n, bound) = (self.n_terms(level), job.args.output_shape[job.axis()]);
        let to = Lines::new(&job.args.output_shape, job.axis());
        let y = GridAccess::at(job.output(), &[to.n * to.inner, 0, 0]).run(to.inner).anywhere(to.n, to.inner);
        let y = y.counted(|outer| outer_in_output(job, batch.outer.0 + outer));
        // The keys before and after the block tell whether its first run begins, and its last run ends, inside it.
        let words = self.words(level);
        let terms = self.reach(level, block, false).from(-(words as isize)).run((block + 2) * words);
        let mut reaches = vec![y, terms];
        let is_last = level + 1 == self.n_levels();
        if !is_last {
            reaches.push(self.reach(level + 1, 2, true).run(2 * self.words(level + 1)));
        }
        let key_at = |memory: &LaunchMemory, shader: &mut Shader, at: ShaderExpr| {
            memory.load(shader, 1, ShaderExpr::from(words) * at)
        };
        job.passes("sums", &batch.axes(n.div_ceil(block)), &reaches, |shader, memory| {
            let sum = Sum::of(job.routine.outputs[0], shader);
            let (n, bound) = (shader.param("n_terms", n), shader.param("bound", bound));
            let (len, beside) = (shader.param("block_len", block), shader.param("beside", batch.inner.1));
            let (line, at) = (word("outer") * beside + word("inner"), word("at"));
            let start = &at * &len;
            let first = shader.define("first", &line * &n + &start);
            let last = shader.define("last", &first + min(&len, &n - &start));
            let up = (!is_last).then(|| {
                let n_up = shader.param("n_up", self.n_terms(level + 1));
                shader.define("up", line * n_up + ShaderExpr::from(2) * &at)
            });
            // Leaves a term to the next level, the first or the second of the block.
            let leave = |shader: &mut Shader, idx: usize, key: ShaderExpr| {
                if let Some(up) = &up {
                    leave(shader, memory, up.plus(idx), key, &sum);
                }
            };
            let none = || literal(format!("{NONE}u"), Lane::U32);
            place_in_output(shader, job, batch);
            let key = key_at(memory, shader, first.clone());
            let key = shader.variable("key", key);
            // Whether the current run of equal keys starts in an earlier block (a segmented reduction).
            let begins_before = shader.variable("begins_before", named("false", ShaderType::Bool));
            let before = key_at(memory, shader, &first - 1);
            shader.open_if(at.more(0));
            shader.assign(&begins_before, before.equals(&key));
            shader.close();
            sum.start(shader);
            if !is_last {
                shader.open_if(begins_before.clone().negated());
                leave(shader, 0, none());
                shader.close();
            }
            let k = shader.open_for("k", &first, &last, 1, block);
            let next = key_at(memory, shader, k.clone());
            let next = shader.define("next", next);
            shader.open_if(next.differs(&key));
            shader.open_if(begins_before.clone());
            leave(shader, 0, key.clone());
            shader.assign(&begins_before, named("false", ShaderType::Bool));
            shader.close();
            else_add_to_output(shader, memory, &sum, &bound);
            shader.assign(&key, next);
            sum.restart(shader);
            shader.close();
            match level {
                0 => {
                    let term = memory.load(shader, 1, place_of(&k));
                    sum.add_bits(shader, term);
                }
                _ => sum.add_saved(shader, memory, 1, &(ShaderExpr::from(words) * k + 1)),
            }
            shader.close();
            // The last run of the block.
            let goes_on = shader.variable("goes_on", named("false", ShaderType::Bool));
            let after = key_at(memory, shader, last.clone());
            shader.open_if((start + (last - first)).less(n));
            shader.assign(&goes_on, after.equals(&key));
            shader.close();
            shader.open_if(begins_before.clone());
            if !is_last {
                // All of the block is one run: its sum is the first term, and the second adds nothing to it.
                leave(shader, 0, key.clone());
                sum.restart(shader);
                leave(shader, 1, select(none(), &key, goes_on.clone()));
            }
            shader.close();
            shader.open_else(Some(goes_on.clone()));
            leave(shader, 1, key);
            shader.close();
            else_add_to_output(shader, memory, &sum, &bound);
            if !is_last {
                shader.open_if(begins_before.negated().and(goes_on.negated()));
                leave(shader, 1, none());
                shader.close();
            }
        })
    }
}

/// Writes a term of the next level: the key, and the sum if there is one.
fn leave(shader: &mut Shader, memory: &LaunchMemory, at: ShaderExpr, key: ShaderExpr, sum: &Sum) {
    let first = ShaderExpr::from(sum.n_words() + 1) * at;
    memory.store(shader, 2, &first, key);
    sum.save(shader, memory, 2, &(first + 1));
}

/// After a block that an `if` has opened: else the run is added to what the output holds.
fn else_add_to_output(shader: &mut Shader, memory: &LaunchMemory, sum: &Sum, bound: &ShaderExpr) {
    let key = word("key");
    shader.open_else(Some(key.less(bound).and(is_served(&key))));
    let element = call("element_of", [word("before"), word("within"), key], word("element").ty());
    let element = shader.define("element", element);
    let before = memory.load(shader, 0, &element);
    sum.add(shader, before);
    memory.store(shader, 0, element, sum.value());
    shader.close();
}

/// Writes where in the output a line of the index, which may be smaller along the other axes, adds, and the function that
/// finds the element of a key.
fn place_in_output(shader: &mut Shader, job: &RoutineLaunch, batch: &SortBatch) {
    let (index, output, axis) = (&job.args.input_shapes[1], &job.args.output_shape, job.axis());
    let mut part = |name: &str, coordinate: &str, first: usize, axes: Range<usize>| {
        let first = shader.param(&format!("{name}_first"), first);
        let rest = shader.variable(format!("rest_{name}"), word(coordinate) + first);
        let place = shader.variable(name, 0);
        let mut step = 1;
        for a in axes.rev() {
            let (size, pitch) = (shader.param(&format!("size{a}"), index[a]), shader.param(&format!("pitch{a}"), step));
            shader.add_to(&place, &rest % &size * pitch);
            shader.assign(&rest, &rest / size);
            step *= output[a];
        }
    };
    part("before", "outer", batch.outer.0, 0..axis);
    part("within", "inner", batch.inner.0, axis + 1..index.rank());
    let to = Lines::new(output, axis);
    let (n, step) = (shader.param("bound", to.n), shader.param("out_step", to.inner));
    let [before, within, key] = ["before", "within", "key"].map(word);
    shader.function(ShaderFn {
        name: "element_of".to_string(),
        arguments: [&before, &within, &key].map(|x| (x.to_string(), x.ty())).to_vec(),
        gives: key.ty(),
        body: vec![Statement::Return(Some((before * n + key) * step + within))],
    });
}

/// The outer index of the output that one of the index is.
fn outer_in_output(job: &RoutineLaunch, outer: usize) -> usize {
    let (index, output) = (&job.args.input_shapes[1], &job.args.output_shape);
    let (mut rest, mut step, mut found) = (outer, 1, 0);
    for a in (0..job.axis()).rev() {
        found += rest % index[a] * step;
        rest /= index[a];
        step *= output[a];
    }
    found
}
