//! Sequences of tensors, and values that may be missing.

use lazuli::Tensor;

use super::movement::part_sizes;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, invalid, value};
use crate::elem::ElemType;
use crate::host::Host;
use crate::machine::stack;
use crate::value::Value;

pub const ROWS: &[Row] = &[
    row("Optional", 15, &["type"], |c| Ok(vec![if c.has(0) { c.value(0)?.clone() } else { Value::nothing() }])),
    row("OptionalHasElement", 15, &[], |c| {
        let has = c.has(0) && !c.value(0)?.is_nothing();
        Ok(vec![Host::ints(ElemType::Bool, Vec::new(), vec![has as i64]).into()])
    }),
    row("OptionalGetElement", 15, &[], |c| match c.value(0)? {
        value if value.is_nothing() => invalid("OptionalGetElement: it holds nothing"),
        value => Ok(vec![value.clone()]),
    }),
    row("SequenceEmpty", 11, &["dtype"], |_| Ok(vec![Value::sequence(Vec::new())])),
    row("SequenceConstruct", 11, &[], |c| {
        let values = (0..c.inputs.len()).map(|i| c.value(i).cloned()).collect::<Result<_, Stop>>()?;
        Ok(vec![Value::sequence(values)])
    }),
    row("SequenceLength", 11, &[], |c| {
        let n = list(c)?.len() as i64;
        Ok(vec![Host::ints(ElemType::I64, Vec::new(), vec![n]).into()])
    }),
    row("SequenceAt", 11, &[], |c| {
        let list = list(c)?;
        let at = place(c.int(1)?, list.len(), list.len())?;
        Ok(vec![list[at].clone()])
    }),
    row("SequenceInsert", 11, &[], |c| {
        let mut list = list(c)?.to_vec();
        let at = if c.has(2) { place(c.int(2)?, list.len(), list.len() + 1)? } else { list.len() };
        list.insert(at, c.value(1)?.clone());
        Ok(vec![Value::sequence(list)])
    }),
    row("SequenceErase", 11, &[], |c| {
        let mut list = list(c)?.to_vec();
        let last = list.len() as i64 - 1;
        let at = place(if c.has(1) { c.int(1)? } else { last }, list.len(), list.len())?;
        list.remove(at);
        Ok(vec![Value::sequence(list)])
    }),
    row("ConcatFromSequence", 11, &["axis", "new_axis"], concat),
    row("SplitToSequence", 11, &["axis", "keepdims"], split),
];

fn list<'c>(c: &'c Call) -> Result<&'c [Value], Stop> {
    match c.value(0)?.as_sequence() {
        Some(list) => Ok(list),
        None => invalid("a sequence is wanted"),
    }
}

fn place(at: i64, n: usize, end: usize) -> Result<usize, Stop> {
    let own = if at < 0 { at + n as i64 } else { at };
    match usize::try_from(own) {
        Ok(own) if own < end => Ok(own),
        _ => invalid(format!("place {at} of a sequence of {n}")),
    }
}

fn concat(c: &Call) -> Outputs {
    let list = list(c)?;
    let along = c.attr_int("axis", 0)? as i32;
    if c.attr_int("new_axis", 0)? != 0 {
        return Ok(vec![stack(list, along, c.device)?]);
    }
    let Some(elem) = list.first().and_then(Value::elem_type) else {
        return invalid("ConcatFromSequence: the sequence has no tensors");
    };
    let tensors = list.iter().map(|value| value.to_tensor(c.device)).collect::<Result<Vec<Tensor>, _>>()?;
    give(Tensor::cat(&tensors.iter().collect::<Vec<_>>(), along), elem)
}

fn split(c: &Call) -> Outputs {
    let shape = c.shape(0)?;
    let along = c.attr_axis("axis", 0, shape.len())?;
    let (x, elem) = (c.tensor(0)?, c.elem(0)?);
    let n = shape[along];
    let mut drops = false;
    let parts = match c.has(1) {
        false => {
            drops = c.attr_int("keepdims", 1)? == 0;
            vec![1; crate::call::listed(n)?]
        }
        true if c.rank(1)? == 0 => {
            let each = crate::call::size(c.int(1)?)?.max(1);
            (0..n.div_ceil(each)).map(|i| each.min(n - i * each)).collect()
        }
        true => part_sizes(c, n, 0)?,
    };
    if parts.iter().try_fold(0usize, |sum, n| sum.checked_add(*n)) != Some(n) {
        return invalid(format!("SplitToSequence: {parts:?} do not add up to {n}"));
    }
    let parts = x.split(along as i32, &parts).into_iter();
    let parts = parts.map(|part| if drops { part.squeeze(along as i32) } else { part });
    Ok(vec![Value::sequence(parts.map(|part| value(part, elem)).collect::<Result<_, Stop>>()?)])
}
