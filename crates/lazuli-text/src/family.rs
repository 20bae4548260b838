//! Families of models: one network, and a row for each family with what it does differently. Everything else (sizes, biases,
//! norms of queries and keys, whether the output is the embedding) is read from the file.

use lazuli::Result;
use lazuli_nn::{Gate, RotaryPairs};

use crate::fault;

/// A family of models.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// What GGUF files call it, and the beginning of its keys.
    pub name: &'static str,
    /// What `config.json` beside safetensors calls it and its relatives.
    pub model_types: &'static [&'static str],
    /// Which features a GGUF file's rotary embedding turns together; safetensors always have halves.
    pub pairs: RotaryPairs,
    /// The gate of the feed-forward network.
    pub gate: Gate,
    /// Whether embeddings are multiplied with √width.
    pub scales_embedding: bool,
    /// Whether safetensors hold the weights of norms less 1.
    pub norms_less_one: bool,
    /// Whether there are norms after attention and after the feed-forward network, too.
    pub norms_after: bool,
    /// Of how many layers in a row all but the last see only a window; 1 if all do that have one, 0 if none does.
    pub window_period: usize,
    /// The rotary base of layers with a window, where it is another one.
    pub window_base: Option<f64>,
}

/// The first family, and what the others differ from.
const LLAMA: Family = Family {
    name: "llama",
    model_types: &["llama", "mistral", "smollm"],
    pairs: RotaryPairs::Neighbours,
    gate: Gate::Silu,
    scales_embedding: false,
    norms_less_one: false,
    norms_after: false,
    window_period: 1,
    window_base: None,
};

/// All families.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family { name: "qwen2", model_types: &["qwen2"], pairs: RotaryPairs::Halves, window_period: 0, ..LLAMA },
    Family { name: "qwen3", model_types: &["qwen3"], pairs: RotaryPairs::Halves, window_period: 0, ..LLAMA },
    Family { name: "phi3", model_types: &["phi3"], pairs: RotaryPairs::Halves, ..LLAMA },
    Family {
        name: "gemma",
        model_types: &["gemma"],
        pairs: RotaryPairs::Halves,
        gate: Gate::Gelu,
        scales_embedding: true,
        norms_less_one: true,
        window_period: 0,
        ..LLAMA
    },
    Family {
        name: "gemma2",
        model_types: &["gemma2"],
        pairs: RotaryPairs::Halves,
        gate: Gate::Gelu,
        scales_embedding: true,
        norms_less_one: true,
        norms_after: true,
        window_period: 2,
        ..LLAMA
    },
    Family {
        name: "gemma3",
        model_types: &["gemma3_text"],
        pairs: RotaryPairs::Halves,
        gate: Gate::Gelu,
        scales_embedding: true,
        norms_less_one: true,
        norms_after: true,
        window_period: 6,
        window_base: Some(10_000.0),
    },
];

impl Family {
    /// The family of an architecture that a GGUF file names.
    pub fn of_architecture(name: &str) -> Result<&'static Family> {
        let known = FAMILIES.iter().map(|family| family.name);
        FAMILIES.iter().find(|family| family.name == name).ok_or_else(|| unknown("architecture", name, known))
    }

    /// The family of a `model_type` of `config.json`.
    pub fn of_model_type(name: &str) -> Result<&'static Family> {
        let known = FAMILIES.iter().flat_map(|family| family.model_types).copied();
        let found = FAMILIES.iter().find(|family| family.model_types.contains(&name));
        found.ok_or_else(|| unknown("model type", name, known))
    }

    /// Whether a layer sees only a window.
    pub fn is_local(&self, layer: usize) -> bool {
        match self.window_period {
            0 => false,
            1 => true,
            period => layer % period < period - 1,
        }
    }
}

fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> lazuli::Error {
    let known: Vec<&str> = known.collect();
    fault::unsupported("model", format!("{what} `{name}` is not supported; there are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_and_others_are_named() {
        assert_eq!(Family::of_architecture("qwen3").unwrap().name, "qwen3");
        assert_eq!(Family::of_model_type("mistral").unwrap().name, "llama");
        let error = Family::of_architecture("mamba").unwrap_err().to_string();
        assert!(error.contains("architecture `mamba` is not supported; there are llama, qwen2"), "{error}");
    }

    #[test]
    fn every_sixth_layer_of_gemma3_sees_everything() {
        let family = Family::of_architecture("gemma3").unwrap();
        let global: Vec<usize> = (0..14).filter(|layer| !family.is_local(*layer)).collect();
        assert_eq!(global, [5, 11]);
    }
}
