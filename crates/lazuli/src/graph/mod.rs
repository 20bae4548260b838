//! What was written, not yet run: nodes of an immutable graph, held by tensors and by each other.
//! Knows ops and shapes; nothing of kernels, plans or how a device works.

mod capture;
mod node;
mod op;

pub use capture::{Captured, Graph, GraphNode, Key, NodeIdx, capture};
pub use node::{Buffer, Expr, Node, NodeRef};
pub use op::{CustomOp, CustomRef, Op};
