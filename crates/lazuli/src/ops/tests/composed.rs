//! Ops written with other ops, on the CPU, against values from NumPy and SciPy.

use crate::{DType, Device, Tensor, keep};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

fn tensor<const N: usize>(data: &[f32], shape: [usize; N]) -> Tensor {
    Tensor::from_slice(data, shape, &Device::cpu())
}

/// Equal up to one part in a million, and one in ten million of 1 where digits cancel.
#[track_caller]
fn check(t: &Tensor, want: &[f32]) {
    let got = t.to_dtype(DType::F32).to_vec::<f32>().expect("no mistake");
    let close = |a: f32, b: f32| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-6 * b.abs().max(0.1);
    assert!(got.len() == want.len() && got.iter().zip(want).all(|(a, b)| close(*a, *b)), "{got:?}\nnot\n{want:?}");
}

#[track_caller]
fn check_ints(t: &Tensor, want: &[i32]) {
    assert_eq!(t.to_dtype(DType::I32).to_vec::<i32>().expect("no mistake"), want);
}

#[test]
fn activations_are_scipys() {
    let x = tensor(&[-20.0, -3.0, -1.0, -0.25, 0.0, 0.5, 1.0, 2.5, 6.0, 20.0], [10]);
    let table: [(Tensor, [f32; 10]); 9] = [
        (x.relu(), [0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 2.5, 6.0, 20.0]),
        (x.leaky_relu(0.1), [-2.0, -0.3, -0.1, -0.025, 0.0, 0.5, 1.0, 2.5, 6.0, 20.0]),
        (x.elu(1.5), [-1.5, -1.4253194, -0.94818085, -0.33179882, 0.0, 0.5, 1.0, 2.5, 6.0, 20.0]),
        (
            x.softplus(),
            [
                2.061_153_6e-9,
                0.04858735,
                0.31326169,
                0.57593942,
                0.69314718,
                0.97407698,
                1.3132617,
                2.5788897,
                6.0024757,
                20.0,
            ],
        ),
        (
            x.sigmoid(),
            [
                2.061_153_6e-9,
                0.04742587,
                0.26894142,
                0.4378235,
                0.5,
                0.62245933,
                0.73105858,
                0.92414182,
                0.99752738,
                1.0,
            ],
        ),
        (
            x.silu(),
            [
                -4.122_307_2e-8,
                -0.14227762,
                -0.26894142,
                -0.10945587,
                0.0,
                0.31122967,
                0.73105858,
                2.3103546,
                5.9851643,
                20.0,
            ],
        ),
        (x.gelu(), [0.0, -0.00404969, -0.15865525, -0.10032342, 0.0, 0.34573123, 0.84134475, 2.4844758, 6.0, 20.0]),
        (
            x.gelu_tanh(),
            [0.0, -0.00363739, -0.15880801, -0.10032465, 0.0, 0.34571401, 0.84119199, 2.4849157, 6.0, 20.0],
        ),
        (x.hardswish(), [0.0, 0.0, -0.33333333, -0.11458333, 0.0, 0.29166667, 0.66666667, 2.2916667, 6.0, 20.0]),
    ];
    for (got, want) in &table {
        check(got, want);
    }
}

#[test]
fn activations_are_finite_far_out_and_nan_of_nan() {
    let x = tensor(&[-1e30, 1e30, NAN], [3]);
    check(&x.relu(), &[0.0, 1e30, NAN]);
    check(&x.leaky_relu(0.5), &[-5e29, 1e30, NAN]);
    check(&x.elu(1.0), &[-1.0, 1e30, NAN]);
    check(&x.softplus(), &[0.0, 1e30, NAN]);
    check(&x.sigmoid(), &[0.0, 1.0, NAN]);
    check(&x.silu(), &[0.0, 1e30, NAN]);
    check(&x.gelu(), &[0.0, 1e30, NAN]);
    check(&x.clamp(-1, 2.5), &[-1.0, 2.5, NAN]);
    check(&tensor(&[-INF, INF], [2]).sigmoid(), &[0.0, 1.0]);
    check(&tensor(&[-INF, INF], [2]).softplus(), &[0.0, INF]);
}

#[test]
fn statistics_are_numpys() {
    let x = tensor(&[1.0, 2.0, 3.0, 1.0, -1.0, 0.5], [2, 3]);
    check(&x.mean(0), &[1.0, 0.5, 1.75]);
    check(&x.var(1, 1), &[1.0, 1.0833333]);
    check(&x.std(0, 0), &[0.0, 1.5, 1.25]);
    check(&x.norm(-1), &[3.7416574, 1.5]);
    check(&x.logsumexp(1), &[3.407606, 1.5549569]);
    check(&x.logsumexp(keep(1)), &[3.407606, 1.5549569]);
    check(&tensor(&[], [0]).mean(..), &[NAN]);
    check(&tensor(&[3.0], [1]).var(.., 1), &[NAN]);
    // Half floats are added up in f32.
    let many = Tensor::full([4096], 40.0, &Device::cpu()).to_dtype(DType::F16);
    check(&many.mean(..), &[40.0]);
}

#[test]
fn logsumexp_of_infinities_is_right() {
    check(&tensor(&[-INF, -INF], [2]).logsumexp(0), &[-INF]);
    check(&tensor(&[-INF, 1.5], [2]).logsumexp(0), &[1.5]);
    check(&tensor(&[INF, 1.0], [2]).logsumexp(0), &[INF]);
    check(&tensor(&[NAN, 1.0], [2]).logsumexp(0), &[NAN]);
}

#[test]
fn normalisations_are_scipys() {
    let x = tensor(&[1.0, 2.0, 3.0, 1.0, -1.0, 0.5], [2, 3]);
    check(&x.softmax(1), &[0.09003057, 0.24472847, 0.66524096, 0.57409699, 0.07769558, 0.34820743]);
    check(&x.softmax(0), &[0.5, 0.95257413, 0.92414182, 0.5, 0.04742587, 0.07585818]);
    check(&x.log_softmax(-1), &[-2.407606, -1.407606, -0.40760596, -0.55495692, -2.5549569, -1.0549569]);
    let (weight, bias) = (tensor(&[1.0, 2.0, 0.5], [3]), tensor(&[0.5, 0.0, -1.0], [3]));
    let want = [-0.72473569, 0.0, -0.38763216, 1.4805739, -2.7456069, -0.80388522];
    check(&x.layer_norm(-1, Some(&weight), Some(&bias), 1e-5), &want);
    check(&x.t().layer_norm(0, Some(&weight), Some(&bias), 1e-5).t(), &want);
    check(&x.rms_norm(-1, Some(&weight), 1e-6), &[0.46291, 1.85164, 0.694365, 1.1546998, -2.3093995, 0.28867494]);
    // Masked with −inf, and far from zero.
    check(&tensor(&[-INF, 0.0, 0.0], [3]).softmax(0), &[0.0, 0.5, 0.5]);
    check(&tensor(&[1e30, 1e30, -1e30], [3]).softmax(0), &[0.5, 0.5, 0.0]);
}

#[test]
fn places_are_the_first_and_nan_wins() {
    let x = tensor(&[3.0, 7.0, 7.0, 1.0, 1.0, 0.0], [2, 3]);
    check_ints(&x.argmax(1), &[1, 0]);
    check_ints(&x.argmin(1), &[0, 2]);
    check_ints(&x.argmax(0), &[0, 0, 0]);
    check_ints(&x.argmax(keep(..)), &[1]);
    check_ints(&tensor(&[1.0, NAN, 5.0, NAN], [4]).argmax(0), &[1]);
    check_ints(&tensor(&[1.0, NAN, -5.0, NAN], [4]).argmin(0), &[1]);
    check_ints(&tensor(&[-INF, -INF], [2]).argmax(0), &[0]);
    check_ints(&Tensor::from_slice(&[5u8, 250, 7], [3], &Device::cpu()).argmax(0), &[1]);
    // Over several axes, the place in them together.
    let cube = Tensor::from_slice(&[0i32, 9, 2, 3, 8, 5, 6, 7], [2, 2, 2], &Device::cpu());
    check_ints(&cube.argmax([0, 2]), &[1, 3]);
    check_ints(&Tensor::scalar(4, &Device::cpu()).argmax(..), &[0]);
}

#[test]
fn truths_of_nothing() {
    let none = tensor(&[], [2, 0]);
    check_ints(&none.any(1), &[0, 0]);
    check_ints(&none.all(1), &[1, 1]);
    check_ints(&tensor(&[0.0, NAN], [2]).any(0), &[1]);
    check_ints(&tensor(&[0.0, 2.0], [2]).all(0), &[0]);
}

#[test]
fn integers_wrap_and_divide_as_documented() {
    let x = Tensor::from_slice(&[250u8, 3], [2], &Device::cpu());
    assert_eq!((&x + 10).to_vec::<u8>().expect("no mistake"), [4, 13]);
    assert_eq!((-&x).to_vec::<u8>().expect("no mistake"), [6, 253]);
    assert_eq!((!&x).to_vec::<u8>().expect("no mistake"), [5, 252]);
    assert_eq!(x.sum(..).item::<u32>().expect("no mistake"), 253);
    assert_eq!((&x << 1).to_vec::<u8>().expect("no mistake"), [244, 6]);
    assert_eq!(x.pow(2).to_vec::<u8>().expect("no mistake"), [36, 9]);
    let y = Tensor::from_slice(&[i32::MIN, -7, 7], [3], &Device::cpu());
    assert_eq!(y.rem(-1).to_vec::<i32>().expect("no mistake"), [0, 0, 0]);
    assert_eq!((&y % 0).to_vec::<i32>().expect("no mistake"), [0, 0, 0]);
    assert_eq!((&y % 3).to_vec::<i32>().expect("no mistake"), [1, 2, 1]);
    assert_eq!(y.abs().to_vec::<i32>().expect("no mistake"), [i32::MIN, 7, 7]);
    assert_eq!((7 / &y).to_vec::<f32>().expect("no mistake")[2], 1.0);
    assert_eq!(y.pow(-1).to_vec::<i32>().expect("no mistake"), [0, 0, 0]);
    assert_eq!((&y >> 40).to_vec::<i32>().expect("no mistake"), [-1, -1, 0]);
    let flags = Tensor::from_slice(&[true, true, false], [3], &Device::cpu());
    assert_eq!(flags.sum(..).item::<i32>().expect("no mistake"), 2);
    assert_eq!((!flags & true).to_vec::<bool>().expect("no mistake"), [false, false, true]);
}

#[test]
fn numbers_out_of_range_compare_as_infinities() {
    let x = Tensor::from_slice(&[0u8, 255], [2], &Device::cpu());
    check_ints(&x.lt(300), &[1, 1]);
    check_ints(&x.ge(-1), &[1, 1]);
    check_ints(&x.eq(256), &[0, 0]);
    let y = Tensor::from_slice(&[i32::MAX, i32::MIN], [2], &Device::cpu());
    check_ints(&y.eq(2_147_483_648i64), &[0, 0]);
    check_ints(&y.gt(-2_147_483_649i64), &[1, 1]);
}

#[test]
fn operators_take_either_side_and_assign() {
    let x = tensor(&[1.0, 4.0], [2]);
    check(&(10.0 - &x), &[9.0, 6.0]);
    check(&(2 * &x / 4.0f32), &[0.5, 2.0]);
    check(&(1 + x.clone() % 3u8), &[2.0, 2.0]);
    // Literals need no suffix, whatever is done with the result.
    check(&(2.0 * &x).sqrt().add(1), &[2f32.sqrt() + 1.0, 8f32.sqrt() + 1.0]);
    let mut y = x.clone();
    y += &x;
    y *= 2;
    y -= 1.0;
    check(&-y, &[-3.0, -15.0]);
}
