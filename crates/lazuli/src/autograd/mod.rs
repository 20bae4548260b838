//! Gradients, graph to graph: from a loss back to what it was made of, by the rules of the ops on the way. A gradient is
//! recorded like anything else: it is lazy, it fuses with what it came from, and it has gradients itself.
//! Knows ops by family; nothing of plans or devices.

mod checkpoint;
mod rules;
mod views;
#[cfg(test)]
pub mod tests;

pub use checkpoint::checkpoint;

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::error::{Error, Fault, Result, counted};
use crate::graph::{Expr, Kin, Node, NodeRef, Op, Recipe, ancestry};
use crate::place::Caller;
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// The gradients of this, a single float, with respect to each of `wrt`. Each has the shape and dtype of its tensor;
    /// what this does not depend on gets zeros.
    ///
    /// A tensor that was computed has let go of what it was made of, unless that was [`tracked`](Tensor::tracked).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let w = Tensor::from_slice(&[1.0f32, -2.0], [2], &Device::cpu()).tracked();
    /// let loss = w.square().sum(..);
    /// assert_eq!(loss.item::<f32>()?, 5.0);
    /// assert_eq!(loss.grad(&[&w])[0].to_vec::<f32>()?, [2.0, -4.0]);
    /// // A gradient can be differentiated again.
    /// let slope = loss.grad(&[&w])[0].sum(..);
    /// assert_eq!(slope.grad(&[&w])[0].to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn grad(&self, wrt: &[&Tensor]) -> Vec<Tensor> {
        let at = Location::caller();
        let _caller = Caller::of_engine(at);
        spread(wrt, single(self, at).and_then(|loss| backward(loss, &self.ones_like(), wrt, at)))
    }

    /// The gradients of `Σ self · seed` with respect to each of `wrt`: what reverse mode calls a vector-Jacobian product.
    /// `seed` has the shape of this tensor, or broadcasts to it.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
    /// let seed = Tensor::from_slice(&[10.0f32, 1.0], [2], &cpu);
    /// assert_eq!(x.square().vjp(&[&x], &seed)[0].to_vec::<f32>()?, [20.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn vjp(&self, wrt: &[&Tensor], seed: &Tensor) -> Vec<Tensor> {
        let at = Location::caller();
        let _caller = Caller::of_engine(at);
        let started = || {
            let y = float("vjp", self, at)?;
            let seed = seed.to_dtype(y.dtype).broadcast_to(y.shape);
            seed.check()?;
            backward(y, &seed, wrt, at)
        };
        spread(wrt, started())
    }

    /// These values with the gradients of `twin`, which has the same shape and dtype and is never computed itself: for what
    /// has a better gradient than its own ops would give it.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// // Rounded in the forward pass, as if it were not in the backward pass.
    /// let x = Tensor::from_slice(&[0.4f32, 1.7], [2], &Device::cpu()).tracked();
    /// let y = x.round().with_gradient_of(&x);
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0]);
    /// assert_eq!(y.square().sum(..).grad(&[&x])[0].to_vec::<f32>()?, [0.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn with_gradient_of(&self, twin: &Tensor) -> Tensor {
        let at = Location::caller();
        let _caller = Caller::of_engine(at);
        Tensor::attempt(|| {
            let (node, twin) = (self.node()?, twin.node()?);
            if (node.shape, node.dtype) != (twin.shape, twin.dtype) {
                let (this, that) = (format!("{} {}", node.dtype, node.shape), format!("{} {}", twin.dtype, twin.shape));
                let message = format!("{this} cannot have the gradient of {that}; bring both to one shape and dtype");
                return Err(grad_error("with_gradient_of", message, at));
            }
            Ok(twinned(node, twin.clone(), at))
        })
    }

    /// How this moves when each of `wrt` moves along its `direction`: a Jacobian-vector product.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
    /// let direction = Tensor::from_slice(&[1.0f32, 0.5], [2], &cpu);
    /// assert_eq!(x.square().jvp(&[&x], &[&direction]).to_vec::<f32>()?, [2.0, 2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn jvp(&self, wrt: &[&Tensor], directions: &[&Tensor]) -> Tensor {
        let at = Location::caller();
        let _caller = Caller::of_engine(at);
        if wrt.len() != directions.len() {
            let message = format!("{}, but {}", counted(wrt.len(), "tensor"), counted(directions.len(), "direction"));
            return Tensor::new(Err(grad_error("jvp", message, at)));
        }
        // The vector-Jacobian product is linear in its seed u: d(Jᵀu · v)/du = J v, whatever u is.
        let seed = self.zeros_like().detach();
        let back = self.vjp(wrt, &seed);
        let moved = back.iter().zip(directions).map(|(g, v)| g.mul(*v).sum(..));
        match moved.reduce(|a, b| a.add(b)) {
            Some(sum) => sum.grad(&[&seed]).swap_remove(0),
            None => self.zeros_like(),
        }
    }
}

/// The values of `node`, whose gradients go through `twin`.
fn twinned(node: &NodeRef, twin: NodeRef, at: &'static Location<'static>) -> Tensor {
    let expr = Expr { op: Op::View(Arc::new(View::contiguous(node.shape))), inputs: smallvec![node.clone()] };
    Tensor::new(Ok(Node::twinned(expr, twin, at)))
}

/// One result per tensor of `wrt`, the error in place of each if there is one.
fn spread(wrt: &[&Tensor], result: Result<Vec<Tensor>>) -> Vec<Tensor> {
    result.unwrap_or_else(|error| wrt.iter().map(|_| Tensor::new(Err(error.clone()))).collect())
}

fn grad_error(op: &str, message: impl Into<String>, at: &'static Location<'static>) -> Error {
    Error::Grad(Arc::new(Fault::new(op, message).at(at)))
}

/// The node, if it is a float.
fn float<'a>(op: &str, y: &'a Tensor, at: &'static Location<'static>) -> Result<&'a NodeRef> {
    let node = y.node()?;
    match node.dtype.is_float() {
        true => Ok(node),
        false => {
            let message = format!("{} has no gradient; cast it to a float with to_dtype first", node.dtype);
            Err(grad_error(op, message, at))
        }
    }
}

/// The node, if it is one float.
fn single<'a>(loss: &'a Tensor, at: &'static Location<'static>) -> Result<&'a NodeRef> {
    let node = float("grad", loss, at)?;
    if node.shape.n_elems() == 1 {
        return Ok(node);
    }
    let hint = "take .sum(..) or .mean(..) first, or give each element a weight with vjp";
    Err(grad_error("grad", format!("the loss has shape {}, not one element; {hint}", node.shape), at))
}

/// A node of the backward pass, with what it was computed from: none where history ends.
struct HistoryStep {
    node: NodeRef,
    op: Op,
    inputs: SmallVec<[usize; 3]>,
    /// Where history ends in a node that was computed: the token that leads to what it was computed from.
    ended: Option<Arc<Kin>>,
}

/// Walks from `y` to all it was made of, inputs first, without recursion.
fn history(y: &NodeRef) -> Result<Vec<HistoryStep>> {
    let mut steps: Vec<HistoryStep> = Vec::new();
    let mut place: HashMap<*const Node, usize> = HashMap::new();
    type Opened = (Op, SmallVec<[NodeRef; 3]>, Option<Arc<Kin>>);
    let mut stack: Vec<(NodeRef, Option<Opened>)> = vec![(y.clone(), None)];
    while let Some((node, opened)) = stack.pop() {
        if place.contains_key(&Arc::as_ptr(&node)) {
            continue;
        }
        let Some((op, inputs, ended)) = opened else {
            let is_barrier = rules::is_barrier(&node);
            let (op, inputs, ended): Opened = match node.recipe() {
                // A cast to its own dtype: gradients pass unchanged.
                Recipe::Known { twin: Some(twin), .. } => (Op::Cast, SmallVec::from_iter([twin]), None),
                Recipe::Known { .. } if is_barrier => (Op::Data, SmallVec::new(), None),
                Recipe::Known { op, inputs, .. } => (op, inputs, None),
                Recipe::Ended(kin) => (Op::Data, SmallVec::new(), kin),
                Recipe::Failed(error) => return Err(error),
            };
            let below: SmallVec<[NodeRef; 3]> =
                inputs.iter().filter(|i| !place.contains_key(&Arc::as_ptr(i))).cloned().collect();
            stack.push((node, Some((op, inputs, ended))));
            stack.extend(below.into_iter().map(|i| (i, None)));
            continue;
        };
        let inputs: SmallVec<[usize; 3]> = inputs.iter().map(|i| place[&Arc::as_ptr(i)]).collect();
        place.insert(Arc::as_ptr(&node), steps.len());
        steps.push(HistoryStep { node, op, inputs, ended });
    }
    Ok(steps)
}

/// Per step, which targets (by their places) its node was computed from before it let go of its history.
type Lost = HashMap<usize, Vec<usize>>;

fn lost(steps: &[HistoryStep], targets: &[&NodeRef]) -> Lost {
    // What depends on a tracked tensor never lets go of its history.
    let untracked: Vec<usize> = (0..targets.len()).filter(|t| !targets[*t].tracked).collect();
    let ended = |(i, step): (usize, &HistoryStep)| step.ended.as_ref().map(|kin| (i, kin.clone()));
    let (places, roots): (Vec<usize>, Vec<Arc<Kin>>) = steps.iter().enumerate().filter_map(ended).unzip();
    let mut lost = Lost::new();
    for some in untracked.chunks(64).filter(|_| !roots.is_empty()) {
        let serials: Vec<u64> = some.iter().map(|t| targets[*t].serial).collect();
        for (place, mask) in places.iter().zip(ancestry(&roots, &serials)).filter(|(_, mask)| *mask != 0) {
            let missing = some.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            lost.entry(*place).or_default().extend(missing.map(|(_, t)| *t));
        }
    }
    lost
}

/// Per step, whether it depends on something a gradient was asked for.
fn wanted(steps: &[HistoryStep], targets: &[&NodeRef], lost: &Lost) -> Vec<bool> {
    let mut wanted: Vec<bool> = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let is_target = targets.iter().any(|target| Arc::ptr_eq(target, &step.node));
        let depends = is_target || lost.contains_key(&i) || step.inputs.iter().any(|input| wanted[*input]);
        wanted.push(depends && step.node.dtype.is_float());
    }
    wanted
}

/// The gradients of `Σ y · seed`. Linear in nodes: each is visited once, after all that use it.
fn backward(y: &NodeRef, seed: &Tensor, wrt: &[&Tensor], at: &'static Location<'static>) -> Result<Vec<Tensor>> {
    let mut targets = Vec::with_capacity(wrt.len());
    for w in wrt {
        targets.push(float("grad", w, at)?);
    }
    let steps = history(y)?;
    let lost = lost(&steps, &targets);
    let is_wanted = wanted(&steps, &targets, &lost);
    let mut grads: Vec<Option<Tensor>> = vec![None; steps.len()];
    if let Some(last) = grads.last_mut() {
        *last = Some(seed.clone());
    }
    let mut found: Vec<Option<Tensor>> = vec![None; targets.len()];
    for (i, step) in steps.iter().enumerate().rev() {
        let Some(g) = grads[i].take() else { continue };
        // A gradient that reaches what has let go of its history should have gone on to these.
        for target in lost.get(&i).into_iter().flatten() {
            found[*target] = Some(Tensor::new(Err(released(&step.node, &targets, at))));
        }
        for (target, found) in targets.iter().zip(&mut found) {
            if Arc::ptr_eq(target, &step.node) && found.as_ref().is_none_or(|g| g.check().is_ok()) {
                *found = Some(g.clone());
            }
        }
        if !step.inputs.iter().any(|input| is_wanted[*input]) {
            continue;
        }
        let inputs: SmallVec<[Tensor; 3]> =
            step.inputs.iter().map(|input| Tensor::new(Ok(steps[*input].node.clone()))).collect();
        let wanted: SmallVec<[bool; 3]> = step.inputs.iter().map(|input| is_wanted[*input]).collect();
        let parts = rules::gradients(&step.op, &inputs, &Tensor::new(Ok(step.node.clone())), &g, &wanted);
        for (&input, part) in step.inputs.iter().zip(parts) {
            let Some(part) = part.filter(|_| is_wanted[input]) else { continue };
            let part = part.to_dtype(steps[input].node.dtype);
            grads[input] = Some(match grads[input].take() {
                Some(sum) => sum.add(part),
                None => part,
            });
        }
    }
    let zeros = |target: &NodeRef| Tensor::new(Ok(target.clone())).zeros_like();
    Ok(targets.iter().zip(found).map(|(target, found)| found.unwrap_or_else(|| zeros(target))).collect())
}

/// The error of a gradient that ends in a node which was computed from what it should go on to.
fn released(lost: &Node, targets: &[&NodeRef], at: &'static Location<'static>) -> Error {
    let is_target = targets.iter().any(|target| std::ptr::eq(&***target, lost));
    let (what, cure) = match is_target {
        true => (
            "one that you differentiate by",
            "it was made of another that you differentiate by: if it should count as a value of its own, as in a loop of \
             updates, take its detach()",
        ),
        false => (
            "on the way",
            "make what you differentiate by tracked(), or ask for the gradient before computing; if it should count as a \
             constant, take its detach()",
        ),
    };
    let message = format!(
        "a tensor of shape {} {what} (made at {}:{}) was computed and has let go of its history; {cure}",
        lost.shape,
        lost.at.file(),
        lost.at.line(),
    );
    grad_error("grad", message, at)
}
