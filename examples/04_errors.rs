//! Mistakes are values. An op that cannot be done gives a tensor that carries why, and where; whoever wants a number
//! is told. Run it with `cargo run --release --example 04_errors`.

use lazuli::{DType, Device, Error, Result, Tensor};

fn main() -> Result<()> {
    let cpu = Device::cpu();
    let a = Tensor::zeros([4, 3], DType::F32, &cpu);
    let b = Tensor::zeros([4, 5], DType::F32, &cpu);

    // No `?` and no panic while maths is written, though this product cannot be.
    let line = line!() + 1;
    let product = a.matmul(&b);
    let y = product.tanh().mul(2.0).sum(..);

    // The error comes out where a number is wanted, and names the op, both shapes and the line it was made on.
    let error = y.item::<f32>().unwrap_err();
    println!("{error}");
    assert!(error.to_string().starts_with("matmul: inner sizes differ: [4, 3] × [4, 5]"));
    assert!(error.to_string().contains(&format!("04_errors.rs:{line}:")));

    // For programs: the kind of error, and its particulars.
    assert!(matches!(error, Error::Shape(_)));
    assert_eq!(error.fault().op, "matmul");
    assert_eq!(error.fault().at.map(|at| at.line()), Some(line));

    // To stop early, ask.
    assert!(y.check().is_err());
    assert!(a.t().matmul(&b).check().is_ok());

    // Each of these is refused with what would have worked; none panics.
    let matrix = Tensor::zeros([2, 3], DType::F32, &cpu);
    let mistakes = [
        matrix.add(&Tensor::zeros([2], DType::F32, &cpu)),
        matrix.reshape([4]),
        matrix.sum(2),
        matrix.shl(1),
        matrix.permute(&[0, 0]),
        Tensor::from_slice(&[1.0f32, 2.0, 3.0], [2, 2], &cpu),
        Tensor::from_slice(&[1i64 << 40], [1], &cpu),
    ];
    for mistake in &mistakes {
        println!("{}", mistake.check().unwrap_err());
    }

    // Whether an index is in range shows only when it runs. Memory outside the tensor is never touched.
    let table = Tensor::arange(0.0, 10.0, 1.0, &cpu);
    let picked = table.index_select(0, &Tensor::from_slice(&[3, 12], [2], &cpu));
    assert!(picked.check().is_ok());
    let error = picked.to_vec::<f32>().unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Index(_)));

    // Reading never loses a bit silently: a wider type is fine, a narrower one is refused.
    assert_eq!(table.slice(&[(2, 4, 1)]).to_vec::<f64>()?, [2.0, 3.0]);
    assert!(table.to_vec::<i32>().is_err());
    Ok(())
}
