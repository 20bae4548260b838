//! Products whose right operand is read by lists of axes, such as the windows of images: the weights are packed, or
//! transformed for Winograd, and the epilogue is applied to each block of sums while it is in cache (implicit GEMM).

use std::ops::Range;

use super::epilogue::{BlockSums, Epilogue};
use super::{Matmul, MatmulScratch, ProductMethod, SharedPtr, StridedOperand};
use crate::cpu::gemm::{ImplicitMemory, ImplicitOut, PackBuffers, WinogradMemory};
use crate::cpu::tile::BoundNest;
use crate::kernel::MatmulArgs;

impl Matmul {
    /// Packs the left operand unless it is kept so, then makes the sums of all matrices.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub(super) unsafe fn run_implicit(
        &self,
        bound: &BoundNest,
        [a, b]: [StridedOperand; 2],
        sums: SharedPtr,
        scratch: &MatmulScratch,
        kept: *const f32,
    ) {
        let MatmulArgs { m, n, ref batch, .. } = self.args;
        let own: *mut f32 = scratch.packed.cast();
        let packed = if kept.is_null() { own.cast_const() } else { kept };
        let rooms = PackBuffers { first: scratch.rooms.cast(), size: self.room };
        let epilogue = Epilogue { tiles: self.epilogue, bound, sums };
        let results = |image: usize| sums.get().wrapping_add(image * m * n).cast();
        let map = |image: usize, rows, columns: Range<usize>, first: *const f32| {
            let sums = BlockSums { first: first.cast(), pitch: columns.len() };
            // SAFETY: as promised by the caller.
            unsafe { epilogue.map_block(image * m * n, rows, columns, sums) };
        };
        let out = if self.bare { ImplicitOut::Results(&results) } else { ImplicitOut::Blocks(&map) };
        let image = |image: usize| b.matrix(batch, image, 0).cast();
        let weights: *const f32 = a.matrix(batch, 0, 0).cast();
        let tasks = self.tasks.grid(m, !kept.is_null());
        // SAFETY: as promised by the caller.
        unsafe {
            match &self.sums {
                ProductMethod::Implicit(gemm) => {
                    if kept.is_null() {
                        gemm.pack(weights, a.lies, own);
                    }
                    let table = own.wrapping_add(gemm.packed_len()).cast();
                    gemm.run(ImplicitMemory { packed, table, b: b.lies, rooms }, tasks, &image, out);
                }
                ProductMethod::Winograd(gemm) => {
                    if kept.is_null() {
                        gemm.pack(weights, a.lies, own);
                    }
                    let table = own.wrapping_add(gemm.packed_len()).cast();
                    let memory = WinogradMemory { a: weights, a_lies: a.lies, packed, table, b: b.lies, rooms };
                    gemm.run(memory, tasks, &image, out);
                }
                _ => unreachable!("called for products that read windows in place"),
            }
        }
    }
}
