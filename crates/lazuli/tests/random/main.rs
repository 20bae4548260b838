//! Random programs over the whole public API: what they give, computed all at once, step by step and again, must lie
//! within bounds that an f64 oracle derives from the ops' stated errors.
//!
//! Programs, oracle and checks are the crate `lazuli-check`.
//!
//! They run on the CPU, or on what `LAZULI_TEST_DEVICE` names.
//! `LAZULI_RANDOM_CASES`, `LAZULI_RANDOM_SEED` and `LAZULI_RANDOM_OPS` say how many, which and how long;
//! `LAZULI_SOAK_SECONDS` goes on for that long.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use lazuli_check::{
    Cell, Limits, Mode, Node, Program, Subject, drawn, methods, quietly, run_and_compare, search, source, testing,
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Programs of this test run on the device under test.
fn subject() -> Subject {
    lazuli_check::on(&testing::device()).expect("the device computes")
}

/// Draws and checks this many programs; prints the first that fails, made small.
fn check_many(seed: u64, cases: u64, max_ops: usize, limits: Limits) {
    let _subject = subject();
    if let Some(found) = search(seed, cases as usize, max_ops, limits) {
        panic!("seed {seed}: {}\n\n{}", found.failure, source(&found.program, &found.failure));
    }
}

/// How many small programs; of large ones a sixteenth.
fn cases() -> u64 {
    // A GPU driver compiles every new kernel for milliseconds, where the CPU only looks at it.
    number("LAZULI_RANDOM_CASES", if testing::device() == lazuli::Device::cpu() { 3000 } else { 200 })
}

/// Where the seeds of small and large programs start.
fn seed() -> u64 {
    number("LAZULI_RANDOM_SEED", 1)
}

#[test]
fn small_programs_agree_with_the_oracle() {
    check_many(seed(), cases(), number("LAZULI_RANDOM_OPS", 12) as usize, Limits::SMALL);
}

#[test]
fn long_programs_agree_with_the_oracle() {
    check_many(seed().wrapping_add(1 << 34), cases() / 16, 120, Limits::SMALL);
}

#[test]
fn large_programs_agree_with_the_oracle() {
    check_many(seed().wrapping_add(1 << 32), cases() / 16, 6, Limits::LARGE);
}

#[test]
fn programs_agree_with_the_oracle_for_as_long_as_wanted() {
    let end = Instant::now() + Duration::from_secs(number("LAZULI_SOAK_SECONDS", 0));
    let mut seed = seed().wrapping_add(1 << 33);
    while Instant::now() < end {
        check_many(seed, 50, 20, Limits::SMALL);
        check_many(seed + 1, 3, 8, Limits::LARGE);
        seed += 2;
    }
}

/// A program that runs as one and is expected to give what another would.
fn expecting(program: &Program, other: &Program) -> Program {
    let node = |(a, b): (&Node, &Node)| Node { expect: b.expect.clone(), ..a.clone() };
    Program { nodes: program.nodes.iter().zip(&other.nodes).map(node).collect(), outputs: program.outputs.clone() }
}

#[test]
fn an_op_that_does_something_else_is_found_out() {
    let _subject = subject();
    let (mut n_mutants, mut kinds) = (0, HashSet::new());
    for program in drawn(seed(), 400, 6, Limits::SMALL) {
        let Some((at, mutant)) = (0..program.nodes.len()).rev().find_map(|i| Some((i, program.nodes[i].op.mutant()?)))
        else {
            continue;
        };
        let same_type = |p: &Program| {
            let pairs = p.nodes.iter().zip(&program.nodes);
            pairs.into_iter().all(|(a, b)| a.expect.shape == b.expect.shape && a.expect.dtype == b.expect.dtype)
        };
        // Some ops cannot be swapped on this input (a shape or dtype would not fit): those say so by a panic.
        let mutated =
            quietly(|| program.with(|i| (i == at).then(|| (mutant.clone(), program.nodes[i].inputs.clone()))));
        let Ok(mutated) = mutated else { continue };
        // Only where they certainly differ can, and must, they be told apart.
        let apart = |o: &usize| {
            let pairs = program.nodes[*o].expect.cells.iter().zip(&mutated.nodes[*o].expect.cells);
            pairs.into_iter().any(|(a, b)| !a.nan && !b.nan && (a.hi < b.lo || b.hi < a.lo))
        };
        if !same_type(&mutated) || !program.outputs.iter().any(apart) {
            continue;
        }
        n_mutants += 1;
        kinds.insert(format!("{mutant:?}").chars().take_while(|c| c.is_alphanumeric()).collect::<String>());
        let found = run_and_compare(&expecting(&program, &mutated), Mode::Together);
        assert!(found.is_err(), "{mutant:?} in place of {:?} went unnoticed", program.nodes[at].op);
    }
    assert!(n_mutants >= 60 && kinds.len() >= 6, "only {n_mutants} mutants of the kinds {kinds:?} could be told apart");
}

#[test]
fn most_of_what_is_drawn_can_be_checked() {
    let _subject = subject();
    let (mut n_cells, mut n_known, mut n_ops) = (0, 0, 0);
    for program in drawn(seed(), 300, 12, Limits::SMALL) {
        for node in program.nodes.iter().filter(|n| !n.inputs.is_empty()) {
            n_ops += 1;
            n_cells += node.expect.n_elems();
            // Known to a thousandth, or certainly NaN.
            let known = |c: &&Cell| c.is_nan() || c.hi - c.lo <= 1e-3 * c.magnitude() || c.value().is_some();
            n_known += node.expect.cells.iter().filter(known).count();
        }
    }
    assert!(n_ops > 1000, "{n_ops} ops are few");
    assert!(n_known * 10 > n_cells * 7, "only {n_known} of {n_cells} elements are known well");
}

#[test]
fn every_row_of_the_table_is_drawn() {
    let table = lazuli::ops::table();
    let private = ["random"];
    for name in table.unary.iter().map(|r| r.name) {
        assert!(methods::UNARY.contains(&name), "{name} is not drawn");
    }
    for name in table.binary.iter().map(|r| r.name).filter(|n| !private.contains(n)) {
        assert!(methods::BINARY.contains(&name), "{name} is not drawn");
    }
    let _subject = subject();
    let mut seen = HashSet::new();
    let mut families = HashSet::new();
    for program in drawn(seed(), 1500, 12, Limits::SMALL) {
        for node in &program.nodes {
            let text = node.op.text(&["x", "y", "z", "w"]);
            let name: String = text
                .trim_start_matches("Tensor::")
                .trim_start_matches("x.")
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            seen.insert(name);
            families.insert(format!("{:?}", node.op).chars().take_while(|c| c.is_alphanumeric()).collect::<String>());
        }
    }
    let others = [
        "sum",
        "var",
        "argmax",
        "softmax",
        "layer_norm",
        "rms_norm",
        "cumsum",
        "sort",
        "argsort",
        "topk",
        "matmul",
        "dot",
        "outer",
    ];
    let moves = [
        "reshape",
        "permute",
        "slice",
        "flip",
        "pad",
        "repeat",
        "cat",
        "stack",
        "gather",
        "scatter_add",
        "embedding",
        "one_hot",
    ];
    let rows = methods::UNARY.iter().chain(methods::BINARY).chain(&others).chain(&moves);
    let missing: Vec<_> = rows.filter(|name| !seen.contains(**name)).collect();
    assert!(missing.is_empty(), "never drawn: {missing:?}");
}

/// A number for all bits of what some programs give.
fn digest() -> u64 {
    let _subject = subject();
    let small = drawn(7, 60, 12, Limits::SMALL);
    let large = drawn(8, 8, 6, Limits::LARGE);
    let mut digest = 0xcbf2_9ce4_8422_2325u64;
    for program in small.chain(large) {
        // Faults are for the tests above to report.
        let Ok(results) = run_and_compare(&program, Mode::Together) else { continue };
        for value in results.iter().flat_map(|r| &r.1) {
            digest = (digest ^ value.to_bits()).wrapping_mul(0x0100_0000_01b3);
        }
    }
    digest
}

/// What this program prints when it runs one of its tests with some variables set.
fn run_again(test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let program = std::env::current_exe().expect("tests have a path");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    let run = command.output().expect("tests can be started");
    (run.status.success(), String::from_utf8_lossy(&run.stdout).to_string())
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    // This test runs itself: a child only prints its number.
    if std::env::var_os("LAZULI_RANDOM_DIGEST").is_some() {
        println!("digest {:x}", digest());
        return;
    }
    let child = |threads: &str| {
        let variables = [("LAZULI_RANDOM_DIGEST", "1"), ("LAZULI_THREADS", threads)];
        let (_, text) = run_again("the_number_of_threads_changes_no_bit", &variables);
        let line = text.split("digest ").nth(1).and_then(|rest| rest.split_whitespace().next().map(str::to_string));
        line.unwrap_or_else(|| panic!("no digest with {threads} threads: {text}"))
    };
    let one = child("1");
    for threads in ["2", "5"] {
        assert_eq!(one, child(threads), "{threads} threads give other bits than one");
    }
}

#[test]
fn lesser_instruction_sets_agree_with_the_oracle() {
    if testing::device() != lazuli::Device::cpu() {
        // They are the CPU's.
        return;
    }
    for isa in ["baseline", "avx2"] {
        for test in ["small_programs_agree_with_the_oracle", "large_programs_agree_with_the_oracle"] {
            let (passed, text) = run_again(test, &[("LAZULI_ISA", isa), ("LAZULI_RANDOM_CASES", "400")]);
            assert!(passed, "{isa}: {text}");
        }
    }
}
