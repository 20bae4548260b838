//! The pages that are written from the rows, so that they cannot say something else than the engine does. As tests:
//! each page is compared with what would be written now. With `LAZULI_DOCS=write` it is written instead, which is
//! what `cargo xtask docs` does.

mod numerics;
mod numpy;
mod ops;
mod page;

use std::fs;
use std::path::{Path, PathBuf};

/// A path from the root of the repository.
fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The text of a file, by its path from the root.
fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root(path)).map_err(|e| format!("{path}: {e}"))
}

/// Compares a page with what it should be, or writes it.
#[track_caller]
fn check(path: &str, page: Result<String, String>) {
    let wanted = page.unwrap_or_else(|fault| panic!("{fault}"));
    if std::env::var("LAZULI_DOCS").is_ok_and(|v| v == "write") {
        fs::write(root(path), wanted).unwrap_or_else(|e| panic!("{path}: {e}"));
        return;
    }
    let there = read(path).unwrap_or_default();
    if there != wanted {
        let line = there.lines().zip(wanted.lines()).take_while(|(a, b)| a == b).count() + 1;
        panic!("{path} is not up to date from line {line} on; run `cargo xtask docs`");
    }
}

#[test]
fn ops_are_listed_as_they_are() {
    check("docs/ops.md", ops::page());
}

#[test]
fn numerics_are_told_as_they_are() {
    check("docs/numerics.md", numerics::page());
}
