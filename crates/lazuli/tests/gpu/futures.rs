//! Waiting without blocking, and without an async runtime.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lazuli::{DType, Device, Error, Tensor};

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
fn the_cpu_is_ready_at_once() {
    let x = Tensor::arange(0.0, 3.0, 1.0, &Device::cpu());
    let y = x.add(1.0);
    let future = pin!(y.to_vec_async::<f32>());
    assert!(matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
}
