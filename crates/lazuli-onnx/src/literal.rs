//! Constant tensors of a file: typed fields, raw bytes, or bytes of another file, which must be inside the model's folder.
//! What dimensions claim is compared with the bytes that are there before anything is allocated.

use std::path::{Component, Path};

use lazuli::{Device, Result, bf16, f16};

use crate::elem::ElemType;
use crate::fault;
use crate::host::{Host, HostData};
use crate::proto::TensorProto;
use crate::value::Value;

/// A constant of a model: a small one stays on the host, where shapes are computed; a large one is uploaded now. `folder` is
/// where the model's file is, if it is a file.
pub fn constant(proto: &TensorProto, folder: Option<&Path>, device: &Device) -> Result<Value> {
    let stored = Stored::of(proto, folder)?;
    match stored.elem {
        // Bytes are uploaded as they are, without a list of 64-bit integers in between.
        ElemType::I8 | ElemType::U8 if stored.raw().len() == stored.n_elems && stored.n_elems > Value::SMALL => {
            Value::of_bytes(stored.raw(), stored.elem, &stored.shape, device)
        }
        _ => Value::constant(stored.decode()?, device),
    }
}

/// The elements of a constant on the host.
pub fn decode(proto: &TensorProto, folder: Option<&Path>) -> Result<Host> {
    Stored::of(proto, folder)?.decode()
}

/// A constant as its file has it: what its dimensions claim can be addressed.
struct Stored<'a> {
    proto: &'a TensorProto,
    elem: ElemType,
    shape: Vec<usize>,
    n_elems: usize,
    /// Its bytes, if they are in another file.
    external: Option<Vec<u8>>,
}

impl<'a> Stored<'a> {
    fn of(proto: &'a TensorProto, folder: Option<&Path>) -> Result<Stored<'a>> {
        let named = |message: String| fault::parse(format!("tensor `{}`: {message}", proto.name));
        let elem = ElemType::from_code(proto.data_type as i64)
            .map_err(|message| fault::unsupported(format!("tensor `{}`: {message}", proto.name)))?;
        let shape: Option<Vec<usize>> = proto.dims.iter().map(|d| usize::try_from(*d).ok()).collect();
        let shape = shape.ok_or_else(|| named(format!("dimensions {:?} are negative", proto.dims)))?;
        let n_elems = shape.iter().try_fold(1usize, |n, d| n.checked_mul((*d).max(1)));
        let n_elems = n_elems.filter(|n| *n <= isize::MAX as usize / 8);
        let n_elems = n_elems.ok_or_else(|| named(format!("{shape:?} has more elements than can be addressed")))?;
        let n_elems = if shape.contains(&0) { 0 } else { n_elems };
        let external = match proto.data_location {
            1 => Some(external(proto, folder)?),
            _ => None,
        };
        Ok(Stored { proto, elem, shape, n_elems, external })
    }

    fn raw(&self) -> &[u8] {
        self.external.as_deref().unwrap_or(&self.proto.raw_data)
    }

    fn decode(self) -> Result<Host> {
        let (proto, elem, raw, n_elems) = (self.proto, self.elem, self.raw(), self.n_elems);
        let named = |message: String| fault::parse(format!("tensor `{}`: {message}", proto.name));
        let data = match raw.is_empty() {
            false => from_raw(elem, raw).ok_or_else(|| named(format!("{} bytes are no whole {elem}s", raw.len())))?,
            true => from_fields(elem, proto).map_err(&named)?,
        };
        if elem == ElemType::F64 && n_narrowed(raw, proto, &data) > 0 {
            return Err(fault::dtype(format!("tensor `{}`: a number is beyond f32, which stores double", proto.name)));
        }
        if data.len() != n_elems {
            return Err(named(format!("{:?} has {n_elems} elements, {} are stored", self.shape, data.len())));
        }
        Ok(Host::new(elem, self.shape, data))
    }
}

/// The bytes of another file, which must be inside the folder of the model: no absolute path, no `..`, no symbolic link out
/// of it.
fn external(proto: &TensorProto, folder: Option<&Path>) -> Result<Vec<u8>> {
    let named = |message: String| fault::parse(format!("tensor `{}`: {message}", proto.name));
    let value = |key: &str| proto.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let number = |key: &str| match value(key) {
        None | Some("") => Ok(None),
        Some(text) => {
            text.parse::<u64>().map(Some).map_err(|_| named(format!("{key} `{text}` of its file is no number")))
        }
    };
    let location = value("location").ok_or_else(|| named("its file is not named".into()))?;
    let folder =
        folder.ok_or_else(|| named(format!("its elements are in `{location}`; load the model by its path")))?;
    let is_inside =
        Path::new(location).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let outside = || named(format!("its file `{location}` is outside the model's folder"));
    if !is_inside || location.is_empty() {
        return Err(outside());
    }
    let path = folder.join(location);
    let real = path.canonicalize().map_err(|e| fault::io(&path, &e))?;
    let real_folder = folder.canonicalize().map_err(|e| fault::io(folder, &e))?;
    if !real.starts_with(&real_folder) {
        return Err(outside());
    }
    let n_bytes = std::fs::metadata(&real).map_err(|e| fault::io(&real, &e))?.len();
    let start = number("offset")?.unwrap_or(0);
    let length = match number("length")? {
        Some(length) => length,
        None => n_bytes.saturating_sub(start),
    };
    if start.checked_add(length).is_none_or(|end| end > n_bytes) {
        return Err(named(format!("bytes {start} + {length} are beyond the {n_bytes} of `{location}`")));
    }
    read_part(&real, start, length).map_err(|e| fault::io(&real, &e))
}

fn read_part(path: &Path, start: u64, length: u64) -> std::io::Result<Vec<u8>> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Little-endian elements; None if the last one is cut.
fn from_raw(elem: ElemType, raw: &[u8]) -> Option<HostData> {
    macro_rules! read {
        ($kind:ident, $t:ty, $from:expr) => {{
            let (chunks, rest) = raw.as_chunks();
            rest.is_empty().then(|| HostData::$kind(chunks.iter().map(|b| $from(<$t>::from_le_bytes(*b))).collect()))
        }};
    }
    match elem {
        ElemType::F32 => read!(Float, f32, |v| v),
        ElemType::F64 => read!(Float, f64, |v| v as f32),
        ElemType::F16 => read!(Float, f16, f16::to_f32),
        ElemType::BF16 => read!(Float, bf16, bf16::to_f32),
        ElemType::I8 => read!(Int, i8, |v| v as i64),
        ElemType::I16 => read!(Int, i16, |v| v as i64),
        ElemType::I32 => read!(Int, i32, |v| v as i64),
        ElemType::I64 => read!(Int, i64, |v| v),
        ElemType::U8 => read!(Int, u8, |v| v as i64),
        ElemType::U16 => read!(Int, u16, |v| v as i64),
        ElemType::U32 => read!(Int, u32, |v| v as i64),
        // Beyond 2⁶³ the number would be negative here; it fits no storage anyway and saturates.
        ElemType::U64 => read!(Int, u64, |v| i64::try_from(v).unwrap_or(i64::MAX)),
        ElemType::Bool => read!(Int, u8, |v| (v != 0) as i64),
    }
}

/// How many doubles are finite in the file and infinite as f32.
fn n_narrowed(raw: &[u8], proto: &TensorProto, data: &HostData) -> usize {
    let HostData::Float(narrow) = data else { return 0 };
    let wide: Vec<f64> = match raw.is_empty() {
        true => proto.double_data.clone(),
        false => raw.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
    };
    wide.iter().zip(narrow).filter(|(wide, narrow)| wide.is_finite() && narrow.is_infinite()).count()
}

/// Elements of the typed fields.
fn from_fields(elem: ElemType, proto: &TensorProto) -> Result<HostData, String> {
    let bits16 = || proto.int32_data.iter().map(|v| *v as u16);
    Ok(match elem {
        ElemType::F32 => HostData::Float(proto.float_data.clone()),
        ElemType::F64 => HostData::Float(proto.double_data.iter().map(|v| *v as f32).collect()),
        ElemType::F16 => HostData::Float(bits16().map(|v| f16::from_bits(v).to_f32()).collect()),
        ElemType::BF16 => HostData::Float(bits16().map(|v| bf16::from_bits(v).to_f32()).collect()),
        ElemType::I64 => HostData::Int(proto.int64_data.clone()),
        ElemType::U32 | ElemType::U64 => {
            let values = proto.uint64_data.iter().map(|v| i64::try_from(*v).unwrap_or(i64::MAX));
            HostData::Int(values.collect())
        }
        _ => {
            let values: Vec<i64> = proto.int32_data.iter().map(|v| *v as i64).collect();
            match values.iter().find(|v| elem.wrap(**v) != **v && elem != ElemType::Bool) {
                Some(v) => return Err(format!("{v} is no {elem}")),
                None => HostData::Int(values.into_iter().map(|v| elem.wrap(v)).collect()),
            }
        }
    })
}
