//! Products: matrices, einsum, convolutions and their opposites.

use lazuli::{Conv, ConvTranspose, DType, Pads, PerAxis, Tensor};

use super::padding::zero_padded;
use super::{Check, Row, row};
use crate::call::{Call, Outputs, Stop, extents, give, invalid, refuse, sizes};
use crate::graph::Node;

pub const CONV: &[&str] = &["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

pub const ROWS: &[Row] = &[
    row("MatMul", 1, &[], |c| give(c.tensor(0)?.matmul(&c.tensor(1)?), c.elem(0)?)),
    row("Gemm", 6, &["alpha", "beta", "broadcast", "transA", "transB"], gemm),
    row("Einsum", 12, &["equation"], einsum),
    row("Det", 11, &[], |c| give(c.tensor(0)?.det(), c.elem(0)?)),
    row("Conv", 1, CONV, conv).checked(WINDOWS),
    row(
        "ConvTranspose",
        1,
        &["auto_pad", "dilations", "group", "kernel_shape", "output_padding", "output_shape", "pads", "strides"],
        conv_transpose,
    )
    .checked(WINDOWS),
    row("Col2Im", 18, &["dilations", "pads", "strides"], col2im),
];

/// What must hold of windows.
pub const WINDOWS: &[Check] = &[|node| auto_pad(node).map(drop), has_few_axes];

/// What the attribute `auto_pad` says.
#[derive(Clone, Copy, PartialEq)]
enum AutoPad {
    /// Pads are given.
    Given,
    /// There are none.
    Valid,
    /// As many windows as the strides say; of an odd number of elements one more is at the end.
    SameUpper,
    /// The same, with one more at the beginning.
    SameLower,
}

fn auto_pad(node: &Node) -> Result<AutoPad, Stop> {
    let known = [
        ("NOTSET", AutoPad::Given),
        ("VALID", AutoPad::Valid),
        ("SAME_UPPER", AutoPad::SameUpper),
        ("SAME_LOWER", AutoPad::SameLower),
    ];
    node.choice("auto_pad", "NOTSET", &known)
}

fn has_few_axes(node: &Node) -> Result<(), Stop> {
    match node.attr_ints("kernel_shape")? {
        Some(kernel) if kernel.len() > 3 => node.unsupported("kernel_shape", format!("{kernel:?}, at most 3 axes,")),
        _ => Ok(()),
    }
}

fn gemm(c: &Call) -> Outputs {
    let matrix = |i: usize, name: &str| -> Result<Tensor, Stop> {
        let x = c.tensor(i)?;
        Ok(if c.attr_int(name, 0)? != 0 { x.t() } else { x })
    };
    let mut y = matrix(0, "transA")?.matmul(&matrix(1, "transB")?);
    let (alpha, beta) = (c.attr_float("alpha", 1.0)?, c.attr_float("beta", 1.0)?);
    if alpha != 1.0 {
        y = y.mul(alpha);
    }
    if let Some(bias) = c.optional(2)? {
        y = y.add(&if beta == 1.0 { bias } else { bias.mul(beta) });
    }
    give(y, c.elem(0)?)
}

fn einsum(c: &Call) -> Outputs {
    let equation: String = c.attr_text("equation", "")?.chars().filter(|c| !c.is_whitespace()).collect();
    let operands = (0..c.inputs.len()).map(|i| c.tensor(i)).collect::<Result<Vec<Tensor>, Stop>>()?;
    give(lazuli::einsum(&equation, &operands.iter().collect::<Vec<_>>()), c.elem(0)?)
}

/// How windows lie on the axes of an image.
pub struct Windows {
    pub kernel: Vec<usize>,
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    /// Before and after each axis.
    pub pads: Vec<(usize, usize)>,
    /// Whether the padding was derived from `auto_pad`, which makes the result as large as the strides say.
    pub is_same: bool,
}

impl Windows {
    /// The windows that the attributes of a node describe, over an image with these sizes.
    pub fn of(c: &Call, image: &[usize], kernel: Vec<usize>) -> Result<Windows, Stop> {
        let n = image.len();
        let list = |name: &str, default: usize| -> Result<Vec<usize>, Stop> {
            let list = c.attr_ints(name)?.map_or(Ok(vec![default; n]), extents)?;
            match list.len() == n {
                true => Ok(list),
                false => invalid(format!("`{name}` has {} numbers for {n} axes", list.len())),
            }
        };
        if image.iter().chain(&kernel).any(|n| *n > 1 << 31) {
            return invalid(format!("windows of {kernel:?} over {image:?} are larger than can be addressed"));
        }
        let (strides, dilations) = (list("strides", 1)?, list("dilations", 1)?);
        if kernel.len() != n || kernel.contains(&0) || strides.contains(&0) || dilations.contains(&0) {
            return invalid(format!("windows of {kernel:?}, strides {strides:?}, dilations {dilations:?}"));
        }
        let reach = |i: usize| dilations[i] * (kernel[i] - 1) + 1;
        let same = |i: usize, upper: bool| {
            let n_windows = image[i].div_ceil(strides[i]);
            let total = (n_windows.saturating_sub(1) * strides[i] + reach(i)).saturating_sub(image[i]);
            if upper { (total / 2, total - total / 2) } else { (total - total / 2, total / 2) }
        };
        let auto_pad = auto_pad(c.node)?;
        let pads = match auto_pad {
            AutoPad::Given => {
                let pads = c.attr_ints("pads")?.map_or(Ok(vec![0; 2 * n]), extents)?;
                if pads.len() != 2 * n {
                    return invalid(format!("`pads` has {} numbers for {n} axes", pads.len()));
                }
                (0..n).map(|i| (pads[i], pads[i + n])).collect()
            }
            AutoPad::Valid => vec![(0, 0); n],
            AutoPad::SameUpper => (0..n).map(|i| same(i, true)).collect(),
            AutoPad::SameLower => (0..n).map(|i| same(i, false)).collect(),
        };
        let is_same = matches!(auto_pad, AutoPad::SameUpper | AutoPad::SameLower);
        Ok(Windows { kernel, strides, dilations, pads, is_same })
    }

    /// The padding as the engine takes it.
    pub fn padding(&self) -> Result<Pads, Stop> {
        match self.pads[..] {
            [a] => Ok([a].into()),
            [a, b] => Ok([a, b].into()),
            [a, b, c] => Ok([a, b, c].into()),
            _ => refuse(format!("windows over {} axes, at most 3", self.pads.len())),
        }
    }

    /// How far the window of an axis reaches.
    pub fn reach(&self, axis: usize) -> usize {
        self.dilations[axis] * (self.kernel[axis] - 1) + 1
    }
}

/// One number per axis, as the engine takes them: one to three axes.
pub fn per_axis(numbers: &[usize]) -> Result<PerAxis, Stop> {
    match *numbers {
        [a] => Ok([a].into()),
        [a, b] => Ok([a, b].into()),
        [a, b, c] => Ok([a, b, c].into()),
        _ => refuse(format!("windows over {} axes, at most 3", numbers.len())),
    }
}

/// The sizes of an image after batch and channels.
pub fn image(c: &Call) -> Result<Vec<usize>, Stop> {
    match c.shape(0)? {
        shape if shape.len() >= 3 => Ok(shape[2..].to_vec()),
        shape => invalid(format!("[batch, channels, size…] is wanted, not {shape:?}")),
    }
}

fn kernel_of_weight(c: &Call, weight: &[usize]) -> Result<Vec<usize>, Stop> {
    let shape = weight;
    let own = shape.get(2..).unwrap_or_default().to_vec();
    match c.attr_ints("kernel_shape")? {
        Some(given) if sizes(given)? != own => invalid(format!("`kernel_shape` is {given:?}, the weights' is {own:?}")),
        _ => Ok(own),
    }
}

fn conv(c: &Call) -> Outputs {
    give(convolved(c, &c.tensor(0)?, &c.tensor(1)?, c.optional(2)?.as_ref())?, c.elem(0)?)
}

/// A convolution with the windows that the node's attributes describe.
pub fn convolved(c: &Call, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, Stop> {
    let image = image(c)?;
    let windows = Windows::of(c, &image, kernel_of_weight(c, weight.shape()?)?)?;
    let options = Conv {
        stride: per_axis(&windows.strides)?,
        padding: windows.padding()?,
        dilation: per_axis(&windows.dilations)?,
        groups: groups(c)?,
    };
    Ok(x.conv(weight, bias, options))
}

/// Whether windows of a convolution reach beyond the image.
pub fn is_padded(c: &Call, weight: &[usize]) -> Result<bool, Stop> {
    let windows = Windows::of(c, &image(c)?, kernel_of_weight(c, weight)?)?;
    Ok(windows.pads.iter().any(|pads| *pads != (0, 0)))
}

/// Into how many groups the channels of a convolution are split.
pub fn groups(c: &Call) -> Result<usize, Stop> {
    crate::call::size(c.attr_int("group", 1)?)
}

fn conv_transpose(c: &Call) -> Outputs {
    let image = image(c)?;
    let n = image.len();
    let windows = Windows::of(c, &image, kernel_of_weight(c, &c.shape(1)?)?)?;
    let extra = c.attr_ints("output_padding")?.map_or(Ok(vec![0; n]), extents)?;
    let wanted = c.attr_ints("output_shape")?.map(sizes).transpose()?;
    if extra.len() != n || wanted.as_ref().is_some_and(|wanted| wanted.len() < n) {
        return invalid("`output_padding` or `output_shape` has another number of axes");
    }
    let conv = Conv {
        stride: per_axis(&windows.strides)?,
        dilation: per_axis(&windows.dilations)?,
        groups: groups(c)?,
        ..Conv::default()
    };
    let options = ConvTranspose { conv, output_padding: per_axis(&extra)? };
    let whole = c.tensor(0)?.conv_transpose(&c.tensor(1)?, None, options);
    let lower = auto_pad(c.node)? == AutoPad::SameLower;
    // The whole result is cut by the pads, which may differ from side to side.
    let mut pads = vec![(0, 0); 2];
    for i in 0..n {
        let full = image[i].saturating_sub(1) * windows.strides[i] + windows.reach(i) + extra[i];
        let target = match &wanted {
            Some(wanted) => Some(wanted[wanted.len() - n + i]),
            None if windows.is_same => Some(image[i] * windows.strides[i]),
            None => None,
        };
        let (before, after) = match target {
            // The padding follows from the size.
            Some(target) => {
                let total = full as i64 - target as i64;
                let half = total.max(0) / 2;
                if lower { (total - half, half) } else { (half, total - half) }
            }
            None => (windows.pads[i].0 as i64, windows.pads[i].1 as i64),
        };
        pads.push((-before, -after));
    }
    let mut y = zero_padded(&whole, &pads, 0.0)?;
    if let Some(bias) = c.optional(2)? {
        let mut shape = vec![1; n + 2];
        shape[1] = bias.shape()?.iter().product();
        y = y.add(&bias.reshape(shape));
    }
    give(y, c.elem(0)?)
}

/// Windows added up at the places they were taken from: the opposite of a convolution whose weights are the identity.
fn col2im(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let (image, block) = (extents(&c.ints(1)?)?, extents(&c.ints(2)?)?);
    let windows = Windows::of(c, &image, block.clone())?;
    let Some(n_block) = block.iter().try_fold(1usize, |n, size| n.checked_mul(*size)) else {
        return invalid("Col2Im: the block is larger than can be addressed");
    };
    let [n, rows, n_places] = shape[..] else { return invalid(format!("Col2Im: {shape:?} has no three axes")) };
    if n_block == 0 || !rows.is_multiple_of(n_block) {
        return invalid(format!("Col2Im: {rows} rows are no whole blocks of {n_block}"));
    }
    let channels = rows / n_block;
    let mut places = Vec::new();
    let mut pads = vec![(0, 0); 2];
    for i in 0..image.len() {
        let padded = image[i] + windows.pads[i].0 + windows.pads[i].1;
        let Some(room) = padded.checked_sub(windows.reach(i)) else { return invalid("Col2Im: no window fits") };
        places.push(room / windows.strides[i] + 1);
        // What no window reaches is zero.
        let reached = (room / windows.strides[i]) * windows.strides[i] + windows.reach(i);
        let missing = padded as i64 - reached as i64;
        pads.push((-(windows.pads[i].0 as i64), missing - windows.pads[i].1 as i64));
    }
    if places.iter().product::<usize>() != n_places {
        return invalid(format!("Col2Im: {n_places} windows, there are {places:?}"));
    }
    let weight_shape = [&[n_block, 1], &block[..]].concat();
    let weight = Tensor::eye(n_block, DType::F32, c.device).reshape(weight_shape);
    let x = c.tensor(0)?.reshape([&[n * channels, n_block], &places[..]].concat());
    let options =
        Conv { stride: per_axis(&windows.strides)?, dilation: per_axis(&windows.dilations)?, ..Conv::default() };
    let y = zero_padded(&x.conv_transpose(&weight, None, options), &pads, 0.0)?;
    give(y.reshape([&[n, channels], &image[..]].concat()), c.elem(0)?)
}
