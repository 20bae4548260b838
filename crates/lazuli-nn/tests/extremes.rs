//! Windows, strides, pads, dilations and groups that no image has: an error, never a panic. Tests are built with checks of
//! arithmetic, so that a product that is too large would be one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lazuli::{Device, Error, Tensor};
use lazuli_nn::{
    AvgPool2d, BatchNorm, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, Embedding, Gru, Layer, Linear, Lstm,
    MaxPool2d, MultiHeadAttention, Window,
};

const SIZES: [usize; 7] = [0, 1, 2, 1 << 33, isize::MAX as usize, isize::MAX as usize + 1, usize::MAX];

/// Whether a call panics, or computing what it made, where that is small.
fn check(what: String, panics: &mut Vec<String>, call: impl FnOnce() -> Tensor) {
    let whole = || {
        let y = call();
        let n_elems = y.shape().map_or(usize::MAX, |shape| lazuli::Shape::from(shape).n_elems());
        if n_elems <= 1000 {
            // Little may come of much: of an image with billions of zeros around it, say.
            let read = y.to_vec::<f32>();
            assert!(matches!(read, Ok(_) | Err(Error::OutOfMemory(_))), "{read:?}");
        }
    };
    if catch_unwind(AssertUnwindSafe(whole)).is_err() {
        panics.push(what);
    }
}

#[test]
fn no_window_makes_a_convolution_panic() {
    let sum = catch_unwind(|| std::hint::black_box(usize::MAX) + std::hint::black_box(1));
    assert!(sum.is_err(), "build tests with overflow-checks = true");
    let (cpu, mut panics, plain) = (Device::cpu(), Vec::new(), Window::default());
    let (lines, images) = (Tensor::rand([1, 2, 5], 1, &cpu), Tensor::rand([1, 2, 5, 5], 1, &cpu));
    let one = Conv1d::new(2, 2, 2, plain, 1, &cpu);
    let two = Conv2d::new(2, 2, 2, plain, 1, &cpu);
    let back = ConvTranspose1d::new(2, 2, 2, plain, 1, &cpu);
    let back_two = ConvTranspose2d::new(2, 2, 2, plain, 1, &cpu);
    for n in SIZES {
        for m in SIZES {
            let windows = [
                Window { stride: n, padding: m, ..plain },
                Window { stride: n, dilation: m, ..plain },
                Window { padding: n, dilation: m, ..plain },
                Window { padding: n, groups: m, ..plain },
                Window { stride: n, padding: n, dilation: m, groups: m },
            ];
            for window in windows {
                let what = |name: &str| format!("{name} with {window:?}");
                check(what("n_windows"), &mut panics, || {
                    assert!(window.n_windows(n, m) >= 1);
                    Tensor::scalar(0.0, &cpu)
                });
                let (weight, bias) = (one.weight.clone(), one.bias.clone());
                check(what("conv1d"), &mut panics, || Conv1d { weight, bias, window }.forward(&lines));
                let (weight, bias) = (two.weight.clone(), two.bias.clone());
                check(what("conv2d"), &mut panics, || Conv2d { weight, bias, window }.forward(&images));
                let (weight, bias) = (back.weight.clone(), back.bias.clone());
                check(what("conv_transpose1d"), &mut panics, || {
                    ConvTranspose1d { weight, bias, window }.forward(&lines)
                });
                let (weight, bias) = (back_two.weight.clone(), back_two.bias.clone());
                check(what("conv_transpose2d"), &mut panics, || {
                    ConvTranspose2d { weight, bias, window }.forward(&images)
                });
            }
            let (size, stride) = (n, m);
            check(format!("max_pool2d {n}, {m}"), &mut panics, || MaxPool2d { size, stride }.forward(&images));
            check(format!("avg_pool2d {n}, {m}"), &mut panics, || AvgPool2d { size, stride }.forward(&images));
        }
    }
    assert!(panics.is_empty(), "{} calls panicked: {panics:#?}", panics.len());
}

#[test]
fn no_size_makes_a_layer_panic() {
    let (cpu, mut panics, plain) = (Device::cpu(), Vec::new(), Window::default());
    let x = Tensor::rand([1, 2, 2], 1, &cpu);
    // Sizes that memory could be found for would take it; these no machine has.
    for n in [0, 1 << 60, isize::MAX as usize, usize::MAX] {
        check(format!("linear {n}"), &mut panics, || Linear::new(2, n, 1, &cpu).forward(&x));
        check(format!("embedding {n}"), &mut panics, || Embedding::new(n, 2, 1, &cpu).weight);
        check(format!("lstm {n}"), &mut panics, || Lstm::new(2, n, 1, &cpu).forward(&x));
        check(format!("gru {n}"), &mut panics, || Gru::new(2, n, 1, &cpu).forward(&x));
        check(format!("batch_norm {n}"), &mut panics, || BatchNorm::new(n, &cpu).forward(&x));
        check(format!("attention {n}"), &mut panics, || MultiHeadAttention::new(2, n, 1, &cpu).forward(&x));
        check(format!("conv {n}"), &mut panics, || Conv2d::new(2, 2, n, plain, 1, &cpu).weight);
        check(format!("conv of {n}"), &mut panics, || Conv2d::new(n, n, n, plain, 1, &cpu).weight);
    }
    assert!(panics.is_empty(), "{} calls panicked: {panics:#?}", panics.len());
}
