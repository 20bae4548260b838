//! Products of floats. Some columns of the right operand are laid out one after another, a block of rows at a time,
//! and stay near while the rows of the left one pass over them; a tile of results is summed up in registers. A constant
//! operand may lie so from the start. The order in which a result is added up depends on its sizes alone.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::across::{SIDE, square};
use super::load;
use super::parts::Parts;
use super::threads;
use super::walk::Walk;
use crate::dtype::DType;
use crate::kernel::Panels;
use crate::ops::isa;
use crate::ops::math::{F32x4, Floats, fetch};
use crate::plan::PanelWidths;

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
/// Partial results at most, where there are too few results for all threads.
const MAX_PARTS: usize = 16;
/// How many rows ahead `b` is asked for where it was not laid out.
const AHEAD: isize = 16;
/// The same where it lies in panels, whose rows are short.
const FRESH_AHEAD: isize = 48;
/// Places in a panel that a single row is multiplied with at a time: one would not keep memory busy.
const STREAMS: usize = 4;
/// Rows of `b` in a turn of the innermost loop.
const STEPS: usize = 4;
/// Rows of what lies by columns that are laid out at a time.
const TURNED: usize = 32;
/// Narrow columns that are laid out at a time.
const WIDENED: usize = 16;

/// A product `out[m, n] = a[m, k] · b[k, n]`, all within their memory; rows of `out` are dense.
#[derive(Clone, Copy)]
pub struct Gemm {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// Steps in `a`: from row to row, from column to column.
    pub a_steps: (isize, isize),
    pub b: *const u8,
    /// `f32`, or narrower.
    pub b_dtype: DType,
    /// The same for `b`: within a panel, if it lies in some.
    pub b_steps: (isize, isize),
    pub panels: Option<Panels>,
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

/// Panels in which `b` may lie from the start: those in which it would be laid out.
pub fn panel_widths() -> PanelWidths {
    let Kernel { lanes, across, .. } = kernel(false);
    PanelWidths { unit: *lanes, best: across * lanes }
}

type TileFn = unsafe fn(&Tile);

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
    tiles: [&'static [TileFn]; 3],
    /// The same for whole tiles that lay out what they read for those below. None where all read it as it lies, and so
    /// for the following.
    laying: &'static [TileFn],
    /// For those that are the first to read a panel.
    fresh: [&'static [TileFn]; 3],
    /// [`Tile::run_row`].
    row: &'static [TileFn],
}

/// How a tile finds `b`: laid out, as it lies, as it lies and to be laid out, or in a panel that nobody has read yet.
const LAID: u8 = 0;
const LYING: u8 = 1;
const LAYING: u8 = 2;
const FRESH: u8 = 3;

/// How `b` comes to the tiles.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// As it lies.
    Lying,
    /// As it lies to the first, which lays it out for the others.
    Laying,
    /// It is laid out before, because columns must be turned or numbers widened.
    Before,
    /// It lies as if laid out.
    Panels,
}

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
    /// Values that a thread needs room for.
    pub fn room(&self) -> usize {
        let cut = self.cut();
        let lanes = cut.kernel.lanes;
        match cut.way {
            Way::Lying | Way::Panels => 0,
            Way::Laying | Way::Before => {
                let n_columns = self.n.next_multiple_of(self.panels.map_or(lanes, |panels| panels.width));
                self.k.min(DEPTH) * n_columns.min(MAX_ACROSS * lanes)
            }
        }
    }

    /// How many partial results there are: more than one where results are too few to be shared out. It depends on
    /// sizes alone.
    pub fn n_parts(&self) -> usize {
        let cut = self.cut();
        let n_blocks = cut.n_panels() * cut.max_tall();
        (self.k / DEPTH).min(self.work() / TASK).min(MAX_PARTS / n_blocks.max(1)).max(1)
    }

    /// Multiplications.
    fn work(&self) -> usize {
        self.m.saturating_mul(self.k).saturating_mul(self.n)
    }

    fn cut(&self) -> Cut<'_> {
        let dense = self.b_steps.1 == 1;
        let way = match self.panels {
            _ if self.b_dtype != DType::F32 => Way::Before,
            Some(_) => Way::Panels,
            None if !dense => Way::Before,
            None if self.m <= MAX_LYING => Way::Lying,
            None => Way::Laying,
        };
        Cut { x: self, way, kernel: kernel(way == Way::Lying) }
    }

    /// Computes it on all threads. `parts` has room for `(n_parts − 1) · m · n` values.
    ///
    /// # Safety
    /// Operands, results and rooms are within their memory and do not overlap.
    pub unsafe fn run(&self, rooms: Rooms, n_parts: usize, parts: *mut f32) {
        if self.k == 0 {
            // SAFETY: as promised by the caller.
            return unsafe { self.out.write_bytes(0, self.m * self.n) };
        }
        let cut = self.cut();
        let (n_panels, n_tiles, tile_rows) = (cut.n_panels(), cut.n_tiles(), cut.kernel.heights[2]);
        let n_threads = threads::count();
        let worth = (self.work() / TASK / n_parts).clamp(1, (TASKS_PER_THREAD * n_threads).div_ceil(n_parts));
        let n_tasks = if worth == 1 { 1 } else { worth.next_multiple_of(n_threads) };
        // As wide as a block, for then `a` is read least often; as tall as leaves every thread its share. Panels are
        // better read by one thread than by two at once.
        let widest = if cut.way == Way::Panels { n_tasks } else { n_tasks.div_ceil(cut.max_tall()) };
        let n_wide = n_panels.div_ceil(cut.max_panels()).max(widest).min(n_panels).max(1);
        let n_tall = n_tasks.div_ceil(n_wide);
        let n_tall = if n_wide.is_multiple_of(n_threads) { n_tall } else { n_tall.next_multiple_of(n_threads) };
        let n_tall = n_tall.min(cut.max_tall());
        let parts = Parts { first: self.out, rest: parts, len: self.m * self.n };
        threads::for_each_on(n_parts * n_wide * n_tall, &|worker, task| {
            let (part, task) = (task / (n_wide * n_tall), task % (n_wide * n_tall));
            let panels = share(n_panels, n_wide, task / n_tall);
            let tiles = share(n_tiles, n_tall, task % n_tall);
            let rows = tiles.start * tile_rows..(tiles.end * tile_rows).min(self.m);
            let block = Block { rows, depth: share(self.k, n_parts, part), panels };
            // SAFETY: as promised by the caller.
            unsafe { cut.multiply(block, parts.at(part), rooms.of(worker)) };
        });
        // SAFETY: all were computed.
        unsafe { parts.add_up(n_parts) };
    }

    fn a(&self, row: usize, l: usize) -> *const f32 {
        self.a.wrapping_offset(row as isize * self.a_steps.0 + l as isize * self.a_steps.1)
    }

    /// The element of `b` in this row and the first column of a panel, by its number; without panels, in this column.
    fn b(&self, l: usize, panel: usize, column: usize) -> isize {
        l as isize * self.b_steps.0
            + match self.panels {
                Some(panels) => panel as isize * panels.stride,
                None => column as isize * self.b_steps.1,
            }
    }
}

/// A product and how it is cut.
struct Cut<'a> {
    x: &'a Gemm,
    way: Way,
    kernel: &'static Kernel,
}

/// What a task multiplies.
struct Block {
    rows: Range<usize>,
    /// Rows of `b`.
    depth: Range<usize>,
    panels: Range<usize>,
}

impl Cut<'_> {
    fn n_panels(&self) -> usize {
        self.x.n.div_ceil(self.x.panels.map_or(self.kernel.across * self.kernel.lanes, |panels| panels.width))
    }

    fn n_tiles(&self) -> usize {
        self.x.m.div_ceil(self.kernel.heights[2])
    }

    /// Tasks below one another at most.
    fn max_tall(&self) -> usize {
        (self.n_tiles() / TILES).max(1)
    }

    /// Panels in a block. Few rows of `a` stay near by themselves.
    fn max_panels(&self) -> usize {
        if self.x.m <= FEW { 1 } else { MAX_ACROSS / self.kernel.across }
    }

    /// The columns of panels: vectors are shared among all, so that none is much narrower than others.
    fn columns(&self, panels: Range<usize>) -> Range<usize> {
        let (n, lanes, n_panels) = (self.x.n, self.kernel.lanes, self.n_panels());
        let edge = |panel: usize| match self.x.panels {
            Some(panels) => (panel * panels.width).min(n),
            None => (n.div_ceil(lanes) * panel / n_panels * lanes).min(n),
        };
        edge(panels.start)..edge(panels.end)
    }

    /// Columns of a panel, with those that only fill it up.
    fn width(&self, columns: &Range<usize>) -> usize {
        self.x.panels.map_or(columns.len().next_multiple_of(self.kernel.lanes), |panels| panels.width)
    }

    /// One block of the result.
    unsafe fn multiply(&self, block: Block, out: *mut f32, room: Rooms) {
        let &Cut { x, way, kernel } = self;
        let mut left = [MaybeUninit::<f32>::uninit(); DEPTH * MAX_ROWS];
        let left: *mut f32 = left.as_mut_ptr().cast();
        let max_depth = if way == Way::Lying { LYING_DEPTH } else { DEPTH };
        let n_together = self.max_panels();
        for first in block.panels.clone().step_by(n_together) {
            let panels = first..block.panels.end.min(first + n_together);
            let from = self.columns(panels.clone()).start;
            for l in block.depth.clone().step_by(max_depth) {
                let depth = max_depth.min(block.depth.end - l);
                let laid = |columns: &Range<usize>| room.first.wrapping_add(depth * (columns.start - from));
                // SAFETY: the instruction set is there; the room holds a block, and `left` a tile's rows; the rest as
                // promised by the caller.
                unsafe {
                    if way == Way::Before {
                        for panel in panels.clone() {
                            self.lay_out(l..l + depth, panel, laid(&self.columns(panel..panel + 1)));
                        }
                    }
                    for row in block.rows.clone().step_by(kernel.heights[2]) {
                        let n_rows = kernel.heights[2].min(block.rows.end - row);
                        let (mut a, mut a_pitch) = (x.a(row, l), x.a_steps.0);
                        if x.a_steps.1 != 1 {
                            turn(a, x.a_steps, (n_rows, depth), left, depth);
                            (a, a_pitch) = (left, depth as isize);
                        }
                        let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                        let is_first = row == block.rows.start;
                        let tiles = match way {
                            Way::Laying if is_first => kernel.laying,
                            Way::Lying => kernel.tiles[height],
                            _ if n_rows == 1 => kernel.row,
                            Way::Panels if is_first => kernel.fresh[height],
                            _ => kernel.tiles[height],
                        };
                        for panel in panels.clone() {
                            let columns = self.columns(panel..panel + 1);
                            let lies = x.b.cast::<f32>().wrapping_offset(x.b(l, panel, columns.start));
                            let laid = laid(&columns);
                            let b = match way {
                                Way::Lying | Way::Panels => lies,
                                Way::Laying if is_first => lies,
                                Way::Laying | Way::Before => laid.cast_const(),
                            };
                            let out = out.add(row * x.n + columns.start);
                            let adds = l > block.depth.start;
                            let (b_pitch, pitch, n_columns) = (x.b_steps.0, x.n, columns.len());
                            let tile =
                                Tile { a, a_pitch, b, b_pitch, laid, depth, out, pitch, n_rows, n_columns, adds };
                            tiles[self.width(&columns) / kernel.lanes - 1](&tile);
                        }
                    }
                }
            }
        }
    }

    /// Lays out some rows of a panel of `b`, with zeros up to whole vectors.
    unsafe fn lay_out(&self, rows: Range<usize>, panel: usize, to: *mut f32) {
        let x = self.x;
        let columns = self.columns(panel..panel + 1);
        let (depth, pitch) = (rows.len(), self.width(&columns));
        let first = x.b(rows.start, panel, columns.start);
        // SAFETY: as promised by the caller.
        unsafe {
            if x.b_dtype == DType::F32 {
                turn(x.b.cast::<f32>().offset(first), x.b_steps, (depth, columns.len()), to, pitch);
            } else {
                self.widen(first, (depth, columns.len()), to, pitch);
            }
            if pitch > columns.len() {
                (0..depth).for_each(|l| to.add(l * pitch + columns.len()).write_bytes(0, pitch - columns.len()));
            }
        }
    }

    /// Copies a matrix of narrow numbers.
    unsafe fn widen(&self, first: isize, (n_rows, n_columns): (usize, usize), to: *mut f32, pitch: usize) {
        let Gemm { b, b_dtype, b_steps, .. } = *self.x;
        let run = |at: isize, step: isize, n: usize, to: *mut f32| {
            let walk = Walk::strided([(n, step)].into_iter(), at);
            // SAFETY: as promised by the caller.
            unsafe { load::fill(&walk, b, b_dtype, 0, std::slice::from_raw_parts_mut(to.cast(), n)) };
        };
        // SAFETY: as promised by the caller.
        unsafe {
            if b_steps.1 == 1 && b_steps.0 == pitch as isize {
                return run(first, 1, n_rows * pitch, to);
            }
            if b_steps.1 == 1 {
                return (0..n_rows).for_each(|l| run(first + l as isize * b_steps.0, 1, n_columns, to.add(l * pitch)));
            }
            // Some columns as rows, which are then turned.
            let mut wide = [MaybeUninit::<f32>::uninit(); DEPTH * WIDENED];
            let wide: *mut f32 = wide.as_mut_ptr().cast();
            for column in (0..n_columns).step_by(WIDENED) {
                let n = WIDENED.min(n_columns - column);
                for j in 0..n {
                    let at = first + (column + j) as isize * b_steps.1;
                    run(at, b_steps.0, n_rows, wide.add(j * n_rows));
                }
                turn(wide, (1, n_rows as isize), (n_rows, n), to.add(column), pitch);
            }
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
    /// Whether products are added to what is there.
    adds: bool,
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
        let pitch = if B == LAID || B == FRESH { laid_pitch } else { self.b_pitch };
        let n_last = self.n_columns.wrapping_sub((ACROSS - 1) * V::LANES);
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

    /// A single row, multiplied with several places of a panel at a time.
    #[inline(always)]
    unsafe fn run_row<V: Floats, const ACROSS: usize>(&self) {
        let each = self.depth / STREAMS;
        // SAFETY: as promised by the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); ACROSS]; STREAMS];
            for l in 0..each {
                for stream in 0..STREAMS {
                    self.add_row(&mut sums[stream], stream * each + l);
                }
            }
            for l in STREAMS * each..self.depth {
                self.add_row(&mut sums[0], l);
            }
            let mut all = sums[0];
            for stream in 1..STREAMS {
                for j in 0..ACROSS {
                    all[j] = all[j].add(sums[stream][j]);
                }
            }
            self.store(self.out, &all);
        }
    }

    /// Adds the products of a number of the single row and a row of a panel.
    #[inline(always)]
    unsafe fn add_row<V: Floats, const ACROSS: usize>(&self, sums: &mut [V; ACROSS], l: usize) {
        // SAFETY: as promised by the caller.
        unsafe {
            let scale = V::splat(*self.a.add(l));
            for j in 0..ACROSS {
                sums[j] = scale.fma(V::load(self.b.add((l * ACROSS + j) * V::LANES)), sums[j]);
            }
        }
    }

    /// Stores a row of results, or adds it to what is there.
    #[inline(always)]
    unsafe fn store<V: Floats, const ACROSS: usize>(&self, out: *mut f32, sums: &[V; ACROSS]) {
        // SAFETY: as promised by the caller.
        unsafe {
            for j in 0..ACROSS {
                // None where a panel is wider than what is left.
                let n = V::LANES.min(self.n_columns.saturating_sub(j * V::LANES));
                let to = out.wrapping_add(j * V::LANES);
                let before = if self.adds { V::load_first(to, n) } else { V::splat(0.0) };
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
            let may_end = (B == LYING || B == LAYING) && j + 1 == ACROSS;
            lanes[j] = if may_end { V::load_first(from, n_last) } else { V::load(from) };
            if B != LAID {
                fetch(from.wrapping_offset(if B == FRESH { FRESH_AHEAD } else { AHEAD } * pitch));
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
                laying: &[$(tile::<$rows, $across, LAYING>),*],
                fresh: [
                    &[$(tile::<$few, $across, FRESH>),*],
                    &[$(tile::<$half, $across, FRESH>),*],
                    &[$(tile::<$rows, $across, FRESH>),*],
                ],
                row: &[$(row::<$across>),*],
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
                laying: &[],
                fresh: [&[]; 3],
                row: &[],
            };

            $(#[target_feature(enable = $features)])?
            unsafe fn row<const ACROSS: usize>(tile: &Tile) {
                // SAFETY: as promised by the caller.
                unsafe { tile.run_row::<$vector, ACROSS>() }
            }

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
