//! Numbers as digits: `x ≈ unit · (d₀ + 256·d₁ + 65536·d₂)` with signed digits of eight bits, and one unit, a power of two,
//! for 32 neighbours. With three digits the unit is 2⁻²² of the largest neighbour or less, so that products are as exact as
//! those of f32; with two it is 2⁻¹⁴, with one 2⁻⁶ (half a unit is the error of a number).

use crate::ops::Isa;

/// Numbers that have one unit.
pub const CHUNK: usize = 32;
/// The most digits of a number.
pub const MAX_DIGITS: usize = 3;

/// 32 neighbours of a row.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct DigitChunk {
    /// Per digit, the least first: four neighbours a word, a byte each.
    pub quads: [[u32; CHUNK / 4]; MAX_DIGITS],
    /// Per half of the chunk and digit, what sums start with: the bias of codes times the digits, subtracted. If both
    /// halves have one scale, the first has the sum of both.
    pub start: [[i32; MAX_DIGITS]; 2],
    /// Per half (or of both), the sum of the rounded numbers.
    pub sum: [f32; 2],
    pub unit: f32,
}

/// How numbers are taken apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DigitForm {
    pub n_digits: usize,
    /// What is subtracted from codes.
    pub bias: i32,
    /// How many neighbouring codes have one scale, up to a chunk of them.
    pub sub_len: usize,
}

/// A number as f32 whose exponent is all that counts.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent.clamp(-126, 127) + 127) as u32) << 23)
}

impl DigitForm {
    /// Takes a row of chunks apart. False if a number is not finite, or too large for a power of two above it.
    ///
    /// # Safety
    /// The instruction set is there; there are as many chunks of numbers and room for as many of digits.
    pub unsafe fn row(self, isa: Isa, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        // SAFETY: as promised by the caller.
        unsafe {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => self.row_avx512(x, n_chunks, out),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => self.row_avx2(x, n_chunks, out),
                _ => self.chunks(x, n_chunks, out),
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    unsafe fn row_avx512(self, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { self.chunks(x, n_chunks, out) }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn row_avx2(self, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { self.chunks(x, n_chunks, out) }
    }

    #[inline(always)]
    unsafe fn chunks(self, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        for at in 0..n_chunks {
            // SAFETY: the chunk is within the row, and there is room for its digits.
            unsafe {
                let x: [f32; CHUNK] = x.add(at * CHUNK).cast::<[f32; CHUNK]>().read_unaligned();
                if !self.chunk(&x, &mut *out.add(at)) {
                    return false;
                }
            }
        }
        true
    }

    /// Loops of one kind over all 32 numbers, so that each becomes a few vector instructions.
    #[inline(always)]
    fn chunk(self, x: &[f32; CHUNK], out: &mut DigitChunk) -> bool {
        // Without their signs, floats are ordered as their bits are; what is not finite comes last.
        let mut largest = 0;
        for i in 0..CHUNK {
            largest = largest.max(x[i].to_bits() & 0x7fff_ffff);
        }
        let largest = f32::from_bits(largest);
        if largest.is_nan() || largest > 1e38 {
            return false;
        }
        // Digits reach 127 where the next power of two would be 128: the largest is taken for a little more than it is.
        let exponent = ((largest * 1.01).to_bits() >> 23) as i32 - 127;
        let exponent = (exponent - (8 * self.n_digits as i32 - 2)).max(-126);
        let (unit, per_unit) = (power_of_two(exponent), power_of_two(-exponent.max(-127)));
        let mut whole = [0i32; CHUNK];
        for i in 0..CHUNK {
            // Adding and subtracting 1.5 · 2²³ would round as well, but not this large a number.
            let rounded = (x[i] * per_unit).round_ties_even();
            // SAFETY: finite, and by the choice of the unit below 2²³.
            whole[i] = unsafe { rounded.to_int_unchecked() };
        }
        // Below 2²⁸ each.
        let mut sums = [0i32; 2];
        for i in 0..CHUNK / 2 {
            sums[0] += whole[i];
            sums[1] += whole[CHUNK / 2 + i];
        }
        let number = |sum: i32| (sum as f64 * unit as f64) as f32;
        *out = DigitChunk { quads: [[0; 8]; 3], start: [[0; 3]; 2], sum: sums.map(number), unit };
        for digit in 0..self.n_digits {
            let mut bytes = [0i8; CHUNK];
            let mut sums = [0i32; 2];
            for i in 0..CHUNK {
                bytes[i] = whole[i] as i8;
                whole[i] = (whole[i] - bytes[i] as i32) >> 8;
            }
            for i in 0..CHUNK / 2 {
                sums[0] += bytes[i] as i32;
                sums[1] += bytes[CHUNK / 2 + i] as i32;
            }
            for quad in 0..CHUNK / 4 {
                let bytes = [bytes[4 * quad], bytes[4 * quad + 1], bytes[4 * quad + 2], bytes[4 * quad + 3]];
                out.quads[digit][quad] = u32::from_le_bytes(bytes.map(|byte| byte as u8));
            }
            for half in 0..2 {
                out.start[half][digit] = -self.bias * sums[half];
            }
        }
        if self.sub_len == CHUNK {
            out.sum[0] = number(sums[0] + sums[1]);
            for digit in 0..MAX_DIGITS {
                out.start[0][digit] += out.start[1][digit];
            }
        }
        true
    }
}
