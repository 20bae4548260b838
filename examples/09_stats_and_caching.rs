//! What the second run costs: no plan, no compilation, no allocation. The device counts, so that a test can say so.
//! Run it with `cargo run --release --example 09_stats_and_caching`.

use lazuli::{Device, Result, Stats, Tensor};

/// One step of some simulation: heat spreading along a rod. `rate` is a parameter of the plan, not part of it.
fn step(heat: &Tensor, rate: f32) -> Tensor {
    let n = heat.shape().map_or(0, |shape| shape[0]);
    let padded = heat.pad(&[(1, 1)], 0.0);
    let neighbours = padded.narrow(0, 0, n).add(&padded.narrow(0, 2, n));
    heat.add(&neighbours.sub(&heat.mul(2.0)).mul(rate))
}

/// What the device did while `f` ran.
fn during(device: &Device, f: impl FnOnce() -> Result<()>) -> Result<Stats> {
    device.reset_stats();
    f()?;
    Ok(device.stats())
}

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let mut heat = Tensor::arange(0.0, 1.0, 1.0 / 65536.0, &cpu).compute()?;

    // The first steps plan and allocate.
    let first = during(&cpu, || {
        for _ in 0..3 {
            heat = step(&heat, 0.25).compute()?;
        }
        Ok(())
    })?;
    println!("three first steps: {first:?}");
    assert_eq!(first.submits, 3);
    assert!(first.plans_compiled >= 1);

    // The next hundred find everything there. Another rate is another number, not another plan.
    let later = during(&cpu, || {
        for i in 0..100 {
            heat = step(&heat, 0.2 + 0.001 * i as f32).compute()?;
        }
        Ok(())
    })?;
    println!("a hundred later steps: {later:?}");
    assert_eq!(later.submits, 100);
    assert_eq!(later.dispatches, 100);
    assert_eq!(later.plan_hits, 100);
    assert_eq!(later.plans_compiled, 0);
    assert_eq!(later.buffers_created, 0);
    assert_eq!(later.bytes_downloaded, 0);

    // Memory goes back as soon as nobody holds it: what is live is the one tensor we keep.
    let kept = heat.shape()?[0] as u64 * 4;
    assert!(cpu.stats().bytes_live >= kept);
    let before = cpu.stats().bytes_live;
    let extra = heat.add(1.0).compute()?;
    assert!(cpu.stats().bytes_live >= before + kept);
    drop(extra);
    assert_eq!(cpu.stats().bytes_live, before);

    // Ten steps at once are one plan. Nothing in between is kept longer than it is needed.
    let mut ten = heat.clone();
    for _ in 0..10 {
        ten = step(&ten, 0.25);
    }
    let plan = ten.explain()?;
    println!("ten steps as one plan: {} submit, {} B of temporaries", plan.submits, plan.peak_temp_bytes);
    assert_eq!(plan.submits, 1);
    assert_eq!(plan.peak_temp_bytes, plan.peak_temp_lower_bound);
    ten.compute()?;
    Ok(())
}
