//! `cargo xtask models`: real models, fetched by `cargo xtask data`, compared with onnxruntime. Python and onnxruntime live in
//! an environment of their own under `data/`, with the versions of `xtask/models/requirements.txt`; what they answered is under
//! `data/models`.

use std::fs;
use std::process::Command;

use crate::data;
use crate::workspace::{cargo, root, succeed};

/// The sets that models and their inputs are in.
const SETS: [&str; 8] = ["moonshine", "silero", "magika", "rapidocr", "basic-pitch", "open-nsfw", "minilm", "pictures"];
const REQUIREMENTS: &str = "xtask/models/requirements.txt";

/// Fetches what is missing, lets onnxruntime answer, runs the models and compares; then over fifty sizes, then through the
/// `lazuli` command. The words go to `examples/models.rs`.
pub fn run(words: &[String]) -> Result<(), String> {
    data::run(&SETS.map(String::from))?;
    environment()?;
    let python = python();
    succeed(Command::new(&python).args(["xtask/models/reference.py", ".", "data/models"]))?;
    let mut command = Command::new(cargo());
    command.args(["run", "--release", "--package", "lazuli-onnx", "--example", "models", "--"]).args(words);
    succeed(&mut command)?;
    let mut command = Command::new(cargo());
    command.args(["run", "--release", "--package", "lazuli-onnx", "--example", "models", "--", "--sizes"]);
    succeed(&mut command)?;
    // What the command makes of the same models, built as users build it.
    succeed(Command::new(cargo()).args(["build", "--release", "--package", "lazuli-cli"]))?;
    let lazuli = root().join("target/release").join(format!("lazuli{}", std::env::consts::EXE_SUFFIX));
    succeed(Command::new(&python).arg("xtask/models/commands.py").arg(lazuli).args([".", "data/models"]))
}

/// The interpreter of the environment.
fn python() -> String {
    let place = if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" };
    root().join("data/.venv").join(place).to_string_lossy().into_owned()
}

/// Makes the environment unless one with these versions is there.
fn environment() -> Result<(), String> {
    let (folder, wanted) = (root().join("data/.venv"), root().join(REQUIREMENTS));
    let wanted = fs::read_to_string(&wanted).map_err(|e| format!("{}: {e}", wanted.display()))?;
    let stamp = folder.join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let system = if cfg!(windows) { "python" } else { "python3" };
    succeed(Command::new(system).args(["-m", "venv"]).arg(&folder))?;
    succeed(Command::new(python()).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        REQUIREMENTS,
    ]))?;
    // Written last, so that half an environment is not taken for one.
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))
}
