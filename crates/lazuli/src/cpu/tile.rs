//! One tile: every line of a pass over the same lanes, while they are in the first-level cache.
//! Knows lines and lanes; which tile comes when is the business of `map` and `reduce`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::chain::{self, Operand};
use super::convert;
use super::load::{self, Lookup};
use super::nest::Nest;
use super::pass::{Dst, Line, Pass, Work};
use super::program::CodeInst;
use crate::backend::FailedCheck;
use crate::kernel::Reg;

/// A nest with the memory of one run.
pub struct Bound<'a> {
    pub nest: &'a Nest,
    pub inputs: SmallVec<[*const u8; 6]>,
    pub outputs: SmallVec<[*mut u8; 2]>,
    pub constants: &'a [u32],
    pub faults: &'a Faults,
    /// Which launch of the plan it is, so that of several faults the first is reported.
    pub launch_idx: usize,
    /// What was evaluated once, by register.
    pub uniforms: SmallVec<[u32; 32]>,
}

// SAFETY: the pointers are to memory that the run holds; tiles write disjoint elements.
unsafe impl Sync for Bound<'_> {}

/// What went wrong while kernels ran.
#[derive(Default)]
pub struct Faults {
    /// The first failed check, by launch and position, so that it does not depend on threads.
    index: Mutex<Option<((usize, usize), FailedCheck)>>,
    /// The name of a custom op that panicked.
    panicked: Mutex<Option<String>>,
}

impl Faults {
    /// Notes an index out of range.
    pub fn index_out_of_range(&self, launch_idx: usize, position: usize, check: FailedCheck) {
        let mut first = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none_or(|f| (launch_idx, position) < f.0) {
            *first = Some(((launch_idx, position), check));
        }
    }

    /// The first index out of range.
    pub fn failed(&self) -> Option<FailedCheck> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).map(|f| f.1)
    }

    /// The name of a custom op that panicked.
    pub fn panicked(&self) -> Option<String> {
        self.panicked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn panicked_in(&self, op: &str) {
        self.panicked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| op.to_string());
    }
}

/// Which positions are looked at: `len` of them from `start`, in `rows` equal parts.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub start: usize,
    pub len: usize,
    pub rows: usize,
    /// Where the tile's lanes are in what is kept of the block.
    pub kept_at: usize,
}

/// The lanes of a value, for the tile at hand.
#[derive(Clone, Copy)]
pub struct Val {
    ptr: *const u32,
    spread: Spread,
}

/// How a value's lanes cover a tile.
#[derive(Clone, Copy, PartialEq)]
enum Spread {
    /// One lane for all.
    One,
    /// One lane for each row of the tile.
    Rows,
    /// One lane for each position.
    Full,
}

impl Val {
    const NONE: Val = Val { ptr: std::ptr::null(), spread: Spread::One };

    /// One lane for all.
    pub fn one(ptr: *const u32) -> Val {
        Val { ptr, spread: Spread::One }
    }

    /// One lane for each position.
    pub fn full(ptr: *const u32) -> Val {
        Val { ptr, spread: Spread::Full }
    }

    /// Of a value with a lane per row of a block: what the tile of `rows` rows from `row` on sees of it.
    fn of_rows(self, row: usize, rows: usize) -> Val {
        match self.spread {
            Spread::One => self,
            _ => Val { ptr: self.ptr.wrapping_add(row), spread: if rows == 1 { Spread::One } else { Spread::Rows } },
        }
    }

    /// The lanes of row `row`, each row `len` long.
    ///
    /// # Safety
    /// The value is of the tile at hand.
    unsafe fn row<'s>(self, row: usize, len: usize) -> &'s [u32] {
        let (at, len) = match self.spread {
            Spread::One => (0, 1),
            Spread::Rows => (row, 1),
            Spread::Full => (row * len, len),
        };
        // SAFETY: the value has these lanes.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }
    }
}

/// What a thread has in hand while it runs tiles of one launch.
pub struct Frame<'a> {
    pub bound: &'a Bound<'a>,
    scratch: *mut u32,
    /// By register, twice: for tiles, then for the outer values of a block.
    vals: Vec<Val>,
    /// The second half of `vals` while outer lines run.
    bank: usize,
    /// The sums that a matmul hands over.
    pub acc: *const u32,
    chain: Vec<Operand>,
}

/// Scratch of a thread, kept between launches.
#[derive(Default)]
struct Kept {
    lanes: Vec<Aligned>,
    vals: Vec<Val>,
    chain: Vec<Operand>,
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned(#[allow(dead_code)] [u32; 16]);

thread_local! {
    static KEPT: std::cell::Cell<Option<Box<Kept>>> = const { std::cell::Cell::new(None) };
}

impl<'a> Bound<'a> {
    /// A nest of the launch with this number, its memory still to be added.
    pub fn new(nest: &'a Nest, constants: &'a [u32], faults: &'a Faults, launch_idx: usize) -> Bound<'a> {
        let (inputs, outputs, uniforms) = Default::default();
        Bound { nest, inputs, outputs, constants, faults, launch_idx, uniforms }
    }

    /// Calls `f` with a frame of this thread.
    pub fn with_frame<R>(&'a self, f: impl FnOnce(&mut Frame<'a>) -> R) -> R {
        let mut kept = KEPT.take().unwrap_or_default();
        let n_lanes = self.nest.scratch.n_lanes();
        if kept.lanes.len() * 16 < n_lanes {
            kept.lanes.resize(n_lanes.div_ceil(16), Aligned([0; 16]));
        }
        let n_regs = self.nest.code.insts.len();
        let mut vals = std::mem::take(&mut kept.vals);
        vals.clear();
        vals.resize(2 * n_regs, Val::NONE);
        for &reg in &self.nest.passes.uniform {
            let val = Val::one(&self.uniforms[reg as usize]);
            vals[reg as usize] = val;
            vals[n_regs + reg as usize] = val;
        }
        let chain = std::mem::take(&mut kept.chain);
        let scratch = kept.lanes.as_mut_ptr().cast();
        let mut frame = Frame { bound: self, scratch, vals, bank: 0, acc: std::ptr::null(), chain };
        let result = f(&mut frame);
        (kept.vals, kept.chain) = (frame.vals, frame.chain);
        KEPT.set(Some(kept));
        result
    }

    /// Evaluates what is the same everywhere.
    ///
    /// # Safety
    /// The memory is as large as the plan says.
    pub unsafe fn evaluate_uniforms(&mut self) {
        let nest = self.nest;
        self.uniforms.resize(nest.code.insts.len(), 0);
        let mut lanes = self.uniforms.clone();
        let tile = Tile { start: 0, len: 1, rows: 1, kept_at: 0 };
        self.with_frame(|frame| {
            for &reg in &nest.passes.uniform {
                let lane = match &nest.code.insts[reg as usize] {
                    CodeInst::Const(idx) => frame.bound.constants[nest.consts[*idx as usize] as usize],
                    // SAFETY: as promised by the caller; a slot has room for one lane.
                    _ => unsafe {
                        frame.line(&Line { reg, work: Work::Inst, dst: Dst::Slot(0) }, tile);
                        *frame.val(reg).ptr
                    },
                };
                lanes[reg as usize] = lane;
                frame.vals[reg as usize] = Val::one(&lanes[reg as usize]);
            }
        });
        self.uniforms = lanes;
    }
}

impl Frame<'_> {
    /// What a register holds.
    pub fn val(&self, reg: Reg) -> Val {
        self.vals[self.bank + reg as usize]
    }

    /// Runs the lines of a pass over a tile of its positions, then its stores.
    ///
    /// # Safety
    /// The tile is within the index space, and the memory is as large as the plan says.
    pub unsafe fn run(&mut self, pass: &Pass, tile: Tile) {
        for &(reg, keep) in &pass.kept_uses {
            self.vals[reg as usize] = Val::full(self.dst(Dst::Keep(keep), tile));
        }
        for line in &pass.lines {
            // SAFETY: as promised by the caller.
            unsafe { self.line(line, tile) };
        }
        for &store in &pass.stores {
            // SAFETY: as promised by the caller.
            unsafe { self.store(store, tile) };
        }
    }

    /// Runs outer lines over the outer positions of a block.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    pub unsafe fn run_outer(&mut self, lines: &[Line], start: usize, len: usize) {
        self.bank = self.bound.nest.code.insts.len();
        let tile = Tile { start, len, rows: 1, kept_at: 0 };
        for line in lines {
            // SAFETY: as promised by the caller.
            unsafe { self.line(line, tile) };
        }
        self.bank = 0;
    }

    /// Stores outer values of a block.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    pub unsafe fn store_outer(&mut self, start: usize, len: usize) {
        self.bank = self.bound.nest.code.insts.len();
        for &store in &self.bound.nest.passes.outer_stores {
            // SAFETY: as promised by the caller.
            unsafe { self.store(store, Tile { start, len, rows: 1, kept_at: 0 }) };
        }
        self.bank = 0;
    }

    /// Lets the lines of a pass see the outer values of rows `row..row + rows` of the block.
    pub fn show_rows(&mut self, pass: &Pass, row: usize, rows: usize) {
        let n_regs = self.bound.nest.code.insts.len();
        for &reg in &pass.outer_uses {
            self.vals[reg as usize] = self.vals[n_regs + reg as usize].of_rows(row, rows);
        }
    }

    /// Lets the lines of a pass see outer values lane by lane: a tile is a run of outer indices.
    pub fn show_columns(&mut self, pass: &Pass) {
        let n_regs = self.bound.nest.code.insts.len();
        for &reg in &pass.outer_uses {
            self.vals[reg as usize] = self.vals[n_regs + reg as usize];
        }
    }

    /// The lanes of an outer value of the block, to be written by a reduction.
    pub fn outer_lanes(&mut self, reg: Reg) -> *mut u32 {
        let nest = self.bound.nest;
        let lanes = self.dst(Dst::Outer(nest.passes.outer_at[reg as usize]), Tile { start: 0, len: 0, rows: 1, kept_at: 0 });
        self.vals[nest.code.insts.len() + reg as usize] = Val::full(lanes);
        lanes
    }

    /// The accumulator of a fold at a level, for reductions over columns.
    pub fn level(&self, fold: usize, level: usize) -> *mut u32 {
        let scratch = &self.bound.nest.scratch;
        let at = scratch.levels_at() + scratch.tile_pitch() * (fold * scratch.levels + level);
        self.scratch.wrapping_add(at)
    }

    /// A value with a lane for each position, wherever it came from.
    ///
    /// # Safety
    /// The value is of the tile.
    pub unsafe fn spread(&mut self, reg: Reg, tile: Tile) -> *const u32 {
        let val = self.val(reg);
        if val.spread == Spread::Full {
            return val.ptr;
        }
        let spare = self.dst(Dst::Slot(self.bound.nest.scratch.n_slots), tile);
        let len = tile.len / tile.rows;
        for row in 0..tile.rows {
            // SAFETY: the spare tile has room for the tile's lanes.
            unsafe { std::slice::from_raw_parts_mut(spare.add(row * len), len).fill(val.row(row, len)[0]) };
        }
        spare
    }

    fn dst(&self, dst: Dst, tile: Tile) -> *mut u32 {
        let scratch = &self.bound.nest.scratch;
        match dst {
            Dst::InPlace => std::ptr::null_mut(),
            Dst::Slot(slot) => self.scratch.wrapping_add(slot * scratch.tile_pitch()),
            Dst::Outer(at) => self.scratch.wrapping_add(scratch.outer_at() + at * scratch.outer.next_multiple_of(16)),
            Dst::Keep(at) => {
                self.scratch.wrapping_add(scratch.kept_at() + at * scratch.kept.next_multiple_of(16) + tile.kept_at)
            }
            Dst::Output(store) => {
                let store = &self.bound.nest.code.body.stores[store];
                let run = self.bound.nest.walks[store.access as usize].one_run(tile.start, tile.len);
                let at = run.expect("only flat stores are direct").source;
                self.bound.outputs[store.output as usize].cast::<u32>().wrapping_offset(at)
            }
        }
    }

    /// # Safety
    /// As for [`Frame::run`].
    unsafe fn line(&mut self, line: &Line, tile: Tile) {
        let dst = self.dst(line.dst, tile);
        // SAFETY: destinations have room for the tile and are no line's source at the same time; loops are those of
        // this machine.
        let val = unsafe {
            match &line.work {
                Work::Chain { start, links } => self.chain(*start, links, dst, tile),
                Work::Inst => self.inst(line.reg, line.dst, dst, tile),
            }
        };
        // What is kept or leaves the kernel is there lane by lane.
        let val = match (line.dst, val.spread) {
            (Dst::Keep(_) | Dst::Output(_), Spread::One) => {
                // SAFETY: as above.
                unsafe { std::slice::from_raw_parts_mut(dst, tile.len).fill(*val.ptr) };
                Val::full(dst)
            }
            _ => val,
        };
        self.vals[self.bank + line.reg as usize] = val;
    }

    unsafe fn inst(&mut self, reg: Reg, place: Dst, dst: *mut u32, tile: Tile) -> Val {
        let nest = self.bound.nest;
        // SAFETY: as for `line`.
        unsafe {
            let lanes = |n: usize| std::slice::from_raw_parts_mut(dst, n);
            match &nest.code.insts[reg as usize] {
                CodeInst::Load { input, access } => self.load(*input, *access, place, dst, tile),
                CodeInst::Valid { access } => {
                    load::validity(&nest.walks[*access as usize], tile.start, lanes(tile.len));
                    Val::full(dst)
                }
                CodeInst::Index { access } => {
                    load::indices(&nest.walks[*access as usize], tile.start, lanes(tile.len));
                    Val::full(dst)
                }
                CodeInst::Gather { .. } => self.gather(reg, dst, tile),
                CodeInst::Acc => Val::full(self.acc),
                CodeInst::Const(idx) => {
                    *dst = self.bound.constants[nest.consts[*idx as usize] as usize];
                    Val::one(dst)
                }
                CodeInst::Unary { apply, x } => self.apply([*x], dst, tile, |[x], y| apply(x, y)),
                CodeInst::Binary { apply, x, y, .. } => self.apply([*x, *y], dst, tile, |[x, y], out| {
                    match (x.len() == out.len(), y.len() == out.len()) {
                        (true, true) => (apply.vv)(x, y, out),
                        (true, false) => (apply.vs)(x, y, out),
                        (false, _) => (apply.sv)(x, y, out),
                    }
                }),
                CodeInst::Select { cond, a, b } => self.apply([*cond, *a, *b], dst, tile, |[cond, a, b], y| {
                    match cond.len() == y.len() {
                        true => convert::select(cond, a, b, y),
                        false => match if cond[0] != 0 { a } else { b } {
                            [lane] => y.fill(*lane),
                            lanes => y.copy_from_slice(lanes),
                        },
                    }
                }),
                CodeInst::Cast { x, from, to } => self.apply([*x], dst, tile, |[x], y| convert::cast(*from, *to, x, y)),
                CodeInst::Custom { .. } => self.custom(reg, dst, tile),
                CodeInst::Reduce { .. } | CodeInst::Alias => unreachable!("not a line"),
            }
        }
    }

    /// Calls `f` with the lanes of the operands: once for the tile, or row by row where an operand has a lane per
    /// row. An operand is as long as the output or a single lane.
    unsafe fn apply<const N: usize>(
        &self,
        operands: [Reg; N],
        dst: *mut u32,
        tile: Tile,
        f: impl Fn([&[u32]; N], &mut [u32]),
    ) -> Val {
        let vals = operands.map(|r| self.val(r));
        let is = |spread: Spread| vals.iter().any(|v| v.spread == spread);
        // SAFETY: operands are of this tile; the destination has room for it and is none of them.
        unsafe {
            let out = |at: usize, len: usize| std::slice::from_raw_parts_mut(dst.add(at), len);
            if !is(Spread::Full) && !is(Spread::Rows) {
                f(vals.map(|v| v.row(0, 1)), out(0, 1));
                return Val::one(dst);
            }
            let rows = if is(Spread::Rows) { tile.rows } else { 1 };
            let len = tile.len / rows;
            for row in 0..rows {
                if is(Spread::Full) {
                    f(vals.map(|v| v.row(row, len)), out(row * len, len));
                } else {
                    let mut lane = [0];
                    f(vals.map(|v| v.row(row, len)), &mut lane);
                    out(row * len, len).fill(lane[0]);
                }
            }
            Val::full(dst)
        }
    }

    unsafe fn load(&self, input: u16, access: u16, place: Dst, dst: *mut u32, tile: Tile) -> Val {
        let walk = &self.bound.nest.walks[access as usize];
        let dtype = self.bound.nest.code.body.inputs[input as usize];
        let base = self.bound.inputs[input as usize];
        // SAFETY: the planner's accesses stay within their memory, and `dst` has room for the tile.
        unsafe {
            let stays = !matches!(place, Dst::Keep(_) | Dst::Output(_));
            if stays && let Some(run) = walk.one_run(tile.start, tile.len) && run.valid {
                let at = base.cast::<u32>().wrapping_offset(run.source);
                match (run.step, dtype.size()) {
                    (0, 4) => return Val::one(at),
                    (0, _) => {
                        *dst = load::element(base, dtype, run.source);
                        return Val::one(dst);
                    }
                    (1, 4) => return Val::full(at),
                    _ => {}
                }
            }
            assert!(place != Dst::InPlace, "a load in place must be one run");
            load::fill(walk, base, dtype, tile.start, std::slice::from_raw_parts_mut(dst, tile.len));
            Val::full(dst)
        }
    }

    unsafe fn gather(&mut self, reg: Reg, dst: *mut u32, tile: Tile) -> Val {
        let nest = self.bound.nest;
        let CodeInst::Gather { input, access, index, gather, signed } = nest.code.insts[reg as usize] else {
            unreachable!("called for gathers")
        };
        let args = nest.gathers[gather as usize];
        let lookup = Lookup { walk: &nest.walks[access as usize], stride: args.stride, bound: args.bound, signed };
        let dtype = nest.code.body.inputs[input as usize];
        // SAFETY: the planner's accesses stay within their memory for every index within its bound.
        let failed = unsafe {
            let index = match self.val(index).spread {
                Spread::One => self.val(index).row(0, 1),
                _ => std::slice::from_raw_parts(self.spread(index, tile), tile.len),
            };
            let lanes = std::slice::from_raw_parts_mut(dst, tile.len);
            lookup.fill(self.bound.inputs[input as usize], dtype, tile.start, index, lanes)
        };
        if let Some((position, index)) = failed {
            let check = FailedCheck { check: args.check, index, bound: args.bound };
            self.bound.faults.index_out_of_range(self.bound.launch_idx, position, check);
        }
        Val::full(dst)
    }

    unsafe fn custom(&mut self, reg: Reg, dst: *mut u32, tile: Tile) -> Val {
        let CodeInst::Custom { op, args } = &self.bound.nest.code.insts[reg as usize] else {
            unreachable!("called for custom ops")
        };
        let vals: SmallVec<[Val; 4]> = args.iter().map(|r| self.val(*r)).collect();
        let len = tile.len / tile.rows;
        // The user's code may panic; that must not unwind through the threads.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut lane: SmallVec<[f32; 4]> = smallvec::smallvec![0.0; args.len()];
            for i in 0..tile.len {
                for (lane, val) in lane.iter_mut().zip(&vals) {
                    // SAFETY: the operands are of this tile.
                    let row = unsafe { val.row(i / len, len) };
                    *lane = f32::from_bits(if row.len() == 1 { row[0] } else { row[i % len] });
                }
                // SAFETY: the destination has room for the tile.
                unsafe { *dst.add(i) = (op.0.cpu)(&lane).to_bits() };
            }
        }));
        if done.is_err() {
            self.bound.faults.panicked_in(&op.0.name);
        }
        Val::full(dst)
    }

    unsafe fn chain(&mut self, start: Reg, links: &[super::pass::Link], dst: *mut u32, tile: Tile) -> Val {
        let mut operands = std::mem::take(&mut self.chain);
        let per_row = self.val(start).spread == Spread::Rows || links.iter().any(|l| self.val(l.operand).spread == Spread::Rows);
        let rows = if per_row { tile.rows } else { 1 };
        let len = tile.len / rows;
        for row in 0..rows {
            operands.clear();
            let operand = |reg: Reg| {
                // SAFETY: the operand is of this tile.
                match unsafe { self.val(reg).row(row, len) } {
                    [lane] => (lane as *const u32, true),
                    lanes => (lanes.as_ptr(), false),
                }
            };
            operands.extend(links.iter().map(|l| Operand::new(l.step, l.reversed, operand(l.operand))));
            // SAFETY: every operand has a lane or `len`, and the destination room for them and is none of them.
            unsafe { chain::run(operand(start), &operands, std::slice::from_raw_parts_mut(dst.add(row * len), len)) };
        }
        self.chain = operands;
        Val::full(dst)
    }

    unsafe fn store(&mut self, store: usize, tile: Tile) {
        let nest = self.bound.nest;
        let store = &nest.code.body.stores[store];
        let walk = &nest.walks[store.access as usize];
        let dtype = nest.code.body.outputs[store.output as usize];
        let reg = nest.code.alias[store.value as usize];
        // SAFETY: the planner's accesses stay within their memory and tiles write disjoint elements.
        unsafe {
            let lanes = match self.val(reg).spread {
                Spread::One => self.val(reg).row(0, 1),
                _ => std::slice::from_raw_parts(self.spread(reg, tile), tile.len),
            };
            load::spill(walk, self.bound.outputs[store.output as usize], dtype, tile.start, lanes, tile.len);
        }
    }
}
