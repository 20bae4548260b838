//! Tiles whose rows lie across memory, as those of a transposed matrix do: neighbours in memory belong to neighbouring
//! rows. Both ways go along memory, a few rows at a time, so that every cache line is used whole.

use super::convert::{StoredElem, with_stored};
use super::tile::{Tile, Val};
use crate::dtype::DType;
use crate::ops::{Isa, isa};

/// Where the elements of a tile are: the first, from row to row (1 or −1), and from lane to lane.
#[derive(Clone, Copy, Debug)]
pub struct Across {
    pub first: isize,
    pub row_step: isize,
    pub lane_step: isize,
}

impl Across {
    fn at(&self, row: usize, lane: usize) -> isize {
        self.first + row as isize * self.row_step + lane as isize * self.lane_step
    }
}

/// Fills the rows of a tile, `pitch` lanes apart from `to` on.
///
/// # Safety
/// The elements are within the memory at `base`, which is aligned for `dtype` and not written meanwhile; `to` has room
/// for the rows, which are disjoint from the elements.
pub unsafe fn fill(base: *const u8, dtype: DType, across: Across, to: *mut u32, pitch: usize, tile: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { with_stored!(dtype, fill_stored::<_>(base, across, to, pitch, tile)) }
}

/// [`fill`] of elements of one type.
///
/// # Safety
/// As for [`fill`], with elements of this type.
unsafe fn fill_stored<S: StoredElem>(base: *const u8, across: Across, to: *mut u32, pitch: usize, tile: &Tile) {
    let base = base.cast::<S>();
    // SAFETY: as promised by the caller.
    unsafe {
        let squares = |row: usize, lane: usize| {
            let from = base.cast::<u32>().offset(across.at(row, lane));
            square(rows_of(from, across.lane_step), to.add(row * pitch + lane), pitch as isize);
        };
        let rest = |row: usize, lane: usize| {
            *to.add(row * pitch + lane) = (*base.offset(across.at(row, lane))).lane();
        };
        by_squares(size_of::<S>() == 4 && across.row_step == 1, tile, squares, rest);
    }
}

/// Stores the rows of a tile.
///
/// # Safety
/// The elements are within the memory at `base`, which is aligned for `dtype`, and nobody else reads or writes them; `val` holds
/// lanes of this tile, disjoint from the elements.
pub unsafe fn spill(base: *mut u8, dtype: DType, across: Across, val: Val, tile: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { with_stored!(dtype, spill_stored::<_>(base, across, val, tile)) }
}

/// [`spill`] of elements of one type.
///
/// # Safety
/// As for [`spill`], with elements of this type.
unsafe fn spill_stored<S: StoredElem>(base: *mut u8, across: Across, val: Val, tile: &Tile) {
    let base = base.cast::<S>();
    // SAFETY: as promised by the caller.
    unsafe {
        let squares = |row: usize, lane: usize| {
            let from = val.ptr.offset(row as isize * val.pitch + lane as isize);
            let to = base.cast::<u32>().offset(across.at(row, lane));
            square(rows_of(from, val.pitch), to, across.lane_step);
        };
        let rest = |row: usize, lane: usize| {
            let lanes = val.row(row, tile.len);
            *base.offset(across.at(row, lane)) = S::from_lane(lanes[if val.spread { lane } else { 0 }]);
        };
        by_squares(size_of::<S>() == 4 && across.row_step == 1 && val.spread, tile, squares, rest);
    }
}

/// Lanes along a side of a square.
pub const SIDE: usize = 4;

/// Calls `squares` for squares of rows and lanes and `rest` for single lanes, in the order of memory.
#[inline(always)]
fn by_squares(can: bool, tile: &Tile, squares: impl Fn(usize, usize), rest: impl Fn(usize, usize)) {
    let (rows, len) = if can { (tile.rows / SIDE * SIDE, tile.len / SIDE * SIDE) } else { (0, 0) };
    for lane in (0..len).step_by(SIDE) {
        (0..rows).step_by(SIDE).for_each(|row| squares(row, lane));
        (lane..lane + SIDE).for_each(|lane| (rows..tile.rows).for_each(|row| rest(row, lane)));
    }
    (len..tile.len).for_each(|lane| (0..tile.rows).for_each(|row| rest(row, lane)));
}

/// The rows of a square that are so many lanes apart.
#[inline(always)]
pub fn rows_of(first: *const u32, pitch: isize) -> [*const u32; SIDE] {
    std::array::from_fn(|i| first.wrapping_offset(i as isize * pitch))
}

/// Columns of a strip: as many as the widest vector has lanes.
pub const STRIP: usize = 16;

/// How many of so many columns are turned by strips: whole ones, where there are vectors so wide.
pub fn strips(n_columns: usize) -> usize {
    if isa() == Isa::Avx512 { n_columns / STRIP * STRIP } else { 0 }
}

/// Turns rows of lanes, so far apart, `n_strips` times [`STRIP`] of them and `n` lanes of each (a multiple of [`SIDE`]): they
/// become the columns of as many rows of whole vectors. A few rows are written to their end before the next ones are begun.
///
/// # Safety
/// [`strips`] is not 0 for some number of columns, so that the processor has AVX-512; all lanes are there, to be read and to be
/// written, and those read are disjoint from those written.
pub unsafe fn strip(
    (from, from_pitch): (*const f32, isize),
    (n, n_strips): (usize, usize),
    (to, to_pitch): (*mut f32, usize),
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instructions are there; the rest as promised by the caller.
    unsafe {
        strip_avx512((from, from_pitch), (n, n_strips), (to, to_pitch))
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, from_pitch, n, n_strips, to, to_pitch);
}

/// [`strip`] with AVX-512.
///
/// # Safety
/// As for [`strip`]; the processor has AVX-512.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn strip_avx512(
    (from, from_pitch): (*const f32, isize),
    (n, n_strips): (usize, usize),
    (to, to_pitch): (*mut f32, usize),
) {
    use std::arch::x86_64::*;
    let row = |row: usize, at: usize| from.wrapping_offset(row as isize * from_pitch).wrapping_add(at);
    // SAFETY: as promised by the caller.
    unsafe {
        let mut at = 0;
        while at < n {
            for strip in 0..n_strips {
                let quarter = |i: usize| _mm_loadu_ps(row(strip * STRIP + i, at));
                // Four rows that are four apart share a vector, so that four squares are turned at once.
                let rows: [__m512; SIDE] = std::array::from_fn(|i| {
                    let x = _mm512_castps128_ps512(quarter(i));
                    let x = _mm512_insertf32x4::<1>(x, quarter(i + 4));
                    let x = _mm512_insertf32x4::<2>(x, quarter(i + 8));
                    _mm512_insertf32x4::<3>(x, quarter(i + 12))
                });
                let (low01, high01) = (_mm512_unpacklo_ps(rows[0], rows[1]), _mm512_unpackhi_ps(rows[0], rows[1]));
                let (low23, high23) = (_mm512_unpacklo_ps(rows[2], rows[3]), _mm512_unpackhi_ps(rows[2], rows[3]));
                let turned = [
                    _mm512_shuffle_ps::<0b01_00_01_00>(low01, low23),
                    _mm512_shuffle_ps::<0b11_10_11_10>(low01, low23),
                    _mm512_shuffle_ps::<0b01_00_01_00>(high01, high23),
                    _mm512_shuffle_ps::<0b11_10_11_10>(high01, high23),
                ];
                for (i, lanes) in turned.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add((at + i) * to_pitch + strip * STRIP), lanes);
                }
            }
            at += SIDE;
        }
    }
}

/// Turns a square of lanes: row `i` of `from` becomes column `i` of `to`; rows of `to` are so many lanes apart.
///
/// # Safety
/// Each of the rows of `from` is valid for [`SIDE`] lanes, and so is each of [`SIDE`] rows of `to`, which are disjoint from those.
#[inline(always)]
pub unsafe fn square(from: [*const u32; SIDE], to: *mut u32, to_pitch: isize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as promised by the caller; every x86-64 has these instructions.
    unsafe {
        use std::arch::x86_64::*;
        let row = |i: usize| _mm_loadu_ps(from[i].cast());
        let (mut a, mut b, mut c, mut d) = (row(0), row(1), row(2), row(3));
        _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
        for (i, row) in [a, b, c, d].into_iter().enumerate() {
            _mm_storeu_ps(to.offset(i as isize * to_pitch).cast(), row);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for i in 0..SIDE as isize {
        for j in 0..SIDE as isize {
            // SAFETY: as promised by the caller.
            unsafe { *to.offset(j * to_pitch + i) = *from[i as usize].offset(j) };
        }
    }
}
