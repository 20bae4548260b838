//! Elements around a tensor: constant, mirrored, repeated. All modes but the constant one choose elements of each axis by a
//! list of indices that is computed on the host.

use lazuli::{DType, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extent, give, invalid, listed, refuse, size};

pub const ROWS: &[Row] =
    &[row("Pad", 2, &["mode", "pads", "value"], pad), row("CenterCropPad", 18, &["axes"], center_crop_pad)];

/// A tensor with zeros around it, or cut where a number is negative.
pub fn zero_padded(x: &Tensor, pads: &[(i64, i64)], value: f64) -> Result<Tensor, Stop> {
    let shape = x.shape()?.to_vec();
    let mut x = x.clone();
    for (i, (before, after)) in pads.iter().enumerate() {
        let start = (-before).max(0) as usize;
        let cut = (-after).max(0) as usize;
        if start > 0 || cut > 0 {
            let Some(len) = shape[i].checked_sub(start + cut) else {
                return invalid(format!("pads {pads:?} cut more than there is of {shape:?}"));
            };
            x = x.narrow(i as i32, start, len);
        }
    }
    let around: Vec<(usize, usize)> = pads.iter().map(|(b, a)| ((*b).max(0) as usize, (*a).max(0) as usize)).collect();
    if around.iter().all(|pads| *pads == (0, 0)) {
        return Ok(x);
    }
    Ok(match x.dtype()? {
        DType::Bool => x.pad(&around, value != 0.0),
        dtype if dtype.is_float() => x.pad(&around, value as f32),
        DType::U32 => x.pad(&around, value as u32),
        DType::U8 => x.pad(&around, value as u8),
        _ => x.pad(&around, value as i32),
    })
}

fn pad(c: &Call) -> Outputs {
    let rank = c.rank(0)?;
    let pads = match c.attr_ints("pads")? {
        Some(pads) => pads.to_vec(),
        None => c.ints(1)?,
    };
    let axes: Vec<usize> = match c.optional_ints(3)? {
        Some(axes) => axes.iter().map(|a| axis(*a, rank)).collect::<Result<_, Stop>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return invalid(format!("Pad: {} numbers for {} axes", pads.len(), axes.len()));
    }
    if pads.iter().any(|n| n.unsigned_abs() > 1 << 40) {
        return invalid(format!("Pad: {pads:?} are more than can be addressed"));
    }
    let mut per_axis = vec![(0, 0); rank];
    for (i, along) in axes.iter().enumerate() {
        per_axis[*along] = (pads[i], pads[i + axes.len()]);
    }
    let x = c.tensor(0)?;
    let y = match &c.attr_text("mode", "constant")?[..] {
        "constant" => {
            let value = if c.has(2) { c.number(2)? } else { c.attr_float("value", 0.0)? as f64 };
            zero_padded(&x, &per_axis, value)?
        }
        "reflect" => by_index(&x, &per_axis, |i, n| {
            let period = 2 * (n - 1).max(1);
            let i = i.rem_euclid(period);
            if i < n { i } else { period - i }
        })?,
        "edge" => by_index(&x, &per_axis, |i, n| i.clamp(0, n - 1))?,
        "wrap" => by_index(&x, &per_axis, |i, n| i.rem_euclid(n))?,
        other => return refuse(format!("Pad: mode `{other}`")),
    };
    give(y, c.elem(0)?)
}

/// Each axis made longer by elements of its own: `f(i, n)` is the element at place `i`, which may be negative, of `n`.
fn by_index(x: &Tensor, pads: &[(i64, i64)], f: fn(i64, i64) -> i64) -> Result<Tensor, Stop> {
    let shape = x.shape()?.to_vec();
    let device = x.device()?.clone();
    let mut y = x.clone();
    for (along, (before, after)) in pads.iter().enumerate().filter(|(_, pads)| **pads != (0, 0)) {
        let n = shape[along] as i64;
        let len = listed(size(n + before + after)?)? as i64;
        if n == 0 && len > 0 {
            return invalid("Pad: an empty axis has nothing to repeat");
        }
        let indices: Vec<i32> = (0..len).map(|i| f(i - before, n) as i32).collect();
        y = y.index_select(along as i32, &Tensor::from_vec(indices, [len as usize], &device));
    }
    Ok(y)
}

fn center_crop_pad(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let wanted = c.ints(1)?;
    let axes: Vec<usize> = match c.attr_ints("axes")? {
        Some(axes) => axes.iter().map(|a| axis(*a, shape.len())).collect::<Result<_, Stop>>()?,
        None => (0..shape.len()).collect(),
    };
    if axes.len() != wanted.len() {
        return invalid(format!("CenterCropPad: {} sizes for {} axes", wanted.len(), axes.len()));
    }
    let mut pads = vec![(0, 0); shape.len()];
    for (along, wanted) in axes.iter().zip(&wanted) {
        let more = extent(*wanted)? as i64 - shape[*along] as i64;
        // Of an odd number, one more is at the end when padding and at the end when cutting.
        pads[*along] = match more >= 0 {
            true => (more / 2, more - more / 2),
            false => (-(-more / 2), more + (-more / 2)),
        };
    }
    give(zero_padded(&c.tensor(0)?, &pads, 0.0)?, c.elem(0)?)
}
