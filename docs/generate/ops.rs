//! `docs/ops.md`: every row, and every method written with other ops.

use lazuli::ops::{self, Gives, Takes};

use crate::page::{code, paragraph, table};
use crate::{read, root};

const HEAD: &str = "\
<!-- Written by `cargo xtask docs` from the rows in crates/lazuli/src/ops. Do not edit. -->

# Ops

Primitives are rows of a table: one row holds the CPU loops of an op, its f64 oracle, its WGSL expression, its
gradient, known values and tolerance. Everything else is written with other ops, and the planner makes one kernel of
what can be one. Accuracy and special values are in [numerics.md](numerics.md).

The column *WGSL* is what shaders of GPUs say: `$x` and `$y` are the operands and `$t` is their type; names ending in
`_f32` and so on are functions that the row brings along. The column *gradient* tells whether `grad` goes through the op;
where it does not, the derivative is zero wherever there is one, and so is the gradient.
";

/// The page.
pub fn page() -> Result<String, String> {
    let rows = ops::table();
    let mut text = String::from(HEAD);

    text += "\n## Functions of one element\n\n";
    let headings = ["method", "what it is", "takes", "gives", "WGSL", "gradient"];
    text += &table(
        &headings,
        rows.unary.iter().map(|row| {
            let about = [code(row.name), row.doc.to_string(), takes(row.takes).into(), gives(row.gives).into()];
            [&about[..], &[code(row.wgsl), yes(row.grad.is_some())]].concat()
        }),
    );

    text += "\n## Functions of two elements\n\n";
    text += &paragraph(
        "The right side is a tensor, which broadcasts, or a number. `random` is inside `Tensor::rand` and `randn`; it has \
         no method.",
    );
    text += &table(
        &headings,
        rows.binary.iter().map(|row| {
            let about = [code(row.name), row.doc.to_string(), takes(row.takes).into(), gives(row.gives).into()];
            [&about[..], &[code(row.wgsl), yes(row.grad.is_some())]].concat()
        }),
    );

    text += "\n## Reductions\n\n";
    text += &paragraph("Over an axis, several (`[0, 2]`) or all (`..`); `keep(…)` of any leaves them with size 1.");
    text += &table(
        &headings,
        rows.reduce.iter().map(|row| {
            let about = [code(row.name), row.doc.to_string(), takes(row.takes).into(), gives(row.gives).into()];
            [&about[..], &[code(row.wgsl), yes(row.grad.is_some())]].concat()
        }),
    );

    text += "\n## Routines\n\nKernels written by hand, because each element depends on many.\n\n";
    text += &table(
        &["routine", "what it is", "gradient"],
        rows.routines.iter().map(|row| vec![code(row.name), row.doc.to_string(), yes(row.grad.is_some())]),
    );

    text += "\n## Methods\n\n\
             What is recorded directly or written with the rows above: methods of `Tensor`, by the file that has them.\n";
    for name in files("crates/lazuli/src/ops")? {
        let methods = methods(&read(&format!("crates/lazuli/src/ops/{name}"))?);
        if !methods.is_empty() {
            text += &format!("\n### ops/{name}\n\n");
            text +=
                &table(&["method", "what it is"], methods.into_iter().map(|(name, about)| vec![code(&name), about]));
        }
    }
    Ok(text)
}

/// The Rust files of a folder, sorted.
fn files(folder: &str) -> Result<Vec<String>, String> {
    let entries = std::fs::read_dir(root(folder)).map_err(|e| format!("{folder}: {e}"))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".rs")).collect();
    names.sort();
    Ok(names)
}

fn takes(takes: Takes) -> &'static str {
    match takes {
        Takes::Float => "floats; others become f32",
        Takes::Number => "numbers; bool becomes i32",
        Takes::Int => "integers",
        Takes::Bits => "integers, bool",
        Takes::Bool => "bool; others are `≠ 0`",
        Takes::Any => "all",
    }
}

fn gives(gives: Gives) -> &'static str {
    match gives {
        Gives::Same => "the same",
        Gives::Bool => "bool",
        Gives::Widened => "the same; u32 of u8, i32 of bool",
    }
}

fn yes(is_so: bool) -> String {
    if is_so { "yes" } else { "–" }.to_string()
}

/// The public methods of `impl Tensor` blocks that are written out, with their signatures and the first sentence of
/// their docs.
fn methods(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut is_tensor, mut about) = (false, Vec::new());
    let mut rest = text;
    for line in text.split_inclusive('\n') {
        // A signature may go on in the lines after this one.
        let signature = rest.trim_start().strip_prefix("pub fn ");
        rest = &rest[line.len()..];
        match line.trim_end() {
            "impl Tensor {" => is_tensor = true,
            "}" => is_tensor = false,
            _ => {}
        }
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("///") {
            about.push(doc.trim().to_string());
        } else if let Some(signature) = signature.filter(|_| is_tensor && line.starts_with("pub fn ")) {
            found.push((shortened(signature), first_sentence(&about)));
            about.clear();
        } else if !line.starts_with("#[") {
            about.clear();
        }
    }
    found
}

/// `sum(&self, axes: impl Into<Axes>) -> Tensor {` as `sum(axes)`; what is no method as `Tensor::cat(tensors, axis)`.
fn shortened(signature: &str) -> String {
    let name: String = signature.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let inside = signature.find('(').map_or("", |open| &signature[open + 1..closing(signature, open)]);
    // The `>` of an arrow (`Fn(f32) -> f32`) would be taken for the end of a list of type arguments.
    let inside = inside.replace("->", "");
    let mut depth = 0;
    let parameters = inside.split(|c: char| {
        depth += ['(', '[', '<'].contains(&c) as i32 - [')', ']', '>'].contains(&c) as i32;
        c == ',' && depth == 0
    });
    let names: Vec<&str> =
        parameters.filter_map(|p| p.split(':').next()).map(str::trim).filter(|p| !p.is_empty()).collect();
    match names.split_first() {
        Some((&("&self" | "self"), rest)) => format!("{name}({})", rest.join(", ")),
        _ => format!("Tensor::{name}({})", names.join(", ")),
    }
}

/// Where the parenthesis at `open` closes.
fn closing(text: &str, open: usize) -> usize {
    let mut depth = 0;
    for (i, c) in text.char_indices().skip_while(|(i, _)| *i < open) {
        depth += (c == '(') as i32 - (c == ')') as i32;
        if depth == 0 {
            return i;
        }
    }
    text.len()
}

fn first_sentence(lines: &[String]) -> String {
    let paragraph: Vec<&str> = lines.iter().map(String::as_str).take_while(|line| !line.is_empty()).collect();
    let text = without_links(&paragraph.join(" "));
    // A full stop, not two of them as in a range, and a new sentence after it.
    let is_end = |at: usize| !text[..at].ends_with('.') && text[at + 2..].starts_with(char::is_uppercase);
    match text.match_indices(". ").find(|(at, _)| is_end(*at)) {
        Some((at, _)) => text[..=at].to_string(),
        None => text,
    }
}

/// ``[`sum`](Tensor::sum)`` as `` `sum` ``: such links lead somewhere in rustdoc only.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        if let Some(open) = out.rfind('[') {
            out.remove(open);
        }
        out += part.split_once(')').map_or("", |(_, after)| after);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_with_their_docs() {
        let text = "impl Tensor {\n    /// The mean. And more.\n    ///\n    /// ```\n    /// ```\n    #[track_caller]\n    \
                    pub fn mean(&self, axes: impl Into<Axes>, n: (u8, u8)) -> Tensor {\n    }\n    /// Joins\n    /// all.\n    \
                    pub fn cat(tensors: &[&Tensor], axis: i32) -> Tensor {\n    fn hidden(&self) {}\n    \
                    /// Folds.\n    pub fn fold(\n        &self,\n        f: impl Fn(f32) -> f32,\n        axis: i32,\n    ) -> Tensor {\n}\n";
        let expect =
            [("mean(axes, n)", "The mean."), ("Tensor::cat(tensors, axis)", "Joins all."), ("fold(f, axis)", "Folds.")];
        assert_eq!(methods(text), expect.map(|(a, b)| (a.to_string(), b.to_string())));
    }

    #[test]
    fn a_sentence_ends_at_its_full_stop() {
        let first = |text: &str| first_sentence(&[text.to_string()]);
        assert_eq!(first("Elements `start .. end`. More."), "Elements `start .. end`.");
        assert_eq!(first("The root of [`var`](Tensor::var), kept."), "The root of `var`, kept.");
    }
}
