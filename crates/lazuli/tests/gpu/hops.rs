//! Moving back and forth between devices: each hop needs an evaluation of its own first, and no hop a stack frame.

use lazuli::{Device, Tensor};

use crate::{alone, block_on, gpus};

/// So many hops that a frame for each would not fit into the stack of `on_small_stack`.
const N_HOPS: usize = 4_000;

fn hopping(gpu: &Device) -> Tensor {
    let cpu = Device::cpu();
    let start = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
    (0..N_HOPS / 2).fold(start, |x, _| x.to_device(gpu).add(1.0).to_device(&cpu))
}

fn on_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(384 << 10).spawn(run).expect("can be started");
    thread.join().expect("does not overflow");
}

#[test]
fn thousands_of_hops_between_devices_need_no_stack() {
    let _turn = alone();
    for gpu in gpus() {
        let expect = [1.0 + (N_HOPS / 2) as f32, 2.0 + (N_HOPS / 2) as f32];
        // What compiles shaders may use as much stack as it likes.
        Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu()).to_device(&gpu).add(1.0).to_vec::<f32>().unwrap();
        let (first, second) = (hopping(&gpu), hopping(&gpu));
        on_small_stack(move || assert_eq!(first.to_vec::<f32>().unwrap(), expect));
        on_small_stack(move || assert_eq!(block_on(second.to_vec_async::<f32>()).unwrap(), expect));
    }
}

#[test]
fn threads_that_need_the_same_move_all_get_it() {
    let _turn = alone();
    for gpu in gpus() {
        for _ in 0..20 {
            let there = Tensor::from_slice(&[1.0f32; 1000], [1000], &Device::cpu()).add(1.0).to_device(&gpu);
            std::thread::scope(|scope| {
                for i in 0..4 {
                    let y = there.mul(i as f32);
                    scope.spawn(move || assert_eq!(y.to_vec::<f32>().unwrap(), [2.0 * i as f32; 1000]));
                }
            });
        }
    }
}

#[test]
fn a_gradient_through_a_move_that_was_made_is_an_error() {
    let _turn = alone();
    for gpu in gpus() {
        let (x, w) = (Tensor::from_slice(&[3.0f32], [1], &Device::cpu()), Tensor::scalar(2.0, &gpu));
        let there = x.square().to_device(&gpu);
        assert_eq!(there.sum(..).grad(&[&x])[0].to_vec::<f32>().unwrap(), [6.0]);
        there.compute().unwrap();
        let grads = there.mul(&w).sum(..).grad(&[&x, &w]);
        assert!(grads[0].check().unwrap_err().to_string().contains("tracked()"));
        assert_eq!(grads[1].to_vec::<f32>().unwrap(), [9.0]);
    }
}
