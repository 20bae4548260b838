//! Sizes and axes: how long each axis is, how shapes broadcast, which axes an op names. Knows nothing of strides.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, RangeFull};

use crate::error::{Error, Result};

/// The highest rank a tensor may have.
pub const MAX_RANK: usize = 8;

/// The size of each axis of a tensor: rank 0 (a scalar) to 8, any size may be zero.
///
/// ```
/// use lazuli::Shape;
/// let shape = Shape::from([2, 3]);
/// assert_eq!(shape.n_elems(), 6);
/// assert_eq!(shape.to_string(), "[2, 3]");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    // May exceed MAX_RANK for a shape that came from outside; `check` refuses it before a tensor is made.
    rank: u8,
}

impl Shape {
    /// The number of elements; 1 for a scalar. No tensor has a shape with more than a `usize` can hold, for which this is
    /// `usize::MAX`.
    ///
    /// ```
    /// use lazuli::Shape;
    /// assert_eq!(Shape::from([usize::MAX, 2]).n_elems(), usize::MAX);
    /// assert_eq!(Shape::from([usize::MAX, 2, 0]).n_elems(), 0);
    /// ```
    pub fn n_elems(&self) -> usize {
        // The product is 0 if an axis is empty, even if it has saturated before that axis.
        self.iter().fold(1, |n, size| n.saturating_mul(*size))
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.len()
    }

    /// Refuses what no tensor can have: more than [`MAX_RANK`] axes, or more elements than can be addressed.
    #[track_caller]
    pub(crate) fn check(&self, op: &str) -> Result<()> {
        if self.rank as usize > MAX_RANK {
            return Err(Error::shape(op, format!("rank {} is above the limit of {MAX_RANK}", self.rank)));
        }
        // Zero-sized axes must not hide an overflow of the others: strides are computed from all of them.
        let n = self.iter().map(|d| (*d).max(1)).try_fold(4usize, |n, d| n.checked_mul(d));
        if n.is_none_or(|n| n > isize::MAX as usize) {
            return Err(Error::shape(op, format!("{self} has more elements than can be addressed")));
        }
        Ok(())
    }

    /// Row-major strides, in elements.
    pub(crate) fn strides(&self) -> [isize; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for axis in (0..self.rank()).rev() {
            strides[axis] = step as isize;
            step *= self[axis].max(1);
        }
        strides
    }

    /// The shape both broadcast to, if they do.
    pub(crate) fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let dim = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |j| s[j]);
        let mut out = Shape { dims: [0; MAX_RANK], rank: rank as u8 };
        for i in 0..rank {
            out.dims[i] = match (dim(self, i), dim(other, i)) {
                (1, d) => d,
                (d, 1) => d,
                (a, b) if a == b => a,
                _ => return None,
            };
        }
        Some(out)
    }

    /// The shape with `axis` set to `size`.
    pub(crate) fn with(mut self, axis: usize, size: usize) -> Shape {
        self.dims[axis] = size;
        self
    }

    /// Takes out an axis.
    pub(crate) fn remove(&mut self, axis: usize) {
        let rank = self.rank();
        self.dims.copy_within(axis + 1..rank, axis);
        self.dims[rank - 1] = 0;
        self.rank -= 1;
    }

    /// The shape with the axes in `mask` gone, or kept with size 1.
    pub(crate) fn reduced(&self, axes: &AxisSet, keep: bool) -> Shape {
        (0..self.rank())
            .filter_map(|i| match axes.contains(i) {
                true => keep.then_some(1),
                false => Some(self[i]),
            })
            .collect()
    }

    /// Turns a possibly negative axis into an index, or says what is allowed.
    #[track_caller]
    pub(crate) fn axis(&self, op: &str, axis: i32) -> Result<usize> {
        let rank = self.rank() as i32;
        let at = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&at) {
            return Ok(at as usize);
        }
        let allowed = match rank {
            0 => "a scalar has no axes".to_string(),
            _ => format!("it has axes {} to {}", -rank, rank - 1),
        };
        Err(Error::shape(op, format!("axis {axis} is out of range for {self}: {allowed}")))
    }
}

/// Only the axes there are: planning hashes shapes by the thousand.
impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u8(self.rank);
        self.iter().for_each(|size| state.write_usize(*size));
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.dims[..(self.rank as usize).min(MAX_RANK)]
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Shape {
        let mut shape = Shape::default();
        for dim in dims {
            if let Some(slot) = shape.dims.get_mut(shape.rank as usize) {
                *slot = dim;
            }
            shape.rank = shape.rank.saturating_add(1);
        }
        shape
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        dims.iter().copied().collect()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::from(&dims[..])
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Shape {
        Shape::from(&dims[..])
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape::from(&dims[..])
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(dims: &Vec<usize>) -> Shape {
        Shape::from(&dims[..])
    }
}

impl From<usize> for Shape {
    fn from(dim: usize) -> Shape {
        Shape::from([dim])
    }
}

impl From<()> for Shape {
    fn from(_: ()) -> Shape {
        Shape::default()
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        *shape
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &self[..])
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self[..] == *other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self[..] == other[..]
    }
}

/// The sizes that a reshape asks for; one of them may be -1, which stands for as many elements as the others leave.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let x = Tensor::arange(0, 6, 1, &Device::cpu());
/// assert_eq!(x.reshape([2, -1]).shape()?, [2, 3]);
/// assert!(x.reshape([4, -1]).check().is_err());
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    sizes: [i64; MAX_RANK],
    // May exceed MAX_RANK; `resolve` refuses it.
    rank: u8,
}

impl Dims {
    fn given(&self) -> &[i64] {
        &self.sizes[..(self.rank as usize).min(MAX_RANK)]
    }

    /// The shape that is meant for the elements of `from`, if there is one.
    #[track_caller]
    pub(crate) fn resolve(&self, op: &str, from: &Shape) -> Result<Shape> {
        if let Some(size) = self.given().iter().find(|size| **size < -1) {
            return Err(Error::shape(op, format!("{size} in {self} is no size; only -1 has a meaning")));
        }
        let mut rest = self.given().iter().enumerate().filter(|(_, size)| **size == -1).map(|(axis, _)| axis);
        let (rest, second) = (rest.next(), rest.next());
        if second.is_some() {
            return Err(Error::shape(
                op,
                format!("{self} has more than one -1: only one size follows from the others"),
            ));
        }
        let mut others: Shape = self.given().iter().map(|size| if *size == -1 { 1 } else { *size as usize }).collect();
        others.rank = self.rank;
        let Some(axis) = rest else { return Ok(others) };
        others.check(op)?;
        let (have, want) = (from.n_elems(), others.n_elems());
        if want == 0 || !have.is_multiple_of(want) {
            let have = crate::error::counted(have, "element");
            return Err(Error::shape(op, format!("{from} has {have}, which the other sizes of {self} do not divide")));
        }
        Ok(others.with(axis, have / want))
    }
}

impl FromIterator<i64> for Dims {
    fn from_iter<I: IntoIterator<Item = i64>>(sizes: I) -> Dims {
        let mut dims = Dims { sizes: [0; MAX_RANK], rank: 0 };
        for size in sizes {
            if let Some(slot) = dims.sizes.get_mut(dims.rank as usize) {
                *slot = size;
            }
            dims.rank = dims.rank.saturating_add(1);
        }
        dims
    }
}

macro_rules! dims_from {
    ($($t:ty, $size:expr;)*) => {$(
        impl From<&[$t]> for Dims {
            fn from(sizes: &[$t]) -> Dims {
                let size: fn($t) -> i64 = $size;
                sizes.iter().copied().map(size).collect()
            }
        }
        impl<const N: usize> From<[$t; N]> for Dims {
            fn from(sizes: [$t; N]) -> Dims {
                Dims::from(&sizes[..])
            }
        }
        impl<const N: usize> From<&[$t; N]> for Dims {
            fn from(sizes: &[$t; N]) -> Dims {
                Dims::from(&sizes[..])
            }
        }
        impl From<Vec<$t>> for Dims {
            fn from(sizes: Vec<$t>) -> Dims {
                Dims::from(&sizes[..])
            }
        }
        impl From<&Vec<$t>> for Dims {
            fn from(sizes: &Vec<$t>) -> Dims {
                Dims::from(&sizes[..])
            }
        }
        impl From<$t> for Dims {
            fn from(size: $t) -> Dims {
                Dims::from([size])
            }
        }
    )*};
}

dims_from! {
    i32, i64::from;
    i64, |size| size;
}

/// Whatever can be a shape. A size beyond all that can be addressed stays beyond it.
impl<T: Into<Shape>> From<T> for Dims {
    fn from(shape: T) -> Dims {
        let shape = shape.into();
        let sizes: Dims = shape.iter().map(|size| i64::try_from(*size).unwrap_or(i64::MAX)).collect();
        Dims { rank: shape.rank, ..sizes }
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.given())
    }
}

impl fmt::Debug for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Which axes a reduction runs over, and whether they stay with size 1: `-1`, `2`, `[0, 2]`, `..` for all, [`keep`] of any.
///
/// ```
/// # use lazuli::{keep, Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu());
/// assert_eq!(x.sum(-1).to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(x.sum(keep(0)).shape()?, [1, 2]);
/// assert_eq!(x.sum(..).item::<f32>()?, 10.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Axes {
    // None: all of them.
    axes: Option<Vec<i32>>,
    keep: bool,
}

/// The same axes, kept with size 1 so that the result broadcasts against the input.
pub fn keep(axes: impl Into<Axes>) -> Axes {
    Axes { keep: true, ..axes.into() }
}

impl Axes {
    /// The axes as indices into `shape`, in the order they were named.
    #[track_caller]
    pub(crate) fn in_order(&self, op: &str, shape: &Shape) -> Result<Vec<usize>> {
        self.resolve(op, shape)?;
        match &self.axes {
            None => Ok((0..shape.rank()).collect()),
            Some(axes) => axes.iter().map(|axis| shape.axis(op, *axis)).collect(),
        }
    }

    /// Whether it is `..`, all axes without naming one.
    pub(crate) fn is_all(&self) -> bool {
        self.axes.is_none()
    }

    /// The axes as indices into `shape`, and whether they stay.
    #[track_caller]
    pub(crate) fn resolve(&self, op: &str, shape: &Shape) -> Result<(AxisSet, bool)> {
        let mut set = AxisSet::default();
        match &self.axes {
            None => (0..shape.rank()).for_each(|i| set.insert(i)),
            Some(axes) => {
                for &axis in axes {
                    let axis = shape.axis(op, axis)?;
                    if set.contains(axis) {
                        return Err(Error::shape(op, format!("axis {axis} of {shape} is named twice")));
                    }
                    set.insert(axis);
                }
            }
        }
        Ok((set, self.keep))
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Axes {
        Axes { axes: Some(vec![axis]), keep: false }
    }
}

impl<const N: usize> From<[i32; N]> for Axes {
    fn from(axes: [i32; N]) -> Axes {
        Axes { axes: Some(axes.to_vec()), keep: false }
    }
}

impl From<&[i32]> for Axes {
    fn from(axes: &[i32]) -> Axes {
        Axes { axes: Some(axes.to_vec()), keep: false }
    }
}

impl From<RangeFull> for Axes {
    fn from(_: RangeFull) -> Axes {
        Axes { axes: None, keep: false }
    }
}

/// A set of axes of one tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AxisSet(u8);

impl AxisSet {
    /// Whether `axis` is in the set.
    pub fn contains(&self, axis: usize) -> bool {
        self.0 >> axis & 1 == 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    pub(crate) fn insert(&mut self, axis: usize) {
        self.0 |= 1 << axis;
    }

    /// The set as bits, axis 0 lowest.
    pub(crate) fn bits(&self) -> u8 {
        self.0
    }
}

/// A shape seen from one axis: `n` elements along it, `outer` before it, `inner` after it.
#[derive(Clone, Copy)]
pub struct Lines {
    pub outer: usize,
    pub n: usize,
    pub inner: usize,
}

impl Lines {
    /// Seen from `axis`.
    pub fn new(shape: &Shape, axis: usize) -> Lines {
        Lines { outer: shape[..axis].iter().product(), n: shape[axis], inner: shape[axis + 1..].iter().product() }
    }

    /// How many lines there are along the axis.
    pub fn count(&self) -> usize {
        self.outer * self.inner
    }
}
