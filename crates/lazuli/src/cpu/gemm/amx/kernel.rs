//! The instructions of AMX: tile registers, and the loop that sums up products in four of them. Rust has no stable functions for
//! these instructions, so they are assembly. Nothing else in a program touches tile registers.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use std::arch::asm;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::SIDE;
use super::{TILE_COLUMNS, TILE_ROWS};

/// Sums of a block of results.
#[repr(C, align(64))]
pub struct Sums(pub [[f32; TILE_COLUMNS]; TILE_ROWS]);

impl Default for Sums {
    fn default() -> Sums {
        Sums([[0.0; TILE_COLUMNS]; TILE_ROWS])
    }
}

/// What LDTILECFG reads: of each tile register how many rows it has, and how many bytes in each.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tile registers: 16 rows of 64 bytes.
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

/// The tile registers of this thread, configured until this is dropped. It stays on its thread.
pub struct TileRegisters(std::marker::PhantomData<*const ()>);

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl TileRegisters {
    /// Configures them.
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

    /// Sums up hi·lo, hi·hi and lo·hi of two tiles of rows and two of columns, a step of k after another: in registers 0 to 3, of
    /// rows in 4 and 5 and columns in 6 and 7. Four sums are as many as hide how long an instruction takes.
    ///
    /// # Safety
    /// Split rows and columns have so many steps, of which there is one at least.
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
        // SAFETY: they were configured on this thread.
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

/// Elsewhere AMX is never found, so that no product goes through it.
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
