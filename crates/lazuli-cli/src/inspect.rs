//! `lazuli inspect`: what a file holds, without running it. A format is one more case of [`describe`].

use std::io::Write;
use std::path::{Path, PathBuf};

use lazuli::{Device, Tensor};
use lazuli_io::{Gguf, GgufValue};
#[cfg(feature = "onnx")]
use lazuli_onnx::{Model, Outline};

use crate::Outcome;
use crate::args::{Words, unknown};

/// What `lazuli help inspect` prints.
pub const HELP: &str = "\
What a file holds. Of ONNX models: inputs and outputs with their types and sizes, how often each operator is there, and what of it
cannot be run. Of safetensors, GGUF, npy and npz: names, types and shapes. Nothing is run.

Usage: lazuli inspect FILE

Options:
  -h, --help      This text
";

/// Which file.
#[derive(Debug, PartialEq, Eq)]
pub struct Options {
    path: PathBuf,
}

impl Options {
    /// Understands the words after `inspect`.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut path = None;
        while let Some((word, _)) = words.next() {
            if word.starts_with('-') {
                return Err(unknown("option", &word, &["--help", "-h"]));
            }
            if let Some(first) = path.replace(PathBuf::from(&word)) {
                return Err(format!("one file at a time: `{}` or `{word}`", first.display()));
            }
        }
        let path = path.ok_or("inspect which file? `lazuli inspect model.onnx`")?;
        Ok(Options { path })
    }
}

/// Prints what the file holds.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let file = std::fs::metadata(&options.path).map_err(|e| format!("{}: {e}", options.path.display()))?;
    describe(&options.path, file.len(), out)
}

/// Tells formats apart by their names and says what a file of so many bytes holds.
fn describe(path: &Path, n_bytes: u64, out: &mut dyn Write) -> Outcome {
    let cpu = Device::cpu();
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    match ending.as_str() {
        #[cfg(feature = "onnx")]
        "onnx" => onnx(path, n_bytes, out),
        #[cfg(not(feature = "onnx"))]
        "onnx" => Err(format!("{}: this command was built without the feature `onnx`", path.display()).into()),
        "gguf" => gguf(path, n_bytes, out),
        "safetensors" => tensors("safetensors", path, n_bytes, lazuli_io::load(path, &cpu)?, out),
        "npz" => tensors("npz", path, n_bytes, lazuli_io::load_npz(path, &cpu)?, out),
        "npy" => tensors("npy", path, n_bytes, vec![("array".to_string(), lazuli_io::load_npy(path, &cpu)?)], out),
        _ => Err(format!("{}: files end with .onnx, .safetensors, .gguf, .npy or .npz", path.display()).into()),
    }
}

#[cfg(feature = "onnx")]
fn onnx(path: &Path, n_bytes: u64, out: &mut dyn Write) -> Outcome {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let outline = Outline::from_bytes(&bytes)?;
    let n_nodes: usize = outline.operators.values().sum();
    let n_kinds = outline.operators.len();
    writeln!(out, "{}: ONNX, {n_bytes} bytes, {n_nodes} nodes of {n_kinds} operators", path.display())?;
    match crate::loading::while_loading(path, || Model::load(path, &Device::cpu())) {
        Ok(model) => {
            for (what, declared) in [("inputs", model.inputs()), ("outputs", model.outputs())] {
                writeln!(out, "\n{what}")?;
                for one in declared {
                    writeln!(out, "  {one}")?;
                }
            }
        }
        // The operators are worth printing all the same.
        Err(error) => writeln!(out, "\nit cannot be run: {error}")?,
    }
    writeln!(out, "\noperators")?;
    for (name, n) in &outline.operators {
        writeln!(out, "  {n:>6}  {name}")?;
    }
    Ok(())
}

fn gguf(path: &Path, n_bytes: u64, out: &mut dyn Write) -> Outcome {
    let file = Gguf::open(path)?;
    let (version, n_tensors) = (file.version(), file.tensors().len());
    writeln!(out, "{}: GGUF version {version}, {n_bytes} bytes, {n_tensors} tensors", path.display())?;
    // Tensors and elements are counted by storage format; the format with most elements is printed first.
    let mut formats: Vec<(&str, usize, usize)> = Vec::new();
    for tensor in file.tensors() {
        let n_elems = tensor.shape.iter().fold(1, |n: usize, size| n.saturating_mul(*size));
        match formats.iter_mut().find(|(name, ..)| *name == tensor.format.name) {
            Some((_, n_tensors, total)) => (*n_tensors, *total) = (*n_tensors + 1, total.saturating_add(n_elems)),
            None => formats.push((tensor.format.name, 1, n_elems)),
        }
    }
    formats.sort_by_key(|(.., n_elems)| std::cmp::Reverse(*n_elems));
    writeln!(out, "\nformats")?;
    for (name, n_tensors, n_elems) in formats {
        writeln!(out, "  {name:<8} {n_tensors:>5} tensors, {n_elems:>13} elements")?;
    }
    writeln!(out, "\nmetadata")?;
    for (key, value) in file.metadata().iter() {
        // Texts such as chat templates may be pages.
        let shown = match value {
            GgufValue::String(text) if text.chars().count() > 80 || text.contains('\n') => {
                format!("a text of {} characters", text.chars().count())
            }
            // What steers a terminal is not printed.
            GgufValue::String(text) => text.replace(char::is_control, " "),
            value => value.to_string(),
        };
        writeln!(out, "  {key}: {shown}")?;
    }
    writeln!(out, "\ntensors")?;
    for tensor in file.tensors() {
        writeln!(out, "  {:<8} {:?}  {}", tensor.format.name, tensor.shape, tensor.name)?;
    }
    Ok(())
}

fn tensors(format: &str, path: &Path, n_bytes: u64, named: Vec<(String, Tensor)>, out: &mut dyn Write) -> Outcome {
    writeln!(out, "{}: {format}, {n_bytes} bytes, {} tensors\n", path.display(), named.len())?;
    for (name, tensor) in &named {
        writeln!(out, "  {:<8} {:?}  {name}", tensor.dtype()?.to_string(), tensor.shape()?)?;
    }
    Ok(())
}
