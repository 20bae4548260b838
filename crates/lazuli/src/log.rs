//! What `LAZULI_LOG` asks to see, separated by commas: the values that planning passes from stage to stage (`graph`, `groups`,
//! `kernels`, `plan`, `schedule`, `wgsl`), and `time` and `tune`. It goes to stderr, and this is the one place that prints. It is also where words of the environment are looked up, since what is not understood is reported.

use std::fmt::Display;
use std::sync::{Mutex, OnceLock, PoisonError};

/// Something that can be shown while the engine works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The graph of every plan that is made, simplified.
    Graph,
    /// Which of its nodes share a kernel.
    Groups,
    /// The kernels that they became, cut to what the device takes.
    Kernels,
    /// Every plan that is made.
    Plan,
    /// How the loops of every plan that is made are cut and shared out.
    Schedule,
    /// Every shader that is compiled.
    Wgsl,
    /// How long evaluations and their kernels took.
    Time,
    /// What tuning tries and finds, and what of its files is ignored.
    Tune,
}

/// What can be asked for.
const TOPICS: [(&str, Topic); 8] = [
    ("graph", Topic::Graph),
    ("groups", Topic::Groups),
    ("kernels", Topic::Kernels),
    ("plan", Topic::Plan),
    ("schedule", Topic::Schedule),
    ("wgsl", Topic::Wgsl),
    ("time", Topic::Time),
    ("tune", Topic::Tune),
];

/// Whether it was asked for. Read once: the environment is the same for the whole run.
pub fn wants(topic: Topic) -> bool {
    static WANTED: OnceLock<Vec<Topic>> = OnceLock::new();
    WANTED.get_or_init(|| choices("LAZULI_LOG", &TOPICS)).contains(&topic)
}

/// Shows it, if it was asked for.
pub fn show(topic: Topic, text: impl FnOnce() -> String) {
    if wants(topic) {
        eprintln!("{}", text());
    }
}

/// Tells whoever set a variable of the environment what is wrong with it, where no call returns an error. Once for each
/// variable, however often it is read.
pub fn warn(variable: &'static str, error: &dyn Display) {
    static REPORTED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !reported.contains(&variable) {
        reported.push(variable);
        eprintln!("lazuli: {variable}: {error}");
    }
}

/// What a variable of the environment says, without space around it; None if it is not set or says nothing.
pub fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().trim().to_string();
    (!text.is_empty()).then_some(text)
}

/// Which of the known words a variable says. Another word is reported and left.
pub fn choice<T: Copy>(name: &'static str, known: &[(&str, T)]) -> Option<T> {
    let text = variable(name)?;
    let found = find(&text, known);
    if found.is_none() {
        warn(name, &unknown(&[&text], known));
    }
    found
}

/// Which of the known words a variable lists, separated by commas. Other words are reported and left.
fn choices<T: Copy>(name: &'static str, known: &[(&str, T)]) -> Vec<T> {
    let text = variable(name).unwrap_or_default();
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let strange: Vec<&str> = words().filter(|word| find(word, known).is_none()).collect();
    if !strange.is_empty() {
        warn(name, &unknown(&strange, known));
    }
    words().filter_map(|word| find(word, known)).collect()
}

fn find<T: Copy>(word: &str, known: &[(&str, T)]) -> Option<T> {
    known.iter().find(|(name, _)| *name == word).map(|(_, meaning)| *meaning)
}

/// `"weather" is not understood; there are: graph, groups, kernels, plan, schedule, wgsl, time, tune`
fn unknown<T>(words: &[&str], known: &[(&str, T)]) -> String {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let verb = if words.len() == 1 { "is" } else { "are" };
    format!("{} {verb} not understood; there are: {}", words.join(", "), names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_named_with_what_would_be() {
        assert_eq!(find("time", &TOPICS), Some(Topic::Time));
        assert_eq!(find("weather", &TOPICS), None);
        assert_eq!(
            unknown(&["weather"], &TOPICS),
            "\"weather\" is not understood; there are: graph, groups, kernels, plan, schedule, wgsl, time, tune"
        );
        assert_eq!(
            unknown(&["tides", "weather"], &TOPICS),
            "\"tides\", \"weather\" are not understood; there are: graph, groups, kernels, plan, schedule, wgsl, time, tune"
        );
    }
}
