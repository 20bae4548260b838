//! No limit that a user can hit: many workgroups, tensors larger than a binding, larger than a buffer.

use lazuli::{DType, Device, Tensor};

use crate::{alone, gpus, own};

#[test]
fn more_than_65535_workgroups() {
    let _turn = alone();
    for gpu in gpus() {
        for n in [16_776_961usize, 16_777_221] {
            let x = Tensor::arange(0.0, n as f64, 1.0, &gpu).to_dtype(DType::I32);
            let got = x.add(1).to_vec::<i32>().unwrap();
            // Beyond 2²⁴ an f32 cannot count.
            assert!(got.iter().take(1 << 24).enumerate().all(|(i, v)| *v == i as i32 + 1));
            assert_eq!(got.len(), n);
        }
    }
}

#[test]
fn a_tensor_larger_than_a_binding() {
    let _turn = alone();
    for gpu in gpus() {
        // 130 MiB and a bit; llvmpipe binds 128 MiB.
        let n = 34_000_001usize;
        let x = Tensor::from_vec((0..n).map(|i| (i % 1000) as f32).collect(), [n], &gpu);
        let got = x.mul(2.0).add(1.0).to_vec::<f32>().unwrap();
        assert!(got.iter().enumerate().all(|(i, v)| *v == (i % 1000) as f32 * 2.0 + 1.0));
    }
}

#[test]
fn a_tensor_larger_than_a_buffer_lies_in_several() {
    let _turn = alone();
    let (_, _, gpu) = own(|limits| {
        limits.max_buffer_size = 4 << 20;
        limits.max_storage_buffer_binding_size = 1 << 20;
    });
    let n = (9 << 20) / 4 + 12_345;
    let numbers: Vec<f32> = (0..n).map(|i| (i % 4099) as f32).collect();
    let x = Tensor::from_vec(numbers.clone(), [n], &gpu);
    let y = x.mul(2.0).sub(&x).compute().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), numbers);
    // In place, where nobody else holds it.
    let z = y.add(1.0);
    drop(y);
    assert!(z.to_vec::<f32>().unwrap().iter().zip(&numbers).all(|(z, x)| *z == x + 1.0));
    assert!(lazuli::gpu::buffer(&z).is_err());
}

#[test]
fn an_update_of_a_tensor_of_many_bindings_takes_no_second_one() {
    let _turn = alone();
    let (_, _, gpu) = own(|limits| limits.max_storage_buffer_binding_size = 128 << 20);
    // 300 MiB, and the same again of what is subtracted: parts of one kernel write them, each over its own elements.
    let n = 300 << 18;
    let mut weights = Tensor::arange(0, n as i32, 1, &gpu).compute().unwrap();
    let gradient = Tensor::arange(0, n as i32, 1, &gpu).bit_and(7).compute().unwrap();
    for step in 1..3 {
        gpu.trim();
        gpu.reset_stats();
        let before = gpu.stats().bytes_live;
        // Nobody holds the old weights when the new ones are computed.
        weights = weights.sub(gradient.mul(step));
        weights.compute().unwrap();
        let stats = gpu.stats();
        assert!(stats.bytes_peak < before + (1 << 20), "{stats:?}");
        assert!(stats.bytes_live < before + (1 << 20), "{stats:?}");
    }
    let right = |i: usize| i as i32 - 3 * (i as i32 & 7);
    for start in [0, (128 << 18) - 100, (256 << 18) - 100, n - 200] {
        let got = weights.narrow(0, start, 200).to_vec::<i32>().unwrap();
        assert!(got.iter().enumerate().all(|(i, v)| *v == right(start + i)), "{start}");
    }
}

#[test]
fn nothing_and_one_element() {
    let _turn = alone();
    for gpu in gpus() {
        let empty = Tensor::from_slice(&[0.0f32; 0], [0, 3], &gpu);
        assert_eq!(empty.add(1.0).to_vec::<f32>().unwrap(), []);
        assert_eq!(Tensor::scalar(2.0f32, &gpu).mul(3.0).item::<f32>().unwrap(), 6.0);
        for n in 1..20 {
            let bytes: Vec<u8> = (0..n).collect();
            let x = Tensor::from_slice(&bytes, [n as usize], &gpu);
            assert_eq!(x.to_vec::<u8>().unwrap(), bytes);
            assert_eq!(x.add(1).to_vec::<u8>().unwrap(), (1..=n).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn reductions_beyond_a_drivers_loop_budget() {
    let _turn = alone();
    for gpu in gpus() {
        for n in [70_000usize, 1 << 24] {
            let ones = Tensor::from_vec(vec![1.0f32; n], [n], &gpu);
            assert_eq!(ones.sum(..).item::<f32>().unwrap(), n as f32, "{n}");
        }
        let k = 200_000;
        let (a, b) = (Tensor::from_vec(vec![0.5f32; 2 * k], [2, k], &gpu), Tensor::ones([k, 2], DType::F32, &gpu));
        assert_eq!(a.matmul(&b).to_vec::<f32>().unwrap(), [k as f32 * 0.5; 4]);
    }
}

/// One number that a GPU makes of no memory, or almost none.
#[track_caller]
fn check_one(what: &str, right: f32, f: impl Fn(&Device) -> Tensor) {
    for gpu in gpus() {
        let got = f(&gpu).to_dtype(DType::F32).item::<f32>().unwrap();
        assert_eq!(got, right, "{what} on {}", gpu.info());
    }
}

#[test]
fn long_reductions_of_what_is_not_memory_are_whole() {
    let _turn = alone();
    check_one("the sum of a diagonal", 8192.0, |d| Tensor::eye(8192, DType::I32, d).sum(..));
    check_one("the sum of a triangle", 33_558_528.0, |d| Tensor::ones([8192, 8192], DType::I32, d).tril().sum(..));
    check_one("the largest of a pad", 69_999_990.0, |d| {
        Tensor::full([20], 2.0f32, d)
            .add(Tensor::arange(0.0f32, 20.0, 1.0, d).eq(10.0).to_dtype(DType::F32))
            .pad(&[(69_999_980, 0)], 1.0f32)
            .argmax(..)
    });
    check_one("the variance of a broadcast", 6.25, |d| {
        Tensor::from_slice(&[-2.5f32, 2.5], [2, 1], d).broadcast_to([2, 75_000_000]).var(.., 0)
    });
}

#[test]
fn the_mean_distance_of_many_points_is_right() {
    let _turn = alone();
    // Of n whole numbers in a row it is (n² − 1) / 3n.
    let n = 16_384.0f64;
    let right = ((n * n - 1.0) / (3.0 * n)) as f32;
    for gpu in gpus() {
        let x = Tensor::arange(0.0f32, n as f32, 1.0, &gpu).compute().unwrap();
        let got = x.unsqueeze(0).sub(x.unsqueeze(1)).abs().mean(..).item::<f32>().unwrap();
        assert!((got - right).abs() <= right * 1e-6, "{got} for {right} on {}", gpu.info());
    }
}

#[test]
fn more_inputs_than_bindings() {
    let _turn = alone();
    for gpu in gpus() {
        let inputs: Vec<Tensor> = (0..40).map(|i| Tensor::from_vec(vec![i as f32; 100], [100], &gpu)).collect();
        let sum = inputs[1..].iter().fold(inputs[0].clone(), |sum, x| sum.add(x));
        assert_eq!(sum.to_vec::<f32>().unwrap(), [780.0; 100]);
    }
}
