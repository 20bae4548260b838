//! Buffers that start on a cache line, so that no vector load crosses two.

use std::ops::{Deref, DerefMut};

/// One cache line, and the widest vector.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A fixed-length `Vec<f32>` aligned to 64 bytes.
pub struct AlignedVec {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedVec {
    pub fn zeros(len: usize) -> AlignedVec {
        AlignedVec { lines: vec![Line([0.0; 16]); len.div_ceil(16)], len }
    }

    pub fn from_slice(values: &[f32]) -> AlignedVec {
        let mut buffer = AlignedVec::zeros(values.len());
        buffer.copy_from_slice(values);
        buffer
    }
}

impl Deref for AlignedVec {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: lines are 16 floats without padding, and there are enough of them for `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for AlignedVec {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, and the borrow of self is unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
