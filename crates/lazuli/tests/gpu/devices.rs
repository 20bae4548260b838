//! Finding and opening devices.

use lazuli::{Device, DeviceKind, Error, Tensor};

use crate::{alone, gpus};

#[test]
fn an_adapter_opened_twice_is_the_same_device() {
    let _turn = alone();
    for (i, gpu) in gpus().iter().enumerate() {
        assert_eq!(*gpu, Device::open(&(i + 1).to_string()).unwrap());
        assert_eq!(gpu.info(), &Device::all()[i + 1]);
        assert_eq!(*gpu, Device::open(&gpu.info().name.to_uppercase()).unwrap());
    }
}

#[test]
fn a_software_adapter_is_taken_only_by_name() {
    let _turn = alone();
    let all = Device::all();
    if all.iter().any(|d| d.kind == DeviceKind::Software) {
        assert_eq!(Device::open("software").unwrap().info().kind, DeviceKind::Software);
    }
    if !all.iter().any(|d| !matches!(d.kind, DeviceKind::Software | DeviceKind::Cpu)) {
        let error = Device::gpu().unwrap_err();
        assert!(matches!(error, Error::Device(_)));
        assert!(error.to_string().contains("runs on the CPU"), "{error}");
        assert!(Device::open("gpu").is_err());
        if std::env::var("LAZULI_DEVICE").is_err() {
            assert_eq!(Device::best(), Device::cpu());
        }
    }
}

#[test]
fn real_limits_are_requested() {
    let _turn = alone();
    for gpu in gpus() {
        let info = gpu.info();
        assert!(info.max_binding_bytes >= 128 << 20 && info.max_binding_bytes.is_multiple_of(1 << 20), "{info:?}");
        assert!(info.max_buffer_bytes >= info.max_binding_bytes);
    }
}

#[test]
fn a_name_that_nobody_has_lists_those_there_are() {
    let error = Device::open("abacus").unwrap_err().to_string();
    assert!(error.contains("abacus") && error.contains(&Device::all()[0].name), "{error}");
    assert!(Device::open("").is_err());
    assert!(Device::open("99").is_err());
}

#[test]
fn a_chain_of_maps_is_right() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 1000.0, 1.0, &gpu);
        let y = x.add(1.0).mul(&x).sub(3.0);
        let expected: Vec<f32> = (0..1000).map(|i| (i as f32 + 1.0) * i as f32 - 3.0).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn the_best_device_is_what_the_environment_names() {
    let _turn = alone();
    match std::env::var("LAZULI_DEVICE") {
        Ok(name) => assert_eq!(Device::best(), Device::open(&name).unwrap()),
        // The environment is read by a process of its own.
        Err(_) => {
            let mut this = std::process::Command::new(std::env::current_exe().unwrap());
            this.args(["--exact", "devices::the_best_device_is_what_the_environment_names"]);
            assert!(this.env("LAZULI_DEVICE", "1").status().unwrap().success());
        }
    }
}
