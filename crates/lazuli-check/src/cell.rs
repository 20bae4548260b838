//! What is known of one number of a result: between which bounds it lies, and whether it may be NaN. Arithmetic on such
//! cells is the oracle: exact in f64, then widened by what the op states as its error. Knows numbers and dtypes; nothing
//! of shapes or tensors.

use lazuli::{DType, bf16, f16};

use crate::subject::flushes_subnormals;

const INF: f64 = f64::INFINITY;

/// All values that an element may have: those from `lo` to `hi`, and NaN if `nan`. Without any number, `lo > hi`.
///
/// Zeros have no sign here: which zero a sum or a maximum gives is not promised, so what hangs on it is not known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// The least number that it may be.
    pub lo: f64,
    /// The greatest.
    pub hi: f64,
    /// Whether it may be NaN.
    pub nan: bool,
}

impl Cell {
    /// Certainly NaN.
    pub const NAN: Cell = Cell { lo: INF, hi: -INF, nan: true };
    /// Nothing is known.
    pub const ANY: Cell = Cell { lo: -INF, hi: INF, nan: true };

    /// Certainly this.
    pub fn point(value: f64) -> Cell {
        // Adding 0 takes the sign from a zero.
        if value.is_nan() { Cell::NAN } else { Cell::range(value + 0.0, value + 0.0).flushed() }
    }

    /// Between these two.
    pub fn range(lo: f64, hi: f64) -> Cell {
        Cell { lo, hi, nan: false }
    }

    /// Anything that a number of this type can be.
    pub fn any(dtype: DType) -> Cell {
        match dtype {
            DType::I32 => Cell::range(i32::MIN as f64, i32::MAX as f64),
            DType::U32 => Cell::range(0.0, u32::MAX as f64),
            DType::U8 => Cell::range(0.0, 255.0),
            DType::Bool => Cell::range(0.0, 1.0),
            _ => Cell::ANY,
        }
    }

    /// The one value it can be.
    pub fn value(self) -> Option<f64> {
        (self.lo == self.hi && !self.nan).then_some(self.lo)
    }

    /// The truth it can be, for bools.
    pub fn truth(self) -> Option<bool> {
        self.value().map(|v| v != 0.0)
    }

    /// Whether it is certainly NaN.
    pub fn is_nan(self) -> bool {
        self.lo > self.hi
    }

    /// Whether this number is among those it may be.
    pub fn has(self, value: f64) -> bool {
        self.lo <= value && value <= self.hi
    }

    /// Whether a computed value is one that it may be.
    pub fn allows(self, got: f64) -> bool {
        if got.is_nan() { self.nan } else { self.has(got) }
    }

    /// The largest magnitude it may have.
    pub fn magnitude(self) -> f64 {
        if self.is_nan() { 0.0 } else { self.lo.abs().max(self.hi.abs()) }
    }

    /// Whatever either may be.
    pub fn or(self, other: Cell) -> Cell {
        Cell { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi), nan: self.nan | other.nan }
    }

    /// The same, or NaN.
    pub fn or_nan(self, nan: bool) -> Cell {
        Cell { nan: self.nan | nan, ..self }
    }

    /// Through a function that never falls.
    pub fn rising(self, f: impl Fn(f64) -> f64) -> Cell {
        if self.is_nan() { self } else { Cell { lo: f(self.lo), hi: f(self.hi), nan: self.nan } }
    }

    /// Through a function that never rises.
    pub fn falling(self, f: impl Fn(f64) -> f64) -> Cell {
        if self.is_nan() { self } else { Cell { lo: f(self.hi), hi: f(self.lo), nan: self.nan } }
    }

    /// Its magnitude.
    pub fn abs(self) -> Cell {
        if self.is_nan() || self.lo >= 0.0 {
            self
        } else if self.hi <= 0.0 {
            self.falling(|x| -x)
        } else {
            Cell { lo: 0.0, hi: self.magnitude(), nan: self.nan }
        }
    }

    /// What of it lies in a function's domain; the rest becomes NaN.
    pub fn within(self, lo: f64, hi: f64) -> Cell {
        if self.is_nan() || (self.lo >= lo && self.hi <= hi) {
            return self;
        }
        if self.hi < lo || self.lo > hi {
            return Cell::NAN;
        }
        Cell { lo: self.lo.max(lo), hi: self.hi.min(hi), nan: true }
    }

    /// Through a function of two that is monotone in each: its extremes are at the corners.
    pub fn corners(self, other: Cell, f: impl Fn(f64, f64) -> f64) -> Cell {
        if self.is_nan() || other.is_nan() {
            return Cell::NAN;
        }
        let corners = [f(self.lo, other.lo), f(self.lo, other.hi), f(self.hi, other.lo), f(self.hi, other.hi)];
        let all = corners.into_iter().map(Cell::point).reduce(Cell::or).expect("there are four");
        all.or_nan(self.nan | other.nan)
    }

    /// What an f32 computation of it with this error may give. Half a unit is a correctly rounded result.
    pub fn erred(self, ulps: f64) -> Cell {
        if self.is_nan() || ulps == 0.0 {
            return self;
        }
        if ulps == 0.5 {
            return self.rising(|x| x as f32 as f64).flushed();
        }
        let error = |x: f64| if x.is_finite() { ulps * ulp(x) } else { 0.0 };
        self.widened(error(self.lo), error(self.hi))
    }

    /// With its bounds moved outwards, in f32's range: beyond it there is only infinity.
    pub fn widened(self, below: f64, above: f64) -> Cell {
        if self.is_nan() {
            return self;
        }
        let (lo, hi) = (self.lo - below, self.hi + above);
        let max = f32::MAX as f64;
        let lo = if lo > max {
            INF
        } else if lo < -max {
            -INF
        } else {
            lo
        };
        let hi = if hi < -max {
            -INF
        } else if hi > max {
            INF
        } else {
            hi
        };
        Cell { lo, hi, nan: self.nan }.flushed()
    }

    /// What else it may be on a device that takes subnormal numbers for zero.
    fn flushed(self) -> Cell {
        let least = f32::MIN_POSITIVE as f64;
        match self.lo < least && self.hi > -least && flushes_subnormals() {
            true => Cell { lo: self.lo.min(0.0), hi: self.hi.max(0.0), nan: self.nan },
            false => self,
        }
    }

    /// What is left of it as an element of `dtype`, if the engine may keep half floats in f32 as long as it likes.
    pub fn kept(self, dtype: DType) -> Cell {
        match dtype {
            DType::F16 | DType::BF16 => self.or(self.rounded(dtype)),
            _ => self,
        }
    }

    /// What is left of it once rounded to a float type.
    pub fn rounded(self, dtype: DType) -> Cell {
        self.rising(|x| rounded(x, dtype)).flushed()
    }
}

/// The nearest float of this type to the nearest f32, which is what is computed in. (`f16::from_f64` would not do: it
/// drops bits before it rounds.)
pub fn rounded(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::BF16 => bf16::from_f32(x as f32).to_f64(),
        _ => x as f32 as f64,
    }
}

/// At least one unit in the last place of an f32 of this size.
pub fn ulp(x: f64) -> f64 {
    (x.abs() * f32::EPSILON as f64).max(f64::powi(2.0, -149))
}

/// An integer cut to what a type can hold.
pub fn wrapped(value: i128, dtype: DType) -> f64 {
    match dtype {
        DType::I32 => value as i32 as f64,
        DType::U32 => value as u32 as f64,
        DType::U8 => value as u8 as f64,
        DType::Bool => (value != 0) as u8 as f64,
        _ => value as f64,
    }
}

/// As another dtype: floats saturate on the way to integers, NaN gives 0; integers wrap; what is not zero is true.
pub fn cast(x: Cell, from: DType, to: DType) -> Cell {
    if from == to {
        return x;
    }
    match (from.is_float(), to) {
        (true, DType::F32) => x,
        (_, DType::F32 | DType::F16 | DType::BF16) => x.rounded(DType::F32).rounded(to),
        (true, DType::Bool) => match (x.has(0.0), x.value()) {
            (false, _) => Cell::point(1.0),
            (true, Some(_)) => Cell::point(0.0),
            (true, None) => Cell::any(to),
        },
        (true, _) => {
            let any = Cell::any(to);
            let saturated = x.rising(|v| v.trunc().clamp(any.lo, any.hi) + 0.0);
            // NaN becomes 0.
            if x.is_nan() {
                Cell::point(0.0)
            } else {
                Cell { nan: false, ..if x.nan { saturated.or(Cell::point(0.0)) } else { saturated } }
            }
        }
        (false, DType::Bool) => match (x.value(), x.has(0.0)) {
            (Some(v), _) => Cell::point((v != 0.0) as u8 as f64),
            (None, false) => Cell::point(1.0),
            (None, true) => Cell::any(to),
        },
        (false, _) => {
            let any = Cell::any(to);
            match x.value() {
                Some(v) => Cell::point(wrapped(v as i128, to)),
                None if x.lo >= any.lo && x.hi <= any.hi => x,
                None => any,
            }
        }
    }
}
