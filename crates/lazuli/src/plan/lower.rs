//! Writes each group as a kernel: instructions, index maps, sizes. Knows how elements lie; decides nothing about what
//! shares a kernel (that is `fuse`) nor where values are kept (that is `memory`).

mod attention;
mod matmul;
mod memo;

use std::borrow::Cow;
use std::sync::Arc;

use memo::Progress;
use smallvec::SmallVec;

use super::attention::ChainedProduct;
use super::body::{BodyBuilder, BodyLists, BuiltKernel, Differs, GroupRecording, MovedBy};
use super::checks::Checks;
use super::groups::{Form, Group, Groups, StoredNode, memory_of};
use super::repeated::Evaluation;
use super::{Limits, ValueId};
use crate::blocks::{BlockStorage, Storage};
use crate::dtype::DType;
use crate::graph::{Graph, NodeIdx, Op};
use crate::kernel::{Args, Kernel, Reg, RoutineArgs, RoutineKernel};
use crate::shape::{AxisSet, MAX_RANK, Shape};
use crate::view::{IndexMap, View};

pub use memo::GroupMemos;

/// A kernel over values that have no place yet.
#[derive(Clone)]
pub struct LaunchDraft {
    /// Its place among all kernels as they were lowered.
    pub number: u32,
    pub kernel: Kernel,
    pub args: Args,
    pub reads: Vec<ValueId>,
    pub writes: Vec<ValueId>,
    /// The outputs that are another value but for some rows, which is all that is written of them; and that value. Those of
    /// a group are its parts': [`LaunchDraft::bases`].
    pub own_bases: Vec<(u16, ValueId)>,
    /// The nodes it computes that may fail, as the capture numbers them, and whether commits wait for one of them.
    pub may_fail: Vec<NodeIdx>,
    pub first: bool,
    /// If it is a part of a kernel that was cut: which kernel. Parts count as one maker of what they write.
    pub part_of: Option<u32>,
    pub ops: Vec<Cow<'static, str>>,
    /// Stage and level of the group it was lowered from: kernels that have both in common do not wait for each other.
    pub level: Option<(u32, u32)>,
    /// If it is grouped: its parts.
    pub parts: Vec<LaunchDraft>,
}

impl Default for LaunchDraft {
    fn default() -> LaunchDraft {
        LaunchDraft {
            number: 0,
            kernel: Kernel::Loop(Arc::default()),
            args: Args::default(),
            reads: Vec::new(),
            writes: Vec::new(),
            own_bases: Vec::new(),
            may_fail: Vec::new(),
            first: false,
            part_of: None,
            ops: Vec::new(),
            level: None,
            parts: Vec::new(),
        }
    }
}

impl LaunchDraft {
    /// The values that must be there before it runs.
    pub fn needs(&self) -> impl DoubleEndedIterator<Item = ValueId> + '_ {
        self.reads.iter().copied().chain(self.bases().map(|base| base.1))
    }

    /// The outputs that are another value but for some rows, and that value, part after part.
    pub fn bases(&self) -> impl DoubleEndedIterator<Item = (u16, ValueId)> + '_ {
        let before = |part: usize| self.parts[..part].iter().map(|part| part.writes.len() as u16).sum::<u16>();
        let of_parts =
            self.parts.iter().enumerate().flat_map(move |(i, part)| {
                part.own_bases.iter().map(move |(output, base)| (before(i) + output, *base))
            });
        self.own_bases.iter().copied().chain(of_parts)
    }

    /// Other bases for the outputs that have some, in the order of [`LaunchDraft::bases`].
    pub fn set_bases(&mut self, bases: &[(u16, ValueId)]) {
        let of_parts = self.parts.iter_mut().flat_map(|part| &mut part.own_bases);
        for (own, (_, base)) in self.own_bases.iter_mut().chain(of_parts).zip(bases) {
            own.1 = *base;
        }
    }

    /// The kernel in one line.
    pub fn text(&self) -> String {
        let each = if self.parts.is_empty() { std::slice::from_ref(self) } else { &self.parts };
        each.iter().map(|part| part.kernel.text(&part.args)).collect::<Vec<_>>().join(" | ")
    }

    /// Whether another is the same kernel over the same values, whatever the numbers of both are. Neither has parts yet.
    pub fn is_but_for_numbers(&self, other: &LaunchDraft) -> bool {
        self.kernel == other.kernel
            && (&self.reads, &self.writes, &self.own_bases) == (&other.reads, &other.writes, &other.own_bases)
            && (&self.may_fail, self.first, self.level) == (&other.may_fail, other.first, other.level)
            && self.ops == other.ops
    }

    /// Whether it stores what is committed.
    pub fn commits(&self) -> bool {
        match &self.kernel {
            Kernel::Loop(body) | Kernel::Matmul(body) => body.commits(),
            Kernel::Attention(_) | Kernel::Routine(_) | Kernel::Grouped(_) => false,
        }
    }
}

/// Something stored: an input, a node's value, or a piece of work in between.
#[derive(Clone, Debug)]
pub struct PlanValue {
    pub n_elems: usize,
    pub dtype: DType,
    /// For an input: which, and whether its memory may be reused.
    pub input: Option<(u32, bool)>,
    /// Why those who read it are not part of the kernel that makes it.
    pub reason: Option<&'static str>,
}

impl PlanValue {
    /// Bytes it takes.
    pub fn size_bytes(&self) -> usize {
        self.n_elems * self.dtype.size()
    }
}

/// All kernels, in no particular order, and the values between them.
#[derive(Clone)]
pub struct Lowered {
    pub steps: Vec<LaunchDraft>,
    pub values: Vec<PlanValue>,
    pub outputs: Vec<ValueId>,
    pub checks: Vec<NodeIdx>,
}

/// Writes every group as one kernel. Groups are built as they were the last time, if `memos` know that and their numbers allow
/// it. Also gives the node that each value is, if no group became several kernels.
pub fn lower(of: &ToLower, memos: Option<&GroupMemos>) -> (Lowered, Option<Vec<NodeIdx>>) {
    let mut lowering = Lowering::new(of, Finished::Drafts(Vec::new()));
    // Inputs first, in their order, so that a value's number says where it came from.
    for (idx, node) in of.graph.nodes.iter().enumerate() {
        if let Op::Data = node.op {
            lowering.value(idx as NodeIdx);
        }
    }
    for number in 0..of.groups.groups.len() as u32 {
        let lowered = match memos {
            Some(memos) => memos.lower(number, &mut lowering),
            None => lowering.lower_group(number),
        };
        lowered.unwrap_or_else(|Differs| unreachable!("what is built afresh is compared with nothing"));
    }
    let outputs = of.graph.outputs.iter().map(|o| lowering.memory(*o)).collect();
    let Lowering { finished, values, checks, nodes, is_split, .. } = lowering;
    let Finished::Drafts(steps) = finished else { unreachable!("it was made so") };
    (Lowered { steps, values, outputs, checks }, (!is_split).then_some(nodes))
}

/// What the kernels of these groups compute, element by element.
pub fn evaluations(of: &ToLower) -> Vec<Evaluation> {
    let mut lowering = Lowering::new(of, Finished::Drafts(Vec::new()));
    lowering.evaluations = Some(Vec::new());
    for number in 0..of.groups.groups.len() as u32 {
        let lowered = lowering.lower_group(number);
        lowered.unwrap_or_else(|Differs| unreachable!("what is built afresh is compared with nothing"));
    }
    lowering.evaluations.unwrap_or_default()
}

/// For kernels that are known, their arguments (sizes, strides, offsets) for another graph, in the order in which they were lowered; and all checks. An error if
/// one of them is another kernel now.
pub fn numbers(of: &ToLower, memos: &GroupMemos, known: KnownKernels) -> Result<(Vec<Args>, Vec<NodeIdx>), Differs> {
    let mut lowering = Lowering::new(of, Finished::Numbers { drafts: known.drafts, args: Vec::new() });
    for (value, node) in (0..).zip(known.nodes) {
        lowering.value_of[*node as usize] = Some(value);
    }
    lowering.values.extend_from_slice(known.values);
    for number in 0..of.groups.groups.len() as u32 {
        memos.lower(number, &mut lowering)?;
    }
    let is_same = lowering.n_finished() == known.drafts.len() && lowering.values.len() == known.values.len();
    let Finished::Numbers { args, .. } = lowering.finished else { unreachable!("it was made so") };
    if is_same { Ok((args, lowering.checks)) } else { Err(Differs) }
}

/// What is lowered.
pub struct ToLower<'a> {
    pub graph: &'a Graph,
    pub groups: &'a Groups,
    /// The chained products, with the sizes of this graph.
    pub chained: &'a [ChainedProduct],
    pub limits: &'a Limits,
    /// What must come before commits.
    pub waits: &'a Checks,
}

/// Kernels as they were lowered the last time, without numbers: the values that they name, and the node that each of these is.
#[derive(Clone, Copy)]
pub struct KnownKernels<'a> {
    pub drafts: &'a [LaunchDraft],
    pub values: &'a [PlanValue],
    pub nodes: &'a [NodeIdx],
}

/// The kernels that are finished.
enum Finished<'a> {
    Drafts(Vec<LaunchDraft>),
    /// Of kernels that are known, the numbers.
    Numbers {
        drafts: &'a [LaunchDraft],
        args: Vec<Args>,
    },
}

pub(super) struct Lowering<'a> {
    pub graph: &'a Graph,
    pub groups: &'a Groups,
    chained: &'a [ChainedProduct],
    limits: &'a Limits,
    pub waits: &'a Checks,
    values: Vec<PlanValue>,
    /// Per value, the node it is.
    nodes: Vec<NodeIdx>,
    value_of: Vec<Option<ValueId>>,
    finished: Finished<'a>,
    pub checks: Vec<NodeIdx>,
    /// What is computed, if it is to be told.
    evaluations: Option<Vec<Evaluation>>,
    /// Whether a group became several kernels.
    is_split: bool,
    /// The memory of the kernel that is being made, for the next one.
    pub lists: Option<Box<BodyLists>>,
    /// What becomes of the questions that are asked of the numbers of the group at hand.
    pub recording: GroupRecording,
}

impl<'a> Lowering<'a> {
    fn new(of: &ToLower<'a>, finished: Finished<'a>) -> Lowering<'a> {
        let &ToLower { graph, groups, chained, limits, waits } = of;
        Lowering {
            graph,
            groups,
            chained,
            limits,
            waits,
            values: Vec::new(),
            nodes: Vec::new(),
            value_of: vec![None; graph.nodes.len()],
            finished,
            checks: Vec::new(),
            evaluations: None,
            is_split: false,
            lists: None,
            recording: GroupRecording::Off,
        }
    }

    /// Whether only numbers are made of what is built as it was before.
    pub fn makes_numbers(&self) -> bool {
        matches!(self.finished, Finished::Numbers { .. })
    }

    /// Adds a kernel. `is_known` says that it is the one that was finished here the last time, whose draft is not needed then.
    fn add(&mut self, is_known: bool, args: Args, draft: impl FnOnce() -> LaunchDraft) -> Result<(), Differs> {
        match &mut self.finished {
            Finished::Drafts(drafts) => drafts.push(LaunchDraft { number: drafts.len() as u32, args, ..draft() }),
            Finished::Numbers { drafts, args: all } => {
                let known = drafts.get(all.len()).ok_or(Differs)?;
                if !is_known && !known.is_but_for_numbers(&draft()) {
                    return Err(Differs);
                }
                all.push(args);
            }
        }
        Ok(())
    }

    fn n_finished(&self) -> usize {
        match &self.finished {
            Finished::Drafts(drafts) => drafts.len(),
            Finished::Numbers { args, .. } => args.len(),
        }
    }

    /// Notes that a kernel computes so many elements of a node, at so many operations each, if that is to be told: only then is
    /// it found out.
    pub fn evaluates(&mut self, node: NodeIdx, numbers: impl FnOnce() -> (usize, usize)) {
        if let Some(evaluations) = &mut self.evaluations {
            let (n_elems, cost) = numbers();
            evaluations.push(Evaluation { node, n_elems, cost });
        }
    }

    /// Whether a value has elements.
    pub fn has_elems(&self, value: ValueId) -> bool {
        self.values.get(value as usize).is_some_and(|value| value.n_elems > 0)
    }
}

impl Lowering<'_> {
    /// The value of an input or stored node.
    pub fn value(&mut self, idx: NodeIdx) -> ValueId {
        if let Some(value) = self.value_of[idx as usize] {
            return value;
        }
        let node = &self.graph.nodes[idx as usize];
        let input = matches!(node.op, Op::Data).then_some((node.slot, node.donated));
        let reason = self.groups.reasons[idx as usize];
        self.values.push(PlanValue { n_elems: node.shape.n_elems(), dtype: node.dtype, input, reason });
        self.nodes.push(idx);
        let value = self.values.len() as ValueId - 1;
        self.value_of[idx as usize] = Some(value);
        value
    }

    /// Where a group finds a node that counts as memory, and how it is stored there: blocks where they were entered, if
    /// the node is what they are widened to and nobody has stored that.
    pub fn source(&mut self, group: u32, idx: NodeIdx) -> (ValueId, Storage) {
        let node = &self.graph.nodes[idx as usize];
        match node.op {
            Op::Widen(format) if !self.groups.is_memory_for(group, idx) => {
                let row_len = node.shape.last().copied().unwrap_or(0);
                (self.value(node.inputs[0]), Storage::Blocks(BlockStorage { format, row_len }))
            }
            _ => (self.value(idx), Storage::Plain(node.dtype)),
        }
    }

    /// The value that a node is as it stands: its own, or that of what it is only a reshape of.
    fn memory(&mut self, idx: NodeIdx) -> ValueId {
        let source = memory_of(self.graph, &self.groups.stored, idx).expect("fusing stored it");
        self.value(source)
    }

    /// The numbers that an index out of range at this node is reported under.
    pub fn check(&mut self, idx: NodeIdx) -> u32 {
        self.checks.push(self.graph.nodes[idx as usize].origin);
        self.checks.len() as u32 - 1
    }

    /// The kernels of a group.
    pub fn lower_group(&mut self, number: u32) -> Result<(), Differs> {
        self.group(number, &self.groups.groups[number as usize])
    }

    /// Forgets what was added since.
    fn rewind(&mut self, to: &Progress) {
        match &mut self.finished {
            Finished::Drafts(drafts) => drafts.truncate(to.n_finished),
            Finished::Numbers { args, .. } => args.truncate(to.n_finished),
        }
        self.checks.truncate(to.n_checks);
        if let Some(evaluations) = &mut self.evaluations {
            evaluations.truncate(to.n_evaluations);
        }
        self.values.truncate(to.n_values);
        self.nodes.truncate(to.n_values);
        self.value_of.iter_mut().for_each(|value| *value = value.filter(|v| (*v as usize) < to.n_values));
    }

    /// The kernels of a group. Where one would have more bindings than there may be, each half of what leaves the group has
    /// its own, and what they share is computed again.
    fn group(&mut self, number: u32, group: &Group) -> Result<(), Differs> {
        let before = Progress::of(self);
        self.kernels(number, group)?;
        let has_too_many = |step: &LaunchDraft| step.reads.len() + step.writes.len() > self.limits.max_bindings;
        // Kernels that are known have been counted.
        let Finished::Drafts(drafts) = &self.finished else { return Ok(()) };
        if group.stores.len() < 2 || !drafts[before.n_finished..].iter().any(has_too_many) {
            return Ok(());
        }
        self.is_split = true;
        self.rewind(&before);
        let (first, rest) = group.stores.split_at(group.stores.len() / 2);
        for half in [first, rest] {
            self.group(number, &Group { stores: half.to_vec(), ..group.clone() })?;
        }
        Ok(())
    }

    fn kernels(&mut self, number: u32, group: &Group) -> Result<(), Differs> {
        match group.form {
            Form::Map => {
                let domain = self.graph.nodes[group.domain as usize].shape;
                let map = View::contiguous(domain);
                let mut body = BodyBuilder::new(self, number, (&domain, &[]), None);
                self.store_all(&mut body, &group.stores, |_| map)?;
                self.finish_loop(body)
            }
            Form::Reduce { first, .. } => {
                let node = &self.graph.nodes[first as usize];
                let Op::Reduce(_, axes) = node.op else { unreachable!("a reduction's group") };
                let full = self.graph.nodes[node.inputs[0] as usize].shape;
                self.reduce(number, group, full, axes)
            }
            Form::Matmul(node) => self.matmul(number, group, node),
            Form::Attention(chained) => {
                let found = &self.chained[chained as usize];
                self.attention(number, group, found)
            }
            Form::Routine(node) => self.routine(node),
        }
    }

    /// Evaluates what leaves a kernel, each through the map its size asks for, and adds the stores.
    fn store_all(
        &mut self,
        body: &mut BodyBuilder,
        stores: &[StoredNode],
        map_of: impl Fn(usize) -> View,
    ) -> Result<(), Differs> {
        let mut regs: SmallVec<[Reg; 4]> = SmallVec::with_capacity(stores.len());
        let map_of = |this: &Self, target: &StoredNode| map_of(this.graph.nodes[target.value as usize].shape.n_elems());
        for target in stores {
            let map_id = body.map(map_of(self, target).into());
            regs.push(body.eval(self, target.value, map_id)?);
        }
        for (target, reg) in stores.iter().zip(regs) {
            let map = map_of(self, target);
            let value_shape = self.graph.nodes[target.value as usize].shape;
            let Some(part) = target.part_of else {
                let value = self.value(target.value);
                body.store(reg, value, self.values[value as usize].dtype, map.into());
                continue;
            };
            let whole = &self.graph.nodes[part.whole as usize];
            let strides = whole.shape.strides();
            let place = |offset: isize| {
                let place = View::from_axes(value_shape.iter().copied().zip(strides), offset);
                IndexMap::from(map).of(&place)
            };
            let value = self.value(part.whole);
            match whole.op {
                Op::Cat(axis) => {
                    let before = &whole.inputs[..part.part as usize];
                    let start: usize = before.iter().map(|i| self.graph.nodes[*i as usize].shape[axis]).sum();
                    body.store(reg, value, whole.dtype, place(start as isize * strides[axis]));
                }
                Op::WriteRows(axis) => {
                    let moved = MovedBy {
                        constant: self.graph.nodes[whole.inputs[2] as usize].slot,
                        stride: strides[axis],
                        n_positions: whole.shape[axis] - value_shape[axis] + 1,
                    };
                    let base = self.memory(whole.inputs[0]);
                    body.store_rows(reg, (value, whole.dtype), place(0), moved, base);
                }
                ref op => unreachable!("{} has no parts", op.name()),
            }
        }
        Ok(())
    }

    fn finish_loop(&mut self, body: BodyBuilder) -> Result<(), Differs> {
        let built = body.finish(self)?;
        if !built.makes_elems {
            return Ok(());
        }
        let BuiltKernel { body, args, is_known, reads, writes, bases, may_fail, first, ops, .. } = built;
        let rest = || LaunchDraft { own_bases: bases, may_fail, first, ops, ..LaunchDraft::default() };
        self.add(is_known, args, || LaunchDraft { kernel: Kernel::Loop(body), reads, writes, ..rest() })
    }

    fn reduce(&mut self, number: u32, group: &Group, full: Shape, axes: AxisSet) -> Result<(), Differs> {
        let rows = full.reduced(&axes, false);
        let (full_map, row_map, outer, inner) = row_maps(&full, &axes);
        let mut body = BodyBuilder::new(self, number, (&outer, &inner), Some((full_map, row_map)));
        let n_rows = rows.n_elems();
        self.store_all(&mut body, &group.stores, |n| if n == n_rows { row_map } else { full_map })?;
        self.finish_loop(body)
    }

    fn routine(&mut self, idx: NodeIdx) -> Result<(), Differs> {
        let node = &self.graph.nodes[idx as usize];
        let Op::Routine(row, params) = node.op else { unreachable!("a routine's group") };
        if node.shape.n_elems() == 0 {
            self.value(idx);
            return Ok(());
        }
        let reads: Vec<ValueId> = node.inputs.iter().map(|i| self.memory(*i)).collect();
        let value = self.value(idx);
        let routine = RoutineArgs {
            params,
            input_shapes: node.inputs.iter().map(|i| self.graph.nodes[*i as usize].shape).collect(),
            output_shape: node.shape,
            check: self.check(idx),
        };
        let inputs = reads.iter().map(|v| self.values[*v as usize].dtype.into()).collect();
        let (may_fail, first) = (self.waits.may_fail[idx as usize], self.waits.first[idx as usize]);
        let args = Args { routine: Some(Box::new(routine)), ..Args::default() };
        self.add(false, args, || LaunchDraft {
            kernel: Kernel::Routine(RoutineKernel { row, inputs, outputs: vec![node.dtype] }),
            reads,
            writes: vec![value],
            may_fail: may_fail.then_some(node.origin).into_iter().collect(),
            first,
            ops: vec![Cow::Borrowed(row.name)],
            ..LaunchDraft::default()
        })
    }
}

/// The index space of a reduction, outer axes then inner: how it meets the elements of what is reduced, and those of
/// the result.
fn row_maps(full: &Shape, axes: &AxisSet) -> (View, View, Shape, Shape) {
    let order = |inner: bool| (0..full.rank()).filter(move |i| axes.contains(*i) == inner);
    let size = |i: usize| full[i];
    let (outer, inner): (Shape, Shape) = (order(false).map(size).collect(), order(true).map(size).collect());
    let all: SmallVec<[usize; MAX_RANK]> = order(false).chain(order(true)).collect();
    let full_map = View::permute(full, &all);
    let rows = full.reduced(axes, false).strides();
    let row_map = View::from_axes(outer.iter().copied().zip(rows).chain(inner.iter().map(|d| (*d, 0))), 0);
    (full_map, row_map, outer, inner)
}
