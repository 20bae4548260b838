//! Layers against plain loops, and what they promise about modes, names and gradients, on the CPU or on what
//! `LAZULI_TEST_DEVICE` names.

use lazuli::{DType, Tensor};
use lazuli_check::testing::device;
use lazuli_nn::*;

/// Sums of tens of products of numbers below 1.
const TOLERANCE: f32 = 2e-5;

#[track_caller]
fn close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= TOLERANCE * (1.0 + w.abs()), "element {i} is {g}, not {w}");
    }
}

/// A convolution by its definition. Shapes `[n, c, h, w]` and `[o, c / groups, k, k]`.
fn reference(x: &[f32], xs: [usize; 4], w: &[f32], ws: [usize; 4], win: Window) -> (Vec<f32>, [usize; 4]) {
    let [n, c, h, width] = xs;
    let [o, cg, kh, kw] = ws;
    let (oh, ow) = (win.n_windows(h, kh), win.n_windows(width, kw));
    let mut y = vec![0.0; n * o * oh * ow];
    for (i, y) in y.iter_mut().enumerate() {
        let (b, oc, r, q) = (i / (o * oh * ow), i / (oh * ow) % o, i / ow % oh, i % ow);
        for ic in 0..cg {
            for (a, b2) in (0..kh).flat_map(|a| (0..kw).map(move |b2| (a, b2))) {
                let (yy, xx) = (r * win.stride + a * win.dilation, q * win.stride + b2 * win.dilation);
                let (Some(yy), Some(xx)) = (yy.checked_sub(win.padding), xx.checked_sub(win.padding)) else { continue };
                if yy < h && xx < width {
                    let channel = oc / (o / win.groups) * cg + ic;
                    *y += x[((b * c + channel) * h + yy) * width + xx] * w[((oc * cg + ic) * kh + a) * kw + b2];
                }
            }
        }
    }
    (y, [n, o, oh, ow])
}

#[test]
fn half_floats_whose_variance_is_too_large_for_them_are_normalised() {
    let cpu = device();
    let x = Tensor::from_slice(&[0.0f32, 1000.0, -2000.0, 3000.0], [4, 1], &cpu);
    let want = BatchNorm::new(1, &cpu).forward(&x).to_vec::<f32>().unwrap();
    let half = x.to_dtype(DType::F16);
    let got = BatchNorm::new(1, &cpu).forward(&half).to_vec::<f32>().unwrap();
    assert_eq!(got, want, "the weights are f32, so the result is");
    let mut narrow = BatchNorm::new(1, &cpu);
    (narrow.weight, narrow.bias) = (narrow.weight.to_dtype(DType::F16), narrow.bias.to_dtype(DType::F16));
    for mode in [Mode::Train, Mode::Eval] {
        narrow.mode = mode;
        let y = narrow.forward(&half);
        assert_eq!(y.dtype().unwrap(), DType::F16);
        let wide = BatchNorm { mode, ..BatchNorm::new(1, &cpu) };
        wide.mean.set(narrow.mean.get());
        wide.var.set(narrow.var.get());
        let want = wide.forward(&x).to_dtype(DType::F16).to_vec::<f32>().unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), want);
    }
}

#[test]
fn losses_of_half_floats_round_once() {
    let cpu = device();
    let x = Tensor::from_slice(&[300.0f32, -10.3, 7.1, 0.01], [2, 2], &cpu).to_dtype(DType::F16);
    let y = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.25], [2, 2], &cpu).to_dtype(DType::F16);
    let labels = Tensor::from_slice(&[1i32, 0], [2], &cpu);
    let wide = |t: &Tensor| t.to_dtype(DType::F32);
    let check = |name: &str, half: Tensor, exact: Tensor| {
        assert_eq!(half.dtype().unwrap(), DType::F16, "{name}");
        let want = exact.to_dtype(DType::F16).item::<f32>().unwrap();
        assert_eq!(half.item::<f32>().unwrap(), want, "{name}");
    };
    check("mse", loss::mse(&x, &y), loss::mse(&wide(&x), &wide(&y)));
    check("l1", loss::l1(&x, &y), loss::l1(&wide(&x), &wide(&y)));
    check("huber", loss::huber(&x, &y, 0.3), loss::huber(&wide(&x), &wide(&y), 0.3));
    check("bce", loss::bce_with_logits(&x, &y), loss::bce_with_logits(&wide(&x), &wide(&y)));
    check("kl", loss::kl(&x, &y), loss::kl(&wide(&x), &wide(&y)));
    check(
        "cross_entropy",
        loss::smooth_cross_entropy(&x, &labels, 0.1),
        loss::smooth_cross_entropy(&wide(&x), &labels, 0.1),
    );
}

#[test]
fn convolutions_are_their_definition() {
    let cpu = device();
    let windows = [
        Window::default(),
        Window { padding: 1, ..Window::default() },
        Window { stride: 2, padding: 1, ..Window::default() },
        Window { dilation: 2, padding: 2, ..Window::default() },
        Window { groups: 2, padding: 1, ..Window::default() },
        Window { groups: 4, stride: 2, dilation: 2, padding: 2 },
    ];
    for window in windows {
        let xs = [2, 4, 7, 8];
        let x = Tensor::rand(xs, 3, &cpu).sub(0.5);
        let mut conv = Conv2d::new(4, 8, 3, window, 1, &cpu);
        conv.bias = None;
        let ws = conv.weight.dims::<4>().unwrap();
        let (want, shape) =
            reference(&x.to_vec::<f32>().unwrap(), xs, &conv.weight.to_vec::<f32>().unwrap(), ws, window);
        let y = conv.forward(&x);
        assert_eq!(y.shape().unwrap(), shape, "{window:?}");
        close(&y.to_vec::<f32>().unwrap(), &want);
    }
}

#[test]
fn convolutions_too_large_to_copy_their_windows_are_their_definition() {
    let (xs, window) = ([1, 64, 120, 124], Window { padding: 1, ..Window::default() });
    let x = Tensor::rand(xs, 3, &device()).sub(0.5);
    let conv = Conv2d { bias: None, ..Conv2d::new(64, 2, 3, window, 1, &device()) };
    let weight = conv.weight.to_vec::<f32>().unwrap();
    let (want, shape) = reference(&x.to_vec::<f32>().unwrap(), xs, &weight, [2, 64, 3, 3], window);
    let y = conv.forward(&x);
    assert_eq!(y.shape().unwrap(), shape);
    // Less memory than the windows would take.
    assert!(y.explain().unwrap().peak_temp_bytes < 4 * 120 * 124 * 64 * 9 / 2);
    close(&y.to_vec::<f32>().unwrap(), &want);
}

#[test]
fn ties_of_a_pool_share_its_gradient() {
    let x = Tensor::from_slice(&[1.0f32, 3.0, 3.0, 0.0, 3.0, 2.0, 2.0, 2.0], [1, 1, 2, 4], &device()).tracked();
    let y = MaxPool2d::new(2).forward(&x);
    assert_eq!(y.to_vec::<f32>().unwrap(), [3.0, 3.0]);
    let g = y.mul(Tensor::from_slice(&[2.0f32, 4.0], [2], &device())).sum(..).grad(&[&x]);
    assert_eq!(g[0].to_vec::<f32>().unwrap(), [0.0, 1.0, 4.0, 0.0, 1.0, 0.0, 0.0, 0.0]);
    // Overlapping windows add up, and an average gives everyone the same.
    let x = Tensor::ones([1, 1, 2, 3], lazuli::DType::F32, &device());
    let overlapping: [&dyn Layer; 2] = [&MaxPool2d { size: 2, stride: 1 }, &AvgPool2d { size: 2, stride: 1 }];
    for pool in overlapping {
        let g = pool.forward(&x).sum(..).grad(&[&x])[0].to_vec::<f32>().unwrap();
        assert_eq!(g, [0.25, 0.5, 0.25, 0.25, 0.5, 0.25]);
    }
}

#[test]
fn the_transposed_convolution_is_the_adjoint() {
    let cpu = device();
    let window = Window { stride: 2, padding: 1, ..Window::default() };
    let up = ConvTranspose2d { bias: None, ..ConvTranspose2d::new(3, 2, 4, window, 1, &cpu) };
    let down = Conv2d { weight: up.weight.clone(), bias: None, window };
    let (x, y) = (Tensor::rand([2, 2, 8, 8], 1, &cpu), Tensor::rand([2, 3, 4, 4], 2, &cpu));
    // ⟨conv x, y⟩ = ⟨x, convᵀ y⟩
    let left = down.forward(&x).mul(&y).sum(..).item::<f32>().unwrap();
    let right = up.forward(&y).mul(&x).sum(..).item::<f32>().unwrap();
    assert!((left - right).abs() < 1e-4 * left.abs().max(1.0), "{left} {right}");
}

#[test]
fn a_transposed_convolution_of_one_axis_spreads_each_element_over_its_window() {
    let cpu = device();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [1, 1, 3], &cpu);
    let up = |padding: usize| {
        let window = Window { stride: 2, padding, ..Window::default() };
        let weight = Tensor::from_slice(&[1.0f32, 10.0, 100.0], [1, 1, 3], &cpu);
        ConvTranspose1d { weight, bias: None, window }.forward(&x).to_vec::<f32>().unwrap()
    };
    assert_eq!(up(0), [1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]);
    assert_eq!(up(1), [10.0, 102.0, 20.0, 203.0, 30.0]);
}

#[test]
fn pooling_may_overlap() {
    let x = Tensor::arange(0.0, 25.0, 1.0, &device()).reshape([1, 1, 5, 5]);
    let pool = MaxPool2d { size: 3, stride: 2 };
    assert_eq!(pool.forward(&x).to_vec::<f32>().unwrap(), [12.0, 14.0, 22.0, 24.0]);
}

#[test]
fn causal_attention_does_not_look_ahead() {
    let cpu = device();
    let attention = MultiHeadAttention::new(8, 2, 1, &cpu).causal();
    let x = Tensor::rand([1, 5, 8], 1, &cpu);
    let changed = Tensor::cat(&[&x.narrow(1, 0, 4), &Tensor::rand([1, 1, 8], 9, &cpu)], 1);
    let head = |x: &Tensor| attention.forward(x).narrow(1, 0, 4).to_vec::<f32>().unwrap();
    close(&head(&x), &head(&changed));
}

#[test]
fn batch_norm_learns_what_to_do_without_a_batch() {
    let cpu = device();
    let mut norm = BatchNorm::new(3, &cpu);
    let mut optimizer = Optimizer::new(Sgd::default(), 0.0);
    let x = Tensor::randn([64, 3], 1, &cpu).mul(2.0).add(5.0).compute().unwrap();
    for _ in 0..100 {
        let loss = norm.forward(&x).sum(..);
        optimizer.step(&mut norm, loss).unwrap();
    }
    let trained = norm.forward(&x).to_vec::<f32>().unwrap();
    set_mode(&mut norm, Mode::Eval);
    let used = norm.forward(&x).to_vec::<f32>().unwrap();
    // The running variance divides by n − 1, the batch's by n.
    assert!(trained.iter().zip(&used).all(|(a, b)| (a - b).abs() < 0.05));
}

#[test]
fn dropout_is_reproducible_and_new_each_time() {
    let x = Tensor::rand([100], 1, &device());
    let draw = |dropout: &Dropout| dropout.forward(&x).to_vec::<f32>().unwrap();
    let (a, b) = (Dropout::new(0.5, 7), Dropout::new(0.5, 7));
    let (first, second) = (draw(&a), draw(&a));
    assert_ne!(first, second);
    assert_eq!((draw(&b), draw(&b)), (first, second));
    assert_ne!(draw(&Dropout::new(0.5, 8)), draw(&Dropout::new(0.5, 7)));
}

#[test]
fn every_layer_learns() {
    let cpu = device();
    let learns = |name: &str, model: &mut dyn Layer, x: &Tensor| {
        let mut optimizer = Optimizer::new(Adam::default(), 0.02);
        let target = model.forward(x).detach().mul(0.5).add(0.1).compute().unwrap();
        let mut losses = Vec::new();
        for _ in 0..40 {
            let loss = loss::mse(&model.forward(x), &target);
            losses.push(optimizer.step(model, loss).unwrap().item::<f32>().unwrap());
        }
        assert!(losses[39] < 0.5 * losses[0], "{name}: {} → {}", losses[0], losses[39]);
    };
    let (rows, images) = (Tensor::randn([6, 5, 4], 1, &cpu), Tensor::randn([3, 4, 6, 6], 2, &cpu));
    let (rows, images) = (rows.compute().unwrap(), images.compute().unwrap());
    let window = Window { padding: 1, ..Window::default() };
    learns("linear", &mut Linear::new(4, 3, 1, &cpu), &rows);
    learns("layer norm", &mut LayerNorm::new(4, &cpu), &rows);
    learns("rms norm", &mut RmsNorm::new(4, &cpu), &rows);
    learns("batch norm", &mut BatchNorm::new(4, &cpu), &images);
    learns("conv", &mut Conv2d::new(4, 2, 3, window, 1, &cpu), &images);
    learns("grouped conv", &mut Conv2d::new(4, 4, 3, Window { groups: 2, ..window }, 1, &cpu), &images);
    learns("transposed conv", &mut ConvTranspose2d::new(4, 2, 3, window, 1, &cpu), &images);
    learns("transposed conv1d", &mut ConvTranspose1d::new(5, 2, 3, window, 1, &cpu), &rows);
    learns("conv1d", &mut Conv1d::new(5, 2, 3, window, 1, &cpu), &rows);
    learns("attention", &mut MultiHeadAttention::new(4, 2, 1, &cpu), &rows);
    learns("lstm", &mut Lstm::new(4, 3, 1, &cpu), &rows);
    learns("gru", &mut Gru::new(4, 3, 1, &cpu), &rows);
    let words = Tensor::from_slice(&[0, 2, 1, 2], [4], &cpu);
    learns("embedding", &mut Embedding::new(3, 4, 1, &cpu), &words);
}

#[test]
fn a_bad_shape_is_an_error_that_names_the_layer_the_shapes_and_the_callers_line() {
    let cpu = device();
    let x = |shape: &[usize]| Tensor::rand(shape, 1, &cpu);
    let labels = Tensor::from_slice(&[0, 1, 2], [3], &cpu);
    let window = Window { padding: 1, ..Window::default() };
    let no_stride = Window { stride: 0, ..window };
    let heads = |heads: usize| MultiHeadAttention { heads, ..MultiHeadAttention::new(4, 2, 1, &cpu) };
    let refused = [
        (Linear::new(4, 2, 1, &cpu).forward(&x(&[3, 5])), "linear: wants 4 features", "[3, 5]"),
        (Linear::new(4, 2, 1, &cpu).forward(&x(&[])), "linear: wants 4 features", "[]"),
        (Embedding::new(4, 2, 1, &cpu).forward(&x(&[3])), "embedding: ", "f32"),
        (Conv1d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[3, 5])), "conv1d: wants an input [batch, ", "[3, 5]"),
        (
            Conv1d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[2, 4, 5])),
            "conv1d: the input has 4 channels",
            "[2, 4, 5]",
        ),
        (Conv2d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[3, 5])), "conv2d: wants an input [batch, ", "[3, 5]"),
        (
            Conv2d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[1, 4, 5, 5])),
            "conv2d: the input has 4 channels",
            "[2, 3, 3, 3]",
        ),
        (
            Conv2d::new(3, 2, 9, window, 1, &cpu).forward(&x(&[1, 3, 5, 5])),
            "conv2d: no window of 9 × 9 fits",
            "pad more",
        ),
        (Conv2d::new(3, 2, 3, no_stride, 1, &cpu).forward(&x(&[1, 3, 5, 5])), "conv2d: Conv", "at least 1"),
        (ConvTranspose1d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[3, 5])), "conv_transpose1d: wants", "[3, 5]"),
        (ConvTranspose2d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[3, 5])), "conv_transpose2d: wants", "[3, 5]"),
        (
            ConvTranspose2d::new(3, 2, 3, window, 1, &cpu).forward(&x(&[1, 2, 5, 5])),
            "conv_transpose2d: the input has 2 channels, the weights are for 3",
            "[1, 2, 5, 5]",
        ),
        (MaxPool2d::new(2).forward(&x(&[4, 4])), "max_pool: wants [batch, channels, size…]", "[4, 4]"),
        (MaxPool2d::new(9).forward(&x(&[1, 1, 4, 4])), "max_pool: no window of 9 elements", "[1, 1, 4, 4]"),
        (AvgPool2d::new(0).forward(&x(&[1, 1, 4, 4])), "avg_pool: Pool {", "[1, 1, 4, 4]"),
        (LayerNorm::new(4, &cpu).forward(&x(&[3, 5])), "layer_norm: ", "[3, 5]"),
        (RmsNorm::new(4, &cpu).forward(&x(&[3, 5])), "rms_norm: ", "[3, 5]"),
        (BatchNorm::new(4, &cpu).forward(&x(&[4])), "batch_norm: wants [batch, 4 channels, …]", "[4]"),
        (BatchNorm::new(4, &cpu).forward(&x(&[2, 5])), "batch_norm: wants [batch, 4 channels, …]", "[2, 5]"),
        (heads(2).forward(&x(&[3, 4])), "attention: wants [batch, length, width]", "[3, 4]"),
        (heads(3).forward(&x(&[1, 3, 4])), "attention: 3 heads do not divide the width", "[1, 3, 4]"),
        (heads(2).attend(&x(&[1, 3, 4]), &x(&[2, 3, 4]), None), "attention: wants as many sequences", "[2, 3, 4]"),
        (heads(2).forward(&x(&[1, 3, 6])), "linear: wants 4 features", "[1, 3, 6]"),
        (Lstm::new(3, 4, 1, &cpu).forward(&x(&[3])), "lstm: wants [batch, length, features]", "[3]"),
        (Lstm::new(3, 4, 1, &cpu).forward(&x(&[2, 5, 4])), "linear: wants 3 features", "[2, 5, 4]"),
        (Gru::new(3, 4, 1, &cpu).forward(&x(&[3])), "gru: wants [batch, length, features]", "[3]"),
        (loss::mse(&x(&[3]), &x(&[4])), "mse: predictions [3] and targets [4]", "one shape"),
        (loss::l1(&x(&[3]), &x(&[4])), "l1: predictions [3] and targets [4]", "one shape"),
        (loss::huber(&x(&[3]), &x(&[4]), 1.0), "huber: predictions [3] and targets [4]", "one shape"),
        (loss::bce_with_logits(&x(&[3]), &x(&[4])), "bce_with_logits: predictions [3] and", "one shape"),
        (loss::kl(&x(&[2, 3]), &x(&[2, 4])), "kl: predictions [2, 3] and targets [2, 4]", "one shape"),
        (loss::cross_entropy(&x(&[2, 4]), &labels), "cross_entropy: wants predictions […, classes]", "i32 [3]"),
        (loss::cross_entropy(&x(&[3, 4]), &x(&[3])), "cross_entropy: wants predictions", "f32 [3]"),
        (loss::nll(&x(&[]), &labels), "nll: wants predictions […, classes]", "i32 [3]"),
    ];
    for (y, start, part) in refused {
        let text = y.compute().unwrap_err().to_string();
        assert!(text.starts_with(start) && text.contains(part) && text.contains("layers.rs"), "{start:?}, got: {text}");
    }
    // An error that came before is handed on.
    let lost = x(&[3]).matmul(&x(&[4]));
    for y in [
        Conv2d::new(3, 2, 3, window, 1, &cpu).forward(&lost),
        MaxPool2d::new(2).forward(&lost),
        loss::mse(&lost, &lost),
    ] {
        assert!(y.compute().unwrap_err().to_string().starts_with("matmul: "));
    }
}

#[test]
fn losses_of_labels_that_are_no_class_are_nan() {
    let cpu = device();
    let loss = loss::cross_entropy(&Tensor::rand([2, 3], 1, &cpu), &Tensor::from_slice(&[0, 3], [2], &cpu));
    assert!(loss.item::<f32>().unwrap().is_nan());
}

#[test]
fn cross_entropy_with_options_is_pytorchs() {
    use loss::{CrossEntropy, Reduction, cross_entropy_with};
    // torch.nn.functional.cross_entropy of PyTorch 2.15 in double precision.
    let logits = [0.5f32, -1.0, 2.0, 1.5, 0.25, -0.75, 0.0, 3.0, -2.0, 1.0, 1.0, -1.0];
    let logits = Tensor::from_slice(&logits, [4, 3], &device());
    let labels = Tensor::from_slice(&[2, 0, -1, 1], [4], &device());
    let weight = Tensor::from_slice(&[0.5f32, 2.0, 1.25], [3], &device());
    let all = CrossEntropy {
        weight: Some(weight.clone()),
        ignore_index: Some(-1),
        smoothing: 0.1,
        reduction: Reduction::None,
    };
    let check = |options: &CrossEntropy, want: &[f32]| {
        close(&cross_entropy_with(&logits, &labels, options).to_vec::<f32>().unwrap(), want);
    };
    check(&all, &[0.52663912, 0.36722008, 0.0, 1.54368391]);
    check(&CrossEntropy { reduction: Reduction::Sum, ..all.clone() }, &[2.437_543_1]);
    check(&CrossEntropy { reduction: Reduction::Mean, ..all.clone() }, &[0.650_011_5]);
    check(&CrossEntropy { ignore_index: Some(-1), ..CrossEntropy::default() }, &[0.443_535_86]);
    // A label that is no class and is not ignored.
    let strict =
        cross_entropy_with(&logits, &labels, &CrossEntropy { weight: Some(weight), ..CrossEntropy::default() });
    assert!(strict.item::<f32>().unwrap().is_nan());
    let wrong = CrossEntropy { weight: Some(labels.to_dtype(DType::F32)), ..CrossEntropy::default() };
    let error = cross_entropy_with(&logits, &labels, &wrong).compute().unwrap_err().to_string();
    assert!(error.contains("cross_entropy: wants weights [3]") && error.contains("[4]"), "{error}");
    // An ignored row has no gradient, and no NaN reaches the others.
    let gradient = cross_entropy_with(&logits, &labels, &all).sum(..).grad(&[&logits]).remove(0);
    let gradient = gradient.to_vec::<f32>().unwrap();
    assert!(gradient.iter().all(|g| g.is_finite()) && gradient[6..9] == [0.0; 3] && gradient[0] != 0.0, "{gradient:?}");
}
