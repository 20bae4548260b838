//! The loops of elementwise rows.

use super::super::{BinaryRow, Gives, Isa, Takes, UnaryRow, apply, isas, table};
use super::{SPECIAL, SPECIAL_BITS, random, ulps};

/// The f32 loop of a row over `x`.
fn run(row: &UnaryRow, isa: Isa, x: &[u32]) -> Vec<u32> {
    let mut y = vec![0xdead_beef; x.len()];
    // SAFETY: `isas` names only what this machine has.
    unsafe { row.cpu.f32.expect("takes f32")[isa as usize](x, &mut y) };
    y
}

/// The f32 loop of a row over `x` and `y`; single lanes give the same.
fn run2(row: &BinaryRow, isa: Isa, x: &[u32], y: &[u32]) -> Vec<u32> {
    let loops = row.cpu.f32.expect("takes f32")[isa as usize];
    let mut vv = vec![0xdead_beef; x.len()];
    // SAFETY: `isas` names only what this machine has.
    unsafe { loops(x, y, &mut vv) };
    for i in (0..x.len()).step_by(97) {
        let (x, y) = (&x[i..=i], &y[i..=i]);
        for (x, y) in [(x, [y[0]; 300].as_slice()), (&[x[0]; 300], y), (x, y)] {
            let mut out = [0; 300];
            // SAFETY: as above.
            unsafe { apply(loops, x, y, &mut out) };
            assert_eq!(out, [vv[i]; 300], "{} at {isa:?}: a single lane gives another result", row.name);
        }
    }
    vv
}

#[track_caller]
fn check(name: &str, isa: Isa, gives: Gives, args: &[f32], got: u32, want: f64, bound: f64) {
    let err = match gives {
        Gives::Bool if got as f64 == want => 0.0,
        Gives::Bool => f64::INFINITY,
        _ => ulps(f32::from_bits(got), want),
    };
    let shown = if gives == Gives::Bool { got as f32 } else { f32::from_bits(got) };
    assert!(err <= bound, "{name}{args:?} at {isa:?} is {shown:e}, not {want:e}: {err:.2} ulps, {bound} are stated");
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn unary_rows_give_their_known_values() {
    for row in table().unary {
        for &(x, y) in row.known {
            if row.cpu.f32.is_some() {
                for isa in isas() {
                    let got = run(row, isa, &bits(&[x as f32]))[0];
                    check(row.name, isa, row.gives, &[x as f32], got, y, row.ulps.max(0.5));
                    // Zeros have signs.
                    if y == 0.0 && row.gives == Gives::Same {
                        assert_eq!(got >> 31, y.is_sign_negative() as u32, "{}({x})", row.name);
                    }
                }
            }
            assert!(ulps((row.oracle)(x) as f32, y) <= 0.5, "the oracle of {} at {x}", row.name);
        }
    }
}

#[test]
fn unary_rows_hold_their_ulps_over_all_floats() {
    // A prime step meets every exponent with varying digits.
    let sweep = (0..=u32::MAX).step_by(149_993);
    for row in table().unary.into_iter().filter(|row| row.cpu.f32.is_some()) {
        let drawn = random(7).take(4000).map(|r| {
            let part = r as f64 / u32::MAX as f64;
            ((row.range.0 + part * (row.range.1 - row.range.0)) as f32).to_bits()
        });
        let x: Vec<u32> = bits(&SPECIAL).into_iter().chain(sweep.clone()).chain(drawn).collect();
        for isa in isas() {
            for (x, got) in x.iter().zip(run(row, isa, &x)) {
                let x = f32::from_bits(*x);
                check(row.name, isa, row.gives, &[x], got, (row.oracle)(x as f64), row.ulps);
            }
        }
    }
}

#[test]
fn binary_rows_give_their_known_values() {
    for row in table().binary {
        for &(x, y, z) in row.known {
            if row.cpu.f32.is_some() {
                for isa in isas() {
                    let got = run2(row, isa, &bits(&[x as f32]), &bits(&[y as f32]))[0];
                    check(row.name, isa, row.gives, &[x as f32, y as f32], got, z, row.ulps.max(0.5));
                }
            }
            let want = match row.oracle_int {
                Some(oracle) if row.cpu.f32.is_none() => oracle(x as i64, y as i64) as i32 as f64,
                _ => (row.oracle)(x, y),
            };
            let z = if row.cpu.f32.is_none() { z as i64 as i32 as f64 } else { z };
            assert!(ulps(want as f32, z) <= 0.5, "the oracle of {} at {x}, {y}", row.name);
        }
    }
}

#[test]
fn binary_rows_hold_their_ulps() {
    for row in table().binary.into_iter().filter(|row| row.cpu.f32.is_some()) {
        let (low, high) = row.range;
        let drawn = |r: u32| ((low + r as f64 / u32::MAX as f64 * (high - low)) as f32).to_bits();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for a in SPECIAL {
            x.extend([a.to_bits(); SPECIAL.len()]);
            y.extend(bits(&SPECIAL));
        }
        // Of all magnitudes, then of those the op is made for.
        let pairs: Vec<u32> = random(1).take(20_000).chain(random(2).take(20_000).map(drawn)).collect();
        x.extend(pairs.iter().step_by(2));
        y.extend(pairs.iter().skip(1).step_by(2));
        for isa in isas() {
            for ((x, y), got) in x.iter().zip(&y).zip(run2(row, isa, &x, &y)) {
                let (x, y) = (f32::from_bits(*x), f32::from_bits(*y));
                let want = (row.oracle)(x as f64, y as f64);
                check(row.name, isa, row.gives, &[x, y], got, want, row.ulps);
            }
        }
    }
}

#[test]
fn integer_rows_wrap_and_never_trap() {
    let pairs: Vec<(u32, u32)> = (SPECIAL_BITS.iter().flat_map(|x| SPECIAL_BITS.map(|y| (*x, y))))
        .chain(random(3).zip(random(4)).take(2000))
        .chain(random(5).zip(random(6)).map(|(x, y)| (x, y % 40)).take(2000))
        .collect();
    let (x, y): (Vec<u32>, Vec<u32>) = pairs.into_iter().unzip();
    for row in table().binary.into_iter().filter(|row| row.takes != Takes::Bool) {
        for (lane, loops) in [("i32", row.cpu.i32), ("u32", row.cpu.u32)] {
            let (Some(loops), Some(oracle)) = (loops, row.oracle_int) else { continue };
            let wide = |bits: u32| if lane == "i32" { bits as i32 as i64 } else { bits as i64 };
            for isa in isas() {
                let mut out = vec![0; x.len()];
                // SAFETY: `isas` names only what this machine has.
                unsafe { (loops[isa as usize])(&x, &y, &mut out) };
                for ((&x, &y), got) in x.iter().zip(&y).zip(out) {
                    let want = oracle(wide(x), wide(y)) as u32;
                    assert_eq!(got, want, "{}({}, {}) on {lane} at {isa:?}", row.name, wide(x), wide(y));
                }
            }
        }
    }
    for row in table().unary.into_iter().filter(|row| row.takes != Takes::Bool) {
        for (lane, loops) in [("i32", row.cpu.i32), ("u32", row.cpu.u32)] {
            let Some(loops) = loops else { continue };
            let wide = |bits: u32| if lane == "i32" { bits as i32 as f64 } else { bits as f64 };
            for isa in isas() {
                let mut out = vec![0; x.len()];
                // SAFETY: as above.
                unsafe { loops[isa as usize](&x, &mut out) };
                for (&x, got) in x.iter().zip(out) {
                    let want = (row.oracle)(wide(x)) as i64 as u32;
                    assert_eq!(got, want, "{}({}) on {lane} at {isa:?}", row.name, wide(x));
                }
            }
        }
    }
}

#[test]
fn logic_on_bools_gives_bools() {
    let (x, y) = ([0, 0, 1, 1], [0, 1, 0, 1]);
    for row in table().binary.into_iter().filter(|row| row.takes == Takes::Bool) {
        let mut out = [9; 4];
        // SAFETY: every machine has the baseline.
        unsafe { (row.cpu.u32.expect("takes bools")[0])(&x, &y, &mut out) };
        let want = [0, 1, 2, 3].map(|i| (row.oracle)(x[i] as f64, y[i] as f64) as u32);
        assert_eq!(out, want, "{}", row.name);
    }
}

#[test]
fn every_op_loops_over_any_length() {
    for row in table().unary.into_iter().filter(|row| row.cpu.f32.is_some()) {
        for isa in isas() {
            let x = bits(&[0.75; 100]);
            let whole = run(row, isa, &x);
            for n in 0..100 {
                // Bool results are exact; others may differ between the vector part and the rest, within the ULPs.
                let got = run(row, isa, &x[..n]);
                assert_eq!(got.len(), n);
                assert!(got.iter().zip(&whole).all(|(a, b)| a.abs_diff(*b) <= 2), "{} at {isa:?}", row.name);
            }
        }
    }
}

#[test]
fn random_bits_are_the_same_everywhere_and_look_random() {
    let row = super::super::RANDOM.cpu.u32.expect("random is a function of u32");
    for isa in isas() {
        let counters: Vec<u32> = (0..1000).collect();
        let mut out = vec![0; 1000];
        // SAFETY: `isas` names only what this machine has.
        unsafe { (row[isa as usize])(&counters, &[7; 1000], &mut out) };
        assert!(out.iter().copied().eq(random(7).take(1000)), "{isa:?}");
    }
    // A changed bit of the counter changes each bit of the result half the time.
    let one = |counter: u32| random(0).nth(counter as usize).expect("without end");
    for bit in 0..10 {
        let flips = (0..512u32).map(|i| i * 2 % 1023).map(|i| (one(i) ^ one(i ^ (1 << bit))).count_ones()).sum::<u32>();
        assert!(flips.abs_diff(16 * 512) < 400, "bit {bit} flips {flips} of {}", 32 * 512);
    }
    // Each bit is set about half the time, and neighbours in counter or key share about half their bits.
    let n = 20_000;
    for seed in [0, 1, 0x8000_0000] {
        let drawn: Vec<u32> = random(seed).take(n).collect();
        for bit in 0..32 {
            let ones = drawn.iter().filter(|r| *r >> bit & 1 == 1).count();
            assert!(ones.abs_diff(n / 2) < 400, "bit {bit} of seed {seed} is set {ones} times of {n}");
        }
        let shared = |other: &[u32]| drawn.iter().zip(other).map(|(a, b)| (a ^ b).count_ones() as u64).sum::<u64>();
        let next_key: Vec<u32> = random(seed ^ 1).take(n).collect();
        for changed in [shared(&drawn[1..]), shared(&next_key)] {
            assert!(changed.abs_diff(16 * n as u64) < 4000, "{changed} bits differ");
        }
    }
}
