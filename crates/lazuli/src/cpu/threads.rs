//! The threads of the CPU backend. Work is cut by sizes alone and handed out here, so that results do not depend on
//! how many threads there are.

use std::thread::available_parallelism;

use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of threads, or none where one is all there is.
pub struct Threads {
    pool: Option<ThreadPool>,
}

impl Threads {
    /// As many as `LAZULI_THREADS` says, else as the machine has.
    pub fn new() -> Threads {
        let asked = std::env::var("LAZULI_THREADS").ok().and_then(|n| n.trim().parse().ok());
        Threads::with(asked.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)))
    }

    /// This many.
    pub fn with(n_threads: usize) -> Threads {
        let builder = ThreadPoolBuilder::new().num_threads(n_threads).thread_name(|i| format!("lazuli-{i}"));
        // A system that gives no threads still computes, on the caller's.
        Threads { pool: if n_threads > 1 { builder.build().ok() } else { None } }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.pool.as_ref().map_or(1, ThreadPool::current_num_threads)
    }

    /// Runs `f` where [`for_each`] finds the threads.
    pub fn enter<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.pool {
            Some(pool) => pool.install(f),
            None => f(),
        }
    }
}

/// Calls `f` with `0..n_tasks`, on the threads of the pool this is called in; in order on this one if there is none.
pub fn for_each(n_tasks: usize, f: &(dyn Fn(usize) + Sync)) {
    if rayon::current_thread_index().is_none() {
        return (0..n_tasks).for_each(f);
    }
    share(0, n_tasks, f);
}

fn share(start: usize, end: usize, f: &(dyn Fn(usize) + Sync)) {
    if end - start <= 1 {
        return (start..end).for_each(f);
    }
    let middle = start.midpoint(end);
    rayon::join(|| share(start, middle, f), || share(middle, end, f));
}
