//! The command as a user meets it: what it prints, and how it ends.

use std::process::{Command, Output};

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
    check(&["tuor"], 2, &[], &["did you mean `tour`?", "lazuli --help"]);
    check(&["--devise", "cpu"], 2, &[], &["did you mean `--device`?"]);
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
    check(&["tune", "--budget", "soon"], 2, &[], &["--budget 30"]);
    check(&["tune", "--device", "cpu"], 1, &[], &["tune: "]);
    let output = run(&["tune", "--device", "1", "--budget", "0.1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("classes of shapes tuned"), "{output:?}");
    let is_tuned = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|e| e == "tuned");
    assert_eq!(folder.path().read_dir().expect("it is there").flatten().filter(|entry| is_tuned(entry)).count(), 1);
}
