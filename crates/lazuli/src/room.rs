//! Vectors as long as a tensor: if there is no memory for one, that is an error, where Rust's own vectors would end the
//! program. What is as long as an expression (nodes, plans, kernels) uses those.

use std::alloc::{Layout, alloc_zeroed};

use crate::error::{Error, Result};

/// An empty vector with room for `n` elements.
#[track_caller]
pub fn with_room<T>(op: &str, n: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    match out.try_reserve_exact(n) {
        Ok(()) => Ok(out),
        Err(_) => Err(no_room::<T>(op, n)),
    }
}

/// `n` bytes, all zero.
#[track_caller]
pub fn zeroed_bytes(op: &str, n: usize) -> Result<Vec<u8>> {
    // SAFETY: zero is a byte.
    unsafe { zeroed(op, n) }
}

/// `n` zeros, from pages the system has zeroed already where they are many.
///
/// # Safety
/// All bits zero is a `T`.
#[track_caller]
pub unsafe fn zeroed<T: Copy>(op: &str, n: usize) -> Result<Vec<T>> {
    if n == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout is not empty.
    let memory = Layout::array::<T>(n).map(|layout| unsafe { alloc_zeroed(layout) });
    match memory {
        // SAFETY: allocated for this many `T`, of which all zeros is one, as promised by the caller.
        Ok(memory) if !memory.is_null() => Ok(unsafe { Vec::from_raw_parts(memory.cast(), n, n) }),
        _ => Err(no_room::<T>(op, n)),
    }
}

#[track_caller]
fn no_room<T>(op: &str, n: usize) -> Error {
    Error::out_of_memory(op, format!("there is no memory for {n} elements of {} bytes on the host", size_of::<T>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for n in [usize::MAX, usize::MAX / 4, isize::MAX as usize] {
            assert!(matches!(with_room::<f32>("test", n), Err(Error::OutOfMemory(_))));
            assert!(matches!(zeroed_bytes("test", n), Err(Error::OutOfMemory(_))));
        }
        assert_eq!(zeroed_bytes("test", 3).unwrap(), [0; 3]);
        assert_eq!(zeroed_bytes("test", 0).unwrap(), []);
        assert!(with_room::<u64>("test", 5).unwrap().capacity() >= 5);
    }
}
