//! The gradient of a view: what came from one element of the source is summed there, and elements nobody saw get zero.
//! The usual movements have their opposite as a view again; anything else is scattered.

use std::panic::Location;

use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::NodeRef;
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

/// The gradient of the source `x` of `view` from that of what was seen.
pub fn adjoint(view: &View, x: &Tensor, g: &Tensor) -> Tensor {
    Tensor::attempt(|| {
        let source = x.node()?;
        // Seen as it is, in another shape.
        if view.is_linear() && view.shape.n_elems() == source.shape.n_elems() {
            return Ok(g.reshape(source.shape));
        }
        if view.shape.n_elems() == 0 {
            return Ok(x.zeros_like());
        }
        let (view, g) = unrepeated(view, g);
        if view.is_linear() && view.shape.n_elems() == source.shape.n_elems() {
            return Ok(g.reshape(source.shape));
        }
        match AxisWalk::of(&view, &source.shape) {
            Some(walk) if walk.n_windows() + source.shape.rank() <= MAX_RANK => walk.back(&source.shape, &g),
            _ => scattered(&view, source, &g),
        }
    })
}

/// A view without the axes along which it stands still, and `g` summed over them. Axes of size 1 go as well.
fn unrepeated(view: &View, g: &Tensor) -> (View, Tensor) {
    let stays = |axis: &usize| view.shape[*axis] == 1 || view.strides[*axis] == 0;
    let repeats: SmallVec<[i32; MAX_RANK]> = (0..view.shape.rank()).filter(stays).map(|a| a as i32).collect();
    if repeats.is_empty() {
        return (*view, g.clone());
    }
    let left = (0..view.shape.rank()).filter(|a| !stays(a));
    (View::from_axes(left.map(|a| (view.shape[a], view.strides[a])), view.offset), g.sum(&repeats[..]))
}

/// One step of a view's axis is this many steps along one axis of the source.
#[derive(Clone, Copy)]
struct Stride {
    /// The axis of the view.
    seen: usize,
    size: usize,
    step: isize,
}

/// A view that walks each axis of its source by itself: forwards or backwards, in steps, in any order of axes, and
/// perhaps by windows (an axis of places and an axis within each).
struct AxisWalk {
    /// Per source axis, the first coordinate.
    start: SmallVec<[usize; MAX_RANK]>,
    /// Per source axis, the one or two axes of the view that walk it; for windows, places first.
    along: SmallVec<[SmallVec<[Stride; 2]>; MAX_RANK]>,
}

impl AxisWalk {
    /// The view as a walk, if it is one.
    fn of(view: &View, source: &Shape) -> Option<AxisWalk> {
        let steps = source.strides();
        let mut rest = view.offset;
        let mut start: SmallVec<[usize; MAX_RANK]> = SmallVec::new();
        for axis in 0..source.rank() {
            start.push((rest / steps[axis]) as usize);
            rest %= steps[axis];
        }
        let mut along: SmallVec<[SmallVec<[Stride; 2]>; MAX_RANK]> =
            (0..source.rank()).map(|_| SmallVec::new()).collect();
        for (seen, (&size, &stride)) in view.shape.iter().zip(&view.strides).enumerate() {
            // The outermost source axis whose step divides this one and along which there is room.
            let room = |a: &usize| stride % steps[*a] == 0 && (stride / steps[*a]).unsigned_abs() < source[*a];
            let axis = (0..source.rank()).find(room)?;
            along[axis].push(Stride { seen, size, step: stride / steps[axis] });
        }
        for (axis, strides) in along.iter_mut().enumerate() {
            strides.sort_by_key(|s| std::cmp::Reverse(s.step.abs()));
            let reach = |sign: isize| -> isize {
                strides.iter().filter(|s| s.step.signum() == sign).map(|s| s.step.abs() * (s.size as isize - 1)).sum()
            };
            let fits = start[axis] as isize >= reach(-1) && start[axis] as isize + reach(1) < source[axis] as isize;
            let is_known = match &strides[..] {
                [] | [_] => true,
                [places, within] => places.step > 0 && within.step > 0,
                _ => false,
            };
            if !fits || !is_known {
                return None;
            }
        }
        Some(AxisWalk { start, along })
    }

    /// How many source axes are walked by windows: in the backward pass each needs an axis beside the source's own.
    fn n_windows(&self) -> usize {
        self.along.iter().filter(|strides| strides.len() == 2).count()
    }

    /// `g`, which has the view's shape, walked back to the source's.
    fn back(&self, source: &Shape, g: &Tensor) -> Result<Tensor> {
        let seen = g.node()?.shape;
        // Axes within windows first, so that what lies side by side in the source does so here; then the source's.
        let within = self.along.iter().filter_map(|strides| strides.get(1));
        let places = self.along.iter().map(|strides| strides.first());
        let mut order: SmallVec<[i32; MAX_RANK]> = within.clone().map(|s| s.seen as i32).collect();
        order.extend(places.clone().flatten().map(|s| s.seen as i32));
        let mut shape: SmallVec<[usize; MAX_RANK]> = within.clone().map(|s| s.size).collect();
        shape.extend(places.map(|places| places.map_or(1, |s| s.size)));
        debug_assert_eq!(order.len(), seen.rank());
        let mut n_windows = within.count();
        let mut g = g.permute(&order).reshape(&shape[..]);
        for (axis, strides) in self.along.iter().enumerate() {
            let (size, at) = (source[axis], n_windows + axis);
            let Some(places) = strides.first() else {
                g = padded(&g, at, self.start[axis], size - 1 - self.start[axis]);
                continue;
            };
            let reach = places.step.unsigned_abs() * (places.size - 1);
            let mut first = self.start[axis];
            if places.step < 0 {
                g = g.flip(at as i32);
                first -= reach;
            }
            g = dilated(&g, at, places.step.unsigned_abs());
            match strides.get(1) {
                None => g = padded(&g, at, first, size - first - reach - 1),
                Some(within) => {
                    g = gathered(&g, at, size, first, reach, within)?;
                    n_windows -= 1;
                }
            }
        }
        Ok(g)
    }
}

/// With zeros around one axis.
fn padded(g: &Tensor, axis: usize, before: usize, after: usize) -> Tensor {
    if before == 0 && after == 0 {
        return g.clone();
    }
    Tensor::attempt(|| {
        let mut pads: SmallVec<[(usize, usize); MAX_RANK]> = g.node()?.shape.iter().map(|_| (0, 0)).collect();
        pads[axis] = (before, after);
        Ok(g.pad(&pads, 0.0))
    })
}

/// With `step − 1` zeros between the elements of one axis.
fn dilated(g: &Tensor, axis: usize, step: usize) -> Tensor {
    if step == 1 {
        return g.clone();
    }
    Tensor::attempt(|| {
        let shape = g.node()?.shape;
        let spaced = match shape.rank() < MAX_RANK {
            true => padded(&g.unsqueeze(axis as i32 + 1), axis + 1, 0, step - 1),
            // There is no axis left to put beside this one: those before it become one, and those after it.
            false => {
                let (before, after) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product());
                padded(&g.reshape([before, shape[axis], 1, after]), 2, 0, step - 1)
            }
        };
        // After the last element there are none.
        let size = shape[axis] * step;
        Ok(spaced.reshape(shape.with(axis, size)).narrow(axis as i32, 0, size - (step - 1)))
    })
}

/// Windows put back: `Σ_k g[k, i − k·step]` for each of the `size` elements `i` of the axis. The axis within the window is
/// the first.
fn gathered(g: &Tensor, axis: usize, size: usize, first: usize, reach: usize, within: &Stride) -> Result<Tensor> {
    let width = within.step as usize * (within.size - 1);
    // Element i of the padded axis is element i − width − first of g.
    let g = padded(g, axis, width + first, size - first - reach - 1);
    if within.size <= UNROLLED {
        // Few: their sum is one map over shifted slices.
        let shifted = |k: usize| {
            let shift = width - k * within.step as usize;
            g.select_index(0, k as isize).narrow(axis as i32 - 1, shift, size)
        };
        return Ok((1..within.size).fold(shifted(0), |sum, k| sum.add(shifted(k))));
    }
    // Many: a skewed view lines them up, and their sum is one reduction.
    let node = g.node()?;
    let steps = node.shape.strides();
    let skewed = node.shape.iter().zip(steps).enumerate().map(|(i, (&n, step))| match i {
        0 => (n, step - within.step * steps[axis]),
        _ if i == axis => (size, step),
        _ => (n, step),
    });
    let view = View::from_axes(skewed, width as isize * steps[axis]);
    Ok(Tensor::viewed(node, view, Location::caller()).sum(0))
}

/// The longest window whose elements are added one by one.
const UNROLLED: usize = 16;

/// Any view at all: the index of each element's source is the same view of a count.
fn scattered(view: &View, source: &NodeRef, g: &Tensor) -> Result<Tensor> {
    let n_elems = source.shape.n_elems();
    let count = Tensor::arange(0, n_elems as i64, 1, &source.device);
    let index = Tensor::viewed(count.node()?, *view, Location::caller()).flatten();
    let zeros = Tensor::zeros([n_elems], source.dtype, &source.device);
    Ok(zeros.scatter_add(0, &index, &g.flatten()).reshape(source.shape))
}
