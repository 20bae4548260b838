//! Long reductions: one with few results, or one over long columns, becomes two kernels. The first reduces pieces of what was
//! reduced, side by side, the second combines the pieces and does what follows. Where to cut depends on sizes alone, never on
//! threads.

use std::sync::Arc;

use super::slice::{KernelSlice, body_of, stored_as};
use crate::dtype::DType;
use crate::kernel::{AccessForm, Args, Body, Inst, InstOp, Kernel, Order, Reg, Scope};
use crate::ops::ReduceRow;
use crate::plan::lower::{LaunchDraft, PlanValue};
use crate::plan::maps::{contiguous, is_one_axis, rewrite};
use crate::plan::{Limits, ValueId};
use crate::shape::MAX_RANK;
use crate::view::{IndexMap, View};

/// A reduction that is cut.
pub struct LongReduce {
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
    pub fn of(step: &LaunchDraft, limits: &Limits) -> Option<LongReduce> {
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
        let dtype = stored_as(inst.dtype.lane());
        // As many pieces as give whole pages each; how many does not depend on who runs them.
        let n_pieces = length.div_ceil(max_len);
        let piece = length.div_ceil(n_pieces).next_multiple_of(max_len.min(1024)).min(length);
        let n_pieces = length.div_ceil(piece);
        Some(LongReduce { reg: reg as Reg, row, dtype, n_rows, length, n_pieces, piece })
    }

    /// What the pieces are stored as: `[pieces, rows…]`.
    pub fn value(&self) -> PlanValue {
        let reason = Some("a long reduction with few results is cut into pieces that are combined afterwards");
        PlanValue { n_elems: self.n_pieces * self.n_rows, dtype: self.dtype, input: None, reason }
    }

    /// The kernel that reduces pieces, counted by a new first outer axis.
    pub fn pieces(&self, step: &LaunchDraft, pieces: ValueId, limits: &Limits) -> LaunchDraft {
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
        LaunchDraft { kernel: Kernel::Loop(Arc::new(body)), args: sizes, ..slice.draft }
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
    pub fn combined(&self, step: &LaunchDraft, pieces: ValueId, limits: &Limits) -> LaunchDraft {
        let (body, args) = body_of(step);
        let mut slice = KernelSlice::new(step, limits);
        let axes = contiguous(&args.outer).into_iter().chain([(self.n_pieces, self.n_rows as isize)]);
        let map: IndexMap = View::from_axes(axes, 0).into();
        let load = slice.load(pieces, (self.dtype, self.dtype), Scope::Inner, map);
        let reduced = &body.insts[self.reg as usize];
        let reg = slice.push(Inst { op: InstOp::Reduce(self.row, load), ..reduced.clone() });
        slice.new_reg[self.reg as usize] = Some(reg);
        for store in &body.stores {
            let value = slice.take(store.value);
            let output = step.writes[store.output as usize];
            let map = args.accesses[store.access as usize].clone();
            let access = slice.store(value, output, body.outputs[store.output as usize], map);
            slice.move_like(access, store.access);
        }
        slice.draft.own_bases.clone_from(&step.own_bases);
        let accesses: Vec<AccessForm> = slice.args.accesses.iter().map(AccessForm::of).collect();
        let sizes = Args { outer: args.outer.clone(), inner: vec![self.n_pieces], ..slice.args };
        let order = order_of(&sizes);
        let body = Body { outer_rank: body.outer_rank, inner_rank: 1, order, accesses, ..slice.body };
        LaunchDraft { kernel: Kernel::Loop(Arc::new(body)), args: sizes, ..slice.draft }
    }
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
