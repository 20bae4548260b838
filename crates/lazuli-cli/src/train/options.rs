//! What `lazuli train` was asked for, and the models it knows.

use std::path::PathBuf;

use lazuli::Device;
use lazuli_nn::{Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu, Sequential, Window};

/// What `lazuli train --help` prints.
pub const HELP: &str = "\
Trains a model on handwritten digits. `cargo xtask data mnist` fetches the data.

Usage: lazuli train mnist [OPTIONS]

Options:
  --preset NAME   mlp (784-256-10, the default) or cnn (two convolutions)
  --epochs N      How often all images are seen (mlp: 5, cnn: 3)
  --batch N       Images per step (64)
  --lr RATE       The highest learning rate (mlp: 0.002, cnn: 0.003)
  --seed N        Same seed, same device: same curve (1)
  --data FOLDER   Where the images are (data/mnist)
  --out FOLDER    Where checkpoint, log and curves go (runs/mnist-PRESET)
  --resume        Goes on from the checkpoint; Ctrl-C leaves one
  --device NAME   As for the other commands
";

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    Mlp,
    Cnn,
}

impl Preset {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Mlp => "mlp",
            Preset::Cnn => "cnn",
        }
    }

    /// A new model.
    pub fn model(self, seed: u64, device: &Device) -> Sequential {
        let seed = |i: u64| seed.wrapping_mul(1000).wrapping_add(i);
        let linear = |n_in, n_out, i| Linear::new(n_in, n_out, seed(i), device);
        let same = Window { padding: 1, ..Window::default() };
        let conv = |n_in, n_out, i| Conv2d::new(n_in, n_out, 3, same, seed(i), device);
        let start = Sequential::new();
        match self {
            Preset::Mlp => start.push(Flatten).push(linear(784, 256, 1)).push(Relu).push(linear(256, 10, 2)),
            Preset::Cnn => start
                .push(conv(1, 16, 1))
                .push(Relu)
                .push(MaxPool2d::new(2))
                .push(conv(16, 32, 2))
                .push(Relu)
                .push(MaxPool2d::new(2))
                .push(Flatten)
                .push(linear(32 * 7 * 7, 128, 3))
                .push(Relu)
                .push(Dropout::new(0.25, seed(4)))
                .push(linear(128, 10, 5)),
        }
    }
}

/// What to train and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub preset: Preset,
    pub epochs: u64,
    pub batch: usize,
    pub lr: f64,
    pub seed: u64,
    pub data: PathBuf,
    pub out: PathBuf,
    pub resume: bool,
    pub device: Option<String>,
}

impl Options {
    /// Understands the words after `train`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = words.into_iter();
        match words.next().as_deref() {
            Some("mnist") => {}
            Some(other) => return Err(format!("`{other}` cannot be trained; there is: mnist")),
            None => return Err("train what? There is: mnist".into()),
        }
        let (mut preset, mut epochs, mut lr, mut out) = (Preset::Mlp, None, None, None);
        let (mut batch, mut seed, mut resume, mut device) = (64, 1, false, None);
        let mut data = PathBuf::from("data/mnist");
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} wants a value"));
            match word.as_str() {
                "--preset" => {
                    preset = match value()?.as_str() {
                        "mlp" => Preset::Mlp,
                        "cnn" => Preset::Cnn,
                        other => return Err(format!("there is no preset `{other}`; there are: mlp, cnn")),
                    }
                }
                "--epochs" => epochs = Some(number(&word, &value()?)?),
                "--batch" => batch = number::<usize>(&word, &value()?)?.clamp(1, 60_000),
                "--lr" => lr = Some(number(&word, &value()?)?),
                "--seed" => seed = number(&word, &value()?)?,
                "--data" => data = value()?.into(),
                "--out" => out = Some(value()?.into()),
                "--device" => device = Some(value()?),
                "--resume" => resume = true,
                _ => return Err(format!("there is no option `{word}` of train; see `lazuli train --help`")),
            }
        }
        let (usual_epochs, usual_lr) = match preset {
            Preset::Mlp => (5, 0.002),
            Preset::Cnn => (3, 0.003),
        };
        let out = out.unwrap_or_else(|| PathBuf::from(format!("runs/mnist-{}", preset.name())));
        let (epochs, lr) = (epochs.unwrap_or(usual_epochs), lr.unwrap_or(usual_lr));
        Ok(Options { preset, epochs, batch, lr, seed, data, out, resume, device })
    }
}

fn number<T: std::str::FromStr>(option: &str, word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{option} wants a number, not `{word}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Options, String> {
        Options::parse(words.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read() {
        let options = parse("mnist --preset cnn --epochs 2 --lr 0.1 --resume").expect("is understood");
        assert_eq!((options.preset, options.epochs, options.lr, options.resume), (Preset::Cnn, 2, 0.1, true));
        assert_eq!(options.out, PathBuf::from("runs/mnist-cnn"));
    }

    #[test]
    fn what_is_not_understood_is_told() {
        assert_eq!(parse(""), Err("train what? There is: mnist".into()));
        assert_eq!(parse("cifar"), Err("`cifar` cannot be trained; there is: mnist".into()));
        assert_eq!(parse("mnist --epochs x"), Err("--epochs wants a number, not `x`".into()));
        assert_eq!(parse("mnist --epochs"), Err("--epochs wants a value".into()));
        assert!(parse("mnist --fast").is_err());
    }
}
