//! `lazuli transcribe`: speech to text with a Moonshine model: an encoder, and a decoder that writes token after token and keeps
//! the keys and values of those before.

use std::io::Write;
use std::path::{Path, PathBuf};

use lazuli::{DType, Device, Tensor};
use lazuli_onnx::{Dim, Model};
use serde_json::{Value as Json, json};

use crate::Outcome;
use crate::args::{Words, flag, unknown};
use crate::loading::{ModelFiles, while_loading};
use crate::sound::Sound;

/// What `lazuli help transcribe` prints.
pub const HELP: &str = "\
Writes down what is said in a WAV file, with a Moonshine model. Recordings of any rate and number of channels will do; long ones
are cut where it is quiet.

Usage: lazuli transcribe FILE.wav --model DIR [OPTIONS]

Options:
  --model DIR     A folder with encoder_model.onnx, decoder_model_merged.onnx and tokenizer.json
  --json          One JSON object: the text, and each part with its seconds and tokens
  --device NAME   A device by name, by part of its name, or by its index in `devices` (the best one)
  -h, --help      This text
";

const OPTIONS: [&str; 5] = ["--model", "--json", "--device", "--help", "-h"];

const FILES: ModelFiles = ModelFiles {
    command: "transcribe",
    files: &["encoder_model.onnx", "decoder_model_merged.onnx", "tokenizer.json"],
    source: "Moonshine's are in the npm package @moonshine-ai/moonshine-js (dist/model/tiny/quantized), the tokenizer in \
             PyPI's useful-moonshine-onnx; in this repository `cargo xtask data moonshine` puts them into data/moonshine.",
};

/// What the model hears: samples a second.
const RATE: u32 = 16_000;
/// The tokens that a text begins and ends with.
const BEGIN: i64 = 1;
const END: i64 = 2;
/// The longest part, in samples: the model was made for parts of up to a minute, and short ones are heard better.
const LONGEST: usize = 30 * RATE as usize;
/// The shortest recording that the encoder's convolutions can take.
const SHORTEST: usize = 1024;

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    path: PathBuf,
    model: Option<PathBuf>,
    is_json: bool,
    device: Option<String>,
}

impl Options {
    /// Understands the words after `transcribe`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut path = None;
        let (mut model, mut is_json, mut device) = (None, false, None);
        while let Some((name, given)) = words.next() {
            match name.as_str() {
                "--model" => model = Some(words.value(&name, given, "data/moonshine")?.into()),
                "--device" => device = Some(words.value(&name, given, "cpu")?),
                "--json" => {
                    flag(&name, given)?;
                    is_json = true;
                }
                _ if name.starts_with('-') => return Err(unknown("option", &name, &OPTIONS)),
                _ => {
                    if let Some(first) = path.replace(name.clone()) {
                        return Err(format!("one recording at a time: `{first}` or `{name}`"));
                    }
                }
            }
        }
        let path = path.ok_or("transcribe what? `lazuli transcribe speech.wav --model DIR`")?;
        Ok(Options { path: path.into(), model, is_json, device })
    }
}

/// Loads, listens and writes.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let folder = FILES.folder(options.model.as_deref())?;
    let sound = Sound::load(&options.path)?;
    if let Some(changes) = sound.changes(RATE) {
        eprintln!("lazuli: {}: {changes}", options.path.display());
    }
    let samples = sound.resampled(RATE);
    if samples.len() < SHORTEST {
        let seconds = samples.len() as f64 / RATE as f64;
        return Err(format!("{}: {seconds:.2} s are too short for words", options.path.display()).into());
    }
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::best(),
    };
    let listener = Listener::load(&folder, &device)?;
    let (mut texts, mut parts, mut at) = (Vec::new(), Vec::new(), 0);
    for part in cut(&samples) {
        let tokens = listener.tokens(part)?;
        let text = listener.spelling.text(&tokens);
        if !options.is_json {
            writeln!(out, "{text}")?;
        }
        let seconds = |samples: usize| samples as f64 / RATE as f64;
        let (from, to) = (seconds(at), seconds(at + part.len()));
        parts.push(json!({ "from": from, "to": to, "text": text, "tokens": tokens }));
        texts.push(text);
        at += part.len();
    }
    if options.is_json {
        writeln!(out, "{}", json!({ "text": texts.join(" "), "parts": parts }))?;
    }
    Ok(())
}

/// Parts of at most [`LONGEST`], each but the last cut in the quietest tenth of a second of its last third.
fn cut(samples: &[f32]) -> Vec<&[f32]> {
    let window = RATE as usize / 10;
    let loudness = |at: usize| samples[at..at + window].iter().map(|x| (x * x) as f64).sum::<f64>();
    let (mut parts, mut start) = (Vec::new(), 0);
    while samples.len() - start > LONGEST {
        let places = (start + LONGEST * 2 / 3..start + LONGEST - window).step_by(window / 2);
        let quietest = places.min_by(|a, b| loudness(*a).total_cmp(&loudness(*b)));
        let end = quietest.map_or(start + LONGEST, |at| at + window / 2);
        parts.push(&samples[start..end]);
        start = end;
    }
    let rest = &samples[start..];
    if rest.len() >= SHORTEST || parts.is_empty() {
        parts.push(rest);
    }
    parts
}

/// The two models and the tokenizer.
struct Listener {
    encoder: Model,
    decoder: Model,
    spelling: Spelling,
    device: Device,
    /// The decoder's inputs for keys and values, with their shape before the first token.
    past: Vec<(String, Vec<usize>)>,
}

impl Listener {
    fn load(folder: &Path, device: &Device) -> Result<Listener, Box<dyn std::error::Error>> {
        let [encoder, decoder, tokenizer] = [0, 1, 2].map(|i| folder.join(FILES.files[i]));
        let spelling = Spelling::load(&tokenizer)?;
        let encoder = while_loading(&encoder, || Model::load(&encoder, device))?;
        let decoder = while_loading(&decoder, || Model::load(&decoder, device))?;
        // One recording, and nothing before the first token.
        let shape = |dims: &[Dim]| -> Vec<usize> {
            let size = |(i, dim): (usize, &Dim)| if let Dim::Size(n) = dim { *n } else { (i == 0) as usize };
            dims.iter().enumerate().map(size).collect()
        };
        let is_past = |name: &str| name.starts_with("past_key_values");
        let past = decoder.inputs().iter().filter(|input| is_past(&input.name));
        let past = past.map(|input| (input.name.clone(), shape(input.dims.as_deref().unwrap_or_default()))).collect();
        Ok(Listener { encoder, decoder, spelling, device: device.clone(), past })
    }

    /// What is said in a part, as tokens without the ones for begin and end.
    fn tokens(&self, samples: &[f32]) -> lazuli::Result<Vec<i64>> {
        let device = &self.device;
        let sound = Tensor::from_slice(samples, [1, samples.len()], device);
        let states = self.encoder.run(&[("input_values", &sound)])?.tensor("last_hidden_state")?.compute()?;
        let empty =
            |(name, shape): &(String, Vec<usize>)| (name.clone(), Tensor::zeros(shape.clone(), DType::F32, device));
        let mut past: Vec<(String, Tensor)> = self.past.iter().map(empty).collect();
        // Nobody says more than six and a half tokens a second: more of them is a model that repeats itself.
        let n_most = (samples.len() as f64 / RATE as f64 * 6.5).ceil() as usize + 1;
        let mut tokens = vec![BEGIN];
        while tokens.last() != Some(&END) && tokens.len() <= n_most {
            let is_cached = tokens.len() > 1;
            let last = Tensor::from_slice(&tokens[tokens.len() - 1..], [1, 1], device);
            let branch = Tensor::from_slice(&[is_cached], [1], device);
            let mut inputs: Vec<(&str, &Tensor)> =
                vec![("input_ids", &last), ("encoder_hidden_states", &states), ("use_cache_branch", &branch)];
            inputs.extend(past.iter().map(|(name, tensor)| (name.as_str(), tensor)));
            let given = self.decoder.run(&inputs)?;
            let mut wanted = vec![given.tensor("logits")?.argmax(-1)];
            // Keys and values of the encoder are made with the first token and stay.
            let grows = |name: &str| !is_cached || name.contains(".decoder.");
            for (name, tensor) in past.iter_mut().filter(|(name, _)| grows(name)) {
                *tensor = given.tensor(&name.replace("past_key_values", "present"))?;
                wanted.push(tensor.clone());
            }
            lazuli::compute(&wanted.iter().collect::<Vec<_>>())?;
            tokens.extend(wanted[0].to_vec::<i64>()?);
        }
        tokens.retain(|token| ![BEGIN, END].contains(token));
        Ok(tokens)
    }
}

/// How tokens are spelled: as a tokenizer.json of SentencePiece's kind has it, whose bytes are tokens of their own.
struct Spelling {
    pieces: Vec<String>,
}

impl Spelling {
    fn load(path: &Path) -> Result<Spelling, String> {
        let fault = |message: &str| format!("{}: {message}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| fault(&e.to_string()))?;
        let json: Json = serde_json::from_str(&text).map_err(|e| fault(&e.to_string()))?;
        let words = json["model"]["vocab"].as_object().ok_or_else(|| fault("there is no vocabulary"))?;
        let added = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        // Tokens that were added steer the model and are no text.
        let added = added.iter().filter_map(|token| Some((token["id"].as_u64()?, "")));
        let known = words.iter().filter_map(|(piece, id)| Some((id.as_u64()?, piece.as_str()))).chain(added);
        let mut pieces = Vec::new();
        for (id, piece) in known {
            let id =
                usize::try_from(id).ok().filter(|id| *id < 1 << 24).ok_or_else(|| fault("a token is beyond 2²⁴"))?;
            if pieces.len() <= id {
                pieces.resize(id + 1, String::new());
            }
            pieces[id] = piece.to_string();
        }
        Ok(Spelling { pieces })
    }

    /// Tokens as text, without the space that every text of this kind begins with.
    fn text(&self, tokens: &[i64]) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            let piece = usize::try_from(*token).ok().and_then(|i| self.pieces.get(i)).map_or("", String::as_str);
            let byte = piece.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            match byte.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(piece.replace('▁', " ").bytes()),
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.strip_prefix(' ').map_or(text.clone(), String::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_cut_where_it_is_quiet() {
        let second = RATE as usize;
        assert_eq!(cut(&vec![0.0; 5 * second]).len(), 1);
        // Loud but for half a second from 25 s on.
        let loud = |i: usize| if (25 * second..25 * second + second / 2).contains(&i) { 0.0 } else { 0.5 };
        let samples: Vec<f32> = (0..50 * second).map(loud).collect();
        let parts: Vec<usize> = cut(&samples).iter().map(|part| part.len()).collect();
        assert_eq!(parts.iter().sum::<usize>(), samples.len());
        assert!(parts.len() == 2 && (25 * second..=25 * second + second / 2).contains(&parts[0]), "{parts:?}");
    }

    #[test]
    fn tokens_are_spelled_with_spaces_and_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tokenizer.json");
        let vocabulary = r#"{"<s>": 1, "▁Hi": 3, "▁there": 4, "<0xC3>": 5, "<0xA9>": 6, "!": 7}"#;
        let json = format!(r#"{{"added_tokens": [{{"id": 1}}], "model": {{"vocab": {vocabulary}}}}}"#);
        std::fs::write(&path, json).expect("is written");
        let spelling = Spelling::load(&path).expect("it is a tokenizer");
        assert_eq!(spelling.text(&[1, 3, 4, 5, 6, 7, 99]), "Hi thereé!");
        std::fs::write(&path, "{}").expect("is written");
        assert!(Spelling::load(&path).err().is_some_and(|e| e.ends_with("there is no vocabulary")));
    }

    #[test]
    fn options_are_understood() {
        let parse = |words: &str| Options::parse(words.split_whitespace().map(String::from));
        let options = parse("a.wav --model m --json").expect("it is right");
        assert_eq!((options.path.to_str(), options.model.as_deref()), (Some("a.wav"), Some(Path::new("m"))));
        assert!(parse("").is_err_and(|e| e.starts_with("transcribe what?")));
        assert!(parse("a b").is_err_and(|e| e == "one recording at a time: `a` or `b`"));
        assert!(parse("a --modle b").is_err_and(|e| e.ends_with("did you mean `--model`?")));
    }
}
