//! Python's slices: which elements along each axis, said with ranges and steps, by tuples or by the `s!` macro.
//! Resolving a slice against an axis is plain arithmetic; the tensor method makes one view of it.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::panic::Location;

use smallvec::SmallVec;

use super::operand::or_error;
use crate::error::{Error, Result, counted};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// Part of each axis, with Python's meaning of `start:end:step`: negative numbers count from the end, what is out
    /// of range is cut off, a negative step walks backwards. Axes not named are whole. See [`s!`](crate::s).
    ///
    /// ```
    /// # use lazuli::{s, Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu());
    /// assert_eq!(x.slice(&[(1, -1, 2)]).to_vec::<i32>()?, [1, 3]);
    /// assert_eq!(x.slice(s![..;-2]).to_vec::<i32>()?, [5, 3, 1]);
    /// let x = x.reshape([2, 3]);
    /// assert_eq!(x.slice(s![-1, ..2]).to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn slice(&self, slices: impl Into<Slices>) -> Tensor {
        or_error(sliced("slice", self, &slices.into()))
    }

    /// One element of an axis, which is gone: `x.select_index(0, -1)` is the last row.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([2, 3]);
    /// assert_eq!(x.select_index(1, -1).to_vec::<i32>()?, [2, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn select_index(&self, axis: i32, index: impl Bound) -> Tensor {
        or_error(selected(self, axis, index))
    }
}

/// Which part of one axis: one element (the axis is then gone), or a range with a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice {
    /// One element; negative counts from the end.
    Index(i64),
    /// From `start` up to but without `end`, by `step`; None is as far as the axis goes.
    Range {
        /// The first element.
        start: Option<i64>,
        /// The first element not taken.
        end: Option<i64>,
        /// From one to the next; not 0.
        step: i64,
    },
}

impl Slice {
    /// The same range with another step.
    pub fn by(self, step: impl Bound) -> Slice {
        match self {
            Slice::Range { start, end, .. } => Slice::Range { start, end, step: step.bound().unwrap_or(1) },
            index => index,
        }
    }
}

/// One [`Slice`] per axis, first axis first. Made by [`s!`](crate::s), or from tuples `(start, end, step)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slices(SmallVec<[Slice; 4]>);

/// A number that can bound a slice: an integer, or an `Option<i64>` where None means as far as the axis goes.
pub trait Bound: Copy {
    /// The number.
    fn bound(self) -> Option<i64>;
}

macro_rules! bounds {
    ($($t:ty),*) => {$(
        impl Bound for $t {
            fn bound(self) -> Option<i64> {
                // What does not fit is beyond the end of any axis anyway.
                Some(i64::try_from(self).unwrap_or(i64::MAX))
            }
        }
    )*};
}

bounds!(i32, i64, isize, u32, usize);

impl Bound for Option<i64> {
    fn bound(self) -> Option<i64> {
        self
    }
}

fn range(start: Option<i64>, end: Option<i64>) -> Slice {
    Slice::Range { start, end, step: 1 }
}

/// The end after an inclusive one. After −1, the last element, there is nothing left to exclude.
fn past(end: Option<i64>) -> Option<i64> {
    match end {
        Some(-1) => None,
        other => other.map(|e| e.saturating_add(1)),
    }
}

impl<T: Bound> From<T> for Slice {
    fn from(index: T) -> Slice {
        index.bound().map_or(range(None, None), Slice::Index)
    }
}

impl<T: Bound> From<Range<T>> for Slice {
    fn from(r: Range<T>) -> Slice {
        range(r.start.bound(), r.end.bound())
    }
}

impl<T: Bound> From<RangeFrom<T>> for Slice {
    fn from(r: RangeFrom<T>) -> Slice {
        range(r.start.bound(), None)
    }
}

impl<T: Bound> From<RangeTo<T>> for Slice {
    fn from(r: RangeTo<T>) -> Slice {
        range(None, r.end.bound())
    }
}

impl<T: Bound> From<RangeInclusive<T>> for Slice {
    fn from(r: RangeInclusive<T>) -> Slice {
        range(r.start().bound(), past(r.end().bound()))
    }
}

impl<T: Bound> From<RangeToInclusive<T>> for Slice {
    fn from(r: RangeToInclusive<T>) -> Slice {
        range(None, past(r.end.bound()))
    }
}

impl From<RangeFull> for Slice {
    fn from(_: RangeFull) -> Slice {
        range(None, None)
    }
}

impl From<&[Slice]> for Slices {
    fn from(slices: &[Slice]) -> Slices {
        Slices(slices.into())
    }
}

impl<const N: usize> From<[Slice; N]> for Slices {
    fn from(slices: [Slice; N]) -> Slices {
        Slices(slices.as_slice().into())
    }
}

impl<A: Bound, B: Bound, C: Bound> From<&[(A, B, C)]> for Slices {
    fn from(tuples: &[(A, B, C)]) -> Slices {
        let slice = |t: &(A, B, C)| range(t.0.bound(), t.1.bound()).by(t.2);
        Slices(tuples.iter().map(slice).collect())
    }
}

impl<A: Bound, B: Bound, C: Bound, const N: usize> From<&[(A, B, C); N]> for Slices {
    fn from(tuples: &[(A, B, C); N]) -> Slices {
        Slices::from(tuples.as_slice())
    }
}

impl<A: Bound, B: Bound, C: Bound, const N: usize> From<[(A, B, C); N]> for Slices {
    fn from(tuples: [(A, B, C); N]) -> Slices {
        Slices::from(tuples.as_slice())
    }
}

impl<A: Bound, B: Bound, C: Bound> From<&Vec<(A, B, C)>> for Slices {
    fn from(tuples: &Vec<(A, B, C)>) -> Slices {
        Slices::from(tuples.as_slice())
    }
}

/// Slices for [`Tensor::slice`]: one per axis, each a range, a range and a step after `;`, or an index that drops the
/// axis.
///
/// ```
/// # use lazuli::{s, Device, Tensor};
/// let x = Tensor::arange(0, 24, 1, &Device::cpu()).reshape([4, 6]);
/// assert_eq!(x.slice(s![1..3, ..;-1]).shape()?, [2, 6]);      // rows 1 and 2, columns backwards
/// assert_eq!(x.slice(s![2, 1..=4;3]).to_vec::<i32>()?, [13, 16]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[macro_export]
macro_rules! s {
    (@ [$($done:expr,)*]) => {{
        // A range that runs backwards is just what a negative step wants.
        #[allow(clippy::reversed_empty_ranges)]
        let slices = $crate::Slices::from(&[$($done),*] as &[$crate::Slice]);
        slices
    }};
    (@ [$($done:expr,)*] $range:expr ; $step:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@ [$($done,)* $crate::Slice::from($range).by($step),] $($($rest)*)?)
    };
    (@ [$($done:expr,)*] $range:expr $(, $($rest:tt)*)?) => {
        $crate::s!(@ [$($done,)* $crate::Slice::from($range),] $($($rest)*)?)
    };
    ($($all:tt)*) => { $crate::s!(@ [] $($all)*) };
}

/// Where a range starts on an axis of `size` elements, its step, and how many elements it takes.
fn resolve(start: Option<i64>, end: Option<i64>, step: i64, size: usize) -> (usize, isize, usize) {
    let size = size as i64;
    let from_end = |n: i64| if n < 0 { n + size } else { n };
    let (start, n_elems) = if step > 0 {
        let clamp = |n: i64| from_end(n).clamp(0, size);
        let (start, end) = (start.map_or(0, clamp), end.map_or(size, clamp));
        (start, (end - start).max(0) as u64)
    } else {
        // Backwards, one before the first is where it ends.
        let clamp = |n: i64| from_end(n).clamp(-1, size - 1);
        let (start, end) = (start.map_or(size - 1, clamp), end.map_or(-1, clamp));
        (start, (start - end).max(0) as u64)
    };
    match n_elems.div_ceil(step.unsigned_abs()) as usize {
        0 => (0, 1, 0),
        // The step is never taken, so it may be any; a huge one would overflow as a stride.
        1 => (start as usize, 1, 1),
        n => (start as usize, step as isize, n),
    }
}

#[track_caller]
fn resolve_index(op: &str, shape: &Shape, axis: usize, index: i64) -> Result<usize> {
    let size = shape[axis] as i64;
    let at = if index < 0 { index + size } else { index };
    if (0..size).contains(&at) {
        return Ok(at as usize);
    }
    Err(Error::index(op, format!("index {index} is out of range for axis {axis} of {shape}")))
}

#[track_caller]
fn sliced(op: &str, x: &Tensor, slices: &Slices) -> Result<Tensor> {
    let node = x.node()?;
    let shape = &node.shape;
    if slices.0.len() > shape.rank() {
        let (slices, axes) = (counted(slices.0.len(), "slice"), counted(shape.rank(), "axis"));
        return Err(Error::shape(op, format!("{slices} for {shape}, which has {axes}")));
    }
    let from = shape.strides();
    let mut offset = 0;
    let mut axes: SmallVec<[(usize, isize); MAX_RANK]> = SmallVec::new();
    for axis in 0..shape.rank() {
        match slices.0.get(axis).copied().unwrap_or(range(None, None)) {
            Slice::Index(index) => offset += resolve_index(op, shape, axis, index)? as isize * from[axis],
            Slice::Range { step: 0, .. } => return Err(Error::shape(op, format!("the step along axis {axis} is 0"))),
            Slice::Range { start, end, step } => {
                let (first, step, n_elems) = resolve(start, end, step, shape[axis]);
                offset += first as isize * from[axis];
                axes.push((n_elems, step * from[axis]));
            }
        }
    }
    Ok(Tensor::viewed(node, View::from_axes(axes.into_iter(), offset), Location::caller()))
}

#[track_caller]
fn selected(x: &Tensor, axis: i32, index: impl Bound) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis("select_index", axis)?;
    let index = resolve_index("select_index", &node.shape, axis, index.bound().unwrap_or(i64::MAX))?;
    let from = node.shape.strides();
    let others = (0..node.shape.rank()).filter(|i| *i != axis).map(|i| (node.shape[i], from[i]));
    Ok(Tensor::viewed(node, View::from_axes(others, index as isize * from[axis]), Location::caller()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a slice of `0..n` against what Python prints for `list(range(n))[start:end:step]`.
    #[track_caller]
    fn check(n: usize, start: Option<i64>, end: Option<i64>, step: i64, expect: &[i64]) {
        let (first, step, n_elems) = resolve(start, end, step, n);
        let found: Vec<i64> = (0..n_elems as i64).map(|i| first as i64 + i * step as i64).collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn slices_mean_what_they_mean_in_python() {
        check(6, None, None, 1, &[0, 1, 2, 3, 4, 5]);
        check(6, Some(1), Some(-1), 2, &[1, 3]);
        check(6, None, None, -1, &[5, 4, 3, 2, 1, 0]);
        check(6, Some(4), Some(1), -2, &[4, 2]);
        check(6, Some(5), Some(-1), -1, &[]);
        check(6, Some(-100), Some(100), 4, &[0, 4]);
        check(6, Some(100), Some(-100), -4, &[5, 1]);
        check(6, Some(3), Some(3), 1, &[]);
        check(6, Some(4), Some(2), 1, &[]);
        check(0, None, None, -1, &[]);
        check(3, Some(i64::MIN), Some(i64::MAX), i64::MAX, &[0]);
        check(3, Some(i64::MAX), Some(i64::MIN), i64::MIN, &[2]);
    }

    #[test]
    fn the_macro_reads_every_form() {
        let (a, b) = (1usize, 4i64);
        let range = |start, end, step| Slice::Range { start, end, step };
        let found = s![a..3, b.., ..2, .., ..;-1, 1..4;2, 1..=4, ..=-1, 7, -1];
        let expect = [
            range(Some(1), Some(3), 1),
            range(Some(4), None, 1),
            range(None, Some(2), 1),
            range(None, None, 1),
            range(None, None, -1),
            range(Some(1), Some(4), 2),
            range(Some(1), Some(5), 1),
            range(None, None, 1),
            Slice::Index(7),
            Slice::Index(-1),
        ];
        assert_eq!(found, Slices::from(expect));
        assert_eq!(s![], Slices::from(&[] as &[Slice]));
        assert_eq!(s![1..2,], s![1..2]);
        assert_eq!(Slices::from(&[(0, 5usize, -1)]), s![0..5;-1]);
    }
}
