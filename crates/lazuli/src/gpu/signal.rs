//! Something that will be known later: a thread can look, a future can wait. No async runtime is needed.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A value that is set once, and whoever waits for it.
pub struct Signal<T> {
    state: Mutex<SignalState<T>>,
}

struct SignalState<T> {
    value: Option<T>,
    wakers: Vec<Waker>,
}

impl<T> Default for Signal<T> {
    fn default() -> Signal<T> {
        Signal { state: Mutex::new(SignalState { value: None, wakers: Vec::new() }) }
    }
}

impl<T: Clone> Signal<T> {
    /// Sets it and wakes whoever waits. A second value is ignored.
    pub fn set(&self, value: T) {
        let mut state = self.lock();
        state.value.get_or_insert(value);
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The value, once it is known.
    pub fn get(&self) -> Option<T> {
        self.lock().value.clone()
    }

    /// A future of the value.
    pub fn wait(&self) -> Wait<'_, T> {
        Wait(self)
    }

    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn lock(&self) -> MutexGuard<'_, SignalState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Signal::wait`].
pub struct Wait<'a, T>(&'a Signal<T>);

impl<T: Clone> Future for Wait<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock();
        match &state.value {
            Some(value) => Poll::Ready(value.clone()),
            None => {
                if !state.wakers.iter().any(|w| w.will_wake(context.waker())) {
                    state.wakers.push(context.waker().clone());
                }
                Poll::Pending
            }
        }
    }
}

/// The result of a future that is ready as soon as it is made; None if it is not.
pub fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_set_later_is_seen_by_who_waited() {
        let signal = Signal::default();
        assert_eq!(now(signal.wait()), None);
        signal.set(7);
        signal.set(8);
        assert_eq!((now(signal.wait()), signal.get()), (Some(7), Some(7)));
    }
}
