//! A program as a test that can be pasted into a file: only the public API, and the noise its leaves are made of.

use crate::check::{Failure, Mode, What, stages};
use crate::program::Program;

/// The test that fails as the program did.
pub fn source(program: &Program, failure: &Failure) -> String {
    let mode = failure.mode;
    let names: Vec<String> = (0..program.nodes.len()).map(|i| format!("t{i}")).collect();
    let mut lines = Vec::new();
    for (i, node) in program.nodes.iter().enumerate() {
        let inputs: Vec<&str> = node.inputs.iter().map(|j| &names[*j][..]).collect();
        let text = node.op.text(&inputs);
        let text = if mode.computes(i) { format!("({text}).compute()?") } else { text };
        lines.push(format!("let t{i} = {text}; // {}{:?}", node.expect.dtype, node.expect.shape));
    }
    let outputs: Vec<String> = program.outputs.iter().map(|o| format!("&t{o}")).collect();
    if matches!(mode, Mode::OnlyOutputs | Mode::Staged) {
        let rest: Vec<String> =
            (0..names.len()).filter(|i| !program.outputs.contains(i)).map(|i| names[i].clone()).collect();
        lines.extend((!rest.is_empty()).then(|| format!("drop([{}]);", rest.join(", "))));
    }
    match mode {
        Mode::OneByOne => lines.extend(program.outputs.iter().rev().map(|o| format!("t{o}.compute()?;"))),
        Mode::Staged => {
            let stages = stages(&program.outputs);
            let stage = |stage: &Vec<usize>| stage.iter().map(|o| format!("&t{o}")).collect::<Vec<_>>().join(", ");
            let stages: Vec<String> = stages.iter().map(|outputs| format!("&[{}]", stage(outputs))).collect();
            lines.push(format!("lazuli::compute_staged(&[{}])?;", stages.join(", ")));
        }
        _ => lines.push(format!("lazuli::compute(&[{}])?;", outputs.join(", "))),
    }
    let number = |v: f64| match v {
        f64::INFINITY => "f64::INFINITY".to_string(),
        f64::NEG_INFINITY => "f64::NEG_INFINITY".to_string(),
        v => format!("{v:?}"),
    };
    match &failure.what {
        What::Element { node, element, got, allowed } => {
            lines.push(format!("let got = t{node}.to_vec::<f64>()?[{element}]; // {got:?}"));
            let inside = format!("({}..={}).contains(&got)", number(allowed.lo), number(allowed.hi));
            let allowed = match (allowed.is_nan(), allowed.nan) {
                (true, _) => "got.is_nan()".to_string(),
                (_, true) => format!("got.is_nan() || {inside}"),
                _ => inside,
            };
            lines.push(format!("assert!({allowed}, \"{{got}}\");"));
        }
        What::Type { node, wanted, .. } => {
            lines.push(format!("assert_eq!(format!(\"{{}}{{:?}}\", t{node}.dtype()?, t{node}.shape()?), {wanted:?});"));
        }
        What::Differs { node, .. } => {
            lines.push(format!("let first = t{node}.to_vec::<f64>()?; // differs when all of this is done again"));
        }
        What::Error(_) | What::Panic(_) | What::Twice { .. } => {}
    }
    let body: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    let data =
        if body.contains("data::") { format!("\nmod data {{\n{}}}\n", include_str!("data.rs")) } else { String::new() };
    let failure = failure.to_string().replace('\n', "\n// ");
    format!(
        "// {failure}\nuse lazuli::{{CustomOp, DType, Device, Tensor, bf16, f16, keep, s}};\n\n\
         #[test]\nfn random_case() -> lazuli::Result<()> {{\n    let cpu = Device::cpu();\n{body}    Ok(())\n}}\n{data}"
    )
}
