//! Runs that are recorded: a model that is given inputs of the same shapes again makes the same tensors of them, as long as the
//! numbers that it looks at on the way are the same. Then its evaluations are run again, without a node of the model being looked
//! at. Knows nothing of operators.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazuli::{Recording, Result, Tensor};

use crate::elem::ElemType;
use crate::host::{Host, HostData};
use crate::machine::{Machine, Progress};
use crate::value::{Kind, Value};

/// How many shapes of inputs are remembered.
const MOST_SHAPES: usize = 8;
/// How many runs with inputs of one shape are kept that found other numbers on the way: a model that chooses a branch has as
/// many as it has branches. One that finds other numbers in every run gains nothing from recordings.
const MOST_RUNS: usize = 4;

/// What a recorded run is found by: element type and shape of every input of the model, None for an input that the caller left
/// out and that has a default value in the model.
pub type Signature = Vec<Option<(ElemType, Vec<usize>)>>;

/// The recorded runs of a model.
#[derive(Default)]
pub struct RecordedRuns(Mutex<VecDeque<ShapeRuns>>);

/// The runs with inputs of one shape.
struct ShapeRuns {
    signature: Signature,
    runs: Vec<Arc<RecordedRun>>,
}

/// Which recordings there are for inputs of some signature.
pub enum Known {
    /// None, and none is wanted yet: the signature is not among the [`MOST_SHAPES`] used last.
    No,
    /// These, perhaps none. If no recording fits (the model reads other numbers on the way, the condition of an `If`, say), the
    /// run is recorded unless there are [`MOST_RUNS`] already.
    Runs(Vec<Arc<RecordedRun>>),
}

impl RecordedRuns {
    // Nothing panics while the lock is held, so a poisoned one is still good.
    fn lock(&self) -> MutexGuard<'_, VecDeque<ShapeRuns>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of inputs; they are remembered from now on. The first run of a shape is not recorded, since it may be the
    /// only one.
    pub fn known(&self, signature: &Signature) -> Known {
        let mut shapes = self.lock();
        let Some(at) = shapes.iter().position(|shape| shape.signature == *signature) else {
            shapes.truncate(MOST_SHAPES - 1);
            shapes.push_front(ShapeRuns { signature: signature.clone(), runs: Vec::new() });
            return Known::No;
        };
        if let Some(shape) = shapes.remove(at) {
            shapes.push_front(shape);
        }
        Known::Runs(shapes[0].runs.clone())
    }

    /// Keeps a run, unless there are many already.
    pub fn keep(&self, signature: &Signature, run: RecordedRun) {
        let mut shapes = self.lock();
        if let Some(shape) = shapes.iter_mut().find(|shape| shape.signature == *signature)
            && shape.runs.len() < MOST_RUNS
        {
            shape.runs.push(Arc::new(run));
        }
    }
}

impl Known {
    /// Whether a run that no recording fits is to be recorded.
    pub fn wants_more(&self) -> bool {
        matches!(self, Known::Runs(runs) if runs.len() < MOST_RUNS)
    }
}

/// A run as evaluations.
pub struct RecordedRun {
    /// What the model looked at, in order.
    reads: Vec<RecordedRead>,
    /// What its outputs are made by, if they are tensors of the device, and what they are.
    last: Option<Recording>,
    outputs: Vec<RecordedOutput>,
}

/// What an output is made of.
enum RecordedOutput {
    /// The next tensor of the last evaluation.
    Tensor(ElemType),
    /// What follows from shapes and from what was read.
    Fixed(Value),
    Sequence(Vec<RecordedOutput>),
}

/// An evaluation whose result the model looked at. It is made of the inputs and of what was read before.
struct RecordedRead {
    recording: Recording,
    elem: ElemType,
    found: HostData,
}

impl RecordedRun {
    /// Runs a model and records it. The tensors are the inputs of the machine; none is seen by it in another way.
    pub fn new(mut machine: Machine, inputs: Vec<Tensor>) -> Result<(RecordedRun, Vec<Value>)> {
        let (mut given, mut reads) = (inputs, Vec::new());
        loop {
            match machine.advance()? {
                Progress::Read(tensor, elem) => {
                    let recording = Recording::reading(&given.iter().collect::<Vec<_>>(), &[&tensor])?;
                    let host = Host::read(&tensor, elem)?;
                    reads.push(RecordedRead { recording, elem, found: host.data.clone() });
                    given.push(tensor);
                    machine.provide(host);
                }
                Progress::Done(values) => {
                    let mut tensors = Vec::new();
                    values.iter().for_each(|value| value.tensors(&mut tensors));
                    let outputs = values.iter().map(RecordedOutput::new).collect();
                    let last = match tensors.is_empty() {
                        true => None,
                        false => Some(Recording::reading(&given.iter().collect::<Vec<_>>(), &tensors)?),
                    };
                    lazuli::compute(&tensors)?;
                    return Ok((RecordedRun { reads, last, outputs }, values));
                }
            }
        }
    }

    /// Runs it again on other tensors; None if a number is another than the one that was found when it was recorded.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Option<Vec<Value>>> {
        let mut given = inputs.to_vec();
        for RecordedRead { recording, elem, found } in &self.reads {
            let read = recording.run(&mut given.clone(), &[])?.remove(0);
            if Host::read(&read, *elem)?.data != *found {
                return Ok(None);
            }
            given.push(read);
        }
        let made = match &self.last {
            Some(recording) => recording.run(&mut given, &[])?,
            None => Vec::new(),
        };
        let mut made = made.into_iter();
        Ok(Some(self.outputs.iter().map(|output| output.value(&mut made)).collect()))
    }
}

impl RecordedOutput {
    /// What stands for a value.
    fn new(value: &Value) -> RecordedOutput {
        match &value.0 {
            Kind::Device(_, elem) => RecordedOutput::Tensor(*elem),
            Kind::Sequence(values) => RecordedOutput::Sequence(values.iter().map(RecordedOutput::new).collect()),
            Kind::Host(_) | Kind::Nothing => RecordedOutput::Fixed(value.clone()),
        }
    }

    fn value(&self, made: &mut impl Iterator<Item = Tensor>) -> Value {
        match self {
            RecordedOutput::Tensor(elem) => {
                let tensor = made.next().expect("a recording makes as many tensors as it was asked for");
                Value(Kind::Device(tensor, *elem))
            }
            RecordedOutput::Sequence(values) => Value::sequence(values.iter().map(|value| value.value(made)).collect()),
            RecordedOutput::Fixed(value) => value.clone(),
        }
    }
}
