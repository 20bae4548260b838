//! The cases are computations that can be planned, each with a name of its own. What they become on a GPU is looked at by
//! `cargo xtask isa`.

use std::collections::BTreeSet;
use std::process::Command;

#[test]
fn every_case_can_be_planned_and_has_a_name_of_its_own() {
    let output = Command::new(env!("CARGO_BIN_EXE_isa-kernels")).args(["plan", "cpu"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let (name, n_kernels) = line.split_once('\t').unwrap();
        assert!(names.insert(name.to_string()), "{name} twice");
        assert!(n_kernels.parse::<usize>().unwrap() > 0, "{name} has no kernel");
    }
    assert!(names.len() > 30);
}
