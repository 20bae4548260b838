//! What enters, moves, is contracted, indexed, sorted and leaves, against what NumPy and PyTorch give.

use lazuli::{DType, Device, Error, Shape, Tensor, bf16, einsum, f16, s};

fn cpu() -> Device {
    Device::cpu()
}

/// `0, 1, 2, …` in a shape.
fn count(shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    Tensor::arange(0, shape.n_elems() as i32, 1, &cpu()).reshape(shape)
}

fn ints(values: &[i32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &cpu())
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, [values.len()], &cpu())
}

#[track_caller]
fn check(found: &Tensor, shape: impl Into<Shape>, values: &[f64]) {
    assert_eq!(found.shape().expect("carries no error"), &shape.into()[..]);
    assert_eq!(found.to_vec::<f64>().expect("computes"), values);
}

#[track_caller]
fn check_error(found: &Tensor, expect: &str) -> Error {
    let error = found.check().expect_err("carries an error");
    let fault = error.fault();
    assert_eq!(format!("{}: {}", fault.op, fault.message), expect);
    let at = fault.at.expect("has a place");
    assert!(at.file().ends_with("front.rs"), "{error} is not where the user wrote it");
    error
}

#[test]
fn numbers_enter_by_their_rust_type_and_leave_without_loss() {
    let dtype = |x: &Tensor| x.dtype().expect("carries no error");
    assert_eq!(dtype(&Tensor::scalar(1.5, &cpu())), DType::F32);
    assert_eq!(dtype(&Tensor::scalar(1i64, &cpu())), DType::I32);
    assert_eq!(dtype(&Tensor::full([2], f16::ONE, &cpu())), DType::F16);
    assert_eq!(dtype(&Tensor::from_slice(&[1usize], [1], &cpu())), DType::U32);
    check(&Tensor::from_slice(&[0.5f64, -2.0], [2], &cpu()), [2], &[0.5, -2.0]);
    check(&Tensor::from_vec(vec![true, false], [2], &cpu()), [2], &[1.0, 0.0]);
    check(&Tensor::from_slice(&[bf16::from_f32(3.0)], [1], &cpu()), [1], &[3.0]);
    check(&Tensor::from_slice(&[] as &[f32], [0, 3], &cpu()), [0, 3], &[]);
    assert_eq!(Tensor::from_slice(&[true, false], [2], &cpu()).to_vec::<bool>().unwrap(), [true, false]);
    assert_eq!(ints(&[-1]).to_vec::<i64>().unwrap(), [-1]);
    assert!(matches!(ints(&[-1]).to_vec::<u32>(), Err(Error::DType(_))));
    check_error(&Tensor::from_slice(&[1i64 << 40], [1], &cpu()), "from_slice: 1099511627776 does not fit i32");
    check_error(
        &Tensor::from_slice(&[1.0f32; 3], [2, 2], &cpu()),
        "from_slice: 3 values do not fill [2, 2], which has 4",
    );
    check_error(&Tensor::full([2], 1e300, &cpu()), &format!("full: {} does not fit f32", 1e300));
    check_error(&Tensor::zeros([1; 9], DType::F32, &cpu()), "zeros: rank 9 is above the limit of 8");
    check_error(
        &Tensor::zeros([usize::MAX, 2], DType::F32, &cpu()),
        "zeros: [18446744073709551615, 2] has more elements than can be addressed",
    );
}

#[test]
fn a_huge_tensor_is_fine_until_it_is_computed() {
    let huge = Tensor::zeros([1 << 40, 1 << 10], DType::F32, &cpu());
    check(&huge.narrow(0, 5, 1).narrow(1, 0, 2), [1, 2], &[0.0, 0.0]);
    assert!(matches!(huge.to_vec::<f32>(), Err(Error::OutOfMemory(_))));
}

#[test]
fn counting_is_exact() {
    check(&Tensor::arange(5, -5, -3, &cpu()), [4], &[5.0, 2.0, -1.0, -4.0]);
    check(&Tensor::arange(3u8, 9, 2, &cpu()), [3], &[3.0, 5.0, 7.0]);
    check(&Tensor::arange(3, 3, 1, &cpu()), [0], &[]);
    check(&Tensor::arange(3, 0, 1, &cpu()), [0], &[]);
    let found = Tensor::arange(0.0, 400.0, 0.1, &cpu()).to_vec::<f32>().unwrap();
    assert_eq!(found.len(), 4000);
    assert!(found.iter().enumerate().all(|(i, v)| *v == (i as f64 * 0.1) as f32));
    check_error(&Tensor::arange(0, 1, 0, &cpu()), "arange: cannot count from 0 to 1 by 0");
    check_error(&Tensor::arange(f32::NAN, 1.0, 1.0, &cpu()), "arange: cannot count from NaN to 1 by 1");
    check(&Tensor::linspace(0.0, 1.0, 3, &cpu()), [3], &[0.0, 0.5, 1.0]);
    check(&Tensor::linspace(2.0, 7.0, 1, &cpu()), [1], &[2.0]);
    assert_eq!(Tensor::linspace(0.0, 0.7, 50, &cpu()).to_vec::<f32>().unwrap()[49], 0.7);
    check(&Tensor::eye(3, DType::U8, &cpu()), [3, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}

#[test]
fn random_numbers_are_random_and_repeatable() {
    let n = 1 << 16;
    let x = Tensor::rand([n], 1, &cpu()).to_vec::<f32>().unwrap();
    assert_eq!(x, Tensor::rand([n], 1, &cpu()).to_vec::<f32>().unwrap());
    assert_ne!(x, Tensor::rand([n], 2, &cpu()).to_vec::<f32>().unwrap());
    assert!(x.iter().all(|v| (0.0..1.0).contains(v)));
    let mean = |x: &[f32], f: fn(f64) -> f64| x.iter().map(|v| f(*v as f64)).sum::<f64>() / x.len() as f64;
    assert!((mean(&x, |v| v) - 0.5).abs() < 0.01);
    assert!((mean(&x, |v| v * v) - 1.0 / 3.0).abs() < 0.01);
    let z = Tensor::randn([n], 1, &cpu()).to_vec::<f32>().unwrap();
    assert!(z.iter().all(|v| v.is_finite()));
    assert!(mean(&z, |v| v).abs() < 0.02);
    assert!((mean(&z, |v| v * v) - 1.0).abs() < 0.03);
    assert!((mean(&z, |v| v.powi(4)) - 3.0).abs() < 0.2);
    // Neighbours do not know of each other.
    let pairs = x.windows(2).map(|w| (w[0] as f64 - 0.5) * (w[1] as f64 - 0.5)).sum::<f64>() / n as f64;
    assert!(pairs.abs() < 0.002);
}

#[test]
fn movements_are_views() {
    let x = count([2, 3]);
    check(&x.reshape([3, 2]), [3, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    check(&x.t(), [3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    check(&x.t().flatten(), [6], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    check(&x.flip(0), [2, 3], &[3.0, 4.0, 5.0, 0.0, 1.0, 2.0]);
    check(&x.pad(&[(1, 0), (0, 1)], -1), [3, 4], &[-1.0, -1.0, -1.0, -1.0, 0.0, 1.0, 2.0, -1.0, 3.0, 4.0, 5.0, -1.0]);
    check(&x.slice(&[(0, 0, 1)]).pad(&[(1, 1)], 7), [2, 3], &[7.0; 6]);
    check(&x.unsqueeze(1).broadcast_to([2, 2, 3]).sum([0, 1]), [3], &[6.0, 10.0, 14.0]);
    check(&x.repeat([2, 1, 2]).slice(s![1, 1]), [6], &[3.0, 4.0, 5.0, 3.0, 4.0, 5.0]);
    check(&x.tril(), [2, 3], &[0.0, 0.0, 0.0, 3.0, 4.0, 0.0]);
    check(&x.triu_k(1), [2, 3], &[0.0, 1.0, 2.0, 0.0, 0.0, 5.0]);
    check(&x.diagonal(), [2], &[0.0, 4.0]);
    check(&x.narrow(1, 3, 0).pad(&[(0, 0), (1, 0)], 4), [2, 1], &[4.0, 4.0]);
    check(&x.squeeze(..), [2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    check(&count([2, 2, 2]).permute(&[2, 0, 1]).flip([0, -1]).select_index(0, 0), [2, 2], &[3.0, 1.0, 7.0, 5.0]);
    check_error(&x.reshape([4, 2]), "reshape: [2, 3] has 6 elements, [4, 2] has 8");
    check_error(&x.squeeze(1), "squeeze: axis 1 of [2, 3] has size 3, not 1");
    check_error(&x.permute(&[0, 0]), "permute: axis 0 is named twice in [0, 0]");
    check_error(&x.permute(&[1]), "permute: [1] names 1 of the 2 axes of [2, 3]");
    check_error(&x.transpose(0, 2), "transpose: axis 2 is out of range for [2, 3]: it has axes -2 to 1");
    check_error(&x.broadcast_to([3, 3]), "broadcast_to: [2, 3] does not broadcast to [3, 3]");
    check_error(&x.pad(&[(1, 1)], 0.5), "pad: 0.5 does not fit i32");
    check_error(&x.narrow(1, 2, 2), "narrow: 2 elements from 2 do not fit axis 1 of [2, 3]");
    check_error(&x.unsqueeze(4), "unsqueeze: axis 4 is out of range for [2, 3]: a new axis may stand at -3 to 2");
    check_error(
        &x.pad(&[(usize::MAX, 1)], 0),
        "pad: [18446744073709551615, 3] has more elements than can be addressed",
    );
    check_error(&x.flatten().tril(), "tril: [6] has no matrix: at least two axes are needed");
}

#[test]
fn slices_are_pythons() {
    let x = count([2, 3, 4]);
    let expect = [9.0, 11.0, 5.0, 7.0, 1.0, 3.0, 21.0, 23.0, 17.0, 19.0, 13.0, 15.0];
    check(&x.slice(s![.., ..;-1, 1..4;2]), [2, 3, 2], &expect);
    check(&x.slice(&[(None, None, 1), (None, None, -1), (Some(1), Some(4), 2)]), [2, 3, 2], &expect);
    check(&x.slice(s![1, -1]), [4], &[20.0, 21.0, 22.0, 23.0]);
    check(&x.slice(s![-1..0;-1]).flatten().narrow(0, 0, 2), [2], &[12.0, 13.0]);
    check(&x.slice(s![5.., ..]), [0, 3, 4], &[]);
    check_error(&x.slice(s![2]), "slice: index 2 is out of range for axis 0 of [2, 3, 4]");
    check_error(&x.slice(s![.., ..;0]), "slice: the step along axis 1 is 0");
    check_error(&x.slice(s![0, 0, 0, 0]), "slice: 4 slices for [2, 3, 4], which has 3 axes");
    check_error(&x.select_index(0, -3), "select_index: index -3 is out of range for axis 0 of [2, 3, 4]");
}

#[test]
fn tensors_are_cut_and_joined() {
    let x = count([2, 3]);
    check(&Tensor::cat(&[&x, &x.narrow(1, 0, 1)], 1), [2, 4], &[0.0, 1.0, 2.0, 0.0, 3.0, 4.0, 5.0, 3.0]);
    check(&Tensor::cat(&[&x, &x.narrow(0, 0, 0), &floats(&[0.5; 3]).unsqueeze(0)], 0).sum(0), [3], &[3.5, 5.5, 7.5]);
    check(&Tensor::stack(&[&x, &x], -1).select_index(0, 1), [3, 2], &[3.0, 3.0, 4.0, 4.0, 5.0, 5.0]);
    let parts = x.split(1, &[1, 2]);
    check(&parts[1], [2, 2], &[1.0, 2.0, 4.0, 5.0]);
    assert_eq!(count([5]).chunk(0, 3).len(), 3);
    assert_eq!(count([5]).chunk(0, 4).len(), 3);
    check(&count([0]).chunk(0, 4)[0], [0], &[]);
    check_error(&Tensor::cat(&[], 0), "cat: no tensors to join");
    check_error(&Tensor::cat(&[&x, &x.t()], 0), "cat: [2, 3] and [3, 2] differ in more than axis 0");
    check_error(&Tensor::stack(&[&x, &x.t()], 0), "stack: [2, 3] and [3, 2] are not of one shape");
    check_error(&x.split(1, &[1, 1])[1], "split: parts of [1, 1] do not add up to axis 1 of [2, 3]");
    check_error(&x.chunk(1, 0)[0], "chunk: axis 1 of [2, 3] cannot be cut into 0 parts; ask for 1 at least");
}

#[test]
fn matmul_is_numpys() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::U32, DType::U8] {
        let (x, y) = (count([2, 3]).to_dtype(dtype), count([3, 4]).to_dtype(dtype));
        check(&x.matmul(&y), [2, 4], &[20.0, 23.0, 26.0, 29.0, 56.0, 68.0, 80.0, 92.0]);
        assert_eq!(x.matmul(&y).dtype().unwrap(), dtype);
    }
    let (x, y) = (count([2, 3]), count([3, 4]).to_dtype(DType::F32));
    check(&count([3]).matmul(&y), [4], &[20.0, 23.0, 26.0, 29.0]);
    check(&x.matmul(&count([3])), [2], &[5.0, 14.0]);
    check(&count([3]).dot(&count([3])), (), &[5.0]);
    check(&count([2]).outer(&count([3])), [2, 3], &[0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
    check(
        &count([2, 1, 2, 3]).matmul(&count([3, 3, 2])),
        [2, 3, 2, 2],
        &[
            10.0, 13.0, 28.0, 40.0, 28.0, 31.0, 100.0, 112.0, 46.0, 49.0, 172.0, 184.0, //
            46.0, 67.0, 64.0, 94.0, 172.0, 193.0, 244.0, 274.0, 298.0, 319.0, 424.0, 454.0,
        ],
    );
    check(&count([2, 0]).matmul(&count([0, 2])), [2, 2], &[0.0; 4]);
    check(&count([0, 3]).matmul(&count([3, 2])), [0, 2], &[]);
    check(&count([2, 0, 3]).matmul(&count([2, 3, 2])), [2, 0, 2], &[]);
    check(&count([0]).dot(&count([0])), (), &[0.0]);
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &cpu());
    check_error(
        &zeros(&[4, 3]).matmul(&zeros(&[5, 3])),
        "matmul: inner sizes differ: [4, 3] × [5, 3]; did you mean b.t()?",
    );
    check_error(
        &zeros(&[4, 3]).matmul(&zeros(&[4, 5])),
        "matmul: inner sizes differ: [4, 3] × [4, 5]; did you mean a.t()?",
    );
    check_error(&zeros(&[4, 3]).matmul(&zeros(&[2, 5])), "matmul: inner sizes differ: [4, 3] × [2, 5]");
    check_error(&zeros(&[3]).matmul(&zeros(&[5, 3])), "matmul: inner sizes differ: [3] × [5, 3]; did you mean b.t()?");
    check_error(&zeros(&[2, 3]).matmul(&zeros(&[2])), "matmul: inner sizes differ: [2, 3] × [2]; did you mean a.t()?");
    check_error(&zeros(&[3]).matmul(&zeros(&[2])), "matmul: inner sizes differ: [3] × [2]");
    check_error(
        &zeros(&[2, 4, 3]).matmul(&zeros(&[3, 3, 5])),
        "matmul: batch axes do not broadcast: [2, 4, 3] × [3, 3, 5]",
    );
    check_error(&zeros(&[]).matmul(&zeros(&[3])), "matmul: a scalar has no axis to contract: [] × [3]");
}

#[test]
fn einsum_is_numpys() {
    let (a, b, c, d) = (count([2, 3]), count([3, 4]), count([4, 2]), count([2, 3, 4]));
    let square = b.narrow(1, 0, 3);
    check(&einsum("ij,jk,kl->il", &[&a, &b, &c]), [2, 2], &[324.0, 422.0, 1008.0, 1304.0]);
    check(&einsum("ij,jk,kl->li", &[&a, &b, &c]), [2, 2], &[324.0, 1008.0, 422.0, 1304.0]);
    check(&einsum("ij->j", &[&a]), [3], &[3.0, 5.0, 7.0]);
    check(&einsum("ij->", &[&a]), (), &[15.0]);
    check(&einsum("ba", &[&a]), [3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    check(&einsum("ii->i", &[&square]), [3], &[0.0, 5.0, 10.0]);
    check(&einsum("ii", &[&square]), (), &[15.0]);
    check(
        &einsum("i,j->ij", &[&a.select_index(0, 0), &b.select_index(1, 0)]),
        [3, 3],
        &[0.0, 0.0, 0.0, 0.0, 4.0, 8.0, 0.0, 8.0, 16.0],
    );
    check(&einsum("ij,ij->i", &[&a, &a]), [2], &[5.0, 50.0]);
    check(&einsum("ij,ij->", &[&a, &a]), (), &[55.0]);
    check(&einsum("ij,j", &[&a, &a.select_index(0, 0)]), [2], &[5.0, 14.0]);
    let (x, y) = (d.narrow(2, 0, 3), d.narrow(2, 0, 2));
    let expect = [20.0, 23.0, 68.0, 83.0, 116.0, 143.0, 632.0, 671.0, 824.0, 875.0, 1016.0, 1079.0];
    check(&einsum("bij,bjk->bik", &[&x, &y]), [2, 3, 2], &expect);
    let expect = [20.0, 23.0, 68.0, 83.0, 116.0, 143.0, 164.0, 203.0, 212.0, 263.0, 260.0, 323.0];
    check(&einsum("...ij,...jk->...ik", &[&x, &y.narrow(0, 0, 1)]), [2, 3, 2], &expect);
    let heads = d.unsqueeze(1);
    let expect = [
        14.0, 38.0, 62.0, 38.0, 126.0, 214.0, 62.0, 214.0, 366.0, //
        734.0, 950.0, 1166.0, 950.0, 1230.0, 1510.0, 1166.0, 1510.0, 1854.0,
    ];
    check(&einsum("bhqd,bhkd->bhqk", &[&heads, &heads]), [2, 1, 3, 3], &expect);
    let expect = [
        880.0, 940.0, 1000.0, 1060.0, 940.0, 1006.0, 1072.0, 1138.0, //
        1000.0, 1072.0, 1144.0, 1216.0, 1060.0, 1138.0, 1216.0, 1294.0,
    ];
    check(&einsum("ijk,jil->kl", &[&d, &d.transpose(0, 1)]), [4, 4], &expect);
    let expect = [648.0, 876.0, 844.0, 1138.0, 1512.0, 2172.0, 1996.0, 2866.0];
    check(&einsum("abc,cd,be->ade", &[&d, &c, &count([3, 2])]), [2, 2, 2], &expect);
    check(&einsum("iij->j", &[&count([2, 2, 3])]), [3], &[9.0, 11.0, 13.0]);
    check(&einsum("...i->...", &[&d]), [2, 3], &[6.0, 22.0, 38.0, 54.0, 70.0, 86.0]);
    check(&einsum("i...->...", &[&d]).narrow(0, 0, 1), [1, 4], &[12.0, 14.0, 16.0, 18.0]);
    check_error(&einsum("ij,jk->ik", &[&a]), "einsum: \"ij,jk->ik\" is for 2 operands, not 1");
    check_error(&einsum("ij,jk->ik", &[&a, &a]), "einsum: j of \"ij,jk->ik\" is both 3 and 2");
    check_error(&einsum("ijk->i", &[&a]), "einsum: \"ijk->i\" names 3 axes of an operand of shape [2, 3]");
    check_error(&einsum("ii->i", &[&a]), "einsum: i names axes of different sizes of [2, 3]");
    let wide = Tensor::zeros([1; 5], DType::F32, &cpu());
    check_error(&einsum("abcde,fghij->abcdefghij", &[&wide, &wide]), "einsum: rank 10 is above the limit of 8");
    check_error(
        &einsum("abcde,efghi->abcdfghi", &[&wide, &Tensor::zeros([1; 6], DType::F32, &cpu())]),
        "einsum: \"abcde,efghi->abcdfghi\" names 5 axes of an operand of shape [1, 1, 1, 1, 1, 1]",
    );
}

#[test]
fn indices_choose_elements() {
    let x = count([3, 4]);
    let index = Tensor::from_slice(&[2u8, 0, 1, 1], [2, 2], &cpu());
    check(&x.gather(0, &index), [2, 2], &[8.0, 1.0, 4.0, 5.0]);
    check(&x.gather(1, &index), [2, 2], &[2.0, 0.0, 5.0, 5.0]);
    check(&x.index_select(0, &ints(&[2, 0])), [2, 4], &[8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 3.0]);
    check(&x.index_select(1, &ints(&[3])), [3, 1], &[3.0, 7.0, 11.0]);
    check(&x.embedding(&ints(&[1, 1]).reshape([1, 2])), [1, 2, 4], &[4.0, 5.0, 6.0, 7.0, 4.0, 5.0, 6.0, 7.0]);
    check(&x.embedding(&Tensor::scalar(2, &cpu())), [4], &[8.0, 9.0, 10.0, 11.0]);
    check(&ints(&[1, 5, 0]).one_hot(2), [3, 2], &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    check_error(&x.gather(0, &floats(&[1.0])), "gather: the index is f32, not an integer; cast it with to_dtype");
    check_error(
        &x.gather(0, &count([1, 5])),
        "gather: the index [1, 5] does not fit [3, 4] along axis 0: the same rank, and no larger along the other axes",
    );
    check_error(&x.index_select(0, &index), "index_select: the index must be a vector, not [2, 2]");
    check_error(&count([3]).embedding(&index), "embedding: the table must be [vocabulary, features], not [3]");
    for index in [-1, 3] {
        let error = x.index_select(0, &ints(&[0, index])).compute().expect_err("is out of range");
        assert!(matches!(error, Error::Index(_)), "{error}");
        assert!(error.to_string().contains(&format!("index {index} is out of range")), "{error}");
        assert!(error.to_string().contains("front.rs"), "{error}");
    }
}

#[test]
fn scattering_adds_in_place_of_the_index() {
    let zeros = Tensor::zeros([3, 2], DType::F32, &cpu());
    let index = ints(&[2, 0, 2, 2]).reshape([2, 2]);
    let src = floats(&[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]);
    check(&zeros.scatter_add(0, &index, &src), [3, 2], &[0.0, 2.0, 0.0, 0.0, 4.0, 4.0]);
    check(&count([5]).scatter_add(-1, &ints(&[1, 1, 4]), &ints(&[10, 20, 30])), [5], &[0.0, 31.0, 2.0, 3.0, 34.0]);
    // A million ones are counted exactly.
    let n = 1 << 20;
    let many = Tensor::zeros([4], DType::F32, &cpu());
    let found = many.scatter_add(0, &(count([n]).rem(4)), &Tensor::ones([n], DType::F32, &cpu()));
    check(&found, [4], &[(n / 4) as f64; 4]);
    let error = zeros.scatter_add(0, &index.add(1), &src).compute().expect_err("is out of range");
    assert!(error.to_string().contains("index 3 is out of range for an axis of size 3"), "{error}");
    check_error(&zeros.scatter_add(0, &index, &floats(&[1.0])), "scatter_add: src [1] does not cover the index [2, 2]");
}

#[test]
fn order_along_an_axis() {
    let x = floats(&[3.0, f32::NAN, 1.0, 3.0, -2.0, 0.0]).reshape([2, 3]);
    check(&x.argsort(1, false), [2, 3], &[2.0, 0.0, 1.0, 1.0, 2.0, 0.0]);
    check(&x.argsort(1, true), [2, 3], &[0.0, 2.0, 1.0, 0.0, 2.0, 1.0]);
    check(&x.sort(0, false).slice(s![.., ..;2]), [2, 2], &[3.0, 0.0, 3.0, 1.0]);
    check(&x.sort(0, true).select_index(1, 1).is_nan(), [2], &[0.0, 1.0]);
    check(&count([2, 3]).cumsum(0), [2, 3], &[0.0, 1.0, 2.0, 3.0, 5.0, 7.0]);
    check(&count([2, 3]).cumsum(-1), [2, 3], &[0.0, 1.0, 3.0, 3.0, 7.0, 12.0]);
    check(&ints(&[i32::MAX, 1]).cumsum(0), [2], &[i32::MAX as f64, i32::MIN as f64]);
    check(&count([0]).cumsum(0), [0], &[]);
    check(&count([0, 2]).sort(0, false), [0, 2], &[]);
    let (values, indices) = count([2, 3]).topk(2, -1);
    check(&values, [2, 2], &[2.0, 1.0, 5.0, 4.0]);
    check(&indices, [2, 2], &[2.0, 1.0, 2.0, 1.0]);
    check_error(&count([2, 3]).topk(4, 1).0, "topk: 4 elements of an axis of size 3 of [2, 3]");
    check_error(&count([2, 3]).topk(1, 7).1, "topk: axis 7 is out of range for [2, 3]: it has axes -2 to 1");
    check_error(&count(()).cumsum(0), "cumsum: axis 0 is out of range for []: a scalar has no axes");
    // Long lines are sorted by several threads, and still in one order.
    let n = 100_000;
    let x = Tensor::rand([n], 3, &cpu());
    let mut expect = x.to_vec::<f32>().unwrap();
    expect.sort_by(f32::total_cmp);
    assert_eq!(x.sort(0, false).to_vec::<f32>().unwrap(), expect);
}

#[test]
fn an_error_is_carried_to_the_end() {
    let bad = count([2, 3]).matmul(&count([2, 3]));
    let far = bad.add(1).t().flatten().cumsum(0);
    assert!(far.to_string().starts_with("matmul: inner sizes differ: [2, 3] × [2, 3]"), "{far}");
    assert!(format!("{far:?}").starts_with("Tensor(error: matmul"));
    let message = |e: Error| e.fault().message.clone();
    assert_eq!(message(count([2]).item::<i32>().unwrap_err()), "[2] has 2 elements, not one");
    assert_eq!(message(count([2]).dims::<2>().unwrap_err()), "[2] has 1 axis, not 2");
    assert_eq!(count([2, 3]).dims::<2>().unwrap(), [2, 3]);
    assert_eq!(count([1, 1]).item::<i32>().unwrap(), 0);
}

#[test]
fn large_tensors_print_their_edges() {
    assert_eq!(count([2000]).to_string(), "[   0    1    2 ... 1997 1998 1999]");
    let expect = "[[   0    1    2 ...   47   48   49]\n [  50   51   52 ...   97   98   99]\n [ 100  101  102 ...  147  148  149]\n ...\n \
                  [2350 2351 2352 ... 2397 2398 2399]\n [2400 2401 2402 ... 2447 2448 2449]\n [2450 2451 2452 ... 2497 2498 2499]]";
    assert_eq!(count([50, 50]).to_string(), expect);
    assert_eq!(count([20, 2, 30]).to_string().lines().nth(9), Some(" ..."));
    let x = count([3]).add(1);
    assert!(format!("{x:?}").ends_with("lazy)"));
    assert_eq!(x.to_string(), "[1 2 3]");
    assert!(format!("{x:?}").ends_with("ready)"));
}
