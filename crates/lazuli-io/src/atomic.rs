//! Writing so that a crash never leaves half a file: beside the old one, synced, then put in its place.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli::Result;

use crate::fault;

/// Writes `bytes` to `path`: whoever opens it finds the old contents or the new ones, never a part of either.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("a");
/// lazuli_io::write_atomically(&path, b"first")?;
/// lazuli_io::write_atomically(&path, b"second")?;
/// assert_eq!(std::fs::read(&path)?, b"second");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let path = path.as_ref();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_file_name(format!(".{name}.{}.{count}.tmp", std::process::id()));
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        // On disk before it gets the name: else a power cut could leave the name with nothing behind it.
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync_folder(path)
    };
    write().map_err(|error| {
        // What is left of the attempt is of no use; that it cannot be removed changes nothing.
        let _ = fs::remove_file(&beside);
        fault::io("write", path, &error)
    })
}

/// The new name itself must reach the disk, too. Only Unix lets folders be synced.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}
