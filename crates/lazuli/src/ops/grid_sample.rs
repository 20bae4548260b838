//! Images sampled at places that another tensor names. Which elements a place lies between is data, so they are gathered; weights
//! are computed beside them, and gradients go to the image and to the places.

use super::operand::or_error;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// How [`grid_sample`](Tensor::grid_sample) reads between and beyond elements.
///
/// ```
/// # use lazuli::{GridMode, GridPadding, GridSample};
/// let options = GridSample { padding: GridPadding::Border, ..GridSample::default() };
/// assert_eq!((options.mode, options.align_corners), (GridMode::Linear, false));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GridSample {
    /// Which function goes through the elements.
    pub mode: GridMode,
    /// What is beyond the image.
    pub padding: GridPadding,
    /// Whether −1 and 1 are the centres of the first and the last element, not their outer edges.
    pub align_corners: bool,
}

/// Which function goes through the elements of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridMode {
    /// The nearest element; in the middle the one with the even index.
    Nearest,
    /// Straight lines.
    #[default]
    Linear,
    /// Cubic convolution with −0.75.
    Cubic,
}

/// What a place beyond the image reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The element at the edge.
    Border,
    /// The image mirrored at its edges.
    Reflection,
}

impl Tensor {
    /// An image `[batch, channels, size…]` of one to three axes at the places of `grid` `[batch, new size…, axes]`: each names its
    /// coordinates, the last axis' first, from −1 to 1. The result is `[batch, channels, new size…]`.
    ///
    /// ```
    /// # use lazuli::{Device, GridSample, Tensor};
    /// let cpu = Device::cpu();
    /// let image = Tensor::from_slice(&[0.0f32, 10.0, 20.0, 30.0], [1, 1, 2, 2], &cpu);
    /// let grid = Tensor::from_slice(&[0.0f32, 0.0, -0.5, -0.5], [1, 1, 2, 2], &cpu);
    /// assert_eq!(image.grid_sample(&grid, GridSample::default()).to_vec::<f32>()?, [15.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn grid_sample(&self, grid: &Tensor, options: GridSample) -> Tensor {
        or_error(sampled(self, grid, options))
    }
}

#[track_caller]
fn sampled(x: &Tensor, grid: &Tensor, options: GridSample) -> Result<Tensor> {
    let (shape, places) = (x.node()?.shape, grid.node()?.shape);
    let n_axes = shape.rank().saturating_sub(2);
    let fits = (1..=3).contains(&n_axes) && places.rank() == shape.rank() && places[0] == shape[0];
    if !fits || places.last() != Some(&n_axes) || shape[2..].contains(&0) {
        let what = "takes an image [batch, channels, size…] and a grid [batch, new size…, axes]";
        return Err(Error::shape("grid_sample", format!("{what}: {shape} and {places}")));
    }
    let dtypes = [x.node()?.dtype, grid.node()?.dtype];
    if let Some(dtype) = dtypes.iter().find(|dtype| !dtype.is_float()) {
        return Err(Error::dtype("grid_sample", format!("takes floats, not {dtype}; cast with to_dtype")));
    }
    let (batch, channels) = (shape[0], shape[1]);
    let n_places: usize = places[1..=n_axes].iter().product();
    let grid = grid.to_dtype(DType::F32);
    // The grid names the last axis first.
    let coordinates = |i: usize| grid.select_index(-1, (n_axes - 1 - i) as isize).reshape([batch, 1, n_places]);
    let taps: Vec<Vec<Tap>> = (0..n_axes).map(|i| taps(&coordinates(i), shape[2 + i], options)).collect();
    let flat = x.to_dtype(DType::F32).reshape([batch, channels, shape[2..].iter().product()]);
    // Every choice of one tap per axis is an element, which counts by the product of their weights.
    let mut choices: Vec<Tap> = Vec::new();
    for (i, of_axis) in taps.iter().enumerate() {
        choices = match i {
            0 => of_axis.clone(),
            _ => choices.iter().flat_map(|tap| of_axis.iter().map(|next| tap.with(next, shape[2 + i]))).collect(),
        };
    }
    let parts = choices.iter().map(|tap| {
        let index = tap.index.broadcast_to([batch, channels, n_places]);
        flat.gather(2, &index).mul(&tap.weight)
    });
    let sum = parts.reduce(|sum, part| sum.add(&part));
    let sum = sum.ok_or_else(|| Error::shape("grid_sample", format!("no axes to sample in {shape}")))?;
    let made: Vec<usize> = [batch, channels].into_iter().chain(places[1..=n_axes].iter().copied()).collect();
    Ok(sum.reshape(made).to_dtype(dtypes[0]))
}

/// An element that has a say at every place: where it is, which is always inside, and its weight.
#[derive(Clone)]
struct Tap {
    index: Tensor,
    weight: Tensor,
}

impl Tap {
    /// This one and another of the next axis, which has so many elements.
    #[track_caller]
    fn with(&self, next: &Tap, n: usize) -> Tap {
        Tap { index: self.index.mul(n as i32).add(&next.index), weight: self.weight.mul(&next.weight) }
    }
}

/// The taps along an axis of `n` elements at coordinates from −1 to 1.
#[track_caller]
fn taps(coordinates: &Tensor, n: usize, options: GridSample) -> Vec<Tap> {
    let n = n as f32;
    let from_zero = coordinates.add(1.0);
    let (place, low, high) = match options.align_corners {
        true => (from_zero.mul((n - 1.0) / 2.0), 0.0, n - 1.0),
        false => (from_zero.mul(n).sub(1.0).div(2.0), -0.5, n - 0.5),
    };
    let place = if options.mode == GridMode::Nearest { place.round() } else { place };
    let is_outside = place.lt(low).logical_or(&place.gt(high));
    let place = match options.padding {
        GridPadding::Zeros => place,
        GridPadding::Border => is_outside.select(&place.clamp(0.0, n - 1.0), &place),
        GridPadding::Reflection => is_outside.select(&reflected(&place, low, high), &place),
    };
    let first = place.floor();
    let ratio = place.sub(&first);
    let weights: Vec<(f32, Tensor)> = match options.mode {
        GridMode::Nearest => vec![(0.0, ratio.ones_like())],
        GridMode::Linear => vec![(0.0, ratio.neg().add(1.0)), (1.0, ratio.clone())],
        GridMode::Cubic => (-1..3).map(|k| (k as f32, cubic_weight(&ratio, k as f32))).collect(),
    };
    let tap = |(k, weight): (f32, Tensor)| {
        let at = first.add(k);
        let inside = at.ge(0.0).logical_and(&at.le(n - 1.0));
        let at = match options.padding {
            GridPadding::Reflection => inside.select(&at, &reflected(&at, low, high).trunc()),
            _ => at,
        };
        let weight = if options.padding == GridPadding::Zeros { inside.select(&weight, 0.0) } else { weight };
        // NaN is no place: it reads the first element, with a weight that is NaN.
        let at = at.is_nan().select(0.0, &at.clamp(0.0, n - 1.0));
        Tap { index: at.to_dtype(DType::I32), weight }
    };
    weights.into_iter().map(tap).collect()
}

/// Places mirrored at the borders until they are inside.
#[track_caller]
fn reflected(x: &Tensor, low: f32, high: f32) -> Tensor {
    let width = high - low;
    if width <= 0.0 {
        return x.mul(0.0);
    }
    let folded = x.sub(low).rem(2.0 * width);
    folded.gt(width).select(&folded.neg().add(2.0 * width), &folded).add(low)
}

/// The weight of the neighbour `k` places after the one before, in cubic convolution with a = −0.75.
#[track_caller]
fn cubic_weight(ratio: &Tensor, k: f32) -> Tensor {
    const A: f32 = -0.75;
    let x = ratio.sub(k).abs();
    match k {
        // |x| ≤ 1: ((a + 2)·x − (a + 3))·x² + 1
        0.0 | 1.0 => x.mul(A + 2.0).sub(A + 3.0).mul(&x.square()).add(1.0),
        // 1 < |x| < 2: ((a·x − 5a)·x + 8a)·x − 4a
        _ => x.mul(A).sub(5.0 * A).mul(&x).add(8.0 * A).mul(&x).sub(4.0 * A),
    }
}
