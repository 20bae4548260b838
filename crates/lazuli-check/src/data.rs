//! Reproducible noise for the leaves of random programs. Self-contained, because a failing case prints this file along
//! with itself.

/// 64 bits that depend on all bits of the seed and the index.
pub fn noise(seed: u32, index: usize) -> u64 {
    let x = ((seed as u64) << 32 | index as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Numbers of one of several kinds.
pub fn number(kind: u32, seed: u32, index: usize) -> f64 {
    let bits = noise(seed, index);
    let unit = (bits >> 40) as f64 / (1u64 << 24) as f64;
    let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, 65504.0];
    match kind {
        // Small whole numbers: sums and products of them are exact.
        0 => (bits % 9) as f64 - 4.0,
        // Around zero.
        1 => (unit * 4.0 - 2.0) as f32 as f64,
        // Positive.
        2 => (unit * 3.0 + 0.01) as f32 as f64,
        // Of all sizes.
        3 => ((unit * 2.0 - 1.0) * 2f64.powi((bits % 41) as i32 - 20)) as f32 as f64,
        // Around zero, with what breaks things among them.
        4 if bits.is_multiple_of(8) => special[(bits >> 8) as usize % special.len()],
        4 => (unit * 4.0 - 2.0) as f32 as f64,
        // Any whole number of 32 bits.
        5 => (bits >> 32) as u32 as i32 as f64,
        // A whole number below the kind, less 100.
        _ => (bits % (kind as u64 - 100)) as f64,
    }
}
