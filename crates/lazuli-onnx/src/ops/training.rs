//! Steps of optimisers, which ONNX has as operators of its preview domain for training.

use lazuli::Tensor;

use super::Row;
use crate::call::{Call, Outputs, Stop, invalid, value};
use crate::graph::Node;

const fn step(name: &'static str, attrs: &'static [&'static str], run: fn(&Call) -> Outputs) -> Row {
    Row { name, domain: "ai.onnx.preview.training", since: 1, attrs, checks: &[], run }
}

pub const ROWS: &[Row] = &[
    step("Adagrad", &["decay_factor", "epsilon", "norm_coefficient"], adagrad),
    step("Adam", &["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"], adam),
    step("Momentum", &["alpha", "beta", "mode", "norm_coefficient"], momentum)
        .checked(&[|node| is_nesterov(node).map(drop)]),
];

/// The inputs after rate and count, in `n` groups of one tensor per parameter: parameters, gradients, states.
fn groups(c: &Call, n: usize) -> Result<Vec<Vec<Tensor>>, Stop> {
    let n_tensors = c.inputs.len().saturating_sub(2);
    if n_tensors == 0 || !n_tensors.is_multiple_of(n) {
        return invalid(format!("{n_tensors} tensors are no {n} groups"));
    }
    let each = n_tensors / n;
    (0..n).map(|group| (0..each).map(|i| c.tensor(2 + group * each + i)).collect()).collect()
}

/// The gradient with the derivative of the weight decay.
fn decayed(c: &Call, x: &Tensor, g: &Tensor) -> Result<Tensor, Stop> {
    Ok(g.add(&x.mul(c.attr_float("norm_coefficient", 0.0)?)))
}

/// Groups one after another as outputs.
fn outputs(c: &Call, groups: Vec<Vec<Tensor>>) -> Outputs {
    let elem = c.elem(2)?;
    groups.into_iter().flatten().map(|tensor| value(tensor, elem)).collect()
}

fn adagrad(c: &Call) -> Outputs {
    let (rate, count) = (c.number(0)?, c.number(1)?);
    let rate = rate / (1.0 + count * c.attr_float("decay_factor", 0.0)? as f64);
    let epsilon = c.attr_float("epsilon", 0.0)?;
    let given = groups(c, 3)?;
    let (mut new_x, mut new_h) = (Vec::new(), Vec::new());
    for ((x, g), h) in given[0].iter().zip(&given[1]).zip(&given[2]) {
        let g = decayed(c, x, g)?;
        let h = h.add(&g.square());
        new_x.push(x.sub(&g.mul(rate as f32).div(&h.sqrt().add(epsilon))));
        new_h.push(h);
    }
    outputs(c, vec![new_x, new_h])
}

fn adam(c: &Call) -> Outputs {
    let (rate, count) = (c.number(0)?, c.number(1)?);
    let (alpha, beta) = (c.attr_float("alpha", 0.9)?, c.attr_float("beta", 0.999)?);
    let epsilon = c.attr_float("epsilon", 0.0)?;
    // The first steps' means are too small, since they begin at zero.
    let rate = match count > 0.0 {
        true => rate * (1.0 - (beta as f64).powf(count)).sqrt() / (1.0 - (alpha as f64).powf(count)),
        false => rate,
    };
    let shrink = 1.0 - c.attr_float("norm_coefficient_post", 0.0)?;
    let given = groups(c, 4)?;
    let (mut new_x, mut new_v, mut new_h) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..given[0].len() {
        let (x, v, h) = (&given[0][i], &given[2][i], &given[3][i]);
        let g = decayed(c, x, &given[1][i])?;
        let v = v.mul(alpha).add(&g.mul(1.0 - alpha));
        let h = h.mul(beta).add(&g.square().mul(1.0 - beta));
        new_x.push(x.sub(&v.mul(rate as f32).div(&h.sqrt().add(epsilon))).mul(shrink));
        new_v.push(v);
        new_h.push(h);
    }
    outputs(c, vec![new_x, new_v, new_h])
}

fn is_nesterov(node: &Node) -> Result<bool, Stop> {
    node.choice("mode", "standard", &[("standard", false), ("nesterov", true)])
}

fn momentum(c: &Call) -> Outputs {
    let (rate, count) = (c.number(0)? as f32, c.number(1)?);
    let alpha = c.attr_float("alpha", 0.0)?;
    let beta = if count > 0.0 { c.attr_float("beta", 0.0)? } else { 1.0 };
    let nesterov = is_nesterov(c.node)?;
    let given = groups(c, 3)?;
    let (mut new_x, mut new_v) = (Vec::new(), Vec::new());
    for ((x, g), v) in given[0].iter().zip(&given[1]).zip(&given[2]) {
        let g = decayed(c, x, g)?;
        let v = v.mul(alpha).add(&g.mul(beta));
        let by = if nesterov { g.add(&v.mul(alpha)) } else { v.clone() };
        new_x.push(x.sub(&by.mul(rate)));
        new_v.push(v);
    }
    outputs(c, vec![new_x, new_v])
}
