//! Softmax, its logarithm and the logarithm of its sum, with gradients that keep their digits.
//!
//! The rules of the ops would give `y·(g − Σ g·y)` for the gradient of `y = softmax(x)`. Where one element has nearly
//! everything, that difference is as small as what is left for the others, and little of it is right. But softmax does not
//! see a number that is added to a whole row, so neither does its gradient: `g` less any number has the same one, and less
//! the right number it subtracts nothing that is nearly equal. So these values carry rules of their own ([`RuleRow`]).
//! Second gradients go through the same rules.

use std::panic::Location;

use smallvec::SmallVec;

use super::reduce::{KeepAxes, reduce};
use super::row::RuleRow;
use super::{MAX, SUM};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Expr, Node, NodeRef, Op};
use crate::shape::AxisSet;
use crate::tensor::Tensor;

/// A tensor whose elements are about to be added up, in the float they are added in, and the dtype of the result:
/// half floats would overflow and lose digits.
pub(super) struct Widened {
    pub x: Tensor,
    pub result: DType,
}

impl Widened {
    #[track_caller]
    pub(super) fn new(x: &Tensor) -> Result<Widened> {
        Ok(Widened { x: x.to_dtype(DType::F32), result: x.dtype()?.to_float() })
    }
}

/// `eˣ / Σ eˣ` along the axes.
#[track_caller]
pub(super) fn softmax(x: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let wide = Widened::new(x)?;
    if wide.x.node()?.shape.n_elems() == 0 {
        return Ok(wide.x.to_dtype(wide.result));
    }
    Ok(Exponentials::less_max("softmax", &wide.x, axes)?.softmax(&wide.x, axes)?.to_dtype(wide.result))
}

/// `x − ln Σ eˣ` along the axes.
#[track_caller]
pub(super) fn log_softmax(x: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let wide = Widened::new(x)?;
    if wide.x.node()?.shape.n_elems() == 0 {
        return Ok(wide.x.to_dtype(wide.result));
    }
    let of = Exponentials::less_max("log_softmax", &wide.x, axes)?;
    let value = wide.x.sub(of.taken_out).sub(of.sum.log());
    Ok(with_rule(&LOG_SOFTMAX, &value, &[&wide.x], axes)?.to_dtype(wide.result))
}

/// `ln Σ eˣ` along the axes, which are kept.
#[track_caller]
pub(super) fn logsumexp(x: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let wide = Widened::new(x)?;
    let of = Exponentials::less_finite_max("logsumexp", &wide.x, axes)?;
    let value = of.sum.log().add(&of.taken_out);
    Ok(with_rule(&LOGSUMEXP, &value, &[&wide.x, &of.taken_out], axes)?.to_dtype(wide.result))
}

/// The exponentials of rows, less something that keeps them from overflowing, and their sum.
struct Exponentials {
    taken_out: Tensor,
    e: Tensor,
    sum: Tensor,
}

impl Exponentials {
    #[track_caller]
    fn less_max(op: &str, x: &Tensor, axes: AxisSet) -> Result<Exponentials> {
        let max = reduce(&MAX, op, x.node()?, axes, KeepAxes(true))?;
        Exponentials::less(op, x, max, axes)
    }

    /// Infinities are not taken out: inf − inf would be NaN.
    #[track_caller]
    fn less_finite_max(op: &str, x: &Tensor, axes: AxisSet) -> Result<Exponentials> {
        let max = reduce(&MAX, op, x.node()?, axes, KeepAxes(true))?;
        Exponentials::less(op, x, max.is_finite().select(&max, 0.0), axes)
    }

    #[track_caller]
    fn less(op: &str, x: &Tensor, taken_out: Tensor, axes: AxisSet) -> Result<Exponentials> {
        let e = x.sub(&taken_out).exp();
        let sum = reduce(&SUM, op, e.node()?, axes, KeepAxes(true))?;
        Ok(Exponentials { taken_out, e, sum })
    }

    /// `e / sum`. One division a row; the sum is at least 1, so its reciprocal loses nothing to speak of.
    #[track_caller]
    fn shares(&self) -> Tensor {
        self.e.mul(self.sum.recip())
    }

    /// The softmax of `x`, whose exponentials these are.
    #[track_caller]
    fn softmax(&self, x: &Tensor, axes: AxisSet) -> Result<Tensor> {
        with_rule(&SOFTMAX, &self.shares(), &[x], axes)
    }

    /// `g` less its mean under softmax. At an element that has nearly everything that is nearly zero (and zero once its
    /// share rounds to 1), so that what `1 − y` has lost is multiplied with next to nothing; and it is small where `g` is
    /// nearly constant. The mean is taken in the sweep that sums the exponentials. What its rounding leaves over takes one sweep
    /// more, over rows that are in a first-level cache then (forward and gradient of [4096, 1024] take a fifth longer on two
    /// threads). No single sweep will do: an element with the share 1e−30 counts, which a sum of all has lost, in two floats also.
    fn centred(&self, g: &Tensor, axes: AxisSet) -> Result<Tensor> {
        Ok(g.sub(total(&g.mul(&self.e), axes)?.mul(self.sum.recip()).detach()))
    }
}

static SOFTMAX: RuleRow =
    RuleRow { name: "softmax", grad: |inputs, _, g, axes| vec![Some(softmax_grad(&inputs[0], g, axes))] };

/// The rule of [`softmax_grad`].
static SOFTMAX_GRAD: RuleRow = RuleRow { name: "softmax_grad", grad: grad_of_softmax_grad };

static LOG_SOFTMAX: RuleRow = RuleRow {
    name: "log_softmax",
    grad: |inputs, _, g, axes| vec![Some(Tensor::attempt(|| log_softmax_grad(&inputs[0], g, axes)))],
};

/// The rule of [`log_softmax_grad`].
static LOG_SOFTMAX_GRAD: RuleRow = RuleRow { name: "log_softmax_grad", grad: grad_of_log_softmax_grad };

static LOGSUMEXP: RuleRow = RuleRow {
    name: "logsumexp",
    // d ln Σ eˣ = softmax(x)·g. What was taken out is handed on, so that the exponentials are those of the sum.
    grad: |inputs, _, g, axes| {
        let [x, taken_out] = inputs else { unreachable!("is recorded with two inputs") };
        let of = || Exponentials::less("logsumexp", x, taken_out.clone(), axes)?.softmax(x, axes);
        vec![Some(g.mul(Tensor::attempt(of))), None]
    },
};

/// The gradient of `y = softmax(x)`: `y·(g' − Σ g'·y)`, where `g'` is [`centred`](Exponentials::centred).
fn softmax_grad(x: &Tensor, g: &Tensor, axes: AxisSet) -> Tensor {
    Tensor::attempt(|| {
        let of = Exponentials::less_max("softmax", x, axes)?;
        let centred = of.centred(g, axes)?;
        // Σ g'·e, scaled after it is summed: the chain from g to the sum has one step less.
        let rest = total(&centred.mul(&of.e), axes)?.mul(of.sum.recip());
        let value = of.shares().mul(centred.sub(rest));
        with_rule(&SOFTMAX_GRAD, &value, &[x, g], axes)
    })
}

/// The gradients of `s = softmax_grad(x, g)`. It is linear in `g`, by a symmetric matrix: that of `g` is
/// `softmax_grad(x, v)`. That of `x` goes through `y`: ds/dy = v·(g − Σ g·y) − g·Σ v·y, and neither a number added to
/// `g` nor one added to `v` changes what comes of it.
fn grad_of_softmax_grad(inputs: &[Tensor], _: &Tensor, v: &Tensor, axes: AxisSet) -> Vec<Option<Tensor>> {
    let [x, g] = inputs else { unreachable!("is recorded with two inputs") };
    let by_y = Tensor::attempt(|| {
        let of = Exponentials::less_max("softmax", x, axes)?;
        let (y, g, v) = (of.softmax(x, axes)?, of.centred(g, axes)?, of.centred(v, axes)?);
        Ok(v.mul(g.sub(total(&g.mul(&y), axes)?)).sub(g.mul(total(&v.mul(y), axes)?)))
    });
    vec![Some(softmax_grad(x, &by_y, axes)), Some(softmax_grad(x, v, axes))]
}

/// The gradient of `log_softmax(x)`: `g − y·Σ g` for `y = softmax(x)`. What that gives sums to zero, so doing it again
/// changes nothing but what the first time has rounded.
fn log_softmax_grad(x: &Tensor, g: &Tensor, axes: AxisSet) -> Result<Tensor> {
    let of = Exponentials::less_max("log_softmax", x, axes)?;
    // y·Σ t, one product for each row and one for each element.
    let shared = |t: &Tensor| Ok(of.e.mul(of.sum.recip().mul(total(t, axes)?)));
    let rough = g.sub(shared(g)?);
    let value = rough.sub(shared(&rough)?);
    with_rule(&LOG_SOFTMAX_GRAD, &value, &[x, g], axes)
}

/// The gradients of `log_softmax_grad(x, g)`: −Σ g times that of softmax for `x`, and `v − Σ v·y` for `g`.
fn grad_of_log_softmax_grad(inputs: &[Tensor], _: &Tensor, v: &Tensor, axes: AxisSet) -> Vec<Option<Tensor>> {
    let [x, g] = inputs else { unreachable!("is recorded with two inputs") };
    let by_x = Tensor::attempt(|| Ok(softmax_grad(x, v, axes).mul(total(g, axes)?.neg())));
    let by_g = Tensor::attempt(|| {
        let of = Exponentials::less_max("log_softmax", x, axes)?;
        let (y, centred) = (of.softmax(x, axes)?, of.centred(v, axes)?);
        Ok(centred.sub(total(&centred.mul(y), axes)?))
    });
    vec![Some(by_x), Some(by_g)]
}

/// The sum along the axes, which are kept.
fn total(x: &Tensor, axes: AxisSet) -> Result<Tensor> {
    reduce(&SUM, "softmax", x.node()?, axes, KeepAxes(true))
}

/// `value`, whose gradients go to `inputs` by the row's rule.
#[track_caller]
pub(super) fn with_rule(row: &'static RuleRow, value: &Tensor, inputs: &[&Tensor], axes: AxisSet) -> Result<Tensor> {
    let value = value.node()?;
    let mut edges: SmallVec<[NodeRef; 3]> = SmallVec::from_iter([value.clone()]);
    for input in inputs {
        edges.push(input.node()?.clone());
    }
    let expr = Expr { op: Op::WithRule(row, axes), inputs: edges };
    let (shape, dtype, device) = (value.shape, value.dtype, value.device.clone());
    Ok(Tensor::new(Ok(Node::new(expr, shape, dtype, device, Location::caller(), false))))
}
