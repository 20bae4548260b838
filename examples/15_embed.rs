//! A sentence encoder of plain tensor ops: all-MiniLM-L6-v2 from its safetensors, on the tokens of three sentences. It needs
//! `cargo xtask data minilm`, and says so; `lazuli embed` takes any text.

use std::collections::HashMap;

use lazuli::{Attention, Device, Result, Tensor};

fn main() -> Result<()> {
    let (device, path) = (Device::best(), "data/minilm/model.safetensors");
    if !std::path::Path::new(path).is_file() {
        println!("{path} is not there: `cargo xtask data minilm` fetches it");
        return Ok(());
    }
    let weights: HashMap<String, Tensor> = lazuli_io::load(path, &device)?.into_iter().collect();
    // "A man is eating food.", "Somebody is having a meal.", "The new planner fuses a softmax into one kernel."
    let food = embed(&weights, &[101, 1037, 2158, 2003, 5983, 2833, 1012, 102], &device)?;
    let meal = embed(&weights, &[101, 8307, 2003, 2383, 1037, 7954, 1012, 102], &device)?;
    let tokens = [101, 1996, 2047, 24555, 19976, 2015, 1037, 3730, 17848, 2046, 2028, 16293, 1012, 102];
    let kernel = embed(&weights, &tokens, &device)?;
    let (near, far) = (food.dot(&meal).item::<f32>()?, food.dot(&kernel).item::<f32>()?);
    println!("food and meal: {near:.3}, food and kernel: {far:.3}");
    assert!((near - 0.669).abs() < 1e-3 && far.abs() < 0.1);
    Ok(())
}

/// The mean of what the tokens mean, as a vector of length 1.
fn embed(weights: &HashMap<String, Tensor>, tokens: &[i32], device: &Device) -> Result<Tensor> {
    let (n, w) = (tokens.len(), |name: &str| &weights[name]);
    let linear = |x: &Tensor, at: &str| x.matmul(&w(&format!("{at}.weight")).t()).add(w(&format!("{at}.bias")));
    let norm = |x: &Tensor, at: &str| {
        x.layer_norm(-1, Some(w(&format!("{at}.weight"))), Some(w(&format!("{at}.bias"))), 1e-12)
    };
    let words = w("embeddings.word_embeddings.weight").embedding(&Tensor::from_slice(tokens, [n], device));
    let kind = w("embeddings.token_type_embeddings.weight").select_index(0, 0);
    let places = w("embeddings.position_embeddings.weight").narrow(0, 0, n);
    let mut x = norm(&words.add(&kind).add(&places), "embeddings.LayerNorm");
    for layer in (0..6).map(|i| format!("encoder.layer.{i}")) {
        let heads = |x: &Tensor, part| {
            linear(x, &format!("{layer}.attention.self.{part}")).reshape([1, n, 12, 32]).permute(&[0, 2, 1, 3])
        };
        let mixed = heads(&x, "query").attention(&heads(&x, "key"), &heads(&x, "value"), Attention::default());
        let mixed = linear(&mixed.permute(&[0, 2, 1, 3]).reshape([n, 384]), &format!("{layer}.attention.output.dense"));
        let seen = norm(&x.add(&mixed), &format!("{layer}.attention.output.LayerNorm"));
        let inner = linear(&seen, &format!("{layer}.intermediate.dense")).gelu();
        x = norm(&seen.add(&linear(&inner, &format!("{layer}.output.dense"))), &format!("{layer}.output.LayerNorm"));
    }
    let mean = x.mean(0);
    Ok(mean.div(&mean.norm(0)))
}
