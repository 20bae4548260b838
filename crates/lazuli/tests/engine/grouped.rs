//! Products that share an operand are one launch, as far as the device has bindings for it: the same bits as one by one, in
//! place where each alone would be.

use lazuli::{Attention, DType, Tensor};

use crate::device::{attention_kernels, device, max_values};
use crate::{alone, shared};

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), shape, &device())
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_dtype(DType::F32).to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Products computed together are so many launches, and what each is computed alone.
#[track_caller]
fn check<const N: usize>(n_kernels: usize, record: impl Fn() -> [Tensor; N]) {
    let alone: Vec<Vec<u32>> = (0..N).map(|i| bits(&record()[i].compute().unwrap())).collect();
    let products = record();
    let all: Vec<&Tensor> = products.iter().collect();
    let plan = lazuli::explain(&all).unwrap();
    assert_eq!(plan.kernels.len(), n_kernels, "{plan}");
    lazuli::compute(&all).unwrap();
    for (i, (product, alone)) in products.iter().zip(alone).enumerate() {
        assert!(bits(product) == alone, "product {i}: {plan}");
    }
}

#[test]
fn products_of_one_input_are_one_launch_with_the_bits_of_each() {
    let _device = shared();
    for [m, k, n] in [[1, 64, 48], [5, 32, 64], [40, 70, 65], [64, 128, 96], [130, 384, 384]] {
        let x = data(&[m, k], 1);
        let [wq, wk, wv] = [2, 3, 4].map(|seed| data(&[k, n], seed));
        let bias = data(&[n], 5);
        check(1, || [x.matmul(&wq).add(&bias), x.matmul(&wk), x.matmul(&wv).mul(0.5).relu()]);
        // Weights that lie the other way, and fewer heads of keys than of queries.
        let [wk, wv] = [6, 7].map(|seed| data(&[n / 4, k], seed));
        check(1, || [x.matmul(&wq), x.matmul(&wk.t()), x.matmul(&wv.t()).tanh()]);
    }
}

#[test]
fn products_by_one_weight_and_parts_of_one_value_stay_apart() {
    let _device = shared();
    let (a, b, w) = (data(&[20, 48], 1), data(&[7, 48], 2), data(&[48, 32], 3));
    check(2, || [a.matmul(&w).relu(), b.matmul(&w)]);
    let v = data(&[48, 8], 4);
    check(2, || [Tensor::cat(&[&a.matmul(&w), &a.matmul(&v)], 1)]);
}

#[test]
fn batches_half_floats_and_integers_are_grouped_too() {
    let _device = shared();
    let x = data(&[3, 20, 32], 1);
    check(1, || [x.matmul(&data(&[3, 32, 16], 2)), x.matmul(&data(&[32, 24], 3)).exp()]);
    let half = |x: Tensor| x.to_dtype(DType::F16).compute().unwrap();
    let x = half(data(&[40, 64], 4));
    let [a, b] = [5, 6].map(|seed| half(data(&[64, 32], seed)));
    check(1, || [x.matmul(&a), x.matmul(&b)]);
    let whole = |x: Tensor| x.mul(50.0).to_dtype(DType::I32).compute().unwrap();
    let x = whole(data(&[9, 30], 7));
    let [a, b] = [(11, 8), (5, 9)].map(|(n, seed)| whole(data(&[30, n], seed)));
    check(1, || [x.matmul(&a), x.matmul(&b).add(1)]);
}

#[test]
fn products_that_wait_for_each_other_are_not_grouped() {
    let _device = shared();
    let (x, w) = (data(&[16, 32], 1), data(&[32, 32], 2));
    check(3, || {
        let first = x.matmul(&w);
        let second = x.matmul(&first.t().matmul(&x));
        [first, second]
    });
}

#[test]
fn an_encoder_layer_is_at_most_seven_kernels_beside_attention() {
    let _device = shared();
    let (length, width, heads) = (40, 48, 4);
    let x = data(&[length, width], 1);
    let linear = |x: &Tensor, n: usize, seed: usize| {
        let k = x.dims::<2>().unwrap()[1];
        x.matmul(&data(&[k, n], seed)).add(&data(&[n], seed + 1))
    };
    let norm = |x: &Tensor, seed: usize| x.layer_norm(-1, Some(&data(&[width], seed)), Some(&data(&[width], 5)), 1e-5);
    let layer = |joined: bool| {
        // One by one if nothing is to be grouped: what is computed already is no product any more.
        let one = |x: Tensor| if joined { x } else { x.compute().unwrap() };
        let normal = one(norm(&x, 2));
        let by_head =
            |seed: usize| one(linear(&normal, width, seed)).reshape([length, heads, width / heads]).transpose(0, 1);
        let seen = by_head(10).attention(&by_head(20), &by_head(30), Attention::default());
        let x = one(x.add(&linear(&seen.transpose(0, 1).reshape([length, width]), width, 40)));
        x.add(&linear(&linear(&norm(&x, 3), 4 * width, 50).gelu(), width, 60))
    };
    let (y, expect) = (layer(true), bits(&layer(false)));
    let plan = y.explain().unwrap();
    // One input, and of each product the weight, the bias and the result: if that is too much, the third is by itself.
    let (together, apart) = if max_values() >= 10 { ("3x_matmul_add_f32", 0) } else { ("2x_matmul_add_f32", 1) };
    assert!(plan.kernels.len() <= 7 + apart + attention_kernels(), "{plan}");
    assert!(plan.kernels.iter().any(|kernel| kernel.name == together), "{plan}");
    assert!(bits(&y) == expect, "{plan}");
}

#[test]
fn gradients_of_weights_that_share_an_input_are_right_and_replace_weights_in_place() {
    let _device = alone();
    let (m, k, n) = (24, 96, 128);
    let x = data(&[m, k], 1);
    let step = |w: &[Tensor; 3]| {
        let [q, k, v] = w.each_ref().map(|w| x.matmul(w));
        let loss = q.mul(&k).add(&v.square()).sum(..);
        let grads = loss.grad(&[&w[0], &w[1], &w[2]]);
        [0, 1, 2].map(|i| w[i].sub(&grads[i].mul(1e-4)))
    };
    let start = || [2, 3, 4].map(|seed| data(&[k, n], seed).add(0.0).compute().unwrap());
    // Each by itself: nothing is grouped, nothing is donated.
    let expect: Vec<Vec<u32>> = step(&start()).iter().map(bits).collect();
    let w = start();
    let new = step(&w);
    drop(w);
    let all: Vec<&Tensor> = new.iter().collect();
    let before = device().stats().bytes_live;
    lazuli::compute(&all).unwrap();
    // New weights stand where the old ones did.
    let more = device().stats().bytes_live.saturating_sub(before);
    assert!(more < (k * n * 4) as u64, "{more} bytes more are held after the step");
    assert_eq!(new.iter().map(bits).collect::<Vec<_>>(), expect);
}

#[test]
fn rows_of_a_cache_are_written_by_grouped_products() {
    let _device = alone();
    let (x, width) = (data(&[1, 32], 1), 24);
    let [wq, wk, wv] = [2, 3, 4].map(|seed| data(&[32, width], seed));
    let [mut k, mut v] = [5, 6].map(|seed| data(&[10, width], seed).compute().unwrap());
    let expect = [(&k, &wk), (&v, &wv)].map(|(cache, w)| bits(&cache.write_rows(0, 3, &x.matmul(w))));
    let q = x.matmul(&wq);
    k = k.write_rows(0, 3, &x.matmul(&wk));
    v = v.write_rows(0, 3, &x.matmul(&wv));
    let plan = lazuli::explain(&[&q, &k, &v]).unwrap();
    // One input, three weights, three results, and the two caches that rows are written into.
    let n_launches = if max_values() >= 9 { 1 } else { 2 };
    assert_eq!(plan.kernels.iter().filter(|kernel| kernel.form == "matmul").count(), n_launches, "{plan}");
    lazuli::compute(&[&q, &k, &v]).unwrap();
    assert_eq!([bits(&k), bits(&v)], expect);
}
