//! What a token costs beside its arithmetic: after the second one nothing is planned, filled, compiled or allocated, except where
//! the cache doubles. On the CPU, or on what `LAZULI_TEST_DEVICE` names.

use std::path::PathBuf;

use lazuli::{Device, Stats};
use lazuli_text::{LanguageModel, Session};

fn device() -> Device {
    match std::env::var("LAZULI_TEST_DEVICE") {
        Ok(name) => Device::open(&name).unwrap_or_else(|error| panic!("LAZULI_TEST_DEVICE: {error}")),
        Err(_) => Device::cpu(),
    }
}

fn tiny(name: &str) -> LanguageModel {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(format!("{name}.gguf"));
    LanguageModel::open(path, &device()).unwrap()
}

/// What one more token adds to the counters that should stay: plans, fills, kernels, buffers.
fn cost(session: &mut Session, token: u32) -> ([u64; 4], u64) {
    let device = session.model().decoder().device().clone();
    let kept =
        |stats: &Stats| [stats.plans_compiled, stats.plans_filled, stats.pipelines_compiled, stats.buffers_created];
    let before = device.stats();
    session.read(&[token]).unwrap();
    let after = device.stats();
    let (was, is) = (kept(&before), kept(&after));
    (std::array::from_fn(|i| is[i] - was[i]), after.submits - before.submits)
}

#[test]
fn a_token_plans_compiles_and_allocates_nothing_but_where_the_cache_doubles() {
    for name in ["llama", "gemma3", "phi3"] {
        let model = tiny(name);
        let mut session = model.session();
        session.read(&[5, 6, 7]).unwrap();
        let mut doubled = Vec::new();
        for i in 0..500 {
            let (cost, submits) = cost(&mut session, 5 + i % 300);
            if i >= 2 && (cost != [0; 4] || submits != 1) {
                doubled.push((session.tokens().len(), cost, submits));
            }
        }
        // Room for 256 rows, then for 512: the token that does not fit, and the one after it.
        let expect = |(n, ..): &(usize, [u64; 4], u64)| [257, 258].contains(n);
        assert!(doubled.iter().all(expect), "{name}: {doubled:?}");
    }
}
