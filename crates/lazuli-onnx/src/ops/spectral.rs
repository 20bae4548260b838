//! Fourier transforms as products with matrices of cosines and sines, windows, and the filters of mel spectrograms.

use std::f64::consts::PI;

use lazuli::{DType, Tensor};

use super::casting::target;
use super::padding::zero_padded;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, give_host, invalid, refuse, size};
use crate::elem::ElemType;
use crate::host::HostData;

/// The longest transform: its matrices have the square of its length.
const MAX_LENGTH: usize = 8192;

pub const ROWS: &[Row] = &[
    row("DFT", 17, &["axis", "inverse", "onesided"], dft),
    row("STFT", 17, &["onesided"], stft),
    row("HannWindow", 17, WINDOW, |c| window(c, |x| (x / 2.0).sin().powi(2))),
    // ONNX's constants are 25/46 and its rest.
    row("HammingWindow", 17, WINDOW, |c| window(c, |x| 25.0 / 46.0 - 21.0 / 46.0 * x.cos())),
    row("BlackmanWindow", 17, WINDOW, |c| window(c, |x| 0.42 - 0.5 * x.cos() + 0.08 * (2.0 * x).cos())),
    row("MelWeightMatrix", 17, &["output_datatype"], mel_weights),
];

const WINDOW: &[&str] = &["output_datatype", "periodic"];

/// Real and imaginary part of a signal along the last axis; the imaginary part of a real signal is missing.
struct Signal {
    real: Tensor,
    imaginary: Option<Tensor>,
}

impl Signal {
    /// A tensor `[…, n, …, 1 or 2]` with the axis of the signal moved to the end.
    fn of(x: &Tensor, along: usize) -> Result<Signal, Stop> {
        let rank = x.shape()?.len();
        let n_parts = x.shape()?.last().copied().unwrap_or(0);
        let part = |i: i64| x.select_index(-1, i).to_dtype(DType::F32).transpose(along as i32, rank as i32 - 2);
        match n_parts {
            1 => Ok(Signal { real: part(0), imaginary: None }),
            2 => Ok(Signal { real: part(0), imaginary: Some(part(1)) }),
            n => invalid(format!("a signal has 1 or 2 numbers in its last axis, not {n}")),
        }
    }

    /// The signal cut or filled with zeros to a length.
    fn with_length(self, length: usize) -> Result<Signal, Stop> {
        let cut = |x: &Tensor| -> Result<Tensor, Stop> {
            let shape = x.shape()?;
            let mut pads = vec![(0, 0); shape.len()];
            let last = shape.len() - 1;
            pads[last] = (0, length as i64 - shape[last] as i64);
            zero_padded(x, &pads, 0.0)
        };
        let imaginary = match &self.imaginary {
            Some(x) => Some(cut(x)?),
            None => None,
        };
        Ok(Signal { real: cut(&self.real)?, imaginary })
    }

    /// Times `e^(±2πi·kn/length)`, summed over `n`: `[…, n_in]` gives real and imaginary part of `[…, n_out]`.
    fn times(
        &self,
        c: &Call,
        length: usize,
        n_out: usize,
        weight: impl Fn(usize) -> f64,
        sign: f64,
    ) -> (Tensor, Tensor) {
        let n_in = self.real.shape().map_or(0, |shape| shape[shape.len() - 1]);
        let matrix = |f: fn(f64) -> f64| -> Tensor {
            let angle = |n: usize, k: usize| 2.0 * PI * ((n * k) % length) as f64 / length as f64;
            let numbers = (0..n_in).flat_map(|n| (0..n_out).map(move |k| (n, k)));
            let numbers: Vec<f32> = numbers.map(|(n, k)| (weight(n) * f(angle(n, k))) as f32).collect();
            Tensor::from_vec(numbers, [n_in, n_out], c.device)
        };
        let (cos, sin) = (matrix(f64::cos), matrix(f64::sin).mul(sign as f32));
        // (a + bi)·(cos + sin·i)
        match &self.imaginary {
            Some(b) => (self.real.matmul(&cos).sub(&b.matmul(&sin)), self.real.matmul(&sin).add(&b.matmul(&cos))),
            None => (self.real.matmul(&cos), self.real.matmul(&sin)),
        }
    }
}

fn check_length(length: usize) -> Result<(), Stop> {
    match length {
        0 => invalid("a transform of length 0"),
        n if n > MAX_LENGTH => refuse(format!("a transform of length {n}, at most {MAX_LENGTH}")),
        _ => Ok(()),
    }
}

fn dft(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let shape = x.shape()?.to_vec();
    if shape.len() < 2 {
        return invalid(format!("DFT: {shape:?} has no axis for the signal"));
    }
    // Since operator set 20 the axis is an input.
    let along = match c.opset < 20 {
        true => c.attr_int("axis", 1)?,
        false if c.has(2) => c.int(2)?,
        false => -2,
    };
    let along = axis(along, shape.len())?;
    if along == shape.len() - 1 {
        return invalid("DFT: the last axis holds real and imaginary parts");
    }
    let (inverse, onesided) = (c.attr_int("inverse", 0)? != 0, c.attr_int("onesided", 0)? != 0);
    let length = match c.has(1) {
        true => size(c.int(1)?)?,
        false if inverse && onesided => 2 * shape[along].saturating_sub(1),
        false => shape[along],
    };
    check_length(length)?;
    let signal = Signal::of(&x, along)?;
    let last = shape.len() as i32 - 2;
    let half = length / 2 + 1;
    let parts = match (inverse, onesided) {
        (false, _) => {
            let n_out = if onesided { half } else { length };
            let (real, imaginary) = signal.with_length(length)?.times(c, length, n_out, |_| 1.0, -1.0);
            vec![real, imaginary]
        }
        (true, false) => {
            let weight = 1.0 / length as f64;
            let (real, imaginary) = signal.with_length(length)?.times(c, length, length, |_| weight, 1.0);
            vec![real, imaginary]
        }
        // Frequencies that are left out are the conjugates of those that are there.
        (true, true) => {
            let weight = |k: usize| if k == 0 || 2 * k == length { 1.0 } else { 2.0 } / length as f64;
            vec![signal.with_length(half)?.times(c, length, length, weight, 1.0).0]
        }
    };
    let parts: Vec<Tensor> = parts.iter().map(|part| part.transpose(along as i32, last)).collect();
    give(Tensor::stack(&parts.iter().collect::<Vec<_>>(), -1), c.elem(0)?)
}

fn stft(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let step = size(c.int(1)?)?;
    let window = c.optional(2)?;
    let length = match &window {
        _ if c.has(3) => size(c.int(3)?)?,
        Some(window) => window.shape()?.iter().product(),
        None => return invalid("STFT: neither a window nor a length is given"),
    };
    check_length(length)?;
    if x.shape()?.len() != 3 || x.shape()?[1] < length || step == 0 {
        return invalid(format!("STFT: frames of {length} every {step} of {:?}", x.shape()?));
    }
    let frames = |part: &Tensor| {
        let frames = part.unfold(1, length, step);
        match &window {
            Some(window) => frames.mul(window),
            None => frames,
        }
    };
    let signal = Signal::of(&x, 1)?;
    let signal = Signal { real: frames(&signal.real), imaginary: signal.imaginary.as_ref().map(frames) };
    let n_out = if c.attr_int("onesided", 1)? != 0 { length / 2 + 1 } else { length };
    let (real, imaginary) = signal.times(c, length, n_out, |_| 1.0, -1.0);
    give(Tensor::stack(&[&real, &imaginary], -1), c.elem(0)?)
}

fn output_type(c: &Call) -> Result<ElemType, Stop> {
    match c.attr("output_datatype") {
        Some(_) => target(c, "output_datatype"),
        None => Ok(ElemType::F32),
    }
}

/// A window: a function of the angle, which runs once around.
fn window(c: &Call, f: fn(f64) -> f64) -> Outputs {
    let n = size(c.int(0)?)?;
    if n > 1 << 24 {
        return invalid(format!("a window of {n} elements"));
    }
    let around = if c.attr_int("periodic", 1)? != 0 { n } else { n.saturating_sub(1) };
    let numbers: Vec<f32> = (0..n).map(|i| f(2.0 * PI * i as f64 / around as f64) as f32).collect();
    given(c, vec![n], numbers)
}

/// Floats computed on the host, in the type that the node asks for.
fn given(c: &Call, shape: Vec<usize>, numbers: Vec<f32>) -> Outputs {
    match output_type(c)? {
        elem if elem.is_float() => give_host(elem, shape, HostData::Float(numbers)),
        elem => give(Tensor::from_vec(numbers, shape, c.device).to_dtype(elem.storage()), elem),
    }
}

fn mel_weights(c: &Call) -> Outputs {
    let (n_mel, length, rate) = (size(c.int(0)?)?, size(c.int(1)?)?, c.number(2)?);
    let (low, high) = (c.number(3)?, c.number(4)?);
    let n_bins = length / 2 + 1;
    if n_mel.saturating_mul(n_bins) > 1 << 26 || rate <= 0.0 {
        return invalid(format!("MelWeightMatrix: {n_mel} bands of {n_bins} frequencies at {rate} Hz"));
    }
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let step = (mel(high) - mel(low)) / (n_mel + 2) as f64;
    let bin = |i: usize| {
        let hertz = 700.0 * (10f64.powf((i as f64 * step + mel(low)) / 2595.0) - 1.0);
        (((length + 1) as f64 * hertz) / rate).floor() as i64
    };
    let mut weights = vec![0.0f32; n_bins * n_mel];
    for band in 0..n_mel {
        let (left, centre, right) = (bin(band), bin(band + 1), bin(band + 2));
        let mut set = |at: i64, weight: f64| {
            if let Ok(at) = usize::try_from(at)
                && at < n_bins
            {
                weights[at * n_mel + band] = weight as f32;
            }
        };
        match left == centre {
            true => set(centre, 1.0),
            false => (left..=centre).for_each(|at| set(at, (at - left) as f64 / (centre - left) as f64)),
        }
        (centre..right).for_each(|at| set(at, (right - at) as f64 / (right - centre) as f64));
    }
    given(c, vec![n_bins, n_mel], weights)
}
