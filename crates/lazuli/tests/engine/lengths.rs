//! An element's result does not depend on how many others there are: kernels that read four elements at once and
//! kernels that read one at a time give the same bits, for every row of the op table and every dtype it takes.

use lazuli::ops::{Takes, table};
use lazuli::{DType, Tensor};
use lazuli_check::methods::{call_binary, call_unary};

use crate::device::device;
use crate::shared;

const DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8];

/// A multiple of four, and lengths that are none.
const N: usize = 32;
const LENGTHS: [usize; 4] = [1, 2, 3, 31];

/// Numbers of both signs, whole and fractional, large and small, and what is none.
fn operand(rotation: usize, dtype: DType, n: usize) -> Tensor {
    let special = [-2.5f32, 1.601_562_5, 3.0, -3.0, 0.5, 0.0, -0.0, 1.0, -1.0, 7.25, 100.0, 1e-3, -1e-3, 2.0];
    let none = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let floats: Vec<f32> = special.iter().chain(&none).copied().cycle().skip(rotation).take(n).collect();
    let tensor = match dtype.is_float() {
        true => Tensor::from_vec(floats, [n], &device()),
        // What an integer makes of NaN and infinities is another matter.
        false => Tensor::from_vec(floats.iter().map(|v| v.clamp(0.0, 9.0) as i32).collect(), [n], &device()),
    };
    tensor.to_dtype(dtype).compute().unwrap()
}

fn bits(x: &Tensor) -> Vec<u32> {
    x.to_vec::<f64>().unwrap().into_iter().map(|v| if v.is_nan() { u32::MAX } else { (v as f32).to_bits() }).collect()
}

/// Compares `f` of few elements with the first few of `f` of more.
#[track_caller]
fn check(what: &str, dtype: DType, f: impl Fn(&Tensor, &Tensor) -> Tensor) {
    let of = |n: usize| bits(&f(&operand(0, dtype, n), &operand(5, dtype, n)));
    let all = of(N);
    for n in LENGTHS {
        assert_eq!(of(n), all[..n], "{what} of {n} elements of {dtype}");
    }
}

#[test]
fn an_elements_result_does_not_depend_on_the_number_of_elements() {
    let _device = shared();
    let taken = |takes: Takes, dtype: DType| takes.cast(dtype) == Some(dtype);
    for dtype in DTYPES {
        for row in table().unary.iter().filter(|row| taken(row.takes, dtype)) {
            check(row.name, dtype, |x, _| call_unary(row.name, x));
        }
        for row in table().binary.iter().filter(|row| taken(row.takes, dtype) && row.name != "random") {
            check(row.name, dtype, |x, y| call_binary(row.name, x, y));
        }
    }
}
