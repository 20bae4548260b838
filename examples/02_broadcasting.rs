//! How two tensors meet: shapes broadcast and dtypes promote, as in NumPy. Run it with
//! `cargo run --release --example 02_broadcasting`.

use lazuli::{DType, Device, Result, Tensor};

fn main() -> Result<()> {
    let cpu = Device::cpu();

    // Shapes are compared from the last axis; an axis of size 1, or one that is missing, is repeated.
    let column = Tensor::arange(0, 4, 1, &cpu).reshape([4, 1]);
    let row = Tensor::arange(0, 3, 1, &cpu);
    let table = column.mul(10).add(&row);
    println!("{table}");
    assert_eq!(table.shape()?, [4, 3]);
    assert_eq!(table.to_vec::<i32>()?, [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);

    // Nothing is copied for it: both inputs are read, the output is written, and that is all that moves.
    let plan = column.mul(10).add(&row).explain()?;
    assert_eq!(plan.bytes_moved, plan.bytes_moved_lower_bound);

    // Distances between all pairs of points, [n, 1, d] − [1, m, d], in one kernel without the [n, m, d] in between.
    let (p, q) = (Tensor::rand([100, 3], 1, &cpu), Tensor::rand([50, 3], 2, &cpu));
    lazuli::compute(&[&p, &q])?;
    let distances = p.unsqueeze(1).sub(&q.unsqueeze(0)).square().sum(-1).sqrt();
    assert_eq!(distances.shape()?, [100, 50]);
    assert_eq!(distances.explain()?.kernels.len(), 1);
    assert_eq!(distances.explain()?.peak_temp_bytes, 0);

    // Of two dtypes the one that can hold more wins; a plain number takes the tensor's, unless it is of a higher kind.
    let ints = Tensor::from_slice(&[1, 2, 3], [3], &cpu);
    let halves = ints.to_dtype(DType::F16);
    assert_eq!(ints.add(1).dtype()?, DType::I32);
    assert_eq!(ints.add(0.5).dtype()?, DType::F32);
    assert_eq!(halves.add(0.5).dtype()?, DType::F16);
    assert_eq!(ints.add(&halves).dtype()?, DType::F16);
    // Division is of floats, also between integers.
    assert_eq!(ints.div(2).to_vec::<f32>()?, [0.5, 1.0, 1.5]);
    // Comparisons give bools, and bools choose.
    let even = ints.rem(2).eq(0);
    assert_eq!(even.select(&ints, 0).to_vec::<i32>()?, [0, 2, 0]);
    Ok(())
}
