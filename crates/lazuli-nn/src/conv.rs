//! Convolutions: windows of the input, seen through a view, times the weights in one matrix product. Gradients come from
//! the same ops; the transposed convolution is the gradient of a convolution by its input.

use lazuli::{DType, Device, Result, Shape, Slice, Tensor};

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
        (padded.saturating_sub(self.reach(size)) / self.stride.max(1)).saturating_add(1)
    }

    /// From the first element of a window to behind its last.
    fn reach(&self, size: usize) -> usize {
        self.dilation.saturating_mul(size.saturating_sub(1)).saturating_add(1)
    }

    /// Windows of `size` along an axis; their elements are a new last axis.
    fn of(&self, x: &Tensor, axis: i32, size: usize) -> Tensor {
        let windows = x.unfold(axis, self.reach(size), self.stride);
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
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> Conv1d {
        let _caller = fault::caller();
        let per_group = n_in / window.groups.max(1);
        let weight = init::he([n_out, per_group, size], per_group.saturating_mul(size), seed, device);
        Conv1d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for Conv1d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let window = &self.window;
        match as_images("conv1d", x, &self.weight) {
            Ok((x, weight)) => {
                convolved("conv1d", &x, &weight, self.bias.as_ref(), window, [0, window.padding]).squeeze(2)
            }
            Err(error) => error.into(),
        }
    }
}

/// How many numbers each number of a convolution of square windows is made of.
fn fan_in(per_group: usize, size: usize) -> usize {
    per_group.saturating_mul(size).saturating_mul(size)
}

/// `[batch, channels, length]` and weights of three axes, as images of one line.
#[track_caller]
fn as_images(op: &str, x: &Tensor, weight: &Tensor) -> Result<(Tensor, Tensor)> {
    match (x.shape()?, weight.shape()?) {
        ([_, _, _], [_, _, _]) => Ok((x.unsqueeze(2), weight.unsqueeze(2))),
        (seen, shape) => {
            let wanted = "wants an input [batch, channels, length] and weights of three axes";
            Err(fault::shape(op, format!("{wanted}: input {seen:?}, weight {shape:?}")))
        }
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
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> Conv2d {
        let _caller = fault::caller();
        let per_group = n_in / window.groups.max(1);
        let weight = init::he([n_out, per_group, size, size], fan_in(per_group, size), seed, device);
        Conv2d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for Conv2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        convolved("conv2d", x, &self.weight, self.bias.as_ref(), &self.window, [self.window.padding; 2])
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
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> ConvTranspose2d {
        let _caller = fault::caller();
        let per_group = n_out / window.groups.max(1);
        let weight = init::he([n_in, per_group, size, size], fan_in(per_group, size), seed, device);
        ConvTranspose2d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for ConvTranspose2d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let pads = [self.window.padding; 2];
        transposed("conv_transpose2d", x, &self.weight, self.bias.as_ref(), &self.window, pads)
    }
}

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
pub struct ConvTranspose1d {
    /// `[n_in, n_out / groups, size]`.
    pub weight: Tensor,
    /// `[n_out]`.
    pub bias: Option<Tensor>,
    /// The window of the convolution that this is the opposite of.
    pub window: Window,
}

crate::module!(ConvTranspose1d { weight, bias });

impl ConvTranspose1d {
    /// Weights as [`init::he`] makes them.
    #[track_caller]
    pub fn new(n_in: usize, n_out: usize, size: usize, window: Window, seed: u64, device: &Device) -> ConvTranspose1d {
        let _caller = fault::caller();
        let per_group = n_out / window.groups.max(1);
        let weight = init::he([n_in, per_group, size], per_group.saturating_mul(size), seed, device);
        ConvTranspose1d { weight, bias: Some(init::zeros([n_out], device)), window }
    }
}

impl Layer for ConvTranspose1d {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let _caller = fault::caller();
        let window = &self.window;
        match as_images("conv_transpose1d", x, &self.weight) {
            Ok((x, weight)) => {
                let (op, bias) = ("conv_transpose1d", self.bias.as_ref());
                transposed(op, &x, &weight, bias, window, [0, window.padding]).squeeze(2)
            }
            Err(error) => error.into(),
        }
    }
}

/// A transposed convolution of images.
#[track_caller]
fn transposed(
    op: &str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    pads: [usize; 2],
) -> Tensor {
    let sizes = Sizes::new(op, x, weight, window, pads, Way::Back);
    let (Sizes { n, c, h, w, kh, kw, .. }, device) = match (sizes, x.device()) {
        (Ok(sizes), Ok(device)) => (sizes, device),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let size = |n: usize, k: usize, padding: usize| {
        let whole = n.saturating_sub(1).saturating_mul(window.stride).saturating_add(window.reach(k));
        whole.saturating_sub(padding.saturating_mul(2))
    };
    // A convolution is linear: its gradient by the input does not depend on what that is.
    let input = Tensor::zeros([n, c, size(h, kh, pads[0]), size(w, kw, pads[1])], DType::F32, device);
    let y = convolved(op, &input, weight, None, window, pads).vjp(&[&input], x).swap_remove(0);
    match bias {
        Some(bias) => y.add(bias.unsqueeze(-1).unsqueeze(-1)),
        None => y,
    }
}

/// Which way images go through weights `[o, c / groups, kh, kw]`.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// From `c` channels to `o`.
    Forth,
    /// From `o` channels to `c`.
    Back,
}

/// All sizes of a convolution, known to fit.
struct Sizes {
    n: usize,
    /// Channels on the side that is windowed, and on the other.
    c: usize,
    o: usize,
    h: usize,
    w: usize,
    kh: usize,
    kw: usize,
    groups: usize,
}

impl Sizes {
    #[track_caller]
    fn new(op: &str, x: &Tensor, weight: &Tensor, window: &Window, pads: [usize; 2], way: Way) -> Result<Sizes> {
        let (seen, shape) = (x.shape()?, weight.shape()?);
        let with_shapes = |what: String| format!("{what}: input {seen:?}, weight {shape:?}");
        let (&[n, channels, h, w], &[o, per_group, kh, kw]) = (seen, shape) else {
            let what = "wants an input [batch, channels, height, width] and weights of four axes";
            return Err(fault::shape(op, with_shapes(what.into())));
        };
        let Window { stride, dilation, groups, .. } = *window;
        if stride == 0 || dilation == 0 || groups == 0 || kh == 0 || kw == 0 || o % groups != 0 {
            let rule = "stride, dilation, groups and the weights' sizes are at least 1, and groups divide the channels";
            return Err(fault::shape(op, with_shapes(format!("{window:?} cannot be: {rule}"))));
        }
        // Groups divide `o`, but weights without outputs let them be any.
        let c = per_group.saturating_mul(groups);
        let wanted = if way == Way::Forth { c } else { o };
        if channels != wanted {
            return Err(fault::shape(
                op,
                with_shapes(format!("the input has {channels} channels, the weights are for {wanted}")),
            ));
        }
        let fits = |n: usize, pad: usize, k: usize| n.saturating_add(pad.saturating_mul(2)) >= window.reach(k);
        if way == Way::Forth && !(fits(h, pads[0], kh) && fits(w, pads[1], kw)) {
            return Err(fault::shape(
                op,
                with_shapes(format!("no window of {kh} × {kw} fits, with {pads:?} zeros around; pad more")),
            ));
        }
        Ok(Sizes { n, c, o, h, w, kh, kw, groups })
    }
}

/// `[n, c, h, w]` with weights `[o, c / groups, kh, kw]` gives `[n, o, h′, w′]`. In memory channels come last, here and in
/// what comes out: windows are then read as long runs.
#[track_caller]
fn convolved(
    op: &str,
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
    pads: [usize; 2],
) -> Tensor {
    let sizes = match Sizes::new(op, x, weight, window, pads, Way::Forth) {
        Ok(sizes) => sizes,
        Err(error) => return error.into(),
    };
    let Sizes { n, c, o, kh, kw, groups, .. } = sizes;
    let [above, beside] = pads;
    let n_windows = |size: usize, k: usize, padding: usize| Window { padding, ..*window }.n_windows(size, k);
    let (h, w) = (n_windows(sizes.h, kh, above), n_windows(sizes.w, kw, beside));
    let is_dense = window.stride == 1 && window.dilation == 1 && groups == 1 && above == beside;
    let n_copied = Shape::from([n, h, w, c, kh, kw].map(|size| size.max(1))).n_elems();
    if n_copied > isize::MAX as usize / 4 {
        let message = format!("{h} × {w} windows of {kh} × {kw} have more elements than can be addressed: {window:?}");
        return fault::shape(op, message).into();
    }
    if is_dense && n_copied > MAX_COPY {
        return slid(x, weight, bias, &sizes, above);
    }
    let mut places = x.permute(&[0, 2, 3, 1]);
    if above > 0 || beside > 0 {
        places = places.pad(&[(0, 0), (above, above), (beside, beside), (0, 0)], 0.0);
    }
    // [n, h′, w′, c, kh, kw]
    let windows = window.of(&window.of(&places, 1, kh), 2, kw);
    let y = match groups {
        1 => {
            let weight = weight.permute(&[2, 3, 1, 0]).reshape([kh * kw * c, o]);
            windows.permute(&[0, 1, 2, 4, 5, 3]).reshape([n * h * w, kh * kw * c]).matmul(&weight)
        }
        _ => {
            // [groups, n·h′·w′, k] × [groups, k, o / groups]
            let k = c / groups * kh * kw;
            let rows = windows.reshape([n * h * w, groups, k]).transpose(0, 1);
            let weight = weight.reshape([groups, o / groups, k]).transpose(1, 2);
            rows.matmul(&weight).transpose(0, 1).reshape([n * h * w, o])
        }
    };
    let y = match bias {
        Some(bias) => y.add(bias),
        None => y,
    };
    y.reshape([n, h, w, o]).permute(&[0, 3, 1, 2])
}

/// Elements of windows that are copied at most (32 MiB); what has more is [`slid`] over.
const MAX_COPY: usize = 8 << 20;

/// A convolution whose windows lie at every place, without a copy of them: images are padded and laid out as one list of
/// places with their channels side by side. Then the windows of a row of weights are a matrix whose rows overlap in
/// memory, and each row of weights is one product. Places at the borders, where windows would wrap, are computed and left
/// out. Slower than a copy, but in a tenth of the memory.
#[track_caller]
fn slid(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, sizes: &Sizes, padding: usize) -> Tensor {
    let &Sizes { n, c, o, h, w, kh, kw, .. } = sizes;
    let device = match x.device() {
        Ok(device) => device,
        Err(error) => return error.into(),
    };
    let (height, width) = (h + 2 * padding, w + 2 * padding);
    let zeros = |shape: [usize; 4]| Tensor::zeros(shape, DType::F32, device);
    let mut places = x.permute(&[0, 2, 3, 1]);
    if padding > 0 {
        // Joined rather than padded, so that it is memory: a product cannot read through a mask.
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
        windows.matmul(&weight.select_index(2, i as isize).permute(&[2, 1, 0]).reshape([kw * c, o]))
    };
    let y = (1..kh).fold(product(0), |y, i| y.add(product(i)));
    let y = match bias {
        Some(bias) => y.add(bias),
        None => y,
    };
    let y = y.reshape([n, height, width, o]).narrow(1, 0, height - kh + 1).narrow(2, 0, width - kw + 1);
    y.permute(&[0, 3, 1, 2])
}
