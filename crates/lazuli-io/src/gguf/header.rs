//! The header of a GGUF file: counts, metadata and where tensors are. Nothing of it is believed: a count is held against
//! the bytes that are left before memory is taken for it, and a tensor is one only if its bytes are there and are nobody
//! else's.

use lazuli::{MAX_RANK, Result};

use super::format::GgufFormat;
use super::value::{ARRAY, BOOL, GgufArray, GgufMetadata, GgufValue, STRING, scalars, type_name};
use crate::elements;
use crate::fault;

pub(super) const MAGIC: &[u8; 4] = b"GGUF";

/// Where tensors begin if the file does not say: at multiples of this.
pub(super) const ALIGNMENT: u32 = 32;
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";

/// How deep arrays may lie in arrays. Nobody writes more than two; each costs a stack frame to read and to drop.
const MAX_DEPTH: usize = 8;

/// The least bytes that an entry of metadata (an empty key, a type and a byte) and that of a tensor (an empty name, no axis,
/// a type and an offset) take.
const MIN_ENTRY: usize = 13;
const MIN_TENSOR: usize = 24;

/// A tensor of a GGUF file: what it is called, how large it is and how it is stored.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # use lazuli_io::{Gguf, GgufWriter};
/// # let mut file = GgufWriter::new();
/// # file.push("w", &Tensor::rand([3, 2], 1, &Device::cpu()))?;
/// # let file = Gguf::from_bytes(file.to_bytes()?)?;
/// let w = &file.tensors()[0];
/// assert_eq!((w.name.as_str(), &w.shape[..], w.format.name, w.n_bytes), ("w", &[3, 2][..], "F32", 24));
/// # Ok::<(), lazuli::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GgufTensor {
    /// Its name, of which there is one in the file.
    pub name: String,
    /// Row-major: the last axis is the one whose elements lie side by side. Files count the other way.
    pub shape: Vec<usize>,
    /// How elements are stored.
    pub format: GgufFormat,
    /// How many bytes they take.
    pub n_bytes: usize,
    /// In which file of a split one they are, and where.
    pub(super) part: usize,
    pub(super) start: usize,
}

/// What the bytes of one file say.
pub(super) struct Header {
    pub version: u32,
    pub metadata: GgufMetadata,
    pub tensors: Vec<GgufTensor>,
}

impl Header {
    /// Reads and checks the header of a file, which is number `part` of those of a split one.
    pub fn parse(bytes: &[u8], part: usize) -> Result<Header> {
        let mut cursor = Cursor { bytes, at: 0 };
        let version = version(&mut cursor)?;
        let n_tensors = cursor.count("tensors", MIN_TENSOR)?;
        let n_entries = cursor.count("entries of metadata", MIN_ENTRY)?;
        let mut entries = Vec::new();
        for _ in 0..n_entries {
            let key = cursor.string("a key of metadata")?;
            let value = cursor.value().map_err(|error| fault::of_tensor("gguf", &key, &error))?;
            push(&mut entries, (key, value))?;
        }
        let metadata = GgufMetadata::new(entries)?;
        let mut tensors = Vec::new();
        for _ in 0..n_tensors {
            let tensor = cursor.tensor(part)?;
            push(&mut tensors, tensor)?;
        }
        let alignment = alignment(metadata.find(ALIGNMENT_KEY)?.unwrap_or(ALIGNMENT))?;
        place(&mut tensors, cursor.at, alignment, bytes.len())?;
        Ok(Header { version, metadata, tensors })
    }
}

/// An alignment that can be one.
pub(super) fn alignment(claimed: u32) -> Result<usize> {
    match claimed.is_power_of_two() {
        true => Ok(claimed as usize),
        false => {
            let message = format!("metadata `{ALIGNMENT_KEY}` is {claimed}, which is no power of two");
            Err(fault::parse("gguf", message))
        }
    }
}

fn version(cursor: &mut Cursor<'_>) -> Result<u32> {
    let magic = cursor.take(4, "its first word")?;
    if magic != MAGIC {
        let begin = magic.escape_ascii();
        return Err(fault::parse("gguf", format!("not a GGUF file: it begins with \"{begin}\", not with \"GGUF\"")));
    }
    match cursor.u32("the version")? {
        version @ (2 | 3) => Ok(version),
        // Versions are small numbers: one whose low half is empty was written by a machine of the other kind.
        swapped if swapped != 0 && swapped & 0xffff == 0 => Err(fault::parse(
            "gguf",
            format!(
                "the file is big-endian (version {} with its bytes swapped), which is not supported: convert it to little-endian",
                swapped.swap_bytes()
            ),
        )),
        version => {
            Err(fault::parse("gguf", format!("version {version} of the format is not supported, only 2 and 3 are")))
        }
    }
}

/// Turns offsets into places in the file, and checks that every tensor's bytes are there and belong to no other.
fn place(tensors: &mut [GgufTensor], header_end: usize, alignment: usize, n_bytes: usize) -> Result<()> {
    let refused = |tensor: &GgufTensor, what: String| Err(fault::parse("gguf", format!("`{}`: {what}", tensor.name)));
    let first = header_end.checked_next_multiple_of(alignment);
    for tensor in &mut *tensors {
        let offset = tensor.start;
        if !offset.is_multiple_of(alignment) {
            return refused(tensor, format!("its offset {offset} is no multiple of the alignment {alignment}"));
        }
        let start = first.and_then(|first| first.checked_add(offset));
        let end = start.and_then(|start| start.checked_add(tensor.n_bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= n_bytes || tensor.n_bytes == 0 => tensor.start = start,
            _ => {
                let what = format!(
                    "its {} bytes at offset {offset} of the elements are not in the file, which has {n_bytes} bytes, {} of them after its header",
                    tensor.n_bytes,
                    n_bytes - header_end,
                );
                return refused(tensor, what);
            }
        }
    }
    let mut order: Vec<u32> = Vec::new();
    elements::reserve("gguf", &mut order, tensors.len())?;
    order.extend((0..tensors.len() as u32).filter(|i| tensors[*i as usize].n_bytes > 0));
    order.sort_unstable_by_key(|i| tensors[*i as usize].start);
    for pair in order.windows(2) {
        let (before, after) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        if before.start + before.n_bytes > after.start {
            return refused(after, format!("its bytes overlap those of `{}`", before.name));
        }
    }
    Ok(())
}

/// One more element, if there is memory for it.
fn push<T>(items: &mut Vec<T>, item: T) -> Result<()> {
    if items.try_reserve(1).is_err() {
        return Err(fault::no_memory("gguf", (items.len() + 1).saturating_mul(size_of::<T>())));
    }
    items.push(item);
    Ok(())
}

/// The bytes of a file and how far they are read.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        if n > self.left() {
            let message =
                format!("the file ends inside {what}: {n} bytes from {} on, of {}", self.at, self.bytes.len());
            return Err(fault::parse("gguf", message));
        }
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A number of things that take at least `min_bytes` each; more than the file has bytes for are refused.
    fn count(&mut self, what: &str, min_bytes: usize) -> Result<usize> {
        let claimed = self.u64(what)?;
        match usize::try_from(claimed) {
            Ok(n) if n <= self.left() / min_bytes => Ok(n),
            _ => {
                let message = format!("the file claims {claimed} {what} and has {} bytes left", self.left());
                Err(fault::parse("gguf", message))
            }
        }
    }

    fn string(&mut self, what: &str) -> Result<String> {
        let claimed = self.u64(what)?;
        let Some(n) = usize::try_from(claimed).ok().filter(|n| *n <= self.left()) else {
            let message = format!("{what} claims {claimed} bytes, the file has {} left", self.left());
            return Err(fault::parse("gguf", message));
        };
        let text = std::str::from_utf8(self.take(n, what)?);
        let text = text.map_err(|_| fault::parse("gguf", format!("{what} is not UTF-8")))?;
        let mut out = String::new();
        out.try_reserve_exact(n).map_err(|_| fault::no_memory("gguf", n))?;
        out.push_str(text);
        Ok(out)
    }

    fn bool(&mut self) -> Result<bool> {
        match self.array("a bool")? {
            [0] => Ok(false),
            [1] => Ok(true),
            [byte] => Err(fault::parse("gguf", format!("a bool is the byte {byte}, neither 0 nor 1"))),
        }
    }

    fn type_id(&mut self) -> Result<u32> {
        let id = self.u32("a type")?;
        match type_name(id) {
            Some(_) => Ok(id),
            None => Err(fault::parse("gguf", format!("its type {id} is not known"))),
        }
    }

    fn value(&mut self) -> Result<GgufValue> {
        macro_rules! read {
            ($($id:literal, $variant:ident, $t:ty, $size:literal;)*) => {
                match self.type_id()? {
                    $($id => Ok(GgufValue::$variant(<$t>::from_le_bytes(self.array("a number")?))),)*
                    BOOL => self.bool().map(GgufValue::Bool),
                    STRING => self.string("a string").map(GgufValue::String),
                    _ => self.values(0).map(GgufValue::Array),
                }
            };
        }
        scalars!(read)
    }

    /// An array, which lies in `depth` others.
    fn values(&mut self, depth: usize) -> Result<GgufArray> {
        if depth == MAX_DEPTH {
            return Err(fault::parse("gguf", format!("arrays lie more than {MAX_DEPTH} deep in arrays")));
        }
        macro_rules! read {
            ($($id:literal, $variant:ident, $t:ty, $size:literal;)*) => {
                match self.type_id()? {
                    $($id => {
                        let n = self.count(concat!("elements of type ", stringify!($t)), $size)?;
                        let bytes = self.take(n * $size, "an array")?;
                        let mut items: Vec<$t> = Vec::new();
                        elements::reserve("gguf", &mut items, n)?;
                        items.extend(bytes.as_chunks().0.iter().map(|b| <$t>::from_le_bytes(*b)));
                        Ok(GgufArray::$variant(items))
                    })*
                    BOOL => self.each("bools", 1, Cursor::bool).map(GgufArray::Bool),
                    STRING => self.each("strings", 8, |c| c.string("a string")).map(GgufArray::String),
                    id => {
                        debug_assert_eq!(id, ARRAY);
                        self.each("arrays", 12, |c| c.values(depth + 1)).map(GgufArray::Array)
                    }
                }
            };
        }
        scalars!(read)
    }

    /// As many elements as the file says, one by one.
    fn each<T>(&mut self, what: &str, min_bytes: usize, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let n = self.count(what, min_bytes)?;
        let mut items = Vec::new();
        for _ in 0..n {
            let item = read(self)?;
            push(&mut items, item)?;
        }
        Ok(items)
    }

    /// What the file says of a tensor; its place is still an offset.
    fn tensor(&mut self, part: usize) -> Result<GgufTensor> {
        let name = self.string("the name of a tensor")?;
        let refused = |what: String| fault::parse("gguf", format!("`{name}`: {what}"));
        let n_axes = self.u32("a tensor")? as usize;
        if n_axes > MAX_RANK {
            return Err(refused(format!("it has {n_axes} axes, at most {MAX_RANK} are supported")));
        }
        let mut shape = Vec::with_capacity(n_axes);
        for _ in 0..n_axes {
            let size = self.u64("a tensor")?;
            shape.push(usize::try_from(size).map_err(|_| refused(format!("an axis has {size} elements")))?);
        }
        shape.reverse();
        let id = self.u32("a tensor")?;
        let Some(format) = GgufFormat::numbered(id) else {
            return Err(refused(format!("its elements are of type {id}, which is not known")));
        };
        let Some(n_bytes) = format.n_bytes(&shape) else {
            let len = format.block_len;
            let what = match shape.last().is_some_and(|n| n % len != 0) {
                true => format!("rows of {shape:?} are not whole blocks of {len} elements, which {format} has"),
                false => format!("{shape:?} of {format} has more bytes than there can be"),
            };
            return Err(refused(what));
        };
        let offset = self.u64("a tensor")?;
        let start = usize::try_from(offset).map_err(|_| refused(format!("its offset is {offset}")))?;
        Ok(GgufTensor { name, shape, format, n_bytes, part, start })
    }
}
