//! Layers against plain loops, and what they promise about modes, names and gradients.

use lazuli::{Device, Tensor};
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
fn convolutions_are_their_definition() {
    let cpu = Device::cpu();
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
fn the_transposed_convolution_is_the_adjoint() {
    let cpu = Device::cpu();
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
fn pooling_may_overlap() {
    let x = Tensor::arange(0.0, 25.0, 1.0, &Device::cpu()).reshape([1, 1, 5, 5]);
    let pool = MaxPool2d { size: 3, stride: 2 };
    assert_eq!(pool.forward(&x).to_vec::<f32>().unwrap(), [12.0, 14.0, 22.0, 24.0]);
}

#[test]
fn causal_attention_does_not_look_ahead() {
    let cpu = Device::cpu();
    let attention = MultiHeadAttention::new(8, 2, 1, &cpu).causal();
    let x = Tensor::rand([1, 5, 8], 1, &cpu);
    let changed = Tensor::cat(&[&x.narrow(1, 0, 4), &Tensor::rand([1, 1, 8], 9, &cpu)], 1);
    let head = |x: &Tensor| attention.forward(x).narrow(1, 0, 4).to_vec::<f32>().unwrap();
    close(&head(&x), &head(&changed));
}

#[test]
fn batch_norm_learns_what_to_do_without_a_batch() {
    let cpu = Device::cpu();
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
    let x = Tensor::rand([100], 1, &Device::cpu());
    let draw = |dropout: &Dropout| dropout.forward(&x).to_vec::<f32>().unwrap();
    let (a, b) = (Dropout::new(0.5, 7), Dropout::new(0.5, 7));
    let (first, second) = (draw(&a), draw(&a));
    assert_ne!(first, second);
    assert_eq!((draw(&b), draw(&b)), (first, second));
    assert_ne!(draw(&Dropout::new(0.5, 8)), draw(&Dropout::new(0.5, 7)));
}

#[test]
fn every_layer_learns() {
    let cpu = Device::cpu();
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
    learns("conv1d", &mut Conv1d::new(5, 2, 3, window, 1, &cpu), &rows);
    learns("attention", &mut MultiHeadAttention::new(4, 2, 1, &cpu), &rows);
    learns("lstm", &mut Lstm::new(4, 3, 1, &cpu), &rows);
    learns("gru", &mut Gru::new(4, 3, 1, &cpu), &rows);
    let words = Tensor::from_slice(&[0, 2, 1, 2], [4], &cpu);
    learns("embedding", &mut Embedding::new(3, 4, 1, &cpu), &words);
}

#[test]
fn a_bad_shape_is_an_error_of_the_caller() {
    let cpu = Device::cpu();
    let error = Linear::new(4, 2, 1, &cpu).forward(&Tensor::rand([3, 5], 1, &cpu)).compute().unwrap_err();
    assert!(error.to_string().contains("layers.rs"), "{error}");
    assert!(
        Conv2d::new(3, 8, 3, Window::default(), 1, &cpu).forward(&Tensor::rand([3, 5], 1, &cpu)).compute().is_err()
    );
    assert!(
        Lstm::new(3, 4, 1, &cpu)
            .forward(&Tensor::rand([3], 1, &cpu).matmul(&Tensor::rand([4], 1, &cpu)))
            .compute()
            .is_err()
    );
}

#[test]
fn losses_of_labels_that_are_no_class_are_nan() {
    let cpu = Device::cpu();
    let loss = loss::cross_entropy(&Tensor::rand([2, 3], 1, &cpu), &Tensor::from_slice(&[0, 3], [2], &cpu));
    assert!(loss.item::<f32>().unwrap().is_nan());
}
