//! Decides which products go through AMX, the matrix instructions of some Intel processors, and whether this process may use AMX: the
//! processor must have tile registers and their products of bf16, the system must save tile registers when it switches threads, and
//! Linux saves them only for a process that has asked for permission. Knows nothing of how products are computed.

use crate::blocks::Storage;
use crate::log;
use crate::ops::Isa;

/// Which products of floats with many rows go through AMX. There each float is split into two bf16, which is less exact than f32: see
/// docs/decisions/amx-in-three-passes.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AmxUse {
    /// No products: AMX is missing or turned off.
    Never,
    /// Products whose right operand is stored in blocks.
    Blocks,
    /// Products of plain floats, too.
    All,
}

/// The fewest rows of a product by AMX: with fewer, a tile register would not be full.
const MIN_ROWS: usize = 16;

impl AmxUse {
    /// The products that may go through AMX on this machine, given `LAZULI_AMX` and the instruction set in use.
    pub fn of_machine(isa: Isa) -> AmxUse {
        const NAMES: [(&str, AmxUse); 3] = [("off", AmxUse::Never), ("blocks", AmxUse::Blocks), ("all", AmxUse::All)];
        let asked = log::choice("LAZULI_AMX", &NAMES).unwrap_or(AmxUse::Blocks);
        // Blocks of numbers that may not be split are multiplied by AVX-512, so AMX needs AVX-512, too.
        if asked == AmxUse::Never || isa != Isa::Avx512 || !is_permitted() { AmxUse::Never } else { asked }
    }

    /// Whether a product of `n_rows` rows whose right operand has this storage goes through AMX.
    pub fn takes(self, n_rows: usize, right: Storage) -> bool {
        let is_meant = match self {
            AmxUse::Never => false,
            AmxUse::Blocks => right.blocks().is_some(),
            AmxUse::All => true,
        };
        is_meant && n_rows >= MIN_ROWS
    }
}

/// Whether this process may use tile registers and their products of bf16. The system is asked once, for all threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn is_permitted() -> bool {
    use std::sync::OnceLock;

    static PERMITTED: OnceLock<bool> = OnceLock::new();
    // The system is asked last, since a permission cannot be given back.
    *PERMITTED.get_or_init(|| is_in_processor() && ask())
}

/// AMX is used on no other system.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn is_permitted() -> bool {
    false
}

/// Whether the processor has the instructions, and the system saves tile registers and their configuration when it switches threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_in_processor() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// CPUID leaf 1, ECX: XGETBV may be used.
    const OSXSAVE: u32 = 1 << 27;
    /// CPUID leaf 7, EDX: AMX-BF16 and AMX-TILE.
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    /// Register XCR0: the system saves the configuration of tile registers (XTILECFG) and their contents (XTILEDATA).
    const CONFIG_AND_DATA: u64 = 1 << 17 | 1 << XTILEDATA;

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller has checked OSXSAVE, so that programs may read this register.
        unsafe { _xgetbv(0) }
    }

    let max_leaf = __cpuid(0).eax;
    let has_all = |word: u32, bits: u32| word & bits == bits;
    if max_leaf < 7 || !has_all(__cpuid(1).ecx, OSXSAVE) || !has_all(__cpuid_count(7, 0).edx, BF16_AND_TILE) {
        return false;
    }
    // SAFETY: OSXSAVE is set, so that XGETBV exists and may be used.
    unsafe { xcr0() & CONFIG_AND_DATA == CONFIG_AND_DATA }
}

/// The number of the state component that holds the contents of tile registers.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const XTILEDATA: u64 = 18;

/// Asks Linux (5.16 and later) for permission to use tile registers. A kernel that does not know the request refuses it, and so does
/// any kernel if a thread has a signal stack that is too small for the contents of tile registers.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    // SAFETY: the request takes the number of a state component and no pointer.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, XTILEDATA) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{BlockFormat, BlockStorage};
    use crate::dtype::DType;

    #[test]
    fn products_of_16_rows_take_amx_with_blocks_and_with_plain_floats_on_request() {
        let blocks = Storage::Blocks(BlockStorage { format: &BlockFormat::all()[0], row_len: 256 });
        let plain = Storage::Plain(DType::F32);
        for (amx, of_blocks, of_plain) in
            [(AmxUse::Never, false, false), (AmxUse::Blocks, true, false), (AmxUse::All, true, true)]
        {
            assert_eq!((amx.takes(16, blocks), amx.takes(16, plain)), (of_blocks, of_plain), "{amx:?}");
            assert!(!amx.takes(15, blocks) && !amx.takes(15, plain), "{amx:?}");
        }
    }

    #[test]
    fn amx_is_never_used_without_avx512() {
        for isa in [Isa::Baseline, Isa::Avx2] {
            assert_eq!(AmxUse::of_machine(isa), AmxUse::Never);
        }
    }

    /// Linux lists the processor's features in /proc/cpuinfo, independently of CPUID as read here.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn amx_is_found_where_linux_lists_it() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> = text.lines().find(|line| line.starts_with("flags")).unwrap().split(' ').collect();
        let is_listed = ["amx_tile", "amx_bf16"].iter().all(|flag| flags.contains(flag));
        assert_eq!(is_in_processor(), is_listed);
        assert!(is_listed || !is_permitted());
    }
}
