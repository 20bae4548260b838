//! Launches that touch more windows than there are bindings, however small the part of the index space: a table that is
//! looked up anywhere, columns that go through all of memory, many far places of one tensor. And launches whose loops are
//! longer than a driver lets them be. What takes too much is made first and left in scratch memory, piece by piece:
//! lookups by ranges of their indices, reductions and contractions by pieces of what they run along, values of many loads
//! one part after another. Knows bodies; writes no text.

use std::collections::BTreeSet;

use super::cut::{Context, part, strided};
use super::{Pass, PassMemory, ShaderProgram, has_few_trips, of_parts};
use crate::dtype::{DType, Lane};
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, OperandArgs, Order, Reg, Scope, Store};
use crate::ops::{ReduceRow, SUM};
use crate::plan::{Launch, Slot, SlotId, SlotKind};
use crate::shape::Shape;
use crate::view::{IndexMap, View};

/// Why a launch does not fit as it is.
#[derive(Clone, Copy, PartialEq)]
pub enum Spilled {
    /// One index touches more windows than there are bindings.
    Wide,
    /// An invocation makes more loop iterations than it may.
    Long,
}

/// The passes of a launch that does not fit as it is.
pub fn program(context: &Context, why: Spilled) -> ShaderProgram {
    let mut spill = Spill { context, why, slots: context.slots.to_vec(), passes: Vec::new() };
    for args in even_pieces(context.body, &context.launch.args) {
        let known = vec![None; context.body.insts.len()];
        IndexSpace { body: context.body, args: &args, reads: &context.launch.reads, known }.write(&mut spill);
    }
    spill.finish()
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

/// The passes so far, and the memory they use.
struct Spill<'a> {
    context: &'a Context<'a>,
    why: Spilled,
    /// The plan's slots, then scratch memory.
    slots: Vec<Slot>,
    passes: Vec<Pass>,
}

/// One index space of the launch.
struct IndexSpace<'a> {
    body: &'a Body,
    args: &'a Args,
    reads: &'a [SlotId],
    /// Per register, the scratch memory that holds it: one element for each index of its scope, row-major.
    known: Vec<Option<SlotId>>,
}

/// A kernel of the nest, without its store.
struct BackwardSlice {
    body: Body,
    args: Args,
    reads: Vec<SlotId>,
    /// The register that it is for.
    value: Reg,
}

/// The indices that a kernel runs over.
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

impl IndexSpace<'_> {
    fn write(&mut self, spill: &mut Spill) {
        for reg in self.made_first(spill) {
            let slot = self.make(spill, reg);
            self.known[reg as usize] = Some(slot);
        }
        for store in &self.body.stores {
            let n_axes = self.args.accesses[store.access as usize].shape().rank();
            let space = if n_axes > self.args.outer.len() { Space::All } else { Space::Rows };
            let mut slice = self.slice(store.value, space);
            slice.body.outputs = vec![self.body.outputs[store.output as usize]];
            slice.body.stores = vec![Store { value: slice.value, output: 0, access: store.access }];
            let to = spill.context.launch.writes[store.output as usize];
            spill.run(Kernel::Loop(slice.body), slice.args, slice.reads, to);
        }
    }

    /// The registers that are left in scratch memory, in order: what can be cut by other things than the index space, and
    /// what keeps others from touching too many places at one index.
    fn made_first(&self, spill: &Spill) -> BTreeSet<Reg> {
        let context = spill.context;
        // The result, a place for checks, and a table.
        let max_places = context.target.max_bindings.saturating_sub(3).max(2);
        let mut made = BTreeSet::new();
        // Per register, the loads it depends on, by the first register that does the same; what is made is one.
        let mut places: Vec<BTreeSet<Reg>> = Vec::new();
        let insts = &self.body.insts;
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
                InstOp::Gather { .. } => spill.why == Spilled::Wide,
                // Of memory so large that two of its places may be too far apart for one kernel.
                InstOp::Load { input, .. } => self.is_far(context, input as usize),
                _ => false,
            };
            if is_made {
                made.insert(reg as Reg);
                here = own;
            }
            places.push(here);
        }
        // One store after another: the first must not overwrite what the second is made from.
        let launch = context.launch;
        if self.body.stores.len() > 1 && launch.writes.iter().any(|slot| launch.reads.contains(slot)) {
            made.extend(self.body.stores.iter().map(|s| s.value));
        }
        made
    }

    /// Whether an input has more elements than indices tell apart.
    fn is_far(&self, context: &Context, input: usize) -> bool {
        context.slots[self.reads[input].0 as usize].size_bytes / self.body.inputs[input].size() > 1 << 32
    }

    /// Makes a register; the scratch memory that holds it.
    fn make(&self, spill: &mut Spill, reg: Reg) -> SlotId {
        let inst = &self.body.insts[reg as usize];
        let lane = inst.dtype.lane();
        match inst.op {
            InstOp::Reduce(row, _) => {
                let slice = self.slice(reg, Space::Folded);
                slice.make_in_pieces(spill, Kernel::Loop, SplitAxis::Inner, row, lane)
            }
            InstOp::Acc(_) => {
                let mut slice = self.slice(reg, Space::Rows);
                slice.args.matmul.clone_from(&self.args.matmul);
                if self.reads[0] == self.reads[1] && self.is_far(spill.context, 0) {
                    slice.copy_operand(spill);
                }
                slice.make_in_pieces(spill, Kernel::Matmul, SplitAxis::K, &SUM, lane)
            }
            ref op => {
                let (space, split_axis) = match (inst.scope, op) {
                    (Scope::Inner, InstOp::Gather { gather, .. }) => (Space::All, SplitAxis::IndexRange(*gather)),
                    (_, InstOp::Gather { gather, .. }) => (Space::Rows, SplitAxis::IndexRange(*gather)),
                    (Scope::Inner, _) => (Space::All, SplitAxis::Nothing),
                    _ => (Space::Rows, SplitAxis::Nothing),
                };
                let mut slice = self.slice(reg, space);
                let slot = spill.scratch(slice.args.outer.iter().product());
                let axes = contiguous(&slice.args.outer);
                slice.store(View::from_axes(axes.into_iter(), 0), lane);
                let launch = spill.launch(Kernel::Loop(slice.body), slice.reads, slot);
                for args in spill.pieces(&launch, slice.args, split_axis) {
                    spill.add(&launch, &args);
                }
                slot
            }
        }
    }

    /// What a register is made of, down to what is in scratch memory already.
    fn slice(&self, goal: Reg, space: Space) -> BackwardSlice {
        let (n_outer, insts) = (self.args.outer.len(), &self.body.insts);
        let mut wanted = vec![false; goal as usize + 1];
        wanted[goal as usize] = true;
        for reg in (0..wanted.len()).rev().filter(|reg| self.known[*reg].is_none()) {
            if wanted[reg] {
                insts[reg].op.for_each_reg(|r| wanted[r as usize] = true);
            }
        }
        let mut args = Args { matmul: None, ..self.args.clone() };
        match space {
            Space::Rows => args.inner.clear(),
            Space::All => args.outer.append(&mut args.inner),
            Space::Folded => {}
        }
        let mut body = Body {
            outer_rank: args.outer.len() as u8,
            inner_rank: args.inner.len() as u8,
            order: if space == Space::Folded { self.body.order } else { Order::InnerFast },
            ragged: false,
            inputs: self.body.inputs.clone(),
            // So that any axis can be cut.
            accesses: strided(&self.body.accesses),
            ..Body::default()
        };
        if space == Space::All {
            let split_axis = |map: &mut IndexMap| {
                if map.shape().rank() == n_outer {
                    *map = spread(map, &self.args.inner);
                }
            };
            args.accesses.iter_mut().for_each(split_axis);
        }
        let mut reads = self.reads.to_vec();
        let mut new_reg: Vec<Reg> = vec![0; wanted.len()];
        for reg in (0..wanted.len()).filter(|reg| wanted[*reg]) {
            let inst = &insts[reg];
            let op = match self.known[reg] {
                None => inst.op.with_regs(|r| new_reg[r as usize]),
                Some(slot) => {
                    reads.push(slot);
                    body.inputs.push(stored_as(inst.dtype.lane()));
                    args.accesses.push(self.lies(inst.scope, space));
                    body.accesses.push(strided_form(args.accesses.last()));
                    InstOp::Load { input: reads.len() as u16 - 1, access: args.accesses.len() as u16 - 1 }
                }
            };
            let scope = match (space, inst.scope) {
                (Space::Folded, scope) => scope,
                (_, Scope::Uniform) if self.known[reg].is_none() => Scope::Uniform,
                _ => Scope::Outer,
            };
            new_reg[reg] = body.insts.len() as Reg;
            body.insts.push(Inst { op, dtype: inst.dtype, scope });
        }
        BackwardSlice { body, args, reads, value: new_reg[goal as usize] }
    }

    /// How what was made for each index of a scope lies, seen from a space.
    fn lies(&self, scope: Scope, space: Space) -> IndexMap {
        let all: Vec<usize> = self.args.outer.iter().chain(&self.args.inner).copied().collect();
        let axes = match scope {
            Scope::Inner => contiguous(&all),
            _ => contiguous(&self.args.outer),
        };
        let map: IndexMap = View::from_axes(axes.into_iter(), 0).into();
        if space == Space::All && scope != Scope::Inner { spread(&map, &self.args.inner) } else { map }
    }
}

impl BackwardSlice {
    /// Makes what is folded or contracted: pieces side by side for each outer index, then those folded.
    fn make_in_pieces(
        mut self,
        spill: &mut Spill,
        kernel: fn(Body) -> Kernel,
        split_axis: SplitAxis,
        row: &'static ReduceRow,
        lane: Lane,
    ) -> SlotId {
        let axes = contiguous(&self.args.outer);
        let stored = self.store(View::from_axes(axes.iter().copied(), 0), lane);
        let n_rows: usize = self.args.outer.iter().product();
        let length = self.args.matmul.as_ref().map_or(self.args.inner.iter().product(), |m| m.k);
        // How many pieces there are does not depend on where they are put.
        let trial = spill.launch(kernel(self.body.clone()), self.reads.clone(), spill.context.launch.writes[0]);
        let pieces = spill.pieces(&trial, self.args, split_axis);
        let n_pieces = pieces.len();
        let slot = spill.scratch(n_rows * n_pieces);
        let launch = spill.launch(kernel(self.body), self.reads, slot);
        for (idx, mut args) in pieces.into_iter().enumerate() {
            let apart = axes.iter().map(|(size, stride)| (*size, stride * n_pieces as isize));
            args.accesses[stored as usize] = View::from_axes(apart, idx as isize).into();
            spill.add(&launch, &args);
        }
        if n_pieces == 1 {
            return slot;
        }
        let dtype = stored_as(lane);
        let inst = |op: InstOp, scope: Scope| Inst { op, dtype, scope };
        let body = Body {
            outer_rank: 1,
            inner_rank: 1,
            inputs: vec![dtype],
            accesses: vec![AccessForm::Strided],
            insts: vec![
                inst(InstOp::Load { input: 0, access: 0 }, Scope::Inner),
                inst(InstOp::Reduce(row, 0), Scope::Outer),
            ],
            ..Body::default()
        };
        let from = View::from_axes([(n_rows, n_pieces as isize), (n_pieces, 1)].into_iter(), 0);
        let args = Args { outer: vec![n_rows], inner: vec![n_pieces], accesses: vec![from.into()], ..Args::default() };
        let mut fold = BackwardSlice { body, args, reads: vec![slot], value: 1 };
        if n_pieces < length {
            // They may be many, too, but there are fewer each time.
            return fold.make_in_pieces(spill, Kernel::Loop, SplitAxis::Inner, row, lane);
        }
        let folded = spill.scratch(n_rows);
        fold.store(View::from_axes([(n_rows, 1)].into_iter(), 0), lane);
        spill.run(Kernel::Loop(fold.body), fold.args, fold.reads, folded);
        folded
    }

    /// Takes the smaller matrix from a copy, where both are one tensor and may be too far apart for one kernel.
    fn copy_operand(&mut self, spill: &mut Spill) {
        let Some(m) = &mut self.args.matmul else { return };
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
        let (dtype, slot) = (self.body.inputs[idx], spill.scratch(sizes.iter().product()));
        let to = contiguous(&sizes);
        let source = View::from_axes(sizes.iter().copied().zip(from.iter().copied()), lies.offset);
        let accesses = vec![source.into(), View::from_axes(to.iter().copied(), 0).into()];
        let copied = stored_as(dtype.lane());
        let body = Body {
            outer_rank: sizes.len() as u8,
            inputs: vec![dtype],
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
        let args = Args { outer: sizes, accesses, ..Args::default() };
        spill.run(Kernel::Loop(body), args, vec![self.reads[idx]], slot);
        self.body.inputs[idx] = copied;
        self.reads[idx] = slot;
    }

    /// Stores the value for each outer index as this view says; the number of the access.
    fn store(&mut self, to: View, lane: Lane) -> u16 {
        let access = self.args.accesses.len() as u16;
        self.args.accesses.push(to.into());
        self.body.accesses.push(strided_form(self.args.accesses.last()));
        self.body.outputs = vec![stored_as(lane)];
        self.body.stores = vec![Store { value: self.value, output: 0, access }];
        access
    }
}

impl Spill<'_> {
    /// New memory for this many lanes.
    fn scratch(&mut self, n: usize) -> SlotId {
        self.slots.push(Slot { kind: SlotKind::Temp, size_bytes: n * 4 });
        SlotId(self.slots.len() as u32 - 1)
    }

    /// A kernel that writes one slot.
    fn launch(&self, kernel: Kernel, reads: Vec<SlotId>, to: SlotId) -> Launch {
        Launch {
            kernel,
            args: Args::default(),
            reads,
            writes: vec![to],
            read_values: Vec::new(),
            write_values: Vec::new(),
            may_fail: Vec::new(),
            ops: self.context.launch.ops.clone(),
        }
    }

    /// Runs a kernel whose index space can be cut as far as it takes.
    fn run(&mut self, kernel: Kernel, args: Args, reads: Vec<SlotId>, to: SlotId) {
        let launch = self.launch(kernel, reads, to);
        self.add(&launch, &args);
    }

    /// Adds the passes of a launch with these numbers.
    fn add(&mut self, launch: &Launch, args: &Args) {
        let context = self.context_of(launch);
        let parts = context.parts(args).unwrap_or_else(|| unreachable!("bug: {} does not fit", context.label()));
        let program = of_parts(&context, &parts);
        let own: Vec<SlotId> = program.scratch.iter().map(|bytes| self.scratch(bytes.div_ceil(4))).collect();
        for mut pass in program.passes {
            for bind in &mut pass.binds {
                if let PassMemory::Scratch(idx) = bind.place {
                    bind.place = PassMemory::Slot(own[idx as usize]);
                }
            }
            self.passes.push(pass);
        }
    }

    /// The launch in as few pieces as fit.
    fn pieces(&self, launch: &Launch, args: Args, split_axis: SplitAxis) -> Vec<Args> {
        let context = self.context_of(launch);
        let mut pieces = Vec::new();
        let mut stack = vec![args];
        while let Some(args) = stack.pop() {
            let is_short = |parts: &Vec<Args>| has_few_trips(&of_parts(&context, parts), context.target);
            match halves(&context, &args, split_axis).filter(|_| !context.parts(&args).is_some_and(|p| is_short(&p))) {
                Some(halves) => stack.extend(halves.into_iter().rev()),
                None => pieces.push(args),
            }
        }
        pieces
    }

    fn context_of<'b>(&'b self, launch: &'b Launch) -> Context<'b> {
        let (Kernel::Loop(body) | Kernel::Matmul(body)) = &launch.kernel else {
            unreachable!("bug: a routine is not taken apart")
        };
        Context::new(launch, body, &self.slots, self.context.target)
    }

    fn finish(mut self) -> ShaderProgram {
        let n_slots = self.context.slots.len();
        for bind in self.passes.iter_mut().flat_map(|pass| &mut pass.binds) {
            if let PassMemory::Slot(slot) = bind.place
                && let Some(idx) = (slot.0 as usize).checked_sub(n_slots)
            {
                bind.place = PassMemory::Scratch(idx as u32);
            }
        }
        let scratch = self.slots[n_slots..].iter().map(|slot| slot.size_bytes).collect();
        ShaderProgram { passes: self.passes, scratch, variant: None }
    }
}

/// A launch in two; None if there is nothing to cut.
fn halves(context: &Context, args: &Args, split_axis: SplitAxis) -> Option<[Args; 2]> {
    match split_axis {
        SplitAxis::Nothing => None,
        SplitAxis::Inner => {
            let n_outer = args.outer.len();
            let axes = (0..args.inner.len()).filter(|axis| args.inner[*axis] > 1);
            let halves = axes.map(|axis| context.halves(args, n_outer + axis));
            halves.min_by_key(|halves| context.takes(&halves[0]))
        }
        SplitAxis::K => {
            let m = args.matmul.as_ref().filter(|m| m.k > 1)?;
            let half = m.k / 2;
            let cut = |start: usize, len: usize| {
                let mut m = m.clone();
                m.k = len;
                m.a.offset += m.a.cols.narrow(start, len);
                m.b.offset += m.b.rows.narrow(start, len);
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

/// Sizes with the strides of a row-major array.
fn contiguous(sizes: &[usize]) -> Vec<(usize, isize)> {
    let shape: Shape = sizes.iter().copied().collect();
    sizes.iter().copied().zip(shape.strides()).collect()
}

/// The same for every index of more axes. What is the same for all stays so.
fn spread(map: &IndexMap, sizes: &[usize]) -> IndexMap {
    let view = map.views().last().expect("never empty");
    if view.shape.rank() == 0 {
        return map.clone();
    }
    let axes = view.shape.iter().copied().zip(view.strides).chain(sizes.iter().map(|size| (*size, 0)));
    let mut wide = View::from_axes(axes, view.offset);
    if let Some(mut mask) = view.mask {
        let rank = view.shape.rank();
        sizes.iter().enumerate().for_each(|(i, size)| mask[rank + i] = (0, *size));
        wide.mask = Some(mask);
    }
    map.with_last(wide)
}

fn strided_form(map: Option<&IndexMap>) -> AccessForm {
    if map.is_some_and(|map| map.shape().rank() > 0) { AccessForm::Strided } else { AccessForm::Uniform }
}

/// What a lane is kept as, so that it loses nothing.
fn stored_as(lane: Lane) -> DType {
    match lane {
        Lane::F32 => DType::F32,
        Lane::I32 => DType::I32,
        Lane::U32 => DType::U32,
    }
}
