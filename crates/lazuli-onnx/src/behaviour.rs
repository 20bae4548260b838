//! Tests: bodies, functions, host values and their limits, on models written with the crate's own messages.

use lazuli::{Device, Tensor};
use prost::Message;

use crate::Model;
use crate::proto::{
    AttributeProto, DimKind, DimProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TensorTypeProto, TypeKind, TypeProto, ValueInfoProto,
};

pub(crate) fn node(op: &str, inputs: &[&str], outputs: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        attribute,
        ..NodeProto::default()
    }
}

pub(crate) fn info(name: &str, elem_type: i32) -> ValueInfoProto {
    let tensor = TensorTypeProto { elem_type, shape: None };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
}

fn ints(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 7,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

fn body(name: &str, graph: GraphProto) -> AttributeProto {
    AttributeProto { name: name.into(), kind: 5, g: Some(graph), ..AttributeProto::default() }
}

pub(crate) fn number(name: &str, i: i64) -> AttributeProto {
    AttributeProto { name: name.into(), kind: 2, i, ..AttributeProto::default() }
}

pub(crate) fn model(nodes: Vec<NodeProto>, constants: Vec<TensorProto>, output: i32) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        initializer: constants,
        input: vec![info("x", 1)],
        output: vec![info("y", output)],
        ..GraphProto::default()
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    ModelProto {
        ir_version: 8,
        graph: Some(graph),
        opset_import: vec![opset("", 17), opset("own", 1)],
        ..ModelProto::default()
    }
}

fn run(model: &ModelProto, x: &[f32]) -> lazuli::Result<crate::Value> {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&model.encode_to_vec(), &cpu)?;
    let results = model.run(&[("x", &Tensor::from_slice(x, [x.len()], &cpu))])?;
    results.value("y").cloned()
}

#[test]
fn functions_take_attributes_and_default_ones() {
    let reference =
        AttributeProto { ref_attr_name: "slope".into(), name: "alpha".into(), kind: 1, ..AttributeProto::default() };
    let slope = |f: f32| AttributeProto { name: "slope".into(), kind: 1, f, ..AttributeProto::default() };
    let function = FunctionProto {
        name: "Bent".into(),
        domain: "own".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        attribute_proto: vec![slope(0.5)],
        // The name is also one of the caller's: it must not be taken for it.
        node: vec![node("LeakyRelu", &["a"], &["x"], vec![reference]), node("Identity", &["x"], &["b"], Vec::new())],
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        ..FunctionProto::default()
    };
    let call = |input: &str, output: &str, attrs: Vec<AttributeProto>| NodeProto {
        domain: "own".into(),
        ..node("Bent", &[input], &[output], attrs)
    };
    let nodes = vec![call("x", "z", Vec::new()), call("z", "y", vec![slope(0.25)])];
    let model = ModelProto { functions: vec![function], ..model(nodes, Vec::new(), 1) };
    assert_eq!(run(&model, &[-8.0, 3.0]).unwrap().to_f64s().unwrap(), [-1.0, 3.0]);
}

#[test]
fn a_loop_carries_collects_and_reads_values_around_it() {
    // A `Loop` that computes v = v + x three times and collects each v.
    let looped = GraphProto {
        node: vec![node("Add", &["v", "x"], &["next"], Vec::new()), node("Identity", &["go"], &["on"], Vec::new())],
        input: vec![info("round", 7), info("go", 9), info("v", 1)],
        output: vec![info("on", 9), info("next", 1), info("next", 1)],
        ..GraphProto::default()
    };
    let nodes = vec![node("Loop", &["n", "", "x"], &["last", "y"], vec![body("body", looped)])];
    let model = model(nodes, vec![ints("n", &[], &[3])], 1);
    let y = run(&model, &[1.0, 2.0]).unwrap();
    assert_eq!((y.shape().unwrap(), y.to_f64s().unwrap()), (vec![3, 2], vec![2.0, 4.0, 3.0, 6.0, 4.0, 8.0]));
}

/// A model that negates what has a positive sum, and else gives the magnitudes.
fn branches() -> ModelProto {
    let branch = |name: &str, op: &str| {
        let graph = GraphProto {
            node: vec![node(op, &["x"], &["z"], Vec::new())],
            output: vec![info("z", 1)],
            ..GraphProto::default()
        };
        body(name, graph)
    };
    let nodes = vec![
        node("ReduceSum", &["x"], &["sum"], vec![number("keepdims", 0)]),
        node("Sub", &["sum", "sum"], &["zero"], Vec::new()),
        node("Greater", &["sum", "zero"], &["cond"], Vec::new()),
        node("If", &["cond"], &["y"], vec![branch("then_branch", "Neg"), branch("else_branch", "Abs")]),
    ];
    model(nodes, Vec::new(), 1)
}

#[test]
fn a_branch_is_chosen_by_numbers_of_the_device() {
    let model = branches();
    assert_eq!(run(&model, &[1.0, 2.0]).unwrap().to_f64s().unwrap(), [-1.0, -2.0]);
    assert_eq!(run(&model, &[1.0, -2.0]).unwrap().to_f64s().unwrap(), [1.0, 2.0]);
}

#[test]
fn a_run_that_looks_at_numbers_may_be_awaited() {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&branches().encode_to_vec(), &cpu).unwrap();
    for (x, expect) in [([1.0f32, 2.0], [-1.0f32, -2.0]), ([1.0, -2.0], [1.0, 2.0])] {
        let x = Tensor::from_slice(&x, [2], &cpu);
        let run = async { model.run_async(&[("x", &x)]).await?.tensor("y")?.to_vec_async::<f32>().await };
        let mut future = std::pin::pin!(run);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let y = loop {
            if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
                break done.unwrap();
            }
            std::thread::yield_now();
        };
        assert_eq!(y, expect);
    }
}

#[test]
fn constants_cast_to_64_bits_keep_them_or_are_errors() {
    let floats = |n: usize| TensorProto {
        name: "w".into(),
        dims: vec![n as i64],
        data_type: 1,
        float_data: std::iter::repeat_n(1.0, n - 1).chain([3e9]).collect(),
        ..TensorProto::default()
    };
    let cast = |n: usize| {
        let nodes = vec![node("Cast", &["w"], &["n"], vec![number("to", 7)]), node("Neg", &["n"], &["y"], Vec::new())];
        run(&model(nodes, vec![floats(n)], 7), &[0.0])
    };
    assert_eq!(cast(2).unwrap().to_i64s().unwrap(), [-1, -3_000_000_000]);
    let error = cast(2000).expect_err("is on the device, in 32 bits").to_string();
    assert!(error.contains("`n` (Cast)") && error.contains("3000000000 does not fit i32"), "{error}");
}

#[test]
fn pads_that_mirror_and_cut_are_those_of_the_whole_input() {
    let text = |s: &str| AttributeProto { name: "mode".into(), kind: 3, s: s.into(), ..AttributeProto::default() };
    for (mode, x, pads, expect) in [
        ("reflect", &[1.0, 2.0, 3.0, 4.0][..], [-1, 3], &[2.0, 3.0, 4.0, 3.0, 2.0, 1.0][..]),
        ("edge", &[1.0, 2.0, 3.0], [2, -1], &[1.0, 1.0, 1.0, 2.0]),
        ("wrap", &[1.0, 2.0, 3.0], [1, 1], &[3.0, 1.0, 2.0, 3.0, 1.0]),
        // A mirror in front of a single element shows that element.
        ("reflect", &[7.0], [1, 2], &[7.0, 7.0, 7.0, 7.0]),
    ] {
        let nodes = vec![node("Pad", &["x", "pads"], &["y"], vec![text(mode)])];
        let y = run(&model(nodes, vec![ints("pads", &[2], &pads)], 1), x).unwrap();
        assert_eq!(y.to_f64s().unwrap(), expect, "{mode} by {pads:?}");
    }
}

#[test]
fn a_recorded_run_takes_the_branch_that_its_own_numbers_choose() {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&branches().encode_to_vec(), &cpu).unwrap();
    for i in 0..12 {
        let (a, b) = (1.0 + i as f32, if i % 3 == 2 { 40.0 } else { 0.5 });
        let x = Tensor::from_slice(&[a, -b], [2], &cpu);
        let y = model.infer(&[("x", &x)]).unwrap().tensor("y").unwrap();
        let expect = if a > b { [-a, b] } else { [a, b] };
        assert_eq!(y.to_vec::<f32>().unwrap(), expect, "run {i}");
        assert_eq!(x.to_vec::<f32>().unwrap(), [a, -b], "inputs stay");
    }
    // Other shapes in between, more of them than are remembered.
    for n in (1..20).chain(1..20).chain([3; 4]) {
        let x: Vec<f32> = (0..n).map(|i| i as f32 - 4.0).collect();
        let inferred = model.infer(&[("x", &Tensor::from_slice(&x, [n], &cpu))]).unwrap();
        let expect = x.iter().map(|x| if n > 9 { -x } else { x.abs() } as f64).collect::<Vec<_>>();
        assert_eq!(inferred.value("y").unwrap().to_f64s().unwrap(), expect, "{n} elements");
    }
}

#[test]
fn a_model_that_finds_other_numbers_in_every_run_gives_its_recordings_up() {
    // The elements of `x` as often as their sum says.
    let nodes = vec![
        node("ReduceSum", &["x"], &["sum"], Vec::new()),
        node("Cast", &["sum"], &["times"], vec![number("to", 7)]),
        node("Tile", &["x", "times"], &["y"], Vec::new()),
    ];
    let cpu = Device::cpu();
    let model = Model::from_bytes(&model(nodes, Vec::new(), 1).encode_to_vec(), &cpu).unwrap();
    let infer = |n: usize| {
        let x = Tensor::from_slice(&[n as f32, 1.0], [2], &cpu);
        let y = model.infer(&[("x", &x)]).unwrap().tensor("y").unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [n as f32, 1.0].repeat(n + 1));
        model.recorded.n_steps()
    };
    // `infer` records runs from the second on. The model looks at one tensor and branches by what it finds, so that each of the runs
    // below needs a recording of its own.
    let n_steps: Vec<Vec<[usize; 2]>> = (1..=5).map(infer).collect();
    assert_eq!(n_steps, [[[0, 0]], [[1, 1]], [[1, 2]], [[1, 3]], [[1, 4]]]);
    // They are kept as long as one of them comes again now and then.
    assert_eq!([2, 6, 7, 8, 3, 9, 10, 11].map(infer), [const { [[1, 4]] }; 8]);
    // As many others in a row as there are recordings.
    assert_eq!([12, 2].map(infer), [[[0, 0]]; 2]);
}

#[test]
fn recorded_runs_share_what_they_look_at_first() {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&branches().encode_to_vec(), &cpu).unwrap();
    for a in [1.0, 1.0, -1.0, 1.0, -1.0] {
        model.infer(&[("x", &Tensor::from_slice(&[a, 0.0f32], [2], &cpu))]).unwrap();
    }
    // One condition, two branches.
    assert_eq!(model.recorded.n_steps(), [[1, 2]]);
}

#[test]
fn a_loop_that_looks_at_a_number_in_every_round_is_right_when_it_is_inferred_again() {
    // v = v + x while v < 100.
    let looped = GraphProto {
        node: vec![
            node("Add", &["v", "x"], &["next"], Vec::new()),
            node("ReduceSum", &["next"], &["sum"], vec![number("keepdims", 0)]),
            node("Less", &["sum", "most"], &["on"], Vec::new()),
        ],
        input: vec![info("round", 7), info("go", 9), info("v", 1)],
        output: vec![info("on", 9), info("next", 1)],
        ..GraphProto::default()
    };
    let nodes = vec![node("Loop", &["", "", "x"], &["y"], vec![body("body", looped)])];
    let most = TensorProto { name: "most".into(), data_type: 1, float_data: vec![100.0], ..TensorProto::default() };
    let cpu = Device::cpu();
    let model = Model::from_bytes(&model(nodes, vec![most], 1).encode_to_vec(), &cpu).unwrap();
    // Few rounds, whose runs are recorded, and more of them than a recording holds.
    for x in [40.0, 40.0, 20.0, 40.0, 1.0, 20.0, 1.0, 40.0, 20.0, 1.0, 1.0, 40.0f32] {
        let given = Tensor::from_slice(&[x], [1], &cpu);
        let y = model.infer(&[("x", &given)]).unwrap().tensor("y").unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [(100.0 / x).ceil() * x], "by {x}");
    }
}

#[test]
fn threads_that_infer_at_once_get_their_own_results() {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&branches().encode_to_vec(), &cpu).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (model, cpu) = (&model, &cpu);
            scope.spawn(move || {
                for i in 0..50 {
                    let (a, n) = ((i % 5) as f32 - 2.0 + 0.1 * thread as f32, 1 + i % 3);
                    let y = model.infer(&[("x", &Tensor::full([n], a, cpu))]).unwrap().tensor("y").unwrap();
                    assert_eq!(y.to_vec::<f32>().unwrap(), vec![if a > 0.0 { -a } else { -a.min(0.0) }; n]);
                }
            });
        }
    });
}

#[test]
fn recorded_runs_tell_their_inputs_apart_and_hand_back_what_is_no_result() {
    // y = x · w + c, and with it an input, a constant of the device, one of the host and a shape.
    let numbers = TensorProto {
        name: "c".into(),
        data_type: 1,
        dims: vec![2],
        float_data: vec![0.5, 1.5],
        ..TensorProto::default()
    };
    let large = TensorProto {
        name: "large".into(),
        data_type: 1,
        dims: vec![2000],
        float_data: vec![7.0; 2000],
        ..TensorProto::default()
    };
    let same = |from: &str, to: &str| node("Identity", &[from], &[to], Vec::new());
    let nodes = vec![
        node("Mul", &["x", "w"], &["product"], Vec::new()),
        node("Add", &["product", "c"], &["y"], Vec::new()),
        same("w", "given"),
        same("large", "kept"),
        same("c", "small"),
        node("Shape", &["x"], &["sizes"], Vec::new()),
    ];
    let mut proto = model(nodes, vec![numbers, large], 1);
    let graph = proto.graph.as_mut().unwrap();
    graph.input.push(info("w", 1));
    graph.output.extend([info("given", 1), info("kept", 1), info("small", 1), info("sizes", 7)]);
    let cpu = Device::cpu();
    let model = Model::from_bytes(&proto.encode_to_vec(), &cpu).unwrap();
    let pair = |a: f32, b: f32| Tensor::from_slice(&[a, b], [2], &cpu);
    let mut before = cpu.stats();
    for i in 0..6 {
        // The run that is recorded is among runs 0 to 2, which pass one tensor for both inputs. Runs 3 to 5 replay the recording with
        // two different tensors, of which `w` has not been computed yet.
        let x = pair(i as f32, 2.0);
        let w = if i < 3 { x.clone() } else { pair(3.0, 4.0).mul(2.0) };
        let (ws, expect) = match i < 3 {
            true => ([i as f32, 2.0], [(i * i) as f32 + 0.5, 5.5]),
            false => ([6.0, 8.0], [6.0 * i as f32 + 0.5, 17.5]),
        };
        let results = model.infer(&[("x", &x), ("w", &w)]).unwrap();
        let floats = |name: &str| results.tensor(name).unwrap().to_vec::<f32>().unwrap();
        assert_eq!((floats("y"), floats("given")), (expect.to_vec(), ws.to_vec()), "run {i}");
        assert_eq!((floats("kept").len(), floats("small")), (2000, vec![0.5, 1.5]));
        assert_eq!(results.value("sizes").unwrap().to_i64s().unwrap(), [2]);
        if i == 4 {
            before = cpu.stats();
        }
    }
    assert_eq!(cpu.stats().plans_compiled, before.plans_compiled);
    let error = model.infer(&[("x", &pair(1.0, 2.0)), ("w", &Tensor::zeros([3], lazuli::DType::F32, &cpu))]);
    assert!(error.unwrap_err().to_string().contains("broadcast"), "shapes are checked as in a first run");
}

#[test]
fn shapes_are_computed_in_64_bits_and_what_does_not_fit_a_device_is_an_error() {
    let nodes = |last: NodeProto| {
        vec![node("Shape", &["x"], &["s"], Vec::new()), node("Mul", &["s", "big"], &["product"], Vec::new()), last]
    };
    let big = || vec![ints("big", &[1], &[1 << 40]), ints("axes", &[2], &[2, 1])];
    let kept = model(nodes(node("Identity", &["product"], &["y"], Vec::new())), big(), 7);
    assert_eq!(run(&kept, &[0.0; 3]).unwrap().to_i64s().unwrap(), [3 << 40]);
    let on_device = model(nodes(node("Tile", &["product", "axes"], &["y"], Vec::new())), big(), 7);
    let error = run(&on_device, &[0.0; 3]).unwrap_err().to_string();
    assert!(error.contains("3298534883328 does not fit i32, which stores int64 on a device"), "{error}");
}

#[test]
fn absurd_sizes_are_errors_before_anything_is_allocated() {
    let check = |nodes: Vec<NodeProto>, constants: Vec<TensorProto>, output: i32, words: &str| {
        let error = run(&model(nodes, constants, output), &[1.0, 2.0]).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let huge = 1i64 << 40;
    let range = vec![node("Range", &["zero", "huge", "one"], &["y"], Vec::new())];
    let numbers = vec![ints("zero", &[], &[0]), ints("huge", &[], &[huge]), ints("one", &[], &[1])];
    check(range, numbers, 7, "a list of 1099511627776 elements");
    let mode = AttributeProto { name: "mode".into(), kind: 3, s: b"edge".to_vec(), ..AttributeProto::default() };
    let pad = vec![node("Pad", &["x", "pads"], &["y"], vec![mode])];
    check(pad, vec![ints("pads", &[2], &[huge, huge])], 1, "longer than i32 can count");
    let pad = vec![node("Pad", &["x", "pads"], &["y"], Vec::new())];
    check(pad, vec![ints("pads", &[2], &[i64::MIN, 0])], 1, "more than can be addressed");
}

#[test]
fn shapes_that_are_not_declared_follow_from_symbols() {
    let symbol = |name: &str| DimProto { value: Some(DimKind::Param(name.into())) };
    let size = |n: i64| DimProto { value: Some(DimKind::Value(n)) };
    let shape = TensorShapeProto { dim: vec![symbol("batch"), symbol("length"), size(4)] };
    let tensor = TensorTypeProto { elem_type: 1, shape: Some(shape) };
    let x = ValueInfoProto { name: "x".into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) };
    let declared = |nodes: Vec<NodeProto>, constants: Vec<TensorProto>| {
        let mut model = model(nodes, constants, 1);
        model.graph.as_mut().unwrap().input = vec![x.clone()];
        Model::from_bytes(&model.encode_to_vec(), &Device::cpu()).unwrap().outputs()[0].to_string()
    };
    let order = AttributeProto { name: "perm".into(), kind: 7, ints: vec![2, 0, 1], ..AttributeProto::default() };
    let transposed = || node("Transpose", &["x"], &["t"], vec![order.clone()]);
    let flat = vec![transposed(), node("Reshape", &["t", "shape"], &["y"], Vec::new())];
    assert_eq!(declared(flat, vec![ints("shape", &[3], &[2, -1, 0])]), "y: float[2, ?, length]");
    let same = vec![transposed(), node("Relu", &["t"], &["y"], Vec::new())];
    assert_eq!(declared(same, Vec::new()), "y: float[4, batch, length]");
    // Which elements are not zero only numbers can tell.
    let counted =
        vec![node("NonZero", &["x"], &["n"], Vec::new()), node("Cast", &["n"], &["y"], vec![number("to", 1)])];
    assert_eq!(declared(counted, Vec::new()), "y: float");
}

/// Constant folding: a cast and a transposition of a weight are computed in the first run only, while a node that draws random
/// numbers is computed in every run although it has no inputs.
#[test]
fn what_follows_from_constants_is_computed_once() {
    let n = 2048;
    let bytes = TensorProto {
        name: "w".into(),
        dims: vec![2, n],
        data_type: 2,
        raw_data: (0..2 * n).map(|i| i as u8).collect(),
        ..TensorProto::default()
    };
    let scale = TensorProto { name: "s".into(), data_type: 1, float_data: vec![0.5], ..TensorProto::default() };
    let nodes = vec![
        node("DequantizeLinear", &["w", "s"], &["wide"], Vec::new()),
        node("Transpose", &["wide"], &["turned"], Vec::new()),
        node("RandomUniformLike", &["s"], &["chance"], Vec::new()),
        node("MatMul", &["turned", "x"], &["product"], Vec::new()),
        node("Add", &["product", "chance"], &["y"], Vec::new()),
    ];
    let cpu = Device::cpu();
    let model = Model::from_bytes(&model(nodes, vec![bytes, scale], 1).encode_to_vec(), &cpu).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 1.0], [2], &cpu);
    let run = || model.run(&[("x", &x)]).unwrap().tensor("y").unwrap();
    let (first, second) = (run(), run());
    for y in [&first, &second] {
        let ops: Vec<String> = y.explain().unwrap().kernels.into_iter().flat_map(|kernel| kernel.ops).collect();
        // Drawing a random number casts once; widening the weights would cast a second time.
        let n_casts = ops.iter().filter(|op| *op == "cast").count();
        assert!(ops.iter().any(|op| op == "matmul") && n_casts == 1, "{ops:?}");
    }
    // Both rows of the weights have the same bytes, so a sum is twice half a byte.
    for (i, y) in first.to_vec::<f32>().unwrap().iter().enumerate() {
        assert!((0.0..=1.0).contains(&(y - (i % 256) as f32)), "{i}: {y}");
    }
}
