//! Rotary position embedding: pairs of features are turned by an angle that grows with the position, so that products of
//! queries and keys depend on how far apart they are.

use std::f64::consts::PI;
use std::sync::{Arc, Mutex, PoisonError};

use lazuli::{Device, Position, Tensor};

use crate::fault;

/// Which two features are a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// Neighbours: 0 and 1, 2 and 3. What GGUF files of llama models have.
    Neighbours,
    /// One of each half: 0 and d/2, 1 and d/2 + 1. What most models have.
    Halves,
}

/// How angles are changed so that a model reaches further than it was trained for.
#[derive(Clone, Debug, PartialEq)]
pub enum RotaryScaling {
    /// As trained.
    None,
    /// All angles divided by a factor.
    Linear(f64),
    /// YaRN: low frequencies are divided by `factor`, high ones stay, and a ramp blends between. The result is scaled by
    /// `attention_factor`, by default `0.1 · ln(factor) + 1`.
    Yarn {
        /// By how much the context is longer.
        factor: f64,
        /// How long the context was in training.
        trained_length: usize,
        /// Turns within the trained length above which a pair is fast (32).
        fast: f64,
        /// Turns below which a pair is slow (1).
        slow: f64,
        /// What both products' operands are scaled with.
        attention_factor: Option<f64>,
    },
    /// Llama 3.1: as YaRN, but mixed by wavelengths, and nothing is scaled.
    Llama3 {
        /// By how much slow pairs are slowed.
        factor: f64,
        /// Wavelengths above the trained length divided by this are slow (1).
        low: f64,
        /// Wavelengths below the trained length divided by this are fast (4).
        high: f64,
        /// How long the context was in training.
        trained_length: usize,
    },
    /// Every pair divided by a factor of its own, the result scaled by `attention_factor`.
    Factors {
        /// One per pair.
        factors: Vec<f64>,
        /// What both products' operands are scaled with; 1 changes nothing.
        attention_factor: f64,
    },
}

/// Turns queries and keys by their positions.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_nn::{Rotary, RotaryPairs};
/// let cpu = Device::cpu();
/// let rotary = Rotary::new(4, 10_000.0, RotaryPairs::Halves, &cpu);
/// let x = Tensor::from_slice(&[1.0f32, 1.0, 0.0, 0.0], [1, 1, 1, 4], &cpu);
/// // At position 0 nothing turns; at position 1 the first pair turns by 1, the second by 1/100.
/// assert_eq!(rotary.turn(&x, 0).to_vec::<f32>()?, [1.0, 1.0, 0.0, 0.0]);
/// let y = rotary.turn(&x, 1).to_vec::<f32>()?;
/// assert!((y[0] - 1f32.cos()).abs() < 1e-6 && (y[3] - 0.01f32.sin()).abs() < 1e-6);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Rotary {
    n_turned: usize,
    pairs: RotaryPairs,
    /// Radians a position for each pair.
    rates: Vec<f64>,
    scale: f64,
    device: Device,
    table: Mutex<Arc<Angles>>,
}

/// Cosines, and sines with their signs, `[positions, features]`.
struct Angles {
    n_positions: usize,
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// Turns the first `n_turned` features; pair i turns by `base^(−2i/n_turned)` a position.
    #[track_caller]
    pub fn new(n_turned: usize, base: f64, pairs: RotaryPairs, device: &Device) -> Rotary {
        Rotary::scaled(n_turned, base, pairs, &RotaryScaling::None, device)
    }

    /// The same with scaled angles.
    ///
    /// ```
    /// # use lazuli::Device;
    /// # use lazuli_nn::{Rotary, RotaryPairs, RotaryScaling};
    /// let rotary = Rotary::scaled(64, 10_000.0, RotaryPairs::Halves, &RotaryScaling::Linear(4.0), &Device::cpu());
    /// assert_eq!(rotary.rates()[0], 0.25);
    /// ```
    #[track_caller]
    pub fn scaled(n_turned: usize, base: f64, pairs: RotaryPairs, scaling: &RotaryScaling, device: &Device) -> Rotary {
        let _caller = fault::caller();
        let rates = (0..n_turned / 2).map(|i| base.powf(-2.0 * i as f64 / n_turned as f64)).collect();
        let (rates, scale) = scaling.applied(rates, base, n_turned);
        let empty = || Tensor::zeros([0, n_turned], lazuli::DType::F32, device);
        let table = Mutex::new(Arc::new(Angles { n_positions: 0, cos: empty(), sin: empty() }));
        Rotary { n_turned, pairs, rates, scale, device: device.clone(), table }
    }

    /// By how many radians a position each pair turns.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Tables for so many positions, so that turning up to there computes no angles. Otherwise they double when they must.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Rotary, RotaryPairs};
    /// let rotary = Rotary::new(4, 10_000.0, RotaryPairs::Halves, &Device::cpu());
    /// rotary.reserve(1_000);
    /// # let x = Tensor::rand([1, 4], 1, &Device::cpu());
    /// # assert!(rotary.turn(&x, 999).to_vec::<f32>().is_ok());
    /// ```
    pub fn reserve(&self, n_positions: usize) {
        self.angles(n_positions);
    }

    /// `x` is `[…, positions, features]`; its first row is at `position`, which is a number of the evaluation: another one
    /// needs no new plan.
    #[track_caller]
    pub fn turn(&self, x: &Tensor, position: impl Into<Position>) -> Tensor {
        let _caller = fault::caller();
        let position: Position = position.into();
        let shape = match x.shape() {
            Ok(shape) if shape.len() >= 2 && shape[shape.len() - 1] >= self.n_turned => shape.to_vec(),
            Ok(seen) => {
                let message = format!("wants […, positions, at least {} features], not {seen:?}", self.n_turned);
                return fault::shape("rotary", message).into();
            }
            Err(error) => return error.into(),
        };
        let rank = shape.len();
        let (n_rows, n_features) = (shape[rank - 2], shape[rank - 1]);
        let Some(end) = position.value().checked_add(n_rows) else {
            let position = position.value();
            return fault::shape("rotary", format!("{n_rows} rows from position {position} on have no end")).into();
        };
        let angles = self.angles(end);
        let turned = if n_features == self.n_turned { x.clone() } else { x.narrow(-1, 0, self.n_turned) };
        // Each feature beside the other one of its pair, which is a view.
        let half = self.n_turned / 2;
        let (split, flipped) = match self.pairs {
            RotaryPairs::Neighbours => ([half, 2], -1),
            RotaryPairs::Halves => ([2, half], -2),
        };
        let lead = &shape[..rank - 1];
        let partner = turned.reshape([lead, &split].concat()).flip(flipped).reshape([lead, &[self.n_turned]].concat());
        // (a, b) → (a·cos − b·sin, b·cos + a·sin): the table has −sin for the first of a pair.
        let rows = |table: &Tensor| table.rows_at(0, position, n_rows);
        let y = turned.mul(rows(&angles.cos)).add(partner.mul(rows(&angles.sin)));
        match n_features == self.n_turned {
            true => y,
            false => Tensor::cat(&[&y, &x.narrow(-1, self.n_turned, n_features - self.n_turned)], -1),
        }
    }

    /// Tables for at least so many positions.
    fn angles(&self, n_positions: usize) -> Arc<Angles> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if table.n_positions < n_positions {
            *table = Arc::new(self.tabulated(n_positions.next_power_of_two().max(64)));
        }
        table.clone()
    }

    fn tabulated(&self, n_positions: usize) -> Angles {
        let n = self.n_turned;
        let (mut cos, mut sin) = (vec![0f32; n_positions * n], vec![0f32; n_positions * n]);
        for position in 0..n_positions {
            for (i, rate) in self.rates.iter().enumerate() {
                let (s, c) = (position as f64 * rate).sin_cos();
                let (first, second) = match self.pairs {
                    RotaryPairs::Neighbours => (2 * i, 2 * i + 1),
                    RotaryPairs::Halves => (i, i + n / 2),
                };
                let row = position * n;
                cos[row + first] = (c * self.scale) as f32;
                cos[row + second] = (c * self.scale) as f32;
                sin[row + first] = (-s * self.scale) as f32;
                sin[row + second] = (s * self.scale) as f32;
            }
        }
        let tensor = |values: Vec<f32>| Tensor::from_vec(values, [n_positions, n], &self.device);
        Angles { n_positions, cos: tensor(cos), sin: tensor(sin) }
    }
}

impl RotaryScaling {
    /// What YaRN scales by where nothing else is said: `0.1 · ln(factor) + 1`.
    ///
    /// ```
    /// assert_eq!(lazuli_nn::RotaryScaling::yarn_attention_factor(1.0), 1.0);
    /// ```
    pub fn yarn_attention_factor(factor: f64) -> f64 {
        0.1 * factor.ln() + 1.0
    }

    /// The scaled rates, and what the result is multiplied with.
    fn applied(&self, rates: Vec<f64>, base: f64, n_turned: usize) -> (Vec<f64>, f64) {
        match self {
            RotaryScaling::None => (rates, 1.0),
            RotaryScaling::Linear(factor) => (rates.iter().map(|rate| rate / factor).collect(), 1.0),
            RotaryScaling::Yarn { factor, trained_length, fast, slow, attention_factor } => {
                // The pair that turns so often within the trained length.
                let pair = |turns: f64| {
                    n_turned as f64 * (*trained_length as f64 / (turns * 2.0 * PI)).ln() / (2.0 * base.ln())
                };
                let (low, high) = (pair(*fast).floor().max(0.0), pair(*slow).ceil().min(n_turned as f64 - 1.0));
                let mix = |(i, rate): (usize, &f64)| {
                    let share = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                    rate / factor * (1.0 - share) + rate * share
                };
                let scale = attention_factor.unwrap_or(RotaryScaling::yarn_attention_factor(*factor));
                (rates.iter().enumerate().map(mix).collect(), scale)
            }
            RotaryScaling::Llama3 { factor, low, high, trained_length } => {
                let length = *trained_length as f64;
                let scaled = |rate: &f64| {
                    let wavelength = 2.0 * PI / rate;
                    let smooth = ((length / wavelength - low) / (high - low)).clamp(0.0, 1.0);
                    rate / factor * (1.0 - smooth) + rate * smooth
                };
                (rates.iter().map(scaled).collect(), 1.0)
            }
            RotaryScaling::Factors { factors, attention_factor } => {
                let factor = |i: usize| factors.get(i).copied().unwrap_or(1.0);
                (rates.iter().enumerate().map(|(i, rate)| rate / factor(i)).collect(), *attention_factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs 0, 16, 24, 28, 32, 40 and 63 of 64, base 500,000: what NumPy gives for the formulas of transformers'
    /// `modeling_rope_utils.py`, in f64.
    #[track_caller]
    fn check_rates(scaling: &RotaryScaling, expect: [f64; 7], scale: f64) {
        let rotary = Rotary::scaled(128, 500_000.0, RotaryPairs::Halves, scaling, &Device::cpu());
        let rates = [0, 16, 24, 28, 32, 40, 63].map(|pair| rotary.rates()[pair]);
        let is_near = |(a, b): (&f64, &f64)| (a / b - 1.0).abs() < 1e-12;
        assert!(rates.iter().zip(&expect).all(is_near), "{rates:?} {expect:?}");
        assert!((rotary.scale - scale).abs() < 1e-12, "{} {scale}", rotary.scale);
    }

    #[test]
    fn scaled_rates_are_those_of_transformers() {
        let none = [
            1.0,
            0.03760603093086393,
            0.0072926647372171085,
            0.0032114459947525913,
            0.001414213562373095,
            0.0002742481756762073,
            2.455140791131609e-06,
        ];
        check_rates(&RotaryScaling::None, none, 1.0);
        let linear = [
            0.25,
            0.009401507732715983,
            0.0018231661843042771,
            0.0008028614986881478,
            0.00035355339059327376,
            6.856204391905182e-05,
            6.137851977829022e-07,
        ];
        check_rates(&RotaryScaling::Linear(4.0), linear, 1.0);
        // Llama 3.1.
        let llama3 = [
            1.0,
            0.03760603093086393,
            0.0072926647372171085,
            0.0032114459947525913,
            0.0005248461609929547,
            3.428102195952591e-05,
            3.068925988914511e-07,
        ];
        check_rates(&RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, trained_length: 8_192 }, llama3, 1.0);
        let yarn = [
            1.0,
            0.03368873604223228,
            0.0034944018532498643,
            0.0008697666235788268,
            8.838834764831844e-05,
            1.7140510979762956e-05,
            1.5344629944572555e-07,
        ];
        let scaling =
            RotaryScaling::Yarn { factor: 16.0, trained_length: 4_096, fast: 32.0, slow: 1.0, attention_factor: None };
        check_rates(&scaling, yarn, 1.2772588722239782);
    }
}
