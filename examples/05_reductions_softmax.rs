//! Many numbers into few: reductions over any axes, and the normalisations built of them. Run it with
//! `cargo run --release --example 05_reductions_softmax`.

use lazuli::{Device, Result, Tensor, keep};

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 9.0], [2, 3], &cpu);

    // An axis, several, or `..` for all; negative ones count from the end.
    assert_eq!(x.sum(0).to_vec::<f32>()?, [5.0, 7.0, 12.0]);
    assert_eq!(x.sum(-1).to_vec::<f32>()?, [6.0, 18.0]);
    assert_eq!(x.mean([0, 1]).item::<f32>()?, 4.0);
    assert_eq!(x.max(..).item::<f32>()?, 9.0);
    assert_eq!(x.argmax(-1).to_vec::<i32>()?, [2, 2]);

    // `keep` leaves the axis with size 1, so that the result broadcasts against where it came from.
    let centred = x.sub(&x.mean(keep(-1)));
    assert_eq!(centred.to_vec::<f32>()?, [-1.0, 0.0, 1.0, -2.0, -1.0, 3.0]);

    // Softmax is written with other ops (max, subtract, exp, sum, divide), and is one kernel all the same.
    let p = x.softmax(-1);
    assert_eq!(p.explain()?.kernels.len(), 1);
    println!("{p}");
    for sum in p.sum(-1).to_vec::<f32>()? {
        assert!((sum - 1.0).abs() <= f32::EPSILON);
    }

    // Large inputs stay finite, and one NaN says that there was one.
    let large = Tensor::from_slice(&[1e30f32, 1e30, -1e30], [3], &cpu);
    assert_eq!(large.softmax(0).to_vec::<f32>()?, [0.5, 0.5, 0.0]);
    let spoilt = Tensor::from_slice(&[1.0, f32::NAN, 2.0], [3], &cpu);
    assert!(spoilt.max(..).item::<f32>()?.is_nan());

    // So is your own: statistics of a row, then something done to the row, is one kernel that reads it once.
    let ours = x.sub(&x.mean(keep(-1))).div(&x.var(keep(-1), 0).add(1e-5).sqrt());
    let theirs = x.layer_norm(-1, None, None, 1e-5);
    assert_eq!(ours.explain()?.kernels.len(), 1);
    assert_eq!(theirs.explain()?.kernels.len(), 1);
    for (a, b) in ours.to_vec::<f32>()?.iter().zip(theirs.to_vec::<f32>()?) {
        assert!((a - b).abs() <= 4.0 * f32::EPSILON);
    }

    // Sums are exact to a few units in the last place however long they are: a million tenths.
    let tenths = Tensor::full([1_000_000], 0.1f32, &cpu).sum(..).item::<f32>()?;
    assert!((tenths - 100_000.0).abs() < 0.02);
    Ok(())
}
