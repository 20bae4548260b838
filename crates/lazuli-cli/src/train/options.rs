//! What `lazuli train` was asked for, and the models it knows.

use std::path::PathBuf;

use lazuli::Device;
use lazuli_nn::{Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu, Sequential, Window};

use crate::args::{Words, flag, number, unknown};

/// What `lazuli train --help` prints.
pub const HELP: &str = "\
Trains a model on handwritten digits. `cargo xtask data mnist` fetches the data.

Usage: lazuli train mnist [OPTIONS]

Options:
  --preset NAME   mlp (784-256-10, the default) or cnn (two convolutions)
  --epochs N      How often all images are seen, 1 to 1000000 (mlp: 5, cnn: 3)
  --batch N       Images per step, of all ranks together, 1 to as many as there are (64)
  --lr RATE       The highest learning rate, 1e-9 to 1 (mlp: 0.002, cnn: 0.003)
  --seed N        Same seed, same device: same curve (1)
  --data FOLDER   Where the images are (data/mnist)
  --out FOLDER    Where checkpoint, log and curves go (runs/mnist-PRESET)
  --resume        Goes on from the checkpoint; Ctrl-C leaves one
  --device NAME   As for the other commands
  --distributed   One of the ranks that `mpirun` or `srun` has started; needs the feature `mpi`
  -h, --help      This text
";

const OPTIONS: [&str; 12] = [
    "--preset",
    "--epochs",
    "--batch",
    "--lr",
    "--seed",
    "--data",
    "--out",
    "--resume",
    "--device",
    "--distributed",
    "--help",
    "-h",
];

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
    pub distributed: bool,
}

impl Options {
    /// Understands the words after `train`, or says which of them it does not understand.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut words = Words::new(words);
        match words.next().map(|(word, _)| word).as_deref() {
            Some("mnist") => {}
            Some(other) => return Err(format!("`{other}` cannot be trained; there is: mnist")),
            None => return Err("train what? There is: mnist".into()),
        }
        let (mut preset, mut epochs, mut lr, mut out) = (Preset::Mlp, None, None, None);
        let (mut batch, mut seed, mut resume, mut device, mut distributed) = (64, 1, false, None, false);
        let mut data = PathBuf::from("data/mnist");
        while let Some((name, given)) = words.next() {
            let mut value = |example| words.value(&name, given.clone(), example);
            match name.as_str() {
                "--preset" => {
                    preset = match value("cnn")?.as_str() {
                        "mlp" => Preset::Mlp,
                        "cnn" => Preset::Cnn,
                        other => return Err(format!("there is no preset `{other}`; there are: mlp, cnn")),
                    }
                }
                "--epochs" => epochs = Some(epochs_of(&name, &value("5")?)?),
                "--batch" => batch = batch_of(&name, &value("64")?)?,
                "--lr" => lr = Some(rate_of(&name, &value("0.002")?)?),
                "--seed" => seed = seed_of(&name, &value("1")?)?,
                "--data" => data = value("data/mnist")?.into(),
                "--out" => out = Some(value("runs/mine")?.into()),
                "--device" => device = Some(value("cpu")?),
                "--resume" => {
                    flag(&name, given)?;
                    resume = true;
                }
                "--distributed" => {
                    flag(&name, given)?;
                    distributed = true;
                }
                _ => return Err(unknown("option", &name, &OPTIONS)),
            }
        }
        let (usual_epochs, usual_lr) = match preset {
            Preset::Mlp => (5, 0.002),
            Preset::Cnn => (3, 0.003),
        };
        let out = out.unwrap_or_else(|| PathBuf::from(format!("runs/mnist-{}", preset.name())));
        let (epochs, lr) = (epochs.unwrap_or(usual_epochs), lr.unwrap_or(usual_lr));
        Ok(Options { preset, epochs, batch, lr, seed, data, out, resume, device, distributed })
    }
}

fn epochs_of(option: &str, word: &str) -> Result<u64, String> {
    number(option, word, "a whole number from 1 to 1000000", "5", |n| (1..=1_000_000).contains(n))
}

/// How many images there are is known when they are read.
fn batch_of(option: &str, word: &str) -> Result<usize, String> {
    number(option, word, "a whole number from 1 on", "64", |n| *n >= 1)
}

/// Adam moves a weight by about the rate in a step: with a larger one nothing is learned, with a smaller one nothing moves.
fn rate_of(option: &str, word: &str) -> Result<f64, String> {
    number(option, word, "a rate from 1e-9 to 1", "0.002", |rate| (1e-9..=1.0).contains(rate))
}

fn seed_of(option: &str, word: &str) -> Result<u64, String> {
    number(option, word, "a whole number from 0 to 18446744073709551615", "1", |_| true)
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
    fn values_may_stand_after_an_equals_sign() {
        assert_eq!(parse("mnist --epochs=2 --out=a=b"), parse("mnist --epochs 2 --out a=b"));
        assert_eq!(parse("mnist --out=a=b").expect("is understood").out, PathBuf::from("a=b"));
    }

    #[test]
    fn what_is_not_understood_is_told() {
        assert_eq!(parse(""), Err("train what? There is: mnist".into()));
        assert_eq!(parse("cifar"), Err("`cifar` cannot be trained; there is: mnist".into()));
        assert_eq!(parse("mnist --preset rnn"), Err("there is no preset `rnn`; there are: mlp, cnn".into()));
        assert_eq!(parse("mnist --epoch 3"), Err("there is no option `--epoch`; did you mean `--epochs`?".into()));
        let all =
            "--preset, --epochs, --batch, --lr, --seed, --data, --out, --resume, --device, --distributed, --help, -h";
        assert_eq!(parse("mnist --fast"), Err(format!("there is no option `--fast`; there are: {all}")));
        assert_eq!(parse("mnist extra"), Err(format!("there is no option `extra`; there are: {all}")));
        assert_eq!(parse("mnist --resume=no"), Err("--resume takes no value, not `no` either".into()));
    }

    #[test]
    fn values_out_of_range_are_told_what_would_work() {
        let table = [
            ("--epochs", "a whole number from 1 to 1000000", "5", &["0", "-1", "x", "1.5", "1000001"][..]),
            ("--batch", "a whole number from 1 on", "64", &["0", "-64", "many", "64.0"]),
            ("--lr", "a rate from 1e-9 to 1", "0.002", &["0", "-1", "1.5", "1e-10", "1e300", "inf", "NaN", "fast"]),
            ("--seed", "a whole number from 0 to 18446744073709551615", "1", &["-1", "18446744073709551616", "0x1"]),
        ];
        for (option, what, example, words) in table {
            for word in words {
                let expect = format!("{option} wants {what}, such as `{option} {example}`, not `{word}`");
                assert_eq!(parse(&format!("mnist {option} {word}")), Err(expect.clone()));
                assert_eq!(parse(&format!("mnist {option}={word}")), Err(expect));
            }
        }
    }

    #[test]
    fn values_that_are_missing_are_told() {
        for option in OPTIONS.iter().filter(|name| !["--resume", "--distributed", "--help", "-h"].contains(name)) {
            for words in [format!("mnist {option}"), format!("mnist {option}="), format!("mnist {option} --resume")] {
                let error = parse(&words).expect_err(&words);
                assert!(error.starts_with(&format!("{option} wants a value, such as `{option} ")), "{error}");
            }
        }
    }
}
