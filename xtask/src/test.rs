//! `cargo xtask test`: everything that must hold, one step after another, with a summary at the end. All steps share
//! one profile, one target folder and one choice of packages (another choice would unite features differently), so that
//! the engine is compiled once for checking and once for testing.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::tidy;
use crate::workspace::{cargo, files, succeed};

/// A step and what it checks.
struct Step {
    name: &'static str,
    run: fn() -> Result<(), String>,
}

const STEPS: &[Step] = &[
    Step { name: "formatting", run: formatting },
    Step { name: "tidy", run: tidy::run },
    Step { name: "clippy", run: clippy },
    Step { name: "api docs", run: api_docs },
    Step { name: "tests", run: tests },
    Step { name: "examples", run: examples },
    Step { name: "tour", run: tour },
];

/// Runs every step, those after a failure too, and says how each went.
pub fn run(words: &[String]) -> Result<(), String> {
    if let Some(word) = words.first() {
        return Err(format!("takes no arguments, not `{word}`; `cargo test` runs single tests"));
    }
    let start = Instant::now();
    let mut results: Vec<(&str, Duration, Result<(), String>)> = Vec::new();
    for step in STEPS {
        println!("\n── {} ──", step.name);
        let lap = Instant::now();
        let result = (step.run)();
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

/// Links in the documentation lead somewhere.
fn api_docs() -> Result<(), String> {
    let mut command = Command::new(cargo());
    succeed(command.args(["doc", "--no-deps", "--package", "lazuli"]).env("RUSTDOCFLAGS", "--deny warnings"))
}

/// Unit tests, tests of the whole, every example in docs, README and guide, and whether generated pages are up to date.
fn tests() -> Result<(), String> {
    succeed(Command::new(cargo()).args(["test", "--workspace", "--no-fail-fast"]))
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

/// A program that building the tests has left beside this one.
fn built(name: &str) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = this.parent().ok_or("xtask is in no folder")?;
    Ok(Command::new(folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))))
}
