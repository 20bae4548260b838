//! Tensors that stay on the host: shapes, axes, bounds, small constants, and whatever an operator has to look at before its
//! result has a size. Integers are i64, as the model has them; floats are f32. A device's copy is made when an operator of
//! the device asks for it, once.

use std::sync::OnceLock;

use lazuli::{Device, Error, Result, Tensor, bf16, f16};

use crate::elem::ElemType;
use crate::fault;

/// A tensor on the host.
#[derive(Debug)]
pub struct Host {
    pub elem: ElemType,
    pub shape: Vec<usize>,
    pub data: HostData,
    /// A copy of these numbers on the model's device, uploaded when an operator first needs one there.
    copy: OnceLock<Tensor>,
}

/// Elements on the host, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum HostData {
    /// Integers and bools.
    Int(Vec<i64>),
    /// Floats of every width.
    Float(Vec<f32>),
}

impl HostData {
    pub fn len(&self) -> usize {
        match self {
            HostData::Int(values) => values.len(),
            HostData::Float(values) => values.len(),
        }
    }

    /// Whether these are the same numbers, to the bit: −0 is not 0, and a NaN is itself.
    pub fn is_same(&self, other: &HostData) -> bool {
        match (self, other) {
            (HostData::Int(x), HostData::Int(y)) => x == y,
            (HostData::Float(x), HostData::Float(y)) => x.iter().map(|x| x.to_bits()).eq(y.iter().map(|y| y.to_bits())),
            _ => false,
        }
    }
}

impl Host {
    /// Elements in their shape, whose product is their number.
    pub fn new(elem: ElemType, shape: Vec<usize>, data: HostData) -> Host {
        debug_assert_eq!(shape.iter().product::<usize>(), data.len());
        Host { elem, shape, data, copy: OnceLock::new() }
    }

    /// Integers of a type.
    pub fn ints(elem: ElemType, shape: Vec<usize>, values: Vec<i64>) -> Host {
        Host::new(elem, shape, HostData::Int(values))
    }

    /// A vector of int64, the type of shapes.
    pub fn vector(values: Vec<i64>) -> Host {
        Host::ints(ElemType::I64, vec![values.len()], values)
    }

    /// Floats of a type.
    pub fn floats(elem: ElemType, shape: Vec<usize>, values: Vec<f32>) -> Host {
        Host::new(elem, shape, HostData::Float(values))
    }

    /// The integers; floats are refused.
    pub fn as_ints(&self) -> Result<&[i64]> {
        match &self.data {
            HostData::Int(values) => Ok(values),
            HostData::Float(_) => Err(fault::dtype(format!("integers are wanted here, not {}", self.elem))),
        }
    }

    /// All elements as f64, which is exact but for integers beyond 2⁵³.
    pub fn to_f64s(&self) -> Vec<f64> {
        match &self.data {
            HostData::Int(values) => values.iter().map(|v| *v as f64).collect(),
            HostData::Float(values) => values.iter().map(|v| *v as f64).collect(),
        }
    }

    /// All elements as f32.
    pub fn to_f32s(&self) -> Vec<f32> {
        match &self.data {
            HostData::Int(values) => values.iter().map(|v| *v as f32).collect(),
            HostData::Float(values) => values.clone(),
        }
    }

    /// The elements at these indices, in another shape.
    pub fn pick(&self, shape: Vec<usize>, indices: &[usize]) -> Host {
        let data = match &self.data {
            HostData::Int(values) => HostData::Int(indices.iter().map(|i| values[*i]).collect()),
            HostData::Float(values) => HostData::Float(indices.iter().map(|i| values[*i]).collect()),
        };
        Host::new(self.elem, shape, data)
    }

    /// The copy on a device: made once, and kept as long as the host tensor lives.
    pub fn upload(&self, device: &Device) -> Result<Tensor> {
        if let Some(tensor) = self.copy.get() {
            return Ok(tensor.clone());
        }
        let tensor = self.copied(device)?;
        Ok(self.copy.get_or_init(|| tensor).clone())
    }

    fn copied(&self, device: &Device) -> Result<Tensor> {
        let shape = &self.shape[..];
        let out_of_range = |value: i64| {
            let storage = self.elem.storage();
            fault::dtype(format!("{value} does not fit {storage}, which stores {} on a device", self.elem))
        };
        let tensor = match &self.data {
            HostData::Float(values) => match self.elem {
                ElemType::F16 => Tensor::from_vec(values.iter().map(|v| f16::from_f32(*v)).collect(), shape, device),
                ElemType::BF16 => Tensor::from_vec(values.iter().map(|v| bf16::from_f32(*v)).collect(), shape, device),
                _ => Tensor::from_slice(values, shape, device),
            },
            HostData::Int(values) => match self.elem {
                ElemType::Bool => Tensor::from_vec(values.iter().map(|v| *v != 0).collect(), shape, device),
                ElemType::U8 => Tensor::from_vec(values.iter().map(|v| *v as u8).collect(), shape, device),
                ElemType::U16 | ElemType::U32 | ElemType::U64 => {
                    let narrow = |v: &i64| u32::try_from(*v).map_err(|_| out_of_range(*v));
                    Tensor::from_vec(values.iter().map(narrow).collect::<Result<Vec<u32>>>()?, shape, device)
                }
                _ => {
                    let narrow = |v: &i64| i32::try_from(*v).map_err(|_| out_of_range(*v));
                    Tensor::from_vec(values.iter().map(narrow).collect::<Result<Vec<i32>>>()?, shape, device)
                }
            },
        };
        tensor.check()?;
        Ok(tensor)
    }

    /// Reads a tensor of a device, which evaluates it.
    pub fn read(tensor: &Tensor, elem: ElemType) -> Result<Host> {
        let shape = tensor.shape()?.to_vec();
        let data = match elem.is_float() {
            true => HostData::Float(tensor.to_vec::<f32>()?),
            false => HostData::Int(tensor.to_vec::<i64>()?),
        };
        Ok(Host::with_copy(Host::new(elem, shape, data), tensor))
    }

    /// A host tensor that was read from a device need not be uploaded again.
    fn with_copy(host: Host, tensor: &Tensor) -> Host {
        Host { copy: OnceLock::from(tensor.clone()), ..host }
    }

    /// [`Host::read`] without blocking.
    pub async fn read_async(tensor: &Tensor, elem: ElemType) -> Result<Host> {
        let shape = tensor.shape()?.to_vec();
        let data = match elem.is_float() {
            true => HostData::Float(tensor.to_vec_async::<f32>().await?),
            false => HostData::Int(tensor.to_vec_async::<i64>().await?),
        };
        Ok(Host::with_copy(Host::new(elem, shape, data), tensor))
    }
}

/// Row-major strides, in elements.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis].max(1);
    }
    strides
}

/// Calls `f` with every multi-index of a shape, in row-major order.
pub fn for_each_index(shape: &[usize], mut f: impl FnMut(&[usize])) {
    if shape.contains(&0) {
        return;
    }
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(axis) = (0..shape.len()).rev().find(|axis| index[*axis] + 1 < shape[*axis]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// The shape that two shapes broadcast to.
pub fn broadcast_shape(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Error> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |j| shape[j]);
    (0..rank)
        .map(|i| match (size(a, i), size(b, i)) {
            (1, n) | (n, 1) => Ok(n),
            (m, n) if m == n => Ok(m),
            _ => Err(fault::shape(format!("shapes do not broadcast: {a:?} and {b:?}"))),
        })
        .collect()
}

/// For every element of `to`, which element of `from` it repeats; `from` broadcasts to `to`.
pub fn broadcast_indices(from: &[usize], to: &[usize]) -> Vec<usize> {
    let steps = strides(from);
    let skipped = to.len() - from.len();
    let mut indices = Vec::with_capacity(to.iter().product());
    for_each_index(to, |index| {
        let own = index[skipped..].iter().zip(from).zip(&steps);
        indices.push(own.map(|((i, size), step)| if *size == 1 { 0 } else { i * step }).sum());
    });
    indices
}
