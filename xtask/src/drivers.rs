//! GPU drivers for tests. A machine without a GPU gets one that runs on its processor: tests that could not run are
//! failures, so there must be something to run them on.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{built, cargo, succeed};

/// Where drivers that are only unpacked, not installed, are put.
const FOLDER: &str = "target/drivers";

/// A driver to test with: what to call it and what the Vulkan loader must be told.
pub struct Driver {
    pub name: &'static str,
    pub environment: Vec<(&'static str, String)>,
}

/// The drivers to test with: what the system has, and with `all` SwiftShader beside it.
pub fn drivers(all: bool) -> Result<Vec<Driver>, String> {
    let system = Driver { name: "system", environment: Vec::new() };
    if n_gpus(&system)? == 0 {
        install()?;
        if n_gpus(&system)? == 0 {
            return Err("no GPU adapter is found, not even after installing mesa-vulkan-drivers".into());
        }
    }
    let mut drivers = vec![system];
    if all {
        drivers.push(swiftshader()?);
    }
    Ok(drivers)
}

/// How many GPUs the engine finds. Built as the tests are, so that nothing is compiled for this alone.
pub fn n_gpus(driver: &Driver) -> Result<usize, String> {
    succeed(Command::new(cargo()).args(["test", "--workspace", "--no-run", "--quiet"]))?;
    let output = built("lazuli")?.arg("devices").envs(driver.environment.clone()).output();
    let output = output.map_err(|e| format!("lazuli: {e}"))?;
    if !output.status.success() {
        return Err(format!("`lazuli devices` failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // The first line is the CPU.
    Ok(text.lines().count().saturating_sub(1))
}

/// Mesa's driver that runs on the processor.
fn install() -> Result<(), String> {
    println!("no GPU adapter: installing mesa-vulkan-drivers");
    if !cfg!(target_os = "linux") {
        return Err("no GPU adapter is found, and only on Debian and its kin is it known how to install one".into());
    }
    let update = apt(&["update"]);
    apt(&["install", "--yes", "--no-install-recommends", "mesa-vulkan-drivers", "libvulkan1"]).or(update
        .and(Err("mesa-vulkan-drivers could not be installed; without a GPU adapter GPU tests cannot run".to_string())))
}

fn apt(words: &[&str]) -> Result<(), String> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
    if !is_root {
        command.arg("apt-get");
    }
    succeed(command.args(words))
}

/// Google's driver that runs on the processor, out of Debian's chromium-common: unpacked, not installed.
fn swiftshader() -> Result<Driver, String> {
    let folder = std::env::current_dir().map_err(|e| e.to_string())?.join(FOLDER);
    let file: PathBuf = folder.join("chromium/usr/lib/chromium/vk_swiftshader_icd.json");
    if !file.exists() {
        std::fs::create_dir_all(&folder).map_err(|e| format!("{FOLDER}: {e}"))?;
        succeed(Command::new("apt-get").args(["download", "chromium-common"]).current_dir(&folder))?;
        let packages = std::fs::read_dir(&folder).map_err(|e| e.to_string())?.filter_map(|entry| entry.ok());
        let package = packages.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "deb"));
        let package = package.ok_or("apt-get downloaded no package")?;
        succeed(Command::new("dpkg-deb").arg("-x").arg(&package).arg(folder.join("chromium")))?;
        std::fs::remove_file(&package).map_err(|e| e.to_string())?;
    }
    let driver =
        Driver { name: "swiftshader", environment: vec![("VK_DRIVER_FILES", file.to_string_lossy().into_owned())] };
    match n_gpus(&driver)? {
        0 => Err("SwiftShader was unpacked, but the engine does not find it".into()),
        _ => Ok(driver),
    }
}
