//! Kernels before and after they are cut, as text, for limits so tiny that a few hundred elements are many: one snapshot for
//! each kind of cut. What the parts compute is tested where shaders are interpreted and run.

use std::fmt::Write;

use super::super::lower::{ToLower, lower};
use super::super::{PlanDraft, fuse};
use super::*;
use crate::graph::{NodeRef, capture};
use crate::plan::edges::AskedGraph;
use crate::target::Target;
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

/// The kernels of a tensor before and after they are cut.
fn told(output: &Tensor, limits: &Limits) -> String {
    let nodes: [&NodeRef; 1] = [output.node().expect("a good tensor")];
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    let draft = PlanDraft::new(capture(&nodes, &[]).graph(), limits);
    let asked = AskedGraph::new(&draft.graph, limits, &draft.chained);
    let groups = fuse::fuse(&asked, limits, &draft.checks, &draft.stages, fuse::Commits::Join);
    let chained = draft.chained.of(&draft.graph, limits);
    let of = ToLower { graph: &draft.graph, groups: &groups, chained, limits, waits: &draft.checks };
    let lowered = || lower(&of, None).0;
    format!("before\n{}after\n{}", text(&lowered()), text(&split(lowered(), limits)))
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
