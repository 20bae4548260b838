//! Which line an error names: the one that the user wrote, however deep in the engine it was found. `#[track_caller]` brings
//! that line through plain calls; through closures, rules of gradients and devices it does not come, and this does.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::Location;

/// While it lives, whatever this thread records and whatever goes wrong names the line of a call that the user made,
/// instead of a line of the library that was called. For libraries over the engine.
///
/// ```
/// use std::panic::Location;
/// use lazuli::{Caller, Device, Tensor};
///
/// /// A library's own function; what it maps over would be called by lines of the library or of `std`.
/// #[track_caller]
/// fn sums(tensors: &[Tensor]) -> Vec<Tensor> {
///     let _caller = Caller::new(Location::caller(), file!());
///     tensors.iter().map(|x| x.sum(1)).collect()
/// }
///
/// let line = line!() + 1;
/// let error = sums(&[Tensor::arange(0, 3, 1, &Device::cpu())])[0].check().unwrap_err();
/// assert_eq!(error.fault().at.map(|at| at.line()), Some(line));
/// ```
#[must_use = "lines are named only while it lives"]
pub struct Caller {
    before: Option<Told>,
    // It belongs to the thread that made it.
    _here: PhantomData<*const ()>,
}

/// What is named instead of lines of these libraries.
#[derive(Clone, Copy)]
struct Told {
    at: &'static Location<'static>,
    libraries: [Option<&'static str>; MOST],
}

/// How many libraries may call one another, one upon the other; lines of more are named as they are.
const MOST: usize = 4;

thread_local! {
    static REPORTED: Cell<Option<Told>> = const { Cell::new(None) };
}

impl Caller {
    /// Lines of files whose path begins with `library` are named as `at`, and those of the engine and of `std` as well. If
    /// `at` is such a line of a call that is under way, it is the line of that call.
    pub fn new(at: &'static Location<'static>, library: &'static str) -> Caller {
        let before = REPORTED.get();
        // Whoever calls for somebody does all of it for them, with all libraries that lie between.
        let mut inner = match before.filter(|reported_at| reported_at.covers(at)) {
            Some(outer) => outer,
            None => Told { at, libraries: [None; MOST] },
        };
        if !inner.libraries.contains(&Some(library))
            && let Some(free) = inner.libraries.iter_mut().find(|slot| slot.is_none())
        {
            *free = Some(library);
        }
        REPORTED.set(Some(inner));
        Caller { before, _here: PhantomData }
    }

    /// For a function of the engine.
    pub(crate) fn of_engine(at: &'static Location<'static>) -> Caller {
        Caller::new(at, ENGINE)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        REPORTED.set(self.before);
    }
}

impl Told {
    /// Whether another line is named instead of this one.
    fn covers(&self, at: &Location<'_>) -> bool {
        is_inside(at) || self.libraries.iter().flatten().any(|library| at.file().starts_with(library))
    }
}

/// The line to name for what happened at `at`.
pub fn reported_at(at: &'static Location<'static>) -> &'static Location<'static> {
    match REPORTED.get() {
        Some(reported_at) if reported_at.covers(at) => reported_at.at,
        _ => at,
    }
}

/// Whether it is a line of the engine, or of `std`: a method that is given to `Iterator::map` is called by one.
pub fn is_inside(at: &Location<'_>) -> bool {
    let file = at.file();
    file.starts_with(ENGINE) || file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/library/")
}

/// How the paths of the engine's files begin.
const ENGINE: &str = file!().split_at(file!().len() - "place.rs".len()).0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_for_somebody_names_the_line_of_the_first_call() {
        // This file is one of the engine's, so that its lines are always covered, and this stands for the user's.
        #[track_caller]
        fn here() -> &'static Location<'static> {
            Location::caller()
        }
        let (first, second) = (here(), here());
        assert_ne!(first, second);
        assert_eq!(reported_at(second), second);
        let outer = Caller::new(first, "their/library/");
        assert_eq!(reported_at(second), first);
        let inner = Caller::of_engine(second);
        assert_eq!(reported_at(second), first);
        drop(inner);
        drop(outer);
        assert_eq!(reported_at(second), second);
    }

    #[test]
    fn libraries_that_call_one_another_are_all_covered() {
        let at = Location::caller();
        let n_covered = || REPORTED.get().map_or(0, |reported_at| reported_at.libraries.iter().flatten().count());
        let mut callers: Vec<Caller> = (0..20).map(|_| Caller::new(at, "their/library/")).collect();
        assert_eq!(n_covered(), 1);
        callers.extend(["a/", "b/", "c/", "d/", "e/", "f/", "g/", "h/", "i/"].map(|library| Caller::new(at, library)));
        assert_eq!(n_covered(), MOST);
        while callers.pop().is_some() {}
        assert_eq!(n_covered(), 0);
    }
}
