//! Products on GPUs: right for any size, layout and dtype, against sums in f64.

use lazuli::{DType, Device, Tensor};

use crate::{alone, gpus};

/// Numbers between -1 and 1 that f16 and bf16 hold exactly.
fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + i / 11 + seed * 101) % 257) as f32 / 128.0 - 1.0).collect()
}

/// The matrix in memory order, or transposed there.
fn matrix(rows: usize, cols: usize, transposed: bool, seed: usize, dtype: DType, gpu: &Device) -> (Tensor, Vec<f64>) {
    let values = numbers(rows * cols, seed);
    let at = |r: usize, c: usize| if transposed { c * rows + r } else { r * cols + c };
    let reference = (0..rows * cols).map(|i| values[at(i / cols, i % cols)] as f64).collect();
    let shape = if transposed { [cols, rows] } else { [rows, cols] };
    let tensor = Tensor::from_vec(values, shape, gpu).to_dtype(dtype).compute().unwrap();
    (if transposed { tensor.t() } else { tensor }, reference)
}

fn product(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut y = vec![0.0; m * n];
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                y[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
    y
}

/// Factors are at most 1, so a sum of k products is off by less than k roundings of k; far less where blocks are
/// summed up apart.
#[track_caller]
fn check_close(got: &[f32], want: &[f64], k: usize, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let tolerance = 4.0 * f32::EPSILON as f64 * k as f64;
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((*got as f64 - want).abs() <= tolerance, "{what}: element {i} is {got}, not {want}");
    }
}

#[track_caller]
fn check(m: usize, k: usize, n: usize, dtype: DType, gpu: &Device) {
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let (a, a_values) = matrix(m, k, ta, 1, dtype, gpu);
        let (b, b_values) = matrix(k, n, tb, 2, dtype, gpu);
        let got = a.to_dtype(DType::F32).matmul(&b.to_dtype(DType::F32)).to_vec::<f32>().unwrap();
        let what = format!("[{m}, {k}]·[{k}, {n}] {dtype} {ta} {tb}");
        check_close(&got, &product(&a_values, &b_values, m, k, n), k, &what);
    }
}

/// Sizes around those of tiles, vectors and workgroups.
const SIZES: [usize; 13] = [1, 2, 3, 5, 7, 16, 17, 63, 64, 65, 127, 129, 257];

/// Every pair of sizes in every two places, in every layout; `cargo xtask soak` has every triple.
#[test]
fn any_size_in_any_layout() {
    let _turn = alone();
    let is_soak = std::env::var("LAZULI_SOAK_SECONDS").is_ok();
    for gpu in gpus() {
        for (i, m) in SIZES.into_iter().enumerate() {
            for (j, k) in SIZES.into_iter().enumerate() {
                match is_soak {
                    true => SIZES.into_iter().for_each(|n| check(m, k, n, DType::F32, &gpu)),
                    false => check(m, k, SIZES[(i + j) % SIZES.len()], DType::F32, &gpu),
                }
            }
        }
        // The largest tiles, with and without a rest.
        check(256, 68, 520, DType::F32, &gpu);
        check(12, 36, 1032, DType::F32, &gpu);
        check(321, 40, 321, DType::F32, &gpu);
        check(320, 40, 324, DType::F32, &gpu);
    }
}

#[test]
fn a_sum_longer_than_any_loop_may_be() {
    let _turn = alone();
    for gpu in gpus() {
        check(3, 200_000, 8, DType::F32, &gpu);
        check(1, 200_003, 1, DType::F32, &gpu);
    }
}

#[test]
fn a_weight_larger_than_a_binding() {
    let _turn = alone();
    let (m, k, n) = (2, 512, 70_000);
    for gpu in gpus() {
        let (x, x_values) = matrix(m, k, false, 1, DType::F32, &gpu);
        let (w, w_values) = matrix(k, n, true, 2, DType::F32, &gpu);
        let got = x.matmul(&w).to_vec::<f32>().unwrap();
        check_close(&got, &product(&x_values, &w_values, m, k, n), k, "70,000 × 512");
    }
}

/// What is written with labels is a product like any other: one kernel, nothing copied.
#[test]
fn einsum_dot_and_outer_are_one_kernel() {
    let _turn = alone();
    for gpu in gpus() {
        let of = |shape: &[usize], seed| Tensor::from_vec(numbers(shape.iter().product(), seed), shape, &gpu);
        let (a, b) = (of(&[3, 9, 20], 1), of(&[3, 20, 12], 2));
        let kernels = lazuli::einsum("bij,bjk->bik", &[&a, &b]).explain().unwrap().kernels;
        assert_eq!((kernels.len(), &*kernels[0].form), (1, "matmul"));
        let z = lazuli::einsum("bij,bjk->bik", &[&a, &b]).to_vec::<f32>().unwrap();
        assert_eq!(z, a.matmul(&b).to_vec::<f32>().unwrap());
        // What lies between the axes of a matrix counts matrices.
        let c = of(&[20, 9], 6);
        let z = lazuli::einsum("ji,bjk->bik", &[&c, &b]);
        assert_eq!(z.explain().unwrap().kernels.len(), 1);
        assert_eq!(z.to_vec::<f32>().unwrap(), c.t().matmul(&b).to_vec::<f32>().unwrap());
        let (u, v) = (of(&[50], 4), of(&[50], 5));
        assert_eq!(u.dot(&v).explain().unwrap().kernels.len(), 1);
        assert_eq!(u.outer(&v).explain().unwrap().kernels.len(), 1);
        let exact: f64 = numbers(50, 4).iter().zip(numbers(50, 5)).map(|(u, v)| *u as f64 * v as f64).sum();
        check_close(&[u.dot(&v).item::<f32>().unwrap()], &[exact], 50, "dot");
    }
}

#[test]
fn explain_names_the_variant_and_why() {
    let _turn = alone();
    for gpu in gpus() {
        let (x, _) = matrix(64, 64, false, 1, DType::F32, &gpu);
        let explain = x.matmul(&x).explain().unwrap();
        let variant = explain.kernels[0].variant.clone().unwrap();
        assert!(variant.contains(": default for ") || variant.contains(": tuned 20"), "{variant}");
        assert!(explain.to_string().contains(&variant) && explain.to_json().contains(&variant));
        assert_eq!((&x + 1.0).explain().unwrap().kernels[0].variant, None);
    }
}

#[test]
fn long_sums_with_few_results() {
    let _turn = alone();
    for gpu in gpus() {
        for (m, k, n) in [(1, 1536, 256), (8, 7000, 8), (3, 2051, 5), (1, 4099, 1)] {
            check(m, k, n, DType::F32, &gpu);
        }
    }
}

#[test]
fn small_floats_are_read_as_stored() {
    let _turn = alone();
    for gpu in gpus() {
        for dtype in [DType::F16, DType::BF16] {
            for (m, k, n) in [(5, 64, 36), (65, 63, 127), (1, 1540, 64)] {
                check(m, k, n, dtype, &gpu);
            }
            let (x, _) = matrix(5, 64, false, 1, DType::F32, &gpu);
            let (w, _) = matrix(64, 36, true, 2, dtype, &gpu);
            let explain = x.matmul(&w.to_dtype(DType::F32)).explain().unwrap();
            assert_eq!((explain.kernels.len(), explain.kernels[0].bytes_read), (1, 5 * 64 * 4 + 64 * 36 * 2));
        }
    }
}

#[test]
fn integers_are_exact() {
    let _turn = alone();
    for gpu in gpus() {
        for (m, k, n) in [(5usize, 67usize, 12usize), (17, 64, 9), (2, 2000, 4)] {
            let a: Vec<i32> = (0..m * k).map(|i| (i * 7919 % 1000) as i32 - 500).collect();
            let b: Vec<i32> = (0..k * n).map(|i| (i * 104_729 % 1000) as i32 - 500).collect();
            let wide = |v: &[i32]| v.iter().map(|x| *x as f64).collect::<Vec<f64>>();
            let want = product(&wide(&a), &wide(&b), m, k, n);
            let got = Tensor::from_vec(a, [m, k], &gpu).matmul(&Tensor::from_vec(b, [k, n], &gpu));
            let got: Vec<f64> = wide(&got.to_vec::<i32>().unwrap());
            assert_eq!(got, want, "{m} {k} {n}");
        }
    }
}

#[test]
fn batches_are_broadcast() {
    let _turn = alone();
    let (m, k, n) = (9, 20, 12);
    for gpu in gpus() {
        let (a, b) = (numbers(3 * m * k, 3), numbers(2 * k * n, 4));
        let x = Tensor::from_vec(a.clone(), [3, 1, m, k], &gpu);
        let y = Tensor::from_vec(b.clone(), [2, k, n], &gpu);
        let got = x.matmul(&y).to_vec::<f32>().unwrap();
        let wide = |v: &[f32]| v.iter().map(|x| *x as f64).collect::<Vec<f64>>();
        let mut want = Vec::new();
        for i in 0..3 {
            for j in 0..2 {
                let (a, b) = (&a[i * m * k..][..m * k], &b[j * k * n..][..k * n]);
                want.extend(product(&wide(a), &wide(b), m, k, n));
            }
        }
        check_close(&got, &want, k, "batches");
    }
}

#[test]
fn what_follows_a_product_is_in_its_kernel() {
    let _turn = alone();
    for gpu in gpus() {
        for (m, k, n) in [(3, 40, 10), (33, 64, 36), (260, 8, 520), (2, 3000, 8)] {
            let (x, x_values) = matrix(m, k, false, 5, DType::F32, &gpu);
            let (w, w_values) = matrix(k, n, false, 6, DType::F32, &gpu);
            let (b, b_values) = matrix(1, n, false, 7, DType::F32, &gpu);
            let (r, r_values) = matrix(m, n, false, 8, DType::F32, &gpu);
            let y = (x.matmul(&w) + b).relu() * 0.5 + &r;
            let want: Vec<f64> = product(&x_values, &w_values, m, k, n)
                .iter()
                .enumerate()
                .map(|(i, p)| (p + b_values[i % n]).max(0.0) * 0.5 + r_values[i])
                .collect();
            check_close(&y.to_vec::<f32>().unwrap(), &want, k + 2, "relu");
            let b = Tensor::ones([n], DType::F32, &gpu).compute().unwrap();
            assert_eq!(((x.matmul(&w) + b).gelu() * 0.5 + &r).explain().unwrap().kernels.len(), 1);
        }
    }
}
