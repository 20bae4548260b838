//! Contractions: products summed over shared axes. The oracle loops over every combination of indices.

use std::rc::Rc;

use lazuli::{DType, Device, Tensor};

use crate::array::{self, Array, n_elems};
use crate::cell::{Cell, ulp, wrapped};
use crate::leaf;
use crate::line::Line;
use crate::map::{Map, binary, promote};
use crate::program::{Op, Table};
use crate::reduce::fold;
use crate::subject::left_out_of_products;

/// A contraction of two tensors (an einsum may have one or three).
#[derive(Clone, Debug)]
pub enum Contract {
    Matmul,
    Dot,
    Outer,
    Einsum(&'static str),
}

/// Specs that are drawn, each letter being one of a few sizes.
const SPECS: [&str; 14] = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "ij,ij->",
    "i,j->ij",
    "ij->ji",
    "ii->i",
    "ii",
    "ij->j",
    "bij,jk->bik",
    "ij,kj->ik",
    "ij,jk,kl->il",
    "bhqd,bhkd->bhqk",
    "...ij,...jk->...ik",
    "ij,j->i",
];

/// What the product of two dtypes is: bools count.
fn product_dtype(a: DType, b: DType) -> DType {
    match promote(a, b) {
        DType::Bool => DType::I32,
        dtype => dtype,
    }
}

/// The sum of products of cells in any order, as f32 or as integers. `n_roundings` is how many a product has on its
/// way into the sum, at most.
pub fn summed(products: impl Iterator<Item = Vec<Cell>>, dtype: DType, n_roundings: usize) -> Cell {
    if !dtype.is_float() {
        let mut sum = 0i128;
        for factors in products {
            let mut product = 1i128;
            for factor in factors {
                let Some(value) = factor.value() else { return Cell::any(dtype) };
                product *= value as i128;
            }
            sum = (sum + product) % (1 << 40);
        }
        return Cell::point(wrapped(sum, dtype));
    }
    let (mut lo, mut hi, mut magnitudes, mut largest) = (0.0, 0.0, 0.0f64, 1.0f64);
    let mut on_the_way = 0.0;
    for factors in products {
        // What is not finite may meet a zero or its opposite: nothing is known.
        if factors.iter().any(|f| f.nan || f.magnitude() == f64::INFINITY) {
            return Cell::ANY;
        }
        factors.iter().for_each(|f| largest = largest.max(f.magnitude()));
        on_the_way += factors.iter().map(|f| f.magnitude().max(1.0)).product::<f64>();
        let product = factors.iter().copied().fold(Cell::point(1.0), |x, y| x.corners(y, |x, y| x * y));
        lo += product.lo;
        hi += product.hi;
        magnitudes += product.magnitude();
    }
    bounded(Cell::range(lo, hi), Magnitudes { sum: magnitudes, largest, on_the_way }, n_roundings)
}

/// How large the numbers are that a sum of products is made of.
struct Magnitudes {
    /// The sum of all products, signs left out.
    sum: f64,
    /// The largest factor, at least 1.
    largest: f64,
    /// What the sum may be on the way to its end, if factors below 1 come last.
    on_the_way: f64,
}

/// An exact sum with the error of so many roundings.
fn bounded(exact: Cell, magnitudes: Magnitudes, n_roundings: usize) -> Cell {
    if magnitudes.on_the_way > 0.99 * f32::MAX as f64 {
        return Cell::ANY;
    }
    // Half a unit of the sum of magnitudes per rounding; what underflows is lost, times what it is then multiplied by.
    let lost = magnitudes.largest * f64::powi(2.0, -148);
    let rounded = 0.5 * n_roundings as f64 * (1.01 * ulp(magnitudes.sum) + lost);
    let error = rounded + left_out_of_products() * magnitudes.sum;
    exact.widened(error, error)
}

/// The values of an operand, if all are known, finite and floats.
fn exact(x: &Array) -> Option<Vec<f64>> {
    let value = |c: &Cell| c.value().filter(|v| v.is_finite());
    if x.dtype.is_float() { x.cells.iter().map(value).collect() } else { None }
}

/// What [`summed`] gives for every element of one matrix product, in plain loops, so that large products have an oracle,
/// too: a row of the result after another, a row of `b` added to it at a time.
fn exact_product(a: &[f64], b: &[f64], k: usize, n: usize) -> Vec<Cell> {
    let largest = a.iter().chain(b).fold(1.0f64, |most, v| most.max(v.abs()));
    let mut cells = Vec::with_capacity(a.len() / k.max(1) * n);
    for row in a.chunks_exact(k) {
        let (mut sums, mut magnitudes, mut on_the_way) = (vec![0.0f64; n], vec![0.0f64; n], vec![0.0f64; n]);
        for (a, b) in row.iter().zip(b.chunks_exact(n)) {
            let at_least_one = a.abs().max(1.0);
            for j in 0..n {
                let product = a * b[j];
                sums[j] += product;
                magnitudes[j] += product.abs();
                on_the_way[j] += at_least_one * b[j].abs().max(1.0);
            }
        }
        cells.extend((0..n).map(|j| {
            let magnitudes = Magnitudes { sum: magnitudes[j], largest, on_the_way: on_the_way[j] };
            bounded(Cell::range(sums[j], sums[j]), magnitudes, k + 1)
        }));
    }
    cells
}

pub fn matmul(a: &Array, b: &Array) -> Array {
    let dtype = product_dtype(a.dtype, b.dtype);
    let (rank_a, rank_b) = (a.shape.len(), b.shape.len());
    // Half floats are read as they are; integers meet first.
    let (a, b) = (a.cast(dtype), b.cast(dtype));
    let matrix = |x: &Array, row: bool| match x.shape[..] {
        [k] if row => x.reshaped(vec![1, k]),
        [k] => x.reshaped(vec![k, 1]),
        _ => x.clone(),
    };
    let (a, b) = (matrix(&a, true), matrix(&b, false));
    let (lead_a, lead_b) = (&a.shape[..a.shape.len() - 2], &b.shape[..b.shape.len() - 2]);
    let batch = array::broadcast(lead_a, lead_b).expect("drawn to broadcast");
    let (m, k, n) = (a.shape[a.shape.len() - 2], a.shape[a.shape.len() - 1], b.shape[b.shape.len() - 1]);
    let whole = |x: &Array| x.broadcast(&[&batch[..], &x.shape[x.shape.len() - 2..]].concat());
    let (a, b) = (whole(&a), whole(&b));
    let mut cells = Vec::new();
    let exact = exact(&a).zip(exact(&b)).filter(|_| m * k * n > 0);
    for batch in 0..n_elems(&batch) {
        if let Some((a, b)) = &exact {
            let product = exact_product(&a[batch * m * k..][..m * k], &b[batch * k * n..][..k * n], k, n);
            cells.extend(product.into_iter().map(|c| c.kept(dtype)));
            continue;
        }
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let products = (0..k).map(|l| vec![a.cells[(batch * m + i) * k + l], b.cells[(batch * k + l) * n + j]]);
            cells.push(summed(products, dtype, k + 1).kept(dtype));
        }
    }
    let mut shape = batch;
    shape.extend((rank_a > 1).then_some(m));
    shape.extend((rank_b > 1).then_some(n));
    Array::new(shape, dtype, cells)
}

/// One letter per axis of each operand and of the result; an ellipsis is taken to stand for one axis, `B`.
fn letters(spec: &str) -> (Vec<Vec<char>>, Vec<char>) {
    let spec = spec.replace("...", "B");
    let (inputs, output) = match spec.split_once("->") {
        Some((inputs, output)) => (inputs.to_string(), Some(output.to_string())),
        None => (spec, None),
    };
    let terms: Vec<Vec<char>> = inputs.split(',').map(|t| t.chars().collect()).collect();
    let output = output.map(|o| o.chars().collect()).unwrap_or_else(|| {
        let all: Vec<char> = terms.concat();
        let mut once: Vec<char> = all.iter().copied().filter(|c| all.iter().filter(|d| *d == c).count() == 1).collect();
        once.sort_unstable();
        once
    });
    (terms, output)
}

fn einsum(spec: &str, inputs: &[&Array]) -> Array {
    let (terms, output) = letters(spec);
    let dtype = inputs.iter().map(|x| x.dtype).reduce(product_dtype).expect("drawn with inputs");
    let inputs: Vec<Array> = inputs.iter().map(|x| x.cast(dtype)).collect();
    let mut labels = output.clone();
    labels.extend(terms.iter().flatten().copied());
    let mut distinct: Vec<char> = Vec::new();
    labels.retain(|l| {
        if distinct.contains(l) {
            false
        } else {
            distinct.push(*l);
            true
        }
    });
    let size = |l: char| {
        terms
            .iter()
            .zip(&inputs)
            .flat_map(|(t, x)| t.iter().zip(&x.shape))
            .filter(|(m, _)| **m == l)
            .map(|(_, n)| *n)
            .max()
    };
    let sizes: Vec<usize> = labels.iter().map(|l| size(*l).expect("every label has a size")).collect();
    let (outer, inner) = sizes.split_at(output.len());
    let mut cells = Vec::new();
    array::for_each_coordinate(outer, |outer| {
        let mut products = Vec::new();
        array::for_each_coordinate(inner, |inner| {
            let place = |l: &char| {
                let i = labels.iter().position(|m| m == l).expect("is a label");
                if i < outer.len() { outer[i] } else { inner[i - outer.len()] }
            };
            let factor = |(term, x): (&Vec<char>, &Array)| {
                let at: Vec<usize> =
                    term.iter().zip(&x.shape).map(|(l, n)| if *n == 1 { 0 } else { place(l) }).collect();
                x.at(&at)
            };
            products.push(terms.iter().zip(&inputs).map(factor).collect());
        });
        let n_roundings = inner.iter().sum::<usize>() + products.len() + terms.len();
        // One operand and nothing to sum is only moved.
        let n_roundings = if terms.len() == 1 && products.len() == 1 { 0 } else { n_roundings };
        cells.push(summed(products.into_iter(), dtype, n_roundings).kept(dtype));
    });
    Array::new(outer.to_vec(), dtype, cells)
}

impl Op for Contract {
    fn expect(&self, inputs: &[&Array]) -> Array {
        match self {
            Contract::Matmul | Contract::Dot if inputs.iter().all(|x| x.shape.len() == 1) => {
                // Two vectors: products and their sum, in f32 for half floats.
                let dtype = product_dtype(inputs[0].dtype, inputs[1].dtype);
                let wide = match dtype {
                    DType::U8 => DType::U32,
                    DType::F16 | DType::BF16 => DType::F32,
                    dtype => dtype,
                };
                let products = binary("mul", &inputs[0].cast(wide), &inputs[1].cast(wide));
                fold("sum", &products, &[0]).reshaped(vec![]).cast(dtype)
            }
            Contract::Matmul | Contract::Dot => matmul(inputs[0], inputs[1]),
            Contract::Outer => {
                let (m, n) = (inputs[0].n_elems(), inputs[1].n_elems());
                binary("mul", &inputs[0].reshaped(vec![m, 1]), &inputs[1].reshaped(vec![1, n]))
            }
            Contract::Einsum(spec) => einsum(spec, inputs),
        }
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        match self {
            Contract::Matmul => inputs[0].matmul(inputs[1]),
            Contract::Dot => inputs[0].dot(inputs[1]),
            Contract::Outer => inputs[0].outer(inputs[1]),
            Contract::Einsum(spec) => lazuli::ops::einsum(spec, inputs),
        }
    }

    fn sums(&self) -> bool {
        true
    }

    fn text(&self, inputs: &[&str]) -> String {
        match self {
            Contract::Matmul => format!("{}.matmul(&{})", inputs[0], inputs[1]),
            Contract::Dot => format!("{}.dot(&{})", inputs[0], inputs[1]),
            Contract::Outer => format!("{}.outer(&{})", inputs[0], inputs[1]),
            Contract::Einsum(spec) => {
                let list: Vec<String> = inputs.iter().map(|x| format!("&{x}")).collect();
                format!("lazuli::ops::einsum({spec:?}, &[{}])", list.join(", "))
            }
        }
    }

    fn mutant(&self) -> Option<Rc<dyn Op>> {
        match self {
            Contract::Einsum("ij->ji") => None,
            Contract::Einsum("ii->i") => Some(Rc::new(Contract::Einsum("ij->i"))),
            _ => None,
        }
    }
}

/// Dtypes that are contracted; halves too where a sum is rounded once.
const DTYPES: [DType; 8] =
    [DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8, DType::Bool];

pub fn draw(table: &mut Table) -> Option<usize> {
    match table.dice.below(7) {
        ..3 => draw_matmul(table),
        6 => draw_attention(table),
        3 => {
            let x = table.node_where(|a| a.shape.len() == 1)?;
            let shape = table.array(x).shape.clone();
            let y = table.node_or_leaf(shape.clone(), &DTYPES, |a| a.shape == shape);
            table.push_if_known(Contract::Dot, vec![x, y])
        }
        4 => {
            let x = table.node_where(|a| a.n_elems() <= 64)?;
            let y = table.node_where(|a| a.n_elems() <= 16)?;
            table.push_if_known(Contract::Outer, vec![x, y])
        }
        _ => draw_einsum(table),
    }
}

fn draw_matmul(table: &mut Table) -> Option<usize> {
    let x = table.with_axes()?;
    let shape = table.array(x).shape.clone();
    let rank = shape.len();
    let k = shape[rank - 1];
    let n = table.dice.pick(&[1, 2, 3, 5, 8, 17, 33, 70]);
    // A vector, a matrix, or as many batch axes, some of size 1.
    let batch = &shape[..rank.saturating_sub(2)];
    let wanted = match table.dice.below(3) {
        0 => vec![k, n],
        1 => vec![k],
        _ => batch.iter().copied().chain([k, n]).collect(),
    };
    let n_rows: usize = shape[..rank - 1].iter().product();
    if n_rows * k * n > table.limits.products || !table.is_small(&[n_rows, n]) || !table.is_small(&wanted) {
        return None;
    }
    let elems = table.limits.elems.min(table.limits.products / n_elems(&shape).max(1));
    let fits = |a: &Array| match a.shape[..] {
        [m] | [m, _] => m == k && a.n_elems() <= elems,
        _ => false,
    };
    let y = table.node_or_leaf(wanted, &DTYPES, fits);
    if table.array(y).shape.len() > 1 && n_rows * table.array(y).shape.last().copied().unwrap_or(1) > table.limits.elems
    {
        return None;
    }
    table.push_if_known(Contract::Matmul, vec![x, y])
}

/// Two products with a softmax between them, as attention has: seldom would these be drawn one after another.
fn draw_attention(table: &mut Table) -> Option<usize> {
    let pick = |table: &mut Table| table.dice.pick(&[2, 3, 5, 9, 17, 1]);
    let (batch, l, s, d, p) = (table.dice.pick(&[1, 2, 3]), pick(table), pick(table), pick(table), pick(table));
    let q = leaf::noise(table, vec![batch, l, d], DType::F32);
    let k = leaf::noise(table, vec![batch, d, s], DType::F32);
    let mut scores = table.push_if_known(Contract::Matmul, vec![q, k])?;
    if table.dice.once_in(3) {
        let other = table.partner(scores, &[DType::F32]);
        let is_same = table.array(other).shape.len() <= 3;
        if is_same && crate::array::broadcast(&table.array(other).shape, &[batch, l, s]) == Some(vec![batch, l, s]) {
            scores = table.push_if_known(Map::Binary("add"), vec![scores, other])?;
        }
    }
    let weights = table.push_if_known(Line::Softmax(-1), vec![scores])?;
    let v = leaf::noise(table, vec![batch, s, p], DType::F32);
    table.push_if_known(Contract::Matmul, vec![weights, v])
}

fn draw_einsum(table: &mut Table) -> Option<usize> {
    let spec = table.dice.pick(&SPECS);
    let (terms, _) = letters(spec);
    let dtype = table.dice.pick(&[DType::F32, DType::I32]);
    let sizes: Vec<(char, usize)> = "Bbhijkldq".chars().map(|l| (l, table.dice.pick(&[2, 1, 3, 4, 5]))).collect();
    let mut inputs = Vec::new();
    for term in &terms {
        let shape: Vec<usize> = term.iter().map(|l| sizes.iter().find(|s| s.0 == *l).expect("has a size").1).collect();
        let node = table.node_or_leaf(shape.clone(), &[dtype], |a| a.shape == shape && a.dtype == dtype);
        inputs.push(node);
    }
    table.push_if_known(Contract::Einsum(spec), inputs)
}
