//! What a second run costs: nothing.

use lazuli::{Device, Stats, Tensor};

use crate::{alone, gpus};

fn data(n: usize, seed: usize, gpu: &Device) -> Tensor {
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), [n], gpu)
}

fn chain(n: usize, scale: f32, seed: usize, gpu: &Device) -> Tensor {
    let (x, y) = (data(n, seed, gpu), data(n, seed + 1, gpu));
    x.add(&y).mul(scale).sub(&x).relu()
}

fn cost(gpu: &Device, f: impl FnOnce() -> Tensor) -> Stats {
    gpu.reset_stats();
    f().to_vec::<f32>().unwrap();
    gpu.stats()
}

/// Everything that must not happen again.
#[track_caller]
fn assert_free(stats: Stats) {
    let compiled = (stats.plans_compiled, stats.pipelines_compiled, stats.buffers_created);
    assert_eq!((compiled, stats.submits), ((0, 0, 0), 1), "{stats:?}");
}

#[test]
fn the_second_run_of_a_structure_costs_nothing() {
    let _turn = alone();
    for gpu in gpus() {
        cost(&gpu, || chain(1000, 1.5, 0, &gpu));
        assert_free(cost(&gpu, || chain(1000, 1.5, 7, &gpu)));
    }
}

#[test]
fn another_scalar_costs_nothing_and_is_used() {
    let _turn = alone();
    for gpu in gpus() {
        cost(&gpu, || chain(500, 1.5, 0, &gpu));
        for scale in [0.25, -3.0, 1e-3] {
            let there = chain(500, scale, 0, &gpu);
            let here = chain(500, scale, 0, &Device::cpu());
            gpu.reset_stats();
            assert_eq!(there.to_vec::<f32>().unwrap(), here.to_vec::<f32>().unwrap());
            assert_free(gpu.stats());
        }
    }
}

#[test]
fn runs_in_flight_keep_their_own_scalars() {
    let _turn = alone();
    for gpu in gpus() {
        let x = data(70_000, 3, &gpu).compute().unwrap();
        let scaled: Vec<Tensor> = (0..20).map(|i| x.mul(i as f32).compute().unwrap()).collect();
        let first = x.to_vec::<f32>().unwrap()[1];
        for (i, y) in scaled.iter().enumerate() {
            assert_eq!(y.to_vec::<f32>().unwrap()[1], first * i as f32);
        }
    }
}

#[test]
fn another_size_compiles_no_kernel() {
    let _turn = alone();
    for gpu in gpus() {
        cost(&gpu, || chain(4096, 1.5, 0, &gpu));
        for n in [8192, 12, 400_000] {
            let again = cost(&gpu, || chain(n, 1.5, 0, &gpu));
            assert_eq!((again.pipelines_compiled, again.submits), (0, 1), "{n}: {again:?}");
        }
    }
}

#[test]
fn a_chain_of_a_hundred_is_one_dispatch() {
    let _turn = alone();
    for gpu in gpus() {
        let x = data(3000, 0, &gpu);
        let y = (0..50).fold(x.clone(), |y, _| y.mul(0.5).add(&x));
        let plan = y.explain().unwrap();
        assert_eq!((plan.dispatches, plan.submits, plan.kernels.len()), (1, 1, 1), "{plan}");
        assert!(plan.kernels[0].wgsl.as_ref().is_some_and(|text| text.contains("@compute")));
        let stats = cost(&gpu, || y);
        assert_eq!((stats.dispatches, stats.submits), (1, 1), "{stats:?}");
    }
}

#[test]
fn what_is_prepared_compiles_nothing_more() {
    let _turn = alone();
    for gpu in gpus() {
        let y = data(77, 0, &gpu).sin().mul(0.125).cos();
        y.prepare().unwrap();
        gpu.reset_stats();
        y.to_vec::<f32>().unwrap();
        let stats = gpu.stats();
        assert_eq!((stats.plans_compiled, stats.pipelines_compiled), (0, 0), "{stats:?}");
    }
}

#[test]
fn dropped_results_leave_nothing_behind() {
    let _turn = alone();
    for gpu in gpus() {
        let x = data(10_000, 0, &gpu).compute().unwrap();
        x.add(0.5).compute().unwrap();
        gpu.sync().unwrap();
        let before = gpu.stats().bytes_live;
        gpu.reset_stats();
        for i in 0..2000 {
            drop(x.add(i as f32 + 0.5).compute().unwrap());
        }
        gpu.sync().unwrap();
        let stats = gpu.stats();
        assert_eq!((stats.bytes_live, stats.buffers_created, stats.submits), (before, 0, 2000), "{stats:?}");
    }
}

#[test]
fn eight_threads_share_a_device() {
    let _turn = alone();
    for gpu in gpus() {
        let common = data(5000, 1, &gpu);
        std::thread::scope(|scope| {
            for t in 0..8usize {
                let (gpu, common) = (&gpu, &common);
                scope.spawn(move || {
                    for i in 0..25 {
                        let n = 5000;
                        let y = data(n, t, gpu).mul(i as f32).add(common);
                        let expected = data(n, t, &Device::cpu()).mul(i as f32).add(&data(n, 1, &Device::cpu()));
                        assert_eq!(y.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
                    }
                });
            }
        });
    }
}

#[test]
fn memory_of_a_view_is_not_overwritten() {
    let _turn = alone();
    for device in gpus().into_iter().chain([Device::cpu()]) {
        let x = data(64, 0, &device);
        let before = x.to_vec::<f32>().unwrap();
        let y = x.reshape([8, 8]).compute().unwrap();
        let z = y.add(1.0);
        drop(y);
        z.compute().unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), before);
    }
}

#[test]
fn tensors_move_between_devices() {
    let _turn = alone();
    let cpu = Device::cpu();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 10.0, 1.0, &cpu);
        let there = x.add(1.0).to_device(&gpu).mul(2.0);
        assert_eq!(there.device().unwrap(), &gpu);
        let back = there.to_device(&cpu).sub(1.0);
        assert_eq!(back.to_vec::<f32>().unwrap(), (0..10).map(|i| i as f32 * 2.0 + 1.0).collect::<Vec<_>>());
        let bytes = Tensor::from_slice(&[1u8, 2, 3, 4, 5], [5], &cpu).to_device(&gpu);
        assert_eq!(bytes.add(1).to_vec::<u8>().unwrap(), [2, 3, 4, 5, 6]);
    }
}
