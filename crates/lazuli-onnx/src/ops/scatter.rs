//! Elements written or combined at places that indices name.

use lazuli::{DType, Tensor};

use super::indexing::{flat_index, from_end};
use super::{Check, Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, invalid, listed, refuse};
use crate::elem::ElemType;
use crate::graph::Node;
use crate::host::{Host, HostData, for_each_index, strides};

pub const ROWS: &[Row] = &[
    row("Scatter", 9, &["axis"], scatter_elements),
    row("ScatterElements", 11, &["axis", "reduction"], scatter_elements).checked(REDUCTION),
    row("ScatterND", 11, &["reduction"], scatter_nd).checked(REDUCTION),
    row("TensorScatter", 24, &["axis", "mode"], tensor_scatter).checked(&[|node| is_circular(node).map(drop)]),
];

/// What becomes of an element that something is written to.
#[derive(Clone, Copy, PartialEq)]
enum Combine {
    Assign,
    Add,
    Mul,
    Max,
    Min,
}

fn reduction(node: &Node) -> Result<Combine, Stop> {
    let known = [
        ("none", Combine::Assign),
        ("add", Combine::Add),
        ("mul", Combine::Mul),
        ("max", Combine::Max),
        ("min", Combine::Min),
    ];
    node.choice("reduction", "none", &known)
}

const REDUCTION: &[Check] = &[|node| reduction(node).map(drop)];

fn is_circular(node: &Node) -> Result<bool, Stop> {
    node.choice("mode", "linear", &[("linear", false), ("circular", true)])
}

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
    let how = reduction(c.node)?;
    match how {
        Combine::Assign | Combine::Add => {
            let (x, index, src) = (c.tensor(0)?, from_end(&c.tensor(1)?, shape[along]), c.tensor(2)?);
            let y = match how {
                Combine::Add => x.scatter_add(along as i32, &index, &src),
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
                true => combined(c, &places, how),
                false => invalid(format!("ScatterElements: an index is out of range for {n} elements")),
            }
        }
    }
}

/// Products, maxima and minima, element after element on the host: the engine scatters sums alone.
fn combined(c: &Call, places: &[usize], how: Combine) -> Outputs {
    let (x, src) = (c.host(0)?, c.host(2)?);
    let (HostData::Float(mut values), HostData::Float(updates)) = (x.data.clone(), src.data.clone()) else {
        return refuse(format!("products, maxima or minima of {} at places that indices name", x.elem));
    };
    if places.len() != updates.len() || places.iter().any(|place| *place >= values.len()) {
        return invalid("indices and updates do not fit the input");
    }
    for (place, update) in places.iter().zip(updates) {
        let own = &mut values[*place];
        *own = match how {
            Combine::Assign => update,
            Combine::Add => *own + update,
            Combine::Mul => *own * update,
            Combine::Max => own.max(update),
            Combine::Min => own.min(update),
        };
    }
    Ok(vec![Host::floats(x.elem, x.shape.clone(), values).into()])
}

fn scatter_nd(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let how = reduction(c.node)?;
    let (flat, n_places, n_each) = flat_index(&c.tensor(1)?, &shape, 0)?;
    match how {
        Combine::Assign | Combine::Add => {
            let n = flat.shape()?[0];
            let x = c.tensor(0)?.reshape([n_places, n_each]);
            let src = c.tensor(2)?.reshape([n, n_each]);
            let index = flat.unsqueeze(1).broadcast_to([n, n_each]);
            let y = match how {
                Combine::Add => x.scatter_add(0, &index, &src),
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
            combined(c, &places, how)
        }
    }
}

/// New keys or values written into a cache, at a place of its own for each batch.
fn tensor_scatter(c: &Call) -> Outputs {
    let (shape, new) = (c.shape(0)?, c.shape(1)?);
    let along = axis(c.attr_int("axis", -2)?, shape.len())?;
    let circular = is_circular(c.node)?;
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
