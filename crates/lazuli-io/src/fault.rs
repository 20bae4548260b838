//! Errors of files, said as the engine says its own.

use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

use lazuli::{Caller, Error, Fault};

/// Bytes that do not parse.
#[track_caller]
pub fn parse(op: &str, message: impl Into<String>) -> Error {
    Error::Parse(Arc::new(Fault::new(op, message)))
}

/// A file that could not be read or written.
#[track_caller]
pub fn io(op: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io(Arc::new(Fault::new(op, format!("{}: {error}", path.display()))))
}

/// While it lives, errors name the line that called a function that reads or writes, not a line of this crate.
#[track_caller]
pub fn caller() -> Caller {
    Caller::new(Location::caller(), file!().trim_end_matches("fault.rs"))
}
