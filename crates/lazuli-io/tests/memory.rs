//! Files that are loaded and saved while memory runs out.

#[path = "../../lazuli/tests/memory/refusing.rs"]
mod refusing;

use std::io::{Cursor, Write};

use lazuli::{DType, Device, Result, Tensor};
use refusing::{LARGE, check, uncounted};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

#[global_allocator]
static ALLOCATOR: refusing::Refusing = refusing::Refusing;

fn some(n: usize, device: &Device) -> Vec<(String, Tensor)> {
    let x = Tensor::arange(0.0, n as f64, 1.0, device);
    let of = |dtype: DType| (dtype.to_string(), x.to_dtype(dtype).compute().unwrap());
    [DType::F32, DType::I32, DType::F16, DType::Bool].map(of).to_vec()
}

/// The numbers of all tensors, one after another.
fn numbers(tensors: Vec<(String, Tensor)>) -> Result<Vec<f64>> {
    let mut out = uncounted(|| Vec::with_capacity(1 << 20));
    for (_, tensor) in tensors {
        out.extend(tensor.to_vec::<f64>()?);
    }
    Ok(out)
}

#[test]
fn loading_can_run_out_of_memory() {
    let _turn = refusing::alone();
    let (folder, cpu) = (tempfile::tempdir().unwrap(), Device::cpu());
    let path = folder.path().join("a.safetensors");
    lazuli_io::save(&path, &some(6000, &cpu)).unwrap();
    check("load", LARGE, || cpu.trim(), || numbers(lazuli_io::load(&path, &cpu)?));
    // Elements that lie across words are copied one by one.
    let bytes = lazuli_io::to_safetensors(&some(6000, &cpu)).unwrap();
    let shifted: Vec<u8> = [0].into_iter().chain(bytes).collect();
    check("from_safetensors", LARGE, || cpu.trim(), || numbers(lazuli_io::from_safetensors(&shifted[1..], &cpu)?));

    let path = folder.path().join("a.npy");
    lazuli_io::save_npy(&path, &some(6000, &cpu)[0].1).unwrap();
    check("load_npy", LARGE, || cpu.trim(), || lazuli_io::load_npy(&path, &cpu)?.to_vec::<f32>());
    // What reading an archive's directory needs is some tens of kilobytes, however large the file.
    let path = folder.path().join("a.npz");
    lazuli_io::save_npz(&path, &some(100_000, &cpu)).unwrap();
    check("load_npz", 32 * LARGE, || cpu.trim(), || numbers(lazuli_io::load_npz(&path, &cpu)?));
}

#[test]
fn loading_what_is_compressed_can_run_out_of_memory() {
    let _turn = refusing::alone();
    let (folder, cpu) = (tempfile::tempdir().unwrap(), Device::cpu());
    let path = folder.path().join("a.npz");
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    for (name, tensor) in some(100_000, &cpu) {
        archive.start_file(format!("{name}.npy"), options).unwrap();
        archive.write_all(&lazuli_io::to_npy(&tensor).unwrap()).unwrap();
    }
    std::fs::write(&path, archive.finish().unwrap().into_inner()).unwrap();
    // What a decompressor needs for itself is some tens of kilobytes, however large the file.
    check("load_npz", 32 * LARGE, || cpu.trim(), || numbers(lazuli_io::load_npz(&path, &cpu)?));
}

#[test]
fn saving_can_run_out_of_memory() {
    let _turn = refusing::alone();
    let cpu = Device::cpu();
    let tensors = some(6000, &cpu);
    check("to_safetensors", LARGE, || cpu.trim(), || lazuli_io::to_safetensors(&tensors));
    check("to_npy", LARGE, || cpu.trim(), || lazuli_io::to_npy(&tensors[0].1));
    let (folder, tensors) = (tempfile::tempdir().unwrap(), some(100_000, &cpu));
    let path = folder.path().join("a.npz");
    check("save_npz", 32 * LARGE, || cpu.trim(), || lazuli_io::save_npz(&path, &tensors));
}

/// A file of four tensors, and metadata as long as a small vocabulary.
fn gguf() -> lazuli_io::GgufWriter {
    let mut file = lazuli_io::GgufWriter::new();
    file.set("words", (0..2000).map(|i| format!("word {i}")).collect::<Vec<String>>());
    file.set("scores", vec![0.5f32; 2000]);
    let tensors = some(6000, &Device::cpu());
    let plain = tensors.iter().filter(|(name, _)| name != "bool");
    plain.for_each(|(name, tensor)| file.push(name.as_str(), tensor).unwrap());
    file
}

#[test]
fn gguf_can_run_out_of_memory() {
    let _turn = refusing::alone();
    let (folder, cpu) = (tempfile::tempdir().unwrap(), Device::cpu());
    let path = folder.path().join("a.gguf");
    gguf().save(&path).unwrap();
    let load = || {
        let file = lazuli_io::Gguf::open(&path)?;
        let tensors = file.tensors().iter().map(|t| Ok((t.name.clone(), file.tensor(&t.name, &cpu)?)));
        numbers(tensors.collect::<Result<_>>()?)
    };
    check("Gguf::tensor", LARGE, || cpu.trim(), load);
    let file = gguf();
    check("GgufWriter::to_bytes", LARGE, || cpu.trim(), || file.to_bytes());
}

/// Loading under `ulimit -v`, in a process of its own.
#[test]
#[cfg(target_os = "linux")]
fn a_starved_process_that_loads_gets_an_error() {
    let _turn = refusing::alone();
    if let Ok(path) = std::env::var("LAZULI_TEST_STARVED") {
        let loaded = lazuli_io::load(&path, &Device::cpu()).map(drop);
        assert!(matches!(loaded, Err(lazuli::Error::OutOfMemory(_))), "{loaded:?}");
        println!("refused and well");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.safetensors");
    // Only the header is written; the rest of the file is a hole.
    let header = r#"{"w":{"dtype":"F32","shape":[67108864],"data_offsets":[0,268435456]}}"#;
    let padded = format!("{header:<80}");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&80u64.to_le_bytes()).unwrap();
    file.write_all(padded.as_bytes()).unwrap();
    file.set_len(88 + (256 << 20)).unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -v 450000 && exec \"$0\" \"$@\""]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "a_starved_process_that_loads_gets_an_error", "--nocapture"]);
    command.envs([("LAZULI_THREADS", "2"), ("MALLOC_ARENA_MAX", "1")]).env("LAZULI_TEST_STARVED", &path);
    let run = command.output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && text.contains("refused and well"), "{}: {text}", run.status);
}
