//! A single row of weights times the windows of an image: what a depthwise convolution is for each channel. Windows overlap, so that
//! packing them as a product's right operand would copy each element as often as windows have it. Here lanes are neighbouring
//! windows: every weight is multiplied by a vector of the image as it lies in memory.

use std::fmt;
use std::ops::Range;

use super::epilogue::Epilogue;
use super::{Matmul, MatmulScratch, SharedPtr, StridedOperand};
use crate::cpu::threads;
use crate::kernel::MatmulArgs;
use crate::ops::Isa;
use crate::ops::math::{F32x4, Floats};

#[cfg(target_arch = "x86_64")]
use crate::ops::math::{F32x8, F32x16};

/// Sums that are worth a task.
const PIECE: usize = 8 * 1024;
/// Vectors of sums that are made together: enough to hide how long a multiply-add takes.
const TOGETHER: usize = 4;
/// Products that are added up one after another. Longer sums are made of such parts, as those of a GEMM are, so that they do not lose
/// a digit for every ten times as many terms: the weight gradient of a large image has a million.
const DEPTH: usize = 512;

/// The sizes of such a product, still without its memory.
#[derive(Clone, Copy)]
pub struct WindowProduct {
    isa: Isa,
    /// Elements of a window.
    k: usize,
    /// Windows side by side, and how many rows of them there are.
    width: usize,
    n_rows: usize,
    /// From a window to the next one of its row: 1 or 2.
    step: usize,
    /// From a weight to the next.
    a_step: isize,
}

impl WindowProduct {
    /// The product with these numbers, if it is one of a single row with windows whose neighbours lie side by side.
    pub fn of(args: &MatmulArgs, isa: Isa) -> Option<WindowProduct> {
        let MatmulArgs { m, k, n, ref a, ref b, panels, .. } = *args;
        let &(width, step) = b.cols.axes().last()?;
        let is_whole = b.rows.start() == 0 && b.cols.start() == 0 && n > 0 && n % width == 0 && panels.is_none();
        let fits = m == 1 && is_whole && width >= F32x4::LANES && (step == 1 || step == 2);
        let a_step = a.cols.stride()?;
        fits.then_some(WindowProduct { isa, k, width, n_rows: n / width, step: step as usize, a_step })
    }

    /// Bytes for where the elements of a window and the rows of windows are.
    pub fn table_bytes(&self) -> usize {
        (self.k + self.n_rows) * size_of::<isize>()
    }
}

impl fmt::Display for WindowProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {} windows, lanes along the row", self.n_rows, self.width)
    }
}

/// The windows of one image, and where their sums go.
#[derive(Clone, Copy)]
struct WindowImage {
    product: WindowProduct,
    weights: *const f32,
    image: *const f32,
    /// Where the elements of a window are, seen from its first, and each row's first window, seen from the image's.
    elements: *const isize,
    rows: *const isize,
    out: *mut f32,
}

impl Matmul {
    /// Makes the sums of all images and maps them, on the threads this is called in.
    ///
    /// # Safety
    /// As for [`Matmul::run`].
    pub(super) unsafe fn run_windows(
        &self,
        product: WindowProduct,
        [a, b]: [StridedOperand; 2],
        epilogue: Epilogue,
        scratch: &MatmulScratch,
    ) {
        let MatmulArgs { n, ref batch, .. } = self.args;
        let WindowProduct { k, width, n_rows, .. } = product;
        let n_images = self.n_batch();
        let table: *mut isize = scratch.packed.cast();
        // SAFETY: the scratch memory has room for the table.
        unsafe {
            self.args.b.rows.write_offsets(std::slice::from_raw_parts_mut(table, k));
            let rows = std::slice::from_raw_parts_mut(table.add(k), n_rows);
            let firsts = self.args.b.cols.offsets(0).step_by(width);
            rows.iter_mut().zip(firsts).for_each(|(row, first)| *row = first);
        }
        let table = SharedPtr(table.cast());
        let sum = |image: usize, rows: Range<usize>| {
            let elements: *const isize = table.get().cast_const().cast();
            let windows = WindowImage {
                product,
                weights: a.matrix(batch, image, 0).cast(),
                image: b.matrix(batch, image, 0).cast(),
                elements,
                rows: elements.wrapping_add(k),
                out: epilogue.sums.get().wrapping_add(image * n).cast(),
            };
            // SAFETY: rows do not overlap; the rest as promised by the caller.
            unsafe { windows.run(rows) };
        };
        // Either a task has some rows of one image, or several images.
        let rows_a_task = PIECE.div_ceil(width).min(n_rows);
        if rows_a_task < n_rows {
            let per_image = n_rows.div_ceil(rows_a_task);
            threads::for_each(n_images * per_image, &|task| {
                let (image, first) = (task / per_image, task % per_image * rows_a_task);
                let rows = first..n_rows.min(first + rows_a_task);
                sum(image, rows.clone());
                // SAFETY: these sums are there; nobody else maps them.
                unsafe { epilogue.block(image * n, 0..1, rows.start * width..rows.end * width) };
            });
            return;
        }
        let images_a_task = PIECE.div_ceil(n);
        threads::for_each(n_images.div_ceil(images_a_task), &|task| {
            let images = task * images_a_task..n_images.min((task + 1) * images_a_task);
            images.clone().for_each(|image| sum(image, 0..n_rows));
            // Images have one row each: they are the rows of a matrix.
            // SAFETY: as above.
            unsafe { epilogue.block(0, images, 0..n) };
        });
    }
}

impl WindowImage {
    /// The sums of some rows of windows.
    ///
    /// # Safety
    /// Weights, windows and sums are within their memory, and nobody else has these sums.
    unsafe fn run(&self, rows: Range<usize>) {
        let WindowProduct { isa, width, step, .. } = self.product;
        // SAFETY: the instruction set is there; rows are as wide as a vector; the rest as promised by the caller.
        unsafe {
            match (isa, width, step) {
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, 16.., 1) => sums_avx512::<1>(self, rows),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512, 16.., _) => sums_avx512::<2>(self, rows),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx2, 8.., 1) => sums_avx2::<1>(self, rows),
                #[cfg(target_arch = "x86_64")]
                (Isa::Avx512 | Isa::Avx2, 8.., _) => sums_avx2::<2>(self, rows),
                (_, _, 1) => sums::<F32x4, 1>(self, rows),
                _ => sums::<F32x4, 2>(self, rows),
            }
        }
    }
}

/// The sums of some rows, each of whole vectors: the last of a row reaches back over the one before it if it must.
///
/// # Safety
/// As for [`WindowImage::run`]; rows are `LANES` wide or more; the processor has the instructions of `V`, for which the
/// caller is compiled.
#[inline(always)]
unsafe fn sums<V: Floats, const STEP: usize>(x: &WindowImage, rows: Range<usize>) {
    let WindowProduct { k, width, a_step, .. } = x.product;
    let last = width - V::LANES;
    let mut n_left = rows.len() * width.div_ceil(V::LANES);
    let (mut row, mut column) = (rows.start, 0);
    while n_left > 0 {
        let (mut from, mut to) = ([x.image; TOGETHER], [x.out; TOGETHER]);
        // SAFETY: vectors lie within the rows; the rest as promised by the caller.
        unsafe {
            for i in 0..TOGETHER {
                from[i] = x.image.wrapping_offset(*x.rows.add(row)).wrapping_add(column * STEP);
                to[i] = x.out.add(row * width + column);
                // After the last vector it is made again.
                if n_left > 1 {
                    (row, column) = if column == last { (row + 1, 0) } else { (row, last.min(column + V::LANES)) };
                }
                n_left = n_left.saturating_sub(1);
            }
            let mut totals = [V::splat(0.0); TOGETHER];
            for first in (0..k).step_by(DEPTH) {
                let mut sums = [V::splat(0.0); TOGETHER];
                for l in first..k.min(first + DEPTH) {
                    let weight = V::splat(*x.weights.wrapping_offset(l as isize * a_step));
                    let at = *x.elements.add(l);
                    for i in 0..TOGETHER {
                        let from = from[i].wrapping_offset(at);
                        let values = if STEP == 1 { V::load(from) } else { V::load_even(from) };
                        sums[i] = values.fma(weight, sums[i]);
                    }
                }
                for i in 0..TOGETHER {
                    totals[i] = totals[i].add(sums[i]);
                }
            }
            for i in 0..TOGETHER {
                totals[i].store(to[i]);
            }
        }
    }
}

/// The loop above, compiled for one instruction set.
macro_rules! compiled {
    ($name:ident, $features:literal, $vector:ty) => {
        /// # Safety
        /// As for [`WindowImage::run`]; rows are as wide as a vector or more; the processor has these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name<const STEP: usize>(x: &WindowImage, rows: Range<usize>) {
            // SAFETY: as promised by the caller.
            unsafe { sums::<$vector, STEP>(x, rows) }
        }
    };
}

compiled!(sums_avx512, "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma", F32x16);
compiled!(sums_avx2, "avx2,fma", F32x8);
