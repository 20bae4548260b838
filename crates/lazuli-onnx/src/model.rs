//! A model as users see it: loaded once, its weights resident, run any number of times.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use lazuli::{Device, Result, Tensor};
use prost::Message;

use crate::chunks::{Compute, Evaluator};
use crate::elem::ElemType;
use crate::evaluations::{Evaluation, Explainer};
use crate::fault;
use crate::graph::{Graph, Slot};
use crate::host::Host;
use crate::infer;
use crate::machine::{Machine, Progress};
use crate::proto::{DimKind, ModelProto, TypeKind, TypeProto, ValueInfoProto};
use crate::recorded::{Known, RecordedRun, RecordedRuns, Signature};
use crate::resolve::{self, Missing};
use crate::value::{Kind, Value};

/// An ONNX model on a device.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_onnx::Model;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("add.onnx");
/// # std::fs::write(&path, lazuli_onnx::example_bytes()).unwrap();
/// let cpu = Device::cpu();
/// // `y = x + x` for `x` of shape [n].
/// let model = Model::load(&path, &cpu)?;
/// assert_eq!(model.inputs()[0].to_string(), "x: float[n]");
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], &cpu);
/// let y = model.run(&[("x", &x)])?.tensor("y")?;
/// assert_eq!(y.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), lazuli::Error>(())
/// ```
pub struct Model {
    graph: Graph,
    device: Device,
    /// All inputs of the graph, in order.
    all_inputs: Vec<Declared>,
    /// Those without a default.
    inputs: Vec<Declared>,
    outputs: Vec<Declared>,
    /// Whether an input may come in several sizes, so that sequences may have several lengths.
    has_free_sizes: bool,
    pub(crate) recorded: RecordedRuns,
}

/// An input or output as the model declares it.
///
/// ```
/// use lazuli::Device;
/// let model = lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &Device::cpu())?;
/// let y = &model.outputs()[0];
/// assert_eq!((y.name.as_str(), y.dims.as_ref().map(Vec::len)), ("y", Some(1)));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Declared {
    /// Its name.
    pub name: String,
    /// What it is.
    pub form: Form,
    /// The sizes of its axes, if the rank is declared.
    pub dims: Option<Vec<Dim>>,
}

/// What kind of value a model declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A tensor of this element type.
    Tensor(ElemType),
    /// A sequence of tensors.
    Sequence,
    /// A value that may be missing.
    Optional,
}

/// The size of an axis as a model declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// This size.
    Size(usize),
    /// Any size, the same wherever the symbol stands.
    Symbol(String),
    /// Any size.
    Any,
}

impl fmt::Display for Declared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name)?;
        match self.form {
            Form::Tensor(elem) => write!(f, "{elem}")?,
            Form::Sequence => f.write_str("a sequence")?,
            Form::Optional => f.write_str("an optional")?,
        }
        let Some(dims) = &self.dims else { return Ok(()) };
        let dims: Vec<String> = dims
            .iter()
            .map(|dim| match dim {
                Dim::Size(n) => n.to_string(),
                Dim::Symbol(name) => name.clone(),
                Dim::Any => "?".to_string(),
            })
            .collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl Model {
    /// Loads a model from a file. Elements that are in other files must be in its folder. Whatever is not supported is named
    /// in one error.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Model> {
        let _caller = fault::caller();
        let path = path.as_ref();
        // A path without a folder is in the current one.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // The bytes of the file go before tensors are made of what they say.
        let proto = {
            let bytes = std::fs::read(path).map_err(|e| fault::io(path, &e))?;
            decoded(&bytes).map_err(|error| fault::of_file(path, &error))?
        };
        Model::of(proto, Some(folder), device)
    }

    /// Makes a model of the bytes of a file, which must hold all of its elements.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], device: &Device) -> Result<Model> {
        let _caller = fault::caller();
        Model::of(decoded(bytes)?, None, device)
    }

    fn of(mut proto: ModelProto, folder: Option<&Path>, device: &Device) -> Result<Model> {
        let main = proto.graph.as_mut().ok_or_else(|| fault::parse("the file has no graph"))?;
        let mut missing = Missing::default();
        let (all_inputs, mut outputs) = (declared(&main.input, &mut missing)?, declared(&main.output, &mut missing)?);
        let constants = std::mem::take(&mut main.initializer);
        let mut graph = resolve::resolve(&proto, constants, folder, device, &mut missing)?;
        missing.check()?;
        graph.mark_constants(&[]);
        let has_default = |slot: &Slot| graph.constants.iter().any(|(constant, _)| constant == slot);
        let required = all_inputs.iter().zip(&graph.inputs).filter(|(_, slot)| !has_default(slot));
        let inputs: Vec<Declared> = required.map(|(input, _)| input.clone()).collect();
        infer::fill(&graph, &all_inputs, &inputs, &mut outputs, device);
        let is_fixed = |dims: &Vec<Dim>| dims.iter().all(|dim| matches!(dim, Dim::Size(_)));
        let has_free_sizes = !all_inputs.iter().all(|input| input.dims.as_ref().is_some_and(is_fixed));
        let (device, recorded) = (device.clone(), RecordedRuns::default());
        Ok(Model { graph, device, all_inputs, inputs, outputs, has_free_sizes, recorded })
    }

    /// The inputs that a run must be given. Inputs with a default, which a run may be given, are not listed.
    pub fn inputs(&self) -> &[Declared] {
        &self.inputs
    }

    /// The outputs. Dimensions that the model does not declare are there if they follow from those of the inputs.
    pub fn outputs(&self) -> &[Declared] {
        &self.outputs
    }

    /// The device that the weights are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs the model. Outputs are lazy, as all tensors of the engine: what nobody reads is not evaluated, and
    /// [`lazuli::compute`] evaluates several together. Only what decides about shapes is evaluated on the way.
    pub fn run(&self, inputs: &[(&str, &Tensor)]) -> Result<Results> {
        self.run_values(&self.declared_values(inputs)?)
    }

    /// Runs the model and evaluates its outputs, all together. When inputs of the same shapes come again, the model is recorded
    /// ([`lazuli::Recording`]), and later runs with such inputs only run kernels. No gradient passes through it.
    ///
    /// Where inputs may come in several sizes, the steps of LSTM, GRU and RNN are evaluated in chunks, so that another length of a
    /// sequence is not planned anew.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// # let model = lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
    /// for i in 0..4 {
    ///     let x = Tensor::full([3], i as f32, &cpu);
    ///     assert_eq!(model.infer(&[("x", &x)])?.tensor("y")?.to_vec::<f32>()?, [2.0 * i as f32; 3]);
    /// }
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn infer(&self, inputs: &[(&str, &Tensor)]) -> Result<Results> {
        let mut bound = self.bound(&self.declared_values(inputs)?)?;
        let is_here =
            |value: &Value| matches!(&value.0, Kind::Device(x, _) if x.device().is_ok_and(|d| *d == self.device));
        let tensors = |bound: &[Option<Value>]| -> Result<Vec<Tensor>> {
            bound.iter().flatten().map(|value| value.to_tensor(&self.device)).collect()
        };
        let signature = match bound.iter().flatten().all(is_here) {
            true => Some(signature(&bound)?),
            false => None,
        };
        let mut wanted = None;
        if let Some(signature) = signature {
            let Known { runs, wants_more } = self.recorded.known(&signature);
            if let Some(runs) = runs {
                let values = runs.run(&tensors(&bound)?)?;
                self.recorded.note(&signature, values.is_some());
                if let Some(values) = values {
                    return Ok(self.results(values));
                }
            }
            wanted = Some(signature).filter(|_| wants_more);
        }
        let Some(signature) = wanted else {
            let results = self.driven(bound, &Compute)?;
            results.compute()?;
            return Ok(results);
        };
        // So the recording tells inputs from each other and from the weights.
        detach(&mut bound);
        let own = tensors(&bound)?;
        lazuli::compute(&own.iter().collect::<Vec<_>>())?;
        let machine = Machine::new(&self.graph, bound, &self.device);
        let (run, values) = RecordedRun::new(machine, own, self.has_free_sizes)?;
        self.recorded.keep(&signature, run);
        Ok(self.results(values))
    }

    /// [`Model::run`] without blocking, for browsers.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_onnx::Model;
    /// async fn doubled(model: &Model, x: &Tensor) -> lazuli::Result<Vec<f32>> {
    ///     model.run_async(&[("x", x)]).await?.tensor("y")?.to_vec_async().await
    /// }
    /// # let cpu = Device::cpu();
    /// # let model = Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
    /// # let x = Tensor::from_slice(&[1.0f32], [1], &cpu);
    /// # let mut future = std::pin::pin!(doubled(&model, &x));
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let done = loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { break done }
    /// #     std::thread::yield_now();
    /// # };
    /// # assert_eq!(done?, [2.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub async fn run_async(&self, inputs: &[(&str, &Tensor)]) -> Result<Results> {
        let values = self.declared_values(inputs)?;
        let mut machine = Machine::new(&self.graph, self.bound(&values)?, &self.device);
        loop {
            match machine.advance()? {
                Progress::Done(values) => return Ok(self.results(values)),
                Progress::Read(tensor, elem) => machine.provide(Host::read_async(&tensor, elem).await?),
            }
        }
    }

    /// Runs the model on values: tensors of the host, sequences, optionals.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// use lazuli_onnx::{ElemType, Model, Value};
    /// # let cpu = Device::cpu();
    /// # let model = Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
    /// let x = Value::new(&Tensor::from_slice(&[1.5f32], [1], &cpu), ElemType::F32)?;
    /// assert_eq!(model.run_values(&[("x", x)])?.value("y")?.to_f64s()?, [3.0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn run_values(&self, inputs: &[(&str, Value)]) -> Result<Results> {
        let mut machine = Machine::new(&self.graph, self.bound(inputs)?, &self.device);
        loop {
            match machine.advance()? {
                Progress::Done(values) => return Ok(self.results(values)),
                Progress::Read(tensor, elem) => machine.provide(Host::read(&tensor, elem)?),
            }
        }
    }

    /// Runs the model as [`infer`](Model::infer) does when it meets inputs of these shapes for the first time, and explains each
    /// evaluation. The last evaluation, that of the outputs, is explained but not made.
    pub fn explain(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Evaluation>> {
        let explainer = Explainer::default();
        let results = self.driven(self.bound(&self.declared_values(inputs)?)?, &explainer)?;
        explainer.note("outputs", &results.tensors())?;
        Ok(explainer.into_evaluations())
    }

    /// A run in which `evaluator` evaluates the tensors whose numbers the model reads, and the chunks of recurrences.
    fn driven(&self, mut bound: Vec<Option<Value>>, evaluator: &dyn Evaluator) -> Result<Results> {
        // Evaluating on the way would let go of the history of a caller's own lazy tensors.
        detach(&mut bound);
        let machine = Machine::new(&self.graph, bound, &self.device);
        let mut machine = if self.has_free_sizes { machine.in_chunks(evaluator) } else { machine };
        loop {
            match machine.advance()? {
                Progress::Done(values) => return Ok(self.results(values)),
                Progress::Read(tensor, elem) => {
                    evaluator.evaluate(machine.node(), &[&tensor])?;
                    machine.provide(Host::read(&tensor, elem)?);
                }
            }
        }
    }

    fn results(&self, values: Vec<Value>) -> Results {
        let names = self.outputs.iter().map(|output| output.name.clone());
        Results { named: names.zip(values).collect(), device: self.device.clone() }
    }

    /// Tensors as values of the declared types.
    fn declared_values<'n>(&self, inputs: &[(&'n str, &Tensor)]) -> Result<Vec<(&'n str, Value)>> {
        let mut values = Vec::with_capacity(inputs.len());
        for (name, tensor) in inputs {
            let input = self.input(name)?;
            let value = match input.form {
                Form::Tensor(elem) => Value::new(tensor, elem)
                    .map_err(|error| fault::dtype(format!("input `{input}`: {}", error.fault().message)))?,
                _ => Value::try_from(*tensor)?,
            };
            values.push((*name, value));
        }
        Ok(values)
    }

    fn input(&self, name: &str) -> Result<&Declared> {
        self.all_inputs.iter().find(|input| input.name == name).ok_or_else(|| {
            let names: Vec<String> = self.inputs.iter().map(|input| format!("`{input}`")).collect();
            fault::shape(format!("there is no input `{name}`; the inputs are {}", names.join(", ")))
        })
    }

    /// One value per input of the graph, each checked against its declaration.
    fn bound(&self, inputs: &[(&str, Value)]) -> Result<Vec<Option<Value>>> {
        let mut symbols: HashMap<&str, (usize, &str)> = HashMap::new();
        for (name, value) in inputs {
            let input = self.input(name)?;
            if let Form::Tensor(elem) = input.form
                && value.elem_type() != Some(elem)
            {
                return Err(fault::dtype(format!("input `{input}` is given {value:?}")));
            }
            let (Some(dims), Ok(shape)) = (&input.dims, value.shape()) else { continue };
            let mut fits = dims.len() == shape.len();
            for (dim, size) in dims.iter().zip(&shape) {
                match dim {
                    Dim::Size(n) => fits &= n == size,
                    Dim::Symbol(symbol) => {
                        let (first, at) = *symbols.entry(symbol).or_insert((*size, &input.name));
                        if first != *size {
                            return Err(fault::shape(format!(
                                "input `{input}` is given {shape:?}, but `{symbol}` is {first} in `{at}`"
                            )));
                        }
                    }
                    Dim::Any => {}
                }
            }
            if !fits {
                return Err(fault::shape(format!("input `{input}` is given {shape:?}")));
            }
        }
        let mut bound = Vec::with_capacity(self.all_inputs.len());
        for input in &self.all_inputs {
            let given = inputs.iter().find(|(name, _)| *name == input.name).map(|(_, value)| value.clone());
            if given.is_none() && self.inputs.iter().any(|required| required.name == input.name) {
                return Err(fault::shape(format!("input `{input}` is missing")));
            }
            bound.push(given);
        }
        Ok(bound)
    }
}

/// The types and shapes of inputs.
fn signature(bound: &[Option<Value>]) -> Result<Signature> {
    let of = |value: &Value| Ok(value.elem_type().zip(Some(value.shape()?)));
    bound.iter().map(|value| value.as_ref().map_or(Ok(None), of)).collect()
}

/// What the bytes of a model's file say.
pub(crate) fn decoded(bytes: &[u8]) -> Result<ModelProto> {
    ModelProto::decode(bytes).map_err(|e| fault::parse(format!("this is no ONNX file: {e}")))
}

/// What a graph declares for its inputs or outputs. Those of types that are not supported are noted and left out.
fn declared(infos: &[ValueInfoProto], missing: &mut Missing) -> Result<Vec<Declared>> {
    let mut all = Vec::with_capacity(infos.len());
    for info in infos {
        let kind = info.r#type.as_ref().and_then(|of: &TypeProto| of.value.as_ref());
        let Some(kind) = kind else { return Err(fault::parse(format!("`{}` has no type", info.name))) };
        match form(kind) {
            Ok((form, dims)) => all.push(Declared { name: info.name.clone(), form, dims }),
            Err(what) => missing.note(what, format!("`{}`", info.name)),
        }
    }
    Ok(all)
}

/// What a type says, or what of it is not supported.
fn form(kind: &TypeKind) -> std::result::Result<(Form, Option<Vec<Dim>>), String> {
    Ok(match kind {
        TypeKind::Tensor(tensor) => {
            let elem = ElemType::from_code(tensor.elem_type as i64)?;
            let dims = tensor.shape.as_ref().map(|shape| {
                let dim = |dim: &crate::proto::DimProto| match &dim.value {
                    Some(DimKind::Value(n)) => usize::try_from(*n).map_or(Dim::Any, Dim::Size),
                    // Some exporters write `?` for every size that they do not know: those need not be equal.
                    Some(DimKind::Param(name)) if !name.is_empty() && name != "?" => Dim::Symbol(name.clone()),
                    _ => Dim::Any,
                };
                shape.dim.iter().map(dim).collect()
            });
            (Form::Tensor(elem), dims)
        }
        TypeKind::Sequence(_) => (Form::Sequence, None),
        TypeKind::Optional(_) => (Form::Optional, None),
        TypeKind::Map(_) => return Err("maps are not supported".into()),
        TypeKind::Sparse(_) => return Err("sparse tensors are not supported".into()),
    })
}

/// The outputs of a run, by name.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let cpu = Device::cpu();
/// # let model = lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
/// # let x = Tensor::from_slice(&[1.0f32], [1], &cpu);
/// let results = model.run(&[("x", &x)])?;
/// assert_eq!(results.names().collect::<Vec<_>>(), ["y"]);
/// assert!(results.tensor("z").unwrap_err().to_string().contains("there is no output `z`"));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Debug)]
pub struct Results {
    named: Vec<(String, Value)>,
    device: Device,
}

impl Results {
    /// The names of the outputs, in the model's order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| name.as_str())
    }

    /// An output with its declared element type.
    pub fn value(&self, name: &str) -> Result<&Value> {
        let found = self.named.iter().find(|(own, _)| own == name).map(|(_, value)| value);
        found.ok_or_else(|| {
            let names: Vec<String> = self.names().map(|name| format!("`{name}`")).collect();
            fault::shape(format!("there is no output `{name}`; the outputs are {}", names.join(", ")))
        })
    }

    /// Evaluates all outputs together.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # let cpu = Device::cpu();
    /// # let model = lazuli_onnx::Model::from_bytes(&lazuli_onnx::example_bytes(), &cpu)?;
    /// # let x = Tensor::from_slice(&[1.0f32], [1], &cpu);
    /// model.run(&[("x", &x)])?.compute()?;
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn compute(&self) -> Result<()> {
        lazuli::compute(&self.tensors())
    }

    /// The outputs that are tensors of a device, with those inside sequences.
    fn tensors(&self) -> Vec<&Tensor> {
        let mut tensors = Vec::new();
        self.named.iter().for_each(|(_, value)| value.tensors(&mut tensors));
        tensors
    }

    /// An output as a tensor of the engine.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.value(name)?.to_tensor(&self.device)
    }
}

/// Makes each input a tensor of its own, with the same values and no history.
fn detach(bound: &mut [Option<Value>]) {
    for value in bound.iter_mut().flatten() {
        if let Kind::Device(tensor, _) = &mut value.0 {
            *tensor = tensor.detach();
        }
    }
}
