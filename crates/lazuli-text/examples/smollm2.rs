//! SmolLM2-135M-Instruct against kept numbers of others: tokens of 200 lines as llama.cpp's, logits at 64 places as an f32 forward
//! pass of the widened weights in NumPy, the text of twenty prompts as both. `cargo xtask data smollm2` fetches the model, and
//! `bench/python/language_reference.py` and `tests/fixtures/make_references.mjs` made the numbers.
//!
//! `--device NAME` says where, `--bits` prints a hash of the logits' bits, to be compared between numbers of threads, `--full FILE.npy`
//! compares every logit, `--steady N` counts what N tokens cost beside their arithmetic, `--memory` asks the system how much memory the
//! process has, `--lora N` trains adapters for N steps (60 at most) and compares the losses with PyTorch's
//! (`bench/python/lora_reference.py`), `--choose FILE.json` chooses prompts of a pool by the rule in `tests/fixtures/smollm2/pool.json`
//! and writes their tokens, `--quick` reads fewer tokens one by one.

use std::path::PathBuf;
use std::process::ExitCode;

use lazuli::{Device, Tensor};
use lazuli_nn::{Adam, Optimizer, loss};
use lazuli_text::{LanguageModel, Message, Role};
use serde_json::Value;

/// What a check says if something differs.
type Checked = Result<(), Box<dyn std::error::Error>>;

/// The reference's two best tokens are told apart if they differ by more.
const CLEAR: f64 = 1e-3;
/// Tokens of llama.cpp's text that are compared.
const N_COMPARED: usize = 24;
/// Prompts of a pool that are chosen, and how many of them llama.cpp goes on with as we do, at least.
const N_CHOSEN: usize = 10;
const N_ALIKE: usize = 7;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("smollm2: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Checked {
    let (mut device, mut bits, mut full, mut steady, mut quick) = ("cpu".to_string(), false, None, None, false);
    let (mut memory, mut lora, mut choice) = (false, None, None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} wants a value"));
        match &*word {
            "--device" => device = value()?,
            "--bits" => bits = true,
            "--quick" => quick = true,
            "--full" => full = Some(value()?),
            "--steady" => steady = Some(value()?.parse::<usize>()?),
            "--memory" => memory = true,
            "--lora" => lora = Some(value()?.parse::<usize>()?),
            "--choose" => choice = Some(value()?),
            _ => {
                let known = "--device, --bits, --full, --steady, --memory, --lora, --choose, --quick";
                return Err(format!("`{word}`: there are {known}").into());
            }
        }
    }
    let is_cpu = device == "cpu";
    let device = Device::open(&device)?;
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("data/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
    let model = LanguageModel::open(&path, &device)?;
    if memory {
        return check_memory(&model, std::fs::metadata(&path)?.len());
    }
    if let Some(n) = lora {
        return train(model, n);
    }
    if let Some(n) = steady {
        return count_costs(&model, n);
    }
    if let Some(path) = choice {
        return choose(&model, &path);
    }
    let whole = logits(&model)?;
    if bits {
        println!("{:016x}", hash(&whole));
        return Ok(());
    }
    if let Some(path) = full {
        return compare_all(&whole, &path, model.decoder().n_tokens());
    }
    tokens(&model)?;
    compare_kept(&model, &whole)?;
    if is_cpu {
        // So many tokens of the text one by one, and so many after each of so many prompts.
        let (n_cached, n_prompts, n_made) = if quick { (12, 2, 12) } else { (64, 20, 40) };
        compare_cached(&model, &whole, n_cached)?;
        greedy(&model, n_prompts, n_made)?;
    }
    Ok(())
}

fn fixture(name: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Ok(serde_json::from_str(&std::fs::read_to_string(path)?)?)
}

fn numbers(json: &Value) -> Vec<u32> {
    json.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|n| n as u32).collect()
}

fn floats(json: &Value) -> Vec<f64> {
    json.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// The logits after each token of the kept text, read at once.
fn logits(model: &LanguageModel) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    let tokens = numbers(&fixture("smollm2/logits.json")?["tokens"]);
    Ok(model.session().read_each(&tokens)?.to_vec()?)
}

fn tokens(model: &LanguageModel) -> Checked {
    let (lines, expect) = (fixture("lines.json")?, fixture("smollm2/tokens.json")?);
    let lines: Vec<&str> = lines.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let expect: Vec<Vec<u32>> = expect.as_array().into_iter().flatten().map(numbers).collect();
    if lines.len() != 200 || expect.len() != 200 {
        return Err(format!("{} lines and {} of tokens, not 200", lines.len(), expect.len()).into());
    }
    for (line, want) in lines.iter().zip(expect) {
        let got = model.tokenizer().encode(line)?;
        if got != want {
            return Err(format!("tokens of {line:?} are {got:?}, llama.cpp's {want:?}").into());
        }
    }
    println!("tokens of 200 lines are llama.cpp's");
    Ok(())
}

/// At each place the largest difference from the reference is at most 1e-3 of its largest logit.
fn compare_kept(model: &LanguageModel, whole: &[f32]) -> Checked {
    let kept = fixture("smollm2/logits.json")?;
    let rows = kept["rows"].as_array().map_or(&[][..], |rows| rows);
    let mut worst = 0f64;
    for (place, (row, got)) in rows.iter().zip(whole.chunks(model.decoder().n_tokens())).enumerate() {
        let largest = row["largest"].as_f64().unwrap_or(0.0);
        for (id, want) in numbers(&row["ids"]).iter().zip(floats(&row["logits"])) {
            let share = (got[*id as usize] as f64 - want).abs() / largest;
            worst = worst.max(share);
            if share.is_nan() || share > 1e-3 {
                return Err(format!("place {place}, token {id}: {}, the reference {want}", got[*id as usize]).into());
            }
        }
    }
    println!("logits at {} places: within {worst:.1e} of the largest of the f32 reference", rows.len());
    Ok(())
}

/// Every logit of every place against a NumPy file of the reference.
fn compare_all(whole: &[f32], path: &str, n_tokens: usize) -> Checked {
    let reference = lazuli_io::load_npy(path, &Device::cpu())?.to_vec::<f32>()?;
    let rows = whole.chunks(n_tokens).zip(reference.chunks(n_tokens));
    let worst = rows.fold(0f32, |worst, (got, want)| worst.max(share(got, want)));
    println!("all {} logits: within {worst:.1e} of the largest at their place", reference.len());
    if worst <= 1e-3 && whole.len() == reference.len() { Ok(()) } else { Err("that is too far".into()) }
}

/// The largest difference as a share of the largest logit.
fn share(got: &[f32], want: &[f32]) -> f32 {
    let largest = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    got.iter().zip(want).fold(0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

/// Token by token with the cache, and all at once: within 1e-4.
fn compare_cached(model: &LanguageModel, whole: &[f32], n: usize) -> Checked {
    let tokens = numbers(&fixture("smollm2/logits.json")?["tokens"]);
    let mut session = model.session();
    let mut worst = 0f32;
    for (token, want) in tokens.iter().zip(whole.chunks(model.decoder().n_tokens())).take(n) {
        worst = worst.max(share(&session.read(&[*token])?, want));
    }
    println!("{n} tokens one by one: within {worst:.1e} of reading at once");
    if worst <= 1e-4 { Ok(()) } else { Err("that is too far".into()) }
}

/// The likeliest tokens after prompts, as the reference's while its best two are told apart; and as llama.cpp's until its best
/// two are closer than twice its own distance from the reference.
///
/// That distance is 5e-5 where llama.cpp is given the widened weights, in f32, and 1.5 where it is given the file itself: it rounds
/// the activations of products with blocks to 8 bits. The reference with activations rounded in the same way is as far from f32
/// (2.8 % of the largest logit in the middle, 6.9 % at most; llama.cpp 2.7 % and 6.9 %), and as far from llama.cpp, so beyond a few
/// tokens its text is one of several that such rounding gives. The first ten prompts are questions with many answers, the others
/// were written down before anything was computed, to have answers that are more certain. [`choose`] has ten more, chosen by a rule.
fn greedy(model: &LanguageModel, n_prompts: usize, n_made: usize) -> Checked {
    let kept = fixture("smollm2/greedy.json")?;
    let n_theirs = n_made.min(N_COMPARED);
    let (mut n_equal, mut n_reaching, mut n_reaching_exact) = (0, 0, 0);
    for case in kept["cases"].as_array().into_iter().flatten().take(n_prompts) {
        let prompt = &case["prompt"];
        let mut session = model.session();
        let mut logits = session.read(&numbers(&case["tokens"]))?;
        let (want, gaps) = (numbers(&case["reference"]["made"]), floats(&case["reference"]["gaps"]));
        let mut made = Vec::new();
        for (want, gap) in want.iter().zip(gaps).take(n_made) {
            let best = (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32;
            if best != *want {
                if gap > CLEAR {
                    return Err(format!("{prompt}, token {}: {best}, the reference {want}", made.len()).into());
                }
                break;
            }
            made.push(best);
            logits = session.read(&[best])?;
        }
        n_equal += (made.len() == n_made) as usize;
        // A reply that ends is as long as it is.
        let end = made.iter().position(|token| model.tokenizer().is_end(*token)).map_or(made.len(), |end| end + 1);
        for (who, n) in [("llama_cpp", &mut n_reaching), ("llama_cpp_f32", &mut n_reaching_exact)] {
            let distance = kept[format!("{who}_distance")].as_f64().ok_or("a distance is missing")?;
            let (theirs, gaps) = (numbers(&case[who]["made"]), floats(&case[who]["gaps"]));
            let n_same = made.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
            if n_same < made.len() && gaps[n_same] > 2.0 * distance {
                return Err(format!("{prompt}, token {n_same}: {who} is sure of {}", theirs[n_same]).into());
            }
            *n += (n_same >= n_theirs.min(end)) as usize;
        }
    }
    println!("of {n_prompts} prompts {n_equal} go on as the reference for {n_made} tokens,");
    println!(
        "{n_reaching_exact} as llama.cpp in f32 and {n_reaching} as llama.cpp with its activations of 8 bits for {n_theirs} tokens or to \
         their end"
    );
    Ok(())
}

/// The ten prompts of a pool after which the likeliest tokens are surest, by the rule that the pool's file states: prints the margin of
/// each prompt and its text, compares with the margins that are kept, and writes the tokens of those that are chosen. Seven of them
/// at least go on as in llama.cpp, and all do until its two best are closer than twice its distance from the reference.
fn choose(model: &LanguageModel, path: &str) -> Checked {
    let pool = fixture("smollm2/pool.json")?;
    let mut margins: Vec<(f64, &Value, Vec<u32>, Vec<u32>)> = Vec::new();
    for prompt in pool["prompts"].as_array().into_iter().flatten() {
        let message = Message::new(Role::User, prompt.as_str().ok_or("a prompt is a text")?);
        let tokenizer = model.tokenizer();
        let tokens = tokenizer.encode_marked(&model.template().render(&[message], "", "")?)?;
        let mut session = model.session();
        let mut logits = session.read(&tokens)?;
        let (mut made, mut margin) = (Vec::new(), f64::INFINITY);
        while made.len() < N_COMPARED && !made.iter().any(|token| tokenizer.is_end(*token)) {
            let [best, second] = best_two(&logits);
            let largest = logits.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            margin = margin.min(f64::from((logits[best] - logits[second]) / largest));
            made.push(best as u32);
            logits = session.read(&[best as u32])?;
        }
        // A reply that ends before cannot be compared as long.
        margin = if made.iter().any(|token| tokenizer.is_end(*token)) { 0.0 } else { margin };
        println!("{margin:.4}  {prompt} → {:?}", tokenizer.decode(&made));
        margins.push((margin, prompt, tokens, made));
    }
    for ((margin, prompt, ..), kept) in margins.iter().zip(floats(&pool["margins"])) {
        if (margin - kept).abs() > 1e-4 {
            return Err(format!("{prompt}: a margin of {margin}, {kept} is kept").into());
        }
    }
    margins.sort_by(|(a, ..), (b, ..)| b.total_cmp(a));
    margins.truncate(N_CHOSEN);
    let distance = fixture("smollm2/greedy.json")?["llama_cpp_distance"].as_f64().ok_or("a distance is missing")?;
    let mut n_alike = 0;
    for ((margin, prompt, _, made), theirs) in margins.iter().zip(pool["llama_cpp"].as_array().into_iter().flatten()) {
        let (their, gaps) = (numbers(&theirs["made"]), floats(&theirs["gaps"]));
        let n_same = made.iter().zip(&their).take_while(|(a, b)| a == b).count();
        println!("{margin:.4}  {prompt}: {n_same} tokens as llama.cpp's");
        if n_same < N_COMPARED && gaps.get(n_same).is_none_or(|gap| *gap > 2.0 * distance) {
            return Err(format!("{prompt}, token {n_same}: llama.cpp is sure of another").into());
        }
        n_alike += (n_same == N_COMPARED) as usize;
    }
    println!("{n_alike} of {N_CHOSEN} go on as in llama.cpp for {N_COMPARED} tokens");
    let chosen: Vec<&Vec<u32>> = margins.iter().map(|(_, _, tokens, _)| tokens).collect();
    std::fs::write(path, serde_json::to_string(&chosen)?)?;
    if n_alike < N_ALIKE { Err(format!("{N_ALIKE} were wanted").into()) } else { Ok(()) }
}

/// The places of the largest number and of the second.
fn best_two(logits: &[f32]) -> [usize; 2] {
    (1..logits.len()).fold([0, 0], |[best, second], i| match logits[i] {
        x if x > logits[best] => [i, best],
        x if second == best || x > logits[second] => [best, i],
        _ => [best, second],
    })
}

/// What the process holds, in bytes, as Linux counts it.
fn held(what: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(what)).ok_or(format!("there is no {what}"))?;
    Ok(1024 * line.trim().trim_end_matches(" kB").parse::<u64>()?)
}

/// Pages of the file are let go once its blocks are repacked: while it is loaded, the process never holds more than 1.5 times the
/// file and 48 MB, and after 100 tokens not more than 1.25 times the file, the cache and 48 MB.
fn check_memory(model: &LanguageModel, file_bytes: u64) -> Checked {
    if !cfg!(target_os = "linux") {
        println!("memory is asked for on Linux only");
        return Ok(());
    }
    const REST: u64 = 48_000_000;
    let loading = held("VmHWM:")?;
    let mut session = model.session();
    for token in 0..100 {
        session.read(&[100 + 7 * token])?;
    }
    let decoding = held("VmRSS:")?;
    let cases = [
        ("while loading", loading, file_bytes * 3 / 2 + REST),
        ("after 100 tokens", decoding, file_bytes * 5 / 4 + session.cache_bytes() as u64 + REST),
    ];
    for (when, held, bound) in cases {
        println!("{when} {:.1} MB, at most {:.1}", held as f64 / 1e6, bound as f64 / 1e6);
        if held > bound {
            return Err("that is too much".into());
        }
    }
    Ok(())
}

/// Low-rank adapters trained from the same start on the same tokens in the same order as in PyTorch: every loss is within 1 %.
fn train(mut model: LanguageModel, n_steps: usize) -> Checked {
    const LENGTH: usize = 128;
    let kept = fixture("smollm2/lora.json")?;
    let (losses, tokens) = (floats(&kept["losses"]), numbers(&kept["tokens"]));
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    let decoder = model.decoder_mut()?;
    let device = decoder.device().clone();
    decoder.adapt(8, 16.0, 1)?;
    let mut optimizer = Optimizer::new(Adam::default(), 2e-3);
    let (mut worst, mut last) = (0f64, 0.0);
    for (step, want) in losses.iter().enumerate().take(n_steps) {
        let begin = (step * LENGTH) % (ids.len() - LENGTH);
        let read = Tensor::from_slice(&ids[begin..begin + LENGTH], [1, LENGTH], &device);
        let next = Tensor::from_slice(&ids[begin + 1..begin + LENGTH + 1], [LENGTH], &device);
        let logits = decoder.logits(&decoder.forward(&read, None)).squeeze(0);
        last = optimizer.step(decoder, loss::cross_entropy(&logits, &next))?.item::<f32>()? as f64;
        let distance = (last / want - 1.0).abs();
        worst = worst.max(distance);
        if distance.is_nan() || distance > 0.01 {
            return Err(format!("step {step}: a loss of {last}, PyTorch's is {want}").into());
        }
    }
    let n_steps = n_steps.min(losses.len());
    let share = last / losses.first().ok_or("there are no losses")?;
    println!("{n_steps} steps with adapters: losses within {worst:.1e} of PyTorch's, the last {share:.3} of the first");
    if n_steps == losses.len() && share > 0.8 { Err("it has not learned enough".into()) } else { Ok(()) }
}

/// What tokens cost beside their arithmetic.
fn count_costs(model: &LanguageModel, n: usize) -> Checked {
    let device = model.decoder().device();
    let mut session = model.session();
    session.read(&model.tokenizer().encode("Once upon a time")?)?;
    for i in 0..n {
        let (before, capacity) = (device.stats(), session.cache_bytes());
        session.read(&[(100 + 7 * i as u32) % 40_000])?;
        let after = device.stats();
        let cost = [
            after.plans_compiled - before.plans_compiled,
            after.plans_filled - before.plans_filled,
            after.pipelines_compiled - before.pipelines_compiled,
            after.buffers_created - before.buffers_created,
        ];
        let has_grown = session.cache_bytes() > capacity;
        let submits = after.submits - before.submits;
        if has_grown || cost != [0; 4] || submits != 1 {
            let [plans, fills, kernels, buffers] = cost;
            let cache = if has_grown { ", the cache doubled" } else { "" };
            println!(
                "token {i}: {plans} plans, {fills} fills, {kernels} kernels, {buffers} buffers, {submits} submits{cache}"
            );
            if i >= 2 && !has_grown {
                return Err("a token had a cost of its own though the cache did not double".into());
            }
        }
    }
    println!("{n} tokens: no other plans, fills, kernels or buffers, and one submit each");
    Ok(())
}

/// FNV-1a over the bits.
fn hash(values: &[f32]) -> u64 {
    values.iter().fold(0xcbf2_9ce4_8422_2325, |hash, x| (hash ^ x.to_bits() as u64).wrapping_mul(0x0100_0000_01b3))
}
