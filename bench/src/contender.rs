//! What a contender is: something that turns a workload into a case that can be called repeatedly.

use crate::inputs::Input;
use crate::workload::Work;

/// Errors are only printed here, so their text is enough.
pub type Result<T> = std::result::Result<T, String>;

/// One library, or the hand-written loops.
pub trait Contender {
    /// The name in tables and result files.
    fn name(&self) -> &'static str;

    /// Sets a workload up, uploads included. `None` when this contender does not take part.
    fn prepare(&self, work: Work, inputs: &[Input]) -> Option<Result<Box<dyn Case>>>;
}

/// A workload ready to run on one contender.
pub trait Case {
    /// Computes the result once, completely, and keeps it. Only this is timed.
    fn call(&mut self) -> Result<()>;

    /// The values of the latest result.
    fn result(&mut self) -> Result<Vec<f32>>;
}

/// A case of an eager library: each call makes a fresh tensor, as a user's line would, and the
/// previous one is dropped after it, as an assignment does.
pub struct Fresh<T> {
    pub run: Box<dyn FnMut() -> Result<T>>,
    pub read: fn(&T) -> Result<Vec<f32>>,
    pub held: Option<T>,
}

impl<T: 'static> Fresh<T> {
    /// A boxed case out of the line that computes and the one that reads back.
    pub fn case(run: Box<dyn FnMut() -> Result<T>>, read: fn(&T) -> Result<Vec<f32>>) -> Box<dyn Case> {
        Box::new(Fresh { run, read, held: None })
    }
}

impl<T> Case for Fresh<T> {
    fn call(&mut self) -> Result<()> {
        self.held = Some((self.run)()?);
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        (self.read)(self.held.as_ref().ok_or("not called yet")?)
    }
}
