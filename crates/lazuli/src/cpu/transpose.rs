//! Tiles whose rows lie across memory, as those of a transposed matrix do: neighbours in memory belong to neighbouring
//! rows. Both ways go along memory, a few rows at a time, so that every cache line is used whole.

use super::convert::{StoredElem, with_stored};
use super::tile::{Tile, Val};
use crate::dtype::DType;

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
/// for the rows.
pub unsafe fn fill(base: *const u8, dtype: DType, across: Across, to: *mut u32, pitch: usize, tile: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { with_stored!(dtype, fill_stored::<_>(base, across, to, pitch, tile)) }
}

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
/// The elements are within the memory at `base`, which is aligned for `dtype`, and nobody else reads or writes them.
pub unsafe fn spill(base: *mut u8, dtype: DType, across: Across, val: Val, tile: &Tile) {
    // SAFETY: as promised by the caller.
    unsafe { with_stored!(dtype, spill_stored::<_>(base, across, val, tile)) }
}

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

/// Turns a square of lanes: row `i` of `from` becomes column `i` of `to`; rows of `to` are so many lanes apart.
///
/// # Safety
/// Both squares are there, and they are apart.
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
