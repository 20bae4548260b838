//! What a row sees of the node that it runs: inputs, attributes, the device. Input elements that are on the device and are
//! wanted on the host stop the row; the machine reads them and starts the row again, so that rows need not know whether
//! reading blocks.

use std::fmt::Display;
use std::sync::Arc;

use lazuli::{DType, Device, Error, Tensor};

use crate::chunks::Chunks;
use crate::elem::ElemType;
use crate::fault;
use crate::graph::{Attr, KeptFor, Node};
use crate::host::{Host, HostData};
use crate::value::{Kind, Value};

/// Why a row did not finish.
#[derive(Debug)]
pub enum Stop {
    /// The input with this index has to be on the host.
    Need(usize),
    /// It failed.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// What a row gives: one value per output, fewer if the last are left out.
pub type Outputs = Result<Vec<Value>, Stop>;

/// A failure with a message: a model that asks for what the operator cannot do.
#[track_caller]
pub fn refuse<T>(message: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(fault::unsupported(message)))
}

/// A failure with a message: shapes or values that do not go together.
#[track_caller]
pub fn invalid<T>(message: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Failed(fault::shape(message)))
}

/// Operators that could run on either side compute results of at most this many elements on the host.
const SMALL: usize = 4096;

/// A node with the values of its inputs.
pub struct Call<'a> {
    pub node: &'a Node,
    pub inputs: Vec<Option<Value>>,
    pub device: &'a Device,
    /// The version of the operator set.
    pub opset: i64,
    /// Differs from node to node, for random numbers.
    pub seed: u64,
    /// Whether what is made of constants may be evaluated and kept: not while shapes are inferred.
    pub may_evaluate: bool,
    /// How the steps of a recurrence are evaluated in chunks; None where the whole run is recorded lazily.
    pub chunks: Option<Chunks<'a>>,
}

impl Call<'_> {
    /// Whether an optional input is there.
    pub fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// Whether anybody reads an output.
    pub fn wants(&self, i: usize) -> bool {
        self.node.outputs.get(i).is_some_and(Option::is_some)
    }

    /// An input.
    pub fn value(&self, i: usize) -> Result<&Value, Stop> {
        match self.inputs.get(i) {
            Some(Some(value)) => Ok(value),
            _ => invalid(format!("input {i} is missing")),
        }
    }

    /// An input as a tensor on the device.
    pub fn tensor(&self, i: usize) -> Result<Tensor, Stop> {
        Ok(self.value(i)?.to_tensor(self.device)?)
    }

    /// An optional input as a tensor on the device.
    pub fn optional(&self, i: usize) -> Result<Option<Tensor>, Stop> {
        if self.has(i) { self.tensor(i).map(Some) } else { Ok(None) }
    }

    /// What a row makes of some of its inputs, for one way of computing it. If all of them are constants of the model it is made
    /// and evaluated once, and kept with the node.
    pub fn kept<const N: usize>(
        &self,
        way: KeptFor,
        inputs: &[usize],
        make: impl FnOnce() -> Result<[Tensor; N], Stop>,
    ) -> Result<[Tensor; N], Stop> {
        let is_constant = |i: &usize| !self.has(*i) || self.node.is_constant.get(*i).copied().unwrap_or(false);
        if !self.may_evaluate || !inputs.iter().all(is_constant) {
            return make();
        }
        let cell = &self.node.kept[way as usize];
        if cell.get().is_none() {
            let made = make()?;
            lazuli::compute(&made.each_ref())?;
            cell.get_or_init(|| made.into());
        }
        match cell.get().map(|kept| kept.clone().try_into()) {
            Some(Ok(kept)) => Ok(kept),
            _ => unreachable!("each way keeps as many tensors as it asks for"),
        }
    }

    /// The element type of an input.
    pub fn elem(&self, i: usize) -> Result<ElemType, Stop> {
        match self.value(i)?.elem_type() {
            Some(elem) => Ok(elem),
            None => invalid(format!("input {i} is no tensor")),
        }
    }

    /// The shape of an input.
    pub fn shape(&self, i: usize) -> Result<Vec<usize>, Stop> {
        Ok(self.value(i)?.shape()?)
    }

    /// The rank of an input.
    pub fn rank(&self, i: usize) -> Result<usize, Stop> {
        Ok(self.shape(i)?.len())
    }

    /// An input on the host. If it is on the device, the row stops until it has been read.
    pub fn host(&self, i: usize) -> Result<Arc<Host>, Stop> {
        match &self.value(i)?.0 {
            Kind::Host(host) => Ok(host.clone()),
            Kind::Device(..) => Err(Stop::Need(i)),
            _ => invalid(format!("input {i} is no tensor")),
        }
    }

    /// An input as host integers.
    pub fn ints(&self, i: usize) -> Result<Vec<i64>, Stop> {
        Ok(self.host(i)?.as_ints()?.to_vec())
    }

    /// An optional input as host integers.
    pub fn optional_ints(&self, i: usize) -> Result<Option<Vec<i64>>, Stop> {
        if self.has(i) { self.ints(i).map(Some) } else { Ok(None) }
    }

    /// An input with one element, as a number.
    pub fn number(&self, i: usize) -> Result<f64, Stop> {
        match self.host(i)?.to_f64s()[..] {
            [number] => Ok(number),
            _ => invalid(format!("input {i} must have one element, not shape {:?}", self.shape(i)?)),
        }
    }

    /// An input with one integer.
    pub fn int(&self, i: usize) -> Result<i64, Stop> {
        match self.host(i)?.as_ints()? {
            [number] => Ok(*number),
            _ => invalid(format!("input {i} must have one element, not shape {:?}", self.shape(i)?)),
        }
    }

    /// All inputs on the host, if all of them are there already: then shape arithmetic stays there.
    pub fn all_host(&self) -> Option<Vec<Arc<Host>>> {
        let host = |value: &Option<Value>| match value.as_ref().map(|value| &value.0) {
            Some(Kind::Host(host)) => Some(host.clone()),
            _ => None,
        };
        let hosts: Option<Vec<Arc<Host>>> = self.inputs.iter().map(host).collect();
        hosts.filter(|hosts| !hosts.is_empty() && hosts.iter().all(|host| host.data.len() <= SMALL))
    }

    /// An attribute of the node.
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        self.node.attr(name)
    }

    /// An integer attribute.
    pub fn attr_int(&self, name: &str, default: i64) -> Result<i64, Stop> {
        self.node.attr_int(name, default)
    }

    /// A float attribute.
    pub fn attr_float(&self, name: &str, default: f32) -> Result<f32, Stop> {
        self.node.attr_float(name, default)
    }

    /// A text attribute.
    pub fn attr_text(&self, name: &str, default: &str) -> Result<String, Stop> {
        self.node.attr_text(name, default)
    }

    /// A list of integers, if it is there.
    pub fn attr_ints(&self, name: &str) -> Result<Option<&[i64]>, Stop> {
        self.node.attr_ints(name)
    }

    /// A list of floats, if it is there.
    pub fn attr_floats(&self, name: &str) -> Result<Option<&[f32]>, Stop> {
        self.node.attr_floats(name)
    }

    /// An axis attribute of a tensor of this rank.
    pub fn attr_axis(&self, name: &str, default: i64, rank: usize) -> Result<usize, Stop> {
        axis(self.attr_int(name, default)?, rank)
    }
}

/// Attributes are known when a model is loaded: what a row cannot do is found there, by the functions that read them for a run.
impl Node {
    /// A tensor attribute, or one of another kind, by name.
    pub fn attr(&self, name: &str) -> Option<&Attr> {
        self.attrs.0.get(name)
    }

    /// An integer attribute.
    pub fn attr_int(&self, name: &str, default: i64) -> Result<i64, Stop> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Int(value)) => Ok(*value),
            Some(_) => invalid(format!("attribute `{name}` is no integer")),
        }
    }

    /// A float attribute.
    pub fn attr_float(&self, name: &str, default: f32) -> Result<f32, Stop> {
        match self.attr(name) {
            None => Ok(default),
            Some(Attr::Float(value)) => Ok(*value),
            Some(_) => invalid(format!("attribute `{name}` is no float")),
        }
    }

    /// A text attribute.
    pub fn attr_text(&self, name: &str, default: &str) -> Result<String, Stop> {
        match self.attr(name) {
            None => Ok(default.to_string()),
            Some(Attr::Text(value)) => Ok(value.clone()),
            Some(_) => invalid(format!("attribute `{name}` is no text")),
        }
    }

    /// A list of integers, if it is there.
    pub fn attr_ints(&self, name: &str) -> Result<Option<&[i64]>, Stop> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Ints(values)) => Ok(Some(values)),
            Some(_) => invalid(format!("attribute `{name}` is no list of integers")),
        }
    }

    /// A list of floats, if it is there.
    pub fn attr_floats(&self, name: &str) -> Result<Option<&[f32]>, Stop> {
        match self.attr(name) {
            None => Ok(None),
            Some(Attr::Floats(values)) => Ok(Some(values)),
            Some(_) => invalid(format!("attribute `{name}` is no list of floats")),
        }
    }

    /// What a text attribute means, of the words that the operator understands.
    pub fn choice<T: Copy>(&self, name: &str, default: &str, known: &[(&str, T)]) -> Result<T, Stop> {
        let word = self.attr_text(name, default)?;
        match known.iter().find(|(own, _)| *own == word) {
            Some((_, meaning)) => Ok(*meaning),
            None => self.unsupported(name, format!("`{word}`")),
        }
    }

    /// The element type that an attribute names; None if it is missing or 0.
    pub fn elem_type(&self, name: &str) -> Result<Option<ElemType>, Stop> {
        match self.attr_int(name, 0)? {
            0 => Ok(None),
            code => ElemType::from_code(code).map(Some).map_err(|message| Stop::Failed(fault::unsupported(message))),
        }
    }

    /// Refuses the value of an attribute.
    pub fn unsupported<T>(&self, name: &str, value: impl Display) -> Result<T, Stop> {
        refuse(format!("attribute `{name}` = {value} of operator {}", self.op()))
    }
}

/// A possibly negative axis as an index.
pub fn axis(axis: i64, rank: usize) -> Result<usize, Stop> {
    let at = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(at) {
        Ok(at) if at < rank => Ok(at),
        _ => invalid(format!("axis {axis} is out of range for rank {rank}")),
    }
}

/// A size of the file as a usize; negative is refused.
pub fn size(value: i64) -> Result<usize, Stop> {
    match usize::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => invalid(format!("{value} is no size")),
    }
}

/// How many elements a list may have that an operator makes on the host, such as indices along an axis: what a file claims
/// must not exhaust the memory.
const MAX_LIST: usize = 1 << 26;

/// A number of elements that the host is to hold, refused where it is absurd.
pub fn listed(n: usize) -> Result<usize, Stop> {
    if n > MAX_LIST { refuse(format!("a list of {n} elements, at most {MAX_LIST}")) } else { Ok(n) }
}

/// A size of a window, stride or block: beyond 2³¹ nothing can be addressed, and products of two would not fit.
pub fn extent(value: i64) -> Result<usize, Stop> {
    match usize::try_from(value) {
        Ok(value) if value <= 1 << 31 => Ok(value),
        _ => invalid(format!("{value} is no size of a window")),
    }
}

/// Sizes of windows, strides or blocks.
pub fn extents(values: &[i64]) -> Result<Vec<usize>, Stop> {
    values.iter().map(|value| extent(*value)).collect()
}

/// Sizes as a model file states them, in 64 bits. A negative size is an error.
pub fn sizes(values: &[i64]) -> Result<Vec<usize>, Stop> {
    values.iter().map(|value| size(*value)).collect()
}

/// A tensor as a value of an element type: cast to its storage, and wrapped to the bits it has.
pub fn value(tensor: Tensor, elem: ElemType) -> Result<Value, Stop> {
    tensor.check()?;
    let tensor = if tensor.dtype()? == elem.storage() { tensor } else { tensor.to_dtype(elem.storage()) };
    Ok(Value(Kind::Device(tensor, elem)))
}

/// One output.
pub fn give(tensor: Tensor, elem: ElemType) -> Outputs {
    Ok(vec![value(tensor, elem)?])
}

/// One output whose integers may have grown beyond their type: only the lower bits are kept.
pub fn give_wrapped(tensor: Tensor, elem: ElemType) -> Outputs {
    let tensor = match elem {
        ElemType::I8 => tensor.to_dtype(DType::I32).shl(24).shr(24),
        ElemType::I16 => tensor.to_dtype(DType::I32).shl(16).shr(16),
        ElemType::U8 if tensor.dtype()? != DType::U8 => tensor.bit_and(255),
        ElemType::U16 => tensor.bit_and(65535),
        _ => tensor,
    };
    give(tensor, elem)
}

/// One output on the host.
pub fn give_host(elem: ElemType, shape: Vec<usize>, data: HostData) -> Outputs {
    Ok(vec![Host::new(elem, shape, data).into()])
}
