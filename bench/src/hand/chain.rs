//! Fused elementwise chains: every input read once, the output written once, nothing in between.

use super::threads::{Shared, in_parallel, share_of, threads_for};
use super::vector::{Loop, Vector, run};
use crate::workload::{CHAIN_PAIRS, chain_scalar};

/// `y = (a + b) · 5 - c`.
pub fn chain3(a: &[f32], b: &[f32], c: &[f32], y: &mut [f32], n_threads: usize) {
    let n = y.len();
    let n_threads = threads_for(n, n_threads);
    let y = Shared::new(y);
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(n, 1024, thread_idx, n_threads);
        let (a, b, c) = (&a[range.clone()], &b[range.clone()], &c[range.clone()]);
        // SAFETY: shares are disjoint.
        let y = unsafe { y.part(range) };
        run(Chain3 { a, b, c, y });
    });
}

/// `y = (…((x · s₀ + t) · s₁ + t)…)`.
pub fn chain100(x: &[f32], t: &[f32], y: &mut [f32], n_threads: usize) {
    let scalars: [f32; CHAIN_PAIRS] = std::array::from_fn(chain_scalar);
    let n = y.len();
    let y = Shared::new(y);
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(n, 1024, thread_idx, n_threads);
        let (x, t) = (&x[range.clone()], &t[range.clone()]);
        // SAFETY: shares are disjoint.
        let y = unsafe { y.part(range) };
        run(Chain100 { x, t, scalars: &scalars, y });
    });
}

struct Chain3<'a> {
    a: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    y: &'a mut [f32],
}

/// Values per page of memory.
const PAGE: usize = 1024;
/// Pages walked together: the hardware stops fetching ahead at the end of a page.
const PAGES: usize = 4;
/// A share this long is written past the caches, which could not keep it anyway. That saves
/// reading the output's old contents: a fifth of the traffic here.
const LARGE: usize = 1 << 22;

impl Loop for Chain3<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        const IN_FLIGHT: usize = 4;
        let Chain3 { a, b, c, y } = self;
        let n = y.len();
        assert!(a.len() == n && b.len() == n && c.len() == n);
        let n_paged = if n >= LARGE { n / (PAGES * PAGE) * (PAGES * PAGE) } else { 0 };
        let n_vectors = n / V::LANES * V::LANES;
        let [pa, pb, pc] = [a.as_ptr(), b.as_ptr(), c.as_ptr()];
        let py = y.as_mut_ptr();
        assert!(py.addr().is_multiple_of(V::LANES * size_of::<f32>()));
        // SAFETY: the caller promises the instructions of V; every access ends at or before n,
        // and stores past the caches start at multiples of a vector from an aligned start.
        unsafe {
            for group in (0..n_paged).step_by(PAGES * PAGE) {
                for within in (0..PAGE).step_by(IN_FLIGHT * V::LANES) {
                    for page in 0..PAGES {
                        for j in 0..IN_FLIGHT {
                            let at = group + page * PAGE + within + j * V::LANES;
                            chain3_at::<V>(pa, pb, pc, at).store_past_caches(py.add(at));
                        }
                    }
                }
            }
            V::fence();
            for at in (n_paged..n_vectors).step_by(V::LANES) {
                chain3_at::<V>(pa, pb, pc, at).store(py.add(at));
            }
        }
        for i in n_vectors..n {
            y[i] = (a[i] + b[i]) * 5.0 - c[i];
        }
    }
}

/// # Safety
/// The processor has the instructions of `V`, and a vector of values from `at` on can be read of each.
#[inline(always)]
unsafe fn chain3_at<V: Vector>(a: *const f32, b: *const f32, c: *const f32, at: usize) -> V {
    // SAFETY: the caller promises the instructions of V and a vector of values at `at`.
    unsafe { V::load(a.add(at)).add(V::load(b.add(at))).mul(V::splat(5.0)).sub(V::load(c.add(at))) }
}

struct Chain100<'a> {
    x: &'a [f32],
    t: &'a [f32],
    scalars: &'a [f32; CHAIN_PAIRS],
    y: &'a mut [f32],
}

impl Loop for Chain100<'_> {
    type Output = ();

    /// A product and a sum, each rounded, as the ops say; one instruction for both would be another result.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // Two ports and a latency of four: fewer than eight chains leave ports idle.
        const IN_FLIGHT: usize = 8;
        let Chain100 { x, t, scalars, y } = self;
        let n = y.len();
        assert!(x.len() == n && t.len() == n);
        let step = IN_FLIGHT * V::LANES;
        let mut i = 0;
        // SAFETY: the caller promises the instructions of V; every access ends at or before n.
        unsafe {
            while i + step <= n {
                let mut values = [V::splat(0.0); IN_FLIGHT];
                let mut terms = [V::splat(0.0); IN_FLIGHT];
                for (j, (value, term)) in values.iter_mut().zip(&mut terms).enumerate() {
                    *value = V::load(x.as_ptr().add(i + j * V::LANES));
                    *term = V::load(t.as_ptr().add(i + j * V::LANES));
                }
                for &scalar in scalars {
                    let scalar = V::splat(scalar);
                    for (value, &term) in values.iter_mut().zip(&terms) {
                        *value = value.mul(scalar).add(term);
                    }
                }
                for (j, value) in values.iter().enumerate() {
                    value.store(y.as_mut_ptr().add(i + j * V::LANES));
                }
                i += step;
            }
        }
        for i in i..n {
            y[i] = scalars.iter().fold(x[i], |value, scalar| value * scalar + t[i]);
        }
    }
}
