//! Sums: of everything, of each row, of each column. All of them read [`STREAMS`] places at once:
//! the hardware stops fetching ahead at the end of a page, so one stream alone does not fill the bus.

use std::sync::Mutex;

use super::threads::{Shared, in_parallel, share_of};
use super::vector::{Loop, Vector, run};

/// Places read at once, and additions in flight: one takes four cycles and two start in each.
const STREAMS: usize = 8;

/// The sum of all values.
pub fn sum(x: &[f32], n_threads: usize) -> f32 {
    let total = Mutex::new(0.0f64);
    in_parallel(n_threads, |thread_idx| {
        let part = run(Sum { x: &x[share_of(x.len(), 1024, thread_idx, n_threads)] });
        *total.lock().expect("no thread panics while adding") += part as f64;
    });
    total.into_inner().expect("no thread panics while adding") as f32
}

/// The sum of each row of `cols` values.
pub fn sum_rows(x: &[f32], y: &mut [f32], cols: usize, n_threads: usize) {
    let (rows, y) = (y.len(), Shared::new(y));
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(rows, STREAMS, thread_idx, n_threads);
        let x = &x[range.start * cols..range.end * cols];
        // SAFETY: shares are disjoint.
        run(SumRows { x, y: unsafe { y.part(range) }, cols });
    });
}

/// The sum of each column of a matrix with `cols` columns. Threads take bands of rows, so that each
/// reads memory straight through, and their partial sums are added at the end.
pub fn sum_columns(x: &[f32], y: &mut [f32], cols: usize, n_threads: usize) {
    let rows = x.len() / cols;
    let mut partials = vec![0.0; cols * n_threads];
    let shared = Shared::new(&mut partials);
    in_parallel(n_threads, |thread_idx| {
        let range = share_of(rows, STREAMS, thread_idx, n_threads);
        let x = &x[range.start * cols..range.end * cols];
        // SAFETY: one part per thread.
        let y = unsafe { shared.part(thread_idx * cols..(thread_idx + 1) * cols) };
        run(SumColumns { x, y, cols });
    });
    y.copy_from_slice(&partials[..cols]);
    for partial in partials.chunks(cols).skip(1) {
        y.iter_mut().zip(partial).for_each(|(y, &part)| *y += part);
    }
}

struct Sum<'a> {
    x: &'a [f32],
}

impl Loop for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> f32 {
        let n = self.x.len() / (STREAMS * V::LANES) * V::LANES;
        let (streams, rest) = self.x.split_at(n * STREAMS);
        // SAFETY: the caller promises the instructions of V; n is in whole vectors.
        let mut total = unsafe {
            let [mut total, others @ ..] = sum_streams::<V>(streams, n);
            for other in others {
                total = total.add(other);
            }
            total.sum_lanes()
        };
        for value in rest {
            total += value;
        }
        total
    }
}

struct SumRows<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    cols: usize,
}

impl Loop for SumRows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let SumRows { x, y, cols } = self;
        assert!(cols.is_multiple_of(V::LANES) && y.len().is_multiple_of(STREAMS));
        for (band, y) in x.chunks_exact(STREAMS * cols).zip(y.chunks_exact_mut(STREAMS)) {
            // SAFETY: the caller promises the instructions of V; rows are whole vectors.
            let totals = unsafe { sum_streams::<V>(band, cols) };
            for (y, total) in y.iter_mut().zip(totals) {
                // SAFETY: the caller promises the instructions of V.
                *y = unsafe { total.sum_lanes() };
            }
        }
    }
}

/// Sums each of [`STREAMS`] neighbouring runs of `n` values, lane by lane.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn sum_streams<V: Vector>(x: &[f32], n: usize) -> [V; STREAMS] {
    assert!(x.len() == STREAMS * n && n.is_multiple_of(V::LANES));
    // SAFETY: the caller promises the instructions of V; runs are whole vectors.
    unsafe {
        let mut totals = [V::splat(0.0); STREAMS];
        for i in (0..n).step_by(V::LANES) {
            for (stream, total) in totals.iter_mut().enumerate() {
                *total = total.add(V::load(x.as_ptr().add(stream * n + i)));
            }
        }
        totals
    }
}

struct SumColumns<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    cols: usize,
}

impl Loop for SumColumns<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let SumColumns { x, y, cols } = self;
        let rows = x.len() / cols;
        assert!(cols.is_multiple_of(V::LANES) && rows.is_multiple_of(STREAMS) && y.len() == cols);
        for band in x.chunks_exact(STREAMS * cols) {
            for c in (0..cols).step_by(V::LANES) {
                // SAFETY: the caller promises the instructions of V; a band has STREAMS whole rows.
                unsafe {
                    let at = band.as_ptr().add(c);
                    let mut values = [V::splat(0.0); STREAMS];
                    for (r, value) in values.iter_mut().enumerate() {
                        *value = V::load(at.add(r * cols));
                    }
                    // Added in pairs: short dependency chains and small rounding errors.
                    let mut width = STREAMS / 2;
                    while width > 0 {
                        for r in 0..width {
                            values[r] = values[r].add(values[r + width]);
                        }
                        width /= 2;
                    }
                    V::load(y.as_ptr().add(c)).add(values[0]).store(y.as_mut_ptr().add(c));
                }
            }
        }
    }
}
