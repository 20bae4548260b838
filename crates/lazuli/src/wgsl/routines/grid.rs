//! A pass over a grid of invocations, cut into parts that bind no more windows than a kernel may. What an invocation
//! reaches goes by its coordinates; where it depends on data, each part serves some places and leaves the rest to
//! others. Knows sizes and strides; what invocations do is handed in.

use std::ops::Range;

use super::RoutineLaunch;
use crate::target::MAX_ELEMS;
use crate::wgsl::Pass;
use crate::wgsl::launch_memory::{LaunchMemory, StatusUse, Use};
use crate::wgsl::shader::Shader;
use crate::wgsl::tree::{ShaderExpr, ShaderFn, ShaderType, Statement, call, word};

/// An axis of a grid: what the coordinate is called, and its size.
pub type GridAxis = (&'static str, usize);

/// How the invocations of a grid reach a piece of memory.
pub struct GridAccess<'a> {
    memory: Use,
    /// The element from which on it is reached, per axis how far the next coordinate's is, and how many there are.
    first: isize,
    strides: Vec<usize>,
    len: usize,
    /// What coordinates of the first axis are counted as, if not as they are.
    counted: Option<Box<dyn Fn(usize) -> usize + 'a>>,
    /// How many places there are and how far they are apart, where it depends on data which one is reached.
    places: Option<(usize, usize)>,
}

impl<'a> GridAccess<'a> {
    /// One element: of `coordinates · strides`.
    pub fn at(memory: Use, strides: &[usize]) -> GridAccess<'a> {
        GridAccess { memory, first: 0, strides: strides.to_vec(), len: 1, counted: None, places: None }
    }

    /// The same so much further on.
    pub fn from(self, first: isize) -> GridAccess<'a> {
        GridAccess { first: self.first + first, ..self }
    }

    /// So many elements from there on.
    pub fn run(self, len: usize) -> GridAccess<'a> {
        GridAccess { len, ..self }
    }

    /// With coordinates of the first axis counted otherwise, in the same order.
    pub fn counted(self, by: impl Fn(usize) -> usize + 'a) -> GridAccess<'a> {
        GridAccess { counted: Some(Box::new(by)), ..self }
    }

    /// At one of so many places, which lie so far apart; which one depends on data. Invocations must ask
    /// `is_served(place)` before they touch it, and leave it to others if it is not.
    pub fn anywhere(self, n: usize, stride: usize) -> GridAccess<'a> {
        GridAccess { places: Some((n, stride)), ..self }
    }

    /// Where the first and the last element that a part reaches start, in bytes.
    fn bytes(&self, part: &GridPart) -> (usize, usize) {
        let size = self.memory.storage.unit_bytes();
        let last = (self.memory.size_bytes / size).saturating_sub(1) as isize;
        let (mut low, mut high) = (0, self.len - 1);
        for (idx, (axis, stride)) in part.axes.iter().zip(&self.strides).enumerate() {
            let by = self.counted.as_ref().filter(|_| idx == 0);
            let at = |coordinate: usize| by.map_or(coordinate, |by| by(coordinate)) * stride;
            (low, high) = (low + at(axis.start), high + at(axis.end - 1));
        }
        if let Some((_, stride)) = self.places {
            (low, high) = (low + part.index_range.start * stride, high + (part.index_range.end - 1) * stride);
        }
        // What lies beyond the ends is not there to be touched.
        let byte = |at: usize| (self.first + at as isize).clamp(0, last) as usize * size;
        (byte(low), byte(high))
    }
}

/// Some of the invocations of a grid, and the places that they serve.
#[derive(Clone)]
struct GridPart {
    axes: Vec<Range<usize>>,
    index_range: Range<usize>,
}

impl GridPart {
    fn n_invocations(&self) -> usize {
        self.axes.iter().map(Range::len).product()
    }

    /// What can be cut: each axis, and the places served.
    fn ranges(&self) -> impl Iterator<Item = &Range<usize>> {
        self.axes.iter().chain([&self.index_range])
    }

    /// Cut in two, at a power of two from the start: where windows end too.
    fn halves(&self, idx: usize) -> [GridPart; 2] {
        let [mut low, mut high] = [self.clone(), self.clone()];
        let cut = |low: &mut Range<usize>, high: &mut Range<usize>| {
            let middle = low.start + low.len().next_power_of_two() / 2;
            (low.end, high.start) = (middle, middle);
        };
        match idx < self.axes.len() {
            true => cut(&mut low.axes[idx], &mut high.axes[idx]),
            false => cut(&mut low.index_range, &mut high.index_range),
        }
        [low, high]
    }
}

impl RoutineLaunch<'_> {
    /// The passes of a grid whose invocations reach memory so; `write` says what each does. Its coordinates are named
    /// after the axes, the last of which is counted fastest.
    pub fn passes(
        &self,
        what: &str,
        axes: &[GridAxis],
        reaches: &[GridAccess],
        write: impl Fn(&mut Shader, &LaunchMemory),
    ) -> Vec<Pass> {
        self.grid(what, axes, reaches, false, write)
    }

    /// The same for invocations that may note a failed check.
    pub fn checked_passes(
        &self,
        what: &str,
        axes: &[GridAxis],
        reaches: &[GridAccess],
        write: impl Fn(&mut Shader, &LaunchMemory),
    ) -> Vec<Pass> {
        self.grid(what, axes, reaches, true, write)
    }

    fn grid(
        &self,
        what: &str,
        axes: &[GridAxis],
        reaches: &[GridAccess],
        with_status: bool,
        write: impl Fn(&mut Shader, &LaunchMemory),
    ) -> Vec<Pass> {
        let pass = |(part, memory): (GridPart, LaunchMemory)| {
            let name = self.routine.row.name;
            let group = self.schedule.group;
            let n = part.n_invocations();
            let mut shader = Shader::new(format!("{name}: {what}"), &[], group);
            let end = shader.param("n", n);
            let invocation = shader.count_groups() * group + word("lane");
            let i = shader.define("i", invocation);
            shader.return_if(i.at_least(end));
            coordinates(&mut shader, i, axes, &part);
            if reaches.iter().any(|reach| reach.places.is_some()) {
                serve(&mut shader, &part);
            }
            write(&mut shader, &memory);
            shader.finish(format!("{name} {what}"), &memory, n.div_ceil(group))
        };
        self.parts(axes, reaches, with_status).into_iter().map(pass).collect()
    }

    /// The parts of a grid. What cannot be cut any further is left to the device to refuse.
    fn parts(&self, axes: &[GridAxis], reaches: &[GridAccess], with_status: bool) -> Vec<(GridPart, LaunchMemory)> {
        let n_places = reaches.iter().find_map(|reach| reach.places).map_or(1, |places| places.0);
        if n_places == 0 || axes.iter().any(|axis| axis.1 == 0) {
            return Vec::new();
        }
        let mut parts = Vec::new();
        let mut stack = vec![GridPart { axes: axes.iter().map(|axis| 0..axis.1).collect(), index_range: 0..n_places }];
        while let Some(part) = stack.pop() {
            let takes = |part: &GridPart| {
                let memory = self.memory(reaches, part, with_status);
                (memory.n_too_far(), memory.n_bindings())
            };
            let fits = part.n_invocations() <= MAX_ELEMS && takes(&part) <= (0, self.target.max_bindings);
            let cuts = part.ranges().enumerate().filter(|(_, range)| !fits && range.len() > 1);
            let halves = cuts.map(|(idx, _)| part.halves(idx));
            match halves.min_by_key(|[low, high]| takes(low).max(takes(high))) {
                Some([low, high]) => stack.extend([high, low]),
                None => {
                    let memory = self.memory(reaches, &part, with_status);
                    parts.push((part, memory));
                }
            }
        }
        parts
    }

    /// The memory that a part reaches.
    fn memory(&self, reaches: &[GridAccess], part: &GridPart, with_status: bool) -> LaunchMemory {
        let one = |reach: &GridAccess| Use { touched: reach.bytes(part), ..reach.memory.clone() };
        let status = if with_status { StatusUse::Notes } else { StatusUse::None };
        LaunchMemory::new(&reaches.iter().map(one).collect::<Vec<Use>>(), status, self.target)
    }
}

/// Writes the function that says which places a part serves.
fn serve(shader: &mut Shader, part: &GridPart) {
    let first = shader.param("first_served", part.index_range.start);
    let n = shader.param("n_served", part.index_range.len());
    let place = word("place");
    shader.function(ShaderFn {
        name: "is_served".to_string(),
        arguments: vec![("place".to_string(), place.ty())],
        gives: ShaderType::Bool,
        body: vec![Statement::Return(Some((place - first).less(n)))],
    });
}

/// Whether this part serves a place.
pub fn is_served(place: &ShaderExpr) -> ShaderExpr {
    call("is_served", [place.clone()], ShaderType::Bool)
}

/// Writes the coordinates of invocation `i`.
fn coordinates(shader: &mut Shader, i: ShaderExpr, axes: &[GridAxis], part: &GridPart) {
    let mut rest = i;
    for (idx, (name, _)) in axes.iter().enumerate().rev() {
        let first = shader.param(&format!("first_{name}"), part.axes[idx].start);
        if idx == 0 {
            shader.define(*name, first + rest);
            break;
        }
        let n = shader.param(&format!("n_{name}"), part.axes[idx].len());
        shader.define(*name, first + &rest % &n);
        rest = shader.define(format!("i_{name}"), rest / n);
    }
}
