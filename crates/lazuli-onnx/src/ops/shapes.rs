//! Shapes as values, and tensors made from nothing but a shape and a number.

use lazuli::{DType, Tensor};

use super::casting::TYPED;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, axis, extent, give, give_host, invalid, listed, refuse, sizes};
use crate::elem::ElemType;
use crate::graph::{Attr, Node};
use crate::host::{Host, HostData};
use crate::value::{Kind, Value};

/// The attributes of which a Constant has one.
const CONSTANTS: &[&str] = &["value", "value_float", "value_floats", "value_int", "value_ints"];

pub const ROWS: &[Row] = &[
    row("Shape", 1, &["start", "end"], shape),
    row("Size", 1, &[], |c| {
        let n = c.shape(0)?.iter().product::<usize>();
        Ok(vec![Host::ints(ElemType::I64, Vec::new(), vec![n as i64]).into()])
    }),
    row("Constant", 1, CONSTANTS, constant).checked(&[|node| constant_of(node).map(drop)]),
    row("ConstantOfShape", 9, &["value"], constant_of_shape),
    row("Range", 11, &[], range),
    row("EyeLike", 9, &["dtype", "k"], eye_like).checked(TYPED),
    row("OneHot", 9, &["axis"], one_hot),
];

fn shape(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let rank = shape.len() as i64;
    let at = |value: i64| if value < 0 { value.saturating_add(rank) } else { value }.clamp(0, rank) as usize;
    let (start, end) = (at(c.attr_int("start", 0)?), at(c.attr_int("end", rank)?));
    let sizes = shape.get(start..end).unwrap_or_default();
    Ok(vec![Host::vector(sizes.iter().map(|n| *n as i64).collect()).into()])
}

fn constant(c: &Call) -> Outputs {
    Ok(vec![constant_of(c.node)?])
}

fn constant_of(node: &Node) -> Result<Value, Stop> {
    let Some(attr) = CONSTANTS.iter().find_map(|name| node.attr(name)) else {
        return refuse("operator Constant without a value, or with a value of strings");
    };
    Ok(match attr {
        Attr::Tensor(value) => value.clone(),
        Attr::Float(value) => Host::floats(ElemType::F32, Vec::new(), vec![*value]).into(),
        Attr::Floats(values) => Host::floats(ElemType::F32, vec![values.len()], values.clone()).into(),
        Attr::Int(value) => Host::ints(ElemType::I64, Vec::new(), vec![*value]).into(),
        Attr::Ints(values) => Host::vector(values.clone()).into(),
        _ => return refuse("operator Constant of another kind"),
    })
}

fn constant_of_shape(c: &Call) -> Outputs {
    let shape = sizes(&c.ints(0)?)?;
    let zero = Value::from(Host::floats(ElemType::F32, vec![1], vec![0.0]));
    let value = match c.attr("value") {
        Some(Attr::Tensor(value)) => value,
        _ => &zero,
    };
    let Kind::Host(host) = &value.0 else { return invalid("ConstantOfShape: the value has more than one element") };
    if host.data.len() != 1 {
        return invalid("ConstantOfShape: the value must have one element");
    }
    let n = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if n.is_some_and(|n| n <= 1024) {
        let picked = vec![0; n.unwrap_or(0)];
        return Ok(vec![host.pick(shape, &picked).into()]);
    }
    give(host.upload(c.device)?.reshape(()).broadcast_to(shape), host.elem)
}

fn range(c: &Call) -> Outputs {
    let elem = c.elem(0)?;
    let limit = |n: f64| match n {
        n if n.is_nan() => invalid("Range: the number of elements is not a number"),
        n => listed(n.max(0.0) as usize),
    };
    if !elem.is_float() {
        let (start, end, step) = (c.int(0)?, c.int(1)?, c.int(2)?);
        if step == 0 {
            return invalid("Range: the step is 0");
        }
        let n = limit(((end as f64 - start as f64) / step as f64).ceil())?;
        let values = (0..n as i64).map(|i| start.wrapping_add(i.wrapping_mul(step))).collect();
        return give_host(elem, vec![n], HostData::Int(values));
    }
    let (start, end, step) = (c.number(0)?, c.number(1)?, c.number(2)?);
    let n = limit(((end - start) / step).ceil())?;
    let values = (0..n).map(|i| (start + i as f64 * step) as f32).collect();
    give_host(elem, vec![n], HostData::Float(values))
}

fn eye_like(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let [rows, cols] = shape[..] else { return invalid(format!("EyeLike: a matrix is wanted, not {shape:?}")) };
    let elem = match c.node.elem_type("dtype")? {
        Some(elem) => elem,
        None => c.elem(0)?,
    };
    let k = c.attr_int("k", 0)?.clamp(-(1 << 30), 1 << 30) as i32;
    let index = |n: usize| Tensor::arange(0i32, n as i32, 1, c.device);
    let eye = index(cols).unsqueeze(0).sub(&index(rows).unsqueeze(1)).eq(k);
    give(eye.to_dtype(elem.storage()), elem)
}

fn one_hot(c: &Call) -> Outputs {
    let depth = extent(c.number(1)? as i64)?;
    let elem = c.elem(2)?;
    let rank = c.rank(0)?;
    let at = axis(c.attr_int("axis", -1)?, rank + 1)?;
    let index = c.tensor(0)?.to_dtype(DType::I32);
    let index = index.lt(0).select(&index.add(depth as i32), &index).unsqueeze(at as i32);
    let mut classes = vec![1; rank + 1];
    classes[at] = depth;
    let classes = Tensor::arange(0i32, depth as i32, 1, c.device).reshape(classes);
    let values = c.tensor(2)?;
    give(index.eq(&classes).select(&values.select_index(0, 1), &values.select_index(0, 0)), elem)
}
