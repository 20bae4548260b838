//! Running sums: the total of every block of a line, then where every block starts, then every block from there.

use super::{Job, Sum, element, scratch};
use crate::shape::Lines;
use crate::wgsl::{Pass, Program};

/// Elements of a block at least.
const BLOCK: usize = 256;

/// `y[i] = Σ x[j]` for `j ≤ i` along an axis.
pub fn cumsum(job: &Job) -> Program {
    let lines = Lines::new(&job.args.output_shape, job.axis());
    let half = job.caps.max_trips / 2;
    let block = BLOCK.max(lines.n.div_ceil(half)).min(half);
    let n_blocks = lines.n.div_ceil(block);
    if n_blocks == 1 {
        return Program { passes: vec![blocks(job, lines, block, 1)], ..Program::default() };
    }
    let n_words = lines.count() * n_blocks * Sum::words(job.routine.outputs[0]);
    Program {
        passes: vec![
            totals(job, lines, block, n_blocks),
            starts(job, lines, n_blocks),
            blocks(job, lines, block, n_blocks),
        ],
        scratch: vec![n_words * 4],
        ..Program::default()
    }
}

/// The total of every block of every line, lines side by side.
fn totals(job: &Job, lines: Lines, block: usize, n_blocks: usize) -> Pass {
    let n = lines.count() * n_blocks;
    let uses = [job.input(0, "x"), scratch(0, "totals", n * Sum::words(job.routine.outputs[0]), true)];
    job.pass("totals of blocks", &uses, n, |shader, memory| {
        let sum = Sum::of(job.routine.outputs[0], shader);
        let (n_lines, len) = (shader.param("n_lines", lines.count()), shader.param("block", block));
        shader.line(format!("let line = i % {n_lines};"));
        let n = shader.param("line_len", lines.n);
        sum.start(shader);
        shader.open(format!("for (var at = i / {n_lines} * {len}; at < min({n}, (i / {n_lines} + 1u) * {len}); at++)"));
        let element = element(lines, shader, "line", "at");
        let x = memory.load(shader, 0, &element);
        sum.add(shader, &x);
        shader.close();
        sum.save(shader, memory, 1, "i");
    })
}

/// Totals become what comes before each block.
fn starts(job: &Job, lines: Lines, n_blocks: usize) -> Pass {
    let dtype = job.routine.outputs[0];
    let uses = [scratch(0, "totals", lines.count() * n_blocks * Sum::words(dtype), true)];
    job.pass("starts of blocks", &uses, lines.count(), |shader, memory| {
        let sum = Sum::of(dtype, shader);
        let (n_lines, n_blocks) = (shader.param("n_lines", lines.count()), shader.param("n_blocks", n_blocks));
        sum.start(shader);
        shader.open(format!("for (var block = 0u; block < {n_blocks}; block++)"));
        shader.line(format!("let at = block * {n_lines} + i;"));
        shader.line("let before = sum;");
        sum.add_saved(shader, memory, 0, "at");
        shader.line("let after = sum;");
        shader.line("sum = before;");
        sum.save(shader, memory, 0, "at");
        shader.line("sum = after;");
        shader.close();
    })
}

/// Every element of every block.
fn blocks(job: &Job, lines: Lines, block: usize, n_blocks: usize) -> Pass {
    let dtype = job.routine.outputs[0];
    let n = lines.count() * n_blocks;
    let mut uses = vec![job.input(0, "x"), job.output()];
    if n_blocks > 1 {
        uses.push(scratch(0, "starts", n * Sum::words(dtype), false));
    }
    job.pass("running sums", &uses, n, |shader, memory| {
        let sum = Sum::of(dtype, shader);
        let (n_lines, len) = (shader.param("n_lines", lines.count()), shader.param("block", block));
        let n = shader.param("line_len", lines.n);
        shader.line(format!("let line = i % {n_lines};"));
        sum.start(shader);
        if n_blocks > 1 {
            sum.add_saved(shader, memory, 2, "i");
        }
        shader.open(format!("for (var at = i / {n_lines} * {len}; at < min({n}, (i / {n_lines} + 1u) * {len}); at++)"));
        let element = element(lines, shader, "line", "at");
        shader.line(format!("let element = {element};"));
        let x = memory.load(shader, 0, "element");
        sum.add(shader, &x);
        let store = memory.store(shader, 1, "element", sum.value());
        shader.line(store);
        shader.close();
    })
}
