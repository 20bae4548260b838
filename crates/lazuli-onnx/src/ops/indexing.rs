//! Elements chosen by indices. Negative indices count from the end. Operators whose result has a size that depends on
//! numbers read them first.

use lazuli::Tensor;

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extent, give, give_host, invalid, value};
use crate::elem::ElemType;
use crate::host::{Host, HostData, for_each_index, strides};
use crate::value::Kind;

pub const ROWS: &[Row] = &[
    row("Gather", 1, &["axis"], gather),
    row("GatherElements", 11, &["axis"], |c| {
        let x = c.tensor(0)?;
        let along = c.attr_axis("axis", 0, c.rank(0)?)?;
        let index = from_end(&c.tensor(1)?, x.shape()?[along]);
        give(x.gather(along as i32, &index), c.elem(0)?)
    }),
    row("GatherND", 11, &["batch_dims"], gather_nd),
    row("Compress", 9, &["axis"], compress),
    row("NonZero", 9, &[], non_zero),
    row("Unique", 11, &["axis", "sorted"], unique),
    row("TopK", 1, &["axis", "k", "largest", "sorted"], top_k),
    row("ArgMax", 1, &["axis", "keepdims", "select_last_index"], |c| arg(c, Tensor::argmax)),
    row("ArgMin", 1, &["axis", "keepdims", "select_last_index"], |c| arg(c, Tensor::argmin)),
];

/// Indices of which negative ones count from the end.
pub fn from_end(index: &Tensor, n: usize) -> Tensor {
    index.lt(0).select(&index.add(n as i32), index)
}

fn gather(c: &Call) -> Outputs {
    let (shape, index_shape) = (c.shape(0)?, c.shape(1)?);
    let along = c.attr_axis("axis", 0, shape.len())?;
    let result: Vec<usize> = shape[..along].iter().chain(&index_shape).chain(&shape[along + 1..]).copied().collect();
    if let (Kind::Host(x), Kind::Host(index)) = (&c.value(0)?.0, &c.value(1)?.0)
        && shape.len() == 1
    {
        let n = shape[0] as i64;
        let mut indices = Vec::new();
        for i in index.as_ints()? {
            let at = if *i < 0 { *i + n } else { *i };
            if !(0..n).contains(&at) {
                return invalid(format!("Gather: index {i} is out of range for {n} elements"));
            }
            indices.push(at as usize);
        }
        return Ok(vec![x.pick(result, &indices).into()]);
    }
    let index = from_end(&c.tensor(1)?, shape[along]).flatten();
    give(c.tensor(0)?.index_select(along as i32, &index).reshape(result), c.elem(0)?)
}

/// For indices `[…, k]` into the first `k` axes (after the batch axes) of `shape`: one index each into these axes laid flat,
/// the batches' places included. Gives the index `[n]`, how many places there are, and how many elements each has.
pub fn flat_index(index: &Tensor, shape: &[usize], n_batch: usize) -> Result<(Tensor, usize, usize), Stop> {
    let index_shape = index.shape()?.to_vec();
    let k = *index_shape.last().unwrap_or(&0);
    if index_shape.is_empty() || n_batch + k > shape.len() || n_batch >= index_shape.len() {
        return invalid(format!("indices {index_shape:?} do not fit {shape:?}"));
    }
    let indexed = &shape[n_batch..n_batch + k];
    let by = strides(indexed);
    let lead: Vec<usize> = index_shape[..index_shape.len() - 1].to_vec();
    let device = index.device()?.clone();
    let mut flat = Tensor::zeros(&lead[..], lazuli::DType::I32, &device);
    for j in 0..k {
        let of_axis = index.select_index(-1, j as i64);
        flat = flat.add(&from_end(&of_axis, indexed[j]).mul(by[j] as i32));
    }
    let n_places: usize = indexed.iter().product();
    let n_batches: usize = shape[..n_batch].iter().product();
    let n = lead.iter().product::<usize>();
    let mut flat = flat.reshape([n]);
    if n_batch > 0 && n_batches > 0 {
        let own = Tensor::arange(0i32, n_batches as i32, 1, &device).mul(n_places as i32);
        flat = flat.reshape([n_batches, n / n_batches]).add(&own.unsqueeze(1)).reshape([n]);
    }
    Ok((flat, n_batches * n_places, shape[n_batch + k..].iter().product()))
}

fn gather_nd(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let n_batch = extent(c.attr_int("batch_dims", 0)?)?;
    let index = c.tensor(1)?;
    let (flat, n_places, n_each) = flat_index(&index, &shape, n_batch)?;
    let index_shape = index.shape()?.to_vec();
    let k = index_shape[index_shape.len() - 1];
    let result: Vec<usize> =
        index_shape[..index_shape.len() - 1].iter().chain(&shape[n_batch + k..]).copied().collect();
    give(c.tensor(0)?.reshape([n_places, n_each]).index_select(0, &flat).reshape(result), c.elem(0)?)
}

fn compress(c: &Call) -> Outputs {
    let chosen: Vec<i32> = c.ints(1)?.iter().enumerate().filter(|(_, v)| **v != 0).map(|(i, _)| i as i32).collect();
    let mut x = c.tensor(0)?;
    let along = match c.attr("axis") {
        Some(_) => c.attr_axis("axis", 0, c.rank(0)?)?,
        None => {
            x = x.flatten();
            0
        }
    };
    let index = Tensor::from_slice(&chosen, [chosen.len()], c.device);
    give(x.index_select(along as i32, &index), c.elem(0)?)
}

fn non_zero(c: &Call) -> Outputs {
    let host = c.host(0)?;
    let numbers = host.to_f64s();
    let mut found: Vec<Vec<i64>> = vec![Vec::new(); host.shape.len()];
    let mut at = 0;
    for_each_index(&host.shape, |index| {
        if numbers[at] != 0.0 {
            for (list, i) in found.iter_mut().zip(index) {
                list.push(*i as i64);
            }
        }
        at += 1;
    });
    let n = numbers.iter().filter(|v| **v != 0.0).count();
    give_host(ElemType::I64, vec![host.shape.len(), n], HostData::Int(found.concat()))
}

/// Which slices differ: the whole tensor laid flat, or the slices along an axis.
fn unique(c: &Call) -> Outputs {
    let host = c.host(0)?;
    let (before, n, after) = match c.attr("axis") {
        Some(_) => {
            let along = c.attr_axis("axis", 0, host.shape.len())?;
            (host.shape[..along].iter().product(), host.shape[along], host.shape[along + 1..].iter().product())
        }
        None => (1, host.data.len(), 1),
    };
    let numbers = host.to_f64s();
    let places = |i: usize| (0..before).flat_map(move |b| (0..after).map(move |a| (b * n + i) * after + a));
    let slice = |i: usize| -> Vec<f64> { places(i).map(|at| numbers[at]).collect() };
    let mut slices: Vec<(Vec<f64>, usize)> = (0..n).map(|i| (slice(i), i)).collect();
    let order = |a: &[f64], b: &[f64]| {
        let pairs = a.iter().zip(b).map(|(x, y)| x.total_cmp(y));
        pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    };
    slices.sort_by(|a, b| order(&a.0, &b.0).then(a.1.cmp(&b.1)));
    // Each group: all places of one slice, the first of them first.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (i, (own, at)) in slices.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if slices[i - 1].0 == *own => group.push(*at),
            _ => groups.push(vec![*at]),
        }
    }
    if c.attr_int("sorted", 1)? == 0 {
        groups.sort_by_key(|group| group[0]);
    }
    let mut shape = host.shape.clone();
    let mut picked = Vec::new();
    match c.attr("axis") {
        Some(_) => {
            let along = c.attr_axis("axis", 0, shape.len())?;
            shape[along] = groups.len();
            for b in 0..before {
                for group in &groups {
                    picked.extend((0..after).map(|a| (b * n + group[0]) * after + a));
                }
            }
        }
        None => {
            shape = vec![groups.len()];
            picked = groups.iter().map(|group| group[0]).collect();
        }
    }
    let mut inverse = vec![0i64; n];
    for (i, group) in groups.iter().enumerate() {
        group.iter().for_each(|at| inverse[*at] = i as i64);
    }
    let firsts = groups.iter().map(|group| group[0] as i64).collect();
    let counts = groups.iter().map(|group| group.len() as i64).collect();
    Ok(vec![
        host.pick(shape, &picked).into(),
        Host::vector(firsts).into(),
        Host::vector(inverse).into(),
        Host::vector(counts).into(),
    ])
}

fn top_k(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let along = c.attr_axis("axis", -1, shape.len())?;
    let k = if c.opset < 10 { c.attr_int("k", 0)? } else { c.int(1)? };
    let Some(k) = usize::try_from(k).ok().filter(|k| *k <= shape[along]) else {
        return invalid(format!("TopK: {k} of {} elements", shape[along]));
    };
    let x = c.tensor(0)?;
    let order = x.argsort(along as i32, c.attr_int("largest", 1)? != 0).narrow(along as i32, 0, k);
    Ok(vec![value(x.gather(along as i32, &order), c.elem(0)?)?, value(order, ElemType::I64)?])
}

fn arg(c: &Call, f: fn(&Tensor, i32) -> Tensor) -> Outputs {
    let shape = c.shape(0)?;
    let along = axis(c.attr_int("axis", 0)?, shape.len())? as i32;
    let x = c.tensor(0)?;
    let found = match c.attr_int("select_last_index", 0)? {
        0 => f(&x, along),
        _ => f(&x.flip(along), along).neg().add(shape[along as usize] as i32 - 1),
    };
    let found = if c.attr_int("keepdims", 1)? != 0 { found.unsqueeze(along) } else { found };
    give(found, ElemType::I64)
}
