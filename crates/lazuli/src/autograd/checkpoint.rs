//! Recomputing instead of keeping. In one plan, what the way back needs of the way forth is held until then; a checkpoint
//! makes it again from its inputs instead. Less memory, more work.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use super::rules;
use crate::error::Result;
use crate::graph::{CustomOp, Expr, Node, NodeRef};
use crate::place::Caller;
use crate::tensor::Tensor;

/// Hands a value on. The planner takes it for a function like any other, so what is computed from its result is not shared
/// with what is computed from its input: exactly that is its use.
static AGAIN: LazyLock<CustomOp> = LazyLock::new(|| CustomOp {
    name: "again".into(),
    wgsl: "$0".into(),
    cpu: Arc::new(|x| x[0]),
    grad: Some(Arc::new(|_, _, g| vec![g.clone()])),
});

/// `f(inputs)`, of which a gradient will need nothing to be kept but the inputs: on the way back, all that lies between is
/// computed a second time. `f` is called once. For long models in little memory, around each block.
///
/// Only within one plan is there anything to keep: where a loss is computed first and its gradient later, everything
/// between is computed again anyway.
///
/// ```
/// use lazuli::{Device, Tensor, checkpoint};
/// let cpu = Device::cpu();
/// let x = Tensor::rand([256, 64], 1, &cpu).compute()?;
/// let w = Tensor::rand([64, 64], 2, &cpu).compute()?;
/// let block = |x: &[Tensor]| (0..6).fold(x[0].clone(), |x, _| x.matmul(&w).tanh());
/// let deep = |kept: bool| {
///     let y = (0..8).fold(x.clone(), |x, _| if kept { block(&[x]) } else { checkpoint(&[&x], block) });
///     y.sum(..).grad(&[&x]).swap_remove(0)
/// };
/// assert!(deep(false).explain()?.peak_temp_bytes < deep(true).explain()?.peak_temp_bytes / 2);
/// assert_eq!(deep(false).to_vec::<f32>()?, deep(true).to_vec::<f32>()?);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn checkpoint(inputs: &[&Tensor], f: impl FnOnce(&[Tensor]) -> Tensor) -> Tensor {
    let y = f(&inputs.iter().map(|x| (*x).clone()).collect::<Vec<_>>());
    let at = Location::caller();
    let _caller = Caller::of_engine(at);
    Tensor::attempt(|| {
        let node = y.node()?;
        Ok(super::twinned(node, rebuilt(node, inputs)?, at))
    })
}

/// The same recipe as that of `y`, with the inputs handed on by [`AGAIN`]. What does not depend on them is shared.
fn rebuilt(y: &NodeRef, inputs: &[&Tensor]) -> Result<NodeRef> {
    let mut known: HashMap<*const Node, NodeRef> = HashMap::new();
    for x in inputs {
        let node = x.node()?;
        // Integers have no gradient, and nothing is kept of them.
        if node.dtype.is_float() {
            let again = Tensor::map_custom(&AGAIN, &[*x]).to_dtype(node.dtype);
            known.insert(Arc::as_ptr(node), again.node()?.clone());
        }
    }
    let mut stack: Vec<(NodeRef, bool)> = vec![(y.clone(), false)];
    while let Some((node, is_open)) = stack.pop() {
        let place = Arc::as_ptr(&node);
        if known.contains_key(&place) {
            continue;
        }
        let below: SmallVec<[NodeRef; 3]> = node.with_expr(|e| e.inputs.clone()).unwrap_or_default();
        if !is_open {
            stack.push((node, true));
            stack.extend(below.into_iter().map(|input| (input, false)));
            continue;
        }
        let new: SmallVec<[NodeRef; 3]> = below.iter().map(|i| known[&Arc::as_ptr(i)].clone()).collect();
        let is_same = below.iter().zip(&new).all(|(a, b)| Arc::ptr_eq(a, b));
        let op = if is_same { None } else { node.with_expr(|e| e.op.clone()) };
        let made = match op {
            None => node.clone(),
            Some(op) => {
                let (expr, device) = (Expr { op, inputs: new }, node.device.clone());
                match rules::is_barrier(&node) {
                    true => Node::detached(expr, node.shape, node.dtype, device, node.at),
                    false => Node::new(expr, node.shape, node.dtype, device, node.at, node.tracked),
                }
            }
        };
        known.insert(place, made);
    }
    Ok(known[&Arc::as_ptr(y)].clone())
}
