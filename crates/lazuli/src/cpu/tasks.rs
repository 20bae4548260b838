//! The tasks into which the work of a launch is cut, so that threads can share it: plain data, made once with the schedule of a plan.
//! Which thread takes which task is decided while the launch runs, and changes no result. Knows only numbers, not what tasks compute.

use std::fmt;
use std::ops::Range;

/// Tasks of a one-dimensional sequence of items (tiles, blocks of rows, matrices), `per_task` neighbouring items each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRow {
    pub n_items: usize,
    pub per_task: usize,
}

impl TaskRow {
    /// How many tasks there are.
    pub fn count(&self) -> usize {
        self.n_items.div_ceil(self.per_task)
    }

    /// The items of a task.
    pub fn items(&self, task: usize) -> Range<usize> {
        task * self.per_task..((task + 1) * self.per_task).min(self.n_items)
    }
}

/// Tasks of one matrix of a product, or of one part of its k: the columns are cut into `n_wide` ranges and the rows into `n_tall`, and
/// each pair of ranges is a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskGrid {
    pub n_wide: usize,
    pub n_tall: usize,
}

impl TaskGrid {
    /// How many tasks there are.
    pub fn count(&self) -> usize {
        self.n_wide * self.n_tall
    }
}

/// Ranges of rows, then ranges of columns, in the order in which sizes of matrices are written.
impl fmt::Display for TaskGrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{} tasks", self.n_tall, self.n_wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_in_one_task() {
        for (n_items, per_task) in [(0, 1), (1, 1), (10, 3), (9, 3), (5, 100)] {
            let row = TaskRow { n_items, per_task };
            let items: Vec<usize> = (0..row.count()).flat_map(|task| row.items(task)).collect();
            assert_eq!(items, (0..n_items).collect::<Vec<_>>(), "{n_items} by {per_task}");
        }
    }
}
