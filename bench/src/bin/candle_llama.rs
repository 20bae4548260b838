//! How fast candle's quantised llama reads and makes text, as `crates/lazuli-text/examples/pace.rs` measures Lazuli. The number of
//! threads is `RAYON_NUM_THREADS`. Candle keeps keys and values in tensors that it concatenates, and forgets them where a text begins
//! anew.
//!
//! ```sh
//! cargo build --release --no-default-features --features candle-llama --bin candle_llama
//! RAYON_NUM_THREADS=1 target/release/candle_llama FILE.gguf [N_READ] [N_MADE] [CONTEXT]
//! ```

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;

/// Tokens that a text begins with.
const PROMPT: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("which model?")?;
    let number = |i: usize, default: usize| words.get(i).map_or(Ok(default), |word| word.parse::<usize>());
    let (n_read, n_made, context) = (number(1, 257)?, number(2, 200)?, number(3, 128)?);
    let start = Instant::now();
    let mut file = File::open(path)?;
    let content = Content::read(&mut file).map_err(|error| error.with_path(path))?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &Device::Cpu)?;
    let opened = start.elapsed();
    // What a token is makes no difference to how long it takes.
    let text: Vec<u32> = (0..n_read.max(context)).map(|i| (13 + 7919 * i as u32) % 40_000).collect();
    // Reads tokens after `n_before` others; milliseconds, until the logits are there.
    let mut read = |tokens: &[u32], n_before: usize| -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        let logits = model.forward(&Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?, n_before)?;
        std::hint::black_box(logits.flatten_all()?.to_vec1::<f32>()?);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };

    read(&text[..PROMPT], 0)?;
    let first = start.elapsed();
    let (mut times, mut n_before) = (Vec::new(), PROMPT);
    for _ in 0..n_made {
        if n_before == context {
            read(&text[..PROMPT], 0)?;
            n_before = PROMPT;
        }
        times.push(read(&text[n_before..n_before + 1], n_before)?);
        n_before += 1;
    }
    times.drain(..8.min(times.len() / 2));
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let mut reads = Vec::new();
    for _ in 0..4 {
        reads.push(read(&text[..n_read], 0)? / n_read as f64);
    }
    reads.drain(..1);
    println!(
        "made {:.3} ms a token (best {best:.3}), read {:.3} ms a token of {n_read}, opened in {:.0} ms, first token after {:.0} ms",
        median(times),
        median(reads),
        opened.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}
