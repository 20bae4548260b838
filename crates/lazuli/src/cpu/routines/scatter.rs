//! Adding at named places. Each thread owns a range of the output and adds, in the order of the index, what falls into
//! it: no two write to one place, and the order of additions does not depend on who does them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Lines, RoutineCall, RoutineScratch, SummedElem, for_stored, room};
use crate::backend::FailedCheck;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(mut call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    let scatter = Scatter::new(&mut call)?;
    if !call.output.is_empty() {
        for_stored!(call.output_dtype, add(&scatter, call));
    }
    Ok(())
}

/// Bytes that it needs beside its inputs and output: wide sums, and what is known of the index.
pub fn scratch(args: &RoutineArgs, n_workers: usize) -> usize {
    let axis = args.params[0] as usize;
    let (to, from) = (Lines::new(&args.output_shape, axis), Lines::new(&args.input_shapes[1], axis));
    let share = TaskShare::new(&to, &from, n_workers);
    let known = room::<usize>(to.outer)
        .saturating_add(room::<usize>(from.inner))
        .saturating_add(room::<[u32; 2]>(n_ranges(&from)));
    let sums = room::<u64>(share.n_sums.saturating_mul(to.inner)).saturating_add(room::<u32>(share.n_of_row));
    known.saturating_add(sums)
}

/// How many rows of the index have their smallest and largest kept; rows of one element need no telling.
fn n_ranges(from: &Lines) -> usize {
    if from.inner > 1 { from.outer * from.n } else { 0 }
}

/// How the output is shared out, and how many sums that takes.
struct TaskShare {
    /// Rows of a range, which one thread adds to.
    range_rows: usize,
    /// Whether so much is added that every row has its sums, in order; else only those have that are added to.
    is_dense: bool,
    /// Rows that have sums.
    n_sums: usize,
    /// Rows that say which sums are theirs.
    n_of_row: usize,
}

impl TaskShare {
    fn new(to: &Lines, from: &Lines, n_workers: usize) -> TaskShare {
        let Lines { outer, n, inner } = *to;
        // A range per thread, since each looks through the whole index of its block.
        let n_ranges = n_workers.div_ceil(outer.max(1));
        let range_rows = n.div_ceil(n_ranges).max(BLOCK.div_ceil(inner.max(1))).min(n);
        let (n_rows, n_added) = (outer * n, from.n.saturating_mul(from.inner));
        match n_added >= range_rows * inner {
            true => TaskShare { range_rows, is_dense: true, n_sums: n_rows, n_of_row: 0 },
            false => {
                let n_sums = from.outer.saturating_mul(n_added).min(n_rows);
                TaskShare { range_rows, is_dense: false, n_sums, n_of_row: n_rows }
            }
        }
    }
}

/// Among the outer elements of the output: there is none in the index.
const NONE: usize = usize::MAX;

/// An index that was looked through: where its parts belong in the output, and which rows each of its rows touches.
struct Scatter<'a> {
    index: &'a [[u8; 4]],
    from: Lines,
    to: Lines,
    /// Per outer element of the output, that of the index, or [`NONE`].
    outer: &'a [usize],
    /// Per inner element of the index, that of the output.
    inner: &'a [usize],
    /// Per row of the index (its inner elements), its smallest and largest; none for rows of one.
    ranges: &'a [[u32; 2]],
}

impl<'a> Scatter<'a> {
    /// Looks through the index of a call. Fails at the first that is out of range.
    fn new(call: &mut RoutineCall<'a>) -> Result<Scatter<'a>, FailedCheck> {
        let axis = call.args.params[0] as usize;
        let (x, index) = (&call.args.input_shapes[0], &call.args.input_shapes[1]);
        let (to, from) = (Lines::new(x, axis), Lines::new(index, axis));
        let outer: &mut [usize] = call.scratch.take(to.outer);
        outer.fill(NONE);
        (0..from.outer).for_each(|i| outer[inside(i, &index[..axis], &x[..axis])] = i);
        let inner: &mut [usize] = call.scratch.take(from.inner);
        inner.iter_mut().enumerate().for_each(|(i, at)| *at = inside(i, &index[axis + 1..], &x[axis + 1..]));
        let words: &[[u8; 4]] = call.inputs[1].0.as_chunks().0;
        let is_outside = |word: &[u8; 4]| {
            let at = i32::from_ne_bytes(*word);
            at < 0 || at as usize >= to.n
        };
        let first = AtomicUsize::new(usize::MAX);
        threads::for_each(words.len().div_ceil(BLOCK), &|block| {
            let words = words[block * BLOCK..].iter().take(BLOCK);
            if let Some((i, _)) = words.enumerate().find(|(_, word)| is_outside(word)) {
                first.fetch_min(block * BLOCK + i, Ordering::Relaxed);
            }
        });
        if let Some(word) = words.get(first.into_inner()) {
            let index = i32::from_ne_bytes(*word) as i64;
            return Err(FailedCheck { check: call.args.check, index, bound: to.n });
        }
        // No index is below zero any more.
        let range = |row: &[[u8; 4]]| {
            row.iter().fold([u32::MAX, 0], |[low, high], word| {
                let at = u32::from_ne_bytes(*word);
                [low.min(at), high.max(at)]
            })
        };
        let ranges: &mut [[u32; 2]] = call.scratch.take(n_ranges(&from));
        if !ranges.is_empty() {
            let len = BLOCK.div_ceil(from.inner);
            threads::for_each_chunk(ranges, len, len, &|i, ranges| {
                let rows = words[i * len * from.inner..].chunks(from.inner);
                ranges.iter_mut().zip(rows).for_each(|(to, row)| *to = range(row));
            });
        }
        Ok(Scatter { index: words, from, to, outer, inner, ranges })
    }
}

/// Where an element of a small box is in a larger one, both row-major.
fn inside(idx: usize, small: &[usize], large: &[usize]) -> usize {
    let (mut left, mut step, mut place) = (idx, 1, 0);
    for (&small, &large) in small.iter().zip(large).rev() {
        place += left % small * step;
        left /= small;
        step *= large;
    }
    place
}

fn add<T: SummedElem>(scatter: &Scatter, mut call: RoutineCall<'_>) {
    let Lines { n, inner, .. } = scatter.to;
    let share = TaskShare::new(&scatter.to, &scatter.from, call.n_workers);
    let memory = SumMemory::<T>::new(&share, inner, &mut call.scratch);
    let (x, src) = (call.inputs[0].0, call.inputs[2].0);
    let (block_bytes, range_bytes) = (n * inner * T::SIZE, share.range_rows * inner * T::SIZE);
    threads::for_each_chunk(call.output, block_bytes, BLOCK * T::SIZE, &|block, y| {
        y.copy_from_slice(&x[block * block_bytes..][..block_bytes]);
        let from = scatter.outer[block];
        if from == NONE {
            return;
        }
        threads::for_each_chunk(y, range_bytes, range_bytes, &|i, y| {
            let first_row = i * share.range_rows;
            // SAFETY: every range of rows is taken once.
            let sums = unsafe { RowSums::new(&memory, block * n + first_row, y) };
            add_range::<T>(scatter, from, first_row, src, sums);
        });
    });
}

/// Elements of the output that are worth a thread's while.
const BLOCK: usize = 1 << 12;

/// Adds what falls into the rows of `sums`, which start at `first_row` of the output's block.
fn add_range<T: SummedElem>(scatter: &Scatter, from: usize, first_row: usize, src: &[u8], mut sums: RowSums<T>) {
    let Scatter { index, from: Lines { n, inner: n_inner, .. }, inner, ranges, .. } = scatter;
    let first = from * n * n_inner;
    let index = &index[first..][..n * n_inner];
    if index.is_empty() {
        return;
    }
    let (low, n_rows) = (first_row as i64, sums.n_rows as u64);
    // Where in the range an index points, or some number past its end.
    let place = |word: &[u8; 4]| (i32::from_ne_bytes(*word) as i64 - low) as u64;
    if *n_inner == 1 {
        // The few or many that fall here are gathered without a branch, which no processor could predict.
        let mut hits = [0; 1024];
        for (tile, words) in index.chunks(hits.len()).enumerate() {
            let mut n_hits = 0;
            for (i, word) in words.iter().enumerate() {
                hits[n_hits] = i;
                n_hits += (place(word) < n_rows) as usize;
            }
            for i in &hits[..n_hits] {
                sums.add(place(&words[*i]) as usize, inner[0], T::read(src, first + tile * hits.len() + i));
            }
        }
        return sums.write();
    }
    for (row, words) in index.chunks(*n_inner).enumerate() {
        let [smallest, largest] = ranges[from * n + row];
        if (largest as i64) < low || smallest as i64 >= low + n_rows as i64 {
            continue;
        }
        for (j, word) in words.iter().enumerate().filter(|(_, word)| place(word) < n_rows) {
            sums.add(place(word) as usize, inner[j], T::read(src, first + row * n_inner + j));
        }
    }
    sums.write();
}

/// Memory for the sums of all rows that have any, and for which they are.
struct SumMemory<T: SummedElem> {
    row_elems: usize,
    sums: *mut T::Sum,
    n_sums: usize,
    of_row: *mut u32,
    is_dense: bool,
    /// How many rows have sums so far, unless all do.
    n_used: AtomicUsize,
}

// SAFETY: ranges use different rows of both lists.
unsafe impl<T: SummedElem> Sync for SumMemory<T> {}

impl<T: SummedElem> SumMemory<T> {
    fn new(share: &TaskShare, row_elems: usize, scratch: &mut RoutineScratch<'_>) -> Self {
        let sums: &mut [T::Sum] = scratch.take(share.n_sums * row_elems);
        let of_row: &mut [u32] = scratch.take(share.n_of_row);
        SumMemory {
            row_elems,
            sums: sums.as_mut_ptr(),
            n_sums: share.n_sums,
            of_row: of_row.as_mut_ptr(),
            is_dense: share.is_dense,
            n_used: AtomicUsize::new(0),
        }
    }
}

/// The sums of a range of rows in the wide type, so that each result is rounded once: of all rows where much is added,
/// else only of those that are added to, in the order in which they were first met.
struct RowSums<'a, T: SummedElem> {
    memory: &'a SumMemory<T>,
    n_rows: usize,
    y: &'a mut [u8],
    /// Where the sums of the first row are, if all have some.
    first: usize,
    /// One more than where among the sums a row is; 0 if it is not. Empty if all are, in order.
    of_row: &'a mut [u32],
}

impl<'a, T: SummedElem> RowSums<'a, T> {
    /// Those of the rows of `y`, of which the first is `first` in the whole output.
    ///
    /// # Safety
    /// Nobody else has these rows.
    unsafe fn new(memory: &'a SumMemory<T>, first: usize, y: &'a mut [u8]) -> Self {
        let n_rows = y.len() / T::SIZE / memory.row_elems;
        let n_of_row = if memory.is_dense { 0 } else { n_rows };
        // SAFETY: there is one for each row of the output, or none is wanted; the rest as promised by the caller.
        let of_row = unsafe { std::slice::from_raw_parts_mut(memory.of_row.wrapping_add(first), n_of_row) };
        of_row.fill(0);
        let mut sums = RowSums { memory, n_rows, y, first, of_row };
        if memory.is_dense {
            (0..n_rows).for_each(|row| sums.begin(row, first + row));
        }
        sums
    }

    /// The sums at a place, which belongs to a row of this range.
    fn row(&mut self, at: usize) -> &mut [T::Sum] {
        assert!(at < self.memory.n_sums, "more rows are added to than the index names");
        let row_elems = self.memory.row_elems;
        // SAFETY: places are within the memory, and no two rows have the same.
        unsafe { std::slice::from_raw_parts_mut(self.memory.sums.add(at * row_elems), row_elems) }
    }

    /// Begins a row's sums with what is there.
    fn begin(&mut self, row: usize, at: usize) {
        let first = row * self.memory.row_elems;
        let sums: *mut [T::Sum] = self.row(at);
        // SAFETY: apart from `y`.
        let sums = unsafe { &mut *sums };
        sums.iter_mut().enumerate().for_each(|(i, sum)| *sum = T::read(self.y, first + i));
    }

    fn add(&mut self, row: usize, column: usize, value: T::Sum) {
        let at = match self.of_row.get(row) {
            None => self.first + row,
            Some(0) => {
                let at = self.memory.n_used.fetch_add(1, Ordering::Relaxed);
                self.begin(row, at);
                self.of_row[row] = at as u32 + 1;
                at
            }
            Some(at) => *at as usize - 1,
        };
        let sum = &mut self.row(at)[column];
        *sum = T::add(*sum, value);
    }

    fn write(mut self) {
        let row_elems = self.memory.row_elems;
        for row in 0..self.n_rows {
            let at = match self.of_row.get(row) {
                None => self.first + row,
                Some(0) => continue,
                Some(at) => *at as usize - 1,
            };
            let sums: *const [T::Sum] = self.row(at);
            // SAFETY: apart from `y`.
            let sums = unsafe { &*sums };
            sums.iter().enumerate().for_each(|(i, sum)| T::write(self.y, row * row_elems + i, *sum));
        }
    }
}
