//! How the terms of a long sum are split: consecutive parts, whose sums are made side by side and then added up in their
//! order (split-k). Numbers only: who splits is `plan/split`.

use std::fmt;
use std::ops::Range;

/// Consecutive parts of an axis, all of one length but the last, which may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisParts {
    n: usize,
    len: usize,
}

impl AxisParts {
    /// All of an axis as one part.
    pub fn whole(size: usize) -> AxisParts {
        AxisParts { n: 1, len: size }
    }

    /// An axis in parts of this length; all of it if that is no shorter.
    pub fn of_len(size: usize, len: usize) -> AxisParts {
        match size.div_ceil(len.max(1)) {
            0 | 1 => AxisParts::whole(size),
            n => AxisParts { n, len },
        }
    }

    /// An axis in so many parts, or fewer where the last ones would be empty.
    pub fn of_count(size: usize, n: usize) -> AxisParts {
        AxisParts::of_len(size, size.div_ceil(n.max(1)))
    }

    /// How many parts there are.
    pub fn count(&self) -> usize {
        self.n
    }

    /// How long the longest of them is.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the axis is one part.
    pub fn is_whole(&self) -> bool {
        self.n == 1
    }

    /// The indices of a part of an axis of this size.
    pub fn range(&self, part: usize, size: usize) -> Range<usize> {
        (part * self.len).min(size)..((part + 1) * self.len).min(size)
    }

    /// Whether every index of an axis of this size is in one part, and no part is empty.
    pub fn cover(&self, size: usize) -> bool {
        let ends_at = |n: usize| self.len.checked_mul(n);
        match self.n {
            0 => false,
            1 => self.len == size,
            n => ends_at(n - 1).is_some_and(|end| end < size) && ends_at(n).is_none_or(|end| end >= size),
        }
    }
}

/// `16 parts of 256`.
impl fmt::Display for AxisParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} part{} of {}", self.n, if self.n == 1 { "" } else { "s" }, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_every_index_once() {
        for size in 0..40 {
            for n in 1..12 {
                let by_len = AxisParts::of_len(size, n);
                let by_count = AxisParts::of_count(size, n);
                assert!(by_count.count() <= n && by_len.len() <= n.max(size), "{size} {n}");
                for parts in [by_len, by_count, AxisParts::whole(size)] {
                    assert!(parts.cover(size), "{size}: {parts}");
                    let all: Vec<usize> = (0..parts.count()).flat_map(|part| parts.range(part, size)).collect();
                    assert_eq!(all, (0..size).collect::<Vec<_>>(), "{parts}");
                }
                let empty = AxisParts { n: by_len.count() + 1, ..by_len };
                assert!(!empty.cover(size) && (size == 0 || !by_len.cover(by_len.len() * by_len.count() + 1)));
            }
        }
    }
}
