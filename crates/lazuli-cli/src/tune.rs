//! `lazuli tune`: measures on a GPU which way to multiply matrices is fastest, and keeps it for every program of this user.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lazuli::Device;

use crate::args::{Words, number, unknown};
use crate::{Outcome, counted};

/// What `lazuli tune --help` prints.
pub const HELP: &str = "\
Measures which kernels multiply matrices fastest on a GPU, for the shapes that models are made of. What is found is kept
beside the compiled kernels (LAZULI_CACHE_DIR says where), for this adapter and driver; every program uses it from then
on, and `explain` says so. A kernel that gives a wrong result on this device is never taken.

Usage: lazuli tune [OPTIONS]

Options:
  --device NAME      A device by name, by part of its name, or by its index in `devices` (the best GPU)
  --budget SECONDS   How long to look, up to a day; shapes that are not reached keep their default (60)
  -h, --help         This text
";

const OPTIONS: [&str; 4] = ["--device", "--budget", "--help", "-h"];

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    /// As the user named it; None is the best GPU.
    pub device: Option<String>,
    pub budget: Duration,
}

impl Options {
    /// Understands the words after `tune`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut options = Options { device: None, budget: Duration::from_secs(60) };
        while let Some((name, given)) = words.next() {
            match name.as_str() {
                "--device" => options.device = Some(words.value(&name, given, "gpu")?),
                "--budget" => options.budget = seconds(&name, &words.value(&name, given, "30")?)?,
                _ => return Err(unknown("option", &name, &OPTIONS)),
            }
        }
        Ok(options)
    }
}

fn seconds(option: &str, word: &str) -> Result<Duration, String> {
    let is_good = |seconds: &f64| (0.001..=86_400.0).contains(seconds);
    number(option, word, "seconds from 0.001 to 86400", "30", is_good).map(Duration::from_secs_f64)
}

/// Tunes, with a bar for people who watch; Ctrl-C keeps what was found so far.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::gpu()?,
    };
    writeln!(out, "tuning {} for up to {:.0} s", device.info().name, options.budget.as_secs_f64())?;
    let stop = Arc::new(AtomicBool::new(false));
    let noticed = stop.clone();
    ctrlc::set_handler(move || noticed.store(true, Ordering::Relaxed))?;

    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed}") {
        bar.set_style(style);
    }
    let (mut lines, mut n_found) = (Vec::new(), 0);
    let tuned = lazuli::gpu::tune(&device, options.budget, |step| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
        bar.set_message(step.class.clone());
        if let Some(variant) = &step.variant {
            n_found += 1;
            let wrong = if step.wrong > 0 { format!(", {} wrong", step.wrong) } else { String::new() };
            let (class, speedup, tried) = (&step.class, step.speedup, step.tried);
            lines.push(format!("{class:<24} {variant:<24} {speedup:.2} times the default ({tried} tried{wrong})"));
        }
        !stop.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    for line in &lines {
        writeln!(out, "{line}")?;
    }
    tuned?;
    let found = counted(n_found, "class", "classes");
    writeln!(out, "{found} of shapes tuned; programs that start from now on use what was found")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, expect: Result<(Option<&str>, f64), &str>) {
        let got = Options::parse(words.split_whitespace().map(String::from));
        let expect = expect.map(|(device, seconds)| Options {
            device: device.map(String::from),
            budget: Duration::from_secs_f64(seconds),
        });
        assert_eq!(got, expect.map_err(String::from), "{words}");
    }

    #[test]
    fn options_are_a_device_and_a_budget() {
        check("", Ok((None, 60.0)));
        check("--device software --budget=2.5", Ok((Some("software"), 2.5)));
    }

    #[test]
    fn what_is_no_option_is_told_what_was_meant() {
        check("--bugdet 3", Err("there is no option `--bugdet`; did you mean `--budget`?"));
        for words in ["--budget", "--budget=", "--budget --device cpu"] {
            check(words, Err("--budget wants a value, such as `--budget 30`"));
        }
        for word in ["never", "-1", "0", "1e-9", "1e30", "inf", "NaN", "86401"] {
            let expect = format!("--budget wants seconds from 0.001 to 86400, such as `--budget 30`, not `{word}`");
            check(&format!("--budget {word}"), Err(&expect));
        }
        check("extra", Err("there is no option `extra`; there are: --device, --budget, --help, -h"));
    }
}
