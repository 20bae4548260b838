//! What the rows of the op table mean for cells: a row brings its function and its stated error, here is how it bends
//! (rising, falling, where it is defined), so that bounds can be pushed through it. A row that is not listed is
//! still right for single values; of ranges nothing is then known.

use std::f64::consts::PI;
use std::sync::OnceLock;

use lazuli::DType;
use lazuli::ops::{BinaryRow, Gives, Table, UnaryRow};

use crate::cell::{Cell, wrapped};

const INF: f64 = f64::INFINITY;

/// The engine's table of ops.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(lazuli::ops::table)
}

pub fn unary_row(name: &str) -> &'static UnaryRow {
    table().unary.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"))
}

pub fn binary_row(name: &str) -> &'static BinaryRow {
    table().binary.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"))
}

/// A unary row on a cell that has already been cast to `dtype`.
pub fn unary(row: &UnaryRow, x: Cell, dtype: DType) -> Cell {
    if row.gives == Gives::Bool {
        return test(row, x);
    }
    if !dtype.is_float() {
        return match x.value() {
            Some(v) => Cell::point(wrapped((row.oracle)(v) as i128, dtype)),
            None => Cell::any(dtype),
        };
    }
    let f = row.oracle;
    let y = match row.name {
        "neg" => x.falling(f),
        "abs" | "cosh" => x.abs().rising(f),
        "sign" | "floor" | "ceil" | "round" | "trunc" => x.rising(f),
        "exp" | "exp2" | "expm1" | "atan" | "sinh" | "tanh" | "asinh" | "cbrt" | "erf" => x.rising(f),
        "sqrt" | "log" | "log2" | "log10" => x.within(0.0, INF).rising(f),
        "log1p" => x.within(-1.0, INF).rising(f),
        "acosh" => x.within(1.0, INF).rising(f),
        "asin" | "atanh" => x.within(-1.0, 1.0).rising(f),
        "acos" => x.within(-1.0, 1.0).falling(f),
        // Which infinity it is at zero hangs on the zero's sign.
        "rsqrt" | "recip" if x.has(0.0) => Cell { nan: x.nan | (row.name == "rsqrt" && x.lo < 0.0), ..Cell::ANY },
        "rsqrt" => x.within(0.0, INF).falling(f),
        "recip" => x.falling(f),
        "sin" => periodic(x, f, 0.5 * PI),
        "cos" => periodic(x, f, 0.0),
        // Between two poles it rises.
        "tan" if x.magnitude() < 1e6 && pole(x.lo) == pole(x.hi) => x.rising(f),
        _ => x.value().map_or(Cell::ANY, |v| Cell::point(f(v))),
    };
    y.erred(crate::subject::stated(row.ulps, row.gpu_ulps)).kept(dtype)
}

/// Which poles of the tangent a number lies between.
fn pole(x: f64) -> f64 {
    (x / PI + 0.5).floor()
}

/// Sine or cosine; `peak` is where it is 1.
fn periodic(x: Cell, f: impl Fn(f64) -> f64, peak: f64) -> Cell {
    if let Some(v) = x.value() {
        return Cell::point(f(v));
    }
    if x.is_nan() {
        return x;
    }
    let nan = x.nan || x.magnitude() == INF;
    // Infinite ends give NaN, which is not less either.
    let within_half_a_turn = x.hi - x.lo < PI;
    if !within_half_a_turn {
        return Cell { lo: -1.0, hi: 1.0, nan };
    }
    let (a, b) = (f(x.lo), f(x.hi));
    let crosses = |at: f64| ((x.lo - at) / (2.0 * PI)).ceil() <= ((x.hi - at) / (2.0 * PI)).floor();
    let hi = if crosses(peak) { 1.0 } else { a.max(b) };
    let lo = if crosses(peak + PI) { -1.0 } else { a.min(b) };
    Cell { lo, hi, nan }
}

/// A row that answers yes or no.
fn test(row: &UnaryRow, x: Cell) -> Cell {
    let truth = |b: bool| Cell::point(b as u8 as f64);
    match row.name {
        "is_nan" if x.is_nan() => truth(true),
        "is_nan" if !x.nan => truth(false),
        // An infinite bound may only mean that there is none.
        "is_inf" if x.is_nan() || x.magnitude() < INF => truth(false),
        "is_inf" if x.lo.is_infinite() && x.value().is_some() => truth(true),
        "logical_not" if x.value().is_some() => truth(x.value() == Some(0.0)),
        _ => match x.value() {
            Some(v) if row.name != "is_nan" && row.name != "is_inf" => Cell::point((row.oracle)(v)),
            _ => Cell::any(DType::Bool),
        },
    }
}

/// A binary row on cells that have already been cast to `dtype`.
pub fn binary(row: &BinaryRow, x: Cell, y: Cell, dtype: DType) -> Cell {
    if row.gives == Gives::Bool {
        return compare(row, x, y).map_or(Cell::any(DType::Bool), |b| Cell::point(b as u8 as f64));
    }
    match row.name {
        "maximum" => return extremum(x, y, f64::max),
        "minimum" => return extremum(x, y, f64::min),
        _ => {}
    }
    if !dtype.is_float() {
        return integers(row, x, y, dtype);
    }
    floats(row, x, y).erred(crate::subject::stated(row.ulps, row.gpu_ulps)).kept(dtype)
}

fn extremum(x: Cell, y: Cell, f: impl Fn(f64, f64) -> f64) -> Cell {
    if x.is_nan() || y.is_nan() {
        return Cell::NAN;
    }
    Cell { lo: f(x.lo, y.lo), hi: f(x.hi, y.hi), nan: x.nan | y.nan }
}

fn integers(row: &BinaryRow, x: Cell, y: Cell, dtype: DType) -> Cell {
    match (x.value(), y.value()) {
        (Some(x), Some(y)) => {
            let value = match row.oracle_int {
                Some(f) => f(x as i64, y as i64),
                None => (row.oracle)(x, y) as i64,
            };
            Cell::point(wrapped(value as i128, dtype))
        }
        (None, Some(m)) if row.name == "rem" && m > 0.0 => Cell::range(0.0, m - 1.0),
        _ => Cell::any(dtype),
    }
}

fn floats(row: &BinaryRow, x: Cell, y: Cell) -> Cell {
    let f = row.oracle;
    if let (Some(x), Some(y)) = (x.value(), y.value()) {
        // The sign of a zero is not known.
        let sign_counts = match row.name {
            "div" => y == 0.0 && x != 0.0,
            "pow" => x == 0.0 && y < 0.0,
            "atan2" => x == 0.0 && y <= 0.0,
            _ => false,
        };
        return if sign_counts { Cell { nan: false, ..Cell::ANY } } else { Cell::point(f(x, y)) };
    }
    if row.name != "pow" && (x.is_nan() || y.is_nan()) {
        return Cell::NAN;
    }
    let nan = x.nan | y.nan;
    match row.name {
        "add" | "sub" => x.corners(y, f),
        // 0·∞ may lie between the corners.
        "mul" => {
            let hidden = |a: Cell, b: Cell| a.has(0.0) && b.magnitude() == INF;
            let hidden = hidden(x, y) || hidden(y, x);
            let y = x.corners(y, f);
            if hidden { y.or(Cell::point(0.0)).or_nan(true) } else { y }
        }
        "div" if y.has(0.0) => {
            Cell { nan: nan || x.has(0.0) || (x.magnitude() == INF && y.magnitude() == INF), ..Cell::ANY }
        }
        "div" => x.corners(y, f),
        "rem" => match y.value() {
            Some(m) if one_quotient(x, m) && f(x.lo, m) <= f(x.hi, m) => x.rising(|x| f(x, m)),
            _ => Cell::ANY,
        },
        "pow" if x.lo > 0.0 && x.hi < INF && y.magnitude() < INF && !nan => x.corners(y, f),
        "atan2" if y.lo > 0.0 || x.lo > 0.0 || x.hi < 0.0 => x.corners(y, f),
        "atan2" => Cell { lo: -PI, hi: PI, nan },
        _ => Cell::ANY,
    }
}

/// Whether all of `x` has one quotient by `m`, so that the remainder rises with it.
fn one_quotient(x: Cell, m: f64) -> bool {
    m != 0.0 && m.is_finite() && x.magnitude() < INF && (x.lo / m).floor() == (x.hi / m).floor()
}

/// Whether a comparison holds, if that is certain.
fn compare(row: &BinaryRow, x: Cell, y: Cell) -> Option<bool> {
    let may_be_nan = x.nan || y.nan;
    // Less, if certain; NaN is less than nothing.
    let less = |x: Cell, y: Cell, or_equal: bool| {
        if x.is_nan() || y.is_nan() {
            return Some(false);
        }
        let holds = if or_equal { x.hi <= y.lo } else { x.hi < y.lo };
        let fails = if or_equal { x.lo > y.hi } else { x.lo >= y.hi };
        match (holds, fails) {
            (true, _) if !may_be_nan => Some(true),
            (_, true) => Some(false),
            _ => None,
        }
    };
    let equal = || {
        if x.is_nan() || y.is_nan() || x.hi < y.lo || y.hi < x.lo {
            return Some(false);
        }
        (x.value()? == y.value()?).then_some(true)
    };
    match row.name {
        "eq" => equal(),
        "ne" => equal().map(|e| !e),
        "lt" => less(x, y, false),
        "le" => less(x, y, true),
        "gt" => less(y, x, false),
        "ge" => less(y, x, true),
        "logical_and" => match (x.truth(), y.truth()) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (a, b) => Some(a? && b?),
        },
        "logical_or" => match (x.truth(), y.truth()) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (a, b) => Some(a? || b?),
        },
        _ => Some((row.oracle)(x.value()?, y.value()?) != 0.0),
    }
}
