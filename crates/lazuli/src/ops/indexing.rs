//! Elements chosen by an integer tensor. Reading is the gather op; adding is a routine, since many may meet in one place.
//! Whether an index is in range is only known when it runs, and is checked then.

use std::panic::Location;

use smallvec::SmallVec;

use super::create::coordinate;
use super::joining::same_device;
use super::movement::{flattened, narrowed, reshaped};
use super::operand::{broadcast, cast, or_error};
use super::row::RoutineRow;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{NodeRef, Op};
use crate::shape::{MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// Along one axis, the elements that `index` names: `y[i, j] = x[index[i, j], j]` for axis 0. The result has the shape
    /// of `index`, which may be smaller than this along the other axes.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::arange(0, 6, 1, &cpu).reshape([2, 3]);
    /// let index = Tensor::from_slice(&[2, 0], [2, 1], &cpu);
    /// assert_eq!(x.gather(1, &index).to_vec::<i32>()?, [2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn gather(&self, axis: i32, index: &Tensor) -> Tensor {
        or_error(gathered(self, axis, index))
    }

    /// Along one axis, whole slices: those that the vector `index` names, in its order.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::arange(0, 6, 1, &cpu).reshape([2, 3]);
    /// let index = Tensor::from_slice(&[2, 2, 0], [3], &cpu);
    /// assert_eq!(x.index_select(1, &index).to_vec::<i32>()?, [2, 2, 0, 5, 5, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_select(&self, axis: i32, index: &Tensor) -> Tensor {
        or_error(chosen("index_select", self, axis, index))
    }

    /// Rows of a table `[vocabulary, features]`: the result has the shape of `index` and then the features.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let table = Tensor::arange(0.0, 6.0, 1.0, &cpu).reshape([3, 2]);
    /// let words = Tensor::from_slice(&[2, 0], [1, 2], &cpu);
    /// assert_eq!(table.embedding(&words).shape()?, [1, 2, 2]);
    /// assert_eq!(table.embedding(&words).to_vec::<f32>()?, [4.0, 5.0, 0.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: &Tensor) -> Tensor {
        or_error(embedded(self, index))
    }

    /// This with `src` added along one axis, at the places `index` names: `y[index[i, j], j] += src[i, j]` for axis 0.
    /// Several that meet in one place are all added, in order.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let cpu = Device::cpu();
    /// let index = Tensor::from_slice(&[1, 1, 2], [3], &cpu);
    /// let src = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &cpu);
    /// let y = Tensor::zeros([4], DType::F32, &cpu).scatter_add(0, &index, &src);
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 3.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter_add(&self, axis: i32, index: &Tensor, src: &Tensor) -> Tensor {
        or_error(scattered("scatter_add", self, axis, index, src))
    }

    /// For each integer a row (i32) with a one in its place: shape `[…, classes]`. A number that is no class gives zeros.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1, 0], [2], &Device::cpu());
    /// assert_eq!(x.one_hot(3).to_vec::<i32>()?, [0, 1, 0, 1, 0, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Tensor {
        or_error(marked(self, classes))
    }
}

/// Inputs `x`, `index` and `src`; parameters: the axis.
pub static SCATTER_ADD: RoutineRow = RoutineRow {
    name: "scatter_add",
    doc: "`x` with `src` added at the places along an axis that `index` names",
    // dx = g, dsrc = g at the places it was added to
    grad: Some(|inputs, _, g, params| vec![Some(g.clone()), None, Some(g.gather(params[0], &inputs[1]))]),
    ulps: 1.0,
    indexes: true,
};

/// Index tensors are i32 or u32 once recorded, as the user has them; floats and bools are refused.
#[track_caller]
pub(super) fn indices(op: &str, index: &Tensor) -> Result<NodeRef> {
    let node = index.node()?;
    if !node.dtype.is_int() {
        return Err(Error::dtype(op, format!("the index is {}, not an integer; cast it with to_dtype", node.dtype)));
    }
    let dtype = if node.dtype == DType::U32 { DType::U32 } else { DType::I32 };
    Ok(cast(node, dtype, Location::caller()))
}

/// Refuses an index that has another rank, or is longer than `x` along another axis.
#[track_caller]
pub(super) fn check_index(op: &str, x: &Shape, axis: usize, index: &Shape) -> Result<()> {
    let fits = |i: usize| i == axis || index[i] <= x[i];
    if x.rank() == index.rank() && (0..x.rank()).all(fits) {
        return Ok(());
    }
    let wanted = "the same rank, and no larger along the other axes";
    Err(Error::shape(op, format!("the index {index} does not fit {x} along axis {axis}: {wanted}")))
}

/// Records a gather: `x` is cut down to the index along the other axes.
#[track_caller]
fn record_gather(op: &'static str, x: &Tensor, axis: usize, index: &NodeRef) -> Result<Tensor> {
    let mut x = x.clone();
    for i in (0..index.shape.rank()).filter(|i| *i != axis) {
        if x.node()?.shape[i] != index.shape[i] {
            x = narrowed(op, &x, i as i32, 0, index.shape[i])?;
        }
    }
    let x = x.node()?;
    Ok(Tensor::record(Op::Gather(axis, op), &[x, index], index.shape, x.dtype, Location::caller()))
}

#[track_caller]
fn gathered(x: &Tensor, axis: i32, index: &Tensor) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis("gather", axis)?;
    let index = indices("gather", index)?;
    same_device("gather", node, &index)?;
    check_index("gather", &node.shape, axis, &index.shape)?;
    record_gather("gather", x, axis, &index)
}

#[track_caller]
pub(super) fn chosen(op: &'static str, x: &Tensor, axis: i32, index: &Tensor) -> Result<Tensor> {
    let node = x.node()?;
    let axis = node.shape.axis(op, axis)?;
    let index = indices(op, index)?;
    same_device(op, node, &index)?;
    if index.shape.rank() != 1 {
        return Err(Error::shape(op, format!("the index must be a vector, not {}", index.shape)));
    }
    let shape = node.shape.with(axis, index.shape[0]);
    shape.check(op)?;
    // The same index along all other axes.
    let steps = shape.iter().enumerate().map(|(i, &size)| (size, (i == axis) as isize));
    let index = Tensor::viewed(&index, View::from_axes(steps, 0), Location::caller());
    record_gather(op, x, axis, index.node()?)
}

#[track_caller]
fn embedded(table: &Tensor, index: &Tensor) -> Result<Tensor> {
    let shape = &table.node()?.shape;
    if shape.rank() != 2 {
        return Err(Error::shape("embedding", format!("the table must be [vocabulary, features], not {shape}")));
    }
    let rows = chosen("embedding", table, 0, &flattened("embedding", index)?)?;
    let words = &index.node()?.shape;
    reshaped("embedding", &rows, words.iter().copied().chain([shape[1]]).collect())
}

#[track_caller]
pub(super) fn scattered(op: &str, x: &Tensor, axis: i32, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    let (node, added) = (x.node()?, src.node()?);
    let axis = node.shape.axis(op, axis)?;
    let index = indices(op, index)?;
    same_device(op, node, &index)?;
    same_device(op, node, added)?;
    check_index(op, &node.shape, axis, &index.shape)?;
    let covers = index.shape.iter().zip(added.shape.iter()).all(|(i, s)| i <= s);
    if added.shape.rank() != index.shape.rank() || !covers {
        return Err(Error::shape(op, format!("src {} does not cover the index {}", added.shape, index.shape)));
    }
    let dtype = match node.dtype.promote(added.dtype) {
        DType::Bool => DType::I32,
        dtype => dtype,
    };
    let at = Location::caller();
    let whole: SmallVec<[_; MAX_RANK]> = index.shape.iter().map(|size| (0, 1, *size)).collect();
    let src = Tensor::viewed(&cast(added, dtype, at), View::slice(&added.shape, &whole), at);
    let inputs = [&cast(node, dtype, at), &index, src.node()?];
    Ok(Tensor::record(Op::Routine(&SCATTER_ADD, [axis as i32, 0]), &inputs, node.shape, dtype, at))
}

#[track_caller]
fn marked(x: &Tensor, classes: usize) -> Result<Tensor> {
    let index = cast(&indices("one_hot", x)?, DType::I32, Location::caller());
    let shape: Shape = index.shape.iter().copied().chain([classes]).collect();
    shape.check("one_hot")?;
    let at = Location::caller();
    let column =
        reshaped("one_hot", &Tensor::new(Ok(index.clone())), index.shape.iter().copied().chain([1]).collect())?;
    let column = Tensor::new(Ok(broadcast(column.node()?.clone(), &shape, at)));
    Ok(column.eq(coordinate(&shape, shape.rank() - 1, &index.device, at)).to_dtype(DType::I32))
}
