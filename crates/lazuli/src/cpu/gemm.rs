//! Products of floats. Some columns of the right operand are laid out one after another, a block of rows at a time,
//! and stay near while the rows of the left one pass over them; a tile of results is summed up in registers. Every
//! result is made by one thread, in an order that depends on its sizes alone.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::across::{SIDE, square};
use super::threads;
use crate::ops::math::{F32x4, Floats, fetch};
use crate::ops::{Isa, isa};

#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16};

/// Rows of `b` in a block. Results are added up block by block.
const DEPTH: usize = 512;
/// Up to so many rows of `a`, `b` is multiplied as it lies: laying it out would take longer than it saves.
const MAX_LYING: usize = 64;
/// Rows of such a block: what is used again must be found where it was.
const LYING_DEPTH: usize = 256;
/// Vectors across a panel: the columns of a tile.
const ACROSS: usize = 3;
/// Panels in a block: half a megabyte of the widest, for a second-level cache.
const MAX_PANELS: usize = 5;
/// Rows of a tile where there are 32 registers, and where there are 16.
const MANY_ROWS: usize = 8;
const FEW_ROWS: usize = 4;
/// Multiplications that are worth a task.
const TASK: usize = 1 << 20;
/// Tasks for each thread, so that one that is held up delays little.
const TASKS_PER_THREAD: usize = 8;
/// How many rows ahead `b` is asked for.
const AHEAD: usize = 16;

/// A product `out[m, n] = a[m, k] · b[k, n]`, all within their memory; rows of `out` are dense.
#[derive(Clone, Copy)]
pub struct Gemm {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// Steps in `a`: from row to row, from column to column.
    pub a_steps: (isize, isize),
    pub b: *const f32,
    /// The same for `b`.
    pub b_steps: (isize, isize),
    pub out: *mut f32,
}

// SAFETY: tasks read `a` and `b` and write disjoint parts of the result.
unsafe impl Send for Gemm {}
// SAFETY: as above.
unsafe impl Sync for Gemm {}

/// Memory in which threads lay out what they multiply, so many values for each.
#[derive(Clone, Copy)]
pub struct Rooms {
    pub first: *mut f32,
    pub size: usize,
}

// SAFETY: every worker has its own.
unsafe impl Sync for Rooms {}

impl Rooms {
    /// The room of one worker.
    pub fn of(&self, worker: usize) -> Rooms {
        Rooms { first: self.first.wrapping_add(worker * self.size), size: self.size }
    }
}

/// Values that a thread needs room for, for a product of these sizes.
pub fn room(k: usize, n: usize) -> usize {
    k.min(DEPTH) * n.next_multiple_of(lanes()).min(MAX_PANELS * ACROSS * lanes())
}

/// Lanes of the widest vectors there are.
fn lanes() -> usize {
    match isa() {
        Isa::Avx512 => 16,
        Isa::Avx2 => 8,
        Isa::Baseline => 4,
    }
}

/// The `idx`th of `n_shares` shares of `0..n`, which differ by one at most.
fn share(n: usize, n_shares: usize, idx: usize) -> Range<usize> {
    n * idx / n_shares..n * (idx + 1) / n_shares
}

impl Gemm {
    /// Computes it on all threads.
    ///
    /// # Safety
    /// Operands, results and rooms are within their memory and do not overlap.
    pub unsafe fn run(&self, rooms: Rooms) {
        if self.k == 0 {
            // SAFETY: as promised by the caller.
            return unsafe { self.out.write_bytes(0, self.m * self.n) };
        }
        let (n_panels, n_tiles) = (self.n_panels(lanes()), self.m.div_ceil(MANY_ROWS));
        let n_threads = threads::count();
        let worth =
            (self.m.saturating_mul(self.k).saturating_mul(self.n) / TASK).clamp(1, TASKS_PER_THREAD * n_threads);
        let n_tasks = if worth == 1 { 1 } else { worth.next_multiple_of(n_threads) };
        // Rows are cut only if there are too few columns: what is laid out serves all rows of a task.
        let n_wide = n_tasks.min(n_panels).max(1);
        let n_tall = if n_wide < 2 * n_threads { n_tasks / n_wide } else { 1 };
        let n_tall = n_tall.min(n_tiles.div_ceil(MANY_ROWS)).max(1);
        threads::for_each_on(n_wide * n_tall, &|worker, task| {
            let panels = share(n_panels, n_wide, task / n_tall);
            let tiles = share(n_tiles, n_tall, task % n_tall);
            let rows = tiles.start * MANY_ROWS..(tiles.end * MANY_ROWS).min(self.m);
            // SAFETY: the instruction set is there; the rest as promised by the caller.
            unsafe {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => multiply_avx512(self, rows, panels, rooms.of(worker)),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => multiply_avx2(self, rows, panels, rooms.of(worker)),
                    _ if cfg!(target_arch = "aarch64") => {
                        multiply::<F32x4, MANY_ROWS>(self, rows, panels, rooms.of(worker));
                    }
                    _ => multiply::<F32x4, FEW_ROWS>(self, rows, panels, rooms.of(worker)),
                }
            }
        });
    }

    fn n_panels(&self, lanes: usize) -> usize {
        self.n.div_ceil(ACROSS * lanes)
    }

    /// The columns of panels: vectors are shared among all, so that none is much narrower than others.
    fn columns(&self, panels: Range<usize>, lanes: usize) -> Range<usize> {
        let n_panels = self.n_panels(lanes);
        let edge = |panel: usize| (self.n.div_ceil(lanes) * panel / n_panels * lanes).min(self.n);
        edge(panels.start)..edge(panels.end)
    }

    fn a(&self, row: usize, l: usize) -> *const f32 {
        self.a.wrapping_offset(row as isize * self.a_steps.0 + l as isize * self.a_steps.1)
    }

    fn b(&self, l: usize, column: usize) -> *const f32 {
        self.b.wrapping_offset(l as isize * self.b_steps.0 + column as isize * self.b_steps.1)
    }
}

/// Some rows and panels of the result, with tiles of up to `ROWS` rows.
#[inline(always)]
unsafe fn multiply<V: Floats, const ROWS: usize>(x: &Gemm, rows: Range<usize>, panels: Range<usize>, room: Rooms) {
    let mut left = [MaybeUninit::<f32>::uninit(); DEPTH * MANY_ROWS];
    let left: *mut f32 = left.as_mut_ptr().cast();
    let lies = x.m <= MAX_LYING && x.b_steps.1 == 1;
    let max_depth = if lies { LYING_DEPTH } else { DEPTH };
    for first in panels.clone().step_by(MAX_PANELS) {
        let block = first..panels.end.min(first + MAX_PANELS);
        // A vector must not reach past the end of its row.
        let last_is_whole = x.columns(block.clone(), V::LANES).end.is_multiple_of(V::LANES);
        let laid = match lies {
            true => {
                if last_is_whole {
                    block.end
                } else {
                    block.end - 1
                }
            }
            false => first,
        };
        let laid_from = x.columns(laid..block.end, V::LANES).start;
        for l in (0..x.k).step_by(max_depth) {
            let depth = max_depth.min(x.k - l);
            // SAFETY: as promised by the caller; the room holds a block, and `left` a tile's rows.
            unsafe {
                lay_out::<V>(x, l..l + depth, laid..block.end, room.first);
                for row in rows.clone().step_by(ROWS) {
                    let n_rows = ROWS.min(rows.end - row);
                    let (mut a, mut a_steps) = (x.a(row, l), x.a_steps);
                    if a_steps.1 != 1 {
                        turn_left(x, row..row + n_rows, l..l + depth, left);
                        (a, a_steps) = (left, (1, n_rows as isize));
                    }
                    for panel in block.clone() {
                        let columns = x.columns(panel..panel + 1, V::LANES);
                        let across = columns.len().div_ceil(V::LANES);
                        let (b, b_pitch) = match panel < laid {
                            true => (x.b(l, columns.start), x.b_steps.0),
                            false => {
                                let panel = room.first.wrapping_add(depth * (columns.start - laid_from));
                                (panel.cast_const(), (across * V::LANES) as isize)
                            }
                        };
                        let out = x.out.add(row * x.n + columns.start);
                        let n_columns = columns.len();
                        let tile = Tile { a, a_steps, b, b_pitch, depth, out, pitch: x.n, n_rows, n_columns, l };
                        macro_rules! tiles {
                            ($($rows:literal: $($across:literal)*;)*) => {
                                $($(
                                    if const { $rows <= ROWS } && n_rows <= $rows && across == $across {
                                        tile.run::<V, $rows, $across>();
                                        continue;
                                    }
                                )*)*
                            };
                        }
                        tiles! { 2: 1 2 3; 4: 1 2 3; 8: 1 2 3; }
                    }
                }
            }
        }
    }
}

/// Lays out rows of `b`, panel by panel, each row of a panel padded with zeros to whole vectors.
#[inline(always)]
unsafe fn lay_out<V: Floats>(x: &Gemm, rows: Range<usize>, panels: Range<usize>, room: *mut f32) {
    let depth = rows.len();
    let mut edges = [0; MAX_PANELS + 1];
    for i in 0..=panels.len() {
        edges[i] = x.columns(panels.start..panels.start + i, V::LANES).end;
    }
    // SAFETY: as promised by the caller.
    unsafe {
        if x.b_steps.1 == 1 {
            // Memory is read straight on.
            for (i, l) in rows.enumerate() {
                for p in 0..panels.len() {
                    let (column, n_columns) = (edges[p], edges[p + 1] - edges[p]);
                    let at = depth * (column - edges[0]) + i * n_columns.next_multiple_of(V::LANES);
                    for j in (0..n_columns).step_by(V::LANES) {
                        V::load_first(x.b(l, column + j), V::LANES.min(n_columns - j)).store(room.add(at + j));
                    }
                }
            }
            return;
        }
        for p in 0..panels.len() {
            let (column, n_columns) = (edges[p], edges[p + 1] - edges[p]);
            let (to, pitch) = (room.add(depth * (column - edges[0])), n_columns.next_multiple_of(V::LANES));
            turn(x.b(rows.start, column), x.b_steps, (depth, n_columns), to, pitch);
            if pitch > n_columns {
                (0..depth).for_each(|l| to.add(l * pitch + n_columns).write_bytes(0, pitch - n_columns));
            }
        }
    }
}

/// Copies a matrix whose rows do not lie dense: by squares where its columns do.
#[inline(always)]
unsafe fn turn(
    from: *const f32,
    steps: (isize, isize),
    (n_rows, n_columns): (usize, usize),
    to: *mut f32,
    pitch: usize,
) {
    let at = |row: usize, column: usize| from.wrapping_offset(row as isize * steps.0 + column as isize * steps.1);
    let (rows, columns) = if steps.0 == 1 { (n_rows / SIDE * SIDE, n_columns / SIDE * SIDE) } else { (0, 0) };
    // SAFETY: as promised by the caller.
    unsafe {
        for column in (0..columns).step_by(SIDE) {
            for row in (0..rows).step_by(SIDE) {
                square(at(row, column).cast(), steps.1, to.add(row * pitch + column).cast(), pitch as isize);
            }
        }
        for column in 0..n_columns {
            for row in if column < columns { rows } else { 0 }..n_rows {
                *to.add(row * pitch + column) = *at(row, column);
            }
        }
    }
}

/// Lays out rows of `a` that do not lie dense, side by side.
#[inline(always)]
unsafe fn turn_left(x: &Gemm, rows: Range<usize>, depth: Range<usize>, to: *mut f32) {
    // SAFETY: as promised by the caller.
    unsafe {
        for (i, l) in depth.enumerate() {
            let to = to.add(i * rows.len());
            match x.a_steps.0 {
                1 => to.copy_from_nonoverlapping(x.a(rows.start, l), rows.len()),
                _ => rows.clone().enumerate().for_each(|(r, row)| *to.add(r) = *x.a(row, l)),
            }
        }
    }
}

/// What is multiplied into one tile of the result.
struct Tile {
    a: *const f32,
    a_steps: (isize, isize),
    /// Rows of whole vectors.
    b: *const f32,
    b_pitch: isize,
    depth: usize,
    out: *mut f32,
    /// From row to row of the result.
    pitch: usize,
    n_rows: usize,
    n_columns: usize,
    /// The first row of `b`: after others, products are added to what is there.
    l: usize,
}

impl Tile {
    /// Up to `ROWS` rows of `ACROSS` vectors. Of missing rows the last is taken, and nothing stored.
    #[inline(always)]
    unsafe fn run<V: Floats, const ROWS: usize, const ACROSS: usize>(&self) {
        let mut rows = [self.a; ROWS];
        let out = |r: usize| self.out.wrapping_add(r * self.pitch);
        for r in 0..ROWS {
            rows[r] = self.a.wrapping_offset(r.min(self.n_rows - 1) as isize * self.a_steps.0);
            for j in 0..ACROSS {
                fetch(out(r).wrapping_add(j * V::LANES));
            }
        }
        // SAFETY: as promised by the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); ACROSS]; ROWS];
            let (mut b, mut at) = (self.b, 0);
            for _ in 0..self.depth {
                let mut lanes = [V::splat(0.0); ACROSS];
                for j in 0..ACROSS {
                    lanes[j] = V::load(b.add(j * V::LANES));
                    fetch(b.wrapping_offset(AHEAD as isize * self.b_pitch).wrapping_add(j * V::LANES));
                }
                for r in 0..ROWS {
                    let scale = V::splat(*rows[r].wrapping_offset(at));
                    for j in 0..ACROSS {
                        sums[r][j] = scale.fma(lanes[j], sums[r][j]);
                    }
                }
                at += self.a_steps.1;
                b = b.wrapping_offset(self.b_pitch);
            }
            for r in 0..ROWS {
                if r < self.n_rows {
                    self.store(out(r), &sums[r]);
                }
            }
        }
    }

    /// Stores a row of results, or adds it to what is there.
    #[inline(always)]
    unsafe fn store<V: Floats, const ACROSS: usize>(&self, out: *mut f32, sums: &[V; ACROSS]) {
        // SAFETY: as promised by the caller.
        unsafe {
            for j in 0..ACROSS {
                let (to, n) = (out.add(j * V::LANES), V::LANES.min(self.n_columns - j * V::LANES));
                let before = if self.l == 0 { V::splat(0.0) } else { V::load_first(to, n) };
                before.add(sums[j]).store_first(to, n);
            }
        }
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($multiply:ident, $features:literal, $vector:ty, $rows:expr) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $multiply(x: &Gemm, rows: Range<usize>, panels: Range<usize>, room: Rooms) {
            // SAFETY: as promised by the caller.
            unsafe { multiply::<$vector, { $rows }>(x, rows, panels, room) }
        }
    };
}

compiled!(multiply_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16, MANY_ROWS);
compiled!(multiply_avx2, "avx2,fma", F32x8, FEW_ROWS);
