//! Tests on devices that end loops after a few dozen iterations, so that small tensors take every way in which a kernel
//! is cut: long reductions, and whatever loops too long after that. The loops really are ended, as some
//! drivers do after many more, so that one which was counted too short gives wrong numbers.

use std::borrow::Cow;
use std::sync::Arc;

use super::open_device::OpenDevice;
use super::read::read;
use super::storage::GpuBuffer;
use super::{Gpu, Origin, adapters};
use crate::backend::Counters;
use crate::target::{GpuTarget, Limits};
use crate::{DType, Device, Tensor};

/// Iterations that one invocation may make. A fold with several values per trip, what it leaves over, and the tree that
/// joins 256 invocations take some fifty.
const FEW: usize = 96;

/// A shader whose invocations make no more iterations than this, if that is few. Loops with barriers, which all
/// invocations go through together, are left as they are.
pub fn ended_early(text: &str, max_iterations: usize) -> Cow<'_, str> {
    if max_iterations > 4 * FEW || !text.contains("for (") {
        return text.into();
    }
    let line = |line: &str| match line.contains("for (") && line.ends_with('{') && !line.contains("var half") {
        true => format!("{line} if (trips_left == 0u) {{ break; }} trips_left -= 1u;\n"),
        false => format!("{line}\n"),
    };
    let text: String = text.lines().map(line).collect();
    format!("var<private> trips_left: u32 = {max_iterations}u;\n{text}").into()
}

/// Every GPU found, with loops of at most so many iterations; and if the planner is to cut, into pieces of at most 16.
fn devices(max_iterations: usize, planner_cuts: bool) -> Vec<Device> {
    let found = adapters::found();
    assert!(!found.is_empty(), "no GPU adapter was found");
    let open = |found: &adapters::FoundAdapter| {
        let known = GpuTarget { max_iterations, ..adapters::quirks_of(&found.info) };
        let counters: Arc<Counters> = Arc::default();
        let live = adapters::open(&found.adapter, &known, &counters).unwrap();
        let mut gpu = Gpu::new(found.info.clone(), counters, live, Origin::Adapter(found.adapter.clone()));
        let limits = match planner_cuts {
            true => Limits {
                max_reduce: 64,
                max_piece: 16,
                max_column: 64,
                min_rows: 8,
                ..gpu.shared.about.target.limits.clone()
            },
            false => {
                Limits { max_reduce: usize::MAX, max_column: usize::MAX, ..gpu.shared.about.target.limits.clone() }
            }
        };
        Arc::get_mut(&mut gpu.shared).unwrap().about.target.limits = limits;
        Device::new(Box::new(gpu))
    };
    found.iter().map(open).collect()
}

/// Small whole numbers.
fn numbers(shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 7919 + i / 13) % 23) as f32 - 11.0).collect();
    Tensor::from_vec(values, shape.to_vec(), device).compute().unwrap()
}

/// What a reduction may run over that is not memory, or not in order.
const OPERANDS: [(&str, fn(&Device) -> Tensor); 14] = [
    ("memory", |d| numbers(&[3001], d)),
    ("memory of several axes", |d| numbers(&[3, 61, 17], d)),
    ("a broadcast", |d| numbers(&[1, 53], d).broadcast_to([61, 53])),
    ("a broadcast of one number", |d| numbers(&[1], d).broadcast_to([4099])),
    ("a broadcast along the rows", |d| numbers(&[53, 1], d).broadcast_to([53, 64])),
    ("a pad of one axis", |d| numbers(&[2048], d).pad(&[(777, 1001)], 3.0f32)),
    ("a pad of several axes", |d| numbers(&[40, 50], d).pad(&[(3, 5), (7, 11)], 2.0f32)),
    ("indices", |d| Tensor::arange(0.0f32, 2500.0, 1.0, d).sub(1250.0)),
    ("a diagonal", |d| Tensor::eye(61, DType::F32, d)),
    ("a triangle", |d| numbers(&[57, 61], d).tril()),
    ("lookups", |d| {
        let at = Tensor::arange(0i32, 2000, 1, d).mul(7).rem(101).compute().unwrap();
        numbers(&[101], d).gather(0, &at)
    }),
    ("rows that are looked up", |d| {
        let at = Tensor::arange(0i32, 70, 1, d).mul(5).rem(31).compute().unwrap();
        numbers(&[31, 40], d).index_select(0, &at)
    }),
    ("views that do not merge", |d| numbers(&[60, 50], d).t().reshape([30, 100]).flip(1)),
    ("distances of all pairs", |d| {
        let x = numbers(&[59], d);
        x.unsqueeze(0).sub(&x.unsqueeze(1)).abs()
    }),
];

/// Reductions, alone and in stages, over all axes, the last and the first.
fn reductions(x: &Tensor) -> Vec<(&'static str, Tensor)> {
    vec![
        ("sum", x.sum(..)),
        ("sum along the last", x.sum(-1)),
        ("sum along the first", x.sum(0)),
        ("mean", x.mean(..)),
        ("max", x.max(..)),
        ("min along the last", x.min(-1)),
        ("product of signs", x.abs().add(1.0).div(x.abs().add(1.0)).prod(..)),
        ("argmax", x.argmax(..)),
        ("argmin along the last", x.argmin(-1)),
        ("any", x.eq(11.0).any(..)),
        ("all along the first", x.gt(-100.0).all(0)),
        ("variance", x.var(.., 0)),
        ("variance along the last", x.var(-1, 1)),
        ("sum and largest at once", x.sum(-1).add(x.max(-1))),
        ("whole of bytes", x.to_dtype(DType::I32).mul(3).sum(..)),
        ("half floats", x.to_dtype(DType::F16).max(-1)),
    ]
}

/// Within a few units of a sum of this many terms; counts and extremes are the same.
#[track_caller]
fn same(what: &str, got: &Tensor, right: &Tensor) {
    let n_terms = 4096.0;
    let (got, right) = (got.to_dtype(DType::F32), right.to_dtype(DType::F32));
    let (got, right) = (got.to_vec::<f32>().unwrap(), right.to_vec::<f32>().unwrap());
    assert_eq!(got.len(), right.len(), "{what}");
    for (got, right) in got.iter().zip(&right) {
        let close = (got - right).abs() <= right.abs() * f32::EPSILON * f32::sqrt(n_terms);
        assert!(close || (got.is_nan() && right.is_nan()), "{what}: {got} for {right}");
    }
}

/// Every operand and every reduction, but not all of both: each is a kernel or three to compile.
fn check(planner_cuts: bool) {
    let cpu = Device::cpu();
    for gpu in devices(FEW, planner_cuts) {
        for (i, (of, operand)) in OPERANDS.into_iter().enumerate() {
            let both = reductions(&operand(&gpu)).into_iter().zip(reductions(&operand(&cpu)));
            for ((what, got), (_, right)) in both.skip((i + 2 * planner_cuts as usize) % 4).step_by(4) {
                same(&format!("{what} of {of}"), &got, &right);
            }
        }
    }
}

#[test]
fn any_reduction_is_right_in_pieces_of_the_planner() {
    check(true);
}

#[test]
fn any_reduction_is_right_in_pieces_of_a_kernel() {
    check(false);
}

#[test]
fn softmax_norms_products_and_routines_are_right_with_short_loops() {
    let cpu = Device::cpu();
    let all = |d: &Device| {
        let (x, y) = (numbers(&[7, 1500], d), numbers(&[1500, 9], d));
        let at = Tensor::arange(0i32, 900, 1, d).mul(11).rem(40).compute().unwrap();
        vec![
            ("softmax", x.mul(0.1).softmax(-1)),
            ("softmax of columns", y.mul(0.1).softmax(0)),
            ("softmax of a pad", x.pad(&[(0, 0), (3, 200)], -4.0f32).mul(0.1).softmax(-1)),
            ("layer norm", x.layer_norm(-1, None, None, 1e-5)),
            ("a product", x.matmul(&y)),
            ("a product and what follows", x.matmul(&y).mul(0.01).sin()),
            ("a remainder that is summed", x.rem(5.0).sum(-1)),
            ("a sine that is summed", x.mul(100.0).sin().abs().sum(-1)),
            ("whole powers that are summed", x.to_dtype(DType::I32).rem(5).pow(3).sum(-1)),
            ("running sums", x.cumsum(1)),
            ("in order", x.sort(-1, false)),
            ("added at places", numbers(&[40], d).scatter_add(0, &at, &numbers(&[900], d))),
        ]
    };
    for planner_cuts in [true, false] {
        for gpu in devices(4 * FEW, planner_cuts) {
            for ((what, got), (_, right)) in all(&gpu).into_iter().zip(all(&cpu)) {
                same(what, &got, &right);
            }
        }
    }
}

/// How many times a loop of `n` goes round in one invocation.
fn rounds(live: &Arc<OpenDevice>, n: u32) -> u32 {
    const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @compute @workgroup_size(1) fn main() {
            var rounds = 0u;
            for (var i = 0u; i < x[0]; i++) { rounds += 1u + x[1]; }
            x[0] = rounds;
        }";
    let words: Vec<u8> = [n, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let block = live.take_with(&words).unwrap();
    live.dispatch(TEXT, &block, 1);
    let mut out = [0; 4];
    read(&GpuBuffer::of_block(block, Vec::new(), None), &Counters::default(), &mut out).unwrap();
    u32::from_ne_bytes(out)
}

/// A fact of the driver: if it ends loops early, that is known.
#[test]
fn a_driver_that_ends_loops_early_is_known_to() {
    assert!(!adapters::found().is_empty(), "no GPU adapter was found");
    for found in adapters::found() {
        let live = found.live().unwrap();
        let max_iterations = live.target.max_iterations;
        for n in [1000, 65_535, 65_536, 200_000] {
            let rounds = rounds(&live, n);
            assert!(rounds == n || n as usize > max_iterations, "{}: {rounds} of {n}", found.info);
        }
    }
}
