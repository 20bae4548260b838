//! `lazuli chat` and `lazuli generate`: what they have in common. Opening a model with a progress bar, the options of sampling,
//! what is printed of a model's text, and how fast it came.

pub mod chat;
pub mod generate;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lazuli::Device;
use lazuli_text::{LanguageModel, Sampling};

use crate::args::{Words, number, unknown};

/// The options that both commands have, with their text in `help`.
#[derive(Debug, PartialEq)]
pub struct Common {
    path: PathBuf,
    device: Option<String>,
    sampling: Sampling,
    context: Option<usize>,
    has_stats: bool,
}

/// The lines of both commands' help.
macro_rules! common_help {
    () => {
        "  --tokens N              At most so many tokens a reply
  --temperature T         How daring: 0 always takes the likeliest token (0.7)
  --top-k K               Only so many of the likeliest tokens; 0 for all (40)
  --top-p P               Only the likeliest tokens that together reach this probability (0.95)
  --min-p P               Only tokens at least this share as likely as the likeliest (0.05)
  --repetition-penalty X  Tokens that were just there become less likely (1: no)
  --seed N                The same seed, the same text (0)
  --stop TEXT             Stops before this text; may be given more than once
  --context N             Room for so many tokens of text and replies (what the model was trained for)
  --device NAME           A device by name, by part of its name, or by its index in `devices` (the best one)
  --stats                 Tokens a second and memory, at the end
  -h, --help              This text
"
    };
}
use common_help;

const OPTIONS: [&str; 13] = [
    "--tokens",
    "--temperature",
    "--top-k",
    "--top-p",
    "--min-p",
    "--repetition-penalty",
    "--seed",
    "--stop",
    "--context",
    "--device",
    "--stats",
    "--help",
    "-h",
];

impl Common {
    fn new() -> Common {
        Common { path: PathBuf::new(), device: None, sampling: Sampling::default(), context: None, has_stats: false }
    }

    /// Takes an option that both commands have; false if it is none of them.
    fn take(&mut self, word: &str, given: Option<String>, words: &mut Words) -> Result<bool, String> {
        let share = |word: &str, value: &str, example: &str| {
            number(word, value, "a share from 0 to 1", example, |x: &f32| (0.0..=1.0).contains(x))
        };
        let sampling = &mut self.sampling;
        match word {
            "--tokens" => sampling.max_tokens = Some(count(word, given, words, "200")?),
            "--context" => self.context = Some(count(word, given, words, "8192")?),
            "--temperature" => {
                let value = words.value(word, given, "0.7")?;
                let is_good = |x: &f32| (0.0..=100.0).contains(x);
                sampling.temperature = number(word, &value, "a number from 0 to 100", "0.7", is_good)?;
            }
            "--top-k" => {
                let value = words.value(word, given, "40")?;
                sampling.top_k = number(word, &value, "a whole number", "40", |_| true)?;
            }
            "--top-p" => {
                let value = words.value(word, given, "0.9")?;
                sampling.top_p = share(word, &value, "0.9")?;
            }
            "--min-p" => {
                let value = words.value(word, given, "0.05")?;
                sampling.min_p = share(word, &value, "0.05")?;
            }
            "--repetition-penalty" => {
                let value = words.value(word, given, "1.1")?;
                let is_good = |x: &f32| (0.01..=100.0).contains(x);
                sampling.repetition_penalty = number(word, &value, "a number from 0.01 to 100", "1.1", is_good)?;
            }
            "--seed" => {
                let value = words.value(word, given, "7")?;
                sampling.seed = number(word, &value, "a whole number", "7", |_| true)?;
            }
            "--stop" => sampling.stop.push(words.value(word, given, "'.'")?),
            "--device" => self.device = Some(words.value(word, given, "cpu")?),
            "--stats" => {
                crate::args::flag(word, given)?;
                self.has_stats = true;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Opens the model, with a bar if somebody looks.
    fn open(&self) -> Result<LanguageModel, Box<dyn std::error::Error>> {
        let device = match &self.device {
            Some(name) => Device::open(name)?,
            None => Device::best(),
        };
        open_model(&self.path, &device)
    }
}

/// The value of an option that counts something.
fn count(word: &str, given: Option<String>, words: &mut Words, example: &str) -> Result<usize, String> {
    let value = words.value(word, given, example)?;
    number(word, &value, "a whole number from 1 on", example, |n: &usize| *n > 0)
}

/// The error of an option that is not there.
fn no_option(word: &str, own: &[&str]) -> String {
    unknown("option", word, &[own, &OPTIONS].concat())
}

fn open_model(path: &Path, device: &Device) -> Result<LanguageModel, Box<dyn std::error::Error>> {
    let is_seen = std::io::stderr().is_terminal();
    let bar = if is_seen { ProgressBar::new(0) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("loading {bar:30} {pos}/{len} layers")?);
    let model = LanguageModel::open_with(path, device, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(model?)
}

/// A model's text as a terminal may show it: without control characters, of which some steer it, but with line feeds and tabs.
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// How long a reply took.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    n_read: usize,
    reading: Duration,
    n_made: usize,
    making: Duration,
}

impl Pace {
    fn add(&mut self, other: Pace) {
        self.n_read += other.n_read;
        self.reading += other.reading;
        self.n_made += other.n_made;
        self.making += other.making;
    }

    /// One line a kind, and memory.
    fn print(&self, cache_bytes: usize, device: &Device, out: &mut dyn Write) -> std::io::Result<()> {
        let rate = |n: usize, time: Duration| n as f64 / time.as_secs_f64().max(1e-9);
        let (n_read, n_made) = (self.n_read, self.n_made);
        writeln!(out, "read     {n_read:>6} tokens, {:>8.1} tokens/s", rate(n_read, self.reading))?;
        writeln!(out, "made     {n_made:>6} tokens, {:>8.1} tokens/s", rate(n_made, self.making))?;
        let megabytes = |n: u64| n as f64 / 1e6;
        let live = megabytes(device.stats().bytes_live);
        writeln!(out, "memory   {live:.1} MB of tensors, {:.1} MB of them cache", megabytes(cache_bytes as u64))?;
        if let Some(resident) = peak_resident_bytes() {
            writeln!(out, "process  {:.1} MB at most", megabytes(resident))?;
        }
        Ok(())
    }
}

/// The most memory that this process has held, where the system says so.
fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable("a\x1b[31mb\u{9b}c\r\n\td\0世"), "a[31mbc\n\td世");
    }
}
