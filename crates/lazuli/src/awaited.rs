//! Calls that are awaited: the blocking call is made by a thread of the device's own, and the future of it is woken when it
//! has returned. No async runtime is needed. Knows nothing of tensors.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Builder;

use crate::user;

/// Whether there can be threads. Where there are none, as in a browser, nothing may wait, and awaited calls take another
/// way.
pub const HAS_THREADS: bool = !cfg!(target_arch = "wasm32");

/// How many threads a device has for this. Evaluations of one device take turns anyway, so one more than one is enough: it
/// evaluates while the other waits for what it has submitted, or copies results out.
const MOST_THREADS: usize = 2;

/// Room for the stack of such a thread: what a program's first thread mostly has, since drivers compile shaders on it.
const STACK_BYTES: usize = 8 << 20;

/// The threads of one device that make awaited calls. None is started before the first such call.
pub struct CallThreads {
    queue: Arc<Queue>,
    stack_bytes: usize,
}

#[derive(Default)]
struct Queue {
    state: Mutex<CallState>,
    wake: Condvar,
}

#[derive(Default)]
struct CallState {
    waiting: VecDeque<Arc<dyn AwaitedCall>>,
    n_threads: usize,
    n_idle: usize,
    /// The device is gone, so that nothing more will come.
    closed: bool,
}

/// A call whose result has some type.
trait AwaitedCall: Send + Sync {
    fn run(&self);
}

// Nothing that can panic is called while one of these locks is held, so a poisoned one is still good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for CallThreads {
    fn default() -> CallThreads {
        CallThreads { queue: Arc::default(), stack_bytes: STACK_BYTES }
    }
}

impl CallThreads {
    /// Has `call` made by a thread. What it captured is dropped before its result can be seen, and at once if the future
    /// is dropped before the call has begun; a call that has begun is finished.
    ///
    /// Where no thread can be started, the call is made here instead. So it is inside a function that a kernel calls: only
    /// this thread knows that it must not evaluate there.
    pub fn run<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Awaited<T> {
        let task = Arc::new(Task { state: Mutex::new((Stage::Waiting(Box::new(call)), None)) });
        if user::called_by().is_some() || !self.take(task.clone()) {
            task.run();
        }
        Awaited(task)
    }

    /// Puts a job into the queue, and says whether there is a thread that will do it.
    fn take(&self, job: Arc<dyn AwaitedCall>) -> bool {
        let mut state = lock(&self.queue.state);
        if state.n_idle <= state.waiting.len() && state.n_threads < MOST_THREADS {
            let queue = self.queue.clone();
            let thread = Builder::new().name("lazuli-await".into()).stack_size(self.stack_bytes);
            // Fewer threads than there might be are only slower.
            state.n_threads += thread.spawn(move || queue.serve()).is_ok() as usize;
        }
        if state.n_threads == 0 {
            return false;
        }
        state.waiting.push_back(job);
        drop(state);
        self.queue.wake.notify_one();
        true
    }
}

impl Drop for CallThreads {
    /// The threads end by themselves. Nobody waits for them: the last handle of a device may be dropped by one of them.
    fn drop(&mut self) {
        lock(&self.queue.state).closed = true;
        self.queue.wake.notify_all();
    }
}

impl Queue {
    /// Does jobs in the order in which they came, until the device is gone.
    fn serve(&self) {
        while let Some(job) = self.next() {
            job.run();
        }
    }

    fn next(&self) -> Option<Arc<dyn AwaitedCall>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.waiting.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.n_idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.n_idle -= 1;
        }
    }
}

/// A call and what becomes of it, shared by the future and the thread.
struct Task<T> {
    state: Mutex<(Stage<T>, Option<Waker>)>,
}

enum Stage<T> {
    Waiting(Box<dyn FnOnce() -> T + Send>),
    Running,
    Done(Result<T, Box<dyn Any + Send>>),
    /// The result was given out, or the future was dropped.
    Over,
}

impl<T: Send> AwaitedCall for Task<T> {
    fn run(&self) {
        let stage = {
            let mut state = lock(&self.state);
            let next = if matches!(state.0, Stage::Waiting(_)) { Stage::Running } else { Stage::Over };
            std::mem::replace(&mut state.0, next)
        };
        let Stage::Waiting(call) = stage else { return };
        let done = catch_unwind(AssertUnwindSafe(call));
        let mut state = lock(&self.state);
        if matches!(state.0, Stage::Over) {
            drop(state);
            return discard(Stage::Done(done));
        }
        state.0 = Stage::Done(done);
        let waker = state.1.take();
        drop(state);
        // An executor's waker is the user's code, too. If it panics, nobody is left to tell.
        let _ = user::call(|| waker.map(Waker::wake));
    }
}

/// Drops what nobody asks for any more.
fn discard<T>(stage: Stage<T>) {
    if let Stage::Done(Err(thrown)) = stage {
        user::text_of(thrown);
    }
}

/// The result of a call, once it has returned. A panic of the call goes on where it is awaited.
pub struct Awaited<T>(Arc<Task<T>>);

impl<T> Future for Awaited<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let waker = context.waker().clone();
        let mut state = lock(&self.0.state);
        if !matches!(state.0, Stage::Done(_)) {
            let before = state.1.replace(waker);
            drop(state);
            // Outside the lock: dropping a waker may drop whatever it would have woken.
            drop(before);
            return Poll::Pending;
        }
        let stage = std::mem::replace(&mut state.0, Stage::Over);
        drop(state);
        match stage {
            Stage::Done(Ok(value)) => Poll::Ready(value),
            Stage::Done(Err(thrown)) => resume_unwind(thrown),
            _ => unreachable!("it was done"),
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        let (stage, waker) = (std::mem::replace(&mut state.0, Stage::Over), state.1.take());
        drop(state);
        drop(waker);
        discard(stage);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::task::Wake;
    use std::thread::{self, Thread};

    use super::*;

    /// Counts how often it is woken, and wakes a thread.
    struct Woken(AtomicUsize, Thread);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.unpark();
        }
    }

    fn woken() -> Arc<Woken> {
        Arc::new(Woken(AtomicUsize::new(0), thread::current()))
    }

    fn poll<T>(future: &mut Awaited<T>, by: &Arc<Woken>) -> Poll<T> {
        Pin::new(future).poll(&mut Context::from_waker(&by.clone().into()))
    }

    fn block_on<F: Future>(future: F) -> F::Output {
        let (waker, mut future) = (woken(), pin!(future));
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker.clone().into())) {
                Poll::Ready(value) => return value,
                Poll::Pending => thread::park(),
            }
        }
    }

    fn n_threads(lane: &CallThreads) -> usize {
        lock(&lane.queue.state).n_threads
    }

    /// Keeps every thread of a lane busy until the sender is dropped.
    fn occupied(lane: &CallThreads) -> (std::sync::mpsc::Sender<()>, Vec<Awaited<()>>) {
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (tell, begun) = channel();
        let busy = (0..MOST_THREADS).map(|_| {
            let (held, tell) = (held.clone(), tell.clone());
            lane.run(move || {
                tell.send(()).unwrap();
                let _ = lock(&held).recv();
            })
        });
        let busy = busy.collect();
        (0..MOST_THREADS).for_each(|_| begun.recv().unwrap());
        (release, busy)
    }

    #[test]
    fn a_call_is_made_by_a_thread_that_is_started_for_the_first() {
        let lane = CallThreads::default();
        assert_eq!(n_threads(&lane), 0);
        let here = thread::current().id();
        for i in 0..100 {
            let (value, there) = block_on(lane.run(move || (i, thread::current().id())));
            assert!(value == i && there != here);
        }
        assert!((1..=MOST_THREADS).contains(&n_threads(&lane)));
    }

    #[test]
    fn a_future_that_is_dropped_before_its_call_has_begun_lets_go_at_once() {
        let lane = CallThreads::default();
        let (release, busy) = occupied(&lane);
        let captured = Arc::new(());
        let held = captured.clone();
        let mut waits = lane.run(move || drop(held));
        assert!(poll(&mut waits, &woken()).is_pending());
        assert_eq!(Arc::strong_count(&captured), 2);
        drop(waits);
        assert_eq!(Arc::strong_count(&captured), 1);
        drop(release);
        busy.into_iter().for_each(block_on);
        assert_eq!(block_on(lane.run(|| 5)), 5);
    }

    #[test]
    fn a_future_that_is_dropped_while_its_call_runs_leaks_nothing() {
        let lane = CallThreads::default();
        for throws in [false, true] {
            let (release, busy) = occupied(&lane);
            drop(busy);
            drop(release);
            let value = Arc::new(());
            let (tell, begun) = channel();
            let (go_on, held) = channel::<()>();
            let made = value.clone();
            let future = lane.run(move || {
                tell.send(()).unwrap();
                let _ = held.recv();
                if throws { panic_any(made) } else { made }
            });
            begun.recv().unwrap();
            drop(future);
            drop(go_on);
            while Arc::strong_count(&value) > 1 {
                thread::yield_now();
            }
            assert_eq!(block_on(lane.run(|| 5)), 5);
        }
    }

    #[test]
    fn the_task_that_polled_last_is_woken() {
        let lane = CallThreads::default();
        let (go_on, held) = channel::<()>();
        let mut future = lane.run(move || held.recv().is_err());
        let (first, last) = (woken(), woken());
        assert!(poll(&mut future, &first).is_pending());
        assert!(poll(&mut future, &last).is_pending());
        assert_eq!(Arc::strong_count(&first), 1, "the first waker is not kept");
        drop(go_on);
        while last.0.load(Ordering::SeqCst) == 0 {
            thread::park();
        }
        assert!(matches!(poll(&mut future, &last), Poll::Ready(true)));
        assert_eq!((first.0.load(Ordering::SeqCst), last.0.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn what_a_call_captured_is_dropped_before_its_result_is_seen() {
        let lane = CallThreads::default();
        let captured = Arc::new(());
        for _ in 0..2_000 {
            let held = captured.clone();
            block_on(lane.run(move || Arc::strong_count(&held)));
            assert_eq!(Arc::strong_count(&captured), 1);
        }
    }

    #[test]
    fn a_panic_goes_on_where_it_is_awaited_and_the_threads_go_on() {
        struct Grumpy;
        impl Wake for Grumpy {
            fn wake(self: Arc<Self>) {
                panic!("a waker that panics");
            }
        }
        let lane = CallThreads::default();
        for i in 0..5 {
            let thrown = user::call(|| block_on(lane.run(move || -> i32 { panic!("thrown {i}") })));
            assert_eq!(thrown, Err(format!("thrown {i}")));
            let (go_on, held) = channel::<()>();
            let mut future = lane.run(move || held.recv().is_err());
            let grumpy = Arc::new(Grumpy).into();
            assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&grumpy)).is_pending());
            drop(go_on);
            assert!(block_on(future));
        }
    }

    #[test]
    fn without_threads_a_call_is_made_where_it_is_awaited() {
        // No system has room for such a stack.
        let lane = CallThreads { queue: Arc::default(), stack_bytes: isize::MAX as usize / 2 };
        let there = block_on(lane.run(|| thread::current().id()));
        assert_eq!((there, n_threads(&lane)), (thread::current().id(), 0));
        let in_kernel = CallThreads::default();
        let there = user::call_for(user::CalledBy::Kernel, || block_on(in_kernel.run(|| thread::current().id())));
        assert_eq!((there, n_threads(&in_kernel)), (thread::current().id(), 0));
    }

    #[test]
    fn threads_end_with_their_lane() {
        let lane = CallThreads::default();
        block_on(lane.run(|| ()));
        let queue = Arc::downgrade(&lane.queue);
        drop(lane);
        while queue.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
