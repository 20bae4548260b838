//! Kernels whose memory is larger than a binding, or whose index space is larger than a device counts, cut into parts along
//! outer axes, so that each part touches few windows: pieces of memory as large as a binding. Knows sizes and strides.

use std::sync::Arc;

use super::slice::body_of;
use crate::blocks::Storage;
use crate::kernel::{AccessForm, Args, Body, InstOp, Kernel, coordinates_between, reach_of};
use crate::plan::lower::{LaunchDraft, PlanValue};
use crate::plan::{Limits, ValueId};
use crate::view::{IndexMap, View};

/// A kernel, as far as it matters how much of a device it takes.
#[derive(Clone, Copy)]
pub struct Footprint<'a> {
    pub step: &'a LaunchDraft,
    pub body: &'a Body,
    values: &'a [PlanValue],
    pub limits: &'a Limits,
}

impl<'a> Footprint<'a> {
    /// Of a loop or a matmul.
    pub fn new(step: &'a LaunchDraft, values: &'a [PlanValue], limits: &'a Limits) -> Footprint<'a> {
        Footprint { step, body: body_of(step).0, values, limits }
    }

    /// Whether it needs no further look: all memory is one binding each, and everything is counted easily.
    pub fn is_small(&self) -> bool {
        let (args, limits) = (&self.step.args, self.limits);
        let n_elems = args.outer.iter().chain(&args.inner).product::<usize>();
        let is_bound_whole = |value: &ValueId| self.values[*value as usize].size_bytes() <= limits.max_binding_bytes;
        let is_near = |map: &IndexMap| map.views().iter().all(|view| view.shape.n_elems() <= limits.max_elems);
        n_elems <= limits.max_elems
            && self.step.reads.iter().chain(&self.step.writes).all(is_bound_whole)
            && args.accesses.iter().all(is_near)
            && self.is_short(args)
    }

    /// Whether no invocation makes more loop iterations than it may: one sweep a stage and a last one, each with a few
    /// more iterations for blocks and for what is left over, if as many invocations share a row as may.
    pub fn is_short(&self, args: &Args) -> bool {
        let limits = self.limits;
        if self.body.inner_rank == 0 || limits.max_iterations == usize::MAX {
            return true;
        }
        let n_chunks = args.inner.iter().product::<usize>().div_ceil(limits.max_lanes);
        let n_sweeps = self.body.stages().iter().max().map_or(1, |stage| *stage as usize) + 2;
        let iterations =
            |functions: usize| n_sweeps.saturating_mul(2 * n_chunks + 16 + (n_chunks + 1).saturating_mul(functions));
        // No row's function makes more iterations than this for an element, and most make none: their text is looked at
        // only if it matters.
        const MOST: usize = 64;
        iterations(MOST * self.body.insts.len()) <= limits.max_iterations
            || iterations(self.body.function_iterations()) <= limits.max_iterations
    }

    /// The kernel with all accesses by strides, so that any axis can be cut, if it must be cut and some accesses do not count
    /// row-major: rows of what they touch may lie anywhere.
    pub fn by_strides(&self) -> Option<LaunchDraft> {
        let is_elsewhere = |form: &AccessForm| !matches!(form, AccessForm::Linear | AccessForm::Uniform);
        let is_linear = self.body.accesses.contains(&AccessForm::Linear);
        let is_matmul = matches!(self.step.kernel, Kernel::Matmul(_));
        let goes_elsewhere = is_matmul || self.body.accesses.iter().any(is_elsewhere);
        if !is_linear || !goes_elsewhere || self.fits(&self.step.args) {
            return None;
        }
        let body = Body { accesses: strided(&self.body.accesses), ..self.body.clone() };
        let kernel = if is_matmul { Kernel::Matmul(Arc::new(body)) } else { Kernel::Loop(Arc::new(body)) };
        Some(LaunchDraft { kernel, ..self.step.clone() })
    }

    /// The parts, as the numbers of a launch each. None if even one index touches more windows than there are bindings.
    pub fn parts(&self, args: &Args) -> Option<Vec<Args>> {
        let mut parts = Vec::new();
        let mut stack = vec![args.clone()];
        if self.takes(args).1 > self.body.inputs.len() + self.body.outputs.len() {
            stack = self.by_window(args);
            stack.reverse();
        }
        while let Some(args) = stack.pop() {
            let n: usize = args.outer.iter().chain(&args.inner).product();
            let fits = self.fits(&args);
            let by_axis = self.cut_axis(&args).filter(|_| n > self.limits.max_elems || !fits);
            let by_axis = by_axis.map(|axis| self.halves(&args, axis));
            let by_position = if fits { None } else { self.by_position(&args) };
            let takes = |halves: &[Args; 2]| self.takes(&halves[0]);
            match by_axis.into_iter().chain(by_position).min_by_key(takes) {
                Some(halves) => stack.extend(halves.into_iter().rev()),
                None if !fits => return None,
                None => parts.push(self.with_near_numbers(args)),
            }
        }
        Some(parts)
    }

    /// A map in two that serve half of the positions of a run-time offset each.
    fn by_position(&self, args: &Args) -> Option<[Args; 2]> {
        let is_map = matches!(self.step.kernel, Kernel::Loop(_)) && self.body.inner_rank == 0;
        let several = args.offsets.iter().enumerate().filter(|(_, numbers)| is_map && numbers.served.1 > 1);
        let halves = several.map(|(idx, numbers)| {
            let (first, n) = numbers.served;
            let serving = |first: usize, n: usize| {
                let mut args = args.clone();
                args.offsets[idx].served = (first, n);
                args
            };
            [serving(first, n / 2), serving(first + n / 2, n - n / 2)]
        });
        halves.min_by_key(|halves| self.takes(&halves[0]))
    }

    /// Whether one launch may have all that a part takes.
    fn fits(&self, args: &Args) -> bool {
        // The sums of parts of a long k, which schedules make, are memory of their own.
        let scratch = if matches!(self.step.kernel, Kernel::Matmul(_)) { 2 } else { 0 };
        self.takes(args) <= (0, self.limits.max_windows - scratch)
    }

    /// The outer axis whose halves take the least; the first one with more than one index where accesses count row-major.
    fn cut_axis(&self, args: &Args) -> Option<usize> {
        let mut axes = (0..args.outer.len()).filter(|axis| args.outer[*axis] > 1);
        match self.body.accesses.contains(&AccessForm::Linear) {
            true => axes.next(),
            false => axes.min_by_key(|axis| self.takes(&self.halves(args, *axis)[0])),
        }
    }

    /// The launch over either half of an axis of the index space.
    pub fn halves(&self, args: &Args, axis: usize) -> [Args; 2] {
        let size = args.outer.iter().chain(&args.inner).nth(axis).copied().unwrap_or(0);
        let half = size / 2;
        [part(args, self.body, axis, 0, half), part(args, self.body, axis, half, size - half)]
    }

    /// What a part takes: by how much what it touches or counts is more than indices tell apart, and the windows that it
    /// touches, counted per value; words of checks count as one.
    pub fn takes(&self, args: &Args) -> (usize, usize) {
        let mut touched: Vec<(ValueId, Vec<(usize, usize)>)> = Vec::new();
        let (inputs, outputs) = self.step.kernel.bindings();
        let storages = inputs.iter().copied().chain(outputs.iter().map(|dtype| Storage::Plain(*dtype)));
        let values = self.step.reads.iter().chain(&self.step.writes).zip(storages);
        for ((value, storage), ranges) in values.zip(self.step.kernel.touched(args)) {
            let windows = ranges.into_iter().map(|range| self.windows(*value, storage.byte_range(range)));
            match touched.iter_mut().find(|(known, _)| known == value) {
                Some((_, known)) => known.extend(windows),
                None => touched.push((*value, windows.collect())),
            }
        }
        let has_status =
            self.body.commits() || self.body.insts.iter().any(|inst| matches!(inst.op, InstOp::Gather { .. }));
        let mut too_far: usize = args.accesses.iter().map(|map| self.n_too_far(map)).sum();
        let mut n_windows = has_status as usize;
        for (value, mut windows) in touched {
            windows.sort_unstable();
            let mut end = 0;
            for (first, last) in &windows {
                n_windows += (last + 1).saturating_sub(end.max(*first));
                end = end.max(last + 1);
            }
            let first = windows.first().map_or(end, |range| range.0);
            let per_window = self.limits.max_binding_bytes / self.values[value as usize].dtype.size();
            too_far += (end - first).saturating_mul(per_window).saturating_sub(self.limits.max_elems.saturating_mul(2));
        }
        (too_far, n_windows)
    }

    /// The first and last window that some bytes of a value are in.
    fn windows(&self, value: ValueId, (low, high): (usize, usize)) -> (usize, usize) {
        let value = &self.values[value as usize];
        let last = value.size_bytes().saturating_sub(1);
        let window = |byte: usize| byte.min(last) / self.limits.max_binding_bytes;
        (window(low), window(high))
    }

    /// Parts along the first axis, each of which touches one window of a value, or two where rows lie across the end.
    fn by_window(&self, args: &Args) -> Vec<Args> {
        let Some(axis) = args.outer.iter().position(|size| *size > 1) else { return vec![args.clone()] };
        let window = self.limits.max_binding_bytes;
        let mut rows = usize::MAX;
        let mut fit = |access: u16, storage: Storage| {
            let Some(view) = args.accesses[access as usize].views().last() else { return };
            let stride = if view.shape.rank() > axis { view.strides[axis].unsigned_abs() } else { 0 };
            if stride > 0 {
                rows = rows.min((window / storage.bytes_of(stride)).max(1));
            }
        };
        for inst in &self.body.insts {
            if let InstOp::Load { input, access } = inst.op {
                fit(access, self.body.inputs[input as usize]);
            }
        }
        self.body.stores.iter().for_each(|s| fit(s.access, self.body.outputs[s.output as usize].into()));
        let size = args.outer[axis];
        let starts = (0..size).step_by(rows.min(size));
        starts.map(|start| part(args, self.body, axis, start, rows.min(size - start))).collect()
    }

    /// By how much the numbers between the views of a map are more than a device can divide.
    fn n_too_far(&self, map: &IndexMap) -> usize {
        let Some(near) = near_numbers(map, self.limits.max_elems) else { return 0 };
        let (_, between) = near.views().split_last().expect("never empty");
        between.iter().map(|view| view.shape.n_elems().saturating_sub(self.limits.max_elems)).sum()
    }

    fn with_near_numbers(&self, mut args: Args) -> Args {
        for map in &mut args.accesses {
            if let Some(near) = near_numbers(map, self.limits.max_elems) {
                *map = near;
            }
        }
        args
    }
}

/// The launch over `len` indices of an axis of the index space, all axes before which have one if accesses count
/// row-major.
pub fn part(args: &Args, body: &Body, axis: usize, start: usize, len: usize) -> Args {
    let mut args = args.clone();
    match axis.checked_sub(args.outer.len()) {
        None => args.outer[axis] = len,
        Some(inner) => args.inner[inner] = len,
    }
    for map in &mut args.accesses {
        let view = map.views().last().expect("never empty");
        if view.shape.rank() > axis {
            *map = map.with_last(narrowed(view, axis, start, len));
        }
    }
    if body.ragged && axis == 0 {
        args.limit -= start * args.inner[0];
    }
    if let Some(m) = &mut args.matmul {
        match axis.checked_sub(m.batch.len()) {
            None => {
                m.batch[axis] = len;
                m.a.offset += m.a.batch[axis].narrow(start, len);
                m.b.offset += m.b.batch[axis].narrow(start, len);
            }
            Some(0) => {
                m.m = len;
                m.a.offset += m.a.rows.narrow(start, len);
            }
            Some(_) => {
                m.n = len;
                m.b.offset += m.b.cols.narrow(start, len);
            }
        }
    }
    args
}

/// The same map with small numbers between its views: they start near the first one that there is, and so do the views
/// that are met by them. None if they are small as they are.
fn near_numbers(map: &IndexMap, max_elems: usize) -> Option<IndexMap> {
    let (last, between) = map.views().split_last().expect("never empty");
    if between.iter().all(|view| view.shape.n_elems() <= max_elems) {
        return None;
    }
    let mut near = map.clone();
    let all: Option<Vec<(usize, usize)>> = last.shape.iter().map(|size| Some((0, size.checked_sub(1)?))).collect();
    let mut found = reach_of(last, &all?);
    for (idx, view) in between.iter().enumerate().rev() {
        // Where no view after this one has an element, its first will do: it is never looked at.
        let ranges = found.map_or(vec![(0, 0); view.shape.rank()], |range| coordinates_between(&view.shape, range));
        found = found.and_then(|_| reach_of(view, &ranges));
        let (mut view, mut start) = (*view, 0);
        for (axis, (first, last)) in ranges.into_iter().enumerate() {
            start += first * view.shape[axis + 1..].iter().product::<usize>();
            view = narrowed(&view, axis, first, last - first + 1);
            if first != last {
                break;
            }
        }
        let mut met_by = near.views()[idx + 1];
        met_by.offset -= start as isize;
        near = near.with(idx, view).with(idx + 1, met_by);
    }
    Some(near)
}

/// Some coordinates of an axis of a view.
fn narrowed(view: &View, axis: usize, start: usize, len: usize) -> View {
    let mut view = *view;
    view.shape = view.shape.with(axis, len);
    view.offset += start as isize * view.strides[axis];
    if let Some(mask) = &mut view.mask {
        let clip = |at: usize| at.saturating_sub(start).min(len);
        mask[axis] = (clip(mask[axis].0), clip(mask[axis].1));
    }
    view
}

/// The access forms of one window of a tensor: a window is not contiguous, so row-major accesses become strided ones.
pub fn strided(forms: &[AccessForm]) -> Vec<AccessForm> {
    let strided = |form: &AccessForm| if *form == AccessForm::Linear { AccessForm::Strided } else { *form };
    forms.iter().map(strided).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    const MAX_ELEMS: usize = 1 << 31;

    /// Coordinates all over a shape.
    fn some_of(shape: &Shape) -> Vec<Vec<usize>> {
        let some = |k: usize| shape.iter().enumerate().map(|(axis, size)| (k * (7919 + axis * 31)) % size).collect();
        (0..200).map(some).collect()
    }

    #[test]
    fn small_numbers_between_views_lead_to_the_same_elements() {
        let source: Shape = [4608, 1 << 20].into();
        let turned = View::permute(&source, &[1, 0]);
        let padded = View::pad(&[1 << 20, 4608].into(), &[(1, 2), (3, 4)]);
        let n: usize = padded.shape.iter().product();
        for (first, len, step) in
            [(0, 9000, 1), ((1 << 31) - 50, 9000, 1), ((1 << 32) + 9, 5000, 3), (n - 1, 7000, -90_001)]
        {
            let flat = View::from_axes([(len, step)].into_iter(), first as isize);
            let map = IndexMap::from(flat).of(&padded).of(&turned);
            assert!(map.views().len() > 1);
            let near = near_numbers(&map, MAX_ELEMS).expect("too far");
            for coordinates in some_of(map.shape()) {
                assert_eq!(near.at(&coordinates), map.at(&coordinates), "{first} {coordinates:?}");
            }
            assert!(near.views()[0].shape.n_elems() < 1 << 31, "{near}");
            // Nothing but fill.
            let fill = narrowed(&View::pad(&[n].into(), &[(0, 9000)]), 0, n, 9000);
            let map = map.with_last(fill);
            assert!(near_numbers(&map, MAX_ELEMS).is_some_and(|near| near.at(&[7]).is_none()));
        }
    }
}
