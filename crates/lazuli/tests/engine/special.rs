//! NaN, infinities, zeros with a sign, wrapping integers and long sums: what is promised where arithmetic is awkward.

use lazuli::{DType, Tensor};

use crate::device::{device, flushes_subnormals};
use crate::shared;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn row(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device())
}

/// The same numbers, NaN and the signs of zeros included.
#[track_caller]
fn check(out: Tensor, expect: &[f32]) {
    let got = out.to_vec::<f32>().unwrap();
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    assert!(got.len() == expect.len() && got.iter().zip(expect).all(same), "{got:?} is not {expect:?}");
}

#[test]
fn nan_goes_through_what_compares() {
    let _device = shared();
    let x = row(&[NAN, -1.0, 2.0]);
    check(x.relu(), &[NAN, 0.0, 2.0]);
    check(x.maximum(1.0), &[NAN, 1.0, 2.0]);
    check(x.minimum(1.0), &[NAN, -1.0, 1.0]);
    check(row(&[1.0, 1.0]).maximum(&row(&[NAN, 0.0])), &[NAN, 1.0]);
    check(row(&[1.0, 1.0]).minimum(&row(&[NAN, 0.0])), &[NAN, 0.0]);
    check(x.clamp(0.0, 1.0), &[NAN, 0.0, 1.0]);
    check(x.max(..), &[NAN]);
    check(x.min(..), &[NAN]);
    check(x.sign(), &[NAN, -1.0, 1.0]);
    check(x.abs(), &[NAN, 1.0, 2.0]);
    for f in [
        Tensor::sigmoid,
        Tensor::silu,
        Tensor::gelu,
        Tensor::gelu_tanh,
        Tensor::softplus,
        Tensor::hardswish,
        Tensor::tanh,
    ] {
        assert!(f(&x).to_vec::<f32>().unwrap()[0].is_nan());
    }
    assert!(x.elu(1.0).to_vec::<f32>().unwrap()[0].is_nan() && x.leaky_relu(0.1).to_vec::<f32>().unwrap()[0].is_nan());
}

#[test]
fn nan_is_equal_to_nothing_and_less_than_nothing() {
    let _device = shared();
    let (x, y) = (row(&[NAN, NAN, 1.0]), row(&[NAN, 1.0, NAN]));
    let truths = |t: Tensor| t.to_vec::<bool>().unwrap();
    assert_eq!(truths(x.eq(&y)), [false; 3]);
    assert_eq!(truths(x.ne(&y)), [true; 3]);
    for t in [x.lt(&y), x.le(&y), x.gt(&y), x.ge(&y)] {
        assert_eq!(truths(t), [false; 3]);
    }
    assert_eq!(truths(row(&[0.0, -0.0]).eq(&row(&[-0.0, 0.0]))), [true; 2]);
    assert_eq!(truths(row(&[NAN, INF, -INF, 0.0]).is_nan()), [true, false, false, false]);
    assert_eq!(truths(row(&[NAN, INF, -INF, 0.0]).is_inf()), [false, true, true, false]);
    assert_eq!(truths(row(&[NAN, INF, -INF, 0.0]).is_finite()), [false, false, false, true]);
    // A number is true unless it is zero; NaN is not zero.
    assert_eq!(truths(row(&[NAN, 0.0, -0.0, 0.5]).to_dtype(DType::Bool)), [true, false, false, true]);
}

#[test]
fn infinities_behave_as_numpys() {
    let _device = shared();
    check(row(&[INF, -INF, INF]).add(&row(&[1.0, 1.0, -INF])), &[INF, -INF, NAN]);
    check(row(&[INF, INF, -INF]).mul(&row(&[0.0, -1.0, -1.0])), &[NAN, -INF, INF]);
    check(row(&[1.0, -1.0, 0.0, 1.0, 1.0]).div(&row(&[0.0, 0.0, 0.0, INF, -0.0])), &[INF, -INF, NAN, 0.0, -INF]);
    check(row(&[-INF, INF, 0.0]).exp(), &[0.0, INF, 1.0]);
    check(row(&[0.0, -1.0, INF]).log(), &[-INF, NAN, INF]);
    check(row(&[-1.0, -0.0, INF]).sqrt(), &[NAN, -0.0, INF]);
    check(row(&[-1.0, 5.0, INF]).rem(&row(&[INF, 0.0, 2.0])), &[INF, NAN, NAN]);
    check(row(&[NAN, 1.0, -1.0, 0.0]).pow(&row(&[0.0, NAN, INF, -1.0])), &[1.0, 1.0, 1.0, INF]);
    check(row(&[-INF, -INF]).logsumexp(..), &[-INF]);
    check(row(&[INF, 1.0]).logsumexp(..), &[INF]);
    check(row(&[-INF, 0.0]).softmax(-1), &[0.0, 1.0]);
    check(row(&[1e30, 1e30]).mul(1e30).softmax(-1), &[NAN, NAN]);
    check(row(&[3e38, 3e38]).sum(..), &[INF]);
    check(row(&[INF, -INF]).sum(..), &[NAN]);
    check(row(&[-1000.0, 1000.0]).sigmoid(), &[0.0, 1.0]);
    check(row(&[-1000.0, 1000.0]).softplus(), &[0.0, 1000.0]);
    check(row(&[-1000.0, 1000.0]).silu(), &[-0.0, 1000.0]);
    check(row(&[1000.0, 1000.0]).softmax(-1), &[0.5, 0.5]);
    check(row(&[1e-38, 1e38]).logsumexp(..), &[1e38]);
}

#[test]
fn infinities_and_nan_in_a_row_of_a_softmax_are_that_rows_alone() {
    let _device = shared();
    for n in [64, 1000, 1300] {
        let oddities = [(NAN, 0.0), (INF, 0.0), (NAN, -INF), (INF, -INF), (-INF, -INF), (3.0, -INF), (-INF, 0.0)];
        let mut x = vec![0.0; 3 * oddities.len() * n];
        for ((row, (odd, others)), at) in x
            .chunks_mut(3 * n)
            .zip(oddities)
            .flat_map(|(rows, odd)| rows.chunks_mut(n).zip([odd; 3]).zip([0, n / 2, n - 1]).collect::<Vec<_>>())
        {
            row.fill(others);
            row[at] = odd;
        }
        let expect = x.chunks(n).flat_map(|row| {
            let largest = row.iter().fold(-INF, |a, b| if a.is_nan() || *b <= a { a } else { *b }) as f64;
            let e: Vec<f64> = row.iter().map(|x| (*x as f64 - largest).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(move |e| e / sum).collect::<Vec<_>>()
        });
        let same = |(got, want): (&f32, f64)| {
            (got.is_nan() && want.is_nan()) || (*got as f64 - want).abs() <= 4.0 * f32::EPSILON as f64 * want
        };
        let by_row = Tensor::from_slice(&x, [3 * oddities.len(), n], &device());
        let by_column = by_row.t().compute().unwrap();
        for out in [by_row.softmax(1), by_column.softmax(0).t()] {
            let out = out.to_vec::<f32>().unwrap();
            let wrong = out.iter().zip(expect.clone()).position(|pair| !same(pair));
            assert_eq!(wrong, None, "of rows of {n}");
        }
    }
}

#[test]
fn zeros_keep_their_sign() {
    let _device = shared();
    let zero = row(&[0.0, -0.0]);
    check(zero.neg(), &[-0.0, 0.0]);
    check(zero.abs(), &[0.0, 0.0]);
    check(zero.add(&row(&[-0.0, -0.0])), &[0.0, -0.0]);
    check(zero.mul(-1.0), &[-0.0, 0.0]);
    check(zero.sqrt(), &[0.0, -0.0]);
    check(zero.recip(), &[INF, -INF]);
    check(zero.sin(), &[0.0, -0.0]);
    check(zero.tanh(), &[0.0, -0.0]);
    check(zero.expm1(), &[0.0, -0.0]);
    check(zero.log1p(), &[0.0, -0.0]);
    check(zero.atan2(&row(&[-1.0, -1.0])), &[std::f32::consts::PI, -std::f32::consts::PI]);
    check(row(&[-0.5, -0.3, 0.3]).round(), &[-0.0, -0.0, 0.0]);
    check(row(&[-0.5, -0.3]).ceil(), &[-0.0, -0.0]);
    check(zero.floor(), &[0.0, -0.0]);
    check(zero.flip(0), &[-0.0, 0.0]);
}

#[test]
fn subnormal_numbers_are_numbers() {
    let _device = shared();
    let tiny = f32::from_bits(1);
    if flushes_subnormals() {
        check(row(&[tiny, -tiny]).mul(1e30), &[0.0, -0.0]);
        check(row(&[-100.0]).exp(), &[0.0]);
        return;
    }
    check(row(&[tiny, tiny]).add(&row(&[tiny, 0.0])), &[f32::from_bits(2), tiny]);
    check(row(&[1e-38]).mul(0.1), &[1e-38f32 * 0.1]);
    check(row(&[tiny]).mul(0.5), &[0.0]);
    check(row(&[tiny, tiny, tiny]).sum(..), &[f32::from_bits(3)]);
    check(row(&[-100.0]).exp(), &[(-100f64).exp() as f32]);
    // f16 has subnormal numbers of its own.
    check(row(&[6e-8, 3e-8]).to_dtype(DType::F16).to_dtype(DType::F32), &[5.9604645e-8, 5.9604645e-8]);
}

#[test]
fn half_floats_round_to_the_nearest_even_and_overflow_to_infinity() {
    let _device = shared();
    let half = |v: &[f32]| row(v).to_dtype(DType::F16).to_dtype(DType::F32);
    let brain = |v: &[f32]| row(v).to_dtype(DType::BF16).to_dtype(DType::F32);
    check(
        half(&[1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 65519.0, 65520.0, -1e9]),
        &[1.0, 1.0 + 4.0 / 2048.0, 65504.0, INF, -INF],
    );
    check(brain(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 3.4e38, NAN]), &[1.0, 1.0 + 4.0 / 256.0, INF, NAN]);
}

#[test]
fn integers_wrap_and_never_trap() {
    let _device = shared();
    let cpu = device();
    let i = |v: &[i32]| Tensor::from_slice(v, [v.len()], &cpu);
    let ints = |t: Tensor| t.to_vec::<i32>().unwrap();
    assert_eq!(ints(i(&[i32::MAX, i32::MIN]).add(1)), [i32::MIN, i32::MIN + 1]);
    assert_eq!(ints(i(&[i32::MIN]).neg()), [i32::MIN]);
    assert_eq!(ints(i(&[i32::MIN]).abs()), [i32::MIN]);
    assert_eq!(ints(i(&[65536, 46341]).mul(&i(&[65536, 46341]))), [0, 46341i32.wrapping_mul(46341)]);
    assert_eq!(ints(i(&[7, -7, 7, -7, 5, i32::MIN]).rem(&i(&[3, 3, -3, -3, 0, -1]))), [1, 2, -2, -1, 0, 0]);
    assert_eq!(ints(i(&[2, -2, 3, -1, 0]).pow(&i(&[31, 3, -1, -3, 0]))), [i32::MIN, -8, 0, -1, 1]);
    assert_eq!(ints(i(&[1, 1, -8, -8]).shl(&i(&[31, 32, 1, -1]))), [i32::MIN, 0, -16, 0]);
    assert_eq!(ints(i(&[-8, -8, 8]).shr(&i(&[1, 40, 40]))), [-4, -1, 0]);
    assert_eq!(i(&[1, 0]).div(&i(&[0, 0])).to_vec::<f32>().unwrap()[0], INF);
    assert_eq!(ints(Tensor::from_slice(&[i32::MAX; 3], [3], &cpu).sum(..)), [i32::MAX.wrapping_mul(3)]);
    let bytes = |t: Tensor| t.to_vec::<u8>().unwrap();
    let u = |v: &[u8]| Tensor::from_slice(v, [v.len()], &cpu);
    assert_eq!(bytes(u(&[250, 3]).add(10)), [4, 13]);
    assert_eq!(bytes(u(&[3]).sub(5)), [254]);
    assert_eq!(bytes(u(&[100]).mul(3)), [44]);
    assert_eq!(bytes(u(&[5]).neg()), [251]);
    assert_eq!(bytes(u(&[5]).bit_not()), [250]);
    assert_eq!(bytes(u(&[200]).shl(1)), [144]);
    // Sums have room.
    assert_eq!(u(&[200; 10]).sum(..).to_vec::<u32>().unwrap(), [2000]);
    assert_eq!(Tensor::from_slice(&[true; 300], [300], &cpu).sum(..).item::<i32>().unwrap(), 300);
}

#[test]
fn casts_saturate_from_floats_and_wrap_between_integers() {
    let _device = shared();
    let x = row(&[1.9, -1.9, 1e20, -1e20, NAN, 300.0, -0.5]);
    assert_eq!(x.to_dtype(DType::I32).to_vec::<i32>().unwrap(), [1, -1, i32::MAX, i32::MIN, 0, 300, 0]);
    assert_eq!(x.to_dtype(DType::U32).to_vec::<u32>().unwrap(), [1, 0, u32::MAX, 0, 0, 300, 0]);
    assert_eq!(x.to_dtype(DType::U8).to_vec::<u8>().unwrap(), [1, 0, 255, 0, 0, 255, 0]);
    let i = Tensor::from_slice(&[-1i32, 256, 257], [3], &device());
    assert_eq!(i.to_dtype(DType::U32).to_vec::<u32>().unwrap(), [u32::MAX, 256, 257]);
    assert_eq!(i.to_dtype(DType::U8).to_vec::<u8>().unwrap(), [255, 0, 1]);
    assert_eq!(i.to_dtype(DType::Bool).to_vec::<bool>().unwrap(), [true; 3]);
    let u = Tensor::from_slice(&[u32::MAX, 16_777_217], [2], &device());
    assert_eq!(u.to_dtype(DType::I32).to_vec::<i32>().unwrap(), [-1, 16_777_217]);
    assert_eq!(u.to_dtype(DType::F32).to_vec::<f32>().unwrap(), [4_294_967_296.0, 16_777_216.0]);
}

#[test]
fn sorting_puts_nan_last_and_keeps_the_order_of_equals() {
    let _device = shared();
    let x = row(&[2.0, NAN, -INF, 0.0, -0.0, 2.0]);
    let ints = |t: Tensor| t.to_vec::<i32>().unwrap();
    assert_eq!(ints(x.argsort(0, false)), [2, 3, 4, 0, 5, 1]);
    assert_eq!(ints(x.argsort(0, true)), [0, 5, 3, 4, 2, 1]);
    check(x.sort(0, true), &[2.0, 2.0, 0.0, -0.0, -INF, NAN]);
    assert_eq!(x.argmax(..).item::<i32>().unwrap(), 1);
    assert_eq!(row(&[1.0, 3.0, 3.0]).argmax(..).item::<i32>().unwrap(), 1);
    assert_eq!(row(&[1.0, 0.0, -0.0]).argmin(..).item::<i32>().unwrap(), 1);
}

#[test]
fn a_sum_of_more_ones_than_a_float_can_count_is_exact_to_one_unit() {
    let _device = shared();
    let n = 16_777_221usize;
    let ones = Tensor::from_vec(vec![1.0f32; n], [n], &device());
    let unit = 2.0;
    for (what, sum) in [
        ("data", ones.sum(..)),
        ("computed", ones.mul(0.5).add(0.5).sum(..)),
        ("made of nothing", Tensor::ones([n], DType::F32, &device()).sum(..)),
        ("as columns", ones.reshape([n / 3, 3]).sum(0).sum(..)),
    ] {
        let got = sum.item::<f64>().unwrap();
        assert!((got - n as f64).abs() <= unit, "{what}: {got}");
    }
    assert_eq!(ones.to_dtype(DType::F16).mean(..).item::<f64>().unwrap(), 1.0);
}
