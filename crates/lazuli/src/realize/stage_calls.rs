//! Calls of a user's function between the stages of an evaluation: once for each stage, in order, and no more after an error.

use std::cell::RefCell;

use crate::error::{Error, Result};

/// The function that is called after each stage, and how far it has come.
pub struct StageCalls<'a>(RefCell<Option<CallsMade<'a>>>);

struct CallsMade<'a> {
    f: &'a mut dyn FnMut(usize) -> Result<()>,
    n_called: usize,
    error: Option<Error>,
}

impl<'a> StageCalls<'a> {
    /// Of a function, once for each stage.
    pub fn of(f: &'a mut dyn FnMut(usize) -> Result<()>) -> StageCalls<'a> {
        StageCalls(RefCell::new(Some(CallsMade { f, n_called: 0, error: None })))
    }
}

impl StageCalls<'_> {
    /// Nobody is called.
    pub fn none() -> StageCalls<'static> {
        StageCalls(RefCell::new(None))
    }

    /// Calls the function for all stages up to this one for which it was not called yet.
    pub fn call(&self, stage: usize) {
        let mut made = self.0.borrow_mut();
        let Some(made) = made.as_mut() else { return };
        while made.n_called <= stage {
            let stage = made.n_called;
            made.n_called += 1;
            if made.error.is_none() {
                made.error = (made.f)(stage).err();
            }
        }
    }

    /// Calls it for the rest of this many stages. Gives the error that it returned, if it did.
    pub fn finish(self, n_stages: usize) -> Result<()> {
        if let Some(last) = n_stages.checked_sub(1) {
            self.call(last);
        }
        self.0.into_inner().and_then(|made| made.error).map_or(Ok(()), Err)
    }
}
