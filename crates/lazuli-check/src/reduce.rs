//! Reductions: the rows of the table, and the statistics written with them.

use std::rc::Rc;

use lazuli::ops::ReduceRow;
use lazuli::{Axes, DType, Device, Tensor, keep};

use crate::array::Array;
use crate::cell::{Cell, wrapped};
use crate::map::{binary, select, square, unary};
use crate::movement::index;
use crate::program::{Op, Table};
use crate::row;

const INF: f64 = f64::INFINITY;

/// A reduction over some axes; None is all of them.
#[derive(Clone, Debug)]
pub struct Reduce {
    pub name: &'static str,
    pub axes: Option<Vec<i32>>,
    pub keep: bool,
    /// For `var` and `std`.
    pub ddof: usize,
}

/// Methods by name.
macro_rules! reductions {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        fn call(name: &str, x: &Tensor, axes: Axes) -> Tensor {
            match name {
                $(stringify!($name) => x.$name(axes),)*
                _ => unreachable!("{name} is not drawn"),
            }
        }
    };
}
reductions!(sum mean max min prod any all argmax argmin norm logsumexp);

/// A row of the table; its axes stay with size 1.
pub fn fold(name: &str, x: &Array, axes: &[usize]) -> Array {
    let row = row::table().reduce.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no row {name}"));
    let dtype = row.takes.cast(x.dtype).expect("every reduction takes everything");
    let gives = row.gives.dtype(dtype);
    x.cast(dtype).reduced(axes, gives, |run| {
        let cell = match row.name {
            "max" => extremum(run, f64::max),
            "min" => extremum(run, f64::min),
            _ if !gives.is_float() => integers(row, run, gives),
            "sum" => total(run, row.ulps),
            "prod" => product(run, row.ulps),
            name => panic!("no oracle of {name}"),
        };
        // One element is nobody's sum: it is only passed on.
        cell.kept(gives)
    })
}

fn extremum(run: &[Cell], f: impl Fn(f64, f64) -> f64) -> Cell {
    if run.iter().any(|c| c.is_nan()) {
        return Cell::NAN;
    }
    let best = |x: Cell, y: Cell| Cell { lo: f(x.lo, y.lo), hi: f(x.hi, y.hi), nan: x.nan | y.nan };
    run.iter().copied().reduce(best).expect("drawn to have one")
}

fn integers(row: &ReduceRow, run: &[Cell], dtype: DType) -> Cell {
    let all: Option<Vec<i128>> = run.iter().map(|c| c.value().map(|v| v as i128)).collect();
    match all {
        Some(all) if row.name == "sum" => Cell::point(wrapped(all.iter().sum(), dtype)),
        // Modulo 2³² throughout, so that nothing overflows on the way.
        Some(all) if row.name == "prod" => Cell::point(wrapped(all.iter().fold(1, |n, v| (n * v) % (1 << 32)), dtype)),
        Some(_) => panic!("no oracle of {}", row.name),
        None => Cell::any(dtype),
    }
}

/// The sum of cells, in any order: its error is stated in units of the sum of magnitudes, and no order of `n − 1`
/// additions can do worse than half a unit each.
pub fn total(run: &[Cell], ulps: f64) -> Cell {
    if run.iter().any(|c| c.is_nan()) {
        return Cell::NAN;
    }
    let certain = |v: f64| run.iter().any(|c| c.value() == Some(v));
    if certain(INF) && certain(-INF) {
        return Cell::NAN;
    }
    let (lo, hi) = run.iter().fold((0.0, 0.0), |sum, c| (sum.0 + c.lo, sum.1 + c.hi));
    // Where there is no bound on one side, the error on the other is that at its own bound.
    let bounded = |c: &Cell| [c.lo, c.hi].into_iter().filter(|b| b.is_finite()).map(f64::abs).fold(0.0, f64::max);
    let magnitudes: f64 = run.iter().map(bounded).sum();
    let mixed = run.iter().any(|c| c.lo == -INF) && run.iter().any(|c| c.hi == INF);
    // On the way to a finite sum there may be infinities of either sign.
    let overflows = magnitudes > 0.99 * f32::MAX as f64;
    if mixed || (overflows && run.iter().any(|c| c.lo < 0.0) && run.iter().any(|c| c.hi > 0.0)) {
        return Cell::ANY;
    }
    let nan = run.iter().any(|c| c.nan);
    let error = ulps.min(0.5 * run.len().saturating_sub(1) as f64) * crate::cell::ulp(magnitudes);
    let error = if run.len() > 1 { error } else { 0.0 };
    Cell { lo, hi, nan }.widened(error, error)
}

/// The product of cells, in any order.
fn product(run: &[Cell], ulps: f64) -> Cell {
    if run.iter().any(|c| c.is_nan()) {
        return Cell::NAN;
    }
    if run.len() == 1 {
        return run[0];
    }
    let mul = |x: Cell, y: Cell| x.corners(y, |x, y| x * y);
    let exact = run.iter().copied().fold(Cell::point(1.0), mul);
    // How far a partial product can get above and below 1.
    let above: f64 = run.iter().map(|c| c.magnitude().max(1.0)).product();
    let below: f64 = run.iter().map(|c| if c.has(0.0) { 1.0 } else { c.lo.abs().min(c.hi.abs()).min(1.0) }).product();
    if above >= f32::MAX as f64 || exact.nan {
        return Cell::ANY;
    }
    let ulps = ulps.max(0.5 * run.len() as f64);
    // What underflows on the way is lost, and what is then multiplied by it.
    let lost = if below < f32::MIN_POSITIVE as f64 { above * run.len() as f64 * f64::powi(2.0, -126) } else { 0.0 };
    exact.erred(ulps).widened(lost, lost)
}

/// Where the best is, if that is certain: the first of equal ones, or the first NaN.
fn place(run: &[Cell], better: impl Fn(Cell) -> Cell) -> Cell {
    if let Some(first) = run.iter().position(|c| c.nan) {
        let known = run[..=first].iter().all(|c| c.is_nan() || !c.nan);
        return if known { Cell::point(first as f64) } else { Cell::range(0.0, run.len() as f64 - 1.0) };
    }
    let run: Vec<Cell> = run.iter().map(|c| better(*c)).collect();
    let best = run.iter().map(|c| c.lo).fold(-INF, f64::max);
    let candidates: Vec<usize> = (0..run.len()).filter(|i| run[*i].hi >= best).collect();
    let first = candidates[0];
    let all_equal = candidates.iter().all(|i| run[*i].value().is_some() && run[*i] == run[first]);
    if candidates.len() == 1 || all_equal {
        return Cell::point(first as f64);
    }
    Cell::range(first as f64, candidates[candidates.len() - 1] as f64)
}

fn truth(run: &[Cell], decides: bool) -> Cell {
    let is = |wanted: bool| move |c: &Cell| c.truth() == Some(wanted);
    if run.iter().any(is(decides)) {
        Cell::point(decides as u8 as f64)
    } else if run.iter().all(is(!decides)) {
        Cell::point(!decides as u8 as f64)
    } else {
        Cell::any(DType::Bool)
    }
}

/// Sums in f32, whatever the float; the result is cast back.
fn wide(x: &Array) -> (Array, DType) {
    (x.cast(DType::F32), if x.dtype.is_float() { x.dtype } else { DType::F32 })
}

/// The mean with `n − ddof` for `n`, its axes kept.
pub fn mean(x: &Array, axes: &[usize], ddof: usize) -> Array {
    let n: usize = axes.iter().map(|a| x.shape[*a]).product();
    binary("div", &fold("sum", x, axes), n.saturating_sub(ddof) as i64)
}

fn variance(x: &Array, axes: &[usize], ddof: usize) -> Array {
    let (x, dtype) = wide(x);
    let squares = square(&binary("sub", &x, &mean(&x, axes, 0)));
    mean(&squares, axes, ddof).cast(dtype)
}

fn logsumexp(x: &Array, axes: &[usize]) -> Array {
    let (x, dtype) = wide(x);
    let max = fold("max", &x, axes);
    let is_finite = max.map(DType::Bool, |c| match c.magnitude() < INF && !c.nan {
        true => Cell::point(1.0),
        false if c.value().is_some() || c.is_nan() => Cell::point(0.0),
        false => Cell::any(DType::Bool),
    });
    let max = select(&is_finite, &max, 0.0);
    let sum = fold("sum", &unary("exp", &binary("sub", &x, &max)), axes);
    binary("add", &unary("log", &sum), &max).cast(dtype)
}

impl Reduce {
    fn resolved(&self, rank: usize) -> Vec<usize> {
        match &self.axes {
            None => (0..rank).collect(),
            Some(axes) => axes.iter().map(|a| index(*a, rank)).collect(),
        }
    }

    fn written(&self) -> Axes {
        let axes = self.axes.as_ref().map_or(Axes::from(..), |axes| Axes::from(&axes[..]));
        if self.keep { keep(axes) } else { axes }
    }
}

impl Op for Reduce {
    fn expect(&self, inputs: &[&Array]) -> Array {
        let x = inputs[0];
        let axes = self.resolved(x.shape.len());
        let y = match self.name {
            "mean" => {
                let (x, dtype) = wide(x);
                mean(&x, &axes, 0).cast(dtype)
            }
            "var" => variance(x, &axes, self.ddof),
            "std" => {
                // The root is rounded, not the variance.
                let (x, dtype) = wide(x);
                unary("sqrt", &variance(&x, &axes, self.ddof)).cast(dtype)
            }
            "norm" => {
                let (x, dtype) = wide(x);
                unary("sqrt", &fold("sum", &square(&x), &axes)).cast(dtype)
            }
            "logsumexp" => logsumexp(x, &axes),
            "any" => x.cast(DType::Bool).reduced(&axes, DType::Bool, |run| truth(run, true)),
            "all" => x.cast(DType::Bool).reduced(&axes, DType::Bool, |run| truth(run, false)),
            "argmax" => x.reduced(&axes, DType::I32, |run| place(run, |c| c)),
            "argmin" => x.reduced(&axes, DType::I32, |run| place(run, |c| c.falling(|v| -v))),
            name => fold(name, x, &axes),
        };
        if self.keep {
            return y;
        }
        let shape = (0..y.shape.len()).filter(|i| !axes.contains(i)).map(|i| y.shape[i]).collect();
        y.reshaped(shape)
    }

    fn call(&self, inputs: &[&Tensor], _: &Device) -> Tensor {
        let (x, axes) = (inputs[0], self.written());
        match self.name {
            "var" => x.var(axes, self.ddof),
            "std" => x.std(axes, self.ddof),
            name => call(name, x, axes),
        }
    }

    fn sums(&self) -> bool {
        true
    }

    fn text(&self, inputs: &[&str]) -> String {
        let axes = match &self.axes {
            None => "..".to_string(),
            Some(axes) if axes.len() == 1 => axes[0].to_string(),
            Some(axes) => format!("{axes:?}"),
        };
        let axes = if self.keep { format!("keep({axes})") } else { axes };
        match self.name {
            "var" | "std" => format!("{}.{}({axes}, {})", inputs[0], self.name, self.ddof),
            name => format!("{}.{name}({axes})", inputs[0]),
        }
    }

    fn mutant(&self) -> Option<Rc<dyn Op>> {
        let name = match self.name {
            "sum" => "prod",
            "prod" => "sum",
            "mean" => "norm",
            "max" => "min",
            "min" => "max",
            "any" => "all",
            "argmax" => "argmin",
            "var" => "std",
            "logsumexp" => "mean",
            _ => return None,
        };
        Some(Rc::new(Reduce { name, ..self.clone() }))
    }
}

pub fn draw(table: &mut Table) -> Option<usize> {
    let names: Vec<&'static str> = NAMES.iter().copied().chain(["var", "std"]).collect();
    let name = table.dice.pick(&names);
    let x = if table.dice.once_in(12) { table.any() } else { table.with_axes()? };
    let shape = table.array(x).shape.clone();
    let rank = shape.len();
    let axes = match table.dice.below(6) {
        _ if rank == 0 => None,
        0..3 => {
            let axis = table.axis(x);
            Some(vec![table.signed(axis, rank)])
        }
        3 => None,
        _ => {
            let chosen: Vec<usize> = (0..rank).filter(|_| table.dice.below(2) == 1).collect();
            Some(chosen.into_iter().map(|axis| table.signed(axis, rank)).collect())
        }
    };
    let (keep, ddof) = (table.dice.once_in(3), table.dice.below(2));
    let op = Reduce { name, axes, keep, ddof };
    // Of nothing there is no best.
    let needs_one = matches!(name, "max" | "min" | "argmax" | "argmin" | "logsumexp");
    if needs_one && op.resolved(rank).iter().any(|axis| shape[*axis] == 0) {
        return None;
    }
    table.push_if_known(op, vec![x])
}
