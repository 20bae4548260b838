//! Fine-tunes a language model with low-rank adapters (LoRA): the model's own weights stay as they are in the file, and what is
//! learned is saved as safetensors. `cargo run --release --example 17_lora -- model.gguf text.txt out.safetensors 60`

use lazuli::{Device, Tensor};
use lazuli_nn::{Adam, Optimizer, loss, named};
use lazuli_text::{LanguageModel, Sampling};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/lazuli-text/tests/fixtures/llama.gguf");
const RANK: usize = 8;
const ALPHA: f32 = 16.0;
const RATE: f64 = 2e-3;

/// What is learned if no text is given.
const RHYME: &str = "She sells sea shells by the sea shore. The shells she sells are sea shells, I'm sure. And if she sells \
    sea shells by the sea shore, then I'm sure she sells sea shore shells. ";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let word = |i: usize| words.get(i).map(String::as_str);
    let path = word(0).unwrap_or(TINY);
    let text = word(1).map(std::fs::read_to_string).transpose()?.unwrap_or_else(|| RHYME.repeat(4));
    let out = word(2).map_or_else(|| std::env::temp_dir().join("lazuli-lora.safetensors"), Into::into);
    let n_steps: usize = word(3).unwrap_or("12").parse()?;

    let device = Device::best();
    let mut model = LanguageModel::open(path, &device)?;
    let tokens = model.tokenizer().encode(&text)?;
    // As many as a step reads, and one more: each token is to be followed by the next.
    let length = 128.min(tokens.len().saturating_sub(1) / 2);
    if length == 0 {
        return Err("the text is too short to learn from".into());
    }
    let decoder = model.decoder_mut()?;
    decoder.adapt(RANK, ALPHA, 1)?;
    lazuli_io::save(out.with_extension("initial.safetensors"), &named(decoder))?;

    let mut optimizer = Optimizer::new(Adam::default(), RATE);
    let mut losses = Vec::new();
    for step in 0..n_steps {
        // One window after another, from the beginning again when the text ends.
        let start = (step * length) % (tokens.len() - length);
        let ids: Vec<i32> = tokens[start..start + length + 1].iter().map(|token| *token as i32).collect();
        let read = Tensor::from_slice(&ids[..length], [1, length], &device);
        let next = Tensor::from_slice(&ids[1..], [length], &device);
        let logits = decoder.logits(&decoder.forward(&read, None)).squeeze(0);
        let loss = optimizer.step(decoder, loss::cross_entropy(&logits, &next))?;
        losses.push(loss.item::<f32>()?);
        println!("step {step:>3}  loss {:.5}", losses[step]);
    }
    let (first, last) = (losses[0], losses[n_steps - 1]);
    assert!(last < first, "it has learned something: {first} → {last}");

    lazuli_io::save(&out, &named(decoder))?;
    println!("adapters are in {}", out.display());
    let sampling = Sampling { max_tokens: Some(20), ..Sampling::greedy() };
    let said: String = model.complete("She sells", &sampling).collect::<Result<_, _>>()?;
    println!("She sells{said:?}");
    Ok(())
}
