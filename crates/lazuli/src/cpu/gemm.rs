//! Products of floats. Some columns of the right operand are laid out one after another, a block of rows at a time,
//! and stay near while the rows of the left one pass over them; a tile of results is summed up in registers. Every
//! result is made by one thread, in an order that depends on its sizes alone.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::across::{SIDE, square};
use super::threads;
use crate::ops::isa;
use crate::ops::math::{F32x4, Floats, fetch};

#[cfg(target_arch = "x86_64")]
use crate::ops::Isa;
#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16};

/// Rows of `b` in a block. Results are added up block by block.
const DEPTH: usize = 512;
/// Up to so many rows of `a`, `b` is multiplied as it lies: laying it out would take longer than it saves.
const MAX_LYING: usize = 32;
/// Rows of such a block: what is used again must be found where it was.
const LYING_DEPTH: usize = 256;
/// Up to so many rows of `a`, panels are made one by one.
const FEW: usize = 128;
/// Vectors across a block: half a megabyte of the widest, for a second-level cache.
const MAX_ACROSS: usize = 16;
/// Rows of the tallest tile.
const MAX_ROWS: usize = 8;
/// Multiplications that are worth a task.
const TASK: usize = 1 << 20;
/// Tasks for each thread, so that one that is held up delays little.
const TASKS_PER_THREAD: usize = 4;
/// Tiles that a task has below one another at least: what it lays out is used so often.
const TILES: usize = 16;
/// How many rows ahead `b` is asked for where it was not laid out.
const AHEAD: isize = 16;
/// Rows of `b` in a turn of the innermost loop.
const STEPS: usize = 4;
/// Rows of what lies by columns that are laid out at a time.
const TURNED: usize = 32;

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
    let lanes = kernel(false).lanes;
    k.min(DEPTH) * n.next_multiple_of(lanes).min(MAX_ACROSS * lanes)
}

/// How products are made with one instruction set.
struct Kernel {
    /// Lanes of a vector.
    lanes: usize,
    /// Vectors across a panel: the columns of a tile.
    across: usize,
    /// Rows of tiles: first where few are left, last where all are there.
    heights: [usize; 3],
    /// [`Tile::run`] for each of these and one vector or more. They are functions of their own so that none lacks
    /// registers for another's sake.
    tiles: [&'static [unsafe fn(&Tile)]; 3],
    /// The same for whole tiles that lay out what they read for those below; none where all read it as it lies.
    laying: Option<&'static [unsafe fn(&Tile)]>,
}

/// Where a tile finds `b`: laid out, as it lies, or as it lies and to be laid out.
const LAID: u8 = 0;
const LYING: u8 = 1;
const LAYING: u8 = 2;

/// What suits the processor.
fn kernel(lies: bool) -> &'static Kernel {
    match (isa(), lies) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, false) => &avx512::LAID,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512, true) => &avx512::LYING,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, false) => &avx2::LAID,
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, true) => &avx2::LYING,
        (_, false) => &baseline::LAID,
        (_, true) => &baseline::LYING,
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
        let cut = Cut { x: self, kernel: kernel(self.m <= MAX_LYING && self.b_steps.1 == 1) };
        let (n_panels, tile_rows) = (cut.n_panels(), cut.kernel.heights[2]);
        let n_tiles = self.m.div_ceil(tile_rows);
        let n_threads = threads::count();
        let worth =
            (self.m.saturating_mul(self.k).saturating_mul(self.n) / TASK).clamp(1, TASKS_PER_THREAD * n_threads);
        let n_tasks = if worth == 1 { 1 } else { worth.next_multiple_of(n_threads) };
        // As wide as a block, for then `a` is read least often; as tall as leaves every thread its share.
        let max_tall = (n_tiles / TILES).max(1);
        let n_wide = n_panels.div_ceil(cut.max_panels()).max(n_tasks.div_ceil(max_tall)).min(n_panels).max(1);
        let n_tall = n_tasks.div_ceil(n_wide);
        let n_tall = if n_wide.is_multiple_of(n_threads) { n_tall } else { n_tall.next_multiple_of(n_threads) };
        let n_tall = n_tall.min(max_tall);
        threads::for_each_on(n_wide * n_tall, &|worker, task| {
            let panels = share(n_panels, n_wide, task / n_tall);
            let tiles = share(n_tiles, n_tall, task % n_tall);
            let rows = tiles.start * tile_rows..(tiles.end * tile_rows).min(self.m);
            // SAFETY: as promised by the caller.
            unsafe { cut.multiply(rows, panels, rooms.of(worker)) };
        });
    }

    fn a(&self, row: usize, l: usize) -> *const f32 {
        self.a.wrapping_offset(row as isize * self.a_steps.0 + l as isize * self.a_steps.1)
    }

    fn b(&self, l: usize, column: usize) -> *const f32 {
        self.b.wrapping_offset(l as isize * self.b_steps.0 + column as isize * self.b_steps.1)
    }
}

/// A product and how it is cut.
struct Cut<'a> {
    x: &'a Gemm,
    kernel: &'static Kernel,
}

impl Cut<'_> {
    fn n_panels(&self) -> usize {
        self.x.n.div_ceil(self.kernel.across * self.kernel.lanes)
    }

    /// Panels in a block. Few rows of `a` stay near by themselves.
    fn max_panels(&self) -> usize {
        if self.x.m <= FEW { 1 } else { MAX_ACROSS / self.kernel.across }
    }

    /// The columns of panels: vectors are shared among all, so that none is much narrower than others.
    fn columns(&self, panels: Range<usize>) -> Range<usize> {
        let (lanes, n_panels) = (self.kernel.lanes, self.n_panels());
        let edge = |panel: usize| (self.x.n.div_ceil(lanes) * panel / n_panels * lanes).min(self.x.n);
        edge(panels.start)..edge(panels.end)
    }

    /// Some rows and panels of the result.
    unsafe fn multiply(&self, rows: Range<usize>, panels: Range<usize>, room: Rooms) {
        let &Cut { x, kernel } = self;
        let mut left = [MaybeUninit::<f32>::uninit(); DEPTH * MAX_ROWS];
        let left: *mut f32 = left.as_mut_ptr().cast();
        let dense = x.b_steps.1 == 1;
        let max_depth = if kernel.laying.is_some() { DEPTH } else { LYING_DEPTH };
        for first in panels.clone().step_by(self.max_panels()) {
            let block = first..panels.end.min(first + self.max_panels());
            let block_from = self.columns(block.clone()).start;
            for l in (0..x.k).step_by(max_depth) {
                let depth = max_depth.min(x.k - l);
                let laid = |columns: &Range<usize>| room.first.wrapping_add(depth * (columns.start - block_from));
                // SAFETY: the instruction set is there; the room holds a block, and `left` a tile's rows; the rest as
                // promised by the caller.
                unsafe {
                    if !dense {
                        for panel in block.clone() {
                            let columns = self.columns(panel..panel + 1);
                            lay_out(x, l..l + depth, columns.clone(), laid(&columns), kernel.lanes);
                        }
                    }
                    for row in rows.clone().step_by(kernel.heights[2]) {
                        let n_rows = kernel.heights[2].min(rows.end - row);
                        let (mut a, mut a_pitch) = (x.a(row, l), x.a_steps.0);
                        if x.a_steps.1 != 1 {
                            turn(a, x.a_steps, (n_rows, depth), left, depth);
                            (a, a_pitch) = (left, depth as isize);
                        }
                        let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                        let laying = kernel.laying.filter(|_| dense && row == rows.start);
                        let tiles = laying.unwrap_or(kernel.tiles[height]);
                        let lies = dense && (laying.is_some() || kernel.laying.is_none());
                        for panel in block.clone() {
                            let columns = self.columns(panel..panel + 1);
                            let laid = laid(&columns);
                            let b = if lies { x.b(l, columns.start) } else { laid.cast_const() };
                            let out = x.out.add(row * x.n + columns.start);
                            let (b_pitch, pitch, n_columns) = (x.b_steps.0, x.n, columns.len());
                            let tile = Tile { a, a_pitch, b, b_pitch, laid, depth, out, pitch, n_rows, n_columns, l };
                            tiles[n_columns.div_ceil(kernel.lanes) - 1](&tile);
                        }
                    }
                }
            }
        }
    }
}

/// Lays out columns of `b` that do not lie side by side, with zeros up to whole vectors.
unsafe fn lay_out(x: &Gemm, rows: Range<usize>, columns: Range<usize>, to: *mut f32, lanes: usize) {
    let (depth, n_columns, pitch) = (rows.len(), columns.len(), columns.len().next_multiple_of(lanes));
    // SAFETY: as promised by the caller.
    unsafe {
        turn(x.b(rows.start, columns.start), x.b_steps, (depth, n_columns), to, pitch);
        if pitch > n_columns {
            (0..depth).for_each(|l| to.add(l * pitch + n_columns).write_bytes(0, pitch - n_columns));
        }
    }
}

/// Copies a matrix whose rows do not lie dense: by squares where its columns do.
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
        // A few rows at a time, so that what is written is whole lines before it leaves the nearest cache.
        for first in (0..rows).step_by(TURNED) {
            for column in (0..columns).step_by(SIDE) {
                (column..column + SIDE).for_each(|column| fetch(at(first + TURNED, column)));
                for row in (first..rows.min(first + TURNED)).step_by(SIDE) {
                    square(at(row, column).cast(), steps.1, to.add(row * pitch + column).cast(), pitch as isize);
                }
            }
        }
        for column in 0..n_columns {
            for row in if column < columns { rows } else { 0 }..n_rows {
                *to.add(row * pitch + column) = *at(row, column);
            }
        }
    }
}

/// What is multiplied into one tile of the result.
struct Tile {
    /// Rows that lie dense.
    a: *const f32,
    a_pitch: isize,
    b: *const f32,
    /// From row to row where they were not laid out.
    b_pitch: isize,
    /// Where they are laid out, with zeros up to whole vectors.
    laid: *mut f32,
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
    /// Up to `ROWS` rows of `ACROSS` vectors. Of missing rows the last is taken, and nothing stored. A `b` that lies
    /// as it came is asked for ahead: its steps are too long to be foreseen.
    #[inline(always)]
    unsafe fn run<V: Floats, const ROWS: usize, const ACROSS: usize, const B: u8>(&self) {
        let mut rows = [self.a; ROWS];
        let out = |r: usize| self.out.wrapping_add(r * self.pitch);
        for r in 0..ROWS {
            rows[r] = self.a.wrapping_offset(r.min(self.n_rows - 1) as isize * self.a_pitch);
            for j in 0..ACROSS {
                fetch(out(r).wrapping_add(j * V::LANES));
            }
        }
        // Where rows are laid out, their distance is part of the instructions.
        let laid_pitch = (ACROSS * V::LANES) as isize;
        let pitch = if B == LAID { laid_pitch } else { self.b_pitch };
        let n_last = self.n_columns - (ACROSS - 1) * V::LANES;
        // SAFETY: as promised by the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); ACROSS]; ROWS];
            let (mut b, mut laid, mut l) = (self.b, self.laid, 0);
            let next = |b: *const f32, laid: *mut f32, n: usize| {
                (b.wrapping_offset(n as isize * pitch), laid.wrapping_offset(n as isize * laid_pitch))
            };
            // A few at a time: counting costs less.
            for _ in 0..self.depth / STEPS {
                for i in 0..STEPS {
                    let (b, laid) = next(b, laid, i);
                    step::<_, _, _, B>(&mut sums, &rows, l + i, b, pitch, n_last, laid);
                }
                (b, laid) = next(b, laid, STEPS);
                l += STEPS;
            }
            for l in l..self.depth {
                step::<_, _, _, B>(&mut sums, &rows, l, b, pitch, n_last, laid);
                (b, laid) = next(b, laid, 1);
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

/// Adds the products of column `l` of some rows and a row of `b`.
#[inline(always)]
unsafe fn step<V: Floats, const ROWS: usize, const ACROSS: usize, const B: u8>(
    sums: &mut [[V; ACROSS]; ROWS],
    rows: &[*const f32; ROWS],
    l: usize,
    b: *const f32,
    pitch: isize,
    n_last: usize,
    laid: *mut f32,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let mut lanes = [V::splat(0.0); ACROSS];
        for j in 0..ACROSS {
            let from = b.add(j * V::LANES);
            // A vector must not reach past the end of its row.
            lanes[j] = if B != LAID && j + 1 == ACROSS { V::load_first(from, n_last) } else { V::load(from) };
            if B != LAID {
                fetch(from.wrapping_offset(AHEAD * pitch));
            }
            if B == LAYING {
                lanes[j].store(laid.add(j * V::LANES));
            }
        }
        for r in 0..ROWS {
            let scale = V::splat(*rows[r].add(l));
            for j in 0..ACROSS {
                sums[r][j] = scale.fma(lanes[j], sums[r][j]);
            }
        }
    }
}

/// The loops above, compiled for one instruction set, with tiles whose sums fill its registers. Where `b` is laid out,
/// wide ones load least; where it lies as it came, tall ones read it least often.
macro_rules! compiled {
    (
        $isa:ident $vector:ty $(, $features:literal)?;
        laid $few:literal $half:literal $rows:literal: $($across:literal)*;
        lying $few_lying:literal $half_lying:literal $rows_lying:literal: $($lying:literal)*
    ) => {
        mod $isa {
            use super::*;

            pub static LAID: Kernel = Kernel {
                lanes: <$vector>::LANES,
                across: [$($across),*].len(),
                heights: [$few, $half, $rows],
                tiles: [
                    &[$(tile::<$few, $across, { super::LAID }>),*],
                    &[$(tile::<$half, $across, { super::LAID }>),*],
                    &[$(tile::<$rows, $across, { super::LAID }>),*],
                ],
                laying: Some(&[$(tile::<$rows, $across, LAYING>),*]),
            };

            pub static LYING: Kernel = Kernel {
                lanes: <$vector>::LANES,
                across: [$($lying),*].len(),
                heights: [$few_lying, $half_lying, $rows_lying],
                tiles: [
                    &[$(tile::<$few_lying, $lying, { super::LYING }>),*],
                    &[$(tile::<$half_lying, $lying, { super::LYING }>),*],
                    &[$(tile::<$rows_lying, $lying, { super::LYING }>),*],
                ],
                laying: None,
            };

            $(#[target_feature(enable = $features)])?
            unsafe fn tile<const ROWS: usize, const ACROSS: usize, const B: u8>(tile: &Tile) {
                // SAFETY: as promised by the caller.
                unsafe { tile.run::<$vector, ROWS, ACROSS, B>() }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(avx512 F32x16, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"; laid 2 4 6: 1 2 3 4; lying 2 4 8: 1 2 3);
#[cfg(target_arch = "x86_64")]
compiled!(avx2 F32x8, "avx2,fma"; laid 1 2 4: 1 2 3; lying 1 2 4: 1 2 3);
#[cfg(target_arch = "aarch64")]
compiled!(baseline F32x4; laid 2 4 8: 1 2 3; lying 2 4 8: 1 2 3);
#[cfg(not(target_arch = "aarch64"))]
compiled!(baseline F32x4; laid 1 2 4: 1 2 3; lying 1 2 4: 1 2 3);
