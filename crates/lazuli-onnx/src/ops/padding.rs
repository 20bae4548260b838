//! Elements around a tensor, as the engine puts them there: constant, mirrored, repeated. Where ONNX's numbers are negative,
//! elements are cut off.

use lazuli::{DType, PadMode, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extent, give, invalid};
use crate::graph::Node;

pub const ROWS: &[Row] = &[
    row("Pad", 2, &["mode", "pads", "value"], pad).checked(&[|node| mode(node).map(drop)]),
    row("CenterCropPad", 18, &["axes"], center_crop_pad),
];

/// What stands around: None is a number.
fn mode(node: &Node) -> Result<Option<PadMode>, Stop> {
    let known = [
        ("constant", None),
        ("reflect", Some(PadMode::Reflect)),
        ("edge", Some(PadMode::Edge)),
        ("wrap", Some(PadMode::Wrap)),
    ];
    node.choice("mode", "constant", &known)
}

/// A tensor less what negative numbers cut off.
fn cut(x: &Tensor, pads: &[(i64, i64)]) -> Result<Tensor, Stop> {
    let mut y = x.clone();
    for (i, (before, after)) in pads.iter().enumerate() {
        let (start, end) = ((-before).max(0) as usize, (-after).max(0) as usize);
        if start > 0 || end > 0 {
            let shape = x.shape()?;
            let Some(len) = shape[i].checked_sub(start + end) else {
                return invalid(format!("pads {pads:?} cut more than there is of {shape:?}"));
            };
            y = y.narrow(i as i32, start, len);
        }
    }
    Ok(y)
}

/// How many elements are put around, where numbers are positive.
fn around(pads: &[(i64, i64)]) -> Vec<(usize, usize)> {
    pads.iter().map(|(before, after)| ((*before).max(0) as usize, (*after).max(0) as usize)).collect()
}

/// A tensor with zeros around it, or cut where a number is negative.
pub fn zero_padded(x: &Tensor, pads: &[(i64, i64)], value: f64) -> Result<Tensor, Stop> {
    let (x, around) = (cut(x, pads)?, around(pads));
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
    let y = match mode(c.node)? {
        None => {
            let value = if c.has(2) { c.number(2)? } else { c.attr_float("value", 0.0)? as f64 };
            zero_padded(&x, &per_axis, value)?
        }
        // Mirrors stand at the edges of the whole input: it is padded before it is cut.
        Some(mode) => cut(&x.pad_with(&around(&per_axis), mode), &per_axis)?,
    };
    give(y, c.elem(0)?)
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
