//! Leaving without blocking and without a runtime: who polls has its thread back at once, and is woken.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use lazuli::{Batch, CustomOp, Device, Error, Tensor, Weights};
use lazuli_check::testing::block_on;

use crate::device::device;
use crate::{alone, shared};

/// Counts how often it is woken, and wakes a thread.
struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

fn unpark() -> Arc<Unpark> {
    Arc::new(Unpark(std::thread::current(), AtomicUsize::new(0)))
}

fn data(n: usize) -> Tensor {
    Tensor::from_vec((0..n).map(|i| i as f32 * 0.5).collect(), [n], &device())
}

#[test]
fn leaving_needs_no_async_runtime() {
    let _device = shared();
    block_on(async {
        let x = data(100);
        assert_eq!(x.add(1.0).to_vec_async::<f32>().await.unwrap()[99], 50.5);
        assert_eq!(x.sum(..).item_async::<f32>().await.unwrap(), 2475.0);
        let y = x.mul(2.0).compute_async().await.unwrap();
        assert_eq!(y.explain().unwrap().kernels.len(), 0);
        let (a, b) = (x.exp(), x.max(..));
        lazuli::compute_async(&[&a, &b]).await.unwrap();
        assert_eq!(b.item_async::<f32>().await.unwrap(), 49.5);
        let mut batch = Batch::new(&device());
        let x = batch.upload(&[1.0, -2.0]);
        let y = batch.relu(x);
        batch.execute().await.unwrap();
        assert_eq!(batch.read(y).await.unwrap(), [1.0, 0.0]);
        let mut weights = Weights::new(&device());
        weights.upload("twice", &[2.0], 1, 1).unwrap();
        let mut y = [0.0; 2];
        weights.matmul_async("twice", &[1.0, 2.0], &mut y, 2).await.unwrap();
        assert_eq!(y, [2.0, 4.0]);
    });
}

#[test]
fn errors_of_futures_name_the_line_of_the_call() {
    // Whoever waits for the device is told what went wrong there, and nobody else is: it must be this test.
    let _device = alone();
    #[track_caller]
    fn check<T: std::fmt::Debug>(result: Result<T, Error>, line: u32) {
        let error = result.unwrap_err();
        let at = error.fault().at.unwrap();
        assert!(at.file().ends_with("futures.rs") && at.line() == line, "{error}, not line {line}");
    }
    let x = data(100);
    let (wrong, line) = (x.add(&data(3)), line!());
    check(block_on(wrong.to_vec_async::<f32>()), line);
    check(block_on(wrong.compute_async()), line);
    check(block_on(lazuli::compute_async(&[&x, &wrong])), line);
    check(block_on(x.to_vec_async::<i32>()), line!());
    check(block_on(x.item_async::<f32>()), line!());
    // Found out while it runs, on a GPU even later.
    let bad = Tensor::from_slice(&[100i32], [1], &device());
    let (lookup, line) = (x.gather(0, &bad), line!());
    check(block_on(lookup.to_vec_async::<f32>()), line);
    let _ = device().sync();
    // More than any machine has.
    let huge = Tensor::rand([1 << 24, 1 << 24], 1, &device());
    check(block_on(huge.to_vec_async::<f32>()), line!() - 1);
    assert_eq!(block_on(x.sum(..).item_async::<f32>()).unwrap(), 2475.0);
}

#[test]
fn futures_can_be_sent_to_other_threads() {
    let _device = shared();
    fn is_send<T: Send>(future: T) -> T {
        future
    }
    let (x, batch) = (data(10), Batch::new(&device()));
    drop((is_send(x.to_vec_async::<f32>()), is_send(x.compute_async()), is_send(batch.execute())));
    let sum = std::thread::spawn(move || block_on(is_send(async move { x.sum(..).item_async::<f32>().await }))).join();
    assert_eq!(sum.unwrap().unwrap(), 22.5);
}

/// A function that hands its argument on once `n` was counted up to.
fn once_counted(count: &Arc<AtomicUsize>, n: usize) -> CustomOp {
    let count = count.clone();
    let wait = move |x: &[f32]| {
        let since = Instant::now();
        while count.load(Ordering::SeqCst) < n {
            assert!(since.elapsed() < Duration::from_secs(60), "the executor did not get its turn");
            std::thread::yield_now();
        }
        x[0]
    };
    CustomOp { name: "once_counted".into(), wgsl: "$0".into(), cpu: Arc::new(wait), grad: None }
}

#[test]
fn whoever_polls_has_its_thread_back_while_the_cpu_computes() {
    let _device = shared();
    let x = Tensor::from_slice(&[5.0f32], [1], &Device::cpu());
    let turns = Arc::new(AtomicUsize::new(0));
    let y = Tensor::map_custom(&once_counted(&turns, 100), &[&x]);
    let mut future = pin!(y.to_vec_async::<f32>());
    let waker = unpark();
    let read = loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker.clone().into())) {
            Poll::Ready(read) => break read,
            Poll::Pending => turns.fetch_add(1, Ordering::SeqCst),
        };
    };
    assert_eq!(read.unwrap(), [5.0]);
    assert_eq!(turns.load(Ordering::SeqCst).min(100), 100);
    assert!(waker.1.load(Ordering::SeqCst) <= 1, "it is woken once, when it is done");
}

#[test]
fn the_task_that_polled_last_is_woken() {
    let _device = shared();
    let x = Tensor::from_slice(&[5.0f32], [1], &Device::cpu());
    let polled = Arc::new(AtomicUsize::new(0));
    let y = Tensor::map_custom(&once_counted(&polled, 1), &[&x]);
    let mut future = pin!(y.compute_async());
    let (first, last) = (unpark(), unpark());
    assert!(future.as_mut().poll(&mut Context::from_waker(&first.clone().into())).is_pending());
    assert!(future.as_mut().poll(&mut Context::from_waker(&last.clone().into())).is_pending());
    polled.store(1, Ordering::SeqCst);
    while last.1.load(Ordering::SeqCst) == 0 {
        std::thread::park();
    }
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(&last.clone().into())), Poll::Ready(Ok(_))));
    assert_eq!(first.1.load(Ordering::SeqCst), 0);
}

#[test]
fn a_future_may_be_dropped_at_any_time() {
    let _device = shared();
    let x = data(200_000).compute().unwrap();
    for n_polls in 0..3 {
        let futures: Vec<_> = (0..20)
            .map(|i| {
                let y = x.add(i as f32);
                let mut future = Box::pin(async move { y.sum(..).item_async::<f32>().await });
                // A future that is done is not polled again.
                let _ = (0..n_polls).find(|_| future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
                future
            })
            .collect();
        drop(futures);
        assert_eq!(block_on(x.add(2.0).to_vec_async::<f32>()).unwrap()[199_999], 100_001.5);
    }
}

#[test]
fn many_tasks_on_many_threads_get_their_own_results() {
    let _device = shared();
    let x = data(5000).compute().unwrap();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let x = &x;
            scope.spawn(move || {
                for i in 0..20 {
                    let got = block_on(x.add((t * i) as f32).to_vec_async::<f32>()).unwrap();
                    assert_eq!(got[4999], 2499.5 + (t * i) as f32);
                }
            });
        }
    });
}

#[test]
fn an_awaited_evaluation_reuses_the_memory_of_inputs_that_nobody_holds() {
    let _device = alone();
    let n = 1 << 20;
    let mut x = data(n).compute().unwrap();
    let mut peaks = Vec::new();
    for step in 0..40 {
        if step % 20 == 2 {
            // Planned, compiled and allocated by now.
            device().reset_stats();
        }
        let next = x.add(1.0);
        drop(x);
        match step < 20 {
            true => drop(next.compute().unwrap()),
            false => drop(block_on(next.compute_async()).unwrap()),
        }
        x = next;
        if step % 20 == 19 {
            let stats = device().stats();
            assert_eq!((stats.plans_compiled, stats.buffers_created), (0, 0), "step {step}");
            peaks.push(stats.bytes_peak);
        }
    }
    assert_eq!(peaks[0], peaks[1]);
    assert_eq!(x.to_vec::<f32>().unwrap()[1], 40.5);
}

/// How long this thread was ready to run, but others ran: what a busy machine adds to any gap.
fn waited_for_a_core() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// What a ticker on one thread saw while a future ran there beside it.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    n: usize,
    /// The longest from one tick to the next, and without the time that the thread waited for a core.
    worst: Duration,
    worst_of_ours: Duration,
    took: Duration,
}

/// An executor of one thread, with a task that ticks every two milliseconds beside `future`.
fn beside_a_ticker<F: Future>(future: F) -> (F::Output, Ticks) {
    const PERIOD: Duration = Duration::from_millis(2);
    let ticks = Cell::new(Ticks::default());
    let mut last = (Instant::now(), waited_for_a_core());
    let begin = last.0;
    let mut tick = || {
        let now = (Instant::now(), waited_for_a_core());
        let gap = now.0 - last.0;
        let mut seen = ticks.get();
        seen.n += 1;
        seen.worst = seen.worst.max(gap);
        seen.worst_of_ours = seen.worst_of_ours.max(gap.saturating_sub(now.1 - last.1));
        seen.took = now.0 - begin;
        ticks.set(seen);
        last = now;
    };
    let woken = unpark();
    let waker: Waker = woken.clone().into();
    let mut future = pin!(future);
    let mut n_woken = usize::MAX;
    let mut next = begin + PERIOD;
    loop {
        let n = woken.1.load(Ordering::SeqCst);
        if n != n_woken {
            n_woken = n;
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                tick();
                return (output, ticks.get());
            }
        }
        let now = Instant::now();
        if now >= next {
            tick();
            next = now + PERIOD;
        } else {
            std::thread::park_timeout(next - now);
        }
    }
}

/// About half a second of work, made of products.
fn half_a_second(seed: u64) -> Tensor {
    let product = |n: usize, seed: u64| {
        let w = Tensor::rand([256, 256], seed, &device()).sub(0.5).mul(0.1);
        (0..n).fold(Tensor::rand([256, 256], seed + 1, &device()), |x, _| x.matmul(&w).tanh())
    };
    let mut n = 8;
    loop {
        // The first time it is planned and compiled.
        let took = [0, 1].map(|_| {
            let since = Instant::now();
            product(n, seed).sum(..).item::<f32>().unwrap();
            since.elapsed()
        })[1];
        if took > Duration::from_millis(50) {
            n = (n as f64 * 0.5 / took.as_secs_f64()).ceil() as usize;
            // Another structure, so that planning it is awaited, too.
            return product(n.max(1), seed + 2).sum(..);
        }
        n *= 4;
    }
}

#[test]
fn a_ticker_beside_an_awaited_evaluation_goes_on_ticking() {
    let _device = alone();
    // A machine may stop a thread for other reasons than its load, once in a while, but not in ten rounds out of ten.
    let is_smooth = (0..10).any(|round| {
        let work = half_a_second(10 * round);
        let (read, ticks) = beside_a_ticker(work.item_async::<f32>());
        assert!(read.unwrap().is_finite());
        println!("{}: {ticks:?}", device().info().name);
        // If the evaluation ran in `poll`, there would be no tick before the last.
        assert!(ticks.n >= 10, "{ticks:?}");
        ticks.worst_of_ours < Duration::from_millis(10)
    });
    assert!(is_smooth, "no round without a gap of 10 ms; what each saw is printed above");
}

#[test]
fn nothing_happens_before_the_first_poll() {
    let _device = alone();
    let x = data(100).compute().unwrap();
    let y = x.mul(3.0);
    let before = device().stats();
    let mut future: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(y.compute_async());
    assert_eq!(device().stats(), before);
    block_on(future.as_mut()).unwrap();
    assert_eq!(device().stats().submits, before.submits + 1);
}
