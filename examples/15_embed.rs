//! A sentence encoder of plain tensor ops: all-MiniLM-L6-v2 from its safetensors, on the tokens of three sentences. It needs
//! `cargo xtask data minilm`, and says so; `lazuli embed` takes any text.

use lazuli::{Attention, Device, Result, Tensor};

fn main() -> Result<()> {
    let (device, path) = (Device::best(), "data/minilm/model.safetensors");
    if !std::path::Path::new(path).is_file() {
        println!("{path} is not there: `cargo xtask data minilm` fetches it");
        return Ok(());
    }
    let weights: std::collections::HashMap<String, Tensor> = lazuli_io::load(path, &device)?.into_iter().collect();
    let pair = |at: &str| (&weights[&format!("{at}.weight")], &weights[&format!("{at}.bias")]);
    let linear = |x: &Tensor, at: &str| x.matmul(&pair(at).0.t()).add(pair(at).1);
    let norm = |x: &Tensor, at: &str| x.layer_norm(-1, Some(pair(at).0), Some(pair(at).1), 1e-12);
    let table = |name: &str| &weights[&format!("embeddings.{name}_embeddings.weight")];
    // "A man is eating food.", "Somebody is having a meal.", "Two planets circle one star."
    let food = [101, 1037, 2158, 2003, 5983, 2833, 1012, 102];
    let meal = [101, 8307, 2003, 2383, 1037, 7954, 1012, 102];
    let star = [101, 2048, 11358, 4418, 2028, 2732, 1012, 102];
    let tokens = Tensor::from_slice(&[food, meal, star].concat(), [3, 8], &device);
    let places = table("position").narrow(0, 0, 8).add(table("token_type").select_index(0, 0));
    let mut x = norm(&table("word").embedding(&tokens).add(&places), "embeddings.LayerNorm");
    for layer in (0..6).map(|i| format!("encoder.layer.{i}")) {
        let part = |x: &Tensor, name: &str| linear(x, &format!("{layer}.{name}"));
        let heads = |name| part(&x, &format!("attention.self.{name}")).reshape([3, 8, 12, 32]).permute(&[0, 2, 1, 3]);
        let mixed = heads("query").attention(&heads("key"), &heads("value"), Attention::default());
        let mixed = part(&mixed.permute(&[0, 2, 1, 3]).reshape([3, 8, 384]), "attention.output.dense");
        let seen = norm(&x.add(&mixed), &format!("{layer}.attention.output.LayerNorm"));
        let wide = part(&seen, "intermediate.dense").gelu();
        x = norm(&seen.add(part(&wide, "output.dense")), &format!("{layer}.output.LayerNorm"));
    }
    // What a sentence means is the mean of its tokens, as a vector of length 1.
    let means = x.mean(1);
    let means = means.div(means.norm(lazuli::keep(1)));
    let near = means.matmul(&means.t()).to_vec::<f32>()?;
    println!("food and meal: {:.3}, food and stars: {:.3}", near[1], near[2]);
    assert!((near[1] - 0.669).abs() < 1e-3 && near[2].abs() < 0.1);
    Ok(())
}
