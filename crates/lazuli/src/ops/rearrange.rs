//! Rearranging written with movement and joining: axes moved and merged, elements rotated and repeated, diagonals, grids,
//! stacks. Everything here is a view, a `cat` or a choice, so gradients come with it.

use super::create::coordinate;
use super::movement::{broadcast, diagonal_of, narrowed, reshaped};
use super::operand::or_error;
use crate::error::{Error, Result, counted};
use crate::shape::{Axes, Shape};
use crate::tensor::Tensor;
use crate::view::View;

use std::panic::Location;

impl Tensor {
    /// The axes from `start` to `end`, both included, as one, row-major.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4, 5], DType::F32, &Device::cpu());
    /// assert_eq!(x.flatten_axes(1, 2).shape()?, [2, 12, 5]);
    /// assert_eq!(x.flatten_axes(1, -1).shape()?, [2, 60]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn flatten_axes(&self, start: i32, end: i32) -> Tensor {
        or_error(merged(self, start, end))
    }

    /// The axes `from` moved to the places `to`; the others keep their order.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 3, 4], DType::F32, &Device::cpu());
    /// assert_eq!(x.movedim(0, -1).shape()?, [3, 4, 2]);
    /// assert_eq!(x.movedim([0, 1], [2, 0]).shape()?, [3, 4, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn movedim(&self, from: impl Into<Axes>, to: impl Into<Axes>) -> Tensor {
        or_error(moved(self, &from.into(), &to.into()))
    }

    /// The elements `shift` places further along an axis; what leaves at the end comes back at the start.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 5, 1, &Device::cpu());
    /// assert_eq!(x.roll(2, 0).to_vec::<i32>()?, [3, 4, 0, 1, 2]);
    /// assert_eq!(x.roll(-1, 0).to_vec::<i32>()?, [1, 2, 3, 4, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn roll(&self, shift: i64, axis: i32) -> Tensor {
        or_error(rolled(self, shift, axis))
    }

    /// Each element less the one before it along an axis, `n` times over. Of bools it tells where they change.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1, 4, 9, 16], [4], &Device::cpu());
    /// assert_eq!(x.diff(1, 0).to_vec::<i32>()?, [3, 5, 7]);
    /// assert_eq!(x.diff(2, 0).to_vec::<i32>()?, [2, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn diff(&self, n: usize, axis: i32) -> Tensor {
        or_error(differences(self, n, axis))
    }

    /// Each element `n` times in a row along an axis.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 3, 1, &Device::cpu());
    /// assert_eq!(x.repeat_interleave(2, 0).to_vec::<i32>()?, [0, 0, 1, 1, 2, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, n: usize, axis: i32) -> Tensor {
        or_error(interleaved(self, n, axis))
    }

    /// Of vectors, a tensor of as many axes for each: the coordinates of a grid, the first vector along the first axis
    /// (`indexing="ij"`).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let (x, y) = (Tensor::arange(0, 2, 1, &Device::cpu()), Tensor::arange(5, 8, 1, &Device::cpu()));
    /// let grid = Tensor::meshgrid(&[&x, &y]);
    /// assert_eq!(grid[0].to_vec::<i32>()?, [0, 0, 0, 1, 1, 1]);
    /// assert_eq!(grid[1].to_vec::<i32>()?, [5, 6, 7, 5, 6, 7]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn meshgrid(vectors: &[&Tensor]) -> Vec<Tensor> {
        match grid(vectors) {
            Ok(axes) => axes,
            Err(error) => vec![Tensor::new(Err(error)); vectors.len()],
        }
    }

    /// The `k`-th diagonal of the last two axes (above the main one, or below it if negative); of a vector, the matrix that
    /// has it there and zeros elsewhere.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([2, 3]);
    /// assert_eq!(x.diag(1).to_vec::<i32>()?, [1, 5]);
    /// assert_eq!(x.diag(1).diag(0).to_vec::<i32>()?, [1, 0, 0, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn diag(&self, k: i32) -> Tensor {
        or_error(diagonal_or_matrix(self, k))
    }

    /// The sum of the diagonal of the last two axes.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// assert_eq!(Tensor::arange(0, 4, 1, &Device::cpu()).reshape([2, 2]).trace().item::<i32>()?, 3);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn trace(&self) -> Tensor {
        match diagonal_of("trace", self, 0) {
            Ok(diagonal) => diagonal.sum(-1),
            Err(error) => Tensor::new(Err(error)),
        }
    }

    /// Tensors side by side: along axis 1, or along axis 0 where they are vectors.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 2, 1, &Device::cpu());
    /// assert_eq!(Tensor::hstack(&[&x, &x]).to_vec::<i32>()?, [0, 1, 0, 1]);
    /// let column = x.unsqueeze(1);
    /// assert_eq!(Tensor::hstack(&[&column, &column]).to_vec::<i32>()?, [0, 0, 1, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn hstack(tensors: &[&Tensor]) -> Tensor {
        let is_vector = |x: &&Tensor| x.node().is_ok_and(|node| node.shape.rank() < 2);
        let each: Vec<Tensor> = tensors.iter().map(|x| at_least(x, 1)).collect();
        Tensor::cat(&each.iter().collect::<Vec<_>>(), if tensors.iter().all(is_vector) { 0 } else { 1 })
    }

    /// Tensors below each other: along axis 0, vectors as rows.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 2, 1, &Device::cpu());
    /// assert_eq!(Tensor::vstack(&[&x, &x]).shape()?, [2, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn vstack(tensors: &[&Tensor]) -> Tensor {
        let each: Vec<Tensor> = tensors.iter().map(|x| at_least(x, 2)).collect();
        Tensor::cat(&each.iter().collect::<Vec<_>>(), 0)
    }
}

/// With leading axes of size 1 up to a rank.
#[track_caller]
fn at_least(x: &Tensor, rank: usize) -> Tensor {
    match x.node() {
        Ok(node) if node.shape.rank() < rank => at_least(&x.unsqueeze(0), rank),
        _ => x.clone(),
    }
}

#[track_caller]
fn merged(x: &Tensor, start: i32, end: i32) -> Result<Tensor> {
    let op = "flatten_axes";
    let shape = x.node()?.shape;
    let (first, last) = (shape.axis(op, start)?, shape.axis(op, end)?);
    if first > last {
        return Err(Error::shape(
            op,
            format!("axis {start} of {shape} is behind axis {end}; name the first one first"),
        ));
    }
    let size = Shape::from(&shape[first..=last]).n_elems();
    reshaped(op, x, shape[..first].iter().chain([&size]).chain(&shape[last + 1..]).copied().collect())
}

#[track_caller]
fn moved(x: &Tensor, from: &Axes, to: &Axes) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let (from, to) = (from.in_order("movedim", &shape)?, to.in_order("movedim", &shape)?);
    if from.len() != to.len() {
        let (n, places) = (counted(from.len(), "axis"), counted(to.len(), "place"));
        return Err(Error::shape("movedim", format!("{n} of {shape} cannot go to {places}: name as many of each")));
    }
    let mut others = (0..shape.rank()).filter(|axis| !from.contains(axis));
    let source = |place: usize| match to.iter().position(|to| *to == place) {
        Some(i) => from[i],
        None => others.next().unwrap_or_default(),
    };
    let order: Vec<i32> = (0..shape.rank()).map(source).map(|axis| axis as i32).collect();
    Ok(x.permute(&order))
}

#[track_caller]
fn rolled(x: &Tensor, shift: i64, axis: i32) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let size = shape[shape.axis("roll", axis)?];
    let shift = if size == 0 { 0 } else { shift.rem_euclid(size as i64) as usize };
    if shift == 0 {
        return Ok(x.clone());
    }
    let (end, start) = (narrowed("roll", x, axis, size - shift, shift)?, narrowed("roll", x, axis, 0, size - shift)?);
    Ok(Tensor::cat(&[&end, &start], axis))
}

#[track_caller]
fn differences(x: &Tensor, n: usize, axis: i32) -> Result<Tensor> {
    let node = x.node()?;
    let size = node.shape[node.shape.axis("diff", axis)?];
    let is_bool = node.dtype == crate::DType::Bool;
    let mut y = x.clone();
    for left in (size.saturating_sub(n)..size).rev() {
        let (before, after) = (narrowed("diff", &y, axis, 0, left)?, narrowed("diff", &y, axis, 1, left)?);
        y = if is_bool { after.ne(before) } else { after.sub(before) };
    }
    Ok(y)
}

#[track_caller]
fn interleaved(x: &Tensor, n: usize, axis: i32) -> Result<Tensor> {
    let op = "repeat_interleave";
    let node = x.node()?;
    let at = node.shape.axis(op, axis)?;
    let shape = node.shape.with(at, node.shape[at].saturating_mul(n));
    shape.check(op)?;
    // [outer, size, inner] seen as [outer, size, n, inner].
    let (outer, size) = (node.shape[..at].iter().product::<usize>(), node.shape[at]);
    let inner: usize = node.shape[at + 1..].iter().product();
    let steps = [(outer, (size * inner) as isize), (size, inner as isize), (n, 0), (inner, 1)];
    let repeated = Tensor::viewed(node, View::from_axes(steps.into_iter(), 0), Location::caller());
    reshaped(op, &repeated, shape)
}

#[track_caller]
fn grid(vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let op = "meshgrid";
    let mut shape = Vec::with_capacity(vectors.len());
    for vector in vectors {
        match vector.node()?.shape[..] {
            [] => shape.push(1),
            [size] => shape.push(size),
            _ => return Err(Error::shape(op, format!("takes vectors, not {}", vector.node()?.shape))),
        }
    }
    let shape = Shape::from(shape);
    shape.check(op)?;
    let mut axes = Vec::with_capacity(vectors.len());
    for (axis, vector) in vectors.iter().enumerate() {
        let column = (0..shape.rank()).map(|i| if i == axis { shape[i] } else { 1 }).collect();
        axes.push(broadcast(op, &reshaped(op, vector, column)?, shape)?);
    }
    Ok(axes)
}

#[track_caller]
fn diagonal_or_matrix(x: &Tensor, k: i32) -> Result<Tensor> {
    let node = x.node()?;
    let &[size] = &node.shape[..] else { return diagonal_of("diag", x, k) };
    let n = size.saturating_add(k.unsigned_abs() as usize);
    let shape = Shape::from([n, n]);
    shape.check("diag")?;
    // Element i stands in row i of a diagonal above the main one, and in column i of one below it.
    let (device, at) = (&node.device, Location::caller());
    let above = coordinate(&shape, 1, device, at).sub(coordinate(&shape, 0, device, at));
    let padded = x.to_dtype(node.dtype).pad(&[(0, n - size)], 0);
    let lying = if k >= 0 { padded.unsqueeze(1) } else { padded };
    Ok(above.eq(k).select(&lying, lying.zeros_like()))
}
