//! The families of ops. An op of a family is a row of its table in `ops/`; nothing here names one.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use crate::blocks::BlockFormat;
use crate::dtype::DType;
use crate::fast_hash::hash_of;
use crate::ops::{BinaryRow, ReduceRow, RoutineRow, RuleRow, UnaryRow};
use crate::shape::AxisSet;
use crate::tensor::Tensor;
use crate::view::View;

/// What a node computes from its inputs.
#[derive(Clone, Debug)]
pub enum Op {
    /// Memory: nothing to compute. With an input, it is the input's memory on another device, yet to be moved.
    Data,
    /// One number, everywhere. A parameter of the plan: another value needs no new plan.
    Const(Constant),
    /// The row-major index of each element, as u32 (wrapping) or i32.
    Index,
    /// A function of one element.
    Unary(&'static UnaryRow),
    /// A function of two, both already of one shape and (but for shifts) one dtype.
    Binary(&'static BinaryRow),
    /// `cond ? a : b`.
    Select,
    /// To the node's dtype.
    Cast,
    /// The f32 elements of blocks of this format. The input is memory: their bytes, as devices hold them.
    Widen(&'static BlockFormat),
    /// Inputs `old` and `new`: `new` if every check of the evaluation has passed, else `old`.
    Commit,
    /// The first input. Gradients go to the inputs behind it, by the row's rule for these axes, and none through the first.
    WithRule(&'static RuleRow, AxisSet),
    /// The user's own elementwise function of f32.
    Custom(CustomRef),
    /// Another look at the same elements. Never masked.
    View(Arc<View>),
    /// Another look with fill around it: the second input, a scalar, is the fill.
    Pad(Arc<View>),
    /// Over these axes of the input, which are gone from the node's shape.
    Reduce(&'static ReduceRow, AxisSet),
    /// `[batch…, m, k] × [batch…, k, n]`, batches already equal.
    Matmul,
    /// Inputs `x` and `index` (of the node's shape): `x` at the node's coordinates with this axis's replaced by the index.
    /// The name is what the user called, for errors.
    Gather(usize, &'static str),
    /// Inputs one after another along this axis.
    Cat(usize),
    /// Inputs `x` and `position`, a u32 scalar: `x` from that position on along this axis, as far as the node's shape goes.
    /// The position is in range: it was checked when the op was recorded.
    RowsAt(usize),
    /// Inputs `x`, `rows` and `position`, a u32 scalar: `x` with `rows` in place of what is from that position on along this
    /// axis. The position is in range, too.
    WriteRows(usize),
    /// A hand-written kernel with its integer parameters.
    Routine(&'static RoutineRow, Params),
}

/// A number, and where it was written. Equal numbers of one place are one parameter of a plan, so that equal nodes are
/// found to be equal; equal numbers of two places stay two, or a learning rate that happens to be what another number is
/// would be another structure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    pub value: f64,
    /// The line, and what reads the number there: `leaky_relu(slope)` compares with 0 and multiplies by the slope.
    place: u64,
    /// What it follows, if a recording may run with another value.
    pub open: Option<OpenNumber>,
}

/// A number of an evaluation that follows a position: it is the position and a fixed difference, within bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpenNumber {
    /// Which position.
    pub name: u64,
    pub plus: i64,
    /// The largest that its op allows.
    pub most: i64,
}

impl Constant {
    /// A number that `reader` reads at a line.
    pub fn new(value: f64, at: &'static Location<'static>, reader: &str) -> Constant {
        let place = hash_of(&(std::ptr::from_ref(at), reader));
        Constant { value, place, open: None }
    }

    /// The same number, which follows a position. Numbers that follow different ones stay apart even while they are equal.
    pub fn following(self, open: OpenNumber) -> Constant {
        let place = hash_of(&(self.place, open.name, open.plus, open.most));
        Constant { place, open: Some(open), ..self }
    }

    /// What tells it from other constants of a graph, given its dtype.
    pub fn identity(&self, dtype: DType) -> (u64, u32, DType) {
        (self.place, dtype.lane_bits(self.value), dtype)
    }
}

/// The integer parameters of a routine: an axis, a direction.
pub type Params = [i32; 2];

/// An elementwise op of the user's own. It fuses like any other.
///
/// `wgsl` is an expression over `$0`, `$1`, …, as `cpu` is over its arguments; `grad`, if given, makes the gradient of
/// each input from the inputs, the output and the incoming gradient.
///
/// A panic of `cpu` or `grad` becomes an [`Error::Custom`](crate::Error::Custom) with its text. `cpu` is called while the CPU is
/// evaluating, so it may read tensors that are computed, but asking for others on the CPU is an error (and waiting for a
/// thread that asks for them never ends).
#[derive(Clone)]
pub struct CustomOp {
    /// What it is called in errors, plans and profiles.
    pub name: String,
    /// The same function for GPUs.
    pub wgsl: String,
    /// The function, one element at a time.
    pub cpu: Arc<dyn Fn(&[f32]) -> f32 + Send + Sync>,
    /// `(inputs, output, incoming) -> one gradient per input`.
    #[allow(clippy::type_complexity)]
    pub grad: Option<Arc<dyn Fn(&[Tensor], &Tensor, &Tensor) -> Vec<Tensor> + Send + Sync>>,
}

/// A shared [`CustomOp`]. Two are equal if nobody could tell their results, plans and errors apart: they call the same
/// closure and have the same WGSL and name, so that using one again plans nothing. Gradients are no part of it: each node
/// asks its own op for them, before anything is planned.
#[derive(Clone)]
pub struct CustomRef(pub Arc<CustomOp>);

impl CustomRef {
    /// Where the closure is: no other closure that is alive is there, so the address means something as long as this is
    /// held. (The allocation is compared and not the function in it, of which two closures may share one.)
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0.cpu).cast::<()>() as usize
    }
}

impl PartialEq for CustomRef {
    fn eq(&self, other: &CustomRef) -> bool {
        let is_alike =
            || self.address() == other.address() && self.0.wgsl == other.0.wgsl && self.0.name == other.0.name;
        Arc::ptr_eq(&self.0, &other.0) || is_alike()
    }
}
impl Eq for CustomRef {}
impl std::hash::Hash for CustomRef {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}
impl fmt::Debug for CustomRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
impl fmt::Debug for CustomOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomOp").field("name", &self.name).field("wgsl", &self.wgsl).finish_non_exhaustive()
    }
}

impl Op {
    /// What it is called in plans and errors.
    pub fn name(&self) -> &str {
        match self {
            Op::Custom(op) => &op.0.name,
            op => op.family_name(),
        }
    }

    /// The same, held by nobody: only a user's own op has a name that is not always there.
    pub fn label(&self) -> Cow<'static, str> {
        match self {
            Op::Custom(op) => Cow::Owned(op.0.name.clone()),
            op => Cow::Borrowed(op.family_name()),
        }
    }

    fn family_name(&self) -> &'static str {
        match self {
            Op::Data => "data",
            Op::Const(_) => "const",
            Op::Index => "index",
            Op::Unary(row) => row.name,
            Op::Binary(row) => row.name,
            Op::Select => "select",
            Op::Cast => "cast",
            Op::Widen(_) => "widen",
            Op::Commit => "unless_failed",
            Op::WithRule(row, _) => row.name,
            Op::Custom(_) => "custom",
            Op::View(_) => "view",
            Op::Pad(_) => "pad",
            Op::Reduce(row, _) => row.name,
            Op::Matmul => "matmul",
            Op::Gather(_, called) => called,
            Op::Cat(_) => "cat",
            Op::RowsAt(_) => "rows_at",
            Op::WriteRows(_) => "write_rows",
            Op::Routine(row, _) => row.name,
        }
    }

    /// Whether its result is flat wherever it has a slope, so that no gradient passes.
    pub fn is_flat(&self) -> bool {
        match self {
            Op::Unary(row) => row.grad.is_none(),
            Op::Binary(row) => row.grad.is_none(),
            Op::Reduce(row, _) => row.grad.is_none(),
            Op::Routine(row, _) => row.grad.is_none(),
            // Codes are integers.
            Op::Widen(_) => true,
            _ => false,
        }
    }

    /// Whether each element depends on the same element of the inputs alone.
    pub fn is_elementwise(&self) -> bool {
        let has_no_inputs = matches!(self, Op::Const(_) | Op::Index);
        has_no_inputs
            || matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Select | Op::Cast | Op::Commit | Op::Custom(_))
    }
}
