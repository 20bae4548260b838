//! Texts for plans of many kinds, on both kinds of device, with large and small windows: all validated by naga, so that
//! no GPU is needed. What they compute is tested where they are run.

mod expressions;
mod forms;
mod huge;
mod interpreted;
mod products;
mod promises;
mod random;
mod simulator;
mod sizes;

use std::collections::BTreeSet;

use super::*;
use crate::graph::{NodeRef, capture};
use crate::plan::{Plan, compile};
use crate::target::variants::{Class, Tuned, VARIANTS, Variant, named};
use crate::target::{Folds, Limits, Machine, Target, Threads};
use crate::{DType, Device, DeviceKind, Tensor};

/// What a device may be like.
pub(in crate::wgsl) fn target(style: Threads) -> GpuTarget {
    GpuTarget {
        kind: DeviceKind::Software,
        max_binding_bytes: 128 << 20,
        max_bindings: 32,
        max_invocations: 256,
        max_shared_bytes: 16 << 10,
        max_iterations: 65535,
        full_groups: 64,
        large_shaders: true,
        folds: if style == Threads::Independent { Folds::Equal } else { Folds::Any },
        b_row_bytes: None,
        style,
        counts_lanes: false,
        subgroup: None,
        subgroup_sizes: None,
        map_results: false,
        host_memory: false,
        pace: None,
        tuned: Arc::default(),
    }
}

fn limits() -> Limits {
    Limits {
        max_bindings: 30,
        max_insts: 512,
        max_reduce: 16384,
        max_piece: 1024,
        max_column: 256,
        min_rows: 256,
        panels: None,
        max_list_elems: 32 << 20,
        products_of_bytes: false,
        max_made_elems: 0,
        max_chained_depth: 512,
        max_chained_elems: 32 << 20,
        max_binding_bytes: usize::MAX,
        max_windows: usize::MAX,
        max_elems: usize::MAX,
        max_iterations: usize::MAX,
        max_lanes: 1,
        custom_may_fail: false,
        fuse: true,
    }
    .within(&target(Threads::Independent))
}

fn plan(outputs: &[&Tensor]) -> Plan {
    plan_on(outputs, &target(Threads::Independent))
}

/// The plan that a device gets.
fn plan_on(outputs: &[&Tensor], target: &GpuTarget) -> Plan {
    plan_with(outputs, &limits().within(target), target)
}

/// The plan that a device would get if its limits were `limits`: small ones cut small kernels, so that tests reach every cut.
fn plan_with(outputs: &[&Tensor], limits: &Limits, target: &GpuTarget) -> Plan {
    let nodes: Vec<&NodeRef> = outputs.iter().map(|t| t.node().expect("a good tensor")).collect();
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    let target = Target { limits: limits.clone(), machine: Machine::Gpu(target.clone()) };
    compile(capture(&nodes, &[]).graph(), &target)
}

/// Memory of ones.
pub(in crate::wgsl) fn data(shape: impl Into<crate::Shape>, dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &Device::cpu()).compute().expect("enough memory")
}

/// The texts of one launch after another.
fn passes(plan: &Plan, target: &GpuTarget) -> Vec<Pass> {
    let passes: Vec<Pass> =
        plan.launches.iter().flat_map(|launch| program(launch, &plan.slots, target).passes).collect();
    passes.iter().for_each(|pass| verify(pass, target).unwrap_or_else(|fault| panic!("{fault}\n{}", pass.text)));
    passes
}

/// Refuses a text that is no shader.
#[track_caller]
pub fn validate(text: &str) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string(text)));
    let capabilities = naga::valid::Capabilities::default() | naga::valid::Capabilities::SUBGROUP;
    naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}\n{text}", e.emit_to_string(text)));
}

/// Every text of a plan is valid, binds what it declares, and holds as many numbers as it reads.
#[track_caller]
pub(in crate::wgsl) fn check(outputs: &[&Tensor]) {
    for style in [Threads::Cooperative, Threads::Independent] {
        for (max_binding_bytes, subgroup) in [(128 << 20, None), (128 << 20, Some(8)), (1 << 20, Some(8))] {
            check_on(outputs, &GpuTarget { max_binding_bytes, subgroup, ..target(style) });
        }
    }
}

/// The same on a device whose kernels see no more than so many windows of 1 MiB; the texts.
#[track_caller]
pub(in crate::wgsl) fn check_small(outputs: &[&Tensor], max_bindings: usize) -> BTreeSet<Arc<str>> {
    check_on(outputs, &GpuTarget { max_binding_bytes: 1 << 20, max_bindings, ..target(Threads::Independent) })
}

#[track_caller]
fn check_on(outputs: &[&Tensor], target: &GpuTarget) -> BTreeSet<Arc<str>> {
    let plan = plan_on(outputs, target);
    let passes = passes(&plan, target);
    passes.iter().for_each(|pass| check_bindings(pass, &plan, target));
    let texts: BTreeSet<Arc<str>> = passes.into_iter().map(|pass| pass.text).collect();
    texts.iter().for_each(|text| validate(text));
    texts
}

#[track_caller]
fn check_bindings(pass: &Pass, plan: &Plan, target: &GpuTarget) {
    let declared = pass.text.matches("var<storage").count();
    assert_eq!(declared, pass.binds.len(), "{}", pass.text);
    assert!(declared <= target.max_bindings, "{}", pass.text);
    assert!(pass.n_groups > 0, "{}", pass.text);
    let fields = pass
        .text
        .split("struct Params {")
        .nth(1)
        .and_then(|t| t.split('}').next())
        .map_or(0, |t| t.matches(": u32").count());
    assert_eq!(fields, pass.consts.len() + pass.params.len(), "{}", pass.text);
    for bind in &pass.binds {
        let PassMemory::Slot(slot) = bind.place else { continue };
        let size = plan.slots[slot.0 as usize].size_bytes.next_multiple_of(4).max(4);
        assert!(bind.start.is_multiple_of(target.max_binding_bytes) && bind.len.is_multiple_of(4) && bind.len > 0);
        assert!(bind.start + bind.len <= size && bind.len <= target.max_binding_bytes, "{bind:?} of {size}");
    }
    for bind in &pass.binds {
        let same = |b: &&Bind| b.place == bind.place && b.start == bind.start;
        let often = pass.binds.iter().filter(same).count();
        assert!(often == 1 || !bind.writes, "memory that is written is bound once:\n{}", pass.text);
    }
}
