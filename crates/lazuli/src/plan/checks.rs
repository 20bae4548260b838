//! What may fail while a plan runs, and what must wait for it. A commit ([`Op::Commit`]) is made only if all checks
//! passed, so the checks come first: this says which ones. Knows the graph; how kernels are put into that order is in
//! `fuse` and `order`.

use std::collections::HashSet;

use super::Limits;
use crate::graph::{Graph, GraphNode, NodeIdx, Op};

/// Whether running an op may fail: it looks up what an index names, or runs a user's code where that can panic.
pub fn may_fail(op: &Op, limits: &Limits) -> bool {
    match op {
        Op::Gather(..) => true,
        Op::Routine(row, _) => row.indexes,
        Op::Custom(_) => limits.custom_may_fail,
        _ => false,
    }
}

/// What the commits of a graph ask of its kernels.
#[derive(Clone, Debug, Default)]
pub struct Checks {
    /// Whether there are commits at all. If there are none, nothing waits for anything.
    pub any_commits: bool,
    /// Per node, whether it may fail.
    pub may_fail: Vec<bool>,
    /// Per node, whether it is a commit or depends on one.
    pub late: Vec<bool>,
    /// Per node, whether its check must be made before any commit.
    pub first: Vec<bool>,
}

impl Checks {
    /// Those of a graph.
    pub fn of(graph: &Graph, limits: &Limits) -> Checks {
        let any_commits = has_commits(graph);
        if !any_commits {
            let none = vec![false; graph.nodes.len()];
            return Checks { any_commits, may_fail: none.clone(), late: none.clone(), first: none };
        }
        let may_fail: Vec<bool> = graph.nodes.iter().map(|node| may_fail(&node.op, limits)).collect();
        let mut late: Vec<bool> = Vec::with_capacity(graph.nodes.len());
        let mut first = Vec::with_capacity(graph.nodes.len());
        let mut known: HashSet<(NodeIdx, usize)> = HashSet::new();
        for (idx, node) in graph.nodes.iter().enumerate() {
            let is_late = matches!(node.op, Op::Commit) || node.inputs.iter().any(|i| late[*i as usize]);
            // A gradient adds at the places that the value was looked up at: their indices are known to be in range once
            // the lookup was made, and the whole backward pass need not be gone before the first commit.
            let mut is_known = || looked_up(graph, node).is_some_and(|lookup| !known.insert(lookup));
            first.push(may_fail[idx] && !is_late && !is_known());
            late.push(is_late);
        }
        Checks { any_commits, may_fail, late, first }
    }
}

/// Whether anything is committed.
pub fn has_commits(graph: &Graph) -> bool {
    graph.nodes.iter().any(|node| matches!(node.op, Op::Commit))
}

/// What a node checks: an index, and what it must stay below.
fn looked_up(graph: &Graph, node: &GraphNode) -> Option<(NodeIdx, usize)> {
    let axis = match node.op {
        Op::Gather(axis, _) => axis,
        Op::Routine(row, params) if row.indexes => params[0] as usize,
        _ => return None,
    };
    Some((node.inputs[1], graph.nodes[node.inputs[0] as usize].shape[axis]))
}

/// Per output, whether it can be read even if a check fails: it is a commit, maybe in another shape, and what it was
/// before depends on no check.
pub fn settled(graph: &Graph, limits: &Limits) -> Vec<bool> {
    if !has_commits(graph) {
        return vec![false; graph.outputs.len()];
    }
    // Whether a node's value is as it should be whatever fails.
    let mut sure: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    let mut is_commit: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let from = match node.op {
            Op::Commit => &node.inputs[..1],
            _ => &node.inputs[..],
        };
        sure.push(!may_fail(&node.op, limits) && from.iter().all(|i| sure[*i as usize]));
        is_commit.push(match node.op {
            Op::Commit => true,
            Op::View(_) => is_commit[node.inputs[0] as usize],
            _ => false,
        });
    }
    graph.outputs.iter().map(|o| is_commit[*o as usize] && sure[*o as usize]).collect()
}
