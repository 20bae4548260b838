//! Tests of made operands: results have the same bits as with stored operands, and on the CPU a made operand has no kernel and no
//! memory of its own.

use lazuli::{BlockFormat, DType, Device, Tensor};

use crate::device::device;
use crate::{alone, shared};

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), shape, &device())
}

fn weight(format: &str, shape: [usize; 2], seed: usize) -> Tensor {
    let format = BlockFormat::named(format).unwrap();
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| ((i * 29 + seed) % 101) as f32 * 0.01 - 0.5).collect();
    Tensor::from_blocks(format, &format.quantize(&values).unwrap(), shape, &device())
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Checks a product whose operand is a map: it has `n_kernels` kernels on the CPU, and the bits of the product of a stored operand.
#[track_caller]
fn check(n_kernels: usize, operand: impl Fn() -> Tensor, product: impl Fn(&Tensor) -> Tensor) {
    let stored = bits(&product(&operand().compute().unwrap()));
    let y = product(&operand());
    let plan = lazuli::explain(&[&y]).unwrap();
    if device() == Device::cpu() {
        assert_eq!(plan.kernels.len(), n_kernels, "{plan}");
    }
    assert!(bits(&y) == stored, "{plan}");
    // If the operand is wanted, too, the product reads it from memory and gives the same bits.
    let operand = operand();
    let y = product(&operand);
    lazuli::compute(&[&y, &operand]).unwrap();
    assert!(bits(&y) == stored);
}

#[test]
fn a_made_operand_gives_the_bits_of_a_stored_one() {
    let _device = shared();
    // Rows, with the matrix by rows and by columns, and columns; sums in parts of k, and matrices larger than a second-level cache.
    for [k, n] in [[300, 77], [5000, 33], [64, 130], [1, 5], [1024, 1], [65_536, 2], [65_537, 2]] {
        let row = || data(&[1, k], 1).exp().mul(data(&[k], 2)).sub(data(&[1], 3));
        let column = || row().reshape([k, 1]);
        let n_kernels = if k <= 1 << 16 { 1 } else { 2 };
        check(n_kernels, row, |x| x.matmul(&data(&[k, n], 6)));
        check(n_kernels, row, |x| x.matmul(&data(&[n, k], 6).t()).add(&data(&[n], 7)).relu());
        check(n_kernels, column, |x| data(&[n, k], 8).matmul(x));
        check(n_kernels, column, |x| data(&[k, n], 8).t().matmul(x).exp());
    }
    let y = data(&[1, 64], 1).exp().mul(data(&[64], 2)).matmul(&data(&[64, 5], 3));
    let plan = lazuli::explain(&[&y]).unwrap();
    assert!(plan.repeated.is_empty(), "each element is computed once: {plan}");
    // Several rows are stored.
    let rows = || data(&[2, 64], 1).exp().mul(data(&[64], 2));
    check(2, rows, |x| x.matmul(&data(&[64, 5], 3)));
}

#[test]
fn reshapes_of_rows_and_both_operands_are_made() {
    let _device = shared();
    let map = || data(&[96], 1).exp().add(data(&[96], 2));
    check(1, map, |x| x.reshape([1, 1, 96]).matmul(&data(&[1, 96, 9], 3)));
    check(1, map, |x| x.reshape([1, 96]).matmul(&data(&[96, 9], 4)).mul(2.0));
    // A map over one axis is made by the product even if a reshape turns its elements into a matrix or into a batch of rows.
    check(1, map, |x| x.reshape([8, 12]).matmul(&data(&[12, 9], 5)));
    check(1, map, |x| x.reshape([8, 1, 12]).matmul(&data(&[8, 12, 9], 6)));
    check(1, map, |x| x.reshape([1, 96]).matmul(&data(&[96], 7).tanh().reshape([96, 1])));
    // The operand is padded.
    check(1, || data(&[1, 30], 9).exp().pad(&[(0, 0), (1, 1)], 0.5), |x| x.matmul(&data(&[32, 4], 10)));
    // The outer product of two rows.
    check(1, || data(&[4, 1], 1).exp().mul(data(&[4, 1], 2)), |x| x.matmul(&data(&[1, 3], 3)));
}

#[test]
fn rows_are_made_of_narrow_values_and_of_blocks() {
    let _device = shared();
    let bytes = data(&[1, 300], 1).add(1.0).mul(60.0).to_dtype(DType::U8).compute().unwrap();
    let halves = data(&[7, 300], 2).to_dtype(DType::F16).compute().unwrap();
    let w = data(&[300, 20], 3);
    check(1, || bytes.to_dtype(DType::F32).sub(60.0).mul(data(&[300], 4)), |x| x.matmul(&w));
    check(1, || halves.narrow(0, 3, 1).to_dtype(DType::F32).exp(), |x| x.matmul(&w));
    let blocks = weight("Q8_0", [3, 512], 6);
    check(1, || blocks.narrow(0, 1, 1).mul(data(&[512], 7)), |x| x.matmul(&data(&[512, 9], 8)));
}

#[test]
fn products_with_blocks_make_their_rows() {
    let _device = shared();
    for format in ["Q4_0", "Q8_0"] {
        let w = weight(format, [96, 512], 3);
        let row = || data(&[1, 512], 1).silu().mul(data(&[512], 2));
        check(1, row, |x| x.matmul(&w.t()).add(&data(&[96], 4)));
    }
}

/// `(silu(x·G) ∘ (x·U))·D + x`.
fn gated(x: &Tensor, [gate, up, down]: [&Tensor; 3]) -> Tensor {
    x.matmul(&gate.t()).silu().mul(&x.matmul(&up.t())).matmul(&down.t()).add(x)
}

#[test]
fn a_gated_layer_of_one_row_is_two_launches() {
    let _device = alone();
    for in_blocks in [false, true] {
        let of = |shape: [usize; 2], seed| if in_blocks { weight("Q4_0", shape, seed) } else { data(&shape, seed) };
        // With shorter sums the whole layer would be one chained product.
        let weights = [of([768, 576], 1), of([768, 576], 2), of([576, 768], 3)];
        let weights = [&weights[0], &weights[1], &weights[2]];
        for m in [1, 5] {
            let x = data(&[m, 576], 7);
            let hidden = x.matmul(&weights[0].t()).silu().compute().unwrap();
            let hidden = hidden.mul(x.matmul(&weights[1].t()).compute().unwrap()).compute().unwrap();
            let expect = bits(&hidden.matmul(&weights[2].t()).add(&x));
            let y = gated(&x, weights);
            let plan = lazuli::explain(&[&y]).unwrap();
            if device() == Device::cpu() {
                assert_eq!(plan.kernels.len(), if m == 1 { 2 } else { 3 }, "{plan}");
                let before = device().stats().dispatches;
                assert!(bits(&y) == expect, "{plan}");
                assert_eq!(device().stats().dispatches - before, plan.kernels.len() as u64);
            } else {
                assert!(bits(&y) == expect, "{plan}");
            }
        }
    }
}

#[test]
fn gradients_through_made_operands_are_those_of_stored_ones() {
    let _device = shared();
    let (a, b, w) = (data(&[1, 32], 1), data(&[1, 32], 2), data(&[32, 8], 3));
    let loss = a.exp().mul(&b).matmul(&w).square().mean(..);
    let grads = loss.grad(&[&a, &b, &w]);
    let hidden = a.exp().mul(&b).compute().unwrap();
    let dy = hidden.matmul(&w).mul(2.0 / 8.0).compute().unwrap();
    let dx = dy.matmul(&w.t()).compute().unwrap();
    let expect = [dx.mul(&b).mul(a.exp()), dx.mul(a.exp()), hidden.t().matmul(&dy)];
    for (got, expect) in grads.iter().zip(&expect) {
        let worst = got.sub(expect).abs().max(..).div(expect.abs().max(..)).to_vec::<f32>().unwrap()[0];
        assert!(worst < 1e-6, "{worst}");
    }
}

#[test]
fn an_input_that_an_operand_is_made_of_is_not_overwritten_by_the_product() {
    let _device = shared();
    let (b, w) = (data(&[1, 400], 2), data(&[400, 400], 3));
    let made = data(&[1, 400], 1).exp().mul(&b).compute().unwrap();
    let expect = bits(&made.matmul(&w).add(data(&[1, 400], 1)));
    // Nobody holds `a` when `y` is computed: the memory of `a` may be reused, but not while the product may make its operand from it.
    let a = data(&[1, 400], 1);
    let y = a.exp().mul(&b).matmul(&w).add(&a);
    drop(a);
    assert!(bits(&y) == expect);
}
