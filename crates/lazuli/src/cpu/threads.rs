//! The threads of the CPU backend. Work is cut by sizes alone and handed out here, so that results do not depend on
//! how many threads there are. Whoever asks for the work takes part in it: waking a thread costs as much as a small
//! kernel, and a caller that sleeps meanwhile leaves its core to nobody.

use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;

use smallvec::SmallVec;

use super::pool::ThreadPool;
use crate::log;

const VARIABLE: &str = "LAZULI_THREADS";

/// The most threads that the environment may ask for: so many for each processor, or so many if that is more. More than one
/// for each is slower, and serves to find out that results do not depend on it.
const MOST_EACH: usize = 4;
const MOST_ANYWHERE: usize = 16;

/// The most threads unless the environment asks for another number.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Pools made from now on have at most this many threads, unless the environment asks for another number.
pub fn limit(n_threads: usize) {
    LIMIT.store(n_threads.max(1), Ordering::Relaxed);
}

/// A pool of threads, or none where one is all there is.
pub struct Workers {
    pool: Option<ThreadPool>,
}

thread_local! {
    /// The pool that this thread may share work with, while it is in [`Workers::enter`].
    static POOL: Cell<*const ThreadPool> = const { Cell::new(ptr::null()) };
    /// The number under which this thread takes part in shared work.
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

impl Workers {
    /// As many as `LAZULI_THREADS` says, else as the machine has and [`limit`] allows.
    pub fn new() -> Workers {
        let n_processors = available_parallelism().map_or(1, usize::from);
        let n_threads = match log::variable(VARIABLE).map(|text| asked(&text, n_processors)) {
            None => n_processors.min(LIMIT.load(Ordering::Relaxed)),
            Some(Ok(n_threads)) => n_threads,
            Some(Err((n_threads, why))) => {
                log::warn(VARIABLE, &why);
                n_threads
            }
        };
        Workers::with(n_threads)
    }

    /// This many, the caller's among them.
    pub fn with(n_threads: usize) -> Workers {
        let pool = (n_threads > 1).then(|| ThreadPool::new(n_threads - 1));
        // A system that gives no threads still computes, on the caller's.
        Workers { pool: pool.filter(|pool| pool.n_threads() > 0) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.n_threads() + 1)
    }

    /// Runs `f` here, where [`for_each`] finds the threads.
    pub fn enter<R>(&self, f: impl FnOnce() -> R) -> R {
        let _back = Entered::new(self.pool.as_ref().map_or(ptr::null(), ptr::from_ref), 0);
        f()
    }
}

/// How many threads a text asks for; else how many there will be, and why.
fn asked(text: &str, n_processors: usize) -> Result<usize, (usize, String)> {
    let most = n_processors.saturating_mul(MOST_EACH).max(MOST_ANYWHERE);
    match text.parse::<usize>() {
        Ok(n) if n > most => {
            Err((most, format!("{n} threads are more than {most}, the most on this machine; {most} are started")))
        }
        Ok(n) if n > 0 => Ok(n),
        _ => Err((n_processors, format!("{text:?} is not understood; there are: whole numbers from 1 to {most}"))),
    }
}

/// Runs `f` here and shares nothing out, whatever this thread was taking part in.
pub fn alone<R>(f: impl FnOnce() -> R) -> R {
    let _back = Entered::new(ptr::null(), 0);
    f()
}

/// Sets this thread's pool and number, and those before when dropped.
struct Entered(*const ThreadPool, usize);

impl Entered {
    fn new(pool: *const ThreadPool, worker: usize) -> Entered {
        Entered(POOL.replace(pool), WORKER.replace(worker))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        POOL.set(self.0);
        WORKER.set(self.1);
    }
}

fn pool<'p>() -> Option<&'p ThreadPool> {
    // SAFETY: set for as long as `enter` borrows the pool, on this thread only.
    unsafe { POOL.get().as_ref() }
}

/// The number of this thread as a worker in shared work, however deeply nested: less than [`Workers::count`] of the workers that
/// share it, and no two threads of that work have the same number at once.
pub fn worker() -> usize {
    WORKER.get()
}

/// Calls `f` with `0..n_tasks`, on the threads of the pool this is called in; in order on this one if there is none.
pub fn for_each(n_tasks: usize, f: &(dyn Fn(usize) + Sync)) {
    for_each_on(n_tasks, &|_, task| f(task));
}

/// [`for_each`] with the number of the worker that takes the task, which is less than [`Workers::count`]: no two threads have the same
/// number at once. Each worker begins with a share of the tasks that is the same from one kernel to the next, since what it has written is
/// in its own cache; then it takes tasks that others have left.
pub fn for_each_on(n_tasks: usize, f: &(dyn Fn(usize, usize) + Sync)) {
    let Some(pool) = pool().filter(|_| n_tasks > 1) else {
        return (0..n_tasks).for_each(|task| f(0, task));
    };
    in_shares(pool, n_tasks, 1, &|worker, tasks| tasks.for_each(|task| f(worker, task)));
}

/// Calls `f` with ranges of at most `grain` that together are `0..n`, on the threads of the pool this is called in. Each thread
/// begins with a share of its own, which it takes in order, so that it reads memory as one stream; then it helps the others.
pub fn for_each_range(n: usize, grain: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    let Some(pool) = pool().filter(|_| n > grain) else { return f(0..n) };
    in_shares(pool, n, grain, &|_, range| f(range));
}

/// Calls `f` with the number of a worker and ranges of at most `grain` that together are `0..n`.
fn in_shares(pool: &ThreadPool, n: usize, grain: usize, f: &(dyn Fn(usize, Range<usize>) + Sync)) {
    let n_workers = pool.n_threads() + 1;
    let first = |share: usize| share * n / n_workers;
    let shares: SmallVec<[AtomicUsize; 8]> = (0..n_workers).map(|share| AtomicUsize::new(first(share))).collect();
    pool.run((n_workers - 1).min(n - 1), &|worker| {
        // What a task does is not shared out again.
        let _back = Entered::new(ptr::null(), worker);
        for share in (worker..n_workers).chain(0..worker) {
            let end = first(share + 1);
            loop {
                let start = shares[share].fetch_add(grain, Ordering::Relaxed);
                if start >= end {
                    break;
                }
                f(worker, start..end.min(start + grain));
            }
        }
    });
}

/// Calls `f` with every chunk of `len` elements and its number; a task is `worth` elements or more.
pub fn for_each_chunk<T: Send>(all: &mut [T], len: usize, worth: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let n_chunks = all.len().div_ceil(len);
    let per_task = worth.div_ceil(len).max(1);
    let chunks = Chunks { first: all.as_mut_ptr(), len, n_elems: all.len() };
    for_each(n_chunks.div_ceil(per_task), &|task| {
        for i in task * per_task..((task + 1) * per_task).min(n_chunks) {
            // SAFETY: every chunk is taken once.
            f(i, unsafe { chunks.get(i) });
        }
    });
}

/// A slice in chunks that tasks take apart.
struct Chunks<T> {
    first: *mut T,
    len: usize,
    n_elems: usize,
}

// SAFETY: a chunk is taken by one task.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    /// # Safety
    /// The chunk begins within the slice, and nobody else takes it.
    #[allow(clippy::mut_from_ref, reason = "every chunk is taken once")]
    unsafe fn get(&self, idx: usize) -> &mut [T] {
        let from = idx * self.len;
        // SAFETY: within the slice; the rest as promised by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(from), self.len.min(self.n_elems - from)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_all_there_once_however_they_are_shared_out() {
        for (n_threads, n, grain) in [(1, 10, 3), (2, 0, 1), (2, 7, 100), (2, 100, 7), (3, 1000, 1), (5, 4, 1)] {
            let taken: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            Workers::with(n_threads).enter(|| {
                for_each_range(n, grain, &|range| {
                    assert!(range.len() <= grain || n_threads == 1);
                    for taken in &taken[range] {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
            assert!(
                taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 1),
                "{n_threads} threads, {n} by {grain}"
            );
        }
    }

    #[test]
    fn as_many_threads_as_asked_for_within_reason() {
        for n in [1, 2, 16] {
            assert_eq!(asked(&n.to_string(), 2), Ok(n));
        }
        assert_eq!(asked("256", 64), Ok(256));
        for (text, n_processors, expect) in [("17", 2, 16), ("100000", 2, 16), ("257", 64, 256)] {
            let (n, why) = asked(text, n_processors).expect_err(text);
            assert!(n == expect && why.starts_with(&format!("{text} threads are more than {expect}")), "{why}");
        }
        for text in ["abc", "0", "-1", "2.5", "99999999999999999999", "2 threads"] {
            let (n, why) = asked(text, 3).expect_err(text);
            assert!(n == 3 && why.contains("whole numbers from 1 to 16"), "{why}");
        }
    }
}
