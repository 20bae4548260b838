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
    if n_steps == 0 {
        return Err("it takes a step to learn something".into());
    }

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
    // Where another program can start, too: bench/python/lora_reference.py makes the same steps in PyTorch.
    let mut start = named(decoder);
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    start.push(("tokens".to_string(), Tensor::from_slice(&ids, [ids.len()], &device)));
    lazuli_io::save(out.with_extension("initial.safetensors"), &start)?;

    let mut optimizer = Optimizer::new(Adam::default(), RATE);
    let mut losses = Vec::new();
    for step in 0..n_steps {
        // One window after another, from the beginning again when the text ends.
        let begin = (step * length) % (ids.len() - length);
        let read = Tensor::from_slice(&ids[begin..begin + length], [1, length], &device);
        let next = Tensor::from_slice(&ids[begin + 1..begin + length + 1], [length], &device);
        let logits = decoder.logits(&decoder.forward(&read, None)).squeeze(0);
        let loss = optimizer.step(decoder, loss::cross_entropy(&logits, &next))?;
        losses.push(loss.item::<f32>()?);
        println!("step {step:>3}  loss {:.5}", losses[step]);
    }
    // Windows differ in how hard they are, so a few at the end are compared with the first.
    let late = &losses[n_steps - n_steps.div_ceil(6)..];
    println!("loss {:.3} at first, {:.3} at the end", losses[0], late.iter().sum::<f32>() / late.len() as f32);

    lazuli_io::save(&out, &named(decoder))?;
    println!("adapters are in {}", out.display());
    let sampling = Sampling { max_tokens: Some(20), ..Sampling::greedy() };
    let said: String = model.complete("She sells", &sampling).collect::<Result<_, _>>()?;
    println!("She sells{said:?}");
    Ok(())
}
