//! `cargo xtask isa`: the benchmarks' kernels as real GPUs would run them, judged without a GPU. Mesa's compiler for AMD
//! tells registers, waves and spills of each, and the machine code tells what its loops consist of. Figures are exactly
//! repeatable, so they are compared with those kept for this version of Mesa. Nothing is timed.

mod listing;
mod figures;
mod null_device;
mod table;

use std::time::Instant;

use crate::workspace::{read, root};
use null_device::{FAMILIES, Family, NullDevice};

/// Where the tables are kept.
const FOLDER: &str = "xtask/isa";
/// What the engine's presets of RDNA2 and RDNA3 go by: a test of the engine compares it with them.
const PRESET: &str = "xtask/isa/rdna.txt";

/// `cargo xtask isa [--write]`.
pub fn run(words: &[String]) -> Result<(), String> {
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => check(),
        ["--write"] => write(),
        _ => Err(format!("takes `--write` or nothing, not `{}`", words.join(" "))),
    }
}

/// What was found for all families.
struct Found {
    /// As in `22.3.6`.
    mesa: String,
    text: String,
    faults: Vec<String>,
}

/// That bounds hold, and that nothing differs from what is kept for this version of Mesa.
pub fn check() -> Result<(), String> {
    let found = found()?;
    found.faults.iter().for_each(|fault| println!("{fault}"));
    let path = found.path();
    let differences = match std::fs::read_to_string(root().join(&path)) {
        Ok(kept) => table::differences(&kept, &found.text),
        Err(_) => {
            println!("{path} is not there: bounds alone are checked with Mesa {}", found.mesa);
            Vec::new()
        }
    };
    differences.iter().for_each(|line| println!("{line}"));
    match (found.faults.len(), differences.len()) {
        (0, 0) => Ok(()),
        (0, n) => Err(format!("{n} lines differ from {path}; if that is meant, `cargo xtask isa --write` keeps them")),
        (n, _) => Err(format!("{n} bounds are broken")),
    }
}

/// Keeps what is found now.
fn write() -> Result<(), String> {
    let found = found()?;
    let path = found.path();
    std::fs::write(root().join(&path), &found.text).map_err(|e| format!("{path}: {e}"))?;
    println!("{path} is written");
    match found.faults.len() {
        0 => Ok(()),
        n => Err(format!("{n} bounds are broken:\n{}", found.faults.join("\n"))),
    }
}

impl Found {
    fn path(&self) -> String {
        format!("{FOLDER}/{}.txt", self.mesa)
    }
}

/// Compiles every case for every family, side by side.
fn found() -> Result<Found, String> {
    let device = NullDevice::ready()?;
    let start = Instant::now();
    let preset = read(PRESET)?;
    let one = |family: &Family| {
        let listing = device.listing(family)?;
        let rows = table::rows(&listing)?;
        let mut faults = table::faults(family.name, &rows);
        if family.has_preset {
            let differences = table::differences(&preset, &listing.target.join("\n"));
            faults.extend(differences.iter().map(|line| format!("{}: unlike {PRESET}: {line}", family.name)));
        }
        Ok::<_, String>((listing.driver, table::text(family.name, &rows), faults))
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = FAMILIES.iter().map(|family| scope.spawn(move || one(family))).collect();
        threads.into_iter().map(|thread| thread.join().expect("reading does not panic")).collect()
    });
    let mut found = Found { mesa: String::new(), text: String::new(), faults: Vec::new() };
    for result in all {
        let (driver, text, faults) = result?;
        found.mesa = mesa_version(&driver)?;
        found.text += &if found.text.is_empty() { text } else { format!("\n{text}") };
        found.faults.extend(faults);
    }
    print!("{}", found.text);
    println!("Mesa {}, {:.1} s", found.mesa, start.elapsed().as_secs_f64());
    Ok(found)
}

/// The version in `radv Mesa 22.3.6`; distributions may append to it.
fn mesa_version(driver: &str) -> Result<String, String> {
    let version = driver.split("Mesa ").nth(1).and_then(|rest| rest.split([' ', '-']).next());
    let version = version.filter(|version| version.starts_with(|c: char| c.is_ascii_digit()));
    version.map(str::to_string).ok_or(format!("`{driver}` names no version of Mesa"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_mesa_are_found_in_names_of_drivers() {
        assert_eq!(mesa_version("radv Mesa 22.3.6").as_deref(), Ok("22.3.6"));
        assert_eq!(mesa_version("radv Mesa 25.0.7-2 (git)").as_deref(), Ok("25.0.7"));
        assert!(mesa_version("NVIDIA 555.1").is_err());
    }

    #[test]
    fn differences_are_told_line_by_line() {
        assert_eq!(table::differences("a\nb\n", "a\nb\n"), [""; 0]);
        assert_eq!(table::differences("a\nb\n", "a\nc\n"), ["- b", "+ c"]);
        assert_eq!(table::differences("a\nb\n", "b\na\n"), ["the same kernels in another order"]);
    }
}
