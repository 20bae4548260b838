//! The yardsticks: how fast this machine copies, reads and multiplies.

use std::hint::black_box;

use super::threads::{Shared, in_parallel, share_of};
use super::vector::{Loop, Vector, run};

/// Copies with the library's memcpy, each thread its part.
pub fn copy(x: &[f32], y: &mut [f32], n_threads: usize) {
    let (n, y) = (x.len(), Shared::new(y));
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(n, 1024, thread_idx, n_threads);
        // SAFETY: shares are disjoint.
        unsafe { y.part(range.clone()) }.copy_from_slice(&x[range]);
    });
}

/// Reads everything once; adding up is the cheapest use that cannot be optimised away.
pub fn read(x: &[f32], n_threads: usize) -> f32 {
    super::sums::sum(x, n_threads)
}

/// About `n_flops` multiply-adds per thread in registers, enough of them independent to fill both ports.
pub fn peak(n_flops: usize, n_threads: usize) -> f32 {
    in_parallel(n_threads, |_| {
        black_box(run(Peak { n_flops, factor: black_box(0.5), offset: black_box(0.25) }));
    });
    0.0
}

struct Peak {
    n_flops: usize,
    factor: f32,
    offset: f32,
}

impl Loop for Peak {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        const IN_FLIGHT: usize = 12;
        // SAFETY: the caller promises the instructions of V; no memory is touched.
        unsafe {
            let (factor, offset) = (V::splat(self.factor), V::splat(self.offset));
            let mut values = [offset; IN_FLIGHT];
            for _ in 0..self.n_flops / (2 * IN_FLIGHT * V::LANES) {
                for value in &mut values {
                    *value = value.mul_add(factor, offset);
                }
            }
            let mut total = offset;
            for value in values {
                total = total.add(value);
            }
            total.sum_lanes()
        }
    }
}
