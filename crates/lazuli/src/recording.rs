//! Evaluations that are made again and again with other tensors and positions. What is lazy about an evaluation, recording its
//! graph, walking over it and letting it go, costs as much as many of the kernels of a step that is small; here it is paid once.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::backend::{Counters, InputNodes, Run, Site};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Buffers, Node, NodeIdx, NodeRef, OpenConstant, capture_given};
use crate::ops::Position;
use crate::place::Caller;
use crate::plan::{CachedPlan, Explain};
use crate::realize::{bytes_of, compute, describe, lock, plan_for, run_plan, sites};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// An evaluation that was recorded once, to be run with other tensors in place of its inputs and with its open
/// [`Position`]s elsewhere. Everything else is what it was when it was recorded: other tensors (weights) and numbers.
///
/// Runs plan nothing and record nothing. No gradient passes through one.
///
/// ```
/// use lazuli::{DType, Device, Position, Recording, Tensor};
/// let cpu = Device::cpu();
/// let weight = Tensor::full([2], 10.0, &cpu).compute()?;
///
/// // Written once: a row of numbers goes into a table.
/// let (position, row) = (Position::open(0), Tensor::zeros([1, 2], DType::F32, &cpu).compute()?);
/// let mut table = Tensor::zeros([4, 2], DType::F32, &cpu).compute()?;
/// let written = table.write_rows(0, position, &row.mul(&weight));
/// let step = Recording::new(&[&table, &row], &[&written])?;
/// drop(written);
///
/// for i in 0..3 {
///     let row = Tensor::full([1, 2], i as f32, &cpu);
///     table = step.run(&mut vec![table, row], &[position.moved_to(i)])?.remove(0);
/// }
/// assert_eq!(table.to_vec::<f32>()?, [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 0.0, 0.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Recording {
    device: Device,
    /// The plan of the outputs that a run computes; None if all were there before.
    entry: Option<CachedPlan>,
    /// The inputs of the plan.
    leaves: Vec<RecordedLeaf>,
    /// What is given for each run, and whether results may be written over it.
    inputs: Vec<(Shape, DType)>,
    gives_up: bool,
    outputs: Vec<RecordedOutput>,
    constants: Vec<u32>,
    open: Vec<OpenConstant>,
    sites: Vec<Site>,
    at: &'static Location<'static>,
}

/// A tensor that is there before a run.
enum RecordedLeaf {
    /// This one of the tensors that are given.
    Given(usize),
    /// Always the same.
    Fixed(NodeRef),
}

/// An output of a run.
enum RecordedOutput {
    Computed(Shape, DType),
    /// A tensor that was there before the run.
    Leaf(RecordedLeaf),
}

/// What is recorded, all on one device.
struct RecordedNodes<'a> {
    device: Device,
    given: Vec<&'a NodeRef>,
    made: Vec<&'a NodeRef>,
}

impl<'a> RecordedNodes<'a> {
    #[track_caller]
    fn of(inputs: &[&'a Tensor], outputs: &[&'a Tensor]) -> Result<RecordedNodes<'a>> {
        let given = inputs.iter().map(|input| input.node()).collect::<Result<Vec<_>>>()?;
        let made = outputs.iter().map(|output| output.node()).collect::<Result<Vec<_>>>()?;
        let Some(device) = made.first().map(|node| node.device.clone()) else {
            return Err(Error::device("recording", "there is nothing to compute"));
        };
        if given.iter().chain(&made).any(|node| node.device != device) {
            return Err(Error::device("recording", "the tensors are on different devices"));
        }
        Ok(RecordedNodes { device, given, made })
    }
}

impl Recording {
    /// Plans computing `outputs`, none of which is computed yet, from `inputs`, all of which are, and runs nothing.
    #[track_caller]
    pub fn new(inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<Recording> {
        let _caller = Caller::of_engine(Location::caller());
        for output in outputs {
            let node = output.node()?;
            if node.is_ready() {
                let message = format!("an output, {}{}, is computed already", node.dtype, node.shape);
                return Err(Error::device("recording", message));
            }
        }
        Recording::of(inputs, outputs, true)
    }

    /// As [`Recording::new`], of inputs that no run writes over: they need not be given up, and none is copied. An output that
    /// is an input, or that is computed already, is handed back by every run.
    ///
    /// ```
    /// use lazuli::{Device, Recording, Tensor};
    /// let x = Tensor::full([2], 3.0, &Device::cpu()).compute()?;
    /// let recording = Recording::reading(&[&x], &[&x.mul(2.0), &x])?;
    /// let y = Tensor::full([2], 5.0, &Device::cpu());
    /// let made = recording.run(&mut vec![y.clone()], &[])?;
    /// assert_eq!((made[0].to_vec::<f32>()?, made[1].to_vec::<f32>()?), (vec![10.0; 2], vec![5.0; 2]));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn reading(inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<Recording> {
        let _caller = Caller::of_engine(Location::caller());
        Recording::of(inputs, outputs, false)
    }

    /// The plan that [`Recording::new`] would make of these inputs and outputs, described as by [`explain`](crate::explain).
    ///
    /// ```
    /// use lazuli::{Device, Recording, Tensor};
    /// let x = Tensor::ones([4], lazuli::DType::F32, &Device::cpu()).compute()?;
    /// assert_eq!(Recording::explain(&[&x], &[&x.exp().add(1.0)])?.kernels.len(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn explain(inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<Explain> {
        let _caller = Caller::of_engine(Location::caller());
        let RecordedNodes { device, given, made } = RecordedNodes::of(inputs, outputs)?;
        let _lock = lock("recording", &device)?;
        Ok(describe(&device, &capture_given(&made, &given)))
    }

    #[track_caller]
    fn of(inputs: &[&Tensor], outputs: &[&Tensor], gives_up: bool) -> Result<Recording> {
        let RecordedNodes { device, given, made } = RecordedNodes::of(inputs, outputs)?;
        for (i, node) in given.iter().enumerate() {
            // What is no memory yet, or has a place already, would be read as it was recorded instead of as it is given.
            let fault = match () {
                () if !node.is_ready() => "is not computed yet; compute it first",
                () if given[..i].iter().any(|before| Arc::ptr_eq(before, node)) => "is given twice",
                () => continue,
            };
            return Err(Error::device("recording", format!("input {i}, {}{}, {fault}", node.dtype, node.shape)));
        }
        // Asked once: another thread may compute one meanwhile.
        let is_made: Vec<bool> = made.iter().map(|node| node.is_ready()).collect();
        let leaf = |node: &NodeRef| {
            let place = given.iter().position(|given| Arc::ptr_eq(given, node));
            place.map_or_else(|| RecordedLeaf::Fixed(node.clone()), RecordedLeaf::Given)
        };
        let output = |(node, is_made): (&&NodeRef, &bool)| match is_made {
            true => RecordedOutput::Leaf(leaf(node)),
            false => RecordedOutput::Computed(node.shape, node.dtype),
        };
        let mut recording = Recording {
            leaves: Vec::new(),
            inputs: given.iter().map(|node| (node.shape, node.dtype)).collect(),
            gives_up,
            outputs: made.iter().zip(&is_made).map(output).collect(),
            constants: Vec::new(),
            open: Vec::new(),
            sites: Vec::new(),
            at: Location::caller(),
            entry: None,
            device: device.clone(),
        };
        let unmade = made.iter().zip(&is_made).filter(|(_, is_made)| !**is_made);
        let wanted: Vec<&NodeRef> = unmade.map(|(node, _)| *node).collect();
        if wanted.is_empty() {
            return Ok(recording);
        }
        let mut cache = lock("recording", &device)?;
        let captured = capture_given(&wanted, if gives_up { &given } else { &[] });
        if !captured.moves.is_empty() {
            return Err(Error::device("recording", "some of what it is made of is still on another device"));
        }
        let entry = plan_for(&device, &mut cache, &captured)?;
        drop(cache);
        recording.leaves = captured.leaves.iter().map(|idx| leaf(&captured.nodes[*idx as usize])).collect();
        recording.constants = captured.constants().to_vec();
        recording.open = captured.open_constants().to_vec();
        recording.sites = sites(&entry.plan, &captured);
        recording.entry = Some(entry);
        Ok(recording)
    }

    /// Whether what a run makes depends on the tensors that it is given. Otherwise every run makes the same.
    ///
    /// ```
    /// use lazuli::{Device, Recording, Tensor};
    /// let [x, weight] = [1.0, 2.0].map(|value| Tensor::scalar(value, &Device::cpu()).compute());
    /// let (x, weight) = (x?, weight?);
    /// assert!(Recording::reading(&[&x], &[&x.mul(&weight)])?.depends_on_inputs());
    /// assert!(!Recording::reading(&[&x], &[&weight.exp()])?.depends_on_inputs());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn depends_on_inputs(&self) -> bool {
        let handed_back = self.outputs.iter().filter_map(|output| match output {
            RecordedOutput::Leaf(leaf) => Some(leaf),
            RecordedOutput::Computed(..) => None,
        });
        self.leaves.iter().chain(handed_back).any(|leaf| matches!(leaf, RecordedLeaf::Given(_)))
    }

    /// Runs it with other tensors, in the order of the inputs, and gives as many as there are outputs. Positions that are not
    /// named stay where they were recorded.
    ///
    /// The tensors are given up: results may be written over them, as rows are into a cache. One that somebody else holds is
    /// copied first. After an error that came before anything ran, they are still there; otherwise the list is empty.
    #[track_caller]
    pub fn run(&self, inputs: &mut Vec<Tensor>, positions: &[Position]) -> Result<Vec<Tensor>> {
        let _caller = Caller::of_engine(Location::caller());
        self.check(inputs)?;
        let constants = self.constants(positions)?;
        if inputs.iter().any(|input| input.node().is_ok_and(|node| !node.is_ready())) {
            compute(&inputs.iter().collect::<Vec<_>>())?;
        }
        if self.gives_up {
            for input in inputs.iter_mut() {
                if let Some(copy) = self.copied(input)? {
                    *input = copy;
                }
            }
        }
        let found = |leaf: &RecordedLeaf| match leaf {
            RecordedLeaf::Given(idx) => inputs[*idx].node().cloned(),
            RecordedLeaf::Fixed(node) => Ok(node.clone()),
        };
        let nodes = self.leaves.iter().map(found).collect::<Result<Vec<NodeRef>>>()?;
        let mut kept = Vec::new();
        for output in &self.outputs {
            kept.push(match output {
                RecordedOutput::Leaf(leaf) => Some(Tensor::new(Ok(found(leaf)?))),
                RecordedOutput::Computed(..) => None,
            });
        }
        let (buffers, failed) = self.run_on(nodes, &constants, inputs)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let mut buffers = buffers.into_iter();
        let outputs = self.outputs.iter().zip(kept).filter_map(|(output, kept)| match output {
            RecordedOutput::Computed(shape, dtype) => {
                let buffer = buffers.next()?;
                Some(Tensor::new(Ok(Node::data(buffer, *shape, *dtype, self.device.clone(), self.at))))
            }
            RecordedOutput::Leaf(_) => kept,
        });
        Ok(outputs.collect())
    }

    /// Runs the plan on these leaves, if there is one. Empties the list of inputs unless nothing ran.
    fn run_on(
        &self,
        nodes: Vec<NodeRef>,
        constants: &[u32],
        inputs: &mut Vec<Tensor>,
    ) -> Result<(Buffers, Option<Error>)> {
        let Some(entry) = &self.entry else {
            inputs.clear();
            return Ok((Buffers::new(), None));
        };
        let _lock = lock("recording", &self.device)?;
        let backend = self.device.backend();
        let mut buffers = Buffers::with_capacity(nodes.len());
        for node in &nodes {
            let missing = || Error::device("recording", "the memory of a tensor was given away");
            let buffer = node.buffer().ok_or_else(missing)?;
            if let Some(error) = backend.lost(&buffer) {
                return Err(error);
            }
            buffers.push(buffer);
        }
        Counters::count(&backend.counters().plan_hits, 1);
        let leaves: Vec<NodeIdx> = (0..nodes.len() as NodeIdx).collect();
        let run = Run {
            inputs: &buffers,
            nodes: InputNodes { nodes: &nodes, leaves: &leaves },
            constants,
            sites: &self.sites,
            read: false,
            stage_done: &|_, _| {},
        };
        let ran = run_plan(&self.device, entry, run, &mut |runnable, run| runnable.run(run));
        // All memory is taken before anything runs.
        if !matches!(ran, Err(Error::OutOfMemory(_))) {
            inputs.clear();
        }
        ran
    }

    /// Whether tensors are like the inputs.
    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let message = format!("wants {} tensors, not {}", self.inputs.len(), inputs.len());
            return Err(Error::shape("recording", message));
        }
        for (i, (input, (shape, dtype))) in inputs.iter().zip(&self.inputs).enumerate() {
            let node = input.node()?;
            if node.device != self.device {
                return Err(Error::device("recording", format!("tensor {i} is on another device")));
            }
            if (node.shape, node.dtype) != (*shape, *dtype) {
                let message = format!("tensor {i} is {}{}, not {dtype}{shape}", node.dtype, node.shape);
                return Err(Error::shape("recording", message));
            }
        }
        Ok(())
    }

    /// The constants of a run with these positions.
    fn constants(&self, positions: &[Position]) -> Result<Vec<u32>> {
        let mut constants = self.constants.clone();
        for OpenConstant { idx, number, dtype } in &self.open {
            let named = positions.iter().filter_map(|position| position.named());
            let Some((_, value)) = named.into_iter().find(|(name, _)| *name == number.name) else { continue };
            let value = value.saturating_add(number.plus);
            if value > number.most || *dtype == DType::U32 && value < 0 {
                let message = format!("position {value} is out of range, which ends at {}", number.most);
                return Err(Error::index("recording", message));
            }
            constants[*idx] = dtype.lane_bits(value as f64);
        }
        Ok(constants)
    }

    /// A copy of a tensor whose memory others can get at.
    fn copied(&self, input: &Tensor) -> Result<Option<Tensor>> {
        let node = input.node()?;
        if Arc::strong_count(node) == 1 && node.holds_alone() {
            // The counts are relaxed loads: reads by threads that dropped their handles must happen before the run's writes.
            fence(Ordering::Acquire);
            return Ok(None);
        }
        let buffer = self.device.backend().upload(bytes_of(node)?)?;
        let copy = Node::data(buffer, node.shape, node.dtype, self.device.clone(), node.at);
        Ok(Some(Tensor::new(Ok(copy))))
    }
}
