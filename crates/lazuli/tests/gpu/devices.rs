//! Finding and opening devices.

use lazuli::{Device, DeviceKind, Error, Tensor};

use crate::{alone, gpus, own};

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
fn every_device_that_a_message_lists_is_opened_by_what_it_says() {
    let _turn = alone();
    let error = Device::open("abacus").unwrap_err().fault().message.clone();
    for (i, info) in Device::all().iter().enumerate() {
        let line = format!("{i}: {info}");
        assert!(error.contains(&line), "{error} without {line}");
        assert_eq!(Device::open(&line).unwrap(), Device::open(&i.to_string()).unwrap());
        assert_eq!(Device::open(&info.to_string()).unwrap(), Device::open(&i.to_string()).unwrap());
    }
}

#[test]
fn tensors_of_two_devices_of_one_name_are_told_apart() {
    let _turn = alone();
    let first = gpus().remove(0);
    let (_, _, own) = own(|_| {});
    let others = [Some(own), Device::open("opengl").ok().filter(|gpu| *gpu != first)];
    for other in others.into_iter().flatten() {
        let (a, b) = (Tensor::full([2], 1.0, &first), Tensor::full([2], 1.0, &other));
        for mixed in [a.add(&b), Tensor::cat(&[&a, &b], 0)] {
            let error = mixed.to_vec::<f32>().unwrap_err().to_string();
            let is_same = first.info().to_string() == other.info().to_string();
            let words = if is_same { "the same opened once more".into() } else { format!(" and {}", other.info()) };
            assert!(error.contains(&first.info().to_string()) && error.contains(&words), "{error}");
        }
    }
}

/// Looks for devices in a process without a display, and gives what it says: standard output and standard error.
fn look(environment: &[(&str, &str)]) -> (String, String) {
    let mut this = std::process::Command::new(std::env::current_exe().unwrap());
    this.args(["--exact", "devices::devices_are_found_without_a_word", "--nocapture", "--quiet"]);
    for display in ["DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"] {
        this.env_remove(display);
    }
    let output = this.env("LAZULI_TEST_LOOK", "1").envs(environment.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn devices_are_found_without_a_word() {
    if std::env::var("LAZULI_TEST_LOOK").is_ok() {
        let asked_for = std::env::var("LAZULI_DEVICE").ok().map(|name| Device::open(&name).unwrap().info().clone());
        Device::all().iter().chain(&asked_for).for_each(|info| println!("{info}"));
        return;
    }
    let _turn = alone();
    let (out, err) = look(&[]);
    assert!(err.is_empty(), "{err}");
    let has_better = Device::all().iter().skip(1).any(|info| info.api != "opengl");
    assert_eq!(out.contains(", opengl, "), !has_better, "{out}");
}

#[test]
fn opengl_is_opened_where_it_is_asked_for_or_nothing_else_is_found() {
    let _turn = alone();
    let Ok(gpu) = Device::open("opengl") else {
        // A system without it says so.
        assert!(Device::open("opengl").unwrap_err().to_string().contains("OpenGL"));
        return;
    };
    assert_eq!((&*gpu.info().api, Device::open("gl").unwrap()), ("opengl", gpu.clone()));
    let x = Tensor::arange(0.0, 1000.0, 1.0, &gpu);
    assert_eq!(x.mul(2.0).sum(lazuli::keep(0)).to_vec::<f32>().unwrap(), [999_000.0]);
    // Vulkan's loader is told of no driver.
    let (out, err) = look(&[("VK_DRIVER_FILES", "none"), ("LAZULI_DEVICE", "opengl")]);
    assert!(err.is_empty(), "{err}");
    assert!(out.contains(", opengl, "), "{out}");
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
