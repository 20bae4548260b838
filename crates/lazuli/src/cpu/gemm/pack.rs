//! Laying out panels of an operand whose rows do not lie dense, whose numbers are narrow, or which is read by lists of axes.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::gather::Gather;
use super::{DEPTH, F32, Gemm, GemmTiling};
use crate::blocks::ROWS;
use crate::cpu::blocks::BlockMatrix;
use crate::cpu::load;
use crate::cpu::runs::ElementRuns;
use crate::cpu::transpose::{SIDE, STRIP, rows_of, square, strip, strips};
use crate::ops::math::prefetch;

/// Rows of what lies by columns that are laid out at a time.
const TURNED: usize = 32;
/// Narrow columns that are laid out at a time.
const WIDENED: usize = 16;
/// Columns of blocks that are widened at a time.
const MAX_COLUMNS: usize = 64;

impl GemmTiling<'_> {
    /// Lays out some rows of a panel of `b`, with zeros up to whole vectors.
    ///
    /// # Safety
    /// `isa` and `b` are as [`Gemm`] says; rows and panel are some of `b`; `to` has room for as many rows of the
    /// panel's width, used by nobody else.
    pub unsafe fn lay_out(&self, rows: Range<usize>, panel: usize, to: *mut f32) {
        let x = self.x;
        let columns = self.columns(panel..panel + 1);
        let (depth, pitch) = (rows.len(), self.width(&columns));
        let first = x.b(rows.start, panel, columns.start);
        // SAFETY: as promised by the caller.
        unsafe {
            if let Some(matrix) = self.lists.b {
                let from = x.b.cast::<f32>();
                (self.kernel.gather)(&Gather { from, matrix, rows, cols: columns.clone(), to, pitch });
            } else if x.b_storage == F32 && x.b_steps.is_some_and(|steps| steps.1 == 1) {
                let (from, down) = (x.b.cast::<f32>().offset(first), x.b_steps.map_or(0, |steps| steps.0));
                (0..depth).for_each(|l| {
                    let from = from.wrapping_offset(l as isize * down);
                    to.add(l * pitch).copy_from_nonoverlapping(from, columns.len())
                });
            } else if x.b_storage == F32 {
                turn(x.b.cast::<f32>().offset(first), x.b_steps.unwrap_or((0, 0)), (depth, columns.len()), to, pitch);
            } else if !self.widen_tiles(rows, columns.clone(), to, pitch) {
                self.widen(first, (depth, columns.len()), to, pitch);
            }
            if pitch > columns.len() {
                (0..depth).for_each(|l| to.add(l * pitch + columns.len()).write_bytes(0, pitch - columns.len()));
            }
        }
    }

    /// Widens tiles of blocks, of which rows or columns of the operand are rows; false if it does not lie so.
    ///
    /// # Safety
    /// As for [`GemmTiling::lay_out`]: `to` has room for these rows, `pitch` apart.
    unsafe fn widen_tiles(&self, rows: Range<usize>, columns: Range<usize>, to: *mut f32, pitch: usize) -> bool {
        let (x, Some(blocks)) = (self.x, self.x.b_storage.blocks()) else { return false };
        let Some(matrix) = BlockMatrix::new(blocks, x.b, x.b_first as usize) else { return false };
        let down = blocks.row_len as isize;
        // SAFETY: as promised by the caller.
        unsafe {
            match x.b_steps {
                Some((1, across)) if across == down => matrix.widen(x.isa, rows, columns, to, pitch),
                Some((along, 1)) if along == down => {
                    // Some rows as columns, which are then turned.
                    let mut tile = [MaybeUninit::<f32>::uninit(); ROWS * MAX_COLUMNS];
                    let tile: *mut f32 = tile.as_mut_ptr().cast();
                    let mut row = rows.start;
                    while row < rows.end {
                        let n = (ROWS - row % ROWS).min(rows.end - row);
                        for first in columns.clone().step_by(MAX_COLUMNS) {
                            let part = first..columns.end.min(first + MAX_COLUMNS);
                            matrix.widen(x.isa, part.clone(), row..row + n, tile, ROWS);
                            let to = to.add((row - rows.start) * pitch + first - columns.start);
                            turn(tile, (1, ROWS as isize), (n, part.len()), to, pitch);
                        }
                        row += n;
                    }
                }
                _ => return false,
            }
        }
        true
    }

    /// Copies a matrix of narrow numbers.
    ///
    /// # Safety
    /// `b` is as [`Gemm`] says, and has these rows and columns from `first` on; `to` has room for them, rows `pitch`
    /// apart.
    unsafe fn widen(&self, first: isize, (n_rows, n_columns): (usize, usize), to: *mut f32, pitch: usize) {
        let Gemm { b, b_storage, b_first, b_steps, .. } = *self.x;
        let b_steps = b_steps.unwrap_or((0, 0));
        let run = |at: isize, step: isize, n: usize, to: *mut f32| {
            let walk = ElementRuns::strided([(n, step)].into_iter(), b_first + at);
            // SAFETY: as promised by the caller.
            unsafe { load::fill(&walk, b, b_storage, 0, std::slice::from_raw_parts_mut(to.cast(), n)) };
        };
        // SAFETY: as promised by the caller.
        unsafe {
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
///
/// # Safety
/// `from` is valid for reading all rows and columns with these steps, and `to` for writing them with rows `pitch` apart,
/// which do not overlap; `from` and `to` do not overlap either.
pub unsafe fn turn(
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
            let strips = strips(columns);
            for column in (0..strips).step_by(STRIP) {
                (column..column + STRIP).for_each(|column| prefetch(at(first + TURNED, column)));
                let to = to.add(first * pitch + column);
                strip((at(first, column), steps.1), (TURNED.min(rows - first), 1), (to, pitch));
            }
            for column in (strips..columns).step_by(SIDE) {
                (column..column + SIDE).for_each(|column| prefetch(at(first + TURNED, column)));
                for row in (first..rows.min(first + TURNED)).step_by(SIDE) {
                    let from = rows_of(at(row, column).cast(), steps.1);
                    square(from, to.add(row * pitch + column).cast(), pitch as isize);
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

/// Writes the columns of a matrix in a near cache, whose rows are `from_pitch` apart, as rows. Each is written to its end before
/// others are begun: rows that are far apart share few sets of a cache.
///
/// # Safety
/// `from` is valid for reading `n_columns` rows of `n_rows` values, `from_pitch` apart, and `to` for writing `n_rows`
/// rows of `n_columns`, `pitch` apart; the two do not overlap.
pub unsafe fn turn_near(
    from: *const f32,
    from_pitch: usize,
    (n_rows, n_columns): (usize, usize),
    to: *mut f32,
    pitch: usize,
) {
    let (rows, columns) = (n_rows / SIDE * SIDE, strips(n_columns));
    // SAFETY: as promised by the caller.
    unsafe {
        if columns > 0 {
            strip((from, from_pitch as isize), (rows, columns / STRIP), (to, pitch));
        }
        let rest = from.wrapping_add(columns * from_pitch);
        turn(rest, (1, from_pitch as isize), (rows, n_columns - columns), to.wrapping_add(columns), pitch);
        let rest = from.wrapping_add(rows);
        turn(rest, (1, from_pitch as isize), (n_rows - rows, n_columns), to.wrapping_add(rows * pitch), pitch);
    }
}
