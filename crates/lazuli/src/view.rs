//! Index arithmetic as data: a view says which element of a row-major source each element of a shape is.
//! Every movement op (reshape, permute, slice, flip, broadcast, pad) is one view. Knows nothing of nodes or bytes.

use std::fmt;
use std::hash::{Hash, Hasher};

use smallvec::{SmallVec, smallvec};

use crate::shape::{MAX_RANK, Shape};

/// The range of coordinates, per axis, for which a view has a source element; outside it the view holds its fill.
pub type Mask = [(usize, usize); MAX_RANK];

/// A strided window: element `i` of `shape` is element `offset + Σ i·strides` of the source, counted row-major.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        let mut strides = view.strides.iter_mut();
        let sizes = axes.map(|(size, stride)| {
            strides.next().into_iter().for_each(|place| *place = stride);
            size
        });
        view.shape = sizes.collect();
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

    /// Takes out an axis. What its mask hides counts as hidden no longer.
    pub fn remove_axis(&mut self, axis: usize) {
        let rank = self.shape.rank();
        self.shape.remove(axis);
        self.strides.copy_within(axis + 1..rank, axis);
        self.strides[rank - 1] = 0;
        if let Some(mask) = &mut self.mask {
            mask.copy_within(axis + 1..rank, axis);
            mask[rank - 1] = (0, 0);
        }
        self.drop_whole_mask();
    }

    /// Gives an axis another size and stride; all of it has elements.
    pub fn set_axis(&mut self, axis: usize, size: usize, stride: isize) {
        self.shape = self.shape.with(axis, size);
        self.strides[axis] = stride;
        if let Some(mask) = &mut self.mask {
            mask[axis] = (0, size);
        }
        self.drop_whole_mask();
    }

    /// A mask that hides nothing is none. That of a view without axes says that its one element is hidden.
    fn drop_whole_mask(&mut self) {
        if self.shape.rank() > 0 && (0..self.shape.rank()).all(|axis| self.is_whole(axis)) {
            self.mask = None;
        }
    }

    /// The coordinates of an axis that have a source element.
    pub fn inside(&self, axis: usize) -> (usize, usize) {
        self.mask.map_or((0, self.shape[axis]), |mask| mask[axis])
    }

    /// Whether every coordinate of an axis has one.
    fn is_whole(&self, axis: usize) -> bool {
        self.inside(axis) == (0, self.shape[axis])
    }

    /// Its axes with the same meaning, `(size, stride, inside)`: those of size 1 go, neighbours whose strides run on are
    /// merged unless they have a mask.
    fn collapsed(&self) -> SmallVec<[Digit; MAX_RANK]> {
        let mut digits: SmallVec<[Digit; MAX_RANK]> = SmallVec::new();
        for (axis, (&size, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            let (low, high) = self.inside(axis);
            let inside = (low as isize, high as isize);
            match digits.last_mut() {
                _ if size == 1 && self.is_whole(axis) => {}
                Some(last) if last.stride == stride * size as isize && last.is_whole() && self.is_whole(axis) => {
                    last.size *= size as isize;
                    *last = Digit { stride, inside: (0, last.size), ..*last };
                }
                _ => digits.push(Digit { size: size as isize, stride, inside }),
            }
        }
        digits
    }

    /// `self` seen through `outer` (whose source is this view's shape), as one view if strides and a mask can say it.
    pub fn then(&self, outer: &View) -> Option<View> {
        if self.is_linear() {
            return Some(*outer);
        }
        if outer.is_linear() && outer.shape == self.shape {
            return Some(*self);
        }
        let inside = |axis: usize| {
            let (low, high) = outer.inside(axis);
            (low as isize, high as isize)
        };
        if (0..outer.shape.rank()).any(|axis| inside(axis).0 >= inside(axis).1) {
            return None;
        }
        let inner = self.collapsed();
        let digits = |mut n: isize| {
            let mut out = [0isize; MAX_RANK];
            for (j, digit) in inner.iter().enumerate().rev() {
                let size = digit.size.max(1);
                // The leading axis takes what is left, so that the bounds check below sees an overflow.
                (out[j], n) = if j == 0 { (n, 0) } else { (n % size, n / size) };
            }
            out
        };
        // Coordinate j of the inner view is start[j] + Σ i·steps, counted from the first that outer's mask lets through;
        // it must stay inside its axis for every i, so that no step carries from one axis into the next.
        let first: isize = (0..outer.shape.rank()).map(|axis| inside(axis).0 * outer.strides[axis]).sum();
        let start = digits(outer.offset + first);
        let mut reach = start.map(CoordRange::at);
        let mut out = View { strides: [0; MAX_RANK], offset: self.offset, ..*outer };
        for (axis, &stride) in outer.strides.iter().enumerate().take(outer.shape.rank()) {
            let n = inside(axis).1 - inside(axis).0;
            if n == 1 {
                continue;
            }
            let step = digits(stride.abs());
            for (j, digit) in inner.iter().enumerate() {
                let step = step[j] * stride.signum();
                reach[j].walk(axis, step, n);
                out.strides[axis] += step * digit.stride;
            }
            out.offset -= inside(axis).0 * out.strides[axis];
        }
        let mut mask = [(0, 0); MAX_RANK];
        for (axis, range) in mask.iter_mut().enumerate().take(outer.shape.rank()) {
            *range = outer.inside(axis);
        }
        for (j, (digit, reach)) in inner.iter().zip(&reach).enumerate() {
            if reach.low < 0 || reach.high >= digit.size {
                return None;
            }
            out.offset += start[j] * digit.stride;
            if reach.low < digit.inside.0 || reach.high >= digit.inside.1 {
                // Part of it is outside the mask: one axis alone must decide which.
                let (axis, step) = reach.only_walker()?;
                let (low, high) = steps_inside(start[j], step, digit.inside);
                let (from, to) = inside(axis);
                let range = (low.clamp(0, to - from) + from, high.clamp(0, to - from) + from);
                mask[axis] = (mask[axis].0.max(range.0 as usize), mask[axis].1.min(range.1 as usize));
                if mask[axis].0 >= mask[axis].1 {
                    return None;
                }
            }
        }
        let is_whole = (0..outer.shape.rank()).all(|axis| mask[axis] == (0, outer.shape[axis]));
        out.mask = (!is_whole).then_some(mask);
        Some(out)
    }
}

/// One axis of a view that others look through.
#[derive(Clone, Copy)]
struct Digit {
    size: isize,
    stride: isize,
    /// Coordinates that have an element.
    inside: (isize, isize),
}

impl Digit {
    fn is_whole(&self) -> bool {
        self.inside == (0, self.size)
    }
}

/// The range of a coordinate, how many axes move it, and the last such axis with its step.
#[derive(Clone, Copy)]
struct CoordRange {
    low: isize,
    high: isize,
    n_walkers: usize,
    last: (usize, isize),
}

impl CoordRange {
    fn at(coordinate: isize) -> CoordRange {
        CoordRange { low: coordinate, high: coordinate, n_walkers: 0, last: (0, 0) }
    }

    fn walk(&mut self, axis: usize, step: isize, n: isize) {
        if step != 0 {
            self.low += (step * (n - 1)).min(0);
            self.high += (step * (n - 1)).max(0);
            self.n_walkers += 1;
            self.last = (axis, step);
        }
    }

    /// The axis that moves the coordinate, and its step; None if several axes do.
    fn only_walker(&self) -> Option<(usize, isize)> {
        (self.n_walkers == 1).then_some(self.last)
    }
}

/// The `i` for which `start + step · i` is inside, as a range.
fn steps_inside(start: isize, step: isize, (low, high): (isize, isize)) -> (isize, isize) {
    let up = |a: isize, b: isize| a.div_euclid(b) + (a.rem_euclid(b) != 0) as isize;
    match step > 0 {
        true => (up(low - start, step), up(high - start, step)),
        false => ((start - high).div_euclid(-step) + 1, (start - low).div_euclid(-step) + 1),
    }
}

/// Only the axes there are: beyond them all is 0.
impl Hash for View {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let rank = self.shape.rank();
        self.shape.hash(state);
        self.strides[..rank].iter().for_each(|stride| state.write_isize(*stride));
        state.write_isize(self.offset);
        for (low, high) in self.mask.iter().flat_map(|mask| &mask[..rank]) {
            state.write_usize(*low);
            state.write_usize(*high);
        }
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
#[derive(Debug, PartialEq, Eq)]
pub struct IndexMap {
    views: SmallVec<[View; 1]>,
}

/// All views at once: planning copies thousands of maps.
impl Clone for IndexMap {
    fn clone(&self) -> IndexMap {
        IndexMap { views: SmallVec::from_slice(&self.views) }
    }
}

impl IndexMap {
    /// Element `i` is element `i`.
    pub fn identity(shape: Shape) -> IndexMap {
        View::contiguous(shape).into()
    }

    /// How many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        if self.views.spilled() { self.views.capacity() * size_of::<View>() } else { 0 }
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

    /// Where the last axis is cut into panels of some width: what is seen as a strided view `[…, n_panels, width]`, if it
    /// is one. The last panel may have columns that the map does not show.
    pub fn in_panels(&self, width: usize) -> Option<View> {
        let [inner, outer] = &self.views[..] else { return None };
        let last = outer.shape.rank().checked_sub(1)?;
        if self.is_masked() || last + 2 > MAX_RANK {
            return None;
        }
        let axes = outer.shape.iter().copied().zip(outer.strides).take(last);
        let (n, stride) = (outer.shape[last], outer.strides[last]);
        let panels = [(n.div_ceil(width), stride * width as isize), (width, stride)];
        inner.then(&View::from_axes(axes.chain(panels), outer.offset))
    }

    /// Whether some elements have no source element.
    pub fn is_masked(&self) -> bool {
        self.views.iter().any(|v| v.mask.is_some())
    }

    /// `source` seen through this map: `self`'s source is `source`'s shape.
    pub fn of(&self, source: &View) -> IndexMap {
        if let [view] = &self.views[..]
            && let Some(merged) = source.then(view)
        {
            return merged.into();
        }
        let mut views: SmallVec<[View; 1]> = smallvec![*source];
        for view in &self.views {
            match views[views.len() - 1].then(view) {
                Some(merged) => *views.last_mut().expect("never empty") = merged,
                None => views.push(*view),
            }
        }
        IndexMap { views }
    }

    /// The view that meets what looks through the map.
    pub fn last_mut(&mut self) -> &mut View {
        self.views.last_mut().expect("never empty")
    }

    /// The same map, met by another last view.
    pub fn with_last(&self, view: View) -> IndexMap {
        self.with(self.views.len() - 1, view)
    }

    /// The same map with another view in the place of one.
    pub fn with(&self, idx: usize, view: View) -> IndexMap {
        if self.views.len() == 1 {
            return view.into();
        }
        let mut views = self.views.clone();
        views[idx] = view;
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

impl Hash for IndexMap {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.views.iter().for_each(|view| view.hash(state));
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
            5 if dice[1].is_multiple_of(2) => {
                View::pad(shape, &shape.iter().zip(dice).map(|(_, &r)| (r % 3, r / 3 % 3)).collect::<Vec<_>>())
            }
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
