//! Proves that groups can be kernels, sharing no code with `fuse`, which made them, nor with `lower`, which reads them: every
//! stored node is made by exactly one group (a whole of parts, part by part), what leaves a group has its index space, each
//! group finds what it reads in memory that others make before it, and what it computes beside its own members is what any
//! kernel may compute again.

use std::collections::{BTreeMap, BTreeSet};

use super::super::attention::ChainedProduct;
use super::super::checks::Checks;
use super::super::groups::{Form, Group, Groups, StoredPart};
use crate::dtype::DType;
use crate::graph::{Graph, NodeIdx, Op};

/// Says what is wrong with the groups of a graph, if anything.
pub fn verify_groups(
    graph: &Graph,
    groups: &Groups,
    chained: &[ChainedProduct],
    checks: &Checks,
) -> Result<(), String> {
    let n_nodes = graph.nodes.len();
    if [groups.group_of.len(), groups.stored.len(), groups.reasons.len()] != [n_nodes; 3] {
        return Err(format!("the groups are not those of a graph of {n_nodes} nodes"));
    }
    let makers = makers(graph, groups)?;
    let proof = GroupProof { graph, groups, chained, checks, makers };
    for output in &graph.outputs {
        proof.memory(*output, u32::MAX, is_view).map_err(|fault| format!("output {output}: {fault}"))?;
    }
    let mut needs: Vec<BTreeSet<u32>> = Vec::new();
    let mut seen_by: Vec<Option<u32>> = vec![None; n_nodes];
    for (number, group) in (0..).zip(&groups.groups) {
        let in_group = |fault: String| format!("group {number}: {fault}");
        proof.has_its_index_space(group).map_err(in_group)?;
        needs.push(proof.reads(number, &mut seen_by).map_err(in_group)?);
    }
    no_circle(&needs)
}

/// Per node, the groups that store it, or parts of it.
fn makers(graph: &Graph, groups: &Groups) -> Result<Vec<Vec<u32>>, String> {
    let mut makers: Vec<Vec<u32>> = vec![Vec::new(); graph.nodes.len()];
    let mut parts: BTreeMap<NodeIdx, BTreeSet<u32>> = BTreeMap::new();
    for (number, group) in (0..).zip(&groups.groups) {
        if group.stores.is_empty() {
            return Err(format!("group {number} stores nothing"));
        }
        for store in &group.stores {
            let made = store.part_of.map_or(store.value, |part| part.whole);
            if !groups.stored[made as usize] {
                return Err(format!("group {number} stores node {made}, which has no memory"));
            }
            match store.part_of {
                None if !makers[made as usize].is_empty() => {
                    return Err(format!("node {made} is stored by group {number} and another one"));
                }
                None if groups.group_of[made as usize] != Some(number) => {
                    return Err(format!("group {number} stores node {made}, which is no member"));
                }
                None => {}
                Some(StoredPart { whole, part }) => {
                    let node = &graph.nodes[whole as usize];
                    let has_parts = matches!(node.op, Op::Cat(_)) || matches!(node.op, Op::WriteRows(_)) && part == 1;
                    if !has_parts || node.inputs.get(part as usize) != Some(&store.value) {
                        return Err(format!("node {} is not part {part} of node {whole}", store.value));
                    }
                    if !parts.entry(whole).or_default().insert(part) {
                        return Err(format!("part {part} of node {whole} is stored twice"));
                    }
                }
            }
            makers[made as usize].push(number);
        }
    }
    for (idx, node) in (0..).zip(&graph.nodes).filter(|(idx, _)| groups.stored[*idx as usize]) {
        let has_elems = |input: NodeIdx| !graph.nodes[input as usize].shape.contains(&0);
        let wanted: BTreeSet<u32> = match node.op {
            Op::Cat(_) => (0..).zip(&node.inputs).filter(|(_, input)| has_elems(**input)).map(|(i, _)| i).collect(),
            Op::WriteRows(_) => [1].into(),
            _ if makers[idx as usize].is_empty() => return Err(format!("node {idx} is stored by no group")),
            _ => continue,
        };
        let stored = parts.remove(&idx).unwrap_or_default();
        if !wanted.is_subset(&stored) {
            return Err(format!("of node {idx}, parts {stored:?} of {wanted:?} are stored"));
        }
    }
    Ok(makers)
}

/// A group that waits for itself, by way of others, can never run.
fn no_circle(needs: &[BTreeSet<u32>]) -> Result<(), String> {
    let mut n_waits_for: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (group, needed) in needs.iter().enumerate() {
        needed.iter().for_each(|other| readers[*other as usize].push(group));
    }
    let mut ready: Vec<usize> = (0..needs.len()).filter(|group| n_waits_for[*group] == 0).collect();
    while let Some(group) = ready.pop() {
        for reader in &readers[group] {
            n_waits_for[*reader] -= 1;
            ready.extend((n_waits_for[*reader] == 0).then_some(*reader));
        }
    }
    match n_waits_for.iter().position(|n| *n > 0) {
        Some(group) => Err(format!("group {group} waits for itself: {:?}", needs[group])),
        None => Ok(()),
    }
}

struct GroupProof<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    chained: &'a [ChainedProduct],
    checks: &'a Checks,
    /// Per node, the groups that store it, or parts of it.
    makers: Vec<Vec<u32>>,
}

impl GroupProof<'_> {
    fn op(&self, idx: NodeIdx) -> &Op {
        &self.graph.nodes[idx as usize].op
    }

    fn inputs(&self, idx: NodeIdx) -> &[NodeIdx] {
        &self.graph.nodes[idx as usize].inputs
    }

    fn n_elems(&self, idx: NodeIdx) -> usize {
        self.graph.nodes[idx as usize].shape.n_elems()
    }

    /// What leaves a group has as many elements as its index space, or as its rows.
    fn has_its_index_space(&self, group: &Group) -> Result<(), String> {
        let spaces: Vec<usize> = match group.form {
            Form::Map | Form::Matmul(_) => vec![self.n_elems(group.domain)],
            Form::Reduce { first, split: true } => vec![self.n_elems(first)],
            Form::Reduce { first, split: false } => vec![self.n_elems(first), self.n_elems(self.inputs(first)[0])],
            Form::Attention(number) => {
                let found = self.chained.get(number as usize).ok_or("there is no such chained product")?;
                let rows = found.softmax.iter().map(|softmax| softmax.max).chain(found.row_nodes.iter().copied());
                rows.chain([found.root]).map(|idx| self.n_elems(idx)).collect()
            }
            Form::Routine(node) => match group.stores[..] {
                [store] if store.value == node && store.part_of.is_none() => return Ok(()),
                _ => return Err(format!("the routine of node {node} stores something else")),
            },
        };
        match group.stores.iter().find(|store| !spaces.contains(&self.n_elems(store.value))) {
            Some(store) => Err(format!("node {} is not of the size of any of {spaces:?}", store.value)),
            None => Ok(()),
        }
    }

    /// Whether a node is in memory when groups of a level run.
    fn is_there(&self, idx: NodeIdx, level: u32) -> bool {
        let is_earlier = |maker: &u32| self.groups.groups[*maker as usize].level < level;
        self.groups.stored[idx as usize] && self.makers[idx as usize].iter().all(is_earlier)
    }

    /// The memory that a node is for groups of a level, seen through ops of this kind.
    fn memory(&self, mut idx: NodeIdx, level: u32, looks_through: fn(&Op) -> bool) -> Result<NodeIdx, String> {
        loop {
            match self.op(idx) {
                _ if self.is_there(idx, level) => return Ok(idx),
                Op::Data | Op::Widen(_) => return Ok(idx),
                op if looks_through(op) => idx = self.inputs(idx)[0],
                op => return Err(format!("node {idx} ({}) is no memory", op.name())),
            }
        }
    }

    /// The groups whose results a group reads, if each node that it needs can be had where it is wanted.
    fn reads(&self, number: u32, seen_by: &mut [Option<u32>]) -> Result<BTreeSet<u32>, String> {
        let group = &self.groups.groups[number as usize];
        let mut reader = GroupReader { proof: self, number, group, seen_by, needs: BTreeSet::new() };
        for store in &group.stores {
            reader.compute(store.value)?;
            // Rows are written over what is there.
            if let Some(part) = store.part_of
                && let Op::WriteRows(_) = self.op(part.whole)
            {
                reader.read_through(self.inputs(part.whole)[0], is_view)?;
            }
        }
        Ok(reader.needs)
    }
}

fn is_view(op: &Op) -> bool {
    matches!(op, Op::View(_))
}

/// Products widen what they read.
fn is_view_or_cast(op: &Op) -> bool {
    matches!(op, Op::View(_) | Op::Cast)
}

/// A walk from what leaves a group back to memory.
struct GroupReader<'a> {
    proof: &'a GroupProof<'a>,
    number: u32,
    group: &'a Group,
    /// Per node, the latest group whose walk has come by.
    seen_by: &'a mut [Option<u32>],
    needs: BTreeSet<u32>,
}

impl GroupReader<'_> {
    /// Reads what is in memory, seen through ops of this kind, before the group runs.
    fn read_through(&mut self, idx: NodeIdx, looks_through: fn(&Op) -> bool) -> Result<(), String> {
        let memory = self.proof.memory(idx, self.group.level, looks_through)?;
        self.needs.extend(&self.proof.makers[memory as usize]);
        Ok(())
    }

    fn compute(&mut self, goal: NodeIdx) -> Result<(), String> {
        let mut stack = vec![goal];
        while let Some(idx) = stack.pop() {
            let is_seen = self.seen_by[idx as usize].replace(self.number) == Some(self.number);
            if is_seen || matches!(self.proof.op(idx), Op::Data) {
                continue;
            }
            let is_member = self.proof.groups.group_of[idx as usize] == Some(self.number);
            match !is_member && self.proof.is_there(idx, self.group.level) {
                true => self.needs.extend(&self.proof.makers[idx as usize]),
                false => self.open(idx, is_member, &mut stack)?,
            }
        }
        Ok(())
    }

    /// The node that is made for an operand. The operand must be a view of the node; the node must be f32, whose bits a store does not
    /// change, and must not be stored for any other group.
    fn makes(&self, operand: NodeIdx, made: NodeIdx) -> Result<NodeIdx, String> {
        let proof = self.proof;
        let mut at = operand;
        while at != made {
            match proof.op(at) {
                op if is_view(op) => at = proof.inputs(at)[0],
                op => {
                    return Err(format!(
                        "makes operand {operand} of node {made}, and node {at} ({}) is no view",
                        op.name()
                    ));
                }
            }
        }
        match proof.graph.nodes[made as usize].dtype == DType::F32 && !proof.groups.stored[made as usize] {
            true => Ok(made),
            false => Err(format!("makes operand {operand} of node {made}, which is stored or no f32")),
        }
    }

    /// What a node that the group computes is computed from.
    fn open(&mut self, idx: NodeIdx, is_member: bool, stack: &mut Vec<NodeIdx>) -> Result<(), String> {
        let (proof, op, inputs) = (self.proof, self.proof.op(idx), self.proof.inputs(idx));
        if let Form::Attention(number) = self.group.form {
            let found = &proof.chained[number as usize];
            if idx == found.root || found.interior.contains(&idx) || found.row_nodes.contains(&idx) {
                return self.open_chained(found, stack);
            }
        }
        let waits = proof.checks.any_commits && (proof.checks.may_fail[idx as usize] || matches!(op, Op::Commit));
        let is_placed = waits || matches!(op, Op::Reduce(..) | Op::Matmul | Op::Gather(..) | Op::Routine(..));
        if is_placed && !is_member {
            return Err(format!("computes node {idx} ({}) again", op.name()));
        }
        match (op, self.group.form) {
            (Op::Reduce(_, axes), Form::Reduce { first, .. }) => {
                let space = |idx: NodeIdx| proof.graph.nodes[proof.inputs(idx)[0] as usize].shape;
                if !matches!(proof.op(first), Op::Reduce(_, known) if known == axes) || space(first) != space(idx) {
                    return Err(format!("node {idx} reduces other axes than node {first}"));
                }
                stack.push(inputs[0]);
            }
            (Op::Matmul, Form::Matmul(product)) if product == idx => {
                for (operand, made) in inputs.iter().zip(self.group.made) {
                    match made {
                        None => self.read_through(*operand, is_view_or_cast)?,
                        Some(made) => stack.push(self.makes(*operand, made)?),
                    }
                }
            }
            (Op::Routine(..), Form::Routine(node)) if node == idx => {
                inputs.iter().try_for_each(|input| self.read_through(*input, is_view))?;
            }
            (Op::Gather(..), _) => {
                self.read_through(inputs[0], is_view)?;
                stack.push(inputs[1]);
            }
            (Op::RowsAt(_), _) => self.read_through(inputs[0], is_view)?,
            (Op::Reduce(..) | Op::Matmul | Op::Routine(..) | Op::Cat(_) | Op::WriteRows(_), form) => {
                return Err(format!("node {idx} ({}) is computed in {form:?}", op.name()));
            }
            // Blocks are read where they are.
            (Op::Widen(_), _) => {}
            _ => stack.extend(inputs),
        }
        Ok(())
    }

    /// The operands of all products of a chained one are memory; what its maps read beside them is like any other.
    fn open_chained(&mut self, found: &ChainedProduct, stack: &mut Vec<NodeIdx>) -> Result<(), String> {
        for inner in &found.inner {
            let operands = self.proof.inputs(inner.product);
            operands.iter().try_for_each(|operand| self.read_through(*operand, is_view_or_cast))?;
        }
        self.read_through(self.proof.inputs(found.root)[1], is_view_or_cast)?;
        stack.extend(&found.leaves);
        Ok(())
    }
}
