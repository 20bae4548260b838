//! Adding at named places. Each thread owns a range of the output and adds, in the order of the index, what falls into
//! it: no two write to one place, and the order of additions does not depend on who does them.

use rayon::prelude::*;

use super::{Lines, RoutineCall, Stored, for_stored};
use crate::backend::FailedCheck;
use crate::dtype::DType;

/// `y = x`, then `y[…, index[…, i, …], …] += src[…, i, …]` along an axis.
pub fn scatter_add(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    let scatter = Scatter::new(&call)?;
    if !call.output.is_empty() {
        for_stored!(call.output_dtype, add(&scatter, call.inputs[0].0, call.inputs[2].0, call.output));
    }
    Ok(())
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
    /// Per row of the index (its inner elements), its smallest and largest.
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
        let words = call.inputs[1].0.as_chunks().0;
        let range = |row: &[[u8; 4]]| {
            row.iter().fold((i32::MAX, i32::MIN), |(low, high), word| {
                let at = i32::from_ne_bytes(*word);
                (low.min(at), high.max(at))
            })
        };
        let ranges: Vec<_> = words.par_chunks(from.inner.max(1)).with_min_len(64).map(range).collect();
        let is_outside = |at: i32| at < 0 || at as usize >= to.n;
        if ranges.iter().any(|(low, high)| is_outside(*low) || is_outside(*high)) {
            let first = words.iter().map(|w| i32::from_ne_bytes(*w)).find(|at| is_outside(*at)).unwrap_or_default();
            return Err(FailedCheck { check: call.args.check, index: first as i64, bound: to.n });
        }
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
    let n_ranges = rayon::current_num_threads().div_ceil(outer);
    let range_rows = n.div_ceil(n_ranges).max(BLOCK.div_ceil(inner)).min(n);
    let (block_bytes, range_bytes) = (n * inner * T::SIZE, range_rows * inner * T::SIZE);
    let blocks = y.par_chunks_mut(block_bytes).zip(x.par_chunks(block_bytes)).enumerate();
    blocks.with_min_len((BLOCK * T::SIZE).div_ceil(block_bytes)).for_each(|(block, (y, x))| {
        y.copy_from_slice(x);
        let Some(from) = scatter.outer[block] else { return };
        y.par_chunks_mut(range_bytes).enumerate().for_each(|(i, y)| {
            add_range::<T>(scatter, from, i * range_rows, src, y);
        });
    });
}

/// Elements of the output that are worth a thread's while.
const BLOCK: usize = 1 << 12;

/// Adds what falls into the rows of `y`, which start at `first_row` of the output's block.
fn add_range<T: Stored>(scatter: &Scatter, from: usize, first_row: usize, src: &[u8], y: &mut [u8]) {
    let Scatter { index, from: Lines { n, inner: n_inner, .. }, inner, ranges, .. } = scatter;
    let row_elems = scatter.to.inner;
    let n_rows = y.len() / (row_elems * T::SIZE);
    let (low, high) = (first_row as i64, (first_row + n_rows) as i64);
    // Rows that are added to, in the wide type, in the order in which they were first met; 0 is none yet.
    let mut sums: Vec<T::Sum> = Vec::new();
    let mut sum_of = vec![0u32; n_rows];
    for row in from * n..(from + 1) * n {
        // Nothing of this row falls here (or the index is empty).
        if ranges.get(row).is_none_or(|range| (range.1 as i64) < low || range.0 as i64 >= high) {
            continue;
        }
        for (j, to) in inner.iter().enumerate() {
            let at = i32::from_ne_bytes(index[row * n_inner + j]) as i64;
            if !(low..high).contains(&at) {
                continue;
            }
            let at = (at - low) as usize;
            if sum_of[at] == 0 {
                sums.extend((0..row_elems).map(|i| T::read(y, at * row_elems + i)));
                sum_of[at] = (sums.len() / row_elems) as u32;
            }
            let sum = &mut sums[(sum_of[at] as usize - 1) * row_elems + to];
            *sum = T::add(*sum, T::read(src, row * n_inner + j));
        }
    }
    for (row, sum) in sum_of.iter().enumerate().filter(|(_, sum)| **sum != 0) {
        let sums = &sums[(*sum as usize - 1) * row_elems..][..row_elems];
        sums.iter().enumerate().for_each(|(i, sum)| T::write(y, row * row_elems + i, *sum));
    }
}
