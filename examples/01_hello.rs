//! First steps: tensors go in, maths is written, numbers come out. Run it with
//! `cargo run --release --example 01_hello`.

use lazuli::{DType, Device, Result, Tensor};

fn main() -> Result<()> {
    // Where tensors live. The CPU is always there.
    let device = Device::best();
    println!("on {}", device.info());

    let m1 = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device);
    let m2 = Tensor::from_slice(&[10.0f32, 20.0, 30.0, 40.0], [2, 2], &device);
    let m3 = Tensor::ones([2, 2], DType::F32, &device);

    // Writing maths runs nothing: this line only records what is wanted.
    let y = m1.add(&m2).mul(5.0).sub(&m3);

    // The shape and dtype are known all the same.
    assert_eq!(y.shape()?, [2, 2]);
    assert_eq!(y.dtype()?, DType::F32);

    // Wanting a number runs it, all in one kernel.
    println!("{y}");
    assert_eq!(y.to_vec::<f32>()?, [54.0, 109.0, 164.0, 219.0]);

    // Operators mean the same; numbers may stand on either side.
    let z = 5.0 * (&m1 + &m2) - &m3;
    assert_eq!(z.to_vec::<f32>()?, y.to_vec::<f32>()?);

    // Several results at once share one plan, and whatever work they have in common.
    let (sum, largest) = (y.sum(..), y.max(..));
    lazuli::compute(&[&sum, &largest])?;
    assert_eq!((sum.item::<f32>()?, largest.item::<f32>()?), (546.0, 219.0));
    Ok(())
}
