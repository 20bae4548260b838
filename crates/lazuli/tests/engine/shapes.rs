//! Nothing, one element, and eight axes: every family of op takes every shape there is.

use lazuli::{DType, Tensor, keep};
use lazuli_check::methods::{BINARY, SHAPED, UNARY, call_binary, call_shaped, call_unary};

use crate::device::device;
use crate::shared;

const SHAPES: [&[usize]; 12] = [
    &[],
    &[0],
    &[1],
    &[0, 3],
    &[2, 0, 3],
    &[1, 1],
    &[5, 1],
    &[1, 1, 1, 1, 1, 1, 1, 1],
    &[2, 1, 3, 1, 2, 1, 2, 2],
    &[1, 2, 0, 1, 2, 1, 2, 2],
    &[2, 2, 2, 2, 2, 2, 2, 2],
    &[3, 4],
];

fn data(shape: &[usize], dtype: DType) -> Tensor {
    let n: usize = shape.iter().product();
    let values = (0..n).map(|i| (i % 7) as f32 * 0.5 - 1.0).collect::<Vec<_>>();
    Tensor::from_vec(values, shape, &device()).to_dtype(dtype)
}

/// It has this shape, and as many elements.
#[track_caller]
fn check_shape(what: &str, out: Tensor, shape: &[usize]) {
    assert_eq!(out.shape().unwrap_or_else(|e| panic!("{what}: {e}")), shape, "{what}");
    let n = out.to_vec::<f64>().unwrap_or_else(|e| panic!("{what}: {e}")).len();
    assert_eq!(n, shape.iter().product::<usize>(), "{what}");
}

#[test]
fn elementwise_ops_take_every_shape() {
    let _device = shared();
    for shape in SHAPES {
        let (x, i) = (data(shape, DType::F32), data(shape, DType::I32));
        for name in UNARY {
            let x = if *name == "bit_not" { &i } else { &x };
            check_shape(&format!("{name} of {shape:?}"), call_unary(name, x), shape);
        }
        for name in BINARY {
            let x = if name.starts_with("bit_") || name.starts_with("sh") { &i } else { &x };
            check_shape(&format!("{name} of {shape:?}"), call_binary(name, x, x), shape);
            check_shape(&format!("{name} of {shape:?} and 1"), call_binary(name, x, 1), shape);
        }
        for name in SHAPED {
            check_shape(name, call_shaped(name, &x, 0.5), shape);
        }
        check_shape("select", x.gt(0.0).select(&x, 0.0), shape);
        for dtype in DType::ALL {
            check_shape("cast", x.to_dtype(dtype), shape);
        }
    }
}

#[test]
fn reductions_take_every_shape() {
    let _device = shared();
    for shape in SHAPES {
        let x = data(shape, DType::F32);
        let empty = shape.contains(&0);
        let ones = vec![1; shape.len()];
        for (what, out) in [
            ("sum", x.sum(..)),
            ("prod", x.prod(..)),
            ("mean", x.mean(..)),
            ("var", x.var(.., 1)),
            ("norm", x.norm(..)),
            ("any", x.any(..)),
            ("all", x.all(..)),
        ] {
            check_shape(&format!("{what} of {shape:?}"), out, &[]);
        }
        check_shape("sum", x.sum(keep(..)), &ones);
        if !empty {
            for (what, out) in
                [("max", x.max(..)), ("min", x.min(..)), ("argmax", x.argmax(..)), ("logsumexp", x.logsumexp(..))]
            {
                check_shape(&format!("{what} of {shape:?}"), out, &[]);
            }
        }
        for axis in 0..shape.len() {
            let mut rest = shape.to_vec();
            rest.remove(axis);
            let axis = axis as i32;
            check_shape("sum", x.sum(axis), &rest);
            check_shape("std", x.std(axis, 0), &rest);
            for (what, out) in [
                ("softmax", x.softmax(axis)),
                ("log_softmax", x.log_softmax(axis)),
                ("layer_norm", x.layer_norm(axis, None, None, 1e-5)),
                ("rms_norm", x.rms_norm(axis, None, 1e-5)),
                ("cumsum", x.cumsum(axis)),
                ("sort", x.sort(axis, true)),
                ("argsort", x.argsort(axis, false)),
                ("topk", x.topk(shape[axis as usize], axis).0),
            ] {
                check_shape(&format!("{what} of {shape:?} along {axis}"), out, shape);
            }
        }
    }
}

#[test]
fn movement_takes_every_shape() {
    let _device = shared();
    for shape in SHAPES {
        let x = data(shape, DType::F32);
        let n: usize = shape.iter().product();
        let mut back = shape.to_vec();
        back.reverse();
        let order: Vec<i32> = (0..shape.len() as i32).rev().collect();
        check_shape("flatten", x.flatten(), &[n]);
        check_shape("reshape", x.reshape(&back), &back);
        check_shape("permute", x.permute(&order), &back);
        check_shape("permute", x.permute(&order).add(1.0).permute(&order), shape);
        check_shape("flip", x.flip(..), shape);
        check_shape("squeeze", x.squeeze(..), &shape.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>());
        check_shape("pad", x.pad(&vec![(1, 0); shape.len()], 3.0), &shape.iter().map(|d| d + 1).collect::<Vec<_>>());
        check_shape("repeat", x.repeat(vec![2; shape.len()]), &shape.iter().map(|d| d * 2).collect::<Vec<_>>());
        if shape.len() < 8 {
            check_shape("stack", Tensor::stack(&[&x, &x], -1), &[shape, &[2]].concat());
            check_shape("broadcast_to", x.broadcast_to([&[3], shape].concat()), &[&[3], shape].concat());
        }
        for axis in 0..shape.len() {
            let mut twice = shape.to_vec();
            twice[axis] *= 2;
            check_shape("cat", Tensor::cat(&[&x, &x], axis as i32), &twice);
            let mut none = shape.to_vec();
            none[axis] = 0;
            check_shape("narrow", x.narrow(axis as i32, shape[axis], 0), &none);
            check_shape("cat", Tensor::cat(&[&x, &x.narrow(axis as i32, 0, 0)], axis as i32), shape);
        }
        if shape.len() >= 2 {
            check_shape("tril", x.tril(), shape);
            check_shape("t", x.t().exp().t(), shape);
        }
    }
}

#[test]
fn contraction_and_indexing_take_every_shape() {
    let _device = shared();
    for (a, b, c) in [
        (&[0, 3][..], &[3, 4][..], &[0, 4][..]),
        (&[2, 0], &[0, 4], &[2, 4]),
        (&[2, 3], &[3, 0], &[2, 0]),
        (&[1, 1], &[1, 1], &[1, 1]),
        (&[0], &[0], &[]),
        (&[0], &[0, 3], &[3]),
        (&[1, 1, 1, 1, 1, 1, 2, 3], &[2, 1, 2, 1, 2, 1, 3, 2], &[2, 1, 2, 1, 2, 1, 2, 2]),
        (&[0, 2, 3], &[3, 2], &[0, 2, 2]),
    ] {
        let out = data(a, DType::F32).matmul(&data(b, DType::F32));
        check_shape(&format!("{a:?} × {b:?}"), out.clone(), c);
        if a.last() == Some(&0) {
            // A sum of nothing.
            assert!(out.to_vec::<f32>().unwrap().iter().all(|v| *v == 0.0), "{a:?} × {b:?}");
        }
    }
    let cpu = device();
    for shape in SHAPES.iter().filter(|s| !s.is_empty()) {
        let x = data(shape, DType::F32);
        let mut none = shape.to_vec();
        none[0] = 0;
        check_shape("gather", x.gather(0, &Tensor::zeros(&none, DType::I32, &cpu)), &none);
        check_shape("index_select", x.index_select(0, &Tensor::zeros([0], DType::I32, &cpu)), &none);
        check_shape("scatter_add", x.scatter_add(0, &Tensor::zeros(&none, DType::I32, &cpu), &x), shape);
        if !shape.contains(&0) {
            check_shape("gather", x.gather(0, &Tensor::zeros(*shape, DType::U8, &cpu)), shape);
            check_shape("scatter_add", x.scatter_add(0, &Tensor::zeros(*shape, DType::I32, &cpu), &x), shape);
        }
    }
    check_shape("one_hot", Tensor::zeros([0], DType::I32, &cpu).one_hot(3), &[0, 3]);
    check_shape("embedding", data(&[5, 2], DType::F32).embedding(&Tensor::zeros([0, 2], DType::I32, &cpu)), &[0, 2, 2]);
    check_shape("eye", Tensor::eye(0, DType::F32, &cpu), &[0, 0]);
    check_shape("rand", Tensor::rand([2, 0], 1, &cpu), &[2, 0]);
    check_shape("linspace", Tensor::linspace(0.0, 1.0, 1, &cpu), &[1]);
    check_shape("arange", Tensor::arange(3, 3, 1, &cpu), &[0]);
}

#[test]
fn what_is_made_of_nothing_is_what_numpy_makes_of_it() {
    let _device = shared();
    let x = data(&[2, 0], DType::F32);
    let floats = |t: Tensor| t.to_vec::<f32>().unwrap();
    assert_eq!(floats(x.sum(1)), [0.0, 0.0]);
    assert_eq!(floats(x.prod(1)), [1.0, 1.0]);
    assert!(floats(x.mean(1)).iter().all(|v| v.is_nan()));
    assert!(floats(x.var(1, 0)).iter().all(|v| v.is_nan()));
    assert_eq!(floats(x.norm(1)), [0.0, 0.0]);
    assert_eq!(x.any(1).to_vec::<bool>().unwrap(), [false, false]);
    assert_eq!(x.all(1).to_vec::<bool>().unwrap(), [true, true]);
    assert_eq!(floats(x.pad(&[(0, 0), (1, 1)], 7.0)), [7.0; 4]);
    assert!(x.max(0).shape().is_ok(), "no row is left to have a greatest");
}
