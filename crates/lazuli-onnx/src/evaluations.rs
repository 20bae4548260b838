//! The evaluations of a run, told: what [`explain`](lazuli::explain) says of each, in the order in which a run makes them.

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
    /// What is evaluated, by the name of the node that needs it. Evaluations of one name do the same at other sizes, or for other
    /// steps.
    pub of: String,
    /// Its plan.
    pub explain: Explain,
    /// Bytes of what it gives.
    pub result_bytes: usize,
}

/// Notes what is evaluated before it is.
#[derive(Default)]
pub struct Explainer(RefCell<Vec<Evaluation>>);

impl Explainer {
    /// Notes an evaluation that is yet to be made.
    pub fn note(&self, what: &str, tensors: &[&Tensor]) -> Result<()> {
        let explain = lazuli::explain(tensors)?;
        let mut result_bytes = 0;
        for tensor in tensors {
            result_bytes += tensor.shape()?.iter().product::<usize>() * tensor.dtype()?.size();
        }
        self.0.borrow_mut().push(Evaluation { of: what.to_string(), explain, result_bytes });
        Ok(())
    }

    /// All that were noted.
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
