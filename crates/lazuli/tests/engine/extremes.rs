//! Sizes, axes, steps, pads, repeats and offsets that no tensor has: an error that says so, or what Python would give, and
//! never a panic. Tests are built with checks of arithmetic, so that a sum that is too large would be one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lazuli::ops::einsum;
use lazuli::{Axes, Batch, DType, Device, KernelInfo, Shape, Slice, Tensor, Weights, keep};

use crate::device::device;
use crate::shared;

const SIZES: [usize; 8] = [0, 1, 3, 1 << 33, 1 << 61, isize::MAX as usize, isize::MAX as usize + 1, usize::MAX];
const AXES: [i32; 6] = [0, -1, 7, i32::MAX, i32::MIN + 1, i32::MIN];
const BOUNDS: [i64; 7] = [0, -1, 2, i64::MAX - 1, i64::MAX, i64::MIN + 1, i64::MIN];

/// Notes a call that panics. What it makes must be planned without one, and be computed where that is little work.
fn check(what: &str, call: impl FnOnce() -> Vec<Tensor>, panics: &mut Vec<String>) {
    let whole = || {
        for y in call().iter().take(4) {
            let Ok(shape) = y.shape() else { continue };
            // Thousands of shaders would take a GPU minutes, and find nothing in what is recorded.
            if device() != Device::cpu() {
                continue;
            }
            let n_elems = Shape::from(shape).n_elems();
            let plan = y.explain().unwrap_or_else(|error| panic!("{error}"));
            let work = |kernel: &KernelInfo| kernel.flops.max(kernel.bytes_read).max(kernel.bytes_written);
            // What is planned from much need not be much, but takes as long.
            if n_elems <= 1000 && plan.kernels.iter().all(|kernel| work(kernel) < 1 << 20) {
                y.to_vec::<f64>().unwrap_or_else(|error| panic!("{error}"));
            }
        }
    };
    if catch_unwind(AssertUnwindSafe(whole)).is_err() {
        panics.push(what.to_string());
    }
}

#[test]
fn tests_check_arithmetic() {
    let sum = catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
    assert!(sum.is_err(), "build tests with overflow-checks = true");
}

#[test]
fn no_axis_or_size_makes_an_op_panic() {
    let _device = shared();
    let mut panics = Vec::new();
    let x = Tensor::arange(0.0f32, 24.0, 1.0, &device()).reshape([2, 3, 4]).compute().unwrap();
    let empty = Tensor::zeros([0, 3], DType::F32, &device());
    let huge = Tensor::ones([1 << 40, 3], DType::F32, &device());
    let index = Tensor::from_slice(&[0, 1], [2], &device());
    let mut run = |what: String, call: &dyn Fn(&Tensor) -> Vec<Tensor>| {
        for (name, x) in [("x", &x), ("empty", &empty), ("huge", &huge)] {
            check(&format!("{name}.{what}"), || call(x), &mut panics);
        }
    };
    for a in AXES {
        run(format!("axis {a}"), &|x| {
            let mut made = vec![
                x.sum(a),
                x.mean(keep(a)),
                x.max(a),
                x.argmax(a),
                x.var(a, 1),
                x.std(a, usize::MAX),
                x.softmax(a),
                x.cumsum(a),
                x.sort(a, true),
                x.argsort(a, false),
                x.flip(a),
                x.squeeze(a),
                x.unsqueeze(a),
                x.permute(&[a]),
                x.permute(&[0, a, 1]),
                x.transpose(a, 0),
                x.transpose(0, a),
                x.tril_k(a),
                x.triu_k(a),
                x.log_softmax(a),
                x.layer_norm(a, None, None, 1e-5),
                x.rms_norm(a, None, 1e-5),
                x.norm(a),
                x.logsumexp(a),
                x.any(a),
                x.all(a),
                x.gather(a, &index),
                x.index_select(a, &index),
                x.scatter_add(a, &index, &index),
                Tensor::cat(&[x, x], a),
                Tensor::stack(&[x, x], a),
                x.sum([0, a]),
                x.max(Axes::from(&[a, a][..])),
            ];
            made.truncate(64);
            made
        });
        for n in SIZES {
            run(format!("axis {a}, size {n}"), &|x| {
                let (values, places) = x.topk(n, a);
                let mut made = vec![values, places, x.unfold(a, n, 1), x.unfold(a, 1, n), x.unfold(a, n, n)];
                made.extend([x.narrow(a, n, 1), x.narrow(a, 0, n), x.narrow(a, n, n), x.var(a, n)]);
                made.extend(x.split(a, &[n, n]));
                if x.shape().unwrap()[0] < 100 || a != 0 {
                    made.extend(x.chunk(a, n));
                }
                made
            });
        }
    }
    for n in SIZES {
        run(format!("size {n}"), &|x| {
            let ints = x.slice(&[(0, 2, 1); 2]).to_dtype(DType::I32);
            vec![
                x.reshape([n]),
                x.reshape([n, n]),
                x.reshape([n, 0]),
                x.broadcast_to([n, 3]),
                x.broadcast_to([n, n, 3]),
                x.repeat([n]),
                x.repeat([n, n]),
                x.repeat([n, 2, 1]),
                x.repeat([0, n]),
                x.pad(&[(n, 0)], 1.0),
                x.pad(&[(0, n)], 1.0),
                x.pad(&[(n, n), (n, n)], 0.0),
                ints.one_hot(n),
                x.select_index(0, n),
            ]
        });
        for m in SIZES {
            run(format!("sizes {n}, {m}"), &|x| {
                let (padded, windows) = (x.pad(&[(n, m)], 0.0), x.unfold(0, 1, n).unfold(0, 1, m));
                vec![padded.slice(&[(1, m, n)]), padded.flip(0).unfold(0, 2, m), windows, padded.repeat([m]).sum(0)]
            });
        }
    }
    for start in BOUNDS {
        for end in BOUNDS {
            for step in BOUNDS {
                run(format!("slice {start}..{end} by {step}"), &|x| {
                    vec![x.slice(&[(start, end, step)]), x.slice(&[(0, 1, 1), (start, end, step)])]
                });
            }
        }
        run(format!("index {start}"), &|x| {
            vec![x.slice(&[Slice::Index(start)][..]), x.select_index(1, start), x.slice(lazuli::s![..=start])]
        });
    }
    assert!(panics.is_empty(), "{} calls panicked: {panics:#?}", panics.len());
}

#[test]
fn no_size_makes_what_enters_or_leaves_panic() {
    let _device = shared();
    let (device, mut panics) = (device(), Vec::new());
    for n in SIZES {
        check(
            &format!("sources of {n}"),
            || {
                let shapes = [Shape::from([n]), Shape::from([n, n]), Shape::from([n, 0, n])];
                let mut made = Vec::new();
                for shape in shapes {
                    assert_eq!(shape.n_elems() == 0, n == 0 || shape.rank() == 3);
                    made.extend([Tensor::zeros(shape, DType::F32, &device), Tensor::rand(shape, n as u64, &device)]);
                    made.extend([Tensor::randn(shape, n as u64, &device), Tensor::full(shape, 2u8, &device)]);
                    made.extend([
                        Tensor::from_slice(&[1.0f32], shape, &device),
                        Tensor::from_vec(vec![1], shape, &device),
                    ]);
                }
                made.extend([Tensor::eye(n, DType::I32, &device), Tensor::linspace(0.0, 1.0, n, &device)]);
                made.extend([Tensor::arange(0, n as i64, 1, &device), Tensor::arange(0.0, n as f64, 1e-30, &device)]);
                made.extend([Tensor::arange(i64::MIN, i64::MAX, 1, &device), Tensor::arange(n as u32, 0, 1, &device)]);
                made.truncate(64);
                made
            },
            &mut panics,
        );
        for m in SIZES {
            check(
                &format!("weights of {n} × {m}"),
                || {
                    let mut weights = Weights::new(&device);
                    let _ = (weights.upload("w", &[], n, m), weights.upload("w", &[1.0], n, m));
                    weights.upload("w", &[1.0; 6], 3, 2).unwrap();
                    let _ = (weights.matmul("w", &[], &mut [], n), weights.matmul("w", &[0.0; 2], &mut [0.0; 3], m));
                    let mut batch = Batch::new(&device);
                    let a = batch.upload(&[1.0; 6]);
                    let y = batch.matmul(a, a, n, m, n);
                    vec![batch.tensor(y)]
                },
                &mut panics,
            );
            check(
                &format!("products of {n} and {m}"),
                || {
                    let (a, b) = (Tensor::ones([n, 1], DType::F32, &device), Tensor::ones([1, m], DType::F32, &device));
                    vec![a.matmul(&b), a.add(&b), einsum("ab,bc->ac", &[&a, &b]), a.t().matmul(&a), a.dot(&b)]
                },
                &mut panics,
            );
        }
    }
    assert!(panics.is_empty(), "{} calls panicked: {panics:#?}", panics.len());
}

#[test]
fn a_size_that_cannot_be_is_named_with_its_op() {
    let _device = shared();
    let (device, x) = (device(), Tensor::ones([4], DType::F32, &device()));
    let text = |x: Tensor| x.check().unwrap_err().to_string();
    assert!(text(x.repeat([usize::MAX])).starts_with("repeat: [18446744073709551615] has more elements than can be"));
    assert!(text(x.pad(&[(usize::MAX, 1)], 0.0)).starts_with("pad: [18446744073709551615] has more elements than"));
    assert!(text(Tensor::eye(usize::MAX, DType::F32, &device)).starts_with("eye: [18446744073709551615, 18446744073"));
    // A step is never taken where there is a single window.
    assert_eq!(x.unfold(0, 4, usize::MAX).to_vec::<f32>().unwrap(), [1.0; 4]);
    let empty = Weights::new(&device).upload("w", &[], usize::MAX, 0).map_err(|error| error.to_string());
    assert!(
        empty.as_ref().is_err_and(|text| text.starts_with("from_slice: [18446744073709551615, 0] has")),
        "{empty:?}"
    );
}
