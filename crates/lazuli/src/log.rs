//! What `LAZULI_LOG` asks to see: `plan`, `wgsl`, `time`, `tune`, separated by commas. It goes to stderr, and this is the one
//! place that prints.

use std::sync::OnceLock;

/// Something that can be shown while the engine works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Every plan that is made.
    Plan,
    /// Every shader that is compiled.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Wgsl,
    /// How long evaluations and their kernels took.
    Time,
    /// What tuning tries and finds, and what of its files is ignored.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Tune,
}

/// Whether it was asked for. Read once: the environment is the same for the whole run.
pub fn wants(topic: Topic) -> bool {
    static WANTED: OnceLock<Vec<Topic>> = OnceLock::new();
    WANTED.get_or_init(|| parse(&std::env::var("LAZULI_LOG").unwrap_or_default())).contains(&topic)
}

/// Shows it, if it was asked for.
pub fn show(topic: Topic, text: impl FnOnce() -> String) {
    if wants(topic) {
        eprintln!("{}", text());
    }
}

/// Tells whoever set a variable of the environment what is wrong with it, where no call returns an error.
pub fn warn(variable: &str, error: &dyn std::fmt::Display) {
    eprintln!("lazuli: {variable}: {error}");
}

fn parse(text: &str) -> Vec<Topic> {
    let topic = |word: &str| match word.trim() {
        "plan" => Some(Topic::Plan),
        "wgsl" => Some(Topic::Wgsl),
        "time" => Some(Topic::Time),
        "tune" => Some(Topic::Tune),
        _ => None,
    };
    text.split(',').filter_map(topic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_separated_by_commas_and_unknown_ones_ignored() {
        assert_eq!(parse("plan, time,weather"), [Topic::Plan, Topic::Time]);
        assert_eq!(parse(""), []);
    }
}
