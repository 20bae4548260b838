//! The shape of a row: all that is known of one primitive, in one place. Methods, docs, CPU loops, oracle, WGSL,
//! gradients and tests derive from rows. This file knows what a row says, not which rows there are.

use crate::dtype::{DType, Lane};
use crate::graph::Op;
use crate::shape::AxisSet;
use crate::tensor::Tensor;

/// Which dtypes an op takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Floats; integers and bools are cast to f32 first.
    Float,
    /// Floats and integers; bools are cast to i32 first.
    Number,
    /// Integers only.
    Int,
    /// Integers and bools.
    Bits,
    /// Bools; others are compared with zero first.
    Bool,
    /// Anything.
    Any,
}

/// What an op gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// The dtype it was given (after the casts of [`Takes`]).
    Same,
    /// Bool.
    Bool,
    /// The accumulator of the dtype: u32 for u8, i32 for bool, else the same. For sums and products.
    Widened,
}

/// The instruction sets the CPU loops are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every machine of the target has.
    Baseline = 0,
    /// AVX2 and FMA.
    Avx2 = 1,
    /// AVX-512 F, VL, DQ and BW.
    Avx512 = 2,
}

/// One thing per instruction set, in the order of [`Isa`].
pub type PerIsa<T> = [T; 3];

/// `y[i] = f(x[i])`. Both have one length. Unsafe to call only because the instruction set must be there.
pub type UnaryLoop = unsafe fn(x: &[u32], y: &mut [u32]);
/// `out[i] = f(x[i], y[i])`. All have one length.
pub type BinaryLoop = unsafe fn(x: &[u32], y: &[u32], out: &mut [u32]);
/// All of `x` combined by the op in a fixed order, pairwise or better.
pub type FoldLoop = unsafe fn(x: &[u32]) -> u32;
/// `acc[i] = f(acc[i], x[i])`.
pub type AccumulateLoop = unsafe fn(acc: &mut [u32], x: &[u32]);

/// The forms of a reduction's loops.
#[derive(Clone, Copy)]
pub struct ReduceLoops {
    /// Along a row.
    pub fold: FoldLoop,
    /// Row onto row, for reductions across rows.
    pub accumulate: AccumulateLoop,
    /// The value that changes nothing, as lane bits.
    pub identity: u32,
}

/// One thing per kind of lane; None where the op does not take it.
#[derive(Clone, Copy)]
pub struct PerLane<T> {
    /// For f32, f16 and bf16.
    pub f32: Option<T>,
    /// For i32.
    pub i32: Option<T>,
    /// For u32, u8 and bool.
    pub u32: Option<T>,
}

impl<T> PerLane<T> {
    /// For no lane.
    pub const NONE: PerLane<T> = PerLane { f32: None, i32: None, u32: None };

    /// The one for this lane.
    pub fn get(&self, lane: Lane) -> Option<&T> {
        match lane {
            Lane::F32 => self.f32.as_ref(),
            Lane::I32 => self.i32.as_ref(),
            Lane::U32 => self.u32.as_ref(),
        }
    }
}

/// A step that the CPU can chain with others while the value stays in registers. Rows say which one they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegisterStep {
    /// `x + y`.
    Add,
    /// `x − y`.
    Sub,
    /// `x · y`.
    Mul,
    /// `x / y`.
    Div,
    /// The greater; NaN if either is.
    Max,
    /// The lesser; NaN if either is.
    Min,
    /// `x · x`.
    Square,
    /// `√x`.
    Sqrt,
    /// `eˣ`.
    Exp,
    /// The error function.
    Erf,
    /// What the error function lacks to one.
    Erfc,
}

/// What combines two floats of a reduction while the CPU has them in registers. Rows say which one it is; loops over vectors
/// match on all of them, so that one more does not compile before each of them knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CombineStep {
    /// `x + y`.
    Add,
    /// `x · y`.
    Mul,
    /// The greater; NaN if either is.
    Max,
    /// The lesser; NaN if either is.
    Min,
}

/// A function of one element.
pub struct UnaryRow {
    /// What it is called: the method, and the name in plans and errors.
    pub name: &'static str,
    /// One line: what it is.
    pub doc: &'static str,
    /// Which dtypes it takes.
    pub takes: Takes,
    /// What it gives.
    pub gives: Gives,
    /// Whether a u8 result must be cut back to 8 bits.
    pub wraps: bool,
    /// About how many additions it costs.
    pub cost: u32,
    /// The chained form for f32, where there is one.
    pub step: Option<RegisterStep>,
    /// The loops.
    pub cpu: PerLane<PerIsa<UnaryLoop>>,
    /// The function in double precision, to test against.
    pub oracle: fn(f64) -> f64,
    /// An expression over `$x`, the lane already cast; `$t` is the lane type. Bools are u32, 0 or 1.
    pub wgsl: &'static str,
    /// WGSL functions that the expression calls, beside those of [`WGSL_COMMON`](super::WGSL_COMMON).
    pub wgsl_fns: &'static str,
    /// The gradient of the input from `(x, y, g)`; None: the op is flat or not differentiable.
    pub grad: Option<fn(&Tensor, &Tensor, &Tensor) -> Tensor>,
    /// Known values, `(x, y)`, from outside.
    pub known: &'static [(f64, f64)],
    /// Where tests draw floats from.
    pub range: (f64, f64),
    /// The stated tolerance for f32, in units in the last place.
    pub ulps: f64,
    /// The stated tolerance on GPUs, where double precision is missing.
    pub gpu_ulps: f64,
}

/// A function of two elements.
pub struct BinaryRow {
    /// What it is called: the method, and the name in plans and errors.
    pub name: &'static str,
    /// One line: what it is.
    pub doc: &'static str,
    /// Which dtypes it takes.
    pub takes: Takes,
    /// What it gives.
    pub gives: Gives,
    /// Whether a u8 result must be cut back to 8 bits.
    pub wraps: bool,
    /// About how many additions it costs.
    pub cost: u32,
    /// Whether the order of operands does not matter.
    pub commutes: bool,
    /// The chained form for f32, where there is one.
    pub step: Option<RegisterStep>,
    /// The loops.
    pub cpu: PerLane<PerIsa<BinaryLoop>>,
    /// The function in double precision, to test against.
    pub oracle: fn(f64, f64) -> f64,
    /// For integers, where it differs from `oracle`. Values are i64 so that wrapping is left to the caller.
    pub oracle_int: Option<fn(i64, i64) -> i64>,
    /// An expression over `$x` and `$y`; `$t` is the lane type. Bools are u32, 0 or 1.
    pub wgsl: &'static str,
    /// As in [`UnaryRow`].
    pub wgsl_fns: &'static str,
    /// The gradients of both inputs from `(x, y, out, g)`.
    #[allow(clippy::type_complexity)]
    pub grad: Option<fn(&Tensor, &Tensor, &Tensor, &Tensor) -> [Tensor; 2]>,
    /// Known values, `(x, y, out)`.
    pub known: &'static [(f64, f64, f64)],
    /// Where tests draw floats from.
    pub range: (f64, f64),
    /// The stated tolerance for f32, in units in the last place.
    pub ulps: f64,
    /// The stated tolerance on GPUs, where double precision is missing.
    pub gpu_ulps: f64,
}

/// An associative combination of the elements along some axes.
pub struct ReduceRow {
    /// What it is called: the method, and the name in plans and errors.
    pub name: &'static str,
    /// One line: what it is.
    pub doc: &'static str,
    /// Which dtypes it takes.
    pub takes: Takes,
    /// What it gives.
    pub gives: Gives,
    /// What combines f32 in registers; None where only the loops do.
    pub step: Option<CombineStep>,
    /// The loops.
    pub cpu: PerLane<PerIsa<ReduceLoops>>,
    /// The function in double precision, to test against.
    pub oracle: fn(f64, f64) -> f64,
    /// The value that changes nothing, for the oracle; integers clamp it to their range.
    pub identity: f64,
    /// Combines `$x` and `$y`.
    pub wgsl: &'static str,
    /// As in [`UnaryRow`].
    pub wgsl_fns: &'static str,
    /// The gradient of the input from `(x, y, g)`, where `y` and `g` have their axes kept with size 1.
    pub grad: Option<fn(&Tensor, &Tensor, &Tensor) -> Tensor>,
    /// Known values, from outside.
    pub known: &'static [(&'static [f64], f64)],
    /// The stated tolerance: ULPs of the sum of magnitudes, over all lengths.
    pub ulps: f64,
    /// Why an empty reduction is an error, for ops without an identity to give (max, min).
    pub needs_one: bool,
}

/// A hand-written kernel; its CPU form has the same name in `cpu/routines`, its WGSL in `wgsl/routines`.
pub struct RoutineRow {
    /// What it is called: the method, and the name in plans and errors.
    pub name: &'static str,
    /// One line: what it is.
    pub doc: &'static str,
    /// The gradients of the inputs from `(inputs, y, g, parameters)`; None for an input that has none.
    #[allow(clippy::type_complexity)]
    pub grad: Option<fn(&[Tensor], &Tensor, &Tensor, [i32; 2]) -> Vec<Option<Tensor>>>,
    /// The stated tolerance for f32, in units in the last place.
    pub ulps: f64,
    /// Whether its second input is an index, along the axis that its first parameter names, which may be out of range.
    pub indexes: bool,
}

/// The gradients of a value that has better ones than the rules of the ops that compute it would give.
pub struct RuleRow {
    /// What it is called in plans and errors.
    pub name: &'static str,
    /// The gradients of the inputs from `(inputs, y, g, axes)`; None for an input that has none.
    #[allow(clippy::type_complexity)]
    pub grad: fn(&[Tensor], &Tensor, &Tensor, AxisSet) -> Vec<Option<Tensor>>,
}

impl Takes {
    /// What it takes, in words.
    pub fn what(self) -> &'static str {
        match self {
            Takes::Float => "floats",
            Takes::Number => "numbers",
            Takes::Int => "integers",
            Takes::Bits => "integers and bools",
            Takes::Bool => "bools",
            Takes::Any => "anything",
        }
    }

    /// What an operand of `dtype` is cast to first; None if the op does not take it.
    pub fn cast(self, dtype: DType) -> Option<DType> {
        match self {
            Takes::Float => Some(dtype.to_float()),
            Takes::Number => Some(if dtype == DType::Bool { DType::I32 } else { dtype }),
            Takes::Int => dtype.is_int().then_some(dtype),
            Takes::Bits => (!dtype.is_float()).then_some(dtype),
            Takes::Bool => Some(DType::Bool),
            Takes::Any => Some(dtype),
        }
    }
}

impl Gives {
    /// The result's dtype, from that of the (cast) operands.
    pub fn dtype(self, operand: DType) -> DType {
        match (self, operand) {
            (Gives::Bool, _) => DType::Bool,
            (Gives::Widened, DType::U8) => DType::U32,
            (Gives::Widened, DType::Bool) => DType::I32,
            _ => operand,
        }
    }
}

/// Rows are told apart by where they are: each is one static.
macro_rules! by_address {
    ($($row:ty),*) => {$(
        impl PartialEq for $row {
            fn eq(&self, other: &Self) -> bool {
                std::ptr::eq(self, other)
            }
        }
        impl Eq for $row {}
        impl std::hash::Hash for $row {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                std::ptr::from_ref(self).hash(state);
            }
        }
        impl std::fmt::Debug for $row {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name)
            }
        }
    )*};
}

by_address!(UnaryRow, BinaryRow, ReduceRow, RoutineRow, RuleRow);

/// About how many additions an elementwise op costs per element.
pub fn cost(op: &Op) -> u32 {
    match op {
        Op::Unary(row) => row.cost,
        Op::Binary(row) => row.cost,
        Op::Custom(_) => 32,
        Op::Const(_) | Op::Index => 0,
        _ => 1,
    }
}
