//! A kernel as data: the few instructions of one loop nest, in single-assignment form, with a stable text.
//! What the CPU interprets and what WGSL is printed from. Structure and numbers are kept apart: a [`Kernel`] holds no
//! size, stride or scalar, so that other sizes compile nothing. Decides nothing.

mod display;
mod extent;
mod operand;
mod parts;

pub use extent::{coordinates_between, reach_of};
pub use operand::{AxisList, MatmulArgs, OperandArgs, Panels};
pub use parts::AxisParts;

use std::sync::Arc;

use crate::blocks::Storage;
use crate::dtype::DType;
use crate::graph::CustomRef;
use crate::ops::wgsl_loops::Iterations;
use crate::ops::{BinaryRow, ReduceRow, RoutineRow, UnaryRow, WGSL_COMMON};
use crate::view::{IndexMap, View};

/// What is compiled: the structure of one launch, free of sizes and values. Plans of other sizes share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Map and Reduce: one loop nest over an index space (Map has no inner axes).
    Loop(Arc<Body>),
    /// A contraction, then `body` over its result. Inputs 0 and 1 of the body are the operands; in the place of a made operand
    /// ([`Body::made`]) the body has an input of the operand's map.
    Matmul(Arc<Body>),
    /// Products, a map over their results, perhaps a softmax, and a product of that: no score is stored.
    Attention(Arc<AttentionKernel>),
    /// A hand-written kernel. Inputs and outputs are row-major and whole.
    Routine(RoutineKernel),
    /// A grouped GEMM: products that do not wait for each other in one launch, each of them a part of it with a kernel of its
    /// own.
    Grouped(GroupedKernel),
}

/// Storage types of what the parts of a grouped launch read and write, part after part.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GroupedKernel {
    pub inputs: Vec<Storage>,
    pub outputs: Vec<DType>,
}

/// A chained product. For each row (a query) of a batch, over all columns (keys) of that row:
///
/// - a score is the value of [`scores`](AttentionKernel::scores), a map over one or two inner products;
/// - a weight is the score, or with a softmax `exp(score − shift)` with one shift a row, times the factor if there is one;
/// - the results are a map over `Σ weight · value`.
///
/// Inputs are the operands of the inner products, in pairs, then the values, then what the bodies load. The inputs of each
/// body are the first of these, as far as it needs them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttentionKernel {
    pub inputs: Vec<Storage>,
    /// Those of `result`, then those of `rows`.
    pub outputs: Vec<DType>,
    /// Inner products: one or two.
    pub n_inner: u8,
    /// A map over `[batch…, rows, columns]`. `Acc(i)` is inner product `i`; what it stores goes nowhere: its first store is
    /// the score, its second, if it has one, the factor.
    pub scores: Arc<Body>,
    /// Comparisons of indices that decide scores: blocks for which one of them fails need not be looked at.
    pub masks: Vec<AffineMask>,
    /// The exponential of a softmax along the columns, if there is one.
    pub softmax: Option<&'static UnaryRow>,
    /// A map over `[batch…, rows, values]` of [`ROW_SUM`] and so on; it may store nothing, as may `rows`.
    pub result: Arc<Body>,
    /// A map over `[batch…, rows]` of the same but for `ROW_PRODUCT`.
    pub rows: Arc<Body>,
}

/// What `Acc` means in the maps over an attention's results: the sum of weighted values; what was subtracted from scores
/// (their greatest, but no less than the least number); their greatest; and the sum of weights, factors left out.
pub const ROW_PRODUCT: u8 = 0;
pub const ROW_SHIFT: u8 = 1;
pub const ROW_MAX: u8 = 2;
pub const ROW_SUM: u8 = 3;

/// A comparison of two values that are affine in row and column. Where it is false, the score is this constant of the
/// body, or that of a mask before it; a block can be left out only if all these are −∞ (without a softmax: 0). Being
/// affine, a comparison holds in a block if it does at its corners, and fails there if it fails at all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffineMask {
    /// None where something else than indices is compared.
    pub cond: Option<Reg>,
    pub fill: u16,
}

/// The instructions of a loop nest over `outer × inner` axes.
///
/// Each instruction is evaluated for every index of its [`Scope`]. A `Reduce` turns an inner value into an outer one.
/// Whoever runs a body finds the stages by itself: an instruction belongs to the stage after the last `Reduce` it
/// depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Body {
    /// How many outer and inner axes the index space has.
    pub outer_rank: u8,
    pub inner_rank: u8,
    /// Which axes change fastest from one element to the next.
    pub order: Order,
    /// Whether the first outer axis counts pieces of one long inner axis, of which the last is short:
    /// see [`Args::limit`].
    pub ragged: bool,
    /// How each bound input and output is stored. Outputs are never in blocks.
    pub inputs: Vec<Storage>,
    pub outputs: Vec<DType>,
    /// The form of each index map; its numbers are in [`Args::accesses`].
    pub accesses: Vec<AccessForm>,
    pub insts: Vec<Inst>,
    pub stores: Vec<Store>,
    /// The accesses whose place is only known when the kernel runs. All accesses to one input or output are moved alike.
    pub offsets: Vec<RuntimeOffset>,
    /// For a product, the maps of its left and its right operand where these are made operands. A map is evaluated once for each element
    /// before the product multiplies; its result is f32 in scratch memory and no value of the plan. The map's numbers are in
    /// [`MatmulArgs::made`], and its inputs are the first inputs of this body. Kernels of other forms have none.
    pub made: [Option<Arc<Body>>; 2],
}

/// Moves an access by a constant of the plan times a stride, which is in [`Args::offsets`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuntimeOffset {
    pub access: u16,
    /// The constant, a u32, by its place in [`Args::consts`].
    pub constant: u16,
}

/// Which axes are walked fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Row by row: for each outer index all inner ones. Always the order of a Map.
    #[default]
    InnerFast,
    /// Column reductions: for each inner index a run of outer ones, so that memory is read in order.
    OuterFast,
}

/// Where a value varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The same everywhere in the launch.
    Uniform,
    /// One per outer index.
    Outer,
    /// One per outer and inner index.
    Inner,
}

/// The index of an instruction, and the value it makes.
pub type Reg = u32;

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inst {
    pub op: InstOp,
    /// The type of the value; computed in its lane ([`DType::lane`]).
    pub dtype: DType,
    pub scope: Scope,
}

/// What an instruction does. Registers name earlier instructions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InstOp {
    /// An element of an input. Where the access is masked and there is no element: 0, and memory is not touched.
    Load {
        input: u16,
        access: u16,
    },
    /// Whether a masked access has an element (bool).
    Valid {
        access: u16,
    },
    /// The source index an access gives, cut to 32 bits.
    Index {
        access: u16,
    },
    /// An element at `access + index · stride`; an index outside `0..bound` sets the status flag and reads 0.
    /// The access is of the instruction's scope. Stride, bound and the check's number are in [`Args::gathers`].
    Gather {
        input: u16,
        access: u16,
        index: Reg,
        gather: u16,
    },
    /// A scalar parameter, by its place in [`Args::consts`].
    Const(u16),
    /// A sum that the form hands to its map (f32, i32 or u32), by its number: a matmul has one, an attention several.
    Acc(u8),
    Unary(&'static UnaryRow, Reg),
    Binary(&'static BinaryRow, Reg, Reg),
    /// Whether a check of an earlier launch of the plan has failed (bool).
    Failed,
    /// `if cond != 0 { a } else { b }`.
    Select(Reg, Reg, Reg),
    /// To the instruction's dtype. Floats to integers saturate, NaN gives 0; integers wrap; to bool is `!= 0`.
    /// To f16 or bf16 it rounds.
    Cast(Reg),
    Custom(CustomRef, Vec<Reg>),
    /// All of an inner value's elements of this outer index, combined.
    Reduce(&'static ReduceRow, Reg),
}

/// A result leaving the kernel. Outer values are stored once per outer index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    pub value: Reg,
    pub output: u16,
    pub access: u16,
}

/// The structure of an index map over the index space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessForm {
    /// One element for all.
    Uniform,
    /// Element `i` of the index space (for outer values: of the outer axes) is element `i + offset` of the buffer,
    /// counted row-major with inner axes last.
    Linear,
    /// By strides.
    Strided,
    /// Through this many views; masked or not.
    Chain { n_views: u8, masked: bool },
}

/// A hand-written kernel's structure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoutineKernel {
    pub row: &'static RoutineRow,
    pub inputs: Vec<Storage>,
    pub outputs: Vec<DType>,
}

/// The numbers of one launch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args {
    /// Sizes of the index space, merged where all accesses allow.
    pub outer: Vec<usize>,
    pub inner: Vec<usize>,
    /// For a ragged body: outer index 0 and the one inner axis together count to this, so that piece `c` has inner
    /// elements `0..min(inner[0], limit - c · inner[0])`.
    pub limit: usize,
    /// Per access, its map from the index space (`outer ++ inner` for inner values, `outer` for outer ones, `[]` for
    /// uniform ones) to elements of the buffer.
    pub accesses: Vec<IndexMap>,
    pub gathers: Vec<GatherArgs>,
    /// If the launch serves only some indices of its one gather: the first, and how many. What others look up is not
    /// stored; other parts of the kernel do.
    pub index_range: Option<(usize, usize)>,
    /// Per `Const` of the body, which constant of the plan it is.
    pub consts: Vec<u32>,
    /// The numbers of each run-time offset of the body.
    pub offsets: Vec<OffsetArgs>,
    pub matmul: Option<Box<MatmulArgs>>,
    pub attention: Option<Box<AttentionArgs>>,
    pub routine: Option<Box<RoutineArgs>>,
}

/// Sizes of a chained product, how its operands lie, and the numbers of its bodies.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionArgs {
    pub batch: Vec<usize>,
    pub n_rows: usize,
    pub n_columns: usize,
    /// The parts of the columns whose sums are made side by side and put together before what follows is done to them.
    pub column_parts: AxisParts,
    /// The length of a value, and of a row of the result.
    pub n_values: usize,
    /// Per inner product: how long its sums are, its operand by rows and its operand by columns.
    pub inner: Vec<InnerProduct>,
    pub values: AttentionOperand,
    pub scores: Args,
    pub result: Args,
    pub rows: Args,
}

/// `score[row, column] = Σ a[row, i] · b[column, i]` over `depth` products.
#[derive(Clone, Debug, PartialEq)]
pub struct InnerProduct {
    pub depth: usize,
    pub a: AttentionOperand,
    pub b: AttentionOperand,
}

/// How a matrix of an attention lies in its buffer, in elements: a step for each batch axis, from place to place (a row, a
/// column) and along a place's own numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionOperand {
    pub batch: Vec<isize>,
    pub place: isize,
    pub along: isize,
    pub offset: isize,
}

/// The numbers of a gather.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatherArgs {
    pub stride: isize,
    pub bound: usize,
    /// Which of the plan's checks fails when an index is out of range.
    pub check: u32,
}

/// The numbers of a run-time offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffsetArgs {
    /// From one position to the next, in elements.
    pub stride: isize,
    /// All positions are below it.
    pub bound: usize,
    /// The positions that the launch serves, the first and how many. At others it stores nothing: a launch of its own does.
    /// All of them, unless the kernel was cut.
    pub served: (usize, usize),
}

/// What a routine needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutineArgs {
    pub params: [i32; 2],
    pub input_shapes: Vec<crate::shape::Shape>,
    pub output_shape: crate::shape::Shape,
    /// Which of the plan's checks fails when an index is out of range, for routines that index.
    pub check: u32,
}

impl Kernel {
    /// How inputs and outputs are stored.
    pub fn bindings(&self) -> (&[Storage], &[DType]) {
        match self {
            Kernel::Loop(body) | Kernel::Matmul(body) => (&body.inputs, &body.outputs),
            Kernel::Attention(a) => (&a.inputs, &a.outputs),
            Kernel::Routine(r) => (&r.inputs, &r.outputs),
            Kernel::Grouped(grouped) => (&grouped.inputs, &grouped.outputs),
        }
    }

    /// About how many bytes it occupies beside itself. What a custom op's function owns elsewhere nobody can tell.
    pub fn size_bytes(&self) -> usize {
        match self {
            Kernel::Loop(body) | Kernel::Matmul(body) => body.size_bytes(),
            Kernel::Attention(a) => {
                let bodies = [&a.scores, &a.result, &a.rows].map(|body| body.size_bytes()).iter().sum::<usize>();
                let lists = a.inputs.capacity() * size_of::<Storage>()
                    + a.outputs.capacity()
                    + a.masks.capacity() * size_of::<AffineMask>();
                size_of::<AttentionKernel>() + bodies + lists
            }
            Kernel::Routine(routine) => routine.inputs.capacity() * size_of::<Storage>() + routine.outputs.capacity(),
            Kernel::Grouped(grouped) => grouped.inputs.capacity() * size_of::<Storage>() + grouped.outputs.capacity(),
        }
    }

    /// `map`, `reduce`, `matmul`, `attention` or `routine`.
    pub fn form(&self) -> &'static str {
        match self {
            Kernel::Loop(body) if body.inner_rank == 0 => "map",
            Kernel::Loop(_) => "reduce",
            Kernel::Matmul(_) | Kernel::Grouped(_) => "matmul",
            Kernel::Attention(_) => "attention",
            Kernel::Routine(_) => "routine",
        }
    }
}

impl AccessForm {
    /// The form of a map.
    pub fn of(map: &IndexMap) -> AccessForm {
        let Some(view) = map.strided() else {
            return AccessForm::Chain { n_views: map.views().len() as u8, masked: map.is_masked() };
        };
        if view.shape.rank() == 0 {
            AccessForm::Uniform
        } else if (View { offset: 0, ..*view }).is_linear() {
            AccessForm::Linear
        } else {
            AccessForm::Strided
        }
    }
}

impl InstOp {
    /// About how many operations it is for one element; a reduction, for each that it takes.
    pub fn cost(&self) -> usize {
        match self {
            InstOp::Unary(row, _) => row.cost as usize,
            InstOp::Binary(row, ..) => row.cost as usize,
            InstOp::Select(..) | InstOp::Cast(_) | InstOp::Reduce(..) => 1,
            InstOp::Custom(..) => 32,
            _ => 0,
        }
    }

    /// The same with other registers.
    pub fn with_regs(&self, f: impl Fn(Reg) -> Reg) -> InstOp {
        match self {
            InstOp::Load { .. } | InstOp::Valid { .. } | InstOp::Index { .. } => self.clone(),
            InstOp::Const(_) | InstOp::Acc(_) | InstOp::Failed => self.clone(),
            InstOp::Gather { input, access, index, gather } => {
                InstOp::Gather { input: *input, access: *access, index: f(*index), gather: *gather }
            }
            InstOp::Unary(row, a) => InstOp::Unary(row, f(*a)),
            InstOp::Binary(row, a, b) => InstOp::Binary(row, f(*a), f(*b)),
            InstOp::Select(a, b, c) => InstOp::Select(f(*a), f(*b), f(*c)),
            InstOp::Cast(a) => InstOp::Cast(f(*a)),
            InstOp::Custom(op, args) => InstOp::Custom(op.clone(), args.iter().copied().map(f).collect()),
            InstOp::Reduce(row, a) => InstOp::Reduce(row, f(*a)),
        }
    }

    /// Calls `f` with each register it reads.
    pub fn for_each_reg(&self, mut f: impl FnMut(Reg)) {
        match self {
            InstOp::Load { .. } | InstOp::Valid { .. } | InstOp::Index { .. } => {}
            InstOp::Const(_) | InstOp::Acc(_) | InstOp::Failed => {}
            InstOp::Gather { index, .. } => f(*index),
            InstOp::Unary(_, a) | InstOp::Cast(a) | InstOp::Reduce(_, a) => f(*a),
            InstOp::Binary(_, a, b) => [*a, *b].into_iter().for_each(f),
            InstOp::Select(a, b, c) => [*a, *b, *c].into_iter().for_each(f),
            InstOp::Custom(_, args) => args.iter().copied().for_each(f),
        }
    }
}

impl Args {
    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        let sizes = (self.outer.capacity() + self.inner.capacity()) * size_of::<usize>();
        let maps = self.accesses.iter().map(IndexMap::size_bytes).sum::<usize>();
        let gathers = self.gathers.capacity() * size_of::<GatherArgs>() + self.consts.capacity() * size_of::<u32>();
        let gathers = gathers + self.offsets.capacity() * size_of::<OffsetArgs>();
        let shapes = |routine: &RoutineArgs| routine.input_shapes.capacity() * size_of::<crate::shape::Shape>();
        let attention = self.attention.as_ref().map_or(0, |a| a.size_bytes());
        let numbers =
            self.matmul.as_deref().map_or(0, MatmulArgs::size_bytes) + self.routine.as_deref().map_or(0, shapes);
        let numbers = numbers + attention;
        sizes + self.accesses.capacity() * size_of::<IndexMap>() + maps + gathers + numbers
    }
}

impl OffsetArgs {
    /// By how far the first and the last position that is served are moved.
    pub fn reach(&self) -> (isize, isize) {
        let (first, n) = self.served;
        (self.stride * first as isize, self.stride * (first + n.max(1) - 1) as isize)
    }

    /// Whether some positions are not served.
    #[cfg(feature = "gpu")]
    pub fn is_partial(&self) -> bool {
        self.served != (0, self.bound)
    }
}

impl AttentionArgs {
    /// Multiplications for each score.
    pub fn depth(&self) -> usize {
        self.inner.iter().map(|inner| inner.depth).sum::<usize>() + self.n_values
    }

    /// About how many bytes it occupies.
    pub fn size_bytes(&self) -> usize {
        let operand = |operand: &AttentionOperand| operand.batch.capacity() * size_of::<isize>();
        let inner = |inner: &InnerProduct| size_of::<InnerProduct>() + operand(&inner.a) + operand(&inner.b);
        size_of::<AttentionArgs>()
            + self.batch.capacity() * size_of::<usize>()
            + self.inner.iter().map(inner).sum::<usize>()
            + operand(&self.values)
            + [&self.scores, &self.result, &self.rows].map(Args::size_bytes).iter().sum::<usize>()
    }
}

impl Body {
    /// About how many bytes it occupies beside itself.
    pub fn size_bytes(&self) -> usize {
        let custom = |inst: &Inst| match &inst.op {
            InstOp::Custom(op, args) => {
                args.capacity() * size_of::<Reg>()
                    + op.0.name.capacity()
                    + op.0.wgsl.capacity()
                    + size_of_val(&*op.0.cpu)
            }
            _ => 0,
        };
        (self.inputs.capacity() + self.outputs.capacity()) * size_of::<DType>()
            + self.accesses.capacity() * size_of::<AccessForm>()
            + self.insts.capacity() * size_of::<Inst>()
            + self.insts.iter().map(custom).sum::<usize>()
            + self.stores.capacity() * size_of::<Store>()
            + self.offsets.capacity() * size_of::<RuntimeOffset>()
            + self.made.iter().flatten().map(|made| size_of::<Body>() + made.size_bytes()).sum::<usize>()
    }

    /// The number of an access's run-time offset, if it has one.
    pub fn offset_of(&self, access: u16) -> Option<usize> {
        self.offsets.iter().position(|offset| offset.access == access)
    }

    /// How an operand of the product is stored when the product multiplies it: a made operand is f32.
    pub fn operand_storage(&self, operand: usize) -> Storage {
        if self.made[operand].is_some() { DType::F32.into() } else { self.inputs[operand] }
    }

    /// Whether any operand of the product is made.
    pub fn makes_operands(&self) -> bool {
        self.made.iter().any(Option::is_some)
    }

    /// Whether a map that makes an operand of the product loads an input.
    pub fn makes_operands_of(&self, input: usize) -> bool {
        let loads = |inst: &Inst| matches!(inst.op, InstOp::Load { input: i, .. } if i as usize == input);
        self.made.iter().flatten().any(|made| made.insts.iter().any(loads))
    }

    /// Whether what it stores depends on whether a check of an earlier launch has failed.
    pub fn commits(&self) -> bool {
        self.insts.iter().any(|inst| inst.op == InstOp::Failed)
    }

    /// Loop iterations that the WGSL functions of its rows may make per element.
    pub fn function_iterations(&self) -> usize {
        let mut known: Vec<(&str, usize)> = Vec::new();
        let of_inst = |inst: &Inst| {
            let (name, text, functions) = match &inst.op {
                InstOp::Unary(row, _) => (row.name, row.wgsl, row.wgsl_fns),
                InstOp::Binary(row, ..) => (row.name, row.wgsl, row.wgsl_fns),
                _ => return 0,
            };
            if let Some((_, iterations)) = known.iter().find(|k| k.0 == name) {
                return *iterations;
            }
            // Functions are named by lane: the longest counts.
            let iterations = Iterations::of_texts(&[WGSL_COMMON, functions]);
            let of_lane = |lane: &str| iterations.of_calls(&text.replace("$t", lane));
            let most = ["f32", "i32", "u32"].map(of_lane).into_iter().max().unwrap_or(0);
            known.push((name, most));
            most
        };
        self.insts.iter().map(of_inst).sum()
    }

    /// Per instruction, how many `Reduce`s one after another it depends on.
    pub fn stages(&self) -> Vec<u16> {
        let mut stages = vec![0u16; self.insts.len()];
        for (i, inst) in self.insts.iter().enumerate() {
            let mut stage = 0;
            inst.op.for_each_reg(|r| {
                let after_reduce = matches!(self.insts[r as usize].op, InstOp::Reduce(..)) as u16;
                stage = stage.max(stages[r as usize] + after_reduce);
            });
            stages[i] = stage;
        }
        stages
    }
}
