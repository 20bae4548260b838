//! Stages of an evaluation: lists of outputs that are wanted one after another, so that a caller can use those of the first
//! while the rest is computed. A node belongs to the earliest stage that needs it, and a kernel makes nodes of one stage
//! only: work of a later stage inside it would delay what is wanted first. What a later stage needs of an earlier one is
//! stored. Knows the graph; kernels are put into this order by `order`.

use super::Plan;
use super::checks::Checks;
use crate::graph::{Graph, NodeIdx, Op};

/// How far a plan has come when a stage ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageEnd {
    /// Launches that have run.
    pub launches: usize,
    /// Outputs that are there.
    pub outputs: usize,
}

impl Plan {
    /// How often a device is handed work: once a stage, unless the stage has none.
    pub fn n_submits(&self) -> usize {
        let starts = [0].into_iter().chain(self.stages.iter().map(|end| end.launches));
        starts.zip(&self.stages).filter(|(start, end)| end.launches > *start).count()
    }

    /// Per output, the stage whose launches make it, which may come before the stage in which it is wanted. The CPU knows at
    /// once what failed, and need not ask.
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    pub fn made_in(&self) -> Vec<usize> {
        let mut made_in = vec![0; self.value_elems.len()];
        let mut stage = 0;
        for (at, launch) in self.launches.iter().enumerate() {
            stage += self.stages[stage..].iter().take_while(|end| end.launches <= at).count();
            launch.write_values.iter().for_each(|value| made_in[*value as usize] = stage);
        }
        self.output_values.iter().map(|value| made_in[*value as usize]).collect()
    }
}

/// Per node, its stage. Empty if nothing is staged.
#[derive(Clone, Debug, Default)]
pub struct NodeStages {
    stages: Vec<u32>,
    /// Whether a later stage needs it, too, by itself or through what may be computed anew wherever it is wanted.
    is_shared: Vec<bool>,
}

impl NodeStages {
    /// Those of a graph.
    pub fn of(graph: &Graph, checks: &Checks) -> NodeStages {
        if graph.stages.is_empty() {
            return NodeStages::default();
        }
        let mut stages = vec![u32::MAX; graph.nodes.len()];
        let mut start = 0;
        for (stage, end) in graph.stages.iter().enumerate() {
            for output in &graph.outputs[start..*end] {
                stages[*output as usize] = stages[*output as usize].min(stage as u32);
            }
            start = *end;
        }
        lower_inputs(graph, &mut stages);
        // Checks that commits wait for come before the first commit, with all that they need.
        let is_commit = |idx: &usize| matches!(graph.nodes[*idx].op, Op::Commit);
        if let Some(first_commit) = (0..stages.len()).filter(is_commit).map(|idx| stages[idx]).min() {
            for (stage, _) in stages.iter_mut().zip(&checks.first).filter(|(_, first)| **first) {
                *stage = first_commit.min(*stage);
            }
            lower_inputs(graph, &mut stages);
        }
        let mut is_shared = vec![false; stages.len()];
        for (idx, node) in graph.nodes.iter().enumerate().rev() {
            let is_memory = matches!(node.op, Op::Routine(..) | Op::Cat(_) | Op::WriteRows(_));
            let is_repeated = !is_memory && !matches!(node.op, Op::Reduce(..) | Op::Matmul);
            for input in &node.inputs {
                let is_later = stages[idx] > stages[*input as usize];
                is_shared[*input as usize] |= is_later || is_repeated && is_shared[idx];
            }
        }
        NodeStages { stages, is_shared }
    }

    /// The stage of a node.
    pub fn stage(&self, idx: NodeIdx) -> u32 {
        self.stages.get(idx as usize).copied().unwrap_or(0)
    }

    /// Whether a node must be stored, however cheap it is, because two stages would compute it.
    pub fn is_shared(&self, idx: NodeIdx) -> bool {
        self.is_shared.get(idx as usize).copied().unwrap_or(false)
    }
}

/// An input is needed as early as what is made of it.
fn lower_inputs(graph: &Graph, stages: &mut [u32]) {
    for (idx, node) in graph.nodes.iter().enumerate().rev() {
        for input in &node.inputs {
            stages[*input as usize] = stages[*input as usize].min(stages[idx]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Explain, Plan, Target, compile, verify};
    use crate::graph::{NodeRef, capture};
    use crate::{DType, Device, Tensor};

    fn target() -> Target {
        let mut target = Target::baseline();
        target.limits.panels = None;
        target
    }

    fn staged(stages: &[&[&Tensor]]) -> Plan {
        let nodes: Vec<&NodeRef> =
            stages.iter().flat_map(|stage| stage.iter()).map(|t| t.node().expect("a good tensor")).collect();
        let device = nodes[0].device.clone();
        let _lock = device.cache().lock();
        let mut n_outputs = 0;
        let end = |stage: &&[&Tensor]| {
            n_outputs += stage.len();
            n_outputs
        };
        let graph = capture(&nodes, &stages.iter().map(end).collect::<Vec<_>>()).graph();
        compile(graph, &target())
    }

    fn data(shape: impl Into<crate::Shape>) -> Tensor {
        let shape = shape.into();
        Tensor::from_vec(vec![1.0f32; shape.n_elems()], shape, &Device::cpu())
    }

    /// How many launches have run at the end of each stage, and what each launch is.
    fn shape(plan: &Plan) -> (Vec<usize>, Vec<Vec<String>>) {
        (
            plan.stages.iter().map(|end| end.launches).collect(),
            plan.launches.iter().map(|l| l.ops.iter().map(|op| op.to_string()).collect()).collect(),
        )
    }

    #[test]
    fn a_later_stage_does_not_go_into_the_kernels_of_an_earlier_one() {
        let x = data([4, 8]);
        let first = x.exp();
        // Alone it would be the same kernel, as would be the sum.
        let second = first.sin();
        let plan = staged(&[&[&first], &[&second], &[&second.sum(1)]]);
        assert_eq!(shape(&plan).0, [1, 2, 3], "{plan}");
        assert!(plan.to_string().contains("stage 1:\n"), "{plan}");
        assert_eq!(Explain::new(&plan).boundaries[0].why, "a later stage needs it, too");
        let together = staged(&[&[&first, &second, &second.sum(1)]]);
        assert_eq!(shape(&together).0, [1], "{together}");
    }

    #[test]
    fn what_two_stages_need_is_computed_in_the_first_and_stored() {
        let (x, y) = (data([8]), data([8]));
        // Cheap enough to be computed again wherever it is wanted, but for stages.
        let both = x.mul(2.0);
        let plan = staged(&[&[&both.add(&y)], &[&both.sub(&y)]]);
        let n_products = shape(&plan).1.concat().iter().filter(|op| *op == "mul").count();
        assert_eq!((shape(&plan).0, n_products), (vec![1, 2], 1), "{plan}");
    }

    #[test]
    fn a_stage_without_work_is_no_submit() {
        let x = data([4, 8]);
        let y = x.softmax(-1);
        let plan = staged(&[&[&x], &[&y], &[&y.reshape([8, 4])], &[&x.t().exp()]]);
        assert_eq!(shape(&plan).0, [0, 1, 1, 2], "{plan}");
        assert_eq!((plan.n_submits(), plan.made_in()), (2, vec![0, 1, 1, 3]), "{plan}");
    }

    #[test]
    fn checks_come_before_the_first_stage_that_commits() {
        let (x, old, table) = (data([3, 4]), data([3, 4]), data([10, 4]));
        let rows = table.embedding(&Tensor::from_vec(vec![1i32; 3], [3], &Device::cpu()));
        let kept = old.add(1.0).unless_failed(&old);
        let plan = staged(&[&[&x.exp()], &[&kept], &[&rows, &rows.to_dtype(DType::F16)]]);
        let (ends, ops) = shape(&plan);
        let place = |name: &str| ops.iter().position(|ops| ops.iter().any(|op| op == name)).unwrap();
        let stage = |name: &str| ends.iter().take_while(|end| **end <= place(name)).count();
        assert_eq!((stage("exp"), stage("embedding"), stage("unless_failed")), (0, 1, 1), "{plan}");
        assert!(place("embedding") < place("unless_failed"), "{plan}");
    }

    #[test]
    fn the_verifier_finds_what_is_wrong_with_stages() {
        let x = data([4, 8]);
        let first = x.exp();
        let good = staged(&[&[&first], &[&first.matmul(&x.t())], &[&first.sum(0)]]);
        let verified = |plan: &Plan| verify::verify(plan, &target().limits).and_then(|()| verify::verify_stages(plan));
        assert_eq!(verified(&good), Ok(()));
        let breaks: [(&str, fn(&mut Plan)); 5] = [
            ("no stages", |p| p.stages.clear()),
            ("an end that is not the end", |p| p.stages.truncate(2)),
            ("an output that is not there yet", |p| p.stages[0].outputs = 2),
            ("work that nobody needs yet", |p| p.stages[0].launches = 2),
            ("a stage that goes back", |p| p.stages[1].launches = 0),
        ];
        for (what, break_it) in breaks {
            let mut plan = good.clone();
            break_it(&mut plan);
            assert!(verified(&plan).is_err(), "not found: {what}\n{plan}");
        }
    }
}
