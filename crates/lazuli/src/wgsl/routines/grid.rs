//! A pass over a grid of invocations, cut into parts that bind no more windows than a kernel may. What an invocation
//! reaches goes by its coordinates; where it depends on data, each part serves some windows and leaves the rest to
//! others. Knows sizes and strides; what invocations do is handed in.

use std::ops::Range;

use super::Job;
use crate::wgsl::Pass;
use crate::wgsl::cut::MAX_ELEMS;
use crate::wgsl::memory::{Memory, Use};
use crate::wgsl::shader::Shader;

/// Invocations of a workgroup.
const GROUP: usize = 64;

/// An axis of a grid: what the coordinate is called, and its size.
pub type Axis = (&'static str, usize);

/// How the invocations of a grid reach a piece of memory.
pub struct Reach {
    memory: Use,
    ways: Vec<Way>,
    /// Whether only what `is_served` says is reached, so that parts may take some of it each.
    served: bool,
}

/// `len` elements from `first + Σ coordinate · stride` on.
#[derive(Clone)]
struct Way {
    first: isize,
    strides: Vec<usize>,
    len: usize,
}

impl Reach {
    /// One element: of `coordinates · strides`.
    pub fn at(memory: Use, strides: &[usize]) -> Reach {
        Reach { memory, ways: vec![Way { first: 0, strides: strides.to_vec(), len: 1 }], served: false }
    }

    /// The same so much further on.
    pub fn from(mut self, first: isize) -> Reach {
        self.ways.iter_mut().for_each(|way| way.first += first);
        self
    }

    /// So many elements from there on.
    pub fn run(mut self, len: usize) -> Reach {
        self.ways.iter_mut().for_each(|way| way.len = len);
        self
    }

    /// The same, and as much again so much further on.
    pub fn and_from(mut self, further: usize) -> Reach {
        let again = |way: &Way| Way { first: way.first + further as isize, ..way.clone() };
        self.ways.extend(self.ways.iter().map(again).collect::<Vec<_>>());
        self
    }

    /// Any one of these elements: which, depends on data. Invocations must ask `is_served(element)` before they touch
    /// it, and leave it alone if it is not.
    pub fn anywhere(self) -> Reach {
        Reach { served: true, ..self }
    }

    /// Where the first and the last element start, in bytes, of each way that a part reaches; none if it serves nothing.
    fn bytes(&self, part: &Part, window_bytes: usize) -> Vec<(usize, usize)> {
        let size = self.memory.dtype.size();
        let last = (self.memory.size_bytes / size).saturating_sub(1);
        let per_window = window_bytes / size;
        let range = |way: &Way| {
            let axes = || part.axes.iter().zip(&way.strides);
            let from = way.first + axes().map(|(axis, stride)| axis.start * stride).sum::<usize>() as isize;
            let to =
                from + (axes().map(|(axis, stride)| (axis.len() - 1) * stride).sum::<usize>() + way.len - 1) as isize;
            // What lies beyond the ends is not there to be touched.
            let (from, to) = (from.clamp(0, last as isize) as usize, to.clamp(0, last as isize) as usize);
            let (from, to) = match self.served {
                true => (from.max(part.windows.start * per_window), to.min(part.windows.end * per_window - 1)),
                false => (from, to),
            };
            (from <= to).then_some((from * size, to * size))
        };
        self.ways.iter().filter_map(range).collect()
    }
}

/// Some of the invocations of a grid, and the windows that they serve.
#[derive(Clone)]
struct Part {
    axes: Vec<Range<usize>>,
    windows: Range<usize>,
}

impl Part {
    fn n_invocations(&self) -> usize {
        self.axes.iter().map(Range::len).product()
    }

    /// What can be cut: each axis, and the windows served.
    fn ranges(&self) -> impl Iterator<Item = &Range<usize>> {
        self.axes.iter().chain([&self.windows])
    }

    /// Cut in two, at a power of two from the start: where windows end too.
    fn halves(&self, idx: usize) -> [Part; 2] {
        let [mut low, mut high] = [self.clone(), self.clone()];
        let cut = |low: &mut Range<usize>, high: &mut Range<usize>| {
            let middle = low.start + low.len().next_power_of_two() / 2;
            (low.end, high.start) = (middle, middle);
        };
        match idx < self.axes.len() {
            true => cut(&mut low.axes[idx], &mut high.axes[idx]),
            false => cut(&mut low.windows, &mut high.windows),
        }
        [low, high]
    }
}

impl Job<'_> {
    /// The passes of a grid whose invocations reach memory so; `write` says what each does. Its coordinates are named
    /// after the axes, the last of which is counted fastest.
    pub fn passes(
        &self,
        what: &str,
        axes: &[Axis],
        reaches: &[Reach],
        write: impl Fn(&mut Shader, &Memory),
    ) -> Vec<Pass> {
        self.grid(what, axes, reaches, false, write)
    }

    /// The same for invocations that may note a failed check.
    pub fn checked_passes(
        &self,
        what: &str,
        axes: &[Axis],
        reaches: &[Reach],
        write: impl Fn(&mut Shader, &Memory),
    ) -> Vec<Pass> {
        self.grid(what, axes, reaches, true, write)
    }

    fn grid(
        &self,
        what: &str,
        axes: &[Axis],
        reaches: &[Reach],
        with_status: bool,
        write: impl Fn(&mut Shader, &Memory),
    ) -> Vec<Pass> {
        let pass = |(part, memory): (Part, Memory)| {
            let name = self.routine.row.name;
            let group = GROUP.min(self.caps.max_invocations);
            let n = part.n_invocations();
            let mut shader = Shader::new(format!("{name}: {what}"), &[], group);
            let end = shader.param("n", n);
            shader.count_groups();
            shader.line(format!("let i = group_idx * {group}u + lane;"));
            shader.line(format!("if (i >= {end}) {{ return; }}"));
            coordinates(&mut shader, axes, &part);
            self.serve(&mut shader, reaches, &part);
            write(&mut shader, &memory);
            shader.finish(format!("{name} {what}"), &memory, n.div_ceil(group))
        };
        self.parts(axes, reaches, with_status).into_iter().map(pass).collect()
    }

    /// The parts of a grid. What cannot be cut any further is left to the device to refuse.
    fn parts(&self, axes: &[Axis], reaches: &[Reach], with_status: bool) -> Vec<(Part, Memory)> {
        let windows = |reach: &Reach| reach.memory.size_bytes.div_ceil(self.caps.max_binding_bytes);
        let n_windows = reaches.iter().filter(|reach| reach.served).map(windows).max().unwrap_or(1);
        let mut parts = Vec::new();
        let mut stack = vec![Part { axes: axes.iter().map(|axis| 0..axis.1).collect(), windows: 0..n_windows }];
        while let Some(part) = stack.pop() {
            if part.n_invocations() == 0 {
                continue;
            }
            let Some(memory) = self.memory(reaches, &part, with_status) else { continue };
            let takes = |memory: &Memory| (memory.n_too_far(), memory.n_bindings());
            let half_takes = |half: &Part| self.memory(reaches, half, with_status).as_ref().map(takes);
            let fits = part.n_invocations() <= MAX_ELEMS && takes(&memory) <= (0, self.caps.max_bindings);
            let cuts = part.ranges().enumerate().filter(|(_, range)| !fits && range.len() > 1);
            let halves = cuts.map(|(idx, _)| part.halves(idx));
            match halves.min_by_key(|[low, high]| half_takes(low).max(half_takes(high))) {
                Some([low, high]) => stack.extend([high, low]),
                None => parts.push((part, memory)),
            }
        }
        parts
    }

    /// The memory that a part reaches; None if it serves nothing.
    fn memory(&self, reaches: &[Reach], part: &Part, with_status: bool) -> Option<Memory> {
        let ranges: Vec<Vec<(usize, usize)>> =
            reaches.iter().map(|reach| reach.bytes(part, self.caps.max_binding_bytes)).collect();
        let one = |(reach, ranges): (&Reach, &Vec<(usize, usize)>)| {
            let touched = (ranges.iter().map(|range| range.0).min()?, ranges.iter().map(|range| range.1).max()?);
            Some(Use { touched, ..reach.memory.clone() })
        };
        let uses: Option<Vec<Use>> = reaches.iter().zip(&ranges).map(one).collect();
        let mut memory = Memory::new(&uses?, with_status, self.caps);
        ranges.iter().enumerate().for_each(|(idx, ranges)| memory.leave_out_all_but(idx, ranges));
        Some(memory)
    }

    /// Writes the function that says what a part serves.
    fn serve(&self, shader: &mut Shader, reaches: &[Reach], part: &Part) {
        for reach in reaches.iter().filter(|reach| reach.served) {
            let size = reach.memory.dtype.size();
            let Some((first, last)) = reach.bytes(part, self.caps.max_binding_bytes).first().copied() else { continue };
            let first_served = shader.param("first_served", first / size);
            let n_served = shader.param("n_served", (last - first) / size + 1);
            shader.functions(&format!(
                "fn is_served(element: u32) -> bool {{ return element - {first_served} < {n_served}; }}\n"
            ));
        }
    }
}

/// Writes the coordinates of invocation `i`.
fn coordinates(shader: &mut Shader, axes: &[Axis], part: &Part) {
    let mut rest = "i".to_string();
    for (idx, (name, _)) in axes.iter().enumerate().rev() {
        let first = shader.param(&format!("first_{name}"), part.axes[idx].start);
        if idx == 0 {
            shader.line(format!("let {name} = {first} + {rest};"));
            break;
        }
        let n = shader.param(&format!("n_{name}"), part.axes[idx].len());
        shader.line(format!("let {name} = {first} + {rest} % {n};"));
        shader.line(format!("let i_{name} = {rest} / {n};"));
        rest = format!("i_{name}");
    }
}
