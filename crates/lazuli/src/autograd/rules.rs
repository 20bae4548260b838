//! The gradients of one op, by family. What differs from op to op is in the rows; what a family shares is here.

use std::sync::Arc;

use smallvec::SmallVec;

use super::views;
use crate::error::{Error, Fault};
use crate::graph::{CustomRef, Node, Op};
use crate::ops::rows;
use crate::shape::AxisSet;
use crate::tensor::Tensor;
use crate::user;
use crate::view::View;

/// One gradient per input; None for an input that has none.
type Gradients = SmallVec<[Option<Tensor>; 3]>;

/// Whether gradients stop here. `detach` records a view that changes nothing and is not tracked; movements never do.
pub fn is_barrier(node: &Node) -> bool {
    !node.tracked && node.with_expr(|expr| expr.is_identity()).unwrap_or(false)
}

/// The gradients of the inputs of `op` from its inputs, its output and the incoming gradient. Those that are not
/// `wanted` may be left out.
pub fn gradients(op: &Op, inputs: &[Tensor], y: &Tensor, g: &Tensor, wanted: &[bool]) -> Gradients {
    let when = |i: usize, f: &dyn Fn() -> Tensor| wanted[i].then(f);
    match op {
        // Memory that comes from another device: the gradient goes back there.
        Op::Data if inputs.len() == 1 => one(inputs[0].node().ok().map(|x| g.to_device(&x.device))),
        Op::Data | Op::Const(_) | Op::Index => Gradients::new(),
        // Codes are integers: no gradient reaches them.
        Op::Widen(_) => none(inputs),
        Op::Unary(row) => one(row.grad.map(|grad| grad(&inputs[0], y, g))),
        Op::Binary(row) => match row.grad {
            Some(grad) => grad(&inputs[0], &inputs[1], y, g).into_iter().map(Some).collect(),
            None => none(inputs),
        },
        // d(c ? a : b) = c ? g : 0 for a, c ? 0 : g for b
        Op::Select => {
            let cond = &inputs[0];
            Gradients::from_iter([
                None,
                when(1, &|| cond.select(g, g.zeros_like())),
                when(2, &|| cond.select(g.zeros_like(), g)),
            ])
        }
        // Rounding to another float is flat only between neighbours: its gradient is that of x itself.
        Op::Cast => one(Some(g.clone())),
        // What is committed is `new`; `old` is only there for the day that it cannot be.
        Op::Commit => Gradients::from_iter([None, Some(g.clone())]),
        Op::WithRule(row, axes) => [None].into_iter().chain((row.grad)(&inputs[1..], y, g, *axes)).collect(),
        Op::Custom(op) => custom(op, inputs, y, g),
        Op::View(view) => one(Some(views::adjoint(view, &inputs[0], g))),
        Op::Pad(view) => {
            let inside = unpadded(view, g);
            let fill = when(1, &|| g.sum(..).sub(inside.sum(..)));
            Gradients::from_iter([Some(inside), fill])
        }
        Op::Reduce(row, axes) => match row.grad {
            Some(grad) => one(Some(reduced(grad, axes, &inputs[0], y, g))),
            None => none(inputs),
        },
        // d(A·B): dA = g·Bᵀ, dB = Aᵀ·g
        Op::Matmul => Gradients::from_iter([
            when(0, &|| product(g, &inputs[1].transpose(-2, -1), &inputs[0])),
            when(1, &|| product(&inputs[0].transpose(-2, -1), g, &inputs[1])),
        ]),
        // Each gradient is added to where its element was read from.
        Op::Gather(axis, _) => {
            let zeros = inputs[0].zeros_like();
            Gradients::from_iter([Some(zeros.scatter_add(*axis as i32, &inputs[1], g)), None])
        }
        Op::Cat(axis) => parts(*axis, inputs, g),
        // Outside the rows there is no gradient.
        Op::RowsAt(axis) => {
            Gradients::from_iter([Some(rows::written(*axis, &inputs[0].zeros_like(), g, &inputs[1])), None])
        }
        // What was written over has none, and the rows have that of their place.
        Op::WriteRows(axis) => Gradients::from_iter([
            when(0, &|| rows::written(*axis, g, &inputs[1].zeros_like(), &inputs[2])),
            when(1, &|| rows::read(*axis, g, &inputs[1], &inputs[2])),
            None,
        ]),
        Op::Routine(row, params) => match row.grad {
            Some(grad) => grad(inputs, y, g, *params).into_iter().collect(),
            None => none(inputs),
        },
    }
}

fn one(gradient: Option<Tensor>) -> Gradients {
    Gradients::from_iter([gradient])
}

fn none(inputs: &[Tensor]) -> Gradients {
    inputs.iter().map(|_| None).collect()
}

fn custom(op: &CustomRef, inputs: &[Tensor], y: &Tensor, g: &Tensor) -> Gradients {
    let fail = |message: &str| -> Gradients {
        let error = Error::grad(&op.0.name, message);
        inputs.iter().map(|_| Some(Tensor::new(Err(error.clone())))).collect()
    };
    let Some(grad) = &op.0.grad else {
        return fail("this custom op has no gradient; give it one in CustomOp::grad, or detach() its result");
    };
    let gradients = match user::call(|| grad(inputs, y, g)) {
        Ok(gradients) => gradients,
        Err(text) => {
            let fault = Fault::new(&op.0.name, format!("the function given for the gradient panicked: {text}"));
            // It happened where the user called the op, as a panic of the op itself does.
            let fault = y.node().map_or(fault.clone(), |y| fault.at(y.at));
            let or_error = Tensor::new(Err(Error::Custom(Arc::new(fault))));
            return inputs.iter().map(|_| Some(or_error.clone())).collect();
        }
    };
    if gradients.len() != inputs.len() {
        return fail("the gradient of a custom op must give one tensor per input");
    }
    let fits = |(part, x): (&Tensor, &Tensor)| part.shape().is_err() || part.shape().ok() == x.shape().ok();
    if !gradients.iter().zip(inputs).all(fits) {
        return fail("the gradient of a custom op must have the shape of its input");
    }
    gradients.into_iter().map(Some).collect()
}

/// What is inside the fill.
fn unpadded(view: &View, g: &Tensor) -> Tensor {
    let mask = view.mask.iter().flatten().take(view.shape.rank()).enumerate();
    mask.fold(g.clone(), |g, (axis, (low, high))| g.narrow(axis as i32, *low, high - low))
}

/// Rows want `y` and `g` with their axes kept.
fn reduced(
    grad: fn(&Tensor, &Tensor, &Tensor) -> Tensor,
    axes: &AxisSet,
    x: &Tensor,
    y: &Tensor,
    g: &Tensor,
) -> Tensor {
    Tensor::attempt(|| {
        let kept = x.node()?.shape.reduced(axes, true);
        Ok(grad(x, &y.reshape(kept), &g.reshape(kept)))
    })
}

/// The product `a · b`, which is the gradient of `x`. If `x` is a transpose, so is its gradient: made the other way round,
/// as `(bᵀ · aᵀ)ᵀ`, it lies as the source of `x` does, and an update of that fuses with it.
fn product(a: &Tensor, b: &Tensor, x: &Tensor) -> Tensor {
    let is_transpose = |op: &Op| match op {
        Op::View(view) => {
            let rank = view.shape.rank();
            rank >= 2 && view.strides[rank - 1] > view.strides[rank - 2] && view.strides[rank - 2] > 0
        }
        _ => false,
    };
    match x.node().is_ok_and(|node| node.with_expr(|e| is_transpose(&e.op)).unwrap_or(false)) {
        true => b.transpose(-2, -1).matmul(&a.transpose(-2, -1)).transpose(-2, -1),
        false => a.matmul(b),
    }
}

/// Each input's own part of the joined gradient.
fn parts(axis: usize, inputs: &[Tensor], g: &Tensor) -> Gradients {
    let mut start = 0;
    let part = |x: &Tensor| {
        let size = x.shape().map_or(0, |shape| shape[axis]);
        start += size;
        Some(g.narrow(axis as i32, start - size, size))
    };
    inputs.iter().map(part).collect()
}
