//! Elementwise functions of one, two or three tensors that are written with rows: quotients and remainders by another
//! rounding, comparisons with a tolerance, sums of exponentials, mixtures.

use super::binary::FLOOR_DIVIDE;
use super::operand::{Operand, OperandSide, Promoted, binary, or_error, taken};
use super::row::Takes;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

impl Tensor {
    /// The greatest integer not above the quotient, `⌊x/y⌋`, in the dtype of the operands. Of integers by zero it is 0.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[7, -7], [2], &Device::cpu());
    /// assert_eq!(x.floor_divide(2).to_vec::<i32>()?, [3, -4]);
    /// assert_eq!(x.floor_divide(0.5).to_vec::<f32>()?, [14.0, -14.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn floor_divide(&self, rhs: impl Into<Operand>) -> Tensor {
        match Pair::new("floor_divide", Takes::Number, self, &rhs.into()) {
            Ok(Pair { x, y }) if !x.dtype().is_ok_and(DType::is_float) => binary(&FLOOR_DIVIDE, &x, y.into()),
            Ok(Pair { x, y }) => {
                // What the remainder leaves is a whole multiple of y, but for its rounding.
                let left = truncated_remainder(&x, &y);
                let q = x.sub(&left).div(&y).round();
                let is_above = left.ne(0).logical_and(left.lt(0).ne(y.lt(0)));
                y.eq(0).select(x.div(&y), is_above.select(q.sub(1), &q))
            }
            Err(error) => Tensor::new(Err(error)),
        }
    }

    /// The quotient without its fraction: `floor_divide` above zero, and its mirror image below.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[7, -7], [2], &Device::cpu());
    /// assert_eq!(x.trunc_divide(2).to_vec::<i32>()?, [3, -3]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn trunc_divide(&self, rhs: impl Into<Operand>) -> Tensor {
        match Pair::new("trunc_divide", Takes::Number, self, &rhs.into()) {
            Ok(Pair { x, y }) if !x.dtype().is_ok_and(DType::is_float) => {
                let q = x.floor_divide(&y);
                let is_below = x.rem(&y).ne(0).logical_and(x.lt(0).ne(y.lt(0)));
                is_below.select(q.add(1), &q)
            }
            Ok(Pair { x, y }) => y.eq(0).select(x.div(&y), x.sub(truncated_remainder(&x, &y)).div(&y).round()),
            Err(error) => Tensor::new(Err(error)),
        }
    }

    /// The remainder of truncated division, `x − y·trunc(x/y)`: it has the sign of `x`. [`rem`](Tensor::rem) has that of `y`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[5.5f32, -5.5], [2], &Device::cpu());
    /// assert_eq!(x.fmod(2).to_vec::<f32>()?, [1.5, -1.5]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn fmod(&self, rhs: impl Into<Operand>) -> Tensor {
        match Pair::new("fmod", Takes::Number, self, &rhs.into()) {
            Ok(Pair { x, y }) if !x.dtype().is_ok_and(DType::is_float) => {
                // The floored remainder has y's sign and is smaller: less y it has the other sign and does not overflow.
                let r = x.rem(&y);
                r.ne(0).logical_and(x.lt(0).ne(y.lt(0))).select(r.sub(&y), &r)
            }
            Ok(Pair { x, y }) => truncated_remainder(&x, &y),
            Err(error) => Tensor::new(Err(error)),
        }
    }

    /// Whether one of both is true and the other is not; a number is true unless it is zero.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[true, false], [2], &Device::cpu());
    /// assert_eq!(x.logical_xor(true).to_vec::<bool>()?, [false, true]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn logical_xor(&self, rhs: impl Into<Operand>) -> Tensor {
        self.to_dtype(DType::Bool).ne(match rhs.into() {
            Operand::Tensor(y) => Operand::from(y.to_dtype(DType::Bool)),
            Operand::Number(y) => Operand::from(y.value() != 0.0),
        })
    }

    /// Whether both are equal up to `atol + rtol·|y|`. Infinities are close to themselves, NaN to nothing.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, f32::INFINITY], [3], &Device::cpu());
    /// let y = Tensor::from_slice(&[1.0f32 + 1e-6, 2.1, f32::INFINITY], [3], &Device::cpu());
    /// assert_eq!(x.isclose(&y, 1e-5, 1e-8).to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn isclose(&self, rhs: impl Into<Operand>, rtol: f32, atol: f32) -> Tensor {
        let close = |x: &Tensor, y: &Tensor| {
            let is_near = x.sub(y).abs().le(y.abs().mul(rtol).add(atol));
            x.eq(y).logical_or(is_near.logical_and(y.is_finite()))
        };
        Pair::float("isclose", self, &rhs.into(), close).to_dtype(DType::Bool)
    }

    /// With 0 for NaN and the greatest and least number of the dtype for infinities.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[f32::NAN, f32::INFINITY, 1.0], [3], &Device::cpu());
    /// assert_eq!(x.nan_to_num().to_vec::<f32>()?, [0.0, f32::MAX, 1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn nan_to_num(&self) -> Tensor {
        let most = match self.dtype() {
            Ok(DType::F32) => f32::MAX as f64,
            Ok(DType::F16) => half::f16::MAX.to_f64(),
            Ok(DType::BF16) => half::bf16::MAX.to_f64(),
            _ => return self.clone(),
        };
        let bounded = self.is_inf().select(self.gt(0).select(most, -most), self);
        self.is_nan().select(0, bounded).to_dtype(self.dtype().unwrap_or(DType::F32))
    }

    /// The length of the hypotenuse, `√(x² + y²)`, without overflow on the way. At the origin its gradient is 0.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, 3e30], [2], &Device::cpu());
    /// let y = Tensor::from_slice(&[4.0f32, 4e30], [2], &Device::cpu());
    /// assert_eq!(x.hypot(&y).to_vec::<f32>()?, [5.0, 5e30]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn hypot(&self, rhs: impl Into<Operand>) -> Tensor {
        Pair::float("hypot", self, &rhs.into(), hypotenuse)
    }

    /// From this to `end`: `x + weight·(end − x)`, exactly `end` where the weight is 1.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::cpu());
    /// assert_eq!(x.lerp(&x.mul(3), 0.5).to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn lerp(&self, end: &Tensor, weight: impl Into<Operand>) -> Tensor {
        let way = end.sub(self);
        match weight.into() {
            // From the nearer end, as PyTorch does: each end is then exact.
            Operand::Number(w) if w.value().abs() < 0.5 => self.add(way.mul(w)),
            Operand::Number(w) => end.sub(way.mul(1.0 - w.value())),
            Operand::Tensor(w) => {
                let from_start = self.add(way.mul(&w));
                w.abs().lt(0.5).select(from_start, end.sub(way.mul(w.neg().add(1))))
            }
        }
    }

    /// `ln(eˣ + eʸ)`, without overflow.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1000.0f32, f32::NEG_INFINITY], [2], &Device::cpu());
    /// assert_eq!(x.logaddexp(&x).to_vec::<f32>()?, [1000.0 + 2f32.ln(), f32::NEG_INFINITY]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn logaddexp(&self, rhs: impl Into<Operand>) -> Tensor {
        Pair::float("logaddexp", self, &rhs.into(), log_of_sum)
    }
}

/// Two sides of an op with one dtype and one shape.
struct Pair {
    x: Tensor,
    y: Tensor,
}

impl Pair {
    #[track_caller]
    fn new(op: &str, takes: Takes, x: &Tensor, y: &Operand) -> Result<Pair> {
        let sides = [OperandSide::Node(x.node()?), y.side()?];
        let mut promoted = Promoted::of(op, &sides)?;
        promoted.dtype = taken(takes, op, promoted.dtype)?;
        let (x, y) = (promoted.coerce(sides[0])?, promoted.coerce(sides[1])?);
        Ok(Pair { x: Tensor::new(Ok(x)), y: Tensor::new(Ok(y)) })
    }

    /// A function of two floats that is computed in f32 and rounded once.
    #[track_caller]
    fn float(op: &str, x: &Tensor, y: &Operand, f: impl FnOnce(&Tensor, &Tensor) -> Tensor) -> Tensor {
        or_error(Pair::new(op, Takes::Float, x, y).and_then(|pair| {
            let result = pair.x.dtype()?;
            Ok(f(&pair.x.to_dtype(DType::F32), &pair.y.to_dtype(DType::F32)).to_dtype(result))
        }))
    }
}

/// The remainder of floats, of the sign of `x`. Of magnitudes it is exact.
#[track_caller]
fn truncated_remainder(x: &Tensor, y: &Tensor) -> Tensor {
    let is_negative = x.lt(0);
    let r = is_negative.select(x.neg(), x).rem(y.lt(0).select(y.neg(), y));
    is_negative.select(r.neg(), r)
}

/// `√(x² + y²)`. Both are divided by the larger one, rounded to a power of two: `s·√((x/s)² + (y/s)²)`.
#[track_caller]
fn hypotenuse(x: &Tensor, y: &Tensor) -> Tensor {
    let largest = x.detach().abs().maximum(y.detach().abs());
    let is_plain = largest.gt(0).logical_and(largest.is_finite());
    let scale = is_plain.select(&largest, 1).log2().floor().clamp(-126, 126).exp2();
    let (a, b) = (x.div(&scale), y.div(&scale));
    let sum = a.square().add(b.square());
    let is_zero = sum.eq(0);
    let root = is_zero.select(0, is_zero.select(1, &sum).sqrt()).mul(scale);
    // An infinite side is an infinite length, whatever the other is.
    x.is_inf().logical_or(y.is_inf()).select(f32::INFINITY, root)
}

/// `ln(eˣ + eʸ) = max + ln(1 + e^−|x − y|)`; the difference of two equal infinities is taken for 0.
#[track_caller]
fn log_of_sum(x: &Tensor, y: &Tensor) -> Tensor {
    let apart = x.eq(y).select(0, x.sub(y));
    let is_below = apart.lt(0);
    let falling = is_below.select(&apart, apart.neg());
    is_below.select(y, x).add(falling.exp().log1p())
}
