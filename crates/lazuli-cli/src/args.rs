//! What was asked for on the command line. What is not understood is answered with what there is.

use std::iter::Peekable;
use std::vec::IntoIter;

#[cfg(feature = "text")]
use crate::language::{chat, generate};
use crate::{doctor, inspect, train, tune};
#[cfg(feature = "onnx")]
use crate::{embed, run, transcribe};

/// What `lazuli help` prints.
pub const HELP: &str = "\
Lazuli, a lazy tensor engine.

Usage: lazuli [COMMAND] [OPTIONS]

Commands:
  tour        Devices, plans and speed in a few seconds (the default)
  devices     The devices that were found
  doctor      Checks every kernel on every device and measures them; `lazuli help doctor` says how
  train       Trains a model; `lazuli help train` says how
  tune        Finds the fastest matrix products for a GPU and keeps them; `lazuli help tune` says how
  inspect     What a file holds: ONNX, safetensors, GGUF, npy, npz
  help        This text, or that of a command: `lazuli help train`

Commands that a build without the feature `onnx` does not have:
  run         Runs an ONNX model on arrays, pictures, recordings or numbers
  transcribe  Speech to text with a Moonshine model
  embed       Texts as vectors, and how similar they are

Commands that a build without the feature `text` does not have:
  chat        A conversation with a language model
  generate    Goes on with a text, as a language model would

Options:
  --device NAME   A device by name, by part of its name, or by its index in `devices`
  --quick         A tour with small sizes: does it work, not how fast
  -h, --help      This text
  -V, --version   The version
";

const TOUR_HELP: &str = "\
Three pieces of maths, each planned, explained, and raced against itself run op by op.

Usage: lazuli [tour] [OPTIONS]

Options:
  --device NAME   A device by name, by part of its name, or by its index in `devices` (the best one)
  --quick         Small sizes: does it work, not how fast
  -h, --help      This text
";

const DEVICES_HELP: &str = "\
Lists the devices that were found, one a line, with the index that --device takes. It has no options.

Usage: lazuli devices
";

/// Every command with its text.
const COMMANDS: &[(&str, &str)] = &[
    ("tour", TOUR_HELP),
    ("devices", DEVICES_HELP),
    ("doctor", doctor::HELP),
    ("train", train::HELP),
    ("tune", tune::HELP),
    ("inspect", inspect::HELP),
    #[cfg(feature = "onnx")]
    ("run", run::HELP),
    #[cfg(feature = "onnx")]
    ("transcribe", transcribe::HELP),
    #[cfg(feature = "onnx")]
    ("embed", embed::HELP),
    #[cfg(feature = "text")]
    ("chat", chat::HELP),
    #[cfg(feature = "text")]
    ("generate", generate::HELP),
];
/// Commands that come first and read the rest themselves.
pub const OWN: &[&str] = &[
    "doctor",
    "train",
    "tune",
    "help",
    "inspect",
    #[cfg(feature = "onnx")]
    "run",
    #[cfg(feature = "onnx")]
    "transcribe",
    #[cfg(feature = "onnx")]
    "embed",
    #[cfg(feature = "text")]
    "chat",
    #[cfg(feature = "text")]
    "generate",
];
const OPTIONS: [&str; 6] = ["--device", "--quick", "--help", "-h", "--version", "-V"];

/// The names of all commands.
fn names() -> Vec<&'static str> {
    COMMANDS.iter().map(|(name, _)| *name).collect()
}

/// The text for the words after `help`.
pub fn help(words: Vec<String>) -> Result<&'static str, String> {
    match &words[..] {
        [] => Ok(HELP),
        [word] => match COMMANDS.iter().find(|(name, _)| name == word) {
            Some((_, text)) => Ok(text),
            None if ["help", "--help", "-h"].contains(&&**word) => Ok(HELP),
            None => Err(unknown("command", word, &names())),
        },
        _ => Err(format!("help is for one command at a time, not for `{}`", words.join(" "))),
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Show what the engine does.
    Tour,
    /// List devices.
    Devices,
    /// Print this text.
    Help(&'static str),
    /// Print the version.
    Version,
}

/// How large the tour's tensors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Large enough for speed to mean something.
    Full,
    /// Small enough for a test.
    Quick,
}

/// A command and its options.
#[derive(Debug, PartialEq, Eq)]
pub struct Args {
    pub command: Command,
    pub size: Size,
    /// As the user named it; whether there is one is for the engine to say.
    pub device: Option<String>,
}

/// Understands the words after the program's name, or says which of them it does not understand.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Args, String> {
    let mut words = Words::new(words);
    let mut args = Args { command: Command::Tour, size: Size::Full, device: None };
    let (mut named, mut options) = (None, Vec::new());
    while let Some((word, given)) = words.next() {
        match word.as_str() {
            "-h" | "--help" => {
                let text =
                    COMMANDS.iter().find(|(name, _)| Some(*name) == named.as_deref()).map_or(HELP, |(_, text)| text);
                return Ok(Args { command: Command::Help(text), ..args });
            }
            "-V" | "--version" => return Ok(Args { command: Command::Version, ..args }),
            "--quick" => {
                flag(&word, given)?;
                args.size = Size::Quick;
            }
            "--device" => args.device = Some(words.value(&word, given, "cpu")?),
            _ if word.starts_with('-') => return Err(unknown("option", &word, &OPTIONS)),
            _ => command(&word, &mut named, &mut args)?,
        }
        if word.starts_with('-') {
            options.push(word);
        }
    }
    match (args.command, options.first()) {
        (Command::Devices, Some(option)) => Err(format!("`devices` has no option `{option}`: it lists all there are")),
        _ => Ok(args),
    }
}

/// Takes a word that is no option: the command, if there is none yet.
fn command(word: &str, named: &mut Option<String>, args: &mut Args) -> Result<(), String> {
    let is_known = word == "help" || COMMANDS.iter().any(|(name, _)| *name == word);
    match named {
        Some(first) if is_known => return Err(format!("one command at a time: `{first}` or `{word}`")),
        Some(first) => return Err(format!("`{first}` takes no `{word}`")),
        None => {}
    }
    args.command = match word {
        "tour" => Command::Tour,
        "devices" => Command::Devices,
        _ if OWN.contains(&word) => {
            return Err(format!("`{word}` comes first, and reads what follows: `lazuli {word} …`"));
        }
        _ => return Err(unknown("command", word, &names())),
    };
    *named = Some(word.to_string());
    Ok(())
}

/// Words one after another. A value is the next word, or stands after `=`.
pub struct Words(Peekable<IntoIter<String>>);

impl Words {
    /// From the beginning.
    pub fn new(words: impl IntoIterator<Item = String>) -> Words {
        Words(words.into_iter().collect::<Vec<_>>().into_iter().peekable())
    }

    /// The next word; of `--name=value` the name, and what was given with it.
    pub fn next(&mut self) -> Option<(String, Option<String>)> {
        let word = self.0.next()?;
        Some(match word.split_once('=').filter(|_| word.starts_with("--")) {
            Some((name, value)) => (name.to_string(), Some(value.to_string())),
            None => (word, None),
        })
    }

    /// The value of an option, for which the next word is taken unless one was given with it.
    pub fn value(&mut self, option: &str, given: Option<String>, example: &str) -> Result<String, String> {
        // A word with two dashes is the next option: a value was forgotten.
        let value = given.or_else(|| self.0.next_if(|word| !word.starts_with("--")));
        let value = value.filter(|value| !value.trim().is_empty());
        value.ok_or_else(|| format!("{option} wants a value, such as `{option} {example}`"))
    }
}

/// That an option which is no more than there was given no value.
pub fn flag(option: &str, given: Option<String>) -> Result<(), String> {
    match given {
        None => Ok(()),
        Some(value) => Err(format!("{option} takes no value, not `{value}` either")),
    }
}

/// The value of an option as a number for which `is_good`; `what` says which those are.
pub fn number<T: std::str::FromStr>(
    option: &str,
    word: &str,
    what: &str,
    example: &str,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let number = word.parse().ok().filter(is_good);
    number.ok_or_else(|| format!("{option} wants {what}, such as `{option} {example}`, not `{word}`"))
}

/// Says what there is, and which of it was probably meant.
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    // Of names that are equally near, the one with the same first letter was probably meant.
    let nearest =
        known.iter().map(|k| (distance(word, k), !k.starts_with(word.chars().next().unwrap_or(' ')), k)).min();
    match nearest {
        Some((steps, _, meant)) if steps <= 2 && meant.len() > 2 => {
            format!("there is no {what} `{word}`; did you mean `{meant}`?")
        }
        _ => format!("there is no {what} `{word}`; there are: {}", known.join(", ")),
    }
}

/// How many letters must be put in, taken out or changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + (from != *to) as usize;
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(words: &str, expect: Result<Args, &str>) {
        let got = parse(words.split_whitespace().map(String::from));
        assert_eq!(got, expect.map_err(String::from), "{words}");
    }

    fn tour() -> Args {
        Args { command: Command::Tour, size: Size::Full, device: None }
    }

    #[test]
    fn no_words_are_the_tour() {
        check("", Ok(tour()));
        check("tour", Ok(tour()));
    }

    #[test]
    fn options_stand_before_or_after_the_command() {
        let quick = || Args { size: Size::Quick, device: Some("cpu".into()), ..tour() };
        check("--quick --device cpu", Ok(quick()));
        check("--device=cpu tour --quick", Ok(quick()));
        check("devices", Ok(Args { command: Command::Devices, ..tour() }));
    }

    #[test]
    fn help_wins_over_what_follows() {
        check("--help nonsense", Ok(Args { command: Command::Help(HELP), ..tour() }));
        check("tour --help", Ok(Args { command: Command::Help(TOUR_HELP), ..tour() }));
        check("devices -h", Ok(Args { command: Command::Help(DEVICES_HELP), ..tour() }));
        check("-V", Ok(Args { command: Command::Version, ..tour() }));
    }

    #[test]
    fn every_command_has_help() {
        let help = |words: &str| help(words.split_whitespace().map(String::from).collect());
        assert_eq!(help(""), Ok(HELP));
        assert_eq!(help("help"), Ok(HELP));
        for (name, text) in COMMANDS {
            assert_eq!(help(name), Ok(*text));
            assert!(HELP.contains(&format!("\n  {name} ")) && text.contains("\nUsage: lazuli"), "{name}");
        }
        assert_eq!(help("trian"), Err("there is no command `trian`; did you mean `train`?".into()));
        assert_eq!(help("train mnist"), Err("help is for one command at a time, not for `train mnist`".into()));
    }

    #[test]
    fn near_misses_are_told_what_was_meant() {
        check("tuor", Err("there is no command `tuor`; did you mean `tour`?"));
        check("--devise cpu", Err("there is no option `--devise`; did you mean `--device`?"));
        check("tuen", Err("there is no command `tuen`; did you mean `tune`?"));
        check(
            "paint",
            Err(
                "there is no command `paint`; there are: tour, devices, doctor, train, tune, inspect, run, transcribe, embed, chat, generate",
            ),
        );
        check("--quick tune", Err("`tune` comes first, and reads what follows: `lazuli tune …`"));
        check("--quick help", Err("`help` comes first, and reads what follows: `lazuli help …`"));
        check("-x", Err("there is no option `-x`; there are: --device, --quick, --help, -h, --version, -V"));
        check("tour devices", Err("one command at a time: `tour` or `devices`"));
        check("devices train", Err("one command at a time: `devices` or `train`"));
    }

    #[test]
    fn what_would_be_ignored_is_an_error() {
        check("devices extra", Err("`devices` takes no `extra`"));
        check("tour extra", Err("`tour` takes no `extra`"));
        check("devices --quick", Err("`devices` has no option `--quick`: it lists all there are"));
        check("--device cpu devices", Err("`devices` has no option `--device`: it lists all there are"));
        check("--quick=yes", Err("--quick takes no value, not `yes` either"));
        for words in ["--device", "--device=", "--device --quick"] {
            check(words, Err("--device wants a value, such as `--device cpu`"));
        }
    }
}
