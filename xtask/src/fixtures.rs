//! `cargo xtask fixtures`: fetches NumPy's validation set for elementary functions and writes it, in compact form,
//! to `crates/lazuli/tests/fixtures/numpy/`. Run again, it writes the same bytes. Tests read the files and need no
//! network; only this needs `python3` with `pip`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::package::{Manager, Package};

/// Where the tables are. With another version, change the folder's README too.
const PACKAGE: Package = Package {
    // One wheel for everyone, whatever machine asks: the data files are the same in all of them.
    manager: Manager::Pip {
        options: &["--python-version=3.12", "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64"],
    },
    name: "numpy",
    version: "2.4.6",
    sha256: "90f9849678c75fe7afa2d348ac842c168b0a4d3d61919687216dfc547976d853",
    licence: "BSD 3-clause, NumPy Developers",
};

/// Where tables and licence are in the wheel.
const TABLES: &str = "numpy/_core/tests/data";
const LICENCE: &str = "numpy-2.4.6.dist-info/licenses/LICENSE.txt";

/// Rows of type `float32` in that version: a guard against a half-read file.
const N_ROWS: usize = 13_181;

/// NumPy's names where ours differ.
const RENAMED: [(&str, &str); 6] = [
    ("arccos", "acos"),
    ("arccosh", "acosh"),
    ("arcsin", "asin"),
    ("arcsinh", "asinh"),
    ("arctan", "atan"),
    ("arctanh", "atanh"),
];

/// Fetches, converts and writes the fixtures.
pub fn run() -> Result<(), String> {
    let work_dir = std::env::temp_dir().join(format!("lazuli-fixtures-{}", std::process::id()));
    fs::create_dir_all(&work_dir).map_err(|e| format!("{}: {e}", work_dir.display()))?;
    let written = PACKAGE.fetch(&work_dir).and_then(|contents| write_all(&contents, &target_dir()));
    // Best effort: what is left in the temporary folder harms nobody.
    let _ = fs::remove_dir_all(&work_dir);
    let n_rows = written?;
    let (name, version, licence) = (PACKAGE.name, PACKAGE.version, PACKAGE.licence);
    println!("fixtures: {n_rows} rows of {name} {version} in {} (licence: {licence})", target_dir().display());
    Ok(())
}

fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/lazuli/tests/fixtures/numpy")
}

/// Converts every table of the unpacked wheel and writes it to `to`. Returns the number of rows.
fn write_all(wheel: &Path, to: &Path) -> Result<usize, String> {
    let (mut n_rows, from) = (0, wheel.join(TABLES));
    for entry in fs::read_dir(&from).map_err(|e| format!("{}: {e}", from.display()))? {
        let name = entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned();
        let Some(function) = name.strip_prefix("umath-validation-set-").and_then(|n| n.strip_suffix(".csv")) else {
            continue;
        };
        let ours = RENAMED.iter().find(|(theirs, _)| *theirs == function).map_or(function, |(_, ours)| ours);
        let text = compact(&read(&from.join(&name))?).map_err(|e| format!("{name}: {e}"))?;
        n_rows += text.lines().count();
        write(&to.join(format!("{ours}.txt")), &text)?;
    }
    if n_rows != N_ROWS {
        return Err(format!("the package has {n_rows} float32 rows, expected {N_ROWS}"));
    }
    // The licences of libraries bundled in the wheel follow after a rule; none of them covers the tables.
    let licence = read(&wheel.join(LICENCE))?;
    let own = licence.split("\n----").next().unwrap_or_default().trim_end();
    write(&to.join("LICENSE"), &format!("{own}\n"))?;
    Ok(n_rows)
}

/// `np.float32,0x3f800000,0x402df854,3` → `3f800000 402df854 3`; rows of other types, comments and the header go.
fn compact(csv: &str) -> Result<String, String> {
    let mut out = String::new();
    for line in csv.lines().filter(|line| line.starts_with("np.float32,")) {
        let cells: Vec<&str> = line.split(',').collect();
        let [_, input, output, ulp] = cells[..] else { return Err(format!("not four cells: {line}")) };
        out += &format!("{:08x} {:08x} {}\n", bits(input)?, bits(output)?, ulp.trim());
    }
    Ok(out)
}

fn bits(hex: &str) -> Result<u32, String> {
    u32::from_str_radix(hex.trim().trim_start_matches("0x"), 16).map_err(|e| format!("{hex}: {e}"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_padded_and_others_dropped() {
        let csv = "dtype,input,output,ulperrortol\n## zeros ##\nnp.float32,0x0,0x3F800000,3\nnp.float64,0x0,0x0,1\n";
        assert_eq!(compact(csv).unwrap(), "00000000 3f800000 3\n");
    }
}
