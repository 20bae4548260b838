//! Convolution layers: weights, a bias and how windows lie. The maths is the engine's ([`Tensor::conv`]); a transposed
//! convolution is the gradient of a convolution by its input.

use lazuli::{Conv, Device, Tensor};

use crate::fault;
use crate::init;
use crate::module::Layer;

/// How windows lie on the input: stride, zeros around it, distance between the elements of one window, and into how many
/// groups channels are split.
///
/// ```
/// # use lazuli_nn::Window;
/// let same = Window { padding: 1, ..Window::default() };
/// assert_eq!(same.n_windows(28, 3), 28);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From one window to the next.
    pub stride: usize,
    /// Zeros before and after each axis.
    pub padding: usize,
    /// From one element of a window to the next.
    pub dilation: usize,
    /// Each group of output channels sees one group of input channels.
    pub groups: usize,
}

impl Default for Window {
    fn default() -> Window {
        Window { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

impl Window {
    /// How many windows of `size` elements there are along an axis of `n`.
    pub fn n_windows(&self, n: usize, size: usize) -> usize {
        let padded = n.saturating_add(self.padding.saturating_mul(2));
        let reach = self.dilation.saturating_mul(size.saturating_sub(1)).saturating_add(1);
        (padded.saturating_sub(reach) / self.stride.max(1)).saturating_add(1)
    }
}

impl From<Window> for Conv {
    fn from(window: Window) -> Conv {
        let Window { stride, padding, dilation, groups } = window;
        Conv { stride: stride.into(), padding: padding.into(), dilation: dilation.into(), groups }
    }
}

/// A layer with the fields and the constructor that all convolutions have, over some axes: `conv` or `conv_transpose`. The
/// first two sizes of its weights are given by those of the layer; the second is divided by groups.
macro_rules! conv_layer {
    (
        $(#[$doc:meta])*
        $name:ident, $method:ident, $n_axes:literal, |$n_in:ident, $n_out:ident| [$first:ident, $second:ident], $weight_doc:literal
    ) => {
        $(#[$doc])*
        pub struct $name {
            #[doc = $weight_doc]
            pub weight: Tensor,
            /// `[n_out]`.
            pub bias: Option<Tensor>,
            /// How windows lie, along every axis.
            pub window: Window,
        }

        crate::module!($name { weight, bias });

        impl $name {
            /// Windows of one size along every axis; weights as [`init::he`] makes them.
            #[track_caller]
            pub fn new($n_in: usize, $n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> $name {
                let _caller = fault::caller();
                let per_group = $second / window.groups.max(1);
                let shape: Vec<usize> = [$first, per_group].into_iter().chain([size; $n_axes]).collect();
                let fan_in = shape[1..].iter().fold(1usize, |n, size| n.saturating_mul(*size));
                let weight = init::he(shape, fan_in, seed, device);
                $name { weight, bias: Some(init::zeros([$n_out], device)), window }
            }
        }

        impl Layer for $name {
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Tensor {
                let _caller = fault::caller();
                x.$method(&self.weight, self.bias.as_ref(), Conv::from(self.window))
            }
        }
    };
}

conv_layer! {
    /// A convolution over the last axis of `[batch, channels, length]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Conv1d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let conv = Conv1d::new(2, 4, 3, Window { stride: 2, padding: 1, ..Window::default() }, 1, &cpu);
    /// assert_eq!(conv.forward(&Tensor::rand([8, 2, 10], 1, &cpu)).shape()?, [8, 4, 5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    Conv1d, conv, 1, |n_in, n_out| [n_out, n_in], "`[n_out, n_in / groups, size]`."
}

conv_layer! {
    /// A convolution over the last two axes of `[batch, channels, height, width]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Conv2d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let conv = Conv2d::new(3, 8, 3, Window { padding: 1, ..Window::default() }, 1, &cpu);
    /// assert_eq!(conv.forward(&Tensor::rand([2, 3, 10, 12], 1, &cpu)).shape()?, [2, 8, 10, 12]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    Conv2d, conv, 2, |n_in, n_out| [n_out, n_in], "`[n_out, n_in / groups, height, width]`."
}

conv_layer! {
    /// A convolution over the last three axes of `[batch, channels, depth, height, width]`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{Conv3d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let conv = Conv3d::new(2, 4, 3, Window { stride: 2, ..Window::default() }, 1, &cpu);
    /// assert_eq!(conv.forward(&Tensor::rand([1, 2, 5, 7, 9], 1, &cpu)).shape()?, [1, 4, 2, 3, 4]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    Conv3d, conv, 3, |n_in, n_out| [n_out, n_in], "`[n_out, n_in / groups, depth, height, width]`."
}

conv_layer! {
    /// The opposite of a [`Conv1d`] with the same weights: from its output's size to its input's.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{ConvTranspose1d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let up = ConvTranspose1d::new(4, 2, 2, Window { stride: 2, ..Window::default() }, 1, &cpu);
    /// assert_eq!(up.forward(&Tensor::rand([1, 4, 5], 1, &cpu)).shape()?, [1, 2, 10]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    ConvTranspose1d, conv_transpose, 1, |n_in, n_out| [n_in, n_out], "`[n_in, n_out / groups, size]`."
}

conv_layer! {
    /// The opposite of a [`Conv2d`] with the same window: where that goes from `[n, n_out, h, w]` to fewer places, this goes
    /// back to more.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{ConvTranspose2d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let up = ConvTranspose2d::new(4, 2, 2, Window { stride: 2, ..Window::default() }, 1, &cpu);
    /// assert_eq!(up.forward(&Tensor::rand([1, 4, 5, 5], 1, &cpu)).shape()?, [1, 2, 10, 10]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    ConvTranspose2d, conv_transpose, 2, |n_in, n_out| [n_in, n_out], "`[n_in, n_out / groups, height, width]`."
}

conv_layer! {
    /// The opposite of a [`Conv3d`] with the same window.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_nn::{ConvTranspose3d, Layer, Window};
    /// let cpu = Device::cpu();
    /// let up = ConvTranspose3d::new(4, 2, 2, Window { stride: 2, ..Window::default() }, 1, &cpu);
    /// assert_eq!(up.forward(&Tensor::rand([1, 4, 2, 3, 4], 1, &cpu)).shape()?, [1, 2, 4, 6, 8]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    ConvTranspose3d, conv_transpose, 3, |n_in, n_out| [n_in, n_out], "`[n_in, n_out / groups, depth, height, width]`."
}
