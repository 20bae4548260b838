//! Over a sweep of sizes, a launch has another shader only where `explain` tells another class of its kernel: shaders are what
//! pipelines are found by, so no pipeline is made that is not such an edge.

use std::collections::HashMap;

use super::*;
use crate::keep;
use crate::kernel::Kernel;

fn f32s(shape: &[usize]) -> Tensor {
    data(shape, DType::F32)
}

/// Small sizes, the powers of two with their neighbours, and of the others one for every residue of 64.
fn sizes() -> impl Iterator<Item = usize> {
    let is_near_power = |n: usize| [n - 1, n, n + 1].iter().any(|n| n.is_power_of_two());
    (1..=4096usize).filter(move |n| *n <= 40 || is_near_power(*n) || n.is_multiple_of(65))
}

/// Sweeps one size of an expression on devices of both kinds.
#[track_caller]
fn check_sweep(expression: impl Fn(usize) -> Tensor) {
    for style in [Threads::Independent, Threads::Cooperative] {
        let target = target(style);
        let mut known: HashMap<(Kernel, String), (usize, Vec<Arc<str>>)> = HashMap::new();
        let mut n_launches = 0;
        for n in sizes() {
            let plan = plan_on(&[&expression(n)], &target);
            for launch in &plan.launches {
                n_launches += 1;
                let schedule = GpuSchedule::new(launch, &plan.slots, &target);
                let classes = schedule.classes(launch);
                let passes = print(launch, &schedule, &plan.slots, &target).passes;
                let texts: Vec<Arc<str>> = passes.into_iter().map(|pass| pass.text).collect();
                // The kernel of a group says nothing of its parts; their kernels are part of what is told.
                let parts: Vec<&Kernel> = launch.parts.iter().map(|part| &part.kernel).collect();
                let key = (launch.kernel.clone(), format!("{classes} {parts:?}"));
                let (before, first) = known.entry(key).or_insert_with(|| (n, texts.clone()));
                assert_eq!(*first, texts, "sizes {before} and {n}, {style:?}: {classes}");
            }
        }
        // Were every launch a class of its own, this would say nothing.
        assert!(known.len() < n_launches / 2, "{} classes of {n_launches} launches", known.len());
    }
}

#[test]
fn shaders_of_maps_change_at_told_classes_alone() {
    check_sweep(|n| f32s(&[n]).mul(2.0).add(1.0));
    check_sweep(|n| f32s(&[5, n]).add(&f32s(&[n])));
    check_sweep(|n| f32s(&[n, 12]).t().add(&f32s(&[12, n])));
    check_sweep(|n| f32s(&[n + 3, 6]).narrow(0, 3, n).pad(&[(1, 2), (0, 0)], 0.5));
}

#[test]
fn shaders_of_reductions_change_at_told_classes_alone() {
    check_sweep(|n| f32s(&[9, n]).sum(1));
    check_sweep(|n| f32s(&[n, 20]).sum(0));
    check_sweep(|n| f32s(&[n, 6]).softmax(-1));
    check_sweep(|n| {
        let x = f32s(&[3, n]);
        x.sub(x.mean(keep(1))).exp()
    });
}

#[test]
fn shaders_of_products_change_at_told_classes_alone() {
    check_sweep(|n| f32s(&[n, 24]).matmul(&f32s(&[24, 8])).relu());
    check_sweep(|n| f32s(&[6, n]).matmul(&f32s(&[n, 12])));
    check_sweep(|n| f32s(&[10, 16]).matmul(&f32s(&[n, 16]).t()).add(&f32s(&[n])));
}

#[test]
fn shaders_of_attention_change_at_told_classes_alone() {
    check_sweep(|n| {
        let [q, k, v] = [0, 1, 2].map(|_| f32s(&[2, n, 16]));
        q.matmul(&k.transpose(-2, -1)).mul(0.25).softmax(-1).matmul(&v)
    });
}
