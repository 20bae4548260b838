//! NumPy's npz: a zip of npy files.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::io::{Cursor, ErrorKind, Read, Write};
use std::path::Path;

use lazuli::{Device, Result, Tensor};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::atomic::write_atomically;
use crate::elements;
use crate::fault;
use crate::npy::{from_npy, to_npy};

/// What an archive may unpack to without being asked: so many bytes, or so many times its own size if that is more. Deflate
/// reaches a ratio of 1000 with zeros, and 100 is more than any numbers that carry something.
const MAX_UNPACKED: u64 = 256 << 20;
const MAX_RATIO: u64 = 100;

/// Saves named tensors as NumPy's `savez` does, atomically.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npz");
/// lazuli_io::save_npz(&path, &[("x".into(), Tensor::scalar(1.5, &Device::cpu()))])?;
/// let loaded = lazuli_io::load_npz(&path, &Device::cpu())?;
/// assert_eq!((loaded[0].0.as_str(), loaded[0].1.item::<f32>()?), ("x", 1.5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn save_npz(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<()> {
    let _caller = fault::caller();
    let path = path.as_ref();
    let failed = |error: &dyn Display| fault::parse("save_npz", error.to_string());
    // The archive's bytes: elements, which may become f32, two headers each with the name, and npy's.
    let (mut bytes, mut n_bytes) = (Vec::new(), 1024);
    for (name, tensor) in tensors {
        n_bytes += tensor.shape()?.iter().product::<usize>() * tensor.dtype()?.size().max(4) + 4 * name.len() + 1024;
    }
    elements::reserve("save_npz", &mut bytes, n_bytes)?;
    let mut archive = ZipWriter::new(Cursor::new(bytes));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    let mut known = HashSet::new();
    for (name, tensor) in tensors {
        sound_name(name).map_err(|message| failed(&message))?;
        if !known.insert(name) {
            return Err(failed(&format!("the name {name:?} comes twice")));
        }
        archive.start_file(format!("{name}.npy"), options).map_err(|e| failed(&e))?;
        archive.write_all(&to_npy(tensor)?).map_err(|e| failed(&e))?;
    }
    let bytes = archive.finish().map_err(|e| failed(&e))?.into_inner();
    write_atomically(path, &bytes)
}

/// Loads the tensors of an archive, compressed or not, in the order of the archive.
///
/// An archive is refused if two of its entries share bytes or a name, if a name leads out of the archive's folder, or if
/// it would unpack to more than 256 MiB and more than 100 times its own size: a small file must not fill the memory.
/// [`load_npz_up_to`] takes another limit.
///
/// ```
/// # use lazuli::Device;
/// assert!(lazuli_io::load_npz("no such file", &Device::cpu()).is_err());
/// ```
#[track_caller]
pub fn load_npz(path: impl AsRef<Path>, device: &Device) -> Result<Vec<(String, Tensor)>> {
    let _caller = fault::caller();
    unpack(path.as_ref(), device, |n_packed| MAX_UNPACKED.max(n_packed.saturating_mul(MAX_RATIO)))
}

/// [`load_npz`] for archives that may unpack to `max_bytes` in all: more than usual for those that are trusted, less for
/// those that are not.
///
/// ```
/// # use lazuli::{Device, Tensor};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.npz");
/// lazuli_io::save_npz(&path, &[("x".into(), Tensor::rand([1000], 1, &Device::cpu()))])?;
/// assert!(lazuli_io::load_npz_up_to(&path, &Device::cpu(), 1 << 30).is_ok());
/// let error = lazuli_io::load_npz_up_to(&path, &Device::cpu(), 4000).unwrap_err();
/// assert!(error.to_string().contains("would unpack to 4128 bytes, more than 4000"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn load_npz_up_to(path: impl AsRef<Path>, device: &Device, max_bytes: u64) -> Result<Vec<(String, Tensor)>> {
    let _caller = fault::caller();
    unpack(path.as_ref(), device, |_| max_bytes)
}

fn unpack(path: &Path, device: &Device, limit: impl Fn(u64) -> u64) -> Result<Vec<(String, Tensor)>> {
    let bytes = fs::read(path).map_err(|error| fault::io("load_npz", path, &error))?;
    let failed = |error: &dyn Display| fault::parse("load_npz", error.to_string());
    let n_packed = bytes.len() as u64;
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| failed(&e))?;
    let names = checked(&mut archive, n_packed, limit(n_packed)).map_err(|message| failed(&message))?;
    let mut out = Vec::with_capacity(names.len());
    for (i, name) in names.into_iter().enumerate() {
        let mut file = archive.by_index(i).map_err(|e| failed(&format!("`{name}`: {e}")))?;
        let claimed = file.size();
        // Grows with what comes out, never with what is claimed; more than is claimed is refused.
        let mut contents = Vec::new();
        let read = file.by_ref().take(claimed.saturating_add(1)).read_to_end(&mut contents);
        read.map_err(|e| match e.kind() {
            ErrorKind::OutOfMemory => fault::io("load_npz", path, &e),
            _ => failed(&format!("`{name}`: {e}")),
        })?;
        if contents.len() as u64 != claimed {
            return Err(failed(&format!("`{name}` claims {claimed} bytes and has another number")));
        }
        let tensor = from_npy(&contents, device).map_err(|e| fault::of_tensor("load_npz", &name, &e))?;
        out.push((name, tensor));
    }
    Ok(out)
}

/// The names of an archive's tensors, if the archive is sound: looks at its headers only.
fn checked(archive: &mut ZipArchive<Cursor<Vec<u8>>>, n_packed: u64, limit: u64) -> Result<Vec<String>, String> {
    let (mut names, mut known, mut total) = (Vec::new(), HashSet::new(), 0u64);
    for i in 0..archive.len() {
        let entry = archive.by_index_data(i).map_err(|e| e.to_string())?;
        let file = entry.name().map_err(|e| e.to_string())?;
        let name = file.strip_suffix(".npy").unwrap_or(&file).to_string();
        sound_name(&name)?;
        if !known.insert(name.clone()) {
            return Err(format!("the name {name:?} comes twice"));
        }
        total = total.saturating_add(entry.size());
        names.push(name);
    }
    // Entries of quite the same name are one by now.
    if archive.has_duplicate_names() {
        return Err("a name comes twice".into());
    }
    if archive.has_overlapping_entries().map_err(|e| e.to_string())? {
        return Err("entries overlap: bytes of the archive belong to more than one".into());
    }
    if total > limit {
        let what = format!("the archive of {n_packed} bytes would unpack to {total} bytes, more than {limit}");
        return Err(format!("{what}; `load_npz_up_to` takes another limit"));
    }
    Ok(names)
}

/// Whether a name would stay within the folder that an archive is unpacked in. Nothing is unpacked to files here, but
/// names are passed on to callers who may do so.
fn sound_name(name: &str) -> Result<(), String> {
    let bytes = name.as_bytes();
    let is_drive = matches!(bytes, [letter, b':', b'/', ..] if letter.is_ascii_alphabetic());
    let leaves = name.starts_with('/') || is_drive || name.split('/').any(|part| part == "..");
    if leaves || name.is_empty() || name.contains(['\\', '\0']) {
        return Err(format!(
            "{name:?} is no name of a tensor: it is empty, has `\\` in it, or leads out of the archive"
        ));
    }
    Ok(())
}
