//! What a mistake says, and where: every message names the op, the shapes and what would work, with the line it was
//! written on; it goes unchanged through whatever is done with the tensor afterwards.

use lazuli::ops::einsum;
use lazuli::{CustomOp, DType, Device, Error, Result, Tensor, s};

use crate::device::device;
use crate::{alone, shared};

#[track_caller]
fn f(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &device())
}

#[track_caller]
fn ints(values: &[i32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &device())
}

/// Which variant of [`Error`] it is.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Shape(_) => "Shape",
        Error::DType(_) => "DType",
        Error::Index(_) => "Index",
        Error::Device(_) => "Device",
        Error::OutOfMemory(_) => "OutOfMemory",
        Error::Parse(_) => "Parse",
        Error::Custom(_) => "Custom",
        _ => "another",
    }
}

/// The error's kind and words, and that it happened in this file, on this line or on one of the next few.
#[track_caller]
fn check_error(error: Error, wanted: &str, message: &str, line: u32) {
    let text = error.to_string();
    let at = error.fault().at.unwrap_or_else(|| panic!("no place: {text}"));
    let place = format!("({}:{}:{})", at.file(), at.line(), at.column());
    assert_eq!(text, format!("{message} {place}"));
    assert_eq!(kind(&error), wanted, "{text}");
    assert!(
        at.file().ends_with("errors.rs") && (line..line + 4).contains(&at.line()),
        "{text}, but it is in line {line}"
    );
}

/// A carried error is there at once, stays what it is through other ops, and comes out of whatever leaves.
#[track_caller]
fn check_carried(tensor: Tensor, wanted: &str, message: &str, line: u32) {
    check_error(tensor.check().expect_err(message), wanted, message, line);
    let first = tensor.check().unwrap_err().to_string();
    let same = |result: Result<()>| assert_eq!(result.unwrap_err().to_string(), first);
    let later = Tensor::cat(&[&tensor.add(1.0).exp().sum(..).unsqueeze(0), &f(&[2])], 0).t().matmul(&f(&[3, 3]));
    same(later.check());
    same(f(&[2]).sub(&tensor).check());
    same(f(&[2]).gt(0.0).select(&tensor, 1.0).softmax(0).cumsum(0).check());
    same(later.compute().map(|_| ()));
    same(later.to_vec::<f32>().map(|_| ()));
    same(later.item::<f32>().map(|_| ()));
    same(later.shape().map(|_| ()));
    same(later.dtype().map(|_| ()));
    same(later.dims::<2>().map(|_| ()));
    same(later.explain().map(|_| ()));
    same(lazuli::compute(&[&f(&[2]), &later]));
    assert!(later.to_string().contains(&first) && !format!("{later:?}").is_empty());
}

/// `refused!(Kind, expression, "message")`: the expression makes a tensor that carries this error.
macro_rules! refused {
    ($kind:ident, $tensor:expr, $message:expr) => {
        check_carried($tensor, stringify!($kind), $message, line!())
    };
}

/// The same for a call that leaves.
macro_rules! fails {
    ($kind:ident, $result:expr, $message:expr) => {
        check_error($result.err().expect($message), stringify!($kind), $message, line!())
    };
}

#[test]
#[rustfmt::skip]
fn shapes_that_do_not_go_together_are_told_with_both_shapes() {
    let _device = shared();
    let (a, b) = (f(&[2, 3]), f(&[4, 3]));
    refused!(Shape, f(&[2]).add(&f(&[3])), "add: shapes do not broadcast: [2] and [3]");
    refused!(Shape, f(&[2]) + f(&[3]), "add: shapes do not broadcast: [2] and [3]");
    refused!(Shape, &a % &b, "rem: shapes do not broadcast: [2, 3] and [4, 3]");
    refused!(Shape, f(&[4, 3]).mul(&f(&[4])), "mul: shapes do not broadcast: [4, 3] and [4]; did you mean to unsqueeze(-1) the second?");
    refused!(Shape, a.gt(&b), "gt: shapes do not broadcast: [2, 3] and [4, 3]");
    refused!(Shape, f(&[2]).select(&f(&[3]), 0.0), "select: shapes do not broadcast: [2] and [3]");
    refused!(Shape, f(&[4, 3]).matmul(&f(&[4, 5])), "matmul: inner sizes differ: [4, 3] × [4, 5]; did you mean a.t()?");
    refused!(Shape, f(&[4, 3]).matmul(&f(&[5, 3])), "matmul: inner sizes differ: [4, 3] × [5, 3]; did you mean b.t()?");
    refused!(Shape, f(&[4, 3]).matmul(&f(&[7])), "matmul: inner sizes differ: [4, 3] × [7]");
    refused!(Shape, f(&[2, 4, 3]).matmul(&f(&[3, 3, 5])), "matmul: batch axes do not broadcast: [2, 4, 3] × [3, 3, 5]");
    refused!(Shape, f(&[]).matmul(&a), "matmul: a scalar has no axis to contract: [] × [2, 3]");
    refused!(Shape, f(&[3]).dot(&f(&[4])), "dot: inner sizes differ: [3] × [4]");
    refused!(Shape, Tensor::cat(&[&a, &b], 1), "cat: [2, 3] and [4, 3] differ in more than axis 1");
    refused!(Shape, Tensor::cat(&[], 0), "cat: no tensors to join");
    refused!(Shape, Tensor::stack(&[&a, &b], 0), "stack: [2, 3] and [4, 3] are not of one shape");
    refused!(Shape, a.layer_norm(-1, Some(&f(&[2])), None, 1e-5), "layer_norm: weight and bias must be [3], one per place along axis 1 of [2, 3], not [2]");
    refused!(Shape, a.scatter_add(0, &ints(&[0, 1]).reshape([2, 1]), &f(&[1, 1])), "scatter_add: src [1, 1] does not cover the index [2, 1]");
    refused!(Shape, Tensor::map_custom(&custom(), &[&a, &b]), "mine: shapes do not broadcast: [2, 3] and [4, 3]");
    refused!(Shape, Tensor::map_custom(&custom(), &[]), "mine: a custom op takes at least one tensor");
    refused!(Shape, einsum("ij,jk->ik", &[&a, &b]), "einsum: j of \"ij,jk->ik\" is both 3 and 4");
}

#[test]
#[rustfmt::skip]
fn axes_that_are_not_there_are_told_with_those_that_are() {
    let _device = shared();
    let a = f(&[2, 3]);
    refused!(Shape, a.sum(2), "sum: axis 2 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.mean([0, -3]), "mean: axis -3 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.max([1, -1]), "max: axis 1 of [2, 3] is named twice");
    refused!(Shape, f(&[]).sum(0), "sum: axis 0 is out of range for []: a scalar has no axes");
    refused!(Shape, a.softmax(5), "softmax: axis 5 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.cumsum(-3), "cumsum: axis -3 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.argsort(2, true), "argsort: axis 2 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.permute(&[0]), "permute: [0] names 1 of the 2 axes of [2, 3]");
    refused!(Shape, a.permute(&[0, 0]), "permute: axis 0 is named twice in [0, 0]");
    refused!(Shape, a.transpose(0, 2), "transpose: axis 2 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, a.unsqueeze(4), "unsqueeze: axis 4 is out of range for [2, 3]: a new axis may stand at -3 to 2");
    refused!(Shape, a.squeeze(0), "squeeze: axis 0 of [2, 3] has size 2, not 1");
    refused!(Shape, a.flip(2), "flip: axis 2 is out of range for [2, 3]: it has axes -2 to 1");
    refused!(Shape, f(&[3]).tril(), "tril: [3] has no matrix: at least two axes are needed");
    refused!(Shape, f(&[3]).diagonal(), "diagonal: [3] has no matrix: at least two axes are needed");
}

#[test]
#[rustfmt::skip]
fn sizes_that_do_not_fit_are_told_with_the_sizes() {
    let _device = shared();
    let a = f(&[2, 3]);
    refused!(Shape, a.reshape([4]), "reshape: [2, 3] has 6 elements, [4] has 4");
    refused!(Shape, a.broadcast_to([3, 2]), "broadcast_to: [2, 3] does not broadcast to [3, 2]");
    refused!(Shape, a.slice(&[(0, 1, 1), (0, 1, 1), (0, 1, 1)]), "slice: 3 slices for [2, 3], which has 2 axes");
    refused!(Shape, a.slice(s![..;0]), "slice: the step along axis 0 is 0");
    refused!(Index, a.slice(s![5]), "slice: index 5 is out of range for axis 0 of [2, 3]");
    refused!(Index, a.select_index(0, -3), "select_index: index -3 is out of range for axis 0 of [2, 3]");
    refused!(Shape, a.narrow(1, 1, 3), "narrow: 3 elements from 1 do not fit axis 1 of [2, 3]");
    refused!(Shape, a.pad(&[(1, 1); 3], 0.0), "pad: 3 pairs for [2, 3], which has 2 axes");
    refused!(Shape, a.split(1, &[1, 1]).remove(0), "split: parts of [1, 1] do not add up to axis 1 of [2, 3]");
    refused!(Shape, a.chunk(1, 0).remove(0), "chunk: axis 1 of [2, 3] cannot be cut into 0 parts; ask for 1 at least");
    refused!(Shape, a.chunk(0, 0).remove(0), "chunk: axis 0 of [2, 3] cannot be cut into 0 parts; ask for 1 at least");
    refused!(Shape, f(&[0]).chunk(0, 0).remove(0), "chunk: axis 0 of [0] cannot be cut into 0 parts; ask for 1 at least");
    refused!(Shape, f(&[3]).slice(&[(0, 1, 1), (0, 1, 1)]), "slice: 2 slices for [3], which has 1 axis");
    refused!(Shape, f(&[]).slice(&[(0, 1, 1)]), "slice: 1 slice for [], which has 0 axes");
    refused!(Shape, f(&[3]).pad(&[(1, 1); 2], 0.0), "pad: 2 pairs for [3], which has 1 axis");
    refused!(Shape, f(&[1]).reshape([4]), "reshape: [1] has 1 element, [4] has 4");
    refused!(Shape, f(&[3]).permute(&[]), "permute: [] names 0 of the 1 axis of [3]");
    refused!(Shape, f(&[3]).narrow(0, 3, 1), "narrow: 1 element from 3 does not fit axis 0 of [3]");
    refused!(Shape, f(&[0]).topk(1, 0).0, "topk: 1 element of an axis of size 0 of [0]");
    refused!(Shape, a.topk(4, -1).0, "topk: 4 elements of an axis of size 3 of [2, 3]");
    refused!(Shape, a.topk(4, -1).1, "topk: 4 elements of an axis of size 3 of [2, 3]");
    refused!(Shape, a.gather(1, &ints(&[0])), "gather: the index [1] does not fit [2, 3] along axis 1: the same rank, and no larger along the other axes");
    refused!(Shape, a.index_select(0, &ints(&[0]).unsqueeze(0)), "index_select: the index must be a vector, not [1, 1]");
    refused!(Shape, f(&[3]).embedding(&ints(&[0])), "embedding: the table must be [vocabulary, features], not [3]");
    refused!(Shape, f(&[0]).max(..), "max: nothing to take the max of: an axis of [0] is empty");
    refused!(Shape, f(&[2, 0]).argmax(1), "argmax: nothing to take the max of: an axis of [2, 0] is empty");
    refused!(Shape, Tensor::from_slice(&[1.0f32; 3], [2, 2], &device()), "from_slice: 3 values do not fill [2, 2], which has 4");
    refused!(Shape, f(&[1; 9]), "zeros: rank 9 is above the limit of 8");
    refused!(Shape, f(&[1; 8]).unsqueeze(0), "unsqueeze: rank 9 is above the limit of 8");
    refused!(Shape, f(&[1 << 40, 1 << 40]), "zeros: [1099511627776, 1099511627776] has more elements than can be addressed");
    refused!(Shape, Tensor::arange(0, 5, 0, &device()), "arange: cannot count from 0 to 5 by 0");
}

#[test]
#[rustfmt::skip]
fn dtypes_that_an_op_does_not_take_and_values_that_do_not_fit_are_told() {
    let _device = shared();
    let cpu = device();
    let bytes = Tensor::from_slice(&[1u8, 2], [2], &cpu);
    refused!(DType, f(&[2]).bit_and(&f(&[2])), "bit_and: takes integers and bools, not f32; cast first with to_dtype");
    refused!(DType, f(&[2]).gt(0.0).shl(true), "shl: takes integers, not bool; cast first with to_dtype");
    refused!(DType, f(&[2]).bit_not(), "bit_not: takes integers, not f32; cast first with to_dtype");
    refused!(DType, bytes.add(300), "add: 300 does not fit u8 (0 to 255); cast the tensor to a wider dtype first, with to_dtype");
    refused!(DType, -1 - &bytes, "sub: -1 does not fit u8 (0 to 255); cast the tensor to a wider dtype first, with to_dtype");
    refused!(DType, ints(&[1]).pad(&[(1, 0)], 0.5), "pad: 0.5 does not fit i32");
    refused!(DType, f(&[2, 3]).gather(1, &f(&[2, 1])), "gather: the index is f32, not an integer; cast it with to_dtype");
    refused!(DType, f(&[2]).one_hot(3), "one_hot: the index is f32, not an integer; cast it with to_dtype");
    refused!(DType, Tensor::from_slice(&[1i64, 3_000_000_000], [2], &cpu), "from_slice: 3000000000 does not fit i32");
    refused!(DType, Tensor::from_vec(vec![1e300], [1], &cpu), "from_vec: 1e300 does not fit f32");
    refused!(DType, Tensor::full([2], -1i64 << 40, &cpu), "full: -1099511627776 does not fit i32");
    refused!(Parse, einsum("i1->i", &[&f(&[2])]), "einsum: '1' in \"i1->i\" is not understood: only letters, commas, one ... per operand and one -> are");
    refused!(Parse, einsum("ij->k", &[&f(&[2, 2])]), "einsum: k is in the result of \"ij->k\" but in no operand");
}

#[test]
#[rustfmt::skip]
fn leaving_calls_say_what_they_cannot_give() {
    let _device = shared();
    let a = f(&[2, 3]);
    fails!(Shape, a.item::<f32>(), "item: [2, 3] has 6 elements, not one");
    fails!(Shape, f(&[0]).item::<f32>(), "item: [0] has 0 elements, not one");
    fails!(DType, a.to_vec::<i32>(), "to_vec: f32 does not fit i32 without loss; read it as a wider type or cast first with to_dtype");
    fails!(DType, f(&[]).to_dtype(DType::I32).item::<f32>(), "item: i32 does not fit f32 without loss; read it as a wider type or cast first with to_dtype");
    fails!(Shape, a.dims::<3>(), "dims: [2, 3] has 2 axes, not 3");
    fails!(Shape, f(&[3]).dims::<2>(), "dims: [3] has 1 axis, not 2");
    let error = Device::open("no such thing").unwrap_err();
    assert!(matches!(error, Error::Device(_)) && error.to_string().contains("no device is called \"no such thing\""), "{error}");
}

#[test]
fn an_index_out_of_range_is_an_error_where_it_was_written_and_the_engine_goes_on() {
    // Whoever waits for the device is told what went wrong there, and nobody else is: it must be this test.
    let _device = alone();
    let cpu = device();
    let x = Tensor::arange(0.0f32, 12.0, 1.0, &cpu).reshape([4, 3]).compute().unwrap();
    let at = |i: i32| Tensor::from_slice(&[0, i, 1], [3], &cpu);
    for (bad, good) in [(4, 3), (-1, 0), (i32::MAX, 2), (i32::MIN, 1)] {
        let cases: [(&str, u32, Box<dyn Fn(i32) -> Tensor>); 4] = [
            ("gather", line!(), Box::new(|i| x.gather(0, &at(i).reshape([1, 3])).mul(2.0))),
            ("index_select", line!(), Box::new(|i| x.index_select(0, &at(i)).sum(0))),
            ("embedding", line!(), Box::new(|i| x.embedding(&at(i)).exp())),
            ("scatter_add", line!(), Box::new(|i| x.scatter_add(0, &at(i).reshape([1, 3]), &x).sub(1.0))),
        ];
        for (op, line, make) in cases {
            for result in [
                make(bad).to_vec::<f32>().map(|_| ()),
                // A GPU may find out after the work was handed over.
                make(bad).compute().and_then(|_| cpu.sync()),
                make(bad).sum(..).item::<f32>().map(|_| ()),
            ] {
                let error = result.expect_err(op);
                check_error(error, "Index", &format!("{op}: index {bad} is out of range for an axis of size 4"), line);
            }
            assert!(make(good).to_vec::<f32>().is_ok(), "{op}");
        }
        assert_eq!(x.sum(..).item::<f32>().unwrap(), 66.0);
    }
}

#[test]
fn an_index_is_told_as_it_was_written() {
    let _device = shared();
    let (device, x) = (device(), Tensor::arange(0.0f32, 4.0, 1.0, &device()).compute().unwrap());
    let told = |x: Tensor| x.to_vec::<f32>().unwrap_err().to_string();
    for bad in [4, i32::MAX as u32 + 1, u32::MAX] {
        let at = Tensor::from_slice(&[1, bad], [2], &device);
        let wanted = format!("index {bad} is out of range for an axis of size 4");
        for found in [
            told(x.gather(0, &at)),
            told(x.index_select(0, &at)),
            told(x.reshape([4, 1]).embedding(&at)),
            told(x.scatter_add(0, &at, &x)),
        ] {
            assert!(found.contains(&wanted), "{found}");
        }
    }
    let at = Tensor::from_slice(&[2u32, 0], [2], &device);
    assert_eq!(x.gather(0, &at).to_vec::<f32>().unwrap(), [2.0, 0.0]);
    assert_eq!(x.scatter_add(0, &at, &x).to_vec::<f32>().unwrap(), [1.0, 1.0, 2.0, 3.0]);
    assert_eq!(at.one_hot(3).to_vec::<i32>().unwrap(), [0, 0, 1, 1, 0, 0]);
    // A cast of the user's own is what was written.
    let cast = Tensor::from_slice(&[u32::MAX], [1], &device).to_dtype(DType::I32);
    assert!(told(x.gather(0, &cast)).contains("index -1 is out of range"));
}

#[test]
fn more_memory_than_there_is_is_an_error_and_the_engine_goes_on() {
    let _device = shared();
    let cpu = device();
    let huge = Tensor::ones([1 << 42], DType::F32, &cpu);
    for result in [huge.compute().map(|_| ()), huge.add(1.0).exp().to_vec::<f32>().map(|_| ())] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
        assert_eq!(error.fault().at.map(|at| at.file()), Some(file!()), "{error}");
    }
    // What is only ever a number along the way needs no memory.
    assert_eq!(huge.narrow(0, 5, 3).add(1.0).to_vec::<f32>().unwrap(), [2.0; 3]);
    assert_eq!(f(&[3]).add(1.0).to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn an_error_can_be_cloned_sent_and_matched() {
    let _device = shared();
    fn is_sent<T: Send + Sync + Clone + std::error::Error + 'static>(_: &T) {}
    let error = f(&[2]).add(&f(&[3])).check().unwrap_err();
    is_sent(&error);
    let Error::Shape(fault) = &error else { panic!("{error}") };
    assert_eq!((fault.op.as_str(), fault.shapes.len()), ("add", 2));
    assert_eq!(fault.shapes[1], [3]);
    assert_eq!(error.clone().to_string(), error.to_string());
}

fn custom() -> CustomOp {
    CustomOp { name: "mine".into(), wgsl: "$0".into(), cpu: std::sync::Arc::new(|x| x[0]), grad: None }
}
