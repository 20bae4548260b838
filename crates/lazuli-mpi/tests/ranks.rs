//! What holds on several ranks. Each test starts itself under `mpirun` with other numbers of ranks; what is asserted there
//! fails the rank, and with it the job. Nothing is timed: deadlines are generous, and tests take turns.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lazuli::{DType, Device, Tensor};
use lazuli_mpi::{Distributed, Reduce, Wire, World};
use lazuli_nn::{
    Adam, Clip, Conv2d, Flatten, Layer, Linear, MaxPool2d, Optimizer, Relu, Sequential, Sgd, Window, loss, parameters,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Set in the processes that `mpirun` starts.
const CHILD: &str = "LAZULI_MPI_TEST_CHILD";
/// No job of a test takes longer, however loaded the machine is.
const LONGEST: Duration = Duration::from_secs(150);

/// How a job ended, and what it printed.
struct Job {
    succeeded: bool,
    text: String,
}

/// Runs a test on so many ranks. In a rank, runs its part and ends the process.
#[track_caller]
fn on_ranks(test: &str, n: usize, timeout: u32, program: impl FnOnce(&World) -> Outcome) -> Job {
    if std::env::var_os(CHILD).is_some() {
        let code = lazuli_mpi::run(|world| {
            program(world).map_err(|e| e.to_string())?;
            println!("rank {} of {} is done", world.rank(), world.size());
            Ok::<(), String>(())
        });
        std::process::exit((code != std::process::ExitCode::SUCCESS) as i32);
    }
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new("mpirun");
    command
        .args(["-n", &n.to_string(), "--oversubscribe", "--bind-to", "none"])
        .arg(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")])
        .envs([(CHILD, "1"), ("LAZULI_THREADS", "1"), ("LAZULI_DEVICE", "cpu")])
        .env("LAZULI_MPI_TIMEOUT", timeout.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut job = command.spawn().expect("mpirun is there: Debian has it in openmpi-bin");
    let (mut out, mut err) = (job.stdout.take().expect("is piped"), job.stderr.take().expect("is piped"));
    let read_out = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).map(|_| text)
    });
    let read_err = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).map(|_| text)
    });
    let start = Instant::now();
    let status = loop {
        match job.try_wait().expect("can be asked") {
            Some(status) => break status,
            None if start.elapsed() > LONGEST => {
                job.kill().expect("can be killed");
                panic!("{test} on {n} ranks has not ended");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // Reading ends when no process of the job is left that could write.
    let text = [read_out, read_err].map(|reader| reader.join().expect("reads").expect("is text")).concat();
    Job { succeeded: status.success(), text }
}

/// That it holds on each of these numbers of ranks.
#[track_caller]
fn holds(test: &str, ns: &[usize], program: impl Fn(&World) -> Outcome) {
    for n in ns {
        let job = on_ranks(test, *n, 100, &program);
        let all_ran = (0..*n).all(|rank| job.text.contains(&format!("rank {rank} of {n} is done")));
        assert!(job.succeeded && all_ran, "{test} on {n} ranks:\n{}", job.text);
    }
}

fn mlp(seed: u64) -> Sequential {
    let cpu = Device::cpu();
    Sequential::new().push(Linear::new(20, 32, seed, &cpu)).push(Relu).push(Linear::new(32, 5, seed + 1, &cpu))
}

fn cnn(seed: u64) -> Sequential {
    let cpu = Device::cpu();
    Sequential::new()
        .push(Conv2d::new(1, 4, 3, Window { padding: 1, ..Window::default() }, seed, &cpu))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Linear::new(4 * 4 * 4, 5, seed + 1, &cpu))
}

/// Examples `from..to` of a batch, which are the same whoever makes them.
fn examples(shape: &[usize], batch: u64, from: usize, to: usize) -> (Tensor, Tensor) {
    let cpu = Device::cpu();
    let n: usize = shape.iter().product();
    let pixel = |i: usize| ((i * 7919 + batch as usize * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    let x: Vec<f32> = (from * n..to * n).map(pixel).collect();
    let labels: Vec<i32> = (from..to).map(|i| (i * 3 + batch as usize) as i32 % 5).collect();
    let shape: Vec<usize> = std::iter::once(to - from).chain(shape.iter().copied()).collect();
    (Tensor::from_vec(x, &shape[..], &cpu), Tensor::from_vec(labels, [to - from], &cpu))
}

/// This rank's part of so many examples.
fn part(world: &World, n: usize) -> (usize, usize) {
    (n * world.rank() / world.size(), n * (world.rank() + 1) / world.size())
}

fn loss_of(model: &Sequential, shape: &[usize], batch: u64, from: usize, to: usize) -> Tensor {
    let (x, labels) = examples(shape, batch, from, to);
    loss::cross_entropy(&model.forward(&x), &labels)
}

fn flat(tensors: &[Tensor]) -> Result<Vec<f32>, lazuli::Error> {
    tensors.iter().map(|t| t.to_vec::<f32>()).collect::<Result<Vec<_>, _>>().map(|all| all.concat())
}

/// The distance of two vectors over the length of the second.
fn apart(a: &[f32], b: &[f32]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(x, y)| (x - y) as f64)) / norm(&mut b.iter().map(|x| *x as f64))
}

fn optimizer(adam: bool) -> Optimizer {
    if adam { Optimizer::new(Adam::default(), 1e-3) } else { Optimizer::new(Sgd::default(), 0.05) }
}

#[test]
fn collectives_give_what_they_say() {
    holds("collectives_give_what_they_say", &[1, 2, 3, 4], |world| {
        let (rank, n) = (world.rank() as f32, world.size() as f32);
        let cpu = Device::cpu();
        assert_eq!(world.hosts().len(), world.size());
        assert!(world.local_rank() < world.local_size());
        let x = Tensor::from_vec((0..7).map(|i| i as f32 + rank).collect(), [7], &cpu);
        let sum = world.all_reduce(&x, Reduce::Sum)?.to_vec::<f32>()?;
        let ranks: f32 = n * (n - 1.0) / 2.0;
        assert_eq!(sum, (0..7).map(|i| n * i as f32 + ranks).collect::<Vec<_>>());
        assert_eq!(world.all_reduce(&x.to_dtype(DType::I32), Reduce::Max)?.to_vec::<i32>()?[0], n as i32 - 1);
        let half = world.all_reduce(&x.to_dtype(DType::BF16), Reduce::Sum)?;
        assert_eq!((half.dtype()?, half.to_dtype(DType::F32).to_vec::<f32>()?), (DType::BF16, sum));
        let rows = Tensor::full([world.rank() + 1, 2], rank, &cpu);
        let all = world.all_gather(&rows)?;
        assert_eq!(all.shape()?, [world.size() * (world.size() + 1) / 2, 2]);
        assert_eq!(all.to_vec::<f32>()?.last(), Some(&(n - 1.0)));
        let parts = world.reduce_scatter(&Tensor::ones([2 * world.size(), 3], DType::F32, &cpu), Reduce::Sum)?;
        assert_eq!((parts.shape()?, parts.to_vec::<f32>()?), (&[2, 3][..], vec![n; 6]));
        world.barrier()?;
        Ok(())
    });
}

#[test]
fn the_reduced_gradient_is_that_of_the_whole_batch() {
    holds("the_reduced_gradient_is_that_of_the_whole_batch", &[2, 3, 4], |world| {
        for (make, shape) in [(mlp as fn(u64) -> Sequential, &[20][..]), (cnn, &[1, 8, 8])] {
            // 23 examples do not divide, and 3 are fewer than there may be ranks.
            for n in [24, 23, 3] {
                let mut model = make(world.rank() as u64);
                world.broadcast(&mut model)?;
                let mut many = Distributed::new(optimizer(false), world).buckets(512);
                let (from, to) = part(world, n);
                let own = loss_of(&model, shape, 1, from, to);
                let reduced = flat(&many.gradients(&mut model, &own, to - from)?)?;
                let whole = loss_of(&model, shape, 1, 0, n);
                let alone = flat(&optimizer(false).gradients(&mut model, &whole)?)?;
                let far = apart(&reduced, &alone);
                assert!(far < 1e-6, "{far:e} with {n} examples");
            }
        }
        Ok(())
    });
}

#[test]
fn losses_are_those_of_one_rank() {
    holds("losses_are_those_of_one_rank", &[2, 4], |world| {
        for (make, shape) in [(mlp as fn(u64) -> Sequential, &[20][..]), (cnn, &[1, 8, 8])] {
            for (adam, clip) in
                [(false, None), (true, None), (true, Some(Clip::Norm(0.1))), (false, Some(Clip::Value(0.01)))]
            {
                let clipped = |o: Optimizer| match clip {
                    Some(clip) => o.clipped(clip),
                    None => o,
                };
                let (mut model, mut alone) = (make(5), make(5));
                let mut many = Distributed::new(clipped(optimizer(adam)), world);
                let mut one = clipped(optimizer(adam));
                for batch in 0..10 {
                    let (from, to) = part(world, 22);
                    let whole = loss_of(&model, shape, batch, 0, 22).detach().item::<f32>()?;
                    let own = loss_of(&model, shape, batch, from, to);
                    many.step_of(&mut model, own, to - from, Vec::new())?;
                    let expect = loss_of(&alone, shape, batch, 0, 22);
                    let expect = one.step(&mut alone, expect)?.item::<f32>()?;
                    assert!((whole - expect).abs() < 1e-5, "step {batch}: {whole} and {expect}, {clip:?}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn all_ranks_have_the_same_bits_and_so_have_two_runs() {
    holds("all_ranks_have_the_same_bits_and_so_have_two_runs", &[3], |world| {
        let run = |wire, buckets| -> Result<Vec<f32>, lazuli::Error> {
            let mut model = mlp(3);
            let mut many = Distributed::new(optimizer(true), world).wire(wire).buckets(buckets);
            for batch in 0..5 {
                let (from, to) = part(world, 16);
                let own = loss_of(&model, &[20], batch, from, to);
                many.step_of(&mut model, own, to - from, Vec::new())?;
            }
            flat(&parameters(&mut model).into_iter().map(|(_, w)| w).collect::<Vec<_>>())
        };
        let first = run(Wire::F32, 1 << 20)?;
        assert_eq!(first, run(Wire::F32, 1 << 20)?);
        // Sums go by rank, whatever the buckets.
        assert_eq!(first, run(Wire::F32, 256)?);
        let half = run(Wire::Bf16, 1 << 20)?;
        assert_eq!(half, run(Wire::Bf16, 256)?);
        assert!(half != first && apart(&half, &first) < 1e-2);
        let bits = |v: &[f32]| v.iter().fold(0u32, |h, x| h.rotate_left(5) ^ x.to_bits());
        Ok(world.agree("the parameters", &format!("{} {}", bits(&first), bits(&half)))?)
    });
}

#[test]
fn a_mismatch_is_found_and_named() {
    let test = "a_mismatch_is_found_and_named";
    let job = on_ranks(test, 3, 100, |world| {
        let width = if world.rank() == 1 { 6 } else { 5 };
        let mut model = Linear::new(4, width, 1, &Device::cpu());
        Ok(world.broadcast(&mut model)?)
    });
    let expect = "rank 1 has `weight: f32[6, 4]` where rank 0 has `weight: f32[5, 4]`";
    assert!(!job.succeeded && job.text.contains(expect), "{}", job.text);
}

#[test]
fn an_error_of_one_rank_is_an_error_of_all() {
    let test = "an_error_of_one_rank_is_an_error_of_all";
    // In files: a launcher may lose output of a job that fails.
    let told = |rank: usize| std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("told-{rank}"));
    if std::env::var_os(CHILD).is_none() {
        for rank in [0, 2] {
            std::fs::write(told(rank), "").expect("there is room");
        }
    }
    let job = on_ranks(test, 3, 100, |world| {
        let first = world.barrier();
        if world.rank() == 1 {
            return Err("no space left on device".into());
        }
        // Word of the failure may overtake the end of the first barrier: then that is the call which returns it.
        let error = first.and_then(|()| world.barrier()).expect_err("rank 1 does not come").to_string();
        std::fs::write(told(world.rank()), &error)?;
        Err(error.into())
    });
    assert!(!job.succeeded, "{}", job.text);
    for rank in [0, 2] {
        let text = std::fs::read_to_string(told(rank)).expect("was written");
        assert!(text.starts_with("barrier: rank 1: no space left on device"), "rank {rank}: {text}\n{}", job.text);
    }
}

#[test]
fn a_rank_that_leaves_or_panics_ends_the_job() {
    let test = "a_rank_that_leaves_or_panics_ends_the_job";
    let job = on_ranks(test, 2, 100, |world| {
        assert!(world.rank() == 0, "rank one is not well");
        Ok(world.barrier()?)
    });
    assert!(!job.succeeded && job.text.contains("panicked: rank one is not well"), "{}", job.text);
}

#[test]
fn a_rank_that_hangs_is_named_and_nothing_is_left() {
    let test = "a_rank_that_hangs_is_named_and_nothing_is_left";
    let job = on_ranks(test, 3, 15, |world| {
        world.barrier()?;
        if world.rank() == 2 {
            signal("-STOP");
        }
        Ok(world.barrier()?)
    });
    assert!(!job.succeeded && job.text.contains("rank 2 gave no sign for "), "{}", job.text);
}

#[test]
fn a_rank_that_waits_elsewhere_is_named() {
    let test = "a_rank_that_waits_elsewhere_is_named";
    let job = on_ranks(test, 2, 15, |world| {
        world.barrier()?;
        if world.rank() == 1 {
            std::thread::sleep(LONGEST);
        }
        Ok(world.barrier()?)
    });
    assert!(!job.succeeded && job.text.contains("rank 1 gave no sign of taking part"), "{}", job.text);
}

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let test = "a_rank_that_is_killed_ends_the_job";
    let job = on_ranks(test, 4, 100, |world| {
        let mut model = mlp(1);
        let mut many = Distributed::new(optimizer(true), world);
        for batch in 0..1_000_000 {
            let own = loss_of(&model, &[20], batch % 7, 0, 4);
            many.step(&mut model, own)?;
            if world.rank() == 3 && batch == 20 {
                signal("-KILL");
            }
        }
        Ok(())
    });
    assert!(!job.succeeded && job.text.contains("rank 3"), "{}", job.text);
}

/// Sends this process a signal.
fn signal(name: &str) {
    let sent = Command::new("kill").args([name, &std::process::id().to_string()]).status();
    assert!(sent.expect("kill is there").success());
}
