//! Rules about texts and about how files refer to each other.

use std::path::Path;

use super::Finding;
use crate::source::Source;
use crate::workspace::{self, files, read};

/// A Markdown file.
pub struct Text {
    pub path: String,
    pub text: String,
}

/// All Markdown files of the repository.
pub fn all() -> Result<Vec<Text>, String> {
    let paths = files("", &[".md"])?;
    paths.into_iter().map(|path| Ok(Text { text: read(&path)?, path })).collect()
}

/// Every link to a file of the repository leads to one.
pub fn links(texts: &[Text]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for text in texts {
        let folder = Path::new(&text.path).parent().unwrap_or(Path::new(""));
        for (i, line) in text.text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                let is_elsewhere = file.is_empty() || file.contains("://") || file.contains(' ');
                if !is_elsewhere && !workspace::root().join(folder).join(file).exists() {
                    findings.push(Finding::at(&text.path, i, format!("links to `{target}`, which is not there")));
                }
            }
        }
    }
    findings
}

/// The start of paths that exist on one person's machine only.
const MACHINE_PATHS: &[&str] = &["/home/", "/root/", "/Users/", "/work/", "C:\\Users", "/tmp/"];

/// Where packages come from is for package managers to know: they may be told of a mirror.
const REGISTRIES: &[&str] = &["registry.npmjs.", "pypi.org", "pythonhosted.org"];

/// Nothing in the repository depends on, or tells of, the machine it was written on, and nothing asks a registry by name.
pub fn machine_names(texts: &[Text], sources: &[Source]) -> Vec<Finding> {
    let all = texts.iter().map(|t| (&t.path, &t.text)).chain(sources.iter().map(|s| (&s.path, &s.text)));
    let mut findings = Vec::new();
    // This file has to say what it looks for.
    for (path, text) in all.filter(|(path, _)| !path.ends_with("tidy/texts.rs")) {
        for (i, line) in text.lines().enumerate() {
            let found = MACHINE_PATHS.iter().filter(|start| {
                // At the beginning of a path, not in the middle of an address.
                line.match_indices(**start)
                    .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '.'))
            });
            findings.extend(found.map(|start| Finding::at(path, i, format!("`{start}…` is a path of one machine"))));
            let named = REGISTRIES.iter().filter(|host| line.contains(**host));
            findings.extend(named.map(|host| Finding::at(path, i, format!("`{host}` is the name of a registry"))));
        }
    }
    findings
}

/// Every dependency of the engine has its reason in docs/decisions/dependencies.md, and the lock file names no other registry.
pub fn dependencies_have_reasons(texts: &[Text]) -> Result<Vec<Finding>, String> {
    let path = "crates/lazuli/Cargo.toml";
    let reasons = texts.iter().find(|t| t.path == "docs/decisions/dependencies.md").map_or("", |t| t.text.as_str());
    let mut findings = Vec::new();
    let mut is_dependency = false;
    for (i, line) in read(path)?.lines().enumerate() {
        if line.starts_with('[') {
            is_dependency = line.contains("dependencies]");
        } else if let Some((name, _)) = line.split_once('=').filter(|_| is_dependency && !line.starts_with('#')) {
            let name = name.trim().trim_end_matches(".workspace");
            if !reasons.contains(&format!("`{name}`")) {
                findings.push(Finding::at(
                    path,
                    i,
                    format!("`{name}` has no reason in docs/decisions/dependencies.md"),
                ));
            }
        }
    }
    for (i, line) in read("Cargo.lock")?.lines().enumerate() {
        let elsewhere =
            line.strip_prefix("source = ").filter(|source| !source.contains("github.com/rust-lang/crates.io-index"));
        findings.extend(elsewhere.map(|source| Finding::at("Cargo.lock", i, format!("{source} is not crates.io"))));
    }
    Ok(findings)
}

/// Every example is wired, numbered and short.
pub fn examples_are_listed() -> Result<Vec<Finding>, String> {
    const MOST_LINES: usize = 100;
    let manifest = read("examples/Cargo.toml")?;
    let mut findings = Vec::new();
    for path in files("examples", &[".rs"])? {
        let name = path.trim_start_matches("examples/");
        if !manifest.contains(&format!("path = \"{name}\"")) {
            findings.push(Finding::of(&path, "is not listed in examples/Cargo.toml"));
        }
        if !name.starts_with(|c: char| c.is_ascii_digit()) {
            findings.push(Finding::of(&path, "has no number: examples are read in order"));
        }
        let n_lines = read(&path)?.lines().count();
        if n_lines > MOST_LINES {
            findings.push(Finding::of(&path, format!("{n_lines} lines; an example has at most {MOST_LINES}")));
        }
    }
    Ok(findings)
}
