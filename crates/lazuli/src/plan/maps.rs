//! Index maps axis by axis: where one varies, and the same map over other axes of the index space.

use smallvec::SmallVec;

use crate::kernel::Scope;
use crate::shape::{MAX_RANK, Shape};
use crate::view::{IndexMap, View};

/// Whether a map has one inner axis, and no mask along it.
pub fn is_one_axis(map: &IndexMap, n_outer: usize) -> bool {
    let view = last(map);
    view.shape.rank() == n_outer + 1 && view.inside(n_outer) == (0, view.shape[n_outer])
}

/// Sizes with the strides of a row-major array.
pub fn contiguous(sizes: &[usize]) -> Vec<(usize, isize)> {
    let shape: Shape = sizes.iter().copied().collect();
    sizes.iter().copied().zip(shape.strides()).collect()
}

/// The view that meets the index space.
pub fn last(map: &IndexMap) -> &View {
    map.views().last().expect("never empty")
}

/// Where a map varies, given how many axes of the index space are outer ones.
pub fn scope_of(map: &IndexMap, n_outer: usize) -> Scope {
    let view = last(map);
    let varies = |axis: usize| {
        let size = view.shape[axis];
        (size != 1 && view.strides[axis] != 0) || view.mask.is_some_and(|m| m[axis] != (0, size))
    };
    let rank = view.shape.rank();
    if (n_outer..rank).any(varies) {
        Scope::Inner
    } else if (0..n_outer).any(varies) {
        Scope::Outer
    } else {
        Scope::Uniform
    }
}

/// Whether an axis and the next one, of this size, can be one axis of a map.
pub fn mergeable(map: &IndexMap, axis: usize, next_size: usize) -> bool {
    let view = last(map);
    let unmasked = |i: usize| view.mask.is_none_or(|m| m[i] == (0, view.shape[i]));
    unmasked(axis) && unmasked(axis + 1) && view.strides[axis] == view.strides[axis + 1] * next_size as isize
}

/// An axis of a map: size, stride, and which coordinates have an element.
pub type MapAxis = (usize, isize, (usize, usize));

/// The same map with its last view rewritten axis by axis: `(size, stride, mask)`.
pub fn rewrite(map: &IndexMap, f: impl FnOnce(&mut SmallVec<[MapAxis; MAX_RANK]>)) -> IndexMap {
    let view = last(map);
    let axis = |i: usize| (view.shape[i], view.strides[i], view.mask.map_or((0, view.shape[i]), |m| m[i]));
    let mut axes: SmallVec<[MapAxis; MAX_RANK]> = (0..view.shape.rank()).map(axis).collect();
    f(&mut axes);
    let mut new = View::from_axes(axes.iter().map(|a| (a.0, a.1)), view.offset);
    if axes.iter().any(|a| a.2 != (0, a.0)) || (view.mask.is_some() && axes.is_empty()) {
        let mut mask = [(0, 0); MAX_RANK];
        mask.iter_mut().zip(&axes).for_each(|(m, a)| *m = a.2);
        new.mask = Some(mask);
    }
    map.with_last(new)
}

/// Makes an axis and the next one, which runs on, one axis.
pub fn merge_axes(map: &mut IndexMap, axis: usize) {
    let view = map.last_mut();
    let size = view.shape[axis] * view.shape[axis + 1];
    let stride = view.strides[axis + 1];
    view.remove_axis(axis + 1);
    view.set_axis(axis, size, stride);
}

/// Takes out an axis of one element.
pub fn remove_axis(map: &mut IndexMap, axis: usize) {
    map.last_mut().remove_axis(axis);
}

/// The same map with one more axis.
pub fn with_axis(map: &IndexMap, axis: usize, size: usize, stride: isize) -> IndexMap {
    rewrite(map, |axes| axes.insert(axis, (size, stride, (0, size))))
}

/// The map over the first `n_axes` axes alone; along the others it does not vary.
pub fn cut(map: &mut IndexMap, n_axes: usize) {
    let view = map.last_mut();
    for axis in (n_axes..view.shape.rank()).rev() {
        view.remove_axis(axis);
    }
}
