//! The steady state: what a second run costs, what is reused, what is given back, and many threads at once. Counters
//! belong to the device, which all tests share, so these tests have it to themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lazuli::{DType, Stats, Tensor, keep};

use crate::alone;
use crate::device::device;

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), shape, &device())
}

/// A structure of every kernel form: matmul, reduction, map, routine and gather.
fn model(batch: usize, scale: f32, seed: usize) -> Tensor {
    let (x, w) = (data(&[batch, 24], seed), data(&[24, 16], seed + 1));
    let hidden = x.matmul(&w).mul(scale).relu();
    let attention = hidden.softmax(-1).add(hidden.mean(keep(0)));
    let order = attention.argsort(-1, true);
    attention.gather(-1, &order).cumsum(-1).layer_norm(-1, None, None, 1e-5).sum(0)
}

/// What running `f` does to the counters, its result read and dropped.
fn cost(f: impl FnOnce() -> Tensor) -> Stats {
    let cpu = device();
    cpu.reset_stats();
    f().to_vec::<f32>().unwrap();
    cpu.stats()
}

#[test]
fn the_second_run_of_a_structure_compiles_plans_and_allocates_nothing() {
    let _device = alone();
    cost(|| model(13, 1.5, 0));
    let again = cost(|| model(13, 1.5, 5));
    assert_eq!((again.plans_compiled, again.plan_hits), (0, 1), "{again:?}");
    assert_eq!((again.pipelines_compiled, again.buffers_created, again.submits), (0, 0, 1), "{again:?}");
}

#[test]
fn another_scalar_plans_nothing() {
    let _device = alone();
    cost(|| model(11, 1.5, 0));
    for scale in [0.25, -3.0, 1e-3] {
        let again = cost(|| model(11, scale, 0));
        assert_eq!((again.plans_compiled, again.pipelines_compiled), (0, 0), "{scale}: {again:?}");
    }
}

#[test]
fn a_scalar_that_meets_another_number_plans_nothing() {
    let _device = alone();
    // A rate beside the numbers that the library itself uses for these ops, and beside another of the user's.
    let step = |rate: f32, other: f32| {
        let x = data(&[31], 1).tracked();
        let y = x.leaky_relu(rate).add(rate).mul(other).sigmoid().clamp(rate, 8.0).pow(3.0);
        let loss = y.gelu().sub(rate).sum(..);
        x.sub(loss.grad(&[&x])[0].mul(rate))
    };
    cost(|| step(0.3, 0.7));
    for (rate, other) in [(0.0, 0.7), (1.0, 0.7), (-1.0, 0.7), (0.5, 0.5), (-0.0, 0.0), (0.044715, 2.0), (0.7, 1.0)] {
        let again = cost(|| step(rate, other));
        assert_eq!((again.plans_compiled, again.plan_hits), (0, 1), "{rate}, {other}: {again:?}");
    }
}

#[test]
fn equal_numbers_of_one_line_are_one_so_that_equal_maps_are_made_once() {
    let _device = alone();
    let x = data(&[40], 2);
    let both: Vec<Tensor> = (0..2).map(|_| x.mul(2.0).exp()).collect();
    let plan = lazuli::explain(&[&both[0], &both[1]]).unwrap();
    assert_eq!(plan.bytes_moved, 2 * 40 * 4, "{plan}");
}

#[test]
fn another_batch_size_compiles_no_kernel() {
    let _device = alone();
    cost(|| model(17, 1.5, 0));
    for batch in [18, 40, 3, 129] {
        let again = cost(|| model(batch, 1.5, 0));
        assert_eq!(again.pipelines_compiled, 0, "{batch}: {again:?}");
    }
}

#[test]
fn many_outputs_are_one_submit() {
    let _device = alone();
    let cpu = device();
    let x = data(&[50, 50], 0);
    let outputs = [x.exp(), x.sum(0), x.matmul(&x), x.sort(-1, false)];
    cpu.reset_stats();
    lazuli::compute(&outputs.each_ref()).unwrap();
    assert_eq!(cpu.stats().submits, 1);
    // What is there already costs nothing.
    lazuli::compute(&outputs.each_ref()).unwrap();
    outputs[0].to_vec::<f32>().unwrap();
    assert_eq!(cpu.stats().submits, 1);
}

#[test]
fn an_update_whose_old_weights_are_dropped_reuses_their_memory() {
    let _device = alone();
    let cpu = device();
    let n = 100_000;
    // Computed, so that it is the device's own memory.
    let mut w = data(&[n], 1).mul(1.0).compute().unwrap();
    let gradient = data(&[n], 2).mul(1.0).compute().unwrap();
    let expect = |steps: usize| {
        let g = gradient.to_vec::<f32>().unwrap();
        let start = data(&[n], 1).to_vec::<f32>().unwrap();
        (0..n).map(|i| (0..steps).fold(start[i], |w, _| w - g[i] * 0.125)).collect::<Vec<f32>>()
    };
    w = (&w - &gradient * 0.125).compute().unwrap();
    cpu.reset_stats();
    let before = cpu.stats();
    for _ in 0..10 {
        w = (&w - &gradient * 0.125).compute().unwrap();
    }
    let held = cpu.stats();
    assert_eq!((held.buffers_created, held.bytes_live), (0, before.bytes_live), "{held:?}");
    // The old handle lives until the new one is there, so one more may be held, but not if it is let go before.
    assert!(held.bytes_peak <= before.bytes_live + 4 * n as u64, "{held:?}");
    let mut in_place = || {
        let next = &w - &gradient * 0.125;
        drop(std::mem::replace(&mut w, next));
        w = w.compute().unwrap();
    };
    // Written in place it is another plan, whose first run may need more memory for tiles.
    in_place();
    cpu.reset_stats();
    (0..10).for_each(|_| in_place());
    let donated = cpu.stats();
    assert_eq!((donated.buffers_created, donated.bytes_live), (0, before.bytes_live), "{donated:?}");
    assert_eq!(donated.bytes_peak, before.bytes_live, "in place: {donated:?}");
    assert_eq!(w.to_vec::<f32>().unwrap(), expect(22));
}

#[test]
fn what_somebody_else_holds_is_never_overwritten() {
    let _device = alone();
    let w = data(&[5000], 1).mul(1.0).compute().unwrap();
    let kept = w.clone();
    let before = w.to_vec::<f32>().unwrap();
    let next = w.sub(1.0);
    drop(w);
    next.compute().unwrap();
    assert_eq!(kept.to_vec::<f32>().unwrap(), before);
    // A view is a holder too.
    let w = data(&[50, 100], 1).mul(1.0).compute().unwrap();
    let (seen, before) = (w.t(), w.t().to_vec::<f32>().unwrap());
    let next = w.mul(2.0);
    drop(w);
    next.compute().unwrap();
    assert_eq!(seen.to_vec::<f32>().unwrap(), before);
}

#[test]
fn ten_thousand_steps_leak_nothing() {
    let _device = alone();
    let cpu = device();
    let step = |w: &Tensor, i: usize| {
        let x = data(&[8, 6], i);
        let loss = x.matmul(w).tanh().square().mean(..);
        (w - &x.t().matmul(&x.matmul(w)) * 1e-3, loss)
    };
    let w = data(&[6, 4], 0);
    w.add(0.0).compute().unwrap();
    let start = cpu.stats().bytes_live;
    {
        let mut w = w.clone();
        for i in 0..10_000 {
            let (next, loss) = step(&w, i);
            // Now and then a result is dropped before, or without, being computed.
            match i % 5 {
                0 => drop(loss),
                1 => drop(loss.compute()),
                _ => assert!(loss.item::<f32>().unwrap() >= 0.0),
            }
            w = if i % 3 == 0 { next.compute().unwrap() } else { next };
        }
        assert!(w.to_vec::<f32>().unwrap().iter().all(|v| v.is_finite()));
    }
    assert_eq!(cpu.stats().bytes_live, start);
}

#[test]
fn eight_threads_share_tensors_and_agree() {
    let _device = alone();
    let done = Arc::new(AtomicBool::new(false));
    let watch = done.clone();
    // A deadlock must fail the test, not hang it.
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(120));
        if !watch.load(Ordering::Relaxed) {
            eprintln!("eight threads did not come to an end");
            std::process::abort();
        }
    });
    let start = device().stats().bytes_live;
    {
        // Shared and not yet computed: whoever comes first computes it.
        let pending = data(&[64, 64], 3).exp().matmul(&data(&[64, 64], 4));
        let expect = data(&[64, 64], 3).exp().matmul(&data(&[64, 64], 4)).sum(-1).to_vec::<f32>().unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (pending, expect) = (&pending, &expect);
                scope.spawn(move || {
                    for round in 0..30 {
                        let mine = pending.sum(-1);
                        if (round + thread) % 4 == 0 {
                            // Dropped half-way.
                            drop(pending.mul(round as f32).softmax(0));
                            drop(pending.add(1.0).compute());
                        }
                        assert_eq!(&mine.to_vec::<f32>().unwrap(), expect);
                        let own = data(&[100, 7], thread).mul(thread as f32).sum(0).to_vec::<f32>().unwrap();
                        assert_eq!(own, data(&[100, 7], thread).mul(thread as f32).sum(0).to_vec::<f32>().unwrap());
                    }
                });
            }
        });
    }
    done.store(true, Ordering::Relaxed);
    assert_eq!(device().stats().bytes_live, start);
}

#[test]
fn counters_say_what_was_moved() {
    let _device = alone();
    let cpu = device();
    cpu.reset_stats();
    let x = Tensor::from_slice(&[1.0f32; 100], [100], &cpu);
    x.add(1.0).to_vec::<f32>().unwrap();
    let stats = cpu.stats();
    // A device may bring numbers over when they are first used.
    assert_eq!(stats.bytes_uploaded, 400, "{stats:?}");
    assert_eq!((stats.bytes_downloaded, stats.dispatches, stats.submits), (400, 1, 1), "{stats:?}");
    assert!(stats.bytes_peak >= 800);
    assert_eq!(Tensor::zeros([2], DType::F32, &cpu).device().unwrap(), &cpu);
}
