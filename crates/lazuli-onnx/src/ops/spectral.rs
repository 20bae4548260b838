//! Fourier transforms, windows, and the filters of mel spectrograms.

use std::f64::consts::PI;

use lazuli::{Dft, Tensor};

use super::casting::TYPED;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, give, give_host, invalid, size};
use crate::elem::ElemType;
use crate::host::HostData;

pub const ROWS: &[Row] = &[
    row("DFT", 17, &["axis", "inverse", "onesided"], dft),
    row("STFT", 17, &["onesided"], stft),
    row("HannWindow", 17, WINDOW, |c| window(c, |x| (x / 2.0).sin().powi(2))).checked(TYPED),
    // ONNX's constants are 25/46 and its rest.
    row("HammingWindow", 17, WINDOW, |c| window(c, |x| 25.0 / 46.0 - 21.0 / 46.0 * x.cos())).checked(TYPED),
    row("BlackmanWindow", 17, WINDOW, |c| window(c, |x| 0.42 - 0.5 * x.cos() + 0.08 * (2.0 * x).cos())).checked(TYPED),
    row("MelWeightMatrix", 17, &["output_datatype"], mel_weights).checked(TYPED),
];

const WINDOW: &[&str] = &["output_datatype", "periodic"];

fn dft(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    // Since operator set 20 the axis is an input.
    let along = match c.opset < 20 {
        true => c.attr_int("axis", 1)?,
        false if c.has(2) => c.int(2)?,
        false => -2,
    };
    let along = axis(along, x.shape()?.len())?;
    let options = Dft {
        length: if c.has(1) { Some(size(c.int(1)?)?) } else { None },
        inverse: c.attr_int("inverse", 0)? != 0,
        onesided: c.attr_int("onesided", 0)? != 0,
    };
    give(x.dft(along as i32, options), c.elem(0)?)
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
    let &[_, n_samples, n_parts @ (1 | 2)] = x.shape()? else {
        return invalid(format!("STFT: a signal is [batch, samples, 1 or 2], not {:?}", x.shape()?));
    };
    if length == 0 || n_samples < length || step == 0 {
        return invalid(format!("STFT: frames of {length} every {step} of {:?}", x.shape()?));
    }
    // [batch, frames, length, parts]
    let part = |i: usize| {
        let frames = x.select_index(-1, i as i64).unfold(1, length, step);
        match &window {
            Some(window) => frames.mul(window),
            None => frames,
        }
    };
    let parts: Vec<Tensor> = (0..n_parts).map(part).collect();
    let frames = Tensor::stack(&parts.iter().collect::<Vec<_>>(), -1);
    let options = Dft { onesided: c.attr_int("onesided", 1)? != 0, ..Dft::default() };
    give(frames.dft(-2, options), c.elem(0)?)
}

fn output_type(c: &Call) -> Result<ElemType, Stop> {
    Ok(c.node.elem_type("output_datatype")?.unwrap_or(ElemType::F32))
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
