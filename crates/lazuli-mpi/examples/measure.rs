//! How long steps take on ranks, for `cargo xtask scaling`, which starts it in network namespaces of a known rate. Rank 0 prints
//! lines of `name value…`; what is compared is measured in turns.
//!
//! - `overlap HIDDEN LAYERS BATCH BUCKET_BYTES STEPS`: medians of a step with overlap, without it, of computing alone and
//!   of the reduction alone, and of the share of the smaller of both that is hidden, turn by turn.
//! - `compute HIDDEN LAYERS BATCH STEPS`: the bytes of the model, and the median of computing alone on all ranks at once.
//! - `reduce STEPS BYTES…`: medians of a reduction of so many bytes in one bucket.
//! - `weak HIDDEN LAYERS BATCH STEPS`: the median step when every rank has BATCH examples of its own.
//! - `alone HIDDEN LAYERS BATCH STEPS`: medians of a step of one rank and of one without MPI.

use std::process::ExitCode;
use std::time::Instant;

use lazuli::{DType, Device, Tensor};
use lazuli_mpi::{Distributed, Overlap, World};
use lazuli_nn::{Adam, Layer, Linear, Module, Optimizer, Relu, Sequential, parameters};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    lazuli_mpi::run(|world| measure(world, &words).map_err(|e| e.to_string()))
}

fn measure(world: &World, words: &[String]) -> Outcome<()> {
    let (mode, numbers) = words.split_first().ok_or("measure what? overlap, compute, reduce, weak or alone")?;
    let numbers: Vec<usize> = numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>()?;
    match (mode.as_str(), &numbers[..]) {
        ("overlap", [hidden, layers, batch, bucket, n_steps]) => {
            overlap(world, &Task { hidden: *hidden, layers: *layers, batch: *batch }, *bucket, *n_steps)
        }
        ("compute", [hidden, layers, batch, n_steps]) => {
            compute(world, &Task { hidden: *hidden, layers: *layers, batch: *batch }, *n_steps)
        }
        ("reduce", [n_steps, sizes @ ..]) => reduce(world, *n_steps, sizes),
        ("weak", [hidden, layers, batch, n_steps]) => {
            weak(world, &Task { hidden: *hidden, layers: *layers, batch: *batch }, *n_steps)
        }
        ("alone", [hidden, layers, batch, n_steps]) => {
            alone(world, &Task { hidden: *hidden, layers: *layers, batch: *batch }, *n_steps)
        }
        _ => Err(format!("cannot measure `{}`", words.join(" ")).into()),
    }
}

/// Layers of the same width, and a batch for them.
struct Task {
    hidden: usize,
    layers: usize,
    batch: usize,
}

impl Task {
    fn model(&self) -> Sequential {
        let layer = |i: usize| Linear::new(self.hidden, self.hidden, i as u64, &Device::cpu());
        (0..self.layers).fold(Sequential::new(), |model, i| model.push(layer(i)).push(Relu))
    }

    fn loss(&self, model: &Sequential, seed: u64) -> Tensor {
        model.forward(&Tensor::rand([self.batch, self.hidden], seed, &Device::cpu())).square().mean(..)
    }
}

fn adam() -> Optimizer {
    Optimizer::new(Adam::default(), 1e-5)
}

fn seconds(f: impl FnOnce() -> lazuli::Result<()>) -> lazuli::Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Prints on rank 0.
fn say(world: &World, line: &str) {
    if world.rank() == 0 {
        println!("{line}");
    }
}

fn overlap(world: &World, task: &Task, bucket_bytes: usize, n_steps: usize) -> Outcome<()> {
    let mut models = [task.model(), task.model(), task.model()];
    let n_bytes = model_bytes(&mut models[0]);
    let mut many =
        [Overlap::On, Overlap::Off].map(|o| Distributed::new(adam(), world).buckets(bucket_bytes).overlap(o));
    let mut one = adam();
    let mut times: [Vec<f64>; 5] = Default::default();
    let n_warm = 3;
    for step in 0..n_steps + n_warm {
        let mut laps = [0.0; 5];
        for i in 0..2 {
            world.barrier()?;
            laps[i] = seconds(|| {
                let loss = task.loss(&models[i], step as u64);
                many[i].step(&mut models[i], loss).map(drop)
            })?;
        }
        laps[2] = computing(world, task, &mut models[2], &mut one, step)?;
        world.barrier()?;
        laps[3] = reduction(world, &mut models[2], &mut many[1])?;
        // The speed of a machine drifts: what is compared was measured next to each other.
        laps[4] = (laps[1] - laps[0]) / laps[2].min(laps[3]);
        if step >= n_warm {
            times.iter_mut().zip(laps).for_each(|(times, lap)| times.push(lap));
        }
    }
    say(world, &format!("model_bytes {n_bytes}"));
    for (name, times) in ["overlap_on", "overlap_off", "compute", "transfer", "hidden"].iter().zip(times) {
        say(world, &format!("{name} {:.6}", median(times)));
    }
    Ok(())
}

fn compute(world: &World, task: &Task, n_steps: usize) -> Outcome<()> {
    let (mut model, mut one, mut times) = (task.model(), adam(), Vec::new());
    for step in 0..n_steps + 3 {
        let lap = computing(world, task, &mut model, &mut one, step)?;
        if step >= 3 {
            times.push(lap);
        }
    }
    say(world, &format!("model_bytes {}", model_bytes(&mut model)));
    say(world, &format!("compute {:.6}", median(times)));
    Ok(())
}

fn model_bytes(model: &mut dyn Module) -> usize {
    parameters(model).iter().map(|(_, w)| w.shape().map_or(0, |s| 4 * s.iter().product::<usize>())).sum()
}

/// The time of a step without a network, which all ranks make at once.
fn computing(
    world: &World,
    task: &Task,
    model: &mut Sequential,
    one: &mut Optimizer,
    step: usize,
) -> lazuli::Result<f64> {
    world.barrier()?;
    seconds(|| {
        let loss = task.loss(model, step as u64);
        one.step(model, loss).map(drop)
    })
}

/// The time of a reduction of all gradients, which are nearly free to compute: those of the sum of all parameters.
fn reduction(world: &World, model: &mut dyn Module, many: &mut Distributed) -> lazuli::Result<f64> {
    let mut sum = Tensor::scalar(0.0, &Device::cpu());
    for (_, w) in parameters(model) {
        sum = sum.add(w.narrow(0, 0, 1).sum(..));
    }
    world.barrier()?;
    seconds(|| many.gradients(model, &sum, 1).map(drop))
}

fn reduce(world: &World, n_steps: usize, sizes: &[usize]) -> Outcome<()> {
    let mut models: Vec<Tensor> =
        sizes.iter().map(|n| Tensor::zeros([(n / 4).max(1)], DType::F32, &Device::cpu()).tracked()).collect();
    let mut many: Vec<Distributed> =
        sizes.iter().map(|_| Distributed::new(adam(), world).overlap(Overlap::Off).buckets(1 << 30)).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
    for step in 0..n_steps + 2 {
        for i in 0..sizes.len() {
            let lap = reduction(world, &mut models[i], &mut many[i])?;
            if step >= 2 {
                times[i].push(lap);
            }
        }
    }
    for (n, times) in sizes.iter().zip(times) {
        say(world, &format!("reduce {} {n} {:.7}", world.size(), median(times)));
    }
    Ok(())
}

fn weak(world: &World, task: &Task, n_steps: usize) -> Outcome<()> {
    let (mut model, mut many) = (task.model(), Distributed::new(adam(), world));
    let (mut times, mut waited) = (Vec::new(), 0.0);
    for step in 0..n_steps + 3 {
        let before = world.waited();
        let lap = seconds(|| {
            let loss = task.loss(&model, (step * world.size() + world.rank()) as u64);
            many.step(&mut model, loss).map(drop)
        })?;
        if step >= 3 {
            times.push(lap);
            waited += (world.waited() - before).as_secs_f64();
        }
    }
    let share = waited / times.iter().sum::<f64>();
    say(world, &format!("weak {} {:.6} {share:.3}", world.size(), median(times)));
    Ok(())
}

fn alone(world: &World, task: &Task, n_steps: usize) -> Outcome<()> {
    let mut models = [task.model(), task.model()];
    let (mut many, mut one) = (Distributed::new(adam(), world), adam());
    let mut times: [Vec<f64>; 2] = Default::default();
    for step in 0..n_steps + 3 {
        let with = seconds(|| {
            let loss = task.loss(&models[0], step as u64);
            many.step(&mut models[0], loss).map(drop)
        })?;
        let without = seconds(|| {
            let loss = task.loss(&models[1], step as u64);
            one.step(&mut models[1], loss).map(drop)
        })?;
        if step >= 3 {
            times[0].push(with);
            times[1].push(without);
        }
    }
    let [with, without] = times.map(median);
    say(world, &format!("alone {with:.6} {without:.6}"));
    Ok(())
}
