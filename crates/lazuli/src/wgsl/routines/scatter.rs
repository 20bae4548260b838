//! Adding at named places. The index is sorted along its axis, so that what meets in one place lies side by side, in
//! order, and so is what is added; then the first of each run of equal indices adds them up. No two invocations write
//! to one place, and the order of additions does not depend on who runs first.

use std::ops::Range;

use super::grid::Reach;
use super::sort::Batch;
use super::sum::Sum;
use super::{Job, scratch, whole};
use crate::dtype::{DType, Lane};
use crate::shape::Lines;
use crate::wgsl::eval::FAIL;
use crate::wgsl::memory::Use;
use crate::wgsl::shader::Shader;
use crate::wgsl::{Pass, Place, Program};

/// Pairs of a line that one pass adds up at most.
const CHUNK: usize = 1 << 16;

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(job: &Job) -> Program {
    let from = Lines::new(&job.args.input_shapes[1], job.axis());
    let mut passes = copy(job);
    if from.n * from.count() == 0 {
        return Program { passes, ..Program::default() };
    }
    let batches = Batch::all(from);
    let bound = job.args.output_shape[job.axis()];
    passes.extend(check(job, from, bound));
    let mut scratch = Batch::scratch(&batches);
    let more = [terms(job, &batches[0], true), Sums::new(job, &batches[0]).carried(true)];
    scratch.extend(more.iter().map(|one| one.size_bytes).filter(|bytes| *bytes > 0));
    for batch in &batches {
        passes.extend(batch.fill(job, job.input(1, "index"), |shader, index| {
            let bound = shader.param("bound", bound);
            format!("select(0xffffffffu, bitcast<u32>({index}), bitcast<u32>({index}) < {bound})")
        }));
        passes.extend(batch.network(job));
        let terms = batch.of_pairs(terms(job, batch, true));
        passes.extend(batch.look_up(job, "terms", job.input(2, "src"), terms, |shader| batch.pair(shader, "at")));
        let sums = Sums::new(job, batch);
        passes.extend((0..sums.n_chunks).flat_map(|chunk| sums.add(chunk)));
    }
    Program { passes, scratch, ..Program::default() }
}

/// `y = x`.
fn copy(job: &Job) -> Vec<Pass> {
    let reaches = [job.input(0, "x"), job.output()].map(|memory| Reach::at(memory, &[1]));
    job.passes("copy", &[("at", job.args.output_shape.n_elems())], &reaches, |shader, memory| {
        let x = memory.load(shader, 0, "at");
        let store = memory.store(shader, 1, "at", &x);
        shader.line(store);
    })
}

/// Notes indices out of range.
fn check(job: &Job, from: Lines, bound: usize) -> Vec<Pass> {
    let check = job.args.check as usize;
    let reaches = [Reach::at(job.input(1, "index"), &[1])];
    job.checked_passes("check", &[("at", from.n * from.count())], &reaches, |shader, memory| {
        let (bound, check) = (shader.param("bound", bound), shader.param("check", check));
        let index = memory.load(shader, 0, "at");
        shader.line(format!("let index = bitcast<u32>({index});"));
        shader.open(format!("if (index >= {bound})"));
        shader.functions(FAIL);
        shader.line(format!("fail({check}, index);"));
        shader.close();
    })
}

/// What is added, in the order of the sorted index.
fn terms(job: &Job, batch: &Batch, writes: bool) -> Use {
    let dtype = match job.routine.outputs[0].lane() {
        Lane::F32 => DType::F32,
        Lane::I32 => DType::I32,
        Lane::U32 => DType::U32,
    };
    whole(Place::Scratch(2), "terms", dtype, batch.n_pairs(), writes)
}

/// The sums of a batch, which go through its lines in chunks. A sum that is not at its end when the chunk is, is carried
/// over to the next.
struct Sums<'a> {
    job: &'a Job<'a>,
    batch: &'a Batch,
    chunk: usize,
    n_chunks: usize,
}

impl Sums<'_> {
    fn new<'a>(job: &'a Job, batch: &'a Batch) -> Sums<'a> {
        // A power of two, so that chunks do not lie across windows; finding the end of a loop takes an iteration, too.
        let chunk = 1 << CHUNK.min(job.caps.max_trips - 1).ilog2();
        Sums { job, batch, chunk, n_chunks: batch.lines.n.div_ceil(chunk) }
    }

    /// Two sums for each line, if there are chunks: what the last chunk carried over, and what this one does.
    fn carried(&self, writes: bool) -> Use {
        let n = if self.n_chunks > 1 { 2 * self.batch.outer.1 * self.batch.inner.1 } else { 0 };
        scratch(3, "carried", n * Sum::words(self.job.routine.outputs[0]), writes)
    }

    /// What an invocation reaches of pairs: the one before it, and all to the end of the chunk.
    fn rest(&self, memory: Use, chunk: usize) -> Reach<'static> {
        let Batch { width, inner, .. } = self.batch;
        let first = (chunk * self.chunk) as isize - 1;
        Reach::at(memory, &[inner.1 * width, *width, 0]).from(first).run(self.chunk + 1)
    }

    /// Adds what one chunk of the pairs of each line adds.
    fn add(&self, chunk: usize) -> Vec<Pass> {
        let (job, batch) = (self.job, self.batch);
        let (start, bound) = (chunk * self.chunk, job.args.output_shape[job.axis()]);
        let n = self.chunk.min(batch.lines.n - start);
        let carries = self.n_chunks > 1;
        let to = Lines::new(&job.args.output_shape, job.axis());
        let y = Reach::at(job.output(), &[to.n * to.inner, 0, 0]).run(to.inner).anywhere(to.n, to.inner);
        let y = y.counted(|outer| outer_in_output(job, batch.outer.0 + outer));
        let (keys, terms) = (batch.keys(false), terms(job, batch, false));
        let mut reaches = vec![y, self.rest(keys, chunk), self.rest(terms, chunk)];
        if carries {
            let carried = self.carried(true);
            let n = carried.size_bytes / 4;
            reaches.push(Reach::at(carried, &[0, 0, 0]).run(n));
        }
        job.passes("sums", &batch.axes(n), &reaches, |shader, memory| {
            let sum = Sum::of(job.routine.outputs[0], shader);
            let (bound, start) = (shader.param("bound", bound), shader.param("start", start));
            let pair = batch.pair(shader, &start);
            shader.line(format!("let start = {pair};"));
            let key = memory.load(shader, 1, "start + at");
            shader.line(format!("let wanted = {key};"));
            shader.line(format!("if (wanted >= {bound}) {{ return; }}"));
            // The first of its run, or of what this chunk has of it.
            let before = memory.load(shader, 1, "start + at - 1u");
            shader.line("var goes_on = false;");
            shader.line(format!("if (at + {start} > 0u) {{ goes_on = {before} == wanted; }}"));
            shader.line("if (goes_on && at > 0u) { return; }");
            shader.line("if (!is_served(wanted)) { return; }");
            place_in_output(shader, job, batch);
            sum.start(shader);
            let before = memory.load(shader, 0, "element");
            sum.add(shader, &before);
            if carries {
                self.carry(shader, chunk);
                shader.open("if (goes_on)");
                sum.resume(shader, memory, 3, "carried_in");
                shader.close();
            }
            let len = shader.param("chunk_len", n);
            shader.line("var k = at;");
            shader.open_loop(format!("for (; k < {len}; k++)"), n);
            let key = memory.load(shader, 1, "start + k");
            shader.line(format!("if ({key} != wanted) {{ break; }}"));
            let term = memory.load(shader, 2, "start + k");
            sum.add(shader, &term);
            shader.close();
            if carries {
                shader.open(format!("if (k == {len})"));
                sum.save(shader, memory, 3, "carried_out");
                shader.close();
            }
            let store = memory.store(shader, 0, "element", sum.value());
            shader.line(store);
        })
    }

    /// Writes where the line's sum comes from and where it goes, among those carried over.
    fn carry(&self, shader: &mut Shader, chunk: usize) {
        let n_lines = self.batch.outer.1 * self.batch.inner.1;
        let beside = shader.param("beside", self.batch.inner.1);
        let (from, to) = ((chunk + 1) % 2 * n_lines, chunk % 2 * n_lines);
        let (from, to) = (shader.param("carried_from", from), shader.param("carried_to", to));
        shader.line(format!("let carried_in = {from} + outer * {beside} + inner;"));
        shader.line(format!("let carried_out = {to} + outer * {beside} + inner;"));
    }
}

/// Writes the element of the output that a line of the index, which may be smaller along the other axes, adds to.
fn place_in_output(shader: &mut Shader, job: &Job, batch: &Batch) {
    let (index, output, axis) = (&job.args.input_shapes[1], &job.args.output_shape, job.axis());
    let mut part = |name: &str, coordinate: &str, first: usize, axes: Range<usize>| {
        let first = shader.param(&format!("{name}_first"), first);
        shader.line(format!("var rest_{name} = {coordinate} + {first};"));
        shader.line(format!("var {name} = 0u;"));
        let mut step = 1;
        for a in axes.rev() {
            let (size, pitch) = (shader.param(&format!("size{a}"), index[a]), shader.param(&format!("pitch{a}"), step));
            shader.line(format!("{name} += rest_{name} % {size} * {pitch};"));
            shader.line(format!("rest_{name} /= {size};"));
            step *= output[a];
        }
    };
    part("before", "outer", batch.outer.0, 0..axis);
    part("within", "inner", batch.inner.0, axis + 1..index.rank());
    let to = Lines::new(output, axis);
    let (n, step) = (shader.param("bound", to.n), shader.param("out_step", to.inner));
    shader.line(format!("let element = (before * {n} + wanted) * {step} + within;"));
}

/// The outer index of the output that one of the index is.
fn outer_in_output(job: &Job, outer: usize) -> usize {
    let (index, output) = (&job.args.input_shapes[1], &job.args.output_shape);
    let (mut rest, mut step, mut found) = (outer, 1, 0);
    for a in (0..job.axis()).rev() {
        found += rest % index[a] * step;
        rest /= index[a];
        step *= output[a];
    }
    found
}
