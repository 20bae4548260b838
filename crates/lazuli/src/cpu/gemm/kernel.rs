//! Tiles of results, summed up in registers: one function for each size, instruction set and way to find `b`.

use std::ops::Range;

use half::{bf16, f16};

use super::gather::Gather;
use super::winograd::{SumTransform, TileTransform, WeightTransform};
use crate::dtype::DType;
use crate::ops::Isa;
use crate::ops::math::{F32x4, Floats, prefetch, prefetch_l2};

#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16};

/// How many rows ahead `b` is asked for where it was not laid out.
const AHEAD: isize = 16;
/// The same where it lies in panels, whose rows are short.
const PREFETCH_AHEAD: isize = 48;
/// Places in a panel that a single row is multiplied with at a time: one would not keep memory busy.
const STREAMS: usize = 2;
/// Steps of each that are summed up before their sums are.
const STREAM_BLOCK: usize = 128;
/// Rows of `b` in a turn of the innermost loop.
const STEPS: usize = 4;
/// Values of what comes next that are asked for in such a turn: two cache lines, so that nine tiles ask for a whole block.
const NEXT_PER_TURN: usize = 32;
const LINE: usize = 16;

type TileFn = unsafe fn(&RegisterTile);
type GatherFn = unsafe fn(&Gather<'_>);

/// How products are made with one instruction set.
pub struct MicroKernel {
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors across a panel: the columns of a tile.
    pub across: usize,
    /// Rows of tiles: first where few are left, last where all are there.
    pub heights: [usize; 3],
    /// [`RegisterTile::run`] for each of these and one vector or more. They are functions of their own so that none lacks
    /// registers for another's sake.
    pub tiles: [&'static [TileFn]; 3],
    /// The same for those that lay out what they read for those below: whole tiles of `f32`; all of panels of `f16` and of
    /// `bf16`, which they widen. None where all read it as it lies, and so for the following.
    pub laying: [[&'static [TileFn]; 3]; 3],
    /// For those that are the first to read a panel.
    pub fresh: [&'static [TileFn]; 3],
    /// For those that read `a` by tables.
    pub listed: [&'static [TileFn]; 3],
    /// [`Gather::run`].
    pub gather: GatherFn,
    /// [`WeightTransform::run`], [`TileTransform::run`] and [`SumTransform::run`].
    pub weights: unsafe fn(&WeightTransform),
    pub tiles_in: unsafe fn(&TileTransform<'_>),
    pub tiles_out: unsafe fn(&SumTransform<'_>, &Range<usize>) -> bool,
    /// [`RegisterTile::run_row`] for `f32`, `f16` and `bf16`.
    pub rows: [&'static [TileFn]; 3],
}

/// How a tile finds `b`: laid out, as it lies, as it lies and to be laid out, in a panel that nobody has read yet, or in
/// one of narrow numbers.
const LAID: u8 = 0;
const LYING: u8 = 1;
const LAYING: u8 = 2;
const PREFETCH: u8 = 3;
const F16: u8 = 4;
const BF16: u8 = 5;
/// Laid out, and `a` is read by tables.
const LISTED: u8 = 6;

/// What suits a processor with these instructions.
pub fn kernel(isa: Isa, lies: bool) -> &'static MicroKernel {
    match (isa, lies) {
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

/// What is multiplied into one tile of the result.
///
/// The caller that runs a function of a [`MicroKernel`] on a tile promises that the processor has the function's instructions; that the
/// tile has no more rows and columns than the function is for, at least one row, and, where `b` is read in place, a column in the last
/// vector; and of the memory:
/// - `a` has `depth` values in each of `n_rows` rows; if it is read by tables, these have as many entries, which stay within `a`;
/// - `b` has `depth` rows: of `n_columns` values if `b` is read in place, else of whole vectors;
/// - functions that pack `b` have room for all of these rows, widened, at `laid`;
/// - `out` has room for `n_rows` rows of `n_columns` values, which are initialised if products are added to them;
/// - nobody writes memory that is read, nor uses memory that is written, and the two do not overlap.
pub struct RegisterTile {
    /// Rows that lie dense, so far from one another.
    pub a: *const f32,
    pub a_pitch: isize,
    /// For tiles that read `a` by tables: how far each row and each column is from `a`.
    pub a_rows: *const isize,
    pub a_columns: *const isize,
    /// `f32`; in panels also narrower.
    pub b: *const f32,
    /// From row to row where they were not laid out.
    pub b_pitch: isize,
    /// Where they are laid out, with zeros up to whole vectors.
    pub laid: *mut f32,
    pub depth: usize,
    pub out: *mut f32,
    /// From row to row of the result.
    pub pitch: usize,
    pub n_rows: usize,
    pub n_columns: usize,
    /// Whether products are added to what is there.
    pub adds: bool,
    /// For tiles that read `a` by tables: part of what later tiles read, asked for on the way, [`RegisterTile::n_asked`] values
    /// of it. It need not be memory.
    pub next: *const f32,
}

/// The place of a type in [`MicroKernel::laying`] and [`MicroKernel::rows`].
pub fn of(dtype: DType) -> usize {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

impl RegisterTile {
    /// Up to `ROWS` rows of `ACROSS` vectors. Of missing rows the last is taken, and nothing stored. A `b` that lies
    /// as it came is asked for ahead: its steps are too long to be foreseen.
    ///
    /// # Safety
    /// The processor has the instructions of `V`, for which the caller is compiled; the tile has at most `ROWS` rows
    /// and `ACROSS` vectors of columns, and the memory is as [`RegisterTile`] says.
    #[inline(always)]
    unsafe fn run<V: Floats, const ROWS: usize, const ACROSS: usize, const B: u8>(&self) {
        let mut rows = [self.a; ROWS];
        let out = |r: usize| self.out.wrapping_add(r * self.pitch);
        for r in 0..ROWS {
            let row = r.min(self.n_rows - 1);
            // SAFETY: where there is a table, it has every row.
            let at = if B == LISTED { unsafe { *self.a_rows.add(row) } } else { row as isize * self.a_pitch };
            rows[r] = self.a.wrapping_offset(at);
            for j in 0..ACROSS {
                prefetch(out(r).wrapping_add(j * V::LANES));
            }
        }
        // Where rows are laid out, their distance is part of the instructions.
        let laid_pitch = (ACROSS * V::LANES) as isize;
        let pitch = if B == LYING || B == LAYING { self.b_pitch } else { laid_pitch };
        let n_last = self.n_columns.wrapping_sub((ACROSS - 1) * V::LANES);
        // SAFETY: as promised by the caller.
        unsafe {
            let mut sums = [[V::splat(0.0); ACROSS]; ROWS];
            let (mut b, mut laid, mut l) = (self.b, self.laid, 0);
            let next = |b: *const f32, laid: *mut f32, n: usize| {
                (beyond::<B>(b, n as isize * pitch), laid.wrapping_offset(n as isize * laid_pitch))
            };
            // A few at a time: counting costs less.
            for _ in 0..self.depth / STEPS {
                for i in 0..STEPS {
                    let (b, laid) = next(b, laid, i);
                    step::<_, _, _, B>(&mut sums, &rows, self.column::<B>(l + i), b, pitch, n_last, laid);
                }
                if B == LISTED {
                    let at = self.next.wrapping_add(l / STEPS * NEXT_PER_TURN);
                    (0..NEXT_PER_TURN).step_by(LINE).for_each(|i| prefetch_l2(at.wrapping_add(i)));
                }
                (b, laid) = next(b, laid, STEPS);
                l += STEPS;
            }
            for l in l..self.depth {
                step::<_, _, _, B>(&mut sums, &rows, self.column::<B>(l), b, pitch, n_last, laid);
                (b, laid) = next(b, laid, 1);
            }
            for r in 0..ROWS {
                if r < self.n_rows {
                    self.store(out(r), &sums[r]);
                }
            }
        }
    }

    /// How many values of what comes next a tile of this depth asks for.
    fn n_asked(depth: usize) -> usize {
        depth / STEPS * NEXT_PER_TURN
    }

    /// Which part of the block after `b` the `idx`th tile asks for that reads `b`, a block of so many rows `width` apart; if
    /// others have asked for all, what is near already.
    pub fn next_of(b: *const f32, (depth, width): (usize, usize), idx: usize) -> *const f32 {
        let at = idx * RegisterTile::n_asked(depth);
        if at < depth * width { b.wrapping_add(depth * width + at) } else { b }
    }

    /// How far from the start of a row of `a` a column is.
    ///
    /// # Safety
    /// Where `a` is read by tables, the one of columns has more than `l` entries.
    #[inline(always)]
    unsafe fn column<const B: u8>(&self, l: usize) -> isize {
        // SAFETY: where there is a table, it has every column.
        if B == LISTED { unsafe { *self.a_columns.add(l) } } else { l as isize }
    }

    /// A single row, multiplied with several places of a panel at a time.
    ///
    /// # Safety
    /// As for [`RegisterTile::run`], of a single row and a `b` in panels.
    #[inline(always)]
    unsafe fn run_row<V: Floats, const ACROSS: usize, const B: u8>(&self) {
        let each = self.depth / STREAMS;
        // SAFETY: as promised by the caller.
        unsafe {
            let mut all = [V::splat(0.0); ACROSS];
            let mut first = 0;
            while first < each {
                let end = each.min(first + STREAM_BLOCK);
                let mut sums = [[V::splat(0.0); ACROSS]; STREAMS];
                for l in first..end {
                    for stream in 0..STREAMS {
                        self.add_row::<_, _, B>(&mut sums[stream], stream * each + l);
                    }
                }
                for stream in 0..STREAMS {
                    for j in 0..ACROSS {
                        all[j] = all[j].add(sums[stream][j]);
                    }
                }
                first = end;
            }
            for l in STREAMS * each..self.depth {
                self.add_row::<_, _, B>(&mut all, l);
            }
            self.store(self.out, &all);
        }
    }

    /// Adds the products of a number of the single row and a row of a panel.
    ///
    /// # Safety
    /// As for [`RegisterTile::run_row`]; `l < depth`.
    #[inline(always)]
    unsafe fn add_row<V: Floats, const ACROSS: usize, const B: u8>(&self, sums: &mut [V; ACROSS], l: usize) {
        // SAFETY: as promised by the caller.
        unsafe {
            let scale = V::splat(*self.a.add(l));
            for j in 0..ACROSS {
                let from = beyond::<B>(self.b, ((l * ACROSS + j) * V::LANES) as isize);
                sums[j] = scale.fma(load::<V, B>(from), sums[j]);
            }
        }
    }

    /// Stores a row of results, or adds it to what is there.
    ///
    /// # Safety
    /// `out` is a row of the results of this tile, as [`RegisterTile`] says; the processor has the instructions of `V`,
    /// for which the caller is compiled.
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

/// So many numbers on.
#[inline(always)]
fn beyond<const B: u8>(b: *const f32, n: isize) -> *const f32 {
    if B == F16 || B == BF16 { b.cast::<u16>().wrapping_offset(n).cast() } else { b.wrapping_offset(n) }
}

/// A vector of what is there.
///
/// # Safety
/// A vector of values is there, of the type that `B` says; the processor has the instructions of `V`, for which the
/// caller is compiled.
#[inline(always)]
unsafe fn load<V: Floats, const B: u8>(from: *const f32) -> V {
    // SAFETY: as promised by the caller.
    unsafe {
        match B {
            F16 => V::load_f16(from.cast::<f16>()),
            BF16 => V::load_bf16(from.cast::<bf16>()),
            _ => V::load(from),
        }
    }
}

/// Adds the products of a column of some rows and a row of `b`.
///
/// # Safety
/// As for [`RegisterTile::run`]: `rows` have this column; `b` is a row, and `laid` is where the row is packed, if `B` packs. Of a
/// row that is read in place, only the first `n_last` values of the last vector can be read.
#[inline(always)]
unsafe fn step<V: Floats, const ROWS: usize, const ACROSS: usize, const B: u8>(
    sums: &mut [[V; ACROSS]; ROWS],
    rows: &[*const f32; ROWS],
    column: isize,
    b: *const f32,
    pitch: isize,
    n_last: usize,
    laid: *mut f32,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let mut lanes = [V::splat(0.0); ACROSS];
        for j in 0..ACROSS {
            let from = beyond::<B>(b, (j * V::LANES) as isize);
            // A vector must not reach past the end of its row.
            let may_end = (B == LYING || B == LAYING) && j + 1 == ACROSS;
            lanes[j] = if may_end { V::load_first(from, n_last) } else { load::<V, B>(from) };
            if B != LAID && B != LISTED {
                prefetch(beyond::<B>(from, if B == LYING || B == LAYING { AHEAD } else { PREFETCH_AHEAD } * pitch));
            }
            if B == LAYING || B == F16 || B == BF16 {
                lanes[j].store(laid.add(j * V::LANES));
            }
        }
        for r in 0..ROWS {
            let scale = V::splat(*rows[r].offset(column));
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

            pub static LAID: MicroKernel = MicroKernel {
                lanes: <$vector>::LANES,
                across: [$($across),*].len(),
                heights: [$few, $half, $rows],
                tiles: [
                    &[$(tile::<$few, $across, { super::LAID }>),*],
                    &[$(tile::<$half, $across, { super::LAID }>),*],
                    &[$(tile::<$rows, $across, { super::LAID }>),*],
                ],
                laying: [
                    [&[], &[], &[$(tile::<$rows, $across, LAYING>),*]],
                    [
                        &[$(tile::<$few, $across, F16>),*],
                        &[$(tile::<$half, $across, F16>),*],
                        &[$(tile::<$rows, $across, F16>),*],
                    ],
                    [
                        &[$(tile::<$few, $across, BF16>),*],
                        &[$(tile::<$half, $across, BF16>),*],
                        &[$(tile::<$rows, $across, BF16>),*],
                    ],
                ],
                fresh: [
                    &[$(tile::<$few, $across, PREFETCH>),*],
                    &[$(tile::<$half, $across, PREFETCH>),*],
                    &[$(tile::<$rows, $across, PREFETCH>),*],
                ],
                listed: [
                    &[$(tile::<$few, $across, LISTED>),*],
                    &[$(tile::<$half, $across, LISTED>),*],
                    &[$(tile::<$rows, $across, LISTED>),*],
                ],
                gather,
                weights,
                tiles_in,
                tiles_out,
                rows: [
                    &[$(row::<$across, { super::LAID }>),*],
                    &[$(row::<$across, F16>),*],
                    &[$(row::<$across, BF16>),*],
                ],
            };

            pub static LYING: MicroKernel = MicroKernel {
                lanes: <$vector>::LANES,
                across: [$($lying),*].len(),
                heights: [$few_lying, $half_lying, $rows_lying],
                tiles: [
                    &[$(tile::<$few_lying, $lying, { super::LYING }>),*],
                    &[$(tile::<$half_lying, $lying, { super::LYING }>),*],
                    &[$(tile::<$rows_lying, $lying, { super::LYING }>),*],
                ],
                laying: [[&[]; 3]; 3],
                fresh: [&[]; 3],
                listed: [&[]; 3],
                gather,
                weights,
                tiles_in,
                tiles_out,
                rows: [&[]; 3],
            };

            /// # Safety
            /// As for [`Gather::run`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn gather(part: &Gather<'_>) {
                // SAFETY: as promised by the caller.
                unsafe { part.run::<$vector>() }
            }

            /// # Safety
            /// As for [`WeightTransform::run`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn weights(part: &WeightTransform) {
                // SAFETY: as promised by the caller.
                unsafe { part.run::<$vector>() }
            }

            /// # Safety
            /// As for [`TileTransform::run`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn tiles_in(part: &TileTransform<'_>) {
                // SAFETY: as promised by the caller.
                unsafe { part.run::<$vector>() }
            }

            /// # Safety
            /// As for [`SumTransform::run`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn tiles_out(part: &SumTransform<'_>, columns: &Range<usize>) -> bool {
                // SAFETY: as promised by the caller.
                unsafe { part.run::<$vector>(columns) }
            }

            /// # Safety
            /// As for [`RegisterTile::run_row`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn row<const ACROSS: usize, const B: u8>(tile: &RegisterTile) {
                // SAFETY: as promised by the caller.
                unsafe { tile.run_row::<$vector, ACROSS, B>() }
            }

            /// # Safety
            /// As for [`RegisterTile::run`]; the processor has these features.
            $(#[target_feature(enable = $features)])?
            unsafe fn tile<const ROWS: usize, const ACROSS: usize, const B: u8>(tile: &RegisterTile) {
                // SAFETY: as promised by the caller.
                unsafe { tile.run::<$vector, ROWS, ACROSS, B>() }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
compiled!(avx512 F32x16, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"; laid 2 4 6: 1 2 3 4; lying 2 4 8: 1 2 3);
#[cfg(target_arch = "x86_64")]
compiled!(avx2 F32x8, "avx2,fma,f16c"; laid 1 2 4: 1 2 3; lying 1 2 4: 1 2 3);
#[cfg(target_arch = "aarch64")]
compiled!(baseline F32x4; laid 2 4 8: 1 2 3; lying 2 4 8: 1 2 3);
#[cfg(not(target_arch = "aarch64"))]
compiled!(baseline F32x4; laid 1 2 4: 1 2 3; lying 1 2 4: 1 2 3);
