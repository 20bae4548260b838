//! Between memory and lanes, run by run: elements of an input into a tile, a tile into elements of an output.
//! Knows walks and storage types; which values these are is the tile's business.

use super::chain::ChainWrite;
use super::convert::{StoredElem, with_stored};
use super::runs::{ElementRuns, StridedRun};
use crate::blocks::{BlockStorage, Storage};
use crate::dtype::DType;

/// Fills `lanes` with the elements at positions `start..`; those without an element are 0.
///
/// # Safety
/// Every element of the walk is within the memory at `base`, which is aligned for its elements and not written meanwhile.
pub unsafe fn fill(walk: &ElementRuns, base: *const u8, storage: Storage, start: usize, lanes: &mut [u32]) {
    // SAFETY: as promised by the caller.
    unsafe { fill_padded(walk, base, storage, start, lanes, 0) }
}

/// [`fill`] with another lane where there is no element.
///
/// # Safety
/// As for [`fill`].
pub unsafe fn fill_padded(
    walk: &ElementRuns,
    base: *const u8,
    storage: Storage,
    start: usize,
    lanes: &mut [u32],
    pad: u32,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        match storage {
            Storage::Plain(dtype) => with_stored!(dtype, fill_stored::<_>(walk, base, start, lanes, pad)),
            Storage::Blocks(blocks) => fill_widened(walk, base, blocks, start, lanes, pad),
        }
    }
}

/// [`fill_padded`] of blocks, which are widened run by run.
///
/// # Safety
/// As for [`fill`]: `base` is the memory of these blocks.
unsafe fn fill_widened(
    walk: &ElementRuns,
    base: *const u8,
    blocks: BlockStorage,
    start: usize,
    lanes: &mut [u32],
    pad: u32,
) {
    walk.runs(start, lanes.len(), |at, run| {
        let lanes = &mut lanes[at..at + run.len];
        // SAFETY: a run's elements are within the memory.
        unsafe {
            match run {
                StridedRun { valid: false, .. } => lanes.fill(pad),
                StridedRun { step: 1, source, .. } => {
                    let mut at = source as usize;
                    let mut rest = lanes;
                    // A run may go on from one row into the next.
                    while !rest.is_empty() {
                        let (row, column) = (at / blocks.row_len, at % blocks.row_len);
                        let (here, after) = rest.split_at_mut(rest.len().min(blocks.row_len - column));
                        at += here.len();
                        let here = std::slice::from_raw_parts_mut(here.as_mut_ptr().cast::<f32>(), here.len());
                        blocks.widen_run(base, row, column, here);
                        rest = after;
                    }
                }
                StridedRun { step: 0, source, .. } => lanes.fill(widened(base, blocks, source)),
                StridedRun { step, source, .. } => {
                    for (i, lane) in lanes.iter_mut().enumerate() {
                        *lane = widened(base, blocks, source + i as isize * step);
                    }
                }
            }
        }
    });
}

/// One element of blocks as a lane.
///
/// # Safety
/// `base` is the memory of these blocks, and the element is one of them.
unsafe fn widened(base: *const u8, blocks: BlockStorage, at: isize) -> u32 {
    let mut one = [0.0];
    // SAFETY: the element is within the memory, as promised by the caller.
    unsafe { blocks.widen_run(base, at as usize / blocks.row_len, at as usize % blocks.row_len, &mut one) };
    one[0].to_bits()
}

/// [`fill_padded`] of elements that are stored one by one.
///
/// # Safety
/// As for [`fill`], with elements of this type.
unsafe fn fill_stored<S: StoredElem>(walk: &ElementRuns, base: *const u8, start: usize, lanes: &mut [u32], pad: u32) {
    let base = base.cast::<S>();
    walk.runs(start, lanes.len(), |at, run| {
        let lanes = &mut lanes[at..at + run.len];
        // SAFETY: a run's elements are within the memory.
        unsafe { fill_run(base, run, lanes, pad) }
    });
}

/// Runs up to this long are copied element by element.
const SHORT: usize = 16;

/// One run of [`fill_padded`].
///
/// # Safety
/// Every element of the run, if it is valid, is within the memory at `base`, which is aligned and not written
/// meanwhile; the run is as long as `lanes`.
#[inline]
unsafe fn fill_run<S: StoredElem>(base: *const S, run: StridedRun, lanes: &mut [u32], pad: u32) {
    // SAFETY: every element of a valid run is within the memory at `base`.
    unsafe {
        match run {
            StridedRun { valid: false, .. } => lanes.fill(pad),
            // A call to copy memory would take longer than so few elements.
            StridedRun { step: 1, source, len: ..=SHORT, .. } => {
                let from = base.offset(source);
                for (i, lane) in lanes.iter_mut().enumerate() {
                    *lane = (*from.add(i)).lane();
                }
            }
            StridedRun { step: 1, source, .. } => {
                S::to_lanes(std::slice::from_raw_parts(base.offset(source), lanes.len()), lanes);
            }
            StridedRun { step: 0, source, .. } => lanes.fill((*base.offset(source)).lane()),
            StridedRun { step: 2, source, .. } => S::every_second(base.offset(source), lanes),
            StridedRun { step, source, .. } => {
                let mut from = base.offset(source);
                for lane in lanes {
                    *lane = (*from).lane();
                    // Wrapping: the step after the last may leave the memory.
                    from = from.wrapping_offset(step);
                }
            }
        }
    }
}

/// One element as a lane.
///
/// # Safety
/// The element is within the memory at `base`, which is aligned for its elements and not written meanwhile.
pub unsafe fn element(base: *const u8, storage: Storage, at: isize) -> u32 {
    /// # Safety
    /// The element is within the memory at `base`, which is aligned for it.
    unsafe fn read<S: StoredElem>(base: *const u8, at: isize) -> u32 {
        // SAFETY: as promised by the caller.
        unsafe { (*base.cast::<S>().offset(at)).lane() }
    }
    // SAFETY: as promised by the caller.
    unsafe {
        match storage {
            Storage::Plain(dtype) => with_stored!(dtype, read::<_>(base, at)),
            Storage::Blocks(blocks) => widened(base, blocks, at),
        }
    }
}

/// Stores `lanes` (as many as `len`, or one for all) to the elements at positions `start..`.
///
/// # Safety
/// Every element of the walk is within the memory at `base`, which is aligned for `dtype`, and nobody else reads or
/// writes those elements meanwhile. `lanes` may be the same memory if elements have 32 bits.
pub unsafe fn spill(
    walk: &ElementRuns,
    base: *mut u8,
    dtype: DType,
    start: usize,
    lanes: &[u32],
    len: usize,
    write: ChainWrite,
) {
    // SAFETY: as promised by the caller.
    unsafe { with_stored!(dtype, spill_stored::<_>(walk, base, start, lanes, len, write)) }
}

/// [`spill`] of elements of one type.
///
/// # Safety
/// As for [`spill`], with elements of this type.
unsafe fn spill_stored<S: StoredElem>(
    walk: &ElementRuns,
    base: *mut u8,
    start: usize,
    lanes: &[u32],
    len: usize,
    write: ChainWrite,
) {
    let base = base.cast::<S>();
    let splat = lanes.len() == 1;
    walk.runs(start, len, |at, run| {
        assert!(run.valid, "bug in the planner: a store through a mask");
        // SAFETY: every element of a run is within the memory.
        unsafe {
            let to = base.offset(run.source);
            match run.step {
                // In place, by a value whose bits did not change: it is there already.
                1 if std::ptr::addr_eq(lanes.as_ptr().wrapping_add(at), to) => {}
                1 if splat => std::slice::from_raw_parts_mut(to, run.len).fill(S::from_lane(lanes[0])),
                1 => {
                    let (lanes, to) = (&lanes[at..at + run.len], std::slice::from_raw_parts_mut(to, run.len));
                    match write {
                        ChainWrite::Cached => S::from_lanes(lanes, to),
                        ChainWrite::Streamed => S::stream_lanes(lanes, to),
                    }
                }
                step => {
                    for i in 0..run.len {
                        let lane = if splat { lanes[0] } else { lanes[at + i] };
                        *to.offset(i as isize * step) = S::from_lane(lane);
                    }
                }
            }
        }
    });
}

/// The source index of each position, cut to 32 bits.
pub fn indices(walk: &ElementRuns, start: usize, lanes: &mut [u32]) {
    walk.runs(start, lanes.len(), |at, run| {
        for (i, lane) in lanes[at..at + run.len].iter_mut().enumerate() {
            *lane = (run.source as u32).wrapping_add((run.step as u32).wrapping_mul(i as u32));
        }
    });
}

/// Whether each position has an element.
pub fn validity(walk: &ElementRuns, start: usize, lanes: &mut [u32]) {
    walk.runs(start, lanes.len(), |at, run| lanes[at..at + run.len].fill(run.valid as u32));
}

/// A lookup by index: which element each position and its index give.
pub struct Lookup<'a> {
    pub walk: &'a ElementRuns,
    pub stride: isize,
    pub bound: usize,
    pub signed: bool,
}

impl Lookup<'_> {
    /// Fills `lanes` with the elements at `walk + index · stride`, where `indices` are as many as `lanes` or one for
    /// all. An index out of range reads 0; the first such position and its index are returned.
    ///
    /// # Safety
    /// Every element that an index within the bound gives is within the memory at `base`, which is aligned for its elements and not
    /// written meanwhile.
    pub unsafe fn fill(
        &self,
        base: *const u8,
        storage: Storage,
        start: usize,
        indices: &[u32],
        lanes: &mut [u32],
    ) -> Option<(usize, i64)> {
        // SAFETY: as promised by the caller.
        unsafe {
            match storage {
                Storage::Plain(dtype) => with_stored!(dtype, lookup_stored::<_>(self, base, start, indices, lanes)),
                Storage::Blocks(blocks) => {
                    let source = |at: isize| widened(base, blocks, at);
                    lookup(self, start, indices, lanes, source)
                }
            }
        }
    }
}

/// [`Lookup::fill`] of elements that are stored one by one.
///
/// # Safety
/// As for [`Lookup::fill`], with elements of this type.
unsafe fn lookup_stored<S: StoredElem>(
    looked_up: &Lookup,
    base: *const u8,
    start: usize,
    indices: &[u32],
    lanes: &mut [u32],
) -> Option<(usize, i64)> {
    let base = base.cast::<S>();
    // SAFETY: elements of an index within its bound are within the memory.
    lookup(looked_up, start, indices, lanes, |at| unsafe { (*base.offset(at)).lane() })
}

/// Fills lanes with what `element` finds at the places that indices within their bound give.
fn lookup(
    lookup: &Lookup,
    start: usize,
    indices: &[u32],
    lanes: &mut [u32],
    element: impl Fn(isize) -> u32,
) -> Option<(usize, i64)> {
    let splat = indices.len() == 1;
    let mut failed = None;
    lookup.walk.runs(start, lanes.len(), |at, run| {
        for i in 0..run.len {
            let index = indices[if splat { 0 } else { at + i }];
            let index = if lookup.signed { index as i32 as i64 } else { index as i64 };
            lanes[at + i] = if !run.valid {
                0
            } else if index >= 0 && (index as usize) < lookup.bound {
                element(run.source + i as isize * run.step + index as isize * lookup.stride)
            } else {
                failed = failed.or(Some((start + at + i, index)));
                0
            };
        }
    });
    failed
}
