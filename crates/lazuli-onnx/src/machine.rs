//! Runs a graph node by node. Operators of the device only record; nothing is evaluated until an operator has to look at
//! numbers, and then only what those numbers depend on. The machine never reads by itself: it stops and says which tensor it
//! needs on the host, so that one machine serves blocking and asynchronous callers. Graphs within graphs are frames of an
//! explicit stack.

use lazuli::{Device, Error, Result, Tensor};

use crate::call::{Call, Stop, axis, invalid, listed};
use crate::chunks::{Chunks, Evaluator};
use crate::elem::ElemType;
use crate::fault;
use crate::graph::{Action, Attr, Graph, Node, Slot};
use crate::host::{Host, HostData};
use crate::value::{Kind, Value};

/// How often a run goes through bodies of loops in all. A file may name any number of rounds, and each is recorded: without a
/// bound it takes all time and all memory.
const MAX_ROUNDS: u64 = 1 << 18;

/// A run of a graph.
pub struct Machine<'m> {
    device: &'m Device,
    frames: Vec<Frame<'m>>,
    /// The slot of the innermost frame that waits for its elements.
    waiting: Option<Slot>,
    n_run: u64,
    /// How many rounds of loops have been begun.
    n_rounds: u64,
    /// How many nodes are run at most. Where there is a limit, nothing is evaluated.
    n_most: u64,
    /// Evaluates tensors during the run; None if the whole run is lazy.
    evaluator: Option<&'m dyn Evaluator>,
}

/// How far a run has come.
pub enum Progress {
    /// It is finished; one value per output.
    Done(Vec<Value>),
    /// These elements are needed on the host to go on.
    Read(Tensor, ElemType),
}

/// A graph that is being run.
struct Frame<'m> {
    graph: &'m Graph,
    slots: Vec<Option<Value>>,
    /// The next node.
    at: usize,
    then: Then,
}

/// What happens when a frame has run all its nodes.
enum Then {
    /// The whole run is finished.
    Finish,
    /// The outputs are those of the `If` that started the frame.
    Return,
    /// The body of a `Loop` may be run again.
    Loop(LoopState),
    /// The body of a `Scan` is run for the next elements.
    Scan(ScanState),
}

struct LoopState {
    n_done: i64,
    n_most: i64,
    n_carried: usize,
    /// What each scan output has given so far.
    collected: Vec<Vec<Value>>,
}

struct ScanState {
    n_done: usize,
    n_steps: usize,
    n_carried: usize,
    /// Per scanned input: its steps, in the order they are taken.
    steps: Vec<Vec<Value>>,
    collected: Vec<Vec<Value>>,
}

impl<'m> Machine<'m> {
    /// A run of `graph` with these inputs; None leaves an input to its default.
    pub fn new(graph: &'m Graph, inputs: Vec<Option<Value>>, device: &'m Device) -> Machine<'m> {
        let frame = Frame::new(graph, None, inputs, Then::Finish);
        let (waiting, evaluator) = (None, None);
        Machine { device, frames: vec![frame], waiting, n_run: 0, n_rounds: 0, n_most: u64::MAX, evaluator }
    }

    /// The same run, which evaluates long recurrences in chunks of steps. Gradients do not pass through evaluated tensors.
    pub fn in_chunks(self, evaluator: &'m dyn Evaluator) -> Machine<'m> {
        Machine { evaluator: Some(evaluator), ..self }
    }

    /// The same run, which fails after so many nodes.
    pub fn with_most(self, n_nodes: usize) -> Machine<'m> {
        Machine { n_most: n_nodes as u64, ..self }
    }

    /// The name of the node at which the run has stopped.
    pub fn node(&self) -> &'m str {
        let node = self.frames.last().and_then(|frame| frame.graph.nodes.get(frame.at));
        node.map_or("the end of a body", |node| &node.name)
    }

    /// Hands over the elements that were asked for.
    pub fn provide(&mut self, host: Host) {
        if let (Some(slot), Some(frame)) = (self.waiting.take(), self.frames.last_mut()) {
            frame.slots[slot] = Some(host.into());
        }
    }

    /// Runs until it is finished or needs elements.
    pub fn advance(&mut self) -> Result<Progress> {
        loop {
            let frame = self.frames.last().expect("the last frame finishes the run");
            let stopped = match frame.graph.nodes.get(frame.at) {
                Some(node) => match self.run(node) {
                    Ok(()) => continue,
                    Err((stop, slot)) => (stop, slot, node.name.clone()),
                },
                None => match self.leave() {
                    Ok(None) => continue,
                    Ok(Some(values)) => return Ok(Progress::Done(values)),
                    Err((stop, slot)) => (stop, slot, "the end of a body".to_string()),
                },
            };
            let (stop, slot, name) = stopped;
            let frame = self.frames.last().expect("it stopped in a frame");
            return match (stop, slot.and_then(|slot| frame.slots[slot].clone())) {
                (Stop::Need(_), Some(Value(Kind::Device(tensor, elem)))) => {
                    self.waiting = slot;
                    Ok(Progress::Read(tensor, elem))
                }
                (Stop::Need(i), _) => Err(fault::dtype(format!("node {name}: input {i} is no tensor"))),
                (Stop::Failed(error), _) => Err(fault::of_node(&name, &error)),
            };
        }
    }

    /// Runs one node of the innermost frame.
    fn run(&mut self, node: &'m Node) -> std::result::Result<(), (Stop, Option<Slot>)> {
        self.n_run += 1;
        if self.n_run > self.n_most {
            return Err((Stop::Failed(fault::unsupported("more nodes are run than allowed")), None));
        }
        let may_evaluate = self.n_most == u64::MAX;
        let frame = self.frames.last_mut().expect("the node is one of a frame");
        if let Some(folded) = node.folded.get() {
            frame.store(node, folded.clone());
            return Ok(());
        }
        let inputs = node.inputs.iter().map(|slot| slot.and_then(|slot| frame.slots[slot].clone())).collect();
        let (device, opset, seed) = (self.device, node.opset, self.n_run);
        let call = Call { node, inputs, device, opset, seed, may_evaluate, chunks: None };
        let with_slot = |stop: Stop| {
            let slot = match stop {
                Stop::Need(i) => node.inputs.get(i).copied().flatten(),
                Stop::Failed(_) => None,
            };
            (stop, slot)
        };
        match node.action {
            Action::Row(row) => {
                let live = || live(&self.frames);
                let chunks = self.evaluator.map(|evaluator| Chunks { evaluator, node: &node.name, live: &live });
                let call = Call { chunks, ..call };
                let outputs = (row.run)(&call).map_err(with_slot)?;
                if may_evaluate && node.is_fixed() {
                    fold(&call, &outputs).map_err(|error| with_slot(Stop::Failed(error)))?;
                }
                let frame = self.frames.last_mut().expect("the node is one of a frame");
                frame.store(node, outputs);
                Ok(())
            }
            Action::If => {
                let taken = call.int(0).map_err(with_slot)? != 0;
                let name = if taken { "then_branch" } else { "else_branch" };
                let body = node.body(name).expect("resolving has checked it");
                let frame = Frame::new(body, Some(frame), Vec::new(), Then::Return);
                self.frames.push(frame);
                Ok(())
            }
            Action::Loop => self.start_loop(&call).map_err(with_slot),
            Action::Scan => self.start_scan(&call).map_err(with_slot),
        }
    }

    fn start_loop(&mut self, call: &Call<'m>) -> std::result::Result<(), Stop> {
        let body = call.node.body("body").expect("resolving has checked it");
        let n_most = if call.has(0) { call.int(0)? } else { i64::MAX };
        let goes = if call.has(1) { call.int(1)? != 0 } else { true };
        let n_carried = call.inputs.len().saturating_sub(2);
        if body.outputs.len() <= n_carried || body.inputs.len() != n_carried + 2 {
            return invalid(format!(
                "the body has {} inputs and {} outputs for {n_carried} carried values",
                body.inputs.len(),
                body.outputs.len()
            ));
        }
        let carried: Vec<Option<Value>> = call.inputs.iter().skip(2).cloned().collect();
        let collected = vec![Vec::new(); body.outputs.len() - 1 - n_carried];
        let state = LoopState { n_done: 0, n_most, n_carried, collected };
        let parent = self.frames.last_mut().expect("the node is one of a frame");
        if !goes || n_most <= 0 {
            let mut outputs = Vec::new();
            for value in carried {
                outputs.push(value.ok_or_else(|| Stop::Failed(fault::shape("a carried value is missing")))?);
            }
            for _ in &state.collected {
                outputs.push(Host::floats(ElemType::F32, vec![0], Vec::new()).into());
            }
            parent.store(call.node, outputs);
            return Ok(());
        }
        let inputs = loop_inputs(0, carried);
        let frame = Frame::new(body, Some(parent), inputs, Then::Loop(state));
        self.frames.push(frame);
        Ok(())
    }

    fn start_scan(&mut self, call: &Call<'m>) -> std::result::Result<(), Stop> {
        let body = call.node.body("body").expect("resolving has checked it");
        let n_scanned = usize::try_from(call.attr_int("num_scan_inputs", 0)?).unwrap_or(0);
        let Some(n_carried) = call.inputs.len().checked_sub(n_scanned).filter(|_| n_scanned > 0) else {
            return invalid(format!("{n_scanned} scanned inputs of {} are not possible", call.inputs.len()));
        };
        if body.inputs.len() != call.inputs.len() || body.outputs.len() < n_carried {
            return invalid("the body's inputs and outputs do not match the node's");
        }
        let axes = call.attr_ints("scan_input_axes")?.unwrap_or(&[]);
        let directions = call.attr_ints("scan_input_directions")?.unwrap_or(&[]);
        let mut steps = Vec::new();
        for i in 0..n_scanned {
            let x = call.tensor(n_carried + i)?;
            let elem = call.elem(n_carried + i)?;
            let shape = x.shape()?.to_vec();
            let along = axis(axes.get(i).copied().unwrap_or(0), shape.len())?;
            let step = |at: usize| Value(Kind::Device(x.select_index(along as i32, at), elem));
            let mut of_input: Vec<Value> = (0..listed(shape[along])?).map(step).collect();
            if directions.get(i) == Some(&1) {
                of_input.reverse();
            }
            steps.push(of_input);
        }
        let n_steps = steps[0].len();
        if steps.iter().any(|of_input| of_input.len() != n_steps) || n_steps == 0 {
            return invalid("scanned inputs must have one length, which is not 0");
        }
        let carried: Vec<Option<Value>> = call.inputs[..n_carried].to_vec();
        let inputs = carried.into_iter().chain(steps.iter().map(|of_input| Some(of_input[0].clone()))).collect();
        let collected = vec![Vec::new(); body.outputs.len() - n_carried];
        let state = ScanState { n_done: 0, n_steps, n_carried, steps, collected };
        let parent = self.frames.last_mut().expect("the node is one of a frame");
        let frame = Frame::new(body, Some(parent), inputs, Then::Scan(state));
        self.frames.push(frame);
        Ok(())
    }

    /// Ends the innermost frame, or starts its next round. Gives the outputs of the whole graph when that is finished.
    fn leave(&mut self) -> std::result::Result<Option<Vec<Value>>, (Stop, Option<Slot>)> {
        let failed = |error: Error| (Stop::Failed(error), None);
        let frame = self.frames.last_mut().expect("a frame ends");
        let outputs = frame.outputs().map_err(failed)?;
        let given = match &mut frame.then {
            Then::Finish => return Ok(Some(outputs)),
            Then::Return => outputs,
            Then::Loop(state) => {
                let goes = match &outputs[0].0 {
                    Kind::Host(host) => host.as_ints().map_err(failed)?.first() == Some(&1),
                    _ => return Err((Stop::Need(0), Some(frame.graph.outputs[0]))),
                };
                state.n_done += 1;
                for (list, value) in state.collected.iter_mut().zip(&outputs[1 + state.n_carried..]) {
                    list.push(value.clone());
                }
                let carried = outputs[1..=state.n_carried].iter().cloned();
                if goes && state.n_done < state.n_most {
                    let inputs = loop_inputs(state.n_done, carried.map(Some).collect());
                    return self.again(inputs).map(|()| None);
                }
                let stacked = state.collected.iter().map(|list| stack(list, 0, self.device));
                carried.map(Ok).chain(stacked).collect::<Result<Vec<Value>>>().map_err(failed)?
            }
            Then::Scan(state) => {
                state.n_done += 1;
                for (list, value) in state.collected.iter_mut().zip(&outputs[state.n_carried..]) {
                    list.push(value.clone());
                }
                let carried = outputs[..state.n_carried].iter().cloned();
                if state.n_done < state.n_steps {
                    let scanned = state.steps.iter().map(|of_input| of_input[state.n_done].clone());
                    let inputs = carried.chain(scanned).map(Some).collect();
                    return self.again(inputs).map(|()| None);
                }
                let n_carried = state.n_carried;
                let mut collected = std::mem::take(&mut state.collected);
                let carried: Vec<Value> = outputs[..n_carried].to_vec();
                let parent = &self.frames[self.frames.len() - 2];
                let node = &parent.graph.nodes[parent.at];
                let number = |name: &str, i: usize| match node.attrs.0.get(name) {
                    Some(Attr::Ints(values)) => values.get(i).copied().unwrap_or(0),
                    _ => 0,
                };
                let mut given = carried;
                for (i, list) in collected.iter_mut().enumerate() {
                    if number("scan_output_directions", i) == 1 {
                        list.reverse();
                    }
                    given.push(stack(list, number("scan_output_axes", i) as i32, self.device).map_err(failed)?);
                }
                given
            }
        };
        self.frames.pop();
        let parent = self.frames.last_mut().expect("a body has a frame around it");
        let node = &parent.graph.nodes[parent.at];
        parent.store(node, given);
        Ok(None)
    }

    /// Starts the innermost frame again with other inputs.
    fn again(&mut self, inputs: Vec<Option<Value>>) -> std::result::Result<(), (Stop, Option<Slot>)> {
        self.n_rounds += 1;
        if self.n_rounds > MAX_ROUNDS {
            let message = format!("a run goes through bodies of `Loop` and `Scan` more than {MAX_ROUNDS} times");
            return Err((Stop::Failed(fault::unsupported(message)), None));
        }
        let frame = self.frames.pop().expect("a frame goes on");
        let parent = self.frames.last();
        let next = Frame::new(frame.graph, parent, inputs, frame.then);
        self.frames.push(next);
        Ok(())
    }
}

/// The tensors that nodes have made and that are still to be read.
fn live(frames: &[Frame]) -> Vec<Tensor> {
    let mut live = Vec::new();
    for frame in frames {
        let mut is_made = vec![true; frame.slots.len()];
        let constants = frame.graph.constants.iter().map(|(slot, _)| slot);
        for slot in constants.chain(frame.graph.captures.iter().map(|(_, inner)| inner)) {
            is_made[*slot] = false;
        }
        let made = frame.slots.iter().zip(is_made).filter(|(_, is_made)| *is_made);
        made.filter_map(|(value, _)| value.as_ref()).for_each(|value| value.tensors(&mut live));
    }
    live.into_iter().cloned().collect()
}

/// Operators that make views. Constant folding leaves them out: a view costs nothing to make in every run, and folding would keep
/// a copy in memory.
const VIEWS: [&str; 9] =
    ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Split", "Slice", "Identity"];

/// Evaluates what a node made of constants and keeps it for later runs, unless it is a view, or has more elements than what it
/// was made of: a small file must not take much memory.
fn fold(call: &Call, outputs: &[Value]) -> Result<()> {
    let n_elems = |value: &Value| value.shape().map_or(0, |shape| shape.iter().product::<usize>());
    let n_read: usize = call.inputs.iter().flatten().map(n_elems).sum();
    let mut tensors = Vec::new();
    for value in outputs {
        match &value.0 {
            Kind::Host(_) => {}
            Kind::Device(tensor, _) if !VIEWS.contains(&call.node.op()) && n_elems(value) <= n_read => {
                tensors.push(tensor);
            }
            _ => return Ok(()),
        }
    }
    lazuli::compute(&tensors)?;
    call.node.folded.get_or_init(|| outputs.to_vec());
    Ok(())
}

/// The inputs of a loop's body: the number of the round, that it goes on, and what is carried.
fn loop_inputs(n_done: i64, carried: Vec<Option<Value>>) -> Vec<Option<Value>> {
    let round = Host::ints(ElemType::I64, Vec::new(), vec![n_done]).into();
    let goes = Host::ints(ElemType::Bool, Vec::new(), vec![1]).into();
    [Some(round), Some(goes)].into_iter().chain(carried).collect()
}

/// Values of one shape side by side along a new axis.
pub fn stack(values: &[Value], axis: i32, device: &Device) -> Result<Value> {
    let Some(first) = values.first() else {
        return Ok(Host::floats(ElemType::F32, vec![0], Vec::new()).into());
    };
    let elem = first.elem_type().ok_or_else(|| fault::dtype("sequences cannot be stacked"))?;
    let hosts: Option<Vec<_>> = values
        .iter()
        .map(|value| match &value.0 {
            Kind::Host(host) => host.as_ints().ok().map(|ints| (host.shape.clone(), ints.to_vec())),
            _ => None,
        })
        .collect();
    if let Some(hosts) = hosts.filter(|hosts| axis == 0 && hosts.iter().all(|host| host.0 == hosts[0].0)) {
        let shape = std::iter::once(values.len()).chain(hosts[0].0.iter().copied()).collect();
        let data = hosts.into_iter().flat_map(|host| host.1).collect();
        return Ok(Host::new(elem, shape, HostData::Int(data)).into());
    }
    let tensors = values.iter().map(|value| value.to_tensor(device)).collect::<Result<Vec<Tensor>>>()?;
    let stacked = Tensor::stack(&tensors.iter().collect::<Vec<_>>(), axis);
    stacked.check()?;
    Ok(Value(Kind::Device(stacked, elem)))
}

impl<'m> Frame<'m> {
    fn new(graph: &'m Graph, around: Option<&Frame>, inputs: Vec<Option<Value>>, then: Then) -> Frame<'m> {
        let mut slots = vec![None; graph.n_slots];
        for (slot, value) in &graph.constants {
            slots[*slot] = Some(value.clone());
        }
        for (outer, inner) in &graph.captures {
            slots[*inner] = around.and_then(|around| around.slots[*outer].clone());
        }
        for (slot, value) in graph.inputs.iter().zip(inputs) {
            if value.is_some() {
                slots[*slot] = value;
            }
        }
        Frame { graph, slots, at: 0, then }
    }

    /// Keeps what a node gave, forgets what nobody reads any more, and goes on to the next node.
    fn store(&mut self, node: &Node, outputs: Vec<Value>) {
        for (slot, value) in node.outputs.iter().zip(outputs) {
            if let Some(slot) = slot {
                self.slots[*slot] = Some(value);
            }
        }
        for slot in &node.dead {
            self.slots[*slot] = None;
        }
        self.at += 1;
    }

    fn outputs(&self) -> Result<Vec<Value>> {
        let value = |slot: &Slot| self.slots[*slot].clone();
        let missing = || fault::unsupported("an output was not made by its node");
        self.graph.outputs.iter().map(|slot| value(slot).ok_or_else(missing)).collect()
    }
}
