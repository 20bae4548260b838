//! What a token costs beside its arithmetic: after the second one nothing is planned, filled, compiled or allocated, except where
//! the cache doubles. On the CPU, or on what `LAZULI_TEST_DEVICE` names.

use std::path::PathBuf;

use lazuli::Stats;
use lazuli_check::testing::{alone, device};
use lazuli_text::{LanguageModel, Session};

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

/// The tokens for which a session says that its cache grows.
fn growing(session: &mut Session) -> Vec<usize> {
    let edges = session.explain(5).unwrap().edges;
    let token = |edge: &String| edge.split_once("rows: token ")?.1.split(' ').next()?.parse().ok();
    edges.iter().filter_map(token).collect()
}

#[test]
fn a_token_plans_compiles_and_allocates_nothing_but_where_the_cache_doubles() {
    let _turn = alone();
    for name in ["llama", "gemma3", "phi3"] {
        let model = tiny(name);
        let mut session = model.session();
        session.read(&[5, 6, 7]).unwrap();
        let grows = growing(&mut session);
        assert_eq!(grows[..1], [257], "{name}");
        let n_tokens = 603.min(session.context());
        let mut costly = Vec::new();
        for i in 3..n_tokens {
            let (cost, submits) = cost(&mut session, 5 + i as u32 % 300);
            if i >= 5 && (cost != [0; 4] || submits != 1) {
                costly.push((session.tokens().len(), cost, submits));
            }
        }
        // The token that does not fit, and the one after it.
        let expect = |(n, ..): &(usize, [u64; 4], u64)| grows.contains(n) || grows.contains(&(n - 1));
        assert!(costly.iter().all(expect), "{name}: {costly:?}, {grows:?}");
        assert!(
            grows.iter().filter(|n| **n <= n_tokens).all(|n| costly.iter().any(|(m, ..)| m == n)),
            "{name}: {costly:?}"
        );
    }
}

#[test]
fn explaining_a_token_reads_nothing() {
    let _turn = alone();
    let model = tiny("llama");
    let (mut session, mut other) = (model.session(), model.session());
    assert!(session.explain(5).unwrap().kernels.len() > 10);
    assert_eq!((session.tokens().len(), session.cache_bytes()), (0, 0));
    for tokens in [&[5, 6, 7][..], &[8], &[9]] {
        let explained = session.explain(4).unwrap();
        assert_eq!(explained.submits, 1);
        assert_eq!(session.read(tokens).unwrap(), other.read(tokens).unwrap());
    }
    assert_eq!(session.tokens(), other.tokens());
}
