//! Errors of layers and losses, said as the engine says its own: the layer, the shapes and what would work.

use std::sync::Arc;

use lazuli::{Error, Fault};

/// Shapes that do not go together, at the caller's line.
#[track_caller]
pub fn shape(op: &str, message: impl Into<String>) -> Error {
    Error::Shape(Arc::new(Fault::new(op, message)))
}
