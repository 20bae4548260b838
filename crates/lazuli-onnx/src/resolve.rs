//! From the messages of a file to a checked graph. Names become slots; a name that nothing makes, that is made twice or that
//! is used before it is made is an error; functions are expanded where they are called; operators, attributes and their values
//! that are not supported are collected, so that one error names all of them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use lazuli::{Device, Result};

use crate::call::Stop;
use crate::elem::ElemType;
use crate::fault;
use crate::graph::{Action, Attr, Attrs, Graph, Node, Slot};
use crate::literal;
use crate::ops;
use crate::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto};
use crate::value::Value;

/// How many nodes a model may have once its functions are expanded: functions that call functions twice each grow without
/// bound.
const MAX_NODES: usize = 1_000_000;
/// How deep functions may call functions.
const MAX_CALLS: usize = 32;
/// The oldest operator set whose meaning the rows know.
const OLDEST_OPSET: i64 = 6;

/// Checks a file and makes a graph of it.
///
/// `constants` are the initialisers of the main graph, each of which is dropped when it is on the device, so that weights are in
/// memory twice for one tensor at a time. What is not supported is added to `missing`.
pub fn resolve(
    model: &ModelProto,
    constants: Vec<TensorProto>,
    folder: Option<&Path>,
    device: &Device,
    missing: &mut Missing,
) -> Result<Graph> {
    let proto = model.graph.as_ref().ok_or_else(|| fault::parse("the file has no graph"))?;
    let mut functions = HashMap::new();
    for function in &model.functions {
        functions.insert((domain(&function.domain), function.name.as_str(), function.overload.as_str()), function);
    }
    let mut resolver = Resolver {
        functions,
        folder,
        device,
        opsets: opsets(&model.opset_import),
        attributes: Vec::new(),
        scopes: Vec::new(),
        missing,
        n_nodes: 0,
    };
    resolver.graph(proto, constants)
}

/// What a model needs and is not supported, and by which nodes, constants, inputs or outputs it is asked for.
#[derive(Default)]
pub struct Missing(BTreeMap<String, Vec<String>>);

impl Missing {
    /// Adds one thing that somebody asks for.
    pub fn note(&mut self, what: impl Into<String>, by: impl Into<String>) {
        self.0.entry(what.into()).or_default().push(by.into());
    }

    /// An error that names all of it, if there is anything.
    pub fn check(&self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let lines = self.0.iter().map(|(what, nodes)| {
            let more = if nodes.len() > 5 { format!(" and {} more", nodes.len() - 5) } else { String::new() };
            format!("\n  {what}: {}{more}", nodes.iter().take(5).cloned().collect::<Vec<_>>().join(", "))
        });
        Err(fault::unsupported(format!("the model needs what is not supported:{}", lines.collect::<String>())))
    }
}

fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

fn opsets(imports: &[OperatorSetIdProto]) -> HashMap<String, i64> {
    imports.iter().map(|import| (domain(&import.domain).to_string(), import.version)).collect()
}

struct Resolver<'a> {
    functions: HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>,
    folder: Option<&'a Path>,
    device: &'a Device,
    /// Versions of operator sets, of the file or of the function that is being expanded.
    opsets: HashMap<String, i64>,
    /// What the functions that are being expanded were called with, innermost last.
    attributes: Vec<HashMap<&'a str, &'a AttributeProto>>,
    /// The graphs that are being built, innermost last.
    scopes: Vec<Scope>,
    missing: &'a mut Missing,
    n_nodes: usize,
}

/// A graph that is being built.
#[derive(Default)]
struct Scope {
    graph: Graph,
    names: HashMap<String, Slot>,
    /// Whether the names of the graphs around are hidden: a function sees its inputs alone.
    is_closed: bool,
}

impl Scope {
    fn slot(&mut self) -> Slot {
        self.graph.n_slots += 1;
        self.graph.n_slots - 1
    }

    /// A new slot for a name.
    fn define(&mut self, name: &str) -> Result<Slot> {
        let slot = self.slot();
        match self.names.insert(name.to_string(), slot) {
            None => Ok(slot),
            Some(_) => Err(fault::parse(format!("`{name}` is made twice"))),
        }
    }
}

impl<'a> Resolver<'a> {
    fn scope(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("a graph is being built")
    }

    /// A graph with its initialisers, which for the main graph are `constants`.
    fn graph(&mut self, proto: &'a GraphProto, constants: Vec<TensorProto>) -> Result<Graph> {
        self.scopes.push(Scope::default());
        for input in &proto.input {
            let slot = self.scope().define(&input.name)?;
            self.scope().graph.inputs.push(slot);
        }
        for tensor in &proto.sparse_initializer {
            let name = tensor.values.as_ref().map_or("", |values| &values.name);
            self.missing.note("sparse initialisers", format!("`{name}`"));
        }
        for tensor in &proto.initializer {
            self.constant(tensor)?;
        }
        for tensor in constants {
            self.constant(&tensor)?;
        }
        self.nodes(&proto.node)?;
        for output in &proto.output {
            let slot = self.lookup(self.scopes.len() - 1, &output.name);
            let slot = slot.ok_or_else(|| fault::parse(format!("output `{}` is made by no node", output.name)))?;
            self.scope().graph.outputs.push(slot);
        }
        let mut graph = self.scopes.pop().expect("pushed above").graph;
        graph.find_last_uses();
        Ok(graph)
    }

    fn constant(&mut self, tensor: &TensorProto) -> Result<()> {
        let constant = match ElemType::from_code(tensor.data_type as i64) {
            Ok(_) => literal::constant(tensor, self.folder, self.device)?,
            Err(message) => {
                self.missing.note(message, format!("initialiser `{}`", tensor.name));
                Value::nothing()
            }
        };
        // An initialiser with the name of an input is the input's default.
        let known = self.scope().names.get(&tensor.name).copied();
        let slot = match known {
            Some(slot) if self.scope().graph.inputs.contains(&slot) => slot,
            _ => self.scope().define(&tensor.name)?,
        };
        self.scope().graph.constants.push((slot, constant));
        Ok(())
    }

    fn nodes(&mut self, nodes: &'a [NodeProto]) -> Result<()> {
        for (i, node) in nodes.iter().enumerate() {
            self.n_nodes += 1;
            if self.n_nodes > MAX_NODES {
                return Err(fault::parse(format!("more than {MAX_NODES} nodes")));
            }
            let mut inputs = Vec::with_capacity(node.input.len());
            for name in &node.input {
                inputs.push(match name.is_empty() {
                    true => None,
                    false => {
                        Some(self.lookup(self.scopes.len() - 1, name).ok_or_else(|| unknown(name, node, &nodes[i..]))?)
                    }
                });
            }
            self.node(node, inputs)?;
        }
        Ok(())
    }

    /// The slot of a name; a name of a graph around becomes a capture of every graph between.
    fn lookup(&mut self, level: usize, name: &str) -> Option<Slot> {
        if let Some(slot) = self.scopes[level].names.get(name) {
            return Some(*slot);
        }
        if level == 0 || self.scopes[level].is_closed {
            return None;
        }
        let outer = self.lookup(level - 1, name)?;
        let scope = &mut self.scopes[level];
        let slot = scope.slot();
        scope.names.insert(name.to_string(), slot);
        scope.graph.captures.push((outer, slot));
        Some(slot)
    }

    fn node(&mut self, proto: &'a NodeProto, inputs: Vec<Option<Slot>>) -> Result<()> {
        let set = domain(&proto.domain);
        let by_name = |overload: &'a str| (set, proto.op_type.as_str(), overload);
        if let Some(function) = self.functions.get(&by_name("")).copied() {
            return self.call(proto, function, inputs);
        }
        let name = label(proto);
        let imported = self.opsets.get(set).copied();
        let opset = imported.unwrap_or(i64::MAX);
        let action = match (set, proto.op_type.as_str()) {
            ("", "If") => Some(Action::If),
            ("", "Loop") => Some(Action::Loop),
            ("", "Scan") if opset >= 9 => Some(Action::Scan),
            _ => ops::find(set, &proto.op_type).map(Action::Row),
        };
        let attrs = self.attrs(proto)?;
        let complaint = match &action {
            _ if imported.is_none() => Some(format!(
                "operators of the set `{}`, which the file does not import",
                if set.is_empty() { "ai.onnx" } else { set }
            )),
            None => Some(format!("operator {}", shown(set, &proto.op_type))),
            Some(_) if set.is_empty() && opset < OLDEST_OPSET => {
                Some(format!("operator set {opset}, older than {OLDEST_OPSET}"))
            }
            Some(Action::Row(row)) if opset < row.since => {
                Some(format!("operator {} before operator set {}", proto.op_type, row.since))
            }
            Some(Action::Row(row)) => {
                let known = |name: &str| row.attrs.contains(&name);
                let strange = attrs.0.keys().find(|name| !known(name));
                strange.map(|attr| format!("attribute `{attr}` of operator {}", proto.op_type))
            }
            Some(Action::If) => missing_body(&attrs, &["then_branch", "else_branch"]),
            Some(_) => missing_body(&attrs, &["body"]),
        };
        let mut outputs = Vec::with_capacity(proto.output.len());
        for name in &proto.output {
            outputs.push(match name.is_empty() {
                true => None,
                false => Some(self.scope().define(name)?),
            });
        }
        match (complaint, action) {
            (None, Some(action)) => {
                let (dead, is_constant, kept, folded) = Default::default();
                let node = Node { name, action, inputs, outputs, attrs, opset, dead, is_constant, kept, folded };
                for refused in node.checks().iter().filter_map(|check| check(&node).err()) {
                    if let Stop::Failed(error) = refused {
                        self.missing.note(&error.fault().message, &node.name);
                    }
                }
                self.scope().graph.nodes.push(node);
            }
            (complaint, _) => self.missing.note(complaint.unwrap_or_default(), name),
        }
        Ok(())
    }

    /// Expands a function in place: its names are its own, its inputs and outputs are slots of the caller.
    fn call(&mut self, proto: &'a NodeProto, function: &'a FunctionProto, inputs: Vec<Option<Slot>>) -> Result<()> {
        let name = label(proto);
        if self.attributes.len() >= MAX_CALLS {
            return Err(fault::parse(format!("node {name}: functions call functions more than {MAX_CALLS} deep")));
        }
        let mut given: HashMap<&str, &AttributeProto> =
            function.attribute_proto.iter().map(|attr| (attr.name.as_str(), attr)).collect();
        for attr in &proto.attribute {
            given.extend(self.referred(attr));
        }
        let mut names = HashMap::new();
        for (parameter, slot) in function.input.iter().zip(&inputs) {
            if let Some(slot) = slot {
                names.insert(parameter.clone(), *slot);
            }
        }
        // An input that the caller leaves out is an empty name in the body.
        let absent: Vec<&String> = function.input.iter().filter(|name| !names.contains_key(*name)).collect();
        let outer_opsets = std::mem::replace(&mut self.opsets, opsets(&function.opset_import));
        let outer_names = std::mem::replace(&mut self.scope().names, names);
        let outer_closed = std::mem::replace(&mut self.scope().is_closed, true);
        self.attributes.push(given);
        let expanded = self.function_nodes(function, &absent);
        self.attributes.pop();
        let names = std::mem::replace(&mut self.scope().names, outer_names);
        self.scope().is_closed = outer_closed;
        self.opsets = outer_opsets;
        expanded?;
        for (output, inner) in proto.output.iter().zip(&function.output) {
            let Some(slot) = names.get(inner) else {
                return Err(fault::parse(format!("node {name}: output `{inner}` of its function is made by no node")));
            };
            if !output.is_empty() && self.scope().names.insert(output.clone(), *slot).is_some() {
                return Err(fault::parse(format!("`{output}` is made twice")));
            }
        }
        Ok(())
    }

    fn function_nodes(&mut self, function: &'a FunctionProto, absent: &[&String]) -> Result<()> {
        for (i, node) in function.node.iter().enumerate() {
            self.n_nodes += 1;
            if self.n_nodes > MAX_NODES {
                return Err(fault::parse(format!("more than {MAX_NODES} nodes")));
            }
            let mut inputs = Vec::with_capacity(node.input.len());
            for name in &node.input {
                inputs.push(match name.is_empty() || absent.contains(&name) {
                    true => None,
                    false => {
                        let slot = self.lookup(self.scopes.len() - 1, name);
                        Some(slot.ok_or_else(|| unknown(name, node, &function.node[i..]))?)
                    }
                });
            }
            self.node(node, inputs)?;
        }
        Ok(())
    }

    /// An attribute, or what the function was called with for it; None if the caller left it out.
    fn referred(&self, attr: &'a AttributeProto) -> Option<(&'a str, &'a AttributeProto)> {
        match attr.ref_attr_name.is_empty() {
            true => Some((attr.name.as_str(), attr)),
            false => {
                let given = self.attributes.last()?.get(attr.ref_attr_name.as_str())?;
                Some((attr.name.as_str(), given))
            }
        }
    }

    fn attrs(&mut self, proto: &'a NodeProto) -> Result<Attrs> {
        let mut attrs = Attrs::default();
        for attr in &proto.attribute {
            let Some((name, attr)) = self.referred(attr) else { continue };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let value = match attr.kind {
                1 => Attr::Float(attr.f),
                2 => Attr::Int(attr.i),
                3 => Attr::Text(text(&attr.s)),
                4 => {
                    let tensor = attr.t.as_ref();
                    let tensor = tensor.ok_or_else(|| fault::parse(format!("attribute `{name}` has no tensor")))?;
                    if let Err(message) = ElemType::from_code(tensor.data_type as i64) {
                        self.missing.note(message, label(proto));
                        continue;
                    }
                    Attr::Tensor(literal::constant(tensor, self.folder, self.device)?)
                }
                5 => {
                    let body = attr.g.as_ref();
                    let body = body.ok_or_else(|| fault::parse(format!("attribute `{name}` has no graph")))?;
                    Attr::Graph(Arc::new(self.graph(body, Vec::new())?))
                }
                6 => Attr::Floats(attr.floats.clone()),
                7 => Attr::Ints(attr.ints.clone()),
                8 => Attr::Texts(attr.strings.iter().map(|bytes| text(bytes)).collect()),
                // The type of an optional or a sequence: values carry their types.
                13 => continue,
                kind => {
                    self.missing.note(format!("attribute `{name}` of kind {kind}"), label(proto));
                    continue;
                }
            };
            attrs.0.insert(name.to_string(), value);
        }
        Ok(attrs)
    }
}

fn missing_body(attrs: &Attrs, names: &[&str]) -> Option<String> {
    let missing = names.iter().find(|name| !matches!(attrs.0.get(**name), Some(Attr::Graph(_))));
    missing.map(|name| format!("a node without its `{name}`"))
}

fn shown(set: &str, op: &str) -> String {
    if set.is_empty() { op.to_string() } else { format!("{set}.{op}") }
}

/// What errors call a node.
fn label(node: &NodeProto) -> String {
    match (&node.name[..], node.output.first()) {
        ("", Some(output)) => format!("`{output}` ({})", node.op_type),
        ("", None) => node.op_type.clone(),
        (name, _) => format!("`{name}` ({})", node.op_type),
    }
}

#[track_caller]
fn unknown(name: &str, node: &NodeProto, later: &[NodeProto]) -> lazuli::Error {
    let is_later = later.iter().any(|node| node.output.iter().any(|output| output == name));
    let why = match is_later {
        true => "is made only later: the graph has a cycle or is not sorted",
        false => "is no input, no initialiser and made by no node",
    };
    fault::parse(format!("node {}: `{name}` {why}", label(node)))
}
