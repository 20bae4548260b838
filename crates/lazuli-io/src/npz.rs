//! NumPy's npz: a zip of npy files.

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
pub fn save_npz(path: impl AsRef<Path>, tensors: &[(String, Tensor)]) -> Result<()> {
    let path = path.as_ref();
    let failed = |error: &dyn std::fmt::Display| fault::parse("save_npz", error.to_string());
    // The archive's bytes: elements, which may become f32, two headers each with the name, and npy's.
    let (mut bytes, mut n_bytes) = (Vec::new(), 1024);
    for (name, tensor) in tensors {
        n_bytes += tensor.shape()?.iter().product::<usize>() * tensor.dtype()?.size().max(4) + 4 * name.len() + 1024;
    }
    elements::reserve("save_npz", &mut bytes, n_bytes)?;
    let mut archive = ZipWriter::new(Cursor::new(bytes));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(true);
    for (name, tensor) in tensors {
        archive.start_file(format!("{name}.npy"), options).map_err(|e| failed(&e))?;
        archive.write_all(&to_npy(tensor)?).map_err(|e| failed(&e))?;
    }
    let bytes = archive.finish().map_err(|e| failed(&e))?.into_inner();
    write_atomically(path, &bytes)
}

/// Loads the tensors of an archive, compressed or not, in the order of the archive.
///
/// ```
/// # use lazuli::Device;
/// assert!(lazuli_io::load_npz("no such file", &Device::cpu()).is_err());
/// ```
pub fn load_npz(path: impl AsRef<Path>, device: &Device) -> Result<Vec<(String, Tensor)>> {
    let path = path.as_ref();
    let bytes = fs::read(path).map_err(|error| fault::io("load_npz", path, &error))?;
    let failed = |error: &dyn std::fmt::Display| fault::parse("load_npz", error.to_string());
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| failed(&e))?;
    let mut out = Vec::new();
    for i in 0..archive.len() {
        let mut file = archive.by_index(i).map_err(|e| failed(&e))?;
        let name = file.name().map_err(|e| failed(&e))?.to_string();
        let claimed = file.size();
        // Grows with what comes out, never with what is claimed; more than is claimed is refused.
        let mut contents = Vec::new();
        let read = file.by_ref().take(claimed.saturating_add(1)).read_to_end(&mut contents);
        read.map_err(|e| match e.kind() {
            ErrorKind::OutOfMemory => fault::io("load_npz", path, &e),
            _ => failed(&e),
        })?;
        if contents.len() as u64 != claimed {
            return Err(failed(&format!("`{name}` claims {claimed} bytes and has another number")));
        }
        let tensor = from_npy(&contents, device).map_err(|e| fault::of_tensor("load_npz", &name, &e))?;
        out.push((name.strip_suffix(".npy").unwrap_or(&name).to_string(), tensor));
    }
    Ok(out)
}
