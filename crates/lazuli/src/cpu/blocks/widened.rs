//! Tiles widened to f32: element after element, each with its 16 rows side by side, which is how micro-kernels read panels.

use std::ops::Range;

use half::f16;

use crate::blocks::{BlockStorage, ROWS, SubOffsets, TileLayout};
use crate::ops::Isa;

/// A matrix `[k, n]` whose columns are rows of blocks.
#[derive(Clone, Copy)]
pub struct BlockMatrix {
    pub blocks: BlockStorage,
    pub base: *const u8,
    /// The row of blocks that is its first column, a multiple of 16, and the element of a row that is its first row.
    pub first_row: usize,
    pub first: usize,
}

impl BlockMatrix {
    /// The matrix whose first element is this one of its blocks; None if it does not begin with a tile's rows.
    pub fn new(blocks: BlockStorage, base: *const u8, at: usize) -> Option<BlockMatrix> {
        let (first_row, first) = (at / blocks.row_len, at % blocks.row_len);
        first_row.is_multiple_of(ROWS).then_some(BlockMatrix { blocks, base, first_row, first })
    }

    /// The tile that holds this row and column.
    pub fn tile(&self, row: usize, column: usize) -> *const u8 {
        let (layout, block_len) = (self.blocks.format.layout(), self.blocks.format.block_len());
        let group = (self.first_row + column) / ROWS * self.blocks.group_bytes();
        self.base.wrapping_add(group + (self.first + row) / block_len * layout.size_bytes)
    }

    /// Writes rows and columns of the matrix, with rows `pitch` apart.
    ///
    /// # Safety
    /// This machine has `isa`. The rows and columns are within the matrix, whose memory can be read (in whole groups of 16 columns, even if
    /// only some are wanted) and is not written meanwhile; `to` has room for them and is used by nobody else.
    pub unsafe fn widen(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, to: *mut f32, pitch: usize) {
        let block_len = self.blocks.format.block_len();
        let layout = self.blocks.format.layout();
        let mut column = columns.start;
        while column < columns.end {
            let lane = column % ROWS;
            let n = (ROWS - lane).min(columns.end - column);
            let mut row = rows.start;
            while row < rows.end {
                let within = (self.first + row) % block_len;
                let len = (block_len - within).min(rows.end - row);
                let to = to.wrapping_add((row - rows.start) * pitch + column - columns.start);
                let part = TilePart {
                    blocks: &self.blocks,
                    layout: &layout,
                    tile: self.tile(row, column),
                    within: within..within + len,
                    lanes: lane..lane + n,
                };
                // SAFETY: the tile is within the memory, and there is room; the instruction set is there.
                unsafe {
                    match isa {
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx512 => widen_avx512(&part, to, pitch),
                        #[cfg(target_arch = "x86_64")]
                        Isa::Avx2 => widen_avx2(&part, to, pitch),
                        _ => part.widen(to, pitch),
                    }
                }
                row += len;
            }
            column += n;
        }
    }
}

/// Some elements of some rows of a tile.
pub struct TilePart<'a> {
    blocks: &'a BlockStorage,
    layout: &'a TileLayout,
    tile: *const u8,
    within: Range<usize>,
    lanes: Range<usize>,
}

/// # Safety
/// As for [`TilePart::widen`]; the processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")]
unsafe fn widen_avx512(part: &TilePart, to: *mut f32, pitch: usize) {
    // SAFETY: as promised by the caller.
    unsafe { part.widen(to, pitch) }
}

/// # Safety
/// As for [`TilePart::widen`]; the processor has these features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen_avx2(part: &TilePart, to: *mut f32, pitch: usize) {
    // SAFETY: as promised by the caller.
    unsafe { part.widen(to, pitch) }
}

impl TilePart<'_> {
    /// Widens them: a row for each element, a column for each row of the tile.
    ///
    /// # Safety
    /// The tile is there, of this format and layout, and has these elements and rows; `to` has room for them, rows
    /// `pitch` apart, used by nobody else.
    #[inline(always)]
    unsafe fn widen(&self, to: *mut f32, pitch: usize) {
        let TilePart { blocks, layout, tile, within, lanes } = self;
        let format = blocks.format;
        // SAFETY: as promised by the caller.
        unsafe {
            let halves = |at: usize| -> [f32; ROWS] {
                let from = tile.add(at).cast::<[[u8; 2]; ROWS]>();
                (*from).map(|bytes| f16::from_le_bytes(bytes).to_f32())
            };
            let words = |at: usize, bits: usize, e: usize| -> [u32; ROWS] {
                let quad = e / 4;
                let (word, shift) = (quad / (8 / bits), quad % (8 / bits) * bits + e % 4 * 8);
                let from = tile.add(at + word * ROWS * 4).cast::<[[u8; 4]; ROWS]>();
                let mask = 0xffu32 >> (8 - bits);
                (*from).map(|word| (u32::from_le_bytes(word) >> shift) & mask)
            };
            let (d, m) = (halves(0), layout.offsets.map_or([0.0; ROWS], halves));
            let (low_bits, high_bits) = format.code_bits();
            let sub_len = format.block_len() / format.n_subs();
            let bias = format.bias() as i32;
            for sub in within.start / sub_len..within.end.div_ceil(sub_len) {
                let (mut factor, mut offset) = (d, m);
                if let Some(at) = layout.sub_scales {
                    for lane in 0..ROWS {
                        let byte = *tile.add(at + sub * ROWS + lane);
                        let (scale, less) = match layout.sub_offsets {
                            SubOffsets::None => (byte as i8, 0),
                            SubOffsets::WithScales => ((byte & 15) as i8, byte >> 4),
                            SubOffsets::At(at) => (byte as i8, *tile.add(at + sub * ROWS + lane)),
                        };
                        factor[lane] = d[lane] * scale as f32;
                        offset[lane] = -(m[lane] * less as f32);
                    }
                }
                for e in within.start.max(sub * sub_len)..within.end.min((sub + 1) * sub_len) {
                    let mut codes = words(layout.low, low_bits, e);
                    if let Some(at) = layout.high {
                        let high = words(at, high_bits, e);
                        (0..ROWS).for_each(|lane| codes[lane] |= high[lane] << low_bits);
                    }
                    let mut values = [0.0f32; ROWS];
                    for lane in 0..ROWS {
                        values[lane] = factor[lane] * (codes[lane] as i32 - bias) as f32;
                    }
                    if layout.offsets.is_some() {
                        (0..ROWS).for_each(|lane| values[lane] += offset[lane]);
                    }
                    let to = to.wrapping_add((e - within.start) * pitch);
                    match lanes.len() {
                        ROWS => to.cast::<[f32; ROWS]>().write_unaligned(values),
                        n => to.copy_from_nonoverlapping(values[lanes.start..].as_ptr(), n),
                    }
                }
            }
        }
    }
}
