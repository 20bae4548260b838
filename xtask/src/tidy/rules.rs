//! Rules about single files: how they begin, how long they are, what they may not contain.

use std::collections::BTreeMap;

use super::Finding;
use crate::source::Source;

/// The engine: what these walls are about.
pub const ENGINE: &str = "crates/lazuli/src/";

/// The longest a file of the engine may be, which others should not be longer than either, and the longest that any may be, in
/// lines of code. Comments, docs and tests do not count.
const ENGINE_LINES: usize = 500;
const HARD_LINES: usize = 700;

/// Every file opens with what lives in it.
pub fn headers(sources: &[Source]) -> Vec<Finding> {
    let bare = sources.iter().filter(|source| !source.text.starts_with("//! "));
    bare.map(|source| Finding::at(&source.path, 0, "opens without `//!`: what lives here, why, what it does not know"))
        .collect()
}

/// No file is too long to read.
pub fn sizes(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let most = if source.path.starts_with(ENGINE) { ENGINE_LINES } else { HARD_LINES };
        match source.n_code_lines() {
            n if n > most => {
                let message = format!("{n} lines of code, at most {most}: more than one idea?");
                findings.push(Finding::of(&source.path, message));
            }
            n if n > ENGINE_LINES => println!("note: {} has {n} lines of code, aim for {ENGINE_LINES}", source.path),
            _ => {}
        }
    }
    findings
}

/// What the engine may not name, and where it may all the same.
struct Wall {
    words: &'static [&'static str],
    why: &'static str,
    /// Files, or folders with a final `/`, that may; each with its reason.
    except: &'static [(&'static str, &'static str)],
}

const WALLS: &[Wall] = &[
    Wall { words: &["wgpu"], why: "only gpu/ knows wgpu", except: &[("gpu/", "it is the wall's inside")] },
    Wall {
        words: &["println!", "eprintln!", "print!", "eprint!", "dbg!", "stdout", "stderr"],
        why: "a library does not print",
        except: &[("log.rs", "what LAZULI_LOG asks for is shown on stderr")],
    },
    Wall {
        words: &["std::fs", "fs::read", "File::open", "File::create", "OpenOptions"],
        why: "the engine opens no file",
        except: &[
            ("cpu/memory.rs", "how much memory is free is told by /proc/meminfo alone"),
            ("cpu/mod.rs", "what the processor is called is told by /proc/cpuinfo alone"),
            ("gpu/disk.rs", "compiled pipelines are kept between runs"),
        ],
    },
    Wall {
        words: &[".unwrap()"],
        why: "a user's fault is an `Error`; a bug of ours is `expect` with the reason",
        except: &[],
    },
];

/// The walls inside the engine hold.
pub fn walls(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix(ENGINE) else { continue };
        for wall in WALLS {
            let is_except = |place: &str| inside == place || (place.ends_with('/') && inside.starts_with(place));
            if wall.except.iter().any(|(place, _)| is_except(place)) {
                continue;
            }
            for (i, word) in mentions(&source.code, wall.words) {
                findings.push(Finding::at(&source.path, i, format!("names `{word}`: {}", wall.why)));
            }
        }
    }
    findings
}

/// What no file may contain, tests included.
pub fn forbidden(sources: &[Source]) -> Vec<Finding> {
    let rules = [
        ("#[ignore", "assert today's behaviour and say why it is wrong"),
        ("todo!", "finish it or return an `Error`"),
        ("unimplemented!", "finish it or return an `Error`"),
    ];
    let mut findings = Vec::new();
    for source in sources {
        for (word, instead) in rules {
            for (i, _) in mentions(&source.code_and_tests, &[word]) {
                findings.push(Finding::at(&source.path, i, format!("`{word}`: {instead}")));
            }
        }
        for (i, line) in source.text.lines().enumerate() {
            // Split, so that this line is not one itself.
            if line.contains(concat!("TO", "DO")) && !line.contains(concat!("TO", "DO(#")) {
                findings.push(Finding::at(&source.path, i, concat!("TO", "DO without the number of an issue")));
            }
        }
    }
    findings
}

/// The lines that mention one of the words, as a whole word.
fn mentions<'a>(lines: &'a [String], words: &'a [&str]) -> impl Iterator<Item = (usize, &'a str)> {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    lines.iter().enumerate().flat_map(move |(i, line)| {
        let found = words.iter().filter(move |word| {
            line.match_indices(**word).any(|(at, _)| {
                let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
                let goes_on = is_word(before) && is_word(word.chars().next());
                let goes_on = goes_on || (is_word(after) && is_word(word.chars().next_back()));
                !goes_on
            })
        });
        found.map(move |word| (i, *word))
    })
}

/// A type's name is used once in the engine: who reads a name need not ask which of two types it is.
pub fn type_names_are_unique(sources: &[Source]) -> Vec<Finding> {
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with(ENGINE)) {
        for (i, line) in source.code.iter().enumerate() {
            let Some(name) = declared_type(line) else { continue };
            match first.get(name) {
                Some(other) => findings.push(Finding::at(
                    &source.path,
                    i,
                    format!("`{name}` is a type of {other}, too: one name, one type"),
                )),
                None => drop(first.insert(name, &source.path)),
            }
        }
    }
    findings
}

/// The name of the type that a line declares, if it stands at the top of a module: associated types are indented.
fn declared_type(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.trim_start_matches(|c: char| c == '(' || c == ')' || c.is_alphanumeric()).trim_start()
    });
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let name = ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|word| line.strip_prefix(word))?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// `trait Backend` has at most ten methods, so that a new backend is a small thing to write.
pub fn backend_is_small(sources: &[Source]) -> Vec<Finding> {
    const MOST: usize = 10;
    let path = format!("{ENGINE}backend.rs");
    let Some(source) = sources.iter().find(|source| source.path == path) else {
        return vec![Finding::of(&path, "the file with `trait Backend` is gone")];
    };
    let body = source.code.iter().skip_while(|line| !line.contains("trait Backend")).take_while(|line| *line != "}");
    match body.filter(|line| line.trim_start().starts_with("fn ")).count() {
        n if n > MOST => vec![Finding::of(&path, format!("`trait Backend` has {n} methods, at most {MOST}"))],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declared_types_are_read_from_lines() {
        assert_eq!(declared_type("pub(super) struct Kernel<'a> {"), Some("Kernel"));
        assert_eq!(declared_type("enum Form {"), Some("Form"));
        assert_eq!(declared_type("pub type Axis = usize;"), Some("Axis"));
        assert_eq!(declared_type("    type Target = u32;"), None);
        assert_eq!(declared_type("pub fn structure() {"), None);
    }

    #[test]
    fn words_are_found_whole() {
        let lines = |line: &str| vec![line.to_string()];
        let found = |line: &str, word: &str| mentions(&lines(line), &[word]).count();
        assert_eq!(found("use wgpu::Device;", "wgpu"), 1);
        assert_eq!(found("let my_wgpu = 1;", "wgpu"), 0);
        assert_eq!(found("eprintln!(x)", "println!"), 0);
        assert_eq!(found("x.unwrap()", ".unwrap()"), 1);
        assert_eq!(found("x.unwrap_or(1)", ".unwrap()"), 0);
    }
}
