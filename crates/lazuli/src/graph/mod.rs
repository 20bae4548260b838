//! What was written, not yet run: nodes of an immutable graph, held by tensors and by each other.
//! Knows ops and shapes; nothing of kernels, plans or how a device works.

mod capture;
mod display;
mod flight;
mod kin;
#[cfg(test)]
mod model;
mod node;
mod op;

pub use capture::{Captured, Graph, GraphNode, Key, NodeIdx, OpenConstant, capture, capture_given};
pub use flight::take_off;
#[cfg(test)]
pub use kin::LOOKED_AT;
pub use kin::{Kin, ancestry};
pub use node::{Buffer, Buffers, Expr, Node, NodeRef, Recipe};
pub use op::{Constant, CustomOp, CustomRef, Op, OpenNumber};
