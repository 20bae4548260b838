//! `lazuli doctor`: what devices there are, whether every form of kernel is right on them, and how fast they are; a report
//! that can be attached to a bug. Checks are `lazuli-check`'s; here is who is asked, and what is written down.
//!
//! A thread examines while this one waits for it or for Ctrl-C, so that a driver that hangs does not keep the report from
//! being written.

mod examine;
mod arithmetic;
mod json;
mod privacy;
mod report;
mod speed;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use indicatif::{ProgressBar, ProgressStyle};
use lazuli::Device;
use lazuli_check::Form;

use crate::args::{Words, flag, unknown};
use crate::{Outcome, counted};
use examine::examine;
use report::{DeviceReport, Report, locked};

/// What `lazuli help doctor` prints.
pub const HELP: &str = "\
Checks every form of kernel on every device against an oracle, measures how fast they are, and writes a report that can be
attached to a bug: no names of users, hosts or folders are in it. About a minute a device; the first time, a driver
compiles every kernel, which takes longer. Ctrl-C writes what is known so far. Ends with status 1 if anything is wrong.

Usage: lazuli doctor [OPTIONS]

Options:
  --device NAME   Only this device, as for the other commands
  --only TEXT     Only forms with this in their names; no speed is measured
  --json          The report as JSON
  --output FILE   Writes the report to a file
  -h, --help      This text
";

const OPTIONS: [&str; 6] = ["--device", "--only", "--json", "--output", "--help", "-h"];

/// What to examine, and what becomes of the report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// As the user named it; None is every device.
    device: Option<String>,
    /// Part of the names of forms.
    only: Option<String>,
    json: bool,
    output: Option<PathBuf>,
}

impl Options {
    /// Understands the words after `doctor`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut options = Options::default();
        while let Some((name, given)) = words.next() {
            match name.as_str() {
                "--device" => options.device = Some(words.value(&name, given, "gpu")?),
                "--only" => options.only = Some(words.value(&name, given, "product")?),
                "--output" => options.output = Some(words.value(&name, given, "report.txt")?.into()),
                "--json" => {
                    flag(&name, given)?;
                    options.json = true;
                }
                _ => return Err(unknown("option", &name, &OPTIONS)),
            }
        }
        Ok(options)
    }

    /// The forms that are asked for; an error if there is none.
    fn forms(&self) -> Result<Vec<Form>, String> {
        let Some(only) = &self.only else { return Ok(lazuli_check::forms()) };
        let names: Vec<&str> = lazuli_check::forms().iter().map(|form| form.name).collect();
        let chosen: Vec<Form> = lazuli_check::forms().into_iter().filter(|form| form.name.contains(&**only)).collect();
        if chosen.is_empty() {
            return Err(format!("no form has `{only}` in its name; there are: {}", names.join("; ")));
        }
        Ok(chosen)
    }

    /// The devices that are asked for, by the words that open them.
    fn devices(&self) -> lazuli::Result<Vec<(String, Device)>> {
        if let Some(name) = &self.device {
            return Ok(vec![(name.clone(), Device::open(name)?)]);
        }
        (0..Device::all().len()).map(|i| Ok((i.to_string(), Device::open(&i.to_string())?))).collect()
    }
}

/// Examines, and writes the report whatever ends it.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let forms = options.forms()?;
    let (ended, end) = channel();
    let interrupt = ended.clone();
    // If nobody waits any more, the report is being written.
    ctrlc::set_handler(move || drop(interrupt.send(Ended::Interrupted)))?;
    examine_all(options, forms, (ended, end), out)
}

/// Examines until it is done or another end is told, and writes the report. An error if anything is wrong.
fn examine_all(
    options: &Options,
    forms: Vec<Form>,
    (ended, end): (Sender<Ended>, Receiver<Ended>),
    out: &mut dyn Write,
) -> Outcome {
    let devices = options.devices()?;
    // What cannot be written should be known before a minute has passed.
    let mut file = match &options.output {
        Some(path) => Some(std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?),
        None => None,
    };
    let report =
        Arc::new(Mutex::new(Report::new(devices.iter().map(|(name, device)| DeviceReport::new(name, device)))));
    let bar = bar();
    let work = Work { report: report.clone(), devices, forms, bar: bar.clone(), measures: options.only.is_none() };
    start(work, ended)?;
    let is_whole = end.recv()? == Ended::Done;
    bar.finish_and_clear();

    let mut report = locked(&report).clone();
    report.is_whole = is_whole;
    let text = if options.json { format!("{}\n", report.json()) } else { report.to_string() };
    match (&mut file, &options.output) {
        (Some(file), Some(path)) => {
            file.write_all(text.as_bytes())?;
            writeln!(out, "{}; the report is in {}", report.summary(), path.display())?;
        }
        _ => out.write_all(text.as_bytes())?,
    }
    match report.n_failures() {
        0 => Ok(()),
        n => Err(format!("{} on {}", counted(n as u64, "failure", "failures"), report.failing().join(", ")).into()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Done,
    Interrupted,
}

/// What the examining thread has.
struct Work {
    report: Arc<Mutex<Report>>,
    devices: Vec<(String, Device)>,
    forms: Vec<Form>,
    bar: ProgressBar,
    measures: bool,
}

/// Starts to examine one device after another.
fn start(work: Work, ended: Sender<Ended>) -> std::io::Result<()> {
    let examining = move || {
        for (at, (_, device)) in work.devices.iter().enumerate() {
            examine(device, &work.forms, work.measures, &work.bar, |change| {
                change(&mut locked(&work.report).devices[at]);
            });
        }
        // If nobody waits any more, Ctrl-C was first.
        drop(ended.send(Ended::Done));
    };
    std::thread::Builder::new().name("doctor".into()).spawn(examining).map(drop)
}

/// A bar for people who watch. Whoever does not watch gets a line for each device.
fn bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests;
