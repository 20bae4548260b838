//! What is kept between runs of a program, compiled pipelines and what tuning found: the one place of the engine that
//! writes files. They lie in `LAZULI_CACHE_DIR`, or in the system's folder for caches. Losing one costs time, nothing
//! else, so whatever goes wrong here is passed over.

use std::fs;
use std::path::{Path, PathBuf};

/// What a file starts with: what it is, and which version of this layout.
const MAGIC: &[u8; 8] = b"lazuli\x00\x01";
/// More than this is not ours.
const MAX_BYTES: u64 = 256 << 20;

/// Where something of a device is kept, `kind` being what; None if there is no place for it.
pub fn path(device_key: &str, kind: &str) -> Option<PathBuf> {
    let name: String = device_key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(200).collect();
    Some(folder(|name| std::env::var_os(name).map(PathBuf::from))?.join(format!("{name}.{kind}")))
}

/// The folder: what the user says, else what the system says. An empty `LAZULI_CACHE_DIR` means none.
fn folder(var: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(dir) = var("LAZULI_CACHE_DIR") {
        return (!dir.as_os_str().is_empty()).then_some(dir);
    }
    let base = if cfg!(windows) {
        var("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        var("HOME").map(|home| home.join("Library/Caches"))
    } else {
        var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))
    };
    base.filter(|dir| dir.is_absolute()).map(|dir| dir.join("lazuli"))
}

/// What was kept. A file that is damaged, too large, or that others may write to, is as good as none.
pub fn load(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    if !about.is_file() || about.len() > MAX_BYTES || is_writable_by_others(&about) {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let (head, data) = bytes.split_at_checked(16)?;
    let expected = [&MAGIC[..], &checksum(data).to_le_bytes()].concat();
    (head == expected).then(|| data.to_vec())
}

/// Keeps it. Written beside and renamed, so that no reader ever sees half a file.
pub fn store(path: &Path, data: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    let bytes = [MAGIC, &checksum(data).to_le_bytes()[..], data].concat();
    let done = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if done.is_err() {
        // It may never have come to be.
        let _ = fs::remove_file(&beside);
    }
    done
}

/// FNV-1a: tells a damaged file, not a forged one. Who can write to the user's own folder needs no forgery.
fn checksum(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(unix)]
fn is_writable_by_others(about: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    about.permissions().mode() & 0o022 != 0
}

#[cfg(not(unix))]
fn is_writable_by_others(_: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("lazuli-disk-{}-{name}", std::process::id())).join("x.pipelines")
    }

    #[test]
    fn what_is_stored_is_loaded_and_nothing_is_left_beside() {
        let path = temporary("roundtrip");
        store(&path, b"pipelines").unwrap();
        assert_eq!(load(&path).as_deref(), Some(&b"pipelines"[..]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none() {
        let path = temporary("damaged");
        store(&path, b"pipelines").unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(load(&path), None);
        fs::write(&path, &bytes[..7]).unwrap();
        assert_eq!(load(&path), None);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(load(&path), None);
    }

    #[test]
    fn the_user_says_where() {
        let var = |name: &str| (name == "LAZULI_CACHE_DIR").then(|| PathBuf::from("/somewhere"));
        assert_eq!(folder(var), Some(PathBuf::from("/somewhere")));
        assert_eq!(folder(|name| (name == "LAZULI_CACHE_DIR").then(PathBuf::new)), None);
        assert_eq!(folder(|_| None), None);
    }
}
