//! What a line of a pass does to a tile. Lanes go through the loops of rows, all at once where they lie one after
//! another, else row by row; what is one lane for all stays one.

use smallvec::SmallVec;

use super::chain::{self, ChainOperand, ChainWrite, Start};
use super::convert;
use super::fold;
use super::load::{self, Lookup};
use super::nontemporal;
use super::program::CodeInst;
use super::runs::ElementRuns;
use super::sweeps::{ChainLink, Dst, SweepOp, SweepStep};
use super::tile::{Frame, Tile, Val};
use super::transpose::{self, Across};
use crate::backend::FailedCheck;
use crate::kernel::Reg;
use crate::ops::RegisterStep;
use crate::user::{self, CalledBy};

/// Where a line leaves its lanes.
#[derive(Clone, Copy)]
struct Out {
    ptr: *mut u32,
    pitch: usize,
    write: ChainWrite,
}

/// Lanes that are computed in cache before they are written past it: few, so that computing and writing overlap.
const STREAM_LANES: usize = 256;
/// Where so much is written, so much is read: lanes this far on are asked for, past the end of a page too, where the
/// processor itself stops looking ahead.
const STREAM_AHEAD: usize = 256;

impl Out {
    /// The lanes of a row.
    ///
    /// # Safety
    /// The destination has room for them, and nobody else looks at them.
    #[allow(clippy::mut_from_ref)]
    unsafe fn row<'s>(self, row: usize, len: usize) -> &'s mut [u32] {
        // SAFETY: as promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(row * self.pitch), len) }
    }

    fn full(self) -> Val {
        Val::full(self.ptr, self.pitch)
    }
}

/// Calls `f` part by part and writes each past the caches.
fn stream_parts<const N: usize>(operands: [&[u32]; N], out: &mut [u32], f: &impl Fn([&[u32]; N], &mut [u32])) {
    let mut part = [0; STREAM_LANES];
    // Parts end on whole vectors of the output, so that all but the first and the last are written as such.
    let mut at = 0;
    while at < out.len() {
        let end = (at + STREAM_LANES - out[at..].as_ptr() as usize / 4 % 16).min(out.len());
        let lanes = &mut part[..end - at];
        f(operands.map(|x| if x.len() == 1 { x } else { &x[at..end] }), lanes);
        nontemporal::copy(lanes, &mut out[at..end]);
        at = end;
    }
}

impl Frame<'_> {
    /// Runs one line over a tile.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    pub unsafe fn line(&mut self, line: &SweepStep, tile: &Tile) {
        let (ptr, pitch) = self.dst(line.dst, tile);
        let write = match line.dst {
            Dst::Output(store) if self.bound.nest.streams[store] => ChainWrite::Streamed,
            _ => ChainWrite::Cached,
        };
        let out = Out { ptr, pitch, write };
        // SAFETY: destinations have room for the tile and are no line's source at the same time; loops are those of
        // this machine.
        let val = unsafe {
            match &line.work {
                SweepOp::Chain { start, links } => self.chain(line, (*start, links), out, tile),
                SweepOp::Inst => self.inst(line.reg, out, tile),
            }
        };
        // What is kept or leaves the kernel is there lane by lane.
        let val = match line.dst {
            Dst::Keep(_) | Dst::Output(_) if !val.spread => {
                // From the last row to the first: what is still to be read lies before what is written.
                for row in (0..tile.rows).rev() {
                    // SAFETY: as above.
                    unsafe {
                        let lane = val.row(row, 1)[0];
                        out.row(row, tile.len).fill(lane);
                    }
                }
                out.full()
            }
            _ => val,
        };
        self.set(line.reg, val);
    }

    /// Runs the instruction of a register over a tile.
    ///
    /// # Safety
    /// As for [`Frame::run`]; `out` has room for the tile, or for a lane a row where the value is no more than that,
    /// and is no operand.
    unsafe fn inst(&mut self, reg: Reg, out: Out, tile: &Tile) -> Val {
        let nest = self.bound.nest;
        // SAFETY: as for `line`.
        unsafe {
            match &nest.code.insts[reg as usize] {
                CodeInst::Load { input, access } => self.load(*input, *access, out, tile),
                CodeInst::Padded { input, access, fill } => {
                    let (walk, storage) = (&nest.walks[*access as usize], nest.code.body.inputs[*input as usize]);
                    let (base, fill) = (self.bound.inputs[*input as usize], self.val(*fill).row(0, 1)[0]);
                    (0..tile.rows).for_each(|r| {
                        let start = tile.start + r * tile.pitch;
                        load::fill_padded(walk, base, storage, start, out.row(r, tile.len), fill);
                    });
                    out.full()
                }
                CodeInst::Valid { access } => {
                    let walk = &nest.walks[*access as usize];
                    (0..tile.rows)
                        .for_each(|r| load::validity(walk, tile.start + r * tile.pitch, out.row(r, tile.len)));
                    out.full()
                }
                CodeInst::Index { access } => {
                    let walk = &nest.walks[*access as usize];
                    (0..tile.rows).for_each(|r| load::indices(walk, tile.start + r * tile.pitch, out.row(r, tile.len)));
                    out.full()
                }
                CodeInst::Gather { .. } => self.gather(reg, out, tile),
                CodeInst::Acc(number) => self.accs[*number as usize],
                CodeInst::Const(idx) => {
                    *out.ptr = self.bound.constants[nest.consts[*idx as usize] as usize];
                    Val::one(out.ptr)
                }
                CodeInst::Failed => {
                    *out.ptr = 1;
                    Val::one(out.ptr)
                }
                CodeInst::Unary { apply, x, .. } => self.apply([*x], out, tile, |[x], y| apply(x, y)),
                CodeInst::Binary { apply, x, y, .. } => {
                    self.apply([*x, *y], out, tile, |[x, y], out| crate::ops::apply(*apply, x, y, out))
                }
                CodeInst::Select { cond, a, b } => {
                    self.apply([*cond, *a, *b], out, tile, |[cond, a, b], y| match cond.len() == y.len() {
                        true => convert::select(cond, a, b, y),
                        false => match if cond[0] != 0 { a } else { b } {
                            [lane] => y.fill(*lane),
                            lanes => y.copy_from_slice(lanes),
                        },
                    })
                }
                CodeInst::Cast { x, from, to } => self.apply([*x], out, tile, |[x], y| convert::cast(*from, *to, x, y)),
                CodeInst::Custom { .. } => self.custom(reg, out, tile),
                CodeInst::Reduce { .. } | CodeInst::Alias => unreachable!("not a line"),
            }
        }
    }

    /// Calls `f` with the lanes of the operands; each is as long as the output or a single lane.
    ///
    /// # Safety
    /// Operands are registers that hold lanes of this tile; `out` has room for it and is none of them.
    unsafe fn apply<const N: usize>(
        &self,
        operands: [Reg; N],
        out: Out,
        tile: &Tile,
        f: impl Fn([&[u32]; N], &mut [u32]),
    ) -> Val {
        let vals = operands.map(|r| self.val(r));
        // SAFETY: operands are of this tile; the destination has room for it and is none of them.
        unsafe {
            if !vals.iter().any(|v| v.spread) {
                // One lane for all rows, or one for each: those of all rows are computed at once.
                let rows = if vals.iter().all(|v| v.is_one(tile)) { 1 } else { tile.rows };
                let lanes = std::slice::from_raw_parts_mut(out.ptr, rows);
                f(vals.map(|v| v.across_rows(tile).row(0, rows)), lanes);
                return Val { ptr: out.ptr, pitch: (rows > 1) as isize, spread: false };
            }
            let dense = vals.iter().all(|v| v.is_dense(tile) || v.is_one(tile)) && out.full().is_dense(tile);
            let (rows, len) = if dense { (1, tile.n_lanes()) } else { (tile.rows, tile.len) };
            for row in 0..rows {
                let (operands, out_row) = (vals.map(|v| v.row(row, len)), out.row(row, len));
                match out.write {
                    ChainWrite::Cached => f(operands, out_row),
                    ChainWrite::Streamed => stream_parts(operands, out_row, &f),
                }
            }
            out.full()
        }
    }

    /// A load that is not in place: copied and converted.
    ///
    /// # Safety
    /// As for [`Frame::run`]; `out` has room for the tile.
    unsafe fn load(&self, input: u16, access: u16, out: Out, tile: &Tile) -> Val {
        let nest = self.bound.nest;
        let walk = &nest.walks[access as usize];
        let storage = nest.code.body.inputs[input as usize];
        let base = self.bound.inputs[input as usize];
        // SAFETY: the planner's accesses stay within their memory, and the destination has room for the tile.
        unsafe {
            let row_step = nest.row_steps[access as usize];
            match walk.step() {
                Some(0) if matches!(walk, ElementRuns::One(_)) => {
                    *out.ptr = load::element(base, storage, walk.element(0));
                    return Val::one(out.ptr);
                }
                Some(lane_step)
                    if let Some(dtype) = storage.plain()
                        && (lane_step.abs() > 1 && row_step.abs() == 1 && tile.rows > 1 && nest.rows_are_runs) =>
                {
                    let across = Across { first: walk.element(tile.start), row_step, lane_step };
                    transpose::fill(base, dtype, across, out.ptr, out.pitch, tile);
                }
                _ if out.pitch == tile.len && tile.pitch == tile.len => {
                    load::fill(walk, base, storage, tile.start, out.row(0, tile.n_lanes()));
                }
                _ => {
                    for row in 0..tile.rows {
                        load::fill(walk, base, storage, tile.start + row * tile.pitch, out.row(row, tile.len));
                    }
                }
            }
        }
        out.full()
    }

    /// Elements at places that are read.
    ///
    /// # Safety
    /// As for [`Frame::run`]; `out` has room for the tile and is not the index.
    unsafe fn gather(&mut self, reg: Reg, out: Out, tile: &Tile) -> Val {
        let nest = self.bound.nest;
        let CodeInst::Gather { input, access, index, gather, signed } = nest.code.insts[reg as usize] else {
            unreachable!("called for gathers")
        };
        let args = nest.gathers[gather as usize];
        let lookup = Lookup { walk: &nest.walks[access as usize], stride: args.stride, bound: args.bound, signed };
        let storage = nest.code.body.inputs[input as usize];
        let index = self.val(index);
        for row in 0..tile.rows {
            // SAFETY: the planner's accesses stay within their memory for every index within its bound.
            let failed = unsafe {
                let start = tile.start + row * tile.pitch;
                lookup.fill(
                    self.bound.inputs[input as usize],
                    storage,
                    start,
                    index.row(row, tile.len),
                    out.row(row, tile.len),
                )
            };
            if let Some((position, index)) = failed {
                let check = FailedCheck { check: args.check, index, bound: args.bound };
                self.bound.faults.index_out_of_range(self.bound.launch_idx, position, check);
            }
        }
        out.full()
    }

    /// A user's function of single lanes.
    ///
    /// # Safety
    /// As for [`Frame::run`]; `out` has room for the tile and is no argument.
    unsafe fn custom(&mut self, reg: Reg, out: Out, tile: &Tile) -> Val {
        let CodeInst::Custom { op, args } = &self.bound.nest.code.insts[reg as usize] else {
            unreachable!("called for custom ops")
        };
        let vals: SmallVec<[Val; 4]> = args.iter().map(|r| self.val(*r)).collect();
        let (faults, launch_idx) = (self.bound.faults, self.bound.launch_idx);
        if faults.panicked_before(launch_idx, tile.start) {
            return out.full();
        }
        let mut each = || {
            let mut lanes: SmallVec<[f32; 4]> = smallvec::smallvec![0.0; args.len()];
            for row in 0..tile.rows {
                // SAFETY: operands and destination are of this tile.
                let out = unsafe { out.row(row, tile.len) };
                for (i, out) in out.iter_mut().enumerate() {
                    for (lane, val) in lanes.iter_mut().zip(&vals) {
                        // SAFETY: as above.
                        let row = unsafe { val.row(row, tile.len) };
                        *lane = f32::from_bits(row[if val.spread { i } else { 0 }]);
                    }
                    *out = (op.0.cpu)(&lanes).to_bits();
                }
            }
        };
        // The user's code may panic; that must not unwind through the threads.
        if let Err(text) = user::call(|| user::call_for(CalledBy::Kernel, &mut each)) {
            faults.panicked_in(launch_idx, tile.start, &op.0.name, text);
        }
        out.full()
    }

    /// Several steps of arithmetic at once, and into a reduction if the line feeds one.
    ///
    /// # Safety
    /// As for [`Frame::run`]; `out` has room for the tile, or is null where nothing but a reduction sees the results,
    /// and is no operand.
    unsafe fn chain(
        &mut self,
        line: &SweepStep,
        (start, links): (Reg, &[ChainLink]),
        mut out: Out,
        tile: &Tile,
    ) -> Val {
        let mut steps = std::mem::take(&mut self.chain);
        let regs = || [start].into_iter().chain(links.iter().filter_map(|l| l.operand));
        let dense = regs().all(|r| self.val(r).is_dense(tile) || self.val(r).is_one(tile)) && out.full().is_dense(tile);
        let single = !regs().any(|r| self.val(r).spread);
        let (rows, len) = match (single, dense) {
            // One lane for all rows, or one for each: those of all rows are computed at once.
            (true, _) => (1, if regs().all(|r| self.val(r).is_one(tile)) { 1 } else { tile.rows }),
            (false, true) if line.fold.is_none() => (1, tile.n_lanes()),
            _ => (tile.rows, tile.len),
        };
        let fold = line.fold.map(|(idx, reg)| {
            let CodeInst::Reduce { apply, step: Some(step), .. } = &self.bound.nest.code.insts[reg as usize] else {
                unreachable!("chains feed reductions of floats")
            };
            (idx, *step, apply)
        });
        // What is the same for all lanes of a row is folded below.
        let in_registers = fold.filter(|_| !single);
        if out.ptr.is_null() && in_registers.is_none() {
            (out.ptr, out.pitch) = self.dst(Dst::Slot(self.bound.nest.scratch.n_slots + 1), tile);
        }
        steps.clear();
        let val = |reg: Reg| if single { self.val(reg).across_rows(tile) } else { self.val(reg) };
        let operand = |l: &ChainLink| ChainOperand::new(l.step, l.reversed, l.operand.map(val).as_ref());
        steps.extend(links.iter().map(operand));
        let ahead = match out.write {
            _ if links.iter().any(|l| l.step == RegisterStep::Exp) => self.ahead,
            ChainWrite::Streamed => STREAM_AHEAD,
            ChainWrite::Cached => 0,
        };
        let start = val(start);
        for row in 0..rows {
            let lanes = start.ptr.wrapping_offset(row as isize * start.pitch);
            let from = Start { lanes, single: !start.spread, ahead };
            // SAFETY: every operand has a lane or `len`, and the destination room for them and is none of them.
            unsafe {
                let to = out.ptr.wrapping_add(row * out.pitch);
                match in_registers {
                    None => chain::run(from, &steps, std::slice::from_raw_parts_mut(to, len), out.write),
                    Some((idx, step, apply)) => {
                        let to = if out.ptr.is_null() { out.ptr } else { to };
                        self.folded[idx].push(fold::fold(from, &steps, to, len, (step, apply)));
                    }
                }
            };
            steps.iter_mut().for_each(ChainOperand::advance);
        }
        self.chain = steps;
        if !single {
            return out.full();
        }
        let val = Val { ptr: out.ptr, pitch: (len > 1) as isize, spread: false };
        if let Some((idx, _, apply)) = fold {
            // At once: the next line that only a reduction sees leaves its lanes in the same place.
            let (spare, _) = self.dst(Dst::Slot(self.bound.nest.scratch.n_slots), tile);
            for row in 0..tile.rows {
                // SAFETY: the spare tile has room for a row, and the loops are those of this machine.
                unsafe {
                    let lanes = std::slice::from_raw_parts_mut(spare, tile.len);
                    lanes.fill(val.row(row, 1)[0]);
                    self.folded[idx].push((apply.fold)(lanes));
                }
            }
        }
        val
    }
}
