//! Serves runs of all-MiniLM-L6-v2, as `examples/15_embed.rs` writes it, on tokens 1000, 1001 and so on: what
//! `xtask/models/minilm_speed.py` measures. Sentences and tokens of each are given; a run for every line that comes in.

use std::collections::HashMap;
use std::time::Instant;

use lazuli::{Attention, Device, Result, Tensor, keep};

const HEADS: usize = 12;
const WIDTH: usize = 384;

struct Encoder {
    weights: HashMap<String, Tensor>,
}

impl Encoder {
    fn pair(&self, at: &str) -> [&Tensor; 2] {
        ["weight", "bias"].map(|part| &self.weights[&format!("{at}.{part}")])
    }

    fn linear(&self, x: &Tensor, at: &str) -> Tensor {
        let [weight, bias] = self.pair(at);
        x.matmul(&weight.t()).add(bias)
    }

    fn norm(&self, x: &Tensor, at: &str) -> Tensor {
        let [weight, bias] = self.pair(at);
        x.layer_norm(-1, Some(weight), Some(bias), 1e-12)
    }

    /// The vectors of sentences of equal length.
    fn vectors(&self, tokens: &Tensor) -> Result<Vec<f32>> {
        let [n, len] = tokens.dims()?;
        let table = |name: &str| &self.weights[&format!("embeddings.{name}_embeddings.weight")];
        let places = table("position").narrow(0, 0, len).add(table("token_type").select_index(0, 0));
        let mut x = self.norm(&table("word").embedding(tokens).add(&places), "embeddings.LayerNorm");
        for layer in (0..6).map(|i| format!("encoder.layer.{i}")) {
            let part = |x: &Tensor, name: &str| self.linear(x, &format!("{layer}.{name}"));
            let split = [n, len, HEADS, WIDTH / HEADS];
            let heads = |name| part(&x, &format!("attention.self.{name}")).reshape(split).permute(&[0, 2, 1, 3]);
            let mixed = heads("query").attention(&heads("key"), &heads("value"), Attention::default());
            let mixed = part(&mixed.permute(&[0, 2, 1, 3]).reshape([n, len, WIDTH]), "attention.output.dense");
            let seen = self.norm(&x.add(&mixed), &format!("{layer}.attention.output.LayerNorm"));
            let wide = part(&seen, "intermediate.dense").gelu();
            x = self.norm(&seen.add(part(&wide, "output.dense")), &format!("{layer}.output.LayerNorm"));
        }
        let means = x.mean(1);
        means.div(means.norm(keep(1))).to_vec()
    }
}

fn main() -> Result<()> {
    let number = |i: usize| std::env::args().nth(i).and_then(|word| word.parse::<usize>().ok()).unwrap_or(8);
    let (n, len, device) = (number(1), number(2), Device::cpu());
    let weights = lazuli_io::load("data/minilm/model.safetensors", &device)?.into_iter().collect();
    let encoder = Encoder { weights };
    let tokens: Vec<i32> = (0..(n * len) as i32).map(|i| 1000 + i).collect();
    let tokens = Tensor::from_vec(tokens, [n, len], &device);
    println!("ready {:?}", &encoder.vectors(&tokens)?[..4]);
    for _ in std::io::stdin().lines() {
        let start = Instant::now();
        encoder.vectors(&tokens)?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
