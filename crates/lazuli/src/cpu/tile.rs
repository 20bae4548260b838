//! One tile: every line of a pass over the same few rows of lanes, while they are in the first-level cache.
//! This file knows where lanes are; what a line does to them is in `line`, which tile comes when in `map` and `reduce`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::chain::{ChainOperand, ChainWrite};
use super::gemm::PackBuffers;
use super::load;
use super::nontemporal;
use super::program::CodeInst;
use super::runs::ElementRuns;
use super::schedule::Nest;
use super::sweeps::{Dst, Sweep, SweepOp, SweepStep};
use super::threads;
use super::transpose::{self, Across};
use crate::backend::FailedCheck;
use crate::kernel::Reg;

/// A nest with the memory of one run.
///
/// The caller that binds a nest promises, for as long as the binding is used:
/// - each input and output is valid for every element that the accesses of the nest reach, and aligned for it;
/// - nobody else writes to an input, nor reads or writes an output, meanwhile. Where an output is an input, too, the nest was
///   scheduled for that: each element is read before its own tile writes it, and by no other tile;
/// - there is a frame of [`ScratchLayout::n_lanes`](super::schedule::ScratchLayout::n_lanes) lanes for every worker.
///
/// Every unsafe function that runs one, or tiles of one, relies on this: "the memory is as [`BoundNest`] says".
pub struct BoundNest<'a> {
    pub nest: &'a Nest,
    pub inputs: SmallVec<[*const u8; 6]>,
    pub outputs: SmallVec<[*mut u8; 2]>,
    pub constants: &'a [u32],
    pub faults: &'a KernelFaults,
    /// Which launch of the plan it is, so that of several faults the first is reported.
    pub launch_idx: usize,
    /// Scratch for each worker, as [`Scratch`](super::nest::Scratch) says.
    frames: PackBuffers,
    /// What was evaluated once, by register.
    pub uniforms: SmallVec<[u32; 32]>,
}

// SAFETY: the pointers are to memory that the run holds; tiles write disjoint elements.
unsafe impl Sync for BoundNest<'_> {}

/// What went wrong while kernels ran.
#[derive(Default)]
pub struct KernelFaults {
    /// The first failed check, by launch and position, so that it does not depend on threads.
    index: Mutex<Option<((usize, usize), FailedCheck)>>,
    /// Whether `panicked` holds anything.
    has_panicked: AtomicBool,
    /// The first panic of a custom op, by launch and position, with the op's name and the text.
    panicked: Mutex<Option<((usize, usize), String, String)>>,
}

impl KernelFaults {
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

    /// Whether anything went wrong.
    pub fn any(&self) -> bool {
        self.failed().is_some() || self.panicked().is_some()
    }

    /// Notes that a custom op panicked, and with what text.
    pub fn panicked_in(&self, launch_idx: usize, position: usize, op: &str, text: String) {
        let mut first = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|f| (launch_idx, position) < f.0) {
            *first = Some(((launch_idx, position), op.to_string(), text));
        }
        self.has_panicked.store(true, Ordering::Relaxed);
    }

    /// Whether a custom op is known to have panicked before this position, so that nobody will ask what it gives here.
    pub fn panicked_before(&self, launch_idx: usize, position: usize) -> bool {
        let is_before =
            |first: &Option<((usize, usize), _, _)>| first.as_ref().is_some_and(|f| f.0 < (launch_idx, position));
        self.has_panicked.load(Ordering::Relaxed)
            && is_before(&self.panicked.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The name of a custom op that panicked, and the text.
    pub fn panicked(&self) -> Option<(String, String)> {
        let first = self.panicked.lock().unwrap_or_else(PoisonError::into_inner);
        first.as_ref().map(|(_, op, text)| (op.clone(), text.clone()))
    }
}

/// Which positions are looked at: `rows` rows of `len` each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tile {
    pub start: usize,
    pub rows: usize,
    pub len: usize,
    /// Positions from one row to the next.
    pub pitch: usize,
    /// Where the tile's lanes are in what is kept of the block, and from row to row there.
    pub kept_at: usize,
    pub kept_pitch: usize,
}

impl Tile {
    /// `len` positions in a row.
    pub fn of(start: usize, len: usize) -> Tile {
        Tile { start, rows: 1, len, pitch: len, ..Tile::default() }
    }

    /// Lanes in all.
    pub fn n_lanes(&self) -> usize {
        self.rows * self.len
    }
}

/// The lanes of a value, for the tile at hand: row `r` starts `r · pitch` lanes on, and has a lane for each position
/// or one for all.
#[derive(Clone, Copy)]
pub struct Val {
    pub ptr: *const u32,
    pub pitch: isize,
    pub spread: bool,
}

impl Val {
    const NONE: Val = Val { ptr: std::ptr::null(), pitch: 0, spread: false };

    /// One lane for the whole tile.
    pub fn one(ptr: *const u32) -> Val {
        Val { ptr, pitch: 0, spread: false }
    }

    /// A lane for each position.
    pub fn full(ptr: *const u32, pitch: usize) -> Val {
        Val { ptr, pitch: pitch as isize, spread: true }
    }

    /// Whether it is one lane for the whole tile.
    pub fn is_one(&self, tile: &Tile) -> bool {
        !self.spread && (self.pitch == 0 || tile.rows == 1)
    }

    /// Whether its lanes lie one after another, rows included.
    pub fn is_dense(&self, tile: &Tile) -> bool {
        self.spread && (self.pitch == tile.len as isize || tile.rows == 1)
    }

    /// A value with one lane for each row, seen as a single row of as many lanes; one lane for the whole tile stays that.
    pub fn across_rows(&self, tile: &Tile) -> Val {
        debug_assert!(!self.spread && (0..=1).contains(&self.pitch), "lanes of rows lie one after another");
        Val { spread: !self.is_one(tile), ..*self }
    }

    /// The lanes of a row: `len` or one.
    ///
    /// # Safety
    /// The value is of the tile that the row belongs to, whose rows are `len` long; its lanes are there, and nobody writes them,
    /// while they are looked at.
    pub unsafe fn row<'s>(&self, row: usize, len: usize) -> &'s [u32] {
        // SAFETY: the value has these lanes.
        unsafe {
            let at = self.ptr.offset(row as isize * self.pitch);
            std::slice::from_raw_parts(at, if self.spread { len } else { 1 })
        }
    }
}

/// What a thread has in hand while it runs tiles of one launch.
pub struct Frame<'a> {
    pub bound: &'a BoundNest<'a>,
    scratch: *mut u32,
    /// By register, twice: for tiles, then for the outer values of a block.
    vals: Vec<Val>,
    /// The second half of `vals` while outer lines run.
    bank: usize,
    /// The sums that a product hands over, and from row to row of them; a chained product has several.
    pub accs: [Val; 4],
    pub chain: Vec<ChainOperand>,
    /// How many lanes ahead of what a chain starts from it should ask for; 0: not at all.
    pub ahead: usize,
    /// What chains have fed to the reductions of the pass: per reduction, one lane for each row of the tile.
    pub folded: Vec<Vec<u32>>,
}

/// Lists of a thread, kept between launches. They are as long as a kernel has instructions, or a tile rows.
#[derive(Default)]
struct ThreadLists {
    vals: Vec<Val>,
    chain: Vec<ChainOperand>,
    folded: Vec<Vec<u32>>,
}

thread_local! {
    static KEPT: Cell<Option<Box<ThreadLists>>> = const { Cell::new(None) };
}

impl<'a> BoundNest<'a> {
    /// A nest of the launch with this number, its memory still to be added.
    pub fn new(
        nest: &'a Nest,
        constants: &'a [u32],
        faults: &'a KernelFaults,
        launch_idx: usize,
        frames: PackBuffers,
    ) -> BoundNest<'a> {
        debug_assert!(frames.size >= nest.scratch.n_lanes(), "less scratch than the nest asks for");
        let (inputs, outputs, uniforms) = Default::default();
        BoundNest { nest, inputs, outputs, constants, faults, launch_idx, frames, uniforms }
    }

    /// Calls `f` with a frame of this thread.
    pub fn with_frame<R>(&'a self, f: impl FnOnce(&mut Frame<'a>) -> R) -> R {
        let mut kept = KEPT.take().unwrap_or_default();
        let n_regs = self.nest.code.insts.len();
        let mut vals = std::mem::take(&mut kept.vals);
        vals.clear();
        vals.resize(2 * n_regs, Val::NONE);
        for &reg in &self.nest.passes.uniform {
            let val = Val::one(&self.uniforms[reg as usize]);
            vals[reg as usize] = val;
            vals[n_regs + reg as usize] = val;
        }
        let (chain, mut folded) = (std::mem::take(&mut kept.chain), std::mem::take(&mut kept.folded));
        folded.resize_with(folded.len().max(self.nest.scratch.n_folds), Vec::new);
        let scratch = self.frames.of(threads::worker()).first.cast();
        let mut frame = Frame { bound: self, scratch, vals, bank: 0, accs: [Val::NONE; 4], chain, ahead: 0, folded };
        let result = f(&mut frame);
        if self.nest.streams.contains(&true) {
            nontemporal::finish();
        }
        (kept.vals, kept.chain, kept.folded) = (frame.vals, frame.chain, frame.folded);
        KEPT.set(Some(kept));
        result
    }

    /// Evaluates what is the same everywhere.
    ///
    /// # Safety
    /// The memory is as [`BoundNest`] says.
    pub unsafe fn evaluate_uniforms(&mut self) {
        let nest = self.nest;
        let mut lanes = SmallVec::from_elem(0, nest.code.insts.len());
        let mut are_constants = true;
        for &reg in &nest.passes.uniform {
            match &nest.code.insts[reg as usize] {
                CodeInst::Const(idx) => lanes[reg as usize] = self.constants[nest.consts[*idx as usize] as usize],
                _ => are_constants = false,
            }
        }
        self.uniforms = lanes;
        if are_constants {
            return;
        }
        let mut lanes = self.uniforms.clone();
        self.with_frame(|frame| {
            for &reg in &nest.passes.uniform {
                if matches!(nest.code.insts[reg as usize], CodeInst::Const(_)) {
                    continue;
                }
                let step = SweepStep { reg, work: SweepOp::Inst, dst: Dst::Slot(0), fold: None };
                // SAFETY: as promised by the caller; a slot has room for one lane.
                lanes[reg as usize] = unsafe {
                    frame.line(&step, &Tile::of(0, 1));
                    *frame.val(reg).ptr
                };
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

    /// Says what a register holds.
    pub fn set(&mut self, reg: Reg, val: Val) {
        self.vals[self.bank + reg as usize] = val;
    }

    /// Runs the lines of a pass over a tile, then its stores.
    ///
    /// # Safety
    /// The tile is within the index space of the nest, its lanes fit the slots of the frame, and it is no other thread's; the memory
    /// is as [`BoundNest`] says, whose uniforms are evaluated. Registers that the pass does not compute (sums of a product, values
    /// of the block, kept ones) hold lanes of this tile.
    pub unsafe fn run(&mut self, pass: &Sweep, tile: &Tile) {
        for &reg in &pass.in_place {
            self.vals[reg as usize] = self.in_place(reg, tile);
        }
        for &(reg, keep) in &pass.kept_uses {
            let (ptr, pitch) = self.dst(Dst::Keep(keep), tile);
            self.vals[reg as usize] = Val::full(ptr, pitch);
        }
        self.folded.iter_mut().for_each(Vec::clear);
        for line in &pass.lines {
            // SAFETY: as promised by the caller.
            unsafe { self.line(line, tile) };
        }
        for &store in &pass.stores {
            // SAFETY: as promised by the caller.
            unsafe { self.store(store, tile) };
        }
    }

    /// Runs the lines of a pass over a tile and leaves out its stores: the registers hold what would be stored.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    pub unsafe fn run_lines(&mut self, pass: &Sweep, tile: &Tile) {
        for &reg in &pass.in_place {
            self.vals[reg as usize] = self.in_place(reg, tile);
        }
        for line in &pass.lines {
            // SAFETY: as promised by the caller.
            unsafe { self.line(line, tile) };
        }
    }

    /// Runs outer lines over the outer positions of a block.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    pub unsafe fn run_outer(&mut self, lines: &[SweepStep], start: usize, len: usize) {
        self.bank = self.bound.nest.code.insts.len();
        for line in lines {
            // SAFETY: as promised by the caller.
            unsafe { self.line(line, &Tile::of(start, len)) };
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
            unsafe { self.store(store, &Tile::of(start, len)) };
        }
        self.bank = 0;
    }

    /// Lets the lines of a pass see the outer values of a block: one lane for each row of a tile, from `row` on.
    pub fn show_rows(&mut self, pass: &Sweep, row: usize) {
        let n_regs = self.bound.nest.code.insts.len();
        for &reg in &pass.outer_uses {
            let val = self.vals[n_regs + reg as usize];
            self.vals[reg as usize] = match val.spread {
                true => Val { ptr: val.ptr.wrapping_add(row), pitch: 1, spread: false },
                false => val,
            };
        }
    }

    /// Lets the lines of a pass see the outer values of a block: the same lanes for every row of a tile.
    pub fn show_columns(&mut self, pass: &Sweep) {
        let n_regs = self.bound.nest.code.insts.len();
        for &reg in &pass.outer_uses {
            self.vals[reg as usize] = Val { pitch: 0, ..self.vals[n_regs + reg as usize] };
        }
    }

    /// The lanes of an outer value of the block, to be written by a reduction.
    pub fn outer_lanes(&mut self, reg: Reg) -> *mut u32 {
        let nest = self.bound.nest;
        let (lanes, _) = self.dst(Dst::Outer(nest.passes.outer_at[reg as usize]), &Tile::default());
        self.vals[nest.code.insts.len() + reg as usize] = Val::full(lanes, 0);
        lanes
    }

    /// The accumulator of a fold at a level, for reductions over columns.
    pub fn level(&self, fold: usize, level: usize) -> *mut u32 {
        let scratch = &self.bound.nest.scratch;
        let at = scratch.levels_at() + scratch.level.next_multiple_of(16) * (fold * scratch.levels + level);
        self.scratch.wrapping_add(at)
    }

    /// The lanes of a value, one for each position.
    ///
    /// # Safety
    /// The register holds lanes of this tile, which fits a slot of the frame.
    pub unsafe fn spread(&mut self, reg: Reg, tile: &Tile) -> Val {
        let val = self.val(reg);
        // SAFETY: as promised by the caller.
        if val.spread { val } else { unsafe { self.dense(reg, tile) } }
    }

    /// The lanes of a value, one for each position and one after another.
    ///
    /// # Safety
    /// The register holds lanes of this tile, which fits a slot of the frame.
    pub unsafe fn dense(&mut self, reg: Reg, tile: &Tile) -> Val {
        let val = self.val(reg);
        if val.is_dense(tile) {
            return val;
        }
        let (spare, _) = self.dst(Dst::Slot(self.bound.nest.scratch.n_slots), tile);
        for row in 0..tile.rows {
            // SAFETY: the spare tile has room for the tile's lanes.
            let to = unsafe { std::slice::from_raw_parts_mut(spare.add(row * tile.len), tile.len) };
            // SAFETY: as promised by the caller.
            match unsafe { val.row(row, tile.len) } {
                [lane] => to.fill(*lane),
                lanes => to.copy_from_slice(lanes),
            }
        }
        Val::full(spare, tile.len)
    }

    /// Where a line leaves its lanes, and from row to row there.
    pub fn dst(&self, dst: Dst, tile: &Tile) -> (*mut u32, usize) {
        let scratch = &self.bound.nest.scratch;
        let at = |lanes: usize| self.scratch.wrapping_add(lanes);
        match dst {
            Dst::InPlace | Dst::Nowhere => (std::ptr::null_mut(), 0),
            Dst::Slot(slot) => (at(slot * scratch.tile_pitch()), tile.len),
            Dst::Outer(idx) => (at(scratch.outer_at() + idx * scratch.outer.next_multiple_of(16)), tile.len),
            Dst::Keep(idx) => {
                (at(scratch.kept_at() + idx * scratch.kept.next_multiple_of(16) + tile.kept_at), tile.kept_pitch)
            }
            Dst::Output(store) => {
                let nest = self.bound.nest;
                let store = &nest.code.body.stores[store];
                let walk = &nest.walks[store.access as usize];
                let pitch = match walk {
                    ElementRuns::Flat(_) => tile.pitch,
                    _ => nest.row_steps[store.access as usize] as usize,
                };
                let output = self.bound.outputs[store.output as usize].cast::<u32>();
                (output.wrapping_offset(walk.element(tile.start)), pitch)
            }
        }
    }

    /// The lanes of a load where they lie.
    fn in_place(&self, reg: Reg, tile: &Tile) -> Val {
        let nest = self.bound.nest;
        let CodeInst::Load { input, access } = nest.code.insts[reg as usize] else {
            unreachable!("only loads lie in place")
        };
        let walk = &nest.walks[access as usize];
        let ptr = self.bound.inputs[input as usize].cast::<u32>().wrapping_offset(walk.element(tile.start));
        let pitch = match walk {
            ElementRuns::Flat(_) => tile.pitch as isize,
            _ => nest.row_steps[access as usize],
        };
        Val { ptr, pitch, spread: walk.step() == Some(1) }
    }

    /// Writes a value that a store of the body asks for to its output.
    ///
    /// # Safety
    /// As for [`Frame::run`].
    unsafe fn store(&mut self, store: usize, tile: &Tile) {
        let nest = self.bound.nest;
        let write = if nest.streams[store] { ChainWrite::Streamed } else { ChainWrite::Cached };
        let store = &nest.code.body.stores[store];
        let walk = &nest.walks[store.access as usize];
        let dtype = nest.code.body.outputs[store.output as usize];
        let output = self.bound.outputs[store.output as usize];
        let val = self.val(nest.code.alias[store.value as usize]);
        // SAFETY: the planner's accesses stay within their memory and tiles write disjoint elements.
        unsafe {
            let row_step = nest.row_steps[store.access as usize];
            if let Some(lane_step) = walk.step()
                && (lane_step.abs() > 1 && row_step.abs() == 1 && tile.rows > 1 && nest.rows_are_runs)
            {
                let across = Across { first: walk.element(tile.start), row_step, lane_step };
                return transpose::spill(output, dtype, across, val, tile);
            }
            if val.is_dense(tile) && tile.pitch == tile.len {
                return load::spill(walk, output, dtype, tile.start, val.row(0, tile.n_lanes()), tile.n_lanes(), write);
            }
            for row in 0..tile.rows {
                load::spill(
                    walk,
                    output,
                    dtype,
                    tile.start + row * tile.pitch,
                    val.row(row, tile.len),
                    tile.len,
                    write,
                );
            }
        }
    }
}
