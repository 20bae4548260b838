//! Random numbers: the engine's generator, seeded by the model or by the node's place in the run, so that a run can be
//! repeated. Dropout is here, since training draws its mask.

use lazuli::{DType, Tensor};

use super::casting::TYPED;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give, invalid, sizes, value};
use crate::elem::ElemType;
use crate::graph::Attr;

pub const ROWS: &[Row] = &[
    row("Dropout", 1, &["ratio", "seed", "is_test"], dropout),
    row("Bernoulli", 15, &["dtype", "seed"], |c| {
        let x = c.tensor(0)?;
        let drawn = Tensor::rand(x.shape()?, seed(c)?, c.device).lt(&x.to_dtype(DType::F32));
        let elem = like(c)?;
        give(drawn.to_dtype(elem.storage()), elem)
    })
    .checked(TYPED),
    row("RandomUniform", 1, &["dtype", "high", "low", "seed", "shape"], |c| uniform(c, shape(c)?, declared(c)?))
        .checked(TYPED),
    row("RandomUniformLike", 1, &["dtype", "high", "low", "seed"], |c| uniform(c, c.shape(0)?, like(c)?))
        .checked(TYPED),
    row("RandomNormal", 1, &["dtype", "mean", "scale", "seed", "shape"], |c| normal(c, shape(c)?, declared(c)?))
        .checked(TYPED),
    row("RandomNormalLike", 1, &["dtype", "mean", "scale", "seed"], |c| normal(c, c.shape(0)?, like(c)?))
        .checked(TYPED),
];

fn seed(c: &Call) -> Result<u64, Stop> {
    Ok(match c.attr("seed") {
        // Dropout has an integer, the others have floats.
        Some(Attr::Int(seed)) => *seed as u64,
        Some(_) => c.attr_float("seed", 0.0)?.to_bits() as u64,
        None => c.seed,
    })
}

fn shape(c: &Call) -> Result<Vec<usize>, Stop> {
    match c.attr_ints("shape")? {
        Some(shape) => sizes(shape),
        None => invalid("`shape` is missing"),
    }
}

fn declared(c: &Call) -> Result<ElemType, Stop> {
    Ok(c.node.elem_type("dtype")?.unwrap_or(ElemType::F32))
}

fn like(c: &Call) -> Result<ElemType, Stop> {
    c.node.elem_type("dtype")?.map_or_else(|| c.elem(0), Ok)
}

fn uniform(c: &Call, shape: Vec<usize>, elem: ElemType) -> Outputs {
    let (low, high) = (c.attr_float("low", 0.0)?, c.attr_float("high", 1.0)?);
    give(Tensor::rand(shape, seed(c)?, c.device).mul(high - low).add(low), elem)
}

fn normal(c: &Call, shape: Vec<usize>, elem: ElemType) -> Outputs {
    let (mean, scale) = (c.attr_float("mean", 0.0)?, c.attr_float("scale", 1.0)?);
    give(Tensor::randn(shape, seed(c)?, c.device).mul(scale).add(mean), elem)
}

/// Inference passes its input on. Training drops a share of the elements and scales the others.
fn dropout(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let trains = c.has(2) && c.int(2)? != 0;
    let ratio = match c.opset < 12 {
        true => c.attr_float("ratio", 0.5)?,
        false if c.has(1) => c.number(1)? as f32,
        false => 0.5,
    };
    if !trains || ratio == 0.0 {
        let kept = Tensor::full(x.shape()?, true, c.device);
        return Ok(vec![c.value(0)?.clone(), value(kept, ElemType::Bool)?]);
    }
    let kept = Tensor::rand(x.shape()?, seed(c)?, c.device).ge(ratio);
    let scaled = kept.select(&x.mul(1.0 / (1.0 - ratio)), 0.0);
    Ok(vec![value(scaled, c.elem(0)?)?, value(kept, ElemType::Bool)?])
}
