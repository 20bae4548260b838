//! How fast a model reads and makes text: `pace FILE.gguf [N_READ] [N_MADE] [CONTEXT] [LONG]`. Prints the median milliseconds of a token
//! that is made after at most so many others (after 16 at first, and again when there are as many), those of each token of a text
//! that is read at once (0: none is), how long it took to the first token, and how long reading as many bytes as the weights have
//! takes by itself. With LONG, also what a token takes after so many others and after 100, in turns, and how long reading the
//! keys and values in between takes by itself. The number of threads is `LAZULI_THREADS`. `bench/js/llama_pace.mjs` is the same for llama.cpp.

use std::sync::Barrier;
use std::time::Instant;

use lazuli::Device;
use lazuli_text::LanguageModel;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let path = words.first().ok_or("pace of which model?")?;
    let number = |i: usize, default: usize| words.get(i).map_or(Ok(default), |word| word.parse::<usize>());
    let (n_read, n_made, context, long) = (number(1, 257)?, number(2, 200)?, number(3, 128)?, number(4, 0)?);
    let start = Instant::now();
    let model = LanguageModel::open(path, &Device::cpu())?;
    let opened = start.elapsed();
    let n_bytes = Device::cpu().stats().bytes_live as usize;
    let text = model
        .tokenizer()
        .encode(&"The quick brown fox jumps over the lazy dog. ".repeat(n_read.max(context).max(long) / 8 + 4))?;

    let mut session = model.session();
    session.read(&text[..16])?;
    let first = start.elapsed();
    let mut times = Vec::new();
    for _ in 0..n_made {
        if session.tokens().len() == context {
            session.truncate(16);
        }
        let token = text[session.tokens().len()];
        let start = Instant::now();
        session.read(&[token])?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    // The first tokens plan, and weights are packed after they were used a few times.
    times.drain(..8.min(times.len() / 2));
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    let made = median(times);

    let mut reads = Vec::new();
    for _ in 0..if n_read > 0 { 4 } else { 0 } {
        session.truncate(0);
        let start = Instant::now();
        session.read(&text[..n_read])?;
        reads.push(start.elapsed().as_secs_f64() * 1e3 / n_read as f64);
    }
    // The first time plans.
    reads.drain(..1.min(reads.len()));
    let read = median(reads);
    println!(
        "made {made:.3} ms a token (best {best:.3}), read {read:.3} ms a token of {n_read}, opened in {:.0} ms, first token after {:.0} ms",
        opened.as_secs_f64() * 1e3,
        first.as_secs_f64() * 1e3,
    );
    let n_threads = std::env::var("LAZULI_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let (alone, best) = reading(n_bytes, n_threads);
    println!("reading {:.1} MB alone {alone:.3} ms (best {best:.3})", n_bytes as f64 / 1e6);
    if long > SHORT {
        growth(&model, &text[..long + 1], (n_bytes, n_threads))?;
    }
    Ok(())
}

/// How many tokens come before the early ones of [`growth`].
const SHORT: usize = 100;

/// Prints what a token takes after 100 others and after all but the last of `text`, in turns.
fn growth(
    model: &LanguageModel,
    text: &[u32],
    (n_weights, n_threads): (usize, usize),
) -> Result<(), Box<dyn std::error::Error>> {
    let long = text.len() - 1;
    let mut sessions = Vec::new();
    for n_tokens in [SHORT, long] {
        let mut session = model.session();
        session.read(&text[..n_tokens])?;
        sessions.push((session, Vec::new()));
    }
    for turn in 0..14 {
        for (session, times) in &mut sessions {
            let n_tokens = session.tokens().len();
            for _ in 0..8 {
                let start = Instant::now();
                session.read(&[text[n_tokens]])?;
                let time = start.elapsed().as_secs_f64() * 1e3;
                session.truncate(n_tokens);
                // The first turn plans.
                times.extend((turn > 0).then_some(time));
            }
        }
    }
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let [(early, early_best), (late, late_best)] =
        [0, 1].map(|i| (median(sessions[i].1.clone()), best(&sessions[i].1)));
    let config = model.decoder().config();
    let n_bytes = 2 * 4 * config.n_layers * config.n_kv_heads * config.head_dim * (long - SHORT);
    println!(
        "after {SHORT} tokens {early:.3} ms (best {early_best:.3}), after {long} {late:.3} (best {late_best:.3}): {:.3} more (best {:.3})",
        late - early,
        late_best - early_best,
    );
    // Behind the weights, as a token reads it, less of it is in caches than when it is read alone again and again.
    let [alone, weights, both] = [n_bytes, n_weights, n_weights + n_bytes].map(|n| reading(n, n_threads));
    println!(
        "reading {:.1} MB alone {:.3} ms (best {:.3}), after the weights {:.3} (best {:.3})",
        n_bytes as f64 / 1e6,
        alone.0,
        alone.1,
        both.0 - weights.0,
        both.1 - weights.1,
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median and the least milliseconds that reading so many bytes takes, each thread a part of its own.
fn reading(n_bytes: usize, n_threads: usize) -> (f64, f64) {
    const ROUNDS: usize = 40;
    let mut bytes: Vec<u8> = Vec::with_capacity(n_bytes);
    ask_for_large_pages(&mut bytes);
    bytes.extend((0..n_bytes).map(|i| i as u8));
    let barrier = Barrier::new(n_threads);
    let mut times = Vec::new();
    let mut parts = bytes.chunks(n_bytes.div_ceil(n_threads).next_multiple_of(256));
    let own = parts.next().unwrap_or_default();
    std::thread::scope(|scope| {
        for part in parts {
            let barrier = &barrier;
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    barrier.wait();
                    std::hint::black_box(sum(part));
                    barrier.wait();
                }
            });
        }
        // The clock starts before the others may: a thread that wakes late from a barrier would see too little.
        for _ in 0..ROUNDS {
            let start = Instant::now();
            barrier.wait();
            std::hint::black_box(sum(own));
            barrier.wait();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    });
    times.remove(0);
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    (median(times), best)
}

/// Asks for large pages under memory that is not written yet: reading goes faster on them.
fn ask_for_large_pages(bytes: &mut Vec<u8>) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 2 << 20;
        let start = bytes.as_ptr() as usize;
        let (first, end) = (start.next_multiple_of(PAGE), (start + bytes.capacity()) / PAGE * PAGE);
        // SAFETY: whole pages of the vector; the advice changes how they are backed, not what they hold.
        unsafe { libc::madvise(first as *mut libc::c_void, end.saturating_sub(first), libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}

/// Reads all bytes, by the widest loads that there are.
fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the instructions are there.
        return unsafe { sum_avx512(bytes) };
    }
    bytes.as_chunks::<8>().0.iter().fold(0, |sum, word| sum ^ u64::from_ne_bytes(*word))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;
    let mut sums = [_mm512_setzero_si512(); 4];
    for chunk in bytes.as_chunks::<256>().0 {
        for (i, sum) in sums.iter_mut().enumerate() {
            let from = chunk.as_ptr().wrapping_add(64 * i);
            // SAFETY: the chunk has four vectors; what is prefetched need not be there.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(6 << 10).cast());
                *sum = _mm512_xor_si512(*sum, _mm512_loadu_si512(from.cast()));
            }
        }
    }
    sums.iter().fold(0, |all, sum| all ^ _mm512_reduce_add_epi64(*sum) as u64)
}
