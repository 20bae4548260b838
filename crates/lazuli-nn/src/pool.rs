//! Pooling layers: one number per window. The maths is the engine's ([`Tensor::max_pool`], [`Tensor::avg_pool`]).

use lazuli::{Pool, Tensor};

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

impl Layer for MaxPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        x.max_pool(Pool { stride: [self.stride; 2].into(), ..Pool::new([self.size; 2]) })
    }
}

impl Layer for AvgPool2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        x.avg_pool(Pool { stride: [self.stride; 2].into(), ..Pool::new([self.size; 2]) })
    }
}

impl Module for MaxPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}

impl Module for AvgPool2d {
    fn visit(&mut self, _: &mut dyn FnMut(&str, Item)) {}
}
