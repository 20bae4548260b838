//! Products of some dozen rows: the other operand is read once, a panel of columns at a time, which is laid out
//! densely, multiplied with all rows while it is near, and forgotten. A general GEMM lays out both operands for more
//! use than few rows make of them.

use std::mem::MaybeUninit;

use super::across::{SIDE, square};
use super::threads;
use crate::ops::{Isa, isa};

#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16, Vector, fetch};

/// Beyond this many rows a GEMM is as good.
const MAX_ROWS: usize = 512;
/// Rows of a panel that are multiplied before the next are laid out.
const DEPTH: usize = 256;
/// Vectors across a panel.
const ACROSS: usize = 3;
/// Rows of results that are kept in registers with the widest vectors; half of them with others.
const TILE_ROWS: usize = 8;
/// Multiplications that are worth a task.
const TASK: usize = 4 << 20;
/// How many rows of a panel ahead memory is asked for, where a panel is read as it lies.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 12;

/// A product of floats `out[m, n] = a[m, k] · b[k, n]`, all within their memory; rows of `out` are dense.
#[derive(Clone, Copy)]
pub struct Panels {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// Steps in `a`: from row to row, from column to column.
    pub a_steps: (isize, isize),
    pub b: *const f32,
    /// The same for `b`; one of them is 1.
    pub b_steps: (isize, isize),
    pub out: *mut f32,
}

// SAFETY: tasks read `a` and `b` and write disjoint columns of the result.
unsafe impl Send for Panels {}
// SAFETY: as above.
unsafe impl Sync for Panels {}

/// Whether a product of these sizes, with these steps in `b` (row, column), is best done here.
pub fn fits(m: usize, n: usize, b_steps: (isize, isize)) -> bool {
    let (least_m, least_n) = match b_steps {
        (_, 1) => (2, 384),
        // Columns must be turned first, which takes some use of them, but a GEMM turns them worse.
        (1, _) => (17, 96),
        _ => return false,
    };
    (least_m..=MAX_ROWS).contains(&m) && n >= least_n && isa() > Isa::Baseline
}

impl Panels {
    /// Computes it. Every result is made by one thread, in one order.
    ///
    /// # Safety
    /// Operands and results are within their memory and do not overlap.
    pub unsafe fn run(&self) {
        let width = ACROSS * if isa() == Isa::Avx512 { 16 } else { 8 };
        let n_panels = self.n.div_ceil(width);
        let per_task = TASK.div_ceil((self.m * self.k * width).max(1)).min(n_panels);
        threads::for_each(n_panels.div_ceil(per_task), &|task| {
            let columns = task * per_task * width..((task + 1) * per_task * width).min(self.n);
            // SAFETY: the instruction set is there; the rest as promised by the caller.
            unsafe {
                match isa() {
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => columns_avx512(self, columns),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => columns_avx2(self, columns),
                    _ => unreachable!("not for the baseline"),
                }
            }
        });
    }
}

/// Room for [`DEPTH`] rows of a panel of the widest vectors.
#[repr(align(64))]
struct Room([MaybeUninit<f32>; DEPTH * ACROSS * 16]);

/// Some rows of a panel: where they lie, and from row to row.
#[derive(Clone, Copy)]
struct Piece {
    b: *const f32,
    pitch: isize,
    depth: usize,
    /// What is multiplied next.
    next: *const f32,
    next_pitch: isize,
}

/// A few panels, one after another.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn columns<V: Vector, const ROWS: usize>(x: &Panels, columns: std::ops::Range<usize>) {
    let width = ACROSS * V::LANES;
    let mut room = Room([MaybeUninit::uninit(); DEPTH * ACROSS * 16]);
    let room: *mut f32 = room.0.as_mut_ptr().cast();
    // Tiles of about equal height.
    let n_tiles = x.m.div_ceil(ROWS);
    let height = x.m.div_ceil(n_tiles);
    let (row_step, column_step) = x.b_steps;
    for column in columns.step_by(width) {
        let n_columns = width.min(x.n - column);
        for l in (0..x.k).step_by(DEPTH) {
            let depth = DEPTH.min(x.k - l);
            let b =
                |l: usize, column: usize| x.b.wrapping_offset(l as isize * row_step + column as isize * column_step);
            let next = if l + DEPTH < x.k { b(l + DEPTH, column) } else { b(0, column + width) };
            let (b, ahead) = (b(l, column), b(l + AHEAD, column));
            // SAFETY: the panel is within `b`; the rest as promised by the caller.
            unsafe {
                // A panel that is used once is read as it lies.
                let piece = match n_tiles == 1 && n_columns == width && column_step == 1 {
                    true => Piece { b, pitch: row_step, depth, next: ahead, next_pitch: row_step },
                    false => {
                        match column_step {
                            1 => lay_out::<V>(b, row_step, depth, n_columns, room),
                            _ => turn::<V>(b, column_step, depth, n_columns, room),
                        }
                        Piece { b: room, pitch: width as isize, depth, next, next_pitch: row_step }
                    }
                };
                for tile in 0..n_tiles {
                    let (from, to) = (tile * height, ((tile + 1) * height).min(x.m));
                    let at = At { row: from, column, l, n_columns };
                    // What comes next is asked for on the way: a column of vectors with each tile, or all with the
                    // only one. (Of columns that must be turned, a part.)
                    let mut piece = piece;
                    piece.next =
                        piece.next.wrapping_add(if n_tiles == 1 { 0 } else { tile.min(ACROSS - 1) * V::LANES });
                    macro_rules! of_height {
                        ($($rows:literal),*) => {
                            match (to - from, n_tiles == 1) {
                                $(
                                    ($rows, true) if const { $rows <= ROWS } => {
                                        tile_of::<V, $rows, ACROSS>(x, piece, at);
                                    }
                                    ($rows, false) if const { $rows <= ROWS } => tile_of::<V, $rows, 1>(x, piece, at),
                                )*
                                (0, _) => {}
                                _ => unreachable!("tiles are no higher than that"),
                            }
                        };
                    }
                    of_height!(1, 2, 3, 4, 5, 6, 7, 8);
                }
            }
        }
    }
}

/// Which tile of the result: its place, and the first row of `b` that is multiplied into it.
struct At {
    row: usize,
    column: usize,
    l: usize,
    n_columns: usize,
}

/// Copies rows of a panel one after another, padded with zeros to its width.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn lay_out<V: Vector>(b: *const f32, pitch: isize, depth: usize, n_columns: usize, room: *mut f32) {
    let width = ACROSS * V::LANES;
    // SAFETY: as promised by the caller.
    unsafe {
        for l in 0..depth {
            let (from, to) = (b.wrapping_offset(l as isize * pitch), room.add(l * width));
            if n_columns == width {
                for j in 0..ACROSS {
                    V::load(from.add(j * V::LANES)).store(to.add(j * V::LANES));
                }
            } else {
                to.copy_from_nonoverlapping(from, n_columns);
                std::slice::from_raw_parts_mut(to.add(n_columns), width - n_columns).fill(0.0);
            }
        }
    }
}

/// The same from columns, which lie dense.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn turn<V: Vector>(b: *const f32, pitch: isize, depth: usize, n_columns: usize, room: *mut f32) {
    let width = ACROSS * V::LANES;
    let column = |c: usize| b.wrapping_offset(c as isize * pitch);
    let (whole, whole_depth) = (n_columns / SIDE * SIDE, depth / SIDE * SIDE);
    // SAFETY: as promised by the caller.
    unsafe {
        for c in (0..whole).step_by(SIDE) {
            for l in (0..whole_depth).step_by(SIDE) {
                square(column(c).add(l).cast(), pitch, room.add(l * width + c).cast(), width as isize);
            }
        }
        for c in 0..n_columns {
            for l in if c < whole { whole_depth } else { 0 }..depth {
                *room.add(l * width + c) = *column(c).add(l);
            }
        }
        for l in 0..depth {
            std::slice::from_raw_parts_mut(room.add(l * width + n_columns), width - n_columns).fill(0.0);
        }
    }
}

/// `ROWS` rows of results times the width of a panel, in registers. Asks for `ASK` vectors of each row that comes next.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn tile_of<V: Vector, const ROWS: usize, const ASK: usize>(x: &Panels, piece: Piece, at: At) {
    let mut rows = [x.a; ROWS];
    for r in 0..ROWS {
        let (row_step, column_step) = x.a_steps;
        rows[r] = x.a.wrapping_offset((at.row + r) as isize * row_step + at.l as isize * column_step);
    }
    // SAFETY: as promised by the caller.
    unsafe {
        let mut sums = [[V::splat(0.0); ACROSS]; ROWS];
        let (mut b, mut next) = (piece.b, piece.next);
        for l in 0..piece.depth as isize {
            let mut lanes = [V::splat(0.0); ACROSS];
            for j in 0..ACROSS {
                lanes[j] = V::load(b.add(j * V::LANES));
            }
            for j in 0..ASK {
                fetch(next.wrapping_add(j * V::LANES));
            }
            for r in 0..ROWS {
                let scale = V::splat(*rows[r].wrapping_offset(l * x.a_steps.1));
                for j in 0..ACROSS {
                    sums[r][j] = scale.fma(lanes[j], sums[r][j]);
                }
            }
            b = b.wrapping_offset(piece.pitch);
            next = next.wrapping_offset(piece.next_pitch);
        }
        for r in 0..ROWS {
            let out = x.out.add((at.row + r) * x.n + at.column);
            if at.n_columns == ACROSS * V::LANES {
                for j in 0..ACROSS {
                    let to = out.add(j * V::LANES);
                    let sum = if at.l == 0 { sums[r][j] } else { V::load(to).add(sums[r][j]) };
                    sum.store(to);
                }
            } else {
                let mut lanes = [0f32; ACROSS * 16];
                for j in 0..ACROSS {
                    sums[r][j].store(lanes.as_mut_ptr().add(j * V::LANES));
                }
                for (c, lane) in lanes[..at.n_columns].iter().enumerate() {
                    *out.add(c) = if at.l == 0 { *lane } else { *out.add(c) + lane };
                }
            }
        }
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($columns:ident, $features:literal, $vector:ty, $rows:expr) => {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $columns(x: &Panels, range: std::ops::Range<usize>) {
            // SAFETY: as promised by the caller.
            unsafe { columns::<$vector, { $rows }>(x, range) }
        }
    };
}

compiled!(columns_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16, TILE_ROWS);
compiled!(columns_avx2, "avx2,fma", F32x8, TILE_ROWS / 2);
