//! A right operand that was packed into panels by somebody else, and products with parts of it on the calling thread.

use std::ops::Range;

use super::kernel::{RegisterTile, kernel};
use crate::ops::{Isa, isa};

/// A matrix in panels, one after another. A panel has as many columns as a register tile, the last one as many as are left
/// in whole vectors, filled up with zeros; it has `depth` rows, which follow each other.
#[derive(Clone, Copy)]
pub struct PackedMatrix {
    pub first: *mut f32,
    pub depth: usize,
    pub n_columns: usize,
}

/// Some columns of a [`PackedMatrix`], and where they lie.
#[derive(Clone, Debug)]
pub struct PanelOfMatrix {
    pub first: *mut f32,
    pub columns: Range<usize>,
    /// From row to row: the columns and what fills them up.
    pub width: usize,
}

impl PackedMatrix {
    /// Columns of all panels but the last, with these instructions.
    pub fn panel_columns(isa: Isa) -> usize {
        let kernel = kernel(isa, false);
        kernel.across * kernel.lanes
    }

    /// Values that a matrix of these sizes occupies when it is packed.
    pub fn n_values(depth: usize, n_columns: usize) -> usize {
        depth * n_columns.next_multiple_of(kernel(isa(), false).lanes)
    }

    /// The panels that hold these columns, of which the first is the first of a panel.
    pub fn panels(&self, columns: Range<usize>) -> impl Iterator<Item = PanelOfMatrix> + use<> {
        let PackedMatrix { first, depth, n_columns } = *self;
        let (lanes, whole) = (kernel(isa(), false).lanes, PackedMatrix::panel_columns(isa()));
        columns.step_by(whole).map(move |column| {
            let width = (n_columns - column).next_multiple_of(lanes).min(whole);
            let columns = column..n_columns.min(column + width);
            PanelOfMatrix { first: first.wrapping_add(column * depth), columns, width }
        })
    }

    /// Rows of `a`, the first at an address and the others a step apart, times some rows and columns of the matrix. It is
    /// written to `out`, or added to what is there, with rows `pitch` apart.
    ///
    /// # Safety
    /// The panels were packed on this machine and are there; `a` has as many values in each row as `depth` is long; `out` has room for
    /// `n_rows` rows of these columns, initialised if products are added; memory that is written overlaps nothing that is read,
    /// and nobody else uses it. `columns` begin with a panel.
    pub unsafe fn multiply(
        &self,
        (a, a_pitch): (*const f32, isize),
        n_rows: usize,
        (depth, columns): (Range<usize>, Range<usize>),
        (out, pitch): (*mut f32, usize),
        adds: bool,
    ) {
        let kernel = kernel(isa(), false);
        for panel in self.panels(columns.clone()) {
            for row in (0..n_rows).step_by(kernel.heights[2]) {
                let n_rows = kernel.heights[2].min(n_rows - row);
                let height = kernel.heights.iter().filter(|height| **height < n_rows).count();
                let tile = RegisterTile {
                    a: a.wrapping_offset(row as isize * a_pitch),
                    a_pitch,
                    a_rows: std::ptr::null(),
                    a_columns: std::ptr::null(),
                    b: panel.first.wrapping_add(depth.start * panel.width),
                    b_pitch: 0,
                    laid: std::ptr::null_mut(),
                    depth: depth.len(),
                    out: out.wrapping_add(row * pitch + panel.columns.start - columns.start),
                    pitch,
                    n_rows,
                    n_columns: panel.columns.end.min(columns.end) - panel.columns.start,
                    adds,
                    next: std::ptr::null(),
                };
                // SAFETY: the instruction set is there; the rest as promised by the caller.
                unsafe { kernel.tiles[height][panel.width / kernel.lanes - 1](&tile) };
            }
        }
    }
}
