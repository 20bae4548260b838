//! Reductions: one invocation, or several that share workgroup memory, per row (or per column, or four columns side by
//! side). Stage after stage the row is read, folded and, at last, written; what a later stage needs again is read or
//! computed again. Long sums are made of sums of blocks, so that rounding errors stay small.

mod pairs;
mod online_softmax;

use super::Pass;
use super::convert::lane_name;
use super::cut::Context;
use super::eval::{Eval, ShaderValue, apply, without_parens};
use super::index::{Accesses, Spot, split};
use super::map::{side_by_side, spot};
use super::memory::{LANES, LaunchMemory};
use super::schedule::{self, BLOCK_ITERATIONS, OnlineSoftmax, ReduceSchedule, VecLoad};
use super::shader::Shader;
use crate::dtype::Lane;
use crate::kernel::{Args, InstOp, Order, Reg, Scope, Store};
use crate::ops::ReduceRow;
use pairs::Pairs;

/// The dispatch of one part of a reduction.
pub fn pass(context: &Context, args: &Args) -> Pass {
    let shape = schedule::reduce_shape(context.body, args, context.target);
    let by_four = schedule::modes(context.body, args, shape.four);
    let by_one = schedule::modes(context.body, args, None);
    let modes: &[&[VecLoad]] = if shape.scalar_tail { &[&by_four, &by_one] } else { &[&by_four] };
    let memory = context.memory(args, modes);
    let mut shader = Shader::new(context.comment(), &args.consts, shape.items * shape.lanes);
    let columns = context.body.order == Order::OuterFast;
    let kept = context.kept();
    let by = (&by_four[..], &by_one[..]);
    let reduction =
        Reduction { context, args, shape, columns, by_four: by.0, by_one: by.1, kept: &kept, memory: &memory };
    reduction.write(&mut shader);
    let n_outer: usize = args.outer.iter().product();
    let per_item = reduction.per_item();
    shader.finish(context.label(), &memory, (n_outer / per_item).div_ceil(shape.items))
}

/// What a reduction's text is written from.
#[derive(Clone, Copy)]
struct Reduction<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    shape: ReduceSchedule,
    columns: bool,
    by_four: &'a [VecLoad],
    by_one: &'a [VecLoad],
    kept: &'a [bool],
    memory: &'a LaunchMemory,
}

/// How much of a row one pass through a loop's body takes.
#[derive(Clone, Copy, PartialEq)]
enum Take {
    /// Several steps written out, each four elements where they go together.
    Unrolled,
    /// One step.
    Step,
    /// One element, of what is left over by fours.
    One,
}

/// What one sweep over rows does.
struct ReduceSweep<'s> {
    folds: Vec<Reg>,
    stores: Vec<&'s Store>,
    /// If the folds are a largest element and a sum that needs it.
    shifted: Option<OnlineSoftmax>,
}

/// A row, or four columns side by side: what has been evaluated of it.
struct Row<'a> {
    eval: Eval<'a>,
    /// If the whole row is kept, its steps.
    steps: Vec<Eval<'a>>,
    /// Put after the names of its accumulators.
    suffix: String,
}

impl<'a> Reduction<'a> {
    /// Outer indices of an item.
    fn per_item(&self) -> usize {
        if self.columns && self.shape.four.is_some() { 4 * self.shape.vecs_per_thread } else { 1 }
    }

    /// Inner elements of one step of one invocation.
    fn per_step(&self) -> usize {
        if !self.columns && self.shape.four.is_some() { 4 } else { 1 }
    }

    fn write(&'a self, shader: &mut Shader) {
        let body = self.context.body;
        self.write_item(shader);
        self.write_length(shader);
        let mut rows: Vec<Row> = (0..self.shape.vecs_per_thread).map(|b| self.start_row(shader, b)).collect();
        let stages = body.stages();
        let is_reduce = |r: Reg| matches!(body.insts[r as usize].op, InstOp::Reduce(..));
        let reduces: Vec<Reg> = (0..body.insts.len() as Reg).filter(|r| is_reduce(*r)).collect();
        let n_stages = reduces.iter().map(|r| stages[*r as usize] + 1).max().unwrap_or(0);
        let is_inner = |s: &&Store| rows[0].eval.accesses.is_inner(s.access);
        let (inner, outer): (Vec<&Store>, Vec<&Store>) = body.stores.iter().partition(is_inner);
        let stage_of = |s: &Store| (stages[s.value as usize] + is_reduce(s.value) as u16).min(n_stages);
        let sweep_of = |stage: u16| ReduceSweep {
            folds: reduces.iter().copied().filter(|r| stages[*r as usize] == stage).collect(),
            stores: inner.iter().copied().filter(|s| stage_of(s) == stage).collect(),
            shifted: None,
        };
        let mut sweeps = (0..=n_stages).map(sweep_of).peekable();
        while let Some(mut sweep) = sweeps.next() {
            if let Some(next) = sweeps.next_if(|next| self.shifted(&sweep, next).is_some()) {
                sweep.shifted = self.shifted(&sweep, &next);
                sweep.folds.extend(next.folds);
            }
            if !sweep.folds.is_empty() || !sweep.stores.is_empty() {
                self.sweep(shader, &mut rows, &sweep);
            }
        }
        for row in rows.iter_mut().filter(|_| !outer.is_empty()) {
            row.eval.need(shader, outer.iter().map(|s| s.value));
            self.store(shader, &mut row.eval, &outer, self.guard(true));
        }
    }

    /// Writes what is known of a row before it is read.
    fn start_row(&'a self, shader: &mut Shader, vecs_per_thread: usize) -> Row<'a> {
        let accesses = Accesses { body: self.context.body, args: self.args, modes: self.by_four, kept: self.kept };
        let suffix = if vecs_per_thread == 0 {
            String::new()
        } else {
            format!("_{}", ["a", "b", "c", "d", "e", "f", "g", "h"][vecs_per_thread])
        };
        if vecs_per_thread > 0 {
            shader.line(format!("let row{suffix} = row + {}u;", 4 * vecs_per_thread));
        }
        let outer_four = self.shape.four.filter(|_| self.columns);
        let mut spot = spot(shader, &accesses, &format!("row{suffix}"), outer_four, &suffix);
        // Steps of a row that is kept and does not come out even are not a four apart. Where rows are also stored, drivers
        // gain nothing from it.
        let is_even = !(self.shape.kept && self.shape.rest);
        spot.ahead = (self.per_step() == 4 && is_even && self.stores_once()).then_some(0);
        for access in 0..accesses.body.accesses.len() as u16 {
            if used_inside(&accesses, access) {
                accesses.hoist(shader, access, &spot);
            }
        }
        let eval = Eval::new(accesses, self.memory, spot);
        Row { eval, steps: Vec::new(), suffix }
    }

    /// Writes stores, under a condition if there is one.
    fn store(&self, shader: &mut Shader, eval: &mut Eval, stores: &[&Store], guard: Option<String>) {
        let guard = guard.filter(|_| !stores.is_empty());
        if let Some(guard) = &guard {
            stores.iter().for_each(|s| eval.place(shader, s));
            shader.open(format!("if ({guard})"));
        }
        stores.iter().for_each(|s| eval.store(shader, s));
        if guard.is_some() {
            shader.close();
        }
    }

    /// Which row (or first of four columns) this invocation works on, and which part of it.
    fn write_item(&self, shader: &mut Shader) {
        let ReduceSchedule { items, lanes, .. } = self.shape;
        let n_outer = shader.param("n_outer", self.args.outer.iter().product());
        shader.count_groups();
        let (item, part) = match (items, lanes) {
            (1, _) => ("group_idx".to_string(), "lane".to_string()),
            (_, 1) => (format!("(group_idx * {items}u + lane)"), String::new()),
            _ if self.columns => (format!("(group_idx * {items}u + lane % {items}u)"), format!("lane / {items}u")),
            _ => (format!("(group_idx * {items}u + lane / {lanes}u)"), format!("lane % {lanes}u")),
        };
        let each = if self.per_item() > 1 { format!(" * {}u", self.per_item()) } else { String::new() };
        if self.repeats_last() {
            shader.line(format!("let wanted = {item}{each};"));
            shader.line(format!("let row = min(wanted, {n_outer} - {}u);", self.per_item()));
        } else {
            shader.line(format!("let row = {item}{each};"));
            shader.line(format!("if (row >= {n_outer}) {{ return; }}"));
        }
        if lanes > 1 {
            shader.line(format!("let part = {part};"));
        }
    }

    /// Whether invocations beyond the end do the last row again and store nothing, rather than return. Barriers want
    /// every invocation; and some drivers take longer for all that follows a return, more than one condition at the end (of
    /// columns side by side there would be many).
    fn repeats_last(&self) -> bool {
        self.shape.items > 1 && (self.shape.lanes > 1 || (self.stores_once() && !self.columns))
    }

    /// Whether all that is stored is a row's result.
    fn stores_once(&self) -> bool {
        let n_outer = self.args.outer.len();
        let is_result = |s: &Store| self.args.accesses[s.access as usize].shape().rank() <= n_outer;
        self.context.body.stores.iter().all(is_result)
    }

    /// The condition under which an invocation stores; None if it always does.
    fn guard(&self, once_a_row: bool) -> Option<String> {
        let lanes = self.shape.lanes;
        let mut conditions = Vec::new();
        if self.repeats_last() {
            conditions.push("row == wanted");
        }
        if lanes > 1 && once_a_row {
            conditions.push("part == 0u");
        }
        (!conditions.is_empty()).then(|| conditions.join(" && "))
    }

    /// How long the row is, and where its parts end.
    fn write_length(&self, shader: &mut Shader) {
        let inner = shader.param("n_inner", self.args.inner.iter().product());
        let n = if self.context.body.ragged {
            let rows = shader.param("rows_per_piece", self.args.outer[1..].iter().product());
            let limit = shader.param("limit", self.args.limit);
            shader.line(format!("let n = min({inner}, {limit} - row / {rows} * {inner});"));
            "n".to_string()
        } else {
            inner
        };
        if self.shape.kept {
            return;
        }
        let per_chunk = self.shape.lanes * self.per_step() * self.shape.unroll;
        match self.shape.rest {
            true => shader.line(format!("let n_whole = {n} / {per_chunk}u * {per_chunk}u;")),
            false => shader.line(format!("let n_whole = {n};")),
        }
        if self.shape.scalar_tail {
            shader.line(format!("let n_by_four = {n} / 4u * 4u;"));
        }
    }

    fn n(&self, shader: &mut Shader) -> String {
        match self.context.body.ragged {
            true => "n".to_string(),
            false => shader.param("n_inner", self.args.inner.iter().product()),
        }
    }

    /// Folds rows and stores; then each fold has its value.
    fn sweep(&'a self, shader: &mut Shader, rows: &mut [Row<'a>], sweep: &ReduceSweep) {
        let ReduceSweep { folds, stores, shifted } = sweep;
        // What is the same along the row is evaluated first.
        let insts = &self.context.body.insts;
        for row in rows.iter_mut() {
            let missing = row.eval.missing(self.goals(sweep));
            row.eval.need(shader, missing.into_iter().filter(|r| insts[*r as usize].scope != Scope::Inner));
        }
        match self.shape.kept {
            true => rows.iter_mut().for_each(|row| self.sweep_kept(shader, row, folds, stores)),
            false => self.sweep_loops(shader, rows, sweep),
        }
        for row in rows {
            for fold in folds {
                if let Some(of) = shifted.filter(|of| of.sum == *fold) {
                    let largest = row.eval.value(of.max).text.clone();
                    self.scale(shader, of, &largest, &["all"]);
                }
                let mut value = self.result(shader, *fold, &row.suffix);
                if self.kept[*fold as usize] {
                    // Once, before any loop that uses it.
                    let (name, kept) = (format!("kept{fold}{}", row.suffix), value.kept_otherwise(shader));
                    shader.line(format!("let {name} = {};", kept.text));
                    value = ShaderValue { text: name, ..kept };
                }
                row.eval.values[*fold as usize] = Some(value.clone());
                row.steps.iter_mut().for_each(|step| step.values[*fold as usize] = Some(value.clone()));
            }
        }
    }

    /// Whether two sweeps, each of one fold and nothing else, can be one.
    fn shifted(&self, first: &ReduceSweep, then: &ReduceSweep) -> Option<OnlineSoftmax> {
        match (&first.folds[..], &then.folds[..], first.stores.is_empty() && then.stores.is_empty()) {
            ([max], [sum], true) => schedule::shifted(self.context.body, self.args, &self.shape, *max, *sum),
            _ => None,
        }
    }

    /// What a sweep evaluates at every step.
    fn goals(&self, sweep: &ReduceSweep) -> Vec<Reg> {
        match sweep.shifted {
            Some(of) => vec![self.operand(of.max)],
            None => {
                let folded = sweep.folds.iter().map(|r| self.operand(*r));
                folded.chain(sweep.stores.iter().map(|s| s.value)).collect()
            }
        }
    }

    /// Folds and stores a row that is kept.
    fn sweep_kept(&'a self, shader: &mut Shader, row: &mut Row<'a>, folds: &[Reg], stores: &[&Store]) {
        let n = self.n(shader);
        if row.steps.is_empty() {
            for step in 0..self.shape.unroll {
                let here = self.at_step(shader, row, Take::Unrolled, step);
                row.steps.push(here);
            }
        }
        for step in &mut row.steps {
            for (value, known) in row.eval.values.iter().zip(&mut step.values) {
                if known.is_none() {
                    known.clone_from(value);
                }
            }
            step.need(shader, folds.iter().map(|r| self.operand(*r)).chain(stores.iter().map(|s| s.value)));
            let inside = self.shape.rest.then(|| format!("place{} < {n}", step.spot.suffix));
            let guard: Vec<String> = inside.into_iter().chain(self.guard(false)).collect();
            let guard = (!guard.is_empty()).then(|| guard.join(" && "));
            self.store(shader, step, stores, guard);
        }
        for fold in folds {
            let four = self.shape.four.is_some();
            let values: Vec<ShaderValue> = row.steps.iter().map(|step| self.inside(shader, step, *fold, &n)).collect();
            let value = self.in_pairs(shader, *fold, values);
            let text = if four { value.as_four() } else { value.text };
            shader.line(format!("let all{fold}{} = {text};", row.suffix));
        }
    }

    /// What a step folds: nothing where it is beyond the end of the row.
    fn inside(&self, shader: &mut Shader, step: &Eval, fold: Reg, n: &str) -> ShaderValue {
        let value = step.value(self.operand(fold)).reinterpreted(self.lane(fold));
        if !self.shape.rest {
            return value;
        }
        let none = self.nothing(shader, fold);
        let condition = format!("place{} < {n}", step.spot.suffix);
        match value.four {
            true => ShaderValue { text: format!("select(vec4({none}), {}, {condition})", value.text), ..value },
            false => ShaderValue { text: format!("select({none}, {}, {condition})", value.text), ..value },
        }
    }

    /// Writes loops over rows side by side that fold and store.
    fn sweep_loops(&'a self, shader: &mut Shader, rows: &[Row<'a>], sweep: &ReduceSweep) {
        let folds = &sweep.folds;
        let four = self.shape.four.is_some();
        if let Some(of) = sweep.shifted {
            self.declare_shift(shader, of);
        }
        for row in rows {
            for fold in folds {
                self.declare(shader, "all", *fold, &row.suffix, four);
                if self.shape.scalar_tail {
                    self.declare(shader, "rest", *fold, &row.suffix, false);
                }
            }
        }
        let blocked = self.shape.blocks && folds.iter().any(|r| self.rounds(*r));
        let per_chunk = self.shape.lanes * self.per_step() * self.shape.unroll;
        let n_chunks = self.args.inner.iter().product::<usize>().div_ceil(per_chunk);
        if blocked {
            let block = per_chunk * BLOCK_ITERATIONS;
            let n_blocks = n_chunks.div_ceil(BLOCK_ITERATIONS);
            shader.open_loop(format!("for (var block = 0u; block < n_whole; block += {block}u)"), n_blocks);
            for row in rows {
                folds.iter().for_each(|r| self.declare(shader, "sum", *r, &row.suffix, four));
            }
            shader.line(format!("let end = min(block + {block}u, n_whole);"));
            shader.open_loop(format!("for (var j = block; j < end; j += {per_chunk}u)"), n_chunks);
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::Unrolled, "sum"));
            shader.close();
            for row in rows {
                for fold in folds {
                    let sum = self.accumulator("sum", *fold, &row.suffix, four);
                    self.fold_into(shader, *fold, "all", &row.suffix, &sum);
                }
            }
            shader.close();
        } else {
            shader.open_loop(format!("for (var j = 0u; j < n_whole; j += {per_chunk}u)"), n_chunks);
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::Unrolled, "all"));
            shader.close();
        }
        self.write_rest(shader, rows, sweep);
    }

    /// Loops over what the main loop leaves over.
    fn write_rest(&'a self, shader: &mut Shader, rows: &[Row<'a>], sweep: &ReduceSweep) {
        let lanes = self.shape.lanes;
        let n = self.n(shader);
        if self.shape.rest {
            let per = self.per_step();
            let end = if self.shape.scalar_tail { "n_by_four" } else { &n };
            let text = format!("for (var j = n_whole{}; j < {end}; j += {}u)", self.part(per), lanes * per);
            shader.open_loop(text, self.shape.unroll);
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::Step, "all"));
            shader.close();
        }
        if self.shape.scalar_tail {
            let text = format!("for (var j = n_by_four{}; j < {n}; j += {lanes}u)", self.part(1));
            shader.open_loop(text, 3usize.div_ceil(lanes));
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::One, "rest"));
            shader.close();
        }
    }

    /// Where this invocation's part of a row starts, to be added.
    fn part(&self, per: usize) -> String {
        match (self.shape.lanes, per) {
            (1, _) => String::new(),
            (_, 1) => " + part".to_string(),
            _ => format!(" + part * {per}u"),
        }
    }

    /// How many steps one pass through a loop's body makes.
    fn n_steps(&self, take: Take) -> usize {
        if take == Take::Unrolled { self.shape.unroll } else { 1 }
    }

    /// The body of a loop over `j`, for one row.
    fn trip(&'a self, shader: &mut Shader, row: &Row<'a>, sweep: &ReduceSweep, take: Take, into: &str) {
        if let Some(of) = sweep.shifted {
            return self.trip_shifted(shader, row, of, take, into);
        }
        let mut pairs: Vec<Pairs> = sweep.folds.iter().map(|fold| Pairs::new(*fold)).collect();
        for step in 0..self.n_steps(take) {
            let mut here = self.at_step(shader, row, take, step);
            here.need(shader, self.goals(sweep));
            for pairs in &mut pairs {
                self.pair(shader, pairs, &row.suffix, here.value(self.operand(pairs.fold)));
            }
            self.store(shader, &mut here, &sweep.stores, self.guard(false));
        }
        for pairs in pairs {
            self.fold_pairs_into(shader, pairs, into, &row.suffix);
        }
    }

    /// An evaluation at one step of a trip, or of a row that is kept.
    fn at_step(&'a self, shader: &mut Shader, row: &Row<'a>, take: Take, step: usize) -> Eval<'a> {
        let number = if step > 0 { format!("_{step}") } else { String::new() };
        let suffix = format!("{}{number}", row.suffix);
        let per = self.per_step();
        let part = if take == Take::Unrolled { self.part(per) } else { String::new() };
        let by = match step * self.shape.lanes * per {
            0 => String::new(),
            by => format!(" + {by}u"),
        };
        let mut position = format!("j{part}{by}");
        if self.shape.kept {
            position = position.trim_start_matches("j").trim_start_matches(" + ").to_string();
            if position.is_empty() {
                position = "0u".to_string();
            }
        }
        if self.shape.kept && self.shape.rest {
            // Beyond the end the last elements are read again; they count for nothing.
            let n = self.n(shader);
            shader.line(format!("let place{suffix} = {position};"));
            position = format!("min(place{suffix}, {n} - {per}u)");
        }
        if position != "j" {
            shader.line(format!("let at{suffix} = {position};"));
            position = format!("at{suffix}");
        }
        let inner = &self.args.inner;
        let names: Vec<String> = match inner.len() {
            1 => vec![position.clone()],
            n => (0..n).map(|axis| format!("j{axis}{suffix}")).collect(),
        };
        if inner.len() > 1 {
            let sizes: Vec<String> =
                inner.iter().enumerate().map(|(axis, n)| shader.param(&format!("inner{axis}"), *n)).collect();
            split(shader, &position, &names, &sizes);
        }
        let mut coordinates = row.eval.spot.coordinates[0].clone();
        coordinates.extend(names);
        // Without coordinates of the outer axes nothing asks for any.
        let along = self.shape.four.filter(|_| take != Take::One).map(|f| f.axis);
        let along = along.filter(|axis| *axis < coordinates.len());
        let ahead = row.eval.spot.ahead.map(|_| step * self.shape.lanes);
        let coordinates = side_by_side(coordinates, along);
        let mut here = row.eval.clone();
        here.spot = Spot { inner: position, coordinates, suffix, ahead, ..row.eval.spot.clone() };
        if take == Take::One {
            here.accesses = Accesses { modes: self.by_one, ..here.accesses };
        }
        here
    }

    fn operand(&self, fold: Reg) -> Reg {
        match self.context.body.insts[fold as usize].op {
            InstOp::Reduce(_, x) => x,
            _ => unreachable!("bug: {fold} is not a reduction"),
        }
    }

    fn row(&self, fold: Reg) -> &'static ReduceRow {
        match self.context.body.insts[fold as usize].op {
            InstOp::Reduce(row, _) => row,
            _ => unreachable!("bug: {fold} is not a reduction"),
        }
    }

    fn lane(&self, fold: Reg) -> Lane {
        self.context.body.insts[fold as usize].dtype.lane()
    }

    /// Whether folding loses digits, so that the order of folding counts.
    fn rounds(&self, fold: Reg) -> bool {
        self.lane(fold) == Lane::F32 && self.row(fold).ulps > 0.0
    }

    fn accumulator(&self, name: &str, fold: Reg, suffix: &str, four: bool) -> ShaderValue {
        ShaderValue { text: format!("{name}{fold}{suffix}"), lane: self.lane(fold), four }
    }

    /// The value that changes nothing.
    fn nothing(&self, shader: &mut Shader, fold: Reg) -> String {
        let (row, lane) = (self.row(fold), self.lane(fold));
        let lane_text = lane_name(lane);
        let bits = row.cpu.get(lane).map_or(0, |loops| loops[0].identity);
        let function = format!("{}_of_none_{lane_text}", row.name);
        // Not a constant: infinities may not be.
        shader.functions(&format!(
            "fn {function}() -> {lane_text} {{ var bits = {bits:#x}u; return bitcast<{lane_text}>(bits); }}\n"
        ));
        format!("{function}()")
    }

    /// Declares an accumulator that nothing has been folded into.
    fn declare(&self, shader: &mut Shader, name: &str, fold: Reg, suffix: &str, four: bool) {
        let nothing = self.nothing(shader, fold);
        let start = if four { format!("vec4({nothing})") } else { nothing };
        shader.line(format!("var {name}{fold}{suffix} = {start};"));
    }

    fn combine(&self, shader: &mut Shader, fold: Reg, x: &ShaderValue, y: &ShaderValue) -> (String, bool) {
        let (row, lane) = (self.row(fold), self.lane(fold));
        shader.functions(row.wgsl_fns);
        let text = row.wgsl.replace("$t", lane_name(lane));
        apply(shader, row.name, &text, &["$x", "$y"], &[x.reinterpreted(lane), y.reinterpreted(lane)], lane)
    }

    /// Two values as one.
    fn combined(&self, shader: &mut Shader, fold: Reg, x: &ShaderValue, y: &ShaderValue) -> ShaderValue {
        let (text, four) = self.combine(shader, fold, x, y);
        ShaderValue { text, lane: self.lane(fold), four }
    }

    fn fold_into(&self, shader: &mut Shader, fold: Reg, name: &str, suffix: &str, value: &ShaderValue) {
        let into = self.accumulator(name, fold, suffix, self.shape.four.is_some() && name != "rest");
        let (text, _) = self.combine(shader, fold, &into, value);
        shader.line(format!("{} = {};", into.text, without_parens(&text)));
    }

    /// What an accumulator holds of the row: where its four are of one row, all of them.
    fn across(&self, shader: &mut Shader, fold: Reg, name: &str, suffix: &str) -> ShaderValue {
        let four = self.shape.four.is_some();
        let whole = self.accumulator(name, fold, suffix, four);
        if !four || self.columns {
            return whole;
        }
        let component = |lane: &str| ShaderValue { text: format!("{}{lane}", whole.text), four: false, ..whole };
        self.in_pairs(shader, fold, LANES.map(component).to_vec())
    }

    /// What has been folded, by all invocations of the row.
    fn result(&self, shader: &mut Shader, fold: Reg, suffix: &str) -> ShaderValue {
        let mut value = self.across(shader, fold, "all", suffix);
        if self.shape.scalar_tail {
            value = self.combined(shader, fold, &value, &self.accumulator("rest", fold, suffix, false));
        }
        if self.shape.lanes > 1 {
            return self.shared(shader, fold, suffix, &value);
        }
        let name = format!("r{fold}{suffix}");
        shader.line(format!("let {name} = {};", without_parens(&value.text)));
        ShaderValue { text: name, ..value }
    }

    /// Folds the values of a row's invocations through workgroup memory, half of them at a time.
    fn shared(&self, shader: &mut Shader, fold: Reg, suffix: &str, value: &ShaderValue) -> ShaderValue {
        let ReduceSchedule { items, lanes, .. } = self.shape;
        let lane = lane_name(value.lane);
        let (name, element) = match value.four {
            true => (format!("sh_{lane}x4"), format!("vec4<{lane}>")),
            false => (format!("sh_{lane}"), lane.to_string()),
        };
        shader.global(format!("var<workgroup> {name}: array<{element}, {}>;", items * lanes));
        let (first, apart) = match (items, self.columns) {
            (1, _) => ("0u".to_string(), "half".to_string()),
            (_, true) => (format!("lane % {items}u"), format!("half * {items}u")),
            (_, false) => ("lane - part".to_string(), "half".to_string()),
        };
        shader.line(format!("{name}[lane] = {};", without_parens(&value.text)));
        shader.line("workgroupBarrier();");
        let n_halves = lanes.ilog2() as usize;
        shader.open_loop(format!("for (var half = {}u; half > 0u; half >>= 1u)", lanes / 2), n_halves);
        shader.open("if (part < half)");
        let cell = |at: &str| ShaderValue { text: format!("{name}[{at}]"), ..value.clone() };
        let (text, _) = self.combine(shader, fold, &cell("lane"), &cell(&format!("lane + {apart}")));
        shader.line(format!("{name}[lane] = {};", without_parens(&text)));
        shader.close();
        shader.line("workgroupBarrier();");
        shader.close();
        let result = format!("r{fold}{suffix}");
        shader.line(format!("let {result} = {name}[{first}];"));
        shader.line("workgroupBarrier();");
        ShaderValue { text: result, ..value.clone() }
    }
}

/// Whether an access is used for inner values.
fn used_inside(accesses: &Accesses, access: u16) -> bool {
    let of_inst = |op: &InstOp| match op {
        InstOp::Load { access: a, .. }
        | InstOp::Valid { access: a }
        | InstOp::Index { access: a }
        | InstOp::Gather { access: a, .. } => *a == access,
        _ => false,
    };
    let body = accesses.body;
    accesses.is_inner(access)
        && (body.insts.iter().any(|i| of_inst(&i.op)) || body.stores.iter().any(|s| s.access == access))
}
