//! All ranks of a job, as one of them sees them: who there is, and collectives on tensors. Collectives are computed, not
//! recorded: they take part in no plan and have no gradient. How they travel is the business of `progress`.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use lazuli::{DType, Device, Error, Fault, Result, Tensor};
use mpi::topology::Communicator;

use crate::agree;
use crate::clock::AwakeClock;
use crate::collectives::{Collectives, Counts, Done, Give, Reply, Task};
use crate::devices;
use crate::progress::{Command, NOTICED, Place, Progress, moment_for_others};
use crate::raw::{Comm, RawResult, exit_now, library};
use crate::reduce::{Reduce, Reduction, Values, Wire};

/// What can be set of a job.
///
/// ```
/// use std::time::Duration;
/// let settings = lazuli_mpi::Settings { timeout: Duration::from_secs(120) };
/// assert_ne!(settings, lazuli_mpi::Settings::default());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest that the job goes on after a rank has died, hangs or cannot be reached; and the longest that a rank may be
    /// late for a collective, the first of which is [joining](World::init). `LAZULI_MPI_TIMEOUT` sets it in seconds; 30 otherwise.
    pub timeout: Duration,
}

const VARIABLE: &str = "LAZULI_MPI_TIMEOUT";

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout: Duration::from_secs(30) }
    }
}

impl Settings {
    /// As the environment says.
    fn of_environment() -> Result<Settings> {
        let Ok(text) = std::env::var(VARIABLE) else { return Ok(Settings::default()) };
        match text.trim().parse::<f64>() {
            Ok(seconds) if (1.0..=1e6).contains(&seconds) => Ok(Settings { timeout: Duration::from_secs_f64(seconds) }),
            _ => Err(fault("init", format!("{VARIABLE} wants seconds from 1 to 1000000, such as 30, not {text:?}"))),
        }
    }
}

/// All ranks of a job, as one of them sees them. There is one in a process; dropping it waits for the other ranks to come to
/// their end, too.
///
/// ```
/// use lazuli::Tensor;
/// use lazuli_mpi::{Reduce, World};
/// // A program that was not started by mpirun is a job of one rank.
/// let world = World::init()?;
/// let device = world.device()?;
/// let own = Tensor::full([3], world.rank() as f32 + 1.0, &device);
/// let sum = world.all_reduce(&own, Reduce::Sum)?.to_vec::<f32>()?;
/// let n = world.size() as f32;
/// assert_eq!(sum, [n * (n + 1.0) / 2.0; 3]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct World {
    place: Place,
    local_rank: usize,
    local_size: usize,
    hosts: Vec<String>,
    /// None once it is closed.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
    waited_nanos: AtomicU64,
    /// Why nothing goes on, and whether that was printed.
    failed: Mutex<Option<String>>,
    is_told: AtomicBool,
}

/// A collective that has begun.
pub struct Wait {
    name: String,
    reply: Receiver<Reply>,
}

/// What the thread that drives MPI says when it has begun.
struct Ready {
    place: Place,
    local_rank: usize,
    local_size: usize,
}

/// A process can initialise MPI once.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// How long ending MPI may take once all ranks have come to their end.
const FINALIZES_WITHIN: Duration = Duration::from_secs(20);

impl World {
    /// Joins the job that `mpirun` or `srun` has started; without them, a job of one rank. Begin with it: ranks that may run
    /// on the same cores share them, so that each computes with its part of the threads, which cannot be changed once the CPU
    /// has computed. Bound ranks (`mpirun --bind-to core`) take the cores that they are bound to; `LAZULI_THREADS` has
    /// precedence.
    #[track_caller]
    pub fn init() -> Result<World> {
        World::init_with(Settings::of_environment()?)
    }

    /// The same, with settings of the program's own.
    #[track_caller]
    pub fn init_with(settings: Settings) -> Result<World> {
        if IS_TAKEN.swap(true, Ordering::SeqCst) {
            return Err(fault("init", "MPI can be initialised once in a process; hand on the `World` that there is"));
        }
        let (commands, received) = channel();
        let (ready, begun) = channel();
        let counts = Arc::new(Counts::default());
        let counted = counts.clone();
        let thread = Builder::new().name("lazuli-mpi".into());
        let thread = thread.spawn(move || drive(settings, counted, &ready, received));
        let thread = thread.map_err(|e| fault("init", format!("no thread to drive MPI: {e}")))?;
        let Ready { place, local_rank, local_size } = join(&begun, settings.timeout)?;
        let mut world = World {
            place,
            local_rank,
            local_size,
            hosts: Vec::new(),
            commands: Some(commands),
            thread: Some(thread),
            counts,
            waited_nanos: AtomicU64::new(0),
            failed: Mutex::new(None),
            is_told: AtomicBool::new(false),
        };
        let identity = agree::identity(env!("CARGO_PKG_VERSION"), &library(), &settings);
        world.agree("versions and settings", &identity)?;
        world.hosts = world.gather_texts(&world.place.host)?;
        let cores = world.gather_texts(&devices::cores())?;
        // A program that has computed before this has its threads already.
        let _ = Device::limit_cpu_threads(devices::n_threads(world.rank(), &world.hosts, &cores));
        Ok(world)
    }

    /// Which of the ranks this is, from 0.
    pub fn rank(&self) -> usize {
        self.place.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.place.n_ranks
    }

    /// Which of the ranks of its host this is, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// How many ranks this host has.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The name of the host of each rank.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The device of this rank: local rank n takes GPU n of its host, counted around if there are fewer, and the CPU where
    /// there is none. `LAZULI_DEVICE` names another, as in [`Device::open`].
    #[track_caller]
    pub fn device(&self) -> Result<Device> {
        devices::device(self.local_rank)
    }

    /// How long this rank has waited for others and for the network.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_nanos.load(Ordering::Relaxed))
    }

    /// How many bytes this rank has handed to MPI for others, signs of life aside.
    pub fn sent_bytes(&self) -> u64 {
        self.counts.sent_bytes.load(Ordering::Relaxed)
    }

    /// How many collectives this rank has begun.
    pub fn n_collectives(&self) -> u64 {
        self.counts.n_collectives.load(Ordering::Relaxed)
    }

    /// Waits until all ranks are here.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.wait(self.begin("barrier", Task::Barrier)).map(drop)
    }

    /// The sum, maximum or minimum over all ranks, element by element, on all of them: the same bits, added in the order of
    /// ranks. Of f32, i32 and u32, and of f16 and bf16, which are added in f32 and rounded once.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_mpi::{Reduce, World};
    /// # let world = World::init()?;
    /// let largest = world.all_reduce(&Tensor::scalar(2.5, &Device::cpu()), Reduce::Max)?;
    /// assert_eq!(largest.item::<f32>()?, 2.5);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn all_reduce(&self, x: &Tensor, reduce: Reduce) -> Result<Tensor> {
        let (shape, dtype, device) = (x.shape()?.to_vec(), x.dtype()?, x.device()?.clone());
        self.agree("all_reduce", &format!("{reduce:?} of {dtype}{shape:?}"))?;
        let task = Task::Reduce(reduction("all_reduce", x, reduce)?, Give::Whole);
        let values = self.wait_values(self.begin("all_reduce", task))?;
        Ok(tensor(values, &shape, dtype, &device))
    }

    /// The sum (or maximum, or minimum) over all ranks, of which each gets a part: rank n the n-th of as many equal parts of
    /// axis 0 as there are ranks.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_mpi::{Reduce, World};
    /// # let world = World::init()?;
    /// let x = Tensor::ones([2 * world.size(), 3], lazuli::DType::F32, &Device::cpu());
    /// assert_eq!(world.reduce_scatter(&x, Reduce::Sum)?.shape()?, [2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn reduce_scatter(&self, x: &Tensor, reduce: Reduce) -> Result<Tensor> {
        let (mut shape, dtype, device) = (x.shape()?.to_vec(), x.dtype()?, x.device()?.clone());
        let n = self.size();
        let rows = shape.first().copied().filter(|rows| rows % n == 0);
        let Some(rows) = rows else {
            let message = format!("axis 0 of {shape:?} does not divide among {n} ranks; pad it to a multiple of {n}");
            return Err(Error::Shape(Arc::new(Fault::new("reduce_scatter", message))));
        };
        self.agree("reduce_scatter", &format!("{reduce:?} of {dtype}{shape:?}"))?;
        let task = Task::Reduce(reduction("reduce_scatter", x, reduce)?, Give::OwnChunk);
        let values = self.wait_values(self.begin("reduce_scatter", task))?;
        shape[0] = rows / n;
        Ok(tensor(values, &shape, dtype, &device))
    }

    /// The tensors of all ranks, one after another along axis 0, on all of them. Ranks may have different numbers of rows.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_mpi::World;
    /// # let world = World::init()?;
    /// let all = world.all_gather(&Tensor::full([1, 2], world.rank() as f32, &Device::cpu()))?;
    /// assert_eq!(all.shape()?, [world.size(), 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        let (shape, dtype, device) = (x.shape()?.to_vec(), x.dtype()?, x.device()?.clone());
        let (rows, row) = shape.split_first().map_or((1, &[][..]), |(rows, row)| (*rows, row));
        self.agree("all_gather", &format!("rows of {dtype}{row:?}"))?;
        let words = words(x)?;
        let all_rows = self.gather_bytes("all_gather", (rows as u64).to_le_bytes().to_vec(), &vec![8; self.size()])?;
        let all_rows: Vec<usize> =
            all_rows.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n) as usize).collect();
        let row_bytes = 4 * row.iter().product::<usize>();
        let counts: Vec<usize> = all_rows.iter().map(|rows| rows * row_bytes).collect();
        let bytes = self.gather_bytes("all_gather", bytes_of(&words), &counts)?;
        let shape: Vec<usize> = std::iter::once(all_rows.iter().sum()).chain(row.iter().copied()).collect();
        Ok(of_words(&words_of(&bytes), &shape, dtype, &device))
    }

    /// The bytes of rank 0 on all ranks, whatever the others hand in: a checkpoint that only rank 0 can read.
    ///
    /// ```
    /// # use lazuli_mpi::World;
    /// # let world = World::init()?;
    /// let own = if world.rank() == 0 { b"a file".to_vec() } else { Vec::new() };
    /// assert_eq!(world.broadcast_bytes(own)?, b"a file");
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        // MPI counts in 31 bits.
        const MOST: usize = 1 << 30;
        let of_zero =
            |bytes: Vec<u8>| self.wait_bytes(self.begin("broadcast_bytes", Task::Broadcast { bytes, root: 0 }));
        let len = of_zero((bytes.len() as u64).to_le_bytes().to_vec())?;
        let len = len.as_chunks::<8>().0.first().map_or(0, |len| u64::from_le_bytes(*len)) as usize;
        let mut all = Vec::new();
        for start in (0..len).step_by(MOST) {
            let end = len.min(start + MOST);
            let own = if self.rank() == 0 { bytes[start..end].to_vec() } else { vec![0; end - start] };
            all.extend(of_zero(own)?);
        }
        Ok(all)
    }

    /// Tells all ranks that this one cannot go on: whatever they wait for, now or later, is an error with this text. Whoever
    /// uses [`run`] need not call it.
    pub fn fail(&self, why: &dyn Display) {
        self.note(why.to_string());
        self.send(Command::Fail(why.to_string()));
    }

    /// Begins a collective.
    pub(crate) fn begin(&self, name: &str, task: Task) -> Wait {
        let (reply, received) = channel();
        self.send(Command::Begin { name: name.to_string(), task, reply });
        Wait { name: name.to_string(), reply: received }
    }

    fn send(&self, command: Command) {
        // If the thread is gone, whoever waits for an answer finds out.
        let _ = self.commands.as_ref().map(|commands| commands.send(command));
    }

    /// Waits for a collective.
    #[track_caller]
    pub(crate) fn wait(&self, wait: Wait) -> Result<Done> {
        let start = Instant::now();
        let reply = wait.reply.recv();
        self.waited_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let failed = match reply {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(text)) => text,
            Err(_) => "the thread that drives MPI has ended".to_string(),
        };
        self.note(failed.clone());
        Err(fault(&wait.name, failed))
    }

    #[track_caller]
    pub(crate) fn wait_values(&self, wait: Wait) -> Result<Values> {
        match self.wait(wait)? {
            Done::Values(values) => Ok(values),
            Done::Bytes(_) => unreachable!("a reduction gives numbers"),
        }
    }

    #[track_caller]
    pub(crate) fn wait_bytes(&self, wait: Wait) -> Result<Vec<u8>> {
        match self.wait(wait)? {
            Done::Bytes(bytes) => Ok(bytes),
            Done::Values(_) => unreachable!("only a reduction gives numbers"),
        }
    }

    #[track_caller]
    pub(crate) fn gather_bytes(&self, name: &str, bytes: Vec<u8>, counts: &[usize]) -> Result<Vec<u8>> {
        self.wait_bytes(self.begin(name, Task::Gather { bytes, counts: counts.to_vec() }))
    }

    /// A short text of each rank.
    #[track_caller]
    pub(crate) fn gather_texts(&self, own: &str) -> Result<Vec<String>> {
        const MOST: usize = 256;
        let mut bytes = own.as_bytes().to_vec();
        bytes.resize(MOST, 0);
        let all = self.gather_bytes("init", bytes, &vec![MOST; self.size()])?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_string();
        Ok(all.chunks(MOST).map(text).collect())
    }

    /// Remembers why nothing goes on.
    fn note(&self, why: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// Says on standard error why nothing goes on, unless that was said before.
    fn tell(&self, why: &dyn Display) {
        if !self.is_told.swap(true, Ordering::SeqCst) {
            let Place { rank, n_ranks, host, .. } = &self.place;
            eprintln!("lazuli-mpi: rank {rank} of {n_ranks} on {host}: {why}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(&"panicked");
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(why) = failed {
            self.tell(&why);
        }
        self.send(Command::Close);
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It does not panic; and if it did, there is nobody to tell.
            let _ = thread.join();
        }
    }
}

/// Runs a program's part on this rank: `fn main() -> ExitCode { lazuli_mpi::run(|world| …) }`. If it returns an error or
/// panics, the other ranks are told before the job ends, this rank says so on standard error, and every status is a failure.
///
/// ```
/// use std::process::ExitCode;
/// let code = lazuli_mpi::run(|world| {
///     println!("rank {} of {}", world.rank(), world.size());
///     world.barrier()
/// });
/// assert_eq!(code, ExitCode::SUCCESS);
/// ```
pub fn run<E: Display>(program: impl FnOnce(&World) -> std::result::Result<(), E>) -> ExitCode {
    let world = match World::init() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("lazuli-mpi: {error}");
            return ExitCode::FAILURE;
        }
    };
    let failed = match catch_unwind(AssertUnwindSafe(|| program(&world))) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(thrown) => {
            let text = thrown.downcast_ref::<String>().map(String::as_str).or(thrown.downcast_ref::<&str>().copied());
            let text = format!("panicked: {}", text.unwrap_or("with something that is no text"));
            std::mem::forget(thrown);
            text
        }
    };
    world.fail(&failed);
    world.tell(&failed);
    drop(world);
    ExitCode::FAILURE
}

/// Waits until the thread that drives MPI has joined the other ranks. Calls that initialise MPI block until all ranks make them, so
/// it is up to the waiting thread to keep the deadline: if it passes, this rank says so and ends, and the launcher ends the others.
#[track_caller]
fn join(begun: &Receiver<RawResult<Ready>>, timeout: Duration) -> Result<Ready> {
    let (mut clock, limit) = (AwakeClock::new(), timeout.mul_f64(NOTICED));
    loop {
        match begun.recv_timeout(Duration::from_millis(200)) {
            Ok(Ok(ready)) => return Ok(ready),
            Ok(Err(message)) => return Err(fault("init", message)),
            Err(RecvTimeoutError::Disconnected) => return Err(fault("init", "the thread that drives MPI has ended")),
            Err(RecvTimeoutError::Timeout) if clock.now() > limit => {
                let (rank, seconds) = (launched_as(), limit.as_secs());
                eprintln!(
                    "lazuli-mpi: {rank} has waited {seconds} seconds for all ranks to join: one has died, hangs, starts late or \
                     cannot be reached ({VARIABLE} says how long ranks wait); the job ends"
                );
                std::thread::sleep(moment_for_others(timeout));
                exit_now(1)
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Which rank this is, as the launcher's variables say: MPI does not say so before all ranks have joined.
fn launched_as() -> String {
    let first = |names: [&str; 3]| names.iter().find_map(|name| std::env::var(name).ok());
    let rank = first(["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"]);
    let size = first(["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"]);
    match (rank, size) {
        (Some(rank), Some(size)) => format!("rank {rank} of {size}"),
        _ => "a rank".to_string(),
    }
}

/// What the thread does from the beginning to the end.
fn drive(settings: Settings, counts: Arc<Counts>, ready: &Sender<RawResult<Ready>>, commands: Receiver<Command>) {
    let Some((universe, level)) = mpi::initialize_with_threading(mpi::Threading::Funneled) else {
        let _ = ready.send(Err("MPI was initialised before, by somebody else".into()));
        return;
    };
    if level < mpi::Threading::Funneled {
        let _ = ready.send(Err(format!("{} was built for programs with one thread only", library())));
        return;
    }
    let world = universe.world();
    let host = mpi::environment::processor_name().unwrap_or_else(|_| "a host without a name".into());
    let (rank, n_ranks) = (world.rank() as usize, world.size() as usize);
    let local = world.split_shared(world.rank());
    let (local_rank, local_size) = (local.rank() as usize, local.size() as usize);
    let place = Place { rank, n_ranks, host, timeout: settings.timeout };
    let progress = || -> RawResult<Progress> {
        let (exchange, gather) = (Comm::duplicate(&world)?, Comm::duplicate(&world)?);
        let running = Collectives::new(rank, n_ranks, exchange, gather, counts);
        Progress::new(place.clone(), running, Comm::duplicate(&world)?)
    };
    let progress = match progress() {
        Ok(progress) => progress,
        Err(message) => {
            let _ = ready.send(Err(message));
            return;
        }
    };
    // If nobody listens, the commands have ended, too.
    let _ = ready.send(Ok(Ready { place, local_rank, local_size }));
    progress.serve(commands);
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = is_over.clone();
    let watch = move || {
        std::thread::sleep(FINALIZES_WITHIN);
        if !seen.load(Ordering::SeqCst) {
            eprintln!("lazuli-mpi: MPI has not ended within {} seconds", FINALIZES_WITHIN.as_secs());
            exit_now(1)
        }
    };
    // Without a thread nobody watches.
    let _ = Builder::new().name("lazuli-mpi-end".into()).spawn(watch);
    drop(local);
    drop(universe);
    is_over.store(true, Ordering::SeqCst);
}

#[track_caller]
pub(crate) fn fault(op: &str, message: impl Into<String>) -> Error {
    Error::Device(Arc::new(Fault::new(op, message)))
}

/// The numbers of a tensor as a reduction takes them.
#[track_caller]
fn reduction(op: &str, x: &Tensor, reduce: Reduce) -> Result<Reduction> {
    let dtype = x.dtype()?;
    let values = match dtype {
        DType::F32 => Values::F32(x.to_vec()?),
        DType::F16 | DType::BF16 => Values::F32(x.to_dtype(DType::F32).to_vec()?),
        DType::I32 => Values::I32(x.to_vec()?),
        DType::U32 => Values::U32(x.to_vec()?),
        other => {
            let message = format!("{other} cannot be reduced; cast it to i32 or f32 with `to_dtype`");
            return Err(Error::DType(Arc::new(Fault::new(op, message))));
        }
    };
    let wire = if dtype == DType::BF16 { Wire::Bf16 } else { Wire::F32 };
    Ok(Reduction { values, reduce, head: None, wire })
}

fn tensor(values: Values, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    match values {
        Values::F32(values) => Tensor::from_vec(values, shape, device).to_dtype(dtype),
        Values::I32(values) => Tensor::from_vec(values, shape, device),
        Values::U32(values) => Tensor::from_vec(values, shape, device),
    }
}

/// The elements of a tensor of any type, as words: what is smaller than a word is widened, which changes no value.
#[track_caller]
pub(crate) fn words(x: &Tensor) -> Result<Vec<u32>> {
    Ok(match x.dtype()? {
        DType::F32 | DType::F16 | DType::BF16 => {
            x.to_dtype(DType::F32).to_vec::<f32>()?.into_iter().map(f32::to_bits).collect()
        }
        DType::U32 => x.to_vec::<u32>()?,
        _ => x.to_dtype(DType::I32).to_vec::<i32>()?.into_iter().map(|x| x as u32).collect(),
    })
}

/// A tensor from such words.
pub(crate) fn of_words(words: &[u32], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            Tensor::from_vec(words.iter().map(|w| f32::from_bits(*w)).collect(), shape, device).to_dtype(dtype)
        }
        DType::U32 => Tensor::from_slice(words, shape, device),
        _ => Tensor::from_vec(words.iter().map(|w| *w as i32).collect(), shape, device).to_dtype(dtype),
    }
}

pub(crate) fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub(crate) fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}
