//! Tensors as text: `{}` prints values the way NumPy does, `{:?}` says what a tensor is without computing it.

use std::fmt;

use half::{bf16, f16};

use crate::dtype::DType;
use crate::error::Result;
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Above this many elements only the edges are printed.
const MAX_PRINTED: usize = 1000;
/// How many at each end of an axis the edges are.
const EDGE: usize = 3;
/// Lines are broken before this column.
const LINE_WIDTH: usize = 75;
/// Digits after the point, at most.
const PRECISION: usize = 8;

/// Prints the values as NumPy does, computing them first; large tensors are abridged, an error prints as its message.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let x = Tensor::arange(0.0, 1.5, 0.25, &Device::cpu()).reshape([2, 3]);
/// assert_eq!(x.to_string(), "[[0.   0.25 0.5 ]\n [0.75 1.   1.25]]");
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Printed::new(self) {
            Ok(printed) => f.write_str(&printed.text()),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// Says shape, dtype, device and state without computing anything.
///
/// ```
/// # use lazuli::{DType, Device, Tensor};
/// let x = Tensor::ones([2, 3], DType::F32, &Device::cpu());
/// assert!(format!("{x:?}").starts_with("Tensor(f32[2, 3] on "));
/// assert!(format!("{x:?}").ends_with(", lazy)"));
/// ```
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node() {
            Ok(node) => {
                let state = if node.is_ready() { "ready" } else { "lazy" };
                write!(f, "Tensor({}{} on {}, {state})", node.dtype, node.shape, node.device.info().name)
            }
            Err(error) => write!(f, "Tensor(error: {error})"),
        }
    }
}

/// What is printed: the values (of the edges, if abridged), all of one width.
struct Printed {
    /// The shape of what is printed.
    shape: Shape,
    /// Per axis, whether its middle is left out.
    abridged: Vec<bool>,
    words: Vec<String>,
}

impl Printed {
    fn new(x: &Tensor) -> Result<Printed> {
        let (mut shape, dtype) = (x.node()?.shape, x.dtype()?);
        let mut abridged = vec![false; shape.rank()];
        let mut edges = x.clone();
        if shape.n_elems() > MAX_PRINTED {
            // All of it is computed and kept, but only the edges are read.
            x.compute()?;
            for axis in 0..shape.rank() {
                let size = shape[axis];
                if size > 2 * EDGE {
                    let at = axis as i32;
                    edges = Tensor::cat(&[&edges.narrow(at, 0, EDGE), &edges.narrow(at, size - EDGE, EDGE)], at);
                    abridged[axis] = true;
                    shape = shape.with(axis, 2 * EDGE);
                }
            }
        }
        let values = edges.to_vec::<f64>()?;
        Ok(Printed { shape, abridged, words: words(&values, dtype, shape.rank() == 0) })
    }

    fn text(&self) -> String {
        if self.shape.n_elems() == 0 {
            return "[]".into();
        }
        let mut out = String::new();
        self.nested(0, 0, &mut out);
        out
    }

    /// Appends the part of the tensor that starts at element `first` and spans the axes from `axis` on.
    fn nested(&self, axis: usize, first: usize, out: &mut String) {
        let rank = self.shape.rank();
        if axis == rank {
            return out.push_str(&self.words[first]);
        }
        let size = self.shape[axis];
        let step: usize = self.shape[axis + 1..].iter().product();
        if axis + 1 == rank {
            return self.row(first, out);
        }
        out.push('[');
        let break_line = |out: &mut String| {
            out.extend(std::iter::repeat_n('\n', rank - axis - 1));
            out.extend(std::iter::repeat_n(' ', axis + 1));
        };
        for i in 0..size {
            if i > 0 {
                break_line(out);
            }
            if self.abridged[axis] && i == EDGE {
                out.push_str("...");
                break_line(out);
            }
            self.nested(axis + 1, first + i * step, out);
        }
        out.push(']');
    }

    /// Appends one line of elements, broken where it grows too wide.
    fn row(&self, first: usize, out: &mut String) {
        let rank = self.shape.rank();
        // Brackets still to be closed take room, and so do those opened already.
        let width = LINE_WIDTH - rank;
        let mut column = rank;
        out.push('[');
        let mut push = |word: &str| {
            if column + word.len() > width && column > rank {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', rank));
                column = rank;
            }
            out.push_str(word);
            out.push(' ');
            column += word.len() + 1;
        };
        for i in 0..self.shape[rank - 1] {
            if self.abridged[rank - 1] && i == EDGE {
                push("...");
            }
            push(&self.words[first + i]);
        }
        out.pop();
        out.push(']');
    }
}

/// Each value as a word; all of one width, unless there is only one.
fn words(values: &[f64], dtype: DType, is_scalar: bool) -> Vec<String> {
    let words: Vec<String> = match dtype {
        DType::Bool => values.iter().map(|v| (if *v != 0.0 { "True" } else { "False" }).into()).collect(),
        _ if dtype.is_int() => values.iter().map(f64::to_string).collect(),
        _ if is_scalar => values.iter().map(|v| scalar(*v, dtype)).collect(),
        _ => return floats(values, dtype),
    };
    let width = match dtype {
        _ if is_scalar => 0,
        // All the same width, whatever is printed.
        DType::Bool => 5,
        _ => words.iter().map(String::len).max().unwrap_or(0),
    };
    words.into_iter().map(|w| format!("{w:>width$}")).collect()
}

/// A decimal number: digits before and after the point, and the exponent if it is in scientific notation.
struct Decimal {
    whole: String,
    fraction: String,
    exponent: i32,
}

impl Decimal {
    /// The fewest digits that read back as the same number of this dtype, in scientific notation.
    fn shortest(v: f64, dtype: DType) -> Decimal {
        let same = |text: &str| {
            text.parse::<f64>().is_ok_and(|back| match dtype {
                DType::F16 => f16::from_f64(back) == f16::from_f64(v),
                DType::BF16 => bf16::from_f64(back) == bf16::from_f64(v),
                _ => back as f32 == v as f32,
            })
        };
        // Nine digits are enough for every f32.
        let n_fraction = (0..8).find(|n| same(&format!("{v:.n$e}"))).unwrap_or(8);
        Decimal::scientific(v, n_fraction)
    }

    /// This many digits after the point, in scientific notation.
    fn scientific(v: f64, n_fraction: usize) -> Decimal {
        let text = format!("{v:.n_fraction$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        Decimal { whole: whole.into(), fraction: fraction.into(), exponent: exponent.parse().unwrap_or(0) }
    }

    /// The same number without an exponent, with at most `precision` digits after the point.
    fn plain(v: f64, dtype: DType, precision: usize) -> Decimal {
        let short = Decimal::shortest(v, dtype);
        let n_after = short.fraction.len() as i32 - short.exponent;
        let text = match n_after {
            // The digits end before the point: what follows them is zeros, not the number's own further digits.
            ..=0 => format!("{}{}{:0<n$}", short.whole, short.fraction, "", n = -n_after as usize),
            _ => format!("{v:.n$}", n = precision.min(n_after as usize)),
        };
        let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
        Decimal { whole: whole.into(), fraction: fraction.trim_end_matches('0').into(), exponent: 0 }
    }

    /// `e+07`: at least two digits.
    fn exponent(&self) -> String {
        format!("e{}{:02}", if self.exponent < 0 { '-' } else { '+' }, self.exponent.abs())
    }
}

/// One float on its own, as Python prints it.
fn scalar(v: f64, dtype: DType) -> String {
    if !v.is_finite() {
        return not_finite(v).into();
    }
    if v != 0.0 && !(SMALL..large(dtype)).contains(&v.abs()) {
        let d = Decimal::shortest(v, dtype);
        let point = if d.fraction.is_empty() { "" } else { "." };
        return format!("{}{point}{}{}", d.whole, d.fraction, d.exponent());
    }
    let d = Decimal::plain(v, dtype, usize::MAX);
    format!("{}.{:0<1}", d.whole, d.fraction)
}

fn not_finite(v: f64) -> &'static str {
    match v {
        _ if v.is_nan() => "nan",
        _ if v < 0.0 => "-inf",
        _ => "inf",
    }
}

/// Below this, numbers are printed in scientific notation.
const SMALL: f64 = 1e-4;

/// From this on too: a power of ten whose neighbours the dtype can still tell from it.
fn large(dtype: DType) -> f64 {
    match dtype {
        DType::F16 | DType::BF16 => 1e3,
        _ => 1e6,
    }
}

/// Floats lined up at their points, in scientific notation if they differ much in size.
fn floats(values: &[f64], dtype: DType) -> Vec<String> {
    let sizes = || values.iter().map(|v| v.abs()).filter(|v| v.is_finite() && *v != 0.0);
    let (low, high) = sizes().fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
    // Compared as numbers of the dtype, so that 1e-4 is not below itself.
    let round = |v: f64| f32::from_bits(dtype.lane_bits(v));
    let differ = round(low) < round(SMALL) || round(high / low) > 1000.0;
    let scientific = sizes().next().is_some() && (high >= large(dtype) || differ);
    let decimal = |v: &f64| match scientific {
        true => Decimal::shortest(*v, dtype),
        false => Decimal::plain(*v, dtype, PRECISION),
    };
    let parts: Vec<Option<Decimal>> = values.iter().map(|v| v.is_finite().then(|| decimal(v))).collect();
    let widest = |length: fn(&Decimal) -> usize| parts.iter().flatten().map(length).max().unwrap_or(0);
    let (n_whole, n_fraction) = (widest(|d| d.whole.len()), widest(|d| d.fraction.len()));
    let word = |(value, part): (&f64, &Option<Decimal>)| match part {
        None => not_finite(*value).into(),
        // In scientific notation all have as many digits as the longest, else spaces take their place.
        Some(_) if scientific => {
            let d = Decimal::scientific(*value, n_fraction);
            format!("{:>n_whole$}.{}{}", d.whole, d.fraction, d.exponent())
        }
        Some(d) => format!("{:>n_whole$}.{:<n_fraction$}", d.whole, d.fraction),
    };
    let words: Vec<String> = values.iter().zip(&parts).map(word).collect();
    let width = words.iter().map(String::len).max().unwrap_or(0);
    words.into_iter().map(|w| format!("{w:>width$}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expectations are what NumPy 2.4 prints.
    #[track_caller]
    fn check(shape: impl Into<Shape>, dtype: DType, values: &[f64], expect: &str) {
        let shape = shape.into();
        let stored: Vec<f64> = match dtype.is_float() {
            true => values.iter().map(|v| f32::from_bits(dtype.lane_bits(*v)) as f64).collect(),
            false => values.to_vec(),
        };
        let words = words(&stored, dtype, shape.rank() == 0);
        assert_eq!(Printed { shape, abridged: vec![false; shape.rank()], words }.text(), expect);
    }

    #[test]
    fn values_print_as_numpy_prints_them() {
        check([3], DType::F32, &[1.0, 2.0, 3.0], "[1. 2. 3.]");
        check([3], DType::F32, &[1.0, 2.5, -3.0], "[ 1.   2.5 -3. ]");
        check([2, 2], DType::F32, &[0.1, 0.2, 0.3, 1000.0], "[[1.e-01 2.e-01]\n [3.e-01 1.e+03]]");
        check([3], DType::F32, &[1e-05, 1.0, 2.0], "[1.e-05 1.e+00 2.e+00]");
        check([3], DType::F32, &[100000000.0, 1.0, 2.0], "[1.e+08 1.e+00 2.e+00]");
        check([2], DType::F32, &[123456.789, 999.25], "[123456.79    999.25]");
        check([4], DType::F32, &[f64::NAN, 1.0, f64::INFINITY, f64::NEG_INFINITY], "[ nan   1.  inf -inf]");
        check([2], DType::F32, &[f64::NAN, f64::INFINITY], "[nan inf]");
        check([3], DType::F32, &[0.3333333333333333, 0.6666666666666666, 1.0], "[0.33333334 0.6666667  1.        ]");
        check([3], DType::F32, &[0.001234567, 0.1, 0.5], "[0.00123457 0.1        0.5       ]");
        check([2], DType::F32, &[0.0, -0.0], "[ 0. -0.]");
        check((), DType::F32, &[1.0], "1.0");
        check((), DType::F32, &[1e-05], "1e-05");
        check((), DType::F32, &[123456789.0], "1.2345679e+08");
        check((), DType::F32, &[1e+16], "1e+16");
        check((), DType::F32, &[0.1], "0.1");
        check((), DType::F32, &[f64::NAN], "nan");
        check((), DType::F32, &[-1.5e-07], "-1.5e-07");
        check([2], DType::F32, &[1.17549435e-38, 3.4028235e+38], "[1.1754944e-38 3.4028235e+38]");
        check([1], DType::F32, &[16777216.0], "[1.6777216e+07]");
        check([1], DType::F32, &[99999990.0], "[9.999999e+07]");
        check([2], DType::F32, &[12345678.0, 0.5], "[1.2345678e+07 5.0000000e-01]");
        check(
            [2, 2, 3],
            DType::F32,
            &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0],
            "[[[ 0.  1.  2.]\n  [ 3.  4.  5.]]\n\n [[ 6.  7.  8.]\n  [ 9. 10. 11.]]]",
        );
        check([2], DType::F16, &[3.65e-5, 5.466e-5], "[3.648e-05 5.466e-05]");
        check([3], DType::F16, &[0.1, 0.5, 65504.0], "[1.00e-01 5.00e-01 6.55e+04]");
        check([3], DType::F16, &[0.1, 0.3333, 2.0], "[0.1    0.3333 2.    ]");
        check((), DType::F16, &[0.1], "0.1");
        check([3], DType::I32, &[1.0, -20.0, 300.0], "[  1 -20 300]");
        check([2, 3], DType::I32, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "[[0 1 2]\n [3 4 5]]");
        check((), DType::I32, &[7.0], "7");
        check([2], DType::U8, &[1.0, 255.0], "[  1 255]");
        check([2], DType::Bool, &[1.0, 0.0], "[ True False]");
        check([2], DType::Bool, &[1.0, 1.0], "[ True  True]");
        check((), DType::Bool, &[1.0], "True");
        check([2, 2], DType::Bool, &[1.0, 0.0, 0.0, 1.0], "[[ True False]\n [False  True]]");
        check([0, 3], DType::F32, &[], "[]");
    }

    #[test]
    fn long_rows_are_broken() {
        let counts: Vec<f64> = (0..40).map(f64::from).collect();
        let first = (0..24).map(|i| format!("{i:>2}")).collect::<Vec<_>>().join(" ");
        let second = (24..40).map(|i| format!("{i:>2}")).collect::<Vec<_>>().join(" ");
        check([40], DType::I32, &counts, &format!("[{first}\n {second}]"));
    }

    #[test]
    fn long_axes_are_abridged() {
        let words = (0..12).map(|i| i.to_string()).collect();
        let printed = Printed { shape: Shape::from([2, 6]), abridged: vec![false, true], words };
        assert_eq!(printed.text(), "[[0 1 2 ... 3 4 5]\n [6 7 8 ... 9 10 11]]");
    }
}
