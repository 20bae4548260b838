//! Copying part of an operand whose rows or columns are lists of axes, such as windows of an image, into the order in which
//! tiles read it: this is where an implicit GEMM differs from a plain one. Runs along the fastest axis of the columns are
//! copied by vectors; where the rows' fastest axis is dense instead, squares are transposed.

use std::ops::Range;

use crate::cpu::transpose::{SIDE, square};
use crate::kernel::AxisList;
use crate::ops::math::Floats;

/// Runs of columns that are found before rows are copied.
const MAX_RUNS: usize = 128;

/// A matrix whose rows and columns are lists of axes.
#[derive(Clone, Copy)]
pub struct ListedMatrix<'a> {
    pub rows: &'a AxisList,
    pub cols: &'a AxisList,
    /// Which of the list's rows counts as the first.
    pub first_row: usize,
}

/// Part of a matrix and where it goes.
pub struct Gather<'a> {
    pub from: *const f32,
    pub matrix: ListedMatrix<'a>,
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub to: *mut f32,
    /// From row to row of what is written.
    pub pitch: usize,
}

/// Columns that follow each other along one axis.
#[derive(Clone, Copy, Default)]
struct ColumnRun {
    at: isize,
    to: usize,
    len: usize,
}

impl Gather<'_> {
    /// Copies it.
    ///
    /// # Safety
    /// The part is within its memory, the destination has room for it, and the two do not overlap; the processor has the instructions of
    /// `V`, for which the caller is compiled.
    #[inline(always)]
    pub unsafe fn run<V: Floats>(&self) {
        let ListedMatrix { rows, cols, first_row } = self.matrix;
        let first = first_row + self.rows.start;
        let (_, row_step) = rows.run(first, 1);
        let (_, step) = cols.run(self.cols.start, 1);
        // SAFETY: as promised by the caller.
        unsafe {
            if step != 1 && row_step == 1 && self.cols.len() > 1 {
                return self.transposed(first);
            }
            let mut runs = [ColumnRun::default(); MAX_RUNS];
            let mut col = self.cols.start;
            while col < self.cols.end {
                let mut n_runs = 0;
                while col < self.cols.end && n_runs < MAX_RUNS {
                    let (len, _) = cols.run(col, self.cols.end - col);
                    runs[n_runs] = ColumnRun { at: cols.at(col), to: col - self.cols.start, len };
                    (n_runs, col) = (n_runs + 1, col + len);
                }
                for (row, at) in rows.offsets(first).take(self.rows.len()).enumerate() {
                    let (from, to) = (self.from.wrapping_offset(at), self.to.add(row * self.pitch));
                    for run in &runs[..n_runs] {
                        copy::<V>(from.wrapping_offset(run.at), step, to.add(run.to), run.len);
                    }
                }
            }
        }
    }

    /// Where rows follow each other in memory: four columns at a time, read along them.
    ///
    /// # Safety
    /// As for [`Gather::run`]; rows follow each other in memory.
    #[inline(always)]
    unsafe fn transposed(&self, first: usize) {
        let ListedMatrix { rows, cols, .. } = self.matrix;
        let n_cols = self.cols.len();
        let mut columns = cols.offsets(self.cols.start);
        // SAFETY: as promised by the caller.
        unsafe {
            for col in (0..n_cols).step_by(SIDE) {
                let n = SIDE.min(n_cols - col);
                let mut at = [0isize; SIDE];
                at.iter_mut().take(n).for_each(|at| *at = columns.next().unwrap_or(0));
                let mut row = 0;
                while row < self.rows.len() {
                    let (len, _) = rows.run(first + row, self.rows.len() - row);
                    let from = self.from.wrapping_offset(rows.at(first + row));
                    let to = self.to.add(row * self.pitch + col);
                    let whole = if n == SIDE { len / SIDE * SIDE } else { 0 };
                    for i in (0..whole).step_by(SIDE) {
                        let columns = at.map(|at| from.wrapping_offset(at + i as isize).cast());
                        square(columns, to.add(i * self.pitch).cast(), self.pitch as isize);
                    }
                    for i in whole..len {
                        for (j, at) in at.iter().enumerate().take(n) {
                            *to.add(i * self.pitch + j) = *from.wrapping_offset(at + i as isize);
                        }
                    }
                    row += len;
                }
            }
        }
    }
}

/// Copies so many numbers that are `step` apart.
///
/// # Safety
/// `from` is valid for `n` values `step` apart and `to` for `n` values, and they do not overlap; the processor has the
/// instructions of `V`, for which the caller is compiled.
#[inline(always)]
unsafe fn copy<V: Floats>(from: *const f32, step: isize, to: *mut f32, n: usize) {
    // SAFETY: as promised by the caller.
    unsafe {
        match step {
            1 => {
                let mut at = 0;
                while at + V::LANES <= n {
                    V::load(from.add(at)).store(to.add(at));
                    at += V::LANES;
                }
                if at < n {
                    V::load_first(from.add(at), n - at).store_first(to.add(at), n - at);
                }
            }
            2 => {
                let mut at = 0;
                while at + V::LANES <= n {
                    V::load_even(from.add(2 * at)).store(to.add(at));
                    at += V::LANES;
                }
                (at..n).for_each(|i| *to.add(i) = *from.add(2 * i));
            }
            _ => (0..n).for_each(|i| *to.add(i) = *from.offset(step * i as isize)),
        }
    }
}
