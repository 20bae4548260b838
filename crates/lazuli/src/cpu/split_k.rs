//! Partial results: sums over the parts into which the planner has split k, made side by side and then added up.

use std::ops::Range;

use super::threads;

/// Values that are added up at a time.
const PIECE: usize = 16 * 1024;

/// Is called with rows and columns whose sums are final, by the thread that has made them.
pub type HandOver<'a> = &'a (dyn Fn(Range<usize>, Range<usize>) + Sync);

/// Memory for partial results, a dense matrix each: the first is where the result will be.
#[derive(Clone, Copy)]
pub struct Parts {
    pub first: *mut f32,
    pub rest: *mut f32,
    pub n_rows: usize,
    pub n_columns: usize,
}

// SAFETY: tasks write apart.
unsafe impl Sync for Parts {}

impl Parts {
    /// Where one of them is.
    pub fn at(&self, part: usize) -> *mut f32 {
        match part {
            0 => self.first,
            _ => self.rest.wrapping_add((part - 1) * self.n_rows * self.n_columns),
        }
    }

    /// Adds all up into the first, in pairs, whoever computed them. Who has added up some rows and columns hands them over.
    ///
    /// # Safety
    /// There are so many, and nobody else uses them.
    pub unsafe fn add_up(&self, n_parts: usize, finished: HandOver) {
        let &Parts { n_rows, n_columns, .. } = self;
        // Either a piece has some rows, or a part of one.
        let (n_across, rows_a_piece) = (n_columns.div_ceil(PIECE), (PIECE / n_columns.max(1)).max(1));
        threads::for_each(n_rows.div_ceil(rows_a_piece) * n_across, &|piece| {
            let (first, across) = (piece / n_across * rows_a_piece, piece % n_across);
            let rows = first..n_rows.min(first + rows_a_piece);
            let columns = n_columns * across / n_across..n_columns * (across + 1) / n_across;
            // Whole rows follow each other.
            let (start, n) = (first * n_columns + columns.start, rows.len() * columns.len());
            let mut step = 1;
            while step < n_parts {
                for part in (0..n_parts - step).step_by(2 * step) {
                    // SAFETY: parts are apart, and so are pieces.
                    let [to, from] = [part, part + step]
                        .map(|part| unsafe { std::slice::from_raw_parts_mut(self.at(part).add(start), n) });
                    to.iter_mut().zip(from).for_each(|(x, y)| *x += *y);
                }
                step *= 2;
            }
            finished(rows, columns);
        });
    }
}
