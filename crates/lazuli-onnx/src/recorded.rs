//! Recorded runs of a model. From inputs of the same shapes a model makes the same tensors as before, as long as the numbers that it
//! reads on the way (the condition of an `If`, a size that is computed) are the same. So a run can be replayed as a few evaluations,
//! without visiting the nodes of the model. The recorded runs of one shape are a tree: they share their evaluations up to the first
//! number in which they differ. Knows nothing of operators.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lazuli::{Recording, Result, Tensor};

use crate::chunks::Evaluator;
use crate::elem::ElemType;
use crate::host::{Host, HostData};
use crate::machine::{Machine, Progress};
use crate::value::{Kind, Value};

/// How many shapes of inputs are remembered.
const MOST_SHAPES: usize = 8;
/// How many runs are recorded for inputs of one shape. Runs differ in the numbers that the model reads while it runs: one whose
/// `If` has two branches needs two recordings. After this many runs in a row that no recording fits, all recordings of the shape
/// are dropped and no more are made: a model that reads other numbers in every run (boxes in an image) gains nothing from them.
const MOST_RUNS: usize = 4;
/// The most evaluations that a recorded run may make before its last: the plan of each is kept. A `Loop` whose condition is computed
/// on the device makes one in every iteration, and a recurrence one for each chunk of its steps.
const MOST_EVALUATIONS: usize = 64;

/// What a recorded run is found by: element type and shape of every input of the model, None for an input that the caller left
/// out and that has a default value in the model.
pub type Signature = Vec<Option<(ElemType, Vec<usize>)>>;

/// The recorded runs of a model.
#[derive(Default)]
pub struct RecordedRuns(Mutex<VecDeque<ShapeRuns>>);

/// The runs with inputs of one shape.
struct ShapeRuns {
    signature: Signature,
    /// What all of them do first; None before one is recorded.
    first: Option<Arc<RecordedStep>>,
    n_recorded: usize,
    /// Runs since the last one that a recording fitted.
    n_missed: usize,
}

impl ShapeRuns {
    fn is_given_up(&self) -> bool {
        self.n_recorded >= MOST_RUNS && self.n_missed >= MOST_RUNS
    }
}

/// What is known of inputs of some signature.
pub struct Known {
    /// The recorded runs, if there are any.
    pub runs: Option<Arc<RecordedStep>>,
    /// Whether a run that none of them fits is to be recorded.
    pub wants_more: bool,
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
        let at = shapes.iter().position(|shape| shape.signature == *signature);
        let Some(shape) = at.and_then(|at| shapes.remove(at)) else {
            shapes.truncate(MOST_SHAPES - 1);
            shapes.push_front(ShapeRuns { signature: signature.clone(), first: None, n_recorded: 0, n_missed: 0 });
            return Known { runs: None, wants_more: false };
        };
        let known = Known { runs: shape.first.clone(), wants_more: shape.n_recorded < MOST_RUNS };
        shapes.push_front(shape);
        known
    }

    /// Notes whether a recording fitted a run.
    pub fn note(&self, signature: &Signature, has_fitted: bool) {
        let mut shapes = self.lock();
        if let Some(shape) = shapes.iter_mut().find(|shape| shape.signature == *signature) {
            shape.n_missed = if has_fitted { 0 } else { shape.n_missed + 1 };
            if shape.is_given_up() {
                shape.first = None;
            }
        }
    }

    /// Keeps a run, unless there are many already. One that could not be recorded counts, so that it is not tried every time.
    pub fn keep(&self, signature: &Signature, run: Option<RecordedRun>) {
        let mut shapes = self.lock();
        let shape = shapes.iter_mut().find(|shape| shape.signature == *signature);
        let Some(shape) = shape.filter(|shape| shape.n_recorded < MOST_RUNS) else { return };
        shape.n_recorded += 1;
        match (&shape.first, run) {
            (None, Some(run)) => shape.first = Some(Arc::new(run.into_steps())),
            (Some(first), Some(run)) => first.join(run),
            (_, None) => {}
        }
    }
}

#[cfg(test)]
impl RecordedRuns {
    /// Per shape of inputs, how many different reads and ends the recorded runs have.
    pub fn n_steps(&self) -> Vec<[usize; 2]> {
        fn count(step: &RecordedStep) -> [usize; 2] {
            let branches = match step {
                RecordedStep::Read { branches, .. } => branches,
                RecordedStep::Evaluate { next, .. } => return count(next),
                RecordedStep::End { .. } => return [0, 1],
            };
            let branches = branches.lock().unwrap_or_else(PoisonError::into_inner);
            branches.iter().map(|(_, next)| count(next)).fold([1, 0], |[n, m], [reads, ends]| [n + reads, m + ends])
        }
        self.lock().iter().map(|shape| shape.first.as_deref().map_or([0, 0], count)).collect()
    }
}

/// A run as evaluations.
pub struct RecordedRun {
    /// The evaluations before the last that depend on the inputs, in order.
    evaluations: VecDeque<RecordedEvaluation>,
    last: RecordedStep,
}

/// A recorded evaluation, and what the model looked at in its result while the run was recorded: another run may go on in the same way
/// only if it finds the same there.
enum RecordedEvaluation {
    /// The model read its result, and found these numbers. `is_known` if it is an input or the result of an evaluation before.
    Read { recording: Recording, elem: ElemType, is_known: bool, found: HostData },
    /// The model looked at none of its results.
    Unread(Recording),
}

/// Records the evaluations of a run while it makes them.
struct Recorder {
    /// Tensors that later evaluations may read beside the model's constants: inputs, and results of the evaluations so far.
    given: RefCell<Vec<Tensor>>,
    evaluations: RefCell<VecDeque<RecordedEvaluation>>,
}

impl Recorder {
    /// Whether there are so many evaluations that the run will not be kept.
    fn is_full(&self) -> bool {
        self.evaluations.borrow().len() >= MOST_EVALUATIONS
    }

    fn is_known(&self, tensor: &Tensor) -> bool {
        self.given.borrow().iter().any(|known| known.is_same(tensor))
    }

    /// An evaluation of tensors; None if its results are the same in every run.
    fn recording(&self, tensors: &[&Tensor]) -> Result<Option<Recording>> {
        let recording = Recording::reading(&self.given.borrow().iter().collect::<Vec<_>>(), tensors)?;
        Ok(Some(recording).filter(Recording::depends_on_inputs))
    }
}

impl Evaluator for Recorder {
    fn evaluate(&self, _: &str, tensors: &[&Tensor]) -> Result<()> {
        // A tensor that is in `given` already, or that two values of the model share, is recorded once.
        let mut new: Vec<&Tensor> = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            if !self.is_known(tensor) && !new.iter().any(|known| known.is_same(tensor)) {
                new.push(tensor);
            }
        }
        let recording = if new.is_empty() || self.is_full() { None } else { self.recording(&new)? };
        lazuli::compute(tensors)?;
        if let Some(recording) = recording {
            self.evaluations.borrow_mut().push_back(RecordedEvaluation::Unread(recording));
            self.given.borrow_mut().extend(new.into_iter().cloned());
        }
        Ok(())
    }
}

/// What follows in a run from its inputs and from the numbers that were found before. Runs that have found the same share their
/// steps, so that whichever of them a new run is, each of its steps is computed once.
pub enum RecordedStep {
    /// The model reads a tensor that is computed from the inputs and from earlier reads; each branch is how the run goes on after
    /// one value of it. `is_known` if it is an input or the result of an evaluation before, so that it has its place already.
    Read { recording: Recording, elem: ElemType, is_known: bool, branches: Mutex<Vec<(HostData, Arc<RecordedStep>)>> },
    /// Evaluates tensors that later evaluations read.
    Evaluate { recording: Recording, next: Arc<RecordedStep> },
    /// The evaluation of the outputs, None if no output is a tensor of the device, and what each output is.
    End { recording: Option<Recording>, outputs: Vec<RecordedOutput> },
}

/// What an output is made of.
pub enum RecordedOutput {
    /// The next tensor of the last evaluation.
    Tensor(ElemType),
    /// What follows from shapes and from what was read.
    Fixed(Value),
    Sequence(Vec<RecordedOutput>),
}

impl RecordedRun {
    /// Runs a model and records it, unless it looks at too many tensors. `inputs` are those of the machine; none is seen by it in
    /// another way.
    pub fn new(machine: Machine, inputs: Vec<Tensor>, may_chunk: bool) -> Result<(Option<RecordedRun>, Vec<Value>)> {
        let recorder = Recorder { given: RefCell::new(inputs), evaluations: RefCell::default() };
        let mut machine = if may_chunk { machine.in_chunks(&recorder) } else { machine };
        let values = loop {
            match machine.advance()? {
                Progress::Read(tensor, elem) if !recorder.is_full() => {
                    let recording = recorder.recording(&[&tensor])?;
                    let host = Host::read(&tensor, elem)?;
                    // What is made of constants alone is the same in every run, in which it may be folded already.
                    if let Some(recording) = recording {
                        let (is_known, found) = (recorder.is_known(&tensor), host.data.clone());
                        let read = RecordedEvaluation::Read { recording, elem, is_known, found };
                        recorder.evaluations.borrow_mut().push_back(read);
                        recorder.given.borrow_mut().extend((!is_known).then_some(tensor));
                    }
                    machine.provide(host);
                }
                Progress::Read(tensor, elem) => machine.provide(Host::read(&tensor, elem)?),
                Progress::Done(values) => break values,
            }
        };
        let is_full = recorder.is_full();
        let mut tensors = Vec::new();
        values.iter().for_each(|value| value.tensors(&mut tensors));
        let outputs = values.iter().map(RecordedOutput::new).collect();
        let recording = match tensors.is_empty() || is_full {
            true => None,
            false => Some(Recording::reading(&recorder.given.borrow().iter().collect::<Vec<_>>(), &tensors)?),
        };
        lazuli::compute(&tensors)?;
        let (last, evaluations) = (RecordedStep::End { recording, outputs }, recorder.evaluations.take());
        Ok((Some(RecordedRun { last, evaluations }).filter(|_| !is_full), values))
    }

    /// Its steps, as far as they are left.
    fn into_steps(self) -> RecordedStep {
        self.evaluations.into_iter().rev().fold(self.last, |next, evaluation| match evaluation {
            RecordedEvaluation::Read { recording, elem, is_known, found } => {
                RecordedStep::Read { recording, elem, is_known, branches: Mutex::new(vec![(found, Arc::new(next))]) }
            }
            RecordedEvaluation::Unread(recording) => RecordedStep::Evaluate { recording, next: Arc::new(next) },
        })
    }
}

impl RecordedStep {
    /// Runs a model again on other tensors; None if a number is found that no recorded run has found there.
    pub fn run(self: Arc<RecordedStep>, inputs: &[Tensor]) -> Result<Option<Vec<Value>>> {
        let (mut step, mut given) = (self, inputs.to_vec());
        loop {
            let next = match &*step {
                RecordedStep::Read { recording, elem, is_known, branches } => {
                    let read = recording.run(&mut given.clone(), &[])?.remove(0);
                    let found = Host::read(&read, *elem)?.data;
                    given.extend((!is_known).then_some(read));
                    branch(&branches.lock().unwrap_or_else(PoisonError::into_inner), &found)
                }
                RecordedStep::Evaluate { recording, next } => {
                    let made = recording.run(&mut given.clone(), &[])?;
                    given.extend(made);
                    Some(next.clone())
                }
                RecordedStep::End { recording, outputs } => {
                    let made = recording.as_ref().map_or(Ok(Vec::new()), |recording| recording.run(&mut given, &[]))?;
                    let mut made = made.into_iter();
                    return Ok(Some(outputs.iter().map(|output| output.value(&mut made)).collect()));
                }
            };
            match next {
                Some(next) => step = next,
                None => return Ok(None),
            }
        }
    }

    /// Takes in another run, which begins like those that are there. Nothing happens if it is known: two threads may have
    /// recorded the same.
    fn join(self: &Arc<RecordedStep>, mut run: RecordedRun) {
        let mut step = self.clone();
        loop {
            step = match (&*step, run.evaluations.pop_front()) {
                (RecordedStep::Read { branches, .. }, Some(RecordedEvaluation::Read { found, .. })) => {
                    // Nothing panics while the lock is held, so a poisoned one is still good.
                    let mut branches = branches.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(next) = branch(&branches, &found) else {
                        branches.push((found, Arc::new(run.into_steps())));
                        return;
                    };
                    next
                }
                (RecordedStep::Evaluate { next, .. }, Some(RecordedEvaluation::Unread(_))) => next.clone(),
                _ => return,
            };
        }
    }
}

/// What follows after these numbers.
fn branch(branches: &[(HostData, Arc<RecordedStep>)], found: &HostData) -> Option<Arc<RecordedStep>> {
    branches.iter().find(|(known, _)| known.is_same(found)).map(|(_, next)| next.clone())
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
