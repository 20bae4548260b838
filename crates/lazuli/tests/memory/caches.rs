//! Plans, compiled kernels and idle memory are bounded: by `LAZULI_CACHE_BYTES`, which is read once, so most of these tests
//! run in a process of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli::{Attention, CustomOp, DType, Device, Stats, Tensor};
use lazuli_check::testing::{cached_bytes, resident_bytes};

use crate::refusing::{alone, live_bytes};
use crate::run_again;

/// Runs the test named in a process where caches may have so many bytes; true in that process.
fn with_cache(test: &str, bytes: usize) -> bool {
    if std::env::var_os("LAZULI_TEST_CHILD").is_some() {
        return true;
    }
    let (passed, text) = run_again(
        &format!("caches::{test}"),
        &[("LAZULI_TEST_CHILD", "1"), ("LAZULI_CACHE_BYTES", &bytes.to_string())],
    );
    assert!(passed, "{text}");
    println!("{text}");
    false
}

fn data(n: usize, device: &Device) -> Tensor {
    Tensor::from_vec((0..n).map(|i| (i % 13) as f32).collect(), [n], device)
}

/// An expression unlike those of other numbers: a shape, and which ops follow each other.
fn structure(number: usize, device: &Device) -> Tensor {
    let mut y = data(1 + number % 97, device);
    let mut rest = number;
    while rest > 0 {
        y = match rest % 6 {
            0 => y.add(1.0),
            1 => y.mul(&y),
            2 => y.sqrt(),
            3 => y.sub(y.sum(..)),
            4 => y.abs().neg(),
            _ => y.sin(),
        };
        rest /= 6;
    }
    y.sum(..)
}

/// How many structures; `cargo xtask soak` asks for more.
fn n_structures(default: usize) -> usize {
    std::env::var("LAZULI_SOAK_STRUCTURES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn any_number_of_structures_stays_below_the_bound() {
    let _turn = alone();
    const BYTES: usize = 4 << 20;
    if !with_cache("any_number_of_structures_stays_below_the_bound", BYTES) {
        return;
    }
    let cpu = Device::cpu();
    let n = n_structures(4000);
    let (mut most, mut resident) = (0, 0);
    for i in 0..n {
        structure(i, &cpu).item::<f32>().unwrap();
        most = most.max(cached_bytes(&cpu.stats()));
        if i == n / 4 {
            resident = resident_bytes();
        }
    }
    let stats = cpu.stats();
    assert_eq!(stats.plans_compiled + stats.plans_filled, n as u64, "every structure or size is another");
    // One plan may come before its elders go.
    assert!(most <= (BYTES + (64 << 10)) as u64, "{most} bytes: {stats:?}");
    assert!(most > BYTES as u64 / 2, "what is allowed is used: {most}");
    // What is measured from outside agrees: of the remaining three quarters nothing stays.
    let now = resident_bytes();
    assert!(now <= resident + 2 * BYTES, "{resident} bytes after a quarter, {now} at the end");
    println!("{n} structures: {} KiB cached at most, {} KiB resident", most >> 10, now >> 10);
}

#[test]
fn lengths_that_grow_take_no_more_memory() {
    let _turn = alone();
    const BYTES: usize = 32 << 20;
    if !with_cache("lengths_that_grow_take_no_more_memory", BYTES) {
        return;
    }
    let cpu = Device::cpu();
    let n = n_structures(5000);
    let (mut most, mut resident) = (0, 0);
    for i in 2..n + 2 {
        let x = data(2 * i, &cpu).reshape([1, 1, i, 2]);
        let seen = x.narrow(2, 0, 2).attention(&x, &x.exp(), Attention::default());
        seen.sum(..).item::<f32>().unwrap();
        most = most.max(cached_bytes(&cpu.stats()));
        if i == n / 4 {
            resident = resident_bytes();
        }
    }
    let stats = cpu.stats();
    assert!(stats.plans_compiled < 20 && stats.plans_filled > n as u64 - 20, "{stats:?}");
    // A sixteenth is for filled plans; what was planned is small.
    assert!(most < BYTES as u64 / 12, "{most} bytes: {stats:?}");
    let now = resident_bytes();
    assert!(now <= resident + (4 << 20), "{resident} bytes after a quarter, {now} at the end");
    println!("{n} lengths: {} KiB cached at most, {} KiB resident", most >> 10, now >> 10);
}

#[test]
fn what_is_used_stays() {
    let _turn = alone();
    if !with_cache("what_is_used_stays", 1 << 20) {
        return;
    }
    let cpu = Device::cpu();
    structure(7777, &cpu).item::<f32>().unwrap();
    for i in 0..2000 {
        structure(i, &cpu).item::<f32>().unwrap();
        cpu.reset_stats();
        structure(7777, &cpu).item::<f32>().unwrap();
        let stats = cpu.stats();
        assert_eq!((stats.plan_hits, stats.plans_compiled, stats.pipelines_compiled), (1, 0, 0), "{i}: {stats:?}");
    }
    structure(3, &cpu).item::<f32>().unwrap();
    assert_eq!(cpu.stats().plans_compiled, 1, "what was used long ago is gone");
}

#[test]
fn functions_go_with_their_plans() {
    let _turn = alone();
    if !with_cache("functions_go_with_their_plans", 1 << 20) {
        return;
    }
    let cpu = Device::cpu();
    let held = Arc::new(());
    let x = data(8, &cpu);
    for i in 0..5000 {
        let (mine, by) = (held.clone(), i as f32);
        let cpu_form = Arc::new(move |x: &[f32]| {
            let _ = &mine;
            x[0] + by
        });
        let op = CustomOp { name: "plus".into(), wgsl: "$0".into(), cpu: cpu_form, grad: None };
        assert_eq!(Tensor::map_custom(&op, &[&x]).to_vec::<f32>().unwrap()[1], 1.0 + by);
    }
    assert!(Arc::strong_count(&held) < 1000, "{} functions are kept", Arc::strong_count(&held));
    cpu.trim();
    assert_eq!(Arc::strong_count(&held), 1);
}

/// Computes on the device when it is dropped.
struct ComputesWhenDropped(Arc<AtomicUsize>);

impl Drop for ComputesWhenDropped {
    fn drop(&mut self) {
        let sum = Tensor::ones([3], DType::F32, &Device::cpu()).sum(..).item::<f32>().unwrap();
        self.0.fetch_add(sum as usize, Ordering::Relaxed);
    }
}

#[test]
fn a_function_may_compute_when_it_goes() {
    let _turn = alone();
    if !with_cache("a_function_may_compute_when_it_goes", 64 << 10) {
        return;
    }
    let cpu = Device::cpu();
    let sums = Arc::new(AtomicUsize::new(0));
    for i in 0..100 {
        let owned = ComputesWhenDropped(sums.clone());
        let cpu_form = Arc::new(move |x: &[f32]| {
            let _ = &owned;
            x[0] + i as f32
        });
        let op = CustomOp { name: "plus".into(), wgsl: "$0".into(), cpu: cpu_form, grad: None };
        Tensor::map_custom(&op, &[&data(4, &cpu)]).to_vec::<f32>().unwrap();
    }
    cpu.trim();
    assert_eq!(sums.load(Ordering::Relaxed), 300);
}

#[test]
fn with_no_bytes_at_all_the_last_plan_stays() {
    let _turn = alone();
    if !with_cache("with_no_bytes_at_all_the_last_plan_stays", 0) {
        return;
    }
    let cpu = Device::cpu();
    for _ in 0..3 {
        cpu.reset_stats();
        assert_eq!(data(4, &cpu).add(2.0).to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(data(4, &cpu).add(3.0).to_vec::<f32>().unwrap(), [3.0, 4.0, 5.0, 6.0]);
        assert_eq!(data(4, &cpu).sqrt().to_vec::<f32>().unwrap()[1], 1.0);
        let stats = cpu.stats();
        assert_eq!((stats.plans_compiled, stats.plan_hits), (2, 1), "{stats:?}");
    }
}

#[test]
fn a_number_of_bytes_that_is_none_is_warned_of_once() {
    let _turn = alone();
    if std::env::var_os("LAZULI_TEST_CHILD").is_some() {
        data(4, &Device::cpu()).add(1.0).to_vec::<f32>().unwrap();
        return;
    }
    let variables = [("LAZULI_TEST_CHILD", "1"), ("LAZULI_CACHE_BYTES", "lots")];
    let (passed, text) = run_again("caches::a_number_of_bytes_that_is_none_is_warned_of_once", &variables);
    assert!(passed, "{text}");
    assert_eq!(text.matches("lazuli: LAZULI_CACHE_BYTES: \"lots\" is no number of bytes").count(), 1, "{text}");
}

#[test]
fn trimming_gives_back_all_that_nothing_uses() {
    let _turn = alone();
    let cpu = Device::cpu();
    let kept = data(50_000, &cpu).mul(2.0).compute().unwrap();
    let waiting = kept.add(1.0);
    structure(12345, &cpu).item::<f32>().unwrap();
    drop(data(50_000, &cpu).exp().compute().unwrap());
    let before = cpu.stats();
    assert!(before.bytes_pooled > 0 && before.bytes_plans > 0 && before.bytes_programs > 0, "{before:?}");
    cpu.trim();
    let after = cpu.stats();
    assert_eq!((after.bytes_pooled, after.bytes_plans, after.bytes_programs), (0, 0, 0));
    assert_eq!(after.bytes_live, before.bytes_live);
    assert_eq!(waiting.to_vec::<f32>().unwrap()[5], 11.0);
    // What is held is no count: a reset leaves it.
    let held = cpu.stats();
    cpu.reset_stats();
    let reset = cpu.stats();
    assert_eq!((reset.submits, reset.plans_compiled, reset.bytes_uploaded), (0, 0, 0));
    let gauges = |s: &Stats| (s.bytes_live, s.bytes_pooled, s.bytes_plans, s.bytes_programs, s.bytes_pipelines);
    assert_eq!(gauges(&reset), gauges(&held));
}

#[test]
fn a_tensor_grown_by_cat_leaves_little_behind() {
    let _turn = alone();
    let cpu = Device::cpu();
    cpu.trim();
    let mut all = Tensor::zeros([1 << 18], DType::F32, &cpu).compute().unwrap();
    let part = Tensor::ones([1 << 20], DType::F32, &cpu).compute().unwrap();
    for _ in 0..25 {
        all = Tensor::cat(&[&all, &part], 0).compute().unwrap();
    }
    let stats = cpu.stats();
    let size_bytes = (26 << 20) * 4;
    println!("{} MiB of tensor, {} MiB in the pool", size_bytes >> 20, stats.bytes_pooled >> 20);
    assert!(stats.bytes_pooled <= 3 * size_bytes, "{stats:?}");
    drop((all, part));
    cpu.trim();
}

#[test]
fn what_caches_say_they_hold_is_what_they_hold() {
    let _turn = alone();
    let cpu = Device::cpu();
    structure(1, &cpu).item::<f32>().unwrap();
    cpu.trim();
    let before = live_bytes();
    for i in 0..1500 {
        structure(i * 7 + 1, &cpu).item::<f32>().unwrap();
    }
    let stats = cpu.stats();
    let said = cached_bytes(&stats) + stats.bytes_pooled;
    let held = (live_bytes() - before) as u64;
    println!("{said} bytes said, {held} held: {stats:?}");
    assert!(said >= held * 7 / 10 && said <= held * 13 / 10, "{said} bytes said, {held} held: {stats:?}");
    cpu.trim();
    // What the threads keep, and the lists of the maps.
    assert!(live_bytes() < before + (256 << 10), "{} bytes are left", live_bytes() - before);
}
