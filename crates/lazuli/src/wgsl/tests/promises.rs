//! What texts promise: the same for other sizes and numbers, few trips, what is written once, and what they look like.

use super::*;
use crate::blocks::BlockFormat;

fn text(tensor: &Tensor, style: Threads) -> String {
    passes(&plan_on(&[tensor], &target(style)), &target(style))
        .iter()
        .map(|pass| pass.text.to_string())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn other_sizes_and_numbers_have_the_same_text() {
    for style in [Threads::Cooperative, Threads::Independent] {
        let softmax = |rows: usize, by: f64| text(&(data([rows, 1024], DType::F32) * by).softmax(-1), style);
        assert_eq!(softmax(300, 2.0), softmax(4096, 3.0));
        let chain = |n: usize| text(&data([n], DType::F32).exp().add(1.5), style);
        assert_eq!(chain(4096), chain(1 << 20));
        let product = |m: usize| text(&data([m, 64], DType::F32).matmul(&data([64, 32], DType::F32)), style);
        assert_eq!(product(8), product(100));
        let columns = |n: usize| text(&data([n, 64], DType::F32).sum(0), style);
        assert_eq!(columns(4096), columns(8192));
    }
}

#[test]
fn what_fours_leave_over_is_a_dispatch_of_its_own() {
    let plan = plan(&[&data([4099], DType::U8).add(1)]);
    let passes = passes(&plan, &target(Threads::Independent));
    // Where it starts and ends.
    let ranges: Vec<&[u32]> = passes.iter().map(|p| &p.params[..2]).collect();
    assert_eq!(ranges, [[0, 4096], [4096, 4099]]);
}

#[test]
fn memory_larger_than_a_binding_is_bound_in_windows() {
    let n = 3 << 18;
    let (a, b) = (data([n], DType::F32), data([n], DType::F32));
    let target = GpuTarget { max_binding_bytes: 1 << 20, ..target(Threads::Independent) };
    let plan = plan_on(&[&(&a + &b)], &target);
    let passes = passes(&plan, &target);
    assert_eq!(passes.len(), 3);
    for (i, pass) in passes.iter().enumerate() {
        assert_eq!(pass.text, passes[0].text);
        assert_eq!(pass.binds.len(), 3);
        assert!(pass.binds.iter().all(|b| b.start == i << 20 && b.len == 1 << 20));
    }
}

#[test]
fn a_few_bindings_are_enough_for_many_windows() {
    let n = 1 << 20;
    let inputs: Vec<Tensor> = (0..3).map(|_| data([n, 2], DType::F32)).collect();
    let y = (&inputs[0] + &inputs[1]) * &inputs[2] + data([2], DType::F32);
    let target = GpuTarget { max_binding_bytes: 1 << 20, max_bindings: 8, ..target(Threads::Cooperative) };
    let plan = plan_on(&[&y], &target);
    for pass in passes(&plan, &target) {
        validate(&pass.text);
        assert!(pass.binds.len() <= 8);
    }
}

#[test]
fn what_touches_more_windows_than_bindings_is_taken_apart() {
    let (x, idx) = (data([3072, 1024], DType::F32), data([64], DType::I32));
    let far: Tensor = (1..12).fold(x.narrow(0, 0, 256), |sum, i| sum.exp() + x.narrow(0, 256 * i, 256));
    let all = [
        x.index_select(0, &idx).mul(2).sum(-1),
        x.softmax(0),
        x.reshape([1024, 3072]).t().reshape([3072, 1024]).pad(&[(1, 2), (3, 4)], 5),
        data([3, 3072], DType::F16).matmul(&x.to_dtype(DType::F16)).exp(),
        far,
    ];
    for style in [Threads::Cooperative, Threads::Independent] {
        let target = GpuTarget { max_binding_bytes: 1 << 20, max_bindings: 8, ..target(style) };
        for y in &all {
            let plan = plan_on(&[y], &target);
            for pass in passes(&plan, &target) {
                validate(&pass.text);
                check_bindings(&pass, &plan, &target);
            }
        }
    }
}

#[test]
fn a_row_too_long_for_one_invocation_is_shared() {
    let target = GpuTarget { max_iterations: 4096, ..target(Threads::Independent) };
    let plan = plan_on(&[&data([300, 100_000], DType::U8).max(1)], &target);
    let passes = passes(&plan, &target);
    assert!(passes[0].text.contains("workgroupBarrier"), "{}", passes[0].text);
}

/// Reductions, products and routines of many kinds, over memory and over what is not.
fn long_ones() -> Vec<Tensor> {
    let cpu = Device::cpu();
    let (x, at) = (data([300, 4099], DType::F32), data([5000], DType::I32));
    let bytes = data([3, 70_001], DType::U8);
    let wide = data([1], DType::F32).broadcast_to([300, 9_000_001]);
    let far = data([16_384], DType::F32);
    vec![
        x.sum(..),
        x.var(-1, 0),
        x.softmax(0),
        x.t().reshape([4099, 300]).sum(0),
        x.pad(&[(1, 1), (2, 3)], 1).argmax(..),
        x.index_select(0, &at.rem(300)).max(..),
        x.rem(3.0).sum(-1),
        x.sin().prod(-1),
        x.matmul(&x.t()).sin().sin(),
        data([2, 300_000], DType::F32).matmul(&data([300_000, 4], DType::F32)),
        bytes.sum(-1).add(&bytes.max(-1).to_dtype(DType::U32)),
        bytes.sort(-1, false),
        bytes.cumsum(1),
        data([300], DType::F32).scatter_add(0, &at, &data([5000], DType::F32)),
        Tensor::eye(100_000, DType::I32, &cpu).sum(..),
        wide.sum(-1),
        wide.softmax(-1).max(-1),
        far.unsqueeze(0).sub(far.unsqueeze(1)).abs().mean(..),
    ]
}

#[test]
fn no_invocation_makes_more_trips_than_it_may() {
    let uncut = Limits { max_reduce: usize::MAX, max_column: usize::MAX, ..limits() };
    for style in [Threads::Cooperative, Threads::Independent] {
        let target = GpuTarget { max_iterations: 4096, ..target(style) };
        for tensor in long_ones() {
            // Verified there.
            passes(&plan_on(&[&tensor], &target), &target);
            passes(&plan_with(&[&tensor], &uncut.clone().within(&target), &target), &target);
        }
    }
}

#[test]
fn a_pass_that_makes_more_trips_than_it_may_is_refused() {
    let plan = plan(&[&data([300, 4099], DType::F32).sum(-1)]);
    let pass = &passes(&plan, &target(Threads::Independent))[0];
    assert!(pass.iterations > 16, "{}", pass.text);
    let fault =
        verify(pass, &GpuTarget { max_iterations: pass.iterations - 1, ..target(Threads::Independent) }).unwrap_err();
    assert!(fault.contains("loop iterations of one invocation"), "{fault}");
    let uncounted = Pass { iterations: 0, ..pass.clone() };
    assert!(verify(&uncounted, &target(Threads::Independent)).is_err());
}

#[test]
fn a_long_contraction_is_cut() {
    let plan = plan(&[&data([2, 300_000], DType::F32).matmul(&data([300_000, 4], DType::F32))]);
    let program = program(&plan.launches[0], &plan.slots, &target(Threads::Independent));
    // Sums over parts, and their sum.
    assert_eq!(program.passes.len(), 2);
    assert_eq!(program.scratch.len(), 1);
}

#[test]
fn only_what_could_be_folded_is_kept() {
    let (a, b) = (data([4096], DType::F32), data([4096], DType::F32));
    let n_kept = |tensor: &Tensor, style: Threads| {
        // Of those that are written out again for the elements beside, the first.
        let is_kept = |line: &&str| {
            let name = line.trim().strip_prefix("let r").and_then(|rest| rest.split(' ').next());
            name.is_some_and(|name| !name.contains('_')) && line.contains("kept_f32")
        };
        text(tensor, style).lines().filter(is_kept).count()
    };
    let chain = (0..20).fold(a.clone(), |x, i| x.mul(0.5 + i as f64).add(&b));
    let large = Tensor::full([4096], 1e8, a.device().unwrap());
    let many = a.add(&b).add(1.0).sub(2.0).mul(3.0).mul(4.0);
    // A driver that uses fused multiply-adds, or regroups, could fold every step with the next.
    for (tensor, alone, shared) in [
        (&chain, 0, 39),
        (&many, 0, 4),
        (&a.add(&large).sub(&large), 1, 1),
        // Two parameters, of which no driver knows that they are equal.
        (&a.add(1e8).sub(1e8), 0, 1),
        (&a.sub(&b).mul(2.0).add(&b), 0, 2),
        (&a.sub(&b).add(&b), 1, 1),
        (&a.add(a.neg()), 1, 1),
        (&a.mul(&b).add(a.mul(2.0)), 1, 2),
        (&a.to_dtype(DType::I32).add(1).sub(1), 0, 0),
    ] {
        assert_eq!((n_kept(tensor, Threads::Independent), n_kept(tensor, Threads::Cooperative)), (alone, shared));
    }
}

#[test]
fn a_chain_of_three() {
    let (a, b, c) = (data([4096], DType::F32), data([4096], DType::F32), data([4096], DType::F32));
    insta::assert_snapshot!(text(&a.add(&b).mul(5.0).sub(&c), Threads::Independent));
}

#[test]
fn a_softmax_alone() {
    insta::assert_snapshot!(text(&data([512, 1024], DType::F32).softmax(-1), Threads::Independent));
}

#[test]
fn a_softmax_shared() {
    insta::assert_snapshot!(text(&data([512, 1024], DType::F32).softmax(-1), Threads::Cooperative));
}

#[test]
fn a_sum_of_columns() {
    insta::assert_snapshot!(text(&data([1024, 512], DType::F16).sum(0), Threads::Independent));
}

#[test]
fn a_transposed_sum() {
    let x = data([64, 64], DType::F32);
    insta::assert_snapshot!(text(&(&x + x.t()), Threads::Cooperative));
}

#[test]
fn a_gather_into_bytes() {
    let idx = data([6], DType::I32);
    insta::assert_snapshot!(text(&data([16, 7], DType::U8).index_select(0, &idx), Threads::Cooperative));
}

#[test]
fn a_product_with_a_bias() {
    let (x, w, b) = (data([8, 64], DType::F32), data([64, 32], DType::BF16), data([32], DType::F32));
    insta::assert_snapshot!(text(&x.matmul(&w.to_dtype(DType::F32)).add(&b), Threads::Cooperative));
}

#[test]
fn blocks_are_widened_by_what_loads_them() {
    let format = BlockFormat::named("Q6_K").expect("a format");
    let w = Tensor::from_blocks(format, &vec![0; 64 * 2 * format.block_bytes()], [64, 512], &Device::cpu());
    insta::assert_snapshot!(text(&w.neg(), Threads::Independent));
}

#[test]
fn more_workgroup_memory_than_a_device_has_is_refused() {
    let large = GpuTarget { max_shared_bytes: 32 << 10, ..target(Threads::Cooperative) };
    let y = data([1024, 512], DType::F32).matmul(&data([512, 1024], DType::F32));
    let plan = plan_on(&[&y], &large);
    let pass = program(&plan.launches[0], &plan.slots, &large).passes.remove(0);
    assert_eq!(verify(&pass, &large), Ok(()));
    let fault = verify(&pass, &GpuTarget { max_shared_bytes: 1 << 10, ..large }).expect_err("it needs more");
    assert!(fault.contains("bytes of workgroup memory, of which this device has 1024"), "{fault}");
}
