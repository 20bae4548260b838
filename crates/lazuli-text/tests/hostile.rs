//! Models whose files an enemy or a bad disk has changed: each is opened or refused, and one that opens answers or says why it
//! cannot. None panics. `LAZULI_SOAK_FILES` says how many there are.

use std::path::PathBuf;

use lazuli::Device;
use lazuli_check::testing::Rolls;
use lazuli_io::{Gguf, GgufArray, GgufValue, GgufWriter};
use lazuli_text::{LanguageModel, Sampling};

const NAMES: [&str; 5] = ["llama", "qwen3", "gemma3", "phi3_long", "mistral"];

/// Numbers that no model has, and some that one may have.
const NUMBERS: [u32; 12] = [0, 1, 2, 3, 7, 8, 31, 255, 1 << 16, 1 << 26, i32::MAX as u32, u32::MAX];

/// A value that is another number, another type, or an array with something taken out or exchanged.
fn changed(value: &GgufValue, random: &mut Rolls) -> GgufValue {
    let number = NUMBERS[random.below(NUMBERS.len())];
    match value {
        GgufValue::U32(_) => number.into(),
        GgufValue::F32(_) => [0.0f32, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY][random.below(6)].into(),
        GgufValue::Bool(value) => (!value).into(),
        GgufValue::Array(GgufArray::String(words)) => {
            let mut words = words.clone();
            let (a, b) = (random.below(words.len()), random.below(words.len()));
            match random.below(5) {
                0 => words.truncate(a),
                1 => words.swap(a, b),
                2 => words[a] = words[b].clone(),
                3 => words[a] = ["", " ", "a b c", "<0xZZ>", "\u{fffd}", "▁"][random.below(6)].to_string(),
                _ => words.clear(),
            }
            words.into()
        }
        GgufValue::Array(GgufArray::I32(types)) => {
            let mut types = types.clone();
            let at = random.below(types.len());
            match random.below(3) {
                0 => types.truncate(at),
                1 => types.iter_mut().for_each(|kind| *kind = number as i32),
                _ => types[at] = number as i32,
            }
            types.into()
        }
        GgufValue::String(_) if random.below(2) == 0 => number.into(),
        GgufValue::String(_) => {
            ["", "llama", "gpt2", "{{ 1 / 0 }}", "none", "longrope", "yarn"][random.below(7)].into()
        }
        other => other.clone(),
    }
}

/// The file with one to three changed values, perhaps without one, or with a tensor under another's name.
fn mutated(file: &Gguf, random: &mut Rolls) -> Option<Gguf> {
    let mut writer = GgufWriter::new();
    let entries: Vec<(&str, &GgufValue)> = file.metadata().iter().collect();
    let changes: Vec<usize> = (0..1 + random.below(3)).map(|_| random.below(entries.len())).collect();
    let left_out = (random.below(6) == 0).then(|| random.below(entries.len()));
    for (i, (key, value)) in entries.into_iter().enumerate().filter(|(i, _)| Some(*i) != left_out) {
        let value = if changes.contains(&i) { changed(value, random) } else { value.clone() };
        writer.set(key, value);
    }
    let tensors = file.tensors();
    let other = (random.below(8) == 0).then(|| (random.below(tensors.len()), random.below(tensors.len())));
    for (i, tensor) in tensors.iter().enumerate() {
        let source = match other {
            Some((at, from)) if at == i => &tensors[from],
            _ => tensor,
        };
        let bytes = file.bytes(&source.name).unwrap().to_vec();
        writer.push_bytes(&tensor.name, source.format, &source.shape, bytes).unwrap();
    }
    Gguf::from_bytes(writer.to_bytes().ok()?).ok()
}

#[test]
fn mutated_models_are_opened_or_refused() {
    let n_files = match std::env::var("LAZULI_SOAK_FILES") {
        Ok(n) => n.parse().expect("LAZULI_SOAK_FILES is a number"),
        Err(_) => 1_000,
    };
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let files = NAMES.map(|name| Gguf::open(fixtures.join(format!("{name}.gguf"))).unwrap());
    let (mut random, mut n_opened, mut n_refused) = (Rolls::new(17), 0, 0);
    for i in 0..n_files {
        let Some(file) = mutated(&files[i % files.len()], &mut random) else { continue };
        match LanguageModel::from_gguf(file, &Device::cpu(), &mut |_, _| {}) {
            Ok(model) => {
                n_opened += 1;
                // Every fourth model talks, which may fail but not end the program.
                if n_opened % 4 == 0 {
                    let sampling = Sampling { max_tokens: Some(2), ..Sampling::greedy() };
                    for piece in model.chat().say("The fox <|im_end|> 世", &sampling) {
                        if let Err(error) = piece {
                            assert!(!error.fault().message.is_empty());
                        }
                    }
                }
            }
            Err(error) => {
                n_refused += 1;
                assert!(!error.fault().message.is_empty());
            }
        }
    }
    println!("{n_opened} models opened, {n_refused} refused");
    assert!(n_opened > n_files / 10 && n_refused > n_files / 10, "{n_opened} {n_refused}");
}
