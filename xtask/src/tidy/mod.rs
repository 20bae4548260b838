//! `cargo xtask tidy`: the conventions that a program can check. A rule is a function from files to findings; a
//! convention that matters and is not here yet belongs here.

mod modules;
mod rules;
mod safety;
mod texts;

use crate::source;

/// Something that breaks a convention.
pub struct Finding {
    pub path: String,
    /// Counted from 1; 0 for the file as a whole.
    pub line: usize,
    pub message: String,
}

impl Finding {
    /// About a line, counted from 0.
    fn at(path: &str, line_idx: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line: line_idx + 1, message: message.into() }
    }

    /// About a whole file.
    fn of(path: &str, message: impl Into<String>) -> Finding {
        Finding { path: path.to_string(), line: 0, message: message.into() }
    }
}

/// Checks every rule; an error if one is broken.
pub fn run() -> Result<(), String> {
    let sources = source::all()?;
    let texts = texts::all()?;
    let findings: Vec<Finding> = [
        rules::headers(&sources),
        rules::sizes(&sources),
        rules::walls(&sources),
        rules::forbidden(&sources),
        rules::backend_is_small(&sources),
        rules::type_names_are_unique(&sources),
        safety::contracts(&sources),
        modules::direction(&sources),
        texts::links(&texts),
        texts::machine_names(&texts, &sources),
        texts::dependencies_have_reasons(&texts)?,
        texts::examples_are_listed()?,
    ]
    .into_iter()
    .flatten()
    .collect();
    for finding in &findings {
        match finding.line {
            0 => println!("{}: {}", finding.path, finding.message),
            line => println!("{}:{line}: {}", finding.path, finding.message),
        }
    }
    match findings.len() {
        0 => {
            println!("tidy: {} Rust files and {} texts keep the conventions", sources.len(), texts.len());
            Ok(())
        }
        n => Err(format!("{n} finding{}", if n == 1 { "" } else { "s" })),
    }
}
