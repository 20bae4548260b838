//! Splitting work over threads. The caller takes the first share itself, so one thread costs nothing.

use std::ops::Range;

/// Runs `share(0)` here and `share(1)`, … on the pool; returns when all are done.
pub fn in_parallel(n_threads: usize, share: impl Fn(usize) + Sync) {
    if n_threads == 1 {
        return share(0);
    }
    rayon::in_place_scope(|scope| {
        for thread_idx in 1..n_threads {
            let share = &share;
            scope.spawn(move |_| share(thread_idx));
        }
        share(0);
    });
}

/// The part of `0..n` that belongs to a thread, its ends on multiples of `step` (but for `n`).
pub fn share_of(n: usize, step: usize, thread_idx: usize, n_threads: usize) -> Range<usize> {
    let n_steps = n.div_ceil(step);
    let at = |idx: usize| (n_steps * idx / n_threads * step).min(n);
    at(thread_idx)..at(thread_idx + 1)
}

/// Threads worth waking for `n` elements: a hand-over costs several microseconds.
pub fn threads_for(n: usize, n_threads: usize) -> usize {
    if n < 1 << 15 { 1 } else { n_threads }
}

/// A mutable slice whose disjoint parts are written by several threads.
#[derive(Clone, Copy)]
pub struct Shared {
    start: *mut f32,
    len: usize,
}

// SAFETY: `part` asks its callers to keep to disjoint ranges.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub fn new(values: &mut [f32]) -> Shared {
        Shared { start: values.as_mut_ptr(), len: values.len() }
    }

    /// The first element, for parts that are not ranges; whoever writes keeps to their own.
    pub fn start(&self) -> *mut f32 {
        self.start
    }

    /// # Safety
    /// The slice behind must be alive and no two live parts may overlap.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds by the assertion, unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        let shares: Vec<_> = (0..3).map(|idx| share_of(100, 16, idx, 3)).collect();
        assert_eq!(shares, [0..32, 32..64, 64..100]);
    }
}
