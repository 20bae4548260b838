//! Writes a chained product as a kernel: a map over scores, one over results and one over rows, and how the operands lie.

use std::borrow::Cow;
use std::sync::Arc;

use super::super::attention::{ChainedProduct, InnerNode, SoftmaxNodes};
use super::super::body::{BodyBuilder, Differs};
use super::super::groups::{Group, StoredNode, widened_source};
use super::{LaunchDraft, Lowering};
use crate::dtype::DType;
use crate::graph::NodeIdx;
use crate::kernel::{
    AffineMask, Args, AttentionArgs, AttentionKernel, AttentionOperand, AxisParts, Body, InnerProduct, InstOp, Kernel,
    ROW_MAX, ROW_PRODUCT, ROW_SHIFT, ROW_SUM, Reg, Scope,
};
use crate::ops::{Gives, MUL, RegisterStep};
use crate::shape::Shape;
use crate::view::{IndexMap, View};

impl Lowering<'_> {
    /// The kernel of a group around a chained product.
    pub(super) fn attention(&mut self, number: u32, group: &Group, found: &ChainedProduct) -> Result<(), Differs> {
        // Rows and columns as the product sees them.
        let rank = found.space.rank();
        let (row_axis, column_axis) = if found.is_turned { (rank - 1, rank - 2) } else { (rank - 2, rank - 1) };
        let axes = (0..rank - 2).chain([row_axis, column_axis]).collect::<Vec<_>>();
        let space: Shape = axes.iter().map(|axis| found.space[*axis]).collect();
        let seen = View::permute(&found.space, &axes);
        let root = &self.graph.nodes[found.root as usize];
        let n_values = root.shape[root.shape.rank() - 1];
        let rows: Shape = space[..rank - 1].iter().copied().collect();
        let results: Shape = rows.iter().copied().chain([n_values]).collect();
        let n_rows = rows.n_elems();

        let mut scores = BodyBuilder::new(self, number, (&space, &[]), None);
        let mut inner = Vec::with_capacity(found.inner.len());
        for node in &found.inner {
            inner.push(self.inner_product(&mut scores, number, node, (seen, row_axis)));
        }
        let values = self.values(&mut scores, number, found.root, (space, n_values));
        self.scores(&mut scores, found, seen)?;
        let (full, row): (Vec<StoredNode>, Vec<StoredNode>) = (group.stores.iter().copied())
            .partition(|t| self.graph.nodes[t.value as usize].shape.n_elems() == results.n_elems() || n_rows == 0);
        let mut built_scores = scores.finish_unmerged(self)?;
        let mut result = BodyBuilder::new(self, number, (&results, &[]), None);
        result.take_inputs(&built_scores);
        self.know_rows(&mut result, found, &rows, Some(n_values))?;
        self.store_all(&mut result, &full, |_| View::contiguous(results))?;
        let mut built_result = result.finish_unmerged(self)?;
        let mut by_row = BodyBuilder::new(self, number, (&rows, &[]), None);
        by_row.take_inputs(&built_result);
        self.know_rows(&mut by_row, found, &rows, None)?;
        self.store_all(&mut by_row, &row, |_| View::contiguous(rows))?;
        let mut built_rows = by_row.finish_unmerged(self)?;

        if !built_result.makes_elems && !built_rows.makes_elems {
            return Ok(());
        }
        let is_known = built_scores.is_known && built_result.is_known && built_rows.is_known;
        let n_inner = inner.len() as u8;
        let args = AttentionArgs {
            batch: space[..rank - 2].to_vec(),
            n_rows: space[rank - 2],
            n_columns: space[rank - 1],
            column_parts: AxisParts::whole(space[rank - 1]),
            n_values,
            inner,
            values,
            scores: std::mem::take(&mut built_scores.args),
            result: std::mem::take(&mut built_result.args),
            rows: std::mem::take(&mut built_rows.args),
        };
        let masks = match is_known {
            true => Vec::new(),
            false => affine_masks(&built_scores.body, &args.scores),
        };
        let args = Args { outer: results.to_vec(), attention: Some(Box::new(args)), ..Args::default() };
        self.add(is_known, args, || {
            let n_full = built_result.writes.len() as u16;
            let of_rows = built_rows.bases.iter().map(|(output, base)| (n_full + output, *base));
            let own_bases = built_result.bases.iter().copied().chain(of_rows).collect();
            let kernel = AttentionKernel {
                inputs: built_rows.body.inputs.clone(),
                outputs: [&built_result.body.outputs[..], &built_rows.body.outputs].concat(),
                n_inner,
                masks,
                softmax: found.softmax.map(|softmax| softmax.exp),
                scores: built_scores.body,
                result: built_result.body,
                rows: built_rows.body,
            };
            let softmax = found.softmax.iter().map(|_| Cow::Borrowed("softmax"));
            let ops = [Cow::Borrowed("matmul")].into_iter().chain(built_scores.ops).chain(softmax);
            let ops = ops.chain([Cow::Borrowed("matmul")]).chain(built_result.ops).chain(built_rows.ops).collect();
            let writes = [&built_result.writes[..], &built_rows.writes].concat();
            let kernel = Kernel::Attention(Arc::new(kernel));
            LaunchDraft { kernel, reads: built_rows.reads, writes, own_bases, ops, ..LaunchDraft::default() }
        })
    }

    /// An inner product: binds its operands and says which register its sums are in.
    fn inner_product(
        &mut self,
        scores: &mut BodyBuilder,
        number: u32,
        node: &InnerNode,
        (seen, row_axis): (View, usize),
    ) -> InnerProduct {
        let rank = seen.shape.rank();
        let product = &self.graph.nodes[node.product as usize];
        let (m, n) = (product.shape.rank() - 2, product.shape.rank() - 1);
        let mut operand = |idx: NodeIdx, is_left: bool| {
            let is_stored = |i| self.groups.is_memory_for(number, i);
            let (source, view) = widened_source(self.graph, is_stored, idx).expect("fusing saw to it");
            let source = self.source(number, source);
            // Axis `m` of the product is one of the left operand alone, axis `n` of the right one.
            let (place, along) = if is_left { (m, n) } else { (n, m) };
            let stride = |axis: usize| match axis {
                axis if axis == place || axis < m => view.strides[axis],
                _ => 0,
            };
            let step = |axis: &Option<(usize, isize)>| axis.map_or(0, |(axis, by)| by * stride(axis));
            let start = (0..=n).map(|axis| node.start[axis] * stride(axis)).sum::<isize>();
            let space_axis = if is_left != node.is_turned { rank - 2 } else { rank - 1 };
            let lies = AttentionOperand {
                batch: node.axes[..rank - 2].iter().map(step).collect(),
                place: step(&node.axes[space_axis]),
                along: view.strides[along],
                offset: view.offset + start,
            };
            (source, lies, view.shape[along], space_axis)
        };
        let left = operand(product.inputs[0], true);
        let right = operand(product.inputs[1], false);
        let (a, b) = if left.3 == row_axis { (left, right) } else { (right, left) };
        let acc = scores.bind(a.0) / 2;
        scores.bind(b.0);
        let reg = scores.add(InstOp::Acc(acc as u8), DType::F32, Scope::Outer);
        let everywhere = scores.map(seen.into());
        scores.know(node.seen, everywhere, reg);
        // Chained products that share an inner one each compute it.
        self.evaluates(node.product, || (seen.shape.n_elems(), 2 * a.2));
        InnerProduct { depth: a.2, a: a.1, b: b.1 }
    }

    /// Binds the values, and how they lie as `[batch…, columns, values]`.
    fn values(
        &mut self,
        scores: &mut BodyBuilder,
        number: u32,
        root: NodeIdx,
        (space, n_values): (Shape, usize),
    ) -> AttentionOperand {
        let rank = space.rank();
        let right = self.graph.nodes[root as usize].inputs[1];
        let is_stored = |i| self.groups.is_memory_for(number, i);
        let (source, view) = widened_source(self.graph, is_stored, right).expect("fusing saw to it");
        let seen: Shape = space[..rank - 2].iter().copied().chain([space[rank - 1], n_values]).collect();
        // The batch of the outer product may be the same axes in another shape.
        let map = IndexMap::from(View::contiguous(seen)).of(&view);
        let view = *map.strided().expect("found only where strides say it");
        let source = self.source(number, source);
        scores.bind(source);
        AttentionOperand {
            batch: view.strides[..rank - 2].to_vec(),
            place: view.strides[rank - 2],
            along: view.strides[rank - 1],
            offset: view.offset,
        }
    }

    /// The score and, if there is one, the factor.
    fn scores(&mut self, scores: &mut BodyBuilder, found: &ChainedProduct, seen: View) -> Result<(), Differs> {
        let map = scores.map(seen.into());
        let score = scores.eval(self, found.score, map)?;
        let mut factor: Option<Reg> = None;
        for node in &found.factors {
            let reg = scores.eval(self, *node, map)?;
            factor = Some(match factor {
                None => reg,
                Some(before) => scores.add(InstOp::Binary(&MUL, before, reg), DType::F32, Scope::Outer),
            });
        }
        for reg in [score].into_iter().chain(factor) {
            // It goes nowhere: no value has this number.
            scores.store(reg, u32::MAX, DType::F32, View::contiguous(seen.shape).into());
        }
        Ok(())
    }

    /// Says in which registers a map over results or rows finds what the form hands to it.
    fn know_rows(
        &mut self,
        body: &mut BodyBuilder,
        found: &ChainedProduct,
        rows: &Shape,
        n_values: Option<usize>,
    ) -> Result<(), Differs> {
        let root = &self.graph.nodes[found.root as usize];
        let mut product = n_values.map(|_| body.add(InstOp::Acc(ROW_PRODUCT), DType::F32, Scope::Outer));
        let axes = rows.iter().copied().zip(rows.strides());
        let by_row = View::from_axes(axes.chain(n_values.map(|n| (n, 0))), 0);
        if let Some(SoftmaxNodes { exp, sub, shift, max, sum }) = found.softmax {
            let row_map = body.map(by_row.into());
            let max_reg = body.add(InstOp::Acc(ROW_MAX), DType::F32, Scope::Outer);
            body.know(max, row_map, max_reg);
            // Weights are made with a shift of their own, e^(score − own): e^(own − shift) makes them what they should be.
            let own = body.add(InstOp::Acc(ROW_SHIFT), DType::F32, Scope::Outer);
            let n_columns = found.space[found.space.rank() - 1];
            let of_scores = |stride: isize| stride * n_columns as isize;
            let axes = rows.iter().copied().zip(rows.strides().into_iter().map(of_scores));
            let first_column = View::from_axes(axes.chain(n_values.map(|n| (n, 0))), 0);
            let first_column = body.map(first_column.into());
            let wanted = body.eval(self, shift, first_column)?;
            let less = body.add(InstOp::Binary(sub, own, wanted), DType::F32, Scope::Outer);
            let scale = body.add(InstOp::Unary(exp, less), DType::F32, Scope::Outer);
            if let Some(sum) = sum {
                let acc = body.add(InstOp::Acc(ROW_SUM), DType::F32, Scope::Outer);
                let reg = body.add(InstOp::Binary(&MUL, acc, scale), DType::F32, Scope::Outer);
                body.know(sum, row_map, reg);
            }
            if let Some(mut reg) = product {
                reg = body.add(InstOp::Binary(&MUL, reg, scale), DType::F32, Scope::Outer);
                for (row, node) in &found.row_factors {
                    let factor = body.eval(self, *node, first_column)?;
                    reg = body.add(InstOp::Binary(row, reg, factor), DType::F32, Scope::Outer);
                }
                product = Some(reg);
            }
        }
        if let Some(reg) = product {
            let domain: Shape = rows.iter().copied().chain(n_values).collect();
            let whole = body.map(View::contiguous(domain).into());
            body.know(found.root, whole, reg);
            // Where the batch of the outer product has another shape, it is seen as that, too.
            let whole = body.map(IndexMap::from(View::contiguous(domain)).of(&View::contiguous(root.shape)));
            body.know(found.root, whole, reg);
        }
        Ok(())
    }
}

/// The comparisons of indices that a score is chosen by, outermost first: `cond ? score : constant`. Comparisons of
/// anything else stand between them without a condition, for their constants must be known all the same.
fn affine_masks(body: &Body, args: &Args) -> Vec<AffineMask> {
    let mut masks = Vec::new();
    let mut at = body.stores[0].value;
    while let InstOp::Select(cond, then, otherwise) = body.insts[at as usize].op {
        let InstOp::Const(fill) = body.insts[otherwise as usize].op else { break };
        let compares = match body.insts[cond as usize].op {
            InstOp::Binary(row, x, y) => {
                // Less and greater, not equal: what they hold for is convex, and so is what they do not hold for.
                row.gives == Gives::Bool && !row.commutes && is_affine(body, args, x) && is_affine(body, args, y)
            }
            _ => false,
        };
        masks.push(AffineMask { cond: compares.then_some(cond), fill });
        at = then;
    }
    while masks.last().is_some_and(|mask| mask.cond.is_none()) {
        masks.pop();
    }
    masks
}

/// Whether a value is a whole number that is affine in the indices: an integer, or a float made of such. Whoever uses it
/// makes sure that floats are exact.
fn is_affine(body: &Body, args: &Args, reg: Reg) -> bool {
    let inst = &body.insts[reg as usize];
    match inst.op {
        _ if !matches!(inst.dtype, DType::I32 | DType::F32) => false,
        InstOp::Const(_) => true,
        InstOp::Index { access } => args.accesses[access as usize].strided().is_some(),
        InstOp::Cast(x) => body.insts[x as usize].dtype == DType::I32 && is_affine(body, args, x),
        InstOp::Binary(row, x, y) => {
            matches!(row.step, Some(RegisterStep::Add | RegisterStep::Sub))
                && is_affine(body, args, x)
                && is_affine(body, args, y)
        }
        _ => false,
    }
}
