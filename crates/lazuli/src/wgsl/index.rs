//! Where an access finds its elements, as WGSL over the coordinates of the index space. Arithmetic is u32 and wraps,
//! so that negative strides need nothing of their own. Knows index maps; nothing of memory or instructions.

use super::memory::plus;
use super::schedule::{self, VecLoad};
use super::shader::Shader;
use crate::kernel::{AccessForm, Args, Body, Order};
use crate::view::View;

/// Where in the index space instructions are evaluated: names for the coordinates.
#[derive(Clone, Debug, Default)]
pub struct Spot {
    /// The row-major number of the outer index, and of the inner one.
    pub outer: String,
    pub inner: String,
    /// The coordinates, outer then inner: for the first of four elements, or for each of the four.
    pub coordinates: Vec<Vec<String>>,
    /// Put after every name, to tell copies of unrolled code apart.
    pub suffix: String,
    /// The same for what the outer index decides.
    pub outer_suffix: String,
    /// Which row of a block of four it is.
    pub row: usize,
    /// Where inner elements are taken four at a time in several steps: how many fours this step is ahead of the first.
    pub ahead: Option<usize>,
}

/// The element or elements an access gives.
#[derive(Clone, Debug)]
pub struct LoadedElems {
    pub at: At,
    /// Whether the indices are pairs: the index, and 1 if there is an element.
    pub masked: bool,
}

/// Indices, as expressions.
#[derive(Clone, Debug)]
pub enum At {
    /// One for all.
    One(String),
    /// The first of four side by side, a multiple of four.
    Run(String),
    /// The same, counted in fours.
    Four(String),
    /// Four.
    Lanes([String; 4]),
    /// One row of a block that is turned: the first element of the block, a multiple of four, and how far the first
    /// elements of its columns are apart.
    Turned { first: String, step: String },
}

/// The accesses of one launch.
#[derive(Clone, Copy)]
pub struct Accesses<'a> {
    pub body: &'a Body,
    pub args: &'a Args,
    pub modes: &'a [VecLoad],
    /// Per register, whether its value is kept.
    pub kept: &'a [bool],
}

/// Names of the four lanes.
const LETTERS: [&str; 4] = ["x", "y", "z", "w"];

impl Accesses<'_> {
    /// Whether it varies along inner axes.
    pub fn is_inner(&self, access: u16) -> bool {
        self.args.accesses[access as usize].shape().rank() > self.args.outer.len()
    }

    /// Writes the part of an inner access that the outer index decides, for `find` to start from.
    pub fn hoist(&self, shader: &mut Shader, access: u16, spot: &Spot) {
        let form = self.body.accesses[access as usize];
        if !self.is_inner(access) || matches!(form, AccessForm::Chain { .. }) {
            return;
        }
        let outer = 0..self.args.outer.len();
        let base = match self.by_position(access) {
            true if self.args.outer.is_empty() => self.offset(shader, access),
            true => {
                let n_inner = shader.param("n_inner", self.args.inner.iter().product());
                format!("{} + {} * {n_inner}", self.offset(shader, access), spot.outer)
            }
            false if schedule::is_same_for_all(&self.args.accesses[access as usize], outer.end) => {
                self.offset(shader, access)
            }
            false => self.sum(shader, access, &spot.coordinates[0], outer),
        };
        shader.line(format!("let base{access}{} = {base};", spot.outer_suffix));
        if spot.ahead.is_some() && self.counts_fours(access) {
            shader.line(format!("let fours{access}{0} = base{access}{0} >> 2u;", spot.outer_suffix));
        }
    }

    /// Whether an inner access goes through its row four by four, so that these can be counted instead of elements:
    /// drivers then see how one step follows another.
    fn counts_fours(&self, access: u16) -> bool {
        self.modes[access as usize] == VecLoad::Contiguous
            && self.is_inner(access)
            && self.body.order == Order::InnerFast
            && (self.by_position(access) || self.args.inner.len() == 1)
    }

    /// Writes where an access finds its elements.
    pub fn find(&self, shader: &mut Shader, access: u16, spot: &Spot) -> LoadedElems {
        let mode = self.modes[access as usize];
        let suffix = &spot.suffix;
        let rank = self.args.accesses[access as usize].shape().rank();
        if let AccessForm::Chain { masked, .. } = self.body.accesses[access as usize] {
            let function = self.chain(shader, access);
            let mut call = |lane: usize, name: String| {
                shader.line(format!("let {name} = {function}({});", lane_coordinates(spot, lane, rank).join(", ")));
                name
            };
            let at = match mode {
                VecLoad::Splat => At::One(call(0, format!("at{access}{suffix}"))),
                _ => At::Lanes([0, 1, 2, 3].map(|k| call(k, format!("at{access}{}{suffix}", LETTERS[k])))),
            };
            return LoadedElems { at, masked };
        }
        let first = |lane: usize, name: String, shader: &mut Shader| {
            let at = self.index(shader, access, spot, lane, rank);
            shader.line(format!("let {name} = {at};"));
            name
        };
        let name = format!("at{access}{suffix}");
        let at = match mode {
            VecLoad::Transposed => {
                // The other rows are found where the first one is.
                let name = format!("at{access}");
                let first = if spot.row == 0 { first(0, name, shader) } else { name };
                At::Turned { first, step: self.stride(shader, access, rank - 1) }
            }
            VecLoad::Splat => At::One(first(0, name, shader)),
            VecLoad::Contiguous => match spot.ahead.filter(|_| self.counts_fours(access)) {
                Some(ahead) => {
                    let suffix = &spot.outer_suffix;
                    let name = format!("four{access}{suffix}");
                    if ahead == 0 {
                        shader.line(format!("let {name} = fours{access}{suffix} + ({} >> 2u);", spot.inner));
                    }
                    At::Four(plus(&name, ahead))
                }
                None => At::Run(first(0, name, shader)),
            },
            VecLoad::Gathered => {
                At::Lanes([0, 1, 2, 3].map(|k| first(k, format!("at{access}{}{suffix}", LETTERS[k]), shader)))
            }
            VecLoad::Strided => {
                let at = first(0, name, shader);
                let step = self.step(shader, access);
                At::Lanes([0, 1, 2, 3].map(|k| match (k, &step) {
                    (0, _) => at.clone(),
                    (_, None) => plus(&at, k),
                    (1, Some(step)) => format!("{at} + {step}"),
                    (_, Some(step)) => format!("{at} + {k}u * {step}"),
                }))
            }
        };
        LoadedElems { at, masked: false }
    }

    /// The index of one lane, for accesses by strides.
    fn index(&self, shader: &mut Shader, access: u16, spot: &Spot, lane: usize, rank: usize) -> String {
        let n_outer = self.args.outer.len();
        let inner = self.is_inner(access);
        if rank == 0 {
            return self.offset(shader, access);
        }
        if self.by_position(access) {
            return match inner {
                true => format!("base{access}{} + {}", spot.outer_suffix, spot.inner),
                false => format!("{} + {}", self.offset(shader, access), spot.outer),
            };
        }
        let coordinates = lane_coordinates(spot, lane, rank);
        match inner {
            false => self.sum(shader, access, &coordinates, 0..n_outer),
            true => {
                let terms: Vec<String> =
                    (n_outer..rank).map(|axis| self.term(shader, access, axis, &coordinates[axis])).collect();
                format!("base{access}{} + {}", spot.outer_suffix, terms.join(" + "))
            }
        }
    }

    /// Whether the row-major position is all it takes, without coordinates.
    fn by_position(&self, access: u16) -> bool {
        self.body.accesses[access as usize] == AccessForm::Linear
    }

    /// From one of four elements to the next; None if that is 1.
    fn step(&self, shader: &mut Shader, access: u16) -> Option<String> {
        let by_columns = self.is_inner(access) && self.body.order == Order::OuterFast;
        if self.by_position(access) && !by_columns {
            return None;
        }
        Some(self.stride(shader, access, self.four_axis(access)))
    }

    fn view(&self, access: u16) -> &View {
        self.args.accesses[access as usize].views().last().expect("never empty")
    }

    fn offset(&self, shader: &mut Shader, access: u16) -> String {
        shader.signed_param(&format!("a{access}_offset"), self.view(access).offset)
    }

    fn stride(&self, shader: &mut Shader, access: u16, axis: usize) -> String {
        shader.signed_param(&format!("a{access}_stride{axis}"), self.view(access).strides[axis])
    }

    fn term(&self, shader: &mut Shader, access: u16, axis: usize, coordinate: &str) -> String {
        if self.modes[access as usize] == VecLoad::Contiguous && axis == self.four_axis(access) {
            return coordinate.to_string();
        }
        format!("{coordinate} * {}", self.stride(shader, access, axis))
    }

    /// The axis along which four elements lie.
    fn four_axis(&self, access: u16) -> usize {
        match self.is_inner(access) && self.body.order == Order::OuterFast {
            true => self.args.outer.len() - 1,
            false => self.args.accesses[access as usize].shape().rank() - 1,
        }
    }

    fn sum(&self, shader: &mut Shader, access: u16, coordinates: &[String], axes: std::ops::Range<usize>) -> String {
        let mut text = self.offset(shader, access);
        for axis in axes {
            text = format!("{text} + {}", self.term(shader, access, axis, &coordinates[axis]));
        }
        text
    }

    /// The function that leads coordinates through a chain of views; its name.
    fn chain(&self, shader: &mut Shader, access: u16) -> String {
        let map = &self.args.accesses[access as usize];
        let views = map.views();
        let rank = map.shape().rank();
        let mut lines: Vec<String> = Vec::new();
        let mut coordinates: Vec<String> = (0..rank).map(|axis| format!("c{axis}")).collect();
        let mut inside: Vec<String> = Vec::new();
        for (v, view) in views.iter().enumerate().rev() {
            let mut number = |name: &str, axis: usize, value: isize| {
                shader.signed_param(&format!("a{access}_v{v}_{name}{axis}"), value)
            };
            let n_axes = view.shape.rank();
            if v + 1 < views.len() {
                // Counted row-major through this view's shape.
                coordinates = (0..n_axes).map(|axis| format!("v{v}_{axis}")).collect();
                let mut rest = format!("i{}", v + 1);
                for axis in (0..n_axes).rev() {
                    if axis == 0 {
                        lines.push(format!("let v{v}_0 = {rest};"));
                        break;
                    }
                    let size = number("size", axis, view.shape[axis] as isize);
                    lines.push(format!("let d{v}_{axis} = divide({rest}, {size});"));
                    lines.push(format!("let v{v}_{axis} = d{v}_{axis}.y;"));
                    rest = format!("d{v}_{axis}.x");
                }
            }
            if let Some(mask) = &view.mask {
                for axis in 0..n_axes {
                    let low = number("low", axis, mask[axis].0 as isize);
                    let n = number("n", axis, mask[axis].1 as isize - mask[axis].0 as isize);
                    inside.push(format!("({} - {low} < {n})", coordinates[axis]));
                }
            }
            let mut at = number("offset", 0, view.offset);
            for axis in 0..n_axes {
                at = format!("{at} + {} * {}", coordinates[axis], number("stride", axis, view.strides[axis]));
            }
            lines.push(format!("let i{v} = {at};"));
        }
        shader.functions(DIVIDE);
        let masked = map.is_masked();
        let (gives, result) = match masked {
            true if inside.is_empty() => ("vec2<u32>", "vec2<u32>(i0, 1u)".to_string()),
            // Not `&&`, which is a branch each: a dozen accesses would be hundreds.
            true => ("vec2<u32>", format!("vec2<u32>(i0, u32({}))", inside.join(" & "))),
            false => ("u32", "i0".to_string()),
        };
        let name = format!("access{access}");
        let arguments: Vec<String> = (0..rank).map(|axis| format!("c{axis}: u32")).collect();
        shader.functions(&format!(
            "fn {name}({}) -> {gives} {{\n    {}\n    return {result};\n}}\n",
            arguments.join(", "),
            lines.join("\n    ")
        ));
        name
    }
}

/// The coordinates of one of four elements.
fn lane_coordinates(spot: &Spot, lane: usize, rank: usize) -> Vec<String> {
    let lanes = &spot.coordinates;
    lanes[lane.min(lanes.len() - 1)].iter().take(rank).cloned().collect()
}

/// Writes the coordinates of a row-major position: `names` from the first axis to the last.
pub fn split(shader: &mut Shader, position: &str, names: &[String], sizes: &[String]) {
    if let [only] = names {
        shader.line(format!("let {only} = {position};"));
    }
    shader.functions(DIVIDE);
    let mut rest = position.to_string();
    for axis in (1..names.len()).rev() {
        let both = format!("split_{}", names[axis]);
        shader.line(format!("let {both} = divide({rest}, {});", sizes[axis]));
        shader.line(format!("let {} = {both}.y;", names[axis]));
        rest = format!("{both}.x");
    }
    if names.len() > 1 {
        shader.line(format!("let {} = {rest};", names[0]));
    }
}

/// Quotient and rest without a division of integers, which few devices have. The float quotient is off by at most
/// 2¹¹/by + 1, the quotient of what it leaves over by at most one. For numbers below 2³¹; signed, because few devices
/// turn unsigned integers into floats either.
pub const DIVIDE: &str = "\
fn divide(x: u32, by: u32) -> vec2<u32> {
    let n = bitcast<i32>(x);
    let d = bitcast<i32>(by);
    let inverse = 1.0 / f32(d);
    let rough = i32(f32(n) * inverse);
    let near = rough + i32(floor(f32(n - rough * d) * inverse));
    let rest = n - near * d;
    let off = select(0i, 1i, rest >= d) - select(0i, 1i, rest < 0i);
    return vec2<u32>(bitcast<u32>(near + off), bitcast<u32>(rest - off * d));
}
";
