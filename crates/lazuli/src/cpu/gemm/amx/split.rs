//! Splits floats into two bf16 each, in the order in which tile registers are loaded, and decides which floats may be split. A tile
//! register of the left operand holds 32 neighbouring values of each of 16 rows; a tile register of the right operand holds 16 columns,
//! in which the values of rows 2·i and 2·i + 1 are a pair.

use std::ops::Range;

use super::kernel::Sums;
use super::{SIDE, STEP, TILE_COLUMNS};

/// The numbers of a tile register: 1024 bytes of bf16.
const N_HALVES: usize = SIDE * STEP;
/// The pairs of bf16 in a tile register.
const N_PAIRS: usize = N_HALVES / 2;

/// Exponents of the smallest and of the largest number of a block, zeros left out. The exponent of a number with 2ᵉ ≤ |x| < 2ᵉ⁺¹ is e,
/// that of a subnormal number −127, that of an infinity or NaN 128.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Magnitudes {
    least: i32,
    most: i32,
}

impl Default for Magnitudes {
    /// The magnitudes of a block of zeros.
    fn default() -> Magnitudes {
        Magnitudes { least: i32::MAX / 2, most: i32::MIN / 2 }
    }
}

/// Numbers with a larger exponent might be rounded to infinity.
const MAX_EXPONENT: i32 = 126;
/// Of numbers with a smaller exponent e, lo, a multiple of 2ᵉ⁻²³, might be subnormal, which AMX reads as zero.
const MIN_EXPONENT: i32 = -103;
/// Where exponents of two numbers add up to more, the sum of a block's 512 products might be infinite.
const MAX_OF_PRODUCT: i32 = 110;
/// Where exponents of two numbers add up to less, a sum might be subnormal, which AMX writes as zero. With exponents p and q, hi of one
/// number is a multiple of 2ᵖ⁻⁷ and lo of the other of 2^(q−23), so that products, and all their rounded sums, are multiples of
/// 2^(p+q−30).
const MIN_OF_PRODUCT: i32 = -96;

impl Magnitudes {
    /// The magnitudes of both blocks taken as one.
    pub fn with(self, other: Magnitudes) -> Magnitudes {
        Magnitudes { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    /// Whether a block with these magnitudes may be multiplied by the other block as two bf16 for each number.
    pub fn may_be_split_with(self, other: Magnitudes) -> bool {
        let both = self.with(other);
        both.most <= MAX_EXPONENT
            && both.least >= MIN_EXPONENT
            && self.most + other.most <= MAX_OF_PRODUCT
            && self.least.saturating_add(other.least) >= MIN_OF_PRODUCT
    }
}

/// Running minimum and maximum of absolute values, for each lane, as bits. The minimum is kept less one, wrapping, so that a zero is the
/// largest number and never the minimum.
struct MagnitudeLanes {
    least: [u32; STEP],
    most: [u32; STEP],
}

impl MagnitudeLanes {
    fn new() -> MagnitudeLanes {
        MagnitudeLanes { least: [u32::MAX; STEP], most: [0; STEP] }
    }

    #[inline(always)]
    fn add(&mut self, x: &[f32; STEP]) {
        for i in 0..STEP {
            let bits = x[i].abs().to_bits();
            self.least[i] = self.least[i].min(bits.wrapping_sub(1));
            self.most[i] = self.most[i].max(bits);
        }
    }

    fn all(&self) -> Magnitudes {
        let least = self.least.iter().fold(u32::MAX, |least, bits| least.min(*bits));
        let most = self.most.iter().fold(0, |most, bits| most.max(*bits));
        let exponent = |bits: u32| (bits >> 23) as i32 - 127;
        if most == 0 {
            return Magnitudes::default();
        }
        Magnitudes { least: exponent(least + 1), most: exponent(most) }
    }
}

/// The bits of a finite number rounded to the nearest bf16, ties to even.
#[inline(always)]
fn rounded(x: f32) -> u32 {
    let bits = x.to_bits();
    bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000
}

/// The hi and lo of a number, each a bf16 in the upper half of a word.
#[inline(always)]
pub fn split(x: f32) -> [u32; 2] {
    let hi = rounded(x);
    [hi, rounded(x - f32::from_bits(hi))]
}

/// The first `n` numbers from an address on, filled up with zeros.
///
/// # Safety
/// `n` numbers can be read, or 32 if `n` is larger.
#[inline(always)]
unsafe fn first(from: *const f32, n: usize) -> [f32; STEP] {
    // SAFETY: as promised by the caller.
    unsafe {
        if n >= STEP {
            return from.cast::<[f32; STEP]>().read();
        }
        let mut x = [0.0; STEP];
        from.copy_to_nonoverlapping(x.as_mut_ptr(), n);
        x
    }
}

/// Splits dense rows of the left operand into the rows `rows` of two tile registers. Each step along k has hi and lo of the first 16 rows,
/// then hi and lo of the second 16. Rows beyond those of the operand are not written, since their sums are not stored.
///
/// # Safety
/// AVX-512 is there, rows have `depth` values, and there is room for whole steps of two tiles.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))]
pub unsafe fn split_rows(
    (from, pitch): (*const f32, isize),
    rows: Range<usize>,
    depth: usize,
    to: *mut u16,
) -> Magnitudes {
    let mut magnitudes = MagnitudeLanes::new();
    for row in rows.clone() {
        let from = from.wrapping_offset((row - rows.start) as isize * pitch);
        let to = to.wrapping_add(row / SIDE * 2 * N_HALVES + row % SIDE * STEP);
        for step in 0..depth.div_ceil(STEP) {
            // SAFETY: as promised by the caller.
            let x = unsafe { first(from.add(step * STEP), depth - step * STEP) };
            magnitudes.add(&x);
            let mut parts = [[0u16; STEP]; 2];
            for i in 0..STEP {
                let [hi, lo] = split(x[i]);
                (parts[0][i], parts[1][i]) = ((hi >> 16) as u16, (lo >> 16) as u16);
            }
            let to = to.wrapping_add(step * 4 * N_HALVES);
            for (part, values) in parts.into_iter().enumerate() {
                // SAFETY: as promised by the caller.
                unsafe { to.add(part * N_HALVES).cast::<[u16; STEP]>().write(values) };
            }
        }
    }
    magnitudes.all()
}

/// Splits a panel of the right operand, `depth` dense rows of `width` values. For each 32 columns and each step along k it writes hi and lo
/// of the first 16 columns, then hi and lo of the second 16.
///
/// # Safety
/// AVX-512 is there, the width is a multiple of 32, and there is room for whole steps.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))]
pub unsafe fn split_panel(from: *const f32, depth: usize, width: usize, to: *mut u32) -> Magnitudes {
    let mut magnitudes = MagnitudeLanes::new();
    let n_pairs = depth.next_multiple_of(STEP) / 2;
    for column in (0..width).step_by(TILE_COLUMNS) {
        for pair in 0..n_pairs {
            // SAFETY: as promised by the caller.
            let [x, y] = [2 * pair, 2 * pair + 1].map(|row| match row < depth {
                true => unsafe { first(from.add(row * width + column), TILE_COLUMNS) },
                false => [0.0; TILE_COLUMNS],
            });
            magnitudes.add(&x);
            magnitudes.add(&y);
            let mut parts = [[0u32; TILE_COLUMNS]; 2];
            for i in 0..TILE_COLUMNS {
                let ([x_hi, x_lo], [y_hi, y_lo]) = (split(x[i]), split(y[i]));
                (parts[0][i], parts[1][i]) = (x_hi >> 16 | y_hi, x_lo >> 16 | y_lo);
            }
            let to = to.wrapping_add(column * 2 * n_pairs + pair / SIDE * 4 * N_PAIRS + pair % SIDE * SIDE);
            for (part, values) in parts.iter().enumerate() {
                for (tile, values) in values.as_chunks::<SIDE>().0.iter().enumerate() {
                    // SAFETY: as promised by the caller.
                    unsafe { to.add((tile * 2 + part) * N_PAIRS).cast::<[u32; SIDE]>().write(*values) };
                }
            }
        }
    }
    magnitudes.all()
}

/// Stores some rows and columns of sums, or adds them to the results that are there.
///
/// # Safety
/// The processor has AVX-512; the results can be read and written, in rows `pitch` apart.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))]
pub unsafe fn store(sums: &Sums, (n_rows, n_columns): (usize, usize), out: *mut f32, pitch: usize, adds: bool) {
    for (row, sums) in sums.0.iter().enumerate().take(n_rows) {
        // SAFETY: as promised by the caller.
        let out = unsafe { std::slice::from_raw_parts_mut(out.add(row * pitch), n_columns) };
        match adds {
            true => out.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum),
            false => out.copy_from_slice(&sums[..n_columns]),
        }
    }
}
