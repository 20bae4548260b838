//! Where a model's weights are: in a GGUF file, or in safetensors beside a `config.json`. Names are those of GGUF; a table says
//! what safetensors call them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lazuli::{Device, Result, Tensor};
use lazuli_io::Gguf;
use serde_json::Value;

use crate::config::ModelConfig;
use crate::fault;

/// The weights of a model.
pub enum WeightFiles {
    /// A GGUF file, of which tensors are taken one by one.
    Gguf(Box<Gguf>),
    /// Tensors by name.
    Safetensors(HashMap<String, Tensor>),
}

/// What a layer's weights are called in GGUF and in safetensors.
const LAYER_NAMES: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_gate_up", "mlp.gate_up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The same for what belongs to no layer.
const MODEL_NAMES: &[(&str, &str)] =
    &[("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

impl WeightFiles {
    /// All safetensors of a folder: one file, or those that an index lists.
    pub fn safetensors(folder: &Path, device: &Device) -> Result<WeightFiles> {
        let index = folder.join("model.safetensors.index.json");
        let paths = if index.exists() { indexed(&index)? } else { vec![folder.join("model.safetensors")] };
        let mut tensors = HashMap::new();
        for path in paths {
            tensors.extend(lazuli_io::load(&path, device)?);
        }
        Ok(WeightFiles::Safetensors(tensors))
    }

    /// Whether angles of pairs of halves are meant, whatever the family's GGUF files have.
    pub fn is_safetensors(&self) -> bool {
        matches!(self, WeightFiles::Safetensors(_))
    }

    /// A weight that must be there, of this shape.
    pub fn get(&self, name: &str, shape: &[usize], config: &ModelConfig, device: &Device) -> Result<Tensor> {
        let found = self.find(name, shape, config, device)?;
        found.ok_or_else(|| {
            fault::parse("model", format!("the file has no tensor `{}`", self.stored_name(name, config)))
        })
    }

    /// A weight of this shape, if it is there.
    pub fn find(&self, name: &str, shape: &[usize], config: &ModelConfig, device: &Device) -> Result<Option<Tensor>> {
        let stored = self.stored_name(name, config);
        let found = match self {
            WeightFiles::Gguf(file) => match file.find(&stored) {
                Some(entry) => {
                    expect_shape(&stored, &entry.shape, shape)?;
                    Some(file.tensor(&stored, device)?)
                }
                None => None,
            },
            WeightFiles::Safetensors(tensors) => tensors.get(&stored).cloned(),
        };
        let Some(tensor) = found else { return Ok(None) };
        expect_shape(&stored, tensor.shape()?, shape)?;
        let is_less_one = self.is_safetensors() && config.family.norms_less_one && name.contains("norm");
        Ok(Some(if is_less_one { tensor.to_dtype(lazuli::DType::F32).add(1.0) } else { tensor }))
    }

    /// What the files call a weight.
    fn stored_name(&self, name: &str, config: &ModelConfig) -> String {
        let WeightFiles::Safetensors(_) = self else { return name.to_string() };
        let (stem, ending) = name.rsplit_once('.').unwrap_or((name, "weight"));
        let known = |names: &[(&str, &'static str)], stem: &str| {
            names.iter().find(|(gguf, _)| *gguf == stem).map(|(_, stored)| *stored)
        };
        if let Some((layer, part)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            let stored = match part {
                // Where there is a norm after attention, the one before the feed-forward network has another name.
                "ffn_norm" if config.family.norms_after => "pre_feedforward_layernorm",
                "ffn_norm" => "post_attention_layernorm",
                part => known(LAYER_NAMES, part).unwrap_or(part),
            };
            return format!("model.layers.{layer}.{stored}.{ending}");
        }
        format!("{}.{ending}", known(MODEL_NAMES, stem).unwrap_or(stem))
    }
}

fn expect_shape(name: &str, found: &[usize], wanted: &[usize]) -> Result<()> {
    match found == wanted {
        true => Ok(()),
        false => Err(fault::parse("model", format!("`{name}` has shape {found:?}, not {wanted:?}"))),
    }
}

/// The files that an index lists, each once. They are beside it, whatever it says.
fn indexed(index: &Path) -> Result<Vec<PathBuf>> {
    let json = read_json(index)?;
    let Some(map) = json.get("weight_map").and_then(Value::as_object) else {
        return Err(fault::parse("model", format!("{}: it has no `weight_map`", index.display())));
    };
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    let beside = |name: &str| match Path::new(name).file_name() {
        Some(file) if file == name => Ok(index.with_file_name(name)),
        _ => Err(fault::parse("model", format!("{}: `{name}` is no name of a file beside it", index.display()))),
    };
    names.into_iter().map(beside).collect()
}

/// A JSON file.
pub fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(|e| fault::io("model", path, &e))?;
    serde_json::from_str(&text).map_err(|e| fault::parse("model", format!("{}: {e}", path.display())))
}
