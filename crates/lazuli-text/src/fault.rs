//! Errors of language models, said as the engine says its own: what was read, what is wrong with it, what would work.

use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

use lazuli::{Caller, Error, Fault};

/// What a file says that cannot be.
#[track_caller]
pub fn parse(op: &str, message: impl Into<String>) -> Error {
    Error::Parse(Arc::new(Fault::new(op, message)))
}

/// What a file or a caller asks for that this crate does not do.
#[track_caller]
pub fn unsupported(op: &str, message: impl Into<String>) -> Error {
    Error::Unsupported(Arc::new(Fault::new(op, message)))
}

/// Tokens that the model does not have, or more of them than it can hold.
#[track_caller]
pub fn index(op: &str, message: impl Into<String>) -> Error {
    Error::Index(Arc::new(Fault::new(op, message)))
}

/// A file that could not be read.
#[track_caller]
pub fn io(op: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io(Arc::new(Fault::new(op, format!("{}: {error}", path.display()))))
}

/// While it lives, errors name the line that called this crate, not a line of it.
#[track_caller]
pub fn caller() -> Caller {
    Caller::new(Location::caller(), file!().trim_end_matches("fault.rs"))
}
