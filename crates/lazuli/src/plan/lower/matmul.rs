//! Lowers a product to a kernel: how its operands lie in memory, the maps of its made operands, and its epilogue.

use std::sync::Arc;

use super::super::ValueId;
use super::super::body::{BodyBuilder, BuiltKernel, Differs};
use super::super::groups::{Group, operand_source};
use super::super::operand::OperandForms;
use super::{LaunchDraft, Lowering};
use crate::blocks::Storage;
use crate::dtype::DType;
use crate::graph::{NodeIdx, Op};
use crate::kernel::{Args, AxisList, AxisParts, Body, Kernel, MatmulArgs, OperandArgs, Panels};
use crate::view::View;

/// The value that is bound for an operand, and how the operand lies in memory.
type LoweredOperand = ((ValueId, Storage), OperandArgs, Option<Panels>);

/// Which operands are made, left (0) before right (1), and the map of each.
type MadeOperands = Vec<(usize, BuiltKernel)>;

impl Lowering<'_> {
    /// The kernel of a group around a product.
    pub(super) fn matmul(&mut self, number: u32, group: &Group, idx: NodeIdx) -> Result<(), Differs> {
        let node = &self.graph.nodes[idx as usize];
        let [a_forms, b_forms] = self.limits.operand_forms(node.dtype);
        let (a_source, a, _) = self.operand(number, node.inputs[0], group.made[0], a_forms);
        let (b_source, b, panels) = self.operand(number, node.inputs[1], group.made[1], b_forms);
        let mut made = self.made_operands(number, group, [a_source, b_source])?;
        let mut body = BodyBuilder::new(self, number, (&node.shape, &[]), None);
        bind_operands(&mut body, &made, [a_source, b_source]);
        let map = View::contiguous(node.shape);
        self.store_all(&mut body, &group.stores, |_| map)?;

        let rank = node.shape.rank();
        let k = self.graph.nodes[node.inputs[0] as usize].shape[rank - 1];
        let (batch, m, n) = (node.shape[..rank - 2].to_vec(), node.shape[rank - 2], node.shape[rank - 1]);
        let k_parts = AxisParts::whole(k);
        let mut args = MatmulArgs { batch, m, k, n, a, b, panels, k_parts, made: [None, None] };
        merge_batch(&mut args, &mut body);
        let built = body.finish_unmerged(self)?;
        if !built.makes_elems {
            return Ok(());
        }
        let BuiltKernel { body, args: numbers, reads, writes, bases, may_fail, first, .. } = built;
        let is_known = built.is_known && made.iter().all(|made| made.1.is_known);
        for (operand, made) in &mut made {
            args.made[*operand] = Some(Box::new(std::mem::take(&mut made.args)));
        }
        let numbers = Args { matmul: Some(Box::new(args)), ..numbers };
        let level = Some((group.stage, group.level));
        let rest = || LaunchDraft { own_bases: bases, may_fail, first, level, ..LaunchDraft::default() };
        self.add(is_known, numbers, || {
            let ops = made.iter().flat_map(|made| made.1.ops.iter().cloned()).chain(built.ops).collect();
            let kernel = Kernel::Matmul(with_made(body, made));
            LaunchDraft { kernel, reads, writes, ops, ..rest() }
        })
    }

    /// Builds the maps of the made operands.
    fn made_operands(
        &mut self,
        number: u32,
        group: &Group,
        sources: [(ValueId, Storage); 2],
    ) -> Result<MadeOperands, Differs> {
        let mut made = MadeOperands::new();
        for (operand, source) in group.made.iter().enumerate() {
            let Some(source) = *source else { continue };
            let space = View::contiguous(self.graph.nodes[source as usize].shape);
            let mut body = BodyBuilder::new(self, number, (&space.shape, &[]), None);
            bind_operands(&mut body, &made, sources);
            let map = body.map(space.into());
            let reg = body.eval(self, source, map)?;
            // The made operand is stored in scratch memory and is no value of the plan: no value has this number.
            body.store(reg, ValueId::MAX, DType::F32, space.into());
            made.push((operand, body.finish(self)?));
        }
        Ok(made)
    }

    /// Lowers an operand: either it is memory, or it is made, and then dense. In the place of a made operand the kernel binds an input
    /// of the operand's map.
    fn operand(&mut self, number: u32, operand: NodeIdx, made: Option<NodeIdx>, forms: OperandForms) -> LoweredOperand {
        let is_source = |i| self.groups.is_memory_for(number, i) || made == Some(i);
        let (source, lies, panels) = operand_source(self.graph, is_source, operand, forms).expect("fusing saw to it");
        let bound = if made.is_some() { self.first_load(number, source) } else { source };
        (self.source(number, bound), lies, panels)
    }

    /// The first node that the map of a made operand loads.
    fn first_load(&self, number: u32, made: NodeIdx) -> NodeIdx {
        let mut stack = vec![made];
        while let Some(idx) = stack.pop() {
            let node = &self.graph.nodes[idx as usize];
            if matches!(node.op, Op::Data | Op::Widen(_)) || self.groups.is_memory_for(number, idx) {
                return idx;
            }
            stack.extend(node.inputs.iter().rev());
        }
        unreachable!("fusing saw to it that something is loaded")
    }
}

/// All bodies of a kernel number inputs alike: the operands come first, and each body appends to the inputs of the body before.
fn bind_operands(body: &mut BodyBuilder, before: &MadeOperands, sources: [(ValueId, Storage); 2]) {
    match before.last() {
        Some((_, before)) => body.take_inputs(before),
        None => sources.into_iter().for_each(|source| {
            body.bind(source);
        }),
    }
}

/// One matrix for the whole batch: `x[b, m, k] · w[k, n]` is one product of `b·m` rows.
fn merge_batch(args: &mut MatmulArgs, body: &mut BodyBuilder) {
    while let Some(&size) = args.batch.last() {
        let axis = args.batch.len() - 1;
        let (Some(by), Some(row)) = (args.a.batch[axis].stride(), args.a.rows.stride()) else { break };
        let runs_on = by == args.m as isize * row;
        if args.b.batch[axis].stride() != Some(0) || !runs_on || !body.merge_axes(axis) {
            break;
        }
        args.batch.pop();
        args.a.batch.pop();
        args.b.batch.pop();
        args.m *= size;
        args.a.rows = AxisList::single(args.m, row);
    }
}

/// The epilogue's body with the maps of the made operands added to it.
fn with_made(body: Arc<Body>, made: MadeOperands) -> Arc<Body> {
    if made.is_empty() {
        return body;
    }
    let mut with = Body::clone(&body);
    for (operand, made) in made {
        with.made[operand] = Some(made.body);
    }
    Arc::new(with)
}
