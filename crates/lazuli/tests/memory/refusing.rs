//! An allocator that counts what is asked for and can refuse it: the only way to see what happens when memory runs out at
//! one place and not at another. It counts what is large; a small vector that cannot be had ends a Rust program, and no
//! library can change that.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What tests of the engine count from: nodes, plans and messages are smaller.
pub const LARGE: usize = 4 << 10;

/// Smaller pieces of memory are not counted and never refused.
static COUNTED_FROM: AtomicUsize = AtomicUsize::new(LARGE);

pub struct Refusing;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static N_SEEN: AtomicUsize = AtomicUsize::new(0);
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// How often this thread has allocated, however little.
    static N_OF_THREAD: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread is inside [`refusing`].
    static IS_CALLER: Cell<bool> = const { Cell::new(false) };
    /// Whether this is a thread of the engine; None as long as nobody has looked.
    static IS_ENGINE: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Whether what this thread allocates is the program's. Threads of the test runner allocate, too, while they start and end tests, and
/// cannot do without.
fn is_counted_thread() -> bool {
    IS_CALLER.get()
        || IS_ENGINE.get().unwrap_or_else(|| {
            let is_engine = is_named_lazuli();
            IS_ENGINE.set(Some(is_engine));
            is_engine
        })
}

/// The engine names its threads. Asked of the system, because the standard library allocates to answer.
#[cfg(target_os = "linux")]
fn is_named_lazuli() -> bool {
    const PR_GET_NAME: i32 = 16;
    unsafe extern "C" {
        fn prctl(option: i32, ...) -> i32;
    }
    let mut name = [0u8; 16];
    // SAFETY: the system writes at most 16 bytes.
    unsafe { prctl(PR_GET_NAME, name.as_mut_ptr()) };
    name.starts_with(b"lazuli")
}

/// Elsewhere only what the calling thread allocates is counted.
#[cfg(not(target_os = "linux"))]
fn is_named_lazuli() -> bool {
    false
}

fn is_refused(size: usize) -> bool {
    N_OF_THREAD.set(N_OF_THREAD.get() + 1);
    if size < COUNTED_FROM.load(SeqCst) || !IS_COUNTING.load(SeqCst) || !is_counted_thread() {
        return false;
    }
    let number = N_SEEN.fetch_add(1, SeqCst) + 1;
    (FIRST.load(SeqCst)..=LAST.load(SeqCst)).contains(&number)
}

// SAFETY: whatever is not refused is the system's.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size(), SeqCst);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_refused(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size(), SeqCst);
        // SAFETY: as promised by the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if is_refused(size) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(size, SeqCst);
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), SeqCst);
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Counting starts and stops for the whole process, and threads of the engine serve all tests: every test beside one that counts
/// has this from its start to its end.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that are allocated now.
#[allow(dead_code, reason = "not every test that includes this file asks")]
pub fn live_bytes() -> usize {
    LIVE.load(SeqCst)
}

/// Calls `f` and refuses what it asks for by these numbers, from 1 on. Returns how much it asked for, too.
pub fn refusing<R>(numbers: RangeInclusive<usize>, f: impl FnOnce() -> R) -> (R, usize) {
    FIRST.store(*numbers.start(), SeqCst);
    LAST.store(*numbers.end(), SeqCst);
    N_SEEN.store(0, SeqCst);
    IS_CALLER.set(true);
    IS_COUNTING.store(true, SeqCst);
    let result = f();
    IS_COUNTING.store(false, SeqCst);
    IS_CALLER.set(false);
    (result, N_SEEN.load(SeqCst))
}

/// Calls `f` and counts how often it allocates on this thread, however little. The test runner's own thread allocates at any time, so
/// a count of the whole process would not be the same twice.
#[allow(dead_code, reason = "not every test that includes this file asks")]
pub fn allocations<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = N_OF_THREAD.get();
    let result = f();
    (result, N_OF_THREAD.get() - before)
}

/// Calls `f` without counting, within what is counted.
pub fn uncounted<R>(f: impl FnOnce() -> R) -> R {
    let was_counting = IS_COUNTING.swap(false, SeqCst);
    let result = f();
    IS_COUNTING.store(was_counting, SeqCst);
    result
}

/// Runs a program as often as it allocates, and refuses one allocation each time, then that one and all after it. It must
/// end in an error, or, where one refusal could be made up for, in the right numbers; and it must work again afterwards.
/// The caller is [`alone`].
#[track_caller]
pub fn check<T: PartialEq + std::fmt::Debug>(
    name: &str,
    counted_from: usize,
    trim: impl Fn(),
    program: impl Fn() -> lazuli::Result<T>,
) {
    COUNTED_FROM.store(counted_from, SeqCst);
    trim();
    let expected = program().unwrap();
    trim();
    let (counted, n) = refusing(usize::MAX..=usize::MAX, &program);
    assert_eq!(counted.unwrap(), expected, "{name}");
    assert!(n > 0, "{name} allocates nothing");
    let mut n_errors = 0;
    for k in 1..=n {
        for (last, must_fail) in [(k, false), (usize::MAX, true)] {
            trim();
            match refusing(k..=last, &program).0 {
                Err(error) => {
                    let is_memory = matches!(error, lazuli::Error::OutOfMemory(_));
                    assert!(is_memory, "{name}, {k} to {last} of {n}: {error}");
                    n_errors += 1;
                }
                Ok(found) => {
                    assert!(!must_fail, "{name} ran though {k} and all after it of {n} were refused");
                    assert_eq!(found, expected, "{name}, {k} of {n}");
                }
            }
            assert_eq!(program().unwrap(), expected, "{name}, after {k} of {n}");
        }
    }
    assert!(n_errors >= n, "{name}: {n_errors} errors of {n}");
    COUNTED_FROM.store(LARGE, SeqCst);
}
