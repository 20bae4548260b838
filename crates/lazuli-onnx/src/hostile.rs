//! Tests: files that are cut, cyclic, absurd or malicious are errors, never panics, and nothing outside a model's folder is
//! read. Models are written with the crate's own messages.

use lazuli::{Device, Error, Tensor};
use prost::Message;

use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, StringStringEntryProto,
    TensorProto, TensorTypeProto, TypeKind, TypeProto, ValueInfoProto,
};
use crate::{Model, example_bytes};

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        ..NodeProto::default()
    }
}

fn info(name: &str) -> ValueInfoProto {
    let tensor = TensorTypeProto { elem_type: 1, shape: None };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
}

fn graph(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto { node: nodes, input: vec![info("x")], output: vec![info("y")], ..GraphProto::default() }
}

fn model(graph: GraphProto) -> ModelProto {
    let opset = OperatorSetIdProto { domain: String::new(), version: 17 };
    ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset], ..ModelProto::default() }
}

/// That a model is refused when it is loaded, with these words.
#[track_caller]
fn check_refused(model: &ModelProto, words: &str) {
    let error = match Model::from_bytes(&model.encode_to_vec(), &Device::cpu()) {
        Ok(_) => panic!("it was loaded; `{words}` was expected"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(words), "{error}");
}

#[test]
fn graphs_that_cannot_be_run_are_refused_by_name() {
    check_refused(&model(graph(vec![node("Relu", &["y"], &["y"])])), "`y` is made only later");
    let cycle = vec![node("Relu", &["b"], &["a"]), node("Relu", &["a"], &["b"]), node("Relu", &["b"], &["y"])];
    check_refused(&model(graph(cycle)), "cycle");
    check_refused(&model(graph(vec![node("Relu", &["w"], &["y"])])), "`w` is no input, no initialiser");
    check_refused(&model(graph(vec![node("Relu", &["x"], &["z"])])), "output `y` is made by no node");
    check_refused(&model(graph(vec![node("Relu", &["x"], &["y"]), node("Relu", &["x"], &["y"])])), "made twice");
    check_refused(
        &ModelProto { opset_import: Vec::new(), ..model(graph(vec![node("Relu", &["x"], &["y"])])) },
        "operators of the set `ai.onnx`, which the file does not import: `y` (Relu)",
    );
    check_refused(&ModelProto { graph: None, ..model(graph(Vec::new())) }, "no graph");
}

#[test]
fn everything_that_is_not_supported_is_named_at_once() {
    let strange = AttributeProto { name: "colour".into(), kind: 2, i: 1, ..AttributeProto::default() };
    let coloured = NodeProto { attribute: vec![strange], name: "third".into(), ..node("Relu", &["b"], &["y"]) };
    let text = |name: &str, s: &str| AttributeProto {
        name: name.into(),
        kind: 3,
        s: s.as_bytes().to_vec(),
        ..AttributeProto::default()
    };
    let number = |name: &str, i: i64| AttributeProto { name: name.into(), kind: 2, i, ..AttributeProto::default() };
    let with = |op: &str, output: &str, attribute: Vec<AttributeProto>| NodeProto {
        attribute,
        ..node(op, &["x", "x", "x"], &[output])
    };
    let activations = AttributeProto {
        name: "activations".into(),
        kind: 8,
        strings: vec![b"Sine".to_vec()],
        ..AttributeProto::default()
    };
    let foreign = NodeProto { domain: "own".into(), ..node("Relu", &["x"], &["k"]) };
    let strings = TensorTypeProto { elem_type: 8, shape: None };
    let kind = TypeProto { value: Some(TypeKind::Tensor(strings)) };
    let words = ValueInfoProto { name: "words".into(), r#type: Some(kind) };
    // A branch that no run may ever take is looked at, too.
    let branch = |name: &str| AttributeProto {
        name: name.into(),
        kind: 5,
        g: Some(GraphProto {
            input: Vec::new(),
            output: vec![info("z")],
            ..graph(vec![with("DepthToSpace", "z", vec![text("mode", "roughly")])])
        }),
        ..AttributeProto::default()
    };
    let nodes = vec![
        node("Frobnicate", &["x"], &["a"]),
        node("Munge", &["a"], &["b"]),
        coloured,
        with("Pad", "c", vec![text("mode", "spiral")]),
        with("Conv", "d", vec![text("auto_pad", "SAME")]),
        with("Resize", "e", vec![text("mode", "quintic"), text("coordinate_transformation_mode", "elsewhere")]),
        with("Resize", "f", vec![text("nearest_mode", "dearest")]),
        with("RNN", "g", vec![activations]),
        with("Cast", "h", vec![number("to", 8)]),
        with("LpNormalization", "i", vec![number("p", 3)]),
        with("ScatterND", "j", vec![text("reduction", "mean")]),
        foreign,
        NodeProto { attribute: vec![branch("then_branch"), branch("else_branch")], ..node("If", &["x"], &["l"]) },
    ];
    let whole = GraphProto { input: vec![info("x"), words], ..graph(nodes) };
    let error = Model::from_bytes(&model(whole).encode_to_vec(), &Device::cpu()).err().map(|e| e.to_string());
    let error = error.unwrap_or_default();
    for words in [
        "operator Frobnicate: `a` (Frobnicate)",
        "operator Munge: `b`",
        "attribute `colour` of operator Relu: `third`",
        "attribute `mode` = `spiral` of operator Pad: `c` (Pad)",
        "attribute `auto_pad` = `SAME` of operator Conv: `d`",
        "attribute `mode` = `quintic` of operator Resize: `e`",
        "attribute `coordinate_transformation_mode` = `elsewhere` of operator Resize: `e`",
        "attribute `nearest_mode` = `dearest` of operator Resize: `f`",
        "attribute `activations` = `Sine` of operator RNN: `g`",
        "element type string is not supported: `words`, `h` (Cast)",
        "attribute `p` = 3 of operator LpNormalization: `i`",
        "attribute `reduction` = `mean` of operator ScatterND: `j`",
        "operators of the set `own`, which the file does not import: `k` (Relu)",
        "attribute `mode` = `roughly` of operator DepthToSpace: `z` (DepthToSpace), `z` (DepthToSpace)",
    ] {
        assert!(error.contains(words), "`{words}` is not in\n{error}");
    }
}

#[test]
fn a_loop_of_absurdly_many_rounds_ends_with_an_error() {
    let number = |name: &str, data_type: i32, value: i64| TensorProto {
        name: name.into(),
        data_type,
        int64_data: if data_type == 7 { vec![value] } else { Vec::new() },
        int32_data: if data_type == 9 { vec![value as i32] } else { Vec::new() },
        ..TensorProto::default()
    };
    let elem = |name: &str, elem_type: i32| {
        let tensor = TensorTypeProto { elem_type, shape: None };
        ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
    };
    // The body carries a value and collects it in every round.
    let body = GraphProto {
        node: vec![node("Identity", &["go"], &["on"]), node("Neg", &["v"], &["w"])],
        input: vec![elem("round", 7), elem("go", 9), info("v")],
        output: vec![elem("on", 9), info("w"), info("w")],
        ..GraphProto::default()
    };
    let attribute = AttributeProto { name: "body".into(), kind: 5, g: Some(body), ..AttributeProto::default() };
    for v in ["x", "small"] {
        let looped = NodeProto { attribute: vec![attribute.clone()], ..node("Loop", &["n", "", v], &["last", "y"]) };
        let small = TensorProto { name: "small".into(), data_type: 1, float_data: vec![1.0], ..TensorProto::default() };
        let whole = GraphProto { initializer: vec![number("n", 7, 1 << 62), small], ..graph(vec![looped]) };
        let model = Model::from_bytes(&model(whole).encode_to_vec(), &Device::cpu()).unwrap();
        let x = Tensor::from_slice(&[1.0f32], [1], &Device::cpu());
        let error = model.run(&[("x", &x)]).expect_err("has no end").to_string();
        assert!(error.contains("more than 262144 times"), "{error}");
    }
}

fn with_constant(tensor: TensorProto) -> ModelProto {
    let nodes = vec![node("Add", &["x", "w"], &["y"])];
    model(GraphProto { initializer: vec![TensorProto { name: "w".into(), ..tensor }], ..graph(nodes) })
}

#[test]
fn constants_that_lie_about_their_size_are_refused() {
    let float = |dims: &[i64]| TensorProto { dims: dims.to_vec(), data_type: 1, ..TensorProto::default() };
    check_refused(&with_constant(float(&[i64::MAX, i64::MAX])), "more elements than can be addressed");
    check_refused(&with_constant(float(&[1 << 40])), "0 are stored");
    check_refused(&with_constant(float(&[-1])), "negative");
    check_refused(&with_constant(TensorProto { raw_data: vec![0; 7], ..float(&[2]) }), "no whole float");
    check_refused(&with_constant(TensorProto { data_type: 99, ..float(&[0]) }), "99 is no element type");
    check_refused(&with_constant(TensorProto { data_type: 8, ..float(&[0]) }), "string is not supported");
}

#[test]
fn nothing_outside_the_folder_of_a_model_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("models");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(folder.path().join("secret"), [0u8; 8]).unwrap();
    std::fs::write(inside.join("weights"), 2.0f32.to_le_bytes()).unwrap();
    let load = |location: &str| {
        let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
        let external = TensorProto {
            dims: vec![1],
            data_type: 1,
            data_location: 1,
            external_data: vec![entry("location", location), entry("length", "4")],
            ..TensorProto::default()
        };
        let path = inside.join("model.onnx");
        std::fs::write(&path, with_constant(external).encode_to_vec()).unwrap();
        Model::load(&path, &Device::cpu())
    };
    let x = Tensor::from_slice(&[1.0f32], [1], &Device::cpu());
    let y = load("weights").unwrap().run(&[("x", &x)]).unwrap().tensor("y").unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [3.0]);
    let secret = folder.path().join("secret");
    for location in ["../secret", &secret.to_string_lossy(), "a/../../secret", ""] {
        let error = load(location).err().expect("it is outside").to_string();
        assert!(error.contains("outside the model's folder"), "{error}");
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&secret, inside.join("link")).unwrap();
        let error = load("link").err().expect("it leads outside").to_string();
        assert!(error.contains("outside the model's folder"), "{error}");
    }
    assert!(matches!(load("missing").err(), Some(Error::Io(_))));
}

#[test]
fn deep_nesting_and_functions_without_end_are_errors() {
    let mut inner = graph(vec![node("Relu", &["x"], &["y"])]);
    for _ in 0..200 {
        let body = AttributeProto { name: "then_branch".into(), kind: 5, g: Some(inner), ..AttributeProto::default() };
        inner = graph(vec![NodeProto { attribute: vec![body], ..node("If", &["x"], &["y"]) }]);
    }
    check_refused(&model(inner), "no ONNX file");
    let opset = |domain: &str| OperatorSetIdProto { domain: domain.into(), version: 17 };
    let call = |op: &str, x: &str, y: &str| NodeProto { domain: "own".into(), ..node(op, &[x], &[y]) };
    let function = |name: &str, nodes: Vec<NodeProto>| FunctionProto {
        name: name.into(),
        domain: "own".into(),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: nodes,
        opset_import: vec![opset(""), opset("own")],
        ..FunctionProto::default()
    };
    let calls = |functions: Vec<FunctionProto>| ModelProto {
        functions,
        opset_import: vec![opset(""), opset("own")],
        ..model(graph(vec![call("f0", "x", "y")]))
    };
    check_refused(&calls(vec![function("f0", vec![call("f0", "x", "y")])]), "deep");
    // Each calls the next one twice, thirty times over.
    let doubling = |i: usize| {
        let next = format!("f{}", i + 1);
        function(&format!("f{i}"), vec![call(&next, "x", "a"), call(&next, "a", "y")])
    };
    let mut functions: Vec<FunctionProto> = (0..30).map(doubling).collect();
    functions.push(function("f30", vec![node("Relu", &["x"], &["y"])]));
    check_refused(&calls(functions), "nodes");
}

#[test]
fn wrong_inputs_are_errors_that_name_the_declared_ones() {
    let cpu = Device::cpu();
    let model = Model::from_bytes(&example_bytes(), &cpu).unwrap();
    let check = |name: &str, x: &Tensor, words: &str| {
        let error = model.run(&[(name, x)]).expect_err("it is wrong").to_string();
        assert!(error.contains(words), "{error}");
    };
    let good = Tensor::from_slice(&[1.0f32], [1], &cpu);
    check("z", &good, "there is no input `z`; the inputs are `x: float[n]`");
    check("x", &Tensor::from_slice(&[1i32], [1], &cpu), "`x: float[n]`: float is stored as f32, not as i32");
    check("x", &good.reshape([1, 1]), "input `x: float[n]` is given [1, 1]");
    assert!(model.run(&[]).expect_err("nothing is given").to_string().contains("input `x: float[n]` is missing"));
}

/// A model with many kinds of fields, to be damaged.
fn rich() -> ModelProto {
    let ints = |name: &str, values: &[i64]| TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: 7,
        int64_data: values.to_vec(),
        ..TensorProto::default()
    };
    let weights = TensorProto {
        name: "w".into(),
        dims: vec![2, 2],
        data_type: 1,
        raw_data: [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect(),
        ..TensorProto::default()
    };
    let axis = |i: i64| AttributeProto { name: "axis".into(), kind: 2, i, ..AttributeProto::default() };
    let branch = |name: &str, op: &str| AttributeProto {
        name: name.into(),
        kind: 5,
        g: Some(GraphProto { input: Vec::new(), output: vec![info("z")], ..graph(vec![node(op, &["m"], &["z"])]) }),
        ..AttributeProto::default()
    };
    let nodes = vec![
        node("Reshape", &["x", "s"], &["r"]),
        node("MatMul", &["r", "w"], &["m"]),
        node("Shape", &["m"], &["n"]),
        NodeProto { attribute: vec![axis(0)], ..node("Concat", &["n", "s"], &["c"]) },
        node("ReduceMax", &["c"], &["most"]),
        node("Equal", &["most", "two"], &["cond"]),
        NodeProto {
            attribute: vec![branch("then_branch", "Relu"), branch("else_branch", "Neg")],
            ..node("If", &["cond"], &["i"])
        },
        node("Slice", &["i", "zero", "two", "zero", "one"], &["y"]),
    ];
    let constants = vec![weights, ints("s", &[-1, 2]), ints("two", &[2]), ints("zero", &[0]), ints("one", &[1])];
    model(GraphProto { initializer: constants, ..graph(nodes) })
}

#[test]
fn damaged_files_are_errors_or_models_but_never_panics() {
    let cpu = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0, 4.0], [4], &cpu);
    let run = |bytes: &[u8]| -> lazuli::Result<Vec<f32>> {
        Model::from_bytes(bytes, &cpu)?.run(&[("x", &x)])?.tensor("y")?.to_vec()
    };
    let whole = rich().encode_to_vec();
    assert_eq!(run(&whole).unwrap(), [0.0, 0.0, 15.0, 22.0]);
    for end in 0..whole.len() {
        let _ = run(&whole[..end]);
    }
    // Xorshift, so that a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut n_loaded = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, random(256) as u8),
            }
        }
        n_loaded += run(&bytes).is_ok() as usize;
    }
    assert!(n_loaded > 100, "damage went deeper than it should: {n_loaded} still run");
}
