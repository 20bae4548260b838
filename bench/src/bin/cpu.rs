//! Measures all contenders on the CPU in one process and prints one table. See `--help`.

use lazuli_bench::command::{self, Field, processor};
use lazuli_bench::workload;

fn main() {
    command::main("cpu", |options| {
        let contenders = lazuli_bench::contenders(options.n_threads);
        Ok(Field { place: processor(), workloads: workload::ALL, contenders })
    });
}
