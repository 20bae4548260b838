//! Functions of one element that need no series: signs, roots, rounding, tests. And the macro that turns an entry of
//! such a table into its row, its loops, its method and its docs.

use super::operand::unary;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// WGSL functions that any row's expression may call: WGSL may assume that there are no NaNs and infinities, so they
/// are told by their bits; and it refuses constants that are not finite, so these are made of variables.
///
/// No function of the driver's is used but roundings and the square root: `exp` is off by a hundred units in the last
/// place on some devices, `asin` by thousands, and `sin` of a large angle is noise. What `math` computes in double
/// precision is done here in f32, and where its digits do not suffice with a second number for what rounding lost.
pub const WGSL_COMMON: &str = "\
fn is_nan_f32(x: f32) -> bool { return (bitcast<i32>(x) & 0x7fffffffi) > 0x7f800000i; }
fn is_inf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn is_finite_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
fn is_negative_f32(x: f32) -> bool { return (bitcast<u32>(x) >> 31u) != 0u; }
fn nan_f32() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn copysign_f32(x: f32, sign: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
fn scaled_f32(x: f32, n: i32) -> f32 {
    // x · 2ⁿ in two steps, as 2ⁿ alone may be too large or too small.
    let half = n >> 1u;
    return x * bitcast<f32>(bitcast<u32>(half + 127i) << 23u) * bitcast<f32>(bitcast<u32>(n - half + 127i) << 23u);
}
fn kept_f32(x: f32) -> f32 {
    // x, if it is a number. To a driver floats are real numbers, of which (a + b) - a is b: it cannot see through this.
    return bitcast<f32>(min(bitcast<u32>(x), 0xffc00000u));
}
fn two_sum_f32(a: f32, b: f32) -> vec2<f32> {
    // a + b, and what its rounding lost, for |a| ≥ |b|.
    let s = kept_f32(a + b);
    return vec2<f32>(s, b - kept_f32(s - a));
}
fn two_product_f32(a: f32, b: f32) -> vec2<f32> {
    // a · b, and what its rounding lost: the products of halves are exact.
    let p = kept_f32(a * b);
    let a_hi = bitcast<f32>(bitcast<u32>(a) & 0xfffff000u);
    let b_hi = bitcast<f32>(bitcast<u32>(b) & 0xfffff000u);
    let a_lo = kept_f32(a - a_hi);
    let b_lo = kept_f32(b - b_hi);
    return vec2<f32>(p, ((kept_f32(a_hi * b_hi - p) + a_hi * b_lo) + a_lo * b_hi) + a_lo * b_lo);
}
fn exp_parts_f32(x: f32) -> vec2<f32> {
    // eˣ = 2ⁿ·(1 + p), for x from -104 to 90. x = n·ln 2 + r, with ln 2 in two parts so that r keeps its digits.
    let n = round(x * 1.442695);
    let r = (x - n * 0.69314575) - n * 1.4286068e-6;
    let q = 0.5 + r * (0.16666533 + r * (0.041667245 + r * (0.00836762 + r * 0.0013863486)));
    return vec2<f32>(n, r + r * r * q);
}
fn exp_inverse_f32(e: vec2<f32>) -> f32 {
    // e⁻ˣ·2⁻ⁿ for the parts of eˣ; nothing where n is large.
    return bitcast<f32>(bitcast<u32>(max(127i - 2i * i32(e.x), 0i)) << 23u) / (1.0 + e.y);
}
fn exp_f32(x: f32) -> f32 {
    // Nothing branches: lanes go together. 2ⁿ is added to the exponent; what is below all normal numbers is made 2⁶⁴
    // times as large first.
    let e = exp_parts_f32(max(x, -104.0));
    let bits = bitcast<u32>(1.0 + e.y) + (bitcast<u32>(e.x + 12582912.0) << 23u);
    let low = bitcast<f32>(bits + 0x20000000u) * 5.421011e-20;
    let y = select(bitcast<f32>(bits), low, x < -87.0);
    return select(select(y, inf_f32(), x >= 88.72284), x, is_nan_f32(x));
}
fn exp2_unit_f32(r: f32) -> f32 {
    // 2ʳ, for r from -½ to ½.
    let q = 0.0555036 + r * (0.009618506 + r * (0.0013390806 + r * 0.00015326471));
    return 1.0 + r * (0.6931472 + r * (0.24022648 + r * q));
}
fn log_parts_f32(x: f32) -> vec2<f32> {
    // x = 2ᵉ·(1 + f), for finite positive x; a subnormal is made normal first.
    let tiny = x < 1.1754944e-38;
    let bits = bitcast<u32>(select(x, x * 8388608.0, tiny));
    let e = bitcast<i32>(bits - 0x3f3504f3u) >> 23u;
    let f = bitcast<f32>(bits - (bitcast<u32>(e) << 23u)) - 1.0;
    return vec2<f32>(f32(e) - select(0.0, 23.0, tiny), f);
}
fn log_rest_f32(f: f32) -> f32 {
    // ln(1 + f) − f
    let q = 0.1418044 + f * (-0.13248456 + f * (0.1291637 - f * 0.07622652));
    return f * f * (-0.49999988 + f * (0.33333325 + f * (-0.25001612 + f * (0.20002016 + f * (-0.16608322 + f * q)))));
}
fn log_sum_f32(u: f32, c: f32, n: f32) -> f32 {
    // ln((u + c)·2ⁿ), for finite positive u, of which c is no more than a rounding.
    let p = log_parts_f32(u);
    let e = p.x + n;
    return e * 0.69314575 + (p.y + (e * 1.4286068e-6 + (log_rest_f32(p.y) + c / u)));
}
fn log_f32(x: f32) -> f32 {
    if (x < 0.0 || is_nan_f32(x)) { return nan_f32(); }
    if (x == 0.0) { return -inf_f32(); }
    if (is_inf_f32(x)) { return x; }
    let p = log_parts_f32(x);
    return p.x * 0.69314575 + (p.y + (p.x * 1.4286068e-6 + log_rest_f32(p.y)));
}
fn asin_rest_f32(s: f32, z: f32) -> f32 {
    // (asin √z - √z)·s/√z, for z up to ¼.
    return s * z * (0.16666752 + z * (0.074952975 + z * (0.045470376 + z * (0.024179514 + z * 0.042166308))));
}
fn atan_from_f32(n_quarters: f32, t: f32) -> f32 {
    // n·π/2 + atan t, for t from -1 to 1.
    let z = t * t;
    let q = -0.08403451 + z * (0.057957605 + z * (-0.031177858 + z * (0.010914613 - z * 0.0017936211)));
    let rest = t * z * (-0.333333 + z * (0.19998549 + z * (-0.14264242 + z * (0.10952186 + z * q))));
    let sum = two_sum_f32(n_quarters * 1.5707964, t);
    return sum.x + (sum.y + (rest - n_quarters * 4.371139e-8));
}
fn trig_parts_f32(x: f32) -> vec3<f32> {
    // x = n·π/2 + r + c, for finite x: (r, c, n), where c is less than a rounding of r, and n right modulo 4.
    if (abs(x) > 200.0) { return trig_parts_of_large_f32(x); }
    // π/2 in four parts, of which n times the first three is exact.
    let n = round(x * 0.63661975);
    let a = (x - n * 1.5703125) - n * 0.0004837513;
    let b = n * 7.5495336e-8;
    let r = kept_f32(a - b);
    return vec3<f32>(r, (kept_f32(a - r) - b) - n * 2.563344e-12, n);
}
fn trig_parts_of_large_f32(x: f32) -> vec3<f32> {
    // |x| = m·2ᵉ. Of 2/π the bits that times 2ᵉ are 4 or more go: they make whole turns. 94 more are enough.
    var two_over_pi = array<u32, 8>(
        0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu
    );
    let bits = bitcast<u32>(x) & 0x7fffffffu;
    let m = (bits & 0x7fffffu) | 0x800000u;
    let from_bit = (bits >> 23u) - 120u;
    let i = from_bit >> 5u;
    let shift = from_bit & 31u;
    var w: array<u32, 3>;
    for (var k = 0u; k < 3u; k++) {
        w[k] = (two_over_pi[i + k] << shift) | ((two_over_pi[min(i + k + 1u, 7u)] >> 1u) >> (31u - shift));
    }
    // Two bits of quadrant and 62 of fraction; then the quadrant is rounded, and the fraction made positive.
    let mid = wide_product(m, w[1]);
    let low = mid.x + wide_product(m, w[2]).y;
    let high = m * w[0] + mid.y + u32(low < mid.x);
    let n = (high + 0x20000000u) >> 30u;
    let fraction = high - (n << 30u);
    let down = fraction > 0x7fffffffu;
    let f = select(vec2<u32>(low, fraction), vec2<u32>(0u - low, ~fraction + u32(low == 0u)), down);
    // Shifted to its first digit, and times π/2, the upper 16 bits exactly.
    let zeros = min(countLeadingZeros(f.y), 31u);
    let digits = (f.y << zeros) | ((f.x >> 1u) >> (31u - zeros));
    let scale = bitcast<f32>((97u - zeros) << 23u);
    let a = f32(digits & 0xffff0000u) * scale;
    let b = (f32(digits & 0xffffu) + f32(f.x << zeros) * 2.3283064e-10) * scale;
    let r = two_sum_f32(a * 1.5703125, a * 0.0004838268 + b * 1.5707964);
    // All of it turns with the sign of x.
    let sign = select(1.0, -1.0, is_negative_f32(x));
    return vec3<f32>(r * select(sign, -sign, down), sign * f32(n));
}
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    // The lower and the upper half of a · b, by halves of a and b.
    let low = (a & 0xffffu) * (b & 0xffffu);
    let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let cross = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
    return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (mid >> 16u) + (cross >> 16u));
}
fn sin_of_parts_f32(p: vec3<f32>, quadrants: i32) -> f32 {
    // sin(r + c + (n + quadrants)·π/2)
    let n = i32(p.z) + quadrants;
    let z = p.x * p.x;
    let s = p.x + (p.x * z * (-0.16666655 + z * (0.00833216 - z * 0.00019515256)) + p.y * (1.0 - 0.5 * z));
    let c = 1.0 - (0.5 * z - (z * z * (0.041666646 + z * (-0.0013887316 + z * 2.4433128e-5)) - p.x * p.y));
    let y = select(s, c, (n & 1i) != 0i);
    return select(y, -y, (n & 2i) != 0i);
}
";

/// Wires entries of a table of unary ops. Each reads
/// `/// doc`, `NAME method: takes -> gives`, then the fields of [`UnaryRow`](super::UnaryRow); `private` makes no method.
macro_rules! unary_rows {
    ($(
        #[doc = $doc:literal]
        $row:ident $name:ident $($visibility:ident)?: $takes:ident -> $gives:ident $($wraps:ident)?,
        cost $cost:literal, ulps $ulps:literal, $(gpu_ulps $gpu_ulps:literal,)? range $range:tt $(, step $step:ident)?;
        cpu $($lane:ident -> $to:ident |$x:ident| $eval:expr $(; slow |$sx:ident| $is_slow:expr => $slow:expr)?),+;
        oracle $oracle:expr;
        wgsl $wgsl:literal $($fns:literal)?;
        grad $grad:expr;
        known ($x0:literal, $y0:literal) $(, ($x1:expr, $y1:expr))*;
    )*) => {
        $(
            #[doc = $doc]
            #[allow(clippy::needless_update)]
            pub static $row: $crate::ops::UnaryRow = {
                enum UnaryFn {}
                $(impl $crate::ops::lanes::Unary<$lane, $to> for UnaryFn {
                    #[inline(always)]
                    fn eval<L: $crate::ops::math::Level>($x: $lane) -> $to {
                        $eval
                    }
                    $crate::ops::unary::slow!($lane $to $(|$sx| $is_slow => $slow)?);
                })+
                $crate::ops::UnaryRow {
                    name: stringify!($name),
                    doc: $doc.trim_ascii(),
                    takes: $crate::ops::Takes::$takes,
                    gives: $crate::ops::Gives::$gives,
                    wraps: $crate::ops::unary::flag!($($wraps)?),
                    cost: $cost,
                    step: $crate::ops::binary::optional!($($crate::ops::RegisterStep::$step)?),
                    cpu: $crate::ops::PerLane {
                        $($lane: Some($crate::ops::lanes::unary::<UnaryFn, $lane, $to>()),)+
                        ..$crate::ops::PerLane::NONE
                    },
                    oracle: $oracle,
                    wgsl: $wgsl,
                    wgsl_fns: concat!($($fns)?),
                    grad: $grad,
                    known: &[($x0 as f64, $y0 as f64) $(, ($x1 as f64, $y1 as f64))*],
                    range: $range,
                    ulps: $ulps,
                    gpu_ulps: $crate::ops::unary::either!($($gpu_ulps)? $ulps),
                }
            };
            $crate::ops::unary::unary_method!($($visibility)? $row $name $takes $doc, $x0, $y0);
        )*

        /// The rows above, in order.
        pub(super) static ROWS: &[&$crate::ops::UnaryRow] = &[$(&$row),*];
    };
}

/// The method of a unary row.
macro_rules! unary_method {
    (private $($rest:tt)*) => {};
    ($row:ident $name:ident $takes:ident $doc:literal, $x:literal, $y:literal) => {
        impl $crate::Tensor {
            #[doc = $doc]
            ///
            /// ```
            /// # use lazuli::{DType, Device, Tensor};
            #[doc = concat!("let x = Tensor::from_slice(&[", stringify!($x), $crate::ops::unary::suffix!($takes), "], [1], &Device::cpu());")]
            #[doc = concat!("let y = x.", stringify!($name), "().to_dtype(DType::F32).item::<f32>()?;")]
            #[doc = concat!("assert!((y - ", stringify!($y), " as f32).abs() <= 1e-6);")]
            /// # Ok::<(), lazuli::Error>(())
            /// ```
            #[track_caller]
            pub fn $name(&self) -> $crate::Tensor {
                $crate::ops::operand::unary(&$row, self)
            }
        }
    };
}

/// What [`lanes::Unary`](super::lanes::Unary) needs to know of arguments that the loop cannot take.
macro_rules! slow {
    ($x:ident $y:ident) => {
        fn slow(_: $x) -> $y {
            unreachable!("no argument is slow")
        }
    };
    ($x:ident $y:ident |$sx:ident| $is_slow:expr => $slow:expr) => {
        const HAS_SLOW: bool = true;
        #[inline(always)]
        fn is_slow($sx: $x) -> bool {
            $is_slow
        }
        fn slow($sx: $x) -> $y {
            $slow
        }
    };
}

/// Whether a word is there.
macro_rules! flag {
    () => {
        false
    };
    ($word:ident) => {
        true
    };
}

/// The first of one or two.
macro_rules! either {
    ($first:literal $($other:literal)?) => {
        $first
    };
}

/// The type of the number in an example.
macro_rules! suffix {
    (Int) => {
        "i32"
    };
    (Bits) => {
        "i32"
    };
    ($takes:ident) => {
        "f32"
    };
}

pub(super) use {either, flag, slow, suffix, unary_method, unary_rows};

unary_rows! {
    /// The number with its sign turned; of an unsigned integer, what is missing to zero (it wraps).
    NEG neg: Number -> Same wraps, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu f32 -> f32 |x| -x, i32 -> i32 |x| x.wrapping_neg(), u32 -> u32 |x| x.wrapping_neg();
    oracle |x| -x;
    wgsl "neg_$t($x)" "
fn neg_f32(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ 0x80000000u); }
fn neg_i32(x: i32) -> i32 { return 0i - x; }
fn neg_u32(x: u32) -> u32 { return 0u - x; }
";
    grad Some(|_, _, g| g.neg());
    known (1.5, -1.5), (-2.0, 2.0), (0.0, -0.0), (f64::INFINITY, f64::NEG_INFINITY), (f64::NAN, f64::NAN);

    /// The magnitude, `|x|`.
    ABS abs: Number -> Same, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu f32 -> f32 |x| x.abs(), i32 -> i32 |x| x.wrapping_abs(), u32 -> u32 |x| x;
    oracle f64::abs;
    wgsl "abs($x)";
    grad Some(|x, _, g| g.mul(&x.sign()));
    known (-1.5, 1.5), (2.0, 2.0), (-0.0, 0.0), (f64::NEG_INFINITY, f64::INFINITY), (f64::NAN, f64::NAN);

    /// −1, 0 or 1, as the number is negative, zero or positive.
    SIGN sign: Number -> Same, cost 2, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> f32 |x| {
            let sign = (x > 0.0) as i32 - (x < 0.0) as i32;
            if x.is_nan() { x } else { sign as f32 }
        },
        i32 -> i32 |x| x.signum(),
        u32 -> u32 |x| (x != 0) as u32;
    oracle |x| if x == 0.0 { 0.0 } else { x.signum() };
    wgsl "sign_$t($x)" "
fn sign_f32(x: f32) -> f32 {
    if (is_nan_f32(x)) { return x; }
    return f32(i32(x > 0.0) - i32(x < 0.0));
}
fn sign_i32(x: i32) -> i32 { return sign(x); }
fn sign_u32(x: u32) -> u32 { return min(x, 1u); }
";
    grad None;
    known (-3.5, -1.0), (0.25, 1.0), (0.0, 0.0), (f64::NEG_INFINITY, -1.0), (f64::NAN, f64::NAN);

    /// The square root, `√x`; NaN of a negative number.
    SQRT sqrt: Float -> Same, cost 6, ulps 0.5, range (0.0, 100.0), step Sqrt;
    cpu f32 -> f32 |x| x.sqrt();
    oracle f64::sqrt;
    wgsl "sqrt_f32($x)" "
fn sqrt_f32(x: f32) -> f32 {
    // Nothing branches: lanes go together.
    return select(select(sqrt(x), x, (x == 0.0) | !is_finite_f32(x)), nan_f32(), x < 0.0);
}
";
    // (√x)′ = 1 / (2·√x)
    grad Some(|_, y, g| g.mul(0.5).div(y));
    known (9.0, 3.0), (2.0, std::f64::consts::SQRT_2), (-0.0, -0.0), (-1.0, f64::NAN), (f64::INFINITY, f64::INFINITY);

    /// One over the square root, `1/√x`.
    RSQRT rsqrt: Float -> Same, cost 10, ulps 1.6, range (0.01, 100.0);
    cpu f32 -> f32 |x| 1.0 / x.sqrt();
    oracle |x| 1.0 / x.sqrt();
    wgsl "rsqrt_f32($x)" "
fn rsqrt_f32(x: f32) -> f32 {
    // Nothing branches: lanes go together.
    let y = select(1.0 / sqrt(x), copysign_f32(inf_f32(), x), x == 0.0);
    return select(select(y, 0.0, is_inf_f32(x)), nan_f32(), (x < 0.0) | is_nan_f32(x));
}
";
    // (x^−½)′ = −½·x^−³⁄²
    grad Some(|_, y, g| g.mul(-0.5).mul(&y.mul(y).mul(y)));
    known (4.0, 0.5), (2.0, std::f64::consts::FRAC_1_SQRT_2), (0.0, f64::INFINITY), (f64::INFINITY, 0.0), (-1.0, f64::NAN);

    /// One over the number, `1/x`.
    RECIP recip: Float -> Same, cost 4, ulps 0.5, range (0.01, 100.0);
    cpu f32 -> f32 |x| 1.0 / x;
    oracle |x| 1.0 / x;
    wgsl "recip_f32($x)" "
fn recip_f32(x: f32) -> f32 {
    // Nothing branches: lanes go together.
    let y = select(1.0 / x, copysign_f32(inf_f32(), x), x == 0.0);
    return select(select(y, copysign_f32(0.0, x), is_inf_f32(x)), x, is_nan_f32(x));
}
";
    // (1/x)′ = −1/x²
    grad Some(|_, y, g| g.mul(&y.mul(y)).neg());
    known (4.0, 0.25), (-0.5, -2.0), (-0.0, f64::NEG_INFINITY), (f64::INFINITY, 0.0), (f64::NAN, f64::NAN);

    /// The greatest integer not above the number, `⌊x⌋`.
    FLOOR floor: Number -> Same, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> f32 |x| x.floor(), i32 -> i32 |x| x, u32 -> u32 |x| x;
    oracle f64::floor;
    wgsl "floor_$t($x)" "
fn floor_f32(x: f32) -> f32 { return select(x, copysign_f32(floor(x), x), is_finite_f32(x)); }
fn floor_i32(x: i32) -> i32 { return x; }
fn floor_u32(x: u32) -> u32 { return x; }
";
    grad None;
    known (-1.5, -2.0), (1.7, 1.0), (-0.0, -0.0), (f64::INFINITY, f64::INFINITY), (f64::NAN, f64::NAN);

    /// The least integer not below the number, `⌈x⌉`.
    CEIL ceil: Number -> Same, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> f32 |x| x.ceil(), i32 -> i32 |x| x, u32 -> u32 |x| x;
    oracle f64::ceil;
    wgsl "ceil_$t($x)" "
fn ceil_f32(x: f32) -> f32 { return select(x, copysign_f32(ceil(x), x), is_finite_f32(x)); }
fn ceil_i32(x: i32) -> i32 { return x; }
fn ceil_u32(x: u32) -> u32 { return x; }
";
    grad None;
    known (-1.5, -1.0), (1.2, 2.0), (-0.5, -0.0), (f64::INFINITY, f64::INFINITY), (f64::NAN, f64::NAN);

    /// The nearest integer; of two equally near, the even one.
    ROUND round: Number -> Same, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> f32 |x| x.round_ties_even(), i32 -> i32 |x| x, u32 -> u32 |x| x;
    oracle f64::round_ties_even;
    wgsl "round_$t($x)" "
fn round_f32(x: f32) -> f32 { return select(x, copysign_f32(round(x), x), is_finite_f32(x)); }
fn round_i32(x: i32) -> i32 { return x; }
fn round_u32(x: u32) -> u32 { return x; }
";
    grad None;
    known (2.5, 2.0), (3.5, 4.0), (-0.5, -0.0), (-1.6, -2.0), (f64::INFINITY, f64::INFINITY), (f64::NAN, f64::NAN);

    /// The number without its fraction.
    TRUNC trunc: Number -> Same, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> f32 |x| x.trunc(), i32 -> i32 |x| x, u32 -> u32 |x| x;
    oracle f64::trunc;
    wgsl "trunc_$t($x)" "
fn trunc_f32(x: f32) -> f32 { return select(x, copysign_f32(trunc(x), x), is_finite_f32(x)); }
fn trunc_i32(x: i32) -> i32 { return x; }
fn trunc_u32(x: u32) -> u32 { return x; }
";
    grad None;
    known (-1.7, -1.0), (1.7, 1.0), (-0.5, -0.0), (f64::NEG_INFINITY, f64::NEG_INFINITY), (f64::NAN, f64::NAN);

    /// Whether the number is zero (or the bool false).
    LOGICAL_NOT logical_not: Bool -> Bool, cost 1, ulps 0.0, range (0.0, 1.0);
    cpu u32 -> u32 |x| x ^ 1;
    oracle |x| (x == 0.0) as u8 as f64;
    wgsl "($x ^ 1u)";
    grad None;
    known (0.0, 1.0), (1.0, 0.0);

    /// Every bit turned, `!x`.
    BIT_NOT bit_not private: Int -> Same wraps, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu i32 -> i32 |x| !x, u32 -> u32 |x| !x;
    oracle |x| -1.0 - x;
    wgsl "(~$x)";
    grad None;
    known (5, -6), (-1, 0), (0, -1);

    /// Whether it is not a number.
    IS_NAN is_nan: Float -> Bool, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> u32 |x| x.is_nan() as u32;
    oracle |x| x.is_nan() as u8 as f64;
    wgsl "u32(is_nan_f32($x))";
    grad None;
    known (1.0, 0.0), (f64::NAN, 1.0), (f64::INFINITY, 0.0);

    /// Whether it is infinite, of either sign.
    IS_INF is_inf: Float -> Bool, cost 1, ulps 0.0, range (-10.0, 10.0);
    cpu f32 -> u32 |x| (x.abs() == f32::INFINITY) as u32;
    oracle |x| x.is_infinite() as u8 as f64;
    wgsl "u32(is_inf_f32($x))";
    grad None;
    known (1.0, 0.0), (f64::NAN, 0.0), (f64::INFINITY, 1.0), (f64::NEG_INFINITY, 1.0);
}

impl Tensor {
    /// Every bit turned; of a bool, its opposite.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[5i32, -1], [2], &Device::cpu());
    /// assert_eq!(x.bit_not().to_vec::<i32>()?, [-6, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn bit_not(&self) -> Tensor {
        match self.dtype() {
            Ok(DType::Bool) => self.logical_not(),
            _ => unary(&BIT_NOT, self),
        }
    }

    /// The number times itself, `x²`.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[3.0f32, -2.0], [2], &Device::cpu());
    /// assert_eq!(x.square().to_vec::<f32>()?, [9.0, 4.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn square(&self) -> Tensor {
        self.mul(self)
    }

    /// Whether it is neither infinite nor NaN.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0, f32::NAN, f32::INFINITY], [3], &Device::cpu());
    /// assert_eq!(x.is_finite().to_vec::<bool>()?, [true, false, false]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn is_finite(&self) -> Tensor {
        self.abs().lt(f32::INFINITY)
    }
}
