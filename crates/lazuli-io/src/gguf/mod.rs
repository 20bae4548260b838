//! GGUF, the format of language models for llama.cpp and others: metadata with a tokenizer inside, then tensors, plain or in
//! blocks. A file is mapped and its header checked when it is opened; tensors are copied out one by one, and pages that were
//! copied are let go.

mod format;
mod value;
mod header;
mod split;
mod write;

use std::path::Path;
use std::sync::Arc;

use lazuli::{Device, Error, Fault, Result, Tensor};

use crate::elements;
use crate::fault;
use crate::mapped::Mapped;
use header::Header;

pub use format::GgufFormat;
pub use header::GgufTensor;
pub use value::{FromGguf, GgufArray, GgufMetadata, GgufValue};
pub use write::GgufWriter;

/// An open GGUF file, or several that one was split into.
///
/// The file is mapped for as long as this lives: whoever cuts it meanwhile ends the process, and whoever writes to it
/// spoils the values. Replacing it by a file of the same name harms nothing.
///
/// ```
/// use lazuli::{Device, Tensor};
/// use lazuli_io::{Gguf, GgufWriter};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.gguf");
/// let cpu = Device::cpu();
/// let mut file = GgufWriter::new();
/// file.set("general.architecture", "llama");
/// file.push("w", &Tensor::arange(0.0, 4.0, 1.0, &cpu).reshape([2, 2]))?;
/// file.save(&path)?;
///
/// let file = Gguf::open(&path)?;
/// assert_eq!(file.metadata().get::<&str>("general.architecture")?, "llama");
/// assert_eq!(file.tensors()[0].shape, [2, 2]);
/// assert_eq!(file.tensor("w", &cpu)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gguf {
    parts: Vec<Mapped>,
    version: u32,
    metadata: GgufMetadata,
    tensors: Vec<GgufTensor>,
    /// Places in `tensors`, ordered by name.
    order: Vec<u32>,
}

impl Gguf {
    /// Opens a file of version 2 or 3, little-endian. Of a split one, name the first part, `…-00001-of-0000N.gguf`: the
    /// others are found beside it.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let _caller = fault::caller();
        let path = path.as_ref();
        let mut file = Gguf::of(Mapped::open("gguf", path)?).map_err(|error| fault::of_file("gguf", path, &error))?;
        split::join(&mut file, path)?;
        Ok(file)
    }

    /// A file whose bytes are in memory, as in a browser. One part of a split file is refused: the others have no names.
    ///
    /// ```
    /// let error = lazuli_io::Gguf::from_bytes(b"GGUF\x03\0\0\0".to_vec()).map(drop).unwrap_err();
    /// assert!(error.to_string().contains("the file ends inside tensors"));
    /// ```
    #[track_caller]
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf> {
        let _caller = fault::caller();
        let file = Gguf::of(Mapped::Bytes(bytes))?;
        split::refuse(&file)?;
        Ok(file)
    }

    /// One file by itself.
    fn of(bytes: Mapped) -> Result<Gguf> {
        let Header { version, metadata, tensors } = Header::parse(&bytes, 0)?;
        let order = ordered("tensors", &tensors, |tensor| &tensor.name)?;
        Ok(Gguf { parts: vec![bytes], version, metadata, tensors, order })
    }

    /// The version of the format, 2 or 3.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// assert_eq!(Gguf::from_bytes(GgufWriter::new().to_bytes()?)?.version(), 3);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn version(&self) -> u32 {
        self.version
    }

    /// How many files there are: 1, if it is not split.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// assert_eq!(Gguf::from_bytes(GgufWriter::new().to_bytes()?)?.n_parts(), 1);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn n_parts(&self) -> usize {
        self.parts.len()
    }

    /// What the file says about itself; of a split one, what its first part says.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// let file = Gguf::from_bytes(GgufWriter::new().to_bytes()?)?;
    /// let error = file.metadata().get::<&str>("general.name").unwrap_err();
    /// assert!(error.to_string().contains("the file has no metadata `general.name`"));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// All tensors, in the order of the file.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// assert!(Gguf::from_bytes(GgufWriter::new().to_bytes()?)?.tensors().is_empty());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// What is known of one tensor; None if there is none of that name.
    ///
    /// ```
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// assert!(Gguf::from_bytes(GgufWriter::new().to_bytes()?)?.find("w").is_none());
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    pub fn find(&self, name: &str) -> Option<&GgufTensor> {
        let found = self.order.binary_search_by(|i| self.tensors[*i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.order[found] as usize])
    }

    /// The bytes of one tensor as they are in the file.
    ///
    /// ```
    /// # use lazuli::{Device, Tensor};
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// # let mut file = GgufWriter::new();
    /// # file.push("w", &Tensor::from_slice(&[1, 2], [2], &Device::cpu()))?;
    /// # let file = Gguf::from_bytes(file.to_bytes()?)?;
    /// assert_eq!(file.bytes("w")?, [1, 0, 0, 0, 2, 0, 0, 0]);
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn bytes(&self, name: &str) -> Result<&[u8]> {
        let _caller = fault::caller();
        self.known(name).map(|tensor| self.bytes_of(tensor))
    }

    /// One tensor. i8 and i16 become i32; i64 and f64 become i32 and f32 if their values fit. Blocks of the formats that
    /// [`BlockFormat`](lazuli::BlockFormat) knows stay blocks, in an f32 tensor
    /// ([`Tensor::from_blocks`](lazuli::Tensor::from_blocks)).
    ///
    /// ```
    /// # use lazuli::Device;
    /// # use lazuli_io::{Gguf, GgufWriter};
    /// # let file = Gguf::from_bytes(GgufWriter::new().to_bytes()?)?;
    /// let error = file.tensor("output.weight", &Device::cpu()).unwrap_err();
    /// assert!(error.to_string().contains("the file has no tensor `output.weight`"));
    /// # Ok::<(), lazuli::Error>(())
    /// ```
    #[track_caller]
    pub fn tensor(&self, name: &str, device: &Device) -> Result<Tensor> {
        let _caller = fault::caller();
        let entry = self.known(name)?;
        let bytes = self.bytes_of(entry);
        let tensor = match (entry.format.plain(), entry.format.blocks()) {
            (Some(stored), _) => elements::tensor(bytes, &entry.shape, stored, device),
            (None, Some(format)) => {
                let tensor = Tensor::from_blocks(format, bytes, &entry.shape[..], device);
                tensor.check().map(|()| tensor)
            }
            (None, None) => {
                let message = format!("`{name}`: blocks of type {} are not supported", entry.format);
                return Err(Error::Unsupported(Arc::new(Fault::new("gguf", message))));
            }
        };
        let tensor = tensor.map_err(|error| fault::of_tensor("gguf", name, &error))?;
        // The tensor has a copy; what it was copied from need not stay in memory.
        self.parts[entry.part].let_go(entry.start, entry.n_bytes);
        Ok(tensor)
    }

    #[track_caller]
    fn known(&self, name: &str) -> Result<&GgufTensor> {
        self.find(name).ok_or_else(|| fault::parse("gguf", format!("the file has no tensor `{name}`")))
    }

    fn bytes_of(&self, tensor: &GgufTensor) -> &[u8] {
        match tensor.n_bytes {
            // Of what has no bytes, the place may be anywhere.
            0 => &[],
            n_bytes => &self.parts[tensor.part][tensor.start..tensor.start + n_bytes],
        }
    }
}

/// The places of all items in the order of their names, of which none may come twice.
fn ordered<'a, T>(what: &str, items: &'a [T], name: impl Fn(&'a T) -> &'a str) -> Result<Vec<u32>> {
    let mut order = Vec::new();
    elements::reserve("gguf", &mut order, items.len())?;
    order.extend(0..items.len() as u32);
    order.sort_unstable_by_key(|i: &u32| name(&items[*i as usize]));
    let name = |i: u32| name(&items[i as usize]);
    match order.windows(2).find(|pair| name(pair[0]) == name(pair[1])) {
        Some(pair) => Err(fault::parse("gguf", format!("`{}` comes twice among the {what}", name(pair[0])))),
        None => Ok(order),
    }
}
