//! Running sums: the total of every block of a line, then where every block starts, then every block from there. Blocks
//! whose rows lie so far apart that one of them touches many windows are gone through in steps.

use std::ops::Range;

use super::grid::{GridAccess, GridAxis};
use super::sum::Sum;
use super::{RoutineLaunch, RoutineLines, RoutineOf, element, scratch};
use crate::shape::Lines;
use crate::wgsl::launch_memory::Use;
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, min, select, word};
use crate::wgsl::{Pass, ShaderProgram};

/// Elements of a block at least.
const BLOCK: usize = 256;

/// Blocks of a line at most, so that what is kept of them is one window.
const MAX_BLOCKS: usize = 1 << 16;

/// Blocks that are not too many, and steps that touch no more windows than there may be.
pub fn schedule(of: &RoutineOf) -> RoutineLines {
    let lines = Lines::new(&of.args.output_shape, of.axis());
    let max_iterations = of.target.max_iterations / 2;
    let len = BLOCK.max(lines.n.div_ceil(MAX_BLOCKS.min(max_iterations)));
    let mut step = len.min(max_iterations);
    let window = of.target.max_binding_bytes;
    let n_windows = |one: Use| one.size_bytes.div_ceil(window);
    let kept = Scan::new(of, (len, step)).kept(true);
    if n_windows(of.input(0, "x")) + n_windows(of.output()) + n_windows(kept) > of.target.max_bindings {
        let size = of.routine.inputs[0].unit_bytes().max(of.routine.outputs[0].size());
        step = step.min(window / (lines.inner * size).max(1)).max(1);
    }
    RoutineLines::Blocks { len, step }
}

/// `y[i] = Σ x[j]` for `j ≤ i` along an axis.
pub fn cumsum(job: &RoutineLaunch) -> ShaderProgram {
    let RoutineLines::Blocks { len, step } = job.schedule.lines else {
        unreachable!("bug: the schedule of another routine")
    };
    let scan = Scan::new(job, (len, step));
    let mut passes = Vec::new();
    if scan.n_blocks > 1 {
        passes.extend(scan.steps().into_iter().flat_map(|step| scan.totals(job, step)));
        passes.extend(scan.starts(job));
    }
    passes.extend(scan.steps().into_iter().flat_map(|step| scan.sums(job, step)));
    let scratch = if scan.keeps() { vec![scan.n_words() * 4] } else { Vec::new() };
    ShaderProgram { passes, scratch }
}

/// How lines are cut into blocks, and blocks into steps.
struct Scan {
    lines: Lines,
    block: usize,
    n_blocks: usize,
    step: usize,
    /// Words of a sum.
    words: usize,
}

impl Scan {
    fn new(of: &RoutineOf, (block, step): (usize, usize)) -> Scan {
        let lines = Lines::new(&of.args.output_shape, of.axis());
        Scan { lines, block, n_blocks: lines.n.div_ceil(block), step, words: Sum::words(of.routine.outputs[0]) }
    }

    /// Positions within blocks.
    fn steps(&self) -> Vec<Range<usize>> {
        let end = self.block.min(self.lines.n);
        (0..end).step_by(self.step).map(|start| start..end.min(start + self.step)).collect()
    }

    /// Whether sums are kept between passes.
    fn keeps(&self) -> bool {
        self.n_blocks > 1 || self.step < self.lines.n
    }

    fn n_words(&self) -> usize {
        self.lines.count() * self.n_blocks * self.words
    }

    /// The sums that are kept: those of a line side by side.
    fn kept(&self, writes: bool) -> Use {
        scratch(0, "kept", self.n_words(), writes)
    }

    fn axes(&self) -> [GridAxis; 3] {
        [("outer", self.lines.outer), ("block", self.n_blocks), ("inner", self.lines.inner)]
    }

    /// What an invocation reaches of an input or output in a step, and of what is kept.
    fn line(&self, memory: Use, step: &Range<usize>) -> GridAccess<'static> {
        let (n, inner) = (self.lines.n, self.lines.inner);
        let reach = GridAccess::at(memory, &[n * inner, self.block * inner, 1]);
        reach.from((step.start * inner) as isize).run((step.len() - 1) * inner + 1)
    }

    fn one(&self, writes: bool) -> GridAccess<'static> {
        let per_line = self.n_blocks * self.words;
        GridAccess::at(self.kept(writes), &[self.lines.inner * per_line, self.words, per_line]).run(self.words)
    }

    /// The first word of an invocation's sum among those that are kept.
    fn kept_at(&self, shader: &mut Shader) -> ShaderExpr {
        let (step, n_blocks) = (shader.param("line_step", self.lines.inner), shader.param("n_blocks", self.n_blocks));
        ((word("outer") * step + word("inner")) * n_blocks + word("block")) * self.words
    }

    /// Opens a loop over the elements of a step that the block has; gives the element.
    fn open_step(&self, shader: &mut Shader, step: &Range<usize>) -> ShaderExpr {
        let (last, n_last) = (self.n_blocks - 1, self.lines.n - (self.n_blocks - 1) * self.block);
        let (last, n_last) = (shader.param("last_block", last), shader.param("n_last", n_last));
        let (start, end) = (shader.param("step_start", step.start), shader.param("step_end", step.end));
        let block = word("block");
        let end = shader.define("end", select(&end, min(&end, n_last), block.equals(last)));
        let block_len = shader.param("block", self.block);
        let k = shader.open_for("k", start, end, 1, step.len());
        let at = shader.define("at", block * block_len + k);
        element(self.lines, shader, &at) + word("inner")
    }

    /// The total of every block, as far as this step.
    fn totals(&self, job: &RoutineLaunch, step: Range<usize>) -> Vec<Pass> {
        let reaches = [self.line(job.input(0, "x"), &step), self.one(true)];
        job.passes("totals of blocks", &self.axes(), &reaches, |shader, memory| {
            let sum = Sum::of(job.routine.outputs[0], shader);
            let kept_at = self.kept_at(shader);
            sum.start(shader);
            if step.start > 0 {
                sum.resume(shader, memory, 1, &kept_at);
            }
            let element = self.open_step(shader, &step);
            let x = memory.load(shader, 0, element);
            sum.add(shader, x);
            shader.close();
            sum.save(shader, memory, 1, &kept_at);
        })
    }

    /// Totals become what comes before each block.
    fn starts(&self, job: &RoutineLaunch) -> Vec<Pass> {
        let per_line = self.n_blocks * self.words;
        let reaches = [GridAccess::at(self.kept(true), &[per_line]).run(per_line)];
        job.passes("starts of blocks", &[("line", self.lines.count())], &reaches, |shader, memory| {
            let sum = Sum::of(job.routine.outputs[0], shader);
            let n_blocks = shader.param("n_blocks", self.n_blocks);
            sum.start(shader);
            let block = shader.open_for("block", 0, &n_blocks, 1, self.n_blocks);
            let at = shader.define("at", (word("line") * n_blocks + block) * self.words);
            let before = shader.define("before", sum.variable());
            sum.add_saved(shader, memory, 0, &at);
            let after = shader.define("after", sum.variable());
            shader.assign(&sum.variable(), before);
            sum.save(shader, memory, 0, &at);
            shader.assign(&sum.variable(), after);
            shader.close();
        })
    }

    /// Every element of every block in this step.
    fn sums(&self, job: &RoutineLaunch, step: Range<usize>) -> Vec<Pass> {
        let goes_on = step.end < self.block.min(self.lines.n);
        let mut reaches = vec![self.line(job.input(0, "x"), &step), self.line(job.output(), &step)];
        if self.keeps() {
            reaches.push(self.one(goes_on));
        }
        job.passes("running sums", &self.axes(), &reaches, |shader, memory| {
            let sum = Sum::of(job.routine.outputs[0], shader);
            let kept_at = self.kept_at(shader);
            sum.start(shader);
            match step.start {
                0 if self.n_blocks == 1 => {}
                0 => sum.add_saved(shader, memory, 2, &kept_at),
                _ => sum.resume(shader, memory, 2, &kept_at),
            }
            let element = self.open_step(shader, &step);
            let element = shader.define("element", element);
            let x = memory.load(shader, 0, &element);
            sum.add(shader, x);
            memory.store(shader, 1, element, sum.value());
            shader.close();
            if goes_on {
                sum.save(shader, memory, 2, &kept_at);
            }
        })
    }
}
