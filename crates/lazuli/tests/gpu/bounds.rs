//! Pipelines, bind groups and idle buffers are bounded, too: they go with the plans that use them, and those with
//! `LAZULI_CACHE_BYTES`, which is read once, so some of these tests run in a process of their own.

use lazuli::{Device, Tensor};
use lazuli_check::testing::{cached_bytes, resident_bytes};

use crate::{alone, gpus};

fn data(n: usize, gpu: &Device) -> Tensor {
    Tensor::from_vec((0..n).map(|i| (i % 13) as f32).collect(), [n], gpu)
}

/// An expression unlike those of other numbers: which ops follow each other.
fn structure(number: usize, gpu: &Device) -> Tensor {
    let mut y = data(5, gpu);
    let mut rest = number;
    while rest > 0 {
        y = match rest % 5 {
            0 => y.add(1.0),
            1 => y.mul(&y),
            2 => y.sqrt(),
            3 => y.abs().neg(),
            _ => y.sin(),
        };
        rest /= 5;
    }
    y
}

#[test]
fn any_number_of_structures_stays_below_the_bound() {
    const BYTES: usize = 16 << 20;
    if std::env::var_os("LAZULI_TEST_CHILD").is_none() {
        let _turn = alone();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "bounds::any_number_of_structures_stays_below_the_bound", "--nocapture"]);
        // Without what earlier programs left on disk, and without leaving any.
        command.envs([("LAZULI_TEST_CHILD", "1"), ("LAZULI_CACHE_DIR", "")]);
        let run = command.env("LAZULI_CACHE_BYTES", BYTES.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{text}");
        println!("{text}");
        return;
    }
    let n = std::env::var("LAZULI_SOAK_STRUCTURES").ok().and_then(|n| n.parse().ok()).unwrap_or(250);
    for gpu in gpus() {
        let (mut most, mut resident) = (0, 0);
        for i in 0..n {
            structure(i, &gpu).to_vec::<f32>().unwrap();
            let stats = gpu.stats();
            most = most.max(cached_bytes(&stats));
            if i == n / 2 {
                resident = resident_bytes();
                println!("{i}: {} MiB resident, {stats:?}", resident >> 20);
            }
        }
        let (stats, now) = (gpu.stats(), resident_bytes());
        println!("{n} structures: {} KiB cached at most, {} MiB resident", most >> 10, now >> 20);
        assert!(stats.pipelines_compiled >= n as u64 - 1, "every structure is another: {stats:?}");
        assert!(most <= (BYTES + (1 << 20)) as u64, "{most} bytes: {stats:?}");
        assert!(most > BYTES as u64 / 2, "what is allowed is used: {most}");
        // What is measured from outside agrees: of the second half nothing stays.
        assert!(now <= resident + 2 * BYTES, "{resident} bytes after a half, {now} at the end");
    }
}

#[test]
fn trimming_gives_back_all_that_nothing_uses() {
    let _turn = alone();
    for gpu in gpus() {
        let kept = data(5000, &gpu).mul(2.0).compute().unwrap();
        let waiting = kept.add(1.0);
        assert_eq!(structure(12345, &gpu).to_vec::<f32>().unwrap().len(), 5);
        let before = gpu.stats();
        assert!(before.bytes_pooled > 0 && before.bytes_plans > 0 && before.bytes_pipelines > 0, "{before:?}");
        gpu.trim();
        let after = gpu.stats();
        assert_eq!((after.bytes_pooled, after.bytes_plans, after.bytes_pipelines), (0, 0, 0));
        assert_eq!(after.bytes_live, before.bytes_live);
        assert_eq!(waiting.to_vec::<f32>().unwrap()[5], 11.0);
        assert_eq!(kept.to_vec::<f32>().unwrap()[5], 10.0);
        gpu.reset_stats();
        let reset = gpu.stats();
        assert!(reset.submits == 0 && reset.bytes_plans > 0 && reset.bytes_pipelines > 0, "{reset:?}");
    }
}

#[test]
fn trimming_while_others_compute_spoils_nothing() {
    let _turn = alone();
    for gpu in gpus() {
        std::thread::scope(|scope| {
            for t in 0..3usize {
                let gpu = &gpu;
                scope.spawn(move || {
                    for i in 0..20 {
                        let y = data(3000 + t, gpu).mul(i as f32).add(1.0).to_vec::<f32>().unwrap();
                        assert_eq!(y[14], i as f32 + 1.0);
                    }
                });
            }
            for _ in 0..20 {
                gpu.trim();
                std::thread::yield_now();
            }
        });
    }
}
