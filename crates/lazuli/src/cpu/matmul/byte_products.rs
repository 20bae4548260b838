//! Integer products whose operands are stored as bytes: the right one is packed unless its packed form is kept,
//! and the epilogue is applied to each block of sums while it is in cache.

use std::ops::Range;

use super::epilogue::{BlockSums, Epilogue};
use super::{Matmul, MatmulScratch, SharedPtr};
use crate::blocks::Storage;
use crate::cpu::byte_gemm::{ByteGemm, ByteMemory, ByteOut, ByteResults};
use crate::cpu::gemm::PackBuffers;
use crate::cpu::tile::BoundNest;
use crate::dtype::{DType, Lane};
use crate::kernel::MatmulArgs;

/// How bytes of an operand are stored.
pub(super) const BYTES: Storage = Storage::Plain(DType::U8);

/// Whether a product with sums of this kind multiplies operands stored so as bytes.
pub(super) fn multiplies_bytes(lane: Lane, inputs: &[Storage]) -> bool {
    lane != Lane::F32 && inputs[0] == BYTES && inputs[1] == BYTES
}

impl Matmul {
    /// Makes the sums of all matrices and maps them, on the threads this is called in.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub(super) unsafe fn run_bytes(
        &self,
        gemm: &ByteGemm,
        bound: &BoundNest,
        sums: SharedPtr,
        scratch: &MatmulScratch,
        kept: *const f32,
    ) {
        let MatmulArgs { m, n, ref batch, ref a, ref b, .. } = self.args;
        let own = scratch.packed;
        let packed = if kept.is_null() { own.cast_const() } else { kept.cast() };
        let rooms = PackBuffers { first: scratch.rooms.cast(), size: self.room };
        let epilogue = Epilogue { tiles: self.epilogue, bound, sums };
        for image in 0..self.n_batch() {
            let left = bound.inputs[0].wrapping_offset(a.matrix(batch, image));
            let right = bound.inputs[1].wrapping_offset(b.matrix(batch, image));
            let start = image * m * n;
            let map = |rows: Range<usize>, columns: Range<usize>, first: *const u32| {
                let sums = BlockSums { first, pitch: columns.len() };
                // SAFETY: as promised by the caller.
                unsafe { epilogue.map_block(start, rows, columns, sums) };
            };
            let results = ByteResults(sums.get().wrapping_add(start).cast());
            let out = if self.bare { ByteOut::Results(results) } else { ByteOut::Blocks(&map) };
            // SAFETY: as promised by the caller.
            unsafe {
                if kept.is_null() && (image == 0 || !b.is_shared(batch)) {
                    gemm.pack(right, b, own);
                }
                let tasks = self.tasks.grid(m, !kept.is_null());
                gemm.run(ByteMemory { a: left, a_lies: a, packed, rooms }, tasks, out);
            }
        }
    }
}
