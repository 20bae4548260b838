//! Dependencies inside the engine point one way: a module names only modules that `lib.rs` (inside a folder, its `mod.rs`)
//! lists before it. Exceptions are listed here with their reasons; one that is no longer needed is a finding, too.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::rules::ENGINE;
use crate::source::Source;

/// `(from, to, reason)`: where an arrow points up all the same.
const UPWARD: &[(&str, &str, &str)] = &[
    ("error", "shape", "an error says which shapes; a shape raises errors"),
    ("graph", "device", "a node holds the handle of its device, and nothing else of it"),
    ("graph", "ops", "an op of the graph is a pointer to its row"),
    ("graph", "tensor", "a custom op's gradient is a function of tensors"),
    ("tensor", "device", "a tensor's device is part of what a user asks it"),
    ("ops", "device", "entering needs to know where to"),
    ("ops", "backend", "host memory enters through the backend's upload"),
    ("target", "device", "a target's kind is told in the words that users read"),
    ("plan", "backend", "the cache keeps a plan together with its form on the device"),
    ("backend", "device", "a backend says what it is in the words that users read"),
    ("cpu", "device", "a backend says what it is in the words that users read"),
    ("gpu", "device", "a backend says what it is in the words that users read, and opens what it finds"),
    ("gpu", "realize", "tensors are computed into an application's encoder"),
    ("gpu", "batch", "an application's buffer becomes one of a batch: only gpu/ may name its type"),
];

/// Folders of the engine whose own modules stand in reading order, too; `(from, to, reason)` where an arrow points up.
const INSIDE: &[(&str, &[(&str, &str, &str)])] = &[
    (
        "cpu",
        &[
            ("chain", "tile", "a chain's operands are values of a tile"),
            ("transpose", "tile", "a transposed load fills the rows of a tile"),
            ("tile", "gemm", "tiles and packed operands are in memory that every thread has its own part of"),
        ],
    ),
    (
        "gpu",
        &[
            ("open_device", "wait", "an open device owns its waiter"),
            ("open_device", "memory", "an open device owns its pool of buffers"),
            ("open_device", "status", "an open device owns the status words of runs in flight"),
            ("open_device", "pipelines", "an open device owns its pipelines"),
            ("open_device", "tune", "an open device owns what tuning found"),
            ("ready", "tune", "a plan is compiled with the variants that tuning found, and may start a trial"),
        ],
    ),
    ("plan", &[("body", "lower", "a body asks the lowering for values that other groups store")]),
    ("wgsl", &[]),
];

/// Every arrow between modules points down, or is a known exception.
pub fn direction(sources: &[Source]) -> Vec<Finding> {
    let mut findings = arrows(sources, "", "lib.rs", UPWARD);
    for (folder, upward) in INSIDE {
        findings.extend(arrows(sources, &format!("{folder}/"), "mod.rs", upward));
    }
    findings
}

/// The arrows between the modules of one folder of the engine that point up and are no exceptions, and exceptions that are
/// not needed.
fn arrows(sources: &[Source], folder: &str, list: &str, upward: &[(&str, &str, &str)]) -> Vec<Finding> {
    let list_path = format!("{ENGINE}{folder}{list}");
    let Some(lib) = sources.iter().find(|source| source.path == list_path) else {
        return vec![Finding::of(&list_path, "this list of modules is gone")];
    };
    let order = modules(lib);
    let rank = |module: &str| order.iter().position(|m| m == module);
    let exported = exports(lib);
    let root = format!("crate::{}", folder.replace('/', "::"));
    let mut used = BTreeSet::new();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        let Some(inside) = source.path.strip_prefix(ENGINE).and_then(|path| path.strip_prefix(folder)) else {
            continue;
        };
        let path: Vec<&str> = inside.trim_end_matches(".rs").trim_end_matches("/mod").split('/').collect();
        let from = path[0];
        let Some(from_rank) = rank(from) else {
            if inside != list {
                findings.push(Finding::of(&source.path, format!("`{from}` is not among the modules of {list_path}")));
            }
            continue;
        };
        for (i, line) in source.code.iter().enumerate() {
            for name in names(line, &root, path.len()) {
                let to = exported.get(name).map_or(name, String::as_str);
                let Some(to_rank) = rank(to).filter(|to_rank| *to_rank > from_rank) else { continue };
                match upward.iter().find(|(a, b, _)| *a == from && *b == order[to_rank]) {
                    Some(arrow) => drop(used.insert(arrow)),
                    None => findings.push(Finding::at(
                        &source.path,
                        i,
                        format!("`{from}` names `{to}`, which stands after it in {list_path}: a new arrow is a design change"),
                    )),
                }
            }
        }
    }
    for (from, to, _) in upward.iter().filter(|arrow| !used.contains(arrow)) {
        findings.push(Finding::of(
            "xtask/src/tidy/modules.rs",
            format!("the exception `{from}` → `{to}` of {list_path} is not needed any more"),
        ));
    }
    findings
}

/// The modules of a list, in reading order.
fn modules(lib: &Source) -> Vec<String> {
    let declared = lib.code.iter().filter_map(|line| {
        let line = line.trim().trim_start_matches("pub ").trim_start_matches("pub(crate) ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(String::from).collect()
}

/// What a list of modules exports, with the module it comes from: `crate::Tensor` is a name of `tensor`.
fn exports(lib: &Source) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    let text = lib.code.join(" ");
    for item in text.split("pub use ").skip(1) {
        let item = item.split(';').next().unwrap_or_default();
        let Some((module, names)) = item.split_once("::") else { continue };
        for name in names.trim_matches(['{', '}', ' ']).split(',') {
            exported.insert(name.trim().to_string(), module.trim().to_string());
        }
    }
    exported
}

/// The first names after `root` (or after as many `super::` as lead to it) in a line.
fn names<'a>(line: &'a str, root: &str, depth: usize) -> Vec<&'a str> {
    let mut found = Vec::new();
    for prefix in [root.to_string(), "super::".repeat(depth)] {
        for (at, _) in line.match_indices(&prefix) {
            // Not the tail of a longer path or word.
            if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &line[at + prefix.len()..];
            match rest.strip_prefix('{') {
                Some(group) => found.extend(group.split('}').next().unwrap_or_default().split(',').map(first_word)),
                None => found.push(first_word(rest)),
            }
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_paths() {
        assert_eq!(names("use crate::plan::Plan;", "crate::", 1), ["plan"]);
        assert_eq!(names("    f(crate::a::b, $crate::C)", "crate::", 2), ["a", "C"]);
        assert_eq!(names("use crate::{a::b, c};", "crate::", 1), ["a", "c"]);
        assert_eq!(names("use super::x;", "crate::", 1), ["x"]);
        assert_eq!(names("use super::x;", "crate::", 2), [""; 0]);
        assert_eq!(names("use super::super::x;", "crate::", 2), ["x"]);
        assert_eq!(names("use crate::cpu::runs::Run;", "crate::cpu::", 1), ["runs"]);
    }
}
