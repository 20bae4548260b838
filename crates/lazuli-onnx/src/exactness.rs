//! Tests: products of small integers equal sums in 64 bits, bit for bit, where they are longer than f32 holds exactly and
//! where factors are as large as their types allow.

use lazuli::Device;
use prost::Message;

use crate::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorTypeProto, TypeKind,
    TypeProto, ValueInfoProto,
};
use crate::value::{Kind, Value};
use crate::{ElemType, Model};

/// A constant of bytes, signed or not.
fn bytes(name: &str, dims: &[usize], elem: ElemType, values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.iter().map(|n| *n as i64).collect(),
        data_type: if elem == ElemType::I8 { 3 } else { 2 },
        raw_data: values.iter().map(|v| *v as u8).collect(),
        ..TensorProto::default()
    }
}

/// A model of one node that reads `x`, of bytes, and constants.
fn model(node: NodeProto, constants: Vec<TensorProto>, elem: ElemType) -> Model {
    let info = |name: &str, elem_type: i32| {
        let tensor = TensorTypeProto { elem_type, shape: None };
        ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let model = ModelProto {
        ir_version: 8,
        graph: Some(GraphProto {
            node: vec![node],
            initializer: constants,
            input: vec![info("x", if elem == ElemType::I8 { 3 } else { 2 })],
            output: vec![info("y", 6)],
            ..GraphProto::default()
        }),
        opset_import: vec![opset("", 17), opset("com.microsoft", 1)],
        ..ModelProto::default()
    };
    Model::from_bytes(&model.encode_to_vec(), &Device::cpu()).unwrap()
}

/// Runs it on an `x` of this shape.
fn outcome(model: &Model, (shape, elem, x): (&[usize], ElemType, &[i64])) -> lazuli::Result<Vec<i64>> {
    let host: Value = crate::host::Host::ints(elem, shape.to_vec(), x.to_vec()).into();
    let x = Value(Kind::Device(host.to_tensor(&Device::cpu())?, elem));
    model.run_values(&[("x", x)])?.value("y")?.to_i64s()
}

/// Runs one node on `x`, with other inputs as constants of the model.
fn run(node: NodeProto, constants: Vec<TensorProto>, x: (&[usize], ElemType, &[i64])) -> Vec<i64> {
    let model = model(node, constants, x.1);
    let first = outcome(&model, x).unwrap();
    // What was kept of the weights gives the same numbers.
    assert_eq!(outcome(&model, x).unwrap(), first);
    first
}

fn node(op: &str, inputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: vec!["y".into()],
        attribute,
        ..NodeProto::default()
    }
}

/// Numbers from `low` to `high`, most of them one of these.
fn numbers(n: usize, seed: u64, low: i64, high: i64) -> Vec<i64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let number = |r: u64| if r.is_multiple_of(4) { low + (r >> 8) as i64 % (high - low + 1) } else { high };
    (0..n).map(|_| number(next())).collect()
}

#[test]
fn long_products_of_bytes_are_exact() {
    for (k, elem, zero) in
        [(1, ElemType::I8, 0), (258, ElemType::U8, 0), (259, ElemType::I8, -128), (3000, ElemType::U8, 7)]
    {
        let (m, n) = (3, 5);
        let (low, high) = if elem == ElemType::I8 { (-128, 127) } else { (0, 255) };
        let (a, b) = (numbers(m * k, 1, 0, 255), numbers(k * n, 2, low, high));
        let node = node("MatMulInteger", &["x", "b", "", "zero"], Vec::new());
        let constants = vec![bytes("b", &[k, n], elem, &b), bytes("zero", &[], elem, &[zero])];
        let y = run(node, constants, (&[m, k], ElemType::U8, &a));
        let sum = |i: usize, j: usize| (0..k).map(|t| a[i * k + t] * (b[t * n + j] - zero)).sum::<i64>();
        let expected: Vec<i64> = (0..m * n).map(|at| sum(at / n, at % n)).collect();
        assert_eq!(y, expected, "k = {k}, {elem}");
    }
}

#[test]
fn zero_points_of_rows_and_columns_are_exact() {
    let (m, k, n) = (4, 700, 3);
    let (a, b) = (numbers(m * k, 3, -128, 127), numbers(k * n, 4, 0, 255));
    let (rows, columns) = ([-128, 0, 5, 127], [0, 255, 9]);
    let node = node("MatMulInteger", &["x", "b", "rows", "columns"], Vec::new());
    let constants = vec![
        bytes("b", &[k, n], ElemType::U8, &b),
        bytes("rows", &[m], ElemType::I8, &rows),
        bytes("columns", &[n], ElemType::U8, &columns),
    ];
    let y = run(node, constants, (&[m, k], ElemType::I8, &a));
    let sum = |i: usize, j: usize| (0..k).map(|t| (a[i * k + t] - rows[i]) * (b[t * n + j] - columns[j])).sum::<i64>();
    assert_eq!(y, (0..m * n).map(|at| sum(at / n, at % n)).collect::<Vec<i64>>());
}

#[test]
fn vectors_of_bytes_are_a_row_and_a_column() {
    let (k, n) = (300, 5);
    let (x, b) = (numbers(k, 7, -128, 127), numbers(k * n, 8, -128, 127));
    let constants = || vec![bytes("b", &[k, n], ElemType::I8, &b), bytes("zero", &[1], ElemType::I8, &[-3])];
    let y = run(node("MatMulInteger", &["x", "b", "zero", "zero"], Vec::new()), constants(), (&[k], ElemType::I8, &x));
    let sum = |j: usize| (0..k).map(|t| (x[t] + 3) * (b[t * n + j] + 3)).sum::<i64>();
    assert_eq!(y, (0..n).map(sum).collect::<Vec<i64>>());
    let constants = vec![bytes("b", &[k], ElemType::I8, &b[..k])];
    let y = run(
        node("MatMulInteger", &["x", "b"], Vec::new()),
        constants,
        (&[2, k], ElemType::I8, &numbers(2 * k, 9, -128, 127)),
    );
    let rows = numbers(2 * k, 9, -128, 127);
    assert_eq!(y, [0, 1].map(|i| (0..k).map(|t| rows[i * k + t] * b[t]).sum::<i64>()));
}

/// Channels of a sum that fits, that is cut by channels, and that has to be summed as integers.
#[test]
fn long_convolutions_of_bytes_are_exact() {
    for (channels, groups, window) in [(4, 1, 3), (200, 1, 3), (600, 2, 3), (2, 1, 300)] {
        let (n, outputs) = (window + 2, 4);
        let per_group = channels / groups;
        let (x, w) = (numbers(channels * n, 5, 0, 255), numbers(outputs * per_group * window, 6, -128, 127));
        let group = AttributeProto { name: "group".into(), kind: 2, i: groups as i64, ..AttributeProto::default() };
        let pads = AttributeProto { name: "pads".into(), kind: 7, ints: vec![1, 0], ..AttributeProto::default() };
        let node = node("ConvInteger", &["x", "w", "zero"], vec![group, pads]);
        let constants =
            vec![bytes("w", &[outputs, per_group, window], ElemType::I8, &w), bytes("zero", &[], ElemType::U8, &[3])];
        let y = run(node, constants, (&[1, channels, n], ElemType::U8, &x));
        let places = n + 1 - window + 1;
        let at = |c: usize, i: usize| i.checked_sub(1).map_or(0, |i| x[c * n + i] - 3);
        let sum = |o: usize, p: usize| -> i64 {
            let first = o / (outputs / groups) * per_group;
            let terms = (0..per_group * window).map(|t| (t / window, t % window));
            terms.map(|(c, q)| w[(o * per_group + c) * window + q] * at(first + c, p + q)).sum()
        };
        let expected: Vec<i64> = (0..outputs * places).map(|at| sum(at / places, at % places)).collect();
        assert_eq!(y, expected, "{channels} channels in {groups} groups, windows of {window}");
    }
}

#[test]
fn convolutions_of_bytes_without_padding_are_exact() {
    let (channels, outputs, window, n, stride) = (40, 5, 7, 61, 3);
    let (x, w) = (numbers(channels * n, 11, -128, 127), numbers(outputs * channels * window, 12, 0, 255));
    let zeros = numbers(outputs, 13, 0, 255);
    let strides =
        AttributeProto { name: "strides".into(), kind: 7, ints: vec![stride as i64], ..AttributeProto::default() };
    let node = node("ConvInteger", &["x", "w", "zero", "zeros"], vec![strides]);
    let constants = vec![
        bytes("w", &[outputs, channels, window], ElemType::U8, &w),
        bytes("zero", &[], ElemType::I8, &[-9]),
        bytes("zeros", &[outputs], ElemType::U8, &zeros),
    ];
    let y = run(node, constants, (&[1, channels, n], ElemType::I8, &x));
    let places = (n - window) / stride + 1;
    let sum = |o: usize, p: usize| -> i64 {
        let terms = (0..channels * window).map(|t| (t, x[t / window * n + p * stride + t % window]));
        terms.map(|(t, x)| (x + 9) * (w[o * channels * window + t] - zeros[o])).sum()
    };
    assert_eq!(y, (0..outputs * places).map(|at| sum(at / places, at % places)).collect::<Vec<i64>>());
}

/// Whether there is padding, and so which way is gone, hangs on the size of the image.
#[test]
fn images_of_several_sizes_may_be_padded_and_not() {
    let (w, stride) = ([3, -5], 2);
    let attrs = || {
        let same =
            AttributeProto { name: "auto_pad".into(), kind: 3, s: b"SAME_UPPER".to_vec(), ..AttributeProto::default() };
        let strides =
            AttributeProto { name: "strides".into(), kind: 7, ints: vec![stride as i64], ..AttributeProto::default() };
        vec![same, strides]
    };
    for sizes in [[4, 5, 4], [5, 4, 5]] {
        let constants = vec![bytes("w", &[1, 1, 2], ElemType::I8, &w)];
        let model = model(node("ConvInteger", &["x", "w"], attrs()), constants, ElemType::U8);
        for n in sizes {
            let x = numbers(n, 17, 0, 255);
            let y = outcome(&model, (&[1, 1, n], ElemType::U8, &x)).unwrap();
            let at = |i: usize| x.get(i).copied().unwrap_or(0);
            let expected: Vec<i64> = (0..n).step_by(stride).map(|i| w[0] * at(i) + w[1] * at(i + 1)).collect();
            assert_eq!(y, expected, "{n} of {sizes:?}");
        }
    }
}

#[test]
fn what_is_kept_of_weights_does_not_hang_on_an_input_that_does_not_fit() {
    let constants = vec![bytes("b", &[2, 1], ElemType::I8, &[1, 1]), bytes("zero", &[], ElemType::U8, &[5])];
    let model = model(node("MatMulInteger", &["x", "b", "zero"], Vec::new()), constants, ElemType::U8);
    let error = outcome(&model, (&[1, 3], ElemType::U8, &[1, 2, 3])).unwrap_err().to_string();
    assert!(error.contains("inner sizes differ"), "{error}");
    assert_eq!(outcome(&model, (&[1, 2], ElemType::U8, &[7, 9])).unwrap(), [6]);
}
