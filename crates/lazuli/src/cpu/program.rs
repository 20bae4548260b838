//! A kernel made ready for interpretation: every instruction with its loops for this machine, casts that change no
//! bits and choices that are known taken out. Structure only: sizes and strides come later, so one program serves every batch size.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;

use crate::dtype::{DType, Lane};
use crate::graph::CustomRef;
use crate::kernel::{AttentionKernel, Body, InstOp, Kernel, Reg, RoutineKernel, Scope};
use crate::ops::{BinaryLoop, CombineStep, ReduceLoops, RegisterStep, UnaryLoop, isa};

/// What a kernel compiles to.
pub enum CpuProgram {
    Loop(Arc<Code>),
    /// The epilogue of the product, and the maps that make its operands.
    Matmul(Arc<Code>, [Option<Arc<Code>>; 2]),
    Attention(Box<AttentionCode>),
    Routine(RoutineKernel),
}

/// The bodies of a chained product.
pub struct AttentionCode {
    pub kernel: Arc<AttentionKernel>,
    pub scores: Arc<Code>,
    /// The scores of blocks in which all masks hold.
    pub unmasked: Arc<Code>,
    pub result: Arc<Code>,
    pub rows: Arc<Code>,
}

impl AttentionCode {
    fn new(kernel: &Arc<AttentionKernel>) -> AttentionCode {
        let code = |body: &Body| Arc::new(Code::new(body));
        let mut unmasked = Body::clone(&kernel.scores);
        let holds = |cond: Reg| kernel.masks.iter().any(|mask| mask.cond == Some(cond));
        // A choice whose condition holds is its first value: whoever reads the choice reads that.
        let mut held: Vec<Reg> = (0..unmasked.insts.len() as Reg).collect();
        for (i, inst) in unmasked.insts.iter_mut().enumerate() {
            inst.op = inst.op.with_regs(|reg| held[reg as usize]);
            if let InstOp::Select(cond, then, _) = inst.op
                && holds(cond)
            {
                held[i] = then;
            }
        }
        unmasked.stores.iter_mut().for_each(|store| store.value = held[store.value as usize]);
        AttentionCode {
            scores: code(&kernel.scores),
            unmasked: code(&unmasked),
            result: code(&kernel.result),
            rows: code(&kernel.rows),
            kernel: kernel.clone(),
        }
    }
}

/// The instructions of a body, by register.
pub struct Code {
    pub body: Body,
    pub insts: Vec<CodeInst>,
    /// Per instruction, how many reductions one after another it depends on.
    pub stages: Vec<u16>,
    /// Per register the one that holds its bits: another one where a cast changes nothing.
    pub alias: Vec<Reg>,
    /// What schedules of other sizes derived from it.
    pub derived: Derived,
}

/// Values that were derived from a program and a few facts about sizes, which are mostly the same for other sizes. Whoever
/// schedules launches knows of which type they are.
#[derive(Default)]
pub struct Derived(Mutex<Vec<(DerivedFacts, Arc<dyn Any + Send + Sync>)>>);

/// The facts that a derived value depends on.
pub type DerivedFacts = SmallVec<[bool; 64]>;

/// As many values are kept of a program: the oldest goes.
const MAX_DERIVED: usize = 4;

impl Derived {
    /// The value for these facts, made if it is not known.
    pub fn get<T: Any + Send + Sync>(&self, facts: DerivedFacts, make: impl FnOnce() -> T) -> Arc<T> {
        // A panic while the lock is held cannot leave the list half-changed, so a poisoned one is still good.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(of, value)| *of == facts && value.is::<T>());
        if let Some(value) = found.and_then(|(_, value)| value.clone().downcast().ok()) {
            return value;
        }
        let value = Arc::new(make());
        if known.len() == MAX_DERIVED {
            known.remove(0);
        }
        known.push((facts, value.clone()));
        value
    }
}

/// An instruction with its loops. Registers are already those that hold the bits.
pub enum CodeInst {
    Load {
        input: u16,
        access: u16,
    },
    /// A load with one value, a constant, wherever the access has no element: a pad in one step.
    Padded {
        input: u16,
        access: u16,
        fill: Reg,
    },
    Valid {
        access: u16,
    },
    Index {
        access: u16,
    },
    Gather {
        input: u16,
        access: u16,
        index: Reg,
        gather: u16,
        signed: bool,
    },
    Const(u16),
    Acc(u8),
    /// True: where nothing has failed, another program runs.
    Failed,
    Unary {
        apply: UnaryLoop,
        x: Reg,
        step: Option<RegisterStep>,
    },
    Binary {
        apply: BinaryLoop,
        x: Reg,
        y: Reg,
        step: Option<RegisterStep>,
    },
    Select {
        cond: Reg,
        a: Reg,
        b: Reg,
    },
    Cast {
        x: Reg,
        from: DType,
        to: DType,
    },
    Custom {
        op: CustomRef,
        args: Vec<Reg>,
    },
    /// `step` where floats are combined.
    Reduce {
        apply: ReduceLoops,
        x: Reg,
        step: Option<CombineStep>,
    },
    /// Another name for an earlier register.
    Alias,
}

impl CpuProgram {
    /// Compiles a kernel.
    pub fn new(kernel: &Kernel) -> CpuProgram {
        match kernel {
            Kernel::Loop(body) => CpuProgram::Loop(Arc::new(Code::new(body))),
            Kernel::Matmul(body) => {
                let code = |body: &Body| Arc::new(Code::new(body));
                CpuProgram::Matmul(code(body), body.made.each_ref().map(|made| made.as_deref().map(code)))
            }
            Kernel::Attention(kernel) => CpuProgram::Attention(Box::new(AttentionCode::new(kernel))),
            Kernel::Routine(routine) => CpuProgram::Routine(routine.clone()),
            Kernel::Grouped(_) => unreachable!("its parts have programs"),
        }
    }

    /// About how many bytes it occupies.
    pub fn size_bytes(&self) -> usize {
        let code = |code: &Code| {
            let args = |inst: &CodeInst| if let CodeInst::Custom { args, .. } = inst { args.capacity() * 4 } else { 0 };
            size_of::<Code>()
                + code.body.size_bytes()
                + code.insts.capacity() * size_of::<CodeInst>()
                + code.insts.iter().map(args).sum::<usize>()
                + code.stages.capacity() * size_of::<u16>()
                + code.alias.capacity() * size_of::<Reg>()
        };
        size_of::<CpuProgram>()
            + match self {
                CpuProgram::Loop(body) => code(body),
                CpuProgram::Matmul(body, made) => {
                    code(body) + made.iter().flatten().map(|made| code(made)).sum::<usize>()
                }
                CpuProgram::Attention(all) => {
                    let codes = [&all.scores, &all.unmasked, &all.result, &all.rows];
                    size_of::<AttentionCode>() + codes.map(|c| code(c)).iter().sum::<usize>()
                }
                CpuProgram::Routine(routine) => routine.inputs.capacity() + routine.outputs.capacity(),
            }
    }
}

impl Code {
    /// Of a body.
    pub fn new(body: &Body) -> Code {
        let (insts, alias, derived) = Default::default();
        let mut code = Code { body: body.clone(), insts, stages: body.stages(), alias, derived };
        for (i, inst) in body.insts.iter().enumerate() {
            let compiled = code.compile(&inst.op, inst.dtype);
            let holder = match (&compiled, &inst.op) {
                (CodeInst::Alias, InstOp::Cast(x) | InstOp::Select(_, _, x)) => code.alias[*x as usize],
                _ => i as Reg,
            };
            code.alias.push(holder);
            code.insts.push(compiled);
        }
        code
    }

    fn compile(&self, op: &InstOp, dtype: DType) -> CodeInst {
        let at = |r: &Reg| self.alias[*r as usize];
        let dtype_of = |r: &Reg| self.body.insts[*r as usize].dtype;
        let lane_of = |r: &Reg| dtype_of(r).lane();
        let isa = isa() as usize;
        let absent = |name: &str, lane: Lane| -> ! { unreachable!("bug in the planner: {name} of {lane:?} lanes") };
        match op {
            InstOp::Load { input, access } => CodeInst::Load { input: *input, access: *access },
            InstOp::Valid { access } => CodeInst::Valid { access: *access },
            InstOp::Index { access } => CodeInst::Index { access: *access },
            InstOp::Gather { input, access, index, gather } => {
                let signed = lane_of(index) == Lane::I32;
                CodeInst::Gather { input: *input, access: *access, index: at(index), gather: *gather, signed }
            }
            InstOp::Const(idx) => CodeInst::Const(*idx),
            InstOp::Acc(number) => CodeInst::Acc(*number),
            InstOp::Unary(row, x) => {
                let loops = row.cpu.get(lane_of(x)).unwrap_or_else(|| absent(row.name, lane_of(x)));
                let step = row.step.filter(|_| lane_of(x) == Lane::F32);
                CodeInst::Unary { apply: loops[isa], x: at(x), step }
            }
            InstOp::Binary(row, x, y) => {
                let loops = row.cpu.get(lane_of(x)).unwrap_or_else(|| absent(row.name, lane_of(x)));
                let step = row.step.filter(|_| lane_of(x) == Lane::F32);
                CodeInst::Binary { apply: loops[isa], x: at(x), y: at(y), step }
            }
            InstOp::Failed => CodeInst::Failed,
            // A launch that commits is run as it stands only if nothing has failed.
            InstOp::Select(cond, old, new) if old != new && self.body.insts[*cond as usize].op == InstOp::Failed => {
                CodeInst::Alias
            }
            InstOp::Select(cond, a, b) if let Some(padded) = self.padded(*cond, *a, *b) => padded,
            InstOp::Select(cond, a, b) => CodeInst::Select { cond: at(cond), a: at(a), b: at(b) },
            InstOp::Cast(x) if super::convert::cast_is_free(dtype_of(x), dtype) => CodeInst::Alias,
            InstOp::Cast(x) => CodeInst::Cast { x: at(x), from: dtype_of(x), to: dtype },
            InstOp::Custom(op, args) => CodeInst::Custom { op: op.clone(), args: args.iter().map(at).collect() },
            InstOp::Reduce(row, x) => {
                let loops = row.cpu.get(lane_of(x)).or(row.cpu.get(dtype.lane()));
                let loops = loops.unwrap_or_else(|| absent(row.name, lane_of(x)));
                let step = row.step.filter(|_| lane_of(x) == Lane::F32);
                CodeInst::Reduce { apply: loops[isa], x: at(x), step }
            }
        }
    }

    /// select(valid, x, constant) of a load `x` of the same access.
    fn padded(&self, cond: Reg, x: Reg, fill: Reg) -> Option<CodeInst> {
        let op = |reg: Reg| &self.body.insts[reg as usize].op;
        match (op(cond), op(x), op(fill)) {
            (InstOp::Valid { access: valid }, InstOp::Load { input, access }, InstOp::Const(_)) if valid == access => {
                Some(CodeInst::Padded { input: *input, access: *access, fill })
            }
            _ => None,
        }
    }

    /// Where the value of a register varies.
    pub fn scope(&self, reg: Reg) -> Scope {
        self.body.insts[reg as usize].scope
    }

    /// Calls `f` with each register an instruction reads.
    pub fn for_each_operand(&self, reg: Reg, mut f: impl FnMut(Reg)) {
        match &self.insts[reg as usize] {
            CodeInst::Load { .. } | CodeInst::Valid { .. } | CodeInst::Index { .. } => {}
            CodeInst::Const(_) | CodeInst::Acc(_) | CodeInst::Failed | CodeInst::Alias => {}
            CodeInst::Gather { index, .. } => f(*index),
            CodeInst::Padded { fill, .. } => f(*fill),
            CodeInst::Unary { x, .. } | CodeInst::Cast { x, .. } | CodeInst::Reduce { x, .. } => f(*x),
            CodeInst::Binary { x, y, .. } => [*x, *y].into_iter().for_each(f),
            CodeInst::Select { cond, a, b } => [*cond, *a, *b].into_iter().for_each(f),
            CodeInst::Custom { args, .. } => args.iter().copied().for_each(f),
        }
    }
}
