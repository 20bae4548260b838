//! What memory is used, what becomes of it, and what happens when there is none. These tests see every allocation of the
//! process, so they have a program of their own.

mod caches;
mod programs;
mod refusing;
mod small;
mod starved;

#[global_allocator]
static ALLOCATOR: refusing::Refusing = refusing::Refusing;

/// Runs a test of this program again, in a process of its own with these variables: whether it passed, and what it wrote.
/// The caller is alone, since what it writes is allocated here.
fn run_again(test: &str, variables: &[(&str, &str)]) -> (bool, String) {
    let program = std::env::current_exe().expect("tests have a path");
    let mut command = std::process::Command::new(program);
    command.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    let run = command.output().expect("tests can be started");
    let text = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    (run.status.success(), text)
}
