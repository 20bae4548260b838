//! Blocks as devices hold them. Rows are interleaved by sixteens, so that a SIMD lane (or an invocation) is a row and one
//! number of the other operand serves all of them: a *tile* is one block of each of 16 rows. The last tile of rows is filled
//! up with zeros. Tiles of the same rows follow one another along the row.
//!
//! A tile is a sequence of sections, each with the numbers of all 16 rows side by side: scales (f16), offsets (f16) if
//! there are some, integer scales of sub-blocks (a byte each), integer offsets if they have a byte of their own, then the
//! planes of codes. A plane is a sequence of 32-bit words a row. A byte of a word is an element; the low bits of its four
//! bytes are four neighbouring elements, the bits above them the next four, and so on: so one mask gives four codes, as
//! products of bytes want them.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, available_parallelism};

use half::f16;

use super::file::{MAX_LEN, PlaneOfFile};
use super::formats::{BlockFormat, SubScales};

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of blocks that are rearranged by one thread at a time: a quarter of a millisecond, several times what it takes to start
/// a thread.
const SHARE_BYTES: usize = 256 << 10;

/// Blocks in the memory of a device: their format, and the length of a row. The length is part of what a kernel is compiled
/// for: a weight has one, and dividing by a number that is known is cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockStorage {
    pub format: &'static BlockFormat,
    pub row_len: usize,
}

/// Where the sections of a tile start, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct TileLayout {
    /// Offsets of rows, if there are some.
    pub offsets: Option<usize>,
    /// Integer scales of sub-blocks, 16 bytes a sub-block.
    pub sub_scales: Option<usize>,
    pub sub_offsets: SubOffsets,
    pub low: usize,
    pub high: Option<usize>,
    /// Bytes of a tile.
    pub size_bytes: usize,
}

/// Where the integer offsets of sub-blocks are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubOffsets {
    None,
    /// In the upper half of the scales' bytes.
    WithScales,
    /// 16 bytes a sub-block, from this byte on.
    At(usize),
}

impl BlockFormat {
    /// How many sub-blocks a block has.
    pub(crate) fn n_subs(&self) -> usize {
        self.block_len() / self.sub_len
    }

    /// Where sections of a tile start.
    pub(crate) fn layout(&self) -> TileLayout {
        let (halves, bytes) = (ROWS * 2, ROWS * self.n_subs());
        let mut end = halves;
        let mut section = |there: bool, size: usize| {
            let start = end;
            end += if there { size } else { 0 };
            there.then_some(start)
        };
        let offsets = section(self.offset_at.is_some(), halves);
        let sub_scales = section(self.subs != SubScales::None, bytes);
        let sub_offsets = match self.subs {
            SubScales::Nibbles { .. } => SubOffsets::WithScales,
            SubScales::SixBitPairs { .. } => section(true, bytes).map_or(SubOffsets::None, SubOffsets::At),
            _ => SubOffsets::None,
        };
        let plane_bytes = |bits: usize| self.block_len() * bits / 8 * ROWS;
        let low = section(true, plane_bytes(self.low.bits)).unwrap_or_default();
        let high = self.high.and_then(|plane| section(true, plane_bytes(plane.bits)));
        TileLayout { offsets, sub_scales, sub_offsets, low, high, size_bytes: end }
    }
}

impl BlockStorage {
    /// Blocks of a row.
    pub fn n_blocks(&self) -> usize {
        self.row_len / self.format.block_len()
    }

    /// Bytes of the tiles of 16 rows.
    pub fn group_bytes(&self) -> usize {
        self.n_blocks() * self.format.layout().size_bytes
    }

    /// How many elements so many bytes hold, rows of zeros at the end included.
    pub fn n_elems(&self, n_bytes: usize) -> usize {
        n_bytes.checked_div(self.group_bytes()).unwrap_or(0) * ROWS * self.row_len
    }

    /// The first and last byte that elements of a range may touch.
    pub fn byte_range(&self, (low, high): (usize, usize)) -> (usize, usize) {
        let (per_group, group_bytes) = (ROWS * self.row_len.max(1), self.group_bytes());
        (low / per_group * group_bytes, ((high / per_group + 1) * group_bytes).saturating_sub(1))
    }

    /// The bytes that so many rows take.
    pub fn size_bytes(&self, n_rows: usize) -> usize {
        n_rows.div_ceil(ROWS) * self.group_bytes()
    }

    /// Blocks of a file, row after row, as a device holds them: written over zeros. Groups of rows are independent, so large
    /// weights are shared out among as many threads as there are processors; a thread that cannot be started leaves its share
    /// to the others.
    pub fn interleave(&self, bytes: &[u8], out: &mut [u8]) {
        let row_bytes = self.n_blocks() * self.format.block_bytes();
        let n_groups = (SHARE_BYTES / (ROWS * row_bytes).max(1)).max(1);
        let shares = bytes.chunks((n_groups * ROWS * row_bytes).max(1));
        let n_threads = available_parallelism().map_or(1, usize::from).min(shares.len());
        let shares = Mutex::new(shares.zip(out.chunks_mut((n_groups * self.group_bytes()).max(1))));
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some((bytes, out)) = next() {
                self.interleave_share(bytes, out);
            }
        };
        thread::scope(|scope| {
            for _ in 1..n_threads {
                if thread::Builder::new().spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
    }

    /// Whole groups of rows.
    fn interleave_share(&self, bytes: &[u8], out: &mut [u8]) {
        let format = self.format;
        let row_bytes = self.n_blocks() * format.block_bytes();
        let (layout, planes) = (format.layout(), format.planes());
        for (row, blocks) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            let group = &mut out[row / ROWS * self.group_bytes()..][..self.group_bytes()];
            let tiles = group.chunks_exact_mut(layout.size_bytes);
            for (tile, block) in tiles.zip(blocks.chunks_exact(format.block_bytes())) {
                write_row(format, (&layout, &planes), block, tile, row % ROWS);
            }
        }
    }

    /// Elements of a row, from `first` on, as many as `out` is long, which must not leave the row.
    ///
    /// # Safety
    /// `base` is the memory of blocks that hold these elements.
    pub unsafe fn widen_run(&self, base: *const u8, row: usize, first: usize, out: &mut [f32]) {
        let (len, layout) = (self.format.block_len(), self.format.layout());
        let mut block = [0.0; MAX_LEN];
        let mut done = 0;
        while done < out.len() {
            let at = first + done;
            let n = (len - at % len).min(out.len() - done);
            let tile_at = row / ROWS * self.group_bytes() + at / len * layout.size_bytes;
            // SAFETY: the tile is within the memory, as promised by the caller.
            let tile = unsafe { std::slice::from_raw_parts(base.add(tile_at), layout.size_bytes) };
            let within = at % len..at % len + n;
            widen_row(self.format, &layout, tile, row % ROWS, within.clone(), &mut block);
            out[done..done + n].copy_from_slice(&block[within]);
            done += n;
        }
    }
}

/// Writes a block as one row of a tile.
fn write_row(
    format: &BlockFormat,
    (layout, planes): (&TileLayout, &[PlaneOfFile; 2]),
    block: &[u8],
    tile: &mut [u8],
    row: usize,
) {
    let scales = format.scales(block);
    let mut half = |at: usize, value: f16| tile[at + row * 2..][..2].copy_from_slice(&value.to_le_bytes());
    half(0, scales.d);
    if let Some(at) = layout.offsets {
        half(at, scales.m);
    }
    for (i, (scale, offset)) in scales.subs.iter().take(format.n_subs()).enumerate() {
        let Some(at) = layout.sub_scales else { break };
        let place = i * ROWS + row;
        tile[at + place] = *scale as u8;
        match layout.sub_offsets {
            SubOffsets::None => {}
            SubOffsets::WithScales => tile[at + place] |= offset << 4,
            SubOffsets::At(at) => tile[at + place] = *offset,
        }
    }
    let [low, high] = planes;
    low.write(block, &mut tile[layout.low..], row);
    if let Some(at) = layout.high {
        high.write(block, &mut tile[at..], row);
    }
}

/// Widens the elements `within` (and perhaps some beside them) of one row of a tile.
fn widen_row(
    format: &BlockFormat,
    layout: &TileLayout,
    tile: &[u8],
    row: usize,
    within: std::ops::Range<usize>,
    out: &mut [f32; MAX_LEN],
) {
    let half = |at: usize| f16::from_le_bytes([tile[at + row * 2], tile[at + row * 2 + 1]]).to_f32();
    let (d, m) = (half(0), layout.offsets.map_or(0.0, half));
    let word = |at: usize, bits: usize, quad: usize| {
        let per_word = 8 / bits;
        let first = at + (quad / per_word * ROWS + row) * 4;
        let word = u32::from_le_bytes([tile[first], tile[first + 1], tile[first + 2], tile[first + 3]]);
        (word >> (quad % per_word * bits)) & ((0xff >> (8 - bits)) * 0x0101_0101)
    };
    for sub in within.start / format.sub_len..within.end.div_ceil(format.sub_len) {
        let of_sub = match layout.sub_scales {
            None => (d, m),
            Some(at) => {
                let byte = tile[at + sub * ROWS + row];
                let (scale, offset) = match layout.sub_offsets {
                    SubOffsets::None => (byte as i8, 0),
                    SubOffsets::WithScales => ((byte & 15) as i8, byte >> 4),
                    SubOffsets::At(at) => (byte as i8, tile[at + sub * ROWS + row]),
                };
                (d * scale as f32, -(m * offset as f32))
            }
        };
        let (first, end) = (within.start.max(sub * format.sub_len), within.end.min((sub + 1) * format.sub_len));
        for quad in first / 4..end.div_ceil(4) {
            let low = word(layout.low, format.low.bits, quad);
            let high = match (layout.high, format.high) {
                (Some(at), Some(plane)) => word(at, plane.bits, quad) << format.low.bits,
                _ => 0,
            };
            let codes = (low | high).to_le_bytes();
            for (i, code) in codes.into_iter().enumerate() {
                out[quad * 4 + i] = format.element(of_sub, code);
            }
        }
    }
}
