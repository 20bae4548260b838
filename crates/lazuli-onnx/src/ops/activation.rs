//! Activations: elementwise functions with constants as attributes.

use lazuli::{DType, Tensor};

use super::elementwise::float;
use super::{Row, row};
use crate::call::{Call, Outputs, Stop, give};
use crate::graph::Node;

pub const ROWS: &[Row] = &[
    row("Relu", 6, &[], |c| give(c.tensor(0)?.maximum(0), c.elem(0)?)),
    row("LeakyRelu", 6, &["alpha"], |c| with(c, "alpha", 0.01, |x, alpha| x.leaky_relu(alpha))),
    row("Elu", 6, &["alpha"], |c| with(c, "alpha", 1.0, |x, alpha| x.elu(alpha))),
    row("Celu", 12, &["alpha"], |c| {
        with(c, "alpha", 1.0, |x, alpha| x.gt(0.0).select(x, &x.div(alpha).expm1().mul(alpha)))
    }),
    row("Selu", 6, &["alpha", "gamma"], selu),
    row("Sigmoid", 6, &[], |c| float(c, Tensor::sigmoid)),
    row("HardSigmoid", 6, &["alpha", "beta"], hard_sigmoid),
    row("HardSwish", 14, &[], |c| float(c, Tensor::hardswish)),
    row("Softplus", 1, &[], |c| float(c, Tensor::softplus)),
    row("Softsign", 1, &[], |c| give(softsign(&c.tensor(0)?), c.elem(0)?)),
    row("ThresholdedRelu", 10, &["alpha"], |c| with(c, "alpha", 1.0, |x, alpha| x.gt(alpha).select(x, 0.0))),
    row("Shrink", 9, &["bias", "lambd"], shrink),
    row("Mish", 18, &[], |c| {
        let x = c.tensor(0)?;
        give(x.mul(&x.softplus().tanh()), c.elem(0)?)
    }),
    row("Gelu", 20, &["approximate"], |c| float(c, gelu(c.node)?)).checked(&[|node| gelu(node).map(drop)]),
    row("Swish", 24, &["alpha"], |c| with(c, "alpha", 1.0, |x, alpha| x.mul(&x.mul(alpha).sigmoid()))),
    row("PRelu", 6, &[], prelu),
    row("Clip", 6, &["min", "max"], clip),
];

fn with(c: &Call, name: &str, default: f32, f: fn(&Tensor, f32) -> Tensor) -> Outputs {
    give(f(&c.tensor(0)?, c.attr_float(name, default)?), c.elem(0)?)
}

/// `x / (1 + |x|)`.
/// GELU by erf, or its approximation by tanh, as the attribute `approximate` says.
fn gelu(node: &Node) -> Result<fn(&Tensor) -> Tensor, Stop> {
    let known: [(&str, fn(&Tensor) -> Tensor); 2] = [("none", Tensor::gelu), ("tanh", Tensor::gelu_tanh)];
    node.choice("approximate", "none", &known)
}

pub fn softsign(x: &Tensor) -> Tensor {
    x.div(&x.abs().add(1.0))
}

/// `clamp(α·x + β, 0, 1)`.
pub fn hard_sigmoid_of(x: &Tensor, alpha: f32, beta: f32) -> Tensor {
    x.mul(alpha).add(beta).clamp(0.0, 1.0)
}

fn hard_sigmoid(c: &Call) -> Outputs {
    let (alpha, beta) = (c.attr_float("alpha", 0.2)?, c.attr_float("beta", 0.5)?);
    give(hard_sigmoid_of(&c.tensor(0)?, alpha, beta), c.elem(0)?)
}

fn selu(c: &Call) -> Outputs {
    // The constants that ONNX gives.
    let alpha = c.attr_float("alpha", 1.673_263_192_176_818_8)?;
    let gamma = c.attr_float("gamma", 1.050_701_022_148_132_3)?;
    give(c.tensor(0)?.elu(alpha).mul(gamma), c.elem(0)?)
}

fn shrink(c: &Call) -> Outputs {
    let (bias, bound) = (c.attr_float("bias", 0.0)?, c.attr_float("lambd", 0.5)?);
    let x = c.tensor(0)?.to_dtype(DType::F32);
    give(x.lt(-bound).select(&x.add(bias), &x.gt(bound).select(&x.sub(bias), 0.0)), c.elem(0)?)
}

fn prelu(c: &Call) -> Outputs {
    let x = c.tensor(0)?;
    let mut slope = c.tensor(1)?;
    if c.opset < 7 && x.shape()?.len() > 2 {
        // Before operator set 7 there is one slope per channel, or one for all.
        let n = slope.shape()?.iter().product();
        let mut shape = vec![1; x.shape()?.len() - 1];
        shape[0] = n;
        slope = slope.reshape(shape);
    }
    give(x.lt(0).select(&x.mul(&slope), &x), c.elem(0)?)
}

fn clip(c: &Call) -> Outputs {
    let mut x = c.tensor(0)?;
    let bound = |i: usize, name: &str| -> Result<Option<Tensor>, Stop> {
        // Attributes before operator set 11, inputs since.
        if c.opset < 11 && c.attr(name).is_some() {
            return Ok(Some(Tensor::scalar(c.attr_float(name, 0.0)?, c.device)));
        }
        c.optional(i)
    };
    if let Some(low) = bound(1, "min")? {
        x = x.maximum(&low);
    }
    if let Some(high) = bound(2, "max")? {
        x = x.minimum(&high);
    }
    give(x, c.elem(0)?)
}
