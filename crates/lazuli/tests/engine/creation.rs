//! Numbers that are made by counting and by chance: how near the truth they are, and that they do not repeat.

use lazuli::{DType, Tensor};

use crate::device::{device, flushes_subnormals};
use crate::shared;

/// One unit in the last place of an f32 of this size.
fn ulp(y: f64) -> f64 {
    f64::powi(2.0, y.abs().max(f32::MIN_POSITIVE as f64).log2().floor() as i32 - 23)
}

/// Values are within one unit of `start + i · step`, or of what f64 can tell of it where the two nearly cancel.
#[track_caller]
fn check_ramp(what: &str, got: &[f32], start: f64, step: f64) {
    for (i, got) in got.iter().enumerate() {
        let want = step.mul_add(i as f64, start);
        let flushed = flushes_subnormals() && want.abs() < f32::MIN_POSITIVE as f64 && *got == 0.0;
        let off = (*got as f64 - want).abs();
        assert!(flushed || off <= ulp(want), "{what}: element {i} is {got:e}, not {want:e}: {} units", off / ulp(want));
    }
}

#[test]
fn counting_is_within_a_unit_however_far_it_goes() {
    let _device = shared();
    let ranges: [(f64, f64, f64); 12] = [
        (1000.0, -1.0, -0.1),
        (-1000.0, 1.0, 0.1),
        (0.0, 1.0, 1e-4),
        (1e-3, 1.0, 1e-5),
        (5.0, 5.001, 1e-7),
        (100.0, 0.01, -0.01),
        (-3.0, 3.0, 1e-4),
        (0.1, 1e5, 0.7),
        (3e38, -3e38, -1e36),
        (1e-40, 1e-38, 1e-41),
        (-1e-30, 1e-30, 3e-34),
        (0.0, 20_000_000.0, 1.1),
    ];
    for (start, end, step) in ranges {
        let got = Tensor::arange(start, end, step, &device()).to_vec::<f32>().unwrap();
        assert_eq!(got.len(), ((end - start) / step).ceil() as usize);
        check_ramp(&format!("arange({start}, {end}, {step})"), &got, start, step);
    }
}

#[test]
fn spaces_are_equal_up_to_the_ends_of_the_range() {
    let _device = shared();
    let max = f32::MAX as f64;
    for (start, end, n) in
        [(-max, max, 2), (-max, max, 5), (max, -max, 1001), (0.0, 1.0, 3001), (1.0, -1.0, 77), (2.5, 2.5, 9)]
    {
        let got = Tensor::linspace(start, end, n, &device()).to_vec::<f32>().unwrap();
        assert_eq!((got[0] as f64, got[n - 1] as f64), (start, end));
        check_ramp(&format!("linspace({start}, {end}, {n})"), &got[..n - 1], start, (end - start) / (n - 1) as f64);
    }
    assert_eq!(Tensor::linspace(3.0, 4.0, 1, &device()).to_vec::<f32>().unwrap(), [3.0]);
}

#[test]
fn random_numbers_do_not_repeat_after_2_to_the_32() {
    let _device = shared();
    let per_row = 1usize << 32;
    let many = |shape: &[usize]| Tensor::rand(shape, 7, &device());
    let first = Tensor::rand([64], 7, &device()).to_vec::<f32>().unwrap();
    let all = many(&[3 * per_row + 5]);
    let at = |start: usize| all.narrow(0, start, 64).to_vec::<f32>().unwrap();
    // Up to there, numbers are what they are in a small tensor.
    assert_ne!(at(0), first, "a tensor with more numbers has others");
    let rows = [at(0), at(per_row), at(2 * per_row)];
    assert!(rows[0] != rows[1] && rows[1] != rows[2] && rows[0] != rows[2]);
    // Shapes do not matter, only places do.
    let square = many(&[per_row / 1024, 4096]);
    let flat = many(&[4 * per_row]);
    let there = square.narrow(0, per_row / 4096 + 3, 1).narrow(1, 0, 64).flatten().to_vec::<f32>().unwrap();
    assert_eq!(there, flat.narrow(0, per_row + 3 * 4096, 64).to_vec::<f32>().unwrap());
}

#[test]
fn scatter_add_is_exact_to_a_unit_however_many_meet() {
    let _device = shared();
    let n = 1_000_000;
    let src = Tensor::randn([n], 3, &device()).compute().unwrap();
    let values = src.to_vec::<f32>().unwrap();
    for (bound, place) in [(1, 0), (1000, 999)] {
        let index = Tensor::full([n], place as i32, &device());
        let got = Tensor::zeros([bound], DType::F32, &device()).scatter_add(0, &index, &src).to_vec::<f32>().unwrap();
        let want: f64 = values.iter().map(|v| *v as f64).sum();
        assert!((got[place] as f64 - want).abs() <= ulp(want), "{} is not {want}", got[place]);
        assert!(got.iter().enumerate().all(|(i, v)| i == place || *v == 0.0));
    }
    // Runs of every length, across the ends of blocks.
    let places: Vec<i32> = (0..n).map(|i| ((i as f64).sqrt() as i32) % 700).collect();
    let index = Tensor::from_slice(&places, [n], &device());
    let got = Tensor::ones([700], DType::F32, &device()).scatter_add(0, &index, &src).to_vec::<f32>().unwrap();
    let mut want = vec![1.0f64; 700];
    places.iter().zip(&values).for_each(|(place, v)| want[*place as usize] += *v as f64);
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((*got as f64 - want).abs() <= ulp(*want), "element {i}: {got} is not {want}");
    }
}
