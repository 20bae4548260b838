//! Where laziness ends: what is wanted is walked, its plan found or made, run, and the results put in place.

use std::sync::{Arc, MutexGuard, PoisonError};

use crate::backend::{Counters, FailedCheck};
use crate::device::Device;
use crate::error::{Error, Fault, Result};
use crate::graph::{Buffer, Captured, NodeRef, capture};
use crate::plan::{self, Cache, Entry, Explain};
use crate::tensor::Tensor;

/// Computes several tensors together: one plan, one submit. They stay on their device.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu());
/// let (sum, max) = (x.sum(..), x.max(..));
/// lazuli::compute(&[&sum, &max])?;
/// assert_eq!((sum.item::<f32>()?, max.item::<f32>()?), (6.0, 3.0));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn compute(tensors: &[&Tensor]) -> Result<()> {
    let mut wanted = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let node = tensor.node()?;
        if !node.is_ready() {
            wanted.push(node);
        }
    }
    // One evaluation per device.
    while let Some(first) = wanted.first() {
        let device = first.device.clone();
        let (here, rest): (Vec<&NodeRef>, Vec<&NodeRef>) = wanted.iter().partition(|n| n.device == device);
        evaluate(&device, &here)?;
        wanted = rest;
    }
    Ok(())
}

/// [`compute`], as a future. Needs no async runtime.
pub async fn compute_async(tensors: &[&Tensor]) -> Result<()> {
    compute(tensors)
}

/// What computing these tensors together would do: kernels, memory, and what stood in the way of doing less.
/// Tensors already computed cost nothing and show nothing.
#[track_caller]
pub fn explain(tensors: &[&Tensor]) -> Result<Explain> {
    let mut nodes = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        nodes.push(tensor.node()?);
    }
    let wanted: Vec<&NodeRef> = nodes.into_iter().filter(|n| !n.is_ready()).collect();
    let Some(first) = wanted.first() else { return Ok(Explain::default()) };
    let device = first.device.clone();
    if wanted.iter().any(|n| n.device != device) {
        return Err(Error::device("explain", "the tensors are on different devices; explain those of one at a time"));
    }
    // Nothing runs, so nothing is donated that would not be when it does: the plan is the one `compute` would use.
    let _lock = lock(&device);
    let captured = capture(&wanted);
    Ok(Explain::new(&plan::compile(&captured.graph(), device.backend().limits())))
}

// A panic elsewhere cannot leave the cache half-changed, so a poisoned lock is still good.
fn lock(device: &Device) -> MutexGuard<'_, Cache> {
    device.cache().lock().unwrap_or_else(PoisonError::into_inner)
}

fn evaluate(device: &Device, wanted: &[&NodeRef]) -> Result<()> {
    let mut cache = lock(device);
    // Another thread may have computed them while this one waited.
    let wanted: Vec<&NodeRef> = wanted.iter().copied().filter(|n| !n.is_ready()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    if let Some(error) = wanted.iter().find_map(|n| n.failure()) {
        return Err(error);
    }
    let captured = capture(&wanted);
    let entry = plan_for(device, &mut cache, &captured)?;
    let leaf = |idx: &u32| captured.nodes[*idx as usize].buffer().expect("a node without a recipe is memory");
    let inputs: Vec<Buffer> = captured.leaves.iter().map(leaf).collect();
    let done = entry.runnable.run(&inputs, &captured.constants).and_then(|outcome| match outcome.failed {
        Some(failed) => Err(index_error(&entry.plan, &captured, failed)),
        None => Ok(outcome.outputs),
    });
    match done {
        Ok(outputs) => wanted.iter().zip(outputs).for_each(|(node, buffer)| node.complete(buffer)),
        // Half-way through, an input that nobody else holds may have been overwritten: there is no second try.
        Err(error) if captured.donated.contains(&true) && !matches!(error, Error::OutOfMemory(_)) => {
            wanted.iter().for_each(|n| n.fail(&error));
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn plan_for(device: &Device, cache: &mut Cache, captured: &Captured) -> Result<Entry> {
    let backend = device.backend();
    if let Some(entry) = cache.get(&captured.key) {
        Counters::count(&backend.counters().plan_hits, 1);
        return Ok(entry);
    }
    Counters::count(&backend.counters().plans_compiled, 1);
    let plan = Arc::new(plan::compile(&captured.graph(), backend.limits()));
    let runnable = backend.prepare(plan.clone())?;
    let entry = Entry { plan, runnable };
    cache.insert(captured.key.clone(), entry.clone());
    Ok(entry)
}

/// The error of an index out of range, at the line where the op was written.
fn index_error(plan: &plan::Plan, captured: &Captured, failed: FailedCheck) -> Error {
    let node = &captured.nodes[plan.checks[failed.check as usize] as usize];
    let op = node.with_expr(|e| e.op.name().to_string()).unwrap_or_default();
    let message = format!("index {} is out of range for an axis of size {}", failed.index, failed.bound);
    Error::Index(Arc::new(Fault::new(op, message).shapes(&[&node.shape]).at(node.at)))
}
