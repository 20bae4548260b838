//! Losses over classes, with weights, an ignored class and reductions.

use lazuli::{DType, Tensor};

use super::{Check, Row, row};
use crate::call::{Call, Stop, give, invalid, value};
use crate::graph::Node;

pub const ROWS: &[Row] = &[
    row("NegativeLogLikelihoodLoss", 12, &["ignore_index", "reduction"], |c| {
        give(likelihood_loss(c, &c.tensor(0)?)?, c.elem(0)?)
    })
    .checked(REDUCTION),
    row("SoftmaxCrossEntropyLoss", 12, &["ignore_index", "reduction"], |c| {
        let log_probabilities = c.tensor(0)?.log_softmax(1);
        let loss = likelihood_loss(c, &log_probabilities)?;
        Ok(vec![value(loss, c.elem(0)?)?, value(log_probabilities, c.elem(0)?)?])
    })
    .checked(REDUCTION),
];

/// What becomes of the losses of all targets.
#[derive(Clone, Copy)]
enum Reduction {
    None,
    Sum,
    Mean,
}

fn reduction(node: &Node) -> Result<Reduction, Stop> {
    let known = [("none", Reduction::None), ("sum", Reduction::Sum), ("mean", Reduction::Mean)];
    node.choice("reduction", "mean", &known)
}

const REDUCTION: &[Check] = &[|node| reduction(node).map(drop)];

/// The negative of each target's logarithmic probability, times its class's weight.
fn likelihood_loss(c: &Call, x: &Tensor) -> Result<Tensor, Stop> {
    if x.shape()?.len() < 2 {
        return invalid(format!("[batch, classes, …] is wanted, not {:?}", x.shape()?));
    }
    let target = c.tensor(1)?.to_dtype(DType::I32);
    let ignored = match c.attr("ignore_index") {
        Some(_) => {
            let class = c.attr_int("ignore_index", 0)?.clamp(i32::MIN as i64, i32::MAX as i64) as i32;
            Some(target.eq(class))
        }
        None => None,
    };
    let class = match &ignored {
        Some(ignored) => ignored.select(0, &target),
        None => target.clone(),
    };
    let loss = x.gather(1, &class.unsqueeze(1)).squeeze(1).neg();
    let weight = match c.optional(2)? {
        Some(weight) => Some(weight.index_select(0, &class.flatten()).reshape(target.shape()?)),
        None if ignored.is_some() => Some(Tensor::ones(target.shape()?, DType::F32, c.device)),
        None => None,
    };
    let weight = match (weight, &ignored) {
        (Some(weight), Some(ignored)) => Some(ignored.select(0.0, &weight)),
        (weight, _) => weight,
    };
    let loss = match &weight {
        Some(weight) => loss.mul(weight),
        None => loss,
    };
    Ok(match (reduction(c.node)?, weight) {
        (Reduction::None, _) => loss,
        (Reduction::Sum, _) => loss.sum(..),
        (Reduction::Mean, Some(weight)) => loss.sum(..).div(&weight.sum(..)),
        (Reduction::Mean, None) => loss.mean(..),
    })
}
