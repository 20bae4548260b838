//! Reductions: the four that are primitive, with their rows, and how one is recorded.

use std::panic::Location;

use super::binary::{MAXIMUM, MINIMUM, max_f32, min_f32};
use super::operand::{cast, or_error, taken};
use super::row::ReduceRow;
use crate::error::{Error, Fault, Result};
use crate::graph::{NodeRef, Op};
use crate::shape::{Axes, AxisSet, Shape, keep};
use crate::tensor::Tensor;
use crate::view::View;

/// Wires entries of the table of reductions: doc, name, what it takes and gives, then the fields of [`ReduceRow`].
macro_rules! reduce_rows {
    ($(
        #[doc = $doc:literal]
        $row:ident $name:ident: $takes:ident -> $gives:ident, ulps $ulps:literal, needs_one $needs_one:literal $(, step $step:ident)?;
        cpu $($lane:ident from $lane_identity:expr, $bits:expr, |$x:ident, $y:ident| $eval:expr),+;
        oracle $oracle:expr, from $identity:expr;
        wgsl $wgsl:literal, $fns:expr;
        grad $grad:expr;
        known ([$($x0:literal),*], $y0:literal) $(, ($elems:expr, $result:expr))*;
    )*) => {
        $(
            #[doc = $doc]
            pub static $row: ReduceRow = {
                enum ReduceFn {}
                $(impl super::lanes::Combine<$lane> for ReduceFn {
                    const IDENTITY: $lane = $lane_identity;
                    #[inline(always)]
                    fn eval($x: $lane, $y: $lane) -> $lane {
                        $eval
                    }
                })+
                ReduceRow {
                    name: stringify!($name),
                    doc: $doc.trim_ascii(),
                    takes: super::Takes::$takes,
                    gives: super::Gives::$gives,
                    step: super::binary::optional!($(super::CombineStep::$step)?),
                    cpu: super::PerLane {
                        $($lane: Some(super::lanes::reduce::<ReduceFn, $lane>($bits)),)+
                    },
                    oracle: $oracle,
                    identity: $identity,
                    wgsl: $wgsl,
                    wgsl_fns: $fns,
                    grad: $grad,
                    known: &[(&[$($x0),*], $y0) $(, (&$elems, $result))*],
                    ulps: $ulps,
                    needs_one: $needs_one,
                }
            };

            impl Tensor {
                #[doc = $doc]
                ///
                /// ```
                /// # use lazuli::{keep, Device, Tensor};
                #[doc = concat!("let x = Tensor::from_slice(&[", $(stringify!($x0), "f32, ",)* "], [1, 3], &Device::cpu());")]
                #[doc = concat!("assert_eq!(x.", stringify!($name), "(..).item::<f32>()?, ", stringify!($y0), ");")]
                #[doc = concat!("assert_eq!(x.", stringify!($name), "(keep(-1)).shape()?, [1, 1]);")]
                /// # Ok::<(), lazuli::Error>(())
                /// ```
                #[track_caller]
                pub fn $name(&self, axes: impl Into<Axes>) -> Tensor {
                    or_error(try_reduce(&$row, self, &axes.into()))
                }
            }
        )*

        /// The rows above, in order.
        pub(super) static ROWS: &[&ReduceRow] = &[$(&$row),*];
    };
}

const INF: f32 = f32::INFINITY;
const NAN: f64 = f64::NAN;

reduce_rows! {
    /// The sum of the elements along `axes`. Of u8 it is u32, of bool i32; integers wrap.
    SUM sum: Number -> Widened, ulps 32.0, needs_one false, step Add;
    cpu f32 from 0.0, 0, |x, y| x + y, i32 from 0, 0, |x, y| x.wrapping_add(y), u32 from 0, 0, |x, y| x.wrapping_add(y);
    oracle |x, y| x + y, from 0.0;
    wgsl "($x + $y)", "";
    grad Some(|x, _, g| spread(g, x));
    known ([1.0, 2.0, 3.5], 6.5), ([], 0.0), ([f64::INFINITY, 1.0], f64::INFINITY), ([NAN, 1.0], f64::NAN);

    /// The product of the elements along `axes`. Of u8 it is u32, of bool i32; integers wrap.
    PROD prod: Number -> Widened, ulps 32.0, needs_one false, step Mul;
    cpu f32 from 1.0, 1f32.to_bits(), |x, y| x * y,
        i32 from 1, 1, |x, y| x.wrapping_mul(y),
        u32 from 1, 1, |x, y| x.wrapping_mul(y);
    oracle |x, y| x * y, from 1.0;
    wgsl "($x * $y)", "";
    grad Some(grad_of_prod);
    known ([2.0, 3.0, 4.0], 24.0), ([], 1.0), ([2.0, 0.0], 0.0), ([NAN, 0.0], f64::NAN);

    /// The greatest element along `axes`; NaN if there is one.
    MAX max: Any -> Same, ulps 0.0, needs_one true, step Max;
    cpu f32 from -INF, (-INF).to_bits(), |x, y| max_f32(x, y),
        i32 from i32::MIN, i32::MIN as u32, |x, y| x.max(y),
        u32 from 0, 0, |x, y| x.max(y);
    oracle |x, y| if x.is_nan() || y.is_nan() { NAN } else { x.max(y) }, from f64::NEG_INFINITY;
    wgsl "maximum_$t($x, $y)", MAXIMUM.wgsl_fns;
    grad Some(grad_of_extremum);
    known ([1.0, 3.0, 2.0], 3.0), ([-1.0], -1.0), ([1.0, NAN, 2.0], f64::NAN), ([-5.0, f64::NEG_INFINITY], -5.0);

    /// The least element along `axes`; NaN if there is one.
    MIN min: Any -> Same, ulps 0.0, needs_one true, step Min;
    cpu f32 from INF, INF.to_bits(), |x, y| min_f32(x, y),
        i32 from i32::MAX, i32::MAX as u32, |x, y| x.min(y),
        u32 from u32::MAX, u32::MAX, |x, y| x.min(y);
    oracle |x, y| if x.is_nan() || y.is_nan() { NAN } else { x.min(y) }, from f64::INFINITY;
    wgsl "minimum_$t($x, $y)", MINIMUM.wgsl_fns;
    grad Some(grad_of_extremum);
    known ([1.0, 3.0, 2.0], 1.0), ([-1.0], -1.0), ([1.0, NAN, 2.0], f64::NAN), ([5.0, f64::INFINITY], 5.0);
}

#[track_caller]
fn try_reduce(row: &'static ReduceRow, x: &Tensor, axes: &Axes) -> Result<Tensor> {
    let x = x.node()?;
    let (axes, keep) = axes.resolve(row.name, &x.shape)?;
    reduce(row, row.name, x, axes, KeepAxes(keep))
}

/// Whether reduced axes stay, with size 1.
#[derive(Clone, Copy)]
pub(super) struct KeepAxes(pub bool);

/// Records a reduction; `op` is what the user called.
#[track_caller]
pub(super) fn reduce(row: &'static ReduceRow, op: &str, x: &NodeRef, axes: AxisSet, keep: KeepAxes) -> Result<Tensor> {
    let at = Location::caller();
    let dtype = taken(row.takes, op, x.dtype)?;
    let given = row.gives.dtype(dtype);
    if axes.is_empty() {
        return Ok(Tensor::new(Ok(cast(x, given, at))));
    }
    let shape = x.shape.reduced(&axes, false);
    if row.needs_one && n_reduced(&x.shape, &axes) == 0 {
        let fault = Fault::new(op, format!("nothing to take the {} of: an axis of {} is empty", row.name, x.shape));
        return Err(Error::Shape(std::sync::Arc::new(fault.shapes(&[&x.shape]))));
    }
    let out = Tensor::record(Op::Reduce(row, axes), &[&cast(x, dtype, at)], shape, given, at);
    match keep {
        KeepAxes(true) => Ok(Tensor::viewed(out.node()?, View::contiguous(x.shape.reduced(&axes, true)), at)),
        KeepAxes(false) => Ok(out),
    }
}

/// How many elements go into one.
pub(super) fn n_reduced(shape: &Shape, axes: &AxisSet) -> usize {
    (0..shape.rank()).filter(|axis| axes.contains(*axis)).map(|axis| shape[axis]).product()
}

/// `g`, whose reduced axes have size 1, repeated to the shape of `x`.
#[track_caller]
fn spread(g: &Tensor, x: &Tensor) -> Tensor {
    or_error(try_spread(g, x))
}

#[track_caller]
fn try_spread(g: &Tensor, x: &Tensor) -> Result<Tensor> {
    let (g, x) = (g.node()?, x.node()?);
    Ok(Tensor::viewed(g, View::broadcast(&g.shape, &x.shape), Location::caller()))
}

/// The axes along which `x` was reduced to `y`, kept.
fn reduced_axes(x: &Tensor, y: &Tensor) -> Result<Axes> {
    let (x, y) = (x.node()?.shape, y.node()?.shape);
    let axes: Vec<i32> = (0..x.rank()).filter(|axis| y[*axis] != x[*axis]).map(|axis| axis as i32).collect();
    Ok(keep(&axes[..]))
}

/// The incoming gradient, in equal parts to the elements that are the extremum.
fn grad_of_extremum(x: &Tensor, y: &Tensor, g: &Tensor) -> Tensor {
    Tensor::attempt(|| {
        let hits = x.eq(y).to_dtype(g.dtype()?);
        Ok(hits.mul(&g.div(&hits.sum(reduced_axes(x, y)?))))
    })
}

/// `g` times the product of the other elements: `y/x`, but where elements are zero. That has the right value, but at a zero no
/// right gradient: for that it is taken as [`others`].
fn grad_of_prod(x: &Tensor, y: &Tensor, g: &Tensor) -> Tensor {
    Tensor::attempt(|| {
        let axes = reduced_axes(x, y)?;
        let is_zero = x.eq(0.0);
        let n_zeros = is_zero.sum(axes.clone());
        // The product of those that are not zero.
        let rest = is_zero.select(1.0, x).prod(axes);
        let at_zero = n_zeros.eq(1).select(&rest, 0.0);
        let elsewhere = n_zeros.eq(0).select(&rest, 0.0).div(x);
        let value = is_zero.select(at_zero, elsewhere);
        Ok(g.mul(value.with_gradient_of(&others(x, y)?)))
    })
}

/// For each element the product of the others along the reduced axes: of those before it times those after it, by products
/// of 1, 2, 4, … neighbours. It only multiplies, so that it has all its gradients everywhere.
fn others(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (shape, kept) = (x.node()?.shape, y.node()?.shape);
    let (inner, outer): (Vec<i32>, Vec<i32>) =
        (0..shape.rank() as i32).partition(|axis| kept[*axis as usize] != shape[*axis as usize]);
    let order: Vec<i32> = outer.iter().chain(&inner).copied().collect();
    let back: Vec<i32> =
        (0..order.len() as i32).map(|a| order.iter().position(|o| *o == a).unwrap_or(0) as i32).collect();
    let sizes: Vec<usize> = order.iter().map(|axis| shape[*axis as usize]).collect();
    let n: usize = sizes[outer.len()..].iter().product();
    let lines = x.permute(&order).reshape([sizes[..outer.len()].iter().product(), n]);
    // Shifted by some places, towards the end or the beginning, with ones in what gets free.
    let after = |x: &Tensor, by: usize| x.pad(&[(0, 0), (by, 0)], 1.0).narrow(1, 0, n);
    let before = |x: &Tensor, by: usize| x.pad(&[(0, 0), (0, by)], 1.0).narrow(1, by, n);
    let (mut below, mut above) = (after(&lines, 1), before(&lines, 1));
    let mut width = 1;
    while width < n {
        (below, above) = (below.mul(after(&below, width)), above.mul(before(&above, width)));
        width *= 2;
    }
    Ok(below.mul(above).reshape(&sizes[..]).permute(&back))
}
