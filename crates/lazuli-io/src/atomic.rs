//! Writing so that a crash never leaves half a file: beside the old one, synced, then put in its place. What is replaced
//! are the contents: the file stays where links lead to, and keeps its permissions.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use lazuli::Result;

use crate::fault;

/// Writes `bytes` to `path`: whoever opens it finds the old contents or the new ones, never a part of either.
///
/// A file that is replaced keeps its permissions; a new one gets the usual ones. Symbolic links are followed, and stay.
/// A link that leads nowhere, a folder and a file that is read-only are errors. The new contents are a new file: it belongs
/// to whoever writes it, and other hard links keep the old one. What is no ordinary file, such as a pipe, is written to
/// as it is.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("a");
/// lazuli_io::write_atomically(&path, b"first")?;
/// lazuli_io::write_atomically(&path, b"second")?;
/// assert_eq!(std::fs::read(&path)?, b"second");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let _caller = fault::caller();
    let path = path.as_ref();
    let write = || match target(path)? {
        Target::New(path) => replace(&path, None, bytes),
        Target::File(path, old) => replace(&path, Some(&old), bytes),
        // Putting a file in its place would take it from whoever reads it: the pipe, or all users of a device.
        Target::Stream(path) => OpenOptions::new().write(true).open(path)?.write_all(bytes),
    };
    write().map_err(|error| fault::io("write", path, &error))
}

/// What a path leads to.
enum Target {
    /// Nothing yet.
    New(PathBuf),
    /// A file, with what is known of it.
    File(PathBuf, Metadata),
    /// A pipe, a device or the like.
    Stream(PathBuf),
}

/// Resolves symbolic links to the real target of a save, and refuses a target that may not be written.
fn target(path: &Path) -> io::Result<Target> {
    let is_link = match fs::symlink_metadata(path) {
        Ok(about) => about.is_symlink(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Target::New(path.to_path_buf())),
        Err(error) => return Err(error),
    };
    let path = match is_link {
        true => fs::canonicalize(path).map_err(|error| dangling(path, error))?,
        false => path.to_path_buf(),
    };
    let about = fs::metadata(&path)?;
    if about.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a folder, not a file"));
    }
    if !about.is_file() {
        return Ok(Target::Stream(path));
    }
    if about.permissions().readonly() {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "it is read-only"));
    }
    // A folder that may be written to lets any file in it be replaced; whoever may not write a file must not do that.
    OpenOptions::new().write(true).open(&path)?;
    Ok(Target::File(path, about))
}

/// A link whose end is not there, said with the name that is missing.
fn dangling(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(end) if error.kind() == ErrorKind::NotFound => {
            let message = format!("it is a symbolic link to {}, which is not there", end.display());
            io::Error::new(ErrorKind::NotFound, message)
        }
        _ => error,
    }
}

/// Writes a file beside `path` and gives it the name, with the permissions of the one that had it.
fn replace(path: &Path, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    let (beside, mut file) = create_beside(path, old.is_some())?;
    let mut write = || {
        file.write_all(bytes)?;
        if let Some(old) = old {
            file.set_permissions(permissions(old))?;
        }
        // On disk before it gets the name: else a power cut could leave the name with nothing behind it.
        file.sync_all()?;
        fs::rename(&beside, path)?;
        sync_folder(path)
    };
    write().inspect_err(|_| {
        // What is left of the attempt is of no use; that it cannot be removed changes nothing.
        let _ = fs::remove_file(&beside);
    })
}

/// A new file in the folder of `path`. One that will get the permissions of another is private until then.
fn create_beside(path: &Path, is_private: bool) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "the path names no file"))?;
    // A part of the name tells people what this was; all of it could make the new name too long.
    let name: String = name.to_string_lossy().chars().take(32).collect();
    let mut options = OpenOptions::new();
    // Never a file that is there: it may be another process's, or a link that leads elsewhere.
    options.write(true).create_new(true);
    #[cfg(unix)]
    if is_private {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = is_private;
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_file_name(format!(".{name}.{}.{count}.tmp", std::process::id()));
        match options.open(&beside) {
            // Left by a process that was killed, and had the same number.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            opened => return opened.map(|file| (beside, file)),
        }
    }
}

/// Who may read and write; not what lets a program run as its owner, who may be another now.
fn permissions(old: &Metadata) -> fs::Permissions {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut permissions = old.permissions();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        permissions.set_mode(permissions.mode() & 0o777);
    }
    permissions
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
