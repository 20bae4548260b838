//! The operands of a chained product in the order in which micro-kernels read them: panels of columns, rows that lie
//! dense, narrow numbers widened.

use std::ops::Range;

use super::schedule::row_pitch;
use super::{AttentionRun, ScoreBlock, TaskRoom};
use crate::blocks::Storage;
use crate::cpu::gemm::{PackedMatrix, turn};
use crate::cpu::load;
use crate::cpu::runs::ElementRuns;
use crate::dtype::DType;
use crate::kernel::AttentionOperand;

impl AttentionRun<'_> {
    /// Packs what inner products and the outer one read of some columns.
    ///
    /// # Safety
    /// As for [`ChainedProductWork::run`](super::ChainedProductWork::run); the columns are no more than a chunk, and the room is that of
    /// this thread.
    pub unsafe fn pack_columns(&self, batch: usize, columns: Range<usize>, room: TaskRoom) {
        let args = self.args();
        for (i, inner) in args.inner.iter().enumerate() {
            let lies = &inner.b;
            let matrix = PackedMatrix { first: room.columns[i], depth: inner.depth, n_columns: columns.len() };
            for panel in matrix.panels(0..columns.len()) {
                let from = self.at(lies, batch, columns.start + panel.columns.start);
                let size = (inner.depth, panel.columns.len());
                // SAFETY: as promised by the caller.
                unsafe { self.pack(2 * i + 1, from, (lies.along, lies.place), size, (panel.first, panel.width), room) };
            }
        }
        let lies = &args.values;
        for panel in room.packed_values(args, columns.len()).panels(0..args.n_values) {
            let from = self.at(lies, batch, columns.start) + panel.columns.start as isize * lies.along;
            let (operand, size) = (2 * args.inner.len(), (columns.len(), panel.columns.len()));
            // SAFETY: as promised by the caller.
            unsafe { self.pack(operand, from, (lies.place, lies.along), size, (panel.first, panel.width), room) };
        }
    }

    /// Packs the rows of a block where they do not lie dense as floats, or are those of several batch indices.
    ///
    /// # Safety
    /// As for [`pack_columns`](AttentionRun::pack_columns), with a block instead of a chunk.
    pub unsafe fn pack_rows(&self, block: ScoreBlock, room: TaskRoom) {
        for (i, inner) in self.args().inner.iter().enumerate() {
            if self.has_packed_rows(i) {
                let pitch = row_pitch(inner.depth);
                let steps = (inner.a.place, inner.a.along);
                for (batch, rows) in self.by_batch(block.group, block.row..block.row + block.n_rows) {
                    let to = room.rows[i].wrapping_add((rows.start - block.row) * pitch);
                    let from = self.at(&inner.a, batch, self.of_batch(&rows).start);
                    // SAFETY: as promised by the caller.
                    unsafe { self.pack(2 * i, from, steps, (rows.len(), inner.depth), (to, pitch), room) };
                }
            }
        }
    }

    /// Whether rows of an inner product are packed: vector code that reads columns in place wants them padded, and packed
    /// columns at least dense.
    fn has_packed_rows(&self, i: usize) -> bool {
        self.schedule().reads_in_place
            || self.work.storages[2 * i] != Storage::Plain(DType::F32)
            || self.args().inner[i].a.along != 1
    }

    /// The rows of a block, and from one to the next.
    pub fn row_operand(&self, i: usize, block: ScoreBlock, room: TaskRoom) -> (*const f32, isize) {
        let inner = &self.args().inner[i];
        if self.has_packed_rows(i) {
            return (room.rows[i].cast_const(), row_pitch(inner.depth) as isize);
        }
        let at = self.at(&inner.a, block.group, block.row);
        (self.bound[0].inputs[2 * i].cast::<f32>().wrapping_offset(at), inner.a.place)
    }

    /// The element of an operand at a place of a batch index.
    pub fn at(&self, lies: &AttentionOperand, mut batch: usize, place: usize) -> isize {
        let mut at = lies.offset + place as isize * lies.place;
        for (size, stride) in self.args().batch.iter().zip(&lies.batch).rev() {
            at += (batch % size) as isize * stride;
            batch /= size;
        }
        at
    }

    /// Copies a matrix of an operand, as floats, into rows `pitch` apart, filled up with zeros.
    ///
    /// # Safety
    /// The matrix is within its operand, and `to` has room for its rows, `pitch` apart, used by nobody else; the room is
    /// that of this thread.
    unsafe fn pack(
        &self,
        operand: usize,
        from: isize,
        steps: (isize, isize),
        (n_rows, n_columns): (usize, usize),
        (to, pitch): (*mut f32, usize),
        room: TaskRoom,
    ) {
        let (base, storage) = (self.bound[0].inputs[operand], self.work.storages[operand]);
        // SAFETY: as promised by the caller.
        unsafe {
            match storage {
                Storage::Plain(DType::F32) if steps.1 == 1 => {
                    for row in 0..n_rows {
                        let from = base.cast::<f32>().offset(from + row as isize * steps.0);
                        from.copy_to_nonoverlapping(to.add(row * pitch), n_columns);
                    }
                }
                Storage::Plain(DType::F32) => {
                    turn(base.cast::<f32>().offset(from), steps, (n_rows, n_columns), to, pitch)
                }
                _ if steps.1 == 1 => {
                    for row in 0..n_rows {
                        let walk = ElementRuns::strided([(n_columns, 1)].into_iter(), from + row as isize * steps.0);
                        let lanes = std::slice::from_raw_parts_mut(to.add(row * pitch).cast(), n_columns);
                        load::fill(&walk, base, storage, 0, lanes);
                    }
                }
                _ => {
                    // Some columns as rows, which are then turned.
                    for column in (0..n_columns).step_by(16) {
                        let n = 16.min(n_columns - column);
                        for j in 0..n {
                            let at = from + (column + j) as isize * steps.1;
                            let walk = ElementRuns::strided([(n_rows, steps.0)].into_iter(), at);
                            let lanes = std::slice::from_raw_parts_mut(room.wide.add(j * n_rows).cast(), n_rows);
                            load::fill(&walk, base, storage, 0, lanes);
                        }
                        turn(room.wide, (1, n_rows as isize), (n_rows, n), to.add(column), pitch);
                    }
                }
            }
            if pitch > n_columns {
                (0..n_rows).for_each(|row| to.add(row * pitch + n_columns).write_bytes(0, pitch - n_columns));
            }
        }
    }
}
