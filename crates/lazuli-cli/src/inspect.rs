//! `lazuli inspect`: what a model's file holds, without running it. A format is one more case of [`describe`].

use std::io::Write;
use std::path::{Path, PathBuf};

use lazuli::Device;
use lazuli_onnx::{Model, Outline};

use crate::Outcome;
use crate::args::{Words, unknown};

/// What `lazuli help inspect` prints.
pub const HELP: &str = "\
What an ONNX file holds: inputs and outputs with their types and sizes, how often each operator is there, and what of it
cannot be run. Nothing is run.

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
    let bytes = std::fs::read(&options.path).map_err(|e| format!("{}: {e}", options.path.display()))?;
    describe(&options.path, &bytes, out)
}

/// Tells formats apart by their names and says what the bytes hold.
fn describe(path: &Path, bytes: &[u8], out: &mut dyn Write) -> Outcome {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("onnx") => onnx(path, bytes, out),
        _ => Err(format!("{}: files of models end with .onnx", path.display()).into()),
    }
}

fn onnx(path: &Path, bytes: &[u8], out: &mut dyn Write) -> Outcome {
    let outline = Outline::from_bytes(bytes)?;
    let n_nodes: usize = outline.operators.values().sum();
    let n_kinds = outline.operators.len();
    writeln!(out, "{}: ONNX, {} bytes, {n_nodes} nodes of {n_kinds} operators", path.display(), bytes.len())?;
    match Model::load(path, &Device::cpu()) {
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
