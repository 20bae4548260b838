//! How fast a device is: bytes and operations per second by kernels that do little else, and what products and their like
//! reach of that. Times are the best of several runs, from handing work over until it is done.

use std::time::{Duration, Instant};

use lazuli::{Attention, Conv, DType, Device, DeviceKind, Result, Tensor};

use super::arithmetic::operations_per_second;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Speeds {
    /// Bytes per second, by the fastest of some kernels that only move.
    pub peak_bytes: f64,
    /// Operations per second, by a kernel that only multiplies and adds in registers.
    pub peak_flops: f64,
    /// How long it takes to run the smallest kernel and wait for it, in seconds.
    pub latency: f64,
    /// Workgroups of 64 invocations that keep a GPU busy. It is kept for later programs.
    pub full_groups: Option<usize>,
    /// Each with its time.
    pub lines: Vec<Speed>,
}

/// One piece of work.
#[derive(Clone, Debug)]
pub struct Speed {
    pub name: &'static str,
    pub seconds: f64,
    /// Operations, if that is what takes the time.
    pub flops: f64,
    /// Inputs and outputs, once each.
    pub bytes: f64,
    /// Which variant of a kernel did it.
    pub variant: Option<String>,
}

impl Speeds {
    /// Of the time that it takes, the share in which the device could have moved its bytes or done its operations,
    /// whichever is more.
    pub fn share(&self, line: &Speed) -> f64 {
        (line.bytes / self.peak_bytes).max(line.flops / self.peak_flops) / line.seconds
    }
}

/// How often `progress` is called.
pub const N_STEPS: u64 = 4 + WORK.len() as u64;

/// Work that models do: a name, operations, and the expression over fresh inputs.
struct Work {
    name: &'static str,
    flops: usize,
    make: fn(&Device) -> Inputs,
    run: fn(&[Tensor]) -> Tensor,
}

type Inputs = Vec<Tensor>;

const WORK: [Work; 9] = [
    Work {
        name: "product 1024 × 1024 × 1024",
        flops: 2 << 30,
        make: |d| matrices(d, [1024, 1024, 1024], DType::F32),
        run: |x| x[0].matmul(&x[1]),
    },
    Work {
        name: "product 64 × 1536 × 1536",
        flops: 2 * 64 * 1536 * 1536,
        make: |d| matrices(d, [64, 1536, 1536], DType::F32),
        run: |x| x[0].matmul(&x[1]),
    },
    Work {
        name: "product 8 × 1536 × 1536",
        flops: 2 * 8 * 1536 * 1536,
        make: |d| matrices(d, [8, 1536, 1536], DType::F32),
        run: |x| x[0].matmul(&x[1]),
    },
    Work {
        name: "product 1 × 4096 × 4096",
        flops: 2 * 4096 * 4096,
        make: |d| matrices(d, [1, 4096, 4096], DType::F32),
        run: |x| x[0].matmul(&x[1]),
    },
    Work {
        name: "product 1 × 4096 × 4096, stored [n, k]",
        flops: 2 * 4096 * 4096,
        make: |d| matrices(d, [1, 4096, 4096], DType::F32),
        run: |x| x[0].matmul(&x[1].t()),
    },
    Work {
        name: "product 1 × 4096 × 4096, stored [n, k], f16",
        flops: 2 * 4096 * 4096,
        make: |d| matrices(d, [1, 4096, 4096], DType::F16),
        run: |x| x[0].matmul(&x[1].t()),
    },
    Work {
        name: "attention, 8 heads, 256 × 64, causal",
        // Half of the scores are hidden.
        flops: 2 * 8 * 256 * 256 * 64,
        make: |d| (0..3).map(|seed| Tensor::rand([1, 8, 256, 64], seed, d)).collect(),
        run: |x| x[0].attention(&x[1], &x[2], Attention { causal: true, ..Attention::default() }),
    },
    Work {
        name: "convolution 3 × 3, 64 channels, 56 × 56",
        flops: 2 * 64 * 64 * 9 * 56 * 56,
        make: |d| vec![Tensor::rand([1, 64, 56, 56], 1, d), Tensor::rand([64, 64, 3, 3], 2, d)],
        run: |x| x[0].conv(&x[1], None, Conv { padding: 1.into(), ..Conv::default() }),
    },
    Work {
        name: "softmax of 4096 × 1024",
        flops: 0,
        make: |d| vec![Tensor::rand([4096, 1024], 1, d)],
        run: |x| x[0].softmax(-1),
    },
];

fn matrices(device: &Device, [m, k, n]: [usize; 3], dtype: DType) -> Inputs {
    vec![Tensor::rand([m, k], 1, device), Tensor::rand([k, n], 2, device).to_dtype(dtype)]
}

/// Measures it all; `progress` is told what comes next.
pub fn measure(device: &Device, progress: impl Fn(&str)) -> Result<Speeds> {
    progress("latency");
    let one = Tensor::zeros([1], DType::F32, device).compute()?;
    let latency = best(device, || one.add(1.0).compute())?.as_secs_f64();
    progress("what fills it");
    let is_cpu = device.info().kind == DeviceKind::Cpu;
    let full_groups = if is_cpu { None } else { Some(lazuli::gpu::measure_full_groups(device)?) };
    progress("bandwidth");
    let peak_bytes = peak_bytes(device)?;
    progress("arithmetic");
    let peak_flops = operations_per_second(device)?;
    let mut lines = Vec::new();
    for work in &WORK {
        progress(work.name);
        let inputs: Inputs = (work.make)(device);
        lazuli::compute(&inputs.iter().collect::<Vec<_>>())?;
        let plan = (work.run)(&inputs).explain()?;
        let seconds = best(device, || (work.run)(&inputs).compute())?.as_secs_f64();
        let bytes = plan.bytes_moved_lower_bound as f64;
        let variant = plan.kernels.iter().find_map(|kernel| kernel.variant.clone());
        lines.push(Speed { name: work.name, seconds, flops: work.flops as f64, bytes, variant });
    }
    Ok(Speeds { peak_bytes, peak_flops, latency, full_groups, lines })
}

/// Elements that kernels move in measuring how fast they do: more than caches hold.
const N_MOVED: usize = 16 << 20;

/// Bytes per second: of one read and one write, of a read, of two reads and a write.
fn peak_bytes(device: &Device) -> Result<f64> {
    let make = |seed| Tensor::rand([N_MOVED], seed, device).compute();
    let (x, y) = (make(1)?, make(2)?);
    let size_bytes = (N_MOVED * 4) as f64;
    let rates = [
        2.0 * size_bytes / best(device, || x.add(1.0).compute())?.as_secs_f64(),
        size_bytes / best(device, || x.sum(..).compute())?.as_secs_f64(),
        3.0 * size_bytes / best(device, || x.add(&y).compute())?.as_secs_f64(),
    ];
    Ok(rates.into_iter().fold(0.0, f64::max))
}

const BUDGET: Duration = Duration::from_millis(300);

/// The best of several runs after one that does not count; of one, if it takes longer than all should.
pub fn best(device: &Device, mut run: impl FnMut() -> Result<Tensor>) -> Result<Duration> {
    run()?;
    device.sync()?;
    let (start, mut best, mut n_runs) = (Instant::now(), Duration::MAX, 0);
    while (n_runs < 5 || start.elapsed() < BUDGET) && start.elapsed() < 3 * BUDGET {
        let lap = Instant::now();
        // Held until the time is taken; then its memory serves the next run.
        let result = run()?;
        device.sync()?;
        best = best.min(lap.elapsed());
        drop(result);
        n_runs += 1;
    }
    Ok(best)
}
