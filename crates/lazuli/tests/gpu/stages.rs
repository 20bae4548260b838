//! Stages on GPUs: all are handed over at once, and whoever reads one waits for that one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lazuli::Tensor;

use crate::{alone, own};

#[test]
fn reading_a_stage_does_not_wait_for_later_ones() {
    let _turn = alone();
    let (_, queue, gpu) = own(|_| {});
    let x = Tensor::rand([1024, 1024], 1, &gpu).mul(0.001).compute().unwrap();
    // Twice: the first time shaders are compiled.
    for _ in 0..2 {
        let first = x.add(1.0);
        let second = (0..8).fold(first.clone(), |y, _| y.matmul(&x));
        gpu.sync().unwrap();
        lazuli::compute_staged(&[&[&first], &[&second]]).unwrap();
        // The queue says when all that it was handed is done, later stages included.
        let all_done = Arc::new(AtomicBool::new(false));
        let done = all_done.clone();
        queue.on_submitted_work_done(move || done.store(true, Ordering::SeqCst));
        let values = first.to_vec::<f32>().unwrap();
        assert!(!all_done.load(Ordering::SeqCst), "the first stage was read when all stages had ended");
        gpu.sync().unwrap();
        assert!(all_done.load(Ordering::SeqCst), "the queue never said that it was done");
        assert_eq!(values.len(), 1 << 20);
        assert!(values.iter().all(|v| (1.0..1.01).contains(v)));
    }
}
