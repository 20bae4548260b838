//! Random expressions are valid WGSL.

use proptest::prelude::*;

use super::*;

/// One of some ways to go on from two tensors of one shape.
fn step(x: &Tensor, y: &Tensor, choice: usize) -> Tensor {
    match choice % 12 {
        0 => x.add(y),
        1 => x.mul(0.5).exp(),
        2 => x.gt(y).select(y, 1),
        3 => x.to_dtype(DType::ALL[choice / 12 % 7]),
        4 => x.softmax(-1),
        5 => x.sub(&y.mean(crate::keep(0))),
        6 => x.flip(0),
        7 => x.maximum(&y.sum(crate::keep(1))),
        8 => x.t().reshape(x.shape().unwrap_or(&[])),
        9 => x.pad(&[(1, 0), (0, 2)], 1).narrow(0, 1, x.shape().map_or(1, |s| s[0])).narrow(
            1,
            0,
            x.shape().map_or(1, |s| s[1]),
        ),
        10 => x.add(&y.narrow(0, 0, 1)),
        _ => x.matmul(&y.t()).matmul(y),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_expression_is_valid(
        rows in prop_oneof![1usize..9, 60usize..70],
        cols in prop_oneof![1usize..9, 60usize..70],
        dtypes in prop::array::uniform2(0usize..7),
        choices in prop::collection::vec(0usize..84, 1..6),
    ) {
        let mut tensors: Vec<Tensor> = dtypes.iter().map(|d| data([rows, cols], DType::ALL[*d])).collect();
        for choice in choices {
            let n = tensors.len();
            tensors.push(step(&tensors[n - 1], &tensors[choice % n], choice));
        }
        let last = &tensors[tensors.len() - 1];
        if last.check().is_ok() {
            check(&[last]);
        }
    }
}
