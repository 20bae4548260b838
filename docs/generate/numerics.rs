//! `docs/numerics.md`: what every op promises about its numbers. Tables come from the rows; examples are run while the
//! page is written.

use lazuli::ops::{self, Takes};
use lazuli::{DType, Device, Tensor};

use crate::numpy;
use crate::page::{code, number, paragraph, table, thousands};

const HEAD: &str = "\
<!-- Written by `cargo xtask docs`; examples in it were run while it was written. Do not edit. -->

# Numerics

What each op promises, and what the tests hold it to. The rules in short:

- **f32 results** are within the stated number of units in the last place (ULP) of the exact result.
- **NaN, ±∞, −0 and subnormals** behave as in NumPy. NaN goes through `maximum`, `minimum`, `max`, `min`, `clamp` and
  `relu`; nothing is flushed to zero. Which of two zeros a maximum or minimum gives is not promised.
- **Subnormals on GPUs**: WGSL lets a device take them for zero, as operands and as results; SwiftShader does, llvmpipe does
  not. There a result that is subnormal may be 0, and what is computed from a subnormal number is what follows from 0. Normal
  results stay right: exponentials inside `silu`, `gelu_tanh`, `glu` and `mish` are taken as two factors, neither of them subnormal
  where the product is not, and their gradients are off by a few 1.2e−38 at most. `gelu` is 0 below −13.03, where it is less than 8e−38.
- **Sums** are pairwise or better: their error grows with the logarithm of the length, not with the length.
- **Convolutions** with windows of 3 × 3 by 1 and 16 channels or more are computed by Winograd's F(2×2, 3×3) on the CPU, where images
  are large enough. Rounding is then relative to the 4 × 4 values around a result (all channels), not to its 3 × 3 window alone: the
  error is at most 9 · (C + 12) · 2⁻²⁴ times the sum, over C channels, of Σ |values of the 4 × 4| · Σ |weights of the 3 × 3|. For values
  of one size errors are about those of plain sums. Beside a value of 10⁶ a result whose window is all zeros may be 0.1 instead of 0, so
  large numbers that mark missing places of an image (−10⁹, 10³⁰) also spoil results whose windows do not hold them. Small whole
  numbers stay exact, and NaN and ±∞ reach the results whose windows hold them and no others.
- **Weights in blocks** on processors with AMX: 16 rows and more are multiplied in three passes of bf16. A result is off by less than
  1e−5 of the sum of its terms without their signs if their last bits differ, and by at most 3.1e−5 if all have the worst ones. NaN, ±∞
  and subnormals are what they are elsewhere. `LAZULI_AMX=off` keeps such products as exact as sums of f32.
- **f16 and bf16** are storage: values are computed as f32, and stay f32 between ops that share a kernel. They are rounded
  once, when they are stored (or where `to_dtype` says so), so fusing takes roundings away and adds none. What is written
  with several ops (activations, means, spreads, norms, softmax) is computed in f32 from its first step to its last: of every
  finite half float each activation is within 0.55 ULP of the half float, and `std` is right where the variance is too large.
- **Integers** wrap on overflow. What has no answer has a stated value: the remainder by zero is 0, shifts beyond the
  width leave nothing (or the sign). No input is undefined behaviour.
- **The same bits every time:** on one device, a plan gives the same bits on every run, whatever the number of threads.
  `rand` gives the same bits on every device.
";

/// The page.
pub fn page() -> Result<String, String> {
    let sections = [
        promotion()?,
        special_floats()?,
        integers()?,
        accuracy(),
        reductions(),
        routines(),
        gradients()?,
        validation()?,
    ];
    Ok([&[HEAD.to_string()], &sections[..]].concat().join("\n"))
}

fn promotion() -> Result<String, String> {
    let names = DType::ALL.map(|d| d.to_string());
    let headings: Vec<&str> = [""].into_iter().chain(names.iter().map(String::as_str)).collect();
    let between_tensors = table(
        &headings,
        DType::ALL.map(|a| {
            let row = DType::ALL.map(|b| a.promote(b).to_string());
            [&[format!("**{a}**")], &row[..]].concat()
        }),
    );
    // `maximum` takes every dtype and gives the common one.
    let meet = |with: &dyn Fn(&Tensor) -> Tensor| -> Result<Vec<String>, String> {
        let dtypes = DType::ALL.map(|d| with(&Tensor::zeros([1], d, &Device::cpu())).dtype());
        dtypes.into_iter().map(|d| d.map(|d| d.to_string()).map_err(|e| e.to_string())).collect()
    };
    let numbers = [
        [vec![code("true")], meet(&|t| t.maximum(true))?].concat(),
        [vec![code("1")], meet(&|t| t.maximum(1))?].concat(),
        [vec![code("1.0")], meet(&|t| t.maximum(1.0))?].concat(),
    ];
    let rule = paragraph(
        "As NumPy's, without 64-bit types: an integer and a float give that float, f16 and bf16 give f32, i32 and u32 give \
         i32.",
    );
    let of_numbers =
        paragraph("A plain number takes the tensor's dtype, unless it is of a higher kind (bool, integer, float):");
    let misfits = paragraph(
        "An integer that does not fit the tensor's dtype is an error, except in comparisons, where it is beyond all of \
         them. `f64`, `i64`, `u64` and `usize` enter narrowed to 32 bits; what does not fit is an error the tensor carries.",
    );
    let by_numbers = table(&headings, numbers);
    let misfits = misfits.trim_end();
    Ok(format!("## Which dtype two operands meet in\n\n{rule}{between_tensors}\n{of_numbers}{by_numbers}\n{misfits}\n"))
}

/// Code and what it gives, run now.
type Example = (&'static str, fn(&Maker) -> Tensor);

/// Makes one-element tensors.
struct Maker(Device);

impl Maker {
    fn f(&self, value: f32) -> Tensor {
        Tensor::full([1], value, &self.0)
    }
    fn i(&self, value: i32) -> Tensor {
        Tensor::full([1], value, &self.0)
    }
    fn u(&self, value: u32) -> Tensor {
        Tensor::full([1], value, &self.0)
    }
    fn b(&self, value: u8) -> Tensor {
        Tensor::full([1], value, &self.0)
    }
}

fn examples(examples: &[Example]) -> Result<String, String> {
    let maker = Maker(Device::cpu());
    let mut rows = Vec::new();
    for (text, make) in examples {
        let result = make(&maker);
        let value = result.item::<f64>().map_err(|e| format!("{text}: {e}"))?;
        let dtype = result.dtype().map_err(|e| format!("{text}: {e}"))?;
        rows.push(vec![code(text), number(value), dtype.to_string()]);
    }
    Ok(table(&["expression", "result", "dtype"], rows))
}

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn special_floats() -> Result<String, String> {
    let rows = examples(&[
        ("1.0 / 0.0", |t| t.f(1.0).div(0.0)),
        ("−1.0 / 0.0", |t| t.f(-1.0).div(0.0)),
        ("0.0 / 0.0", |t| t.f(0.0).div(0.0)),
        ("∞ − ∞", |t| t.f(INF).sub(INF)),
        ("0.0 · ∞", |t| t.f(0.0).mul(INF)),
        ("−0.0 + −0.0", |t| t.f(-0.0).add(&t.f(-0.0))),
        ("−0.0 + 0.0", |t| t.f(-0.0).add(0.0)),
        ("sqrt(−0.0)", |t| t.f(-0.0).sqrt()),
        ("sqrt(−1.0)", |t| t.f(-1.0).sqrt()),
        ("log(0.0)", |t| t.f(0.0).log()),
        ("exp(−∞)", |t| t.f(-INF).exp()),
        ("maximum(1.0, NaN)", |t| t.f(1.0).maximum(NAN)),
        ("minimum(NaN, 1.0)", |t| t.f(NAN).minimum(1.0)),
        ("clamp(NaN, 0.0, 1.0)", |t| t.f(NAN).clamp(0.0, 1.0)),
        ("relu(NaN)", |t| t.f(NAN).relu()),
        ("sign(NaN)", |t| t.f(NAN).sign()),
        ("NaN == NaN", |t| t.f(NAN).eq(NAN)),
        ("NaN != NaN", |t| t.f(NAN).ne(NAN)),
        ("NaN < 1.0", |t| t.f(NAN).lt(1.0)),
        ("0.0 == −0.0", |t| t.f(0.0).eq(-0.0)),
        ("pow(NaN, 0.0)", |t| t.f(NAN).pow(0.0)),
        ("pow(1.0, NaN)", |t| t.f(1.0).pow(NAN)),
        ("rem(−5.0, 3.0)", |t| t.f(-5.0).rem(3.0)),
        ("rem(5.0, 0.0)", |t| t.f(5.0).rem(0.0)),
        ("round(2.5)", |t| t.f(2.5).round()),
        ("1e−40 · 0.5, a subnormal", |t| t.f(1e-40).mul(0.5)),
        ("max of [1.0, NaN, 2.0]", |t| Tensor::cat(&[&t.f(1.0), &t.f(NAN), &t.f(2.0)], 0).max(..)),
        ("sum of no elements", |t| t.f(1.0).narrow(0, 0, 0).sum(..)),
    ])?;
    Ok(format!("## Special floats\n\n{rows}"))
}

fn integers() -> Result<String, String> {
    let rows = examples(&[
        ("2147483647 + 1, i32", |t| t.i(i32::MAX).add(1)),
        ("255 + 1, u8", |t| t.b(255).add(1)),
        ("0 − 1, u32", |t| t.u(0).sub(1)),
        ("abs(−2147483648)", |t| t.i(i32::MIN).abs()),
        ("7 / 2", |t| t.i(7).div(2)),
        ("7 / 0", |t| t.i(7).div(0)),
        ("rem(−7, 3)", |t| t.i(-7).rem(3)),
        ("rem(7, 0)", |t| t.i(7).rem(0)),
        ("pow(3, 2)", |t| t.i(3).pow(2)),
        ("pow(2, −1)", |t| t.i(2).pow(&t.i(-1))),
        ("1 << 31", |t| t.i(1).shl(31)),
        ("1 << 32", |t| t.i(1).shl(32)),
        ("−5 >> 1", |t| t.i(-5).shr(1)),
        ("−5 >> 40", |t| t.i(-5).shr(40)),
        ("5 >> 40, u32", |t| t.u(5).shr(40)),
        ("3e9 to i32", |t| t.f(3e9).to_dtype(DType::I32)),
        ("−1.5 to u32", |t| t.f(-1.5).to_dtype(DType::U32)),
        ("−1.5 to i32", |t| t.f(-1.5).to_dtype(DType::I32)),
        ("NaN to i32", |t| t.f(NAN).to_dtype(DType::I32)),
        ("300 (i32) to u8", |t| t.i(300).to_dtype(DType::U8)),
        ("−1 (i32) to u32", |t| t.i(-1).to_dtype(DType::U32)),
        ("0.5 to bool", |t| t.f(0.5).to_dtype(DType::Bool)),
        ("70000.0 to f16", |t| t.f(70000.0).to_dtype(DType::F16)),
        ("200 + 100, summed u8", |t| Tensor::cat(&[&t.b(200), &t.b(100)], 0).sum(..)),
    ])?;
    let rule = paragraph(
        "Integers wrap; floats become integers by losing their fraction and stopping at the ends of the range; integers \
         become narrower ones by losing their upper bits.",
    );
    Ok(format!("## Integers and casts\n\n{rule}{rows}"))
}

fn accuracy() -> String {
    let rows = ops::table();
    let unary = rows.unary.iter().map(|row| {
        let specials = row.known.iter().filter(|(x, y)| is_special(*x) || is_special(*y));
        let specials: Vec<String> = specials.map(|(x, y)| format!("{} → {}", number(*x), number(*y))).collect();
        vec![code(row.name), stated(row.ulps), stated(row.gpu_ulps), range(row.takes, row.range), specials.join(", ")]
    });
    let binary = rows.binary.iter().map(|row| {
        let specials = row.known.iter().filter(|(x, y, z)| is_special(*x) || is_special(*y) || is_special(*z));
        let specials: Vec<String> =
            specials.map(|(x, y, z)| format!("({}, {}) → {}", number(*x), number(*y), number(*z))).collect();
        vec![code(row.name), stated(row.ulps), stated(row.gpu_ulps), range(row.takes, row.range), specials.join(", ")]
    });
    let legend = paragraph(
        "The error is for f32, in ULP of the exact result; *exact* means that the result is the exact one, 0.5 that it is \
         the exact one correctly rounded. GPUs have no double precision, and a column of their own; there too functions are \
         ours and not the driver's, and it is quotients and square roots alone that WGSL lets a device compute less well. \
         The range is where tests draw their random arguments from, besides the special values.",
    );
    let all = table(&["op", "at most, ULP", "on GPUs", "tests draw from", "special values"], unary.chain(binary));
    format!("## Elementwise ops: error and special values\n\n{legend}{all}")
}

fn is_special(value: f64) -> bool {
    !value.is_finite() || (value == 0.0 && value.is_sign_negative())
}

fn stated(ulps: f64) -> String {
    if ulps == 0.0 { "exact".to_string() } else { ulps.to_string() }
}

fn range(takes: Takes, (low, high): (f64, f64)) -> String {
    match takes {
        Takes::Bool => "false, true".to_string(),
        _ => format!("{} to {}", number(low), number(high)),
    }
}

fn reductions() -> String {
    let rows = ops::table().reduce.into_iter().map(|row| {
        let empty = if row.needs_one { "an error".to_string() } else { number(row.identity) };
        vec![code(row.name), stated(row.ulps), empty]
    });
    let legend = paragraph(
        "The error is for f32, in ULP of the same reduction of magnitudes, over all lengths. `mean`, `var`, `std`, `norm`, \
         `logsumexp`, `softmax` and the like are written with these. Integers of 8 bits are summed in 32.",
    );
    format!("## Reductions\n\n{legend}{}", table(&["op", "at most, ULP", "of nothing"], rows))
}

fn routines() -> String {
    let rows = ops::table().routines.into_iter().map(|row| vec![code(row.name), stated(row.ulps)]);
    format!("## Routines\n\n{}", table(&["routine", "at most, ULP"], rows))
}

fn gradients() -> Result<String, String> {
    let of = |x: f32, f: fn(&Tensor) -> Tensor| {
        let x = Tensor::full([1], x, &Device::cpu()).compute()?;
        f(&x).sum(..).grad(&[&x]).swap_remove(0).item::<f64>()
    };
    let examples: [(&str, f32, fn(&Tensor) -> Tensor); 13] = [
        ("relu at 0", 0.0, Tensor::relu),
        ("leaky_relu(0.1) at 0", 0.0, |x| x.leaky_relu(0.1)),
        ("elu(1) at 0", 0.0, |x| x.elu(1.0)),
        ("clamp(0, 1) at 1", 1.0, |x| x.clamp(0, 1)),
        ("maximum(1) at 1", 1.0, |x| x.maximum(1)),
        ("abs at 0", 0.0, Tensor::abs),
        ("sqrt at 0", 0.0, Tensor::sqrt),
        ("pow(0) at 0", 0.0, |x| x.pow(0)),
        ("norm at 0", 0.0, |x| x.norm(..)),
        ("std of one number", 2.0, |x| x.std(.., 0)),
        ("atan2(x, x) at the origin", 0.0, |x| x.atan2(x)),
        ("relu at NaN", NAN, Tensor::relu),
        ("maximum(1) at NaN", NAN, |x| x.maximum(1)),
    ];
    let mut rows = Vec::new();
    for (text, x, f) in examples {
        rows.push(vec![code(text), number(of(x, f).map_err(|e| format!("{text}: {e}"))?)]);
    }
    let rule = paragraph(
        "First and second gradients are compared with PyTorch's, in double precision, at zeros, subnormals, edges, where \
         functions saturate, at huge and infinite numbers and at NaN, on every device. Where a function bends, its gradient is \
         PyTorch's: 0 at the edge of `relu` and `clamp`, half for each of two equal sides of `maximum` and `minimum`, equal \
         parts for equal elements of `max` and `min`, 0 where `norm` or `std` is 0 and at the origin of `atan2`. NaN lets \
         gradients pass through `maximum`, `minimum`, `relu` and `clamp`. Where a function has no value, its gradient is not \
         promised.",
    );
    let limits = paragraph(
        "Where `tanh` is nearly ±1 its gradient is 1 − y², which has the digits that y has left: it is off by up to 1e−7, as \
         PyTorch's is. First and second gradients of `softmax`, `log_softmax` and `logsumexp` keep their digits also where one \
         element has nearly everything: each is within 16 + d units of 1.2e−7 of the terms of its row without their signs, for \
         rows whose numbers are up to d apart, and within 6e−14 of the incoming gradient where that is nearly constant.",
    );
    let limits = limits.trim_end();
    Ok(format!("## Gradients\n\n{rule}{}\n{limits}\n", table(&["function", "gradient"], rows)))
}

fn validation() -> Result<String, String> {
    let results = numpy::validate()?;
    let (n_rows, n_passed) = results.iter().fold((0, 0), |(n, p), v| (n + v.n_rows, p + v.n_passed));
    let rows = results.iter().map(|v| vec![code(v.name), thousands(v.n_rows), thousands(v.n_passed)]);
    let verdict =
        if n_passed == n_rows { "all of them pass".to_string() } else { format!("{} fail", n_rows - n_passed) };
    let verdict = paragraph(&format!(
        "NumPy ships a validation set for its elementary functions: arguments that are hard, with the result in higher \
         precision and the error that is allowed. Its {} rows for f32 were run through tensors while this page was \
         written: {verdict}.",
        thousands(n_rows)
    ));
    Ok(format!("## NumPy's own validation\n\n{verdict}{}", table(&["function", "rows", "passed"], rows)))
}
