//! Which operand of a product is worth keeping packed, and packing it as a whole. Knows sizes and how operands lie; what is
//! kept, and for how long, is `packed.rs`'s business.

use super::byte_products::BYTES;
use super::{Matmul, ProductMethod};
use crate::blocks::Storage;
use crate::cpu::gemm::{Gemm, GemmLists, ListedMatrix, MAX_USES_PACKED_FIRST};
use crate::cpu::packed::{PackedKey, PackedLayout};
use crate::dtype::DType;
use crate::kernel::{MatmulArgs, OperandArgs};

/// Weights that are used more often than this are not worth keeping transformed: that costs more than packing.
const MAX_USES_TRANSFORMED: usize = 4 * MAX_USES_PACKED_FIRST;

/// An operand that may be kept packed.
pub struct PackableOperand {
    /// Which operand it is.
    pub idx: usize,
    pub key: PackedKey,
    /// Words of four bytes of the packed form.
    pub n_values: usize,
}

impl Matmul {
    /// The operand that is worth keeping packed: one for all matrices, none of whose elements would be there twice.
    pub(super) fn packable_operand(&self) -> Option<PackableOperand> {
        let MatmulArgs { m, n, k, ref batch, ref a, ref b, .. } = self.args;
        let (idx, lies, n_values, max_uses) = match &self.sums {
            ProductMethod::Implicit(gemm) => (0, a, gemm.packed_len(), MAX_USES_PACKED_FIRST),
            ProductMethod::Winograd(gemm) => (0, a, gemm.packed_len(), MAX_USES_TRANSFORMED),
            ProductMethod::Gemm(gemm) => (1, b, gemm.packed_len(), gemm.max_uses_of_kept()?),
            ProductMethod::Bytes(gemm) => (1, b, gemm.packed_len(), MAX_USES_PACKED_FIRST),
            _ => return None,
        };
        let (layout, storage) = match self.sums {
            ProductMethod::Winograd(_) => (PackedLayout::Winograd, Storage::Plain(DType::F32)),
            ProductMethod::Bytes(_) => (PackedLayout::Bytes, BYTES),
            _ => (PackedLayout::Panels, Storage::Plain(DType::F32)),
        };
        let (rows, cols, n, n_uses) =
            if idx == 0 { (&lies.cols, &lies.rows, m, n) } else { (&lies.rows, &lies.cols, n, m) };
        let (low, high) = if idx == 0 { lies.extent(&[], n, k) } else { lies.extent(&[], k, n) }?;
        let is_dense = (high - low + 1) as usize >= k.saturating_mul(n);
        let is_worth_it = n_uses.saturating_mul(self.n_batch()) <= max_uses;
        let is_stored = self.made[idx].is_none() && self.nest.code.body.inputs[idx] == storage;
        let is_whole = is_stored && lies.is_shared(batch);
        (is_whole && is_dense && is_worth_it).then(|| PackableOperand {
            idx,
            key: PackedKey { k, n, rows: rows.clone(), cols: cols.clone(), offset: lies.offset, layout },
            n_values,
        })
    }

    /// Packs the operand that may be kept so.
    ///
    /// # Safety
    /// The operand's memory is as large as the plan says, and there is room for the packed form.
    pub unsafe fn pack(&self, operand: *const u8, to: *mut f32) {
        let from = |lies: &OperandArgs| operand.cast::<f32>().wrapping_offset(lies.offset);
        let MatmulArgs { ref a, ref b, .. } = self.args;
        // SAFETY: as promised by the caller.
        unsafe {
            match &self.sums {
                ProductMethod::Implicit(gemm) => gemm.pack(from(a), a, to),
                ProductMethod::Winograd(gemm) => gemm.pack(from(a), a, to),
                ProductMethod::Gemm(gemm) => {
                    let matrix = ListedMatrix { rows: &b.rows, cols: &b.cols, first_row: 0 };
                    let lists = GemmLists { a: None, b: b.steps().is_none().then_some(matrix) };
                    Gemm { b: from(b).cast(), ..*gemm }.pack(lists, to)
                }
                ProductMethod::Bytes(gemm) => gemm.pack(operand.wrapping_offset(b.offset), b, to.cast()),
                _ => unreachable!("only these read packed operands"),
            }
        }
    }
}
