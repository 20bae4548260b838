//! Images in other sizes, and images sampled at places that a grid names: the engine's, with ONNX's attributes.

use lazuli::{Coordinates, DType, GridMode, GridPadding, GridSample, Interpolate, Interpolation, NearestRule, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extents, give, invalid, listed, sizes};
use crate::graph::Node;
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
    )
    .checked(&[
        |node| resize_mode(node).map(drop),
        |node| coordinates(node).map(drop),
        |node| policy(node).map(drop),
    ]),
    row("Upsample", 7, &["mode", "scales"], upsample).checked(&[|node| mode(node, "nearest").map(drop)]),
    row("GridSample", 16, &["align_corners", "mode", "padding_mode"], grid_sample)
        .checked(&[|node| grid_mode(node).map(drop), |node| grid_padding(node).map(drop)]),
    row("AffineGrid", 20, &["align_corners"], affine_grid),
];

/// Which function goes through the old elements.
fn mode(node: &Node, default: &str) -> Result<Interpolation, Stop> {
    let nearest = Interpolation::Nearest(NearestRule::Floor);
    let known = [
        ("nearest", nearest),
        ("linear", Interpolation::Linear),
        ("bilinear", Interpolation::Linear),
        ("cubic", Interpolation::Cubic(-0.75)),
        ("bicubic", Interpolation::Cubic(-0.75)),
    ];
    node.choice("mode", default, &known)
}

/// The mode of a `Resize` with its other attributes. The rule is looked at for the nearest element alone.
fn resize_mode(node: &Node) -> Result<Interpolation, Stop> {
    let known = [
        ("round_prefer_floor", NearestRule::RoundPreferFloor),
        ("round_prefer_ceil", NearestRule::RoundPreferCeil),
        ("floor", NearestRule::Floor),
        ("ceil", NearestRule::Ceil),
    ];
    Ok(match mode(node, "nearest")? {
        Interpolation::Nearest(_) => {
            let default = if node.opset < 11 { "floor" } else { "round_prefer_floor" };
            Interpolation::Nearest(node.choice("nearest_mode", default, &known)?)
        }
        Interpolation::Cubic(a) => Interpolation::Cubic(node.attr_float("cubic_coeff_a", a as f32)? as f64),
        other => other,
    })
}

fn coordinates(node: &Node) -> Result<Coordinates, Stop> {
    let known = [
        ("align_corners", Coordinates::AlignCorners),
        ("asymmetric", Coordinates::Asymmetric),
        ("half_pixel", Coordinates::HalfPixel),
        ("half_pixel_symmetric", Coordinates::HalfPixelSymmetric),
        ("pytorch_half_pixel", Coordinates::PytorchHalfPixel),
        ("tf_crop_and_resize", Coordinates::CropAndResize),
        ("tf_half_pixel_for_nn", Coordinates::HalfPixelForNearest),
    ];
    node.choice("coordinate_transformation_mode", if node.opset < 11 { "asymmetric" } else { "half_pixel" }, &known)
}

/// What one scale for all axes is of those that the sizes say; None if each axis has its own.
type Policy = Option<fn(f64, f64) -> f64>;

fn policy(node: &Node) -> Result<Policy, Stop> {
    let known: [(&str, Policy); 3] =
        [("stretch", None), ("not_larger", Some(f64::min)), ("not_smaller", Some(f64::max))];
    node.choice("keep_aspect_ratio_policy", "stretch", &known)
}

/// The input with these sizes, elements made as the engine makes them.
fn interpolated(c: &Call, wanted: &[usize], options: &Interpolate) -> Outputs {
    // The places of an axis are listed on the host.
    for n in wanted {
        listed(*n)?;
    }
    let x = c.tensor(0)?;
    let x = if matches!(options.mode, Interpolation::Nearest(_)) { x } else { x.to_dtype(DType::F32) };
    give(x.interpolate(wanted, options), c.elem(0)?)
}

fn resize(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let rank = shape.len();
    // In operator set 10 the scales are the second input.
    let (scales_at, sizes_at) = if c.opset < 11 { (1, usize::MAX) } else { (2, 3) };
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
        if let Some(of_two) = policy(c.node)? {
            let common = axes.iter().map(|axis| scales[*axis]).reduce(of_two).unwrap_or(1.0);
            for along in &axes {
                (scales[*along], wanted[*along]) = (common, (common * shape[*along] as f64 + 0.5) as usize);
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
    let coordinates = coordinates(c.node)?;
    let mut crop = Vec::new();
    if coordinates == Coordinates::CropAndResize {
        let given = c.host(1)?.to_f64s();
        if given.len() != 2 * axes.len() {
            return invalid(format!("Resize: a region of {} numbers for {} axes", given.len(), axes.len()));
        }
        crop = vec![(0.0, 1.0); rank];
        for (i, along) in axes.iter().enumerate() {
            crop[*along] = (given[i], given[i + axes.len()]);
        }
    }
    let options = Interpolate {
        coordinates,
        scales,
        crop,
        antialias: c.attr_int("antialias", 0)? != 0,
        exclude_outside: c.attr_int("exclude_outside", 0)? != 0,
        extrapolation: c.attr_float("extrapolation_value", 0.0)?,
        ..Interpolate::new(resize_mode(c.node)?)
    };
    interpolated(c, &wanted, &options)
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
    let wanted: Vec<usize> = shape.iter().zip(&scales).map(|(size, scale)| (*size as f64 * scale) as usize).collect();
    let options =
        Interpolate { coordinates: Coordinates::Asymmetric, scales, ..Interpolate::new(mode(c.node, "nearest")?) };
    interpolated(c, &wanted, &options)
}

fn grid_mode(node: &Node) -> Result<GridMode, Stop> {
    Ok(match mode(node, if node.opset < 20 { "bilinear" } else { "linear" })? {
        Interpolation::Nearest(_) => GridMode::Nearest,
        Interpolation::Linear => GridMode::Linear,
        Interpolation::Cubic(_) => GridMode::Cubic,
    })
}

fn grid_padding(node: &Node) -> Result<GridPadding, Stop> {
    let known =
        [("zeros", GridPadding::Zeros), ("border", GridPadding::Border), ("reflection", GridPadding::Reflection)];
    node.choice("padding_mode", "zeros", &known)
}

fn grid_sample(c: &Call) -> Outputs {
    let options = GridSample {
        mode: grid_mode(c.node)?,
        padding: grid_padding(c.node)?,
        align_corners: c.attr_int("align_corners", 0)? != 0,
    };
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
