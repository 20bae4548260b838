//! The same graphs planned for every preset, without any device: launches and their schedules, as text.
//! All shaders are validated.

use std::fmt::Write;

use super::*;
use crate::graph::{NodeRef, capture};
use crate::plan::{Plan, compile};
use crate::{Device, Shape, Tensor, keep};

/// Memory that nobody writes, so that large tensors cost nothing.
fn data(shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    Tensor::from_vec(vec![0f32; shape.n_elems()], shape, &Device::cpu())
}

fn plan(output: &Tensor, target: &Target) -> Plan {
    let nodes: [&NodeRef; 1] = [output.node().expect("a good tensor")];
    let device = nodes[0].device.clone();
    let _lock = device.cache().lock();
    compile(capture(&nodes, &[]).graph(), target)
}

fn layer_norm(x: &Tensor, size: usize) -> Tensor {
    let centred = x - x.mean(keep(-1));
    let variance = centred.square().mean(keep(-1));
    centred * (variance + 1e-5).rsqrt() * data([size])
}

/// 128 tokens of 384 numbers, 12 heads, norms first.
fn encoder_layer() -> Tensor {
    let x = data([128, 384]);
    let normed = layer_norm(&x, 384);
    let heads = |w: Tensor| normed.matmul(&w).reshape([128, 12, 32]).permute(&[1, 0, 2]);
    let (q, k, v) = (heads(data([384, 384])), heads(data([384, 384])), heads(data([384, 384])));
    let scores = (q.matmul(&k.t()) * 0.176).softmax(-1);
    let mixed = scores.matmul(&v).permute(&[1, 0, 2]).reshape([128, 384]).matmul(&data([384, 384]));
    let x = x + mixed;
    let hidden = (layer_norm(&x, 384).matmul(&data([384, 1536])) + data([1536])).gelu();
    x + hidden.matmul(&data([1536, 384])) + data([384])
}

/// One step of the heat equation: a sum of shifted slices of a padded grid.
fn stencil() -> Tensor {
    let x = data([1024, 1024]);
    let padded = x.pad(&[(1, 1), (1, 1)], 0.0);
    let at = |row: usize, column: usize| padded.narrow(0, row, 1024).narrow(1, column, 1024);
    at(1, 1) + (at(0, 1) + at(2, 1) + at(1, 0) + at(1, 2) - at(1, 1) * 4.0) * 0.1
}

fn graphs() -> Vec<(&'static str, Tensor)> {
    let (a, b) = (data([1 << 20]), data([1 << 20]));
    let product = |m: usize, k: usize, n: usize| data([m, k]).matmul(&data([k, n]));
    let rows = Tensor::from_vec(vec![0i32; 128], [128], &Device::cpu());
    vec![
        ("a chain", ((&a + &b) * 5.0 - &a).tanh()),
        ("a softmax", data([512, 1024]).softmax(-1)),
        ("a layer norm", layer_norm(&data([512, 1024]), 1024)),
        ("a long sum", data([1 << 24]).sum(..)),
        ("a column sum", data([4096, 1024]).sum(0)),
        ("1024³", product(1024, 1024, 1024)),
        ("one row of 4096²", product(1, 4096, 4096)),
        ("64 rows of 1536²", product(64, 1536, 1536)),
        ("few sums of a long k", product(16, 65536, 16)),
        ("stored weights", data([1, 2048]).matmul(&data([2048, 2048]).t())),
        ("a batch of products", data([12, 128, 64]).matmul(&data([12, 128, 64]).t())),
        ("an encoder layer", encoder_layer()),
        ("a padded stencil", stencil()),
        ("rows by index", data([1000, 64]).index_select(0, &rows)),
    ]
}

/// Products of one row, of a few rows and of many rows with a weight in blocks, and of many rows with a weight of plain floats.
#[cfg(target_arch = "x86_64")]
fn products_with_blocks() -> Vec<(&'static str, Tensor)> {
    let format = crate::BlockFormat::named("Q4_0").expect("a format");
    let bytes = format.quantize(&vec![0.0; 1536 * 576]).expect("whole blocks");
    let w = Tensor::from_blocks(format, &bytes, [1536, 576], &Device::cpu()).t();
    vec![
        ("one row times blocks", data([1, 576]).matmul(&w)),
        ("12 rows times blocks", data([12, 576]).matmul(&w)),
        ("257 rows times blocks", (data([257, 576]).matmul(&w) + data([1536])).relu()),
        ("257 rows times floats", data([257, 576]).matmul(&data([1536, 576]).t())),
    ]
}

/// What a target makes of all graphs.
fn told(target: &Target) -> String {
    told_of(target, graphs())
}

/// The schedules and plans of these graphs for a target, as text.
fn told_of(target: &Target, graphs: Vec<(&'static str, Tensor)>) -> String {
    let mut text = String::new();
    for (name, output) in graphs {
        let plan = plan(&output, target);
        let _ = writeln!(text, "{name}");
        let schedules = match &target.machine {
            Machine::Cpu(cpu) => crate::cpu::schedule_texts(&plan, cpu),
            #[cfg(feature = "gpu")]
            Machine::Gpu(gpu) => shader_texts(&plan, gpu),
        };
        for (launch, schedule) in plan.launches.iter().zip(schedules) {
            let _ = writeln!(text, "    {}\n        {schedule}", launch.text());
        }
    }
    text
}

/// How the launches of a plan are dispatched on a GPU.
#[cfg(feature = "gpu")]
fn shader_texts(plan: &Plan, gpu: &GpuTarget) -> Vec<String> {
    let text = |launch: &crate::plan::Launch| {
        let schedule = crate::wgsl::GpuSchedule::new(launch, &plan.slots, gpu);
        let program = crate::wgsl::print(launch, &schedule, &plan.slots, gpu);
        for pass in &program.passes {
            crate::wgsl::verify(pass, gpu).unwrap_or_else(|fault| panic!("{fault}\n{}", pass.text));
            crate::wgsl::validate(&pass.text);
        }
        format!("{schedule}: {program}")
    };
    plan.launches.iter().map(text).collect()
}

// Other architectures have other micro-kernels.
#[cfg(target_arch = "x86_64")]
#[test]
fn plans_for_avx512() {
    insta::assert_snapshot!(told(&Target::avx512()));
}

#[test]
fn only_a_processor_that_uses_amx_tells_of_it() {
    let amx = |target: Target| target.properties().into_iter().find(|(name, _)| *name == "AMX");
    assert_eq!(amx(Target::amx()), Some(("AMX", "products of many rows with blocks".to_string())));
    assert_eq!(amx(Target::avx512()), None);
}

// Other architectures have other micro-kernels.
#[cfg(target_arch = "x86_64")]
#[test]
fn products_for_amx() {
    insta::assert_snapshot!(told_of(&Target::amx(), products_with_blocks()));
}

// Other architectures have other micro-kernels.
#[cfg(target_arch = "x86_64")]
#[test]
fn amx_changes_no_plan_of_plain_floats() {
    assert_eq!(told(&Target::amx()), told(&Target::avx512()));
}

// Other architectures have other micro-kernels.
#[cfg(target_arch = "x86_64")]
#[test]
fn plans_for_avx2() {
    insta::assert_snapshot!(told(&Target::avx2()));
}

// Other architectures have other micro-kernels.
#[cfg(target_arch = "x86_64")]
#[test]
fn plans_for_baseline() {
    insta::assert_snapshot!(told(&Target::baseline()));
}

#[cfg(feature = "gpu")]
#[test]
fn plans_for_rdna2() {
    insta::assert_snapshot!(told(&Target::rdna2()));
}

#[cfg(feature = "gpu")]
#[test]
fn plans_for_rdna3() {
    // Nothing that is known of it differs.
    assert_eq!(told(&Target::rdna3()), told(&Target::rdna2()));
}

/// What `cargo xtask isa` compares with RADV's null device: that is what these presets stand for.
#[cfg(feature = "gpu")]
#[test]
fn presets_of_rdna_are_what_radv_tells() {
    let kept = include_str!("../../../../xtask/isa/rdna.txt");
    for target in [Target::rdna2(), Target::rdna3()] {
        let lines: String = target.properties().iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        assert_eq!(lines, kept);
    }
}

#[cfg(feature = "gpu")]
#[test]
fn plans_for_llvmpipe() {
    insta::assert_snapshot!(told(&Target::llvmpipe()));
}

#[cfg(feature = "gpu")]
#[test]
fn plans_for_swiftshader() {
    insta::assert_snapshot!(told(&Target::swiftshader()));
}

#[cfg(feature = "gpu")]
#[test]
fn plans_for_webgpu_minimum() {
    insta::assert_snapshot!(told(&Target::webgpu_minimum()));
}
