//! Builds the instructions of one kernel by walking from what leaves it back to memory, carrying along how the
//! kernel's index space meets the elements of each node. Purely mechanical.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};

use super::ValueId;
use super::lower::Lowering;
use crate::dtype::DType;
use crate::fast_hash::{FastMap, hash_of};
use crate::graph::{GraphNode, NodeIdx, Op};
use crate::kernel::{AccessForm, Args, Body, GatherArgs, Inst, InstOp, Order, Reg, Scope, Store};
use crate::shape::{MAX_RANK, Shape};
use crate::view::{IndexMap, View};

type MapId = u32;

/// An index map of the kernel, and where it varies.
struct Access {
    map: IndexMap,
    scope: Scope,
}

/// A kernel in the making.
pub struct BodyBuilder {
    group: u32,
    /// Sizes of the index space: outer axes, then inner.
    dims: Vec<usize>,
    n_outer: usize,
    /// For a reduction: how the index space meets what is reduced, and the result.
    rows: Option<(View, View)>,
    maps: Vec<IndexMap>,
    /// The hash of each map: a kernel has few, and looking through a list of words is faster than a table.
    map_hashes: Vec<u64>,
    known: FastMap<(NodeIdx, MapId), Reg>,
    insts: Vec<Inst>,
    loads: Vec<((ValueId, u16), Reg)>,
    accesses: Vec<Access>,
    access_hashes: Vec<u64>,
    inputs: Vec<(ValueId, DType)>,
    stores: Vec<(Reg, ValueId, DType, u16)>,
    gathers: Vec<GatherArgs>,
    consts: Vec<u32>,
    const_ids: FastMap<(u32, DType), Reg>,
    failed: Option<Reg>,
    may_fail: Vec<NodeIdx>,
    first: bool,
    ops: Vec<Cow<'static, str>>,
}

/// A finished kernel.
pub struct BuiltKernel {
    pub body: Body,
    pub args: Args,
    pub reads: Vec<ValueId>,
    pub writes: Vec<ValueId>,
    /// The nodes that may fail, and whether commits wait for one of them.
    pub may_fail: Vec<NodeIdx>,
    pub first: bool,
    pub ops: Vec<Cow<'static, str>>,
}

impl BodyBuilder {
    /// A kernel of `group` over these axes.
    pub fn new(group: u32, outer: Vec<usize>, inner: Vec<usize>, rows: Option<(View, View)>) -> BodyBuilder {
        let n_outer = outer.len();
        let mut dims = outer;
        dims.extend(inner);
        BodyBuilder {
            group,
            dims,
            n_outer,
            rows,
            maps: Vec::new(),
            map_hashes: Vec::new(),
            known: FastMap::default(),
            insts: Vec::new(),
            loads: Vec::new(),
            accesses: Vec::new(),
            access_hashes: Vec::new(),
            inputs: Vec::new(),
            stores: Vec::new(),
            gathers: Vec::new(),
            consts: Vec::new(),
            const_ids: FastMap::default(),
            failed: None,
            may_fail: Vec::new(),
            first: false,
            ops: Vec::new(),
        }
    }

    /// The number of a map over the index space.
    pub fn map(&mut self, map: IndexMap) -> MapId {
        // Along an axis of one element any step will do; without this, equal maps would look different.
        let view = last(&map);
        let is_loose = view.shape.iter().zip(view.strides).any(|(size, stride)| *size == 1 && stride != 0);
        let map = match is_loose {
            true => rewrite(&map, |axes| axes.iter_mut().filter(|a| a.0 == 1).for_each(|a| a.1 = 0)),
            false => map,
        };
        let hash = hash_of(&map);
        let is_it = |(i, h): (usize, &u64)| *h == hash && self.maps[i] == map;
        if let Some(known) = self.map_hashes.iter().enumerate().position(is_it) {
            return known as MapId;
        }
        self.map_hashes.push(hash);
        self.maps.push(map);
        self.maps.len() as MapId - 1
    }

    /// Adds an instruction.
    pub fn push(&mut self, op: InstOp, dtype: DType, scope: Scope) -> Reg {
        self.insts.push(Inst { op, dtype, scope });
        self.insts.len() as Reg - 1
    }

    /// Says what register a node is in.
    pub fn know(&mut self, idx: NodeIdx, map: MapId, reg: Reg) {
        self.known.insert((idx, map), reg);
    }

    /// Binds an input.
    pub fn bind(&mut self, value: ValueId, dtype: DType) -> u16 {
        // A matmul's operands keep their places, even if both are the same value.
        self.inputs.push((value, dtype));
        self.inputs.len() as u16 - 1
    }

    /// Starts with the inputs of another body, so that both can be parts of one kernel.
    pub fn take_inputs(&mut self, other: &BuiltKernel) {
        debug_assert!(self.inputs.is_empty(), "inputs come before all else");
        self.inputs = other.reads.iter().copied().zip(other.body.inputs.iter().copied()).collect();
    }

    /// Loads an element of a value.
    pub fn load(&mut self, value: ValueId, dtype: DType, map: IndexMap) -> Reg {
        let access = self.access(map);
        if let Some((_, reg)) = self.loads.iter().find(|(load, _)| *load == (value, access)) {
            return *reg;
        }
        let input = self.input(value, dtype);
        let scope = self.accesses[access as usize].scope;
        let reg = self.push(InstOp::Load { input, access }, dtype, scope);
        self.loads.push(((value, access), reg));
        reg
    }

    /// Adds a store.
    pub fn store(&mut self, reg: Reg, value: ValueId, dtype: DType, map: IndexMap) {
        let access = self.access(map);
        self.stores.push((reg, value, dtype, access));
    }

    fn input(&mut self, value: ValueId, dtype: DType) -> u16 {
        match self.inputs.iter().position(|i| i.0 == value) {
            Some(at) => at as u16,
            None => self.bind(value, dtype),
        }
    }

    fn access(&mut self, map: IndexMap) -> u16 {
        let scope = scope_of(&map, self.n_outer);
        self.access_in(map, scope)
    }

    /// An access for values of `scope`, though it may vary less itself.
    fn access_in(&mut self, map: IndexMap, scope: Scope) -> u16 {
        let hash = hash_of(&map);
        let is_it = |(i, h): (usize, &u64)| {
            let known: &Access = &self.accesses[i];
            *h == hash && known.scope == scope && known.map == map
        };
        if let Some(known) = self.access_hashes.iter().enumerate().position(is_it) {
            return known as u16;
        }
        self.access_hashes.push(hash);
        self.accesses.push(Access { map, scope });
        self.accesses.len() as u16 - 1
    }

    fn scope(&self, reg: Reg) -> Scope {
        self.insts[reg as usize].scope
    }

    /// The register that holds a node's element, at the place that `map` gives for each index.
    pub fn eval(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId) -> Reg {
        // A list instead of recursion: expressions may be as deep as kernels are long.
        let mut stack = vec![(idx, map, false)];
        while let Some((idx, map, inputs_done)) = stack.pop() {
            if self.known.contains_key(&(idx, map)) {
                continue;
            }
            if let Some(reg) = self.load_stored(lowering, idx, map) {
                self.known.insert((idx, map), reg);
                continue;
            }
            let inputs = self.inputs_of(&lowering.graph.nodes[idx as usize], map);
            if inputs_done {
                let regs: SmallVec<[Reg; 3]> = inputs.iter().map(|i| self.known[i]).collect();
                let reg = self.emit(lowering, idx, map, &regs);
                self.known.insert((idx, map), reg);
            } else {
                stack.push((idx, map, true));
                stack.extend(inputs.iter().rev().map(|i| (i.0, i.1, false)));
            }
        }
        self.known[&(idx, map)]
    }

    /// An element of what is stored elsewhere.
    fn load_stored(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId) -> Option<Reg> {
        let node = &lowering.graph.nodes[idx as usize];
        let is_memory = matches!(node.op, Op::Data) || lowering.groups.is_memory_for(self.group, idx);
        is_memory.then(|| {
            let value = lowering.value(idx);
            self.load(value, node.dtype, self.maps[map as usize].clone())
        })
    }

    /// What a node is computed from, and through which map each is seen.
    fn inputs_of(&mut self, node: &GraphNode, map: MapId) -> SmallVec<[(NodeIdx, MapId); 3]> {
        match &node.op {
            Op::View(view) => {
                let seen = self.maps[map as usize].of(view);
                smallvec![(node.inputs[0], self.map(seen))]
            }
            Op::Pad(view) => {
                let seen = self.maps[map as usize].of(view);
                let everywhere = View { offset: 0, strides: [0; MAX_RANK], ..self.space() };
                smallvec![(node.inputs[0], self.map(seen)), (node.inputs[1], self.map(everywhere.into()))]
            }
            Op::Reduce(..) => {
                let (full, _) = self.rows.expect("a reduction is made in a reduction's kernel");
                smallvec![(node.inputs[0], self.map(full.into()))]
            }
            Op::Gather(..) => smallvec![(node.inputs[1], map)],
            Op::Matmul => SmallVec::new(),
            _ => node.inputs.iter().map(|i| (*i, map)).collect(),
        }
    }

    fn space(&self) -> View {
        View::contiguous(self.dims.iter().copied().collect())
    }

    fn emit(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId, regs: &[Reg]) -> Reg {
        let node = &lowering.graph.nodes[idx as usize];
        let scope = regs.iter().map(|r| self.scope(*r)).max().unwrap_or(Scope::Uniform);
        let dtype = node.dtype;
        if !matches!(node.op, Op::View(_) | Op::Const(_) | Op::Index) {
            self.ops.push(node.op.label());
        }
        if lowering.waits.may_fail[idx as usize] {
            self.may_fail.push(node.origin);
            self.first |= lowering.waits.first[idx as usize];
        }
        match &node.op {
            Op::View(_) | Op::WithRule(..) => regs[0],
            Op::Const(_) => *self.const_ids.entry((node.slot, dtype)).or_insert_with(|| {
                self.consts.push(node.slot);
                self.insts.push(Inst { op: InstOp::Const(self.consts.len() as u16 - 1), dtype, scope });
                self.insts.len() as Reg - 1
            }),
            Op::Index => {
                let access = self.access(self.maps[map as usize].clone());
                let scope = self.accesses[access as usize].scope;
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
            Op::Cast if dtype == DType::F32 && self.insts[regs[0] as usize].dtype.is_float() => regs[0],
            Op::Cast => self.push(InstOp::Cast(regs[0]), dtype, scope),
            Op::Custom(op) => self.push(InstOp::Custom(op.clone(), regs.to_vec()), dtype, scope),
            Op::Pad(view) => {
                let seen = self.maps[map as usize].of(view);
                let access = self.access(seen);
                let valid_scope = self.accesses[access as usize].scope;
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
            Op::Data | Op::Cat(_) | Op::Routine(..) => unreachable!("{} is memory", node.op.name()),
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

    fn emit_gather(&mut self, lowering: &mut Lowering, idx: NodeIdx, map: MapId, index: Reg, axis: usize) -> Reg {
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
        let seen = self.maps[map as usize].of(&place);
        let scope = self.scope(index).max(scope_of(&seen, self.n_outer));
        let access = self.access_in(seen, scope);
        let value = lowering.value(source);
        let input = self.input(value, node.dtype);
        self.gathers.push(GatherArgs { stride, bound, check: lowering.check(idx) });
        let gather = self.gathers.len() as u16 - 1;
        self.push(InstOp::Gather { input, access, index, gather }, node.dtype, scope)
    }

    /// Makes outer axes `axis` and the next one, if every access allows.
    pub fn merge_axes(&mut self, axis: usize) -> bool {
        let (size, next) = (self.dims[axis], self.dims[axis + 1]);
        if !self.accesses.iter().all(|a| mergeable(&a.map, axis, next)) {
            return false;
        }
        for access in &mut self.accesses {
            access.map = merged(&access.map, axis);
        }
        self.dims[axis] = size * next;
        self.dims.remove(axis + 1);
        self.n_outer -= 1;
        true
    }

    /// The kernel, its axes merged as far as every access allows.
    pub fn finish(mut self) -> BuiltKernel {
        self.simplify_axes();
        self.finish_unmerged()
    }

    fn simplify_axes(&mut self) {
        // Axes of size 1 say nothing, unless a mask hides their one element.
        for axis in (0..self.dims.len()).rev() {
            let visible = |a: &Access| last(&a.map).mask.is_none_or(|m| m[axis] == (0, 1));
            if self.dims[axis] == 1 && self.accesses.iter().all(visible) {
                self.dims.remove(axis);
                self.n_outer -= (axis < self.n_outer) as usize;
                self.accesses.iter_mut().for_each(|a| a.map = without_axis(&a.map, axis));
            }
        }
        for axis in (0..self.dims.len().saturating_sub(1)).rev() {
            let next = self.dims[axis + 1];
            let same_side = (axis < self.n_outer) == (axis + 1 < self.n_outer);
            if same_side && self.accesses.iter().all(|a| mergeable(&a.map, axis, next)) {
                self.accesses.iter_mut().for_each(|a| a.map = merged(&a.map, axis));
                self.dims[axis] *= next;
                self.dims.remove(axis + 1);
                self.n_outer -= (axis < self.n_outer) as usize;
            }
        }
        // A reduction keeps an inner axis, even one of size 1.
        if self.rows.is_some() && self.n_outer == self.dims.len() {
            self.dims.push(1);
            let axis = self.dims.len() - 1;
            self.accesses.iter_mut().for_each(|a| a.map = with_axis(&a.map, axis, 1, 0));
        }
    }

    /// The kernel with its axes as they are.
    pub fn finish_unmerged(self) -> BuiltKernel {
        let n_outer = self.n_outer;
        let n_inner = self.dims.len() - n_outer;
        let order = if n_inner > 0 { self.order() } else { Order::InnerFast };
        let mut forms = Vec::with_capacity(self.accesses.len());
        let mut maps = Vec::with_capacity(self.accesses.len());
        for access in &self.accesses {
            let n_axes = match access.scope {
                Scope::Uniform => 0,
                Scope::Outer => n_outer,
                Scope::Inner => self.dims.len(),
            };
            let map = cut(&access.map, n_axes);
            forms.push(AccessForm::of(&map));
            maps.push(map);
        }
        let body = Body {
            outer_rank: n_outer as u8,
            inner_rank: n_inner as u8,
            order,
            ragged: false,
            inputs: self.inputs.iter().map(|i| i.1).collect(),
            outputs: self.stores.iter().map(|s| s.2).collect(),
            accesses: forms,
            insts: self.insts,
            stores: (self.stores.iter().enumerate())
                .map(|(i, s)| Store { value: s.0, output: i as u16, access: s.3 })
                .collect(),
        };
        let args = Args {
            outer: self.dims[..n_outer].to_vec(),
            inner: self.dims[n_outer..].to_vec(),
            accesses: maps,
            gathers: self.gathers,
            consts: self.consts,
            ..Args::default()
        };
        BuiltKernel {
            body,
            args,
            reads: self.inputs.iter().map(|i| i.0).collect(),
            writes: self.stores.iter().map(|s| s.1).collect(),
            may_fail: self.may_fail,
            first: self.first,
            ops: self.ops,
        }
    }

    /// Which axes to walk fastest: those along which most loads find their elements side by side.
    fn order(&self) -> Order {
        let (Some(outer), inner) = (self.n_outer.checked_sub(1), self.dims.len() - 1) else { return Order::InnerFast };
        let mut votes = 0i32;
        for access in self.accesses.iter().filter(|a| a.scope == Scope::Inner) {
            let strides = last(&access.map).strides;
            votes += (strides[outer].abs() == 1 && strides[inner].abs() != 1) as i32;
            votes -= (strides[inner].abs() == 1) as i32;
        }
        if votes > 0 && self.dims[outer] >= 8 { Order::OuterFast } else { Order::InnerFast }
    }
}

/// Whether a map has one inner axis, and no mask along it.
pub(super) fn is_one_axis(map: &IndexMap, n_outer: usize) -> bool {
    let view = last(map);
    view.shape.rank() == n_outer + 1 && view.inside(n_outer) == (0, view.shape[n_outer])
}

/// Sizes with the strides of a row-major array.
pub(super) fn contiguous(sizes: &[usize]) -> Vec<(usize, isize)> {
    let shape: Shape = sizes.iter().copied().collect();
    sizes.iter().copied().zip(shape.strides()).collect()
}

/// The view that meets the index space.
fn last(map: &IndexMap) -> &View {
    map.views().last().expect("never empty")
}

fn scope_of(map: &IndexMap, n_outer: usize) -> Scope {
    let view = last(map);
    let varies = |axis: usize| {
        let size = view.shape[axis];
        (size != 1 && view.strides[axis] != 0) || view.mask.is_some_and(|m| m[axis] != (0, size))
    };
    let rank = view.shape.rank();
    if (n_outer..rank).any(varies) {
        Scope::Inner
    } else if (0..n_outer).any(varies) {
        Scope::Outer
    } else {
        Scope::Uniform
    }
}

fn mergeable(map: &IndexMap, axis: usize, next_size: usize) -> bool {
    let view = last(map);
    let unmasked = |i: usize| view.mask.is_none_or(|m| m[i] == (0, view.shape[i]));
    unmasked(axis) && unmasked(axis + 1) && view.strides[axis] == view.strides[axis + 1] * next_size as isize
}

/// An axis of a map: size, stride, and which coordinates have an element.
pub(super) type MapAxis = (usize, isize, (usize, usize));

/// The same map with its last view rewritten axis by axis: `(size, stride, mask)`.
pub(super) fn rewrite(map: &IndexMap, f: impl FnOnce(&mut SmallVec<[MapAxis; MAX_RANK]>)) -> IndexMap {
    let view = last(map);
    let axis = |i: usize| (view.shape[i], view.strides[i], view.mask.map_or((0, view.shape[i]), |m| m[i]));
    let mut axes: SmallVec<[MapAxis; MAX_RANK]> = (0..view.shape.rank()).map(axis).collect();
    f(&mut axes);
    let mut new = View::from_axes(axes.iter().map(|a| (a.0, a.1)), view.offset);
    if axes.iter().any(|a| a.2 != (0, a.0)) || (view.mask.is_some() && axes.is_empty()) {
        let mut mask = [(0, 0); MAX_RANK];
        mask.iter_mut().zip(&axes).for_each(|(m, a)| *m = a.2);
        new.mask = Some(mask);
    }
    map.with_last(new)
}

fn merged(map: &IndexMap, axis: usize) -> IndexMap {
    rewrite(map, |axes| {
        let (size, stride, _) = axes.remove(axis + 1);
        axes[axis] = (axes[axis].0 * size, stride, (0, axes[axis].0 * size));
    })
}

fn without_axis(map: &IndexMap, axis: usize) -> IndexMap {
    rewrite(map, |axes| {
        axes.remove(axis);
    })
}

fn with_axis(map: &IndexMap, axis: usize, size: usize, stride: isize) -> IndexMap {
    rewrite(map, |axes| axes.insert(axis, (size, stride, (0, size))))
}

/// The map over the first `n_axes` axes alone; along the others it does not vary.
fn cut(map: &IndexMap, n_axes: usize) -> IndexMap {
    match last(map).shape.rank() == n_axes {
        true => map.clone(),
        false => rewrite(map, |axes| axes.truncate(n_axes)),
    }
}
