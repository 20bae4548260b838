//! Runs a program in several ways and compares each with what is known of its results. Any panic is a failure too:
//! in debug builds the planner's verifier speaks through one.

use std::cell::Cell as Flag;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use lazuli::{Error, Tensor};

use crate::cell::Cell;
use crate::program::Program;
use crate::subject::device;

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All outputs at once, everything else still held.
    Together,
    /// All outputs at once, nothing else held: inputs may be overwritten.
    OnlyOutputs,
    /// Each op computed as soon as it is written: nothing fuses.
    StepByStep,
    /// Every third op computed as soon as it is written.
    InParts,
    /// Outputs one after another, the last first.
    OneByOne,
    /// Outputs in stages, nothing else held.
    Staged,
}

const MODES: [Mode; 6] =
    [Mode::Together, Mode::OnlyOutputs, Mode::StepByStep, Mode::InParts, Mode::OneByOne, Mode::Staged];

/// What went wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// How the program was run.
    pub mode: Mode,
    /// What then was wrong.
    pub what: What,
}

/// A fault.
#[derive(Clone, Debug)]
#[allow(missing_docs)] // The fields are named in the text that it is printed as.
pub enum What {
    /// An element is not what it can be.
    Element { node: usize, element: usize, got: f64, allowed: Cell },
    /// A shape or dtype.
    Type { node: usize, got: String, wanted: String },
    /// The engine refused.
    Error(Error),
    /// The engine panicked with these words.
    Panic(String),
    /// Stages compute something twice that all at once would compute once.
    Twice { staged: usize, together: usize },
    /// The second run differs from the first.
    Differs { node: usize, element: usize, got: [f64; 2] },
}

impl Mode {
    /// Whether the op is computed on the spot.
    pub fn computes(self, node: usize) -> bool {
        self == Mode::StepByStep || (self == Mode::InParts && node % 3 == 2)
    }
}

/// The elements of each checked node.
pub type Results = Vec<(usize, Vec<f64>)>;

/// Checks a program in every mode.
pub fn check(program: &Program) -> Result<(), Failure> {
    let mut first: Option<Results> = None;
    for mode in MODES {
        let results = run_and_compare(program, mode)?;
        first.get_or_insert(results);
    }
    // Again, from the start: the plan comes from the cache now, and every bit is the same.
    let second = run_and_compare(program, Mode::Together)?;
    for ((node, a), (_, b)) in first.expect("was run").iter().zip(&second) {
        if let Some(element) = (0..a.len()).find(|i| a[*i].to_bits() != b[*i].to_bits()) {
            let what = What::Differs { node: *node, element, got: [a[element], b[element]] };
            return Err(Failure { mode: Mode::Together, what });
        }
    }
    Ok(())
}

/// Checks a program in one mode; gives what was computed.
pub fn run_and_compare(program: &Program, mode: Mode) -> Result<Results, Failure> {
    let failed = |what| Failure { mode, what };
    if let Some(path) = std::env::var_os("LAZULI_RANDOM_TRACE") {
        // What is about to run, in case it takes the process down.
        let source = crate::print::source(program, &failed(What::Panic("not yet".into())));
        std::fs::write(path, source).expect("the trace can be written");
    }
    let results = match quietly(|| run(program, mode)) {
        Ok(results) => results.map_err(failed)?,
        Err(panic) => return Err(failed(What::Panic(panic))),
    };
    for (node, elements) in &results {
        let cells = &program.nodes[*node].expect.cells;
        if let Some(i) = (0..cells.len()).find(|i| !cells[*i].allows(elements[*i])) {
            return Err(failed(What::Element { node: *node, element: i, got: elements[i], allowed: cells[i] }));
        }
    }
    Ok(results)
}

/// Computes the outputs (step by step, every node) and reads them.
fn run(program: &Program, mode: Mode) -> Result<Results, What> {
    let device = device();
    let mut tensors: Vec<Tensor> = Vec::with_capacity(program.nodes.len());
    for (i, node) in program.nodes.iter().enumerate() {
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|j| &tensors[*j]).collect();
        let tensor = node.op.call(&inputs, &device);
        let wanted = format!("{}{:?}", node.expect.dtype, node.expect.shape);
        let got = tensor.shape().and_then(|shape| Ok(format!("{}{shape:?}", tensor.dtype()?)));
        let got = got.map_err(What::Error)?;
        if got != wanted {
            return Err(What::Type { node: i, got, wanted });
        }
        tensors.push(if mode.computes(i) { tensor.compute().map_err(What::Error)? } else { tensor });
    }
    let mut read: Vec<(usize, Tensor)> = program.outputs.iter().map(|o| (*o, tensors[*o].clone())).collect();
    if matches!(mode, Mode::OnlyOutputs | Mode::Staged) {
        tensors.clear();
    }
    if mode == Mode::Staged {
        compute_staged(&read)?;
    }
    let wanted: Vec<&Tensor> = read.iter().map(|r| &r.1).collect();
    if mode == Mode::OneByOne {
        for tensor in wanted.iter().rev() {
            tensor.compute().map_err(What::Error)?;
        }
    }
    lazuli::compute(&wanted).map_err(What::Error)?;
    // What was held must not have been overwritten, be it input or intermediate.
    if matches!(mode, Mode::Together | Mode::StepByStep) {
        let is_leaf = |i: &usize| program.nodes[*i].inputs.is_empty();
        let rest = (0..tensors.len()).filter(|i| mode == Mode::StepByStep || is_leaf(i));
        read.extend(rest.map(|i| (i, tensors[i].clone())));
    }
    read.into_iter().map(|(i, tensor)| Ok((i, tensor.to_vec::<f64>().map_err(What::Error)?))).collect()
}

/// The stage of each output, as good as by chance.
pub fn stages(outputs: &[usize]) -> Vec<Vec<usize>> {
    let stage = |stage: usize| outputs.iter().copied().filter(|node| (node * 7 + outputs.len()) % 4 == stage).collect();
    (0..4).map(stage).collect()
}

/// Computes outputs in up to four stages, of which some may be empty, and reads each as soon as its stage has ended. What is
/// read then must be what is read in the end.
fn compute_staged(read: &[(usize, Tensor)]) -> Result<(), What> {
    let tensor = |node: &usize| read.iter().find(|r| r.0 == *node).map(|r| &r.1);
    let stages = stages(&read.iter().map(|r| r.0).collect::<Vec<_>>());
    let stages: Vec<Vec<&Tensor>> = stages.iter().map(|nodes| nodes.iter().filter_map(tensor).collect()).collect();
    let stages: Vec<&[&Tensor]> = stages.iter().map(Vec::as_slice).collect();
    // Cheap ops may be part of more or fewer kernels; those that have a kernel of their own are not computed twice.
    let n_own_of = |kernel: &lazuli::KernelInfo| match &*kernel.form {
        // Products that share an operand are one kernel if they belong to one stage.
        "matmul" => kernel.ops.iter().filter(|op| *op == "matmul").count(),
        form => (form == "routine") as usize,
    };
    let n_own = |plan: lazuli::Explain| plan.kernels.iter().map(n_own_of).sum::<usize>();
    let staged = n_own(lazuli::explain_staged(&stages).map_err(What::Error)?);
    let together = n_own(lazuli::explain(&stages.concat()).map_err(What::Error)?);
    if staged > together {
        return Err(What::Twice { staged, together });
    }
    let mut early: Vec<Vec<Vec<f64>>> = Vec::new();
    let done = lazuli::compute_staged_with(&stages, |stage| {
        early.push(stages[stage].iter().map(|tensor| tensor.to_vec()).collect::<lazuli::Result<_>>()?);
        Ok(())
    });
    done.map_err(What::Error)?;
    for (tensors, early) in stages.iter().zip(&early) {
        for (tensor, early) in tensors.iter().zip(early) {
            let late = tensor.to_vec::<f64>().map_err(What::Error)?;
            if let Some(element) = (0..late.len()).find(|i| late[*i].to_bits() != early[*i].to_bits()) {
                let node = read.iter().find(|r| std::ptr::eq(&r.1, *tensor)).map_or(0, |r| r.0);
                return Err(What::Differs { node, element, got: [early[element], late[element]] });
            }
        }
    }
    Ok(())
}

/// Runs `f`; what it says in a panic is returned, not printed: shrinking meets the same one many times.
pub fn quietly<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    thread_local! {
        static QUIET: Flag<bool> = const { Flag::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_worker = std::thread::current().name().is_some_and(|name| name.starts_with("lazuli"));
            if !QUIET.get() && !is_worker {
                loud(info);
            }
        }));
    });
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(f));
    QUIET.set(false);
    result.map_err(|panic| message(&*panic))
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without words".into())
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: ", self.mode)?;
        match &self.what {
            What::Element { node, element, got, allowed } => {
                let nan = if allowed.nan { " or NaN" } else { "" };
                write!(f, "element {element} of t{node} is {got:e}, not {:e} to {:e}{nan}", allowed.lo, allowed.hi)
            }
            What::Type { node, got, wanted } => write!(f, "t{node} is {got}, not {wanted}"),
            What::Error(error) => write!(f, "error: {error}"),
            What::Panic(text) => write!(f, "panic: {text}"),
            What::Twice { staged, together } => {
                write!(f, "{staged} products and routines in stages, {together} together")
            }
            What::Differs { node, element, got } => {
                write!(f, "element {element} of t{node} was {:e} and is {:e} when run again", got[0], got[1])
            }
        }
    }
}
