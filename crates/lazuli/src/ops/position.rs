//! Places along an axis that are numbers of the evaluation.

use std::ops::Add;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::graph::{Constant, OpenNumber};

/// A place along an axis. It is a number of the evaluation, so that another one needs no new plan; an *open* one is told anew
/// whenever a [`Recording`](crate::Recording) is run.
///
/// ```
/// # use lazuli::{Device, Position, Tensor};
/// let table = Tensor::arange(0, 8, 1, &Device::cpu()).reshape([4, 2]);
/// let position = Position::open(1);
/// assert_eq!(table.rows_at(0, position + 1, 1).to_vec::<i32>()?, [4, 5]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    value: usize,
    /// What tells an open position from others, and how far this is from it.
    open: Option<(u64, i64)>,
}

impl Position {
    /// A position that recordings are told anew, and where it is now. Every call makes another one.
    pub fn open(value: usize) -> Position {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        Position { value, open: Some((NAMES.fetch_add(1, Ordering::Relaxed), 0)) }
    }

    /// Where it is.
    pub fn value(self) -> usize {
        self.value
    }

    /// The same position somewhere else.
    ///
    /// ```
    /// # use lazuli::Position;
    /// assert_eq!((Position::open(1).moved_to(5) + 2).value(), 7);
    /// ```
    pub fn moved_to(self, value: usize) -> Position {
        Position { value, open: self.open.map(|(name, _)| (name, 0)) }
    }

    /// Which open position it is, and where that is; None if it is a plain number.
    pub(crate) fn named(self) -> Option<(u64, i64)> {
        self.open.map(|(name, plus)| (name, self.value as i64 - plus))
    }

    /// The number that `reader` reads at a line: this and a difference, at most so large.
    pub(crate) fn constant(self, plus: i64, most: i64, at: &'static Location<'static>, reader: &str) -> Constant {
        let constant = Constant::new((self.value as i64 + plus) as f64, at, reader);
        match self.open {
            Some((name, own)) => constant.following(OpenNumber { name, plus: own + plus, most }),
            None => constant,
        }
    }
}

impl From<usize> for Position {
    fn from(value: usize) -> Position {
        Position { value, open: None }
    }
}

impl Add<usize> for Position {
    type Output = Position;

    fn add(self, n: usize) -> Position {
        Position { value: self.value.saturating_add(n), open: self.open.map(|(name, plus)| (name, plus + n as i64)) }
    }
}
