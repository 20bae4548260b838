//! Normalisations over channels, groups, features and windows of channels.

use lazuli::{DType, Tensor, keep};

use super::casting::TYPED;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, invalid, size, value};
use crate::elem::ElemType;
use crate::graph::Node;

pub const ROWS: &[Row] = &[
    row("BatchNormalization", 6, &["epsilon", "is_test", "momentum", "training_mode", "spatial"], batch_norm)
        .checked(&[is_inference, is_per_channel]),
    row("InstanceNormalization", 6, &["epsilon"], instance_norm),
    row("GroupNormalization", 18, &["epsilon", "num_groups", "stash_type"], group_norm),
    row("LayerNormalization", 17, &["axis", "epsilon", "stash_type"], layer_norm).checked(TYPED),
    row("RMSNormalization", 23, &["axis", "epsilon", "stash_type"], rms_norm),
    row("LpNormalization", 1, &["axis", "p"], lp_norm).checked(&[|node| is_euclidean(node).map(drop)]),
    row("LRN", 1, &["alpha", "beta", "bias", "size"], lrn),
    row("MeanVarianceNormalization", 9, &["axes"], mean_variance),
];

/// A vector with one number per channel, to broadcast to `[n, channels, size…]`.
fn per_channel(x: &Tensor, rank: usize) -> Result<Tensor, Stop> {
    let mut shape = vec![1; rank.max(2)];
    shape[1] = x.shape()?.iter().product();
    Ok(x.reshape(shape))
}

/// Before operator set 7 a node trains unless it says that it does not.
fn is_inference(node: &Node) -> Result<(), Stop> {
    match node.attr_int("is_test", 0)? {
        0 if node.opset < 7 => node.unsupported("is_test", 0),
        _ => Ok(()),
    }
}

/// Before operator set 9 a node may have statistics for every place of an image.
fn is_per_channel(node: &Node) -> Result<(), Stop> {
    match node.attr_int("spatial", 1)? {
        0 => node.unsupported("spatial", 0),
        _ => Ok(()),
    }
}

fn batch_norm(c: &Call) -> Outputs {
    let (x, elem) = (c.tensor(0)?, c.elem(0)?);
    let rank = c.rank(0)?;
    let eps = c.attr_float("epsilon", 1e-5)?;
    let parameter = |i: usize| -> Result<Tensor, Stop> { per_channel(&c.tensor(i)?.to_dtype(DType::F32), rank) };
    let (scale, bias, mean, var) = (parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?);
    let wide = x.to_dtype(DType::F32);
    let normalised = |mean: &Tensor, var: &Tensor| wide.sub(mean).mul(&var.add(eps).rsqrt().mul(&scale)).add(&bias);
    if c.attr_int("training_mode", 0)? == 0 {
        return give(normalised(&mean, &var), elem);
    }
    let momentum = c.attr_float("momentum", 0.9)?;
    let axes: Vec<i32> = (0..rank as i32).filter(|axis| *axis != 1).collect();
    let (own_mean, own_var) = (wide.mean(keep(&axes[..])), wide.var(keep(&axes[..]), 0));
    let running = |old: &Tensor, new: &Tensor| old.mul(momentum).add(&new.mul(1.0 - momentum)).flatten();
    Ok(vec![
        value(normalised(&own_mean, &own_var), elem)?,
        value(running(&mean, &own_mean), c.elem(3)?)?,
        value(running(&var, &own_var), c.elem(4)?)?,
    ])
}

/// Less the mean and divided by the standard deviation along axes.
fn standardised(x: &Tensor, axes: &[i32], eps: f32) -> Tensor {
    let centred = x.sub(&x.mean(keep(axes)));
    centred.mul(&centred.square().mean(keep(axes)).add(eps).rsqrt())
}

fn instance_norm(c: &Call) -> Outputs {
    let rank = c.rank(0)?;
    let axes: Vec<i32> = (2..rank as i32).collect();
    let y = standardised(&c.tensor(0)?.to_dtype(DType::F32), &axes, c.attr_float("epsilon", 1e-5)?);
    give(y.mul(&per_channel(&c.tensor(1)?, rank)?).add(&per_channel(&c.tensor(2)?, rank)?), c.elem(0)?)
}

fn group_norm(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let groups = size(c.attr_int("num_groups", 0)?)?;
    if shape.len() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) {
        return invalid(format!("GroupNormalization: {groups} groups of {shape:?}"));
    }
    let each: usize = shape[1..].iter().product::<usize>() / groups;
    let x = c.tensor(0)?.to_dtype(DType::F32).reshape([shape[0], groups, each]);
    let y = standardised(&x, &[2], c.attr_float("epsilon", 1e-5)?).reshape(&shape[..]);
    let parameter = |i: usize| -> Result<Tensor, Stop> {
        let x = c.tensor(i)?;
        // Before operator set 21 there is one number per group.
        let x = match c.opset < 21 {
            true => x.unsqueeze(1).broadcast_to([groups, shape[1] / groups]).flatten(),
            false => x,
        };
        per_channel(&x, shape.len())
    };
    give(y.mul(&parameter(1)?).add(&parameter(2)?), c.elem(0)?)
}

fn trailing_axes(c: &Call) -> Result<Vec<i32>, Stop> {
    let rank = c.rank(0)?;
    let first = c.attr_axis("axis", -1, rank)?;
    Ok((first as i32..rank as i32).collect())
}

fn layer_norm(c: &Call) -> Outputs {
    let axes = trailing_axes(c)?;
    let eps = c.attr_float("epsilon", 1e-5)?;
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let mut y = standardised(&x, &axes, eps).mul(&c.tensor(1)?);
    if let Some(bias) = c.optional(2)? {
        y = y.add(&bias);
    }
    let mut outputs = vec![value(y, c.elem(0)?)?];
    if c.wants(1) || c.wants(2) {
        let stash = c.node.elem_type("stash_type")?.unwrap_or(ElemType::F32);
        outputs.push(value(x.mean(keep(&axes[..])), stash)?);
        outputs.push(value(x.var(keep(&axes[..]), 0).add(eps).rsqrt(), stash)?);
    }
    Ok(outputs)
}

fn rms_norm(c: &Call) -> Outputs {
    let axes = trailing_axes(c)?;
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let scale = x.square().mean(keep(&axes[..])).add(c.attr_float("epsilon", 1e-5)?).rsqrt();
    give(x.mul(&scale).mul(&c.tensor(1)?), c.elem(0)?)
}

fn is_euclidean(node: &Node) -> Result<bool, Stop> {
    match node.attr_int("p", 2)? {
        1 => Ok(false),
        2 => Ok(true),
        p => node.unsupported("p", p),
    }
}

fn lp_norm(c: &Call) -> Outputs {
    let along = c.attr_axis("axis", -1, c.rank(0)?)? as i32;
    let x = c.tensor(0)?;
    let norm = match is_euclidean(c.node)? {
        true => x.square().sum(keep(along)).sqrt(),
        false => x.abs().sum(keep(along)),
    };
    // Zeros stay zeros.
    give(norm.eq(0.0).select(0.0, &x.div(&norm)), c.elem(0)?)
}

/// Each element divided by a power of the sum of squares over neighbouring channels.
fn lrn(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let width = size(c.attr_int("size", 0)?)?;
    if shape.len() < 2 || width == 0 {
        return invalid(format!("LRN: size {width} over {shape:?}"));
    }
    let (alpha, beta) = (c.attr_float("alpha", 1e-4)?, c.attr_float("beta", 0.75)?);
    let x = c.tensor(0)?;
    let mut pads = vec![(0, 0); shape.len()];
    pads[1] = ((width - 1) / 2, width - 1 - (width - 1) / 2);
    let sums = x.square().pad(&pads, 0.0f32).unfold(1, width, 1).sum(-1);
    let scale = sums.mul(alpha / width as f32).add(c.attr_float("bias", 1.0)?);
    give(x.div(&scale.pow(beta)), c.elem(0)?)
}

fn mean_variance(c: &Call) -> Outputs {
    let rank = c.rank(0)?;
    let axes = match c.attr_ints("axes")? {
        Some(axes) => {
            axes.iter().map(|a| crate::call::axis(*a, rank).map(|a| a as i32)).collect::<Result<_, Stop>>()?
        }
        None => vec![0, 2, 3],
    };
    give(standardised(&c.tensor(0)?, &axes, 1e-9), c.elem(0)?)
}
