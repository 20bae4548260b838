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
                // SAFETY: the bytes are only looked at, and copied before they become tensors. Whoever writes the file meanwhile,
                // other than `save`, which never changes a file but replaces it, spoils the values, as while reading.
                return unsafe { Mmap::map(&file) }.map(Mapped::File);
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(Mapped::Bytes(bytes))
        };
        open().map_err(|error| fault::io(op, path, &error))
    }

    /// Lets the system have the memory of some bytes back. They can still be read: they come from the file again.
    pub fn let_go(&self, start: usize, n_bytes: usize) {
        #[cfg(unix)]
        if let Mapped::File(map) = self
            && n_bytes > 0
        {
            // SAFETY: the map is of a file, is shared and is never written, so that pages which are let go are brought back
            // as they were.
            let advised = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, n_bytes) };
            // A system that does not take the advice keeps the pages, which harms nothing.
            drop(advised);
        }
        #[cfg(not(unix))]
        let _ = (start, n_bytes);
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
