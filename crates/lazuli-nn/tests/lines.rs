//! Errors know the line: a layer, a loss, an optimizer that refuses something names the line on which it was called, not a
//! line of this crate or of the engine below it.

use lazuli::{DType, Device, Tensor};
use lazuli_check::fails_here as row;
use lazuli_nn::{
    Adam, AvgPool2d, BatchNorm, Clip, Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, Dropout, Embedding, Flatten,
    Gelu, Gru, Layer, LayerNorm, Linear, Lstm, MaxPool2d, MultiHeadAttention, Optimizer, Relu, RmsNorm, Sequential,
    Tanh, Window, init, load, loss, metrics, named,
};

fn f(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::cpu())
}

#[test]
#[rustfmt::skip]
fn layers_name_the_line_of_the_call() {
    let (cpu, mut wrong, plain) = (Device::cpu(), Vec::new(), Window::default());
    let strange = f(&[5, 5, 5, 5, 5]);
    row!(wrong, Linear::new(2, 3, 1, &cpu).forward(&strange));
    row!(wrong, Embedding::new(2, 3, 1, &cpu).forward(&strange));
    row!(wrong, Conv1d::new(2, 3, 3, plain, 1, &cpu).forward(&strange));
    row!(wrong, Conv2d::new(2, 3, 3, plain, 1, &cpu).forward(&strange));
    row!(wrong, Conv2d::new(2, 3, 3, plain, 1, &cpu).forward(&f(&[1, 2, 2, 2])));
    row!(wrong, ConvTranspose1d::new(2, 3, 3, plain, 1, &cpu).forward(&strange));
    row!(wrong, ConvTranspose2d::new(2, 3, 3, plain, 1, &cpu).forward(&strange));
    row!(wrong, MaxPool2d::new(2).forward(&strange));
    row!(wrong, AvgPool2d::new(2).forward(&strange));
    row!(wrong, LayerNorm::new(3, &cpu).forward(&strange));
    row!(wrong, RmsNorm::new(3, &cpu).forward(&strange));
    row!(wrong, BatchNorm::new(3, &cpu).forward(&strange));
    row!(wrong, MultiHeadAttention::new(4, 3, 1, &cpu).forward(&f(&[1, 2, 4])));
    row!(wrong, MultiHeadAttention::new(4, 2, 1, &cpu).attend(&f(&[1, 2, 4]), &f(&[1, 2, 4]), Some(&f(&[7]))));
    row!(wrong, Lstm::new(2, 3, 1, &cpu).forward(&strange));
    row!(wrong, Lstm::new(2, 3, 1, &cpu).run(&f(&[1, 2, 2]), Some((f(&[7, 7]), f(&[7, 7])))).0);
    row!(wrong, Gru::new(2, 3, 1, &cpu).forward(&strange));
    row!(wrong, Gru::new(2, 3, 1, &cpu).run(&f(&[1, 2, 2]), Some(f(&[7, 7]))).0);
    // Through layers that are called by a table of functions.
    row!(wrong, Sequential::new().push(Relu).push(Linear::new(2, 3, 1, &cpu)).forward(&strange));
    row!(wrong, Sequential::new().push(Sequential::new().push(MaxPool2d::new(9))).push(Gelu).forward(&strange));
    row!(wrong, Sequential::new().push(Tanh).push(Flatten).push(Dropout::new(0.5, 1)).push(Linear::new(2, 3, 1, &cpu)).forward(&strange));
    // Sizes that cannot be, at once or when they are used.
    row!(wrong, Linear::new(usize::MAX, usize::MAX, 1, &cpu).weight);
    row!(wrong, Conv2d::new(usize::MAX, 3, usize::MAX, plain, 1, &cpu).weight);
    row!(wrong, Lstm::new(2, usize::MAX, 1, &cpu).hidden.weight);
    row!(wrong, init::zeros([usize::MAX], &cpu));
    row!(wrong, init::ones([usize::MAX], &cpu));
    row!(wrong, init::uniform([usize::MAX], 1.0, 1, &cpu));
    row!(wrong, init::normal([usize::MAX], 1.0, 1, &cpu));
    row!(wrong, init::he([usize::MAX], usize::MAX, 1, &cpu));
    row!(wrong, init::glorot([usize::MAX], usize::MAX, usize::MAX, 1, &cpu));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[rustfmt::skip]
fn losses_and_optimizers_name_the_line_of_the_call() {
    let (cpu, mut wrong) = (Device::cpu(), Vec::new());
    let (x, y) = (f(&[2, 3]), f(&[7, 7]));
    row!(wrong, loss::mse(&x, &y));
    row!(wrong, loss::l1(&x, &y));
    row!(wrong, loss::huber(&x, &y, 1.0));
    row!(wrong, loss::cross_entropy(&x, &y));
    row!(wrong, loss::smooth_cross_entropy(&x, &y, 0.1));
    row!(wrong, loss::nll(&x, &y));
    row!(wrong, loss::bce_with_logits(&x, &y));
    row!(wrong, loss::kl(&x, &y));
    row!(wrong, metrics::accuracy(&f(&[2, 0]), &y));
    let mut other = Sequential::new().push(Linear::new(3, 2, 1, &cpu)).push(Linear::new(2, 1, 1, &cpu));
    let adam = || Optimizer::new(Adam::default(), 0.1);
    // A model and what is no loss.
    let fresh = || (Linear::new(3, 2, 1, &cpu), Linear::new(3, 2, 1, &cpu).forward(&f(&[2, 3])));
    row!(wrong, { let (mut model, y) = fresh(); adam().step(&mut model, y) });
    row!(wrong, { let (mut model, y) = fresh(); adam().step_with(&mut model, y, Vec::new()) });
    row!(wrong, { let (mut model, y) = fresh(); adam().accumulate(&mut model, y) });
    row!(wrong, { let (mut model, y) = fresh(); adam().step(&mut model, y.to_dtype(DType::I32).sum(..)) });
    row!(wrong, { let (mut model, y) = fresh(); adam().clipped(Clip::Norm(1.0)).step(&mut model, y) });
    let mut model = Linear::new(3, 2, 1, &cpu);
    let (mut optimizer, y) = (adam(), model.forward(&x).square().mean(..));
    optimizer.step(&mut model, y).unwrap();
    row!(wrong, { let y = other.forward(&f(&[2, 3])).sum(..); optimizer.step(&mut other, y) });
    row!(wrong, optimizer.load(&mut model, |_| None));
    row!(wrong, optimizer.load(&mut model, |_| Some(f(&[7]))));
    row!(wrong, load(&mut model, |_| None));
    row!(wrong, load(&mut model, |_| Some(f(&[7]))));
    let saved = named(&mut model);
    load(&mut model, |name| saved.iter().find(|(known, _)| known == name).map(|(_, t)| t.clone())).unwrap();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
