//! Pooling over one to three axes: one number per window of a padded image. Windows are a view, whose elements lie on an axis
//! of their own behind the axis that counts the windows, so that windows side by side are a reshape. Small windows are combined
//! element by element, one map over a few slices, since many tiny reductions are slower.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::create::coordinate;
use super::operand::or_error;
use super::row::RuleRow;
use super::softmax::{Widened, with_rule};
use super::windows::{Pads, PerAxis};
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::shape::{AxisSet, MAX_RANK, Shape};
use crate::tensor::Tensor;
use crate::view::View;

/// How the windows of a pooling lie on its input.
///
/// ```
/// # use lazuli::Pool;
/// let pool = Pool { padding: 1.into(), ..Pool::new([3, 2]) };
/// assert_eq!((pool.stride, pool.count_include_pad), ([3, 2].into(), true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Elements of a window.
    pub window: PerAxis,
    /// From one window to the next.
    pub stride: PerAxis,
    /// What stands around the input: nothing that a maximum sees, zeros for a mean or a norm.
    pub padding: Pads,
    /// From one element of a window to the next.
    pub dilation: PerAxis,
    /// Whether a last window may reach beyond the end, as long as it begins before it.
    pub ceil_mode: bool,
    /// Whether a mean counts the zeros of the padding.
    pub count_include_pad: bool,
}

impl Pool {
    /// Windows side by side, without padding.
    pub fn new(window: impl Into<PerAxis>) -> Pool {
        let window = window.into();
        Pool {
            window,
            stride: window,
            padding: 0.into(),
            dilation: 1.into(),
            ceil_mode: false,
            count_include_pad: true,
        }
    }
}

impl Tensor {
    /// The greatest element of each window of `[batch, channels, size…]`, over one to three axes. In a tie the gradient is
    /// shared.
    ///
    /// ```
    /// # use lazuli::{Device, Pool, Tensor};
    /// let x = Tensor::arange(0.0, 16.0, 1.0, &Device::cpu()).reshape([1, 1, 4, 4]);
    /// assert_eq!(x.max_pool(Pool::new(2)).to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn max_pool(&self, pool: Pool) -> Tensor {
        or_error(max_pool(self, pool))
    }

    /// [`max_pool`](Tensor::max_pool), and for each window where its greatest element is (i32): the first of equal ones,
    /// counted row-major in its channel of its image.
    ///
    /// ```
    /// # use lazuli::{Device, Pool, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 0.0], [1, 1, 4], &Device::cpu());
    /// let (values, indices) = x.max_pool_with_indices(Pool::new(2));
    /// assert_eq!((values.to_vec::<f32>()?, indices.to_vec::<i32>()?), (vec![3.0, 2.0], vec![1, 2]));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn max_pool_with_indices(&self, pool: Pool) -> (Tensor, Tensor) {
        let y = self.max_pool(pool);
        let indices = or_error(indices_of(self, &y, pool));
        (y, indices)
    }

    /// The mean of each window of `[batch, channels, size…]`, over one to three axes. Without
    /// [`count_include_pad`](Pool::count_include_pad) a window that lies in the padding alone has the mean of nothing, NaN.
    ///
    /// ```
    /// # use lazuli::{Device, Pool, Tensor};
    /// let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu()).reshape([1, 1, 4]);
    /// let pool = Pool { padding: [(0, 2)].into(), count_include_pad: false, ..Pool::new(3) };
    /// assert_eq!(x.avg_pool(pool).to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn avg_pool(&self, pool: Pool) -> Tensor {
        or_error(avg_pool(self, pool))
    }

    /// The `p`-norm of each window of `[batch, channels, size…]`, over one to three axes: `(Σ |x|ᵖ)^(1/p)`.
    ///
    /// ```
    /// # use lazuli::{Device, Pool, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 4.0], [1, 1, 2], &Device::cpu());
    /// assert_eq!(x.lp_pool(2.0, Pool::new(2)).to_vec::<f32>()?, [5.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn lp_pool(&self, p: f32, pool: Pool) -> Tensor {
        or_error(lp_pool(self, p, pool))
    }

    /// The mean of as many windows along the last axes as `sizes` say; they cover the input as evenly as they can.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0.0, 5.0, 1.0, &Device::cpu()).reshape([1, 1, 5]);
    /// assert_eq!(x.adaptive_avg_pool(&[2]).to_vec::<f32>()?, [1.0, 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn adaptive_avg_pool(&self, sizes: &[usize]) -> Tensor {
        or_error(adaptive("adaptive_avg_pool", self, sizes, Adaptive::Mean))
    }

    /// The greatest element of as many windows along the last axes as `sizes` say; they cover the input as evenly as they can.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::arange(0.0, 5.0, 1.0, &Device::cpu()).reshape([1, 1, 5]);
    /// assert_eq!(x.adaptive_max_pool(&[2]).to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn adaptive_max_pool(&self, sizes: &[usize]) -> Tensor {
        or_error(adaptive("adaptive_max_pool", self, sizes, Adaptive::Max))
    }
}

/// Windows along one axis, known to fit.
#[derive(Clone, Copy)]
struct PoolAxis {
    size: usize,
    window: usize,
    stride: usize,
    dilation: usize,
    n_windows: usize,
    /// What stands around the input, as it was asked for.
    pads: (usize, usize),
    /// What more a last window reaches beyond that.
    beyond: usize,
}

/// All axes that have windows; they are the last ones of the input.
type PoolAxes = SmallVec<[PoolAxis; 3]>;

/// Elements along an axis beyond which nothing can be addressed.
const MAX_SIZE: usize = isize::MAX as usize / 8;

#[track_caller]
fn axes_of(op: &str, shape: &Shape, pool: Pool) -> Result<PoolAxes> {
    let n_axes = shape.rank().saturating_sub(2);
    let fault = |what: String| Error::Shape(Arc::new(Fault::new(op, what).shapes(&[shape])));
    if !(1..=3).contains(&n_axes) {
        return Err(fault(format!("wants [batch, channels, size…] with one to three sizes, not {shape}")));
    }
    let Pool { window, stride, padding, dilation, ceil_mode, .. } = pool;
    let fits = window.fits(n_axes) && stride.fits(n_axes) && padding.fits(n_axes) && dilation.fits(n_axes);
    let is_positive = |i: usize| window.at(i) > 0 && stride.at(i) > 0 && dilation.at(i) > 0;
    if !fits || !(0..n_axes).all(is_positive) {
        let rule = "window, stride and dilation are at least 1, one for all axes or one for each";
        return Err(fault(format!("{pool:?} cannot be for {shape}: {rule}")));
    }
    let mut axes = PoolAxes::new();
    for i in 0..n_axes {
        let (size, window, stride, dilation) = (shape[i + 2], window.at(i), stride.at(i), dilation.at(i));
        let pads = padding.at(i);
        let reach = dilation.saturating_mul(window - 1);
        let padded = size.saturating_add(pads.0).saturating_add(pads.1);
        if reach >= MAX_SIZE || padded >= MAX_SIZE || stride >= MAX_SIZE {
            return Err(fault(format!("{pool:?} has more elements than can be addressed")));
        }
        if padded <= reach {
            let message = format!("no window of {window} elements, {dilation} apart, fits axis {} of {shape}", i + 2);
            return Err(fault(format!("{message} with {pads:?} around; pad more")));
        }
        let steps = match ceil_mode {
            true => (padded - reach - 1).div_ceil(stride),
            false => (padded - reach - 1) / stride,
        };
        // A window that begins in the padding behind the input is none.
        let n_windows = if ceil_mode && steps * stride >= size + pads.0 { steps } else { steps + 1 };
        let beyond = ((n_windows - 1) * stride + reach + 1).saturating_sub(padded);
        axes.push(PoolAxis { size, window, stride, dilation, n_windows, pads, beyond });
    }
    shape[..2].iter().copied().chain(axes.iter().map(|a| a.n_windows)).collect::<Shape>().check(op)?;
    Ok(axes)
}

/// The axes of windows that hold their elements.
fn within(axes: &PoolAxes) -> SmallVec<[i32; 3]> {
    (0..axes.len() as i32).map(|i| 3 + 2 * i).collect()
}

/// The axes of windows as a set.
fn within_set(axes: &PoolAxes) -> AxisSet {
    let mut set = AxisSet::default();
    within(axes).into_iter().for_each(|axis| set.insert(axis as usize));
    set
}

/// Windows of an image with `fill` around it: each axis of the image is one of windows and one of their elements.
#[track_caller]
fn windows(op: &str, x: &Tensor, axes: &PoolAxes, fill: f64) -> Result<Tensor> {
    let mut pads: SmallVec<[(usize, usize); 5]> = SmallVec::from_slice(&[(0, 0); 2]);
    pads.extend(axes.iter().map(|axis| (axis.pads.0, axis.pads.1 + axis.beyond)));
    let padded = if pads.iter().any(|pad| *pad != (0, 0)) { x.pad(&pads, fill) } else { x.clone() };
    let node = padded.node()?;
    let is_whole = |(i, a): (usize, &PoolAxis)| {
        a.dilation == 1 && a.stride == a.window && a.n_windows * a.window == node.shape[i + 2]
    };
    let sizes = axes.iter().flat_map(|a| [a.n_windows, a.window]);
    let shape: Shape = node.shape[..2].iter().copied().chain(sizes).collect();
    shape.check(op)?;
    if axes.iter().enumerate().all(is_whole) {
        return Ok(padded.reshape(shape));
    }
    let from = node.shape.strides();
    let step = |n: usize, by: usize, stride: isize| if n > 1 { by as isize * stride } else { 0 };
    let mut strides: SmallVec<[isize; MAX_RANK]> = SmallVec::from_slice(&from[..2]);
    for (a, stride) in axes.iter().zip(&from[2..]) {
        strides.extend([step(a.n_windows, a.stride, *stride), step(a.window, a.dilation, *stride)]);
    }
    let view = View::from_axes(shape.iter().copied().zip(strides), 0);
    Ok(Tensor::viewed(node, view, Location::caller()))
}

/// Windows of at most this many elements are combined element by element.
const SMALL: usize = 16;

/// The elements of small windows along their axes, one after another; None of large windows.
fn elements(windows: &Tensor, axes: AxisSet) -> Result<Option<Vec<Tensor>>> {
    let shape = windows.node()?.shape;
    let axes: SmallVec<[usize; 3]> = (0..shape.rank()).filter(|axis| axes.contains(*axis)).collect();
    let n: usize = axes.iter().map(|axis| shape[*axis]).product();
    let element = |mut i: usize| {
        let mut y = windows.clone();
        for &axis in axes.iter().rev() {
            y = y.select_index(axis as i32, (i % shape[axis]) as i64);
            i /= shape[axis];
        }
        y
    };
    Ok((n <= SMALL).then(|| (0..n).map(element).collect()))
}

/// The least number of a dtype, which no maximum sees.
fn least(dtype: DType) -> f64 {
    dtype.int_range().map_or(f64::NEG_INFINITY, |(low, _)| low)
}

#[track_caller]
fn max_pool(x: &Tensor, pool: Pool) -> Result<Tensor> {
    let node = x.node()?;
    let axes = axes_of("max_pool", &node.shape, pool)?;
    let windows = windows("max_pool", x, &axes, least(node.dtype))?;
    let set = within_set(&axes);
    let Some(elements) = elements(&windows, set)? else { return Ok(windows.max(&within(&axes)[..])) };
    let y = elements.iter().skip(1).fold(elements[0].clone(), |y, x| y.maximum(x));
    if node.dtype.is_float() { with_rule(&MAX_POOL, &y, &[&windows], set) } else { Ok(y) }
}

static MAX_POOL: RuleRow = RuleRow {
    name: "max_pool",
    grad: |inputs, y, g, axes| vec![Some(Tensor::attempt(|| max_pool_grad(&inputs[0], y, g, axes)))],
};

/// The gradient with respect to the windows: `g` goes to the elements that equal the maximum `y`, and ties share it. This is one map over
/// the windows, while the rules of the `maximum`s would put the gradient together from pieces.
fn max_pool_grad(windows: &Tensor, y: &Tensor, g: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let kept = windows.node()?.shape.reduced(&axes, true);
    let Some(elements) = elements(windows, axes)? else { unreachable!("is recorded of small windows") };
    let hits = |x: &Tensor| x.eq(y).to_dtype(DType::F32);
    let n_hits = elements.iter().skip(1).fold(hits(&elements[0]), |n, x| n.add(hits(x)));
    let share = n_hits.recip().reshape(kept);
    let share = windows.eq(y.reshape(kept)).select(share, 0.0).detach();
    Ok(g.reshape(kept).mul(share))
}

#[track_caller]
fn indices_of(x: &Tensor, y: &Tensor, pool: Pool) -> Result<Tensor> {
    let op = "max_pool_with_indices";
    let node = x.node()?;
    let axes = axes_of(op, &node.shape, pool)?;
    let plane: Shape = [1, 1].into_iter().chain(node.shape[2..].iter().copied()).collect();
    if plane.n_elems() > i32::MAX as usize {
        return Err(Error::unsupported(op, format!("a channel of {} has more places than i32 can count", node.shape)));
    }
    // Each element's own place; none around the image. The least place of those that are greatest is the first.
    let flat = Shape::from([plane.n_elems()]);
    let places = coordinate(&flat, 0, &node.device, Location::caller()).reshape(plane);
    let places = windows(op, &places, &axes, i32::MAX as f64)?;
    let values = windows(op, x, &axes, least(node.dtype))?;
    let best = within(&axes).iter().fold(y.clone(), |y, axis| y.unsqueeze(*axis));
    let mut is_best = values.eq(best);
    if node.dtype.is_float() {
        is_best = is_best.logical_or(values.is_nan());
    }
    Ok(is_best.select(places, i32::MAX).min(&within(&axes)[..]))
}

/// The sum of each window, of zeros where it reaches beyond the input.
#[track_caller]
fn summed(op: &str, x: &Tensor, axes: &PoolAxes) -> Result<Tensor> {
    let windows = windows(op, x, axes, 0.0)?;
    let whole = windows.sum(&within(axes)[..]);
    Ok(match elements(&windows, within_set(axes))? {
        // In the backward pass each element gets the gradient of its window: one map, as in the rule of `max_pool`.
        Some(elements) => elements.iter().skip(1).fold(elements[0].clone(), |y, x| y.add(x)).with_gradient_of(&whole),
        None => whole,
    })
}

#[track_caller]
fn avg_pool(x: &Tensor, pool: Pool) -> Result<Tensor> {
    let op = "avg_pool";
    let node = x.node()?;
    let axes = axes_of(op, &node.shape, pool)?;
    let wide = Widened::new(x)?;
    let sum = summed(op, &wide.x, &axes)?;
    let is_cut = |a: &PoolAxis| a.beyond > 0 || !pool.count_include_pad && a.pads != (0, 0);
    let whole: usize = axes.iter().filter(|a| !is_cut(a)).map(|a| a.window).product();
    let mut y = sum.mul(1.0 / whole as f64);
    let shape: Shape = axes.iter().map(|a| a.n_windows).collect();
    for (i, a) in axes.iter().enumerate().filter(|(_, a)| is_cut(a)) {
        let (low, high) = match pool.count_include_pad {
            true => (-(a.pads.0 as i64), (a.size + a.pads.1) as i64),
            false => (0, a.size as i64),
        };
        // Elements of the window at `start` that lie in low..high.
        let start = coordinate(&shape, i, &node.device, Location::caller()).mul(a.stride).sub(a.pads.0);
        let up_to = |end: i64| start.neg().add(end + a.dilation as i64 - 1).floor_divide(a.dilation);
        // A window that lies in the padding alone has none: the mean of nothing is NaN, as NumPy's and PyTorch's.
        let n = up_to(high).minimum(a.window).sub(up_to(low).maximum(0)).maximum(0);
        y = y.div(n);
    }
    Ok(y.to_dtype(wide.result))
}

#[track_caller]
fn lp_pool(x: &Tensor, p: f32, pool: Pool) -> Result<Tensor> {
    let op = "lp_pool";
    let axes = axes_of(op, &x.node()?.shape, pool)?;
    let wide = Widened::new(x)?;
    let powers = if p == 2.0 { wide.x.square() } else { wide.x.abs().pow(p) };
    let sum = summed(op, &powers, &axes)?;
    // The root of 0 is replaced by a constant: its derivative is infinite, and times the inner derivative 0 it would be NaN.
    let is_zero = sum.eq(0);
    let root = if p == 2.0 { is_zero.select(1, &sum).sqrt() } else { is_zero.select(1, &sum).pow(1.0 / p) };
    Ok(is_zero.select(0, root).to_dtype(wide.result))
}

/// What an adaptive pooling makes of a window.
#[derive(Clone, Copy, PartialEq)]
enum Adaptive {
    Mean,
    Max,
}

#[track_caller]
fn adaptive(op: &str, x: &Tensor, sizes: &[usize], what: Adaptive) -> Result<Tensor> {
    let shape = x.node()?.shape;
    let first = match shape.rank().checked_sub(sizes.len()) {
        Some(first) if sizes.iter().chain(&shape[first..]).all(|n| *n > 0) => first,
        _ => return Err(Error::shape(op, format!("{sizes:?} windows along the last axes of {shape} cannot be"))),
    };
    let wide = if what == Adaptive::Mean { Widened::new(x)? } else { Widened { x: x.clone(), result: x.dtype()? } };
    // A mean over several axes is the mean of means, since each window has as many elements along an axis as the next.
    let mut y = wide.x;
    for (i, &n) in sizes.iter().enumerate() {
        y = adaptive_axis(op, &y, first + i, n, what)?;
    }
    Ok(y.to_dtype(wide.result))
}

/// `n` windows along one axis; window `i` has the elements from `⌊i·size/n⌋` up to `⌈(i + 1)·size/n⌉`.
#[track_caller]
fn adaptive_axis(op: &str, x: &Tensor, axis: usize, n: usize, what: Adaptive) -> Result<Tensor> {
    let node = x.node()?;
    let size = node.shape[axis];
    if n.saturating_add(1).saturating_mul(size).saturating_add(n) > i32::MAX as usize {
        return Err(Error::unsupported(op, format!("{n} windows of {size} elements are more than i32 can count")));
    }
    let length = (0..n).map(|i| ((i + 1) * size).div_ceil(n) - i * size / n).max().unwrap_or(1);
    let split = |y: &Tensor| {
        let shape = &node.shape;
        y.reshape(shape[..axis].iter().chain([&n, &length]).chain(&shape[axis + 1..]).copied().collect::<Shape>())
    };
    let at = axis as i32 + 1;
    let reduced = |y: Tensor| if what == Adaptive::Mean { y.mean(at) } else { y.max(at) };
    if size.is_multiple_of(n) {
        return Ok(reduced(split(x)));
    }
    let table = Shape::from([n, length]);
    let (window, element) = (
        coordinate(&table, 0, &node.device, Location::caller()),
        coordinate(&table, 1, &node.device, Location::caller()),
    );
    let start = window.mul(size).floor_divide(n);
    let end = window.add(1).mul(size).add(n - 1).floor_divide(n);
    let places = start.add(&element).minimum(end.sub(1));
    let y = split(&x.index_select(axis as i32, &places.flatten()));
    // A window that is shorter than the others sees its last element several times: a maximum does not mind.
    if what == Adaptive::Max {
        return Ok(reduced(y));
    }
    let lying = |t: Tensor| (axis + 1..node.shape.rank()).fold(t, |t, _| t.unsqueeze(-1));
    let is_inside = lying(element.lt(end.sub(&start)));
    let lengths = lying(end.sub(&start).narrow(1, 0, 1).squeeze(1));
    Ok(is_inside.select(&y, 0.0).sum(at).div(lengths))
}
