//! Products of many sizes and layouts have valid texts, and few of them.

use super::*;

fn product(m: usize, k: usize, n: usize, layout: (bool, bool), dtype: DType) -> Tensor {
    let matrix = |rows: usize, cols: usize, transposed: bool| match transposed {
        true => data([cols, rows], dtype).t(),
        false => data([rows, cols], dtype),
    };
    matrix(m, k, layout.0).matmul(&matrix(k, n, layout.1))
}

#[test]
fn every_tile_in_every_layout() {
    for layout in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n) in [(1, 64, 64), (1, 7, 5), (2, 2048, 12), (3, 5, 7), (8, 64, 1024), (17, 63, 65), (256, 16, 512)]
        {
            check(&[&product(m, k, n, layout, DType::F32)]);
        }
        check(&[&product(24, 32, 20, layout, DType::F16)]);
        check(&[&product(24, 33, 21, layout, DType::I32)]);
    }
}

#[test]
fn a_product_and_what_follows_it_in_any_tile() {
    for (m, k, n) in [(1, 64, 64), (5, 5, 6), (4, 4096, 8), (256, 16, 512)] {
        let x = product(m, k, n, (false, false), DType::F32);
        let y = (x + data([n], DType::F32)).gelu() * 0.5 + data([m, n], DType::F32);
        check(&[&y]);
    }
}

#[test]
fn few_results_of_long_sums_are_shared_out() {
    let plan = plan(&[&product(8, 70_000, 8, (false, false), DType::F32)]);
    let program = program(&plan.launches[0], &plan.slots, &caps(Style::Alone));
    assert_eq!(program.passes.len(), 2);
    // Eight invocations in a group; both of two cores have several.
    assert!(program.passes[0].n_groups >= 8);
}
