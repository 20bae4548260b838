//! Contractions: panels of rows, each followed by what the kernel does with the sums while they are in cache. Sums do
//! not depend on the number of threads: each is made by one thread, in one order.

use std::sync::Arc;

use super::gemm::{self, Gemm, Rooms};
use super::load;
use super::map;
use super::memory::{Pool, Storage};
use super::nest::{Form, Nest};
use super::program::{Code, CodeInst};
use super::skinny::{self, Skinny};
use super::threads;
use super::tile::{Bound, Tile, Val};
use super::walk::Walk;
use crate::dtype::Lane;
use crate::error::Result;
use crate::kernel::{Args, MatmulArgs, OperandArgs};

/// Bytes of sums that are made before they are looked at again. Few would stay nearer, but the right operand is laid out
/// anew for each panel, which costs more.
const PANEL_BYTES: usize = 16 << 20;
/// A product of fewer multiplications than this is not worth a second thread.
const SMALL: usize = 1 << 18;

/// A launch of a matmul, ready for memory.
pub struct Matmul {
    /// What follows, over `[batch…, m, n]`.
    pub nest: Nest,
    args: MatmulArgs,
    /// What the sums are.
    lane: Lane,
    /// The output (by number) whose memory takes the sums, and where it starts: there are no other sums to keep then.
    in_output: Option<(usize, isize)>,
    /// Nothing follows: the sums are the output.
    bare: bool,
    /// For few rows: the sizes and steps of a product, still without its memory.
    skinny: Option<Skinny>,
    /// About how long it takes on one thread.
    pub nanos: f64,
}

impl Matmul {
    /// Binds a program to the numbers of a launch.
    pub fn new(code: Arc<Code>, args: &Args, aliased: &[bool]) -> Matmul {
        let matmul = args.matmul.clone().expect("a matmul's launch has its numbers");
        let acc = code.insts.iter().position(|i| matches!(i, CodeInst::Acc));
        let lane = acc.map_or(Lane::F32, |i| code.body.insts[i].dtype.lane());
        // Sums go where the result will be, unless what is there is still needed.
        let nest = Nest::new(code.clone(), args, &vec![true; aliased.len()]);
        let takes_sums = |s: &crate::kernel::Store| match nest.walks[s.access as usize] {
            Walk::Flat(offset) if !aliased[s.output as usize] && code.body.outputs[s.output as usize].size() == 4 => {
                Some((s.output as usize, offset))
            }
            _ => None,
        };
        let is_sum =
            |s: &crate::kernel::Store| matches!(code.insts[code.alias[s.value as usize] as usize], CodeInst::Acc);
        let alone = code.body.stores.len() == 1;
        // A sum that is stored beside other results must not be overwritten by one of them.
        let in_output = match alone || !code.body.stores.iter().any(is_sum) {
            true => code.body.stores.iter().find_map(takes_sums),
            false => None,
        };
        let bare = in_output.is_some() && alone && is_sum(&code.body.stores[0]);
        let batch: usize = matmul.batch.iter().product();
        let products = batch as f64 * matmul.m as f64 * matmul.k as f64 * matmul.n as f64;
        let nanos = products * 0.03 + nest.nanos;
        let skinny = few_rows(&matmul).filter(|_| lane == Lane::F32);
        Matmul { nest, args: matmul, lane, in_output, bare, skinny, nanos }
    }

    /// Values that each thread needs room for.
    pub fn room(&self) -> usize {
        let MatmulArgs { k, n, .. } = self.args;
        if self.lane == Lane::F32 && self.skinny.is_none() { gemm::room(k, n) } else { 0 }
    }

    /// Bytes for sums that have no place in an output. They are looked at before the next ones are made, so all
    /// products of a plan can use the same.
    pub fn sums_bytes(&self) -> usize {
        let MatmulArgs { m, n, .. } = self.args;
        match self.in_output {
            Some(_) => 0,
            None if self.by_batch() => self.n_batch() * m * n * 4,
            None => self.panel_rows().min(m) * n * 4,
        }
    }

    fn n_batch(&self) -> usize {
        self.args.batch.iter().product()
    }

    /// Multiplications of one matrix.
    fn work(&self) -> usize {
        let MatmulArgs { m, k, n, .. } = self.args;
        m.saturating_mul(n).saturating_mul(k.max(1))
    }

    /// Whether a thread takes whole matrices.
    fn by_batch(&self) -> bool {
        self.n_batch() > 1 && self.work() < 64 * SMALL
    }

    /// Rows whose sums are made before they are looked at again.
    fn panel_rows(&self) -> usize {
        let MatmulArgs { m, n, .. } = self.args;
        // Few rows would make too little of the other operand.
        let panel = (PANEL_BYTES / 4 / n.max(1)).next_multiple_of(64).clamp(256, m.max(256));
        if self.bare { m } else { panel }
    }

    /// Memory that a run needs beside its slots.
    pub fn scratch(&self, pool: &Arc<Pool>) -> Result<Scratch> {
        let body = &self.nest.code.body;
        let operand = |idx: usize, lies: &OperandArgs, rows: usize, cols: usize| -> Result<Option<Wide>> {
            if body.inputs[idx].size() == 4 {
                return Ok(None);
            }
            let Some((low, high)) = extent(&self.args.batch, lies, rows, cols) else { return Ok(None) };
            let n = (high - low + 1) as usize;
            Ok(Some(Wide { storage: pool.take(n * 4)?, low, n }))
        };
        let MatmulArgs { m, k, n, ref a, ref b, .. } = self.args;
        let n_batch = self.n_batch();
        let n_parts = self.skinny.map_or(1, |skinny| skinny.n_parts());
        let parts = match n_parts > 1 {
            true => Some(pool.take(n_batch * (n_parts - 1) * m * n * 4)?),
            false => None,
        };
        Ok(Scratch { a: operand(0, a, m, k)?, b: operand(1, b, k, n)?, parts })
    }

    /// Runs it on the threads this is called in.
    ///
    /// # Safety
    /// The memory is as large as the plan says, `sums` as [`sums_bytes`](Matmul::sums_bytes) does, and rooms as
    /// [`room`](Matmul::room) does.
    pub unsafe fn run(&self, bound: &Bound, scratch: &Scratch, sums: *mut u8, rooms: Rooms) {
        let MatmulArgs { m, n, .. } = self.args;
        let n_batch = self.n_batch();
        // SAFETY: as promised by the caller; widened operands hold every element that is read.
        unsafe {
            let a = self.operand(bound, 0, &self.args.a, scratch.a.as_ref());
            let b = self.operand(bound, 1, &self.args.b, scratch.b.as_ref());
            let sums: *mut u32 = match self.in_output {
                Some((output, offset)) => bound.outputs[output].cast::<u32>().offset(offset),
                None => sums.cast(),
            };
            let parts = scratch.parts.as_ref().map_or(std::ptr::null_mut(), |storage| storage.ptr().cast());
            let product = Product { matmul: self, a, b, sums: Shared(sums), parts: Shared(parts) };
            if self.by_batch() {
                let per_task = (SMALL / self.work().max(1)).clamp(1, n_batch);
                threads::for_each_on(n_batch.div_ceil(per_task), &|worker, task| {
                    for i in task * per_task..((task + 1) * per_task).min(n_batch) {
                        product.rows(i, 0, m, rooms.of(worker));
                        self.follow(bound, product.sums, i * m * n, m);
                    }
                });
                return;
            }
            let panel = self.panel_rows();
            for i in 0..n_batch {
                for row in (0..m).step_by(panel.max(1)) {
                    let rows = panel.min(m - row);
                    // Sums with no place of their own start where those of the panel before did.
                    let before = if self.in_output.is_some() { 0 } else { (i * m + row) * n };
                    let product = Product { sums: Shared(sums.wrapping_sub(before)), ..product };
                    product.rows(i, row, rows, rooms);
                    self.follow(bound, product.sums, (i * m + row) * n, rows);
                }
            }
        }
    }

    /// Does to the sums of `rows` rows from position `start` on what the kernel does with them.
    unsafe fn follow(&self, bound: &Bound, sums: Shared, start: usize, rows: usize) {
        let Form::Map(grid) = self.nest.form else { unreachable!("what follows a matmul is a map") };
        if self.bare {
            return;
        }
        let n = self.args.n;
        // Either tiles are made of the product's rows, or rows are so short that a tile takes them as they come.
        let by_rows = grid.width == n;
        let tiles = |from: usize, to: usize| {
            bound.with_frame(|frame| {
                let mut at = from;
                while at < to {
                    let column = at % n;
                    let tile = match by_rows {
                        false => Tile::of(at, grid.len.min(to - at)),
                        true => {
                            let len = grid.len.min(n - column);
                            let rows = if len == n { grid.rows.min((to - at) / n) } else { 1 };
                            Tile { start: at, rows, len, pitch: n, ..Tile::default() }
                        }
                    };
                    frame.acc = Val::full(sums.get().wrapping_add(at), tile.pitch);
                    // SAFETY: as promised by the caller.
                    unsafe { map::run_tile(frame, &tile) };
                    at += tile.n_lanes();
                }
            });
        };
        let piece = (16 * 1024usize).div_ceil(n) * n;
        let end = start + rows * n;
        threads::for_each((end - start).div_ceil(piece), &|i| {
            tiles(start + i * piece, (start + (i + 1) * piece).min(end))
        });
    }

    /// An operand as 32-bit lanes, converted first if it is stored narrower.
    unsafe fn operand<'s>(&self, bound: &Bound, idx: usize, lies: &'s OperandArgs, wide: Option<&Wide>) -> Operand<'s> {
        let Some(wide) = wide else {
            return Operand { ptr: Shared(bound.inputs[idx] as *mut u32), lies };
        };
        let dtype = self.nest.code.body.inputs[idx];
        let (from, to) = (Shared(bound.inputs[idx] as *mut u32), Shared(wide.storage.ptr().cast::<u32>()));
        const PIECE: usize = 64 * 1024;
        threads::for_each(wide.n.div_ceil(PIECE), &|i| {
            let len = PIECE.min(wide.n - i * PIECE);
            // SAFETY: the elements between the lowest and the highest are in the operand's memory.
            unsafe {
                let lanes = std::slice::from_raw_parts_mut(to.get().add(i * PIECE), len);
                load::fill(&Walk::Flat(wide.low), from.get().cast(), dtype, i * PIECE, lanes);
            }
        });
        Operand { ptr: Shared(to.get().wrapping_offset(-wide.low)), lies }
    }
}

/// Memory of a run beside its slots.
pub struct Scratch {
    a: Option<Wide>,
    b: Option<Wide>,
    /// Partial results of few rows.
    parts: Option<Storage>,
}

/// An operand as 32-bit lanes: its elements from `low` on.
struct Wide {
    storage: Storage,
    low: isize,
    n: usize,
}

/// The lowest and highest element of an operand.
fn extent(batch: &[usize], lies: &OperandArgs, rows: usize, cols: usize) -> Option<(isize, isize)> {
    let axes = batch.iter().copied().zip(lies.batch_strides.iter().copied());
    let axes = axes.chain([(rows, lies.row_stride), (cols, lies.col_stride)]);
    let n = batch.iter().product::<usize>() * rows * cols;
    Walk::strided(axes, lies.offset).extent(n)
}

/// The form of a product that has few rows, if its operands lie well.
fn few_rows(args: &MatmulArgs) -> Option<Skinny> {
    let MatmulArgs { m, k, n, ref a, ref b, .. } = *args;
    let steps = |lies: &OperandArgs| (lies.row_stride, lies.col_stride);
    let by_columns = b.row_stride == 1 && b.col_stride != 1;
    skinny::fits(m, steps(a), steps(b)).then_some(Skinny {
        m,
        k,
        n,
        a: std::ptr::null(),
        a_pitch: a.row_stride,
        b: std::ptr::null(),
        b_pitch: if by_columns { b.col_stride } else { b.row_stride },
        by_columns,
        out: std::ptr::null_mut(),
    })
}

/// A pointer that tasks share; they write apart.
#[derive(Clone, Copy)]
struct Shared(*mut u32);

// SAFETY: see above.
unsafe impl Send for Shared {}
unsafe impl Sync for Shared {}

impl Shared {
    fn get(self) -> *mut u32 {
        self.0
    }
}

/// An operand's lanes and how they lie.
#[derive(Clone, Copy)]
struct Operand<'s> {
    ptr: Shared,
    lies: &'s OperandArgs,
}

impl Operand<'_> {
    /// Where the matrix of a batch index starts.
    fn matrix(&self, batch: &[usize], mut idx: usize) -> *mut u32 {
        let mut at = self.lies.offset;
        for (&size, &stride) in batch.iter().zip(&self.lies.batch_strides).rev() {
            at += (idx % size) as isize * stride;
            idx /= size;
        }
        self.ptr.get().wrapping_offset(at)
    }
}

#[derive(Clone, Copy)]
struct Product<'a> {
    matmul: &'a Matmul,
    a: Operand<'a>,
    b: Operand<'a>,
    sums: Shared,
    parts: Shared,
}

impl Product<'_> {
    /// Sums of `rows` rows of a batch's matrix, from `row` on.
    unsafe fn rows(&self, batch_idx: usize, row: usize, rows: usize, rooms: Rooms) {
        let MatmulArgs { m, k, n, ref batch, .. } = self.matmul.args;
        if rows == 0 || n == 0 {
            return;
        }
        let a = self.a.matrix(batch, batch_idx).wrapping_offset(row as isize * self.a.lies.row_stride);
        let b = self.b.matrix(batch, batch_idx);
        let out = self.sums.get().wrapping_add((batch_idx * m + row) * n);
        let (a_lies, b_lies) = (self.a.lies, self.b.lies);
        if self.matmul.lane != Lane::F32 {
            // SAFETY: the matrices are within their memory, and nobody else writes these rows.
            return unsafe { integers(a, a_lies, b, b_lies, out, (rows, k, n)) };
        }
        if let Some(skinny) = self.matmul.skinny {
            let (a, b, out) = (a.cast_const().cast(), b.cast_const().cast(), out.cast());
            let parts = self.parts.get().wrapping_add(batch_idx * (skinny.n_parts() - 1) * m * n);
            // SAFETY: as above.
            return unsafe { Skinny { m: rows, a, b, out, ..skinny }.run(parts.cast()) };
        }
        let (a, b, out) = (a.cast_const().cast(), b.cast_const().cast(), out.cast());
        // A matrix times a column is the column, as a row, times the matrix by its columns.
        if n == 1 && b_lies.row_stride == 1 && a_lies.col_stride == 1 && skinny::fits(1, (k as isize, 1), (1, 0)) {
            let b_pitch = a_lies.row_stride;
            let turned = Skinny { m: 1, k, n: rows, a: b, a_pitch: 0, b: a, b_pitch, by_columns: true, out };
            // SAFETY: as above.
            return unsafe { turned.run(std::ptr::null_mut()) };
        }
        let steps = |lies: &OperandArgs| (lies.row_stride, lies.col_stride);
        let (a_steps, b_steps) = (steps(a_lies), steps(b_lies));
        // SAFETY: as above.
        unsafe { Gemm { m: rows, k, n, a, a_steps, b, b_steps, out }.run(rooms) };
    }
}

/// Exact wrapping products of integers: rows of `b` scaled and added, so that lanes of a row go together.
unsafe fn integers(
    a: *mut u32,
    a_lies: &OperandArgs,
    b: *mut u32,
    b_lies: &OperandArgs,
    out: *mut u32,
    (m, k, n): (usize, usize, usize),
) {
    let (a, b, out) = (Shared(a), Shared(b), Shared(out));
    let row = |i: usize| {
        // SAFETY: as promised by the caller.
        unsafe {
            let out = std::slice::from_raw_parts_mut(out.get().add(i * n), n);
            out.fill(0);
            for l in 0..k {
                let x = *a.get().offset(i as isize * a_lies.row_stride + l as isize * a_lies.col_stride);
                let b = b.get().offset(l as isize * b_lies.row_stride);
                if b_lies.col_stride == 1 {
                    let b = std::slice::from_raw_parts(b, n);
                    out.iter_mut().zip(b).for_each(|(o, y)| *o = o.wrapping_add(x.wrapping_mul(*y)));
                } else {
                    for (j, o) in out.iter_mut().enumerate() {
                        *o = o.wrapping_add(x.wrapping_mul(*b.offset(j as isize * b_lies.col_stride)));
                    }
                }
            }
        }
    };
    match m.saturating_mul(k).saturating_mul(n) > SMALL {
        true => threads::for_each(m, &row),
        false => (0..m).for_each(row),
    }
}
