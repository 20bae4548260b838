//! Where laziness ends: what is wanted is walked, its plan found or made, run, and the results put in place.

mod stage_calls;

use std::panic::Location;
use std::sync::Arc;
use std::time::Instant;

use smallvec::{SmallVec, smallvec};

use crate::awaited;
use crate::backend::{Counters, Failure, HostBytes, InputNodes, Outcome, Run, Runnable, Site};
use crate::device::{Device, DeviceKind};
use crate::dtype::DType;
use crate::error::{Error, Fault, Result, counted};
use crate::graph::{Buffer, Buffers, Captured, Expr, Node, NodeRef, Op, capture, take_off};
use crate::log::{self, Topic};
use crate::place::Caller;
use crate::plan::{self, Cache, CachedPlan, Explain, Locked, Made, ToldPlan};
use crate::room::zeroed_bytes;
use crate::tensor::Tensor;
use crate::user::{self, CalledBy};
use crate::view::View;
use stage_calls::StageCalls;

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

/// [`compute`], as a future: a thread of the device's own computes, and the future is woken when it is done. Polling takes
/// no longer than handing this over, and no async runtime is needed.
///
/// Nothing happens before the first poll. A future may be dropped at any time: what has not begun is given up, what has is
/// finished, and its results are kept by the tensors.
///
/// ```
/// use lazuli::{Device, Tensor};
/// async fn both(x: &Tensor) -> lazuli::Result<(f32, f32)> {
///     let (sum, max) = (x.sum(..), x.max(..));
///     lazuli::compute_async(&[&sum, &max]).await?;
///     Ok((sum.item_async().await?, max.item_async().await?))
/// }
/// # let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu());
/// # let mut future = std::pin::pin!(both(&x));
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # let done = loop {
/// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
/// #     std::thread::yield_now();
/// # };
/// # assert!(matches!(done, Ok((6.0, 3.0))));
/// ```
#[track_caller]
pub fn compute_async(tensors: &[&Tensor]) -> impl Future<Output = Result<()>> + Send {
    compute_async_at(tensors, Location::caller())
}

/// The same for a call that the user made elsewhere.
pub async fn compute_async_at(tensors: &[&Tensor], at: &'static Location<'static>) -> Result<()> {
    if !awaited::HAS_THREADS {
        return compute_for_async(tensors, Purpose::Keep).await;
    }
    let wanted = waiting(tensors)?;
    let Some(device) = wanted.first().map(|first| first.device.clone()) else { return Ok(()) };
    let call = move || {
        let wanted: Vec<Tensor> = wanted.into_iter().map(|node| Tensor::new(Ok(node))).collect();
        compute_for(&wanted.iter().collect::<Vec<_>>(), Purpose::Keep)
    };
    awaited(&device, at, call).await
}

/// Has a blocking call made by a thread of the device. It must hold wanted nodes only: whoever else holds an input keeps
/// its memory from being reused.
pub async fn awaited<T: Send + 'static>(
    device: &Device,
    at: &'static Location<'static>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    device.lane().run(call).await.map_err(|error| error.called_at(at))
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
    let _caller = Caller::of_engine(Location::caller());
    let mut wanted = waiting(tensors)?;
    while let Some((device, here)) = next_device(&mut wanted) {
        let mut cache = lock("prepare", &device)?;
        let here: Vec<&NodeRef> = here.iter().collect();
        let captured = capture(&here, &[]);
        plan_for(&device, &mut cache, &captured)?;
        captured.recycle();
    }
    Ok(())
}

/// Computes tensors in stages: all of them by one plan, those of the first list first. What an earlier stage computes and a
/// later one needs is kept, so that nothing is computed twice. Where a device computes by itself, as GPUs do, all stages are
/// handed over at once, one submit each, and reading a tensor waits for its stage alone: copies of at most 64 MiB are on
/// their way to the host as soon as a stage ends.
///
/// All tensors are on one device. A tensor that is in two lists belongs to the first; one that is computed already takes
/// no time. If a stage fails, what the stages before it made stays; what waits for every check
/// ([`unless_failed`](Tensor::unless_failed)) waits for those of all stages.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::rand([64, 64], 1, &Device::cpu());
/// let w = [1, 2].map(|seed| Tensor::rand([64, 64], seed, &Device::cpu()));
/// let loss = x.matmul(&w[0]).relu().matmul(&w[1]).sum(..);
/// let grads = loss.grad(&[&w[0], &w[1]]);
/// // The last layer's gradient is there first.
/// lazuli::compute_staged(&[&[&grads[1]], &[&grads[0]]])?;
/// assert_eq!(grads[0].shape()?, [64, 64]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn compute_staged(stages: &[&[&Tensor]]) -> Result<()> {
    let _caller = Caller::of_engine(Location::caller());
    compute_stages("compute_staged", stages, &mut |_| Ok(()))
}

/// [`compute_staged`], and a call of `f` with each stage's number, in order, once its tensors can be read: to send gradients
/// on their way while the rest of them is computed. On the CPU the next stage begins when `f` returns, so it should start
/// things, not wait for them, and it cannot evaluate on the CPU. On a GPU all stages are under way when `f` is first called,
/// and what it reads is waited for.
///
/// If `f` returns an error it is not called again; the stages are computed all the same, and the error is returned.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::arange(0.0, 4.0, 1.0, &Device::cpu());
/// let (first, second) = (x.exp(), x.exp().sum(..));
/// let mut sent: Vec<Vec<f32>> = Vec::new();
/// lazuli::compute_staged_with(&[&[&first], &[&second]], |stage| {
///     sent.push([&first, &second][stage].to_vec()?);
///     Ok(())
/// })?;
/// assert_eq!(sent[1], [sent[0].iter().sum::<f32>()]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn compute_staged_with(stages: &[&[&Tensor]], mut f: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let _caller = Caller::of_engine(Location::caller());
    compute_stages("compute_staged_with", stages, &mut f)
}

#[track_caller]
fn compute_stages(op: &str, stages: &[&[&Tensor]], f: &mut dyn FnMut(usize) -> Result<()>) -> Result<()> {
    let calls = StageCalls::of(f);
    if let Some(asked) = asked(op, stages)? {
        let agenda = smallvec![EvalStep::Evaluate(asked)];
        follow(agenda, &calls, &mut |runnable, run| runnable.run(run))
            .inspect_err(|_| stages.iter().for_each(|tensors| revert(tensors)))?;
    }
    calls.finish(stages.len())
}

/// The nodes of these tensors that are not computed yet, which must be of one device; None if there are none.
#[track_caller]
fn asked(op: &str, stages: &[&[&Tensor]]) -> Result<Option<Asked>> {
    let (mut nodes, mut ends) = (Wanted::new(), Vec::with_capacity(stages.len()));
    for tensors in stages {
        nodes.extend(waiting(tensors)?);
        ends.push(nodes.len());
    }
    let Some(first) = nodes.first() else { return Ok(None) };
    let device = first.device.clone();
    if nodes.iter().any(|node| node.device != device) {
        let message = "the tensors are on different devices; give it those of one at a time";
        return Err(Error::device(op, message));
    }
    // One stage is none.
    let stages = if stages.len() > 1 { ends } else { Vec::new() };
    Ok(Some(Asked { device, nodes, stages, purpose: None }))
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
    let _caller = Caller::of_engine(Location::caller());
    compute_nodes(waiting(tensors)?, runner).inspect_err(|_| revert(tensors))
}

#[track_caller]
fn compute_nodes(wanted: Wanted, runner: Runner<'_>) -> Result<()> {
    follow(agenda(wanted), &StageCalls::none(), runner)
}

/// Does what is on an agenda. What the caller asked for may be staged.
#[track_caller]
fn follow(mut work: Agenda, calls: &StageCalls<'_>, runner: Runner<'_>) -> Result<()> {
    while let Some(next) = work.pop() {
        match next {
            EvalStep::Evaluate(asked) => {
                let moves = match asked.purpose {
                    None => evaluate(&asked, calls, runner)?,
                    Some(_) => evaluate(&asked, &StageCalls::none(), &mut |r, run| r.run(Run { read: true, ..run }))?,
                };
                postpone(&mut work, asked, moves);
            }
            // Another thread may have brought it meanwhile.
            EvalStep::Bring(node, _) if node.is_ready() => {}
            EvalStep::Bring(node, source) => {
                let bytes = bytes_of(&source)?;
                node.bring(&source, node.device.backend().upload(bytes)?);
            }
        }
    }
    Ok(())
}

/// The same without another thread, where there are none: it waits for no device, but evaluates in `poll`.
pub async fn compute_for_async(tensors: &[&Tensor], purpose: Purpose) -> Result<()> {
    compute_nodes_async(waiting(tensors)?, purpose).await.inspect_err(|_| revert(tensors))
}

async fn compute_nodes_async(wanted: Wanted, purpose: Purpose) -> Result<()> {
    let mut work = agenda(wanted);
    while let Some(next) = work.pop() {
        match next {
            EvalStep::Evaluate(asked) => {
                let read = asked.purpose.unwrap_or(purpose) == Purpose::Read;
                let runner: Runner<'_> = &mut |runnable, run| runnable.run(Run { read, ..run });
                let moves = evaluate(&asked, &StageCalls::none(), runner)?;
                postpone(&mut work, asked, moves);
            }
            EvalStep::Bring(node, _) if node.is_ready() => {}
            EvalStep::Bring(node, source) => {
                let bytes = bytes_of_async(&source).await?;
                node.bring(&source, node.device.backend().upload(bytes)?);
            }
        }
    }
    Ok(())
}

/// Of what was wanted and will not be computed, commits are what they were before, on whichever device they are.
fn revert(tensors: &[&Tensor]) {
    for node in tensors.iter().filter_map(|tensor| tensor.node().ok()).filter(|node| !node.is_ready()) {
        // Where the lock cannot be had, nothing was evaluated.
        if let Ok(_lock) = lock("compute", &node.device) {
            node.revert();
        }
    }
}

/// What is left to do, the next last. A list, because each hop between devices needs another evaluation first: tens of
/// thousands of hops must not be as many stack frames.
type Agenda = SmallVec<[EvalStep; 1]>;

/// Nodes that somebody wants. One alone is by far the most frequent.
type Wanted = SmallVec<[NodeRef; 1]>;

enum EvalStep {
    Evaluate(Asked),
    /// Brings a node's memory from the node on another device, once that is computed.
    Bring(NodeRef, NodeRef),
}

/// Nodes of one device to be computed.
struct Asked {
    device: Device,
    nodes: Wanted,
    /// Where in `nodes` each stage ends; empty if nothing is staged.
    stages: Vec<usize>,
    /// None for what the caller asked for.
    purpose: Option<Purpose>,
}

fn agenda(mut wanted: Wanted) -> Agenda {
    let mut agenda = Agenda::new();
    while let Some((device, nodes)) = next_device(&mut wanted) {
        agenda.push(EvalStep::Evaluate(Asked { device, nodes, stages: Vec::new(), purpose: None }));
    }
    agenda.reverse();
    agenda
}

impl Asked {
    /// The nodes that are not computed yet, and where each stage ends among them.
    fn left(&self) -> (SmallVec<[&NodeRef; 4]>, Vec<usize>) {
        let (mut left, mut stages) = (SmallVec::new(), Vec::with_capacity(self.stages.len()));
        let mut ends = self.stages.iter().copied().peekable();
        for (i, node) in self.nodes.iter().enumerate() {
            stages.extend(std::iter::from_fn(|| ends.next_if_eq(&i)).map(|_| left.len()));
            left.extend((!node.is_ready()).then_some(node));
        }
        stages.extend(ends.map(|_| left.len()));
        (left, stages)
    }
}

/// If something must be brought from another device first, puts that before the evaluation it is for.
fn postpone(agenda: &mut Agenda, asked: Asked, moves: Vec<NodeRef>) {
    if moves.is_empty() {
        return;
    }
    agenda.push(EvalStep::Evaluate(asked));
    for node in moves {
        let Some(source) = node.source() else { continue };
        let first = Asked {
            device: source.device.clone(),
            nodes: smallvec![source.clone()],
            stages: Vec::new(),
            purpose: Some(Purpose::Read),
        };
        agenda.push(EvalStep::Bring(node, source));
        agenda.push(EvalStep::Evaluate(first));
    }
}

/// The bytes of a computed node. If its memory was lost with its device, it is computed again where that is possible.
#[track_caller]
pub fn read(node: &NodeRef, out: &mut [u8]) -> Result<()> {
    let _caller = Caller::of_engine(Location::caller());
    if let Some(copy) = widened(node) {
        compute_for(&[&copy], Purpose::Read)?;
        return read(copy.node()?, out);
    }
    let backend = node.device.backend();
    match backend.download(&memory(node)?, out) {
        Err(Error::DeviceLost(_)) => {
            restore_locked(node)?;
            compute_for(&[&Tensor::new(Ok(node.clone()))], Purpose::Read)?;
            backend.download(&memory(node)?, out)
        }
        done => done,
    }
}

/// [`read`] without another thread.
pub async fn read_async(node: &NodeRef, out: &mut [u8]) -> Result<()> {
    if let Some(copy) = widened(node) {
        Box::pin(compute_for_async(&[&copy], Purpose::Read)).await?;
        return Box::pin(read_async(copy.node()?, out)).await;
    }
    let backend = node.device.backend();
    let buffer = memory(node)?;
    match backend.download_async(&buffer, out).await {
        Err(Error::DeviceLost(_)) => {
            restore_locked(node)?;
            Box::pin(compute_for_async(&[&Tensor::new(Ok(node.clone()))], Purpose::Read)).await?;
            let buffer = memory(node)?;
            backend.download_async(&buffer, out).await
        }
        done => done,
    }
}

/// What blocks are widened to, as a tensor of its own, which goes when it has been read.
fn widened(node: &NodeRef) -> Option<Tensor> {
    node.blocks()?;
    let expr = Expr { op: Op::View(Arc::new(View::contiguous(node.shape))), inputs: smallvec![node.clone()] };
    Some(Tensor::new(Ok(Node::detached(expr, node.shape, node.dtype, node.device.clone(), node.at))))
}

fn memory(node: &NodeRef) -> Result<Buffer> {
    node.buffer().ok_or_else(|| Error::device("read", "the tensor's memory was given away"))
}

/// [`restore`] for who has not the device's lock: an evaluation that found the memory there must not lose it.
fn restore_locked(node: &NodeRef) -> Result<bool> {
    let _lock = lock("read", &node.device)?;
    restore(node)
}

/// If a node's memory went with its device, makes it be computed again; an error if nobody knows how, or if it can never be
/// computed. The caller holds the device's lock.
fn restore(node: &NodeRef) -> Result<bool> {
    let Some(buffer) = node.buffer() else { return node.failure().map_or(Ok(false), Err) };
    let Some(error) = node.device.backend().lost(&buffer) else { return Ok(false) };
    if node.forget() {
        return Ok(true);
    }
    let what = format!("{}{} went with the device: {}", node.dtype, node.shape, error.fault().message);
    Err(Error::DeviceLost(Arc::new(Fault::new("compute", what).shapes(&[&node.shape]).at(node.at))))
}

/// The nodes of these tensors that are not computed yet.
fn waiting(tensors: &[&Tensor]) -> Result<Wanted> {
    let mut wanted = Wanted::with_capacity(tensors.len());
    for tensor in tensors {
        let node = tensor.node()?;
        if !node.is_ready() {
            wanted.push(node.clone());
        }
    }
    Ok(wanted)
}

/// Takes from `wanted` all nodes of one device.
fn next_device(wanted: &mut Wanted) -> Option<(Device, Wanted)> {
    let device = wanted.first()?.device.clone();
    if wanted.iter().all(|n| n.device == device) {
        return Some((device, std::mem::take(wanted)));
    }
    let (here, rest) = std::mem::take(wanted).into_iter().partition(|n| n.device == device);
    *wanted = rest;
    Some((device, here))
}

/// The bytes of a computed node, on the host.
pub fn bytes_of(node: &NodeRef) -> Result<HostBytes> {
    let mut bytes = zeroed_bytes("to_device", node.shape.n_elems() * node.dtype.size())?;
    read(node, &mut bytes)?;
    HostBytes::aligned("to_device", bytes)
}

async fn bytes_of_async(node: &NodeRef) -> Result<HostBytes> {
    let mut bytes = zeroed_bytes("to_device", node.shape.n_elems() * node.dtype.size())?;
    read_async(node, &mut bytes).await?;
    HostBytes::aligned("to_device", bytes)
}

/// What computing these tensors together would do: kernels, memory, and what stood in the way of doing less.
/// Tensors already computed cost nothing and show nothing.
#[track_caller]
pub fn explain(tensors: &[&Tensor]) -> Result<Explain> {
    let _caller = Caller::of_engine(Location::caller());
    explained("explain", &[tensors])
}

/// What [`compute_staged`] would do with these tensors. `stages` of what it returns says how many of the kernels have run
/// at the end of each stage.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let cpu = Device::cpu();
/// let x = Tensor::from_vec(vec![1.0f32; 6], [2, 3], &cpu);
/// let first = x.exp();
/// let second = first.matmul(&x.t());
/// let plan = lazuli::explain_staged(&[&[&first], &[&second]])?;
/// assert_eq!((plan.stages.clone(), plan.submits), (vec![1, 2], 2));
/// // Nothing is computed twice.
/// let flops = |plan: &lazuli::Explain| plan.kernels.iter().map(|kernel| kernel.flops).sum::<usize>();
/// assert_eq!(flops(&plan), flops(&lazuli::explain(&[&first, &second])?));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn explain_staged(stages: &[&[&Tensor]]) -> Result<Explain> {
    let _caller = Caller::of_engine(Location::caller());
    explained("explain_staged", stages)
}

#[track_caller]
fn explained(op: &str, stages: &[&[&Tensor]]) -> Result<Explain> {
    let Some(asked) = asked(op, stages)? else { return Ok(Explain::default()) };
    let device = &asked.device;
    // Nothing runs, so nothing is donated that would not be when it does: the plan is the one `compute` would use.
    let _lock = lock(op, device)?;
    Ok(describe(device, &capture(&asked.nodes.iter().collect::<Vec<_>>(), &asked.stages)))
}

/// What computing what was captured would do. The caller holds the device's lock.
pub fn describe(device: &Device, captured: &Captured) -> Explain {
    let ToldPlan { plan, edges, repeated } = plan::compile_told(captured.graph(), device.backend().target());
    let mut explain = Explain { edges, repeated, ..Explain::new(&plan) };
    device.backend().describe(&plan, &mut explain);
    explain
}

/// The right to evaluate on a device. A function that an evaluation of the CPU calls can never have that of the CPU: the
/// evaluation holds it until the function has returned. That of another device it can have, since nobody who holds one
/// waits for the CPU's.
#[track_caller]
pub fn lock<'a>(op: &str, device: &'a Device) -> Result<Locked<'a>> {
    let message = match user::called_by() {
        _ if device.info().kind != DeviceKind::Cpu => return Ok(Cache::lock(device.cache())),
        None => return Ok(Cache::lock(device.cache())),
        Some(CalledBy::Kernel) => {
            "the function of a custom op cannot evaluate on the device that is running it; compute what it needs before, \
             and let it capture the numbers"
        }
        Some(CalledBy::Stages) => {
            "the function that is called between stages cannot evaluate on the device that is computing them; let a \
             stage compute what it needs"
        }
    };
    Err(Error::unsupported(op, message))
}

/// Runs what is needed for these nodes of one device. If something must be brought from another device first, runs
/// nothing and returns that.
#[track_caller]
fn evaluate(asked: &Asked, calls: &StageCalls<'_>, runner: Runner<'_>) -> Result<Vec<NodeRef>> {
    let device = &asked.device;
    let mut cache = lock("compute", device)?;
    // Another thread may have computed them while this one waited.
    let (wanted, stages) = asked.left();
    let mut lost_again = false;
    loop {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(error) = wanted.iter().find_map(|n| n.failure()) {
            return Err(error);
        }
        let (mut captured, mut flight) = take_off(&wanted, &stages);
        if !captured.moves.is_empty() {
            return Ok(std::mem::take(&mut captured.moves));
        }
        let mut inputs = Buffers::new();
        for leaf in captured.leaves.iter().map(|leaf| &captured.nodes[*leaf as usize]) {
            match leaf.buffer().filter(|buffer| device.backend().lost(buffer).is_none()) {
                Some(buffer) => inputs.push(buffer),
                None if restore(leaf)? => {}
                None => inputs.push(memory(leaf)?),
            }
        }
        if inputs.len() < captured.leaves.len() {
            continue;
        }
        let is_at_risk = captured.donated.contains(&true);
        flight.put_at_risk(is_at_risk);
        let stage_done = |stage: usize, outputs: &[Buffer]| {
            let start = stage.checked_sub(1).map_or(0, |before| stages[before]);
            flight.complete_some(start..stages[stage], outputs);
            user::call_for(CalledBy::Stages, || calls.call(stage));
        };
        let outcome = run(device, &mut cache, &captured, &inputs, &stage_done, runner);
        let outcome = outcome.map_err(|error| located(error, &captured, wanted[0]));
        flight.put_at_risk(false);
        match outcome {
            Ok(Ran { outputs, failed: None, .. }) => {
                flight.complete(outputs);
                captured.recycle();
                return Ok(Vec::new());
            }
            // What was committed holds what it was before.
            Ok(Ran { outputs, failed: Some(error), plan }) => {
                let error = located(error, &captured, wanted[0]);
                let good = outputs.into_iter().zip(&plan.settled).map(|(buffer, is_good)| is_good.then_some(buffer));
                flight.fail(&error, good.collect(), is_at_risk);
                return Err(error);
            }
            // The device is open again; what it held may be known still.
            Err(Error::DeviceLost(_)) if !lost_again => lost_again = true,
            // Half-way through, an input that nobody else holds may have been overwritten: there is no second try.
            Err(error) => {
                flight.fail(&error, Vec::new(), is_at_risk && !matches!(error, Error::OutOfMemory(_)));
                return Err(error);
            }
        }
    }
}

/// What a run left.
struct Ran {
    outputs: Buffers,
    failed: Option<Error>,
    /// It says which outputs are good even if something failed.
    plan: Arc<plan::Plan>,
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

fn run(
    device: &Device,
    cache: &mut Cache,
    captured: &Captured,
    inputs: &[Buffer],
    stage_done: &dyn Fn(usize, &[Buffer]),
    runner: Runner<'_>,
) -> Result<Ran> {
    let entry = plan_for(device, cache, captured)?;
    let sites = sites(&entry.plan, captured);
    let nodes = InputNodes { nodes: &captured.nodes, leaves: &captured.leaves };
    let run = Run { inputs, nodes, constants: captured.constants(), sites: &sites, read: false, stage_done };
    let (outputs, failed) = run_plan(device, &entry, run, runner)?;
    Ok(Ran { outputs, failed, plan: entry.plan })
}

/// Runs a plan: its outputs, and what went wrong on the way.
pub fn run_plan(
    device: &Device,
    entry: &CachedPlan,
    run: Run<'_>,
    runner: Runner<'_>,
) -> Result<(Buffers, Option<Error>)> {
    let sites = run.sites;
    let start = log::wants(Topic::Time).then(Instant::now);
    let outcome = runner(&*entry.runnable, run)?;
    if let Some(start) = start {
        let (micros, n) = (start.elapsed().as_secs_f64() * 1e6, entry.plan.launches.len());
        log::show(Topic::Time, || format!("{micros:>10.1} µs  {} on {}", counted(n, "kernel"), device.info().name));
    }
    let failed = outcome.failed.map(|failed| match failed {
        Failure::Index(check) => sites[check.check as usize].error(check),
        Failure::Custom(error) => error,
    });
    Ok((outcome.outputs, failed))
}

/// The plan of what was captured, known or made.
pub fn plan_for(device: &Device, cache: &mut Cache, captured: &Captured) -> Result<CachedPlan> {
    let backend = device.backend();
    if let Some(entry) = cache.get(captured.key()) {
        Counters::count(&backend.counters().plan_hits, 1);
        return Ok(entry);
    }
    let (plan, made) = plan::plan(captured.graph(), backend.target(), cache.templates());
    let counter = match made {
        Made::Compiled => &backend.counters().plans_compiled,
        Made::Filled => &backend.counters().plans_filled,
    };
    Counters::count(counter, 1);
    let plan = Arc::new(plan);
    log::show(Topic::Plan, || plan.to_string());
    let before = backend.counters().compiled_bytes();
    let runnable = backend.prepare(plan.clone())?;
    let compiled = backend.counters().compiled_bytes().saturating_sub(before);
    let entry = CachedPlan { plan, runnable };
    cache.insert(captured.key().clone(), entry.clone(), made, compiled, backend.counters());
    Ok(entry)
}

/// Where each check of a plan was written.
pub fn sites(plan: &plan::Plan, captured: &Captured) -> Vec<Site> {
    let site = |origin: &u32| {
        let node = &captured.nodes[*origin as usize];
        let is_unsigned = |e: &Expr| e.inputs.get(1).is_some_and(|index| index.dtype == DType::U32);
        let known = node.with_expr(|e| (e.op.name().to_string(), is_unsigned(e)));
        let (op, is_unsigned) = known.unwrap_or_default();
        Site { op, shape: node.shape, is_unsigned, at: node.at }
    };
    plan.checks.iter().map(site).collect()
}
