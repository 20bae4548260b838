//! Errors that a device raises. They name no line: no op of the user's is at fault.

use std::sync::Arc;

use crate::error::{Error, Fault};

fn fault(op: &str, message: impl Into<String>) -> Arc<Fault> {
    Arc::new(Fault { op: op.to_string(), message: message.into(), shapes: Vec::new(), at: None })
}

/// The device went away.
pub fn lost(op: &str, message: impl Into<String>) -> Error {
    Error::DeviceLost(fault(op, message))
}

/// The device does not do what it was asked to.
pub fn refused(op: &str, message: impl Into<String>) -> Error {
    Error::Device(fault(op, message))
}

/// The device has not that much memory.
pub fn no_memory(op: &str, message: impl Into<String>) -> Error {
    Error::OutOfMemory(fault(op, message))
}
