//! Errors know the line: what cannot be read or written names the line on which it was asked for.

use std::path::Path;

use lazuli::{Device, Tensor};
use lazuli_check::fails_here as row;
use lazuli_io::*;

#[test]
#[rustfmt::skip]
fn files_name_the_line_of_the_call() {
    let (cpu, mut wrong) = (Device::cpu(), Vec::new());
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("no such folder/file");
    let nonsense = folder.path().join("nonsense");
    std::fs::write(&nonsense, b"nonsense").unwrap();
    let good = Tensor::arange(0.0, 4.0, 1.0, &cpu);
    let twice = [("w".to_string(), good.clone()), ("w".to_string(), good.clone())];
    let one = &twice[..1];
    for path in [&nowhere, &nonsense] as [&Path; 2] {
        row!(wrong, load(path, &cpu));
        row!(wrong, load_npy(path, &cpu));
        row!(wrong, load_npz(path, &cpu));
        row!(wrong, load_npz_up_to(path, &cpu, 1));
        row!(wrong, Gguf::open(path));
    }
    row!(wrong, save(&nowhere, one));
    row!(wrong, save(&nonsense, &twice));
    row!(wrong, save_npy(&nowhere, &good));
    row!(wrong, save_npz(&nowhere, one));
    row!(wrong, save_npz(&nonsense, &twice));
    row!(wrong, to_safetensors(&twice));
    row!(wrong, from_safetensors(b"nonsense", &cpu));
    row!(wrong, from_npy(b"nonsense", &cpu));
    row!(wrong, write_atomically(&nowhere, b""));
    row!(wrong, Gguf::from_bytes(b"nonsense".to_vec()));
    let mut writer = GgufWriter::new();
    writer.set("general.alignment", 3u32);
    row!(wrong, writer.to_bytes());
    row!(wrong, writer.save(&nowhere));
    row!(wrong, writer.push("x".repeat(64), &good));
    row!(wrong, writer.push_bytes("x", GgufFormat::named("F32").unwrap(), &[2], vec![]));
    row!(wrong, GgufFormat::named("none"));
    let file = Gguf::from_bytes(GgufWriter::new().to_bytes().unwrap()).unwrap();
    row!(wrong, file.tensor("w", &cpu));
    row!(wrong, file.bytes("w"));
    row!(wrong, file.metadata().get::<u32>("k"));
    // A number that does not fit is found when it enters the engine.
    let wide = b"\x93NUMPY\x01\x00\x38\x00{'descr': '<i8', 'fortran_order': False, 'shape': (1,)}\n\xff\xff\xff\xff\xff\xff\xff\x7f";
    row!(wrong, from_npy(wide, &cpu));
    // What a tensor carries keeps its own line.
    let line = line!() + 1;
    let bad = good.reshape([7]);
    assert_eq!(to_npy(&bad).unwrap_err().fault().at.map(|at| at.line()), Some(line));
    assert_eq!(save_npy(&nonsense, &bad).unwrap_err().fault().at.map(|at| at.line()), Some(line));
    assert_eq!(to_safetensors(&[("w".into(), bad)]).unwrap_err().fault().at.map(|at| at.line()), Some(line));
    // What is found while computing names the line of the op.
    let line = line!() + 1;
    let bad = good.gather(0, &Tensor::from_slice(&[9], [1], &cpu));
    assert_eq!(to_npy(&bad).unwrap_err().fault().at.map(|at| at.line()), Some(line));
    assert!(wrong.is_empty(), "{wrong:#?}");
}
