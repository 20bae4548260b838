//! The loops of reductions.

use super::super::{Isa, ReduceRow, isas, table};
use super::{random, ulps};

fn fold(row: &ReduceRow, isa: Isa, x: &[f32]) -> f32 {
    let x: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
    // SAFETY: `isas` names only what this machine has.
    f32::from_bits(unsafe { (row.cpu.f32.expect("takes f32")[isa as usize].fold)(&x) })
}

/// Lengths around every change of path: the short one, rows, blocks, trees of blocks.
fn lengths() -> impl Iterator<Item = usize> {
    (0..140).chain([255, 256, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 3071, 5000, 70_001])
}

#[test]
fn reductions_give_their_known_values() {
    for row in table().reduce {
        for (x, want) in row.known {
            let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            for isa in isas() {
                let got = fold(row, isa, &x);
                assert!(ulps(got, *want) <= 0.5, "{} of {x:?} at {isa:?} is {got}, not {want}", row.name);
            }
        }
    }
}

#[test]
fn folds_are_within_the_ulps_of_the_sum_of_magnitudes() {
    let data: [(&str, fn(u32) -> f32); 4] = [
        ("uniform", |r| r as f32 / u32::MAX as f32),
        ("signed", |r| r as f32 / u32::MAX as f32 - 0.5),
        ("constant", |_| 0.1),
        ("wide", |r| f32::from_bits(r & 0x87ff_ffff | 0x3800_0000)),
    ];
    let row = &super::super::SUM;
    for (name, draw) in data {
        for n in lengths() {
            let x: Vec<f32> = random(n as u32).take(n).map(draw).collect();
            let (exact, magnitude) = x.iter().fold((0.0, 0.0), |(s, m), x| (s + *x as f64, m + x.abs() as f64));
            let spacing = (magnitude as f32).to_bits().wrapping_add(1);
            let spacing = f32::from_bits(spacing) as f64 - magnitude as f32 as f64;
            for isa in isas() {
                let err = (fold(row, isa, &x) as f64 - exact).abs() / spacing;
                assert!(err <= row.ulps, "sum of {n} {name} at {isa:?}: {err:.2} ulps, {} are stated", row.ulps);
            }
        }
    }
}

#[test]
fn products_stay_within_their_ulps() {
    let row = &super::super::PROD;
    for n in lengths().filter(|n| *n <= 2049) {
        // Close to one, so that the product stays in range.
        let x: Vec<f32> = random(n as u32).take(n).map(|r| 0.99 + 0.02 * (r as f32 / u32::MAX as f32)).collect();
        let exact: f64 = x.iter().map(|x| *x as f64).product();
        for isa in isas() {
            let err = ulps(fold(row, isa, &x), exact);
            assert!(err <= row.ulps, "product of {n} at {isa:?}: {err:.2} ulps, {} are stated", row.ulps);
        }
    }
}

#[test]
fn every_isa_folds_to_the_same_bits() {
    for row in table().reduce {
        for n in lengths() {
            let x: Vec<f32> = random(9).take(n).map(|r| r as f32 / u32::MAX as f32 - 0.4).collect();
            let bits = isas().map(|isa| fold(row, isa, &x).to_bits()).collect::<Vec<_>>();
            assert!(bits.iter().all(|b| *b == bits[0]), "{} of {n}: {bits:x?}", row.name);
        }
    }
}

#[test]
fn extrema_find_a_nan_anywhere() {
    for row in [&super::super::MAX, &super::super::MIN] {
        for n in [1, 7, 8, 9, 63, 64, 65, 1024, 1100, 4097] {
            for at in [0, n / 3, n / 2, n - 1] {
                let mut x: Vec<f32> = (0..n).map(|i| i as f32).collect();
                for nan in [f32::NAN, -f32::NAN] {
                    x[at] = nan;
                    for isa in isas() {
                        assert!(fold(row, isa, &x).is_nan(), "{} of {n} with NaN at {at}, {isa:?}", row.name);
                    }
                }
            }
        }
    }
}

#[test]
fn integers_fold_as_the_oracle_says() {
    for row in table().reduce {
        for n in lengths() {
            let x: Vec<u32> = random(n as u32).take(n).collect();
            for (lane, loops) in [("i32", row.cpu.i32), ("u32", row.cpu.u32)] {
                let loops = loops.expect("takes integers");
                let wide = |bits: u32| if lane == "i32" { bits as i32 as i64 } else { bits as i64 };
                let want = match row.name {
                    "sum" => x.iter().fold(0u32, |s, x| s.wrapping_add(*x)),
                    "prod" => x.iter().fold(1u32, |s, x| s.wrapping_mul(*x)),
                    "max" => x.iter().map(|x| wide(*x)).max().map_or(loops[0].identity, |m| m as u32),
                    _ => x.iter().map(|x| wide(*x)).min().map_or(loops[0].identity, |m| m as u32),
                };
                for isa in isas() {
                    // SAFETY: `isas` names only what this machine has.
                    let got = unsafe { (loops[isa as usize].fold)(&x) };
                    assert_eq!(got, want, "{} of {n} {lane} at {isa:?}", row.name);
                }
            }
        }
    }
}

#[test]
fn accumulating_rows_is_folding_columns() {
    for row in table().reduce {
        let loops = row.cpu.f32.expect("takes f32");
        for n in [1, 5, 64, 1000] {
            let rows: Vec<Vec<f32>> = (0..3).map(|s| random(s).take(n).map(|r| r as f32 / 1e9).collect()).collect();
            for isa in isas() {
                let mut acc = vec![loops[isa as usize].identity; n];
                for x in &rows {
                    let x: Vec<u32> = x.iter().map(|x| x.to_bits()).collect();
                    // SAFETY: `isas` names only what this machine has.
                    unsafe { (loops[isa as usize].accumulate)(&mut acc, &x) };
                }
                for (i, got) in acc.iter().enumerate() {
                    let column = [rows[0][i], rows[1][i], rows[2][i]].map(|x| x as f64);
                    let want = column.into_iter().fold(row.identity, row.oracle);
                    assert!(ulps(f32::from_bits(*got), want) <= 2.0, "{} at {isa:?}", row.name);
                }
            }
        }
    }
}

#[test]
fn identities_change_nothing() {
    for row in table().reduce {
        assert_eq!((row.oracle)(row.identity, 3.0), 3.0, "{}", row.name);
        for isa in isas() {
            let f32_identity = row.cpu.f32.expect("takes f32")[isa as usize].identity;
            assert_eq!(f32::from_bits(f32_identity) as f64, row.identity, "{}", row.name);
            assert_eq!(fold(row, isa, &[]) as f64, row.identity, "{} of nothing", row.name);
        }
    }
}
