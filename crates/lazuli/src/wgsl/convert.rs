//! Packed elements to lanes and back, and casts: the WGSL of what `cpu/convert.rs` does. Half floats are taken apart
//! and put together by integer arithmetic, because `pack2x16float` may flush or round as a driver likes. Knows dtypes;
//! nothing of memory or instructions.

use super::tree::{ShaderExpr, ShaderType, call, literal};
use crate::dtype::{DType, Lane};

/// Functions that the expressions below call.
pub const FUNCTIONS: &str = "\
fn f16_to_f32(half: u32) -> f32 {
    let sign = (half & 0x8000u) << 16u;
    let magnitude = half & 0x7fffu;
    // Below the least normal number: a whole number of 2⁻²⁴.
    let low = bitcast<u32>(f32(magnitude) * 5.9604644775390625e-8);
    let normal = (magnitude << 13u) + select(0x38000000u, 0x70000000u, magnitude >= 0x7c00u);
    return bitcast<f32>(sign | select(normal, low, magnitude < 0x0400u));
}
fn f32_to_f16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    // Below the least normal number: counted in 2⁻²⁴, to the nearest, ties to even.
    let shift = min(126u - min(magnitude >> 23u, 112u), 31u);
    let digits = (magnitude & 0x007fffffu) | 0x00800000u;
    let kept = digits >> shift;
    let rest = digits & ((1u << shift) - 1u);
    let low = kept + u32(rest + (kept & 1u) > (1u << (shift - 1u)));
    let normal = (magnitude + 0x0fffu + ((magnitude >> 13u) & 1u) - 0x38000000u) >> 13u;
    let number = select(low, normal, magnitude >= 0x38800000u);
    // From 65520 on the nearest is infinity.
    let finite = select(number, 0x7c00u, magnitude >= 0x477ff000u);
    return sign | select(finite, 0x7e00u | ((magnitude >> 13u) & 0x01ffu), magnitude > 0x7f800000u);
}
fn bf16_to_f32(half: u32) -> f32 { return bitcast<f32>(half << 16u); }
fn f32_to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let near = (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
    return select(near, (bits >> 16u) | 0x40u, (bits & 0x7fffffffu) > 0x7f800000u);
}
fn f32_to_i32(x: f32) -> i32 {
    if (is_nan_f32(x)) { return 0i; }
    if (x >= 2147483648.0) { return 2147483647i; }
    if (x <= -2147483648.0) { return -2147483647i - 1i; }
    return i32(x);
}
fn f32_to_u32(x: f32) -> u32 {
    if (is_nan_f32(x) || x <= 0.0) { return 0u; }
    if (x >= 4294967296.0) { return 0xffffffffu; }
    return u32(x);
}
fn f32_to_u8(x: f32) -> u32 {
    if (is_nan_f32(x)) { return 0u; }
    return u32(clamp(x, 0.0, 255.0));
}
";

/// How an element of `from` becomes one of `to`, as an expression over `$x`; None if no bit of its lane changes.
/// See `InstOp::Cast` for what casts mean.
pub fn cast(from: DType, to: DType) -> Option<&'static str> {
    match (from, to) {
        (_, DType::F32) if from.is_float() => None,
        (_, DType::F32) => Some("f32($x)"),
        (_, DType::F16) if from.is_float() => Some("f16_to_f32(f32_to_f16($x))"),
        (_, DType::F16) => Some("f16_to_f32(f32_to_f16(f32($x)))"),
        (_, DType::BF16) if from.is_float() => Some("bf16_to_f32(f32_to_bf16($x))"),
        (_, DType::BF16) => Some("bf16_to_f32(f32_to_bf16(f32($x)))"),
        (_, DType::I32) if from.is_float() => Some("f32_to_i32($x)"),
        (_, DType::U32) if from.is_float() => Some("f32_to_u32($x)"),
        (_, DType::U8) if from.is_float() => Some("f32_to_u8($x)"),
        // Both zeros are false; NaN is true.
        (_, DType::Bool) if from.is_float() => Some("u32((bitcast<u32>($x) << 1u) != 0u)"),
        (_, DType::I32) if from.lane() == Lane::I32 => None,
        (_, DType::I32) => Some("bitcast<i32>($x)"),
        (_, DType::U32) if from.lane() == Lane::U32 => None,
        (_, DType::U32) => Some("bitcast<u32>($x)"),
        (DType::U8 | DType::Bool, DType::U8) | (DType::Bool, DType::Bool) => None,
        (_, DType::U8) => Some("(bitcast<u32>($x) & 0xffu)"),
        (_, DType::Bool) => Some("u32(bitcast<u32>($x) != 0u)"),
    }
}

/// A packed element's bits, all others zero, as a lane.
pub fn unpack(dtype: DType, bits: ShaderExpr) -> ShaderExpr {
    match dtype {
        DType::F16 => call("f16_to_f32", [bits], ShaderType::One(Lane::F32)),
        DType::BF16 => call("bf16_to_f32", [bits], ShaderType::One(Lane::F32)),
        _ => bits,
    }
}

/// A lane as the bits of a packed element, all others zero.
pub fn pack(dtype: DType, lane: ShaderExpr) -> ShaderExpr {
    match dtype {
        DType::F16 => call("f32_to_f16", [lane], ShaderType::One(Lane::U32)),
        DType::BF16 => call("f32_to_bf16", [lane], ShaderType::One(Lane::U32)),
        _ => lane & literal("0xffu", Lane::U32),
    }
}
