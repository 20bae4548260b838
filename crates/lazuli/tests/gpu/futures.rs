//! Waiting without blocking, and without an async runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use lazuli::{CustomOp, DType, Device, Error, Tensor};

use crate::{alone, block_on, gpus};

#[test]
fn numbers_arrive_without_a_runtime() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 1000.0, 1.0, &gpu);
        let y = x.mul(2.0).add(1.0);
        block_on(y.compute_async()).unwrap();
        assert_eq!(block_on(y.to_vec_async::<f32>()).unwrap()[999], 1999.0);
        assert_eq!(block_on(x.slice(&[(7, 8, 1)]).item_async::<f32>()).unwrap(), 7.0);
        assert_eq!(block_on(Tensor::zeros([0], DType::F32, &gpu).to_vec_async::<f32>()).unwrap(), []);
    }
}

#[test]
fn sizes_that_are_data_arrive_without_blocking() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::from_slice(&[3.0f32, 0.0, -1.0, 0.0, 3.0, 5.0], [2, 3], &gpu);
        let mask = x.gt(0);
        let read = |made: lazuli::Result<Tensor>| made.unwrap().to_vec::<f32>().unwrap();
        let places = block_on(x.nonzero_async()).unwrap();
        assert_eq!(places.to_vec::<i32>().unwrap(), [0, 0, 0, 2, 1, 1, 1, 2]);
        assert_eq!(read(block_on(x.masked_select_async(&mask))), [3.0, 3.0, 5.0]);
        assert_eq!(read(block_on(x.index_mask_async(&mask.select_index(1, 2)))), [0.0, 3.0, 5.0]);
        assert_eq!(read(block_on(x.unique_async())), [-1.0, 0.0, 3.0, 5.0]);
        let boxes = Tensor::from_slice(&[0.0f32, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 1.9, 3.0, 3.0, 4.0, 4.0], [3, 4], &gpu);
        let scores = Tensor::from_slice(&[0.5f32, 0.9, 0.1], [3], &gpu);
        let kept = block_on(boxes.non_max_suppression_async(&scores, 0.5)).unwrap();
        assert_eq!(kept.to_vec::<i32>().unwrap(), [1, 2]);
    }
}

#[test]
fn many_futures_are_woken() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 5000.0, 1.0, &gpu).compute().unwrap();
        std::thread::scope(|scope| {
            for t in 0..4 {
                let x = &x;
                scope.spawn(move || {
                    for i in 0..20 {
                        let got = block_on(x.add((t * i) as f32).to_vec_async::<f32>()).unwrap();
                        assert_eq!(got[4999], 4999.0 + (t * i) as f32);
                    }
                });
            }
        });
    }
}

#[test]
fn a_future_dropped_half_way_harms_nobody() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 300_000.0, 1.0, &gpu);
        for _ in 0..10 {
            let y = x.add(1.0);
            let mut future = Box::pin(y.to_vec_async::<f32>());
            let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            drop(future);
        }
        assert_eq!(x.add(2.0).to_vec::<f32>().unwrap()[299_999], 300_001.0);
        gpu.sync().unwrap();
    }
}

#[test]
fn an_index_out_of_range_reaches_a_future() {
    let _turn = alone();
    for gpu in gpus() {
        let table = Tensor::arange(0.0, 4.0, 1.0, &gpu);
        let bad = Tensor::from_slice(&[4i32], [1], &gpu);
        let read = block_on(table.gather(0, &bad).to_vec_async::<f32>());
        assert!(matches!(read, Err(Error::Index(_))), "{read:?}");
        let _ = gpu.sync();
    }
}

#[test]
fn what_is_computed_and_small_is_ready_at_once_on_the_cpu() {
    let x = Tensor::arange(0.0, 3.0, 1.0, &Device::cpu()).compute().unwrap();
    let future = pin!(x.to_vec_async::<f32>());
    assert!(matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
    let future = pin!(x.compute_async());
    assert!(matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
}

#[test]
fn futures_of_several_devices_are_awaited_together() {
    let _turn = alone();
    let cpu = Device::cpu();
    for gpu in gpus() {
        let (x, y) = (Tensor::arange(0.0, 9.0, 1.0, &cpu).exp(), Tensor::arange(0.0, 9.0, 1.0, &gpu).mul(2.0));
        // One of each device, and one that goes from one to the other and back.
        let z = x.log().to_device(&gpu).add(&y).to_device(&cpu).sum(..);
        block_on(lazuli::compute_async(&[&y, &z, &x])).unwrap();
        assert_eq!(block_on(y.to_vec_async::<f32>()).unwrap()[8], 16.0);
        assert!((block_on(z.item_async::<f32>()).unwrap() - 108.0).abs() < 1e-3);
    }
}

#[test]
fn a_custom_op_of_the_cpu_may_evaluate_on_a_gpu_but_not_what_needs_the_cpu() {
    let _turn = alone();
    let cpu = Device::cpu();
    for gpu in gpus() {
        let there = Tensor::arange(0.0, 4.0, 1.0, &gpu).mul(2.0);
        let needs_cpu = Tensor::arange(0.0, 4.0, 1.0, &cpu).exp().to_device(&gpu).add(1.0);
        let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
        for awaits in [false, true] {
            let read = move |x: &Tensor| if awaits { block_on(x.to_vec_async()) } else { x.to_vec::<f32>() };
            let nested = |captured: &Tensor| {
                let captured = captured.add(0.0);
                let cpu = move |x: &[f32]| match read(&captured) {
                    Ok(there) => x[0] + there[3],
                    Err(error) => panic!("{error}"),
                };
                let op = CustomOp { name: "nested".into(), wgsl: "$0".into(), cpu: Arc::new(cpu), grad: None };
                Tensor::map_custom(&op, &[&x]).to_vec::<f32>()
            };
            assert_eq!(nested(&there).unwrap(), [7.0, 8.0]);
            let error = nested(&needs_cpu).unwrap_err();
            assert!(error.to_string().contains("cannot evaluate on the device"), "{error}");
        }
        assert_eq!(needs_cpu.to_vec::<f32>().unwrap()[0], 2.0);
    }
}
