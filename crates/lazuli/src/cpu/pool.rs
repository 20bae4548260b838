//! Threads that wait for work. Whoever has some opens it, works on it too, and closes it when nothing is left to take: it
//! waits for those that came, never for those that were too late. So waking a thread delays nobody, and work that is done
//! sooner than a thread wakes is done without it. For a moment after work a thread keeps looking for more, because the next
//! kernel is most often near.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{Builder, JoinHandle, yield_now};
use std::time::{Duration, Instant};

use super::placement;

/// How long a thread looks for work before it sleeps. Waking takes about as long.
const LOOKING: Duration = Duration::from_micros(50);
/// Looks between two glances at the clock.
const LOOKS: usize = 64;

/// What is worked on; called by each thread with its number.
type PoolTask<'a> = dyn Fn(usize) + Sync + 'a;

/// Some threads, numbered from one; zero is whoever has work.
pub struct ThreadPool {
    shared: Arc<PoolShared>,
    threads: Vec<JoinHandle<()>>,
}

struct PoolShared {
    /// Held by whoever has work.
    owner: Mutex<()>,
    /// What is worked on. Written by the owner while it is closed and nobody is in it, read by those who came in.
    work: UnsafeCell<Option<*const PoolTask<'static>>>,
    /// How many threads are in the work, and [`OPEN`] while more may come.
    inside: AtomicUsize,
    /// How often work was opened: a thread that has seen this often need not look.
    n_opened: AtomicUsize,
    n_asleep: AtomicUsize,
    /// The processor of whoever woke threads last, or `usize::MAX` where that is not known.
    woken_from: AtomicUsize,
    /// Whether threads were woken, none of which runs yet.
    is_waking: AtomicBool,
    /// How many threads there are, the owner's among them.
    n_threads: usize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// What a thread panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    ends: AtomicBool,
}

const OPEN: usize = 1 << (usize::BITS - 1);

// SAFETY: `work` is written and read as said there; what it points to may be called from any thread, and lives until
// its owner has seen everybody leave.
unsafe impl Send for PoolShared {}
// SAFETY: as above.
unsafe impl Sync for PoolShared {}

/// A lock whose holder panicked protects nothing that could be half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ThreadPool {
    /// So many threads, or as many of them as the system gives.
    pub fn new(n_threads: usize) -> ThreadPool {
        let shared = Arc::new(PoolShared {
            owner: Mutex::new(()),
            work: UnsafeCell::new(None),
            inside: AtomicUsize::new(0),
            n_opened: AtomicUsize::new(0),
            n_asleep: AtomicUsize::new(0),
            woken_from: AtomicUsize::new(usize::MAX),
            is_waking: AtomicBool::new(false),
            n_threads: n_threads + 1,
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
            ends: AtomicBool::new(false),
        });
        let start = |number: usize| {
            let shared = shared.clone();
            Builder::new().name(format!("lazuli-{number}")).spawn(move || shared.serve(number)).ok()
        };
        let threads = (1..=n_threads).map_while(start).collect();
        ThreadPool { shared, threads }
    }

    /// How many there are.
    pub fn n_threads(&self) -> usize {
        self.threads.len()
    }

    /// Calls `work` here with zero, and meanwhile on threads that are free with their numbers; `n_helpers` of them are
    /// woken if they sleep. Those who ask while others have work do theirs alone.
    pub fn run(&self, n_helpers: usize, work: &PoolTask) {
        let owner = match self.shared.owner.try_lock() {
            Ok(owner) => owner,
            Err(TryLockError::Poisoned(owner)) => owner.into_inner(),
            Err(TryLockError::WouldBlock) => return work(0),
        };
        let opened = self.shared.open(n_helpers, work);
        work(0);
        drop(opened);
        let panic = lock(&self.shared.panic).take();
        drop(owner);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.shared.n_opened.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread catches what its work panics with.
            let _ = thread.join();
        }
    }
}

/// Work that others may come to. When dropped, nobody is in it.
struct Opened<'a>(&'a PoolShared);

impl PoolShared {
    /// Lets threads in. For the owner alone.
    fn open<'a>(&'a self, n_helpers: usize, work: &'a PoolTask<'a>) -> Opened<'a> {
        *lock(&self.panic) = None;
        let work: *const PoolTask<'a> = work;
        // SAFETY: it is closed and nobody is in it, so nobody reads. The lifetime is forgotten, but `Opened` is dropped
        // within it, and after that nobody calls it.
        unsafe { *self.work.get() = Some(std::mem::transmute::<*const PoolTask<'a>, *const PoolTask<'static>>(work)) };
        self.inside.store(OPEN, Ordering::Release);
        self.n_opened.fetch_add(1, Ordering::SeqCst);
        // Either this sees who is about to sleep, or they see that there is work.
        let n_asleep = self.n_asleep.load(Ordering::SeqCst);
        if n_asleep > 0 {
            self.woken_from.store(placement::here().unwrap_or(usize::MAX), Ordering::Relaxed);
            drop(lock(&self.sleep));
            (0..n_asleep.min(n_helpers)).for_each(|_| self.wake.notify_one());
            if self.is_waking.swap(true, Ordering::Relaxed) {
                // Woken for work before this, and still not running: it may be waiting for this very processor.
                yield_now();
            }
        }
        Opened(self)
    }

    /// Looks for work and does it until the pool ends.
    fn serve(&self, number: usize) {
        let mut n_seen = 0;
        while !self.ends.load(Ordering::Relaxed) {
            n_seen = self.wait(n_seen);
            if self.enter() {
                // SAFETY: who is in it may read what it is and call it.
                let work = unsafe { (*self.work.get()).map(|work| &*work) };
                let outcome = catch_unwind(AssertUnwindSafe(|| work.map(|work| work(number))));
                if let Err(panic) = outcome {
                    *lock(&self.panic) = Some(panic);
                }
                self.inside.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Returns when work was opened more often than this, and how often.
    fn wait(&self, n_seen: usize) -> usize {
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                let n_opened = self.n_opened.load(Ordering::Acquire);
                if n_opened != n_seen {
                    return n_opened;
                }
                spin_loop();
            }
            if since.get_or_insert_with(Instant::now).elapsed() > LOOKING {
                break;
            }
        }
        let mut sleep = lock(&self.sleep);
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        while self.n_opened.load(Ordering::SeqCst) == n_seen {
            sleep = self.wake.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
        drop(sleep);
        self.is_waking.store(false, Ordering::Relaxed);
        placement::leave(self.woken_from.load(Ordering::Relaxed), self.n_threads);
        self.n_opened.load(Ordering::Acquire)
    }

    /// Goes into the work if it is open.
    fn enter(&self) -> bool {
        let more = |inside| (inside & OPEN != 0).then_some(inside + 1);
        self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let shared = self.0;
        shared.inside.fetch_and(!OPEN, Ordering::Relaxed);
        // Those who are still in it are at their last tasks.
        let mut n_looks = 0;
        while shared.inside.load(Ordering::Acquire) != 0 {
            n_looks += 1;
            if n_looks < LOOKS * LOOKS { spin_loop() } else { yield_now() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts to `n` on all threads; every number is taken once.
    fn count(pool: &ThreadPool, n: usize) {
        let next = AtomicUsize::new(0);
        let taken: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
        pool.run(pool.n_threads(), &|number| {
            assert!(number <= pool.n_threads());
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some(taken) = taken.get(i) else { break };
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(taken.iter().all(|taken| taken.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn everything_is_done_once_and_before_the_call_returns() {
        let pool = ThreadPool::new(3);
        for i in 0..20_000 {
            count(&pool, i % 40);
        }
    }

    #[test]
    fn threads_that_sleep_are_woken() {
        let pool = ThreadPool::new(2);
        for _ in 0..50 {
            std::thread::sleep(4 * LOOKING);
            let came = AtomicUsize::new(0);
            pool.run(pool.n_threads(), &|_| {
                came.fetch_add(1, Ordering::SeqCst);
                let since = Instant::now();
                // Who was late is not waited for by the pool, but by this.
                while came.load(Ordering::SeqCst) < 3 && since.elapsed() < Duration::from_secs(60) {
                    yield_now();
                }
            });
            assert_eq!(came.into_inner(), 3);
        }
    }

    #[test]
    fn many_callers_at_once_all_get_their_work_done() {
        let pool = ThreadPool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| (0..3_000).for_each(|i| count(&pool, i % 9)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2);
        for by in 0..3 {
            let came = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(pool.n_threads(), &|number| {
                    came.fetch_add(1, Ordering::SeqCst);
                    while came.load(Ordering::SeqCst) < 3 {
                        yield_now();
                    }
                    assert!(number != by, "thrown by {by}");
                });
            }));
            let message = outcome.unwrap_err();
            assert_eq!(message.downcast_ref::<String>().unwrap(), &format!("thrown by {by}"));
            count(&pool, 100);
        }
    }
}
