//! Index maps as a kernel walks them: positions in the order they are visited, to runs of source elements.
//! Every access, strided or through a chain of views, is a sequence of runs with a constant step. Touches no memory.

use smallvec::SmallVec;

use crate::shape::MAX_RANK;
use crate::view::{IndexMap, View};

/// Axes in the order in which they are counted.
pub const IN_ORDER: [usize; MAX_RANK] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Where each position of a walk has its element.
#[derive(Clone, Debug)]
pub enum ElementRuns {
    /// The same element everywhere.
    One(isize),
    /// Position `i` is element `i +` this.
    Flat(isize),
    /// By strides over axes, outermost first; neighbours that run on are merged.
    Strided { axes: StridedAxes, offset: isize },
    /// The same with a mask, or of other axes than those that are visited.
    Masked(Box<ChainView>),
    /// Through views, source side first.
    Chain(Vec<ChainView>),
}

type StridedAxes = SmallVec<[StridedAxis; 4]>;

/// One axis of a strided walk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StridedAxis {
    pub size: usize,
    pub stride: isize,
}

/// One view of a chain.
#[derive(Clone, Debug)]
pub struct ChainView {
    axes: SmallVec<[ChainAxis; 4]>,
    offset: isize,
}

#[derive(Clone, Copy, Debug)]
struct ChainAxis {
    size: isize,
    stride: isize,
    /// How far apart neighbours along this axis are in the order the view is counted in.
    pitch: Divisor,
    /// Coordinates that have an element.
    inside: (isize, isize),
}

impl ElementRuns {
    /// How many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        let view = |view: &ChainView| match view.axes.spilled() {
            true => view.axes.capacity() * size_of::<ChainAxis>(),
            false => 0,
        };
        match self {
            ElementRuns::Strided { axes, .. } if axes.spilled() => axes.capacity() * size_of::<StridedAxis>(),
            ElementRuns::One(_) | ElementRuns::Flat(_) | ElementRuns::Strided { .. } => 0,
            ElementRuns::Masked(masked) => size_of::<ChainView>() + view(masked),
            ElementRuns::Chain(views) => {
                views.capacity() * size_of::<ChainView>() + views.iter().map(view).sum::<usize>()
            }
        }
    }
}

/// Divides by one number many times, by a multiplication: each run of a chain is found by as many divisions as its views
/// have axes, and a processor takes tens of cycles for one.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    by: isize,
    /// 2⁶⁴ / by, rounded up.
    inverse: u64,
}

impl Divisor {
    fn new(by: isize) -> Divisor {
        Divisor { by, inverse: (u64::MAX / by as u64).wrapping_add(1) }
    }

    /// `n / by`, for `n ≥ 0`.
    #[inline]
    fn quotient(self, n: isize) -> isize {
        match n as u64 {
            _ if self.by == 1 => n,
            // Exact if both numbers have 32 bits; a greater divisor gives 0 then.
            n if n >> 32 == 0 && self.by >> 32 == 0 => ((self.inverse as u128 * n as u128) >> 64) as isize,
            _ => n / self.by,
        }
    }
}

/// Consecutive positions whose elements are a constant step apart, or which all have none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StridedRun {
    pub len: usize,
    pub source: isize,
    pub step: isize,
    pub valid: bool,
}

impl ElementRuns {
    /// The walk of `map` that visits its axes in this order, the last fastest.
    pub fn new(map: &IndexMap, order: &[usize]) -> ElementRuns {
        if let Some(view) = map.strided() {
            return ElementRuns::strided(order.iter().map(|&a| (view.shape[a], view.strides[a])), view.offset);
        }
        // A last view that is visited in the order it counts in says nothing: positions are those of the view before.
        let (mut views, mut order) = (map.views(), order);
        while let [before @ .., last] = views
            && !before.is_empty()
            && is_counted(last, order)
        {
            views = before;
            order = &IN_ORDER[..before[before.len() - 1].shape.rank()];
        }
        let last = views.len() - 1;
        let chain_view =
            |(i, v): (usize, &View)| ChainView::new(v, if i == last { order } else { &IN_ORDER[..v.shape.rank()] });
        let mut views: Vec<ChainView> = views.iter().enumerate().map(chain_view).collect();
        match views.len() == 1 && !views[0].axes.is_empty() {
            true => ElementRuns::Masked(Box::new(views.swap_remove(0))),
            false => ElementRuns::Chain(views),
        }
    }

    /// The walk over these axes, `(size, stride)`.
    pub fn strided(from: impl Iterator<Item = (usize, isize)>, offset: isize) -> ElementRuns {
        let mut axes = StridedAxes::new();
        for (size, stride) in from {
            match axes.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.stride == stride * size as isize => {
                    *last = StridedAxis { size: last.size * size, stride }
                }
                _ => axes.push(StridedAxis { size, stride }),
            }
        }
        match axes[..] {
            [] | [StridedAxis { stride: 0, .. }] => ElementRuns::One(offset),
            [StridedAxis { stride: 1, .. }] => ElementRuns::Flat(offset),
            _ => ElementRuns::Strided { axes, offset },
        }
    }

    /// Calls `f` with the position in `0..len` and the run of every run from `start` on.
    #[inline]
    pub fn runs(&self, start: usize, len: usize, mut f: impl FnMut(usize, StridedRun)) {
        match self {
            ElementRuns::One(source) => f(0, StridedRun { len, source: *source, step: 0, valid: true }),
            ElementRuns::Flat(offset) => {
                f(0, StridedRun { len, source: offset + start as isize, step: 1, valid: true })
            }
            ElementRuns::Strided { axes, offset } => strided_runs(axes, *offset, start, len, f),
            ElementRuns::Masked(view) => masked_runs(view, start, len, f),
            ElementRuns::Chain(views) => {
                let mut at = 0;
                while at < len {
                    let run = chain_run(views, (start + at) as isize, (len - at) as isize);
                    f(at, run);
                    at += run.len;
                }
            }
        }
    }

    /// The element of position `at`, for walks without a mask.
    #[inline]
    pub fn element(&self, at: usize) -> isize {
        match self {
            ElementRuns::One(source) => *source,
            ElementRuns::Flat(offset) => offset + at as isize,
            ElementRuns::Strided { axes, offset } => {
                let (mut source, mut rest) = (*offset, at);
                for axis in axes[1..].iter().rev() {
                    let next = rest / axis.size;
                    source += (rest - next * axis.size) as isize * axis.stride;
                    rest = next;
                }
                source + rest as isize * axes[0].stride
            }
            ElementRuns::Masked(view) => chain_run(std::slice::from_ref(&**view), at as isize, 1).source,
            ElementRuns::Chain(views) => chain_run(views, at as isize, 1).source,
        }
    }

    /// From one position of the innermost axis to the next, if that is the same everywhere.
    pub fn step(&self) -> Option<isize> {
        match self {
            ElementRuns::One(_) => Some(0),
            ElementRuns::Flat(_) => Some(1),
            ElementRuns::Strided { axes, .. } => Some(axes[axes.len() - 1].stride),
            ElementRuns::Masked(_) | ElementRuns::Chain(_) => None,
        }
    }
}

fn strided_runs(axes: &StridedAxes, offset: isize, start: usize, len: usize, mut f: impl FnMut(usize, StridedRun)) {
    let last = axes.len() - 1;
    let inner = axes[last];
    let mut coordinates = [0usize; crate::shape::MAX_RANK];
    let (mut rest, mut source) = (start, offset);
    for (axis, a) in axes.iter().enumerate().rev() {
        coordinates[axis] = rest % a.size;
        rest /= a.size;
        source += coordinates[axis] as isize * a.stride;
    }
    let mut at = 0;
    while at < len {
        let n = (inner.size - coordinates[last]).min(len - at);
        f(at, StridedRun { len: n, source, step: inner.stride, valid: true });
        at += n;
        // On to the next row: back to the start of this one, then carry outwards.
        source -= coordinates[last] as isize * inner.stride;
        coordinates[last] = 0;
        for axis in (0..last).rev() {
            coordinates[axis] += 1;
            source += axes[axis].stride;
            if coordinates[axis] < axes[axis].size {
                break;
            }
            source -= coordinates[axis] as isize * axes[axis].stride;
            coordinates[axis] = 0;
        }
    }
}

/// A row at a time: whether the coordinates of the other axes are inside is known when they change, so that a row is at
/// most three runs.
fn masked_runs(view: &ChainView, start: usize, len: usize, mut f: impl FnMut(usize, StridedRun)) {
    let axes = &view.axes[..];
    let last = axes.len() - 1;
    let inner = axes[last];
    let is_inside = |axis: &ChainAxis, c: isize| axis.inside.0 <= c && c < axis.inside.1;
    let mut coordinates = [0isize; crate::shape::MAX_RANK];
    let (mut rest, mut source, mut n_outside) = (start as isize, view.offset, 0);
    for (axis, a) in axes.iter().enumerate() {
        let c = a.pitch.quotient(rest);
        rest -= c * a.pitch.by;
        coordinates[axis] = c;
        source += c * a.stride;
        n_outside += (axis < last && !is_inside(a, c)) as usize;
    }
    let (mut at, mut c) = (0, coordinates[last]);
    source -= c * inner.stride;
    let len = len as isize;
    while at < len {
        let end = inner.size.min(c + len - at);
        if n_outside > 0 {
            f(at as usize, StridedRun { len: (end - c) as usize, source: 0, step: 0, valid: false });
            at += end - c;
        } else {
            for (to, valid) in [(inner.inside.0, false), (inner.inside.1, true), (end, false)] {
                let to = to.clamp(c, end);
                if to > c {
                    let (source, step) = if valid { (source + c * inner.stride, inner.stride) } else { (0, 0) };
                    f(at as usize, StridedRun { len: (to - c) as usize, source, step, valid });
                    at += to - c;
                    c = to;
                }
            }
        }
        c = 0;
        for axis in (0..last).rev() {
            let a = &axes[axis];
            let was_inside = is_inside(a, coordinates[axis]);
            coordinates[axis] += 1;
            source += a.stride;
            let is_next = coordinates[axis] < a.size;
            if !is_next {
                source -= coordinates[axis] * a.stride;
                coordinates[axis] = 0;
            }
            n_outside += was_inside as usize;
            n_outside -= is_inside(a, coordinates[axis]) as usize;
            if is_next {
                break;
            }
        }
    }
}

impl ChainView {
    fn new(view: &View, order: &[usize]) -> ChainView {
        let mut axes: SmallVec<[ChainAxis; 4]> = SmallVec::new();
        let mut pitch = 1;
        for &axis in order.iter().rev() {
            let size = view.shape[axis] as isize;
            let inside = view.mask.as_ref().map_or((0, size), |m| (m[axis].0 as isize, m[axis].1 as isize));
            let stride = view.strides[axis];
            let runs_on = |inner: &ChainAxis| inner.is_whole() && stride == inner.stride * inner.size;
            if let Some(inner) = axes.last_mut().filter(|inner| runs_on(inner)) {
                // Whole rows of the inner axis are inside or not.
                inner.inside = (inside.0 * inner.size, inside.1 * inner.size);
                inner.size *= size;
            } else if size != 1 || inside != (0, 1) {
                axes.push(ChainAxis { size, stride, pitch: Divisor::new(pitch), inside });
            }
            pitch *= size.max(1);
        }
        axes.reverse();
        ChainView { axes, offset: view.offset }
    }
}

impl ChainAxis {
    fn is_whole(&self) -> bool {
        self.inside == (0, self.size)
    }
}

/// Whether a view, visited in this order, has its elements one after another from the first on.
fn is_counted(view: &View, order: &[usize]) -> bool {
    let mut pitch = 1;
    let mut is_next = |axis: &usize| {
        let size = view.shape[*axis] as isize;
        let is_next = size == 1 || view.strides[*axis] == pitch;
        pitch *= size.max(1);
        is_next
    };
    view.offset == 0 && view.mask.is_none() && order.iter().rev().all(&mut is_next)
}

/// The run of a chain that starts at `position`, at most `len` long.
fn chain_run(views: &[ChainView], position: isize, mut len: isize) -> StridedRun {
    let (mut linear, mut step) = (position, 1isize);
    for view in views.iter().rev() {
        // A step moves along one axis: the outermost whose pitch divides it. It stays a step until that axis ends.
        let divides = |a: &ChainAxis| a.pitch.quotient(step.abs()) * a.pitch.by == step.abs();
        let moving = if step == 0 { None } else { view.axes.iter().position(divides) };
        let (mut source, mut valid, mut next_step) = (view.offset, true, 0);
        for (i, axis) in view.axes.iter().enumerate() {
            let c = axis.pitch.quotient(linear);
            linear -= c * axis.pitch.by;
            source += c * axis.stride;
            let inside = axis.inside.0 <= c && c < axis.inside.1;
            if moving == Some(i) {
                let by = axis.pitch.quotient(step.abs()) * step.signum();
                len = len.min(steps_until(c, by, 0, axis.size));
                len = len.min(if inside {
                    steps_until(c, by, axis.inside.0, axis.inside.1)
                } else {
                    steps_outside(c, by, axis.inside)
                });
                next_step = by * axis.stride;
            }
            valid &= inside;
        }
        if !valid {
            return StridedRun { len: len as usize, source: 0, step: 0, valid: false };
        }
        (linear, step) = (source, next_step);
    }
    StridedRun { len: len as usize, source: linear, step, valid: true }
}

/// How many positions from `c` by `by` stay within `low..high`, where `c` is.
fn steps_until(c: isize, by: isize, low: isize, high: isize) -> isize {
    match by {
        0 => isize::MAX,
        1 => high - c,
        2.. => (high - 1 - c) / by + 1,
        _ => (c - low) / -by + 1,
    }
}

/// How many positions from `c` by `by` stay outside `inside`, where `c` is not.
fn steps_outside(c: isize, by: isize, inside: (isize, isize)) -> isize {
    if by > 0 && c < inside.0 {
        (inside.0 - c + by - 1) / by
    } else if by < 0 && c >= inside.1 {
        (c - inside.1) / -by + 1
    } else {
        isize::MAX
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape::Shape;

    /// The element of every position, by way of runs.
    fn elements(walk: &ElementRuns, start: usize, len: usize) -> Vec<Option<usize>> {
        let mut out = Vec::new();
        walk.runs(start, len, |at, run| {
            assert_eq!(at, out.len());
            out.extend((0..run.len).map(|i| run.valid.then(|| (run.source + i as isize * run.step) as usize)));
        });
        out
    }

    /// A chain of views made from dice: permutations, slices, pads, reshapes and broadcasts, from `shape` on.
    fn chain(shape: Shape, dice: &[Vec<usize>]) -> (Shape, IndexMap) {
        let (mut seen, mut views) = (shape, Vec::new());
        for d in dice {
            let rank = seen.rank();
            let view = match d[0] % 6 {
                0 if rank > 1 => {
                    let mut order: Vec<usize> = (0..rank).collect();
                    order.rotate_left(1 + d[1] % rank);
                    View::permute(&seen, &order)
                }
                1 => View::slice(
                    &seen,
                    &seen
                        .iter()
                        .zip(&d[1..])
                        .map(|(&n, &r)| if r % 2 == 0 && n > 0 { (n - 1, -1, n) } else { (0, 2, n.div_ceil(2)) })
                        .collect::<Vec<_>>(),
                ),
                2 => View::pad(&seen, &seen.iter().zip(&d[1..]).map(|(_, &r)| (r % 3, r / 3 % 3)).collect::<Vec<_>>()),
                3 if rank > 1 => View::contiguous([seen[0] * seen[1]].iter().chain(&seen[2..]).copied().collect()),
                4 if rank > 0 && rank < 4 && seen[rank - 1] % 2 == 0 => {
                    View::contiguous(seen[..rank - 1].iter().copied().chain([seen[rank - 1] / 2, 2]).collect())
                }
                5 if rank < 4 => View::broadcast(&seen, &[2].iter().chain(seen.iter()).copied().collect()),
                _ => View::contiguous(seen),
            };
            seen = view.shape;
            views.push(view);
        }
        let mut map = IndexMap::identity(seen);
        for view in views.iter().rev() {
            map = map.of(view);
        }
        (seen, map)
    }

    proptest! {
        #[test]
        fn runs_give_the_elements_of_the_map(
            dims in prop::collection::vec(1usize..6, 1..4),
            dice in prop::collection::vec(prop::collection::vec(0usize..100, 8), 0..5),
            cut in 0usize..100,
        ) {
            let (seen, map) = chain(Shape::from(dims), &dice);
            prop_assume!(seen.n_elems() < 3000);
            // In the order of the axes, and in another.
            for turn in 0..seen.rank().max(1) {
                let mut order: Vec<usize> = (0..seen.rank()).collect();
                order.rotate_left(turn.min(seen.rank()));
                let walk = ElementRuns::new(&map, &order);
                let expect: Vec<Option<usize>> = (0..seen.n_elems()).map(|mut i| {
                    let mut c = vec![0; seen.rank()];
                    for &axis in order.iter().rev() {
                        (c[axis], i) = (i % seen[axis], i / seen[axis]);
                    }
                    map.at(&c)
                }).collect();
                let start = cut.min(expect.len());
                prop_assert_eq!(&elements(&walk, start, expect.len() - start), &expect[start..], "{:?}", walk);
                for (i, at) in expect.iter().enumerate().filter_map(|(i, at)| at.map(|at| (i, at))) {
                    prop_assert_eq!(walk.element(i), at as isize);
                }
            }
        }
    }
}
