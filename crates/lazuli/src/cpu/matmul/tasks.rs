//! How threads share a product: which tasks it is cut into, once it is known how many threads take part.

use std::fmt;

use super::{Matmul, ProductMethod, SMALL};
use crate::cpu::tasks::{TaskGrid, TaskRow};
use crate::kernel::MatmulArgs;

/// The tasks of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProductTasks {
    /// Whole matrices to a task, where a thread takes those.
    pub matrices: Option<TaskRow>,
    /// Rows of a panel: of those whose sums are made before they are looked at again.
    panel_rows: usize,
    /// The tasks of a panel, and of the last one, which may have fewer rows; of a GEMM each where tasks pack the right operand, and
    /// where it is kept packed. None where the product is shared out in another way, by sizes alone.
    grids: Option<[[TaskGrid; 2]; 2]>,
}

impl ProductTasks {
    /// On one thread, until it is known how many there are.
    pub const NONE: ProductTasks = ProductTasks { matrices: None, panel_rows: 0, grids: None };

    /// The tasks of so many rows. All methods that ask have a grid.
    pub fn grid(&self, n_rows: usize, is_kept_packed: bool) -> TaskGrid {
        let one = TaskGrid { n_wide: 1, n_tall: 1 };
        self.grids.map_or(one, |grids| grids[(n_rows < self.panel_rows) as usize][is_kept_packed as usize])
    }
}

impl Matmul {
    /// Decides which tasks it is cut into, for so many threads.
    pub fn share_out(&mut self, n_threads: usize) {
        let MatmulArgs { m, k_parts, .. } = self.args;
        let n_items = self.n_batch();
        // About as many multiplications as are worth a task.
        let by_batch =
            self.by_batch().then(|| TaskRow { n_items, per_task: (SMALL / self.work().max(1)).clamp(1, n_items) });
        // What a task does is not shared out again.
        let n_threads = if by_batch.is_some_and(|row| row.count() > 1) { 1 } else { n_threads };
        let panel_rows = if by_batch.is_some() { m } else { self.panel_rows().clamp(1, m.max(1)) };
        let last = m - m.saturating_sub(1) / panel_rows.max(1) * panel_rows;
        let grids = match &self.sums {
            ProductMethod::Gemm(gemm) => Some([panel_rows, last].map(|rows| gemm.tasks(rows, k_parts, n_threads))),
            ProductMethod::Implicit(gemm) => Some([[gemm.tasks(n_threads); 2]; 2]),
            ProductMethod::Winograd(gemm) => Some([[gemm.tasks(n_threads); 2]; 2]),
            ProductMethod::Bytes(gemm) => Some([[gemm.tasks(n_threads); 2]; 2]),
            _ => None,
        };
        self.tasks = ProductTasks { matrices: by_batch, panel_rows, grids };
    }
}

/// In a few words, after a comma.
impl fmt::Display for ProductTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(row) = self.matrices {
            write!(f, ", {} tasks of whole matrices, {} each", row.count(), row.per_task)?;
        }
        // What a thread does with whole matrices of its own is not shared out.
        let grids = self.grids.filter(|_| self.matrices.is_none_or(|row| row.count() == 1));
        let Some([[own, kept], [own_last, kept_last]]) = grids else { return Ok(()) };
        if own.count().max(kept.count()) > 1 {
            write!(f, ", {own}")?;
            if kept != own {
                write!(f, " ({kept} where it is kept packed)")?;
            }
        }
        if (own_last, kept_last) != (own, kept) {
            write!(f, ", of the last rows {own_last}")?;
        }
        Ok(())
    }
}
