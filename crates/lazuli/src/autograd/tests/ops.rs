//! Every op with a gradient: rows from the table, and what families and composed ops make of shapes and views.

use std::sync::Arc;

use super::Smooth::{Once, Twice};
use super::check;
use crate::graph::{CustomOp, Op, Recipe};
use crate::ops::{ReduceRow, table};
use crate::shape::{AxisSet, keep};
use crate::{
    DType, GridMode, GridPadding, GridSample, Interpolate, Interpolation, NearestRule, PadMode, Pool, ScatterReduce,
    Tensor, einsum, s,
};

/// What the engine's f32 may differ by, relative to the largest gradient: a few roundings of well-conditioned formulas.
const MAPS: f64 = 2e-5;
/// Sums of tens of products.
const SUMS: f64 = 5e-5;

/// The part of a row's range in which slopes are moderate.
fn calm(range: (f64, f64)) -> (f64, f64) {
    let (low, high) = (range.0.max(-2.0), range.1.min(2.0));
    let margin = 0.06 * (high - low);
    (low + margin, high - margin)
}

#[test]
fn unary_rows() {
    for row in table().unary.into_iter().filter(|row| row.grad.is_some()) {
        // |x| has no second derivative worth the name, but the rule is still right away from 0.
        check(row.name, Twice, &[&[3, 4]], calm(row.range), 2e-4, |x| {
            let x = x[0].node().expect("is data");
            Tensor::record(Op::Unary(row), &[x], x.shape, x.dtype, x.at)
        });
    }
}

#[test]
fn binary_rows() {
    for row in table().binary.into_iter().filter(|row| row.grad.is_some()) {
        let range = if row.name == "pow" { (0.2, 1.9) } else { calm(row.range) };
        check(row.name, Twice, &[&[2, 5], &[2, 5]], range, 2e-4, |x| {
            let (x, y) = (x[0].node().expect("is data"), x[1].node().expect("is data"));
            Tensor::record(Op::Binary(row), &[x, y], x.shape, x.dtype, x.at)
        });
    }
}

#[test]
fn reductions_over_any_axes() {
    let reduced = |row: &'static ReduceRow, x: &Tensor, axes: &[usize]| {
        let x = x.node().expect("is data");
        let mut set = AxisSet::default();
        axes.iter().for_each(|a| set.insert(*a));
        Tensor::record(Op::Reduce(row, set), &[x], x.shape.reduced(&set, false), x.dtype, x.at)
    };
    for row in table().reduce {
        for axes in [&[0][..], &[2], &[0, 2], &[0, 1, 2]] {
            check(row.name, Twice, &[&[2, 3, 2]], (-2.0, 2.0), 1e-4, |x| reduced(row, &x[0], axes));
        }
    }
}

#[test]
fn reductions_written_with_others() {
    let x: &[&[usize]] = &[&[3, 4]];
    check("mean", Twice, x, (-2.0, 2.0), MAPS, |x| x[0].mean(0));
    check("var", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].var(-1, 1));
    check("std", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].std(keep(0), 0));
    check("norm", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].norm(-1));
    check("logsumexp", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].logsumexp(-1));
    check("softmax", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].softmax(-1));
    check("softmax down columns", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].softmax(0));
    check("log_softmax", Twice, x, (-2.0, 2.0), SUMS, |x| x[0].log_softmax(1));
    let with_weights: &[&[usize]] = &[&[3, 4], &[4], &[4]];
    check("layer_norm", Twice, with_weights, (-2.0, 2.0), 5e-4, |x| {
        x[0].layer_norm(-1, Some(&x[1]), Some(&x[2]), 1e-3)
    });
    check("rms_norm", Twice, with_weights, (-2.0, 2.0), SUMS, |x| x[0].rms_norm(-1, Some(&x[1]), 1e-3));
}

#[test]
fn activations() {
    let x: &[&[usize]] = &[&[12]];
    let smooth: [(&str, fn(&Tensor) -> Tensor); 13] = [
        ("sigmoid", Tensor::sigmoid),
        ("silu", Tensor::silu),
        ("softplus", Tensor::softplus),
        ("gelu", Tensor::gelu),
        ("gelu_tanh", Tensor::gelu_tanh),
        ("tanh", Tensor::tanh),
        ("square", Tensor::square),
        ("elu", |x| x.elu(0.7)),
        ("celu", |x| x.celu(0.7)),
        ("selu", Tensor::selu),
        ("mish", Tensor::mish),
        ("log_sigmoid", Tensor::log_sigmoid),
        ("glu", |x| x.glu(0)),
    ];
    for (name, f) in smooth {
        check(name, Twice, x, (-2.5, 2.5), 5e-5, |x| f(&x[0]));
    }
    let bent: [(&str, fn(&Tensor) -> Tensor); 10] = [
        ("relu", Tensor::relu),
        ("leaky_relu", |x| x.leaky_relu(0.1)),
        ("hardswish", Tensor::hardswish),
        ("clamp", |x| x.clamp(-1, 1)),
        ("abs of a floor", |x| x.floor().add(x).abs()),
        ("hardsigmoid", |x| x.hardsigmoid(0.3, 0.5)),
        ("threshold", |x| x.threshold(0.3, 1.0)),
        ("softsign", Tensor::softsign),
        ("shrink", |x| x.shrink(0.5, 0.25)),
        ("nan_to_num", Tensor::nan_to_num),
    ];
    for (name, f) in bent {
        check(name, Once, x, (-2.5, 2.5), MAPS, |x| f(&x[0]));
    }
}

#[test]
fn composed_of_two_or_three() {
    let two: &[&[usize]] = &[&[3, 4], &[3, 4]];
    check("hypot", Twice, two, (0.2, 2.0), SUMS, |x| x[0].hypot(&x[1]));
    check("logaddexp", Twice, two, (-2.0, 2.0), SUMS, |x| x[0].logaddexp(&x[1]));
    check("fmod", Once, two, (0.3, 2.0), MAPS, |x| x[0].add(3).fmod(&x[1]));
    check("prelu", Once, &[&[3, 4], &[4]], (-2.0, 2.0), MAPS, |x| x[0].prelu(&x[1]));
    check("lerp", Twice, &[&[4], &[4], &[4]], (-2.0, 2.0), MAPS, |x| x[0].lerp(&x[1], &x[2]));
    let with_weights: &[&[usize]] = &[&[2, 4, 3], &[4], &[4]];
    check("group_norm", Twice, with_weights, (-2.0, 2.0), 5e-4, |x| x[0].group_norm(2, Some(&x[1]), Some(&x[2]), 1e-3));
    check("instance_norm", Twice, with_weights, (-2.0, 2.0), 5e-4, |x| {
        x[0].instance_norm(Some(&x[1]), Some(&x[2]), 1e-2)
    });
    check("layer_norm of two axes", Twice, &[&[2, 3, 2], &[3, 2]], (-2.0, 2.0), 5e-4, |x| {
        x[0].layer_norm([1, 2], Some(&x[1]), None, 1e-3)
    });
    check("local_response_norm", Twice, &[&[2, 4]], (-2.0, 2.0), SUMS, |x| x[0].local_response_norm(3, 0.5, 0.75, 1.0));
}

#[test]
fn padding_pooling_and_resampling() {
    let image: &[&[usize]] = &[&[1, 2, 4, 5]];
    let moves: [(&str, fn(&Tensor) -> Tensor); 15] = [
        ("pad edge", |x| x.pad_with(&[(0, 0), (0, 0), (2, 1), (1, 3)], PadMode::Edge)),
        ("pad reflect", |x| x.pad_with(&[(0, 0), (0, 0), (2, 1), (0, 9)], PadMode::Reflect)),
        ("pad wrap", |x| x.pad_with(&[(0, 0), (0, 0), (2, 1), (7, 0)], PadMode::Wrap)),
        ("pad symmetric", |x| x.pad_with(&[(0, 0), (0, 0), (2, 1), (0, 9)], PadMode::Symmetric)),
        ("interpolate nearest", |x| {
            x.interpolate(&[7, 3], &Interpolate::new(Interpolation::Nearest(NearestRule::RoundPreferFloor)))
        }),
        ("lp_pool of three", |x| x.abs().add(0.5).lp_pool(3.0, Pool { stride: 1.into(), ..Pool::new([2, 3]) })),
        ("avg_pool", |x| x.avg_pool(Pool { stride: 2.into(), padding: 1.into(), ..Pool::new([3, 2]) })),
        ("large avg_pool", |x| {
            x.avg_pool(Pool { stride: 1.into(), padding: 2.into(), count_include_pad: false, ..Pool::new(5) })
        }),
        ("lp_pool", |x| x.lp_pool(2.0, Pool { stride: 1.into(), ..Pool::new(2) })),
        ("adaptive_avg_pool", |x| x.adaptive_avg_pool(&[3, 2])),
        ("interpolate linear", |x| x.interpolate(&[7, 3], &Interpolate::new(Interpolation::Linear))),
        ("interpolate cubic", |x| x.interpolate(&[3, 7], &Interpolate::new(Interpolation::Cubic(-0.75)))),
        ("interpolate antialias", |x| {
            x.interpolate(&[2, 2], &Interpolate { antialias: true, ..Interpolate::new(Interpolation::Linear) })
        }),
        ("roll", |x| x.roll(2, 3)),
        ("diff", |x| x.diff(2, 3)),
    ];
    for (name, f) in moves {
        check(name, Twice, image, (-2.0, 2.0), SUMS, |x| f(&x[0]).square());
    }
    let bent: [(&str, fn(&Tensor) -> Tensor); 6] = [
        ("max_pool", |x| x.max_pool(Pool { stride: 1.into(), padding: 1.into(), ..Pool::new([3, 2]) })),
        ("large max_pool", |x| x.max_pool(Pool { stride: 1.into(), padding: 1.into(), ..Pool::new([4, 5]) })),
        ("adaptive_max_pool", |x| x.adaptive_max_pool(&[3, 2])),
        ("cummax", |x| x.cummax(3).0),
        ("cummin", |x| x.cummin(2).0),
        ("lp_pool of one and a half", |x| x.lp_pool(1.5, Pool { stride: 1.into(), ..Pool::new(2) })),
    ];
    for (name, f) in bent {
        check(name, Once, image, (-2.0, 2.0), SUMS, |x| f(&x[0]));
    }
}

#[test]
fn scattering_and_running_products() {
    let index = |shape: &[usize], places: &[i32]| Tensor::from_slice(places, shape, &super::device());
    let places = index(&[3, 2], &[1, 0, 3, 0, 1, 2]);
    let two: &[&[usize]] = &[&[4, 2], &[3, 2]];
    check("scatter", Twice, two, (-2.0, 2.0), MAPS, |x| x[0].scatter(0, &places, &x[1]).square());
    for reduce in [ScatterReduce::Add, ScatterReduce::Mul, ScatterReduce::Max, ScatterReduce::Min] {
        let name = format!("scatter_reduce {reduce:?}");
        check(&name, Once, two, (-2.0, 2.0), MAPS, |x| x[0].scatter_reduce(0, &places, &x[1], reduce));
    }
    let (rows, columns) = (index(&[3], &[1, 3, 1]), index(&[3], &[0, 1, 0]));
    check("index", Twice, &[&[4, 2, 2]], (-2.0, 2.0), MAPS, |x| x[0].index(&[&rows, &columns]).square());
    check("index_put", Twice, &[&[4, 2, 2], &[3, 2]], (-2.0, 2.0), MAPS, |x| {
        x[0].index_put(&[&rows, &columns], &x[1]).square()
    });
    for reduce in [ScatterReduce::Add, ScatterReduce::Mul, ScatterReduce::Max, ScatterReduce::Min] {
        let name = format!("index_put_reduce {reduce:?}");
        check(&name, Once, &[&[4, 2, 2], &[3, 2]], (-2.0, 2.0), MAPS, |x| {
            x[0].index_put_reduce(&[&rows, &columns], &x[1], reduce)
        });
    }
    check("index_add", Twice, &[&[2, 4], &[2, 3]], (-2.0, 2.0), MAPS, |x| x[0].index_add(1, &rows, &x[1]).square());
    check("take", Twice, &[&[4, 2]], (-2.0, 2.0), MAPS, |x| x[0].take(&rows).square());
    check("cumprod", Twice, &[&[2, 6]], (-2.0, 2.0), SUMS, |x| x[0].cumprod(1));
    check("diag", Twice, &[&[3]], (-2.0, 2.0), MAPS, |x| x[0].diag(1).square());
    check("trace", Twice, &[&[3, 4]], (-2.0, 2.0), MAPS, |x| x[0].square().trace());
}

#[test]
fn transforms_grids_and_determinants() {
    check("rfft", Twice, &[&[2, 9]], (-2.0, 2.0), SUMS, |x| x[0].rfft(1).square());
    // Cut by the rule for long transforms.
    check("fft of many", Once, &[&[130, 2]], (-2.0, 2.0), SUMS, |x| x[0].fft(0).narrow(0, 3, 2).square());
    check("irfft", Twice, &[&[4, 2]], (-2.0, 2.0), SUMS, |x| x[0].irfft(6, 0).square());
    check("stft", Twice, &[&[14], &[6]], (-2.0, 2.0), SUMS, |x| x[0].stft(6, 4, Some(&x[1])).square());
    for mode in [GridMode::Nearest, GridMode::Linear, GridMode::Cubic] {
        for padding in [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection] {
            let options = GridSample { mode, padding, align_corners: false };
            let name = format!("grid_sample {mode:?} {padding:?}");
            check(&name, Once, &[&[1, 2, 3, 4], &[1, 2, 2, 2]], (-0.9, 0.9), SUMS, |x| {
                x[0].grid_sample(&x[1], options)
            });
        }
    }
    check("det", Twice, &[&[2, 3, 3]], (-2.0, 2.0), 1e-3, |x| x[0].det());
}

#[test]
fn movement() {
    let x: &[&[usize]] = &[&[2, 3, 4]];
    let moves: [(&str, fn(&Tensor) -> Tensor); 28] = [
        ("reshape", |x| x.reshape([4, 6])),
        ("permute", |x| x.permute(&[2, 0, 1])),
        ("a reshape of a transpose", |x| x.transpose(0, 2).reshape([6, 4])),
        ("narrow", |x| x.narrow(1, 1, 2)),
        ("select_index", |x| x.select_index(2, 1)),
        ("every second", |x| x.slice(s![.., .., ..;2])),
        ("every second from the second", |x| x.slice(s![.., 1..;2, 1..;2])),
        ("backwards in steps", |x| x.slice(s![.., .., ..;-2])),
        ("flip", |x| x.flip([0, 2])),
        ("broadcast_to", |x| x.unsqueeze(1).broadcast_to([2, 5, 3, 4])),
        ("repeat", |x| x.repeat([2, 1, 3])),
        ("pad", |x| x.pad(&[(1, 0), (0, 2), (1, 1)], 3.0)),
        ("a pad of a flip", |x| x.flip(1).pad(&[(0, 0), (2, 1)], 0.0)),
        ("unfold", |x| x.unfold(2, 2, 1)),
        ("unfold in steps", |x| x.unfold(2, 2, 2)),
        ("unfold with gaps", |x| x.reshape([2, 12]).unfold(1, 2, 3)),
        ("unfold twice", |x| x.unfold(1, 2, 1).unfold(2, 3, 1)),
        ("dilated windows", |x| x.reshape([2, 12]).unfold(1, 5, 2).slice(s![.., .., ..;2])),
        ("diagonal", |x| x.diagonal()),
        ("tril", |x| x.tril()),
        ("repeat_interleave", |x| x.repeat_interleave(3, 1)),
        ("movedim", |x| x.movedim([0, 2], [2, 1])),
        ("hstack", |x| Tensor::hstack(&[x, &x.narrow(1, 1, 2)])),
        ("vstack", |x| Tensor::vstack(&[&x.narrow(0, 1, 1), x])),
        ("meshgrid", |x| {
            let (a, b) = (x.narrow(1, 0, 1).flatten(), x.narrow(2, 2, 1).flatten());
            let made = Tensor::meshgrid(&[&a, &b]);
            made[0].mul(&made[1])
        }),
        ("flatten_axes", |x| x.flatten_axes(1, 2)),
        ("cat with itself", |x| Tensor::cat(&[x, &x.narrow(1, 0, 1), x], 1)),
        ("split and stack", |x| Tensor::stack(&[&x.split(2, &[1, 3])[0], &x.chunk(2, 4)[2]], 0)),
    ];
    for (name, f) in moves {
        // Squared, so that the second derivative is not zero.
        check(name, Twice, x, (-2.0, 2.0), MAPS, |x| f(&x[0]).square());
    }
}

#[test]
fn movement_of_as_many_axes_as_there_may_be() {
    let x: &[&[usize]] = &[&[2, 1, 3, 1, 2, 1, 1, 4]];
    let moves: [(&str, fn(&Tensor) -> Tensor); 5] = [
        ("every second", |x| x.slice(s![.., .., .., .., .., .., .., ..;2])),
        ("every second in the middle", |x| x.slice(s![.., .., ..;2, .., .., .., .., ..])),
        ("backwards in steps", |x| x.slice(s![.., .., ..;-2, .., .., .., .., ..;-3])),
        ("every second of a permutation", |x| x.permute(&[7, 0, 2, 1, 4, 3, 6, 5]).slice(s![..;2, .., ..;2, ..])),
        ("windows beside an element", |x| x.select_index(2, 1).unfold(6, 2, 1)),
    ];
    for (name, f) in moves {
        check(name, Twice, x, (-2.0, 2.0), MAPS, |x| f(&x[0]).square());
    }
}

#[test]
fn products_with_zeros_have_second_gradients() {
    // x·y·z: by each pair it is the third, whichever of them are zero.
    let cases = [[0.0, 2.0, 3.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0], [2.0, 3.0, -1.0]];
    for [x, y, z] in cases {
        let v = Tensor::from_slice(&[x, y, z], [1, 3, 1], &super::device()).tracked();
        let first = v.prod([1, 2]).sum(..).grad(&[&v]).swap_remove(0);
        let row = |i: isize| {
            let of = first.select_index(1, i).sum(..).grad(&[&v]).swap_remove(0);
            of.to_vec::<f32>().expect("no mistake")
        };
        assert_eq!(first.to_vec::<f32>().expect("no mistake"), [y * z, x * z, x * y]);
        assert_eq!([row(0), row(1), row(2)], [[0.0, z, y], [z, 0.0, x], [y, x, 0.0]], "{x} {y} {z}");
    }
    check("prod", Twice, &[&[3, 5, 2]], (-2.0, 2.0), 1e-4, |x| x[0].prod([0, 2]));
}

#[test]
fn windows_of_many_elements() {
    check("long windows", Twice, &[&[40]], (-2.0, 2.0), SUMS, |x| x[0].unfold(0, 20, 3).square());
}

#[test]
fn contraction() {
    let near = (-1.5, 1.5);
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[3, 4], &[4, 2]),
        (&[4], &[4]),
        (&[4], &[4, 3]),
        (&[2, 4], &[4]),
        (&[2, 3, 4], &[4, 2]),
        (&[2, 1, 3, 2], &[3, 2, 4]),
        (&[1, 1], &[1, 5]),
    ];
    for (a, b) in shapes {
        check(&format!("matmul of {a:?} and {b:?}"), Twice, &[a, b], near, SUMS, |x| x[0].matmul(&x[1]));
    }
    check("outer", Twice, &[&[3], &[4]], near, SUMS, |x| x[0].outer(&x[1]));
    check("matmul of transposes", Twice, &[&[4, 3], &[2, 4]], near, SUMS, |x| x[0].t().matmul(&x[1].t()).tanh());
    for (spec, a, b) in [
        ("bij,bjk->bik", &[2, 2, 3][..], &[2, 3, 2][..]),
        ("ij,kj->ik", &[2, 3], &[4, 3]),
        ("ii,ij->j", &[3, 3], &[3, 2]),
    ] {
        check(spec, Twice, &[a, b], near, SUMS, |x| einsum(spec, &[&x[0], &x[1]]));
    }
}

#[test]
fn attention() {
    // Queries, keys and values [heads, length, width]; a place sees those before it, or those the mask lets through.
    let attend = |x: &[Tensor], seen: &Tensor| {
        let scores = seen.select(x[0].matmul(&x[1].t()).mul(0.5), -1e9);
        scores.softmax(-1).matmul(&x[2])
    };
    let shapes: &[&[usize]] = &[&[2, 3, 4], &[2, 3, 4], &[2, 3, 2]];
    let causal = Tensor::ones([3, 3], DType::F32, &super::device()).tril().gt(0.0);
    check("causal attention", Twice, shapes, (-1.5, 1.5), SUMS, |x| attend(x, &causal));
    // The last row may look nowhere: all places alike, and finite gradients.
    let mask =
        Tensor::from_slice(&[true, false, true, false, true, true, false, false, false], [3, 3], &super::device());
    check("masked attention", Twice, shapes, (-1.5, 1.5), SUMS, |x| attend(x, &mask));
}

#[test]
fn windows_over_pads() {
    // As a convolution sees them: [n, h, w, c] with zeros around, 2 × 3 windows in steps.
    let windows = |x: &Tensor, step: usize| {
        let x = x.pad(&[(0, 0), (1, 1), (2, 0), (0, 0)], 0.0).unfold(1, 2, step).unfold(2, 3, 1);
        x.permute(&[0, 1, 2, 4, 5, 3])
    };
    for step in [1, 2] {
        check(&format!("convolution by {step}"), Twice, &[&[1, 3, 4, 2], &[12, 2]], (-1.5, 1.5), SUMS, |x| {
            let rows = windows(&x[0], step);
            let n: usize = rows.shape().map_or(0, |s| s[..3].iter().product());
            rows.reshape([n, 12]).matmul(&x[1]).tanh()
        });
    }
}

/// `max_pool` records the nodes of its gradient only when a gradient is asked for, and ties share the gradient.
#[test]
fn max_pool_records_nothing_for_its_gradient() {
    let x = Tensor::from_slice(&[1.0f32, 3.0, 3.0, 0.0], [1, 1, 4], &super::device());
    let y = x.max_pool(Pool { stride: 1.into(), ..Pool::new(3) });
    let recipe = y.node().map(|node| node.recipe());
    let Ok(Recipe::Known { op: Op::WithRule(row, _), twin: None, .. }) = recipe else { panic!("{y:?}") };
    assert_eq!(row.name, "max_pool");
    let half = x.to_dtype(DType::F16);
    for (x, y) in [(&x, y), (&half, half.max_pool(Pool { stride: 1.into(), ..Pool::new(3) }))] {
        let g = &y.mul(Tensor::from_slice(&[1.0f32, 4.0], [1, 1, 2], &super::device())).sum(..).grad(&[x])[0];
        assert_eq!(g.to_vec::<f32>().expect("no mistake"), [0.0, 2.5, 2.5, 0.0]);
        assert_eq!(g.dtype().expect("no mistake"), x.dtype().expect("no mistake"));
    }
}

#[test]
fn values_may_have_the_gradient_of_something_else() {
    let x = super::leaf(&[2, 3], (-1.5, 1.5), 3).tracked();
    let y = x.round().with_gradient_of(&x.mul(2.0));
    assert_eq!(y.to_vec::<f64>().ok(), x.round().to_vec::<f64>().ok());
    let got = y.square().sum(..).grad(&[&x])[0].to_vec::<f64>().expect("no mistake");
    // 2y · 2
    super::compare("round", &got, &x.round().mul(4.0).to_vec::<f64>().expect("no mistake"), 1e-6);
    let error = y.with_gradient_of(&x.t()).check().expect_err("another shape");
    assert!(
        error.to_string().starts_with("with_gradient_of: f32 [2, 3] cannot have the gradient of f32 [3, 2]"),
        "{error}"
    );
}

#[test]
fn indexing() {
    let cpu = super::device();
    let index = Tensor::from_slice(&[2, 0, 2, 1, 1, 0], [2, 3], &cpu);
    let words = Tensor::from_slice(&[2, 0, 2, 2], [2, 2], &cpu);
    let vector = Tensor::from_slice(&[3, 3, 0], [3], &cpu);
    let (table, near) = (&[&[3, 4][..]], (-1.5, 1.5));
    check("gather", Twice, table, near, MAPS, |x| x[0].gather(0, &index).square());
    check("gather along rows", Twice, table, near, MAPS, |x| x[0].gather(1, &index).square());
    check("index_select", Twice, table, near, MAPS, |x| x[0].index_select(1, &vector).square());
    check("embedding", Twice, table, near, MAPS, |x| x[0].embedding(&words).square());
    check("scatter_add", Twice, &[&[3, 4], &[2, 3]], near, MAPS, |x| x[0].scatter_add(0, &index, &x[1]).square());
    check("cumsum", Twice, table, near, SUMS, |x| x[0].cumsum(1).square());
    check("sort", Twice, table, near, MAPS, |x| x[0].sort(0, true).square());
    check("topk", Twice, table, near, MAPS, |x| x[0].topk(2, 1).0.square());
    check("select", Twice, &[&[3, 4], &[4]], near, MAPS, |x| x[0].gt(&x[1]).select(x[0].square(), x[1].mul(&x[0])));
}

#[test]
fn broadcasting_is_undone_by_sums() {
    check("x + y", Twice, &[&[2, 3], &[3]], (-1.0, 1.0), MAPS, |x| x[0].add(&x[1]).square());
    check("x · y", Twice, &[&[2, 1, 3], &[4, 1]], (-1.0, 1.0), SUMS, |x| x[0].mul(&x[1]).square());
    check("x / y", Twice, &[&[], &[2, 2]], (0.5, 2.0), SUMS, |x| x[0].div(&x[1]));
    check("x used thrice", Twice, &[&[3]], (0.5, 2.0), SUMS, |x| x[0].mul(&x[0]).mul(x[0].sum(..)).add(&x[0]));
}

#[test]
fn custom_ops_bring_their_gradient() {
    let cube = CustomOp {
        name: "cube".into(),
        wgsl: "($0 * $0 * $0)".into(),
        cpu: Arc::new(|x| x[0] * x[0] * x[0]),
        grad: Some(Arc::new(|x, _, g| vec![x[0].square().mul(3.0).mul(g)])),
    };
    // The function itself is f32, so the difference is no measure: the formula is.
    let x = super::leaf(&[5], (-2.0, 2.0), 3);
    let got = Tensor::map_custom(&cube, &[&x]).sum(..).grad(&[&x])[0].to_vec::<f64>().expect("no mistake");
    let want = x.square().mul(3.0).to_vec::<f64>().expect("no mistake");
    super::compare("cube", &got, &want, 1e-6);

    let bare = CustomOp { grad: None, ..cube.clone() };
    let error = Tensor::map_custom(&bare, &[&x]).sum(..).grad(&[&x])[0].check().expect_err("has no gradient");
    assert!(error.to_string().starts_with("cube: this custom op has no gradient"), "{error}");
    let wrong = CustomOp { grad: Some(Arc::new(|_, _, g| vec![g.clone(), g.clone()])), ..cube };
    let error = Tensor::map_custom(&wrong, &[&x]).sum(..).grad(&[&x])[0].check().expect_err("one too many");
    assert!(error.to_string().contains("one tensor per input"), "{error}");
}

#[test]
fn casts_between_floats_keep_the_gradient_and_its_dtype() {
    let x = super::leaf(&[4], (0.5, 2.0), 3);
    let half = x.to_dtype(DType::F16);
    let loss = half.square().to_dtype(DType::F32).sum(..);
    let grads = loss.grad(&[&x, &half]);
    assert_eq!((grads[0].dtype().ok(), grads[1].dtype().ok()), (Some(DType::F32), Some(DType::F16)));
    let want: Vec<f64> = x.to_vec::<f64>().expect("is data").iter().map(|v| 2.0 * v).collect();
    // f16 has eleven bits.
    super::compare("f16", &grads[0].to_vec::<f64>().expect("no mistake"), &want, 2e-3);
}
