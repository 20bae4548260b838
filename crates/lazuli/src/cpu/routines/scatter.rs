//! Adding at named places. Each thread owns a range of the output and adds, in the order of the index, what falls into
//! it: no two write to one place, and the order of additions does not depend on who does them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Lines, RoutineCall, Stored, for_stored};
use crate::backend::FailedCheck;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    let scatter = Scatter::new(&call)?;
    if !call.output.is_empty() {
        for_stored!(call.output_dtype, add(&scatter, call.inputs[0].0, call.inputs[2].0, call.output));
    }
    Ok(())
}

/// Bytes that it needs beside its inputs and output: wide sums, and what is known of the index.
pub fn scratch(args: &RoutineArgs) -> usize {
    let (to, index) = (&args.output_shape, &args.input_shapes[1]);
    let axis = args.params[0] as usize;
    let rows = Lines::new(index, axis);
    // Sums are of what is added to, or of all.
    8 * to.n_elems()
        + 4 * Lines::new(to, axis).n
        + 8 * rows.outer * rows.n
        + 16 * (Lines::new(to, axis).outer + rows.inner)
}

/// An index that was looked through: where its parts belong in the output, and which rows each of its rows touches.
struct Scatter<'a> {
    index: &'a [[u8; 4]],
    from: Lines,
    to: Lines,
    /// Per outer element of the output, that of the index, if it has one.
    outer: Vec<Option<usize>>,
    /// Per inner element of the index, that of the output.
    inner: Vec<usize>,
    /// Per row of the index (its inner elements), its smallest and largest; none for rows of one.
    ranges: Vec<(i32, i32)>,
}

impl<'a> Scatter<'a> {
    /// Looks through the index of a call. Fails at the first that is out of range.
    fn new(call: &RoutineCall<'a>) -> Result<Scatter<'a>, FailedCheck> {
        let axis = call.args.params[0] as usize;
        let (x, index) = (&call.args.input_shapes[0], &call.args.input_shapes[1]);
        let (to, from) = (Lines::new(x, axis), Lines::new(index, axis));
        let mut outer = vec![None; to.outer];
        for (i, at) in inside(&index[..axis], &x[..axis]).into_iter().enumerate() {
            outer[at] = Some(i);
        }
        let inner = inside(&index[axis + 1..], &x[axis + 1..]);
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
        let range = |row: &[[u8; 4]]| {
            row.iter().fold((i32::MAX, i32::MIN), |(low, high), word| {
                let at = i32::from_ne_bytes(*word);
                (low.min(at), high.max(at))
            })
        };
        let ranges = match from.inner {
            0 | 1 => Vec::new(),
            inner => {
                let mut ranges = vec![(0, 0); words.len() / inner];
                let len = BLOCK.div_ceil(inner);
                threads::for_each_chunk(&mut ranges, len, len, &|i, ranges| {
                    let rows = words[i * len * inner..].chunks(inner);
                    ranges.iter_mut().zip(rows).for_each(|(to, row)| *to = range(row));
                });
                ranges
            }
        };
        Ok(Scatter { index: words, from, to, outer, inner, ranges })
    }
}

/// Where the elements of a small box are in a larger one, both row-major.
fn inside(small: &[usize], large: &[usize]) -> Vec<usize> {
    small.iter().zip(large).fold(vec![0], |places, (&small, &large)| {
        places.iter().flat_map(|place| (0..small).map(move |i| place * large + i)).collect()
    })
}

fn add<T: Stored>(scatter: &Scatter, x: &[u8], src: &[u8], y: &mut [u8]) {
    let Lines { outer, n, inner } = scatter.to;
    // A range per thread, since each looks through the whole index of its block.
    let n_ranges = threads::count().div_ceil(outer);
    let range_rows = n.div_ceil(n_ranges).max(BLOCK.div_ceil(inner)).min(n);
    let (block_bytes, range_bytes) = (n * inner * T::SIZE, range_rows * inner * T::SIZE);
    threads::for_each_chunk(y, block_bytes, BLOCK * T::SIZE, &|block, y| {
        y.copy_from_slice(&x[block * block_bytes..][..block_bytes]);
        let Some(from) = scatter.outer[block] else { return };
        threads::for_each_chunk(y, range_bytes, range_bytes, &|i, y| {
            add_range::<T>(scatter, from, i * range_rows, src, y);
        });
    });
}

/// Elements of the output that are worth a thread's while.
const BLOCK: usize = 1 << 12;

/// Adds what falls into the rows of `y`, which start at `first_row` of the output's block.
fn add_range<T: Stored>(scatter: &Scatter, from: usize, first_row: usize, src: &[u8], y: &mut [u8]) {
    let Scatter { index, from: Lines { n, inner: n_inner, .. }, inner, ranges, .. } = scatter;
    let first = from * n * n_inner;
    let index = &index[first..][..n * n_inner];
    if index.is_empty() {
        return;
    }
    let mut sums = Sums::<T>::new(scatter.to.inner, y, index.len());
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
        let (smallest, largest) = ranges[from * n + row];
        if (largest as i64) < low || smallest as i64 >= low + n_rows as i64 {
            continue;
        }
        for (j, word) in words.iter().enumerate().filter(|(_, word)| place(word) < n_rows) {
            sums.add(place(word) as usize, inner[j], T::read(src, first + row * n_inner + j));
        }
    }
    sums.write();
}

/// The sums of a range of rows in the wide type, so that each result is rounded once: of all rows where much is added,
/// else only of those that are added to, in the order in which they were first met.
struct Sums<'a, T: Stored> {
    row_elems: usize,
    n_rows: usize,
    y: &'a mut [u8],
    sums: Vec<T::Sum>,
    /// One more than where among the sums a row is; 0 if it is not. Empty if all are, in order.
    of_row: Vec<u32>,
}

impl<'a, T: Stored> Sums<'a, T> {
    fn new(row_elems: usize, y: &'a mut [u8], n_added: usize) -> Self {
        let n_elems = y.len() / T::SIZE;
        let n_rows = n_elems / row_elems;
        let (sums, of_row) = match n_added >= n_elems {
            true => ((0..n_elems).map(|i| T::read(y, i)).collect(), Vec::new()),
            false => (Vec::new(), vec![0; n_rows]),
        };
        Sums { row_elems, n_rows, y, sums, of_row }
    }

    fn add(&mut self, row: usize, column: usize, value: T::Sum) {
        let at = match self.of_row.get_mut(row) {
            None => row,
            Some(at) => {
                if *at == 0 {
                    self.sums.extend((0..self.row_elems).map(|i| T::read(self.y, row * self.row_elems + i)));
                    *at = (self.sums.len() / self.row_elems) as u32;
                }
                *at as usize - 1
            }
        };
        let sum = &mut self.sums[at * self.row_elems + column];
        *sum = T::add(*sum, value);
    }

    fn write(self) {
        let row_elems = self.row_elems;
        for row in 0..self.n_rows {
            let at = match self.of_row.get(row) {
                None => row,
                Some(0) => continue,
                Some(at) => *at as usize - 1,
            };
            let sums = &self.sums[at * row_elems..][..row_elems];
            sums.iter().enumerate().for_each(|(i, sum)| T::write(self.y, row * row_elems + i, *sum));
        }
    }
}
