//! A language model that talks: `cargo run --release --example 16_text_generation -- model.gguf "What is a tensor?"`. Without words
//! it takes a model of random weights, which has nothing to say but says it as fast as its size allows.

use std::io::Write;

use lazuli::Device;
use lazuli_text::{LanguageModel, Sampling};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/lazuli-text/tests/fixtures/llama.gguf");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().unwrap_or_else(|| TINY.to_string());
    let question = words.next().unwrap_or_else(|| "Who are you?".to_string());

    let device = Device::best();
    let model = LanguageModel::open(&path, &device)?;
    let mut chat = model.chat().with_system("You are a helpful assistant.");
    let sampling = Sampling { max_tokens: Some(100), seed: 1, ..Sampling::default() };

    // Pieces come as they are made. Whoever stops asking stops the model.
    for piece in chat.say(&question, &sampling) {
        print!("{}", piece?);
        std::io::stdout().flush()?;
    }
    println!();

    // Below the chat: tokens in, logits out. After the second token nothing is planned, compiled or allocated.
    let mut session = model.session();
    let mut logits = session.read(&model.tokenizer().encode("Once upon a time")?)?;
    for i in 0..8 {
        let before = device.stats();
        let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best });
        logits = session.read(&[best as u32])?;
        let after = device.stats();
        assert!(i < 2 || (after.plans_compiled, after.plans_filled) == (before.plans_compiled, before.plans_filled));
    }
    println!("{:?}", model.tokenizer().decode(session.tokens()));
    Ok(())
}
