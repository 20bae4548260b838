//! Partial results: sums over the parts into which the planner has split k, made side by side and then added up.

use super::threads;

/// Values that are added up at a time.
const PIECE: usize = 16 * 1024;

/// Memory for partial results of `len` values each: the first is where the result will be.
#[derive(Clone, Copy)]
pub struct Parts {
    pub first: *mut f32,
    pub rest: *mut f32,
    pub len: usize,
}

// SAFETY: tasks write apart.
unsafe impl Sync for Parts {}

impl Parts {
    /// Where one of them is.
    pub fn at(&self, part: usize) -> *mut f32 {
        match part {
            0 => self.first,
            _ => self.rest.wrapping_add((part - 1) * self.len),
        }
    }

    /// Adds all up into the first, in pairs, whoever computed them.
    ///
    /// # Safety
    /// `first` is valid for `len` values and `rest` for `len` of each further part; all are computed, and nobody else uses them.
    pub unsafe fn add_up(&self, n_parts: usize) {
        if n_parts == 1 {
            return;
        }
        threads::for_each(self.len.div_ceil(PIECE), &|piece| {
            let start = piece * PIECE;
            let n = PIECE.min(self.len - start);
            let mut step = 1;
            while step < n_parts {
                for part in (0..n_parts - step).step_by(2 * step) {
                    // SAFETY: parts do not overlap, and neither do pieces.
                    let [to, from] = [part, part + step]
                        .map(|part| unsafe { std::slice::from_raw_parts_mut(self.at(part).add(start), n) });
                    to.iter_mut().zip(from).for_each(|(x, y)| *x += *y);
                }
                step *= 2;
            }
        });
    }
}
