//! Runs ONNX's own tests, which `cargo xtask data onnx` fetches, and counts what passes, what is refused and what is wrong.
//! Outputs must have the declared type and shape; floats may differ by 1e-7 + 1e-3 · |expected|, ONNX's own tolerance.

mod damage;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lazuli::{Device, DeviceKind, Tensor};
use lazuli_onnx::{Dim, Model, Outline, Value};

/// The folders of tests, and what the page calls them.
const SUITES: &[(&str, &str)] = &[
    ("node", "node tests"),
    ("pytorch-converted", "pytorch-converted"),
    ("pytorch-operator", "pytorch-operator"),
    ("simple", "simple models"),
    ("light", "light models"),
];

/// Tests whose expected outputs are random numbers that somebody once drew. Types, shapes and statistics are compared, numbers are
/// not: see [`statistics_differ`].
const RANDOM: &[&str] = &[
    "test_bernoulli",
    "test_bernoulli_double",
    "test_bernoulli_seed",
    "test_bernoulli_expanded",
    "test_bernoulli_double_expanded",
    "test_bernoulli_seed_expanded",
    "test_training_dropout",
    "test_training_dropout_default",
    "test_training_dropout_default_mask",
    "test_training_dropout_mask",
];

/// Tests that expect rounding errors of the reference: NumPy's f32 transform leaves 1.9e-7 where the exact result, and ours,
/// is 0. There the absolute tolerance is 1e-6.
const NOISY: &[&str] = &["test_dft_inverse", "test_dft_inverse_opset19"];

/// How outputs are compared.
#[derive(Clone, Copy)]
struct Tolerance {
    /// Whether numbers are random, and only types, shapes and statistics are compared.
    is_random: bool,
    /// Beside 1e-3 of the expected number.
    absolute: f64,
}

/// Which types a test's inputs and outputs have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Types {
    /// float, int32, int64 and bool.
    Plain,
    /// These and integers of other widths from 8 to 64 bits.
    Integers,
    Other,
}

impl Types {
    fn of(outline: &Outline) -> Types {
        let plain = ["float", "int32", "int64", "bool"];
        let integers = ["int8", "int16", "uint8", "uint16", "uint32", "uint64"];
        let among = |known: &[&str]| outline.types.iter().all(|name| known.contains(&name.as_str()));
        match (among(&plain), among(&[&plain[..], &integers].concat())) {
            (true, _) => Types::Plain,
            (false, true) => Types::Integers,
            _ => Types::Other,
        }
    }
}

/// How a test went.
enum Verdict {
    Passed,
    Refused(String),
    Wrong(String),
    Panicked(String),
}

/// A test and how it went.
struct Outcome {
    suite: &'static str,
    name: String,
    /// The operator, or the test's name if there are several.
    op: String,
    types: Types,
    is_random: bool,
    verdict: Verdict,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("conformance: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs what the words say; whether nothing was wrong.
fn run() -> Result<bool, String> {
    let mut data = PathBuf::from("data/onnx");
    let (mut devices, mut only, mut every, mut page, mut n_damaged) = (Vec::new(), None, 1, None, 0);
    let mut is_bounded = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match &word[..] {
            "--data" => data = next()?.into(),
            "--device" => devices.push(next()?),
            "--only" => only = Some(next()?),
            "--every" => every = next()?.parse::<usize>().map_err(|e| e.to_string())?.max(1),
            "--damage" => n_damaged = next()?.parse::<usize>().map_err(|e| e.to_string())?,
            // Damaged files must also keep to a second, which needs a machine that is not busy.
            "--bounded" => is_bounded = true,
            "--page" => page = Some(PathBuf::from(next()?)),
            _ => {
                return Err(format!(
                    "`{word}`: there are --data, --device, --only, --every, --damage, --bounded, --page"
                ));
            }
        }
    }
    if devices.is_empty() {
        devices.push("cpu".to_string());
    }
    // A panic is counted; where it happened is in its verdict.
    std::panic::set_hook(Box::new(|_| {}));
    if n_damaged > 0 {
        return damage::run(&data, only.as_deref(), n_damaged, is_bounded);
    }
    let mut runs = Vec::new();
    for name in devices {
        let device = Device::open(&name).map_err(|e| e.to_string())?;
        let outcomes = on_device(&data, &device, only.as_deref(), every)?;
        println!("{name}:\n\n{}", totals(&outcomes));
        runs.push((name, outcomes));
    }
    if let Some(page) = page {
        fs::write(&page, written(&runs)).map_err(|e| format!("{}: {e}", page.display()))?;
    }
    let is_bad = |outcome: &Outcome| matches!(outcome.verdict, Verdict::Wrong(_) | Verdict::Panicked(_));
    Ok(!runs.iter().any(|(_, outcomes)| outcomes.iter().any(is_bad)))
}

/// Runs every test, or every n-th, on a device.
fn on_device(data: &Path, device: &Device, only: Option<&str>, every: usize) -> Result<Vec<Outcome>, String> {
    let mut outcomes = Vec::new();
    let mut n_found = 0;
    // Light models are whole networks for images: on a GPU that runs on the CPU they take more than ten minutes.
    let is_slow = |folder: &str| folder == "light" && device.info().kind == DeviceKind::Software;
    for (folder, suite) in SUITES.iter().filter(|(folder, _)| !is_slow(folder)) {
        for path in tests(&data.join(folder))? {
            n_found += 1;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if n_found % every != 0 || only.is_some_and(|only| !name.contains(only)) {
                continue;
            }
            outcomes.push(outcome(suite, name, &path, device));
        }
    }
    if n_found == 0 {
        return Err(format!("no tests in {}; `cargo xtask data onnx` fetches them", data.display()));
    }
    for outcome in &outcomes {
        let (what, why) = match &outcome.verdict {
            Verdict::Passed => continue,
            Verdict::Refused(why) => ("refused", why),
            Verdict::Wrong(why) => ("WRONG", why),
            Verdict::Panicked(why) => ("PANICKED", why),
        };
        println!("{what}: {} {}: {why}", outcome.suite, outcome.name);
    }
    Ok(outcomes)
}

/// The tests of a suite, in order: folders with a model and its data, or models whose expected output lies beside them.
fn tests(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| model_of(path).is_file() && model_of(path).extension().is_some_and(|e| e == "onnx"))
        .collect();
    paths.sort();
    Ok(paths)
}

/// The file of a test's model.
fn model_of(test: &Path) -> PathBuf {
    if test.is_dir() { test.join("model.onnx") } else { test.to_path_buf() }
}

fn outcome(suite: &'static str, name: String, path: &Path, device: &Device) -> Outcome {
    let outline = fs::read(model_of(path)).ok().and_then(|bytes| Outline::from_bytes(&bytes).ok());
    let outline = outline.unwrap_or_default();
    let op = match outline.operators.keys().collect::<Vec<_>>()[..] {
        [op] => op.clone(),
        _ => "several operators".to_string(),
    };
    let types = Types::of(&outline);
    let is_random = RANDOM.contains(&name.as_str());
    let absolute = if NOISY.contains(&name.as_str()) { 1e-6 } else { 1e-7 };
    let tolerance = Tolerance { is_random, absolute };
    let verdict = match catch_unwind(AssertUnwindSafe(|| verdict(path, device, tolerance))) {
        Ok(verdict) => verdict,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Verdict::Panicked(text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default())
        }
    };
    Outcome { suite, name, op, types, is_random, verdict }
}

fn verdict(path: &Path, device: &Device, tolerance: Tolerance) -> Verdict {
    let model = match Model::load(model_of(path), device) {
        Ok(model) => model,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    if path.is_file() {
        return on_light(&model, path, device, tolerance);
    }
    let mut sets = fs::read_dir(path).into_iter().flatten().filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_set = |path: &PathBuf| path.is_dir();
    let sets: Vec<PathBuf> = sets.by_ref().filter(is_set).collect();
    for set in &sets {
        let verdict = on_set(&model, set, device, tolerance);
        if !matches!(verdict, Verdict::Passed) {
            return verdict;
        }
    }
    if sets.is_empty() { Verdict::Wrong("the test has no data".into()) } else { Verdict::Passed }
}

fn on_set(model: &Model, set: &Path, device: &Device, tolerance: Tolerance) -> Verdict {
    let mut inputs = Vec::new();
    for (i, input) in model.inputs().iter().enumerate() {
        // An optional input may be left out.
        let Ok(bytes) = fs::read(set.join(format!("input_{i}.pb"))) else { continue };
        let value = Value::from_file_bytes(&bytes, input.form).and_then(|value| value.on_device(device));
        match value {
            Ok(value) => inputs.push((input.name.as_str(), value)),
            Err(error) => return Verdict::Refused(error.to_string()),
        }
    }
    compared(model, &inputs, &|i| set.join(format!("output_{i}.pb")), tolerance)
}

/// A light model: weights are constants and the input counts up from 0 to 1, as ONNX's own runner has it.
fn on_light(model: &Model, path: &Path, device: &Device, tolerance: Tolerance) -> Verdict {
    let mut inputs = Vec::new();
    for input in model.inputs() {
        let size = |dim: &Dim| if let Dim::Size(n) = dim { *n } else { 1 };
        let shape: Vec<usize> = input.dims.iter().flatten().map(size).collect();
        let n: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..n).map(|i| (i as f64 / n as f64) as f32).collect();
        match Value::try_from(&Tensor::from_vec(numbers, shape, device)) {
            Ok(value) => inputs.push((input.name.as_str(), value)),
            Err(error) => return Verdict::Wrong(error.to_string()),
        }
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    compared(model, &inputs, &|i| path.with_file_name(format!("{stem}_output_{i}.pb")), tolerance)
}

/// Runs the model and compares its outputs with those of files.
fn compared(model: &Model, inputs: &[(&str, Value)], file: &dyn Fn(usize) -> PathBuf, tolerance: Tolerance) -> Verdict {
    let results = match model.run_values(inputs) {
        Ok(results) => results,
        Err(lazuli::Error::Unsupported(fault)) => return Verdict::Refused(fault.to_string()),
        Err(error) => return Verdict::Wrong(error.to_string()),
    };
    for (i, output) in model.outputs().iter().enumerate() {
        let bytes = match fs::read(file(i)) {
            Ok(bytes) => bytes,
            Err(error) => return Verdict::Wrong(format!("{}: {error}", file(i).display())),
        };
        let expected = match Value::from_file_bytes(&bytes, output.form) {
            Ok(expected) => expected,
            Err(error) => return Verdict::Refused(error.to_string()),
        };
        let difference = match results.value(&output.name) {
            Ok(found) => difference(found, &expected, tolerance),
            Err(error) => Some(error.to_string()),
        };
        if let Some(difference) = difference {
            return Verdict::Wrong(format!("{}: {difference}", output.name));
        }
    }
    Verdict::Passed
}

/// What differs between two values, if anything does.
fn difference(found: &Value, expected: &Value, tolerance: Tolerance) -> Option<String> {
    match (found.as_sequence(), expected.as_sequence()) {
        (Some(found), Some(expected)) => {
            if found.len() != expected.len() {
                return Some(format!("{} values, not {}", found.len(), expected.len()));
            }
            return found.iter().zip(expected).find_map(|(found, expected)| difference(found, expected, tolerance));
        }
        (None, None) => {}
        _ => return Some("one is a sequence".into()),
    }
    if found.is_nothing() || expected.is_nothing() {
        return (found.is_nothing() != expected.is_nothing()).then(|| "one is nothing".to_string());
    }
    if found.elem_type() != expected.elem_type() {
        return Some(format!("{found:?}, not {expected:?}"));
    }
    match (found.shape(), expected.shape()) {
        (Ok(a), Ok(b)) if a == b => {}
        (a, b) => return Some(format!("shape {a:?}, not {b:?}")),
    }
    let (numbers, wanted) = match (found.to_f64s(), expected.to_f64s()) {
        (Ok(numbers), Ok(wanted)) => (numbers, wanted),
        (Err(error), _) | (_, Err(error)) => return Some(error.to_string()),
    };
    if tolerance.is_random {
        return statistics_differ(&numbers, &wanted);
    }
    let is_float = expected.elem_type().is_some_and(|elem| elem.is_float());
    let is_near = |a: f64, b: f64| match is_float {
        _ if a == b || (a.is_nan() && b.is_nan()) => true,
        true => (a - b).abs() <= tolerance.absolute + 1e-3 * b.abs(),
        false => false,
    };
    let at = numbers.iter().zip(&wanted).position(|(a, b)| !is_near(*a, *b))?;
    Some(format!("element {at} of {} is {}, not {}", numbers.len(), numbers[at], wanted[at]))
}

/// What of two draws from what should be one distribution does not fit: numbers that only one has among few, means that are
/// further apart than six standard deviations of their difference.
fn statistics_differ(found: &[f64], expected: &[f64]) -> Option<String> {
    let is_few = |x: &[f64]| x.iter().all(|v| [0.0, 1.0].contains(v));
    if is_few(expected) && !is_few(found) {
        return Some("other numbers than 0 and 1".into());
    }
    let moments = |x: &[f64]| {
        let n = x.len().max(1) as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n / n)
    };
    let parts: [(&str, fn(&f64) -> f64); 2] =
        [("mean", |v| *v), ("share of zeros", |v| if *v == 0.0 { 1.0 } else { 0.0 })];
    parts.into_iter().find_map(|(what, part)| {
        let of = |x: &[f64]| moments(&x.iter().map(part).collect::<Vec<_>>());
        let ((a, variance_a), (b, variance_b)) = (of(found), of(expected));
        // A NaN is not near.
        let is_near = (a - b).abs() <= 6.0 * (variance_a + variance_b).sqrt() + 1e-6;
        (!is_near).then(|| format!("the {what} is {a}, not near {b}"))
    })
}

/// `(passed, of them random, refused, wrong, panicked)`.
fn counts<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> [usize; 5] {
    let mut counts = [0; 5];
    for outcome in outcomes {
        let at = match outcome.verdict {
            Verdict::Passed if outcome.is_random => 1,
            Verdict::Passed => 0,
            Verdict::Refused(_) => 2,
            Verdict::Wrong(_) => 3,
            Verdict::Panicked(_) => 4,
        };
        counts[at] += 1;
    }
    counts
}

fn totals(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "| tests | passed | random, passed | refused | wrong | panicked |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    let mut line = |name: &str, [passed, random, refused, wrong, panicked]: [usize; 5]| {
        if passed + random + refused + wrong + panicked > 0 {
            let _ = writeln!(text, "| {name} | {passed} | {random} | {refused} | {wrong} | {panicked} |");
        }
    };
    let nodes = || outcomes.iter().filter(|outcome| outcome.suite == SUITES[0].1);
    for (name, types) in [
        ("node tests of float, int32, int64, bool", Types::Plain),
        ("node tests of these and other integers", Types::Integers),
        ("node tests of other types", Types::Other),
    ] {
        line(name, counts(nodes().filter(|outcome| outcome.types == types)));
    }
    for (_, suite) in &SUITES[1..] {
        line(suite, counts(outcomes.iter().filter(|outcome| outcome.suite == *suite)));
    }
    text
}

/// What a reader must know of types that are wider in ONNX than in the engine.
const NARROWED: &str = "
## Types of 64 bits

int64 and uint64 keep all their bits on the host, where shapes, axes, bounds and other integers of few elements are computed: there
arithmetic is that of i64. On a device they are stored as i32 and u32:

| where a number comes from | and does not fit i32 (u32) |
| --- | --- |
| a constant of the model, or a result of the host | an error that names the node, when an operator of the device wants it |
| an input, or an output given back as an input | it cannot: tensors of the engine have 32 bits; a `Value` of the host is checked |
| a constant of floats, cast to int64 | an error that names the node |
| floats of a device, cast to int64 | the nearest number that fits, without an error |
| sums, products and shifts on a device | the lower 32 bits, without an error |
| `BitShift` of 64 bits | exact: it runs on the host |

double is stored as f32 and rounds; a constant beyond f32 is an error when the model is loaded. int8, int16 and uint16 are stored in
32 bits and wrap to their own bits after each operator.
";

/// docs/onnx.md: totals of every device, the rest of the first.
fn written(runs: &[(String, Vec<Outcome>)]) -> String {
    let mut text = String::from(
        "<!-- Written by `cargo xtask conformance`. Do not edit. -->\n\n# ONNX conformance\n\nONNX's own tests, as the package \
         `onnx` 1.22.0 carries them, run by `lazuli-onnx`. A test passes if every output has the declared type\nand shape and \
         differs by at most 1e-7 + 1e-3 · |expected|. A test is refused if the model, or what it asks of an operator,\nis not \
         supported: that is an error which names the operator. Outputs that are random numbers are compared by type,\nshape, \
         mean and share of zeros.",
    );
    let _ = writeln!(
        text,
        " {} expect the rounding errors of NumPy's f32 transform where the\nexact result is 0: there 1e-6 is allowed. Light models take more than\nten minutes on a software GPU and are run on the CPU alone.",
        NOISY.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" and ")
    );
    text += NARROWED;
    for (name, outcomes) in runs {
        let _ = write!(text, "\n## Totals: {name}\n\n{}", totals(outcomes));
    }
    let outcomes = runs.first().map_or(&[][..], |(_, outcomes)| outcomes);
    text += "\n## Node tests by operator\n\n| operator | passed | refused | wrong |\n| --- | --- | --- | --- |\n";
    let mut by_op: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.suite == SUITES[0].1) {
        by_op.entry(&outcome.op).or_default().push(outcome);
    }
    for (op, outcomes) in &by_op {
        let [passed, random, refused, wrong, panicked] = counts(outcomes.iter().copied());
        let _ = writeln!(text, "| {op} | {} | {refused} | {} |", passed + random, wrong + panicked);
    }
    text += "\n## What is refused\n\n";
    for outcome in outcomes {
        if let Verdict::Refused(message) = &outcome.verdict {
            let reason = message.split_whitespace().collect::<Vec<_>>().join(" ");
            // Where in the source it was refused says nothing to a reader of the page.
            let reason = reason.split(" (crates/").next().unwrap_or_default().to_string();
            let _ = writeln!(text, "- {}: {reason}", outcome.name);
        }
    }
    text
}
