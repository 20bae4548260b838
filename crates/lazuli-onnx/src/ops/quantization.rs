//! Quantisation: floats as small integers with a scale and a zero point, and back. A scale is one number, one per element of
//! an axis, or one per block of an axis. Quotients are rounded to the nearest integer, ties to even, in f32.

use lazuli::{DType, Tensor};

use super::casting::TYPED;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, invalid, refuse, size, value};
use crate::elem::ElemType;

pub const ROWS: &[Row] = &[
    row("DynamicQuantizeLinear", 11, &[], dynamic_quantize),
    row("QuantizeLinear", 10, &["axis", "block_size", "output_dtype", "precision", "saturate"], quantize)
        .checked(TYPED),
    row("DequantizeLinear", 10, &["axis", "block_size", "output_dtype"], dequantize).checked(TYPED),
];

/// The shape of one number.
pub const SCALAR: [usize; 0] = [];

/// The smallest and the largest number of a small integer type.
pub fn range(elem: ElemType) -> Result<(i32, i32), Stop> {
    match elem.bits() {
        Some(bits @ 2..=16) if elem.is_signed() => Ok((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
        Some(bits @ 2..=16) => Ok((0, (1 << bits) - 1)),
        _ => refuse(format!("quantised numbers of type {elem}")),
    }
}

/// Quotients as integers of a type: rounded, moved by the zero point, and brought into range. The zero point is added in
/// f32, where both are exact or the sum is out of range anyway.
pub fn saturated(quotients: &Tensor, zero: Option<&Tensor>, elem: ElemType) -> Result<Tensor, Stop> {
    let (low, high) = range(elem)?;
    let rounded = quotients.round();
    let moved = match zero {
        Some(zero) => rounded.add(&zero.to_dtype(DType::F32)),
        None => rounded,
    };
    Ok(moved.clamp(low as f32, high as f32).to_dtype(elem.storage()))
}

/// To uint8, with the scale and zero point of the smallest range that holds all numbers and 0.
fn dynamic_quantize(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let (low, high) = (x.min(..).minimum(0.0), x.max(..).maximum(0.0));
    let scale = high.sub(&low).div(255.0);
    // Nothing but zeros: every scale is right, but 0.
    let scale = scale.eq(0.0).select(1.0, &scale);
    let zero = low.neg().div(&scale).clamp(0.0, 255.0).round();
    let y = saturated(&x.div(&scale), Some(&zero), ElemType::U8)?;
    let zero = zero.to_dtype(DType::U8);
    Ok(vec![value(y, ElemType::U8)?, value(scale, ElemType::F32)?, value(zero, ElemType::U8)?])
}

fn quantize(c: &Call) -> Outputs {
    let elem = match c.has(2) {
        true => c.elem(2)?,
        false => c.node.elem_type("output_dtype")?.unwrap_or(ElemType::U8),
    };
    let shape = c.shape(0)?;
    let scale = spread(c, 1, &shape)?.to_dtype(DType::F32);
    let zero = if c.has(2) { Some(spread(c, 2, &shape)?) } else { None };
    let quotients = c.tensor(0)?.to_dtype(DType::F32).div(&scale);
    give(saturated(&quotients, zero.as_ref(), elem)?, elem)
}

fn dequantize(c: &Call) -> Outputs {
    let elem = match c.node.elem_type("output_dtype")? {
        Some(elem) => elem,
        None => c.elem(1)?,
    };
    let shape = c.shape(0)?;
    let mut x = c.tensor(0)?;
    if c.has(2) {
        // Differences of small integers need more bits, and a sign.
        x = x.to_dtype(DType::I32).sub(&spread(c, 2, &shape)?.to_dtype(DType::I32));
    }
    give(x.to_dtype(DType::F32).mul(&spread(c, 1, &shape)?.to_dtype(DType::F32)), elem)
}

/// Scales or zero points of the node, as they broadcast to a tensor of this shape.
fn spread(c: &Call, i: usize, shape: &[usize]) -> Result<Tensor, Stop> {
    let (own, given) = (c.tensor(i)?, c.shape(i)?);
    let block = size(c.attr_int("block_size", 0)?)?;
    if given.iter().product::<usize>() == 1 && block == 0 {
        return Ok(own.reshape(SCALAR));
    }
    let along = axis(c.attr_int("axis", 1)?, shape.len())?;
    if block == 0 {
        if given != [shape[along]] {
            return invalid(format!("input {i} is {given:?}; axis {along} of {shape:?} needs one number per element"));
        }
        let mut wide = vec![1; shape.len()];
        wide[along] = shape[along];
        return Ok(own.reshape(wide));
    }
    let mut blocks = shape.to_vec();
    blocks[along] = shape[along].div_ceil(block);
    if given != blocks {
        return invalid(format!(
            "input {i} is {given:?}; blocks of {block} along axis {along} of {shape:?} are {blocks:?}"
        ));
    }
    Ok(own.repeat_interleave(block, along as i32).narrow(along as i32, 0, shape[along]))
}
