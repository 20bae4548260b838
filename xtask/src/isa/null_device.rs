//! RADV's null device: Mesa's Vulkan driver for AMD compiles for the GPU that `RADV_FORCE_FAMILY` names, and executes
//! nothing. Here it is found or installed, the layer that makes it good enough for wgpu is compiled, and the program is run
//! on it. See docs/decisions/real-gpu-code-without-a-gpu.md.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::listing::Listing;
use crate::drivers::apt;
use crate::workspace::{built, cargo, root, succeed};

/// Where the compiled layer is put.
const FOLDER: &str = "target/isa";
const LAYER_NAME: &str = "VK_LAYER_LAZULI_null_device";
/// What is needed, as Debian calls it.
const PACKAGES: [&str; 5] = ["mesa-vulkan-drivers", "libvulkan1", "libvulkan-dev", "gcc", "libc6-dev"];
/// Where Vulkan drivers are announced.
const ICD_FOLDERS: [&str; 3] = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];

/// A generation of GPUs, and the member that is compiled for.
pub struct Family {
    pub name: &'static str,
    /// What Mesa calls it, newest name last: some have been renamed.
    mesa_names: &'static [&'static str],
    /// Whether Mesa is told to compile compute shaders for waves of 32 invocations; its default for RDNA is 64.
    waves_of_32: bool,
    /// Whether the engine has a preset for it, by which plans and texts are tested without the device.
    pub has_preset: bool,
}

/// The members of RDNA2 and RDNA3.
const NAVI21: &[&str] = &["navi21"];
const NAVI31: &[&str] = &["gfx1100", "navi31"];

/// Waves of 64 in lock-step; waves of 64 or 32; the same with two instructions at a time.
pub const FAMILIES: &[Family] = &[
    Family { name: "GCN", mesa_names: &["polaris10"], waves_of_32: false, has_preset: false },
    Family { name: "RDNA2", mesa_names: NAVI21, waves_of_32: false, has_preset: true },
    Family { name: "RDNA2, waves of 32", mesa_names: NAVI21, waves_of_32: true, has_preset: true },
    Family { name: "RDNA3", mesa_names: NAVI31, waves_of_32: false, has_preset: true },
    Family { name: "RDNA3, waves of 32", mesa_names: NAVI31, waves_of_32: true, has_preset: true },
];

/// Everything that running on the null device needs.
pub struct NullDevice {
    driver: PathBuf,
    folder: PathBuf,
}

impl NullDevice {
    /// Finds the driver and compiles the layer; what is missing is installed.
    pub fn ready() -> Result<NullDevice, String> {
        if !cfg!(target_os = "linux") {
            return Err("RADV's null device, which compiles for AMD's GPUs without one, is on Linux only".into());
        }
        // Built as the tests are, so that the engine is not compiled once more for this.
        succeed(Command::new(cargo()).args(["test", "--workspace", "--no-run", "--quiet", "--test", "cases"]))?;
        let folder = root().join(FOLDER);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{FOLDER}: {e}"))?;
        if radv().is_none() || layer(&folder).is_err() {
            install()?;
        }
        layer(&folder)?;
        let driver = radv().ok_or("mesa-vulkan-drivers is installed, but without RADV, Mesa's driver for AMD")?;
        Ok(NullDevice { driver, folder })
    }

    /// What the driver and the program write while every case is compiled for a family.
    pub fn listing(&self, family: &Family) -> Result<Listing, String> {
        for mesa_name in family.mesa_names {
            let output = self.run(mesa_name, family.waves_of_32)?;
            let text = String::from_utf8_lossy(&output.stderr);
            if text.contains("Unknown family") {
                continue;
            }
            if !output.status.success() {
                let n_lines = text.lines().count();
                let end: Vec<&str> = text.lines().skip(n_lines.saturating_sub(5)).collect();
                return Err(format!("{} for {mesa_name}: {}", output.status, end.join("\n")));
            }
            return Listing::read(&text);
        }
        Err(format!("this Mesa knows none of {} for {}", family.mesa_names.join(", "), family.name))
    }

    fn run(&self, mesa_name: &str, waves_of_32: bool) -> Result<Output, String> {
        let mut command = built("isa-kernels")?;
        command.args(["run", "gpu"]);
        // What the user has set must not change what is compiled.
        for variable in ["LAZULI_LOG", "LAZULI_TUNE", "LAZULI_DEVICE", "LAZULI_CACHE_BYTES"] {
            command.env_remove(variable);
        }
        command
            .env("RADV_FORCE_FAMILY", mesa_name)
            .env("RADV_DEBUG", "shaders,shaderstats")
            .env_remove("RADV_PERFTEST")
            .env("MESA_SHADER_CACHE_DISABLE", "true")
            .env("LAZULI_CACHE_DIR", "")
            // Labels of pipelines are handed on.
            .env("WGPU_DEBUG", "1")
            // The older name of the variable, and the newer one.
            .env("VK_ICD_FILENAMES", &self.driver)
            .env("VK_DRIVER_FILES", &self.driver)
            .env("VK_LAYER_PATH", &self.folder)
            .env("VK_INSTANCE_LAYERS", LAYER_NAME)
            // Mesa's own layer that chooses among devices asks for what the null device does not have.
            .env("NODEVICE_SELECT", "1");
        if waves_of_32 {
            // Mesa's option leaves out kernels that use subgroups; the layer asks for every kernel.
            command.env("RADV_PERFTEST", "cswave32").env("NULL_DEVICE_WAVE", "32");
        }
        command.output().map_err(|e| format!("{command:?}: {e}"))
    }
}

/// The file that announces RADV.
fn radv() -> Option<PathBuf> {
    let is_radv = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("radeon_icd") && name.contains(std::env::consts::ARCH)
    };
    let files = ICD_FOLDERS.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    files.filter_map(|entry| Some(entry.ok()?.path())).find(is_radv)
}

/// Compiles the layer and writes what announces it to Vulkan's loader.
fn layer(folder: &Path) -> Result<(), String> {
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-pthread", "xtask/isa/null_device.c", "-o"]);
    succeed(compiler.arg(folder.join("libnull_device.so")))?;
    let about = format!(
        "{{\"file_format_version\":\"1.1.2\",\"layer\":{{\"name\":\"{LAYER_NAME}\",\"type\":\"GLOBAL\",\
         \"library_path\":\"./libnull_device.so\",\"api_version\":\"1.3.239\",\"implementation_version\":\"1\",\
         \"description\":\"lets wgpu open RADV's null device\"}}}}\n"
    );
    std::fs::write(folder.join("null_device.json"), about).map_err(|e| format!("{FOLDER}: {e}"))
}

fn install() -> Result<(), String> {
    println!("installing what RADV's null device needs: {}", PACKAGES.join(" "));
    let update = apt(&["update"]);
    let words: Vec<&str> = ["install", "--yes", "--no-install-recommends"].into_iter().chain(PACKAGES).collect();
    apt(&words).or(update.and(Err(format!(
        "{} could not be installed; without them no code for real GPUs can be looked at",
        PACKAGES.join(" ")
    ))))
}
