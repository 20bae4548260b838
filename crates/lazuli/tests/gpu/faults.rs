//! What goes wrong is a typed error of the call that leaves, and the device goes on.

use std::sync::Arc;

use lazuli::{CustomOp, DType, Device, Error, Tensor};

use crate::{alone, gpus, own};

fn lose(gpu: &Device) {
    lazuli::gpu::handles(gpu).unwrap().0.destroy();
}

#[test]
fn more_memory_than_there_is_is_an_error_and_the_next_run_works() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::ones([4], DType::F32, &gpu).compute().unwrap();
        for n in [1usize << 40, 1 << 44, 1 << 58] {
            let error = Tensor::ones([n], DType::F32, &gpu).add(1.0).compute().unwrap_err();
            assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        }
        assert_eq!(x.add(1.0).to_vec::<f32>().unwrap(), [2.0; 4]);
        gpu.sync().unwrap();
    }
}

#[test]
fn a_custom_op_that_does_not_compile_is_an_error_that_names_it() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 4.0, 1.0, &gpu);
        for wgsl in ["$0 +", "no_such_function($0)", "vec4<f32>($0)", "}"] {
            let op = CustomOp { name: "broken".into(), wgsl: wgsl.into(), cpu: Arc::new(|x| x[0]), grad: None };
            let error = Tensor::map_custom(&op, &[&x]).to_vec::<f32>().unwrap_err();
            assert!(matches!(error, Error::Custom(_)), "{error}");
            assert!(error.to_string().starts_with("broken: its WGSL does not compile"), "{error}");
        }
        assert_eq!(x.add(1.0).to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        gpu.sync().unwrap();
    }
}

#[test]
fn a_custom_op_runs() {
    let _turn = alone();
    for gpu in gpus() {
        let op = CustomOp {
            name: "hypot".into(),
            wgsl: "sqrt($0 * $0 + $1 * $1)".into(),
            cpu: Arc::new(|x| x[0].hypot(x[1])),
            grad: None,
        };
        let (x, y) = (Tensor::full([4], 3.0, &gpu), Tensor::full([4], 4.0, &gpu));
        assert_eq!(Tensor::map_custom(&op, &[&x, &y]).to_vec::<f32>().unwrap(), [5.0; 4]);
    }
}

#[test]
fn a_lost_device_is_opened_again_and_host_data_comes_back() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &gpu);
        let y = x.add(1.0).compute().unwrap();
        let recipe = y.mul(0.0).add(&x);
        lose(&gpu);
        // Computed, and what it was computed from was let go.
        let error = y.to_vec::<f32>().unwrap_err();
        assert!(matches!(error, Error::DeviceLost(_)), "{error}");
        assert!(error.to_string().contains("f32[3]"), "{error}");
        assert!(error.to_string().contains("faults.rs"), "{error}");
        let error = recipe.to_vec::<f32>().unwrap_err();
        assert!(matches!(error, Error::DeviceLost(_)), "{error}");
        // Host data is known still, whatever was computed from it.
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(x.mul(2.0).to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(Tensor::arange(0.0, 3.0, 1.0, &gpu).add(&x).to_vec::<f32>().unwrap(), [1.0, 3.0, 5.0]);
        gpu.sync().unwrap();
    }
}

#[test]
fn a_structure_known_before_the_loss_runs_after_it() {
    let _turn = alone();
    for gpu in gpus() {
        let run = || Tensor::arange(0.0, 100.0, 1.0, &gpu).mul(3.0).sub(1.0).to_vec::<f32>().unwrap();
        let before = run();
        lose(&gpu);
        assert_eq!(run(), before);
        assert_eq!(run(), before);
    }
}

#[test]
fn a_device_lost_during_a_run_is_an_error_or_a_result() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::from_vec(vec![1.5f32; 1 << 20], [1 << 20], &gpu);
        let y = x.mul(2.0).compute().unwrap();
        lose(&gpu);
        match y.to_vec::<f32>() {
            Ok(values) => assert!(values.iter().all(|v| *v == 3.0)),
            Err(error) => assert!(matches!(error, Error::DeviceLost(_)), "{error}"),
        }
        assert_eq!(x.sub(0.5).to_vec::<f32>().unwrap()[77], 1.0);
    }
}

#[test]
fn a_lost_device_of_the_application_is_not_ours_to_open() {
    let _turn = alone();
    let (device, _, gpu) = own(|_| {});
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &gpu);
    assert_eq!(x.add(1.0).to_vec::<f32>().unwrap(), [2.0, 3.0]);
    device.destroy();
    assert!(x.mul(7.0).to_vec::<f32>().is_err());
    // What is on the host is readable whatever the device does.
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn an_index_out_of_range_is_told_by_whoever_reads_or_waits() {
    let _turn = alone();
    for gpu in gpus() {
        let table = Tensor::arange(0.0, 12.0, 1.0, &gpu).reshape([4, 3]);
        let good = Tensor::from_slice(&[3i32, 0], [2], &gpu);
        let bad = Tensor::from_slice(&[1i32, 7, -2, 9], [4], &gpu);
        let picked = table.embedding(&bad);
        // The work is handed over; what it finds is not known yet, or already.
        let _ = picked.compute();
        let error = picked.to_vec::<f32>().unwrap_err();
        assert!(matches!(error, Error::Index(_)), "{error}");
        assert!(error.to_string().contains("out of range for an axis of size 4"), "{error}");
        assert!(error.to_string().contains("faults.rs"), "{error}");
        // Told again to whoever asks, and to whoever builds on it.
        assert!(matches!(picked.to_vec::<f32>(), Err(Error::Index(_))));
        assert!(matches!(picked.add(1.0).to_vec::<f32>(), Err(Error::Index(_))));
        assert_eq!(table.embedding(&good).to_vec::<f32>().unwrap(), [9.0, 10.0, 11.0, 0.0, 1.0, 2.0]);
        gpu.sync().unwrap();

        let unread = table.embedding(&bad);
        if unread.compute().is_ok() {
            assert!(matches!(gpu.sync(), Err(Error::Index(_))));
        }
        gpu.sync().unwrap();
    }
}

#[test]
fn checks_are_inherited_by_what_is_computed_later() {
    let _turn = alone();
    for gpu in gpus() {
        let table = Tensor::from_vec(vec![1.0f32; 1 << 16], [1 << 16], &gpu);
        let bad = Tensor::from_vec(vec![1 << 20; 1 << 16], [1 << 16], &gpu);
        let picked = table.gather(0, &bad.to_dtype(DType::I32));
        let read = picked.compute().and_then(|p| p.mul(2.0).compute()).and_then(|p| p.add(1.0).to_vec::<f32>());
        assert!(matches!(read, Err(Error::Index(_))), "{:?}", read.map(|v| v[0]));
        let _ = gpu.sync();
    }
}
