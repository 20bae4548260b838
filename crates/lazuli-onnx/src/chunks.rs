//! Recurrences some steps at a time. Recorded as a whole, a recurrence over a sequence is another graph for each length, which
//! would be planned anew. Where a run may evaluate on its way, its steps are taken in chunks of few lengths, each an evaluation
//! of its own, and what they give is joined two and two: any length then consists of a few structures of graphs, whose plans are
//! made once. Knows nothing of operators.

use std::ops::Range;

use lazuli::{Result, Tensor};

use crate::fault;

/// How many steps a chunk has: as many of the longest as there are, then of the next. So a sequence has at most seven chunks of a
/// single step, where an evaluation costs more than its kernels, and at most seven of eight.
const CHUNKS: [usize; 3] = [64, 8, 1];

/// What evaluates tensors while a model runs.
pub trait Evaluator {
    /// Evaluates tensors; `what` says which of a run's evaluations it is, by the node that needs it.
    fn evaluate(&self, what: &str, tensors: &[&Tensor]) -> Result<()>;
}

/// Evaluates tensors and does nothing else.
pub struct Compute;

impl Evaluator for Compute {
    fn evaluate(&self, _: &str, tensors: &[&Tensor]) -> Result<()> {
        lazuli::compute(tensors)
    }
}

/// What a node sees of a run that evaluates on its way.
#[derive(Clone, Copy)]
pub struct Chunks<'a> {
    pub evaluator: &'a dyn Evaluator,
    /// The node's name.
    pub node: &'a str,
    /// What the run has made so far and is still to read.
    pub live: &'a dyn Fn() -> Vec<Tensor>,
}

impl Chunks<'_> {
    /// Evaluates what chunks begin with, and all else that the run is still to read: left lazy, that would be computed a second
    /// time from what both are made of.
    pub fn begin(&self, tensors: Vec<Tensor>) -> Result<()> {
        let live = (self.live)();
        self.evaluate("what comes before", &tensors.iter().chain(&live).collect::<Vec<_>>())
    }

    /// Takes steps in chunks: `steps` records those of a range, which come one after another, and gives what they make, along
    /// the first axis, and then what the next steps begin with. Gives what all steps make. If `reverse` is set, the last steps
    /// are taken first.
    pub fn over(
        &self,
        n_steps: usize,
        reverse: bool,
        mut steps: impl FnMut(Range<usize>) -> Vec<Tensor>,
    ) -> Result<Tensor> {
        let mut blocks = Vec::new();
        let mut n_done = 0;
        while n_done < n_steps {
            let n_left = n_steps - n_done;
            let n = CHUNKS.into_iter().find(|n| *n <= n_left).unwrap_or(n_left);
            let mut made = steps(if reverse { n_left - n..n_left } else { n_done..n_done + n });
            self.evaluate("steps", &made.iter().collect::<Vec<_>>())?;
            blocks.push(made.swap_remove(0));
            n_done += n;
        }
        // Neighbours are joined, again and again: each element is copied as often as the number of chunks can be halved. They are
        // in the order in which they were made, so that single steps are the last, and joins are of three structures.
        while blocks.len() > 1 {
            let mut joined = Vec::with_capacity(blocks.len().div_ceil(2));
            for pair in blocks.chunks(2) {
                let [first, second] = pair else {
                    joined.extend_from_slice(pair);
                    continue;
                };
                let both = Tensor::cat(&if reverse { [second, first] } else { [first, second] }, 0);
                self.evaluate("joined steps", &[&both])?;
                joined.push(both);
            }
            blocks = joined;
        }
        blocks.pop().ok_or_else(|| fault::shape("there are no steps"))
    }

    fn evaluate(&self, what: &str, tensors: &[&Tensor]) -> Result<()> {
        self.evaluator.evaluate(&format!("{}: {what}", self.node), tensors)
    }
}
