//! What planning costs: an encoder layer planned afresh, and filled with other sizes, in microseconds a plan and a kernel. Nothing
//! is run. For instructions instead of time: `valgrind --tool=callgrind --toggle-collect='*plan_for*'`, once with `--fills 40`
//! and once with `--fills 0`.

use std::time::Instant;

use lazuli::{Attention, Device, Tensor};

const HELP: &str = "\
usage: plan [options]
  --fills N     other lengths that are filled in, one after another (default 200)
  --rounds N    how often all of it is done; the best round counts (default 20)
";

/// The sizes of a layer: those of MiniLM-L6.
const WIDTH: usize = 384;
const HEADS: usize = 12;
const HIDDEN: usize = 1536;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut n_fills, mut n_rounds) = (200, 20);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().and_then(|value| value.parse().ok()).ok_or(HELP)?;
        match arg.as_str() {
            "--fills" => n_fills = value,
            "--rounds" => n_rounds = value,
            _ => return Err(HELP.into()),
        }
    }
    let device = Device::cpu();
    let layer = Layer::new(&device);
    let n_kernels = layer.record(100).explain()?.kernels.len();
    let (mut afresh, mut filled) = (f64::MAX, f64::MAX);
    for _ in 0..n_rounds {
        // What was planned before is forgotten.
        device.trim();
        afresh = afresh.min(layer.planned(100..101)?);
        device.reset_stats();
        if n_fills > 0 {
            filled = filled.min(layer.planned(101..101 + n_fills)?);
        }
        let stats = device.stats();
        assert_eq!((stats.plans_compiled, stats.plans_filled), (0, n_fills as u64), "all other lengths are filled in");
    }
    println!("{n_kernels} kernels, us a plan and a kernel");
    for (what, best) in [("afresh", afresh), ("filled", filled)] {
        println!("{what}  {:7.1}  {:6.2}", best, best / n_kernels as f64);
    }
    Ok(())
}

/// The weights of an encoder layer.
struct Layer {
    device: Device,
    weights: [Tensor; 6],
    biases: [Tensor; 6],
    norms: [Tensor; 4],
}

impl Layer {
    fn new(device: &Device) -> Layer {
        let data = |shape: &[usize]| Tensor::full(shape, 0.01, device).compute();
        let data = |shape: &[usize]| data(shape).unwrap_or_else(|error| panic!("{error}"));
        let sizes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)];
        Layer {
            device: device.clone(),
            weights: sizes.map(|(k, n)| data(&[k, n])),
            biases: sizes.map(|(_, n)| data(&[n])),
            norms: [0; 4].map(|_| data(&[WIDTH])),
        }
    }

    fn record(&self, length: usize) -> Tensor {
        let x = Tensor::from_vec(vec![0.5f32; length * WIDTH], [length, WIDTH], &self.device);
        let linear = |x: &Tensor, i: usize| x.matmul(&self.weights[i]).add(&self.biases[i]);
        let norm = |x: &Tensor, i: usize| x.layer_norm(-1, Some(&self.norms[i]), Some(&self.norms[i + 1]), 1e-5);
        let normal = norm(&x, 0);
        let by_head = |i: usize| linear(&normal, i).reshape([length, HEADS, WIDTH / HEADS]).transpose(0, 1);
        let seen = by_head(0).attention(&by_head(1), &by_head(2), Attention::default());
        let x = x.add(&linear(&seen.transpose(0, 1).reshape([length, WIDTH]), 3));
        x.add(&linear(&linear(&norm(&x, 2), 4).gelu(), 5))
    }

    /// Microseconds that planning takes for each of these lengths.
    fn planned(&self, lengths: std::ops::Range<usize>) -> lazuli::Result<f64> {
        let recorded: Vec<Tensor> = lengths.map(|length| self.record(length)).collect();
        let start = Instant::now();
        recorded.iter().try_for_each(|layer| lazuli::prepare(&[layer]))?;
        Ok(start.elapsed().as_secs_f64() * 1e6 / recorded.len() as f64)
    }
}
