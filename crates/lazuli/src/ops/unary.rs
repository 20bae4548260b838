//! Functions of one element that need no series: signs, roots, rounding, tests. And the macro that turns an entry of
//! such a table into its row, its loops, its method and its docs.

use super::operand::unary;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// WGSL functions that any row's expression may call: WGSL may assume that there are no NaNs and infinities, so they
/// are told by their bits; and it refuses constants that are not finite, so these are made of variables.
pub const WGSL_COMMON: &str = "\
fn is_nan_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn is_inf_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u; }
fn is_finite_f32(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
fn is_negative_f32(x: f32) -> bool { return (bitcast<u32>(x) >> 31u) != 0u; }
fn nan_f32() -> f32 { var bits = 0x7fc00000u; return bitcast<f32>(bits); }
fn inf_f32() -> f32 { var bits = 0x7f800000u; return bitcast<f32>(bits); }
fn copysign_f32(x: f32, sign: f32) -> f32 {
    return bitcast<f32>((bitcast<u32>(x) & 0x7fffffffu) | (bitcast<u32>(sign) & 0x80000000u));
}
";

/// Wires entries of a table of unary ops. Each reads
/// `/// doc`, `NAME method: takes -> gives`, then the fields of [`UnaryRow`](super::UnaryRow); `private` makes no method.
macro_rules! unary_rows {
    ($(
        #[doc = $doc:literal]
        $row:ident $name:ident $($visibility:ident)?: $takes:ident -> $gives:ident $($wraps:ident)?,
        cost $cost:literal, ulps $ulps:literal, range $range:tt $(, step $step:ident)?;
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
                enum F {}
                $(impl $crate::ops::lanes::Unary<$lane, $to> for F {
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
                    step: $crate::ops::binary::optional!($($crate::ops::Step::$step)?),
                    cpu: $crate::ops::PerLane {
                        $($lane: Some($crate::ops::lanes::unary::<F, $lane, $to>()),)+
                        ..$crate::ops::PerLane::NONE
                    },
                    oracle: $oracle,
                    wgsl: $wgsl,
                    wgsl_fns: concat!($($fns)?),
                    grad: $grad,
                    known: &[($x0 as f64, $y0 as f64) $(, ($x1 as f64, $y1 as f64))*],
                    range: $range,
                    ulps: $ulps,
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

pub(super) use {flag, slow, suffix, unary_method, unary_rows};

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
    SQRT sqrt: Float -> Same, cost 6, ulps 0.5, range (0.0, 100.0);
    cpu f32 -> f32 |x| x.sqrt();
    oracle f64::sqrt;
    wgsl "sqrt_f32($x)" "
fn sqrt_f32(x: f32) -> f32 {
    if (x < 0.0) { return nan_f32(); }
    if (x == 0.0 || !is_finite_f32(x)) { return x; }
    return sqrt(x);
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
    if (x < 0.0 || is_nan_f32(x)) { return nan_f32(); }
    if (x == 0.0) { return copysign_f32(inf_f32(), x); }
    if (is_inf_f32(x)) { return 0.0; }
    return inverseSqrt(x);
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
    if (is_nan_f32(x)) { return x; }
    if (x == 0.0) { return copysign_f32(inf_f32(), x); }
    if (is_inf_f32(x)) { return copysign_f32(0.0, x); }
    return 1.0 / x;
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
