//! Programs that run out of memory at every allocation they make.

use std::sync::{Arc, OnceLock};

use lazuli::{Batch, CustomOp, DType, Device, Error, Result, Tensor, Weights, keep};

use crate::refusing::{LARGE, alone, check, refusing, uncounted};

/// Numbers made beforehand, so that nothing but the engine allocates while it is counted.
fn numbers(n: usize) -> &'static [f32] {
    static NUMBERS: OnceLock<Vec<f32>> = OnceLock::new();
    let all = NUMBERS.get_or_init(|| (0..1 << 18).map(|i| ((i * 7919) % 1009) as f32 * 0.002 - 1.0).collect());
    &all[..n]
}

fn indices(n: usize, below: i32) -> Vec<i32> {
    uncounted(|| (0..n as i32).map(|i| i * 7919 % below).collect())
}

fn x(shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(numbers(shape.iter().product()), shape, device)
}

/// The numbers of a tensor. It is planned first, uncounted: plans are as long as expressions.
fn read(y: &Tensor) -> Result<Vec<f32>> {
    uncounted(|| y.prepare())?;
    y.to_vec()
}

/// Runs a program on the CPU with each of its allocations refused.
#[track_caller]
fn on_cpu(name: &str, program: impl Fn(&Device) -> Result<Vec<f32>>) {
    let cpu = Device::cpu();
    numbers(1);
    check(name, LARGE, || cpu.trim(), || program(&cpu));
}

/// What the host allocates for tensors of a GPU. What wgpu does below 64 KiB is its own affair.
#[test]
#[cfg(feature = "gpu")]
fn hosts_of_gpus_can_run_out_of_memory() {
    let _turn = alone();
    for idx in 1..Device::all().len() {
        let (cpu, gpu) = (Device::cpu(), Device::open(&idx.to_string()).unwrap());
        let trim = || {
            gpu.trim();
            cpu.trim();
        };
        numbers(1);
        check("upload and read", 64 << 10, trim, || read(&x(&[50_000], &gpu).add(1.0)));
        check("upload of f64", 64 << 10, trim, || {
            let data: Vec<f64> = uncounted(|| (0..30_000).map(f64::from).collect());
            read(&Tensor::from_slice(&data, [30_000], &gpu).mul(2.0))
        });
        check("there and back", 64 << 10, trim, || {
            let there = x(&[40_000], &cpu).exp().compute()?.to_device(&gpu);
            read(&there.add(1.0).compute()?.to_device(&cpu))
        });
    }
}

#[test]
fn entering_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("from_slice", |d| read(&x(&[5000], d).add(1.0)));
    on_cpu("from_vec of i64", |d| {
        let data: Vec<i64> = uncounted(|| (0..5000).collect());
        read(&Tensor::from_vec(data, [5000], d).to_dtype(DType::F32))
    });
    on_cpu("from_slice of f64", |d| {
        let data: Vec<f64> = uncounted(|| (0..5000).map(f64::from).collect());
        read(&Tensor::from_slice(&data, [5000], d).add(1.0))
    });
}

#[test]
fn leaving_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("to_vec of f64", |d| {
        let wide = x(&[3000], d).compute()?.to_vec::<f64>()?;
        Ok(uncounted(|| wide.iter().map(|v| *v as f32).collect()))
    });
    on_cpu("to_vec of bool", |d| {
        let y = x(&[9000], d).gt(0.1);
        uncounted(|| y.prepare())?;
        let bools = y.to_vec::<bool>()?;
        Ok(uncounted(|| bools.iter().map(|v| *v as u8 as f32).collect()))
    });
}

#[test]
fn maps_and_reductions_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("chain", |d| {
        let (a, b) = (x(&[40, 300], d), x(&[300], d));
        read(&a.add(&b).mul(2.0).exp().sub(&a))
    });
    on_cpu("softmax", |d| read(&x(&[40, 300], d).softmax(-1)));
    on_cpu("layer norm of f16", |d| {
        read(&x(&[40, 300], d).to_dtype(DType::F16).layer_norm(-1, None, None, 1e-5).to_dtype(DType::F32))
    });
    on_cpu("sums of columns", |d| read(&x(&[20_000, 12], d).mul(0.5).sum(keep(0)).add(x(&[4000, 12], d))));
    on_cpu("a long sum", |d| read(&x(&[200_000], d).exp().sum(..).add(x(&[2000], d))));
}

#[test]
fn products_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("matmul", |d| read(&x(&[120, 200], d).matmul(&x(&[200, 150], d)).relu()));
    on_cpu("matmul of f16", |d| {
        let (a, b) = (x(&[60, 200], d).to_dtype(DType::F16), x(&[150, 200], d).to_dtype(DType::F16));
        read(&a.matmul(&b.t()).to_dtype(DType::F32).add(1.0))
    });
    on_cpu("matmul of a row", |d| read(&x(&[1, 400], d).matmul(&x(&[400, 600], d)).tanh().add(x(&[2, 600], d))));
    on_cpu("matmul of integers", |d| {
        let a = x(&[50, 60], d).mul(100.0).to_dtype(DType::I32);
        read(&a.matmul(&a.t()).to_dtype(DType::F32))
    });
    on_cpu("matmul by batch", |d| read(&x(&[6, 40, 50], d).matmul(&x(&[6, 50, 40], d)).sum(-1).add(x(&[6, 40], d))));
}

#[test]
fn routines_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("sort", |d| read(&x(&[3, 4000], d).sort(-1, false)));
    on_cpu("sort of columns", |d| read(&x(&[700, 40], d).sort(0, true)));
    on_cpu("argsort", |d| read(&x(&[30, 200], d).argsort(-1, true).to_dtype(DType::F32)));
    on_cpu("cumsum", |d| read(&x(&[2, 40_000], d).cumsum(-1)));
    on_cpu("cumsum of columns", |d| read(&x(&[400, 100], d).cumsum(0)));
    on_cpu("scatter_add", |d| {
        let at = Tensor::from_vec(indices(9000, 3000), [9000], d);
        read(&x(&[3000], d).scatter_add(0, &at, &x(&[9000], d)))
    });
    on_cpu("scatter_add of rows", |d| {
        let at = Tensor::from_vec(indices(2000, 500), [100, 20], d);
        read(&x(&[500, 20], d).scatter_add(0, &at, &x(&[100, 20], d)))
    });
}

#[test]
fn moving_things_about_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("gather", |d| {
        let at = Tensor::from_vec(indices(6000, 40), [6000], d);
        read(&x(&[40, 8], d).index_select(0, &at))
    });
    on_cpu("cat", |d| read(&Tensor::cat(&[&x(&[2000], d).exp(), &x(&[3000], d), &x(&[100], d)], 0).mul(2.0)));
    on_cpu("pad and transpose", |d| read(&x(&[50, 80], d).pad(&[(1, 2), (3, 4)], 0.5).t().add(1.0)));
}

#[test]
fn a_training_step_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("step", |d| {
        let (data, mut w) = (x(&[64, 100], d), x(&[100, 40], d));
        for _ in 0..2 {
            let loss = data.matmul(&w).tanh().square().mean(..);
            let g = loss.grad(&[&w]).remove(0);
            let next = w.sub(g.mul(0.1));
            uncounted(|| next.prepare())?;
            w = next.compute()?.detach();
        }
        w.to_vec()
    });
}

#[test]
fn facades_can_run_out_of_memory() {
    let _turn = alone();
    on_cpu("weights", |d| {
        let mut weights = Weights::new(d);
        let mut y = uncounted(|| vec![0.0; 3 * 300]);
        // Plans are made uncounted, on weights that go away.
        uncounted(|| {
            let mut first = Weights::new(d);
            first.upload("w", numbers(300 * 200), 300, 200)?;
            first.matmul("w", numbers(3 * 200), &mut y, 3)
        })?;
        weights.upload("w", numbers(300 * 200), 300, 200)?;
        weights.matmul("w", numbers(3 * 200), &mut y, 3)?;
        Ok(y)
    });
    on_cpu("batch", |d| {
        let mut batch = Batch::new(d);
        let a = batch.upload(numbers(3000));
        let b = batch.gelu(a);
        let c = batch.add(a, b);
        uncounted(|| batch.tensor(c).prepare())?;
        batch.execute_blocking()?;
        batch.read_blocking(c)
    });
    let cpu_form = Arc::new(|x: &[f32]| x[0] * 2.0);
    let op = CustomOp { name: "twice".into(), wgsl: "$0 * 2.0".into(), cpu: cpu_form, grad: None };
    on_cpu("custom", |d| read(&Tensor::map_custom(&op, &[&x(&[5000], d)]).add(1.0)));
}

#[test]
fn printing_can_run_out_of_memory() {
    let _turn = alone();
    let cpu = Device::cpu();
    let text = || {
        let y = x(&[3000], &cpu).add(1.0);
        uncounted(|| y.prepare()).map(|_| y.to_string()).unwrap_or_else(|error| error.to_string())
    };
    let expected = text();
    cpu.trim();
    let (_, n) = refusing(usize::MAX..=usize::MAX, text);
    for k in 1..=n {
        cpu.trim();
        let (found, _) = refusing(k..=usize::MAX, text);
        assert!(
            found != expected && found.contains("memory") || found.contains("could not be had"),
            "{k} of {n}: {found}"
        );
        assert_eq!(text(), expected);
    }
    assert!(n > 1);
}

/// Whatever ends in an error for want of memory leaves the tensors it was to be made of as they were.
#[test]
fn an_evaluation_that_ran_out_of_memory_can_be_tried_again() {
    let _turn = alone();
    let cpu = Device::cpu();
    let build = || {
        // Computed, so that the memory is the pool's and may be overwritten in place.
        let donated = x(&[4000], &cpu).mul(1.0).compute().unwrap();
        let in_place = donated.exp();
        drop(donated);
        in_place.sort(0, false).add(1.0)
    };
    let expected = build().to_vec::<f32>().unwrap();
    cpu.trim();
    let first = build();
    first.prepare().unwrap();
    let (_, n) = refusing(usize::MAX..=usize::MAX, || first.compute().map(drop));
    assert!(n >= 2, "{n} allocations");
    for k in 1..=n {
        cpu.trim();
        let y = build();
        y.prepare().unwrap();
        let refused = refusing(k..=usize::MAX, || y.compute().map(drop)).0;
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{k} of {n}: {refused:?}");
        assert_eq!(y.to_vec::<f32>().unwrap(), expected, "{k} of {n}");
    }
}
