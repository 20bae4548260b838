//! A size from 1 to 4096: a plan is made, or a pipeline, only where `explain` lists other edges or classes than for any size
//! before. Plans are prepared, not run. By default all sizes up to 256, and beyond them those on both sides of every edge that
//! a search between samples finds; `LAZULI_SOAK_SIZES=all` takes every size.

use std::collections::HashSet;

use lazuli::{Attention, Device, Tensor, keep};

use crate::{alone, gpus};

/// All sizes up to here are tried.
const SMALL: usize = 256;
const MOST: usize = 4096;
/// So many sizes are swept at once. Plans that were filled have a small part of the cache to themselves, and a pipeline goes
/// with the last plan that needs it: over thousands of sizes one may be made again for an edge that was met long ago.
const SWEPT: usize = 384;
/// Edges beyond the small sizes are searched for between samples this far apart.
const STEP: usize = 480;

fn data(shape: &[usize], gpu: &Device) -> Tensor {
    Tensor::from_vec(vec![0.5f32; shape.iter().product()], shape, gpu)
}

/// The edges that `explain` lists for an expression of size `n`, and the names of its kernels. Neither contains `n`, so two
/// sizes between the same edges give equal lists.
fn listed(expression: &dyn Fn(usize) -> Tensor, n: usize) -> Vec<String> {
    let plan = expression(n).explain().unwrap();
    let kernels = plan.kernels.iter().map(|kernel| kernel.name.clone());
    plan.edges.iter().cloned().chain(kernels).collect()
}

/// The sizes of a sweep.
fn sizes(expression: &dyn Fn(usize) -> Tensor) -> Vec<usize> {
    if std::env::var("LAZULI_SOAK_SIZES").is_ok_and(|sizes| sizes == "all") {
        return (1..=MOST).collect();
    }
    let mut sizes: Vec<usize> = (1..=SMALL).collect();
    let samples: Vec<usize> = (SMALL..MOST).step_by(STEP).chain([MOST - 1, MOST]).collect();
    for pair in samples.windows(2) {
        let (mut low, mut high) = (pair[0], pair[1]);
        let (at_low, at_high) = (listed(expression, low), listed(expression, high));
        sizes.extend([low, high]);
        // Where what is listed for two samples differs, an edge lies between.
        while at_low != at_high && high - low > 1 {
            let middle = low + (high - low) / 2;
            match listed(expression, middle) == at_low {
                true => low = middle,
                false => high = middle,
            }
        }
        sizes.extend([low - 1, low, high, (high + 1).min(MOST)]);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Sweeps one size of an expression.
#[track_caller]
fn check_sweep(gpu: &Device, what: &str, expression: &dyn Fn(usize) -> Tensor) {
    for sizes in sizes(expression).chunks(SWEPT) {
        gpu.trim();
        let mut known: HashSet<Vec<String>> = HashSet::new();
        for &n in sizes {
            let edges = listed(expression, n);
            let y = expression(n);
            gpu.reset_stats();
            lazuli::prepare(&[&y]).unwrap();
            let stats = gpu.stats();
            let made = (stats.plans_compiled, stats.pipelines_compiled);
            let is_listed = made == (0, 0) || !known.contains(&edges);
            assert!(is_listed, "{what} of {n}: {made:?} plans and pipelines: {edges:#?}");
            known.insert(edges);
        }
        // Were every size an edge, this would say nothing.
        assert!(known.len() < sizes.len() / 4, "{what}: {} edges of {} sizes", known.len(), sizes.len());
    }
}

#[test]
fn a_sweep_of_sizes_plans_and_compiles_at_listed_edges_alone() {
    let _device = alone();
    for gpu in gpus() {
        let f = |shape: &[usize]| data(shape, &gpu);
        check_sweep(&gpu, "chain", &|n| f(&[n]).mul(2.0).add(1.0).tanh());
        check_sweep(&gpu, "rows", &|n| {
            let x = f(&[n, 12]);
            x.sub(x.mean(keep(1))).exp().sum(0)
        });
        check_sweep(&gpu, "softmax", &|n| f(&[6, n]).softmax(-1));
        check_sweep(&gpu, "product", &|n| f(&[n, 24]).matmul(&f(&[24, 8])).relu());
        check_sweep(&gpu, "inner product", &|n| f(&[6, n]).matmul(&f(&[n, 12])));
        check_sweep(&gpu, "attention", &|n| {
            let [q, k, v] = [0, 1, 2].map(|_| f(&[2, n, 16]));
            q.attention(&k, &v, Attention::default())
        });
        check_sweep(&gpu, "net", &|n| {
            let hidden = f(&[n, 20]).matmul(&f(&[20, 32])).add(&f(&[32])).relu();
            hidden.matmul(&f(&[32, 10])).add(&f(&[10])).log_softmax(-1).mean(..)
        });
    }
}
