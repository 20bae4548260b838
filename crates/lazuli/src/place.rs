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

/// What lines are named instead of.
#[derive(Clone, Copy)]
struct Told {
    at: &'static Location<'static>,
    library: &'static str,
}

thread_local! {
    static TOLD: Cell<Option<Told>> = const { Cell::new(None) };
}

impl Caller {
    /// Lines of files whose path begins with `library` are named as `at`, and those of the engine and of `std` as well. If
    /// `at` is such a line of a call that is under way, it is the line of that call.
    pub fn new(at: &'static Location<'static>, library: &'static str) -> Caller {
        let at = told(at);
        Caller { before: TOLD.replace(Some(Told { at, library })), _here: PhantomData }
    }

    /// For a function of the engine.
    pub(crate) fn of_engine(at: &'static Location<'static>) -> Caller {
        Caller::new(at, engine())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        TOLD.set(self.before);
    }
}

/// The line to name for what happened at `at`.
pub fn told(at: &'static Location<'static>) -> &'static Location<'static> {
    match TOLD.get() {
        Some(told) if at.file().starts_with(told.library) || is_inside(at) => told.at,
        _ => at,
    }
}

/// Whether it is a line of the engine, or of `std`: a method that is given to `Iterator::map` is called by one.
pub fn is_inside(at: &Location<'_>) -> bool {
    let file = at.file();
    file.starts_with(engine()) || file.starts_with("/rustc/") || file.contains("/rustlib/src/rust/library/")
}

/// How the paths of the engine's files begin.
fn engine() -> &'static str {
    file!().trim_end_matches("place.rs")
}
