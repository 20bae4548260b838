//! The command as a user meets it: what it prints, and how it ends.

mod images;

use std::process::{Command, Output};

use images::images;

fn lazuli(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lazuli")).args(words).output().expect("the command starts")
}

#[track_caller]
fn check(words: &[&str], code: i32, stdout: &[&str], stderr: &[&str]) {
    let output = lazuli(words);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{words:?}: {out}{err}");
    assert!(stdout.iter().all(|part| out.contains(part)), "{words:?} printed {out}");
    assert!(stderr.iter().all(|part| err.contains(part)), "{words:?} complained {err}");
}

#[test]
fn help_and_version_succeed() {
    check(&["--help"], 0, &["Usage: lazuli", "tour", "--device NAME"], &[]);
    check(&["--version"], 0, &["lazuli 0."], &[]);
}

#[test]
fn devices_lists_the_cpu_first() {
    check(&["devices"], 0, &["   0  ", "cpu"], &[]);
}

#[test]
fn wrong_arguments_end_with_2_and_a_hint() {
    check(&["tuor"], 2, &[], &["did you mean `tour`?", "Try `lazuli help`."]);
    check(&["--devise", "cpu"], 2, &[], &["did you mean `--device`?"]);
    check(&["devices", "extra"], 2, &[], &["`devices` takes no `extra`"]);
    check(&["devices", "--quick"], 2, &[], &["`devices` has no option `--quick`"]);
    check(
        &["help", "extra"],
        2,
        &[],
        &[
            "there is no command `extra`; there are: tour, devices, doctor, train, tune, inspect, run, transcribe, embed, chat, generate",
        ],
    );
    check(
        &["train", "mnist", "--batch", "0"],
        2,
        &[],
        &["--batch wants a whole number from 1 on", "`lazuli help train`"],
    );
    check(&["train", "mnist", "--lr", "-1"], 2, &[], &["--lr wants a rate from 1e-9 to 1", "not `-1`"]);
    check(&["train", "mnist", "--epochs", "0"], 2, &[], &["--epochs wants a whole number from 1 to 1000000"]);
    check(&["train", "mnist", "--slow"], 2, &[], &["there is no option `--slow`", "`lazuli help train`"]);
    check(&["tune", "--budget", "1e30"], 2, &[], &["--budget wants seconds from 0.001 to 86400", "`lazuli help tune`"]);
}

#[test]
fn help_is_there_for_every_command() {
    check(&["help"], 0, &["Usage: lazuli [COMMAND]", "help"], &[]);
    check(&["help", "train"], 0, &["Usage: lazuli train mnist"], &[]);
    check(&["help", "tune"], 0, &["Usage: lazuli tune"], &[]);
    check(&["help", "doctor"], 0, &["Usage: lazuli doctor", "--output FILE"], &[]);
    check(&["help", "tour"], 0, &["Usage: lazuli [tour]"], &[]);
    check(&["devices", "--help"], 0, &["Usage: lazuli devices"], &[]);
}

#[test]
fn a_run_is_finished_resumed_and_not_confused() {
    let (data, out) = (images(40, 10), tempfile::tempdir().expect("a folder"));
    let folder = out.path().join("run");
    let (data, folder) = (data.path().to_str().expect("is text"), folder.to_str().expect("is text"));
    let train = |words: &[&str], code: i32, stdout: &[&str], stderr: &[&str]| {
        let all = [&["train", "mnist", "--device", "cpu", "--data", data, "--out", folder], words].concat();
        check(&all, code, stdout, stderr);
    };
    train(&["--batch", "20", "--resume"], 1, &[], &["there is no checkpoint in", "begin a run without `--resume`"]);
    train(&["--batch", "41"], 1, &[], &["--batch 41 is more than the 40 images in", "take 40 or fewer"]);
    train(&["--batch", "20", "--epochs", "1"], 0, &["epoch 1: loss", "curves: "], &[]);
    let finished = ["is finished: 1 of 1 epochs are done", "`--resume --epochs 2`", "begin anew without `--resume`"];
    train(&["--batch", "20", "--epochs", "1", "--resume"], 0, &finished, &[]);
    let other = ["the run has `--batch 20 --seed 1`; go on with that"];
    train(&["--batch", "10", "--epochs", "2", "--resume"], 1, &[], &other);
    train(&["--batch", "20", "--epochs", "2", "--seed", "7", "--resume"], 1, &[], &other);
    train(&["--batch", "20", "--epochs", "2", "--resume"], 0, &["epoch 2: loss", "curves: "], &[]);
    train(
        &["--batch", "20", "--epochs", "1", "--resume"],
        0,
        &["is finished: 2 of 1 epochs are done", "--epochs 3"],
        &[],
    );
}

/// Runs the command with these variables and gives what it printed and what it complained of.
fn with_environment(words: &[&str], variables: &[(&str, &str)]) -> (String, Vec<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    let output = command.args(words).envs(variables.iter().copied()).output().expect("the command starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?} with {variables:?}: {out}{err}");
    (out.into_owned(), err.lines().filter(|line| line.starts_with("lazuli: ")).map(String::from).collect())
}

#[test]
fn variables_that_are_not_understood_are_reported_once() {
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (4 * n).max(16);
    let all =
        [("LAZULI_THREADS", "abc"), ("LAZULI_LOG", "weather, tides,"), ("LAZULI_ISA", "mmx"), ("LAZULI_TUNE", "soon")];
    // The tour asks for its devices, plans and runs many times.
    let (out, mut complaints) = with_environment(&["tour", "--quick", "--device", "software"], &all);
    complaints.sort();
    let expect = [
        "lazuli: LAZULI_ISA: \"mmx\" is not understood; there are: baseline, avx2, avx512".to_string(),
        "lazuli: LAZULI_LOG: \"weather\", \"tides\" are not understood; there are: graph, groups, kernels, plan, schedule, wgsl, time, tune"
            .to_string(),
        format!("lazuli: LAZULI_THREADS: \"abc\" is not understood; there are: whole numbers from 1 to {most}"),
        "lazuli: LAZULI_TUNE: \"soon\" is not understood; there are: off, fast, full".to_string(),
    ];
    assert_eq!(complaints, expect, "{out}");

    let known = [("LAZULI_THREADS", " 3 "), ("LAZULI_LOG", "time"), ("LAZULI_ISA", "baseline"), ("LAZULI_TUNE", "off")];
    let empty = known.map(|(name, _)| (name, ""));
    for variables in [known, empty] {
        assert_eq!(with_environment(&["tour", "--quick", "--device", "cpu"], &variables).1, [""; 0]);
    }
}

#[test]
fn threads_are_as_many_as_asked_for_up_to_a_limit() {
    let n = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (4 * n).max(16);
    let devices = |threads: &str| with_environment(&["devices"], &[("LAZULI_THREADS", threads)]);
    for (threads, expect) in [("1", ", 1 thread\n"), ("3", ", 3 threads\n"), ("16", ", 16 threads\n")] {
        let (out, complaints) = devices(threads);
        assert!(out.contains(expect) && complaints.is_empty(), "{threads}: {out}{complaints:?}");
    }
    let (out, complaints) = devices("100000");
    assert!(out.contains(&format!(", {most} threads\n")), "{out}");
    let more = format!("100000 threads are more than {most}, the most on this machine; {most} are started");
    assert_eq!(complaints, [format!("lazuli: LAZULI_THREADS: {more}")]);
}

#[test]
fn an_unknown_device_is_an_error_that_lists_devices() {
    check(&["tour", "--device", "abacus"], 1, &[], &["no device is called \"abacus\"", "cpu"]);
}

#[test]
fn the_tour_shows_plans_and_agreement() {
    let parts =
        ["Devices", "1 kernel, 1 submit", "op by op", "one plan", "times as fast", "matmul: inner sizes differ"];
    check(&["--quick", "--device", "cpu"], 0, &parts, &[]);
}

#[test]
fn training_says_what_it_can_and_where_data_comes_from() {
    check(&["train", "--help"], 0, &["lazuli train mnist", "--resume", "--preset NAME"], &[]);
    check(&["train", "cifar"], 2, &[], &["there is: mnist"]);
    check(&["train", "mnist", "--data", "no such folder"], 1, &[], &["cargo xtask data mnist"]);
}

#[test]
fn tuning_keeps_to_its_budget_and_leaves_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
        command.args(words).env("LAZULI_CACHE_DIR", folder.path()).output().expect("the command starts")
    };
    check(&["tune", "--help"], 0, &["lazuli tune", "--budget SECONDS"], &[]);
    check(&["tune", "--budget", "soon"], 2, &[], &["`--budget 30`, not `soon`"]);
    check(&["tune", "--device", "cpu"], 1, &[], &["tune: "]);
    let output = run(&["tune", "--device", "1", "--budget", "0.1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("of shapes tuned; programs that start"), "{output:?}");
    let is_tuned = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "tuned");
    assert_eq!(folder.path().read_dir().expect("it is there").flatten().filter(|entry| is_tuned(entry)).count(), 1);
}

#[test]
fn inspecting_lists_inputs_outputs_and_operators() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("add.onnx");
    std::fs::write(&path, lazuli_onnx::example_bytes()).expect("is written");
    let path = path.to_str().expect("is text");
    check(&["inspect", path], 0, &["1 nodes of 1 operators", "x: float[n]", "y: float[n]", "1  Add"], &[]);
    check(&["inspect"], 2, &[], &["inspect which file?", "`lazuli help inspect`"]);
    check(&["inspect", path, path], 2, &[], &["one file at a time"]);
    check(&["inspect", "no such.onnx"], 1, &[], &["no such.onnx: "]);
    let other = folder.path().join("model.bin");
    std::fs::write(&other, b"abc").expect("is written");
    check(&["inspect", other.to_str().expect("is text")], 1, &[], &["files end with .onnx"]);
    std::fs::write(path, b"no model").expect("is written");
    check(&["inspect", path], 1, &[], &["this is no ONNX file"]);
}

#[cfg(feature = "onnx")]
#[test]
fn a_model_is_run_on_files_and_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    // y = x + x
    let (model, npy, json, labels) = (file("double.onnx"), file("x.npy"), file("x.json"), file("labels.txt"));
    std::fs::write(&model, lazuli_onnx::example_bytes()).expect("is written");
    let x = lazuli::Tensor::from_slice(&[1.0f32, 4.0, 2.0], [3], &lazuli::Device::cpu());
    lazuli_io::save_npy(&npy, &x).expect("is written");
    std::fs::write(&json, r#"{"x": [1, 4, 2]}"#).expect("is written");
    std::fs::write(&labels, "one\nfour\ntwo\n").expect("is written");
    for input in [npy.as_str(), &json, "x=[1, 4, 2]", "[1, 4, 2]"] {
        check(&["run", &model, "--input", input, "--device", "cpu"], 0, &["y: float[3]", "[2. 8. 4.]"], &[]);
    }
    let start = ["run", &model, "--input", &npy, "--device", "cpu"];
    fn given<'w>(start: &[&'w str], words: &[&'w str]) -> Vec<&'w str> {
        [start, words].concat()
    }
    let data = r#"{"outputs":[{"data":[2.0,8.0,4.0],"name":"y","shape":[3],"type":"float"}]}"#;
    check(&given(&start, &["--json"]), 0, &[data], &[]);
    check(
        &given(&start, &["--labels", &labels, "--top", "2"]),
        0,
        &["8.000000       1  four", "4.000000       2  two"],
        &[],
    );
    check(&given(&start, &["--json", "--top", "1"]), 0, &[r#""top":[[{"index":1,"value":8.0}]]"#], &[]);
    check(&given(&start, &["--input", &npy]), 1, &[], &["the model has 1 inputs, and each was given already"]);
    check(&["run", &model], 1, &[], &["the model wants `x: float[n]`: give it with --input"]);
    check(&["run", &model, "--input", "z=[1]"], 1, &[], &["there is no input `z`; the inputs are `x: float[n]`"]);
    check(&["run", &model, "--input", "photo.gif"], 1, &[], &["ends with .npy, .png, .wav or .json"]);
    check(&["run", &file("none.onnx")], 1, &[], &["there is no such file", "torch.onnx.export"]);
    std::fs::write(&labels, "one\n").expect("is written");
    check(&given(&start, &["--labels", &labels]), 1, &[], &["1 labels fit no output"]);
    check(&["inspect", &model], 0, &["1 nodes of 1 operators", "x: float[n]", "1  Add"], &[]);
    check(&["inspect", &npy], 0, &["npy,", "f32      [3]  array"], &[]);
    check(&["inspect", &labels], 1, &[], &["files end with .onnx, .safetensors, .gguf, .npy or .npz"]);
}

#[cfg(feature = "onnx")]
#[test]
fn without_a_model_the_files_are_named_that_it_needs() {
    check(&["embed", "a text"], 1, &[], &["--model DIR", "model.safetensors", "`cargo xtask data minilm`"]);
    let wav = tempfile::tempdir().expect("a folder");
    let folder = wav.path().to_string_lossy().into_owned();
    let needs = ["has no encoder_model.onnx", "@moonshine-ai/moonshine-js", "`cargo xtask data moonshine`"];
    check(&["transcribe", "a.wav", "--model", &folder], 1, &[], &needs);
    check(&["transcribe"], 2, &[], &["transcribe what?", "`lazuli help transcribe`"]);
}

/// A language model of random weights.
#[cfg(feature = "text")]
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lazuli-text/tests/fixtures/qwen2.gguf");

#[cfg(feature = "text")]
#[test]
fn generate_goes_on_with_a_text_and_repeats_it_for_the_same_seed() {
    let words = ["generate", TINY, "The quick", "--tokens", "12", "--temperature=2", "--seed", "5", "--device", "cpu"];
    let first = lazuli(&words);
    assert!(first.status.success() && first.stdout.starts_with(b"The quick") && first.stdout.len() > 20);
    assert_eq!(first.stdout, lazuli(&words).stdout);
    let json = [&words[..], &["--json"]].concat();
    check(&json, 0, &["\"prompt\":\"The quick\"", "\"prompt_tokens\":", "\"tokens\":["], &[]);
    check(&[&words[..], &["--stats"]].concat(), 0, &["The quick"], &["made ", "tokens/s", "memory "]);
    check(&["generate", TINY], 2, &[], &["generate wants a model and a text", "`lazuli help generate`"]);
    check(&["help", "generate"], 0, &["Usage: lazuli generate MODEL", "\n  --tokens N", "\n  --temperature T"], &[]);
}

#[cfg(feature = "text")]
#[test]
fn models_that_cannot_be_opened_are_told_without_lines_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().to_str().expect("is text");
    for (words, expect) in [
        (["generate", "missing.gguf", "x"], "missing.gguf: No such file"),
        (["generate", "Cargo.toml", "x"], "Cargo.toml: not a GGUF file"),
        (["generate", empty, "x"], "there is no config.json: a folder with a model has"),
        (["chat", TINY, "--context=1000"], "context: 1000 tokens: the model has a context of 1 to 512"),
        (["generate", TINY, "--device=abc"], "generate wants a model and a text"),
    ] {
        let output = lazuli(&words);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(expect) && !told.contains(".rs:"), "{told}");
    }
}

#[cfg(feature = "text")]
#[test]
fn chat_answers_lines_and_understands_commands() {
    use std::io::Write;
    use std::process::Stdio;
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.args(["chat", TINY, "--tokens", "4", "--temperature", "0", "--device", "cpu", "--stats"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let lines = b"/help\nhello\n/unknown\n/history\n/clear\n/history\n/quit\nnever said\n";
    process.stdin.take().expect("a pipe").write_all(lines).expect("it reads");
    let output = process.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("/quit") && out.contains("there is no `/unknown`"), "{out}");
    assert!(out.contains("user: hello\nassistant: ") && !out.contains("never said"), "{out}");
    assert!(err.contains("tokens/s"), "{err}");
}

/// The tiny model with room for a text that takes minutes: its likeliest tokens go round in circles.
#[cfg(all(feature = "text", unix))]
fn endless_model(path: &std::path::Path) {
    let file = lazuli_io::Gguf::open(TINY).expect("a model");
    let mut writer = lazuli_io::GgufWriter::new();
    file.metadata().iter().for_each(|(key, value)| writer.set(key, value.clone()));
    writer.set("qwen2.context_length", 1u32 << 20);
    for tensor in file.tensors() {
        let weights = file.tensor(&tensor.name, &lazuli::Device::cpu()).expect("a tensor");
        writer.push(&tensor.name, &weights).expect("it fits");
    }
    std::fs::write(path, writer.to_bytes().expect("a file")).expect("it is written");
}

#[cfg(all(feature = "text", unix))]
#[test]
fn chat_stops_a_reply_when_it_is_interrupted_and_goes_on() {
    use std::io::{Read, Write};
    use std::process::Stdio;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("endless.gguf");
    endless_model(&path);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.arg("chat").arg(path).args(["--temperature", "0", "--device", "cpu", "--stats"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("it starts");
    let (mut stdin, mut stdout) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
    stdin.write_all(b"hello\n").expect("it reads");
    let mut first = [0];
    stdout.read_exact(&mut first).expect("it answers");
    let killed = Command::new("kill").args(["-INT", &process.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    stdin.write_all(b"/help\n/history\n/quit\n").expect("it reads on");
    let mut out = first.to_vec();
    stdout.read_to_end(&mut out).expect("it ends");
    let output = process.wait_with_output().expect("it ends");
    let (out, err) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let made = err.lines().find_map(|line| line.strip_prefix("made")?.split_whitespace().next()?.parse::<usize>().ok());
    assert!(made.is_some_and(|n| n < 1 << 19), "{err}");
    assert!(out.contains("/history   What was said") && out.contains("user: hello\nassistant: "), "{out}");
}

#[cfg(feature = "text")]
#[test]
fn inspect_tells_what_a_gguf_file_holds() {
    let expect =
        ["GGUF version 3", "26 tensors", "general.architecture: qwen2", "F32      [329, 32]  token_embd.weight"];
    check(&["inspect", TINY], 0, &expect, &[]);
    let numbers = ["qwen2.block_count: 2\n", "layer_norm_rms_epsilon: 0.00001\n", "add_bos_token: false\n"];
    check(&["inspect", TINY], 0, &numbers, &[]);
}

/// Runs the doctor on the CPU in a home of somebody's; whether it succeeded, what it printed, and the file it wrote.
fn doctor(words: &[&str], folder: &std::path::Path) -> (bool, String, String) {
    let file = folder.join("report");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.args(["doctor", "--device", "cpu", "--output"]).arg(&file).args(words);
    let output = command.env("HOME", folder).env("USER", "somebody").output().expect("the command starts");
    let report = std::fs::read_to_string(&file).expect("the report is written");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned(), report)
}

#[test]
fn doctor_writes_a_report_without_names_of_users_and_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let (passed, out, text) = doctor(&["--only", "sort"], folder.path());
    assert!(passed && out.starts_with("2 checks on 1 device, all passed; the report is in "), "{out}{text}");
    let parts = ["Lazuli uses", "threads", "Forms of kernels: 2 of 2 passed", "argsort", "worst ulps"];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    let (passed, _, json) = doctor(&["--only", "random bits", "--json"], folder.path());
    assert!(passed && json.starts_with("{\"lazuli\":\"") && json.contains("\"failures\":0"), "{json}");
    assert!(json.contains("{\"form\":\"random bits\",\"passed\":true,\"cases\":2,"), "{json}");
    let folder = folder.path().to_str().expect("is text");
    for report in [&text, &json] {
        assert!(!report.contains("somebody") && !report.contains(folder), "{report}");
    }
}

/// Its driver has compiled nothing for a cache that is empty; where there is one from before, nobody is told to wait.
#[test]
fn doctor_says_that_a_first_run_compiles_and_how_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
        command.args(["doctor", "--device", "software", "--only", "argsort"]).env("LAZULI_CACHE_DIR", folder.path());
        let output = command.output().expect("the command starts");
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(output.status.success(), "{out}{err}");
        (out, err)
    };
    let message = ": its driver has to compile every kernel first, which may take minutes\n";
    let (out, err) = run();
    assert!(
        err.ends_with(message) && out.contains(" kernels compiled, for the first time on this driver\n"),
        "{out}{err}"
    );
    let (out, err) = run();
    assert!(!err.contains(message) && out.ends_with(" kernels compiled\n"), "{out}{err}");
}

#[test]
fn doctor_says_what_it_cannot_do() {
    check(&["doctor", "--only", "teapot"], 1, &[], &["no form has `teapot` in its name; there are: elementwise, f32"]);
    check(&["doctor", "--device", "abacus"], 1, &[], &["no device is called \"abacus\""]);
    let words = ["doctor", "--device", "cpu", "--only", "sort", "--output", "no/such/folder/report"];
    check(&words, 1, &[], &["no/such/folder/report: "]);
}

#[cfg(unix)]
#[test]
fn doctor_writes_its_report_when_it_is_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lazuli"));
    command.args(["doctor", "--device", "cpu", "--output"]).arg(&file);
    let mut doctor = command.spawn().expect("the command starts");
    // The file is there before the first check, and from then on Ctrl-C is waited for.
    while !file.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let killed = Command::new("kill").args(["-INT", &doctor.id().to_string()]).status().expect("kill starts");
    assert!(killed.success());
    let status = doctor.wait().expect("it ends");
    let report = std::fs::read_to_string(&file).expect("the report is written");
    assert!(status.success() && report.contains("; interrupted\n"), "{status}: {report}");
}
