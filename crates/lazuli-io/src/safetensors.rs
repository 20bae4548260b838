//! The safetensors format: eight bytes of length, a JSON header, then the elements. A file is refused unless its tensors
//! lie side by side, fill the rest of it exactly and agree with their shapes.

use std::path::Path;

use lazuli::{Device, MAX_RANK, Result, Tensor};

use crate::atomic::write_atomically;
use crate::elements::{self, Stored};
use crate::fault;
use crate::json::{self, Json};
use crate::mapped::Mapped;

/// The longest header that is read; the format's own limit.
const MAX_HEADER: usize = 100_000_000;

const NAMES: [(&str, Stored); 10] = [
    ("BOOL", Stored::Bool),
    ("U8", Stored::U8),
    ("I32", Stored::I32),
    ("U32", Stored::U32),
    ("F16", Stored::F16),
    ("BF16", Stored::BF16),
    ("F32", Stored::F32),
    ("I64", Stored::I64),
    ("U64", Stored::U64),
    ("F64", Stored::F64),
];

/// Saves named tensors, atomically.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.safetensors");
/// lazuli_io::save(&path, &[("x".into(), Tensor::scalar(1.5, &Device::cpu()))])?;
/// assert_eq!(lazuli_io::load(&path, &Device::cpu())?[0].1.item::<f32>()?, 1.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn save(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<()> {
    let _caller = fault::caller();
    write_atomically(path, &to_safetensors(tensors)?)
}

/// Loads all tensors of a file, in the order of their bytes. The file is mapped while this runs, checked before anything is
/// made of it, and not needed afterwards.
///
/// ```
/// # use lazuli::Device;
/// let error = lazuli_io::load("no such file", &Device::cpu()).unwrap_err();
/// assert!(error.to_string().starts_with("load: no such file: "));
/// ```
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Vec<(String, Tensor)>> {
    let _caller = fault::caller();
    from_safetensors(&Mapped::open("load", path.as_ref())?, device)
}

/// Named tensors as the bytes of a file. They are computed together first.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let bytes = lazuli_io::to_safetensors(&[("x".into(), Tensor::scalar(1.5, &Device::cpu()))])?;
/// assert_eq!(lazuli_io::from_safetensors(&bytes, &Device::cpu())?.len(), 1);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn to_safetensors(tensors: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let _caller = fault::caller();
    lazuli::compute(&tensors.iter().map(|(_, t)| t).collect::<Vec<_>>())?;
    let (mut header, mut data) = (String::from("{"), Vec::new());
    let mut names = std::collections::HashSet::new();
    for (i, (name, tensor)) in tensors.iter().enumerate() {
        if !names.insert(name) || name == "__metadata__" {
            return Err(fault::parse("save", format!("the name {name:?} comes twice or is reserved")));
        }
        let start = data.len();
        elements::append(tensor, &mut data)?;
        let stored = Stored::from(tensor.dtype()?);
        let dtype = NAMES.iter().find(|(_, s)| *s == stored).map_or("", |(name, _)| name);
        let comma = if i > 0 { "," } else { "" };
        header += &format!(
            "{comma}{}:{{\"dtype\":\"{dtype}\",\"shape\":{:?},\"data_offsets\":[{start},{}]}}",
            json::quoted(name),
            tensor.shape()?,
            data.len(),
        );
    }
    header.push('}');
    // Elements begin at a multiple of eight.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    elements::reserve("save", &mut out, header.len() + data.len())?;
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(&data);
    Ok(out)
}

/// One entry of a header.
struct Entry {
    name: String,
    stored: Stored,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

/// The tensors in the bytes of a file.
///
/// ```
/// # use lazuli::Device;
/// let error = lazuli_io::from_safetensors(b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", &Device::cpu()).unwrap_err();
/// assert!(error.to_string().contains("the header claims 9223372036854775807 bytes"));
/// ```
#[track_caller]
pub fn from_safetensors(bytes: &[u8], device: &Device) -> Result<Vec<(String, Tensor)>> {
    let _caller = fault::caller();
    let entries = header(bytes).map_err(|message| fault::parse("load", message))?;
    let (entries, data) = entries;
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        // A number that does not fit 32 bits is found here, and named.
        match elements::tensor(&data[entry.start..entry.end], &entry.shape, entry.stored, device) {
            Ok(tensor) => out.push((entry.name, tensor)),
            Err(error) => return Err(fault::of_tensor("load", &entry.name, &error)),
        }
    }
    Ok(out)
}

/// The checked entries, in the order of their bytes, and the bytes they lie in.
fn header(bytes: &[u8]) -> Result<(Vec<Entry>, &[u8]), String> {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(format!("the file has {} bytes, too few for a header", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > rest.len().min(MAX_HEADER) as u64 {
        return Err(format!("the header claims {length} bytes, the file has {} after its length", rest.len()));
    }
    let (text, data) = rest.split_at(length as usize);
    let text = std::str::from_utf8(text).map_err(|_| "the header is not UTF-8".to_string())?;
    // The format has no room before the header, where something else could be hidden.
    if !text.starts_with('{') {
        return Err("the header is not an object: it does not begin with `{`".into());
    }
    let Json::Object(items) = json::parse(text)? else { return Err("the header is not an object".into()) };
    let mut entries = Vec::new();
    for (name, value) in items {
        match name.as_str() {
            "__metadata__" => metadata(&value)?,
            _ => entries.push(entry(name, &value, data.len())?),
        }
    }
    entries.sort_by_key(|e| (e.start, e.end));
    let mut end = 0;
    for e in &entries {
        if e.start != end {
            let what = if e.start < end { "overlaps the one before it" } else { "leaves a hole before it" };
            return Err(format!("`{}` at byte {} {what}", e.name, e.start));
        }
        end = e.end;
    }
    match end == data.len() {
        true => Ok((entries, data)),
        false => Err(format!("tensors fill {end} bytes, the file has {} after its header", data.len())),
    }
}

/// Notes of whoever wrote the file: texts by name. They are not kept, but what is none is not this format.
fn metadata(value: &Json) -> Result<(), String> {
    match value {
        Json::Object(notes) if notes.iter().all(|(_, note)| matches!(note, Json::Text(_))) => Ok(()),
        _ => Err("the __metadata__ are not texts by name".into()),
    }
}

fn entry(name: String, value: &Json, n_data: usize) -> Result<Entry, String> {
    let Json::Object(fields) = value else { return Err(format!("`{name}` is not an object")) };
    let field = |wanted: &str| match fields.iter().find(|(key, _)| key == wanted) {
        Some((_, value)) => Ok(value),
        None => Err(format!("`{name}` has no {wanted}")),
    };
    let numbers = |wanted: &str| -> Result<Vec<usize>, String> {
        let Json::Array(items) = field(wanted)? else { return Err(format!("{wanted} of `{name}` is not an array")) };
        let number = |item: &Json| match item {
            Json::Number(n) => usize::try_from(*n).ok(),
            _ => None,
        };
        items.iter().map(number).collect::<Option<_>>().ok_or_else(|| format!("{wanted} of `{name}` are not sizes"))
    };
    let Json::Text(dtype) = field("dtype")? else { return Err(format!("the dtype of `{name}` is not a string")) };
    let Some((_, stored)) = NAMES.iter().find(|(known, _)| known == dtype) else {
        let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
        return Err(format!("`{name}` has the dtype {dtype:?}; known are {}", known.join(", ")));
    };
    let shape = numbers("shape")?;
    if shape.len() > MAX_RANK {
        return Err(format!("`{name}` has {} axes, at most {MAX_RANK} are possible", shape.len()));
    }
    let [start, end] = numbers("data_offsets")?[..] else {
        return Err(format!("data_offsets of `{name}` are not two"));
    };
    if start > end || end > n_data {
        return Err(format!("`{name}` lies at bytes {start} to {end} of {n_data}"));
    }
    match elements::n_bytes(&shape, *stored) {
        Some(n) if n == end - start => Ok(Entry { name, stored: *stored, shape, start, end }),
        _ => Err(format!("`{name}` is {dtype} {shape:?}, but {} bytes are given", end - start)),
    }
}
