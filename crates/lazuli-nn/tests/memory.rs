//! A training step that runs out of memory at every allocation it makes.

#[path = "../../lazuli/tests/memory/refusing.rs"]
mod refusing;

use lazuli::{Device, Result, Tensor};
use lazuli_nn::*;

#[global_allocator]
static ALLOCATOR: refusing::Refusing = refusing::Refusing;

fn step(device: &Device) -> Result<Vec<f32>> {
    let mut model = Sequential::new()
        .push(Conv2d::new(2, 6, 3, Window::default(), 1, device))
        .push(Relu)
        .push(Flatten)
        .push(Linear::new(6 * 26 * 26, 10, 2, device));
    let mut optimizer = Optimizer::new(Adam::default(), 1e-3);
    let x = Tensor::rand([32, 2, 28, 28], 3, device).compute()?;
    let labels = Tensor::arange(0, 32, 1, device).rem(10).compute()?;
    let mut losses = refusing::uncounted(Vec::new);
    for _ in 0..2 {
        let loss = loss::cross_entropy(&model.forward(&x), &labels);
        losses.push(optimizer.step(&mut model, loss)?.item()?);
    }
    Ok(losses)
}

#[test]
fn a_step_can_run_out_of_memory() {
    let _turn = refusing::alone();
    // Planning a step takes some tens of kilobytes, which grow with the model's layers and not with its tensors.
    let counted_from = 24 * refusing::LARGE;
    let cpu = Device::cpu();
    refusing::check("step", counted_from, || cpu.trim(), || step(&cpu));
}
