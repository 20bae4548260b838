//! Functions of one, two or several elements. Operands broadcast. Where all operands are small and on the host, the result
//! is computed there in i64 or f32: that is how shapes are computed.

use std::sync::Arc;

use lazuli::{DType, Tensor};

use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, give_host, give_wrapped, invalid, refuse};
use crate::elem::ElemType;
use crate::graph::Node;
use crate::host::{Host, HostData, broadcast_indices, broadcast_shape};

/// How operands broadcast before operator set 7.
const OLD: &[&str] = &["axis", "broadcast"];

pub const ROWS: &[Row] = &[
    row("Abs", 6, &[], |c| of_one(c, Tensor::abs, Some(i64::wrapping_abs), Some(f32::abs))),
    row("Neg", 6, &[], |c| of_one(c, Tensor::neg, Some(i64::wrapping_neg), Some(|x| -x))),
    row("Sign", 9, &[], |c| of_one(c, Tensor::sign, Some(i64::signum), None)),
    row("Sqrt", 6, &[], |c| of_one(c, Tensor::sqrt, None, Some(f32::sqrt))),
    row("Reciprocal", 6, &[], |c| of_one(c, Tensor::recip, None, Some(f32::recip))),
    row("Floor", 6, &[], |c| of_one(c, Tensor::floor, None, Some(f32::floor))),
    row("Ceil", 6, &[], |c| of_one(c, Tensor::ceil, None, Some(f32::ceil))),
    row("Round", 11, &[], |c| of_one(c, Tensor::round, None, Some(f32::round_ties_even))),
    row("Exp", 6, &[], |c| float(c, Tensor::exp)),
    row("Log", 6, &[], |c| float(c, Tensor::log)),
    row("Sin", 7, &[], |c| float(c, Tensor::sin)),
    row("Cos", 7, &[], |c| float(c, Tensor::cos)),
    row("Tan", 7, &[], |c| float(c, Tensor::tan)),
    row("Asin", 7, &[], |c| float(c, Tensor::asin)),
    row("Acos", 7, &[], |c| float(c, Tensor::acos)),
    row("Atan", 7, &[], |c| float(c, Tensor::atan)),
    row("Sinh", 9, &[], |c| float(c, Tensor::sinh)),
    row("Cosh", 9, &[], |c| float(c, Tensor::cosh)),
    row("Tanh", 6, &[], |c| float(c, Tensor::tanh)),
    row("Asinh", 9, &[], |c| float(c, Tensor::asinh)),
    row("Acosh", 9, &[], |c| float(c, Tensor::acosh)),
    row("Atanh", 9, &[], |c| float(c, Tensor::atanh)),
    row("Erf", 9, &[], |c| float(c, Tensor::erf)),
    row("IsNaN", 9, &[], |c| give(c.tensor(0)?.is_nan(), ElemType::Bool)),
    row("IsInf", 10, &["detect_negative", "detect_positive"], is_inf),
    row("Not", 1, &[], |c| of_one_as(c, ElemType::Bool, Tensor::logical_not, Some(|x| (x == 0) as i64), None)),
    row("BitwiseNot", 18, &[], |c| give_wrapped(c.tensor(0)?.bit_not(), c.elem(0)?)),
    row("Add", 6, OLD, |c| aligned(c, i64::wrapping_add, |a, b| a + b, |a, b| Ok(a.add(b)))),
    row("Sub", 6, OLD, |c| aligned(c, i64::wrapping_sub, |a, b| a - b, |a, b| Ok(a.sub(b)))),
    row("Mul", 6, OLD, |c| aligned(c, i64::wrapping_mul, |a, b| a * b, |a, b| Ok(a.mul(b)))),
    row("Div", 6, OLD, |c| aligned(c, |a, b| a.checked_div(b).unwrap_or(0), |a, b| a / b, quotient)),
    row("Mod", 10, &["fmod"], modulo),
    row("Pow", 6, &["broadcast"], pow),
    row("Max", 6, &[], |c| of_many(c, i64::max, maximum, |a, b| Ok(a.maximum(b)))),
    row("Min", 6, &[], |c| of_many(c, i64::min, minimum, |a, b| Ok(a.minimum(b)))),
    row("Sum", 6, &[], |c| of_many(c, i64::wrapping_add, |a, b| a + b, |a, b| Ok(a.add(b)))),
    row("Mean", 6, &[], mean),
    row("And", 7, &[], |c| compare(c, |a, b| a != 0 && b != 0, |a, b| a != 0.0 && b != 0.0, |a, b| a.logical_and(b))),
    row("Or", 7, &[], |c| compare(c, |a, b| a != 0 || b != 0, |a, b| a != 0.0 || b != 0.0, |a, b| a.logical_or(b))),
    row("Xor", 7, &[], |c| compare(c, |a, b| (a != 0) != (b != 0), |a, b| (a != 0.0) != (b != 0.0), |a, b| a.ne(b))),
    row("Equal", 7, &[], |c| compare(c, |a, b| a == b, |a, b| a == b, |a, b| a.eq(b))),
    row("Less", 7, &[], |c| compare(c, |a, b| a < b, |a, b| a < b, |a, b| a.lt(b))),
    row("LessOrEqual", 12, &[], |c| compare(c, |a, b| a <= b, |a, b| a <= b, |a, b| a.le(b))),
    row("Greater", 7, &[], |c| compare(c, |a, b| a > b, |a, b| a > b, |a, b| a.gt(b))),
    row("GreaterOrEqual", 12, &[], |c| compare(c, |a, b| a >= b, |a, b| a >= b, |a, b| a.ge(b))),
    row("BitwiseAnd", 18, &[], |c| of_two(c, |a, b| a & b, |a, _| a, |a, b| Ok(a.bit_and(b)))),
    row("BitwiseOr", 18, &[], |c| of_two(c, |a, b| a | b, |a, _| a, |a, b| Ok(a.bit_or(b)))),
    row("BitwiseXor", 18, &[], |c| of_two(c, |a, b| a ^ b, |a, _| a, |a, b| Ok(a.bit_xor(b)))),
    row("BitShift", 11, &["direction"], bit_shift).checked(&[|node| is_to_the_left(node).map(drop)]),
    row("Where", 9, &[], choose),
    row("Identity", 1, &[], |c| Ok(vec![c.value(0)?.clone()])),
];

/// A function of one element, in the operand's type.
fn of_one(
    c: &Call,
    device: fn(&Tensor) -> Tensor,
    ints: Option<fn(i64) -> i64>,
    floats: Option<fn(f32) -> f32>,
) -> Outputs {
    of_one_as(c, c.elem(0)?, device, ints, floats)
}

fn of_one_as(
    c: &Call,
    elem: ElemType,
    device: fn(&Tensor) -> Tensor,
    ints: Option<fn(i64) -> i64>,
    floats: Option<fn(f32) -> f32>,
) -> Outputs {
    if let Some(hosts) = c.all_host() {
        match (&hosts[0].data, ints, floats) {
            (HostData::Int(values), Some(f), _) => {
                let values = values.iter().map(|v| elem.wrap(f(*v))).collect();
                return give_host(elem, hosts[0].shape.clone(), HostData::Int(values));
            }
            (HostData::Float(values), _, Some(f)) if elem == ElemType::F32 => {
                let values = values.iter().map(|v| f(*v)).collect();
                return give_host(elem, hosts[0].shape.clone(), HostData::Float(values));
            }
            _ => {}
        }
    }
    give_wrapped(device(&c.tensor(0)?), elem)
}

/// A function of one float.
pub fn float(c: &Call, device: fn(&Tensor) -> Tensor) -> Outputs {
    give(device(&c.tensor(0)?), c.elem(0)?)
}

fn is_inf(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let (negative, positive) = (c.attr_int("detect_negative", 1)? != 0, c.attr_int("detect_positive", 1)? != 0);
    let found = match (negative, positive) {
        (true, true) => x.is_inf(),
        (true, false) => x.is_inf().logical_and(&x.lt(0.0)),
        (false, true) => x.is_inf().logical_and(&x.gt(0.0)),
        (false, false) => x.is_inf().logical_and(false),
    };
    give(found, ElemType::Bool)
}

/// NaN if either is, as NumPy's.
fn maximum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) }
}

fn minimum(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) }
}

type OnDevice = fn(&Tensor, &Tensor) -> Result<Tensor, Stop>;

/// A function of two elements of one type.
fn of_two(c: &Call, ints: fn(i64, i64) -> i64, floats: fn(f32, f32) -> f32, device: OnDevice) -> Outputs {
    of_many(c, ints, floats, device)
}

/// A function of two elements of one type, from the first operand to the last.
fn of_many(c: &Call, ints: fn(i64, i64) -> i64, floats: fn(f32, f32) -> f32, device: OnDevice) -> Outputs {
    let elem = c.elem(0)?;
    if let Some(hosts) = c.all_host().filter(|_| !elem.is_float() || elem == ElemType::F32) {
        let mut result = hosts[0].clone();
        for host in &hosts[1..] {
            result = Arc::new(on_host(&result, host, ints, floats)?);
        }
        return give_host(elem, result.shape.clone(), result.data.clone());
    }
    let mut result = c.tensor(0)?;
    for i in 1..c.inputs.len() {
        result = device(&result, &c.tensor(i)?)?;
    }
    give_wrapped(result, elem)
}

/// A function of two elements. Before operator set 7 an axis says where the axes of the second operand stand.
fn aligned(c: &Call, ints: fn(i64, i64) -> i64, floats: fn(f32, f32) -> f32, device: OnDevice) -> Outputs {
    if c.attr("axis").is_none() {
        return of_two(c, ints, floats, device);
    }
    let (rank, mut shape) = (c.rank(0)?, c.shape(1)?);
    let at = c.attr_axis("axis", 0, rank)?;
    if at + shape.len() > rank {
        return invalid(format!("axis {at} leaves no room for {shape:?}"));
    }
    shape.resize(rank - at, 1);
    give_wrapped(device(&c.tensor(0)?, &c.tensor(1)?.reshape(shape))?, c.elem(0)?)
}

fn on_host(a: &Host, b: &Host, ints: fn(i64, i64) -> i64, floats: fn(f32, f32) -> f32) -> Result<Host, Stop> {
    let shape = broadcast_shape(&a.shape, &b.shape)?;
    let (from_a, from_b) = (broadcast_indices(&a.shape, &shape), broadcast_indices(&b.shape, &shape));
    let pairs = from_a.iter().zip(&from_b);
    let data = match (&a.data, &b.data) {
        (HostData::Int(a_values), HostData::Int(b_values)) => {
            HostData::Int(pairs.map(|(i, j)| a.elem.wrap(ints(a_values[*i], b_values[*j]))).collect())
        }
        (HostData::Float(a), HostData::Float(b)) => HostData::Float(pairs.map(|(i, j)| floats(a[*i], b[*j])).collect()),
        _ => return invalid("operands have different types"),
    };
    Ok(Host::new(a.elem, shape, data))
}

fn compare(
    c: &Call,
    ints: fn(i64, i64) -> bool,
    floats: fn(f32, f32) -> bool,
    device: fn(&Tensor, &Tensor) -> Tensor,
) -> Outputs {
    if let Some(hosts) = c.all_host()
        && let [a, b] = &hosts[..]
    {
        let shape = broadcast_shape(&a.shape, &b.shape)?;
        let (from_a, from_b) = (broadcast_indices(&a.shape, &shape), broadcast_indices(&b.shape, &shape));
        let pairs = from_a.iter().zip(&from_b);
        let values = match (&a.data, &b.data) {
            (HostData::Int(a), HostData::Int(b)) => pairs.map(|(i, j)| ints(a[*i], b[*j]) as i64).collect(),
            (HostData::Float(a), HostData::Float(b)) => pairs.map(|(i, j)| floats(a[*i], b[*j]) as i64).collect(),
            _ => return invalid("operands have different types"),
        };
        return give_host(ElemType::Bool, shape, HostData::Int(values));
    }
    give(device(&c.tensor(0)?, &c.tensor(1)?), ElemType::Bool)
}

/// The quotient; of integers truncated towards zero.
fn quotient(a: &Tensor, b: &Tensor) -> Result<Tensor, Stop> {
    let dtype = a.dtype()?;
    if dtype.is_float() {
        return Ok(a.div(b));
    }
    let unsigned = unsigned_quotient(&magnitude(a)?, &magnitude(b)?);
    if dtype != DType::I32 {
        return Ok(unsigned);
    }
    let quotient = unsigned.to_dtype(DType::I32);
    Ok(a.lt(0).ne(&b.lt(0)).select(&quotient.neg(), &quotient))
}

/// The magnitude of integers, as u32: that of the least i32 does not fit i32.
fn magnitude(x: &Tensor) -> Result<Tensor, Stop> {
    Ok(if x.dtype()? == DType::I32 { x.abs().to_dtype(DType::U32) } else { x.to_dtype(DType::U32) })
}

/// `⌊a/b⌋` of u32, exact although the engine divides in f32: a quotient that is certainly not too large is taken off, and the
/// rest is so small that f32 divides it exactly.
fn unsigned_quotient(a: &Tensor, b: &Tensor) -> Tensor {
    let whole = a.sub(&a.rem(b));
    let (a_float, b_float) = (whole.to_dtype(DType::F32), b.to_dtype(DType::F32));
    let low = a_float.mul(1.0 - 1e-6).div(&b_float).floor().to_dtype(DType::U32);
    let rest = whole.sub(&low.mul(b));
    low.add(&rest.to_dtype(DType::F32).div(&b_float).round().to_dtype(DType::U32))
}

fn modulo(c: &Call) -> Outputs {
    let elem = c.elem(0)?;
    match c.attr_int("fmod", 0)? {
        // The sign is the divisor's.
        0 if elem.is_float() => refuse("Mod of floats needs the attribute fmod = 1"),
        0 => of_two(
            c,
            |a, b| if b == 0 { 0 } else { a.wrapping_rem(b).wrapping_add(b).wrapping_rem(b) },
            |a, _| a,
            |a, b| Ok(a.rem(b)),
        ),
        // The sign is the dividend's.
        _ => of_two(
            c,
            |a, b| a.checked_rem(b).unwrap_or(0),
            |a, b| a % b,
            |a, b| {
                if a.dtype()? != DType::I32 && !a.dtype()?.is_float() {
                    return Ok(a.rem(b));
                }
                let rest = a.abs().rem(&b.abs());
                Ok(a.lt(0).select(&rest.neg(), &rest))
            },
        ),
    }
}

fn pow(c: &Call) -> Outputs {
    let (elem, exponent) = (c.elem(0)?, c.elem(1)?);
    let (x, y) = (c.tensor(0)?, c.tensor(1)?);
    // The result has the type of the base.
    let power = match elem.is_float() || exponent.is_float() {
        true => x.to_dtype(DType::F32).pow(&y.to_dtype(DType::F32)),
        false => x.pow(&y.to_dtype(elem.storage())),
    };
    give_wrapped(power.to_dtype(elem.storage()), elem)
}

fn mean(c: &Call) -> Outputs {
    let mut sum = c.tensor(0)?;
    for i in 1..c.inputs.len() {
        sum = sum.add(&c.tensor(i)?);
    }
    give(sum.div(c.inputs.len() as f32), c.elem(0)?)
}

fn is_to_the_left(node: &Node) -> Result<bool, Stop> {
    node.choice("direction", "", &[("LEFT", true), ("RIGHT", false)])
}

fn bit_shift(c: &Call) -> Outputs {
    let elem = c.elem(0)?;
    let up = is_to_the_left(c.node)?;
    if elem.bits() == Some(64) {
        // On a device only the lower 32 bits would be there.
        let (x, y) = (c.host(0)?, c.host(1)?);
        let shift: fn(i64, i64) -> i64 = match up {
            true => |a, b| (a as u64).checked_shl(b as u32).unwrap_or(0) as i64,
            false => |a, b| (a as u64).checked_shr(b as u32).unwrap_or(0) as i64,
        };
        return Ok(vec![on_host(&x, &y, shift, |a, _| a)?.into()]);
    }
    let (x, y) = (c.tensor(0)?.to_dtype(DType::U32), c.tensor(1)?.to_dtype(DType::U32));
    give_wrapped(if up { x.shl(&y) } else { x.shr(&y) }, elem)
}

fn choose(c: &Call) -> Outputs {
    let elem = c.elem(1)?;
    if let Some(hosts) = c.all_host()
        && let [which, a, b] = &hosts[..]
        && let (HostData::Int(which_values), HostData::Int(a_values), HostData::Int(b_values)) =
            (&which.data, &a.data, &b.data)
    {
        let shape = broadcast_shape(&broadcast_shape(&which.shape, &a.shape)?, &b.shape)?;
        let from = [&which.shape, &a.shape, &b.shape].map(|own| broadcast_indices(own, &shape));
        let value = |i: usize| if which_values[from[0][i]] != 0 { a_values[from[1][i]] } else { b_values[from[2][i]] };
        let values = (0..from[0].len()).map(value).collect();
        return give_host(elem, shape, HostData::Int(values));
    }
    give(c.tensor(0)?.select(&c.tensor(1)?, &c.tensor(2)?), elem)
}
