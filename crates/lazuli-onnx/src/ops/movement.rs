//! The same elements in another shape or order, joined and cut. Small tensors of the host stay there.

use std::sync::Arc;

use lazuli::{Slice, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extent, give, invalid, listed, size, sizes, value};
use crate::graph::Node;
use crate::host::{Host, HostData, broadcast_indices, broadcast_shape, for_each_index, strides};
use crate::value::{Kind, Value};

pub const ROWS: &[Row] = &[
    row("Reshape", 5, &["allowzero"], reshape),
    row("Flatten", 1, &["axis"], flatten),
    row("Squeeze", 1, &["axes"], squeeze),
    row("Unsqueeze", 1, &["axes"], unsqueeze),
    row("Transpose", 1, &["perm"], transpose),
    row("Expand", 8, &[], expand),
    row("Tile", 6, &[], |c| give(c.tensor(0)?.repeat(sizes(&c.ints(1)?)?), c.elem(0)?)),
    row("Concat", 4, &["axis"], concat),
    row("Split", 2, &["axis", "split", "num_outputs"], split),
    row("Slice", 1, &["axes", "starts", "ends"], slice),
    row("DepthToSpace", 1, &["blocksize", "mode"], depth_to_space).checked(&[|node| depth_is_first(node).map(drop)]),
    row("SpaceToDepth", 1, &["blocksize"], space_to_depth),
    row("ReverseSequence", 10, &["batch_axis", "time_axis"], reverse_sequence),
    row("Trilu", 14, &["upper"], trilu),
];

/// An input in another shape with as many elements.
fn reshaped(c: &Call, shape: Vec<usize>) -> Outputs {
    let n: Option<usize> = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if n != Some(c.shape(0)?.iter().product()) {
        return invalid(format!("{:?} has another number of elements than {shape:?}", c.shape(0)?));
    }
    match &c.value(0)?.0 {
        Kind::Host(host) => Ok(vec![Host::new(host.elem, shape, host.data.clone()).into()]),
        _ => give(c.tensor(0)?.reshape(shape), c.elem(0)?),
    }
}

fn reshape(c: &Call) -> Outputs {
    let (from, wanted) = (c.shape(0)?, c.ints(1)?);
    let keeps_zero = c.attr_int("allowzero", 0)? != 0;
    let mut shape = Vec::new();
    let mut free = None;
    for (i, wanted) in wanted.iter().enumerate() {
        shape.push(match wanted {
            -1 if free.is_none() => {
                free = Some(i);
                1
            }
            0 if !keeps_zero => match from.get(i) {
                Some(size) => *size,
                None => return invalid(format!("Reshape: {from:?} has no axis {i} to copy")),
            },
            wanted => size(*wanted)?,
        });
    }
    if let Some(free) = free {
        let rest = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).unwrap_or(usize::MAX);
        let n_elems: usize = from.iter().product();
        if rest == 0 || !n_elems.is_multiple_of(rest) {
            return invalid(format!("Reshape: {from:?} cannot be {wanted:?}"));
        }
        shape[free] = n_elems / rest;
    }
    reshaped(c, shape)
}

fn flatten(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let at = c.attr_int("axis", 1)?;
    let at = if at < 0 { at + shape.len() as i64 } else { at };
    let Some(at) = usize::try_from(at).ok().filter(|at| *at <= shape.len()) else {
        return invalid(format!("Flatten: axis {at} is out of range for {shape:?}"));
    };
    reshaped(c, vec![shape[..at].iter().product(), shape[at..].iter().product()])
}

/// Axes as an attribute or, since operator set 13, as the second input.
fn axes(c: &Call) -> Result<Option<Vec<i64>>, Stop> {
    match c.attr_ints("axes")? {
        Some(axes) => Ok(Some(axes.to_vec())),
        None => c.optional_ints(1),
    }
}

fn squeeze(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let gone: Vec<usize> = match axes(c)? {
        Some(axes) => axes.iter().map(|a| axis(*a, shape.len())).collect::<Result<_, Stop>>()?,
        None => (0..shape.len()).filter(|i| shape[*i] == 1).collect(),
    };
    if let Some(bad) = gone.iter().find(|axis| shape[**axis] != 1) {
        return invalid(format!("Squeeze: axis {bad} of {shape:?} is not 1"));
    }
    reshaped(c, (0..shape.len()).filter(|i| !gone.contains(i)).map(|i| shape[i]).collect())
}

fn unsqueeze(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let axes = axes(c)?.unwrap_or_default();
    let rank = shape.len() + axes.len();
    let new: Vec<usize> = axes.iter().map(|a| axis(*a, rank)).collect::<Result<_, Stop>>()?;
    let mut old = shape.iter();
    let mut result = Vec::with_capacity(rank);
    for i in 0..rank {
        result.push(if new.contains(&i) { 1 } else { old.next().copied().unwrap_or(1) });
    }
    if old.next().is_some() {
        return invalid("Unsqueeze: an axis is named twice");
    }
    reshaped(c, result)
}

fn transpose(c: &Call) -> Outputs {
    let rank = c.rank(0)?;
    let order: Vec<i32> = match c.attr_ints("perm")? {
        Some(order) => order.iter().map(|a| axis(*a, rank).map(|a| a as i32)).collect::<Result<_, Stop>>()?,
        None => (0..rank as i32).rev().collect(),
    };
    give(c.tensor(0)?.permute(&order), c.elem(0)?)
}

fn expand(c: &Call) -> Outputs {
    let shape = broadcast_shape(&c.shape(0)?, &sizes(&c.ints(1)?)?)?;
    if let Kind::Host(host) = &c.value(0)?.0
        && shape.iter().product::<usize>() <= 1024
    {
        return Ok(vec![host.pick(shape.clone(), &broadcast_indices(&host.shape, &shape)).into()]);
    }
    give(c.tensor(0)?.broadcast_to(shape), c.elem(0)?)
}

fn concat(c: &Call) -> Outputs {
    let along = c.attr_axis("axis", 0, c.rank(0)?)?;
    if let Some(hosts) = c.all_host().filter(|hosts| hosts.iter().all(|host| host.shape.len() == 1)) {
        return Ok(vec![joined(&hosts)?.into()]);
    }
    let tensors = (0..c.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<Tensor>, Stop>>()?;
    give(Tensor::cat(&tensors.iter().collect::<Vec<_>>(), along as i32), c.elem(0)?)
}

/// Vectors one after another.
fn joined(hosts: &[Arc<Host>]) -> Result<Host, Stop> {
    let n = hosts.iter().map(|host| host.data.len()).sum();
    let data = match &hosts[0].data {
        HostData::Int(_) => {
            let parts = hosts.iter().map(|host| host.as_ints()).collect::<Result<Vec<_>, _>>()?;
            HostData::Int(parts.concat())
        }
        HostData::Float(_) => HostData::Float(hosts.iter().flat_map(|host| host.to_f32s()).collect()),
    };
    Ok(Host::new(hosts[0].elem, vec![n], data))
}

/// The sizes of the parts that an axis of `n` elements is cut into.
pub fn part_sizes(c: &Call, n: usize, n_parts: usize) -> Result<Vec<usize>, Stop> {
    if let Some(given) = c.attr_ints("split")? {
        return sizes(given);
    }
    if c.has(1) {
        return sizes(&c.ints(1)?);
    }
    let n_parts = size(c.attr_int("num_outputs", n_parts as i64)?)?;
    if n_parts == 0 {
        return invalid("Split: into no parts");
    }
    let part = n.div_ceil(n_parts);
    let starts = (0..listed(n_parts)?).map(|i| i.saturating_mul(part).min(n));
    Ok(starts.map(|start| part.min(n - start)).collect())
}

fn split(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let along = c.attr_axis("axis", 0, shape.len())?;
    let parts = part_sizes(c, shape[along], c.node.outputs.len())?;
    if parts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)) != Some(shape[along]) {
        return invalid(format!("Split: {parts:?} do not add up to axis {along} of {shape:?}"));
    }
    let elem = c.elem(0)?;
    if let Kind::Host(host) = &c.value(0)?.0
        && shape.len() == 1
    {
        let mut start = 0;
        let mut outputs: Vec<Value> = Vec::new();
        for part in parts {
            let indices: Vec<usize> = (start..start + part).collect();
            outputs.push(host.pick(vec![part], &indices).into());
            start += part;
        }
        return Ok(outputs);
    }
    c.tensor(0)?.split(along as i32, &parts).into_iter().map(|part| value(part, elem)).collect()
}

/// Where a slice of an axis of `n` begins, and how many elements it takes.
fn resolve_slice(n: usize, start: i64, end: i64, step: i64) -> (usize, usize) {
    let n = n as i64;
    let from_end = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (start, end) = (from_end(start).clamp(low.min(high), high), from_end(end).clamp(low.min(high), high));
    let distance = if step > 0 { end - start } else { start - end };
    let count = if distance <= 0 { 0 } else { (distance as u64).div_ceil(step.unsigned_abs()) };
    (start.max(0) as usize, count as usize)
}

fn slice(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let given = |i: usize, name: &str| match c.attr_ints(name)? {
        Some(values) => Ok(values.to_vec()),
        None => c.ints(i),
    };
    let (starts, ends) = (given(1, "starts")?, given(2, "ends")?);
    let axes = match c.attr_ints("axes")? {
        Some(axes) => axes.to_vec(),
        None => c.optional_ints(3)?.unwrap_or((0..starts.len() as i64).collect()),
    };
    let steps = c.optional_ints(4)?.unwrap_or(vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return invalid("Slice: starts, ends, axes and steps have different lengths");
    }
    // Per axis: first element, number, step.
    let mut parts: Vec<(usize, usize, i64)> = shape.iter().map(|n| (0, *n, 1)).collect();
    for i in 0..starts.len() {
        let along = axis(axes[i], shape.len())?;
        if steps[i] == 0 {
            return invalid("Slice: a step is 0");
        }
        let (start, count) = resolve_slice(shape[along], starts[i], ends[i], steps[i]);
        parts[along] = (start, count, steps[i]);
    }
    let result: Vec<usize> = parts.iter().map(|part| part.1).collect();
    if let Kind::Host(host) = &c.value(0)?.0 {
        let by = strides(&shape);
        let mut indices = Vec::new();
        for_each_index(&result, |index| {
            let at = |i: usize| (parts[i].0 as i64 + index[i] as i64 * parts[i].2) as usize * by[i];
            indices.push((0..index.len()).map(at).sum());
        });
        return Ok(vec![host.pick(result, &indices).into()]);
    }
    let mut x = c.tensor(0)?;
    let slices: Vec<Slice> = parts
        .iter()
        .map(|(start, count, step)| match count {
            0 => Slice::Range { start: Some(0), end: Some(0), step: 1 },
            _ => {
                let end = *start as i64 + (*count as i64 - 1) * step + step.signum();
                Slice::Range { start: Some(*start as i64), end: Some(end).filter(|end| *end >= 0), step: *step }
            }
        })
        .collect();
    x = x.slice(&slices[..]);
    give(x, c.elem(0)?)
}

fn image(c: &Call) -> Result<[usize; 4], Stop> {
    match c.shape(0)?[..] {
        [n, channels, height, width] => Ok([n, channels, height, width]),
        ref shape => invalid(format!("[batch, channels, height, width] is wanted, not {shape:?}")),
    }
}

fn depth_is_first(node: &Node) -> Result<bool, Stop> {
    node.choice("mode", "DCR", &[("DCR", true), ("CRD", false)])
}

fn depth_to_space(c: &Call) -> Outputs {
    let [n, channels, height, width] = image(c)?;
    let block = extent(c.attr_int("blocksize", 0)?)?;
    if block == 0 || !channels.is_multiple_of(block * block) {
        return invalid(format!("DepthToSpace: {channels} channels do not split into blocks of {block}"));
    }
    let rest = channels / (block * block);
    let x = c.tensor(0)?;
    let y = match depth_is_first(c.node)? {
        true => x.reshape([n, block, block, rest, height, width]).permute(&[0, 3, 4, 1, 5, 2]),
        false => x.reshape([n, rest, block, block, height, width]).permute(&[0, 1, 4, 2, 5, 3]),
    };
    give(y.reshape([n, rest, height * block, width * block]), c.elem(0)?)
}

fn space_to_depth(c: &Call) -> Outputs {
    let [n, channels, height, width] = image(c)?;
    let block = extent(c.attr_int("blocksize", 0)?)?;
    if block == 0 || !height.is_multiple_of(block) || !width.is_multiple_of(block) {
        return invalid(format!("SpaceToDepth: {height} × {width} does not split into blocks of {block}"));
    }
    let (h, w) = (height / block, width / block);
    let y = c.tensor(0)?.reshape([n, channels, h, block, w, block]).permute(&[0, 3, 5, 1, 2, 4]);
    give(y.reshape([n, channels * block * block, h, w]), c.elem(0)?)
}

fn reverse_sequence(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let (batch, time) = (c.attr_axis("batch_axis", 1, shape.len())?, c.attr_axis("time_axis", 0, shape.len())?);
    let lengths = sizes(&c.ints(1)?)?;
    if batch == time || lengths.len() != shape[batch] || lengths.iter().any(|n| *n > shape[time]) {
        return invalid(format!("ReverseSequence: lengths {lengths:?} do not fit {shape:?}"));
    }
    let mut index_shape = vec![1; shape.len()];
    index_shape[batch] = shape[batch];
    index_shape[time] = shape[time];
    let mut indices: Vec<i32> = Vec::with_capacity(listed(shape[batch].saturating_mul(shape[time]))?);
    for_each_index(&index_shape, |index| {
        let (t, n) = (index[time], lengths[index[batch]]);
        indices.push(if t < n { n - 1 - t } else { t } as i32);
    });
    let index = Tensor::from_vec(indices, index_shape, c.device).broadcast_to(shape);
    give(c.tensor(0)?.gather(time as i32, &index), c.elem(0)?)
}

fn trilu(c: &Call) -> Outputs {
    let k = if c.has(1) { c.int(1)? } else { 0 };
    let k = k.clamp(-(1 << 30), 1 << 30) as i32;
    let x = c.tensor(0)?;
    give(if c.attr_int("upper", 1)? != 0 { x.triu_k(k) } else { x.tril_k(k) }, c.elem(0)?)
}
