//! What flows between operators: tensors on a device, tensors on the host, sequences, and nothing (an optional that is empty).

use std::sync::Arc;

use lazuli::{DType, Device, Result, Tensor};

use crate::elem::ElemType;
use crate::fault;
use crate::host::{Host, HostData};

/// An input or output of a model, with its element type as the model declares it.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_onnx::{ElemType, Value};
/// let cpu = Device::cpu();
/// let index = Value::new(&Tensor::from_slice(&[1i32, 2], [2], &cpu), ElemType::I64)?;
/// assert_eq!((index.elem_type(), index.shape()?), (Some(ElemType::I64), vec![2]));
/// assert_eq!(index.to_i64s()?, [1, 2]);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Value(pub(crate) Kind);

/// The kinds of values.
#[derive(Clone)]
pub(crate) enum Kind {
    /// On a device; its dtype is the storage of the element type.
    Device(Tensor, ElemType),
    /// On the host.
    Host(Arc<Host>),
    /// A list of values.
    Sequence(Arc<Vec<Value>>),
    /// An optional that holds nothing.
    Nothing,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Device(tensor, elem) => write!(f, "{elem}{:?}", tensor.shape()),
            Kind::Host(host) => write!(f, "{}{:?} on the host", host.elem, host.shape),
            Kind::Sequence(values) => f.debug_list().entries(values.iter()).finish(),
            Kind::Nothing => f.write_str("nothing"),
        }
    }
}

impl Value {
    /// A tensor of a declared type, which its dtype must store.
    pub fn new(tensor: &Tensor, elem: ElemType) -> Result<Value> {
        let dtype = tensor.dtype()?;
        if dtype != elem.storage() {
            return Err(fault::dtype(format!("{elem} is stored as {}, not as {dtype}", elem.storage())));
        }
        Ok(Value(Kind::Device(tensor.clone(), elem)))
    }

    /// Integers that stay on the host: shapes, axes, indices. They may be beyond 32 bits.
    ///
    /// ```
    /// let sizes = lazuli_onnx::Value::from_i64s(&[2], vec![1, i64::MAX])?;
    /// assert_eq!(sizes.to_i64s()?, [1, i64::MAX]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn from_i64s(shape: &[usize], values: Vec<i64>) -> Result<Value> {
        if shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)) != Some(values.len()) {
            return Err(fault::shape(format!("{} integers do not fill {shape:?}", values.len())));
        }
        Ok(Host::ints(ElemType::I64, shape.to_vec(), values).into())
    }

    /// A sequence of values.
    pub fn sequence(values: Vec<Value>) -> Value {
        Value(Kind::Sequence(Arc::new(values)))
    }

    /// An optional that holds nothing.
    pub fn nothing() -> Value {
        Value(Kind::Nothing)
    }

    /// The values of a sequence, or None.
    pub fn as_sequence(&self) -> Option<&[Value]> {
        match &self.0 {
            Kind::Sequence(values) => Some(values),
            _ => None,
        }
    }

    /// Whether it is an optional that holds nothing.
    pub fn is_nothing(&self) -> bool {
        matches!(self.0, Kind::Nothing)
    }

    /// The element type of a tensor, or None.
    pub fn elem_type(&self) -> Option<ElemType> {
        match &self.0 {
            Kind::Device(_, elem) => Some(*elem),
            Kind::Host(host) => Some(host.elem),
            _ => None,
        }
    }

    /// The shape of a tensor.
    pub fn shape(&self) -> Result<Vec<usize>> {
        match &self.0 {
            Kind::Device(tensor, _) => Ok(tensor.shape()?.to_vec()),
            Kind::Host(host) => Ok(host.shape.clone()),
            _ => Err(self.no_tensor()),
        }
    }

    /// The tensor on a device; a tensor of the host is copied there.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        match &self.0 {
            Kind::Device(tensor, _) => Ok(tensor.clone()),
            Kind::Host(host) => host.upload(device),
            _ => Err(self.no_tensor()),
        }
    }

    /// The elements of a tensor of integers or bools.
    pub fn to_i64s(&self) -> Result<Vec<i64>> {
        Ok(self.to_host()?.as_ints()?.to_vec())
    }

    /// The elements of a tensor of any type, as f64. A 64-bit integer beyond 2⁵³ rounds.
    pub fn to_f64s(&self) -> Result<Vec<f64>> {
        Ok(self.to_host()?.to_f64s())
    }

    /// The elements on the host; a tensor of a device is evaluated.
    pub(crate) fn to_host(&self) -> Result<Arc<Host>> {
        match &self.0 {
            Kind::Device(tensor, elem) => Ok(Arc::new(Host::read(tensor, *elem)?)),
            Kind::Host(host) => Ok(host.clone()),
            _ => Err(self.no_tensor()),
        }
    }

    /// Adds its tensors of a device to a list.
    pub(crate) fn tensors<'v>(&'v self, tensors: &mut Vec<&'v Tensor>) {
        match &self.0 {
            Kind::Device(tensor, _) => tensors.push(tensor),
            Kind::Sequence(values) => values.iter().for_each(|value| value.tensors(tensors)),
            Kind::Host(_) | Kind::Nothing => {}
        }
    }

    fn no_tensor(&self) -> lazuli::Error {
        let what = if self.is_nothing() { "an optional that holds nothing" } else { "a sequence" };
        fault::dtype(format!("a tensor is wanted here, not {what}"))
    }
}

impl From<Host> for Value {
    fn from(host: Host) -> Value {
        Value(Kind::Host(Arc::new(host)))
    }
}

/// A tensor whose element type is its dtype.
///
/// ```
/// use lazuli::{Device, Tensor};
/// let x = Tensor::scalar(1.0f32, &Device::cpu());
/// assert_eq!(lazuli_onnx::Value::try_from(&x)?.elem_type(), Some(lazuli_onnx::ElemType::F32));
/// # Ok::<(), lazuli::Error>(())
/// ```
impl TryFrom<&Tensor> for Value {
    type Error = lazuli::Error;
    fn try_from(tensor: &Tensor) -> Result<Value> {
        Ok(Value(Kind::Device(tensor.clone(), ElemType::of(tensor.dtype()?))))
    }
}

impl Value {
    /// How many elements a constant may have to stay on the host until an operator of the device asks for it.
    pub(crate) const SMALL: usize = 1024;

    /// Integers of 8 bits from the bytes of a file.
    pub(crate) fn of_bytes(bytes: &[u8], elem: ElemType, shape: &[usize], device: &Device) -> Result<Value> {
        let tensor = match elem {
            // A byte an element: the tensor is stored as bytes, and whoever reads it adds the offset in the same kernel.
            ElemType::I8 => {
                let moved: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x80).collect();
                Tensor::from_vec(moved, shape, device).to_dtype(DType::I32).sub(128)
            }
            _ => Tensor::from_slice(bytes, shape, device),
        };
        tensor.check()?;
        Ok(Value(Kind::Device(tensor, elem)))
    }

    /// A constant: a small one stays on the host, a large one is uploaded now.
    pub(crate) fn constant(host: Host, device: &Device) -> Result<Value> {
        if host.data.len() <= Value::SMALL {
            return Ok(host.into());
        }
        match (host.data, host.elem) {
            (HostData::Float(values), ElemType::F32 | ElemType::F64) => {
                let tensor = Tensor::from_vec(values, &host.shape[..], device);
                tensor.check()?;
                Ok(Value(Kind::Device(tensor, host.elem)))
            }
            (HostData::Int(values), ElemType::I8 | ElemType::U8) => {
                let bytes: Vec<u8> = values.iter().map(|v| *v as u8).collect();
                Value::of_bytes(&bytes, host.elem, &host.shape, device)
            }
            (data, elem) => Ok(Value(Kind::Device(Host::new(elem, host.shape, data).upload(device)?, elem))),
        }
    }
}
