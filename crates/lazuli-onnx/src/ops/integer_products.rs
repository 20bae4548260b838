//! Products of small integers. Matrices on the CPU are bytes, which the engine multiplies as such. Else integers are multiplied and
//! summed as f32, which is several times as fast as i32 on vector units, and exact: a factor of 8 bits less its zero point is at
//! most 255, so a sum of 258 products stays below 2²⁴, where f32 holds every integer in whatever order they are added. Longer
//! sums are cut into parts that are added as i32, which wraps as ONNX's int32 does.

use lazuli::{DType, DeviceKind, Tensor, keep};

use super::contraction::{CONV, WINDOWS, convolved, groups, is_padded};
use super::quantization::{SCALAR, range, saturated};
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, invalid, refuse, size};
use crate::elem::ElemType;
use crate::graph::{KeptFor, Node};
use crate::value::Kind;

pub const ROWS: &[Row] = &[
    row("MatMulInteger", 10, &[], |c| give(int_product(c, [0, 2], [1, 3])?, ElemType::I32)),
    row("ConvInteger", 10, CONV, |c| give(int_conv(c, [0, 2], [1, 3])?, ElemType::I32)).checked(WINDOWS),
    row("QLinearMatMul", 10, &[], qlinear_matmul),
    row("QLinearConv", 10, CONV, qlinear_conv).checked(WINDOWS),
    Row {
        name: "MatMulNBits",
        domain: "com.microsoft",
        since: 1,
        attrs: &["K", "N", "accuracy_level", "bits", "block_size"],
        checks: &[|node| bits_of(node).map(drop), |node| block_of(node).map(drop), has_no_groups],
        run: matmul_nbits,
    },
];

/// Integers below this, and their negatives, are exact in f32.
const EXACT: u64 = 1 << 24;

/// Integers to be multiplied, as f32.
struct Factor {
    x: Tensor,
    /// The largest magnitude that its type and zero point allow.
    most: u64,
}

/// An input less its zero point, which is another input, or missing; `align` gives the zero point the shape that broadcasts.
fn factor(c: &Call, [i, zero]: [usize; 2], align: impl FnOnce(Tensor) -> Result<Tensor, Stop>) -> Result<Factor, Stop> {
    let elem = c.elem(i)?;
    if elem.bits() != Some(8) {
        return refuse(format!("products of {elem}"));
    }
    let (low, high) = range(elem)?;
    let most = match c.inputs.get(zero).and_then(Option::as_ref).map(|value| &value.0) {
        None => low.abs().max(high) as u64,
        Some(Kind::Host(zeros)) => {
            let reach = |zero: &i64| zero.abs_diff(low as i64).max(zero.abs_diff(high as i64));
            zeros.as_ints()?.iter().map(reach).max().unwrap_or(1)
        }
        Some(_) => (high - low) as u64,
    };
    let x = c.tensor(i)?.to_dtype(DType::F32);
    let x = match c.optional(zero)? {
        Some(zero) => x.sub(&align(zero.to_dtype(DType::F32))?),
        None => x,
    };
    Ok(Factor { x, most })
}

/// A factor that is kept with the node if it is a constant: weights.
fn weights(c: &Call, inputs: [usize; 2], align: impl FnOnce(Tensor) -> Result<Tensor, Stop>) -> Result<Factor, Stop> {
    let made = factor(c, inputs, align)?;
    let [x] = c.kept(KeptFor::Floats, &inputs, || Ok([made.x]))?;
    Ok(Factor { x, ..made })
}

/// How many products of two factors may be summed in f32.
fn exact_terms(a: &Factor, b: &Factor) -> usize {
    (EXACT / (a.most * b.most)) as usize
}

/// `(start, length)` of the fewest parts of about the same length, none longer than `most`.
fn parts(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let len = n.div_ceil(n.div_ceil(most).max(1)).max(1);
    (0..n.max(1)).step_by(len).map(move |start| (start, len.min(n - start)))
}

/// The sum of parts, each exact in f32, as i32.
fn summed(parts: impl Iterator<Item = Tensor>) -> Tensor {
    let sum = parts.map(|part| part.to_dtype(DType::I32)).reduce(|sum, part| sum.add(&part));
    sum.expect("there is one part at least")
}

/// `Σ (a − a's zero point) · (b − b's zero point)`, as i32: where the engine multiplies bytes, as a product of those.
fn int_product(c: &Call, a: [usize; 2], b: [usize; 2]) -> Result<Tensor, Stop> {
    if c.device.info().kind == DeviceKind::Cpu {
        return byte_product(c, a, b);
    }
    let a = factor(c, a, |zero| Ok(column(zero)))?;
    let b = weights(c, b, Ok)?;
    let (shape, rank_b) = (a.x.shape()?.to_vec(), b.x.shape()?.len());
    let (Some(k), true) = (shape.last().copied(), rank_b > 0) else {
        return invalid("a scalar has no axis to contract");
    };
    let along = if rank_b == 1 { -1 } else { -2 };
    if b.x.shape()?[rank_b.saturating_sub(2)] != k {
        // The engine's error says what does not fit.
        return Ok(a.x.matmul(&b.x));
    }
    let part = |(start, len): (usize, usize)| a.x.narrow(-1, start, len).matmul(&b.x.narrow(along, start, len));
    Ok(summed(parts(k, exact_terms(&a, &b)).map(part)))
}

/// An input of 8 bits as unsigned bytes, and its zero point as i32, if it is another number than 0: signed ones are moved by 128.
/// `align` gives the zero point the shape that broadcasts.
fn unsigned(c: &Call, [i, zero]: [usize; 2], align: fn(Tensor) -> Tensor) -> Result<(Tensor, Option<Tensor>), Stop> {
    let elem = c.elem(i)?;
    if elem.bits() != Some(8) {
        return refuse(format!("products of {elem}"));
    }
    let (x, moved) = match elem.is_signed() {
        true => (c.tensor(i)?.add(128).to_dtype(DType::U8), 128),
        false => (c.tensor(i)?, 0),
    };
    let is_nothing = match c.inputs.get(zero).and_then(Option::as_ref).map(|value| &value.0) {
        None => moved == 0,
        Some(Kind::Host(zeros)) => zeros.as_ints()?.iter().all(|zero| *zero + moved as i64 == 0),
        Some(_) => false,
    };
    let zero = match c.optional(zero)? {
        _ if is_nothing => None,
        Some(zero) => Some(align(zero.to_dtype(DType::I32)).add(moved)),
        None => Some(Tensor::full(SCALAR, moved, c.device)),
    };
    Ok((x, zero))
}

/// [`int_product`] as a product of raw bytes, from which the terms of the zero points are then subtracted:
/// `Σ (a − p)·(b − q) = Σ a·b − q · Σ a − p · (Σ b − k·q)`. Of constants, `Σ b − k·q` is kept.
fn byte_product(c: &Call, a: [usize; 2], b: [usize; 2]) -> Result<Tensor, Stop> {
    let ((x, p), (y, q)) = (unsigned(c, a, column)?, unsigned(c, b, |zero| zero)?);
    let (rank_x, rank_y) = (x.shape()?.len(), y.shape()?.len());
    if rank_x == 0 || rank_y == 0 {
        return invalid("a scalar has no axis to contract");
    }
    // Vectors as a row and a column.
    let x = if rank_x == 1 { x.unsqueeze(0) } else { x };
    let [y, rest] = c.kept(KeptFor::Bytes, &b, || {
        let y = if rank_y == 1 { y.unsqueeze(1) } else { y };
        // Not the other operand's size: whether both fit is found out below, and this is kept whatever comes of that.
        let k = y.shape()?[y.shape()?.len() - 2];
        let sums = y.to_dtype(DType::I32).sum(keep(-2));
        let rest = match &q {
            Some(q) => sums.sub(&q.mul(k as i32)),
            None => sums,
        };
        Ok([y, rest])
    })?;
    let mut sums = x.to_dtype(DType::I32).matmul(&y.to_dtype(DType::I32));
    if let Some(q) = q {
        sums = sums.sub(&x.to_dtype(DType::I32).sum(keep(-1)).mul(&q));
    }
    if let Some(p) = p {
        sums = sums.sub(&rest.mul(&p));
    }
    let sums = if rank_x == 1 { sums.squeeze(-2) } else { sums };
    Ok(if rank_y == 1 { sums.squeeze(-1) } else { sums })
}

/// Numbers of rows, one each, as a column; one number stays one.
fn column(x: Tensor) -> Tensor {
    match x.shape() {
        Ok([n]) if *n > 1 => x.reshape([*n, 1]),
        Ok([_]) => x.reshape(SCALAR),
        _ => x,
    }
}

/// Numbers of output channels, one each, as they broadcast to `[outputs, …]` with `n_after` more axes.
fn channels(x: Tensor, n_after: usize) -> Tensor {
    match x.shape() {
        Ok([n]) if *n > 1 => x.reshape(std::iter::once(*n).chain(std::iter::repeat_n(1, n_after)).collect::<Vec<_>>()),
        Ok([_]) => x.reshape(SCALAR),
        _ => x,
    }
}

/// The convolution of two factors, as i32. Around the image there are zero points.
fn int_conv(c: &Call, x: [usize; 2], w: [usize; 2]) -> Result<Tensor, Stop> {
    if let Some(sums) = byte_conv(c, x, w)? {
        return Ok(sums);
    }
    let n_axes = c.rank(w[0])?.saturating_sub(1);
    let x = factor(c, x, |zero| Ok(zero.reshape(SCALAR)))?;
    let w = weights(c, w, |zero| Ok(channels(zero, n_axes)))?;
    let [_, n_channels, window @ ..] = w.x.shape()? else {
        return invalid("weights [outputs, channels, size…] are wanted");
    };
    let n_window = window.iter().fold(1usize, |n, size| n.saturating_mul(*size));
    let n_terms = exact_terms(&x, &w);
    if n_window.saturating_mul(*n_channels) <= n_terms {
        return Ok(summed(std::iter::once(convolved(c, &x.x, &w.x, None)?)));
    }
    if n_window > n_terms || groups(c)? != 1 || x.x.shape()?.get(1) != Some(n_channels) {
        // Sums that cannot be cut by channels: integers throughout, which is slower.
        return convolved(c, &x.x.to_dtype(DType::I32), &w.x.to_dtype(DType::I32), None);
    }
    let part =
        |(start, len): (usize, usize)| convolved(c, &x.x.narrow(1, start, len), &w.x.narrow(1, start, len), None);
    let parts = parts(*n_channels, n_terms / n_window).map(part).collect::<Result<Vec<Tensor>, Stop>>()?;
    Ok(summed(parts.into_iter()))
}

/// [`int_conv`] as a product of raw bytes, on the CPU; None where windows reach into padding, where there are no zero
/// points to be taken from sums, or see some of the channels only. With weights less their zero point `q` and images less theirs,
/// `p`: `Σ (x − p)·(w − q) = Σ x·w − q · Σ x − p · (Σ w − k·q)`. What weights alone decide is kept.
fn byte_conv(c: &Call, image: [usize; 2], weight: [usize; 2]) -> Result<Option<Tensor>, Stop> {
    let rank = c.rank(weight[0])?;
    if c.device.info().kind != DeviceKind::Cpu || rank < 3 || groups(c)? != 1 || is_padded(c, &c.shape(weight[0])?)? {
        return Ok(None);
    }
    let ((x, p), (w, q)) = (unsigned(c, image, |zero| zero.reshape(SCALAR))?, unsigned(c, weight, |zero| zero)?);
    let [w, rest] = c.kept(KeptFor::Bytes, &weight, || {
        let window: Vec<i32> = (1..rank as i32).collect();
        let n_terms: usize = w.shape()?[1..].iter().product();
        let sums = w.to_dtype(DType::I32).sum(&window[..]);
        let rest = match &q {
            Some(q) => sums.sub(&q.mul(n_terms as i32)),
            None => sums,
        };
        Ok([w, channels(rest, rank - 2)])
    })?;
    let mut sums = convolved(c, &x.to_dtype(DType::I32), &w.to_dtype(DType::I32), None)?;
    if let Some(q) = q {
        // Sums of windows: of all channels first.
        let window = [&[1, 1], &w.shape()?[2..]].concat();
        let of_channels = x.to_dtype(DType::I32).sum(keep(1));
        let of_windows = convolved(c, &of_channels, &Tensor::full(window, 1, c.device), None)?;
        sums = sums.sub(&of_windows.mul(&channels(q, rank - 2)));
    }
    if let Some(p) = p {
        sums = sums.sub(&rest.mul(&p));
    }
    Ok(Some(sums))
}

/// Sums of products as small integers again: times the scales of both factors over that of the result.
fn requantized(c: &Call, sums: &Tensor, scales: [Tensor; 3], zero: usize) -> Outputs {
    let [a, b, y] = scales.map(|scale| scale.to_dtype(DType::F32));
    let elem = c.elem(zero)?;
    let quotients = sums.to_dtype(DType::F32).mul(&a.mul(&b).div(&y));
    give(saturated(&quotients, Some(&column(c.tensor(zero)?)), elem)?, elem)
}

fn qlinear_matmul(c: &Call) -> Outputs {
    let sums = int_product(c, [0, 2], [3, 5])?;
    requantized(c, &sums, [column(c.tensor(1)?), c.tensor(4)?, column(c.tensor(6)?)], 7)
}

fn qlinear_conv(c: &Call) -> Outputs {
    let mut sums = int_conv(c, [0, 2], [3, 5])?;
    let n_axes = c.rank(0)?.saturating_sub(2);
    if let Some(bias) = c.optional(8)? {
        sums = sums.add(&channels(bias, n_axes));
    }
    requantized(c, &sums, [c.tensor(1)?, channels(c.tensor(4)?, n_axes), c.tensor(6)?], 7)
}

fn bits_of(node: &Node) -> Result<usize, Stop> {
    match node.attr_int("bits", 4)? {
        bits @ (2 | 4 | 8) => Ok(bits as usize),
        bits => node.unsupported("bits", bits),
    }
}

fn block_of(node: &Node) -> Result<usize, Stop> {
    match node.attr_int("block_size", 0)? {
        block if block >= 16 && block as u64 <= 1 << 31 && (block as u64).is_power_of_two() => Ok(block as usize),
        block => node.unsupported("block_size", block),
    }
}

/// Columns of a weight that belong to groups in another order than they lie.
fn has_no_groups(node: &Node) -> Result<(), Stop> {
    match node.inputs.get(4) {
        Some(Some(_)) => refuse("input `g_idx` of operator MatMulNBits"),
        _ => Ok(()),
    }
}

/// A product with weights of 2, 4 or 8 bits in blocks: `[n, blocks, bytes]`, a scale and a zero point per block. Weights are
/// widened once and kept.
fn matmul_nbits(c: &Call) -> Outputs {
    let (k, n) = (size(c.attr_int("K", 0)?)?, size(c.attr_int("N", 0)?)?);
    let (bits, block) = (bits_of(c.node)?, block_of(c.node)?);
    let n_blocks = k.div_ceil(block);
    let n_bytes = block * bits / 8;
    if c.elem(1)? != ElemType::U8 || c.shape(1)? != [n, n_blocks, n_bytes] {
        return invalid(format!("weights {:?}; [{n}, {n_blocks}, {n_bytes}] bytes are wanted", c.shape(1)?));
    }
    let [weight] = c.kept(KeptFor::Floats, &[1, 2, 3], || {
        let q = unpacked(&c.tensor(1)?, bits).reshape([n, n_blocks, block]);
        let scale = c.tensor(2)?.to_dtype(DType::F32).reshape([n, n_blocks, 1]);
        let zero = match c.optional(3)? {
            None => Tensor::full([1, 1, 1], (1 << (bits - 1)) as f32, c.device),
            // Zero points of a row are packed, too, and fill up its last byte.
            Some(zero) if c.elem(3)? == ElemType::U8 => {
                let bytes = (n_blocks * bits).div_ceil(8);
                unpacked(&zero.reshape([n, bytes]), bits).narrow(-1, 0, n_blocks).reshape([n, n_blocks, 1])
            }
            Some(zero) => zero.to_dtype(DType::F32).reshape([n, n_blocks, 1]),
        };
        Ok([q.sub(&zero).mul(&scale).reshape([n, n_blocks * block]).narrow(-1, 0, k)])
    })?;
    let y = c.tensor(0)?.to_dtype(DType::F32).matmul(&weight.t());
    let y = match c.optional(5)? {
        Some(bias) => y.add(&bias.to_dtype(DType::F32)),
        None => y,
    };
    give(y, c.elem(0)?)
}

/// Bytes as the numbers of `bits` bits that are in them, the lowest bits first, as f32: the last axis is longer.
fn unpacked(bytes: &Tensor, bits: usize) -> Tensor {
    if bits == 8 {
        return bytes.to_dtype(DType::F32);
    }
    let shape = bytes.shape().map(<[usize]>::to_vec).unwrap_or_default();
    let bytes = bytes.to_dtype(DType::I32);
    let digit = |i: usize| bytes.shr((i * bits) as i32).bit_and((1 << bits) - 1);
    let digits: Vec<Tensor> = (0..8 / bits).map(digit).collect();
    let wide = shape.iter().enumerate().map(|(i, n)| if i + 1 == shape.len() { n * 8 / bits } else { *n });
    Tensor::stack(&digits.iter().collect::<Vec<_>>(), -1).reshape(wide.collect::<Vec<_>>()).to_dtype(DType::F32)
}
