//! Calls of code that a user has handed in. A panic becomes text, whatever was thrown; and a function that a kernel calls
//! is marked as such, because the device that runs the kernel cannot evaluate anything else before it has ended.

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

thread_local! {
    /// Whether this thread is in a function that a kernel calls.
    static IN_KERNEL: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` on behalf of a kernel.
pub fn in_kernel<R>(f: impl FnOnce() -> R) -> R {
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            IN_KERNEL.set(self.0);
        }
    }
    let _back = Back(IN_KERNEL.replace(true));
    f()
}

/// Whether a kernel has called what runs here.
pub fn is_in_kernel() -> bool {
    IN_KERNEL.get()
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
        assert!(!is_in_kernel());
        assert!(in_kernel(|| {
            in_kernel(|| ());
            is_in_kernel()
        }));
        assert!(call(|| in_kernel(|| panic!("thrown"))).is_err());
        assert!(!is_in_kernel());
    }
}
