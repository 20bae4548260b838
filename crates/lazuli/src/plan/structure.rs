//! The structure of a graph, as a key: ops, who reads whom, dtypes, and of each axis only whether its size is 0, 1 or more.
//! Graphs of one structure may share a [`Template`](super::template). Sizes, strides, offsets and who may be overwritten
//! are no part of it: those are filled in.

use crate::graph::{Graph, GraphNode, Key, Op};

/// What of the sizes of a node is structure: two bits an axis.
fn size_classes(node: &GraphNode) -> u64 {
    node.shape.iter().fold(1, |bits, size| bits << 2 | (*size).min(2) as u64)
}

/// The key of a graph's structure.
pub fn structure_of(graph: &Graph) -> Key {
    let mut words: Vec<u64> = Vec::with_capacity(graph.nodes.len() * 5);
    let mut customs = Vec::new();
    for node in &graph.nodes {
        words.push(
            family(&node.op) | (node.dtype as u64) << 8 | (node.inputs.len() as u64) << 16 | size_classes(node) << 40,
        );
        match &node.op {
            Op::Data => words.push(node.slot as u64),
            Op::Unary(row) => words.push(std::ptr::from_ref(*row) as u64),
            Op::Binary(row) => words.push(std::ptr::from_ref(*row) as u64),
            Op::Widen(format) => words.push(std::ptr::from_ref(*format) as u64),
            Op::Custom(op) => {
                words.push(op.address() as u64);
                customs.push(op.clone());
            }
            Op::View(view) | Op::Pad(view) => words.push(view.mask.is_some() as u64),
            Op::Reduce(row, axes) => words.extend([std::ptr::from_ref(*row) as u64, axes.bits() as u64]),
            // What it is called is part of a plan's text.
            Op::Gather(axis, called) => words.extend([*axis as u64, called.as_ptr() as u64]),
            Op::Cat(axis) | Op::RowsAt(axis) | Op::WriteRows(axis) => words.push(*axis as u64),
            Op::Routine(row, params) => {
                words.push(std::ptr::from_ref(*row) as u64);
                words.extend(params.iter().map(|p| *p as u64));
            }
            // Which parameter of the plan a number is, is filled in: it depends on which numbers are equal.
            Op::Const(_) => {}
            Op::Index | Op::Select | Op::Cast | Op::Commit | Op::WithRule(..) | Op::Matmul => {}
        }
        for pair in node.inputs.chunks(2) {
            words.push(pair[0] as u64 | (pair.get(1).copied().unwrap_or(0) as u64) << 32);
        }
    }
    words.push(u64::MAX);
    words.extend(graph.outputs.iter().map(|o| *o as u64));
    if !graph.stages.is_empty() {
        words.push(u64::MAX);
        words.extend(graph.stages.iter().map(|end| *end as u64));
    }
    Key::new(words, customs)
}

/// The part of a structure that depends on sizes, as text: the axes of one element or none of those nodes whose shape does not follow
/// from the shapes of their inputs. None if there is no such axis.
pub fn told_sizes(graph: &Graph) -> Option<String> {
    let is_given = |op: &Op| {
        matches!(
            op,
            Op::Data | Op::Const(_) | Op::View(_) | Op::Pad(_) | Op::RowsAt(_) | Op::Routine(..) | Op::Custom(_)
        )
    };
    let mut told = String::new();
    for (idx, node) in graph.nodes.iter().enumerate() {
        if !is_given(&node.op) || node.shape.iter().all(|size| *size > 1) {
            continue;
        }
        let sizes: Vec<&str> = node.shape.iter().map(|size| ["0", "1", "n"][(*size).min(2)]).collect();
        let comma = if told.is_empty() { "" } else { ", " };
        told += &format!("{comma}{} #{idx} [{}]", node.op.name(), sizes.join(", "));
    }
    (!told.is_empty()).then(|| format!("axes of one element or none: {told}"))
}

/// A number for each family of ops.
fn family(op: &Op) -> u64 {
    match op {
        Op::Data => 0,
        Op::Const(_) => 1,
        Op::Index => 2,
        Op::Unary(_) => 3,
        Op::Binary(_) => 4,
        Op::Select => 5,
        Op::Cast => 6,
        Op::Commit => 7,
        Op::Custom(_) => 8,
        Op::View(_) => 9,
        Op::Pad(_) => 10,
        Op::Reduce(..) => 11,
        Op::Matmul => 12,
        Op::Gather(..) => 13,
        Op::Cat(_) => 14,
        Op::Routine(..) => 15,
        Op::WithRule(..) => 16,
        Op::RowsAt(_) => 17,
        Op::WriteRows(_) => 18,
        Op::Widen(_) => 19,
    }
}
