//! Errors of files, said as the engine says its own.

use std::path::Path;
use std::sync::Arc;

use lazuli::{Error, Fault};

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
