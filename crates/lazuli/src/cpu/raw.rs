//! Memory that the tasks of a launch share, each task writing parts of its own. Debug builds keep the length of the memory and panic
//! before a part beyond its end is touched; release builds keep only the pointer.

/// Lanes of 32 bits that tasks share.
#[derive(Clone, Copy)]
pub struct SharedLanes {
    first: *mut u32,
    #[cfg(debug_assertions)]
    n_lanes: usize,
}

// SAFETY: the caller of `new` promises that tasks use parts that do not overlap, or wait for each other.
unsafe impl Send for SharedLanes {}
// SAFETY: as above.
unsafe impl Sync for SharedLanes {}

impl SharedLanes {
    /// The lanes of `n_bytes` bytes from `first` on. `n_bytes` may be 0, and then `first` may be null.
    ///
    /// # Safety
    /// As long as the value is used, `n_bytes` bytes from `first` on are valid for reading and writing, aligned for lanes, and used
    /// only through this value.
    pub unsafe fn new(first: *mut u8, n_bytes: usize) -> SharedLanes {
        debug_assert!(n_bytes == 0 || first.cast::<u32>().is_aligned() && !first.is_null(), "no memory for lanes");
        SharedLanes {
            first: first.cast(),
            #[cfg(debug_assertions)]
            n_lanes: n_bytes / 4,
        }
    }

    /// `len` lanes from `at` on.
    ///
    /// # Safety
    /// The lanes are within the memory, and nobody else uses them as long as the slice is used.
    pub unsafe fn part<'m>(self, at: usize, len: usize) -> &'m mut [u32] {
        #[cfg(debug_assertions)]
        assert!(at + len <= self.n_lanes, "bug in the schedule: lanes {at} and {len} more of {}", self.n_lanes);
        // SAFETY: as promised by the caller; the memory is as `new` was promised.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(at), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_begin_at_their_offsets() {
        let mut lanes = vec![0u32; 8];
        // SAFETY: `lanes` has 32 bytes, and no two parts overlap.
        unsafe {
            let shared = SharedLanes::new(lanes.as_mut_ptr().cast(), 32);
            shared.part(0, 3).fill(1);
            shared.part(5, 3).fill(2);
            assert!(SharedLanes::new(lanes.as_mut_ptr().cast(), 0).part(0, 0).is_empty());
        }
        assert_eq!(lanes, [1, 1, 1, 0, 0, 2, 2, 2]);
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "lanes 6 and 3 more of 8")]
    fn a_part_beyond_the_end_panics() {
        let mut lanes = vec![0u32; 8];
        // SAFETY: `part` panics before it touches memory.
        unsafe { SharedLanes::new(lanes.as_mut_ptr().cast(), 32).part(6, 3).fill(0) };
    }
}
