//! Scores into weights. An online softmax keeps the greatest score of a row so far and the sum of its exponentials, and
//! rescales both the sum and what was multiplied when a greater score comes.

use super::{AttentionRun, RowState};
use crate::cpu::chain::{self, ChainOperand, ChainWrite, Start};
use crate::cpu::fold;
use crate::cpu::tile::{Tile, Val};
use crate::ops::{MAX, ReduceLoops, ReduceRow, RegisterStep, SUM, isa, max_f32};

impl AttentionRun<'_> {
    /// Turns the scores of whole rows into weights.
    ///
    /// # Safety
    /// All are of the tile, and the state is that of its rows.
    pub unsafe fn online_softmax(
        &self,
        score: Val,
        factor: Option<Val>,
        (weights, pitch): (*mut f32, usize),
        tile: &Tile,
        state: RowState,
    ) {
        let n_values = self.args().n_values;
        // SAFETY: rows of the tile, and what is kept of them.
        unsafe {
            for row in 0..tile.rows {
                let x = score.row(row, tile.len);
                let max = max_f32(*state.max.add(row), greatest(x));
                let (old, new) = (shift(*state.max.add(row)), shift(max));
                *state.max.add(row) = max;
                let out = weights.add(row * pitch);
                let sum = exponentials(x, new, std::slice::from_raw_parts_mut(out, tile.len));
                if let Some(factor) = factor {
                    multiply(std::slice::from_raw_parts_mut(out, tile.len), factor.row(row, tile.len));
                }
                let own = state.sum.add(row);
                if old == new {
                    *own += sum;
                    continue;
                }
                let scale = self.exp(old - new);
                *own = *own * scale + sum;
                let product = std::slice::from_raw_parts_mut(state.product.add(row * n_values), n_values);
                product.iter_mut().for_each(|x| *x *= scale);
            }
        }
    }

    /// The softmax's own exponential, of one number.
    pub fn exp(&self, x: f32) -> f32 {
        let mut y = [0.0];
        exponentials(&[x.to_bits()], 0.0, &mut y);
        y[0]
    }
}

/// What is subtracted from scores whose greatest this is: no less than the least number, so that −∞ less it is −∞.
pub fn shift(max: f32) -> f32 {
    max_f32(max, f32::MIN)
}

fn reduce_loops(row: &'static ReduceRow) -> &'static ReduceLoops {
    &row.cpu.f32.as_ref().expect("maxima and sums of floats")[isa() as usize]
}

/// The greatest of some lanes; NaN if one is.
fn greatest(x: &[u32]) -> f32 {
    let loops = reduce_loops(&MAX);
    // SAFETY: the loops are those of this machine; as many lanes as there are.
    let lane = unsafe {
        match fold::folds() && x.len() > 1 {
            true => {
                let start = Start { lanes: x.as_ptr(), single: false, ahead: 0 };
                fold::fold(start, &[], std::ptr::null_mut(), x.len(), (RegisterStep::Max, loops))
            }
            false => (loops.fold)(x),
        }
    };
    f32::from_bits(lane)
}

/// `out[i] = exp(x[i] − shift)`; gives their sum. A single lane stands for all.
fn exponentials(x: &[u32], shift: f32, out: &mut [f32]) -> f32 {
    let shift = shift.to_bits();
    let steps = [
        ChainOperand::new(RegisterStep::Sub, false, Some(&Val::one(&shift))),
        ChainOperand::new(RegisterStep::Exp, false, None),
    ];
    let loops = reduce_loops(&SUM);
    let start = Start { lanes: x.as_ptr(), single: x.len() < out.len(), ahead: 0 };
    // SAFETY: floats and lanes are of one size; the loops are those of this machine.
    unsafe {
        let lanes = std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u32>(), out.len());
        if fold::folds() && !start.single {
            let sum = fold::fold(start, &steps, lanes.as_mut_ptr(), lanes.len(), (RegisterStep::Add, loops));
            return f32::from_bits(sum);
        }
        chain::run(start, &steps, lanes, ChainWrite::Cached);
        f32::from_bits((loops.fold)(lanes))
    }
}

/// `x[i] · y[i]`, or of a single `y`.
fn multiply(x: &mut [f32], y: &[u32]) {
    match y {
        [y] => x.iter_mut().for_each(|x| *x *= f32::from_bits(*y)),
        _ => x.iter_mut().zip(y).for_each(|(x, y)| *x *= f32::from_bits(*y)),
    }
}

/// Scores as weights, times the factor.
///
/// # Safety
/// All are of the tile.
pub unsafe fn copy_weights(score: Val, factor: Option<Val>, (weights, pitch): (*mut f32, usize), tile: &Tile) {
    for row in 0..tile.rows {
        // SAFETY: as promised by the caller.
        unsafe {
            let out = std::slice::from_raw_parts_mut(weights.add(row * pitch), tile.len);
            match score.row(row, tile.len) {
                [x] => out.fill(f32::from_bits(*x)),
                lanes => out.iter_mut().zip(lanes).for_each(|(out, x)| *out = f32::from_bits(*x)),
            }
            if let Some(factor) = factor {
                multiply(out, factor.row(row, tile.len));
            }
        }
    }
}
