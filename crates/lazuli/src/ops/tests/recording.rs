//! What recording makes of dtypes, shapes and mistakes.

use crate::dtype::DType::{self, *};
use crate::ops::table;
use crate::shape::keep;
use crate::{Device, Error, Tensor};

fn zeros<const N: usize>(shape: [usize; N], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::cpu())
}

fn of(dtype: DType) -> Tensor {
    zeros([2], dtype)
}

#[track_caller]
fn check_dtype(t: Tensor, want: DType) {
    assert_eq!(t.dtype().expect("no mistake"), want);
}

#[track_caller]
fn check_shape<const N: usize>(t: Tensor, want: [usize; N]) {
    assert_eq!(t.shape().expect("no mistake"), want);
}

/// The message without its place, which must be in this file.
#[track_caller]
fn check_error(t: Tensor, want: &str) {
    let error = t.check().expect_err("a mistake").to_string();
    assert!(error.starts_with(want), "{error}\nnot\n{want}");
    assert!(error.contains("ops/tests/recording.rs:"), "the place is not the caller's: {error}");
}

#[test]
fn tensors_promote_as_in_numpy() {
    let rows = [
        [F32, F32, F32, F32, F32, F32, F32],
        [F32, F16, F32, F16, F16, F16, F16],
        [F32, F32, BF16, BF16, BF16, BF16, BF16],
        [F32, F16, BF16, I32, I32, I32, I32],
        [F32, F16, BF16, I32, U32, U32, U32],
        [F32, F16, BF16, I32, U32, U8, U8],
        [F32, F16, BF16, I32, U32, U8, I32],
    ];
    for (a, row) in DType::ALL.into_iter().zip(rows) {
        for (b, want) in DType::ALL.into_iter().zip(row) {
            check_dtype(of(a).add(of(b)), want);
            check_dtype(of(a).lt(of(b)), Bool);
            check_dtype(of(a).div(of(b)), if want.is_float() { want } else { F32 });
        }
    }
}

#[test]
fn numbers_take_the_tensors_dtype_unless_of_a_higher_kind() {
    for dtype in DType::ALL {
        let float = if dtype.is_float() { dtype } else { F32 };
        let int = if dtype == Bool { I32 } else { dtype };
        check_dtype(of(dtype) + 2.5, float);
        check_dtype(2.5f32 * of(dtype), float);
        check_dtype(of(dtype) + 5, int);
        check_dtype(5 - of(dtype), int);
        check_dtype(of(dtype) - 5usize, int);
        check_dtype(of(dtype).maximum(true), dtype);
        check_dtype(of(dtype) / 2, float);
    }
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    check_error(of(U8) + 300, "add: 300 does not fit u8 (0 to 255); cast the tensor");
    check_error(-1 * of(U32), "mul: -1 does not fit u32 (0 to 4294967295)");
    check_error(of(I32).maximum(3_000_000_000u32), "maximum: 3000000000 does not fit i32");
    assert!(matches!((of(U8) + 300).check(), Err(Error::DType(_))));
    // True division is in floats, where it fits.
    check_dtype(of(U8) / 300, F32);
}

#[test]
fn comparisons_with_numbers_out_of_range_are_fine() {
    check_dtype(of(U8).lt(300), Bool);
    check_dtype(of(U32).eq(-1), Bool);
}

#[test]
fn shapes_broadcast_as_in_numpy() {
    check_shape(zeros([2, 1], F32) + zeros([3], F32), [2, 3]);
    check_shape(zeros([], F32) + zeros([3], F32), [3]);
    check_shape(zeros([0, 3], F32) + zeros([1, 3], F32), [0, 3]);
    check_shape(zeros([2, 1], Bool).select(zeros([3], F32), 1.0), [2, 3]);
}

#[test]
fn mistakes_name_op_shapes_and_place() {
    check_error(zeros([2], F32) + zeros([3], F32), "add: shapes do not broadcast: [2] and [3] (");
    check_error(
        zeros([2, 3], F32) * zeros([2], F32),
        "mul: shapes do not broadcast: [2, 3] and [2]; did you mean to unsqueeze(-1) the second? (",
    );
    check_error(of(F32) & 1, "bit_and: takes integers and bools, not f32; cast first with to_dtype (");
    check_error(of(I32) << 1.5, "shl: takes integers, not f32");
    check_error(zeros([2, 3], F32).sum(2), "sum: axis 2 is out of range for [2, 3]: it has axes -2 to 1 (");
    check_error(zeros([2, 3], F32).var([0, 0], 1), "var: axis 0 of [2, 3] is named twice (");
    check_error(zeros([2, 0], F32).max(-1), "max: nothing to take the max of: an axis of [2, 0] is empty (");
    check_error(zeros([2, 0], F32).argmin(..), "argmin: nothing to take the min of: an axis of [2, 0] is empty (");
    check_error(zeros([2], F32).softmax(1), "softmax: axis 1 is out of range for [2]: it has axes -1 to 0 (");
    check_error(zeros([], F32).log_softmax(0), "log_softmax: axis 0 is out of range for []: a scalar has no axes (");
    let weight = zeros([3], F32);
    check_error(
        zeros([3, 2], F32).rms_norm(-1, Some(&weight), 0.0),
        "rms_norm: weight and bias must be [2], one per place",
    );
    check_error(zeros([2], F32).mean(1).exp() + 1, "mean: axis 1 is out of range");
}

#[test]
fn the_first_mistake_is_carried() {
    let bad = zeros([2], F32) + zeros([3], F32);
    let line = line!() - 1;
    let error = (bad.relu().sum(..) + zeros([4], F32)).check().expect_err("a mistake");
    assert_eq!(error.fault().op, "add");
    assert_eq!(error.fault().at.expect("a place").line(), line);
    assert_eq!(error.fault().shapes.len(), 2);
}

#[test]
fn reductions_drop_or_keep_axes() {
    let x = zeros([2, 3, 4], F32);
    check_shape(x.sum(1), [2, 4]);
    check_shape(x.sum(keep(1)), [2, 1, 4]);
    check_shape(x.prod([0, -1]), [3]);
    check_shape(x.max(..), []);
    check_shape(x.min(keep(..)), [1, 1, 1]);
    check_shape(x.argmax([0, 2]), [3]);
    check_shape(x.logsumexp(keep(-1)), [2, 3, 1]);
    check_shape(x.var([], 0), [2, 3, 4]);
    check_shape(zeros([2, 0], F32).sum(-1), [2]);
    check_shape(zeros([2, 0], F32).any(-1), [2]);
    check_shape(zeros([0, 3], F32).max(-1), [0]);
    check_shape(zeros([2, 0], F32).softmax(-1), [2, 0]);
}

#[test]
fn reductions_have_room_for_their_results() {
    for (dtype, sum, mean) in [(U8, U32, F32), (Bool, I32, F32), (I32, I32, F32), (U32, U32, F32), (F16, F16, F16)] {
        check_dtype(of(dtype).sum(..), sum);
        check_dtype(of(dtype).sum([]), sum);
        check_dtype(of(dtype).prod(..), sum);
        check_dtype(of(dtype).mean(..), mean);
        check_dtype(of(dtype).softmax(0), mean);
        check_dtype(of(dtype).max(..), dtype);
        check_dtype(of(dtype).argmax(..), I32);
        check_dtype(of(dtype).all(..), Bool);
    }
}

#[test]
fn every_row_records_on_every_dtype_it_takes() {
    let table = table();
    for dtype in DType::ALL {
        for row in &table.unary {
            let y = crate::ops::operand::unary(row, &of(dtype));
            match row.takes.cast(dtype) {
                Some(cast) => {
                    check_dtype(y, row.gives.dtype(cast));
                    assert!(row.cpu.get(cast.lane()).is_some(), "{} on {dtype} has no loop", row.name);
                }
                None => check_error(y, &format!("{}: takes", row.name)),
            }
        }
        for row in table.binary.iter().filter(|row| row.name != "random") {
            let y = crate::ops::operand::binary(row, &of(dtype), of(dtype).into());
            match row.takes.cast(dtype) {
                Some(cast) => {
                    check_dtype(y, row.gives.dtype(cast));
                    assert!(row.cpu.get(cast.lane()).is_some(), "{} on {dtype} has no loop", row.name);
                }
                None => check_error(y, &format!("{}: takes", row.name)),
            }
        }
    }
}

#[test]
fn names_of_rows_are_unique() {
    let table = table();
    let mut names: Vec<&str> = (table.unary.iter().map(|r| r.name))
        .chain(table.binary.iter().map(|r| r.name))
        .chain(table.reduce.iter().map(|r| r.name))
        .chain(table.routines.iter().map(|r| r.name))
        .collect();
    let n = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), n);
}

#[test]
fn detached_tensors_have_no_history_and_tracked_ones_keep_it() {
    let w = of(F32).tracked();
    assert!(w.node().expect("no mistake").tracked);
    assert!(w.exp().node().expect("no mistake").tracked);
    assert!(!w.exp().detach().node().expect("no mistake").tracked);
    assert!(!w.detach().mul(2.0).node().expect("no mistake").tracked);
}

#[test]
fn squares_cost_a_multiplication() {
    let name = |t: Tensor| t.node().expect("no mistake").with_expr(|e| e.op.name().to_string());
    assert_eq!(name(of(F32).pow(2)).as_deref(), Some("mul"));
    assert_eq!(name(of(F32).pow(3)).as_deref(), Some("pow"));
    check_dtype(of(I32).pow(2), I32);
    check_dtype(of(I32).pow(2.0), F32);
}
