//! Running sums. Floats are summed in f64 and rounded once; long lines are cut into blocks whose size depends on the
//! shape alone, so that threads can share them without changing a bit.

use rayon::prelude::*;

use super::{Lines, RoutineCall, Stored, for_stored};
use crate::backend::FailedCheck;
use crate::dtype::DType;

/// Elements of a block: enough to be worth a thread's while.
const BLOCK: usize = 1 << 14;

/// `y[i] = Σ x[j]` for `j ≤ i` along an axis.
pub fn cumsum(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    let lines = Lines::new(&call.args.output_shape, call.args.params[0] as usize);
    if !call.output.is_empty() {
        for_stored!(call.output_dtype, scan(lines, call.inputs[0].0, call.output));
    }
    Ok(())
}

fn scan<T: Stored>(lines: Lines, x: &[u8], y: &mut [u8]) {
    let size_bytes = lines.n * lines.inner * T::SIZE;
    y.par_chunks_mut(size_bytes)
        .zip(x.par_chunks(size_bytes))
        .with_min_len((BLOCK * T::SIZE).div_ceil(size_bytes))
        .for_each(|(y, x)| scan_rows::<T>(lines.inner, x, y));
}

/// Sums row onto row, for rows of `inner` elements: first each block's total, then every block from where it starts.
fn scan_rows<T: Stored>(inner: usize, x: &[u8], y: &mut [u8]) {
    let row_bytes = inner * T::SIZE;
    let block_bytes = BLOCK.div_ceil(inner) * row_bytes;
    if x.len() <= block_bytes {
        return scan_block::<T>(&mut vec![T::NOTHING; inner], x, y);
    }
    let mut starts: Vec<Vec<T::Sum>> = x.par_chunks(block_bytes).map(|x| total::<T>(inner, x)).collect();
    let mut start = vec![T::NOTHING; inner];
    for total in &mut starts {
        for (start, total) in start.iter_mut().zip(total) {
            (*start, *total) = (T::add(*start, *total), *start);
        }
    }
    y.par_chunks_mut(block_bytes)
        .zip(x.par_chunks(block_bytes))
        .zip(starts)
        .for_each(|((y, x), mut start)| scan_block::<T>(&mut start, x, y));
}

fn total<T: Stored>(inner: usize, x: &[u8]) -> Vec<T::Sum> {
    if inner == 1 {
        return vec![(0..x.len() / T::SIZE).fold(T::NOTHING, |sum, i| T::add(sum, T::read(x, i)))];
    }
    let mut sums = vec![T::NOTHING; inner];
    for row in x.chunks_exact(inner * T::SIZE) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = T::add(*sum, T::read(row, i));
        }
    }
    sums
}

fn scan_block<T: Stored>(sums: &mut [T::Sum], x: &[u8], y: &mut [u8]) {
    // One sum stays in a register.
    if let [sum] = sums {
        for i in 0..x.len() / T::SIZE {
            *sum = T::add(*sum, T::read(x, i));
            T::write(y, i, *sum);
        }
        return;
    }
    let row_bytes = sums.len() * T::SIZE;
    for (x, y) in x.chunks_exact(row_bytes).zip(y.chunks_exact_mut(row_bytes)) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = T::add(*sum, T::read(x, i));
            T::write(y, i, *sum);
        }
    }
}
