//! NumPy's npy: a magic word, a header that is a Python dictionary, then the elements.

use std::fs;
use std::path::Path;

use lazuli::{Device, MAX_RANK, Result, Tensor};

use crate::atomic::write_atomically;
use crate::elements::{self, Stored};
use crate::fault;

const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's names. It has none for bf16.
const NAMES: [(&str, Stored); 9] = [
    ("|b1", Stored::Bool),
    ("|u1", Stored::U8),
    ("<i4", Stored::I32),
    ("<u4", Stored::U32),
    ("<f2", Stored::F16),
    ("<f4", Stored::F32),
    ("<i8", Stored::I64),
    ("<u8", Stored::U64),
    ("<f8", Stored::F64),
];

/// Saves one tensor, atomically. bf16 is saved as f32.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npy");
/// let x = Tensor::arange(0, 6, 1, &Device::cpu()).reshape([2, 3]);
/// lazuli_io::save_npy(&path, &x)?;
/// assert_eq!(lazuli_io::load_npy(&path, &Device::cpu())?.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn save_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let _caller = fault::caller();
    write_atomically(path, &to_npy(tensor)?)
}

/// Loads one tensor.
///
/// ```
/// # use lazuli::Device;
/// assert!(lazuli_io::load_npy("no such file", &Device::cpu()).is_err());
/// ```
#[track_caller]
pub fn load_npy(path: impl AsRef<Path>, device: &Device) -> Result<Tensor> {
    let _caller = fault::caller();
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| fault::io("load_npy", path, &error))?;
    from_npy(&bytes, device)
}

/// A tensor as the bytes of a file.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// let bytes = lazuli_io::to_npy(&Tensor::scalar(2.5, &Device::cpu()))?;
/// assert_eq!(bytes.len(), 128 + 4);
/// # Ok::<(), lazuli::Error>(())
/// ```
#[track_caller]
pub fn to_npy(tensor: &Tensor) -> Result<Vec<u8>> {
    let _caller = fault::caller();
    let tensor = match Stored::from(tensor.dtype()?) {
        Stored::BF16 => &tensor.to_dtype(lazuli::DType::F32),
        _ => tensor,
    };
    let stored = Stored::from(tensor.dtype()?);
    let name = NAMES.iter().find(|(_, s)| *s == stored).map_or("", |(name, _)| name);
    let shape: Vec<String> = tensor.shape()?.iter().map(|d| format!("{d},")).collect();
    let mut header = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({}), }}", shape.join(" "));
    // Elements begin at a multiple of 64; the header ends with a line.
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&(header.len() as u16).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    elements::append(tensor, &mut out)?;
    Ok(out)
}

/// The tensor in the bytes of a file.
///
/// ```
/// # use lazuli::Device;
/// let error = lazuli_io::from_npy(b"hello", &Device::cpu()).unwrap_err();
/// assert!(error.to_string().contains("not an npy file"));
/// ```
#[track_caller]
pub fn from_npy(bytes: &[u8], device: &Device) -> Result<Tensor> {
    let _caller = fault::caller();
    let (header, data) = split(bytes).map_err(|message| fault::parse("load_npy", message))?;
    let Header { stored, fortran, shape } =
        Header::parse(header).map_err(|message| fault::parse("load_npy", message))?;
    if elements::n_bytes(&shape, stored) != Some(data.len()) {
        let message = format!("the header claims {stored:?} {shape:?}, the file has {} bytes of elements", data.len());
        return Err(fault::parse("load_npy", message));
    }
    let tensor = match fortran {
        // Columns first: the same elements of the reversed shape, seen with its axes reversed.
        true => {
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let order: Vec<i32> = (0..shape.len() as i32).rev().collect();
            elements::tensor(data, &reversed, stored, device)?.permute(&order)
        }
        false => elements::tensor(data, &shape, stored, device)?,
    };
    tensor.check()?;
    Ok(tensor)
}

/// Header and elements.
fn split(bytes: &[u8]) -> Result<(&str, &[u8]), String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("not an npy file: it does not begin with \\x93NUMPY")?;
    let short = || "the file ends inside its header".to_string();
    let (version, rest) = rest.split_first_chunk::<2>().ok_or_else(short)?;
    let (length, rest) = match version[0] {
        1 => rest.split_first_chunk::<2>().map(|(n, rest)| (u16::from_le_bytes(*n) as usize, rest)),
        2 | 3 => rest.split_first_chunk::<4>().map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        v => return Err(format!("version {v} of the format is not known")),
    }
    .ok_or_else(short)?;
    let (header, data) = rest.split_at_checked(length).ok_or_else(short)?;
    Ok((std::str::from_utf8(header).map_err(|_| "the header is not UTF-8")?, data))
}

#[derive(Debug, PartialEq)]
struct Header {
    stored: Stored,
    fortran: bool,
    shape: Vec<usize>,
}

impl Header {
    /// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`: these three keys, each once, in any order, and
    /// nothing else.
    fn parse(text: &str) -> Result<Header, String> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        let mut rest = text.trim_start().strip_prefix('{').ok_or("the header is not a dictionary")?.trim_start();
        while !rest.starts_with('}') {
            let (key, after) = quoted(rest).ok_or("a key of the header is not a string")?;
            let value = after.trim_start().strip_prefix(':').ok_or_else(|| format!("`:` does not follow {key:?}"))?;
            let value = value.trim_start();
            let (is_second, after) = match key {
                "descr" => {
                    let (name, after) =
                        quoted(value).ok_or("the header's descr is not a string: records are not supported")?;
                    (descr.replace(name).is_some(), after)
                }
                "fortran_order" => {
                    let (is_fortran, after) = match (value.strip_prefix("True"), value.strip_prefix("False")) {
                        (Some(after), _) => (true, after),
                        (_, Some(after)) => (false, after),
                        _ => return Err("the header's fortran_order is neither True nor False".into()),
                    };
                    (fortran.replace(is_fortran).is_some(), after)
                }
                "shape" => {
                    let (sizes, after) = tuple(value)?;
                    (shape.replace(sizes).is_some(), after)
                }
                _ => return Err(format!("the header has an unknown key {key:?}")),
            };
            if is_second {
                return Err(format!("the key {key:?} comes twice"));
            }
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if rest.starts_with('}') => {}
                None => return Err(format!("neither `,` nor `}}` follows the value of {key:?}")),
            }
        }
        if !rest[1..].trim().is_empty() {
            return Err("the header goes on after its dictionary".into());
        }
        let missing = |key: &str| format!("the header has no {key}");
        let stored = stored(descr.ok_or_else(|| missing("descr"))?)?;
        let fortran = fortran.ok_or_else(|| missing("fortran_order"))?;
        Ok(Header { stored, fortran, shape: shape.ok_or_else(|| missing("shape"))? })
    }
}

/// A Python string without escapes, and what follows it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let (inside, after) = text[1..].split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, after))
}

/// A Python tuple of sizes, and what follows it.
fn tuple(text: &str) -> Result<(Vec<usize>, &str), String> {
    let inside = text.strip_prefix('(').and_then(|s| s.split_once(')'));
    let (inside, after) = inside.ok_or("the header's shape is not a tuple")?;
    // `(2,)` and `(2, 3)`: a comma may follow the last size, and only there may nothing follow a comma.
    let list = inside.trim_end();
    let list = list.strip_suffix(',').unwrap_or(list);
    let mut sizes = Vec::new();
    for word in list.split(',').map(str::trim).filter(|_| !inside.trim().is_empty()) {
        if sizes.len() == MAX_RANK {
            return Err(format!("the header's shape has more than {MAX_RANK} axes"));
        }
        let is_number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let size = is_number.then(|| word.parse().ok()).flatten();
        sizes.push(size.ok_or_else(|| format!("{word:?} is not a size"))?);
    }
    Ok((sizes, after))
}

fn stored(name: &str) -> Result<Stored, String> {
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, stored)| *stored).ok_or_else(|| {
        let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).collect();
        format!("elements of type {name:?} are not supported; known are {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_in_any_order() {
        let found = Header::parse("{'shape': (2, 3), 'fortran_order': True, 'descr': '<f4', }");
        assert_eq!(found, Ok(Header { stored: Stored::F32, fortran: true, shape: vec![2, 3] }));
        let found = Header::parse("{\"descr\":\"|u1\",\"fortran_order\":False,\"shape\":()}\n");
        assert_eq!(found, Ok(Header { stored: Stored::U8, fortran: false, shape: vec![] }));
        let found = Header::parse("  {'descr' : '<i8' , 'shape': ( 7 , ) , 'fortran_order': False}  \n");
        assert_eq!(found, Ok(Header { stored: Stored::I64, fortran: false, shape: vec![7] }));
    }
}
