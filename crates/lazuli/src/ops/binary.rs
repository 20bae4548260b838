//! Arithmetic on two elements, and the macro that turns an entry of such a table into its row, its loops, its method
//! and its docs.

use super::math;
use super::operand::{Operand, OperandSide, binary};
use super::row::{BinaryRow, RegisterStep};
use crate::dtype::DType;
use crate::tensor::Tensor;

/// Wires entries of a table of binary ops. Each reads
/// `/// doc`, `NAME method: takes -> gives`, then the fields of [`BinaryRow`](super::BinaryRow); `private` makes no
/// method.
macro_rules! binary_rows {
    ($(
        #[doc = $doc:literal]
        $row:ident $name:ident $($visibility:ident)?: $takes:ident -> $gives:ident $($wraps:ident)?,
        commutes $commutes:literal, cost $cost:literal, ulps $ulps:literal, $(gpu_ulps $gpu_ulps:literal,)?
        range $range:tt $(, step $step:ident)?;
        cpu $($lane:ident -> $to:ident |$x:ident, $y:ident| $eval:expr
            $(; slow |$sx:ident, $sy:ident| $is_slow:expr => $slow:expr)?),+;
        oracle $oracle:expr $(, int $oracle_int:expr)?;
        wgsl $wgsl:literal $($fns:literal)?;
        grad $grad:expr;
        known ($x0:literal, $y0:literal, $z0:literal) $(, ($x1:expr, $y1:expr, $z1:expr))*;
    )*) => {
        $(
            #[doc = $doc]
            #[allow(clippy::needless_update)]
            pub static $row: $crate::ops::BinaryRow = {
                enum BinaryFn {}
                $(impl $crate::ops::lanes::Binary<$lane, $to> for BinaryFn {
                    #[inline(always)]
                    fn eval<L: $crate::ops::math::Level>($x: $lane, $y: $lane) -> $to {
                        $eval
                    }
                    $crate::ops::binary::slow!($lane $to $(|$sx, $sy| $is_slow => $slow)?);
                })+
                $crate::ops::BinaryRow {
                    name: stringify!($name),
                    doc: $doc.trim_ascii(),
                    takes: $crate::ops::Takes::$takes,
                    gives: $crate::ops::Gives::$gives,
                    wraps: $crate::ops::unary::flag!($($wraps)?),
                    cost: $cost,
                    commutes: $commutes,
                    step: $crate::ops::binary::optional!($(RegisterStep::$step)?),
                    cpu: $crate::ops::PerLane {
                        $($lane: Some($crate::ops::lanes::binary::<BinaryFn, $lane, $to>()),)+
                        ..$crate::ops::PerLane::NONE
                    },
                    oracle: $oracle,
                    oracle_int: $crate::ops::binary::optional!($($oracle_int)?),
                    wgsl: $wgsl,
                    wgsl_fns: concat!($($fns)?),
                    grad: $grad,
                    known: &[($x0 as f64, $y0 as f64, $z0 as f64) $(, ($x1 as f64, $y1 as f64, $z1 as f64))*],
                    range: $range,
                    ulps: $ulps,
                    gpu_ulps: $crate::ops::unary::either!($($gpu_ulps)? $ulps),
                }
            };
            $crate::ops::binary::binary_method!($($visibility)? $row $name $takes $doc, $x0, $y0, $z0);
        )*

        /// The rows above, in order.
        pub(super) static ROWS: &[&$crate::ops::BinaryRow] = &[$(&$row),*];
    };
}

/// The method of a binary row.
macro_rules! binary_method {
    (private $($rest:tt)*) => {};
    ($row:ident $name:ident $takes:ident $doc:literal, $x:literal, $y:literal, $z:literal) => {
        impl $crate::Tensor {
            #[doc = $doc]
            /// The right side is a tensor, which broadcasts, or a number.
            ///
            /// ```
            /// # use lazuli::{DType, Device, Tensor};
            #[doc = concat!("let x = Tensor::from_slice(&[", stringify!($x), $crate::ops::unary::suffix!($takes), "], [1], &Device::cpu());")]
            #[doc = concat!("let y = x.", stringify!($name), "(", stringify!($y), ").to_dtype(DType::F32).item::<f32>()?;")]
            #[doc = concat!("assert!((y - ", stringify!($z), " as f32).abs() <= 1e-6);")]
            /// # Ok::<(), lazuli::Error>(())
            /// ```
            #[track_caller]
            pub fn $name(&self, rhs: impl Into<$crate::ops::Operand>) -> $crate::Tensor {
                $crate::ops::operand::binary(&$row, self, rhs.into())
            }
        }
    };
}

/// What [`lanes::Binary`](super::lanes::Binary) needs to know of arguments that the loop cannot take.
macro_rules! slow {
    ($x:ident $y:ident) => {
        fn slow(_: $x, _: $x) -> $y {
            unreachable!("no argument is slow")
        }
    };
    ($x:ident $y:ident |$sx:ident, $sy:ident| $is_slow:expr => $slow:expr) => {
        const HAS_SLOW: bool = true;
        #[inline(always)]
        fn is_slow($sx: $x, $sy: $x) -> bool {
            $is_slow
        }
        fn slow($sx: $x, $sy: $x) -> $y {
            $slow
        }
    };
}

/// `Some` of what is there.
macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

pub(super) use {binary_method, binary_rows, optional, slow};

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

binary_rows! {
    /// The sum, `x + y`.
    ADD add: Number -> Same wraps, commutes true, cost 1, ulps 0.5, range (-100.0, 100.0), step Add;
    cpu f32 -> f32 |x, y| x + y, i32 -> i32 |x, y| x.wrapping_add(y), u32 -> u32 |x, y| x.wrapping_add(y);
    oracle |x, y| x + y, int |x, y| x + y;
    wgsl "($x + $y)";
    grad Some(|_, _, _, g| [g.clone(), g.clone()]);
    known (1.5, 2.0, 3.5), (INF, -INF, NAN), (INF, 1.0, INF), (-0.0, -0.0, -0.0), (NAN, 1.0, NAN);

    /// The difference, `x − y`.
    SUB sub: Number -> Same wraps, commutes false, cost 1, ulps 0.5, range (-100.0, 100.0), step Sub;
    cpu f32 -> f32 |x, y| x - y, i32 -> i32 |x, y| x.wrapping_sub(y), u32 -> u32 |x, y| x.wrapping_sub(y);
    oracle |x, y| x - y, int |x, y| x - y;
    wgsl "($x - $y)";
    grad Some(|_, _, _, g| [g.clone(), g.neg()]);
    known (1.5, 2.0, -0.5), (INF, INF, NAN), (0.0, 0.0, 0.0), (1.0, NAN, NAN);

    /// The product, `x · y`.
    MUL mul: Number -> Same wraps, commutes true, cost 1, ulps 0.5, range (-100.0, 100.0), step Mul;
    cpu f32 -> f32 |x, y| x * y, i32 -> i32 |x, y| x.wrapping_mul(y), u32 -> u32 |x, y| x.wrapping_mul(y);
    oracle |x, y| x * y, int |x, y| x.wrapping_mul(y);
    wgsl "($x * $y)";
    grad Some(|x, y, _, g| [g.mul(y), g.mul(x)]);
    known (1.5, -2.0, -3.0), (INF, 0.0, NAN), (-1.0, 0.0, -0.0), (INF, -1.0, -INF);

    /// The quotient, `x / y`; of integers too it is a float.
    DIV div: Float -> Same, commutes false, cost 4, ulps 0.5, range (-100.0, 100.0), step Div;
    cpu f32 -> f32 |x, y| x / y;
    oracle |x, y| x / y;
    wgsl "div_f32($x, $y)" "
fn div_f32(x: f32, y: f32) -> f32 {
    // Nothing branches: lanes go together.
    let sign = bitcast<f32>(bitcast<u32>(x) ^ bitcast<u32>(y));
    let q = select(x / y, copysign_f32(0.0, sign), is_inf_f32(y));
    let r = select(q, copysign_f32(inf_f32(), sign), is_inf_f32(x) | (y == 0.0));
    let none = is_nan_f32(x) | is_nan_f32(y) | ((x == 0.0) & (y == 0.0)) | (is_inf_f32(x) & is_inf_f32(y));
    return select(r, nan_f32(), none);
}
";
    // (x/y)′ = 1/y and −(x/y)/y, in this order: of 1/y alone a tiny y makes infinity
    grad Some(|_, y, out, g| [g.div(y), out.div(y).mul(g).neg()]);
    known (1.0, 4.0, 0.25), (1.0, 0.0, INF), (-1.0, 0.0, -INF), (0.0, 0.0, NAN), (1.0, INF, 0.0), (INF, INF, NAN);

    /// The remainder of floored division, `x − y·⌊x/y⌋`: it has the sign of `y`. Of integers by zero it is 0.
    REM rem: Number -> Same, commutes false, cost 16, ulps 0.5, range (-100.0, 100.0);
    cpu f32 -> f32 |x, y| math::rem_fast(x, y); slow |x, y| math::rem_needs_slow(x, y) => math::rem(x, y),
        i32 -> i32 |x, y| rem_int(x as f64, y as f64) as i32,
        u32 -> u32 |x, y| rem_int(x as f64, y as f64);
    oracle rem_f64, int |x, y| if y == 0 { 0 } else { (x % y + y) % y };
    wgsl "rem_$t($x, $y)" "
fn rem_f32(x: f32, y: f32) -> f32 {
    if (!is_finite_f32(x) || is_nan_f32(y) || y == 0.0) { return nan_f32(); }
    if (is_inf_f32(y) && x != 0.0) { return select(x, y, is_negative_f32(x) != is_negative_f32(y)); }
    let r = copysign_f32(remainder_f32(abs(x), abs(y)), x);
    if (r == 0.0) { return copysign_f32(0.0, y); }
    return select(r, r + y, (r < 0.0) != (y < 0.0));
}
fn rem_i32(x: i32, y: i32) -> i32 {
    // y = −1 is set apart because −2³¹ / −1 does not fit.
    if (y == 0i || y == -1i) { return 0i; }
    let r = x % y;
    return select(r, r + y, r != 0i && (r < 0i) != (y < 0i));
}
fn rem_u32(x: u32, y: u32) -> u32 { return select(x % max(y, 1u), 0u, y == 0u); }
fn remainder_f32(x: f32, y: f32) -> f32 {
    // Of positive numbers, exactly: by long division of their digits, as integers, eight at a time.
    if (x < y) { return x; }
    let digits = vec2<u32>(bitcast<u32>(x), bitcast<u32>(y)) & vec2<u32>(0x7fffffu);
    let exponent = vec2<u32>(bitcast<u32>(x), bitcast<u32>(y)) >> vec2<u32>(23u);
    let m = select(digits, digits | vec2<u32>(0x800000u), exponent > vec2<u32>(0u));
    let e = max(exponent, vec2<u32>(1u));
    var r = m.x % m.y;
    for (var left = e.x - e.y; left > 0u && r != 0u; ) {
        let step = min(left, 8u);
        r = (r << step) % m.y;
        left -= step;
    }
    return scaled_f32(f32(r), i32(e.y) - 150i);
}
";
    // Flat in the quotient: (x − y·⌊x/y⌋)′ = 1 and −⌊x/y⌋
    grad Some(|x, y, out, g| [g.clone(), g.mul(&floored_quotient(x, y, out)).neg()]);
    known (-5.0, 3.0, 1.0), (5.0, -3.0, -1.0), (5.5, 2.0, 1.5), (-1.0, INF, INF), (1.0, 0.0, NAN), (INF, 2.0, NAN);

    /// The greatest integer not above the quotient, `⌊x/y⌋`. Of integers by zero it is 0.
    FLOOR_DIVIDE floor_divide private: Int -> Same wraps, commutes false, cost 16, ulps 0.0, range (-100.0, 100.0);
    cpu i32 -> i32 |x, y| floor_divide_int(x as f64, y as f64) as i32,
        u32 -> u32 |x, y| floor_divide_int(x as f64, y as f64);
    oracle |x, y| if y == 0.0 { 0.0 } else { (x / y).floor() }, int floor_divide_i64;
    wgsl "floor_divide_$t($x, $y)" "
fn floor_divide_i32(x: i32, y: i32) -> i32 {
    // y = −1 is set apart because −2³¹ / −1 does not fit; it wraps.
    if (y == 0i) { return 0i; }
    if (y == -1i) { return 0i - x; }
    let q = x / y;
    return select(q, q - 1i, x % y != 0i && (x < 0i) != (y < 0i));
}
fn floor_divide_u32(x: u32, y: u32) -> u32 { return select(x / max(y, 1u), 0u, y == 0u); }
";
    grad None;
    known (7, 2, 3), (-7, 2, -4), (7, -2, -4), (-8, 2, -4), (7, 0, 0);

    /// The power, `xʸ`. Of integers it wraps; a negative exponent gives 0, or ±1 where the base is ±1.
    POW pow private: Number -> Same wraps, commutes false, cost 40, ulps 0.6, gpu_ulps 1.3, range (0.01, 10.0);
    cpu f32 -> f32 |x, y| math::pow::<L>(x, y),
        i32 -> i32 |x, y| pow_i32(x, y),
        u32 -> u32 |x, y| x.wrapping_pow(y);
    oracle f64::powf, int pow_i64;
    wgsl "pow_$t($x, $y)" "
fn pow_f32(x: f32, y: f32) -> f32 {
    if (x == 1.0 || y == 0.0) { return 1.0; }
    if (is_nan_f32(x) || is_nan_f32(y)) { return nan_f32(); }
    let y_is_integer = is_inf_f32(y) || floor(y) == y;
    let y_is_odd = y_is_integer && abs(y) < 16777216.0 && (i32(y) & 1i) != 0i;
    if (x < 0.0 && !is_inf_f32(x) && !y_is_integer) { return nan_f32(); }
    let size = pow_positive_f32(abs(x), y);
    // The sign is chosen before it is set: llvmpipe (Mesa 22.3) makes nonsense of a choice between a value and
    // the same value with the sign of a widened bf16.
    return copysign_f32(size, select(1.0, x, y_is_odd));
}
fn pow_positive_f32(x: f32, y: f32) -> f32 {
    if (is_inf_f32(y) && x == 1.0) { return 1.0; }
    if (is_inf_f32(y)) { return select(0.0, inf_f32(), (x > 1.0) == (y > 0.0)); }
    if (x == 0.0 || is_inf_f32(x)) { return select(0.0, inf_f32(), (x == 0.0) == (y < 0.0)); }
    let log = log2_parts_f32(x);
    let t = y * log.x;
    if (t >= 129.0) { return inf_f32(); }
    if (t < -151.0) { return 0.0; }
    let p = two_product_f32(y, log.x);
    let n = round(p.x);
    return scaled_f32(exp2_unit_f32((p.x - n) + (p.y + y * log.y)), i32(n));
}
fn pow_u32(x: u32, y: u32) -> u32 {
    var base = x;
    var result = 1u;
    for (var rest = y; rest != 0u; rest >>= 1u) {
        if ((rest & 1u) != 0u) { result *= base; }
        base *= base;
    }
    return result;
}
fn pow_i32(x: i32, y: i32) -> i32 {
    if (y < 0i && x != 1i && x != -1i) { return 0i; }
    return bitcast<i32>(pow_u32(bitcast<u32>(x), bitcast<u32>(y)));
}
fn log2_parts_f32(x: f32) -> vec2<f32> {
    // log₂ x, and what its rounding lost, for finite positive x: y times an error of 2⁻³⁵ is not seen in xʸ.
    // x = 2ᵉ·(1 + f), and ln(1 + f) = 2·artanh s, with s = f / (2 + f).
    let parts = log_parts_f32(x);
    let f = parts.y;
    let d = two_sum_f32(2.0, f);
    let s = kept_f32(f / d.x);
    let s_d = two_product_f32(s, d.x);
    let s_lo = (((f - s_d.x) - s_d.y) - s * d.y) / d.x;
    // artanh s = s + s·z·(⅓ + z·…), with z = s².
    let z = two_product_f32(s, s);
    let third = two_product_f32(z.x, 0.33333334);
    let rest = z.x * z.x * (0.20000076 + z.x * (0.14273556 + z.x * 0.11709557));
    let q = rest + (third.y + (z.y + 2.0 * s * s_lo) * 0.33333334 - z.x * 9.934108e-9);
    let tail = two_product_f32(s, third.x);
    let sum = two_sum_f32(s, tail.x);
    let sum_lo = sum.y + (tail.y + (s * q + (s_lo + s_lo * third.x)));
    // Times 2 / ln 2.
    let y = two_product_f32(sum.x, 2.88539);
    let out = two_sum_f32(parts.x, y.x);
    let lo = out.y + (y.y + (sum.x * 3.851926e-8 + sum_lo * 2.88539));
    return two_sum_f32(out.x, lo);
}
";
    // (xʸ)′ = y·xʸ⁻¹ and xʸ·ln x
    grad Some(grad_of_pow);
    known (2.0, 10.0, 1024.0), (2.0, 0.5, std::f64::consts::SQRT_2), (-2.0, 3.0, -8.0), (-8.0, 0.5, NAN), (0.0, -1.0, INF),
        (NAN, 0.0, 1.0), (1.0, NAN, 1.0), (-1.0, INF, 1.0), (INF, -1.0, 0.0);

    /// The greater of two; NaN if either is.
    MAXIMUM maximum: Any -> Same, commutes true, cost 2, ulps 0.0, range (-100.0, 100.0), step Max;
    cpu f32 -> f32 |x, y| max_f32(x, y), i32 -> i32 |x, y| x.max(y), u32 -> u32 |x, y| x.max(y);
    oracle |x, y| if x.is_nan() || y.is_nan() { NAN } else { x.max(y) }, int |x, y| x.max(y);
    wgsl "maximum_$t($x, $y)" "
fn maximum_f32(x: f32, y: f32) -> f32 {
    // Nothing branches: lanes go together.
    return select(select(max(x, y), y, is_nan_f32(y)), x, is_nan_f32(x));
}
fn maximum_i32(x: i32, y: i32) -> i32 { return max(x, y); }
fn maximum_u32(x: u32, y: u32) -> u32 { return max(x, y); }
";
    grad Some(|x, y, _, g| [unless(&x.lt(y), x, y, g), unless(&y.lt(x), x, y, g)]);
    known (1.0, 2.0, 2.0), (1.0, NAN, NAN), (NAN, 1.0, NAN), (-INF, 1.0, 1.0), (INF, NAN, NAN);

    /// The lesser of two; NaN if either is.
    MINIMUM minimum: Any -> Same, commutes true, cost 2, ulps 0.0, range (-100.0, 100.0), step Min;
    cpu f32 -> f32 |x, y| min_f32(x, y), i32 -> i32 |x, y| x.min(y), u32 -> u32 |x, y| x.min(y);
    oracle |x, y| if x.is_nan() || y.is_nan() { NAN } else { x.min(y) }, int |x, y| x.min(y);
    wgsl "minimum_$t($x, $y)" "
fn minimum_f32(x: f32, y: f32) -> f32 {
    // Nothing branches: lanes go together.
    return select(select(min(x, y), y, is_nan_f32(y)), x, is_nan_f32(x));
}
fn minimum_i32(x: i32, y: i32) -> i32 { return min(x, y); }
fn minimum_u32(x: u32, y: u32) -> u32 { return min(x, y); }
";
    grad Some(|x, y, _, g| [unless(&x.gt(y), x, y, g), unless(&y.gt(x), x, y, g)]);
    known (1.0, 2.0, 1.0), (1.0, NAN, NAN), (NAN, 1.0, NAN), (-INF, 1.0, -INF), (INF, NAN, NAN);

    /// The angle of the point whose ordinate is `x` and whose abscissa is `y`, −π to π: `a.atan2(b)` is `arctan(a/b)`.
    ATAN2 atan2: Float -> Same, commutes false, cost 32, ulps 0.6, gpu_ulps 1.7, range (-10.0, 10.0);
    cpu f32 -> f32 |x, y| math::atan2::<L>(x, y);
    oracle f64::atan2;
    wgsl "atan2_f32($x, $y)" "
fn atan2_f32(y: f32, x: f32) -> f32 {
    if (is_nan_f32(x) || is_nan_f32(y)) { return nan_f32(); }
    // Zeros and infinities lie on the axes and diagonals: only which they are counts.
    let a = select(select(abs(y), 0.0, is_inf_f32(x) && !is_inf_f32(y)), 1.0, is_inf_f32(y));
    let b = select(select(abs(x), 0.0, is_inf_f32(y) && !is_inf_f32(x)), 1.0, is_inf_f32(x));
    let long = max(a, b);
    let t = min(a, b) / select(long, 1.0, long == 0.0);
    // From the nearest axis: forwards or backwards.
    let steep = a > b;
    let left = is_negative_f32(x);
    let axis = select(select(0.0, 2.0, left), 1.0, steep);
    return copysign_f32(atan_from_f32(axis, select(t, -t, steep != left)), y);
}
";
    // (arctan x/y)′ = y / (x² + y²) and −x / (x² + y²)
    grad Some(grad_of_atan2);
    known (1.0, 1.0, 0.7853981633974483), (0.0, -1.0, std::f64::consts::PI), (-0.0, -1.0, -std::f64::consts::PI),
        (INF, -INF, 2.356194490192345), (NAN, 1.0, NAN);
}

/// The remainder of floored division, as NumPy has it.
fn rem_f64(x: f64, y: f64) -> f64 {
    let r = x % y;
    if r == 0.0 {
        0f64.copysign(y)
    } else if (r < 0.0) != (y < 0.0) {
        r + y
    } else {
        r
    }
}

/// The floored quotient of 32-bit integers, as its bits; 0 by zero. In f64 it is further from the next integer than rounding
/// goes, and only −2³¹ / −1 does not fit, which wraps.
#[inline(always)]
fn floor_divide_int(x: f64, y: f64) -> u32 {
    let q = if y == 0.0 { 0.0 } else { (x / y).floor() };
    (q + 6_755_399_441_055_744.0).to_bits() as u32
}

fn floor_divide_i64(x: i64, y: i64) -> i64 {
    if y == 0 { 0 } else { x.div_euclid(y) - (y < 0 && x.rem_euclid(y) != 0) as i64 }
}

/// The remainder of floored division of 32-bit integers, as its bits. In f64 every step is exact: the quotient has
/// too few digits to round across an integer. By zero it is that by one, which is 0.
#[inline(always)]
fn rem_int(x: f64, y: f64) -> u32 {
    let y = if y == 0.0 { 1.0 } else { y };
    let r = x - y * (x / y).floor();
    // Adding 1.5 · 2⁵² leaves an integer in the lower bits; unlike a cast it needs no checks, and vectorises.
    (r + 6_755_399_441_055_744.0).to_bits() as u32
}

/// `xʸ`, wrapping.
#[inline(always)]
fn pow_i32(x: i32, y: i32) -> i32 {
    match (x, y) {
        (1, _) => 1,
        (-1, _) => 1 - 2 * (y & 1),
        (_, ..0) => 0,
        _ => x.wrapping_pow(y as u32),
    }
}

/// The lower 32 bits of `xʸ`.
fn pow_i64(x: i64, y: i64) -> i64 {
    match (x, y) {
        (1, _) => 1,
        (-1, _) => 1 - 2 * (y & 1),
        (_, ..0) => 0,
        _ => x.wrapping_pow(y as u32),
    }
}

/// The greater; NaN if either is. A hardware maximum gives its second argument where one is NaN.
#[inline(always)]
pub(crate) fn max_f32(x: f32, y: f32) -> f32 {
    let greater = if x > y { x } else { y };
    if x.is_nan() { x } else { greater }
}

/// The lesser; NaN if either is.
#[inline(always)]
pub(crate) fn min_f32(x: f32, y: f32) -> f32 {
    let lesser = if x < y { x } else { y };
    if x.is_nan() { x } else { lesser }
}

/// The bound from below that `relu` and `clamp` are: a [`MAXIMUM`] whose first side has no gradient at the bound, where a
/// maximum would give each side half. NaN lets gradients pass.
pub static AT_LEAST: BinaryRow =
    BinaryRow { grad: Some(|x, y, _, g| [x.le(y).select(0.0, g), x.le(y).select(g, 0.0)]), ..MAXIMUM };

/// The bound from above, as [`AT_LEAST`].
pub static AT_MOST: BinaryRow =
    BinaryRow { grad: Some(|x, y, _, g| [x.ge(y).select(0.0, g), x.ge(y).select(g, 0.0)]), ..MINIMUM };

/// The gradient of a side unless the `other` was taken; where both are equal, half of it. NaN is taken from both.
fn unless(other: &Tensor, x: &Tensor, y: &Tensor, g: &Tensor) -> Tensor {
    other.select(0.0, x.eq(y).select(g.mul(0.5), g))
}

/// `⌊x/y⌋` from the remainder `r`: a quotient that rounds up to an integer, or to nothing, would be one too large. Nothing
/// overflows: r/y is 0 to 1. An infinite y goes once, backwards, if the remainder is y itself.
fn floored_quotient(x: &Tensor, y: &Tensor, r: &Tensor) -> Tensor {
    let quotient = x.div(y).sub(r.div(y)).round();
    y.is_inf().select(r.is_inf().select(-1.0, r.is_nan().select(f32::NAN, 0.0)), quotient)
}

/// (xʸ)′ = y·xʸ⁻¹ and xʸ·ln x
fn grad_of_pow(x: &Tensor, y: &Tensor, out: &Tensor, g: &Tensor) -> [Tensor; 2] {
    // Of nothing, also an infinite xʸ⁻¹ makes nothing: x⁰ is 1 everywhere, 0 and NaN included.
    let lower = x.pow(&y.sub(1.0));
    let is_flat = y.eq(0.0).logical_or(g.eq(0.0)).logical_and(lower.is_finite().logical_not());
    let gx = y.mul(is_flat.select(0.0, lower)).mul(g);
    // 0ʸ = 0 for all y from 0 on.
    let is_zero = x.eq(0.0).logical_and(y.ge(0.0));
    let gy = g.mul(&out.mul(&is_zero.select(1.0, x).log()));
    [gx, gy]
}

/// (arctan x/y)′ = y / (x² + y²) and −x / (x² + y²); at the origin, where there is none, 0. Both sides are scaled by a power
/// of two where squares would leave the range; the result does not depend on it, so it has no gradient.
fn grad_of_atan2(x: &Tensor, y: &Tensor, _: &Tensor, g: &Tensor) -> [Tensor; 2] {
    let size = x.abs().maximum(y.abs()).to_dtype(DType::F32);
    let (huge, tiny) = (2f32.powi(-64), 2f32.powi(64));
    let s = size.gt(1e18).select(huge, size.lt(1e-18).select(tiny, 1.0));
    let (x, y) = (x.mul(&s), y.mul(&s));
    let square = x.mul(&x).add(&y.mul(&y));
    let is_origin = square.eq(0.0);
    let square = is_origin.select(1.0, square);
    let part = |z: &Tensor| is_origin.select(0.0, z.div(&square).mul(&s).mul(g));
    [part(&y), part(&x).neg()]
}

impl Tensor {
    /// The power, `xʸ`. Of integers it wraps; a negative exponent gives 0, or ±1 where the base is ±1.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[2.0f32, 3.0], [2], &Device::cpu());
    /// assert_eq!(x.pow(2).to_vec::<f32>()?, [4.0, 9.0]);
    /// assert_eq!(x.pow(&x).to_vec::<f32>()?, [4.0, 27.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn pow(&self, rhs: impl Into<Operand>) -> Tensor {
        let rhs = rhs.into();
        match rhs.side() {
            // x² = x·x, which costs a fortieth.
            Ok(OperandSide::Number(two)) if two.value() == 2.0 => match self.dtype() {
                Ok(dtype) => self.to_dtype(two.promote_with(dtype)).square(),
                Err(_) => self.clone(),
            },
            _ => binary(&POW, self, rhs),
        }
    }
}
