//! The tour: three pieces of maths, each planned, explained, and raced against itself run op by op.

use std::io::Write;
use std::time::{Duration, Instant};

use lazuli::{Device, Result, Tensor, keep};

use crate::args::Size;
use crate::{Outcome, counted};

/// One piece of maths, written twice.
struct Stop {
    title: String,
    /// As a user writes it.
    code: &'static str,
    inputs: Vec<Tensor>,
    /// One expression; nothing runs until it is computed.
    lazy: fn(&[Tensor]) -> Tensor,
    /// The same, computed after each op, as a library without a planner has to.
    op_by_op: fn(&[Tensor]) -> Result<Tensor>,
    /// How fast is said: in floating-point operations where they are what takes the time, else in bytes.
    flops: Option<usize>,
}

/// Runs the tour on `device`.
pub fn run(device: &Device, size: Size, out: &mut dyn Write) -> Outcome {
    writeln!(out, "Lazuli {}: tensor maths, planned as a whole and run at once\n", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "Devices (* is used here)")?;
    for (i, info) in Device::all().iter().enumerate() {
        let mark = if info == device.info() { '*' } else { ' ' };
        writeln!(out, "{mark} {i}  {info}")?;
    }
    writeln!(out, "\nEach stop below runs the same maths op by op and as one expression: best of several warm runs.")?;
    writeln!(out, "GB/s counts every input and every output once, however often it was really moved.")?;
    for (i, stop) in stops(device, size)?.iter().enumerate() {
        writeln!(out, "\n{}. {}\n   {}\n", i + 1, stop.title, stop.code)?;
        visit(device, stop, size, out)?;
    }
    mistake(device, out)?;
    writeln!(out, "\nNext: examples/ in order, docs/guide/, and `cargo xtask test` for all tests.")?;
    Ok(())
}

fn stops(device: &Device, size: Size) -> Result<Vec<Stop>> {
    let (n_chain, softmax, n_matmul) = match size {
        Size::Full => (16 << 20, [4096, 1024], 1024),
        Size::Quick => (1 << 18, [128, 1024], 128),
    };
    // Random numbers are recipes too: compute them now, so that making them is not part of what is timed.
    let random = |shape: &[usize], seed| Tensor::rand(shape, seed, device).sub(0.5).compute();
    let chain_shape = [n_chain];
    let square = [n_matmul, n_matmul];
    Ok(vec![
        Stop {
            title: format!("A chain over {} elements, three ops", count(n_chain)),
            code: "m1.add(&m2).mul(5.0).sub(&m3)",
            inputs: vec![random(&chain_shape, 1)?, random(&chain_shape, 2)?, random(&chain_shape, 3)?],
            lazy: |m| m[0].add(&m[1]).mul(5.0).sub(&m[2]),
            op_by_op: |m| {
                let sum = m[0].add(&m[1]).compute()?;
                let scaled = sum.mul(5.0).compute()?;
                scaled.sub(&m[2]).compute()
            },
            flops: None,
        },
        Stop {
            title: format!("Softmax along the rows of {softmax:?}"),
            code: "x.softmax(-1)",
            inputs: vec![random(&softmax, 4)?],
            lazy: |x| x[0].softmax(-1),
            op_by_op: |x| {
                let max = x[0].max(keep(-1)).compute()?;
                let shifted = x[0].sub(&max).compute()?;
                let exp = shifted.exp().compute()?;
                let sum = exp.sum(keep(-1)).compute()?;
                let scale = sum.recip().compute()?;
                exp.mul(&scale).compute()
            },
            flops: None,
        },
        Stop {
            title: format!("A layer: matmul {n_matmul}³ with bias and activation"),
            code: "x.matmul(&w).add(&b).relu()",
            inputs: vec![random(&square, 5)?, random(&square, 6)?, random(&[n_matmul], 7)?],
            lazy: |x| x[0].matmul(&x[1]).add(&x[2]).relu(),
            op_by_op: |x| {
                let product = x[0].matmul(&x[1]).compute()?;
                let shifted = product.add(&x[2]).compute()?;
                shifted.relu().compute()
            },
            flops: Some(2 * n_matmul * n_matmul * n_matmul),
        },
    ])
}

/// Shows the plan of a stop, checks that both ways give the same numbers, and races them.
fn visit(device: &Device, stop: &Stop, size: Size, out: &mut dyn Write) -> Outcome {
    let plan = (stop.lazy)(&stop.inputs).explain()?;
    for line in plan.to_string().lines() {
        writeln!(out, "   | {line}")?;
    }

    let (fused, single) = ((stop.lazy)(&stop.inputs).compute()?, (stop.op_by_op)(&stop.inputs)?);
    let n_ulps = furthest(&fused.to_vec()?, &single.to_vec()?);
    if n_ulps > MAX_ULPS {
        return Err(format!("fused and op by op differ by {n_ulps} ULP in {}", stop.code).into());
    }
    drop((fused, single));

    let budget = Duration::from_millis(if size == Size::Full { 700 } else { 20 });
    let slow = race(device, budget, || (stop.op_by_op)(&stop.inputs))?;
    let fast = race(device, budget, || (stop.lazy)(&stop.inputs).compute())?;
    let speed = |time: Duration| match stop.flops {
        Some(flops) => format!("{:>7.1} GFLOP/s", flops as f64 / time.as_secs_f64() / 1e9),
        None => format!("{:>7.1} GB/s", plan.bytes_moved_lower_bound as f64 / time.as_secs_f64() / 1e9),
    };
    writeln!(out)?;
    for (name, result) in [("op by op", &slow), ("one plan", &fast)] {
        writeln!(
            out,
            "   {name}  {:>8.3} ms {}   {}, {} allocated, {} made",
            result.best.as_secs_f64() * 1e3,
            speed(result.best),
            counted(result.n_kernels, "kernel", "kernels"),
            counted(result.n_allocated, "memory block", "memory blocks"),
            counted(result.n_planned, "plan", "plans"),
        )?;
    }
    let ratio = slow.best.as_secs_f64() / fast.best.as_secs_f64();
    let agreement = match n_ulps {
        0 => "the results are equal to the bit".to_string(),
        n => format!("the results differ by at most {n} ULP"),
    };
    writeln!(out, "   {ratio:.2} times as fast; {agreement}")?;
    Ok(())
}

/// What a race found out.
struct Timing {
    best: Duration,
    /// Per run.
    n_kernels: u64,
    /// In all warm runs together: memory blocks that had to be allocated, and plans that had to be made.
    n_allocated: u64,
    n_planned: u64,
}

/// Fused and unfused kernels may sum in another order; more than this is a fault.
const MAX_ULPS: u32 = 16;
const MIN_RUNS: u32 = 5;

/// The best of several runs, after some that do not count.
fn race(device: &Device, budget: Duration, mut run: impl FnMut() -> Result<Tensor>) -> Result<Timing> {
    for _ in 0..2 {
        run()?;
    }
    device.sync()?;
    let before = device.stats();
    let (start, mut best, mut n_runs) = (Instant::now(), Duration::MAX, 0);
    while n_runs < MIN_RUNS || start.elapsed() < budget {
        let lap = Instant::now();
        // Dropped before the next run, which may then use the same memory again.
        let result = run()?;
        device.sync()?;
        best = best.min(lap.elapsed());
        drop(result);
        n_runs += 1;
    }
    let after = device.stats();
    Ok(Timing {
        best,
        n_kernels: (after.dispatches - before.dispatches) / u64::from(n_runs),
        n_allocated: after.buffers_created - before.buffers_created,
        n_planned: after.plans_compiled - before.plans_compiled,
    })
}

/// The largest distance between numbers of two results, in units in the last place.
fn furthest(a: &[f32], b: &[f32]) -> u32 {
    // Floats in order, as integers: the negative ones count backwards.
    let rank =
        |x: f32| if x.is_sign_negative() { -((x.to_bits() & i32::MAX as u32) as i64) } else { x.to_bits() as i64 };
    let distance = |(x, y): (&f32, &f32)| rank(*x).abs_diff(rank(*y)).min(u32::MAX.into()) as u32;
    if a.len() != b.len() { u32::MAX } else { a.iter().zip(b).map(distance).max().unwrap_or(0) }
}

/// What a mistake looks like: it is carried along, and says where it was made.
fn mistake(device: &Device, out: &mut dyn Write) -> Outcome {
    let (a, b) = (Tensor::rand([4, 3], 1, device), Tensor::rand([4, 5], 2, device));
    let y = a.matmul(&b).tanh().sum(..);
    writeln!(out, "\n4. A mistake: nothing panics, and whoever wants the number is told where it went wrong\n")?;
    match y.item::<f32>() {
        Ok(_) => Err("a product of [4, 3] and [4, 5] was not refused".into()),
        Err(error) => Ok(writeln!(out, "   {error}")?),
    }
}

/// `16 Mi`, where it is one.
fn count(n: usize) -> String {
    match n {
        _ if n.is_multiple_of(1 << 20) => format!("{} Mi", n >> 20),
        _ if n.is_multiple_of(1 << 10) => format!("{} Ki", n >> 10),
        _ => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_representable_numbers() {
        assert_eq!(furthest(&[1.0, 2.0], &[1.0, 2.0]), 0);
        assert_eq!(furthest(&[0.0], &[-0.0]), 0);
        assert_eq!(furthest(&[1.0], &[1.0 + f32::EPSILON]), 1);
        assert_eq!(furthest(&[f32::from_bits(1)], &[-f32::from_bits(1)]), 2);
        assert!(furthest(&[1.0], &[f32::NAN]) > MAX_ULPS);
        assert!(furthest(&[1.0], &[]) > MAX_ULPS);
    }
}
