//! Pooling: one number per window.

use lazuli::{DType, Result, Tensor};

use crate::fault;
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

/// Windows with their elements on axes 3 and 5, channels first, as convolutions leave them: `[n, c, h′, size, w′, size]`.
#[track_caller]
fn windows(op: &str, x: &Tensor, size: usize, stride: usize) -> Result<Tensor> {
    let &[n, c, h, w] = x.shape()? else {
        let message = format!("wants [batch, channels, height, width], not {:?}", x.shape()?);
        return Err(fault::shape(op, message));
    };
    if size == 0 || stride == 0 || size > h || size > w {
        let message = format!("no window of {size} × {size} with stride {stride} fits into {:?}", x.shape()?);
        return Err(fault::shape(op, message));
    }
    Ok(match size == stride && h % size == 0 && w % size == 0 {
        // Side by side and without a rest they are a reshape.
        true => x.reshape([n, c, h / size, size, w / size, size]),
        false => x.unfold(2, size, stride).unfold(3, size, stride).permute(&[0, 1, 2, 4, 3, 5]),
    })
}

/// The elements of each window, one after another: for small windows a map over few slices is faster than many tiny
/// reductions.
fn elements(windows: &Tensor, size: usize) -> impl Iterator<Item = Tensor> {
    (0..size * size).map(move |i| windows.select_index(5, (i % size) as isize).select_index(3, (i / size) as isize))
}

/// Windows of at most this many elements a side are taken element by element.
const SMALL: usize = 4;

/// One number per window, seen by each of its elements.
fn spread(y: &Tensor) -> Tensor {
    y.unsqueeze(3).unsqueeze(5)
}

impl Layer for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let windows = match windows("max_pool2d", x, self.size, self.stride) {
            Ok(windows) => windows,
            Err(error) => return error.into(),
        };
        if self.size > SMALL {
            return windows.max([3, 5]);
        }
        let y = elements(&windows, self.size).reduce(|a, b| a.maximum(b)).unwrap_or_else(|| windows.clone());
        // On the way back each element asks whether it was the greatest, and ties share: one map over the input, where the
        // gradient of every `maximum` would be put together from pieces.
        let hits = |x: &Tensor, y: &Tensor| x.eq(y).to_dtype(DType::F32);
        let n_hits = elements(&windows, self.size).map(|x| hits(&x, &y)).reduce(|a, b| a.add(b));
        let share = n_hits.map_or_else(|| y.ones_like(), |n| n.recip());
        let share = windows.eq(spread(&y)).select(spread(&share), 0.0).detach();
        let twin = windows.mul(share).sum([3, 5]);
        y.with_gradient_of(&twin.to_dtype(y.dtype().unwrap_or(DType::F32)))
    }
}

impl Layer for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let windows = match windows("avg_pool2d", x, self.size, self.stride) {
            Ok(windows) => windows,
            Err(error) => return error.into(),
        };
        match self.size > SMALL {
            true => windows.mean([3, 5]),
            false => {
                let sum = elements(&windows, self.size).reduce(|a, b| a.add(b)).unwrap_or_else(|| windows.clone());
                let y = sum.mul(1.0 / (self.size * self.size) as f32);
                // As above: each element gets its share of the window's gradient.
                y.with_gradient_of(&windows.mean([3, 5]).to_dtype(y.dtype().unwrap_or(DType::F32)))
            }
        }
    }
}

impl Module for MaxPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}

impl Module for AvgPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}
