//! The same elements, seen otherwise: movement ops cost no kernel and move no bytes. Run it with
//! `cargo run --release --example 06_views`.

use lazuli::{Device, Result, Tensor, s};

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let x = Tensor::arange(0, 12, 1, &cpu).reshape([3, 4]);
    println!("{x}");

    // Slices mean what they mean in Python; `;` gives a step.
    assert_eq!(x.slice(s![1..3, ..;2]).to_vec::<i32>()?, [4, 6, 8, 10]);
    assert_eq!(x.slice(s![-1, ..]).to_vec::<i32>()?, [8, 9, 10, 11]);
    assert_eq!(x.slice(s![.., ..;-1]).select_index(0, 0).to_vec::<i32>()?, [3, 2, 1, 0]);
    assert_eq!(x.t().shape()?, [4, 3]);
    assert_eq!(x.flip(0).select_index(0, 0).to_vec::<i32>()?, [8, 9, 10, 11]);
    assert_eq!(x.narrow(1, 1, 2).shape()?, [3, 2]);
    assert_eq!(x.unsqueeze(0).permute(&[2, 0, 1]).shape()?, [4, 1, 3]);
    assert_eq!(x.broadcast_to([2, 3, 4]).shape()?, [2, 3, 4]);

    // Views of views are read straight from the source, in the kernel that uses them.
    let big = Tensor::rand([512, 512], 1, &cpu).compute()?;
    let y = big.t().flip(0).slice(s![100..300, ..]).mul(2.0).add(1.0);
    let plan = y.explain()?;
    println!("{plan}");
    assert_eq!(plan.kernels.len(), 1);
    assert_eq!(plan.peak_temp_bytes, 0);
    // Only what is seen is read: 200 × 512 of the 512 × 512 numbers.
    assert_eq!(plan.kernels[0].bytes_read, 200 * 512 * 4);

    // Padding is a view with something around it: differences of neighbours, without a copy.
    let signal = Tensor::from_slice(&[1.0f32, 4.0, 9.0, 16.0], [4], &cpu);
    let before = signal.pad(&[(1, 0)], 0.0).narrow(0, 0, 4);
    let steps = signal.sub(&before);
    assert_eq!(steps.to_vec::<f32>()?, [1.0, 3.0, 5.0, 7.0]);

    // A moving average of three, as three shifted looks at one signal: one kernel, no temporary.
    let shifted = |k: usize| signal.pad(&[(2, 0)], 0.0).narrow(0, k, 4);
    let average = shifted(0).add(&shifted(1)).add(&shifted(2)).div(3.0);
    assert_eq!(average.explain()?.kernels.len(), 1);
    assert_eq!(average.explain()?.peak_temp_bytes, 0);
    assert_eq!(average.mul(3.0).round().to_vec::<f32>()?, [1.0, 5.0, 14.0, 29.0]);

    // Joining makes something new; its parts are written straight to their places.
    let joined = Tensor::cat(&[&x, &x.mul(100)], 1);
    assert_eq!(joined.shape()?, [3, 8]);
    assert_eq!(joined.select_index(0, 0).to_vec::<i32>()?, [0, 1, 2, 3, 0, 100, 200, 300]);
    let parts = joined.split(1, &[4, 4]);
    assert_eq!(parts[1].to_vec::<i32>()?, x.mul(100).to_vec::<i32>()?);
    Ok(())
}
