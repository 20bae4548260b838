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
    /// This machine has `isa`; `x` has `n_chunks` chunks of numbers; `out` is aligned, has room for `n_chunks` chunks of digits, does not
    /// overlap `x`, and is used by nobody else.
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

    /// A chunk is two vectors. Digits are stored from them as bytes, whose sums are made eight bytes at a time.
    ///
    /// # Safety
    /// As for [`DigitForm::row`]; the processor has these features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
    unsafe fn row_avx512(self, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        use std::arch::x86_64::*;
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        let magnitude = _mm512_set1_epi32(0x7fff_ffff);
        for at in 0..n_chunks {
            // SAFETY: the chunk is within the row, and there is room for its digits.
            let (x, out) = unsafe {
                let x = x.add(at * CHUNK);
                ([_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(CHUNK / 2))], &mut *out.add(at))
            };
            let bits = x.map(|x| _mm512_and_si512(_mm512_castps_si512(x), magnitude));
            let largest = _mm512_reduce_max_epi32(_mm512_max_epi32(bits[0], bits[1]));
            let Some(Units { unit, per_unit }) = self.units(largest as u32) else { return false };
            let per_unit = _mm512_set1_ps(per_unit);
            let mut whole = x.map(|x| _mm512_cvt_roundps_epi32::<NEAREST>(_mm512_mul_ps(x, per_unit)));
            let mut sums = [[0; MAX_DIGITS]; 2];
            for digit in 0..MAX_DIGITS {
                if digit >= self.n_digits {
                    out.quads[digit] = [0; CHUNK / 4];
                    continue;
                }
                let bytes = whole.map(|whole| _mm512_cvtepi32_epi8(whole));
                for half in 0..2 {
                    let rest = _mm512_sub_epi32(whole[half], _mm512_cvtepi8_epi32(bytes[half]));
                    whole[half] = _mm512_srai_epi32::<8>(rest);
                    // The sum takes unsigned bytes: 128 is added to each.
                    let positive = _mm_xor_si128(bytes[half], _mm_set1_epi8(-128));
                    let eights = _mm_sad_epu8(positive, _mm_setzero_si128());
                    let sum = _mm_cvtsi128_si32(eights) + _mm_extract_epi32::<2>(eights);
                    sums[half][digit] = sum - 128 * (CHUNK / 2) as i32;
                }
                // SAFETY: a digit has 32 bytes, 16 of each half.
                unsafe {
                    let to: *mut __m128i = out.quads[digit].as_mut_ptr().cast();
                    _mm_storeu_si128(to, bytes[0]);
                    _mm_storeu_si128(to.add(1), bytes[1]);
                }
            }
            self.finish(unit, sums, out);
        }
        true
    }

    /// # Safety
    /// As for [`DigitForm::row`]; the processor has these features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn row_avx2(self, x: *const f32, n_chunks: usize, out: *mut DigitChunk) -> bool {
        // SAFETY: as promised by the caller.
        unsafe { self.chunks(x, n_chunks, out) }
    }

    /// # Safety
    /// As for [`DigitForm::row`].
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
        let Some(Units { unit, per_unit }) = self.units(largest) else { return false };
        let mut whole = [0i32; CHUNK];
        for i in 0..CHUNK {
            // Adding and subtracting 1.5 · 2²³ would round as well, but not this large a number.
            let rounded = (x[i] * per_unit).round_ties_even();
            // SAFETY: finite, and by the choice of the unit below 2²³.
            whole[i] = unsafe { rounded.to_int_unchecked() };
        }
        let mut sums = [[0; MAX_DIGITS]; 2];
        out.quads = [[0; CHUNK / 4]; MAX_DIGITS];
        for digit in 0..self.n_digits {
            let mut bytes = [0i8; CHUNK];
            for i in 0..CHUNK {
                bytes[i] = whole[i] as i8;
                whole[i] = (whole[i] - bytes[i] as i32) >> 8;
            }
            for i in 0..CHUNK / 2 {
                sums[0][digit] += bytes[i] as i32;
                sums[1][digit] += bytes[CHUNK / 2 + i] as i32;
            }
            for quad in 0..CHUNK / 4 {
                let bytes = [bytes[4 * quad], bytes[4 * quad + 1], bytes[4 * quad + 2], bytes[4 * quad + 3]];
                out.quads[digit][quad] = u32::from_le_bytes(bytes.map(|byte| byte as u8));
            }
        }
        self.finish(unit, sums, out);
        true
    }

    /// The unit of a chunk, by the bits of its largest number without its sign. None if that is not finite, or too large for a power
    /// of two above it.
    #[inline(always)]
    fn units(self, largest: u32) -> Option<Units> {
        let largest = f32::from_bits(largest);
        if largest.is_nan() || largest > 1e38 {
            return None;
        }
        // A digit is at most 127, one less than the power of two: the largest number is taken to be a little larger than it is.
        let exponent = ((largest * 1.01).to_bits() >> 23) as i32 - 127;
        let exponent = (exponent - (8 * self.n_digits as i32 - 2)).max(-126);
        Some(Units { unit: power_of_two(exponent), per_unit: power_of_two(-exponent.max(-127)) })
    }

    /// Writes everything in a chunk but the digits, from the sums of the digits of each half.
    #[inline(always)]
    fn finish(self, unit: f32, sums: [[i32; MAX_DIGITS]; 2], out: &mut DigitChunk) {
        // Below 2²⁸ each.
        let whole = sums.map(|digits| digits[0] + (digits[1] << 8) + (digits[2] << 16));
        let number = |sum: i32| (sum as f64 * unit as f64) as f32;
        out.unit = unit;
        out.start = sums.map(|digits| digits.map(|sum| -self.bias * sum));
        out.sum = whole.map(number);
        if self.sub_len == CHUNK {
            out.sum[0] = number(whole[0] + whole[1]);
            for digit in 0..MAX_DIGITS {
                out.start[0][digit] += out.start[1][digit];
            }
        }
    }
}

/// The value of a digit's unit in a chunk, and the factor that turns a number into that many units.
struct Units {
    unit: f32,
    per_unit: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chunks that plain loops make, or None.
    fn plainly(form: DigitForm, x: &[f32]) -> Option<Vec<DigitChunk>> {
        made(x, |from, n, to| unsafe { form.chunks(from, n, to) })
    }

    fn made(x: &[f32], row: impl FnOnce(*const f32, usize, *mut DigitChunk) -> bool) -> Option<Vec<DigitChunk>> {
        // Bytes that the function should overwrite and does not are seen in the comparison.
        let garbage = DigitChunk { quads: [[7; CHUNK / 4]; MAX_DIGITS], start: [[7; 3]; 2], sum: [7.0; 2], unit: 7.0 };
        let mut out = vec![garbage; x.len() / CHUNK];
        row(x.as_ptr(), x.len() / CHUNK, out.as_mut_ptr()).then_some(out)
    }

    #[test]
    fn vector_code_makes_the_digits_that_plain_loops_make() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for scale in [0.0, 1e-45, 1e-39, 1e-30, 1.0, 127.5, 3e7, 9e37] {
            rows.push((0..4 * CHUNK).map(|_| random() * scale).collect());
            // The largest digits of both signs, and halves of a unit.
            rows.push((0..2 * CHUNK).map(|i| if i % 3 == 0 { -scale } else { scale }).collect());
            rows.push((0..2 * CHUNK).map(|i| scale * (0.5 + i as f32) / 64.0).collect());
        }
        for spoilt in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e38] {
            let mut row = rows[0].clone();
            row[3 * CHUNK + 5] = spoilt;
            rows.push(row);
        }
        for (n_digits, bias, sub_len) in [(1, 0, 32), (2, 8, 16), (3, 8, 32), (3, 0, 16), (3, 32, 16), (2, 16, 32)] {
            let form = DigitForm { n_digits, bias, sub_len };
            for row in &rows {
                let expect = plainly(form, row).map(words);
                let found = made(row, |from, n, to| unsafe { form.row(crate::ops::isa(), from, n, to) }).map(words);
                assert_eq!(found, expect, "{n_digits} digits, bias {bias}, {sub_len} codes a scale: {row:?}");
            }
        }
    }

    /// Everything in the chunks, as bits.
    fn words(chunks: Vec<DigitChunk>) -> Vec<u32> {
        let words = |chunk: &DigitChunk| {
            let start = chunk.start.as_flattened().iter().map(|start| *start as u32);
            let floats = chunk.sum.iter().chain([&chunk.unit]).map(|x| x.to_bits());
            chunk.quads.as_flattened().iter().copied().chain(start).chain(floats).collect::<Vec<u32>>()
        };
        chunks.iter().flat_map(words).collect()
    }
}
