//! Writing at places that an integer tensor names. Only adding has a routine: there the order does not matter but for rounding.
//! For all else the places are sorted, stably, so that those which meet in one place stand side by side, in order; they are
//! combined there (a segmented scan in log₂ n steps), and the last one of each place is added to zeros. Every step is
//! deterministic and has a gradient.

use super::indexing::{check_index, chosen, indices, scattered};
use super::joining::same_device;
use super::movement::{broadcast, reshaped};
use super::operand::or_error;
use crate::dtype::DType;
use crate::error::{Error, Result, counted};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How values with the same index are combined with each other and with the element that was there before.
///
/// ```
/// # use lazuli::{Device, ScatterReduce, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu());
/// let index = Tensor::from_slice(&[1, 1], [2], &Device::cpu());
/// let y = x.scatter_reduce(0, &index, &x.add(3), ScatterReduce::Mul);
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0 * 4.0 * 5.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterReduce {
    /// Their sum.
    Add,
    /// Their product.
    Mul,
    /// The greatest; NaN if one is.
    Max,
    /// The least; NaN if one is.
    Min,
}

impl ScatterReduce {
    #[track_caller]
    fn of(self, x: &Tensor, y: &Tensor) -> Tensor {
        match self {
            ScatterReduce::Add => x.add(y),
            ScatterReduce::Mul => x.mul(y),
            ScatterReduce::Max => x.maximum(y),
            ScatterReduce::Min => x.minimum(y),
        }
    }
}

impl Tensor {
    /// This with the elements of `src` along one axis in the places `index` names: `y[index[i, j], j] = src[i, j]` for axis 0. Of
    /// several that meet in one place, the last one stays.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let index = Tensor::from_slice(&[1, 3, 1], [3], &Device::cpu());
    /// let src = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::cpu());
    /// let y = Tensor::zeros([4], DType::F32, &Device::cpu()).scatter(0, &index, &src);
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 3.0, 0.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter(&self, axis: i32, index: &Tensor, src: &Tensor) -> Tensor {
        or_error(elements("scatter", self, axis, index, src, None))
    }

    /// [`scatter`](Tensor::scatter), where values that meet in one place are combined with each other and with what was there.
    ///
    /// ```
    /// # use lazuli::{Device, ScatterReduce, Tensor};
    /// let x = Tensor::from_slice(&[5, 0, 0], [3], &Device::cpu());
    /// let index = Tensor::from_slice(&[0, 1, 1], [3], &Device::cpu());
    /// let src = Tensor::from_slice(&[1, 7, 4], [3], &Device::cpu());
    /// assert_eq!(x.scatter_reduce(0, &index, &src, ScatterReduce::Max).to_vec::<i32>()?, [5, 7, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter_reduce(&self, axis: i32, index: &Tensor, src: &Tensor, reduce: ScatterReduce) -> Tensor {
        or_error(elements("scatter_reduce", self, axis, index, src, Some(reduce)))
    }

    /// This with whole slices of `src` added along one axis, each where the vector `index` says.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let index = Tensor::from_slice(&[2, 2], [2], &Device::cpu());
    /// let src = Tensor::arange(1, 5, 1, &Device::cpu()).reshape([2, 2]);
    /// let y = Tensor::zeros([3, 2], DType::I32, &Device::cpu()).index_add(0, &index, &src);
    /// assert_eq!(y.to_vec::<i32>()?, [0, 0, 0, 0, 4, 6]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_add(&self, axis: i32, index: &Tensor, src: &Tensor) -> Tensor {
        or_error(slices_added(self, axis, index, src))
    }

    /// The elements, or slices, at places that integer tensors name, one for each of the first axes: `y[i] = x[a[i], b[i]]`.
    /// The index tensors broadcast; the result has their shape, then the axes that they do not name.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([2, 3]);
    /// let (rows, columns) = (Tensor::from_slice(&[1, 0], [2], &Device::cpu()), Tensor::from_slice(&[2, 1], [2], &Device::cpu()));
    /// assert_eq!(x.index(&[&rows, &columns]).to_vec::<i32>()?, [5, 1]);
    /// assert_eq!(x.index(&[&rows]).to_vec::<i32>()?, [3, 4, 5, 0, 1, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index(&self, indices: &[&Tensor]) -> Tensor {
        or_error(at_places(self, indices))
    }

    /// This with `values` in the places that integer tensors name, as [`index`](Tensor::index) reads them; values broadcast. Of
    /// several that meet in one place, the last one stays.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 2], DType::I32, &Device::cpu());
    /// let (rows, columns) = (Tensor::from_slice(&[1, 0], [2], &Device::cpu()), Tensor::from_slice(&[0, 1], [2], &Device::cpu()));
    /// let values = Tensor::from_slice(&[7, 8], [2], &Device::cpu());
    /// assert_eq!(x.index_put(&[&rows, &columns], &values).to_vec::<i32>()?, [0, 8, 7, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put(&self, indices: &[&Tensor], values: &Tensor) -> Tensor {
        or_error(put("index_put", self, indices, values, None))
    }

    /// [`index_put`](Tensor::index_put), where values that meet in one place are combined with each other and with what was there.
    ///
    /// ```
    /// # use lazuli::{DType, Device, ScatterReduce, Tensor};
    /// let x = Tensor::ones([3], DType::F32, &Device::cpu());
    /// let places = Tensor::from_slice(&[1, 1], [2], &Device::cpu());
    /// let values = Tensor::from_slice(&[2.0f32, 3.0], [2], &Device::cpu());
    /// let y = x.index_put_reduce(&[&places], &values, ScatterReduce::Add);
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 6.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put_reduce(&self, indices: &[&Tensor], values: &Tensor, reduce: ScatterReduce) -> Tensor {
        or_error(put("index_put_reduce", self, indices, values, Some(reduce)))
    }

    /// The elements at these places, counted row-major over all axes; the result has the shape of `index`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(10, 16, 1, &Device::cpu()).reshape([2, 3]);
    /// assert_eq!(x.take(&Tensor::from_slice(&[5, 0], [2], &Device::cpu())).to_vec::<i32>()?, [15, 10]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Tensor {
        or_error(taken_at(self, index))
    }
}

#[track_caller]
fn elements(
    op: &str,
    x: &Tensor,
    axis: i32,
    index: &Tensor,
    src: &Tensor,
    reduce: Option<ScatterReduce>,
) -> Result<Tensor> {
    let (node, values) = (x.node()?, src.node()?);
    let at = node.shape.axis(op, axis)?;
    let index = indices(op, index)?;
    same_device(op, node, &index)?;
    same_device(op, node, values)?;
    check_index(op, &node.shape, at, &index.shape)?;
    let covers = index.shape.iter().zip(values.shape.iter()).all(|(i, s)| i <= s);
    if values.shape.rank() != index.shape.rank() || !covers {
        return Err(Error::shape(op, format!("src {} does not cover the index {}", values.shape, index.shape)));
    }
    let cut = |y: Tensor, (axis, size): (usize, &usize)| y.narrow(axis as i32, 0, *size);
    let src = index.shape.iter().enumerate().fold(src.clone(), cut);
    written(op, x, at, &Tensor::new(Ok(index)), &src, reduce)
}

/// Writes `src` along an axis at `index`, which broadcasts to it.
#[track_caller]
fn written(
    op: &str,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    src: &Tensor,
    reduce: Option<ScatterReduce>,
) -> Result<Tensor> {
    let (shape, values) = (x.node()?.shape, src.node()?.shape);
    let dtype = x.dtype()?.promote(src.dtype()?);
    let at = axis as i32;
    if values.n_elems() == 0 {
        return Ok(x.to_dtype(dtype));
    }
    if reduce == Some(ScatterReduce::Add) {
        return scattered(op, x, at, &broadcast(op, index, values)?, src);
    }
    let n = values[axis];
    let order = index.argsort(at, false);
    let keys = index.to_dtype(DType::I32).gather(at, &order);
    let mut sorted = src.to_dtype(dtype).gather(at, &broadcast(op, &order, values)?);
    if let Some(reduce) = reduce {
        // After steps of 1, 2, 4, … the last of each place has all that meet there.
        for step in (0..usize::BITS).map(|bit| 1usize << bit).take_while(|step| *step < n) {
            let shifted = |t: &Tensor, fill: i32| {
                let mut pads = vec![(0, 0); values.rank()];
                pads[axis] = (step, 0);
                t.narrow(at, 0, n - step).pad(&pads, fill)
            };
            let is_same = keys.eq(shifted(&keys, -1));
            sorted = is_same.select(reduce.of(&shifted(&sorted, 0), &sorted), &sorted);
        }
    }
    let mut pads = vec![(0, 0); values.rank()];
    pads[axis] = (0, 1);
    let is_last = keys.ne(keys.narrow(at, 1, n - 1).pad(&pads, -1));
    // One value for each place that is written, and zeros.
    let (keys, device) = (broadcast(op, &keys, values)?, x.device()?);
    let hits = broadcast(op, &is_last.to_dtype(DType::I32), values)?;
    let is_hit = scattered(op, &Tensor::zeros(shape, DType::I32, device), at, &keys, &hits)?.ne(0);
    let last = is_last.select(&sorted, sorted.zeros_like());
    let value = scattered(op, &Tensor::zeros(shape, dtype, device), at, &keys, &last)?.to_dtype(dtype);
    let x = x.to_dtype(dtype);
    Ok(is_hit.select(reduce.map_or(value.clone(), |reduce| reduce.of(&x, &value)), &x))
}

#[track_caller]
fn slices_added(x: &Tensor, axis: i32, index: &Tensor, src: &Tensor) -> Result<Tensor> {
    let op = "index_add";
    let (shape, values) = (x.node()?.shape, src.node()?.shape);
    let at = shape.axis(op, axis)?;
    let n = index.node()?.shape;
    if n.rank() != 1 || values != shape.with(at, n[0]) {
        let wanted = shape.with(at, n.n_elems());
        return Err(Error::shape(op, format!("a vector of {} places wants src {wanted}, not {values}", n.n_elems())));
    }
    let lying = reshaped(op, index, (0..shape.rank()).map(|i| if i == at { n[0] } else { 1 }).collect())?;
    scattered(op, x, axis, &broadcast(op, &lying, values)?, src)
}

/// FlatPlaces along the first axes, as one number each.
struct FlatPlaces {
    /// A vector; −1 where one of the numbers is out of range.
    flat: Tensor,
    /// The shape that the index tensors broadcast to.
    shape: Shape,
    /// The tensor they are for as `[places, rest]`, and the axes of the rest.
    rows: Tensor,
    rest: Shape,
}

impl FlatPlaces {
    #[track_caller]
    fn new(op: &str, x: &Tensor, index: &[&Tensor]) -> Result<FlatPlaces> {
        let node = x.node()?;
        if index.is_empty() || index.len() > node.shape.rank() {
            let n = counted(index.len(), "index tensor");
            return Err(Error::shape(op, format!("{n} for {}: one for each of the first axes is needed", node.shape)));
        }
        let (first, rest) = node.shape.split_at(index.len());
        let (n_places, rest) = (Shape::from(first).n_elems(), Shape::from(rest));
        if n_places > i32::MAX as usize {
            return Err(Error::unsupported(op, format!("{} has more places than i32 can count", node.shape)));
        }
        let mut flat: Option<(Tensor, Tensor)> = None;
        for (each, &size) in index.iter().zip(first) {
            let each = indices(op, each)?;
            same_device(op, node, &each)?;
            let each = Tensor::new(Ok(each)).to_dtype(DType::I32);
            let is_inside = each.ge(0).logical_and(each.lt(size));
            flat = Some(match flat {
                None => (each, is_inside),
                Some((flat, all_inside)) => (flat.mul(size).add(each), all_inside.logical_and(is_inside)),
            });
        }
        let flat = flat.map(|(flat, is_inside)| is_inside.select(flat, -1));
        let flat = flat.unwrap_or_else(|| x.clone());
        let shape = flat.node()?.shape;
        let rows = reshaped(op, x, Shape::from([n_places, rest.n_elems()]))?;
        Ok(FlatPlaces { flat: flat.flatten(), shape, rows, rest })
    }

    /// One row for each place.
    fn values_shape(&self) -> Shape {
        self.shape.iter().chain(self.rest.iter()).copied().collect()
    }
}

#[track_caller]
fn at_places(x: &Tensor, index: &[&Tensor]) -> Result<Tensor> {
    let places = FlatPlaces::new("index", x, index)?;
    reshaped("index", &chosen("index", &places.rows, 0, &places.flat)?, places.values_shape())
}

#[track_caller]
fn put(op: &str, x: &Tensor, index: &[&Tensor], values: &Tensor, reduce: Option<ScatterReduce>) -> Result<Tensor> {
    let places = FlatPlaces::new(op, x, index)?;
    same_device(op, x.node()?, values.node()?)?;
    let values = broadcast(op, values, places.values_shape())?;
    let rows = reshaped(op, &values, Shape::from([places.shape.n_elems(), places.rest.n_elems()]))?;
    let y = written(op, &places.rows, 0, &places.flat.unsqueeze(1), &rows, reduce)?;
    reshaped(op, &y, x.node()?.shape)
}

#[track_caller]
fn taken_at(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let shape = index.node()?.shape;
    reshaped("take", &chosen("take", &x.flatten(), 0, &index.flatten())?, shape)
}
