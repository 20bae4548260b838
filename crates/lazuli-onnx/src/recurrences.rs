//! Tests: LSTM, GRU and RNN give the same results in chunks of steps as recorded as a whole, also when a run is replayed, and sequences of
//! all lengths have a few structures.

use std::collections::{BTreeMap, BTreeSet};

use lazuli::{Device, Tensor};
use prost::Message;

use crate::Model;
use crate::behaviour::{info, model, node, number};
use crate::proto::{
    AttributeProto, DimKind, DimProto, GraphProto, ModelProto, NodeProto, TensorProto, TensorShapeProto,
    TensorTypeProto, TypeKind, TypeProto, ValueInfoProto,
};

const N_HIDDEN: i64 = 5;
const N_FEATURES: i64 = 3;
const N_BATCH: i64 = 2;

fn weights(name: &str, dims: [i64; 3]) -> TensorProto {
    let n = dims.iter().product::<i64>();
    let float_data = (0..n).map(|i| ((i * 37 + 11) % 101) as f32 * 0.01 - 0.5).collect();
    TensorProto { name: name.into(), data_type: 1, dims: dims.to_vec(), float_data, ..TensorProto::default() }
}

/// An input `x` of `n_steps` steps, of any number of steps if None.
fn sequence(n_steps: Option<i64>) -> ValueInfoProto {
    let size = |n: i64| DimProto { value: Some(DimKind::Value(n)) };
    let first = n_steps.map_or(DimProto { value: Some(DimKind::Param("n".into())) }, size);
    let shape = Some(TensorShapeProto { dim: vec![first, size(N_BATCH), size(N_FEATURES)] });
    let tensor = TensorTypeProto { elem_type: 1, shape };
    ValueInfoProto { name: "x".into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
}

/// A model of an activation, a recurrence of its result, and the sum of both: the result of the activation is read again after the
/// recurrence.
fn recurrent(op: &str, n_gates: i64, direction: &str, n_steps: Option<i64>) -> Model {
    let n_directions = if direction == "bidirectional" { 2 } else { 1 };
    let text = |name: &str, s: &str| AttributeProto {
        name: name.into(),
        kind: 3,
        s: s.as_bytes().to_vec(),
        ..AttributeProto::default()
    };
    let attrs = vec![number("hidden_size", N_HIDDEN), text("direction", direction)];
    let nodes: Vec<NodeProto> = vec![
        node("Tanh", &["x"], &["bent"], Vec::new()),
        node(op, &["bent", "w", "r"], &["steps", "last"], attrs),
        node("ReduceMean", &["bent"], &["mean"], Vec::new()),
        node("Add", &["steps", "mean"], &["y"], Vec::new()),
    ];
    let constants = vec![
        weights("w", [n_directions, n_gates * N_HIDDEN, N_FEATURES]),
        weights("r", [n_directions, n_gates * N_HIDDEN, N_HIDDEN]),
    ];
    let whole = model(nodes, constants, 1);
    let graph = whole.graph.clone().unwrap();
    let output = vec![info("y", 1), info("last", 1)];
    let whole = ModelProto { graph: Some(GraphProto { input: vec![sequence(n_steps)], output, ..graph }), ..whole };
    Model::from_bytes(&whole.encode_to_vec(), &Device::cpu()).unwrap()
}

fn input(n_steps: usize) -> Tensor {
    let n = n_steps * (N_BATCH * N_FEATURES) as usize;
    let values = (0..n).map(|i| ((i * 53 + n_steps) % 97) as f32 * 0.02 - 1.0).collect();
    Tensor::from_vec(values, [n_steps, N_BATCH as usize, N_FEATURES as usize], &Device::cpu())
}

const KINDS: [(&str, i64, &str); 4] =
    [("LSTM", 4, "bidirectional"), ("LSTM", 4, "forward"), ("GRU", 3, "reverse"), ("RNN", 1, "forward")];

#[test]
fn a_recurrence_in_chunks_gives_what_it_gives_as_a_whole() {
    for (op, n_gates, direction) in KINDS {
        let model = recurrent(op, n_gates, direction, None);
        for n_steps in [1, 2, 3, 8, 15, 16, 64, 65, 150] {
            let x = input(n_steps);
            let whole = model.run(&[("x", &x)]).unwrap();
            // `infer` records the second run with inputs of these shapes and replays the recording in the third and fourth. The third
            // has other values, so that a recording which kept the values it was made with would be found in the fourth.
            for (i, scale) in [1.0, 1.0, 0.5, 1.0].into_iter().enumerate() {
                let scaled = x.mul(scale);
                let found = model.infer(&[("x", &scaled)]).unwrap();
                if scale != 1.0 {
                    continue;
                }
                for name in ["y", "last"] {
                    let expect = whole.tensor(name).unwrap();
                    let found = found.tensor(name).unwrap();
                    assert_eq!(found.shape().unwrap(), expect.shape().unwrap(), "{op} {direction} {n_steps} {name}");
                    let (found, expect) = (found.to_vec::<f32>().unwrap(), expect.to_vec::<f32>().unwrap());
                    assert!(found == expect, "{op} {direction} {n_steps} {name}, run {i}: {found:?}, not {expect:?}");
                }
            }
        }
    }
}

#[test]
fn sequences_of_all_lengths_share_a_few_structures() {
    for (op, n_gates, direction) in KINDS {
        let model = recurrent(op, n_gates, direction, None);
        let mut known: BTreeMap<String, BTreeSet<Vec<String>>> = BTreeMap::new();
        for n_steps in (1..=40).chain([64, 72, 129, 193, 200]) {
            for evaluation in model.explain(&[("x", &input(n_steps))]).unwrap() {
                // Compare structures and answers about sizes, but not the details of kernels, which differ between lengths of one plan.
                let mut edges = evaluation.explain.edges;
                edges.retain(|edge| !edge.starts_with("kernel "));
                known.entry(evaluation.of).or_default().insert(edges);
            }
        }
        // The evaluations are: before the recurrence, steps, joined steps, outputs.
        assert_eq!(known.len(), 4, "{:?}", known.keys());
        let n_directions = if direction == "bidirectional" { 2 } else { 1 };
        for (of, edges) in known {
            assert!(edges.len() <= 3 * n_directions, "{op} {direction}, {of}: {}", edges.len());
        }
    }
}

#[test]
fn a_sequence_whose_length_is_declared_is_one_evaluation() {
    let model = recurrent("LSTM", 4, "forward", Some(20));
    let evaluations = model.explain(&[("x", &input(20))]).unwrap();
    assert_eq!(evaluations.iter().map(|evaluation| &evaluation.of[..]).collect::<Vec<_>>(), ["outputs"]);
}

#[test]
fn a_condition_that_is_an_input_is_recorded() {
    let branch = |name: &str, op: &str| {
        let nodes = vec![node(op, &["x"], &["z"], Vec::new())];
        let graph = GraphProto { node: nodes, output: vec![info("z", 1)], ..GraphProto::default() };
        AttributeProto { name: name.into(), kind: 5, g: Some(graph), ..AttributeProto::default() }
    };
    let branches = vec![branch("then_branch", "Neg"), branch("else_branch", "Abs")];
    let mut proto = model(vec![node("If", &["cond"], &["y"], branches)], Vec::new(), 1);
    proto.graph.as_mut().unwrap().input.push(info("cond", 9));
    let cpu = Device::cpu();
    let model = Model::from_bytes(&proto.encode_to_vec(), &cpu).unwrap();
    let x = Tensor::from_slice(&[1.0f32, -2.0], [2], &cpu);
    for is_set in [true, true, true, false, false, true, false] {
        let cond = Tensor::full([1], is_set, &cpu);
        let y = model.infer(&[("x", &x), ("cond", &cond)]).unwrap().tensor("y").unwrap();
        let expect = if is_set { [-1.0, 2.0] } else { [1.0, 2.0] };
        assert_eq!(y.to_vec::<f32>().unwrap(), expect, "{is_set}");
    }
}
