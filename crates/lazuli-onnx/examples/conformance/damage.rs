//! Damaged copies of models: whatever is done to a file, loading and running it ends, in bounded time and memory, without a panic.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use lazuli::{Device, Tensor};
use lazuli_onnx::{Declared, Dim, Form, Model, Value};

use crate::{SUITES, model_of, tests};

/// The most that a damaged file may take: a second, or ten on a machine that may be busy, and half a gibibyte of memory in the
/// whole process.
const MOST_SECONDS: f64 = 1.0;
const MOST_BUSY_SECONDS: f64 = 10.0;
const MOST_BYTES: u64 = 512 << 20;

/// Models that are fetched beside ONNX's own tests: those of the folders that are there are damaged, too.
const REAL: [&str; 6] = ["moonshine", "silero", "magika", "rapidocr", "basic-pitch", "open-nsfw"];

/// A model to be damaged: its file, and the folder of its inputs, which are zeros if there is none.
type Victim = (PathBuf, Option<PathBuf>);

fn victims(data: &Path, only: Option<&str>) -> Result<Vec<Victim>, String> {
    let mut found = Vec::new();
    for (folder, _) in SUITES {
        let tests = tests(&data.join(folder))?.into_iter().filter(|path| path.is_dir());
        found.extend(tests.map(|path| (model_of(&path), Some(path.join("test_data_set_0")))));
    }
    for name in REAL {
        let folder = data.parent().unwrap_or(Path::new(".")).join(name);
        found.extend(tests(&folder)?.into_iter().filter(|path| path.is_file()).map(|path| (path, None)));
    }
    found.retain(|(path, _)| only.is_none_or(|only| path.to_string_lossy().contains(only)));
    Ok(found)
}

/// A copy with a byte or two changed: mostly one, since more damage seldom leaves a file that can be parsed. Half of it is at the
/// beginning of the file, where nodes are: of a real model's bytes nearly all are weights.
fn damaged_copy(whole: &[u8], random: &mut impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for _ in 0..=random(8) / 6 {
        let n = if random(2) == 0 { bytes.len() } else { bytes.len().min(1 << 16) };
        let at = random(n);
        match random(8) {
            0 => bytes.insert(at, random(256) as u8),
            1 => bytes[at] = 0xff,
            2..=4 => bytes[at] = random(256) as u8,
            _ => bytes[at] ^= 1 << random(8),
        }
    }
    bytes
}

/// Loads and runs damaged copies of every model on the CPU: `n` copies of each test's model, a tenth as many of each real one. Any
/// copy may be refused, but none may panic or exceed the bound of memory, and one that exceeds the bound of time is tried again and
/// may not exceed it three times.
pub fn run(data: &Path, only: Option<&str>, n: usize, is_bounded: bool) -> Result<bool, String> {
    let (mut n_files, mut n_loaded, mut panics) = (0, 0, Vec::new());
    let (mut slowest, mut slow) = (0.0f64, Vec::new());
    let most_seconds = if is_bounded { MOST_SECONDS } else { MOST_BUSY_SECONDS };
    // Xorshift, so that a failure can be repeated.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n.max(1) as u64) as usize
    };
    for (path, set) in victims(data, only)? {
        let whole = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        for _ in 0..if set.is_some() { n } else { n.div_ceil(10) } {
            let bytes = damaged_copy(&whole, &mut random);
            n_files += 1;
            let run = || {
                let start = Instant::now();
                let loaded = catch_unwind(AssertUnwindSafe(|| damaged(&bytes, set.as_deref())));
                (loaded, start.elapsed().as_secs_f64())
            };
            let (loaded, mut seconds) = run();
            // Other programs take their share of the time: what is slow must be so again.
            for _ in 0..2 {
                if seconds > most_seconds {
                    seconds = seconds.min(run().1);
                }
            }
            slowest = slowest.max(seconds);
            match loaded {
                Ok(loaded) => n_loaded += loaded as usize,
                Err(_) => panics.push((path.clone(), bytes.clone())),
            }
            if seconds > most_seconds {
                slow.push((path.clone(), bytes));
            }
        }
    }
    println!(
        "{n_files} damaged files: {n_loaded} were loaded, {} panicked, the slowest took {slowest:.2} s",
        panics.len()
    );
    for (what, files) in [("PANICKED", &panics), ("SLOW", &slow)] {
        for (i, (path, bytes)) in files.iter().take(20).enumerate() {
            let copy = std::env::temp_dir().join(format!("damaged-{what}-{i}.onnx"));
            fs::write(&copy, bytes).map_err(|e| e.to_string())?;
            println!("{what}: a copy of {}, kept as {}", path.display(), copy.display());
        }
    }
    let is_small = match peak_bytes() {
        Some(bytes) => {
            println!("the process took {} MiB at most", bytes >> 20);
            bytes <= MOST_BYTES
        }
        None => true,
    };
    Ok(panics.is_empty() && slow.is_empty() && is_small)
}

/// The most memory that the process has had, where the system tells.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

/// Runs a damaged model on the inputs of its test, or on zeros, and reads what comes; whether it was loaded.
fn damaged(bytes: &[u8], set: Option<&Path>) -> bool {
    let cpu = Device::cpu();
    let Ok(model) = Model::from_bytes(bytes, &cpu) else { return false };
    let mut inputs = Vec::new();
    for (i, input) in model.inputs().iter().enumerate() {
        let value = match set {
            Some(set) => {
                let bytes = fs::read(set.join(format!("input_{i}.pb"))).unwrap_or_default();
                Value::from_file_bytes(&bytes, input.form).and_then(|value| value.on_device(&cpu)).ok()
            }
            None => zeros(input, &cpu),
        };
        inputs.extend(value.map(|value| (input.name.as_str(), value)));
    }
    let Ok(results) = model.run_values(&inputs) else { return true };
    for name in results.names() {
        // What is asked for may be absurd; only what would fit is evaluated.
        let value = results.value(name);
        let is_small = |shape: Vec<usize>| shape.iter().fold(1usize, |n, size| n.saturating_mul(*size)) < 1 << 20;
        if let Ok(value) = value
            && value.shape().is_ok_and(is_small)
        {
            let _ = value.to_f64s();
        }
    }
    true
}

/// Zeros for an input of a real model. Where it declares no size: one picture or sound, of a few pixels or samples.
fn zeros(input: &Declared, device: &Device) -> Option<Value> {
    let (Form::Tensor(elem), Some(dims)) = (input.form, &input.dims) else { return None };
    let size = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Size(n) => *n,
        _ if axis == 0 || !elem.storage().is_float() => 1,
        _ if dims.len() == 2 => 576,
        _ => 64,
    };
    let shape: Vec<usize> = dims.iter().enumerate().map(size).collect();
    let n_elems = shape.iter().fold(1usize, |n, size| n.saturating_mul(*size));
    // What a damaged file declares may be absurd.
    (n_elems < 1 << 20).then(|| Value::new(&Tensor::zeros(shape, elem.storage(), device), elem).ok())?
}
