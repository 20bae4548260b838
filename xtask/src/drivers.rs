//! GPU drivers for tests. A machine without a GPU gets one that runs on its processor: tests that could not run are
//! failures, so there must be something to run them on.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{built, cargo, root, succeed};

/// Where drivers that are only unpacked, not installed, are put.
const FOLDER: &str = "target/drivers";

/// A driver to test with: what to call it and what the Vulkan loader must be told.
pub struct Driver {
    pub name: &'static str,
    pub environment: Vec<(&'static str, String)>,
    /// Whether the engine's own tests run on it, too, and not only those of what GPUs promise.
    pub whole: bool,
    /// Tests that it cannot run, each with the reason.
    pub faults: &'static [(&'static str, &'static str)],
}

/// The drivers to test with: what the system has, and OpenGL if it has that; with `all` SwiftShader beside them, and
/// Vulkan's drivers watched by its validation layer.
pub fn drivers(all: bool) -> Result<Vec<Driver>, String> {
    let system = Driver { name: "system", environment: Vec::new(), whole: true, faults: &[] };
    // Many machines have Mesa's OpenGL and no Vulkan; the engine's own tests do not hold there (see `opengl`).
    let is_enough = |gpus: &[String]| gpus.iter().any(|line| !line.contains("opengl"));
    if !is_enough(&gpus(&system)?) {
        install()?;
        if !is_enough(&gpus(&system)?) {
            return Err("no GPU adapter is found, not even after installing mesa-vulkan-drivers".into());
        }
    }
    let mut drivers = vec![system];
    if all {
        drivers.push(swiftshader()?);
        let layer = validation()?;
        drivers.iter_mut().for_each(|driver| driver.environment.extend(layer.clone()));
    }
    drivers.extend(opengl()?);
    Ok(drivers)
}

/// OpenGL, which the engine looks at only where nothing better is found: Vulkan's loader is told of no driver. The engine's
/// own tests do not hold there: remainders of negative i32 and `abs` of large u32 are wrong on Mesa 22.3's llvmpipe.
fn opengl() -> Result<Option<Driver>, String> {
    if !cfg!(target_os = "linux") {
        return Ok(None);
    }
    let environment = vec![("VK_DRIVER_FILES", "none".to_string())];
    let faults =
        &[("reading_a_stage_does_not_wait_for_later_ones", "Mesa's OpenGL finishes all submits before a read")];
    let driver = Driver { name: "opengl", environment, whole: false, faults };
    match n_gpus(&driver)? {
        0 => {
            println!(
                "opengl: no adapter is found, so nothing is tested with it (Debian has one in libegl1 and libgl1-mesa-dri)"
            );
            Ok(None)
        }
        _ => Ok(Some(driver)),
    }
}

/// Whether a line of output is the validation layer's complaint.
pub fn is_complaint(line: &str) -> bool {
    ["Validation Error", "Validation Warning", "Validation Performance Warning"].iter().any(|text| line.contains(text))
}

/// How many GPUs the engine finds.
pub fn n_gpus(driver: &Driver) -> Result<usize, String> {
    Ok(gpus(driver)?.len())
}

/// The GPUs that the engine finds, a line each. Built as the tests are, so that nothing is compiled for this alone.
fn gpus(driver: &Driver) -> Result<Vec<String>, String> {
    succeed(Command::new(cargo()).args(["test", "--workspace", "--no-run", "--quiet"]))?;
    let output = built("lazuli")?.arg("devices").envs(driver.environment.clone()).output();
    let output = output.map_err(|e| format!("lazuli: {e}"))?;
    if !output.status.success() {
        return Err(format!("`lazuli devices` failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // The first line is the CPU.
    Ok(text.lines().skip(1).map(str::to_string).collect())
}

/// Mesa's driver that runs on the processor.
fn install() -> Result<(), String> {
    println!("no GPU adapter but OpenGL's, if any: installing mesa-vulkan-drivers");
    if !cfg!(target_os = "linux") {
        return Err("no GPU adapter is found, and only on Debian and its kin is it known how to install one".into());
    }
    let update = apt(&["update"]);
    apt(&["install", "--yes", "--no-install-recommends", "mesa-vulkan-drivers", "libvulkan1"]).or(update
        .and(Err("mesa-vulkan-drivers could not be installed; without a GPU adapter GPU tests cannot run".to_string())))
}

/// Runs apt-get, as root.
pub fn apt(words: &[&str]) -> Result<(), String> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
    if !is_root {
        command.arg("apt-get");
    }
    succeed(command.args(words))
}

/// Google's driver that runs on the processor, out of Debian's chromium-common.
fn swiftshader() -> Result<Driver, String> {
    let file = unpack("chromium-common")?.join("usr/lib/chromium/vk_swiftshader_icd.json");
    let environment = vec![("VK_DRIVER_FILES", file.to_string_lossy().into_owned())];
    let driver = Driver { name: "swiftshader", environment, whole: true, faults: &[] };
    match n_gpus(&driver)? {
        0 => Err("SwiftShader was unpacked, but the engine does not find it".into()),
        _ => Ok(driver),
    }
}

/// What the Vulkan loader must be told so that the validation layer looks on and complains to standard output.
fn validation() -> Result<Vec<(&'static str, String)>, String> {
    const SETTINGS: &str = "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n\
                            khronos_validation.report_flags = error,warn\n\
                            khronos_validation.log_filename = stdout\n";
    let folder = unpack("vulkan-validationlayers")?;
    std::fs::write(folder.join("vk_layer_settings.txt"), SETTINGS)
        .map_err(|e| format!("vk_layer_settings.txt: {e}"))?;
    let library = folder.join("usr/lib").join(format!("{}-linux-gnu", std::env::consts::ARCH));
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(vec![
        ("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation".into()),
        ("VK_LAYER_PATH", text(folder.join("usr/share/vulkan/explicit_layer.d"))),
        ("VK_LAYER_SETTINGS_PATH", text(folder)),
        // The layer is named without a folder.
        ("LD_LIBRARY_PATH", text(library)),
    ])
}

/// A Debian package, unpacked but not installed; where.
fn unpack(package: &str) -> Result<PathBuf, String> {
    let (parent, folder) = (root().join(FOLDER), root().join(FOLDER).join(package));
    if folder.exists() {
        return Ok(folder);
    }
    // Into a folder of its own, which gets its name when all of it is there.
    let half = parent.join(format!("{package}.part"));
    let _ = std::fs::remove_dir_all(&half);
    std::fs::create_dir_all(&half).map_err(|e| format!("{FOLDER}: {e}"))?;
    run_in(&half, Command::new("apt-get").args(["download", package]))?;
    let entries = std::fs::read_dir(&half).map_err(|e| e.to_string())?.filter_map(|entry| entry.ok());
    let file = entries.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "deb"));
    let file = file.ok_or(format!("apt-get downloaded no package {package}"))?;
    run_in(&half, Command::new("dpkg-deb").arg("-x").arg(&file).arg(&half))?;
    std::fs::remove_file(&file).map_err(|e| e.to_string())?;
    std::fs::rename(&half, &folder).map_err(|e| format!("{package}: {e}"))?;
    Ok(folder)
}

fn run_in(folder: &Path, command: &mut Command) -> Result<(), String> {
    let status = command.current_dir(folder).status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{status} from {command:?}")) }
}
