//! Reductions of rows, of columns and of everything; normalisations, which reduce and map; and the routines.

use lazuli::DType;

use super::{ALL, Draft, FLOATS, Form};
use crate::index::Index;
use crate::line::Line;
use crate::program::Program;
use crate::reduce::Reduce;

pub fn forms() -> Vec<Form> {
    let reductions = |shape: &'static [usize], axes: &'static [i32]| {
        move || FLOATS.iter().chain(&[DType::I32, DType::U8]).flat_map(|d| reductions(*d, shape, axes)).collect()
    };
    vec![
        Form::new("reduction of rows", reductions(&[37, 1000], &[-1])),
        Form::new("reduction of columns", reductions(&[1000, 37], &[0])),
        Form::new("reduction of inner and outer axes", reductions(&[9, 67, 33], &[0, 2])),
        Form::new("reduction of everything", reductions(&[70_001], &[0])),
        Form::new("products of elements, any, all", || ALL.map(few).to_vec()),
        Form::new("softmax", || lines(&[Line::Softmax(-1), Line::LogSoftmax(-1)])),
        Form::new("softmax of columns", || lines(&[Line::Softmax(0)])),
        Form::new("layer and RMS norm", norms),
        Form::new("cumsum", || {
            // Other sums of integers wrap, so that they are checked to the bit.
            FLOATS.iter().chain(&[DType::I32, DType::U8]).flat_map(|d| routine(*d, Line::Cumsum)).collect()
        }),
        Form::new("sort", || {
            ALL.iter().flat_map(|d| routine(*d, |axis| Line::Sort { axis, descending: true })).collect()
        }),
        Form::new("argsort", || {
            ALL.iter().flat_map(|d| routine(*d, |axis| Line::Argsort { axis, descending: false })).collect()
        }),
        Form::new("topk", || routine(DType::F32, |axis| Line::TopkValues { k: 7, axis })),
        Form::new("scatter_add", || ALL.iter().flat_map(|d| scatters(*d)).collect()),
    ]
}

/// Positive numbers, so that an error in units of the result is one in units of what was added.
fn reductions(dtype: DType, shape: &[usize], axes: &[i32]) -> Vec<Program> {
    // On whole numbers statistics are those of f32.
    let sets: &[&[&'static str]] = match dtype.is_float() {
        true => &[&["sum", "max", "argmin"], &["mean", "min", "argmax"], &["var", "norm"], &["std", "logsumexp"]],
        false => &[&["sum", "max", "argmin"], &["min", "argmax"]],
    };
    // The place of the best is that along one axis.
    let fits = |name: &&str| axes.len() == 1 || !name.starts_with("arg");
    let program = |names: &&[&'static str]| {
        let mut draft = Draft::default();
        let x = draft.noise(shape, dtype, if dtype.is_float() { 2 } else { 0 });
        for name in names.iter().copied().filter(fits) {
            draft.op(Reduce { name, axes: Some(axes.to_vec()), keep: name == "mean", ddof: 1 }, &[x]);
        }
        draft.done()
    };
    sets.iter().map(program).collect()
}

fn few(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let x = draft.noise(&[131, 7], dtype, if dtype.is_float() { 2 } else { 0 });
    for name in ["prod", "any", "all"] {
        draft.op(Reduce { name, axes: Some(vec![-1]), keep: false, ddof: 0 }, &[x]);
    }
    draft.done()
}

fn lines(ops: &[Line]) -> Vec<Program> {
    let shapes = [[37, 1000], [300, 17], [3, 5001]];
    let program = |(shape, dtype): ([usize; 2], DType)| {
        let mut draft = Draft::default();
        let x = draft.noise(&shape, dtype, 1);
        for op in ops {
            draft.op(op.clone(), &[x]);
        }
        draft.done()
    };
    shapes.into_iter().flat_map(|shape| FLOATS.map(|dtype| (shape, dtype))).map(program).collect()
}

fn norms() -> Vec<Program> {
    let program = |dtype: DType| {
        let mut draft = Draft::default();
        let x = draft.noise(&[65, 769], dtype, 1);
        let (weight, bias) = (draft.noise(&[769], DType::F32, 1), draft.noise(&[769], DType::F32, 1));
        draft.op(Line::LayerNorm { axis: -1, weight: true, bias: true, eps: 1e-5 }, &[x, weight, bias]);
        draft.op(Line::RmsNorm { axis: -1, weight: true, eps: 1e-5 }, &[x, weight]);
        draft.done()
    };
    FLOATS.map(program).to_vec()
}

/// Many short lines, few long ones, and lines that are columns.
fn routine(dtype: DType, op: impl Fn(i32) -> Line) -> Vec<Program> {
    let cases: [(&[usize], i32); 3] = [(&[300, 67], -1), (&[2, 5003], -1), (&[513, 9], 0)];
    let program = |(shape, axis): (&[usize], i32)| {
        let mut draft = Draft::default();
        let x = draft.noise(shape, dtype, if dtype.is_float() { 2 } else { 0 });
        draft.op(op(axis), &[x]);
        draft.done()
    };
    cases.into_iter().map(program).collect()
}

/// Many onto few places, and few onto many.
fn scatters(dtype: DType) -> Vec<Program> {
    let program = |(n_places, n_rows): (usize, usize)| {
        let mut draft = Draft::default();
        let x = draft.noise(&[n_places, 33], dtype, 0);
        let places = draft.noise(&[n_rows, 33], DType::I32, 100 + n_places as u32);
        let rows = draft.noise(&[n_rows, 33], dtype, if dtype.is_float() { 2 } else { 0 });
        draft.op(Index::ScatterAdd(0), &[x, places, rows]);
        draft.done()
    };
    [(3, 301), (500, 40)].into_iter().map(program).collect()
}
