//! Numbers as digits: `x ≈ unit · (d₀ + 256·d₁ + 65536·d₂)` with signed digits of eight bits, and one unit, a power of two,
//! for 32 neighbours. With three digits the unit is 2⁻²² of the largest neighbour or less, so that products are as exact as
//! those of f32; with two it is 2⁻¹⁴, with one 2⁻⁶ (half a unit is the error of a number).

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

/// A number as f32 whose exponent is all that counts.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent.clamp(-126, 127) + 127) as u32) << 23)
}

impl DigitChunk {
    /// Neighbours as so many digits, for codes with this bias of which `sub_len` have one scale. None if one of them is
    /// not finite.
    #[inline(always)]
    pub fn new(x: &[f32; CHUNK], n_digits: usize, bias: i32, sub_len: usize) -> Option<DigitChunk> {
        let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let sum: f32 = x.iter().map(|x| x * 0.0).sum();
        if sum.is_nan() || largest > 1e38 {
            return None;
        }
        // Digits reach 127 where the next power of two would be 128: the largest is taken for a little more than it is.
        let exponent = ((largest * 1.01).to_bits() >> 23) as i32 - 127;
        let exponent = (exponent - (8 * n_digits as i32 - 2)).max(-126);
        let (unit, per_unit) = (power_of_two(exponent), power_of_two(-exponent.max(-127)));
        let mut chunk = DigitChunk { quads: [[0; 8]; 3], start: [[0; 3]; 2], sum: [0.0; 2], unit };
        let mut whole = [0i32; CHUNK];
        for (whole, x) in whole.iter_mut().zip(x) {
            // Adding and subtracting 1.5 · 2²³ would round as well, but not this large a number.
            *whole = (x * per_unit).round_ties_even() as i32;
        }
        let sum = |numbers: &[i32]| (numbers.iter().map(|x| *x as i64).sum::<i64>() as f64 * unit as f64) as f32;
        let total = sum(&whole);
        chunk.sum = [sum(&whole[..CHUNK / 2]), sum(&whole[CHUNK / 2..])];
        for digit in 0..n_digits {
            let mut bytes = [0i8; CHUNK];
            for (byte, whole) in bytes.iter_mut().zip(&mut whole) {
                *byte = *whole as i8;
                *whole = (*whole - *byte as i32) >> 8;
            }
            for (quad, bytes) in chunk.quads[digit].iter_mut().zip(bytes.as_chunks::<4>().0) {
                *quad = u32::from_le_bytes(bytes.map(|byte| byte as u8));
            }
            for half in 0..2 {
                let sum: i32 = bytes[half * 16..][..16].iter().map(|byte| *byte as i32).sum();
                chunk.start[half][digit] = -bias * sum;
            }
        }
        if sub_len == CHUNK {
            chunk.sum[0] = total;
            (0..MAX_DIGITS).for_each(|digit| chunk.start[0][digit] += chunk.start[1][digit]);
        }
        Some(chunk)
    }
}
