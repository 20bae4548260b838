//! What was asked for on the command line. What is not understood is answered with what there is.

/// What `--help` prints.
pub const HELP: &str = "\
Lazuli, a lazy tensor engine.

Usage: lazuli [COMMAND] [OPTIONS]

Commands:
  tour      Devices, plans and speed in a few seconds (the default)
  devices   The devices that were found
  train     Trains a model; `lazuli train --help` says how
  tune      Finds the fastest matrix products for a GPU and keeps them; `lazuli tune --help` says how

Options:
  --device NAME   A device by name, by part of its name, or by its index in `devices`
  --quick         A tour with small sizes: does it work, not how fast
  -h, --help      This text
  -V, --version   The version
";

const COMMANDS: [(&str, Command); 2] = [("tour", Command::Tour), ("devices", Command::Devices)];
/// Commands that come first and read the rest themselves.
pub const OWN: [&str; 2] = ["train", "tune"];
const OPTIONS: [&str; 6] = ["--device", "--quick", "--help", "-h", "--version", "-V"];

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Show what the engine does.
    Tour,
    /// List devices.
    Devices,
    /// Print [`HELP`].
    Help,
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
    let mut words = words.into_iter();
    let mut args = Args { command: Command::Tour, size: Size::Full, device: None };
    let mut named_command = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "-h" | "--help" => return Ok(Args { command: Command::Help, ..args }),
            "-V" | "--version" => return Ok(Args { command: Command::Version, ..args }),
            "--quick" => args.size = Size::Quick,
            "--device" => args.device = Some(words.next().ok_or("--device wants a name, such as `--device cpu`")?),
            _ if word.starts_with("--device=") => args.device = Some(word["--device=".len()..].to_string()),
            _ if word.starts_with('-') => return Err(unknown("option", &word, &OPTIONS)),
            _ => {
                if OWN.contains(&&*word) {
                    return Err(format!("`{word}` comes first, and has options of its own: `lazuli {word} --help`"));
                }
                let names: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).chain(OWN).collect();
                let found = COMMANDS.iter().find(|(name, _)| *name == word);
                args.command = found.ok_or_else(|| unknown("command", &word, &names))?.1;
                if let Some(first) = named_command.replace(word.clone()) {
                    return Err(format!("one command at a time: `{first}` or `{word}`"));
                }
            }
        }
    }
    Ok(args)
}

/// Says what there is, and which of it was probably meant.
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let nearest = known.iter().map(|k| (distance(word, k), k)).min();
    match nearest {
        Some((steps, meant)) if steps <= 2 && meant.len() > 2 => {
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
        check("devices --quick", Ok(Args { command: Command::Devices, size: Size::Quick, ..tour() }));
    }

    #[test]
    fn help_wins_over_what_follows() {
        check("--help nonsense", Ok(Args { command: Command::Help, ..tour() }));
        check("-V", Ok(Args { command: Command::Version, ..tour() }));
    }

    #[test]
    fn near_misses_are_told_what_was_meant() {
        check("tuor", Err("there is no command `tuor`; did you mean `tour`?"));
        check("--devise cpu", Err("there is no option `--devise`; did you mean `--device`?"));
        check("tuen", Err("there is no command `tuen`; did you mean `tune`?"));
        check("paint", Err("there is no command `paint`; there are: tour, devices, train, tune"));
        check("--quick tune", Err("`tune` comes first, and has options of its own: `lazuli tune --help`"));
        check("-x", Err("there is no option `-x`; there are: --device, --quick, --help, -h, --version, -V"));
        check("tour devices", Err("one command at a time: `tour` or `devices`"));
        check("--device", Err("--device wants a name, such as `--device cpu`"));
    }
}
