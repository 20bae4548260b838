//! Several tensors as one: side by side, or one written into another.

use lazuli::{Device, Tensor};

use crate::array::Array;
use crate::map::promote;
use crate::movement::index;
use crate::program::{Op, Table};

/// Side by side along an axis that there is, or a new one.
#[derive(Clone, Debug)]
pub enum Join {
    Cat(i32),
    Stack(i32),
    /// The second from this position of the first on.
    WriteRows(i32, usize),
}

/// `x` with `rows` from a position on.
fn written(x: &Array, axis: usize, position: usize, rows: &Array) -> Array {
    let mut cells = Vec::new();
    crate::array::for_each_coordinate(&x.shape, |at| {
        let mut from = at.to_vec();
        let row = at[axis].checked_sub(position).filter(|row| *row < rows.shape[axis]);
        from[axis] = row.unwrap_or(at[axis]);
        cells.push(if row.is_some() { rows.at(&from) } else { x.at(&from) });
    });
    Array::new(x.shape.clone(), x.dtype, cells)
}

impl Op for Join {
    fn expect(&self, inputs: &[&Array]) -> Array {
        if let Join::WriteRows(axis, position) = self {
            return written(inputs[0], index(*axis, inputs[0].shape.len()), *position, inputs[1]);
        }
        let dtype = inputs.iter().map(|x| x.dtype).reduce(promote).expect("drawn with inputs");
        let rank = inputs[0].shape.len();
        let (axis, parts): (usize, Vec<Array>) = match self {
            Join::Cat(axis) => (index(*axis, rank), inputs.iter().map(|x| x.cast(dtype)).collect()),
            Join::Stack(axis) => {
                let axis = index(*axis, rank + 1);
                let part = |x: &&Array| {
                    let mut shape = x.shape.clone();
                    shape.insert(axis, 1);
                    x.cast(dtype).reshaped(shape)
                };
                (axis, inputs.iter().map(part).collect())
            }
            Join::WriteRows(..) => unreachable!("written above"),
        };
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|p| p.shape[axis]).sum();
        let mut cells = Vec::new();
        crate::array::for_each_coordinate(&shape, |at| {
            let mut at = at.to_vec();
            let mut parts = parts.iter();
            let part = loop {
                let part = parts.next().expect("some part holds it");
                if at[axis] < part.shape[axis] {
                    break part;
                }
                at[axis] -= part.shape[axis];
            };
            cells.push(part.at(&at));
        });
        Array::new(shape, dtype, cells)
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        match self {
            Join::Cat(axis) => Tensor::cat(inputs, *axis),
            Join::Stack(axis) => Tensor::stack(inputs, *axis),
            Join::WriteRows(axis, position) => inputs[0].write_rows(*axis, *position, inputs[1]),
        }
    }

    fn text(&self, inputs: &[&str]) -> String {
        let list: Vec<String> = inputs.iter().map(|x| format!("&{x}")).collect();
        match self {
            Join::Cat(axis) => format!("Tensor::cat(&[{}], {axis})", list.join(", ")),
            Join::Stack(axis) => format!("Tensor::stack(&[{}], {axis})", list.join(", ")),
            Join::WriteRows(axis, at) => format!("{}.write_rows({axis}, {at}, &{})", inputs[0], inputs[1]),
        }
    }
}

/// Draws rows that are written into something of their dtype.
fn draw_rows(table: &mut Table) -> Option<usize> {
    let x = table.with_axes()?;
    let (shape, dtype) = (table.array(x).shape.clone(), table.array(x).dtype);
    let axis = table.axis(x);
    let mut wanted = shape.clone();
    wanted[axis] = table.dice.between(0, shape[axis]);
    let fits = |a: &Array| {
        let same = |i: usize| a.shape[i] == shape[i] || (i == axis && a.shape[i] <= shape[i]);
        a.dtype == dtype && a.shape.len() == shape.len() && (0..shape.len()).all(same)
    };
    let rows = table.node_or_leaf(wanted, &[dtype], fits);
    let position = table.dice.between(0, shape[axis] - table.array(rows).shape[axis]);
    let signed = table.signed(axis, shape.len());
    Some(table.push(Join::WriteRows(signed, position), vec![x, rows]))
}

pub fn draw(table: &mut Table) -> Option<usize> {
    if table.dice.once_in(4) {
        return draw_rows(table);
    }
    let n = table.dice.between(1, 4);
    let stack = table.dice.once_in(3);
    let first = if stack { table.node_where(|a| a.shape.len() < 8)? } else { table.with_axes()? };
    let shape = table.array(first).shape.clone();
    if !table.is_small(&[table.array(first).n_elems(), n, 2]) {
        return None;
    }
    let mut inputs = vec![first];
    let axis = if stack { table.dice.between(0, shape.len()) } else { table.axis(first) };
    for _ in 1..n {
        let mut wanted = shape.clone();
        if !stack {
            wanted[axis] = table.dice.pick(&[1, 2, shape[axis], 0, 3]);
        }
        let fits = |a: &Array| {
            let same = |i: usize| a.shape[i] == shape[i] || (i == axis && !stack);
            a.shape.len() == shape.len()
                && (0..shape.len()).all(same)
                && a.n_elems() <= 4 * shape.iter().product::<usize>()
        };
        let node = table.node_or_leaf(wanted, &crate::leaf::DTYPES, fits);
        inputs.push(node);
    }
    let rank = shape.len() + stack as usize;
    let signed = table.signed(axis, rank);
    let node = table.push(if stack { Join::Stack(signed) } else { Join::Cat(signed) }, inputs);
    if table.array(node).n_elems() > table.limits.elems {
        table.program.nodes.pop();
        return None;
    }
    Some(node)
}
