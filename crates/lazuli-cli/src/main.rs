//! The `lazuli` command: the tour, what devices there are, training, tuning, and what models hold. Reads arguments and prints; all maths is
//! the engine's.

mod args;
#[cfg(feature = "onnx")]
mod inspect;
mod tour;
mod train;
mod tune;

use std::io::{self, Write};
use std::process::ExitCode;

use lazuli::Device;

use args::Command;

/// What running a command gives. The engine's errors and those of writing to the terminal meet here.
type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).peekable();
    let out = &mut io::stdout();
    let own = words.next_if(|word| args::OWN.contains(&&**word));
    let outcome = match own.as_deref() {
        Some("train") => trained(words.collect(), out),
        #[cfg(feature = "onnx")]
        Some("inspect") => inspected(words.collect(), out),
        Some("help") => args::help(words.collect()).map(|text| Ok(out.write_all(text.as_bytes())?)),
        Some(_) => tuned(words.collect(), out),
        None => args::parse(words).map(|args| run(&args, out)),
    };
    let done = match outcome {
        Ok(done) => done,
        Err(message) => {
            let command = own.filter(|name| name != "help").map_or(String::new(), |name| format!(" {name}"));
            eprintln!("lazuli: {message}\nTry `lazuli help{command}`.");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has read enough: `lazuli | head` is no failure.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lazuli: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `train` has options of its own.
fn trained(words: Vec<String>, out: &mut dyn Write) -> Result<Outcome, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(out.write_all(train::HELP.as_bytes()).map_err(Into::into));
    }
    Ok(train::run(train::Options::parse(words)?, out))
}

/// So has `inspect`.
#[cfg(feature = "onnx")]
fn inspected(words: Vec<String>, out: &mut dyn Write) -> Result<Outcome, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(out.write_all(inspect::HELP.as_bytes()).map_err(Into::into));
    }
    Ok(inspect::run(&inspect::Options::parse(words)?, out))
}

/// So has `tune`.
fn tuned(words: Vec<String>, out: &mut dyn Write) -> Result<Outcome, String> {
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(out.write_all(tune::HELP.as_bytes()).map_err(Into::into));
    }
    Ok(tune::run(&tune::Options::parse(words)?, out))
}

fn run(args: &args::Args, out: &mut dyn Write) -> Outcome {
    match args.command {
        Command::Tour => {
            let device = match &args.device {
                Some(name) => Device::open(name)?,
                None => Device::best(),
            };
            tour::run(&device, args.size, out)
        }
        Command::Devices => Ok(devices(out)?),
        Command::Help(text) => Ok(out.write_all(text.as_bytes())?),
        Command::Version => Ok(writeln!(out, "lazuli {}", env!("CARGO_PKG_VERSION"))?),
    }
}

/// `1 plan`, `2 plans`.
fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// One line a device, in the order whose index `--device` takes.
fn devices(out: &mut dyn Write) -> io::Result<()> {
    for (i, info) in Device::all().iter().enumerate() {
        writeln!(out, "{i:>4}  {info}")?;
    }
    Ok(())
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
