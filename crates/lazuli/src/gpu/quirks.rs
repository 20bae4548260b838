//! What is known of drivers and is told by no API: facts as data, each with where it was seen. They become limits for
//! the planner and capabilities for shader text; nothing else asks which driver it is.

use crate::device::DeviceKind;
use crate::wgsl::{Folds, Threads};

/// How a device is best used.
#[derive(Clone, Debug, PartialEq)]
pub struct Quirks {
    /// How invocations should share work.
    pub style: Threads,
    /// Loop iterations that one invocation may make in all.
    pub max_iterations: usize,
    /// Whether texts that keep much in registers are compiled in good time.
    pub large_shaders: bool,
    /// What its compiler does to sums and products.
    pub folds: Folds,
    /// Bytes of a row of a product's right matrix that eight invocations side by side should read at a time, where that
    /// is known.
    pub b_row_bytes: Option<usize>,
    /// Whether invocations are counted in a subgroup as in their workgroup, as far as both go.
    pub counts_lanes: bool,
    /// Whether results are mapped where they lie instead of being copied to memory for reading first.
    pub map_results: bool,
    /// Whether its memory is the machine's, handed out beyond what there is: ask the system before taking much.
    pub host_memory: bool,
    /// Bytes and operations per second that can be counted on, and how long a submit may take before a watchdog ends
    /// it, in seconds. Cautious figures: they only decide where a long plan is cut.
    pub pace: Option<Pace>,
}

/// What a device can be counted on to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub bytes_per_second: f64,
    pub flops_per_second: f64,
    pub max_seconds: f64,
}

/// What is known of a device of this kind with this name and driver, on a machine with this processor.
pub fn quirks(kind: DeviceKind, name: &str, driver: &str, processor: &str) -> Quirks {
    let software = kind == DeviceKind::Software;
    let is = |word: &str| name.to_lowercase().contains(word) || driver.to_lowercase().contains(word);
    let is_llvmpipe = is("llvmpipe") || is("lavapipe");
    Quirks {
        // Drivers that run on the CPU make barriers expensive (llvmpipe runs invocations as coroutines) and registers
        // cheap.
        style: if software { Threads::Independent } else { Threads::Cooperative },
        // Mesa 22.3's llvmpipe counts 65,535 iterations over all loops of an invocation, then silently ends them. Mesa
        // does not say which versions do, so every llvmpipe is taken to.
        max_iterations: if is_llvmpipe { 65_535 } else { u32::MAX as usize },
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
    use std::sync::Arc;

    use super::super::adapters;
    use super::super::open_device::OpenDevice;
    use super::super::read::read;
    use super::super::storage::GpuBuffer;
    use super::*;
    use crate::backend::Counters;

    #[test]
    fn llvmpipe_is_software_that_counts_loops() {
        let found = quirks(DeviceKind::Software, "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe", "AMD EPYC");
        assert_eq!((found.style, found.max_iterations, found.map_results), (Threads::Independent, 65_535, true));
        assert_eq!(found.b_row_bytes, Some(256));
        assert_eq!(found.pace, None);
    }

    /// How many times a loop of `n` goes round in one invocation.
    fn rounds(live: &Arc<OpenDevice>, n: u32) -> u32 {
        const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() {
                var rounds = 0u;
                for (var i = 0u; i < x[0]; i++) { rounds += 1u + x[1]; }
                x[0] = rounds;
            }";
        let words: Vec<u8> = [n, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let block = live.take_with(&words).unwrap();
        live.dispatch(TEXT, &block, 1);
        let mut out = [0; 4];
        read(&GpuBuffer::of_block(block, Vec::new(), None), &Counters::default(), &mut out).unwrap();
        u32::from_ne_bytes(out)
    }

    /// A fact of the driver: if it ends loops early, that is known.
    #[test]
    fn a_driver_that_ends_loops_early_is_known_to() {
        assert!(!adapters::found().is_empty(), "no GPU adapter was found");
        for found in adapters::found() {
            let live = found.live().unwrap();
            let max_iterations = live.quirks.max_iterations;
            for n in [1000, 65_535, 65_536, 200_000] {
                let rounds = rounds(&live, n);
                assert!(rounds == n || n as usize > max_iterations, "{}: {rounds} of {n}", found.info);
            }
        }
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
