//! Exponentials, logarithms, trigonometric, hyperbolic and error functions. The arithmetic is in `math`; here is what
//! else there is to know of them.

use std::f64::consts::{FRAC_2_SQRT_PI, FRAC_PI_2, FRAC_PI_3, FRAC_PI_4, FRAC_PI_6, LN_2, LN_10, LOG2_10, PI, SQRT_2};

use super::math;
use super::unary::unary_rows;
use crate::dtype::DType;
use crate::tensor::Tensor;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

unary_rows! {
    /// The exponential, `eˣ`.
    EXP exp: Float -> Same, cost 12, ulps 1.1, gpu_ulps 1.4, range (-104.0, 89.0), step Exp;
    cpu f32 -> f32 |x| math::exp::<L>(x);
    oracle f64::exp;
    wgsl "exp_f32($x)";
    grad Some(|_, y, g| g.mul(y));
    known (0.0, 1.0), (1.0, 2.718281828459045), (-3.0, 0.049787068367863944), (-INF, 0.0), (INF, INF), (NAN, NAN);

    /// Two to the power, `2ˣ`.
    EXP2 exp2: Float -> Same, cost 12, ulps 1.1, range (-150.0, 128.5);
    cpu f32 -> f32 |x| math::exp2::<L>(x);
    oracle f64::exp2;
    wgsl "exp2_f32($x)" "
fn exp2_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    if (x >= 128.0) { return inf_f32(); }
    if (x < -150.0) { return 0.0; }
    let n = round(x);
    return scaled_f32(exp2_unit_f32(x - n), i32(n));
}
";
    // In f32: ln 2 has more digits than a half float.
    grad Some(|_, y, g| wide(&g.mul(y)).mul(LN_2));
    known (0.0, 1.0), (10.0, 1024.0), (0.5, SQRT_2), (-INF, 0.0), (INF, INF), (NAN, NAN);

    /// `eˣ − 1`, exact also where `x` is small.
    EXPM1 expm1: Float -> Same, cost 14, ulps 1.5, range (-20.0, 89.0);
    cpu f32 -> f32 |x| math::expm1::<L>(x);
    oracle f64::exp_m1;
    wgsl "expm1_f32($x)" "
fn expm1_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || abs(x) < 3e-8) { return x; }
    if (x > 88.72284) { return inf_f32(); }
    if (x < -18.0) { return -1.0; }
    let n = round(x * 1.442695);
    let r = (x - n * 0.69314575) - n * 1.4286068e-6;
    let q = 0.041666493 + r * (0.008333543 + r * (0.001393238 + r * 0.00019764387));
    let p = r + r * r * (0.5 + r * (0.16666666 + r * q));
    // 2ⁿ·eʳ − 1 = 2·(h·p + h − ½) with h = 2ⁿ⁻¹, which unlike 2ⁿ is finite for the largest n.
    let h = bitcast<f32>(bitcast<u32>(i32(n) + 126i) << 23u);
    return 2.0 * (h * p + (h - 0.5));
}
";
    // (eˣ − 1)′ = eˣ, which y + 1 has lost where y is nearly −1.
    grad Some(|x, _, g| g.mul(&x.exp()));
    known (0.0, 0.0), (1.0, 1.7182818284590453), (-0.5, -0.3934693402873666), (-INF, -1.0), (INF, INF), (NAN, NAN);

    /// The natural logarithm, `ln x`; NaN of a negative number.
    LOG log: Float -> Same, cost 12, ulps 1.0, range (0.0, 100.0);
    cpu f32 -> f32 |x| math::log::<L>(x);
    oracle f64::ln;
    wgsl "log_f32($x)";
    grad Some(|x, _, g| g.div(x));
    known (1.0, 0.0), (2.0, LN_2), (10.0, LN_10), (0.0, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN);

    /// The logarithm to base 2.
    LOG2 log2: Float -> Same, cost 12, ulps 1.6, range (0.0, 100.0);
    cpu f32 -> f32 |x| math::log2::<L>(x);
    oracle f64::log2;
    wgsl "log2_f32($x)" "
fn log2_f32(x: f32) -> f32 {
    if (x < 0.0 || is_nan_f32(x)) { return nan_f32(); }
    if (x == 0.0) { return -inf_f32(); }
    if (is_inf_f32(x)) { return x; }
    let p = log_parts_f32(x);
    // (f + t)·log₂ e, of which the upper halves' product is exact.
    let hi = bitcast<f32>(bitcast<u32>(p.y) & 0xfffff000u);
    let small = hi * 0.00031222839 + (p.y - hi + log_rest_f32(p.y)) * 1.442695;
    return p.x + (hi * 1.4423828 + small);
}
";
    grad Some(|x, _, g| wide(g).div(&wide(x).mul(LN_2)));
    known (8.0, 3.0), (0.5, -1.0), (10.0, LOG2_10), (0.0, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN);

    /// The logarithm to base 10.
    LOG10 log10: Float -> Same, cost 12, ulps 1.5, range (0.0, 1000.0);
    cpu f32 -> f32 |x| math::log10::<L>(x);
    oracle f64::log10;
    wgsl "log10_f32($x)" "
fn log10_f32(x: f32) -> f32 {
    if (x < 0.0 || is_nan_f32(x)) { return nan_f32(); }
    if (x == 0.0) { return -inf_f32(); }
    if (is_inf_f32(x)) { return x; }
    let p = log_parts_f32(x);
    // As in log2, with f·½ taken out.
    let small = p.x * 4.605039e-6 + (p.y * -0.06570552 + log_rest_f32(p.y) * 0.4342945);
    return p.x * 0.3010254 + (p.y * 0.5 + small);
}
";
    grad Some(|x, _, g| wide(g).div(&wide(x).mul(LN_10)));
    known (1000.0, 3.0), (2.0, 0.3010299956639812), (0.0, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN);

    /// `ln(1 + x)`, exact also where `x` is small.
    LOG1P log1p: Float -> Same, cost 14, ulps 1.6, range (-1.0, 100.0);
    cpu f32 -> f32 |x| math::log1p::<L>(x);
    oracle f64::ln_1p;
    wgsl "log1p_f32($x)" "
fn log1p_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || x < -1.0) { return nan_f32(); }
    if (x == -1.0) { return -inf_f32(); }
    if (is_inf_f32(x) || abs(x) < 3e-8) { return x; }
    let u = two_sum_f32(select(1.0, x, x > 1.0), select(x, 1.0, x > 1.0));
    return log_sum_f32(u.x, u.y, 0.0);
}
";
    grad Some(|x, _, g| g.div(&x.add(1.0)));
    known (0.0, 0.0), (1.0, LN_2), (-0.5, -LN_2), (10.0, 2.3978952727983707), (-1.0, -INF), (-2.0, NAN), (INF, INF);

    /// The sine.
    SIN sin: Float -> Same, cost 16, ulps 0.6, gpu_ulps 1.3, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::sin::<L>(x); slow |x| math::trig_needs_slow(x) => math::sin_slow(x);
    oracle f64::sin;
    wgsl "sin_f32($x)" "
fn sin_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return nan_f32(); }
    if (abs(x) < 0.0002) { return x; }
    return sin_of_parts_f32(trig_parts_f32(x), 0i);
}
";
    grad Some(|x, _, g| g.mul(&x.cos()));
    known (0.0, 0.0), (1.0, 0.8414709848078965), (-3.0, -0.1411200080598672), (1073741824.0, -0.6173264150460421), (INF, NAN), (NAN, NAN);

    /// The cosine.
    COS cos: Float -> Same, cost 16, ulps 0.6, gpu_ulps 1.3, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::cos::<L>(x); slow |x| math::trig_needs_slow(x) => math::cos_slow(x);
    oracle f64::cos;
    wgsl "cos_f32($x)" "
fn cos_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return nan_f32(); }
    return sin_of_parts_f32(trig_parts_f32(x), 1i);
}
";
    grad Some(|x, _, g| g.mul(&x.sin()).neg());
    known (0.0, 1.0), (1.0, 0.5403023058681398), (1073741824.0, 0.7867071229411882), (INF, NAN), (NAN, NAN);

    /// The tangent.
    TAN tan: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.8, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::tan::<L>(x); slow |x| math::trig_needs_slow(x) => math::tan_slow(x);
    oracle f64::tan;
    wgsl "tan_f32($x)" "
fn tan_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return nan_f32(); }
    if (abs(x) < 0.0002) { return x; }
    let p = trig_parts_f32(x);
    let z = p.x * p.x;
    let q = 0.054059967 + z * (0.02128192 + z * (0.010836515 + z * (8.863373e-5 + z * 0.0043767267)));
    let rest = p.x * z * (0.3333335 + z * (0.13332663 + z * q));
    let t = p.x + rest;
    let y = p.x + (rest + (p.y + p.y * t * t));
    return select(y, -1.0 / y, (i32(p.z) & 1i) != 0i);
}
";
    // (tan x)′ = 1 + tan² x
    grad Some(|_, y, g| g.mul(&y.mul(y).add(1.0)));
    known (0.0, 0.0), (1.0, 1.5574077246549023), (1073741824.0, -0.7846966133192005), (INF, NAN), (NAN, NAN);

    /// The arc sine, −π/2 to π/2; NaN beyond −1 and 1.
    ASIN asin: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.3, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::asin::<L>(x);
    oracle f64::asin;
    wgsl "asin_f32($x)" "
fn asin_f32(x: f32) -> f32 {
    let a = abs(x);
    if (is_nan_f32(x) || a > 1.0) { return nan_f32(); }
    // Beyond ½, π/2 - 2·asin √((1 - a)/2).
    let far = a > 0.5;
    let z = select(a * a, 0.5 - 0.5 * a, far);
    let s = select(a, sqrt(z), far);
    let rest = asin_rest_f32(s, z);
    let near = two_sum_f32(1.5707964, -2.0 * s);
    return copysign_f32(select(s + rest, near.x + (near.y - (2.0 * rest + 4.371139e-8)), far), x);
}
";
    grad Some(|x, _, g| g.mul(&x.mul(x).neg().add(1.0).rsqrt()));
    known (0.0, 0.0), (0.5, FRAC_PI_6), (-1.0, -FRAC_PI_2), (2.0, NAN), (INF, NAN), (NAN, NAN);

    /// The arc cosine, 0 to π; NaN beyond −1 and 1.
    ACOS acos: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.3, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::acos::<L>(x);
    oracle f64::acos;
    wgsl "acos_f32($x)" "
fn acos_f32(x: f32) -> f32 {
    let a = abs(x);
    if (is_nan_f32(x) || a > 1.0) { return nan_f32(); }
    if (a <= 0.5) {
        let s = asin_rest_f32(a, a * a);
        return 1.5707964 - (x + (copysign_f32(s, x) + 4.371139e-8));
    }
    let z = 0.5 - 0.5 * a;
    let s = 2.0 * sqrt(z);
    let rest = asin_rest_f32(s, z);
    return select(s + rest, 3.1415927 - (s + (rest + 8.742278e-8)), x < 0.0);
}
";
    grad Some(|x, _, g| g.mul(&x.mul(x).neg().add(1.0).rsqrt()).neg());
    known (1.0, 0.0), (0.5, FRAC_PI_3), (0.0, FRAC_PI_2), (-1.0, PI), (2.0, NAN), (INF, NAN), (NAN, NAN);

    /// The arc tangent, −π/2 to π/2.
    ATAN atan: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.5, range (-10.0, 10.0);
    cpu f32 -> f32 |x| math::atan::<L>(x);
    oracle f64::atan;
    wgsl "atan_f32($x)" "
fn atan_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    let a = min(abs(x), 1e20);
    let t = min(a, 1.0) / max(a, 1.0);
    return copysign_f32(select(atan_from_f32(0.0, t), atan_from_f32(1.0, -t), a > 1.0), x);
}
";
    grad Some(grad_of_atan);
    known (0.0, 0.0), (1.0, FRAC_PI_4), (2.0, 1.1071487177940904), (INF, FRAC_PI_2), (-INF, -FRAC_PI_2), (NAN, NAN);

    /// The hyperbolic sine.
    SINH sinh: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.7, range (-90.0, 90.0);
    cpu f32 -> f32 |x| math::sinh::<L>(x);
    oracle f64::sinh;
    wgsl "sinh_f32($x)" "
fn sinh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return x; }
    let a = abs(x);
    if (a > 89.41599) { return copysign_f32(inf_f32(), x); }
    if (a < 1.0) {
        let z = a * a;
        let q = 0.16666667 + z * (0.00833335 + z * (0.0001983616 + z * 2.8169513e-6));
        return copysign_f32(a + a * z * q, x);
    }
    let e = exp_parts_f32(a);
    return copysign_f32(scaled_f32(1.0 + (e.y - exp_inverse_f32(e)), i32(e.x) - 1i), x);
}
";
    grad Some(|x, _, g| g.mul(&x.cosh()));
    known (0.0, 0.0), (1.0, 1.1752011936438014), (-3.0, -10.017874927409903), (INF, INF), (-INF, -INF), (NAN, NAN);

    /// The hyperbolic cosine.
    COSH cosh: Float -> Same, cost 24, ulps 0.6, gpu_ulps 1.6, range (-90.0, 90.0);
    cpu f32 -> f32 |x| math::cosh::<L>(x);
    oracle f64::cosh;
    wgsl "cosh_f32($x)" "
fn cosh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return abs(x); }
    if (abs(x) > 89.41599) { return inf_f32(); }
    let e = exp_parts_f32(abs(x));
    return scaled_f32(1.0 + (e.y + exp_inverse_f32(e)), i32(e.x) - 1i);
}
";
    grad Some(|x, _, g| g.mul(&x.sinh()));
    known (0.0, 1.0), (1.0, 1.5430806348152437), (-3.0, 10.067661995777765), (-INF, INF), (NAN, NAN);

    /// The hyperbolic tangent.
    TANH tanh: Float -> Same, cost 14, ulps 1.5, range (-10.0, 10.0);
    cpu f32 -> f32 |x| math::tanh::<L>(x);
    oracle f64::tanh;
    wgsl "tanh_f32($x)" "
fn tanh_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    let a = min(abs(x), 10.0);
    let z = a * a;
    if (a < 0.625) {
        let q = 0.13331406 + z * (-0.053736515 + z * (0.020628167 - z * 0.0056922967));
        return copysign_f32(a + a * z * (-0.3333328 + z * q), x);
    }
    // The quotient is small, and its error smaller.
    let e = exp_f32(-2.0 * a);
    return copysign_f32(1.0 - 2.0 * (e / (1.0 + e)), x);
}
";
    // (tanh x)′ = 1 − tanh² x
    grad Some(|_, y, g| g.mul(&y.mul(y).neg().add(1.0)));
    known (0.0, 0.0), (0.5, 0.46211715726000974), (-3.0, -0.9950547536867305), (INF, 1.0), (-INF, -1.0), (NAN, NAN);

    /// The inverse hyperbolic sine.
    ASINH asinh: Float -> Same, cost 32, ulps 0.6, gpu_ulps 1.4, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::asinh::<L>(x);
    oracle f64::asinh;
    wgsl "asinh_f32($x)" "
fn asinh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return x; }
    let a = abs(x);
    let z = a * a;
    if (a < 0.5) {
        let q = 0.074986525 + z * (-0.044384517 + z * (0.028169123 - z * 0.013237528));
        return copysign_f32(a + a * z * (-0.16666643 + z * q), x);
    }
    if (a > 4096.0) { return copysign_f32(log_sum_f32(a, 0.0, 1.0), x); }
    // ln(a + √(a² + 1)), with what is added kept exact.
    let s = two_sum_f32(max(a, 1.0), min(a, 1.0));
    let u = two_sum_f32(s.x, z / (1.0 + sqrt(z + 1.0)));
    return copysign_f32(log_sum_f32(u.x, u.y + s.y, 0.0), x);
}
";
    grad Some(grad_of_asinh);
    known (0.0, 0.0), (1.0, 0.881373587019543), (-3.0, -1.8184464592320668), (INF, INF), (-INF, -INF), (NAN, NAN);

    /// The inverse hyperbolic cosine; NaN below 1.
    ACOSH acosh: Float -> Same, cost 32, ulps 0.6, gpu_ulps 1.1, range (1.0, 100.0);
    cpu f32 -> f32 |x| math::acosh::<L>(x);
    oracle f64::acosh;
    wgsl "acosh_f32($x)" "
fn acosh_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || x < 1.0) { return nan_f32(); }
    if (is_inf_f32(x)) { return x; }
    if (x == 1.0) { return 0.0; }
    if (x > 4096.0) { return log_sum_f32(x, 0.0, 1.0); }
    // ln(x + √(x² - 1)); near 1 the root is the result, and needs its digits.
    let z = two_product_f32(x, x);
    let d = two_sum_f32(z.x, -1.0);
    let root = kept_f32(sqrt(d.x));
    let square = two_product_f32(root, root);
    let rest = (((d.x - square.x) - square.y) + (d.y + z.y)) / (2.0 * root);
    let u = two_sum_f32(x, root);
    return log_sum_f32(u.x, u.y + rest, 0.0);
}
";
    grad Some(|x, _, g| g.mul(&x.sub(1.0).rsqrt()).mul(&x.add(1.0).rsqrt()));
    known (1.0, 0.0), (2.0, 1.3169578969248168), (10.0, 2.993222846126381), (0.5, NAN), (INF, INF), (NAN, NAN);

    /// The inverse hyperbolic tangent; NaN beyond −1 and 1.
    ATANH atanh: Float -> Same, cost 32, ulps 0.6, gpu_ulps 1.5, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::atanh::<L>(x);
    oracle f64::atanh;
    wgsl "atanh_f32($x)" "
fn atanh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (is_nan_f32(x) || a > 1.0) { return nan_f32(); }
    if (a == 1.0) { return copysign_f32(inf_f32(), x); }
    if (a < 0.5) {
        let z = a * a;
        let q = 0.14294852 + z * (0.109671816 + z * (0.1028269 + z * (0.024521912 + z * 0.17594256)));
        return copysign_f32(a + a * z * (0.33333337 + z * (0.19999728 + z * q)), x);
    }
    return copysign_f32(0.5 * log_sum_f32((1.0 + a) / (1.0 - a), 0.0, 0.0), x);
}
";
    grad Some(|x, _, g| g.div(&x.mul(x).neg().add(1.0)));
    known (0.0, 0.0), (0.5, 0.5493061443340549), (1.0, INF), (-1.0, -INF), (2.0, NAN), (NAN, NAN);

    /// The cube root, of negative numbers too.
    CBRT cbrt: Float -> Same, cost 24, ulps 0.6, range (-1000.0, 1000.0);
    cpu f32 -> f32 |x| math::cbrt::<L>(x);
    oracle f64::cbrt;
    wgsl "cbrt_f32($x)" "
fn cbrt_f32(x: f32) -> f32 {
    if (x == 0.0 || !is_finite_f32(x)) { return x; }
    // By powers of eight to where neither cubes nor their sums leave the range.
    let tiny = abs(x) < 1e-20;
    let huge = abs(x) > 1e30;
    let a = abs(x) * select(select(1.0, 5.9604645e-8, huge), 4.7223665e21, tiny);
    // A third of the exponent, two steps of Halley's, and one of Newton's with the exact cube.
    var y = bitcast<f32>(bitcast<u32>(a) / 3u + 709958130u);
    for (var i = 0; i < 2; i++) {
        let cube = y * y * y;
        y = y * ((a + a + cube) / (a + cube + cube));
    }
    y = kept_f32(y);
    let square = two_product_f32(y, y);
    let cube = two_product_f32(square.x, y);
    y = y - ((cube.x - a) + (cube.y + square.y * y)) / (3.0 * square.x);
    return copysign_f32(y * select(select(1.0, 256.0, huge), 5.9604645e-8, tiny), x);
}
";
    grad Some(|_, y, g| g.div(&y.mul(y).mul(3.0)));
    known (27.0, 3.0), (-8.0, -2.0), (2.0, 1.2599210498948732), (-0.0, -0.0), (-INF, -INF), (NAN, NAN);

    /// The error function, `2/√π · ∫₀ˣ e^(−t²) dt`.
    ERF erf: Float -> Same, cost 20, ulps 1.5, range (-4.0, 4.0), step Erf;
    cpu f32 -> f32 |x| math::erf::<L>(x);
    oracle libm::erf;
    wgsl "erf_f32($x)" "
fn erf_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    let a = min(abs(x), 3.93);
    if (a < 1e-30) { return copysign_f32(a * 1.1283792, x); }
    if (a < 1.0) {
        let z = a * a;
        let p = 0.112835787 + z * (-0.026853347 + z * (0.005187162 + z * (-0.0007997853 + z * 0.000078069046)));
        return copysign_f32(a + a * (0.12837917 + z * (-0.37612626 + z * p)), x);
    }
    let p = 0.1031067 + a * (-0.02183805 + a * (0.0029476597 - a * 0.00018638004));
    return copysign_f32(1.0 - exp_f32(-(0.0003415334 + a * (1.1270891 + a * (0.6381449 + a * p)))), x);
}
";
    // (erf x)′ = 2/√π · e^(−x²)
    grad Some(|x, _, g| wide(g).mul(&gaussian(x)).mul(FRAC_2_SQRT_PI));
    known (0.0, 0.0), (0.5, 0.5204998778130465), (1.0, 0.8427007929497148), (-2.0, -0.9953222650189527), (INF, 1.0), (NAN, NAN);

    /// What `erf` lacks to 1, `1 − erf x`, with all its digits also where that is little.
    ERFC erfc: Float -> Same, cost 26, ulps 4.0, gpu_ulps 4.5, range (-4.0, 10.0), step Erfc;
    cpu f32 -> f32 |x| math::erfc::<L>(x);
    oracle libm::erfc;
    wgsl "erfc_f32($x)" "
fn erfc_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    let a = min(abs(x), 10.4);
    if (a < 0.5) {
        let z = a * a;
        let p = 0.112835787 + z * (-0.026853347 + z * (0.005187162 + z * (-0.0007997853 + z * 0.000078069046)));
        return 1.0 - copysign_f32(a + a * (0.12837917 + z * (-0.37612626 + z * p)), x);
    }
    let q = (a - 4.0) / (a + 4.0);
    let p = -0.06660476 + q * (0.036394857 + q * (-0.016020052 + q * (0.006901055 + q * 0.00084603584)));
    let r = 0.015377333 + q * (0.06809199 + q * (-0.10099226 + q * (0.09383457 + q * p)));
    let scaled = (1.0 + (0.23299514 + q * (-0.13962103 + q * r))) / (1.0 + 2.0 * a);
    // e^(−a²), with what the rounding of a² lost.
    let square = two_product_f32(a, a);
    // It is made good before the product, which may be so small that a share of it would be taken for zero.
    let y = (scaled - scaled * square.y) * exp_f32(-square.x);
    return select(y, 2.0 - y, x < 0.0);
}
";
    // (1 − erf x)′ = −2/√π · e^(−x²)
    grad Some(|x, _, g| wide(g).mul(&gaussian(x)).mul(-FRAC_2_SQRT_PI));
    known (0.0, 1.0), (0.5, 0.4795001221869535), (-1.0, 1.8427007929497148), (5.0, 1.5374597944280349e-12), (9.100000381469727, 6.696853655811688e-38),
        (INF, 0.0), (-INF, 2.0), (NAN, NAN);
}

/// The same in f32 if it is a half float: for formulas with numbers that a half float would round.
fn wide(x: &Tensor) -> Tensor {
    x.to_dtype(DType::F32)
}

/// e^(−x²) in f32. Where it is 0, |x| is cut short: times nothing, a huge x of its own gradient would give NaN.
fn gaussian(x: &Tensor) -> Tensor {
    let x = wide(x).clamp(-15.0, 15.0);
    x.mul(&x).neg().exp()
}

/// `(x·s, s)` in f32, where s is 1, or a power of two that keeps the square of a huge x finite. Nothing that is made of both
/// depends on s, so it has no gradient.
fn scaled(x: &Tensor) -> (Tensor, Tensor) {
    let x = wide(x);
    let s = x.abs().gt(1e18).select(2f32.powi(-64), 1.0);
    (x.mul(&s), s)
}

/// (arctan x)′ = 1 / (x² + 1) = s² / ((x·s)² + s²)
fn grad_of_atan(x: &Tensor, _: &Tensor, g: &Tensor) -> Tensor {
    let (x, s) = scaled(x);
    wide(g).mul(&s).div(&x.mul(&x).add(&s.mul(&s))).mul(&s)
}

/// (arsinh x)′ = 1 / √(x² + 1) = s / √((x·s)² + s²)
fn grad_of_asinh(x: &Tensor, _: &Tensor, g: &Tensor) -> Tensor {
    let (x, s) = scaled(x);
    wide(g).mul(&s).mul(&x.mul(&x).add(&s.mul(&s)).rsqrt())
}
