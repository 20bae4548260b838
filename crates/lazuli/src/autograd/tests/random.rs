//! Gradients of random graphs: smooth ops, views and reductions over each other in any order, sharing their inputs.

use proptest::prelude::*;

use super::Smooth::{Once, Twice};
use super::check;
use crate::Tensor;
use crate::shape::keep;

/// One more op over what there is, chosen by dice. Each keeps numbers small, so that differences stay exact.
fn grow(pool: &mut Vec<Tensor>, dice: &[usize]) {
    let pick = |i: usize| pool[pool.len() - 1 - dice[i] % pool.len().min(3)].clone();
    let (x, other) = (pick(1), pick(2));
    let shape = x.shape().expect("no mistake").to_vec();
    let rank = shape.len();
    let axis = if rank > 0 { (dice[3] % rank) as i32 } else { 0 };
    let unary: [fn(&Tensor) -> Tensor; 8] = [
        Tensor::sin,
        Tensor::tanh,
        Tensor::sigmoid,
        |x| x.square().add(1.0).sqrt(),
        |x| x.tanh().exp(),
        |x| x.mul(0.5).cos(),
        |x| x.square().add(0.5).recip(),
        Tensor::atan,
    ];
    let y = match dice[0] % 14 {
        0..=3 => unary[dice[4] % unary.len()](&x),
        4 | 5 => match crate::Shape::from(&shape).broadcast(&crate::Shape::from(other.shape().expect("no mistake"))) {
            Some(both) if both.n_elems() <= 40 && dice[4].is_multiple_of(2) => x.mul(&other).tanh(),
            Some(both) if both.n_elems() <= 40 => x.sub(&other),
            _ => x.sin(),
        },
        6 if rank > 0 => x.mean(keep(axis)),
        7 if rank > 0 => x.sum(axis).mul(0.5),
        8 if rank > 0 => x.softmax(axis),
        9 if rank > 1 => x.transpose(0, -1),
        10 if rank > 0 => x.flip(axis),
        11 if rank > 0 && shape[axis as usize] > 1 => x.narrow(axis, 1, shape[axis as usize] - 1),
        12 if rank > 0 && shape.iter().product::<usize>() <= 20 => Tensor::cat(&[&x, &x.sin()], axis),
        13 if rank == 2 => x.matmul(&x.t()).tanh(),
        _ => x.reshape([shape.iter().product::<usize>()]),
    };
    pool.push(y);
}

fn graph(leaves: &[Tensor], dice: &[Vec<usize>]) -> Tensor {
    let mut pool = leaves.to_vec();
    dice.iter().for_each(|d| grow(&mut pool, d));
    // All that was made has a say, so that nothing is left out.
    let parts = pool.iter().map(|x| x.mean(..));
    parts.reduce(|a, b| a.add(b)).expect("there are leaves")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn gradients_of_random_graphs_are_their_slopes(
        rows in 1usize..4,
        columns in 1usize..5,
        dice in prop::collection::vec(prop::collection::vec(0usize..1000, 5), 1..10),
        twice in any::<bool>(),
    ) {
        let shapes: &[&[usize]] = &[&[rows, columns], &[columns]];
        // Ten roundings, one after another, of numbers near 1.
        check("a graph", if twice { Twice } else { Once }, shapes, (-1.5, 1.5), 1e-4, |leaves| graph(leaves, &dice));
    }
}
