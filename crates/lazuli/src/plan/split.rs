//! Cuts kernels that are too long for one launch, after they are lowered and before they are ordered. A long reduction
//! with few results, or one over long columns, becomes two kernels: the first reduces pieces of what was reduced, side by
//! side, the second combines the pieces and does what follows. Knows kernels and their numbers; writes no text, and asks
//! nothing about the graph. Where to cut depends on sizes alone, never on threads.

use std::borrow::Cow;

use super::body::{contiguous, is_one_axis, rewrite};
use super::lower::{LaunchDraft, Lowered, PlanValue};
use super::{Limits, ValueId};
use crate::dtype::{DType, Lane};
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, Order, Reg, Scope, Store};
use crate::ops::ReduceRow;
use crate::shape::MAX_RANK;
use crate::view::{IndexMap, View};

/// All kernels, none of them too long.
pub fn split(mut lowered: Lowered, limits: &Limits) -> Lowered {
    let mut steps = Vec::with_capacity(lowered.steps.len());
    for step in lowered.steps {
        match LongReduce::of(&step, limits) {
            Some(reduce) => {
                let pieces = lowered.values.len() as ValueId;
                lowered.values.push(reduce.value());
                steps.extend([reduce.pieces(&step, pieces, limits), reduce.combined(&step, pieces, limits)]);
            }
            None => steps.push(step),
        }
    }
    Lowered { steps, ..lowered }
}

/// A reduction that is cut.
struct LongReduce {
    /// The instruction, and how it combines.
    reg: Reg,
    row: &'static ReduceRow,
    /// What pieces are kept as, so that they lose nothing.
    dtype: DType,
    n_rows: usize,
    length: usize,
    n_pieces: usize,
    /// Elements of a piece; the last may be shorter.
    piece: usize,
}

impl LongReduce {
    /// The one reduction of a kernel, if it is too long and only its results leave the kernel.
    fn of(step: &LaunchDraft, limits: &Limits) -> Option<LongReduce> {
        let (Kernel::Loop(body), args) = (&step.kernel, &step.args) else { return None };
        let (n_rows, length): (usize, usize) = (args.outer.iter().product(), args.inner.iter().product());
        let is_long = length > limits.max_reduce && n_rows < limits.min_rows;
        let has_long_columns = body.order == Order::OuterFast
            && length / 2 >= limits.max_column
            && n_rows >= limits.max_column
            && cuts_by_strides(args);
        let max_len = match () {
            _ if body.inner_rank == 0 || body.ragged => return None,
            _ if is_long => limits.max_piece,
            _ if has_long_columns => limits.max_column,
            _ => return None,
        };
        let mut reduces = body.insts.iter().enumerate().filter(|(_, inst)| matches!(inst.op, InstOp::Reduce(..)));
        let ((reg, inst), None) = (reduces.next()?, reduces.next()) else { return None };
        let InstOp::Reduce(row, _) = inst.op else { unreachable!("just found") };
        if body.stores.iter().any(|store| body.insts[store.value as usize].scope == Scope::Inner) {
            return None;
        }
        let dtype = match inst.dtype.lane() {
            Lane::F32 => DType::F32,
            Lane::I32 => DType::I32,
            Lane::U32 => DType::U32,
        };
        // As many pieces as give whole pages each; how many does not depend on who runs them.
        let n_pieces = length.div_ceil(max_len);
        let piece = length.div_ceil(n_pieces).next_multiple_of(max_len.min(1024)).min(length);
        let n_pieces = length.div_ceil(piece);
        Some(LongReduce { reg: reg as Reg, row, dtype, n_rows, length, n_pieces, piece })
    }

    /// What the pieces are stored as: `[pieces, rows…]`.
    fn value(&self) -> PlanValue {
        let reason = Some("a long reduction with few results is cut into pieces that are combined afterwards");
        PlanValue { n_elems: self.n_pieces * self.n_rows, dtype: self.dtype, input: None, reason }
    }

    /// The kernel that reduces pieces, counted by a new first outer axis.
    fn pieces(&self, step: &LaunchDraft, pieces: ValueId, limits: &Limits) -> LaunchDraft {
        let (_, args) = body_of(step);
        // One more axis than there may be: rows are counted as one, too.
        let outer = if args.outer.len() + 2 <= MAX_RANK { args.outer.clone() } else { vec![self.n_rows] };
        let mut slice = KernelSlice::new(step, limits);
        let value = slice.take(self.reg);
        let n_outer = args.outer.len();
        for map in &mut slice.args.accesses {
            *map = match map.shape().rank() {
                0 => map.clone(),
                rank if rank > n_outer => self.cut_inner(map, args, &outer),
                _ => self.cut_outer(map, &outer),
            };
        }
        let to = [(self.n_pieces, self.n_rows as isize)].into_iter().chain(contiguous(&outer));
        slice.store(value, pieces, self.dtype, View::from_axes(to, 0).into());
        let ragged = self.n_pieces * self.piece != self.length;
        let accesses: Vec<AccessForm> = slice.args.accesses.iter().map(AccessForm::of).collect();
        let sizes = Args {
            outer: [&[self.n_pieces][..], &outer].concat(),
            inner: vec![self.piece],
            limit: self.length,
            ..slice.args
        };
        let order = order_of(&sizes);
        let (outer_rank, inner_rank) = (sizes.outer.len() as u8, 1);
        let body = Body { outer_rank, inner_rank, order, ragged, accesses, ..slice.body };
        LaunchDraft { kernel: Kernel::Loop(body), args: sizes, ..slice.draft }
    }

    /// A map over outer and inner axes, as it is met by `[pieces, outer…, piece]`.
    fn cut_inner(&self, map: &IndexMap, args: &Args, outer: &[usize]) -> IndexMap {
        let (n_outer, piece) = (args.outer.len(), self.piece);
        if outer.len() == n_outer && is_one_axis(map, n_outer) {
            return rewrite(map, |axes| {
                let step = axes[n_outer].1;
                axes[n_outer] = (piece, step, (0, piece));
                axes.insert(0, (self.n_pieces, step * piece as isize, (0, self.n_pieces)));
            });
        }
        // By its number, row-major, whichever way the map leads on from there. Beyond the end of the last piece the numbers
        // are those of other rows, or of none: nothing is looked up there.
        let rows = contiguous(outer).into_iter().map(|(size, stride)| (size, stride * self.length as isize));
        let axes = [(self.n_pieces, piece as isize)].into_iter().chain(rows).chain([(piece, 1)]);
        seen_by(map, View::from_axes(axes, 0))
    }

    /// A map over outer axes, the same for every piece.
    fn cut_outer(&self, map: &IndexMap, outer: &[usize]) -> IndexMap {
        if map.shape().rank() == outer.len() {
            return rewrite(map, |axes| axes.insert(0, (self.n_pieces, 0, (0, self.n_pieces))));
        }
        let axes = [(self.n_pieces, 0)].into_iter().chain(contiguous(outer));
        seen_by(map, View::from_axes(axes, 0))
    }

    /// The kernel that combines pieces, and what follows.
    fn combined(&self, step: &LaunchDraft, pieces: ValueId, limits: &Limits) -> LaunchDraft {
        let (body, args) = body_of(step);
        let mut slice = KernelSlice::new(step, limits);
        let axes = contiguous(&args.outer).into_iter().chain([(self.n_pieces, self.n_rows as isize)]);
        let map: IndexMap = View::from_axes(axes, 0).into();
        let load = slice.load(pieces, self.dtype, map);
        let reduced = &body.insts[self.reg as usize];
        let reg = slice.push(Inst { op: InstOp::Reduce(self.row, load), ..reduced.clone() });
        slice.new_reg[self.reg as usize] = Some(reg);
        for store in &body.stores {
            let value = slice.take(store.value);
            let output = step.writes[store.output as usize];
            let map = args.accesses[store.access as usize].clone();
            slice.store(value, output, body.outputs[store.output as usize], map);
        }
        let accesses: Vec<AccessForm> = slice.args.accesses.iter().map(AccessForm::of).collect();
        let sizes = Args { outer: args.outer.clone(), inner: vec![self.n_pieces], ..slice.args };
        let order = order_of(&sizes);
        let body = Body { outer_rank: body.outer_rank, inner_rank: 1, order, accesses, ..slice.body };
        LaunchDraft { kernel: Kernel::Loop(body), args: sizes, ..slice.draft }
    }
}

fn body_of(step: &LaunchDraft) -> (&Body, &Args) {
    let Kernel::Loop(body) = &step.kernel else { unreachable!("a reduction is a loop") };
    (body, &step.args)
}

/// Whether the inner axes of a kernel can be cut so that every access still goes by strides.
fn cuts_by_strides(args: &Args) -> bool {
    let n_outer = args.outer.len();
    let by_stride = |map: &IndexMap| map.shape().rank() <= n_outer || is_one_axis(map, n_outer);
    n_outer + 2 <= MAX_RANK && args.accesses.iter().all(by_stride)
}

/// The map as it is met by other indices, each of which gives the number of one of its own.
fn seen_by(map: &IndexMap, numbers: View) -> IndexMap {
    map.views().iter().rev().fold(numbers.into(), |seen: IndexMap, view| seen.of(view))
}

/// Which axes to walk fastest: those along which most loads find their elements side by side.
fn order_of(args: &Args) -> Order {
    let Some(outer) = args.outer.len().checked_sub(1) else { return Order::InnerFast };
    let inner = outer + 1;
    let mut votes = 0i32;
    for map in args.accesses.iter().filter(|map| map.shape().rank() > inner) {
        let strides = map.views().last().expect("never empty").strides;
        votes += (strides[outer].abs() == 1 && strides[inner].abs() != 1) as i32;
        votes -= (strides[inner].abs() == 1) as i32;
    }
    if votes > 0 && args.outer[outer] >= 8 { Order::OuterFast } else { Order::InnerFast }
}

/// What people call an instruction, if it computes something.
fn name_of(op: &InstOp) -> Option<Cow<'static, str>> {
    Some(match op {
        InstOp::Unary(row, _) => row.name.into(),
        InstOp::Binary(row, ..) => row.name.into(),
        InstOp::Reduce(row, _) => row.name.into(),
        InstOp::Gather { .. } => "gather".into(),
        InstOp::Select(..) => "select".into(),
        InstOp::Cast(_) => "cast".into(),
        InstOp::Custom(op, _) => op.0.name.to_string().into(),
        _ => return None,
    })
}

/// Some instructions of a kernel as a kernel of their own, with the memory and the numbers that they use.
struct KernelSlice<'a> {
    step: &'a LaunchDraft,
    limits: &'a Limits,
    /// Per register of the kernel, what it is here.
    new_reg: Vec<Option<Reg>>,
    body: Body,
    args: Args,
    draft: LaunchDraft,
}

impl<'a> KernelSlice<'a> {
    fn new(step: &'a LaunchDraft, limits: &'a Limits) -> KernelSlice<'a> {
        let draft = LaunchDraft {
            kernel: Kernel::Loop(Body::default()),
            args: Args::default(),
            reads: Vec::new(),
            writes: Vec::new(),
            may_fail: Vec::new(),
            first: false,
            ops: Vec::new(),
        };
        let n_insts = body_of(step).0.insts.len();
        KernelSlice { step, limits, new_reg: vec![None; n_insts], body: Body::default(), args: Args::default(), draft }
    }

    /// Takes over an instruction with all that it needs.
    fn take(&mut self, goal: Reg) -> Reg {
        let (body, _) = body_of(self.step);
        let mut wanted = vec![false; goal as usize + 1];
        wanted[goal as usize] = true;
        for reg in (0..wanted.len()).rev() {
            if wanted[reg] && self.new_reg[reg].is_none() {
                body.insts[reg].op.for_each_reg(|r| wanted[r as usize] = true);
            }
        }
        for reg in (0..wanted.len()).filter(|reg| wanted[*reg]) {
            if self.new_reg[reg].is_none() {
                self.new_reg[reg] = Some(self.copy(reg as Reg));
            }
        }
        self.new_reg[goal as usize].expect("just taken")
    }

    /// One instruction, its operands being here.
    fn copy(&mut self, reg: Reg) -> Reg {
        let (body, args) = body_of(self.step);
        let inst = &body.insts[reg as usize];
        let regs = &self.new_reg;
        let mut op = inst.op.with_regs(|r| regs[r as usize].expect("operands come first"));
        match &mut op {
            InstOp::Load { input, access } => {
                (*input, *access) = (self.input(*input), self.access(*access));
            }
            InstOp::Valid { access } | InstOp::Index { access } => *access = self.access(*access),
            InstOp::Gather { input, access, gather, .. } => {
                (*input, *access) = (self.input(*input), self.access(*access));
                self.args.gathers.push(args.gathers[*gather as usize]);
                *gather = self.args.gathers.len() as u16 - 1;
            }
            InstOp::Const(constant) => {
                self.args.consts.push(args.consts[*constant as usize]);
                *constant = self.args.consts.len() as u16 - 1;
            }
            _ => {}
        }
        if self.is_fallible(&op) {
            let before = body.insts[..reg as usize].iter().filter(|inst| self.is_fallible(&inst.op)).count();
            self.draft.may_fail.extend(self.step.may_fail.get(before));
            self.draft.first |= self.step.first;
        }
        self.push(Inst { op, ..inst.clone() })
    }

    fn is_fallible(&self, op: &InstOp) -> bool {
        match op {
            InstOp::Gather { .. } => true,
            InstOp::Custom(..) => self.limits.custom_may_fail,
            _ => false,
        }
    }

    fn push(&mut self, inst: Inst) -> Reg {
        self.draft.ops.extend(name_of(&inst.op));
        self.body.insts.push(inst);
        self.body.insts.len() as Reg - 1
    }

    fn input(&mut self, input: u16) -> u16 {
        let (body, _) = body_of(self.step);
        self.bind(self.step.reads[input as usize], body.inputs[input as usize])
    }

    fn bind(&mut self, value: ValueId, dtype: DType) -> u16 {
        let known = self.draft.reads.iter().position(|read| *read == value);
        known.unwrap_or_else(|| {
            self.draft.reads.push(value);
            self.body.inputs.push(dtype);
            self.draft.reads.len() - 1
        }) as u16
    }

    fn access(&mut self, access: u16) -> u16 {
        let (_, args) = body_of(self.step);
        self.map(args.accesses[access as usize].clone())
    }

    fn map(&mut self, map: IndexMap) -> u16 {
        let known = self.args.accesses.iter().position(|known| *known == map);
        known.unwrap_or_else(|| {
            self.args.accesses.push(map);
            self.args.accesses.len() - 1
        }) as u16
    }

    fn load(&mut self, value: ValueId, dtype: DType, map: IndexMap) -> Reg {
        let (input, access) = (self.bind(value, dtype), self.map(map));
        self.push(Inst { op: InstOp::Load { input, access }, dtype, scope: Scope::Inner })
    }

    /// Stores a value through a map of its own: no load may be met by the index space as it is.
    fn store(&mut self, value: Reg, to: ValueId, dtype: DType, map: IndexMap) {
        self.args.accesses.push(map);
        let (output, access) = (self.body.outputs.len() as u16, self.args.accesses.len() as u16 - 1);
        self.draft.writes.push(to);
        self.body.outputs.push(dtype);
        self.body.stores.push(Store { value, output, access });
    }
}
