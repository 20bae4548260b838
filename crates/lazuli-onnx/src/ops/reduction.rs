//! Reductions over axes, running sums, and softmax with its kin.

use lazuli::{DType, Tensor, keep};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, give_host, give_wrapped};
use crate::elem::ElemType;
use crate::host::HostData;

const REDUCE: &[&str] = &["axes", "keepdims", "noop_with_empty_axes"];

pub const ROWS: &[Row] = &[
    row("ReduceSum", 1, REDUCE, |c| reduce(c, |x, axes| x.sum(keep(axes)))),
    row("ReduceProd", 1, REDUCE, |c| reduce(c, |x, axes| x.prod(keep(axes)))),
    row("ReduceMax", 1, REDUCE, |c| reduce(c, |x, axes| extreme(x, axes, Tensor::max, f32::NEG_INFINITY))),
    row("ReduceMin", 1, REDUCE, |c| reduce(c, |x, axes| extreme(x, axes, Tensor::min, f32::INFINITY))),
    row("ReduceMean", 1, REDUCE, |c| reduce(c, |x, axes| x.mean(keep(axes)))),
    row("ReduceL1", 1, REDUCE, |c| reduce(c, |x, axes| x.abs().sum(keep(axes)))),
    row("ReduceL2", 1, REDUCE, |c| reduce(c, |x, axes| x.to_dtype(DType::F32).square().sum(keep(axes)).sqrt())),
    row("ReduceSumSquare", 1, REDUCE, |c| reduce(c, |x, axes| x.square().sum(keep(axes)))),
    row("ReduceLogSum", 1, REDUCE, |c| reduce(c, |x, axes| x.sum(keep(axes)).log())),
    row("ReduceLogSumExp", 1, REDUCE, |c| reduce(c, log_sum_exp)),
    row("CumSum", 11, &["exclusive", "reverse"], |c| running(c, 0, |x, along| Ok(x.cumsum(along)))),
    row("CumProd", 26, &["exclusive", "reverse"], |c| running(c, 1, running_product)),
    row("Softmax", 1, &["axis"], |c| normalised(c, Tensor::softmax)),
    row("LogSoftmax", 1, &["axis"], |c| normalised(c, Tensor::log_softmax)),
    row("Hardmax", 1, &["axis"], |c| {
        normalised(c, |x, along| {
            let classes = x.shape().map_or(0, |shape| shape[along as usize]);
            let marks = x.argmax(along).one_hot(classes).to_dtype(DType::F32);
            let rank = x.shape().map_or(0, <[usize]>::len) as i32;
            // The classes are last; they belong where the axis was.
            let order: Vec<i32> = (0..rank)
                .map(|i| match i.cmp(&along) {
                    std::cmp::Ordering::Less => i,
                    std::cmp::Ordering::Equal => rank - 1,
                    std::cmp::Ordering::Greater => i - 1,
                })
                .collect();
            marks.permute(&order)
        })
    }),
];

/// The axes that a node reduces: all if none are named. None if it reduces nothing at all.
fn axes(c: &Call, rank: usize) -> Result<Option<Vec<i32>>, Stop> {
    let given = match c.attr_ints("axes")? {
        Some(axes) => axes.to_vec(),
        None => c.optional_ints(1)?.unwrap_or_default(),
    };
    if given.is_empty() {
        let nothing = c.attr_int("noop_with_empty_axes", 0)? != 0;
        return Ok((!nothing).then(|| (0..rank as i32).collect()));
    }
    Ok(Some(given.iter().map(|a| axis(*a, rank).map(|a| a as i32)).collect::<Result<_, Stop>>()?))
}

fn reduce(c: &Call, f: fn(&Tensor, &[i32]) -> Tensor) -> Outputs {
    let elem = c.elem(0)?;
    let shape = c.shape(0)?;
    if let Some(product) = on_host(c)? {
        return Ok(product);
    }
    let x = c.tensor(0)?;
    let (y, axes) = match axes(c, shape.len())? {
        // Only the reduction is left out: what is done to each element (|x|, x², log) stays.
        None => (f(&x.unsqueeze(0), &[0]).squeeze(0), Vec::new()),
        Some(axes) => (f(&x, &axes), axes),
    };
    let y = match c.attr_int("keepdims", 1)? {
        0 => y.squeeze(&axes[..]),
        _ => y,
    };
    give_wrapped(y, elem)
}

/// Products and sums of a small vector of integers, which are parts of shape arithmetic, stay on the host.
fn on_host(c: &Call) -> Result<Option<Vec<crate::value::Value>>, Stop> {
    let Some(hosts) = c.all_host().filter(|hosts| hosts[0].shape.len() == 1) else { return Ok(None) };
    let HostData::Int(values) = &hosts[0].data else { return Ok(None) };
    if values.is_empty() || axes(c, 1)?.is_none() {
        return Ok(None);
    }
    let elem = hosts[0].elem;
    let result = match c.node.op() {
        "ReduceSum" => values.iter().fold(0i64, |a, b| a.wrapping_add(*b)),
        "ReduceProd" => values.iter().fold(1i64, |a, b| a.wrapping_mul(*b)),
        "ReduceMax" => values.iter().copied().max().unwrap_or(0),
        "ReduceMin" => values.iter().copied().min().unwrap_or(0),
        _ => return Ok(None),
    };
    let shape = if c.attr_int("keepdims", 1)? != 0 { vec![1] } else { Vec::new() };
    give_host(elem, shape, HostData::Int(vec![elem.wrap(result)])).map(Some)
}

/// The greatest or least element; of none it is the identity of the comparison.
fn extreme(x: &Tensor, axes: &[i32], f: fn(&Tensor, lazuli::Axes) -> Tensor, of_none: f32) -> Tensor {
    let Ok(shape) = x.shape() else { return x.clone() };
    if !axes.iter().any(|axis| shape[*axis as usize] == 0) {
        return f(x, keep(axes));
    }
    let result: Vec<usize> =
        shape.iter().enumerate().map(|(i, n)| if axes.contains(&(i as i32)) { 1 } else { *n }).collect();
    match (x.dtype(), x.device()) {
        (Ok(dtype), Ok(device)) if dtype.is_float() => Tensor::full(result, of_none, device).to_dtype(dtype),
        (Ok(dtype), Ok(device)) => {
            let bound = if of_none < 0.0 { i32::MIN } else { i32::MAX };
            Tensor::full(result, bound, device).to_dtype(dtype)
        }
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}

fn log_sum_exp(x: &Tensor, axes: &[i32]) -> Tensor {
    let is_empty = x.shape().is_ok_and(|shape| axes.iter().any(|axis| shape[*axis as usize] == 0));
    match is_empty {
        true => x.exp().sum(keep(axes)).log(),
        false => x.logsumexp(keep(axes)),
    }
}

fn running(c: &Call, identity: i32, f: fn(&Tensor, i32) -> Result<Tensor, Stop>) -> Outputs {
    let shape = c.shape(0)?;
    let along = axis(c.int(1)?, shape.len())?;
    let reverse = c.attr_int("reverse", 0)? != 0;
    let x = c.tensor(0)?;
    let x = if reverse { x.flip(along as i32) } else { x };
    let mut y = f(&x, along as i32)?;
    if c.attr_int("exclusive", 0)? != 0 && shape[along] > 0 {
        y = shifted(&y, along, 1, identity)?;
    }
    give_wrapped(if reverse { y.flip(along as i32) } else { y }, c.elem(0)?)
}

/// Each element at a later place along an axis; the first places are filled with a number.
fn shifted(x: &Tensor, along: usize, by: usize, fill: i32) -> Result<Tensor, Stop> {
    let shape = x.shape()?;
    let mut pads = vec![(0, 0); shape.len()];
    pads[along] = (by, 0);
    Ok(x.narrow(along as i32, 0, shape[along] - by).pad(&pads, fill))
}

/// Running products by doubling: after step `i` each element is the product of the last `2ⁱ` elements.
fn running_product(x: &Tensor, along: i32) -> Result<Tensor, Stop> {
    let n = x.shape()?[along as usize];
    let mut y = x.clone();
    let mut reach = 1;
    while reach < n {
        y = y.mul(&shifted(&y, along as usize, reach, 1)?);
        reach *= 2;
    }
    Ok(y)
}

/// A function along an axis; before operator set 13 along all axes from that one on, laid flat.
fn normalised(c: &Call, f: fn(&Tensor, i32) -> Tensor) -> Outputs {
    let x = c.tensor(0)?;
    let shape = x.shape()?.to_vec();
    let elem: ElemType = c.elem(0)?;
    if c.opset >= 13 {
        let along = c.attr_axis("axis", -1, shape.len())?;
        return give(f(&x, along as i32), elem);
    }
    let at = c.attr_axis("axis", 1, shape.len().max(2))?;
    let flat = [shape[..at].iter().product(), shape[at..].iter().product::<usize>()];
    give(f(&x.reshape(flat), 1).reshape(shape), elem)
}
