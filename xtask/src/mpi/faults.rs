//! `cargo xtask soak mpi`: ranks that are killed or stopped at random moments, a full disk and a cut link. Each time the job must
//! end in time with a failure that names a rank, leave no process behind, and leave a checkpoint that another number of ranks
//! goes on from. Faults come after all ranks have joined: until then they are the launcher's business, and Open MPI 4.1.4's
//! `mpirun` sometimes deadlocks when a process dies while it is introduced. Needs Linux and root.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::install;
use super::network::{Network, on_this_machine};
use crate::workspace::{built, cargo, root, succeed};

/// The setting under test: `LAZULI_MPI_TIMEOUT`, in seconds.
const TIMEOUT: u64 = 12;
/// A job that has not ended so long after the fault hangs. The machine may be loaded.
const HANGS: Duration = Duration::from_secs(3 * TIMEOUT);
/// By this variable the processes of a job are found.
const JOB: &str = "LAZULI_SOAK_JOB";

/// What was seen of one fault.
struct Seen {
    seconds: f64,
    text: String,
}

/// How often each kind of fault was tried, and the longest that a job went on.
#[derive(Default)]
struct Tally {
    n: usize,
    longest: f64,
    /// After how many there was a checkpoint, which another number of ranks loaded.
    n_loaded: usize,
}

/// A job under way.
struct Job {
    id: String,
    mpirun: Child,
    read: std::thread::JoinHandle<String>,
}

/// Runs all faults; words are the number of moments at which each rank is killed (20).
pub fn run(words: &[String]) -> Result<(), String> {
    let n_moments = match words {
        [] => 20,
        [word] => word.parse::<u64>().map_err(|_| format!("`{word}` is no number of moments"))?,
        _ => return Err("takes a number of moments (20) at most".into()),
    };
    install()?;
    let tests = ["test", "--workspace", "--features", "lazuli-cli/mpi", "--test", "distributed", "--no-run"];
    succeed(Command::new(cargo()).args(tests))?;
    let folder = root().join("target/mpi-soak");
    // What an earlier run has left.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    images(&folder)?;
    let mut random =
        Random(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64));
    println!("seed {}", random.0);
    signals(&folder, "KILL", n_moments, &mut random)?;
    signals(&folder, "STOP", n_moments.min(2), &mut random)?;
    full_disk(&folder)?;
    cut_link(&folder)
}

/// Each of three ranks gets a signal at random moments.
fn signals(folder: &Path, signal: &str, n_moments: u64, random: &mut Random) -> Result<(), String> {
    let mut tally = Tally::default();
    for rank in 0..3 {
        for _ in 0..n_moments {
            let out = folder.join("signal");
            // The job before this has left it.
            let _ = fs::remove_dir_all(&out);
            let job = Job::start(on_this_machine(3, None), folder, &out)?;
            let pid = job.rank(rank)?;
            joined(&out)?;
            // Until after several checkpoints.
            let moment = Duration::from_millis(random.below(3000));
            std::thread::sleep(moment);
            succeed(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]))?;
            let seen = job.end().map_err(|e| format!("{signal} of rank {rank} after {moment:?}: {e}"))?;
            if !seen.text.contains(&format!("rank {rank}")) {
                return Err(format!("{signal} of rank {rank}: no word of it in:\n{}", seen.text));
            }
            tally.n_loaded += goes_on(folder, &out, (rank + 1) % 3)?;
            tally.add(&seen);
        }
    }
    println!("SIG{signal}: {tally}");
    Ok(())
}

/// The folder of the checkpoint has room for one, and not for another beside it.
fn full_disk(folder: &Path) -> Result<(), String> {
    let out = folder.join("disk");
    fs::create_dir_all(&out).map_err(|e| e.to_string())?;
    succeed(Command::new("mount").args(["-t", "tmpfs", "-o", "size=3500k", "tmpfs"]).arg(&out))?;
    let tried = || -> Result<Tally, String> {
        let mut tally = Tally::default();
        tally.add(&Job::start(on_this_machine(3, None), folder, &out)?.end().and_then(|seen| {
            match seen.text.contains("rank 0") && seen.text.contains("No space left on device") {
                true => Ok(seen),
                false => Err(format!("a full disk: no word of it in:\n{}", seen.text)),
            }
        })?);
        // Elsewhere there is room to go on.
        let copy = folder.join("disk-copy");
        fs::create_dir_all(&copy).map_err(|e| e.to_string())?;
        fs::copy(out.join("checkpoint.safetensors"), copy.join("checkpoint.safetensors")).map_err(|e| e.to_string())?;
        tally.n_loaded += goes_on(folder, &copy, 2)?;
        Ok(tally)
    };
    let tally = tried();
    succeed(Command::new("umount").arg(&out))?;
    println!("a full disk on rank 0: {}", tally?);
    Ok(())
}

/// Two hosts whose link is cut, each in turn.
fn cut_link(folder: &Path) -> Result<(), String> {
    let mut tally = Tally::default();
    for host in [1, 2] {
        let network = Network::new(2, None)?;
        let out = folder.join(format!("link{host}"));
        let job = Job::start(network.mpirun(2), folder, &out)?;
        joined(&out)?;
        std::thread::sleep(Duration::from_secs(2));
        network.cut(host)?;
        let seen = job.end()?;
        // The ranks may notice it, or the launcher, whoever is first.
        let words = ["gave no sign for", "the network may be cut", "lost communication with a remote daemon"];
        if !words.iter().any(|word| seen.text.contains(word)) {
            return Err(format!("a cut link: no word of it in:\n{}", seen.text));
        }
        tally.n_loaded += goes_on(folder, &out, 3)?;
        tally.add(&seen);
    }
    println!("a cut link: {tally}");
    Ok(())
}

impl Job {
    /// Starts training that would take very long, with an epoch every moment.
    fn start(mut mpirun: Command, folder: &Path, out: &Path) -> Result<Job, String> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let id = format!("{}-{number}", std::process::id());
        mpirun
            .args(["-x", JOB, "-x", "LAZULI_MPI_TIMEOUT", "-x", "LAZULI_THREADS"])
            .arg(built("lazuli")?.get_program());
        mpirun.args(train(folder, out)).args(["--distributed", "--epochs", "100000"]);
        mpirun.env(JOB, &id).env("LAZULI_MPI_TIMEOUT", TIMEOUT.to_string()).env("LAZULI_THREADS", "1");
        mpirun.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut mpirun = mpirun.spawn().map_err(|e| format!("mpirun: {e}"))?;
        let mut errors = mpirun.stderr.take().ok_or("standard error is piped")?;
        let read = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is what there is.
            let _ = errors.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Job { id, mpirun, read })
    }

    /// The process of a rank, once it is there.
    fn rank(&self, rank: usize) -> Result<u32, String> {
        let start = Instant::now();
        while start.elapsed() < HANGS {
            let is_rank = |pid: &u32| environment(*pid).contains(&format!("OMPI_COMM_WORLD_RANK={rank}\0"));
            if let Some(pid) = self.processes().into_iter().find(is_rank) {
                return Ok(pid);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("rank {rank} has not begun"))
    }

    /// All processes of the job but `mpirun` and its daemons.
    fn processes(&self) -> Vec<u32> {
        let entry = format!("{JOB}={}\0", self.id);
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
        pids.filter(|pid| {
            let text = environment(*pid);
            text.contains(&entry) && text.contains("OMPI_COMM_WORLD_RANK=")
        })
        .collect()
    }

    /// Waits for its end, which must be a failure, and looks for what is left.
    fn end(mut self) -> Result<Seen, String> {
        let start = Instant::now();
        let status = loop {
            match self.mpirun.try_wait().map_err(|e| e.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > HANGS => {
                    let left = self.processes();
                    self.mpirun.kill().map_err(|e| e.to_string())?;
                    return Err(format!("the job hangs, with processes {left:?}"));
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let seconds = start.elapsed().as_secs_f64();
        // A process on another host ends by itself.
        while !self.processes().is_empty() && start.elapsed() < HANGS {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (left, seconds) = (self.processes(), seconds.max(start.elapsed().as_secs_f64()));
        if !left.is_empty() {
            return Err(format!("processes {left:?} are left"));
        }
        let text = self.read.join().map_err(|_| "reading has panicked")?;
        if status.success() {
            return Err(format!("the job has succeeded:\n{text}"));
        }
        Ok(Seen { seconds, text })
    }
}

/// Waits until rank 0 has made its folder, which it does when all ranks have joined.
fn joined(out: &Path) -> Result<(), String> {
    let start = Instant::now();
    while !out.exists() {
        if start.elapsed() > HANGS {
            return Err("the ranks have not joined".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// That the checkpoint loads, on so many ranks (0: without MPI), and training goes on. Gives 0 if there is none yet, else 1.
fn goes_on(folder: &Path, out: &Path, n: usize) -> Result<usize, String> {
    if !out.join("checkpoint.safetensors").exists() {
        return Ok(0);
    }
    let lazuli = built("lazuli")?;
    let mut command = if n == 0 { Command::new(lazuli.get_program()) } else { on_this_machine(n, None) };
    if n > 0 {
        command.arg(lazuli.get_program());
    }
    command.args(train(folder, out)).args(["--resume", "--epochs", "1"]);
    if n > 0 {
        command.arg("--distributed");
    }
    let output = command.output().map_err(|e| e.to_string())?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    match output.status.success() {
        true => Ok(1),
        false => Err(format!("the last checkpoint does not load on {n} ranks:\n{text}")),
    }
}

fn train(folder: &Path, out: &Path) -> Vec<String> {
    let (data, out) = (folder.display().to_string(), out.display().to_string());
    let words = ["train", "mnist", "--device", "cpu", "--batch", "30", "--data", &data, "--out", &out];
    words.map(String::from).to_vec()
}

fn environment(pid: u32) -> String {
    let file = PathBuf::from(format!("/proc/{pid}/environ"));
    // Of a process that has ended, or ends now, there is none.
    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Made-up images: an epoch takes some 20 ms.
fn images(folder: &Path) -> Result<(), String> {
    for (stem, n) in [("train", 300u32), ("t10k", 30)] {
        let sizes = |sizes: &[u32]| sizes.iter().flat_map(|size| size.to_be_bytes()).collect::<Vec<u8>>();
        let pixels: Vec<u8> = (0..n * 784).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let images = [&[0, 0, 8, 3][..], &sizes(&[n, 28, 28]), &pixels].concat();
        let labels: Vec<u8> = (0..n).map(|i| (i % 10) as u8).collect();
        let labels = [&[0, 0, 8, 1][..], &sizes(&[n]), &labels].concat();
        for (name, bytes) in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)] {
            fs::write(folder.join(format!("{stem}-{name}")), bytes).map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

impl Tally {
    fn add(&mut self, seen: &Seen) {
        self.n += 1;
        self.longest = self.longest.max(seen.seconds);
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Tally { n, longest, n_loaded } = self;
        write!(f, "{n} times; the job ended within {longest:.1} s, nothing hung, nothing was left, ")?;
        write!(f, "and where there was a checkpoint ({n_loaded}) it loaded")
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}
