//! Tiny models of every family with random weights: their logits and tokens are llama.cpp's. The files beside were written by
//! `fixtures/make_families.py` and `fixtures/make_references.mjs`. They run on the CPU, or on what `LAZULI_TEST_DEVICE` names.

use std::path::PathBuf;

use lazuli::{DType, Device, Tensor};
use lazuli_text::{FAMILIES, LanguageModel, Session};
use serde_json::Value;

/// Families, then models with scaled angles.
const NAMES: [&str; 14] = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3_long",
    "linear",
    "yarn",
    "yarn_scaled",
    "llama3",
    "gemma3_linear",
];

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

/// The logits of all places are those of llama.cpp, `[places, tokens]`.
#[track_caller]
fn check_logits(name: &str, session: &mut Session, tokens: &[u32], rows: &Value) {
    let got = session.read_each(tokens).unwrap().to_vec::<f32>().unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), tokens.len());
    for (i, (got, want)) in got.chunks(session.model().decoder().n_tokens()).zip(rows).enumerate() {
        let want: Vec<f32> = want.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        let distance = distance(got, &want);
        assert!(distance <= 1e-3, "{name}, place {i}: {distance}");
    }
}

#[test]
fn logits_are_llama_cpps() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &device()).unwrap();
        let reference = reference(name);
        check_logits(name, &mut model.session(), &numbers(&reference["tokens"]), &reference["logits"]);
    }
}

#[test]
fn a_session_longer_than_the_training_has_the_rotary_factors_of_long_contexts() {
    let model = LanguageModel::open(fixture("phi3_long.gguf"), &device()).unwrap();
    let reference = reference("phi3_long");
    let config = model.decoder().config();
    assert_eq!((config.context, config.max_context, model.session().room()), (300, 512, 300));
    let mut session = model.session().with_context(512).unwrap();
    assert_eq!(session.room(), 512);
    check_logits("phi3_long", &mut session, &numbers(&reference["tokens"]), &reference["long_logits"]);
    // As long as in training, it has the others.
    let mut session = model.session().with_context(300).unwrap();
    check_logits("phi3_long", &mut session, &numbers(&reference["tokens"]), &reference["logits"]);
    let error = model.session().with_context(513).map(drop).unwrap_err().to_string();
    assert!(error.contains("513 tokens: the model has a context of 1 to 512"), "{error}");
}

#[test]
fn sequences_of_unequal_lengths_share_a_cache() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &device()).unwrap();
        let decoder = model.decoder();
        let tokens: Vec<u32> = numbers(&reference(name)["tokens"]);
        // The second sequence is shorter, and filled up with a token that nobody looks at.
        let sequences = [&tokens[..9], &tokens[3..8]];
        let n_filled = sequences[0].len() - sequences[1].len();
        let mut cache = decoder.cache(2).with_starts(&[0, n_filled]).unwrap();
        let mut alone = [model.session(), model.session()];
        let mut read = |ids: Vec<u32>, fresh: [&[u32]; 2]| {
            let length = ids.len() / 2;
            cache.make_room(length).unwrap();
            let ids: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
            let x = decoder.forward(&Tensor::from_slice(&ids, [2, length], decoder.device()), Some(&mut cache));
            let logits = decoder.logits(&x.narrow(1, length - 1, 1));
            lazuli::compute(&cache.tensors().chain([&logits]).collect::<Vec<_>>()).unwrap();
            cache.advance(length);
            let logits = logits.to_vec::<f32>().unwrap();
            for (i, (got, session)) in logits.chunks(decoder.n_tokens()).zip(&mut alone).enumerate() {
                let distance = distance(got, &session.read(fresh[i]).unwrap());
                assert!(distance <= 1e-4, "{name}, sequence {i}: {distance}");
            }
        };
        let filled = [vec![7; n_filled], sequences[1].to_vec()].concat();
        read([sequences[0].to_vec(), filled].concat(), sequences);
        for token in [20, 40, 60] {
            read(vec![token, token + 1], [&[token], &[token + 1]]);
        }
    }
}

#[test]
fn a_cache_of_f16_takes_half_the_memory_and_rounds() {
    for name in NAMES {
        let model = LanguageModel::open(fixture(&format!("{name}.gguf")), &device()).unwrap();
        let tokens: Vec<u32> = numbers(&reference(name)["tokens"]);
        let (mut wide, mut narrow) = (model.session(), model.session().with_cache_dtype(DType::F16));
        let (want, got) = (wide.read(&tokens).unwrap(), narrow.read(&tokens).unwrap());
        assert_eq!(wide.cache_bytes(), 2 * narrow.cache_bytes(), "{name}");
        // Keys and values have 11 bits.
        let distance = distance(&got, &want);
        assert!(distance > 0.0 && distance <= 4.0 / 2048.0, "{name}: {distance}");
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
