//! Sizes are numbers, not structure: a loop whose sizes grow, shrink or move plans a few times and then only fills numbers
//! in, and what it computes is the same whatever sizes came before.

use std::collections::BTreeSet;

use lazuli::{DeviceKind, Stats, Tensor, keep};

use crate::alone;
use crate::device::device;

fn data(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.02 - 0.9).collect(), shape, &device())
}

/// Attention as maths, of `n` queries over `m` keys in 4 heads of 16.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
    q.matmul(&k.transpose(-2, -1)).mul(0.25).softmax(-1).matmul(v)
}

/// What a loop does to the counters.
fn counted(work: impl FnOnce()) -> Stats {
    let device = device();
    device.trim();
    device.reset_stats();
    work();
    device.stats()
}

#[test]
fn attention_over_growing_lengths_plans_at_most_six_times() {
    let _device = alone();
    let stats = counted(|| {
        for n in 1..=200 {
            let [q, k, v] = [0, 1, 2].map(|seed| data(&[1, 4, n, 16], seed));
            attention(&q, &k, &v).to_vec::<f32>().unwrap();
        }
    });
    assert!(stats.plans_compiled <= 6, "{stats:?}");
    assert_eq!(stats.plans_compiled + stats.plans_filled, 200, "{stats:?}");
}

#[test]
fn a_cache_that_grows_by_cat_plans_at_most_six_times() {
    let _device = alone();
    let [wq, wk, wv] = [3, 4, 5].map(|seed| data(&[64, 64], seed));
    let stats = counted(|| {
        let heads = |x: &Tensor, w: &Tensor| x.matmul(w).reshape([1, 1, 4, 16]).permute(&[0, 2, 1, 3]);
        let [mut k, mut v] = [6, 7].map(|seed| data(&[1, 4, 1, 16], seed));
        for step in 0..150 {
            let x = data(&[1, 1, 64], step).layer_norm(-1, None, None, 1e-5);
            k = Tensor::cat(&[&k, &heads(&x, &wk)], 2);
            v = Tensor::cat(&[&v, &heads(&x, &wv)], 2);
            let y = attention(&heads(&x, &wq), &k, &v).permute(&[0, 2, 1, 3]).reshape([1, 1, 64]);
            lazuli::compute(&[&y, &k, &v]).unwrap();
        }
    });
    assert!(stats.plans_compiled <= 6, "{stats:?}");
}

#[test]
fn a_hundred_minibatches_by_narrow_plan_at_most_three_times() {
    let _device = alone();
    let (x, w) = (data(&[100 * 8, 12], 1), data(&[12, 5], 2));
    let stats = counted(|| {
        for i in 0..100 {
            x.narrow(0, i * 8, 8).matmul(&w).relu().sum(0).to_vec::<f32>().unwrap();
        }
    });
    assert!(stats.plans_compiled <= 3, "{stats:?}");
}

#[test]
fn batches_of_199_sizes_plan_at_most_twelve_times() {
    let _device = alone();
    let (w1, b1, w2) = (data(&[24, 32], 1), data(&[32], 2), data(&[32, 10], 3));
    let stats = counted(|| {
        for n in 1..200 {
            let y = data(&[n, 24], n).matmul(&w1).add(&b1).relu().matmul(&w2).log_softmax(-1);
            y.mean(0).to_vec::<f32>().unwrap();
        }
    });
    assert!(stats.plans_compiled <= 12, "{stats:?}");
}

#[test]
fn counts_that_happen_to_be_equal_make_no_other_plan() {
    let _device = alone();
    // Both means are made at one line, and divide by the same number where `n` is 6.
    let means = |x: &Tensor| x.exp().mean(keep(-1)).sum(..);
    let stats = counted(|| {
        for n in 4..9 {
            let (a, b) = (data(&[3, n], n), data(&[5, 6], 1));
            let expect =
                |x: &Tensor, n: usize| x.to_vec::<f32>().unwrap().iter().map(|x| x.exp()).sum::<f32>() / n as f32;
            let (sum, want) = (means(&a).add(means(&b)).item::<f32>().unwrap(), expect(&a, n) + expect(&b, 6));
            assert!((sum - want).abs() < 1e-5 * want.abs(), "{n}: {sum}, not {want}");
        }
    });
    assert_eq!(stats.plans_compiled, 1, "{stats:?}");
}

#[test]
fn equal_numbers_of_one_line_are_computed_once() {
    let _device = alone();
    let x = data(&[64], 0);
    let scaled = |x: &Tensor| x.mul(3.0).add(1.0).exp();
    let kernels = |y: Tensor| y.explain().unwrap().kernels[0].name.clone();
    let twice = kernels(scaled(&x).add(scaled(&x)));
    assert_eq!(twice.matches("exp").count(), 1, "{twice}");
}

/// Every kernel form, over a size that goes far.
fn swept(n: usize) -> Tensor {
    let x = data(&[n, 6], n);
    let columns = x.sub(x.mean(keep(0))).t().matmul(&data(&[n, 3], 1));
    columns.softmax(0).sum(..).add(x.pad(&[(1, 1), (0, 0)], 0.5).max(0).sum(..))
}

#[test]
fn over_all_sizes_what_is_planned_or_compiled_is_an_edge_that_explain_had_listed() {
    let _device = alone();
    device().trim();
    let mut seen: BTreeSet<Vec<String>> = BTreeSet::new();
    let is_cpu = device().info().kind == DeviceKind::Cpu;
    // On a CPU every size. On a GPU, where one takes far longer: all small ones, and of the others the powers of two with
    // their neighbours and one for every residue of 64.
    let is_taken = |n: &usize| {
        let is_near_power = [n - 1, *n, n + 1].iter().any(|n| n.is_power_of_two());
        is_cpu || *n <= 70 || is_near_power || n.is_multiple_of(65)
    };
    for n in (1..=4096usize).filter(is_taken) {
        let y = swept(n);
        // On a GPU plans are counted, so that its edges of shaders stay aside. That shaders change at those alone is tested without
        // a device (wgsl/tests/sizes.rs): a pipeline that went with its plan and is made again is no edge.
        let edges = y.explain().unwrap().edges.into_iter().filter(|edge| !edge.starts_with("shaders of"));
        let is_new = seen.insert(edges.collect());
        device().reset_stats();
        y.to_vec::<f32>().unwrap();
        let stats = device().stats();
        let made = stats.plans_compiled + if is_cpu { stats.pipelines_compiled } else { 0 };
        assert!(is_new || made == 0, "{n}: {stats:?}");
    }
    assert!(seen.len() < 40, "{}", seen.len());
}

#[test]
fn what_is_computed_does_not_depend_on_the_sizes_before() {
    let _device = alone();
    let sizes = [1usize, 2, 6, 3, 17, 64, 7, 300, 6];
    let results = |sizes: &[usize]| -> Vec<(usize, String, Vec<f32>)> {
        device().trim();
        let mut found: Vec<(usize, String, Vec<f32>)> = Vec::new();
        for &n in sizes {
            let y = swept(n);
            let text = y.explain().unwrap().to_string();
            found.push((n, text, y.to_vec::<f32>().unwrap()));
        }
        found.sort_by_key(|found| found.0);
        found
    };
    let mut backwards = sizes;
    backwards.reverse();
    let (there, back) = (results(&sizes), results(&backwards));
    for (a, b) in there.iter().zip(&back) {
        assert_eq!(a.1, b.1);
        assert!(a.2.iter().zip(&b.2).all(|(x, y)| x.to_bits() == y.to_bits()), "{}: {:?} {:?}", a.0, a.2, b.2);
    }
    // And each alone.
    for (n, _, values) in &there {
        device().trim();
        assert_eq!(&swept(*n).to_vec::<f32>().unwrap(), values, "{n}");
    }
}
