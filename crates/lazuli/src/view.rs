//! Index arithmetic as data: a view says which element of a row-major source each element of a shape is.
//! Every movement op (reshape, permute, slice, flip, broadcast, pad) is one view. Knows nothing of nodes or bytes.

use std::fmt;

use smallvec::{SmallVec, smallvec};

use crate::shape::{MAX_RANK, Shape};

/// The range of coordinates, per axis, for which a view has a source element; outside it the view holds its fill.
pub type Mask = [(usize, usize); MAX_RANK];

/// A strided window: element `i` of `shape` is element `offset + Σ i·strides` of the source, counted row-major.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// The shape seen.
    pub shape: Shape,
    /// Steps in the source, in elements; unused axes are 0.
    pub strides: [isize; MAX_RANK],
    /// Where the first element is. With a mask it may lie outside the source.
    pub offset: isize,
    /// Where there is a source element, if not everywhere.
    pub mask: Option<Mask>,
}

impl View {
    /// The view that changes nothing: row-major over `shape`.
    pub fn contiguous(shape: Shape) -> View {
        View { shape, strides: shape.strides(), offset: 0, mask: None }
    }

    /// Whether element `i` of the view is element `i` of the source, counted row-major.
    pub fn is_linear(&self) -> bool {
        if self.offset != 0 || self.mask.is_some() {
            return false;
        }
        let mut step = 1;
        for axis in (0..self.shape.rank()).rev() {
            if self.shape[axis] == 0 {
                return true;
            }
            if self.shape[axis] != 1 {
                if self.strides[axis] != step {
                    return false;
                }
                step *= self.shape[axis] as isize;
            }
        }
        true
    }

    /// Axes in another order: axis `i` of the result is axis `order[i]` of `source`.
    pub fn permute(source: &Shape, order: &[usize]) -> View {
        let from = source.strides();
        View::from_axes(order.iter().map(|&a| (source[a], from[a])), 0)
    }

    /// Every axis from a size and a stride.
    pub fn from_axes(axes: impl Iterator<Item = (usize, isize)>, offset: isize) -> View {
        let mut view = View { shape: Shape::default(), strides: [0; MAX_RANK], offset, mask: None };
        let axes: SmallVec<[(usize, isize); MAX_RANK]> = axes.collect();
        view.shape = axes.iter().map(|a| a.0).collect();
        for (stride, axis) in view.strides.iter_mut().zip(&axes) {
            *stride = axis.1;
        }
        view
    }

    /// `source` repeated along new leading axes and along axes of size 1, to fill `shape` (which it broadcasts to).
    pub fn broadcast(source: &Shape, shape: &Shape) -> View {
        let from = source.strides();
        let lead = shape.rank() - source.rank();
        View::from_axes(
            shape.iter().enumerate().map(|(i, &size)| match i.checked_sub(lead) {
                Some(j) if source[j] != 1 => (size, from[j]),
                _ => (size, 0),
            }),
            0,
        )
    }

    /// Per axis: the first coordinate, the step and how many.
    pub fn slice(source: &Shape, ranges: &[(usize, isize, usize)]) -> View {
        let from = source.strides();
        let offset = ranges.iter().zip(from).map(|(r, s)| r.0 as isize * s).sum();
        View::from_axes(ranges.iter().zip(from).map(|(r, s)| (r.2, r.1 * s)), offset)
    }

    /// `source` with that many elements of fill before and after each axis.
    pub fn pad(source: &Shape, pads: &[(usize, usize)]) -> View {
        let from = source.strides();
        let offset = -pads.iter().zip(from).map(|(p, s)| p.0 as isize * s).sum::<isize>();
        let mut view = View::from_axes(source.iter().zip(pads).zip(from).map(|((d, p), s)| (d + p.0 + p.1, s)), offset);
        let mut mask = [(0, 0); MAX_RANK];
        for (axis, pad) in pads.iter().enumerate() {
            mask[axis] = (pad.0, pad.0 + source[axis]);
        }
        view.mask = Some(mask);
        view
    }

    /// Fewer axes with the same meaning: size-1 axes go, neighbours whose strides run on are merged. No mask allowed.
    fn collapsed(&self) -> View {
        let mut axes: SmallVec<[(usize, isize); MAX_RANK]> = SmallVec::new();
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => axes.push((size, stride)),
            }
        }
        View::from_axes(axes.into_iter(), self.offset)
    }

    /// `self` seen through `outer` (whose source is this view's shape), as one view if strides can say it.
    pub fn then(&self, outer: &View) -> Option<View> {
        if self.is_linear() {
            return Some(*outer);
        }
        if outer.is_linear() && outer.shape == self.shape {
            return Some(*self);
        }
        if self.mask.is_some() || outer.mask.is_some() || outer.shape.n_elems() == 0 {
            return None;
        }
        let inner = self.collapsed();
        let digits = |mut n: isize| {
            let mut out = [0isize; MAX_RANK];
            for axis in (0..inner.shape.rank()).rev() {
                let size = inner.shape[axis].max(1) as isize;
                // The leading axis takes what is left, so that the bounds check below sees an overflow.
                (out[axis], n) = if axis == 0 { (n, 0) } else { (n % size, n / size) };
            }
            out
        };
        if inner.shape.rank() == 0 {
            // One element, whichever way it is looked at.
            let repeat = outer.shape.iter().map(|&d| (d, 0));
            return Some(View::from_axes(repeat, inner.offset));
        }
        // Coordinate j of the inner view is start[j] + Σ i·steps; it must stay inside its axis for every i, so that
        // no step carries from one axis into the next.
        let start = digits(outer.offset);
        let (mut low, mut high) = (start, start);
        let mut out = View { strides: [0; MAX_RANK], offset: inner.offset, ..*outer };
        for (axis, (&size, &stride)) in outer.shape.iter().zip(&outer.strides).enumerate() {
            if size == 1 {
                continue;
            }
            let step = digits(stride.abs());
            for j in 0..inner.shape.rank() {
                let step = step[j] * stride.signum();
                let reach = step * (size as isize - 1);
                low[j] += reach.min(0);
                high[j] += reach.max(0);
                out.strides[axis] += step * inner.strides[j];
            }
        }
        for j in 0..inner.shape.rank() {
            if low[j] < 0 || high[j] >= inner.shape[j] as isize {
                return None;
            }
            out.offset += start[j] * inner.strides[j];
        }
        Some(out)
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `[2, 3]/[3, 1]+0`: shape, strides, offset, and the mask where there is one.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.shape.rank();
        write!(f, "{}/{:?}{:+}", self.shape, &self.strides[..rank], self.offset)?;
        match &self.mask {
            Some(mask) => write!(f, " inside {:?}", &mask[..rank]),
            None => Ok(()),
        }
    }
}

/// A chain of views, for what one set of strides cannot say (a reshape of a transpose, a view of a pad).
/// The last view's shape is what is seen; each indexes, row-major, into the shape of the one before; the first into
/// the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexMap {
    views: SmallVec<[View; 1]>,
}

impl IndexMap {
    /// Element `i` is element `i`.
    pub fn identity(shape: Shape) -> IndexMap {
        View::contiguous(shape).into()
    }

    /// The views, source side first. Never empty.
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// The shape seen.
    pub fn shape(&self) -> &Shape {
        &self.views[self.views.len() - 1].shape
    }

    /// The one strided view it is, if it is one without a mask.
    pub fn strided(&self) -> Option<&View> {
        match &self.views[..] {
            [view] if view.mask.is_none() => Some(view),
            _ => None,
        }
    }

    /// Whether some elements have no source element.
    pub fn is_masked(&self) -> bool {
        self.views.iter().any(|v| v.mask.is_some())
    }

    /// `source` seen through this map: `self`'s source is `source`'s shape.
    pub fn of(&self, source: &View) -> IndexMap {
        let mut views: SmallVec<[View; 1]> = smallvec![*source];
        for view in &self.views {
            match views[views.len() - 1].then(view) {
                Some(merged) => *views.last_mut().expect("never empty") = merged,
                None => views.push(*view),
            }
        }
        IndexMap { views }
    }

    /// The same map, met by another last view.
    pub fn with_last(&self, view: View) -> IndexMap {
        let mut views = self.views.clone();
        *views.last_mut().expect("never empty") = view;
        IndexMap { views }
    }

    /// The source element of the element with these coordinates, or None where there is only fill.
    pub fn at(&self, coordinates: &[usize]) -> Option<usize> {
        let mut coordinates: SmallVec<[usize; MAX_RANK]> = coordinates.into();
        let mut linear = 0isize;
        for (i, view) in self.views.iter().rev().enumerate() {
            if i > 0 {
                coordinates = view.shape.iter().map(|_| 0).collect();
                let mut rest = linear as usize;
                for (axis, &size) in view.shape.iter().enumerate().rev() {
                    (coordinates[axis], rest) = (rest % size, rest / size);
                }
            }
            if let Some(mask) = &view.mask
                && coordinates.iter().zip(mask).any(|(c, m)| !(m.0..m.1).contains(c))
            {
                return None;
            }
            linear = view.offset + coordinates.iter().zip(view.strides).map(|(c, s)| *c as isize * s).sum::<isize>();
        }
        Some(linear as usize)
    }
}

impl From<View> for IndexMap {
    fn from(view: View) -> IndexMap {
        IndexMap { views: smallvec![view] }
    }
}

impl fmt::Display for IndexMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, view) in self.views.iter().enumerate() {
            write!(f, "{}{view}", if i > 0 { " through " } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Walks all coordinates of a shape in row-major order.
    fn coordinates(shape: &Shape) -> impl Iterator<Item = Vec<usize>> + '_ {
        (0..shape.n_elems()).map(|mut i| {
            let mut c = vec![0; shape.rank()];
            for axis in (0..shape.rank()).rev() {
                (c[axis], i) = (i % shape[axis], i / shape[axis]);
            }
            c
        })
    }

    /// One random movement of `shape`, chosen by the numbers in `dice`.
    fn movement(shape: &Shape, dice: &[usize]) -> View {
        let rank = shape.rank();
        match dice[0] % 6 {
            0 if rank > 0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(dice[1] % rank);
                order.swap(0, dice[2] % rank);
                View::permute(shape, &order)
            }
            1 => {
                let ranges: Vec<_> = (shape.iter().zip(dice))
                    .map(|(&d, &r)| match r % 4 {
                        0 if d > 0 => (d - 1, -1, d),
                        1 if d > 1 => (1, 1, d - 1),
                        2 => (0, 2, d.div_ceil(2)),
                        _ => (0, 1, d),
                    })
                    .collect();
                View::slice(shape, &ranges)
            }
            2 if rank < 4 => View::broadcast(shape, &[2].iter().chain(shape.iter()).copied().collect()),
            3 if rank > 1 => View::contiguous([shape[0] * shape[1]].iter().chain(&shape[2..]).copied().collect()),
            4 if rank > 0 && shape[0].is_multiple_of(2) && rank < 4 => {
                View::contiguous([2, shape[0] / 2].iter().chain(&shape[1..]).copied().collect())
            }
            5 if dice[1].is_multiple_of(3) => View::pad(shape, &shape.iter().map(|_| (1, 0)).collect::<Vec<_>>()),
            _ => View::contiguous(*shape),
        }
    }

    proptest! {
        #[test]
        fn a_map_of_many_views_is_the_views_one_after_another(
            dims in prop::collection::vec(0usize..5, 0..4),
            dice in prop::collection::vec(prop::collection::vec(0usize..100, 8), 1..5),
        ) {
            let source = Shape::from(dims);
            let (mut shape, mut views) = (source, Vec::new());
            for d in &dice {
                let view = movement(&shape, d);
                shape = view.shape;
                views.push(view);
            }
            prop_assume!(shape.n_elems() < 5000);
            // Composed as the planner does it: from the reader towards the source.
            let mut map = IndexMap::identity(shape);
            for view in views.iter().rev() {
                map = map.of(view);
            }
            prop_assert_eq!(map.shape(), &shape);
            for c in coordinates(&shape) {
                // One view after another, by hand.
                let mut at = Some(c.clone());
                for (i, view) in views.iter().enumerate().rev() {
                    let below = if i == 0 { source } else { views[i - 1].shape };
                    at = at.and_then(|c| IndexMap::from(*view).at(&c)).map(|n| coordinates(&below).nth(n).expect("inside"));
                }
                let linear = at.map(|c| c.iter().zip(source.strides()).map(|(c, s)| c * s as usize).sum::<usize>());
                prop_assert_eq!(map.at(&c), linear, "{} at {:?}", map, c);
            }
        }
    }
}
