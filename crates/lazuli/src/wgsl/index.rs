//! Where an access finds its elements, as WGSL over the coordinates of the index space. Arithmetic is u32 and wraps,
//! so that negative strides need nothing of their own. Knows index maps; nothing of memory or instructions.

use super::schedule::{self, VecLoad};
use super::shader::Shader;
use super::tree::{ShaderExpr, ShaderFn, ShaderType, Statement, call, word};
use crate::dtype::Lane;
use crate::kernel::{AccessForm, Args, Body, Order};
use crate::view::View;

/// Where in the index space instructions are evaluated: its coordinates.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The row-major number of the outer index, and of the inner one.
    pub outer: ShaderExpr,
    pub inner: ShaderExpr,
    /// The coordinates, outer then inner: for the first of four elements, or for each of the four.
    pub coordinates: Vec<Vec<ShaderExpr>>,
    /// Put after every name, to tell copies of unrolled code apart.
    pub suffix: String,
    /// The same for what the outer index decides.
    pub outer_suffix: String,
    /// Which row of a block of four it is.
    pub row: usize,
    /// Where inner elements are taken four at a time in several steps: how many fours this step is ahead of the first.
    pub ahead: Option<usize>,
}

impl Spot {
    /// An outer index without coordinates, whose names have this suffix.
    pub fn new(outer: ShaderExpr, suffix: &str) -> Spot {
        Spot {
            outer,
            inner: 0.into(),
            coordinates: vec![Vec::new()],
            suffix: suffix.to_string(),
            outer_suffix: suffix.to_string(),
            row: 0,
            ahead: None,
        }
    }
}

/// The element or elements an access gives.
#[derive(Clone, Debug)]
pub struct LoadedElems {
    pub at: At,
    /// Whether the indices are pairs: the index, and 1 if there is an element.
    pub masked: bool,
}

/// Indices.
#[derive(Clone, Debug)]
pub enum At {
    /// One for all.
    One(ShaderExpr),
    /// The first of four side by side, a multiple of four.
    Run(ShaderExpr),
    /// The same, counted in fours.
    Four(ShaderExpr),
    /// Four.
    Lanes([ShaderExpr; 4]),
    /// One row of a block that is turned: the first element of the block, a multiple of four, and how far the first
    /// elements of its columns are apart.
    Turned { first: ShaderExpr, step: ShaderExpr },
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
                self.offset(shader, access) + &spot.outer * n_inner
            }
            false if schedule::is_same_for_all(&self.args.accesses[access as usize], outer.end) => {
                self.offset(shader, access)
            }
            false => {
                let offset = self.offset(shader, access);
                self.sum(shader, access, offset, &spot.coordinates[0], outer)
            }
        };
        let base = shader.define(format!("base{access}{}", spot.outer_suffix), base);
        if spot.ahead.is_some() && self.counts_fours(access) {
            shader.define(format!("fours{access}{}", spot.outer_suffix), base >> 2);
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
        let rank = self.args.accesses[access as usize].shape().rank();
        let is_chain = matches!(self.body.accesses[access as usize], AccessForm::Chain { .. });
        let name = |letter: &str| format!("at{access}{letter}{}", spot.suffix);
        let index = |shader: &mut Shader, lane: usize, name: String| {
            let at = match is_chain {
                true => self.chain(shader, access, lane_coordinates(spot, lane, rank)),
                false => self.index(shader, access, spot, lane, rank),
            };
            shader.define(name, at)
        };
        let at = match mode {
            VecLoad::Transposed => {
                // The other rows are found where the first one is.
                let name = format!("at{access}");
                let first = if spot.row == 0 { index(shader, 0, name) } else { word(name) };
                At::Turned { first, step: self.stride(shader, access, rank - 1) }
            }
            VecLoad::Splat => At::One(index(shader, 0, name(""))),
            _ if is_chain => At::Lanes([0, 1, 2, 3].map(|k| index(shader, k, name(LETTERS[k])))),
            VecLoad::Contiguous => match spot.ahead.filter(|_| self.counts_fours(access)) {
                Some(ahead) => {
                    let suffix = &spot.outer_suffix;
                    let name = format!("four{access}{suffix}");
                    if ahead == 0 {
                        shader.define(&name, word(format!("fours{access}{suffix}")) + (&spot.inner >> 2));
                    }
                    At::Four(word(name).plus(ahead))
                }
                None => At::Run(index(shader, 0, name(""))),
            },
            VecLoad::Gathered => At::Lanes([0, 1, 2, 3].map(|k| index(shader, k, name(LETTERS[k])))),
            VecLoad::Strided => {
                let at = index(shader, 0, name(""));
                let step = self.step(shader, access);
                At::Lanes([0, 1, 2, 3].map(|k| match (k, &step) {
                    (0, _) | (_, None) => at.plus(k),
                    (1, Some(step)) => &at + step,
                    (_, Some(step)) => &at + ShaderExpr::from(k) * step,
                }))
            }
        };
        LoadedElems {
            at,
            masked: matches!(self.body.accesses[access as usize], AccessForm::Chain { masked: true, .. }),
        }
    }

    /// The index of one lane, for accesses by strides.
    fn index(&self, shader: &mut Shader, access: u16, spot: &Spot, lane: usize, rank: usize) -> ShaderExpr {
        let n_outer = self.args.outer.len();
        let start = match self.is_inner(access) {
            true => word(format!("base{access}{}", spot.outer_suffix)),
            false => self.offset(shader, access),
        };
        if rank == 0 {
            return start;
        }
        let coordinates = || lane_coordinates(spot, lane, rank);
        match (self.by_position(access), self.is_inner(access)) {
            (true, true) => start + &spot.inner,
            (true, false) => start + &spot.outer,
            (false, false) => self.sum(shader, access, start, &coordinates(), 0..n_outer),
            (false, true) => self.sum(shader, access, start, &coordinates(), n_outer..rank),
        }
    }

    /// Whether the row-major position is all it takes, without coordinates.
    fn by_position(&self, access: u16) -> bool {
        self.body.accesses[access as usize] == AccessForm::Linear
    }

    /// From one of four elements to the next; None if that is 1.
    fn step(&self, shader: &mut Shader, access: u16) -> Option<ShaderExpr> {
        let by_columns = self.is_inner(access) && self.body.order == Order::OuterFast;
        if self.by_position(access) && !by_columns {
            return None;
        }
        Some(self.stride(shader, access, self.four_axis(access)))
    }

    fn view(&self, access: u16) -> &View {
        self.args.accesses[access as usize].views().last().expect("never empty")
    }

    fn offset(&self, shader: &mut Shader, access: u16) -> ShaderExpr {
        let offset = shader.signed_param(&format!("a{access}_offset"), self.view(access).offset);
        self.moved(shader, access, offset)
    }

    /// An index, moved by the access's run-time offset if it has one.
    fn moved(&self, shader: &mut Shader, access: u16, index: ShaderExpr) -> ShaderExpr {
        let Some(idx) = self.body.offset_of(access) else { return index };
        let position = shader.constant(self.body.offsets[idx].constant);
        index + position * shader.signed_param(&format!("a{access}_by"), self.args.offsets[idx].stride)
    }

    /// The condition under which the positions of all run-time offsets are this launch's to serve; None if all are.
    pub fn is_served(&self, shader: &mut Shader) -> Option<ShaderExpr> {
        let partial = self.args.offsets.iter().enumerate().filter(|(_, numbers)| numbers.is_partial());
        let conditions: Vec<ShaderExpr> = partial
            .map(|(idx, numbers)| {
                let position = shader.constant(self.body.offsets[idx].constant);
                let (first, n) = numbers.served;
                let first = shader.param(&format!("first_position{idx}"), first);
                (position - first).less(shader.param(&format!("n_positions{idx}"), n))
            })
            .collect();
        super::tree::all(conditions)
    }

    fn stride(&self, shader: &mut Shader, access: u16, axis: usize) -> ShaderExpr {
        shader.signed_param(&format!("a{access}_stride{axis}"), self.view(access).strides[axis])
    }

    fn term(&self, shader: &mut Shader, access: u16, axis: usize, coordinate: &ShaderExpr) -> ShaderExpr {
        if self.modes[access as usize] == VecLoad::Contiguous && axis == self.four_axis(access) {
            return coordinate.clone();
        }
        coordinate * self.stride(shader, access, axis)
    }

    /// The axis along which four elements lie.
    fn four_axis(&self, access: u16) -> usize {
        match self.is_inner(access) && self.body.order == Order::OuterFast {
            true => self.args.outer.len() - 1,
            false => self.args.accesses[access as usize].shape().rank() - 1,
        }
    }

    /// `start`, and what the coordinates of these axes add to it.
    fn sum(
        &self,
        shader: &mut Shader,
        access: u16,
        start: ShaderExpr,
        coordinates: &[ShaderExpr],
        axes: std::ops::Range<usize>,
    ) -> ShaderExpr {
        axes.fold(start, |sum, axis| sum + self.term(shader, access, axis, &coordinates[axis]))
    }

    /// A call of the function that leads coordinates through a chain of views: the index, and 1 if there is an element.
    fn chain(&self, shader: &mut Shader, access: u16, at: Vec<ShaderExpr>) -> ShaderExpr {
        let map = &self.args.accesses[access as usize];
        let views = map.views();
        let rank = map.shape().rank();
        let mut body = Vec::new();
        let mut define = |name: String, value: ShaderExpr| {
            let ty = value.ty();
            body.push(Statement::Let(name.clone(), value));
            super::tree::named(name, ty)
        };
        let mut coordinates: Vec<ShaderExpr> = (0..rank).map(|axis| word(format!("c{axis}"))).collect();
        let mut index = word("i0");
        let mut inside: Vec<ShaderExpr> = Vec::new();
        for (v, view) in views.iter().enumerate().rev() {
            let mut number = |name: &str, axis: usize, value: isize| {
                shader.signed_param(&format!("a{access}_v{v}_{name}{axis}"), value)
            };
            let n_axes = view.shape.rank();
            if v + 1 < views.len() {
                // Counted row-major through this view's shape.
                coordinates = vec![index.clone(); n_axes];
                let mut rest = index;
                for axis in (1..n_axes).rev() {
                    let size = number("size", axis, view.shape[axis] as isize);
                    let both = define(format!("d{v}_{axis}"), divide(rest, size));
                    coordinates[axis] = define(format!("v{v}_{axis}"), both.component(1));
                    rest = both.component(0);
                }
                if n_axes > 0 {
                    coordinates[0] = define(format!("v{v}_0"), rest);
                }
            }
            if let Some(mask) = &view.mask {
                for axis in 0..n_axes {
                    let low = number("low", axis, mask[axis].0 as isize);
                    let n = number("n", axis, mask[axis].1 as isize - mask[axis].0 as isize);
                    inside.push((&coordinates[axis] - low).less(n));
                }
            }
            let mut sum = number("offset", 0, view.offset);
            for axis in 0..n_axes {
                sum = sum + &coordinates[axis] * number("stride", axis, view.strides[axis]);
            }
            if v == 0 {
                sum = self.moved(shader, access, sum);
            }
            index = define(format!("i{v}"), sum);
        }
        shader.functions(DIVIDE);
        let (one, pair) = (ShaderType::One(Lane::U32), ShaderType::Vec(2, Lane::U32));
        // Not `&&`, which is a branch each: a dozen accesses would be hundreds.
        let is_there = inside.into_iter().reduce(|all, one| all & one);
        let result = match map.is_masked() {
            true => pair.make([index, is_there.map_or(1.into(), |is_there| one.make([is_there]))]),
            false => index,
        };
        let (name, gives) = (format!("access{access}"), result.ty());
        body.push(Statement::Return(Some(result)));
        let arguments = (0..rank).map(|axis| (format!("c{axis}"), one)).collect();
        shader.function(ShaderFn { name: name.clone(), arguments, gives, body });
        call(name, at, gives)
    }
}

/// The coordinates of one of four elements.
fn lane_coordinates(spot: &Spot, lane: usize, rank: usize) -> Vec<ShaderExpr> {
    let lanes = &spot.coordinates;
    lanes[lane.min(lanes.len() - 1)].iter().take(rank).cloned().collect()
}

/// Writes the coordinates of a row-major position: `names` from the first axis to the last.
pub fn split(shader: &mut Shader, position: &ShaderExpr, names: &[String], sizes: &[ShaderExpr]) -> Vec<ShaderExpr> {
    shader.functions(DIVIDE);
    let mut rest = position.clone();
    let mut coordinates = vec![rest.clone(); names.len()];
    for axis in (1..names.len()).rev() {
        let both = shader.define(format!("split_{}", names[axis]), divide(rest, sizes[axis].clone()));
        coordinates[axis] = shader.define(&names[axis], both.component(1));
        rest = both.component(0);
    }
    if let Some(name) = names.first() {
        coordinates[0] = shader.define(name, rest);
    }
    coordinates
}

fn divide(x: ShaderExpr, by: ShaderExpr) -> ShaderExpr {
    call("divide", [x, by], ShaderType::Vec(2, Lane::U32))
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
