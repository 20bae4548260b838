//! Whether a map over `[batch…, rows, columns]` can be an operand of a product in place, and how it lies then: by strides,
//! in panels, or by lists of axes. The last is a *refinement*: a chain of views, such as a reshape of windows or of a
//! transpose, is strides again once its axes are split where an inner view's axes end. Pure index arithmetic; which forms a
//! device takes is handed in.

use smallvec::{SmallVec, smallvec};

use super::PanelWidths;
use crate::kernel::{AxisList, OperandArgs, Panels};
use crate::shape::MAX_RANK;
use crate::view::{IndexMap, View};

/// The ways in which an operand may lie beside plain strides.
#[derive(Clone, Copy, Debug, Default)]
pub struct OperandForms {
    pub panels: Option<PanelWidths>,
    /// Whether rows, columns and batches may be lists of axes, of sources with at most this many elements.
    pub max_list_elems: usize,
    /// Whether integers may be stored as bytes.
    pub bytes: bool,
}

/// How a map lies as an operand of a product, if it can be read in place. Its source has `n_elems` elements.
pub fn operand_args(map: &IndexMap, n_elems: usize, forms: OperandForms) -> Option<(OperandArgs, Option<Panels>)> {
    if let Some(view) = map.strided() {
        return Some((plain(view), None));
    }
    let widths = map.views()[0].shape.iter().filter(|width| forms.panels.is_some_and(|a| a.allow(**width)));
    let panels = widths.filter_map(|width| panelled(map, *width)).next();
    let may_be_listed = map.shape().rank() >= 2 && n_elems <= forms.max_list_elems;
    panels.or_else(|| may_be_listed.then(|| listed(map)).flatten().map(|lies| (lies, None)))
}

fn plain(view: &View) -> OperandArgs {
    let list = |axis: usize| AxisList::single(view.shape[axis], view.strides[axis]);
    by_index(view.shape.rank(), list, view.offset)
}

/// A map in dense panels of this width.
fn panelled(map: &IndexMap, width: usize) -> Option<(OperandArgs, Option<Panels>)> {
    let view = map.in_panels(width)?;
    let across = view.shape.rank() - 1;
    let axis = |i: usize| (view.shape[i], view.strides[i]);
    let panel = View::from_axes((0..across - 1).chain([across]).map(axis), view.offset);
    let is_dense = across > 1 && axis(across).1 == 1 && axis(across - 2).1 == width as isize;
    is_dense.then(|| (plain(&panel), Some(Panels { width, stride: axis(across - 1).1 })))
}

/// A chain of views as lists of axes, if splitting its axes makes it strides.
fn listed(map: &IndexMap) -> Option<OperandArgs> {
    if map.is_masked() || map.shape().n_elems() == 0 {
        return None;
    }
    let mut views = map.views().iter().rev();
    let seen = views.next()?;
    let axes = seen.shape.iter().zip(seen.strides).enumerate();
    let mut axes: SubAxes = axes.map(|(of, (&size, stride))| SubAxis { of, size, stride }).collect();
    let mut offset = seen.offset;
    for view in views {
        (axes, offset) = through(view, axes, offset)?;
    }
    let list = |of: usize| AxisList::of(axes.iter().filter(|a| a.of == of).map(|a| (a.size, a.stride)));
    Some(by_index(map.shape().rank(), list, offset))
}

/// An operand of so many axes, each of which has a list.
fn by_index(rank: usize, list: impl Fn(usize) -> AxisList, offset: isize) -> OperandArgs {
    OperandArgs { batch: (0..rank - 2).map(&list).collect(), rows: list(rank - 2), cols: list(rank - 1), offset }
}

/// Part of an axis of the map, the parts of one axis slowest first.
#[derive(Clone, Copy)]
struct SubAxis {
    of: usize,
    size: usize,
    stride: isize,
}

/// A view has at most so many axes; splitting them seldom makes more.
type SubAxes = SmallVec<[SubAxis; MAX_RANK]>;
type ViewCoordinates = SmallVec<[isize; MAX_RANK]>;

/// Strides over the row-major elements of `view` as strides over what it looks at.
fn through(view: &View, axes: SubAxes, offset: isize) -> Option<(SubAxes, isize)> {
    let inner = AxisList::of(view.shape.iter().copied().zip(view.strides));
    let inner = inner.axes();
    // A number of elements as coordinates of the view. The first takes what is left, so that the check sees an overflow.
    let coordinates = |mut n: isize| -> ViewCoordinates {
        let mut out: ViewCoordinates = smallvec![0; inner.len()];
        for (j, (size, _)) in inner.iter().enumerate().rev() {
            let size = *size as isize;
            (out[j], n) = if j == 0 { (n, 0) } else { (n % size, n / size) };
        }
        out
    };
    let start = coordinates(offset);
    let (mut low, mut high) = (start.clone(), start.clone());
    let mut todo: SubAxes = axes.into_iter().rev().collect();
    let mut split = SubAxes::new();
    while let Some(axis) = todo.pop() {
        let step = coordinates(axis.stride.abs());
        // An axis that runs past the end of the innermost coordinate that it moves goes on in the next one: there it is cut.
        let fastest = step.iter().rposition(|step| *step != 0).filter(|_| axis.size > 1);
        if let Some(j) = fastest.filter(|j| *j > 0) {
            let (size, step) = (inner[j].0, step[j] as usize);
            if step * (axis.size - 1) >= size {
                let within = size / step;
                if !size.is_multiple_of(step) || !axis.size.is_multiple_of(within) {
                    return None;
                }
                todo.push(SubAxis { size: within, ..axis });
                todo.push(SubAxis { size: axis.size / within, stride: axis.stride * within as isize, ..axis });
                continue;
            }
        }
        let (n, sign) = (axis.size as isize - 1, axis.stride.signum());
        let mut stride = 0;
        for (j, (step, (_, by))) in step.iter().zip(inner).enumerate() {
            low[j] += (sign * step * n).min(0);
            high[j] += (sign * step * n).max(0);
            stride += sign * step * by;
        }
        split.push(SubAxis { stride, ..axis });
    }
    // No step may carry from one coordinate into the next.
    let stays = (0..inner.len()).all(|j| low[j] >= 0 && high[j] < inner[j].0 as isize);
    let first = view.offset + start.iter().zip(inner).map(|(c, (_, by))| c * by).sum::<isize>();
    stays.then_some((split, first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shape::Shape;

    /// Every element of the operand is the map's.
    fn check(map: &IndexMap, lies: &OperandArgs) {
        let shape = map.shape();
        let (batch, rows, cols) = (&shape[..shape.rank() - 2], shape[shape.rank() - 2], shape[shape.rank() - 1]);
        for i in 0..shape.n_elems() {
            let (b, r, c) = (i / (rows * cols), i / cols % rows, i % cols);
            let mut coordinates = vec![0; batch.len()];
            let mut rest = b;
            for (axis, size) in batch.iter().enumerate().rev() {
                (coordinates[axis], rest) = (rest % size, rest / size);
            }
            coordinates.extend([r, c]);
            let at = lies.matrix(batch, b) + lies.rows.at(r) + lies.cols.at(c);
            assert_eq!(map.at(&coordinates), Some(at as usize), "{map} at {coordinates:?}");
        }
    }

    fn map_of(views: &[View]) -> IndexMap {
        let last = views[views.len() - 1].shape;
        views.iter().rev().fold(IndexMap::identity(last), |map, view| map.of(view))
    }

    #[test]
    fn windows_are_lists_of_axes() {
        // Two images of 3 channels of 7 × 9, windows of 3 × 2 every second place: k over (c, kh, kw), n over (oh, ow).
        let image = Shape::from([2, 3, 7, 9]);
        let s = image.strides();
        let axes = [(2, s[0]), (3, s[1]), (3, s[2]), (2, s[3]), (3, 2 * s[2]), (4, 2 * s[3])];
        let windows = View::from_axes(axes.into_iter(), 0);
        let matrix = View::contiguous(Shape::from([2, 18, 12]));
        let map = map_of(&[windows, matrix]);
        assert!(map.strided().is_none());
        let lies = listed(&map).expect("strides once it is split");
        assert_eq!(lies.rows.axes(), [(3, 63), (3, 9), (2, 1)]);
        assert_eq!(lies.cols.axes(), [(3, 18), (4, 2)]);
        check(&map, &lies);
        // Its transpose, and the same with places and windows flipped.
        let turned = map_of(&[windows, matrix, View::permute(&matrix.shape, &[0, 2, 1])]);
        check(&turned, &listed(&turned).expect("the same strides"));
        let flipped = View::slice(&matrix.shape, &[(0, 1, 2), (17, -1, 18), (11, -1, 12)]);
        let flipped = map_of(&[windows, matrix, flipped]);
        check(&flipped, &listed(&flipped).expect("strides backwards"));
    }

    #[test]
    fn heads_of_attention_are_lists_of_axes() {
        // [b, h, l, d] seen as [b, l, h·d], and key heads repeated for groups of query heads.
        let heads = Shape::from([2, 4, 5, 3]);
        let merged = map_of(&[View::permute(&heads, &[0, 2, 1, 3]), View::contiguous(Shape::from([2, 5, 12]))]);
        let lies = listed(&merged).expect("a list");
        assert_eq!(lies.cols.axes(), [(4, 15), (3, 1)]);
        check(&merged, &lies);
        let repeated = View::from_axes([(2, 60), (4, 15), (3, 0), (5, 3), (3, 1)].into_iter(), 0);
        let repeated = map_of(&[repeated, View::contiguous(Shape::from([2, 12, 5, 3]))]);
        let lies = listed(&repeated).expect("a list");
        assert_eq!(lies.batch[1].axes(), [(4, 15), (3, 0)]);
        check(&repeated, &lies);
    }

    #[test]
    fn what_strides_cannot_say_is_no_list() {
        let turned = View::permute(&Shape::from([4, 6]), &[1, 0]);
        // Rows that end in the middle of a column of the source.
        assert!(listed(&map_of(&[turned, View::contiguous(Shape::from([8, 3]))])).is_none());
        assert!(listed(&map_of(&[turned, View::slice(&Shape::from([6, 4]), &[(1, 1, 5), (0, 1, 4)])])).is_some());
        let shifted = View::from_axes([(2, 10), (10, 1)].into_iter(), 3);
        assert!(listed(&map_of(&[turned, View::contiguous(Shape::from([24])), shifted])).is_none());
        assert!(listed(&map_of(&[View::pad(&Shape::from([4, 6]), &[(1, 1), (0, 0)])])).is_none());
    }

    proptest! {
        #[test]
        fn a_list_names_the_elements_of_its_map(
            dims in prop::collection::vec(1usize..5, 2..5),
            turns in prop::collection::vec((0usize..24, 0usize..8, 0usize..8), 1..4),
        ) {
            let source = Shape::from(dims);
            let (mut shape, mut views) = (source, Vec::new());
            for (order, flips, merge) in turns {
                let rank = shape.rank();
                let mut axes: Vec<usize> = (0..rank).collect();
                axes.rotate_left(order % rank);
                axes.swap(0, order / rank % rank);
                views.push(View::permute(&shape, &axes));
                shape = views[views.len() - 1].shape;
                let ranges: Vec<_> = shape.iter().enumerate()
                    .map(|(i, &n)| if flips >> i & 1 == 1 { (n - 1, -1, n) } else { (0, 1, n) }).collect();
                views.push(View::slice(&shape, &ranges));
                let at = merge % rank;
                // Two axes become one, or one two.
                shape = match shape.rank() > 2 && at + 1 < rank {
                    true => shape[..at].iter().copied().chain([shape[at] * shape[at + 1]]).chain(shape[at + 2..].iter().copied()).collect(),
                    false if shape[at].is_multiple_of(2) && rank < 5 => shape[..at].iter().copied().chain([2, shape[at] / 2]).chain(shape[at + 1..].iter().copied()).collect(),
                    false => shape,
                };
                views.push(View::contiguous(shape));
            }
            let map = map_of(&views);
            if let Some(lies) = listed(&map) {
                check(&map, &lies);
            }
        }
    }
}
