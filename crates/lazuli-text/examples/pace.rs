//! How fast a model reads and makes text: `pace FILE.gguf [N_READ] [N_MADE]`. Prints the median milliseconds of a token that is made
//! after a short text, those of each token of a text that is read at once, and how long it took to the first token. The number of
//! threads is `LAZULI_THREADS`. `bench/js/llama_pace.mjs` is the same for llama.cpp.

use std::time::Instant;

use lazuli::Device;
use lazuli_text::LanguageModel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("pace of which model?")?;
    let number = |i: usize, default: usize| words.get(i).map_or(Ok(default), |word| word.parse::<usize>());
    let (n_read, n_made) = (number(1, 257)?, number(2, 120)?);
    let start = Instant::now();
    let model = LanguageModel::open(path, &Device::cpu())?;
    let opened = start.elapsed();
    let text = model.tokenizer().encode(&"The quick brown fox jumps over the lazy dog. ".repeat(n_read / 8 + 4))?;

    let mut session = model.session();
    session.read(&text[..16])?;
    let first = start.elapsed();
    let mut times = Vec::new();
    for token in &text[16..16 + n_made.min(text.len() - 16)] {
        let start = Instant::now();
        session.read(&[*token])?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    // The first tokens plan, and weights are packed after they were used a few times.
    times.drain(..8.min(times.len() / 2));
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let made = median(times);

    let mut reads = Vec::new();
    for _ in 0..4 {
        session.truncate(0);
        let start = Instant::now();
        session.read(&text[..n_read])?;
        reads.push(start.elapsed().as_secs_f64() * 1e3 / n_read as f64);
    }
    // The first time plans.
    reads.remove(0);
    let read = median(reads);
    println!(
        "made {made:.3} ms a token (best {best:.3}), read {read:.3} ms a token of {n_read}, opened in {:.0} ms, first token after {:.0} ms",
        opened.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
