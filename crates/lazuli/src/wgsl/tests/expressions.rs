//! A broad list of expressions, each of which must be valid WGSL for every dtype that takes it.

use std::panic::Location;
use std::sync::Arc;

use super::*;
use crate::graph::{CustomOp, Op};

#[test]
fn every_row_is_valid_for_every_dtype() {
    let table = crate::ops::table();
    for dtype in DType::ALL {
        for row in &table.unary {
            if let Some(taken) = row.takes.cast(dtype).filter(|d| row.cpu.get(d.lane()).is_some()) {
                check(&[&record(Op::Unary(row), &[taken], row.gives.dtype(taken))]);
            }
        }
        for row in &table.binary {
            if let Some(taken) = row.takes.cast(dtype).filter(|d| row.cpu.get(d.lane()).is_some()) {
                check(&[&record(Op::Binary(row), &[taken, taken], row.gives.dtype(taken))]);
            }
        }
    }
}

/// An op on memory of these dtypes.
#[track_caller]
fn record(op: Op, inputs: &[DType], gives: DType) -> Tensor {
    let inputs: Vec<Tensor> = inputs.iter().map(|dtype| data([64], *dtype)).collect();
    let nodes: Vec<&NodeRef> = inputs.iter().map(|x| x.node().expect("a good tensor")).collect();
    Tensor::record(op, &nodes, [64].into(), gives, Location::caller())
}

#[test]
fn reductions_are_valid_for_every_dtype_and_shape() {
    let shapes: &[(&[usize], i32)] = &[
        (&[8, 1024], -1),
        (&[300, 100], 0),
        (&[300, 101], 0),
        (&[5, 7], 1),
        (&[5, 4], 1),
        (&[3, 5, 64], 1),
        (&[1, 70_000], 1),
        (&[16, 2], 0),
        (&[512, 16], 0),
        (&[2, 0], 1),
    ];
    for dtype in DType::ALL {
        for (shape, axis) in shapes {
            let x = data(*shape, dtype);
            check(&[&x.sum(*axis)]);
            check(&[&x.mean(*axis)]);
            if shape.iter().all(|n| *n > 0) {
                check(&[&x.max(*axis)]);
                check(&[&x.argmax(*axis)]);
                check(&[&x.softmax(*axis)]);
                check(&[&x.any(*axis), &x.prod(*axis)]);
            }
        }
    }
}

#[test]
fn long_and_large_reductions_are_valid() {
    check(&[&data([1 << 20], DType::F16).sum(..)]);
    check(&[&data([1_000_003], DType::F32).square().sum(..).sqrt()]);
    check(&[&data([300, 70_001], DType::U8).max(1)]);
    check(&[&data([70_000, 100], DType::BF16).sum(0)]);
    check(&[&data([40_000, 8], DType::F32).var(0, 1)]);
}

#[test]
fn normalisations_are_valid() {
    for n in [16, 50, 1024, 6000] {
        let x = data([96, n], DType::F32);
        let (w, b) = (data([n], DType::F16), data([n], DType::F32));
        check(&[&x.layer_norm(-1, Some(&w), Some(&b), 1e-5)]);
        check(&[&x.rms_norm(-1, Some(&w), 1e-5).to_dtype(DType::BF16)]);
        check(&[&x.log_softmax(-1), &x.logsumexp(-1)]);
        check(&[&x.layer_norm(0, None, None, 1e-5)]);
    }
}

#[test]
fn views_are_valid() {
    for dtype in DType::ALL {
        let x = data([12, 20], dtype);
        check(&[&x.t().flip(0)]);
        check(&[&x.t().reshape([240]).slice(&[(1, 200, 3)])]);
        check(&[&x.narrow(1, 1, 17)]);
        check(&[&x.pad(&[(1, 2), (3, 4)], 1)]);
        check(&[&x.pad(&[(1, 2), (3, 4)], 1).t().reshape([27, 15])]);
        check(&[&x.repeat(&[2, 3])]);
        check(&[&Tensor::cat(&[&x.maximum(&x.flip(0)), &x.t().reshape([12, 20])], 1)]);
        check(&[&Tensor::cat(&[&x.narrow(0, 0, 3), &x.narrow(0, 3, 2)], 0).narrow(0, 1, 3)]);
        check(&[&x.tril()]);
    }
    check(&[&data([2, 3, 2, 3, 2, 3, 2, 4], DType::F32).permute(&[7, 0, 6, 1, 5, 2, 4, 3])]);
}

#[test]
fn gathers_random_numbers_and_own_ops_are_valid() {
    let idx = data([5], DType::I32);
    for dtype in DType::ALL {
        check(&[&data([16, 8], dtype).index_select(0, &idx)]);
        check(&[&data([16, 7], dtype).index_select(1, &idx.to_dtype(DType::U8)).sum(0)]);
        check(&[&data([16, 8], dtype).embedding(&idx)]);
    }
    check(&[&Tensor::rand([1000], 7, &Device::cpu())]);
    check(&[&Tensor::randn([4, 4], 7, &Device::cpu())]);
    check(&[&Tensor::arange(0.0, 10.0, 1.0, &Device::cpu())]);
    check(&[&Tensor::eye(5, DType::F16, &Device::cpu())]);
    let own = CustomOp {
        name: "my blend!".into(),
        wgsl: "mix($0, $1, 0.25) + $10".into(),
        cpu: Arc::new(|x| x[0]),
        grad: None,
    };
    let inputs: Vec<Tensor> = (0..11).map(|_| data([16], DType::F32)).collect();
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    check(&[&Tensor::map_custom(&own, &inputs).exp()]);
}

#[test]
fn matmuls_are_valid_for_every_dtype_and_shape() {
    for dtype in DType::ALL {
        for (m, k, n) in [(64, 48, 32), (1, 100, 64), (5, 7, 3), (16, 0, 8), (3, 4, 1)] {
            let (a, b) = (data([m, k], dtype), data([k, n], dtype));
            check(&[&a.matmul(&b)]);
            let turned = data([n, k], dtype);
            check(&[&a.matmul(&turned.t()).add(&data([n], DType::F32)).relu()]);
        }
        check(&[&data([3, 2, 8, 16], dtype).matmul(&data([2, 16, 12], dtype)).to_dtype(DType::F16)]);
    }
    let (a, b) = (data([2, 300_000], DType::F32), data([300_000, 3], DType::F32));
    check(&[&a.matmul(&b).tanh()]);
}

#[test]
fn many_inputs_and_outputs_are_valid() {
    let inputs: Vec<Tensor> = (0..40).map(|_| data([1000], DType::F32)).collect();
    check(&[&inputs[1..].iter().fold(inputs[0].clone(), |sum, x| sum + x)]);
    let (w, g, m, v) = (data([64], DType::F32), data([64], DType::F32), data([64], DType::F32), data([64], DType::F32));
    let m2 = m.mul(0.9).add(g.mul(0.1));
    let v2 = v.mul(0.99).add(g.square().mul(0.01));
    check(&[&(&w - &m2 / (v2.sqrt() + 1e-8) * 0.001), &m2, &v2]);
}
