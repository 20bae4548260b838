//! Values in files of their own, as ONNX's tests store them, and what a model's file says without loading it.

use std::collections::{BTreeMap, BTreeSet};

use lazuli::{Device, Result};
use prost::Message;

use crate::elem::ElemType;
use crate::fault;
use crate::literal;
use crate::model::{Form, decoded};
use crate::proto::{GraphProto, NodeProto, OptionalProto, SequenceProto, TensorProto, TypeKind, TypeProto};
use crate::value::{Kind, Value};

impl Value {
    /// Reads a value from the bytes of a file that holds nothing else, as ONNX's tests store them. `form` is what the model
    /// declares for it. The value stays on the host.
    ///
    /// ```
    /// use lazuli_onnx::{ElemType, Form, Value};
    /// // Two dimensions field 1, type float in field 2, elements in field 4.
    /// let bytes = [0x08, 1, 0x10, 1, 0x22, 4, 0, 0, 0x80, 0x3f];
    /// let value = Value::from_file_bytes(&bytes, Form::Tensor(ElemType::F32))?;
    /// assert_eq!(value.to_f64s()?, [1.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn from_file_bytes(bytes: &[u8], form: Form) -> Result<Value> {
        let no_value = |e: prost::DecodeError| fault::parse(format!("this is no file of a value: {e}"));
        let tensor = |proto: &TensorProto| literal::decode(proto, None).map(Value::from);
        let list = |proto: &SequenceProto| {
            if proto.elem_type > 1 && proto.tensor_values.is_empty() {
                return Err(fault::unsupported("sequences of other values than tensors"));
            }
            Ok(Value::sequence(proto.tensor_values.iter().map(tensor).collect::<Result<_>>()?))
        };
        match form {
            Form::Tensor(_) => tensor(&TensorProto::decode(bytes).map_err(no_value)?),
            Form::Sequence => list(&SequenceProto::decode(bytes).map_err(no_value)?),
            Form::Optional => {
                let proto = OptionalProto::decode(bytes).map_err(no_value)?;
                match (&proto.tensor_value, &proto.sequence_value) {
                    (Some(own), _) => tensor(own),
                    (None, Some(own)) => list(own),
                    (None, None) => Ok(Value::nothing()),
                }
            }
        }
    }

    /// The same value with its tensors on a device; integers that do not fit their storage there stay on the host.
    ///
    /// ```
    /// # use lazuli::Device;
    /// let value = lazuli_onnx::Value::from_i64s(&[2], vec![1, 2])?;
    /// assert_eq!(value.on_device(&Device::cpu())?.to_i64s()?, [1, 2]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn on_device(&self, device: &Device) -> Result<Value> {
        Ok(match &self.0 {
            Kind::Host(host) => match host.upload(device) {
                Ok(tensor) => Value(Kind::Device(tensor, host.elem)),
                Err(lazuli::Error::DType(_)) => self.clone(),
                Err(error) => return Err(error),
            },
            Kind::Sequence(values) => {
                Value::sequence(values.iter().map(|value| value.on_device(device)).collect::<Result<_>>()?)
            }
            _ => self.clone(),
        })
    }
}

/// What a model's file holds, without loading it: also of models that need what is not supported.
///
/// ```
/// let outline = lazuli_onnx::Outline::from_bytes(&lazuli_onnx::example_bytes())?;
/// assert_eq!(outline.operators["Add"], 1);
/// assert!(outline.types.contains("float"));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outline {
    /// How often each operator is there, bodies and functions included. Operators of other domains have theirs in front.
    pub operators: BTreeMap<String, usize>,
    /// The types of inputs and outputs: element types of tensors, or `sequence`, `optional`, `map`, `sparse`.
    pub types: BTreeSet<String>,
}

impl Outline {
    /// Reads the outline of a model from the bytes of its file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Outline> {
        let model = decoded(bytes)?;
        let mut outline = Outline::default();
        if let Some(graph) = &model.graph {
            outline.count_graph(graph);
            for info in graph.input.iter().chain(&graph.output) {
                outline.types.insert(type_name(info.r#type.as_ref()));
            }
        }
        for function in &model.functions {
            outline.count(&function.node);
        }
        Ok(outline)
    }

    fn count_graph(&mut self, graph: &GraphProto) {
        self.count(&graph.node);
    }

    fn count(&mut self, nodes: &[NodeProto]) {
        for node in nodes {
            let name = match &node.domain[..] {
                "" | "ai.onnx" => node.op_type.clone(),
                domain => format!("{domain}.{}", node.op_type),
            };
            *self.operators.entry(name).or_default() += 1;
            for attr in &node.attribute {
                attr.g.iter().chain(&attr.graphs).for_each(|graph| self.count_graph(graph));
            }
        }
    }
}

fn type_name(of: Option<&TypeProto>) -> String {
    match of.and_then(|of| of.value.as_ref()) {
        Some(TypeKind::Tensor(tensor)) => match ElemType::from_code(tensor.elem_type as i64) {
            Ok(elem) => elem.to_string(),
            Err(message) => message,
        },
        Some(TypeKind::Sequence(_)) => "sequence".into(),
        Some(TypeKind::Optional(_)) => "optional".into(),
        Some(TypeKind::Map(_)) => "map".into(),
        Some(TypeKind::Sparse(_)) => "sparse".into(),
        None => "none".into(),
    }
}
