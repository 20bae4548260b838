//! Training steps side by side: the same net from the same weights on the same batch, by everyone.
//!
//! A [`Net`] is a list of [`Part`]s with their first weights; a [`Trainer`] is one library that holds a net and makes
//! steps; [`turns`] runs them in turn, those of other languages included, which live in a process of their own (`process`).

#[cfg(any(feature = "burn", feature = "burn-wgpu"))]
mod burn_side;
#[cfg(feature = "candle")]
mod candle_side;
#[cfg(feature = "lazuli")]
mod lazuli_side;
mod process;
pub mod report;
pub mod turns;
#[cfg(feature = "volta")]
mod volta_side;

use crate::contender::Result;
use crate::inputs::{Input, values};

/// Images per step, and what an image is.
pub const BATCH: usize = 64;
pub const SIDE: usize = 28;
pub const CLASSES: usize = 10;
/// Adam's settings, the same for everyone.
pub const LR: f64 = 1e-3;
pub const EPS: f64 = 1e-8;

/// What is trained: the presets of `lazuli train`, without dropout, whose masks nobody shares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Net {
    /// 784-256-10.
    Mlp,
    /// Two convolutions of 3 × 3 with 16 and 32 channels, each with a 2 × 2 pool, then 1568-128-10.
    Cnn,
}

impl Net {
    /// Both.
    pub const ALL: [Net; 2] = [Net::Mlp, Net::Cnn];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Net::Mlp => "mlp 784-256-10",
            Net::Cnn => "cnn 16-32-128-10",
        }
    }

    /// Its layers in order.
    pub fn parts(self) -> Vec<Part> {
        use Part::*;
        match self {
            Net::Mlp => vec![Flatten, Linear(784, 256), Relu, Linear(256, 10)],
            Net::Cnn => vec![
                Conv(1, 16),
                Relu,
                Pool,
                Conv(16, 32),
                Relu,
                Pool,
                Flatten,
                Linear(1568, 128),
                Relu,
                Linear(128, 10),
            ],
        }
    }

    /// The first weights: for each layer that has some, `[n_out, n_in, …]` and `[n_out]`.
    pub fn weights(self) -> Vec<[Input; 2]> {
        let shape = |part: &Part| match *part {
            Part::Linear(n_in, n_out) => Some(vec![n_out, n_in]),
            Part::Conv(n_in, n_out) => Some(vec![n_out, n_in, 3, 3]),
            _ => None,
        };
        let weights = |(i, shape): (usize, Vec<usize>)| {
            let bound = 1.0 / (shape[1..].iter().product::<usize>() as f32).sqrt();
            let part = |seed: usize, shape: Vec<usize>| Input {
                data: values(seed as u32, shape.iter().product()).iter().map(|x| x * bound).collect(),
                shape,
            };
            [part(2 * i + 1, shape.clone()), part(2 * i + 2, vec![shape[0]])]
        };
        self.parts().iter().filter_map(shape).enumerate().map(weights).collect()
    }
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Part {
    Linear(usize, usize),
    /// 3 × 3 with one zero around.
    Conv(usize, usize),
    Relu,
    /// The greatest of 2 × 2.
    Pool,
    Flatten,
}

impl Part {
    /// Whether there is something to learn.
    pub fn has_weights(self) -> bool {
        matches!(self, Part::Linear(..) | Part::Conv(..))
    }
}

/// The batch that everyone sees in every step: `[64, 1, 28, 28]` and labels.
pub fn batch() -> (Vec<f32>, Vec<u32>) {
    let labels = (0..BATCH as u32).map(|i| i * 7 % CLASSES as u32).collect();
    (values(0, BATCH * SIDE * SIDE), labels)
}

/// One library with one net.
pub trait Trainer {
    /// Forward, loss, gradients and Adam's update; gives the loss as a number.
    fn step(&mut self) -> Result<f32>;
}

/// A library of this process: its name and how it takes up a net, on a device if it knows several.
pub type Local = (&'static str, fn(Net, &str) -> Result<Box<dyn Trainer>>);

/// Everyone in this build; ratios are to the first.
pub fn locals() -> Vec<Local> {
    vec![
        #[cfg(feature = "lazuli")]
        ("lazuli", lazuli_side::trainer),
        #[cfg(feature = "candle")]
        ("candle", candle_side::trainer),
        #[cfg(feature = "burn")]
        ("burn-flex", burn_side::flex),
        #[cfg(feature = "burn-wgpu")]
        ("burn-wgpu", burn_side::wgpu),
        #[cfg(feature = "volta")]
        ("volta", volta_side::trainer),
    ]
}

/// `[rows, cols]` as `[cols, rows]`, for those who keep weights that way.
#[cfg(any(feature = "burn", feature = "burn-wgpu", feature = "volta"))]
fn transposed(matrix: &Input) -> Input {
    let (rows, cols) = (matrix.shape[0], matrix.shape[1]);
    let data = (0..rows * cols).map(|i| matrix.data[i % rows * cols + i / rows]).collect();
    Input { shape: vec![cols, rows], data }
}
