//! Builds the instructions of one kernel by walking from what leaves it back to memory, carrying along how the
//! kernel's index space meets the elements of each node. Purely mechanical.

mod finish;
mod recorded;

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};

use super::ValueId;
use super::lower::Lowering;
use super::maps::scope_of;
use crate::blocks::Storage;
use crate::dtype::DType;
use crate::fast_hash::{FastMap, hash_of};
use crate::graph::{Graph, GraphNode, NodeIdx, Op};
use crate::kernel::{GatherArgs, Inst, InstOp, Reg, Scope};
use crate::shape::MAX_RANK;
use crate::view::{IndexMap, View};

pub use finish::BuiltKernel;
use recorded::{BodyQuestion, BodyRecording};
pub use recorded::{Differs, GroupRecording, RecordedGroup};

type MapId = u32;

/// What a node is computed from, and through which map each is seen.
type SeenInputs = SmallVec<[(NodeIdx, MapId); 3]>;

/// Room for what most kernels have, so that lists do not grow while they are filled.
const ROOM: usize = 16;

/// Identifies an access: its index map by number, the scope in which the access varies, and its run-time offset.
#[derive(Clone, Copy, PartialEq)]
struct Access {
    map: MapId,
    scope: Scope,
    moved: Option<MovedBy>,
}

/// A position that is a number of the evaluation: this constant of the plan, from one to the next, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MovedBy {
    pub constant: u32,
    pub stride: isize,
    pub n_positions: usize,
}

/// An input of the kernel. One value seen from two positions is two inputs, so that all of an input is moved alike.
#[derive(Clone, Copy, PartialEq)]
struct BoundInput {
    value: ValueId,
    storage: Storage,
    moved: Option<MovedBy>,
}

/// The inputs of a kernel: most have few.
type BoundInputs = SmallVec<[BoundInput; 6]>;

/// A result leaving the kernel.
struct BodyStore {
    reg: Reg,
    value: ValueId,
    dtype: DType,
    access: u16,
    /// What the value is where this does not write, if it does not write all of it.
    base: Option<ValueId>,
}

/// A kernel in the making.
pub struct BodyBuilder {
    group: u32,
    /// Sizes of the index space: outer axes, then inner.
    dims: SmallVec<[usize; MAX_RANK]>,
    n_outer: usize,
    /// For a reduction: how the index space meets what is reduced, and the result.
    rows: Option<(View, View)>,
    lists: Box<BodyLists>,
    /// Copies of the maps of all accesses, in which axes are merged; empty until the last access is made.
    access_maps: Vec<IndexMap>,
    inputs: BoundInputs,
    gathers: Vec<GatherArgs>,
    consts: Vec<u32>,
    failed: Option<Reg>,
    may_fail: Vec<NodeIdx>,
    first: bool,
    ops: Vec<Cow<'static, str>>,
    /// What is asked of numbers while it is built.
    recording: BodyRecording,
}

/// The lists of a kernel in the making that do not outlive it. The next kernel takes their memory over.
#[derive(Default)]
pub struct BodyLists {
    maps: Vec<IndexMap>,
    /// The hash of each map: a kernel has few, and looking through a list of words is faster than a table.
    map_hashes: Vec<u64>,
    known: KnownRegs,
    stack: Vec<(NodeIdx, MapId, Option<SeenInputs>)>,
    insts: Vec<Inst>,
    loads: Vec<((ValueId, u16), Reg)>,
    accesses: Vec<Access>,
    stores: Vec<BodyStore>,
    /// The constants that the body uses, each as its index in the plan's list and its dtype; and the register of each.
    const_ids: Vec<(u32, DType)>,
    const_regs: Vec<Reg>,
}

/// Which register holds a node seen through a map. Most nodes are seen through one map: that one is found by the node's
/// number, others in a table.
#[derive(Default)]
struct KnownRegs {
    /// The kernel that is being made: what others have left is not known.
    kernel: u32,
    /// Per node: the kernel, the map and the register.
    first: Vec<(u32, MapId, Reg)>,
    others: FastMap<(NodeIdx, MapId), Reg>,
}

impl KnownRegs {
    fn get(&self, idx: NodeIdx, map: MapId) -> Option<Reg> {
        match self.first.get(idx as usize) {
            Some((kernel, known, reg)) if *kernel == self.kernel => match *known == map {
                true => Some(*reg),
                false => self.others.get(&(idx, map)).copied(),
            },
            _ => None,
        }
    }

    fn insert(&mut self, idx: NodeIdx, map: MapId, reg: Reg) {
        if self.first.len() <= idx as usize {
            self.first.resize(idx as usize + ROOM, (0, 0, 0));
        }
        let first = &mut self.first[idx as usize];
        match first.0 == self.kernel && first.1 != map {
            true => drop(self.others.insert((idx, map), reg)),
            false => *first = (self.kernel, map, reg),
        }
    }
}

impl BodyLists {
    /// The same lists, empty, for the next kernel.
    fn emptied(mut self: Box<BodyLists>) -> Box<BodyLists> {
        self.known.kernel += 1;
        self.known.others.clear();
        self.maps.clear();
        self.map_hashes.clear();
        self.insts.clear();
        self.loads.clear();
        self.accesses.clear();
        self.stores.clear();
        self.const_ids.clear();
        self.const_regs.clear();
        self
    }
}

impl BodyBuilder {
    /// A kernel of `group` over these axes, outer and inner ones.
    pub fn new(
        lowering: &mut Lowering,
        group: u32,
        (outer, inner): (&[usize], &[usize]),
        rows: Option<(View, View)>,
    ) -> BodyBuilder {
        BodyBuilder {
            group,
            dims: outer.iter().chain(inner).copied().collect(),
            n_outer: outer.len(),
            rows,
            lists: lowering.lists.take().unwrap_or_default().emptied(),
            access_maps: Vec::new(),
            inputs: BoundInputs::new(),
            gathers: Vec::new(),
            consts: Vec::new(),
            failed: None,
            may_fail: Vec::new(),
            first: false,
            ops: Vec::new(),
            recording: lowering.recording.next_body(),
        }
    }

    /// The number of a map over the index space.
    pub fn map(&mut self, map: IndexMap) -> MapId {
        let number = self.number(map);
        self.recording.asked(BodyQuestion::Map(number));
        number
    }

    fn number(&mut self, mut map: IndexMap) -> MapId {
        // Along an axis of one element any step will do; without this, equal maps would look different.
        let view = map.last_mut();
        for (stride, size) in view.strides.iter_mut().zip(view.shape.iter()) {
            if *size == 1 {
                *stride = 0;
            }
        }
        self.number_as_is(map)
    }

    /// The number of the map through which a view's input is read if the view itself is read through `map`.
    fn number_through(&mut self, map: MapId, view: &View) -> MapId {
        // A reshape keeps the order of elements, so the map of the view is that of its input.
        if view.is_linear() {
            return map;
        }
        let seen = self.lists.maps[map as usize].of(view);
        self.number(seen)
    }

    fn number_as_is(&mut self, map: IndexMap) -> MapId {
        let hash = hash_of(&map);
        let is_it = |(i, h): (usize, &u64)| *h == hash && self.lists.maps[i] == map;
        if let Some(known) = self.lists.map_hashes.iter().enumerate().position(is_it) {
            return known as MapId;
        }
        self.lists.map_hashes.push(hash);
        self.lists.maps.push(map);
        self.lists.maps.len() as MapId - 1
    }

    /// Adds an instruction beside those that nodes are evaluated by.
    pub fn add(&mut self, op: InstOp, dtype: DType, scope: Scope) -> Reg {
        if let Some(reg) = self.recording.made() {
            return reg;
        }
        let reg = self.push(op, dtype, scope);
        self.recording.asked(BodyQuestion::Made(reg));
        reg
    }

    fn push(&mut self, op: InstOp, dtype: DType, scope: Scope) -> Reg {
        self.lists.insts.push(Inst { op, dtype, scope });
        self.lists.insts.len() as Reg - 1
    }

    /// Says what register a node is in.
    pub fn know(&mut self, idx: NodeIdx, map: MapId, reg: Reg) {
        if let BodyRecording::Follows(_) = self.recording {
            return;
        }
        self.lists.known.insert(idx, map, reg);
    }

    /// Binds an input.
    pub fn bind(&mut self, (value, storage): (ValueId, Storage)) -> u16 {
        // A matmul's operands keep their places, even if both are the same value.
        self.inputs.push(BoundInput { value, storage, moved: None });
        self.inputs.len() as u16 - 1
    }

    /// Starts with the inputs of another body, so that both can be parts of one kernel.
    pub fn take_inputs(&mut self, other: &BuiltKernel) {
        debug_assert!(self.inputs.is_empty(), "inputs come before all else");
        self.inputs.clone_from(&other.inputs);
    }

    /// Loads an element of a value, from a position on that is known when the kernel runs.
    fn load_moved(&mut self, source: (ValueId, Storage), map: IndexMap, moved: MovedBy) -> Reg {
        let scope = scope_of(&map, self.n_outer);
        let map = self.number_as_is(map);
        let access = self.access_in(map, scope, Some(moved));
        self.load_access(source, access, Some(moved))
    }

    fn load_access(&mut self, (value, storage): (ValueId, Storage), access: u16, moved: Option<MovedBy>) -> Reg {
        if let Some((_, reg)) = self.lists.loads.iter().find(|(load, _)| *load == (value, access)) {
            return *reg;
        }
        let input = self.input(BoundInput { value, storage, moved });
        let scope = self.lists.accesses[access as usize].scope;
        let reg = self.push(InstOp::Load { input, access }, storage.dtype(), scope);
        self.lists.loads.push(((value, access), reg));
        reg
    }

    /// Adds a store.
    pub fn store(&mut self, reg: Reg, value: ValueId, dtype: DType, map: IndexMap) {
        let map = self.number_as_is(map);
        let access = self.access_by(map);
        self.recording.asked(BodyQuestion::Store(access));
        self.lists.stores.push(BodyStore { reg, value, dtype, access, base: None });
    }

    /// Adds a store of some rows of a value, from a position on that is known when the kernel runs. The others are `base`'s.
    pub fn store_rows(&mut self, reg: Reg, value: (ValueId, DType), map: IndexMap, moved: MovedBy, base: ValueId) {
        self.recording.must_be_built();
        let scope = scope_of(&map, self.n_outer);
        let map = self.number_as_is(map);
        let access = self.access_in(map, scope, Some(moved));
        self.lists.stores.push(BodyStore { reg, value: value.0, dtype: value.1, access, base: Some(base) });
    }

    fn input(&mut self, wanted: BoundInput) -> u16 {
        let known = self.inputs.iter().position(|i| (i.value, i.moved) == (wanted.value, wanted.moved));
        known.unwrap_or_else(|| {
            self.inputs.push(wanted);
            self.inputs.len() - 1
        }) as u16
    }

    /// The place of a constant of the plan in those of the kernel.
    fn constant(&mut self, constant: u32) -> u16 {
        let known = self.consts.iter().position(|known| *known == constant);
        known.unwrap_or_else(|| {
            self.consts.push(constant);
            self.consts.len() - 1
        }) as u16
    }

    /// The access that reads or writes through a map.
    fn access_by(&mut self, map: MapId) -> u16 {
        let scope = scope_of(&self.lists.maps[map as usize], self.n_outer);
        self.access_in(map, scope, None)
    }

    /// An access for values of `scope`, though it may vary less itself.
    fn access_in(&mut self, map: MapId, scope: Scope, moved: Option<MovedBy>) -> u16 {
        let access = Access { map, scope, moved };
        let known = self.lists.accesses.iter().position(|known| *known == access);
        known.unwrap_or_else(|| {
            self.lists.accesses.push(access);
            self.lists.accesses.len() - 1
        }) as u16
    }

    fn scope(&self, reg: Reg) -> Scope {
        self.lists.insts[reg as usize].scope
    }

    /// The register that holds a node's element, at the place that `map` gives for each index.
    pub fn eval(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId) -> Result<Reg, Differs> {
        if let BodyRecording::Follows(_) = self.recording {
            return self.follow(lowering);
        }
        let reg = self.evaluated(lowering, idx, map);
        self.recording.asked(BodyQuestion::Made(reg));
        Ok(reg)
    }

    fn evaluated(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId) -> Reg {
        // A list instead of recursion: expressions may be as deep as kernels are long.
        let mut stack = std::mem::take(&mut self.lists.stack);
        stack.push((idx, map, None));
        while let Some((idx, map, inputs)) = stack.pop() {
            if self.lists.known.get(idx, map).is_some() {
                continue;
            }
            if let Some(inputs) = inputs {
                let reg_of = |(idx, map): &(NodeIdx, MapId)| self.lists.known.get(*idx, *map).expect("made before");
                let regs: SmallVec<[Reg; 3]> = inputs.iter().map(reg_of).collect();
                let first = self.lists.insts.len();
                let reg = self.emit(lowering, idx, map, &regs);
                lowering.evaluates(idx, || (self.n_evaluated(reg), self.cost_from(first)));
                self.lists.known.insert(idx, map, reg);
            } else if let Some(reg) = self.load_stored(lowering, idx, map) {
                self.lists.known.insert(idx, map, reg);
            } else {
                let inputs = self.inputs_of(lowering.graph, idx, map);
                let open = stack.len();
                stack.push((idx, map, None));
                for (input, map) in inputs.iter().rev() {
                    stack.push((*input, *map, None));
                }
                stack[open].2 = Some(inputs);
            }
        }
        self.lists.stack = stack;
        self.lists.known.get(idx, map).expect("just made")
    }

    /// How often the instruction of a register is executed.
    fn n_evaluated(&self, reg: Reg) -> usize {
        let n_axes = match self.scope(reg) {
            Scope::Uniform => 0,
            Scope::Outer => self.n_outer,
            Scope::Inner => self.dims.len(),
        };
        self.dims[..n_axes].iter().product()
    }

    /// Operations of the instructions from one on, for one element. What a reduction combines is an element of its operand.
    fn cost_from(&self, first: usize) -> usize {
        self.lists.insts[first..].iter().filter(|i| !matches!(i.op, InstOp::Reduce(..))).map(|i| i.op.cost()).sum()
    }

    /// An element of what is stored elsewhere.
    fn load_stored(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId) -> Option<Reg> {
        let node = &lowering.graph.nodes[idx as usize];
        let is_memory = matches!(node.op, Op::Data | Op::Widen(_)) || lowering.groups.is_memory_for(self.group, idx);
        is_memory.then(|| {
            let source = lowering.source(self.group, idx);
            let (access, n_inputs) = (self.access_by(map), self.inputs.len());
            let reg = self.load_access(source, access, None);
            let is_bound = self.inputs.len() > n_inputs;
            self.recording.asked(BodyQuestion::Load { node: idx, map, access, is_bound });
            reg
        })
    }

    /// What a node is computed from, and through which map each is seen.
    fn inputs_of(&mut self, graph: &Graph, node: NodeIdx, from: MapId) -> SeenInputs {
        let inputs = &graph.nodes[node as usize].inputs;
        match &graph.nodes[node as usize].op {
            Op::View(view) | Op::Pad(view) => {
                let to = self.number_through(from, view);
                self.recording.asked(BodyQuestion::View { node, from, to });
                let mut seen: SeenInputs = smallvec![(inputs[0], to)];
                if let Some(fill) = inputs.get(1) {
                    let everywhere = self.everywhere();
                    let to = self.number(everywhere);
                    self.recording.asked(BodyQuestion::Everywhere(to));
                    seen.push((*fill, to));
                }
                seen
            }
            Op::Reduce(..) => {
                let reduced = self.reduced();
                let to = self.number(reduced);
                self.recording.asked(BodyQuestion::Reduced(to));
                smallvec![(inputs[0], to)]
            }
            Op::Gather(..) => smallvec![(inputs[1], from)],
            Op::Matmul | Op::RowsAt(_) => SmallVec::new(),
            _ => inputs.iter().map(|i| (*i, from)).collect(),
        }
    }

    /// One element for the whole index space.
    fn everywhere(&self) -> IndexMap {
        View { offset: 0, strides: [0; MAX_RANK], ..self.space() }.into()
    }

    /// How the index space of a reduction meets what is reduced.
    fn reduced(&self) -> IndexMap {
        self.rows.expect("a reduction is made in a reduction's kernel").0.into()
    }

    /// The place of a constant among those of the body by number and type, and its place among those by number alone.
    fn const_place(&mut self, node: &GraphNode) -> (u16, u16) {
        let (id, constant) = ((node.slot, node.dtype), self.constant(node.slot));
        let known = self.lists.const_ids.iter().position(|known| *known == id);
        let place = known.unwrap_or_else(|| {
            self.lists.const_ids.push(id);
            self.lists.const_ids.len() - 1
        });
        (place as u16, constant)
    }

    fn space(&self) -> View {
        View::contiguous(self.dims.iter().copied().collect())
    }

    fn emit(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId, regs: &[Reg]) -> Reg {
        let node = &lowering.graph.nodes[idx as usize];
        let scope = regs.iter().map(|r| self.scope(*r)).max().unwrap_or(Scope::Uniform);
        let dtype = node.dtype;
        if !matches!(node.op, Op::View(_) | Op::RowsAt(_) | Op::Const(_) | Op::Index) {
            self.ops.push(node.op.label());
        }
        if lowering.waits.may_fail[idx as usize] {
            self.recording.must_be_built();
            self.may_fail.push(node.origin);
            self.first |= lowering.waits.first[idx as usize];
        }
        match &node.op {
            Op::View(_) | Op::WithRule(..) => regs[0],
            Op::Const(_) => {
                let (place, constant) = self.const_place(node);
                self.recording.asked(BodyQuestion::Const { node: idx, place, constant });
                if place as usize == self.lists.const_regs.len() {
                    let reg = self.push(InstOp::Const(constant), dtype, scope);
                    self.lists.const_regs.push(reg);
                }
                self.lists.const_regs[place as usize]
            }
            Op::Index => {
                let access = self.access_by(map);
                self.recording.asked(BodyQuestion::Index { map, access });
                let scope = self.lists.accesses[access as usize].scope;
                self.push(InstOp::Index { access }, dtype, scope)
            }
            Op::Unary(row) => self.push_wrapped(InstOp::Unary(row, regs[0]), dtype, scope, row.wraps),
            Op::Binary(row) => self.push_wrapped(InstOp::Binary(row, regs[0], regs[1]), dtype, scope, row.wraps),
            Op::Commit => {
                let failed = match self.failed {
                    Some(reg) => reg,
                    None => self.push(InstOp::Failed, DType::Bool, Scope::Uniform),
                };
                self.failed = Some(failed);
                self.push(InstOp::Select(failed, regs[0], regs[1]), dtype, scope)
            }
            Op::Select => self.push(InstOp::Select(regs[0], regs[1], regs[2]), dtype, scope),
            // Half floats are f32 while they are computed with, so widening one does nothing.
            Op::Cast if dtype == DType::F32 && self.lists.insts[regs[0] as usize].dtype.is_float() => regs[0],
            Op::Cast => self.push(InstOp::Cast(regs[0]), dtype, scope),
            Op::Custom(op) => self.push(InstOp::Custom(op.clone(), regs.to_vec()), dtype, scope),
            Op::Pad(view) => {
                // By the same map as the element, so that both are one access: a backend may then read and fill at once.
                let seen = self.number_through(map, view);
                let access = self.access_by(seen);
                self.recording.asked(BodyQuestion::Pad { node: idx, map, access });
                let valid_scope = self.lists.accesses[access as usize].scope;
                let valid = self.push(InstOp::Valid { access }, DType::Bool, valid_scope);
                self.push(InstOp::Select(valid, regs[0], regs[1]), dtype, scope.max(valid_scope))
            }
            Op::Reduce(row, _) => {
                // What is the same along the row is combined as often as the row is long, all the same.
                self.push(InstOp::Reduce(row, regs[0]), dtype, Scope::Outer)
            }
            Op::Matmul => {
                let lane = if dtype == DType::U8 { DType::U32 } else { dtype };
                let reg = self.push(InstOp::Acc(0), lane, Scope::Outer);
                if lane == dtype { reg } else { self.push(InstOp::Cast(reg), dtype, Scope::Outer) }
            }
            Op::Gather(axis, _) => self.emit_gather(lowering, idx, map, regs[0], *axis),
            Op::RowsAt(axis) => self.emit_rows_at(lowering, idx, map, *axis),
            Op::Data | Op::Widen(_) | Op::Cat(_) | Op::WriteRows(_) | Op::Routine(..) => {
                unreachable!("{} is memory", node.op.name())
            }
        }
    }

    /// An op on u8 is computed wider and cut back to 8 bits.
    fn push_wrapped(&mut self, op: InstOp, dtype: DType, scope: Scope, wraps: bool) -> Reg {
        if dtype == DType::U8 && wraps {
            let wide = self.push(op, DType::U32, scope);
            return self.push(InstOp::Cast(wide), dtype, scope);
        }
        self.push(op, dtype, scope)
    }

    fn emit_rows_at(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId, axis: usize) -> Reg {
        self.recording.must_be_built();
        let node = &lowering.graph.nodes[idx as usize];
        let is_stored = |i| lowering.groups.is_memory_for(self.group, i);
        let source = super::groups::strided_source(lowering.graph, is_stored, node.inputs[0]);
        let (source, lies) = source.expect("fusing saw to it");
        let first = View::from_axes(node.shape.iter().copied().zip(lies.strides), lies.offset);
        let seen = self.lists.maps[map as usize].of(&first);
        let moved = MovedBy {
            constant: lowering.graph.nodes[node.inputs[1] as usize].slot,
            stride: lies.strides[axis],
            n_positions: lies.shape[axis] - node.shape[axis] + 1,
        };
        let source = lowering.source(self.group, source);
        self.load_moved(source, seen, moved)
    }

    fn emit_gather(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId, index: Reg, axis: usize) -> Reg {
        self.recording.must_be_built();
        let node = &lowering.graph.nodes[idx as usize];
        let x = node.inputs[0];
        let (source, lies) = {
            let is_stored = |i| lowering.groups.is_memory_for(self.group, i);
            super::groups::strided_source(lowering.graph, is_stored, x).expect("fusing saw to it")
        };
        let bound = lies.shape[axis];
        let stride = lies.strides[axis];
        // The node's coordinates are those of x but for the indexed axis.
        let along = |i: usize| if i == axis { 0 } else { lies.strides[i] };
        let place = View::from_axes(node.shape.iter().enumerate().map(|(i, d)| (*d, along(i))), lies.offset);
        let seen = self.lists.maps[map as usize].of(&place);
        let scope = self.scope(index).max(scope_of(&seen, self.n_outer));
        let seen = self.number_as_is(seen);
        let access = self.access_in(seen, scope, None);
        let (value, storage) = lowering.source(self.group, source);
        let input = self.input(BoundInput { value, storage, moved: None });
        self.gathers.push(GatherArgs { stride, bound, check: lowering.check(idx) });
        let gather = self.gathers.len() as u16 - 1;
        self.push(InstOp::Gather { input, access, index, gather }, node.dtype, scope)
    }
}
