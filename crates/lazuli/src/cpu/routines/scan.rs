//! Running sums. Floats are summed in f64 and rounded once; long lines are cut into blocks whose size depends on the
//! shape alone, so that threads can share them without changing a bit.

use super::{Lines, RoutineCall, ScratchPieces, SummedElem, for_stored, room};
use crate::backend::FailedCheck;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;

/// Elements of a block: enough to be worth a thread's while.
const BLOCK: usize = 1 << 14;

/// `y[i] = Σ x[j]` for `j ≤ i` along an axis.
pub fn cumsum(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    if !call.output.is_empty() {
        for_stored!(call.output_dtype, scan(call));
    }
    Ok(())
}

/// Bytes that running sums need beside their input and output: the totals of all blocks, of as many lines as there are
/// threads, and a row of sums for each thread.
pub fn scratch(args: &RoutineArgs, n_workers: usize) -> usize {
    let at_once = AtOnce::new(&Lines::new(&args.output_shape, args.params[0] as usize), n_workers);
    let starts = at_once.n_starts.saturating_mul(room::<u64>(at_once.starts_len));
    starts.saturating_add(at_once.n_rows.saturating_mul(room::<u64>(at_once.row_len)))
}

/// What is in hand at the same time.
struct AtOnce {
    /// Lines of several blocks, and the totals of each.
    n_starts: usize,
    starts_len: usize,
    /// Rows of sums, and how many are in each.
    n_rows: usize,
    row_len: usize,
}

impl AtOnce {
    fn new(&Lines { outer, n, inner }: &Lines, n_workers: usize) -> AtOnce {
        let n_blocks = n.div_ceil(BLOCK.div_ceil(inner.max(1))).max(1);
        let n_starts = if n_blocks > 1 { n_workers.min(outer) } else { 0 };
        let n_rows = n_workers.min(outer.saturating_mul(n_blocks));
        AtOnce { n_starts, starts_len: n_blocks.saturating_mul(inner), n_rows, row_len: inner }
    }
}

/// Totals of blocks and rows of sums, for the threads that need them.
struct ScanBuffers<'a, T: SummedElem> {
    starts: ScratchPieces<&'a mut [T::Sum]>,
    rows: ScratchPieces<&'a mut [T::Sum]>,
}

fn scan<T: SummedElem>(mut call: RoutineCall<'_>) {
    let lines = Lines::new(&call.args.output_shape, call.args.params[0] as usize);
    let AtOnce { n_starts, starts_len, n_rows, row_len } = AtOnce::new(&lines, call.n_workers);
    let rooms = ScanBuffers::<T> {
        starts: ScratchPieces::new((0..n_starts).map(|_| call.scratch.take(starts_len))),
        rows: ScratchPieces::new((0..n_rows).map(|_| call.scratch.take(row_len))),
    };
    let (x, size_bytes) = (call.inputs[0].0, lines.n * lines.inner * T::SIZE);
    threads::for_each_chunk(call.output, size_bytes, BLOCK * T::SIZE, &|i, y| {
        scan_rows(&rooms, lines.inner, &x[i * size_bytes..][..size_bytes], y);
    });
}

/// Sums row onto row, for rows of `inner` elements: first each block's total, then every block from where it starts.
fn scan_rows<T: SummedElem>(rooms: &ScanBuffers<T>, inner: usize, x: &[u8], y: &mut [u8]) {
    let row_bytes = inner * T::SIZE;
    let block_bytes = BLOCK.div_ceil(inner) * row_bytes;
    if x.len() <= block_bytes {
        return rooms.rows.with(|sums| {
            sums.fill(T::NOTHING);
            scan_block::<T>(sums, x, y);
        });
    }
    let block = |i: usize| &x[i * block_bytes..x.len().min((i + 1) * block_bytes)];
    rooms.starts.with(|starts| {
        // The last block's total starts nothing.
        let starts = &mut starts[..x.len().div_ceil(block_bytes) * inner];
        threads::for_each_chunk(starts, inner, inner, &|i, sums| {
            sums.fill(T::NOTHING);
            total::<T>(sums, block(i));
        });
        rooms.rows.with(|start| {
            start.fill(T::NOTHING);
            for total in starts.chunks_mut(inner) {
                for (start, total) in start.iter_mut().zip(total) {
                    (*start, *total) = (T::add(*start, *total), *start);
                }
            }
        });
        let starts = &*starts;
        threads::for_each_chunk(y, block_bytes, block_bytes, &|i, y| {
            rooms.rows.with(|sums| {
                sums.copy_from_slice(&starts[i * inner..][..inner]);
                scan_block::<T>(sums, block(i), y);
            });
        });
    });
}

/// Adds all rows to `sums`.
fn total<T: SummedElem>(sums: &mut [T::Sum], x: &[u8]) {
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

fn scan_block<T: SummedElem>(sums: &mut [T::Sum], x: &[u8], y: &mut [u8]) {
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
