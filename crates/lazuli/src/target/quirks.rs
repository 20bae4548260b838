//! What is known of drivers and is told by no API: facts as data, each with where it was seen. They become part of a
//! target; nothing else asks which driver it is.

use std::sync::Arc;

use super::gpu::{Folds, GpuTarget, Pace, Threads};
use crate::device::DeviceKind;

/// What is known of a device of this kind with this name and driver, on a machine with this processor. What it can take
/// is told by the API; until that was asked, it is what WebGPU promises of every device.
pub fn quirks(kind: DeviceKind, name: &str, driver: &str, processor: &str) -> GpuTarget {
    let software = kind == DeviceKind::Software;
    let is = |word: &str| name.to_lowercase().contains(word) || driver.to_lowercase().contains(word);
    let is_llvmpipe = is("llvmpipe") || is("lavapipe");
    GpuTarget {
        kind,
        max_binding_bytes: 128 << 20,
        max_bindings: 8,
        max_invocations: 256,
        max_shared_bytes: 16 << 10,
        subgroup: None,
        subgroup_sizes: None,
        tuned: Arc::default(),
        // Drivers that run on the CPU make barriers expensive (llvmpipe runs invocations as coroutines) and registers
        // cheap.
        style: if software { Threads::Independent } else { Threads::Cooperative },
        // Mesa 22.3's llvmpipe counts 65,535 iterations over all loops of an invocation, then silently ends them. Mesa
        // does not say which versions do, so every llvmpipe is taken to.
        max_iterations: if is_llvmpipe { 65_535 } else { u32::MAX as usize },
        // A large GPU has 72 to 128 compute units, each with two to four SIMDs that want several waves. One that shares the
        // CPU's memory has a tenth of that. Tuning replaces both by what it measures.
        full_groups: if kind == DeviceKind::Discrete { 500 } else { 64 },
        // SwiftShader takes minutes and gigabytes to compile sums of eight fours of columns, four exp of a row, or eight rows
        // of a product.
        large_shaders: !is("swiftshader"),
        // Mesa marks what it may fold of floats by name (`~fadd` in nir_opt_algebraic.py), and llvmpipe makes no fused
        // multiply-adds of products and sums. Hardware has them, and its compilers use them; others were not looked into.
        // OpenGL, whose driver text is a version that does not name llvmpipe, folds more than Vulkan does.
        folds: if driver.to_lowercase().contains("llvmpipe") { Folds::Equal } else { Folds::Any },
        // A driver that runs on the CPU has its caches. On an AMD EPYC llvmpipe takes half as long again for 64 rows of
        // 1536² at 128 bytes, and a third longer for one of 4096² at 512; on an Intel Xeon 128 bytes were a seventh faster
        // for 64 rows. Other processors and drivers were not measured.
        b_row_bytes: (is_llvmpipe && processor.contains("AMD")).then_some(256),
        // llvmpipe's subgroup is the lanes of one vector, filled in the order of the workgroup.
        counts_lanes: is_llvmpipe,
        // On llvmpipe mapping is 35 times as fast for 4 bytes and 1.8 times for 64 MiB. A GPU that shares the CPU's
        // memory may give up caching for it: not measured, so not done.
        map_results: software,
        host_memory: software,
        pace: match kind {
            // No watchdog looks after a driver that runs on the CPU.
            DeviceKind::Software | DeviceKind::Cpu => None,
            DeviceKind::Discrete => {
                Some(Pace { bytes_per_second: 100e9, flops_per_second: 1e12, max_seconds: MAX_SUBMIT_SECONDS })
            }
            DeviceKind::Integrated | DeviceKind::Virtual => {
                Some(Pace { bytes_per_second: 10e9, flops_per_second: 100e9, max_seconds: MAX_SUBMIT_SECONDS })
            }
        },
    }
}

/// Windows resets a GPU after 2 seconds; others are more patient.
const MAX_SUBMIT_SECONDS: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llvmpipe_is_software_that_counts_loops() {
        let found = quirks(DeviceKind::Software, "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe", "AMD EPYC");
        assert_eq!((found.style, found.max_iterations, found.map_results), (Threads::Independent, 65_535, true));
        assert_eq!(found.b_row_bytes, Some(256));
        assert_eq!(found.pace, None);
    }

    #[test]
    fn hardware_has_a_watchdog_and_memory_of_its_own() {
        let found = quirks(DeviceKind::Discrete, "NVIDIA GeForce RTX 3060", "NVIDIA", "AMD Ryzen 7");
        assert_eq!(
            (found.style, found.max_iterations, found.map_results),
            (Threads::Cooperative, u32::MAX as usize, false)
        );
        assert_eq!(found.b_row_bytes, None);
        assert_eq!(
            quirks(DeviceKind::Software, "SwiftShader Device (Subzero)", "SwiftShader", "AMD EPYC").b_row_bytes,
            None
        );
        assert!(found.pace.is_some_and(|p| p.max_seconds < 2.0));
    }
}
