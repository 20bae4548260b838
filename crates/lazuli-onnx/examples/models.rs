//! Runs real models on cases that `cargo xtask models` has let onnxruntime answer, and compares. Floats may differ by
//! 1e-4 + 1e-3 · |expected|; decisions (the largest label, what is above a limit) must be the same; integers of quantised
//! operators must be equal. What a case is, `xtask/models/reference.py` says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use lazuli::{DType, Device, Tensor};
use lazuli_onnx::{ElemType, Evaluation, Form, Model};

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(n) => {
            eprintln!("models: {n} differ");
            ExitCode::FAILURE
        }
        Err(message) => {
            eprintln!("models: {message}");
            ExitCode::from(2)
        }
    }
}

/// Runs what the words say; how many cases differ.
fn run() -> Result<usize, String> {
    let (mut cases, mut devices, mut only) = (PathBuf::from("data/models"), Vec::new(), Vec::new());
    let (mut is_kept, mut is_sized) = (false, false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut next = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match &word[..] {
            "--cases" => cases = next()?.into(),
            "--device" => devices.push(next()?),
            "--only" => only.push(next()?),
            // Only what is compared with numbers of the repository.
            "--kept" => is_kept = true,
            // A run of one case for every line that comes in: what `xtask/models/speed.py` measures.
            "--serve" => return Case::read(Path::new(&next()?))?.serve(&Device::cpu()).map(|()| 0),
            // Only how often models are planned over many sizes, and what memory they take.
            "--sizes" => is_sized = true,
            _ => return Err(format!("`{word}`: there are --cases, --device, --only, --kept, --sizes, --serve")),
        }
    }
    if devices.is_empty() {
        devices.push("cpu".to_string());
    }
    let mut n_bad = 0;
    for name in devices {
        let device = Device::open(&name).map_err(text)?;
        if is_sized {
            for case in SIZED.iter().filter(|case| only.is_empty() || only.iter().any(|part| case.name.contains(part)))
            {
                let start = Instant::now();
                n_bad += report(&name, case.name, case.check(&device), start) as usize;
            }
            continue;
        }
        let mut entries = match is_kept {
            true => Vec::new(),
            false => folders(&cases)?,
        };
        entries.sort();
        let mut models = Models { device: &device, loaded: HashMap::new() };
        let wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
        let checks = entries.iter().map(|path| (path.file_name().unwrap_or_default().to_string_lossy(), path));
        for (case, path) in checks.filter(|(case, _)| wanted(case)) {
            let start = Instant::now();
            let said = Case::read(path).and_then(|case| case.check(&mut models));
            n_bad += report(&name, &case, said, start) as usize;
        }
        for (case, check) in PIPELINES {
            if wanted(case) {
                let start = Instant::now();
                n_bad += report(&name, case, check(&mut models), start) as usize;
            }
        }
    }
    Ok(n_bad)
}

/// The folders of a folder.
fn folders(path: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}; `cargo xtask models` makes it", path.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect())
}

/// Numbers that onnxruntime gave, as the repository keeps them, a line each.
fn kept<T: std::str::FromStr>(name: &str) -> Result<Vec<T>, String> {
    let path = Path::new("xtask/models").join(name);
    let lines = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let number = |line: &str| line.parse().map_err(|_| format!("{}: `{line}` is no number", path.display()));
    lines.lines().map(number).collect()
}

/// The recording as floats, 16,000 a second: 16-bit samples after a header of 44 bytes.
fn recording() -> Result<Vec<f32>, String> {
    let path = Path::new("data/moonshine/beckett.wav");
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    if bytes.get(36..40) != Some(b"data") {
        return Err(format!("{} has another header than the one that is pinned", path.display()));
    }
    Ok(bytes[44..].chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]]) as f32 / 32768.0).collect())
}

/// What goes over several runs of a model.
const PIPELINES: [(&str, fn(&mut Models) -> Result<String, String>); 2] =
    [("moonshine-tokens", spoken), ("silero-listening", listened)];

/// Prints a line; whether it is a bad one.
fn report(device: &str, case: &str, said: Result<String, String>, start: Instant) -> bool {
    let seconds = start.elapsed().as_secs_f64();
    let (verdict, text, is_bad) = match said {
        Ok(text) => ("same", text, false),
        Err(text) => ("DIFFERS", text, true),
    };
    println!("{device:<9} {case:<46} {verdict:<8} {seconds:>7.2} s  {text}");
    is_bad
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Models that are loaded already.
struct Models<'d> {
    device: &'d Device,
    loaded: HashMap<PathBuf, Model>,
}

impl Models<'_> {
    fn get(&mut self, path: &Path) -> Result<&Model, String> {
        if !self.loaded.contains_key(path) {
            self.loaded.insert(path.to_path_buf(), Model::load(path, self.device).map_err(text)?);
        }
        Ok(&self.loaded[path])
    }
}

/// A decision that must be the same.
enum Rule {
    /// Which element of the last axis is the largest.
    Argmax,
    /// Which elements are above a limit.
    Above(f32),
}

/// What a folder holds.
#[derive(Default)]
struct Case {
    folder: PathBuf,
    model: PathBuf,
    inputs: Vec<(String, PathBuf)>,
    outputs: Vec<(String, PathBuf)>,
    decisions: Vec<(String, Rule)>,
    is_exact: bool,
    is_loose: bool,
}

impl Case {
    fn read(folder: &Path) -> Result<Case, String> {
        let path = folder.join("case.txt");
        let lines = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut case = Case { folder: folder.to_path_buf(), ..Case::default() };
        for line in lines.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                // Models of a case's own are in its folder; others are named from the root.
                ["model", path] if path.contains('/') => case.model = path.into(),
                ["model", path] => case.model = folder.join(path),
                ["input", name, file] => case.inputs.push((name.into(), folder.join(file))),
                ["output", name, file] => case.outputs.push((name.into(), folder.join(file))),
                ["decide", name, "argmax"] => case.decisions.push((name.into(), Rule::Argmax)),
                ["decide", name, "above", limit] => {
                    case.decisions.push((name.into(), Rule::Above(limit.parse().map_err(text)?)));
                }
                ["exact"] => case.is_exact = true,
                ["loose"] => case.is_loose = true,
                _ => return Err(format!("{}: `{line}` is not understood", folder.display())),
            }
        }
        Ok(case)
    }

    /// Runs once for every line of the standard input and answers with the seconds that it took.
    fn serve(&self, device: &Device) -> Result<(), String> {
        let model = Model::load(&self.model, device).map_err(text)?;
        let load = |(name, path): &(String, PathBuf)| Ok((name.clone(), lazuli_io::load_npy(path, device)?));
        let inputs: Vec<(String, Tensor)> =
            self.inputs.iter().map(load).collect::<lazuli::Result<_>>().map_err(text)?;
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        println!("ready");
        for _ in std::io::stdin().lines() {
            let start = Instant::now();
            model.infer(&inputs).map_err(text)?;
            println!("{}", start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// What to say if all is as it must be, else what is not.
    fn check(&self, models: &mut Models) -> Result<String, String> {
        let device = models.device.clone();
        let model = models.get(&self.model)?;
        let load = |path: &PathBuf| lazuli_io::load_npy(path, &device).map_err(text);
        let mut inputs = Vec::new();
        for (name, path) in &self.inputs {
            inputs.push((name.as_str(), load(path)?));
        }
        let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let results = model.run(&inputs).map_err(text)?;
        let mut found = Vec::new();
        for (name, _) in &self.outputs {
            found.push(results.tensor(name).map_err(text)?);
        }
        lazuli::compute(&found.iter().collect::<Vec<_>>()).map_err(text)?;
        // The first run plans, the second records, the third is the recorded one.
        let mut again = None;
        for _ in 0..3 {
            again = Some(model.infer(&inputs).map_err(text)?);
        }
        for ((name, _), found) in self.outputs.iter().zip(&found) {
            if let Some(again) = &again {
                equal(name, &again.tensor(name).map_err(text)?, found).map_err(|e| format!("recorded: {e}"))?;
            }
        }
        let mut most = 0.0f64;
        for ((name, path), found) in self.outputs.iter().zip(&found) {
            let expect = load(path)?;
            let (shape, own) = (expect.shape().map_err(text)?.to_vec(), found.shape().map_err(text)?.to_vec());
            if shape != own {
                return Err(format!("`{name}` is {own:?}, not {shape:?}"));
            }
            if self.is_exact {
                equal(name, found, &expect)?;
                continue;
            }
            let far = furthest(found, &expect).map_err(text)?;
            most = most.max(far);
            if far > 1.0 && !self.is_loose {
                return Err(format!("`{name}` is {far:.2} times as far as allowed"));
            }
        }
        let mut said = match (self.is_exact, self.is_loose) {
            (true, _) => "equal bit by bit".to_string(),
            (_, true) => format!("at most {most:.1} times what float models are allowed"),
            _ => format!("at most {most:.3} of what is allowed"),
        };
        for (name, rule) in &self.decisions {
            let at = self.outputs.iter().position(|(own, _)| own == name);
            let at = at.ok_or_else(|| format!("{}: no output `{name}`", self.folder.display()))?;
            let expect = decided(&load(&self.outputs[at].1)?, rule).map_err(text)?;
            let own = decided(&found[at], rule).map_err(text)?;
            let n_other = expect.iter().zip(&own).filter(|(a, b)| a != b).count();
            if n_other > 0 {
                return Err(format!("{n_other} of {} decisions of `{name}` differ; {said}", own.len()));
            }
            said += &format!(", {} decisions", own.len());
        }
        Ok(said)
    }
}

/// The largest difference in units of what is allowed. A NaN is infinitely far.
fn furthest(found: &Tensor, expect: &Tensor) -> lazuli::Result<f64> {
    let (found, expect) = (found.to_vec::<f32>()?, expect.to_vec::<f32>()?);
    let far = |(a, b): (&f32, &f32)| match a == b {
        true => 0.0,
        false => ((*a - *b).abs() as f64) / (1e-4 + 1e-3 * b.abs() as f64),
    };
    let most = found.iter().zip(&expect).map(far).fold(0.0, |most: f64, far| if far <= most { most } else { far });
    Ok(if most.is_nan() { f64::INFINITY } else { most })
}

fn equal(name: &str, found: &Tensor, expect: &Tensor) -> Result<(), String> {
    let n_other = match expect.dtype().map_err(text)?.is_float() {
        true => differing(&found.to_vec::<f32>().map_err(text)?, &expect.to_vec::<f32>().map_err(text)?),
        false => differing(&found.to_vec::<i64>().map_err(text)?, &expect.to_vec::<i64>().map_err(text)?),
    };
    if n_other == 0 { Ok(()) } else { Err(format!("{n_other} elements of `{name}` differ")) }
}

fn differing<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

fn decided(tensor: &Tensor, rule: &Rule) -> lazuli::Result<Vec<i64>> {
    match rule {
        Rule::Argmax => tensor.argmax(-1).to_vec(),
        Rule::Above(limit) => tensor.gt(*limit).to_dtype(DType::I32).to_vec(),
    }
}

/// Moonshine: what the decoder says of the recording, token after token, with past keys.
fn spoken(models: &mut Models) -> Result<String, String> {
    let device = models.device.clone();
    let (expect, sound) = (kept::<i64>("moonshine-tokens.txt")?, recording()?);
    let sound = Tensor::from_slice(&sound, [1, sound.len()], &device);
    let encoder = models.get(Path::new("data/moonshine/encoder_model.onnx"))?;
    let states = encoder.run(&[("input_values", &sound)]).and_then(|given| given.tensor("last_hidden_state"));
    let states = states.and_then(|states| states.compute()).map_err(text)?;
    let decoder = models.get(Path::new("data/moonshine/decoder_model_merged.onnx"))?;
    let names = decoder.inputs().iter().map(|input| input.name.clone()).filter(|name| name.starts_with("past"));
    let empty = || Tensor::zeros([1, 8, 0, 36], DType::F32, &device);
    let mut past: Vec<(String, Tensor)> = names.map(|name| (name, empty())).collect();
    let mut tokens = vec![1i64];
    while tokens.last() != Some(&2) && tokens.len() < 194 {
        let is_cached = tokens.len() > 1;
        let last = Tensor::from_slice(&[*tokens.last().unwrap_or(&1) as i32], [1, 1], &device);
        let branch = Tensor::from_slice(&[is_cached], [1], &device);
        let mut inputs: Vec<(&str, &Tensor)> =
            vec![("input_ids", &last), ("encoder_hidden_states", &states), ("use_cache_branch", &branch)];
        inputs.extend(past.iter().map(|(name, tensor)| (name.as_str(), tensor)));
        let given = decoder.run(&inputs).map_err(text)?;
        let mut wanted = vec![given.tensor("logits").map_err(text)?.argmax(-1)];
        let grows = |name: &str| !is_cached || name.contains(".decoder.");
        for (name, tensor) in past.iter_mut().filter(|(name, _)| grows(name)) {
            *tensor = given.tensor(&name.replace("past_key_values", "present")).map_err(text)?;
            wanted.push(tensor.clone());
        }
        lazuli::compute(&wanted.iter().collect::<Vec<_>>()).map_err(text)?;
        tokens.extend(wanted[0].to_vec::<i64>().map_err(text)?);
    }
    if tokens != expect {
        return Err(format!("tokens {tokens:?}, not {expect:?}"));
    }
    Ok(format!("{} tokens", tokens.len()))
}

/// Silero: chunk after chunk, the state handed on.
fn listened(models: &mut Models) -> Result<String, String> {
    let device = models.device.clone();
    let expect = kept::<f32>("silero-chances.txt")?;
    let expect = Tensor::from_slice(&expect, [expect.len()], &device);
    // Before each chunk of 512 samples the model sees the last 64 of the chunk before.
    let sound = [vec![0.0; 64], recording()?].concat();
    let model = models.get(Path::new("data/silero/silero_vad.onnx"))?;
    let rate = Tensor::scalar(16_000i32, &device);
    let mut state = Tensor::zeros([2, 1, 128], DType::F32, &device);
    let mut found = Vec::new();
    for i in 0..expect.shape().map_err(text)?[0] {
        let chunk = sound.get(512 * i..512 * i + 576).ok_or("the recording is too short")?;
        let chunk = Tensor::from_slice(chunk, [1, 576], &device);
        let given = model.run(&[("input", &chunk), ("state", &state), ("sr", &rate)]).map_err(text)?;
        let chance = given.tensor("output").map_err(text)?;
        state = given.tensor("stateN").map_err(text)?;
        lazuli::compute(&[&chance, &state]).map_err(text)?;
        found.extend(chance.to_vec::<f32>().map_err(text)?);
    }
    let found = Tensor::from_slice(&found, [found.len()], &device);
    let far = furthest(&found, &expect).map_err(text)?;
    let segments = |tensor: &Tensor| decided(tensor, &Rule::Above(0.5)).map_err(text);
    let (own, theirs) = (segments(&found)?, segments(&expect)?);
    if far > 1.0 || own != theirs {
        return Err(format!("{far:.2} times as far as allowed; {} segments differ", differing(&own, &theirs)));
    }
    let n_spoken = own.iter().filter(|spoken| **spoken == 1).count();
    Ok(format!("at most {far:.3} of what is allowed, {n_spoken} of {} chunks spoken", own.len()))
}

/// A model some of whose sizes vary.
struct Sized {
    name: &'static str,
    model: &'static str,
    /// The shapes of its inputs for the n-th of fifty sizes; of the input with this name, in the model's order.
    shape: fn(usize, &str) -> Vec<usize>,
}

const SIZED: [Sized; 15] = [
    Sized {
        name: "sizes-moonshine-encoder",
        model: "data/moonshine/encoder_model.onnx",
        shape: |i, _| vec![1, 2_000 + 173 * i],
    },
    Sized {
        // One new token after 1 to 50 tokens.
        name: "sizes-moonshine-decoder-past",
        model: "data/moonshine/decoder_model_merged.onnx",
        shape: |i, name| decoder(name, 1, 1 + i, 40),
    },
    Sized {
        // One new token after tokens that were decoded from recordings of various lengths.
        name: "sizes-moonshine-decoder-both",
        model: "data/moonshine/decoder_model_merged.onnx",
        shape: |i, name| decoder(name, 1, 1 + 3 * i % 50, 20 + 7 * i),
    },
    Sized {
        name: "sizes-moonshine-decoder-start",
        model: "data/moonshine/decoder_model_merged.onnx",
        shape: |i, name| decoder(name, 1 + i, 0, 40),
    },
    Sized {
        name: "sizes-silero-batches",
        model: "data/silero/silero_vad.onnx",
        shape: |i, name| silero(name, 1 + i, 576),
    },
    Sized {
        name: "sizes-silero-half-batches",
        model: "data/silero/silero_vad_half.onnx",
        shape: |i, name| silero(name, 1 + i, 576),
    },
    Sized {
        name: "sizes-silero-ifless-batches",
        model: "data/silero/silero_vad_op18_ifless.onnx",
        shape: |i, name| silero(name, 1 + i, 576),
    },
    Sized {
        // Up to 337 steps of a recurrence, for 11 seconds of sound.
        name: "sizes-silero-sequence",
        model: "data/silero/silero_vad_16k_sequence.onnx",
        shape: |i, name| match name {
            "input" => vec![1 + i * (1 + i % 7), 576],
            _ => vec![1, 1, 128],
        },
    },
    Sized {
        name: "sizes-ocr-read",
        model: "data/rapidocr/PP-OCRv6_rec_small.onnx",
        shape: |i, _| vec![1, 3, 48, 64 + 8 * i],
    },
    Sized {
        name: "sizes-ocr-read-batches",
        model: "data/rapidocr/PP-OCRv6_rec_small.onnx",
        shape: |i, _| vec![1 + i % 5, 3, 48, 64 + 8 * (i / 5)],
    },
    Sized {
        name: "sizes-ocr-detect",
        model: "data/rapidocr/PP-OCRv6_det_small.onnx",
        shape: |i, _| vec![1, 3, 64 + 32 * (i % 5), 64 + 32 * (i / 5)],
    },
    Sized {
        name: "sizes-ocr-turned",
        model: "data/rapidocr/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        shape: |i, _| vec![1 + i, 3, 48, 192],
    },
    Sized { name: "sizes-magika", model: "data/magika/model.onnx", shape: |i, _| vec![1 + i, 2048] },
    // Both models take long on large batches, so the fifty runs have batches of 1 to 10, five times each.
    Sized { name: "sizes-pitch", model: "data/basic-pitch/nmp.onnx", shape: |i, _| vec![1 + i % 10, 43_844, 1] },
    Sized { name: "sizes-nsfw", model: "data/open-nsfw/open-nsfw.onnx", shape: |i, _| vec![1 + i % 10, 224, 224, 3] },
];

/// The shape of an input of Moonshine's decoder, for `n_new` tokens after `n_past` tokens, and `n_frames` frames of sound.
fn decoder(name: &str, n_new: usize, n_past: usize, n_frames: usize) -> Vec<usize> {
    match name {
        "input_ids" => vec![1, n_new],
        "encoder_hidden_states" => vec![1, n_frames, 288],
        "use_cache_branch" => vec![1],
        name if name.contains(".encoder.") && n_past > 0 => vec![1, 8, n_frames, 36],
        _ => vec![1, 8, n_past, 36],
    }
}

/// The shape of an input of a Silero model, for `n_samples` samples of each of `n_recordings` recordings.
fn silero(name: &str, n_recordings: usize, n_samples: usize) -> Vec<usize> {
    match name {
        "input" => vec![n_recordings, n_samples],
        "state" => vec![2, n_recordings, 128],
        _ => Vec::new(),
    }
}

impl Sized {
    /// Inputs of the n-th size: small random numbers, 16,000 samples a second, whether past keys are there.
    fn inputs(&self, model: &Model, i: usize, device: &Device) -> Result<Vec<(String, Tensor)>, String> {
        let has_past = model.inputs().iter().any(|input| (self.shape)(i, &input.name).ends_with(&[36]))
            && !model.inputs().iter().any(|input| (self.shape)(i, &input.name).contains(&0));
        let mut inputs = Vec::new();
        for (at, input) in model.inputs().iter().enumerate() {
            let Form::Tensor(elem) = input.form else { return Err(format!("`{input}` is no tensor")) };
            let shape = (self.shape)(i, &input.name);
            let x = match (input.name.as_str(), elem) {
                ("sr", _) => Tensor::full(shape, 16_000, device),
                (_, ElemType::Bool) => Tensor::full(shape, has_past, device),
                _ => Tensor::rand(shape, (50 * at + i) as u64, device).mul(0.1),
            };
            inputs.push((input.name.clone(), x.to_dtype(elem.storage()).compute().map_err(text)?));
        }
        Ok(inputs)
    }

    /// Runs the model over fifty sizes. Each evaluation of a run may be planned at most three times, and anew only where one of the edges
    /// that `explain` lists has another answer; memory may be at most 1.2 times the bytes that `explain` tells.
    fn check(&self, device: &Device) -> Result<String, String> {
        let model = Model::load(self.model, device).map_err(text)?;
        device.trim();
        // The first run makes weights ready that are kept from then on.
        let first = self.inputs(&model, 0, device)?;
        model.infer(&named(&first)).map_err(text)?;
        drop(first);
        let weights = device.stats().bytes_live;
        let (mut n_filled, mut most) = (0, 0.0f64);
        // For each evaluation the edges and answers that `explain` has shown, and the most times it may have been planned.
        let mut known: BTreeMap<String, (BTreeSet<Vec<String>>, u64)> = BTreeMap::new();
        for i in 0..50 {
            let inputs = self.inputs(&model, i, device)?;
            device.reset_stats();
            let evaluations = model.explain(&named(&inputs)).map_err(text)?;
            let results = model.infer(&named(&inputs)).map_err(text)?;
            let stats = device.stats();
            let mut n_new = 0;
            for evaluation in &evaluations {
                let (edges, n_plans) = known.entry(evaluation.of.clone()).or_default();
                // The details of kernels, which follow the questions, differ between filled plans and are not compared.
                let asked = evaluation.explain.edges.iter().filter(|edge| !edge.starts_with("kernel "));
                if edges.insert(asked.cloned().collect()) {
                    n_new += 1;
                    *n_plans += (stats.plans_compiled > 0) as u64;
                }
            }
            let shapes = || inputs.iter().map(|(name, _)| (self.shape)(i, name)).collect::<Vec<_>>();
            if stats.plans_compiled > n_new {
                let n = stats.plans_compiled;
                return Err(format!("{n} plans for {:?}, where `explain` shows {n_new} that are new", shapes()));
            }
            n_filled += stats.plans_filled;
            let given = inputs.iter().map(|(_, x)| x.shape().map_or(0, |s| s.iter().product::<usize>() * 4));
            let results_bytes = evaluations.iter().map(|evaluation| evaluation.result_bytes).sum::<usize>();
            let least = |e: &Evaluation| e.explain.peak_temp_bytes + e.explain.kept_bytes;
            let temporary = evaluations.iter().map(least).max().unwrap_or(0);
            let bound = weights + (given.sum::<usize>() + results_bytes + temporary) as u64;
            let part = stats.bytes_peak as f64 / bound as f64;
            most = most.max(part);
            drop(results);
        }
        let most_plans = known.values().map(|(_, n_plans)| *n_plans).max().unwrap_or(0);
        let n_plans = known.values().map(|(_, n_plans)| n_plans).sum::<u64>();
        let said = format!(
            "{n_plans} plans of {} evaluations, {most_plans} of one at most, {n_filled} filled, memory {most:.3} of weights and what \
             was explained",
            known.len()
        );
        if most_plans <= 3 && most <= 1.2 { Ok(said) } else { Err(said) }
    }
}

/// Inputs in the form that `Model::infer` takes.
fn named(inputs: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    inputs.iter().map(|(name, x)| (name.as_str(), x)).collect()
}
