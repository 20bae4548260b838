//! BERT's encoder, from safetensors: what every token means in its sentence. Built of tensor ops, so that a sentence is planned
//! and run as a whole.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use lazuli::{Attention, DType, Device, Error, Fault, Result, Tensor};
use serde_json::Value as Json;

/// The encoder with its weights on a device.
pub struct Bert {
    weights: HashMap<String, Tensor>,
    n_layers: usize,
    n_heads: usize,
    eps: f32,
    /// How many tokens a text may have.
    pub n_positions: usize,
    device: Device,
}

impl Bert {
    /// The model of a config.json and a model.safetensors.
    pub fn load(config: &Path, weights: &Path, device: &Device) -> std::result::Result<Bert, String> {
        let fault = |message: String| format!("{}: {message}", config.display());
        let text = std::fs::read_to_string(config).map_err(|e| fault(e.to_string()))?;
        let json: Json = serde_json::from_str(&text).map_err(|e| fault(e.to_string()))?;
        for (key, wanted) in [("model_type", "bert"), ("hidden_act", "gelu")] {
            if json[key] != wanted {
                return Err(fault(format!("{key} is {}; only {wanted} is supported", json[key])));
            }
        }
        let number = |key: &str| {
            let found = json[key].as_u64().filter(|n| (1..1 << 20).contains(n)).map(|n| n as usize);
            found.ok_or_else(|| fault(format!("{key} is {}, no number from 1 on", json[key])))
        };
        let loaded = lazuli_io::load(weights, device).map_err(|e| e.to_string())?;
        // Some files have the name of the whole before the names of parts.
        let bare = |name: String| name.strip_prefix("bert.").map_or(name.clone(), String::from);
        let bert = Bert {
            weights: loaded.into_iter().map(|(name, tensor)| (bare(name), tensor)).collect(),
            n_layers: number("num_hidden_layers")?,
            n_heads: number("num_attention_heads")?,
            n_positions: number("max_position_embeddings")?,
            eps: json["layer_norm_eps"].as_f64().unwrap_or(1e-12) as f32,
            device: device.clone(),
        };
        let width = number("hidden_size")?;
        if !width.is_multiple_of(bert.n_heads) {
            return Err(fault(format!("hidden_size {width} is no multiple of num_attention_heads {}", bert.n_heads)));
        }
        Ok(bert)
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        let missing = || Error::Parse(Arc::new(Fault::new("embed", format!("the weights have no `{name}`"))));
        self.weights.get(name).ok_or_else(missing)
    }

    fn linear(&self, x: &Tensor, at: &str) -> Result<Tensor> {
        let weight = self.weight(&format!("{at}.weight"))?;
        Ok(x.matmul(&weight.t()).add(self.weight(&format!("{at}.bias"))?))
    }

    fn norm(&self, x: &Tensor, at: &str) -> Result<Tensor> {
        let (weight, bias) = (self.weight(&format!("{at}.weight"))?, self.weight(&format!("{at}.bias"))?);
        Ok(x.layer_norm(-1, Some(weight), Some(bias), self.eps))
    }

    /// The mean of what the tokens of a text mean, as a vector of length 1.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor> {
        let n = tokens.len();
        let index = Tensor::from_slice(tokens, [n], &self.device).to_dtype(DType::I32);
        let words = self.weight("embeddings.word_embeddings.weight")?.embedding(&index);
        let places = self.weight("embeddings.position_embeddings.weight")?.narrow(0, 0, n);
        let kind = self.weight("embeddings.token_type_embeddings.weight")?.select_index(0, 0);
        let mut x = self.norm(&words.add(&kind).add(&places), "embeddings.LayerNorm")?;
        let width = x.shape()?[1];
        for layer in 0..self.n_layers {
            let at = |part: &str| format!("encoder.layer.{layer}.{part}");
            let heads = |part: &str| -> Result<Tensor> {
                let made = self.linear(&x, &at(&format!("attention.self.{part}")))?;
                Ok(made.reshape([1, n, self.n_heads, width / self.n_heads]).permute(&[0, 2, 1, 3]))
            };
            let (query, key, value) = (heads("query")?, heads("key")?, heads("value")?);
            let mixed = query.attention(&key, &value, Attention::default()).permute(&[0, 2, 1, 3]).reshape([n, width]);
            let mixed = self.linear(&mixed, &at("attention.output.dense"))?;
            let seen = self.norm(&x.add(&mixed), &at("attention.output.LayerNorm"))?;
            let inner = self.linear(&seen, &at("intermediate.dense"))?.gelu();
            let outer = self.linear(&inner, &at("output.dense"))?;
            x = self.norm(&seen.add(&outer), &at("output.LayerNorm"))?;
        }
        let mean = x.mean(0);
        Ok(mean.div(&mean.norm(0)))
    }
}
