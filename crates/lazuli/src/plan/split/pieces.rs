//! Kernels that touch more windows than there are bindings, however small the part of the index space: a table that is looked
//! up anywhere, columns that go through all of memory, many far places of one tensor. And kernels whose loops are longer than
//! a driver lets them be. What takes too much is made first, piece by piece, and is a value of the plan: lookups by ranges of
//! their indices, reductions and contractions by pieces of what they run along, values of many loads one part after another.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::SplitSteps;
use super::slice::{KernelSlice, body_of, stored_as};
use super::windows::{Footprint, part, strided};
use crate::dtype::{DType, Lane};
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, OperandArgs, Order, Reg, Scope, Store};
use crate::ops::{ReduceRow, SUM};
use crate::plan::lower::{LaunchDraft, PlanValue};
use crate::plan::maps::{contiguous, rewrite};
use crate::plan::{Limits, ValueId};
use crate::view::{IndexMap, View};

/// Adds the parts of a kernel that is not small.
pub fn cut(split: &mut SplitSteps, step: &LaunchDraft) {
    let by_strides = split.footprint(step).by_strides();
    let step = by_strides.as_ref().unwrap_or(step);
    let footprint = split.footprint(step);
    let excess = match footprint.parts(&step.args) {
        Some(parts) if parts.iter().all(|args| footprint.is_short(args)) => {
            return split.steps.extend(parts.into_iter().map(|args| LaunchDraft { args, ..step.clone() }));
        }
        Some(_) => OverLimit::Iterations,
        None => OverLimit::Windows,
    };
    let (body, _) = body_of(step);
    for args in even_pieces(body, &step.args) {
        let body = Body { ragged: false, ..body.clone() };
        let kernel = if args.matmul.is_some() { Kernel::Matmul(Arc::new(body)) } else { Kernel::Loop(Arc::new(body)) };
        let step = LaunchDraft { kernel, args, ..step.clone() };
        let known = vec![None; body_of(&step).0.insts.len()];
        IndexSpace { step, excess, known }.write(split);
    }
}

/// Why a kernel does not fit.
#[derive(Clone, Copy, PartialEq)]
enum OverLimit {
    /// One index touches more windows than there are bindings.
    Windows,
    /// An invocation makes more loop iterations than it may.
    Iterations,
}

/// A launch over pieces of one axis, of which the last may be short, as launches over pieces of one length each.
fn even_pieces(body: &Body, args: &Args) -> Vec<Args> {
    if !body.ragged {
        return vec![args.clone()];
    }
    let body = &Body { ragged: false, ..body.clone() };
    let (n_pieces, len) = (args.outer[0], args.inner[0]);
    let n_whole = (args.limit / len).min(n_pieces);
    let whole = (n_whole > 0).then(|| part(args, body, 0, 0, n_whole));
    let last = (n_whole < n_pieces).then(|| {
        let last = part(args, body, 0, n_whole, 1);
        part(&last, body, args.outer.len(), 0, args.limit - n_whole * len)
    });
    whole.into_iter().chain(last).collect()
}

/// A kernel over one index space, whose registers become values one after another.
struct IndexSpace {
    step: LaunchDraft,
    excess: OverLimit,
    /// Per register, the value that holds it: one element for each index of its scope, row-major.
    known: Vec<Option<ValueId>>,
}

/// The indices that a part runs over.
#[derive(Clone, Copy, PartialEq)]
enum Space {
    /// Outer ones.
    Rows,
    /// Outer and inner ones alike, as a map.
    All,
    /// Outer ones, and for each all inner ones, as a reduction.
    Folded,
}

/// What may be cut where the index space is cut as far as it goes.
#[derive(Clone, Copy, PartialEq)]
enum SplitAxis {
    Nothing,
    /// What is reduced.
    Inner,
    /// The inner size of a contraction.
    K,
    /// The indices of this gather.
    IndexRange(u16),
}

impl IndexSpace {
    fn write(&mut self, split: &mut SplitSteps) {
        for reg in self.made_first(split) {
            let value = self.make(split, reg);
            self.known[reg as usize] = Some(value);
        }
        let (body, args) = body_of(&self.step);
        for store in &body.stores {
            let is_inner = args.accesses[store.access as usize].shape().rank() > args.outer.len();
            let space = if is_inner { Space::All } else { Space::Rows };
            let (mut slice, value) = self.slice(split.limits, store.value, space);
            let (to, dtype) = (self.step.writes[store.output as usize], body.outputs[store.output as usize]);
            let access = slice.access(store.access);
            slice.store_at(value, to, dtype, access);
            let base = self.step.bases().find(|base| base.0 == store.output);
            slice.draft.own_bases.extend(base.map(|base| (0, base.1)));
            let part = self.finish(slice, space);
            split.add_parts(&part, part.args.clone());
        }
    }

    /// The registers that become values, in order: what can be cut by other things than the index space, and what keeps
    /// others from touching too many places at one index.
    fn made_first(&self, split: &SplitSteps) -> BTreeSet<Reg> {
        // The result, the words of checks, and a table.
        let max_places = split.limits.max_windows.saturating_sub(3).max(2);
        let mut made = BTreeSet::new();
        // Per register, the loads it depends on, by the first register that does the same; what is made is one.
        let mut places: Vec<BTreeSet<Reg>> = Vec::new();
        let insts = &body_of(&self.step).0.insts;
        for (reg, inst) in insts.iter().enumerate() {
            let own = BTreeSet::from([reg as Reg]);
            let mut needs = Vec::new();
            inst.op.for_each_reg(|r| needs.push(r));
            let mut here = match inst.op {
                InstOp::Load { .. } => BTreeSet::from([insts
                    .iter()
                    .position(|i| i.op == inst.op)
                    .map_or(reg as Reg, |first| first as Reg)]),
                _ => needs.iter().flat_map(|r| places[*r as usize].iter().copied()).collect(),
            };
            while here.len() > max_places
                && let Some(most) = needs.iter().copied().max_by_key(|r| places[*r as usize].len())
                && places[most as usize].len() > 1
            {
                made.insert(most);
                places[most as usize] = BTreeSet::from([most]);
                here = needs.iter().flat_map(|r| places[*r as usize].iter().copied()).collect();
            }
            let is_made = match inst.op {
                InstOp::Reduce(..) | InstOp::Acc(_) => true,
                InstOp::Gather { .. } => self.excess == OverLimit::Windows,
                // Of memory so large that two of its places may be too far apart for one kernel, or at a position that may be
                // anywhere: alone it can be cut by positions.
                InstOp::Load { input, access } => {
                    let is_moved = body_of(&self.step).0.offset_of(access).is_some();
                    is_moved && self.excess == OverLimit::Windows || split.is_far(self.step.reads[input as usize])
                }
                _ => false,
            };
            if is_made {
                made.insert(reg as Reg);
                here = own;
            }
            places.push(here);
        }
        made
    }

    /// Makes a register; the value that holds it.
    fn make(&self, split: &mut SplitSteps, reg: Reg) -> ValueId {
        let inst = &body_of(&self.step).0.insts[reg as usize];
        let lane = inst.dtype.lane();
        let (space, split_axis) = match (inst.scope, &inst.op) {
            (_, InstOp::Reduce(..)) => (Space::Folded, SplitAxis::Inner),
            (_, InstOp::Acc(_)) => (Space::Rows, SplitAxis::K),
            (Scope::Inner, InstOp::Gather { gather, .. }) => (Space::All, SplitAxis::IndexRange(*gather)),
            (_, InstOp::Gather { gather, .. }) => (Space::Rows, SplitAxis::IndexRange(*gather)),
            (Scope::Inner, _) => (Space::All, SplitAxis::Nothing),
            _ => (Space::Rows, SplitAxis::Nothing),
        };
        let (mut slice, value) = self.slice(split.limits, reg, space);
        // The only gather of a part that makes one is its last.
        let split_axis = match split_axis {
            SplitAxis::IndexRange(_) => SplitAxis::IndexRange(slice.args.gathers.len() as u16 - 1),
            other => other,
        };
        let sizes = self.sizes(space).0;
        let to = split.scratch(sizes.iter().product(), lane);
        let view = View::from_axes(contiguous(&sizes).into_iter(), 0);
        slice.store(value, to, stored_as(lane), view.into());
        let mut part = self.finish(slice, space);
        match inst.op {
            InstOp::Reduce(row, _) => split.add_pieces(part, SplitAxis::Inner, row, lane),
            InstOp::Acc(_) => {
                if self.step.reads[0] == self.step.reads[1] && split.is_far(self.step.reads[0]) {
                    split.copy_operand(&mut part);
                }
                split.add_pieces(part, SplitAxis::K, &SUM, lane)
            }
            _ => {
                for args in split.pieces(&part, split_axis) {
                    split.add_parts(&part, args);
                }
                to
            }
        }
    }

    /// What a register is made of, down to what is a value already, and the register in it.
    fn slice<'a>(&'a self, limits: &'a Limits, goal: Reg, space: Space) -> (KernelSlice<'a>, Reg) {
        let (body, _) = body_of(&self.step);
        let mut slice = KernelSlice::new(&self.step, limits);
        if let InstOp::Acc(_) = body.insts[goal as usize].op {
            slice.bind_operands();
        }
        let mut wanted = vec![false; goal as usize + 1];
        wanted[goal as usize] = true;
        for reg in (0..wanted.len()).rev().filter(|reg| self.known[*reg].is_none()) {
            if wanted[reg] {
                body.insts[reg].op.for_each_reg(|r| wanted[r as usize] = true);
            }
        }
        for reg in (0..wanted.len()).filter(|reg| wanted[*reg]) {
            if let Some(value) = self.known[reg] {
                let inst = &body.insts[reg];
                let types = (stored_as(inst.dtype.lane()), inst.dtype);
                let scope = if space == Space::Folded { inst.scope.max(Scope::Outer) } else { Scope::Outer };
                slice.new_reg[reg] = Some(slice.load(value, types, scope, self.lies(inst.scope, space)));
            }
        }
        let value = slice.take(goal);
        (slice, value)
    }

    /// A slice as a kernel over a space.
    fn finish(&self, slice: KernelSlice, space: Space) -> LaunchDraft {
        let (body, args) = body_of(&self.step);
        let n_outer = args.outer.len();
        let (outer, inner) = self.sizes(space);
        let over_space = |map: &IndexMap| match space == Space::All && map.shape().rank() == n_outer {
            true => spread(map, &args.inner),
            false => map.clone(),
        };
        let accesses: Vec<IndexMap> = slice.args.accesses.iter().map(over_space).collect();
        let forms: Vec<AccessForm> = accesses.iter().map(AccessForm::of).collect();
        let in_space = |inst: Inst| match (space, inst.scope) {
            (Space::Folded, _) | (_, Scope::Uniform) => inst,
            _ => Inst { scope: Scope::Outer, ..inst },
        };
        let part = Body {
            outer_rank: outer.len() as u8,
            inner_rank: inner.len() as u8,
            order: if space == Space::Folded { body.order } else { Order::InnerFast },
            // So that any axis can be cut.
            accesses: strided(&forms),
            insts: slice.body.insts.into_iter().map(in_space).collect(),
            ..slice.body
        };
        let makes_sums = part.insts.iter().any(|inst| matches!(inst.op, InstOp::Acc(_)));
        let matmul = args.matmul.clone().filter(|_| makes_sums);
        let kernel = if makes_sums { Kernel::Matmul(Arc::new(part)) } else { Kernel::Loop(Arc::new(part)) };
        LaunchDraft { kernel, args: Args { outer, inner, accesses, matmul, ..slice.args }, ..slice.draft }
    }

    /// Sizes of outer and inner axes of a space.
    fn sizes(&self, space: Space) -> (Vec<usize>, Vec<usize>) {
        let Args { outer, inner, .. } = &self.step.args;
        match space {
            Space::Rows => (outer.clone(), Vec::new()),
            Space::All => ([&outer[..], inner].concat(), Vec::new()),
            Space::Folded => (outer.clone(), inner.clone()),
        }
    }

    /// How what was made for each index of a scope lies, seen from a space.
    fn lies(&self, scope: Scope, space: Space) -> IndexMap {
        let Args { outer, inner, .. } = &self.step.args;
        let axes = match scope {
            Scope::Inner => contiguous(&[&outer[..], inner].concat()),
            _ => contiguous(outer),
        };
        let map: IndexMap = View::from_axes(axes.into_iter(), 0).into();
        if space == Space::All && scope != Scope::Inner { spread(&map, inner) } else { map }
    }
}

impl SplitSteps<'_> {
    fn footprint<'s>(&'s self, step: &'s LaunchDraft) -> Footprint<'s> {
        Footprint::new(step, &self.values, self.limits)
    }

    /// A new value of this many lanes.
    fn scratch(&mut self, n_elems: usize, lane: Lane) -> ValueId {
        let reason = Some("a part of a kernel that takes more than the device has for one");
        self.value(PlanValue { n_elems, dtype: stored_as(lane), input: None, reason })
    }

    /// Whether a value has more elements than indices tell apart.
    fn is_far(&self, value: ValueId) -> bool {
        self.values[value as usize].n_elems > self.limits.max_elems.saturating_mul(2)
    }

    /// Adds a kernel with these numbers, whose index space can be cut as far as it takes. If one does not fit even so, the
    /// backend refuses it.
    fn add_parts(&mut self, step: &LaunchDraft, args: Args) {
        let parts = self.footprint(step).parts(&args).unwrap_or_else(|| vec![args]);
        self.steps.extend(parts.into_iter().map(|args| LaunchDraft { args, ..step.clone() }));
    }

    /// The launch in as few pieces as fit.
    fn pieces(&self, step: &LaunchDraft, split_axis: SplitAxis) -> Vec<Args> {
        let footprint = self.footprint(step);
        let mut pieces = Vec::new();
        let mut stack = vec![step.args.clone()];
        while let Some(args) = stack.pop() {
            let fits = |parts: Vec<Args>| parts.iter().all(|args| footprint.is_short(args));
            match halves(&footprint, &args, split_axis).filter(|_| !footprint.parts(&args).is_some_and(fits)) {
                Some(halves) => stack.extend(halves.into_iter().rev()),
                None => pieces.push(args),
            }
        }
        pieces
    }

    /// Adds what folds or contracts, its last access being that of its store: pieces side by side for each outer index, then
    /// those folded. Gives the value with the results.
    fn add_pieces(&mut self, step: LaunchDraft, split_axis: SplitAxis, row: &'static ReduceRow, lane: Lane) -> ValueId {
        let axes = contiguous(&step.args.outer);
        let n_rows: usize = step.args.outer.iter().product();
        let length = step.args.matmul.as_ref().map_or(step.args.inner.iter().product(), |m| m.k);
        let pieces = self.pieces(&step, split_axis);
        let (n_pieces, value, stored) = (pieces.len(), step.writes[0], step.args.accesses.len() - 1);
        self.values[value as usize].n_elems = n_rows * n_pieces;
        for (idx, mut args) in pieces.into_iter().enumerate() {
            let apart = axes.iter().map(|(size, stride)| (*size, stride * n_pieces as isize));
            args.accesses[stored] = View::from_axes(apart, idx as isize).into();
            self.add_parts(&step, args);
        }
        if n_pieces == 1 {
            return value;
        }
        let dtype = stored_as(lane);
        let inst = |op: InstOp, scope: Scope| Inst { op, dtype, scope };
        let body = Body {
            outer_rank: 1,
            inner_rank: 1,
            inputs: vec![dtype.into()],
            outputs: vec![dtype],
            accesses: vec![AccessForm::Strided; 2],
            insts: vec![
                inst(InstOp::Load { input: 0, access: 0 }, Scope::Inner),
                inst(InstOp::Reduce(row, 0), Scope::Outer),
            ],
            stores: vec![Store { value: 1, output: 0, access: 1 }],
            ..Body::default()
        };
        let from = View::from_axes([(n_rows, n_pieces as isize), (n_pieces, 1)].into_iter(), 0);
        let accesses = vec![from.into(), View::from_axes([(n_rows, 1)].into_iter(), 0).into()];
        let args = Args { outer: vec![n_rows], inner: vec![n_pieces], accesses, ..Args::default() };
        let (reads, writes) = (vec![value], vec![self.scratch(n_rows, lane)]);
        let ops = vec![row.name.into()];
        let fold =
            LaunchDraft { kernel: Kernel::Loop(Arc::new(body)), args, reads, writes, ops, ..LaunchDraft::default() };
        if n_pieces < length {
            // They may be many, too, but there are fewer each time.
            return self.add_pieces(fold, SplitAxis::Inner, row, lane);
        }
        let args = fold.args.clone();
        self.add_parts(&fold, args);
        fold.writes[0]
    }

    /// Lets a product take the smaller matrix from a copy, where both are one value and may be too far apart for one kernel.
    fn copy_operand(&mut self, step: &mut LaunchDraft) {
        let (Kernel::Matmul(body), Some(m)) = (&mut step.kernel, &mut step.args.matmul) else { return };
        let sizes = |last: [usize; 2]| -> Vec<usize> { m.batch.iter().copied().chain(last).collect() };
        let (idx, sizes, lies) = match m.m < m.n {
            true => (0, sizes([m.m, m.k]), &mut m.a),
            false => (1, sizes([m.k, m.n]), &mut m.b),
        };
        let lists = lies.batch.iter().chain([&lies.rows, &lies.cols]);
        // What is read by lists of axes is small enough for one binding: the planner's limits see to it.
        let Some(from) = lists.map(|list| list.stride()).collect::<Option<Vec<isize>>>() else { return };
        // What is the same for all is copied once.
        let sizes: Vec<usize> = sizes.iter().zip(&from).map(|(n, stride)| if *stride == 0 { 1 } else { *n }).collect();
        let storage = body.inputs[idx];
        let dtype = storage.dtype();
        let copied: DType = stored_as(dtype.lane());
        let to = contiguous(&sizes);
        let source = View::from_axes(sizes.iter().copied().zip(from.iter().copied()), lies.offset);
        let accesses = vec![source.into(), View::from_axes(to.iter().copied(), 0).into()];
        let copy = Body {
            outer_rank: sizes.len() as u8,
            inputs: vec![storage],
            outputs: vec![copied],
            accesses: vec![AccessForm::Strided; 2],
            insts: vec![Inst { op: InstOp::Load { input: 0, access: 0 }, dtype, scope: Scope::Outer }],
            stores: vec![Store { value: 0, output: 0, access: 1 }],
            ..Body::default()
        };
        let mut axes: Vec<(usize, isize)> =
            to.iter().zip(&from).map(|(to, from)| (to.0, if *from == 0 { 0 } else { to.1 })).collect();
        let (cols, rows) = (axes.pop().unwrap_or((1, 0)), axes.pop().unwrap_or((1, 0)));
        *lies = OperandArgs::plain(axes.into_iter(), rows, cols);
        Arc::make_mut(body).inputs[idx] = copied.into();
        let read = step.reads[idx];
        let value = self.scratch(sizes.iter().product(), dtype.lane());
        step.reads[idx] = value;
        let args = Args { outer: sizes, accesses, ..Args::default() };
        let (reads, writes) = (vec![read], vec![value]);
        let copy = LaunchDraft { kernel: Kernel::Loop(Arc::new(copy)), args, reads, writes, ..LaunchDraft::default() };
        let args = copy.args.clone();
        self.add_parts(&copy, args);
    }
}

/// A launch in two; None if there is nothing to cut.
fn halves(footprint: &Footprint, args: &Args, split_axis: SplitAxis) -> Option<[Args; 2]> {
    match split_axis {
        SplitAxis::Nothing => None,
        SplitAxis::Inner => {
            let n_outer = args.outer.len();
            let axes = (0..args.inner.len()).filter(|axis| args.inner[*axis] > 1);
            let halves = axes.map(|axis| footprint.halves(args, n_outer + axis));
            halves.min_by_key(|halves| footprint.takes(&halves[0]))
        }
        SplitAxis::K => {
            let m = args.matmul.as_ref().filter(|m| m.k > 1)?;
            let half = m.k / 2;
            let cut = |start: usize, len: usize| {
                let mut m = m.clone();
                m.narrow_k(start, len);
                Args { matmul: Some(m), ..args.clone() }
            };
            Some([cut(0, half), cut(half, m.k - half)])
        }
        SplitAxis::IndexRange(gather) => {
            let (first, n) = args.index_range.unwrap_or((0, args.gathers[gather as usize].bound));
            let half = n / 2;
            let cut = |first: usize, n: usize| Args { index_range: Some((first, n)), ..args.clone() };
            (half > 0).then(|| [cut(first, half), cut(first + half, n - half)])
        }
    }
}

/// The same for every index of more axes. What is the same for all stays so.
fn spread(map: &IndexMap, sizes: &[usize]) -> IndexMap {
    match map.shape().rank() {
        0 => map.clone(),
        _ => rewrite(map, |axes| axes.extend(sizes.iter().map(|size| (*size, 0, (0, *size))))),
    }
}
