//! A file's bytes without reading it whole: mapped, so that only what is used is brought in, and each tensor is copied once,
//! from the system's cache to where it will live.

use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::Path;

use lazuli::Result;
use memmap2::Mmap;

use crate::fault;

/// The bytes of a file.
pub enum Mapped {
    /// Mapped.
    File(Mmap),
    /// Read, since it is no ordinary file: a pipe, say.
    Bytes(Vec<u8>),
}

impl Mapped {
    /// Opens a file.
    pub fn open(op: &str, path: &Path) -> Result<Mapped> {
        let open = || {
            let mut file = File::open(path)?;
            let meta = file.metadata()?;
            if meta.is_file() && meta.len() > 0 {
                // SAFETY: the bytes are only looked at, and copied before `load` returns. Whoever writes the file meanwhile,
                // other than `save`, which never changes a file but replaces it, spoils the values, as while reading.
                return unsafe { Mmap::map(&file) }.map(Mapped::File);
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(Mapped::Bytes(bytes))
        };
        open().map_err(|error| fault::io(op, path, &error))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Mapped::File(map) => map,
            Mapped::Bytes(bytes) => bytes,
        }
    }
}
