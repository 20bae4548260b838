//! Movement: the same elements in another shape or order.

use std::rc::Rc;

use lazuli::ops::{Slice, Slices};
use lazuli::{DType, Device, Tensor, bf16, f16};

use crate::array::{Array, n_elems};
use crate::cell::Cell;
use crate::leaf::{literal, shape_text};
use crate::program::{Op, Table};

/// Python's `start:end:step`, or one element.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    Index(i64),
    Range(Option<i64>, Option<i64>, i64),
}

/// A movement of one tensor. Axes are as the user writes them, negative ones from the end.
#[derive(Clone, Debug)]
pub enum Move {
    Reshape(Vec<usize>),
    Flatten,
    Unsqueeze(i32),
    Squeeze(Option<i32>),
    Permute(Vec<i32>),
    Transpose(i32, i32),
    T,
    BroadcastTo(Vec<usize>),
    Slice(Vec<Cut>),
    Narrow(i32, usize, usize),
    /// `rows_at`: axis, position (a number of the evaluation, not of the plan) and length.
    RowsAt(i32, usize, usize),
    SelectIndex(i32, i64),
    /// None: all axes.
    Flip(Option<i32>),
    Pad(Vec<(usize, usize)>, f64),
    /// One part of those that axis is cut into.
    Split(i32, Vec<usize>, usize),
    /// One part of this many.
    Chunk(i32, usize, usize),
    Repeat(Vec<usize>),
    Tril(i32),
    Triu(i32),
    Diagonal,
}

/// An axis as an index.
pub fn index(axis: i32, rank: usize) -> usize {
    if axis < 0 { (axis + rank as i32) as usize } else { axis as usize }
}

/// The elements of a Python slice of an axis, one by one, as Python's documentation defines them.
fn elements(cut: Cut, size: usize) -> Vec<usize> {
    let n = size as i64;
    match cut {
        Cut::Index(i) => vec![if i < 0 { i + n } else { i } as usize],
        Cut::Range(start, end, step) => {
            let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
            let place = |i: i64| (if i < 0 { i + n } else { i }).clamp(low, high);
            let mut at = start.map_or(if step > 0 { 0 } else { n - 1 }, place);
            let end = end.map_or(if step > 0 { n } else { -1 }, place);
            let mut out = Vec::new();
            while (step > 0 && at < end) || (step < 0 && at > end) {
                out.push(at as usize);
                at += step;
            }
            out
        }
    }
}

impl Move {
    /// Elements of each axis of the input, in the order they stay; and which axes are gone.
    fn cut(&self, shape: &[usize]) -> Option<Vec<(Vec<usize>, bool)>> {
        let rank = shape.len();
        let mut all: Vec<(Vec<usize>, bool)> = shape.iter().map(|n| ((0..*n).collect(), true)).collect();
        match self {
            Move::Slice(cuts) => {
                for (axis, cut) in cuts.iter().enumerate() {
                    all[axis] = (elements(*cut, shape[axis]), matches!(cut, Cut::Range(..)));
                }
            }
            Move::Narrow(axis, start, len) | Move::RowsAt(axis, start, len) => {
                all[index(*axis, rank)].0 = (*start..start + len).collect();
            }
            Move::SelectIndex(axis, i) => {
                all[index(*axis, rank)] = (elements(Cut::Index(*i), shape[index(*axis, rank)]), false)
            }
            Move::Flip(axis) => {
                for (i, (elements, _)) in all.iter_mut().enumerate() {
                    if axis.is_none_or(|a| index(a, rank) == i) {
                        elements.reverse();
                    }
                }
            }
            Move::Split(axis, sizes, part) => {
                let start: usize = sizes[..*part].iter().sum();
                all[index(*axis, rank)].0 = (start..start + sizes[*part]).collect();
            }
            Move::Chunk(axis, n, part) => {
                let size = shape[index(*axis, rank)];
                let len = size.div_ceil(*n).max(1);
                all[index(*axis, rank)].0 = (part * len..((part + 1) * len).min(size)).collect();
            }
            _ => return None,
        }
        Some(all)
    }
}

impl Op for Move {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let x = inputs[0];
        let rank = x.shape.len();
        if let Some(all) = self.cut(&x.shape) {
            let shape = all.iter().filter(|a| a.1).map(|a| a.0.len()).collect();
            return x.moved(shape, Cell::ANY, |at| {
                let mut at = at.iter();
                Some(
                    all.iter()
                        .map(|(elements, stays)| elements[if *stays { *at.next().expect("one per axis") } else { 0 }])
                        .collect(),
                )
            });
        }
        let permuted = |order: Vec<usize>| {
            let shape = order.iter().map(|i| x.shape[*i]).collect();
            x.moved(shape, Cell::ANY, |at| {
                let mut from = vec![0; rank];
                order.iter().zip(at).for_each(|(axis, i)| from[*axis] = *i);
                Some(from)
            })
        };
        let triangle = |keeps: &dyn Fn(i64) -> bool| {
            x.moved(x.shape.clone(), Cell::point(0.0), |at| {
                keeps(at[rank - 1] as i64 - at[rank - 2] as i64).then(|| at.to_vec())
            })
        };
        let swapped = |a: usize, b: usize| {
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(a, b);
            permuted(order)
        };
        match self {
            Move::Reshape(shape) => x.reshaped(shape.clone()),
            Move::Flatten => x.reshaped(vec![x.n_elems()]),
            Move::Unsqueeze(axis) => {
                let mut shape = x.shape.clone();
                shape.insert(index(*axis, rank + 1), 1);
                x.reshaped(shape)
            }
            Move::Squeeze(axis) => {
                let goes = |i: usize| x.shape[i] == 1 && axis.is_none_or(|a| index(a, rank) == i);
                x.reshaped((0..rank).filter(|i| !goes(*i)).map(|i| x.shape[i]).collect())
            }
            Move::Permute(order) => permuted(order.iter().map(|a| index(*a, rank)).collect()),
            Move::Transpose(a, b) => swapped(index(*a, rank), index(*b, rank)),
            Move::T if rank < 2 => x.clone(),
            Move::T => swapped(rank - 2, rank - 1),
            Move::BroadcastTo(shape) => x.broadcast(shape),
            Move::Pad(pads, value) => {
                let size = |(i, n): (usize, &usize)| pads.get(i).map_or(*n, |p| p.0 + n + p.1);
                let shape = x.shape.iter().enumerate().map(size).collect();
                x.moved(shape, Cell::point(*value), |at| {
                    (0..rank)
                        .map(|i| at[i].checked_sub(pads.get(i).map_or(0, |p| p.0)).filter(|j| *j < x.shape[i]))
                        .collect()
                })
            }
            Move::Repeat(reps) => {
                let lead = reps.len().saturating_sub(rank);
                let mut shape = vec![1; lead];
                shape.extend(&x.shape);
                let skip = shape.len() - reps.len();
                let sizes = (0..shape.len()).map(|i| shape[i] * if i >= skip { reps[i - skip] } else { 1 }).collect();
                x.moved(sizes, Cell::ANY, |at| Some((0..rank).map(|i| at[i + lead] % x.shape[i]).collect()))
            }
            Move::Tril(k) => triangle(&|above| above <= *k as i64),
            Move::Triu(k) => triangle(&|above| above >= *k as i64),
            Move::Diagonal => {
                let mut shape = x.shape[..rank - 1].to_vec();
                shape[rank - 2] = x.shape[rank - 2].min(x.shape[rank - 1]);
                x.moved(shape, Cell::ANY, |at| Some(at.iter().chain(at.last()).copied().collect()))
            }
            _ => unreachable!("a cut"),
        }
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let x = inputs[0];
        match self {
            Move::Reshape(shape) => x.reshape(shape),
            Move::Flatten => x.flatten(),
            Move::Unsqueeze(axis) => x.unsqueeze(*axis),
            Move::Squeeze(None) => x.squeeze(..),
            Move::Squeeze(Some(axis)) => x.squeeze(*axis),
            Move::Permute(order) => x.permute(order),
            Move::Transpose(a, b) => x.transpose(*a, *b),
            Move::T => x.t(),
            Move::BroadcastTo(shape) => x.broadcast_to(shape),
            Move::Slice(cuts) => {
                let slice = |cut: &Cut| match *cut {
                    Cut::Index(i) => Slice::Index(i),
                    Cut::Range(start, end, step) => Slice::Range { start, end, step },
                };
                x.slice(Slices::from(&cuts.iter().map(slice).collect::<Vec<_>>()[..]))
            }
            Move::Narrow(axis, start, len) => x.narrow(*axis, *start, *len),
            Move::RowsAt(axis, start, len) => x.rows_at(*axis, *start, *len),
            Move::SelectIndex(axis, i) => x.select_index(*axis, *i),
            Move::Flip(None) => x.flip(..),
            Move::Flip(Some(axis)) => x.flip(*axis),
            Move::Pad(pads, value) => match x.dtype() {
                Ok(DType::F16) => x.pad(pads, f16::from_f64(*value)),
                Ok(DType::BF16) => x.pad(pads, bf16::from_f64(*value)),
                Ok(DType::F32) => x.pad(pads, *value as f32),
                Ok(DType::Bool) => x.pad(pads, *value != 0.0),
                _ => x.pad(pads, *value as i32),
            },
            Move::Split(axis, sizes, part) => x.split(*axis, sizes).swap_remove(*part),
            Move::Chunk(axis, n, part) => x.chunk(*axis, *n).swap_remove(*part),
            Move::Repeat(reps) => x.repeat(reps),
            Move::Tril(0) => x.tril(),
            Move::Triu(0) => x.triu(),
            Move::Tril(k) => x.tril_k(*k),
            Move::Triu(k) => x.triu_k(*k),
            Move::Diagonal => x.diagonal(),
        }
    }

    fn text(&self, inputs: &[&str]) -> String {
        let x = inputs[0];
        let axis = |a: &Option<i32>| a.map_or("..".to_string(), |a| a.to_string());
        let call = match self {
            Move::Reshape(shape) => format!("reshape({})", shape_text(shape)),
            Move::Flatten => "flatten()".into(),
            Move::Unsqueeze(a) => format!("unsqueeze({a})"),
            Move::Squeeze(a) => format!("squeeze({})", axis(a)),
            Move::Permute(order) => format!("permute(&{order:?})"),
            Move::Transpose(a, b) => format!("transpose({a}, {b})"),
            Move::T => "t()".into(),
            Move::BroadcastTo(shape) => format!("broadcast_to({})", shape_text(shape)),
            Move::Slice(cuts) => {
                let bound = |b: &Option<i64>| b.map_or(String::new(), |b| b.to_string());
                let cuts: Vec<String> = (cuts.iter())
                    .map(|cut| match cut {
                        Cut::Index(i) => i.to_string(),
                        Cut::Range(start, end, step) => format!("{}..{};{step}", bound(start), bound(end)),
                    })
                    .collect();
                format!("slice(s![{}])", cuts.join(", "))
            }
            Move::Narrow(a, start, len) => format!("narrow({a}, {start}, {len})"),
            Move::RowsAt(a, start, len) => format!("rows_at({a}, {start}, {len})"),
            Move::SelectIndex(a, i) => format!("select_index({a}, {i}i64)"),
            Move::Flip(a) => format!("flip({})", axis(a)),
            Move::Pad(pads, value) => format!("pad(&{pads:?}, {})", literal(*value, DType::F32)),
            Move::Split(a, sizes, part) => format!("split({a}, &{sizes:?})[{part}].clone()"),
            Move::Chunk(a, n, part) => format!("chunk({a}, {n})[{part}].clone()"),
            Move::Repeat(reps) => format!("repeat({reps:?})"),
            Move::Tril(k) => format!("tril_k({k})"),
            Move::Triu(k) => format!("triu_k({k})"),
            Move::Diagonal => "diagonal()".into(),
        };
        format!("{x}.{call}")
    }

    fn mutant(&self) -> Option<Rc<dyn Op>> {
        Some(Rc::new(match self {
            Move::Flip(Some(_)) => Move::Flip(None),
            Move::Narrow(axis, start, len) if *start > 0 => Move::Narrow(*axis, start - 1, *len),
            Move::RowsAt(axis, start, len) if *start > 0 => Move::RowsAt(*axis, start - 1, *len),
            Move::Pad(pads, value) => Move::Pad(pads.clone(), value + 1.0),
            Move::Tril(k) => Move::Tril(k - 1),
            Move::Triu(k) => Move::Triu(k + 1),
            Move::SelectIndex(axis, i) if *i > 0 => Move::SelectIndex(*axis, i - 1),
            _ => return None,
        }))
    }
}

/// Another shape of as many elements.
fn reshaping(table: &mut Table, shape: &[usize]) -> Vec<usize> {
    let mut out = shape.to_vec();
    for _ in 0..table.dice.between(1, 3) {
        let rank = out.len();
        let axis = if rank > 0 { table.dice.below(rank) } else { 0 };
        match table.dice.below(3) {
            0 if rank >= 2 => {
                let axis = axis.min(rank - 2);
                let next = out.remove(axis + 1);
                out[axis] *= next;
            }
            1 if (1..8).contains(&rank) => {
                let divisors: Vec<usize> = (2..=out[axis].min(64)).filter(|d| out[axis].is_multiple_of(*d)).collect();
                if !divisors.is_empty() {
                    let by = table.dice.pick(&divisors);
                    out[axis] /= by;
                    out.insert(axis, by);
                }
            }
            _ if rank < 8 => out.insert(axis, 1),
            _ => {}
        }
    }
    out
}

fn cut(table: &mut Table, size: usize) -> Cut {
    let bound = |table: &mut Table| match table.dice.below(4) {
        0 => None,
        1 => Some(table.dice.below(size + 2) as i64 - 1),
        2 => Some(-(table.dice.below(size + 2) as i64)),
        _ => Some(table.dice.between(0, size) as i64),
    };
    if size > 0 && table.dice.once_in(6) {
        return Cut::Index(table.dice.below(2 * size) as i64 - size as i64);
    }
    let (start, end) = (bound(table), bound(table));
    Cut::Range(start, end, table.dice.pick(&[1, 1, -1, 2, -2, 3, -3, 7]))
}

pub fn draw(table: &mut Table) -> Option<usize> {
    let choice = table.dice.below(22);
    let x = match choice {
        0..3 => table.any(),
        _ => table.with_axes()?,
    };
    let shape = table.array(x).shape.clone();
    let rank = shape.len();
    let axis = if rank > 0 { table.axis(x) } else { 0 };
    let signed = if rank > 0 { table.signed(axis, rank) } else { 0 };
    let op = match choice {
        0 => Move::Reshape(reshaping(table, &shape)),
        1 if rank < 8 => Move::Unsqueeze(table.dice.below(2 * rank + 2) as i32 - rank as i32 - 1),
        2 => Move::BroadcastTo(broadcasting(table, &shape)?),
        3 | 4 => {
            let mut order: Vec<i32> = (0..rank as i32).collect();
            order.rotate_left(table.dice.below(rank));
            order.swap(0, table.dice.below(rank));
            Move::Permute(order)
        }
        5 => Move::Transpose(signed, table.dice.below(rank) as i32),
        6 => Move::T,
        7..11 => {
            let n = table.dice.between(1, rank);
            Move::Slice((0..n).map(|i| cut(table, shape[i])).collect())
        }
        11 => {
            let start = table.dice.between(0, shape[axis]);
            let len = table.dice.between(0, shape[axis] - start);
            let moves = [Move::Narrow(signed, start, len), Move::RowsAt(signed, start, len)];
            table.dice.pick(&moves)
        }
        12 if shape[axis] > 0 => {
            Move::SelectIndex(signed, table.dice.below(2 * shape[axis]) as i64 - shape[axis] as i64)
        }
        13 | 14 => Move::Flip(if table.dice.once_in(4) { None } else { Some(signed) }),
        15 | 16 => {
            let n = table.dice.between(1, rank);
            let pads = (0..n).map(|_| (table.dice.below(3), table.dice.below(3))).collect();
            let value = if table.array(x).dtype == DType::Bool { 1.0 } else { table.dice.pick(&[0.0, 1.0, 7.0]) };
            Move::Pad(pads, value)
        }
        17 => {
            let first = table.dice.between(0, shape[axis]);
            Move::Split(signed, vec![first, shape[axis] - first], table.dice.below(2))
        }
        18 => {
            let n = table.dice.between(1, 4);
            let parts = shape[axis].div_ceil(shape[axis].div_ceil(n).max(1)).max(1);
            Move::Chunk(signed, n, table.dice.below(parts))
        }
        19 => {
            let n = table.dice.between(1, (rank + 1).min(8));
            Move::Repeat((0..n).map(|_| table.dice.between(1, 3)).collect())
        }
        20 if rank >= 2 => {
            let k = table.dice.below(5) as i32 - 2;
            if table.dice.below(2) == 0 { Move::Tril(k) } else { Move::Triu(k) }
        }
        21 if rank >= 2 => Move::Diagonal,
        _ if shape.contains(&1) => Move::Squeeze(None),
        _ => Move::Flatten,
    };
    let op = match op {
        Move::Flatten if shape[axis.min(rank.saturating_sub(1))..].first() == Some(&1) => Move::Squeeze(Some(signed)),
        op => op,
    };
    if let Move::Repeat(reps) = &op {
        let times: usize = reps.iter().product();
        if !table.is_small(&[n_elems(&shape), times]) {
            return None;
        }
    }
    let node = table.push(op, vec![x]);
    if table.array(node).n_elems() > table.limits.elems {
        table.program.nodes.pop();
        return None;
    }
    Some(node)
}

/// A shape that this one broadcasts to.
fn broadcasting(table: &mut Table, shape: &[usize]) -> Option<Vec<usize>> {
    let mut out = shape.to_vec();
    for size in out.iter_mut().filter(|n| **n == 1) {
        *size = table.dice.pick(&[2, 1, 3, 5]);
    }
    if out.len() < 8 && table.dice.once_in(2) {
        out.insert(0, table.dice.between(1, 4));
    }
    table.is_small(&out).then_some(out)
}
