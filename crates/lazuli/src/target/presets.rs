//! Targets by name, for plans, schedules and texts that are made without a device.

use super::{AmxUse, Caches, CpuTarget, Target};
#[cfg(feature = "gpu")]
use super::{GpuTarget, quirks};
#[cfg(feature = "gpu")]
use crate::device::DeviceKind;
use crate::ops::Isa;

/// Two threads, and caches as they are outside of tests.
fn processor(isa: Isa) -> Target {
    with_amx(isa, AmxUse::Never)
}

fn with_amx(isa: Isa, amx: AmxUse) -> Target {
    let caches = Caches { l1_bytes: 32 << 10, all_bytes: 12 << 20 };
    Target::cpu(CpuTarget { isa, threads: 2, caches, has_vnni: isa == Isa::Avx512, n_digits: 3, amx })
}

impl Target {
    /// A processor with AVX-512, and two threads.
    pub fn avx512() -> Target {
        processor(Isa::Avx512)
    }

    /// A processor with AVX-512 and AMX, and two threads.
    pub fn amx() -> Target {
        with_amx(Isa::Avx512, AmxUse::Blocks)
    }

    /// A processor with AVX2, and two threads.
    pub fn avx2() -> Target {
        processor(Isa::Avx2)
    }

    /// A processor of which nothing is asked but what its architecture promises, and two threads.
    pub fn baseline() -> Target {
        processor(Isa::Baseline)
    }
}

#[cfg(feature = "gpu")]
impl Target {
    /// An AMD GPU of the RDNA2 family by RADV, Mesa's driver: subgroups of 32 or 64, so of no size that is known.
    pub fn rdna2() -> Target {
        let known = quirks(DeviceKind::Discrete, "AMD Radeon RX 6800 (RADV NAVI21)", "radv", "AMD Ryzen 7");
        Target::gpu(GpuTarget {
            max_binding_bytes: 2047 << 20,
            max_bindings: 1_864_135,
            max_invocations: 1024,
            max_shared_bytes: 64 << 10,
            subgroup_sizes: Some([32, 64]),
            ..known
        })
    }

    /// An AMD GPU of the RDNA3 family by RADV.
    pub fn rdna3() -> Target {
        let known = quirks(DeviceKind::Discrete, "AMD Radeon RX 7900 XTX (RADV GFX1100)", "radv", "AMD Ryzen 7");
        Target::gpu(GpuTarget {
            max_binding_bytes: 2047 << 20,
            max_bindings: 1_864_135,
            max_invocations: 1024,
            max_shared_bytes: 64 << 10,
            subgroup_sizes: Some([32, 64]),
            ..known
        })
    }

    /// Mesa's driver that runs on the CPU, on an AMD processor with AVX: subgroups are its vectors of eight.
    pub fn llvmpipe() -> Target {
        let known = quirks(DeviceKind::Software, "llvmpipe (LLVM 15.0.6, 256 bits)", "llvmpipe", "AMD EPYC");
        Target::gpu(GpuTarget {
            max_binding_bytes: 128 << 20,
            max_bindings: 32,
            max_invocations: 1024,
            max_shared_bytes: 32 << 10,
            subgroup: Some(8),
            subgroup_sizes: Some([8, 8]),
            ..known
        })
    }

    /// Google's driver that runs on the CPU: subgroups are its vectors of four.
    pub fn swiftshader() -> Target {
        let known = quirks(DeviceKind::Software, "SwiftShader Device (Subzero)", "SwiftShader driver", "AMD EPYC");
        Target::gpu(GpuTarget {
            max_binding_bytes: 1 << 30,
            max_bindings: 10,
            max_invocations: 256,
            max_shared_bytes: 32 << 10,
            subgroup_sizes: Some([4, 4]),
            ..known
        })
    }

    /// A GPU of which nothing is known but what WebGPU promises of every device.
    pub fn webgpu_minimum() -> Target {
        Target::gpu(quirks(DeviceKind::Integrated, "", "", ""))
    }
}
