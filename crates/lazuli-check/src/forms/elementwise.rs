//! Maps: every elementwise method, on numbers from where its row says that it is tested and on those that break things.

use lazuli::DType;
use lazuli::ops::Takes;

use super::{ALL, Draft, FLOATS, Form};
use crate::data;
use crate::leaf::{Leaf, narrowed};
use crate::map::{Map, Number, has_row};
use crate::methods::{BINARY, SHAPED, UNARY};
use crate::program::Program;
use crate::row::{binary_row, unary_row};

/// Elements of an operand: no multiple of what a kernel reads at once.
const N: usize = 1027;
/// Methods of one program: more would make a shader that some drivers compile for minutes.
const N_METHODS: usize = 4;

pub fn forms() -> Vec<Form> {
    let floats = |dtype| move || [unary(dtype), binary(dtype)].concat();
    let whole =
        || [DType::I32, DType::U32, DType::U8, DType::Bool].into_iter().flat_map(|d| [unary(d), binary(d)].concat());
    vec![
        Form::new("elementwise, f32", floats(DType::F32)),
        Form::new("elementwise, f16", floats(DType::F16)),
        Form::new("elementwise, bf16", floats(DType::BF16)),
        Form::new("elementwise, integers and bools", move || whole().collect()),
        Form::new("selection, clamp, activations", || FLOATS.map(selection).to_vec()),
        Form::new("custom op", || vec![custom()]),
        Form::new("chain of maps", || vec![chain(N), chain(70_001)]),
        Form::new("casts between all dtypes", || ALL.iter().flat_map(|d| casts(*d)).collect()),
    ]
}

/// Numbers from a range, and a few that break things.
fn numbers(dtype: DType, (low, high): (f64, f64), seed: u32) -> Leaf {
    let number = |i: usize| match i % 16 {
        0 => data::number(4, seed, i),
        _ => low + (high - low) * (data::noise(seed, i) >> 11) as f64 / (1u64 << 53) as f64,
    };
    let values = (0..N).map(|i| narrowed(number(i), dtype)).collect();
    Leaf::Data { shape: vec![N], dtype, values }
}

/// Whether a method does something of its own to a dtype: floats aside, what takes floats is given a cast.
fn is_own(takes: Takes, dtype: DType) -> bool {
    takes.cast(dtype) == Some(dtype)
}

fn unary(dtype: DType) -> Vec<Program> {
    let takes = |name: &str| if has_row(name) { unary_row(name).takes } else { Takes::Float };
    let names: Vec<&'static str> = UNARY.iter().copied().filter(|name| is_own(takes(name), dtype)).collect();
    let program = |(i, names): (usize, &[&'static str])| {
        let mut draft = Draft::default();
        for (j, name) in names.iter().enumerate() {
            let range = if has_row(name) { unary_row(name).range } else { (-6.0, 6.0) };
            let x = draft.leaf(numbers(dtype, range, (10 * i + j) as u32));
            draft.op(Map::Unary(name), &[x]);
        }
        draft.done()
    };
    names.chunks(N_METHODS).enumerate().map(program).collect()
}

fn binary(dtype: DType) -> Vec<Program> {
    let names: Vec<&'static str> =
        BINARY.iter().copied().filter(|name| is_own(binary_row(name).takes, dtype)).collect();
    let program = |(i, names): (usize, &[&'static str])| {
        let mut draft = Draft::default();
        for (j, name) in names.iter().enumerate() {
            let (range, seed) = (binary_row(name).range, (1000 + 10 * i + 2 * j) as u32);
            let x = draft.leaf(numbers(dtype, range, seed));
            let y = draft.leaf(numbers(dtype, range, seed + 1));
            draft.op(Map::Binary(name), &[x, y]);
        }
        draft.done()
    };
    names.chunks(N_METHODS).enumerate().map(program).collect()
}

fn selection(dtype: DType) -> Program {
    let mut draft = Draft::default();
    let (cond, x, y) = (draft.noise(&[N], DType::Bool, 0), draft.noise(&[N], dtype, 4), draft.noise(&[N], dtype, 1));
    draft.op(Map::Select(None, None), &[cond, x, y]);
    draft.op(Map::Select(None, Some(Number::Int(3))), &[cond, x]);
    draft.op(Map::Clamp(Number::Float(-0.5), Number::Float(1.25)), &[x]);
    for name in SHAPED {
        draft.op(Map::Shaped(name, 0.25), &[x]);
    }
    draft.done()
}

fn custom() -> Program {
    let mut draft = Draft::default();
    let (x, y) = (draft.noise(&[N], DType::F32, 1), draft.noise(&[1], DType::F32, 1));
    draft.op(Map::Custom, &[x, y]);
    draft.done()
}

/// `(x + y) · 5 − z`, and what is rounded must stay so.
fn chain(n: usize) -> Program {
    let mut draft = Draft::default();
    let [x, y, z] = [1, 1, 3].map(|kind| draft.noise(&[n], DType::F32, kind));
    let sum = draft.op(Map::Binary("add"), &[x, y]);
    let scaled = draft.op(Map::Right("mul", Number::Float(5.0)), &[sum]);
    draft.op(Map::Binary("sub"), &[scaled, z]);
    // A compiler that takes floats for real numbers would give x.
    let large = draft.op(Map::Right("add", Number::Float(1e8)), &[x]);
    draft.op(Map::Right("sub", Number::Float(1e8)), &[large]);
    draft.done()
}

fn casts(from: DType) -> Vec<Program> {
    let kinds: &[u32] = if from.is_float() { &[3, 4] } else { &[0, 5] };
    let program = |kind: &u32| {
        let mut draft = Draft::default();
        let x = draft.noise(&[N], from, *kind);
        for to in ALL.into_iter().filter(|to| *to != from) {
            draft.op(Map::Cast(to), &[x]);
        }
        draft.done()
    };
    kinds.iter().map(program).collect()
}
