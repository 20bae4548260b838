//! How the operands of a product lie in memory. Each index of an operand (batch, row, column) runs over a *list of axes*
//! with a stride each, so that the windows of an image, which are strides though their matrix is not, are read in place
//! (implicit GEMM). A plain matrix has lists of one axis. Lists belong to one operand: two operands of a product may split
//! the same index differently. Numbers only: who reads them decides how.

use smallvec::{SmallVec, smallvec};

use super::{Args, AxisParts};

/// Sizes of a contraction and how its operands lie. The body's outer axes are `[batch…, m, n]`, not merged.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulArgs {
    pub batch: Vec<usize>,
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Lists over the batch axes, then over m (or k) and k (or n); offset.
    pub a: OperandArgs,
    pub b: OperandArgs,
    /// The numbers of the maps of made operands ([`Body::made`](super::Body::made)). Such a map's result is dense and row-major, and `a`
    /// or `b` says how the product reads it.
    pub made: [Option<Box<Args>>; 2],
    /// Where `b` lies in panels. Only for devices whose limits allow it.
    pub panels: Option<Panels>,
    /// The parts of `k` whose sums are made side by side and added up before what follows is done to them (split-k).
    pub k_parts: AxisParts,
}

/// A matrix that lies in panels of columns, one after another: each has so many side by side, and `b`'s strides are
/// those within one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Panels {
    pub width: usize,
    /// From panel to panel.
    pub stride: isize,
}

/// How a matrix operand lies in its buffer, in elements.
#[derive(Clone, Debug, PartialEq)]
pub struct OperandArgs {
    /// One list per batch axis of the product.
    pub batch: Vec<AxisList>,
    pub rows: AxisList,
    pub cols: AxisList,
    pub offset: isize,
}

/// An index that runs over several axes, the last fastest: where in memory each of its values is.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisList {
    /// Sizes and strides; never empty.
    axes: SmallVec<[(usize, isize); 1]>,
    /// Of all values, the one that counts as the first: a part of a product begins in the middle. 0 for a single axis, whose
    /// first value is part of the operand's offset.
    start: usize,
}

impl AxisList {
    /// A single axis.
    pub fn single(size: usize, stride: isize) -> AxisList {
        AxisList { axes: smallvec![(size, stride)], start: 0 }
    }

    /// Several axes as few: those of size 1 go, neighbours whose strides run on become one.
    pub fn of(axes: impl Iterator<Item = (usize, isize)>) -> AxisList {
        let mut merged: SmallVec<[(usize, isize); 1]> = SmallVec::new();
        for (size, stride) in axes.filter(|axis| axis.0 != 1) {
            match merged.last_mut() {
                Some(last) if last.1 == stride * size as isize => *last = (last.0 * size, stride),
                _ => merged.push((size, stride)),
            }
        }
        if merged.is_empty() {
            merged.push((1, 0));
        }
        AxisList { axes: merged, start: 0 }
    }

    /// Its stride, if it is a single axis.
    pub fn stride(&self) -> Option<isize> {
        match self.axes[..] {
            [(_, stride)] => Some(stride),
            _ => None,
        }
    }

    /// The stride of an index whose neighbours in fours lie evenly: of a single axis, or of a list whose fastest axis whole
    /// fours make up.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub fn stride_in_fours(&self) -> Option<isize> {
        match self.axes[..] {
            [(_, stride)] => Some(stride),
            [.., (size, stride)] if size.is_multiple_of(4) && self.start.is_multiple_of(4) => Some(stride),
            _ => None,
        }
    }

    /// Sizes and strides, the last fastest.
    pub fn axes(&self) -> &[(usize, isize)] {
        &self.axes
    }

    /// Of all values, the one that counts as the first.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Of up to `n` values from `idx` on, how many follow each other along the fastest axis, and its stride.
    pub fn run(&self, idx: usize, n: usize) -> (usize, isize) {
        match self.axes[..] {
            [(_, stride)] => (n, stride),
            [.., (size, stride)] => (n.min(size - (self.start + idx) % size), stride),
            [] => unreachable!("a list has an axis"),
        }
    }

    /// How far from the operand's first element a value is.
    pub fn at(&self, idx: usize) -> isize {
        if let [(_, stride)] = self.axes[..] {
            return idx as isize * stride;
        }
        let mut rest = self.start + idx;
        let mut at = 0;
        for &(size, stride) in self.axes.iter().rev() {
            at += (rest % size) as isize * stride;
            rest /= size;
        }
        at
    }

    /// Where its first values are, as many as there is room for.
    pub fn write_offsets(&self, to: &mut [isize]) {
        debug_assert!(self.start == 0, "parts of a list are counted one by one");
        let Some(first) = to.first_mut() else { return };
        *first = 0;
        let mut n_inner = 1usize;
        for &(size, stride) in self.axes.iter().rev() {
            let n = n_inner.saturating_mul(size).min(to.len());
            // Each value of an axis repeats the inner axes, a stride further on.
            (n_inner..n).for_each(|i| to[i] = to[i - n_inner] + stride);
            n_inner = n;
        }
    }

    /// Where its values from `idx` on are, one after another.
    pub fn offsets(&self, idx: usize) -> AxisOffsets<'_> {
        let mut rest = self.start + idx;
        let mut places: SmallVec<[usize; 8]> = smallvec![0; self.axes.len()];
        for (place, axis) in places.iter_mut().zip(&self.axes).rev() {
            // The slowest axis takes what is left: a single one may be longer than it says, as part of a wider one.
            (*place, rest) = (rest % axis.0, rest / axis.0);
        }
        places[0] += rest * self.axes[0].0;
        AxisOffsets { axes: &self.axes, places, at: self.at(idx) }
    }

    /// Leaves `len` values from `start` on. Gives what the operand's offset grows by.
    pub fn narrow(&mut self, start: usize, len: usize) -> isize {
        if let [(size, stride)] = &mut self.axes[..] {
            *size = len;
            return start as isize * *stride;
        }
        self.start += start;
        0
    }

    /// The lowest and the highest of where its first `len` values are, seen from the operand's first element.
    pub fn extent(&self, len: usize) -> (isize, isize) {
        match len.checked_sub(1) {
            Some(last) => extent(&self.axes, self.start, self.start + last),
            None => (0, 0),
        }
    }

    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        if self.axes.spilled() { self.axes.capacity() * size_of::<(usize, isize)>() } else { 0 }
    }
}

/// Counts through the values of a list without dividing.
pub struct AxisOffsets<'a> {
    axes: &'a [(usize, isize)],
    places: SmallVec<[usize; 8]>,
    at: isize,
}

impl Iterator for AxisOffsets<'_> {
    type Item = isize;

    #[inline]
    fn next(&mut self) -> Option<isize> {
        let at = self.at;
        for (axis, &(size, stride)) in self.axes.iter().enumerate().rev() {
            self.at += stride;
            self.places[axis] += 1;
            if self.places[axis] < size || axis == 0 {
                break;
            }
            self.places[axis] = 0;
            self.at -= size as isize * stride;
        }
        Some(at)
    }
}

/// The lowest and highest of the values from `first` to `last`, both included.
fn extent(axes: &[(usize, isize)], first: usize, last: usize) -> (isize, isize) {
    let [(_, stride), inner @ ..] = axes else { return (0, 0) };
    let per: usize = inner.iter().map(|axis| axis.0).product();
    let (from, to) = (first / per, last / per);
    let at = |idx: usize| idx as isize * stride;
    let with = |idx: usize, (low, high): (isize, isize)| (at(idx) + low, at(idx) + high);
    let both = |a: (isize, isize), b: (isize, isize)| (a.0.min(b.0), a.1.max(b.1));
    if from == to {
        return with(from, extent(inner, first % per, last % per));
    }
    let ends = both(with(from, extent(inner, first % per, per - 1)), with(to, extent(inner, 0, last % per)));
    match to - from {
        1 => ends,
        _ => {
            let whole = extent(inner, 0, per - 1);
            both(ends, both(with(from + 1, whole), with(to - 1, whole)))
        }
    }
}

impl OperandArgs {
    /// A plain matrix.
    pub fn plain(
        batch: impl Iterator<Item = (usize, isize)>,
        rows: (usize, isize),
        cols: (usize, isize),
    ) -> OperandArgs {
        let single = |(size, stride): (usize, isize)| AxisList::single(size, stride);
        OperandArgs { batch: batch.map(single).collect(), rows: single(rows), cols: single(cols), offset: 0 }
    }

    /// The steps from row to row and from column to column, where both are single axes.
    pub fn steps(&self) -> Option<(isize, isize)> {
        Some((self.rows.stride()?, self.cols.stride()?))
    }

    /// Whether all indices of these batch axes have the same matrix.
    pub fn is_shared(&self, batch: &[usize]) -> bool {
        let stays = |axis: &(usize, isize)| axis.0 <= 1 || axis.1 == 0;
        batch.iter().zip(&self.batch).all(|(size, list)| *size <= 1 || list.axes.iter().all(stays))
    }

    /// Where a batch index begins, counted over all batch axes.
    pub fn matrix(&self, batch: &[usize], mut idx: usize) -> isize {
        let mut at = self.offset;
        for (&size, list) in batch.iter().zip(&self.batch).rev() {
            at += list.at(idx % size);
            idx /= size;
        }
        at
    }

    /// The lowest and highest element of so many rows and columns; None if there is none.
    pub fn extent(&self, batch: &[usize], rows: usize, cols: usize) -> Option<(isize, isize)> {
        if rows == 0 || cols == 0 || batch.contains(&0) {
            return None;
        }
        let lists = self.batch.iter().zip(batch.iter().copied()).chain([(&self.rows, rows), (&self.cols, cols)]);
        Some(lists.fold((self.offset, self.offset), |(low, high), (list, len)| {
            let (below, above) = list.extent(len);
            (low + below, high + above)
        }))
    }

    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        let lists = self.batch.iter().chain([&self.rows, &self.cols]).map(AxisList::size_bytes).sum::<usize>();
        self.batch.capacity() * size_of::<AxisList>() + lists
    }
}

impl MatmulArgs {
    /// How many elements the map of a made operand makes; None if the operand is stored.
    pub fn n_made(&self, operand: usize) -> Option<usize> {
        self.made[operand].as_ref().map(|made| made.outer.iter().product())
    }

    /// Leaves `len` products of each sum, from `start` on.
    pub fn narrow_k(&mut self, start: usize, len: usize) {
        (self.k, self.k_parts) = (len, AxisParts::whole(len));
        self.a.offset += self.a.cols.narrow(start, len);
        self.b.offset += self.b.rows.narrow(start, len);
    }

    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        let made = self.made.iter().flatten().map(|made| size_of::<Args>() + made.size_bytes()).sum::<usize>();
        self.batch.capacity() * size_of::<usize>() + self.a.size_bytes() + self.b.size_bytes() + made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extent_of_a_list_is_that_of_its_values() {
        let lists: [&[(usize, isize)]; 4] =
            [&[(3, 10), (4, 1)], &[(2, -7), (3, 20), (2, -1)], &[(5, 3)], &[(2, 0), (3, 5)]];
        for axes in lists {
            let list = AxisList { axes: axes.into(), start: 0 };
            let n: usize = axes.iter().map(|axis| axis.0).product();
            for start in 0..n {
                for len in 1..=n - start {
                    let mut part = list.clone();
                    let moved = part.narrow(start, len);
                    let at: Vec<isize> = (0..len).map(|i| moved + part.at(i)).collect();
                    assert_eq!(at, part.offsets(0).take(len).map(|at| moved + at).collect::<Vec<_>>(), "{list:?}");
                    if start == 0 {
                        let mut written = vec![isize::MAX; len];
                        list.write_offsets(&mut written);
                        assert_eq!(at, written, "{list:?}");
                    }
                    assert_eq!(at, (start..start + len).map(|i| list.at(i)).collect::<Vec<_>>(), "{list:?}");
                    let (low, high) = part.extent(len);
                    let ends = (moved + low, moved + high);
                    assert_eq!(
                        Some(ends),
                        at.iter().copied().min().zip(at.iter().copied().max()),
                        "{list:?} {start} {len}"
                    );
                }
            }
        }
    }

    #[test]
    fn axes_that_run_on_become_one() {
        let of = |axes: &[(usize, isize)]| AxisList::of(axes.iter().copied()).axes().to_vec();
        assert_eq!(of(&[(2, 12), (1, 5), (3, 4), (4, 1)]), [(24, 1)]);
        assert_eq!(of(&[(2, 20), (3, 4), (4, 1)]), [(2, 20), (12, 1)]);
        assert_eq!(of(&[(3, -3), (3, -1)]), [(9, -1)]);
        assert_eq!(of(&[(1, 3)]), [(1, 0)]);
    }
}
