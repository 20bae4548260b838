//! Products of a single row, and of few with columns that lie dense: what they cost is reading the other operand once,
//! so it is read straight through, in several places at once, by all threads.

use super::split_k::Parts;
use super::threads;
use crate::kernel::AxisParts;
use crate::ops::{Isa, isa};

#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16, Floats};

/// More rows than this are worth turning columns for.
const MAX_ROWS: usize = 16;
/// Rows of `b` that are read together. On an AMD EPYC sixteen took a fifth longer at 4096², whose rows lie pages apart, and
/// a twentieth less at 1536².
#[cfg(target_arch = "x86_64")]
const TOGETHER: usize = 8;
/// Products that are added up one after another. Longer sums are made of such blocks, so that they do not lose a digit for every ten
/// times as many terms.
const DEPTH: usize = 512;
/// Columns whose blocks are summed at a time, on the stack.
const COLUMNS: usize = 2048;
/// Rows of `a` that are multiplied with a column at a time.
#[cfg(target_arch = "x86_64")]
const ABREAST: usize = 4;
/// Bytes of `b` that are worth a task.
const TASK_BYTES: usize = 256 << 10;

/// A product of floats `out[m, n] = a[m, k] · b[k, n]`.
///
/// The caller that runs the product, or a part of it, promises that [`fits`] has allowed it on this machine; that all elements of `a` and
/// `b` that these sizes and pitches reach can be read and are not written meanwhile; that there is room for the results, which overlap
/// neither operand; and that no two threads write the same result.
#[derive(Clone, Copy)]
pub struct Skinny {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: *const f32,
    /// From row to row of `a`; along a row elements follow each other.
    pub a_pitch: isize,
    pub b: *const f32,
    pub b_pitch: isize,
    /// Whether `b` lies by columns: `b_pitch` is then from column to column, along which elements follow each other.
    pub by_columns: bool,
    pub out: *mut f32,
}

// SAFETY: tasks read `a` and `b` and write disjoint parts of the result.
unsafe impl Send for Skinny {}
// SAFETY: as above.
unsafe impl Sync for Skinny {}

/// Whether a product of this many rows, with operands of these steps `(row, column)`, is best done here.
pub fn fits(isa: Isa, m: usize, (_, a_column): (isize, isize), (b_row, b_column): (isize, isize)) -> bool {
    let max_m = if b_column == 1 { 1 } else { MAX_ROWS };
    m <= max_m && isa > Isa::Baseline && a_column == 1 && (b_row == 1 || b_column == 1)
}

impl Skinny {
    /// Computes it; rows of `b` by the parts of k, whose sums there is room for at `sums` but for the first.
    ///
    /// # Safety
    /// The memory is as [`Skinny`] says; `sums` has `m · n` values for every part of k but the first, used by nobody else.
    pub unsafe fn run(&self, k_parts: AxisParts, sums: *mut f32) {
        let Skinny { m, k, n, .. } = *self;
        if self.by_columns {
            let per_task = (TASK_BYTES / 4).div_ceil(k.max(1)).next_multiple_of(8);
            // SAFETY: columns do not overlap; the rest as promised by the caller.
            return threads::for_each(n.div_ceil(per_task), &|task| unsafe {
                self.columns(task * per_task, ((task + 1) * per_task).min(n));
            });
        }
        let (n_parts, sums) = (k_parts.count(), Parts { first: self.out, rest: sums, len: m * n });
        threads::for_each(n_parts, &|part| {
            let rows = k_parts.range(part, k);
            // SAFETY: every part has sums of its own; the rest as promised by the caller.
            unsafe {
                std::slice::from_raw_parts_mut(sums.at(part), m * n).fill(0.0);
                self.blocks_of_rows(rows.start, rows.end, sums.at(part));
            }
        });
        // SAFETY: all were computed.
        unsafe { sums.add_up(n_parts) };
    }

    /// As [`Skinny::rows`], with the sums of each block of rows made by themselves.
    ///
    /// # Safety
    /// As for [`Skinny::rows`].
    unsafe fn blocks_of_rows(&self, from: usize, to: usize, out: *mut f32) {
        // SAFETY: columns of the block are those of the results that it is added to; the rest as promised by the caller.
        unsafe {
            if to - from <= DEPTH {
                return self.rows(from, to, out);
            }
            let mut block = [0f32; COLUMNS];
            for column in (0..self.n).step_by(COLUMNS) {
                let n = COLUMNS.min(self.n - column);
                let columns = Skinny { n, b: self.b.wrapping_add(column), ..*self };
                let sums = std::slice::from_raw_parts_mut(out.add(column), n);
                for first in (from..to).step_by(DEPTH) {
                    block[..n].fill(0.0);
                    columns.rows(first, to.min(first + DEPTH), block.as_mut_ptr());
                    sums.iter_mut().zip(&block).for_each(|(sum, x)| *sum += x);
                }
            }
        }
    }

    /// Adds the products with rows `from..to` of `b` to `out`.
    ///
    /// # Safety
    /// The memory is as [`Skinny`] says, with `b` by rows and `m` = 1; `from..to` are rows of `b`, and `out` has `n`
    /// values that were written.
    unsafe fn rows(&self, from: usize, to: usize, out: *mut f32) {
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => rows_avx512(self, from, to, out),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => rows_avx2(self, from, to, out),
                _ => unreachable!("not for the baseline"),
            }
        }
    }

    /// The results of columns `from..to` of `b`.
    ///
    /// # Safety
    /// The memory is as [`Skinny`] says, with `b` by columns; `from..to` are some of them.
    unsafe fn columns(&self, from: usize, to: usize) {
        // SAFETY: the instruction set is there; the rest as promised by the caller.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => columns_avx512(self, from, to),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => columns_avx2(self, from, to),
                _ => unreachable!("not for the baseline"),
            }
        }
    }
}

/// `b` row by row: a few rows at a time, scaled and added to the one row of results, `W` vectors at a time.
///
/// # Safety
/// As for [`Skinny::rows`]; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn rows<V: Floats, const W: usize>(x: &Skinny, from: usize, to: usize, out: *mut f32) {
    for first in (from..to).step_by(TOGETHER) {
        let rows = first..to.min(first + TOGETHER);
        let b = |l: usize| x.b.wrapping_offset(l as isize * x.b_pitch);
        let mut at = 0;
        // SAFETY: vectors lie within the rows; the rest as promised by the caller.
        unsafe {
            while at + W * V::LANES <= x.n {
                let mut sums = [V::splat(0.0); W];
                for w in 0..W {
                    sums[w] = V::load(out.add(at + w * V::LANES));
                }
                for l in rows.clone() {
                    let scale = V::splat(*x.a.add(l));
                    for w in 0..W {
                        sums[w] = scale.fma(V::load(b(l).add(at + w * V::LANES)), sums[w]);
                    }
                }
                for w in 0..W {
                    sums[w].store(out.add(at + w * V::LANES));
                }
                at += W * V::LANES;
            }
            for j in at..x.n {
                for l in rows.clone() {
                    *out.add(j) = (*x.a.add(l)).mul_add(*b(l).add(j), *out.add(j));
                }
            }
        }
    }
}

/// `b` column by column: each a dot product with every row of `a`, several columns at a time.
///
/// # Safety
/// As for [`Skinny::columns`]; the processor has the instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn columns<V: Floats>(x: &Skinny, from: usize, to: usize) {
    let mut j = from;
    while j < to {
        let n_columns = if to - j >= 4 { 4 } else { 1 };
        let mut i = 0;
        while i < x.m {
            let abreast = ABREAST.min(x.m - i);
            // SAFETY: as promised by the caller.
            unsafe {
                match (abreast, n_columns) {
                    (4, 4) => dots::<V, 4, 4, 1>(x, i, j),
                    (3, 4) => dots::<V, 3, 4, 1>(x, i, j),
                    (2, 4) => dots::<V, 2, 4, 2>(x, i, j),
                    (1, 4) => dots::<V, 1, 4, 4>(x, i, j),
                    (4, _) => dots::<V, 4, 1, 2>(x, i, j),
                    (3, _) => dots::<V, 3, 1, 2>(x, i, j),
                    (2, _) => dots::<V, 2, 1, 4>(x, i, j),
                    _ => dots::<V, 1, 1, 4>(x, i, j),
                }
            }
            i += abreast;
        }
        j += n_columns;
    }
}

/// `M` rows of `a` from `i` on times `N` columns of `b` from `j` on, with `U` sums each.
///
/// # Safety
/// As for [`Skinny::columns`]: there are `M` rows from `i` on and `N` columns from `j` on; the processor has the
/// instructions of `V`, for which the caller is compiled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn dots<V: Floats, const M: usize, const N: usize, const U: usize>(x: &Skinny, i: usize, j: usize) {
    let a = |row: usize| x.a.wrapping_offset((i + row) as isize * x.a_pitch);
    let b = |column: usize| x.b.wrapping_offset((j + column) as isize * x.b_pitch);
    let mut at = 0;
    // SAFETY: vectors lie within rows and columns; the rest as promised by the caller.
    unsafe {
        let mut sums = [[[V::splat(0.0); U]; N]; M];
        while at + U * V::LANES <= x.k {
            for u in 0..U {
                let mut lanes = [V::splat(0.0); N];
                for column in 0..N {
                    lanes[column] = V::load(b(column).add(at + u * V::LANES));
                }
                for row in 0..M {
                    let scale = V::load(a(row).add(at + u * V::LANES));
                    for column in 0..N {
                        sums[row][column][u] = scale.fma(lanes[column], sums[row][column][u]);
                    }
                }
            }
            at += U * V::LANES;
        }
        for row in 0..M {
            for column in 0..N {
                let mut sum = sums[row][column][0];
                for u in 1..U {
                    sum = sum.add(sums[row][column][u]);
                }
                let mut lanes = [0f32; 16];
                sum.store(lanes.as_mut_ptr());
                let mut half = V::LANES / 2;
                while half > 0 {
                    for lane in 0..half {
                        lanes[lane] += lanes[lane + half];
                    }
                    half /= 2;
                }
                let mut dot = lanes[0];
                for l in at..x.k {
                    dot = (*a(row).add(l)).mul_add(*b(column).add(l), dot);
                }
                *x.out.add((i + row) * x.n + j + column) = dot;
            }
        }
    }
}

/// The loops above, compiled for one instruction set.
macro_rules! compiled {
    ($rows:ident, $columns:ident, $features:literal, $vector:ty) => {
        /// # Safety
        /// As for [`Skinny::rows`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $rows(x: &Skinny, from: usize, to: usize, out: *mut f32) {
            // SAFETY: as promised by the caller.
            unsafe { rows::<$vector, 4>(x, from, to, out) }
        }

        /// # Safety
        /// As for [`Skinny::columns`]; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $columns(x: &Skinny, from: usize, to: usize) {
            // SAFETY: as promised by the caller.
            unsafe { columns::<$vector>(x, from, to) }
        }
    };
}

compiled!(rows_avx512, columns_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16);
compiled!(rows_avx2, columns_avx2, "avx2,fma", F32x8);
