//! Explains the evaluations of a run: the [`explain`](lazuli::explain) of each, in the order in which a run makes them.

use std::cell::RefCell;

use lazuli::{Explain, Result, Tensor};

use crate::chunks::Evaluator;

/// One of the evaluations that [`Model::infer`](crate::Model::infer) makes: of its outputs, of a number that decides about a shape
/// or a branch, or of some steps of a recurrence.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let cpu = Device::cpu();
/// # let model = lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
/// let evaluations = model.explain(&[("x", &x)])?;
/// assert_eq!((evaluations.len(), evaluations[0].of.as_str()), (1, "outputs"));
/// assert_eq!((evaluations[0].explain.kernels.len(), evaluations[0].result_bytes), (1, 8));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Evaluation {
    /// Which evaluation it is, by the name of the node that needs it. Evaluations with one name differ only in sizes, or in the steps of
    /// a recurrence.
    pub of: String,
    /// Its plan.
    pub explain: Explain,
    /// Bytes of the tensors that the evaluation computes.
    pub result_bytes: usize,
}

/// Explains each evaluation of a run before it makes the evaluation.
#[derive(Default)]
pub struct Explainer(RefCell<Vec<Evaluation>>);

impl Explainer {
    /// Explains an evaluation that is yet to be made.
    pub fn note(&self, what: &str, tensors: &[&Tensor]) -> Result<()> {
        let explain = lazuli::explain(tensors)?;
        let mut result_bytes = 0;
        for tensor in tensors {
            result_bytes += tensor.shape()?.iter().product::<usize>() * tensor.dtype()?.size();
        }
        self.0.borrow_mut().push(Evaluation { of: what.to_string(), explain, result_bytes });
        Ok(())
    }

    /// All evaluations that were explained, in order.
    pub fn into_evaluations(self) -> Vec<Evaluation> {
        self.0.into_inner()
    }
}

impl Evaluator for Explainer {
    fn evaluate(&self, what: &str, tensors: &[&Tensor]) -> Result<()> {
        self.note(what, tensors)?;
        lazuli::compute(tensors)
    }
}
