//! Exponentials, logarithms, trigonometric, hyperbolic and error functions. The arithmetic is in `math`; here is what
//! else there is to know of them.

use std::f64::consts::{FRAC_2_SQRT_PI, FRAC_PI_2, FRAC_PI_3, FRAC_PI_4, FRAC_PI_6, LN_2, LN_10, LOG2_10, PI, SQRT_2};

use super::math;
use super::unary::unary_rows;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

unary_rows! {
    /// The exponential, `eˣ`.
    EXP exp: Float -> Same, cost 12, ulps 1.1, range (-104.0, 89.0), step Exp;
    cpu f32 -> f32 |x| math::exp::<L>(x);
    oracle f64::exp;
    wgsl "exp_f32($x)" "
fn exp_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    if (x > 88.72284) { return inf_f32(); }
    return select(exp(x), 0.0, x < -104.0);
}
";
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
    return select(exp2(x), 0.0, x < -150.0);
}
";
    grad Some(|_, y, g| g.mul(y).mul(LN_2));
    known (0.0, 1.0), (10.0, 1024.0), (0.5, SQRT_2), (-INF, 0.0), (INF, INF), (NAN, NAN);

    /// `eˣ − 1`, exact also where `x` is small.
    EXPM1 expm1: Float -> Same, cost 14, ulps 1.5, range (-20.0, 89.0);
    cpu f32 -> f32 |x| math::expm1::<L>(x);
    oracle f64::exp_m1;
    wgsl "expm1_f32($x)" "
fn expm1_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || x == 0.0) { return x; }
    if (x > 88.72284) { return inf_f32(); }
    if (x < -17.4) { return -1.0; }
    // Near zero the series: the subtraction would leave few digits.
    if (abs(x) < 0.35) {
        let p = 1.0 / 24.0 + x * (1.0 / 120.0 + x * (1.0 / 720.0 + x * (1.0 / 5040.0 + x / 40320.0)));
        return x + x * x * (0.5 + x * (1.0 / 6.0 + x * p));
    }
    return exp(x) - 1.0;
}
";
    grad Some(|_, y, g| g.mul(&y.add(1.0)));
    known (0.0, 0.0), (1.0, 1.7182818284590453), (-0.5, -0.3934693402873666), (-INF, -1.0), (INF, INF), (NAN, NAN);

    /// The natural logarithm, `ln x`; NaN of a negative number.
    LOG log: Float -> Same, cost 12, ulps 1.0, range (0.0, 100.0);
    cpu f32 -> f32 |x| math::log::<L>(x);
    oracle f64::ln;
    wgsl "log_f32($x)" "
fn log_f32(x: f32) -> f32 {
    if (x < 0.0 || is_nan_f32(x)) { return nan_f32(); }
    if (x == 0.0) { return -inf_f32(); }
    if (is_inf_f32(x)) { return x; }
    return log(x);
}
";
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
    return log2(x);
}
";
    grad Some(|x, _, g| g.div(&x.mul(LN_2)));
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
    return log2(x) * 0.30102999566;
}
";
    grad Some(|x, _, g| g.div(&x.mul(LN_10)));
    known (1000.0, 3.0), (2.0, 0.3010299956639812), (0.0, -INF), (-1.0, NAN), (INF, INF), (NAN, NAN);

    /// `ln(1 + x)`, exact also where `x` is small.
    LOG1P log1p: Float -> Same, cost 14, ulps 1.6, range (-1.0, 100.0);
    cpu f32 -> f32 |x| math::log1p::<L>(x);
    oracle f64::ln_1p;
    wgsl "log1p_f32($x)" "
fn log1p_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || x < -1.0) { return nan_f32(); }
    if (x == -1.0) { return -inf_f32(); }
    if (is_inf_f32(x) || x == 0.0) { return x; }
    // 2·artanh(x / (2 + x)), by its series, where 1 + x would lose digits of x.
    if (abs(x) < 0.3) {
        let s = x / (2.0 + x);
        let z = s * s;
        return 2.0 * s * (1.0 + z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z / 11.0)))));
    }
    return log(1.0 + x);
}
";
    grad Some(|x, _, g| g.div(&x.add(1.0)));
    known (0.0, 0.0), (1.0, LN_2), (-0.5, -LN_2), (10.0, 2.3978952727983707), (-1.0, -INF), (-2.0, NAN), (INF, INF);

    /// The sine.
    SIN sin: Float -> Same, cost 16, ulps 0.6, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::sin::<L>(x); slow |x| math::trig_needs_slow(x) => math::sin_slow(x);
    oracle f64::sin;
    wgsl "sin_f32($x)" "
fn sin_f32(x: f32) -> f32 { return select(sin(x), nan_f32(), !is_finite_f32(x)); }
";
    grad Some(|x, _, g| g.mul(&x.cos()));
    known (0.0, 0.0), (1.0, 0.8414709848078965), (-3.0, -0.1411200080598672), (1073741824.0, -0.6173264150460421), (INF, NAN), (NAN, NAN);

    /// The cosine.
    COS cos: Float -> Same, cost 16, ulps 0.6, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::cos::<L>(x); slow |x| math::trig_needs_slow(x) => math::cos_slow(x);
    oracle f64::cos;
    wgsl "cos_f32($x)" "
fn cos_f32(x: f32) -> f32 { return select(cos(x), nan_f32(), !is_finite_f32(x)); }
";
    grad Some(|x, _, g| g.mul(&x.sin()).neg());
    known (0.0, 1.0), (1.0, 0.5403023058681398), (1073741824.0, 0.7867071229411882), (INF, NAN), (NAN, NAN);

    /// The tangent.
    TAN tan: Float -> Same, cost 24, ulps 0.6, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::tan::<L>(x); slow |x| math::trig_needs_slow(x) => math::tan_slow(x);
    oracle f64::tan;
    wgsl "tan_f32($x)" "
fn tan_f32(x: f32) -> f32 { return select(tan(x), nan_f32(), !is_finite_f32(x)); }
";
    // (tan x)′ = 1 + tan² x
    grad Some(|_, y, g| g.mul(&y.mul(y).add(1.0)));
    known (0.0, 0.0), (1.0, 1.5574077246549023), (1073741824.0, -0.7846966133192005), (INF, NAN), (NAN, NAN);

    /// The arc sine, −π/2 to π/2; NaN beyond −1 and 1.
    ASIN asin: Float -> Same, cost 24, ulps 0.6, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::asin::<L>(x);
    oracle f64::asin;
    wgsl "asin_f32($x)" "
fn asin_f32(x: f32) -> f32 { return select(nan_f32(), asin(clamp(x, -1.0, 1.0)), abs(x) <= 1.0 && !is_nan_f32(x)); }
";
    grad Some(|x, _, g| g.mul(&x.mul(x).neg().add(1.0).rsqrt()));
    known (0.0, 0.0), (0.5, FRAC_PI_6), (-1.0, -FRAC_PI_2), (2.0, NAN), (INF, NAN), (NAN, NAN);

    /// The arc cosine, 0 to π; NaN beyond −1 and 1.
    ACOS acos: Float -> Same, cost 24, ulps 0.6, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::acos::<L>(x);
    oracle f64::acos;
    wgsl "acos_f32($x)" "
fn acos_f32(x: f32) -> f32 { return select(nan_f32(), acos(clamp(x, -1.0, 1.0)), abs(x) <= 1.0 && !is_nan_f32(x)); }
";
    grad Some(|x, _, g| g.mul(&x.mul(x).neg().add(1.0).rsqrt()).neg());
    known (1.0, 0.0), (0.5, FRAC_PI_3), (0.0, FRAC_PI_2), (-1.0, PI), (2.0, NAN), (INF, NAN), (NAN, NAN);

    /// The arc tangent, −π/2 to π/2.
    ATAN atan: Float -> Same, cost 24, ulps 0.6, range (-10.0, 10.0);
    cpu f32 -> f32 |x| math::atan::<L>(x);
    oracle f64::atan;
    wgsl "atan_f32($x)" "
fn atan_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    return select(atan(x), copysign_f32(1.5707963268, x), abs(x) > 1e8);
}
";
    grad Some(|x, _, g| g.div(&x.mul(x).add(1.0)));
    known (0.0, 0.0), (1.0, FRAC_PI_4), (2.0, 1.1071487177940904), (INF, FRAC_PI_2), (-INF, -FRAC_PI_2), (NAN, NAN);

    /// The hyperbolic sine.
    SINH sinh: Float -> Same, cost 24, ulps 0.6, range (-90.0, 90.0);
    cpu f32 -> f32 |x| math::sinh::<L>(x);
    oracle f64::sinh;
    wgsl "sinh_f32($x)" "
fn sinh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return x; }
    if (abs(x) > 89.41599) { return copysign_f32(inf_f32(), x); }
    if (abs(x) < 0.7) {
        let z = x * x;
        return x + x * z * (1.0 / 6.0 + z * (1.0 / 120.0 + z * (1.0 / 5040.0 + z / 362880.0)));
    }
    // In two factors, because eˣ overflows before its half does.
    let e = exp(0.5 * abs(x));
    return copysign_f32(0.5 * e * e - 0.5 / (e * e), x);
}
";
    grad Some(|x, _, g| g.mul(&x.cosh()));
    known (0.0, 0.0), (1.0, 1.1752011936438014), (-3.0, -10.017874927409903), (INF, INF), (-INF, -INF), (NAN, NAN);

    /// The hyperbolic cosine.
    COSH cosh: Float -> Same, cost 24, ulps 0.6, range (-90.0, 90.0);
    cpu f32 -> f32 |x| math::cosh::<L>(x);
    oracle f64::cosh;
    wgsl "cosh_f32($x)" "
fn cosh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return abs(x); }
    if (abs(x) > 89.41599) { return inf_f32(); }
    let e = exp(0.5 * abs(x));
    return 0.5 * e * e + 0.5 / (e * e);
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
    if (abs(x) > 9.1) { return copysign_f32(1.0, x); }
    if (abs(x) < 0.55) {
        let z = x * x;
        let p = -0.053968254 + z * (0.021869489 + z * (-0.0088632355 + z * 0.003592128));
        return x + x * z * (-0.33333334 + z * (0.13333334 + z * p));
    }
    return copysign_f32(1.0 - 2.0 / (exp(2.0 * abs(x)) + 1.0), x);
}
";
    // (tanh x)′ = 1 − tanh² x
    grad Some(|_, y, g| g.mul(&y.mul(y).neg().add(1.0)));
    known (0.0, 0.0), (0.5, 0.46211715726000974), (-3.0, -0.9950547536867305), (INF, 1.0), (-INF, -1.0), (NAN, NAN);

    /// The inverse hyperbolic sine.
    ASINH asinh: Float -> Same, cost 32, ulps 0.6, range (-100.0, 100.0);
    cpu f32 -> f32 |x| math::asinh::<L>(x);
    oracle f64::asinh;
    wgsl "asinh_f32($x)" "
fn asinh_f32(x: f32) -> f32 {
    if (!is_finite_f32(x)) { return x; }
    let a = abs(x);
    if (a < 0.25) {
        let z = x * x;
        return x + x * z * (-1.0 / 6.0 + z * (0.075 + z * (-0.044642857 + z * (0.030381944 - z * 0.022372159))));
    }
    return copysign_f32(select(log(a + sqrt(a * a + 1.0)), log(a) + 0.69314718056, a > 1e8), x);
}
";
    grad Some(|x, _, g| g.mul(&x.mul(x).add(1.0).rsqrt()));
    known (0.0, 0.0), (1.0, 0.881373587019543), (-3.0, -1.8184464592320668), (INF, INF), (-INF, -INF), (NAN, NAN);

    /// The inverse hyperbolic cosine; NaN below 1.
    ACOSH acosh: Float -> Same, cost 32, ulps 0.6, range (1.0, 100.0);
    cpu f32 -> f32 |x| math::acosh::<L>(x);
    oracle f64::acosh;
    wgsl "acosh_f32($x)" "
fn acosh_f32(x: f32) -> f32 {
    if (is_nan_f32(x) || x < 1.0) { return nan_f32(); }
    if (is_inf_f32(x)) { return x; }
    return select(log(x + sqrt((x - 1.0) * (x + 1.0))), log(x) + 0.69314718056, x > 1e8);
}
";
    grad Some(|x, _, g| g.mul(&x.sub(1.0).rsqrt()).mul(&x.add(1.0).rsqrt()));
    known (1.0, 0.0), (2.0, 1.3169578969248168), (10.0, 2.993222846126381), (0.5, NAN), (INF, INF), (NAN, NAN);

    /// The inverse hyperbolic tangent; NaN beyond −1 and 1.
    ATANH atanh: Float -> Same, cost 32, ulps 0.6, range (-1.0, 1.0);
    cpu f32 -> f32 |x| math::atanh::<L>(x);
    oracle f64::atanh;
    wgsl "atanh_f32($x)" "
fn atanh_f32(x: f32) -> f32 {
    let a = abs(x);
    if (is_nan_f32(x) || a > 1.0) { return nan_f32(); }
    if (a == 1.0) { return copysign_f32(inf_f32(), x); }
    if (a < 0.25) {
        let z = x * x;
        return x + x * z * (1.0 / 3.0 + z * (0.2 + z * (1.0 / 7.0 + z * (1.0 / 9.0 + z / 11.0))));
    }
    return copysign_f32(0.5 * log((1.0 + a) / (1.0 - a)), x);
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
    let a = abs(x);
    let y = exp2(log2(a) / 3.0);
    // One step of Newton's takes away what the two roundings left.
    return copysign_f32(y - (y - a / (y * y)) / 3.0, x);
}
";
    grad Some(|_, y, g| g.div(&y.mul(y).mul(3.0)));
    known (27.0, 3.0), (-8.0, -2.0), (2.0, 1.2599210498948732), (-0.0, -0.0), (-INF, -INF), (NAN, NAN);

    /// The error function, `2/√π · ∫₀ˣ e^(−t²) dt`.
    ERF erf: Float -> Same, cost 20, ulps 1.5, range (-4.0, 4.0);
    cpu f32 -> f32 |x| math::erf::<L>(x);
    oracle libm::erf;
    wgsl "erf_f32($x)" "
fn erf_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    let a = min(abs(x), 3.93);
    if (a < 1.0) {
        let z = a * a;
        let p = 0.112835787 + z * (-0.026853347 + z * (0.005187162 + z * (-0.0007997853 + z * 0.000078069046)));
        return copysign_f32(a + a * (0.12837917 + z * (-0.37612626 + z * p)), x);
    }
    let p = 0.1031067 + a * (-0.02183805 + a * (0.0029476597 - a * 0.00018638004));
    return copysign_f32(1.0 - exp(-(0.0003415334 + a * (1.1270891 + a * (0.6381449 + a * p)))), x);
}
";
    // (erf x)′ = 2/√π · e^(−x²)
    grad Some(|x, _, g| g.mul(&x.mul(x).neg().exp()).mul(FRAC_2_SQRT_PI));
    known (0.0, 0.0), (0.5, 0.5204998778130465), (1.0, 0.8427007929497148), (-2.0, -0.9953222650189527), (INF, 1.0), (NAN, NAN);
}
