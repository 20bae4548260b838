//! `cargo xtask soak mpi`: ranks that are killed or stopped at random moments, a full disk and a cut link. Each time the job must
//! end in time with a failure that names a rank, leave no process behind, and leave a checkpoint that another number of ranks
//! goes on from. When a rank is killed before all have joined, the launcher may hang by itself with no rank left (the mpirun of Open MPI 4.1.4 does,
//! in `PMIx_server_finalize` of PMIx 4.2.2): that is counted and said, and only ranks that are left are a failure. With `--write` what was
//! seen is kept as lines in `xtask/scaling/faults.txt`, of which `cargo xtask scaling` makes a table of the page. Needs Linux and root.

#[path = "../../../crates/lazuli-cli/tests/images/idx.rs"]
mod idx;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::install;
use super::network::{Network, on_this_machine};
use crate::workspace::{built, cargo, read, root, succeed};

/// What was seen, a line for each kind of fault: date, commit, seed, times, seconds, checkpoints, launchers that hung, name.
const KEPT: &str = "xtask/scaling/faults.txt";

/// The setting under test: `LAZULI_MPI_TIMEOUT`, in seconds.
const TIMEOUT: u64 = 12;
/// A job that has not ended so long after the fault hangs. The machine may be loaded.
const HANGS: Duration = Duration::from_secs(3 * TIMEOUT);
/// By this variable the processes of a job are found.
const JOB: &str = "LAZULI_SOAK_JOB";

/// A launcher that is still there so long after its last rank hangs.
const LAUNCHER_HANGS: Duration = Duration::from_secs(15);

/// What was seen of one fault.
struct Seen {
    seconds: f64,
    text: String,
    launcher: Launcher,
}

/// How the launcher ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    Ended,
    /// It hung when no rank was left, until it was killed: it heeds no single SIGTERM then.
    Hung,
}

/// How often each kind of fault was tried, and the longest that a job went on.
#[derive(Default)]
struct Tally {
    n: usize,
    longest: f64,
    /// After how many there was a checkpoint, which another number of ranks loaded.
    n_loaded: usize,
    n_launchers_hung: usize,
}

/// A kind of fault, by name.
struct Kind {
    name: &'static str,
    run: fn(&Path, u64, &mut Random) -> Result<Tally, String>,
}

const KINDS: &[Kind] = &[
    Kind { name: "SIGKILL while ranks join", run: killed_early },
    Kind { name: "SIGKILL", run: |folder, n, random| signals(folder, "KILL", n, random) },
    Kind { name: "SIGSTOP", run: |folder, n, random| signals(folder, "STOP", n, random) },
    Kind { name: "a full disk on rank 0", run: |folder, _, _| full_disk(folder) },
    Kind { name: "a cut link", run: |folder, _, _| cut_link(folder) },
];

/// Time in which this process could run: a machine that is suspended for a while has no job that hangs.
struct AwakeClock {
    last: Instant,
    awake: Duration,
}

impl AwakeClock {
    fn new() -> AwakeClock {
        AwakeClock { last: Instant::now(), awake: Duration::ZERO }
    }

    /// The time so far, for who asks several times a second.
    fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.awake += (now - self.last).min(Duration::from_millis(500));
        self.last = now;
        self.awake
    }
}

/// A job under way.
struct Job {
    id: String,
    mpirun: Child,
    read: std::thread::JoinHandle<String>,
    /// A rank that must stay stopped. Whoever resumes the launcher (a shell, a scheduler) resumes its ranks.
    stopped: Option<u32>,
}

/// Runs all faults. Words: `--write` to keep what is seen, at how many moments each rank is killed and stopped (20), and of which
/// kind of fault alone.
pub fn run(words: &[String]) -> Result<(), String> {
    let (writes, words) = match words {
        [first, rest @ ..] if first == "--write" => (true, rest),
        _ => (false, words),
    };
    let (n_moments, kind) = match words {
        [] => (20, ""),
        [word, kind @ ..] if kind.len() < 2 => {
            let n = word.parse::<u64>().map_err(|_| format!("`{word}` is no number of moments"))?;
            (n, kind.first().map_or("", String::as_str))
        }
        _ => return Err("takes a number of moments (20) and a kind of fault at most".into()),
    };
    let kinds: Vec<&Kind> = KINDS.iter().filter(|k| kind.is_empty() || k.name == kind).collect();
    if kinds.is_empty() {
        let names: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(format!("there is no kind of fault `{kind}`; there are: {}", names.join(", ")));
    }
    install()?;
    let tests = ["test", "--workspace", "--features", "lazuli-cli/mpi", "--test", "distributed", "--no-run"];
    succeed(Command::new(cargo()).args(tests))?;
    let folder = root().join("target/mpi-soak");
    // What an earlier run has left.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    // An epoch of them takes some 20 ms.
    idx::write(&folder, 300, 30).map_err(|e| e.to_string())?;
    let mut random =
        Random(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64));
    let seed = random.0;
    println!("seed {seed}");
    // The commit that is tested, which may no longer be the last one in the end.
    let commit = if writes { commit()? } else { String::new() };
    for kind in kinds {
        let tally = (kind.run)(&folder, n_moments, &mut random)?;
        println!("{}: {tally}", kind.name);
        if writes {
            keep(kind.name, &format!("{commit} {seed}"), &tally)?;
        }
    }
    Ok(())
}

/// What a program says.
fn said(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).current_dir(root()).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The last commit that has changed what is tested, and whether it was changed since.
fn commit() -> Result<String, String> {
    let commit = said("git", &["log", "-1", "--format=%h", "--", "crates"])?;
    let is_changed = !said("git", &["status", "--porcelain", "--", "crates"])?.is_empty();
    Ok(format!("{commit}{}", if is_changed { "-dirty" } else { "" }))
}

/// Writes the tally of one kind of fault, with commit and seed, to the kept measurements, in place of that kind's last tally.
fn keep(kind: &str, tried: &str, tally: &Tally) -> Result<(), String> {
    let Tally { n, longest, n_loaded, n_launchers_hung } = tally;
    let date = said("date", &["--utc", "+%F"])?;
    let line = format!("{date} {tried} {n} {longest:.1} {n_loaded} {n_launchers_hung} {kind}");
    let kept = read(KEPT).unwrap_or_default();
    let kind_of = |line: &str| line.splitn(8, ' ').nth(7).map(String::from);
    let mut lines: Vec<String> =
        kept.lines().map(String::from).filter(|l| kind_of(l).as_deref() != Some(kind)).collect();
    lines.push(line);
    lines.sort_by_key(|line| KINDS.iter().position(|kind| kind_of(line).as_deref() == Some(kind.name)));
    fs::write(root().join(KEPT), lines.join("\n") + "\n").map_err(|e| format!("{KEPT}: {e}"))
}

/// The rows of the page's table, from what was kept.
pub fn table() -> Result<String, String> {
    let row = |line: &str| -> Result<String, String> {
        let words: Vec<&str> = line.splitn(8, ' ').collect();
        let [date, commit, seed, n, longest, n_loaded, n_hung, kind] = words[..] else {
            return Err(format!("{KEPT}: a line has eight words, unlike `{line}`"));
        };
        Ok(format!("| {kind} | {n} | {longest} s | {n_loaded} | {n_hung} | {date} | {commit} | {seed} |"))
    };
    Ok(read(KEPT)?.lines().map(row).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Each of three ranks is killed at random moments between its start and the moment at which all ranks have joined.
fn killed_early(folder: &Path, n_moments: u64, random: &mut Random) -> Result<Tally, String> {
    let out = folder.join("early");
    let mut tally = Tally::default();
    // How long joining takes here and now, twice: a first start also loads the program.
    let mut takes = Duration::ZERO;
    for _ in 0..2 {
        // The job before this has left it.
        let _ = fs::remove_dir_all(&out);
        let job = Job::start(on_this_machine(3, None), folder, &out)?;
        let (pid, mut clock) = (job.rank(2)?, AwakeClock::new());
        joined(&out)?;
        takes = clock.now();
        kill(pid, "KILL")?;
        job.end()?;
    }
    for rank in 0..3 {
        for _ in 0..n_moments {
            let _ = fs::remove_dir_all(&out);
            let job = Job::start(on_this_machine(3, None), folder, &out)?;
            let pid = job.rank(rank)?;
            let moment = Duration::from_millis(random.below(takes.as_millis() as u64 + 1));
            std::thread::sleep(moment);
            kill(pid, "KILL")?;
            let seen = job.end_of_ranks().map_err(|e| format!("SIGKILL of rank {rank} after {moment:?}: {e}"))?;
            if !seen.text.contains(&format!("rank {rank}")) {
                return Err(format!("SIGKILL of rank {rank} after {moment:?}: no word of it in:\n{}", seen.text));
            }
            tally.n_loaded += goes_on(folder, &out, (rank + 1) % 3)?;
            tally.add(&seen);
        }
    }
    Ok(tally)
}

/// Each of three ranks gets a signal at random moments.
fn signals(folder: &Path, signal: &str, n_moments: u64, random: &mut Random) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for rank in 0..3 {
        let mut n = 0;
        while n < n_moments {
            let out = folder.join("signal");
            // The job before this has left it.
            let _ = fs::remove_dir_all(&out);
            let mut job = Job::start(on_this_machine(3, None), folder, &out)?;
            let pid = job.rank(rank)?;
            joined(&out)?;
            // Until after several checkpoints.
            let moment = Duration::from_millis(random.below(3000));
            std::thread::sleep(moment);
            kill(pid, signal)?;
            job.stopped = (signal == "STOP").then_some(pid);
            let seen = job.end().map_err(|e| format!("{signal} of rank {rank} after {moment:?}: {e}"))?;
            if signal == "STOP" && seen.text.contains("Forwarding signal 18") {
                println!("the launcher was resumed by somebody, and passed that on to the stopped rank: once more");
                continue;
            }
            if !seen.text.contains(&format!("rank {rank}")) {
                return Err(format!("{signal} of rank {rank}: no word of it in:\n{}", seen.text));
            }
            tally.n_loaded += goes_on(folder, &out, (rank + 1) % 3)?;
            tally.add(&seen);
            n += 1;
        }
    }
    Ok(tally)
}

/// The folder of the checkpoint has room for one, and not for another beside it.
fn full_disk(folder: &Path) -> Result<Tally, String> {
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
    tally
}

/// Two hosts whose link is cut, each in turn.
fn cut_link(folder: &Path) -> Result<Tally, String> {
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
    Ok(tally)
}

fn kill(pid: u32, signal: &str) -> Result<(), String> {
    succeed(Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]))
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
        Ok(Job { id, mpirun, read, stopped: None })
    }

    /// The process of a rank, once it is there.
    fn rank(&self, rank: usize) -> Result<u32, String> {
        let mut clock = AwakeClock::new();
        while clock.now() < HANGS {
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
    fn end(self) -> Result<Seen, String> {
        match self.end_of_ranks()? {
            Seen { launcher: Launcher::Hung, text, .. } => Err(format!("mpirun hangs, with no rank left:\n{text}")),
            seen => Ok(seen),
        }
    }

    /// Waits for the end of all ranks, and of the launcher unless that hangs by itself.
    fn end_of_ranks(mut self) -> Result<Seen, String> {
        let mut clock = AwakeClock::new();
        let mut last_rank = Duration::ZERO;
        let mut launcher = Launcher::Ended;
        let mut ended = None;
        loop {
            let now = clock.now();
            ended = ended.or(self.mpirun.try_wait().map_err(|e| e.to_string())?);
            let left = self.processes();
            if !left.is_empty() {
                last_rank = now;
            }
            if let Some(pid) = self.stopped.filter(|pid| left.contains(pid) && !is_stopped(*pid)) {
                // It may have ended since.
                let _ = kill(pid, "STOP");
            }
            match (ended, left.is_empty()) {
                (Some(_), true) => break,
                (_, false) if now > HANGS => {
                    self.mpirun.kill().map_err(|e| e.to_string())?;
                    return Err(format!("the job hangs, with processes {left:?}"));
                }
                (None, true) if now - last_rank > LAUNCHER_HANGS && launcher == Launcher::Ended => {
                    launcher = Launcher::Hung;
                    self.mpirun.kill().map_err(|e| e.to_string())?;
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        let seconds = clock.now().as_secs_f64();
        let text = self.read.join().map_err(|_| "reading has panicked")?;
        if ended.is_some_and(|status| status.success()) {
            return Err(format!("the job has succeeded:\n{text}"));
        }
        Ok(Seen { seconds, text, launcher })
    }
}

/// Waits until rank 0 has made its folder, which it does when all ranks have joined.
fn joined(out: &Path) -> Result<(), String> {
    let mut clock = AwakeClock::new();
    while !out.exists() {
        if clock.now() > HANGS {
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

/// Whether a process is stopped: the field after its name, which is in brackets and may have any characters.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn environment(pid: u32) -> String {
    let file = PathBuf::from(format!("/proc/{pid}/environ"));
    // Of a process that has ended, or ends now, there is none.
    fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

impl Tally {
    fn add(&mut self, seen: &Seen) {
        self.n += 1;
        match seen.launcher {
            Launcher::Ended => self.longest = self.longest.max(seen.seconds),
            Launcher::Hung => self.n_launchers_hung += 1,
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Tally { n, longest, n_loaded, n_launchers_hung } = self;
        write!(f, "{n} times; the job ended within {longest:.1} s, no rank hung, none was left, ")?;
        write!(f, "and where there was a checkpoint ({n_loaded}) it loaded")?;
        match n_launchers_hung {
            0 => Ok(()),
            n => write!(f, "; mpirun itself hung {n} times with no rank left"),
        }
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
