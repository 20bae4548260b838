//! Convolutions: windows of the input, seen through a view, times the weights in one matrix product. Gradients come from
//! the same ops; the transposed convolution is the gradient of a convolution by its input.

use lazuli::{DType, Device, Slice, Tensor};

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
        let reach = self.dilation * size.saturating_sub(1);
        ((n + 2 * self.padding).saturating_sub(reach + 1)) / self.stride.max(1) + 1
    }

    /// Windows of `size` along an axis; their elements are a new last axis.
    fn of(&self, x: &Tensor, axis: i32, size: usize) -> Tensor {
        let windows = x.unfold(axis, self.dilation * size.saturating_sub(1) + 1, self.stride);
        if self.dilation == 1 {
            return windows;
        }
        let rank = windows.shape().map_or(1, <[usize]>::len);
        let mut slices: Vec<Slice> = (0..rank).map(|_| Slice::from(..)).collect();
        slices[rank - 1] = Slice::from(..).by(self.dilation);
        windows.slice(&slices[..])
    }
}

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
pub struct Conv1d {
    /// `[n_out, n_in / groups, size]`.
    pub weight: Tensor,
    /// `[n_out]`.
    pub bias: Option<Tensor>,
    /// How windows lie.
    pub window: Window,
}

crate::module!(Conv1d { weight, bias });

impl Conv1d {
    /// Weights as [`init::he`] makes them.
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> Conv1d {
        let per_group = n_in / window.groups.max(1);
        let weight = init::he([n_out, per_group, size], per_group * size, seed, device);
        Conv1d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for Conv1d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = convolved(&x.unsqueeze(2), &self.weight.unsqueeze(2), self.bias.as_ref(), &self.window, Flat::Yes);
        y.squeeze(2)
    }
}

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
pub struct Conv2d {
    /// `[n_out, n_in / groups, height, width]`.
    pub weight: Tensor,
    /// `[n_out]`.
    pub bias: Option<Tensor>,
    /// How windows lie, along both axes.
    pub window: Window,
}

crate::module!(Conv2d { weight, bias });

impl Conv2d {
    /// Square windows; weights as [`init::he`] makes them.
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> Conv2d {
        let per_group = n_in / window.groups.max(1);
        let weight = init::he([n_out, per_group, size, size], per_group * size * size, seed, device);
        Conv2d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        convolved(x, &self.weight, self.bias.as_ref(), &self.window, Flat::No)
    }
}

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
pub struct ConvTranspose2d {
    /// `[n_in, n_out / groups, height, width]`.
    pub weight: Tensor,
    /// `[n_out]`.
    pub bias: Option<Tensor>,
    /// The window of the convolution that this is the opposite of.
    pub window: Window,
}

crate::module!(ConvTranspose2d { weight, bias });

impl ConvTranspose2d {
    /// Square windows; weights as [`init::he`] makes them.
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> ConvTranspose2d {
        let per_group = n_out / window.groups.max(1);
        let weight = init::he([n_in, per_group, size, size], per_group * size * size, seed, device);
        ConvTranspose2d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for ConvTranspose2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let (Ok([n, _, h, w]), Ok([_, per_group, kh, kw]), Ok(device)) =
            (x.dims::<4>(), self.weight.dims::<4>(), x.device())
        else {
            return x.matmul(&self.weight);
        };
        let Window { stride, padding, dilation, groups } = self.window;
        let size = |n: usize, k: usize| {
            (n.saturating_sub(1) * stride + dilation * k.saturating_sub(1) + 1).saturating_sub(2 * padding)
        };
        // A convolution is linear: its gradient by the input does not depend on what that is.
        let input = Tensor::zeros([n, per_group * groups, size(h, kh), size(w, kw)], DType::F32, device);
        let y = convolved(&input, &self.weight, None, &self.window, Flat::No).grad_with(&[&input], x).swap_remove(0);
        match &self.bias {
            Some(bias) => y.add(bias.unsqueeze(-1).unsqueeze(-1)),
            None => y,
        }
    }
}

/// Whether there is nothing but one row.
#[derive(Clone, Copy, PartialEq)]
enum Flat {
    Yes,
    No,
}

/// `[n, c, h, w]` with weights `[o, c / groups, kh, kw]` gives `[n, o, h′, w′]`.
#[track_caller]
fn convolved(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, window: &Window, flat: Flat) -> Tensor {
    let (Ok([n, c, _, _]), Ok([o, per_group, kh, kw])) = (x.dims::<4>(), weight.dims::<4>()) else {
        // The product says which of the shapes does not fit.
        return x.matmul(weight);
    };
    if *window == (Window { padding: window.padding, ..Window::default() }) && flat == Flat::No {
        return slid(x, weight, bias, window.padding);
    }
    let pad = (window.padding, window.padding);
    let rows = if flat == Flat::Yes { (0, 0) } else { pad };
    let padded = if window.padding == 0 { x.clone() } else { x.pad(&[(0, 0), (0, 0), rows, pad], 0.0) };
    let down = if flat == Flat::Yes { padded.unfold(2, 1, 1) } else { window.of(&padded, 2, kh) };
    // [n, c, h′, w′, kh, kw]
    let windows = window.of(&down, 3, kw);
    let Ok([_, _, h, w, _, _]) = windows.dims::<6>() else { return windows };
    let groups = window.groups.max(1);
    let rows = windows.permute(&[0, 2, 3, 1, 4, 5]);
    let y = match groups {
        1 => rows.reshape([n * h * w, c * kh * kw]).matmul(&weight.reshape([o, per_group * kh * kw]).t()),
        _ => {
            // [groups, n·h′·w′, k] × [groups, k, o / groups]
            let rows = rows.reshape([n * h * w, groups, c / groups * kh * kw]).transpose(0, 1);
            let weight = weight.reshape([groups, o / groups, per_group * kh * kw]).transpose(1, 2);
            rows.matmul(&weight).transpose(0, 1).reshape([n * h * w, o])
        }
    };
    let y = match bias {
        Some(bias) => y.add(bias),
        None => y,
    };
    y.reshape([n, h, w, o]).permute(&[0, 3, 1, 2])
}

/// A convolution whose windows lie at every place, without a copy of them: images are padded and laid out as one list of
/// places with their channels side by side. Then the windows of a row of weights are a matrix whose rows overlap in
/// memory, and each row of weights is one product. Places at the borders, where windows would wrap, are computed and left
/// out.
#[track_caller]
fn slid(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, padding: usize) -> Tensor {
    let (Ok([n, c, h, w]), Ok([o, c_in, kh, kw]), Ok(device)) = (x.dims::<4>(), weight.dims::<4>(), x.device()) else {
        return x.matmul(weight);
    };
    let (height, width) = (h + 2 * padding, w + 2 * padding);
    if c != c_in || height < kh || width < kw {
        // Says what does not fit.
        return x.unfold(2, kh, 1).unfold(3, kw, 1).select_index(1, 0).matmul(&weight.select_index(1, c_in));
    }
    let zeros = |shape: [usize; 4]| Tensor::zeros(shape, DType::F32, device);
    let mut places = x.permute(&[0, 2, 3, 1]);
    if padding > 0 {
        let side = zeros([n, h, padding, c]);
        let row = zeros([n, padding, width, c]);
        places = Tensor::cat(&[&row, &Tensor::cat(&[&side, &places, &side], 2), &row], 1);
    }
    // So many more that the windows of the last places stay inside.
    let n_places = n * height * width;
    let beyond = Tensor::zeros([(kh - 1) * width + kw - 1, c], DType::F32, device);
    let places = Tensor::cat(&[&places.reshape([n_places, c]), &beyond], 0);
    let product = |i: usize| {
        let windows = places.narrow(0, i * width, n_places + kw - 1).unfold(0, kw, 1);
        let windows = windows.transpose(1, 2).reshape([n_places, kw * c]);
        windows.matmul(&weight.select_index(2, i).permute(&[2, 1, 0]).reshape([kw * c, o]))
    };
    let y = (1..kh).fold(product(0), |y, i| y.add(product(i)));
    let y = match bias {
        Some(bias) => y.add(bias),
        None => y,
    };
    let y = y.reshape([n, height, width, o]).narrow(1, 0, height - kh + 1).narrow(2, 0, width - kw + 1);
    y.permute(&[0, 3, 1, 2])
}
