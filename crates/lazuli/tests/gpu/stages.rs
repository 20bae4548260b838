//! Stages on GPUs: all are handed over at once, and whoever reads one waits for that one.

use std::time::Instant;

use lazuli::Tensor;

use crate::{alone, gpus};

#[test]
fn reading_a_stage_does_not_wait_for_later_ones() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::rand([1024, 1024], 1, &gpu).mul(0.001).compute().unwrap();
        // Twice: the first time shaders are compiled.
        let mut times = Vec::new();
        for _ in 0..2 {
            let first = x.add(1.0);
            let second = (0..8).fold(first.clone(), |y, _| y.matmul(&x));
            gpu.sync().unwrap();
            let start = Instant::now();
            lazuli::compute_staged(&[&[&first], &[&second]]).unwrap();
            let values = first.to_vec::<f32>().unwrap();
            let first_read = start.elapsed();
            gpu.sync().unwrap();
            times.push((first_read, start.elapsed()));
            assert_eq!(values.len(), 1 << 20);
            assert!(values.iter().all(|v| (1.0..1.01).contains(v)));
        }
        let (first_read, all) = times[1];
        assert!(first_read < all / 2, "the first was read after {first_read:?} of {all:?}");
    }
}
