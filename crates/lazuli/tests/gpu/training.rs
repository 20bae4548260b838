//! Gradients on GPUs: the same numbers as on the CPU, across devices, and a whole step in one submit.

use lazuli::{Device, Tensor};

use crate::{alone, gpus};

/// A small regression: its loss and the gradients of both parameters.
fn regression(device: &Device) -> Vec<f32> {
    let x = Tensor::rand([32, 6], 1, device).compute().unwrap();
    let (w, b) = (Tensor::rand([6, 3], 2, device).tracked(), Tensor::zeros([3], lazuli::DType::F32, device).tracked());
    let loss = x.matmul(&w).add(&b).tanh().sub(x.narrow(1, 0, 3)).square().mean(..);
    let grads = loss.grad(&[&w, &b]);
    device.reset_stats();
    lazuli::compute(&[&loss, &grads[0], &grads[1]]).unwrap();
    assert_eq!(device.stats().submits, 1);
    [&loss, &grads[0], &grads[1]].iter().flat_map(|t| t.to_vec::<f32>().unwrap()).collect()
}

#[test]
fn gradients_are_those_of_the_cpu() {
    let _turn = alone();
    let want = regression(&Device::cpu());
    for gpu in gpus() {
        let got = regression(&gpu);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(0.1);
        assert!(got.iter().zip(&want).all(near), "{got:?}\n{want:?}");
    }
}

#[test]
fn gradients_go_back_to_the_device_their_tensor_is_on() {
    let _turn = alone();
    for gpu in gpus() {
        let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::cpu()).tracked();
        let loss = w.to_device(&gpu).square().sum(..);
        let grad = &loss.grad(&[&w])[0];
        assert_eq!(grad.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(grad.device().unwrap(), &Device::cpu());
    }
}
