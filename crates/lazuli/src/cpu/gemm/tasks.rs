//! Decides into how many tasks products of floats are cut, for some number of threads. The number of tasks changes no result: each sum
//! of a part of k is made by one task, in one order.

use super::{BSource, Gemm, GemmLists, ImplicitGemm, TASK, TASKS_PER_THREAD, Winograd};
use crate::cpu::tasks::TaskGrid;
use crate::kernel::AxisParts;

impl Gemm {
    /// How each part of k of a product with `m` rows is cut: first for a right operand that tasks pack, then for one that is kept packed.
    pub fn tasks(&self, m: usize, k_parts: AxisParts, n_threads: usize) -> [TaskGrid; 2] {
        let rows = Gemm { m, ..*self };
        let cut = rows.cut(GemmLists::default());
        let (n_panels, n_parts) = (cut.n_panels(), k_parts.count().max(1));
        let worth = (rows.work() / TASK / n_parts).clamp(1, (TASKS_PER_THREAD * n_threads).div_ceil(n_parts));
        let n_tasks = if worth == 1 { 1 } else { worth.next_multiple_of(n_threads) };
        [false, true].map(|is_kept| {
            let is_packed = cut.way == BSource::Prepacked
                || is_kept && matches!(cut.way, BSource::PackFirst | BSource::PackOnFirstUse);
            // A task has the columns of a whole block, since `a` is then read least often, and so few rows that every thread gets
            // its share. A panel is better read by one thread than by two at once.
            let widest = if is_packed { n_tasks } else { n_tasks.div_ceil(cut.max_tall()) };
            let n_wide = n_panels.div_ceil(cut.max_panels()).max(widest).min(n_panels).max(1);
            let n_tall = n_tasks.div_ceil(n_wide);
            let n_tall = if n_wide.is_multiple_of(n_threads) { n_tall } else { n_tall.next_multiple_of(n_threads) };
            // An operand that is read by lists of axes (without strides) is gathered and packed by each task that multiplies rows with
            // it, so there are no more tasks over rows than threads.
            let n_tall = if self.b_steps.is_none() { n_tall.min(n_threads) } else { n_tall }.min(cut.max_tall());
            TaskGrid { n_wide, n_tall }
        })
    }
}

impl ImplicitGemm {
    /// How each image's product is cut: a task multiplies one panel of the weights (left operand) with one block of output places
    /// (columns of the right operand).
    pub fn tasks(&self, n_threads: usize) -> TaskGrid {
        TaskGrid { n_wide: self.n_panels(), n_tall: self.n_blocks(n_threads) }
    }
}

impl Winograd {
    /// How each image is cut: a task takes some panels of transformed weights and some rows of Winograd tiles of the image.
    pub fn tasks(&self, n_threads: usize) -> TaskGrid {
        // The task that transforms a block of tiles multiplies it by all panels, unless other threads would then be idle.
        let (n_blocks, n_panels) = (self.n_blocks(), self.direct.n_panels());
        let n_units = self.direct.n_images * n_blocks;
        let is_shared = n_units.is_multiple_of(n_threads) || n_units >= TASKS_PER_THREAD * n_threads;
        TaskGrid { n_wide: if is_shared { 1 } else { n_panels.min(n_threads) }, n_tall: n_blocks }
    }
}
