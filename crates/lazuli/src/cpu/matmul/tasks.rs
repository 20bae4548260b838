//! How threads share a product: the tasks into which it is cut, once the number of threads is known.

use std::fmt;

use super::{Matmul, ProductMethod, SMALL};
use crate::cpu::tasks::{TaskGrid, TaskRow};
use crate::kernel::MatmulArgs;

/// The tasks of a product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ProductTasks {
    /// Tasks of whole matrices of the batch, where these are so small that no task needs only a part of one.
    pub matrices: Option<TaskRow>,
    /// Rows of a row panel: all sums of a row panel are made before the epilogue reads them again.
    panel_rows: usize,
    /// The tasks of a row panel, and of the last row panel, which may have fewer rows. Each is a pair: the tasks if they pack the right
    /// operand themselves, and the tasks if that is kept packed. None for methods that cut the product by sizes alone.
    grids: Option<[[TaskGrid; 2]; 2]>,
}

impl ProductTasks {
    /// The tasks of a product until the number of threads is known: one thread computes all of it.
    pub const NONE: ProductTasks = ProductTasks { matrices: None, panel_rows: 0, grids: None };

    /// The tasks of `n_rows` rows. Every method that calls this has a grid.
    pub fn grid(&self, n_rows: usize, is_kept_packed: bool) -> TaskGrid {
        let one = TaskGrid { n_wide: 1, n_tall: 1 };
        self.grids.map_or(one, |grids| grids[(n_rows < self.panel_rows) as usize][is_kept_packed as usize])
    }
}

impl Matmul {
    /// Decides into which tasks the product is cut for `n_threads` threads.
    pub fn share_out(&mut self, n_threads: usize) {
        let MatmulArgs { m, k_parts, .. } = self.args;
        let n_items = self.n_batch();
        // A task has at least about as many multiplications as repay handing it to a thread.
        let by_batch =
            self.by_batch().then(|| TaskRow { n_items, per_task: (SMALL / self.work().max(1)).clamp(1, n_items) });
        // Where threads share the batch by whole matrices, a matrix is not cut again.
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

/// The tasks as a schedule shows them, after a comma; nothing where there is only one.
impl fmt::Display for ProductTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(row) = self.matrices {
            write!(f, ", {} tasks of whole matrices, {} each", row.count(), row.per_task)?;
        }
        // Where a task has whole matrices, these are not cut into tasks.
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
