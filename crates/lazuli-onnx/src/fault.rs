//! Errors of models, said as the engine says its own.

use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

use lazuli::{Caller, Error, Fault};

/// What every message begins with.
const OP: &str = "onnx";

/// A file that is not a valid model.
#[track_caller]
pub fn parse(message: impl Into<String>) -> Error {
    Error::Parse(Arc::new(Fault::new(OP, message)))
}

/// A valid model that asks for more than there is here.
#[track_caller]
pub fn unsupported(message: impl Into<String>) -> Error {
    Error::Unsupported(Arc::new(Fault::new(OP, message)))
}

/// An input of another shape than the declared one, or a name that is none.
#[track_caller]
pub fn shape(message: impl Into<String>) -> Error {
    Error::Shape(Arc::new(Fault::new(OP, message)))
}

/// An element type that does not fit, or a value out of its range.
#[track_caller]
pub fn dtype(message: impl Into<String>) -> Error {
    Error::DType(Arc::new(Fault::new(OP, message)))
}

/// A file that could not be read.
#[track_caller]
pub fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Io(Arc::new(Fault::new(OP, format!("{}: {error}", path.display()))))
}

/// An error of one node, with its name and operator. Its kind stays.
pub fn of_node(node: &str, error: &Error) -> Error {
    let inner = error.fault();
    let mut fault = Fault::new(OP, format!("{node}: {}: {}", inner.op, inner.message));
    fault.at = None;
    retold(error, fault)
}

/// An error about the contents of a file, with the file's path before its message. The variant of [`Error`] stays what it was.
pub fn of_file(path: &Path, error: &Error) -> Error {
    let inner = error.fault();
    let mut fault = Fault::new(OP, format!("{}: {}", path.display(), inner.message));
    fault.at = inner.at;
    retold(error, fault)
}

/// While it lives, errors name the line that called this crate, not a line of it.
#[track_caller]
pub fn caller() -> Caller {
    Caller::new(Location::caller(), file!().trim_end_matches("fault.rs"))
}

/// An error of the same kind and shapes that says something else.
fn retold(error: &Error, mut fault: Fault) -> Error {
    fault.shapes = error.fault().shapes.clone();
    let fault = Arc::new(fault);
    match error {
        Error::Shape(_) => Error::Shape(fault),
        Error::DType(_) => Error::DType(fault),
        Error::Index(_) => Error::Index(fault),
        Error::OutOfMemory(_) => Error::OutOfMemory(fault),
        Error::DeviceLost(_) => Error::DeviceLost(fault),
        Error::Device(_) => Error::Device(fault),
        Error::Parse(_) => Error::Parse(fault),
        Error::Io(_) => Error::Io(fault),
        _ => Error::Unsupported(fault),
    }
}
