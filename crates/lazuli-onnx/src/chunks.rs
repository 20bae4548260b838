//! Evaluates recurrences in chunks of steps. Recorded as a whole, a recurrence has another graph for each length of the sequence, and
//! each graph is planned anew. A run that may evaluate while it records takes the steps in chunks of three lengths, each chunk an
//! evaluation of its own, and joins the results of chunks in pairs: sequences of any length then share a few structures, each planned
//! once. Knows nothing of operators.

use std::ops::Range;

use lazuli::{Result, Tensor};

use crate::fault;

/// The lengths of chunks in steps. A sequence has as many chunks of 64 as fit, then of 8, then of 1, so at most seven of 8 and at most
/// seven of a single step, for which an evaluation costs more than its kernels.
const CHUNKS: [usize; 3] = [64, 8, 1];

/// Evaluates tensors while a model runs.
pub trait Evaluator {
    /// Evaluates tensors; `what` names the evaluation, by the node that needs it.
    fn evaluate(&self, what: &str, tensors: &[&Tensor]) -> Result<()>;
}

/// Evaluates tensors and does nothing else.
pub struct Compute;

impl Evaluator for Compute {
    fn evaluate(&self, _: &str, tensors: &[&Tensor]) -> Result<()> {
        lazuli::compute(tensors)
    }
}

/// The means by which a node evaluates tensors while the run goes on.
#[derive(Clone, Copy)]
pub struct Chunks<'a> {
    pub evaluator: &'a dyn Evaluator,
    /// The node's name.
    pub node: &'a str,
    /// The tensors that the run has made so far and is still to read.
    pub live: &'a dyn Fn() -> Vec<Tensor>,
}

impl Chunks<'_> {
    /// Evaluates the tensors that the first chunk reads, and all other tensors that the run is still to read: if the latter were left lazy,
    /// nodes that lead to both would be computed twice.
    pub fn begin(&self, tensors: Vec<Tensor>) -> Result<()> {
        let live = (self.live)();
        self.evaluate("what comes before", &tensors.iter().chain(&live).collect::<Vec<_>>())
    }

    /// Evaluates all steps in chunks and returns their results, joined along the first axis. `steps` records the steps of a range, and
    /// returns first their results along the first axis, then the state that the next range begins with. If `reverse` is set, the last
    /// steps come first.
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
        // Neighbours are joined in pairs until one block is left, so each element is copied log2(number of chunks) times. Blocks stay in
        // the order of evaluation, so that single steps are always last and joins have only three structures.
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
