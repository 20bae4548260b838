//! Ops along one axis that keep it: normalisations, running sums, order.

use std::rc::Rc;

use lazuli::{DType, Device, Tensor};

use crate::array::Array;
use crate::cell::{Cell, ulp, wrapped};
use crate::map::{binary, square, unary};
use crate::movement::index;
use crate::program::{Op, Table};
use crate::reduce::{fold, mean};
use crate::row;

/// An op along an axis.
#[derive(Clone, Debug)]
pub enum Line {
    Softmax(i32),
    LogSoftmax(i32),
    /// With weight and bias, if they are wanted.
    LayerNorm {
        axis: i32,
        weight: bool,
        bias: bool,
        eps: f32,
    },
    RmsNorm {
        axis: i32,
        weight: bool,
        eps: f32,
    },
    Cumsum(i32),
    Sort {
        axis: i32,
        descending: bool,
    },
    Argsort {
        axis: i32,
        descending: bool,
    },
    TopkValues {
        k: usize,
        axis: i32,
    },
    TopkIndices {
        k: usize,
        axis: i32,
    },
}

impl Line {
    fn axis(&self) -> i32 {
        match self {
            Line::Softmax(axis) | Line::LogSoftmax(axis) | Line::Cumsum(axis) => *axis,
            Line::LayerNorm { axis, .. } | Line::RmsNorm { axis, .. } => *axis,
            Line::Sort { axis, .. } | Line::Argsort { axis, .. } => *axis,
            Line::TopkValues { axis, .. } | Line::TopkIndices { axis, .. } => *axis,
        }
    }
}

/// A vector laid along an axis of a tensor of this rank.
fn along(vector: &Array, axis: usize, rank: usize) -> Array {
    let mut shape = vec![1; rank];
    shape[axis] = vector.shape[0];
    vector.reshaped(shape)
}

fn running_sums(line: &[Cell], dtype: DType, ulps: f64) -> Vec<Cell> {
    let mut out = Vec::with_capacity(line.len());
    if !dtype.is_float() {
        let mut sum = Some(0i128);
        for cell in line {
            sum = sum.and_then(|s| cell.value().map(|v| s + v as i128));
            out.push(sum.map_or(Cell::any(dtype), |s| Cell::point(wrapped(s, dtype))));
        }
        return out;
    }
    for n in 1..=line.len().min(1) {
        out.push(line[n - 1]);
    }
    // One rounding of a sum of wide numbers, whatever was added before.
    let (mut sum, mut magnitudes) =
        (line.first().copied().unwrap_or(Cell::NAN), line.first().map_or(0.0, |c| c.magnitude()));
    for cell in &line[line.len().min(1)..] {
        sum = sum.corners(*cell, |a, b| a + b);
        magnitudes += cell.magnitude();
        let wide = if magnitudes.is_finite() { magnitudes * line.len() as f64 * f64::EPSILON } else { 0.0 };
        let error = |v: f64| if v.is_finite() { ulps * ulp(v) + wide } else { 0.0 };
        out.push(if sum.is_nan() { sum } else { sum.widened(error(sum.lo), error(sum.hi)) }.kept(dtype));
    }
    out
}

/// The k-th of a sorted line lies between the k-th of its lower and of its upper bounds. NaN comes last.
fn sorted(line: &[Cell], descending: bool) -> Vec<Cell> {
    if line.iter().any(|c| c.nan && !c.is_nan()) {
        return vec![Cell::ANY; line.len()];
    }
    let numbers: Vec<Cell> = line.iter().copied().filter(|c| !c.is_nan()).collect();
    let order = |mut bounds: Vec<f64>| {
        bounds.sort_by(|a, b| if descending { b.total_cmp(a) } else { a.total_cmp(b) });
        bounds
    };
    let lows = order(numbers.iter().map(|c| c.lo).collect());
    let highs = order(numbers.iter().map(|c| c.hi).collect());
    let mut out: Vec<Cell> = lows.into_iter().zip(highs).map(|(lo, hi)| Cell::range(lo, hi)).collect();
    out.resize(line.len(), Cell::NAN);
    out
}

/// The indices that would sort a line, if neighbours can be told apart or are equal for certain.
fn order_of(line: &[Cell], descending: bool) -> Vec<Cell> {
    let unknown = vec![Cell::range(0.0, line.len() as f64 - 1.0); line.len()];
    if line.iter().any(|c| c.nan && !c.is_nan()) {
        return unknown;
    }
    let key = |i: usize| match (line[i].is_nan(), descending) {
        (true, _) => f64::INFINITY,
        (false, true) => -line[i].hi,
        (false, false) => line[i].lo,
    };
    let mut order: Vec<usize> = (0..line.len()).collect();
    order.sort_by(|a, b| {
        (line[*a].is_nan(), key(*a)).partial_cmp(&(line[*b].is_nan(), key(*b))).expect("no NaN is compared")
    });
    let told_apart = |a: Cell, b: Cell| {
        let (a, b) = if descending { (b, a) } else { (a, b) };
        a.is_nan() || b.is_nan() || a.hi < b.lo || (a.value().is_some() && a.value() == b.value())
    };
    if order.windows(2).any(|w| !told_apart(line[w[0]], line[w[1]])) {
        return unknown;
    }
    order.into_iter().map(|i| Cell::point(i as f64)).collect()
}

impl Op for Line {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let x = inputs[0];
        let rank = x.shape.len();
        let axis = index(self.axis(), rank);
        let wide = x.cast(DType::F32);
        let result = if x.dtype.is_float() { x.dtype } else { DType::F32 };
        let ulps = |name: &str| row::table().routines.iter().find(|r| r.name == name).expect("has a row").ulps;
        let shifted = || binary("sub", &wide, &fold("max", &wide, &[axis]));
        let first = |y: Array, k: usize| {
            let mut shape = y.shape.clone();
            shape[axis] = k;
            y.moved(shape, Cell::ANY, |at| Some(at.to_vec()))
        };
        match self {
            Line::Softmax(_) | Line::LogSoftmax(_) if x.n_elems() == 0 => x.cast(result),
            Line::Softmax(_) => {
                let e = unary("exp", &shifted());
                binary("div", &e, &fold("sum", &e, &[axis])).cast(result)
            }
            Line::LogSoftmax(_) => {
                let shifted = shifted();
                let sum = fold("sum", &unary("exp", &shifted), &[axis]);
                binary("sub", &shifted, &unary("log", &sum)).cast(result)
            }
            Line::LayerNorm { weight, bias, eps, .. } => {
                let centred = binary("sub", &wide, &mean(&wide, &[axis], 0));
                let variance = mean(&square(&centred), &[axis], 0);
                let mut y = binary("mul", &centred, &unary("rsqrt", &binary("add", &variance, *eps)));
                if *weight {
                    y = binary("mul", &y, &along(inputs[1], axis, rank));
                }
                if *bias {
                    y = binary("add", &y, &along(inputs[inputs.len() - 1], axis, rank));
                }
                y.cast(result)
            }
            Line::RmsNorm { weight, eps, .. } => {
                let scale = unary("rsqrt", &binary("add", &mean(&square(&wide), &[axis], 0), *eps));
                let mut y = binary("mul", &wide, &scale);
                if *weight {
                    y = binary("mul", &y, &along(inputs[1], axis, rank));
                }
                y.cast(result)
            }
            Line::Cumsum(_) => {
                let dtype = match x.dtype {
                    DType::U8 => DType::U32,
                    DType::Bool => DType::I32,
                    dtype => dtype,
                };
                let ulps = ulps("cumsum");
                x.cast(dtype).lines(axis, dtype, |line| running_sums(line, dtype, ulps))
            }
            Line::Sort { descending, .. } => x.lines(axis, x.dtype, |line| sorted(line, *descending)),
            Line::Argsort { descending, .. } => x.lines(axis, DType::I32, |line| order_of(line, *descending)),
            Line::TopkValues { k, .. } => first(x.lines(axis, x.dtype, |line| sorted(line, true)), *k),
            Line::TopkIndices { k, .. } => first(x.lines(axis, DType::I32, |line| order_of(line, true)), *k),
        }
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let x = inputs[0];
        match self {
            Line::Softmax(axis) => x.softmax(*axis),
            Line::LogSoftmax(axis) => x.log_softmax(*axis),
            Line::LayerNorm { axis, weight, bias, eps } => {
                x.layer_norm(*axis, weight.then(|| inputs[1]), bias.then(|| inputs[inputs.len() - 1]), *eps)
            }
            Line::RmsNorm { axis, weight, eps } => x.rms_norm(*axis, weight.then(|| inputs[1]), *eps),
            Line::Cumsum(axis) => x.cumsum(*axis),
            Line::Sort { axis, descending } => x.sort(*axis, *descending),
            Line::Argsort { axis, descending } => x.argsort(*axis, *descending),
            Line::TopkValues { k, axis } => x.topk(*k, *axis).0,
            Line::TopkIndices { k, axis } => x.topk(*k, *axis).1,
        }
    }

    fn sums(&self) -> bool {
        true
    }

    fn text(&self, inputs: &[&str]) -> String {
        let x = inputs[0];
        let optional = |there: bool, i: usize| if there { format!("Some(&{})", inputs[i]) } else { "None".to_string() };
        match self {
            Line::Softmax(axis) => format!("{x}.softmax({axis})"),
            Line::LogSoftmax(axis) => format!("{x}.log_softmax({axis})"),
            Line::LayerNorm { axis, weight, bias, eps } => {
                let (w, b) = (optional(*weight, 1), optional(*bias, inputs.len() - 1));
                format!("{x}.layer_norm({axis}, {w}, {b}, {eps:?})")
            }
            Line::RmsNorm { axis, weight, eps } => format!("{x}.rms_norm({axis}, {}, {eps:?})", optional(*weight, 1)),
            Line::Cumsum(axis) => format!("{x}.cumsum({axis})"),
            Line::Sort { axis, descending } => format!("{x}.sort({axis}, {descending})"),
            Line::Argsort { axis, descending } => format!("{x}.argsort({axis}, {descending})"),
            Line::TopkValues { k, axis } => format!("{x}.topk({k}, {axis}).0"),
            Line::TopkIndices { k, axis } => format!("{x}.topk({k}, {axis}).1"),
        }
    }

    fn mutant(&self) -> Option<Rc<dyn Op>> {
        Some(Rc::new(match self.clone() {
            Line::Softmax(axis) => Line::LogSoftmax(axis),
            Line::LogSoftmax(axis) => Line::Softmax(axis),
            Line::LayerNorm { axis, weight, bias, eps } => Line::LayerNorm { axis, weight, bias, eps: eps + 0.1 },
            Line::RmsNorm { axis, weight, eps } => Line::RmsNorm { axis, weight, eps: eps + 0.1 },
            Line::Sort { axis, descending } => Line::Sort { axis, descending: !descending },
            Line::Argsort { axis, descending } => Line::Argsort { axis, descending: !descending },
            _ => return None,
        }))
    }
}

pub fn draw(table: &mut Table) -> Option<usize> {
    let x = table.with_axes()?;
    let axis = table.axis(x);
    let shape = table.array(x).shape.clone();
    let size = shape[axis];
    let signed = table.signed(axis, shape.len());
    let mut inputs = vec![x];
    let descending = table.dice.below(2) == 1;
    let vector = |table: &mut Table, wanted: bool, inputs: &mut Vec<usize>| {
        if wanted {
            let node =
                table.node_or_leaf(vec![size], &[DType::F32, DType::F16], |a| a.shape == [size] && a.dtype.is_float());
            inputs.push(node);
        }
        wanted
    };
    let op = match table.dice.below(12) {
        0 | 1 => Line::Softmax(signed),
        2 => Line::LogSoftmax(signed),
        3 | 4 => {
            let (weight, bias) = (table.dice.below(2) == 1, table.dice.below(2) == 1);
            vector(table, weight, &mut inputs);
            vector(table, bias, &mut inputs);
            Line::LayerNorm { axis: signed, weight, bias, eps: 1e-5 }
        }
        5 => {
            let weight = table.dice.below(2) == 1;
            vector(table, weight, &mut inputs);
            Line::RmsNorm { axis: signed, weight, eps: 1e-3 }
        }
        6 | 7 => Line::Cumsum(signed),
        8 => Line::Sort { axis: signed, descending },
        9 => Line::Argsort { axis: signed, descending },
        10 => Line::TopkValues { k: table.dice.between(0, size), axis: signed },
        _ => Line::TopkIndices { k: table.dice.between(0, size), axis: signed },
    };
    table.push_if_known(op, inputs)
}
