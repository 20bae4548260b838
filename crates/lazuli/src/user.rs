//! Calls of code that a user has handed in. A panic becomes text, whatever was thrown; and a function that is called in
//! the middle of an evaluation is marked as such, because that device cannot evaluate anything else before it has ended.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `f`; if it panics, gives the text of the panic.
pub fn call<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(text_of)
}

/// The text of what was thrown, in one line. Whatever was thrown is dropped here.
pub fn text_of(thrown: Box<dyn Any + Send>) -> String {
    let text = thrown.downcast_ref::<String>().map(String::as_str).or(thrown.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("what was thrown is no text").split_whitespace().collect::<Vec<_>>().join(" ");
    // Dropping it may panic as well. What is thrown then is never dropped, since that might go on for ever.
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(thrown))) {
        std::mem::forget(again);
    }
    text
}

/// What of an evaluation on the CPU has called a function of the user's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalledBy {
    /// A kernel has called the function of a custom op.
    Kernel,
    /// A staged evaluation has ended a stage, and goes on when the function returns.
    Stages,
}

thread_local! {
    /// What has called the function that this thread is in.
    static CALLED_BY: Cell<Option<CalledBy>> = const { Cell::new(None) };
}

/// Calls `f` on behalf of an evaluation on the CPU.
pub fn call_for<R>(by: CalledBy, f: impl FnOnce() -> R) -> R {
    struct Back(Option<CalledBy>);
    impl Drop for Back {
        fn drop(&mut self) {
            CALLED_BY.set(self.0);
        }
    }
    let _back = Back(CALLED_BY.replace(Some(by)));
    f()
}

/// What of an evaluation on the CPU has called what runs here, if it was one.
pub fn called_by() -> Option<CalledBy> {
    CALLED_BY.get()
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;

    use super::*;

    /// Panics when it is dropped, again and again.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic_any(Bomb);
        }
    }

    #[test]
    fn whatever_is_thrown_becomes_text() {
        assert_eq!(call(|| 3), Ok(3));
        assert_eq!(call(|| -> i32 { panic!("plain\n  text") }), Err("plain text".into()));
        let number = 7;
        assert_eq!(call(|| -> i32 { panic!("text of {number}") }), Err("text of 7".into()));
        assert_eq!(call(|| -> i32 { panic_any(Bomb) }), Err("what was thrown is no text".into()));
    }

    #[test]
    fn a_call_of_a_kernel_ends_with_the_call_even_if_it_panics() {
        assert_eq!(called_by(), None);
        let inside = call_for(CalledBy::Stages, || {
            call_for(CalledBy::Kernel, || ());
            called_by()
        });
        assert_eq!(inside, Some(CalledBy::Stages));
        assert!(call(|| call_for(CalledBy::Kernel, || panic!("thrown"))).is_err());
        assert_eq!(called_by(), None);
    }
}
