//! Convolutions over one to three axes. Windows of a padded image are a view; the weights times the windows are one product,
//! which reads them in place by lists of axes (implicit GEMM), so nothing is copied but the padding. Both gradients are
//! products of the same kind: by the weights, of the incoming gradient and the windows; by the input, of the flipped weights
//! and the windows of the dilated and padded gradient. Each of the three is linear in both of its operands and is the
//! gradient of the others, so they differentiate any number of times.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;

use super::operand::or_error;
use super::windows::{Pads, PerAxis};
use crate::error::{Error, Fault, Result};
use crate::graph::{CustomOp, CustomRef, NodeRef, Op};
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::view::View;

/// How the windows of a convolution lie on its input.
///
/// ```
/// # use lazuli::Conv;
/// let same = Conv { padding: 1.into(), ..Conv::default() };
/// let wide = Conv { stride: [1, 2].into(), ..same };
/// assert_eq!((wide.groups, wide.dilation), (1, 1.into()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv {
    /// From one window to the next.
    pub stride: PerAxis,
    /// Zeros before and after each axis.
    pub padding: Pads,
    /// From one element of a window to the next.
    pub dilation: PerAxis,
    /// Into how many groups channels are split; each group of outputs sees one group of inputs.
    pub groups: usize,
}

impl Default for Conv {
    fn default() -> Conv {
        Conv { stride: 1.into(), padding: 0.into(), dilation: 1.into(), groups: 1 }
    }
}

/// How the windows of a transposed convolution lie on its result. Made from the options of the [`Conv`] whose opposite it is.
///
/// ```
/// # use lazuli::{Conv, ConvTranspose};
/// let halved = Conv { stride: 2.into(), padding: 1.into(), ..Conv::default() };
/// let doubled = ConvTranspose { output_padding: 1.into(), ..halved.into() };
/// assert_eq!((doubled.conv, doubled.output_padding), (halved, 1.into()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose {
    /// The convolution whose opposite it is.
    pub conv: Conv,
    /// How many elements longer than the smallest the result is at the end of each axis: less than stride or dilation. Inputs of
    /// `conv` with a stride have sizes that give the same number of windows; this says which of them is meant.
    pub output_padding: PerAxis,
}

impl From<Conv> for ConvTranspose {
    fn from(conv: Conv) -> ConvTranspose {
        ConvTranspose { conv, output_padding: 0.into() }
    }
}

impl Default for ConvTranspose {
    fn default() -> ConvTranspose {
        Conv::default().into()
    }
}

impl Tensor {
    /// The convolution (cross-correlation, as everywhere in the field) of `[batch, channels, size…]` with weights
    /// `[outputs, channels / groups, size…]` over one to three axes, plus a bias per output. Nothing is copied but the padding:
    /// bias and what follows are computed by the same kernel. Channels may come last in memory (a permuted view); then those
    /// of the result do, too.
    ///
    /// ```
    /// # use lazuli::{Conv, Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::arange(0, 5, 1, &cpu).to_dtype(lazuli::DType::F32).reshape([1, 1, 5]);
    /// let w = Tensor::from_slice(&[1.0f32, 0.0, -1.0], [1, 1, 3], &cpu);
    /// let y = x.conv(&w, None, Conv { padding: 1.into(), ..Conv::default() });
    /// assert_eq!(y.to_vec::<f32>()?, [-1.0, -2.0, -2.0, -2.0, 3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn conv(&self, weight: &Tensor, bias: Option<&Tensor>, options: Conv) -> Tensor {
        or_error(conv(self, weight, bias, options))
    }

    /// The opposite of a `conv` with the same weights and options, from its output's size to the smallest
    /// input's: `[batch, outputs, size…]` with weights `[outputs, channels / groups, size…]` gives `[batch, channels, size…]`. It
    /// is the gradient of that convolution by its input. [`ConvTranspose::output_padding`] asks for a larger input's size.
    ///
    /// ```
    /// # use lazuli::{Conv, Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 1, 2], &cpu);
    /// let w = Tensor::from_slice(&[1.0f32, 10.0], [1, 1, 2], &cpu);
    /// let y = x.conv_transpose(&w, None, Conv { stride: 2.into(), ..Conv::default() });
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0]);
    ///
    /// use lazuli::ConvTranspose;
    /// let options = Conv { stride: 2.into(), ..Conv::default() };
    /// let longer = x.conv_transpose(&w, None, ConvTranspose { output_padding: 1.into(), ..options.into() });
    /// assert_eq!(longer.to_vec::<f32>()?, [1.0, 10.0, 2.0, 20.0, 0.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn conv_transpose(&self, weight: &Tensor, bias: Option<&Tensor>, options: impl Into<ConvTranspose>) -> Tensor {
        or_error(conv_transpose(self, weight, bias, options.into()))
    }
}

#[track_caller]
fn conv(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: Conv) -> Result<Tensor> {
    let op = name("conv", weight)?;
    let geometry = Geometry::new(op, x, weight, options, Way::Forth)?;
    let y = forward(x, weight, geometry)?;
    if let Some(bias) = bias.filter(|_| geometry.is_channels_last(x)) {
        // Where channels are last in memory, what follows joins the product in that order.
        let (first, last) = channel_orders(geometry.axes().len());
        return Ok(y.permute(&last).add(fitting(op, bias, geometry.n_outputs)?).permute(&first));
    }
    with_bias(op, y, bias, geometry.n_outputs, geometry.axes().len())
}

#[track_caller]
fn conv_transpose(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, options: ConvTranspose) -> Result<Tensor> {
    let op = name("conv_transpose", weight)?;
    let geometry = Geometry::new(op, x, weight, options.conv, Way::Back(options.output_padding))?;
    let y = by_input(x, weight, geometry)?;
    with_bias(op, y, bias, geometry.n_channels * geometry.groups, geometry.axes().len())
}

/// What errors call it: as the field does, by the number of axes.
fn name(what: &'static str, weight: &Tensor) -> Result<&'static str> {
    Ok(match (what, weight.node()?.shape.rank()) {
        ("conv", 3) => "conv1d",
        ("conv", 4) => "conv2d",
        ("conv", 5) => "conv3d",
        ("conv_transpose", 3) => "conv_transpose1d",
        ("conv_transpose", 4) => "conv_transpose2d",
        ("conv_transpose", 5) => "conv_transpose3d",
        _ => what,
    })
}

#[track_caller]
fn with_bias(op: &str, y: Tensor, bias: Option<&Tensor>, n: usize, n_axes: usize) -> Result<Tensor> {
    let Some(bias) = bias else { return Ok(y) };
    let shape: Shape = std::iter::once(n).chain(std::iter::repeat_n(1, n_axes)).collect();
    Ok(y.add(fitting(op, bias, n)?.reshape(shape)))
}

/// A bias of one number for each output.
#[track_caller]
fn fitting<'t>(op: &str, bias: &'t Tensor, n: usize) -> Result<&'t Tensor> {
    let shape = bias.node()?.shape;
    match shape[..] == [n] {
        true => Ok(bias),
        false => Err(Error::shape(op, format!("the bias should have one number for each of {n} outputs, not {shape}"))),
    }
}

/// The axes of channels-last as those of channels-first, and the other way round.
fn channel_orders(n_axes: usize) -> (SmallVec<[i32; 5]>, SmallVec<[i32; 5]>) {
    let n = n_axes as i32;
    let first = [0, n + 1].into_iter().chain(1..=n).collect();
    let last = std::iter::once(0).chain(2..n + 2).chain([1]).collect();
    (first, last)
}

/// Which way images go through weights.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// From channels to outputs.
    Forth,
    /// From outputs to channels, to a result so much longer than the smallest.
    Back(PerAxis),
}

/// Windows along one axis.
#[derive(Clone, Copy, Default)]
struct AxisWindows {
    /// Elements of the input, of a window, and how many windows there are.
    size: usize,
    window: usize,
    n_windows: usize,
    stride: usize,
    dilation: usize,
    /// Before and after.
    padding: (usize, usize),
}

impl AxisWindows {
    /// From the first element of a window to its last.
    fn reach(&self) -> usize {
        self.dilation * (self.window - 1)
    }
}

/// All sizes of a convolution, known to fit.
#[derive(Clone, Copy)]
struct Geometry {
    n_images: usize,
    groups: usize,
    /// Channels of a group.
    n_channels: usize,
    /// Outputs of all groups.
    n_outputs: usize,
    axes: [AxisWindows; 3],
    n_axes: usize,
}

impl Geometry {
    #[track_caller]
    fn new(op: &str, x: &Tensor, weight: &Tensor, options: Conv, way: Way) -> Result<Geometry> {
        let (x, weight) = (x.node()?, weight.node()?);
        super::joining::same_device(op, x, weight)?;
        let fault = |what: String| -> Error {
            let message = format!("{what}: input {}, weight {}", x.shape, weight.shape);
            Error::Shape(Arc::new(Fault::new(op, message).shapes(&[&x.shape, &weight.shape])))
        };
        let n_axes = weight.shape.rank().saturating_sub(2);
        if x.shape.rank() != weight.shape.rank() || !(1..=3).contains(&n_axes) {
            let axes = ["length", "height, width", "depth, height, width"][n_axes.clamp(1, 3) - 1];
            let n = ["three", "four", "five"][n_axes.clamp(1, 3) - 1];
            return Err(fault(format!("wants an input [batch, channels, {axes}] and weights of {n} axes")));
        }
        let Conv { stride, padding, dilation, groups } = options;
        let n_outputs = weight.shape[0];
        let longer = match way {
            Way::Forth => PerAxis::from(0),
            Way::Back(output_padding) => output_padding,
        };
        let fits = stride.fits(n_axes) && padding.fits(n_axes) && dilation.fits(n_axes);
        let is_positive = |i: usize| stride.at(i) > 0 && dilation.at(i) > 0 && weight.shape[i + 2] > 0;
        if !fits || groups == 0 || !n_outputs.is_multiple_of(groups) || !(0..n_axes).all(is_positive) {
            let rule = "stride, dilation, groups and the weights' sizes are at least 1, one for all axes or one for each, \
                        and groups divide the channels";
            return Err(fault(format!("{options:?} cannot be: {rule}")));
        }
        let is_less = |i: usize| longer.at(i) < stride.at(i).max(dilation.at(i));
        if !longer.fits(n_axes) || !(0..n_axes).all(is_less) {
            let rule = "it is one number for all axes or one for each, less than stride or dilation";
            return Err(fault(format!("{options:?} with an output padding of {longer} cannot be: {rule}")));
        }
        let n_channels = weight.shape[1];
        let wanted = if way == Way::Forth { n_channels.saturating_mul(groups) } else { n_outputs };
        if x.shape[1] != wanted {
            return Err(fault(format!("the input has {} channels, the weights are for {wanted}", x.shape[1])));
        }
        let mut axes = [AxisWindows::default(); 3];
        for (i, axis) in axes.iter_mut().enumerate().take(n_axes) {
            let (given, window) = (x.shape[i + 2], weight.shape[i + 2]);
            let (stride, dilation, around, padding) = (stride.at(i), dilation.at(i), padding, padding.at(i));
            let far = || fault(format!("{options:?} has more elements than can be addressed"));
            let reach = dilation.checked_mul(window - 1).filter(|n| *n < MAX_SIZE).ok_or_else(far)?;
            let zeros = padding.0.checked_add(padding.1).filter(|n| *n < MAX_SIZE).ok_or_else(far)?;
            let (size, n_windows) = match way {
                Way::Forth if given + zeros <= reach => {
                    let windows: Vec<String> = weight.shape[2..].iter().map(|n| n.to_string()).collect();
                    let what =
                        format!("no window of {} fits, with {around} zeros around; pad more", windows.join(" × "));
                    return Err(fault(what));
                }
                Way::Forth => (given, (given + zeros - reach - 1) / stride + 1),
                Way::Back(_) => {
                    let whole =
                        given.saturating_sub(1).checked_mul(stride).filter(|n| *n < MAX_SIZE).ok_or_else(far)?;
                    let longer = Some(longer.at(i)).filter(|n| *n < MAX_SIZE).ok_or_else(far)?;
                    ((whole + reach + 1 + longer).saturating_sub(zeros), given)
                }
            };
            *axis = AxisWindows { size, window, n_windows, stride, dilation, padding };
        }
        let geometry = Geometry { n_images: x.shape[0], groups, n_channels, n_outputs, axes, n_axes };
        geometry.input_shape().check(op)?;
        geometry.output_shape().check(op)?;
        geometry.padded_shape().check(op)?;
        geometry.windows_shape().check(op)?;
        Ok(geometry)
    }

    fn axes(&self) -> &[AxisWindows] {
        &self.axes[..self.n_axes]
    }

    fn input_shape(&self) -> Shape {
        let sizes = self.axes().iter().map(|axis| axis.size);
        [self.n_images, self.groups.saturating_mul(self.n_channels)].into_iter().chain(sizes).collect()
    }

    fn padded_shape(&self) -> Shape {
        let sizes = self.axes().iter().map(|axis| axis.size + axis.padding.0 + axis.padding.1);
        [self.n_images, self.groups.saturating_mul(self.n_channels)].into_iter().chain(sizes).collect()
    }

    fn output_shape(&self) -> Shape {
        [self.n_images, self.n_outputs].into_iter().chain(self.axes().iter().map(|axis| axis.n_windows)).collect()
    }

    fn weight_shape(&self) -> Shape {
        [self.n_outputs, self.n_channels].into_iter().chain(self.axes().iter().map(|axis| axis.window)).collect()
    }

    /// `[images · groups, channels, window…, place…]`.
    fn windows_shape(&self) -> Shape {
        let of_group = [self.n_images.saturating_mul(self.groups), self.n_channels];
        let windows = self.axes().iter().map(|axis| axis.window);
        of_group.into_iter().chain(windows).chain(self.axes().iter().map(|axis| axis.n_windows)).collect()
    }

    /// Elements of a window, over all axes and channels of a group.
    fn window_elems(&self) -> usize {
        self.n_channels * self.axes().iter().map(|axis| axis.window).product::<usize>()
    }

    /// Windows of an image.
    fn n_places(&self) -> usize {
        self.axes().iter().map(|axis| axis.n_windows).product()
    }

    /// Whether windows lie side by side: several elements each, none in two windows, and none outside.
    fn windows_tile(&self) -> bool {
        let tiles = |axis: &AxisWindows| {
            let AxisWindows { size, window, n_windows, stride, dilation, padding } = *axis;
            stride == window && (dilation == 1 || window == 1) && padding == (0, 0) && size == n_windows * window
        };
        self.axes().iter().all(tiles) && self.axes().iter().any(|axis| axis.window > 1)
    }

    /// Whether an image is seen with its channels last in memory, and a product is best made so, too. Images of few channels are read
    /// as well in either order, and what follows them is better read with its places side by side.
    fn is_channels_last(&self, x: &Tensor) -> bool {
        let last = self.n_axes + 1;
        let is_last = |op: &Op| match op {
            Op::View(view) => view.strides[1] == 1 && view.shape[1] > 1 && view.strides[last].abs() != 1,
            _ => false,
        };
        self.groups == 1
            && self.n_channels >= MIN_LAST
            && x.node().is_ok_and(|node| node.with_expr(|expr| is_last(&expr.op)).unwrap_or(false))
    }
}

/// Channels of an image from which on windows are taken as rows of them where they are last in memory: with fewer, what lies side by
/// side is shorter than most vectors.
const MIN_LAST: usize = 8;

/// Elements along an axis beyond which nothing can be addressed.
const MAX_SIZE: usize = isize::MAX as usize / 4;

/// `y[n, o, p] = Σ_{c, q} w[o, c, q] · x[n, c, p·stride + q·dilation − padding]`.
#[track_caller]
fn forward(x: &Tensor, weight: &Tensor, geometry: Geometry) -> Result<Tensor> {
    let y = match geometry.is_channels_last(x) {
        true => channels_last(x, weight, &geometry)?,
        false => {
            let matrix = [geometry.groups, geometry.n_outputs / geometry.groups, geometry.window_elems()];
            weight_times_windows(&weight.reshape(matrix), &padded(x, &geometry), &geometry)?
        }
    };
    // d/dx = the gradient by the input, d/dw = the gradient by the weights
    with_rule(&y, "conv", [x, weight], move |x, weight, g| [by_input(g, weight, geometry), by_weight(x, g, geometry)])
}

/// The gradient of a convolution by its input, from that of its result:
/// `dx[n, c, i] = Σ_{o, q} w[o, c, q] · g[n, o, (i + padding − q·dilation) / stride]`, where that is a whole place. With the
/// gradient dilated by the stride and padded it is a convolution with the flipped weights; where windows do not overlap it is
/// a product, without the zeros.
#[track_caller]
fn by_input(g: &Tensor, weight: &Tensor, geometry: Geometry) -> Result<Tensor> {
    let Geometry { groups, n_channels, n_outputs, n_axes, .. } = geometry;
    let per_group = n_outputs / groups;
    let mut back = Geometry { n_channels: per_group, n_outputs: groups * n_channels, ..geometry };
    for (to, from) in back.axes.iter_mut().zip(geometry.axes()) {
        *to = AxisWindows { size: from.size + from.reach(), n_windows: from.size, stride: 1, padding: (0, 0), ..*from };
    }
    let dx = match dilated(g, &geometry)? {
        Some(_) if geometry.windows_tile() => side_by_side(g, weight, &geometry),
        Some(places) if geometry.input_shape().n_elems() > 0 => {
            // [groups, outputs, channels, window…], flipped, as [groups, channels, outputs · window]
            let windows = geometry.axes().iter().map(|axis| axis.window);
            let split: Shape = [groups, per_group, n_channels].into_iter().chain(windows).collect();
            let flips: SmallVec<[i32; 3]> = (0..n_axes as i32).map(|axis| 3 + axis).collect();
            let order: SmallVec<[i32; 6]> = [0, 2, 1].into_iter().chain(flips.iter().copied()).collect();
            let matrix = [groups, n_channels, back.window_elems()];
            let weight = weight.reshape(split).flip(&flips[..]).permute(&order).reshape(matrix);
            weight_times_windows(&weight, &places, &back)?
        }
        _ => Tensor::zeros(geometry.input_shape(), g.node()?.dtype, &g.node()?.device),
    };
    // d/dg = the convolution, d/dw = the gradient by the weights
    with_rule(&dx, "conv_transpose", [g, weight], move |g, weight, h| {
        [forward(h, weight, geometry), by_weight(h, g, geometry)]
    })
}

/// The gradient by the input where each element is in one window: `dx[n, c, p·stride + q] = Σ_o w[o, c, q] · g[n, o, p]`, a product
/// whose rows, one for each place in a window, are then put side by side.
#[track_caller]
fn side_by_side(g: &Tensor, weight: &Tensor, geometry: &Geometry) -> Tensor {
    let Geometry { n_images, groups, n_channels, n_outputs, n_axes, .. } = *geometry;
    let per_group = n_outputs / groups;
    let weight = weight.reshape([groups, per_group, geometry.window_elems()]).transpose(1, 2);
    let rows = match groups {
        1 => weight.squeeze(0).matmul(&g.reshape([n_images, per_group, geometry.n_places()])),
        _ => weight.matmul(&g.reshape([n_images, groups, per_group, geometry.n_places()])),
    };
    // [images, channels, window…, place…] as [images, channels, place, window, place, window, …]
    let windows = geometry.axes().iter().map(|axis| axis.window);
    let places = geometry.axes().iter().map(|axis| axis.n_windows);
    let apart: Shape = [n_images, groups * n_channels].into_iter().chain(windows).chain(places).collect();
    let pairs = (0..n_axes as i32).flat_map(|i| [2 + n_axes as i32 + i, 2 + i]);
    let order: SmallVec<[i32; 8]> = [0, 1].into_iter().chain(pairs).collect();
    rows.reshape(apart).permute(&order).reshape(geometry.input_shape())
}

/// The gradient of a convolution by its weights: `dw[o, c, q] = Σ_{n, p} g[n, o, p] · x[n, c, p·stride + q·dilation − padding]`.
#[track_caller]
fn by_weight(x: &Tensor, g: &Tensor, geometry: Geometry) -> Result<Tensor> {
    let Geometry { n_images, groups, n_outputs, .. } = geometry;
    let n_rows = n_images * geometry.n_places();
    let split = [n_images, groups, n_outputs / groups, geometry.n_places()];
    let g_rows = g.reshape(split).permute(&[1, 2, 0, 3]).reshape([groups, n_outputs / groups, n_rows]);
    let windows = windows(&padded(x, &geometry), &geometry)?.permute(&[1, 0, 3, 2]);
    let windows = windows.reshape([groups, n_rows, geometry.window_elems()]);
    let dw = g_rows.matmul(&windows).reshape(geometry.weight_shape());
    // d/dx = the gradient by the input, d/dg = the convolution
    with_rule(&dw, "conv_weight_gradient", [x, g], move |x, g, h| [by_input(g, h, geometry), forward(x, h, geometry)])
}

/// `[groups, rows, window]` times the windows of a padded image: `[images, groups · rows, place…]`.
#[track_caller]
fn weight_times_windows(weight: &Tensor, padded: &Tensor, geometry: &Geometry) -> Result<Tensor> {
    let windows = windows(padded, geometry)?;
    let y = match geometry.groups {
        1 => weight.squeeze(0).matmul(&windows.squeeze(1)),
        _ => weight.matmul(&windows),
    };
    Ok(y.reshape(geometry.output_shape()))
}

/// The windows of a padded image as `[images, groups, window, place]`, without a copy. Images and groups share an axis of the
/// view, so that three axes of windows are eight in all.
#[track_caller]
fn windows(padded: &Tensor, geometry: &Geometry) -> Result<Tensor> {
    let node = padded.node()?;
    let steps = node.shape.strides();
    // A single window, or a single element of one, may be any distance from the next.
    let axis = |n: usize, by: usize, step: isize| (n, if n > 1 { by as isize * step } else { 0 });
    let of_group = geometry.n_channels as isize * steps[1];
    let axes = [(geometry.n_images * geometry.groups, of_group), (geometry.n_channels, steps[1])].into_iter();
    let within = geometry.axes().iter().zip(&steps[2..]).map(|(a, step)| axis(a.window, a.dilation, *step));
    let places = geometry.axes().iter().zip(&steps[2..]).map(|(a, step)| axis(a.n_windows, a.stride, *step));
    let view = View::from_axes(axes.chain(within).chain(places), 0);
    let windows = Tensor::viewed(node, view, Location::caller());
    let shape = [geometry.n_images, geometry.groups, geometry.window_elems(), geometry.n_places()];
    Ok(windows.reshape(shape))
}

/// The same product with channels last in memory: the windows as rows, `[images · places, window]`, times `[window, outputs]`.
#[track_caller]
fn channels_last(x: &Tensor, weight: &Tensor, geometry: &Geometry) -> Result<Tensor> {
    let n_axes = geometry.n_axes;
    let (first, last) = channel_orders(n_axes);
    let images = x.permute(&last);
    let pads: SmallVec<[(usize, usize); 5]> =
        std::iter::once((0, 0)).chain(geometry.axes().iter().map(|a| a.padding)).chain([(0, 0)]).collect();
    let images = if pads.iter().any(|pad| *pad != (0, 0)) { images.pad(&pads, 0.0) } else { images };
    let node = images.node()?;
    let steps = node.shape.strides();
    let axis = |n: usize, by: usize, step: isize| (n, if n > 1 { by as isize * step } else { 0 });
    let places = geometry.axes().iter().zip(&steps[1..]).map(|(a, step)| axis(a.n_windows, a.stride, *step));
    let within = geometry.axes().iter().zip(&steps[1..]).map(|(a, step)| axis(a.window, a.dilation, *step));
    let axes = std::iter::once((geometry.n_images, steps[0])).chain(places).chain(within);
    let view = View::from_axes(axes.chain([(geometry.n_channels, 1)]), 0);
    let rows = [geometry.n_images * geometry.n_places(), geometry.window_elems()];
    let rows = Tensor::viewed(node, view, Location::caller()).reshape(rows);
    let order: SmallVec<[i32; 5]> = (2..n_axes as i32 + 2).chain([1, 0]).collect();
    let weight = weight.permute(&order).reshape([geometry.window_elems(), geometry.n_outputs]);
    let places = geometry.axes().iter().map(|axis| axis.n_windows);
    let shape: Shape = std::iter::once(geometry.n_images).chain(places).chain([geometry.n_outputs]).collect();
    Ok(rows.matmul(&weight).reshape(shape).permute(&first))
}

#[track_caller]
fn padded(x: &Tensor, geometry: &Geometry) -> Tensor {
    let pads = geometry.axes().iter().map(|axis| axis.padding);
    let pads: SmallVec<[(usize, usize); 5]> = [(0, 0); 2].into_iter().chain(pads).collect();
    if pads.iter().any(|pad| *pad != (0, 0)) { x.pad(&pads, 0.0) } else { x.clone() }
}

/// Gradients of places with zeros between them, as far apart as windows were, and so many around them that a window lies on
/// every element of the input. None if no window ever saw one.
#[track_caller]
fn dilated(g: &Tensor, geometry: &Geometry) -> Result<Option<Tensor>> {
    let mut places = g.clone();
    if geometry.axes().iter().any(|axis| axis.stride > 1 && axis.n_windows > 1) {
        // An axis of n is one of [n, 1], padded to [n, stride]: one after another they are n · stride.
        let lead = [geometry.n_images, geometry.n_outputs];
        let pairs = geometry.axes().iter().flat_map(|axis| [axis.n_windows, 1]);
        let spaces = geometry.axes().iter().flat_map(|axis| [(0, 0), (0, spacing(axis) - 1)]);
        let pads: SmallVec<[(usize, usize); 8]> = [(0, 0); 2].into_iter().chain(spaces).collect();
        let joined = geometry.axes().iter().map(|axis| axis.n_windows * spacing(axis));
        places = places.reshape(lead.into_iter().chain(pairs).collect::<Shape>()).pad(&pads, 0.0);
        places = places.reshape(lead.into_iter().chain(joined).collect::<Shape>());
    }
    let mut pads: SmallVec<[(usize, usize); 5]> = SmallVec::from_slice(&[(0, 0); 2]);
    for (i, axis) in geometry.axes().iter().enumerate() {
        // After the last place there are no zeros.
        let n_spread = axis.n_windows.saturating_sub(1) * spacing(axis) + 1;
        let before = axis.reach() as isize - axis.padding.0 as isize;
        let after = (axis.size + axis.reach()) as isize - before - n_spread as isize;
        let (cut_before, cut_after) = ((-before).max(0) as usize, (-after).max(0) as usize);
        if axis.n_windows == 0 || cut_before + cut_after >= n_spread {
            return Ok(None);
        }
        places = places.narrow(i as i32 + 2, cut_before, n_spread - cut_before - cut_after);
        pads.push((before.max(0) as usize, after.max(0) as usize));
    }
    Ok(Some(if pads.iter().any(|pad| *pad != (0, 0)) { places.pad(&pads, 0.0) } else { places }))
}

/// How far apart places are put: as windows were, if there are several.
fn spacing(axis: &AxisWindows) -> usize {
    if axis.n_windows > 1 { axis.stride } else { 1 }
}

/// The values of `y`, with gradients of its two inputs by a rule of their own. The rule belongs to an op that is never
/// computed: the twin of `y`.
#[track_caller]
fn with_rule(
    y: &Tensor,
    name: &str,
    inputs: [&Tensor; 2],
    rule: impl Fn(&Tensor, &Tensor, &Tensor) -> [Result<Tensor>; 2] + Send + Sync + 'static,
) -> Result<Tensor> {
    let node = y.node()?;
    if !node.dtype.is_float() {
        return Ok(y.clone());
    }
    let twin = CustomOp {
        name: name.to_string(),
        wgsl: String::new(),
        cpu: Arc::new(|_| f32::NAN),
        grad: Some(Arc::new(move |inputs, _, g| rule(&inputs[0], &inputs[1], g).map(or_error).to_vec())),
    };
    let inputs: [&NodeRef; 2] = [inputs[0].node()?, inputs[1].node()?];
    let twin = Op::Custom(CustomRef(Arc::new(twin)));
    Ok(y.with_gradient_of(&Tensor::record(twin, &inputs, node.shape, node.dtype, Location::caller())))
}
