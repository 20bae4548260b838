//! What kernels compute more often than there are elements: what is cheap is computed again in every kernel that reads it, and
//! for every index that sees it, rather than stored. Told by `explain`, so that nobody has to take it on trust that it is cheap.

use std::collections::BTreeMap;
use std::fmt;

use crate::graph::{Graph, NodeIdx};

/// Elements of a node that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluation {
    pub node: NodeIdx,
    /// How many, each time that one is computed.
    pub n_elems: usize,
    /// Operations for each, counted in additions.
    pub cost: usize,
}

/// Something that is computed several times rather than stored.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::rand([32, 64], 1, &Device::cpu()).compute()?;
/// let scaled = x.mul(2.0);
/// let plan = lazuli::explain(&[&scaled.sum(0), &scaled.sum(1)])?;
/// assert_eq!((&*plan.repeated[0].op, plan.repeated[0].places), ("mul", 2));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepeatedWork {
    /// What it is.
    pub op: String,
    /// How many elements it has.
    pub n_elems: usize,
    /// In how many places of kernels it is computed: in several kernels, or seen in several ways by one.
    pub places: usize,
    /// The operations beyond those that computing each element once would take, counted in additions. They are part of
    /// the kernels' flops.
    pub flops: usize,
}

/// `mul of 32 elements is computed in 2 places: 32 flops again`.
impl fmt::Display for RepeatedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RepeatedWork { op, n_elems, places, flops } = self;
        let place = if *places == 1 { "1 place".to_string() } else { format!("{places} places") };
        write!(f, "{op} of {n_elems} elements is computed in {place}: {flops} flops again")
    }
}

/// What is computed more than once, in the order of nodes.
pub fn repeated(graph: &Graph, evaluations: &[Evaluation]) -> Vec<RepeatedWork> {
    let mut all: BTreeMap<NodeIdx, (usize, usize, usize)> = BTreeMap::new();
    for Evaluation { node, n_elems, cost } in evaluations {
        let (places, total, most) = all.entry(*node).or_default();
        *places += 1;
        *total += n_elems * cost;
        *most = (*most).max(*cost);
    }
    let told = all.into_iter().map(|(idx, (places, total, cost))| {
        let node = &graph.nodes[idx as usize];
        let n_elems = node.shape.n_elems();
        RepeatedWork { op: node.op.name().to_string(), n_elems, places, flops: total.saturating_sub(n_elems * cost) }
    });
    told.filter(|work| work.flops > 0).collect()
}
