//! Makes a kernel of a body in the making: its axes merged as far as every access allows, the forms of its index maps, and in
//! which order its axes are walked.

use std::borrow::Cow;
use std::sync::Arc;

use super::recorded::{BodyRecording, Differs};
use super::{BodyBuilder, BodyLists, BodyStore, BoundInputs, MovedBy};
use crate::graph::NodeIdx;
use crate::kernel::{AccessForm, Args, Body, OffsetArgs, Order, RuntimeOffset, Scope, Store};
use crate::plan::ValueId;
use crate::plan::lower::Lowering;
use crate::plan::maps::{cut, last, merge_axes, mergeable, remove_axis, with_axis};
use crate::view::IndexMap;

/// A finished kernel.
pub struct BuiltKernel {
    pub body: Arc<Body>,
    pub args: Args,
    /// Whether any value that it writes has elements.
    pub makes_elems: bool,
    /// Whether it is the kernel that was built here before, over the same values. What it reads, writes and computes is known
    /// then and left out.
    pub is_known: bool,
    pub reads: Vec<ValueId>,
    pub writes: Vec<ValueId>,
    /// The outputs that replace some rows of a value, and that value.
    pub bases: Vec<(u16, ValueId)>,
    pub(super) inputs: BoundInputs,
    /// The nodes that may fail, and whether commits wait for one of them.
    pub may_fail: Vec<NodeIdx>,
    pub first: bool,
    pub ops: Vec<Cow<'static, str>>,
}

impl BodyBuilder {
    /// Copies the maps of all accesses, once the last access is made: axes are merged in the copies.
    fn settle_accesses(&mut self) {
        let BodyLists { accesses, maps, .. } = &*self.lists;
        if self.access_maps.len() < accesses.len() {
            self.access_maps = accesses.iter().map(|access| maps[access.map as usize].clone()).collect();
        }
    }

    /// Makes outer axes `axis` and the next one, if every access allows.
    pub fn merge_axes(&mut self, axis: usize) -> bool {
        self.settle_accesses();
        let (size, next) = (self.dims[axis], self.dims[axis + 1]);
        if !self.access_maps.iter().all(|map| mergeable(map, axis, next)) {
            return false;
        }
        self.access_maps.iter_mut().for_each(|map| merge_axes(map, axis));
        self.dims[axis] = size * next;
        self.dims.remove(axis + 1);
        self.n_outer -= 1;
        true
    }

    /// The kernel, its axes merged as far as every access allows.
    pub fn finish(mut self, lowering: &mut Lowering) -> Result<BuiltKernel, Differs> {
        self.simplify_axes();
        self.finish_unmerged(lowering)
    }

    fn simplify_axes(&mut self) {
        self.settle_accesses();
        // Axes of size 1 say nothing, unless a mask hides their one element.
        for axis in (0..self.dims.len()).rev() {
            let visible = |map: &IndexMap| last(map).mask.is_none_or(|m| m[axis] == (0, 1));
            if self.dims[axis] == 1 && self.access_maps.iter().all(visible) {
                self.dims.remove(axis);
                self.n_outer -= (axis < self.n_outer) as usize;
                self.access_maps.iter_mut().for_each(|map| remove_axis(map, axis));
            }
        }
        for axis in (0..self.dims.len().saturating_sub(1)).rev() {
            let next = self.dims[axis + 1];
            let same_side = (axis < self.n_outer) == (axis + 1 < self.n_outer);
            if same_side && self.access_maps.iter().all(|map| mergeable(map, axis, next)) {
                self.access_maps.iter_mut().for_each(|map| merge_axes(map, axis));
                self.dims[axis] *= next;
                self.dims.remove(axis + 1);
                self.n_outer -= (axis < self.n_outer) as usize;
            }
        }
        // A reduction keeps an inner axis, even one of size 1.
        if self.rows.is_some() && self.n_outer == self.dims.len() {
            self.dims.push(1);
            let axis = self.dims.len() - 1;
            self.access_maps.iter_mut().for_each(|map| *map = with_axis(map, axis, 1, 0));
        }
    }

    /// The kernel with its axes as they are.
    pub fn finish_unmerged(mut self, lowering: &mut Lowering) -> Result<BuiltKernel, Differs> {
        self.settle_accesses();
        let n_outer = self.n_outer;
        let n_inner = self.dims.len() - n_outer;
        let order = if n_inner > 0 { self.order() } else { Order::InnerFast };
        let (mut offsets, mut offset_args) = (Vec::new(), Vec::new());
        for access in 0..self.lists.accesses.len() {
            if let Some(MovedBy { constant, stride, n_positions }) = self.lists.accesses[access].moved {
                offsets.push(RuntimeOffset { access: access as u16, constant: self.constant(constant) });
                offset_args.push(OffsetArgs { stride, bound: n_positions, served: (0, n_positions) });
            }
        }
        let mut maps = std::mem::take(&mut self.access_maps);
        for (access, map) in self.lists.accesses.iter().zip(&mut maps) {
            let n_axes = match access.scope {
                Scope::Uniform => 0,
                Scope::Outer => n_outer,
                Scope::Inner => self.dims.len(),
            };
            cut(map, n_axes);
        }
        let scopes = self.lists.accesses.iter().map(|access| access.scope);
        let recording = std::mem::replace(&mut self.recording, BodyRecording::Off);
        let is_known = lowering.makes_numbers() && matches!(recording, BodyRecording::Follows(_));
        let (body, ops) = match recording {
            BodyRecording::Follows(follower) => {
                let known = follower.finished()?;
                let body = &known.body;
                let inputs = self.inputs.iter().map(|i| i.storage);
                let is_same = (body.outer_rank, body.inner_rank, body.order) == (n_outer as u8, n_inner as u8, order)
                    && known.scopes.iter().copied().eq(scopes)
                    && body.accesses.iter().copied().eq(maps.iter().map(AccessForm::of))
                    && body.inputs.iter().copied().eq(inputs);
                if !is_same {
                    return Err(Differs);
                }
                (body.clone(), if is_known { Vec::new() } else { known.ops.clone() })
            }
            recording => {
                let scopes = scopes.collect();
                let body = Arc::new(self.body(order, &maps, offsets));
                recording.finish(lowering, &body, scopes, &self.ops);
                (body, self.ops)
            }
        };
        let args = Args {
            outer: self.dims[..n_outer].to_vec(),
            inner: self.dims[n_outer..].to_vec(),
            accesses: maps,
            gathers: self.gathers,
            consts: self.consts,
            offsets: offset_args,
            ..Args::default()
        };
        let stores = &self.lists.stores;
        let makes_elems = stores.iter().any(|store| lowering.has_elems(store.value));
        let (mut reads, mut writes, mut bases) = (Vec::new(), Vec::new(), Vec::new());
        if !is_known {
            reads.extend(self.inputs.iter().map(|i| i.value));
            writes.extend(stores.iter().map(|s| s.value));
            bases.extend(stores.iter().enumerate().filter_map(|(i, s)| Some((i as u16, s.base?))));
        }
        let (inputs, may_fail, first) = (self.inputs, self.may_fail, self.first);
        lowering.lists = Some(self.lists);
        Ok(BuiltKernel { body, args, makes_elems, is_known, reads, writes, bases, inputs, may_fail, first, ops })
    }

    /// The instructions, with the forms of these maps.
    fn body(&mut self, order: Order, maps: &[IndexMap], offsets: Vec<RuntimeOffset>) -> Body {
        let BodyLists { insts, stores, .. } = &mut *self.lists;
        // The list keeps its memory for the next kernel.
        let mut own_insts = Vec::with_capacity(insts.len());
        own_insts.append(insts);
        let store = |(i, s): (usize, &BodyStore)| Store { value: s.reg, output: i as u16, access: s.access };
        Body {
            outer_rank: self.n_outer as u8,
            inner_rank: (self.dims.len() - self.n_outer) as u8,
            order,
            ragged: false,
            inputs: self.inputs.iter().map(|i| i.storage).collect(),
            outputs: stores.iter().map(|s| s.dtype).collect(),
            accesses: maps.iter().map(AccessForm::of).collect(),
            insts: own_insts,
            stores: stores.iter().enumerate().map(store).collect(),
            offsets,
            made: [None, None],
        }
    }

    /// Which axes to walk fastest: those along which most loads find their elements side by side.
    fn order(&self) -> Order {
        let (Some(outer), inner) = (self.n_outer.checked_sub(1), self.dims.len() - 1) else { return Order::InnerFast };
        let mut votes = 0i32;
        let accesses = self.lists.accesses.iter().zip(&self.access_maps);
        for (_, map) in accesses.filter(|(access, _)| access.scope == Scope::Inner) {
            let strides = last(map).strides;
            votes += (strides[outer].abs() == 1 && strides[inner].abs() != 1) as i32;
            votes -= (strides[inner].abs() == 1) as i32;
        }
        if votes > 0 && self.dims[outer] >= 8 { Order::OuterFast } else { Order::InnerFast }
    }
}
