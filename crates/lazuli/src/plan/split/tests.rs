//! Kernels before and after they are cut, as text, for limits so tiny that a few hundred elements are many: one snapshot for
//! each kind of cut. What the parts compute is tested where shaders are interpreted and run.

use std::fmt::Write;

use super::super::{PlanDraft, fuse};
use super::*;
use crate::graph::{NodeRef, capture};
use crate::target::{CpuTarget, Machine};
use crate::{DType, Device, Tensor};

/// Eight windows of 1 KiB, and loops of any length.
fn limits() -> Limits {
    Limits { max_binding_bytes: 1 << 10, max_windows: 8, max_elems: 1 << 31, ..Target::baseline().limits }
}

fn data(shape: impl Into<crate::Shape>, dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &Device::cpu()).compute().expect("enough memory")
}

/// Kernels over values, one line each.
fn text(lowered: &Lowered) -> String {
    let mut text = String::new();
    let values = |ids: &[ValueId]| ids.iter().map(|id| format!("v{id}")).collect::<Vec<_>>().join(" ");
    for step in &lowered.steps {
        let part = step.part_of.map_or(String::new(), |kernel| format!("part of {kernel}: "));
        let range = step.args.index_range.map_or(String::new(), |(first, n)| format!(" of rows {first}+{n}"));
        let kernel = step.kernel.text(&step.args);
        let _ = writeln!(text, "{part}{} <- {}: {kernel}{range}", values(&step.writes), values(&step.reads));
        for map in &step.args.accesses {
            let _ = writeln!(text, "        {map}");
        }
    }
    for (id, value) in lowered.values.iter().enumerate() {
        let _ = writeln!(text, "v{id}: {} {}", value.n_elems, value.dtype);
    }
    text
}

/// The kernels of some tensors before they are cut.
fn lowered(outputs: &[&Tensor], limits: &Limits) -> Lowered {
    let nodes: Vec<&NodeRef> = outputs.iter().map(|output| output.node().expect("a good tensor")).collect();
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    let draft = PlanDraft::new(capture(&nodes, &[]).graph(), limits);
    draft.lowered(&draft.fused(limits, fuse::Commits::Join), limits)
}

/// The kernels of a tensor before and after they are cut.
fn told(output: &Tensor, limits: &Limits) -> String {
    let lowered = || lowered(&[output], limits);
    format!("before\n{}after\n{}", text(&lowered()), text(&split(lowered(), limits)))
}

/// Every preset, by name.
#[cfg(feature = "gpu")]
fn targets() -> [(&'static str, Target); 7] {
    [
        ("AVX-512", Target::avx512()),
        ("AVX2", Target::avx2()),
        ("baseline", Target::baseline()),
        ("RDNA2", Target::rdna2()),
        ("llvmpipe", Target::llvmpipe()),
        ("SwiftShader", Target::swiftshader()),
        ("WebGPU", Target::webgpu_minimum()),
    ]
}

/// The products of some tensors with the parts of k in which each target makes them.
#[cfg(feature = "gpu")]
fn told_parts(outputs: &[&Tensor]) -> String {
    let mut text = String::new();
    for (name, target) in targets() {
        let kernels = split(lowered(outputs, &target.limits), &target.limits);
        let kernels = split_sums(crate::plan::grouped::grouped(kernels, &target.limits), &target);
        for step in &kernels.steps {
            let parts = if step.parts.is_empty() { std::slice::from_ref(step) } else { &step.parts };
            let told: Vec<String> = parts.iter().map(|part| part.kernel.text(&part.args)).collect();
            let _ = writeln!(text, "{name}: {}", told.join(" | "));
        }
    }
    text
}

/// Memory that nobody writes or reads.
fn matrix(rows: usize, cols: usize) -> Tensor {
    data([rows, cols], DType::F32)
}

#[test]
fn a_long_reduction_is_cut_into_pieces() {
    let limits = Limits { max_reduce: 64, max_piece: 64, ..Target::baseline().limits };
    insta::assert_snapshot!(told(&data([200], DType::F32).sum(..).add(1.0), &limits));
}

#[test]
fn long_columns_are_cut_into_pieces() {
    let limits = Limits { max_column: 16, ..Target::baseline().limits };
    insta::assert_snapshot!(told(&data([40, 16], DType::F32).sum(0), &limits));
}

#[test]
fn memory_in_many_windows_is_cut_along_an_outer_axis() {
    insta::assert_snapshot!(told(&data([640], DType::F32).add(1.0), &limits()));
}

#[test]
fn a_contraction_over_many_windows_is_cut_along_k() {
    insta::assert_snapshot!(told(&data([2, 600], DType::F32).matmul(&data([600, 3], DType::F32)).add(1.0), &limits()));
}

#[test]
fn a_lookup_in_many_windows_is_cut_by_ranges_of_indices() {
    let rows = data([5], DType::I32);
    insta::assert_snapshot!(told(&data([40, 64], DType::F32).index_select(0, &rows).mul(2.0), &limits()));
}

#[test]
fn loads_from_many_far_places_are_made_one_after_another() {
    let x = data([2560], DType::F32);
    let far = (1..9).fold(x.narrow(0, 0, 8), |sum, i| sum.exp() + x.narrow(0, 256 * i, 8));
    insta::assert_snapshot!(told(&far, &limits()));
}

#[test]
fn a_reduction_of_many_iterations_is_cut_into_pieces() {
    let limits = Limits { max_iterations: 96, max_lanes: 8, max_reduce: usize::MAX, ..Target::baseline().limits };
    insta::assert_snapshot!(told(&data([3, 300], DType::F32).softmax(-1), &limits));
}

#[test]
#[cfg(feature = "gpu")]
fn a_single_row_is_split_along_k() {
    insta::assert_snapshot!(told_parts(&[&matrix(1, 4096).matmul(&matrix(4096, 1024)).add(1.0)]));
}

#[test]
#[cfg(feature = "gpu")]
fn dense_columns_of_a_stored_weight_are_shared_out_instead() {
    insta::assert_snapshot!(told_parts(&[&matrix(4, 4096).matmul(&matrix(256, 4096).t())]));
}

#[test]
#[cfg(feature = "gpu")]
fn few_results_of_long_sums_are_split() {
    insta::assert_snapshot!(told_parts(&[&matrix(16, 20_000).matmul(&matrix(20_000, 18))]));
}

#[test]
#[cfg(feature = "gpu")]
fn many_results_are_not_split() {
    insta::assert_snapshot!(told_parts(&[&matrix(600, 1024).matmul(&matrix(1024, 1024))]));
}

#[test]
#[cfg(feature = "gpu")]
fn grouped_products_fill_a_device_together() {
    let x = matrix(96, 1024);
    let product = || x.matmul(&matrix(1024, 96));
    insta::assert_snapshot!(told_parts(&[&product(), &product(), &product()]));
}

#[test]
#[cfg(feature = "gpu")]
fn keys_are_split_where_rows_are_few() {
    let attended = |n_rows: usize, n_keys: usize| {
        let of = |n: usize| data([2, n, 64], DType::F32);
        of(n_rows).attention(&of(n_keys), &of(n_keys), crate::Attention::default())
    };
    let outputs = [&attended(1, 5000), &attended(100, 5000)];
    for (name, target) in targets() {
        let kernels = split_sums(split(lowered(&outputs, &target.limits), &target.limits), &target);
        let parts =
            kernels.steps.iter().filter_map(|step| Some(step.args.attention.as_ref()?.column_parts.to_string()));
        let expect: &[&str] = match &target.machine {
            Machine::Cpu(_) => &["10 parts of 512", "1 part of 5000"],
            // It has no kernel for chained products.
            _ if target.limits.max_chained_depth == 0 => &[],
            // Its six bindings are too few by the planner's count, which takes constants for memory.
            _ if target.limits.max_bindings < 8 => &[],
            Machine::Gpu(_) => &["5 parts of 1024", "1 part of 5000"],
        };
        assert_eq!(parts.collect::<Vec<_>>(), expect, "{name}");
    }
}

#[test]
#[cfg(feature = "gpu")]
fn sums_longer_than_an_invocation_counts_are_split() {
    let mut text = String::new();
    for max_iterations in [65_535, 4096] {
        let Machine::Gpu(gpu) = Target::llvmpipe().machine else { unreachable!("a GPU") };
        let target = Target::gpu(crate::target::GpuTarget { max_iterations, ..gpu });
        let product = matrix(600, 200_000).matmul(&matrix(200_000, 600));
        for step in split_sums(split(lowered(&[&product], &target.limits), &target.limits), &target).steps {
            let _ = writeln!(text, "{max_iterations} iterations: {}", step.kernel.text(&step.args));
        }
    }
    insta::assert_snapshot!(text);
}

/// Results must not depend on who computes them.
#[test]
fn threads_are_not_looked_at() {
    let parts_with = |threads: usize| {
        let target = match Target::avx512().machine {
            Machine::Cpu(cpu) => Target::cpu(CpuTarget { threads, ..cpu }),
            #[cfg(feature = "gpu")]
            Machine::Gpu(_) => unreachable!("a processor"),
        };
        let product = matrix(16, 20_000).matmul(&matrix(20_000, 18));
        let kernels = split_sums(lowered(&[&product], &target.limits), &target);
        kernels.steps.iter().filter_map(|step| Some(step.args.matmul.as_ref()?.k_parts)).collect::<Vec<_>>()
    };
    assert!(!parts_with(1)[0].is_whole());
    assert_eq!(parts_with(1), parts_with(64));
}
