//! Entering: tensors from host memory, from one number, from counting and from chance. Only what comes from host
//! memory holds any; the rest is a recipe, and fuses with whatever uses it.

use std::borrow::Cow;
use std::panic::Location;

use super::RANDOM;
use super::operand::or_error;
use crate::backend::HostBytes;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::graph::{Node, Op};
use crate::place::Caller;
use crate::room::with_room;
use crate::shape::Shape;
use crate::tensor::Tensor;
use crate::view::View;

impl Tensor {
    /// A tensor of a copy of `data`, row-major. 64-bit numbers are narrowed to 32 bits if they fit.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu());
    /// assert_eq!(x.shape()?, [2, 2]);
    /// assert_eq!(Tensor::from_slice(&[1i64, 2], [2], &Device::cpu()).dtype()?, DType::I32);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn from_slice<T: Element>(data: &[T], shape: impl Into<Shape>, device: &Device) -> Tensor {
        or_error(entered("from_slice", Cow::Borrowed(data), shape.into(), device))
    }

    /// A tensor of `data`, row-major, without a copy where the device can use the memory as it is.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1, 2, 3], [3], &Device::cpu());
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2, 3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn from_vec<T: Element>(data: Vec<T>, shape: impl Into<Shape>, device: &Device) -> Tensor {
        or_error(entered("from_vec", Cow::Owned(data), shape.into(), device))
    }

    /// One number, as a tensor of rank 0. Its dtype follows the Rust type; `f64` gives f32, `i64` gives i32.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// assert_eq!(Tensor::scalar(2.5, &Device::cpu()).item::<f32>()?, 2.5);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn scalar<T: Element>(value: T, device: &Device) -> Tensor {
        or_error(filled("scalar", Shape::default(), value.to_f64(), T::DTYPE, device))
    }

    /// Zeros.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// assert_eq!(Tensor::zeros([3], DType::I32, &Device::cpu()).to_vec::<i32>()?, [0, 0, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Tensor {
        or_error(filled("zeros", shape.into(), 0.0, dtype, device))
    }

    /// Ones.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// assert_eq!(Tensor::ones([2], DType::F32, &Device::cpu()).to_vec::<f32>()?, [1.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn ones(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Tensor {
        or_error(filled("ones", shape.into(), 1.0, dtype, device))
    }

    /// The same number everywhere. The dtype follows the Rust type of `value`, as for [`Tensor::scalar`].
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// assert_eq!(Tensor::full([2], 7u8, &Device::cpu()).to_vec::<u8>()?, [7, 7]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn full<T: Element>(shape: impl Into<Shape>, value: T, device: &Device) -> Tensor {
        or_error(filled("full", shape.into(), value.to_f64(), T::DTYPE, device))
    }

    /// Zeros of this tensor's shape, dtype and device.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 3], DType::F16, &Device::cpu());
    /// assert_eq!(x.zeros_like().dtype()?, DType::F16);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.filled_like(0.0)
    }

    /// Ones of this tensor's shape, dtype and device.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2], DType::I32, &Device::cpu());
    /// assert_eq!(x.ones_like().to_vec::<i32>()?, [1, 1]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.filled_like(1.0)
    }

    /// The identity matrix: ones where row and column are equal.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// assert_eq!(Tensor::eye(2, DType::F32, &Device::cpu()).to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Tensor {
        let shape = Shape::from([n, n]);
        if let Err(error) = shape.check("eye") {
            return Tensor::new(Err(error));
        }
        let at = Location::caller();
        coordinate(&shape, 0, device, at).eq(coordinate(&shape, 1, device, at)).to_dtype(dtype)
    }

    /// `start, start + step, …` up to but without `end`. Each float is within one ULP of `start + i · step`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// assert_eq!(Tensor::arange(0, 10, 3, &cpu).to_vec::<i32>()?, [0, 3, 6, 9]);
    /// assert_eq!(Tensor::arange(1.0, 0.0, -0.25, &cpu).to_vec::<f32>()?, [1.0, 0.75, 0.5, 0.25]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn arange<T: Element>(start: T, end: T, step: T, device: &Device) -> Tensor {
        or_error(counted(start.to_f64(), end.to_f64(), step.to_f64(), T::DTYPE, device))
    }

    /// `n` numbers at equal distances from `start` to `end`, both included; of a float dtype.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::linspace(0.0, 1.0, 5, &Device::cpu());
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace<T: Element>(start: T, end: T, n: usize, device: &Device) -> Tensor {
        or_error(spaced(start.to_f64(), end.to_f64(), n, T::DTYPE.to_float(), device))
    }

    /// Random f32 numbers, uniform in `[0, 1)`. The same seed and shape give the same bits on every device.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let cpu = Device::cpu();
    /// let x = Tensor::rand([100], 7, &cpu).to_vec::<f32>()?;
    /// assert!(x.iter().all(|v| (0.0..1.0).contains(v)));
    /// assert_eq!(x, Tensor::rand([100], 7, &cpu).to_vec::<f32>()?);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn rand(shape: impl Into<Shape>, seed: u64, device: &Device) -> Tensor {
        let shape = shape.into();
        if let Err(error) = shape.check("rand") {
            return Tensor::new(Err(error));
        }
        let at = Location::caller();
        // The upper 24 bits are exact in f32.
        random_24(&shape, seed, 0, device, at).to_dtype(DType::F32).mul(UNIT_24)
    }

    /// Random f32 numbers, normally distributed with mean 0 and variance 1. The same seed and shape give the same numbers.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::randn([1000], 7, &Device::cpu());
    /// assert!(x.mean(..).abs().item::<f32>()? < 0.1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn randn(shape: impl Into<Shape>, seed: u64, device: &Device) -> Tensor {
        let shape = shape.into();
        if let Err(error) = shape.check("randn") {
            return Tensor::new(Err(error));
        }
        let at = Location::caller();
        // Box and Muller: z = √(−2 ln u) · cos(2π v) with u in (0, 1] (so that the logarithm is finite), v in [0, 1).
        let u = random_24(&shape, seed, 1, device, at).to_dtype(DType::F32).add(1.0).mul(UNIT_24);
        let v = random_24(&shape, seed, 2, device, at).to_dtype(DType::F32).mul(UNIT_24);
        let radius = u.log().mul(-2.0).sqrt();
        radius.mul(v.mul(std::f64::consts::TAU).cos())
    }

    #[track_caller]
    fn filled_like(&self, value: f64) -> Tensor {
        match self.node() {
            Ok(node) => Tensor::constant(value, node.shape, node.dtype, &node.device, Location::caller()),
            Err(error) => Tensor::new(Err(error)),
        }
    }
}

/// 2⁻²⁴: one unit of a 24-bit fraction.
const UNIT_24: f64 = 1.0 / (1 << 24) as f64;

#[track_caller]
fn entered<T: Element>(op: &str, data: Cow<'_, [T]>, shape: Shape, device: &Device) -> Result<Tensor> {
    let _caller = Caller::of_engine(Location::caller());
    shape.check(op)?;
    if data.len() != shape.n_elems() {
        return Err(Error::shape(
            op,
            format!("{} values do not fill {shape}, which has {}", data.len(), shape.n_elems()),
        ));
    }
    let bytes = match data {
        Cow::Borrowed(data) if T::SAME_BYTES => HostBytes::copied(op, data)?,
        Cow::Owned(data) if T::SAME_BYTES => HostBytes::new(data),
        data => narrowed(op, &data)?,
    };
    let buffer = device.backend().upload(bytes)?;
    Ok(Tensor::new(Ok(Node::data(buffer, shape, T::DTYPE, device.clone(), Location::caller()))))
}

/// 64-bit numbers as the 32-bit ones that are stored.
#[track_caller]
fn narrowed<T: Element>(op: &str, data: &[T]) -> Result<HostBytes> {
    let mut bytes = with_room(op, data.len() * T::DTYPE.size())?;
    if let Err(error) = T::store(data, &mut bytes) {
        return Err(Error::dtype(op, error.fault().message.as_str()));
    }
    HostBytes::aligned(op, bytes)
}

/// Whether `value` can be an element of `dtype`: integers exactly, floats rounded but not to infinity.
pub(super) fn fits(value: f64, dtype: DType) -> bool {
    match dtype.int_range() {
        Some((low, high)) => value.fract() == 0.0 && (low..=high).contains(&value),
        None => !value.is_finite() || f32::from_bits(dtype.lane_bits(value)).is_finite(),
    }
}

#[track_caller]
fn filled(op: &str, shape: Shape, value: f64, dtype: DType, device: &Device) -> Result<Tensor> {
    shape.check(op)?;
    if !fits(value, dtype) {
        return Err(Error::dtype(op, format!("{value} does not fit {dtype}")));
    }
    Ok(Tensor::constant(value, shape, dtype, device, Location::caller()))
}

/// For each element of `shape`, where it is along `axis` (i32).
pub(super) fn coordinate(shape: &Shape, axis: usize, device: &Device, at: &'static Location<'static>) -> Tensor {
    let count = Tensor::source(Op::Index, Shape::from([shape[axis]]), DType::I32, device, at);
    let steps = shape.iter().enumerate().map(|(i, &size)| (size, (i == axis) as isize));
    match count.node() {
        Ok(node) => Tensor::viewed(node, View::from_axes(steps, 0), at),
        Err(error) => Tensor::new(Err(error)),
    }
}

#[track_caller]
fn counted(start: f64, end: f64, step: f64, dtype: DType, device: &Device) -> Result<Tensor> {
    let n = ((end - start) / step).ceil();
    if step == 0.0 || !n.is_finite() {
        return Err(Error::shape("arange", format!("cannot count from {start} to {end} by {step}")));
    }
    let n = n.max(0.0) as usize;
    let last = start + n.saturating_sub(1) as f64 * step;
    if dtype == DType::Bool || !fits(start, dtype) || !fits(last, dtype) {
        return Err(Error::dtype("arange", format!("{start} to {end} by {step} does not fit {dtype}")));
    }
    ramp("arange", n, start, step, dtype, device)
}

#[track_caller]
fn spaced(start: f64, end: f64, n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    if !fits(start, dtype) || !fits(end, dtype) {
        return Err(Error::dtype("linspace", format!("{start} to {end} does not fit {dtype}")));
    }
    let step = if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 };
    let all = ramp("linspace", n, start, step, dtype, device)?;
    if n < 2 {
        return Ok(all);
    }
    // The last is `end` itself, however the steps were rounded.
    let at = Location::caller();
    let is_last = coordinate(&Shape::from([n]), 0, device, at).eq((n - 1) as i32);
    Ok(is_last.select(end, &all))
}

/// `start + i · step` for `i` in `0..n`.
#[track_caller]
fn ramp(op: &str, n: usize, start: f64, step: f64, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = Shape::from([n]);
    shape.check(op)?;
    if n > i32::MAX as usize {
        return Err(Error::shape(op, format!("{n} elements are more than can be counted in i32")));
    }
    let at = Location::caller();
    if !dtype.is_float() {
        // Wrapping arithmetic ends where exact arithmetic would, since start and last value fit.
        let lane = if dtype == DType::I32 { DType::I32 } else { DType::U32 };
        let mut y = Tensor::source(Op::Index, shape, lane, device, at);
        if step != 1.0 {
            y = y.mul(step as i64);
        }
        if start != 0.0 {
            y = y.add(start as i64);
        }
        return Ok(y.to_dtype(dtype));
    }
    let i = Tensor::source(Op::Index, shape, DType::I32, device, at);
    Ok(float_ramp(&i, Ramp::new(n, start, step)).to_dtype(dtype))
}

/// `start + i · step` without cancellation. Values that move towards zero are counted from the last one on that side, the
/// others from the first of them: each is `±(least + j · step)` with all terms of one sign, so that every rounding is
/// relative to the value itself.
struct Ramp {
    n: usize,
    step: f64,
    /// Values before zero is reached or passed, and the last of them; 0 if they move away from zero.
    n_before: usize,
    last_before: f64,
    /// The first of the others.
    first_after: f64,
}

impl Ramp {
    fn new(n: usize, start: f64, step: f64) -> Ramp {
        // One rounding of the exact value, for i is exact.
        let value = |i: usize| step.mul_add(i as f64, start);
        let before = |i: usize| i < n && value(i) != 0.0 && (value(i) > 0.0) == (start > 0.0);
        let mut n_before = 0;
        if start != 0.0 && (start > 0.0) != (step > 0.0) && step != 0.0 {
            n_before = ((-start / step).ceil().max(0.0) as usize).min(n);
            while n_before > 0 && !before(n_before - 1) {
                n_before -= 1;
            }
            while before(n_before) {
                n_before += 1;
            }
        }
        Ramp { n, step, n_before, last_before: value(n_before.saturating_sub(1)), first_after: value(n_before) }
    }
}

/// The values of a ramp, as f32, at the places `i` (i32).
fn float_ramp(i: &Tensor, ramp: Ramp) -> Tensor {
    // Values are scaled by a power of two where their parts would be too large or too small for f32.
    let largest =
        [ramp.last_before, ramp.first_after, ramp.step * ramp.n as f64].map(f64::abs).into_iter().fold(0.0, f64::max);
    let power = if largest == 0.0 || (1e-18..1e36).contains(&largest) { 0 } else { largest.log2().floor() as i32 };
    let scale = f64::powi(2.0, -power);
    let Ramp { n, n_before, .. } = ramp;
    let (down, up) = (ramp.last_before.abs() * scale, ramp.first_after.abs() * scale);
    let step = ramp.step.abs() * scale;
    let sign = |value: f64, x: Tensor| if value < 0.0 { x.neg() } else { x };
    let rising = |first: f64, j: &Tensor| first_and_steps(first, step, n, j);
    let y = match n_before {
        0 => sign(if ramp.first_after != 0.0 { ramp.first_after } else { ramp.step }, rising(up, i)),
        _ => {
            let last = n_before as i32 - 1;
            let before = sign(ramp.last_before, rising(down, &i.neg().add(last)));
            match n_before < n {
                true => i.le(last).select(&before, &sign(ramp.step, rising(up, &i.sub(n_before as i32)))),
                false => before,
            }
        }
    };
    // In two steps, as 2ⁿ alone may be too large or too small.
    match power {
        0 => y,
        _ => y.mul(f64::powi(2.0, power / 2)).mul(f64::powi(2.0, power - power / 2)),
    }
}

/// `first + j · step` for `j` from 0 to `n`, within one ULP; neither is negative.
fn first_and_steps(first: f64, step: f64, n: usize, j: &Tensor) -> Tensor {
    /// Bits of j that are multiplied apart from those above.
    const LOW_BITS: u32 = 12;
    // The step in two parts: the first has so few bits that its products with both parts of j are exact. What is rounded
    // on the way is small; terms are added up from the least on.
    let high_bits = 24 - LOW_BITS.max((usize::BITS - n.leading_zeros()).saturating_sub(LOW_BITS));
    let high = f32::from_bits((step as f32).to_bits() >> (24 - high_bits) << (24 - high_bits)) as f64;
    let (low, first_high) = ((step - high) as f32, first as f32);
    let first_low = (first - first_high as f64) as f32;
    let float = |j: &Tensor| j.to_dtype(DType::F32);
    let times = |j: &Tensor, factor: f64| if factor == 1.0 { float(j) } else { float(j).mul(factor) };
    let mut terms = match n <= 1 << LOW_BITS || is_exact(0.0, high, n) {
        true => vec![times(j, high)],
        false => vec![times(&j.bit_and(-1 << LOW_BITS), high), times(&j.bit_and((1 << LOW_BITS) - 1), high)],
    };
    if is_exact(first, step, n) && terms.len() == 1 {
        let y = terms.swap_remove(0);
        return if first == 0.0 { y } else { y.add(first) };
    }
    // What additions round away is added with the small terms at the end: then only the last one counts.
    let mut rest = float(j).mul(low);
    if first_low != 0.0 {
        rest = rest.add(first_low);
    }
    let mut y = terms[0].clone();
    for term in terms[1..].iter().cloned().chain((first_high != 0.0).then(|| y.ones_like().mul(first_high))) {
        let (sum, lost) = two_sum(&y, &term);
        (y, rest) = (sum, rest.add(lost));
    }
    y.add(rest)
}

/// `a + b`, and what its rounding lost (Knuth's two-sum).
fn two_sum(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let sum = a.add(b);
    let added = sum.sub(a);
    let lost = a.sub(sum.sub(&added)).add(b.sub(added));
    (sum, lost)
}

/// Whether every `first + j · step` for `j` up to `n` is exact in f32, and so is each product: all are multiples of a
/// unit, and none is more than 2²⁴ of them.
fn is_exact(first: f64, step: f64, n: usize) -> bool {
    let unit_of = |x: f64| {
        let (bits, exponent) = (x.to_bits() & ((1 << 52) - 1) | 1 << 52, (x.to_bits() >> 52 & 0x7ff) as i32 - 1075);
        if x == 0.0 { i32::MAX } else { exponent + bits.trailing_zeros() as i32 }
    };
    let unit = unit_of(first).min(unit_of(step));
    (-100..100).contains(&unit) && (first + step * n as f64) * f64::powi(2.0, -unit) <= (1 << 24) as f64
}

/// 24 random bits per element, as u32: as many as are exact in f32.
fn random_24(shape: &Shape, seed: u64, stream: u64, device: &Device, at: &'static Location<'static>) -> Tensor {
    random_32(shape, seed, stream, device, at).shr(8)
}

/// 32 random bits per element, as u32. Streams of one seed are independent of each other.
pub(super) fn random_32(
    shape: &Shape,
    seed: u64,
    stream: u64,
    device: &Device,
    at: &'static Location<'static>,
) -> Tensor {
    let key = scramble(seed.wrapping_add(scramble(stream)));
    let mut bits = Tensor::source(Op::Index, *shape, DType::U32, device, at);
    // The words that an element's number is mixed with. A number has 32 bits: what is above them, where a tensor has so
    // many elements, is a word of its own.
    let fixed = [key as u32, (key >> 32) as u32];
    let words = fixed.iter().map(|half| Tensor::constant(*half as f64, *shape, DType::U32, device, at));
    for word in words.chain(index_above_32(shape, device, at)) {
        bits = match (bits.node(), word.node()) {
            (Ok(x), Ok(y)) => Tensor::record(Op::Binary(&RANDOM), &[x, y], *shape, DType::U32, at),
            (Err(error), _) | (_, Err(error)) => return Tensor::new(Err(error)),
        };
    }
    bits
}

/// For each element of a tensor of more than 2³² elements, its number divided by 2³² (u32).
fn index_above_32(shape: &Shape, device: &Device, at: &'static Location<'static>) -> Option<Tensor> {
    // Where sizes have 32 bits themselves, there are no such tensors.
    let per_row = usize::try_from(1u64 << 32).ok()?;
    let n = shape.n_elems();
    let n_rows = n.div_ceil(per_row);
    (n_rows > 1).then(|| {
        let rows = coordinate(&Shape::from([n_rows, per_row]), 0, device, at).to_dtype(DType::U32);
        rows.flatten().narrow(0, 0, n).reshape(*shape)
    })
}

/// A bijection of 64 bits in which each bit depends on all (the finaliser of splitmix64), so that seeds that differ
/// little give keys that differ much.
fn scramble(seed: u64) -> u64 {
    let x = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_fit_exactly_and_floats_without_overflow() {
        assert!(fits(255.0, DType::U8) && !fits(256.0, DType::U8) && !fits(-1.0, DType::U32) && !fits(0.5, DType::I32));
        assert!(fits(0.1, DType::F16) && !fits(1e6, DType::F16) && fits(1e6, DType::BF16) && !fits(1e39, DType::F32));
        assert!(fits(f64::INFINITY, DType::F16) && fits(f64::NAN, DType::F32) && !fits(f64::NAN, DType::I32));
    }
}
