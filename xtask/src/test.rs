//! `cargo xtask test`: everything that must hold, one step after another, with a summary at the end. All steps share
//! one profile, one target folder and one choice of packages (another choice would unite features differently), so that
//! the engine is compiled once for checking and once for testing.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::data;
use crate::drivers::{Driver, drivers, is_complaint, n_gpus};
use crate::isa;
use crate::mpi;
use crate::tidy;
use crate::workspace::{built, cargo, files, root, succeed};

/// A step and what it checks.
struct Step {
    name: &'static str,
    run: fn(&Options) -> Result<(), String>,
}

/// What was asked for.
struct Options {
    /// Whether every driver that can be had is tested with, not only what the system has.
    all_drivers: bool,
}

const STEPS: &[Step] = &[
    Step { name: "formatting", run: |_| formatting() },
    Step { name: "tidy", run: |_| tidy::run() },
    Step { name: "clippy", run: |_| clippy() },
    Step { name: "api docs", run: |_| api_docs() },
    Step { name: "drivers", run: |options| drivers(options.all_drivers).map(drop) },
    Step { name: "tests", run: |_| tests() },
    Step { name: "gpu tests", run: gpu_tests },
    Step { name: "conformance", run: |_| conformance() },
    Step { name: "models", run: |_| models() },
    Step { name: "language model", run: |_| language_model() },
    Step { name: "isa", run: |_| isa::check() },
    Step { name: "without gpu", run: |_| without_gpu() },
    Step { name: "other systems", run: |_| other_systems() },
    Step { name: "examples", run: |_| examples() },
    Step { name: "tour", run: |_| tour() },
    Step { name: "many machines", run: |_| many_machines() },
];

/// Runs every step, those after a failure too, and says how each went.
pub fn run(words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let options = match words[..] {
        [] => Options { all_drivers: false },
        ["--drivers", "all"] | ["--drivers=all"] => Options { all_drivers: true },
        _ => return Err(format!("takes `--drivers all`, not `{}`; `cargo test` runs single tests", words.join(" "))),
    };
    let start = Instant::now();
    let mut results: Vec<(&str, Duration, Result<(), String>)> = Vec::new();
    for step in STEPS {
        println!("\n── {} ──", step.name);
        let lap = Instant::now();
        let result = (step.run)(&options);
        if let Err(message) = &result {
            println!("{} failed: {message}", step.name);
        }
        results.push((step.name, lap.elapsed(), result));
    }

    println!("\n── summary ──");
    for (name, time, result) in &results {
        let verdict = if result.is_ok() { "ok" } else { "FAILED" };
        println!("{verdict:<7} {name:<15} {:>6.1} s", time.as_secs_f64());
    }
    let n_failed = results.iter().filter(|(_, _, result)| result.is_err()).count();
    println!("{:<7} {:<15} {:>6.1} s", "", "all", start.elapsed().as_secs_f64());
    match n_failed {
        0 => {
            println!("everything holds");
            Ok(())
        }
        n => Err(format!("{n} of {} steps failed", STEPS.len())),
    }
}

/// `cargo xtask lint`.
pub fn lint() -> Result<(), String> {
    formatting()?;
    clippy()
}

fn formatting() -> Result<(), String> {
    succeed(Command::new(cargo()).args(["fmt", "--all", "--check"]))
}

fn clippy() -> Result<(), String> {
    succeed(Command::new(cargo()).args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
}

/// The crates that others build on.
const LIBRARIES: [&str; 6] = ["lazuli", "lazuli-nn", "lazuli-io", "lazuli-onnx", "lazuli-text", "lazuli-check"];

/// Links in the documentation lead somewhere.
fn api_docs() -> Result<(), String> {
    let mut command = Command::new(cargo());
    command.args(["doc", "--no-deps"]).args(LIBRARIES.iter().flat_map(|name| ["--package", name]));
    succeed(command.env("RUSTDOCFLAGS", "--deny warnings"))
}

/// Unit tests, tests of the whole, every example in docs, README and guide, and whether generated pages are up to date.
fn tests() -> Result<(), String> {
    succeed(Command::new(cargo()).args(["test", "--workspace", "--no-fail-fast"]))
}

/// Unit tests that run on every GPU: of gradients, and of every form of kernel. They are few, so that a driver that compiles
/// slowly is done in good time.
const ON_EVERY_GPU: [&str; 2] = ["autograd", "every_form_agrees_with_the_oracle"];
/// Unit tests that open every GPU by themselves and run every variant of a product on it. Running all tests does so for the
/// system's driver; other drivers need a run of their own.
const ON_EVERY_DRIVER: &str = "gpu::tune::trial";

/// What only GPUs promise, per driver; the engine's promises, random graphs, gradients, every form of kernel and training on
/// every GPU that a driver shows.
fn gpu_tests(options: &Options) -> Result<(), String> {
    for driver in drivers(options.all_drivers)? {
        if !driver.environment.is_empty() {
            succeed_without_complaint(&mut test(&driver, &["gpu"]))?;
        }
        let n_gpus = if driver.whole { n_gpus(&driver)? } else { 0 };
        for gpu in 1..=n_gpus {
            println!("\n{}: GPU {gpu}", driver.name);
            let on_gpu =
                |mut command: Command| succeed_without_complaint(command.env("LAZULI_TEST_DEVICE", gpu.to_string()));
            on_gpu(test(&driver, &["engine", "random", "layers", "step", "kept", "families", "steady"]))?;
            let mut units = Command::new(cargo());
            units.args(["test", "--workspace", "--no-fail-fast", "--lib", "--"]).args(ON_EVERY_GPU);
            if gpu == 1 && !driver.environment.is_empty() {
                units.arg(ON_EVERY_DRIVER);
            }
            units.envs(driver.environment.clone());
            on_gpu(units)?;
        }
    }
    Ok(())
}

/// Runs a command, shows its output, and fails if Vulkan's validation layer has a word in it.
fn succeed_without_complaint(command: &mut Command) -> Result<(), String> {
    let started = command.current_dir(root()).stdout(Stdio::piped()).spawn();
    let mut process = started.map_err(|e| format!("{command:?}: {e}"))?;
    let mut n_complaints = 0;
    for line in BufReader::new(process.stdout.take().expect("just asked for")).split(b'\n') {
        let line = line.map_err(|e| format!("{command:?}: {e}"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        n_complaints += is_complaint(&line) as usize;
    }
    let status = process.wait().map_err(|e| format!("{command:?}: {e}"))?;
    match (status.success(), n_complaints) {
        (false, _) => Err(format!("{status} from {command:?}")),
        (true, 0) => Ok(()),
        (true, n) => Err(format!("Vulkan's validation layer complained {n} times")),
    }
}

fn test(driver: &Driver, names: &[&str]) -> Command {
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--no-fail-fast"]).envs(driver.environment.clone());
    for name in names {
        command.args(["--test", name]);
    }
    command.arg("--");
    for (name, reason) in driver.faults {
        println!("{}: without {name}: {reason}", driver.name);
        command.args(["--skip", name]);
    }
    command
}

/// ONNX's own tests: all of them on the CPU, every ninth on a GPU that runs on the CPU. Nothing may be wrong. Then some 20,000
/// damaged copies of their models and of real ones, none of which may panic, or take half a gibibyte.
fn conformance() -> Result<(), String> {
    data::for_tests(&["onnx", "moonshine", "silero"])?;
    succeed(&mut built("examples/conformance")?)?;
    succeed(built("examples/conformance")?.args(["--device", "software", "--every", "9"]))?;
    succeed(built("examples/conformance")?.args(["--damage", "11"]))
}

/// Two real models on a recording, against numbers of onnxruntime that the repository keeps: speech to text, and where somebody
/// speaks. `cargo xtask models` compares all of them.
fn models() -> Result<(), String> {
    data::for_tests(&["moonshine", "silero"])?;
    succeed(built("examples/models")?.arg("--kept"))
}

/// A real language model: tokens as llama.cpp's, logits as an f32 forward pass of its widened weights, on the CPU and on a GPU that
/// runs on the CPU, and the same bits from one thread and from two; how much memory it takes, and losses of adapters as PyTorch's.
fn language_model() -> Result<(), String> {
    data::for_tests(&["smollm2"])?;
    succeed(built("examples/smollm2")?.arg("--quick"))?;
    succeed(built("examples/smollm2")?.args(["--device", "software"]))?;
    succeed(built("examples/smollm2")?.arg("--memory"))?;
    succeed(built("examples/smollm2")?.args(["--lora", "4"]))?;
    let bits = |threads: &str| {
        let output = built("examples/smollm2")?.arg("--bits").env("LAZULI_THREADS", threads).output();
        output.map(|output| output.stdout).map_err(|e| format!("smollm2: {e}"))
    };
    let (one, two) = (bits("1")?, bits("2")?);
    match one == two && !one.is_empty() {
        true => Ok(()),
        false => Err("one thread and two give other bits".to_string()),
    }
}

/// The engine builds without any GPU crate.
fn without_gpu() -> Result<(), String> {
    let package = ["clippy", "--package", "lazuli", "--no-default-features", "--all-targets"];
    succeed(Command::new(cargo()).args(package).args(["--", "--deny", "warnings"]))
}

/// All library crates are right for browsers, Windows and macOS on ARM, GPUs included. Nothing is linked or run there.
fn other_systems() -> Result<(), String> {
    for target in ["wasm32-unknown-unknown", "x86_64-pc-windows-msvc", "aarch64-apple-darwin"] {
        succeed(Command::new("rustup").args(["target", "add", target]))?;
        let mut command = Command::new(cargo());
        command.args(["check", "--target", target]).args(LIBRARIES.iter().flat_map(|name| ["--package", name]));
        succeed(command.env("RUSTFLAGS", "--deny warnings"))?;
    }
    Ok(())
}

/// Each example asserts what it shows.
fn examples() -> Result<(), String> {
    for path in files("examples", &[".rs"])? {
        let name = path.trim_start_matches("examples/").trim_end_matches(".rs");
        println!("\n{name}");
        succeed(&mut built(&format!("examples/{name}"))?)?;
    }
    Ok(())
}

/// What `cargo run` shows, with small sizes.
fn tour() -> Result<(), String> {
    succeed(built("lazuli")?.args(["tour", "--quick"]))
}

/// Training over MPI, on two to four ranks of this machine. `lazuli-mpi` has a workspace of its own, because nobody else needs
/// an MPI, and is built without GPUs, which its tests do not use, into the same folder, so that nothing is compiled twice that
/// need not be. The command is built with its feature `mpi`.
fn many_machines() -> Result<(), String> {
    if !cfg!(any(target_os = "linux", target_os = "macos")) {
        println!("there is no lazuli-mpi for this system");
        return Ok(());
    }
    let tree = Command::new(cargo()).args(["tree", "--workspace", "--edges", "all"]).current_dir(root()).output();
    let tree = tree.map_err(|e| format!("cargo tree: {e}"))?;
    if !tree.status.success() || String::from_utf8_lossy(&tree.stdout).contains("lazuli-mpi") {
        return Err("a default build must not depend on lazuli-mpi".into());
    }
    mpi::install()?;
    let manifest = ["--manifest-path", "crates/lazuli-mpi/Cargo.toml"];
    succeed(Command::new(cargo()).args(["fmt", "--check"]).args(manifest))?;
    for task in [&["clippy", "--all-targets"][..], &["test"]] {
        let mut command = Command::new(cargo());
        command.args(task).args(manifest).args(["--no-default-features", "--target-dir", "target"]);
        if task[0] == "clippy" {
            command.args(["--", "--deny", "warnings"]);
        }
        succeed(&mut command)?;
    }
    let command = ["test", "--workspace", "--features", "lazuli-cli/mpi", "--test", "distributed"];
    succeed(Command::new(cargo()).args(command))
}
