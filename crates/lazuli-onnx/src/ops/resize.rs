//! Images in other sizes, and images sampled at places that a grid names. Resizing is separable: along each axis every
//! element is a sum of a few weighted neighbours (taps), whose places and weights are computed on the host.

use lazuli::{DType, GridMode, GridPadding, GridSample, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extents, give, invalid, listed, refuse, sizes};
use crate::host::for_each_index;

pub const ROWS: &[Row] = &[
    row(
        "Resize",
        10,
        &[
            "antialias",
            "axes",
            "coordinate_transformation_mode",
            "cubic_coeff_a",
            "exclude_outside",
            "extrapolation_value",
            "keep_aspect_ratio_policy",
            "mode",
            "nearest_mode",
        ],
        resize,
    ),
    row("Upsample", 7, &["mode", "scales"], upsample),
    row("GridSample", 16, &["align_corners", "mode", "padding_mode"], grid_sample),
    row("AffineGrid", 20, &["align_corners"], affine_grid),
];

/// How elements between elements are made.
#[derive(Clone, Copy, PartialEq)]
enum Method {
    Nearest,
    Linear,
    Cubic,
}

/// How an axis is resized.
struct AxisResize<'a> {
    n_from: usize,
    n_to: usize,
    scale: f64,
    /// Start and end of the part that `tf_crop_and_resize` takes, as shares of the axis.
    crop: (f64, f64),
    method: Method,
    coordinates: &'a str,
    nearest: &'a str,
    cubic_a: f64,
    antialias: bool,
    exclude_outside: bool,
}

impl AxisResize<'_> {
    /// Where an element of the result is on the old axis.
    fn place(&self, i: usize) -> Result<f64, Stop> {
        let (x, n) = (i as f64, self.n_from as f64);
        // The size that the scale says, which need not be whole.
        let width = self.scale * n;
        Ok(match self.coordinates {
            "align_corners" if width == 1.0 => 0.0,
            "align_corners" => x * (n - 1.0) / (width - 1.0),
            "asymmetric" => x / self.scale,
            "half_pixel" => (x + 0.5) / self.scale - 0.5,
            "pytorch_half_pixel" if width == 1.0 => -0.5,
            "pytorch_half_pixel" => (x + 0.5) / self.scale - 0.5,
            "half_pixel_symmetric" => {
                let offset = n / 2.0 * (1.0 - self.n_to as f64 / width);
                offset + (x + 0.5) / self.scale - 0.5
            }
            "tf_half_pixel_for_nn" => (x + 0.5) / self.scale,
            "tf_crop_and_resize" => {
                let (start, end) = self.crop;
                let inside = match width == 1.0 {
                    true => (end - start) * (n - 1.0) / 2.0,
                    false => x * (end - start) * (n - 1.0) / (width - 1.0),
                };
                inside + start * (n - 1.0)
            }
            other => return refuse(format!("coordinate_transformation_mode = `{other}`")),
        })
    }

    /// Weights of the neighbours of a place that is `ratio` (above 0, at most 1) after the one in the middle.
    fn weights(&self, ratio: f64) -> Result<Vec<f64>, Stop> {
        // Kernels reach further where the image shrinks, if aliases are to be avoided.
        let shrink = if self.antialias { self.scale.min(1.0) } else { 1.0 };
        let kernel = |distance: f64| {
            let (x, a) = (distance.abs(), self.cubic_a);
            match self.method {
                Method::Cubic if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
                Method::Cubic if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
                Method::Cubic => 0.0,
                _ => (1.0 - x).max(0.0),
            }
        };
        let reach = match self.method {
            Method::Nearest => {
                let later = match self.nearest {
                    _ if ratio == 1.0 => true,
                    "round_prefer_floor" => ratio > 0.5,
                    "round_prefer_ceil" => ratio >= 0.5,
                    "floor" => false,
                    "ceil" => true,
                    other => return refuse(format!("nearest_mode = `{other}`")),
                };
                return Ok(if later { vec![0.0, 1.0] } else { vec![1.0, 0.0] });
            }
            Method::Linear => 1.0,
            Method::Cubic => 2.0,
        };
        let first = (-reach / shrink).floor() as i64 + 1;
        let weights: Vec<f64> = (first..2 - first).map(|i| kernel(shrink * (i as f64 - ratio))).collect();
        let sum: f64 = weights.iter().sum();
        Ok(if self.antialias { weights.iter().map(|w| w / sum).collect() } else { weights })
    }

    /// The axis resized, with a number where a crop is outside the image.
    fn apply(&self, x: &Tensor, along: usize, outside: f32) -> Result<Tensor, Stop> {
        let mut taps: Vec<(Vec<i32>, Vec<f32>)> = Vec::new();
        let mut is_outside = Vec::with_capacity(self.n_to);
        listed(self.n_to)?;
        let last = self.n_from as i64 - 1;
        for i in 0..self.n_to {
            let place = self.place(i)?;
            is_outside.push(self.coordinates == "tf_crop_and_resize" && (place < 0.0 || place > last as f64));
            let floor = place.floor();
            let is_whole = place == floor;
            let mut weights = self.weights(if is_whole { 1.0 } else { place - floor })?;
            let half = weights.len() as i64 / 2;
            let first = floor as i64 - half + if is_whole { 0 } else { 1 };
            let at = |k: usize| first + k as i64;
            if self.exclude_outside {
                let inside = |k: usize| (0..=last).contains(&at(k));
                let sum: f64 = (0..weights.len()).filter(|k| inside(*k)).map(|k| weights[k]).sum();
                let sum = if sum == 0.0 { 1.0 } else { sum };
                weights = (0..weights.len()).map(|k| if inside(k) { weights[k] / sum } else { 0.0 }).collect();
            }
            taps.resize(weights.len(), (Vec::new(), Vec::new()));
            for (k, tap) in taps.iter_mut().enumerate() {
                tap.0.push(at(k).clamp(0, last) as i32);
                tap.1.push(weights[k] as f32);
            }
        }
        let mut shape = vec![1; x.shape()?.len()];
        shape[along] = self.n_to;
        let device = x.device()?.clone();
        let choose = |index: Vec<i32>| x.index_select(along as i32, &Tensor::from_vec(index, [self.n_to], &device));
        let mut y = match self.method {
            // One neighbour has all the weight, so that integers stay what they are.
            Method::Nearest => {
                let nearest = |i: usize| if taps[1].1[i] == 1.0 { taps[1].0[i] } else { taps[0].0[i] };
                choose((0..self.n_to).map(nearest).collect())
            }
            _ => {
                let mut sum: Option<Tensor> = None;
                for (index, weights) in taps {
                    let part = choose(index).mul(&Tensor::from_vec(weights, &shape[..], &device));
                    sum = Some(match sum {
                        Some(sum) => sum.add(&part),
                        None => part,
                    });
                }
                sum.unwrap_or_else(|| x.clone())
            }
        };
        if is_outside.contains(&true) {
            y = Tensor::from_vec(is_outside, shape, &device).select(outside, &y);
        }
        Ok(y)
    }
}

fn method(name: &str) -> Result<Method, Stop> {
    Ok(match name {
        "nearest" => Method::Nearest,
        "linear" | "bilinear" => Method::Linear,
        "cubic" | "bicubic" => Method::Cubic,
        other => return refuse(format!("mode = `{other}`")),
    })
}

fn resize(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let rank = shape.len();
    // In operator set 10 the scales are the second input, elements are counted from 0, and the nearest is the one before.
    let is_old = c.opset < 11;
    let (scales_at, sizes_at) = if is_old { (1, usize::MAX) } else { (2, 3) };
    let axes: Vec<usize> = match c.attr_ints("axes")? {
        Some(axes) => axes.iter().map(|a| axis(*a, rank)).collect::<Result<_, Stop>>()?,
        None => (0..rank).collect(),
    };
    let present = |i: usize| -> Result<bool, Stop> { Ok(c.has(i) && c.shape(i)? != [0]) };
    let (mut scales, mut wanted) = (vec![1.0; rank], shape.clone());
    if present(sizes_at)? {
        let given = sizes(&c.ints(sizes_at)?)?;
        if given.len() != axes.len() || axes.iter().any(|axis| shape[*axis] == 0) {
            return invalid(format!("Resize: sizes {given:?} for {shape:?}"));
        }
        for (along, size) in axes.iter().zip(&given) {
            (scales[*along], wanted[*along]) = (*size as f64 / shape[*along] as f64, *size);
        }
        let of_axes = axes.iter().map(|axis| scales[*axis]);
        let common = match &c.attr_text("keep_aspect_ratio_policy", "stretch")?[..] {
            "stretch" => None,
            "not_larger" => of_axes.reduce(f64::min),
            "not_smaller" => of_axes.reduce(f64::max),
            other => return refuse(format!("keep_aspect_ratio_policy = `{other}`")),
        };
        if let Some(scale) = common {
            for along in &axes {
                (scales[*along], wanted[*along]) = (scale, (scale * shape[*along] as f64 + 0.5) as usize);
            }
        }
    } else {
        let given = c.host(scales_at)?.to_f64s();
        if given.len() != axes.len() || given.iter().any(|scale| !(*scale > 0.0 && *scale < 1e6)) {
            return invalid(format!("Resize: scales {given:?} for {shape:?}"));
        }
        for (along, scale) in axes.iter().zip(&given) {
            (scales[*along], wanted[*along]) = (*scale, (*scale * shape[*along] as f64) as usize);
        }
    }
    let coordinates =
        c.attr_text("coordinate_transformation_mode", if is_old { "asymmetric" } else { "half_pixel" })?;
    let mut crops = vec![(0.0, 1.0); rank];
    if coordinates == "tf_crop_and_resize" {
        let given = c.host(1)?.to_f64s();
        if given.len() != 2 * axes.len() {
            return invalid(format!("Resize: a region of {} numbers for {} axes", given.len(), axes.len()));
        }
        for (i, along) in axes.iter().enumerate() {
            crops[*along] = (given[i], given[i + axes.len()]);
        }
    }
    let nearest = c.attr_text("nearest_mode", if is_old { "floor" } else { "round_prefer_floor" })?;
    let how = method(&c.attr_text("mode", "nearest")?)?;
    let elem = c.elem(0)?;
    let mut x = c.tensor(0)?;
    if how != Method::Nearest {
        x = x.to_dtype(DType::F32);
    }
    for along in axes {
        if scales[along] == 1.0 && wanted[along] == shape[along] && crops[along] == (0.0, 1.0) {
            continue;
        }
        if shape[along] == 0 {
            return invalid(format!("Resize: {shape:?} has an empty axis"));
        }
        let resized = AxisResize {
            n_from: shape[along],
            n_to: wanted[along],
            scale: scales[along],
            crop: crops[along],
            method: how,
            coordinates: &coordinates,
            nearest: &nearest,
            cubic_a: c.attr_float("cubic_coeff_a", -0.75)? as f64,
            antialias: c.attr_int("antialias", 0)? != 0,
            exclude_outside: c.attr_int("exclude_outside", 0)? != 0,
        };
        x = resized.apply(&x, along, c.attr_float("extrapolation_value", 0.0)?)?;
    }
    give(x, elem)
}

fn upsample(c: &Call) -> Outputs {
    let scales: Vec<f64> = match c.attr_floats("scales")? {
        Some(scales) => scales.iter().map(|scale| *scale as f64).collect(),
        None => c.host(1)?.to_f64s(),
    };
    let shape = c.shape(0)?;
    if scales.len() != shape.len() || scales.iter().any(|scale| !(*scale > 0.0 && *scale < 1e6)) || shape.contains(&0) {
        return invalid(format!("Upsample: scales {scales:?} for {shape:?}"));
    }
    let how = method(&c.attr_text("mode", "nearest")?)?;
    let mut x = c.tensor(0)?;
    for (along, scale) in scales.iter().enumerate().filter(|(_, scale)| **scale != 1.0) {
        let resized = AxisResize {
            n_from: shape[along],
            n_to: (shape[along] as f64 * scale) as usize,
            scale: *scale,
            crop: (0.0, 1.0),
            method: how,
            coordinates: "asymmetric",
            nearest: "floor",
            cubic_a: -0.75,
            antialias: false,
            exclude_outside: false,
        };
        x = resized.apply(&x, along, 0.0)?;
    }
    give(x, c.elem(0)?)
}

fn grid_sample(c: &Call) -> Outputs {
    let mode = match method(&c.attr_text("mode", if c.opset < 20 { "bilinear" } else { "linear" })?)? {
        Method::Nearest => GridMode::Nearest,
        Method::Linear => GridMode::Linear,
        Method::Cubic => GridMode::Cubic,
    };
    let padding = match &c.attr_text("padding_mode", "zeros")?[..] {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return refuse(format!("GridSample: padding_mode = `{other}`")),
    };
    let options = GridSample { mode, padding, align_corners: c.attr_int("align_corners", 0)? != 0 };
    give(c.tensor(0)?.grid_sample(&c.tensor(1)?, options), c.elem(0)?)
}

fn affine_grid(c: &Call) -> Outputs {
    let image = extents(c.ints(1)?.get(2..).unwrap_or_default())?;
    let n_axes = image.len();
    if !(2..=3).contains(&n_axes) {
        return invalid(format!("AffineGrid: an image of {image:?}"));
    }
    listed(image.iter().fold(1, |n: usize, size| n.saturating_mul(*size)))?;
    let aligned = c.attr_int("align_corners", 0)? != 0;
    let coordinate = |i: usize, n: usize| match aligned {
        true if n < 2 => -1.0,
        true => -1.0 + 2.0 * i as f32 / (n - 1) as f32,
        false => -1.0 + (2 * i + 1) as f32 / n as f32,
    };
    let mut base = Vec::new();
    for_each_index(&image, |index| {
        // The last axis comes first.
        base.extend(index.iter().zip(&image).rev().map(|(i, n)| coordinate(*i, *n)));
        base.push(1.0);
    });
    let n_places: usize = image.iter().product();
    let base = Tensor::from_vec(base, [n_places, n_axes + 1], c.device);
    let theta = c.tensor(0)?;
    let &[batch, _, _] = theta.shape()? else { return invalid("AffineGrid: theta has no three axes") };
    give(base.matmul(&theta.t()).reshape([&[batch], &image[..], &[n_axes]].concat()), c.elem(0)?)
}
