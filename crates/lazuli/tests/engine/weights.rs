//! Resident weights: right for any number of rows, and free of cost the second time.

use lazuli::{DType, Weights};

use crate::device::device;
use crate::{alone, shared};

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect()
}

/// Every product of `m` rows with `weight` (`[rows, cols]`), against f64. Numbers are below 1.1, so sums of `cols`
/// products are off by less than `cols` roundings of numbers that size.
#[track_caller]
fn check(weights: &Weights, name: &str, weight: &[f32], (m, rows, cols): (usize, usize, usize)) {
    let x = numbers(m * cols, 3);
    let mut y = vec![f32::NAN; m * rows];
    weights.matmul(name, &x, &mut y, m).unwrap();
    for (i, got) in y.iter().enumerate() {
        let (x, w) = (&x[i / rows * cols..][..cols], &weight[i % rows * cols..][..cols]);
        let want: f64 = x.iter().zip(w).map(|(x, w)| *x as f64 * *w as f64).sum();
        let bound = (cols as f64 + 1.0) * cols as f64 * 6e-8;
        assert!((*got as f64 - want).abs() <= bound, "{i} of m = {m}, [{rows}, {cols}]: {got}, not {want}");
    }
}

#[test]
fn a_weight_is_right_for_any_number_of_rows() {
    let _device = shared();
    let mut weights = Weights::new(&device());
    for (rows, cols) in [(1, 1), (3, 5), (64, 64), (65, 129), (257, 63)] {
        let data = numbers(rows * cols, 1);
        weights.upload("w", &data, rows, cols).unwrap();
        for m in [1, 2, 5, 16, 17, 70] {
            check(&weights, "w", &data, (m, rows, cols));
        }
    }
}

#[test]
fn a_weight_in_half_the_memory_is_multiplied_as_it_was_rounded() {
    let _device = shared();
    let mut weights = Weights::new(&device());
    let (rows, cols) = (33, 40);
    let data = numbers(rows * cols, 1);
    weights.upload_as("f16", &data, rows, cols, DType::F16).unwrap();
    weights.upload_as("bf16", &data, rows, cols, DType::BF16).unwrap();
    assert_eq!(weights.bytes(), 2 * 2 * rows * cols);
    for name in ["f16", "bf16"] {
        let rounded = weights.tensor(name).unwrap().to_vec::<f32>().unwrap();
        for m in [1, 4, 20] {
            check(&weights, name, &rounded, (m, rows, cols));
        }
    }
}

#[test]
fn a_warm_product_makes_nothing_new_and_a_removed_weight_is_free() {
    let _device = alone();
    let device = device();
    let before = device.stats().bytes_live;
    let mut weights = Weights::new(&device);
    weights.upload("w", &numbers(64 * 64, 1), 64, 64).unwrap();
    let (x, mut y) = (numbers(64, 2), [0.0; 64]);
    for _ in 0..3 {
        weights.matmul("w", &x, &mut y, 1).unwrap();
    }
    device.reset_stats();
    for _ in 0..20 {
        weights.matmul("w", &x, &mut y, 1).unwrap();
    }
    let warm = device.stats();
    assert_eq!((warm.plans_compiled, warm.pipelines_compiled, warm.buffers_created), (0, 0, 0), "{warm:?}");
    assert_eq!((warm.submits, warm.dispatches), (20, 20), "{warm:?}");
    assert!(weights.remove("w"));
    assert_eq!(device.stats().bytes_live, before);
}

#[test]
fn a_weight_beyond_the_limit_of_a_binding_is_split() {
    let _device = alone();
    let (rows, cols) = (70_000, 512);
    let data = numbers(rows * cols, 1);
    let mut weights = Weights::new(&device());
    weights.upload("large", &data, rows, cols).unwrap();
    check(&weights, "large", &data, (1, rows, cols));
    check(&weights, "large", &data, (3, rows, cols));
}
