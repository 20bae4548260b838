//! Where laziness ends: what is wanted is walked, its plan found or made, run, and the results put in place.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use crate::backend::{Counters, Failure, HostBytes, Outcome, Run, Runnable, Site};
use crate::device::Device;
use crate::error::{Error, Fault, Result};
use crate::graph::{Buffer, Captured, NodeRef, Op, capture};
use crate::log::{self, Topic};
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
    compute_for(tensors, Purpose::Keep)
}

/// [`compute`], as a future. Needs no async runtime, and blocks for no device.
///
/// ```
/// use lazuli::{Device, Tensor};
/// async fn both(x: &Tensor) -> lazuli::Result<(f32, f32)> {
///     let (sum, max) = (x.sum(..), x.max(..));
///     lazuli::compute_async(&[&sum, &max]).await?;
///     Ok((sum.item_async().await?, max.item_async().await?))
/// }
/// # let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu());
/// # let done = std::pin::pin!(both(&x)).poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
/// # assert!(matches!(done, std::task::Poll::Ready(Ok((6.0, 3.0)))));
/// ```
pub async fn compute_async(tensors: &[&Tensor]) -> Result<()> {
    compute_for_async(tensors, Purpose::Keep).await
}

/// Plans and compiles all that computing these tensors together needs, and runs nothing: the first [`compute`] of
/// them then compiles nothing.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let y = Tensor::arange(0.0, 4.0, 1.0, &cpu).exp();
/// lazuli::prepare(&[&y])?;
/// assert_eq!(y.to_vec::<f32>()?[0], 1.0);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn prepare(tensors: &[&Tensor]) -> Result<()> {
    let mut wanted = waiting(tensors)?;
    while let Some((device, here)) = next_device(&mut wanted) {
        let mut cache = lock(&device);
        let here: Vec<&NodeRef> = here.iter().collect();
        let captured = capture(&here);
        plan_for(&device, &mut cache, &captured)?;
    }
    Ok(())
}

/// What becomes of the results of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// They stay on the device.
    Keep,
    /// They are read at once.
    Read,
}

/// How a plan is run.
pub type Runner<'a> = &'a mut dyn FnMut(&dyn Runnable, Run<'_>) -> Result<Outcome>;

/// Computes several tensors together: one evaluation for each device.
#[track_caller]
pub fn compute_for(tensors: &[&Tensor], purpose: Purpose) -> Result<()> {
    let read = purpose == Purpose::Read;
    compute_with(tensors, &mut |runnable, run| runnable.run(Run { read, ..run }))
}

/// The same, each plan run as the caller says.
#[track_caller]
pub fn compute_with(tensors: &[&Tensor], runner: Runner<'_>) -> Result<()> {
    let wanted = waiting(tensors)?;
    compute_nodes(wanted.clone(), runner).inspect_err(|_| revert(&wanted))
}

fn compute_nodes(mut wanted: Vec<NodeRef>, runner: Runner<'_>) -> Result<()> {
    while let Some((device, here)) = next_device(&mut wanted) {
        loop {
            let moves = evaluate(&device, &here, runner)?;
            if moves.is_empty() {
                break;
            }
            for node in moves {
                let source = source_of(&node);
                compute_for(&[&Tensor::new(Ok(source.clone()))], Purpose::Read)?;
                let bytes = bytes_of(&source)?;
                node.complete(device.backend().upload(bytes)?);
            }
        }
    }
    Ok(())
}

/// The same without blocking.
pub async fn compute_for_async(tensors: &[&Tensor], purpose: Purpose) -> Result<()> {
    let wanted = waiting(tensors)?;
    compute_nodes_async(wanted.clone(), purpose).await.inspect_err(|_| revert(&wanted))
}

async fn compute_nodes_async(mut wanted: Vec<NodeRef>, purpose: Purpose) -> Result<()> {
    let read = purpose == Purpose::Read;
    while let Some((device, here)) = next_device(&mut wanted) {
        loop {
            let moves = evaluate(&device, &here, &mut |runnable, run| runnable.run(Run { read, ..run }))?;
            if moves.is_empty() {
                break;
            }
            for node in moves {
                let source = source_of(&node);
                Box::pin(compute_for_async(&[&Tensor::new(Ok(source.clone()))], Purpose::Read)).await?;
                let bytes = bytes_of_async(&source).await?;
                node.complete(device.backend().upload(bytes)?);
            }
        }
    }
    Ok(())
}

/// Of what was wanted and will not be computed, commits are what they were before, on whichever device they are.
fn revert(wanted: &[NodeRef]) {
    for node in wanted.iter().filter(|node| !node.is_ready()) {
        let _lock = lock(&node.device);
        node.revert();
    }
}

/// The bytes of a computed node. If its memory was lost with its device, it is computed again where that is possible.
pub fn read(node: &NodeRef, out: &mut [u8]) -> Result<()> {
    let backend = node.device.backend();
    match backend.download(&memory(node)?, out) {
        Err(Error::DeviceLost(_)) => {
            restore(node)?;
            compute_for(&[&Tensor::new(Ok(node.clone()))], Purpose::Read)?;
            backend.download(&memory(node)?, out)
        }
        done => done,
    }
}

/// [`read`] without blocking.
pub async fn read_async(node: &NodeRef, out: &mut [u8]) -> Result<()> {
    let backend = node.device.backend();
    let buffer = memory(node)?;
    match backend.download_async(&buffer, out).await {
        Err(Error::DeviceLost(_)) => {
            restore(node)?;
            Box::pin(compute_for_async(&[&Tensor::new(Ok(node.clone()))], Purpose::Read)).await?;
            let buffer = memory(node)?;
            backend.download_async(&buffer, out).await
        }
        done => done,
    }
}

fn memory(node: &NodeRef) -> Result<Buffer> {
    node.buffer().ok_or_else(|| Error::device("read", "the tensor's memory was given away"))
}

/// If a node's memory went with its device, makes it be computed again; an error if nobody knows how.
fn restore(node: &NodeRef) -> Result<bool> {
    let Some(error) = node.buffer().and_then(|buffer| node.device.backend().lost(&buffer)) else { return Ok(false) };
    if node.forget() {
        return Ok(true);
    }
    let what = format!("{}{} went with the device: {}", node.dtype, node.shape, error.fault().message);
    Err(Error::DeviceLost(Arc::new(Fault::new("compute", what).shapes(&[&node.shape]).at(node.at))))
}

/// The nodes of these tensors that are not computed yet.
fn waiting(tensors: &[&Tensor]) -> Result<Vec<NodeRef>> {
    let mut wanted = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let node = tensor.node()?;
        if !node.is_ready() {
            wanted.push(node.clone());
        }
    }
    Ok(wanted)
}

/// Takes from `wanted` all nodes of one device.
fn next_device(wanted: &mut Vec<NodeRef>) -> Option<(Device, Vec<NodeRef>)> {
    let device = wanted.first()?.device.clone();
    let (here, rest) = std::mem::take(wanted).into_iter().partition(|n| n.device == device);
    *wanted = rest;
    Some((device, here))
}

/// The node on another device that a moved one comes from.
fn source_of(node: &NodeRef) -> NodeRef {
    node.with_expr(|e| e.inputs[0].clone()).expect("a node yet to be moved has where it comes from")
}

fn bytes_of(node: &NodeRef) -> Result<HostBytes> {
    let mut bytes = vec![0u8; node.shape.n_elems() * node.dtype.size()];
    read(node, &mut bytes)?;
    Ok(HostBytes::aligned(bytes))
}

async fn bytes_of_async(node: &NodeRef) -> Result<HostBytes> {
    let mut bytes = vec![0u8; node.shape.n_elems() * node.dtype.size()];
    read_async(node, &mut bytes).await?;
    Ok(HostBytes::aligned(bytes))
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
    let plan = plan::compile(&captured.graph(), device.backend().limits());
    let mut explain = Explain::new(&plan);
    device.backend().describe(&plan, &mut explain);
    Ok(explain)
}

// A panic elsewhere cannot leave the cache half-changed, so a poisoned lock is still good.
fn lock(device: &Device) -> MutexGuard<'_, Cache> {
    device.cache().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs what is needed for these nodes of one device. If something must be brought from another device first, runs
/// nothing and returns that.
fn evaluate(device: &Device, wanted: &[NodeRef], runner: Runner<'_>) -> Result<Vec<NodeRef>> {
    let mut cache = lock(device);
    // Another thread may have computed them while this one waited.
    let wanted: Vec<&NodeRef> = wanted.iter().filter(|n| !n.is_ready()).collect();
    let mut lost_again = false;
    loop {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(error) = wanted.iter().find_map(|n| n.failure()) {
            return Err(error);
        }
        let captured = capture(&wanted);
        if !captured.moves.is_empty() {
            return Ok(captured.moves);
        }
        let mut restored = false;
        for leaf in &captured.leaves {
            restored |= restore(&captured.nodes[*leaf as usize])?;
        }
        if restored {
            continue;
        }
        match run(device, &mut cache, &captured, runner).map_err(|error| located(error, &captured, wanted[0])) {
            Ok(Ran { outputs, failed: None, .. }) => {
                wanted.iter().zip(outputs).for_each(|(node, buffer)| node.complete(buffer));
                return Ok(Vec::new());
            }
            // What was committed holds what it was before.
            Ok(Ran { outputs, failed: Some(error), settled }) => {
                let error = located(error, &captured, wanted[0]);
                let settled = settled.into_iter().chain(std::iter::repeat(false));
                for ((node, buffer), settled) in wanted.iter().zip(outputs).zip(settled) {
                    match settled {
                        true => node.complete(buffer),
                        false => give_up(node, &captured, &error),
                    }
                }
                return Err(error);
            }
            // The device is open again; what it held may be known still.
            Err(Error::DeviceLost(_)) if !lost_again => lost_again = true,
            Err(error) => {
                for node in wanted.iter().filter(|node| !node.revert()) {
                    give_up(node, &captured, &error);
                }
                return Err(error);
            }
        }
    }
}

/// Half-way through, an input that nobody else holds may have been overwritten: there is no second try.
fn give_up(node: &NodeRef, captured: &Captured, error: &Error) {
    if captured.donated.contains(&true) && !matches!(error, Error::OutOfMemory(_)) {
        node.fail(error);
    }
}

/// What a run left.
struct Ran {
    outputs: Vec<Buffer>,
    failed: Option<Error>,
    /// Per output, whether it is good even if something failed.
    settled: Vec<bool>,
}

/// A fault of the user's own op happened where the user called it; running out of memory, where the result was written.
fn located(error: Error, captured: &Captured, wanted: &NodeRef) -> Error {
    let fault = match &error {
        Error::Custom(fault) => fault,
        Error::OutOfMemory(fault) => return Error::OutOfMemory(Arc::new(Fault::clone(fault).at(wanted.at))),
        _ => return error,
    };
    let calls_it = |node: &&NodeRef| node.with_expr(|e| matches!(&e.op, Op::Custom(op) if op.0.name == fault.op));
    match captured.nodes.iter().find(|node| calls_it(node).unwrap_or(false)) {
        Some(node) => Error::Custom(Arc::new(Fault::clone(fault).at(node.at))),
        None => error,
    }
}

fn run(device: &Device, cache: &mut Cache, captured: &Captured, runner: Runner<'_>) -> Result<Ran> {
    let entry = plan_for(device, cache, captured)?;
    let leaf = |idx: &u32| captured.nodes[*idx as usize].buffer().expect("a node without a recipe is memory");
    let inputs: Vec<Buffer> = captured.leaves.iter().map(leaf).collect();
    let sites = sites(&entry.plan, captured);
    let start = log::wants(Topic::Time).then(Instant::now);
    let run = Run { inputs: &inputs, constants: &captured.constants, sites: &sites, read: false };
    let outcome = runner(&*entry.runnable, run)?;
    if let Some(start) = start {
        let (micros, n) = (start.elapsed().as_secs_f64() * 1e6, entry.plan.launches.len());
        log::show(Topic::Time, || format!("{micros:>10.1} µs  {n} kernels on {}", device.info().name));
    }
    let failed = outcome.failed.map(|failed| match failed {
        Failure::Index(check) => sites[check.check as usize].error(check),
        Failure::Custom(error) => error,
    });
    Ok(Ran { outputs: outcome.outputs, failed, settled: entry.plan.settled.clone() })
}

fn plan_for(device: &Device, cache: &mut Cache, captured: &Captured) -> Result<Entry> {
    let backend = device.backend();
    if let Some(entry) = cache.get(&captured.key) {
        Counters::count(&backend.counters().plan_hits, 1);
        return Ok(entry);
    }
    Counters::count(&backend.counters().plans_compiled, 1);
    let plan = Arc::new(plan::compile(&captured.graph(), backend.limits()));
    log::show(Topic::Plan, || plan.to_string());
    let runnable = backend.prepare(plan.clone())?;
    let entry = Entry { plan, runnable };
    cache.insert(captured.key.clone(), entry.clone());
    Ok(entry)
}

/// Where each check of a plan was written.
fn sites(plan: &plan::Plan, captured: &Captured) -> Vec<Site> {
    let site = |origin: &u32| {
        let node = &captured.nodes[*origin as usize];
        let op = node.with_expr(|e| e.op.name().to_string()).unwrap_or_default();
        Site { op, shape: node.shape, at: node.at }
    };
    plan.checks.iter().map(site).collect()
}
