//! The repository as files and the commands run in it. Paths are relative to its root, with `/`, so that what is
//! printed is the same everywhere.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ is in the root").to_path_buf()
}

/// The cargo that started this, so that a chosen toolchain stays chosen.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs a command at the root, with its output shown.
pub fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.current_dir(root()).status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{status} from {command:?}")) }
}

/// The text of a file.
pub fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"))
}

/// The files under `folder` whose names end so, sorted. Build output and hidden folders are left out.
pub fn files(folder: &str, endings: &[&str]) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_string()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).map_err(|e| format!("{folder}: {e}"))? {
            let entry = entry.map_err(|e| format!("{folder}: {e}"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let is_folder = entry.file_type().map_err(|e| format!("{path}: {e}"))?.is_dir();
            // Hidden folders are Git's and editors'; the one that is ours has no rules to keep.
            // A module of the engine is called as the folder for build output.
            let is_ours = !name.starts_with('.') && (name != "target" || folder.ends_with("/src"));
            if is_folder && is_ours {
                folders.push(path);
            } else if !is_folder && endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A program that building the tests has left beside this one.
pub fn built(name: &str) -> Result<Command, String> {
    let this = std::env::current_exe().map_err(|e| e.to_string())?;
    let folder = this.parent().ok_or("xtask is in no folder")?;
    Ok(Command::new(folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))))
}
