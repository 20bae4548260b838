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
    // A few ranges per thread: each looks through the whole index, but holds its sums in wide numbers.
    let n_ranges = (4 * rayon::current_num_threads()).div_ceil(outer).clamp(1, n);
    let range_rows = n.div_ceil(n_ranges).max(BLOCK.div_ceil(inner)).min(n);
    let (block_bytes, range_bytes) = (n * inner * T::SIZE, range_rows * inner * T::SIZE);
    y.par_chunks_mut(block_bytes).zip(x.par_chunks(block_bytes)).enumerate().for_each(|(block, (y, x))| {
        let Some(from) = scatter.outer[block] else { return y.copy_from_slice(x) };
        y.par_chunks_mut(range_bytes).zip(x.par_chunks(range_bytes)).enumerate().for_each(|(i, (y, x))| {
            add_range::<T>(scatter, from, i * range_rows, x, src, y);
        });
    });
}

/// Elements of the output that are worth a thread's while.
const BLOCK: usize = 1 << 12;

/// Adds what falls into the rows of `y`, which start at `first_row` of the output's block.
fn add_range<T: Stored>(scatter: &Scatter, from: usize, first_row: usize, x: &[u8], src: &[u8], y: &mut [u8]) {
    let Scatter { index, from: Lines { n, inner: n_inner, .. }, inner, ranges, .. } = scatter;
    let row_elems = scatter.to.inner;
    let n_rows = y.len() / (row_elems * T::SIZE);
    let rows = first_row as i32..(first_row + n_rows) as i32;
    let mut sums: Vec<T::Sum> = (0..n_rows * row_elems).map(|i| T::read(x, i)).collect();
    for row in from * n..(from + 1) * n {
        // Nothing of this row falls here (or the index is empty).
        if ranges.get(row).is_none_or(|(low, high)| *high < rows.start || *low >= rows.end) {
            continue;
        }
        for (j, to) in inner.iter().enumerate() {
            let at = i32::from_ne_bytes(index[row * n_inner + j]);
            if rows.contains(&at) {
                let sum = &mut sums[(at - rows.start) as usize * row_elems + to];
                *sum = T::add(*sum, T::read(src, row * n_inner + j));
            }
        }
    }
    sums.iter().enumerate().for_each(|(i, sum)| T::write(y, i, *sum));
}
