//! Sorting along an axis, by keys: each element becomes an integer that orders as it should, with its place below it.
//! All keys then differ, so that the fastest sort is stable too and its result is the only one possible.

use half::{bf16, f16};
use rayon::prelude::*;

use super::{Lines, RoutineCall};
use crate::backend::FailedCheck;
use crate::dtype::DType;

/// Lines longer than this are sorted by several threads.
const LONG: usize = 1 << 15;

/// Elements in order.
pub fn sort(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    let (x, dtype) = call.inputs[0];
    let size = dtype.size();
    put_in_order(call, |from, _, out| out.copy_from_slice(&x[from * size..][..size]));
    Ok(())
}

/// Where in its line each element of the order is found.
pub fn argsort(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    put_in_order(call, |_, place, out| out.copy_from_slice(&(place as i32).to_ne_bytes()));
    Ok(())
}

/// For each element of the output, calls `write` with the input element that belongs there, its place in its line, and
/// the output's bytes.
fn put_in_order(call: RoutineCall<'_>, write: impl Fn(usize, usize, &mut [u8]) + Sync) {
    let lines = Lines::new(&call.args.output_shape, call.args.params[0] as usize);
    let Lines { outer, n, inner } = lines;
    if outer * n * inner == 0 {
        return;
    }
    let (x, dtype) = call.inputs[0];
    let descending = call.args.params[1] != 0;
    // One line after another, whatever the axis: line `outer · inner + j` holds the places in sorted order.
    let mut places = vec![0u32; outer * n * inner];
    places.par_chunks_mut(n).enumerate().with_min_len(1024usize.div_ceil(n)).for_each_init(Vec::new, |keys, (line, places)| {
        let start = line / inner * n * inner + line % inner;
        fill_keys(keys, x, dtype, descending, (start..).step_by(inner).take(n));
        if n > LONG { keys.par_sort_unstable() } else { keys.sort_unstable() }
        places.iter_mut().zip(keys).for_each(|(place, key)| *place = *key as u32);
    });
    let size = call.output_dtype.size();
    call.output.par_chunks_exact_mut(size).enumerate().with_min_len(1024).for_each(|(to, out)| {
        let (block, row, column) = (to / (n * inner), to / inner % n, to % inner);
        let place = places[(block * inner + column) * n + row] as usize;
        write((block * n + place) * inner + column, place, out);
    });
}

/// The keys of one line: order above, place below.
fn fill_keys(keys: &mut Vec<u64>, x: &[u8], dtype: DType, descending: bool, line: impl Iterator<Item = usize>) {
    keys.clear();
    let key = |place: usize, order: u32| (order as u64) << 32 | place as u64;
    let float = |v: f32| match float_order(v) {
        NAN_LAST => NAN_LAST,
        order if descending => !order,
        order => order,
    };
    let int = |order: u32| if descending { !order } else { order };
    let line = line.enumerate();
    match dtype {
        DType::F32 => keys.extend(line.map(|(i, at)| key(i, float(f32::from_ne_bytes(x.as_chunks().0[at]))))),
        DType::F16 => keys.extend(line.map(|(i, at)| key(i, float(f16::from_ne_bytes(x.as_chunks().0[at]).to_f32())))),
        DType::BF16 => keys.extend(line.map(|(i, at)| key(i, float(bf16::from_ne_bytes(x.as_chunks().0[at]).to_f32())))),
        DType::I32 => keys.extend(line.map(|(i, at)| key(i, int(u32::from_ne_bytes(x.as_chunks().0[at]) ^ 1 << 31)))),
        DType::U32 => keys.extend(line.map(|(i, at)| key(i, int(u32::from_ne_bytes(x.as_chunks().0[at]))))),
        DType::U8 | DType::Bool => keys.extend(line.map(|(i, at)| key(i, int(x[at] as u32)))),
    }
}

/// Above the order of every number, also of every number's complement.
const NAN_LAST: u32 = u32::MAX;

/// An integer that orders as the float does: −0 equals 0, NaN is above all.
fn float_order(v: f32) -> u32 {
    if v.is_nan() {
        return NAN_LAST;
    }
    // −0 + 0 = 0
    let bits = (v + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
