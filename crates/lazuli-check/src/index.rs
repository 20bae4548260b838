//! Elements chosen by an integer tensor.

use lazuli::{DType, Device, Tensor};

use crate::array::{Array, for_each_coordinate, linear, n_elems};
use crate::cell::{Cell, ulp, wrapped};
use crate::leaf::Leaf;
use crate::map::{Map, Number, promote};
use crate::movement::index;
use crate::program::{Op, Table};
use crate::row;

/// Reading or adding at named places.
#[derive(Clone, Debug)]
pub enum Index {
    Gather(i32),
    Select(i32),
    Embedding,
    ScatterAdd(i32),
    OneHot(usize),
}

/// The element of a line that an index names, or whatever there is in it.
fn named(x: &Array, axis: usize, at: &[usize], index: Cell) -> Cell {
    let mut at = at.to_vec();
    let mut read = |i: usize| {
        at[axis] = i;
        x.at(&at)
    };
    match index.value() {
        Some(i) => read(i as usize),
        None => (0..x.shape[axis]).map(read).reduce(Cell::or).unwrap_or(Cell::ANY),
    }
}

fn scatter_add(x: &Array, axis: usize, index: &Array, src: &Array) -> Array {
    let dtype = match promote(x.dtype, src.dtype) {
        DType::Bool => DType::I32,
        dtype => dtype,
    };
    let (x, src) = (x.cast(dtype), src.cast(dtype));
    let mut meeting: Vec<Vec<Cell>> = vec![Vec::new(); x.n_elems()];
    let mut unsure = vec![false; x.n_elems()];
    for_each_coordinate(&index.shape, |at| {
        let mut to = at.to_vec();
        match index.at(at).value() {
            Some(i) => {
                to[axis] = i as usize;
                meeting[linear(&x.shape, &to)].push(src.at(at));
            }
            None => (0..x.shape[axis]).for_each(|i| {
                to[axis] = i;
                unsure[linear(&x.shape, &to)] = true;
            }),
        }
    });
    let ulps = row::table().routines.iter().find(|r| r.name == "scatter_add").expect("has a row").ulps;
    let cell = |(i, x): (usize, &Cell)| {
        if unsure[i] {
            return Cell::any(dtype);
        }
        if !dtype.is_float() {
            let all: Option<i128> = meeting[i].iter().chain([x]).map(|c| c.value().map(|v| v as i128)).sum();
            return all.map_or(Cell::any(dtype), |sum| Cell::point(wrapped(sum, dtype)));
        }
        if meeting[i].is_empty() {
            return *x;
        }
        // One rounding of a sum of wide numbers.
        let sum = meeting[i].iter().fold(*x, |sum, c| sum.corners(*c, |a, b| a + b));
        let magnitudes: f64 = meeting[i].iter().map(|c| c.magnitude()).sum();
        let wide = if magnitudes.is_finite() { magnitudes * meeting[i].len() as f64 * f64::EPSILON } else { 0.0 };
        let error = |v: f64| if v.is_finite() { ulps * ulp(v) + wide } else { 0.0 };
        if sum.is_nan() { sum } else { sum.widened(error(sum.lo), error(sum.hi)).kept(dtype) }
    };
    let cells = x.cells.iter().enumerate().map(cell).collect();
    Array::new(x.shape.clone(), dtype, cells)
}

impl Op for Index {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let x = inputs[0];
        let rank = x.shape.len();
        match self {
            Index::Gather(axis) => {
                let (axis, idx) = (index(*axis, rank), inputs[1]);
                let mut cells = Vec::new();
                for_each_coordinate(&idx.shape, |at| cells.push(named(x, axis, at, idx.at(at))));
                Array::new(idx.shape.clone(), x.dtype, cells)
            }
            Index::Select(axis) => {
                let (axis, idx) = (index(*axis, rank), inputs[1]);
                let mut shape = x.shape.clone();
                shape[axis] = idx.n_elems();
                let mut cells = Vec::new();
                for_each_coordinate(&shape, |at| cells.push(named(x, axis, at, idx.cells[at[axis]])));
                Array::new(shape, x.dtype, cells)
            }
            Index::Embedding => {
                let idx = inputs[1];
                let mut shape = idx.shape.clone();
                shape.push(x.shape[1]);
                let cell = |i: usize| named(x, 0, &[0, i % x.shape[1]], idx.cells[i / x.shape[1]]);
                let n = n_elems(&shape);
                Array::new(shape, x.dtype, (0..n).map(cell).collect())
            }
            Index::ScatterAdd(axis) => scatter_add(x, index(*axis, rank), inputs[1], inputs[2]),
            Index::OneHot(classes) => {
                let mut shape = x.shape.clone();
                shape.push(*classes);
                let cell = |i: usize| match x.cells[i / classes].value() {
                    Some(v) => Cell::point((v == (i % classes) as f64) as u8 as f64),
                    None => Cell::range(0.0, 1.0),
                };
                let n = n_elems(&shape);
                // A u32 beyond i32 is a negative class, which is none either.
                Array::new(shape, DType::I32, (0..n).map(cell).collect())
            }
        }
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let x = inputs[0];
        match self {
            Index::Gather(axis) => x.gather(*axis, inputs[1]),
            Index::Select(axis) => x.index_select(*axis, inputs[1]),
            Index::Embedding => x.embedding(inputs[1]),
            Index::ScatterAdd(axis) => x.scatter_add(*axis, inputs[1], inputs[2]),
            Index::OneHot(classes) => x.one_hot(*classes),
        }
    }

    fn text(&self, inputs: &[&str]) -> String {
        let x = inputs[0];
        match self {
            Index::Gather(axis) => format!("{x}.gather({axis}, &{})", inputs[1]),
            Index::Select(axis) => format!("{x}.index_select({axis}, &{})", inputs[1]),
            Index::Embedding => format!("{x}.embedding(&{})", inputs[1]),
            Index::ScatterAdd(axis) => format!("{x}.scatter_add({axis}, &{}, &{})", inputs[1], inputs[2]),
            Index::OneHot(classes) => format!("{x}.one_hot({classes})"),
        }
    }
}

/// An index tensor of this shape, all of it below `size`: data, or any integers by their remainder.
fn indices(table: &mut Table, shape: Vec<usize>, size: usize) -> usize {
    if table.dice.once_in(3)
        && let Some(node) = table.node_where(|a| a.dtype.is_int() && a.shape == shape)
        && (size < 256 || table.array(node).dtype != DType::U8)
    {
        return table.push(Map::Right("rem", Number::Int(size as i64)), vec![node]);
    }
    let dtypes = if size <= 256 { vec![DType::I32, DType::U32, DType::U8] } else { vec![DType::I32, DType::U32] };
    let (dtype, seed) = (table.dice.pick(&dtypes), table.dice.word() >> 16);
    table.push(Leaf::Noise { shape, dtype, kind: 100 + size as u32, seed }, Vec::new())
}

pub fn draw(table: &mut Table) -> Option<usize> {
    let choice = table.dice.below(5);
    if choice == 4 {
        let x = table.node_where(|a| a.dtype.is_int() && a.shape.len() < 8)?;
        let classes = table.dice.between(1, 6);
        if !table.is_small(&[table.array(x).n_elems(), classes]) {
            return None;
        }
        return Some(table.push(Index::OneHot(classes), vec![x]));
    }
    let x = if choice == 3 { table.node_where(|a| a.shape.len() == 2)? } else { table.with_axes()? };
    let shape = table.array(x).shape.clone();
    let axis = if choice == 3 { 0 } else { table.axis(x) };
    let signed = table.signed(axis, shape.len());
    if shape[axis] == 0 {
        return None;
    }
    let count = table.dice.pick(&[1, 2, 3, 5, 8]);
    let mut wanted = shape.clone();
    wanted[axis] = count;
    if !table.is_small(&wanted) {
        return None;
    }
    // Along the other axes an index may be shorter.
    for (i, size) in wanted.iter_mut().enumerate() {
        if i != axis && table.dice.once_in(4) {
            *size = size.div_ceil(2);
        }
    }
    match choice {
        0 => {
            let idx = indices(table, wanted, shape[axis]);
            Some(table.push(Index::Gather(signed), vec![x, idx]))
        }
        1 => {
            let idx = indices(table, vec![count], shape[axis]);
            Some(table.push(Index::Select(signed), vec![x, idx]))
        }
        3 => {
            let words = if table.dice.below(2) == 0 { vec![count] } else { vec![2, count] };
            let idx = indices(table, words, shape[0]);
            (table.is_small(&[2, count, shape[1]])).then(|| table.push(Index::Embedding, vec![x, idx]))
        }
        _ => {
            let idx = indices(table, wanted.clone(), shape[axis]);
            let src = table.node_or_leaf(wanted.clone(), &crate::leaf::DTYPES, |a| {
                a.shape.len() == wanted.len() && a.shape.iter().zip(&wanted).all(|(s, i)| s >= i)
            });
            table.push_if_known(Index::ScatterAdd(signed), vec![x, idx, src])
        }
    }
}
