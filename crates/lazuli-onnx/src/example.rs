//! The smallest model, for examples in the documentation.

use prost::Message;

use crate::proto::{
    DimKind, DimProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto, TensorTypeProto,
    TypeKind, TypeProto, ValueInfoProto,
};

/// The bytes of a model that computes `y = x + x` for a float vector of any length.
///
/// ```
/// assert!(lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &lazuli::Device::cpu()).is_ok());
/// ```
pub fn example_bytes() -> Vec<u8> {
    let vector = |name: &str| {
        let n = DimProto { value: Some(DimKind::Param("n".into())) };
        let tensor = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim: vec![n] }) };
        ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(TypeKind::Tensor(tensor)) }) }
    };
    let add = NodeProto {
        input: vec!["x".into(), "x".into()],
        output: vec!["y".into()],
        op_type: "Add".into(),
        ..NodeProto::default()
    };
    let graph =
        GraphProto { node: vec![add], input: vec![vector("x")], output: vec![vector("y")], ..GraphProto::default() };
    let opset = OperatorSetIdProto { domain: String::new(), version: 13 };
    ModelProto { ir_version: 8, graph: Some(graph), opset_import: vec![opset], ..ModelProto::default() }.encode_to_vec()
}
