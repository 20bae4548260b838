//! Resident weights: right for any number of rows, and free of cost the second time.

use lazuli::{DType, Tensor, Weights};

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
fn a_weight_is_the_same_matrix_however_it_is_kept() {
    let _device = shared();
    let device = device();
    let mut weights = Weights::new(&device);
    for (rows, cols) in [(0, 5), (130, 0), (130, 1), (64, 70), (130, 70), (200, 33), (700, 600)] {
        let data = numbers(rows * cols, 1);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            weights.upload_as("w", &data, rows, cols, dtype).unwrap();
            assert!((rows * cols * dtype.size()..=rows * cols * dtype.size() * 9 / 8).contains(&weights.bytes()));
            let tensor = weights.tensor("w").unwrap();
            assert_eq!(tensor.shape().unwrap(), [rows, cols]);
            let rounded = tensor.to_vec::<f32>().unwrap();
            let stored = Tensor::from_slice(&data, [rows, cols], &device).to_dtype(dtype);
            assert_eq!(rounded, stored.to_vec::<f32>().unwrap());
            for m in [0, 1, 3, 8, 40, 200] {
                check(&weights, "w", &rounded, (m, rows, cols));
            }
            // As a part of other maths it is read as it is kept, too.
            let x = Tensor::from_slice(&numbers(4 * cols, 3), [4, cols], &device);
            let expect = x.matmul(&stored.to_dtype(DType::F32).t()).relu().to_vec::<f32>().unwrap();
            let got = x.matmul(&tensor.to_dtype(DType::F32).t()).relu().to_vec::<f32>().unwrap();
            assert!(got.iter().zip(&expect).all(|(x, y)| (x - y).abs() <= cols as f32 * 1e-5));
        }
    }
}

#[test]
fn a_tensor_in_memory_is_shared_and_any_other_is_kept_like_an_upload() {
    let _device = alone();
    let device = device();
    let data = numbers(256 * 100, 1);
    let halves: Vec<f32> = data.iter().map(|x| x * 0.5).collect();
    let tensor = Tensor::from_slice(&data, [256, 100], &device).mul(0.5).compute().unwrap();
    let mut weights = Weights::new(&device);
    let before = device.stats().bytes_live;
    weights.import("shared", &tensor).unwrap();
    assert_eq!(device.stats().bytes_live, before);
    weights.import("made", &tensor.mul(2.0)).unwrap();
    assert_eq!(device.stats().bytes_live - before, 256 * 100 * 4);
    for m in [1, 7] {
        check(&weights, "shared", &halves, (m, 256, 100));
        check(&weights, "made", &data, (m, 256, 100));
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
    for (rows, dtype) in [(64, DType::F32), (320, DType::F32), (320, DType::F16)] {
        weights.upload_as("w", &numbers(rows * 64, 1), rows, 64, dtype).unwrap();
        let (x, mut y) = (numbers(64, 2), vec![0.0; rows]);
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
    }
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
