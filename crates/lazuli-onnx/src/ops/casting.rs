//! Values in another element type, and bits seen as another one.

use lazuli::{DType, Tensor, bf16, f16};

use super::{Check, Row, row};
use crate::call::{Call, Outputs, Stop, give, give_host, give_wrapped, invalid, refuse};
use crate::elem::ElemType;
use crate::fault;
use crate::host::{Host, HostData};

/// Attributes that name element types name some that are stored here.
pub const TYPED: &[Check] = &[
    |node| node.elem_type("to").map(drop),
    |node| node.elem_type("dtype").map(drop),
    |node| node.elem_type("output_dtype").map(drop),
    |node| node.elem_type("output_datatype").map(drop),
    |node| node.elem_type("stash_type").map(drop),
];

pub const ROWS: &[Row] = &[
    row("Cast", 6, &["to", "saturate", "round_mode"], |c| cast(c, target(c, "to")?)).checked(TYPED),
    row("CastLike", 15, &["saturate", "round_mode"], |c| cast(c, c.elem(1)?)),
    row("BitCast", 26, &["to"], bit_cast).checked(TYPED),
];

/// The element type that an attribute names.
pub fn target(c: &Call, name: &str) -> Result<ElemType, Stop> {
    match c.node.elem_type(name)? {
        Some(elem) => Ok(elem),
        None => invalid(format!("attribute `{name}` is missing")),
    }
}

fn cast(c: &Call, to: ElemType) -> Outputs {
    let from = c.elem(0)?;
    if let Some(host) = c.all_host().map(|hosts| hosts[0].clone())
        && let Some(data) = on_host(&host, to)
    {
        return give_host(to, host.shape.clone(), data);
    }
    let x = c.tensor(0)?;
    let is_constant = c.may_evaluate && c.node.is_constant.first() == Some(&true);
    if is_constant && from.is_float() && to.bits() == Some(64) {
        fits(&x, to)?;
    }
    give_cast(&x, from, to)
}

/// Whether constants on the device fit what stores an integer of 64 bits there. Nobody looks at what is no constant: a device
/// gives the nearest number that it stores.
fn fits(x: &Tensor, to: ElemType) -> Result<(), Stop> {
    let x = x.to_dtype(DType::F32);
    let ends = Tensor::stack(&[&x.min(..), &x.max(..)], 0).to_vec::<f32>()?;
    let (low, high) = if to.is_signed() { (-(2f32.powi(31)), 2f32.powi(31)) } else { (0.0, 2f32.powi(32)) };
    match ends.iter().find(|end| **end < low || **end >= high) {
        Some(end) => {
            let storage = to.storage();
            Err(Stop::Failed(fault::dtype(format!("{end} does not fit {storage}, which stores {to} on a device"))))
        }
        None => Ok(()),
    }
}

/// Cast on the host, where it can be exact: integers, and floats of 32 bits.
fn on_host(host: &Host, to: ElemType) -> Option<HostData> {
    Some(match (&host.data, to) {
        (HostData::Int(values), ElemType::F32 | ElemType::F64) => {
            HostData::Float(values.iter().map(|v| *v as f32).collect())
        }
        (HostData::Float(values), ElemType::F32 | ElemType::F64) => HostData::Float(values.clone()),
        (HostData::Int(values), _) if !to.is_float() => HostData::Int(values.iter().map(|v| to.wrap(*v)).collect()),
        (HostData::Float(values), ElemType::Bool) => HostData::Int(values.iter().map(|v| (*v != 0.0) as i64).collect()),
        (HostData::Float(values), ElemType::I64 | ElemType::I32) => {
            HostData::Int(values.iter().map(|v| to.wrap(*v as i64)).collect())
        }
        _ => return None,
    })
}

/// A tensor as another element type. Numbers beyond a narrow integer keep their lower bits, as NumPy's.
pub fn give_cast(x: &Tensor, from: ElemType, to: ElemType) -> Outputs {
    if to == ElemType::Bool {
        return give(x.ne(0), to);
    }
    if to.is_float() {
        return give(x.to_dtype(to.storage()), to);
    }
    let wide = match from.is_float() {
        true if matches!(to, ElemType::U32 | ElemType::U64) => x.to_dtype(DType::U32),
        true => x.to_dtype(DType::I32),
        false => x.clone(),
    };
    match to {
        ElemType::U8 | ElemType::U16 => give_wrapped(wide.to_dtype(DType::I32).bit_and(to.wrap(-1)), to),
        _ => give_wrapped(wide.to_dtype(to.storage()), to),
    }
}

/// The bytes of each element seen as another type of the same size. The engine has no such op, so it is done on the host.
fn bit_cast(c: &Call) -> Outputs {
    let to = target(c, "to")?;
    let host = c.host(0)?;
    let bits: Vec<i64> = match (&host.data, host.elem) {
        (_, ElemType::F64) => {
            return Err(Stop::Failed(fault::unsupported("BitCast of double, which is stored as f32")));
        }
        (HostData::Float(values), ElemType::F16) => values.iter().map(|v| f16::from_f32(*v).to_bits() as i64).collect(),
        (HostData::Float(values), ElemType::BF16) => {
            values.iter().map(|v| bf16::from_f32(*v).to_bits() as i64).collect()
        }
        (HostData::Float(values), _) => values.iter().map(|v| v.to_bits() as i64).collect(),
        (HostData::Int(values), _) => values.clone(),
    };
    let n_bits = |elem: ElemType| elem.bits().unwrap_or(8 * elem.storage().size() as u32).max(8);
    if n_bits(host.elem) != n_bits(to) || to == ElemType::F64 {
        return refuse(format!("BitCast from {} to {to}: sizes differ, or it is stored in another size", host.elem));
    }
    let data = match to {
        ElemType::F32 => HostData::Float(bits.iter().map(|v| f32::from_bits(*v as u32)).collect()),
        ElemType::F16 => HostData::Float(bits.iter().map(|v| f16::from_bits(*v as u16).to_f32()).collect()),
        ElemType::BF16 => HostData::Float(bits.iter().map(|v| bf16::from_bits(*v as u16).to_f32()).collect()),
        _ => HostData::Int(bits.iter().map(|v| to.wrap(*v)).collect()),
    };
    give_host(to, host.shape.clone(), data)
}
