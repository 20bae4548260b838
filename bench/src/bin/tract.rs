//! Serves runs of an ONNX model by tract: a run for every line that comes in, answered with its seconds. `xtask/models/speed.py`
//! takes turns with it. The folder is a case of `data/models`; the program is started at the repository's root.
//!
//! ```sh
//! cargo build --release --manifest-path bench/Cargo.toml --no-default-features --features tract --bin tract
//! bench/target/release/tract data/models/magika
//! ```

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tract_linalg::multithread::{Executor, set_default_executor};
use tract_onnx::prelude::*;

const N_THREADS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("which folder?")?);
    let (path, inputs) = case(&folder)?;
    set_default_executor(Executor::multithread(N_THREADS));
    let mut model = tract_onnx::onnx().model_for_path(path)?;
    let outlets = model.input_outlets()?.to_vec();
    let mut values: TVec<TValue> = tvec!();
    for (i, outlet) in outlets.iter().enumerate() {
        let name = model.node(outlet.node).name.clone();
        let input = inputs.iter().find(|input| input.0 == name).ok_or_else(|| format!("no input `{name}`"))?;
        let tensor = npy(&input.1)?;
        model.set_input_fact(i, InferenceFact::dt_shape(tensor.datum_type(), tensor.shape()))?;
        values.push(tensor.into());
    }
    let plan = model.into_optimized()?.into_runnable()?;
    plan.run(values.clone())?;
    println!("ready");
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        plan.run(values.clone())?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The model of a case, and names and files of its inputs.
fn case(folder: &Path) -> Result<(PathBuf, Vec<(String, PathBuf)>), Box<dyn Error>> {
    let (mut model, mut inputs) = (None, Vec::new());
    for line in fs::read_to_string(folder.join("case.txt"))?.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["model", path] if path.contains('/') => model = Some(path.into()),
            ["model", path] => model = Some(folder.join(path)),
            ["input", name, file] => inputs.push((name.to_string(), folder.join(file))),
            _ => {}
        }
    }
    Ok((model.ok_or("the case names no model")?, inputs))
}

/// An array as NumPy writes it: row-major, with a header of version 1.
fn npy(path: &Path) -> Result<Tensor, Box<dyn Error>> {
    let bytes = fs::read(path)?;
    let len = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let (header, data) = (std::str::from_utf8(&bytes[10..10 + len])?, &bytes[10 + len..]);
    let after = |key: &str| header.split(key).nth(1).ok_or_else(|| format!("{}: no {key}", path.display()));
    let shape = after("'shape': (")?.split(')').next().unwrap_or_default();
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let dtype = match after("'descr': '")?.split('\'').next() {
        Some("<f4") => f32::datum_type(),
        Some("<i8") => i64::datum_type(),
        Some("<i4") => i32::datum_type(),
        Some("|u1") => u8::datum_type(),
        Some("|b1") => bool::datum_type(),
        other => return Err(format!("{}: elements {other:?}", path.display()).into()),
    };
    // SAFETY: the file has bytes of such elements; NumPy writes bools as 0 and 1.
    Ok(unsafe { Tensor::from_raw_dt(dtype, &shape, data)? })
}
