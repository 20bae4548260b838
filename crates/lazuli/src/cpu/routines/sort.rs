//! Sorting along an axis, by keys: each element becomes an integer that orders as it should, above what is to be
//! written in its place. The sort is stable, so its result is the only one possible, whoever computes it.

use half::{bf16, f16};

use super::{Lines, RoutineCall, RoutineScratch, ScratchPieces, room};
use crate::backend::FailedCheck;
use crate::cpu::threads;
use crate::dtype::DType;
use crate::kernel::RoutineArgs;

/// Elements in order.
pub fn sort(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    put_in_order(call, |_, element| element);
    Ok(())
}

/// Where in its line each element of the order is found.
pub fn argsort(call: RoutineCall<'_>) -> Result<(), FailedCheck> {
    put_in_order(call, |place, _| place);
    Ok(())
}

/// Bytes that sorting needs beside its input and output: all of it in order, and the keys of a line per thread.
pub fn scratch(args: &RoutineArgs, n_workers: usize) -> usize {
    let lines = Lines::new(&args.output_shape, args.params[0] as usize);
    let (keys, counts) = (room::<u64>(lines.n), room::<Counts>(if lines.n < LONG { 0 } else { 3 }));
    let per_line = keys.saturating_mul(2).saturating_add(counts);
    room::<u32>(lines.count() * lines.n).saturating_add(n_lines_at_once(&lines, n_workers).saturating_mul(per_line))
}

/// Lines that are sorted at the same time.
fn n_lines_at_once(lines: &Lines, n_workers: usize) -> usize {
    n_workers.min(lines.outer * lines.inner.div_ceil(GROUP))
}

/// Lines next to each other are sorted in groups of this many, so that memory is read and written in whole cache lines.
const GROUP: usize = 16;

/// Elements that are worth a thread's while.
const BLOCK: usize = 1 << 12;

/// Writes, in the order of the elements of each line, what `payload` makes of their places and bits.
fn put_in_order(mut call: RoutineCall<'_>, payload: fn(u32, u32) -> u32) {
    let lines = Lines::new(&call.args.output_shape, call.args.params[0] as usize);
    let (Lines { n, inner, .. }, n_elems) = (lines, lines.count() * lines.n);
    if n_elems == 0 {
        return;
    }
    let (x, dtype) = call.inputs[0];
    let descending = call.args.params[1] != 0;
    // Per block of `n · inner` elements one group of lines after another, each group row by row.
    let sorted: &mut [u32] = call.scratch.take(n_elems);
    let at_once = 0..n_lines_at_once(&lines, call.n_workers);
    let rooms = ScratchPieces::new(at_once.map(|_| Room::new(n, &mut call.scratch)));
    threads::for_each_chunk(sorted, n * inner, BLOCK, &|block, groups| {
        threads::for_each_chunk(groups, n * GROUP.min(inner), BLOCK, &|group, out| {
            rooms.with(|room| {
                let width = out.len() / n;
                for column in 0..width {
                    let first = block * n * inner + group * GROUP + column;
                    fill_keys(room.keys, x, dtype, descending, (first..).step_by(inner).take(n), payload);
                    let keys = sort_keys(room);
                    out[column..].iter_mut().step_by(width).zip(keys).for_each(|(out, key)| *out = *key as u32);
                }
            });
        });
    });
    match call.output_dtype.size() {
        4 => ungroup::<4>(n, inner, sorted, call.output),
        2 => ungroup::<2>(n, inner, sorted, call.output),
        _ => ungroup::<1>(n, inner, sorted, call.output),
    }
}

/// Row-major again, and as narrow as elements are stored.
fn ungroup<const SIZE: usize>(n: usize, inner: usize, sorted: &[u32], output: &mut [u8]) {
    let store = |out: &mut [u8; SIZE], value: &u32| out.copy_from_slice(&value.to_le_bytes()[..SIZE]);
    let output = output.as_chunks_mut::<SIZE>().0;
    if inner <= GROUP {
        // One group is row-major already.
        return threads::for_each_chunk(output, BLOCK, BLOCK, &|i, out| {
            out.iter_mut().zip(&sorted[i * BLOCK..]).for_each(|(out, value)| store(out, value));
        });
    }
    threads::for_each_chunk(output, inner, BLOCK, &|row, out| {
        let (block, row) = (row / n, row % n);
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let from = (block * inner + group * GROUP) * n + row * out.len();
            out.iter_mut().zip(&sorted[from..]).for_each(|(out, value)| store(out, value));
        }
    });
}

/// The keys of one line: order above, payload below.
fn fill_keys(
    keys: &mut [u64],
    x: &[u8],
    dtype: DType,
    descending: bool,
    line: impl Iterator<Item = usize>,
    payload: fn(u32, u32) -> u32,
) {
    let key = |place: usize, order: u32, bits: u32| (order as u64) << 32 | payload(place as u32, bits) as u64;
    let float = |v: f32| match float_order(v) {
        NAN_LAST => NAN_LAST,
        order if descending => !order,
        order => order,
    };
    let int = |order: u32| if descending { !order } else { order };
    let line = keys.iter_mut().zip(line.enumerate());
    let half = |at: usize| u16::from_le_bytes(x.as_chunks().0[at]);
    let word = |at: usize| u32::from_le_bytes(x.as_chunks().0[at]);
    match dtype {
        DType::F32 => line.for_each(|(k, (i, at))| *k = key(i, float(f32::from_bits(word(at))), word(at))),
        DType::F16 => {
            line.for_each(|(k, (i, at))| *k = key(i, float(f16::from_bits(half(at)).to_f32()), half(at) as u32))
        }
        DType::BF16 => {
            line.for_each(|(k, (i, at))| *k = key(i, float(bf16::from_bits(half(at)).to_f32()), half(at) as u32))
        }
        DType::I32 => line.for_each(|(k, (i, at))| *k = key(i, int(word(at) ^ 1 << 31), word(at))),
        DType::U32 => line.for_each(|(k, (i, at))| *k = key(i, int(word(at)), word(at))),
        DType::U8 | DType::Bool => line.for_each(|(k, (i, at))| *k = key(i, int(x[at] as u32), x[at] as u32)),
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

/// Lines from this length on are sorted digit by digit, which takes time in proportion to their length. Shorter ones fit
/// the 4 KiB that the standard library sorts in without allocating.
const LONG: usize = 1 << 9;
const DIGIT_BITS: usize = 11;

/// How often each digit comes.
type Counts = [u32; 1 << DIGIT_BITS];

/// What sorting a line needs: its keys, as much room again, and counts if it is long.
struct Room<'a> {
    keys: &'a mut [u64],
    other: &'a mut [u64],
    counts: &'a mut [Counts],
}

impl<'a> Room<'a> {
    fn new(n: usize, scratch: &mut RoutineScratch<'a>) -> Room<'a> {
        let counts = scratch.take(if n < LONG { 0 } else { 3 });
        Room { keys: scratch.take(n), other: scratch.take(n), counts }
    }
}

/// Sorts by the upper halves, stably.
fn sort_keys<'s>(room: &'s mut Room<'_>) -> &'s [u64] {
    let (mut keys, mut sorted, counts) = (&mut *room.keys, &mut *room.other, &mut *room.counts);
    if keys.len() < LONG {
        keys.sort_by_key(|key| key >> 32);
        return keys;
    }
    // The orders' three digits, lowest first: a stable sort by each in turn is a sort by all.
    let digit = |key: u64, i: usize| (key >> (32 + i * DIGIT_BITS)) as usize & ((1 << DIGIT_BITS) - 1);
    counts.fill([0; 1 << DIGIT_BITS]);
    for &key in keys.iter() {
        (0..3).for_each(|i| counts[i][digit(key, i)] += 1);
    }
    for (i, counts) in counts.iter_mut().enumerate() {
        // All the same: nothing to do.
        if counts.iter().any(|count| *count as usize == keys.len()) {
            continue;
        }
        let mut start = 0;
        for count in counts.iter_mut() {
            (start, *count) = (start + *count, start);
        }
        for &key in keys.iter() {
            let next = &mut counts[digit(key, i)];
            sorted[*next as usize] = key;
            *next += 1;
        }
        std::mem::swap(&mut keys, &mut sorted);
    }
    keys
}
