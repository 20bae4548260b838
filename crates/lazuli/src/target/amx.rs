//! Which products may go through AMX, the matrix tiles of some Intel processors, and whether this process may use them: the
//! processor must have tiles and their products of bf16, the system must save tiles when threads are switched, and Linux gives
//! the memory for that only to a process that has asked for it. Knows nothing of how products are made.

use crate::blocks::Storage;
use crate::log;
use crate::ops::Isa;

/// Which products of floats with many rows go through AMX. It multiplies each float as the sum of two bf16, which is less exact
/// than f32: see docs/decisions/amx-in-three-passes.md.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AmxUse {
    /// None: AMX is missing, or was turned off.
    Never,
    /// Those whose right operand is stored in blocks.
    Blocks,
    /// Those of plain floats, too.
    All,
}

/// With fewer rows than this, half of a tile would be empty.
const MIN_ROWS: usize = 16;

impl AmxUse {
    /// What this machine can and `LAZULI_AMX` allows, beside these instructions.
    pub fn of_machine(isa: Isa) -> AmxUse {
        const NAMES: [(&str, AmxUse); 3] = [("off", AmxUse::Never), ("blocks", AmxUse::Blocks), ("all", AmxUse::All)];
        let asked = log::choice("LAZULI_AMX", &NAMES).unwrap_or(AmxUse::Blocks);
        // Values that AMX cannot take go through AVX-512.
        if asked == AmxUse::Never || isa != Isa::Avx512 || !is_permitted() { AmxUse::Never } else { asked }
    }

    /// Whether it takes a product of so many rows whose right operand is stored so.
    pub fn takes(self, n_rows: usize, right: Storage) -> bool {
        let is_meant = match self {
            AmxUse::Never => false,
            AmxUse::Blocks => right.blocks().is_some(),
            AmxUse::All => true,
        };
        is_meant && n_rows >= MIN_ROWS
    }
}

/// Whether this process may use tiles and their products of bf16. The system is asked once, for all threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub fn is_permitted() -> bool {
    use std::sync::OnceLock;

    static PERMITTED: OnceLock<bool> = OnceLock::new();
    // The system is asked last: what it gives cannot be given back.
    *PERMITTED.get_or_init(|| is_in_processor() && ask())
}

/// Other systems are not asked.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub fn is_permitted() -> bool {
    false
}

/// Whether the processor has the instructions, and the system saves tiles and their configuration when it switches threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn is_in_processor() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// Of leaf 1, ECX: XGETBV may be used.
    const OSXSAVE: u32 = 1 << 27;
    /// Of leaf 7, EDX: AMX-BF16 and AMX-TILE.
    const BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    /// Of the register XCR0: the configuration of tiles (XTILECFG) and their data (XTILEDATA).
    const CONFIG_AND_DATA: u64 = 1 << 17 | 1 << XTILEDATA;

    #[target_feature(enable = "xsave")]
    fn xcr0() -> u64 {
        // SAFETY: the caller has seen that the system lets programs read this register.
        unsafe { _xgetbv(0) }
    }

    let max_leaf = __cpuid(0).eax;
    let has_all = |word: u32, bits: u32| word & bits == bits;
    if max_leaf < 7 || !has_all(__cpuid(1).ecx, OSXSAVE) || !has_all(__cpuid_count(7, 0).edx, BF16_AND_TILE) {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction is there and may be used.
    unsafe { xcr0() & CONFIG_AND_DATA == CONFIG_AND_DATA }
}

/// The number of the state component that holds tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
const XTILEDATA: u64 = 18;

/// Asks Linux (5.16 and later) for the memory in which threads' tiles are saved. It refuses where it does not know the request,
/// and where a thread has a stack for signals that could not hold tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn ask() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`.
    const REQUEST_PERMISSION: libc::c_long = 0x1023;
    // SAFETY: the request takes the number of a state component and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, XTILEDATA) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{BlockFormat, BlockStorage};
    use crate::dtype::DType;

    #[test]
    fn many_rows_with_blocks_take_it_and_plain_floats_where_all_are_asked_for() {
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
    fn lesser_instructions_go_without_it() {
        for isa in [Isa::Baseline, Isa::Avx2] {
            assert_eq!(AmxUse::of_machine(isa), AmxUse::Never);
        }
    }

    /// Linux tells of the processor itself, apart from what is asked here.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    #[test]
    fn it_is_found_where_linux_finds_it() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> = text.lines().find(|line| line.starts_with("flags")).unwrap().split(' ').collect();
        let is_listed = ["amx_tile", "amx_bf16"].iter().all(|flag| flags.contains(flag));
        assert_eq!(is_in_processor(), is_listed);
        assert!(is_listed || !is_permitted());
    }
}
