//! The oracle's tensors: a shape, a dtype and a cell per element, row-major. And the few loops over them that every
//! family of ops is written with.

use lazuli::DType;

use crate::cell::{self, Cell};

/// What is known of a tensor.
#[derive(Clone, Debug)]
pub struct Array {
    /// Its sizes.
    pub shape: Vec<usize>,
    /// The type of its elements.
    pub dtype: DType,
    /// What each element may be, row-major.
    pub cells: Vec<Cell>,
}

impl Array {
    /// These cells in this shape, which they must fill.
    pub fn new(shape: Vec<usize>, dtype: DType, cells: Vec<Cell>) -> Array {
        assert_eq!(cells.len(), n_elems(&shape), "cells do not fill {shape:?}");
        Array { shape, dtype, cells }
    }

    /// The same cell everywhere.
    pub fn full(shape: Vec<usize>, dtype: DType, cell: Cell) -> Array {
        let n = n_elems(&shape);
        Array::new(shape, dtype, vec![cell; n])
    }

    /// How many elements it has.
    pub fn n_elems(&self) -> usize {
        self.cells.len()
    }

    /// Each cell through a function.
    pub fn map(&self, dtype: DType, f: impl Fn(Cell) -> Cell) -> Array {
        Array::new(self.shape.clone(), dtype, self.cells.iter().map(|c| f(*c)).collect())
    }

    /// As another dtype.
    pub fn cast(&self, to: DType) -> Array {
        self.map(to, |c| cell::cast(c, self.dtype, to))
    }

    /// The same cells in another shape.
    pub fn reshaped(&self, shape: Vec<usize>) -> Array {
        Array::new(shape, self.dtype, self.cells.clone())
    }

    /// Another shape, each of whose coordinates says which element of this one it is; None is `fill`.
    pub fn moved(&self, shape: Vec<usize>, fill: Cell, source: impl Fn(&[usize]) -> Option<Vec<usize>>) -> Array {
        let mut cells = Vec::with_capacity(n_elems(&shape));
        for_each_coordinate(&shape, |at| cells.push(source(at).map_or(fill, |from| self.at(&from))));
        Array::new(shape, self.dtype, cells)
    }

    /// The element at these coordinates.
    pub fn at(&self, coordinates: &[usize]) -> Cell {
        self.cells[linear(&self.shape, coordinates)]
    }

    /// Repeated to fill `shape`, as NumPy broadcasts.
    pub fn broadcast(&self, shape: &[usize]) -> Array {
        if self.shape == shape {
            return self.clone();
        }
        let lead = shape.len() - self.shape.len();
        self.moved(shape.to_vec(), Cell::ANY, |at| {
            Some(self.shape.iter().zip(&at[lead..]).map(|(size, i)| if *size == 1 { 0 } else { *i }).collect())
        })
    }

    /// Each run of elements along `axes` (row-major in them) through a function; the axes stay with size 1.
    pub fn reduced(&self, axes: &[usize], dtype: DType, f: impl Fn(&[Cell]) -> Cell) -> Array {
        let size = |(i, n): (usize, &usize)| if axes.contains(&i) { 1 } else { *n };
        let shape: Vec<usize> = self.shape.iter().enumerate().map(size).collect();
        let mut runs = vec![Vec::new(); n_elems(&shape)];
        let mut i = 0;
        for_each_coordinate(&self.shape, |at| {
            let place: Vec<usize> = at.iter().zip(&shape).map(|(i, n)| if *n == 1 { 0 } else { *i }).collect();
            runs[linear(&shape, &place)].push(self.cells[i]);
            i += 1;
        });
        let cells = runs.iter().map(|run| f(run)).collect();
        Array::new(shape, dtype, cells)
    }

    /// Each line along one axis replaced by as many cells.
    pub fn lines(&self, axis: usize, dtype: DType, f: impl Fn(&[Cell]) -> Vec<Cell>) -> Array {
        let n = self.shape[axis];
        let inner: usize = self.shape[axis + 1..].iter().product();
        let mut cells = self.cells.clone();
        for start in 0..self.n_elems() / n.max(1) {
            let first = start / inner * inner * n + start % inner;
            let line: Vec<Cell> = (0..n).map(|i| self.cells[first + i * inner]).collect();
            for (i, cell) in f(&line).into_iter().enumerate() {
                cells[first + i * inner] = cell;
            }
        }
        Array::new(self.shape.clone(), dtype, cells)
    }
}

/// How many elements a shape has.
pub fn n_elems(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// The place of an element, counted row-major.
pub fn linear(shape: &[usize], coordinates: &[usize]) -> usize {
    shape.iter().zip(coordinates).fold(0, |n, (size, i)| n * size + i)
}

/// The shape two broadcast to, if they do.
pub fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (1, n) | (n, 1) => Some(n),
            (m, n) => (m == n).then_some(m),
        })
        .collect()
}

/// Calls `f` with all coordinates of a shape, row-major.
pub fn for_each_coordinate(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut at = vec![0; shape.len()];
    loop {
        f(&at);
        let Some(axis) = (0..shape.len()).rev().find(|i| at[*i] + 1 < shape[*i]) else { return };
        at[axis] += 1;
        at[axis + 1..].fill(0);
    }
}
