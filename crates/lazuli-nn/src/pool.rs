//! Pooling: one number per window.

use lazuli::Tensor;

use crate::module::{Item, Layer, Module};

/// The greatest of each square window of `[batch, channels, height, width]`, one window beside the other.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{Layer, MaxPool2d};
/// let x = Tensor::arange(0.0, 16.0, 1.0, &Device::cpu()).reshape([1, 1, 4, 4]);
/// assert_eq!(MaxPool2d::new(2).forward(&x).to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    /// The side of a window.
    pub size: usize,
    /// From one window to the next.
    pub stride: usize,
}

/// The mean of each square window of `[batch, channels, height, width]`, one window beside the other.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_nn::{AvgPool2d, Layer};
/// let x = Tensor::arange(0.0, 16.0, 1.0, &Device::cpu()).reshape([1, 1, 4, 4]);
/// assert_eq!(AvgPool2d::new(2).forward(&x).to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d {
    /// The side of a window.
    pub size: usize,
    /// From one window to the next.
    pub stride: usize,
}

impl MaxPool2d {
    /// Windows that do not overlap.
    pub fn new(size: usize) -> MaxPool2d {
        MaxPool2d { size, stride: size }
    }
}

impl AvgPool2d {
    /// Windows that do not overlap.
    pub fn new(size: usize) -> AvgPool2d {
        AvgPool2d { size, stride: size }
    }
}

/// `[n, c, h′, size, w′, size]`: windows with their elements on axes 3 and 5.
#[track_caller]
fn windows(x: &Tensor, size: usize, stride: usize) -> Tensor {
    match x.dims::<4>() {
        // Side by side and without a rest they are a reshape.
        Ok([n, c, h, w]) if size == stride && size > 0 && h % size == 0 && w % size == 0 => {
            x.reshape([n, c, h / size, size, w / size, size])
        }
        _ => x.unfold(2, size, stride).unfold(3, size, stride).permute(&[0, 1, 2, 4, 3, 5]),
    }
}

/// The elements of each window combined one by one: for small windows a map over few slices, which is faster than many
/// tiny reductions. Windows that are not small, or do not fit, are given back.
#[track_caller]
fn pooled(x: &Tensor, size: usize, stride: usize, both: fn(&Tensor, &Tensor) -> Tensor) -> Result<Tensor, Tensor> {
    let windows = windows(x, size, stride);
    if size == 0 || size > 4 || windows.check().is_err() {
        return Err(windows);
    }
    // Channels last, as convolutions leave them: what is put together again on the way back are then whole blocks.
    let windows = windows.permute(&[0, 2, 3, 4, 5, 1]);
    let element = |i: usize| windows.select_index(4, i % size).select_index(2, i / size);
    Ok((1..size * size).fold(element(0), |y, i| both(&y, &element(i))).permute(&[0, 3, 1, 2]))
}

impl Layer for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        pooled(x, self.size, self.stride, |a, b| a.maximum(b)).unwrap_or_else(|w| w.max([3, 5]))
    }
}

impl Layer for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let n = (self.size * self.size) as f32;
        pooled(x, self.size, self.stride, |a, b| a.add(b)).map_or_else(|w| w.mean([3, 5]), |sum| sum.mul(1.0 / n))
    }
}

impl Module for MaxPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}

impl Module for AvgPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}
