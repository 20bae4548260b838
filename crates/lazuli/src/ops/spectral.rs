//! Discrete Fourier transforms, written with products: a short transform is a product with a matrix of cosines and sines, a long
//! one is cut by Cooley and Tukey's rule into transforms of two factors of its length. Matrices are worked out on the host, in
//! double precision. Complex numbers are pairs of real and imaginary part along a last axis of size 2.

use std::f64::consts::PI;

use super::operand::or_error;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The longest transform that is one product: longer ones are cut, and take less work so.
const DIRECT: usize = 128;
/// The longest transform whose length has no factors: its matrices have the square of its length.
const MAX_PRIME: usize = 4096;
/// The longest transform: cosines and sines of all its angles are worked out on the host.
const MAX_LENGTH: usize = 1 << 22;

/// What [`dft`](Tensor::dft) transforms.
///
/// ```
/// # use lazuli::Dft;
/// let half = Dft { onesided: true, ..Dft::default() };
/// assert!(!half.inverse && half.length.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dft {
    /// The length of the transform: a signal is cut or filled with zeros to it. By default as long as the signal.
    pub length: Option<usize>,
    /// Whether frequencies become a signal again.
    pub inverse: bool,
    /// Whether there are only the first `length / 2 + 1` frequencies, of which the others are the conjugates: a forward transform
    /// gives these, an inverse one takes these and gives real numbers.
    pub onesided: bool,
}

impl Tensor {
    /// The discrete Fourier transform along an axis of complex numbers `[…, 2]`, or of real ones `[…, 1]`; of the last
    /// axis, which holds the parts, there is none. An inverse transform that is one-sided gives `[…, 1]`, all others `[…, 2]`.
    ///
    /// ```
    /// # use lazuli::{Device, Dft, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], [4, 1], &Device::cpu());
    /// let y = x.dft(0, Dft { onesided: true, ..Dft::default() });
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn dft(&self, axis: i32, options: Dft) -> Tensor {
        or_error(transformed("dft", self, axis, options))
    }

    /// The discrete Fourier transform along an axis of complex numbers `[…, 2]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 0.0], [2, 2], &Device::cpu());
    /// assert_eq!(x.fft(0).to_vec::<f32>()?, [1.0, 0.0, 1.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn fft(&self, axis: i32) -> Tensor {
        or_error(complex("fft", self).and_then(|x| transformed("fft", x, axis, Dft::default())))
    }

    /// The opposite of [`fft`](Tensor::fft).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 0.0, 1.0, 0.0], [2, 2], &Device::cpu());
    /// assert_eq!(x.ifft(0).to_vec::<f32>()?, [1.0, 0.0, 0.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn ifft(&self, axis: i32) -> Tensor {
        let inverse = Dft { inverse: true, ..Dft::default() };
        or_error(complex("ifft", self).and_then(|x| transformed("ifft", x, axis, inverse)))
    }

    /// The first `n / 2 + 1` frequencies of `n` real numbers along an axis, as complex numbers: `[…, n / 2 + 1, …, 2]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 1.0, 1.0, 1.0], [4], &Device::cpu());
    /// assert_eq!(x.rfft(0).to_vec::<f32>()?[..2], [4.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn rfft(&self, axis: i32) -> Tensor {
        // Axes from the end are counted without the one for the parts.
        let axis = if axis < 0 { axis - 1 } else { axis };
        or_error(transformed("rfft", &self.unsqueeze(-1), axis, Dft { onesided: true, ..Dft::default() }))
    }

    /// The `n` real numbers along an axis whose first frequencies these complex ones `[…, 2]` are: the opposite of
    /// [`rfft`](Tensor::rfft).
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 1.0, 2.0], [3], &Device::cpu());
    /// let back = x.rfft(0).irfft(3, 0).to_vec::<f32>()?;
    /// assert!(back.iter().zip([3.0, 1.0, 2.0]).all(|(a, b)| (a - b).abs() < 1e-6));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn irfft(&self, n: usize, axis: i32) -> Tensor {
        let options = Dft { length: Some(n), inverse: true, onesided: true };
        or_error(complex("irfft", self).and_then(|x| Ok(transformed("irfft", x, axis, options)?.select_index(-1, 0))))
    }

    /// The short-time Fourier transform of real numbers along the last axis: frames of `n_fft`, one every `hop`, each times
    /// `window` if there is one: `[…, n_fft / 2 + 1, frames, 2]`, as PyTorch's with `center=False`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::ones([10], lazuli::DType::F32, &Device::cpu());
    /// let y = x.stft(4, 2, None);
    /// assert_eq!((y.shape()?, y.to_vec::<f32>()?[0]), (&[3, 4, 2][..], 4.0));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn stft(&self, n_fft: usize, hop: usize, window: Option<&Tensor>) -> Tensor {
        or_error(framed(self, n_fft, hop, window))
    }
}

#[track_caller]
fn complex<'x>(op: &str, x: &'x Tensor) -> Result<&'x Tensor> {
    let shape = x.node()?.shape;
    match shape.last() {
        Some(2) => Ok(x),
        _ => Err(Error::shape(op, format!("takes complex numbers […, 2], not {shape}; `rfft` takes real ones"))),
    }
}

/// Real and imaginary part along the last axis; a real signal has no imaginary part.
struct ComplexSignal {
    real: Tensor,
    imaginary: Option<Tensor>,
}

impl ComplexSignal {
    #[track_caller]
    fn map(&self, f: impl Fn(&Tensor) -> Tensor) -> ComplexSignal {
        ComplexSignal { real: f(&self.real), imaginary: self.imaginary.as_ref().map(f) }
    }

    /// Times `cos + i·sin`, where `product` multiplies a part with a matrix: `(a + bi)·(cos + i·sin)`.
    #[track_caller]
    fn times(&self, cos: &Tensor, sin: &Tensor, product: impl Fn(&Tensor, &Tensor) -> Tensor) -> ComplexSignal {
        let (real, imaginary) = (product(&self.real, cos), product(&self.real, sin));
        match &self.imaginary {
            Some(b) => {
                ComplexSignal { real: real.sub(&product(b, sin)), imaginary: Some(imaginary.add(&product(b, cos))) }
            }
            None => ComplexSignal { real, imaginary: Some(imaginary) },
        }
    }
}

#[track_caller]
fn transformed(op: &'static str, x: &Tensor, axis: i32, options: Dft) -> Result<Tensor> {
    let node = x.node()?;
    let shape = node.shape;
    let along = shape.axis(op, axis)?;
    let n_parts = shape.last().copied().unwrap_or(0);
    if along + 1 == shape.rank() || !(1..=2).contains(&n_parts) {
        let what = "takes numbers whose last axis is their parts, 1 or 2, and transforms another axis";
        return Err(Error::shape(op, format!("{what}: axis {axis} of {shape}")));
    }
    if !node.dtype.is_float() {
        return Err(Error::dtype(op, format!("transforms floats, not {}; cast with to_dtype", node.dtype)));
    }
    let length = options.length.unwrap_or(match options.inverse && options.onesided {
        true => 2 * shape[along].saturating_sub(1),
        false => shape[along],
    });
    if length == 0 {
        return Err(Error::shape(op, format!("a transform of length 0: axis {axis} of {shape}")));
    }
    if length > MAX_LENGTH {
        return Err(Error::unsupported(op, format!("a transform of length {length}; at most {MAX_LENGTH}")));
    }
    // The axis of the signal comes last.
    let last = shape.rank() as i32 - 2;
    let part = |i: usize| x.select_index(-1, i as isize).to_dtype(DType::F32).transpose(along as i32, last);
    let signal = ComplexSignal { real: part(0), imaginary: (n_parts == 2).then(|| part(1)) };
    let half = length / 2 + 1;
    let made = match (options.inverse, options.onesided) {
        (false, onesided) => {
            let made = spectrum(op, &fitted(&signal, length)?, length, -1.0)?;
            if onesided { made.map(|x| x.narrow(-1, 0, half)) } else { made }
        }
        (true, false) => spectrum(op, &fitted(&signal, length)?, length, 1.0)?.map(|x| x.div(length as f32)),
        (true, true) => {
            // Frequencies that are left out are the conjugates of those that are there: of length 5 the first two, backwards.
            let first = fitted(&signal, half)?;
            let rest = |x: &Tensor| x.narrow(-1, 1, length - half).flip(-1);
            let real = Tensor::cat(&[&first.real, &rest(&first.real)], -1);
            let imaginary = first.imaginary.as_ref().map(|x| Tensor::cat(&[x, &rest(x).neg()], -1));
            let made = spectrum(op, &ComplexSignal { real, imaginary }, length, 1.0)?.map(|x| x.div(length as f32));
            ComplexSignal { imaginary: None, ..made }
        }
    };
    let parts = [Some(&made.real), made.imaginary.as_ref()];
    let parts: Vec<Tensor> = parts.into_iter().flatten().map(|x| x.transpose(along as i32, last)).collect();
    Ok(Tensor::stack(&parts.iter().collect::<Vec<_>>(), -1).to_dtype(node.dtype))
}

/// The signal cut or filled with zeros to a length.
#[track_caller]
fn fitted(signal: &ComplexSignal, length: usize) -> Result<ComplexSignal> {
    let shape = signal.real.node()?.shape;
    let own = shape.last().copied().unwrap_or(0);
    let mut pads = vec![(0, 0); shape.rank()];
    if let Some(last) = pads.last_mut() {
        *last = (0, length.saturating_sub(own));
    }
    Ok(match own.cmp(&length) {
        std::cmp::Ordering::Less => signal.map(|x| x.pad(&pads, 0.0)),
        std::cmp::Ordering::Equal => signal.map(Tensor::clone),
        std::cmp::Ordering::Greater => signal.map(|x| x.narrow(-1, 0, length)),
    })
}

/// `Σ x[t]·e^(sign·2πi·tk/n)` along the last axis, which has `n` elements.
#[track_caller]
fn spectrum(op: &'static str, signal: &ComplexSignal, n: usize, sign: f64) -> Result<ComplexSignal> {
    let factor = (2..=n.isqrt()).rev().find(|a| n.is_multiple_of(*a));
    let (a, b) = match factor {
        Some(a) if n > DIRECT => (a, n / a),
        None if n > MAX_PRIME => {
            let what = format!("a transform of {n}, which is prime: at most {MAX_PRIME}; fill it with zeros");
            return Err(Error::unsupported(op, what));
        }
        _ => {
            let (cos, sin) = waves(signal, [n, n], n, sign)?;
            return Ok(signal.times(&cos, &sin, |x, matrix| x.matmul(matrix)));
        }
    };
    // With t = t₁·b + t₂ and k = k₁ + a·k₂ the sum is Σ_t₂ e^(t₂k₁/n) · e^(t₂k₂/b) · Σ_t₁ e^(t₁k₁/a) · x[t].
    let shape = signal.real.node()?.shape;
    let with_axes = |tail: &[usize]| -> Vec<usize> { shape[..shape.rank() - 1].iter().chain(tail).copied().collect() };
    if shape.rank() + 1 > crate::shape::MAX_RANK {
        return Err(Error::unsupported(op, format!("a transform of {n} along an axis of {shape}: too many axes")));
    }
    let columns = signal.map(|x| x.reshape(with_axes(&[a, b])).transpose(-1, -2));
    let inner = spectrum(op, &columns, a, sign)?;
    let (cos, sin) = waves(signal, [b, a], n, sign)?;
    let turned = inner.times(&cos, &sin, |x, waves| x.mul(waves)).map(|x| x.transpose(-1, -2));
    let outer = spectrum(op, &turned, b, sign)?;
    Ok(outer.map(|x| x.transpose(-1, -2).reshape(with_axes(&[n]))))
}

/// Cosines and sines of `sign·2π·ij/n` for `i` and `j` below these sizes.
#[track_caller]
fn waves(signal: &ComplexSignal, [rows, columns]: [usize; 2], n: usize, sign: f64) -> Result<(Tensor, Tensor)> {
    let device = &signal.real.node()?.device;
    let matrix = |f: fn(f64) -> f64, factor: f64| {
        let places = (0..rows).flat_map(|i| (0..columns).map(move |j| (i * j) % n));
        let wave = |at: usize| match f(2.0 * PI * at as f64 / n as f64) {
            // At quarter turns it is -1, 0 or 1, which π in f64 misses.
            near if (4 * at).is_multiple_of(n) => near.round(),
            exact => exact,
        };
        let numbers: Vec<f32> = places.map(|at| (factor * wave(at)) as f32).collect();
        Tensor::from_vec(numbers, [rows, columns], device)
    };
    Ok((matrix(f64::cos, 1.0), matrix(f64::sin, sign)))
}

#[track_caller]
fn framed(x: &Tensor, n_fft: usize, hop: usize, window: Option<&Tensor>) -> Result<Tensor> {
    let shape = x.node()?.shape;
    if hop == 0 || n_fft == 0 || shape.last().is_none_or(|n| *n < n_fft) {
        return Err(Error::shape(
            "stft",
            format!("frames of {n_fft}, one every {hop}, along the last axis of {shape}"),
        ));
    }
    let frames = x.unfold(-1, n_fft, hop);
    let frames = match window {
        Some(window) if window.node()?.shape[..] != [n_fft] => {
            let found = window.node()?.shape;
            return Err(Error::shape("stft", format!("wants a window of [{n_fft}], not {found}")));
        }
        Some(window) => frames.mul(window),
        None => frames,
    };
    let onesided = Dft { onesided: true, ..Dft::default() };
    Ok(transformed("stft", &frames.unsqueeze(-1), -2, onesided)?.transpose(-2, -3))
}
