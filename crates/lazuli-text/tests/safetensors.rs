//! Models in folders with `config.json`, `tokenizer.json` and safetensors: the same weights under the names that Hugging Face's
//! libraries give them have the logits and tokens of the GGUF file.

use std::path::{Path, PathBuf};

use lazuli::{Device, Tensor};
use lazuli_io::Gguf;
use lazuli_text::LanguageModel;
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.gguf"))
}

/// What Hugging Face calls a tensor of the GGUF file.
fn name_of(gguf: &str, model: &str) -> String {
    let has_norms_after = model.starts_with("gemma2") || model.starts_with("gemma3");
    let Some((layer, part)) = gguf.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return match gguf {
            "token_embd.weight" => "model.embed_tokens.weight".into(),
            "output_norm.weight" => "model.norm.weight".into(),
            "output.weight" => "lm_head.weight".into(),
            other => panic!("{other}"),
        };
    };
    let (stem, ending) = part.rsplit_once('.').unwrap();
    let stem = match stem {
        "attn_norm" => "input_layernorm",
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_qkv" => "self_attn.qkv_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "post_attention_norm" => "post_attention_layernorm",
        "post_ffw_norm" => "post_feedforward_layernorm",
        "ffn_norm" if has_norms_after => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" if model.starts_with("phi3") => "mlp.gate_up_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        other => panic!("{other}"),
    };
    format!("model.layers.{layer}.{stem}.{ending}")
}

/// `config.json` of a tiny model.
fn config(file: &Gguf, model: &str, model_type: &str) -> Value {
    let arch: &str = file.metadata().get("general.architecture").unwrap();
    let number = |key: &str| file.metadata().get::<u64>(&format!("{arch}.{key}")).unwrap();
    let mut config = json!({
        "model_type": model_type,
        "hidden_size": number("embedding_length"),
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"),
        "head_dim": number("attention.key_length"),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "eos_token_id": 2,
    });
    if model == "phi3_long" {
        let factors = |length: &str| {
            let tensor = file.tensor(&format!("rope_factors_{length}.weight"), &Device::cpu()).unwrap();
            tensor.to_vec::<f32>().unwrap()
        };
        config["original_max_position_embeddings"] = number("rope.scaling.original_context_length").into();
        let (short_factor, long_factor) = (factors("short"), factors("long"));
        config["rope_scaling"] = json!({
            "type": "longrope", "short_factor": short_factor, "long_factor": long_factor, "attention_factor": 1.19,
        });
    }
    if model.starts_with("gemma2") || model.starts_with("gemma3") {
        config["sliding_window"] = number("attention.sliding_window").into();
        config["query_pre_attn_scalar"] = number("attention.key_length").into();
    }
    match model {
        "gemma2" => {
            config["attn_logit_softcapping"] = 5.0.into();
            config["final_logit_softcapping"] = 3.0.into();
        }
        "llama3" => {
            config["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            });
        }
        "linear" => config["rope_scaling"] = json!({"type": "linear", "factor": 4.0}),
        // As newer libraries write it.
        "yarn" => {
            config["rope_parameters"] = json!({
                "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "rope_theta": 10_000.0,
            });
            config["rope_theta"] = Value::Null;
        }
        "gemma3_linear" => {
            config["rope_parameters"] = json!({
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            });
            config["rope_theta"] = Value::Null;
        }
        _ => {}
    }
    config
}

/// Queries and keys of llama's GGUF files have the two features of a pair side by side; in safetensors one is in each half of a
/// head.
fn with_pairs_of_halves(weight: &Tensor, head_dim: usize) -> Tensor {
    let [n_rows, width] = weight.dims().unwrap();
    weight.reshape([n_rows / head_dim, head_dim / 2, 2, width]).transpose(1, 2).reshape([n_rows, width])
}

/// `tokenizer.json` of byte-level BPE, as Qwen's is.
fn tokenizer(file: &Gguf) -> Value {
    let names: &[String] = file.metadata().get("tokenizer.ggml.tokens").unwrap();
    let merges: &[String] = file.metadata().get("tokenizer.ggml.merges").unwrap();
    let vocab: serde_json::Map<String, Value> =
        names.iter().enumerate().skip(3).map(|(id, name)| (name.clone(), id.into())).collect();
    let added: Vec<Value> =
        (0..3).map(|id| json!({"id": id, "content": names[id], "special": true, "normalized": false})).collect();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"},
            {"type": "ByteLevel", "use_regex": false},
        ]},
    })
}

fn write(folder: &Path, name: &str, json: &Value) {
    std::fs::write(folder.join(name), json.to_string()).unwrap();
}

/// Models whose logits as GGUF files are llama.cpp's, and their `model_type`.
const MODELS: [(&str, &str); 12] = [
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("phi3", "phi3"),
    ("phi3_long", "phi3"),
    ("gemma3", "gemma3_text"),
    ("llama3", "llama"),
    ("mistral", "mistral"),
    ("gemma", "gemma"),
    ("gemma2", "gemma2"),
    ("linear", "llama"),
    ("yarn", "qwen2"),
    ("gemma3_linear", "gemma3_text"),
];

#[test]
fn folders_have_the_logits_and_tokens_of_gguf_files() {
    let cpu = Device::cpu();
    let words = Gguf::open(fixture("qwen3")).unwrap();
    for (model, model_type) in MODELS {
        let file = Gguf::open(fixture(model)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&file, model, model_type);
        let head_dim = config["head_dim"].as_u64().unwrap() as usize;
        let tensors: Vec<(String, Tensor)> = file
            .tensors()
            .iter()
            // In folders, factors are in config.json.
            .filter(|entry| !entry.name.starts_with("rope_"))
            .map(|entry| {
                let tensor = file.tensor(&entry.name, &cpu).unwrap();
                let has_neighbours = ["llama", "mistral"].contains(&model_type);
                let stored = match &*entry.name {
                    name if model_type.starts_with("gemma") && name.contains("norm") => tensor.sub(1.0),
                    name if has_neighbours && (name.contains("attn_q.") || name.contains("attn_k.")) => {
                        with_pairs_of_halves(&tensor, head_dim)
                    }
                    _ => tensor,
                };
                (name_of(&entry.name, model), stored)
            })
            .collect();
        // The first model is in two files.
        if model == "qwen2" {
            let (a, b) = tensors.split_at(tensors.len() / 2);
            let mut map = serde_json::Map::new();
            for (name, part) in [("model-1.safetensors", a), ("model-2.safetensors", b)] {
                lazuli_io::save(folder.path().join(name), part).unwrap();
                map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.into())));
            }
            write(folder.path(), "model.safetensors.index.json", &json!({"weight_map": map}));
        } else {
            lazuli_io::save(folder.path().join("model.safetensors"), &tensors).unwrap();
        }
        config["vocab_size"] = file.tensors().iter().find(|t| t.name == "token_embd.weight").unwrap().shape[0].into();
        write(folder.path(), "config.json", &config);
        write(folder.path(), "tokenizer.json", &tokenizer(&words));
        let settings = json!({"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"});
        write(folder.path(), "tokenizer_config.json", &settings);

        let opened = LanguageModel::open(folder.path(), &cpu).unwrap();
        let reference = LanguageModel::open(fixture(model), &cpu).unwrap();
        let tokens: Vec<u32> = (0..20).map(|i| 5 + 13 * i % 300).collect();
        for context in [opened.decoder().config().context, 512] {
            let read = |model: &LanguageModel| model.session().with_context(context).unwrap().read(&tokens).unwrap();
            let (got, want) = (read(&opened), read(&reference));
            let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
            let distance = got.iter().zip(&want).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(distance <= 1e-4 * largest, "{model}, {context}: {distance} of {largest}");
        }
        assert_eq!(opened.template().source(), "{{ messages[0].content }}");
        assert_eq!(opened.tokenizer().eos(), Some(2));
        if model == "qwen3" {
            for text in ["The quick brown fox", "I'LL pay 123 €\n\n  世界 😀", "<|im_end|>"] {
                assert_eq!(
                    opened.tokenizer().encode(text).unwrap(),
                    reference.tokenizer().encode(text).unwrap(),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn folders_that_cannot_be_models_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let told = || LanguageModel::open(folder.path(), &Device::cpu()).map(drop).unwrap_err().to_string();
    assert!(told().contains("config.json"), "{}", told());
    write(folder.path(), "config.json", &json!({"model_type": "mamba"}));
    assert!(told().contains("model type `mamba` is not supported; there are llama, mistral"), "{}", told());
    let file = Gguf::open(fixture("qwen3")).unwrap();
    write(folder.path(), "config.json", &config(&file, "qwen3", "qwen3"));
    write(folder.path(), "tokenizer.json", &json!({"model": {"type": "Unigram"}}));
    assert!(told().contains("a model of type `Unigram` is not supported"), "{}", told());
    write(folder.path(), "tokenizer.json", &tokenizer(&file));
    // A template that is there but is no text is not taken for none.
    let template = folder.path().join("chat_template.jinja");
    std::fs::write(&template, [0xff, 0xfe]).unwrap();
    assert!(told().contains("chat_template.jinja: "), "{}", told());
    std::fs::remove_file(template).unwrap();
    write(folder.path(), "model.safetensors.index.json", &json!({"weight_map": {"a": "../b.safetensors"}}));
    assert!(told().contains("`../b.safetensors` is no name of a file beside it"), "{}", told());
}
