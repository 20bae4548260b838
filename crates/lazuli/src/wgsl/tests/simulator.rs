//! A GPU for tests: runs a pass on words in memory, without a driver. It interprets what naga's front end makes of the
//! text, which is what wgpu hands to drivers, so that the printer, library functions and rows' own texts are run, too.
//!
//! All invocations of a workgroup go through the statements together, each under a mask (as hardware does it), so that a
//! barrier only has to be met by all of them. What a driver would let pass is a failure here: an index beyond the end,
//! memory that is read before anyone wrote it, a barrier that some invocations miss, more loop iterations than the pass
//! announces, and data races: two invocations that touch one word without a barrier between, one of them writing. Only an
//! invocation that stores nothing may read what another writes: those beyond the end do the last element again.

use std::collections::BTreeSet;

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    AddressSpace, ArraySize, AtomicFunction, BinaryOperator, Block, CollectiveOperation, Expression, Function,
    GatherMode, GlobalVariable, Handle, Literal, LocalVariable, MathFunction, Module, Scalar, ScalarKind, Statement,
    SubgroupOperation, SwitchValue, TypeInner, UnaryOperator,
};
use smallvec::{SmallVec, smallvec};

use crate::wgsl::Pass;

/// A piece of memory: its words, which bits of each were ever written, and who touched it in this dispatch.
#[derive(Clone, Default)]
pub struct Piece {
    pub words: Vec<u32>,
    pub known: Vec<u32>,
    touched: Vec<Touched>,
}

impl Piece {
    /// Memory that nobody wrote.
    pub fn unknown(n_words: usize) -> Piece {
        Piece { words: vec![0xdead_beef; n_words], known: vec![0; n_words], touched: Vec::new() }
    }

    /// Memory that holds these words.
    pub fn of(words: Vec<u32>) -> Piece {
        Piece { known: vec![u32::MAX; words.len()], words, touched: Vec::new() }
    }

    fn forget_who_touched(&mut self) {
        self.touched = vec![Touched::default(); self.words.len()];
    }
}

/// Who touched a word since the last barrier.
#[derive(Clone, Default)]
struct Touched {
    phase: u32,
    writer: Option<u32>,
    readers: SmallVec<[u32; 2]>,
}

/// The words of a value. Truth is 1.
type Words = SmallVec<[u32; 4]>;

/// A value for every invocation; or a pointer: into which variable, and the first word.
#[derive(Clone)]
enum Lanes {
    Values(Vec<Words>),
    Pointers(Root, Vec<u32>),
}

/// What a pointer points into.
#[derive(Clone, Copy, PartialEq)]
enum Root {
    Global(Handle<GlobalVariable>),
    Local(Handle<LocalVariable>),
}

/// Per invocation, whether it takes part.
type Mask = Vec<bool>;

/// Invocations that leave a loop, or its current iteration.
struct Leaving {
    breaks: Mask,
    continues: Mask,
}

/// A call of a function, by all invocations of a mask.
struct Frame<'m> {
    function: &'m Function,
    info: &'m FunctionInfo,
    arguments: Vec<Lanes>,
    values: Vec<Option<Lanes>>,
    locals: Vec<Vec<Words>>,
    results: Vec<Words>,
}

/// One dispatch.
pub struct Simulator<'m> {
    module: &'m Module,
    info: &'m ModuleInfo,
    label: &'m str,
    /// The pieces of storage memory; per binding, which of them, its first word and how many.
    pieces: &'m mut [Piece],
    bindings: Vec<(usize, usize, usize)>,
    uniform: Vec<u32>,
    shared: Vec<Option<Piece>>,
    n_lanes: usize,
    subgroup: usize,
    group: usize,
    /// Barriers so far.
    phase: u32,
    iterations: Vec<usize>,
    /// Invocations that have read what another writes, and those that have stored something.
    raced: BTreeSet<u32>,
    stored: BTreeSet<u32>,
    reads: Vec<StorageRead>,
}

/// A load from storage memory that is never written: the name of its binding, how many words each invocation reads, and of
/// those that do, the first word.
pub struct StorageRead {
    pub name: String,
    pub n_words: usize,
    pub at: Vec<u32>,
}

/// Runs a pass whose bindings are these parts of `pieces`. The dispatch is a box of two rows, a little larger than need be.
pub fn run(pass: &Pass, constants: &[u32], bindings: &[(usize, usize, usize)], pieces: &mut [Piece], subgroup: usize) {
    let n_groups = 2 * pass.n_groups.div_ceil(2);
    run_groups(pass, constants, bindings, pieces, subgroup, 0..n_groups);
}

/// Runs some workgroups of it. Gives what they read, in order.
pub fn run_groups(
    pass: &Pass,
    constants: &[u32],
    bindings: &[(usize, usize, usize)],
    pieces: &mut [Piece],
    subgroup: usize,
    groups: std::ops::Range<usize>,
) -> Vec<StorageRead> {
    let module =
        naga::front::wgsl::parse_str(&pass.text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(&pass.text)));
    let capabilities = naga::valid::Capabilities::default() | naga::valid::Capabilities::SUBGROUP;
    let info = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}", e.emit_to_string(&pass.text)));
    let entry = &module.entry_points[0];
    let n_lanes = entry.workgroup_size[0] as usize;
    pieces.iter_mut().for_each(Piece::forget_who_touched);
    let mut simulator = Simulator {
        module: &module,
        info: &info,
        label: &pass.label,
        pieces,
        bindings: bindings.to_vec(),
        uniform: pass.consts.iter().map(|c| constants[*c as usize]).chain(pass.params.iter().copied()).collect(),
        shared: Vec::new(),
        n_lanes,
        subgroup,
        group: 0,
        phase: 0,
        iterations: vec![0; n_lanes],
        raced: BTreeSet::new(),
        stored: BTreeSet::new(),
        reads: Vec::new(),
    };
    let n_groups = [pass.n_groups.div_ceil(2) as u32, 2, 1];
    for group in groups {
        simulator.run_group(group, n_groups);
        let most = simulator.iterations.iter().max().copied().unwrap_or(0);
        assert!(most <= pass.iterations, "{}: {most} loop iterations, {} announced", pass.label, pass.iterations);
    }
    let raced: Vec<&u32> = simulator.raced.intersection(&simulator.stored).collect();
    assert!(raced.is_empty(), "{}: invocations {raced:?} store after they have read what others write", pass.label);
    simulator.reads
}

impl<'m> Simulator<'m> {
    fn run_group(&mut self, group: usize, n_groups: [u32; 3]) {
        let entry = &self.module.entry_points[0];
        let id = [group as u32 % n_groups[0], group as u32 / n_groups[0], 0];
        let shared = |(_, global): (_, &GlobalVariable)| {
            (global.space == AddressSpace::WorkGroup).then(|| {
                let mut piece = Piece::unknown(self.n_words(global.ty));
                piece.forget_who_touched();
                piece
            })
        };
        self.shared = self.module.global_variables.iter().map(shared).collect();
        self.iterations = vec![0; self.n_lanes];
        self.group = group;
        self.phase += 1;
        let n = self.n_lanes;
        let argument = |argument: &naga::FunctionArgument| {
            let Some(naga::Binding::BuiltIn(builtin)) = argument.binding else { panic!("not a builtin") };
            Lanes::Values(match builtin {
                naga::BuiltIn::WorkGroupId => vec![Words::from_slice(&id); n],
                naga::BuiltIn::NumWorkGroups => vec![Words::from_slice(&n_groups); n],
                naga::BuiltIn::LocalInvocationIndex => (0..n as u32).map(|lane| smallvec![lane]).collect(),
                naga::BuiltIn::SubgroupSize => vec![smallvec![self.subgroup as u32]; n],
                naga::BuiltIn::SubgroupId => (0..n).map(|lane| smallvec![(lane / self.subgroup) as u32]).collect(),
                naga::BuiltIn::SubgroupInvocationId => {
                    (0..n).map(|lane| smallvec![(lane % self.subgroup) as u32]).collect()
                }
                other => panic!("no {other:?} here"),
            })
        };
        let arguments = entry.function.arguments.iter().map(argument).collect();
        self.call(&entry.function, self.info.get_entry_point(0), arguments, &vec![true; n]);
    }

    fn call(
        &mut self,
        function: &'m Function,
        info: &'m FunctionInfo,
        arguments: Vec<Lanes>,
        mask: &Mask,
    ) -> Vec<Words> {
        let mut frame = Frame {
            function,
            info,
            arguments,
            values: vec![None; function.expressions.len()],
            locals: Vec::new(),
            results: vec![Words::new(); self.n_lanes],
        };
        for (_, local) in function.local_variables.iter() {
            let start = match local.init {
                Some(init) => self.values(&mut frame, init, mask),
                None => vec![smallvec![0; self.n_words(local.ty)]; self.n_lanes],
            };
            frame.locals.push(start);
        }
        let none = || vec![false; self.n_lanes];
        let mut leaving = Leaving { breaks: none(), continues: none() };
        self.block(&mut frame, &function.body, &mut mask.clone(), &mut leaving);
        frame.results
    }

    fn block(&mut self, frame: &mut Frame<'m>, block: &'m Block, mask: &mut Mask, leaving: &mut Leaving) {
        for statement in block {
            if mask.contains(&true) {
                self.statement(frame, statement, mask, leaving);
            }
        }
    }

    fn statement(&mut self, frame: &mut Frame<'m>, statement: &'m Statement, mask: &mut Mask, leaving: &mut Leaving) {
        let n = self.n_lanes;
        match statement {
            Statement::Emit(range) => range.clone().for_each(|handle| self.emit(frame, handle, mask)),
            Statement::Block(block) => self.block(frame, block, mask, leaving),
            Statement::If { condition, accept, reject } => {
                let condition = self.values(frame, *condition, mask);
                let mut yes: Mask = (0..n).map(|l| mask[l] && condition[l][0] != 0).collect();
                let mut no: Mask = (0..n).map(|l| mask[l] && condition[l][0] == 0).collect();
                self.block(frame, accept, &mut yes, leaving);
                self.block(frame, reject, &mut no, leaving);
                (0..n).for_each(|l| mask[l] = yes[l] || no[l]);
            }
            Statement::Switch { selector, cases } => {
                let selector = self.values(frame, *selector, mask);
                let mut inner = Leaving { breaks: vec![false; n], continues: vec![false; n] };
                let (mut rest, mut after) = (mask.clone(), vec![false; n]);
                for case in cases {
                    let takes = |l: usize| match case.value {
                        SwitchValue::U32(value) => selector[l][0] == value,
                        SwitchValue::I32(value) => selector[l][0] == value as u32,
                        SwitchValue::Default => true,
                    };
                    let mut here: Mask = (0..n).map(|l| rest[l] && takes(l)).collect();
                    (0..n).for_each(|l| rest[l] &= !here[l]);
                    self.block(frame, &case.body, &mut here, &mut inner);
                    (0..n).for_each(|l| after[l] |= here[l]);
                }
                (0..n).for_each(|l| leaving.continues[l] |= inner.continues[l]);
                (0..n).for_each(|l| mask[l] = after[l] || inner.breaks[l]);
            }
            Statement::Loop { body, continuing, break_if } => {
                let mut done = vec![false; n];
                while mask.contains(&true) {
                    (0..n).filter(|l| mask[*l]).for_each(|l| self.iterations[l] += 1);
                    let mut inner = Leaving { breaks: vec![false; n], continues: vec![false; n] };
                    self.block(frame, body, mask, &mut inner);
                    (0..n).for_each(|l| mask[l] |= inner.continues[l]);
                    self.block(frame, continuing, mask, &mut inner);
                    if let Some(condition) = break_if.filter(|_| mask.contains(&true)) {
                        let condition = self.values(frame, condition, mask);
                        (0..n).filter(|l| mask[*l] && condition[*l][0] != 0).for_each(|l| inner.breaks[l] = true);
                    }
                    (0..n).for_each(|l| mask[l] &= !inner.breaks[l]);
                    (0..n).for_each(|l| done[l] |= inner.breaks[l]);
                }
                *mask = done;
            }
            Statement::Break => (0..n).for_each(|l| leaving.breaks[l] |= std::mem::take(&mut mask[l])),
            Statement::Continue => (0..n).for_each(|l| leaving.continues[l] |= std::mem::take(&mut mask[l])),
            Statement::Return { value } => {
                if let Some(value) = value {
                    let value = self.values(frame, *value, mask);
                    (0..n).filter(|l| mask[*l]).for_each(|l| frame.results[l] = value[l].clone());
                }
                mask.fill(false);
            }
            Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => {
                assert!(!mask.contains(&false), "{}: some invocations miss a barrier", self.label);
                self.phase += 1;
            }
            Statement::Store { pointer, value } => {
                let value = self.values(frame, *value, mask);
                let (root, at) = self.pointers(frame, *pointer, mask);
                let is_atomic = self.is_atomic(frame, *pointer);
                for l in (0..n).filter(|l| mask[*l]) {
                    self.write(frame, root, at[l] as usize, l, &value[l], is_atomic);
                }
            }
            Statement::Atomic { pointer, fun, value, result } => {
                let value = self.values(frame, *value, mask);
                let (root, at) = self.pointers(frame, *pointer, mask);
                let mut old = vec![Words::new(); n];
                for l in (0..n).filter(|l| mask[*l]) {
                    old[l] = smallvec![self.atomic(root, at[l] as usize, *fun, value[l][0], l)];
                }
                if let Some(result) = result {
                    keep(&mut frame.values[result.index()], Lanes::Values(old), mask);
                }
            }
            Statement::Call { function, arguments, result } => {
                let arguments = arguments.iter().map(|a| self.lanes(frame, *a, mask)).collect();
                let called = self.call(&self.module.functions[*function], &self.info[*function], arguments, mask);
                if let Some(result) = result {
                    keep(&mut frame.values[result.index()], Lanes::Values(called), mask);
                }
            }
            Statement::SubgroupGather {
                mode: mode @ (GatherMode::Broadcast(from) | GatherMode::Shuffle(from) | GatherMode::ShuffleXor(from)),
                argument,
                result,
            } => {
                // A subgroup takes part as a whole or not at all.
                let is_whole = mask.chunks(self.subgroup).all(|lanes| lanes.iter().all(|lane| *lane == lanes[0]));
                assert!(is_whole, "{}: some invocations hand nothing over", self.label);
                let (from, value) = (self.values(frame, *from, mask), self.values(frame, *argument, mask));
                let of = |l: usize| {
                    if !mask[l] {
                        return value[l].clone();
                    }
                    let (first, own) = (l / self.subgroup * self.subgroup, l % self.subgroup);
                    let place = match mode {
                        GatherMode::ShuffleXor(_) => own ^ from[l][0] as usize,
                        _ => from[l][0] as usize,
                    };
                    assert!(place < self.subgroup, "{}: {place} is beyond a subgroup", self.label);
                    value[first + place].clone()
                };
                keep(&mut frame.values[result.index()], Lanes::Values((0..n).map(of).collect()), mask);
            }
            Statement::SubgroupCollectiveOperation {
                op,
                collective_op: CollectiveOperation::Reduce,
                argument,
                result,
            } => {
                assert!(!mask.contains(&false), "{}: some invocations miss a reduction", self.label);
                let value = self.values(frame, *argument, mask);
                let both = |x: f32, y: f32| match op {
                    SubgroupOperation::Max => x.max(y),
                    SubgroupOperation::Add => x + y,
                    other => panic!("no {other:?} of a subgroup here"),
                };
                let of = |l: usize| {
                    let first = l / self.subgroup * self.subgroup;
                    let lanes = (first..first + self.subgroup).map(|l| f32::from_bits(value[l][0]));
                    smallvec![lanes.reduce(both).unwrap_or(0.0).to_bits()]
                };
                keep(&mut frame.values[result.index()], Lanes::Values((0..n).map(of).collect()), mask);
            }
            other => panic!("{}: no {other:?} here", self.label),
        }
    }

    fn emit(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>, mask: &Mask) {
        let lanes = self.evaluate(frame, handle, mask);
        keep(&mut frame.values[handle.index()], lanes, mask);
    }

    fn lanes(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>, mask: &Mask) -> Lanes {
        match &frame.values[handle.index()] {
            Some(lanes) => lanes.clone(),
            None => self.evaluate(frame, handle, mask),
        }
    }

    fn values(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>, mask: &Mask) -> Vec<Words> {
        match self.lanes(frame, handle, mask) {
            Lanes::Values(values) => values,
            Lanes::Pointers(..) => panic!("{}: a pointer where a value is wanted", self.label),
        }
    }

    fn pointers(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>, mask: &Mask) -> (Root, Vec<u32>) {
        match self.lanes(frame, handle, mask) {
            Lanes::Pointers(root, at) => (root, at),
            Lanes::Values(_) => panic!("{}: a value where a pointer is wanted", self.label),
        }
    }

    fn inner(&self, frame: &Frame<'m>, handle: Handle<Expression>) -> &'m TypeInner {
        frame.info[handle].ty.inner_with(&self.module.types)
    }

    fn scalar(&self, frame: &Frame<'m>, handle: Handle<Expression>) -> ScalarKind {
        match self.inner(frame, handle) {
            TypeInner::Scalar(Scalar { kind, .. }) | TypeInner::Vector { scalar: Scalar { kind, .. }, .. } => *kind,
            other => panic!("{}: no numbers in {other:?}", self.label),
        }
    }

    fn n_words(&self, ty: Handle<naga::Type>) -> usize {
        self.n_words_of(&self.module.types[ty].inner)
    }

    fn n_words_of(&self, inner: &TypeInner) -> usize {
        match inner {
            TypeInner::Scalar(_) | TypeInner::Atomic(_) => 1,
            TypeInner::Vector { size, .. } => *size as usize,
            TypeInner::Array { base, size: ArraySize::Constant(n), .. } => n.get() as usize * self.n_words(*base),
            TypeInner::Struct { members, .. } => members.iter().map(|m| self.n_words(m.ty)).sum(),
            other => panic!("{}: no size of {other:?}", self.label),
        }
    }

    /// What a pointer points to.
    fn pointee(&self, frame: &Frame<'m>, pointer: Handle<Expression>) -> TypeInner {
        match self.inner(frame, pointer) {
            TypeInner::Pointer { base, .. } => self.module.types[*base].inner.clone(),
            TypeInner::ValuePointer { size: Some(size), scalar, .. } => {
                TypeInner::Vector { size: *size, scalar: *scalar }
            }
            TypeInner::ValuePointer { size: None, scalar, .. } => TypeInner::Scalar(*scalar),
            other => panic!("{}: {other:?} is no pointer", self.label),
        }
    }

    fn is_atomic(&self, frame: &Frame<'m>, pointer: Handle<Expression>) -> bool {
        matches!(self.pointee(frame, pointer), TypeInner::Atomic(_))
    }

    /// Words of an element of a composite, and how many elements it has; None if that is for the binding to say.
    fn elements(&self, inner: &TypeInner) -> (usize, Option<usize>) {
        match inner {
            TypeInner::Vector { size, .. } => (1, Some(*size as usize)),
            TypeInner::Array { base, size: ArraySize::Constant(n), .. } => {
                (self.n_words(*base), Some(n.get() as usize))
            }
            TypeInner::Array { base, .. } => (self.n_words(*base), None),
            other => panic!("{}: no elements in {other:?}", self.label),
        }
    }

    fn evaluate(&mut self, frame: &mut Frame<'m>, handle: Handle<Expression>, mask: &Mask) -> Lanes {
        let n = self.n_lanes;
        let all = |words: Words| Lanes::Values(vec![words; n]);
        let one = |word: u32| all(smallvec![word]);
        let function = frame.function;
        match &function.expressions[handle] {
            Expression::Literal(literal) => one(match literal {
                Literal::F32(x) => x.to_bits(),
                Literal::U32(x) => *x,
                Literal::I32(x) => *x as u32,
                Literal::Bool(x) => *x as u32,
                other => panic!("{}: no {other:?} here", self.label),
            }),
            Expression::ZeroValue(ty) => all(smallvec![0; self.n_words(*ty)]),
            Expression::FunctionArgument(idx) => frame.arguments[*idx as usize].clone(),
            Expression::GlobalVariable(global) => Lanes::Pointers(Root::Global(*global), vec![0; n]),
            Expression::LocalVariable(local) => Lanes::Pointers(Root::Local(*local), vec![0; n]),
            Expression::Compose { components, .. } => {
                let parts: Vec<Vec<Words>> = components.iter().map(|c| self.values(frame, *c, mask)).collect();
                Lanes::Values((0..n).map(|l| parts.iter().flat_map(|part| part[l].iter().copied()).collect()).collect())
            }
            Expression::Splat { size, value } => {
                let value = self.values(frame, *value, mask);
                self.each(mask, |l| smallvec![value[l][0]; *size as usize])
            }
            Expression::Swizzle { size, vector, pattern } => {
                let value = self.values(frame, *vector, mask);
                self.each(mask, |l| pattern[..*size as usize].iter().map(|p| value[l][*p as usize]).collect())
            }
            Expression::Access { base, index } => {
                let index = self.values(frame, *index, mask);
                self.access(frame, *base, mask, &|l| index[l][0])
            }
            Expression::AccessIndex { base, index } => self.access(frame, *base, mask, &|_| *index),
            Expression::Load { pointer } => {
                let (root, at) = self.pointers(frame, *pointer, mask);
                let n_words = self.n_words_of(&self.pointee(frame, *pointer));
                let is_atomic = self.is_atomic(frame, *pointer);
                let mut values = vec![Words::new(); n];
                self.note_read(root, n_words, (0..n).filter(|l| mask[*l]).map(|l| at[l]));
                for l in (0..n).filter(|l| mask[*l]) {
                    values[l] = self.read(frame, root, at[l] as usize, l, n_words, is_atomic);
                }
                Lanes::Values(values)
            }
            Expression::Unary { op, expr } => {
                let (kind, x) = (self.scalar(frame, *expr), self.values(frame, *expr, mask));
                self.each(mask, |l| x[l].iter().map(|x| unary(*op, kind, *x)).collect())
            }
            Expression::Binary { op, left, right } => {
                let kind = self.scalar(frame, *left);
                let (x, y) = (self.values(frame, *left, mask), self.values(frame, *right, mask));
                let at = |words: &Words, k: usize| words[k.min(words.len() - 1)];
                self.each(mask, |l| {
                    let n = x[l].len().max(y[l].len());
                    (0..n).map(|k| binary(*op, kind, at(&x[l], k), at(&y[l], k))).collect()
                })
            }
            Expression::Select { condition, accept, reject } => {
                let condition = self.values(frame, *condition, mask);
                let (yes, no) = (self.values(frame, *accept, mask), self.values(frame, *reject, mask));
                self.each(mask, |l| {
                    let holds = |k: usize| condition[l][k.min(condition[l].len() - 1)] != 0;
                    (0..yes[l].len()).map(|k| if holds(k) { yes[l][k] } else { no[l][k] }).collect()
                })
            }
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                let kind = self.scalar(frame, *arg);
                let arguments: Vec<Vec<Words>> =
                    [Some(*arg), *arg1, *arg2].into_iter().flatten().map(|a| self.values(frame, a, mask)).collect();
                self.each(mask, |l| {
                    let of = |k: usize| arguments.iter().map(|a| a[l][k.min(a[l].len() - 1)]).collect::<Vec<u32>>();
                    (0..arguments[0][l].len()).map(|k| math(*fun, kind, &of(k))).collect()
                })
            }
            Expression::As { expr, kind, convert } => {
                let (from, x) = (self.scalar(frame, *expr), self.values(frame, *expr, mask));
                self.each(mask, |l| match convert {
                    Some(_) => x[l].iter().map(|x| converted(from, *kind, *x)).collect(),
                    None => x[l].clone(),
                })
            }
            other => panic!("{}: no {other:?} here", self.label),
        }
    }

    fn each(&self, mask: &Mask, f: impl Fn(usize) -> Words) -> Lanes {
        Lanes::Values((0..self.n_lanes).map(|l| if mask[l] { f(l) } else { Words::new() }).collect())
    }

    /// An element of a composite: a pointer to it, or its value.
    fn access(
        &mut self,
        frame: &mut Frame<'m>,
        base: Handle<Expression>,
        mask: &Mask,
        index: &dyn Fn(usize) -> u32,
    ) -> Lanes {
        let lanes = self.lanes(frame, base, mask);
        let inner = match lanes {
            Lanes::Pointers(..) => self.pointee(frame, base),
            Lanes::Values(_) => self.inner(frame, base).clone(),
        };
        let n_bound = match &lanes {
            Lanes::Pointers(Root::Global(global), _) => self.bound(*global).map_or(usize::MAX, |bound| bound.2),
            _ => usize::MAX,
        };
        // Every member of our one struct is a word.
        let (size, n) = if let TypeInner::Struct { .. } = inner { (1, None) } else { self.elements(&inner) };
        let n = n.unwrap_or(n_bound / size);
        let checked = |l: usize| {
            let index = index(l) as usize;
            assert!(index < n, "{}: index {index} of {n} elements, by invocation {l} of {}", self.label, self.group);
            index * size
        };
        match lanes {
            Lanes::Pointers(root, at) => {
                let at = (0..self.n_lanes).map(|l| if mask[l] { at[l] + checked(l) as u32 } else { 0 }).collect();
                Lanes::Pointers(root, at)
            }
            Lanes::Values(values) => self.each(mask, |l| Words::from_slice(&values[l][checked(l)..][..size])),
        }
    }

    /// What a storage variable is bound to.
    fn bound(&self, global: Handle<GlobalVariable>) -> Option<(usize, usize, usize)> {
        let global = &self.module.global_variables[global];
        let binding = global.binding.as_ref().filter(|b| b.binding > 0)?;
        Some(self.bindings[binding.binding as usize - 1])
    }

    /// The piece of memory and the word of it that a pointer names.
    fn piece(&mut self, global: Handle<GlobalVariable>, at: usize) -> (&mut Piece, usize) {
        match self.bound(global) {
            Some((piece, start, _)) => (&mut self.pieces[piece], start + at),
            None => (self.shared[global.index()].as_mut().expect("memory of the workgroup"), at),
        }
    }

    /// Notes that an invocation touches a word, and refuses races.
    fn touch(&mut self, global: Handle<GlobalVariable>, at: usize, lane: usize, writes: bool) {
        let invocation = (self.group * self.n_lanes + lane) as u32;
        let is_shared = self.bound(global).is_none();
        // A workgroup's barrier puts no order to what is done in other memory.
        let phase = if is_shared { self.phase } else { 0 };
        let (label, name) = (self.label, self.module.global_variables[global].name.clone().unwrap_or_default());
        let (piece, word) = self.piece(global, at);
        let touched = &mut piece.touched[word];
        if touched.phase != phase {
            *touched = Touched { phase, ..Touched::default() };
        }
        let mut raced: SmallVec<[u32; 2]> = SmallVec::new();
        let other = touched.writer.filter(|writer| *writer != invocation);
        if writes {
            assert!(other.is_none(), "{label}: two invocations write word {word} of {name}");
            touched.writer = Some(invocation);
            raced.extend(touched.readers.iter().copied().filter(|reader| *reader != invocation));
        } else {
            raced.extend(other.map(|_| invocation));
            if touched.readers.last() != Some(&invocation) {
                touched.readers.push(invocation);
            }
        }
        assert!(!is_shared || raced.is_empty(), "{label}: invocations race for word {word} of {name}");
        self.raced.extend(raced);
    }

    /// Notes a load, if it is from memory that is only read.
    fn note_read(&mut self, root: Root, n_words: usize, at: impl Iterator<Item = u32>) {
        let Root::Global(global) = root else { return };
        let variable = &self.module.global_variables[global];
        let AddressSpace::Storage { access } = variable.space else { return };
        if !access.contains(naga::StorageAccess::STORE) {
            let name = variable.name.clone().unwrap_or_default();
            self.reads.push(StorageRead { name, n_words, at: at.collect() });
        }
    }

    fn read(&mut self, frame: &Frame<'m>, root: Root, at: usize, lane: usize, n: usize, is_atomic: bool) -> Words {
        let global = match root {
            Root::Local(local) => return Words::from_slice(&frame.locals[local.index()][lane][at..at + n]),
            Root::Global(global) => global,
        };
        if self.module.global_variables[global].space == AddressSpace::Uniform {
            return Words::from_slice(&self.uniform[at..at + n]);
        }
        let is_read_only = match self.module.global_variables[global].space {
            AddressSpace::Storage { access } => !access.contains(naga::StorageAccess::STORE),
            _ => false,
        };
        for word in (at..at + n).filter(|_| !is_atomic && !is_read_only) {
            self.touch(global, word, lane, false);
        }
        let (label, name) = (self.label, self.module.global_variables[global].name.clone().unwrap_or_default());
        let (piece, at) = self.piece(global, at);
        let is_known = is_atomic || piece.known[at..at + n].iter().all(|known| *known == u32::MAX);
        assert!(is_known, "{label}: word {at} of {name} is read before it is written");
        Words::from_slice(&piece.words[at..at + n])
    }

    fn write(&mut self, frame: &mut Frame<'m>, root: Root, at: usize, lane: usize, value: &Words, is_atomic: bool) {
        let global = match root {
            Root::Local(local) => {
                return frame.locals[local.index()][lane][at..at + value.len()].copy_from_slice(value);
            }
            Root::Global(global) => global,
        };
        for word in (at..at + value.len()).filter(|_| !is_atomic) {
            self.touch(global, word, lane, true);
        }
        self.note_store(global, lane);
        let (piece, at) = self.piece(global, at);
        piece.words[at..at + value.len()].copy_from_slice(value);
        piece.known[at..at + value.len()].fill(u32::MAX);
    }

    fn note_store(&mut self, global: Handle<GlobalVariable>, lane: usize) {
        if self.bound(global).is_some() {
            self.stored.insert((self.group * self.n_lanes + lane) as u32);
        }
    }

    fn atomic(&mut self, root: Root, at: usize, function: AtomicFunction, value: u32, lane: usize) -> u32 {
        let Root::Global(global) = root else { panic!("{}: an atomic variable of one invocation", self.label) };
        self.note_store(global, lane);
        let (piece, at) = self.piece(global, at);
        let (word, known) = (&mut piece.words[at], &mut piece.known[at]);
        let old = *word;
        match function {
            AtomicFunction::Add => *word = old.wrapping_add(value),
            AtomicFunction::Min => *word = old.min(value),
            AtomicFunction::Max => *word = old.max(value),
            // What is cleared, or set, is known from then on.
            AtomicFunction::And => (*word, *known) = (old & value, *known | !value),
            AtomicFunction::InclusiveOr => (*word, *known) = (old | value, *known | value),
            other => panic!("no {other:?} here"),
        }
        old
    }
}

/// Keeps what invocations of a mask have evaluated; the others keep what they had.
fn keep(slot: &mut Option<Lanes>, lanes: Lanes, mask: &Mask) {
    match (&mut *slot, lanes) {
        (Some(Lanes::Values(old)), Lanes::Values(new)) => {
            new.into_iter().enumerate().filter(|(l, _)| mask[*l]).for_each(|(l, words)| old[l] = words);
        }
        (Some(Lanes::Pointers(root, old)), Lanes::Pointers(of, new)) if *root == of => {
            new.into_iter().enumerate().filter(|(l, _)| mask[*l]).for_each(|(l, at)| old[l] = at);
        }
        (slot, lanes) => *slot = Some(lanes),
    }
}

fn unary(op: UnaryOperator, kind: ScalarKind, x: u32) -> u32 {
    match (op, kind) {
        (UnaryOperator::Negate, ScalarKind::Float) => (-f32::from_bits(x)).to_bits(),
        (UnaryOperator::Negate, _) => x.wrapping_neg(),
        (UnaryOperator::LogicalNot, _) => (x == 0) as u32,
        (UnaryOperator::BitwiseNot, _) => !x,
    }
}

fn binary(op: BinaryOperator, kind: ScalarKind, x: u32, y: u32) -> u32 {
    use BinaryOperator::*;
    let (fx, fy, ix, iy) = (f32::from_bits(x), f32::from_bits(y), x as i32, y as i32);
    let is_float = kind == ScalarKind::Float;
    let compared = match kind {
        ScalarKind::Float => fx.partial_cmp(&fy),
        ScalarKind::Sint => Some(ix.cmp(&iy)),
        _ => Some(x.cmp(&y)),
    };
    match op {
        Add if is_float => (fx + fy).to_bits(),
        Subtract if is_float => (fx - fy).to_bits(),
        Multiply if is_float => (fx * fy).to_bits(),
        Divide if is_float => (fx / fy).to_bits(),
        Modulo if is_float => (fx % fy).to_bits(),
        Add => x.wrapping_add(y),
        Subtract => x.wrapping_sub(y),
        Multiply => x.wrapping_mul(y),
        // A division by zero gives its operand, and so does one that overflows.
        Divide if y == 0 => x,
        Modulo if y == 0 => 0,
        Divide if kind == ScalarKind::Sint => ix.wrapping_div(iy) as u32,
        Modulo if kind == ScalarKind::Sint => ix.wrapping_rem(iy) as u32,
        Divide => x / y,
        Modulo => x % y,
        Equal => compared.is_some_and(|c| c.is_eq()) as u32,
        NotEqual => !compared.is_some_and(|c| c.is_eq()) as u32,
        Less => compared.is_some_and(|c| c.is_lt()) as u32,
        LessEqual => compared.is_some_and(|c| c.is_le()) as u32,
        Greater => compared.is_some_and(|c| c.is_gt()) as u32,
        GreaterEqual => compared.is_some_and(|c| c.is_ge()) as u32,
        And | LogicalAnd => x & y,
        ExclusiveOr => x ^ y,
        InclusiveOr | LogicalOr => x | y,
        ShiftLeft => x << (y % 32),
        ShiftRight if kind == ScalarKind::Sint => (ix >> (y % 32)) as u32,
        ShiftRight => x >> (y % 32),
    }
}

fn math(function: MathFunction, kind: ScalarKind, x: &[u32]) -> u32 {
    use MathFunction::*;
    let f = |k: usize| f32::from_bits(x[k]);
    let i = |k: usize| x[k] as i32;
    match (function, kind) {
        (Abs, ScalarKind::Float) => f(0).abs().to_bits(),
        (Min, ScalarKind::Float) => f(0).min(f(1)).to_bits(),
        (Max, ScalarKind::Float) => f(0).max(f(1)).to_bits(),
        (Clamp, ScalarKind::Float) => f(0).max(f(1)).min(f(2)).to_bits(),
        (Floor, _) => f(0).floor().to_bits(),
        (Ceil, _) => f(0).ceil().to_bits(),
        (Trunc, _) => f(0).trunc().to_bits(),
        (Round, _) => f(0).round_ties_even().to_bits(),
        (Sqrt, _) => f(0).sqrt().to_bits(),
        (Fma, _) => f(0).mul_add(f(1), f(2)).to_bits(),
        (Mix, _) => (f(0) * (1.0 - f(2)) + f(1) * f(2)).to_bits(),
        (Sign, ScalarKind::Sint) => i(0).signum() as u32,
        (Sign, ScalarKind::Float) if f(0) == 0.0 => 0,
        (Sign, ScalarKind::Float) => f(0).signum().to_bits(),
        (Abs, ScalarKind::Sint) => i(0).wrapping_abs() as u32,
        (Min, ScalarKind::Sint) => i(0).min(i(1)) as u32,
        (Max, ScalarKind::Sint) => i(0).max(i(1)) as u32,
        (Clamp, ScalarKind::Sint) => i(0).max(i(1)).min(i(2)) as u32,
        (Abs, _) => x[0],
        (Min, _) => x[0].min(x[1]),
        (Max, _) => x[0].max(x[1]),
        (Clamp, _) => x[0].max(x[1]).min(x[2]),
        (CountLeadingZeros, _) => x[0].leading_zeros(),
        (CountTrailingZeros, _) => x[0].trailing_zeros(),
        (CountOneBits, _) => x[0].count_ones(),
        (ReverseBits, _) => x[0].reverse_bits(),
        (FirstLeadingBit, ScalarKind::Uint) => 31u32.wrapping_sub(x[0].leading_zeros()),
        other => panic!("no {other:?} here"),
    }
}

fn converted(from: ScalarKind, to: ScalarKind, x: u32) -> u32 {
    match (from, to) {
        (ScalarKind::Float, ScalarKind::Uint) => f32::from_bits(x) as u32,
        (ScalarKind::Float, ScalarKind::Sint) => f32::from_bits(x) as i32 as u32,
        (ScalarKind::Float, ScalarKind::Bool) => (f32::from_bits(x) != 0.0) as u32,
        (ScalarKind::Sint, ScalarKind::Float) => (x as i32 as f32).to_bits(),
        (ScalarKind::Uint, ScalarKind::Float) => (x as f32).to_bits(),
        (ScalarKind::Bool, ScalarKind::Float) => (x as f32).to_bits(),
        (_, ScalarKind::Bool) => (x != 0) as u32,
        _ => x,
    }
}
