//! Matrix product after Goto and BLIS: a tile of the result stays in registers, B is packed so that
//! the innermost loop reads it straight through, A is gathered in blocks that fit the second-level cache.
//! Sizes must be multiples of [`DEPTH`].

use super::aligned::AlignedVec;
use super::threads::{Shared, in_parallel, share_of};
use super::vector::{Loop, Vector, run};

/// Depth of a block: a packed panel of B this deep stays in the nearer caches.
const DEPTH: usize = 256;
/// Rows of A that are brought together: with the depth, half of a second-level cache.
const BLOCK_ROWS: usize = 192;
/// Distance between rows of gathered A: a cache line more than a row, so that they do not all fall
/// into the same cache set.
const A_STRIDE: usize = DEPTH + 16;
/// Rows of a tile. With four vectors across, AVX-512's 32 registers hold 24 sums and all of B's row.
const TILE_ROWS: usize = 6;
/// The widest tile of any vector width.
const MAX_TILE_COLS: usize = 64;

/// Vectors across a tile: four where there are 32 registers, two where there are 16.
const fn tile_vectors<V: Vector>() -> usize {
    if V::LANES == 16 { 4 } else { 2 }
}

/// Room for the operands as the tiles want them, kept between calls.
pub struct Packed {
    b: AlignedVec,
    /// One block of A per thread.
    a: AlignedVec,
}

impl Packed {
    /// Room for matrices of `n` by `n`.
    pub fn new(n: usize, n_threads: usize) -> Packed {
        Packed { b: AlignedVec::zeros(n * n), a: AlignedVec::zeros(n_threads * BLOCK_ROWS * A_STRIDE) }
    }
}

/// `y = a · b`, all of them `n` by `n`. Threads take bands of columns, so that each packs only the
/// part of B that it uses.
pub fn matmul(a: &[f32], b: &[f32], y: &mut [f32], n: usize, packed: &mut Packed, n_threads: usize) {
    let (y, packed_a, packed_b) = (Shared::new(y), Shared::new(&mut packed.a), Shared::new(&mut packed.b));
    in_parallel(n_threads, |thread_idx| {
        let cols = share_of(n, MAX_TILE_COLS, thread_idx, n_threads);
        let a_block = BLOCK_ROWS * A_STRIDE;
        // SAFETY: one block of A per thread, and shares of columns are disjoint.
        let (rows, packed) = unsafe {
            (
                packed_a.part(thread_idx * a_block..(thread_idx + 1) * a_block),
                packed_b.part(cols.start * n..cols.end * n),
            )
        };
        run(Multiply { a, b, rows, packed, y, n, cols });
    });
}

/// Multiplies all of A with a band of columns of B.
struct Multiply<'a> {
    a: &'a [f32],
    b: &'a [f32],
    rows: &'a mut [f32],
    packed: &'a mut [f32],
    y: Shared,
    n: usize,
    cols: std::ops::Range<usize>,
}

impl Loop for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: the caller promises the instructions of V.
        unsafe {
            match tile_vectors::<V>() {
                4 => self.run_tiled::<V, 4>(),
                _ => self.run_tiled::<V, 2>(),
            }
        }
    }
}

impl Multiply<'_> {
    /// Tiles of `ACROSS` vectors.
    ///
    /// # Safety
    /// The processor has the instructions of `V`; `y` has `n` rows of `n` values, of which nobody else uses these columns.
    #[inline(always)]
    unsafe fn run_tiled<V: Vector, const ACROSS: usize>(self) {
        let Multiply { a, b, rows, packed, y, n, cols } = self;
        let width = ACROSS * V::LANES;
        assert!(n.is_multiple_of(DEPTH) && cols.len().is_multiple_of(width) && a.len() == n * n);
        for k in (0..n).step_by(DEPTH) {
            let block = &mut packed[k * cols.len()..(k + DEPTH) * cols.len()];
            pack(&b[k * n..(k + DEPTH) * n], block, n, cols.start, width);
            let first = if k == 0 { First::Yes } else { First::No };
            for top in (0..n).step_by(BLOCK_ROWS) {
                let bottom = n.min(top + BLOCK_ROWS);
                gather(&a[top * n..bottom * n], rows, n, k);
                for (col, panel) in cols.clone().step_by(width).zip(block.chunks_exact(DEPTH * width)) {
                    for row in (top..bottom).step_by(TILE_ROWS) {
                        let n_rows = TILE_ROWS.min(bottom - row);
                        // SAFETY: the caller promises the instructions of V; the tile lies within y,
                        // in this thread's columns.
                        unsafe {
                            let y = y.start().add(row * n + col);
                            tile::<V, ACROSS>(&rows[(row - top) * A_STRIDE..], panel, y, n, n_rows, first);
                        }
                    }
                }
            }
        }
    }
}

/// Brings a block of A together, so that it lies on few pages. Rows stay rows: a tile broadcasts
/// single values, which need not be neighbours.
#[inline(always)]
fn gather(a: &[f32], rows: &mut [f32], n: usize, k: usize) {
    for (row, gathered) in a.chunks_exact(n).zip(rows.chunks_exact_mut(A_STRIDE)) {
        gathered[..DEPTH].copy_from_slice(&row[k..k + DEPTH]);
    }
}

/// Lays [`DEPTH`] rows of B out as panels of one tile's width. Rows are read straight through.
#[inline(always)]
fn pack(b: &[f32], packed: &mut [f32], n: usize, first_col: usize, width: usize) {
    let n_cols = packed.len() / DEPTH;
    for (k, row) in b.chunks_exact(n).enumerate() {
        let pieces = row[first_col..first_col + n_cols].chunks_exact(width);
        for (piece, panel) in pieces.zip(packed.chunks_exact_mut(DEPTH * width)) {
            panel[k * width..(k + 1) * width].copy_from_slice(piece);
        }
    }
}

/// Whether a tile starts the result or adds to it.
#[derive(Clone, Copy, PartialEq)]
enum First {
    Yes,
    No,
}

/// One tile of the result, in registers for the whole depth of the block. `a` starts at the tile's
/// first gathered row, `y` at the tile.
///
/// # Safety
/// The processor must have the instructions of `V`; `n_rows` rows of the tile must lie within `y`.
#[inline(always)]
unsafe fn tile<V: Vector, const ACROSS: usize>(
    a: &[f32],
    panel: &[f32],
    y: *mut f32,
    n: usize,
    n_rows: usize,
    first: First,
) {
    assert!(a.len() >= (n_rows - 1) * A_STRIDE + DEPTH && panel.len() == DEPTH * ACROSS * V::LANES);
    // SAFETY: the caller promises the instructions and y; a and the panel were checked.
    unsafe {
        // Rows that a last tile lacks are read from its last row and not written.
        let mut rows = [a.as_ptr(); TILE_ROWS];
        for (row_idx, row) in rows.iter_mut().enumerate() {
            *row = a.as_ptr().add(row_idx.min(n_rows - 1) * A_STRIDE);
        }
        // The tile's old values are wanted at the end; rows are far apart, so nothing else fetches them.
        for row_idx in 0..n_rows {
            for j in 0..ACROSS {
                V::prefetch(y.add(row_idx * n + j * V::LANES));
            }
        }
        let mut sums = [[V::splat(0.0); ACROSS]; TILE_ROWS];
        for k in 0..DEPTH {
            let mut b = [V::splat(0.0); ACROSS];
            for (j, b) in b.iter_mut().enumerate() {
                *b = V::load(panel.as_ptr().add((k * ACROSS + j) * V::LANES));
            }
            for (row, sums) in rows.iter().zip(&mut sums) {
                let a = V::splat(*row.add(k));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = a.mul_add(b, *sum);
                }
            }
        }
        // The loop runs over all rows, so that sums are indexed by constants and stay in registers.
        for (row_idx, sums) in sums.iter().enumerate() {
            if row_idx < n_rows {
                for (j, &sum) in sums.iter().enumerate() {
                    let at = y.add(row_idx * n + j * V::LANES);
                    let sum = if first == First::Yes { sum } else { sum.add(V::load(at)) };
                    sum.store(at);
                }
            }
        }
    }
}
