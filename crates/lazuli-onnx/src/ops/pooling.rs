//! Pooling: windows of an image are a view, and what is made of each is a reduction.

use lazuli::{DType, Tensor};

use super::contraction::{Windows, image};
use super::padding::zero_padded;
use super::scatter::assign;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, extents, give, invalid, listed, sizes, value};
use crate::elem::ElemType;
use crate::host::{Host, for_each_index};

pub const ROWS: &[Row] = &[
    row(
        "MaxPool",
        1,
        &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"],
        max_pool,
    ),
    row(
        "AveragePool",
        1,
        &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
        average_pool,
    ),
    row("LpPool", 2, &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "p", "pads", "strides"], lp_pool),
    row("GlobalAveragePool", 1, &[], |c| global(c, |x, axes| x.mean(lazuli::keep(axes)))),
    row("GlobalMaxPool", 1, &[], |c| global(c, |x, axes| x.max(lazuli::keep(axes)))),
    row("GlobalLpPool", 2, &["p"], |c| {
        let p = c.attr_int("p", 2)? as f32;
        let x = c.tensor(0)?;
        let axes: Vec<i32> = (2..x.shape()?.len() as i32).collect();
        give(x.abs().pow(p).sum(lazuli::keep(&axes[..])).pow(1.0 / p), c.elem(0)?)
    }),
    row("MaxUnpool", 9, &["kernel_shape", "pads", "strides"], max_unpool),
];

fn global(c: &Call, f: fn(&Tensor, &[i32]) -> Tensor) -> Outputs {
    let axes: Vec<i32> = (2..c.rank(0)? as i32).collect();
    give(f(&c.tensor(0)?, &axes), c.elem(0)?)
}

/// Windows over an image, and how many there are along each axis.
struct Pool {
    windows: Windows,
    image: Vec<usize>,
    counts: Vec<usize>,
}

impl Pool {
    fn of(c: &Call) -> Result<Pool, Stop> {
        let image = image(c)?;
        let Some(kernel) = c.attr_ints("kernel_shape")? else { return invalid("`kernel_shape` is missing") };
        let windows = Windows::of(c, &image, extents(kernel)?)?;
        let ceil = c.attr_int("ceil_mode", 0)? != 0;
        let mut counts = Vec::new();
        for i in 0..image.len() {
            let (before, after) = windows.pads[i];
            let Some(room) = (image[i] + before + after).checked_sub(windows.reach(i)) else {
                return invalid(format!("no window of {:?} fits {image:?}", windows.kernel));
            };
            let stride = windows.strides[i];
            let mut count = if ceil { room.div_ceil(stride) } else { room / stride } + 1;
            // A window must begin inside the image or the padding before it.
            if ceil && (count - 1) * stride >= image[i] + before {
                count -= 1;
            }
            counts.push(count);
        }
        Ok(Pool { windows, image, counts })
    }

    /// The windows of `[n, channels, size…]` as `[n, channels, count…, elements]`, with a number around the image.
    fn view(&self, x: &Tensor, around: f64) -> Result<Tensor, Stop> {
        let windows = &self.windows;
        let mut pads = vec![(0, 0); 2];
        for i in 0..self.image.len() {
            let end = (self.counts[i] - 1) * windows.strides[i] + windows.reach(i);
            pads.push((windows.pads[i].0 as i64, end as i64 - (self.image[i] + windows.pads[i].0) as i64));
        }
        let mut y = zero_padded(x, &pads, around)?;
        for i in 0..self.image.len() {
            // The elements of a window become a new last axis.
            y = y.unfold(2 + i as i32, windows.reach(i), windows.strides[i]);
            if windows.dilations[i] > 1 {
                let rank = y.shape()?.len();
                let all = lazuli::Slice::Range { start: None, end: None, step: 1 };
                let mut slices = vec![all; rank];
                slices[rank - 1] = all.by(windows.dilations[i]);
                y = y.slice(&slices[..]);
            }
        }
        let lead = y.shape()?[..2 + self.image.len()].to_vec();
        let n_elems = windows.kernel.iter().try_fold(1usize, |n, size| n.checked_mul(*size)).unwrap_or(usize::MAX);
        Ok(y.reshape([&lead[..], &[n_elems]].concat()))
    }

    /// How many elements of each window are inside the image, or inside the padding too.
    fn n_inside(&self, c: &Call, with_padding: bool) -> Result<Tensor, Stop> {
        let n_axes = self.image.len();
        let mut counts = Tensor::scalar(1.0f32, c.device);
        for i in 0..n_axes {
            let (before, after) = self.windows.pads[i];
            let inside = match with_padding {
                true => 0..(self.image[i] + before + after),
                false => before..(before + self.image[i]),
            };
            let of_window = |window: usize| {
                let start = window * self.windows.strides[i];
                let places = (0..self.windows.kernel[i]).map(|k| start + k * self.windows.dilations[i]);
                places.filter(|place| inside.contains(place)).count() as f32
            };
            let per_axis: Vec<f32> = (0..listed(self.counts[i])?).map(of_window).collect();
            let mut shape = vec![1; n_axes];
            shape[i] = self.counts[i];
            counts = counts.mul(&Tensor::from_vec(per_axis, shape, c.device));
        }
        Ok(counts)
    }
}

/// Windows of at most this many elements are compared element by element, so that neighbouring windows are done side by side.
const SMALL: usize = 16;

/// The greatest element of each window.
fn greatest(windows: &Tensor) -> Result<Tensor, Stop> {
    let n_elems = windows.shape()?.last().copied().unwrap_or(1);
    Ok(match n_elems {
        1..=SMALL => {
            let element = |i: usize| windows.select_index(-1, i as i64);
            (1..n_elems).fold(element(0), |y, i| y.maximum(element(i)))
        }
        _ => windows.max(-1),
    })
}

fn max_pool(c: &Call) -> Outputs {
    let pool = Pool::of(c)?;
    let (x, elem) = (c.tensor(0)?, c.elem(0)?);
    let least = match elem {
        _ if elem.is_float() => f64::NEG_INFINITY,
        ElemType::I8 => -128.0,
        _ if elem.is_signed() => i32::MIN as f64,
        _ => 0.0,
    };
    let windows = pool.view(&x, least)?;
    let mut outputs = vec![value(greatest(&windows)?, elem)?];
    if c.wants(1) {
        let n_pixels: usize = pool.image.iter().product();
        let by_columns = c.attr_int("storage_order", 0)? != 0;
        let mut places = Vec::with_capacity(listed(n_pixels)?);
        for_each_index(&pool.image, |index| {
            let axes: Vec<usize> =
                if by_columns { (0..index.len()).rev().collect() } else { (0..index.len()).collect() };
            places.push(axes.iter().fold(0, |flat, axis| flat * pool.image[*axis] + index[*axis]) as i64);
        });
        let shape = [&[1, 1], &pool.image[..]].concat();
        let places = Host::ints(ElemType::I64, shape, places).upload(c.device)?;
        let places = pool.view(&places, -1.0)?;
        let best = windows.argmax(-1).unsqueeze(-1);
        let lead = windows.shape()?.to_vec();
        let own = places.broadcast_to(lead).gather(-1, &best).squeeze(-1);
        let (n, channels) = (c.shape(0)?[0], c.shape(0)?[1]);
        let mut shape = vec![1; pool.image.len() + 2];
        (shape[0], shape[1]) = (n, channels);
        let offsets = Tensor::arange(0i32, (n * channels) as i32, 1, c.device).mul(n_pixels as i32).reshape(shape);
        outputs.push(value(own.add(&offsets), ElemType::I64)?);
    }
    Ok(outputs)
}

fn average_pool(c: &Call) -> Outputs {
    let pool = Pool::of(c)?;
    let sums = pool.view(&c.tensor(0)?, 0.0)?.sum(-1);
    let counts = pool.n_inside(c, c.attr_int("count_include_pad", 0)? != 0)?;
    give(sums.div(&counts), c.elem(0)?)
}

fn lp_pool(c: &Call) -> Outputs {
    let pool = Pool::of(c)?;
    let p = c.attr_int("p", 2)? as f32;
    give(pool.view(&c.tensor(0)?, 0.0)?.abs().pow(p).sum(-1).pow(1.0 / p), c.elem(0)?)
}

/// Elements at the places that max pooling found, zeros elsewhere.
fn max_unpool(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let small = image(c)?;
    let Some(kernel) = c.attr_ints("kernel_shape")? else { return invalid("`kernel_shape` is missing") };
    let windows = Windows::of(c, &small, extents(kernel)?)?;
    let mut own = shape[..2].to_vec();
    for i in 0..small.len() {
        let whole = (small[i].max(1) - 1) * windows.strides[i] + windows.kernel[i];
        own.push(whole.saturating_sub(windows.pads[i].0 + windows.pads[i].1));
    }
    let n: usize = own.iter().product();
    let zeros = Tensor::zeros([n], DType::F32, c.device);
    let mut y = assign(&zeros, 0, &c.tensor(1)?.flatten(), &c.tensor(0)?.flatten())?.reshape(&own[..]);
    if let Some(wanted) = c.optional_ints(2)? {
        // The indices count in the smaller shape; the rest is zeros at the end.
        let wanted = sizes(&wanted)?;
        if wanted.len() != own.len() || wanted.iter().zip(&own).any(|(wanted, own)| wanted < own) {
            return invalid(format!("MaxUnpool: {own:?} does not fit {wanted:?}"));
        }
        let pads: Vec<(usize, usize)> = wanted.iter().zip(&own).map(|(wanted, own)| (0, wanted - own)).collect();
        y = y.pad(&pads, 0.0f32);
    }
    give(y, c.elem(0)?)
}
