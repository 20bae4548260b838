//! Tiny models of every family with random weights: their logits and tokens are llama.cpp's. The files beside were written by
//! `fixtures/make_families.py` and `fixtures/make_references.mjs`. They run on the CPU, or on what `LAZULI_TEST_DEVICE` names.

use std::path::PathBuf;

use lazuli::Device;
use lazuli_text::{FAMILIES, LanguageModel};
use serde_json::Value;

const NAMES: [&str; 8] = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3"];

fn device() -> Device {
    match std::env::var("LAZULI_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap_or_else(|error| panic!("LAZULI_TEST_DEVICE: {error}")),
        Err(_) => Device::cpu(),
    }
}

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn reference(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(&format!("{name}.json"))).unwrap()).unwrap()
}

fn numbers<T: TryFrom<u64>>(json: &Value) -> Vec<T> {
    let number = |x: &Value| T::try_from(x.as_u64().unwrap()).ok().unwrap();
    json.as_array().unwrap().iter().map(number).collect()
}

/// The largest difference, as a share of the largest logit of the reference.
fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    got.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

#[test]
fn every_family_has_a_file() {
    for family in FAMILIES {
        assert!(NAMES.contains(&family.name), "{}", family.name);
    }
}

#[test]
fn logits_are_llama_cpps() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &device()).unwrap();
        let reference = reference(name);
        let tokens: Vec<u32> = numbers(&reference["tokens"]);
        let rows = reference["logits"].as_array().unwrap();
        let got = model.session().read_each(&tokens).unwrap().to_vec::<f32>().unwrap();
        for (i, (got, want)) in got.chunks(model.decoder().n_tokens()).zip(rows).enumerate() {
            let want: Vec<f32> = want.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
            let distance = distance(got, &want);
            assert!(distance <= 1e-3, "{name}, place {i}: {distance}");
        }
    }
}

#[test]
fn reading_token_by_token_gives_the_logits_of_reading_at_once() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &device()).unwrap();
        let tokens: Vec<u32> = numbers(&reference(name)["tokens"]);
        let whole = model.session().read_each(&tokens).unwrap().to_vec::<f32>().unwrap();
        let mut session = model.session();
        for (token, want) in tokens.iter().zip(whole.chunks(model.decoder().n_tokens())) {
            let got = session.read(&[*token]).unwrap();
            assert!(distance(&got, want) <= 1e-4, "{name}: {}", distance(&got, want));
        }
        // Going back and on again is as if nothing had been in between.
        session.truncate(5);
        let again = session.read(&tokens[5..]).unwrap();
        assert!(distance(&again, whole.chunks(model.decoder().n_tokens()).last().unwrap()) <= 1e-4, "{name}");
    }
}

#[test]
fn tokens_are_llama_cpps() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &Device::cpu()).unwrap();
        for line in reference(name)["lines"].as_array().unwrap() {
            let text = line["text"].as_str().unwrap();
            let got = model.tokenizer().encode(text).unwrap();
            assert_eq!(got, numbers::<u32>(&line["tokens"]), "{name}: {text:?}");
            // After a token that is always one, SentencePiece takes the text for a new beginning, and adds a space.
            if !text.contains("\n\n") {
                assert_eq!(model.tokenizer().decode(&got), text, "{name}");
            }
        }
    }
}
