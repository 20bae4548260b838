//! Products of a few rows with blocks: one, or several that share their left operand, whose rows are then shared out among threads
//! together.

use smallvec::SmallVec;

use super::{Matmul, MatmulScratch, ProductMethod, SharedPtr};
use crate::cpu::blocks::{BlockMatrix, BlockProduct, GemvMemory, run_together};
use crate::cpu::tile::BoundNest;

impl Matmul {
    /// Whether it is of a few rows with blocks.
    pub fn reads_blocks(&self) -> bool {
        matches!(self.sums, ProductMethod::Blocks(_))
    }

    /// Runs products of a few rows with blocks, and what the kernels do with their sums. Sums of each that have no place in an
    /// output follow those of the one before it. If left operands differ, does nothing and says so.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub unsafe fn run_blocks(parts: &[(&Matmul, BoundNest)], mut scratch: MatmulScratch) -> bool {
        let mut products: SmallVec<[BlockProduct; 4]> = SmallVec::new();
        for (matmul, bound) in parts {
            // SAFETY: as promised by the caller.
            products.push(unsafe { matmul.block_product(bound, &scratch) });
            scratch.sums = scratch.sums.wrapping_add(matmul.sums_bytes());
        }
        if !products.iter().all(|product| product.shares_digits(&products[0])) {
            return false;
        }
        // SAFETY: as promised by the caller.
        unsafe {
            run_together(&products);
            for ((matmul, bound), product) in parts.iter().zip(&products) {
                matmul.follow(bound, SharedPtr(product.memory.out.cast()), 0, matmul.args.m);
            }
        }
        true
    }

    /// Runs one such product.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub(super) unsafe fn run_block(&self, bound: &BoundNest, scratch: &MatmulScratch) {
        // SAFETY: as promised by the caller.
        unsafe {
            let product = self.block_product(bound, scratch);
            run_together(&[product]);
            self.follow(bound, SharedPtr(product.memory.out.cast()), 0, self.args.m);
        }
    }

    /// Such a product and its memory. Its left operand is widened if it is narrow.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    unsafe fn block_product(&self, bound: &BoundNest, scratch: &MatmulScratch) -> BlockProduct<'_> {
        let ProductMethod::Blocks(gemv) = &self.sums else { unreachable!("called for products with blocks") };
        let first = self.args.b.matrix(&self.args.batch, 0) as usize;
        let storage = self.nest.code.body.inputs[1].blocks();
        let Some(b) = storage.and_then(|blocks| BlockMatrix::new(blocks, bound.inputs[1], first)) else {
            unreachable!("blocks from a tile's first row on")
        };
        // SAFETY: as promised by the caller.
        unsafe {
            let a = self.operand(bound, 0, &self.args.a, scratch.a);
            let a_pitch = a.lies.steps().map_or(0, |steps| steps.0);
            let (a, out) = (a.matrix(&self.args.batch, 0, 0).cast(), self.sums_at(bound, scratch).cast());
            BlockProduct { gemv, memory: GemvMemory { a, a_pitch, b, out, digits: scratch.packed } }
        }
    }
}
