//! Writing GGUF, version 3: what this crate reads again, and llama.cpp too.

use std::path::Path;

use lazuli::{Result, Tensor};

use super::format::GgufFormat;
use super::header::{ALIGNMENT, ALIGNMENT_KEY, MAGIC, alignment};
use super::value::{GgufArray, GgufValue, scalars};
use crate::atomic::write_atomically;
use crate::elements;
use crate::fault;

/// What ggml has room for: axes of a tensor, and bytes of its name.
const MAX_AXES: usize = 4;
const MAX_NAME: usize = 63;

/// A GGUF file to be written: metadata and tensors in the order in which they were given.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_io::{Gguf, GgufFormat, GgufWriter};
/// let mut file = GgufWriter::new();
/// file.set("general.architecture", "llama");
/// file.set("llama.block_count", 1u32);
/// file.push("norm", &Tensor::ones([32], lazuli::DType::F16, &Device::cpu()))?;
/// file.push_bytes("w", GgufFormat::named("Q8_0")?, &[2, 32], vec![0; 2 * 34])?;
/// let file = Gguf::from_bytes(file.to_bytes()?)?;
/// assert_eq!(file.tensors()[1].format.name, "Q8_0");
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Default)]
pub struct GgufWriter {
    entries: Vec<(String, GgufValue)>,
    tensors: Vec<Pending>,
}

/// A tensor to be written.
struct Pending {
    name: String,
    format: GgufFormat,
    shape: Vec<usize>,
    n_bytes: usize,
    data: Data,
}

enum Data {
    Tensor(Tensor),
    Bytes(Vec<u8>),
}

impl GgufWriter {
    /// An empty file.
    ///
    /// ```
    /// assert_eq!(lazuli_io::GgufWriter::new().to_bytes()?.len(), 24);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn new() -> GgufWriter {
        GgufWriter::default()
    }

    /// Sets an entry of the metadata; one of the same key is replaced. `general.alignment`, a u32, says at multiples of how
    /// many bytes tensors begin: 32 if it is not set.
    ///
    /// ```
    /// # let mut file = lazuli_io::GgufWriter::new();
    /// file.set("tokenizer.ggml.scores", vec![0.5f32, -1.0]);
    /// file.set("tokenizer.ggml.add_bos_token", true);
    /// # assert_eq!(lazuli_io::Gguf::from_bytes(file.to_bytes()?)?.metadata().iter().len(), 2);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<GgufValue>) {
        let (key, value) = (key.into(), value.into());
        match self.entries.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.entries.push((key, value)),
        }
    }

    /// Adds a tensor of f32, f16, bf16 or i32, which is stored as it is.
    ///
    /// ```
    /// # use lazuli::{DType, Device, Tensor};
    /// # let mut file = lazuli_io::GgufWriter::new();
    /// let error = file.push("w", &Tensor::zeros([2], DType::Bool, &Device::cpu())).unwrap_err();
    /// assert!(error.to_string().contains("`w`: GGUF has no type for bool"));
    /// ```
    #[track_caller]
    pub fn push(&mut self, name: impl Into<String>, tensor: &Tensor) -> Result<()> {
        let _caller = fault::caller();
        let (name, dtype) = (name.into(), tensor.dtype()?);
        let Some(format) = GgufFormat::of(dtype) else {
            let message = format!("`{name}`: GGUF has no type for {dtype}; cast it to f32, f16, bf16 or i32");
            return Err(fault::parse("gguf", message));
        };
        self.add(name, format, tensor.shape()?, Data::Tensor(tensor.clone()))
    }

    /// Adds a tensor whose bytes are as the file will have them, such as blocks. The shape is row-major.
    ///
    /// ```
    /// # use lazuli_io::{GgufFormat, GgufWriter};
    /// # let mut file = GgufWriter::new();
    /// let error = file.push_bytes("w", GgufFormat::named("Q4_0")?, &[2, 32], vec![0; 35]).unwrap_err();
    /// assert!(error.to_string().contains("`w`: Q4_0 [2, 32] has 36 bytes, not 35"));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn push_bytes(
        &mut self,
        name: impl Into<String>,
        format: GgufFormat,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> Result<()> {
        let _caller = fault::caller();
        self.add(name.into(), format, shape, Data::Bytes(bytes))
    }

    #[track_caller]
    fn add(&mut self, name: String, format: GgufFormat, shape: &[usize], data: Data) -> Result<()> {
        let refused = |what: String| Err(fault::parse("gguf", format!("`{name}`: {what}")));
        if name.len() > MAX_NAME {
            return refused(format!("the name has {} bytes, ggml takes at most {MAX_NAME}", name.len()));
        }
        if shape.len() > MAX_AXES {
            return refused(format!("{shape:?} has {} axes, ggml takes at most {MAX_AXES}", shape.len()));
        }
        if self.tensors.iter().any(|tensor| tensor.name == name) {
            return refused("there is a tensor of that name already".into());
        }
        let Some(n_bytes) = format.n_bytes(shape) else {
            return refused(format!("rows of {shape:?} are not whole blocks of {} elements", format.block_len));
        };
        if let Data::Bytes(bytes) = &data
            && bytes.len() != n_bytes
        {
            return refused(format!("{format} {shape:?} has {n_bytes} bytes, not {}", bytes.len()));
        }
        self.tensors.push(Pending { name, format, shape: shape.to_vec(), n_bytes, data });
        Ok(())
    }

    /// The bytes of the file. Tensors are computed together first.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// let mut file = GgufWriter::new();
    /// file.set("general.alignment", 33u32);
    /// assert!(file.to_bytes().unwrap_err().to_string().contains("33, which is no power of two"));
    /// ```
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let _caller = fault::caller();
        let alignment = alignment(match self.entries.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
            None => ALIGNMENT,
            Some((_, GgufValue::U32(claimed))) => *claimed,
            Some((key, other)) => {
                return Err(fault::parse("gguf", format!("metadata `{key}` is {}, not a u32", other.described())));
            }
        })?;
        let pending = self.tensors.iter().filter_map(|tensor| match &tensor.data {
            Data::Tensor(tensor) => Some(tensor),
            Data::Bytes(_) => None,
        });
        lazuli::compute(&pending.collect::<Vec<_>>())?;
        let mut out = self.header(alignment)?;
        let padded = |n: usize| n.next_multiple_of(alignment);
        let n_data: usize = self.tensors.iter().map(|tensor| padded(tensor.n_bytes)).sum();
        elements::reserve("gguf", &mut out, alignment + n_data)?;
        if !self.tensors.is_empty() {
            out.resize(padded(out.len()), 0);
        }
        for tensor in &self.tensors {
            match &tensor.data {
                Data::Tensor(tensor) => elements::append(tensor, &mut out)?,
                Data::Bytes(bytes) => out.extend_from_slice(bytes),
            }
            out.resize(padded(out.len()), 0);
        }
        Ok(out)
    }

    /// Writes the file, atomically.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("a.gguf");
    /// lazuli_io::GgufWriter::new().save(&path)?;
    /// assert!(lazuli_io::Gguf::open(&path)?.tensors().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let _caller = fault::caller();
        write_atomically(path, &self.to_bytes()?)
    }

    /// Everything before the elements.
    fn header(&self, alignment: usize) -> Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&3u32.to_le_bytes());
        length(&mut out, self.tensors.len());
        length(&mut out, self.entries.len());
        for (key, value) in &self.entries {
            string(&mut out, key)?;
            out.extend_from_slice(&value.type_id().to_le_bytes());
            write_value(&mut out, value)?;
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name)?;
            out.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|size| length(&mut out, *size));
            out.extend_from_slice(&tensor.format.id.to_le_bytes());
            length(&mut out, offset);
            offset += tensor.n_bytes.next_multiple_of(alignment);
        }
        Ok(out)
    }
}

fn length(out: &mut Vec<u8>, n: usize) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) -> Result<()> {
    room(out, 8 + text.len())?;
    length(out, text.len());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Makes room for more bytes, growing by more than was asked for so that many small ones are not many copies.
fn room(out: &mut Vec<u8>, n: usize) -> Result<()> {
    out.try_reserve(n).map_err(|_| fault::no_memory("gguf", out.len() + n))
}

fn write_value(out: &mut Vec<u8>, value: &GgufValue) -> Result<()> {
    macro_rules! write {
        ($($id:literal, $variant:ident, $t:ty, $size:literal;)*) => {
            match value {
                $(GgufValue::$variant(value) => out.extend_from_slice(&value.to_le_bytes()),)*
                GgufValue::Bool(value) => out.push(*value as u8),
                GgufValue::String(text) => string(out, text)?,
                GgufValue::Array(items) => write_array(out, items)?,
            }
        };
    }
    scalars!(write);
    Ok(())
}

fn write_array(out: &mut Vec<u8>, items: &GgufArray) -> Result<()> {
    room(out, 12)?;
    out.extend_from_slice(&items.type_id().to_le_bytes());
    length(out, items.len());
    macro_rules! write {
        ($($id:literal, $variant:ident, $t:ty, $size:literal;)*) => {
            match items {
                $(GgufArray::$variant(items) => {
                    room(out, items.len() * $size)?;
                    items.iter().for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
                })*
                GgufArray::Bool(items) => {
                    room(out, items.len())?;
                    out.extend(items.iter().map(|value| *value as u8));
                }
                GgufArray::String(items) => items.iter().try_for_each(|text| string(out, text))?,
                GgufArray::Array(items) => items.iter().try_for_each(|items| write_array(out, items))?,
            }
        };
    }
    scalars!(write);
    Ok(())
}
