//! Operands of a product that are written to scratch memory as 32-bit lanes before the product multiplies: a made operand is evaluated
//! there, and an operand of a narrow dtype is widened. All other operands are read in place.

use super::{Matmul, ProductMethod, SharedPtr, StridedOperand};
use crate::cpu::load;
use crate::cpu::map;
use crate::cpu::runs::ElementRuns;
use crate::cpu::threads;
use crate::cpu::tile::BoundNest;
use crate::kernel::{MatmulArgs, OperandArgs};

/// An operand as 32-bit lanes in scratch memory.
#[derive(Clone, Copy)]
pub(super) enum LaneOperand {
    /// Widened: `n` elements, from `low` on.
    Widened { low: isize, n: usize },
    /// Made: all `n` elements that its map makes.
    Made { n: usize },
}

impl LaneOperand {
    /// Bytes of scratch memory that the operand takes.
    pub fn size_bytes(self) -> usize {
        let (LaneOperand::Widened { n, .. } | LaneOperand::Made { n }) = self;
        n * 4
    }
}

impl Matmul {
    /// For the left and the right operand: how it is written to scratch memory, None if it is read in place.
    pub(super) fn lane_operands(&self) -> [Option<LaneOperand>; 2] {
        let MatmulArgs { m, k, n, ref batch, ref a, ref b, .. } = self.args;
        if let ProductMethod::Bytes(_) = self.sums {
            return [None; 2];
        }
        let made = |idx: usize| self.args.n_made(idx).map(|n| LaneOperand::Made { n });
        let widened = |idx: usize, lies: &OperandArgs, rows: usize, cols: usize| {
            let is_narrow = !self.nest.code.body.inputs[idx].is_lane();
            let (low, high) = is_narrow.then(|| lies.extent(batch, rows, cols)).flatten()?;
            Some(LaneOperand::Widened { low, n: (high - low + 1) as usize })
        };
        let b = match &self.sums {
            // The GEMM widens an operand that has steps itself, while it packs or multiplies.
            ProductMethod::Gemm(gemm) if gemm.b_steps.is_some() => None,
            ProductMethod::Blocks(_) => None,
            _ => widened(1, b, k, n),
        };
        [made(0).or_else(|| widened(0, a, m, k)), made(1).or(b)]
    }

    /// Evaluates a made operand by the nest of its map, on all threads.
    ///
    /// # Safety
    /// The memory is as [`BoundNest`] says; `to` has room for all elements that the nest makes, and nobody else uses it meanwhile.
    pub unsafe fn make_operand(mut bound: BoundNest, to: *mut u8) {
        bound.outputs.clear();
        bound.outputs.push(to);
        // SAFETY: as promised by the caller.
        unsafe {
            bound.evaluate_uniforms();
            map::run(&bound);
        }
    }

    /// An operand as it is stored, or as 32-bit lanes if it is made or widened.
    ///
    /// # Safety
    /// As for [`Matmul::run`]; `lanes` has room for the lanes of the operand if it is widened, and holds them if it is made.
    pub(super) unsafe fn operand<'s>(
        &self,
        bound: &BoundNest,
        idx: usize,
        lies: &'s OperandArgs,
        lanes: *mut u8,
    ) -> StridedOperand<'s> {
        let storage = self.nest.code.body.inputs[idx];
        let to = SharedPtr(lanes.cast::<u32>());
        let (low, n) = match self.lanes[idx] {
            None => {
                let size = storage.unit_bytes();
                return StridedOperand { ptr: SharedPtr(bound.inputs[idx] as *mut u32), size, lies };
            }
            Some(LaneOperand::Made { .. }) => return StridedOperand { ptr: to, size: 4, lies },
            Some(LaneOperand::Widened { low, n }) => (low, n),
        };
        let from = SharedPtr(bound.inputs[idx] as *mut u32);
        const PIECE: usize = 64 * 1024;
        threads::for_each(n.div_ceil(PIECE), &|i| {
            let len = PIECE.min(n - i * PIECE);
            // SAFETY: the elements between the lowest and the highest are in the operand's memory.
            unsafe {
                let lanes = std::slice::from_raw_parts_mut(to.get().add(i * PIECE), len);
                load::fill(&ElementRuns::Flat(low), from.get().cast(), storage, i * PIECE, lanes);
            }
        });
        StridedOperand { ptr: SharedPtr(to.get().wrapping_offset(-low)), size: 4, lies }
    }
}
