//! Launches whose memory is larger than a binding, or whose index space is larger than 32 bits count, cut into parts
//! along outer axes, so that each part touches few windows. Knows sizes and strides; writes no text.

use super::PassMemory;
use super::eval::reached;
use super::index::Accesses;
use super::keep;
use super::memory::{LaunchMemory, StatusUse, Use};
use super::schedule::VecLoad;
use crate::dtype::DType;
use crate::kernel::{AccessForm, Args, Body, InstOp, Kernel, OperandArgs};
use crate::plan::{Launch, Slot, SlotId};
use crate::shape::Shape;
use crate::target::GpuTarget;
use crate::view::{IndexMap, View};

/// The most elements of an index space that one dispatch counts: some room below 2³².
pub const MAX_ELEMS: usize = 1 << 31;

/// A launch with what it runs on.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub launch: &'a Launch,
    pub body: &'a Body,
    pub slots: &'a [Slot],
    pub target: &'a GpuTarget,
}

impl<'a> Context<'a> {
    /// Of a loop or a matmul.
    pub fn new(launch: &'a Launch, body: &'a Body, slots: &'a [Slot], target: &'a GpuTarget) -> Context<'a> {
        Context { launch, body, slots, target }
    }

    /// The name that profilers show.
    pub fn label(&self) -> String {
        self.launch.kernel.name(&self.launch.ops)
    }

    /// What the kernel computes, free of sizes; nothing if that is long.
    pub fn comment(&self) -> String {
        let text = self.body.stores_text();
        if text.len() > 240 { String::new() } else { text }
    }

    /// Per register, whether its value is kept from being folded with others.
    pub fn kept(&self) -> Vec<bool> {
        keep::kept(self.body, self.target)
    }

    /// The memory of a part of the launch whose accesses go by these modes, and by these ones too.
    pub fn memory(&self, args: &Args, modes: &[&[VecLoad]]) -> LaunchMemory {
        let mut memory = self.memory_of(self.uses(args, modes));
        for (idx, ranges) in self.ranges(args).iter().enumerate().filter(|(_, ranges)| ranges.len() > 1) {
            let ranges: Vec<(usize, usize)> = ranges.iter().map(|range| self.bytes(idx, *range)).collect();
            memory.leave_out_all_but(idx, &ranges);
        }
        memory
    }

    /// The memory of these uses: the kernel's own first.
    pub fn memory_of(&self, uses: Vec<Use>) -> LaunchMemory {
        let checks = self.body.insts.iter().any(|i| matches!(i.op, InstOp::Gather { .. }));
        let status = match (checks, self.body.commits()) {
            (true, _) => StatusUse::Notes,
            (false, true) => StatusUse::Asks,
            (false, false) => StatusUse::None,
        };
        LaunchMemory::new(&uses, status, self.target)
    }

    /// How inputs, then outputs, are used by loads and stores that go by these modes.
    pub fn uses(&self, args: &Args, modes: &[&[VecLoad]]) -> Vec<Use> {
        let spans = self.spans(args).into_iter().enumerate();
        let mut uses: Vec<Use> = spans.map(|(idx, span)| self.one_use(idx, span)).collect();
        for modes in modes {
            let reached = reached(&Accesses { body: self.body, args, modes, kept: &[] });
            for (one, (by_one, by_four)) in uses.iter_mut().zip(reached) {
                one.by_one |= by_one;
                one.by_four |= by_four;
            }
        }
        uses
    }

    /// The slot of an input, or of an output counted after the inputs.
    fn slot(&self, idx: usize) -> SlotId {
        let n_inputs = self.launch.reads.len();
        if idx < n_inputs { self.launch.reads[idx] } else { self.launch.writes[idx - n_inputs] }
    }

    fn dtype(&self, idx: usize) -> DType {
        let n_inputs = self.launch.reads.len();
        if idx < n_inputs { self.body.inputs[idx] } else { self.body.outputs[idx - n_inputs] }
    }

    /// The bytes where the first and the last of these elements start, within the slot.
    fn bytes(&self, idx: usize, (low, high): (usize, usize)) -> (usize, usize) {
        let last = self.slots[self.slot(idx).0 as usize].size_bytes.saturating_sub(1);
        let byte = |element: usize| element.saturating_mul(self.dtype(idx).size()).min(last);
        (byte(low), byte(high))
    }

    fn one_use(&self, idx: usize, span: Option<(usize, usize)>) -> Use {
        let (n_inputs, slot) = (self.launch.reads.len(), self.slot(idx));
        let name = match self.launch.writes.iter().position(|w| *w == slot) {
            Some(output) => format!("out{output}"),
            None => format!("in{idx}"),
        };
        let dtype = self.dtype(idx);
        let size_bytes = self.slots[slot.0 as usize].size_bytes;
        let touched = span.map_or((0, 0), |span| self.bytes(idx, span));
        let (writes, place) = (idx >= n_inputs, PassMemory::Slot(slot));
        Use { place, name, dtype, by_one: false, by_four: false, writes, size_bytes, touched }
    }

    /// Per input and output, the first and last element that may be touched.
    fn spans(&self, args: &Args) -> Vec<Option<(usize, usize)>> {
        let widest = |ranges: &Vec<(usize, usize)>| {
            ranges.iter().copied().reduce(|all, range| (all.0.min(range.0), all.1.max(range.1)))
        };
        self.ranges(args).iter().map(widest).collect()
    }

    /// The same for each way in which it is touched.
    fn ranges(&self, args: &Args) -> Vec<Vec<(usize, usize)>> {
        let n_inputs = self.body.inputs.len();
        let mut ranges: Vec<Vec<(usize, usize)>> = vec![Vec::new(); n_inputs + self.body.outputs.len()];
        let mut widen = |idx: usize, range: Option<(usize, usize)>| ranges[idx].extend(range);
        for inst in &self.body.insts {
            match inst.op {
                InstOp::Load { input, access } => {
                    widen(input as usize, extent(&args.accesses[access as usize], (0, 0)));
                }
                InstOp::Gather { input, access, gather, .. } => {
                    let gather = args.gathers[gather as usize];
                    let (first, n) = args.index_range.unwrap_or((0, gather.bound));
                    let by = |index: usize| gather.stride * index as isize;
                    let further = (by(first), by(first + n.max(1) - 1));
                    widen(input as usize, extent(&args.accesses[access as usize], further));
                }
                _ => {}
            }
        }
        for store in &self.body.stores {
            widen(n_inputs + store.output as usize, extent(&args.accesses[store.access as usize], (0, 0)));
        }
        if let (Kernel::Matmul(_), Some(m)) = (&self.launch.kernel, &args.matmul) {
            let operand = |lies: &OperandArgs, rows: usize, cols: usize| {
                let (low, high) = lies.extent(&m.batch, rows, cols)?;
                Some((usize::try_from(low).ok()?, usize::try_from(high).ok()?))
            };
            widen(0, operand(&m.a, m.m, m.k));
            widen(1, operand(&m.b, m.k, m.n));
        }
        ranges
    }

    /// The kernel with all accesses by strides, so that any axis can be cut, if the launch must be cut and some accesses do
    /// not count row-major: rows of what they touch may lie anywhere.
    pub fn by_strides(&self) -> Option<Body> {
        let is_elsewhere = |form: &AccessForm| *form == AccessForm::Strided || is_chain(*form);
        let is_linear = self.body.accesses.contains(&AccessForm::Linear);
        let goes_elsewhere =
            matches!(self.launch.kernel, Kernel::Matmul(_)) || self.body.accesses.iter().any(is_elsewhere);
        if !is_linear || !goes_elsewhere || self.fits(&self.launch.args) {
            return None;
        }
        Some(Body { accesses: strided(&self.body.accesses), ..self.body.clone() })
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
            match self.cut_axis(&args).filter(|_| n > MAX_ELEMS || !fits) {
                Some(axis) => stack.extend(self.halves(&args, axis).into_iter().rev()),
                None if !fits => return None,
                None => parts.push(with_near_numbers(args)),
            }
        }
        Some(parts)
    }

    /// Whether one dispatch may have all that a part takes.
    fn fits(&self, args: &Args) -> bool {
        // The sums of a long contraction's parts are scratch memory of its own.
        let scratch = if matches!(self.launch.kernel, Kernel::Matmul(_)) { 2 } else { 0 };
        self.takes(args) <= (0, self.target.max_bindings - scratch)
    }

    /// The outer axis whose halves take the least; the first one with more than one index where accesses count
    /// row-major.
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

    /// What a part takes: by how much what it touches or counts is more than 32 bits tell apart, and the windows that it
    /// touches, counted per slot.
    pub fn takes(&self, args: &Args) -> (usize, usize) {
        let modes = vec![VecLoad::Splat; args.accesses.len()];
        let memory = match self.launch.kernel {
            Kernel::Matmul(_) => {
                // The operands of a matmul are read, though no instruction says so.
                let mut uses = self.uses(args, &[&modes]);
                uses[..2].iter_mut().for_each(|operand| operand.by_one = true);
                self.memory_of(uses)
            }
            _ => self.memory(args, &[&modes]),
        };
        let too_far: usize = args.accesses.iter().map(n_too_far).sum();
        (too_far + memory.n_too_far(), memory.n_bindings())
    }

    /// Parts along the first axis, each of which touches one window of a slot, or two where rows lie across the end.
    fn by_window(&self, args: &Args) -> Vec<Args> {
        let Some(axis) = args.outer.iter().position(|size| *size > 1) else { return vec![args.clone()] };
        let window = self.target.max_binding_bytes;
        let mut rows = usize::MAX;
        let mut fit = |access: u16, size: usize| {
            let Some(view) = args.accesses[access as usize].views().last() else { return };
            let stride = if view.shape.rank() > axis { view.strides[axis].unsigned_abs() } else { 0 };
            if stride > 0 {
                rows = rows.min((window / (stride * size)).max(1));
            }
        };
        for inst in &self.body.insts {
            if let InstOp::Load { input, access } = inst.op {
                fit(access, self.body.inputs[input as usize].size());
            }
        }
        self.body.stores.iter().for_each(|s| fit(s.access, self.body.outputs[s.output as usize].size()));
        let size = args.outer[axis];
        let starts = (0..size).step_by(rows.min(size));
        starts.map(|start| part(args, self.body, axis, start, rows.min(size - start))).collect()
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

/// The first and last element of a map, or so much further on; None if there is none.
fn extent(map: &IndexMap, further: (isize, isize)) -> Option<(usize, usize)> {
    let mut views = map.views().iter().rev();
    let seen = views.next().expect("never empty");
    let mut found = reach_of(seen, &all_of(seen)?)?;
    for view in views {
        found = reach_of(view, &coordinates_between(&view.shape, found))?;
    }
    let by = |at: usize, by: isize| at.saturating_add_signed(by);
    let (low, high) = (further.0.min(further.1), further.0.max(further.1));
    Some((by(found.0, low), by(found.1, high)))
}

/// By how much the numbers between the views of a map are more than shaders can divide.
fn n_too_far(map: &IndexMap) -> usize {
    let Some(near) = near_numbers(map) else { return 0 };
    let (_, between) = near.views().split_last().expect("never empty");
    between.iter().map(|view| view.shape.n_elems().saturating_sub(MAX_ELEMS)).sum()
}

fn with_near_numbers(mut args: Args) -> Args {
    for map in &mut args.accesses {
        if let Some(near) = near_numbers(map) {
            *map = near;
        }
    }
    args
}

/// The same map with small numbers between its views: they start near the first one that there is, and so do the views
/// that are met by them. None if they are small as they are.
fn near_numbers(map: &IndexMap) -> Option<IndexMap> {
    let (last, between) = map.views().split_last().expect("never empty");
    if between.iter().all(|view| view.shape.n_elems() <= MAX_ELEMS) {
        return None;
    }
    let mut near = map.clone();
    let mut found = reach_of(last, &all_of(last)?);
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

/// All coordinates of a view; None if there are none.
fn all_of(view: &View) -> Option<Vec<(usize, usize)>> {
    view.shape.iter().map(|size| Some((0, size.checked_sub(1)?))).collect()
}

/// The first and last element that a view gives for coordinates in these ranges, both ends included.
fn reach_of(view: &View, ranges: &[(usize, usize)]) -> Option<(usize, usize)> {
    let mut offset = view.offset;
    let mut axes = Vec::new();
    for (axis, (first, last)) in ranges.iter().enumerate() {
        let (low, high) = view.inside(axis);
        let (first, end) = ((*first).max(low), (last + 1).min(high));
        offset += first as isize * view.strides[axis];
        axes.push((end.checked_sub(first).filter(|n| *n > 0)?, view.strides[axis]));
    }
    reach(offset, axes.into_iter())
}

/// Per axis, the coordinates that elements between two row-major numbers may have.
fn coordinates_between(shape: &Shape, (mut low, mut high): (usize, usize)) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    for (axis, size) in shape.iter().enumerate() {
        let below = shape[axis + 1..].iter().product::<usize>().max(1);
        let (first, last) = (low / below, high / below);
        let end = size.saturating_sub(1);
        ranges.push((first.min(end), last.min(end)));
        match first == last {
            true => (low, high) = (low % below, high % below),
            // From here on every coordinate occurs.
            false => (low, high) = (0, below - 1),
        }
    }
    ranges
}

/// The first and last element of axes of these sizes and strides.
fn reach(offset: isize, axes: impl Iterator<Item = (usize, isize)>) -> Option<(usize, usize)> {
    let (mut low, mut high) = (offset, offset);
    for (size, stride) in axes {
        let last = size.checked_sub(1)? as isize * stride;
        (low, high) = (low + last.min(0), high + last.max(0));
    }
    Some((low.max(0) as usize, high.max(0) as usize))
}

/// Forms of accesses that go by strides where they counted row-major.
pub fn strided(forms: &[AccessForm]) -> Vec<AccessForm> {
    let strided = |form: &AccessForm| if *form == AccessForm::Linear { AccessForm::Strided } else { *form };
    forms.iter().map(strided).collect()
}

/// Whether an access leads through several views or a mask.
pub fn is_chain(form: AccessForm) -> bool {
    matches!(form, AccessForm::Chain { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let near = near_numbers(&map).expect("too far");
            for coordinates in some_of(map.shape()) {
                assert_eq!(near.at(&coordinates), map.at(&coordinates), "{first} {coordinates:?}");
            }
            assert!(n_too_far(&map) == 0 && near.views()[0].shape.n_elems() < 1 << 31, "{near}");
            // Nothing but fill.
            let fill = narrowed(&View::pad(&[n].into(), &[(0, 9000)]), 0, n, 9000);
            let map = map.with_last(fill);
            assert!(n_too_far(&map) == 0 && near_numbers(&map).is_some_and(|near| near.at(&[7]).is_none()));
        }
    }
}
