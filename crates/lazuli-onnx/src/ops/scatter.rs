//! Elements written or combined at places that indices name.

use lazuli::{DType, Tensor};

use super::indexing::{flat_index, from_end};
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, invalid, listed, refuse};
use crate::elem::ElemType;
use crate::host::{Host, HostData, for_each_index, strides};

pub const ROWS: &[Row] = &[
    row("Scatter", 9, &["axis"], scatter_elements),
    row("ScatterElements", 11, &["axis", "reduction"], scatter_elements),
    row("ScatterND", 11, &["reduction"], scatter_nd),
    row("TensorScatter", 24, &["axis", "mode"], tensor_scatter),
];

/// `x` with `src` written at the places along an axis that `index` names; a place that is named twice is undefined.
/// The engine only adds, so zeros get `src` added, and where anything was added the sum is taken.
pub fn assign(x: &Tensor, along: i32, index: &Tensor, src: &Tensor) -> Result<Tensor, Stop> {
    let dtype = x.dtype()?;
    let lane = if dtype.is_float() { DType::F32 } else { DType::I32 };
    let zeros = Tensor::zeros(x.shape()?, lane, x.device()?);
    let written = zeros.scatter_add(along, index, &src.to_dtype(lane));
    let counts = Tensor::zeros(x.shape()?, DType::I32, x.device()?);
    let ones = Tensor::ones(src.shape()?, DType::I32, x.device()?);
    let counts = counts.scatter_add(along, index, &ones);
    Ok(counts.gt(0).select(&written.to_dtype(dtype), x))
}

fn scatter_elements(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let along = c.attr_axis("axis", 0, shape.len())?;
    let reduction = c.attr_text("reduction", "none")?;
    match &reduction[..] {
        "none" | "add" => {
            let (x, index, src) = (c.tensor(0)?, from_end(&c.tensor(1)?, shape[along]), c.tensor(2)?);
            let y = match &reduction[..] {
                "add" => x.scatter_add(along as i32, &index, &src),
                _ => assign(&x, along as i32, &index, &src)?,
            };
            give(y, c.elem(0)?)
        }
        _ => {
            let (index, by) = (c.host(1)?, strides(&shape));
            if index.shape.len() != shape.len() || c.shape(2)? != index.shape {
                return invalid("ScatterElements: indices and updates must have one shape, of the input's rank");
            }
            let n = shape[along] as i64;
            let indices = index.as_ints()?;
            let mut places = Vec::new();
            let mut fits = true;
            for_each_index(&index.shape, |at| {
                let own = indices[places.len()];
                let own = if own < 0 { own + n } else { own };
                fits &= (0..n).contains(&own);
                let place = |axis: usize| if axis == along { own.max(0) as usize } else { at[axis] } * by[axis];
                places.push((0..at.len()).map(place).sum::<usize>());
            });
            match fits {
                true => combined(c, &places, &reduction),
                false => invalid(format!("ScatterElements: an index is out of range for {n} elements")),
            }
        }
    }
}

/// Products, maxima and minima, element after element on the host: the engine scatters sums alone.
fn combined(c: &Call, places: &[usize], reduction: &str) -> Outputs {
    let (x, src) = (c.host(0)?, c.host(2)?);
    let (HostData::Float(mut values), HostData::Float(updates)) = (x.data.clone(), src.data.clone()) else {
        return refuse(format!("reduction `{reduction}` of integers"));
    };
    if places.len() != updates.len() || places.iter().any(|place| *place >= values.len()) {
        return invalid("indices and updates do not fit the input");
    }
    for (place, update) in places.iter().zip(updates) {
        let own = &mut values[*place];
        *own = match reduction {
            "mul" => *own * update,
            "max" => own.max(update),
            "min" => own.min(update),
            "add" => *own + update,
            other => return refuse(format!("reduction `{other}`")),
        };
    }
    Ok(vec![Host::floats(x.elem, x.shape.clone(), values).into()])
}

fn scatter_nd(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let reduction = c.attr_text("reduction", "none")?;
    let (flat, n_places, n_each) = flat_index(&c.tensor(1)?, &shape, 0)?;
    match &reduction[..] {
        "none" | "add" => {
            let n = flat.shape()?[0];
            let x = c.tensor(0)?.reshape([n_places, n_each]);
            let src = c.tensor(2)?.reshape([n, n_each]);
            let index = flat.unsqueeze(1).broadcast_to([n, n_each]);
            let y = match &reduction[..] {
                "add" => x.scatter_add(0, &index, &src),
                _ => assign(&x, 0, &index, &src)?,
            };
            give(y.reshape(shape), c.elem(0)?)
        }
        _ => {
            let index = c.host(1)?;
            let k = *index.shape.last().unwrap_or(&1);
            let by = strides(&shape);
            let mut places = Vec::new();
            for tuple in index.as_ints()?.chunks(k.max(1)) {
                let mut start = 0;
                for (i, at) in tuple.iter().enumerate() {
                    let own = if *at < 0 { *at + shape[i] as i64 } else { *at };
                    if !(0..shape[i] as i64).contains(&own) {
                        return invalid(format!("ScatterND: index {at} is out of range for {} elements", shape[i]));
                    }
                    start += own as usize * by[i];
                }
                places.extend(start..start + n_each);
            }
            combined(c, &places, &reduction)
        }
    }
}

/// New keys or values written into a cache, at a place of its own for each batch.
fn tensor_scatter(c: &Call) -> Outputs {
    let (shape, new) = (c.shape(0)?, c.shape(1)?);
    let along = axis(c.attr_int("axis", -2)?, shape.len())?;
    let circular = match &c.attr_text("mode", "linear")?[..] {
        "linear" => false,
        "circular" => true,
        other => return refuse(format!("TensorScatter: mode `{other}`")),
    };
    if along == 0 || new.len() != shape.len() {
        return invalid(format!("TensorScatter: {new:?} does not fit {shape:?}"));
    }
    let starts = c.optional_ints(2)?.unwrap_or(vec![0; shape[0]]);
    if starts.len() != shape[0] || starts.iter().any(|start| *start < 0) {
        return invalid(format!("TensorScatter: write indices {starts:?} do not fit {} batches", shape[0]));
    }
    let n = shape[along] as i64;
    let mut index_shape = vec![1; shape.len()];
    index_shape[0] = shape[0];
    index_shape[along] = new[along];
    let mut indices: Vec<i64> = Vec::with_capacity(listed(shape[0].saturating_mul(new[along]))?);
    for_each_index(&index_shape, |index| {
        let at = starts[index[0]].saturating_add(index[along] as i64);
        indices.push(if circular { at % n.max(1) } else { at });
    });
    let index = Host::ints(ElemType::I64, index_shape, indices).upload(c.device)?.broadcast_to(new);
    give(assign(&c.tensor(0)?, along as i32, &index, &c.tensor(1)?)?, c.elem(0)?)
}
