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

/// No memory for so many bytes on the host.
#[track_caller]
pub fn no_memory(op: &str, n_bytes: usize) -> Error {
    Error::OutOfMemory(Arc::new(Fault::new(op, format!("there is no memory for {n_bytes} bytes on the host"))))
}

/// An error of one tensor of a file, with its name. That there is no memory stays what it is; the rest are faults of the
/// file.
#[track_caller]
pub fn of_tensor(op: &str, name: &str, error: &Error) -> Error {
    let fault = Arc::new(Fault::new(op, format!("`{name}`: {}", error.fault().message)));
    match error {
        Error::OutOfMemory(_) => Error::OutOfMemory(fault),
        _ => Error::Parse(fault),
    }
}

/// An error of what is in a file, with the file's path.
#[track_caller]
pub fn of_file(op: &str, path: &Path, error: &Error) -> Error {
    let fault = Arc::new(Fault::new(op, format!("{}: {}", path.display(), error.fault().message)));
    match error {
        Error::OutOfMemory(_) => Error::OutOfMemory(fault),
        _ => Error::Parse(fault),
    }
}

/// A file that could not be read or written, or not for lack of memory.
#[track_caller]
pub fn io(op: &str, path: &Path, error: &std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::OutOfMemory {
        return Error::OutOfMemory(Arc::new(Fault::new(op, format!("{}: {error}", path.display()))));
    }
    Error::Io(Arc::new(Fault::new(op, format!("{}: {error}", path.display()))))
}

/// While it lives, errors name the line that called a function that reads or writes, not a line of this crate.
#[track_caller]
pub fn caller() -> Caller {
    Caller::new(Location::caller(), file!().trim_end_matches("fault.rs"))
}
