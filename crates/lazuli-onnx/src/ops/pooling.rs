//! Pooling by the engine's, with ONNX's attributes and its way of counting indices.

use lazuli::{DType, Pool, Tensor};

use super::contraction::{WINDOWS, Windows, image, per_axis};
use super::scatter::assign;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, extents, give, invalid, refuse, sizes, value};
use crate::elem::ElemType;

pub const ROWS: &[Row] = &[
    row(
        "MaxPool",
        1,
        &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "storage_order", "strides"],
        max_pool,
    )
    .checked(WINDOWS),
    row(
        "AveragePool",
        1,
        &["auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads", "strides"],
        average_pool,
    )
    .checked(WINDOWS),
    row("LpPool", 2, &["auto_pad", "ceil_mode", "dilations", "kernel_shape", "p", "pads", "strides"], lp_pool)
        .checked(WINDOWS),
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

/// The windows that the attributes of a node describe.
fn pool(c: &Call) -> Result<Pool, Stop> {
    let Some(kernel) = c.attr_ints("kernel_shape")? else { return invalid("`kernel_shape` is missing") };
    let windows = Windows::of(c, &image(c)?, extents(kernel)?)?;
    Ok(Pool {
        window: per_axis(&windows.kernel)?,
        stride: per_axis(&windows.strides)?,
        padding: windows.padding()?,
        dilation: per_axis(&windows.dilations)?,
        ceil_mode: c.attr_int("ceil_mode", 0)? != 0,
        count_include_pad: c.attr_int("count_include_pad", 0)? != 0,
    })
}

fn max_pool(c: &Call) -> Outputs {
    let (x, elem, pool) = (c.tensor(0)?, c.elem(0)?, pool(c)?);
    // i8 is stored as i32, whose least number is none of its own: a window that holds padding alone gives the least i8.
    let narrowed = |y: Tensor| if elem == ElemType::I8 { y.maximum(-128) } else { y };
    if !c.wants(1) {
        return give(narrowed(x.max_pool(pool)), elem);
    }
    let (y, places) = x.max_pool_with_indices(pool);
    let y = narrowed(y);
    let by_columns = c.attr_int("storage_order", 0)? != 0;
    Ok(vec![value(y, elem)?, value(in_whole_tensor(c, &places, by_columns)?, ElemType::I64)?])
}

/// Indices that count row-major within a channel, as indices into the whole tensor. With `by_columns` the pixels of a channel are
/// counted column-major instead, as `storage_order` asks.
fn in_whole_tensor(c: &Call, places: &Tensor, by_columns: bool) -> Result<Tensor, Stop> {
    let (image, shape) = (image(c)?, c.shape(0)?);
    let (n, channels, n_pixels) = (shape[0], shape[1], image.iter().product::<usize>());
    if n.saturating_mul(channels).saturating_mul(n_pixels) > i32::MAX as usize {
        return refuse(format!("indices of {shape:?}, which are larger than i32 can count"));
    }
    let mut own = places.clone();
    if by_columns {
        let (mut rest, mut step) = (places.clone(), n_pixels);
        own = places.zeros_like();
        for size in image.iter().rev().map(|size| (*size).max(1)) {
            step /= size;
            own = own.add(&rest.rem(size as i32).mul(step as i32));
            rest = rest.floor_divide(size as i32);
        }
    }
    let mut lead = vec![1; shape.len()];
    (lead[0], lead[1]) = (n, channels);
    let first = Tensor::arange(0i32, (n * channels) as i32, 1, c.device).mul(n_pixels as i32).reshape(lead);
    Ok(own.add(&first))
}

fn average_pool(c: &Call) -> Outputs {
    give(c.tensor(0)?.avg_pool(pool(c)?), c.elem(0)?)
}

fn lp_pool(c: &Call) -> Outputs {
    let p = c.attr_int("p", 2)? as f32;
    give(c.tensor(0)?.lp_pool(p, pool(c)?), c.elem(0)?)
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
