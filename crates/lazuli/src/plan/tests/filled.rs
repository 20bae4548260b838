//! A filled plan is the plan that would be made afresh, whatever sizes came before: random structures with random pairs of
//! sizes, small ones, so that sizes often meet by chance.

use proptest::prelude::*;

use super::super::{Made, Templates, compile, plan};
use super::{data, limits};
use crate::graph::{Graph, NodeRef, capture};
use crate::target::{Limits, Target};
use crate::{Tensor, keep};

/// An expression of these steps over these sizes.
fn program(steps: &[u8], sizes: [usize; 3]) -> Vec<Tensor> {
    let [a, b, c] = sizes;
    let mut x = data([a, b]);
    let mut wanted = Vec::new();
    for step in steps {
        let dims = x.shape().expect("a good tensor").to_vec();
        let last = dims[dims.len() - 1];
        x = match step {
            0 => x.exp(),
            1 => x.add(x.sum(keep(-1))),
            2 => x.softmax(-1),
            3 => x.t(),
            4 => x.matmul(&data([last, c])),
            5 => x.sub(x.mean(keep(0))).mul(&x),
            6 => Tensor::cat(&[&x, &data([c, last])], 0),
            7 => x.narrow(0, dims[0] / 2, dims[0] - dims[0] / 2),
            8 => x.pad(&[(1, 0), (0, 1)], 0.5),
            9 => x.reshape([dims.iter().product::<usize>()]).add(1.0).reshape(dims),
            10 => x.layer_norm(-1, None, None, 1e-5).matmul(&data([last, a])).relu(),
            11 => {
                wanted.push(x.clone());
                x.max(-1).unsqueeze(0).add(&data([1, dims[0]]))
            }
            12 => x.reshape([dims[1], dims[0]]).mul(2.0),
            13 => x.matmul(&x.t()),
            // The map over two products is either the epilogue of one of them, or it is made by a third product, and the two
            // share a launch.
            _ => x.matmul(&data([last, c])).tanh().mul(x.matmul(&data([last, c]))).matmul(&data([c, b])),
        };
    }
    wanted.push(x);
    wanted
}

fn target(limits: Limits) -> Target {
    Target { limits, ..Target::baseline() }
}

fn graph_of(outputs: &[Tensor]) -> Graph {
    let nodes: Vec<&NodeRef> = outputs.iter().map(|t| t.node().expect("a good tensor")).collect();
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    capture(&nodes, &[]).graph()
}

/// Plans with these templates, and compares with a plan made afresh.
fn check(steps: &[u8], sizes: [usize; 3], target: &Target, templates: &mut Templates) -> Made {
    let graph = graph_of(&program(steps, sizes));
    let afresh = compile(graph.clone(), target);
    let (plan, made) = plan(graph, target, templates);
    assert_eq!(format!("{plan}\n{plan:?}"), format!("{afresh}\n{afresh:?}"), "{steps:?} of {sizes:?}");
    made
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn a_filled_plan_is_the_plan_made_afresh(
        steps in prop::collection::vec(0u8..15, 1..7),
        sizes in prop::collection::vec(prop::array::uniform3(prop_oneof![4 => 1usize..9, 1 => 60usize..70, 1 => Just(300)]), 2..7),
    ) {
        // Limits so small that some reductions here are cut into pieces, and that some rows are made by products and others stored.
        let limits = Limits { max_reduce: 200, max_piece: 64, min_rows: 16, max_made_elems: 7, ..limits() };
        let mut templates = Templates::new(1 << 20);
        for sizes in sizes {
            check(&steps, sizes, &target(limits.clone()), &mut templates);
        }
    }
}

#[test]
fn other_sizes_of_a_structure_are_filled() {
    let mut templates = Templates::new(1 << 20);
    let steps = [2, 4, 5, 6, 10, 1];
    let made = |sizes, templates: &mut Templates| check(&steps, sizes, &target(limits()), templates);
    assert_eq!(made([20, 30, 40], &mut templates), Made::Compiled);
    let filled = (21..60).filter(|n| made([*n, 30, 40], &mut templates) == Made::Filled).count();
    // Where a size meets another one it may be another plan, which is then kept, too.
    assert!(filled >= 36, "{filled}");
    assert_eq!(made([30, 30, 40], &mut templates), Made::Filled);
}

#[test]
fn a_chained_product_is_no_inner_product_of_another() {
    // softmax(x·a)·b is one kernel; its exponential times c is made of what that one stores.
    check(&[4, 2, 4, 0, 4], [5, 6, 7], &target(limits()), &mut Templates::new(1 << 20));
}

#[test]
fn templates_stay_below_their_bound() {
    let mut templates = Templates::new(100_000);
    for n in 0..200u8 {
        let steps: Vec<u8> = [n % 3, n / 3 % 3, n / 9 % 3, n / 27 % 3, n / 81].map(|step| step * 2).into();
        check(&steps, [5, 6, 7], &target(limits()), &mut templates);
        assert!(templates.size_bytes() <= 100_000 || templates.len() == 1);
    }
    templates.clear();
    assert_eq!(templates.size_bytes(), 0);
}
