//! Which blocks of scores masks leave out. A mask compares values that are affine in row and column, so that what holds
//! at the corners of a block, or fails there, does so in all of it.

use super::{AttentionRun, ScoreBlock};
use crate::kernel::{InstOp, Reg};

/// What the masks say of a block.
#[derive(Clone, Copy, PartialEq)]
pub enum BlockMask {
    /// None of its scores counts.
    Nothing,
    /// Some may be masked.
    Some,
    /// All masks of indices hold.
    All,
}

impl AttentionRun<'_> {
    /// What masks of indices say of a block, from its corners.
    pub fn block_mask(&self, block: ScoreBlock) -> BlockMask {
        let fill = if self.work.is_softmax { f32::NEG_INFINITY } else { 0.0 };
        let mut holds = true;
        let mut may_skip = true;
        for mask in &self.work.masks {
            let constant = self.work.args.scores.consts[mask.fill as usize] as usize;
            may_skip &= f32::from_bits(self.constants[constant]) == fill;
            let Some(cond) = mask.cond else { continue };
            let rows = [block.row, block.row + block.n_rows - 1];
            let columns = [block.column, block.column + block.n_columns - 1];
            let corners = rows.iter().flat_map(|row| columns.iter().map(|column| (*row, *column)));
            let (mut all, mut any) = (true, false);
            for (row, column) in corners {
                match self.affine(cond, block.batch, row, column) {
                    Some(value) => {
                        all &= value != 0.0;
                        any |= value != 0.0;
                    }
                    None => (all, any) = (false, true),
                }
            }
            if !any && may_skip {
                return BlockMask::Nothing;
            }
            holds &= all;
        }
        if holds { BlockMask::All } else { BlockMask::Some }
    }

    /// A value that is affine in the indices, or a comparison of two: exact, or none if it does not fit an integer.
    fn affine(&self, reg: Reg, batch: usize, row: usize, column: usize) -> Option<f64> {
        let (body, args) = (&self.work.scores.code.body, &self.work.args.scores);
        let value = match body.insts[reg as usize].op {
            InstOp::Const(idx) => self.constants[args.consts[idx as usize] as usize] as i32 as f64,
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
        (value.abs() < i32::MAX as f64).then_some(value)
    }
}
