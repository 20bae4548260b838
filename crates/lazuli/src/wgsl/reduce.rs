//! Reductions: one invocation, or several that share workgroup memory, per row (or per column, or four columns side by
//! side). Stage after stage the row is read, folded and, at last, written; what a later stage needs again is read or
//! computed again. Long sums are made of sums of blocks, so that rounding errors stay small.

mod pairs;
mod online_softmax;
mod across;

use super::Pass;
use super::context::Context;
use super::eval::{Eval, apply, kept_otherwise};
use super::index::{Accesses, Spot, split};
use super::launch_memory::LaunchMemory;
use super::map::{side_by_side, spot};
use super::schedule::{self, BLOCK_ITERATIONS, OnlineSoftmax, ReduceSchedule, RowStage, VecLoad};
use super::shader::Shader;
use super::tree::{
    ShaderExpr, ShaderFn, ShaderType, Statement, all, call, lane_name, literal, min, named, select, word,
};
use crate::dtype::Lane;
use crate::kernel::{Args, InstOp, Order, Reg, Scope, Store};
use crate::ops::ReduceRow;
use pairs::Pairs;

/// How each access of a reduction reads elements in fours, and how it reads the elements that are left over.
fn modes(context: &Context, args: &Args, shape: &ReduceSchedule) -> [Vec<VecLoad>; 2] {
    [shape.four, None].map(|four| schedule::modes(context.body, args, four))
}

/// The memory of a reduction.
pub fn memory(context: &Context, args: &Args, shape: &ReduceSchedule) -> LaunchMemory {
    let [by_four, by_one] = modes(context, args, shape);
    let modes: &[&[VecLoad]] = if shape.scalar_tail { &[&by_four, &by_one] } else { &[&by_four] };
    context.memory(args, modes)
}

/// The dispatch of a reduction.
pub fn pass(context: &Context, args: &Args, shape: &ReduceSchedule, memory: &LaunchMemory) -> Pass {
    let [by_four, by_one] = modes(context, args, shape);
    let mut shader = Shader::new(context.comment(), &args.consts, shape.items * shape.lanes);
    let columns = context.body.order == Order::OuterFast;
    let kept = context.kept();
    let by = (&by_four[..], &by_one[..]);
    if shape.shuffle.is_some() {
        shader.count_by_subgroup();
    }
    let reduction = Reduction { context, args, shape, columns, by_four: by.0, by_one: by.1, kept: &kept, memory };
    reduction.write(&mut shader);
    let n_outer: usize = args.outer.iter().product();
    let per_item = reduction.per_item();
    shader.finish(context.label(), memory, (n_outer / per_item).div_ceil(shape.items))
}

/// What a reduction's text is written from.
#[derive(Clone, Copy)]
struct Reduction<'a> {
    context: &'a Context<'a>,
    args: &'a Args,
    shape: &'a ReduceSchedule,
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
        let mut stages = schedule::stages_of_rows(body, self.args).into_iter();
        while let Some(RowStage { folds, stores }) = stages.next() {
            let shifted = self.shape.online_softmax.iter().copied().find(|pair| folds == [pair.max]);
            let mut sweep = ReduceSweep { folds, stores, shifted };
            if shifted.is_some() {
                sweep.folds.extend(stages.next().map(|next| next.folds).unwrap_or_default());
            }
            if !sweep.folds.is_empty() || !sweep.stores.is_empty() {
                self.sweep(shader, &mut rows, &sweep);
            }
        }
        let is_outer = |s: &&Store| !rows[0].eval.accesses.is_inner(s.access);
        let outer: Vec<&Store> = body.stores.iter().filter(is_outer).collect();
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
        let mut row = word("row");
        if vecs_per_thread > 0 {
            row = shader.define(format!("row{suffix}"), row + 4 * vecs_per_thread);
        }
        let outer_four = self.shape.four.filter(|_| self.columns);
        let mut spot = spot(shader, &accesses, row, outer_four, &suffix);
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
    fn store(&self, shader: &mut Shader, eval: &mut Eval, stores: &[&Store], guard: Option<ShaderExpr>) {
        let guard = guard.filter(|_| !stores.is_empty());
        let is_guarded = guard.is_some();
        if let Some(guard) = guard {
            stores.iter().for_each(|s| eval.place(shader, s));
            shader.open_if(guard);
        }
        stores.iter().for_each(|s| eval.store(shader, s));
        if is_guarded {
            shader.close();
        }
    }

    /// Which row (or first of four columns) this invocation works on, and which part of it.
    fn write_item(&self, shader: &mut Shader) {
        let ReduceSchedule { items, lanes, .. } = *self.shape;
        let n_outer = shader.param("n_outer", self.args.outer.iter().product());
        let (group_idx, lane) = (shader.count_groups(), word("lane"));
        let (item, part) = match (items, lanes) {
            (1, _) => (group_idx, lane),
            (_, 1) => (group_idx * items + &lane, lane),
            _ if self.columns => (group_idx * items + &lane % items, lane / items),
            _ => (group_idx * items + &lane / lanes, lane % lanes),
        };
        let row = item.times(self.per_item());
        if self.repeats_last() {
            let wanted = shader.define("wanted", row);
            shader.define("row", min(wanted, n_outer - self.per_item()));
        } else {
            let row = shader.define("row", row);
            shader.return_if(row.at_least(n_outer));
        }
        if lanes > 1 {
            shader.define("part", part);
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
    fn guard(&self, once_a_row: bool) -> Option<ShaderExpr> {
        let is_there = self.repeats_last().then(|| word("row").equals(word("wanted")));
        let is_first = (self.shape.lanes > 1 && once_a_row).then(|| word("part").equals(0));
        all(is_there.into_iter().chain(is_first))
    }

    /// How long the row is, and where its parts end.
    fn write_length(&self, shader: &mut Shader) {
        let inner = shader.param("n_inner", self.args.inner.iter().product());
        let n = if self.context.body.ragged {
            let rows = shader.param("rows_per_piece", self.args.outer[1..].iter().product());
            let limit = shader.param("limit", self.args.limit);
            shader.define("n", min(&inner, limit - word("row") / rows * &inner))
        } else {
            inner
        };
        if self.shape.kept {
            return;
        }
        let per_chunk = self.shape.lanes * self.per_step() * self.shape.unroll;
        shader.define("n_whole", if self.shape.rest { &n / per_chunk * per_chunk } else { n.clone() });
        if self.shape.scalar_tail {
            shader.define("n_by_four", n / 4 * 4);
        }
    }

    fn n(&self, shader: &mut Shader) -> ShaderExpr {
        match self.context.body.ragged {
            true => word("n"),
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
                    let largest = row.eval.value(of.max).clone();
                    self.scale(shader, of, &largest, &["all"]);
                }
                let mut value = self.result(shader, *fold, &row.suffix);
                if self.kept[*fold as usize] {
                    // Once, before any loop that uses it.
                    let kept = kept_otherwise(shader, value);
                    value = shader.define(format!("kept{fold}{}", row.suffix), kept);
                }
                row.eval.values[*fold as usize] = Some(value.clone());
                row.steps.iter_mut().for_each(|step| step.values[*fold as usize] = Some(value.clone()));
            }
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
            let inside = self.shape.rest.then(|| is_inside(step, &n));
            self.store(shader, step, stores, all(inside.into_iter().chain(self.guard(false))));
        }
        for fold in folds {
            let values: Vec<ShaderExpr> = row.steps.iter().map(|step| self.inside(shader, step, *fold, &n)).collect();
            let value = self.in_pairs(shader, *fold, values);
            let value = if self.shape.four.is_some() { value.as_four() } else { value };
            shader.define(format!("all{fold}{}", row.suffix), value);
        }
    }

    /// What a step folds: nothing where it is beyond the end of the row.
    fn inside(&self, shader: &mut Shader, step: &Eval, fold: Reg, n: &ShaderExpr) -> ShaderExpr {
        let value = step.value(self.operand(fold)).reinterpreted(self.lane(fold));
        if !self.shape.rest {
            return value;
        }
        let none = self.nothing(shader, fold);
        select(if value.is_four() { none.as_four() } else { none }, value, is_inside(step, n))
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
        let n_whole = word("n_whole");
        let blocked = self.shape.blocks && folds.iter().any(|r| self.rounds(*r));
        let per_chunk = self.shape.lanes * self.per_step() * self.shape.unroll;
        let n_chunks = self.args.inner.iter().product::<usize>().div_ceil(per_chunk);
        if blocked {
            let block = per_chunk * BLOCK_ITERATIONS;
            let n_blocks = n_chunks.div_ceil(BLOCK_ITERATIONS);
            let start = shader.open_for("block", 0, &n_whole, block, n_blocks);
            for row in rows {
                folds.iter().for_each(|r| self.declare(shader, "sum", *r, &row.suffix, four));
            }
            let end = shader.define("end", min(&start + block, &n_whole));
            shader.open_for("j", start, end, per_chunk, n_chunks);
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
            shader.open_for("j", 0, &n_whole, per_chunk, n_chunks);
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
            let end = if self.shape.scalar_tail { word("n_by_four") } else { n.clone() };
            let start = self.start_of_part(word("n_whole"), per);
            shader.open_for("j", start, end, lanes * per, self.shape.unroll);
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::Step, "all"));
            shader.close();
        }
        if self.shape.scalar_tail {
            let start = self.start_of_part(word("n_by_four"), 1);
            shader.open_for("j", start, n, lanes, 3usize.div_ceil(lanes));
            rows.iter().for_each(|row| self.trip(shader, row, sweep, Take::One, "rest"));
            shader.close();
        }
    }

    /// Where this invocation's part starts, of what starts at `start`.
    fn start_of_part(&self, start: ShaderExpr, per: usize) -> ShaderExpr {
        if self.shape.lanes == 1 { start } else { start + word("part").times(per) }
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
        // A row that is kept starts at 0, every iteration of a loop at `j`.
        let has_part = take == Take::Unrolled && self.shape.lanes > 1;
        let part = has_part.then(|| word("part").times(per));
        let by = Some(step * self.shape.lanes * per).filter(|by| *by > 0).map(ShaderExpr::from);
        let start = (!self.shape.kept).then(|| word("j"));
        let is_start = part.is_none() && by.is_none() && start.is_some();
        let terms = start.into_iter().chain(part).chain(by);
        let mut position = terms.reduce(|sum, term| sum + term).unwrap_or(0.into());
        if self.shape.kept && self.shape.rest {
            // Beyond the end the last elements are read again; they count for nothing.
            let n = self.n(shader);
            position = min(shader.define(format!("place{suffix}"), position), n - per);
        }
        if !is_start {
            position = shader.define(format!("at{suffix}"), position);
        }
        let inner = &self.args.inner;
        let names = if inner.len() == 1 {
            vec![position.clone()]
        } else {
            let names: Vec<String> = (0..inner.len()).map(|axis| format!("j{axis}{suffix}")).collect();
            let sizes: Vec<ShaderExpr> =
                inner.iter().enumerate().map(|(axis, n)| shader.param(&format!("inner{axis}"), *n)).collect();
            split(shader, &position, &names, &sizes)
        };
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

    fn accumulator(&self, name: &str, fold: Reg, suffix: &str, four: bool) -> ShaderExpr {
        let lane = self.lane(fold);
        let ty = if four { ShaderType::four(lane) } else { ShaderType::One(lane) };
        named(format!("{name}{fold}{suffix}"), ty)
    }

    /// The value that changes nothing.
    fn nothing(&self, shader: &mut Shader, fold: Reg) -> ShaderExpr {
        let (row, lane) = (self.row(fold), self.lane(fold));
        let bits = row.cpu.get(lane).map_or(0, |loops| loops[0].identity);
        let name = format!("{}_of_none_{}", row.name, lane_name(lane));
        let gives = ShaderType::One(lane);
        // Not a constant: infinities may not be.
        let constant = Statement::Var("bits".to_string(), literal(format!("{bits:#x}u"), Lane::U32));
        let result = call(format!("bitcast<{gives}>"), [word("bits")], gives);
        let body = vec![constant, Statement::Return(Some(result))];
        shader.function(ShaderFn { name: name.clone(), arguments: Vec::new(), gives, body });
        call(name, [], gives)
    }

    /// Declares an accumulator that nothing has been folded into.
    fn declare(&self, shader: &mut Shader, name: &str, fold: Reg, suffix: &str, four: bool) {
        let nothing = self.nothing(shader, fold);
        let start = if four { nothing.as_four() } else { nothing };
        shader.variable(format!("{name}{fold}{suffix}"), start);
    }

    /// Two values as one.
    fn combined(&self, shader: &mut Shader, fold: Reg, x: &ShaderExpr, y: &ShaderExpr) -> ShaderExpr {
        let (row, lane) = (self.row(fold), self.lane(fold));
        shader.functions(row.wgsl_fns);
        let text = row.wgsl.replace("$t", lane_name(lane));
        apply(shader, row.name, &text, &["$x", "$y"], vec![x.reinterpreted(lane), y.reinterpreted(lane)], lane)
    }

    fn fold_into(&self, shader: &mut Shader, fold: Reg, name: &str, suffix: &str, value: &ShaderExpr) {
        let into = self.accumulator(name, fold, suffix, self.shape.four.is_some() && name != "rest");
        let both = self.combined(shader, fold, &into, value);
        shader.assign(&into, both);
    }

    /// What an accumulator holds of the row: where its four are of one row, all of them.
    fn across(&self, shader: &mut Shader, fold: Reg, name: &str, suffix: &str) -> ShaderExpr {
        let four = self.shape.four.is_some();
        let whole = self.accumulator(name, fold, suffix, four);
        if !four || self.columns {
            return whole;
        }
        self.in_pairs(shader, fold, (0..4).map(|k| whole.component(k)).collect())
    }

    /// What has been folded, by all invocations of the row.
    fn result(&self, shader: &mut Shader, fold: Reg, suffix: &str) -> ShaderExpr {
        let mut value = self.across(shader, fold, "all", suffix);
        if self.shape.scalar_tail {
            value = self.combined(shader, fold, &value, &self.accumulator("rest", fold, suffix, false));
        }
        match (self.shape.lanes, self.shape.shuffle) {
            (1, _) => shader.define(format!("r{fold}{suffix}"), value),
            (_, None) => self.through_memory(shader, fold, suffix, value),
            (_, Some(width)) => self.through_subgroups(shader, fold, suffix, value, width),
        }
    }
}

/// Whether a step of a row that is kept is not beyond its end.
fn is_inside(step: &Eval, n: &ShaderExpr) -> ShaderExpr {
    word(format!("place{}", step.spot.suffix)).less(n)
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
