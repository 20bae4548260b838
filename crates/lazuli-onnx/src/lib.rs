//! ONNX models on lazuli: a file is parsed without protoc, checked, and recorded lazily, node by node, as tensor ops of the
//! engine, which plans and fuses them. Integers that shapes are computed from stay on the host as i64; weights are uploaded
//! once.
//!
//! [`Model`] is where to start. `docs/onnx.md` lists which operators pass which of ONNX's own tests.

// Reading order; each module uses only what stands before it, but `infer`, which fills in what `model` declares, and
// `sequence` among the operators, which stacks as loops do.
mod proto;
mod fault;
mod elem;
mod host;
mod value;
mod literal;
mod graph;
mod chunks;
mod call;
mod ops;
mod resolve;
mod machine;
mod recorded;
mod evaluations;
mod infer;
mod model;
mod files;
mod example;

#[cfg(test)]
mod behaviour;
#[cfg(test)]
mod exactness;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod recurrences;

pub use elem::ElemType;
pub use evaluations::Evaluation;
pub use example::example_bytes;
pub use files::Outline;
pub use model::{Declared, Dim, Form, Model, Results};
pub use value::Value;
