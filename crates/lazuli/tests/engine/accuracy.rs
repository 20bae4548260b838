//! How near the truth results are: every row of the op table against its known values and, over its range, its f64
//! oracle, at the error it states; NumPy's own validation rows; and what is composed of rows.

use lazuli::ops::{BinaryRow, Gives, ReduceRow, Takes, UnaryRow, table};
use lazuli::{Attention, Conv, DType, Device, Tensor};
use lazuli_check::methods::{call_binary, call_unary};

use crate::device::{device, flushes_subnormals, stated};
use crate::shared;

/// One unit in the last place of an f32 of this size.
fn ulp(y: f64) -> f64 {
    let y = y.abs().max(f32::MIN_POSITIVE as f64);
    f64::powi(2.0, y.log2().floor() as i32 - 23)
}

/// Whether `got` is `want` within some units in the last place; NaN and infinities must be themselves.
fn is_near(got: f32, want: f64, ulps: f64) -> bool {
    if want.is_nan() || got.is_nan() {
        return want.is_nan() && got.is_nan();
    }
    // Beyond the largest float there is only infinity, from half a unit on.
    let limit = f32::MAX as f64 + 0.5 * ulp(f32::MAX as f64);
    if got.is_infinite() {
        return want.signum() == got.signum() as f64 && want.abs() + ulps * ulp(f32::MAX as f64) >= limit;
    }
    let flushed = got == 0.0 && want.abs() < f32::MIN_POSITIVE as f64 && flushes_subnormals();
    flushed || (got as f64 - want).abs() <= ulps * ulp(want) * (1.0 + 1e-9)
}

#[track_caller]
fn check_near(what: impl Fn(usize) -> String, got: &[f32], want: &[f64], ulps: f64) {
    assert_eq!(got.len(), want.len());
    let far = (0..got.len()).find(|i| !is_near(got[*i], want[*i], ulps));
    if let Some(i) = far {
        let off = (got[i] as f64 - want[i]).abs() / ulp(want[i]);
        panic!("{} = {:e}, not {:e}: {off:.2} units of {ulps}", what(i), got[i], want[i]);
    }
}

fn row_of(values: &[f64], dtype: DType) -> Tensor {
    let cpu = device();
    match dtype {
        DType::F32 => Tensor::from_vec(values.iter().map(|v| *v as f32).collect(), [values.len()], &cpu),
        DType::I32 => Tensor::from_vec(values.iter().map(|v| *v as i32).collect(), [values.len()], &cpu),
        DType::U32 => Tensor::from_vec(values.iter().map(|v| *v as u32).collect(), [values.len()], &cpu),
        DType::U8 => Tensor::from_vec(values.iter().map(|v| *v as u8).collect(), [values.len()], &cpu),
        _ => Tensor::from_vec(values.iter().map(|v| *v != 0.0).collect(), [values.len()], &cpu),
    }
}

/// Floats of a range: evenly, and closer and closer to zero. As f32 has them.
fn samples(range: (f64, f64), n: usize) -> Vec<f64> {
    let even = (0..n).map(|i| range.0 + (range.1 - range.0) * (i as f64 + 0.37) / n as f64);
    let closer = (0..n / 4).flat_map(|i| {
        let size = range.0.abs().max(range.1) * f64::powf(2.0, -(i as f64) * 100.0 / n as f64);
        [size, -size]
    });
    even.chain(closer).map(|v| v as f32 as f64).filter(|v| (range.0..=range.1).contains(v)).collect()
}

/// Floats of every size and sign, NaN and infinities among them; `seed` tells one choice from another. Where subnormal
/// numbers are taken for zero, so are the least of these: steps on the way to their results are subnormal.
fn of_all_sizes(n: u64, seed: u64) -> Vec<f64> {
    let least = if flushes_subnormals() { 1e-30 } else { 0.0 };
    let bits = (0..n).map(|i| (i * (1 << 32) / n + i.wrapping_mul(seed) % 65_521) as u32);
    bits.map(|bits| f32::from_bits(bits) as f64).map(|v| if v.abs() < least { 0.0 } else { v }).collect()
}

/// Results as f64, whatever the dtype.
fn floats(out: Tensor) -> Vec<f64> {
    out.to_vec::<f64>().unwrap()
}

/// The dtype a row's tables are about.
fn table_dtype(takes: Takes) -> DType {
    match takes {
        Takes::Int | Takes::Bits => DType::I32,
        Takes::Bool => DType::Bool,
        _ => DType::F32,
    }
}

/// An integer cut to a dtype.
fn wrapped(v: i64, dtype: DType) -> f64 {
    match dtype {
        DType::U8 => v as u8 as f64,
        DType::U32 => v as u32 as f64,
        DType::Bool => (v != 0) as u8 as f64,
        _ => v as i32 as f64,
    }
}

#[test]
fn unary_rows_give_their_known_values() {
    let _device = shared();
    for row in table().unary {
        let dtype = table_dtype(row.takes);
        let (x, y): (Vec<f64>, Vec<f64>) = row.known.iter().copied().unzip();
        let got = floats(call_unary(row.name, &row_of(&x, dtype)));
        let same = |i: usize| {
            let signed = y[i] != 0.0
                || row.gives == Gives::Bool
                || dtype != DType::F32
                || y[i].is_sign_negative() == got[i].is_sign_negative();
            signed && is_near(got[i] as f32, y[i], stated(row.ulps, row.gpu_ulps).max(0.5))
        };
        if let Some(i) = (0..x.len()).find(|i| !same(*i)) {
            panic!("{}({:e}) = {:e}, not {:e}", row.name, x[i], got[i], y[i]);
        }
    }
}

#[test]
fn unary_rows_are_within_their_error_of_their_oracle() {
    let _device = shared();
    for row in table().unary {
        match table_dtype(row.takes) {
            DType::F32 => {
                check_unary(row, &samples(row.range, 20_000));
                check_unary(row, &of_all_sizes(60_000, 40_503));
            }
            DType::Bool => assert_eq!(
                floats(call_unary(row.name, &row_of(&[0.0, 1.0], DType::Bool))),
                [(row.oracle)(0.0), (row.oracle)(1.0)]
            ),
            _ => {}
        }
        for dtype in [DType::I32, DType::U32, DType::U8] {
            if row.takes.cast(dtype) == Some(dtype) {
                check_unary_integers(row, dtype);
            }
        }
    }
}

fn check_unary(row: &UnaryRow, x: &[f64]) {
    let got: Vec<f32> = floats(call_unary(row.name, &row_of(x, DType::F32))).into_iter().map(|v| v as f32).collect();
    let want: Vec<f64> = x.iter().map(|x| (row.oracle)(*x)).collect();
    check_near(|i| format!("{}({:e})", row.name, x[i]), &got, &want, stated(row.ulps, row.gpu_ulps));
}

/// Integers of a dtype, the ends of its range among them.
fn integers(dtype: DType) -> Vec<i64> {
    match dtype {
        DType::U8 => (0..256).collect(),
        DType::U32 => (0..40)
            .chain((0..40).map(|i| u32::MAX as i64 - i))
            .chain([1 << 31, (1 << 31) - 1, 65_535, 65_536, 16_777_217])
            .collect(),
        _ => (-40..40)
            .chain([i32::MIN as i64, i32::MIN as i64 + 1, i32::MAX as i64, 65_536, -65_537, 16_777_217])
            .collect(),
    }
}

fn check_unary_integers(row: &UnaryRow, dtype: DType) {
    let x = integers(dtype);
    let given = row.gives.dtype(dtype);
    let as_floats: Vec<f64> = x.iter().map(|v| *v as f64).collect();
    let got = floats(call_unary(row.name, &row_of(&as_floats, dtype)));
    for (i, x) in x.iter().enumerate() {
        let want = wrapped((row.oracle)(*x as f64) as i64, given);
        assert_eq!(got[i], want, "{}({x}) of {dtype}", row.name);
    }
}

#[test]
fn binary_rows_give_their_known_values() {
    let _device = shared();
    for row in table().binary.iter().filter(|r| r.name != "random") {
        let dtype = table_dtype(row.takes);
        let x: Vec<f64> = row.known.iter().map(|k| k.0).collect();
        let y: Vec<f64> = row.known.iter().map(|k| k.1).collect();
        let got = floats(call_binary(row.name, &row_of(&x, dtype), &row_of(&y, dtype)));
        for (i, (_, _, want)) in row.known.iter().enumerate() {
            let signed = *want != 0.0
                || dtype != DType::F32
                || row.gives == Gives::Bool
                || want.is_sign_negative() == got[i].is_sign_negative();
            assert!(
                signed && is_near(got[i] as f32, *want, stated(row.ulps, row.gpu_ulps).max(0.5)),
                "{}({:e}, {:e}) = {:e}, not {want:e}",
                row.name,
                x[i],
                y[i],
                got[i]
            );
        }
    }
}

#[test]
fn binary_rows_are_within_their_error_of_their_oracle() {
    let _device = shared();
    for row in table().binary.iter().filter(|r| r.name != "random") {
        if table_dtype(row.takes) == DType::F32 {
            check_binary(row);
        }
        for dtype in [DType::I32, DType::U32, DType::U8, DType::Bool] {
            if row.takes.cast(dtype) == Some(dtype) {
                check_binary_integers(row, dtype);
            }
        }
    }
}

/// Every sample of one side with every sample of the other, as vectors, and with numbers on the right.
fn check_binary(row: &BinaryRow) {
    let ulps = stated(row.ulps, row.gpu_ulps);
    let check = |x: &[f64], y: &[f64]| {
        let got = floats(call_binary(row.name, &row_of(x, DType::F32), &row_of(y, DType::F32)));
        let got: Vec<f32> = got.into_iter().map(|v| v as f32).collect();
        let want: Vec<f64> = x.iter().zip(y).map(|(x, y)| (row.oracle)(*x, *y)).collect();
        check_near(|i| format!("{}({:e}, {:e})", row.name, x[i], y[i]), &got, &want, ulps);
    };
    let mut others = of_all_sizes(60_000, 48_271);
    others.rotate_left(21_000);
    check(&of_all_sizes(60_000, 40_503), &others);
    let side = samples(row.range, 150);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    side.iter().for_each(|a| {
        side.iter().for_each(|b| {
            x.push(*a);
            y.push(*b);
        })
    });
    check(&x, &y);
    for number in side.iter().step_by(side.len() / 10).map(|v| *v as f32) {
        let got: Vec<f32> =
            floats(call_binary(row.name, &row_of(&side, DType::F32), number)).into_iter().map(|v| v as f32).collect();
        let want: Vec<f64> = side.iter().map(|x| (row.oracle)(*x, number as f64)).collect();
        check_near(|i| format!("{}({:e}, {number:e})", row.name, side[i]), &got, &want, ulps);
    }
}

fn check_binary_integers(row: &BinaryRow, dtype: DType) {
    let side = if dtype == DType::Bool { vec![0, 1] } else { integers(dtype) };
    let (mut x, mut y) = (Vec::new(), Vec::new());
    side.iter().for_each(|a| {
        side.iter().for_each(|b| {
            x.push(*a as f64);
            y.push(*b as f64);
        })
    });
    let given = row.gives.dtype(dtype);
    let got = floats(call_binary(row.name, &row_of(&x, dtype), &row_of(&y, dtype)));
    for i in 0..x.len() {
        let exact = match row.oracle_int {
            Some(f) => f(x[i] as i64, y[i] as i64),
            None => (row.oracle)(x[i], y[i]) as i64,
        };
        assert_eq!(got[i], wrapped(exact, given), "{}({}, {}) of {dtype}", row.name, x[i], y[i]);
    }
}

/// A reduction by name.
fn reduced(row: &ReduceRow, x: &Tensor, axis: i32) -> Tensor {
    match row.name {
        "sum" => x.sum(axis),
        "prod" => x.prod(axis),
        "max" => x.max(axis),
        "min" => x.min(axis),
        name => panic!("the reduction {name} has no test"),
    }
}

#[test]
fn reduce_rows_give_their_known_values_and_are_within_their_error() {
    let _device = shared();
    for row in table().reduce {
        for (elements, want) in row.known {
            let got = floats(reduced(row, &row_of(elements, DType::F32), 0));
            assert!(
                is_near(got[0] as f32, *want, row.ulps.max(0.5)),
                "{} of {elements:?} is {}, not {want}",
                row.name,
                got[0]
            );
        }
        for n in [1, 2, 7, 64, 100, 1000, 4097, 70_001] {
            // Near one, so that products stay in range; with both signs, so that sums cancel.
            let sign = |i: usize| if row.name != "prod" && i.is_multiple_of(3) { -1.0 } else { 1.0 };
            let x: Vec<f64> =
                (0..n).map(|i| (sign(i) * (1.0 + ((i * 37 % 101) as f64 - 50.0) * 1e-4)) as f32 as f64).collect();
            let want = x.iter().fold(row.identity, |a, b| (row.oracle)(a, *b));
            let magnitudes = if row.name == "sum" { x.iter().map(|v| v.abs()).sum() } else { want };
            let as_row = row_of(&x, DType::F32);
            // Along a row, and down a column beside others.
            let columns = Tensor::stack(&[&as_row, &as_row.neg(), &as_row], 1);
            for got in [floats(reduced(row, &as_row, 0))[0], floats(reduced(row, &columns, 0))[2]] {
                // A product's roundings add up with its length.
                let ulps = if row.name == "prod" { row.ulps.max(0.5 * n as f64) } else { row.ulps };
                let error = (got - want).abs() / ulp(magnitudes);
                assert!(error <= ulps, "{} of {n}: {got:e} is {error} units from {want:e}", row.name);
            }
        }
    }
}

/// Steps from one f32 to another; NaN is next to NaN only.
fn steps(a: f32, b: f32) -> i64 {
    let rank = |v: f32| if v.is_sign_negative() { -((v.to_bits() & 0x7fff_ffff) as i64) } else { v.to_bits() as i64 };
    match (a.is_nan(), b.is_nan()) {
        (false, false) => (rank(a) - rank(b)).abs(),
        (true, true) => 0,
        _ => i64::MAX,
    }
}

#[test]
fn every_validation_row_of_numpy_is_within_its_tolerance() {
    let _device = shared();
    let mut n_rows = 0;
    for name in [
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "cos", "cosh", "exp", "exp2", "expm1", "log",
        "log10", "log1p", "log2", "sin", "sinh", "tan", "tanh",
    ] {
        let path = format!("{}/tests/fixtures/numpy/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let rows: Vec<(f32, f32, i64)> = (text.lines())
            .map(|line| {
                let cells: Vec<&str> = line.split(' ').collect();
                let float = |i: usize| f32::from_bits(u32::from_str_radix(cells[i], 16).unwrap());
                (float(0), float(1), cells[2].parse().unwrap())
            })
            .collect();
        let x = Tensor::from_vec(rows.iter().map(|r| r.0).collect(), [rows.len()], &device());
        let got = call_unary(name, &x).to_vec::<f32>().unwrap();
        for ((x, want, tolerance), got) in rows.iter().zip(got) {
            if flushes_subnormals() && (x.is_subnormal() || want.is_subnormal()) {
                continue;
            }
            assert!(steps(got, *want) <= *tolerance, "{name}({x:e}) = {got:e}, not {want:e}");
        }
        n_rows += rows.len();
    }
    assert_eq!(n_rows, 13_181);
}

/// A composed op against its definition in f64: within so many units in the last place of the result, and so many of
/// what it is a difference of.
#[track_caller]
fn check_composed(name: &str, f: impl Fn(f64) -> f64, range: (f64, f64), ulps: f64, scale: impl Fn(f64) -> f64) {
    let x = samples(range, 20_000);
    let got = floats(call_unary(name, &row_of(&x, DType::F32)));
    for (x, got) in x.iter().zip(got) {
        let want = f(*x);
        let allowed = ulps * ulp(want).max(ulp(scale(*x)));
        assert!(
            (got - want).abs() <= allowed,
            "{name}({x:e}) = {got:e}, not {want:e}: {} units",
            (got - want).abs() / ulp(want)
        );
    }
}

#[test]
fn activations_are_near_their_definitions() {
    let _device = shared();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let none = |_: f64| 0.0;
    check_composed("sigmoid", sigmoid, (-87.0, 87.0), 3.5, none);
    check_composed("silu", |x| x * sigmoid(x), (-87.0, 87.0), 4.0, none);
    check_composed("softplus", |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), (-87.0, 87.0), 4.0, none);
    check_composed("relu", |x| x.max(0.0), (-10.0, 10.0), 0.0, none);
    check_composed("square", |x| x * x, (-10.0, 10.0), 0.5, none);
    check_composed(
        "hardswish",
        |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        (-10.0, 10.0),
        3.0,
        |x| if x < 0.0 { x } else { 0.0 },
    );
    // ½x·(1 + …): below zero a difference of nearly equal numbers.
    let below = |x: f64| if x < 0.0 { 0.5 * x } else { 0.0 };
    let gelu = |x: f64| 0.5 * x * (1.0 + libm_erf(x * std::f64::consts::FRAC_1_SQRT_2));
    check_composed("gelu", gelu, (-6.0, 6.0), 3.0, below);
    let inner = |x: f64| (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    check_composed("gelu_tanh", |x| 0.5 * x * (1.0 + inner(x).tanh()), (-6.0, 6.0), 4.0, below);
}

/// The error function, from the table's own oracle.
fn libm_erf(x: f64) -> f64 {
    let row = table().unary.into_iter().find(|row| row.name == "erf").unwrap();
    (row.oracle)(x)
}

#[test]
fn statistics_of_numbers_far_from_zero_keep_their_digits() {
    let _device = shared();
    let n = 10_000;
    let x: Vec<f64> = (0..n).map(|i| (1e4 + (i * 37 % 101) as f64 / 64.0) as f32 as f64).collect();
    let mean = x.iter().sum::<f64>() / n as f64;
    let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
    let t = row_of(&x, DType::F32);
    let near = |got: Tensor, want: f64, relative: f64| {
        let got = got.item::<f64>().unwrap();
        assert!((got - want).abs() <= relative * want.abs(), "{got} is not {want}");
    };
    near(t.mean(..), mean, 4.0 * f32::EPSILON as f64);
    // The mean is rounded to a unit of 10⁴, which is what the variance then is off by, squared.
    near(t.var(.., 0), var, 1e-4);
    near(t.std(.., 0), var.sqrt(), 1e-4);
    let normal: Vec<f64> = floats(t.layer_norm(-1, None, None, 0.0));
    assert!(normal.iter().zip(&x).all(|(got, x)| (got - (x - mean) / var.sqrt()).abs() < 5e-3));
    let log_sum = x.iter().map(|v| (v - 1e4).exp()).sum::<f64>().ln() + 1e4;
    near(t.logsumexp(..), log_sum, 2.0 * f32::EPSILON as f64);
    let probabilities: f64 = floats(t.softmax(-1)).iter().sum();
    assert!((probabilities - 1.0).abs() < 1e-5);
}

#[test]
fn sums_stay_within_their_error_where_every_addition_rounds_the_same_way() {
    let _device = shared();
    let stated = table().reduce.into_iter().find(|row| row.name == "sum").unwrap().ulps;
    // One, and then halves of its unit: added one by one to it, each is lost.
    for n in [33, 257, 1025, 4097, 70_001] {
        let x: Vec<f64> = (0..n).map(|i| if i == 0 { 1.0 } else { f64::powi(2.0, -24) }).collect();
        let want: f64 = x.iter().sum();
        let row = row_of(&x, DType::F32);
        let columns = Tensor::stack(&[&row, &row, &row], 1);
        let wide = Tensor::stack(&vec![&row; 40], 1);
        for (what, sum) in [("a row", row.sum(0)), ("a column", columns.sum(0)), ("a column of many", wide.sum(0))] {
            let error = (floats(sum)[0] - want).abs() / ulp(want);
            assert!(error <= stated, "{what} of {n}: {error} units of the {stated} stated");
        }
    }
}

#[test]
fn products_of_very_many_terms_keep_their_digits() {
    let _device = shared();
    let on = Device::cpu();
    let far = |got: Vec<f32>, want: f64| got.iter().map(|x| (*x as f64 / want - 1.0).abs()).fold(0.0, f64::max);
    // The gradient of a weight is a sum over all places of an image: of equal terms, which all round the same way.
    for (channels, size, window) in [(1, 512, 5), (3, 256, 7), (1, 512, 3)] {
        let x = Tensor::full([1, channels, size + window - 1, size + window - 1], 0.1, &on).compute().unwrap();
        let w = Tensor::ones([channels, 1, window, window], DType::F32, &on).compute().unwrap().tracked();
        let g = Tensor::ones([1, channels, size, size], DType::F32, &on).compute().unwrap();
        let y = x.conv(&w, None, Conv { groups: channels, ..Conv::default() });
        let dw = y.mul(&g).sum(..).grad(&[&w]).remove(0).to_vec::<f32>().unwrap();
        let error = far(dw, 0.1f32 as f64 * (size * size) as f64);
        assert!(error < 5e-5, "windows of {window} over {size}: {error:e}");
    }
    // Attention to all keys alike is the mean of values.
    for heads in [2, 64] {
        let [q, k] = [1, 4096].map(|n| Tensor::zeros([heads, n, 64], DType::F32, &on).compute().unwrap());
        let v = Tensor::full([heads, 4096, 64], 0.1, &on).compute().unwrap();
        let error = far(q.attention(&k, &v, Attention::default()).to_vec().unwrap(), 0.1f32 as f64);
        assert!(error < 1e-5, "{heads} heads: {error:e}");
    }
}

#[test]
fn softmax_keeps_its_digits_wherever_the_largest_element_is() {
    let _device = shared();
    let kinds: [(&str, fn(usize) -> f32); 6] = [
        ("rising slowly", |i| i as f32 * 0.01),
        ("rising steeply", |i| i as f32 * 3.7),
        ("rising by more than floats can count", |i| if i < 40 { -3.4e38 } else { i as f32 }),
        ("falling", |i| 500.0 - i as f32 * 0.3),
        ("back and forth", |i| (i * 7919 % 1013) as f32 * 0.17 - 90.0),
        ("out of nothing", |i| if i % 100 < 60 { f32::NEG_INFINITY } else { i as f32 * 0.02 - 7.0 }),
    ];
    // Few rows are shared by several invocations, many are not.
    for (n, n_rows) in [(70, 16), (100, 16), (1024, 16), (1030, 16), (5000, 16), (1024, 4), (1030, 3)] {
        for (kind, f) in kinds {
            let x: Vec<f32> = (0..n).map(f).collect();
            let largest = x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b)) as f64;
            let sum: f64 = x.iter().map(|x| (*x as f64 - largest).exp()).sum();
            let rows = Tensor::from_vec(x.repeat(n_rows), [n_rows, n], &device());
            let columns = rows.t().compute().unwrap();
            for (along, out) in [("rows", rows.softmax(1)), ("columns", columns.softmax(0).t())] {
                for row in out.to_vec::<f32>().unwrap().chunks(n) {
                    for (x, got) in x.iter().zip(row) {
                        // The difference is rounded, and so is each of exp, the sum's few steps, and the product.
                        let less = *x as f64 - largest;
                        let want = less.exp() / sum;
                        let ulps = 8.0 - less.max(-104.0);
                        let off = (*got as f64 - want).abs();
                        assert!(
                            off <= want * ulps * f32::EPSILON as f64 + 1e-37,
                            "{n} {kind}, {along}: {got} is not {want} ({} units)",
                            off / want / f32::EPSILON as f64
                        );
                    }
                }
            }
        }
    }
}

/// Products whose sums are much longer than a block, of a single row alone and of one in a batch, against the exact sum.
#[test]
fn long_sums_of_single_rows_lose_no_digits() {
    let _device = shared();
    let (k, n, device) = (1 << 18, 8, device());
    let b = Tensor::full([2, k, n], 1.0f32, &device).compute().unwrap();
    for batch in [1, 2] {
        let a = Tensor::full([batch, 1, k], 0.1f32, &device).compute().unwrap();
        let y = a.matmul(&b.narrow(0, 0, batch)).to_vec::<f32>().unwrap();
        let want = 0.1f32 as f64 * k as f64;
        let off = y.iter().map(|y| (*y as f64 - want).abs() / want).fold(0.0, f64::max);
        // 512 products in a row, then 512 sums: each rounding is at most half a unit, 6e-8.
        assert!(off <= 3.1e-5, "{off:e} with a batch of {batch}");
    }
}
