//! Running sums. Floats are summed in f64 and rounded once; long lines are cut into blocks whose size depends on the
//! shape alone, so that threads can share them without changing a bit.

use super::{Lines, RoutineCall, Stored, for_stored};
use crate::backend::FailedCheck;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;

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

/// Bytes that running sums need beside their input and output: the totals of all blocks.
pub fn scratch(args: &RoutineArgs) -> usize {
    let Lines { outer, n, inner } = Lines::new(&args.output_shape, args.params[0] as usize);
    let n_blocks = n.div_ceil(BLOCK.div_ceil(inner.max(1)));
    outer * (n_blocks + 1) * inner * 8
}

fn scan<T: Stored>(lines: Lines, x: &[u8], y: &mut [u8]) {
    let size_bytes = lines.n * lines.inner * T::SIZE;
    threads::for_each_chunk(y, size_bytes, BLOCK * T::SIZE, &|i, y| {
        scan_rows::<T>(lines.inner, &x[i * size_bytes..][..size_bytes], y);
    });
}

/// Sums row onto row, for rows of `inner` elements: first each block's total, then every block from where it starts.
fn scan_rows<T: Stored>(inner: usize, x: &[u8], y: &mut [u8]) {
    let row_bytes = inner * T::SIZE;
    let block_bytes = BLOCK.div_ceil(inner) * row_bytes;
    if x.len() <= block_bytes {
        return scan_block::<T>(&mut vec![T::NOTHING; inner], x, y);
    }
    let block = |i: usize| &x[i * block_bytes..x.len().min((i + 1) * block_bytes)];
    // The last block's total starts nothing.
    let mut starts = vec![T::NOTHING; x.len().div_ceil(block_bytes) * inner];
    threads::for_each_chunk(&mut starts, inner, inner, &|i, sums| total::<T>(sums, block(i)));
    let mut start = vec![T::NOTHING; inner];
    for total in starts.chunks_mut(inner) {
        for (start, total) in start.iter_mut().zip(total) {
            (*start, *total) = (T::add(*start, *total), *start);
        }
    }
    threads::for_each_chunk(y, block_bytes, block_bytes, &|i, y| {
        scan_block::<T>(&mut starts[i * inner..][..inner].to_vec(), block(i), y);
    });
}

/// Adds all rows to `sums`.
fn total<T: Stored>(sums: &mut [T::Sum], x: &[u8]) {
    // One sum stays in a register.
    if let [sum] = sums {
        *sum = (0..x.len() / T::SIZE).fold(*sum, |sum, i| T::add(sum, T::read(x, i)));
        return;
    }
    for row in x.chunks_exact(sums.len() * T::SIZE) {
        for (i, sum) in sums.iter_mut().enumerate() {
            *sum = T::add(*sum, T::read(row, i));
        }
    }
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
