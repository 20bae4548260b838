//! Resampling along axes, one axis after another: every new element is a weighted sum of a few old ones (taps). Which ones and
//! with which weights depends on sizes alone, so it is worked out on the host, in double precision: in f32 a place near the
//! end of a long axis would be off by more than a weight may be.

use super::operand::or_error;
use super::softmax::Widened;
use crate::error::{Error, Result, counted};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// How [`interpolate`](Tensor::interpolate) makes new elements of old ones.
///
/// ```
/// # use lazuli::{Coordinates, Interpolate, Interpolation};
/// let options = Interpolate { coordinates: Coordinates::AlignCorners, ..Interpolate::new(Interpolation::Linear) };
/// assert!(!options.antialias);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Interpolate {
    /// Which function goes through the old elements.
    pub mode: Interpolation,
    /// Where new elements lie among the old ones.
    pub coordinates: Coordinates,
    /// Whether the function is widened where there are fewer new elements than old ones, so that all have a say.
    pub antialias: bool,
    /// Whether old elements beyond the edge have no weight. Else the edge stands for them.
    pub exclude_outside: bool,
    /// For each axis the factor by which places are worked out; empty if it is the new size over the old one. For sizes that were
    /// rounded from other factors.
    pub scales: Vec<f64>,
    /// For each axis the part of it that is shown, the whole axis being from 0.0 to 1.0; with [`Coordinates::CropAndResize`].
    pub crop: Vec<(f64, f64)>,
    /// The value of new elements outside of the input, with [`Coordinates::CropAndResize`].
    pub extrapolation: f32,
}

impl Interpolate {
    /// As PyTorch does it by default, corners not aligned.
    pub fn new(mode: Interpolation) -> Interpolate {
        let coordinates = match mode {
            Interpolation::Nearest(_) => Coordinates::Asymmetric,
            _ => Coordinates::HalfPixel,
        };
        Interpolate {
            mode,
            coordinates,
            antialias: false,
            exclude_outside: false,
            scales: Vec::new(),
            crop: Vec::new(),
            extrapolation: 0.0,
        }
    }
}

/// Which function goes through the old elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Interpolation {
    /// The element that is nearest.
    Nearest(NearestRule),
    /// Straight lines.
    Linear,
    /// Cubic convolution; the number is its coefficient: −0.75 in PyTorch and ONNX, −0.5 in others.
    Cubic(f64),
}

/// Which of two elements a place between them takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearestRule {
    /// The nearer one; in the middle the lower.
    RoundPreferFloor,
    /// The nearer one; in the middle the upper.
    RoundPreferCeil,
    /// The lower one.
    Floor,
    /// The upper one.
    Ceil,
}

/// Where new elements lie among the old ones; `x` is the place of a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coordinates {
    /// Elements are areas: `(x + ½) / scale − ½`.
    HalfPixel,
    /// As `HalfPixel`, but centred where the new size is not the old one times the scale.
    HalfPixelSymmetric,
    /// As `HalfPixel`, but a single new element lies at −½.
    PytorchHalfPixel,
    /// The first and the last element stay first and last: `x · (old − 1) / (new − 1)`.
    AlignCorners,
    /// The first element stays first: `x / scale`.
    Asymmetric,
    /// Elements are areas, of which the nearest begins there: `(x + ½) / scale`. For `Nearest` only.
    HalfPixelForNearest,
    /// A part of each axis, [`crop`](Interpolate::crop), corners aligned with those of the part.
    CropAndResize,
}

impl Tensor {
    /// The last axes with these sizes, elements between the old ones worked out as the options say.
    ///
    /// ```
    /// # use lazuli::{Device, Interpolate, Interpolation, Tensor};
    /// let x = Tensor::from_slice(&[0.0f32, 4.0], [1, 1, 2], &Device::cpu());
    /// let y = x.interpolate(&[4], &Interpolate::new(Interpolation::Linear));
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 3.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn interpolate(&self, sizes: &[usize], options: &Interpolate) -> Tensor {
        or_error(by_sizes(self, sizes, options))
    }

    /// [`interpolate`](Tensor::interpolate) with a factor for each of the last axes: sizes are rounded down, places are those
    /// of the factors themselves.
    ///
    /// ```
    /// # use lazuli::{Device, Interpolate, Interpolation, NearestRule, Tensor};
    /// let x = Tensor::arange(0, 3, 1, &Device::cpu());
    /// let nearest = Interpolate::new(Interpolation::Nearest(NearestRule::Floor));
    /// assert_eq!(x.interpolate_by(&[2.0], &nearest).to_vec::<i32>()?, [0, 0, 1, 1, 2, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn interpolate_by(&self, scales: &[f64], options: &Interpolate) -> Tensor {
        or_error(by_scales(self, scales, options))
    }
}

#[track_caller]
fn by_sizes(x: &Tensor, sizes: &[usize], options: &Interpolate) -> Result<Tensor> {
    let op = "interpolate";
    let shape = x.node()?.shape;
    let first = last_axes(op, &shape, sizes.len())?;
    if !options.scales.is_empty() && options.scales.len() != sizes.len() {
        let (n, sizes) = (counted(options.scales.len(), "scale"), counted(sizes.len(), "size"));
        return Err(Error::shape(op, format!("{n} for {sizes} of {shape}; give one each, or none")));
    }
    are_scales(op, &shape, &options.scales)?;
    let line = |(i, (size, new)): (usize, (&usize, &usize))| match options.scales.get(i) {
        Some(scale) => Line { size: *size, new: *new, scale: *scale, length: *size as f64 * scale },
        None => Line { size: *size, new: *new, scale: *new as f64 / *size as f64, length: *new as f64 },
    };
    let lines: Vec<Line> = shape[first..].iter().zip(sizes).enumerate().map(line).collect();
    resized(op, x, first, &lines, options)
}

#[track_caller]
fn by_scales(x: &Tensor, scales: &[f64], options: &Interpolate) -> Result<Tensor> {
    let op = "interpolate_by";
    let shape = x.node()?.shape;
    let first = last_axes(op, &shape, scales.len())?;
    are_scales(op, &shape, scales)?;
    let line = |(size, scale): (&usize, &f64)| {
        let length = *size as f64 * scale;
        Line { size: *size, new: length as usize, scale: *scale, length }
    };
    let lines: Vec<Line> = shape[first..].iter().zip(scales).map(line).collect();
    resized(op, x, first, &lines, options)
}

#[track_caller]
fn are_scales(op: &str, shape: &Shape, scales: &[f64]) -> Result<()> {
    match scales.iter().find(|scale| !(**scale > 0.0 && scale.is_finite())) {
        Some(scale) => {
            Err(Error::shape(op, format!("{shape} cannot be scaled by {scale}; scales are positive numbers")))
        }
        None => Ok(()),
    }
}

/// The first of the last `n` axes.
#[track_caller]
fn last_axes(op: &str, shape: &Shape, n: usize) -> Result<usize> {
    match shape.rank().checked_sub(n) {
        Some(first) => Ok(first),
        None => Err(Error::shape(op, format!("{} for {shape}, which has {}", counted(n, "size"), shape.rank()))),
    }
}

/// One axis and what becomes of it.
#[derive(Clone, Copy)]
struct Line {
    size: usize,
    new: usize,
    scale: f64,
    /// The new size before it was rounded down.
    length: f64,
}

#[track_caller]
fn resized(op: &str, x: &Tensor, first: usize, lines: &[Line], options: &Interpolate) -> Result<Tensor> {
    let node = x.node()?;
    let sizes = lines.iter().map(|line| line.new);
    let shape: Shape = node.shape[..first].iter().copied().chain(sizes).collect();
    shape.check(op)?;
    let is_crop = options.coordinates == Coordinates::CropAndResize;
    if is_crop && options.crop.len() != lines.len() {
        let (n, axes) = (counted(options.crop.len(), "part"), counted(lines.len(), "axis"));
        return Err(Error::shape(op, format!("crop has {n} for {axes} of {}; give one each", node.shape)));
    }
    if shape.n_elems() == 0 {
        return Ok(Tensor::zeros(shape, node.dtype, &node.device));
    }
    if node.shape.n_elems() == 0 {
        return Err(Error::shape(op, format!("{} has no elements to make {shape} of", node.shape)));
    }
    // Nearest elements keep their dtype; sums are made in f32 and rounded once.
    let is_nearest = matches!(options.mode, Interpolation::Nearest(_));
    let wide = if is_nearest { Widened { x: x.clone(), result: node.dtype } } else { Widened::new(x)? };
    let mut y = wide.x;
    for (i, line) in lines.iter().enumerate() {
        let crop = if is_crop { options.crop[i] } else { (0.0, 1.0) };
        if line.size == line.new && line.scale == 1.0 && crop == (0.0, 1.0) {
            continue;
        }
        y = along(&y, first + i, &Taps::new(line, crop, options), options)?;
    }
    Ok(y.to_dtype(wide.result))
}

/// For each new element of an axis, which old ones it is made of, and how much of each.
struct Taps {
    /// As many for each new element.
    n_taps: usize,
    /// `[new, taps]`.
    places: Vec<i32>,
    weights: Vec<f32>,
    /// Whether a new element lies outside of the input.
    is_outside: Vec<bool>,
}

impl Taps {
    fn new(line: &Line, crop: (f64, f64), options: &Interpolate) -> Taps {
        // Where there are fewer new elements than old ones, the function is as much wider as they are fewer.
        let narrowing = if options.antialias { line.scale.min(1.0) } else { 1.0 };
        let reach = match options.mode {
            Interpolation::Nearest(_) => 0.5,
            Interpolation::Linear => 1.0,
            Interpolation::Cubic(_) => 2.0,
        };
        // Taps before the place, without it, and all of them.
        let before = match options.mode {
            Interpolation::Nearest(_) => 0,
            _ => -((-reach / narrowing).floor() as i64) - 1,
        };
        let n_taps = if reach < 1.0 { 1 } else { (2 + 2 * before) as usize };
        let mut taps = Taps { n_taps, places: Vec::new(), weights: Vec::new(), is_outside: Vec::new() };
        for i in 0..line.new {
            let place = line.place(i, crop, options.coordinates);
            let last = (line.size - 1) as f64;
            taps.is_outside.push(options.coordinates == Coordinates::CropAndResize && !(0.0..=last).contains(&place));
            if let Interpolation::Nearest(rule) = options.mode {
                taps.push(nearest(place, rule), 1.0, line.size);
                continue;
            }
            let floor = place.floor();
            let at = |k: usize| floor as i64 - before + k as i64;
            let weight = |k: usize| {
                let is_inside = (0..line.size as i64).contains(&at(k));
                let distance = (at(k) as f64 - place) * narrowing;
                if options.exclude_outside && !is_inside { 0.0 } else { options.mode.weight(distance) }
            };
            // A place so far outside that no old element has a weight shows none.
            let sum: f64 = Some((0..n_taps).map(weight).sum()).filter(|sum| *sum != 0.0).unwrap_or(1.0);
            for k in 0..n_taps {
                taps.push(at(k), weight(k) / sum, line.size);
            }
        }
        taps
    }

    /// The edge stands for what lies beyond it.
    fn push(&mut self, place: i64, weight: f64, size: usize) {
        self.places.push(place.clamp(0, size as i64 - 1) as i32);
        self.weights.push(weight as f32);
    }
}

impl Line {
    /// Where new element `i` lies among the old ones.
    fn place(&self, i: usize, (start, end): (f64, f64), coordinates: Coordinates) -> f64 {
        let (x, size) = (i as f64, self.size as f64);
        match coordinates {
            Coordinates::PytorchHalfPixel if self.length <= 1.0 => -0.5,
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => (x + 0.5) / self.scale - 0.5,
            Coordinates::HalfPixelSymmetric => {
                // What rounding down took away is missing on both sides.
                let missing = 0.5 * size * (1.0 - self.new as f64 / self.length);
                missing + (x + 0.5) / self.scale - 0.5
            }
            Coordinates::AlignCorners if self.length <= 1.0 => 0.0,
            Coordinates::AlignCorners => x * (size - 1.0) / (self.length - 1.0),
            Coordinates::Asymmetric => x / self.scale,
            Coordinates::HalfPixelForNearest => (x + 0.5) / self.scale,
            Coordinates::CropAndResize if self.length <= 1.0 => 0.5 * (start + end) * (size - 1.0),
            Coordinates::CropAndResize => start * (size - 1.0) + x * (end - start) * (size - 1.0) / (self.length - 1.0),
        }
    }
}

fn nearest(place: f64, rule: NearestRule) -> i64 {
    let whole = match rule {
        NearestRule::RoundPreferFloor => (place - 0.5).ceil(),
        NearestRule::RoundPreferCeil => (place + 0.5).floor(),
        NearestRule::Floor => place.floor(),
        NearestRule::Ceil => place.ceil(),
    };
    whole as i64
}

impl Interpolation {
    /// What an old element this far away counts.
    fn weight(self, distance: f64) -> f64 {
        let d = distance.abs();
        match self {
            Interpolation::Nearest(_) => 1.0,
            Interpolation::Linear => (1.0 - d).max(0.0),
            // Keys' cubic convolution.
            Interpolation::Cubic(a) if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            Interpolation::Cubic(a) if d < 2.0 => ((d - 5.0) * d + 8.0) * a * d - 4.0 * a,
            Interpolation::Cubic(_) => 0.0,
        }
    }
}

/// So many taps are added one after another, all of them in one map; more are reduced.
const FEW: usize = 4;

#[track_caller]
fn along(x: &Tensor, axis: usize, taps: &Taps, options: &Interpolate) -> Result<Tensor> {
    let node = x.node()?;
    let (n, rank, device) = (taps.is_outside.len(), node.shape.rank(), &node.device);
    let shape = node.shape.with(axis, n);
    // A vector along the axis.
    let lying = |values: Vec<f32>| {
        let column = (0..rank).map(|i| if i == axis { n } else { 1 }).collect::<Shape>();
        Tensor::from_vec(values, column, device)
    };
    let every = |k: usize| (0..n).map(move |i| i * taps.n_taps + k);
    let mut y = match taps.n_taps {
        1 => x.index_select(axis as i32, &Tensor::from_slice(&taps.places, [n], device)),
        2..=FEW => {
            let term = |k: usize| {
                let places: Vec<i32> = every(k).map(|i| taps.places[i]).collect();
                let weights = lying(every(k).map(|i| taps.weights[i]).collect());
                x.index_select(axis as i32, &Tensor::from_vec(places, [n], device)).mul(weights)
            };
            (1..taps.n_taps).fold(term(0), |y, k| y.add(term(k)))
        }
        n_taps => {
            let split = |shape: &Shape| -> Shape {
                shape[..axis].iter().chain([&n, &n_taps]).chain(&shape[axis + 1..]).copied().collect()
            };
            let places = Tensor::from_slice(&taps.places, [n * n_taps], device);
            let weights = Tensor::from_slice(&taps.weights, [n, n_taps], device);
            let weights = (axis + 1..rank).fold(weights, |w, _| w.unsqueeze(-1));
            let wide = split(&shape);
            wide.check("interpolate")?;
            x.index_select(axis as i32, &places).reshape(wide).mul(weights).sum(axis as i32 + 1)
        }
    };
    if taps.is_outside.contains(&true) {
        let column = (0..rank).map(|i| if i == axis { n } else { 1 }).collect::<Shape>();
        y = Tensor::from_slice(&taps.is_outside, column, device).select(options.extrapolation, &y);
        y = y.to_dtype(node.dtype);
    }
    Ok(y)
}
