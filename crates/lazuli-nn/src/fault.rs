//! Errors of layers and losses, said as the engine says its own: the layer, the shapes and what would work.

use std::panic::Location;
use std::sync::Arc;

use lazuli::{Caller, Error, Fault};

/// Shapes that do not go together, at the caller's line.
#[track_caller]
pub fn shape(op: &str, message: impl Into<String>) -> Error {
    Error::Shape(Arc::new(Fault::new(op, message)))
}

/// While it lives, errors name the line that called a layer, a loss or an optimizer, not a line of this crate.
#[track_caller]
pub fn caller() -> Caller {
    Caller::new(Location::caller(), file!().trim_end_matches("fault.rs"))
}
