//! Which columns of a block of scores masks leave out. A mask compares values that are affine in row and column, so that a
//! comparison that holds at the corners of a block, or fails there, does so in all of it.

use std::ops::Range;

use smallvec::SmallVec;

use super::AttentionRun;
use crate::dtype::DType;
use crate::kernel::{InstOp, Reg};
use crate::ops::BinaryRow;

/// Below this, an f32 holds every whole number.
const WHOLE_FLOATS: f64 = 16_777_216.0;

/// A comparison of two values that are affine in row and column, for one batch index: their values at row and column 0
/// and what a row and a column add. Exact: they are integers of 32 bits, or whole numbers that a float holds.
#[derive(Clone, Copy)]
pub struct AffineCond {
    compare: &'static BinaryRow,
    sides: [[f64; 3]; 2],
}

impl AffineCond {
    fn holds(&self, row: usize, column: usize) -> bool {
        let at = |[start, by_row, by_column]: [f64; 3]| start + by_row * row as f64 + by_column * column as f64;
        (self.compare.oracle)(at(self.sides[0]), at(self.sides[1])) != 0.0
    }

    /// The columns of a row for which it holds, of some of them: as it is affine, they are the first or the last.
    fn visible(&self, row: usize, columns: Range<usize>) -> Range<usize> {
        let last = columns.end - 1;
        let (first_holds, last_holds) = (self.holds(row, columns.start), self.holds(row, last));
        if first_holds == last_holds {
            return if first_holds { columns } else { columns.start..columns.start };
        }
        // Where it changes: `low` is as the first column, `high` as the last.
        let (mut low, mut high) = (columns.start, last);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.holds(row, middle) == first_holds { low = middle } else { high = middle }
        }
        if first_holds { columns.start..high } else { high..columns.end }
    }
}

/// The masks of a batch index: their conditions, and whether all choose what makes a weight 0.
pub struct BatchMasks {
    conds: SmallVec<[AffineCond; 2]>,
    /// Whether scores where a condition fails are −∞ (or 0 without a softmax), whatever other masks say.
    pub is_neutral: bool,
    /// Whether all conditions are among `conds`: what does not fit an integer is left to the instructions.
    is_known: bool,
    /// The score that has no influence.
    pub fill: f32,
}

impl BatchMasks {
    /// The columns that some of the rows may see, of some of them: the masks hide all others. What a row may see of a
    /// half-plane begins or ends the further on the further down it is, so the first row and the last tell for all.
    pub fn seen(&self, rows: Range<usize>, columns: Range<usize>) -> Range<usize> {
        let mut seen = columns;
        for cond in self.conds.iter().filter(|_| self.is_neutral) {
            let [first, last] = [rows.start, rows.end - 1].map(|row| cond.visible(row, seen.clone()));
            seen = match (first.is_empty(), last.is_empty()) {
                (true, _) => last,
                (_, true) => first,
                _ => first.start.min(last.start)..first.end.max(last.end),
            };
            if seen.is_empty() {
                break;
            }
        }
        seen
    }

    /// Whether all masks of indices hold in a block of these rows and columns.
    pub fn hold(&self, rows: Range<usize>, columns: Range<usize>) -> bool {
        let corners = [rows.start, rows.end - 1]
            .into_iter()
            .flat_map(|row| [columns.start, columns.end - 1].map(|column| (row, column)));
        self.is_known && corners.into_iter().all(|(row, column)| self.conds.iter().all(|c| c.holds(row, column)))
    }

    /// Hides scores of a row that is made without masks: `scores` are those of columns `first…`.
    pub fn hide(&self, row: usize, first: usize, scores: &mut [f32]) {
        for cond in &self.conds {
            let seen = cond.visible(row, first..first + scores.len());
            scores[..seen.start - first].fill(self.fill);
            scores[seen.end - first..].fill(self.fill);
        }
    }
}

impl AttentionRun<'_> {
    /// The masks of every batch index, or one for all of them if no condition depends on the batch index.
    pub fn batch_masks(&self) -> SmallVec<[BatchMasks; 1]> {
        let n_batch = self.args().batch.iter().product::<usize>();
        let by_batch = self.work.masks.iter().filter_map(|mask| mask.cond).any(|cond| self.depends_on_batch(cond));
        (0..if by_batch { n_batch } else { 1 }).map(|batch| self.masks_of(batch)).collect()
    }

    /// The masks of indices for a batch index.
    fn masks_of(&self, batch: usize) -> BatchMasks {
        let fill = if self.work.is_softmax { f32::NEG_INFINITY } else { 0.0 };
        let consts = &self.work.args.scores.consts;
        let is_fill = |idx: u16| f32::from_bits(self.constants[consts[idx as usize] as usize]) == fill;
        let mut masks = BatchMasks { conds: SmallVec::new(), is_neutral: true, is_known: true, fill };
        for mask in &self.work.masks {
            masks.is_neutral &= is_fill(mask.fill);
            let cond = mask.cond.map(|cond| self.affine_cond(cond, batch));
            match cond {
                Some(Some(cond)) => masks.conds.push(cond),
                Some(None) => (masks.is_neutral, masks.is_known) = (false, false),
                None => {}
            }
        }
        masks
    }

    fn affine_cond(&self, cond: Reg, batch: usize) -> Option<AffineCond> {
        let InstOp::Binary(compare, x, y) = self.work.scores.code.body.insts[cond as usize].op else { return None };
        let (n_rows, n_columns) = (self.args().n_rows, self.args().n_columns);
        let side = |reg: Reg| {
            // Within bounds at all corners of the launch, and so everywhere.
            self.affine(reg, batch, n_rows - 1, n_columns - 1)?;
            let start = self.affine(reg, batch, 0, 0)?;
            let row = self.affine(reg, batch, n_rows - 1, 0)? - start;
            let column = self.affine(reg, batch, 0, n_columns - 1)? - start;
            let by = |all: f64, n: usize| if n > 1 { all / (n - 1) as f64 } else { 0.0 };
            Some([start, by(row, n_rows), by(column, n_columns)])
        };
        Some(AffineCond { compare, sides: [side(x)?, side(y)?] })
    }

    /// Whether a value differs from batch index to batch index.
    fn depends_on_batch(&self, reg: Reg) -> bool {
        match self.work.scores.code.body.insts[reg as usize].op {
            InstOp::Index { access } => match self.work.args.scores.accesses[access as usize].strided() {
                Some(view) => view.strides[..self.args().batch.len()].iter().any(|stride| *stride != 0),
                None => true,
            },
            InstOp::Binary(_, x, y) => self.depends_on_batch(x) || self.depends_on_batch(y),
            InstOp::Cast(x) => self.depends_on_batch(x),
            InstOp::Const(_) => false,
            _ => true,
        }
    }

    /// A value that is affine in the indices: exact, or none if it does not fit an integer, or is no whole number that a
    /// float holds exactly.
    fn affine(&self, reg: Reg, batch: usize, row: usize, column: usize) -> Option<f64> {
        let (body, args) = (&self.work.scores.code.body, &self.work.args.scores);
        let inst = &body.insts[reg as usize];
        let is_float = inst.dtype == DType::F32;
        let value = match inst.op {
            InstOp::Const(idx) => match self.constants[args.consts[idx as usize] as usize] {
                bits if is_float => f64::from(f32::from_bits(bits)),
                bits => f64::from(bits as i32),
            },
            InstOp::Cast(x) => self.affine(x, batch, row, column)?,
            InstOp::Index { access } => {
                let view = args.accesses[access as usize].strided()?;
                let mut at = view.offset;
                let mut rest = batch;
                for (axis, size) in self.args().batch.iter().enumerate().rev() {
                    at += (rest % size) as isize * view.strides[axis];
                    rest /= size;
                }
                let rank = self.args().batch.len();
                at += row as isize * view.strides[rank] + column as isize * view.strides[rank + 1];
                at as f64
            }
            InstOp::Binary(row_of, x, y) => {
                (row_of.oracle)(self.affine(x, batch, row, column)?, self.affine(y, batch, row, column)?)
            }
            _ => return None,
        };
        let end = if is_float { WHOLE_FLOATS } else { f64::from(i32::MAX) };
        (value.abs() < end && value.fract() == 0.0).then_some(value)
    }
}
