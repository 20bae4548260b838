//! What evaluations of a few numbers allocate, and plans of many ops: users of small tensors pay for that more than for
//! arithmetic.

use lazuli::{Device, Tensor};

use crate::refusing::{allocations, alone};

#[test]
fn an_evaluation_that_is_planned_allocates_nodes_and_results_alone() {
    let _alone = alone();
    let cpu = Device::cpu();
    let [a, b, c] = [1.0f32, 2.0, 3.0].map(|x| Tensor::from_vec(vec![x; 16], [16], &cpu));
    let evaluate = || drop(a.add(&b).mul(5.0).sub(&c).compute().unwrap());
    evaluate();
    let (_, n) = allocations(|| (0..100).for_each(|_| evaluate()));
    // Three ops and a number; the tokens of the two values that are still held while the third is computed; the result.
    assert_eq!(n, 100 * 7);
}

/// How often memory is allocated to plan a chain of this many ops.
fn allocations_of_a_plan(n_ops: usize) -> usize {
    let cpu = Device::cpu();
    let [mut out, y] = [1.0f32, 2.0].map(|x| Tensor::from_vec(vec![x; 8], [8], &cpu));
    for i in 0..n_ops {
        out = if i % 3 == 0 { out.add(&y) } else { out.mul(0.5) };
    }
    allocations(|| out.explain().unwrap()).1
}

#[test]
fn planning_grows_linearly_with_the_ops() {
    let _alone = alone();
    let [small, medium, large] = [10_000, 100_000, 1_000_000].map(allocations_of_a_plan);
    // Vectors that double allocate less than linearly. That a million ops are planned at all says the rest: work that
    // grows with the square of the ops, but allocates nothing, would keep this test running for an hour.
    assert!(medium <= 11 * small, "{small} for 10,000 ops, {medium} for 100,000");
    assert!(large <= 11 * medium, "{medium} for 100,000 ops, {large} for 1,000,000");
}
