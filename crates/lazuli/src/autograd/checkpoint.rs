//! Recomputing instead of keeping. In one plan, the values of the forward pass that the backward pass needs are held until it reads them; a checkpoint
//! makes it again from its inputs instead. Less memory, more work.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Arc, LazyLock};

use smallvec::SmallVec;

use crate::error::Result;
use crate::graph::{CustomOp, Expr, Node, NodeRef, Op, Recipe};
use crate::place::Caller;
use crate::tensor::Tensor;

/// Hands a value on. The planner takes it for a function like any other, so what is computed from its result is not shared
/// with what is computed from its input: exactly that is its use.
static RECOMPUTE: LazyLock<CustomOp> = LazyLock::new(|| CustomOp {
    name: "again".into(),
    wgsl: "$0".into(),
    cpu: Arc::new(|x| x[0]),
    grad: Some(Arc::new(|_, _, g| vec![g.clone()])),
});

/// `f(inputs)`, of which a gradient will need nothing to be kept but the inputs: in the backward pass, all that lies between is
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

/// The same recipe as that of `y`, with the inputs handed on by [`RECOMPUTE`]. What does not depend on them is shared.
fn rebuilt(y: &NodeRef, inputs: &[&Tensor]) -> Result<NodeRef> {
    // By serial number: another thread may compute and drop what this has passed, and addresses are used again.
    let mut known: HashMap<u64, NodeRef> = HashMap::new();
    for x in inputs {
        let node = x.node()?;
        // Integers have no gradient, and nothing is kept of them.
        if node.dtype.is_float() {
            let again = Tensor::map_custom(&RECOMPUTE, &[*x]).to_dtype(node.dtype);
            known.insert(node.serial, again.node()?.clone());
        }
    }
    type Opened = (Op, SmallVec<[NodeRef; 3]>, Option<NodeRef>);
    let mut stack: Vec<(NodeRef, Option<Opened>)> = vec![(y.clone(), None)];
    while let Some((node, opened)) = stack.pop() {
        if known.contains_key(&node.serial) {
            continue;
        }
        let Some((op, below, twin)) = opened else {
            match node.recipe() {
                Recipe::Known { op, inputs, twin } => {
                    let next: SmallVec<[NodeRef; 4]> = inputs.iter().chain(&twin).cloned().collect();
                    stack.push((node, Some((op, inputs, twin))));
                    stack.extend(next.into_iter().map(|input| (input, None)));
                }
                Recipe::Ended(_) => {
                    known.insert(node.serial, node);
                }
                Recipe::Failed(error) => return Err(error),
            }
            continue;
        };
        let new: SmallVec<[NodeRef; 3]> = below.iter().map(|i| known[&i.serial].clone()).collect();
        let new_twin = twin.as_ref().map(|twin| known[&twin.serial].clone());
        let is_same = |(a, b): (&NodeRef, &NodeRef)| Arc::ptr_eq(a, b);
        let made = match below.iter().zip(&new).all(is_same) && twin.iter().zip(&new_twin).all(is_same) {
            true => node.clone(),
            false => {
                let old = Expr { op, inputs: below };
                let is_detached = !node.tracked && old.is_identity();
                let (expr, device) = (Expr { op: old.op, inputs: new }, node.device.clone());
                match new_twin {
                    Some(twin) => Node::twinned(expr, twin, node.at),
                    None if is_detached => Node::detached(expr, node.shape, node.dtype, device, node.at),
                    None => Node::new(expr, node.shape, node.dtype, device, node.at, node.tracked),
                }
            }
        };
        known.insert(node.serial, made);
    }
    Ok(known[&y.serial].clone())
}
