//! What tests of several crates share: the device under test and turns on it, the line that an error names, the least that
//! runs a future, how much memory a process has, and random numbers.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use lazuli::{Device, Error, Result, Stats, Tensor};

pub use crate::dice::Rolls;

/// The device that tests run on: the CPU, or what `LAZULI_TEST_DEVICE` names.
///
/// # Panics
///
/// If there is no such device: tests that could not run are failures, not a reason to take another.
///
/// ```
/// println!("{}", lazuli_check::testing::device().info());
/// ```
pub fn device() -> Device {
    match std::env::var("LAZULI_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap_or_else(|error| panic!("LAZULI_TEST_DEVICE: {error}")),
        Err(_) => Device::cpu(),
    }
}

/// A turn: devices and their counters are the process's, so tests that read them run one at a time.
///
/// ```
/// let _turn = lazuli_check::testing::alone();
/// ```
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What may hold an error: a result, a tensor that carries one, or several of them.
///
/// ```
/// use lazuli_check::testing::Fails;
/// let x = lazuli::Tensor::zeros([2], lazuli::DType::F32, &lazuli::Device::cpu());
/// assert!(x.reshape([3]).error().is_some() && x.error().is_none());
/// ```
pub trait Fails {
    /// The error, if there is one.
    fn error(self) -> Option<Error>;
}

impl<T> Fails for Result<T> {
    fn error(self) -> Option<Error> {
        self.err()
    }
}

impl Fails for Tensor {
    fn error(self) -> Option<Error> {
        self.check().err()
    }
}

impl Fails for Vec<Tensor> {
    fn error(self) -> Option<Error> {
        self.into_iter().next().and_then(Fails::error)
    }
}

/// Notes what is wrong with an error that should name this line, and should read the same as Debug; see
/// [`fails_here`](crate::fails_here).
///
/// ```
/// let mut wrong = Vec::new();
/// lazuli_check::testing::check_line("a.rs", 3, "nothing", None, &mut wrong);
/// assert_eq!(wrong, ["line 3: nothing did not fail"]);
/// ```
pub fn check_line(file: &str, line: u32, what: &str, error: Option<Error>, wrong: &mut Vec<String>) {
    let Some(error) = error else {
        wrong.push(format!("line {line}: {what} did not fail"));
        return;
    };
    let at = error.fault().at;
    if at.is_none_or(|at| at.file() != file || at.line() != line) {
        wrong.push(format!("line {line}: {what}: {error}"));
    }
    if format!("{error:?}") != error.to_string() || format!("{error:#?}") != error.to_string() {
        wrong.push(format!("line {line}: {what} reads differently as Debug: {error:?}"));
    }
}

/// A call that must fail and name the line on which it is written. It must stand on a line of its own.
///
/// ```
/// use lazuli_check::fails_here;
/// let (x, mut wrong) = (lazuli::Tensor::zeros([2], lazuli::DType::F32, &lazuli::Device::cpu()), Vec::new());
/// fails_here!(wrong, x.reshape([3]));
/// assert_eq!(wrong, [""; 0]);
/// ```
#[macro_export]
macro_rules! fails_here {
    ($wrong:ident, $call:expr) => {
        $crate::testing::check_line(
            file!(),
            line!(),
            stringify!($call),
            $crate::testing::Fails::error($call),
            &mut $wrong,
        )
    };
}

/// The least that an executor can be.
///
/// ```
/// assert_eq!(lazuli_check::testing::block_on(async { 7 }), 7);
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Bytes of everything that a device keeps to be found again.
///
/// ```
/// let _ = lazuli_check::testing::cached_bytes(&lazuli::Device::cpu().stats());
/// ```
pub fn cached_bytes(stats: &Stats) -> u64 {
    stats.bytes_plans + stats.bytes_programs + stats.bytes_pipelines
}

/// Pages of this process that are in memory, in bytes; 0 where the system does not say.
///
/// ```
/// assert!(lazuli_check::testing::resident_bytes() % 4096 == 0);
/// ```
pub fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()));
    pages.unwrap_or(0) * 4096
}
