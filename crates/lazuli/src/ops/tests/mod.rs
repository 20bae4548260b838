//! What every row promises, checked from its own entries: loops at every instruction set against known values and
//! the f64 oracle, and what recording makes of dtypes, shapes and mistakes. What is written with rows is run.

mod composed;
mod gradients;
mod loops;
mod recording;
mod reductions;

/// Numbers at which functions tend to go wrong.
const SPECIAL: [f32; 22] = [
    0.0,
    -0.0,
    1e-45,
    -1e-45,
    1e-40,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.0,
    -2.5,
    3.0,
    8_388_609.0,
    -16_777_216.0,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];

/// 32-bit integers at which functions tend to go wrong.
const SPECIAL_BITS: [u32; 17] = [
    0,
    1,
    2,
    3,
    5,
    7,
    8,
    31,
    32,
    33,
    255,
    65_537,
    i32::MAX as u32,
    i32::MIN as u32,
    -2i32 as u32,
    -7i32 as u32,
    u32::MAX,
];

/// How far `got` is from `want`, in units in the last place of `want` as an f32. Zeros are equal whatever their sign.
fn ulps(got: f32, want: f64) -> f64 {
    let nearest = want as f32;
    if got.is_nan() && nearest.is_nan() {
        return 0.0;
    }
    if got.is_nan() || nearest.is_nan() {
        return f64::INFINITY;
    }
    if got.is_infinite() && nearest.is_infinite() {
        return if got == nearest { 0.0 } else { f64::INFINITY };
    }
    // Infinity counts as 2¹²⁸, the next value after the largest.
    let real = |v: f32| if v.is_infinite() { 2f64.powi(128).copysign(v as f64) } else { v as f64 };
    let want = if nearest.is_infinite() { real(nearest) } else { want };
    let above = f32::from_bits(nearest.abs().min(f32::MAX).to_bits() + 1);
    (real(got) - want).abs() / (real(above) - real(nearest.abs().min(f32::MAX)))
}

/// Random bits from a seed, the same on every run.
fn random(seed: u32) -> impl Iterator<Item = u32> {
    let row = super::RANDOM.cpu.u32.expect("random is a function of u32")[0];
    (0u32..).flat_map(move |block| {
        let counters: Vec<u32> = (block * 256..(block + 1) * 256).collect();
        let mut out = vec![0; 256];
        // SAFETY: every machine has the baseline.
        unsafe { row(&counters, &[seed; 256], &mut out) };
        out
    })
}
