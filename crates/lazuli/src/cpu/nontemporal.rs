//! Writing past the caches: what is larger than they are need not be read in before it is overwritten, nor push out
//! what is still wanted. Knows bytes.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use crate::ops::{Isa, isa};

/// Copies bytes past the caches, as far as they lie on whole vectors.
pub fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len());
    let n_bytes = std::mem::size_of_val(from);
    // SAFETY: both are that long and apart.
    unsafe { copy_bytes(from.as_ptr().cast(), to.as_mut_ptr().cast(), n_bytes) }
}

/// Makes what was written past the caches visible to other threads.
pub fn finish() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        _mm_sfence()
    }
}

/// [`copy`] of bytes, whole lines past the caches.
///
/// # Safety
/// `from` is valid for reading and `to` for writing `n_bytes` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, n_bytes: usize) {
    let head = to.align_offset(LINE).min(n_bytes);
    let n_lines = (n_bytes - head) / LINE;
    let tail = head + n_lines * LINE;
    // SAFETY: the parts lie within both; what is streamed to lies on a boundary; the instruction set is there.
    unsafe {
        to.copy_from_nonoverlapping(from, head);
        match isa() {
            Isa::Baseline => lines_128(from.add(head), to.add(head), n_lines),
            Isa::Avx2 => lines_256(from.add(head), to.add(head), n_lines),
            Isa::Avx512 => lines_512(from.add(head), to.add(head), n_lines),
        }
        to.add(tail).copy_from_nonoverlapping(from.add(tail), n_bytes - tail);
    }
}

/// Bytes that memory moves at once.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies whole lines by vectors of one size. The wider they are, the fewer wait to be written while the thread goes on.
#[cfg(target_arch = "x86_64")]
macro_rules! lines {
    ($name:ident, $features:literal, $size:literal, $load:ident, $stream:ident) => {
        /// # Safety
        /// `from` is valid for reading and `to` for writing `n_lines` lines, and they do not overlap; `to` begins with a
        /// line. The processor has these features.
        #[target_feature(enable = $features)]
        unsafe fn $name(from: *const u8, to: *mut u8, n_lines: usize) {
            for at in (0..n_lines * LINE).step_by($size) {
                // SAFETY: as promised by the caller.
                unsafe { $stream(to.add(at).cast(), $load(from.add(at).cast())) };
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
lines!(lines_128, "sse2", 16, _mm_loadu_si128, _mm_stream_si128);
#[cfg(target_arch = "x86_64")]
lines!(lines_256, "avx2", 32, _mm256_loadu_si256, _mm256_stream_si256);
#[cfg(target_arch = "x86_64")]
lines!(lines_512, "avx512f", 64, _mm512_loadu_si512, _mm512_stream_si512);

/// # Safety
/// `from` is valid for reading and `to` for writing `n_bytes` bytes, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_bytes(from: *const u8, to: *mut u8, n_bytes: usize) {
    // SAFETY: as promised by the caller.
    unsafe { to.copy_from_nonoverlapping(from, n_bytes) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_bytes_arrive_wherever_they_lie() {
        let from: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        for (start, len) in [(0, 1000), (1, 999), (3, 5), (7, 64), (13, 700), (0, 0)] {
            let mut to = vec![0u8; 1000];
            super::copy(&from[start..start + len], &mut to[start..start + len]);
            super::finish();
            assert_eq!(to[start..start + len], from[start..start + len]);
        }
    }
}
