//! Blocks as files have them: codes and scales of one block, widening, and quantising to the two formats that are made.

use half::f16;

use super::formats::{BlockFormat, CodePlane, SubScales};
use super::resident::ROWS;
use crate::error::{Error, Result};
use crate::room::with_room;

/// The most elements of a block, and the most sub-blocks.
pub(super) const MAX_LEN: usize = 256;
pub(super) const MAX_SUBS: usize = 16;

/// Where the codes of a block are in a file: of each four neighbours, where their bits start.
pub(super) struct PlaneOfFile {
    bits: usize,
    n_quads: usize,
    /// The first of four neighbouring bytes, and the place of the lowest bit in each. With bits of one byte for all four, that
    /// byte, and the place of the first one's.
    places: [(usize, usize); MAX_LEN / 4],
    in_one_byte: bool,
    /// Bits that are the other way round.
    flipped: u32,
}

impl PlaneOfFile {
    fn new(plane: &CodePlane, block_len: usize, flipped: u32) -> PlaneOfFile {
        let per_byte = 8 / plane.bits;
        let place = |quad: usize| {
            let e = quad * 4;
            let byte = plane.at + e / (plane.run * per_byte) * plane.run + e % plane.run;
            (byte, e / plane.run % per_byte * plane.bits)
        };
        let mut places = [(0, 0); MAX_LEN / 4];
        let n_quads = block_len / 4;
        places.iter_mut().enumerate().take(n_quads).for_each(|(quad, at)| *at = place(quad));
        PlaneOfFile { bits: plane.bits, n_quads, places, in_one_byte: plane.run == 1, flipped }
    }

    /// The bits of four neighbours, a byte each.
    #[inline(always)]
    fn four(&self, block: &[u8], quad: usize, mask: u32) -> u32 {
        let (at, shift) = self.places[quad];
        if self.in_one_byte {
            // Bits 0 to 3 become the lowest bits of four bytes.
            return ((block[at] as u32 >> shift) & 15).wrapping_mul(0x0020_4081) & mask;
        }
        let bytes = [block[at], block[at + 1], block[at + 2], block[at + 3]];
        ((u32::from_le_bytes(bytes) ^ self.flipped) >> shift) & mask
    }

    /// Writes the words of a row of a plane of a tile.
    pub fn write(&self, block: &[u8], plane: &mut [u8], row: usize) {
        match self.bits {
            1 => self.write_words::<1>(block, plane, row),
            2 => self.write_words::<2>(block, plane, row),
            4 => self.write_words::<4>(block, plane, row),
            _ => self.write_words::<8>(block, plane, row),
        }
    }

    #[inline(always)]
    fn write_words<const BITS: usize>(&self, block: &[u8], plane: &mut [u8], row: usize) {
        let (per_word, mask) = (8 / BITS, (0xff >> (8 - BITS)) * 0x0101_0101);
        for (word, out) in plane.chunks_exact_mut(ROWS * 4).enumerate().take(self.n_quads / per_word) {
            let mut bits = 0;
            for i in 0..per_word {
                bits |= self.four(block, word * per_word + i, mask) << (i * BITS);
            }
            out[row * 4..row * 4 + 4].copy_from_slice(&bits.to_le_bytes());
        }
    }
}

/// The scales of a block. That of sub-block `i` is `d · subs[i].0`, its offset `m − dmin · subs[i].1`; without sub-blocks,
/// `d` and `m`.
pub(super) struct BlockScales {
    pub d: f16,
    pub m: f16,
    /// Scale and offset of each sub-block.
    pub subs: [(i8, u8); MAX_SUBS],
}

impl BlockFormat {
    /// Where codes are in a block of a file: the low plane, and the high one (empty, if there is none).
    pub(super) fn planes(&self) -> [PlaneOfFile; 2] {
        // A signed code plus 128 is the code with its highest bit flipped.
        let flipped = if self.signed { 0x8080_8080 } else { 0 };
        let high = self.high.unwrap_or(CodePlane { at: 0, bits: 8, run: 4 });
        [PlaneOfFile::new(&self.low, self.block_len(), flipped), PlaneOfFile::new(&high, self.block_len(), 0)]
    }

    /// The scales of a block.
    pub(super) fn scales(&self, block: &[u8]) -> BlockScales {
        let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]);
        let mut subs = [(1, 1); MAX_SUBS];
        let n_subs = self.block_len() / self.sub_len;
        for (i, sub) in subs.iter_mut().take(n_subs).enumerate() {
            *sub = self.subs.of(block, i);
        }
        BlockScales { d: half(self.scale_at), m: self.offset_at.map_or(f16::ZERO, half), subs }
    }

    /// The factor and the offset of a sub-block: `w = factor · q + offset`, with one rounding each.
    pub(super) fn factor_and_offset(&self, scales: &BlockScales, sub: usize) -> (f32, f32) {
        let (d, m) = (scales.d.to_f32(), scales.m.to_f32());
        let (scale, offset) = scales.subs[sub];
        match self.subs {
            SubScales::None => (d, m),
            // Both products are exact: eleven bits times eight at most.
            _ => (d * scale as f32, -(m * offset as f32)),
        }
    }

    /// An element from its code, which has no sign yet.
    pub(super) fn element(&self, (factor, offset): (f32, f32), code: u8) -> f32 {
        let scaled = factor * (code as i32 - self.bias as i32) as f32;
        if self.offset_at.is_some() { scaled + offset } else { scaled }
    }
}

impl SubScales {
    /// Scale and offset of a sub-block.
    fn of(&self, block: &[u8], i: usize) -> (i8, u8) {
        match *self {
            SubScales::None => (1, 1),
            SubScales::Nibbles { at } => ((block[at + i] & 15) as i8, block[at + i] >> 4),
            SubScales::Bytes { at } => (block[at + i] as i8, 0),
            SubScales::SixBits { at } => {
                let low = block[at + i % 8] >> (i / 8 * 4) & 15;
                let high = block[at + 8 + i % 4] >> (i / 4 * 2) & 3;
                ((low | high << 4) as i8 - 32, 0)
            }
            SubScales::SixBitPairs { at } => {
                let byte = |i: usize| block[at + i];
                match i < 4 {
                    true => ((byte(i) & 63) as i8, byte(i + 4) & 63),
                    false => {
                        let (scale, offset) = (byte(i + 4) & 15, byte(i + 4) >> 4);
                        ((scale | byte(i - 4) >> 6 << 4) as i8, offset | byte(i) >> 6 << 4)
                    }
                }
            }
        }
    }
}

/// The elements of whole blocks.
#[track_caller]
pub(super) fn widen(format: &BlockFormat, bytes: &[u8]) -> Result<Vec<f32>> {
    let n_blocks = bytes.len() / format.block_bytes();
    let mut out = with_room("widen", n_blocks * format.block_len())?;
    let [low, high] = format.planes();
    let mask = |bits: usize| (0xff >> (8 - bits)) * 0x0101_0101u32;
    for block in bytes.chunks_exact(format.block_bytes()) {
        let scales = format.scales(block);
        for e in (0..format.block_len()).step_by(4) {
            let of_sub = format.factor_and_offset(&scales, e / format.sub_len);
            let mut codes = low.four(block, e / 4, mask(low.bits));
            if format.high.is_some() {
                codes |= high.four(block, e / 4, mask(high.bits)) << low.bits;
            }
            let codes = codes.to_le_bytes();
            out.extend(codes.map(|code| format.element(of_sub, code)));
        }
    }
    Ok(out)
}

/// Finite numbers as blocks.
#[track_caller]
pub(super) fn quantize(format: &BlockFormat, values: &[f32]) -> Result<Vec<u8>> {
    let write = match format.name() {
        "Q8_0" => q8_0,
        "Q4_0" => q4_0,
        name => {
            let message = format!("to {name} is not supported; Q8_0 and Q4_0 are");
            return Err(Error::unsupported("quantize", message));
        }
    };
    let mut out = with_room("quantize", format.bytes_of(values.len()))?;
    values.chunks_exact(format.block_len()).for_each(|block| write(block, &mut out));
    Ok(out)
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The largest magnitude becomes ±127.
fn q8_0(values: &[f32], out: &mut Vec<u8>) {
    let largest = values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    let d = largest / 127.0;
    let by = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(values.iter().map(|v| (v * by).round() as i8 as u8));
}

/// The value of largest magnitude becomes −8.
fn q4_0(values: &[f32], out: &mut Vec<u8>) {
    let largest = values.iter().fold(0.0f32, |largest, v| if v.abs() > largest.abs() { *v } else { largest });
    let d = largest / -8.0;
    let by = inverse(d);
    out.extend(f16::from_f32(d).to_le_bytes());
    let code = |v: f32| ((v * by + 8.5) as u8).min(15);
    let (first, second) = values.split_at(16);
    out.extend(first.iter().zip(second).map(|(low, high)| code(*low) | code(*high) << 4));
}
