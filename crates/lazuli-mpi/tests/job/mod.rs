//! Starts a test under `mpirun` with some number of ranks, and the models and batches that tests train.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lazuli::{Device, Tensor};
use lazuli_mpi::World;
use lazuli_nn::{Adam, Conv2d, Flatten, Layer, Linear, MaxPool2d, Optimizer, Relu, Sequential, Sgd, Window, loss};

pub type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Set in the processes that `mpirun` starts.
pub const CHILD: &str = "LAZULI_MPI_TEST_CHILD";
/// No job of a test takes longer, however loaded the machine is.
pub const LONGEST: Duration = Duration::from_secs(150);

/// How a job ended, and what it printed.
pub struct Job {
    pub succeeded: bool,
    pub text: String,
}

/// Runs a test on so many ranks. In a rank, runs its part and ends the process.
#[track_caller]
pub fn on_ranks(test: &str, n: usize, timeout: u32, program: impl FnOnce(&World) -> Outcome) -> Job {
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
pub fn holds(test: &str, ns: &[usize], program: impl Fn(&World) -> Outcome) {
    for n in ns {
        let job = on_ranks(test, *n, 100, &program);
        let all_ran = (0..*n).all(|rank| job.text.contains(&format!("rank {rank} of {n} is done")));
        assert!(job.succeeded && all_ran, "{test} on {n} ranks:\n{}", job.text);
    }
}

pub fn mlp(seed: u64) -> Sequential {
    let cpu = Device::cpu();
    Sequential::new().push(Linear::new(20, 32, seed, &cpu)).push(Relu).push(Linear::new(32, 5, seed + 1, &cpu))
}

pub fn cnn(seed: u64) -> Sequential {
    let cpu = Device::cpu();
    Sequential::new()
        .push(Conv2d::new(1, 4, 3, Window { padding: 1, ..Window::default() }, seed, &cpu))
        .push(Relu)
        .push(MaxPool2d::new(2))
        .push(Flatten)
        .push(Linear::new(4 * 4 * 4, 5, seed + 1, &cpu))
}

/// Examples `from..to` of a batch, which are the same whoever makes them.
pub fn examples(shape: &[usize], batch: u64, from: usize, to: usize) -> (Tensor, Tensor) {
    let cpu = Device::cpu();
    let n: usize = shape.iter().product();
    let pixel = |i: usize| ((i * 7919 + batch as usize * 104_729) % 1009) as f32 / 1009.0 - 0.5;
    let x: Vec<f32> = (from * n..to * n).map(pixel).collect();
    let labels: Vec<i32> = (from..to).map(|i| (i * 3 + batch as usize) as i32 % 5).collect();
    let shape: Vec<usize> = std::iter::once(to - from).chain(shape.iter().copied()).collect();
    (Tensor::from_vec(x, &shape[..], &cpu), Tensor::from_vec(labels, [to - from], &cpu))
}

/// This rank's part of so many examples.
pub fn part(world: &World, n: usize) -> (usize, usize) {
    (n * world.rank() / world.size(), n * (world.rank() + 1) / world.size())
}

pub fn loss_of(model: &Sequential, shape: &[usize], batch: u64, from: usize, to: usize) -> Tensor {
    let (x, labels) = examples(shape, batch, from, to);
    loss::cross_entropy(&model.forward(&x), &labels)
}

pub fn flat(tensors: &[Tensor]) -> Result<Vec<f32>, lazuli::Error> {
    tensors.iter().map(|t| t.to_vec::<f32>()).collect::<Result<Vec<_>, _>>().map(|all| all.concat())
}

/// The distance of two vectors over the length of the second.
pub fn apart(a: &[f32], b: &[f32]) -> f64 {
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(x, y)| (x - y) as f64)) / norm(&mut b.iter().map(|x| *x as f64))
}

pub fn optimizer(adam: bool) -> Optimizer {
    if adam { Optimizer::new(Adam::default(), 1e-3) } else { Optimizer::new(Sgd::default(), 0.05) }
}
