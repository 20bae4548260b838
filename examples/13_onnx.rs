//! An ONNX model in a few lines: loaded once, its inputs and outputs by name. Any file will do:
//! `cargo run --release --example 13_onnx -- model.onnx`. Without one, a model that doubles vectors.

use lazuli::{DType, Device, Result, Tensor};
use lazuli_onnx::{Dim, Form, Model};

fn main() -> Result<()> {
    let device = Device::best();
    let model = match std::env::args().nth(1) {
        Some(path) => Model::load(path, &device)?,
        None => Model::from_bytes(&lazuli_onnx::example_bytes(), &device)?,
    };
    // Ones for every input; a size that is open is 3.
    let mut inputs = Vec::new();
    for input in model.inputs() {
        println!("in   {input}");
        let size = |dim: &Dim| if let Dim::Size(n) = dim { *n } else { 3 };
        let shape: Vec<usize> = input.dims.iter().flatten().map(size).collect();
        let dtype = if let Form::Tensor(elem) = input.form { elem.storage() } else { DType::F32 };
        inputs.push((input.name.as_str(), Tensor::ones(shape, dtype, &device)));
    }
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let results = model.run(&inputs)?;

    // Outputs are lazy: asked for together, they are planned together.
    let names: Vec<&str> = results.names().collect();
    let outputs = names.iter().map(|name| results.tensor(name)).collect::<Result<Vec<Tensor>>>()?;
    lazuli::compute(&outputs.iter().collect::<Vec<_>>())?;
    for (name, output) in names.iter().zip(&outputs) {
        println!("out  {name} {:?}\n{output}", output.shape()?);
    }
    if std::env::args().len() == 1 {
        assert_eq!(outputs[0].to_vec::<f32>()?, [2.0, 2.0, 2.0]);
    }
    Ok(())
}
