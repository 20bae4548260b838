//! The `lazuli` command: the tour, what devices there are and whether they are right, training, tuning, and models: what they hold
//! and what they give. Reads arguments and files and prints; all maths is the engine's.

mod args;
mod doctor;
#[cfg(feature = "onnx")]
mod embed;
mod inspect;
#[cfg(feature = "text")]
mod language;
#[cfg(feature = "onnx")]
mod loading;
#[cfg(feature = "onnx")]
mod run;
#[cfg(feature = "onnx")]
mod sound;
mod tour;
mod train;
#[cfg(feature = "onnx")]
mod transcribe;
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
    let rest = words;
    let outcome = match own.as_deref() {
        Some("train") => {
            own_options(rest, train::HELP, out, |rest, out| Ok(train::run(train::Options::parse(rest)?, out)))
        }
        Some("doctor") => {
            own_options(rest, doctor::HELP, out, |rest, out| Ok(doctor::run(&doctor::Options::parse(rest)?, out)))
        }
        Some("tune") => {
            own_options(rest, tune::HELP, out, |rest, out| Ok(tune::run(&tune::Options::parse(rest)?, out)))
        }
        Some("inspect") => {
            own_options(rest, inspect::HELP, out, |rest, out| Ok(inspect::run(&inspect::Options::parse(rest)?, out)))
        }
        #[cfg(feature = "onnx")]
        Some("run") => own_options(rest, run::HELP, out, |rest, out| Ok(run::run(&run::Options::parse(rest)?, out))),
        #[cfg(feature = "onnx")]
        Some("transcribe") => own_options(rest, transcribe::HELP, out, |rest, out| {
            Ok(transcribe::run(&transcribe::Options::parse(rest)?, out))
        }),
        #[cfg(feature = "onnx")]
        Some("embed") => {
            own_options(rest, embed::HELP, out, |rest, out| Ok(embed::run(&embed::Options::parse(rest)?, out)))
        }
        #[cfg(feature = "text")]
        Some("chat") => own_options(rest, language::chat::HELP, out, |rest, out| {
            Ok(language::chat::run(&language::chat::Options::parse(rest)?, out))
        }),
        #[cfg(feature = "text")]
        Some("generate") => own_options(rest, language::generate::HELP, out, |rest, out| {
            Ok(language::generate::run(&language::generate::Options::parse(rest)?, out))
        }),
        Some(_) => args::help(rest.collect()).map(|text| Ok(out.write_all(text.as_bytes())?)),
        None => args::parse(rest).map(|args| shown(&args, out)),
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
            eprintln!("lazuli: {}", told(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Starts a command that reads the words after its name itself; of help among them there is its text.
fn own_options(
    words: impl Iterator<Item = String>,
    help: &str,
    out: &mut dyn Write,
    start: impl FnOnce(Vec<String>, &mut dyn Write) -> Result<Outcome, String>,
) -> Result<Outcome, String> {
    let words: Vec<String> = words.collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        return Ok(out.write_all(help.as_bytes()).map_err(Into::into));
    }
    start(words, out)
}

fn shown(args: &args::Args, out: &mut dyn Write) -> Outcome {
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

/// An error as somebody at a terminal reads it: without the line of this program that the engine's errors name.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<lazuli::Error>() {
        Some(error) => format!("{}: {}", error.fault().op, error.fault().message),
        None => error.to_string(),
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
