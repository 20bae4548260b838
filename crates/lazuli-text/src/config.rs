//! The numbers of a model, read from a GGUF file's metadata or from `config.json`, and checked before anything is made of them.

use lazuli::Result;
use lazuli_io::{FromGguf, Gguf, GgufMetadata};
use lazuli_nn::RotaryScaling;
use serde_json::Value;

use crate::family::Family;
use crate::fault;

/// The numbers of a model.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// Its family.
    pub family: &'static Family,
    /// How many layers there are.
    pub n_layers: usize,
    /// Features of a token between layers.
    pub width: usize,
    /// Features inside the feed-forward network.
    pub feed_forward: usize,
    /// Heads of queries.
    pub n_heads: usize,
    /// Heads of keys and values.
    pub n_kv_heads: usize,
    /// Features of a head.
    pub head_dim: usize,
    /// How many tokens a session can hold unless it asks for more.
    pub context: usize,
    /// How many tokens a session can hold at most: more than `context` where the model has rotary factors for long contexts.
    pub max_context: usize,
    /// How far layers with a window see.
    pub window: Option<usize>,
    /// Added to mean squares by norms.
    pub norm_eps: f32,
    /// How many features of a head turn with the position.
    pub rotary_dims: usize,
    /// The base of the rotary embedding.
    pub rotary_base: f64,
    /// How its angles are scaled.
    pub rotary_scaling: RotaryScaling,
    /// How they are scaled in sessions with room for more than `context` tokens, if `config.json` says so.
    pub long_scaling: Option<RotaryScaling>,
    /// What turned features are multiplied with where the file has a factor for each pair.
    pub rotary_attention_factor: f64,
    /// What products of queries and keys are multiplied with, if not `1/√head_dim`.
    pub attention_scale: Option<f32>,
    /// Between which numbers attention's scores are kept.
    pub attention_cap: Option<f32>,
    /// Between which numbers logits are kept.
    pub logit_cap: Option<f32>,
}

impl ModelConfig {
    /// The numbers of a GGUF file.
    pub(crate) fn from_gguf(file: &Gguf) -> Result<ModelConfig> {
        let metadata = file.metadata();
        let name: &str = metadata.get("general.architecture")?;
        let family = Family::of_architecture(name)?;
        let keys = Keys { metadata, name };
        let width: usize = keys.get("embedding_length")?;
        let n_heads: usize = keys.get("attention.head_count")?;
        let n_kv_heads = keys.find("attention.head_count_kv")?.unwrap_or(n_heads);
        let head_dim = keys.find("attention.key_length")?.unwrap_or(width / n_heads.max(1));
        let value_dim = keys.find("attention.value_length")?.unwrap_or(head_dim);
        if value_dim != head_dim {
            let message = format!("keys of {head_dim} features and values of {value_dim} are not supported");
            return Err(fault::unsupported("model", message));
        }
        if keys.find::<usize>("expert_count")?.unwrap_or(0) > 0 {
            return Err(fault::unsupported("model", "mixtures of experts are not supported"));
        }
        let max_context: usize = keys.get("context_length")?;
        let trained_length = keys.find("rope.scaling.original_context_length")?.unwrap_or(max_context);
        // With rotary factors for contexts as long as in training and others for longer ones (see `Angles` of the decoder),
        // sessions have the trained length by default.
        let context = match file.find("rope_factors_long.weight") {
            Some(_) => trained_length.min(max_context),
            None => max_context,
        };
        let factor: f64 = keys.find("rope.scaling.factor")?.unwrap_or(1.0);
        let rotary_scaling = match keys.find::<&str>("rope.scaling.type")? {
            // The factors of `longrope` are tensors.
            None | Some("none" | "longrope") => RotaryScaling::None,
            Some("linear") => RotaryScaling::Linear(factor),
            Some("yarn") => {
                // Beside what YaRN scales by itself.
                let own: Option<f64> = keys.find("rope.scaling.attn_factor")?;
                let attention_factor = own.map(|own| own * RotaryScaling::yarn_attention_factor(factor));
                RotaryScaling::Yarn { factor, trained_length, fast: 32.0, slow: 1.0, attention_factor }
            }
            Some(other) => {
                return Err(fault::unsupported("model", format!("rotary scaling `{other}` is not supported")));
            }
        };
        let config = ModelConfig {
            family,
            n_layers: keys.get("block_count")?,
            width,
            feed_forward: keys.get("feed_forward_length")?,
            n_heads,
            n_kv_heads,
            head_dim,
            context,
            max_context,
            window: keys.find("attention.sliding_window")?.filter(|window| *window > 0),
            norm_eps: keys.get("attention.layer_norm_rms_epsilon")?,
            rotary_dims: keys.find("rope.dimension_count")?.unwrap_or(head_dim),
            rotary_base: keys.find("rope.freq_base")?.unwrap_or(10_000.0),
            rotary_scaling,
            long_scaling: None,
            rotary_attention_factor: keys.find("rope.scaling.attn_factor")?.unwrap_or(1.0),
            attention_scale: None,
            attention_cap: keys.find("attn_logit_softcapping")?.filter(|cap| *cap > 0.0),
            logit_cap: keys.find("final_logit_softcapping")?.filter(|cap| *cap > 0.0),
        };
        config.with_scale_of_family().checked()
    }

    /// The numbers of a `config.json`.
    pub(crate) fn from_json(json: &Value) -> Result<ModelConfig> {
        let text = |key: &str| json.get(key).and_then(Value::as_str);
        let model_type = text("model_type").ok_or_else(|| missing("model_type"))?;
        let family = Family::of_model_type(model_type)?;
        let float = |key: &str| json.get(key).and_then(Value::as_f64);
        let count = |key: &str| json.get(key).and_then(Value::as_u64).map(|n| n as usize);
        let needed = |key: &str| count(key).ok_or_else(|| missing(key));
        let (width, n_heads) = (needed("hidden_size")?, needed("num_attention_heads")?);
        let head_dim = count("head_dim").unwrap_or(width / n_heads.max(1));
        let max_context = needed("max_position_embeddings")?;
        // Newer libraries write one object for base and scaling, or one for each kind of layer.
        let object = |key: &str| json.get(key).filter(|value| value.is_object());
        let rope = object("rope_parameters").map(|rope| rope.get("full_attention").unwrap_or(rope));
        let scaling = rope.or_else(|| object("rope_scaling"));
        let trained_length = scaling.and_then(|scaling| scaling.get("original_max_position_embeddings")?.as_u64());
        let trained_length = trained_length.map(|n| n as usize).or(count("original_max_position_embeddings"));
        let trained_length = trained_length.unwrap_or(max_context);
        let (rotary_scaling, long_scaling) = match scaling {
            Some(scaling) => scaling_from_json(scaling, max_context, trained_length)?,
            None => (RotaryScaling::None, None),
        };
        let context = if long_scaling.is_some() { trained_length.min(max_context) } else { max_context };
        let uses_window = json.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(true);
        let config = ModelConfig {
            family,
            n_layers: needed("num_hidden_layers")?,
            width,
            feed_forward: needed("intermediate_size")?,
            n_heads,
            n_kv_heads: count("num_key_value_heads").unwrap_or(n_heads),
            head_dim,
            context,
            max_context,
            window: count("sliding_window").filter(|window| *window > 0 && uses_window),
            norm_eps: float("rms_norm_eps").ok_or_else(|| missing("rms_norm_eps"))? as f32,
            rotary_dims: (head_dim as f64 * float("partial_rotary_factor").unwrap_or(1.0)) as usize,
            rotary_base: rope
                .and_then(|rope| rope.get("rope_theta")?.as_f64())
                .or(float("rope_theta"))
                .unwrap_or(10_000.0),
            rotary_scaling,
            long_scaling,
            rotary_attention_factor: 1.0,
            attention_scale: float("query_pre_attn_scalar").map(|scalar| 1.0 / scalar.sqrt() as f32),
            attention_cap: float("attn_logit_softcapping").map(|cap| cap as f32),
            logit_cap: float("final_logit_softcapping").map(|cap| cap as f32),
        };
        config.checked()
    }

    /// GGUF files leave out how the largest Gemma models scale their queries: by the width of a head as if heads shared the width.
    fn with_scale_of_family(self) -> ModelConfig {
        let n_layers_of_largest = match self.family.name {
            "gemma2" => 46,
            "gemma3" => 62,
            _ => return self,
        };
        let shared = (self.width / self.n_heads.max(1)) as f32;
        let attention_scale = (self.n_layers == n_layers_of_largest).then(|| 1.0 / shared.sqrt());
        ModelConfig { attention_scale, ..self }
    }

    /// Refuses numbers that no model has.
    fn checked(self) -> Result<ModelConfig> {
        let sizes = [
            ("layers", self.n_layers),
            ("features", self.width),
            ("features of the feed-forward network", self.feed_forward),
            ("heads", self.n_heads),
            ("heads of keys", self.n_kv_heads),
            ("features of a head", self.head_dim),
            ("tokens of context", self.context),
            ("tokens of context at most", self.max_context),
        ];
        // So that products of two of them, and positions, fit the engine's numbers.
        if let Some((what, n)) = sizes.iter().find(|(_, n)| *n == 0 || *n > 1 << 26) {
            return Err(fault::parse("model", format!("it says that it has {n} {what}")));
        }
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            let message = format!("{} heads cannot share {} heads of keys", self.n_heads, self.n_kv_heads);
            return Err(fault::parse("model", message));
        }
        if self.rotary_dims > self.head_dim || !self.rotary_dims.is_multiple_of(2) {
            let message = format!("{} of {} features of a head cannot turn in pairs", self.rotary_dims, self.head_dim);
            return Err(fault::parse("model", message));
        }
        if !(self.rotary_base > 0.0 && self.rotary_base.is_finite() && self.norm_eps >= 0.0) {
            let message = format!("a rotary base of {} with norms of ε {}", self.rotary_base, self.norm_eps);
            return Err(fault::parse("model", message));
        }
        Ok(self)
    }

    /// The rotary base of a layer with a window whose angles are its own: those of no longer context than in training.
    pub(crate) fn window_base_of(&self, layer: usize) -> Option<f64> {
        self.family.window_base.filter(|_| self.window.is_some() && self.family.is_local(layer))
    }
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: &'a GgufMetadata,
    name: &'a str,
}

impl<'a> Keys<'a> {
    fn get<T: FromGguf<'a>>(&self, key: &str) -> Result<T> {
        self.metadata.get(&format!("{}.{key}", self.name))
    }

    fn find<T: FromGguf<'a>>(&self, key: &str) -> Result<Option<T>> {
        self.metadata.find(&format!("{}.{key}", self.name))
    }
}

#[track_caller]
fn missing(key: &str) -> lazuli::Error {
    fault::parse("model", format!("config.json has no `{key}` that fits"))
}

/// What `rope_scaling` says of contexts as long as in training, and of longer ones, where that is something else.
fn scaling_from_json(
    json: &Value,
    max_context: usize,
    trained_length: usize,
) -> Result<(RotaryScaling, Option<RotaryScaling>)> {
    let kind = json.get("rope_type").or_else(|| json.get("type")).and_then(Value::as_str).unwrap_or_default();
    let float = |key: &str| json.get(key).and_then(Value::as_f64);
    let needed = |key: &str| float(key).ok_or_else(|| missing(&format!("rope_scaling.{key}")));
    let scaling = match kind {
        "default" => RotaryScaling::None,
        "linear" => RotaryScaling::Linear(needed("factor")?),
        "llama3" => RotaryScaling::Llama3 {
            factor: needed("factor")?,
            low: needed("low_freq_factor")?,
            high: needed("high_freq_factor")?,
            trained_length,
        },
        "yarn" => RotaryScaling::Yarn {
            factor: needed("factor")?,
            trained_length,
            fast: float("beta_fast").unwrap_or(32.0),
            slow: float("beta_slow").unwrap_or(1.0),
            attention_factor: float("attention_factor"),
        },
        "longrope" | "su" => {
            // √(1 + ln s / ln L), where the context is s times as long as the trained length L.
            let scale = (max_context as f64 / trained_length.max(1) as f64).max(1.0);
            let published = (1.0 + scale.ln() / (trained_length.max(2) as f64).ln()).sqrt();
            let attention_factor = float("attention_factor").unwrap_or(published);
            let factors = |key: &str| {
                let list = json.get(key).and_then(Value::as_array);
                let factors: Option<Vec<f64>> = list.and_then(|list| list.iter().map(Value::as_f64).collect());
                let factors = factors.ok_or_else(|| missing(&format!("rope_scaling.{key}")))?;
                Ok(RotaryScaling::Factors { factors, attention_factor })
            };
            return Ok((factors("short_factor")?, Some(factors("long_factor")?)));
        }
        other => return Err(fault::unsupported("model", format!("rotary scaling `{other}` is not supported"))),
    };
    Ok((scaling, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longrope_has_factors_for_short_and_long_contexts() {
        // What Phi-3-mini-128k-instruct has, but for the number of pairs: s = 32, L = 4096.
        let json = serde_json::json!({"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [1.0, 40.0]});
        let (short, long) = scaling_from_json(&json, 131_072, 4_096).unwrap();
        let attention_factor = (1.0f64 + 5.0 / 12.0).sqrt();
        let check = |found: RotaryScaling, want: [f64; 2]| match found {
            RotaryScaling::Factors { factors, attention_factor: found } => {
                assert_eq!(factors, want);
                assert!((found - attention_factor).abs() < 1e-12, "{found}");
            }
            other => panic!("{other:?}"),
        };
        check(short, [1.0, 1.5]);
        check(long.unwrap(), [1.0, 40.0]);
        let cut = serde_json::json!({"type": "longrope", "short_factor": [1.0]});
        let error = scaling_from_json(&cut, 131_072, 4_096).unwrap_err().to_string();
        assert!(error.contains("config.json has no `rope_scaling.long_factor` that fits"), "{error}");
    }
}
