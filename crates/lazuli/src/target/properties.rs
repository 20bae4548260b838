//! A target as people read it: a name and a value for each thing that plans and kernels go by.

use super::{AmxUse, CpuTarget, Machine, Target};
#[cfg(feature = "gpu")]
use super::{Folds, GpuTarget, Threads};

impl Target {
    /// What is known, in words.
    pub fn properties(&self) -> Vec<(&'static str, String)> {
        let mut all = match &self.machine {
            Machine::Cpu(cpu) => of_cpu(cpu),
            #[cfg(feature = "gpu")]
            Machine::Gpu(gpu) => of_gpu(gpu),
        };
        let chained = if self.limits.max_chained_depth > 0 { "one kernel" } else { "two products and a softmax" };
        all.push(("attention", chained.to_string()));
        all.push(("reductions are cut above", format!("{} elements", self.limits.max_reduce)));
        all
    }
}

fn of_cpu(cpu: &CpuTarget) -> Vec<(&'static str, String)> {
    let mut all = vec![
        ("instructions", format!("{:?}", cpu.isa).to_lowercase()),
        ("threads", cpu.threads.to_string()),
        ("first-level cache", format!("{} KiB, taken to be so", cpu.caches.l1_bytes >> 10)),
    ];
    match cpu.amx {
        AmxUse::Never => {}
        AmxUse::Blocks => all.push(("AMX", "products of many rows with blocks".to_string())),
        AmxUse::All => all.push(("AMX", "products of many rows".to_string())),
    }
    all
}

#[cfg(feature = "gpu")]
fn of_gpu(gpu: &GpuTarget) -> Vec<(&'static str, String)> {
    let style = match gpu.style {
        Threads::Cooperative => "share rows and tiles through workgroup memory",
        Threads::Independent => "do much each, from registers",
    };
    let iterations = match gpu.max_iterations {
        n if n >= u32::MAX as usize => "any number".to_string(),
        n => format!("up to {n}: its driver ends loops after that"),
    };
    let roundings = match gpu.folds {
        Folds::Equal => "kept, but of sums of equal terms",
        Folds::Any => "kept by hand: its compiler may fold any sum",
    };
    let subgroups = match gpu.subgroup_sizes {
        None => "not used".to_string(),
        Some([fewest, most]) if fewest == most => format!("of {fewest}"),
        Some([fewest, most]) => format!("of {fewest} to {most}"),
    };
    vec![
        ("kind", format!("{:?}", gpu.kind).to_lowercase()),
        ("invocations", style.to_string()),
        ("workgroups", format!("up to {} invocations, {} KiB shared", gpu.max_invocations, gpu.max_shared_bytes >> 10)),
        ("subgroups", subgroups),
        ("is kept busy by", format!("{} workgroups of 64 invocations", gpu.full_groups)),
        ("bindings", format!("{} of up to {} MiB", gpu.max_bindings, gpu.max_binding_bytes >> 20)),
        ("loop iterations", iterations),
        ("large shaders", if gpu.large_shaders { "used" } else { "avoided" }.to_string()),
        ("roundings", roundings.to_string()),
        ("results", if gpu.map_results { "mapped in place" } else { "copied to be read" }.to_string()),
    ]
}
