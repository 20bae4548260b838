//! Every form of kernel by name, each with programs that lead to it: sizes that fill no tile, every dtype, both layouts of
//! an operand. Not random: what is checked is the same on every device, so that reports can be compared.

mod elementwise;
mod products;
mod moves;
mod reductions;

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use lazuli::{DType, Error, Tensor};

use crate::cell::Cell;
use crate::check::{Failure, Mode, Results, What, quietly, run_and_compare};
use crate::leaf::Leaf;
use crate::print::source;
use crate::program::{Limits, Op, Program};
use crate::search::search;
use crate::subject::device;

/// A kind of kernel, and how it is checked.
pub struct Form {
    /// What it is called in reports.
    pub name: &'static str,
    cases: Cases,
}

enum Cases {
    Programs(Box<dyn Fn() -> Vec<Program> + Send + Sync>),
    /// As many random programs, with at most so many ops, from this seed on.
    Random {
        seed: u64,
        n_programs: usize,
        max_ops: usize,
        limits: Limits,
    },
}

/// What checking a form found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Programs run.
    pub n_cases: usize,
    /// Elements compared.
    pub n_elems: usize,
    /// The largest error of an element of floats, in units of its last place; for sums, of a sixteenth of the largest sum if
    /// it is less than that. Not measured for random programs, whose errors add up.
    pub worst_ulps: f64,
    /// The kernels that ran, by form and variant.
    pub kernels: BTreeSet<String>,
    /// What went wrong; nothing: the form is passed.
    pub failures: Vec<String>,
}

/// All forms, in the order they are reported.
///
/// ```
/// let names: Vec<_> = lazuli_check::forms().iter().map(|form| form.name).collect();
/// assert!(names.contains(&"product, tiles"));
/// ```
pub fn forms() -> Vec<Form> {
    let random = |name, seed, n_programs, max_ops, limits| Form {
        name,
        cases: Cases::Random { seed, n_programs, max_ops, limits },
    };
    let mut all = elementwise::forms();
    all.extend(moves::forms());
    all.extend(reductions::forms());
    all.extend(products::forms());
    all.push(random("random programs, small", 1, 40, 12, Limits::SMALL));
    all.push(random("random programs, large", 1 << 32, 4, 6, Limits::LARGE));
    all
}

impl Form {
    /// A form with these programs.
    ///
    /// ```
    /// let form = lazuli_check::Form::new("nothing", Vec::new);
    /// assert_eq!(form.check().n_cases, 0);
    /// ```
    pub fn new(name: &'static str, programs: impl Fn() -> Vec<Program> + Send + Sync + 'static) -> Form {
        Form { name, cases: Cases::Programs(Box::new(programs)) }
    }

    /// The programs that are not random.
    #[cfg(test)]
    pub fn programs(&self) -> Vec<Program> {
        match &self.cases {
            Cases::Programs(programs) => programs(),
            Cases::Random { .. } => Vec::new(),
        }
    }

    /// Runs every case on the device under test and compares it with the oracle; and once more, for the same bits.
    pub fn check(&self) -> Verdict {
        let mut verdict = Verdict::default();
        match &self.cases {
            Cases::Programs(programs) => match quietly(programs) {
                Ok(programs) => programs.iter().for_each(|program| verdict.add(program)),
                // An oracle may need the device: random numbers.
                Err(panic) => verdict.failures.push(panic),
            },
            Cases::Random { seed, n_programs, max_ops, limits } => {
                verdict.n_cases = *n_programs;
                let found = quietly(|| search(*seed, *n_programs, *max_ops, *limits));
                match found {
                    Ok(None) => {}
                    Ok(Some(found)) => verdict.failures.push(told(&found.program, &found.failure)),
                    Err(panic) => verdict.failures.push(panic),
                }
            }
        }
        verdict
    }
}

impl Verdict {
    fn add(&mut self, program: &Program) {
        self.n_cases += 1;
        // If that fails, running it will say so.
        if let Ok(Ok(kernels)) = quietly(|| kernels(program)) {
            self.kernels.extend(kernels);
        }
        let twice = run_and_compare(program, Mode::Together).and_then(|first| {
            self.measure(program, &first);
            Ok((first, run_and_compare(program, Mode::Together)?))
        });
        match twice.map(|(first, second)| differing(&first, &second)) {
            Ok(None) => {}
            Ok(Some(what)) => self.failures.push(told(program, &Failure { mode: Mode::Together, what })),
            Err(failure) => self.failures.push(told(program, &failure)),
        }
    }

    fn measure(&mut self, program: &Program, results: &Results) {
        for (node, elements) in results.iter().filter(|(node, _)| program.outputs.contains(node)) {
            let expect = &program.nodes[*node].expect;
            self.n_elems += elements.len();
            let known = expect.cells.iter().filter(|c| c.magnitude().is_finite());
            let least = match program.nodes[*node].op.sums() {
                true => known.map(|c| c.magnitude()).fold(0.0, f64::max) / 16.0,
                false => 0.0,
            };
            let errors = expect.cells.iter().zip(elements).filter_map(|(c, got)| error(*c, *got, expect.dtype, least));
            self.worst_ulps = errors.fold(self.worst_ulps, f64::max);
        }
    }
}

/// How far an element is from the middle of its bounds, in units of its last place, or in those of `least` if it is less.
/// None where that means nothing: not a number, or little is known.
fn error(cell: Cell, got: f64, dtype: DType, least: f64) -> Option<f64> {
    let middle = 0.5 * (cell.lo + cell.hi);
    let size = middle.abs().max(least);
    if !size.is_finite() || !got.is_finite() || 0.5 * (cell.hi - cell.lo) > 0.1 * size {
        return None;
    }
    let (digits, low) = match dtype {
        DType::F32 => (23, -126),
        DType::F16 => (10, -14),
        DType::BF16 => (7, -126),
        _ => return None,
    };
    Some((got - middle).abs() / (f64::powi(2.0, -digits) * power_of_two(size).max(f64::powi(2.0, low))))
}

/// The largest power of two that is not greater in magnitude.
fn power_of_two(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { f64::from_bits(x.abs().to_bits() & !((1 << 52) - 1)) }
}

/// The first element that another run gave other bits for.
fn differing(first: &Results, second: &Results) -> Option<What> {
    first.iter().zip(second).find_map(|((node, a), (_, b))| {
        let element = (0..a.len()).find(|i| a[*i].to_bits() != b[*i].to_bits())?;
        Some(What::Differs { node: *node, element, got: [a[element], b[element]] })
    })
}

/// A failure, and the program as a test.
fn told(program: &Program, failure: &Failure) -> String {
    format!("{failure}\n{}", source(program, failure))
}

/// The kernels that a program runs as, by form and variant.
fn kernels(program: &Program) -> Result<Vec<String>, Error> {
    let mut tensors: Vec<Tensor> = Vec::new();
    for node in &program.nodes {
        let inputs: Vec<&Tensor> = node.inputs.iter().map(|i| &tensors[*i]).collect();
        let tensor = node.op.call(&inputs, &device());
        tensors.push(tensor);
    }
    let outputs: Vec<&Tensor> = program.outputs.iter().map(|o| &tensors[*o]).collect();
    let named = |kernel: &lazuli::KernelInfo| match &kernel.variant {
        // After the name of a variant stands why it was chosen.
        Some(variant) => {
            format!("{} {}", kernel.form, variant.split([',', ':', '(']).next().unwrap_or_default().trim())
        }
        None if kernel.form == "routine" => kernel.name.clone(),
        None => kernel.form.clone(),
    };
    Ok(lazuli::explain(&outputs)?.kernels.iter().map(named).collect())
}

impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Form({})", self.name)
    }
}

/// A program as it is written down: leaves of noise, then ops; what nobody uses is wanted.
#[derive(Default)]
struct Draft {
    program: Program,
    n_leaves: u32,
}

impl Draft {
    /// Noise of one of the kinds that `data` has.
    fn noise(&mut self, shape: &[usize], dtype: DType, kind: u32) -> usize {
        self.n_leaves += 1;
        let seed = 1000 * shape.len() as u32 + self.n_leaves;
        self.leaf(Leaf::Noise { shape: shape.to_vec(), dtype, kind, seed })
    }

    fn leaf(&mut self, leaf: Leaf) -> usize {
        self.program.push(Rc::new(leaf), Vec::new())
    }

    fn op(&mut self, op: impl Op + 'static, inputs: &[usize]) -> usize {
        self.program.push(Rc::new(op), inputs.to_vec())
    }

    fn done(mut self) -> Program {
        let nodes = &self.program.nodes;
        let is_wanted = |i: &usize| !nodes[*i].inputs.is_empty() && !nodes.iter().any(|n| n.inputs.contains(i));
        self.program.outputs = (0..nodes.len()).filter(is_wanted).collect();
        self.program
    }
}

const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const ALL: [DType; 7] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8, DType::Bool];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row;
    use crate::subject::on;
    use crate::testing::device as test_device;

    #[test]
    fn every_form_agrees_with_the_oracle() {
        let _subject = on(&test_device()).unwrap();
        for form in forms() {
            let verdict = form.check();
            assert_eq!(verdict.failures, [""; 0], "{}", form.name);
        }
    }

    #[test]
    fn every_row_has_a_form() {
        let _subject = on(&test_device()).unwrap();
        let texts: Vec<String> = forms()
            .iter()
            .flat_map(|form| form.programs())
            .flat_map(|program| program.nodes.iter().map(|node| node.op.text(&["x", "y", "z"])).collect::<Vec<_>>())
            .collect();
        let table = row::table();
        let names = table.unary.iter().map(|r| r.name).chain(table.binary.iter().map(|r| r.name));
        let names = names.chain(table.reduce.iter().map(|r| r.name)).chain(table.routines.iter().map(|r| r.name));
        // Random bits have no method of their own.
        for name in names.filter(|name| *name != "random") {
            assert!(texts.iter().any(|text| text.starts_with(&format!("x.{name}("))), "no form has {name}");
        }
    }
}
