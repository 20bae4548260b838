//! Elementwise ops: the rows of the table, and what is written with them.

use std::rc::Rc;
use std::sync::Arc;

use lazuli::ops::Takes;
use lazuli::{CustomOp, DType, Device, Tensor};

use crate::array::{self, Array};
use crate::cell::{Cell, rounded};
use crate::leaf::DTYPES;
use crate::methods::{BINARY, SHAPED, UNARY, call_binary, call_shaped, call_unary};
use crate::program::{Op, Table};
use crate::row;

/// A number written into an op. Only its kind has a say in the dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Bool(bool),
    Int(i64),
    Float(f32),
}

/// An elementwise op.
#[derive(Clone, Debug)]
pub enum Map {
    Unary(&'static str),
    Binary(&'static str),
    /// With a number on the right.
    Right(&'static str, Number),
    /// With a number on the left.
    Left(&'static str, Number),
    /// A condition, then each side a tensor or a number.
    Select(Option<Number>, Option<Number>),
    Clamp(Number, Number),
    /// An activation with a parameter.
    Shaped(&'static str, f32),
    Cast(DType),
    /// `3·x − y`, as a user's own op.
    Custom,
    /// The first, unless the evaluation fails: then the second.
    Kept,
}

/// Operators whose left side may be a number.
macro_rules! operators {
    ($($name:ident $op:tt),*) => {
        const OPERATORS: &[(&str, &str)] = &[$((stringify!($name), stringify!($op))),*];
        fn call_left(name: &str, x: Number, y: &Tensor) -> Tensor {
            match (name, x) {
                $((stringify!($name), Number::Bool(x)) => x $op y,
                (stringify!($name), Number::Int(x)) => (x as i32) $op y,
                (stringify!($name), Number::Float(x)) => x $op y,)*
                _ => unreachable!("{name} is not drawn"),
            }
        }
    };
}
operators!(add +, sub -, mul *, div /, rem %, bit_and &, bit_or |, bit_xor ^, shl <<, shr >>);

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Bool(v) => v as u8 as f64,
            Number::Int(v) => v as f64,
            Number::Float(v) => v as f64,
        }
    }

    fn text(self) -> String {
        match self {
            Number::Bool(v) => v.to_string(),
            Number::Int(v) => format!("{v}i64"),
            Number::Float(v) => crate::leaf::literal(v as f64, DType::F32),
        }
    }

    /// The dtype it has by itself.
    fn dtype(self) -> DType {
        match self {
            Number::Bool(_) => DType::Bool,
            Number::Int(_) => DType::I32,
            Number::Float(_) => DType::F32,
        }
    }

    /// The dtype it meets a tensor's in: the tensor's, unless the number is of a higher kind.
    fn meet(self, dtype: DType) -> DType {
        let kind = |d: DType| if d.is_float() { 2 } else { d.is_int() as u8 };
        if kind(self.dtype()) > kind(dtype) { self.dtype() } else { dtype }
    }
}

impl From<Number> for lazuli::ops::Operand {
    fn from(number: Number) -> lazuli::ops::Operand {
        match number {
            Number::Bool(v) => v.into(),
            Number::Int(v) => v.into(),
            Number::Float(v) => v.into(),
        }
    }
}

/// A side of an op.
#[derive(Clone, Copy)]
pub enum Side<'a> {
    Array(&'a Array),
    Number(Number),
}

impl<'a> From<&'a Array> for Side<'a> {
    fn from(array: &'a Array) -> Side<'a> {
        Side::Array(array)
    }
}

impl From<f32> for Side<'_> {
    fn from(value: f32) -> Self {
        Side::Number(Number::Float(value))
    }
}

impl From<i64> for Side<'_> {
    fn from(value: i64) -> Self {
        Side::Number(Number::Int(value))
    }
}

/// The dtype two tensors meet in: an integer and a float give that float, f16 and bf16 give f32.
pub fn promote(a: DType, b: DType) -> DType {
    let order = [DType::Bool, DType::U8, DType::U32, DType::I32, DType::F16, DType::BF16, DType::F32];
    let rank = |d: DType| order.iter().position(|o| *o == d);
    match (a, b) {
        (DType::F16, DType::BF16) | (DType::BF16, DType::F16) => DType::F32,
        _ if rank(a) > rank(b) => a,
        _ => b,
    }
}

impl Side<'_> {
    /// What sides meet in.
    fn meet(sides: &[Side]) -> (Vec<usize>, DType) {
        let arrays: Vec<&Array> =
            sides.iter().filter_map(|s| if let Side::Array(a) = s { Some(*a) } else { None }).collect();
        let shape = arrays.iter().fold(Vec::new(), |s, a| array::broadcast(&s, &a.shape).expect("drawn to broadcast"));
        let mut dtype = arrays.iter().map(|a| a.dtype).reduce(promote).unwrap_or(DType::Bool);
        for side in sides {
            if let Side::Number(number) = side {
                dtype = number.meet(dtype);
            }
        }
        (shape, dtype)
    }

    /// As an array of what was met in.
    fn fit(self, shape: &[usize], dtype: DType) -> Array {
        match self {
            Side::Array(array) => array.cast(dtype).broadcast(shape),
            Side::Number(number) => Array::full(shape.to_vec(), dtype, constant(number.value(), dtype)),
        }
    }
}

/// A number as an element of a dtype.
fn constant(value: f64, dtype: DType) -> Cell {
    Cell::point(match dtype {
        DType::F32 | DType::F16 | DType::BF16 => rounded(value, dtype),
        DType::Bool => (value != 0.0) as u8 as f64,
        _ => value.trunc(),
    })
}

/// A row of the table on whole arrays.
pub fn binary<'a>(name: &str, x: impl Into<Side<'a>>, y: impl Into<Side<'a>>) -> Array {
    let (row, sides) = (row::binary_row(name), [x.into(), y.into()]);
    let (shape, dtype) = Side::meet(&sides);
    let dtype = row.takes.cast(dtype).expect("drawn to be taken");
    let [x, y] = sides.map(|s| s.fit(&shape, dtype));
    let cells = x.cells.iter().zip(&y.cells).map(|(x, y)| row::binary(row, *x, *y, dtype)).collect();
    Array::new(shape, row.gives.dtype(dtype), cells)
}

/// As [`binary`], with one.
pub fn unary(name: &str, x: &Array) -> Array {
    let row = row::unary_row(name);
    let dtype = row.takes.cast(x.dtype).expect("drawn to be taken");
    x.cast(dtype).map(row.gives.dtype(dtype), |c| row::unary(row, c, dtype))
}

/// `cond ? a : b`.
pub fn select<'a>(cond: &Array, a: impl Into<Side<'a>>, b: impl Into<Side<'a>>) -> Array {
    let (a, b) = (a.into(), b.into());
    let cond = cond.cast(DType::Bool);
    let (shape, mut dtype) = Side::meet(&[Side::Array(&cond), a, b]);
    if let (Side::Number(a), Side::Number(b)) = (a, b) {
        // Numbers alone are of their own kind.
        dtype = b.meet(a.dtype());
    }
    let (cond, a, b) = (cond.broadcast(&shape), a.fit(&shape, dtype), b.fit(&shape, dtype));
    let choose = |i: usize| match cond.cells[i].truth() {
        Some(true) => a.cells[i],
        Some(false) => b.cells[i],
        None => a.cells[i].or(b.cells[i]),
    };
    let cells = (0..cond.n_elems()).map(choose).collect();
    Array::new(shape, dtype, cells)
}

/// `x·x`, which is never negative.
pub fn square(x: &Array) -> Array {
    let x = x.cast(if x.dtype == DType::Bool { DType::I32 } else { x.dtype });
    if !x.dtype.is_float() {
        return binary("mul", &x, &x);
    }
    x.map(x.dtype, |c| c.abs().rising(|v| v * v).erred(0.5).kept(x.dtype))
}

fn to_float(x: &Array) -> Array {
    x.cast(if x.dtype.is_float() { x.dtype } else { DType::F32 })
}

/// Ops that have no row, in terms of those that have one.
fn composed(name: &str, x: &Array) -> Array {
    let below_zero = || binary("lt", x, 0);
    // −|x|
    let falling = || unary("neg", &unary("abs", x));
    match name {
        "bit_not" if x.dtype == DType::Bool => unary("logical_not", x),
        "square" => square(x),
        "is_finite" => {
            let cell = |c: Cell| match (c.is_nan(), c.nan, c.magnitude() < f64::INFINITY) {
                (true, ..) => Cell::point(0.0),
                (_, false, true) => Cell::point(1.0),
                (_, false, false) if c.value().is_some() => Cell::point(0.0),
                _ => Cell::any(DType::Bool),
            };
            x.map(DType::Bool, cell)
        }
        "relu" => binary("maximum", x, 0),
        "softplus" => binary("add", &binary("maximum", x, 0), &unary("log1p", &unary("exp", &falling()))),
        "sigmoid" => {
            let e = unary("exp", &falling());
            binary("div", &select(&below_zero(), &e, 1), &binary("add", &e, 1))
        }
        "silu" | "swish" => gated(x, &|x| times_logistic(x, x)),
        "gelu" => gated(x, &|x| {
            let erfc = unary("erfc", &binary("mul", x, -std::f32::consts::FRAC_1_SQRT_2));
            binary("mul", &binary("mul", x, 0.5), &erfc)
        }),
        "gelu_tanh" => gated(x, &|x| {
            // 2·√(2/π); each number is rounded to f32 once.
            let c = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
            let inner = binary("add", &binary("mul", &square(x), (0.044715 * c) as f32), c as f32);
            times_logistic(x, &binary("mul", &inner, x))
        }),
        "hardswish" => {
            let gate = binary("minimum", &binary("maximum", &binary("add", x, 3), 0), 6);
            binary("mul", x, &binary("div", &gate, 6))
        }
        "zeros_like" => x.map(x.dtype, |_| Cell::point(0.0)),
        "ones_like" => x.map(x.dtype, |_| Cell::point(1.0)),
        "detach" | "tracked" => x.clone(),
        _ => unreachable!("{name} is not drawn"),
    }
}

/// `x · σ(z)`: with e = e^−|z|, x/(1 + e), or x·e/(1 + e) where z is negative. Below −64 the exponential is two factors.
fn times_logistic(x: &Array, z: &Array) -> Array {
    let falling = unary("neg", &unary("abs", z));
    let is_far = binary("lt", &falling, -64);
    let e = unary("exp", &select(&is_far, &binary("add", &falling, 32), &falling));
    let scale = select(&is_far, (-32f64).exp() as f32, 1.0);
    let product = binary("mul", &binary("mul", x, &e), &scale);
    let gated = select(&binary("lt", z, 0), &product, x);
    binary("div", &gated, &binary("add", &binary("mul", &e, &scale), 1))
}

/// A number times what goes from 0 to 1: far from zero it is the number itself or 0.
fn gated(x: &Array, near: &dyn Fn(&Array) -> Array) -> Array {
    let is_far = binary("gt", &unary("abs", x), 110);
    let far = select(&binary("gt", x, 0), x, -0.0);
    select(&is_far, &far, &near(&select(&is_far, 0, x)))
}

/// Whether a unary method is a row of the table.
pub fn has_row(name: &str) -> bool {
    row::table().unary.iter().any(|row| row.name == name)
}

/// Activations are functions of reals: integers become floats first. (A relu of integers is one of integers.)
const OF_REALS: [&str; 7] = ["softplus", "sigmoid", "silu", "swish", "gelu", "gelu_tanh", "hardswish"];

impl Op for Map {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let x = inputs[0];
        let side = |at: &mut usize, number: &Option<Number>| match number {
            Some(number) => Side::Number(*number),
            None => {
                *at += 1;
                Side::Array(inputs[*at])
            }
        };
        match self {
            Map::Unary(name) if OF_REALS.contains(name) => composed(name, &x.cast(DType::F32)).cast(to_float(x).dtype),
            Map::Unary(name) if has_row(name) && !(*name == "bit_not" && x.dtype == DType::Bool) => unary(name, x),
            Map::Unary(name) => composed(name, x),
            Map::Binary(name) => binary(name, x, inputs[1]),
            Map::Right(name, number) => binary(name, x, Side::Number(*number)),
            Map::Left(name, number) => binary(name, Side::Number(*number), x),
            Map::Select(a, b) => {
                let mut at = 0;
                let (a, b) = (side(&mut at, a), side(&mut at, b));
                select(x, a, b)
            }
            Map::Clamp(low, high) => binary("minimum", &binary("maximum", x, Side::Number(*low)), Side::Number(*high)),
            Map::Shaped(name, parameter) => {
                // In f32, and rounded once.
                let x = &x.cast(DType::F32);
                let below = match *name {
                    "leaky_relu" => binary("mul", x, *parameter),
                    _ => binary("mul", &unary("expm1", &binary("minimum", x, 0)), *parameter),
                };
                select(&binary("gt", x, 0), x, &below).cast(to_float(inputs[0]).dtype)
            }
            Map::Cast(dtype) => x.cast(*dtype),
            Map::Kept => x.clone(),
            Map::Custom => {
                let (x, y) = (x.cast(DType::F32), inputs[1].cast(DType::F32));
                binary("sub", &binary("mul", &x, 3.0), &y)
            }
        }
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let x = inputs[0];
        match self {
            Map::Unary(name) => call_unary(name, x),
            Map::Binary(name) => call_binary(name, x, inputs[1]),
            Map::Right(name, number) => call_binary(name, x, *number),
            Map::Left(name, number) => call_left(name, *number, x),
            Map::Select(None, None) => x.select(inputs[1], inputs[2]),
            Map::Select(Some(a), None) => x.select(*a, inputs[1]),
            Map::Select(None, Some(b)) => x.select(inputs[1], *b),
            Map::Select(Some(a), Some(b)) => x.select(*a, *b),
            Map::Clamp(low, high) => x.clamp(*low, *high),
            Map::Shaped(name, parameter) => call_shaped(name, x, *parameter),
            Map::Cast(dtype) => x.to_dtype(*dtype),
            Map::Kept => x.unless_failed(inputs[1]),
            Map::Custom => {
                let op = CustomOp {
                    name: "three_less".into(),
                    wgsl: "($0 * 3.0 - $1)".into(),
                    cpu: Arc::new(|x| x[0] * 3.0 - x[1]),
                    grad: None,
                };
                Tensor::map_custom(&op, inputs)
            }
        }
    }

    fn text(&self, inputs: &[&str]) -> String {
        let x = inputs[0];
        let mut others = inputs[1..].iter();
        let mut side = |number: &Option<Number>| match number {
            Some(number) => number.text(),
            None => format!("&{}", others.next().expect("an input per tensor")),
        };
        match self {
            Map::Unary(name) => format!("{x}.{name}()"),
            Map::Binary(name) => format!("{x}.{name}(&{})", inputs[1]),
            Map::Right(name, number) => format!("{x}.{name}({})", number.text()),
            Map::Left(name, number) => {
                let op = OPERATORS.iter().find(|o| o.0 == *name).expect("is an operator").1;
                format!("{} {op} &{x}", number.text().replace("i64", "i32"))
            }
            Map::Select(a, b) => {
                let (a, b) = (side(a), side(b));
                format!("{x}.select({a}, {b})")
            }
            Map::Clamp(low, high) => format!("{x}.clamp({}, {})", low.text(), high.text()),
            Map::Shaped(name, parameter) => format!("{x}.{name}({parameter:?})"),
            Map::Cast(dtype) => format!("{x}.to_dtype(DType::{dtype:?})"),
            Map::Kept => format!("{x}.unless_failed(&{})", inputs[1]),
            Map::Custom => format!(
                "Tensor::map_custom(&CustomOp {{ name: \"three_less\".into(), wgsl: String::new(), \
                 cpu: std::sync::Arc::new(|x| x[0] * 3.0 - x[1]), grad: None }}, &[&{x}, &{}])",
                inputs[1]
            ),
        }
    }

    fn mutant(&self) -> Option<Rc<dyn Op>> {
        let pairs = [
            ("add", "sub"),
            ("sub", "add"),
            ("mul", "add"),
            ("lt", "le"),
            ("ge", "gt"),
            ("maximum", "minimum"),
            ("minimum", "maximum"),
            ("exp", "exp2"),
            ("sin", "cos"),
            ("tanh", "atan"),
            ("abs", "neg"),
            ("floor", "round"),
            ("sigmoid", "softplus"),
            ("silu", "gelu"),
            ("gelu", "gelu_tanh"),
        ];
        let other = |name: &str| pairs.iter().find(|p| p.0 == name).map(|p| p.1);
        Some(match self {
            Map::Unary(name) => Rc::new(Map::Unary(other(name)?)),
            Map::Binary(name) => Rc::new(Map::Binary(other(name)?)),
            Map::Right(name, number) => Rc::new(Map::Right(other(name)?, *number)),
            Map::Shaped(name, parameter) => Rc::new(Map::Shaped(name, parameter * 1.01)),
            _ => return None,
        })
    }
}

/// A number for an op on this dtype.
fn number(table: &mut Table, dtype: DType, whole: bool) -> Number {
    let unsigned = matches!(dtype, DType::U32 | DType::U8);
    match table.dice.below(8) {
        0..4 if !whole => Number::Float(table.dice.pick(&[0.5, 2.0, -1.5, 3.25, 0.1, -0.25, 1e-3, 100.0])),
        7 if !whole => Number::Bool(table.dice.below(2) == 1),
        _ if unsigned => Number::Int(table.dice.pick(&[1, 2, 0, 3, 7, 100, 255])),
        _ => Number::Int(table.dice.pick(&[1, 2, 0, 3, -1, 7, -2, 100])),
    }
}

/// Which dtypes an op of this kind can be given.
fn taken(takes: Takes) -> Vec<DType> {
    DTYPES.into_iter().filter(|d| takes.cast(*d).is_some()).collect()
}

pub fn draw(table: &mut Table) -> Option<usize> {
    match table.dice.below(20) {
        ..7 => {
            let name = table.dice.pick(UNARY);
            let takes = if name == "bit_not" { Takes::Bits } else { Takes::Any };
            let x = table.node_where(|a| takes.cast(a.dtype).is_some())?;
            table.push_if_known(Map::Unary(name), vec![x])
        }
        7..12 => {
            let name = table.dice.pick(BINARY);
            let dtypes = taken(row::binary_row(name).takes);
            let x = table.node_where(|a| dtypes.contains(&a.dtype))?;
            let y = table.partner(x, &dtypes);
            let inputs = if table.dice.below(2) == 0 { vec![x, y] } else { vec![y, x] };
            table.push_if_known(Map::Binary(name), inputs)
        }
        12..15 => {
            let left = table.dice.once_in(3);
            let name = if left { table.dice.pick(OPERATORS).0 } else { table.dice.pick(BINARY) };
            let takes = row::binary_row(name).takes;
            let x = table.node_where(|a| takes.cast(a.dtype).is_some())?;
            let number = number(table, table.array(x).dtype, matches!(takes, Takes::Int | Takes::Bits));
            let op = if left { Map::Left(name, number) } else { Map::Right(name, number) };
            table.push_if_known(op, vec![x])
        }
        15 | 16 => {
            let a = table.any();
            let cond = table.partner(a, &DTYPES);
            let dtype = table.array(a).dtype;
            match table.dice.below(4) {
                0 | 1 => {
                    let b = table.partner(a, &DTYPES);
                    let shapes = [a, b, cond].map(|i| table.array(i).shape.clone());
                    let all =
                        array::broadcast(&shapes[0], &shapes[1]).and_then(|s| array::broadcast(&s, &shapes[2]))?;
                    table.is_small(&all).then(|| table.push(Map::Select(None, None), vec![cond, a, b]))
                }
                2 => {
                    let b = number(table, dtype, false);
                    Some(table.push(Map::Select(None, Some(b)), vec![cond, a]))
                }
                _ => {
                    let (b, c) = (number(table, dtype, false), number(table, dtype, false));
                    Some(table.push(Map::Select(Some(b), Some(c)), vec![cond]))
                }
            }
        }
        17 => {
            let x = table.any();
            let whole = !table.array(x).dtype.is_float();
            let op = if whole {
                Map::Clamp(Number::Int(1), Number::Int(3))
            } else {
                Map::Clamp(Number::Float(-0.5), Number::Float(1.25))
            };
            let op = if table.dice.once_in(2) {
                Map::Shaped(table.dice.pick(SHAPED), table.dice.pick(&[0.25, 0.1, 1.5]))
            } else {
                op
            };
            table.push_if_known(op, vec![x])
        }
        18 if table.dice.once_in(2) => {
            let x = table.any();
            let (shape, dtype) = (table.array(x).shape.clone(), table.array(x).dtype);
            let old = table.node_where(|a| a.shape == shape && a.dtype == dtype)?;
            Some(table.push(Map::Kept, vec![x, old]))
        }
        18 => {
            let (x, dtype) = (table.any(), table.dice.pick(&DTYPES));
            Some(table.push(Map::Cast(dtype), vec![x]))
        }
        _ => {
            let x = table.any();
            let y = table.partner(x, &DTYPES);
            table.push_if_known(Map::Custom, vec![x, y])
        }
    }
}
