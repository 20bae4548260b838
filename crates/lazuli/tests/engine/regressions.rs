//! Faults that random programs once found, as small as they could be made. Each is named after what must hold.

use lazuli::{DType, Tensor, bf16, keep, s};

use crate::device::device;
use crate::shared;

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device())
}

fn ints(values: &[i32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device())
}

/// Whole numbers, different for each `k`, in this shape.
fn numbers(k: usize, shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| ((i * k) % 11) as f32 - 4.0).collect(), shape, &device())
}

/// What is computed together is what each is by itself.
#[track_caller]
fn check_together(outputs: &[&Tensor], alone: &[Tensor]) {
    lazuli::compute(outputs).unwrap();
    for (i, (out, alone)) in outputs.iter().zip(alone).enumerate() {
        assert_eq!(out.to_vec::<f64>().unwrap(), alone.to_vec::<f64>().unwrap(), "output {i}");
    }
}

#[test]
fn an_input_is_read_before_an_output_is_written_over_it() {
    let _device = shared();
    let (t0, t2, t3) = (floats(&[0.0, -3.0, -1.0]), floats(&[0.0, -3.0, -4.0]), floats(&[1.0, 1.0, 1.0]));
    let t1 = t0.sum(keep(-1));
    let t4 = t3.select(&t2, 100.0);
    let t6 = t1.mul(t4.all(keep(..)));
    // Nobody else holds these, so their memory may be taken for an output.
    drop((t0, t3));
    lazuli::compute(&[&t1, &t6, &t4]).unwrap();
    assert_eq!(t1.to_vec::<f32>().unwrap(), [-4.0]);
    assert_eq!(t6.to_vec::<f32>().unwrap(), [0.0]);
    assert_eq!(t4.to_vec::<f32>().unwrap(), [0.0, -3.0, -4.0]);
}

#[test]
fn a_cast_that_changes_no_bits_may_be_done_in_place() {
    let _device = shared();
    let t0 = ints(&[81, 225, 3, 4]);
    let t1 = t0.to_dtype(DType::U32);
    let t2 = t1.sum(..);
    drop(t0);
    lazuli::compute(&[&t1, &t2]).unwrap();
    assert_eq!(t1.to_vec::<u32>().unwrap(), [81, 225, 3, 4]);
    assert_eq!(t2.item::<u32>().unwrap(), 313);
}

#[test]
fn what_is_gathered_can_be_reduced_in_the_same_kernel() {
    let _device = shared();
    let x = floats(&[3.0, 1.0]).reshape([1, 2]);
    let twice = x.index_select(0, &ints(&[0, 0]));
    assert_eq!(twice.sum(0).to_vec::<f32>().unwrap(), [6.0, 2.0]);
    assert_eq!(twice.softmax(0).to_vec::<f32>().unwrap(), [0.5; 4]);
    assert_eq!(x.embedding(&ints(&[0, 0])).argmax(0).to_vec::<i32>().unwrap(), [0, 0]);
    // Few rows of what is itself computed.
    let x = numbers(3, &[4, 3]).exp();
    let index = ints(&[2, 0]).reshape([1, 2]);
    let x_host = numbers(3, &[4, 3]).exp().to_vec::<f32>().unwrap();
    assert_eq!(x.gather(1, &index).to_vec::<f32>().unwrap(), [x_host[2], x_host[0]]);
}

#[test]
fn a_long_reduction_may_use_the_result_of_another() {
    let _device = shared();
    let n = 70_001;
    let x = Tensor::from_vec((0..n).map(|i| (i % 1000) as f32 * 0.001).collect(), [n], &device());
    assert_eq!(x.argmax(..).item::<i32>().unwrap(), 999);
    let exact = (0..n).map(|i| ((i % 1000) as f32 as f64 * 0.001).exp()).sum::<f64>().ln();
    assert!((x.logsumexp(..).item::<f64>().unwrap() - exact).abs() < 1e-5);
    assert!((x.std(.., 0).item::<f64>().unwrap() - 0.288675).abs() < 1e-3);
}

#[test]
fn kernels_never_wait_for_each_other_in_a_circle() {
    let _device = shared();
    // A cheap node that is made again where it is wanted, until somebody wants it whole.
    let make = || {
        let t0 = Tensor::arange(-4, -2, 1, &device());
        let t1 = t0.flip(-1);
        let t2 = t0.cumsum(-1);
        let t4 = t1.sub(&t0).std(-1, 1);
        [t1, t2, t4]
    };
    check_together(&make().each_ref(), &make());
    let make = || {
        let t0 = Tensor::arange(-4, -2, 1, &device());
        let t1 = t0.narrow(-1, 0, 1);
        let t3 = t1.gather(-1, &ints(&[0, 0, 0]));
        let t4 = t1.select(&t0, &t0);
        [t1, t3, t4]
    };
    check_together(&make().each_ref(), &make());
    // A gather does not join those who make what it gathers from.
    let make = || {
        let t2 = numbers(1, &[3, 3, 5]).flip(-1);
        let t3 = t2.topk(3, 0).1;
        let t5 = t2.index_select(0, &ints(&[1, 0, 2]));
        let t7 = Tensor::cat(&[&t5, &numbers(3, &[3, 3, 5]), &t3, &t3], 1).to_dtype(DType::Bool).transpose(1, 0);
        let t11 = numbers(2, &[3, 3, 5]).select(t5.is_inf(), &t2);
        [t7, t11]
    };
    check_together(&make().each_ref(), &make());
}

#[test]
fn an_empty_output_needs_nothing_of_what_it_is_made_of() {
    let _device = shared();
    let t0 = Tensor::arange(-5.0f32, -3.5, 1.0, &device());
    let t2 = t0.layer_norm(-1, None, Some(&t0.cumsum(-1)), 1e-5);
    assert!(t2.slice(s![-1..-1]).to_vec::<f32>().unwrap().is_empty());
    let eye = Tensor::eye(2, DType::F32, &device());
    assert!(eye.sum(keep(0)).matmul(&eye).narrow(0, 1, 0).to_vec::<f32>().unwrap().is_empty());
    assert!(t0.sum(..).minimum(t0.topk(0, -1).0).to_vec::<f32>().unwrap().is_empty());
}

#[test]
fn reductions_over_different_axes_stay_apart() {
    let _device = shared();
    let make = || {
        let [t0, t3, t4, t8, t11] = [3, 7, 2, 6, 9].map(|k| numbers(k, &[7, 4]));
        let [t1, t5] = [5, 4].map(|k| numbers(k, &[7, 4]).to_dtype(DType::I32).compute().unwrap());
        let t2 = t1.select(&t0, &t1);
        let t9 = t4.eq(&t8);
        let t10 = t5.prod(..).select(&t9, &t2);
        [t2.norm(-2), Tensor::stack(&[&t3, &t9, &t11], 0), t10.narrow(1, 0, 3)]
    };
    check_together(&make().each_ref(), &make());
}

#[test]
fn sums_of_half_floats_are_rounded_once() {
    let _device = shared();
    // The sum lies just above the middle between two bf16.
    let x = [1.125f32, f32::powi(2.0, -8), f32::powi(2.0, -30)].map(bf16::from_f32);
    let x = Tensor::from_slice(&x, [3], &device());
    assert_eq!(x.cumsum(0).to_vec::<f32>().unwrap(), [1.125, 1.125, 1.1328125]);
    // So does this number.
    let just_above = 1.0 + f32::powi(2.0, -8) + f32::powi(2.0, -22);
    let one = Tensor::ones([1], DType::BF16, &device());
    assert_eq!(one.mul(just_above).to_vec::<f32>().unwrap(), [1.0078125]);
}

#[test]
fn integers_are_activated_as_the_reals_they_are() {
    let _device = shared();
    let cpu = device();
    let bytes = |v: u8| Tensor::from_slice(&[v], [1], &cpu);
    let number = |t: Tensor| t.item::<f32>().unwrap();
    assert_eq!(number(bytes(3).softplus()), number(floats(&[3.0]).softplus()));
    assert_eq!(number(bytes(3).sigmoid()), number(floats(&[3.0]).sigmoid()));
    assert_eq!(number(bytes(100).hardswish()), 100.0);
    assert_eq!(number(ints(&[-1_861_603_860]).gelu_tanh()).abs(), 0.0);
    assert_eq!(ints(&[-3, 4]).relu().to_vec::<i32>().unwrap(), [0, 4]);
}

#[test]
fn rows_that_do_not_start_at_multiples_of_four_are_read_right() {
    let _device = shared();
    for (rows, cols) in [(2, 70), (3, 65), (5, 131), (1, 77)] {
        let x: Vec<f32> = (0..rows * cols).map(|i| (i % 17) as f32).collect();
        let want: Vec<f32> = x.chunks(cols).map(|row| row.iter().sum()).collect();
        assert_eq!(Tensor::from_vec(x, [rows, cols], &device()).sum(-1).to_vec::<f32>().unwrap(), want);
    }
}

#[test]
fn what_is_not_a_number_stays_so_when_taken_from_itself() {
    let _device = shared();
    let x = Tensor::from_slice(&[1.0, f32::NAN, f32::INFINITY, -2.0], [4, 1], &device());
    for y in [x.sub(&x), x.softmax(1).sub(1.0)] {
        let y = y.to_vec::<f32>().unwrap();
        assert!(y[1].is_nan() && y[2].is_nan() && y[0] == 0.0 && y[3] == 0.0, "{y:?}");
    }
}
