//! The micro-kernel of AMX, which sums up products in four tile registers, and the configuration of those registers. Rust has no stable
//! functions for these instructions, so they are inline assembly. Nothing else in the engine touches tile registers.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::arch::asm;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::SIDE;
use super::{TILE_COLUMNS, TILE_ROWS};

/// The sums of one register tile of results.
#[repr(C, align(64))]
pub struct Sums(pub [[f32; TILE_COLUMNS]; TILE_ROWS]);

impl Default for Sums {
    fn default() -> Sums {
        Sums([[0.0; TILE_COLUMNS]; TILE_ROWS])
    }
}

/// The memory that LDTILECFG reads: for each tile register the number of its rows, and the bytes in each row.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Configures all eight tile registers with 16 rows of 64 bytes.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
static CONFIG: TileConfig = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let mut register = 0;
    while register < 8 {
        row_bytes[register] = (SIDE * size_of::<f32>()) as u16;
        rows[register] = SIDE as u8;
        register += 1;
    }
    TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
};

/// The tile registers of this thread, configured until the value is dropped. The value cannot be sent to another thread.
pub struct TileRegisters(std::marker::PhantomData<*const ()>);

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl TileRegisters {
    /// Configures the tile registers.
    ///
    /// # Safety
    /// This process may use AMX.
    pub unsafe fn new() -> TileRegisters {
        // SAFETY: as promised by the caller.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                config = in(reg) &raw const CONFIG,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        TileRegisters(std::marker::PhantomData)
    }

    /// Sums up hi·lo, hi·hi and lo·hi over all steps of k. Tile registers 0 to 3 hold the sums, 4 and 5 rows of the left operand, 6
    /// and 7 columns of the right one. Four independent sums hide the latency of an instruction.
    ///
    /// # Safety
    /// The split rows and columns have `n_steps` steps, and `n_steps` is at least 1.
    pub unsafe fn multiply(&self, left: *const u16, right: *const u32, n_steps: usize, sums: &mut Sums) {
        // SAFETY: as promised by the caller; registers are configured.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                // hi · lo
                "tileloadd tmm4, [{left} + {row}]",
                "tileloadd tmm6, [{right} + {row} + 1024]",
                "tileloadd tmm5, [{left} + {row} + 2048]",
                "tileloadd tmm7, [{right} + {row} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // hi · hi
                "tileloadd tmm6, [{right} + {row}]",
                "tileloadd tmm7, [{right} + {row} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                // lo · hi
                "tileloadd tmm4, [{left} + {row} + 1024]",
                "tileloadd tmm5, [{left} + {row} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 4096",
                "add {right}, 4096",
                "dec {n}",
                "jnz 2b",
                "tilestored [{sums} + {sums_row}], tmm0",
                "tilestored [{sums} + {sums_row} + 64], tmm1",
                "tilestored [{sums} + {sums_row} + 2048], tmm2",
                "tilestored [{sums} + {sums_row} + 2112], tmm3",
                left = inout(reg) left => _,
                right = inout(reg) right => _,
                n = inout(reg) n_steps => _,
                sums = in(reg) &raw mut *sums,
                // From row to row of the registers, and of the sums.
                row = in(reg) 64usize,
                sums_row = in(reg) 128usize,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Drop for TileRegisters {
    fn drop(&mut self) {
        // SAFETY: the tile registers were configured on this thread.
        unsafe {
            asm!(
                "tilerelease",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}

/// On other systems AMX is never found, so no product goes through it.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
impl TileRegisters {
    /// # Safety
    /// As on Linux; never called.
    pub unsafe fn new() -> TileRegisters {
        unreachable!("AMX is used on Linux alone")
    }

    /// # Safety
    /// As on Linux; never called.
    pub unsafe fn multiply(&self, _: *const u16, _: *const u32, _: usize, _: &mut Sums) {
        unreachable!("AMX is used on Linux alone")
    }
}
