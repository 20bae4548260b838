//! `lazuli run`: an ONNX model on files. Inputs are read as the model declares them, outputs printed for people or as JSON. All
//! that was decided on the way, such as a layout or a new size, is said on the standard error.

mod inputs;
mod outputs;
mod picture;

use std::io::Write;
use std::path::{Path, PathBuf};

use lazuli::{Device, Tensor};
use lazuli_onnx::Model;

use crate::Outcome;
use crate::args::{Words, flag, number, unknown};
use crate::loading::while_loading;

use picture::Layout;

/// What `lazuli help run` prints.
pub const HELP: &str = "\
Runs an ONNX model on files and prints what it gives. `lazuli inspect MODEL` says which inputs it wants.

Usage: lazuli run MODEL.onnx --input [NAME=]FILE … [OPTIONS]

Options:
  --input [NAME=]FILE   A file for an input: .npy, .png, .wav or .json; or JSON itself: --input rate=16000. Without a name it is
                        for the next input that has none yet. A JSON object has an entry for each input
  --layout nchw|nhwc    Where the colours of pictures are (guessed if one axis of the input is 3)
  --size WIDTHxHEIGHT   What pictures are resized to where the model leaves it open (their own size)
  --mean A,B,C          What is subtracted from colours, which are from 0 to 1 (0)
  --std A,B,C           What colours are then divided by (1)
  --rate HZ             What recordings are resampled to, mixed to one channel (16000)
  --labels FILE         Names of classes: a text with a line for each, or a JSON list
  --top N               Only the N largest numbers along the last axis (5 with --labels)
  --json                Everything as one JSON object; NaN and infinities are null
  --device NAME         A device by name, by part of its name, or by its index in `devices` (the best one)
  -h, --help            This text
";

const OPTIONS: [&str; 12] = [
    "--input", "--layout", "--size", "--mean", "--std", "--rate", "--labels", "--top", "--json", "--device", "--help",
    "-h",
];

/// What was asked for.
#[derive(Debug, PartialEq)]
pub struct Options {
    model: PathBuf,
    /// Each `[NAME=]FILE` or `[NAME=]JSON`.
    inputs: Vec<String>,
    pixels: Pixels,
    /// Samples a second that recordings are resampled to.
    rate: u32,
    labels: Option<PathBuf>,
    top: Option<usize>,
    is_json: bool,
    device: Option<String>,
}

/// What is done to pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pixels {
    layout: Option<Layout>,
    /// Width and height.
    size: Option<(usize, usize)>,
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Pixels {
    fn is_normalised(&self) -> bool {
        !(self.mean.is_empty() && self.std.is_empty())
    }

    /// Colours of 0 to 255 as `(x / 255 − mean) / std`; one number counts for all channels.
    fn normalised(&self, planes: &Tensor, channels: usize, device: &Device) -> Result<Tensor, String> {
        let per_channel = |option: &str, numbers: &[f32]| match numbers.len() {
            n if n == 1 || n == channels => Ok(Tensor::from_slice(numbers, [n, 1, 1], device)),
            n => Err(format!("{option} has {n} numbers for {channels} channels")),
        };
        let mut x = planes.div(255.0);
        if !self.mean.is_empty() {
            x = x.sub(per_channel("--mean", &self.mean)?);
        }
        if !self.std.is_empty() {
            x = x.div(per_channel("--std", &self.std)?);
        }
        Ok(x)
    }
}

impl Options {
    /// Understands the words after `run`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        let mut model = None;
        let mut options = Options {
            model: PathBuf::new(),
            inputs: Vec::new(),
            pixels: Pixels::default(),
            rate: 16_000,
            labels: None,
            top: None,
            is_json: false,
            device: None,
        };
        while let Some((name, given)) = words.next() {
            let pixels = &mut options.pixels;
            match name.as_str() {
                "--input" => options.inputs.push(words.value(&name, given, "photo.png")?),
                "--layout" => pixels.layout = Some(layout(&words.value(&name, given, "nchw")?)?),
                "--size" => pixels.size = Some(size(&words.value(&name, given, "224x224")?)?),
                "--mean" => pixels.mean = numbers(&name, &words.value(&name, given, "0.485,0.456,0.406")?)?,
                "--std" => {
                    pixels.std = numbers(&name, &words.value(&name, given, "0.229,0.224,0.225")?)?;
                    if pixels.std.contains(&0.0) {
                        return Err("--std divides: 0 is no number for it".into());
                    }
                }
                "--rate" => {
                    let word = words.value(&name, given, "16000")?;
                    let is_good = |rate: &u32| (100..=1_000_000).contains(rate);
                    options.rate = number(&name, &word, "samples a second from 100 to 1000000", "16000", is_good)?;
                }
                "--labels" => options.labels = Some(words.value(&name, given, "labels.txt")?.into()),
                "--top" => {
                    let word = words.value(&name, given, "5")?;
                    options.top = Some(number(&name, &word, "a whole number from 1 on", "5", |n| *n > 0)?);
                }
                "--json" => {
                    flag(&name, given)?;
                    options.is_json = true;
                }
                "--device" => options.device = Some(words.value(&name, given, "cpu")?),
                _ if name.starts_with('-') => return Err(unknown("option", &name, &OPTIONS)),
                _ => {
                    if let Some(first) = model.replace(name.clone()) {
                        return Err(format!("one model at a time: `{first}` or `{name}`; inputs come after --input"));
                    }
                }
            }
        }
        let model = model.ok_or("run which model? `lazuli run model.onnx --input photo.png`")?;
        Ok(Options { model: model.into(), ..options })
    }
}

fn layout(word: &str) -> Result<Layout, String> {
    match word.to_ascii_lowercase().as_str() {
        "nchw" | "chw" => Ok(Layout::Nchw),
        "nhwc" | "hwc" => Ok(Layout::Nhwc),
        _ => Err(format!("--layout is nchw or nhwc, not `{word}`")),
    }
}

fn size(word: &str) -> Result<(usize, usize), String> {
    let parsed = word.split_once(['x', '×']).map(|(width, height)| (width.parse(), height.parse()));
    match parsed {
        Some((Ok(width @ 1..=65_536), Ok(height @ 1..=65_536))) => Ok((width, height)),
        _ => Err(format!("--size wants a width and a height up to 65536, such as `--size 224x224`, not `{word}`")),
    }
}

fn numbers(option: &str, word: &str) -> Result<Vec<f32>, String> {
    let parsed: Option<Vec<f32>> = word.split(',').map(|n| n.trim().parse().ok()).collect();
    let numbers = parsed.filter(|numbers| numbers.iter().all(|n: &f32| n.is_finite()));
    numbers.ok_or_else(|| format!("{option} wants numbers with commas between them, not `{word}`"))
}

/// Loads, runs and prints.
pub fn run(options: &Options, out: &mut dyn Write) -> Outcome {
    let device = match &options.device {
        Some(name) => Device::open(name)?,
        None => Device::best(),
    };
    let model = load(&options.model, &device)?;
    let mut notes = Vec::new();
    let inputs = inputs::read(&model, options, &mut notes)?;
    for note in &notes {
        eprintln!("lazuli: {note}");
    }
    let labels = options.labels.as_deref().map(outputs::labels).transpose()?;
    let named: Vec<_> = inputs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    let results = model.run_values(&named)?;
    outputs::write(&results, labels.as_deref(), options, &device, out)
}

/// A model from a file, or how to get one.
pub fn load(path: &Path, device: &Device) -> Result<Model, Box<dyn std::error::Error>> {
    if !path.is_file() {
        return Err(format!(
            "{}: there is no such file. ONNX models are files that end with .onnx; PyTorch writes them with \
             torch.onnx.export, and packages such as `silero-vad` on PyPI carry them",
            path.display()
        )
        .into());
    }
    Ok(while_loading(path, || Model::load(path, device))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        Options::parse(words.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_understood() {
        let options =
            parse("m.onnx --input a.png --input=b=c.npy --size 320x240 --mean 0.5 --std=1,2,3 --top 3 --json")
                .expect("it is right");
        assert_eq!((options.model.to_str(), options.inputs), (Some("m.onnx"), vec!["a.png".into(), "b=c.npy".into()]));
        assert_eq!(options.pixels.size, Some((320, 240)));
        assert_eq!((options.pixels.mean, options.pixels.std), (vec![0.5], vec![1.0, 2.0, 3.0]));
        assert_eq!((options.top, options.is_json, options.rate), (Some(3), true, 16_000));
        assert_eq!(parse("m.onnx --layout NHWC").expect("it is right").pixels.layout, Some(Layout::Nhwc));
    }

    #[test]
    fn what_is_not_understood_is_an_error_that_says_what_would_be() {
        let check = |words: &str, message: &str| {
            let error = parse(words).expect_err("it is wrong");
            assert!(error.contains(message), "{words}: {error}");
        };
        check("", "run which model?");
        check("a.onnx b.onnx", "one model at a time: `a.onnx` or `b.onnx`; inputs come after --input");
        check("a.onnx --layout abc", "--layout is nchw or nhwc, not `abc`");
        check("a.onnx --size 3", "such as `--size 224x224`, not `3`");
        check("a.onnx --size 0x3", "not `0x3`");
        check("a.onnx --mean 1,b", "--mean wants numbers with commas between them, not `1,b`");
        check("a.onnx --std 0", "--std divides");
        check("a.onnx --top 0", "--top wants a whole number from 1 on");
        check("a.onnx --inptu x", "did you mean `--input`?");
        check("a.onnx --json=1", "--json takes no value");
    }
}
