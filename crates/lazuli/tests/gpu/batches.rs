//! The batch façade on GPUs: one upload, one submit.

use lazuli::{Batch, Tensor};

use crate::{alone, block_on, gpus};

#[test]
fn the_batch_of_the_guide_is_one_submit() {
    let _turn = alone();
    for gpu in gpus() {
        gpu.reset_stats();
        let mut batch = Batch::new(&gpu);
        let x = batch.upload(&[1.0, 2.0, -3.0, 4.0]);
        let half = batch.upload(&[0.5; 4]);
        let positive = batch.relu(x);
        let doubled = batch.scale(positive, 2.0);
        let y = batch.add(doubled, half);
        block_on(batch.execute()).unwrap();
        assert_eq!(gpu.stats().submits, 1);
        assert_eq!(block_on(batch.read(y)).unwrap(), [2.5, 4.5, 0.5, 8.5]);
    }
}

#[test]
fn an_imported_tensor_is_not_uploaded() {
    let _turn = alone();
    for gpu in gpus() {
        let x = Tensor::arange(0.0, 4.0, 1.0, &gpu).compute().unwrap();
        gpu.reset_stats();
        let mut batch = Batch::new(&gpu);
        let x = batch.import_tensor(&x);
        let y = batch.mul(x, x);
        batch.execute_blocking().unwrap();
        assert_eq!(batch.read_blocking(y).unwrap(), [0.0, 1.0, 4.0, 9.0]);
        assert_eq!(gpu.stats().bytes_uploaded, 0);
    }
}

#[test]
fn a_dot_product_of_a_million_ones_is_exact() {
    let _turn = alone();
    for gpu in gpus() {
        let mut batch = Batch::new(&gpu);
        let x = batch.upload(&vec![1.0; 1_048_577]);
        let y = batch.dot(x, x);
        block_on(batch.execute()).unwrap();
        assert_eq!(block_on(batch.read(y)).unwrap(), [1_048_577.0]);
    }
}
