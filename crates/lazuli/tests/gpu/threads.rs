//! Many threads on one GPU. What wgpu raises while they work would end a program that is built with `panic = "abort"`, so
//! panics are counted where both kinds of program meet them first: in the hook.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use lazuli::{Device, Error, Tensor};

use crate::{alone, block_on, gpus, own};

/// Elements: enough that a submission takes longer than it takes to ask whether it is done.
const N: usize = 20_000;
const N_THREADS: usize = 8;
const N_ROUNDS: usize = 1000;

static N_PANICS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` in a process of its own, which runs nothing else, so that every panic in it is the work's.
fn without_a_panic(name: &str, work: impl FnOnce()) {
    if std::env::var("LAZULI_TEST_THREADS").as_deref() != Ok(name) {
        let mut this = Command::new(std::env::current_exe().unwrap());
        let output = this.args(["--exact", name, "--nocapture"]).env("LAZULI_TEST_THREADS", name).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
        return;
    }
    let shown = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A few of wgpu's say what is wrong as well as thousands do.
        let is_ours = info.location().is_some_and(|at| at.file().ends_with("threads.rs"));
        if N_PANICS.fetch_add(1, Ordering::SeqCst) < 3 || is_ours {
            shown(info);
        }
    }));
    work();
    assert_eq!(N_PANICS.load(Ordering::SeqCst), 0, "panics were raised");
}

/// What every thread does, in turn: computes and reads, reads what all of them read, hands work over that nobody reads,
/// and looks numbers up, which is checked.
fn round(i: usize, shared: &Tensor, gpu: &Device) -> Result<(), Error> {
    let add = (i % 7) as f32;
    let y = shared.mul(2.0).add(add);
    let expected = 2.0 * (N - 1) as f32 + add;
    match i % 4 {
        0 => assert_eq!(y.to_vec::<f32>()?[N - 1], expected),
        1 => assert_eq!(block_on(y.to_vec_async::<f32>())?[N - 1], expected),
        2 => {
            let unread = y.compute()?;
            assert_eq!(shared.to_vec::<f32>()?[N - 1], (N - 1) as f32);
            drop(unread);
        }
        _ => {
            let at = Tensor::from_slice(&[N as i32 - 1, 7], [2], gpu);
            assert_eq!(shared.gather(0, &at).to_vec::<f32>()?, [(N - 1) as f32, 7.0]);
        }
    }
    Ok(())
}

fn all_at_once(gpu: &Device) {
    let shared = Tensor::arange(0.0, N as f64, 1.0, gpu).compute().unwrap();
    let failed: Vec<Error> = std::thread::scope(|scope| {
        let run = |t: usize| {
            let (shared, gpu) = (&shared, &gpu);
            scope.spawn(move || (0..N_ROUNDS).filter_map(|i| round(t + i, shared, gpu).err()).collect::<Vec<_>>())
        };
        let threads: Vec<_> = (0..N_THREADS).map(run).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{} of {} rounds: {}", failed.len(), N_THREADS * N_ROUNDS, failed[0]);
    gpu.sync().unwrap();
}

#[test]
fn eight_threads_on_one_gpu_raise_no_panic_and_all_read_what_is_right() {
    let _turn = alone();
    without_a_panic("threads::eight_threads_on_one_gpu_raise_no_panic_and_all_read_what_is_right", || {
        gpus().iter().for_each(all_at_once);
    });
}

#[test]
fn eight_threads_on_a_device_of_the_application_raise_no_panic_either() {
    let _turn = alone();
    without_a_panic("threads::eight_threads_on_a_device_of_the_application_raise_no_panic_either", || {
        let (device, _, gpu) = own(|_| {});
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // An application polls its device, too.
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    device.poll(lazuli::gpu::wgpu::PollType::Poll).unwrap();
                    std::thread::yield_now();
                }
            });
            all_at_once(&gpu);
            done.store(true, Ordering::SeqCst);
        });
    });
}
