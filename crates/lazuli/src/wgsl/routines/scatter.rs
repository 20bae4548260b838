//! Adding at named places. The index is sorted along its axis, so that what meets in one place lies side by side, in
//! order; then every element of the output finds its own by bisection and adds them up. No two invocations write to
//! one place, and the order of additions does not depend on who runs first.

use super::sort::Sorting;
use super::{Job, Sum, scratch};
use crate::shape::Lines;
use crate::wgsl::{Pass, Program};

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(job: &Job) -> Program {
    let from = Lines::new(&job.args.input_shapes[1], job.axis());
    if from.n * from.count() == 0 {
        return Program { passes: vec![add(job, None, (0, 0), (0, 0))], ..Program::default() };
    }
    let sorting = Sorting::new(from);
    let bound = job.args.output_shape[job.axis()];
    let mut passes = vec![check(job, from, bound), add(job, None, (0, 0), (0, 0))];
    for first in (0..from.count()).step_by(sorting.n_lines) {
        let n_lines = sorting.n_lines.min(from.count() - first);
        passes.push(sorting.fill(job, (first, n_lines), job.input(1, "index"), |shader, index| {
            let bound = shader.param("bound", bound);
            format!("select(0xffffffffu, bitcast<u32>({index}), bitcast<u32>({index}) < {bound})")
        }));
        passes.extend(sorting.passes(job, n_lines));
        // Bisection takes the rest of an invocation's trips.
        let per_pass = job.caps.max_trips / 2;
        for start in (0..from.n).step_by(per_pass) {
            passes.push(add(job, Some((&sorting, from)), (first, n_lines), (start, per_pass)));
        }
    }
    Program { passes, scratch: sorting.scratch(), ..Program::default() }
}

/// Notes indices out of range.
fn check(job: &Job, from: Lines, bound: usize) -> Pass {
    let check = job.args.check as usize;
    job.checked_pass("check", &[job.input(1, "index")], from.n * from.count(), true, |shader, memory| {
        let (bound, check) = (shader.param("bound", bound), shader.param("check", check));
        let index = memory.load(shader, 0, "i");
        shader.line(format!("let index = bitcast<u32>({index});"));
        shader.open(format!("if (index >= {bound})"));
        shader.line(format!("atomicMax(&status[2u * {check}], 1u);"));
        shader.line(format!("atomicMin(&status[2u * {check} + 1u], index);"));
        shader.close();
    })
}

/// Without an index: `y = x`. With one: adds to every element of the output that a line of it may name, of what names
/// it the terms from `start` on, at most `n_terms`.
fn add(
    job: &Job,
    sorted: Option<(&Sorting, Lines)>,
    (first, n_lines): (usize, usize),
    (start, n_terms): (usize, usize),
) -> Pass {
    let dtype = job.routine.outputs[0];
    let Some((sorting, from)) = sorted else {
        let uses = [job.input(0, "x"), job.output()];
        return job.pass("copy", &uses, job.args.output_shape.n_elems(), |shader, memory| {
            let x = memory.load(shader, 0, "i");
            let store = memory.store(shader, 1, "i", &x);
            shader.line(store);
        });
    };
    let to = Lines::new(&job.args.output_shape, job.axis());
    let n_pairs = sorting.n_pairs();
    let uses =
        [job.input(2, "src"), job.output(), scratch(0, "keys", n_pairs, false), scratch(1, "places", n_pairs, false)];
    job.pass("sums", &uses, n_lines * to.n, |shader, memory| {
        let sum = Sum::of(dtype, shader);
        let (bound, width) = (shader.param("bound", to.n), shader.param("width", sorting.width));
        let (n_lines, first) = (shader.param("n_lines", n_lines), shader.param("first", first));
        shader.line(format!("let line = i % {n_lines};"));
        shader.line(format!("let wanted = i / {n_lines};"));
        // The first pair of the line whose key is not below.
        shader.line(format!("var low = line * {width};"));
        shader.line(format!("var high = low + {width};"));
        shader.open("while (low < high)");
        shader.line("let middle = (low + high) / 2u;");
        let key = memory.load(shader, 2, "middle");
        shader.line(format!("if ({key} < wanted) {{ low = middle + 1u; }} else {{ high = middle; }}"));
        shader.close();
        let (start, n_terms) = (shader.param("start", start), shader.param("n_terms", n_terms));
        shader.line(format!("let end = (line + 1u) * {width};"));
        shader.line(format!("var at = low + {start};"));
        let key = memory.load(shader, 2, "at");
        shader.line(format!("if (at >= end || {key} != wanted) {{ return; }}"));
        let element = place_in_output(shader, job, to, &format!("(line + {first})"), &bound);
        shader.line(format!("let element = {element};"));
        sum.start(shader);
        let before = memory.load(shader, 1, "element");
        sum.add(shader, &before);
        shader.open(format!("for (var k = 0u; k < {n_terms} && at < end; k++)"));
        shader.line(format!("if ({key} != wanted) {{ break; }}"));
        let place = memory.load(shader, 3, "at");
        let (src_n, src_inner) = (shader.param("src_len", from.n), shader.param("src_inner", from.inner));
        shader.line(format!("let from_line = line + {first};"));
        let x = memory.load(
            shader,
            0,
            &format!("((from_line / {src_inner}) * {src_n} + {place}) * {src_inner} + from_line % {src_inner}"),
        );
        sum.add(shader, &x);
        shader.line("at++;");
        shader.close();
        let store = memory.store(shader, 1, "element", sum.value());
        shader.line(store);
    })
}

/// The expression for the output's element at `wanted` of the line that a line of the index, which may be smaller
/// along the other axes, belongs to.
fn place_in_output(shader: &mut crate::wgsl::shader::Shader, job: &Job, to: Lines, line: &str, bound: &str) -> String {
    let axis = job.axis();
    let (index, output) = (&job.args.input_shapes[1], &job.args.output_shape);
    let inner = shader.param("inner", to.inner);
    // Coordinates of the line within the index, from the last axis on, counted in the output.
    shader.line(format!("var rest = {line};"));
    shader.line("var within = 0u;");
    shader.line("var before = 0u;");
    let mut step = 1;
    for a in (axis + 1..index.rank()).rev() {
        let (size, pitch) = (shader.param(&format!("size{a}"), index[a]), shader.param(&format!("pitch{a}"), step));
        shader.line(format!("within += rest % {size} * {pitch};"));
        shader.line(format!("rest /= {size};"));
        step *= output[a];
    }
    let mut step = 1;
    for a in (0..axis).rev() {
        let (size, pitch) = (shader.param(&format!("size{a}"), index[a]), shader.param(&format!("pitch{a}"), step));
        shader.line(format!("before += rest % {size} * {pitch};"));
        shader.line(format!("rest /= {size};"));
        step *= output[a];
    }
    format!("(before * {bound} + wanted) * {inner} + within")
}
