//! Comparisons, logic and bits: binary ops whose results are bools or patterns of bits, and the generator of random
//! bits.

use super::binary::binary_rows;

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

binary_rows! {
    /// Whether both are equal. NaN equals nothing.
    EQ eq: Any -> Bool, commutes true, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x == y) as u32, i32 -> u32 |x, y| (x == y) as u32, u32 -> u32 |x, y| (x == y) as u32;
    oracle |x, y| (x == y) as u8 as f64, int |x, y| (x == y) as i64;
    wgsl "u32(eq_$t($x, $y))" "
fn eq_f32(x: f32, y: f32) -> bool { return x == y && !is_nan_f32(x) && !is_nan_f32(y); }
fn eq_i32(x: i32, y: i32) -> bool { return x == y; }
fn eq_u32(x: u32, y: u32) -> bool { return x == y; }
";
    grad None;
    known (2.0, 2.0, 1.0), (1.0, 2.0, 0.0), (0.0, -0.0, 1.0), (NAN, NAN, 0.0), (INF, INF, 1.0);

    /// Whether they differ. NaN differs from everything.
    NE ne: Any -> Bool, commutes true, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x != y) as u32, i32 -> u32 |x, y| (x != y) as u32, u32 -> u32 |x, y| (x != y) as u32;
    oracle |x, y| (x != y) as u8 as f64, int |x, y| (x != y) as i64;
    wgsl "u32(ne_$t($x, $y))" "
fn ne_f32(x: f32, y: f32) -> bool { return x != y || is_nan_f32(x) || is_nan_f32(y); }
fn ne_i32(x: i32, y: i32) -> bool { return x != y; }
fn ne_u32(x: u32, y: u32) -> bool { return x != y; }
";
    grad None;
    known (1.0, 2.0, 1.0), (2.0, 2.0, 0.0), (0.0, -0.0, 0.0), (NAN, NAN, 1.0), (INF, INF, 0.0);

    /// Whether the left is less.
    LT lt: Any -> Bool, commutes false, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x < y) as u32, i32 -> u32 |x, y| (x < y) as u32, u32 -> u32 |x, y| (x < y) as u32;
    oracle |x, y| (x < y) as u8 as f64, int |x, y| (x < y) as i64;
    wgsl "u32(lt_$t($x, $y))" "
fn lt_f32(x: f32, y: f32) -> bool { return x < y && !is_nan_f32(x) && !is_nan_f32(y); }
fn lt_i32(x: i32, y: i32) -> bool { return x < y; }
fn lt_u32(x: u32, y: u32) -> bool { return x < y; }
";
    grad None;
    known (1.0, 2.0, 1.0), (2.0, 2.0, 0.0), (-INF, 0.0, 1.0), (NAN, 1.0, 0.0), (1.0, NAN, 0.0);

    /// Whether the left is less or equal.
    LE le: Any -> Bool, commutes false, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x <= y) as u32, i32 -> u32 |x, y| (x <= y) as u32, u32 -> u32 |x, y| (x <= y) as u32;
    oracle |x, y| (x <= y) as u8 as f64, int |x, y| (x <= y) as i64;
    wgsl "u32(le_$t($x, $y))" "
fn le_f32(x: f32, y: f32) -> bool { return x <= y && !is_nan_f32(x) && !is_nan_f32(y); }
fn le_i32(x: i32, y: i32) -> bool { return x <= y; }
fn le_u32(x: u32, y: u32) -> bool { return x <= y; }
";
    grad None;
    known (2.0, 2.0, 1.0), (3.0, 2.0, 0.0), (-INF, -INF, 1.0), (NAN, 1.0, 0.0), (NAN, NAN, 0.0);

    /// Whether the left is greater.
    GT gt: Any -> Bool, commutes false, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x > y) as u32, i32 -> u32 |x, y| (x > y) as u32, u32 -> u32 |x, y| (x > y) as u32;
    oracle |x, y| (x > y) as u8 as f64, int |x, y| (x > y) as i64;
    wgsl "u32(gt_$t($x, $y))" "
fn gt_f32(x: f32, y: f32) -> bool { return x > y && !is_nan_f32(x) && !is_nan_f32(y); }
fn gt_i32(x: i32, y: i32) -> bool { return x > y; }
fn gt_u32(x: u32, y: u32) -> bool { return x > y; }
";
    grad None;
    known (2.0, 1.0, 1.0), (2.0, 2.0, 0.0), (INF, 0.0, 1.0), (NAN, 1.0, 0.0), (1.0, NAN, 0.0);

    /// Whether the left is greater or equal.
    GE ge: Any -> Bool, commutes false, cost 1, ulps 0.0, range (-2.0, 2.0);
    cpu f32 -> u32 |x, y| (x >= y) as u32, i32 -> u32 |x, y| (x >= y) as u32, u32 -> u32 |x, y| (x >= y) as u32;
    oracle |x, y| (x >= y) as u8 as f64, int |x, y| (x >= y) as i64;
    wgsl "u32(ge_$t($x, $y))" "
fn ge_f32(x: f32, y: f32) -> bool { return x >= y && !is_nan_f32(x) && !is_nan_f32(y); }
fn ge_i32(x: i32, y: i32) -> bool { return x >= y; }
fn ge_u32(x: u32, y: u32) -> bool { return x >= y; }
";
    grad None;
    known (2.0, 2.0, 1.0), (1.0, 2.0, 0.0), (INF, INF, 1.0), (NAN, 1.0, 0.0), (NAN, NAN, 0.0);

    /// Whether both are true; a number is true unless it is zero.
    LOGICAL_AND logical_and: Bool -> Bool, commutes true, cost 1, ulps 0.0, range (0.0, 1.0);
    cpu u32 -> u32 |x, y| x & y;
    oracle |x, y| (x != 0.0 && y != 0.0) as u8 as f64, int |x, y| x & y;
    wgsl "($x & $y)";
    grad None;
    known (1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0);

    /// Whether one at least is true; a number is true unless it is zero.
    LOGICAL_OR logical_or: Bool -> Bool, commutes true, cost 1, ulps 0.0, range (0.0, 1.0);
    cpu u32 -> u32 |x, y| x | y;
    oracle |x, y| (x != 0.0 || y != 0.0) as u8 as f64, int |x, y| x | y;
    wgsl "($x | $y)";
    grad None;
    known (1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, 1.0), (0.0, 0.0, 0.0);

    /// The bits set in both, `x & y`.
    BIT_AND bit_and: Bits -> Same, commutes true, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu i32 -> i32 |x, y| x & y, u32 -> u32 |x, y| x & y;
    oracle |x, y| (x as i64 & y as i64) as f64, int |x, y| x & y;
    wgsl "($x & $y)";
    grad None;
    known (12, 10, 8), (-1, 5, 5), (0, 7, 0);

    /// The bits set in either, `x | y`.
    BIT_OR bit_or: Bits -> Same, commutes true, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu i32 -> i32 |x, y| x | y, u32 -> u32 |x, y| x | y;
    oracle |x, y| (x as i64 | y as i64) as f64, int |x, y| x | y;
    wgsl "($x | $y)";
    grad None;
    known (12, 10, 14), (-1, 5, -1), (0, 7, 7);

    /// The bits set in one of the two, `x ^ y`.
    BIT_XOR bit_xor: Bits -> Same, commutes true, cost 1, ulps 0.0, range (-100.0, 100.0);
    cpu i32 -> i32 |x, y| x ^ y, u32 -> u32 |x, y| x ^ y;
    oracle |x, y| (x as i64 ^ y as i64) as f64, int |x, y| x ^ y;
    wgsl "($x ^ $y)";
    grad None;
    known (12, 10, 6), (-1, 5, -6), (7, 7, 0);

    /// The bits moved up by `y` places. By 32 or more, or by a negative number, all are gone: 0.
    SHL shl: Int -> Same wraps, commutes false, cost 1, ulps 0.0, range (0.0, 40.0);
    cpu i32 -> i32 |x, y| if (y as u32) < 32 { x << (y & 31) } else { 0 },
        u32 -> u32 |x, y| if y < 32 { x << (y & 31) } else { 0 };
    oracle |x, y| shl_i64(x as i64, y as i64) as f64, int shl_i64;
    wgsl "select($t(0), $x << (u32($y) & 31u), u32($y) < 32u)";
    grad None;
    known (5, 2, 20), (1, 31, -2147483648.0), (1, 32, 0);

    /// The bits moved down by `y` places; a negative number keeps its sign. By 32 or more only that sign is left.
    SHR shr: Int -> Same, commutes false, cost 1, ulps 0.0, range (0.0, 40.0);
    cpu i32 -> i32 |x, y| x >> (if (y as u32) < 32 { y } else { 31 }),
        u32 -> u32 |x, y| if y < 32 { x >> (y & 31) } else { 0 };
    oracle |x, y| shr_i64(x as i64, y as i64) as f64, int shr_i64;
    wgsl "shr_$t($x, $y)" "
fn shr_i32(x: i32, y: i32) -> i32 { return x >> min(bitcast<u32>(y), 31u); }
fn shr_u32(x: u32, y: u32) -> u32 { return select(0u, x >> (y & 31u), y < 32u); }
";
    grad None;
    known (20, 2, 5), (-5, 1, -3), (5, 32, 0), (-5, 40, -1);

    /// Random bits: `x + y`, mixed so that each bit of the result depends on all of the sum.
    RANDOM random private: Int -> Same, commutes true, cost 10, ulps 0.0, range (0.0, 100.0);
    cpu u32 -> u32 |x, y| mixed(x, y);
    oracle |x, y| mixed(x as u32, y as u32) as f64, int |x, y| mixed(x as u32, y as u32) as i64;
    wgsl "random_u32($x, $y)" "
fn random_u32(counter: u32, key: u32) -> u32 {
    var x = counter + key;
    x = (x ^ (x >> 17u)) * 0xed5ad4bbu;
    x = (x ^ (x >> 11u)) * 0xac4c1b51u;
    x = (x ^ (x >> 15u)) * 0x31848babu;
    return x ^ (x >> 14u);
}
";
    grad None;
    known (0, 0, 0.0);
}

fn shl_i64(x: i64, y: i64) -> i64 {
    if (0..32).contains(&y) { x << y } else { 0 }
}

fn shr_i64(x: i64, y: i64) -> i64 {
    if (0..32).contains(&y) { x >> y } else { x >> 63 }
}

/// A bijection of 32 bits with hardly any bias: `triple32` of Wellons' hash prospector. Short, and each value is used
/// few times: drivers that follow every use of a value need time exponential in the rounds of a longer one.
#[inline(always)]
fn mixed(counter: u32, key: u32) -> u32 {
    let x = counter.wrapping_add(key);
    let x = (x ^ (x >> 17)).wrapping_mul(0xed5a_d4bb);
    let x = (x ^ (x >> 11)).wrapping_mul(0xac4c_1b51);
    let x = (x ^ (x >> 15)).wrapping_mul(0x3184_8bab);
    x ^ (x >> 14)
}
