//! First and second gradients where functions bend, saturate, overflow or are not defined, against what PyTorch gives in
//! double precision (`fixtures/torch`). Where ours differ on purpose, it is said here, with the reason.

use lazuli::{Device, Tensor};

use crate::device::{device, flushes_subnormals};
use crate::shared;

const TABLE: &str = include_str!("../fixtures/torch/gradients.txt");

/// A section of the table: the op, and per line the inputs, the first and the second derivatives.
struct Section {
    op: &'static str,
    lines: Vec<[Vec<f32>; 3]>,
}

fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in TABLE.lines() {
        if let Some(head) = line.strip_prefix("# ") {
            let op = head.split(':').next().expect("is never empty");
            sections.push(Section { op, lines: Vec::new() });
            continue;
        }
        let mut parts = line.split(';').map(|part| {
            part.split_whitespace().map(|number| number.parse::<f32>().expect("is a number")).collect::<Vec<f32>>()
        });
        let mut part = || parts.next().expect("has three parts");
        let line = [part(), part(), part()];
        sections.last_mut().expect("begins with a head").lines.push(line);
    }
    sections
}

fn function(op: &str) -> Option<fn(&Tensor) -> Tensor> {
    Some(match op {
        "abs" => Tensor::abs,
        "sqrt" => Tensor::sqrt,
        "rsqrt" => Tensor::rsqrt,
        "recip" => Tensor::recip,
        "exp" => Tensor::exp,
        "exp2" => Tensor::exp2,
        "expm1" => Tensor::expm1,
        "log" => Tensor::log,
        "log2" => Tensor::log2,
        "log10" => Tensor::log10,
        "log1p" => Tensor::log1p,
        "sin" => Tensor::sin,
        "cos" => Tensor::cos,
        "tan" => Tensor::tan,
        "asin" => Tensor::asin,
        "acos" => Tensor::acos,
        "atan" => Tensor::atan,
        "sinh" => Tensor::sinh,
        "cosh" => Tensor::cosh,
        "tanh" => Tensor::tanh,
        "asinh" => Tensor::asinh,
        "acosh" => Tensor::acosh,
        "atanh" => Tensor::atanh,
        "erf" => Tensor::erf,
        "square" => Tensor::square,
        "relu" => Tensor::relu,
        "leaky_relu(0.1)" => |x| x.leaky_relu(0.1),
        "elu(1)" => |x| x.elu(1.0),
        "elu(0.7)" => |x| x.elu(0.7),
        "softplus" => Tensor::softplus,
        "sigmoid" => Tensor::sigmoid,
        "silu" => Tensor::silu,
        "gelu" => Tensor::gelu,
        "gelu_tanh" => Tensor::gelu_tanh,
        "hardswish" => Tensor::hardswish,
        "clamp(-1, 1)" => |x| x.clamp(-1, 1),
        "maximum(1)" => |x| x.maximum(1),
        "minimum(1)" => |x| x.minimum(1),
        "pow(0)" => |x| x.pow(0),
        "pow(0.5)" => |x| x.pow(0.5),
        "pow(1)" => |x| x.pow(1),
        "pow(2)" => |x| x.pow(2),
        "pow(3)" => |x| x.pow(3),
        "pow(-1)" => |x| x.pow(-1),
        _ => return None,
    })
}

fn function_of_two(op: &str) -> Option<fn(&Tensor, &Tensor) -> Tensor> {
    Some(match op {
        "mul" => |x, y| x.mul(y),
        "div" => |x, y| x.div(y),
        "rem" => |x, y| x.rem(y),
        "pow" => |x, y| x.pow(y),
        "maximum" => |x, y| x.maximum(y),
        "minimum" => |x, y| x.minimum(y),
        "atan2" => |x, y| x.atan2(y),
        _ => return None,
    })
}

fn function_of_rows(op: &str) -> Option<fn(&Tensor) -> Tensor> {
    Some(match op {
        "sum" => |x| x.sum(-1),
        "prod" => |x| x.prod(-1),
        "max" => |x| x.max(-1),
        "min" => |x| x.min(-1),
        "mean" => |x| x.mean(-1),
        "var" => |x| x.var(-1, 0),
        "std" => |x| x.std(-1, 0),
        "norm" => |x| x.norm(-1),
        "logsumexp" => |x| x.logsumexp(-1),
        "softmax" => |x| x.softmax(-1),
        "log_softmax" => |x| x.log_softmax(-1),
        "layer_norm" => |x| x.layer_norm(-1, None, None, 1e-5),
        "rms_norm" => |x| x.rms_norm(-1, None, 1e-5),
        _ => return None,
    })
}

/// One of the inputs, of all lines.
fn column(section: &Section, i: usize, device: &Device) -> Tensor {
    let values: Vec<f32> = section.lines.iter().map(|line| line[0][i]).collect();
    Tensor::from_slice(&values, [values.len()], device)
}

/// The gradients of the sum of `y`.
fn slopes(y: &Tensor, wrt: &[&Tensor]) -> Vec<Tensor> {
    y.sum(..).grad(wrt)
}

/// First and second derivatives of `factor` times the op, as the lines of the section have them: `[line][derivative]`.
fn derivatives(section: &Section, factor: f32) -> [Vec<Vec<f32>>; 2] {
    let n = section.lines.len();
    let lines = |columns: &[&Tensor]| -> Vec<Vec<f32>> {
        let columns: Vec<Vec<f32>> = columns.iter().map(|c| c.to_vec::<f32>().expect("is right")).collect();
        (0..n).map(|i| columns.iter().map(|c| c[i]).collect()).collect()
    };
    if let Some(f) = function(section.op) {
        let x = column(section, 0, &device());
        let g = slopes(&f(&x).mul(factor), &[&x]).swap_remove(0);
        let h = slopes(&g, &[&x]);
        return [lines(&[&g]), lines(&[&h[0]])];
    }
    if let Some(f) = function_of_two(section.op) {
        let (x, y) = (column(section, 0, &device()), column(section, 1, &device()));
        let g = slopes(&f(&x, &y).mul(factor), &[&x, &y]);
        let (of_x, of_y) = (slopes(&g[0], &[&x, &y]), slopes(&g[1], &[&y]));
        return [lines(&[&g[0], &g[1]]), lines(&[&of_x[0], &of_x[1], &of_y[0]])];
    }
    let f = function_of_rows(section.op).unwrap_or_else(|| panic!("{} is not known here", section.op));
    let values: Vec<f32> = section.lines.iter().flat_map(|line| line[0].clone()).collect();
    let x = Tensor::from_slice(&values, [n, 3], &device());
    let weights = |w: &[f32]| Tensor::from_slice(w, [3], &device());
    let y = f(&x).mul(factor);
    let y = if y.shape().expect("is right").len() == 2 { y.mul(weights(&[1.0, -2.0, 3.0])) } else { y };
    let g = slopes(&y, &[&x]).swap_remove(0);
    let h = slopes(&g.mul(weights(&[1.0, 0.5, -1.0])), &[&x]).swap_remove(0);
    [g, h].map(|out| out.to_vec::<f32>().expect("is right").chunks(3).map(<[f32]>::to_vec).collect())
}

/// A derivative that is not PyTorch's: the op, its inputs, which derivative (its order and its place in the line), and ours.
type Difference = (&'static str, &'static [f32], usize, usize, f32);

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

/// What differs on purpose, by reason.
const DIFFERENCES: &[(&str, &[Difference])] = &[
    (
        "NaN goes on, and so do gradients where it is chosen",
        &[("abs", &[NAN], 1, 0, NAN), ("hardswish", &[NAN], 2, 0, 0.33333334), ("clamp(-1, 1)", &[NAN], 1, 0, 1.0)],
    ),
    (
        "ours is the derivative, or its limit: PyTorch's formula multiplies 0 by infinity, or has lost its digits",
        &[
            ("acosh", &[INF], 2, 0, -0.0),
            ("erf", &[INF], 2, 0, 0.0),
            ("erf", &[-INF], 2, 0, 0.0),
            ("silu", &[88.0], 2, 0, -5.2069576e-37),
            ("silu", &[INF], 1, 0, 1.0),
            ("silu", &[INF], 2, 0, 0.0),
            ("silu", &[-INF], 1, 0, 0.0),
            ("silu", &[-INF], 2, 0, 0.0),
            ("gelu", &[-10.0], 1, 0, -7.6184e-22),
            ("gelu", &[INF], 1, 0, 1.0),
            ("gelu", &[INF], 2, 0, 0.0),
            ("gelu", &[-INF], 1, 0, 0.0),
            ("gelu", &[-INF], 2, 0, 0.0),
            ("gelu_tanh", &[10.0], 2, 0, -6.2639306e-35),
            ("gelu_tanh", &[-10.0], 1, 0, -2.7576381e-36),
            ("gelu_tanh", &[-10.0], 2, 0, -6.2639306e-35),
            ("gelu_tanh", &[INF], 1, 0, 1.0),
            ("gelu_tanh", &[INF], 2, 0, 0.0),
            ("gelu_tanh", &[-INF], 1, 0, 0.0),
            ("gelu_tanh", &[-INF], 2, 0, 0.0),
            ("pow", &[0.0, 0.0], 2, 0, -0.0),
            ("pow", &[0.0, 0.0], 2, 2, 0.0),
            ("pow", &[0.0, 1e-39], 2, 2, 0.0),
            ("pow", &[0.0, 1e-30], 2, 2, 0.0),
            ("pow", &[0.0, 1.0], 2, 2, 0.0),
            ("pow", &[0.0, 2.5], 2, 2, 0.0),
            ("pow", &[0.0, 1e30], 2, 2, 0.0),
            ("pow", &[0.0, 3e38], 2, 2, 0.0),
            ("pow", &[0.0, INF], 2, 2, 0.0),
            ("pow", &[1e-30, 0.0], 2, 1, 1e30),
            ("pow", &[1.0, 0.0], 2, 1, 1.0),
            ("pow", &[2.5, 0.0], 2, 1, 0.4),
            ("pow", &[1e30, 0.0], 2, 1, 1e-30),
            ("pow", &[NAN, 0.0], 2, 0, -0.0),
            ("prod", &[INF, 1.0, 2.0], 2, 0, 0.0),
            ("prod", &[INF, 1.0, 2.0], 2, 1, -INF),
            ("prod", &[INF, 1.0, 2.0], 2, 2, INF),
            ("prod", &[-INF, 1.0, 2.0], 2, 0, 0.0),
            ("prod", &[-INF, 1.0, 2.0], 2, 1, INF),
            ("prod", &[-INF, 1.0, 2.0], 2, 2, -INF),
            ("prod", &[-INF, -INF, -INF], 2, 2, -INF),
            ("prod", &[NAN, 1.0, 2.0], 2, 0, 0.0),
        ],
    ),
    (
        "a function that bends has two second derivatives, and `pow` is IEEE's also at −0 and −∞",
        &[
            ("elu(1)", &[0.0], 2, 0, 1.0),
            ("elu(1)", &[-0.0], 2, 0, 1.0),
            ("elu(0.7)", &[0.0], 2, 0, 0.7),
            ("elu(0.7)", &[-0.0], 2, 0, 0.7),
            ("pow(0.5)", &[-0.0], 1, 0, INF),
            ("pow(0.5)", &[-INF], 1, 0, 0.0),
        ],
    ),
    (
        "a norm of nothing and an angle at the origin are flat, also twice",
        &[
            ("atan2", &[0.0, 0.0], 2, 0, 0.0),
            ("atan2", &[0.0, 0.0], 2, 1, 0.0),
            ("atan2", &[0.0, 0.0], 2, 2, 0.0),
            ("norm", &[0.0, 0.0, 0.0], 2, 0, 0.0),
            ("norm", &[0.0, 0.0, 0.0], 2, 1, 0.0),
            ("norm", &[0.0, 0.0, 0.0], 2, 2, 0.0),
        ],
    ),
    (
        "in f32 a step of the formula leaves the range, which f64 does not",
        &[
            ("div", &[0.0, 1e-39], 2, 2, NAN),
            ("pow", &[1e-39, 0.0], 2, 1, NAN),
            ("pow", &[1e-39, 1e-39], 1, 0, INF),
            ("pow", &[1e-39, 1e-39], 2, 1, NAN),
            ("pow", &[1e-39, 1e-30], 1, 0, INF),
            ("pow", &[1e-39, 1e-30], 2, 1, NAN),
            ("pow", &[1e-30, 1e-39], 2, 0, -INF),
            ("pow", &[1e-30, 1e-30], 2, 0, -INF),
            ("atan2", &[0.0, 1e-39], 2, 0, NAN),
            ("atan2", &[0.0, 1e-39], 2, 1, NAN),
            ("atan2", &[0.0, 1e-30], 2, 0, NAN),
            ("atan2", &[0.0, 1e-30], 2, 1, NAN),
            ("atan2", &[1e-39, 0.0], 2, 2, NAN),
            ("atan2", &[1e-39, 1e-39], 2, 1, NAN),
            ("atan2", &[1e-39, 1e-30], 2, 1, NAN),
            ("atan2", &[1e-30, 0.0], 2, 2, NAN),
            ("atan2", &[1e-30, 1e-39], 2, 1, NAN),
            ("atan2", &[1e-30, 1e-30], 2, 1, NAN),
        ],
    ),
];

/// Ops whose derivatives are differences of nearly equal numbers somewhere: they have the digits that are left next to 1, as
/// PyTorch's have in f32 (1 − tanh², σ·(1 − σ)·(1 − 2σ), x² − y²).
const CANCELLING: &[(&str, usize)] = &[("tanh", 1), ("tanh", 2), ("sigmoid", 2), ("atan2", 2)];

/// Whether a derivative is as good as the one wanted: the same kind of number, and within some roundings of `scale` or what is
/// below all normal numbers.
fn agrees(got: f32, want: f32, scale: f32) -> bool {
    match (got.is_nan(), want.is_nan()) {
        (false, false) => {}
        (got, want) => return got == want,
    }
    got == want || (got - want).abs() <= 2e-5 * scale.min(f32::MAX) + 4.0 * f32::MIN_POSITIVE
}

/// How large a number is next to which a derivative's roundings count: itself, or for the elements of a row of a reduction the
/// largest of them, for they are sums of each other's.
fn scale(section: &Section, wants: &[f32], part: usize) -> f32 {
    match function_of_rows(section.op) {
        Some(_) => wants.iter().fold(0.0, |m, w| f32::max(m, w.abs())),
        None => wants[part].abs(),
    }
}

/// The values of the op, for each line.
fn values(section: &Section, device: &Device) -> Vec<Vec<f32>> {
    let n_inputs = section.lines[0][0].len();
    let columns: Vec<Tensor> = (0..n_inputs).map(|i| column(section, i, device)).collect();
    let y = match (function(section.op), function_of_two(section.op), function_of_rows(section.op)) {
        (Some(f), ..) => f(&columns[0]),
        (_, Some(f), _) => f(&columns[0], &columns[1]),
        (.., Some(f)) => f(&Tensor::stack(&columns.iter().collect::<Vec<_>>(), 1)),
        _ => unreachable!("the op was found before"),
    };
    let y = y.to_vec::<f32>().expect("is right");
    y.chunks(y.len() / section.lines.len()).map(<[f32]>::to_vec).collect()
}

/// Per line, whether there is a derivative to speak of: not where the op is NaN though no input is.
fn has_value(section: &Section) -> Vec<bool> {
    let is_nan = |line: &[f32]| line.iter().any(|v| v.is_nan());
    let values = values(section, &device());
    section.lines.iter().zip(values).map(|(line, y)| is_nan(&line[0]) || !is_nan(&y)).collect()
}

/// Per line, whether an input, the op's exact value or one of its derivatives is subnormal: a device that takes it for zero
/// has lost what is computed from it.
fn meets_subnormals(section: &Section) -> Vec<bool> {
    let is_any = |line: &[f32]| line.iter().any(|v| v.is_subnormal());
    let values = values(section, &Device::cpu());
    section.lines.iter().zip(values).map(|(line, y)| is_any(&y) || line.iter().any(|part| is_any(part))).collect()
}

#[test]
fn gradients_at_awkward_points_are_pytorchs() {
    let _device = shared();
    let flushes = flushes_subnormals();
    let same =
        |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
    let mut faults = Vec::new();
    for section in sections() {
        let has_value = has_value(&section);
        let is_lost = if flushes { meets_subnormals(&section) } else { vec![false; section.lines.len()] };
        // The incoming gradient is not always 1: times what is huge it may overflow.
        for (factor, orders) in [(1.0, 2), (-3.0, 1)] {
            let got = derivatives(&section, factor);
            for (i, line) in section.lines.iter().enumerate() {
                if !has_value[i] || is_lost[i] {
                    continue;
                }
                for order in 1..=orders {
                    let mut wants = line[order].clone();
                    for (op, at, _, part, ours) in DIFFERENCES.iter().flat_map(|d| d.1).filter(|d| d.2 == order) {
                        if *op == section.op && same(at, &line[0]) {
                            wants[*part] = *ours;
                        }
                    }
                    wants.iter_mut().for_each(|want| *want *= factor);
                    let cancels = CANCELLING.contains(&(section.op, order));
                    for (part, (got, want)) in got[order - 1][i].iter().zip(&wants).enumerate() {
                        let is_left = cancels && (got - want).abs() <= 3e-7;
                        if !agrees(*got, *want, scale(&section, &wants, part)) && !is_left {
                            let what = format!("{} of {:?} times {factor}", section.op, line[0]);
                            faults.push(format!("{what}: {order}.{part} is {got}, not {want}"));
                        }
                    }
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} differ:\n{}", faults.len(), faults.join("\n"));
}
